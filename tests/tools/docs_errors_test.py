"""docs/errors.md has a section for every status, with the exit code that it ends a program with, and in it a row for every folder of the source
that gives it, and for no other; what a row quotes is said there. docs/operating.md has every exit code."""

import collections
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
TOPS = ("common", "gpu", "parallel", "model", "checkpoint", "rollout", "rewards", "turns", "serve", "trainer", "tools")
STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')
# One that is looked at, not given.
LOOKED_AT = re.compile(r"(==|!=|\bcase|ExitCodeFor\()\s*(keel::)?$")
# The words of the operating system, of CLI11, and of StatusCodeName.
OF_OTHERS = {"... ...: No such file or directory", "No space left on device", "unknown key", "preempted", "expected ..."}
wrong = []


def names_and_codes():
    """{"kUsage": ("usage", 64)}, of common/status.cc."""
    text = (root / "common/status.cc").read_text()
    names = dict(re.findall(r'case StatusCode::(k\w+):\s*return "([^"]+)";', text))
    codes, open_ = {}, []
    for case, code in re.findall(r"case StatusCode::(k\w+):|return (\d+);", text.split("int ExitCodeFor")[1].split("\n}")[0]):
        if case:
            open_.append(case)
        else:
            codes.update(dict.fromkeys(open_, int(code)))
            open_ = []
    return {code: (name, codes[code]) for code, name in names.items() if code != "kOk"}


def read_sources():
    """{status: {folder}}, and {folder: all its strings}."""
    given, said = collections.defaultdict(set), collections.defaultdict(str)
    for path in (path for top in TOPS for path in sorted((root / top).rglob("*")) if path.suffix in (".h", ".cc")):
        folder = str(path.parent.relative_to(root))
        text = STRING_OR_COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else "", path.read_text())
        for found in re.finditer(r"StatusCode::(k\w+)", text):
            if not LOOKED_AT.search(text[max(0, found.start() - 30) : found.start()]):
                given[found[1]].add(folder)
        said[folder] += strings_of(text)
    return given, said


def strings_of(text):
    """All strings of a source; neighbours are one."""
    joined, end = "", 0
    for found in re.finditer(r'\'"\'|"((?:[^"\\\n]|\\.)*)"', text):
        if found[1] is not None:
            joined += found[1] if not text[end : found.start()].strip() else "\n" + found[1]
            end = found.end()
    return joined.replace('\\"', '"') + "\n"


def sections(text):
    """{heading: its text}."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


statuses = names_and_codes()
given, said = read_sources()
page = sections((root / "docs/errors.md").read_text())
rows = 0
for status, (name, exit_code) in statuses.items():
    if name not in page:
        wrong.append(f"docs/errors.md has no section '{name}'")
        continue
    if not re.match(rf"\s*Exit code {exit_code}\b", page[name]):
        wrong.append(f"docs/errors.md: '{name}' ends with exit code {exit_code}")
    listed = set()
    for row in re.findall(r"^\| (.*) \|$", page[name], re.MULTILINE)[1:]:
        cells = [cell.strip() for cell in re.split(r"\s*(?<!\\)\|\s*", row)]
        folders = cells[0].split(", ")
        if cells[0] == "---" or set(cells[0]) <= set("-|"):
            continue
        rows += 1
        if len(cells) != 4:
            wrong.append(f"docs/errors.md: '{name}': a row of {len(cells)} cells: {row}")
            continue
        listed |= set(folders)
        strings = "\n".join(said[folder] for folder in (folders if cells[0] != "everywhere" else said))
        for quote in set(re.findall(r"`([^`]+)`", cells[1])) - OF_OTHERS:
            parts = [part.strip() for part in quote.split("...") if part.strip()]
            wrong += [f"docs/errors.md: '{name}': {cells[0]} never says: {part}" for part in parts if part not in strings]
    if status != "kInternal":
        wrong += [f"docs/errors.md: no row of '{name}' is of {folder}, which gives it" for folder in sorted(given[status] - listed)]
        wrong += [f"docs/errors.md: a row of '{name}' is of {folder}, which never gives it" for folder in sorted(listed - given[status])]
wrong += [f"docs/errors.md: '{name}' is no status" for name in page.keys() - {name for name, _ in statuses.values()}]
codes = sections((root / "docs/operating.md").read_text())["Exit codes"]
for code in sorted({code for _, code in statuses.values()}):
    if not re.search(rf"^\| {code} \|", codes, re.MULTILINE):
        wrong.append(f"docs/operating.md: no row of exit code {code}")
print("\n".join(wrong) or f"{len(statuses)} statuses in {rows} rows")
sys.exit(bool(wrong) or len(statuses) < 16 or rows < 80)
