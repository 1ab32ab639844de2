"""`keel score`, `keel generate` and `keel train` against transformers and torch.optim, family by family,
and layout by layout."""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import unittest

import numpy

import checkpoint_files
import harness

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "oracles"))
import warm  # noqa: E402: of tests/oracles

FIXTURES = pathlib.Path(os.environ["KEEL_FIXTURES"])
MODELS = [
    "llama", "llama_tied", "llama_3_layers", "llama_rope_scaled", "llama_rope_scaled_v4",
    "llama_head_dim", "llama_attention_bias", "qwen2", "qwen2_v4", "qwen2_tied", "qwen3", "qwen3_tied",
    "llama_9_heads", "llama_15_heads", "qwen2_14_heads", "qwen3_6_heads",
    "mistral_window", "smollm3", "gemma2", "gemma3", "olmo3", "qwen3_moe", "mixtral", "mixtral_balance", "phi3", "phi3_9_heads",
    "phi3_longrope", "granite", "seed_oss", "seed_oss_out_bias", "arcee",
    "qwen2_moe", "qwen2_moe_balance", "exaone4", "exaone4_whole", "gemma", "olmoe", "olmoe_balance",
    "glm", "glm4", "ernie4_5", "ministral", "cwm", "internlm3", "granite_hybrid", "granite_hybrid_nope", "hunyuan",
    "glm4_moe", "glm4_moe_plain", "dots1", "minimax_m2", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_plain", "glm4_moe_lite", "youtu", "gpt_oss", "gpt_oss_balance",
    "qwen3_next", "qwen3_5", "qwen3_5_moe",
    "cohere", "cohere2", "starcoder2", "starcoder2_plain", "stablelm", "stablelm_parallel", "nemotron", "gpt_neox", "gpt_neox_serial", "ministral3", "ministral3_window", "helium", "jais2", "vaultgemma", "solar_open", "gpt2", "gpt2_untied", "gpt_neo", "opt", "opt_bare", "gpt_bigcode", "gpt_bigcode_heads", "phi", "phi_tied", "gptj",
]  # fmt: skip


def setUpModule():
    global oracles
    oracles = unittest.enterModuleContext(warm.Oracles(harness.environment()))


