"""Whole runs of `keel train` with random options, and the same runs by stock PyTorch: tests that nobody has chosen.

    train_cases_test.py [FIRST COUNT]

By default a few runs that are always the same; with KEEL_NIGHTLY=1 as many as KEEL_SEEDS says, others every day. KEEL_BINARY is the program.

What is drawn: a small Llama or Qwen2 with tied weights or without, rows with labels of which some or all are not learnt, some too long
for each way to truncate them; the layout, micro-batches, pieces of a gradient, offload, recomputation;
every schedule and its bounds, betas, eps, decay, clipping; how documents become samples; validation. Half of the runs are started
again in their middle, under another layout. Every loss, norm, rate and validation, the count of tokens, and the weights at the end
must be those of a loop over torch.optim.AdamW on transformers' model, in fp64, within what that loop differs by in fp32.
"""

import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import safetensors.torch
import torch
import transformers

FIRST, SEEDS = 11, 3
SEEDS_A_NIGHT = 150
SECONDS_A_DAY = 86400
LIMIT_S = 240
LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 3), (2, 1, 2), (1, 2, 2), (2, 2, 1)]  # tp, pp, dp


class Wrong(Exception):
    pass


def draw_case(seed):
    r = random.Random(seed)
    heads = r.choice([2, 3, 4])
    model = {
        "vocab_size": r.randint(50, 90), "hidden_size": heads * 2 * r.randint(2, 6), "intermediate_size": r.randint(8, 40),
        "num_hidden_layers": r.randint(2, 4), "num_attention_heads": heads, "num_key_value_heads": r.choice([1, heads]),
        "max_position_embeddings": 64, "tie_word_embeddings": r.random() < 0.5, "rope_theta": 10000.0,
    }  # fmt: skip
    family = r.choice(["llama", "qwen2"])
    length = r.randint(6, 24)
    truncation = r.choice(["right", "left", "skip", "error"])
    packing = r.choice(["none", "none", "none", "stream"])
    rows = []
    for _ in range(r.randint(3, 20)):
        tokens = r.randint(2, length + (1 if truncation == "error" else 8))
        ids = [r.randrange(3, model["vocab_size"]) for _ in range(tokens)]
        part = r.choice([0.0, 0.3, 1.0, 1.0])
        rows.append({"input_ids": ids, "labels": [x if r.random() < part else -100 for x in ids]})
    rows.append({"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]})
    steps = r.randint(2, 12)
    optim = {
        "lr": r.choice([1e-3, 3e-3, 1e-4]), "betas": [r.choice([0.0, 0.5, 0.9]), r.choice([0.5, 0.95, 0.999])],
        "eps": r.choice([1e-4, 1e-3]), "weight_decay": r.choice([0.0, 0.1, 1.0]), "clip_grad": r.choice([0.0, 1e-3, 0.5, 1.0, 1e9]),
        "lr_decay_style": r.choice(["constant", "linear", "cosine", "wsd"]), "lr_warmup_steps": r.choice([-1, 0, 1, 2, steps // 2]),
        "lr_decay_steps": r.choice([None, None, steps // 2 + 2, steps + 5]), "min_lr": r.choice([0.0, 1e-5, 1e-4]),
    }  # fmt: skip
    if optim["lr_decay_style"] == "wsd":
        optim["lr_wsd_decay_steps"] = r.choice([None, 1, max(1, steps // 3)])
    first, second = r.choice(LAYOUTS), r.choice(LAYOUTS)
    # A batch is divided over the ranks of either layout, and over their micro-batches.
    micro = [r.choice([1, 1, 2, 3]) for _ in range(2)]
    batch = r.choice([1, 2, 3]) * math.lcm(first[2] * micro[0], second[2] * micro[1])
    return {
        "seed": seed, "family": family, "model": model, "rows": rows, "length": length, "truncation": truncation, "packing": packing,
        "steps": steps, "optim": optim, "layouts": [first, second], "batch": batch, "micro": micro,
        "again": r.random() < 0.5, "test_freq": r.choice([-1, 1, 2]), "bucket": r.choice([32.0, 0.001]),
        "offload": r.random() < 0.3, "recompute": r.random() < 0.3, "sequence_parallel": r.random() < 0.5,
        "async_save": r.random() < 0.5, "before": r.random() < 0.5,
    }  # fmt: skip


def samples_of(case):
    """The (inputs, targets) of each sample in order, and how many rows Keel says it leaves out; a target of -100 is not learnt."""
    length, kept = case["length"], []
    for row in case["rows"]:
        ids, labels = row["input_ids"], row["labels"]
        if len(ids) > length + 1:
            if case["truncation"] == "skip":
                continue
            ids, labels = (ids[-length - 1 :], labels[-length - 1 :]) if case["truncation"] == "left" else (ids[: length + 1], labels[: length + 1])
        kept.append((ids, labels))
    if case["packing"] == "stream":
        kept = [(row["input_ids"], row["labels"]) for row in case["rows"]]
        # One text, of which each sample begins with the last target of the one before it; the rest at the end is a sample, too.
        ids = [x for row in kept for x in row[0]]
        labels = [x for row in kept for x in row[1]]
        kept = [(ids[at : at + length + 1], labels[at : at + length + 1]) for at in range(0, len(ids) - 1, length)]
        return [(i[:-1], t[1:]) for i, t in kept]
    return [(ids[:-1], labels[1:]) for ids, labels in kept if any(x != -100 for x in labels[1:])]


def rate(case, step):
    """Of step 0, 1, …: Megatron's schedules."""
    o, steps = case["optim"], case["steps"]
    warm, peak, least = max(0, o["lr_warmup_steps"]), o["lr"], o.get("min_lr", 0.0)
    if step < warm:
        return peak * step / warm
    if o["lr_decay_style"] == "constant":
        return peak
    end = o.get("lr_decay_steps") or steps
    if step > end:
        return least
    if o["lr_decay_style"] == "wsd":
        begin = max(warm, end - (o["lr_wsd_decay_steps"] or max(1, steps // 10)))
        part = 0.0 if step <= begin else (step - begin) / (end - begin)
        return peak - (peak - least) * part
    part = (step - warm) / (end - warm) if end > warm else 1.0
    return least + (peak - least) * (1 - part if o["lr_decay_style"] == "linear" else 0.5 * (1 + math.cos(math.pi * part)))


def losses(model, batch):
    total, count = 0.0, 0
    for inputs, targets in batch:
        logits = model(torch.tensor([inputs])).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="sum", ignore_index=-100)
        count += sum(x != -100 for x in targets)
    return total, count


def reference(folder, case, samples, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").to(dtype)
    o = case["optim"]
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": o["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
                                  betas=tuple(o["betas"]), eps=o["eps"])  # fmt: skip
    said = {"loss": [], "norm": [], "lr": [], "validation": {}}

    def validate(step):
        with torch.no_grad():
            total, count = losses(model, samples)
        said["validation"][step] = (total / count).item()

    if case["before"] and case["test_freq"] > 0:
        validate(0)
    at = 0
    for step in range(case["steps"]):
        batch = [samples[(at + i) % len(samples)] for i in range(case["batch"])]
        at += case["batch"]
        optimizer.zero_grad()
        total, count = losses(model, batch)
        (total / count).backward()
        limit = o["clip_grad"] if o["clip_grad"] > 0 else math.inf
        said["norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        said["loss"].append((total / count).item())
        said["lr"].append(rate(case, step))
        for group in optimizer.param_groups:
            group["lr"] = said["lr"][-1]
        optimizer.step()
        if case["test_freq"] > 0 and ((step + 1) % case["test_freq"] == 0 or step + 1 == case["steps"]):
            validate(step + 1)
    said["weights"] = {name: p.detach() for name, p in model.named_parameters()}
    return said


def configuration(case, folder, which):
    tp, pp, _ = case["layouts"][which]
    config = {
        "trainer": {"task": "sft", "default_local_dir": str(folder / "run"), "total_training_steps": case["steps"], "save_freq": 1,
                    "test_freq": case["test_freq"], "val_before_train": case["before"], "seed": 3, "device": "cpu", "logger": ["jsonl"]},
        "data": {"train_files": [str(folder / "rows.jsonl")], "tokenizer": "ids", "max_length": case["length"], "shuffle": False,
                 "truncation": case["truncation"], "packing": case["packing"], "train_batch_size": case["batch"],
                 "micro_batch_size_per_gpu": case["micro"][which]},
        "actor_rollout_ref": {
            "model": {"path": str(folder / "hf"), "dtype": "float32", "enable_gradient_checkpointing": case["recompute"]},
            "actor": {"megatron": {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "bucket_megabytes": case["bucket"],
                                   "sequence_parallel": case["sequence_parallel"] and tp > 1,
                                   **{f"{what}_offload": case["offload"] for what in ["param", "grad", "optimizer"]}},
                      "checkpoint": {"async_save": case["async_save"]},
                      "optim": {name: value for name, value in case["optim"].items() if value is not None}},
        },
    }  # fmt: skip
    if case["test_freq"] > 0:
        config["data"]["val_files"] = config["data"]["train_files"]
    path = folder / f"run{which}.yaml"
    path.write_text(json.dumps(config))
    return path


def keel(*arguments):
    done = subprocess.run([os.environ["KEEL_BINARY"], *map(str, arguments)], capture_output=True, text=True, check=False,
                          timeout=LIMIT_S, env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    if done.returncode != 0:
        raise Wrong(f"{arguments[0]}: {done.returncode}: {done.stderr.strip()[-900:]}")


def train(case, folder, which):
    tp, pp, dp = case["layouts"][which]
    ranks = tp * pp * dp
    keel(*(["launch", "--nproc-per-node", ranks] if ranks > 1 else []), "train", configuration(case, folder, which))


def near(what, found, exact, single, floor):
    slack = floor * max(1.0, abs(exact)) + 30 * abs(exact - single)
    if not abs(found - exact) <= slack:
        raise Wrong(f"{what} is {found!r}, expected {exact!r} (PyTorch in fp32: {single!r})")


def check(case, folder):
    torch.manual_seed(case["seed"])
    transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(case["family"], **case["model"])).save_pretrained(folder / "hf")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in case["rows"]))
    samples = samples_of(case)
    exact, single = reference(folder / "hf", case, samples, torch.float64), reference(folder / "hf", case, samples, torch.float32)
    train(case, folder, 0)
    if case["again"]:
        middle = case["steps"] // 2
        for step in range(middle + 1, case["steps"] + 1):
            shutil.rmtree(folder / "run" / f"global_step_{step}", ignore_errors=True)
        (folder / "run" / "latest_checkpointed_iteration.txt").write_text(f"{middle}\n")
        if middle == 0:
            shutil.rmtree(folder / "run")
        train(case, folder, 1)
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    # Of a step that was made twice both lines must be right.
    seen, validated = set(), set()
    for record in records:
        step, data = record["step"], record["data"]
        if "grad_norm" in data:
            seen.add(step)
            for name, key, floor in [("loss", "loss_metrics/global_avg_loss", 2e-6), ("norm", "grad_norm", 1e-5)]:
                near(f"{name} of step {step}", data[key], exact[name][step - 1], single[name][step - 1], floor)
            if not math.isclose(data["lr"], exact["lr"][step - 1], rel_tol=1e-9, abs_tol=1e-15):
                raise Wrong(f"rate of step {step} is {data['lr']}, expected {exact['lr'][step - 1]}")
            consumed = step * case["batch"]
            tokens = sum(len(samples[i % len(samples)][0]) for i in range(consumed))
            if data["n_tokens_seen"] != tokens or data["data/samples_consumed"] != consumed:
                raise Wrong(f"step {step}: {data['n_tokens_seen']} tokens of {data['data/samples_consumed']} samples, expected {tokens} of {consumed}")
        if "validation_metrics/global_avg_loss" in data:
            validated.add(step)
            near(f"validation after step {step}", data["validation_metrics/global_avg_loss"], exact["validation"][step], single["validation"][step], 2e-6)
    if seen != set(range(1, case["steps"] + 1)) or validated != set(exact["validation"]):
        raise Wrong(f"steps {sorted(seen)} of {case['steps']}, validations after {sorted(validated)}, expected after {sorted(exact['validation'])}")
    keel("ckpt", "export-hf", folder / "run" / f"global_step_{case['steps']}", folder / "exported")
    weights = safetensors.torch.load_file(folder / "exported" / "model.safetensors")
    moved = sum(exact["lr"])
    for name, expected in exact["weights"].items():
        apart = (weights[name].double() - expected).abs().max().item()
        slack = 1e-6 + 2e-3 * moved + 30 * (single["weights"][name].double() - expected).abs().max().item()
        if not apart <= slack:
            raise Wrong(f"weights of {name} are {apart} off, at rates of {moved} in all")


def main():
    first, count = FIRST, SEEDS
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
                print(f"--- seed {seed}: {error}\n{json.dumps({key: value for key, value in case.items() if key != 'rows'})}", flush=True)
    print(f"{count} runs from seed {first} on, {steps} steps, {again} started again in the middle: {wrong} differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
