"""Generation speed of Keel beside transformers, on this machine, now.

    keel bench rollout [--device cpu|cuda|cuda:N] [--dtype bfloat16|float32] [--rounds 5] [--settings NAME ...] [--markdown FILE]

Greedy generation by both sides from the same weights and prompts, in turns (A B B A or B A A B). Per
setting: the median ratio of neighbours with its bootstrap 95 % interval, the control (the ratio of two
neighbouring runs of one side, which must hold 1), and how many of the tokens agree. For a batch of one
also the bytes of the weights that each decoded token reads, as a share of the read bandwidth measured in
the same round. transformers takes the faster of its dynamic and its static cache, chosen per setting.

Settings, prompt + new tokens: batch 1, 8 and 32 of 64 + 64; `mixed`: 32 requests of 16 to 127 + 8 to 127,
for which transformers runs one padded batch to its longest, and only tokens asked for count.
"""

import pathlib
import statistics
import sys

import driver
import paired
from driver import ROOT

SETTINGS = {
    "batch 1": [(64, 64)],
    "batch 8": [(64, 64)] * 8,
    "batch 32": [(64, 64)] * 32,
    "mixed": [(16 + 37 * i % 112, 8 + 53 * i % 120) for i in range(32)],
}


def start(name, args):
    shared = ["--model", str(args.model), "--dtype", args.dtype, "--threads", str(args.threads), "--device", args.device]
    if name == "keel":
        command = driver.keel_worker(args, "rollout", *shared)
    else:
        command = [sys.executable, str(ROOT / "bench" / "peers" / "generate_transformers.py"), *shared]
    return driver.Worker(name, command, driver.environment(args.threads))


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


def measure(name, workers, prompts, args):
    lengths = SETTINGS[name]
    for side, worker in workers.items():
        worker.ask(prompts.command(side, lengths))
    print(name, file=sys.stderr)
    rounds, reads = driver.turns(
        args.rounds, args.seed, lambda side: workers[side].ask(prompts.command(side, lengths)),
        show=lambda x: f"{x['tokens'] / x['seconds']:.0f} tokens/s",
        between=lambda: workers["A"].ask("read")["bytes_per_s"],
    )  # fmt: skip
    result = paired.compare(rounds, lambda x: x["tokens"] / x["seconds"])
    everything = [sample for samples in rounds for sample in samples]
    result["agreement"] = agreement(everything)
    result["tokens_per_s"] = {
        side: statistics.median(x["tokens"] / x["seconds"] for s, x in everything if s == side) for side in "AB"
    }
    ours = driver.of_side(rounds, "A")
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
    result["samples"] = driver.with_sides(rounds)
    return result


def markdown(report):
    settings = report["settings"]
    *lines, machine = driver.page_head(f"Generation speed, {settings['dtype']}", report)
    lines += [
        machine + f" Its kernels: {report['ready']['A']['kernels']}."
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
    lines += [
        "",
        f"Versions: {driver.versions(report['ready'].values())}. The ratio is the median over"
        " pairs of neighbouring runs, with its bootstrap 95 % interval; tokens agree up to the first that"
        " differs, where two are nearly as likely in bfloat16. Raw samples are in the JSON beside this page.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def parse_arguments():
    parser = driver.parser("rollout", __doc__)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    driver.add_device(parser)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--config", type=driver.existing, default=ROOT / "bench" / "configs" / "llama-110m.json")
    parser.add_argument("--model", type=pathlib.Path, help="Hugging Face directory; made from --config when absent")
    args = driver.parse(parser)
    args.model = args.model or ROOT / "build" / "bench" / args.config.stem
    return args


def main():
    args = parse_arguments()
    driver.make_model(args.config, args.model)
    with driver.measuring("rollout", args) as report:
        workers = {"A": start("keel", args), "B": start("transformers", args)}
        report["ready"] = {side: worker.ready for side, worker in workers.items()}
        prompts = Prompts()
        report["results"] = {name: measure(name, workers, prompts, args) for name in args.settings}
        for worker in workers.values():
            worker.quit()
    driver.write(report, args, markdown(report))
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
