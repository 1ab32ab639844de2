"""Random tokenizer.json files, read by Hugging Face's `tokenizers` and by Keel: the same ids, offsets and texts, or Keel refuses by name.

    tokenizer_cases_test.py PROGRAM [FIRST COUNT]

PROGRAM is tests/model/tokenizer/encode_tool; FIRST and COUNT are seeds of make_tokenizer_cases.py. By default a few that are always
the same; with KEEL_NIGHTLY=1 as many as KEEL_SEEDS says, others every day.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from make_tokenizer_cases import case
from tokenizers import Tokenizer

SEEDS = 150
SEEDS_A_NIGHT = 5000
DIFFERED_ONCE = (2078800922, 2078801524, 2078703936, 2079002040)
SECONDS_A_DAY = 86400


def expected(tokenizer, text):
    """What encode_tool says of a text; None where `tokenizers` panics."""
    try:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        at = [0]
        for character in text:
            at.append(at[-1] + len(character.encode()))
        return {"ids": encoding.ids, "offsets": [[at[b], at[e]] for b, e in encoding.offsets], "special": tokenizer.encode(text).ids,
                "text": tokenizer.decode(encoding.ids, skip_special_tokens=False), "plain": tokenizer.decode(encoding.ids)}
    except BaseException as error:  # pyo3's PanicException is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return None


def truth(file, text, want):
    """The same with offsets that are right where characters were left out, which the vocabulary lacks: `tokenizers` counts on from the last token. They
    are those of the file with a token for what is unknown; None where that gives other ids, or spaces are cut off them, too."""
    ids = {**file["model"]["vocab"]}
    unknown = len(ids)
    ids["<?>"] = unknown
    added = [{**one, "id": one["id"] + (one["id"] >= unknown)} for one in file["added_tokens"]]
    model = {**file["model"], "vocab": ids, "unk_token": "<?>", "fuse_unk": False}
    # A decoder may panic at a token that it does not expect.
    alone = {**file, "model": model, "added_tokens": added, "post_processor": None, "decoder": None}
    whole = expected(Tokenizer.from_str(json.dumps(alone)), text)
    if whole is None or unknown not in whole["ids"]:
        return want
    kept = [(id - (id > unknown), place) for id, place in zip(whole["ids"], whole["offsets"], strict=True) if id != unknown]
    trimmed = "ByteLevel" in json.dumps(file["post_processor"])
    same = [id for id, _ in kept] == want["ids"] and not model["byte_fallback"] and not trimmed
    return {**want, "offsets": [place for _, place in kept]} if same else None


def said_twice(file, want):
    """Whether an expression that matched nothing may have put text before a first character: `tokenizers` spells it byte by byte, and then has it once
    more as it was."""
    nothing = any(begin == end for begin, end in want["offsets"])
    return '"Regex"' in json.dumps(file["normalizer"]) and "ByteLevel" in json.dumps(file["pre_tokenizer"]) and nothing


def ambiguous(oracle, file):
    """Whether the normalizer makes two added tokens the same: then `tokenizers` finds either, another one each time that it reads the file."""
    contents = [one["content"] for one in file["added_tokens"] if one["normalized"]]
    if oracle.normalizer is not None:
        contents = [oracle.normalizer.normalize_str(content) for content in contents]
    return len(set(contents)) < len(contents)


def answers(program, folder, texts):
    """Keel's answers, or why it refuses the file."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    done = subprocess.run([program, folder], input=lines, capture_output=True, text=True, check=False)
    if done.returncode == 65:
        return done.stderr.strip()
    if done.returncode != 0:
        sys.exit(f"{program} ended with {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def main():
    program = sys.argv[1]
    first, count, more = 0, SEEDS, DIFFERED_ONCE
    if len(sys.argv) > 3:
        first, count = int(sys.argv[2]), int(sys.argv[3])
        more = ()
    elif os.environ.get("KEEL_NIGHTLY") == "1":
        first, count = int(time.time()) // SECONDS_A_DAY * 100_000, int(os.environ.get("KEEL_SEEDS", SEEDS_A_NIGHT))
    wrong, compared, panics, refusals = 0, 0, 0, collections.Counter()
    for seed in (*more, *range(first, first + count)):
        file, texts = case(seed)
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(file))
            got = answers(program, folder, texts)
        if isinstance(got, str):
            refusals[re.sub(r'"[^"]*"|\d+|/\S*', "_", got.split("tokenizer.json: ")[-1])[:120]] += 1
            continue
        try:
            oracle = Tokenizer.from_str(json.dumps(file))
            if ambiguous(oracle, file):
                continue
        except BaseException as error:  # of any kind: it is no file for `tokenizers`
            if isinstance(error, KeyboardInterrupt):
                raise
            if type(error).__name__ == "PanicException":
                panics += len(texts)
                continue
            wrong += 1
            print(f"--- seed {seed}: `tokenizers` refuses what Keel reads: {error}", flush=True)
            continue
        bad = []
        for text, answer in zip(texts, got, strict=True):
            want = expected(oracle, text)
            if want is not None and said_twice(file, want):
                continue
            panics += want is None
            compared += want is not None
            if want is not None and answer != want and {**answer, "offsets": 0} == {**want, "offsets": 0} and not file["model"]["unk_token"]:
                want = truth(file, text, want)
            if want is not None and answer != want:
                bad.append((text, want, answer))
        if bad:
            wrong += 1
            text, want, answer = min(bad, key=lambda one: len(one[0]))
            parts = {key: file[key] for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")}
            print(f"--- seed {seed}: {len(bad)} texts differ\n{json.dumps(parts, ensure_ascii=False)}\n{ {k: v for k, v in file['model'].items() if k not in ('vocab', 'merges')} }\n"
                  f"  {text!r}\n" + "".join(f"  {key}: {want[key]!r}\n    keel: {answer.get(key)!r}\n" for key in want if want[key] != answer.get(key)) + str(answer.get("error", "")), flush=True)
    for reason, times in refusals.most_common():
        print(f"refused {times} times: {reason}")
    print(f"{len(more) + count} files, from seed {first} on: {compared} texts compared, {panics} that `tokenizers` cannot read, {wrong} files differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
