"""Whole runs with `trainer.device: cuda` on a machine without a GPU: on the pretend one of tests/support/pretend_gpu,
whose memory no host can read, and whose copies are late.

What such a run computes is what the same operations compute on the host (KEEL_DEVICE_PATHS), up to the rounding of
attention, which is another of PyTorch's kernels there. A host that touches the device's memory ends the process; one
that does not wait for a copy uses what was there before, and gives other bits than a run that moves nothing.
"""

import os
import pathlib
import unittest

import adapters_test
import checkpoint_files
import harness
import offload_test
import resume_test
import rl_test
import split_test
from harness import stable

MODULE = pathlib.Path(os.environ.get("KEEL_PRETEND_GPU", pathlib.Path(harness.KEEL).parent / "libkeel_pretend_gpu.so"))
STEPS = 4
ACTOR = "actor_rollout_ref__actor__megatron__"
TP2_PP2 = {f"{ACTOR}tensor_model_parallel_size": 2, f"{ACTOR}pipeline_model_parallel_size": 2}


class OnPretendGpu:
    """What a case takes on before its own class: each of its runs computes on pretend GPUs."""

    DEVICE = "cuda"

    def setUp(self):
        super().setUp()
        self.on_machine_with(8)

    def on_machine_with(self, gpus):
        self.set_environment(KEEL_CUDA_MODULE=str(MODULE), KEEL_PRETEND_GPUS=str(gpus))

    def set_environment(self, **variables):
        for name, value in variables.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)

    def config(self, name, **changes):
        return super().config(name, **{"trainer__device": self.DEVICE, **changes})


class Training(OnPretendGpu, harness.Job):
    def run_of(self, name, ranks=1, **changes):
        self.train(self.config(name, trainer__total_training_steps=STEPS, trainer__save_freq=STEPS, **changes), ranks=ranks)
        return self.metrics(name), checkpoint_files.digests(self.run_dir(name) / f"global_step_{STEPS}")

    def assert_close(self, there, here, close):
        self.assertEqual(sorted(there), list(range(1, STEPS + 1)))
        for step, data in there.items():
            for key in (harness.LOSS, harness.GRAD_NORM):
                self.assertLess(abs(data[key] - here[step][key]) / abs(here[step][key]), close, f"{key} of step {step}")

    def test_is_what_the_host_makes_of_the_same_operations(self):
        for ranks, layout in ((1, {}), (4, TP2_PP2)):
            with self.subTest(ranks=ranks):
                there, _ = self.run_of(f"there_{ranks}", ranks, **layout)
                self.assertGreater(min(data["memory/device_allocated(GiB)"] for data in there.values()), 0)
                self.set_environment(KEEL_DEVICE_PATHS="1")
                here, _ = self.run_of(f"here_{ranks}", ranks, trainer__device="cpu", **layout)
                os.environ.pop("KEEL_DEVICE_PATHS")
                self.assert_close(there, here, 2e-6)

    def test_by_operations_of_pytorch_alone(self):
        self.set_environment(KEEL_PRETEND_KERNELS="0")
        there, _ = self.run_of("there")
        self.set_environment(KEEL_DEVICE_PATHS="aten")
        self.assert_close(there, self.run_of("here", trainer__device="cpu")[0], 2e-6)

    def test_flash_attention_of_bf16(self):
        """PyTorch's call, with the sequences' boundaries."""
        there, _ = self.run_of("there", actor_rollout_ref__model__dtype="bfloat16")
        here, _ = self.run_of("here", actor_rollout_ref__model__dtype="bfloat16", trainer__device="cpu")
        self.assert_close(there, here, 2e-2)

    def test_ranks_that_share_a_gpu(self):
        self.on_machine_with(1)
        refused = harness.keel(*self.command(self.config("alone", **TP2_PP2), 4))
        self.assertEqual(refused.returncode, 69, refused.stderr)
        self.assertIn("trainer.share_gpus", refused.stdout + refused.stderr)
        shared = self.run_of("shared", 4, trainer__share_gpus=True, **TP2_PP2)
        self.on_machine_with(4)
        apart = self.run_of("apart", 4, **TP2_PP2)
        for step, data in shared[0].items():
            self.assertEqual(stable(data), stable(apart[0][step]), f"step {step}")
        self.assertEqual(shared[1], apart[1])


