"""The text part of models of texts and images: `keel score`, `generate`, `train`, `serve`, `rollout` and the exports of each
whole that Keel knows, as it was published and as transformers 5 writes it, against the whole model in transformers."""

import json
import struct
import time
import unittest
import urllib.request

import harness
import safetensors.torch
import torch
import transformers
import whole_models

LENGTHS = [1, 9, 33, 70]
NEW_TOKENS = 12
NEAR = 1e-5
NEAR_WITH_STATES = 5e-5  # of small norms, that magnify rounding
INVALID = 65


def setUpModule():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in whole_models.WHOLES:
        model = whole_models.build(name)
        for published in (True, False):
            whole_models.save(name, model, folder_of(name, published), published)


def folder_of(name, published=True):
    return harness.shared_folder() / name / ("published" if published else "newer")


@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids])).logits[0]


@torch.no_grad()
def text_of(model, ids):
    """Greedy tokens of forwards without a cache, up to where the best two are as good as one."""
    made = []
    for _ in range(NEW_TOKENS):
        best = logits_of(model, ids + made)[-1].topk(2)
        if best.values[0] - best.values[1] < 1e-3:
            break
        made.append(best.indices[0].item())
    return made


def write_empty(path, model, tied):
    """The file of a model on the meta device, as a llava has it, with no values: a hole of its size. Returns its parameters."""
    header, at, count = {}, 0, 0
    for name, parameter in model.named_parameters():
        if tied and name == "lm_head.weight":
            continue
        size = parameter.numel() * 2
        header["language_model." + name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [at, at + size]}
        at, count = at + size, count + parameter.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return count


def text_model_of(config):
    """The Qwen2 or Qwen3 that the text part of a Qwen-VL is, by its configuration."""
    keys = config.to_dict()
    rope = {key: value for key, value in keys.pop("rope_parameters").items() if not key.startswith("mrope")}
    return transformers.AutoConfig.for_model(keys.pop("model_type").split("_")[0], **keys, rope_parameters=rope)


def near(name):
    return NEAR_WITH_STATES if name.startswith("qwen3_5") else NEAR


