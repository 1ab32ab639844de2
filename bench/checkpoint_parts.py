"""The measurements of the checkpoint benchmark; bench/run_checkpoint.py says what each one is."""

import collections
import json
import statistics
import subprocess
import sys

import driver
import memory_sampler
import paired
from checkpoint_settings import SETTINGS, Workers

COMMITS = 1000
WAYS = ["direct", "io_uring", "buffered"]  # to write
SOURCES = ["memory", "buffer"]
LAYOUTS = ["rows", "columns", "uneven"]
LOADS = 5  # into each of them, in a turn
COLD_LOADS = 2  # the same from the disk
CAP = 64 << 20  # of a rank
INDEX_BOXES = 1_000_000


def parts(args):
    """(path in the report, function) of what is asked for, in the order of running."""
    workers = Workers(args)
    if {"lost", "durable", "load"} & set(args.only):
        for setting in args.setting:
            for peer in args.peer:
                yield (setting, peer), lambda setting=setting, peer=peer: pair(workers, args, setting, peer)
    for name, part in [("memory", memory), ("small", small), ("commit", commit), ("index", index)]:
        if name in args.only:
            yield (name,), lambda part=part: part(workers, args)


def note(text):
    print("  " + text, file=sys.stderr, flush=True)


# --- lost, durable, load ----------------------------------------------------------------------------


def pair(workers, args, name, peer):
    setting = SETTINGS[name]
    sides = {
        side: workers.start(system, setting["ranks"], workers.megabytes(setting["megabytes"]))
        for side, system in zip("AB", ["keel", peer], strict=True)
    }
    opened = {side: worker.ask("open") for side, worker in sides.items()}
    one_step = {
        side: all(answer["one_step"] for answer in worker.ask("verify")) for side, worker in sides.items()
    }
    if not all(one_step.values()):
        raise SystemExit(f"a save beside training held more than one step: keel (A), {peer} (B): {one_step}")
    for worker in sides.values():
        worker.ask("forget")
        worker.ask(f"steps {max(2, args.steps // 4)}")
    rounds = []
    for order in paired.order(args.rounds, args.seed):
        rounds.append([(side, turn(sides[side], sides["A"], args)) for side in order])
        note(f"{order}: " + "; ".join(f"{side} {brief(x)}" for side, x in rounds[-1]))
    for worker in sides.values():
        worker.quit()
    return {
        "bytes": sum(ready["bytes"] for ready in sides["A"].ready), "opened": opened, "one_step": one_step,
        "rounds": rounds,
    } | compare(rounds, args)  # fmt: skip


