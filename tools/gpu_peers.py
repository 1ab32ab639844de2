"""What others do on the same machine, for tools/gpu_check.sh: a line of JSON with their figures.

  train   a Llama of transformers, compiled by torch.compile, bf16 with fp32 masters in AdamW, its own loss
  decode  the same model, generating greedily with a static cache
"""

import argparse
import json
import statistics
import sys
import time


def model_of(torch, args):
    import transformers

    given = json.loads(args.model)
    config = transformers.LlamaConfig(**{k: v for k, v in given.items() if k != "model_type"})
    config._attn_implementation = "sdpa"
    torch.manual_seed(1)
    with torch.device(args.device):  # which a host would draw in half a minute
        return transformers.LlamaForCausalLM(config)


def timed(torch, device, work):
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.monotonic()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - begin


def train(torch, args):
    model = model_of(torch, args)  # fp32, computing in bf16
    step_of = torch.compile(model) if args.device == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=args.device == "cuda")
    ids = torch.randint(0, model.config.vocab_size, (1, args.length), device=args.device)

    def step():
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = step_of(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = [timed(torch, args.device, step) for _ in range(args.steps)]
    median = statistics.median(seconds[len(seconds) // 4 + 1 :])
    return {"name": "transformers, torch.compile", "seconds_a_step": median, "tokens_per_s": args.length / median}


def decode(torch, args):
    model = model_of(torch, args).to(torch.bfloat16).eval()
    found = {}
    for batch in (1, 64, 256) if args.device == "cuda" else (1, 4):
        ids = torch.randint(0, model.config.vocab_size, (batch, args.prompt), device=args.device)

        def generate(tokens):
            with torch.no_grad():
                model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, cache_implementation="static",
                               attention_mask=torch.ones_like(ids), pad_token_id=0)  # fmt: skip

        generate(2)
        seconds = timed(torch, args.device, lambda: generate(args.new + 1)) - timed(torch, args.device, lambda: generate(1))
        found[str(batch)] = batch * args.new / max(1e-9, seconds)
    return {"name": "transformers, static cache", "tokens_per_s": found}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "decode"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", required=True)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--new", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=8)
    args = parser.parse_args()
    try:
        import torch

        found = {"train": train, "decode": decode}[args.what](torch, args)
    except ImportError as error:
        print(f"not here: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**found, "torch": torch.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