class Score(harness.Job):
    def test_log_probabilities_and_logits(self):
        for name in MODELS:
            with self.subTest(model=name):
                folder, output, logits = FIXTURES / name, self.folder / f"{name}.jsonl", self.folder / f"{name}.safetensors"
                expected = json.loads((folder / "score.json").read_text())
                tensors = {n: bits for n, _, _, bits in checkpoint_files.read_file(folder / "reference.safetensors")}
                cuts = tensors["cu_seqlens"].tolist()
                rows = self.folder / "rows.jsonl"
                with open(rows, "w", encoding="utf-8") as out:
                    out.write((folder / "score.jsonl").read_text())
                    for begin, end in zip(cuts, cuts[1:]):
                        out.write(json.dumps({"input_ids": tensors["input_ids"][begin:end].tolist()}) + "\n")
                done = harness.keel("score", "--model", folder / "hf", "--input", rows, "--output", output, "--logits", logits)
                self.assertEqual(done.returncode, 0, done.stderr)
                found = harness.read_jsonl(output)
                self.assertEqual(len(found), len(expected) + len(cuts) - 1)
                found = found[: len(expected)]
                for want, have in zip(expected, found, strict=True):
                    self.assertEqual(len(have["log_probs"]), len(want["logprobs"]))
                    for a, b in zip(want["logprobs"], have["log_probs"], strict=True):
                        self.assertAlmostEqual(a, b, delta=2e-5)
                    self.assertAlmostEqual(have["sum_log_prob"], want["sum_logprob"], delta=2e-4)
                    self.assertAlmostEqual(have["perplexity"] / want["perplexity"], 1.0, delta=1e-5)
                found = {n: bits.view("<f4") for n, _, _, bits in checkpoint_files.read_file(logits)}
                first = len(expected)
                whole = numpy.concatenate([found[f"logits.{row}"] for row in range(first, first + len(cuts) - 1)])
                self.assertLess(numpy.abs(whole - tensors["logits"].view("<f4")).max(), 2e-5)


    def test_the_same_model_in_other_files(self):
        """Weights in F64, of which F32 are the nearest, and what Python's json writes of a float that is none."""
        model, rows = self.folder / "hf", FIXTURES / "llama" / "score.jsonl"
        shutil.copytree(FIXTURES / "llama" / "hf", model)
        tensors = checkpoint_files.read_file(model / "model.safetensors")
        header, data = {}, b""
        for name, _, _, bits in tensors:
            wide = bits.view("<f4").astype("<f8").tobytes()
            header[name] = {"dtype": "F64", "shape": list(bits.shape), "data_offsets": [len(data), len(data) + len(wide)]}
            data += wide
        text = json.dumps(header).encode()
        (model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        config = json.loads((model / "config.json").read_text())
        del config["mlp_bias"]
        config |= {"some_statistic": float("nan"), "layer_types": ["full_attention"] * config["num_hidden_layers"]}
        (model / "config.json").write_text("\ufeff" + json.dumps(config))
        found = []
        for folder in (FIXTURES / "llama" / "hf", model):
            output = self.folder / "scores.jsonl"
            done = harness.keel("score", "--model", folder, "--input", rows, "--output", output, "--dtype", "float32")
            self.assertEqual(done.returncode, 0, done.stderr)
            found.append(output.read_text())
        self.assertEqual(*found)


class Generate(harness.Job):
    def test_greedy_tokens(self):
        for name in MODELS:
            with self.subTest(model=name):
                output = self.folder / f"{name}.jsonl"
                folder = FIXTURES / name
                done = harness.keel(
                    "generate", "--model", folder / "hf", "--input", folder / "prompts.jsonl",
                    "--output", output, "--max-new-tokens", 16, "--temperature", 0,
                )  # fmt: skip
                self.assertEqual(done.returncode, 0, done.stderr)
                expected = json.loads((folder / "generate.json").read_text())
                found = harness.read_jsonl(output)
                self.assertEqual([r["output_ids"] for r in found], [r["output_ids"] for r in expected])

    def generate(self, model, *arguments, tokens=16):
        output = self.folder / "generated.jsonl"
        done = harness.keel(
            "generate", "--model", model, "--input", self.prompts, "--output", output,
            "--max-new-tokens", tokens, *arguments,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return harness.read_jsonl(output)

    def edit(self, path, **changes):
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, **changes}))

    def test_stops_at_the_ids_that_are_named_and_at_no_others(self):
        model = self.folder / "hf"
        shutil.copytree(FIXTURES / "llama" / "hf", model)
        self.prompts = FIXTURES / "llama" / "prompts.jsonl"
        free = self.generate(model)
        self.assertEqual({row["finish_reason"] for row in free}, {"length"})

        def check(*ends):
            for whole, row in zip(free, self.generate(model), strict=True):
                ids = whole["output_ids"]
                at = next((i for i, token in enumerate(ids) if token in ends), None)
                self.assertEqual(row["output_ids"], ids if at is None else ids[: at + 1])
                self.assertEqual(row["finish_reason"], "length" if at is None else "stop")

        first, second = free[0]["output_ids"][3], free[-1]["output_ids"][5]
        self.edit(model / "config.json", eos_token_id=first)
        check(first)
        self.edit(model / "config.json", eos_token_id=[first, second])
        check(first, second)
        self.edit(model / "config.json", eos_token_id=None)
        check()
        self.edit(model / "generation_config.json", eos_token_id=[second])
        check(second)
        self.edit(model / "config.json", eos_token_id=first)
        check(first, second)
        self.edit(model / "generation_config.json", eos_token_id="x")
        done = harness.keel(
            "generate", "--model", model, "--input", self.prompts, "--output", self.folder / "none.jsonl"
        )
        self.assertEqual(done.returncode, 65)
        self.assertIn("generation_config.json: eos_token_id: expected an integer", done.stderr)

    def test_what_is_read_is_not_overwritten(self):
        rows, model = self.folder / "rows.jsonl", FIXTURES / "llama" / "hf"
        rows.write_text('{"input_ids": [1, 2], "error": "of an earlier run", "output_log_probs": [1]}\n')
        before, scores = rows.read_bytes(), self.folder / "scores.jsonl"
        for arguments in (
            ["generate", "--output", rows], ["score", "--output", rows],
            ["score", "--output", scores, "--logits", rows], ["score", "--output", scores, "--logits", scores],
        ):  # fmt: skip
            done = harness.keel(*arguments, "--model", model, "--input", rows)
            self.assertEqual(done.returncode, 64, done.stdout + done.stderr)
            self.assertIn("would overwrite", done.stderr)
            self.assertEqual(rows.read_bytes(), before)
            self.assertFalse(scores.exists())
        # To standard output rows alone, and of an earlier generation's results none.
        done = harness.keel("generate", "--model", model, "--input", rows, "--output", "-", "--max-new-tokens", 2)
        [row] = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(set(row), {"input_ids", "output_ids", "finish_reason"})
        self.assertIn("1 rows, 2 tokens generated", done.stderr)

    def test_what_was_generated_before_stays_until_all_is_done_anew(self):
        self.prompts, output = self.folder / "prompts.jsonl", self.folder / "generated.jsonl"
        model, rows = FIXTURES / "llama" / "hf", 300
        arguments = ["--model", model, "--input", self.prompts, "--output", output, "--max-new-tokens", 100]
        output.write_text("old\n")
        # A row that cannot be read ends the command before anything is written.
        self.prompts.write_text('{"input_ids": [1]}\n{"input_ids": [1000000]}\n')
        self.assertNotEqual(harness.keel("generate", *arguments).returncode, 0)
        self.assertEqual(output.read_text(), "old\n")
        # Killed while it generates: what is done can be read, in order, beside the old file.
        self.prompts.write_text("".join(json.dumps({"input_ids": [1, 2 + i % 9], "row": i}) + "\n" for i in range(rows)))
        partial = self.folder / "generated.jsonl.partial"
        command = [harness.KEEL, "generate", *map(str, arguments), "--max-num-seqs", "2"]
        with subprocess.Popen(command, env=harness.environment(), stdout=subprocess.DEVNULL) as process:
            self.wait_until(lambda: len(harness.read_jsonl(partial)) >= 3, "three rows", process)
            process.kill()
        done = harness.read_jsonl(partial)
        self.assertEqual([row["row"] for row in done], list(range(len(done))))
        self.assertLess(len(done), rows)
        self.assertEqual(output.read_text(), "old\n")
        # Left alone it takes the file's name, and the rows that were done are the same.
        self.assertEqual(harness.keel("generate", *arguments).returncode, 0)
        self.assertFalse(partial.exists())
        self.assertEqual(harness.read_jsonl(output)[: len(done)], done)
        self.assertEqual(len(harness.read_jsonl(output)), rows)

    def test_the_byte_tokenizers_end_is_no_end_of_a_model_without_one(self):
        # At this temperature every token is about as likely as any other.
        model = FIXTURES / "llama" / "hf"
        self.prompts = self.folder / "prompts.jsonl"
        self.prompts.write_text('{"input_ids": [1]}\n' * 20)
        rows = self.generate(model, "--temperature", 1000, tokens=100)
        self.assertEqual({len(row["output_ids"]) for row in rows}, {100})
        self.assertEqual({row["finish_reason"] for row in rows}, {"length"})
        self.assertTrue(any(257 in row["output_ids"][:-1] for row in rows))

    def test_an_export_names_the_end_of_its_training_texts(self):
        self.train(self.config("run", trainer__save_freq=1, trainer__total_training_steps=1))
        config = json.loads(
            (self.run_dir("run") / "global_step_1" / "actor" / "huggingface" / "config.json").read_text()
        )
        self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (256, 257))


