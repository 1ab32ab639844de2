"""Random small models of every family in the folders that people bring, by transformers and by Keel: tests that nobody has chosen.

    model_cases_test.py

Runs under KEEL_NIGHTLY=1, else it says so and is skipped (exit 77). The models are other ones every day: a trace names the
seed of what differs, which `make_model_cases.py FOLDER SEED 1` makes again, and KEEL_FIRST_SEED runs. KEEL_SEEDS says how many.
KEEL_BINARY is the program.

Of each model `keel score` and a greedy `keel generate` on one rank and on several, a step of `keel train` under a random
layout, and an import that is exported again must come to what transformers says of the folder, or Keel refuses it by name.
Refusals are counted, and one that is not in EXPECTED fails the test.
"""

import collections
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
SEEDS_A_DAY = 170
SECONDS_A_DAY = 86400
FAR = 1e-4
LIMIT_S = 240
LAYOUTS = [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 2, 2), (3, 1, 1), (1, 3, 1), (1, 1, 2)]  # tp, pp, dp

# What Keel refuses of what transformers takes, each for a reason.
EXPECTED = {
    # A file without the key and one with null mean two things to transformers.
    "a window must be said": r"sliding_window: missing|sliding_window gives no window|layer_types: missing",
    # Which of transformers' ways to attend sees a window there and which does not.
    "windows must be switched on": r"full_attention, without use_sliding_window",
    "Granite 4's experts, which it has by default": r"num_local_experts: 8, expected 0: of Granite 4 Keel reads the dense models",
    "the context must be said by which positions turn": r"max_position_embeddings: missing",
}


class Refused(Exception):
    pass


class Wrong(Exception):
    pass


