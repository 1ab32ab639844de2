"""Training speed and memory of Keel beside its peers, on this machine, now.

    keel bench train [--device cpu|cuda|cuda:N] [--dtype float32|bfloat16] [--peer NAME ...] [--rounds 5] [--markdown FILE]

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

import json
import pathlib
import shlex
import statistics
import sys

import driver
import paired
from driver import ROOT

KEEP_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": "10000000000", "MALLOC_TRIM_THRESHOLD_": "10000000000"}
PEERS = {
    "transformers": ([], {}),
    "transformers-malloc": ([], KEEP_BLOCKS),
    "transformers-bf16": (["--weights", "bfloat16"], {}),
    "transformers-compile": (["--compile"], {}),
}
MEMORY_STEPS = 3


def start(name, args):
    shared = [
        "--model", str(args.model), "--dtype", args.dtype, "--sequence", str(args.sequence),
        "--batch", str(args.batch), "--threads", str(args.threads), "--device", args.device,
    ]  # fmt: skip
    environment = driver.environment(args.threads)
    if name == "keel":
        return driver.Worker(name, driver.keel_worker(args, "train", *shared), environment)
    options, extra = PEERS[name]
    script = str(ROOT / "bench" / "peers" / "train_transformers.py")
    return driver.Worker(name, [sys.executable, script, *shared, *options], {**environment, **extra})


def measure_memory(name, args):
    worker = start(name, args)
    record = worker.ask(f"step {MEMORY_STEPS}")
    worker.quit()
    return {"after_load": worker.ready["rss_bytes"], "peak": record["peak_rss_bytes"]}


def measure_speed(sides, args):
    """`sides`: names of A and B. Returns rounds of (side, record), and the GEMM rates on the way."""
    workers = {"A": start(sides[0], args), "B": start(sides[1], args)}
    warm_up = {side: worker.ask(f"step {args.warm_up}") for side, worker in workers.items()}
    rounds, gemms = driver.turns(
        args.rounds, args.seed, lambda side: workers[side].ask(f"step {args.steps}"),
        show=lambda x: f"{x['tokens'] / x['seconds']:.0f} tokens/s",
        between=lambda: {side: worker.ask("gemm")["flops_per_s"] for side, worker in workers.items()},
    )  # fmt: skip
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
    latent = "kv_lora_rank" in config
    dims = config["qk_nope_head_dim"] + config["qk_rope_head_dim"] + config["v_head_dim"] if latent else 2 * config["head_dim"]
    attention = 3 * config["num_hidden_layers"] * config["num_attention_heads"] * dims * sequence
    table = config["vocab_size"] * config["hidden_size"]
    multiplied = parameters if config["tie_word_embeddings"] else parameters - table
    return 6 * multiplied + attention


def run_pair(sides, args):
    workers, warm_up, rounds, gemms = measure_speed(sides, args)
    result = paired.compare(rounds, lambda x: x["tokens"] / x["seconds"])
    config = json.loads(args.config.read_text())
    work = flops_per_token(workers["B"].ready["parameters"], config, args.sequence)
    result["sides"] = {}
    for side, name in zip("AB", sides, strict=True):
        records = driver.of_side(rounds, side)
        rate = statistics.median(x["tokens"] / x["seconds"] for x in records)
        gemm = max(statistics.median(g[of] for g in gemms) for of in "AB")
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
    result["seed"] = args.seed
    result["samples"] = driver.with_sides(rounds)
    return result


def markdown(report):
    settings = report["settings"]
    baseline = settings["baseline"]
    lines = [
        *driver.page_head(f"Training speed, {settings['dtype']}", report),
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
    readies = [side["ready"] for pair in report["pairs"].values() for side in pair["sides"].values()]
    lines += [
        "",
        f"Versions: {driver.versions(readies)}. Both sides' share of"
        " GEMM uses the faster of both sides' products, measured between the rounds. The interval is the"
        " bootstrap's 95 %; the control is the ratio of neighbouring runs of one side and must hold 1."
        " Every sample is in the JSON file beside this page.",
        "",
    ]
    return "\n".join(lines)


def parse_arguments():
    parser = driver.parser("train", __doc__)
    parser.add_argument("--baseline", default="keel", choices=["keel", *PEERS], help="side A")
    parser.add_argument("--peer", action="append", choices=PEERS, help="may be given again")
    parser.add_argument("--config", type=driver.existing, default=ROOT / "bench" / "configs" / "llama-110m.json")
    parser.add_argument("--model", type=pathlib.Path, help="made from the config when missing")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    driver.add_device(parser)
    parser.add_argument("--sequence", type=driver.count(2), default=512)
    parser.add_argument("--batch", type=driver.count(), default=4)
    parser.add_argument("--steps", type=driver.count(), default=1, help="a sample")
    parser.add_argument("--warm-up", type=driver.count(0), default=2, help="steps")
    parser.add_argument("--no-memory", action="store_true")
    args = driver.parse(parser)
    args.peer = args.peer or ["transformers"]
    args.model = args.model or ROOT / "build" / "bench" / args.config.stem
    return args


def main():
    args = parse_arguments()
    driver.make_model(args.config, args.model)
    with driver.measuring("train", args) as report:
        report |= {"pairs": {}, "memory": {}}
        for peer in args.peer:
            print(f"{args.baseline} (A) and {peer} (B), {args.dtype}", file=sys.stderr)
            report["pairs"][peer] = run_pair([args.baseline, peer], args)
    if not args.no_memory:
        for name in [args.baseline, *args.peer]:
            report["memory"][name] = measure_memory(name, args)
    driver.write(report, args, markdown(report))
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
