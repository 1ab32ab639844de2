"""Peer of `keel bench rl`: GRPO steps by TRL's GRPOTrainer.

    grpo_trl.py --model HF_DIR --prompts PROMPTS.jsonl [--threads 2] [--prompts-a-step 8] [--samples 8] [--tokens 64]

Speaks the worker protocol (README.md): the trainer runs on, and waits after each step until it is told to go
on. Float32, one update a step over all samples at once, no reference model, sampling at temperature 1 from the
whole vocabulary; TRL's defaults but for what the page names.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import datasets
import torch
import transformers
import trl

import worker


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face directory with a tokenizer")
    parser.add_argument("--prompts", required=True, help="rows of prompt and answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts-a-step", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    return parser.parse_args()


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def reward(completions, answer, **_):
    """The last number is the answer: 1; another number: 0.5; none: 0."""
    scores = []
    for text, right in zip(completions, answer, strict=True):
        numbers = NUMBER.findall(text)
        if not numbers:
            scores.append(0.0)
        else:
            scores.append(1.0 if float(numbers[-1].replace(",", "")) == float(right) else 0.5)
    return scores


class Gate(transformers.TrainerCallback):
    """Lets the trainer do the steps it is asked for, and answers with their time."""

    def __init__(self):
        self.left = 0
        self.asked = 0
        self.begin = 0.0
        self.completions = []

    def wait(self):
        """Until there is something to do. False: the end."""
        for line in sys.stdin:
            words = line.split()
            if words == ["quit"]:
                return False
            if len(words) == 2 and words[0] == "step":
                self.left = self.asked = int(words[1])
                self.begin = time.perf_counter()
                return True
            if len(words) == 2 and words[0] == "threads":
                torch.set_num_threads(int(words[1]))
                worker.answer({"threads": torch.get_num_threads()})
                continue
            worker.answer({"error": f"unknown command: {line.strip()}"})
        return False

    def on_train_begin(self, args, state, control, **_):
        if not self.wait():
            os._exit(0)

    def on_step_end(self, args, state, control, **_):
        self.left -= 1
        if self.left > 0:
            return
        seconds = time.perf_counter() - self.begin
        worker.answer({
            "seconds": seconds, "steps": self.asked, "lengths": sorted(set(self.completions)), **worker.memory(),
        })  # fmt: skip
        self.completions.clear()
        if not self.wait():
            os._exit(0)  # in the midst of a training that is of no further use


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    protocol = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    worker.answer = lambda record: print(json.dumps(record), file=protocol, flush=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="sdpa"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    with open(args.prompts, encoding="utf-8") as lines:
        rows = datasets.Dataset.from_list([json.loads(line) for line in lines])
    gate = Gate()

    def counted(completions, completion_ids, **rest):
        gate.completions += [len(ids) for ids in completion_ids]
        return reward(completions, **rest)

    with tempfile.TemporaryDirectory(prefix="keel-bench-trl-") as folder:
        settings = trl.GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False,
            per_device_train_batch_size=args.prompts_a_step * args.samples, gradient_accumulation_steps=1,
            num_generations=args.samples, max_completion_length=args.tokens,
            generation_kwargs={"min_new_tokens": args.tokens},
            learning_rate=1e-6, lr_scheduler_type="constant", max_steps=10**6,
            report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=model, reward_funcs=counted, args=settings, train_dataset=rows, processing_class=tokenizer,
            callbacks=[gate],
        )  # fmt: skip
        versions = {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__}
        worker.answer({
            "ready": True, "name": "trl", "parameters": model.num_parameters(), "versions": versions, **worker.memory(),
        })  # fmt: skip
        trainer.train()


if __name__ == "__main__":
    main()
