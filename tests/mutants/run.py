"""Removes one rule of the checkpoint subsystem at a time and demands that a test sees it.

    tests/mutants/run.py [--only NAME ...] [--jobs 2] [--markdown docs/mutants.md]
    tests/mutants/run.py --check        every mutant still fits the source
    tests/mutants/run.py --list

Works on a copy of the source in build/mutants, built without torch; for mutants whose tests need it, or the whole
program, on one in build/mutants-torch. A mutant
that does not compile is an error, one that no test sees is a hole in the tests: exit 1. What is run first is
the copy as it is: all the tests that are asked for must pass there. There is a copy for each of the jobs, that work side by side; the
compiler's cache, where there is one, builds but the first.
"""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import time

import catalogue

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of one test program. The slowest takes some seconds; a mutant may also hang.
LIMIT_S = 600
# Before the names of tests of the whole program.
E2E = "e2e_"
PRETEND_GPU = str(ROOT / "build" / "release" / "libkeel_pretend_gpu.so")
# Endings of a program's name, and what is in its environment then.
WAYS = {
    "_device_paths": {"KEEL_DEVICE_PATHS": "1"},
    "_device_paths_aten": {"KEEL_DEVICE_PATHS": "aten"},
    "_pretend_gpu": {"KEEL_CUDA_MODULE": PRETEND_GPU},
}


def way_of(program):
    """The program itself, and its environment's further variables. Those of the whole program choose their own."""
    for ending, variables in WAYS.items():
        if program.endswith(ending) and not program.startswith(E2E):
            return program.removesuffix(ending), variables
    return program, {}
FAILED = re.compile(r"^\[  FAILED  \] (\S+?),? ", re.MULTILINE)


def occurrences(root, mutant):
    return (root / mutant.file).read_text(encoding="utf-8").count(mutant.old)


def check(root):
    """Messages about mutants that do not fit the source."""
    problems = []
    names = [mutant.name for mutant in catalogue.MUTANTS]
    problems += [f"{name}: the name is used twice" for name in set(names) if names.count(name) > 1]
    for mutant in catalogue.MUTANTS:
        found = occurrences(root, mutant)
        if found != 1:
            problems.append(f"{mutant.name}: what it replaces stands {found} times in {mutant.file}, expected once:\n{mutant.old}")
        if mutant.old == mutant.new:
            problems.append(f"{mutant.name}: changes nothing")
    listed = re.findall(r"^\| `([^`]+)`", (root / "docs" / "mutants.md").read_text(encoding="utf-8"), re.MULTILINE)
    problems += [f"{name}: docs/mutants.md has no line of it, or of one that is gone" for name in sorted(set(names) ^ set(listed))]
    return problems


