"""RL's numbers on random cases, by verl's and TRL's own code and by Keel: tests that nobody has chosen.

    rl_cases_test.py PROGRAM

PROGRAM is rl_losses_test, which is told where the cases are. Installs the packages of rl_requirements.txt once into the folder that
KEEL_RL_PACKAGES names; without them, and without KEEL_NIGHTLY=1, the test says so and is skipped (exit 77). The cases are other
ones every day: a trace names the seed of what differs, which `make_rl_cases.py SEED 1` makes again. KEEL_SEEDS says how many.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parent
SEEDS_A_DAY = 400
SECONDS_A_DAY = 86400


def skip(why):
    print(f"skipped: {why}", file=sys.stderr)
    sys.exit(SKIPPED)


def packages(folder):
    done = folder / "installed"
    if not done.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder),
                   "-r", str(HERE / "rl_requirements.txt")]
        installed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        if installed.returncode != 0:
            skip(f"pip cannot get verl and TRL: {installed.stderr.strip()[-300:]}")
        done.touch()
    return folder


def main():
    program = sys.argv[1]
    if not os.environ.get("KEEL_NIGHTLY"):
        skip("KEEL_NIGHTLY is not set")
    folder = packages(pathlib.Path(os.environ.get("KEEL_RL_PACKAGES", "rl-packages")).resolve())
    count = int(os.environ.get("KEEL_SEEDS", SEEDS_A_DAY))
    first = int(time.time()) // SECONDS_A_DAY * 1000
    with tempfile.TemporaryDirectory() as temporary:
        cases = pathlib.Path(temporary) / "cases.json"
        with cases.open("w") as out:
            subprocess.run([sys.executable, "-W", "ignore", str(HERE / "make_rl_cases.py"), str(first), str(count)],
                           stdout=out, check=True, env={**os.environ, "PYTHONPATH": str(folder)})
        print(f"{count} cases from seed {first} on", flush=True)
        done = subprocess.run([program, "--gtest_filter=RlReferenceTest.*"], check=False,
                              env={**os.environ, "KEEL_RL_REFERENCE": str(cases), "KEEL_SOURCE_DIR": str(HERE.parents[1])})
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
