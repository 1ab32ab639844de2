"""Computes and writes what make_model_fixtures.py describes."""

import concurrent.futures
import copy
import itertools
import json
import pathlib
import shutil

import numpy
import safetensors.torch
import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

import generate_reference
import key_changes
import models

LENGTHS = [17, 32, 9]
IGNORED = -100
LEARNING_RATE, BETAS, EPSILON, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
STEPS = 3
CLEAR = 1e-5  # gradients from here on are held to MOST_SPREAD, and in the tests to 1e-5
MOST_SPREAD = 1e-6
PROMPT_LENGTHS = [1, 5, 16, 40]
NEW_TOKENS = 16
BYTES = 256  # larger ids end a text where the byte tokenizer stands in for a missing one

# Where the first such batch was found the last time, of models whose first one is none: begun with there.
FOUND = {
    "llama_tied": 1, "llama_3_layers": 1, "llama_rope_scaled": 1, "llama_attention_bias": 1,
    "llama_15_heads": 1, "qwen2_14_heads": 3, "qwen3_6_heads": 1, "mistral": 1, "gemma2": 1, "olmo2": 3,
    "olmo3": 1, "qwen3_moe_balance": 3, "phi3_longrope": 1, "phi3_9_heads": 2, "granite": 1, "seed_oss": 1,
    "qwen2_moe": 1, "exaone4": 1, "exaone4_whole": 4, "gpt_oss": 1,
}  # fmt: skip


def make_batch(name):
    """Inputs and targets of three sequences; a prompt and a fifth of the rest are not trained on."""
    stream = models.tokens(name, sum(LENGTHS) + len(LENGTHS))
    mask = numpy.random.default_rng(7).random(sum(LENGTHS)) < 0.2
    inputs, targets = [], []
    for length in LENGTHS:
        sequence, stream = stream[: length + 1], stream[length + 1 :]
        inputs += sequence[:-1]
        targets += sequence[1:]
    targets = torch.tensor(targets)
    targets[torch.from_numpy(mask)] = IGNORED
    targets[LENGTHS[0] : LENGTHS[0] + 6] = IGNORED
    return torch.tensor(inputs), targets


def forward(model, inputs):
    """Logits of all positions, one sequence at a time."""
    return torch.cat([model(part[None]).logits[0] for part in inputs.split(LENGTHS)])


def mean_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED)


def step_loss(model, inputs, targets):
    """Logits and the loss, of which the load-balancing loss of all three sequences together may be a part."""
    config = model.config
    if not getattr(config, "output_router_logits", False):
        logits = forward(model, inputs)
        return logits, mean_loss(logits, targets)
    parts = [model(part[None]) for part in inputs.split(LENGTHS)]
    logits = torch.cat([part.logits[0] for part in parts])
    routers = tuple(torch.cat(layer) for layer in zip(*(part.router_logits for part in parts), strict=True))
    experts = getattr(config, "num_local_experts", None) or config.num_experts
    balance = load_balancing_loss_func(routers, experts, config.num_experts_per_tok)
    return logits, mean_loss(logits, targets) + config.router_aux_loss_coef * balance


def gradients(model, inputs, targets):
    model.zero_grad(set_to_none=True)
    logits, loss = step_loss(model, inputs, targets)
    loss.backward()
    grads = {name: p.grad.detach().clone() for name, p in model.named_parameters()}
    return logits.detach(), loss.item(), grads


def train(model, inputs, targets):
    """Three AdamW steps; the losses, norms and the optimizer's state by parameter name."""
    named = dict(model.named_parameters())
    # The biases of gpt-oss's experts stand together.
    matrices = {name for name, p in named.items() if p.dim() >= 2 and not name.endswith("_bias")}
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for name, p in named.items() if name in matrices], "weight_decay": DECAY},
            {"params": [p for name, p in named.items() if name not in matrices], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPSILON,
        foreach=False,
    )
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        _, loss = step_loss(model, inputs, targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), CLIP, foreach=False).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, {name: optimizer.state[p] for name, p in named.items()}


def spread(model, name, inputs, targets):
    """How far rounding alone carries three steps: the largest distance of a weight whose gradient is clear of
    it, between float32, float32 with another attention, and float64. Adam takes steps of one size however small
    a gradient is: where rounding gives one of them the other sign, or two that follow cancel, it shows."""
    clear = {name: grad.abs() > CLEAR for name, grad in gradients(copy.deepcopy(model), inputs, targets)[2].items()}
    other = copy.deepcopy(model)
    other.config._attn_implementation = models.other_attention(name)
    ends = []
    for trained in [copy.deepcopy(model), other, copy.deepcopy(model).double()]:
        train(trained, inputs, targets)
        ends.append({name: p.detach().double() for name, p in trained.named_parameters()})
    return max(
        ((a[name] - b[name]).abs() * clear[name]).max().item()
        for a, b in itertools.combinations(ends, 2)
        for name in clear
    )


