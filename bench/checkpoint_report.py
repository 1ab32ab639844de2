"""The checkpoint benchmark's page: the bars that Keel sets itself, and the figures behind them."""

import statistics

from checkpoint_settings import SETTINGS

MIB = 2**20
# Best of those that do not stand still while they write.
ASYNCHRONOUS = ["dcp-thread-kept", "dcp-thread-overlapped", "dcp-thread", "dcp-process-kept", "dcp-process"]


def text(x, digits=2, unit=""):
    return f"{x['median']:.{digits}f}{unit} ({x['low']:.{digits}f} to {x['high']:.{digits}f})"


def bar(what, wanted, found, holds, where, void=False):
    """`void`: the machine was too unsteady for this figure to say anything."""
    return {"what": what, "wanted": wanted, "found": found, "holds": bool(holds), "void": bool(void), "where": where}


def unsteady(x):
    """The control of a paired ratio does not hold 1."""
    return not x["control"]["holds_one"]


def drowned(x):
    """What steps without a save "lose" is as much as what the peer loses."""
    width = max(abs(x["null_s"]["low"]), abs(x["null_s"]["high"]))
    return width > x["peer"]["lost_s"]["median"]


def bars(report):
    """Every bar for which something was measured."""
    found, parts = [], report["parts"]
    for name in SETTINGS:
        if name in parts:
            found += setting_bars(name, parts[name])
    if "memory" in parts:
        found += memory_bars(parts["memory"])
    if "small" in parts:
        ratio = parts["small"]["ratio"]
        found.append(bar("20,000 small tensors, rate over torch.save's", ">= 5", text(ratio), ratio["low"] >= 5, "small", unsteady(parts["small"])))
    for name, x in parts.get("commit", {}).items():
        found.append(
            bar(f"commit of 1 MB by 4 ranks, p50 ({name})", "<= 5 ms", f"{1e3 * x['known_p50_s']:.1f} ms", x["known_p50_s"] <= 0.005, "commit")
        )
    if "index" in parts:
        for what, words in [("open-all", "all of it"), ("open-part", "a 64th")]:
            runs = parts["index"][what]
            seconds = statistics.median(run["opened_s"] + run["planned_s"] for run in runs)
            peak = max(run["peak_bytes"] for run in runs) / MIB
            holds = seconds <= 1 and peak <= 256
            found.append(
                bar(f"{parts['index']['boxes']:,} boxes, open and plan for {words}", "<= 1 s, <= 256 MiB",
                    f"{seconds:.2f} s, {peak:.0f} MiB", holds, "index")
            )  # fmt: skip
    return found


def setting_bars(name, pairs):
    found = []
    lost = {peer: pair["lost"] for peer, pair in pairs.items() if "lost" in pair}
    rivals = {peer: x for peer, x in lost.items() if peer in ASYNCHRONOUS}
    if rivals:
        best = min(rivals, key=lambda peer: rivals[peer]["peer"]["lost_s"]["median"])
        ratio = rivals[best]["ratio"]
        most = 0.5 if SETTINGS[name]["ranks"] == 1 else 0.2
        found.append(
            bar(f"time lost a save, over the best peer's ({best})", f"<= {most}", text(ratio), ratio["high"] <= most, name, drowned(rivals[best]))
        )
    if lost:
        shares = [x["keel"]["share"]["median"] for x in lost.values()]
        share = 100 * statistics.median(shares)
        found.append(bar("of the training time, a save every 20 steps", "<= 3 %", f"{share:.1f} %", share <= 3, name, all(drowned(x) for x in lost.values())))
        blocked = 1e3 * max(x["keel"]["blocked_s"]["median"] for x in lost.values())
        found.append(bar("call blocks", "<= 10 ms", f"{blocked:.1f} ms", blocked <= 10, name))
        rate, copy = (
            statistics.median(x["keel"][key]["median"] for x in lost.values()) for key in ["rate_in_flight", "rate_of_copy"]
        )
        found.append(
            bar("step rate while a save goes on", ">= 0.95", f"{rate:.2f} (beside a copy of the state alone {copy:.2f})", rate >= 0.95, name)
        )
    durable = {peer: pair["durable"] for peer, pair in pairs.items() if "durable" in pair}
    if "dcp-save" in durable:
        ratio = durable["dcp-save"]["ratio"]
        found.append(bar("durable save, rate over dcp.save's", ">= 2", text(ratio), ratio["low"] >= 2, name, unsteady(durable["dcp-save"])))
    if durable:
        limit = pooled([x["keel_of_limit"] for x in durable.values()])
        found.append(bar("durable save, of the disk's limit", ">= 0.9", text(limit), limit["median"] >= 0.9, name))
    load = {peer: pair["load"] for peer, pair in pairs.items() if "load" in pair}
    if "dcp-save" in load:
        ratio = load["dcp-save"]["ratio"]
        found.append(bar("verified load, rate over dcp.load's", ">= 2.5", text(ratio), ratio["low"] >= 2.5, name, unsteady(load["dcp-save"])))
    if load:
        limit = pooled([x["keel_of_read_and_hash_memory"] for x in load.values()])
        found.append(bar("verified load, of reading and hashing into memory", ">= 0.6", text(limit), limit["median"] >= 0.6, name))
        for how in ["columns", "uneven"]:
            key = f"keel_{how}_to_rows"
            if all(key in x for x in load.values()):
                other = pooled([x[key] for x in load.values()])
                cold = pooled([x[f"keel_cold_{how}_to_rows"] for x in load.values()])
                words = f"{text(other)}; from the disk {text(cold)}"
                found.append(
                    bar(f"load into another layout ({how}), time over the same layout's", "<= 1.15", words, other["median"] <= 1.15, name)
                )
    return found


