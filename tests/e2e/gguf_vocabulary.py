"""The tokens of the tests' GGUF files: the 256 bytes as GPT-2 spells them, a pair, and three that are no text."""


def byte_level_tokens():
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelt = {byte: chr(byte) for byte in kept}
    for number, byte in enumerate(byte for byte in range(256) if byte not in spelt):
        spelt[byte] = chr(256 + number)
    return [spelt[byte] for byte in range(256)] + ["he", "<|end|>", "<|user|>", "<|pad|>"]


TOKENS = byte_level_tokens()
TYPES = [1] * 257 + [3] * 3
