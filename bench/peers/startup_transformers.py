"""Peer of bench/run_startup.py: one rank that starts, makes one data-parallel step and says so.

    torchrun --nproc-per-node 4 startup_transformers.py HF_CONFIG.json METRICS.jsonl
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel


def main():
    config_path, metrics_path = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(config_path, encoding="utf-8") as file:
        config = transformers.AutoConfig.for_model(**json.load(file))
    model = DistributedDataParallel(transformers.AutoModelForCausalLM.from_config(config))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(config.vocab_size, (1, 128))
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        with open(metrics_path, "w", encoding="utf-8") as file:
            file.write('{"step": 1}\n')
    sys.stdin.readline()  # stays until the driver has read the memory and ends the group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
