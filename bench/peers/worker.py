"""The worker protocol of the benchmarks, for peers written in Python; README.md describes it."""

import json
import pathlib
import statistics
import sys
import time

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GEMM_SIZE = 2048
GPU_GEMM_SIZE = 8192


def memory():
    """Resident bytes of this process: now and at most, as the kernel counts them."""
    fields = {}
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("VmRSS", "VmHWM"):
            fields[key] = int(value.split()[0]) * 1024
    return {"rss_bytes": fields["VmRSS"], "peak_rss_bytes": fields["VmHWM"]}


def wait(device):
    """Until all is done that the device was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gemm(dtype, device, seconds=1.0):
    """Rate of a square matrix product: the median and the best of single calls."""
    size = GEMM_SIZE if device.type == "cpu" else GPU_GEMM_SIZE
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty(size, size, dtype=dtype, device=device)
    torch.mm(a, b, out=out)
    wait(device)
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        torch.mm(a, b, out=out)
        wait(device)
        times.append(time.perf_counter() - begin)
    work = 2 * size**3
    return {
        "shape": [size] * 3,
        "dtype": str(dtype).removeprefix("torch."),
        "calls": len(times),
        "flops_per_s": work / statistics.median(times),
        "best_flops_per_s": work / min(times),
    }


def answer(record):
    print(json.dumps(record), flush=True)


def serve(ready, step, gemm_dtype, device):
    """Answers commands until `quit` or the end of input. `step` takes the number of steps."""
    answer({"ready": True, **ready, **memory()})
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            return
        if words == ["gemm"]:
            answer(gemm(gemm_dtype, device))
        elif len(words) == 2 and words[0] == "step":
            answer({**step(int(words[1])), **memory()})
        else:
            answer({"error": f"unknown command: {line.strip()}"})
