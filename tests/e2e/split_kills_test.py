"""Any process of a split run is killed at any moment: the run goes on, or is started again, and ends with every position trained once,
in order; and its weights are those that a replay of its schedule gives. Nightly: every rank at every place."""

import os
import unittest

import harness
import split_test

NIGHTLY = bool(os.environ.get("KEEL_NIGHTLY"))
STEPS = 8
# Where the ranks that train can be, in the order of a step; then those that generate.
TRAINER = ("rl.rollout", "rl.experience", "step.gradients", "step.update", "step.end", "sync.begin", "sync.round", "sync.done",
           "save.begin", "save.staged", "save.write", "save.report", "save.order", "commit.manifest", "commit.renamed",
           "save.tracker", "retain.start", "save.finish")  # fmt: skip
WORKER = ("worker.linked", "sync.round", "worker.staged", "worker.step", "worker.progress", "worker.done")
TRAINERS, TP = 2, 2  # ranks 0 and 1 train; 2 leads a replica, 3 follows; 4 and 5 are another


class SplitKills(split_test.SplitJob):
    def run_killed(self, name, kills, record):
        """`kills`: (rank, place, which time) of each launch but the last, or of the last where it is a worker's."""
        config = self.split(
            name, async_training__max_staleness=2, async_training__partial_report_tokens=2, async_training__min_workers=2,
            trainer__save_freq=2,
            algorithm__rollout_correction__rollout_is="token", trainer__total_training_steps=STEPS, trainer__deadline_seconds=30,
            actor_rollout_ref__rollout__tensor_model_parallel_size=TP, async_training__schedule_record=str(record))  # fmt: skip
        for rank, place, time in kills:
            done = self.launch(config, TRAINERS, 2 * TP, environment={"KEEL_FAILPOINT": f"{place}:{rank}:{time}:kill"})
            if rank >= TRAINERS:
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-6000:])
        if not (self.run_dir(name) / f"global_step_{STEPS}").exists():
            done = self.launch(config, TRAINERS, 2 * TP)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-6000:])
        return done

    def check(self, name, record):
        steps = self.steps(name)
        self.assertEqual(sorted(steps), list(range(1, STEPS + 1)))
        self.assertLessEqual(max(data["off_policy/max"] for data in steps.values()), 2)
        taken = [(r["position"], r["sample"]) for step in range(1, STEPS + 1) for r in harness.read_jsonl(record / f"{step}.jsonl")]
        self.assertEqual(taken, [(position, sample) for position in range(8 * STEPS) for sample in range(4)])
        replay = self.split(
            name + "_again", async_training__max_staleness=2, trainer__save_freq=STEPS, trainer__total_training_steps=STEPS,
            algorithm__rollout_correction__rollout_is="token", async_training__schedule_replay=str(record))  # fmt: skip
        done = self.launch(replay, TRAINERS, 1, "actor_rollout_ref.rollout.tensor_model_parallel_size=1")
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
        for kill in everywhere if NIGHTLY else few:
            with self.subTest(kill=kill):
                self.killed_at([kill])

    def test_several_in_one_run(self):
        self.killed_at([(1, "rl.experience", 3), (3, "worker.step", 20), (0, "sync.done", 3)])


if __name__ == "__main__":
    unittest.main()
