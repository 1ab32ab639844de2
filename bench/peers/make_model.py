"""Writes a Hugging Face directory with random weights for a config: the start of both sides.

    make_model.py CONFIG.json OUT [--seed 1]
"""

import argparse
import json
import os
import pathlib
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    settings = json.loads(args.config.read_text())
    config = transformers.AutoConfig.for_model(**settings)
    torch.manual_seed(args.seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(args.out)
    shutil.copy(args.config, args.out / "config.json")
    print(f"{args.out}: {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main()
