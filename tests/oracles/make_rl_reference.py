"""Reference values of RL's numbers, by verl's and TRL's own code: tests/oracles/rl_reference.json.

Made with verl 0.9.1, trl 1.16.0 and torch 2.11.0 (CPU, fp64). The two are not needed to run the
tests, which read the JSON; to make it again, in an environment of its own that sees torch and
transformers:

    pip install --no-deps -r tests/oracles/rl_requirements.txt
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
from trl.trainer.grpo_trainer import GRPOTrainer
from verl.trainer.config import AlgoConfig, RolloutCorrectionConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig, PolicyLossConfig

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
        self.squares = rounded(torch.rand(shape, generator=generator))
        self.components = rounded(draw(2, len(self.lengths)))

    def pack(self, tensor):
        return [x for row, n in enumerate(self.lengths) for x in tensor[row, :n].tolist()]

    def inputs(self):
        names = ["log_probs", "old", "ref", "rollout", "values", "old_values", "returns", "advantages",
                 "entropy", "is_weights", "rewards", "squares"]
        out = {name: self.pack(getattr(self, name)) for name in names}
        out["mask"] = [int(x) for x in self.pack(self.mask)]
        out["lengths"] = self.lengths
        out["groups"] = [int(g) for g in self.groups]
        out["baselines"] = self.baselines.tolist()
        out["components"] = self.components.tolist()
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
    add("opo", core_algos.compute_opo_outcome_advantage(
        batch.rewards.clone(), batch.mask, batch.groups))
    add("rloo_vectorized", core_algos.compute_rloo_vectorized_outcome_advantage(
        batch.rewards.clone(), batch.mask, batch.groups))
    for by_std in [True, False]:
        add("grpo_vectorized", core_algos.compute_grpo_vectorized_outcome_advantage(
            batch.rewards.clone(), batch.mask, batch.groups, norm_adv_by_std_in_grpo=by_std),
            norm_adv_by_std_in_grpo=by_std)
        # It has no answer for a prompt with a single response: these join the first group.
        paired = np.where(np.isin(batch.groups, [5, 2]), batch.groups, 5)
        add("grpo_passk", core_algos.compute_grpo_passk_outcome_advantage(
            batch.rewards.clone(), batch.mask, paired,
            config=AlgoConfig(norm_adv_by_std_in_grpo=by_std)),
            norm_adv_by_std_in_grpo=by_std, groups=paired.tolist())
    for by_std, weights in [(True, None), (False, None), (True, [0.25, 2.0])]:
        # verl puts a component on the last token by the attention mask, prompts in front.
        prompt = torch.zeros(len(batch.lengths), 1)
        add("gdpo", core_algos.compute_gdpo_outcome_advantage(
            batch.rewards.clone(), batch.mask, batch.groups, norm_adv_by_std_in_grpo=by_std,
            config=AlgoConfig(gdpo_reward_keys=["first", "second"], gdpo_reward_weights=weights),
            non_tensor_batch={"first": batch.components[0].numpy(),
                              "second": batch.components[1].numpy()},
            batch={"prompts": prompt, "attention_mask": torch.cat([prompt + 1, batch.valid], 1).long()}),
            norm_adv_by_std_in_grpo=by_std, component_weights=weights or [])
    for name, function in [
            ("optimal_token_baseline", core_algos.compute_optimal_token_baseline_advantage),
            ("tir_optimal_token_baseline",
             core_algos.compute_multi_turn_optimal_token_baseline_advantage)]:
        for weighted in [False, True]:
            add(name, function(batch.rewards, batch.mask, batch.groups, batch.old, batch.squares,
                               rollout_is_weights=batch.is_weights if weighted else None),
                weighted=weighted)
    add("remax", core_algos.compute_remax_outcome_advantage(batch.rewards, batch.baselines, batch.mask))
    return out


def actor_config(counts=None, **options):
    """`counts`: what verl's trainer says of the mini-batch; without it the loss counts its own tokens."""
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
                       global_batch_info={"loss_scale_factor": SCALE_FACTOR, **(counts or {})}, **options)


MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean",
         "seq-mean-token-sum-norm"]
CLIPS = {"clip_ratio": 0.2, "clip_ratio_low": 0.15, "clip_ratio_high": 0.28, "clip_ratio_c": 1.6}


