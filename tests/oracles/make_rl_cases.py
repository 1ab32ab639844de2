"""Random cases of RL's numbers at the edges of their inputs, by verl's and TRL's own code.

    make_rl_cases.py FIRST COUNT > cases.json

writes the cases of COUNT seeds from FIRST on, in the form of rl_reference.json and made with the same packages
(make_rl_reference.py says how to install them). tests/oracles/rl_random_reference.json is a few of them, kept;
rl_cases_test.py makes more. KEEL_RL_REFERENCE tells rl_losses_test which file to read.

What is drawn: responses of no token, of one, or with holes; rows without a token of the policy, one token of it in
all; groups of one and of equal scores; rewards anywhere, negative, all 0; log-ratios of 0, of +-20 and of +-80 and
their caps; advantages from 0 to 1000; gamma and lambda of 0 and 1; pairs of answers of one token to seven. Options are drawn with them. Where Keel differs on
purpose (docs/algorithms.md), verl's functions are called with what makes them agree, and the comment says so.
"""

import sys

import numpy as np
import torch
from make_rl_reference import (MODES, SCALE_FACTOR, AlgoConfig, Batch, PolicyLossConfig, RolloutCorrectionConfig,
                               actor_config, compute_rollout_correction_and_rejection_mask, core_algos, document, dpo_case,
                               kl_control, kl_losses, rounded, trl_loss)

WIDTH = 7
# Each under one of its names.
KL_KINDS_ONCE = ["k1", "abs", "k2", "k3", "k1+", "k3+", "abs+", "k2+"]


class RandomBatch(Batch):
    """`pick`: one of a list, by the seed. `pairs`: each two rows are an answer that was chosen and one that was not, with a
    token of the policy at least."""

    def __init__(self, seed, pairs=False):
        self.random = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=generator)
        rows = 2 * int(self.random.integers(1, 5)) if pairs else int(self.random.integers(1, 8))
        self.lengths = [int(n) for n in self.random.integers(0, WIDTH + 1, rows)]
        self.lengths = [max(1 if pairs or row == 0 else 0, n) for row, n in enumerate(self.lengths)]
        shape = (rows, WIDTH)
        self.valid = torch.zeros(shape)
        for row, length in enumerate(self.lengths):
            self.valid[row, :length] = 1
        holes = self.pick([0.0, 0.2, 0.7])
        self.mask = self.valid * torch.from_numpy((self.random.random(shape) >= holes).astype(float))
        self.mask[0, 0] = 1
        if pairs:
            self.mask[self.mask.sum(1) == 0, 0] = 1
        # Who is left of a larger group stands for itself here, and keeps its score in verl: a row without a token of
        # the policy is given a group of its own.
        self.groups = np.array([int(g) for g in self.random.integers(0, self.pick([1, 2, 8]), rows)])
        self.live = (self.mask.sum(1) > 0).numpy()
        self.groups[~self.live] = 100 + np.arange(rows)[~self.live]
        far = self.pick([0.0, 0.4, 0.4, 3.0, 12.0, 20.0, 80.0])
        apart = lambda: (rounded(far * draw(shape)) if far < 20 else
                         far * torch.from_numpy(self.random.integers(-1, 2, shape).astype(float)))
        self.far = far
        self.log_probs = rounded(-torch.rand(shape, generator=generator) * 3 - 0.01)
        self.old = self.log_probs + apart()
        self.ref = self.log_probs + apart()
        self.rollout = self.old + apart()
        self.values = rounded(self.pick([0.0, 1.0, 100.0]) * draw(shape))
        self.old_values = rounded(self.values + self.pick([0.0, 0.5, 50.0]) * draw(shape))
        self.returns = rounded(self.pick([0.0, 1.0, 100.0]) * draw(shape))
        self.advantages = rounded(self.pick([0.0, 1.0, 1.0, 1000.0]) * draw(shape))
        self.entropy = rounded(torch.rand(shape, generator=generator))
        self.is_weights = rounded(torch.rand(shape, generator=generator) * 2) * self.pick([0.0, 1.0, 1.0])
        self.baselines = rounded(draw(rows))
        # A reward of a tool's token is the policy's last token's here and nobody's in verl: there are none.
        kind = self.pick(["zero", "equal", "last", "anywhere", "negative"])
        self.rewards = rounded(draw(shape)) * self.mask
        if kind == "negative":
            self.rewards = -self.rewards.abs()
        if kind != "anywhere" and kind != "negative":
            last = (self.mask.cumsum(1) == self.mask.sum(1, keepdim=True)) * self.mask
            last = last * (last.cumsum(1) == 1)
            self.rewards = last * {"zero": 0.0, "equal": 0.7001953125}.get(kind, 0) if kind != "last" else self.rewards * last
        self.squares = rounded(torch.rand(shape, generator=generator))
        self.components = rounded(draw(2, rows))

    def pick(self, choices):
        return choices[int(self.random.integers(len(choices)))]

    def inputs(self):
        return {**super().inputs(), "poisoned": True}


