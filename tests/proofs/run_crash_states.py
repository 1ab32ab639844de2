"""How many of the states that a power cut may leave does a way of saving lose? Keel's beside PyTorch's.

    .venv/bin/python tests/proofs/run_crash_states.py [--system keel ...] [--samples 40] [--seed 1] [--markdown docs/proofs/crash-states.md]

Each system saves step 1, which counts as safe, and then step 2, under strace. The calls of the second save are
played on a model of a disk that loses what was not synced (disk_model.py). Before each call, and after
the last, the power goes in every way that the model allows, or in a sample of them; what is left is written
into a directory and loaded as that system loads its newest checkpoint. Until the save has returned, step 1 or
step 2 must be found, whole; once it has returned, step 2.

    lost         nothing is found any more, or the loader stops with an error: somebody must come
    forgotten    the save had returned, and the step before it is found
    corrupt      something is loaded that was never saved, without a word

Needs strace; nothing else has to rest on the machine.
"""

import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import disk_model
import strace_log

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "bench"))

import machine  # noqa: E402: bench

PEER = HERE / "crash_states_peer.py"
SYSTEMS = {
    "keel": "Keel",
    "torch-save": "torch.save, rename",
    "torch-save-fsync": "torch.save, fsync of the file, rename",
    "dcp": "PyTorch DCP, then the one before removed",
    "dcp-kept": "PyTorch DCP, nothing removed",
}
OUTCOMES = ("new", "old", "lost", "forgotten", "corrupt")


def program(args, system, *what):
    if system == "keel":
        return [args.keel.parent / "keel_crash_states", *what]
    return [args.python, PEER, system, *what]