def policy_losses(batch):
    out = []

    def add(mode, aggregation, weighted=False, own=None, clips=CLIPS, chosen=None, far=1,
            policy_loss=None, counts=None, **options):
        """`own`: keys of the loss, under the names of actor or actor.policy_loss. `far`: factor of
        the distance between current and old log-probabilities."""
        old = rounded(batch.log_probs + far * (batch.old - batch.log_probs))
        log_probs = batch.log_probs.clone().requires_grad_()
        draws = []
        randperm = torch.randperm
        # Clip-Cov draws by torch's global generator, Keel by a counter: what was drawn is recorded.
        torch.randperm = lambda n: draws.append(randperm(n)) or draws[-1]
        zeroed = []
        masked_mean = core_algos.verl_F.masked_mean
        if chosen == "clip_cov":
            # The flags of the tokens it chose are what its clip fraction is the mean of.
            def spy(values, mask, axis=None):
                zeroed.append(values)
                return masked_mean(values, mask, axis)
            core_algos.verl_F.masked_mean = spy
        loss, metrics = core_algos.get_policy_loss_fn(mode)(
            old_log_prob=old, log_prob=log_probs, advantages=batch.advantages,
            response_mask=batch.mask, loss_agg_mode=aggregation,
            config=actor_config(counts, **clips, **(own or {}),
                                **({"policy_loss": PolicyLossConfig(**policy_loss)}
                                   if policy_loss else {})),
            rollout_is_weights=batch.is_weights if weighted else None)
        core_algos.verl_F.masked_mean = masked_mean
        torch.randperm = randperm
        loss.backward()
        entry = {"mode": mode, "aggregation": aggregation, "weighted": weighted, "far": far, **clips,
                 **(own or {}), **{k: v for k, v in (policy_loss or {}).items()
                                   if k != "rollout_correction"}, **options}
        if chosen == "clip_cov":
            entry["chosen"] = [int(x) for x in batch.pack(zeroed[-1])]
            entry["candidates"] = len(draws[-1]) if draws else 0
        if far != 1:
            entry["old"] = batch.pack(old)
        out.append({**entry, "loss": loss.item(), "gradient": batch.pack(log_probs.grad),
                    "metrics": metrics})

    for mode in ["vanilla", "gspo", "cispo", "gpg", "dppo_tv", "dppo_kl", "sapo", "geo_mean"]:
        # The last two are always the same mean.
        for aggregation in MODES if mode not in ["sapo", "geo_mean"] else MODES[:1]:
            for weighted in [False, True]:
                add(mode, aggregation, weighted)
    for aggregation in MODES:
        for weighted in [False, True]:
            add("dro", aggregation, weighted, policy_loss={"dro_beta": 0.3})
            add("kl_cov", aggregation, weighted,
                policy_loss={"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7})
            add("clip_cov", aggregation, weighted, chosen="clip_cov",
                policy_loss={"clip_cov_ratio": 0.1, "clip_cov_lb": 0.05, "clip_cov_ub": 2.0})
    # Off the defaults, and ratios far from 1.
    add("sapo", "token-mean", own={"tau_pos": 0.5, "tau_neg": 3.0})
    add("dppo_tv", "token-mean", clips={**CLIPS, "clip_ratio_low": 0.02, "clip_ratio_high": 0.01})
    add("dppo_kl", "token-mean", clips={**CLIPS, "clip_ratio_low": 0.02, "clip_ratio_high": 0.01})
    add("kl_cov", "token-mean", policy_loss={"kl_cov_ratio": 0.0002, "ppo_kl_coef": 1.5})
    add("clip_cov", "token-mean", chosen="clip_cov",
        policy_loss={"clip_cov_ratio": 0.9, "clip_cov_lb": -0.5, "clip_cov_ub": 0.5})
    add("clip_cov", "token-mean", chosen="clip_cov",
        policy_loss={"clip_cov_ratio": 0.9, "clip_cov_lb": 50.0, "clip_cov_ub": 60.0})
    for mode in ["vanilla", "gspo", "cispo", "dppo_tv", "dppo_kl", "sapo", "geo_mean"]:
        add(mode, "token-mean", far=20)
    for mode, own in [("dro", {"dro_beta": 2.0}),
                      ("kl_cov", {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7})]:
        add(mode, "token-mean", far=4, policy_loss=own)
    # What bypass_mode makes of rollout_correction: old is the rollout's.
    corrections = [{"loss_type": "ppo_clip"}, {"loss_type": "reinforce"},
                       {"loss_type": "reinforce", "rollout_is": "token",
                        "rollout_is_threshold": "1.3"},
                       {"loss_type": "reinforce", "rollout_is": "sequence",
                        "rollout_is_threshold": "1.3"},
                       {"loss_type": "reinforce", "rollout_is": "token",
                        "rollout_is_threshold": "0.7_1.4"}]
    for rules, bounds in [("token_k1", "0.7_1.4"), ("token_k2", "0.05"), ("token_k3", "0.05"),
                          ("seq_sum_k1", "0.5_2"), ("seq_sum_k2", "0.3"), ("seq_sum_k3", "0.3"),
                          ("seq_mean_k1", "0.9_1.1"), ("seq_mean_k2", "0.08"), ("seq_mean_k3", "0.08"),
                          ("seq_max_k2", "0.2"), ("seq_max_k3", "0.2"),
                          ("token_k1,seq_mean_k3", "0.6_1.6,0.1")]:
        rejection = {"rollout_rs": rules, "rollout_rs_threshold": bounds}
        corrections += [{"loss_type": "ppo_clip", **rejection},
                        {"loss_type": "reinforce", "rollout_is": "sequence",
                         "rollout_is_threshold": "1.3", **rejection}]
    for at, correction in enumerate(corrections):
        before = len(out)
        rejects = "rollout_rs" in correction
        add("bypass_mode", MODES[at % len(MODES)] if rejects else "token-mean", correction=correction, policy_loss={
            "rollout_correction": RolloutCorrectionConfig(**{
                "rollout_rs": None, "rollout_is": None, **correction})},
            # What is rejected is not taken off: the counts are of the mini-batch, known before its forwards.
            counts={"batch_num_tokens": batch.mask.sum(), "global_batch_size": len(batch.lengths)}
            if rejects else None)
        for entry in out[before:]:
            entry["metrics"] = {k: v for k, v in entry["metrics"].items() if k.startswith("actor/")}
    return out


def trl_loss(batch, loss_type, weighted=False, far=1, controller=None, **options):
    """TRL's trainer on a model that returns the batch's log-probabilities. Its advantage is one for
    a response: the first token's of the batch's. `controller`: of use_adaptive_entropy, moved on."""
    advantages = batch.advantages[:, 0]
    old = rounded(batch.log_probs + far * (batch.old - batch.log_probs))
    log_probs = batch.log_probs.clone().requires_grad_()
    args = {"delta": None, "use_bias_correction_kl": False, "sapo_temperature_pos": 1.0,
            "sapo_temperature_neg": 1.05, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0,
            "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "steps_per_generation": 1,
            "epsilon": 0.15, "epsilon_high": 0.28, **options}
    level = args.pop("importance_sampling_level", "token")
    beta, quantile = args.pop("beta", 0.0), args.pop("top_entropy_quantile", 1.0)
    entropy_coef = args.pop("entropy_coef", 0.0)
    off_policy = args.pop("off_policy_mask_threshold", None)
    scale = controller["scale"] if controller else 1.0
    entropies = (batch.entropy * scale).requires_grad_()
    accelerator = types.SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x,
        pad_across_processes=lambda x, dim, pad_index: x, sync_gradients=True)
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_probs, entropies, None),
        aux_loss_enabled=False, top_entropy_quantile=quantile, off_policy_mask_threshold=off_policy,
        importance_sampling_level=level, beta=beta, loss_type=loss_type,
        epsilon_low=args["epsilon"], epsilon_high=args["epsilon_high"],
        args=types.SimpleNamespace(**args), get_gamma_weights=GRPOTrainer.get_gamma_weights,
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        use_vllm=weighted, vllm_importance_sampling_correction=weighted,
        model=types.SimpleNamespace(training=True), current_gradient_accumulation_steps=1,
        max_completion_length=SCALE_FACTOR, accelerator=accelerator,
        _entropy_bonus_enabled=entropy_coef != 0 or controller is not None,
        entropy_coef=controller["coefficient"] if controller else entropy_coef,
        use_adaptive_entropy=controller is not None, _entropy_window_stats=None,
        _last_world_entropy=controller["last"] if controller else None,
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)))
    prompt = torch.zeros(len(batch.lengths), 1, dtype=torch.long)
    inputs = {"prompt_ids": prompt, "prompt_mask": prompt + 1,
              "completion_ids": torch.zeros_like(batch.mask).long(),
              "completion_mask": batch.valid, "tool_mask": batch.mask, "advantages": advantages,
              "old_per_token_logps": old, "num_items_in_batch": batch.mask.sum(),
              "ref_per_token_logps": batch.ref,
              # TRL has ratios of 1 where a token is not the policy's.
              "importance_sampling_ratio":
                  torch.where(batch.mask > 0, batch.is_weights + 0.125, 1.0)
                  if weighted else None}
    if off_policy is not None and weighted:
        inputs["sampling_per_token_logps"] = batch.rollout
    trainer.get_high_entropy_mask = types.MethodType(GRPOTrainer.get_high_entropy_mask, trainer)
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    if controller:
        controller |= {"coefficient": trainer.entropy_coef, "last": trainer._last_world_entropy}
    more = {"beta": beta, "use_bias_correction_kl": args["use_bias_correction_kl"]} if beta else {}
    if off_policy is not None:
        more["off_policy_mask_threshold"] = off_policy
    if quantile < 1:
        # TRL's quantile is of fp32 too.
        chosen = trainer.get_high_entropy_mask(batch.entropy, batch.mask, 1 - quantile)
        more |= {"top_entropy_quantile": quantile, "uncertain": batch.pack(chosen.int())}
    if entropy_coef:
        more |= {"entropy_coef": entropy_coef,
                 "entropy_gradient": batch.pack(entropies.grad)}
    return {"loss_type": loss_type, "weighted": weighted, "far": far, **more,
            "importance_sampling_level": level, "epsilon": args["epsilon"],
            "epsilon_high": args["epsilon_high"], "delta": args["delta"],
            **{k: v for k, v in args.items() if k.startswith(("sapo", "vespo"))},
            **({"old": batch.pack(old)} if far != 1 else {}), "loss": loss.item(),
            "gradient": batch.pack(log_probs.grad)}


