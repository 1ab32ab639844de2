"""docs/tests.md says, of every unit without a test of its name and of no other, which test holds it: a test that is there and
whose includes reach the unit, or one in Python, which runs the program. And each test that a page names in backticks is there, by its
file below tests/ or its program; in the pages of proofs with the cases that are named after it."""

import functools
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
tests = root / "tests"
TOPS = ("common", "gpu", "parallel", "model", "checkpoint", "library", "rollout", "rewards", "turns", "serve", "trainer", "tools")
# A module is opened at run time, not included; a family stands in the table, which declares it.
OPENED = {
    "parallel/groups/cuda_module.h": ("parallel/groups/cuda/cuda_module_impl.cc", "parallel/groups/cuda/nccl_group.cc"),
    "model/config/family_table.h": tuple(str(path.relative_to(root)) for path in (root / "model/families").glob("*.cc")),
}


@functools.cache
def parts():
    """{header: the .cc files that say what it declares}: that of its name, and each of its folder, of one in it or of one beside it,
    without a header of its own that includes it."""
    found = {}
    for top in TOPS:
        for path in (root / top).rglob("*.cc"):
            own = path.with_suffix(".h")
            near = (*path.parents[:2], *path.parents[1].iterdir())
            headers = [own] if own.exists() else [root / name for name in included(path) if (root / name).parent in near]
            for header in headers:
                found.setdefault(header, []).append(path)
    return found


@functools.cache
def included(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)


@functools.cache
def leads_to(path):
    """(the files behind the includes of a file, those of them that it is not followed into)"""
    behind, ends = set(), set()
    for name in included(path):
        near = root / name
        behind |= {near, near.with_suffix(".cc")} if name.startswith("tests/") else {near, *parts().get(near, [])}
        ends |= {root / file for file in OPENED.get(name, ())}
    return {file for file in behind if file.exists()}, ends


def reached(test):
    """The files that the includes of a test lead to."""
    followed, open_, found = set(), {test}, set()
    while open_:
        path = open_.pop()
        followed.add(path)
        behind, ends = leads_to(path)
        open_ |= behind - followed
        found |= behind | ends
    return found


def page():
    """{unit: test}, and what is wrong with the page."""
    held, wrong, folder = {}, [], ""
    for line in (root / "docs/tests.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 3 or cells[0] in ("folder", "---"):
            continue
        folder = cells[0] or folder
        for name in cells[1].split(", "):
            if f"{folder}/{name}" in held:
                wrong.append(f"{folder}/{name} stands twice")
            held[f"{folder}/{name}"] = cells[2]
    return held, wrong


held, wrong = page()
units = {str(path.relative_to(root).with_suffix("")) for top in TOPS for path in (root / top).rglob("*.cc")}
alone = {unit for unit in units if not (tests / f"{unit}_test.cc").exists()}
wrong += [f"{unit} has no test of its name: write one, or say in docs/tests.md which holds it" for unit in sorted(alone - held.keys())]
wrong += [f"{unit} stands in docs/tests.md, and has a test of its name or is no unit" for unit in sorted(held.keys() - alone)]
for test in sorted(set(held.values())):
    if not (tests / test).exists():
        wrong.append(f"docs/tests.md: no test {test}")
    elif not re.search(r"_test\.(cc|py)$", test):
        wrong.append(f"docs/tests.md: {test} is no test")
    elif test.endswith(".cc"):
        reach = reached(tests / test)
        claimed = [unit for unit in sorted(held) if held[unit] == test]
        wrong += [f"docs/tests.md: {test} does not reach {unit}" for unit in claimed if root / f"{unit}.cc" not in reach]

files = {str(path.relative_to(tests).with_suffix("")): path for path in tests.rglob("*_test.*") if path.suffix in (".cc", ".py")}
programs = set(re.findall(r"keel_(?:e2e_)?test\((\w+)", "".join(path.read_text() for path in tests.rglob("CMakeLists.txt"))))
cases = 0
for path in [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]:
    for name, after in re.findall(r"`((?:[\w-]+/)*\w+_test)`([^`|\n]*)", path.read_text()):
        texts = [file.read_text() for known, file in files.items() if known == name or ("/" not in name and known.endswith(f"/{name}"))]
        if not texts and name not in programs:
            wrong.append(f"{path.relative_to(root)}: no test {name}")
        for case in re.findall(r"\btest_\w+|\b[A-Z]\w*[a-z]\w*", after if texts and path.name.startswith("proofs") else ""):
            if case.startswith("test_") or re.search("[A-Z].*[A-Z]", case):
                cases += 1
                if not any(case in text for text in texts):
                    wrong.append(f"{path.relative_to(root)}: {name} has no {case}")
print("\n".join(wrong) or f"{len(units) - len(alone)} units have a test of their name, {len(held)} another")
sys.exit(bool(wrong) or len(units) < 200 or cases < 50)
