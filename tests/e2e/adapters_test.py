"""Adapters (LoRA) beside a model that stays as it is: against PyTorch and PEFT, under every layout, through kills, exports and RL."""

import json
import os
import pathlib
import random
import shutil
import sys
import unittest

import numpy

import checkpoint_files
import harness
import pypi
import rl_test
import split_test

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "oracles"))
import warm  # noqa: E402: of tests/oracles

FIXTURES = pathlib.Path(os.environ["KEEL_FIXTURES"])
PEFT = ["peft==0.18.0", "accelerate==1.12.0", "psutil==7.1.3"]
MODEL, MEGATRON = "actor_rollout_ref__model__", "actor_rollout_ref__actor__megatron__"


def setUpModule():
    global oracles
    oracles = unittest.enterModuleContext(warm.Oracles(harness.environment()))


class Adapters(harness.Job):
    STEPS = 4

    def oracle(self, *arguments):
        done = oracles.run("adapter_reference.py", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)

    def draw(self, model, rank=3, alpha=7, *more):
        folder = self.folder / f"{model}_adapter"
        self.oracle("draw", FIXTURES / model / "hf", folder, rank, alpha, *more)
        return folder

    def write_answers(self, vocabulary=263):
        """Rows of many lengths; of each only the last part is learnt."""
        chance = random.Random(8)
        with open(self.data, "w", encoding="utf-8") as out:
            for _ in range(8):
                length, prompt = chance.randrange(12, 40), chance.randrange(1, 11)
                ids = [chance.randrange(vocabulary) for _ in range(length)]
                out.write(json.dumps({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}) + "\n")

    def sft(self, run, model, layout=(1, 1, 1), **more):
        tp, pp, dp = layout
        optim = "actor_rollout_ref__actor__optim__"
        return self.config(
            run,
            **{
                "trainer__task": "sft", "trainer__total_training_steps": self.STEPS, "trainer__save_freq": 2,
                "data__train_batch_size": 8, "data__micro_batch_size_per_gpu": 2, "data__max_length": 64,
                "actor_rollout_ref__model": {"path": str(FIXTURES / model / "hf"), "dtype": "float32"},
                optim + "lr_decay_style": "constant", optim + "lr_warmup_steps": 0,
                MEGATRON + "tensor_model_parallel_size": tp, MEGATRON + "pipeline_model_parallel_size": pp,
                **more,
            },
        )  # fmt: skip


class Training(Adapters):
    # (tp, pp, dp), and keys
    LAYOUTS = [
        ((1, 1, 1), {}),
        ((2, 1, 1), {}),
        ((2, 1, 1), {MEGATRON + "sequence_parallel": True, MODEL + "enable_gradient_checkpointing": True}),
        ((1, 2, 1), {MODEL + "enable_gradient_checkpointing": True}),
        ((1, 1, 2), {}),
        ((2, 2, 1), {MEGATRON + "param_offload": True, MEGATRON + "optimizer_offload": True}),
    ]
    MODELS = {"llama_3_layers": LAYOUTS, "qwen2_14_heads": [((4, 1, 1), {})], "qwen2": LAYOUTS[2:4], "gemma2": LAYOUTS[1:2],
              "arcee": LAYOUTS[1:2], "qwen2_moe_balance": [((2, 1, 1), {"data__micro_batch_size_per_gpu": 1})], "deepseek_v2": LAYOUTS[1:2], "gpt_oss": LAYOUTS[1:2],
              "qwen3_next": LAYOUTS[1:2], "qwen3_5": LAYOUTS[1:2], "cohere": LAYOUTS[2:3], "gpt_neox": LAYOUTS[1:2],
              "gpt2": [LAYOUTS[2], LAYOUTS[5]]}  # fmt: skip

    def test_steps_are_those_of_pytorch_under_every_layout(self):
        for model, layouts in self.MODELS.items():
            adapter = self.draw(model)
            self.write_answers(json.loads((FIXTURES / model / "hf" / "config.json").read_text())["vocab_size"])
            weights, record = self.folder / f"{model}.safetensors", self.folder / f"{model}.json"
            self.oracle("train", FIXTURES / model / "hf", adapter, self.data, weights, record, "--steps", self.STEPS)
            wanted = {name: bits.view("<f4") for name, _, _, bits in checkpoint_files.read_file(weights)}
            record = json.loads(record.read_text())
            for number, (layout, more) in enumerate(layouts):
                with self.subTest(model=model, layout=layout, **more):
                    run = f"{model}_{number}"
                    config = self.sft(run, model, layout, **{MODEL + "lora_adapter_path": str(adapter)}, **more)
                    self.train(config, ranks=layout[0] * layout[1] * layout[2])
                    metrics = self.metrics(run)
                    for step in range(1, self.STEPS + 1):
                        self.assertAlmostEqual(metrics[step][harness.LOSS], record["losses"][step - 1], delta=2e-5)
                        self.assertAlmostEqual(metrics[step][harness.GRAD_NORM], record["grad_norms"][step - 1], delta=2e-4)
                    found = checkpoint_files.read_whole(self.run_dir(run) / f"global_step_{self.STEPS}" / "actor" / "model")
                    self.assertEqual(found.keys(), wanted.keys())
                    for name, (_, bits) in found.items():
                        self.assertLess(numpy.abs(bits.view("<f4") - wanted[name]).max(), 2e-4, name)