class Loader:
    """Loads directory after directory in one process; a new one should it die."""

    def __init__(self, command, folder):
        self.command, self.folder, self.process, self.count = command, folder, None, 0

    def load(self, tree):
        if self.process is None:
            self.process = subprocess.Popen(list(map(str, self.command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        self.count += 1
        place = self.folder / str(self.count)
        place.mkdir(parents=True)
        for path in sorted(tree):
            if tree[path] is None:
                (place / path).mkdir(exist_ok=True)
            else:
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_bytes(tree[path])
        self.process.stdin.write(f"{place}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        shutil.rmtree(place)
        if not line:
            code = self.process.wait()
            self.process = None
            return {"error": f"the loader died, exit {code}"}
        return json.loads(line)

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


def judge(answer, returned):
    if "step" not in answer:
        return "lost"
    if not answer["whole"] or answer["step"] not in (1, 2):
        return "corrupt"
    if answer["step"] == 2:
        return "new"
    return "forgotten" if returned else "old"


def said(answer):
    if "step" not in answer:
        return "nothing is found"
    return f"step {answer['step']} is found, {'whole' if answer['whole'] else 'but not what was saved'}"


def trace(args, system, folder):
    """The log of both saves, with the folder that they were made in."""
    run = folder / f"{system}-run"
    run.mkdir()
    log = folder / f"{system}.strace"
    command = strace_log.command(log, *program(args, system, "save", run))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    return log, run


def instants(log, run):
    """Plays the log; yields (disk, returned, what comes next) before each change of the second save, and after it."""
    player = strace_log.Player(run)
    begun = returned = False
    for name, arguments, result in strace_log.calls(log):
        # Before the call's effect: whoever looks at what is yielded sees the disk as it was.
        before = begun and name not in ("read", "close", "lseek", "access", "faccessat", "faccessat2")
        if before and any(player.path("AT_FDCWD", strace_log.text_of(m)) is not None for m in strace_log.STRING.finditer(arguments)
                          if name not in ("write", "pwrite64", "writev", "pwritev")) or before and touches(player, arguments):  # fmt: skip
            yield player.disk, returned, name
        player.play(name, arguments, result)
        if player.marks and player.marks[-1] == "mark.begin" and not begun:
            player.disk.sync_all()
            begun = True
        elif player.marks and player.marks[-1] == "mark.end" and not returned:
            returned = True
            yield player.disk, returned, "the save has returned"
            return
    raise SystemExit(f"{log}: the save did not come to its end")


def touches(player, arguments):
    first = arguments.split(",", 1)[0]
    return first.isdigit() and int(first) in player.files


def measure(args, system, folder):
    log, run = trace(args, system, folder)
    loader = Loader(program(args, system, "load"), folder / "disk")
    counts = dict.fromkeys(OUTCOMES, 0)
    examples = {}
    seen = {False: {}, True: {}}
    boundaries = tried = 0
    try:
        for disk, returned, after in instants(log, run):
            boundaries += 1
            for tree in disk.crash_states(args.samples, args.seed + boundaries):
                tried += 1
                key = disk_model.digest(tree)
                if key in seen[returned]:
                    continue
                answer = loader.load(tree)
                outcome = judge(answer, returned)
                seen[returned][key] = outcome
                counts[outcome] += 1
                if outcome in OUTCOMES[2:]:
                    examples.setdefault(outcome, f"{'' if returned else 'before '}{after}: {answer.get('error') or said(answer)}")
                if args.limit and sum(counts.values()) >= args.limit:
                    break
    finally:
        loader.close()
    states = sum(counts.values())
    bad = sum(counts[name] for name in OUTCOMES[2:])
    return {"instants": boundaries, "tried": tried, "states": states, "counts": counts, "bad": bad,
            "per_thousand": 1000.0 * bad / max(1, states), "examples": examples}  # fmt: skip


def markdown(report):
    lines = [
        "# Crash states",
        "",
        "What a power cut in the middle of a save, or right after it, leaves of the checkpoints. Step 1 is safe on the disk when",
        "step 2 is saved; unless said otherwise one checkpoint is kept. A state is one content of the disk that the model of",
        "[run_crash_states.py](../../tests/proofs/run_crash_states.py) allows at some call of the save; equal ones count once.",
        "",
        f"    {report['command']}",
        "",
        f"{report['date']}, commit {report['commit']}; torch {report['torch']}, strace {report['strace']}.",
        "",
        "| system | calls | states | step 2 found | step 1 found | lost | forgotten | corrupt | windows per 1,000 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for system, one in report["systems"].items():
        c = one["counts"]
        lines.append(f"| {SYSTEMS[system]} | {one['instants']} | {one['states']} | {c['new']} | {c['old']} | {c['lost']} | {c['forgotten']} "
                     f"| {c['corrupt']} | {one['per_thousand']:.0f} |")  # fmt: skip
    lines += [
        "",
        "*lost*: nothing is found, or the loader stops with an error. *forgotten*: the save had returned, and step 1 is what is found.",
        "*corrupt*: something is loaded that was never saved. An example of each:",
        "",
    ]
    for system, one in report["systems"].items():
        lines += [f"- {SYSTEMS[system]}, {outcome}: {text}" for outcome, text in one["examples"].items()]
    lines += [
        "",
        "How the peers are used is in [crash_states_peer.py](../../tests/proofs/crash_states_peer.py). The model is that of a file",
        "system that promises what POSIX promises and no more; ext4 and XFS in their usual modes order more than that and",
        "leave fewer of these states.",
    ]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keel", type=pathlib.Path, default=ROOT / "build" / "release" / "keel", help="beside it: keel_crash_states")
    parser.add_argument("--python", type=pathlib.Path, default=sys.executable, help="with torch, for the peers")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="may be given again; default: all")
    parser.add_argument("--samples", type=int, default=40, help="random states at each call, beside the systematic ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="states of a system at most; 0: all")
    parser.add_argument("--dir", type=pathlib.Path, help="for the files; best in memory; default: a temporary one")
    parser.add_argument("--output", type=pathlib.Path, help="JSON; else standard output")
    parser.add_argument("--markdown", type=pathlib.Path, help="page to write; the JSON goes beside it")
    args = parser.parse_args()
    if reason := strace_log.available():
        print(f"crash states: {reason}", file=sys.stderr)
        return 77
    if args.dir is None and os.access("/dev/shm", os.W_OK):
        args.dir = pathlib.Path("/dev/shm")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-crash-states-", dir=args.dir))
    version = subprocess.run(["strace", "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0].split()[-1]
    torch = subprocess.run([args.python, "-c", "import importlib.metadata as m; print(m.version('torch'))"],
                           capture_output=True, text=True, check=False).stdout.strip()  # fmt: skip
    report = {
        "benchmark": "crash-states",
        "command": shlex.join([".venv/bin/python", "tests/proofs/run_crash_states.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": machine.commit(ROOT),
        "strace": version,
        "torch": torch or "none",
        "systems": {},
    }
    try:
        for system in args.system or SYSTEMS:
            begin = time.monotonic()
            report["systems"][system] = one = measure(args, system, folder)
            print(f"{SYSTEMS[system]:40} {one['instants']:4} calls {one['states']:6} states  {one['counts']}  {time.monotonic() - begin:.0f} s",
                  file=sys.stderr, flush=True)  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(report, indent=1) + "\n"
    if args.markdown:
        args.output = args.output or args.markdown.with_suffix(".json")
        args.markdown.write_text(markdown(report), encoding="utf-8")
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
