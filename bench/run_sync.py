"""Weight sync from trainer to rollout, against the ways of other RL trainers, on this machine, now.

    keel bench sync [--rounds 5] [--dtype bfloat16|float32] [--setting in_place:64MiB ...] [--quick]
                    [--markdown docs/benchmarks/sync.md]

Four ranks train a Llama in TP 2 x PP 2 and generate with TP 2, two replicas; all over gloo on this machine.
Keel's sync and a peer's take turns in the same ranks, process groups and memory, in the order A B B A or
B A A B, at the same bytes. A turn's time is its slowest rank's. Keel's includes the proof that what arrived is
what was sent, which no peer gives. Beside it the limit: the bytes that have to move in one all-to-all between
buffers that are there, with nothing packed, placed or proved.

Peers:
    gather-broadcast  each tensor is gathered whole on rank 0 and broadcast to all, who take their slice
    stage-broadcast   each shard is broadcast from its pipeline stage, then gathered over tensor parallelism

Settings are modes (`in_place`, `staged`) and bucket sizes. Before the turns each way is shown to bring every
byte: the rollout's weights are made NaN, synced, and their digests compared between the ways. Last, the same
with a trainer in TP 2 x DP 2, whose layout is the rollout's: nothing may move.
"""

import json
import pathlib
import re
import statistics
import sys
import tempfile

import driver
import paired
import ranks
from driver import ROOT

PEERS = ["gather-broadcast", "stage-broadcast"]
SETTINGS = ["in_place:64MiB", "in_place:8MiB", "in_place:1MiB", "staged:64MiB"]
QUICK_SETTINGS = ["in_place:64KiB", "staged:4KiB"]
WORLD = 4
MIB = 2**20
# Small, and with rows and heads that every rank has as many of.
QUICK_MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}  # fmt: skip


def bucket_bytes(setting):
    mode, number, unit = re.fullmatch(r"(in_place|staged):(\d+)(KiB|MiB)", setting).groups()
    return mode, int(number) * {"KiB": 2**10, "MiB": MIB}[unit]


def start(args, folder, tp, pp):
    command = driver.keel_worker(
        args, "sync", "--dtype", args.dtype, "--model-config", str(args.config), "--tp", str(tp), "--pp", str(pp),
        "--rollout-tp", "2",
    )  # fmt: skip
    return ranks.Ranks("keel", command, WORLD, folder / f"tp{tp}-pp{pp}.txt", args.threads)


def take(workers, way):
    """One sync: the slowest rank's time, and what the ranks say together."""
    answers = workers.ask(f"sync {way}")
    sample = {"seconds": max(x["seconds"] for x in answers), "extra_bytes": max(x["extra_bytes"] for x in answers)}
    if way == "keel":
        for key in ["sent_bytes", "copied_bytes"]:
            sample[key] = sum(x[key] for x in answers)
        for key in ["rounds", "buffer_bytes", "exchange_s", "digest_s"]:
            sample[key] = max(x[key] for x in answers)
    return sample


def digests(workers, way):
    """Of each rank's rollout after NaN everywhere and one sync."""
    workers.ask("corrupt")
    before = [x["digest"] for x in workers.ask("digest")]
    workers.ask(f"sync {way}")
    after = [x["digest"] for x in workers.ask("digest")]
    if before == after:
        raise SystemExit(f"{way} changed nothing")
    return after


def measure_setting(setting, args, folder):
    mode, bucket = bucket_bytes(setting)
    workers = start(args, folder, 2, 2)
    opened = workers.ask(f"open {mode} {bucket}")
    result = {"ready": workers.ready[0], "mode": mode, "bucket_bytes": bucket, "rollout_bytes": max(x["rollout_bytes"] for x in opened), "peers": {}}
    arrived = {way: digests(workers, way) for way in ["keel", *args.peer]}
    for way, found in arrived.items():
        if found != arrived["keel"]:
            raise SystemExit(f"{setting}: {way} brings other weights than Keel: {found}, not {arrived['keel']}")
    for peer in args.peer:
        print(f"{setting}: keel (A) and {peer} (B)", file=sys.stderr)
        ways = {"A": "keel", "B": peer}
        rounds, limits = driver.turns(
            args.rounds, args.seed, lambda side, ways=ways: take(workers, ways[side]),
            show=lambda x: f"{1e3 * x['seconds']:.1f} ms",
            between=lambda: max(x["seconds"] for x in workers.ask("wire")),
        )  # fmt: skip
        pair = paired.compare(rounds, lambda x: 1.0 / x["seconds"])
        ours, theirs = driver.of_side(rounds, "A"), driver.of_side(rounds, "B")
        pair["seconds"] = {
            "keel": statistics.median(x["seconds"] for x in ours),
            "peer": statistics.median(x["seconds"] for x in theirs),
            "limit": statistics.median(limits),
        }
        pair["of_limit"] = paired.summarize(
            [limit / x["seconds"] for limit, samples in zip(limits, rounds, strict=True) for side, x in samples if side == "A"]
        )
        pair["extra_bytes"] = {
            "keel": max(x["extra_bytes"] for x in ours),
            "peer": max(x["extra_bytes"] for x in theirs),
        }
        for key in ["sent_bytes", "copied_bytes", "rounds", "buffer_bytes"]:
            pair[key] = ours[0][key]
        for key in ["exchange_s", "digest_s"]:
            pair[key] = statistics.median(x[key] for x in ours)
        pair["limits_s"] = limits
        pair["samples"] = driver.with_sides(rounds)
        result["peers"][peer] = pair
    workers.quit()
    return result