def make_steady_batch(model, name):
    """A batch on which three steps say something of the code and not of its rounding."""
    found = FOUND.get(name, 0)
    for attempt in (*range(found, 50), *range(found)):
        inputs, targets = make_batch(f"{name} {attempt}" if attempt else name)
        if spread(model, name, inputs, targets) < MOST_SPREAD:
            return inputs, targets
    raise SystemExit(f"{name}: no batch whose three steps are clear of rounding")


def distance(a, b):
    return (a.double() - b.double()).abs().max().item()


@torch.no_grad()
def check_saved(name, directory, inputs, expected):
    """The files, read back and run with another attention, give the same logits."""
    saved = transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation=models.other_attention(name),
        experts_implementation="eager",  # the other one wants widths that divide
    )
    if distance(forward(saved, inputs), expected) > 2e-5:
        raise SystemExit(f"{directory}: the saved model gives other logits")


def make_prompts(model, name):
    """Greedy references that are clear of ties, full length, and not one token repeated."""
    results = []
    for length in PROMPT_LENGTHS:
        for attempt in range(50):
            ids = models.tokens(f"{name} prompt {length} {attempt}", length)
            result = generate_reference.generate(model, ids, NEW_TOKENS)
            output = result["output_ids"]
            if result["margin"] > 2e-3 and len(set(output)) > NEW_TOKENS // 2 and max(output) < BYTES:
                break
        else:
            raise SystemExit(f"{name}: no prompt of {length} tokens gives a telling text")
        results.append(result)
    return results


def make_model(name, directory):
    model = models.build(name)
    models.save(name, model, directory / "hf")
    inputs, targets = make_steady_batch(model, name)

    exact = copy.deepcopy(model).double()
    exact_logits, _, exact_grads = gradients(exact, inputs, targets)
    logits, loss, grads = gradients(model, inputs, targets)
    rounding = {
        "logits": distance(logits, exact_logits),
        "grad": max(distance(grads[n], exact_grads[n]) for n in grads),
    }
    if rounding["logits"] > 2e-5 or rounding["grad"] > 2e-5:
        raise SystemExit(f"{name}: float32 strays from float64: {rounding}")
    check_saved(name, directory / "hf", inputs, exact_logits)

    generated = [] if name in models.BY_LENGTH else make_prompts(model, name)
    scored = [generate_reference.score(model, r["input_ids"] + r["output_ids"]) for r in generated]
    losses, norms, state = train(model, inputs, targets)

    tensors = {
        "input_ids": inputs.int(),
        "targets": targets.int(),
        "cu_seqlens": torch.tensor([0, *numpy.cumsum(LENGTHS).tolist()], dtype=torch.int32),
        "logits": logits,
    }
    for kind, of in [
        ("grad", grads),
        ("step3", {**{n: p.detach() for n, p in model.named_parameters()}, **models.constants(model)}),
        ("exp_avg", {n: one["exp_avg"] for n, one in state.items()}),
        ("exp_avg_sq", {n: one["exp_avg_sq"] for n, one in state.items()}),
    ]:
        for parameter_name, value in models.canonical(model, of).items():
            tensors[f"{kind}.{parameter_name}"] = value
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    safetensors.torch.save_file(tensors, directory / "reference.safetensors", {"format": "pt"})

    reference = {"loss": loss, "losses": losses, "grad_norms": norms, "rounding": rounding}
    (directory / "reference.json").write_text(json.dumps(reference, indent=1) + "\n")
    (directory / "generate.json").write_text(json.dumps(generated, indent=1) + "\n")
    (directory / "score.json").write_text(json.dumps(scored, indent=1) + "\n")
    lines = [json.dumps({"input_ids": r["input_ids"]}) + "\n" for r in generated]
    (directory / "prompts.jsonl").write_text("".join(lines))
    lines = [json.dumps({"input_ids": s["input_ids"]}) + "\n" for s in scored]
    (directory / "score.jsonl").write_text("".join(lines))
    return reference


def quiet():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def make_one(name, out):
    """What is to be said of it."""
    (out / name).mkdir(parents=True)
    reference = make_model(name, out / name)
    if name in key_changes.FAMILIES:
        key_changes.write(name, out / name)
    return f"{name}: loss {reference['loss']:.4f}, gradient norm {reference['grad_norms'][0]:.3f}"


def make_all(out):
    quiet()
    for name in [*models.MODELS, *models.STACKED, *models.V4_SPELLING]:
        shutil.rmtree(out / name, ignore_errors=True)
    # Half of the tests wait for these: two at a time.
    with concurrent.futures.ProcessPoolExecutor(2, initializer=quiet) as workers:
        for said in workers.map(make_one, models.MODELS, itertools.repeat(out)):
            print(said, flush=True)
    for name, original in models.STACKED.items():
        models.build(original).save_pretrained(out / name / "hf", save_original_format=False)
    for name, original in models.V4_SPELLING.items():
        shutil.copytree(out / original, out / name)
        models.spell_as_v4(out / name / "hf")
        reference = safetensors.torch.load_file(out / name / "reference.safetensors")
        check_saved(name, out / name / "hf", reference["input_ids"].long(), reference["logits"])
        print(f"{name}: {original} with an older config.json")