def trl_policy_losses(batch):
    out = []

    def add(*args, **options):
        out.append(trl_loss(batch, *args, **options))

    for loss_type in ["grpo", "bnpo", "dr_grpo", "dapo", "sapo", "vespo"]:
        for weighted in [False, True]:
            add(loss_type, weighted)
    for loss_type in ["grpo", "luspo"]:
        add(loss_type, importance_sampling_level="sequence")
    add("grpo", delta=1.6, far=4)
    add("cispo", epsilon_high=1.3)
    add("cispo", weighted=True, epsilon_high=5.0, far=4)
    add("sapo", sapo_temperature_pos=0.5, sapo_temperature_neg=3.0)
    add("vespo", vespo_k_pos=1.0, vespo_lambda_pos=0.5, vespo_k_neg=0.25, vespo_lambda_neg=4.0)
    add("vespo", far=30)
    # Of KL in the loss; its estimate weighed by the ratio of the token, or of the sequence.
    for corrected in [False, True]:
        for loss_type in ["grpo", "dapo", "dr_grpo", "sapo", "cispo"]:
            add(loss_type, beta=0.3, use_bias_correction_kl=corrected)
        add("grpo", beta=0.3, use_bias_correction_kl=corrected, importance_sampling_level="sequence")
    # And far from a ratio of 1, by as much as neither side cuts.
    for far in [4, 12]:
        for loss_type in ["grpo", "dapo", "dr_grpo"]:
            add(loss_type, far=far, beta=0.3, use_bias_correction_kl=True)
        if far == 4:
            add("grpo", far=far, beta=0.3, use_bias_correction_kl=True, importance_sampling_level="sequence")
    # Of sequences that have gone too far without those of a negative advantage.
    for threshold in [-0.1, 0.0, 0.1, 0.4]:
        for loss_type in ["grpo", "dapo", "dr_grpo", "sapo", "cispo", "vespo", "luspo"]:
            level = "sequence" if loss_type == "luspo" else "token"
            for weighted in [False, True] if level == "token" else [False]:
                add(loss_type, weighted, off_policy_mask_threshold=threshold, importance_sampling_level=level)
    # Of the tokens of highest entropy alone; the bonus, where the loss is a mean over all tokens, too.
    for quantile in [0.0, 0.2, 0.5, 0.999]:
        for loss_type in ["grpo", "dapo", "dr_grpo", "sapo", "cispo", "vespo"]:
            add(loss_type, top_entropy_quantile=quantile,
                entropy_coef=0.1 if loss_type in ["dapo", "cispo", "vespo"] else 0.0)
        add("grpo", weighted=True, top_entropy_quantile=quantile, beta=0.3, use_bias_correction_kl=True)
    return out


