"""Any process of a split run is killed at any moment: the run goes on, or is started again, and ends with every position trained once,
in order; and its weights are those that a replay of its schedule gives. Nothing is left of what hung below it. Nightly: every rank, and
the launcher of workers that joined, at every place."""

import pathlib
import signal
import subprocess
import sys
import time
import unittest

import harness
import split_test

STEPS = 8
# Where the ranks that train can be, in the order of a step; then those that generate.
TRAINER = ("rl.rollout", "rl.experience", "step.gradients", "step.update", "step.end", "sync.begin", "sync.round", "sync.done",
           "save.begin", "save.staged", "save.write", "save.report", "save.order", "commit.manifest", "commit.renamed",
           "save.tracker", "retain.start", "save.finish")  # fmt: skip
GENERATING = ("worker.step", "worker.progress", "worker.done")
WORKER = ("worker.linked", "sync.round", "worker.staged", *GENERATING)
TRAINERS, TP = 2, 2  # ranks 0 and 1 train; 2 leads a replica, 3 follows; 4 and 5 are another
GONE_WITHIN_S = 60  # far longer than a loaded machine needs
# Hangs when nobody asks it any more.
VERIFIER = """
import json, sys, time
for line in sys.stdin:
    sample = json.loads(line)
    print(json.dumps({"id": sample["id"], "score": float(len(sample["response"]) % 2)}), flush=True)
time.sleep(100000)
"""


