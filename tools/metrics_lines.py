"""What metrics.jsonl of a run holds, for the scripts that send it elsewhere. Needs nothing but Python.

A run that goes back to an earlier checkpoint has other lines from there on, and one that begins anew has none of those
before. So a service's run keeps which lines it was sent, as a text: their number, their SHA-256, and the first digits of
that of the lines up to each n-th one, by which the first that is another is found. Where the file has other lines, a run
of its own begins, and says which one it follows. Times and the like are not compared.
"""

import hashlib
import json
import pathlib
import sys

# What another try of the same step has otherwise: after a crash the lines of steps that are done again are those that were sent.
UNSTABLE = ("time_metrics/", "timing_s/", "perf/", "fully_async/", "throughput", "tflops", "mfu", "gemm_share", "memory/", "checkpoint/")
NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
MARKS, DIGITS = 1000, 4  # with what stands before them less than 5000 characters, which a tag of mlflow may have


class Metrics:
    """{step: {name: number}} in the order of steps, of each line of the file its (step, what another try would have, too), and how
    many lines are none."""

    def __init__(self, steps, lines, left_out):
        self.steps, self.lines, self.left_out = steps, lines, left_out

    def left_out_text(self):
        what = "1 line that is" if self.left_out == 1 else f"{self.left_out} lines that are"
        return f"; left out: {what} no metrics" if self.left_out else ""


def parsed(line):
    """(step, {name: number}) of a line; texts are left out."""
    record = json.loads(line.decode("utf-8"))
    step, data = record["step"], record["data"]
    if type(step) is not int or not 0 <= step < 2**63 or not isinstance(data, dict):
        raise ValueError('expected {"step": <whole number>, "data": {...}}')
    row = {}
    for name, value in data.items():
        if isinstance(value, str):
            value = NUMBERS.get(value)
        if isinstance(value, (bool, int, float)):
            number = float(value)  # an integer may be too large
            row[name] = number if isinstance(value, bool) else value
    return step, row


def read(run):
    """The Metrics of a run's folder. What a step says twice is as it said last."""
    path = pathlib.Path(run) / "metrics.jsonl"
    if not path.is_file():
        sys.exit(f"{path}: no such file; expected the folder of a run (trainer.default_local_dir) with the jsonl logger")
    steps, lines, left_out = {}, [], 0
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            step, row = parsed(line)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            # The last line of a run that is writing it.
            print(f"{path}:{number}: left out, it is no line of metrics: {error}", file=sys.stderr)
            left_out += 1
            continue
        stable = {name: row[name] for name in sorted(row) if not name.startswith(UNSTABLE)}
        if stable:
            lines.append((step, json.dumps([step, stable]).encode()))
        steps.setdefault(step, {}).update(row)
    return Metrics(dict(sorted(steps.items())), lines, left_out)


def digest_and_marks(lines, every):
    digest, marks = hashlib.sha256(), []
    for number, (_, line) in enumerate(lines, 1):
        digest.update(line + b"\n")
        if number % every == 0:
            marks.append(digest.hexdigest()[:DIGITS])
    return digest.hexdigest(), marks


def lines_of_a_mark(count):
    return max(1, -(-count // MARKS))


def sent_text(lines):
    """What a service's run keeps of the lines that it was sent."""
    digest, marks = digest_and_marks(lines, lines_of_a_mark(len(lines)))
    return f"{len(lines)} {digest} {''.join(marks)}"


def first_other_step(lines, sent):
    """None where `lines`, at least one, begin with those of the text `sent`. Otherwise the first step that differs: "7",
    or "1201 to 1203" where a mark is of more than one line. A step that is gone differs, too."""
    count, digest, *marks = sent.split()
    every = lines_of_a_mark(int(count))
    digest_here, marks_here = digest_and_marks(lines[: int(count)], every)
    if digest_here == digest:
        return None
    marks = "".join(marks)  # none of no lines
    same = next((n for n, mark in enumerate(marks_here) if mark != marks[n * DIGITS :][:DIGITS]), len(marks_here))
    steps = [step for step, _ in lines[same * every :][:every]]
    if len(steps) < every:
        steps.append(lines[-1][0] + 1)
    return f"{steps[0]}" if steps[0] == steps[-1] else f"{steps[0]} to {steps[-1]}"


def other_text(before, step, name):
    """What is said when a run begins since the file has other lines than those that the run `before` was sent."""
    return (f"metrics.jsonl does not have the lines that run {before} was sent; the first step that differs is {step}: "
            f"all of it goes to a run of its own, {name}")  # fmt: skip


def unchecked_text(run):
    return (f"run {run} does not say which lines it was sent, as an older version left it: taken as those of metrics.jsonl, "
            "which is checked from the next time on")  # fmt: skip


def name_from(name, step):
    """Of a run that follows another of the same folder."""
    return f"{name} (from step {step})"


def config_text(run):
    path = pathlib.Path(run) / "config.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def run_name(run):
    return pathlib.Path(run).resolve().name


def describe(steps, what, left_out_text):
    """What --dry-run says."""
    names = sorted({name for row in steps.values() for name in row})
    values = sum(len(row) for row in steps.values())
    print(f"{what}: {values} values of {len(names)} metrics at {len(steps)} steps"
          + (f", {min(steps)} to {max(steps)}" if steps else "") + left_out_text)
    for name in names:
        print(f"  {name}")
