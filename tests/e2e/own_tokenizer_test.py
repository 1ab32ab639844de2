"""Models whose tokenizer cannot be used: rows of text are refused by every task, rows that bring ids train by every
task, and padding that their mask hides is as if it were not there."""

import json
import os
import pathlib
import shutil
import sys
import unittest

import checkpoint_files
import harness

FIXTURES = pathlib.Path(os.environ["KEEL_FIXTURES"])
END = 5  # what this model calls the end of a text
CONFIG, DATA = 78, 65

# Scores a response by its ids; ends with an error if it is shown a text instead.
VERIFIER = """
import json, sys
for line in sys.stdin:
    sample = json.loads(line)
    ids = sample["response_ids"]
    assert "response" not in sample and sample["prompt_ids"][0] >= 256
    print(json.dumps({"id": sample["id"], "score": sum(i < 128 for i in ids) / len(ids)}), flush=True)
"""


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


class OwnTokenizer(harness.Job):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "hf"
        shutil.copytree(FIXTURES / "llama" / "hf", self.model)
        (self.model / "tokenizer.json").write_text("{}")
        (self.model / "chat_template.jinja").write_text("{{ messages }}")
        (self.model / "generation_config.json").write_text(json.dumps({"eos_token_id": [END]}))

    def job(self, name, task, rows, **changes):
        config = self.config(
            name,
            trainer__task=task,
            trainer__total_training_steps=2,
            trainer__save_freq=2,
            actor_rollout_ref__model={"path": str(self.model), "dtype": "float32"},
            data__max_prompt_length=16,
            data__max_response_length=8,
            **{"data__train_files": [write_rows(self.folder / f"{name}.jsonl", rows)], **changes},
        )
        content = json.loads(config.read_text())
        del content["data"]["tokenizer"]  # the model's own
        config.write_text(json.dumps(content))
        return config

    def refused(self, config, code, *fragments):
        """By validation as by training, and with the same words."""
        for command in (["train", config], ["config", "validate", config]):
            done = harness.keel(*command)
            self.assertEqual(done.returncode, code, done.stderr[-2000:])
            for fragment in fragments:
                self.assertIn(fragment, done.stderr)
        done = harness.keel("config", "validate", config, "--no-files")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("were not looked at", done.stdout)

    def grpo(self, name, rows, **changes):
        verifier = self.folder / "verifier.py"
        verifier.write_text(VERIFIER)
        return self.job(
            name, "rl", rows,
            **{"reward__type": "command", "reward__command": [sys.executable, str(verifier)],
               "reward__on_error": "stop", "actor_rollout_ref__rollout__n": 4,
               "trainer__rollout_data_dir": str(self.folder / name), **changes},
        )  # fmt: skip

    def test_text_is_refused_by_every_task(self):
        """All three trained on bytes, exit 0."""
        words = ("hf has a tokenizer of its own (tokenizer.json)", "input_ids")
        self.refused(self.job("sft", "sft", [{"prompt": "a", "response": "b"}]), DATA, "sft.jsonl:1", *words)
        chat = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
        self.refused(self.job("chat", "sft", chat), DATA, "chat.jsonl:1", *words)
        self.refused(
            self.job("dpo", "dpo", [{"prompt": "a", "chosen": "b", "rejected": "c"}]), DATA, "chosen_input_ids", *words
        )
        self.refused(self.grpo("rl", [{"prompt": "a", "answer": "b"}]), DATA, "rl.jsonl:1", *words)
        rule = self.grpo("rule", [{"prompt": [300 % 263, 1], "answer": "b"}], reward__type="exact", reward__command=[])
        self.refused(rule, CONFIG, "reward.type is exact", *words[:1])
        told = self.job("told", "sft", [{"input_ids": [1, 2]}])
        told.write_text(told.read_text().replace('"data": {', '"data": {"tokenizer": "bytes", '))
        self.refused(told, CONFIG, "the tokenizer is bytes", words[0], "leave data.tokenizer out")

    def test_ids_train_by_every_task(self):
        self.train(self.job("sft", "sft", [{"input_ids": [7, 8, 9, END], "labels": [-100, -100, 9, END]}] * 4))
        pairs = [{"prompt_input_ids": [260, 8], "chosen_input_ids": [9, END], "rejected_input_ids": [10, END]}] * 4
        self.train(self.job("dpo", "dpo", pairs, dpo__beta=0.1))
        self.train(self.grpo("rl", [{"prompt": [260, 8, i], "answer": i} for i in range(8)]))
        scores = []
        for response in harness.read_jsonl(self.folder / "rl" / "1.jsonl"):
            ids = response["response_ids"]
            scores.append(response["score"])
            self.assertAlmostEqual(response["score"], sum(i < 128 for i in ids) / len(ids))
            # generation_config.json names the end; config.json does not.
            self.assertEqual(response["finish_reason"], "stop" if ids[-1] == END else "length")
            self.assertNotIn(END, ids[:-1])
        self.assertGreater(len(set(scores)), 1)
        # What the model came with goes on with it.
        kept = self.run_dir("rl") / "global_step_2" / "actor" / "huggingface"
        self.assertEqual(
            {path.name for path in kept.iterdir()},
            {"config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"},
        )

    ROWS = [[7, 8, 9, 10, 11, END], [12, 13, END], [14, 15, 16, 17, END], [18, 19, 20, END]]

    def padded(self, side, length=9):
        """The rows as tokenizer(..., padding="max_length") and a collator write them, labels cloned and masked."""
        rows = []
        for ids in self.ROWS:
            labels = [-100, *ids[1:]]
            pads = length - len(ids)
            row = {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels,
                   "position_ids": list(range(len(ids)))}  # fmt: skip
            for key, pad in (("input_ids", 0), ("attention_mask", 0), ("labels", 0), ("position_ids", 1)):
                row[key] = [pad] * pads + row[key] if side == "left" else row[key] + [pad] * pads
            rows.append(row)
        return rows

    def test_padded_rows_train_as_if_they_were_not(self):
        plain = [{"input_ids": ids, "labels": [-100, *ids[1:]]} for ids in self.ROWS]
        sides = {"plain": plain, "left": self.padded("left"), "right": self.padded("right")}
        for name, rows in sides.items():
            self.train(self.job(name, "sft", rows))
        want = {step: harness.stable(data) for step, data in self.metrics("plain").items()}
        self.assertEqual(want[1]["n_tokens_seen"], sum(len(ids) - 1 for ids in self.ROWS))
        for side in ("left", "right"):
            found = {step: harness.stable(data) for step, data in self.metrics(side).items()}
            self.assertEqual(found, want)
            step = lambda name: checkpoint_files.digests(self.run_dir(name) / "global_step_2")
            self.assertEqual(step(side), step("plain"))
        config = self.job("holes", "sft", [{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}])
        self.refused(config, DATA, "holes.jsonl:1", "between entries 0 and 2")

    def rows_of(self, command, rows, *arguments):
        output = self.folder / "out.jsonl"
        done = harness.keel(
            command, "--model", self.model, "--input", write_rows(self.folder / "in.jsonl", rows), "--output", output,
            *arguments,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return harness.read_jsonl(output)

    def test_padded_rows_are_scored_and_continued_as_if_they_were_not(self):
        plain = [{"input_ids": ids[:-1]} for ids in self.ROWS]
        for side in ("left", "right"):
            padded = []
            for ids in plain:
                pads, ids = [0] * (9 - len(ids["input_ids"])), ids["input_ids"]
                mask = [1] * len(ids)
                row = (pads + ids, pads + mask) if side == "left" else (ids + pads, mask + pads)
                padded.append({"input_ids": row[0], "attention_mask": row[1]})
            self.assertEqual(self.rows_of("score", padded), self.rows_of("score", plain))
            go_on = lambda rows: [r["output_ids"] for r in self.rows_of("generate", rows, "--max-new-tokens", 8)]
            self.assertEqual(go_on(padded), go_on(plain))

    def test_a_tokenizer_that_cannot_be_read_is_missed_by_texts_alone(self):
        self.assertEqual(len(self.rows_of("score", [{"input_ids": [1, 2, 3]}])), 1)
        rows = write_rows(self.folder / "texts.jsonl", [{"text": "a text"}])
        done = harness.keel("score", "--model", self.model, "--input", rows, "--output", self.folder / "out.jsonl")
        self.assertEqual(done.returncode, DATA, done.stderr)
        for fragment in ("texts.jsonl:1", "tokenizer.json", "it has no model"):
            self.assertIn(fragment, done.stderr)


if __name__ == "__main__":
    unittest.main()
