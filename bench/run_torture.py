"""Kills processes of real jobs at random moments and looks at what is left: tests/proofs/run_torture.py, and of split RL
runs (--async) tests/proofs/run_split_torture.py, each of which says with --help what it does."""

import runpy
import sys

from driver import ROOT


def main():
    script = "run_split_torture.py" if "--async" in sys.argv else "run_torture.py"
    path = ROOT / "tests" / "proofs" / script
    sys.argv = [str(path), *(argument for argument in sys.argv[1:] if argument != "--async")]
    sys.path[0] = str(path.parent)
    runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
