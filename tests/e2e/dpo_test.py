"""`trainer.task: dpo`: against transformers and torch.optim step by step, under every layout, over a
resume; and that it learns what it is shown."""

import argparse
import json
import math
import os
import pathlib
import random
import sys
import unittest

import torch
from transformers import AutoModelForCausalLM

import checkpoint_files
import harness

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "oracles"))
import adapter_reference  # noqa: E402: of tests/oracles

FIXTURES = pathlib.Path(os.environ["KEEL_FIXTURES"])
VOCAB = 259


def write_pairs(path, count=24, seed=7):
    chance = random.Random(seed)
    word = lambda low, high: "".join(chance.choice("abcdefgh ") for _ in range(chance.randint(low, high)))
    rows = [{"prompt": word(2, 9), "chosen": word(1, 8), "rejected": word(1, 8)} for _ in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


class Dpo(harness.Job):
    def setUp(self):
        super().setUp()
        self.pairs = self.folder / "pairs.jsonl"
        self.rows = write_pairs(self.pairs)

    def dpo(self, name, **changes):
        base = {
            "trainer__task": "dpo",
            "trainer__total_training_steps": 6,
            "data__train_files": [str(self.pairs)],
            "data__max_prompt_length": 24,
            "data__max_response_length": 16,
            "data__shuffle": False,
            "actor_rollout_ref__actor__optim__lr_decay_style": "constant",
            "actor_rollout_ref__actor__optim__lr_warmup_steps": 0,
            "dpo__beta": 0.3,
            "dpo__sft_loss_weight": 0.2,
        }
        return self.config(name, **{**base, **changes})

    def metrics(self, name):
        records = [r for r in harness.read_jsonl(self.run_dir(name) / "metrics.jsonl") if "train/loss" in r["data"]]
        return {record["step"]: record["data"] for record in records}


class AgainstTransformers(Dpo):
    def balance(self, model, rows):
        """transformers' load-balancing loss of the rows' answers, both of each pair, as TRL adds it: of one padded batch.
        Without the token that ends an answer, which Keel does not compute: nothing is predicted from it."""
        texts = [list((row["prompt"] + row[kind]).encode()) for row in rows for kind in ("chosen", "rejected")]
        longest = max(map(len, texts))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        return model(ids, attention_mask=mask, output_router_logits=True).aux_loss

    def expected(self, folder, steps, beta=0.3, sft=0.2, batch=4, micro=None, weighting=False, sync=None, adapter=None):
        """Losses, margins and norms of a plain training, sequence by sequence without padding. `micro`: pairs in a
        micro-batch, each of which has a balance loss of its own that weighs as many pairs. `weighting`: WPO's. `sync`: how
        much of the policy the reference becomes, after every so many steps. `adapter`: what alone learns, and the reference lacks."""
        torch.manual_seed(0)
        torch.set_num_threads(1)
        load = lambda: AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")  # fmt: skip
        model, reference = load(), load().eval()
        learnt = list(model.parameters())
        if adapter:
            model, adapters = adapter_reference.adapted(argparse.Namespace(model=folder, adapter=adapter))
            learnt = list(adapters.values())
        decay = [p for p in learnt if p.dim() >= 2]
        rest = [p for p in learnt if p.dim() < 2]
        optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
            lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
        )  # fmt: skip

        def log_prob(network, prompt, answer):
            ids = torch.tensor([list(prompt.encode()) + list(answer.encode()) + [257]])
            at = len(prompt.encode())
            log_p = network(ids).logits[0, at - 1 : -1].log_softmax(-1)
            of_tokens = log_p.gather(1, ids[0, at:].unsqueeze(1)).squeeze(1)
            # How likely each token is, for one that is drawn: log p - log sum(p^2).
            self.likely.append((of_tokens - (2 * log_p).logsumexp(-1)).mean().item())
            return of_tokens.sum(), ids.shape[1] - at

        found = []
        for step in range(steps):
            rows = [self.rows[(step * batch + i) % len(self.rows)] for i in range(batch)]
            preference, nll, tokens, margins = 0.0, 0.0, 0, []
            for row in rows:
                self.likely = []
                chosen, length = log_prob(model, row["prompt"], row["chosen"])
                rejected, _ = log_prob(model, row["prompt"], row["rejected"])
                weight = math.exp(sum(self.likely)) if weighting else 1
                with torch.no_grad():
                    chosen_ref, _ = log_prob(reference, row["prompt"], row["chosen"])
                    rejected_ref, _ = log_prob(reference, row["prompt"], row["rejected"])
                margin = beta * ((chosen - chosen_ref) - (rejected - rejected_ref))
                preference = preference - weight * torch.nn.functional.logsigmoid(margin) / batch
                nll, tokens = nll - chosen, tokens + length
                margins.append(margin.item())
            loss = preference + sft * nll / tokens
            if micro:
                parts = [self.balance(model, rows[at : at + micro]) for at in range(0, batch, micro)]
                self.balances.append(sum(part.item() for part in parts) / len(parts))
                loss = loss + model.config.router_aux_loss_coef * sum(parts) / len(parts)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(learnt, 1.0)
            optimizer.step()
            if sync and (step + 1) % sync[1] == 0:
                with torch.no_grad():
                    for mine, policy in zip(reference.parameters(), model.parameters(), strict=True):
                        mine.mul_(1 - sync[0]).add_(policy, alpha=sync[0])
            found.append((loss.item(), norm.item(), sum(margins) / batch))
        return found

    def test_the_balance_loss_of_experts(self):
        """As TRL has it: of all tokens of both answers, prompts too, times router_aux_loss_coef, once a micro-batch."""
        for family in ("qwen3_moe_balance", "mixtral_balance"):
            model = FIXTURES / family / "hf"
            for micro, ranks, tp in ((4, 1, 1), (2, 1, 1), (2, 2, 1), (1, 2, 2)):
                name = f"{family}.{micro}.{ranks}.{tp}"
                with self.subTest(name):
                    config = self.dpo(name, actor_rollout_ref__model={"path": str(model), "dtype": "float32"},
                                      data__micro_batch_size_per_gpu=micro, trainer__total_training_steps=3,
                                      actor_rollout_ref__actor__megatron__tensor_model_parallel_size=tp)  # fmt: skip
                    self.train(config, ranks=ranks)
                    metrics = self.metrics(name)
                    self.balances = []
                    for step, (loss, norm, margin) in enumerate(self.expected(model, 3, micro=micro), start=1):
                        self.assertAlmostEqual(metrics[step]["router/balance_loss"], self.balances[step - 1], delta=2e-5)
                        self.assertAlmostEqual(metrics[step]["train/loss"], loss, delta=2e-5)
                        self.assertAlmostEqual(metrics[step]["train/grad_norm"], norm, delta=1e-4 * max(1.0, norm))
                        self.assertAlmostEqual(metrics[step]["rewards/margins"], margin, delta=1e-4)

    def test_losses_margins_and_norms(self):
        model = FIXTURES / "qwen3" / "hf"
        vocab = json.loads((model / "config.json").read_text())["vocab_size"]
        self.assertGreaterEqual(vocab, VOCAB)
        config = self.dpo("run", actor_rollout_ref__model={"path": str(model), "dtype": "float32"})
        self.train(config)
        metrics = self.metrics("run")
        for step, (loss, norm, margin) in enumerate(self.expected(model, 6), start=1):
            with self.subTest(step=step):
                self.assertAlmostEqual(metrics[step]["train/loss"], loss, delta=2e-5)
                self.assertAlmostEqual(metrics[step]["train/grad_norm"], norm, delta=1e-4 * max(1.0, norm))
                self.assertAlmostEqual(metrics[step]["rewards/margins"], margin, delta=1e-4)


    def test_adapters_beside_a_model_that_is_the_reference(self):
        model, adapter = FIXTURES / "llama_3_layers" / "hf", self.folder / "adapter"
        adapter_reference.draw(argparse.Namespace(model=model, adapter=adapter, rank=3, alpha=5, targets="q_proj,v_proj,down_proj"))
        expected = self.expected(model, 4, adapter=adapter)
        for name, ranks, megatron in (("one", 1, {}), ("two", 2, {"tensor_model_parallel_size": 2, "param_offload": True})):
            with self.subTest(ranks=ranks):
                self.train(self.dpo(name, trainer__total_training_steps=4, data__tokenizer="bytes", actor_rollout_ref__actor__megatron=megatron,
                                    actor_rollout_ref__model={"path": str(model), "dtype": "float32", "lora_adapter_path": str(adapter)}),
                           ranks=ranks)  # fmt: skip
                for step, data in self.metrics(name).items():
                    loss, norm, margin = expected[step - 1]
                    self.assertAlmostEqual(data["train/loss"], loss, delta=2e-5)
                    self.assertAlmostEqual(data["rewards/margins"], margin, delta=2e-4)
                    self.assertAlmostEqual(data["train/grad_norm"], norm, delta=2e-4)

    def test_pairs_with_weights_and_a_reference_that_follows(self):
        model = FIXTURES / "qwen3" / "hf"
        sync = {"sync_ref_model": True, "ref_model_mixup_alpha": 0.7, "ref_model_sync_steps": 2}
        for name, config, plain in (
            ("weighted", {"dpo__use_weighting": True}, {"weighting": True}),
            ("follows", {"actor_rollout_ref__ref": sync}, {"sync": (0.7, 2)}),
        ):
            expected = self.expected(model, 6, **plain)
            for ranks, layout in ((1, {}), (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True})):
                with self.subTest(name, ranks=ranks):
                    run = f"{name}.{ranks}"
                    self.train(self.dpo(run, actor_rollout_ref__model={"path": str(model), "dtype": "float32"},
                                        actor_rollout_ref__actor__megatron=layout, **config), ranks=ranks)  # fmt: skip
                    metrics = self.metrics(run)
                    for step, (loss, norm, margin) in enumerate(expected, start=1):
                        self.assertAlmostEqual(metrics[step]["train/loss"], loss, delta=2e-5)
                        self.assertAlmostEqual(metrics[step]["train/grad_norm"], norm, delta=1e-4 * max(1.0, norm))
                        self.assertAlmostEqual(metrics[step]["rewards/margins"], margin, delta=1e-4)