class ImportExport(harness.Job):
    def test_transformers_sees_the_same_model(self):
        for name in [
            "mistral_window", "smollm3", "gemma2", "gemma3", "olmo3", "qwen3_moe", "qwen3_moe_balance", "mixtral",
            "qwen3_moe_stacked", "mixtral_stacked", "minimax_m2_stacked", "qwen3_5_moe_stacked", "phi3", "phi3_longrope", "granite", "seed_oss",
            "seed_oss_out_bias", "arcee", "qwen2_moe", "qwen2_moe_balance", "exaone4", "exaone4_whole", "gemma", "olmoe",
            "olmoe_balance", "glm", "glm4", "ernie4_5", "ministral", "cwm", "internlm3", "granite_hybrid", "granite_hybrid_nope", "hunyuan",
            "glm4_moe", "glm4_moe_plain", "dots1", "minimax_m2", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "deepseek_v3_plain", "glm4_moe_lite", "youtu", "gpt_oss", "gpt_oss_balance",
            "qwen3_next", "qwen3_5", "qwen3_5_moe",
            "cohere", "cohere2", "starcoder2", "starcoder2_plain", "stablelm", "stablelm_parallel", "nemotron", "gpt_neox", "gpt_neox_serial", "ministral3", "ministral3_window", "helium", "jais2", "vaultgemma", "solar_open", "gpt2", "gpt2_untied", "gpt_neo", "opt", "opt_bare", "gpt_bigcode", "gpt_bigcode_heads", "phi", "phi_tied", "gptj",
        ]:  # fmt: skip
            with self.subTest(model=name):
                run, out = self.folder / f"{name}_run", self.folder / f"{name}_hf"
                for arguments in (["import-hf", FIXTURES / name / "hf", run], ["export-hf", run / "global_step_0", out]):
                    done = harness.keel("ckpt", *arguments)
                    self.assertEqual(done.returncode, 0, done.stderr)
                written = FIXTURES / name.removesuffix("_stacked") / "hf"
                checked = oracles.run("check_hf_export.py", written, out)
                self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_transformers_reads_what_a_run_exports(self):
        """Its config.json is the run's own, and the weights come from shards of two stages."""
        for name in ["gemma2", "gemma3", "olmo3", "phi3_longrope", "granite", "qwen2_moe_balance", "exaone4", "gemma", "olmoe_balance", "glm4", "cwm", "internlm3", "granite_hybrid_nope", "hunyuan", "glm4_moe", "minimax_m2", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "gpt_oss", "qwen3_next", "qwen3_5", "cohere", "cohere2", "starcoder2", "stablelm_parallel", "nemotron", "gpt_neox", "ministral3", "vaultgemma", "solar_open", "gpt2", "gpt_neo", "opt", "gpt_bigcode"]:
            with self.subTest(model=name):
                rows = FIXTURES / name / "score.jsonl"
                self.data.write_text(rows.read_text())
                self.train(
                    self.config(
                        name, trainer__task="sft", trainer__total_training_steps=1, trainer__save_freq=1,
                        data__train_batch_size=4, data__max_length=64,
                        actor_rollout_ref__model={"path": str(FIXTURES / name / "hf"), "dtype": "float32"},
                        actor_rollout_ref__actor__megatron__pipeline_model_parallel_size=2,
                    ),
                    ranks=2,
                )  # fmt: skip
                self.transformers_reads(name, rows)

    def test_transformers_reads_models_that_begin_with_a_configuration(self):
        """Of which these families have a token for padding beyond this vocabulary, unless config.json says otherwise."""
        rows = FIXTURES / "llama" / "score.jsonl"
        self.data.write_text(rows.read_text())
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "max_position_embeddings": 64, "vocab_size": 300}  # fmt: skip
        for family in ("phi3", "smollm3"):
            with self.subTest(family=family):
                self.train(self.config(
                    family, trainer__task="sft", trainer__total_training_steps=1, trainer__save_freq=1, data__train_batch_size=4,
                    data__max_length=64, data__tokenizer="ids",
                    actor_rollout_ref__model={"config": {"model_type": family, **sizes}, "dtype": "float32"}))  # fmt: skip
                self.transformers_reads(family, rows)

    def transformers_reads(self, name, rows):
        out, scores, expected = self.folder / f"{name}_hf", self.folder / "scores.jsonl", self.folder / "expected.json"
        done = harness.keel("ckpt", "export-hf", self.run_dir(name) / "global_step_1", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = harness.keel("score", "--model", out, "--input", rows, "--output", scores)
        self.assertEqual(done.returncode, 0, done.stderr)
        scored = oracles.run("generate_reference.py", "score", out, rows, expected)
        self.assertEqual(scored.returncode, 0, scored.stderr)
        for want, have in zip(json.loads(expected.read_text()), harness.read_jsonl(scores), strict=True):
            for a, b in zip(want["logprobs"], have["log_probs"], strict=True):
                self.assertAlmostEqual(a, b, delta=2e-5)

    def test_fused_rows_that_do_not_divide_are_named(self):
        model = self.folder / "hf"
        shutil.copytree(FIXTURES / "phi3" / "hf", model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 1}))
        done = harness.keel("ckpt", "import-hf", model, self.folder / "run")
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn("model.layers.0.self_attn.qkv_proj.weight is [128, 64]", done.stderr)
        self.assertIn("4 : 1 : 1", done.stderr)
        self.assertFalse((self.folder / "run" / "global_step_0").exists())


