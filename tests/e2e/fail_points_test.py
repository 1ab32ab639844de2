"""Every named place of a save, a load and a step, one after the other: killed there, failed there.

One run directory lives through all of it. After each death what is published verifies and nothing
that was announced is gone; at the end losses and weights are those of a run that was left alone.
"""

import os
import pathlib
import random
import re
import signal
import subprocess
import time
import unittest

import checkpoint_files
import harness

# Every place on every rank of four; otherwise on one of two.
IO_ERROR = 74
RANKS = 4 if harness.NIGHTLY else 2
LAYOUT = {
    "actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2,
    "actor_rollout_ref__actor__megatron__pipeline_model_parallel_size": RANKS // 2,
}
# Every step saves all that can be saved and removes the one before.
SETTINGS = {
    "trainer__save_freq": 1,
    "trainer__remove_previous_ckpt_in_save": True,
    "trainer__deadline_seconds": 20,
    "actor_rollout_ref__actor__optim__lr_decay_steps": 1000,
    "actor_rollout_ref__actor__checkpoint__save_contents": ["model", "optimizer", "extra", "hf_model"],
    **LAYOUT,
}
# Reached only when a step that exists is saved again: see Replacing.
ONLY_WHEN_REPLACING = {"commit.aside", "commit.aside_synced", "commit.replaced_removed"}
# Rank 0 alone gets there.
LEADER = ("commit.", "publish.", "retain.", "save.begin", "save.order", "save.collect", "save.outcome",
          "save.conclude", "save.tracker")  # fmt: skip
# rl_test.py's, split_test.py's, and ckpt_tools_test.py's.
OF_OTHERS = ("rl.", "rollout.", "sync.", "worker.", "export.")
# A failure there is one of the run, not of a save.
OF_THE_RUN = ("step.", "trainer.", "load.", "commit.debris")
# Failures there no longer fail the save.
AFTER_THE_COMMIT = ("save.outcome", "save.conclude", "save.tracker", "save.finish", "retain.")


def names():
    source = (pathlib.Path(__file__).resolve().parents[2] / "common/fail_point.cc").read_text()
    table = source[source.index("kNames[] = {") : source.index("};", source.index("kNames[] = {"))]
    return [name for name in re.findall(r'"([a-z_.]+)"', table) if not name.startswith(OF_OTHERS)]


# A message that is not sent is a peer that is lost: a matter of deadlines, not of an errno.
MESSAGES = {"save.order", "save.report", "save.outcome"}


def ranks_of(point):
    if point == "save.report":
        return list(range(1, RANKS))
    return [0] if point.startswith(LEADER) else list(range(RANKS))


