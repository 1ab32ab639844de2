"""find_package(Keel COMPONENTS checkpoint) by a program outside of the tree, against an installed prefix: the example builds with the
installed headers alone, and killed at random steps and started again it ends like one that was not."""

import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from library_support import LIMIT_S, MEMORY, ckpt

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["KEEL_BUILD"])
STEPS = 40

PROBE = """
cmake_minimum_required(VERSION 3.16)
project(probe CXX)
find_package(Keel {wanted})
message(STATUS "found ${{Keel_FOUND}} ${{Keel_VERSION}}")
"""


def run(*command, check=True, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=4 * LIMIT_S, check=False, **options)
    if check and done.returncode:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


class Outside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=MEMORY)
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        first = cls.folder / "installed"
        run("cmake", "--install", BUILD, "--component", "library", "--prefix", first)
        cls.prefix = cls.folder / "moved"  # it may lie anywhere
        first.rename(cls.prefix)
        cls.source = cls.folder / "source"
        shutil.copytree(ROOT / "examples/checkpoint_loop", cls.source)

    def test_versions_and_components_are_checked(self):
        probe = self.folder / "probe"
        probe.mkdir()
        for wanted, words in (("0.1 REQUIRED COMPONENTS checkpoint", "found 1 0.1"), ("0.1 COMPONENTS trainer", "no component 'trainer'"),
                              ("7.0 REQUIRED", "7.0")):  # fmt: skip
            (probe / "CMakeLists.txt").write_text(PROBE.format(wanted=wanted))
            done = run("cmake", "-S", probe, "-B", probe / "build", "--fresh", f"-DCMAKE_PREFIX_PATH={self.prefix}", check=False)
            self.assertIn(words, done.stdout + done.stderr)

    def test_the_library_shows_what_its_headers_say_and_no_more(self):
        library = next((self.prefix / "lib").glob("**/libkeel_checkpoint.so"))
        symbols = run("nm", "-DC", "--defined-only", library).stdout
        self.assertIn("keel::library::StateCheckpointer::SaveAsync", symbols)
        self.assertNotRegex(symbols, r"keel::checkpoint::Saver::|fmt::v|spdlog::")
        headers = {str(path.relative_to(self.prefix / "include")) for path in self.prefix.glob("include/**/*.h")}
        for header in headers:
            for included in re.findall(r'#include [<"]([^>"]+)[>"]', (self.prefix / "include" / header).read_text()):
                self.assertTrue(included in headers or "/" not in included or included.startswith("ATen/"), f"{header} includes {included}")

    def test_a_loop_of_libtorch_that_is_killed_ends_like_one_that_is_not(self):
        import torch

        wheel = pathlib.Path(torch.__file__).parent
        build = self.folder / "build"
        run("cmake", "-S", self.source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DTORCH_WHEEL={wheel}",
            "-DCMAKE_CXX_FLAGS=-Wall -Wextra")  # fmt: skip
        built = run("cmake", "--build", build)
        self.assertNotIn("warning", built.stdout)
        loop = build / "checkpoint_loop"
        run(loop, self.folder / "straight", STEPS, self.folder / "straight.bin")
        seed = random.randrange(2**32)
        chance = random.Random(seed)
        starts = []
        for _ in range(3):
            process = subprocess.Popen([loop, self.folder / "killed", str(STEPS), self.folder / "killed.bin"], stdout=subprocess.PIPE, text=True)
            starts.append(int(process.stdout.readline().rsplit(" ", 1)[1]))
            until = starts[-1] + chance.randint(1, 12)
            for line in process.stdout:
                if line == f"step {until}\n":
                    break
            time.sleep(chance.uniform(0, 0.01))
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        done = run(loop, self.folder / "killed", STEPS, self.folder / "killed.bin")
        self.assertIn(f"step {STEPS}\n", done.stdout)
        self.assertGreater(int(done.stdout.split("\n")[0].rsplit(" ", 1)[1]), 0, f"seed {seed}: it began anew")
        self.assertEqual((self.folder / "straight.bin").read_bytes(), (self.folder / "killed.bin").read_bytes(), f"seed {seed}")
        self.assertEqual(ckpt("verify", self.folder / "killed")[0], 0)
        code, said = ckpt("diff", self.folder / f"straight/global_step_{STEPS}", self.folder / f"killed/global_step_{STEPS}")
        self.assertEqual(code, 0, said)


if __name__ == "__main__":
    unittest.main()