def advantages(batch):
    live = batch.live
    rewards, mask, groups = batch.rewards[live], batch.mask[live], batch.groups[live]
    tokens = int(mask.sum())
    out = []

    def add(estimator, result, whitened=False, **options):
        # Where all are equal, verl leaves of them what it adds to a denominator, 1e-8, over the root of it.
        if whitened and result[0][mask > 0].abs().max() < 1e-2:
            result = (torch.zeros_like(mask), result[1])
            if estimator == "reinforce_plus_plus_baseline":
                result = (result[0], result[0])
        pair = [torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)]
        for whole, part in zip(pair, result, strict=True):
            whole[live] = torch.nan_to_num(part) * mask
        out.append({"estimator": estimator, **options, "advantages": batch.pack(pair[0]),
                    "returns": batch.pack(pair[1])})

    by_std = bool(batch.random.integers(2))
    gamma, lam = batch.pick([0.0, 0.5, 0.99, 1.0]), batch.pick([0.0, 0.5, 0.95, 1.0])
    if tokens > 1:  # verl refuses to whiten a single token
        add("gae", core_algos.compute_gae_advantage_return(rewards, batch.values[live], mask, gamma, lam),
            gamma=gamma, lam=lam, whitened=True)
        add("reinforce_plus_plus", core_algos.compute_reinforce_plus_plus_outcome_advantage(
            rewards, mask, config=AlgoConfig(gamma=gamma)), gamma=gamma, whitened=True)
        add("reinforce_plus_plus_baseline",
            core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards.clone(), mask, groups),
            whitened=True)
    for name, function in [("grpo", core_algos.compute_grpo_outcome_advantage),
                           ("grpo_vectorized", core_algos.compute_grpo_vectorized_outcome_advantage)]:
        add(name, function(rewards.clone(), mask, groups, norm_adv_by_std_in_grpo=by_std),
            norm_adv_by_std_in_grpo=by_std)
    for name, function in [("rloo", core_algos.compute_rloo_outcome_advantage),
                           ("rloo_vectorized", core_algos.compute_rloo_vectorized_outcome_advantage),
                           ("opo", core_algos.compute_opo_outcome_advantage),
                           ("gpg", core_algos.compute_gpg_outcome_advantage)]:
        if name == "gpg" and not (rewards.sum(-1) != 0).any():
            continue  # there verl divides 0 by 0
        add(name, function(rewards.clone(), mask, groups))
    if min(np.unique(groups, return_counts=True)[1]) > 1:
        add("grpo_passk", core_algos.compute_grpo_passk_outcome_advantage(
            rewards.clone(), mask, groups, config=AlgoConfig(norm_adv_by_std_in_grpo=by_std)),
            norm_adv_by_std_in_grpo=by_std)
    for name, function in [("optimal_token_baseline", core_algos.compute_optimal_token_baseline_advantage),
                           ("tir_optimal_token_baseline",
                            core_algos.compute_multi_turn_optimal_token_baseline_advantage)]:
        weighted = bool(batch.random.integers(2))
        # No probability is above 1: what `far` made of them is not asked for.
        if batch.far <= 0.4:
            add(name, function(rewards, mask, groups, batch.old[live].clamp(max=0), batch.squares[live],
                               rollout_is_weights=batch.is_weights[live] if weighted else None),
                weighted=weighted, old=batch.pack(batch.old.clamp(max=0)))
    add("remax", core_algos.compute_remax_outcome_advantage(rewards, batch.baselines[live], mask))
    return out


