"""Reference values of RL's numbers, by verl's and TRL's own code: tests/oracles/rl_reference.json.

Made with verl 0.9.1, trl 1.16.0 and torch 2.11.0 (CPU, fp64). The two are not needed to run the
tests, which read the JSON; to make it again, in an environment of its own that sees torch and
transformers:

    pip install --no-deps verl==0.9.1 trl==1.16.0 omegaconf antlr4-python3-runtime==4.9.3 tensordict \
        ray protobuf msgpack requests urllib3 jsonschema attrs referencing rpds-py \
        jsonschema-specifications pyvers cloudpickle codetiming orjson datasets multiprocess pandas \
        python-dateutil pyarrow dill xxhash accelerate httpx
    python tests/oracles/make_rl_reference.py > tests/oracles/rl_reference.json

Inputs are drawn from fixed seeds and rounded to multiples of 2^-10, so that fp32 holds them exactly.
Rewards stand on tokens of the policy only, and every response has one: where they do not, Keel
differs from verl on purpose (see trainer/algorithms/advantages.h).
"""

import collections
import json
import sys
import types

import numpy as np
import torch
from trl.trainer.dpo_trainer import DPOTrainer
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig

torch.set_default_dtype(torch.float64)
WIDTH = 9
SCALE_FACTOR = 16


def rounded(tensor):
    return torch.round(tensor * 1024) / 1024


