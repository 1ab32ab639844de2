"""`keel config schema` against a validator that is not ours: what Keel takes passes it, what Keel refuses by kind or range does not."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import yaml

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import harness  # noqa: E402


class Loader(yaml.SafeLoader):
    """Takes 1e-08 for a number, as YAML 1.2 and Keel do and YAML 1.1 does not."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+$"), list("-+.0123456789"))


def entries(section, path=""):
    """Path and schema of each option below a section."""
    for name, entry in section["properties"].items():
        if "properties" in entry:
            yield from entries(entry, f"{path}{name}.")
        else:
            yield path + name, entry


class ConfigSchema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-schema-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.schema = json.loads(cls.keel("config", "schema").stdout)
        jsonschema.Draft7Validator.check_schema(cls.schema)
        cls.validator = jsonschema.Draft7Validator(cls.schema)

    @classmethod
    def keel(cls, *arguments):
        return subprocess.run(
            [harness.KEEL, *map(str, arguments)],
            capture_output=True, text=True, timeout=harness.LIMIT_S, check=False, env=harness.environment(), cwd=cls.folder,
        )  # fmt: skip

    def faults(self, text):
        return [f"{error.json_path}: {error.message}" for error in self.validator.iter_errors(yaml.load(text, Loader))]

    def test_each_default_passes(self):
        for path, entry in entries(self.schema):
            with self.subTest(path):
                jsonschema.Draft7Validator(entry).validate(entry["default"])

    def test_a_resolved_configuration_passes(self):
        for file in sorted((ROOT / "configs").glob("*.yaml")):
            with self.subTest(file.name):
                printed = self.keel("config", "print", file)
                self.assertEqual(printed.returncode, 0, printed)
                self.assertEqual(self.faults(file.read_text()), [])
                self.assertEqual(self.faults(printed.stdout), [])
                # To readers of YAML 1.1 it says the same.
                self.assertEqual(yaml.safe_load(printed.stdout), yaml.load(printed.stdout, Loader))

    def test_both_take_the_same(self):
        for text, taken in (
            ("data: {packing: null}", True),
            ("data: {packing: first_fit}", False),
            ("data: {apply_chat_template_kwargs: null}", True),
            ("data: {train_files: null}", False),
            ("actor_rollout_ref: {rollout: {dtype: null}}", True),
            ("trainer: {total_training_steps: 2147483647, seed: 9223372036854775807}", True),
            ("trainer: {total_training_steps: 2147483648}", False),
            ("data: {train_batch_size: 3000000000}", False),
            ("actor_rollout_ref: {actor: {optim: {lr: 1e39}}}", False),
            ("actor_rollout_ref: {actor: {optim: {betas: [0.9, 1e39]}}}", False),
            ("actor_rollout_ref: {actor: {optim: {betas: [-0.1, 0.9]}}}", False),
            ("trainer: {profile: {steps: [0]}}", False),
        ):
            with self.subTest(text):
                (self.folder / "one.yaml").write_text(text + "\n")
                printed = self.keel("config", "print", "one.yaml")
                self.assertEqual(printed.returncode == 0, taken, printed)
                self.assertEqual(not self.faults(text), taken, self.faults(text))


if __name__ == "__main__":
    unittest.main()
