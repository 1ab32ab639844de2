"""One GRPO step against TRL's, and what sync, offload and saves take of it, on this machine, now.

    keel bench rl [--rounds 4] [--steps 6] [--model tiny|16m ...] [--trl PYTHON] [--without-trl] [--quick]
                  [--markdown docs/benchmarks/rl.md]

1. Keel and TRL's GRPOTrainer take turns in the order A B B A or B A A B: 8 prompts x 8 samples x 64 tokens, end
   of text never sampled, the same weights, prompts and rule reward, float32, one update a step over all samples.
   TRL takes the faster of one thread and of --threads, tried in its warm-up: with small models more are not
   always faster. A turn is --steps steps after a warm-up, timed from outside by the lines of metrics.jsonl (Keel,
   a process of its own each turn) and from step end to step end (TRL, one process that waits between its turns).
2. Keel alone: param_offload, grad_offload, optimizer_offload and an asynchronous save at every step, in turns
   with a run that has none of them; on one rank, and on four (TP 2 x PP 2, rollout TP 2).

TRL is not part of Keel's environment. To make one for it that uses Keel's torch and transformers:

    python3 -m venv build/bench/trl
    echo "$PWD/.venv/lib/python3.11/site-packages" > build/bench/trl/lib/python3.11/site-packages/keel.pth
    build/bench/trl/bin/pip install trl==1.16.0
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import driver
import paired
from driver import ROOT

MODELS = {"tiny": "llama-tiny-rl.json", "16m": "llama-16m-rl.json"}
LAYOUTS = {"1 rank": (1, 1), "4 ranks, TP 2 x PP 2": (2, 2)}
PROMPTS, SAMPLES, TOKENS = 8, 8, 64
WARM_UP = 2  # steps of every run that do not count
LIMIT_S = 1800  # of a run


def without_tokenizer(model):
    """Keel's copy: it refuses to read bytes for a model that has a tokenizer of its own."""
    return model.with_name(model.name + "_bytes")


def copy_without_tokenizer(model):
    shutil.rmtree(without_tokenizer(model), ignore_errors=True)
    shutil.copytree(model, without_tokenizer(model), ignore=shutil.ignore_patterns("*token*"))


def run_config(folder, model, prompts, steps, tp, pp, threads, burdened):
    """`burdened`: everything is offloaded while idle, and each step is saved."""
    return {
        "trainer": {
            "task": "rl", "default_local_dir": str(folder / "run"), "total_training_steps": steps,
            "save_freq": 1 if burdened else -1, "test_freq": -1, "resume_mode": "disable", "seed": 1, "device": "cpu",
            "threads_per_rank": threads, "logger": ["jsonl"], "remove_previous_ckpt_in_save": True,
        },
        "data": {
            "train_files": [str(prompts)], "max_prompt_length": 32, "max_response_length": TOKENS,
            "train_batch_size": PROMPTS, "tokenizer": "bytes",
        },
        "actor_rollout_ref": {
            "model": {"path": str(without_tokenizer(model)), "dtype": "float32"},
            "actor": {
                "ppo_mini_batch_size": PROMPTS, "ppo_micro_batch_size_per_gpu": PROMPTS * SAMPLES,
                "optim": {"lr": 1e-6, "lr_decay_style": "constant", "weight_decay": 0.0, "betas": [0.9, 0.999]},
                "megatron": {
                    "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "param_offload": burdened,
                    "grad_offload": burdened, "optimizer_offload": burdened,
                },
                "checkpoint": {"async_save": True},
            },
            "rollout": {"n": SAMPLES, "ignore_eos": True},
        },
        "algorithm": {"adv_estimator": "grpo"},
        # The last number is the answer: 1; another number: 0.5; none: 0. As in peers/grpo_trl.py.
        "reward": {"type": "arithmetic", "format_score": 0.5},
    }  # fmt: skip


