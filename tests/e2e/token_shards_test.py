"""Token shards train as the rows that they were made of; mixtures and packings have one order, whatever the ranks, and through kill -9."""

import json
import random
import shutil
import signal
import subprocess
import unittest

import harness
from harness import LOSS, SAMPLES, stable


class TokenShards(harness.Job):
    def rows(self, name, count, seed, answers=False):
        chance, path = random.Random(seed), self.folder / name
        with open(path, "w", encoding="utf-8") as out:
            for _ in range(count):
                text = "".join(chance.choices("abcdefgh ", k=chance.randrange(2, 60)))
                row = {"prompt": text[:9], "response": text} if answers else {"text": text}
                out.write(json.dumps(row) + "\n")
        return path

    def tokenize(self, files, name, *flags):
        done = harness.keel("data", "tokenize", *files, "--tokenizer", "bytes", "--out", self.folder / name, *flags)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return self.folder / name

    def steps(self, name, ranks=1, **changes):
        self.train(self.config(name, **changes), ranks=ranks)
        return {step: stable(data) for step, data in self.metrics(name).items()}

    def test_shards_and_cache_train_as_rows_do(self):
        for task in ("pretrain", "sft"):
            with self.subTest(task=task):
                rows = self.rows(f"{task}.jsonl", 60, 1, answers=task == "sft")
                shards = self.tokenize([rows], f"{task}.tokens")
                said = harness.keel("data", "info", shards, "--verify")
                self.assertIn("60 documents of 60 rows", said.stdout)
                self.assertIn("every byte is what it was written as", said.stdout)
                common = {"trainer__task": task, "data__max_length": 80, "data__val_split": 0.3, "trainer__test_freq": 6}
                memory = self.steps(f"{task}_memory", **common, data__train_files=[str(rows)])
                self.assertEqual(len(memory), 12)
                self.assertEqual(self.steps(f"{task}_shards", **common, data__train_files=[str(shards)]), memory)
                cache = self.folder / "cache"
                cached = {**common, "data__train_files": [str(rows)], "data__cache_dir": str(cache)}
                self.assertEqual(self.steps(f"{task}_cache", **cached), memory)
                # Ranks that come together make it once, and one that comes later finds it.
                before = sorted(cache.iterdir())
                of_two = self.steps(f"{task}_two", ranks=2, **cached)
                self.assertEqual(sorted(cache.iterdir()), before)
                self.assertEqual([s[SAMPLES] for s in of_two.values()], [s[SAMPLES] for s in memory.values()])

    def mixture(self):
        one = self.tokenize([self.rows("one.jsonl", 40, 2)], "one.tokens")
        two = self.rows("two.jsonl", 90, 3)
        return {
            "data__train_files": [],
            "data__sources": [{"path": str(one), "weight": 1}, {"path": str(two), "weight": 2.5}],
            "data__cache_dir": str(self.folder / "cache"),
            "data__max_length": 48,
        }

    def test_order_is_the_same_at_every_number_of_ranks(self):
        mixture = self.mixture()
        for packing in ("none", "stream", "wrapped", "best_fit"):
            with self.subTest(packing=packing):
                alone = None
                for ranks in (1, 2, 4) if packing == "best_fit" else (1, 4):
                    steps = self.steps(f"{packing}_{ranks}", ranks=ranks, **mixture, data__packing=packing)
                    alone = alone or steps
                    self.assertEqual([s[SAMPLES] for s in steps.values()], [s[SAMPLES] for s in alone.values()])
                    for step in steps:
                        self.assertAlmostEqual(steps[step][LOSS], alone[step][LOSS], delta=2e-5)

    def test_a_killed_run_goes_on_bit_for_bit(self):
        changes = {**self.mixture(), "data__packing": "best_fit", "trainer__save_freq": 1, "trainer__total_training_steps": 16}
        straight = self.steps("straight", ranks=2, **changes)
        config = self.config("killed", **changes)
        process = self.start(config, ranks=2, failpoint="step.begin:0:9:stop")  # it does not end before the kill
        self.wait_until(lambda: len(self.metrics("killed")) >= 5, "five steps", process)
        for pid in harness.ranks_below(process).values():
            harness.kill(pid, signal.SIGKILL)
        process.wait()
        self.train(config, ranks=2)
        self.assertEqual({step: stable(data) for step, data in self.metrics("killed").items()}, straight)
        # Other weights are other data.
        other = {**changes, "data__sources": [{**source, "weight": 1} for source in changes["data__sources"]]}
        refused = harness.keel(*self.command(self.config("killed", **other), 1))
        self.assertNotEqual(refused.returncode, 0)

    def test_what_is_no_folder_of_shards_is_refused_by_name(self):
        rows = self.rows("rows.jsonl", 30, 4)
        shards = self.tokenize([rows], "rows.tokens")
        part = shards / "part-00000.tokens"
        whole = part.read_bytes()
        part.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        done = harness.keel("data", "info", shards, "--verify")
        self.assertIn("part-00000.tokens: bytes 4096 to", done.stderr)
        config = self.config("damaged", data__train_files=[str(shards)])
        done = harness.keel("train", config)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("the file is damaged; tokenize it again", done.stderr)
        (shards / "tokens.json").unlink()
        done = harness.keel("train", config)
        self.assertIn("is a directory without tokens.json", done.stderr)

    def test_without_its_module_parquet_is_refused_with_what_to_install(self):
        alone = self.folder / "keel"
        shutil.copy(harness.KEEL, alone)
        (self.folder / "rows.parquet").write_bytes(b"PAR1")
        for command in (["data", "info"], ["data", "tokenize", "--tokenizer", "bytes", "--out", self.folder / "t"]):
            done = subprocess.run([alone, *command, self.folder / "rows.parquet"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 69, done.stderr)
            self.assertIn("pip install pyarrow", done.stderr)


if __name__ == "__main__":
    unittest.main()
