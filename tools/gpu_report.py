"""Makes a page of what tools/gpu_check.sh found: python3 tools/gpu_report.py OUT/gpu.json > page.md"""

import json
import sys

# What each part says of the goals of docs/gpu.md.
GOALS = {
    "tests": "G1", "tools": "G1", "determinism": "G2", "layouts": "G3", "train": "G4", "decode": "G5", "save": "G6",
    "offload": "G7", "rl": "G8",
}  # fmt: skip


def text_of(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "; ".join(text_of(item) for item in value)
    return str(value).replace("|", "\\|").replace("\n", "; ")


def flat(figures, prefix=""):
    """{"a": {"b": 1}} as rows of ("a b", 1)."""
    for key, value in figures.items():
        name = f"{prefix} {key}".strip()
        if isinstance(value, dict):
            yield from flat(value, name)
        else:
            yield name, value


def page(result):
    where = "a dry run: its figures measure nothing" if result["dry_run"] else f"{result['seconds']:.0f} s"
    yield f"# GPU check of {result['commit'][:12]}"
    yield ""
    yield f"Begun {result['begun']} on {result['device']} ({where})."
    yield ""
    yield "| part | goal | status | seconds | why |"
    yield "|---|---|---|---|---|"
    for part in result["parts"]:
        yield f"| {part['name']} | {GOALS.get(part['name'], '')} | {part['status']} | {part['took_s']} | {text_of(part.get('why', ''))} |"
    for part in result["parts"]:
        rows = list(flat(part.get("figures", {})))
        if rows:
            yield ""
            yield f"## {part['name']}"
            yield ""
            yield "| figure | value |"
            yield "|---|---|"
            for name, value in rows:
                yield f"| {name} | {text_of(value)} |"


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 64
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    print("\n".join(page(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