class Layouts(Dpo):
    def reference(self, name):
        state = self.run_dir(name) / "global_step_6" / "trainer_state.json"
        return json.loads(state.read_text())["ref_digest"]

    def test_every_layout_and_offload_gives_the_same(self):
        self.train(self.dpo("one", trainer__save_freq=6))
        self.assertNotEqual(int(self.reference("one"), 16), 0)
        one = self.metrics("one")
        # Before the first update the model is its reference: exactly ln 2, whatever the data.
        self.assertEqual(one[1]["rewards/margins"], 0.0)
        self.assertAlmostEqual(one[1]["train/preference_loss"], math.log(2), delta=1e-12)
        self.assertNotEqual(one[2]["rewards/margins"], 0.0)
        for tp, pp, ranks, sequence_parallel in [(2, 1, 2, True), (1, 2, 2, False), (2, 2, 4, True), (1, 1, 2, False)]:
            name = f"tp{tp}_pp{pp}_{ranks}"
            with self.subTest(name):
                actor = "actor_rollout_ref__actor__megatron__"
                config = self.dpo(
                    name,
                    trainer__save_freq=6,
                    data__micro_batch_size_per_gpu=2,
                    actor_rollout_ref__ref__megatron__param_offload=True,
                    **{
                        actor + "tensor_model_parallel_size": tp,
                        actor + "pipeline_model_parallel_size": pp,
                        actor + "sequence_parallel": sequence_parallel,
                        actor + "param_offload": True,
                        actor + "optimizer_offload": True,
                    },
                )
                self.train(config, ranks=ranks)
                self.assertEqual(self.reference(name), self.reference("one"))
                many = self.metrics(name)
                self.assertEqual(sorted(many), sorted(one))
                for step, data in one.items():
                    self.assertEqual(many[step]["data/sample_digest"], data["data/sample_digest"])
                    for key in ("train/loss", "train/grad_norm", "rewards/margins"):
                        self.assertAlmostEqual(many[step][key], data[key], delta=2e-5 * max(1.0, abs(data[key])))


