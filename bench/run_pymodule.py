"""What keel.Checkpointer costs a PyTorch training loop, against torch.distributed.checkpoint's async_save.

    keel bench pymodule [--rounds 3] [--megabytes 500] [--ranks 1] [--quick] [--markdown docs/benchmarks/pymodule.md]

Both sides are the same Python worker (bench/peers/checkpoint_worker.py) with the same state and the same steps of eight float32
products and a fused AdamW; only the calls that save and load differ. They take turns in the order A B B A or B A A B. A turn is --steps
steps, as many with a save that begins before the first, a save with nothing beside it, and a load of what it wrote. `keel-module`
copies before save_async returns, as DCP's default does; `keel-module-overlapped` copies beside the steps and is asked before the update.
Between the turns the limit: a plain write of the same bytes and fsync, and a read of them into memory, through the page cache both.
Keel's loads verify every byte, DCP's do not.
"""

import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import driver
import paired
import ranks

ROOT = driver.ROOT
SYSTEMS = ["keel-module", "keel-module-overlapped"]
PEERS = ["dcp-thread-kept", "dcp-thread", "dcp-process-kept"]
BLOCK = 4 << 20


def parse_arguments():
    parser = driver.parser("pymodule", __doc__, rounds=3, threads=1)
    parser.add_argument("--dir", type=driver.folder, default=ROOT / "build" / "bench" / "pymodule", help="on the disk to measure")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="may be given again; default: all")
    parser.add_argument("--peer", action="append", choices=PEERS, help="may be given again; default: all")
    parser.add_argument("--megabytes", type=driver.count(), default=500, help="of state, over all ranks")
    parser.add_argument("--ranks", type=driver.count(high=1024), default=1)
    parser.add_argument("--steps", type=driver.count(), default=10)
    parser.add_argument("--products", type=driver.count(), default=8, help="matrix products of 1024 a step")
    parser.add_argument("--quick", action="store_true", help="a tenth of the state, one round: to see it work")
    args = driver.parse(parser)
    args.system, args.peer = args.system or SYSTEMS, args.peer or PEERS
    if args.quick:
        args.rounds, args.steps, args.megabytes = 1, 3, max(1, args.megabytes // 10)
    return args


def start(args, name):
    folder = args.dir / name
    folder.mkdir()
    script = str(ROOT / "bench" / "peers" / "checkpoint_worker.py")
    command = [sys.executable, script, "--system", name, "--checkpoints", str(folder), "--megabytes", str(args.megabytes),
               "--products", str(args.products), "--threads", str(args.threads)]  # fmt: skip
    return ranks.Ranks(name, command, args.ranks, args.dir / f"{name}.txt", args.threads)


def turn(worker, args):
    alone = worker.ask(f"steps {args.steps}")
    beside = worker.ask(f"steps_with_save {args.steps}")
    step = statistics.median(seconds for answer in alone for seconds in answer["step_seconds"])
    lost = max(answer["seconds"] - answer["steps"] * step for answer in beside)
    sample = {
        "step_s": step,
        "lost_s": max(lost, 0.0),
        "call_s": max(answer["blocked_s"] for answer in beside),
        "stood_s": max(answer["blocked_s"] + answer["fence_s"] for answer in beside),
        "durable_beside_s": max(answer["durable_s"] for answer in beside),
        "save_s": worker.slowest("save"),
        "load_s": worker.slowest("load rows"),
    }
    worker.ask("forget")
    return sample


def limit(args, size):
    """Seconds to write and fsync so many bytes, and to read them: one file, one thread."""
    path, block = args.dir / "limit", os.urandom(BLOCK)
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for at in range(0, size, BLOCK):
            file.write(block[: min(BLOCK, size - at)])
        os.fsync(file.fileno())
    written = time.perf_counter()
    into = bytearray(size)
    begin_read = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        view, at = memoryview(into), 0
        while at < size:
            at += file.readinto(view[at : at + BLOCK])
    read = time.perf_counter()
    path.unlink()
    return {"write_s": written - begin, "read_s": read - begin_read}


def show(x):
    return f"lost {x['lost_s']:.2f} stood {x['stood_s']:.2f} save {x['save_s']:.2f} load {x['load_s']:.2f}"


def compare(args, system, peer):
    names = {"A": system, "B": peer}
    workers = {side: start(args, name) for side, name in names.items()}
    try:
        for side, worker in workers.items():
            if not all(answer["one_step"] for answer in worker.ask("verify")):
                raise SystemExit(f"{names[side]}: a save beside training held more than one step")
            worker.ask("forget")
            worker.ask(f"steps {args.steps}")
        size = sum(ready["bytes"] for ready in workers["A"].ready)
        rounds, limits = driver.turns(args.rounds, args.seed, lambda side: turn(workers[side], args), show, lambda: limit(args, size))
        for worker in workers.values():
            worker.quit()
    finally:
        for worker in workers.values():
            worker.kill()
        for name in names.values():
            shutil.rmtree(args.dir / name, ignore_errors=True)
    keys = rounds[0][0][1].keys()
    return {
        "system": system, "peer": peer, "bytes": size,
        "versions": workers["B"].ready[0]["versions"],
        "seconds": {side: {key: statistics.median(x[key] for x in driver.of_side(rounds, side)) for key in keys} for side in "AB"},
        "ratios": {key: paired.ratio_of_medians(paired.pairs(rounds, lambda x, key=key: x[key])) for key in keys},
        "limit": {key: statistics.median(x[key] for x in limits) for key in limits[0]},
        "rounds": driver.with_sides(rounds), "limits": limits,
    }  # fmt: skip


def bars(results):
    made = []
    for one in results:
        what, ratios, seconds = f"{one['system']}, over {one['peer']}'s", one["ratios"], one["seconds"]["A"]
        made.append(driver.bar(f"time that training lost to a save: {what}", "<= 1", driver.text(ratios["lost_s"]), ratios["lost_s"]["median"] <= 1))
        made.append(driver.bar(f"training stood still: {what}", "<= 1", driver.text(ratios["stood_s"]), ratios["stood_s"]["median"] <= 1))
        made.append(driver.bar(f"a save alone, until it is on the disk: {what}", "<= 1", driver.text(ratios["save_s"]), ratios["save_s"]["median"] <= 1))
        made.append(driver.bar(f"a load, verified: {what}", "<= 1", driver.text(ratios["load_s"]), ratios["load_s"]["median"] <= 1))
        share = one["limit"]["write_s"] / seconds["save_s"]
        made.append(driver.bar(f"a save alone, of the plain write's rate: {one['system']} beside {one['peer']}", ">= 0.8", f"{share:.2f}", share >= 0.8))
    return made


def page(report):
    lines = driver.page_head("The Python module beside DCP", report)
    results = report["results"]
    size = results[0]["bytes"]
    lines[-1] += (f" torch {results[0]['versions']['torch']}; {report['settings']['ranks']} rank{'s' if report['settings']['ranks'] != '1' else ''}, {size / 1e6:.0f} MB of state,"
                  f" {report['settings']['rounds']} rounds of four turns; medians, ratios with their 95 % interval.")  # fmt: skip
    if report["machine"]["load"] > report["machine"]["cores"]:
        lines[-1] += " Other programs kept the machine busy: ratios of neighbouring turns say something, seconds do not."
    lines += ["", *driver.bar_table(report["bars"]), "",
              "| system | peer | step ms | lost s | peer's | stood s | peer's | call ms | peer's | on the disk, beside steps, s | peer's | save alone s | peer's | plain write | load s | peer's | plain read |",  # noqa: E501
              "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for one in results:
        a, b, plain = one["seconds"]["A"], one["seconds"]["B"], one["limit"]
        lines.append(
            f"| {one['system']} | {one['peer']} | {a['step_s'] * 1e3:.0f} | {a['lost_s']:.2f} | {b['lost_s']:.2f} | {a['stood_s']:.3f} | {b['stood_s']:.3f} "
            f"| {a['call_s'] * 1e3:.1f} | {b['call_s'] * 1e3:.1f} | {a['durable_beside_s']:.2f} | {b['durable_beside_s']:.2f} "
            f"| {a['save_s']:.2f} | {b['save_s']:.2f} | {plain['write_s']:.2f} | {a['load_s']:.2f} | {b['load_s']:.2f} | {plain['read_s']:.2f} |"
        )  # fmt: skip
    lines += [
        "",
        "lost: the time of steps with a save in them, less as many undisturbed ones. stood: the call, and waiting for the copy before the update. "
        "Keel syncs files and folders, takes a digest of every chunk, opens the checkpoint again, and verifies all of it in a load; DCP syncs its "
        "files and reads them. The page of the whole subsystem, with more peers: [checkpoint.md](checkpoint.md).",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def main():
    args = parse_arguments()
    os.environ["PYTHONPATH"] = f"{args.keel.parent / 'python'}:{os.environ.get('PYTHONPATH', '')}"
    args.dir.mkdir(parents=True, exist_ok=True)
    args.dir = pathlib.Path(tempfile.mkdtemp(prefix="keel-bench-", dir=args.dir))
    try:
        with driver.measuring("pymodule", args) as report:
            report["results"] = []
            for system in args.system:
                for peer in args.peer:
                    print(f"{system}, {peer}", file=sys.stderr, flush=True)
                    report["results"].append(compare(args, system, peer))
    finally:
        shutil.rmtree(args.dir, ignore_errors=True)
    report["bars"] = bars(report["results"])
    text = page(report)
    driver.write(report, args, text)
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
