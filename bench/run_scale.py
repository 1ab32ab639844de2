"""What a save and a load cost rank 0 of a job of thousands of ranks.

    keel bench scale [--ranks 128 --ranks 1024 --ranks 16384] [--json scale.json]

Rank 0 is a process of its own that runs the code of a save as a training job does (checkpoint/save/saver.h), over the
job's own store. All other ranks are in a second process, which serves the store: each runs the real planner and
the real protocol, and takes its turn. What they have is made up: the tables of a Llama cut by TP, PP and ZeRO-1.
Files get their sizes and no content, digests are of nothing. Then 8 ranks load what was saved, until they read.

    own          seconds of rank 0 without its waits for peers and its own data; the peers and the store have the
                 same cores, so that on few of them these are far more than the seconds of its processor, "its CPU"
    through 0    what rank 0 sends to the store and gets from there
    uneven       what the rank with most to write writes, over the mean
"""

import json
import subprocess
import sys
import tempfile

import driver
import machine

RANKS = (128, 1024, 4096, 16384)  # whose layouts the worker knows
GOALS = {"megabytes": 200, "seconds": 8, "gigabytes": 3, "uneven": 1.1}


def measure(args, ranks):
    with tempfile.TemporaryDirectory(prefix="keel-scale-", dir=args.directory) as directory:
        command = driver.keel_worker(args, "scale", "--of", str(ranks), "--checkpoints", directory)
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def rows(results):
    yield ("ranks", "save", "messages of rank 0", "through 0 MB", "own s", "its CPU s", "plan s", "commit s", "peak MiB", "uneven",
           "stats of a peer's load")  # fmt: skip
    for one in results:
        for save in ("first", "again"):
            part = one[save]
            yield (
                f"{one['ranks']} ({one['layout']})", save, f"{part['messages']:,}",
                f"{(part['sent'] + part['received']) / 1e6:.1f}", f"{part['own_s']:.2f}", f"{part['cpu_s']:.2f}", f"{part['planned_s']:.2f}",
                f"{part['commit_s']:.2f}", f"{one['peak_bytes'] / 2**20:.0f}", f"{part['largest_of_mean']:.2f}",
                f"{one['load']['stats_of_a_peer']:,}",
            )  # fmt: skip


def table(results):
    lines = ["| " + " | ".join(row) + " |" for row in rows(results)]
    lines.insert(1, "|" + "---|" * lines[0].count(" | ") + "---|")
    return "\n".join(lines)


def met(one):
    """Which of the goals this size keeps."""
    first = one["first"]
    return {
        "megabytes": (first["sent"] + first["received"]) / 1e6 <= GOALS["megabytes"],
        "seconds": first["own_s"] <= GOALS["seconds"],
        "gigabytes": one["peak_bytes"] / 2**30 <= GOALS["gigabytes"],
        "uneven": first["largest_of_mean"] <= GOALS["uneven"],
    }


def main():
    parser = driver.Parser("scale", __doc__)
    parser.add_argument("--ranks", type=int, action="append", choices=RANKS, help="may be given again (default: 128, 1024, 16384)")
    parser.add_argument("--keel", type=driver.keel_of_build, default=str(driver.KEEL), help="beside it: keel_bench")
    parser.add_argument("--directory", type=driver.folder, help="for files that have sizes and no content")
    parser.add_argument("--json", type=driver.target, help="all figures")
    args = driver.parse(parser)
    results = []
    for ranks in args.ranks or [128, 1024, 16384]:
        results.append(measure(args, ranks))
        missed = [name for name, good in met(results[-1]).items() if not good]
        print(f"{ranks} ranks: {'all goals met' if not missed else 'missed: ' + ', '.join(missed)}", file=sys.stderr, flush=True)
    if args.json:
        record = {"machine": machine.facts(), "goals": GOALS, "results": results}
        driver.put(json.dumps(record, indent=1) + "\n", args.json)
    driver.put(table(results) + "\n")


if __name__ == "__main__":
    main()