def measure_aliased(args, folder):
    workers = start(args, folder, 2, 1)
    opened = workers.ask(f"open in_place {MIB}")
    samples = [take(workers, "keel") for _ in range(10 * args.rounds)]
    workers.quit()
    return {"aliased": all(x["aliased"] for x in opened), "layout": workers.ready[0]["layout"], "samples": samples}


def bars(report):
    found = []
    for setting, x in report["settings_measured"].items():
        for peer, pair in x["peers"].items():
            if peer == "gather-broadcast":
                ratio = pair["ratio"]
                found.append(
                    driver.bar(f"{setting}: rate over gather-broadcast's", ">= 2.5", driver.text(ratio),
                               ratio["low"] >= 2.5, not pair["control"]["holds_one"])
                )  # fmt: skip
        extra = max(pair["extra_bytes"]["keel"] for pair in x["peers"].values())
        # The last: the sums of digests, and what the plan needs of shapes.
        parts = [("2 buckets", 2 * x["bucket_bytes"]), ("64 KiB", 64 * 1024)]
        if x["mode"] == "staged":
            parts.insert(1, ("the rank's shard", x["rollout_bytes"]))
        allowed, words = sum(size for _, size in parts), "<= " + " + ".join(name for name, _ in parts)
        found.append(
            driver.bar(f"{setting}: memory beyond before, most of any rank", words,
                       f"{extra / MIB:.2f} of {allowed / MIB:.2f} MiB", extra <= allowed)
        )  # fmt: skip
    alias = report["aliased"]
    moved = sum(x["sent_bytes"] + x["copied_bytes"] + x["extra_bytes"] for x in alias["samples"])
    worst = max(x["seconds"] for x in alias["samples"])
    middle = statistics.median(x["seconds"] for x in alias["samples"])
    found.append(driver.bar("same layout: bytes moved or allocated", "0", str(moved), alias["aliased"] and moved == 0))
    found.append(
        driver.bar("same layout: time, median (worst)", "<= 1 ms", f"{1e3 * middle:.3f} ms ({1e3 * worst:.3f} ms)", middle <= 1e-3)
    )
    return found


def markdown(report):
    settings = report["settings"]
    *lines, machine = driver.page_head("Weight sync", report)
    ready = next(iter(report["settings_measured"].values()))["ready"]
    lines += [
        machine + f" {ready['parameters'] / 1e6:.0f}M Llama, {settings['dtype']}; trainer"
        f" {ready['layout']}, rollout TP 2, two replicas; gloo over loopback.",
        "",
        *driver.bar_table(report["bars"]),
        "",
        "| setting | peer | keel / peer | control | keel, ms | of it the proof | peer, ms | limit, ms | keel of the limit | rounds | beyond before, MiB: keel | peer |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for setting, x in report["settings_measured"].items():
        for peer, pair in x["peers"].items():
            seconds, extra = pair["seconds"], pair["extra_bytes"]
            lines.append(
                f"| {setting} | {peer} | **{driver.text(pair['ratio'])}** | {driver.control_text(pair)} |"
                f" {1e3 * seconds['keel']:.1f} | {1e3 * pair['digest_s']:.1f} | {1e3 * seconds['peer']:.1f} |"
                f" {1e3 * seconds['limit']:.1f} | {driver.text(pair['of_limit'])} | {pair['rounds']} |"
                f" {extra['keel'] / MIB:.1f} | {extra['peer'] / MIB:.1f} |"
            )
    first = next(iter(next(iter(report["settings_measured"].values()))["peers"].values()))
    lines += [
        "",
        f"Keel's ranks send {first['sent_bytes'] / 1e6:.0f} MB in all and copy {first['copied_bytes'] / 1e6:.0f} MB"
        " within themselves, and then compare digests of every tensor, taken from the receivers' memory. The peers'"
        " times are without any proof. The limit is one all-to-all of as many bytes between buffers that are there,"
        " measured after each round. Memory is what torch's allocator gave out at most during a sync beyond before it, on"
        " the rank with most. All ways were shown to bring the same bytes, over NaN, before the turns. Ratios are of"
        " neighbours in the order A B B A or B A A B; in brackets the bootstrap's 95 % interval. The control is the ratio"
        " of neighbouring turns of one side and must hold 1. Every sample is in the JSON beside this page."
        f" Versions: {driver.versions([ready])}.",
        "",
    ]
    return "\n".join(lines)


def parse_arguments():
    parser = driver.parser("sync", __doc__, threads=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--setting", action="append", help="MODE:BUCKET, such as staged:64MiB; may be given again")
    parser.add_argument("--peer", action="append", choices=PEERS, help="may be given again; default: all")
    parser.add_argument("--config", type=driver.existing, default=ROOT / "bench" / "configs" / "llama-110m.json")
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round: to see it work")
    args = driver.parse(parser)
    args.peer = args.peer or PEERS
    args.setting = args.setting or (QUICK_SETTINGS if args.quick else SETTINGS)
    for setting in args.setting:
        if not re.fullmatch(r"(in_place|staged):[1-9]\d*(KiB|MiB)", setting):
            parser.error(f"--setting {setting}: not like in_place:64MiB or staged:512KiB")
    if args.quick:
        args.rounds = 1
    return args


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="keel-bench-sync-") as name:
        folder = pathlib.Path(name)
        if args.quick:
            args.config = folder / "config.json"
            args.config.write_text(json.dumps(QUICK_MODEL))
        with driver.measuring("sync", args) as report:
            report["settings_measured"] = {s: measure_setting(s, args, folder) for s in args.setting}
            report["aliased"] = measure_aliased(args, folder)
    report["bars"] = bars(report)
    page = markdown(report)
    driver.write(report, args, page)
    print(page, file=sys.stderr)


if __name__ == "__main__":
    main()
