"""The program itself: what loads libtorch, and libcurl with it, and what does not, and where it looks for it."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))
import harness  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEEL = pathlib.Path(harness.KEEL)
COMMANDS = ("bench", "ckpt", "completion", "config", "data", "doctor", "generate", "launch", "man", "score", "serve", "train")
MOST_OF_A_LAUNCHER_MB = 20


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-program-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_keel(self, *arguments, program=KEEL, **env):
        return subprocess.run(
            [program, *map(str, arguments)],
            capture_output=True, text=True, timeout=harness.LIMIT_S, check=False,
            env={**harness.environment(), **env}, cwd=self.folder,
        )  # fmt: skip

    def loads_torch(self, *arguments):
        """As the dynamic linker tells it, of the program itself and of what it starts."""
        done = self.run_keel(*arguments, LD_DEBUG="files", LD_DEBUG_OUTPUT=str(self.folder / "loaded"))
        files = list(self.folder.glob("loaded.*"))
        said = "".join(path.read_text(errors="replace") for path in files)
        for path in files:
            path.unlink()
        self.assertIn("libstdc++", said, done.stderr)
        return "libtorch" in said or "libcurl" in said

    def test_what_needs_no_torch_loads_none(self):
        (self.folder / "a.yaml").write_text("{trainer: {default_local_dir: run}}")
        (self.folder / "run").mkdir()
        asked = [["--help"], ["--version"], ["-v"], ["help"], ["help", "ckpt", "ls"], ["trian"], []]
        asked += [[command, "--help"] for command in COMMANDS]
        asked += [["train"], ["train", "--typo"], ["generate", "--modle", "x"], ["bench", "trian"]]
        asked += [["config", "schema"], ["config", "print", "a.yaml"], ["ckpt", "ls", "run"]]
        asked += [["data", "make", "addition", "--out", "a.jsonl", "--count", 3], ["launch", "--", "true"]]
        for arguments in asked:
            with self.subTest(arguments=arguments):
                self.assertFalse(self.loads_torch(*arguments))
        self.assertTrue(self.loads_torch("doctor"), "this test would not notice it")

    def test_a_launcher_is_small(self):
        done = self.run_keel("launch", "--", "sh", "-c", "grep VmRSS: /proc/$PPID/status")
        [kilobytes] = re.findall(r"VmRSS:\s+(\d+) kB", done.stdout)
        self.assertLess(int(kilobytes) / 1024, MOST_OF_A_LAUNCHER_MB, done)

    def test_the_ways_to_ask_for_help(self):
        expected = self.run_keel("--help")
        self.assertEqual(expected.returncode, 0)
        for command in COMMANDS:
            self.assertRegex(expected.stdout, rf"(?m)^  {command} ")
        for arguments in (["help"], ["-h"]):
            self.assertEqual(self.run_keel(*arguments).stdout, expected.stdout)
        self.assertEqual(self.run_keel("help", "ckpt", "ls").stdout, self.run_keel("ckpt", "ls", "--help").stdout)
        self.assertEqual(self.run_keel("help", "launch").stdout, self.run_keel("launch", "--help").stdout)
        wrong = self.run_keel("help", "trian")
        self.assertEqual(wrong.returncode, 64)
        self.assertIn("did you mean keel train?", wrong.stderr)
        self.assertRegex(self.run_keel("--version").stdout, r"^keel \d+\.\d+\.\d+\n$")
        self.assertEqual(self.run_keel("-v").stdout, self.run_keel("--version").stdout)

    def test_every_option_that_takes_a_number_takes_a_decimal_one(self):
        found = 0
        for chapter in re.split(r"(?m)^##+ keel", (ROOT / "docs" / "commands.md").read_text())[1:]:
            command = chapter.partition("\n")[0].split()
            for option, kind in re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+) (U?INT|FLOAT)\b", chapter):
                found += 1
                for wrong in ("nan",) if kind == "FLOAT" else ("010", "1" + "0" * 20):
                    with self.subTest(command=command, option=option, wrong=wrong):
                        done = self.run_keel(*command, option, wrong)
                        self.assertEqual(done.returncode, 64, done)
                        self.assertIn(f"{option}: ", done.stderr)
                        self.assertIn(wrong, done.stderr)
        self.assertGreater(found, 60, "this test would not notice it")

    def install(self, module):
        """As `cmake --install` does: bin/keel, and the module where `module` says."""
        (self.folder / "bin").mkdir()
        shutil.copy(KEEL, self.folder / "bin")
        if module is not None:
            (self.folder / module).mkdir(parents=True, exist_ok=True)
            os.symlink(KEEL.parent / "libkeel_torch.so", self.folder / module / "libkeel_torch.so")
        return self.folder / "bin" / "keel"

    def score(self, program):
        # Beside the program it knows its PyTorch; installed, it looks for one (packaging_test).
        torch = pathlib.Path(sysconfig.get_paths()["purelib"]) / "torch"
        return self.run_keel("score", "--model", "none", "--input", "i", "--output", "o", program=program, KEEL_TORCH_DIR=str(torch))

    def test_the_module_is_found_beside_it_and_where_it_is_installed(self):
        for module in ("bin", "lib/keel"):
            with self.subTest(module=module):
                done = self.score(self.install(module))
                # An error of the module's reaches the program as what it is.
                self.assertEqual(done.returncode, 66, done)
                self.assertIn("none", done.stderr)
                self.assertNotIn("libkeel_torch.so", done.stderr)
                shutil.rmtree(self.folder / "bin")

    def test_without_the_module_it_says_so(self):
        program = self.install(None)
        done = self.score(program)
        self.assertEqual(done.returncode, 69, done)
        self.assertIn(f"{self.folder}/bin/libkeel_torch.so", done.stderr)
        self.assertIn("lib/keel/libkeel_torch.so", done.stderr)
        doctor = self.run_keel("doctor", program=program)
        self.assertEqual(doctor.returncode, 0, doctor)
        self.assertRegex(doctor.stdout, "torch +.*libkeel_torch.so is missing")

    def test_without_the_program_of_the_benchmarks_it_says_so(self):
        done = self.run_keel("bench", "train", program=self.install(None))
        self.assertEqual(done.returncode, 66, done)
        self.assertRegex(done.stderr, rf"^keel: .*{self.folder}/bin/keel_bench cannot be started; .* a build tree.*\n$")

    def test_what_is_installed_has_no_benchmark(self):
        for file in (KEEL, KEEL.parent / "libkeel_torch.so"):
            self.assertIn(b"4keel5tools", file.read_bytes(), "this test would not notice it")
            self.assertNotIn(b"4keel5bench", file.read_bytes())

    def test_a_module_of_another_build_is_refused(self):
        program, ours, theirs = harness.another_build(self.folder / "bin", program=False)
        done = self.score(program)
        self.assertEqual(done.returncode, 69, done)
        self.assertIn(f"{program} and {self.folder}/bin/libkeel_torch.so are not of one build", done.stderr)
        self.assertIn(f"build id is {theirs}, the program was built with {ours}", done.stderr)
        self.assertIn("install both from one build", done.stderr)

    def test_so_is_one_of_the_page_that_is_served(self):
        program, ours, theirs = harness.another_build(self.folder / "bin", program=False, module="libkeel_watch.so")
        done = self.run_keel("watch", self.folder, "--http", "0", program=program)
        self.assertEqual(done.returncode, 69, done)
        self.assertIn(f"{program} and {self.folder}/bin/libkeel_watch.so are not of one build", done.stderr)
        self.assertIn(f"build id is {theirs}, the program was built with {ours}", done.stderr)


class Bench(unittest.TestCase):
    NAMES = sorted(path.stem.removeprefix("run_") for path in (ROOT / "bench").glob("run_*.py"))

    def bench(self, *arguments):
        return harness.keel("bench", *arguments)

    def test_it_lists_the_drivers(self):
        done = self.bench("--help")
        self.assertEqual(done.returncode, 0, done)
        self.assertEqual(re.findall(r"(?m)^  (\w+)  +[A-Z]", done.stdout.split("Subcommands:")[1]), self.NAMES)
        self.assertEqual(harness.keel("help", "bench").stdout, done.stdout)
        for arguments, said in (([], "required"), (["trian"], "did you mean keel bench train?")):
            wrong = self.bench(*arguments)
            self.assertEqual(wrong.returncode, 64, wrong)
            self.assertIn(said, wrong.stderr)

    def test_each_is_its_driver_and_names_pages_that_exist(self):
        pages = re.findall(r"docs/[\w/.-]+", self.bench("--help").stdout)
        for name in self.NAMES:
            done = self.bench(name, "--help")
            self.assertEqual(done.returncode, 0, done)
            self.assertTrue(done.stdout.startswith(f"usage: keel bench {name} "), done.stdout)
            pages += re.findall(r"docs/[\w/.-]+", done.stdout)
        self.assertGreater(len(pages), 3)
        self.assertEqual([page for page in pages if not (ROOT / page).exists()], [])

    def test_a_worker_that_there_is_not(self):
        program = KEEL.with_name("keel_bench")
        for arguments in (["worker", "none"], ["worker", "index", "none"]):
            done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=harness.LIMIT_S, check=False)
            self.assertEqual(done.returncode, 64, done)
            self.assertIn("none", done.stderr)



class Crash(unittest.TestCase):
    def test_what_the_module_throws_is_reported_to_the_launcher(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder, "error.json")
            done = subprocess.run(
                [KEEL, "train", "missing.yaml"], capture_output=True, text=True, timeout=harness.LIMIT_S, check=False,
                env={**harness.environment(), "TORCHELASTIC_ERROR_FILE": str(report)},
            )  # fmt: skip
            self.assertEqual(done.returncode, 66, done)
            self.assertIn("missing.yaml", report.read_text())


if __name__ == "__main__":
    unittest.main()