class Batch:
    """Responses of several lengths in groups, padded as verl wants them."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=generator)
        self.lengths = [int(n) for n in torch.randint(2, WIDTH + 1, (9,), generator=generator)]
        # A group of four, of three, and two of one.
        self.groups = np.array([5, 5, 2, 5, 2, 2, 5, 0, 1])
        shape = (len(self.lengths), WIDTH)
        self.valid = torch.zeros(shape)
        for row, length in enumerate(self.lengths):
            self.valid[row, :length] = 1
        # Some tokens in the middle are not the policy's.
        tool = (torch.rand(shape, generator=generator) < 0.2).double()
        self.mask = self.valid * (1 - tool)
        self.mask[:, 0] = 1
        for row, length in enumerate(self.lengths):
            self.mask[row, length - 1] = 1
        self.log_probs = rounded(-torch.rand(shape, generator=generator) * 3 - 0.01)
        self.old = rounded(self.log_probs + 0.4 * draw(shape))
        self.ref = rounded(self.log_probs + 0.4 * draw(shape))
        self.rollout = rounded(self.old + 0.5 * draw(shape))
        self.values = rounded(draw(shape))
        self.old_values = rounded(self.values + 0.5 * draw(shape))
        self.returns = rounded(draw(shape))
        self.advantages = rounded(draw(shape))
        self.entropy = rounded(torch.rand(shape, generator=generator))
        self.is_weights = rounded(torch.rand(shape, generator=generator) * 2)
        self.baselines = rounded(draw(len(self.lengths)))
        self.rewards = torch.zeros(shape)
        for row, length in enumerate(self.lengths):
            self.rewards[row, length - 1] = rounded(draw(1))[0]
        self.rewards += rounded(0.1 * draw(shape)) * self.mask

    def pack(self, tensor):
        return [x for row, n in enumerate(self.lengths) for x in tensor[row, :n].tolist()]

    def inputs(self):
        names = ["log_probs", "old", "ref", "rollout", "values", "old_values", "returns", "advantages",
                 "entropy", "is_weights", "rewards"]
        out = {name: self.pack(getattr(self, name)) for name in names}
        out["mask"] = [int(x) for x in self.pack(self.mask)]
        out["lengths"] = self.lengths
        out["groups"] = [int(g) for g in self.groups]
        out["baselines"] = self.baselines.tolist()
        return out


def advantages(batch):
    out = []

    def add(estimator, result, **options):
        adv, returns = result
        out.append({"estimator": estimator, **options, "advantages": batch.pack(adv * batch.mask),
                    "returns": batch.pack(returns * batch.mask)})

    for gamma, lam in [(1.0, 1.0), (0.99, 0.95), (1.0, 0.9)]:
        add("gae", core_algos.compute_gae_advantage_return(
            batch.rewards, batch.values, batch.mask, gamma, lam), gamma=gamma, lam=lam)
    for gamma in [1.0, 0.9]:
        add("reinforce_plus_plus", core_algos.compute_reinforce_plus_plus_outcome_advantage(
            batch.rewards, batch.mask, config=AlgoConfig(gamma=gamma)), gamma=gamma)
    for by_std in [True, False]:
        add("grpo", core_algos.compute_grpo_outcome_advantage(
            batch.rewards.clone(), batch.mask, batch.groups, norm_adv_by_std_in_grpo=by_std),
            norm_adv_by_std_in_grpo=by_std)
    for name, function in [
            ("rloo", core_algos.compute_rloo_outcome_advantage),
            ("reinforce_plus_plus_baseline",
             core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage),
            ("gpg", core_algos.compute_gpg_outcome_advantage)]:
        add(name, function(batch.rewards.clone(), batch.mask, batch.groups))
    add("remax", core_algos.compute_remax_outcome_advantage(batch.rewards, batch.baselines, batch.mask))
    return out


def actor_config(**options):
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
                       global_batch_info={"loss_scale_factor": SCALE_FACTOR}, **options)


def policy_losses(batch):
    out = []
    modes = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
    for mode in ["vanilla", "gspo", "cispo", "gpg"]:
        for aggregation in modes:
            for weighted in [False, True]:
                options = {"clip_ratio": 0.2, "clip_ratio_low": 0.15, "clip_ratio_high": 0.28,
                           "clip_ratio_c": 1.6}
                log_probs = batch.log_probs.clone().requires_grad_()
                loss, metrics = core_algos.get_policy_loss_fn(mode)(
                    old_log_prob=batch.old, log_prob=log_probs, advantages=batch.advantages,
                    response_mask=batch.mask, loss_agg_mode=aggregation,
                    config=actor_config(**options),
                    rollout_is_weights=batch.is_weights if weighted else None)
                loss.backward()
                out.append({"mode": mode, "aggregation": aggregation, "weighted": weighted, **options,
                            "loss": loss.item(), "gradient": batch.pack(log_probs.grad),
                            "metrics": metrics})
    return out


def kl_losses(batch):
    out = []
    for kind in ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+", "low_var_kl+", "abs+"]:
        log_probs = batch.log_probs.clone().requires_grad_()
        kl = core_algos.kl_penalty(log_probs, batch.ref, kind)
        loss = core_algos.agg_loss(kl, batch.mask, "token-mean")
        loss.backward()
        out.append({"kind": kind, "values": batch.pack(kl.detach()), "loss": loss.item(),
                    "gradient": batch.pack(log_probs.grad)})
    return out


def value_losses(batch):
    out = []
    for cliprange in [0.2, 0.5]:
        for aggregation in ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]:
            values = batch.values.clone().requires_grad_()
            loss, clipped = core_algos.compute_value_loss(
                values, batch.returns, batch.old_values, batch.mask, cliprange, aggregation)
            loss.backward()
            out.append({"cliprange_value": cliprange, "aggregation": aggregation, "loss": loss.item(),
                        "clipfrac": clipped.item(), "gradient": batch.pack(values.grad)})
    return out


def corrections(batch):
    out = []
    for options in [
            {}, {"rollout_is": "token"}, {"rollout_is": "sequence"},
            {"rollout_is": "token", "rollout_is_threshold": "0.5_1.5"},
            {"rollout_is": "sequence", "rollout_is_threshold": "0.25_3", "rollout_is_batch_normalize": True},
            {"rollout_is": "token", "rollout_is_threshold": "1.3", "rollout_is_batch_normalize": True},
            {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.6_1.8"},
            {"rollout_rs": "token_k2,seq_mean_k1", "rollout_rs_threshold": "0.2,1.4"},
            {"rollout_rs": "token_k3,seq_sum_k1", "rollout_rs_threshold": "0.3,0.2_4"},
            {"rollout_rs": "seq_sum_k2", "rollout_rs_threshold": "0.6"},
            {"rollout_rs": "seq_sum_k3,seq_mean_k2", "rollout_rs_threshold": "0.7"},
            {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.12"},
            {"rollout_rs": "seq_max_k2,seq_max_k3", "rollout_rs_threshold": "0.4,0.5",
             "rollout_is": "token"}]:
        weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
            batch.old, batch.rollout, batch.mask, **options)
        out.append({"options": options, "mask": [int(x) for x in batch.pack(mask)],
                    "weights": [] if weights is None else
                    batch.pack(weights.batch["rollout_is_weights"]),
                    "metrics": metrics})
    return out


def kl_control(batch):
    """The penalty in the reward, and the adaptive coefficient over steps (ray_trainer's use)."""
    out = []
    for kind in ["kl", "low_var_kl"]:
        controller = core_algos.AdaptiveKLController(0.2, 0.1, 100)
        kl = core_algos.kl_penalty(batch.old, batch.ref, kind) * batch.mask
        current = (kl.sum(-1) / batch.mask.sum(-1)).mean().item()
        coefficients = []
        for scale in [1, 0.1, -1, 30]:
            controller.update(current_kl=current * scale, n_steps=len(batch.lengths))
            coefficients.append(controller.value)
        out.append({"kind": kind, "rewards": batch.pack(batch.rewards - 0.2 * kl), "kl": current,
                    "coefficients": coefficients})
    return out


def dpo(batch):
    """TRL's trainer on a model that returns the batch's log-probabilities."""
    pairs = len(batch.lengths) // 2
    out = []
    for loss_types, weights, smoothing, count in [
            (["sigmoid"], [1.0], 0.0, pairs), (["ipo"], [1.0], 0.0, pairs),
            (["sigmoid", "sft"], [0.7, 0.3], 0.0, pairs), (["ipo", "sft"], [1.0, 0.5], 0.0, pairs),
            # One pair: aot's sorting does nothing, and it is the smoothed sigmoid.
            (["aot"], [1.0], 0.1, 1)]:
        for beta in [0.1, 0.5]:
            rows = [2 * p for p in range(count)] + [2 * p + 1 for p in range(count)]
            log_probs = batch.log_probs.clone().requires_grad_()
            counted = log_probs[rows] * batch.mask[rows]
            ref = (batch.ref[rows] * batch.mask[rows]).sum(1)
            zeros = torch.zeros_like(counted)
            outputs = types.SimpleNamespace(
                log_probs=counted, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), aux_loss=None)
            same = lambda x: x
            trainer = types.SimpleNamespace(
                model=types.SimpleNamespace(training=True), aux_loss_enabled=False, ld_alpha=None,
                precompute_ref_logps=True, f_divergence_type="reverse_kl", loss_types=loss_types,
                loss_weights=weights, beta=beta, label_smoothing=smoothing, use_weighting=False,
                accelerator=types.SimpleNamespace(device="cpu", gather_for_metrics=same, gather=same),
                _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
                _total_train_tokens=0, _tp_size=1)
            # A prompt token in front, as the trainer shifts by one.
            front = torch.zeros(len(rows), 1)
            inputs = {"input_ids": torch.zeros(len(rows), WIDTH + 1, dtype=torch.long),
                      "attention_mask": torch.cat([front + 1, batch.valid[rows]], 1),
                      "completion_mask": torch.cat([front, batch.mask[rows]], 1),
                      "ref_chosen_logps": ref[:count], "ref_rejected_logps": ref[count:]}
            loss = DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
            loss.backward()
            out.append({"loss_types": loss_types, "loss_weights": weights, "beta": beta,
                        "label_smoothing": smoothing, "pairs": count, "loss": loss.item(),
                        "gradient": batch.pack(log_probs.grad),
                        "metrics": {name: trainer._metrics["train"]["rewards/" + name][0]
                                    for name in ["chosen", "rejected", "margins", "accuracies"]}})
    return out


def main():
    cases = []
    for seed in [1, 2]:
        batch = Batch(seed)
        cases.append({"inputs": batch.inputs(), "advantages": advantages(batch),
                      "policy_losses": policy_losses(batch), "kl_losses": kl_losses(batch),
                      "value_losses": value_losses(batch), "corrections": corrections(batch),
                      "kl_control": kl_control(batch), "dpo": dpo(batch)})
    shorten = lambda x: float(f"{x:.9g}")
    round_all = lambda x: ({k: round_all(v) for k, v in x.items()} if isinstance(x, dict) else
                           [round_all(v) for v in x] if isinstance(x, list) else
                           shorten(x) if isinstance(x, float) else x)
    document = {"made_with": {"verl": "0.9.1", "trl": "1.16.0"}, "scale_factor": SCALE_FACTOR,
                "cases": round_all(cases)}
    text = json.dumps(document, separators=(",", ":"))
    # A line per group of values, so that a change can be read.
    sys.stdout.write(text.replace('},{"', '},\n{"').replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