class Lines(threading.Thread):
    """When each line of a file came."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.times, self.ended = path, [], threading.Event()

    def run(self):
        seen, size = 0, 0
        while True:
            last = self.ended.is_set()
            now = time.perf_counter()
            if self.path.exists() and self.path.stat().st_size != size:
                text = self.path.read_bytes()
                size, lines = len(text), text.count(b"\n")
                self.times += [now] * (lines - seen)
                seen = lines
            if last:
                return
            time.sleep(0.002)


def run_keel(args, model, prompts, layout=(1, 1), burdened=False):
    """A run of its own; the time of its steps after the warm-up, and what it says of them."""
    with tempfile.TemporaryDirectory(prefix="keel-bench-rl-", dir=args.dir) as name:
        folder = pathlib.Path(name)
        config = folder / "run.yaml"
        tp, pp = layout
        threads = max(1, args.threads // (tp * pp))
        steps = WARM_UP + args.steps
        config.write_text(json.dumps(run_config(folder, model, prompts, steps, tp, pp, threads, burdened)))
        command = [str(args.keel), "train", str(config)]
        if tp * pp > 1:
            command[1:1] = ["launch", "--nproc-per-node", str(tp * pp)]
        lines = Lines(folder / "run" / "metrics.jsonl")
        lines.start()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env={**os.environ, **driver.environment(threads)},
        )  # fmt: skip
        lines.ended.set()
        lines.join()
        if done.returncode != 0:
            raise SystemExit(f"keel ended (exit {done.returncode}):\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
        written = [json.loads(line)["data"] for line in lines.path.read_text().splitlines()]
        # Saves that ended have lines of their own.
        steps = [(now, row) for now, row in zip(lines.times, written, strict=True) if "timing_s/step" in row]
        if len(steps) != WARM_UP + args.steps:
            raise SystemExit(f"keel wrote {len(steps)} steps, not {WARM_UP + args.steps}")
        times, rows = zip(*steps, strict=True)
        lengths = {row[f"response_length/{key}"] for row in rows for key in ("min", "max")}
        if lengths != {float(TOKENS)}:
            raise SystemExit(f"keel's responses have {sorted(lengths)} tokens, not {TOKENS}")
        return {
            "seconds": times[-1] - times[WARM_UP - 1],
            "steps": args.steps,
            "timing": [{k: v for k, v in row.items() if k.startswith("timing_s/")} for row in rows[WARM_UP:]],
        }


def step_trl(worker, steps):
    answer = worker.ask(f"step {steps}")
    if answer["lengths"] != [TOKENS]:
        raise SystemExit(f"TRL's responses have {answer['lengths']} tokens, not {TOKENS}")
    return answer


def show(x):
    return f"{1e3 * x['seconds'] / x['steps']:.0f} ms a step"


def rate(x):
    return x["steps"] / x["seconds"]


def median_ms(samples):
    return statistics.median(1e3 * x["seconds"] / x["steps"] for x in samples)


def against_trl(args, model, prompts):
    worker = driver.Worker(
        "trl",
        [str(args.trl), str(ROOT / "bench" / "peers" / "grpo_trl.py"), "--model", str(model), "--prompts", str(prompts),
         "--threads", str(args.threads)],
        driver.environment(args.threads),
    )  # fmt: skip
    try:
        step_trl(worker, WARM_UP)
        tried = {}
        for threads in sorted({1, args.threads}):
            worker.ask(f"threads {threads}")
            step_trl(worker, 1)
            tried[threads] = step_trl(worker, WARM_UP)["seconds"] / WARM_UP
        chosen = min(tried, key=tried.get)
        worker.ask(f"threads {chosen}")
        take = {"A": lambda: run_keel(args, model, prompts), "B": lambda: step_trl(worker, args.steps)}
        rounds, _ = driver.turns(args.rounds, args.seed, lambda side: take[side](), show)
    finally:
        worker.kill()
    result = paired.compare(rounds, rate)
    result |= {"ready": worker.ready, "trl_threads": chosen, "trl_threads_tried": tried}
    result["step_ms"] = {"keel": median_ms(driver.of_side(rounds, "A")), "trl": median_ms(driver.of_side(rounds, "B"))}
    result["parts"] = parts([x for sample in driver.of_side(rounds, "A") for x in sample["timing"]])
    result["samples"] = driver.with_sides(rounds)
    return result


def parts(timing):
    """Medians of a step's parts, in milliseconds."""
    return {key.removeprefix("timing_s/"): 1e3 * statistics.median(x[key] for x in timing) for key in timing[0]}


