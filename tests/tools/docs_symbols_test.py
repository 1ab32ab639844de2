"""The tour and the architecture page name things that exist: each `path` is a file, each `Symbol` near one stands in a source."""

import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
sources = "\n".join(
    path.read_text() for folder in ("common", "parallel", "model", "checkpoint", "rollout", "rewards", "trainer", "tools")
    for path in (root / folder).rglob("*") if path.suffix in (".h", ".cc")
)
wrong = []
checked = 0
for page in ("docs/tour.md", "docs/architecture.md", "docs/algorithms.md", "docs/rewards.md", "docs/rollout.md",
             "docs/data.md", "README.md"):
    for name in re.findall(r"`([^`\n]+)`", (root / page).read_text()):
        if re.fullmatch(r"(common|parallel|model|checkpoint|rollout|rewards|trainer|tools|bench|tests|docs|configs)/[\w./*]*", name):
            checked += 1
            if not list(root.glob(name.rstrip("/"))):
                wrong.append(f"{page}: no file {name}")
        elif re.fullmatch(r"[A-Z]\w+(::\w+)?|kernels::\w+", name):
            checked += 1
            if not re.search(r"\b" + re.escape(name.split("::")[-1]) + r"\b", sources):
                wrong.append(f"{page}: no symbol {name}")
print("\n".join(wrong) or f"{checked} names in the pages exist")
sys.exit(bool(wrong) or checked < 40)