def policy_losses(batch):
    out = []
    for mode in ["vanilla", "gspo", "cispo", "gpg", "dppo_tv", "dppo_kl", "sapo", "geo_mean", "dro", "kl_cov",
                 "bypass_mode"]:
        aggregation = batch.pick(MODES) if mode not in ["sapo", "geo_mean", "bypass_mode"] else "token-mean"
        weighted = bool(batch.random.integers(2)) and mode != "bypass_mode"
        clips = {"clip_ratio": 0.2, "clip_ratio_low": batch.pick([0.0, 0.15, 1.0]),
                 "clip_ratio_high": batch.pick([0.0, 0.28, 5.0]), "clip_ratio_c": batch.pick([1.001, 3.0, 100.0])}
        own = {"tau_pos": batch.pick([0.1, 1.0]), "tau_neg": batch.pick([1.05, 8.0])} if mode == "sapo" else {}
        policy_loss = {"dro": {"dro_beta": batch.pick([0.01, 2.0])},
                       "kl_cov": {"kl_cov_ratio": batch.pick([1e-6, 0.3, 1.0]), "ppo_kl_coef": 0.7}}.get(mode)
        correction, counts = {}, None
        # Its ratio has no cap: e^80 is within fp32, sums of it are not. And of equals torch chooses any.
        if mode == "kl_cov" and (batch.far >= 20 or not batch.advantages.any()):
            continue
        if mode == "bypass_mode":
            correction = dict(batch.pick([
                {"loss_type": "ppo_clip"}, {"loss_type": "reinforce"},
                {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": "1.5"},
                {"loss_type": "reinforce", "rollout_is": "sequence", "rollout_is_threshold": "2.0"},
                {"loss_type": "reinforce", "rollout_is": "sequence", "rollout_is_threshold": "0.5_2.0"}]))
            if batch.random.integers(2):
                correction["rollout_rs"], correction["rollout_rs_threshold"] = batch.pick([
                    ("token_k1", "0.5_2.0"), ("token_k2", "0.3"), ("token_k3", "0.3"), ("seq_sum_k1", "0.3_3.0"),
                    ("seq_mean_k1", "0.9_1.1"), ("seq_mean_k3", "0.2"), ("seq_max_k2", "1.0"),
                    ("token_k1,seq_sum_k3", "0.5_2.0,1.5")])
                aggregation = batch.pick(MODES)
                counts = {"batch_num_tokens": batch.mask.sum(), "global_batch_size": int(batch.live.sum())}
            policy_loss = {"rollout_correction": RolloutCorrectionConfig(
                **{"rollout_rs": None, "rollout_is": None, **correction})}
        log_probs, advantages_of = batch.log_probs.clone().requires_grad_(), batch.advantages.clone().requires_grad_()
        # verl's mean of this one counts a row without a token of the policy, of the others it does not.
        rows = batch.live if mode == "geo_mean" else np.ones_like(batch.live)
        try:
            loss, metrics = core_algos.get_policy_loss_fn(mode)(
                old_log_prob=batch.old[rows], log_prob=log_probs[rows], advantages=advantages_of[rows],
                response_mask=batch.mask[rows], loss_agg_mode=aggregation,
                config=actor_config(counts, **clips, **own,
                                    **({"policy_loss": PolicyLossConfig(**policy_loss)} if policy_loss else {})),
                rollout_is_weights=batch.is_weights[rows] if weighted else None)
        except ZeroDivisionError:
            continue  # at a metric, where all weights are 0
        loss.backward()
        # A loss is linear in its advantages: these are its terms, and what is rounded are they, also where they cancel out.
        terms = 0.0 if advantages_of.grad is None else (advantages_of.grad * batch.advantages).nan_to_num().abs().sum().item()
        out.append({"mode": mode, "aggregation": aggregation, "weighted": weighted, **clips, **own, "terms": terms,
                    **{k: v for k, v in (policy_loss or {}).items() if k != "rollout_correction"},
                    **({"correction": correction} if correction else {}), "loss": loss.item(),
                    "gradient": batch.pack(log_probs.grad),
                    "metrics": {k: v for k, v in metrics.items() if k.startswith("actor/")}})
    return out


def trl_policy_losses(batch):
    # A row without a token of the policy counts in TRL's means over sequences, here it does not.
    if not batch.live.all():
        return []
    out = []
    pick = batch.pick
    for loss_type in ["grpo", "bnpo", "dr_grpo", "dapo", "sapo", "cispo", "luspo", "vespo"]:
        if batch.far > 3:
            break  # TRL cuts no log-ratio: see the comparison with what it cuts in reference_test.cc
        more = {}
        if loss_type == "cispo":
            more["epsilon_high"] = batch.pick([1.3, 5.0])
        if loss_type in ["luspo", "grpo"] and batch.random.integers(2) or loss_type == "luspo":
            more["importance_sampling_level"] = "sequence"
        elif loss_type in ["grpo", "bnpo", "dr_grpo", "dapo"]:
            more["delta"] = batch.pick([None, 1.5])
        if loss_type == "vespo":
            more |= {f"vespo_{name}": pick([0.25, 1.0, 3.0]) for name in ["k_pos", "lambda_pos", "k_neg", "lambda_neg"]}
        if loss_type in ["grpo", "dapo", "dr_grpo", "sapo", "cispo"] and batch.far <= 0.4 and batch.random.integers(2):
            more |= {"beta": pick([0.01, 0.3]), "use_bias_correction_kl": bool(batch.random.integers(2))}
        if loss_type not in ["luspo", "bnpo"] and more.get("importance_sampling_level") is None and batch.random.integers(3) == 0:
            more["top_entropy_quantile"] = pick([0.0, 0.2, 0.5, 0.999])
            if loss_type in ["dapo", "cispo", "vespo"]:
                more["entropy_coef"] = pick([0.1, 1.0])
        if batch.random.integers(2):
            more["off_policy_mask_threshold"] = batch.pick([-0.1, 0.0, 0.1, 1.0])
        # Of weights within a sequence each token has its own in its gradient here, as in verl; in TRL it has their mean.
        weighted = bool(batch.random.integers(2)) and "importance_sampling_level" not in more
        out.append(trl_loss(batch, loss_type, weighted=weighted, **more))
    return out


def corrected_kl(batch):
    """The KL term with use_bias_correction_kl far from a ratio of 1, where TRL cuts nothing and verl has no such key: the
    formula of docs/algorithms.md row by row, differentiated in fp64."""
    out = []
    for by_sequence in [False, True]:
        log_probs = batch.log_probs.clone().requires_grad_()
        loss = 0.0
        for row in range(len(batch.lengths)):
            counts = batch.mask[row] > 0
            p, old, ref = log_probs[row][counts], batch.old[row][counts], batch.ref[row][counts]
            if not counts.any():
                continue
            ratio = ((p - old).mean().clamp(max=10) if by_sequence else (p - old).clamp(-20, 20)).exp()
            x = (ref - p).clamp(-20, 20)
            loss = loss + ((x.expm1() - x).clamp(max=10) * ratio).sum() / batch.mask.sum()
        loss.backward()
        out.append({"by_sequence": by_sequence, "loss": loss.item(), "gradient": batch.pack(log_probs.grad)})
    return out


def value_losses(batch):
    out = []
    for aggregation in MODES:
        cliprange = batch.pick([0.0, 0.2, 10.0])
        values = batch.values.clone().requires_grad_()
        loss, clipped = core_algos.compute_value_loss(
            values, batch.returns, batch.old_values, batch.mask, cliprange, aggregation,
            loss_scale_factor=SCALE_FACTOR)
        loss.backward()
        out.append({"cliprange_value": cliprange, "aggregation": aggregation, "loss": loss.item(),
                    "scale_factor": SCALE_FACTOR, "clipfrac": clipped.item(), "gradient": batch.pack(values.grad)})
    return out


def corrections(batch):
    live = batch.live
    out = []
    for options in [
            {"rollout_is": batch.pick(["token", "sequence"]),
             "rollout_is_threshold": batch.pick(["2.1", "1.001", "0.45_5.1", "1e9", "0.999_1.001"]),
             "rollout_is_batch_normalize": bool(batch.random.integers(2))},
            {"rollout_rs": batch.pick(["token_k1", "seq_sum_k1", "seq_mean_k1"]),
             "rollout_rs_threshold": batch.pick(["1.001", "2.1", "0.45_1.6", "1e30"])},
            {"rollout_rs": batch.pick(["token_k2", "token_k3", "seq_sum_k2", "seq_sum_k3", "seq_mean_k2",
                                       "seq_mean_k3", "seq_max_k2", "seq_max_k3"]),
             "rollout_rs_threshold": batch.pick(["1e-9", "0.1", "100"])}]:
        try:
            weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
                batch.old[live], batch.rollout[live], batch.mask[live], **options)
        except ZeroDivisionError:
            continue  # where all weights are 0 verl stops at a metric
        if metrics.get("rollout_corr/rollout_is_mean", 1) < 1e-2:
            continue  # what it adds to denominators, 1e-8, is more than such weights
        whole = torch.zeros_like(batch.mask)
        whole[live] = mask.double()
        entry = {"options": options, "mask": [int(x) for x in batch.pack(whole)], "weights": []}
        if weights is not None:
            whole = torch.zeros_like(batch.mask)
            whole[live] = weights.batch["rollout_is_weights"]
            entry["weights"] = batch.pack(whole)
        out.append({**entry, "metrics": metrics})
    return out