def burden_share(timing):
    """Of a step, by its own timers: sync, moves and what saves block."""
    burdens = [key for key in timing if key.endswith(("_load", "_offload"))]
    # Those around the sync are within update_weights.
    burdens = [key for key in burdens if key not in ("timing_s/param_load", "timing_s/param_offload")]
    blocked = timing["timing_s/save_checkpoint"]
    spent = timing["timing_s/update_weights"] + blocked + sum(timing[key] for key in burdens)
    return spent / (timing["timing_s/step"] + blocked)


def burdens(args, model, prompts, layout):
    take = {side: (lambda burdened=burdened: run_keel(args, model, prompts, layout, burdened))
            for side, burdened in [("A", True), ("B", False)]}  # fmt: skip
    rounds, _ = driver.turns(args.rounds, args.seed, lambda side: take[side](), show)
    result = paired.compare(rounds, lambda x: 1.0 / rate(x))
    shares = [burden_share(x) for sample in driver.of_side(rounds, "A") for x in sample["timing"]]
    result["share"] = paired.summarize(shares)
    result["step_ms"] = {"with": median_ms(driver.of_side(rounds, "A")), "without": median_ms(driver.of_side(rounds, "B"))}
    result["parts"] = parts([x for sample in driver.of_side(rounds, "A") for x in sample["timing"]])
    result["samples"] = driver.with_sides(rounds)
    return result


def bars(report):
    found = []
    for name, x in report["against_trl"].items():
        found.append(
            driver.bar(f"{name}: steps a second over TRL's", ">= 3", driver.text(x["ratio"]), x["ratio"]["low"] >= 3,
                       not x["control"]["holds_one"])
        )  # fmt: skip
    for name, layouts in report["burdens"].items():
        for layout, x in layouts.items():
            share = x["share"]
            found.append(
                driver.bar(f"{name}, {layout}: sync, offload and the save of every step, of the step", "<= 5 %",
                           f"{100 * share['median']:.1f} % ({100 * share['low']:.1f} to {100 * share['high']:.1f})",
                           share["median"] <= 0.05)
            )  # fmt: skip
    return found