class FailPoints(harness.Job):
    def run_with(self, config, armed, *overrides):
        environment = {**harness.environment(), "KEEL_FAILPOINT": armed}
        command = [harness.KEEL, *self.command(config, RANKS, *overrides)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=harness.LIMIT_S, env=environment, check=False
        )

    def check_directory(self, name, announced):
        """What is published verifies; the tracker names a published step; nothing announced is gone."""
        run = self.run_dir(name)
        published = checkpoint_files.steps(run)
        if published:
            verified = harness.keel("ckpt", "verify", run)
            self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        newest = max(published, default=0)
        self.assertGreaterEqual(newest, announced)
        self.assertLessEqual(checkpoint_files.latest(run) or 0, newest)
        return newest

    def check_same_as_straight(self, name, steps):
        self.train(self.config("straight", **{**SETTINGS, "trainer__save_freq": steps},
                               trainer__total_training_steps=steps), ranks=RANKS)  # fmt: skip
        expected, found = self.metrics("straight"), self.metrics(name)
        self.assertEqual(sorted(found), list(range(1, steps + 1)))
        for step in found:
            for key in (harness.LOSS, harness.GRAD_NORM, harness.SAMPLES):
                self.assertEqual(found[step][key], expected[step][key], f"step {step}, {key}")
        last = f"global_step_{steps}"
        self.assertEqual(
            checkpoint_files.digests(self.run_dir(name) / last),
            checkpoint_files.digests(self.run_dir("straight") / last),
        )
        debris = [p.name for p in self.run_dir(name).iterdir() if p.name.startswith((".tmp-", ".old-", ".trash-"))]
        self.assertEqual(debris, [])

    def test_killed_at_each(self):
        name = "killed"
        config = self.config(name, **SETTINGS)
        chance = random.Random(7)
        # Something to load, and something to remove.
        self.train(config, "trainer.total_training_steps=2", ranks=RANKS)
        newest = 2
        for point in names():
            if point in ONLY_WHEN_REPLACING:
                continue
            ranks = ranks_of(point)
            for rank in ranks if harness.NIGHTLY else [chance.choice(ranks)]:
                with self.subTest(point=point, rank=rank):
                    if point == "commit.debris":
                        (self.run_dir(name) / ".tmp-1-18d1ca8cb98595b1e8f30994").mkdir(exist_ok=True)
                    # The end of the run is a place, too; otherwise the end means: never got there.
                    steps = newest + (1 if point == "trainer.close" else 6)
                    done = self.run_with(config, f"{point}:{rank}:1:kill", f"trainer.total_training_steps={steps}")
                    self.assertEqual(done.returncode, 137, f"{point}: not reached?\n{done.stdout[-2000:]}")
                    self.assertRegex(done.stdout + done.stderr, rf"rank {rank} was killed by SIGKILL")
                    newest = self.check_directory(name, newest)
        self.train(config, f"trainer.total_training_steps={newest + 2}", ranks=RANKS)
        self.check_same_as_straight(name, newest + 2)

    def test_failed_at_each(self):
        """All places of a save armed at once: save after save fails one place further on."""
        points = [p for p in names() if not p.startswith(OF_THE_RUN) and p not in ONLY_WHEN_REPLACING]
        points = [p for p in points if p not in MESSAGES | {"plan.make"}]  # only the first save plans
        failing = [p for p in points if not p.startswith(AFTER_THE_COMMIT)]
        for action, text in (("ENOSPC", "No space left"), ("EIO", "Input/output error"), ("throw", "thrown at")):
            for rank in range(RANKS):
                with self.subTest(action=action, rank=rank):
                    name = f"failed_{action}_{rank}"
                    mine = [p for p in points if rank in ranks_of(p)]
                    armed = ",".join(f"{point}:{rank}:1:{action}" for point in mine)
                    steps = len(mine) + 3
                    config = self.config(name, **SETTINGS)
                    done = self.run_with(config, armed, f"trainer.total_training_steps={steps}")
                    output = done.stdout + done.stderr
                    self.assertEqual(done.returncode, 0, output[-3000:])
                    failures = [
                        r for r in harness.read_jsonl(self.run_dir(name) / "checkpoints.jsonl")
                        if r["event"] == "save_failed"
                    ]  # fmt: skip
                    for point in failing:
                        if rank in ranks_of(point):
                            told = [f for f in failures if f"{point}" in f["error"] and text in f["error"]]
                            self.assertTrue(told, f"{point} failed no save: {failures}")
                    self.assertEqual(sorted(self.metrics(name)), list(range(1, steps + 1)))
                    self.assertEqual(self.check_directory(name, steps), steps)
                    self.assertEqual(checkpoint_files.latest(self.run_dir(name)), steps)