def keel(*arguments):
    done = subprocess.run([os.environ["KEEL_BINARY"], *map(str, arguments)], capture_output=True, text=True, check=False,
                          timeout=LIMIT_S, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise Refused(f"{arguments[0]}: {done.returncode}: {done.stderr.strip()[-500:]}")
    return done


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def near(what, found, expected, slack):
    if len(found) != len(expected):
        raise Wrong(f"{what}: {len(found)} numbers, expected {len(expected)}")
    for at, (a, b) in enumerate(zip(found, expected, strict=True)):
        if not abs(a - b) <= FAR * max(1, abs(b)) + slack:
            raise Wrong(f"{what}: number {at} is {a}, expected {b}")


def check_scores(case, folder, out, tp):
    keel("score", "--model", folder / "hf", "--input", folder / "rows.jsonl", "--output", out, "--dtype", "float32", "--tp", tp)
    for row, (found, expected) in enumerate(zip(lines(out), case["scores"], strict=True)):
        near(f"score of row {row} of {len(expected) + 1} tokens, tp {tp}", found["log_probs"], expected, 20 * case["spread"])


def check_texts(case, folder, out, tp):
    count = 10
    keel("generate", "--model", folder / "hf", "--input", folder / "prompts.jsonl", "--output", out, "--dtype", "float32",
         "--max-new-tokens", count, "--log-probs", "--tp", tp)
    for row, (found, expected) in enumerate(zip(lines(out), case["texts"], strict=True)):
        made, ids = found["output_ids"], expected["output_ids"]
        what = f"text of prompt {row} of {len(found['input_ids'])} tokens, tp {tp}, {found['finish_reason']}"
        short = min(len(made), len(ids))
        if made[:short] != ids[:short]:
            raise Wrong(f"{what}: {made}, expected {ids}")
        if len(made) < len(ids) and not stops_early(case, found):
            raise Wrong(f"{what}: ends early: {made}, expected {ids}")
        if len(made) > len(ids) and not expected["tie"]:
            raise Wrong(f"{what}: goes on: {made}, expected {ids}")
        near(what, found["output_log_probs"][:short], expected["log_probs"][:short], 20 * case["spread"])


def stops_early(case, found):
    """A text ends with the context that the model says it has."""
    return len(found["input_ids"]) + len(found["output_ids"]) >= case["sizes"]["positions"]


def check_training(case, folder, out, chance):
    heads, layers = case["sizes"]["heads"], case["sizes"]["layers"]
    fitting = [(tp, pp, dp) for tp, pp, dp in LAYOUTS if tp <= heads and pp <= layers]
    tp, pp, dp = chance.choice(fitting)
    learnt = case["learnt"]
    config = {
        "trainer": {"task": "sft", "default_local_dir": str(out), "total_training_steps": 1, "save_freq": -1, "test_freq": -1,
                    "seed": 3, "device": "cpu", "logger": ["jsonl"]},
        "data": {"train_files": [str(folder / "learnt.jsonl")], "tokenizer": "ids", "max_length": max(map(len, learnt)),
                 "train_batch_size": len(learnt), "micro_batch_size_per_gpu": 1},
        "actor_rollout_ref": {
            "model": {"path": str(folder / "hf"), "dtype": "float32"},
            "actor": {"megatron": {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp},
                      "optim": {"lr": 1e-3, "clip_grad": 1.0, "lr_decay_style": "constant", "lr_warmup_steps": 0}},
        },
    }  # fmt: skip
    path = folder / "train.yaml"
    path.write_text(json.dumps(config))
    ranks = tp * pp * dp
    keel(*(["launch", "--nproc-per-node", ranks] if ranks > 1 else []), "train", path)
    data = next(record["data"] for record in lines(out / "metrics.jsonl") if "grad_norm" in record["data"])
    what = f"training under tp {tp} pp {pp} dp {dp}"
    near(f"{what}: loss", [data["loss_metrics/global_avg_loss"]], [case["training"]["loss"]], 20 * case["spread"])
    norm = case["training"]["grad_norm"]
    near(f"{what}: gradient's norm", [data["grad_norm"] / norm], [1.0], 20 * case["spread"])


def check_export(case, folder, out, reference):
    keel("ckpt", "import-hf", folder / "hf", out / "run")
    keel("ckpt", "export-hf", out / "run" / "global_step_0", out / "hf")
    exported = reference(out / "hf")
    for row, expected in enumerate(case["scores"]):
        ids = lines(folder / "rows.jsonl")[row]["input_ids"]
        near(f"transformers' score of row {row} by the exported folder", exported.score(ids), expected, 20 * case["spread"])


def check(case, folder, reference):
    chance = random.Random(case["seed"])
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    check_scores(case, folder, out / "scores.jsonl", 1)
    check_texts(case, folder, out / "texts.jsonl", 1)
    tp = chance.choice([tp for tp in [2, 2, 3, 4] if tp <= case["sizes"]["heads"]])
    check_scores(case, folder, out / "scores.jsonl", tp)
    check_texts(case, folder, out / "texts.jsonl", tp)
    check_export(case, folder, out, reference)
    check_training(case, folder, out / "trained", chance)


def main():
    if not os.environ.get("KEEL_NIGHTLY"):
        print("skipped: KEEL_NIGHTLY is not set", file=sys.stderr)
        sys.exit(SKIPPED)
    sys.path.insert(0, str(HERE))
    import make_model_cases
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    count = int(os.environ.get("KEEL_SEEDS", SEEDS_A_DAY))
    first = int(os.environ.get("KEEL_FIRST_SEED", int(time.time()) // SECONDS_A_DAY * 1000))
    outcomes, failed = collections.Counter(), 0
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(first, first + count):
            folder = pathlib.Path(os.environ.get("KEEL_CASES", temporary)) / str(seed)
            case = make_model_cases.make(seed, folder)
            where = f"seed {seed} ({case['family']})"
            if "refused" in case:
                outcomes["refused by transformers"] += 1
                continue
            try:
                check(case, folder, make_model_cases.Reference)
                outcomes["the same"] += 1
            except Refused as refused:
                reason = next((name for name, pattern in EXPECTED.items() if re.search(pattern, str(refused))), None)
                outcomes[f"refused: {reason}"] += 1
                if reason is None:
                    failed += 1
                    print(f"{where}: {refused}\n  {json.dumps(case['config'])}", flush=True)
            except Wrong as wrong:
                failed += 1
                outcomes["wrong"] += 1
                print(f"{where}: {wrong}\n  {case['folder']} {json.dumps(case['config'])}", flush=True)
            if "KEEL_CASES" not in os.environ:
                shutil.rmtree(folder)
    print(f"{count} models from seed {first} on:", *(f"  {number} {what}" for what, number in outcomes.most_common()), sep="\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