def pooled(summaries):
    return {key: statistics.median(x[key] for x in summaries) for key in ["median", "low", "high"]}


def memory_bars(memory):
    found = []
    ranks = SETTINGS["two-ranks"]["ranks"]
    for name, x in memory.items():
        if not name.startswith("keel"):
            continue
        state = x["state_bytes"]
        if "cap" in name:
            most, words = 1.1 * 64 * MIB * ranks, "<= 64 MiB a rank + 10 %"
        elif "offloaded" in name:
            most, words = 2 / 14 * state + 64 * MIB * ranks, "<= weights + 64 MiB a rank"
        else:
            most, words = state + 64 * MIB * ranks, "<= the shards + 64 MiB a rank"
        for when, value in [("at most", max(x["peak_bytes"])), ("between saves", max(x["between_bytes"]))]:
            found.append(bar(f"host memory {when}: {name}", words, f"{value / MIB:.0f} of {most / MIB:.0f} MiB", value <= most, "memory"))
    return found


def markdown(report):
    facts, parts = report["machine"], report["parts"]
    lines = [
        "# Saving and loading",
        "",
        f"`{report['command']}`",
        "",
        f"{facts['cpu']} ({', '.join(facts['features'])}), {facts['cores']} cores, {facts['memory_gib']} GiB,"
        f" Linux {facts['kernel']}; load {facts['load']:.1f} at the start, {report['load_after']:.1f} at the end"
        f" (its own is {facts['cores']}), {report['steal_percent']:.1f} % of the time stolen."
        f" Keel {report['commit']}, {report['date']}.",
        "",
        "| what | setting | wanted | found | |",
        "|---|---|---|---|---|",
    ]
    for x in report["bars"]:
        verdict = "void" if x["void"] else "yes" if x["holds"] else "**no**"
        lines.append(f"| {x['what']} | {x['where']} | {x['wanted']} | {x['found']} | {verdict} |")
    for name in SETTINGS:
        if name in parts:
            lines += setting_tables(name, parts[name])
    if "memory" in parts:
        lines += memory_table(parts["memory"])
    if "small" in parts:
        x = parts["small"]
        lines += [
            "", "## 20,000 tensors of 4 to 64 KiB", "",
            f"{text(x['ratio'])} times torch.save and fsync ({x['ratio']['pairs']} pairs, control {text(x['control'])});"
            f" {text(x['keel_of_limit'])} of the disk's limit.",
        ]  # fmt: skip
    if "commit" in parts:
        lines += [
            "", "## Commit of 1 MB by 4 ranks", "",
            "| | p50, ms | p99, ms | until all of it is done, p50 | agreeing on the plan and the order | writing | publishing | the disk alone |",
            "|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for name, x in parts["commit"].items():
            spent = x["parts_p50"]
            values = [
                x["known_p50_s"], x["known_p99_s"], x["done_p50_s"], spent["planned_s"], spent["written_s"],
                spent["commit_s"], x["floor_p50_s"],
            ]  # fmt: skip
            lines.append(f"| {name} | " + " | ".join(f"{1e3 * value:.2f}" for value in values) + " |")
        lines += [
            "", "From the call until every rank but the first knows that the step is durable; the first goes on with the tracker"
            " and retention. Parts, and the disk's own time for one file of as many bytes: medians on the first rank.",
        ]  # fmt: skip
    if "index" in parts:
        lines += index_table(parts["index"])
    lines += [
        "",
        "Ratios are of neighbours in the order A B B A or B A A B; in brackets the bootstrap's 95 % interval. The control is the"
        " ratio of neighbouring turns of one side and must hold 1. The disk's limit is the fastest of O_DIRECT writes,"
        " of these by io_uring and of buffered writes with fsync, of as many bytes by as many processes, measured after each turn:"
        " from as much memory as there are bytes, as a state is, and, in a column of its own, from one buffer of 4 MiB that never leaves"
        " the caches. The rate in flight is that of the step or steps before whose end a save goes on; beside a copy: a step's during"
        " which a thread of the same priority copies the state to warm memory, which its update waits for, and nothing else. Time lost: that of the"
        " steps with a save in them, less as many times a step's before and after; the time that steps without a save \"lose\""
        " by the same reckoning is the noise. A load is timed from memory (page cache), where it says so from the disk,"
        " as the median of several in a turn. Reading and"
        " hashing is the plainest loop over the same files by as many threads: into as much memory as they take, which a load's"
        " bytes have to reach too, and through one buffer that never leaves the caches, which no load can equal. Into another layout:"
        " the time over that into the same layout. Every sample is in the JSON file beside this page.",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def setting_tables(name, pairs):
    setting = SETTINGS[name]
    size = next(iter(pairs.values()))["bytes"] / 1e9
    lines = ["", f"## {setting['ranks']} rank{'s' if setting['ranks'] > 1 else ''}, {size:.2f} GB"]
    if any("lost" in pair for pair in pairs.values()):
        lines += [
            "", "| peer | lost, keel over peer | lost s, keel | lost s, peer | noise s | blocked ms, keel | peer | durable s, keel | peer | rate in flight, keel | peer | beside a copy |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for peer, pair in pairs.items():
            x = pair["lost"]
            ours, theirs = x["keel"], x["peer"]
            lines.append(
                f"| {peer} | **{text(x['ratio'])}** | {text(ours['lost_s'])} | {text(theirs['lost_s'])} |"
                f" {text(x['null_s'])} | {1e3 * ours['blocked_s']['median']:.1f} |"
                f" {1e3 * theirs['blocked_s']['median']:.0f} | {ours['durable_s']['median']:.2f} |"
                f" {theirs['durable_s']['median']:.2f} | {ours['rate_in_flight']['median']:.2f} |"
                f" {theirs['rate_in_flight']['median']:.2f} | {text(ours['rate_of_copy'])} |"
            )
    if any("durable" in pair for pair in pairs.values()):
        lines += [
            "", "| peer | durable save, keel over peer | control | keel GB/s | peer GB/s | limit GB/s | keel of the limit | from one buffer |",
            "|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for peer, pair in pairs.items():
            x = pair["durable"]
            lines.append(
                f"| {peer} | **{text(x['ratio'])}** | {control(x)} | {x['keel_gb_per_s']:.2f} |"
                f" {x['peer_gb_per_s']:.2f} | {x['limit_gb_per_s']:.2f} | {text(x['keel_of_limit'])} | {text(x['keel_of_limit_of_one_buffer'])} |"
            )
    if any("load" in pair for pair in pairs.values()):
        lines += [
            "", "| peer | load, keel over peer | control | keel GB/s, verified | peer GB/s | keel of read and hash | through one buffer | into columns, keel | peer | uneven, keel | columns from the disk, keel | uneven |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for peer, pair in pairs.items():
            x = pair["load"]
            others = ["keel_columns", "peer_columns", "keel_uneven", "keel_cold_columns", "keel_cold_uneven"]
            other = [text(x[f"{one}_to_rows"]) if f"{one}_to_rows" in x else "-" for one in others]
            lines.append(
                f"| {peer} | **{text(x['ratio'])}** | {control(x)} | {x['keel_gb_per_s']:.2f} |"
                f" {x['peer_gb_per_s']:.2f} | {text(x['keel_of_read_and_hash_memory'])} | {text(x['keel_of_read_and_hash_buffer'])} | {' | '.join(other)} |"
            )
    return lines


def control(x):
    return text(x["control"]) + ("" if x["control"]["holds_one"] else " **(void)**")


def memory_table(memory):
    lines = [
        "", "## Host memory beyond the state, all ranks and their children", "",
        "| | state, MiB | at most | between saves | at most, per 1,024 MiB saved |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, x in memory.items():
        state, peak, between = x["state_bytes"] / MIB, max(x["peak_bytes"]) / MIB, max(x["between_bytes"]) / MIB
        lines.append(f"| {name} | {state:.0f} | {peak:.0f} | {between:.0f} | {1024 * peak / state:.0f} |")
    return lines


def index_table(index):
    lines = [
        "", f"## {index['boxes']:,} boxes", "", "| | open s | plan s | read s | processor s | peak MiB |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for what, words in [("open-all", "load all of it"), ("open-part", "load a 64th")]:
        runs = index[what]
        values = [statistics.median(run[key] for run in runs) for key in ["opened_s", "planned_s", "read_s", "cpu_s"]]
        peak = max(run["peak_bytes"] for run in runs) / MIB
        lines.append(f"| {words} | " + " | ".join(f"{value:.2f}" for value in values) + f" | {peak:.0f} |")
    runs = index["save-plan"]
    first, again = (statistics.median(run[key] for run in runs) for key in ["first_s", "again_s"])
    peak = max(run["peak_bytes"] for run in runs) / MIB
    lines += ["", f"Planning a save of them by {runs[0]['ranks']} ranks in one process: {first:.2f} s, unchanged {again:.2f} s, peak {peak:.0f} MiB."]
    return lines