class SplitKills(split_test.SplitJob):
    def recorded(self, name, record, **changes):
        return self.split(name, **{
            "async_training__max_staleness": 2, "async_training__partial_report_tokens": 2, "async_training__min_workers": 2,
            "trainer__save_freq": 2, "algorithm__rollout_correction__rollout_is": "token", "trainer__total_training_steps": STEPS,
            "trainer__deadline_seconds": 30, "actor_rollout_ref__rollout__tensor_model_parallel_size": TP,
            "async_training__schedule_record": str(record), **changes})  # fmt: skip

    def run_killed(self, name, kills, record):
        """`kills`: (rank, place, which time) of each launch but the last, or of the last where it is a worker's."""
        config = self.recorded(name, record)
        for rank, place, time in kills:
            done = self.launch(config, TRAINERS, 2 * TP, environment={"KEEL_FAILPOINT": f"{place}:{rank}:{time}:kill"})
            if rank >= TRAINERS:
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-6000:])
        if not (self.run_dir(name) / f"global_step_{STEPS}").exists():
            done = self.launch(config, TRAINERS, 2 * TP)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-6000:])
        return done

    def check(self, name, record, **changes):
        steps = self.steps(name)
        self.assertEqual(sorted(steps), list(range(1, STEPS + 1)))
        self.assertGreater(min(data["actor/grad_norm"] for data in steps.values()), 0, "a step learns nothing")
        self.assertLessEqual(max(data["off_policy/max"] for data in steps.values()), 2)
        taken = [(r["position"], r["sample"]) for step in range(1, STEPS + 1) for r in harness.read_jsonl(record / f"{step}.jsonl")]
        self.assertEqual(taken, [(position, sample) for position in range(8 * STEPS) for sample in range(4)])
        replay = self.split(
            name + "_again", **{"actor_rollout_ref__rollout__tensor_model_parallel_size": TP, "async_training__max_staleness": 2,
            "trainer__save_freq": STEPS, "trainer__total_training_steps": STEPS, "algorithm__rollout_correction__rollout_is": "token",
            "async_training__schedule_replay": str(record), **changes})  # fmt: skip
        done = self.launch(replay, TRAINERS, changes.get("actor_rollout_ref__rollout__tensor_model_parallel_size", TP))
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertEqual(self.digests(name, STEPS), self.digests(name + "_again", STEPS))

    def killed_at(self, kills):
        name = "_".join(f"{place}_{rank}_{time}".replace(".", "_") for rank, place, time in kills)
        record = self.folder / f"schedule_{name}"
        self.run_killed(name, kills, record)
        self.check(name, record)

    def test_each_rank_at_each_place(self):
        everywhere = [(rank, place, 5) for rank in range(TRAINERS) for place in TRAINER]
        everywhere += [(rank, place, 2) for rank in (TRAINERS, TRAINERS + 1) for place in WORKER]
        few = [(1, "sync.round", 5), (0, "commit.renamed", 2), (2, "worker.step", 9), (3, "worker.staged", 2)]
        for kill in everywhere if harness.NIGHTLY else few:
            with self.subTest(kill=kill):
                self.killed_at([kill])

    def start_marked(self, *arguments, failpoint=""):
        """A launcher; it and what hangs below it is known by its environment."""
        log = open(self.folder / "log.txt", "ab")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [harness.KEEL, "launch", *map(str, arguments)], stdout=log, stderr=subprocess.STDOUT,
            env={**harness.environment(), "KEEL_FAILPOINT": failpoint, "KEEL_TEST_OF": str(self.folder)})  # fmt: skip
        self.addCleanup(harness.end_with_children, process)
        return process

    def marked(self):
        """{pid: command} of what such launchers have left, or still have."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if f"KEEL_TEST_OF={self.folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                pass  # no process, or ended meanwhile
        return found

    def gone(self, pids):
        deadline = time.monotonic() + GONE_WITHIN_S
        while left := {pid: command for pid, command in self.marked().items() if pid in pids}:
            self.assertLess(time.monotonic(), deadline, f"left behind: {left}")
            time.sleep(0.02)

    def launcher_killed_at(self, rank, place, time):
        """The launcher of a replica that joined, when one of its ranks is at a place; another one is started then."""
        name = f"launcher_{rank}_{place}_{time}".replace(".", "_")
        record = self.folder / f"schedule_{name}"
        (self.folder / "verifier.py").write_text(VERIFIER)
        verifier = {"reward__type": "command", "reward__num_workers": 1, "reward__max_retries": 0, "reward__command": [sys.executable, str(self.folder / "verifier.py")]}
        port = harness.free_port()
        # The replica that came with the trainers stands still until then, where it could else have generated all alone.
        alone = place in GENERATING
        patient = self.PATIENT if alone else {}
        changes = {**verifier, **patient, "actor_rollout_ref__rollout__max_num_seqs": 8}  # not all of a step
        config = self.recorded(name, record, async_training__port=port, **changes)
        job = self.start_marked("--nproc-per-node", TRAINERS + TP, "--roles", f"trainer:{TRAINERS},rollout:{TP}", "train", config,
                                failpoint=f"worker.step:{TRAINERS}:1:stop" if alone else "")  # fmt: skip
        join = ("--nproc-per-node", TP, "--max-restarts", 9, "rollout", config, "--join", f"127.0.0.1:{port}")
        self.wait_until((self.run_dir(name) / "desk.json").exists, "the desk", job)
        killed = self.start_marked(*join, failpoint=f"{place}:{rank}:{time}:kill_parent")
        below = set()
        self.wait_until(lambda: below.update(harness.descendants(killed.pid)) or killed.poll() is not None, "the kill", job)
        self.assertEqual(killed.returncode, -9, self.log()[-3000:])
        self.gone(below)
        again = self.start_marked(*join)
        if alone:
            self.continued(job, TRAINERS)
        self.assertEqual(job.wait(timeout=harness.LIMIT_S), 0, self.log()[-6000:])
        again.terminate()  # where it was not there before the end
        again.wait(timeout=GONE_WITHIN_S)
        self.gone(self.marked())
        self.check(name, record, **changes)

    def test_the_launcher_of_workers_that_joined_at_each_place(self):
        everywhere = [(0, place, 1) for place in WORKER] + [(1, place, 1) for place in WORKER[:4]]  # the leader speaks for both
        for kill in everywhere if harness.NIGHTLY else [(0, "worker.progress", 1), (1, "worker.staged", 2)]:
            with self.subTest(kill=kill):
                self.launcher_killed_at(*kill)

    def test_workers_that_joined_come_back_to_trainers_that_were_started_again(self):
        """With the secret of the new start, which stands in the run's folder, and without which the trainers would wait in vain."""
        port, record = harness.free_port(), self.folder / "schedule"
        config = self.recorded("again", record, async_training__port=port, trainer__deadline_seconds=harness.LIMIT_S)
        job = self.start_marked("--nproc-per-node", TRAINERS + TP, "--max-restarts", 3, "--roles", f"trainer:{TRAINERS},rollout:{TP}",
                                "train", config, failpoint="rl.experience:1:5:kill")  # fmt: skip
        self.wait_until((self.run_dir("again") / "desk.json").exists, "the desk", job)
        joined = self.start_marked("--nproc-per-node", TP, "--max-restarts", 9, "rollout", config, "--join", f"127.0.0.1:{port}")
        self.assertEqual(job.wait(timeout=harness.LIMIT_S), 0, self.log()[-6000:])
        self.assertEqual(joined.wait(timeout=GONE_WITHIN_S), 0, self.log()[-6000:])
        self.assertIn("restart 1 of 3", self.log())
        self.assertGreaterEqual(self.log().count("rollout worker joined"), 2)
        self.gone(self.marked())
        self.check("again", record)

    def ranks_of_joined_killed(self, name, victims, tp, restarts, *roles):
        """Four ranks join a job as one launcher's, and some of them are killed when all of them generate, one after the other: all stand
        still in their first responses. The job goes on, and what it trained is the replay of its schedule. What the launcher ended with."""
        record = self.folder / f"schedule_{name}"
        port, ranks = harness.free_port(), 4
        several = {"actor_rollout_ref__rollout__tensor_model_parallel_size": tp, "actor_rollout_ref__rollout__max_num_seqs": 8,  # not all of a step
                   **self.PATIENT}  # fmt: skip
        config = self.recorded(name, record, **{"async_training__port": port, "async_training__min_workers": 1 + ranks // tp, **several})
        job = self.start_marked("--nproc-per-node", TRAINERS + tp, "--roles", f"trainer:{TRAINERS},rollout:{tp}", "train", config,
                                failpoint="worker.step:*:3:stop")  # fmt: skip
        self.wait_until((self.run_dir(name) / "desk.json").exists, "the desk", job)
        joined = self.start_marked("--nproc-per-node", ranks, "--max-restarts", restarts, *roles, "rollout", config, "--join",
                                   f"127.0.0.1:{port}", failpoint="worker.step:*:3:stop")  # fmt: skip
        for rank in range(ranks):
            self.stopped_rank(joined, rank)
        for victim in victims:
            before, came = harness.ranks_below(joined), self.log().count("is there")
            replica = range(victim // tp * tp, victim // tp * tp + tp)
            harness.kill(before[victim])
            for mate in replica:
                harness.kill(before[mate], signal.SIGCONT)  # to see that it is gone
            self.wait_until(lambda: f"rollout rank {victim} was killed by SIGKILL" in self.log(), "the kill", job)
            if restarts:
                # It alone is started again, and with it those that share its model.
                self.wait_until(lambda: len(now := harness.ranks_below(joined)) == ranks and all(now[r] != before[r] for r in replica),
                                "the replica is started again", job)  # fmt: skip
                now = harness.ranks_below(joined)
                self.assertEqual({r: pid for r, pid in now.items() if r not in replica}, {r: pid for r, pid in before.items() if r not in replica})
                # One that comes after the run's end would wait for trainers that start again.
                self.wait_until(lambda: self.log().count("is there") > came, "the replica is back", job)
        for launcher, here in ((job, range(TRAINERS, TRAINERS + tp)), (joined, range(ranks))):
            for rank in here:
                if harness.stands_still(pid := harness.ranks_below(launcher).get(rank)):
                    harness.kill(pid, signal.SIGCONT)
        self.assertEqual(job.wait(timeout=harness.LIMIT_S), 0, self.log()[-6000:])
        joined.wait(timeout=GONE_WITHIN_S)
        self.gone(self.marked())
        steps = self.steps(name)
        self.assertEqual({data["fully_async/count/dropped_samples"] for data in steps.values()}, {0})
        self.assertGreaterEqual(max(data["fully_async/count/workers_lost"] for data in steps.values()), len(victims))
        self.check(name, record, **several)
        return joined.returncode

    def test_one_of_several_ranks_that_joined_comes_back_alone(self):
        self.assertEqual(self.ranks_of_joined_killed("alone", [2, 0], 1, 2), 0, self.log()[-6000:])
        self.assertEqual(self.log().count("it is started again"), 2)

    def test_a_rank_of_a_replica_that_joined_comes_back_with_its_mates(self):
        """Said by --roles, too: the leader of one replica, then the follower of the other."""
        self.assertEqual(self.ranks_of_joined_killed("pairs", [0, 3], 2, 4, "--roles", "rollout:4"), 0, self.log()[-6000:])

    def test_a_rank_that_joined_and_has_no_restart_left_costs_itself_alone(self):
        self.assertEqual(self.ranks_of_joined_killed("spent", [1], 1, 0), 137, self.log()[-6000:])

    def test_several_in_one_run(self):
        self.killed_at([(1, "rl.experience", 3), (3, "worker.step", 20), (0, "sync.done", 3)])


if __name__ == "__main__":
    unittest.main()