class Replacing(harness.Job):
    """A job that goes back to an earlier step and saves the steps after it once more, killed on the way."""

    def test_one_whole_version_is_there_at_every_death(self):
        name, last = "again", 4
        settings = {**SETTINGS, "trainer__remove_previous_ckpt_in_save": False}
        config = self.config(name, trainer__total_training_steps=last, **settings)
        self.train(config, ranks=RANKS)
        run = self.run_dir(name)
        steps = list(range(1, last + 1))
        digests = {step: checkpoint_files.digests(run / f"global_step_{step}") for step in steps}
        back = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={run}/global_step_2"]
        points = [*sorted(ONLY_WHEN_REPLACING), "commit.renamed", "commit.synced"]
        for point in points:
            with self.subTest(point=point):
                done = subprocess.run(
                    [harness.KEEL, *self.command(config, RANKS, *back)], capture_output=True, text=True, check=False,
                    timeout=harness.LIMIT_S, env={**harness.environment(), "KEEL_FAILPOINT": f"{point}:0:1:kill"},
                )  # fmt: skip
                self.assertEqual(done.returncode, 137, f"{point}: not reached?\n{done.stdout[-2000:]}")
                self.assertEqual(checkpoint_files.steps(run), steps)
                verified = harness.keel("ckpt", "verify", run)
                self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
                found = {step: checkpoint_files.digests(run / f"global_step_{step}") for step in steps}
                self.assertEqual(found, digests)
        self.train(config, *back, ranks=RANKS)
        found = {step: checkpoint_files.digests(run / f"global_step_{step}") for step in steps}
        self.assertEqual(found, digests)
        left = [p.name for p in run.iterdir() if p.name.startswith(".") and p.is_dir()]
        self.assertEqual(left, [])


class Signals(harness.Job):
    def check_resumes(self, name, config, process, expected, told=True, saved=0):
        ranks = harness.pids_of(process).values()

        def ended():
            # In time or not, the signal is there before the sixth step: then who stands still there goes on.
            for pid in ranks:
                if harness.stands_still(pid) and (harness.signals_wait(pid) or not told):
                    harness.kill(pid, signal.SIGCONT)
            return process.poll() is not None

        self.wait_until(ended, "the end")
        self.assertIn(process.returncode, expected, self.log()[-2000:])
        self.assertGreaterEqual(checkpoint_files.latest(self.run_dir(name)) or 0, saved)
        self.train(config, ranks=RANKS)
        self.assertEqual(sorted(self.metrics(name)), list(range(1, 13)))
        debris = [p.name for p in self.run_dir(name).iterdir() if p.name.startswith((".tmp-", ".old-", ".trash-"))]
        self.assertEqual(debris, [])

    def start_slow(self, name, delay_ms=1000, **changes):
        """A run whose saves take a second: each is in flight for many steps. It stands still before it could be over."""
        config = self.config(name, trainer__save_freq=2, **{**LAYOUT, **changes})
        process = self.start(config, ranks=RANKS, failpoint=f"save.collect:0:*:delay={delay_ms},step.begin:0:6:stop")
        self.wait_until(lambda: any(self.run_dir(name).glob(".tmp-*")), "a save", process)
        return config, process

    def test_signal_while_a_save_is_in_flight(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(signal=number):
                name = f"signal_{number}"
                config, process = self.start_slow(name)
                harness.kill(process.pid, number)
                self.check_resumes(name, config, process, (75,))

    def test_an_interrupt_ends_at_once_and_loses_no_checkpoint(self):
        """Ctrl-C: to all ranks and the launcher, or to the launcher alone."""
        for whole_group in (True, False):
            with self.subTest(whole_group=whole_group):
                name = f"interrupt_{whole_group}"
                config, process = self.start_slow(name)
                others = harness.ranks_below(process).values() if whole_group else []
                saved = checkpoint_files.latest(self.run_dir(name)) or 0
                for pid in [*others, process.pid]:
                    harness.kill(pid, signal.SIGINT)
                self.check_resumes(name, config, process, (128 + signal.SIGINT,), saved=saved)

    def test_second_signal_ends_at_once(self):
        config, process = self.start_slow("twice", delay_ms=60000)
        pid = harness.ranks_below(process)[1]
        harness.kill(pid, signal.SIGTERM)
        time.sleep(1.2)
        harness.kill(pid, signal.SIGTERM)
        self.check_resumes("twice", config, process, (143,))

    def test_a_signal_to_the_whole_group_counts_once(self):
        config, process = self.start_slow("group")
        for pid in [*harness.ranks_below(process).values(), process.pid]:
            harness.kill(pid, signal.SIGTERM)
        self.check_resumes("group", config, process, (75,))

    def test_a_rank_that_stands_still_for_a_while(self):
        config, process = self.start_slow("still")
        pid = harness.ranks_below(process)[1]
        harness.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)
        harness.kill(pid, signal.SIGCONT)
        self.check_resumes("still", config, process, (0,), told=False)