class Files(Adapters):
    """One model with adapters: as a directory of PEFT's, as a step of a run, as an export of it, and merged."""

    def said_by(self, model, folder, *more):
        """Log-probabilities and greedy tokens."""
        scores, tokens = self.folder / "scores.jsonl", self.folder / "tokens.jsonl"
        for arguments in (["score", "--input", folder / "score.jsonl", "--output", scores],
                          ["generate", "--input", folder / "prompts.jsonl", "--output", tokens, "--max-new-tokens", 16]):  # fmt: skip
            done = harness.keel(*arguments, "--model", model, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
        return ([row["log_probs"] for row in harness.read_jsonl(scores)], [row["output_ids"] for row in harness.read_jsonl(tokens)])

    def near(self, found, wanted, delta):
        self.assertLess(max(abs(a - b) for x, y in zip(found, wanted, strict=True) for a, b in zip(x, y, strict=True)), delta)

    def test_every_form_says_what_pytorch_does(self):
        for model, tp in (("llama_3_layers", 1), ("qwen2_14_heads", 2), ("gemma2", 1), ("phi3", 2), ("qwen3_next", 2), ("gpt_neox", 2), ("gpt2", 2)):
            with self.subTest(model=model):
                folder, wanted = FIXTURES / model, self.folder / f"{model}.json"
                fused = model == "phi3"  # whose files have none of the modules by themselves
                adapter = self.draw(model, 3, 7, *(["--targets", "o_proj,down_proj"] if fused else []))
                said = {}
                for what, rows in (("score", "score.jsonl"), ("generate", "prompts.jsonl")):
                    self.oracle(what, folder / "hf", adapter, folder / rows, wanted)
                    said[what] = json.loads(wanted.read_text())
                log_probs = [row["logprobs"] for row in said["score"]]
                tokens = [row["output_ids"] for row in said["generate"]]
                # A run that changes nothing, and what is made of its step.
                (self.data).write_text((folder / "score.jsonl").read_text())
                self.train(self.sft(model, model, data__train_batch_size=4, trainer__total_training_steps=1, trainer__save_freq=1,
                                    actor_rollout_ref__actor__optim__lr=0, **{MODEL + "lora_adapter_path": str(adapter)}))  # fmt: skip
                step = self.run_dir(model) / "global_step_1"
                exported, merged = self.folder / f"{model}_exported", self.folder / f"{model}_merged"
                for command in (["export-hf", step, exported], ["merge-adapter", step, "--out", merged]):
                    done = harness.keel("ckpt", *command)
                    self.assertEqual(done.returncode, 0, done.stderr)
                self.assertFalse((exported / "config.json").exists())
                for form in (adapter, step, exported, merged):
                    found = self.said_by(form, folder, "--tp", tp)
                    self.near(found[0], log_probs, 3e-5)
                    self.assertEqual(found[1], tokens, form)
                # Merged by its own numbers, in whatever way the base's files have them.
                again = self.folder / f"{model}_again"
                done = harness.keel("ckpt", "merge-adapter", exported, "--base", folder / "hf", "--out", again)
                self.assertEqual(done.returncode, 0, done.stderr)
                for file in merged.iterdir():
                    self.assertEqual(file.read_bytes(), (again / file.name).read_bytes(), file.name)

    def test_tensors_of_other_modules_than_the_configuration_names_are_refused(self):
        folder = FIXTURES / "llama_3_layers"
        for targets, named, what in (("q_proj,v_proj", ["q_proj"], "leaves out modules whose tensors"),
                                     ("q_proj", ["q_proj", "v_proj"], "names modules whose tensors")):  # fmt: skip
            adapter = self.draw("llama_3_layers", 2, 4, "--targets", targets)
            config = json.loads((adapter / "adapter_config.json").read_text())
            (adapter / "adapter_config.json").write_text(json.dumps({**config, "target_modules": named}))
            done = harness.keel("score", "--model", adapter, "--input", folder / "score.jsonl", "--output", self.folder / "s.jsonl")
            self.assertEqual(done.returncode, 65, done.stderr)
            self.assertIn(what, done.stderr)
            self.assertIn("model.layers.0.self_attn.v_proj; there are 3 of them", done.stderr)
            # An expression is not compared: what there is decides.
            (adapter / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ".*_proj"}))
            done = harness.keel("score", "--model", adapter, "--input", folder / "score.jsonl", "--output", self.folder / f"{len(named)}.jsonl")
            self.assertEqual(done.returncode, 0, done.stderr)
            shutil.rmtree(adapter)

    def test_exported_adapters_compute_in_the_type_that_they_were_trained_in(self):
        """Whatever type the base's files have: here float32."""
        folder, exported = FIXTURES / "llama_3_layers", self.folder / "exported"
        self.data.write_text((folder / "score.jsonl").read_text())
        self.train(self.sft("halves", "llama_3_layers", data__train_batch_size=4, trainer__total_training_steps=2,
                            actor_rollout_ref__model={"path": str(folder / "hf"), "dtype": "bfloat16", "lora_rank": 2}))  # fmt: skip
        step = self.run_dir("halves") / "global_step_2"
        done = harness.keel("ckpt", "export-hf", step, exported)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.said_by(exported, folder), self.said_by(step, folder))

    def test_adapters_of_some_layers(self):
        folder = FIXTURES / "llama_3_layers"
        base = self.folder / "base"
        shutil.copytree(folder / "hf", base)
        (base / "adapter_config.json").write_text("{}")  # PEFT may have saved something there, too
        self.data.write_text((folder / "score.jsonl").read_text())
        self.train(self.sft("some", "llama_3_layers", data__train_batch_size=4, trainer__total_training_steps=2, actor_rollout_ref__model={
            "path": str(base), "dtype": "float32", "lora_rank": 2, "target_modules": ["layers.1.self_attn.q_proj", "down_proj"]}))  # fmt: skip
        step, merged, exported = self.run_dir("some") / "global_step_2", self.folder / "merged", self.folder / "exported"
        for command in (["export-hf", step, exported], ["merge-adapter", step, "--out", merged]):
            done = harness.keel("ckpt", *command)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((merged / "adapter_config.json").exists())
        wanted = self.said_by(step, folder)
        for form in (exported, merged):
            found = self.said_by(form, folder)
            self.near(found[0], wanted[0], 3e-5)

    def test_peft_reads_what_is_exported_and_merges_it_alike(self):
        packages = [pypi.unpacked(requirement) for requirement in PEFT]
        if None in packages:
            self.skipTest("needs peft from PyPI")
        for model, dtype in (("qwen3", "float32"), ("llama_tied", "bfloat16"), ("qwen2_moe", "float32"), ("gpt_neox", "float32"), ("gpt2", "float32")):
            with self.subTest(model=model):
                folder = FIXTURES / model
                adapter = self.draw(model, 4, 6)
                self.data.write_text((folder / "score.jsonl").read_text())
                self.train(self.sft(model, model, data__train_batch_size=4, trainer__total_training_steps=1, trainer__save_freq=1,
                                    actor_rollout_ref__model={"path": str(folder / "hf"), "dtype": dtype, "lora_adapter_path": str(adapter)}))  # fmt: skip
                exported, merged = self.folder / f"{model}_exported", self.folder / f"{model}_merged"
                for command in (["export-hf", self.run_dir(model) / "global_step_1", exported], ["merge-adapter", exported, "--out", merged]):
                    done = harness.keel("ckpt", *command)
                    self.assertEqual(done.returncode, 0, done.stderr)
                done = oracles.run("check_peft.py", folder / "hf", exported, merged, folder / "score.jsonl", self.folder / "peft.json", *packages)
                self.assertEqual(done.returncode, 0, done.stderr)
                if dtype == "float32":
                    self.near(self.said_by(exported, folder)[0], json.loads((self.folder / "peft.json").read_text()), 3e-5)


