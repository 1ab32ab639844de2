"""Time from the command to the first finished step, and memory of each rank, with a tiny model.

    keel bench startup [--ranks 4] [--repeats 5] [--peer]

Runs `keel launch --nproc-per-node N train ...` in a fresh folder until metrics.jsonl holds the first
step, reads the memory of every rank from /proc, and ends the run. With --peer, turns alternate with
transformers under torchrun. The model is so small that what remains is the cost of being there.
"""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import driver
import machine
from driver import ROOT

LIMIT_S = 180
MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 259,
    "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip


def keel_config(folder):
    text = folder / "text.txt"
    text.write_text("All work and no play makes a dull test. " * 500)
    # JSON is YAML.
    config = {
        "trainer": {
            "task": "pretrain", "default_local_dir": str(folder / "run"), "save_freq": -1,
            "total_training_steps": 1_000_000, "device": "cpu", "logger": ["jsonl"],
        },
        "data": {
            "train_files": [str(text)], "tokenizer": "bytes", "max_length": 128,
            "train_batch_size": 4, "micro_batch_size_per_gpu": 1,
        },
        "actor_rollout_ref": {"model": {"config": MODEL, "dtype": "float32"}},
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path, folder / "run" / "metrics.jsonl"


def parents():
    """pid -> parent's pid, of all processes."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass  # ended meanwhile
    return found


def ranks_of(launcher):
    """Processes below the launcher that have no child: the ranks."""
    parent = parents()
    below = set()
    for pid in parent:
        ancestor = pid
        while ancestor in parent and ancestor != launcher:
            ancestor = parent[ancestor]
        if ancestor == launcher and pid != launcher:
            below.add(pid)
    return sorted(below - {parent[pid] for pid in below})


def memory_mib(pid):
    """Resident, and proportional (shared pages divided by their users)."""
    fields = {}
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, value = line.split(":")
        fields[key] = int(value.split()[0]) / 1024
    return {"rss": fields["Rss"], "pss": fields["Pss"]}


def run_once(command, metrics, ranks):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    launcher = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env=environment, start_new_session=True, text=True,
    )  # fmt: skip
    try:
        while not (metrics.exists() and "\n" in metrics.read_text()):
            if launcher.poll() is not None:
                raise SystemExit(f"{command[0]} ended with {launcher.returncode}: {launcher.stderr.read()[-2000:]}")
            if time.perf_counter() - start > LIMIT_S:
                raise SystemExit(f"no step after {LIMIT_S} s: {command}")
            time.sleep(0.002)
        seconds = time.perf_counter() - start
        pids = ranks_of(launcher.pid)
        if len(pids) != ranks:
            raise SystemExit(f"expected {ranks} ranks below the launcher, found {len(pids)}")
        return {"seconds": seconds, "memory_mib": [memory_mib(pid) for pid in pids]}
    finally:
        # The ranks may be in sessions of their own, and are no longer below a launcher that has died.
        for pid in [launcher.pid, *ranks_of(launcher.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        launcher.wait()


def run_keel(args):
    with tempfile.TemporaryDirectory() as folder:
        config, metrics = keel_config(pathlib.Path(folder))
        command = [str(args.keel), "launch", "--nproc-per-node", str(args.ranks), "train", str(config)]
        return run_once(command, metrics, args.ranks)


def run_peer(args):
    with tempfile.TemporaryDirectory() as folder:
        config, metrics = pathlib.Path(folder) / "config.json", pathlib.Path(folder) / "metrics.jsonl"
        config.write_text(json.dumps(MODEL))
        script = str(ROOT / "bench" / "peers" / "startup_transformers.py")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, "--nproc-per-node", str(args.ranks), script, str(config), str(metrics)]
        return run_once(command, metrics, args.ranks)


def summary(samples):
    memory = [rank for sample in samples for rank in sample["memory_mib"]]
    return {
        "seconds_to_first_step": statistics.median(s["seconds"] for s in samples),
        "rss_mib_per_rank": statistics.median(m["rss"] for m in memory),
        "pss_mib_per_rank": statistics.median(m["pss"] for m in memory),
        "samples": samples,
    }


def main():
    parser = driver.Parser("startup", __doc__)
    parser.add_argument("--keel", type=driver.existing, default=str(driver.KEEL))
    parser.add_argument("--ranks", type=driver.count(high=1024), default=4)
    parser.add_argument("--repeats", type=driver.count(), default=5)
    parser.add_argument("--peer", action="store_true", help="also transformers under torchrun")
    parser.add_argument("--only-peer", action="store_true")
    args = driver.parse(parser)
    sides = {"keel": run_keel} if not args.only_peer else {}
    if args.peer or args.only_peer:
        sides["transformers"] = run_peer
    samples = {name: [] for name in sides}
    facts = machine.facts()
    for _ in range(args.repeats):
        for name, run in sides.items():
            samples[name].append(run(args))
    report = {"machine": facts, "commit": machine.commit(ROOT), "ranks": args.ranks}
    driver.put(json.dumps(report | {name: summary(s) for name, s in samples.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
