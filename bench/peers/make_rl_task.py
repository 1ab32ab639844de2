"""The task of both sides of the RL benchmark: a tokenizer beside a model, and prompts with answers.

    make_rl_task.py MODEL_DIR PROMPTS.jsonl [--prompts 512] [--seed 1]

The tokenizer is Keel's `bytes` for transformers: ids 0 to 255 are the bytes, 256 begins and 257 ends a text, 258
pads. All prompts have the same number of tokens, so that neither side has padding to skip.
"""

import argparse
import json
import pathlib
import random

import tokenizers
import tokenizers.decoders
import tokenizers.models
import tokenizers.pre_tokenizers

SPECIAL = {"<bos>": 256, "<eos>": 257, "<pad>": 258}


def byte_names():
    """Characters that stand for the bytes 0 to 255 in byte-level vocabularies (GPT-2's encoder.py)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def make_tokenizer():
    vocabulary = {name: byte for byte, name in enumerate(byte_names())}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary | SPECIAL, merges=[]))
    made.add_special_tokens(list(SPECIAL))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = make_tokenizer()
    tokenizer.save(str(args.model / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (args.model / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    chance = random.Random(args.seed)
    with open(args.out, "w", encoding="utf-8") as out:
        for _ in range(args.prompts):
            a, b = chance.randrange(1000, 10000), chance.randrange(1000, 10000)
            prompt = f"What is {a} + {b}? "
            if tokenizer.encode(prompt).ids != list(prompt.encode()):
                raise SystemExit(f"the tokenizer does not give the bytes of {prompt!r}")
            out.write(json.dumps({"prompt": prompt, "answer": str(a + b)}) + "\n")


if __name__ == "__main__":
    main()
