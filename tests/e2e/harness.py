"""What the end-to-end tests share: a tiny training job, and ways to run, watch and end it."""

import atexit
import copy
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

KEEL = os.environ["KEEL_BINARY"]
# A machine under load must not fail a test; a hang must.
LIMIT_S = float(os.environ.get("KEEL_TEST_LIMIT_S", "240"))
# Preloaded, it halves reads and writes, or fails one (tests/support/short_io); not with sanitizers.
SHORT_IO = pathlib.Path(KEEL).parent / "libkeel_short_io.so"
# Larger sweeps, and what tests others hold in a smaller form: docs/nightly.md.
NIGHTLY = bool(os.environ.get("KEEL_NIGHTLY"))
nightly = unittest.skipUnless(NIGHTLY, "nightly alone (KEEL_NIGHTLY=1)")
# With cuda most tests hold on GPUs, too, real or pretend ones (tests/support/pretend_gpu).
DEVICE = os.environ.get("KEEL_TEST_DEVICE", "cpu")

LOSS, GRAD_NORM, SAMPLES = "loss_metrics/global_avg_loss", "grad_norm", "data/sample_digest"
# Metrics of the machine, not of the training.
UNSTABLE = ("time_metrics/", "timing_s/", "throughput", "tflops", "mfu", "gemm_share", "memory/", "checkpoint/")

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 263,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
# Experts in two layers of three, of a width that is a prime, and the load-balancing loss.
MOE_MODEL = {
    **MODEL,
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 29,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
    "output_router_logits": True,
    "router_aux_loss_coef": 0.02,
}


def write_documents(path, count=20, length=32, seed=5):
    """JSONL with input_ids: for pre-training with max_length 32, `count` samples an epoch."""
    chance = random.Random(seed)
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(count):
            ids = [chance.randrange(MODEL["vocab_size"]) for _ in range(length)]
            out.write(json.dumps({"input_ids": ids}) + "\n")


def base_config(data_file, run_dir):
    return {
        "trainer": {
            "task": "pretrain",
            "default_local_dir": str(run_dir),
            "total_training_steps": 12,
            "save_freq": -1,
            "test_freq": -1,
            "resume_mode": "auto",
            "seed": 3,
            "device": DEVICE,
            "logger": ["jsonl"],
        },
        "data": {
            "train_files": [str(data_file)],
            "tokenizer": "bytes",
            "max_length": 32,
            "train_batch_size": 4,
            "micro_batch_size_per_gpu": 1,
            "shuffle": True,
        },
        "actor_rollout_ref": {
            "model": {"config": dict(MODEL), "dtype": "float32"},
            "actor": {
                "megatron": {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1},
                "optim": {
                    "lr": 1e-3,
                    "betas": [0.9, 0.95],
                    "weight_decay": 0.1,
                    "clip_grad": 1.0,
                    "lr_decay_style": "cosine",
                    "lr_warmup_steps": 3,
                    "min_lr": 1e-5,
                },
                "checkpoint": {"save_contents": ["model", "optimizer", "extra"]},
            },
        },
    }


def merged(base, changes):
    """A deep copy of `base` with "a.b.c": value entries set; None as value of DELETE removes."""
    result = copy.deepcopy(base)
    for dotted, value in changes.items():
        *path, last = dotted.split(".")
        node = result
        for key in path:
            node = node.setdefault(key, {})
        node[last] = value
    return result


def environment():
    """Ours, without any launcher's variables and a shell's width, one thread a rank."""
    drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "TORCHELASTIC", "PET_", "SLURM_", "OMPI_", "PMI_", "COLUMNS")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    return {**kept, "OMP_NUM_THREADS": "1"}


def keel(*arguments, limit=LIMIT_S):
    return subprocess.run(
        [KEEL, *map(str, arguments)],
        capture_output=True, text=True, timeout=limit, env=environment(), check=False,
    )  # fmt: skip


def another_build(folder, program=True, module="libkeel_torch.so"):
    """A program in `folder` whose module has another build id; without `program`, the module alone is another's."""
    here = pathlib.Path(KEEL).parent
    notes = subprocess.run(["readelf", "-n", here / module], capture_output=True, text=True, check=True).stdout
    ours = notes.split("Build ID: ")[1].split()[0]
    theirs = f"{int(ours[0], 16) ^ 1:x}{ours[1:]}"
    folder.mkdir()
    for name, spell in ((module, bytes.fromhex), ("keel", str.encode)):
        content = (here / name).read_bytes()
        if spell(ours) not in content:
            raise AssertionError(f"{name} does not have the build id {ours}")
        (folder / name).write_bytes(content.replace(spell(ours), spell(theirs)) if program or name == module else content)
        (folder / name).chmod(0o755)
    return folder / "keel", ours, theirs


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def stable(data):
    """The metrics of a step that another run of the same training has too, bit for bit."""
    return {key: value for key, value in data.items() if not key.startswith(UNSTABLE)}


