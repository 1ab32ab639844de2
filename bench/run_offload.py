"""Offload of weights and optimizer state and their way back, against plain copies, on this machine, now.

    keel bench offload [--rounds 8] [--cycles 100] [--threads 2] [--device cpu] [--quick]
                       [--markdown docs/benchmarks/offload.md]

One process holds the training state of a Llama (weights, float32 masters, two moments) and moves it to the host
arena and back: `trainer/engine/residency.h`, as param_offload and optimizer_offload do in a run. On a CPU the device is
other memory of the host: the bytes are really copied, and the device's pages are then the kernel's to take.
Beside it, in the same process and in turns A B B A or B A A B, the limit: memcpy by as many threads of as many
bytes, in blocks of the same sizes that are kept and warm. Then --cycles moves there and back, and the resident
memory after each. On a GPU the copies are its own, from and to pinned memory, and after each move the memory that
its driver has free is asked, too.
"""

import json
import pathlib
import statistics
import sys
import tempfile

import driver
import paired
import run_sync
from driver import ROOT

SETTLED = 2  # cycles before memory has to stay
MIB = 2**20


def start(args):
    command = driver.keel_worker(
        args, "offload", "--dtype", args.dtype, "--model-config", str(args.config), "--threads", str(args.threads),
        "--device", args.device,
    )  # fmt: skip
    return driver.Worker("keel", command, driver.environment(args.threads))


def measure(worker, args):
    worker.ask("cycle")
    worker.ask("copy")
    commands = {"A": "cycle", "B": "copy"}
    rounds, _ = driver.turns(
        args.rounds, args.seed, lambda side: worker.ask(commands[side]),
        show=lambda x: f"{x['bytes'] / x['offload_s'] / 1e9:.1f} down {x['bytes'] / x['load_s'] / 1e9:.1f} up GB/s",
    )  # fmt: skip
    parts = {
        "offload": lambda x: x["bytes"] / x["offload_s"],
        "load": lambda x: x["bytes"] / x["load_s"],
        "both": lambda x: 2 * x["bytes"] / (x["offload_s"] + x["load_s"]),
    }
    result = {"samples": driver.with_sides(rounds), "parts": {}}
    for name, rate in parts.items():
        part = paired.compare(rounds, rate)
        for side, who in [("A", "keel"), ("B", "copy")]:
            part[f"{who}_bytes_per_s"] = statistics.median(rate(x) for x in driver.of_side(rounds, side))
        result["parts"][name] = part
    result["left_bytes"] = max(x["left_bytes"] for x in driver.of_side(rounds, "A"))
    return result


def spread(values):
    """Largest distance of settled values from their median, over it."""
    values = values[SETTLED:]
    middle = statistics.median(values)
    return max(abs(value - middle) for value in values) / middle


def freed(resident):
    """Bytes that the driver of a GPU has more while the state is on the host, at least, and how far they move."""
    host, device = resident["free_on_host"][SETTLED:], resident["free_on_device"][SETTLED:]
    return min(host) - max(device), max(max(host) - min(host), max(device) - min(device))


def bars(report):
    found = []
    for name, words in [("offload", "offload"), ("load", "load"), ("both", "there and back")]:
        part = report["moves"]["parts"][name]
        ratio, void = part["ratio"], not part["control"]["holds_one"]
        found.append(driver.bar(f"{words}: rate over plain copies'", ">= 0.85", driver.text(ratio), ratio["median"] >= 0.85, void))
    left = report["moves"]["left_bytes"]
    found.append(driver.bar("bytes left on the device when offloaded", "0", str(left), left == 0))
    resident = report["resident"]
    worst = max(spread(resident["on_host"]), spread(resident["on_device"]))
    found.append(
        driver.bar(f"resident memory over {len(resident['on_host'])} cycles, after the second", "flat within 1 %",
                   f"within {100 * worst:.2f} %", worst <= 0.01)
    )  # fmt: skip
    if "free_on_host" in resident:
        back, flat = freed(resident)
        found.append(driver.bar("memory back with the driver", ">= what left, but for 64 MiB", f"{back / MIB:.0f} of {report['ready']['bytes'] / MIB:.0f} MiB",
                                back >= report["ready"]["bytes"] - 64 * MIB))
        found.append(driver.bar("memory of the driver over all cycles, after the second", "flat within 64 MiB", f"within {flat / MIB:.0f} MiB",
                                flat <= 64 * MIB))  # fmt: skip
    found.append(driver.bar("time told for a move of nothing", "0.0", repr(report["idle_s"]), report["idle_s"] == 0.0))
    same = report["digests"][0] == report["digests"][1]
    found.append(driver.bar("the state after all of it", "the same bits", "the same" if same else "others", same))
    return found


def markdown(report):
    settings, ready = report["settings"], report["ready"]
    *lines, machine = driver.page_head("Offload", report)
    lines += [
        machine + f" {ready['parameters'] / 1e6:.0f}M Llama, {settings['dtype']}: {ready['bytes'] / 1e9:.2f} GB of weights,"
        " masters and moments.",
        "",
        *driver.bar_table(report["bars"]),
        "",
        "| | keel / copies | control | keel, GB/s | copies, GB/s |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, part in report["moves"]["parts"].items():
        lines.append(
            f"| {name} | **{driver.text(part['ratio'])}** | {driver.control_text(part)} |"
            f" {part['keel_bytes_per_s'] / 1e9:.1f} | {part['copy_bytes_per_s'] / 1e9:.1f} |"
        )
    resident = report["resident"]
    lines += [
        "",
        f"Resident, median of the cycles: {statistics.median(resident['on_host']) / MIB:.0f} MiB with the state on the host,"
        f" {statistics.median(resident['on_device']) / MIB:.0f} MiB with it on the device. Pages that the"
        " device gave up are the kernel's, which takes them when it needs them (MADV_FREE): until then they count as"
        " resident, and the next load finds them warm. The copies are memcpy by as many threads, in blocks of the same"
        " sizes, between memory that is kept. Ratios are of neighbours in the order A B B A or B A A B; in brackets the"
        " bootstrap's 95 % interval. The control is the ratio of neighbouring turns of one side and must hold 1. Every"
        f" sample is in the JSON beside this page. Versions: {driver.versions([ready])}.",
        "",
    ]
    return "\n".join(lines)


def parse_arguments():
    parser = driver.parser("offload", __doc__, rounds=8)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--cycles", type=driver.count(SETTLED + 1), default=100)
    parser.add_argument("--config", type=driver.existing, default=ROOT / "bench" / "configs" / "llama-110m.json")
    driver.add_device(parser)
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round: to see it work")
    args = driver.parse(parser)
    if args.quick:
        args.rounds = 1
    return args


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="keel-bench-offload-") as name:
        if args.quick:
            args.config = pathlib.Path(name) / "config.json"
            args.config.write_text(json.dumps(run_sync.QUICK_MODEL))
        with driver.measuring("offload", args) as report:
            worker = start(args)
            report["ready"] = worker.ready
            first = worker.ask("digest")["digest"]
            report["moves"] = measure(worker, args)
            report["resident"] = worker.ask(f"cycles {args.cycles}")
            report["idle_s"] = worker.ask("idle")["seconds"]
            report["digests"] = [first, worker.ask("digest")["digest"]]
            worker.quit()
    report["bars"] = bars(report)
    page = markdown(report)
    driver.write(report, args, page)
    print(page, file=sys.stderr)


if __name__ == "__main__":
    main()
