"""What transformers says about given token ids: greedy continuations and log-probabilities.

    generate_reference.py generate HF_DIR INPUT.jsonl OUTPUT.json [--max-new-tokens 16]
    generate_reference.py score    HF_DIR INPUT.jsonl OUTPUT.json

INPUT has one {"input_ids": [...]} a line. OUTPUT is a list with one object per line of INPUT:

    generate  {"input_ids", "output_ids": the new tokens, "logprobs": of each new token,
               "margin": smallest distance between the best and the second logit on the way}
    score     {"input_ids", "logprobs": of tokens 1..n-1 given all before, "sum_logprob", "perplexity"}

`margin` tells how close the text came to a tie: below rounding error another implementation may
rightly choose the other token.
"""

import argparse
import json
import math
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM


def load(directory, dtype="float32"):
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        experts_implementation="eager",
    )
    return model.eval()


@torch.no_grad()
def score(model, input_ids):
    logits = model(torch.tensor([input_ids])).logits[0].float()
    logprobs = logits[:-1].log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(input_ids[1:])[:, None])[:, 0].tolist()
    total = math.fsum(chosen)
    return {
        "input_ids": input_ids,
        "logprobs": chosen,
        "sum_logprob": total,
        "perplexity": math.exp(-total / len(chosen)) if chosen else None,
    }


@torch.no_grad()
def generate(model, input_ids, max_new_tokens):
    """transformers' own greedy search, checked against the argmax of forwards without cache."""
    found = model.generate(
        torch.tensor([input_ids]),
        attention_mask=torch.ones(1, len(input_ids), dtype=torch.long),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    output_ids = found.sequences[0, len(input_ids) :].tolist()
    logits = torch.stack([step[0].float() for step in found.logits])
    best = logits.topk(2, dim=-1).values
    margin = (best[:, 0] - best[:, 1]).min().item()
    if (model.config.rope_parameters or {}).get("rope_type") == "longrope":
        # A text turns by its length: each token's was another.
        texts = [input_ids + output_ids[:i] for i in range(len(output_ids))]
        direct = torch.stack([model(torch.tensor([text])).logits[0, -1].float() for text in texts])
    else:
        whole = model(torch.tensor([input_ids + output_ids])).logits[0].float()
        direct = whole[len(input_ids) - 1 : -1]
    if margin > 1e-3 and direct.argmax(-1).tolist() != output_ids:
        raise SystemExit("generate() and the plain forward disagree")
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor(output_ids)[:, None])[:, 0]
    return {
        "input_ids": input_ids,
        "output_ids": output_ids,
        "logprobs": logprobs.tolist(),
        "margin": margin,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["generate", "score"])
    parser.add_argument("model", help="Hugging Face directory")
    parser.add_argument("input", help="JSONL with input_ids")
    parser.add_argument("output", help="JSON to write")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    args = parser.parse_args()
    model = load(args.model, args.dtype)
    with open(args.input, encoding="utf-8") as lines:
        inputs = [json.loads(line)["input_ids"] for line in lines if line.strip()]
    if args.what == "score":
        results = [score(model, ids) for ids in inputs]
    else:
        results = [generate(model, ids, args.max_new_tokens) for ids in inputs]
    with open(args.output, "w", encoding="utf-8") as out:
        json.dump(results, out, indent=1)
    print(f"{args.what}: {len(results)} references written to {args.output}")


if __name__ == "__main__":
    main()