class TextParts(harness.Job):
    def write_rows(self, name, rows):
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in rows))
        return path

    def keel(self, *arguments):
        done = harness.keel(*arguments)
        self.assertEqual(done.returncode, 0, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done

    def check_said(self, said, folder, name):
        """How many tensors of which parts are not loaded, counted in the file itself."""
        whole = whole_models.WHOLES[name]
        counts = {}
        with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
            for tensor in file.keys():
                if not whole_models.is_text(tensor):
                    part = tensor.removeprefix("model.").split(".")[0]
                    counts[part] = counts.get(part, 0) + 1
                elif tensor.startswith("mtp."):
                    self.assertIn("what predicts further tokens (mtp.* 1) is neither computed nor trained", said)
        self.assertGreater(counts.get("vision_tower", counts.get("visual")), 10)
        parts = ", ".join(f"{part} {count}" for part, count in sorted(counts.items()))
        self.assertIn(
            f"{sum(counts.values())} tensors of the vision part are not loaded ({parts}): of this {whole.model_type} the text "
            f"part is read, a {whole.text_class}, and what is saved or exported is that part alone", said)  # fmt: skip

    def test_scores_and_texts_are_the_whole_models(self):
        for name in whole_models.WHOLES:
            rows = whole_models.rows(name, LENGTHS)
            file = self.write_rows("rows", rows)
            for published in (True, False):
                folder = folder_of(name, published)
                with self.subTest(model=name, published=published):
                    model = whole_models.load(folder)
                    out, logits = self.folder / "out.jsonl", self.folder / "logits.safetensors"
                    done = self.keel("score", "--model", folder, "--input", file, "--output", out, "--logits", logits)
                    self.check_said(done.stderr, folder, name)
                    self.assertEqual(done.stderr.count("not loaded"), 1, done.stderr)
                    found = safetensors.torch.load_file(logits)
                    for row, ids in enumerate(rows):
                        self.assertLess((found[f"logits.{row}"] - logits_of(model, ids)).abs().max().item(), near(name))
                    for tp in (1, 2):
                        self.keel("generate", "--model", folder, "--input", file, "--output", out, "--max-new-tokens", NEW_TOKENS,
                                  "--temperature", 0, "--tp", tp)  # fmt: skip
                        made = [row["output_ids"] for row in harness.read_jsonl(out)]
                        wanted = [text_of(model, ids) for ids in rows]
                        self.assertEqual([m[: len(w)] for m, w in zip(made, wanted, strict=True)], wanted)
                        self.assertGreater(sum(map(len, wanted)), 3 * NEW_TOKENS)

    def train(self, config, *overrides, ranks=1):
        return self.keel(*self.command(config, ranks, *overrides))

    def test_a_step_of_training_and_its_export(self):
        for name in whole_models.WHOLES:
            with self.subTest(model=name):
                rows = whole_models.rows(name + " to train", [17, 32, 9, 24])
                folder = folder_of(name)
                run = f"run_{name}"
                config = self.config(
                    run, trainer__total_training_steps=1, trainer__save_freq=1, trainer__task="sft",
                    data__train_files=[str(self.write_rows("train", rows))], data__tokenizer="ids", data__max_length=32,
                    actor_rollout_ref__model={"path": str(folder), "dtype": "float32"},
                    actor_rollout_ref__actor__optim={"lr": 1e-3, "clip_grad": 1.0, "weight_decay": 0.0,
                                                     "lr_decay_style": "constant", "lr_warmup_steps": 0},
                )  # fmt: skip
                done = self.train(config)
                self.check_said(done.stdout + done.stderr, folder, name)
                step = self.metrics(run)[1]
                # The whole model's loss, over the tokens of all rows, and the gradient of its text part.
                model = whole_models.load(folder)
                losses = [torch.nn.functional.cross_entropy(model(input_ids=torch.tensor([ids])).logits[0, :-1],
                                                            torch.tensor(ids[1:]), reduction="sum") for ids in rows]  # fmt: skip
                loss = sum(losses) / sum(len(ids) - 1 for ids in rows)
                loss.backward()
                norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
                self.assertAlmostEqual(step[harness.LOSS], loss.item(), delta=1e-5)
                self.assertAlmostEqual(step[harness.GRAD_NORM] / norm, 1, delta=1e-4)
                self.check_export(name, self.run_dir(run) / "global_step_1", trained=True)

    def check_export(self, name, step, trained):
        """A folder of the text part alone, which transformers reads as its text model."""
        whole = whole_models.WHOLES[name]
        out = self.folder / f"export_{name}_{trained}"
        self.keel("ckpt", "export-hf", step, out)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["model_type"], config["architectures"]), (whole_models.TEXT_TYPES[whole.text_class], [whole.text_class]))
        self.assertFalse({"text_config", "vision_config", "image_token_index"} & set(config))
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            out, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        self.assertEqual(type(model).__name__, whole.text_class)
        self.assertFalse(any(loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), loading)
        rows = whole_models.rows(name, LENGTHS)
        # Keel's logits of the step, or the whole model's where nothing was learnt.
        if not trained:
            reference = whole_models.load(folder_of(name))
            weights = {parameter_name.replace("model.language_model.", "model."): p
                       for parameter_name, p in reference.named_parameters() if whole_models.is_text(parameter_name)}  # fmt: skip
            found = dict(model.named_parameters())
            self.assertEqual(set(found), set(weights))
            self.assertTrue(all(torch.equal(found[key], weights[key]) for key in found))
            for ids in rows:
                self.assertLess((logits_of(model.eval(), ids) - logits_of(reference, ids)).abs().max().item(), near(name))
            return
        logits = self.folder / "trained.safetensors"
        done = self.keel("score", "--model", step, "--input", self.write_rows("rows", rows), "--output", self.folder / "o.jsonl",
                         "--logits", logits)  # fmt: skip
        self.assertNotIn("not loaded", done.stderr)  # a checkpoint has the text part alone
        found = safetensors.torch.load_file(logits)
        for row, ids in enumerate(rows):
            self.assertLess((found[f"logits.{row}"] - logits_of(model.eval(), ids)).abs().max().item(), near(name))

    def test_adapters_of_the_text_part_are_merged_and_not_exported(self):
        """PEFT would find none of them in the whole model, whose modules have other names."""
        folder = folder_of("gemma3")
        rows = whole_models.rows("adapters", [17, 9])
        self.train(self.config(
            "adapters", trainer__total_training_steps=1, trainer__save_freq=1, trainer__task="sft",
            data__train_files=[str(self.write_rows("train", rows))], data__tokenizer="ids", data__max_length=32,
            actor_rollout_ref__model={"path": str(folder), "dtype": "float32", "lora_rank": 2}))  # fmt: skip
        step = self.run_dir("adapters") / "global_step_1"
        refused = harness.keel("ckpt", "export-hf", step, self.folder / "adapters_hf")
        self.assertEqual(refused.returncode, 65, refused.stderr)
        self.assertIn("a model of texts and images, where PEFT would find none of them", refused.stderr)
        self.assertFalse((self.folder / "adapters_hf").exists())
        self.assertEqual(harness.keel("ckpt", "merge-adapter", step, "--out", self.folder / "merged_hf").returncode, 0)

    def test_an_import_is_of_the_text_part(self):
        for name in whole_models.WHOLES:
            for published in (True, False):
                with self.subTest(model=name, published=published):
                    folder, run = folder_of(name, published), self.folder / f"import_{name}_{published}"
                    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Siglip"}')
                    done = self.keel("ckpt", "import-hf", folder, run)
                    self.check_said(done.stdout, folder, name)
                    kept = run / "global_step_0" / "actor" / "huggingface"
                    self.assertFalse((kept / "preprocessor_config.json").exists())
                    if published:
                        self.check_export(name, run / "global_step_0", trained=False)

    def test_responses_are_learnt_from(self):
        """RL from the folder as it was published, of one with a critic of it, too: the rollout engine's log-probabilities are
        the trainer's."""
        for name, critic in (("gemma3", False), ("mistral3", True)):
            with self.subTest(model=name):
                prompts = self.folder / "prompts.jsonl"
                rows = [{"prompt": f"{i}=", "answer": str(i), "data_source": "copy"} for i in range(10, 26)]
                prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
                run = f"rl_{name}"
                folder = self.with_ends(folder_of(name))
                config = self.config(
                    run, trainer__task="rl", trainer__total_training_steps=2, data__train_files=[str(prompts)],
                    data__max_prompt_length=8, data__max_response_length=6, data__train_batch_size=4,
                    actor_rollout_ref__rollout__n=4, actor_rollout_ref__model={"path": str(folder), "dtype": "float32"},
                    actor_rollout_ref__rollout__calculate_log_probs=True,
                    reward__type="exact", algorithm__adv_estimator="gae" if critic else "grpo",
                    **({"critic__model__path": str(folder)} if critic else {}),
                )  # fmt: skip
                done = self.train(config, ranks=2)
                self.check_said(done.stdout + done.stderr, folder, name)
                steps = [r["data"] for r in harness.read_jsonl(self.run_dir(run) / "metrics.jsonl")
                         if "training/global_step" in r["data"]]  # fmt: skip
                self.assertEqual(len(steps), 2)
                for data in steps:
                    self.assertLess(data["training/rollout_log_probs_diff_max"], 1e-4)

    def with_ends(self, folder):
        """The folder with the byte tokenizer's ids for the beginning and the end of a text."""
        config = json.loads((folder / "config.json").read_text())
        config |= {"bos_token_id": 256, "eos_token_id": 257}
        config["text_config"]["keel_tokenizer"] = "bytes"
        copied = self.folder / f"{folder.parent.name}_with_ends"
        copied.mkdir()
        (copied / "model.safetensors").symlink_to(folder / "model.safetensors")
        (copied / "config.json").write_text(json.dumps(config))
        return copied

    def test_serve_answers_with_it(self):
        folder, port = folder_of("gemma3"), harness.free_port()
        model = whole_models.load(folder)
        ids = whole_models.rows("served", [20])[0]
        server = self.start_command("serve", folder, "--port", port)

        def asked():
            try:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/v1/completions", headers={"Content-Type": "application/json"},
                    data=json.dumps({"prompt": ids, "max_tokens": 6, "temperature": 0, "logprobs": 0}).encode())  # fmt: skip
                return json.loads(urllib.request.urlopen(request, timeout=60).read())
            except OSError:
                return None

        answer = []
        self.wait_until(lambda: answer.append(asked()) or answer[-1] is not None or time.sleep(0.2), "an answer", server)
        found = answer[-1]["choices"][0]["logprobs"]["token_logprobs"]
        wanted = text_of(model, ids)[:6]
        logprobs = logits_of(model, ids + wanted).log_softmax(-1)
        for at, token in enumerate(wanted):
            self.assertAlmostEqual(found[at], logprobs[len(ids) - 1 + at, token].item(), delta=2e-5)
        self.assertIn("not loaded", self.log())

    def test_images_in_messages_are_refused_and_parts_of_text_are_not(self):
        template = ("{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
                    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
                    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}")  # fmt: skip
        folder = self.with_ends(folder_of("gemma3"))
        (folder / "chat_template.jinja").write_text(template)
        plain = [{"role": "user", "content": "hi"}]
        parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
        image = [{"role": "user", "content": [{"type": "image", "url": "cat.png"}, {"type": "text", "text": "hi"}]}]
        rows, out = self.folder / "chats.jsonl", self.folder / "out.jsonl"
        command = ("generate", "--model", folder, "--input", rows, "--output", out, "--max-new-tokens", 4, "--temperature", 0,
                   "--log-probs")  # fmt: skip
        rows.write_text("".join(json.dumps({"messages": m}) + "\n" for m in (plain, parts)))
        self.keel(*command)
        a, b = harness.read_jsonl(out)
        self.assertEqual((a["output_ids"], a["output_log_probs"]), (b["output_ids"], b["output_log_probs"]))
        for row, part in (({"messages": image}, "a part of type image"), ({"messages": [{**plain[0], "images": ["cat.png"]}]}, "images:"),
                          ({"messages": plain, "image": "cat.png"}, "image:"), ({"text": "a", "videos": ["a"]}, "videos:"),
                          ({"input_ids": [1], "pixel_values": [[0.5]]}, "pixel_values:")):  # fmt: skip
            rows.write_text(json.dumps(row) + "\n")
            out.unlink(missing_ok=True)
            done = harness.keel(*command)
            self.assertEqual(done.returncode, INVALID, done.stderr)
            self.assertIn(part, done.stderr)


