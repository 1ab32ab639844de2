"""What others do on the same machine, for tools/gpu_check.sh: a line of JSON with their figures.

  train    a Llama of transformers, as it is and compiled by torch.compile, bf16 with fp32 masters in AdamW, its own loss
  decode   the same model, generating greedily with a static cache
  save     bf16 weights, fp32 masters and moments of that model by PyTorch's DCP: dcp.save, and dcp.async_save, on a GPU
           with staging beside the compute, in pinned memory that is kept; of two the second counts
  offload  the same state to the host and back by Tensor.to, and by copies from and to pinned memory that is kept
  sync     its weights, of which two ranks have a half each, tensor by tensor from who has it to both: over NCCL where
           there is a GPU for each, else by way of the hosts, over gloo
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
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
    found = {"eager": train_as(torch, args, lambda model: model)}
    if args.device == "cuda":
        found["torch.compile"] = train_as(torch, args, torch.compile)
    return {"name": "transformers", "ways": found, "tokens_per_s": max(way["tokens_per_s"] for way in found.values())}


def train_as(torch, args, made):
    model = model_of(torch, args)  # fp32, computing in bf16
    step_of = made(model)
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
    return {"seconds_a_step": median, "tokens_per_s": args.length / median}


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


def shapes_of(args):
    """Of a Llama's weights with a tied head, by name: what is moved needs no transformers, which take seconds to begin."""
    given = json.loads(args.model)
    hidden, ffn, head = given["hidden_size"], given["intermediate_size"], given["head_dim"]
    q, kv = given["num_attention_heads"] * head, given["num_key_value_heads"] * head
    layer = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q), "gate_proj": (ffn, hidden),
             "up_proj": (ffn, hidden), "down_proj": (hidden, ffn), "input_norm": (hidden,), "post_norm": (hidden,)}  # fmt: skip
    shapes = {"embed_tokens": (given["vocab_size"], hidden), "norm": (hidden,)}
    for i in range(given["num_hidden_layers"]):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def state_of(torch, args):
    """Weights in bf16, and in fp32 masters and both moments, by name."""
    shapes = shapes_of(args)
    state = {f"model.{name}": torch.ones(shape, dtype=torch.bfloat16, device=args.device) for name, shape in shapes.items()}
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        state |= {f"{kind}.{name}": torch.ones(shape, device=args.device) for name, shape in shapes.items()}
    return state


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def save(torch, args):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    state = state_of(torch, args)
    # Without a GPU this stager ends in an error, and a plain copy is made.
    stager = DefaultStager(StagingOptions(True, True, True, True)) if args.device == "cuda" else None
    with tempfile.TemporaryDirectory(prefix="dcp-", dir=args.work) as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        begin = time.monotonic()
        dcp.save(state, checkpoint_id=f"{folder}/whole")
        whole = time.monotonic() - begin
        shutil.rmtree(f"{folder}/whole")

        def save_beside(path):
            begin = time.monotonic()
            pending = dcp.async_save(state, checkpoint_id=path, async_stager=stager)
            seconds = {"returned_s": time.monotonic() - begin}
            if stager is not None:  # the next update has to wait for it
                pending.staging_completion.result()
            seconds["staged_s"] = time.monotonic() - begin
            (pending if stager is None else pending.upload_completion).result()
            seconds["done_s"] = time.monotonic() - begin
            shutil.rmtree(path)
            return seconds

        try:
            beside = [save_beside(f"{folder}/beside_{i}") for i in range(2)][-1]
        except Exception as error:  # noqa: BLE001  a peer's failure is a figure that is not there
            beside = {"absent": f"{type(error).__name__}: {error}"[:300]}
        dist.destroy_process_group()
    return {"name": "torch DCP", "bytes": bytes_of(state.values()), "save_s": whole, "async_save": beside}


def offload(torch, args):
    state = list(state_of(torch, args).values())
    gpu = args.device == "cuda"
    pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=gpu) for tensor in state]

    def cycle(down, up):
        return {"offload_s": timed(torch, args.device, down), "load_s": timed(torch, args.device, up)}

    def plain():
        copies = []
        return cycle(lambda: copies.extend(tensor.to("cpu", copy=True) for tensor in state),
                     lambda: [copy.to(args.device, copy=True) for copy in copies])  # fmt: skip

    def kept():
        pairs = list(zip(state, pinned, strict=True))
        return cycle(lambda: [host.copy_(tensor, non_blocking=True) for tensor, host in pairs],
                     lambda: [tensor.copy_(host, non_blocking=True) for tensor, host in pairs])  # fmt: skip

    ways = {"Tensor.to": plain, "kept pinned memory": kept}
    return {"name": "torch", "bytes": bytes_of(state), "ways": {name: [way() for _ in range(3)][-1] for name, way in ways.items()}}


def sync(torch, args):
    if "RANK" in os.environ:
        return sync_of_rank(torch, args)
    with tempfile.TemporaryDirectory(prefix="sync-", dir=args.work) as folder:
        ranks = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--work", folder], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "RANK": str(rank)})  # fmt: skip
            for rank in range(2)
        ]
        found = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("a rank of the sync failed")
    found = [json.loads(text.strip().split("\n")[-1]) for text in found]
    return {**found[0], "seconds": max(one["seconds"] for one in found)}


def sync_of_rank(torch, args):
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    gpu = args.device == "cuda"
    over_nccl = gpu and torch.cuda.device_count() >= 2
    if gpu:
        torch.cuda.set_device(rank if over_nccl else 0)
    dist.init_process_group("nccl" if over_nccl else "gloo", init_method=f"file://{args.work}/store", rank=rank, world_size=2)
    weights = [torch.ones(shape, dtype=torch.bfloat16, device=args.device) for shape in shapes_of(args).values()]

    def update():
        for i, weight in enumerate(weights):
            owner = 0 if i < len(weights) // 2 else 1
            if over_nccl or not gpu:
                dist.broadcast(weight, owner)
                continue
            host = weight.cpu()
            dist.broadcast(host, owner)
            if rank != owner:
                weight.copy_(host)

    seconds = []
    for _ in range(3):
        dist.barrier()
        seconds.append(timed(torch, args.device, update))
    dist.destroy_process_group()
    return {"name": "a broadcast of each tensor", "over": "NCCL" if over_nccl else "gloo", "bytes": bytes_of(weights), "seconds": statistics.median(seconds)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "decode", "save", "offload", "sync"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", required=True)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--new", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=8)
    parser.add_argument("--work", type=pathlib.Path, help="where its files go meanwhile")
    args = parser.parse_args()
    try:
        import torch

        found = {"train": train, "decode": decode, "save": save, "offload": offload, "sync": sync}[args.what](torch, args)
    except ImportError as error:
        print(f"not here: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**found, "torch": torch.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