class Resume(Adapters):
    def changes(self, **more):
        return {MODEL + "lora_rank": 4, MODEL + "lora_alpha": 8, MODEL + "target_modules": ["q_proj", "v_proj", "down_proj"],
                "trainer__total_training_steps": 6, "trainer__save_freq": 2, **more}  # fmt: skip

    def state(self, run, step=6):
        return checkpoint_files.digests(self.run_dir(run) / f"global_step_{step}")

    def test_killed_anywhere_it_is_the_run_that_was_not(self):
        self.write_answers()
        layout = {MEGATRON + "tensor_model_parallel_size": 2, MEGATRON + "optimizer_offload": True}
        model = {"path": str(FIXTURES / "llama_3_layers" / "hf"), "dtype": "bfloat16", "lora_rank": 4, "target_modules": ["q_proj", "v_proj"]}
        changes = {**self.changes(actor_rollout_ref__model=model), **layout}
        for key in [key for key in changes if key.startswith(MODEL)]:
            del changes[key]
        self.train(self.sft("straight", "llama_3_layers", **changes), ranks=2)
        for point in ("step.update:1:4:kill", "save.write:0:2:kill", "commit.renamed:0:2:kill"):
            with self.subTest(killed_at=point):
                config = self.sft("killed_" + point.split(":")[0], "llama_3_layers", **changes)
                os.environ["KEEL_FAILPOINT"] = point
                self.addCleanup(os.environ.pop, "KEEL_FAILPOINT", None)
                self.assertNotEqual(harness.keel(*self.command(config, 2)).returncode, 0)
                del os.environ["KEEL_FAILPOINT"]
                self.train(config, ranks=2)
                self.assertEqual(self.state("killed_" + point.split(":")[0]), self.state("straight"))
        # What is saved is the adapters', and goes on under any layout.
        tensors = checkpoint_files.read_whole(self.run_dir("straight") / "global_step_6" / "actor" / "model")
        self.assertEqual({name.rpartition(".lora_")[0].rpartition(".")[2] for name in tensors}, {"q_proj", "v_proj"})
        for name, more, ranks in (("one", {MEGATRON + "tensor_model_parallel_size": 1}, 1),
                                  ("stages", {MEGATRON + "tensor_model_parallel_size": 1, MEGATRON + "pipeline_model_parallel_size": 3}, 3)):  # fmt: skip
            more = {**changes, **more, "trainer__total_training_steps": 8, "trainer__resume_mode": "resume_path",
                    "trainer__resume_from_path": str(self.run_dir("straight") / "global_step_6")}  # fmt: skip
            self.train(self.sft(name, "llama_3_layers", **more), ranks=ranks)
            self.assertEqual(sorted(self.metrics(name)), [7, 8])
        done = harness.keel("ckpt", "reshard", "--world", 3, self.run_dir("straight") / "global_step_6", self.folder / "resharded")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_base_is_not_taken_for_the_old_one(self):
        self.write_answers()
        config = self.sft("run", "llama_3_layers", actor_rollout_ref__model={"path": str(FIXTURES / "llama_3_layers" / "hf"), "lora_rank": 2})
        self.train(config)
        other, same = self.folder / "other", self.folder / "same"
        for folder, add in ((other, 1), (same, 0)):
            shutil.copytree(FIXTURES / "llama_3_layers" / "hf", folder)
            path = folder / "model.safetensors"
            content = bytearray(path.read_bytes())
            content[-5] ^= add
            path.write_bytes(content)
        step = self.run_dir("run") / "global_step_4"
        more = ["trainer.total_training_steps=6"]
        refused = harness.keel(*self.command(config, 1), f"actor_rollout_ref.model.path={other}", *more)
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.assertIn("the weights beside which the adapters stand", refused.stderr)
        rows = FIXTURES / "llama_3_layers" / "score.jsonl"
        for command in (["score", "--model", step, "--input", rows, "--output", self.folder / "out.jsonl"],
                        ["ckpt", "merge-adapter", step, "--out", self.folder / "merged"]):  # fmt: skip
            refused = harness.keel(*command, "--base", other)
            self.assertEqual(refused.returncode, 78, refused.stderr)
            self.assertIn("it is another model", refused.stderr)
            self.assertEqual(harness.keel(*command, "--base", same).returncode, 0)
        self.train(config, f"actor_rollout_ref.model.path={same}", *more)
        # Whatever is loaded, or was saved.
        refused = harness.keel(*self.command(config, 1), f"actor_rollout_ref.model.path={other}", "trainer.total_training_steps=8",
                               "actor_rollout_ref.actor.checkpoint.load_contents=[model]")  # fmt: skip
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.train(config, "trainer.default_local_dir=" + str(self.run_dir("alone")), "actor_rollout_ref.actor.checkpoint.save_contents=[model]",
                   "actor_rollout_ref.actor.checkpoint.load_contents=[model]")  # fmt: skip
        alone = self.run_dir("alone") / "global_step_4"
        exported = self.folder / "exported"
        self.assertEqual(harness.keel("ckpt", "export-hf", alone, exported).returncode, 0)
        for adapters in (alone, exported):
            refused = harness.keel("ckpt", "merge-adapter", adapters, "--base", other, "--out", self.folder / "merged_alone")
            self.assertEqual(refused.returncode, 78, refused.stderr)
        # The same modules by other names are the same adapters.
        self.train(config, "trainer.total_training_steps=7", "actor_rollout_ref.model.target_modules=[self_attn.q_proj, k_proj, v_proj, o_proj, mlp.gate_proj, up_proj, down_proj]")
        # Neither are other adapters, or none, those of the checkpoint.
        for change in (["actor_rollout_ref.model.lora_rank=3"], ["actor_rollout_ref.model.lora_alpha=3"], ["~actor_rollout_ref.model.lora_rank"]):
            refused = harness.keel(*self.command(config, 1), *change)
            self.assertEqual(refused.returncode, 78, refused.stderr)


    def test_adapters_go_on_beside_their_own_model_alone(self):
        """As adapter_base.json beside them says; where their numbers are of another type nobody can tell, which is said."""
        self.write_answers()
        base = FIXTURES / "llama_3_layers" / "hf"
        config = self.sft("run", "llama_3_layers", actor_rollout_ref__model={"path": str(base), "lora_rank": 2, "dtype": "float32"})
        self.train(config)
        exported, other = self.folder / "exported", self.folder / "other"
        self.assertEqual(harness.keel("ckpt", "export-hf", self.run_dir("run") / "global_step_4", exported).returncode, 0)
        shutil.copytree(base, other)
        content = bytearray((other / "model.safetensors").read_bytes())
        content[-5] ^= 1
        (other / "model.safetensors").write_bytes(content)
        settings = json.loads((exported / "adapter_config.json").read_text())
        (exported / "adapter_config.json").write_text(json.dumps({**settings, "lora_dropout": 0.25, "exclude_modules": ".*nothing.*"}))

        def go_on(name, path, dtype="float32"):
            model = {"path": str(path), "dtype": dtype, "lora_adapter_path": str(exported)}
            return harness.keel(*self.command(self.sft(name, "llama_3_layers", actor_rollout_ref__model=model), 1))

        refused = go_on("more", other)
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.assertIn("it is another model", refused.stderr)
        taken = go_on("more", base)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        self.assertIn("lora_dropout is 0.25", taken.stderr)
        narrow = go_on("narrow", other, "bfloat16")
        self.assertEqual(narrow.returncode, 0, narrow.stderr)
        self.assertIn("is not compared", narrow.stderr)

    def test_templates_go_along(self):
        """The further ones of a folder, too, byte for byte: in steps, exports, imports, and in what adapters are merged into."""
        self.write_answers()
        base = self.folder / "base"
        shutil.copytree(FIXTURES / "llama_3_layers" / "hf", base)
        plain, tools = "{% for m in messages %}{{ m.content }}\n{% endfor %}", "{{ tools | length }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
        (base / "chat_template.jinja").write_text(plain)
        (base / "additional_chat_templates").mkdir()
        (base / "additional_chat_templates" / "tool_use.jinja").write_text(tools)

        def templates(folder):
            return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.jinja"))}

        def ckpt(*arguments):
            done = harness.keel("ckpt", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)

        wanted = templates(base)
        self.assertEqual(len(wanted), 2)
        for name, model in (("whole", {}), ("adapters", {"lora_rank": 2})):
            self.train(self.sft(name, "llama_3_layers", actor_rollout_ref__model={"path": str(base), **model}))
            step, exported = self.run_dir(name) / "global_step_4", self.folder / f"{name}_exported"
            ckpt("export-hf", step, exported)
            self.assertEqual(templates(step / "actor" / "huggingface"), wanted)
            self.assertEqual(templates(exported), wanted)
        for source, merged in ((step, self.folder / "of_step"), (exported, self.folder / "of_export")):
            ckpt("merge-adapter", source, "--out", merged)
            self.assertEqual(templates(merged), wanted)
        ckpt("import-hf", base, self.folder / "imported")
        ckpt("export-hf", self.folder / "imported" / "global_step_0", self.folder / "back")
        self.assertEqual(templates(self.folder / "back"), wanted)
        # One that the run names stands for all of them; one beside adapters goes before the base's.
        self.train(self.sft("named", "llama_3_layers", actor_rollout_ref__model={"path": str(base)}, data__chat_template=plain + "!"))
        self.assertEqual(templates(self.run_dir("named") / "global_step_4" / "actor" / "huggingface"), {"chat_template.jinja": plain + "!"})
        shutil.rmtree(exported / "additional_chat_templates")
        (exported / "chat_template.jinja").write_text(plain + "?")
        ckpt("merge-adapter", exported, "--out", self.folder / "of_changed")
        self.assertEqual(templates(self.folder / "of_changed"), {"chat_template.jinja": plain + "?"})
        self.train(self.sft("more", "llama_3_layers", actor_rollout_ref__model={"path": str(base), "lora_adapter_path": str(exported)}))
        self.assertEqual(templates(self.run_dir("more") / "global_step_4" / "actor" / "huggingface"), {"chat_template.jinja": plain + "?"})