class WhatIsRefused(harness.Job):
    def changed(self, name, tensors=None, config=None):
        folder = self.folder / "changed"
        folder.mkdir(exist_ok=True)
        source = folder_of(name)
        content = json.loads((source / "config.json").read_text())
        if config is not None:
            config(content)
        (folder / "config.json").write_text(json.dumps(content))
        found = safetensors.torch.load_file(source / "model.safetensors")
        if tensors is not None:
            tensors(found)
        safetensors.torch.save_file(found, folder / "model.safetensors", {"format": "pt"})
        rows = self.folder / "rows.jsonl"
        rows.write_text('{"input_ids": [1, 2, 3]}\n')
        return harness.keel("score", "--model", folder, "--input", rows, "--output", self.folder / "scores.jsonl")

    def test_every_tensor_belongs_to_a_part(self):
        for change, said in (
            (lambda t: t.update({"audio_tower.weight": torch.zeros(2)}), "no place for (1): audio_tower.weight"),
            (lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(2)}),
             "no place for (1): model.layers.0.mlp.up_proj.weight"),
            (lambda t: t.pop("language_model.model.norm.weight"), "missing tensors (1): language_model.model.norm.weight"),
            (lambda t: t.update({"language_model.model.norm.weight": torch.zeros(3)}),
             "language_model.model.norm.weight is [3], expected [64]"),
            (lambda t: t.update({"language_model.model.norm.bias": torch.zeros(64)}),
             "no place for (1): language_model.model.norm.bias"),
        ):  # fmt: skip
            with self.subTest(said):
                done = self.changed("llava", tensors=change)
                self.assertEqual(done.returncode, INVALID, done.stderr)
                self.assertIn(said, done.stderr)

    def test_a_head_of_other_values_than_those_that_it_is_said_to_be(self):
        # The file says it itself, unlike published ones, in which the head that is there counts.
        done = self.changed("mistral3", config=lambda c: c.update(tie_word_embeddings=True))
        self.assertEqual(done.returncode, INVALID, done.stderr)
        self.assertIn("language_model.lm_head.weight differs from language_model.model.embed_tokens.weight", done.stderr)

    def test_keys_of_the_file(self):
        for name, change, said in (
            ("gemma3", lambda c: c["text_config"].update(final_logit_softcapping=30.0), "text_config: final_logit_softcapping: 30.0"),
            ("gemma3", lambda c: c["text_config"].update(use_bidirectional_attention=True),
             "text_config: use_bidirectional_attention: true is not supported"),
            ("gemma3", lambda c: c.pop("text_config"), "text_config: expected a map"),
            ("llava", lambda c: c["text_config"].update(model_type="cohere"), "as the text part of a llava, found \"cohere\""),
            ("llava", lambda c: c.update(quantization_config={"quant_method": "awq"}), "quantization_config"),
            ("llava", lambda c: c.update(model_type="qwen2_5_omni"), "found \"qwen2_5_omni\", whose text_config is of model_type llama"),
            ("llava", lambda c: c.update(model_type="qwen2_5_vl"),
             "text_config: model_type: expected qwen2 in a qwen2_5_vl, found \"llama\""),
            ("qwen2_5_vl", lambda c: c.update(rope_scaling={"type": "helix", "mrope_section": [2, 3, 3]}), "\"helix\" is not supported"),
        ):  # fmt: skip
            with self.subTest(said):
                done = self.changed(name, config=change)
                self.assertEqual(done.returncode, INVALID, done.stderr)
                self.assertIn(said, done.stderr)


