"""Whole runs of DPO with random options, and the same runs by stock PyTorch: tests that nobody has chosen.

    dpo_train_cases_test.py [FIRST COUNT]

By default a few runs that are always the same; with KEEL_NIGHTLY=1 as many as KEEL_SEEDS says, others every day. KEEL_BINARY is the program.

What is drawn: pairs of answers of one token to nine, the layout, micro-batches, losses and their mixtures, a reference that stays or follows, rates.
Half of the runs are started again in their middle, under another layout. What a step says, and the weights at the end, must be those of a
loop over torch.optim.AdamW on transformers' model, in fp64, with losses written down here, within what that loop differs by in fp32.
"""

import copy
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
from rl_train_cases_test import Actor, stepper
from train_cases_test import LAYOUTS, SECONDS_A_DAY, Wrong, keel, near, rate

SEEDS = 2
SEEDS_A_NIGHT = 100
LOSSES = ["sigmoid", "ipo", "hinge", "sigmoid_norm", "apo_zero", "apo_down", "nca_pair", "sppo_hard"]


def draw_case(seed):
    r = random.Random(seed)
    heads = r.choice([2, 3, 4])
    model = {
        "vocab_size": r.randint(50, 90), "hidden_size": heads * 2 * r.randint(2, 6), "intermediate_size": r.randint(8, 40),
        "num_hidden_layers": r.randint(2, 3), "num_attention_heads": heads, "num_key_value_heads": r.choice([1, heads]),
        "max_position_embeddings": 64, "tie_word_embeddings": r.random() < 0.5, "rope_theta": 10000.0, "eos_token_id": 2,
    }  # fmt: skip
    first, second = r.choice(LAYOUTS), r.choice(LAYOUTS)
    micro = [r.choice([1, 1, 2]) for _ in range(2)]
    batch = r.choice([1, 2]) * math.lcm(first[2] * micro[0], second[2] * micro[1])
    # No answer begins as its prompt does, which would be refused.
    text = lambda most, least: [r.randrange(least, least + 20) for _ in range(r.randint(1, most))]
    return {
        "seed": seed, "family": r.choice(["llama", "qwen2"]), "model": model, "layouts": [first, second], "micro": micro, "batch": batch,
        "pairs": [{"prompt_input_ids": text(8, 3), "chosen_input_ids": text(9, 25), "rejected_input_ids": text(9, 25)} for _ in range(r.randint(2, 12))],
        "steps": r.randint(2, 7), "beta": r.choice([0.1, 0.5]), "loss": r.choice(LOSSES), "sft": r.choice([0.0, 0.0, 0.3]),
        "smoothing": r.choice([0.0, 0.2]), "follows": r.choice([None, None, 1, 2]), "alpha": r.choice([0.3, 0.6]), "offload": r.random() < 0.3,
        "optim": {"lr": r.choice([1e-3, 3e-3]), "betas": [r.choice([0.0, 0.9]), r.choice([0.95, 0.999])], "eps": r.choice([1e-3, 1e-2]),
                  "weight_decay": r.choice([0.0, 0.1]), "clip_grad": r.choice([0.0, 0.1, 1.0]), "lr_warmup_steps": r.choice([0, 1]),
                  "lr_decay_style": r.choice(["constant", "linear", "cosine"])},
        "again": r.random() < 0.5,
    }  # fmt: skip


def rows_of(pair):
    return [{"prompt_ids": pair["prompt_input_ids"], "response_ids": pair[f"{which}_input_ids"]} for which in ["chosen", "rejected"]]


def loss_of(case, c, j, lengths):
    ls, beta = torch.nn.functional.logsigmoid, case["beta"]
    name, margin = case["loss"], beta * (c - j)
    if name == "sigmoid":
        return -(1 - case["smoothing"]) * ls(margin) - case["smoothing"] * ls(-margin)
    if name == "ipo":
        return (c / lengths[0] - j / lengths[1] - 1 / (2 * beta)) ** 2
    if name == "hinge":
        return torch.relu(1 - margin)
    if name == "sigmoid_norm":
        return -ls(beta * (c / lengths[0] - j / lengths[1]))
    if name == "apo_zero":
        return 1 - (beta * c).sigmoid() + (beta * j).sigmoid()
    if name == "apo_down":
        return (beta * c).sigmoid() + 1 - margin.sigmoid()
    if name == "nca_pair":
        return -ls(beta * c) - 0.5 * ls(-beta * c) - 0.5 * ls(-beta * j)
    return (c - 1 / (2 * beta)) ** 2 + (j + 1 / (2 * beta)) ** 2


