"""LoRA in PyTorch, without Keel and without PEFT: what `keel train` with adapters must come to, and what such a model says.

    adapter_reference.py draw HF_DIR ADAPTER_DIR RANK ALPHA [--targets q_proj,v_proj]
    adapter_reference.py train HF_DIR ADAPTER_DIR INPUT.jsonl OUT.safetensors OUT.json [--steps 5] [--lr 1e-3]
    adapter_reference.py score HF_DIR ADAPTER_DIR INPUT.jsonl OUT.json
    adapter_reference.py generate HF_DIR ADAPTER_DIR INPUT.jsonl OUT.json

`draw` writes a directory as PEFT does, of numbers that are not 0 in B either, beside every linear layer of the blocks, or
those that are named. `train` is AdamW over all sequences at every step, as train_reference.py, of these numbers alone; its
weights are A and B by the names that Keel has for the base's modules. `score` and `generate` are those of generate_reference.py.
"""

import argparse
import json
import pathlib

import safetensors.torch
import torch
from transformers.pytorch_utils import Conv1D

import models
from generate_reference import generate, load, score
from train_reference import fit, sequences_of

PREFIX = "base_model.model."


def linear_layers(model, targets):
    """By name, with what goes in and comes out: of the blocks, without experts' and what chooses them."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if ".layers." not in name and ".h." not in name:
            continue
        if isinstance(module, torch.nn.Linear):
            sizes = module.in_features, module.out_features
        elif isinstance(module, Conv1D):
            sizes = tuple(module.weight.shape)
        else:
            continue
        if ".experts." in name or last in ("gate", "router", "shared_expert_gate"):
            continue
        if targets is None or last in targets:
            yield name, *sizes


def draw(args):
    model = load(args.model)
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    names = set()
    for name, inputs, outputs in linear_layers(model, args.targets.split(",") if args.targets else None):
        for part, shape in (("A", (args.rank, inputs)), ("B", (outputs, args.rank))):
            tensors[f"{PREFIX}{name}.lora_{part}.weight"] = 0.1 * torch.randn(shape, generator=generator)
        names.add(name.rpartition(".")[2])
    folder = pathlib.Path(args.adapter)
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": args.rank, "lora_alpha": args.alpha, "lora_dropout": 0.05,
              "bias": "none", "target_modules": sorted(names), "base_model_name_or_path": str(args.model)}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


def adapted(args):
    """The model with its adapters, and these by the names of their modules."""
    model = load(args.model)
    folder = pathlib.Path(args.adapter)
    config = json.loads((folder / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / (config["r"] ** (0.5 if config.get("use_rslora") else 1))
    tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    modules = dict(model.named_modules())
    learnt = {}
    for name in {key.removeprefix(PREFIX).rpartition(".lora_")[0] for key in tensors}:
        a, b = (torch.nn.Parameter(tensors[f"{PREFIX}{name}.lora_{part}.weight"].float()) for part in "AB")
        modules[name].register_forward_hook(
            lambda _, inputs, out, a=a, b=b: out + scale * torch.nn.functional.linear(
                torch.nn.functional.linear(inputs[0], a), b)
        )  # fmt: skip
        learnt[f"{name}.lora_A.weight"], learnt[f"{name}.lora_B.weight"] = a, b
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model, learnt


def rows_of(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def train(args):
    model, learnt = adapted(args)
    optimizer = torch.optim.AdamW(learnt.values(), lr=args.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    record = fit(model, learnt.values(), optimizer, sequences_of(args.input), args.steps)
    weights = {models.renamed(model.config, name): parameter.detach().contiguous() for name, parameter in learnt.items()}
    safetensors.torch.save_file(weights, args.weights, {"format": "pt"})
    pathlib.Path(args.record).write_text(json.dumps(record))


def say(args):
    model, _ = adapted(args)
    of_row = {"score": score, "generate": lambda model, ids: generate(model, ids, 16)}[args.what]
    pathlib.Path(args.record).write_text(json.dumps([of_row(model, row["input_ids"]) for row in rows_of(args.input)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="what", required=True)
    for what in ("draw", "train", "score", "generate"):
        kind = kinds.add_parser(what)
        kind.add_argument("model")
        kind.add_argument("adapter")
        if what == "draw":
            kind.add_argument("rank", type=int)
            kind.add_argument("alpha", type=float)
            kind.add_argument("--targets", default="")
            continue
        kind.add_argument("input")
        if what == "train":
            kind.add_argument("weights")
            kind.add_argument("--steps", type=int, default=5)
            kind.add_argument("--lr", type=float, default=1e-3)
        kind.add_argument("record")
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"draw": draw, "train": train}.get(args.what, say)(args)


if __name__ == "__main__":
    main()