def entropy_control(batch):
    """The coefficient over updates of entropies above and below the target, and each one's loss."""
    out = []
    for quantile in [1.0, 0.4]:
        options = {"entropy_coef_min": 0.1, "entropy_coef_max": 1.0, "entropy_coef_delta": 0.2,
                   "entropy_target": 0.25}
        controller = {"coefficient": 0.7, "last": float("inf")}
        updates = []
        for scale in [1.0, 0.25, 0.5, 0.25, 0.25, 0.25, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.125, 0.125]:
            controller["scale"] = scale
            found = trl_loss(batch, "dapo", controller=controller, top_entropy_quantile=quantile, **options)
            updates.append({"scale": scale, "loss": found["loss"], "coefficient": controller["coefficient"],
                            "uncertain": found.get("uncertain", [])})
        out.append({**options, "entropy_coef": 0.7, "top_entropy_quantile": quantile, "updates": updates})
    return out


KL_KINDS = ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+", "low_var_kl+", "abs+", "kl+", "mse+", "k2+"]


def kl_losses(batch, kinds=KL_KINDS):
    out = []
    for kind in kinds:
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
        for aggregation in ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"]:
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


def dpo_case(batch, loss_types, weights, smoothing=0.0, count=None, beta=0.1, dtype=torch.float64,
             divergence="reverse_kl", alpha=0.5, tau=0.05, ld_alpha=None, far=1, weighting=False):
    """TRL's trainer on a model that returns the batch's log-probabilities."""
    count = count or len(batch.lengths) // 2
    width = batch.mask.shape[1]
    rows = [2 * p for p in range(count)] + [2 * p + 1 for p in range(count)]
    log_probs = batch.log_probs.clone().requires_grad_()
    counted = (log_probs[rows] * batch.mask[rows]).to(dtype)
    every_ref = rounded(batch.log_probs + far * (batch.ref - batch.log_probs))
    tokens = every_ref[rows] * batch.mask[rows]
    if ld_alpha is not None:
        # The reference's own passes do this in the trainer; here they are given as sums.
        position = batch.mask[rows].cumsum(1)
        lengths = batch.mask[rows].sum(1)
        shared = torch.minimum(lengths[:count], lengths[count:]).repeat(2)
        tokens = torch.where(position > shared[:, None], ld_alpha * tokens, tokens)
    ref = tokens.sum(1).to(dtype)
    zeros = torch.zeros_like(counted)
    outputs = types.SimpleNamespace(
        log_probs=counted, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), aux_loss=None,
        log_sum_sq_probs=(batch.squares[rows] + 1 / 1024).log())
    same = lambda x: x
    trainer = types.SimpleNamespace(
        model=types.SimpleNamespace(training=True), aux_loss_enabled=False, ld_alpha=ld_alpha,
        precompute_ref_logps=True, f_divergence_type=divergence,
        f_alpha_divergence_coef=alpha, loss_types=loss_types,
        loss_weights=weights, beta=beta, label_smoothing=smoothing,
        use_weighting=weighting,
        args=types.SimpleNamespace(discopop_tau=tau),
        accelerator=types.SimpleNamespace(device="cpu", gather_for_metrics=same, gather=same),
        _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
        _total_train_tokens=0, _tp_size=1)
    # A prompt token in front, as the trainer shifts by one.
    front = torch.zeros(len(rows), 1)
    inputs = {"input_ids": torch.zeros(len(rows), width + 1, dtype=torch.long),
              "attention_mask": torch.cat([front + 1, batch.valid[rows]], 1),
              "completion_mask": torch.cat([front, batch.mask[rows]], 1),
              "ref_chosen_logps": ref[:count], "ref_rejected_logps": ref[count:]}
    loss = DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    loss.backward()
    return {"loss_types": loss_types, "loss_weights": weights, "beta": beta,
            "label_smoothing": smoothing, "pairs": count, "f_divergence_type": divergence,
            "f_alpha_divergence_coef": alpha, "discopop_tau": tau, "ld_alpha": ld_alpha,
            **({"use_weighting": True} if weighting else {}),
            **({"ref": batch.pack(every_ref)} if far != 1 else {}), "loss": loss.item(),
            "gradient": batch.pack(log_probs.grad),
            "metrics": {name: trainer._metrics["train"]["rewards/" + name][0]
                        for name in ["chosen", "rejected", "margins", "accuracies"]}}


