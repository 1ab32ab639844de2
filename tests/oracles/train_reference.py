"""AdamW in PyTorch over all sequences of a file at every step: what `keel train` must come to.

    train_reference.py HF_DIR INPUT.jsonl OUT.safetensors OUT.json [--steps 5] [--lr 1e-3]

INPUT has {"input_ids": [...], "labels": [...]} a line; labels stand beside the ids they repeat, -100 where
nothing is learnt, and without them all ids are learnt. Each step's loss is the mean over all learnt
tokens of all lines, so the order of the data has no part in it; a load-balancing loss is that of each line,
weighing as many as its learnt tokens, as with one line a micro-batch. Decay 0.1 of matrices alone, betas 0.9 and 0.95, eps 1e-8,
gradients clipped to norm 1, constant rate. OUT.safetensors has the weights after the last step, OUT.json
{"losses", "grad_norms"}.
"""

import argparse
import json

import safetensors.torch
import torch

import models
from generate_reference import load


def mean_loss(model, sequences):
    total, balance, count = 0.0, 0.0, 0
    for ids, labels in sequences:
        out = model(ids[None, :-1])
        total = total + torch.nn.functional.cross_entropy(out.logits[0], labels[1:], reduction="sum")
        learnt = (labels[1:] != -100).sum()
        if getattr(model.config, "output_router_logits", False):
            balance = balance + learnt * out.aux_loss
        count += learnt
    coefficient = getattr(model.config, "router_aux_loss_coef", 0.0)
    return (total + coefficient * balance) / count


def sequences_of(path):
    """The (ids, labels) of each line."""
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(torch.tensor(row["input_ids"]), torch.tensor(row.get("labels", row["input_ids"]))) for row in rows]


def fit(model, learnt, optimizer, sequences, steps):
    """Steps on all sequences, with the gradients of `learnt` clipped; what they say, as OUT.json has it."""
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mean_loss(model, sequences)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(learnt, 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    return {"losses": losses, "grad_norms": norms}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("input")
    parser.add_argument("weights")
    parser.add_argument("record")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(args.model)
    named = dict(model.named_parameters())
    matrices = [p for p in named.values() if p.dim() >= 2]
    vectors = [p for p in named.values() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8)
    record = fit(model, named.values(), optimizer, sequences_of(args.input), args.steps)
    saved = models.canonical(model, {name: p.detach() for name, p in named.items()} | models.constants(model))
    weights = {name: tensor.contiguous() for name, tensor in saved.items()}
    safetensors.torch.save_file(weights, args.weights, {"format": "pt"})
    with open(args.record, "w", encoding="utf-8") as out:
        json.dump(record, out)


if __name__ == "__main__":
    main()
