"""Peer of `keel bench train`: the same model, data and optimizer in transformers.

    train_transformers.py --model HF_DIR [--dtype float32] [--weights float32] [--compile] ...

Speaks the worker protocol (README.md). `--dtype bfloat16 --weights float32` is autocast, the usual
mixed precision with float32 weights and moments; `--weights bfloat16` keeps weights and moments in
bfloat16 alone, which costs precision that Keel keeps.
"""

import argparse
import contextlib
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import data
import worker


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--dtype", choices=worker.DTYPES, default="float32", help="of the products")
    parser.add_argument("--weights", choices=worker.DTYPES, default="float32", help="as stored")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    return parser.parse_args()


def make_optimizer(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, dtype=worker.DTYPES[args.weights], attn_implementation="sdpa", use_cache=False
        ).to(args.device).train()
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model)
        self.forward = torch.compile(self.model) if args.compile else self.model
        self.autocast = args.dtype != args.weights
        self.steps_done = 0

    def one_step(self, seconds):
        args = self.args
        vocabulary = self.model.config.vocab_size
        batch = data.batch(self.steps_done, args.batch, args.sequence, vocabulary)
        inputs, targets = (tensor.to(args.device) for tensor in batch)
        context = torch.autocast(args.device.type, torch.bfloat16) if self.autocast else contextlib.nullcontext()
        start = time.perf_counter()
        with context:
            loss = self.forward(inputs, labels=targets, shift_labels=targets).loss
        worker.wait(args.device)
        forward_end = time.perf_counter()
        loss.backward()
        worker.wait(args.device)
        backward_end = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        worker.wait(args.device)
        end = time.perf_counter()
        seconds["forward_s"] += forward_end - start
        seconds["backward_s"] += backward_end - forward_end
        seconds["optimizer_s"] += end - backward_end
        self.steps_done += 1
        return loss.item()

    def steps(self, count):
        parts = {"forward_s": 0.0, "backward_s": 0.0, "optimizer_s": 0.0}
        start = time.perf_counter()
        losses = [self.one_step(parts) for _ in range(count)]
        total = time.perf_counter() - start
        tokens = count * self.args.batch * self.args.sequence
        return {"seconds": total, "tokens": tokens, "losses": losses, **parts}


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    trainer = Trainer(args)
    ready = {
        "name": "transformers",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "parameters": trainer.model.num_parameters(),
        "settings": vars(args) | {"device": str(args.device)},
    }
    worker.serve(ready, trainer.steps, worker.DTYPES[args.dtype], args.device)


if __name__ == "__main__":
    main()