def dpo(batch):
    out = []
    add = lambda *arguments, **options: out.append(dpo_case(batch, *arguments, **options))
    for beta in [0.1, 0.5]:
        for loss_type in ["sigmoid", "ipo", "hinge", "nca_pair", "bco_pair", "sppo_hard", "aot",
                          "aot_unpaired", "apo_zero", "apo_down", "discopop", "sigmoid_norm"]:
            add([loss_type], [1.0], beta=beta)
        for loss_type in ["robust", "exo_pair", "aot", "aot_unpaired"]:
            add([loss_type], [1.0], 0.1, beta=beta)
        add(["sigmoid", "sft"], [0.7, 0.3], beta=beta)
        add(["ipo", "sft"], [1.0, 0.5], beta=beta)
        add(["sigmoid", "bco_pair", "sft"], [0.8, 0.2, 1.0], beta=beta)
        # One pair: aot's sorting does nothing, and it is the smoothed sigmoid.
        add(["aot"], [1.0], 0.1, 1, beta=beta)
    add(["discopop"], [1.0], tau=0.7, beta=0.5)
    add(["sft"], [0.4])
    for loss_type in ["sigmoid", "hinge", "nca_pair", "apo_down", "aot_unpaired"]:
        add([loss_type], [1.0], beta=0.5, far=12)
    for loss_type, smoothing in [("sigmoid", 0.0), ("sigmoid_norm", 0.0), ("hinge", 0.0),
                                 ("ipo", 0.0), ("exo_pair", 0.1), ("robust", 0.1),
                                 ("discopop", 0.0)]:
        for divergence in ["forward_kl", "js_divergence"]:
            add([loss_type], [1.0], smoothing, beta=0.5, divergence=divergence)
        # It knows no fp64 for this one.
        for alpha in [0.3, 1.0, 1.7]:
            add([loss_type], [1.0], smoothing, beta=0.5, divergence="alpha_divergence", alpha=alpha,
                dtype=torch.float32)
    for loss_type in ["sigmoid", "ipo", "aot", "sppo_hard"]:
        for ld_alpha in [0.0, 0.4]:
            add([loss_type], [1.0], beta=0.5, ld_alpha=ld_alpha)
    # WPO. TRL's backward fails with hinge, its forward with sft; it refuses those that sort.
    for loss_type in ["sigmoid", "ipo", "nca_pair", "bco_pair", "sppo_hard", "apo_zero",
                      "apo_down", "discopop", "sigmoid_norm"]:
        add([loss_type], [1.0], beta=0.5, weighting=True)
    for loss_type in ["robust", "exo_pair"]:
        add([loss_type], [1.0], 0.1, beta=0.5, weighting=True)
    add(["sigmoid", "bco_pair"], [0.8, 0.2], weighting=True)
    add(["sigmoid"], [1.0], beta=0.5, weighting=True, ld_alpha=0.4, divergence="js_divergence")
    add(["sigmoid"], [1.0], beta=0.5, weighting=True, count=1, far=12)
    return out


