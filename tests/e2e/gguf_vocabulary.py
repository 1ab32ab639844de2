"""The tokens of the tests' GGUF files: the 256 bytes as GPT-2 spells them, a pair, and three that are no text."""

import byte_level

TOKENS = [*byte_level.characters(), "he", "<|end|>", "<|user|>", "<|pad|>"]
TYPES = [1] * 257 + [3] * 3
