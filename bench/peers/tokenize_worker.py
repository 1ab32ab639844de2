"""Hugging Face's tokenizers and tiktoken as workers of the benchmark of tokenizers, each in one thread.

    tokenize_worker.py tokenizers|tiktoken --vocabulary FILE --texts FILE [--pattern REGEX] [--library FOLDER]

FILE is a tokenizer.json, or for tiktoken its ranks; texts are separated by zero bytes. Ready with {"load_s", "bytes"}; `encode N`
answers {"seconds", "ids", "check"} of N passes over all texts. Seconds are of the processor.
"""

import argparse
import base64
import json
import sys
import time

import numpy


def loaded(args):
    """A function from a list of texts to lists of ids."""
    if args.side == "tokenizers":
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(args.vocabulary)
        return f"tokenizers {tokenizers.__version__}", lambda texts: [
            one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
    if args.library:
        sys.path.insert(0, args.library)
    import tiktoken

    with open(args.vocabulary, "rb") as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, file)}
    encoding = tiktoken.Encoding("bench", pat_str=args.pattern, mergeable_ranks=ranks, special_tokens={})
    return f"tiktoken {tiktoken.__version__}", lambda texts: [encoding.encode_ordinary(text) for text in texts]


def check(all_ids):
    flat = numpy.fromiter((i for ids in all_ids for i in ids), dtype=numpy.uint64)
    with numpy.errstate(over="ignore"):
        total = int((flat * numpy.arange(1, len(flat) + 1, dtype=numpy.uint64)).sum(dtype=numpy.uint64))
    return len(flat), total & ((1 << 53) - 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["tokenizers", "tiktoken"])
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--pattern")
    parser.add_argument("--library")
    args = parser.parse_args()
    with open(args.texts, "rb") as file:
        content = file.read().split(b"\0")
    texts = [text.decode() for text in content if text]
    begin = time.process_time()
    name, encode = loaded(args)
    load_s = time.process_time() - begin
    ready = {"ready": True, "name": name, "load_s": load_s, "bytes": sum(map(len, content))}
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "quit":
            break
        begin = time.process_time()
        for _ in range(int(words[1])):
            ids = encode(texts)
        seconds = time.process_time() - begin
        count, digest = check(ids)
        print(json.dumps({"seconds": seconds, "ids": count, "check": digest}), flush=True)


if __name__ == "__main__":
    main()
