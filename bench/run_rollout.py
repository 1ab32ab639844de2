"""Generation speed of Keel beside transformers, on this machine, now.

    bench/run_rollout.py [--dtype bfloat16|float32] [--rounds 5] [--settings NAME ...] [--markdown FILE]

Greedy generation by both sides from the same weights and prompts, in turns (A B B A or B A A B). Per
setting: the median ratio of neighbours with its bootstrap 95 % interval, the control (the ratio of two
neighbouring runs of one side, which must hold 1), and how many of the tokens agree. For a batch of one
also the bytes of the weights that each decoded token reads, as a share of the read bandwidth measured in
the same round. transformers takes the faster of its dynamic and its static cache, chosen per setting.

Settings, prompt + new tokens: batch 1, 8 and 32 of 64 + 64; `mixed`: 32 requests of 16 to 127 + 8 to 127,
for which transformers runs one padded batch to its longest, and only tokens asked for count.
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import sys
import time

import machine
import paired
import run_train

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = {
    "batch 1": [(64, 64)],
    "batch 8": [(64, 64)] * 8,
    "batch 32": [(64, 64)] * 32,
    "mixed": [(16 + 37 * i % 112, 8 + 53 * i % 120) for i in range(32)],
}


def start(name, args):
    shared = ["--model", str(args.model), "--dtype", args.dtype, "--threads", str(args.threads)]
    environment = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    if name == "keel":
        command = [str(args.keel), "bench", "rollout", "--worker", *shared]
    else:
        command = [sys.executable, str(ROOT / "bench" / "peers" / "generate_transformers.py"), *shared]
    return run_train.Worker(name, command, environment)


class Prompts:
    """Every call has prompts of its own, the same for both sides in the same place of a round."""

    def __init__(self):
        self.next = {"A": 0, "B": 0}

    def command(self, side, lengths):
        first = self.next[side]
        self.next[side] += len(lengths)
        return " ".join(["generate", str(first), *(f"{p} {n}" for p, n in lengths)])


def agreement(samples):
    """Share of the tokens that agree up to the first that differs, over both sides' equal calls."""
    outputs = {side: [r for s, x in samples if s == side for r in x["outputs"]] for side in "AB"}
    same = total = 0
    for a, b in zip(outputs["A"], outputs["B"], strict=True):
        total += len(a)
        for x, y in zip(a, b, strict=True):
            if x != y:
                break
            same += 1
    return same / total


def measure(name, workers, prompts, args, seed):
    lengths = SETTINGS[name]
    for side, worker in workers.items():
        worker.ask(prompts.command(side, lengths))
    rounds, reads = [], []
    for round_order in paired.order(args.rounds, seed):
        samples = [(side, workers[side].ask(prompts.command(side, lengths))) for side in round_order]
        reads.append(workers["A"].ask("read")["bytes_per_s"])
        rounds.append(samples)
        rates = ", ".join(f"{side} {x['tokens'] / x['seconds']:.0f}" for side, x in samples)
        print(f"  {name}, {round_order}: {rates} tokens/s", file=sys.stderr)
    result = paired.compare(rounds, lambda x: x["tokens"] / x["seconds"])
    everything = [sample for samples in rounds for sample in samples]
    result["agreement"] = agreement(everything)
    result["tokens_per_s"] = {
        side: statistics.median(x["tokens"] / x["seconds"] for s, x in everything if s == side) for side in "AB"
    }
    ours = [x for s, x in everything if s == "A"]
    result["first_s"] = statistics.median(x["first_s"] for x in ours)
    result["sampling_share"] = statistics.median(x["sampling_s"] / x["seconds"] for x in ours)
    result["cache"] = next(x["cache"] for s, x in everything if s == "B")
    result["read_bytes_per_s"] = statistics.median(reads)
    if len(lengths) == 1:
        weights = workers["A"].ready["weight_bytes"]
        shares = []
        for samples, read in zip(rounds, reads, strict=True):
            for side, x in samples:
                if side == "A":
                    steps = (x["seconds"] - x["first_s"]) / (x["tokens"] - 1)
                    shares.append(weights / steps / read)
        result["of_read_bandwidth"] = statistics.median(shares)
        result["of_read_bandwidth_samples"] = shares
    for _, x in everything:
        del x["outputs"]
    result["samples"] = [[{"side": s, **x} for s, x in samples] for samples in rounds]
    return result