class WhatTransformersDoes(unittest.TestCase):
    """What the reading of text parts rests on."""

    @torch.no_grad()
    def test_a_text_without_images_is_causal_in_gemma_3(self):
        model = whole_models.load(folder_of("gemma3"))
        ids = whole_models.rows("causal", [40])[0]
        changed = ids[:30] + [(token + 1) % 256 for token in ids[30:]]
        for training in (False, True):
            model.train(training)
            plain = logits_of(model, ids)
            # No token sees one behind it, and to say that all are of a text changes nothing.
            self.assertTrue(torch.equal(logits_of(model, changed)[:30], plain[:30]))
            types = torch.zeros(1, len(ids), dtype=torch.long)
            self.assertTrue(torch.equal(model(input_ids=torch.tensor([ids]), token_type_ids=types).logits[0], plain))
            # That of an image's tokens does: the test sees it.
            types[0, 10:20] = 1
            seen = model(input_ids=torch.tensor([ids]), token_type_ids=types).logits[0]
            self.assertGreater((seen - plain).abs().max().item(), 1e-3)


class WhatTextConfigsLeaveOut(harness.Job):
    def test_is_transformers_default(self):
        """text_config says its model_type alone: Keel wants every tensor of transformers' default model, and no other."""
        for text_type, whole, positions in (("llama", "llava", 2048), ("mistral", "mistral3", 131072), ("ministral3", "mistral3", 262144), ("qwen2", "llava_onevision", 32768),
                                            ("qwen3", "internvl", 32768), ("gemma3_text", "gemma3", 131072),
                                            ("qwen2_vl_text", "qwen2_vl", 32768), ("qwen2_5_vl_text", "qwen2_5_vl", 32768),
                                            ("qwen3_vl_text", "qwen3_vl", 128000)):  # fmt: skip
            with self.subTest(text_type):
                config = transformers.AutoConfig.for_model(text_type)
                self.assertEqual(config.max_position_embeddings, positions)
                if text_type.startswith("qwen") and text_type.endswith("_text"):  # no model alone; the text model that it is
                    config = text_model_of(config)
                with torch.device("meta"):
                    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
                folder = self.folder / text_type
                folder.mkdir()
                said = {"model_type": whole, "text_config": {"model_type": text_type}}
                if not config.tie_word_embeddings:
                    said["tie_word_embeddings"] = False
                (folder / "config.json").write_text(json.dumps(said))
                count = write_empty(folder / "model.safetensors", model, config.tie_word_embeddings)
                train = self.config(
                    text_type, data__train_files=[str(self.write_ids())], data__tokenizer="ids", data__max_length=positions,
                    data__truncation="right", actor_rollout_ref__model={"path": str(folder)},
                )  # fmt: skip
                done = harness.keel("config", "validate", train)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"a model of {count} parameters", done.stdout)
                done = harness.keel("config", "validate", train, f"data.max_length={positions + 1}")
                self.assertIn(f"{positions + 1} positions, the model's max_position_embeddings is {positions}", done.stderr)

    def write_ids(self):
        path = self.folder / "ids.jsonl"
        path.write_text(json.dumps({"input_ids": list(range(40))}) + "\n")
        return path


if __name__ == "__main__":
    unittest.main()
