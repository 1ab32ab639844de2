"""What a GPU would run, on the host (KEEL_DEVICE_PATHS=1), as whole runs.

Two processes with other numbers of threads, and one that was ended and went on in a third, give equal bits; the
kernels for hosts give the same losses up to rounding. Ids repeat: 1,024 tokens a step, half of them one id.
"""

import json
import os
import random
import unittest

import checkpoint_files
import harness
from harness import stable

STEPS, STOP = 4, 2
LENGTH, BATCH = 256, 4


class DevicePaths(harness.Job):
    def setUp(self):
        super().setUp()
        os.environ["KEEL_DEVICE_PATHS"] = "1"
        self.addCleanup(os.environ.pop, "KEEL_DEVICE_PATHS")
        chance = random.Random(7)
        with open(self.data, "w", encoding="utf-8") as out:
            for _ in range(BATCH * STEPS):
                ids = [65 if chance.random() < 0.5 else chance.randrange(32, 127) for _ in range(LENGTH)]
                out.write(json.dumps({"input_ids": ids}) + "\n")

    def of(self, name, **changes):
        model = {**harness.MODEL, "num_hidden_layers": 2, "max_position_embeddings": LENGTH}
        shape = {
            "data__max_length": LENGTH,
            "data__train_batch_size": BATCH,
            "actor_rollout_ref__model__config": model,
            "trainer__total_training_steps": STEPS,
            "trainer__save_freq": STOP,
        }
        return self.config(name, **{**shape, **changes})

    def run_of(self, name, ranks=1, **changes):
        self.train(self.of(name, **changes), ranks=ranks)
        return self.metrics(name), checkpoint_files.digests(self.run_dir(name) / f"global_step_{STEPS}")

    def test_every_run_is_the_same_run(self):
        for dtype, close in (("float32", 2e-6), ("bfloat16", 2e-2)):
            with self.subTest(dtype):
                settings = {"actor_rollout_ref__model__dtype": dtype}
                straight = self.run_of(f"{dtype}_straight", **settings)
                threads = self.run_of(f"{dtype}_threads", trainer__threads_per_rank=3, **settings)
                source = str(self.run_dir(f"{dtype}_straight") / f"global_step_{STOP}")
                resumed = self.run_of(
                    f"{dtype}_resumed", trainer__resume_mode="resume_path", trainer__resume_from_path=source, **settings
                )
                self.assertEqual(sorted(straight[0]), list(range(1, STEPS + 1)))
                self.assertEqual(sorted(resumed[0]), list(range(STOP + 1, STEPS + 1)))
                for other in (threads, resumed):
                    for step in other[0]:
                        self.assertEqual(stable(other[0][step]), stable(straight[0][step]), f"step {step}")
                    self.assertEqual(other[1], straight[1])
                os.environ["KEEL_DEVICE_PATHS"] = "0"
                host = self.run_of(f"{dtype}_host", **settings)
                os.environ["KEEL_DEVICE_PATHS"] = "1"
                for step, data in host[0].items():
                    for key in (harness.LOSS, harness.GRAD_NORM):
                        off = abs(data[key] - straight[0][step][key]) / abs(data[key])
                        self.assertLess(off, close, f"{key} of step {step}")

    def test_stages_and_tensor_parallel_ranks_too(self):
        layout = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 1,
                  "actor_rollout_ref__actor__megatron__pipeline_model_parallel_size": 2}  # fmt: skip
        first, again = (self.run_of(name, ranks=2, **layout) for name in ("first", "again"))
        self.assertEqual({k: stable(v) for k, v in first[0].items()}, {k: stable(v) for k, v in again[0].items()})
        self.assertEqual(first[1], again[1])


if __name__ == "__main__":
    unittest.main()
