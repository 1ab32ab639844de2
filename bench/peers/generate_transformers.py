"""Peer of `keel bench rollout`: greedy generation by transformers.

    generate_transformers.py --model HF_DIR [--dtype bfloat16] [--threads 2] [--cache best]

Speaks the worker protocol (README.md). `--cache best` tries the dynamic and the static cache when a
shape is seen for the first time, outside the measured time, and then uses the faster one for it.
"""

import argparse
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
import transformers

import data
import worker

SEQUENCE = 512  # a sequence's tokens are numbered as if it had so many


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--dtype", choices=worker.DTYPES, default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--cache", choices=["dynamic", "static", "best"], default="best")
    return parser.parse_args()


def prompt(n, length, vocabulary):
    counters = numpy.uint64(n * (SEQUENCE + 1)) + numpy.arange(length, dtype=numpy.uint64)
    return (data.splitmix64(counters) % numpy.uint64(vocabulary)).astype(numpy.int64)


class Generator:
    def __init__(self, args):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, dtype=worker.DTYPES[args.dtype], attn_implementation="sdpa"
        ).to(args.device).eval()
        self.device = args.device
        self.cache = args.cache
        self.chosen = {}

    def run(self, first, lengths, cache):
        """One padded batch; every row goes on until the longest has all it asked for."""
        longest = max(length for length, _ in lengths)
        new = max(count for _, count in lengths)
        ids = numpy.zeros((len(lengths), longest), dtype=numpy.int64)
        mask = numpy.zeros_like(ids)
        for row, (length, _) in enumerate(lengths):
            ids[row, longest - length :] = prompt(first + row, length, self.model.config.vocab_size)
            mask[row, longest - length :] = 1
        begin = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                torch.from_numpy(ids).to(self.device), attention_mask=torch.from_numpy(mask).to(self.device), do_sample=False,
                max_new_tokens=new, min_new_tokens=new, pad_token_id=0, cache_implementation=cache,
            )  # fmt: skip
        worker.wait(self.device)
        seconds = time.perf_counter() - begin
        outputs = [out[row, longest : longest + count].tolist() for row, (_, count) in enumerate(lengths)]
        return seconds, outputs

    def generate(self, first, lengths):
        shape = tuple(lengths)
        if shape not in self.chosen:
            options = {"dynamic": [None], "static": ["static"]}.get(self.cache, [None, "static"])
            self.run(first, lengths, options[0])
            times = [self.run(first, lengths, c)[0] for c in options]
            self.chosen[shape] = options[times.index(min(times))]
        cache = self.chosen[shape]
        seconds, outputs = self.run(first, lengths, cache)
        tokens = sum(count for _, count in lengths)
        return {"seconds": seconds, "tokens": tokens, "cache": cache or "dynamic", "outputs": outputs}


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    generator = Generator(args)
    worker.answer({
        "ready": True, "name": "transformers", "parameters": generator.model.num_parameters(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    })  # fmt: skip
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            return
        if words and words[0] == "generate":
            numbers = [int(word) for word in words[2:]]
            lengths = list(zip(numbers[::2], numbers[1::2], strict=True))
            worker.answer(generator.generate(int(words[1]), lengths))
        else:
            worker.answer({"error": f"unknown command: {line.strip()}"})


if __name__ == "__main__":
    main()