def markdown(report):
    *lines, machine = driver.page_head("A GRPO step", report)
    lines += [
        machine + f" {PROMPTS} prompts x {SAMPLES} samples x {TOKENS} tokens, float32, one update a step.",
        "",
        *driver.bar_table(report["bars"]),
    ]
    if report["against_trl"]:
        lines += [
            "", "| model | parameters | keel / TRL, steps a second | control | keel, ms a step | of it generation | log-probs | update | TRL, ms a step | its threads |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
    for name, x in report["against_trl"].items():
        spent = x["parts"]
        lines.append(
            f"| {name} | {x['ready']['parameters'] / 1e6:.2f} M | **{driver.text(x['ratio'])}** | {driver.control_text(x)} |"
            f" {x['step_ms']['keel']:.0f} | {spent['gen']:.0f} | {spent['old_log_prob']:.0f} | {spent['update_actor']:.0f} |"
            f" {x['step_ms']['trl']:.0f} | {x['trl_threads']} |"
        )
    lines += [
        "", "| model | ranks | step with offload and a save at every step over one without | control | with, ms | without, ms | sync, ms | optimizer's moves, ms | save blocks, ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, layouts in report["burdens"].items():
        for layout, x in layouts.items():
            spent = x["parts"]
            lines.append(
                f"| {name} | {layout} | **{driver.text(x['ratio'])}** | {driver.control_text(x)} | {x['step_ms']['with']:.0f} |"
                f" {x['step_ms']['without']:.0f} | {spent['update_weights']:.2f} |"
                f" {spent['optimizer_load'] + spent['optimizer_offload']:.2f} | {spent['save_checkpoint']:.2f} |"
            )
    if report["against_trl"]:
        version = driver.versions([x["ready"] for x in report["against_trl"].values()])
        lines += [
            "",
            f"Both: the same weights, prompts of as many tokens and rule; TRL with the faster of one thread and of as many as Keel; end of text never sampled; versions: {version}."
            " TRL: generation by transformers, SDPA attention, fused AdamW, beta 0 (no reference model), samples of a step in"
            " one micro-batch and, being on-policy, no pass for old log-probabilities; gradient checkpointing, its default, is"
            " off, since it costs TRL time. Keel: its defaults, which take the old log-probabilities from the update's own forward"
            " too, and report entropy, KL and the distance of the rollout's probabilities from them at every step.",
        ]  # fmt: skip
    lines += [
        "",
        "The share of a step is by Keel's timers: the sync with the moves around it, the moves of optimizer state and around"
        " generation, and the time for which a save blocks; the ratio of steps is from outside, and has besides what saves"
        " take of the cores in the background. Ratios are of neighbours in the order A B B A or B A A B; in brackets the"
        " bootstrap's 95 % interval. The control is the ratio of neighbouring turns of one side and must hold 1. Every sample"
        " is in the JSON beside this page.",
        "",
    ]
    return "\n".join(lines)


def parse_arguments():
    parser = driver.parser("rl", __doc__, rounds=4, threads=2)
    parser.add_argument("--steps", type=driver.count(), default=6, help="of a turn")
    parser.add_argument("--model", action="append", choices=MODELS, help="may be given again; default: all")
    parser.add_argument("--trl", type=pathlib.Path, default=ROOT / "build" / "bench" / "trl" / "bin" / "python", help="a Python that has it")
    parser.add_argument("--without-trl", action="store_true", help="the second part alone")
    parser.add_argument("--dir", type=driver.folder, default=ROOT / "build" / "bench" / "rl", help="models and runs")
    parser.add_argument("--quick", action="store_true", help="the tiny model, one round of two steps: to see it work")
    args = driver.parse(parser)
    args.model = args.model or list(MODELS)
    if args.quick:
        args.rounds, args.steps, args.model = 1, 2, ["tiny"]
    if not args.without_trl:
        found = shutil.which(str(args.trl))
        known = found and subprocess.run([found, "-c", "import trl"], capture_output=True, check=False).returncode == 0
        if not known:
            parser.error(f"{args.trl} has no trl. Make it as the end of --help says, name another with --trl, or leave it out with --without-trl\n{__doc__[__doc__.index('TRL is not part'):]}")
    return args


def main():
    args = parse_arguments()
    args.dir.mkdir(parents=True, exist_ok=True)
    with driver.measuring("rl", args) as report:
        report |= {"against_trl": {}, "burdens": {}}
        for name in args.model:
            model, prompts = args.dir / name, args.dir / f"{name}.jsonl"
            driver.make_model(ROOT / "bench" / "configs" / MODELS[name], model)
            copy_without_tokenizer(model)
            subprocess.run([sys.executable, ROOT / "bench" / "peers" / "make_rl_task.py", model, prompts], check=True)
            if not args.without_trl:
                print(f"{name}: keel (A) and TRL (B)", file=sys.stderr)
                report["against_trl"][name] = against_trl(args, model, prompts)
            report["burdens"][name] = {}
            for layout, degrees in LAYOUTS.items():
                print(f"{name}, {layout}: offload and saves (A), none (B)", file=sys.stderr)
                report["burdens"][name][layout] = burdens(args, model, prompts, degrees)
    report["bars"] = bars(report)
    page = markdown(report)
    driver.write(report, args, page)
    print(page, file=sys.stderr)


if __name__ == "__main__":
    main()
