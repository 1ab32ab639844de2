"""The parts of tools/gpu_check.sh, which says what this is for. Needs no module but Python's own.

A part is a function that returns figures, raises Failed when what it checks does not hold, and Absent when this
machine cannot run it. Each has a share of the time; what it starts is ended when that is over.
"""

import argparse
import collections
import ctypes
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ["KEEL_BIN"])
KEEL = str(BIN / "keel")
LOSS = "loss_metrics/global_avg_loss"
PEAK_FLOPS = 989e12  # of an H100's bf16 products, dense, by its data sheet
MEMORY_BYTES_S = 3.35e12

TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_1B = {
    **TINY, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}  # fmt: skip


class Failed(Exception):
    pass


class Absent(Exception):
    pass


class Check:
    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(args.out).resolve()
        self.device = args.device
        self.dry = args.dry_run
        self.end = 0.0  # of the part that runs
        self.model = TINY if self.dry else LLAMA_1B
        self.threads = 1 if self.device == "cpu" else min(16, os.cpu_count() or 1)
        # Not in OUT: what is brought home of a run that was cut off are figures, and not its weights.
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="keel-gpu-check-", dir=args.work))
        self.reached = {}  # what a part leaves to later ones

    # Processes.

    def left(self):
        return max(1.0, self.end - time.monotonic())

    def environment(self):
        drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC", "SLURM_", "OMPI_", "PMI_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        return {**kept, "OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}

    def run(self, *command, check=True, lines=None):
        """Exit status and words of a command, which reads the lines, if there are any."""
        command = [str(word) for word in command]
        with open(self.out / "log.txt", "a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            process = subprocess.Popen(command, stdin=None if lines is None else subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                       env=self.environment(), start_new_session=True, preexec_fn=die_with_parent)  # fmt: skip
            try:
                text, _ = process.communicate("".join(f"{line}\n" for line in lines) if lines else None, timeout=self.left())
            except subprocess.TimeoutExpired:
                text = ended(process)
                log.write(text + "\n")
                raise Failed(f"not done in its time: {' '.join(command[:4])} ...: {last_words(text)}") from None
            except BaseException:
                ended(process)
                raise
            log.write(text + "\n")
        if check and process.returncode != 0:
            raise Failed(f"exit {process.returncode} of {' '.join(command[:4])} ...: {last_words(text)}")
        return process.returncode, text

    # Runs.

    def documents(self, name, count, length, vocabulary):
        """Ids of which half are one and the same: what a sum without an order would show."""
        path = self.work / name
        chance = random.Random(5)
        with open(path, "w", encoding="utf-8") as out:
            for _ in range(count):
                ids = [65 if chance.random() < 0.5 else chance.randrange(vocabulary) for _ in range(length)]
                out.write(json.dumps({"input_ids": ids}) + "\n")
        return path

    def config(self, name, model, *, steps, length, batch, micro=1, dtype="bfloat16", save=-1, contents=("model", "optimizer", "extra"), **more):
        data = self.documents(f"{name}.jsonl", batch * steps, length, model["vocab_size"])
        config = {
            "trainer": {"task": "pretrain", "default_local_dir": str(self.work / name), "total_training_steps": steps,
                        "save_freq": save, "test_freq": -1, "resume_mode": "auto", "seed": 3, "device": self.device,
                        "logger": ["jsonl"]},
            "data": {"train_files": [str(data)], "tokenizer": "bytes", "max_length": length, "train_batch_size": batch,
                     "micro_batch_size_per_gpu": micro},
            "actor_rollout_ref": {
                "model": {"config": model, "dtype": dtype},
                "actor": {"optim": {"lr": 1e-3, "weight_decay": 0.1, "clip_grad": 1.0},
                          "megatron": {}, "checkpoint": {"save_contents": list(contents), "load_contents": list(contents)}},
            },
        }  # fmt: skip
        for dotted, value in more.items():
            *path, last = dotted.split("__")
            node = config  # what else it says stays
            for key in path:
                node = node.setdefault(key, {})
            node[last] = value
        if model is LLAMA_1B:  # whose weights a host draws, a number at a time
            config["trainer"]["threads_per_rank"] = self.threads
        file = self.work / f"{name}.yaml"
        file.write_text(json.dumps(config, indent=1))
        return file

    def grpo(self, name, model, steps, *, megatron, rollout, **more):
        data = self.work / "prompts.jsonl"
        data.write_text("".join(json.dumps({"prompt": f"{i:02d}=", "answer": f"{i:02d}", "data_source": "copy"}) + "\n" for i in range(16)))
        return self.config(
            name, model, steps=steps, length=64, batch=4,
            trainer__task="rl", actor_rollout_ref__actor__megatron=megatron, actor_rollout_ref__rollout=rollout,
            actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=16, reward={"type": "exact"}, algorithm={"adv_estimator": "grpo"},
            data={"train_files": [str(data)], "tokenizer": "bytes", "train_batch_size": 4, "max_prompt_length": 8, "max_response_length": 8},
            **more,
        )  # fmt: skip

    def train(self, config, ranks=1):
        launch = ["launch", "--nproc-per-node", ranks] if ranks > 1 else []
        return self.run(KEEL, *launch, "train", config)

    def metrics(self, name):
        path = self.work / name / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return {r["step"]: r["data"] for r in map(json.loads, lines) if LOSS in r["data"]}

    def values(self, name, key):
        lines = (self.work / name / "metrics.jsonl").read_text().split("\n")[:-1]
        return [data[key] for data in (json.loads(line)["data"] for line in lines) if key in data]

    def same_bits(self, one, other):
        for scope in ("actor/model", "actor/optimizer"):  # the copies of the configuration name other folders
            code, text = self.run(KEEL, "ckpt", "diff", "--scope", scope, one, other, check=False)
            if code != 0:
                raise Failed(f"{one.name} of {one.parent.name} and {other.parent.name} differ: {last_words(text)}")

    def gpus(self):
        code, text = self.run(KEEL, "doctor", self.work, check=False)
        found = re.search(r"cuda +(\d+) usable GPU", text)
        return int(found[1]) if found else 0


def last_words(text):
    return " | ".join(text.strip().split("\n")[-3:])[-600:]


def die_with_parent():
    """In a process that begins: whatever ends the check ends it, too, which would keep the GPU for itself."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def ended(process):
    """What a process said that is ended now."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=5)[0]
    except (ProcessLookupError, subprocess.TimeoutExpired):  # one that it started has its output, and lives on
        return ""


# The parts, in the order of the run.


def env(check):
    _, text = check.run(KEEL, "doctor", *([] if check.dry else ["--measure"]), check.work)
    facts = [line.strip() for line in text.split("\n") if line.strip()]
    if check.device == "cuda" and check.gpus() == 0:
        raise Failed(f"no usable GPU: {last_words(text)}")
    smi = shutil.which("nvidia-smi")
    if smi:
        facts.append(check.run(smi, "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv")[1])
    return {"doctor": facts}


def tests(check):
    """The test programs of a GPU: training against the host, and each of Keel's kernels against its run on the host, to the bit."""
    found = {}
    for name, variables in (("cuda_test", {}), ("gpu_bodies_test", {"KEEL_GPU_BODIES": "device"})):
        program = BIN / name
        if not program.exists() or (check.dry and name != "gpu_bodies_test"):
            continue
        variables = {} if check.device == "cpu" else variables
        command = ["env", *(f"{k}={v}" for k, v in variables.items()), program]
        _, text = check.run(*command, *(["--gtest_filter=AdamW*"] if check.dry else []))
        passed = len(re.findall(r"^\[       OK \]", text, re.M))
        skipped = len(re.findall(r"^\[  SKIPPED \] \w", text, re.M))
        if check.device == "cuda" and (skipped or not passed or "no usable GPU" in text):
            raise Failed(f"{name} skips: {last_words(text)}")
        found[name] = {"passed": passed, "skipped": skipped}
    if not found:
        raise Absent("no test program is built here")
    return found


def agree(check):
    """A model that was trained a little gives the same on the host and on the device: tokens and log-probabilities."""
    config = check.config("agree", TINY, steps=4, length=128, batch=4, dtype="float32", save=4, contents=["model", "extra"])
    check.train(config)
    step = check.work / "agree" / "global_step_4"
    rows = check.work / "rows.jsonl"
    chance = random.Random(11)
    rows.write_text("".join(
        json.dumps({"input_ids": [chance.randrange(TINY["vocab_size"]) for _ in range(length)]}) + "\n"
        for length in (1, 7, 16, 33, 100)))  # fmt: skip
    devices = ("cpu", check.device)
    tokens, scores = [], []
    for i, device in enumerate(devices):
        out = check.work / f"generated_{i}.jsonl"
        check.run(KEEL, "generate", "--model", step, "--input", rows, "--output", out, "--max-new-tokens", 24, "--device", device)
        tokens.append([json.loads(line)["output_ids"] for line in out.read_text().splitlines()])
        out = check.work / f"scored_{i}.jsonl"
        check.run(KEEL, "score", "--model", step, "--input", rows, "--output", out, "--device", device)
        scores.append([p for line in out.read_text().splitlines() for p in json.loads(line)["log_probs"]])
    off = max(abs(a - b) for a, b in zip(*scores, strict=True))
    if tokens[0] != tokens[1]:
        raise Failed("greedy tokens of the host and of the device differ")
    if off > 1e-3:
        raise Failed(f"log-probabilities differ by {off}")
    return {"rows": len(tokens[0]), "tokens": sum(map(len, tokens[0])), "log_prob_difference": off}


def determinism(check):
    """Two processes, and one that is killed and goes on: equal bits (G2)."""
    steps, at = (6, 2) if check.dry else (30, 10)
    length = 128 if check.dry else 1024
    shape = {"steps": steps, "length": length, "batch": 2, "save": at, "trainer__max_ckpts_to_keep": None}
    for name in ("first", "second"):
        check.train(check.config(name, TINY, **shape))
    last = f"global_step_{steps}"
    check.same_bits(check.work / "first" / last, check.work / "second" / last)
    first, second = check.metrics("first"), check.metrics("second")
    if [first[s][LOSS] for s in sorted(first)] != [second[s][LOSS] for s in sorted(second)]:
        raise Failed("losses of two runs differ")
    # Its saves are done when their step is, so that one is there to go on from.
    config = check.config("killed", TINY, **shape, actor_rollout_ref__actor__checkpoint__async_save=False)
    # In the middle of a step, by SIGKILL, between two saves.
    code, text = check.run("env", f"KEEL_FAILPOINT=step.update:0:{at + 2}:kill", KEEL, "train", config, check=False)
    if code != -signal.SIGKILL:
        raise Failed(f"exit {code} of the run that was to be killed: {last_words(text)}")
    reached = max(check.metrics("killed"), default=0)
    _, text = check.train(config)
    if "resumed from" not in text:
        raise Failed(f"it did not resume: {last_words(text)}")
    check.same_bits(check.work / "first" / last, check.work / "killed" / last)
    return {"steps": steps, "tokens_a_step": 2 * length, "killed_after_step": reached}


def layouts(check):
    """TP 2 x PP 2 against one rank (G3): on four GPUs over NCCL, on fewer by way of the host, or on the host."""
    gpus = check.gpus() if check.device == "cuda" else 0
    shared = 0 < gpus < 4
    steps = 3
    shape = {"steps": steps, "length": 64, "batch": 4, "dtype": "float32"}
    check.train(check.config("one", TINY, **shape))
    split = {"actor_rollout_ref__actor__megatron__tensor_model_parallel_size": 2,
             "actor_rollout_ref__actor__megatron__pipeline_model_parallel_size": 2}  # fmt: skip
    check.train(check.config("four", TINY, **shape, **split, trainer__share_gpus=shared), ranks=4)
    one, four = check.metrics("one"), check.metrics("four")
    off = max(abs(one[s][LOSS] - four[s][LOSS]) / one[s][LOSS] for s in one)
    if sorted(one) != sorted(four) or off > 1e-3:
        raise Failed(f"losses of TP 2 x PP 2 and of one rank differ by {off}")
    return {"steps": steps, "loss_difference": off, "messages": "NCCL" if gpus >= 4 else "gloo, by way of the host"}


def rl(check):
    """GRPO with offload: what generates computes with what was trained (G8): to the bit with batch_invariant, nearly without."""
    steps = 2 if check.dry else 3
    found = {"steps": steps}
    for name, invariant in (("grpo", False), ("grpo_invariant", True)):
        megatron = {"param_offload": True, "grad_offload": True, "optimizer_offload": True}
        check.train(check.grpo(name, TINY, steps, megatron=megatron, rollout={"n": 4, "batch_invariant": invariant}))
        gaps = check.values(name, "training/rollout_log_probs_diff_max")
        if len(gaps) != steps:
            raise Failed(f"{len(gaps)} of {steps} steps compared log-probabilities")
        found["log_prob_difference" + ("_batch_invariant" if invariant else "")] = max(gaps)
    if found["log_prob_difference"] > 1e-2 or found["log_prob_difference_batch_invariant"] != 0:
        raise Failed(f"log-probabilities of generation and training differ by {found}")
    return found


def train(check):
    """Tokens a second and the share of the device's peak, beside PyTorch's compiler (G4)."""
    length, steps = (64, 4) if check.dry else (4096, 20)
    found = {}
    for micro_batches in (1, 4):
        name = f"train_{micro_batches}"
        shape = {"steps": steps, "length": length, "batch": micro_batches}
        check.train(check.config(name, check.model, **shape))
        lines = [data for step, data in sorted(check.metrics(name).items()) if step > steps // 4]
        seconds = statistics.median(data["time_metrics/end_to_end(s)"] for data in lines)
        flops = statistics.median(data["tflops"] for data in lines) * 1e12
        found[str(micro_batches)] = {
            "seconds_a_step": seconds,
            "tokens_per_s": micro_batches * length / seconds,
            "tflops": flops / 1e12,
            "share_of_989": flops / PEAK_FLOPS if check.device == "cuda" else None,
            "mfu_percent": lines[-1].get("mfu(%)"),  # where the device's peak is known
            "parts_s": {key.split("/")[1]: statistics.median(data[key] for data in lines)
                        for key in lines[-1] if key.startswith("time_metrics/") and all(key in data for data in lines)},
            "memory_gib": {key.split("/")[1]: value for key, value in lines[-1].items() if key.startswith("memory/")},
        }  # fmt: skip
    found["slowest"] = slowest(check, length)
    found["peer"] = peer(check, "train", length=length, steps=steps)
    return found


def slowest(check, length):
    """Where the time of a step goes: of ten kernels, on a host operations, the microseconds and the share of all that libtorch's profiler gives them."""
    shape = {"steps": 4, "length": length, "batch": 1}
    kind = "kernel" if check.device == "cuda" else "cpu_op"
    try:
        check.train(check.config("profiled", check.model, **shape, trainer__profile={"steps": [4]}))
        trace = json.loads((check.work / "profiled/profile/step_4.rank_0.json").read_text(errors="replace"))
    except (Failed, OSError, ValueError) as failure:  # figures, and no check
        return {"absent": str(failure)}
    spent = collections.Counter()
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") == kind:
            spent[event["name"][:120]] += event["dur"]
    total = sum(spent.values())
    return {name: {"us": round(us, 1), "share": round(us / total, 4)} for name, us in spent.most_common(10)}


def decode(check):
    """Tokens a second at batches of 1, 64 and 256, beside transformers with a static cache (G5)."""
    new, prompt = (8, 8) if check.dry else (256, 1024)
    step = check.reached.get("step")
    if step is None:
        config = check.config("weights", check.model, steps=1, length=64, batch=1, save=1, contents=["model", "extra"])
        check.train(config)
        step = check.work / "weights" / "global_step_1"
    check.reached["step"] = step
    weights = 2 * parameters(check.model)
    found = {}
    for batch in (1, 4) if check.dry else (1, 64, 256):
        rows = check.work / f"prompts_{batch}.jsonl"
        chance = random.Random(batch)
        rows.write_text("".join(
            json.dumps({"input_ids": [chance.randrange(check.model["vocab_size"]) for _ in range(prompt)]}) + "\n" for _ in range(batch)))

        def seconds(tokens, *more):
            begin = time.monotonic()
            check.run(KEEL, "generate", "--model", step, "--input", rows, "--output", check.work / "out.jsonl", "--device", check.device,
                      "--max-new-tokens", tokens, "--max-num-seqs", batch, *more)  # fmt: skip
            return time.monotonic() - begin

        one = seconds(1)  # the difference is `new` tokens a row, without start, prompt and end
        cache = 2 * 2 * check.model["num_hidden_layers"] * check.model["num_key_value_heads"] * check.model["head_dim"]
        step_bytes = weights + batch * (prompt + new / 2) * cache
        rate = batch * new / max(1e-9, seconds(new + 1) - one)
        found[str(batch)] = {
            "tokens_per_s": rate,
            "share_of_memory_limit": rate / batch * step_bytes / MEMORY_BYTES_S if check.device == "cuda" else None,
        }
        if batch == 1:  # where replayed steps gain most
            found[str(batch)]["eager_tokens_per_s"] = batch * new / max(1e-9, seconds(new + 1, "--enforce-eager") - one)
    found["peer"] = peer(check, "decode", new=new, prompt=prompt)
    return found


def save(check):
    """What a save every few steps costs, beside PyTorch's DCP, and what offload does to a step (G6)."""
    steps, every, length = (6, 2, 64) if check.dry else (40, 20, 4096)
    shape = {"steps": steps, "length": length, "batch": 1}
    plain, saving = (check.config(name, check.model, **shape, save=each, trainer__max_ckpts_to_keep=1)
                     for name, each in (("plain", -1), ("saving", every)))  # fmt: skip
    check.train(plain)
    check.train(saving)

    def median(name):
        return statistics.median(d["time_metrics/end_to_end(s)"] for s, d in check.metrics(name).items() if s > 2)

    total = {name: sum(d["time_metrics/end_to_end(s)"] for s, d in check.metrics(name).items() if s > 2) for name in ("plain", "saving")}
    records = [json.loads(line)["data"] for line in (check.work / "saving" / "metrics.jsonl").read_text().splitlines()]
    saves = [{k: v for k, v in r.items() if k.startswith("checkpoint/") and isinstance(v, (int, float))} for r in records if any(k.startswith("checkpoint/") for k in r)]
    offloading = check.config("offloading", check.model, **{**shape, "steps": 4 if check.dry else 20},
                           actor_rollout_ref__actor__megatron={"param_offload": True, "grad_offload": True, "optimizer_offload": True})  # fmt: skip
    check.train(offloading)
    lines = [d for s, d in sorted(check.metrics("offloading").items()) if s > 2]
    found = {
        "median_step_s": {name: median(name) for name in ("plain", "saving")},
        "lost_share": (total["saving"] - total["plain"]) / total["plain"],
        "saves": saves,
        "offload_s": {key: statistics.median(d[key] for d in lines) for key in lines[-1] if key.startswith("timing_s/")},
    }
    shutil.rmtree(check.work / "saving")  # the peer's take as much again
    return {**found, "peer": peer(check, "save", work=check.work)}


def offload(check):
    """Weights and optimizer state to the host and back, beside plain copies and PyTorch; the driver has their memory meanwhile, and nothing grows (G7)."""
    program = BIN / "keel_bench"
    if not program.exists():
        raise Absent("no keel_bench is built here")
    cycles, pairs = (5, 2) if check.dry else (100, 5)
    slack = 64 << 20
    config = check.work / "offload.json"
    config.write_text(json.dumps(check.model))
    lines = ["digest", "cycle", "copy", *(["cycle", "copy"] * pairs), f"cycles {cycles}", "digest", "quit"]
    _, text = check.run(program, "worker", "offload", "--model-config", config, "--dtype", "bfloat16", "--threads", check.threads,
                        "--device", check.device, lines=lines)  # fmt: skip
    said = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    for one in said:
        if "error" in one:
            raise Failed(one["error"])
    ready, first, _, _, *turns, held, last = said
    if first["digest"] != last["digest"]:
        raise Failed("the state that came back is another one")

    def median(turns):
        return {key: statistics.median(turn[key] for turn in turns) for key in ("offload_s", "load_s")}

    found = {"bytes": ready["bytes"], "keel": median(turns[0::2]), "copies": median(turns[1::2])}
    found["round_s"] = sum(found["keel"].values())
    found["rate_over_copies"] = sum(found["copies"].values()) / found["round_s"]
    if "free_on_host" in held:
        away, back = held["free_on_host"][2:], held["free_on_device"][2:]
        found["given_back_bytes"] = min(away) - max(back)
        found["moves_over_cycles_bytes"] = max(max(away) - min(away), max(back) - min(back))
        if found["given_back_bytes"] < ready["bytes"] - slack or found["moves_over_cycles_bytes"] > slack:
            raise Failed(f"memory of the driver: {found}")
    found["peer"] = peer(check, "offload")
    return found


def sync(check):
    """Weights from two pipeline stages to what generates on each: bytes a second, beside a broadcast of each tensor."""
    gpus = check.gpus() if check.device == "cuda" else 0
    stages = {"pipeline_model_parallel_size": 2}
    rollout = {"n": 2, "tensor_model_parallel_size": 1}
    check.train(check.grpo("sync", check.model, 3, megatron=stages, rollout=rollout, trainer__share_gpus=gpus == 1), ranks=2)
    seconds = [value for value in check.values("sync", "timing_s/update_weights") if value > 0]
    if not seconds:
        raise Failed("no step says how long its weights took to be synced")
    weights = 2 * parameters(check.model)
    return {"bytes": weights, "seconds": statistics.median(seconds), "bytes_per_s": weights / statistics.median(seconds),
            "messages": "NCCL" if gpus >= 2 else "gloo, by way of the host", "peer": peer(check, "sync", work=check.work)}  # fmt: skip


def tools(check):
    """compute-sanitizer over the tests of kernels."""
    if check.device != "cuda" or check.dry:
        raise Absent("of a GPU alone")
    found = {}
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if (BIN / "gpu_bodies_test").exists() and pathlib.Path(sanitizer).exists():
        for tool in ("memcheck", "racecheck"):
            code, text = check.run("env", "KEEL_GPU_BODIES=device", sanitizer, "--tool", tool, "--error-exitcode", 9, BIN / "gpu_bodies_test", check=False)
            if code != 0:
                raise Failed(f"{tool}: {last_words(text)}")
            found[tool] = "0 errors"
    if not found:
        raise Absent("no compute-sanitizer is here")
    return found


def parameters(model):
    hidden, kv = model["hidden_size"], model["num_key_value_heads"] * model["head_dim"]
    q = model["num_attention_heads"] * model["head_dim"]
    layer = hidden * (2 * q + 2 * kv + 3 * model["intermediate_size"]) + 2 * hidden
    return model["num_hidden_layers"] * layer + model["vocab_size"] * hidden + hidden


def peer(check, what, **shape):
    """A peer's figures are no check: that it cannot run is said, and fails nothing."""
    command = [sys.executable, HERE / "gpu_peers.py", what, "--device", check.device, "--model", json.dumps(check.model)]
    for key, value in shape.items():
        command += [f"--{key}", value]
    try:
        code, text = check.run(*command, check=False)
    except Failed as failure:
        return {"absent": str(failure)}
    if code != 0:
        return {"absent": last_words(text)}
    return json.loads(text.strip().split("\n")[-1])


# Name, function, and the most seconds of a whole run that it may take. Together they may take more than there are: what one
# leaves, later ones have.
PARTS = (
    ("env", env, 60), ("tests", tests, 75), ("agree", agree, 45), ("determinism", determinism, 75),
    ("layouts", layouts, 45), ("rl", rl, 45), ("train", train, 150), ("decode", decode, 120), ("save", save, 120),
    ("offload", offload, 60), ("sync", sync, 60), ("tools", tools, 90),
)  # fmt: skip


def write(path, result):
    """Whole or not there, whatever ends the run."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(temporary, path)


def commit():
    packed = HERE / "commit"
    if packed.exists():
        return packed.read_text().strip()
    done = subprocess.run(["git", "-C", str(HERE), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main():
    parser = argparse.ArgumentParser(prog="gpu_check.sh", allow_abbrev=False)
    parser.add_argument("out")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", default="")
    parser.add_argument("--work")
    args = parser.parse_args()
    wanted = [name for name in args.only.split(",") if name] or [name for name, _, _ in PARTS]
    unknown = sorted(set(wanted) - {name for name, _, _ in PARTS})
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
    check = Check(args)
    try:
        return run_parts(check, args, wanted)
    finally:
        shutil.rmtree(check.work, ignore_errors=True)


def run_parts(check, args, wanted):
    result = {"commit": commit(), "device": args.device, "dry_run": args.dry_run, "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "seconds": args.seconds, "parts": []}  # fmt: skip
    path = check.out / "gpu.json"
    write(path, result)
    begin = time.monotonic()
    for name, part, seconds in PARTS:
        if name not in wanted:
            continue
        entry = {"name": name, "status": "passed"}
        began = time.monotonic()
        check.end = min(begin + args.seconds, began + seconds * (args.seconds / 600))
        try:
            if began - begin >= args.seconds:
                raise Absent("no time was left")
            entry["figures"] = part(check)
        except Absent as absent:
            entry.update(status="absent", why=str(absent))
        except Exception as failure:  # noqa: BLE001  whatever it is, the parts after it still have their time
            entry.update(status="failed", why=f"{'' if isinstance(failure, Failed) else type(failure).__name__ + ': '}{failure}")
        entry["took_s"] = round(time.monotonic() - began, 2)
        result["parts"].append(entry)
        write(path, result)
        print(f"{name:<12} {entry['status']:<7} {entry['took_s']:7.1f} s  {entry.get('why', '')}", flush=True)
    return 1 if any(entry["status"] == "failed" for entry in result["parts"]) else 0


if __name__ == "__main__":
    sys.exit(main())
