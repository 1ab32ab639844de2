"""Split placement against Keel's own colocated run, on this machine, now; and what to expect of larger pools.

    keel bench async [--rounds 3] [--steps 16] [--staleness 4] [--scenario even|lognormal|verifiers ...] [--quick]
                     [--markdown docs/benchmarks/async.md]
    keel bench async --kept-kv [--rounds 3] ...
    keel bench async --simulate N [--token-ms 20 --sequence-ms 0.12 --train-us 400 --prompts 64 --samples 8]

1. Two ranks that train and two workers (A) take turns with two ranks that do both (B), in the order A B B A or
   B A A B: the same model, prompts, samples, lengths and rule, float32, one thread a process, all on the cores of
   this machine. Both correct token by token, so that their steps are the same work. A turn is a whole run of --steps steps, timed from outside from the
   beginning of its first step to the end of its last, so that nothing that was generated ahead is left out.
   Scenarios:
       even        every response has as many tokens
       lognormal   lengths of prompts are lognormal (their own bounds; end of text is never sampled)
       verifiers   as even, shorter, and each call of the verifier sleeps half a second
2. The bound: bench/async_model.py with this machine's times of an engine's step and of a training step, taken from
   colocated runs of two sizes that come before the turns.
3. --kept-kv: split against split: workers that keep keys and values of what runs when new weights come
   (recompute_kv: false, A) against workers that compute them again (B).
4. --simulate N: the same model alone, for N devices, half of which train in split placement.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import async_model
import driver
import paired
import run_rl
from driver import ROOT

RANKS = 2
SAMPLES = 2
TOKENS = {"even": 48, "lognormal": 32, "verifiers": 8}  # of a response; the mean of lognormal ones before the cut
CAP, SIGMA = 208, 1.5
SLEEP_S = 0.5
QUICK_TOKENS = 8
LIMIT_S = 1800
SLEEPER = """import json, sys, threading
def answer(sample):
    print(json.dumps({"id": sample["id"], "score": float(len(sample["response"]) %% 2)}), flush=True)
for line in sys.stdin:
    threading.Timer(%f, answer, [json.loads(line)]).start()
"""


def lengths_of(args, scenario, prompts):
    """Of each prompt's responses, all alike."""
    if args.quick:
        return [QUICK_TOKENS] * prompts
    if scenario == "lognormal":
        return async_model.lognormal_lengths(prompts, TOKENS[scenario], SIGMA, CAP, args.seed % 1000)
    return [TOKENS[scenario]] * prompts


def write_prompts(args, source, path, lengths):
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    with path.open("w") as out:
        for i, length in enumerate(lengths):
            out.write(json.dumps({**rows[i % len(rows)], "most": length}) + "\n")


def run_config(args, folder, prompts, scenario, split, steps, batch, recompute_kv):
    config = run_rl.run_config(folder, args.dir / args.model, prompts, steps, 1, 1, 1, False)
    config["data"] |= {"train_batch_size": batch, "max_response_length": CAP, "max_response_length_key": "most", "shuffle": False}
    config["actor_rollout_ref"]["rollout"]["n"] = SAMPLES
    config["actor_rollout_ref"]["actor"] |= {"ppo_mini_batch_size": batch, "ppo_micro_batch_size_per_gpu": batch * SAMPLES}
    if scenario == "verifiers":
        program = folder / "verifier.py"
        program.write_text(SLEEPER % (0.01 if args.quick else SLEEP_S))
        config["reward"] = {"type": "command", "command": [sys.executable, str(program)], "num_workers": 4, "batch_size": 16}
    # On both sides: it takes a pass for the old log-probabilities, which a colocated run can do without.
    config["algorithm"]["rollout_correction"] = {"rollout_is": "token"}
    if split:
        config["async_training"] = {"placement": "split", "max_staleness": args.staleness, "min_workers": RANKS, "recompute_kv": recompute_kv}
    return config


