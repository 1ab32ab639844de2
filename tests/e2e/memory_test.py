"""Runs that do not fit into memory: told so at the start where that can be known, and in words, with
rank, phase and a way out, where it shows only later."""

import json
import pathlib
import resource
import subprocess
import unittest

import harness

EXHAUSTED = 71
MODEL = "actor_rollout_ref__model__config"


def limited(arguments, address_space):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    return subprocess.run(
        [harness.KEEL, *map(str, arguments)], capture_output=True, text=True, timeout=harness.LIMIT_S,
        env=harness.environment(), check=False, preexec_fn=limit,
    )  # fmt: skip


class Memory(harness.Job):
    def refused(self, done, *fragments):
        output = done.stdout + done.stderr
        self.assertEqual(done.returncode, EXHAUSTED, output[-3000:])
        for fragment in fragments:
            self.assertIn(fragment, output)
        self.assertNotIn("frame #", output)
        self.assertNotIn("terminate called", output)
        self.assertFalse(list(self.run_dir("run").glob("global_step_*")))

    def test_a_model_that_no_machine_holds_is_refused_at_the_start(self):
        for change in (
            {"vocab_size": 2**26, "hidden_size": 2**20},
            {"num_hidden_layers": 1000, "hidden_size": 2**16, "intermediate_size": 2**18},
        ):
            with self.subTest(**change):
                config = self.config("run", **{MODEL: {**harness.MODEL, **change}})
                done = harness.keel(*self.command(config, 1))
                self.refused(done, "this run's state takes", "optimizer state", "use more ranks")

    def test_a_model_that_is_too_large_to_generate_with(self):
        folder = self.folder / "model"
        folder.mkdir()
        shape = {**harness.MODEL, "vocab_size": 2**26, "hidden_size": 2**20, "architectures": ["LlamaForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(shape))
        done = harness.keel("generate", "--model", folder, "--input", self.data, "--output", self.folder / "out.jsonl")
        self.refused(done, "weights", str(folder))

    def test_under_any_limit_a_run_has_the_same_bits_or_ends_in_words(self):
        """Where something has no room nothing else takes its place: neither another library nor fewer threads, and nobody hangs."""
        changes = {"trainer__total_training_steps": 2, "trainer__save_freq": 2}
        for ranks in (1, 2):
            whole = self.run_dir(f"whole{ranks}")
            self.train(self.config(whole.name, **changes), ranks=ranks)
            expected, ends = self.weights(whole), set()
            for megabytes in (*range(450, 950, 50), 1500, 4000):  # the last are room enough anywhere
                with self.subTest(ranks=ranks, megabytes=megabytes):
                    run = self.run_dir(f"limited{ranks}_{megabytes}")
                    done = limited(self.command(self.config(run.name, **changes), ranks), megabytes << 20)
                    ends.add(done.returncode)
                    self.assertIn(done.returncode, (0, EXHAUSTED), done.stdout[-2000:] + done.stderr[-2000:])
                    if done.returncode == 0:
                        self.assertEqual(self.weights(run), expected)
            self.assertEqual(ends, {0, EXHAUSTED})

    def weights(self, run):
        return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*.safetensors"))}

    def test_activations_that_do_not_fit_end_the_run_in_words(self):
        length, rows = 8192, 8
        harness.write_documents(self.data, count=rows, length=length)
        changes = {
            "data__max_length": length, "data__train_batch_size": rows, "data__micro_batch_size_per_gpu": rows,
            "trainer__total_training_steps": 1, MODEL: {**harness.MODEL, "max_position_embeddings": length},
        }  # fmt: skip
        config = self.config("run", **changes)
        # What one short step takes of address space, and a little: the long ones' activations do not fit.
        small = self.folder / "small.jsonl"
        harness.write_documents(small)
        probe = self.config("probe", data__train_files=[str(small)], trainer__total_training_steps=1)
        process = self.start(probe)
        peak = 0
        while process.poll() is None:
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPeak"))])
            except OSError:
                pass
        done = limited(self.command(config, 1), peak * 1024 + (192 << 20))
        self.refused(done, "out of memory: tried to allocate", "on rank 0 at step 1 (train)", "a rank (weights", "enable_gradient_checkpointing")


if __name__ == "__main__":
    unittest.main(verbosity=2)