def read_jsonl(path):
    """Complete lines only: the last may be half-written when the writer was killed."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:  # not begun, or a run that begins anew puts the old file away
        return []
    lines = text.split("\n")[:-1]
    return [json.loads(line) for line in lines]


@functools.cache
def shared_folder():
    """For what several tests of a file need and none changes; it goes with the process."""
    folder = tempfile.mkdtemp(prefix="keel-e2e-shared-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return pathlib.Path(folder)


class Job(unittest.TestCase):
    """A test with a folder, data, and a run directory per name."""

    def setUp(self):
        folder = tempfile.mkdtemp(prefix="keel-e2e-")
        self.folder = pathlib.Path(folder)
        self.addCleanup(self._clean)
        self.data = self.folder / "documents.jsonl"
        write_documents(self.data)

    def _clean(self):
        if os.environ.get("KEEL_TEST_KEEP"):
            print(f"kept {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run_dir(self, name):
        return self.folder / name

    def config(self, name, **changes):
        """Writes <name>.yaml (JSON is YAML) and returns its path."""
        changes = {key.replace("__", "."): value for key, value in changes.items()}
        path = self.folder / f"{name}.yaml"
        config = merged(base_config(self.data, self.run_dir(name)), changes)
        path.write_text(json.dumps(config, indent=1))
        return path

    def command(self, config, ranks, *overrides):
        launch = ["launch", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        return [*launch, "train", str(config), *overrides]

    def train(self, config, *overrides, ranks=1):
        done = keel(*self.command(config, ranks, *overrides))
        self.assertEqual(done.returncode, 0, f"{done.args}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done

    def start(self, config, *overrides, ranks=1, failpoint=None):
        return self.start_command(*self.command(config, ranks, *overrides), failpoint=failpoint)

    def start_command(self, *arguments, failpoint=None):
        """A program of which the test waits for something; what it says is in log()."""
        log = open(self.folder / "log.txt", "ab")
        self.addCleanup(log.close)
        armed = {} if failpoint is None else {"KEEL_FAILPOINT": failpoint}
        process = subprocess.Popen(
            [KEEL, *map(str, arguments)], stdout=log, stderr=subprocess.STDOUT, env={**environment(), **armed}
        )
        self.addCleanup(end_with_children, process)
        return process

    def log(self):
        path = self.folder / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def metrics(self, name):
        """{step: data} of the training steps; each stands once, also after a restart."""
        records = [r for r in read_jsonl(self.run_dir(name) / "metrics.jsonl") if LOSS in r["data"]]
        found = {record["step"]: record["data"] for record in records}
        self.assertEqual(len(found), len(records), "a step stands twice in metrics.jsonl")
        return found

    def wait_until(self, condition, what, process=None):
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if process is not None and process.poll() is not None:
                self.fail(f"{what}: the run ended first, exit {process.returncode}\n{self.log()[-3000:]}")
            if time.monotonic() > deadline:
                self.fail(f"{what}: not within {LIMIT_S} s\n{self.log()[-3000:]}")
            time.sleep(0.002)

    def stopped_rank(self, process, rank):
        """The process id of a rank, once its fail point has stopped it."""
        self.wait_until(lambda: stands_still(pids_of(process).get(rank)), f"rank {rank} stands still", process)
        return pids_of(process)[rank]

    def continued(self, process, rank):
        """A rank that its fail point stops goes on."""
        kill(self.stopped_rank(process, rank), signal.SIGCONT)


def descendants(pid):
    """All processes below a live one, those nearest to it first."""
    parent = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass  # ended meanwhile
    found, level = [], [pid]
    while level:
        level = [child for child, above in parent.items() if above in level]
        found += level
    return found


def rank_of(pid):
    """RANK in a process's environment, or None."""
    try:
        content = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for entry in content.split(b"\0"):
        if entry.startswith(b"RANK="):
            return int(entry[5:])
    return None


def ranks_below(launcher):
    """{rank: pid} of the processes that a launcher has started."""
    found = {}
    for pid in descendants(launcher.pid):
        found.setdefault(rank_of(pid), pid)  # what a rank has started has its environment
    found.pop(None, None)
    return found


def pids_of(process):
    """{rank: pid} of a job: what a launcher has started, or the only process."""
    return ranks_below(process) or {0: process.pid}


def stands_still(pid):
    """Whether a signal has stopped it; None is nobody."""
    try:
        return pid is not None and pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def signals_wait(pid):
    """Whether a signal was sent to a process that stands still, and waits until it goes on."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return any(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd")))


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def stop_everybody(process):
    """SIGTERM to all of a job as scancel sends it: first to what its ranks have started, a moment later to these and their launcher."""
    everybody, ranks = descendants(process.pid), set(ranks_below(process).values())
    for pid in set(everybody) - ranks:
        kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    for pid in (*ranks, process.pid):
        kill(pid, signal.SIGTERM)


def end_with_children(process):
    if process.poll() is None:
        for pid in [process.pid, *descendants(process.pid)]:
            kill(pid)
    process.wait()
