"""Whole runs of RL with random options on responses that are made up, and the same runs by stock PyTorch: tests that nobody has chosen.

    rl_train_cases_test.py [FIRST COUNT]

By default a few runs that are always the same; with KEEL_NIGHTLY=1 as many as KEEL_SEEDS says, others every day. KEEL_BINARY is the program.

`trainer.rollout_replay_dir` has responses of random tokens, some of them given by a tool, with random scores and log-probabilities of a
rollout. What is drawn beside that: the layout, micro- and mini-batches, epochs, estimators, KL in the reward (its controller steered or not) or in
the loss, entropy, clipping, how token losses become one, weights and bounds of off-policy tokens, rates, a critic that learns alone at first. Half of the runs are
started again in their middle, under another layout. What a step says, and the weights of actor and critic at the end, must be those of a loop
over torch.optim.AdamW on transformers' model, in fp64, with losses written down here, within what that loop differs by in fp32.
"""

import json
import math
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

import safetensors.torch
import torch
import transformers
from train_cases_test import LAYOUTS, SECONDS_A_DAY, Wrong, keel, near, rate

SEEDS = 3
SEEDS_A_NIGHT = 150
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
LONGEST = 9


def draw_case(seed):
    r = random.Random(seed)
    heads = r.choice([2, 3, 4])
    model = {
        "vocab_size": r.randint(50, 90), "hidden_size": heads * 2 * r.randint(2, 6), "intermediate_size": r.randint(8, 40),
        "num_hidden_layers": r.randint(2, 3), "num_attention_heads": heads, "num_key_value_heads": r.choice([1, heads]),
        "max_position_embeddings": 64, "tie_word_embeddings": r.random() < 0.5, "rope_theta": 10000.0, "eos_token_id": 2,
    }  # fmt: skip
    first, second = r.choice(LAYOUTS), r.choice(LAYOUTS)
    ranks = math.lcm(first[2], second[2])
    samples, minis, steps = ranks * r.choice([1, 2, 3]), r.choice([1, 1, 2]), r.randint(2, 6)
    prompts = minis * r.choice([1, 2, 3])
    estimator = r.choice(["grpo", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae", "gae"])
    optim = lambda: {"lr": r.choice([1e-3, 3e-3]), "betas": [r.choice([0.0, 0.9]), r.choice([0.95, 0.999])], "eps": r.choice([1e-3, 1e-2]),
                     "weight_decay": r.choice([0.0, 0.1]), "clip_grad": r.choice([0.0, 0.1, 1.0]), "lr_warmup_steps": r.choice([0, 1, 2])}  # fmt: skip
    batches = []
    for step in range(steps):
        batch = []
        for prompt in range(prompts):
            ids = [r.randrange(3, model["vocab_size"]) for _ in range(r.randint(1, 8))]
            equal = r.random() < 0.2
            for sample in range(samples):
                tokens = [r.randrange(3, model["vocab_size"]) for _ in range(r.randint(1, LONGEST))]
                given = []
                if len(tokens) > 3 and r.random() < 0.3:
                    begin = r.randint(1, len(tokens) - 2)
                    given = [[begin, r.randint(begin + 1, len(tokens) - 1)]]
                batch.append({"position": step * prompts + prompt, "row": prompt, "sample": sample, "data_source": "made", "prompt_ids": ids,
                              "response_ids": tokens, "rollout_log_probs": [-4.2 + r.uniform(-1, 1) for _ in tokens], "finish_reason": "stop",
                              "weight_version": step, "score": 1.0 if equal else r.choice([0.0, 1.0, r.uniform(-2, 2)]), "extra": {},
                              "baseline": 0.0, "output": "", **({"given": given} if given else {})})  # fmt: skip
        batches.append(batch)
    in_reward = r.random() < 0.4
    micro = [r.choice([1, 2, 3]) for _ in range(2)]
    low, high = r.choice([0.05, 0.2]), r.choice([0.05, 0.28])
    return {
        "seed": seed, "family": r.choice(["llama", "qwen2"]), "model": model, "layouts": [first, second], "micro": micro, "samples": samples,
        "prompts": prompts, "mini": prompts // minis, "epochs": r.choice([1, 1, 2, 3]), "steps": steps, "batches": batches, "estimator": estimator,
        "by_std": r.random() < 0.5, "gamma": r.choice([1.0, 0.9]), "lam": r.choice([1.0, 0.9]), "mode": r.choice(MODES), "scale": r.choice([None, 5]),
        "low": low, "high": high, "c": r.choice([1.5, 3.0]), "entropy": r.choice([0.0, 0.0, 0.01]),
        "kl_loss": None if in_reward else r.choice([None, None, "k1", "abs", "k2", "low_var_kl"]), "kl_loss_coef": 0.3,
        "kl_reward": r.choice(["k1", "abs", "k2", "low_var_kl"]) if in_reward else None, "kl_coef": 0.2, "adaptive": r.random() < 0.5,
        "horizon": r.choice([50, 1000]), "target_kl": r.choice([0.01, 0.5]), "weights": r.choice([None, None, "token", "sequence"]),
        "threshold": r.choice([1.1, 2.0]), "cliprange_value": r.choice([0.05, 0.5]), "optim": optim() | {"lr_decay_style": r.choice(["constant", "linear", "cosine"])},
        "critic": optim() | {"lr_decay_style": "constant"}, "again": r.random() < 0.5, "offload": r.random() < 0.3,
        "warmup": r.choice([0, 0, 1]) if estimator == "gae" else 0,
    }  # fmt: skip


class Actor:
    """log p of each response's tokens, and the entropies there."""

    def __init__(self, folder, dtype):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").to(dtype)

    def __call__(self, row):
        prompt, response = row["prompt_ids"], row["response_ids"]
        logits = self.model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        log_probs = logits.log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(1, torch.tensor(response)[:, None])[:, 0], entropy


class Critic:
    def __init__(self, folder, dtype):
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        self.model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").to(dtype)
        self.head = torch.nn.Parameter(weights["score.weight"].to(dtype))

    def parameters(self):
        return [*self.model.parameters(), self.head]

    def __call__(self, row):
        prompt, response = row["prompt_ids"], row["response_ids"]
        hidden = self.model(torch.tensor([prompt + response])).last_hidden_state[0]
        return (hidden @ self.head.T)[len(prompt) - 1 : -1, 0]


def mask_of(row):
    mask = torch.ones(len(row["response_ids"]), dtype=torch.float64)
    for begin, end in row.get("given", []):
        mask[begin:end] = 0
    return mask


def kl(kind, p, ref):
    if kind == "k1":
        return p - ref
    if kind == "abs":
        return (p - ref).abs()
    if kind == "k2":
        return 0.5 * (p - ref) ** 2
    x = (ref - p).clamp(-20, 20)
    return (x.exp() - x - 1).clamp(-10, 10)


def together(case, values, masks):
    """By loss_agg_mode, over the responses of a mini-batch."""
    tokens = sum(mask.sum() for mask in masks)
    sums = [(value * mask.to(value.dtype)).sum() for value, mask in zip(values, masks, strict=True)]
    mode, rows = case["mode"], len(values)
    if mode == "token-mean":
        return sum(sums) / tokens
    if mode == "token-sum":
        return sum(sums)
    if mode == "seq-mean-token-sum":
        return sum(sums) / rows
    if mode == "seq-mean-token-mean":
        return sum(one / mask.sum() for one, mask in zip(sums, masks, strict=True)) / rows
    return sum(sums) / rows / (case["scale"] or LONGEST)


def whitened(values, masks):
    flat = torch.cat([value[mask > 0] for value, mask in zip(values, masks, strict=True)]).double()
    mean = flat.mean()
    variance = flat.var(unbiased=True) if len(flat) > 1 else torch.zeros(())
    if (flat - mean).abs().max() < 1e-12:
        return [torch.zeros_like(value) for value in values]
    return [(value - mean) * (variance + 1e-8).rsqrt() for value in values]


def advantages(case, rewards, masks, groups, values):
    """(advantages, returns), fp64."""
    scores = [(reward * mask).sum() for reward, mask in zip(rewards, masks, strict=True)]
    of = lambda group: [score for score, one in zip(scores, groups, strict=True) if one == group]
    name = case["estimator"]
    if name == "gae":
        out, returns = [], []
        for reward, mask, value in zip(rewards, masks, values, strict=True):
            advantage, later, last = torch.zeros_like(reward), 0.0, 0.0
            for t in reversed(range(len(reward))):
                if mask[t] > 0:
                    last = reward[t] + case["gamma"] * later - value[t] + case["gamma"] * case["lam"] * last
                    later = value[t]
                advantage[t] = last
            out.append(advantage)
            returns.append(advantage + value)
        return whitened(out, masks), returns
    if name == "reinforce_plus_plus":
        out = []
        for reward, mask in zip(rewards, masks, strict=True):
            sums, total = torch.zeros_like(reward), 0.0
            for t in reversed(range(len(reward))):
                if mask[t] > 0:
                    total = reward[t] + case["gamma"] * total
                sums[t] = total
            out.append(sums)
        return whitened(out, masks), out
    out = []
    for score, group, reward in zip(scores, groups, rewards, strict=True):
        others = torch.stack(of(group))
        alone = len(others) == 1
        if name == "rloo":
            one = score if alone else score - (others.sum() - score) / (len(others) - 1)
        elif name == "reinforce_plus_plus_baseline":
            one = score - (0.0 if alone else others.mean())
        else:
            mean, deviation = (0.0, 1.0) if alone else (others.mean(), others.std())
            one = (score - mean) / (deviation + 1e-6) if case["by_std"] else score - mean
        out.append(one * torch.ones_like(reward))
    if name == "reinforce_plus_plus_baseline":
        out = whitened(out, masks)
    return out, out


def policy_loss(case, p, old, advantage, weight):
    ratio = (p - old).clamp(-20, 20).exp()
    plain, clipped = -advantage * ratio, -advantage * ratio.clamp(1 - case["low"], 1 + case["high"])
    loss = torch.maximum(plain, clipped)
    loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * case["c"]), loss)
    return loss * weight