def control(batch):
    # verl's mean over responses has no place for one without a token.
    return kl_control(batch) if batch.live.all() else []


SMOOTHED = ["robust", "exo_pair", "aot", "aot_unpaired"]
DIVERGING = ["sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop"]
# TRL's backward fails with hinge, its forward with sft; it refuses those that sort.
WEIGHTED = ["sigmoid", "ipo", "nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop", "sigmoid_norm", "robust", "exo_pair"]


def preferences(batch):
    out = []
    if batch.far > 20:  # of a log-ratio of hundreds nothing is cut on either side, and what is left is rounding
        return out
    pick, pairs = batch.pick, len(batch.lengths) // 2
    for loss_type in ["sigmoid", "ipo", "hinge", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down",
                      "discopop", "sigmoid_norm", "robust", "exo_pair", "sft"]:  # fmt: skip
        more = {"beta": pick([0.01, 0.1, 0.5, 2.0]), "tau": pick([0.05, 0.7, 5.0]), "count": int(batch.random.integers(1, pairs + 1))}
        if loss_type in SMOOTHED:
            more["smoothing"] = pick([0.1, 0.3, 0.45])
        if loss_type != "sft" and batch.far > 0:  # where policy and reference are one, its roundings are all there is
            more["ld_alpha"] = pick([None, None, 0.0, 0.25, 1.0])
        if loss_type in DIVERGING and batch.random.integers(2):
            more["divergence"] = pick(["forward_kl", "js_divergence"])
        elif loss_type in WEIGHTED and batch.random.integers(2):
            more["weighting"] = True
        types, weights = [loss_type], [pick([1.0, 0.3])]
        if loss_type not in ["sft", "aot", "aot_unpaired"] and not more.get("weighting") and batch.random.integers(3) == 0:
            types, weights = [loss_type, "sft"], [weights[0], pick([1.0, 0.01])]
        case = dpo_case(batch, types, weights, **more)
        # Else TRL has divided infinities, or what it has in fp64 is none in fp32.
        if (np.abs([case["loss"], *case["gradient"]]) < 1e30).all():
            out.append(case)
    return out


def main():
    first, count = int(sys.argv[1]), int(sys.argv[2])
    cases = []
    for seed in range(first, first + count):
        pairs = RandomBatch(seed, pairs=True)
        cases.append({"seed": seed, "inputs": pairs.inputs(), "dpo": preferences(pairs)})
        batch = RandomBatch(seed)
        cases.append({"seed": seed, "inputs": batch.inputs(), "advantages": advantages(batch),
                      "policy_losses": policy_losses(batch), "trl_policy_losses": trl_policy_losses(batch),
                      "kl_losses": kl_losses(batch, KL_KINDS_ONCE), "corrected_kl": corrected_kl(batch),
                      "value_losses": value_losses(batch), "corrections": corrections(batch), "kl_control": control(batch)})
    sys.stdout.write(document(cases))


if __name__ == "__main__":
    main()