class Losses(Dpo):
    # All of them at once, but those that label_smoothing has another meaning with.
    ALL = ["hinge", "robust", "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down",
           "discopop", "sigmoid_norm", "ipo", "sft"]  # fmt: skip

    def test_several_add_up_and_what_is_sorted_is_sorted_over_all_ranks(self):
        weights = [0.5 + 0.1 * i for i in range(len(self.ALL))]
        changes = {"dpo__sft_loss_weight": 0, "dpo__label_smoothing": 0.1, "dpo__ld_alpha": 0.5, "trainer__total_training_steps": 3}
        self.train(self.dpo("one", dpo__loss_type=self.ALL, dpo__loss_weights=weights, **changes))
        one = self.metrics("one")
        self.assertEqual(sorted(one), [1, 2, 3])
        actor = "actor_rollout_ref__actor__megatron__"
        for name, ranks, layout in [("small", 1, {}), ("dp2", 2, {}), ("pp2", 2, {actor + "pipeline_model_parallel_size": 2})]:
            with self.subTest(name):
                self.train(
                    self.dpo(name, dpo__loss_type=self.ALL, dpo__loss_weights=weights, data__micro_batch_size_per_gpu=1, **changes, **layout),
                    ranks=ranks,
                )  # fmt: skip
                for step, data in self.metrics(name).items():
                    for key in ("train/loss", "train/grad_norm", "rewards/margins"):
                        self.assertAlmostEqual(data[key], one[step][key], delta=2e-5 * max(1.0, abs(one[step][key])), msg=key)
        # A weight is a factor: each loss by itself, at the first step, before anything is learnt.
        alone = {"dpo__sft_loss_weight": 0, "trainer__total_training_steps": 1}
        sum_of = 0.0
        for weight, loss in zip([2.0, 0.25], ["apo_zero", "sft"]):
            self.train(self.dpo(loss, dpo__loss_type=loss, **alone))
            sum_of += weight * self.metrics(loss)[1]["train/loss"]
        self.train(self.dpo("both", dpo__loss_type=["apo_zero", "sft"], dpo__loss_weights=[2.0, 0.25], **alone))
        self.assertAlmostEqual(self.metrics("both")[1]["train/loss"], sum_of, delta=1e-5)

    def test_one_name_alone_is_a_list_of_one(self):
        changes = {"dpo__f_divergence_type": "js_divergence", "trainer__total_training_steps": 2}
        self.train(self.dpo("name", dpo__loss_type="hinge", **changes))
        self.train(self.dpo("list", dpo__loss_type=["hinge"], **changes))
        name, of_list = self.metrics("name"), self.metrics("list")
        for step in name:
            self.assertEqual(harness.stable(name[step]), harness.stable(of_list[step]))


