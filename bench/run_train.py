"""Training speed and memory of Keel beside its peers, on this machine, now.

    bench/run_train.py [--dtype float32|bfloat16] [--peer NAME ...] [--rounds 5] [--markdown FILE]

Starts Keel and a peer as workers (bench/peers/README.md), lets them take turns in the order A B B A or
B A A B, and reports the median ratio of neighbours with its bootstrap 95 % interval, the share of the
GEMM rate that was measured in the same run, whether both sides' losses agree, and the peak resident
memory of each in a fresh process. Nothing else should run on the machine; the control (the ratio of two
neighbouring runs of the same side) tells whether something did.

Peers:
    transformers         float32, or bfloat16 autocast over float32 weights: Keel's precision
    transformers-malloc  the same, with glibc told to keep large blocks (MALLOC_*_THRESHOLD_)
    transformers-bf16    weights and moments in bfloat16 alone: less precise than Keel
    transformers-compile torch.compile
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import machine
import paired

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEEP_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": "10000000000", "MALLOC_TRIM_THRESHOLD_": "10000000000"}
PEERS = {
    "transformers": ([], {}),
    "transformers-malloc": ([], KEEP_BLOCKS),
    "transformers-bf16": (["--weights", "bfloat16"], {}),
    "transformers-compile": (["--compile"], {}),
}
MEMORY_STEPS = 3


class Worker:
    """A process that answers each line with one line of JSON."""

    def __init__(self, name, command, environment):
        self.name = name
        self.command = command
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.ready = self._answer()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def quit(self):
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended (exit {self.process.wait()}): {shlex.join(self.command)}")
        record = json.loads(line)
        if "error" in record:
            raise SystemExit(f"{self.name}: {record['error']}")
        return record


def start(name, args):
    shared = [
        "--model", str(args.model), "--dtype", args.dtype, "--sequence", str(args.sequence),
        "--batch", str(args.batch), "--threads", str(args.threads),
    ]  # fmt: skip
    environment = {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    if name == "keel":
        return Worker(name, [str(args.keel), "bench", "train", "--worker", *shared], environment)
    options, extra = PEERS[name]
    script = str(ROOT / "bench" / "peers" / "train_transformers.py")
    return Worker(name, [sys.executable, script, *shared, *options], {**environment, **extra})


def prepare_model(args):
    if not (args.model / "model.safetensors").exists():
        script = str(ROOT / "bench" / "peers" / "make_model.py")
        subprocess.run([sys.executable, script, str(args.config), str(args.model)], check=True)


def measure_memory(name, args):
    worker = start(name, args)
    record = worker.ask(f"step {MEMORY_STEPS}")
    worker.quit()
    return {"after_load": worker.ready["rss_bytes"], "peak": record["peak_rss_bytes"]}


def measure_speed(sides, args, seed):
    """`sides`: names of A and B. Returns rounds of (side, record), and the GEMM rates on the way."""
    workers = {"A": start(sides[0], args), "B": start(sides[1], args)}
    warm_up = {side: worker.ask(f"step {args.warm_up}") for side, worker in workers.items()}
    rounds, gemms = [], []
    for round_order in paired.order(args.rounds, seed):
        samples = [(side, workers[side].ask(f"step {args.steps}")) for side in round_order]
        rounds.append(samples)
        gemms.append({side: worker.ask("gemm")["flops_per_s"] for side, worker in workers.items()})
        print(
            f"  {round_order}: "
            + ", ".join(f"{side} {x['tokens'] / x['seconds']:.0f} tokens/s" for side, x in samples),
            file=sys.stderr,
        )
    for worker in workers.values():
        worker.quit()
    return workers, warm_up, rounds, gemms


def loss_distance(warm_up, rounds):
    """Largest distance between the two sides' losses of the same step."""
    losses = {side: list(record["losses"]) for side, record in warm_up.items()}
    for samples in rounds:
        for side, record in samples:
            losses[side] += record["losses"]
    return max(abs(a - b) for a, b in zip(losses["A"], losses["B"], strict=True))


def flops_per_token(parameters, config, sequence):
    """6 per weight that is multiplied, and attention's two products, causal, forward and backward."""
    width = config["num_attention_heads"] * config["head_dim"]
    attention = 6 * config["num_hidden_layers"] * width * sequence
    table = config["vocab_size"] * config["hidden_size"]
    multiplied = parameters if config["tie_word_embeddings"] else parameters - table
    return 6 * multiplied + attention


def run_pair(sides, args, seed):
    workers, warm_up, rounds, gemms = measure_speed(sides, args, seed)
    result = paired.compare(rounds, lambda x: x["tokens"] / x["seconds"])
    config = json.loads(args.config.read_text())
    work = flops_per_token(workers["B"].ready["parameters"], config, args.sequence)
    result["sides"] = {}
    for side, name in zip("AB", sides, strict=True):
        records = [x for samples in rounds for s, x in samples if s == side]
        rate = statistics.median(x["tokens"] / x["seconds"] for x in records)
        gemm = statistics.median(g["B"] for g in gemms)
        result["sides"][name] = {
            "tokens_per_s": rate,
            "flops_per_s": rate * work,
            "of_gemm": rate * work / gemm,
            "gemm_flops_per_s": statistics.median(g[side] for g in gemms),
            **{
                part: statistics.median(x[part] / (x["tokens"] / (args.batch * args.sequence)) for x in records)
                for part in ("forward_s", "backward_s", "optimizer_s")
            },
            "command": shlex.join(workers[side].command),
            "ready": workers[side].ready,
        }
    result["loss_distance"] = loss_distance(warm_up, rounds)
    result["seed"] = seed
    result["samples"] = [[{"side": s, **x} for s, x in samples] for samples in rounds]
    return result


