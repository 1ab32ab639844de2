"""The commands of README's "Using it", run one after another as they stand in a folder that looks like a
checkout, and those of `keel --help`, which must be among them. Beside what they say they write, nothing
appears: above all nothing outside the folder. docs_commands_test.py runs those of all other pages and helps.
"""

import re
import unittest

import yaml

import harness
from checkout import ROOT, Checkout, examples, helps, without_comment

SMALL = (
    "{model_type: llama, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, max_position_embeddings: 128, tie_word_embeddings: true}"
)
# What the commands leave in the checkout.
MADE = {"runs", "exported", "train.jsonl", "out.jsonl", "scores.jsonl", "eval", "imported.yaml"}


def readme_commands():
    section = (ROOT / "README.md").read_text().split("\n## Using it\n")[1]
    block = section.split("```")[1]
    return [without_comment(line) for line in block.strip().splitlines()]


def normal(command):
    return re.sub(r"\s+", " ", command)


class Readme(Checkout):
    # quickstart takes all its steps, since a command names the checkpoint of the last.
    short = {
        "pretrain_text.yaml": ["trainer.total_training_steps=3", "data.max_length=32"],
        "quickstart.yaml": [f"actor_rollout_ref.model.config={SMALL}", "data.max_length=16", "data.train_batch_size=4"],
        "grpo.yaml": ["trainer.total_training_steps=2", "actor_rollout_ref.rollout.n=4"],
    }

    def test_commands_do_what_they_say_and_nothing_elsewhere(self):
        commands = readme_commands()
        self.assertGreaterEqual(len(commands), 10)
        self.assertFalse([c for c in commands if re.search(r"/path/|\b[A-Z]{4,}\b", c)], "a command has a gap to fill")
        self.run_here("keel data make addition --out test.jsonl --count 4")
        before = {path.name for path in self.checkout.iterdir()}
        for command in commands:
            with self.subTest(command):
                if self.serves(command):
                    self.serve_a_moment(command)
                    continue
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

    def test_what_the_helps_name_is_there(self):
        found = helps()
        self.assertGreater(len(found), 20)
        named = 0
        for command, text in found.items():
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