class Course(Dpo):
    def test_a_resumed_run_is_the_run_that_was_not_stopped(self):
        self.train(self.dpo("straight", trainer__save_freq=6))
        self.train(self.dpo("half", trainer__save_freq=1, trainer__total_training_steps=3))
        self.train(self.dpo("half", trainer__save_freq=1))
        straight, resumed = self.metrics("straight"), self.metrics("half")
        self.assertEqual(sorted(resumed), [1, 2, 3, 4, 5, 6])
        for step in straight:
            self.assertEqual(harness.stable(resumed[step]), harness.stable(straight[step]), f"step {step}")
        digests = [checkpoint_files.digests(self.run_dir(name) / "global_step_6") for name in ("straight", "half")]
        self.assertEqual(*digests)

    def test_pairs_on_the_disk_are_those_in_memory(self):
        changes = {"trainer__save_freq": 6, "data__shuffle": True, "data__val_split": 0.2, "trainer__test_freq": 3}
        self.train(self.dpo("memory", **changes))
        for name in ("made", "found"):
            self.train(self.dpo(name, **changes, data__cache_dir=str(self.folder / "cache")))
            self.assertEqual({step: harness.stable(data) for step, data in self.metrics(name).items()},
                             {step: harness.stable(data) for step, data in self.metrics("memory").items()})  # fmt: skip
            self.assertEqual(*[checkpoint_files.digests(self.run_dir(run) / "global_step_6") for run in (name, "memory")])
        self.assertEqual(len(list((self.folder / "cache").iterdir())), 1)

    def test_a_reference_that_follows_comes_back(self):
        """Stopped between two of its moves; on other ranks, from the host and in bf16 too."""
        follows = {"sync_ref_model": True, "ref_model_mixup_alpha": 0.5, "ref_model_sync_steps": 2}
        for name, more, ranks in (
            ("fp32", {}, 1),
            ("bf16", {"actor_rollout_ref__model__dtype": "bfloat16"}, 1),
            ("offload", {"actor_rollout_ref__ref__megatron__param_offload": True}, 2),
        ):
            with self.subTest(name):
                changes = {f"actor_rollout_ref__ref__{key}": value for key, value in follows.items()} | more
                straight, half = name + "_straight", name + "_half"
                self.train(self.dpo(straight, trainer__save_freq=6, **changes), ranks=ranks)
                self.train(self.dpo(half, trainer__save_freq=3, trainer__total_training_steps=3, **changes), ranks=ranks)
                self.train(self.dpo(half, trainer__save_freq=3, **changes), ranks=ranks)
                for step, data in self.metrics(straight).items():
                    self.assertEqual(harness.stable(self.metrics(half)[step]), harness.stable(data), f"step {step}")
                for role in ("actor", "ref"):
                    folders = [self.run_dir(run) / "global_step_6" for run in (straight, half)]
                    digests = [checkpoint_files.digests(folder, role) for folder in folders]
                    self.assertEqual(*digests)
                    self.assertTrue(digests[0])
                    self.assertEqual(any(name.startswith("optimizer/") for name in digests[0]), role == "actor")

    def test_whether_the_reference_follows_is_told_from_the_checkpoint(self):
        self.train(self.dpo("run", trainer__save_freq=2, trainer__total_training_steps=2))
        done = harness.keel("train", self.dpo("run", actor_rollout_ref__ref__sync_ref_model=True))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("holds no role 'ref'", done.stderr)
        self.train(self.dpo("other", trainer__save_freq=2, trainer__total_training_steps=2, actor_rollout_ref__ref__sync_ref_model=True))
        done = harness.keel("train", self.dpo("other"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("holds the role 'ref', which this run does not have", done.stderr)

    def test_another_reference_is_not_taken_for_the_old_one(self):
        self.train(self.dpo("run", trainer__save_freq=2, trainer__total_training_steps=2))
        # The actor comes from the checkpoint; the reference would be another.
        done = harness.keel("train", self.dpo("run", actor_rollout_ref__model__config__initializer_range=0.5))
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("the reference's weights have digest", done.stderr)

    def test_learns_what_is_preferred(self):
        rows = [{"prompt": f"q{i}?", "chosen": "yes", "rejected": "no"} for i in range(24)]
        self.pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.train(self.dpo("run", trainer__total_training_steps=25, trainer__test_freq=25, data__val_split=0.2))
        metrics = self.metrics("run")
        self.assertEqual(metrics[25]["rewards/accuracies"], 1.0)
        self.assertGreater(metrics[25]["rewards/margins"], 0.5)
        records = harness.read_jsonl(self.run_dir("run") / "metrics.jsonl")
        [validated] = [r["data"] for r in records if "val/loss" in r["data"]]
        self.assertEqual(validated["val/rewards/accuracies"], 1.0)

    def test_what_does_not_fit_is_refused(self):
        done = harness.keel("train", self.dpo("run", dpo__loss_type="ipo", dpo__label_smoothing=0.1))
        self.assertEqual(done.returncode, 78)
        self.assertIn("dpo.label_smoothing", done.stderr)
        done = harness.keel("train", self.dpo("run", dpo__loss_type=["aot", "sft"], dpo__f_divergence_type="forward_kl"))
        self.assertEqual(done.returncode, 78)
        self.assertIn("dpo.f_divergence_type forward_kl has no meaning with dpo.loss_type aot", done.stderr)
        self.assertIn("dpo.loss_type names sft, and dpo.sft_loss_weight is its weight too", done.stderr)
        done = harness.keel("train", self.dpo("run", dpo__loss_type="aot", dpo__use_weighting=True))
        self.assertEqual(done.returncode, 78)
        self.assertIn("dpo.use_weighting weighs pairs, but dpo.loss_type aot", done.stderr)
        done = harness.keel("train", self.dpo("run", data__max_response_length=500))
        self.assertEqual(done.returncode, 78)
        self.assertIn("max_position_embeddings", done.stderr)


if __name__ == "__main__":
    unittest.main()
