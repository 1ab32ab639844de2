"""Offload changes where the state is, and nothing else.

The same run with every switch on and with none: losses, validation, weights, masters and moments are
equal bit for bit, and so is a run that goes on, switches changed, from the other's checkpoint. A move
is timed where there is one, and counts exactly 0.0 where there is none.
"""

import unittest

import checkpoint_files
import harness
from harness import stable

STEPS = 8
STOP = 4
MEGATRON = "actor_rollout_ref__actor__megatron__"
VALIDATION_LOSS = "validation_metrics/global_avg_loss"
CLASSES = ("param", "grad", "optimizer")
TIMERS = {f"timing_s/{name}_{move}" for name in CLASSES for move in ("load", "offload")}


def switches(*names):
    return {f"{MEGATRON}{name}_offload": name in names for name in CLASSES}


class Offload(harness.Job):
    LAYOUT = {}
    RANKS = 1

    def finish(self, name, offloaded, resumed_from=None):
        """Trains to the end; returns metrics of steps, of validations, and digests of the last state."""
        changes = {
            "trainer__total_training_steps": STEPS,
            "trainer__save_freq": STOP,
            "trainer__test_freq": 2,
            "data__val_split": 0.2,
            **self.LAYOUT,
            **switches(*offloaded),
        }
        if resumed_from is not None:
            changes["trainer__resume_mode"] = "resume_path"
            changes["trainer__resume_from_path"] = str(self.run_dir(resumed_from) / f"global_step_{STOP}")
        self.train(self.config(name, **changes), ranks=self.RANKS)
        records = harness.read_jsonl(self.run_dir(name) / "metrics.jsonl")
        validations = {r["step"]: r["data"] for r in records if VALIDATION_LOSS in r["data"]}
        return self.metrics(name), validations, checkpoint_files.digests(self.run_dir(name) / f"global_step_{STEPS}")

    def assert_equal_after(self, stop, one, other):
        steps, validations, digests = other
        self.assertEqual(sorted(steps), list(range(stop + 1, STEPS + 1)))
        for step in steps:
            self.assertEqual(stable(steps[step]), stable(one[0][step]), f"step {step}")
        self.assertTrue(validations)
        for step in validations:
            self.assertEqual(stable(validations[step]), stable(one[1][step]), f"validation at {step}")
        self.assertEqual(digests, one[2])

    def test_is_bit_equal_and_resumes_into_a_run_without_and_back(self):
        without = self.finish("without", ())
        everything = self.finish("everything", CLASSES)
        self.assertGreater(len(without[2]), 4 * harness.MODEL["num_hidden_layers"])
        self.assert_equal_after(0, without, everything)
        self.assert_equal_after(STOP, without, self.finish("then_without", (), resumed_from="everything"))
        self.assert_equal_after(STOP, without, self.finish("then_everything", CLASSES, resumed_from="without"))
        for data in without[0].values():
            self.assertEqual({data[timer] for timer in TIMERS}, {0.0})
        for data in everything[0].values():
            self.assertGreater(min(data[timer] for timer in TIMERS), 0)
            self.assertLessEqual(sum(data[timer] for timer in TIMERS), data["time_metrics/end_to_end(s)"])
        for data in everything[1].values():
            self.assertGreater(min(data["timing_s/validation_param_load"], data["timing_s/validation_param_offload"]), 0)


class OffloadSingle(Offload):
    def test_each_switch_alone_times_its_own_moves(self):
        for name in CLASSES:
            with self.subTest(switch=name):
                steps, _, _ = self.finish(name, (name,))
                for data in steps.values():
                    moved = {timer for timer in TIMERS if data[timer] > 0}
                    self.assertEqual(moved, {f"timing_s/{name}_load", f"timing_s/{name}_offload"})
                    self.assertEqual({data[timer] for timer in TIMERS - moved}, {0.0})


class OffloadBfloat16(Offload):
    LAYOUT = {"actor_rollout_ref__model__dtype": "bfloat16"}


class OffloadFourRanks(Offload):
    """Saves go on in the background, and read in place what is on the host."""

    LAYOUT = {
        f"{MEGATRON}tensor_model_parallel_size": 2,
        "actor_rollout_ref__model__dtype": "bfloat16",
        "actor_rollout_ref__actor__checkpoint__async_save": True,
    }
    RANKS = 4


del Offload  # an abstract test is not a test

if __name__ == "__main__":
    unittest.main()