def turn(worker, keel, args):
    """One side's measurements, and the limits right after them."""
    sample = {}
    if "lost" in args.only:
        half = max(1, args.steps // 2)
        base = [per_step(worker.ask(f"steps {half}"))]
        saves = worker.ask(f"steps_with_save {args.steps}")
        base.append(per_step(worker.ask(f"steps {half}")))
        steps, seconds = saves[0]["steps"], max(answer["seconds"] for answer in saves)
        flight = saves[0]["steps_in_flight"]
        sample["lost"] = {
            "lost_s": seconds - steps * statistics.mean(base),
            "null_s": args.steps * (base[1] - base[0]),  # the same of steps without a save: noise
            "share": seconds / (steps * statistics.mean(base)) - 1,
            "blocked_s": max(answer["blocked_s"] for answer in saves),
            "fence_s": max(answer["fence_s"] for answer in saves),
            "durable_s": max(answer["durable_s"] for answer in saves),
            "rate_in_flight": statistics.mean(base) / statistics.mean(saves[0]["step_seconds"][: max(1, flight)]),
            "step_s": base,
            "ranks": saves,
        }
        if worker is keel:
            copies = worker.ask("steps_with_copy 3")
            sample["lost"]["rate_of_copy"] = statistics.mean(base) / statistics.mean(copies[0]["step_seconds"])
        worker.ask("forget")
    if "durable" in args.only or "load" in args.only:
        saves = worker.ask("save")
        sample["durable"] = {
            "bytes": sum(answer["bytes"] for answer in saves),
            "seconds": max(answer["seconds"] for answer in saves),
            "ranks": saves,
        }
    if "load" in args.only:
        sample["load"] = loads(worker, worker is keel)
    worker.ask("forget")
    sample["limits"] = write_limits(keel)
    return sample


def write_limits(keel):
    """Seconds by each way to write, from as much memory as there is to write and from one small buffer."""
    return {f"{how} {through}": keel.slowest(f"write_limit {how} {through}") for how in WAYS for through in SOURCES}


def loads(worker, ours):
    """Medians of several loads into each layout, and of the limits, in turns: one alone says little."""
    found = {}
    worker.ask("load rows")  # fills the page cache
    asked = {how: f"load {how}" for how in ["rows", "columns"]}
    if ours:
        asked["uneven"] = "load uneven"
        asked |= {f"read_and_hash_{into}_s": f"read_limit {into}" for into in ["memory", "buffer"]}
    seconds, answers = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(LOADS):
        for what, command in asked.items():
            if None in seconds[what]:
                continue  # this system cannot
            answers[what].append(worker.ask(command))
            known = [answer["seconds"] for answer in answers[what][-1]]
            seconds[what].append(None if None in known else max(known))
    for _ in range(COLD_LOADS if ours else 0):
        for how in LAYOUTS:
            worker.ask("drop_pages")
            seconds[f"cold_{how}"].append(worker.slowest(f"load {how}"))
    for what, samples in seconds.items():
        found[what] = None if None in samples else statistics.median(samples)
        found[f"{what}_samples"] = answers.get(what, samples)
    return found


def per_step(answers):
    return max(answer["seconds"] for answer in answers) / answers[0]["steps"]


def brief(sample):
    words = []
    if "lost" in sample:
        words.append(f"lost {sample['lost']['lost_s']:.3f} s")
    if "durable" in sample:
        words.append(f"durable {sample['durable']['seconds']:.2f} s")
    if "load" in sample:
        words.append(f"load {sample['load']['rows']:.2f} s")
    return ", ".join(words)


def limit_s(sample, through="memory"):
    """The fastest of the ways to write the same bytes."""
    known = [seconds for way, seconds in sample["limits"].items() if way.endswith(through)]
    return min(seconds for seconds in known if seconds is not None)


def of_side(rounds, side):
    return [sample for samples in rounds for name, sample in samples if name == side]


def compare(rounds, args):
    ours = of_side(rounds, "A")
    result = {}
    if "lost" in args.only:
        result["lost"] = {
            "ratio": paired.ratio_of_medians(paired.pairs(rounds, lambda x: x["lost"]["lost_s"])),
            "null_s": paired.summarize([x["lost"]["null_s"] for samples in rounds for _, x in samples]),
        }
        for side, name in [("A", "keel"), ("B", "peer")]:
            samples = [x["lost"] for x in of_side(rounds, side)]
            result["lost"][name] = {
                key: paired.summarize([x[key] for x in samples])
                for key in ["lost_s", "share", "blocked_s", "fence_s", "durable_s", "rate_in_flight", "rate_of_copy"]
                if key in samples[0]
            } | {"step_s": statistics.median(s for x in samples for s in x["step_s"])}
    if "durable" in args.only:
        result["durable"] = paired.compare(rounds, lambda x: 1 / x["durable"]["seconds"])
        for through, key in [("memory", "keel_of_limit"), ("buffer", "keel_of_limit_of_one_buffer")]:
            result["durable"][key] = paired.summarize([limit_s(x, through) / x["durable"]["seconds"] for x in ours])
        for side, name in [("A", "keel"), ("B", "peer")]:
            result["durable"][name + "_gb_per_s"] = statistics.median(
                x["durable"]["bytes"] / 1e9 / x["durable"]["seconds"] for x in of_side(rounds, side)
            )
        result["durable"]["limit_gb_per_s"] = statistics.median(x["durable"]["bytes"] / 1e9 / limit_s(x) for x in ours)
    if "load" in args.only:
        theirs = of_side(rounds, "B")
        result["load"] = paired.compare(rounds, lambda x: 1 / x["load"]["rows"])
        for into in ["memory", "buffer"]:
            result["load"][f"keel_of_read_and_hash_{into}"] = paired.summarize(
                [x["load"][f"read_and_hash_{into}_s"] / x["load"]["rows"] for x in ours]
            )
        for name, samples in [("keel", ours), ("peer", theirs)]:
            result["load"][name + "_gb_per_s"] = statistics.median(
                x["durable"]["bytes"] / 1e9 / x["load"]["rows"] for x in samples
            )
            for how in ["columns", "uneven", "cold_columns", "cold_uneven"]:
                if samples[0]["load"].get(how):
                    same = "cold_rows" if how.startswith("cold") else "rows"
                    result["load"][f"{name}_{how}_to_rows"] = paired.summarize(
                        [x["load"][how] / x["load"][same] for x in samples]
                    )
    return result


# --- memory -----------------------------------------------------------------------------------------


def memory(workers, args):
    setting = SETTINGS["two-ranks"]
    megabytes = workers.megabytes(setting["megabytes"])
    variants = {
        "keel": ("keel", {}),
        "keel, cap of 64 MiB": ("keel", {"host_memory_cap": CAP}),
        "keel, optimizer offloaded": ("keel", {"optimizer_stable": True}),
    } | {peer: (peer, {}) for peer in args.peer}
    found = {}
    for name, (system, options) in variants.items():
        worker = workers.start(system, setting["ranks"], megabytes, **options)
        worker.ask("steps 2")
        before = memory_sampler.own_bytes(worker.pids)
        worker.ask("open")
        between, peaks = [], []
        for _ in range(3):
            worker.ask("steps 2")
            between.append(memory_sampler.own_bytes(worker.pids) - before)
            with memory_sampler.Sampler(worker.pids) as sampler:
                worker.ask("steps_with_save 3")
            peaks.append(sampler.peak - before)
            worker.ask("forget")
        worker.ask("steps 2")
        between.append(memory_sampler.own_bytes(worker.pids) - before)
        found[name] = {
            "state_bytes": sum(ready["bytes"] for ready in worker.ready),
            "before_bytes": before, "peak_bytes": peaks, "between_bytes": between,
            "samples_of_last": sampler.samples,
        }  # fmt: skip
        worker.quit()
        note(f"{name}: at most {max(peaks) / 2**20:.0f} MiB, between saves {between[-1] / 2**20:.0f} MiB")
    return found


# --- small tensors, commits, index ------------------------------------------------------------------


def small(workers, args):
    sides = {side: workers.start(name, 1, 0, state="small") for side, name in [("A", "keel"), ("B", "torch-save")]}
    for worker in sides.values():
        worker.ask("open")
        worker.ask("save")
        worker.ask("forget")
    rounds = []
    for order in paired.order(args.rounds, args.seed):
        rounds.append([])
        for side in order:
            answer = sides[side].ask("save")[0]
            sides[side].ask("forget")
            rounds[-1].append((side, answer | {"limits": write_limits(sides["A"])}))
        note(", ".join(f"{side} {x['seconds']:.2f} s" for side, x in rounds[-1]))
    for worker in sides.values():
        worker.quit()
    ours = of_side(rounds, "A")
    return paired.compare(rounds, lambda x: 1 / x["seconds"]) | {
        "keel_of_limit": paired.summarize([limit_s(x) / x["seconds"] for x in ours]),
        "rounds": rounds,
    }


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def commit(workers, args):
    count = COMMITS // 20 if args.quick else COMMITS
    found = {}
    for name, options in [("keep 3", {"keep": 3}), ("keep all", {})]:
        worker = workers.start("keel", 4, 1, **options)
        worker.ask("open")
        worker.ask("commits 10")
        known, done, floor, spent = [], [], [], collections.defaultdict(list)
        while len(done) < count:
            answers = worker.ask("commits 25")
            # The first rank returns when tracker and retention are done too, the others at the commit.
            known += [max(x) for x in zip(*(answer["seconds"] for answer in answers[1:]), strict=True)]
            done += [max(x) for x in zip(*(answer["seconds"] for answer in answers), strict=True)]
            for part, values in answers[0]["parts"].items():  # of rank 0
                spent[part] += values
            floor += worker.ask("commit_floor 5")[0]["seconds"]
            if not options:
                worker.ask("forget")
        worker.quit()
        found[name] = {
            "bytes": sum(ready["bytes"] for ready in worker.ready),
            "known_p50_s": percentile(known, 0.5), "known_p99_s": percentile(known, 0.99),
            "done_p50_s": percentile(done, 0.5), "floor_p50_s": percentile(floor, 0.5),
            "parts_p50": {part: percentile(values, 0.5) for part, values in spent.items()},
            "known_s": known, "done_s": done, "parts": spent, "floor_s": floor,
        }  # fmt: skip
        note(f"{name}: p50 {found[name]['known_p50_s'] * 1e3:.1f} ms, p99 {found[name]['known_p99_s'] * 1e3:.1f} ms")
    return found


def index(workers, args):
    boxes = INDEX_BOXES // 20 if args.quick else INDEX_BOXES
    folder = args.dir / "many-boxes"

    def run(what):
        command = driver.keel_worker(args, "index", what, "--boxes", str(boxes), "--checkpoints", str(folder))
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    run("write")
    found = {"boxes": boxes}
    for what in ["open-all", "open-part", "save-plan"]:
        found[what] = [run(what) for _ in range(args.rounds)]
        note(f"{what}: " + ", ".join(f"{key} {value:.2f}" for key, value in found[what][-1].items() if key.endswith("_s")))
    return found