def stepper(parameters, options):
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": options["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
                                  betas=tuple(options["betas"]), eps=options["eps"])  # fmt: skip

    def step(loss, lr):
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, options["clip_grad"] or math.inf).item()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        return norm

    return step


def reference(folder, case, dtype):
    actor, policy = Actor(folder / "hf", dtype), Actor(folder / "hf", dtype)
    critic = Critic(folder / "critic", dtype) if case["estimator"] == "gae" else None
    step_actor = stepper(list(actor.model.parameters()), case["optim"])
    step_critic = stepper(critic.parameters(), case["critic"]) if critic else None
    coefficient, said, moved = case["kl_coef"], [], [0.0, 0.0]
    updates = case["epochs"] * (case["prompts"] // case["mini"])
    for number, batch in enumerate(case["batches"]):
        masks = [mask_of(row) for row in batch]
        with torch.no_grad():
            old = [actor(row)[0] for row in batch]
            ref = [policy(row)[0] for row in batch]
            values = [critic(row).double() for row in batch] if critic else None
        rewards = []
        for row, mask in zip(batch, masks, strict=True):
            reward = torch.zeros_like(mask)
            reward[int(mask.nonzero()[-1])] = row["score"]
            rewards.append(reward)
        record = {}
        if case["kl_reward"]:
            apart = [kl(case["kl_reward"], p.double(), q.double()) * mask for p, q, mask in zip(old, ref, masks, strict=True)]
            rewards = [reward - coefficient * one for reward, one in zip(rewards, apart, strict=True)]
            current = sum(one.sum() / mask.sum() for one, mask in zip(apart, masks, strict=True)).item() / len(batch)
            record["actor/reward_kl_penalty"], record["actor/reward_kl_penalty_coeff"] = current, coefficient
            if case["adaptive"]:
                error = min(0.2, max(-0.2, current / case["target_kl"] - 1))
                coefficient *= 1 + error * len(batch) / case["horizon"]
        learnt, returns = advantages(case, rewards, masks, [row["position"] for row in batch], values)
        apart = [(p - torch.tensor(row["rollout_log_probs"]).double()) for p, row in zip(old, batch, strict=True)]
        weights = [torch.ones_like(p) for p in old]
        if case["weights"] == "token":
            weights = [one.clamp(-20, 20).exp().clamp(max=case["threshold"]) for one in apart]
        if case["weights"] == "sequence":
            weights = [torch.ones_like(one) * (one * mask).sum().clamp(-20, 20).exp().clamp(max=case["threshold"]) for one, mask in zip(apart, masks, strict=True)]
        scores = [reward.sum().item() for reward in rewards]
        flat = lambda values: torch.cat([value[mask > 0].double() for value, mask in zip(values, masks, strict=True)])
        record["critic/rewards/mean"] = sum(scores) / len(scores)
        record["critic/advantages/max"], record["critic/advantages/min"] = flat(learnt).max().item(), flat(learnt).min().item()
        record["critic/returns/mean"] = flat(returns).mean().item()
        least = case["mini"] * case["samples"]
        learns = number >= case["warmup"]
        lr = rate(case, max(0, number - case["warmup"]))
        value_lr = rate({"optim": case["critic"], "steps": case["steps"]}, number)
        for _ in range(case["epochs"]):
            for begin in range(0, len(batch), least):
                part = range(begin, begin + least)
                mask = [masks[i] for i in part]
                if critic:
                    losses = []
                    for i in part:
                        value, before, goal = critic(batch[i]), values[i].to(dtype), returns[i].to(dtype)
                        cut = torch.maximum(torch.minimum(value, before + case["cliprange_value"]), before - case["cliprange_value"])
                        losses.append(0.5 * torch.maximum((value - goal) ** 2, (cut - goal) ** 2))
                    loss = together(case, losses, mask)
                    norm = step_critic(loss, value_lr)
                    moved[1] += value_lr
                    if updates == 1:
                        record["critic/vf_loss"], record["critic/grad_norm"] = loss.item(), norm
                if not learns:
                    continue
                now = [actor(batch[i]) for i in part]
                terms = [policy_loss(case, p, old[i], learnt[i].to(dtype), weights[i].to(dtype)) for i, (p, _) in zip(part, now, strict=True)]
                loss = pg = together(case, terms, mask)
                if case["entropy"]:
                    loss = loss - case["entropy"] * together(case, [entropy for _, entropy in now], mask)
                if case["kl_loss"]:
                    loss = loss + case["kl_loss_coef"] * together(case, [kl(case["kl_loss"], p, ref[i]) for i, (p, _) in zip(part, now, strict=True)], mask)
                norm = step_actor(loss, lr)
                moved[0] += lr
                if updates == 1:
                    record["actor/pg_loss"], record["actor/grad_norm"] = pg.item(), norm
        if learns:
            record["actor/lr"] = lr
        said.append(record)
    weights = {"actor": {name: p.detach() for name, p in actor.model.named_parameters()}}
    if critic:
        weights["critic"] = {f"model.{name}": p.detach() for name, p in critic.model.named_parameters()} | {"score.weight": critic.head.detach()}
    return {"steps": said, "weights": weights, "moved": {"actor": moved[0], "critic": moved[1]}}


def configuration(case, folder, which):
    tp, pp, _ = case["layouts"][which]
    offload = {f"{what}_offload": case["offload"] for what in ["param", "grad", "optimizer"]}
    config = {
        "trainer": {"task": "rl", "default_local_dir": str(folder / "run"), "total_training_steps": case["steps"], "save_freq": 1, "test_freq": -1,
                    "seed": 3, "device": "cpu", "logger": ["jsonl"], "critic_warmup": case["warmup"], "rollout_replay_dir": str(folder / "responses")},
        "data": {"train_files": [str(folder / "prompts.jsonl")], "tokenizer": "ids", "max_prompt_length": 8, "max_response_length": LONGEST,
                 "train_batch_size": case["prompts"]},
        "actor_rollout_ref": {
            "model": {"path": str(folder / "hf"), "dtype": "float32"},
            "actor": {"megatron": {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, **offload}, "ppo_mini_batch_size": case["mini"],
                      "ppo_micro_batch_size_per_gpu": case["micro"][which], "ppo_epochs": case["epochs"], "clip_ratio_low": case["low"],
                      "clip_ratio_high": case["high"], "clip_ratio_c": case["c"], "loss_agg_mode": case["mode"], "entropy_coeff": case["entropy"],
                      "use_kl_loss": case["kl_loss"] is not None, "kl_loss_coef": case["kl_loss_coef"], "optim": case["optim"]},
            "rollout": {"n": case["samples"]},
        },
        "critic": {"model": {"path": str(folder / "critic")}, "cliprange_value": case["cliprange_value"], "optim": case["critic"]},
        "algorithm": {"adv_estimator": case["estimator"], "norm_adv_by_std_in_grpo": case["by_std"],
                      "use_kl_in_reward": case["kl_reward"] is not None,
                      "kl_ctrl": {"type": "adaptive" if case["adaptive"] else "fixed", "kl_coef": case["kl_coef"], "horizon": case["horizon"], "target_kl": case["target_kl"]},
                      "rollout_correction": {"rollout_is": case["weights"], "rollout_is_threshold": str(case["threshold"])}},
        "reward": {"type": "command", "command": ["cat"]},
    }  # fmt: skip
    actor, algorithm = config["actor_rollout_ref"]["actor"], config["algorithm"]
    if case["estimator"] in ["gae", "reinforce_plus_plus"]:
        algorithm["gamma"] = case["gamma"]
    if case["estimator"] == "gae":
        algorithm["lam"] = case["lam"]
    if case["mode"] == "seq-mean-token-sum-norm" and case["scale"]:
        actor["loss_scale_factor"] = case["scale"]
    if case["kl_loss"]:
        actor["kl_loss_type"] = case["kl_loss"]
    if case["kl_reward"]:
        algorithm["kl_penalty"] = case["kl_reward"]
    if case["estimator"] != "gae":
        del config["critic"]
    path = folder / f"run{which}.yaml"
    path.write_text(json.dumps(config))
    return path


def write(case, folder):
    torch.manual_seed(case["seed"])
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(case["family"], **case["model"]))
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder / "hf")
    model.save_pretrained(folder / "critic")
    file = folder / "critic" / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    weights.pop("lm_head.weight", None)
    weights["score.weight"] = 0.1 * torch.randn(1, case["model"]["hidden_size"])
    safetensors.torch.save_file(weights, file, {"format": "pt"})
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": [5, 6, 7 + i], "ground_truth": "1", "data_source": "made"}) + "\n" for i in range(case["prompts"] * 3)))
    (folder / "responses").mkdir()
    for number, batch in enumerate(case["batches"], 1):
        (folder / "responses" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in batch))


