"""What the drivers of the benchmarks share: options, workers, turns, and the report with its page."""

import argparse
import contextlib
import errno
import json
import math
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import machine
import paired

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEEL = ROOT / "build" / "release" / "keel"
MOST = 1_000_000  # of anything that is counted
# Exit codes, which are keel's.
USAGE, NO_INPUT, NO_SPACE, TERMINATED = 64, 66, 74, 143


class Worker:
    """A process that answers each line with one line of JSON (bench/peers/README.md)."""

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

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended (exit {self.process.wait()}): {shlex.join(self.command)}")
        record = json.loads(line)
        if "error" in record:
            raise SystemExit(f"{self.name}: {record['error']}")
        return record


def keel_worker(args, name, *options):
    """The command of a worker of Keel's own, which is of the build of `args.keel`."""
    program = args.keel.with_name("keel_bench")
    if not program.is_file():
        print(f"{program} is not there: build keel_bench, or name the keel of another build with --keel", file=sys.stderr)
        sys.exit(NO_INPUT)
    return [str(program), "worker", name, *options]


def environment(threads):
    return {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}


def make_model(config, directory):
    """A Hugging Face directory with random weights for a config, unless it is there."""
    if not (directory / "model.safetensors").exists():
        script = str(ROOT / "bench" / "peers" / "make_model.py")
        subprocess.run([sys.executable, script, str(config), str(directory)], check=True)


def turns(rounds, seed, take, show, between=lambda: None):
    """Lets A and B take turns: `take(side)` gives a sample, `between()` what is measured after a round.

    Returns rounds of four (side, sample) as bench/paired.py takes them, and what was measured between.
    """
    taken, after = [], []
    for sides in paired.order(rounds, seed):
        samples = [(side, take(side)) for side in sides]
        taken.append(samples)
        after.append(between())
        print(f"  {sides}: " + ", ".join(f"{side} {show(x)}" for side, x in samples), file=sys.stderr, flush=True)
    return taken, after


def of_side(rounds, side):
    return [x for samples in rounds for s, x in samples if s == side]


def with_sides(rounds):
    """The same samples for JSON."""
    return [[{"side": side, **x} for side, x in samples] for samples in rounds]


class Parser(argparse.ArgumentParser):
    """Of `keel bench NAME`: wrong options end it as they end keel."""

    def __init__(self, name, description, **more):
        super().__init__(prog=f"keel bench {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: error: {message}\n")


# Types of options. What is wrong is said before anything is measured.


def count(low=1, high=MOST):
    """A whole number of something."""

    def read(text):
        with contextlib.suppress(ValueError):
            if low <= int(text) <= high:
                return int(text)
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from {low} to {high}")

    return read


