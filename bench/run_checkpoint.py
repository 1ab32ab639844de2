"""What saving costs beside training, and what loading takes, against PyTorch's own ways, now.

    keel bench checkpoint [--only lost,durable,load,memory,small,commit,index] [--rounds 3] [--quick]
                          [--setting two-ranks] [--peer dcp-thread ...] [--markdown docs/benchmarks/checkpoint.md]

Starts Keel and a peer as workers of the same ranks, which train the same state by the same steps and save
it (bench/peers/README.md), and lets them take turns in the order A B B A or B A A B. Prints ratios with
their bootstrap 95 % interval; the JSON file has every sample, the machine, and the limits of the disk and
of read and hash that were measured between the turns. Nothing else should run on the machine.

Settings (two-ranks and small-state keep both cores of a machine of two cores busy):
    two-ranks    2 ranks of 1 thread, 1 GB of state over both
    small-state  2 ranks of 1 thread, 64 MB of state
    spare-core   1 rank of 1 thread, 500 MB of state

Parts:
    lost     time of --steps steps with a save in them, less the time of as many without
    durable  a save with nothing beside it, until it is on the disk
    load     verified by Keel; into the saved layout and into another; pages warm
    memory   of the host, beyond the state: at most, and between saves
    small    20,000 tensors of 4 to 64 KiB
    commit   1 MB of 4 ranks, 1,000 times
    index    10^6 boxes: open and plan
"""

import json
import pathlib
import shlex
import shutil
import sys
import tempfile
import time

import checkpoint_parts
import checkpoint_report
import driver
import machine
from checkpoint_settings import PEERS, SETTINGS

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ["lost", "durable", "load", "memory", "small", "commit", "index"]


def parse_arguments():
    parser = driver.Parser("checkpoint", __doc__)
    parser.add_argument("--keel", type=driver.keel_of_build, default=str(driver.KEEL), help="beside it: keel_bench")
    parser.add_argument("--dir", type=driver.folder, default=ROOT / "build" / "bench" / "checkpoint", help="on the disk to measure")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="may be given again; default: all")
    parser.add_argument("--peer", action="append", choices=PEERS, help="may be given again; default: all")
    parser.add_argument("--rounds", type=driver.count(), default=3, help="of four turns, two pairs, each")
    parser.add_argument("--steps", type=driver.count(), default=20, help="at least, in a turn without and with a save")
    parser.add_argument("--products", type=driver.count(), default=8, help="matrix products of 1024 a step")
    parser.add_argument("--io", default="auto", choices=["auto", "buffered", "direct", "io_uring"], help="Keel's back-end")
    parser.add_argument("--seed", type=int, help="of the order")
    parser.add_argument("--quick", action="store_true", help="a tenth of the state, one round: to see it work")
    driver.add_reports(parser)
    args = driver.parse(parser)
    args.only = args.only.split(",")
    if unknown := set(args.only) - set(PARTS):
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    args.setting = args.setting or list(SETTINGS)
    args.peer = args.peer or list(PEERS)
    if args.quick:
        args.rounds, args.steps = 1, 6
    return args


def to_json(report):
    """On one line, with seven digits: thousands of samples, which nobody reads by eye."""

    def short(x):
        if isinstance(x, dict):
            return {key: short(value) for key, value in x.items()}
        if isinstance(x, list):
            return [short(value) for value in x]
        return float(f"{x:.7g}") if isinstance(x, float) else x

    return json.dumps(short(report), separators=(",", ":")) + "\n"


def main():
    args = parse_arguments()
    args.dir.mkdir(parents=True, exist_ok=True)
    # A folder of our own: what else is in the directory is somebody's.
    args.dir = pathlib.Path(tempfile.mkdtemp(prefix="keel-bench-", dir=args.dir))
    report = {
        "benchmark": "checkpoint",
        "command": shlex.join(["keel", "bench", "checkpoint", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": machine.commit(ROOT),
        "machine": machine.facts(),
        "settings": machine.settings(args, ROOT),
        "parts": {},
    }
    output = driver.json_path(args)
    stolen, total = machine.steal_ticks()
    try:
        for path, part in checkpoint_parts.parts(args):
            print(", ".join(path), file=sys.stderr, flush=True)
            place = report["parts"]
            for name in path[:-1]:
                place = place.setdefault(name, {})
            place[path[-1]] = part()
            if output:  # what there is so far
                driver.put(to_json(report), output)
    finally:
        shutil.rmtree(args.dir, ignore_errors=True)
    stolen_after, total_after = machine.steal_ticks()
    report["steal_percent"] = 100.0 * (stolen_after - stolen) / max(1, total_after - total)
    report["load_after"] = machine.facts()["load"]
    report["bars"] = checkpoint_report.bars(report)
    driver.put(to_json(report), output)
    page = checkpoint_report.markdown(report)
    if args.markdown:
        driver.put(page, args.markdown)
    print(page, file=sys.stderr)


if __name__ == "__main__":
    main()