def train(case, folder, which):
    tp, pp, dp = case["layouts"][which]
    ranks = tp * pp * dp
    keel(*(["launch", "--nproc-per-node", ranks] if ranks > 1 else []), "train", configuration(case, folder, which))


def check(case, folder):
    write(case, folder)
    exact, single = reference(folder, case, torch.float64), reference(folder, case, torch.float32)
    train(case, folder, 0)
    middle = case["steps"] // 2
    if case["again"]:
        for step in range(middle + 1, case["steps"] + 1):
            shutil.rmtree(folder / "run" / f"global_step_{step}", ignore_errors=True)
        (folder / "run" / "latest_checkpointed_iteration.txt").write_text(f"{middle}\n")
        train(case, folder, 1)
    seen = set()
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "critic/rewards/mean" not in record["data"]:
            continue
        step = record["step"]
        seen.add(step)
        for name, value in exact["steps"][step - 1].items():
            if name not in record["data"]:
                raise Wrong(f"step {step} does not say {name}")
            near(f"{name} of step {step}", record["data"][name], value, single["steps"][step - 1][name], 1e-5)
    if seen != set(range(1, case["steps"] + 1)):
        raise Wrong(f"steps {sorted(seen)} of {case['steps']}")
    for role, weights in exact["weights"].items():
        keel("ckpt", "export-hf", "--role", role, folder / "run" / f"global_step_{case['steps']}", folder / f"exported_{role}")
        found = safetensors.torch.load_file(folder / f"exported_{role}" / "model.safetensors")
        for name, expected in weights.items():
            apart = (found[name].double() - expected).abs().max().item()
            slack = 1e-6 + 2e-3 * exact["moved"][role] + 30 * (single["weights"][role][name].double() - expected).abs().max().item()
            if not apart <= slack:
                raise Wrong(f"{role}'s {name} is {apart} off, at rates of {exact['moved'][role]} in all")


def main():
    first, count = 0, SEEDS
    if len(sys.argv) > 2:
        first, count = int(sys.argv[1]), int(sys.argv[2])
    elif os.environ.get("KEEL_NIGHTLY") == "1":
        first, count = int(time.time()) // SECONDS_A_DAY * 1000, int(os.environ.get("KEEL_SEEDS", SEEDS_A_NIGHT))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    wrong, steps, again = 0, 0, 0
    for seed in range(first, first + count):
        case = draw_case(seed)
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(case, pathlib.Path(folder))
                steps += case["steps"]
                again += case["again"]
            except Wrong as error:
                wrong += 1
                print(f"--- seed {seed}: {error}\n{json.dumps({key: value for key, value in case.items() if key != 'batches'})}", flush=True)
    print(f"{count} runs from seed {first} on, {steps} steps, {again} started again in the middle: {wrong} differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