class Errors(harness.Job):
    """The training ends on an error of its own while a save is in flight, which is of a good step."""

    def test_the_save_gets_its_chance(self):
        megatron = "actor_rollout_ref__actor__megatron__"
        digests = {}
        for ranks in (1, RANKS):
            for offload in (False, True):
                with self.subTest(ranks=ranks, offload=offload):
                    name = f"error_{ranks}_{offload}"
                    changes = {
                        **(LAYOUT if ranks > 1 else {}),
                        megatron + "optimizer_offload": offload,
                        megatron + "param_offload": offload,
                        # Far more than the staging memory takes: most of it is read late.
                        "actor_rollout_ref__model__config__intermediate_size": 4096,
                        "actor_rollout_ref__actor__checkpoint__staging": {"host_memory_cap": 8 << 20},
                    }
                    if ranks not in digests:
                        alone = f"alone_{ranks}"
                        self.train(self.config(alone, trainer__save_freq=4, **changes), ranks=ranks)
                        digests[ranks] = checkpoint_files.digests(self.run_dir(alone) / "global_step_4")
                    config = self.config(name, trainer__save_freq=4, **changes)
                    armed = "writer.write:*:*:delay=150,step.begin:0:5:EIO"
                    done = subprocess.run(
                        [harness.KEEL, *self.command(config, ranks)], capture_output=True, text=True,
                        timeout=harness.LIMIT_S, env={**harness.environment(), "KEEL_FAILPOINT": armed}, check=False,
                    )  # fmt: skip
                    self.assertGreater(done.returncode, 0, done.stdout[-3000:])
                    self.assertNotIn("signal 11", done.stdout + done.stderr)
                    self.assertIn("step.begin", done.stdout + done.stderr)
                    self.assertEqual(checkpoint_files.latest(self.run_dir(name)), 4, done.stdout[-3000:] + done.stderr[-3000:])
                    verified = harness.keel("ckpt", "verify", str(self.run_dir(name) / "global_step_4"))
                    self.assertEqual(verified.returncode, 0, verified.stderr)
                    found = checkpoint_files.digests(self.run_dir(name) / "global_step_4")
                    self.assertEqual(found, digests[ranks])


