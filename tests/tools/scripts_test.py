"""No shell script ends by chance: in one that stops at a failing pipe, a reader that leaves early may kill who writes to it."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEAVES_EARLY = re.compile(r"\|\s*(head\b|grep\s+-\w*q|sed\s+(-\w+\s+)?\S*\d*q\b)")


def problems():
    scripts = [path for path in [*sorted((ROOT / "tools").glob("**/*.sh")), ROOT / ".ci" / "run"] if path.exists()]
    assert len(scripts) > 5, scripts
    for path in scripts:
        name, text = path.relative_to(ROOT), path.read_text()
        parsed = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
        if parsed.returncode != 0:
            yield f"{name}: {parsed.stderr}"
        for number, line in enumerate(text.splitlines(), 1):
            if "pipefail" in text and LEAVES_EARLY.search(line.split(" #")[0]):
                yield f"{name}:{number}: under pipefail this fails when the reader leaves first: {line.strip()}"


found = list(problems())
print("\n".join(found) or "no script ends by chance")
sys.exit(bool(found))
