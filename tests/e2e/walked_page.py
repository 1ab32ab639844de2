"""A page of docs/ that can be walked through: what its `console` blocks show is typed and read, what its blocks with a title hold
is a file of that name.

    ```yaml title="job.yaml"
    trainer: {task: sft}
    ```

    ```console
    $ keel train job.yaml
    ...
    2026-11-25T02:38:32.625Z info  [rank 0 step 52] saved global_step_52: 1492131 bytes in 0.01 s
    $ keel config validate broken.yaml      # exit code 78
    ```

Output is what follows a command up to the next: `...` stands for any number of lines, and numbers may be others. Nothing shown: it
does not matter what is said. A command goes on in the next line behind a `\\`, and ends with 0 where its comment does not say otherwise.
"""

import dataclasses
import re

BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclasses.dataclass
class File:
    name: str
    text: str


@dataclasses.dataclass
class Command:
    line: str
    exit_code: int = 0
    shown: list = dataclasses.field(default_factory=list)


def steps(text):
    """The page's files and commands, in their order."""
    found = []
    for language, rest, body in BLOCK.findall(text):
        title = re.search(r'title="([^"]+)"', rest)
        if title:
            found.append(File(title[1], body))
        elif language == "console":
            found += commands(body)
    return found


def commands(block):
    found = []
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        if line.startswith("$ "):
            code = re.search(r"\s+# exit code (\d+)", line)
            found.append(Command(re.sub(r"\s+# .*", "", line[2:]), int(code[1]) if code else 0))
        elif not found:
            raise ValueError(f"a console block begins with output: {line}")
        else:
            found[-1].shown.append(line)
    return found


def normal(line):
    """Without what may differ: numbers, the times of a log, the width of columns."""
    line = re.sub(r"^(\[rank\d+\]: )?\d{4}-\d\d-\d\dT[\d:.]+Z", r"\1TIME", line)
    line = re.sub(r"\b\d:\d\d:\d\d\b", "DURATION", line)
    line = re.sub(r"\b[0-9a-f]{16}\b", "DIGEST", line)
    line = re.sub(r"-{3,}", "---", line)
    return re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip()


def missing(shown, said):
    """The first line of `shown` that `said` does not have in its place; None: all are there."""
    if not shown:
        return None
    wanted = [line for line in shown if line.strip()]
    lines = [normal(line) for line in said.splitlines() if line.strip()]
    # Places in `lines` up to which what is shown so far may have come.
    places = {0}
    for line in wanted:
        if line.strip() == "...":
            places = set(range(min(places), len(lines) + 1))
            continue
        pattern = pattern_of(line)
        places = {at + 1 for at in places if at < len(lines) and pattern.fullmatch(lines[at])}
        if not places:
            return line
    return None if len(lines) in places else f"(the end, in the place of: {lines[max(places)]})"


def pattern_of(line):
    """`...` within a line stands for any text."""
    return re.compile(".*".join(map(re.escape, normal(line).split("..."))))