class Busy(harness.Job):
    """A save that is due while one is in flight."""

    def run_busy(self, name, policy, save_ms=300):
        config = self.config(name, trainer__save_freq=1,
                             actor_rollout_ref__actor__checkpoint__on_busy=policy, **LAYOUT)  # fmt: skip
        environment = {**harness.environment(), "KEEL_FAILPOINT": f"save.write:1:*:delay={save_ms}"}
        done = subprocess.run([harness.KEEL, *self.command(config, RANKS)], capture_output=True, text=True,
                              timeout=harness.LIMIT_S, env=environment, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        records = harness.read_jsonl(self.run_dir(name) / "metrics.jsonl")
        ended = [r["data"] for r in records if "checkpoint/step" in r["data"]]
        self.assertEqual(sorted(self.metrics(name)), list(range(1, 13)))
        return ended

    def test_wait(self):
        ended = self.run_busy("wait", "wait", save_ms=1000)
        self.assertEqual([e["checkpoint/step"] for e in ended], list(range(1, 13)))
        self.assertTrue(all(e["checkpoint/ok"] for e in ended))
        # All waited for the one before, which takes a second and a step far less; but the first, and the last, with which the training
        # is over.
        self.assertGreater(sum(e["checkpoint/blocked_s"] for e in ended), 0)
        self.assertEqual(ended[-1]["checkpoint/waited"], 10)
        self.assertEqual(checkpoint_files.steps(self.run_dir("wait")), list(range(1, 13)))

    def test_skip(self):
        ended = self.run_busy("skip", "skip")
        skipped = ended[-1]["checkpoint/skipped"]
        self.assertGreater(skipped, 0)
        self.assertEqual(len(ended) + skipped, 12)
        published = checkpoint_files.steps(self.run_dir("skip"))
        self.assertEqual(published, [e["checkpoint/step"] for e in ended])
        self.assertEqual(published[-1], 12)

    def test_supersede(self):
        ended = self.run_busy("supersede", "supersede")
        self.assertGreater(ended[-1]["checkpoint/superseded"], 0)
        self.assertEqual(len(ended), 12)
        # Of two saves in a row one comes to its end, however slow they are.
        kept = [e["checkpoint/ok"] for e in ended]
        self.assertTrue(all(a or b for a, b in zip(kept, kept[1:], strict=False)), kept)
        published = checkpoint_files.steps(self.run_dir("supersede"))
        self.assertEqual(published, [e["checkpoint/step"] for e in ended if e["checkpoint/ok"]])
        self.assertEqual(published[-1], 12)


class Limits(harness.Job):
    def test_a_disk_that_stands_still(self):
        """Nothing waits for it for ever: not the update, nor later saves, nor the end of the run."""
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                name = f"stuck_{ranks}"
                layout = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": ranks}
                config = self.config(name, trainer__save_freq=4, trainer__deadline_seconds=1 if ranks == 1 else 6, **layout)
                environment = {**harness.environment(), "KEEL_FAILPOINT": "writer.write:0:1:delay=600000"}
                started = time.monotonic()
                done = subprocess.run([harness.KEEL, *self.command(config, ranks)], capture_output=True, text=True,
                                      timeout=harness.LIMIT_S, env=environment, check=False)  # fmt: skip
                self.assertLess(time.monotonic() - started, 100)
                output = done.stdout + done.stderr
                self.assertEqual(done.returncode, IO_ERROR, output[-3000:])
                self.assertRegex(output, r"the save of step 4 has got no further for \d+ s: .*stuck.* stands still")
                self.assertIn("step 8 is not saved", output)
                # The cause is the disk, and no rank waits for another.
                self.assertNotIn("they wait for each other", output)
                self.assertEqual(sorted(self.metrics(name)), list(range(1, 13)))
                self.train(config, ranks=ranks)
                self.assertEqual(checkpoint_files.latest(self.run_dir(name)), 12)

    def failing_saves(self, name, ranks, **changes):
        config = self.config(name, trainer__save_freq=2, **changes)
        environment = {**harness.environment(), "KEEL_FAILPOINT": "writer.fsync:*:*:EIO"}
        done = subprocess.run([harness.KEEL, *self.command(config, ranks)], capture_output=True, text=True,
                              timeout=harness.LIMIT_S, env=environment, check=False)  # fmt: skip
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, IO_ERROR, output[-3000:])
        self.assertIn("2 saves in a row have failed, 2 since this start: none has ended well", output)
        # The cause is the disk, and nobody waits for anybody.
        self.assertNotIn("they wait for each other", output)
        return output

    def test_a_run_whose_saves_fail_goes_on_to_its_end(self):
        output = self.failing_saves("failing", 1)
        self.assertEqual(sorted(self.metrics("failing")), list(range(1, 13)))
        self.assertIn("6 saves in a row have failed, 6 since this start", output)
        self.assertIn("the state of the last step, 12, is not saved", output)

    def test_a_run_whose_saves_fail_ends_when_it_is_told_to(self):
        layout = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2}
        output = self.failing_saves("ended", 2, trainer__max_failed_saves=2, **layout)
        # The second one ends beside a later step; then one more is tried.
        self.assertLess(max(self.metrics("ended")), 10)
        self.assertRegex(output, r"trainer.max_failed_saves is 2, and [345] saves in a row have failed: the state")

    def test_save_before_deadline(self):
        config = self.config("limit", trainer__save_freq=1000, trainer__total_training_steps=100000,
                             trainer__save_before_deadline="00:00:12", **LAYOUT)  # fmt: skip
        started = time.monotonic()
        process = self.start(config, ranks=RANKS)
        process.wait(timeout=harness.LIMIT_S)
        self.assertEqual(process.returncode, 75, self.log()[-2000:])
        self.assertLess(time.monotonic() - started, harness.LIMIT_S / 2)
        trained = max(self.metrics("limit"))
        self.assertEqual(checkpoint_files.latest(self.run_dir("limit")), trained)

    def test_a_save_that_cannot_fit_is_not_started(self):
        config = self.config("grace", trainer__save_freq=5, trainer__total_training_steps=100000,
                             trainer__preemption_grace_seconds=0.2, **LAYOUT)  # fmt: skip
        os.environ["KEEL_FAILPOINT"] = "save.collect:0:*:delay=700"
        try:
            process = self.start(config, ranks=RANKS)
        finally:
            del os.environ["KEEL_FAILPOINT"]
        self.wait_until(lambda: len(checkpoint_files.steps(self.run_dir("grace"))) >= 2, "two saves", process)
        harness.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=harness.LIMIT_S)
        self.assertEqual(process.returncode, 75, self.log()[-2000:])
        trained = max(self.metrics("grace"))
        if trained % 5 != 0:
            self.assertRegex(self.log(), rf"step {trained} is not saved: past saves took")
        self.assertNotIn(trained + 1, checkpoint_files.steps(self.run_dir("grace")))
        newest = checkpoint_files.latest(self.run_dir("grace"))
        self.assertGreaterEqual(newest, 10)

        # Nor by a later start, which has saved nothing itself: it knows the saves of the earlier ones.
        process = self.start(config, "trainer.save_freq=100000", ranks=RANKS)
        self.wait_until(lambda: max(self.metrics("grace")) > trained, "a step", process)
        harness.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=harness.LIMIT_S)
        self.assertEqual(process.returncode, 75, self.log()[-2000:])
        self.assertRegex(self.log(), rf"step {max(self.metrics('grace'))} is not saved: past saves took")
        self.assertEqual(checkpoint_files.latest(self.run_dir("grace")), newest)

    def test_no_validation_comes_before_the_save_that_was_asked_for(self):
        config = self.config("validated", trainer__save_freq=1000, trainer__test_freq=1, data__val_split=0.2,
                             trainer__total_training_steps=1000)  # fmt: skip
        process = self.start(config, failpoint="step.begin:0:5:stop")
        pid = self.stopped_rank(process, 0)
        for number in (signal.SIGTERM, signal.SIGCONT):
            harness.kill(pid, number)
        process.wait(timeout=harness.LIMIT_S)
        self.assertEqual(process.returncode, 75, self.log()[-2000:])
        self.assertEqual(checkpoint_files.latest(self.run_dir("validated")), 5)
        records = harness.read_jsonl(self.run_dir("validated") / "metrics.jsonl")
        validated = [r["step"] for r in records if any(key.startswith("val") for key in r["data"])]
        self.assertEqual(validated, [1, 2, 3, 4])
        self.assertIn("asked to stop: the validation of step 5 is left out", self.log())

    def test_a_validation_that_is_under_way_is_left_for_the_save(self):
        rows = self.folder / "many.jsonl"
        harness.write_documents(rows, count=20000)
        changes = {"trainer__save_freq": 1000, "trainer__test_freq": 3, "data__val_files": [str(rows)], "trainer__total_training_steps": 1000}
        for ranks in (1, 2):
            name, begin = f"long{ranks}", len(self.log())
            process = self.start(self.config(name, **changes), ranks=ranks)
            self.wait_until(lambda run=name: 3 in self.metrics(run), "the third step", process)
            harness.kill(process.pid, signal.SIGTERM)
            process.wait(timeout=harness.LIMIT_S)
            self.assertEqual(process.returncode, 75, self.log()[-2000:])
            self.assertEqual(checkpoint_files.latest(self.run_dir(name)), 3)
            self.assertIn("asked to stop: the validation of step 3 is left out", self.log()[begin:])


if __name__ == "__main__":
    unittest.main()
