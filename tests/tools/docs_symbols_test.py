"""The pages name things that exist: each `path` is a file, each `Symbol` stands in a source. The architecture page has the rooms that
there are, with the edges that their includes may have. A code span ends on its line: what tests find in pages, they find line by line."""

import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
sources = "\n".join(
    path.read_text() for folder in ("common", "gpu", "parallel", "model", "checkpoint", "library", "rollout", "rewards", "turns", "serve", "trainer", "tools", "bench")
    for path in (root / folder).rglob("*") if path.suffix in (".h", ".cc")
)
words = set(re.findall(r"\w+", sources))
wrong = []
checked = 0
for page in ("docs/tour.md", "docs/architecture.md", "docs/algorithms.md", "docs/rewards.md", "docs/rollout.md",
             "docs/data.md", "README.md", "CONTRIBUTING.md"):
    for name in re.findall(r"`([^`\n]+)`", (root / page).read_text()):
        if re.fullmatch(r"(common|parallel|model|checkpoint|library|rollout|rewards|trainer|tools|bench|tests|docs|configs)/[\w./*]*", name):
            checked += 1
            if not list(root.glob(name.rstrip("/"))):
                wrong.append(f"{page}: no file {name}")
        elif name != "PascalCase" and re.fullmatch(r"[A-Z]\w+(::\w+)?|kernels::\w+", name):
            checked += 1
            if name.split("::")[-1] not in words:
                wrong.append(f"{page}: no symbol {name}")
# What the tour quotes is in the sources, line by line.
lines = {line.strip() for line in sources.splitlines()}
for quote in re.findall(r"```cpp\n(.*?)```", (root / "docs/tour.md").read_text(), re.DOTALL):
    wrong += [f"docs/tour.md: no source has the line {line.strip()}" for line in quote.splitlines() if line.strip() not in lines]
# The architecture page's table of rooms: the folders that hold sources, and the edges that the test of the includes allows.
ROOM = r"^\| ((?:common|gpu|parallel|model|checkpoint|library|rollout|rewards|turns|serve|trainer)[\w/]*) \| (.*?) ?\|"
listed = {room: set(filter(None, edges.split(", ")))
          for room, edges in re.findall(ROOM, (root / "docs/architecture.md").read_text(), re.MULTILINE)}
layers = (root / "tests/common/include_layers_test.cc").read_text().split("edges = {\n")[1].split("\n  };")[0]
allowed = {room: set(re.findall(r'"([\w/]+)"', edges)) for room, edges in re.findall(r'\{"([\w/]+)",\s*\{(.*?)\}\}', layers, re.DOTALL)}
# parallel/groups/cuda counts as parallel/groups there; parallel/groups/gloo_forward stands in for headers of another project.
allowed["gpu/cuda"] = {"gpu"}
allowed["parallel/groups/cuda"] = {"common", "gpu", "parallel", "parallel/groups"}
tops = ("common", "gpu", "parallel", "model", "checkpoint", "library", "rollout", "rewards", "turns", "serve", "trainer")
rooms = {str(path.parent.relative_to(root)) for top in tops for path in (root / top).rglob("*") if path.suffix in (".h", ".cc")}
rooms = {room for room in rooms if not room.startswith("parallel/groups/gloo_forward")}
wrong += [f"docs/architecture.md: {room} is not among the rooms" for room in sorted(rooms - listed.keys())]
wrong += [f"docs/architecture.md: there is no room {room}" for room in sorted(listed.keys() - rooms)]
wrong += [f"docs/architecture.md: {room} may include {sorted(allowed.get(room, ()))}" for room in sorted(listed)
          if listed[room] != allowed.get(room)]
for page in (*root.glob("*.md"), *root.glob("docs/**/*.md")):
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith("    ") and line.replace("```", "").count("`") % 2:
            wrong.append(f"{page.relative_to(root)}:{number}: a code span does not end on its line")
print("\n".join(wrong) or f"{checked} names in the pages exist")
sys.exit(bool(wrong) or checked < 40)