def markdown(report):
    settings, facts = report["settings"], report["machine"]
    baseline = settings["baseline"]
    lines = [
        f"# Training speed, {settings['dtype']}",
        "",
        f"`{report['command']}`",
        "",
        f"{facts['cpu']} ({', '.join(facts['features'])}), {facts['cores']} cores, {facts['memory_gib']} GiB,"
        f" Linux {facts['kernel']}; {settings['threads']} threads; load {facts['load']:.1f} at the start,"
        f" {report['steal_percent']:.1f} % of the time stolen. Keel {report['commit']}, {report['date']}.",
        f"Model {pathlib.Path(settings['config']).name}, {settings['batch']} sequences of"
        f" {settings['sequence']} tokens a step, AdamW, gradients clipped.",
        "",
        f"| peer | {baseline} / peer, tokens/s | control | {baseline} | peer | {baseline} of GEMM | peer of GEMM | losses differ by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, pair in report["pairs"].items():
        ratio, control = pair["ratio"], pair["control"]
        ours, peer = pair["sides"][baseline], pair["sides"][name]
        note = "" if control["holds_one"] else " **(void)**"
        lines.append(
            f"| {name} | **{ratio['median']:.2f}** ({ratio['low']:.2f} to {ratio['high']:.2f},"
            f" {ratio['pairs']} pairs) | {control['median']:.2f} ({control['low']:.2f} to"
            f" {control['high']:.2f}){note} | {ours['tokens_per_s']:.0f} | {peer['tokens_per_s']:.0f} |"
            f" {100 * ours['of_gemm']:.0f} % | {100 * peer['of_gemm']:.0f} % | {pair['loss_distance']:.1e} |"
        )
    lines += ["", "| seconds a step | forward and backward | optimizer | GEMM beside, GFLOP/s |", "|---|---|---|---|"]
    for name, pair in report["pairs"].items():
        for side, x in pair["sides"].items():
            label = f"{side}, beside {name}" if side == baseline else side
            lines.append(
                f"| {label} | {x['forward_s'] + x['backward_s']:.2f} | {x['optimizer_s']:.2f} |"
                f" {x['gemm_flops_per_s'] / 1e9:.0f} |"
            )
    if report["memory"]:
        lines += [
            "",
            f"Resident memory, each in a fresh process, {MEMORY_STEPS} steps:",
            "",
            "| | after load, MiB | peak, MiB |",
            "|---|---|---|",
        ]
        for name, x in report["memory"].items():
            lines.append(f"| {name} | {x['after_load'] / 2**20:.0f} | {x['peak'] / 2**20:.0f} |")
    versions = {}
    for pair in report["pairs"].values():
        for side in pair["sides"].values():
            versions |= side["ready"].get("versions", {})
    lines += [
        "",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in sorted(versions.items())) + ". Both sides' share of"
        " GEMM uses the peer's square product of 2048, measured between the rounds. The interval is the"
        " bootstrap's 95 %; the control is the ratio of neighbouring runs of one side and must hold 1."
        " Every sample is in the JSON file beside this page.",
        "",
    ]
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keel", type=pathlib.Path, default=ROOT / "build" / "release" / "keel")
    parser.add_argument("--baseline", default="keel", choices=["keel", *PEERS], help="side A")
    parser.add_argument("--peer", action="append", choices=PEERS, help="may be given again")
    parser.add_argument("--config", type=pathlib.Path, default=ROOT / "bench" / "configs" / "llama-110m.json")
    parser.add_argument("--model", type=pathlib.Path, help="made from the config when missing")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="of four samples, two pairs, each")
    parser.add_argument("--steps", type=int, default=1, help="a sample")
    parser.add_argument("--warm-up", type=int, default=2, help="steps")
    parser.add_argument("--seed", type=int, default=None, help="of the order")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, help="JSON with every sample; else standard output")
    parser.add_argument("--markdown", type=pathlib.Path, help="page to write; the JSON goes beside it")
    args = parser.parse_args()
    args.peer = args.peer or ["transformers"]
    args.model = args.model or ROOT / "build" / "bench" / args.config.stem
    return args


def main():
    args = parse_arguments()
    prepare_model(args)
    seed = args.seed if args.seed is not None else time.time_ns() % 2**32
    report = {
        "command": shlex.join(["bench/run_train.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": machine.commit(ROOT),
        "machine": machine.facts(),
        "settings": {key: str(value) for key, value in vars(args).items()},
        "pairs": {},
        "memory": {},
    }
    stolen, total = machine.steal_ticks()
    for peer in args.peer:
        print(f"{args.baseline} (A) and {peer} (B), {args.dtype}", file=sys.stderr)
        report["pairs"][peer] = run_pair([args.baseline, peer], args, seed)
    stolen_after, total_after = machine.steal_ticks()
    report["steal_percent"] = 100.0 * (stolen_after - stolen) / max(1, total_after - total)
    if not args.no_memory:
        for name in [args.baseline, *args.peer]:
            report["memory"][name] = measure_memory(name, args)
    text = json.dumps(report, indent=1) + "\n"
    if args.markdown:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text(markdown(report))
        args.output = args.output or args.markdown.with_suffix(".json")
    if args.output:
        args.output.write_text(text)
    else:
        print(text, end="")
    for name, pair in report["pairs"].items():
        ratio = pair["ratio"]
        print(
            f"{args.baseline} / {name}: {ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}),"
            f" losses differ by {pair['loss_distance']:.1e}"
            + ("" if pair["control"]["holds_one"] else "; the control does not hold 1: void"),
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
