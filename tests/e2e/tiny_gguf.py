"""A GGUF file of a few kilobytes, written from the format's description alone: a Llama of one layer with a vocabulary of
bytes. For tests that need such a file and none in particular."""

import struct

import byte_level

HIDDEN, FFN, VOCABULARY = 16, 32, 257
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def write(path):
    keys = [text("general.architecture") + struct.pack("<I", STRING) + text("llama")]
    for name, value in {"block_count": 1, "context_length": 512, "embedding_length": HIDDEN, "feed_forward_length": FFN,
                        "attention.head_count": 2, "attention.head_count_kv": 1}.items():  # fmt: skip
        keys.append(text(f"llama.{name}") + struct.pack("<II", UINT32, value))
    keys.append(text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", FLOAT32, 1e-5))
    for name, value in {"model": "gpt2", "pre": "gpt-2"}.items():
        keys.append(text(f"tokenizer.ggml.{name}") + struct.pack("<I", STRING) + text(value))
    for name, values in {"tokens": [*byte_level.characters(), "he"], "merges": ["h e"]}.items():
        keys.append(text(f"tokenizer.ggml.{name}") + struct.pack("<IIQ", ARRAY, STRING, len(values))
                    + b"".join(text(value) for value in values))  # fmt: skip
    shapes = {"token_embd": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,), "blk.0.attn_norm": (HIDDEN,),
              "blk.0.ffn_norm": (HIDDEN,), "blk.0.attn_q": (HIDDEN, HIDDEN), "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
              "blk.0.attn_v": (HIDDEN // 2, HIDDEN), "blk.0.attn_output": (HIDDEN, HIDDEN), "blk.0.ffn_gate": (FFN, HIDDEN),
              "blk.0.ffn_up": (FFN, HIDDEN), "blk.0.ffn_down": (HIDDEN, FFN)}  # fmt: skip
    entries, data = [], b""
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        entries.append(text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, len(data)))
        data += struct.pack(f"<{count}f", *((i * 37 % 101 - 50) / 500 for i in range(count)))
        data += b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(keys)) + b"".join(keys) + b"".join(entries)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
