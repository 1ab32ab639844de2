"""What metrics.jsonl of a run holds, for the scripts that send it elsewhere. Needs nothing but Python."""

import json
import pathlib
import sys

NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def read(run):
    """{step: {name: number}} in the order of steps; what a step says twice is as it said last. Texts are left out."""
    path = pathlib.Path(run) / "metrics.jsonl"
    if not path.is_file():
        sys.exit(f"{path}: no such file; expected the folder of a run (trainer.default_local_dir) with the jsonl logger")
    steps = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            step, data = int(record["step"]), dict(record["data"])
        except (ValueError, KeyError, TypeError) as error:
            # The last line of a run that is writing it.
            print(f"{path}:{number}: left out, it is no line of metrics: {error}", file=sys.stderr)
            continue
        row = steps.setdefault(step, {})
        for name, value in data.items():
            if isinstance(value, str):
                value = NUMBERS.get(value)
            if isinstance(value, (bool, int, float)):
                row[name] = float(value) if isinstance(value, bool) else value
    return dict(sorted(steps.items()))


def config_text(run):
    path = pathlib.Path(run) / "config.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def run_name(run):
    return pathlib.Path(run).resolve().name


def describe(steps, what):
    """What --dry-run says."""
    names = sorted({name for row in steps.values() for name in row})
    values = sum(len(row) for row in steps.values())
    print(f"{what}: {values} values of {len(names)} metrics at {len(steps)} steps"
          + (f", {min(steps)} to {max(steps)}" if steps else ""))
    for name in names:
        print(f"  {name}")