class Copy:
    """A copy of the source and its build without torch, for the unit tests."""

    CMAKE = ("-DKEEL_WITH_TORCH=OFF", "-DKEEL_UNITY=OFF")

    def __init__(self, folder):
        self.folder = folder
        self.source = folder / "source"
        self.build = folder / "build"

    def refresh(self):
        """Copies what differs, so that a second run builds little."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        wanted = {name for name in listed if name and (ROOT / name).is_file()}
        for path in self.source.rglob("*"):
            if path.is_file() and str(path.relative_to(self.source)) not in wanted:
                path.unlink()
        for name in sorted(wanted):
            here, there = ROOT / name, self.source / name
            if there.is_file() and there.read_bytes() == here.read_bytes():
                continue
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(here, there)
            os.utime(there)
        # With -O1 a mutant is built in half the time; its warnings are of no interest.
        command = ["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                   "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1", "-DCMAKE_CXX_FLAGS=-w", *self.CMAKE]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def make(self, programs, jobs):
        """The compiler's messages when it fails, else None."""
        done = subprocess.run(
            ["ninja", "-C", self.build, "-j", str(jobs), *sorted({way_of(program)[0] for program in programs})],
            capture_output=True, text=True, check=False, env={**os.environ, "CCACHE_BASEDIR": str(self.folder)},
        )
        return None if done.returncode == 0 else done.stdout[-4000:] + done.stderr[-2000:]

    def test(self, program, cases):
        """How it failed, or None."""
        environment = {**os.environ, "KEEL_SOURCE_DIR": str(self.source), "KEEL_SEEDS": "2000"}
        environment.pop("KEEL_NIGHTLY", None)
        name, variables = way_of(program)
        environment.update(variables)
        command = [self.build / name, f"--gtest_filter={cases}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", env=environment, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{program}, which does not end"
        if re.search(r"^\[==========\] 0 tests", done.stdout, re.MULTILINE):
            raise SystemExit(f"{program} has no case {cases}")
        if done.returncode == 0:
            return None
        failed = FAILED.search(done.stdout)
        if done.returncode < 0:
            running = re.findall(r"^\[ RUN      \] (\S+)", done.stdout, re.MULTILINE)
            return f"{program}, {running[-1] if running else '?'} (signal {-done.returncode})"
        return f"{program}, {failed.group(1)}" if failed else program


class CopyWithTorch(Copy):
    """The same of all of it, for unit tests that need torch and for tests of the whole program."""

    CMAKE = ("-DKEEL_NVCC=OFF", f"-DKEEL_VENV={ROOT / '.venv'}")

    def make(self, programs, jobs):
        return super().make({"keel" if program.startswith(E2E) else program for program in programs}, jobs)

    def test(self, program, cases):
        if not program.startswith(E2E):
            return super().test(program, cases)
        folder = self.source / "tests" / "e2e"
        environment = {
            **os.environ, "KEEL_SOURCE_DIR": str(self.source), "KEEL_BINARY": str(self.build / "keel"),
            "KEEL_FIXTURES": str(ROOT / "build" / "release" / "fixtures"), "OMP_NUM_THREADS": "1",
            "KEEL_PRETEND_GPU": PRETEND_GPU,
        }  # fmt: skip
        environment.pop("KEEL_NIGHTLY", None)
        command = [ROOT / ".venv" / "bin" / "python", "-m", "unittest", f"{program.removeprefix(E2E)}_test.{cases}"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", env=environment,
                                  timeout=LIMIT_S, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{program}, which does not end"
        if not re.search(r"^Ran [1-9]\d* test", done.stderr, re.MULTILINE):
            raise SystemExit(f"{program} has no case {cases}:\n{done.stderr[-2000:]}")
        return f"{program}, {cases}" if done.returncode else None


def kind_of(mutant):
    """The copy that its tests need."""
    listed = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("CMakeLists.txt"))
    with_torch = set(re.findall(r"keel_test\((\w+)\s+TORCH", listed))
    programs = {way_of(program)[0] for program, _ in mutant.tests}
    return CopyWithTorch if programs & with_torch or any(p.startswith(E2E) for p in programs) else Copy


def page(results, facts):
    lines = [
        "# Mutants",
        "",
        "Each takes one rule out of the checkpoint subsystem, or one entry out of the training state; at least one test must see it.",
        "`tests/mutants/run.py` builds a copy of the source with the mutant and runs the tests named in `tests/mutants/catalogue.py`, the",
        "likeliest first: for a rule the unit tests, built without torch; for the training state the end-to-end tests with the whole program.",
        "`tools/test.sh --nightly` runs all of it; every ordinary run checks that the mutants still fit the source.",
        "",
        f"The last whole run: {facts}.",
        "",
        "| mutant | the rule that it removes | seen by |",
        "|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.rule} | {seen or '**nothing**'} |" for m, seen in results]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only that the mutants fit the source")
    parser.add_argument("--suite", action="store_true", help="--check, or everything when KEEL_NIGHTLY is set")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", action="append", help="a mutant; may be given again")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many mutants at a time")
    parser.add_argument("--markdown", type=pathlib.Path, help="page to write, of a run of all")
    args = parser.parse_args()
    args.check |= args.suite and not os.environ.get("KEEL_NIGHTLY")
    if args.list:
        for mutant in catalogue.MUTANTS:
            print(f"{mutant.name:32} {mutant.rule}")
        return 0
    problems = check(ROOT)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems or args.check:
        print(f"{len(catalogue.MUTANTS)} mutants, {len(problems)} do not fit")
        return 1 if problems else 0

    chosen = [m for m in catalogue.MUTANTS if not args.only or m.name in args.only]
    if unknown := set(args.only or []) - {m.name for m in chosen}:
        parser.error(f"no mutant {', '.join(sorted(unknown))}")
    begin = time.monotonic()
    results = []
    for kind, folder in ((Copy, args.folder), (CopyWithTorch, args.folder.with_name(args.folder.name + "-torch"))):
        if mutants := [m for m in chosen if kind_of(m) is kind]:
            results += run(kind, folder, args.jobs, mutants)
    survived = [mutant.name for mutant, seen in results if not seen]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    facts = (f"{time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit}: {len(results) - len(survived)} of {len(results)} seen, "
             f"{(time.monotonic() - begin) / 60:.0f} minutes on {os.cpu_count()} cores")  # fmt: skip
    print(facts)
    if args.markdown and not args.only:
        args.markdown.write_text(page(results, facts), encoding="utf-8")
    return 1 if survived else 0


def run(kind, folder, jobs, mutants):
    """[(mutant, how it was seen, or None)], in the order of `mutants`."""
    begin = time.monotonic()
    copies = [kind(folder / str(number)) for number in range(min(jobs, len(mutants)))]
    free = queue.SimpleQueue()
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    for copy in copies:  # one after the other: what the first compiles is in the cache then
        copy.refresh()
        if error := copy.make({program for program, _ in tests}, jobs):
            raise SystemExit(f"the source does not build:\n{error}")
        free.put(copy)

    def in_some_copy(work, item):
        copy = free.get()
        try:
            return work(copy, item)
        finally:
            free.put(copy)

    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        try:
            for failure in pool.map(lambda test: in_some_copy(lambda copy, t: copy.test(*t), test), tests):
                if failure:
                    raise SystemExit(f"without any mutant: {failure} fails")
            print(f"{len(tests)} test runs pass without a mutant, after {time.monotonic() - begin:.0f} s", flush=True)
            return list(pool.map(lambda mutant: (mutant, in_some_copy(seen_by, mutant)), mutants))
        except SystemExit:
            pool.shutdown(cancel_futures=True)
            raise


def seen_by(copy, mutant):
    """The test that fails with it, or None."""
    path = copy.source / mutant.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    started, seen = time.monotonic(), None
    try:
        for program, cases in mutant.tests:
            if error := copy.make({program}, 1):
                raise SystemExit(f"{mutant.name} does not compile:\n{error}")
            seen = copy.test(program, cases)
            if seen:
                break
    finally:
        path.write_text(text, encoding="utf-8")
    print(f"{mutant.name:32} {seen or 'SURVIVED'}  ({time.monotonic() - started:.0f} s)", flush=True)
    return seen


if __name__ == "__main__":
    sys.exit(main())
