"""Vocabularies of the 256 bytes, as GPT-2's ByteLevel spells them, for tests that need a small one."""

import json


def characters():
    """The character that each byte is spelled as, by the byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in kept}
    for number, byte in enumerate(byte for byte in range(256) if byte not in spelled):
        spelled[byte] = chr(256 + number)
    return [spelled[byte] for byte in range(256)]


def write_tokenizer(folder, added, eos):
    """tokenizer.json and tokenizer_config.json: bytes, and behind them the tokens of `added`, {text: whether it is special}."""
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokens = [{"id": 256 + i, "content": text, "special": special, "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False} for i, (text, special) in enumerate(added.items())]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": tokens, "pre_tokenizer": pieces, "decoder": pieces,
        "model": {"type": "BPE", "vocab": {text: byte for byte, text in enumerate(characters())}, "merges": [], "dropout": None,
                  "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False},
    }))  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}))
