"""Pages that a newcomer walks through are walked through: in a folder with nothing in it but what a checkout has, each command of
their `console` blocks runs as it stands, with what those before it have left, ends with the code and says the lines that the page shows
(walked_page.py); then those that stand in its text. docs_commands_test.py runs the command lines of all other pages.
"""

import functools
import os
import shutil
import unittest

import yaml

import docs_commands_test
import walked_page
from checkout import ROOT, Checkout, helps

WALKED = {path.stem for path in (ROOT / "docs").glob("*.md") if "```console" in path.read_text()}
EXPECTED = {"quickstart", "sft", "dpo", "grpo", "offload", "resume-and-reshard", "operating", "errors", "from-megatron"}


class DocsWalks(Checkout):
    def setUp(self):
        super().setUp()
        for path in self.checkout.iterdir():
            if path.name not in ("configs", "build"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in ("docs", "tools"):
            os.symlink(ROOT / name, self.checkout / name)

    def walk(self, page):
        for step in walked_page.steps((ROOT / "docs" / f"{page}.md").read_text()):
            if isinstance(step, walked_page.File):
                path = self.checkout / step.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(step.text)
                self.look_at(path, page)
                continue
            with self.subTest(step.line, page=page):
                said = self.run_here(f"exec 2>&1; {step.line}", step.exit_code)
                self.assertIsNone(walked_page.missing(step.shown, said), f"{page}: {step.line} says\n{said}")

        self.run_what_the_text_names(page)

    def run_what_the_text_names(self, page):
        text = walked_page.BLOCK.sub("", (ROOT / "docs" / f"{page}.md").read_text())
        for command in dict.fromkeys(docs_commands_test.commands_of(text)):
            with self.subTest(command, page=page):
                if docs_commands_test.is_name(command):
                    self.assertIn(docs_commands_test.name_of(command), self.known())
                else:
                    self.run_here(command)

    @staticmethod
    @functools.cache
    def known():
        return helps().keys()

    def look_at(self, path, page):
        """That a file which no command of the page reads is one of its kind."""
        with self.subTest(path.name, page=page):
            if path.suffix == ".yaml":
                self.assertIsInstance(yaml.safe_load(path.read_text()), dict)
            elif path.suffix in (".sh", ".sbatch"):
                self.run_here(f"bash -n {path.name}")
            elif path.suffix == ".py":
                compile(path.read_text(), path.name, "exec")

    def test_the_pages_for_newcomers_are_among_them(self):
        self.assertEqual(EXPECTED - WALKED, set())


def test_of(page):
    return lambda self: self.walk(page)


for name in sorted(WALKED):
    setattr(DocsWalks, f"test_{name.replace('-', '_')}", test_of(name))


class WalkedPage(unittest.TestCase):
    """What reads the pages notices what is wrong in them."""

    def test_files_commands_codes_and_output_are_told_apart(self):
        page = '# A\n```yaml title="a.yaml"\nx: 1\n```\n```console\n$ keel a \\\n    b   # exit code 78\nsaid 5\n$ keel c\n```\n```\n$ no\n```\n'
        self.assertEqual(walked_page.steps(page), [walked_page.File("a.yaml", "x: 1\n"),
                                                   walked_page.Command("keel a b", 78, ["said 5"]),
                                                   walked_page.Command("keel c")])  # fmt: skip

    def test_output_must_be_what_is_shown(self):
        said = "one 1\ntwo 2.5e-03\nthree\n"
        for shown, right in ((["one 7", "...", "three"], True), (["one 7", "three"], False), (["one 1"], False), (["one 1", "..."], True),
                             (["...", "two 9", "three"], True), (["...", "four"], False), ([], True), (["o... 3", "..."], True)):  # fmt: skip
            self.assertEqual(walked_page.missing(shown, said) is None, right, shown)


if __name__ == "__main__":
    unittest.main()
