"""Random tokenizer.json files: every component that Keel reads, in any combination, over a small random vocabulary.

    make_tokenizer_cases.py SEED

prints the file of a seed. tokenizer_cases_test.py compares ids, offsets and texts with Hugging Face's `tokenizers`.
"""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2e"))
import byte_level

REGEXES = [r"\s+", r"\p{L}+", r"\p{N}{1,3}", r"[^\s\p{L}]+", r"'s|'t| ?\w+", r"(?=[A-Z])", r"[aeiou]", r"$", r"l+|\n", r"(?<=a)b", r"\d", r" ?[^ ]+", r"(?i:ab)|x"]
STRINGS = [" ", "a", "▁", "ab", "\n", "é", "  ", "b "]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
CHARACTERS = "abcdeABlo  .,'-12\n\té▁ñß中日😀ﬁ²İΣ\u0301\u00a0٣"
PIECES = ["the", "ab", " a", "  ", "\n\n", "ll", "Hello", "<s>", "<x>", "[A]", "<|im|>", "mark", "MARK", "e\u0301", "12345", "don't", "▁▁", "é", "中文", "<0x41>", "Ġ", "a<s>b", " <x> ", "</s>", "ﬁ", "\t", "\r\n"]


class Made:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.bytes = self.chance(0.6)

    def chance(self, of):
        return self.random.random() < of

    def pick(self, choices):
        return self.random.choice(choices)

    def flag(self):
        return self.chance(0.5)

    def pattern(self):
        return {"Regex": self.pick(REGEXES)} if self.flag() else {"String": self.pick(STRINGS)}

    def normalizer(self, nested=True):
        kinds = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "Prepend", "Replace", "Replace"] + ["Sequence"] * 3 * nested
        kind = self.pick(kinds)
        return {"type": kind, **{
            "Strip": lambda: {"strip_left": self.flag(), "strip_right": self.flag()}, "Prepend": lambda: {"prepend": self.pick(["▁", "a ", "<x>", "é"])},
            "Replace": lambda: {"pattern": self.pattern(), "content": self.pick(["", "▁", " ", "b", "aé", "$1"])},
            "Sequence": lambda: {"normalizers": [self.normalizer(False) for _ in range(self.random.randrange(4))]}}.get(kind, dict)()}

    def pre_tokenizer(self, nested=True):
        kind = self.pick(["Split", "Split", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Whitespace", "WhitespaceSplit"] + ["Sequence"] * 6 * nested)
        return {"type": kind, **{
            "Split": lambda: {"pattern": self.pattern(), "behavior": self.pick(BEHAVIORS), "invert": self.chance(0.3)},
            "ByteLevel": self.byte_level, "Digits": lambda: {"individual_digits": self.flag()}, "Metaspace": self.metaspace,
            "Punctuation": lambda: {"behavior": self.pick(BEHAVIORS)},
            "Sequence": lambda: {"pretokenizers": [self.pre_tokenizer(False) for _ in range(self.random.randrange(4))]}}.get(kind, dict)()}

    def byte_level(self):
        return {"add_prefix_space": self.flag(), "trim_offsets": self.flag(), "use_regex": self.flag()}

    def metaspace(self):
        return {"replacement": self.pick(["▁", "▁", "_"]), "prepend_scheme": self.pick(["always", "first", "never"]), "split": self.flag()}

    def decoder(self, nested=True):
        kind = self.pick(["ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"] + ["Sequence"] * 3 * nested)
        return {"type": kind, **{
            "ByteLevel": self.byte_level, "Replace": lambda: {"pattern": self.pattern(), "content": self.pick(["", " ", "x", "▁"])},
            "Strip": lambda: {"content": self.pick([" ", "▁", "a"]), "start": self.random.randrange(3), "stop": self.random.randrange(3)}, "Metaspace": self.metaspace,
            "Sequence": lambda: {"decoders": [self.decoder(False) for _ in range(self.random.randrange(1, 5))]}}.get(kind, dict)()}

    def post_processor(self, ids, nested=True):
        kind = self.pick(["ByteLevel", "TemplateProcessing"] + ["Sequence"] * nested)
        if kind == "ByteLevel":
            return {"type": kind, **self.byte_level()}
        if kind == "Sequence":
            return {"type": kind, "processors": [self.post_processor(ids, False) for _ in range(self.random.randrange(1, 3))]}
        names = [self.pick(sorted(ids)) for _ in range(self.random.randrange(4))]
        parts = [{"SpecialToken": {"id": name, "type_id": 0}} for name in names]
        parts.insert(self.random.randrange(len(parts) + 1), {"Sequence": {"id": "A", "type_id": 0}})
        pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
        return {"type": kind, "single": parts, "pair": pair, "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in names}}

    def vocabulary(self):
        """The tokens in the order of their ids, and the merges."""
        spelled = byte_level.characters()
        letters = sorted(set(spelled if self.bytes else CHARACTERS))
        if self.chance(0.3):
            letters = [one for one in letters if self.chance(0.9)]
        tokens, merges = list(letters), []
        if self.chance(0.4) and not self.bytes:
            tokens += [f"<0x{byte:02X}>" for byte in range(256) if self.chance(1.0 if self.bytes else 0.98)]
        likely = [one for one in letters if one in set("abcdeloĠ 12▁Ċ.'")] or letters
        for _ in range(self.random.randrange(60)):
            known = [*likely, *(a + b for a, b in merges)]
            pair = [self.pick(known), self.pick(known)]
            if pair not in merges and len("".join(pair)) < 9:
                merges.append(pair)
                if "".join(pair) not in tokens:
                    tokens.append("".join(pair))
        tokens += [one for one in ("<unk>", "<s>", "</s>") if self.chance(0.6)]
        if self.chance(0.2):
            self.random.shuffle(tokens)
        return tokens, merges

    def added(self, tokens):
        texts = self.random.sample(["<s>", "</s>", "<x>", "[A]", "<|im|>", "mark", "MARK", "the", "  ", "\n", "é", "<unk>", " a", "ab", "İ", "'"], self.random.randrange(6))
        added, following = [], len(tokens)
        for text in texts:
            id = tokens.index(text) if text in tokens else following
            following += id == following
            added.append({"id": id, "content": text, **{key: self.chance(0.3) for key in ("single_word", "lstrip", "rstrip")}, "normalized": self.flag(), "special": self.flag()})
        return sorted(added, key=lambda one: one["id"])

    def file(self):
        tokens, merges = self.vocabulary()
        added = self.added(tokens)
        ids = {**{text: id for id, text in enumerate(tokens)}, **{one["content"]: one["id"] for one in added}}
        some = lambda of, make: make() if self.chance(of) else None
        pre_tokenizer = self.pre_tokenizer() if self.chance(0.8) else None
        if self.bytes and self.chance(0.7):
            last = {"type": "ByteLevel", **self.byte_level()}
            pre_tokenizer = {"type": "Sequence", "pretokenizers": [pre_tokenizer, last]} if pre_tokenizer and self.flag() else last
        return {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": some(0.5, self.normalizer),
            "pre_tokenizer": pre_tokenizer, "post_processor": some(0.5, lambda: self.post_processor(ids)), "decoder": some(0.85, self.decoder),
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>" if "<unk>" in tokens and self.chance(0.7) else None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": self.flag(), "byte_fallback": self.chance(0.3), "ignore_merges": self.chance(0.3),
                      "vocab": {text: id for id, text in enumerate(tokens)}, "merges": merges}}

    def text(self):
        pieces = [self.pick(PIECES) if self.chance(0.4) else self.pick(CHARACTERS) for _ in range(self.random.randrange(1, 25))]
        return "".join(pieces)


def case(seed, texts=12):
    made = Made(seed)
    return made.file(), ["", " ", *(made.text() for _ in range(texts))]


if __name__ == "__main__":
    json.dump(case(int(sys.argv[1]))[0], sys.stdout, ensure_ascii=False, indent=1)
