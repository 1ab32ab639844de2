"""kill -9 of one rank, at any moment: the job ends with a message, and the next start loses nothing.

Afterwards losses and the final checkpoint equal those of a run that was left alone, nothing of the
broken save remains, and the step resumed from is not below the last that had been announced as saved.
"""

import random
import shutil
import subprocess
import time
import unittest

import checkpoint_files
import harness

STEPS = 12
RANKS = 2
# Far below the deadline of a wait for a peer (120 s), far above what a loaded machine needs.
NOTICED_WITHIN_S = 30
LAYOUT = {"actor_rollout_ref__actor__megatron__pipeline_model_parallel_size": 2}


class Crash(harness.Job):
    def setUp(self):
        super().setUp()
        self.reference()

    def reference(self):
        self.train(self.config("straight", trainer__save_freq=2, **LAYOUT), ranks=RANKS)
        self.expected = self.metrics("straight")
        self.digests = checkpoint_files.digests(self.run_dir("straight") / f"global_step_{STEPS}")

    def kill_when(self, name, config, victim, condition, what, at_the_latest):
        """Starts a run, kills `victim` once the condition holds, and returns the log of its end. At a fail point it stands still: the
        kill comes before the run's end, however late."""
        before = len(self.log())
        process = self.start(config, ranks=RANKS, failpoint=f"{at_the_latest}:stop")
        self.wait_until(condition, what, process)
        pid = harness.ranks_below(process)[victim]
        harness.kill(pid)
        killed = time.monotonic()
        process.wait(timeout=harness.LIMIT_S)
        seconds = time.monotonic() - killed
        log = self.log()[before:]
        self.assertNotEqual(process.returncode, 0, log[-2000:])
        self.assertLess(seconds, NOTICED_WITHIN_S, log[-2000:])
        self.assertEqual(harness.ranks_below(process), {}, "a rank was left behind")
        print(f"{name}: rank {victim} killed {what}; the launcher ended after {seconds:.1f} s")
        return log

    def check_recovery(self, name, config):
        """A restart goes on from the newest complete checkpoint and ends where the straight run did."""
        saved = checkpoint_files.latest(self.run_dir(name)) or 0
        self.train(config, ranks=RANKS)
        found = self.metrics(name)
        self.assertEqual(sorted(found), list(range(1, STEPS + 1)))
        for step in found:
            for key in (harness.LOSS, harness.GRAD_NORM, harness.SAMPLES):
                self.assertEqual(found[step][key], self.expected[step][key], f"step {step}, {key}")
        self.assertGreaterEqual(checkpoint_files.latest(self.run_dir(name)), saved)
        final = self.run_dir(name) / f"global_step_{STEPS}"
        self.assertEqual(checkpoint_files.digests(final), self.digests)
        debris = [p.name for p in self.run_dir(name).iterdir() if p.name.startswith((".tmp-", ".old-", ".trash-"))]
        self.assertEqual(debris, [])

    def test_while_training(self):
        for victim in range(RANKS):
            with self.subTest(victim=victim):
                name = f"killed_{victim}"
                config = self.config(name, trainer__save_freq=2, **LAYOUT)
                log = self.kill_when(
                    name, config, victim, lambda: len(self.metrics(name)) >= 5, "after step 5", f"step.begin:{victim}:8"
                )
                self.assertRegex(log, rf"rank {victim} was killed by SIGKILL at step \d+")
                self.check_recovery(name, config)

    def test_while_saving(self):
        chance = random.Random(11)
        for attempt in range(4):
            name = f"saving_{attempt}"
            config = self.config(name, trainer__save_freq=1, **LAYOUT)
            wanted = chance.randrange(1, 4)
            victim = chance.randrange(RANKS)
            run = self.run_dir(name)
            with self.subTest(attempt=attempt, victim=victim):
                self.kill_when(
                    name, config, victim,
                    lambda: any(run.glob(".tmp-*")) and len(checkpoint_files.steps(run)) >= wanted,
                    f"while a save was open, {wanted} published", f"save.write:{victim}:6",
                )  # fmt: skip
                for step in checkpoint_files.steps(run):
                    verified = harness.keel("ckpt", "verify", run / f"global_step_{step}")
                    self.assertEqual(verified.returncode, 0, verified.stderr)
                self.check_recovery(name, config)

    def test_random_kills_and_another_layout_each_time(self):
        """No step is lost, repeated or fed other data, whatever the moment and the layouts."""
        chance = random.Random(23)
        name, steps = "soak", 200
        run = self.run_dir(name)
        megatron = "actor_rollout_ref.actor.megatron."
        config = self.config(name, trainer__save_freq=3, trainer__total_training_steps=steps)
        straight = self.config("whole", trainer__total_training_steps=steps)
        self.train(straight)
        announced = 0
        for tp, pp, dp in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 1, 1)):
            sizes = [f"{megatron}tensor_model_parallel_size={tp}", f"{megatron}pipeline_model_parallel_size={pp}"]
            # The run does not come to its end before the kill comes, however late.
            process = self.start(config, *sizes, ranks=tp * pp * dp, failpoint="step.begin:0:30:stop")
            progress = max(self.metrics(name), default=0) + chance.randrange(1, 9)
            self.wait_until(lambda: max(self.metrics(name), default=0) >= progress, "progress", process)
            time.sleep(chance.random() * 0.05)
            ranks = harness.ranks_below(process) or {0: process.pid}
            harness.kill(ranks[chance.choice(sorted(ranks))])
            process.wait(timeout=harness.LIMIT_S)
            self.assertNotEqual(process.returncode, 0)
            saved = checkpoint_files.latest(run) or 0
            self.assertGreaterEqual(saved, announced)
            announced = saved
            for step in checkpoint_files.steps(run):
                verified = harness.keel("ckpt", "verify", run / f"global_step_{step}")
                self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        self.train(config)
        expected, found = self.metrics("whole"), self.metrics(name)
        self.assertEqual(sorted(found), list(range(1, steps + 1)))
        for step in found:
            for key in (harness.SAMPLES, "lr", "n_tokens_seen"):
                self.assertEqual(found[step][key], expected[step][key], f"step {step}, {key}")
            self.assertAlmostEqual(found[step][harness.LOSS], expected[step][harness.LOSS], delta=2e-3)

    def test_restarts_by_itself(self):
        name = "restarting"
        config = self.config(name, trainer__save_freq=2, **LAYOUT)
        original, self.command = self.command, self.command_with_restart
        try:
            # There are no more steps than ten for the second start.
            process = self.start(config, ranks=RANKS, failpoint="step.begin:0:11:stop")
        finally:
            self.command = original
        self.wait_until(lambda: len(self.metrics(name)) >= 5, "step 5", process)
        harness.kill(harness.ranks_below(process)[1])
        process.wait(timeout=harness.LIMIT_S)
        self.assertEqual(process.returncode, 0, self.log()[-3000:])
        final = self.run_dir(name) / f"global_step_{STEPS}"
        self.assertEqual(checkpoint_files.digests(final), self.digests)

    def test_a_restart_does_not_go_back_to_where_the_job_began(self):
        """resume_path is for the first start of a job; the launcher's restarts repeat it."""
        self.train(self.config("before", trainer__save_freq=2, trainer__total_training_steps=4))
        start = self.run_dir("before") / "global_step_2"
        config = self.config("rewound", trainer__save_freq=2, trainer__total_training_steps=10,
                             trainer__resume_mode="resume_path", trainer__resume_from_path=str(start),
                             actor_rollout_ref__actor__checkpoint__async_save=False)  # fmt: skip
        # The sixth step that a process takes: of the second one only if that began at step 2 again.
        environment = {**harness.environment(), "KEEL_FAILPOINT": "step.begin:0:6:kill"}
        done = subprocess.run([harness.KEEL, *self.command_with_restart(config, 1)], capture_output=True, text=True,
                              timeout=harness.LIMIT_S, env=environment, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertIn("restart 1 of this job goes on from the newest checkpoint", done.stdout + done.stderr)
        self.assertEqual(sorted(self.metrics("rewound")), list(range(3, 11)))
        events = [record["event"] for record in harness.read_jsonl(self.run_dir("rewound") / "checkpoints.jsonl")]
        self.assertEqual(events[:3], ["begin", "load", "save"])
        # Nor when it died between a save's publication and the note that the save has ended; where an earlier job did so
        # within a line, too.
        shutil.rmtree(self.run_dir("rewound"))
        self.run_dir("rewound").mkdir()
        (self.run_dir("rewound") / "checkpoints.jsonl").write_text('{"event": "save", "step": 1')
        environment["KEEL_FAILPOINT"] = "save.tracker:0:1:kill"
        command = self.command_with_restart(config, 1, "trainer.total_training_steps=4")
        done = subprocess.run([harness.KEEL, *command], capture_output=True, text=True,
                              timeout=harness.LIMIT_S, env=environment, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertIn("resumed from global_step_4", done.stdout + done.stderr)
        # A new job with the same settings begins where it is told to.
        again = self.train(config)
        self.assertIn("resumed from global_step_2 at step 2", again.stdout + again.stderr)
        self.assertIn("checkpoints of later steps", again.stdout + again.stderr)

    def command_with_restart(self, config, ranks, *overrides):
        launch = ["launch", "--nproc-per-node", str(ranks), "--max-restarts", "1"]
        return [*launch, "train", str(config), *overrides]


if __name__ == "__main__":
    unittest.main()