class Refused(Adapters):
    def refused(self, *words, code=78, **model):
        config = self.sft("run", "llama_3_layers", actor_rollout_ref__model={"path": str(FIXTURES / "llama_3_layers" / "hf"), **model})
        done = harness.keel(*self.command(config, 1))
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_modules_and_files_that_do_not_fit(self):
        self.write_answers()
        self.refused("target_modules: query", "down_proj, gate_proj", lora_rank=2, target_modules=["q_proj", "query"])
        self.refused("exclude_modules leaves no module", lora_rank=2, target_modules=["q_proj"], exclude_modules=["q_proj"])
        self.refused("target_modules is empty", lora_rank=2, target_modules=[])
        self.refused("lora_adapter_path", "nowhere", code=66, lora_adapter_path=str(self.folder / "nowhere"))
        adapter = self.draw("llama_3_layers")
        self.refused("lora_rank and", "lora_adapter_path are both given", lora_adapter_path=str(adapter), lora_rank=3)
        path = adapter / "adapter_config.json"
        good = json.loads(path.read_text())
        for change, words in (
            ({"peft_type": "IA3"}, ["peft_type", "expected LORA"]), ({"use_dora": True}, ["use_dora"]), ({"bias": "all"}, ["bias"]),
            ({"rank_pattern": {"q_proj": 8}}, ["rank_pattern"]), ({"modules_to_save": ["lm_head"]}, ["modules_to_save"]),
            ({"init_lora_weights": "pissa"}, ["init_lora_weights"]), ({"r": 0}, ["r: 0"]), ({"r": 4}, ["lora_A"]), ({"r": None}, ["r"]),
            ({"lora_alpha": -1}, ["lora_alpha"]), ({"lora_alpha": 1e300}, ["float32"]), ({"lora_alpha": "x"}, ["lora_alpha"]), ({"target_modules": 5}, ["target_modules"]),
        ):  # fmt: skip
            path.write_text(json.dumps({**good, **change}))
            self.refused("adapter", *words, code=65, lora_adapter_path=str(adapter))
        path.write_text("{")
        self.refused("adapter_config.json", code=65, lora_adapter_path=str(adapter))
        path.write_text(json.dumps(good))
        weights = adapter / "adapter_model.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content.replace(b"layers.0.self_attn.q_proj.lora_B", b"layers.0.self_attn.x_proj.lora_B"))
        self.refused("layers.0.self_attn.q_proj.lora_B", code=65, lora_adapter_path=str(adapter))
        weights.write_bytes(content[:-4] + b"\x00\x00\xc0\x7f")
        self.refused("not finite", code=65, lora_adapter_path=str(adapter))
        weights.write_bytes(content[:-9])
        self.refused("adapter_model.safetensors", code=65, lora_adapter_path=str(adapter))
        weights.unlink()
        self.refused("adapter_model.safetensors", code=66, lora_adapter_path=str(adapter))