def run(args, scenario, split, lengths, steps, batch, recompute_kv=None):
    """A run of its own; seconds from the beginning of its first step to the end of its last, and what it says."""
    recompute_kv = args.recompute_kv == "true" if recompute_kv is None else recompute_kv
    with tempfile.TemporaryDirectory(prefix="keel-bench-async-", dir=args.dir) as name:
        folder = pathlib.Path(name)
        write_prompts(args, args.dir / f"{args.model}.jsonl", folder / "prompts.jsonl", lengths)
        config = folder / "run.yaml"
        config.write_text(json.dumps(run_config(args, folder, folder / "prompts.jsonl", scenario, split, steps, batch, recompute_kv)))
        world = ["--nproc-per-node", str(2 * RANKS), "--roles", f"trainer:{RANKS},rollout:{RANKS}"] if split else ["--nproc-per-node", str(RANKS)]
        lines = run_rl.Lines(folder / "run" / "metrics.jsonl")
        lines.start()
        done = subprocess.run(
            [str(args.keel), "launch", *world, "train", str(config)], capture_output=True, text=True, timeout=LIMIT_S,
            check=False, env={**os.environ, **driver.environment(1)},
        )  # fmt: skip
        lines.ended.set()
        lines.join()
        if done.returncode != 0:
            raise SystemExit(f"keel ended (exit {done.returncode}):\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
        written = [json.loads(line)["data"] for line in lines.path.read_text().splitlines()]
        found = [(now, row) for now, row in zip(lines.times, written, strict=True) if "timing_s/step" in row]
        if len(found) != steps:
            raise SystemExit(f"keel wrote {len(found)} steps, not {steps}")
        times, rows = zip(*found, strict=True)
        tokens = sum(row["response_length/mean"] * batch * SAMPLES for row in rows)
        if round(tokens) != SAMPLES * sum(lengths):
            raise SystemExit(f"keel's responses have {tokens:.0f} tokens, not {SAMPLES * sum(lengths)}")
        seconds = times[-1] - times[0] + rows[0]["timing_s/step"]
        result = {"seconds": seconds, "gen": sum(r["timing_s/gen"] for r in rows), "steps": steps, "tokens": round(tokens)}
        result["blocked"] = sum(r["timing_s/publish_blocked"] for r in rows) / seconds
        if split:
            result |= {
                "age_max": max(r["off_policy/max"] for r in rows), "age_mean": statistics.mean(r["off_policy/mean"] for r in rows),
                "trainer_idle": statistics.mean(r["fully_async/trainer/idle_ratio"] for r in rows),
                "rollouter_idle": statistics.mean(r["fully_async/rollouter/idle_ratio"] for r in rows),
                "lost": rows[-1]["fully_async/count/workers_lost"], "recomputed": rows[-1]["rollout/recomputed_tokens"],
            }  # fmt: skip
        return result


def calibrate(args):
    """This machine's costs, from colocated runs with a few responses and with many."""
    found = {}
    for batch in (RANKS, args.prompts):
        length, steps = TOKENS["even"] if not args.quick else QUICK_TOKENS, max(2, args.steps // 2)
        # What else the machine does makes it slower, never faster.
        x = min((run(args, "even", False, [length] * (batch * steps), steps, batch) for _ in range(3)), key=lambda x: x["seconds"])
        found[batch * SAMPLES // RANKS] = {
            "pace": x["gen"] / steps / length, "training": (x["seconds"] - x["gen"]) / steps, "tokens": x["tokens"] / steps,
        }  # fmt: skip
    (few, a), (many, b) = found.items()
    sequence = max(0.0, (b["pace"] - a["pace"]) / (many - few))
    # Training is dominated by tokens; of prompts and responses alike.
    train = max(0.0, (b["training"] - a["training"]) / ((b["tokens"] - a["tokens"]) / RANKS))
    costs = async_model.Costs(
        step=max(0.0, a["pace"] - sequence * few), sequence=sequence, train=train,
        train_fixed=max(0.0, a["training"] - train * a["tokens"] / RANKS), cores=os.cpu_count(),
    )  # fmt: skip
    return costs, found


def measure(args, scenario, costs):
    batch, steps = args.prompts, args.steps
    lengths = lengths_of(args, scenario, batch * steps)
    rounds, _ = driver.turns(
        args.rounds, args.seed, lambda side: run(args, scenario, side == "A", lengths, steps, batch),
        lambda x: f"{x['seconds'] / x['steps']:.2f} s a step",
    )  # fmt: skip
    pair = paired.compare(rounds, lambda x: 1.0 / x["seconds"])
    ours, theirs = driver.of_side(rounds, "A"), driver.of_side(rounds, "B")
    own = async_model.Costs(**vars(costs) | {"verifier": SLEEP_S if scenario == "verifiers" else 0.0})
    positions = [[length] * SAMPLES for length in lengths]
    expected = {
        "split": async_model.split(positions, batch, RANKS, RANKS, args.staleness, own)[0],
        "colocated": async_model.colocated(positions, batch, RANKS, own),
    }
    pair["model"] = expected
    pair["of_bound"] = paired.summarize([expected["split"] / x["seconds"] for x in ours])
    pair["model_of_colocated"] = paired.summarize([expected["colocated"] / x["seconds"] for x in theirs])
    pair["blocked"] = paired.summarize([x["blocked"] for x in ours])
    pair["step_s"] = {"split": statistics.median(x["seconds"] / steps for x in ours), "colocated": statistics.median(x["seconds"] / steps for x in theirs)}
    for key in ("trainer_idle", "rollouter_idle", "age_mean", "age_max"):
        pair[key] = statistics.median(x[key] for x in ours)
    pair["lost"] = sum(x["lost"] for x in ours)
    pair["longest"] = max(lengths)
    pair["mean"] = statistics.mean(lengths)
    pair["samples"] = driver.with_sides(rounds)
    return pair


def measure_kept(args, scenario):
    """Workers that keep keys and values against those that compute them again."""
    batch, steps = args.prompts, args.steps
    lengths = lengths_of(args, scenario, batch * steps)
    rounds, _ = driver.turns(
        args.rounds, args.seed, lambda side: run(args, scenario, True, lengths, steps, batch, side == "B"),
        lambda x: f"{x['seconds'] / x['steps']:.2f} s a step, {x['recomputed']} tokens computed again",
    )  # fmt: skip
    pair = paired.compare(rounds, lambda x: 1.0 / x["seconds"])
    sides = {"kept": driver.of_side(rounds, "A"), "again": driver.of_side(rounds, "B")}
    pair["step_s"] = {side: statistics.median(x["seconds"] / steps for x in found) for side, found in sides.items()}
    pair["recomputed"] = {side: statistics.median(x["recomputed"] for x in found) for side, found in sides.items()}
    pair["tokens"] = SAMPLES * sum(lengths)
    pair["samples"] = driver.with_sides(rounds)
    return pair


def kept_markdown(report):
    settings = report["settings"]
    *lines, machine = driver.page_head("Keys and values kept over an update", report)
    lines += [
        machine + f" {settings['prompts']} prompts x {SAMPLES} samples a step, {settings['steps']} steps a run, {RANKS} ranks that train and"
        f" {RANKS} workers on all cores; `max_staleness: {settings['staleness']}`; `recompute_kv: false` against `true`.",
        "",
        "| lengths | kept / computed again, steps a second | control | kept, s a step | computed again | tokens of responses | computed again: kept | and not |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for scenario, x in report["scenarios"].items():
        lines.append(
            f"| {scenario} | **{driver.text(x['ratio'])}** | {driver.control_text(x)} | {x['step_s']['kept']:.2f} | {x['step_s']['again']:.2f} |"
            f" {x['tokens']} | {x['recomputed']['kept']:.0f} | {x['recomputed']['again']:.0f} |"
        )
    lines += ["", "Workers say what they computed again once a second: the last words before the end are missing. Every sample is in the JSON beside this page.", ""]
    return "\n".join(lines)


WANTED = {"even": 0.95, "lognormal": 1.3, "verifiers": 2.0}


def bars(report):
    found = []
    for scenario, x in report["scenarios"].items():
        ratio, wanted = x["ratio"], WANTED[scenario]
        found.append(
            driver.bar(f"{scenario}: steps a second over the colocated run's", f">= {wanted}", driver.text(ratio),
                       ratio["median"] >= wanted, not x["control"]["holds_one"])
        )  # fmt: skip
        blocked = x["blocked"]
        found.append(
            driver.bar(f"{scenario}: training blocked by pushes, of the time", "<= 1 %",
                       f"{100 * blocked['median']:.2f} % ({100 * blocked['low']:.2f} to {100 * blocked['high']:.2f})", blocked["median"] <= 0.01)
        )  # fmt: skip
        found.append(
            driver.bar(f"{scenario}: rate over the bound of the model", ">= 0.9", driver.text(x["of_bound"]), x["of_bound"]["median"] >= 0.9)
        )
    return found


def markdown(report):
    settings, costs = report["settings"], report["costs"]
    *lines, machine = driver.page_head("Split placement", report)
    lines += [
        machine + f" {settings['prompts']} prompts x {SAMPLES} samples a step, {settings['steps']} steps a run, {RANKS} ranks that train and"
        f" {RANKS} workers on all cores against {RANKS} ranks that do both; `max_staleness: {settings['staleness']}`, `recompute_kv: {settings['recompute_kv']}`, corrected token by token.",
        "",
        *driver.bar_table(report["bars"]),
        "",
        "| lengths | mean, longest | split / colocated | control | split, s a step | colocated | model / split | model / colocated | pushes block | trainers idle | workers idle | age: mean, most |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for scenario, x in report["scenarios"].items():
        lines.append(
            f"| {scenario} | {x['mean']:.0f}, {x['longest']} | **{driver.text(x['ratio'])}** | {driver.control_text(x)} |"
            f" {x['step_s']['split']:.2f} | {x['step_s']['colocated']:.2f} | {driver.text(x['of_bound'])} | {driver.text(x['model_of_colocated'])} |"
            f" {100 * x['blocked']['median']:.2f} % | {100 * x['trainer_idle']:.0f} % | {100 * x['rollouter_idle']:.0f} % |"
            f" {x['age_mean']:.2f}, {x['age_max']:.0f} |"
        )
    lines += [
        "",
        f"The model's times: {1e3 * costs['step']:.2f} ms a step of an engine and {1e3 * costs['sequence']:.3f} ms for each sequence in it, training"
        f" {1e6 * costs['train']:.0f} us a token of a rank's responses and {1e3 * costs['train_fixed']:.0f} ms beside; from two colocated runs before the turns."
        " It knows nothing of pushes, of tokens that are computed again under new weights, or of what processes of one machine take from each"
        " other beside cores. `model / split` is what it says a run takes over what it took: 1 is a run that loses nothing. Ratios are of neighbours"
        " in the order A B B A or B A A B; in brackets the bootstrap's 95 % interval. The control is the ratio of neighbouring turns of one side and"
        " must hold 1. A run's time has all of its steps in it, the first ones, for which nothing had been generated ahead, too. Every sample is in"
        " the JSON beside this page.",
        "",
    ]
    return "\n".join(lines)


def simulate(args):
    """A table of what the model says of larger pools."""
    costs = async_model.Costs(step=args.token_ms / 1e3, sequence=args.sequence_ms / 1e3, train=args.train_us / 1e6)
    devices, batch, samples, steps = args.simulate, args.prompts, args.samples, args.steps
    count = batch * steps
    print(f"{devices} devices, {batch} prompts x {samples} samples a step, {steps} steps; split: {devices // 2} train, {devices // 2} generate")
    print(f"{'lengths':<34} {'colocated':>12}  {'split, by max_staleness (age at most)'}")
    shapes = {"all 2,000": None, "lognormal 1.0, mean 2,000, to 16k": (1.0, 16_000), "lognormal 1.4, mean 2,000, to 30k": (1.4, 30_000)}
    for name, shape in shapes.items():
        flat = [2000] * (count * samples) if shape is None else async_model.lognormal_lengths(count * samples, 2000, *shape, 1)
        positions = [flat[i * samples : (i + 1) * samples] for i in range(count)]
        base = async_model.colocated(positions, batch, devices, costs)
        found = []
        for staleness in (0, 1, 2, 4):
            seconds, age = async_model.split(positions, batch, devices // 2, devices // 2, staleness, costs)
            found.append(f"{staleness}: {base / seconds:.2f}x ({age})")
        print(f"{name:<34} {base / steps:>8.1f} s/step  {', '.join(found)}", flush=True)


def parse_arguments():
    parser = driver.parser("async", __doc__, rounds=3, threads=1)
    parser.add_argument("--steps", type=driver.count(), default=16, help="of a run")
    parser.add_argument("--staleness", type=driver.count(0), default=4, help="async_training.max_staleness of the split run")
    parser.add_argument("--prompts", type=driver.count(), help="a step: 8; --simulate: 64")
    parser.add_argument("--scenario", action="append", choices=TOKENS, help="may be given again; default: all")
    parser.add_argument("--model", choices=run_rl.MODELS, default="16m")
    parser.add_argument("--dir", type=driver.folder, default=ROOT / "build" / "bench" / "rl", help="models and runs")
    parser.add_argument("--quick", action="store_true", help="the tiny model, one round of a few steps: to see it work")
    parser.add_argument("--recompute-kv", choices=("true", "false"), default="true", help="async_training.recompute_kv of the split run")
    parser.add_argument("--kept-kv", action="store_true", help="recompute_kv: false against true, both split")
    parser.add_argument("--simulate", type=driver.count(2), metavar="N", help="the model alone, for N devices")
    parser.add_argument("--samples", type=driver.count(), default=8, help="of a prompt; --simulate")
    parser.add_argument("--token-ms", type=driver.amount, default=20, help="of an engine's step; --simulate")
    parser.add_argument("--sequence-ms", type=driver.amount, default=0.12, help="more for each sequence in it; --simulate")
    parser.add_argument("--train-us", type=driver.amount, default=400, help="for each token of a trainer's responses; --simulate")
    args = driver.parse(parser)
    args.prompts = args.prompts or (64 if args.simulate else 8)
    args.scenario = args.scenario or list(TOKENS)
    if args.simulate and args.simulate % 2:
        parser.error(f"--simulate {args.simulate}: an even number of devices: half train and half generate in split placement")
    if args.quick:
        args.rounds, args.steps, args.prompts, args.model = 1, 4, 4, "tiny"
    if not args.simulate and not args.kept_kv and args.prompts <= RANKS:
        parser.error(f"--prompts {args.prompts}: more than {RANKS}, with which the model's costs are measured for comparison")
    return args


def main():
    args = parse_arguments()
    if args.simulate:
        return simulate(args)
    args.dir.mkdir(parents=True, exist_ok=True)
    model, prompts = args.dir / args.model, args.dir / f"{args.model}.jsonl"
    driver.make_model(ROOT / "bench" / "configs" / run_rl.MODELS[args.model], model)
    run_rl.copy_without_tokenizer(model)
    subprocess.run([sys.executable, ROOT / "bench" / "peers" / "make_rl_task.py", model, prompts], check=True)
    if args.kept_kv:
        with driver.measuring("async", args) as report:
            report["scenarios"] = {}
            for scenario in args.scenario:
                print(f"{scenario}: kept (A) and computed again (B)", file=sys.stderr)
                report["scenarios"][scenario] = measure_kept(args, scenario)
        page = kept_markdown(report)
        driver.write(report, args, page)
        return print(page, file=sys.stderr)
    with driver.measuring("async", args) as report:
        costs, calibration = calibrate(args)
        report |= {"costs": vars(costs), "calibration": calibration, "scenarios": {}}
        for scenario in args.scenario:
            print(f"{scenario}: split (A) and colocated (B)", file=sys.stderr)
            report["scenarios"][scenario] = measure(args, scenario, costs)
    report["bars"] = bars(report)
    page = markdown(report)
    driver.write(report, args, page)
    print(page, file=sys.stderr)


if __name__ == "__main__":
    main()
