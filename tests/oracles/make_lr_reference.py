"""Learning rates of every update by transformers' and Megatron's own schedules: tests/oracles/lr_reference.json.

transformers is in the virtual environment, and `oracles_test.py` holds the file against it. Megatron is not
needed to run the tests; its values are of OptimizerParamScheduler of megatron-core 0.16.1
(megatron/core/optimizer_param_scheduler.py), as its training loop calls it: the rate of an update, then step(1).
To make the file again:

    pip download --no-deps megatron-core==0.16.1 && unzip megatron_core-*.whl 'megatron/core/optimizer_param_scheduler.py'
    python tests/oracles/make_lr_reference.py megatron/core/optimizer_param_scheduler.py > tests/oracles/lr_reference.json
"""

import importlib.util
import json
import sys
import types

import torch
from transformers import get_scheduler

PEAK = 2e-3
# style, floor, warm-up, steps of decay with the warm-up, final decay of WSD, updates
SHAPES = [
    ("constant", 0.0, 0, 8, 1, 10),
    ("constant", 0.0, 4, 8, 1, 10),
    ("linear", 0.0, 0, 1, 1, 1),
    ("linear", 0.0, 0, 8, 1, 11),
    ("linear", 0.0, 3, 12, 1, 14),
    ("linear", 2e-4, 3, 12, 1, 14),
    ("cosine", 0.0, 0, 1, 1, 2),
    ("cosine", 0.0, 0, 9, 1, 9),
    ("cosine", 0.0, 4, 16, 1, 16),
    ("cosine", 2e-4, 4, 16, 1, 17),  # past the end transformers' cosine with a floor rises again
    ("wsd", 0.0, 0, 10, 3, 12),
    ("wsd", 0.0, 3, 15, 4, 17),
    ("wsd", 2e-4, 0, 10, 10, 12),
    ("wsd", 2e-4, 3, 15, 4, 17),
]


def optimizer():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)


def of_transformers(style, floor, warmup, decay, wsd, updates):
    """None where transformers has no such schedule."""
    if floor > 0 and (style in ("linear", "constant") or (style == "wsd" and warmup > 0)):
        return None  # a floor that cosine alone knows; WSD's warm-up begins at it
    name, extra = {
        "constant": ("constant_with_warmup", {}),
        "linear": ("linear", {}),
        "cosine": ("cosine", {}) if floor == 0 else ("cosine_with_min_lr", {"min_lr": floor}),
        "wsd": ("warmup_stable_decay", {"num_decay_steps": wsd, "decay_type": "linear", "min_lr_ratio": floor / PEAK}),
    }[style]
    weights = optimizer()
    schedule = get_scheduler(name, weights, warmup, decay, scheduler_specific_kwargs=extra)
    rates = []
    for _ in range(updates):
        rates.append(weights.param_groups[0]["lr"])
        weights.step()
        schedule.step()
    return rates


def megatron_scheduler(path):
    for name in ("megatron", "megatron.core", "megatron.core.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["megatron.core.utils"].log_single_rank = lambda *_: None
    spec = importlib.util.spec_from_file_location("optimizer_param_scheduler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.OptimizerParamScheduler


def of_megatron(scheduler, style, floor, warmup, decay, wsd, updates):
    weights = optimizer()
    schedule = scheduler(
        weights, 0.0, PEAK, floor, warmup, decay, {"wsd": "WSD"}.get(style, style), 0.0, 0.0, decay, "constant",
        wsd_decay_steps=wsd, lr_wsd_decay_style="linear",
    )  # fmt: skip
    rates = []
    for _ in range(updates):
        rates.append(weights.param_groups[0]["lr"])
        schedule.step(1)
    return rates


def cases(scheduler):
    for shape in SHAPES:
        known = dict(zip(("style", "min_lr", "warmup", "decay", "wsd_decay", "updates"), shape), lr=PEAK)
        found = {"transformers": of_transformers(*shape), "megatron": of_megatron(scheduler, *shape)}
        for source, rates in found.items():
            if rates is not None:
                yield {"source": source, **known, "rates": rates}


if __name__ == "__main__":
    lines = [json.dumps(case) for case in cases(megatron_scheduler(sys.argv[1]))]
    print("[\n" + ",\n".join(lines) + "\n]")