def reference(folder, case, dtype):
    actor, before = Actor(folder / "hf", dtype), Actor(folder / "hf", dtype)
    step = stepper(list(actor.model.parameters()), case["optim"])
    said, moved, at = [], 0.0, 0
    for number in range(case["steps"]):
        losses, likelihood, tokens, margins = [], 0.0, 0, []
        for k in range(case["batch"]):
            rows = rows_of(case["pairs"][(at + k) % len(case["pairs"])])
            now = [actor(row)[0] for row in rows]
            with torch.no_grad():
                then = [before(row)[0] for row in rows]
            c, j = (p.sum() - q.sum() for p, q in zip(now, then, strict=True))
            losses.append(loss_of(case, c, j, [len(row["response_ids"]) for row in rows]))
            margins.append(case["beta"] * (c - j).item())
            likelihood, tokens = likelihood - now[0].sum(), tokens + len(now[0])
        at += case["batch"]
        loss = sum(losses) / len(losses) + case["sft"] * likelihood / tokens
        lr = rate(case, number)
        moved += lr
        said.append({"norm": step(loss, lr), "loss": loss.item(), "lr": lr, "margin": sum(margins) / len(margins)})
        if case["follows"] and (number + 1) % case["follows"] == 0:
            with torch.no_grad():
                for mine, its in zip(before.model.parameters(), actor.model.parameters(), strict=True):
                    mine.copy_(case["alpha"] * its + (1 - case["alpha"]) * mine)
    return {"steps": said, "moved": moved, "weights": {name: p.detach() for name, p in actor.model.named_parameters()}}


def train(case, folder, which):
    tp, pp, dp = case["layouts"][which]
    offload = {f"{what}_offload": case["offload"] for what in ["param", "grad", "optimizer"]}
    config = {
        "trainer": {"task": "dpo", "default_local_dir": str(folder / "run"), "total_training_steps": case["steps"], "save_freq": 1, "test_freq": -1,
                    "seed": 3, "device": "cpu", "logger": ["jsonl"]},
        "data": {"train_files": [str(folder / "pairs.jsonl")], "tokenizer": "ids", "max_prompt_length": 8, "max_response_length": 9, "shuffle": False,
                 "train_batch_size": case["batch"], "micro_batch_size_per_gpu": case["micro"][which]},
        "actor_rollout_ref": {
            "model": {"path": str(folder / "hf"), "dtype": "float32"},
            "actor": {"megatron": {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, **offload}, "optim": case["optim"]},
            "ref": {"sync_ref_model": True, "ref_model_mixup_alpha": case["alpha"], "ref_model_sync_steps": case["follows"]} if case["follows"] else {},
        },
        "dpo": {"beta": case["beta"], "loss_type": case["loss"], "sft_loss_weight": case["sft"]},
    }  # fmt: skip
    if case["loss"] == "sigmoid":
        config["dpo"]["label_smoothing"] = case["smoothing"]
    path = folder / f"run{which}.yaml"
    path.write_text(json.dumps(config))
    ranks = tp * pp * dp
    keel(*(["launch", "--nproc-per-node", ranks] if ranks > 1 else []), "train", path)


def check(case, folder):
    torch.manual_seed(case["seed"])
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(case["family"], **case["model"]))
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder / "hf")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in case["pairs"]))
    exact, single = reference(folder, copy.deepcopy(case), torch.float64), reference(folder, copy.deepcopy(case), torch.float32)
    train(case, folder, 0)
    if case["again"]:
        middle = case["steps"] // 2
        for step in range(middle + 1, case["steps"] + 1):
            shutil.rmtree(folder / "run" / f"global_step_{step}", ignore_errors=True)
        (folder / "run" / "latest_checkpointed_iteration.txt").write_text(f"{middle}\n")
        train(case, folder, 1)
    seen = set()
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        data = record["data"]
        if "train/loss" not in data:
            continue
        step = record["step"]
        seen.add(step)
        for name, key in [("loss", "train/loss"), ("norm", "train/grad_norm"), ("margin", "rewards/margins")]:
            near(f"{name} of step {step}", data[key], exact["steps"][step - 1][name], single["steps"][step - 1][name], 1e-5)
        if not math.isclose(data["train/lr"], exact["steps"][step - 1]["lr"], rel_tol=1e-9, abs_tol=1e-15):
            raise Wrong(f"rate of step {step} is {data['train/lr']}")
    if seen != set(range(1, case["steps"] + 1)):
        raise Wrong(f"steps {sorted(seen)} of {case['steps']}")
    keel("ckpt", "export-hf", folder / "run" / f"global_step_{case['steps']}", folder / "exported")
    found = safetensors.torch.load_file(folder / "exported" / "model.safetensors")
    for name, expected in exact["weights"].items():
        apart = (found[name].double() - expected).abs().max().item()
        slack = 1e-6 + 2e-3 * exact["moved"] + 30 * (single["weights"][name].double() - expected).abs().max().item()
        if not apart <= slack:
            raise Wrong(f"{name} is {apart} off, at rates of {exact['moved']} in all")


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
                print(f"--- seed {seed}: {error}\n{json.dumps({key: value for key, value in case.items() if key != 'pairs'})}", flush=True)
    print(f"{count} runs from seed {first} on, {steps} steps, {again} started again in the middle: {wrong} differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