class Train(harness.Job):
    """Whole data set at every step, so that only the mathematics can differ."""

    STEPS = 5
    # (tp, pp, dp), micro-batch
    LAYOUTS = [((1, 1, 1), 8), ((1, 1, 1), 2), ((2, 1, 1), 2), ((1, 2, 1), 2), ((1, 1, 2), 1), ((2, 2, 1), 4)]
    # Where nothing divides.
    UNEVEN = {"llama_9_heads": [((2, 1, 1), 2), ((4, 1, 1), 4)], "qwen2_14_heads": [((3, 1, 1), 4), ((4, 1, 1), 2)]}

    def reference(self, name):
        weights, record = self.folder / f"{name}.safetensors", self.folder / f"{name}.json"
        done = oracles.run("train_reference.py", FIXTURES / name / "hf", self.data, weights, record, "--steps", self.STEPS)
        self.assertEqual(done.returncode, 0, done.stderr)
        tensors = {n: array for n, _, _, array in checkpoint_files.read_file(weights)}
        return json.loads(record.read_text()), tensors

    def check(self, name, layout, micro_batch, expected, weights):
        tp, pp, dp = layout
        run = f"{name}_tp{tp}_pp{pp}_dp{dp}_mb{micro_batch}"
        optim = "actor_rollout_ref__actor__optim__"
        megatron = "actor_rollout_ref__actor__megatron__"
        config = self.config(
            run,
            trainer__task="sft",
            trainer__total_training_steps=self.STEPS,
            trainer__save_freq=self.STEPS,
            data__train_batch_size=16,
            data__micro_batch_size_per_gpu=micro_batch,
            data__max_length=64,
            actor_rollout_ref__model={"path": str(FIXTURES / name / "hf"), "dtype": "float32"},
            **{optim + "lr_decay_style": "constant", optim + "lr_warmup_steps": 0},
            **{megatron + "tensor_model_parallel_size": tp, megatron + "pipeline_model_parallel_size": pp},
        )
        self.train(config, ranks=tp * pp * dp)
        metrics = self.metrics(run)
        for step in range(1, self.STEPS + 1):
            self.assertAlmostEqual(metrics[step][harness.LOSS], expected["losses"][step - 1], delta=2e-5)
            self.assertAlmostEqual(metrics[step][harness.GRAD_NORM], expected["grad_norms"][step - 1], delta=2e-4)
        model = self.run_dir(run) / f"global_step_{self.STEPS}" / "actor" / "model"
        found = checkpoint_files.read_whole(model)
        self.assertEqual(found.keys(), weights.keys())
        for tensor, (_, bits) in found.items():
            distance = numpy.abs(bits.view("<f4") - weights[tensor].view("<f4")).max()
            self.assertLess(distance, 2e-4, tensor)

    def write_answers(self, vocabulary):
        """Rows of many lengths; of each only the last part is learnt, so micro-batches weigh unequally."""
        chance = random.Random(8)
        with open(self.data, "w", encoding="utf-8") as out:
            for _ in range(16):
                length, prompt = chance.randrange(12, 48), chance.randrange(1, 11)
                ids = [chance.randrange(vocabulary) for _ in range(length)]
                labels = [-100] * prompt + ids[prompt:]
                out.write(json.dumps({"input_ids": ids, "labels": labels}) + "\n")

    def test_layouts(self):
        self.check_all({"llama_3_layers": self.LAYOUTS, "qwen3_tied": self.LAYOUTS}, harness.MODEL["vocab_size"])

    def test_layouts_in_which_nothing_divides(self):
        self.check_all(self.UNEVEN, 259)

    def test_layouts_of_blocks_with_windows_and_norms_behind(self):
        self.check_all({"gemma2": [((2, 1, 1), 4)], "olmo3": [((1, 2, 1), 4)], "phi3_longrope": [((2, 2, 1), 4)]}, harness.MODEL["vocab_size"])

    def test_layouts_of_experts(self):
        layouts = {
            "qwen3_moe": [((2, 2, 1), 4), ((1, 1, 2), 2)], "mixtral": [((3, 1, 1), 16)],
            # With a balance loss, which is one of each micro-batch: the reference's is of each row.
            "mixtral_balance": [((2, 1, 1), 1), ((1, 2, 2), 1)],
        }  # fmt: skip
        self.check_all(layouts, harness.MODEL["vocab_size"])

    def check_all(self, layouts, vocabulary):
        self.write_answers(vocabulary)
        for name in layouts:
            expected, weights = self.reference(name)
            for layout, micro_batch in layouts[name]:
                with self.subTest(model=name, layout=layout, micro_batch=micro_batch):
                    self.check(name, layout, micro_batch, expected, weights)


if __name__ == "__main__":
    unittest.main()
