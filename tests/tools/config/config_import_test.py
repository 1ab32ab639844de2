"""`keel config import-verl` and `import-trl` as a program: output, exit codes, what a foreign file gets from the other commands."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "e2e"))
import harness  # noqa: E402

RECORDED = pathlib.Path(__file__).parents[2] / "trainer" / "foreign"
INVALID = 78
SCRIPT = """python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo data.train_files=$HOME/a.parquet \\
    actor_rollout_ref.model.path={model} actor_rollout_ref.model.mtp.enable={heads} \\
    trainer.n_gpus_per_node=2 trainer.nnodes=1 "$@"
"""


class ConfigImport(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-import-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def keel(self, *arguments):
        return subprocess.run(
            [harness.KEEL, *map(str, arguments)],
            capture_output=True, text=True, timeout=harness.LIMIT_S, check=False,
            env={**harness.environment(), "HOME": "/home/u"}, cwd=self.folder,
        )  # fmt: skip

    def test_the_file_is_one_that_validate_takes(self):
        (self.folder / "run.sh").write_text(SCRIPT.format(model="m", heads="False"))
        done = self.keel("config", "import-verl", "run.sh", "--out", "run.yaml")
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("run.sh: 6 of 6 keys are verl 0.9.1's: 5 taken", done.stdout)
        self.assertIn("run.yaml: valid for 2 ranks", done.stdout)
        self.assertIn("from the environment: HOME", done.stdout)
        checked = self.keel("config", "validate", "run.yaml", "--no-files", "--world", 2)
        self.assertEqual(checked.returncode, 0, checked)
        # It is written over, and no other file is, the one that was imported among them.
        self.assertEqual(self.keel("config", "import-verl", "run.sh", "--out", "run.yaml").returncode, 0)
        before = (self.folder / "run.sh").read_text()
        done = self.keel("config", "import-verl", "run.sh", "--out", "run.sh")
        self.assertEqual(done.returncode, 73, done)
        self.assertIn("--out: run.sh is there, and is none of this command's", done.stderr)
        self.assertEqual((self.folder / "run.sh").read_text(), before)
        # Without --out the YAML is the output, and nothing else is.
        printed = self.keel("config", "import-verl", "run.sh", "data.shuffle=False")
        self.assertEqual(yaml.safe_load(printed.stdout)["data"]["train_files"], ["/home/u/a.parquet"])
        self.assertIs(yaml.safe_load(printed.stdout)["data"]["shuffle"], False)
        self.assertIn("7 of 7 keys", printed.stderr)

    def test_what_is_not_taken_is_said_first_and_what_is_not_known_is_an_error(self):
        (self.folder / "run.sh").write_text(SCRIPT.format(model="$(pick)", heads="True"))
        done = self.keel("config", "import-verl", "run.sh", "--out", "run.yaml")
        self.assertEqual(done.returncode, INVALID, done)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[1], "not supported, and asked for:")
        self.assertIn("actor_rollout_ref.model.mtp.enable: true", lines[2])
        self.assertIn("$(pick), which only a shell could run", done.stdout)
        self.assertIn("# NOT TAKEN: actor_rollout_ref.model.mtp.enable: true", (self.folder / "run.yaml").read_text())

    def test_what_cannot_be_imported_is_refused(self):
        for arguments, code, said in (
            (["import-verl"], INVALID, "expected a FILE"),
            (["import-verl", "none.sh"], 66, "open none.sh: No such file or directory"),
            (["import-trl", "a.yaml"], INVALID, "--method sft, dpo or grpo"),
            (["import-trl", "a.yaml", "--method", "ppo"], 64, "ppo"),
        ):
            (self.folder / "a.yaml").write_text("beta: 1\n")
            done = self.keel("config", *arguments)
            self.assertEqual(done.returncode, code, done)
            self.assertIn(said, done.stderr)

    def test_the_table_has_every_row(self):
        for arguments in (["import-verl"], ["import-trl", "--method", "grpo"]):
            done = self.keel("config", *arguments, "--table")
            self.assertEqual(done.returncode, 0, done)
            for answer in ("taken", "renamed", "not needed here", "not supported")["trl" in arguments[0] :]:
                self.assertRegex(done.stdout, rf"(?m)^\| `[^`]+` \| {answer} \|")

    def foreign_verl_file(self):
        root = {}
        for key in (RECORDED / "verl_keys.txt").read_text().split():
            *sections, name = key.split(".")
            at = root
            for section in sections:
                at = at.setdefault(section, {})
                if not isinstance(at, dict):
                    break
            if isinstance(at, dict):
                at.setdefault(name, 1)
        return yaml.safe_dump(root)

    def test_a_whole_foreign_file_gets_a_summary(self):
        (self.folder / "verl.yaml").write_text(self.foreign_verl_file())
        names = [line.split()[1] for line in (RECORDED / "trl_keys.txt").read_text().splitlines() if line.startswith("sft")]
        (self.folder / "trl.yaml").write_text("".join(f"{name}: 1\n" for name in names))
        for command in (["train"], ["config", "print"]):
            for name, import_ in (("verl.yaml", "import-verl"), ("trl.yaml", "import-trl")):
                done = self.keel(*command, name)
                self.assertEqual(done.returncode, INVALID, done)
                self.assertLessEqual(len(done.stderr.splitlines()), 30, done.stderr)
                self.assertRegex(done.stderr, r"and \d+ more problems: \d+ of ")
                self.assertIn(f"keel config {import_} {name}", done.stderr)

    def test_ones_own_mistakes_are_all_listed(self):
        text = "trainer:\n" + "".join(f"  odd_{i}: 1\n" for i in range(20))
        (self.folder / "own.yaml").write_text(text)
        done = self.keel("config", "print", "own.yaml")
        self.assertEqual(len(re.findall("unknown key", done.stderr)), 20)


if __name__ == "__main__":
    unittest.main()
