"""docs/library.md: its Python runs as it stands, its C++ stands in the example, its arguments are those that there are. And the golden
file of docs/formats/state.md."""

import inspect
import json
import os
import pathlib
import re
import tempfile
import unittest

import numpy
import torch

import keel
from keel import tree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/library.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


class Page(unittest.TestCase):
    def test_python_runs_as_it_stands(self):
        found = blocks("python")
        self.assertGreaterEqual(len(found), 3)
        with tempfile.TemporaryDirectory() as folder:
            before = os.getcwd()
            os.chdir(folder)
            try:
                exec(compile("\n".join(found), "docs/library.md", "exec"), {})
            finally:
                os.chdir(before)

    def test_cpp_and_cmake_stand_in_the_example(self):
        lines = {line.strip() for line in (ROOT / "examples/checkpoint_loop/main.cc").read_text().splitlines()}
        (found,) = blocks("cpp")
        self.assertEqual([line for line in found.splitlines() if line.strip() not in lines], [])
        lists = (ROOT / "examples/checkpoint_loop/CMakeLists.txt").read_text()
        (found,) = blocks("cmake")
        self.assertIn(found.splitlines()[0], lists)

    def test_the_arguments_are_those_of_the_constructor(self):
        named = set()
        for row in re.findall(r"^\| (`.*?) \|", PAGE[PAGE.index("| argument |"):], re.MULTILINE):
            named |= set(re.findall(r"`(\w+)`", row))
        named |= {"keep_best", "best", "keep_every"}
        self.assertEqual(named, set(inspect.signature(keel.Checkpointer).parameters) - {"path"})

    def test_the_document_is_the_golden_one(self):
        state = {"m": {"w": torch.zeros(2), "none": torch.zeros(0, 3)}, 0: [1, (2.5, None)], "inf": float("-inf"), "b": b"\x00", "d": torch.int8,
                 "text": "a\u00fc", "yes": True}  # fmt: skip
        more = {"array": numpy.arange(2, dtype=">i2"), "scalar": numpy.float32(0.5), "complex": torch.zeros(2, dtype=torch.complex64),
                "empty": numpy.empty((0, 2), "<u4"), "on": torch.device("cpu")}  # fmt: skip
        for version, given, names in ((1, state, ["m.w"]), (2, state | more, ["m.w", "array", "complex"])):
            values, tensors = tree.encode(given)
            text = tree.to_document(values, {"k": [1]})
            golden = pathlib.Path(__file__).with_name(f"state-{version}.json").read_text()
            if version == tree.VERSION:
                self.assertEqual(text, golden)
            self.assertEqual(list(tensors), names)
            back, extra = tree.from_document(golden, "here")
            self.assertEqual(str(tree.decode(back, tensors.get)), str(given))
            self.assertEqual(extra, {"k": [1]})
        with self.assertRaisesRegex(ValueError, r"a value of the kind \$later, which this version of Keel does not know"):
            tree.decode({"a": [{"$later": 1}]}, tensors.get)
        for change, words in (({"version": 3}, "here/state.json has version 3, and this Keel reads up to 2: it was saved by a newer Keel"),
                              ({"version": "2"}, "not one of this module .its version is '2'"), ({"format": "x"}, "format is 'x'"), ({"state": None}, None)):
            document = json.dumps(json.loads(text) | change)
            if words:
                with self.assertRaisesRegex(ValueError, words):
                    tree.from_document(document, "here")
        for text in ("", "[]", "{}", '{"format": "keel-state"}'):
            with self.assertRaisesRegex(ValueError, "not one of this module"):
                tree.from_document(text, "here")


if __name__ == "__main__":
    unittest.main()