def amount(text):
    """A number above 0."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")


def keel_of_build(text):
    """The keel of a build that has keel_bench too."""
    path = pathlib.Path(text)
    for program in (path, path.parent / "keel_bench"):
        if not program.is_file():
            raise argparse.ArgumentTypeError(f"{text}: there is no program {program}")
    return path


def existing(text):
    path = pathlib.Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{text}: there is no such file or folder")
    return path


def folder(text):
    """One to write into, which is made."""
    path = pathlib.Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return path


def target(text):
    """A file to write when all is measured. It is opened now, and left as it is: what cannot be written shows before."""
    path = pathlib.Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_fifo():  # whose reader would take this for the end
            there = os.path.lexists(path)
            path.open("a").close()
            if not there:
                path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return path


def add_reports(made):
    made.add_argument("--output", type=target, help="JSON with every sample; else standard output")
    made.add_argument("--markdown", type=target, help="page to write; the JSON goes beside it")


def parser(name, description, rounds=5, threads=2):
    """Of `keel bench NAME`, with the options that most drivers have."""
    made = Parser(name, description)
    made.add_argument("--keel", type=keel_of_build, default=str(KEEL), help="beside it: keel_bench")
    made.add_argument("--rounds", type=count(), default=rounds, help="of four samples, two pairs, each")
    made.add_argument("--threads", type=count(high=1024), default=threads, help="of each process")
    made.add_argument("--seed", type=int, default=None, help="of the order")
    add_reports(made)
    return made


def device(text):
    if re.fullmatch("cpu|cuda(:[0-9]{1,4})?", text):
        return text
    raise argparse.ArgumentTypeError(f"{text}: expected cpu, cuda or cuda:N")


def add_device(made):
    made.add_argument("--device", type=device, default="cpu", help="of both sides: cpu, cuda or cuda:N")


def _end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would break off what the first one has begun
    sys.exit(TERMINATED)


def parse(made):
    """The options. From here on SIGTERM is an exception, as Ctrl-C is, so that what was written for the measurement is removed."""
    signal.signal(signal.SIGTERM, _end)
    args = made.parse_args()
    if "seed" in args and args.seed is None:
        args.seed = time.time_ns() % 2**32
    if "output" in args and args.markdown and not args.output:
        try:
            target(json_path(args))
        except argparse.ArgumentTypeError as error:
            made.error(f"argument --markdown: the JSON beside it: {error}")
    return args


def json_path(args):
    """None: standard output."""
    return args.output or args.markdown and args.markdown.with_suffix(".json")


@contextlib.contextmanager
def measuring(name, args):
    """A report to fill, with what a measurement is worth nothing without."""
    report = {
        "command": shlex.join(["keel", "bench", name, *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": machine.commit(ROOT),
        "machine": machine.facts(),
        "settings": machine.settings(args, ROOT),
        "seed": args.seed,
    }
    stolen, total = machine.steal_ticks()
    yield report
    stolen_after, total_after = machine.steal_ticks()
    report["steal_percent"] = 100.0 * (stolen_after - stolen) / max(1, total_after - total)
    report["load_after"] = machine.facts()["load"]


def page_head(title, report):
    """Title, command and machine, as lines of a page; the caller's sentences may follow on the last."""
    facts, settings = report["machine"], report["settings"]
    return [
        f"# {title}",
        "",
        f"`{report['command']}`",
        "",
        f"{facts['cpu']} ({', '.join(facts['features'])}), {facts['cores']} cores, {facts['memory_gib']} GiB,"
        f" Linux {facts['kernel']}; {settings['threads']} thread{'s' if settings['threads'] != '1' else ''} a process;"
        f" load {facts['load']:.1f} at the start, {report['load_after']:.1f} at the end,"
        f" {report['steal_percent']:.1f} % of the time stolen. Keel {report['commit']}, {report['date']}.",
    ]


def bar(what, wanted, found, holds, void=False):
    """One thing that Keel wants of itself. `void`: the machine was too unsteady for the figure to count."""
    return {"what": what, "wanted": wanted, "found": found, "holds": bool(holds), "void": bool(void)}


def bar_table(bars):
    lines = ["| what | wanted | found | |", "|---|---|---|---|"]
    for x in bars:
        verdict = "void" if x["void"] else "yes" if x["holds"] else "**no**"
        lines.append(f"| {x['what']} | {x['wanted']} | {x['found']} | {verdict} |")
    return lines


def text(x, digits=2):
    """A summary of bench/paired.py in words."""
    return f"{x['median']:.{digits}f} ({x['low']:.{digits}f} to {x['high']:.{digits}f})"


def control_text(x):
    return text(x["control"]) + ("" if x["control"]["holds_one"] else " **(void)**")


def versions(readies):
    """The versions that workers told, as a sentence's middle."""
    found = {}
    for ready in readies:
        found |= ready.get("versions", {})
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))


def write(report, args, page):
    """The JSON, and with --markdown the page beside it."""
    put(json.dumps(report, indent=1) + "\n", json_path(args))
    if args.markdown:
        put(page, args.markdown)


def put(content, path=None):
    """Writes it to a file, else to standard output. What cannot be written there is kept elsewhere: it took its time to measure."""
    try:
        with open(path or 1, "w", closefd=path is not None, encoding="utf-8") as out:
            out.write(content)
    except OSError as error:
        what = f"write {path or 'standard output'}: {os.strerror(error.errno or errno.EIO)}"
        print(f"{what}; what was measured is in {kept(content)}", file=sys.stderr)
        sys.exit(NO_SPACE)


def kept(content):
    """Where it is kept now."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="keel-bench-kept-", delete=False, encoding="utf-8") as out:
            out.write(content)
        return out.name
    except OSError:
        print(content, file=sys.stderr)
        return "the lines before"
