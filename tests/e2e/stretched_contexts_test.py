"""Texts as long as stretched positions reach, past max_position_embeddings: scored, generated and trained on as transformers
computes them, and one token more is refused with the numbers that the limit is made of."""

import json
import random
import unittest

import harness
import safetensors.torch
import torch
import transformers

POSITIONS = 24  # of each file's max_position_embeddings
BASE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 263, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 1.9, 2.0], "long_factor": [1.5, 1.9, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0]}
# kind -> (the map, tokens that are trained on, tokens that are generated or scored, what says why no more)
KINDS = {
    "default": ({}, 24, 24, "the model's max_position_embeddings is 24"),
    "linear": ({"factor": 2.5}, 60, 60, "the model's context is 60: max_position_embeddings 24 times the factor 2.5 of its rope_type linear"),
    "dynamic": ({"factor": 2.0}, 48, 24, "the model's context is 48: max_position_embeddings 24 times the factor 2 of its rope_type dynamic"),
    # As Qwen's pages have it: the original context is less than max_position_embeddings.
    "yarn": ({"factor": 4.0, "original_max_position_embeddings": 20}, 80, 80,
             "the model's context is 80: original_max_position_embeddings 20 times the factor 4 of its rope_type yarn"),
    "llama3": ({"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}, 24, 24,
               "the model's max_position_embeddings is 24"),
    "longrope": ({"original_max_position_embeddings": 10, **FACTORS}, 24, 24, "the model's max_position_embeddings is 24"),
}  # fmt: skip


class StretchedContexts(harness.Job):
    def model(self, kind):
        """A folder, spelled as published files are, and the model that transformers makes of it."""
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(1)
        torch.manual_seed(list(KINDS).index(kind))
        rope = {"rope_type": kind, "rope_theta": 10000.0, **KINDS[kind][0]}
        config = transformers.Qwen2Config(**BASE, rope_parameters=dict(rope), initializer_range=0.2)
        folder = self.folder / kind
        transformers.Qwen2ForCausalLM(config).float().save_pretrained(folder)
        written = json.loads((folder / "config.json").read_text())
        del written["rope_parameters"]
        written["rope_theta"] = rope.pop("rope_theta")
        written["rope_scaling"] = None if kind == "default" else {"type": rope.pop("rope_type"), **rope}
        (folder / "config.json").write_text(json.dumps(written))
        return folder, transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def rows(self, *lengths):
        draw = random.Random(3)
        rows = [[draw.randrange(256) for _ in range(length)] for length in lengths]
        path = self.folder / "rows.jsonl"
        path.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in rows))
        return path, rows

    def test_a_text_may_be_as_long_as_the_stretch_makes_it(self):
        for kind, (_, _, longest, _) in KINDS.items():
            with self.subTest(kind):
                folder, model = self.model(kind)
                path, rows = self.rows(longest, longest // 2)
                out, logits = self.folder / "out.jsonl", self.folder / "logits.safetensors"
                done = harness.keel("score", "--model", folder, "--input", path, "--output", out, "--logits", logits)
                self.assertEqual(done.returncode, 0, done.stderr)
                found = safetensors.torch.load_file(logits)
                for row, ids in enumerate(rows):
                    with torch.no_grad():
                        wanted = model(input_ids=torch.tensor([ids])).logits[0]
                    self.assertLess((found[f"logits.{row}"] - wanted).abs().max().item(), 2e-5)
                # A text goes on to the end and no further.
                path, _ = self.rows(longest - 3)
                done = harness.keel("generate", "--model", folder, "--input", path, "--output", out, "--max-new-tokens", 20, "--temperature", 0)
                self.assertEqual(done.returncode, 0, done.stderr)
                made = harness.read_jsonl(out)[0]
                self.assertEqual((len(made["output_ids"]), made["finish_reason"]), (3, "length"))
                path, _ = self.rows(longest + 1)
                done = harness.keel("score", "--model", folder, "--input", path, "--output", out)
                self.assertEqual(done.returncode, 65, done.stderr)
                self.assertIn(f"{longest + 1} tokens to score, more than the {longest} positions", done.stderr)

    def test_it_is_trained_on_as_long(self):
        for kind, (_, longest, _, why) in KINDS.items():
            with self.subTest(kind):
                folder, model = self.model(kind)
                path, rows = self.rows(longest - 3, longest)  # of a longer one transformers keeps the factors
                config = self.config(
                    f"run_{kind}", trainer__task="sft", trainer__total_training_steps=1, data__train_files=[str(path)], data__tokenizer="ids",
                    data__max_length=longest, data__train_batch_size=2,
                    actor_rollout_ref__model={"path": str(folder), "dtype": "float32"},
                )  # fmt: skip
                self.train(config)
                with torch.no_grad():
                    loss = sum(torch.nn.functional.cross_entropy(model(input_ids=torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:]), reduction="sum")
                               for ids in rows) / (2 * longest - 5)  # fmt: skip
                self.assertAlmostEqual(self.metrics(f"run_{kind}")[1][harness.LOSS], loss.item(), delta=2e-5)
                done = harness.keel("config", "validate", config, f"data.max_length={longest + 1}")
                self.assertEqual(done.returncode, 78, done.stdout)
                self.assertIn(f"data.max_length: {longest + 1} positions, {why}", done.stderr)

    def test_a_text_turns_by_all_its_tokens(self):
        """Its last one is no input of the training, but of the text: one token more than the original context has the long factors."""
        folder, _ = self.model("longrope")
        original = KINDS["longrope"][0]["original_max_position_embeddings"]
        (folder / "config.json").write_text(json.dumps({**json.loads((folder / "config.json").read_text()), "eos_token_id": 1}))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

        def log_probs(ids):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
            return logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

        for length in (original, original + 1):
            path, (ids,) = self.rows(length)
            for name, packing, most in (("alone", "none", 20), ("fits", "none", length - 1), ("packed", "best_fit", 20), ("wrapped", "wrapped", 20)):
                config = self.config(
                    f"{name}_{length}", trainer__task="sft", trainer__total_training_steps=1, data__train_files=[str(path)],
                    data__tokenizer="ids", data__max_length=most, data__train_batch_size=1, data__packing=packing,
                    actor_rollout_ref__model={"path": str(folder), "dtype": "float32"},
                )  # fmt: skip
                self.train(config)
                self.assertAlmostEqual(self.metrics(f"{name}_{length}")[1][harness.LOSS], -log_probs(ids).mean().item(), delta=2e-5)
            # A block of a text that is cut into blocks is no longer than that.
            config = self.config(
                f"cut_{length}", trainer__task="sft", trainer__total_training_steps=1, data__train_files=[str(path)],
                data__tokenizer="ids", data__max_length=original, data__train_batch_size=1, data__packing="wrapped",
                actor_rollout_ref__model={"path": str(folder), "dtype": "float32"},
            )  # fmt: skip
            self.train(config)
            short = log_probs(ids) if length == original else torch.cat([log_probs(ids[:-1]), self.last(model, ids)])
            self.assertAlmostEqual(self.metrics(f"cut_{length}")[1][harness.LOSS], -short.mean().item(), delta=2e-5)
            # A response that is replayed, of a prompt of three.
            dump = self.folder / f"dump_{length}"
            dump.mkdir()
            prompts = self.folder / "prompts.jsonl"
            prompts.write_text(json.dumps({"prompt": ids[:3], "answer": "1", "data_source": "copy"}) + "\n")
            responses = [{"row": 0, "position": 0, "sample": i, "prompt_ids": ids[:3], "response_ids": ids[3:], "finish_reason": "length",
                          "data_source": "copy", "extra": {}, "output": "", "baseline": 0.0, "rollout_log_probs": log_probs(ids)[2:].tolist(), "weight_version": 1, "score": float(i)} for i in range(2)]  # fmt: skip
            (dump / "1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in responses))
            config = self.config(
                f"rl_{length}", trainer__task="rl", trainer__total_training_steps=1, trainer__rollout_replay_dir=str(dump),
                data__train_files=[str(prompts)], data__tokenizer="ids", data__max_prompt_length=3, data__max_response_length=20,
                data__train_batch_size=1, actor_rollout_ref__model={"path": str(folder), "dtype": "float32"},
                actor_rollout_ref__rollout__n=2, actor_rollout_ref__rollout__calculate_log_probs=True,
                reward__type="command", reward__command=["cat"], algorithm__adv_estimator="grpo",
            )  # fmt: skip
            said = self.train(config)
            self.assertIn("passes the 10 tokens of the model's original context", said.stdout + said.stderr)
            lines = harness.read_jsonl(self.run_dir(f"rl_{length}") / "metrics.jsonl")
            gaps = [line["data"]["training/rollout_log_probs_diff_max"] for line in lines if "training/rollout_log_probs_diff_max" in line["data"]]
            self.assertLess(gaps.pop(), 2e-5)

    @staticmethod
    def last(model, ids):
        """Of the last token, by what precedes it alone."""
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids[:-1]])).logits[0, -1].log_softmax(-1)[ids[-1:]]

    def test_responses_end_with_what_can_be_generated(self):
        folder, _ = self.model("dynamic")
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**written, "eos_token_id": 1}))
        prompts = self.folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": [i], "answer": "1", "data_source": "copy"}) + "\n" for i in range(8)))
        config = self.config(
            "rl", trainer__task="rl", data__train_files=[str(prompts)], data__tokenizer="ids", data__max_prompt_length=5,
            data__max_response_length=20, actor_rollout_ref__model={"path": str(folder)},
            reward__type="command", reward__command=["cat"], algorithm__adv_estimator="grpo",
        )  # fmt: skip
        done = harness.keel("config", "validate", config)
        self.assertEqual(done.returncode, 78, done.stdout)
        self.assertIn("25 positions, the model's max_position_embeddings is 24, beyond which its rope_type dynamic generates nothing",
                      done.stderr)  # fmt: skip


if __name__ == "__main__":
    unittest.main()
