"""The commands of README's "Using it", run one after another as they stand in a folder that looks like a
checkout, and those of `keel --help`, which must be among them. Beside what they say they write, nothing
appears: above all nothing outside the folder.

What makes them short stands behind them: a `keel` first in the PATH adds settings to those that train.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = (
    "{model_type: llama, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, max_position_embeddings: 128, tie_word_embeddings: true}"
)
# By configuration. quickstart takes all its steps, since a command names the checkpoint of the last.
SHORT = {
    "pretrain_text.yaml": ["trainer.total_training_steps=3", "data.max_length=32"],
    "quickstart.yaml": [f"actor_rollout_ref.model.config={SMALL}", "data.max_length=16", "data.train_batch_size=4"],
    "grpo.yaml": ["trainer.total_training_steps=2", "actor_rollout_ref.rollout.n=4"],
}
# What the commands leave in the checkout.
MADE = {"runs", "exported", "train.jsonl", "out.jsonl", "scores.jsonl"}
WRAPPER = """#!{python}
import os, sys
short = {short!r}
more = []
if "train" in sys.argv:
    for argument in sys.argv:
        more += short.get(os.path.basename(argument), [])
os.execv({keel!r}, [{keel!r}, *sys.argv[1:], *more])
"""


def readme_commands():
    section = (ROOT / "README.md").read_text().split("\n## Using it\n")[1]
    block = section.split("```")[1]
    return [re.sub(r"\s+#.*", "", line).strip() for line in block.strip().splitlines()]


def examples(help_text):
    return [line.strip() for line in help_text.split("Examples:\n")[1].splitlines() if line.strip()]


def normal(command):
    return re.sub(r"\s+", " ", command)


class Readme(harness.Job):
    def setUp(self):
        super().setUp()
        # By itself in a folder, so that whatever lands outside is seen.
        self.outside = pathlib.Path(tempfile.mkdtemp(prefix="keel-readme-"))
        self.addCleanup(shutil.rmtree, self.outside, ignore_errors=True)
        self.checkout = self.outside / "keel"
        self.checkout.mkdir()
        shutil.copytree(ROOT / "configs", self.checkout / "configs")
        build = self.checkout / "build" / "release"
        build.mkdir(parents=True)
        (build / "keel").symlink_to(harness.KEEL)
        # The files of a user.
        (self.checkout / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 400)
        (self.checkout / "prompts.jsonl").write_text('{"text": "The quick"}\n')
        (self.checkout / "rows.jsonl").write_text('{"text": "The quick brown fox"}\n')
        run = harness.merged(harness.base_config("text.txt", "runs/mine"), {
            "trainer.total_training_steps": 2, "trainer.save_freq": 2, "data.train_batch_size": 8,
        })  # fmt: skip
        (self.checkout / "run.yaml").write_text(json.dumps(run))
        commands = self.folder / "bin"
        commands.mkdir()
        wrapper = commands / "keel"
        wrapper.write_text(WRAPPER.format(python=sys.executable, short=SHORT, keel=str(harness.KEEL)))
        wrapper.chmod(0o755)
        venv = pathlib.Path(sys.executable).parent
        self.environment = {**harness.environment(), "PATH": f"{commands}:{venv}:/usr/bin:/bin"}

    def run_here(self, command):
        done = subprocess.run(
            command, shell=True, executable="/bin/bash", cwd=self.checkout, env=self.environment,
            capture_output=True, text=True, timeout=4 * harness.LIMIT_S, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout + done.stderr

    def test_commands_do_what_they_say_and_nothing_elsewhere(self):
        commands = readme_commands()
        self.assertGreaterEqual(len(commands), 10)
        self.assertFalse([c for c in commands if re.search(r"/path/|\b[A-Z]{4,}\b", c)], "a command has a gap to fill")
        before = {path.name for path in self.checkout.iterdir()}
        for command in commands:
            with self.subTest(command):
                output = self.run_here(command)
                if "ckpt ls" in command:
                    self.assertIn("global_step_", output)
        made = {path.name for path in self.checkout.iterdir()} - before
        self.assertEqual(made, MADE)
        self.assertEqual({path.name for path in (self.checkout / "runs").iterdir()},
                         {"text", "quickstart", "grpo", "mine"})  # fmt: skip
        self.assertEqual([path.name for path in self.outside.iterdir()], ["keel"])
        self.assertEqual({path.name for path in (self.checkout / "configs").iterdir()},
                         {path.name for path in (ROOT / "configs").iterdir()})  # fmt: skip
        missing = {normal(c) for c in examples(harness.keel("--help").stdout)} - {normal(c) for c in commands}
        self.assertFalse(missing, "of keel --help, not among README's")

    def helps(self):
        """{command: text} of every command that has a help."""
        found, open_ = {}, [()]
        while open_:
            path = open_.pop()
            done = harness.keel(*path, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            found[" ".join(("keel", *path))] = done.stdout
            listed = done.stdout.split("Subcommands:\n")
            if len(listed) > 1:
                names = re.findall(r"^  (\w[\w-]*)", listed[1].split("\n\n")[0], re.MULTILINE)
                open_ += [(*path, name) for name in names]
        return found

    def test_what_the_helps_name_is_there(self):
        helps = self.helps()
        self.assertGreater(len(helps), 20)
        named = 0
        for command, text in helps.items():
            for name in re.findall(r"\b(?:configs|docs|tools)/[\w./-]*\w", text):
                named += 1
                self.assertTrue((ROOT / name).exists(), f"{command} --help names {name}")
        self.assertGreater(named, 5)

    def test_the_shipped_configurations_stay_where_they_are_started(self):
        for path in (ROOT / "configs").glob("*.yaml"):
            folder = yaml.safe_load(path.read_text())["trainer"]["default_local_dir"]
            self.assertRegex(folder, r"^runs/\w+$", path.name)


if __name__ == "__main__":
    unittest.main()