class Rl(split_test.SplitJob):
    """GRPO with a reference, which is the model without its adapters."""

    def adapted(self, name, megatron=None, dtype="float32", **changes):
        model = {"path": self.warm_up(30), "dtype": dtype, "lora_rank": 3, "lora_alpha": 7}
        return self.rl(name, megatron, **{"actor_rollout_ref__model": model, "actor_rollout_ref__actor__use_kl_loss": True,
                                          "actor_rollout_ref__actor__optim__lr": 3e-3, "trainer__save_freq": 3, **changes})  # fmt: skip

    def test_placements_and_layouts_of_one_run(self):
        own = {"actor_rollout_ref__rollout__tensor_model_parallel_size": 1}
        runs = {
            "in_place": (self.adapted("in_place"), 1),
            "sent": (self.adapted("sent", rl_test.TP2_PP2 | rl_test.OFFLOAD, **own), 4),
            "staged": (self.adapted("staged", rl_test.TP2_PP2, **own, actor_rollout_ref__rollout__weight_sync="staged",
                                    actor_rollout_ref__rollout__free_cache_engine=False), 4),
        }  # fmt: skip
        for config, ranks in runs.values():
            self.train(config, ranks=ranks)
        self.assertEqual(self.digests("staged", 6), self.digests("sent", 6))
        for name in runs:
            steps = self.steps(name)
            self.assertEqual(steps[1]["actor/kl_loss"], 0)  # B is 0
            self.assertGreater(steps[6]["actor/kl_loss"], 0)
            self.assertLess(max(data[rl_test.GAP] for data in steps.values()), 1e-4)
        done = self.launch(self.adapted("split", rl_test.TP2_PP2, **own, async_training__placement="split"), 4, 2)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-2000:])
        self.assertEqual(self.learnt("split"), self.learnt("sent"))
        self.assertEqual(self.digests("split", 6), self.digests("sent", 6))
        # What one placement saved another goes on with: the weights are proved to be those.
        more = ["trainer.total_training_steps=8"]
        self.train(self.adapted("split"), *more)
        self.train(self.adapted("in_place", rl_test.TP2_PP2, **own), *more, ranks=4)

    def test_rollouts_say_what_training_does_bit_for_bit(self):
        megatron = {"tensor_model_parallel_size": 2}
        self.train(self.adapted("exact", megatron, "bfloat16", actor_rollout_ref__rollout__batch_invariant=True), ranks=2)
        self.assertEqual({data[rl_test.GAP] for data in self.steps("exact").values()}, {0})

    def test_killed_in_a_step_with_a_critic(self):
        changes = {"algorithm__adv_estimator": "gae"}
        self.train(self.adapted("straight", **changes))
        config = self.adapted("killed", **changes)
        os.environ["KEEL_FAILPOINT"] = "step.update:0:9:kill"
        self.addCleanup(os.environ.pop, "KEEL_FAILPOINT", None)
        self.assertNotEqual(harness.keel(*self.command(config, 1)).returncode, 0)
        del os.environ["KEEL_FAILPOINT"]
        self.train(config)
        self.assertEqual(self.digests("killed", 6), self.digests("straight", 6))


class Learning(rl_test.RlJob):
    """What digits are is in the embeddings, which no adapter changes: the model knows them, and says them turned around as often as not."""

    TASK = "digits_either_way"

    def warm_up_config(self, steps):
        config = super().warm_up_config(steps)
        rows = harness.read_jsonl(self.folder / "warmup.jsonl")
        for number, row in enumerate(rows):
            row["response"] = row["response"][:: -1 if number % 5 < 3 else 1]
        (self.folder / "warmup.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return config

    @harness.nightly
    def test_by_grpo(self):
        model = self.warm_up(150)
        self.learns("lora", model, 1, 100, at_first=0.65, actor_rollout_ref__model={"path": model, "lora_rank": 8, "lora_alpha": 16},
                    actor_rollout_ref__actor__ppo_mini_batch_size=4, actor_rollout_ref__actor__optim__lr=2e-3)  # fmt: skip


if __name__ == "__main__":
    unittest.main()