class Offload(OnPretendGpu, offload_test.OffloadBfloat16):
    pass


@harness.nightly
class OffloadFourRanks(OnPretendGpu, offload_test.OffloadFourRanks):
    pass


class Resume(OnPretendGpu, resume_test.ResumePipelineParallel):
    pass


class Rl(OnPretendGpu, rl_test.NothingChanges):
    test_by_taking_old_log_probs_from_the_update = harness.nightly(rl_test.NothingChanges.test_by_taking_old_log_probs_from_the_update)


class Adapters(OnPretendGpu, adapters_test.Adapters):
    def test_beside_a_model_that_is_moved_and_one_that_stays(self):
        """Steps, saves beside them, and a resume in between give the same bits."""
        self.write_answers()
        model = {"path": str(adapters_test.FIXTURES / "qwen2" / "hf"), "dtype": "bfloat16", "lora_rank": 3}
        moved = {ACTOR + switch: True for switch in ("param_offload", "grad_offload", "optimizer_offload")}
        found = []
        for name, ranks, more in (("stays", 1, {}), ("moved", 1, moved), ("stages", 2, {ACTOR + "pipeline_model_parallel_size": 2}),
                                  ("moved_stages", 2, {ACTOR + "pipeline_model_parallel_size": 2, **moved})):  # fmt: skip
            more = {"actor_rollout_ref__model": model, "trainer__save_freq": 1, "trainer__total_training_steps": STEPS, **more}
            self.train(self.sft(name, "qwen2", **more), "trainer.total_training_steps=2", ranks=ranks)
            self.train(self.sft(name, "qwen2", **more), ranks=ranks)
            found.append((name, self.metrics(name), checkpoint_files.digests(self.run_dir(name) / f"global_step_{STEPS}")))
        self.assertEqual(found[0][2], found[1][2])
        self.assertEqual(found[2][2], found[3][2])
        here = self.run_here(model)
        for name, metrics, _ in found:
            for step, data in metrics.items():
                self.assertLess(abs(data[harness.LOSS] - here[step][harness.LOSS]) / here[step][harness.LOSS], 2e-2, f"{name} {step}")

    def run_here(self, model):
        self.train(self.sft("here", "qwen2", actor_rollout_ref__model=model, trainer__device="cpu"))
        return self.metrics("here")


class Split(OnPretendGpu, split_test.SplitJob):
    def test_weights_go_from_devices_to_devices(self):
        """PPO over two trainers with offload and two workers: the colocated run bit for bit."""
        done = split_test.Split.same_as_colocated(
            self, {"tensor_model_parallel_size": 1, **rl_test.OFFLOAD}, 2, 2, 2,
            algorithm__adv_estimator="gae", actor_rollout_ref__rollout__batch_invariant=True,
        )  # fmt: skip
        self.assert_nobody_lost("split", done)
        self.assertEqual({data[rl_test.GAP] for data in self.steps("split").values()}, {0.0})

    def test_weights_go_beside_the_step(self):
        """Threads of their own send from the second trainer's device and receive on the workers'."""
        config = self.split(
            "ahead", {"tensor_model_parallel_size": 1}, trainer__total_training_steps=4, async_training__max_staleness=1,
            algorithm__rollout_correction__rollout_is="token",
        )  # fmt: skip
        done = self.launch(config, 2, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assert_nobody_lost("ahead", done)

    def assert_nobody_lost(self, name, done):
        """A push that fails costs its worker, and nothing else: the run is the same."""
        self.assertEqual({d["fully_async/count/workers_lost"] for d in self.steps(name).values()}, {0}, done.stderr)


if __name__ == "__main__":
    unittest.main()
