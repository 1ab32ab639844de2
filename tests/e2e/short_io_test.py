"""Where the system reads and writes less in one call than it was asked for, nothing is another: `tests/support/short_io` is preloaded,
which halves each read and write of a file."""

import hashlib
import json
import os
import subprocess
import sys
import unittest
import unittest.mock

import harness


def content(folder):
    """{path: digest} of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@unittest.skipUnless(harness.SHORT_IO.exists(), "SKIPPED: a build with sanitizers has no libkeel_short_io.so")
class ShortIo(harness.Job):
    def keel(self, *arguments, short=True, code=0, **more):
        environment = {**harness.environment(), **({"LD_PRELOAD": str(harness.SHORT_IO)} if short else {}), **more}
        done = subprocess.run([harness.KEEL, *map(str, arguments)], capture_output=True, text=True, timeout=harness.LIMIT_S, env=environment, check=False)  # fmt: skip
        self.assertEqual(done.returncode, code, f"{done.args}\n{done.stdout}\n{done.stderr}")
        return done

    def tensors(self, step):
        return {path.name: path.read_bytes() for path in sorted(step.rglob("*.safetensors"))}

    def test_the_library_halves(self):
        file = self.folder / "file"
        script = f"import os; f = os.open({str(file)!r}, os.O_RDWR | os.O_CREAT); print(os.write(f, b'x' * 10), len(os.pread(f, 10, 0)))"
        done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "LD_PRELOAD": str(harness.SHORT_IO)}, capture_output=True, text=True, check=True)  # fmt: skip
        self.assertEqual(done.stdout.split(), ["5", "5"])

    def test_a_run_is_the_same(self):
        for io in ("buffered", "direct", "io_uring"):
            with self.subTest(io):
                steps, runs = 6, {}
                for short in (False, True):
                    name = f"{io}_{'short' if short else 'whole'}"
                    config = self.config(
                        name, trainer__total_training_steps=steps, trainer__save_freq=2, trainer__logger=["jsonl", "tensorboard"],
                        actor_rollout_ref__actor__checkpoint__async_save=True, actor_rollout_ref__actor__checkpoint__io=io,
                    )  # fmt: skip
                    train, decay = self.command(config, 2), f"actor_rollout_ref.actor.optim.lr_decay_steps={steps}"
                    self.keel(*train, f"trainer.total_training_steps={steps - 2}", decay, short=short)
                    self.keel(*train, decay, short=short)  # goes on from what it reads
                    runs[short] = self.run_dir(name)
                    self.assertEqual(sorted(self.metrics(name)), list(range(1, steps + 1)))
                    self.keel("ckpt", "verify", runs[short], short=short)
                one, other = (self.metrics(run.name) for run in runs.values())
                self.assertEqual({s: harness.stable(d) for s, d in one.items()}, {s: harness.stable(d) for s, d in other.items()})
                self.assertEqual(*(self.tensors(run / f"global_step_{steps}") for run in runs.values()))

    def test_what_tools_make_is_the_same(self):
        texts = self.folder / "texts.jsonl"
        texts.write_text("".join(json.dumps({"text": f"row {i} " * 40}) + "\n" for i in range(200)))
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"row {i}"}) + "\n" for i in range(5)))
        made = {}
        for short in (False, True):
            folder = self.folder / ("short" if short else "whole")
            folder.mkdir()
            run = folder / "run"
            config = self.config("made", trainer__total_training_steps=2, trainer__save_freq=2, trainer__default_local_dir=str(run))
            self.keel("train", config, short=short)
            model = folder / "model"
            self.keel("ckpt", "export-hf", run / "global_step_2", model, short=short)
            self.keel("ckpt", "import-hf", model, folder / "imported", short=short)
            self.keel("ckpt", "reshard", "--world", 3, run / "global_step_2", folder / "resharded", short=short)
            self.keel("data", "tokenize", "--tokenizer", "bytes", "--out", folder / "tokens", texts, short=short)
            self.keel("generate", "--model", model, "--input", prompts, "--output", folder / "out.jsonl", "--max-new-tokens", 8, short=short)
            made[short] = {
                **content(model), "out": (folder / "out.jsonl").read_bytes(),
                **{str(path.relative_to(folder)): path.read_bytes() for name in ("imported", "resharded", "tokens")
                   for path in sorted((folder / name).rglob("*")) if path.suffix in (".safetensors", ".bin") and path.name != "index.bin"},
            }  # fmt: skip
        self.assertEqual(made[False].keys(), made[True].keys())
        self.assertEqual([name for name in made[False] if made[False][name] != made[True][name]], [])

    def test_a_lock_whose_first_write_fails_is_a_lock(self):
        config = self.config("run", trainer__total_training_steps=2, trainer__save_freq=1)
        with unittest.mock.patch.dict(os.environ, LD_PRELOAD=str(harness.SHORT_IO), KEEL_FAIL_FIRST_WRITE="/.keel-lock"):
            process = self.start(config, ranks=2, failpoint="commit.begin:0:1:stop")
        self.stopped_rank(process, 0)
        self.assertRegex((self.run_dir("run") / ".keel-lock").read_text(), r"^a new run, host .*, pid \d+, since ")
        self.continued(process, 0)
        self.assertEqual(process.wait(harness.LIMIT_S), 0, self.log())
        lines = harness.read_jsonl(self.run_dir("run") / "checkpoints.jsonl")
        self.assertEqual([line.get("error") for line in lines if "error" in line], [])
        self.assertTrue((self.run_dir("run") / "global_step_2/manifest.json").exists())


if __name__ == "__main__":
    unittest.main()
