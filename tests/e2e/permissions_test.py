"""Who may read what Keel writes: whoever the umask lets, or fewer with `trainer.file_mode`."""

import os
import stat
import subprocess
import unittest

import harness


def modes(folder):
    """{path: permissions} of everything in a folder, and of itself."""
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in paths}


class Permissions(harness.Job):
    def run_with(self, mask, *arguments):
        done = subprocess.run(
            [harness.KEEL, *map(str, arguments)], capture_output=True, text=True, timeout=harness.LIMIT_S,
            env=harness.environment(), preexec_fn=lambda: os.umask(mask), check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, f"{done.args}\n{done.stdout}\n{done.stderr}")

    def check(self, folder, mask):
        found = modes(folder)
        # A lock is for those who may write: whoever can open it can hold up the run.
        lock = found.pop(".keel-lock", None)
        if lock is not None:
            self.assertEqual(lock, 0o660 if not mask & 0o020 else 0o600)
        for name, mode in found.items():
            expected = (0o777 if (folder / name).is_dir() else 0o666) & ~mask
            self.assertEqual(oct(mode), oct(expected), f"{folder}/{name}")
        return found

    def everything(self, name, mask, expected, **changes):
        """All that a run writes, and what is made of its checkpoints."""
        config = self.config(
            name, trainer__total_training_steps=2, trainer__save_freq=1, trainer__test_freq=1, data__val_split=0.2,
            actor_rollout_ref__actor__checkpoint__save_contents=["model", "optimizer", "extra", "hf_model"], **changes,
        )  # fmt: skip
        run = self.run_dir(name)
        self.run_with(mask, "train", config)
        found = self.check(run, expected)
        for file in ("metrics.jsonl", "config.yaml", "checkpoints.jsonl", "run_id", "latest_checkpointed_iteration.txt",
                     "global_step_2/manifest.json", "global_step_2/actor/huggingface/model.safetensors"):  # fmt: skip
            self.assertIn(file, found)

    def test_the_umask_decides(self):
        for mask in (0o022, 0o027, 0o077, 0o002):
            with self.subTest(umask=oct(mask)):
                name = f"run_{mask:03o}"
                self.everything(name, mask, mask)
                export, again = self.folder / f"export_{mask:03o}", self.folder / f"import_{mask:03o}"
                self.run_with(mask, "ckpt", "export-hf", self.run_dir(name) / "global_step_2", export)
                self.check(export, mask)
                self.run_with(mask, "ckpt", "import-hf", export, again)
                self.run_with(mask, "ckpt", "pin", again / "global_step_0")
                self.check(again, mask)

    def test_a_run_may_give_less(self):
        for file_mode, taken in (("umask", 0), ("group", 0o007), ("owner", 0o077)):
            with self.subTest(file_mode=file_mode):
                self.everything(file_mode, 0o022, 0o022 | taken, trainer__file_mode=file_mode)

    def test_logs_and_dumps_of_a_job(self):
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text('{"prompt": "1+1=", "answer": "2", "data_source": "addition"}\n' * 4)
        folder = self.folder / "job"
        folder.mkdir(0o755)
        config = self.config(
            "job/run", trainer__task="rl", trainer__total_training_steps=1, trainer__test_freq=1,
            trainer__rollout_data_dir=str(folder / "responses"), trainer__validation_data_dir=str(folder / "validation"),
            data__train_files=[str(prompts)], data__val_files=[str(prompts)], data__train_batch_size=4,
            data__max_prompt_length=8, data__max_response_length=4, reward__type="exact",
            algorithm__adv_estimator="grpo",
        )  # fmt: skip
        self.run_with(0o022, "launch", "--nproc-per-node", 1, "--log-dir", folder / "logs", "train", config)
        for name in ("logs", "responses", "validation", "run"):
            self.assertTrue(any(path.is_file() for path in (folder / name).rglob("*")), name)
            self.check(folder / name, 0o022)


if __name__ == "__main__":
    unittest.main()