def document(cases):
    shorten = lambda x: float(f"{x:.9g}")
    round_all = lambda x: ({k: round_all(v) for k, v in x.items()} if isinstance(x, dict) else
                           [round_all(v) for v in x] if isinstance(x, list) else
                           shorten(x) if isinstance(x, float) else x)
    made = {"made_with": {"verl": "0.9.1", "trl": "1.16.0"}, "scale_factor": SCALE_FACTOR,
            "cases": round_all(cases)}
    text = json.dumps(made, separators=(",", ":"))
    # A line per group of values, so that a change can be read.
    return text.replace('},{"', '},\n{"').replace('],"', '],\n"') + "\n"


def main():
    torch.manual_seed(0)  # Clip-Cov draws by it
    cases = []
    for seed in [1, 2]:
        batch = Batch(seed)
        cases.append({"inputs": batch.inputs(), "advantages": advantages(batch),
                      "policy_losses": policy_losses(batch),
                      "trl_policy_losses": trl_policy_losses(batch), "entropy_control": entropy_control(batch), "kl_losses": kl_losses(batch),
                      "value_losses": value_losses(batch), "corrections": corrections(batch),
                      "kl_control": kl_control(batch), "dpo": dpo(batch)})
    sys.stdout.write(document(cases))


if __name__ == "__main__":
    main()
