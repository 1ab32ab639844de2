"""Runs that are asked to stop while what their samples need goes with them, or was never there: nothing is scored or lost by it."""

import functools
import json
import pathlib
import signal
import sys
import time
import unittest

import harness
import split_test


class SplitStops(split_test.SplitJob):
    def test_verifiers_that_are_stopped_with_the_run_have_not_failed(self):
        """Everybody's SIGTERM, the verifiers' first, and no second try: no sample is scored by it, in either placement."""
        hold, held = self.folder / "hold", self.folder / "held"
        (self.folder / "verify.py").write_text(split_test.Split.VERIFIER.replace('os.environ.get("RANK") == "1" and ', ""))
        changes = {"trainer__save_freq": 12, "trainer__test_freq": -1, "trainer__total_training_steps": 12, "reward__type": "command",
                   "reward__command": [sys.executable, str(self.folder / "verify.py"), str(hold), str(held)], **self.UNSCORED,
                   "reward__max_retries": 0}  # fmt: skip
        self.train(self.rl("undisturbed", **changes), ranks=2)
        for name in ("colocated", "split"):
            with self.subTest(name):
                if name == "split":
                    start = functools.partial(self.start_split, self.split(name, **changes), 2, 1)
                else:
                    start = functools.partial(self.start, self.rl(name, **changes), ranks=2)
                job = start()
                self.wait_until(lambda name=name: len(self.steps(name)) >= 3, "three steps", job)
                hold.touch()
                self.wait_until(held.exists, "a response whose score does not come", job)
                harness.stop_everybody(job)
                self.assertEqual(job.wait(timeout=harness.LIMIT_S), 75, self.log()[-4000:])
                self.assertRegex(self.log(), "step [0-9]+ is left, the next start")
                trained = max(self.steps(name))
                self.assertLess(trained, 12)
                self.assertEqual((self.run_dir(name) / "latest_checkpointed_iteration.txt").read_text(), f"{trained}\n")
                hold.unlink()
                held.unlink()
                (self.folder / "log.txt").unlink()
                self.ends(start())
                self.assertEqual(self.learnt(name), self.learnt("undisturbed"))
                self.assertEqual(self.digests(name, 12), self.digests("undisturbed", 12))

    def test_a_job_that_is_asked_to_stop_before_its_workers_are_there_ends_at_once(self):
        """And what its checkpoint holds of samples stays there."""
        config = self.split("early", trainer__deadline_seconds=harness.LIMIT_S, trainer__save_freq=2, trainer__total_training_steps=4,
                            async_training__max_staleness=1, algorithm__rollout_correction__rollout_is="token")  # fmt: skip
        for steps in (0, 2):
            before = {p: p.read_bytes() for p in self.run_dir("early").rglob("*ledger*")} if steps > 0 else {}
            self.assertEqual(bool(before), steps > 0)
            job = self.start_split(config, 1, 1, "worker.hello:1:1:stop")
            self.wait_until(lambda: "rollout workers can join at" in self.log(), "the desk", job)
            self.stopped_rank(job, 1)
            for pid in harness.ranks_below(job).values():
                harness.kill(pid, signal.SIGTERM)
            self.wait_until(lambda: " is left" in self.log(), "the end", job)
            self.continued(job, 1)
            self.assertEqual(job.wait(timeout=60), 75, self.log()[-4000:])
            self.assertIn(f"step {steps + 1} is left", self.log())
            self.assertEqual({p: p.read_bytes() for p in before}, before)
            (self.folder / "log.txt").unlink()
            if steps == 0:
                done = self.launch(config, 1, 1, "trainer.total_training_steps=2")
                self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.ends(self.start_split(config, 1, 1))
        self.assertEqual(sorted(self.steps("early")), [1, 2, 3, 4])

    def test_a_step_that_waits_for_workers_that_are_gone_is_left_at_once(self):
        """For more prompts, where the filter wants some, and, where it is deterministic, for their last tokens by the old weights. The step
        before it is saved, with the samples that were taken for this one: the run that goes on is the undisturbed one."""
        (self.folder / "slow.py").write_text(
            "import json, sys, time\nfor line in sys.stdin:\n    sample = json.loads(line)\n    time.sleep(0.05)\n"
            '    print(json.dumps({"id": sample["id"], "score": float(len(sample["response"]) % 2)}), flush=True)\n'
        )
        filtered = {"reward__type": "command", "reward__command": [sys.executable, str(self.folder / "slow.py")],
                    "algorithm__filter_groups": {"enable": True}, "actor_rollout_ref__rollout__n": 2}  # fmt: skip
        ahead = {"async_training__max_staleness": 1, "async_training__deterministic": True, "async_training__partial_report_tokens": 2,
                 "algorithm__rollout_correction__rollout_is": "token", "actor_rollout_ref__rollout__max_num_seqs": 32}  # fmt: skip
        for kind, changes, failpoint in (("filtered", filtered, None), ("deterministic", ahead, "worker.step:1:*:delay=300")):
            changes = {"trainer__total_training_steps": 6, "trainer__save_freq": 6, "trainer__test_freq": -1,
                       "trainer__deadline_seconds": harness.LIMIT_S, **changes}  # fmt: skip
            with self.subTest(kind):
                name, undisturbed = f"{kind}-stopped", f"{kind}-undisturbed"
                self.ends(self.start_split(self.split(undisturbed, **changes), 1, 1))
                config = self.split(name, **changes)
                (self.folder / "log.txt").unlink()
                job = self.start_split(config, 1, 1, failpoint)
                self.wait_until(lambda name=name: len(self.steps(name)) >= 2, "two steps", job)
                time.sleep(1)
                harness.stop_everybody(job)
                self.assertEqual(job.wait(timeout=60), 75, self.log()[-4000:])
                done = max(self.steps(name))
                self.assertLess(done, 6)
                self.assertEqual((self.run_dir(name) / "latest_checkpointed_iteration.txt").read_text(), f"{done}\n")
                (self.folder / "log.txt").unlink()
                self.ends(self.start_split(config, 1, 1))
                self.assertEqual(self.learnt(name), self.learnt(undisturbed))
                self.assertEqual(self.digests(name, 6), self.digests(undisturbed, 6))
                (self.folder / "log.txt").unlink()

    def test_workers_that_joined_hand_over_what_they_have_begun_when_they_are_asked_to_stop(self):
        """In mid-generation, by either signal, to the launcher or the rank: it ends as one that is done, and nobody starts it again."""
        changes = {"trainer__save_freq": 3, "trainer__test_freq": -1, "trainer__total_training_steps": 3}
        of_replica = lambda tp: {"actor_rollout_ref__rollout__tensor_model_parallel_size": tp, **changes}
        for tp in (1, 2):
            self.ends(self.start_split(self.split(f"undisturbed_{tp}", **of_replica(tp)), 1, tp))
        for target, number, tp in (("launcher", signal.SIGTERM, 1), ("launcher", signal.SIGUSR1, 2), ("rank", signal.SIGTERM, 2), ("rank", signal.SIGUSR1, 1)):
            with self.subTest(target=target, number=number, tp=tp):
                name = f"{target}_{number.name}"
                port = harness.free_port()
                config = self.split(name, **self.PATIENT, async_training__port=port, actor_rollout_ref__rollout__max_num_seqs=8,  # not all of a step
                                    **of_replica(tp))  # fmt: skip
                job = self.start_split(config, 1, tp, "worker.step:1:2:stop")
                self.stopped_rank(job, 1)
                said = len(self.log())
                joined = self.start_command("launch", "--nproc-per-node", tp, "--max-restarts", 2, "rollout", config, "--join",
                                            f"127.0.0.1:{port}", failpoint="worker.step:0:3:stop")  # fmt: skip
                pid = self.stopped_rank(joined, 0)
                harness.kill(joined.pid if target == "launcher" else pid, number)
                self.wait_until(lambda pid=pid: harness.signals_wait(pid), "its signal", joined)
                self.continued(joined, 0)
                self.assertEqual(joined.wait(timeout=60), 0, self.log()[-4000:])
                self.assertIn("asked to stop: others go on with this worker's samples", self.log()[said:])
                self.continued(job, 1)
                self.ends(job)
                self.assertNotIn("error", self.log()[said:])
                self.assertNotIn("keel launch: ", self.log()[said:])
                # Without a word of it before, for which its responses are too short: the tokens come from what it handed over.
                self.assertGreater(max(data["fully_async/count/reassigned_tokens"] for data in self.steps(name).values()), 0)
                self.assertEqual(self.learnt(name), self.learnt(f"undisturbed_{tp}"))
                self.assertEqual(self.digests(name, 3), self.digests(f"undisturbed_{tp}", 3))

    def test_workers_that_wait_for_a_run_to_join_leave_when_they_are_asked_to(self):
        """For its folder, or for a desk to answer: long before the deadline."""
        config = self.split("none", trainer__deadline_seconds=harness.LIMIT_S)
        (self.run_dir("gone")).mkdir()
        gone = self.split("gone", trainer__deadline_seconds=harness.LIMIT_S)
        (self.run_dir("gone") / "desk.json").write_text(json.dumps({"host": "127.0.0.1", "port": 1, "secret": "x" * 32}))
        (self.run_dir("gone") / "desk.json").chmod(0o600)
        for waits, ranks in ((config, 1), (config, 2), (gone, 1)):
            with self.subTest(config=waits.name, ranks=ranks):
                overrides = ["actor_rollout_ref.rollout.tensor_model_parallel_size=2"] if ranks == 2 else []
                worker = self.join(waits, "127.0.0.1:1", *overrides, ranks=ranks)
                self.addCleanup(harness.end_with_children, worker)
                self.wait_until(lambda worker=worker, n=ranks: len(self.ready(worker)) == n, "its handlers", worker)
                time.sleep(1)  # most often enough to wait for it
                worker.send_signal(signal.SIGUSR1)
                said, _ = worker.communicate(timeout=60)
                self.assertEqual(worker.returncode, 0, said)
                self.assertIn("asked to stop before it had joined the run", said)

    @staticmethod
    def ready(worker):
        """Ranks that take SIGUSR1."""
        taken = 1 << signal.SIGUSR1 - 1
        caught = lambda pid: next(int(line.split()[1], 16) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
        return [pid for pid in harness.pids_of(worker).values() if caught(pid) & taken]


if __name__ == "__main__":
    unittest.main()