def markdown(report):
    facts, settings = report["machine"], report["settings"]
    lines = [
        f"# Generation speed, {settings['dtype']}", "",
        f"`{report['command']}`", "",
        f"{facts['cpu']} ({', '.join(facts['features'])}), {facts['cores']} cores, {facts['memory_gib']} GiB,"
        f" Linux {facts['kernel']}; {settings['threads']} threads; load {facts['load']:.1f} at the start,"
        f" {report['steal_percent']:.1f} % of the time stolen. Keel {report['commit']} with its"
        f" {report['ready']['A']['kernels']} kernels, {report['date']}."
        f" Model {pathlib.Path(settings['config']).name}, greedy, prompts and weights equal on both sides.", "",
        "| setting | Keel / transformers | control | Keel, tokens/s | transformers, tokens/s | its cache | tokens that agree |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, x in report["results"].items():
        ratio, control = x["ratio"], x["control"]
        note = "" if control["holds_one"] else " **(void)**"
        lines.append(
            f"| {name} | **{ratio['median']:.2f}** ({ratio['low']:.2f} to {ratio['high']:.2f}, {ratio['pairs']} pairs)"
            f" | {control['median']:.2f} ({control['low']:.2f} to {control['high']:.2f}){note}"
            f" | {x['tokens_per_s']['A']:.0f} | {x['tokens_per_s']['B']:.0f} | {x['cache']} | {100 * x['agreement']:.1f} % |"
        )
    lines.append("")
    for name, x in report["results"].items():
        share = ""
        if "of_read_bandwidth" in x:
            low, high = min(x["of_read_bandwidth_samples"]), max(x["of_read_bandwidth_samples"])
            share = (
                f" Decoding reads the weights' {report['ready']['A']['weight_bytes'] / 1e6:.0f} MB a token at"
                f" {100 * x['of_read_bandwidth']:.0f} % ({100 * low:.0f} to {100 * high:.0f}) of the read bandwidth."
            )
        lines.append(
            f"- {name}: prompts and first tokens after {1000 * x['first_s']:.0f} ms;"
            f" sampling {100 * x['sampling_share']:.1f} % of the time;"
            f" {x['read_bytes_per_s'] / 1e9:.1f} GB/s read beside.{share}"
        )
    versions = {}
    for ready in report["ready"].values():
        versions |= ready["versions"]
    lines += [
        "",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in sorted(versions.items())) + ". The ratio is the median over"
        " pairs of neighbouring runs, with its bootstrap 95 % interval; tokens agree up to the first that"
        " differs, where two are nearly as likely in bfloat16. Raw samples are in the JSON beside this page.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "bench" / "configs" / "llama-110m.json")
    parser.add_argument("--model", type=pathlib.Path, help="Hugging Face directory; made from --config when absent")
    parser.add_argument("--keel", type=pathlib.Path, default=ROOT / "build" / "release" / "keel")
    parser.add_argument("--seed", type=int, help="of the order of runs")
    parser.add_argument("--output", type=pathlib.Path, help="JSON with all samples")
    parser.add_argument("--markdown", type=pathlib.Path, help="page to write; the JSON goes beside it")
    args = parser.parse_args()
    args.model = args.model or ROOT / "build" / "bench" / args.config.stem
    return args


def main():
    args = parse_arguments()
    run_train.prepare_model(args)
    seed = args.seed if args.seed is not None else time.time_ns() % 2**32
    report = {
        "command": shlex.join(["bench/run_rollout.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": machine.commit(ROOT),
        "machine": machine.facts(),
        "settings": {key: str(value) for key, value in vars(args).items()},
        "seed": seed,
        "results": {},
    }
    stolen, total = machine.steal_ticks()
    workers = {"A": start("keel", args), "B": start("transformers", args)}
    report["ready"] = {side: worker.ready for side, worker in workers.items()}
    prompts = Prompts()
    for name in args.settings:
        report["results"][name] = measure(name, workers, prompts, args, seed)
    for worker in workers.values():
        worker.quit()
    stolen_after, total_after = machine.steal_ticks()
    report["steal_percent"] = 100.0 * (stolen_after - stolen) / max(1, total_after - total)
    report["load_after"] = os.getloadavg()[0]
    text = json.dumps(report, indent=1) + "\n"
    if args.markdown:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text(markdown(report))
        args.output = args.output or args.markdown.with_suffix(".json")
    if args.output:
        args.output.write_text(text)
    else:
        print(text, end="")
    for name, x in report["results"].items():
        ratio = x["ratio"]
        share = f", {100 * x['of_read_bandwidth']:.0f} % of the read bandwidth" if "of_read_bandwidth" in x else ""
        print(
            f"{name}: {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}){share}"
            + ("" if x["control"]["holds_one"] else "; the control does not hold 1: void"),
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
