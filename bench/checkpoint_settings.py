"""Who is measured by the checkpoint benchmark, and in which settings."""

import pathlib
import sys

import driver
import ranks

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = {
    "two-ranks": {"ranks": 2, "megabytes": 1000},
    "small-state": {"ranks": 2, "megabytes": 64},
    "spare-core": {"ranks": 1, "megabytes": 500},
}
# dcp-*: torch.distributed.checkpoint; -kept: staging memory that is kept (and shared, with a process);
# -overlapped: staging beside training. See bench/peers/checkpoint_systems.py.
PEERS = [
    "dcp-thread-kept", "dcp-thread-overlapped", "dcp-thread", "dcp-process-kept", "dcp-process", "dcp-save",
    "torch-save",
]  # fmt: skip
QUICK = 10  # --quick divides the state by this


class Workers:
    """Starts workers, each with a directory of its own."""

    def __init__(self, args):
        self.args = args
        self.started = 0

    def start(self, name, world, megabytes, state="decoder", **options):
        """`options`: of Keel's worker alone, as flags."""
        args = self.args
        self.started += 1
        folder = args.dir / f"{self.started}-{name}"
        folder.mkdir()
        shared = [
            "--checkpoints", str(folder / "run"), "--state", state, "--megabytes", str(megabytes),
            "--products", str(args.products),
        ]  # fmt: skip
        (folder / "run").mkdir()
        if name == "keel":
            command = driver.keel_worker(args, "checkpoint", *shared, "--io", args.io)
            for key, value in options.items():
                command += [f"--{key.replace('_', '-')}"] + ([] if value is True else [str(value)])
        else:
            script = str(ROOT / "bench" / "peers" / "checkpoint_worker.py")
            command = [sys.executable, script, "--system", name, *shared]
        return ranks.Ranks(name, command, world, folder / "stderr.txt")

    def megabytes(self, whole):
        return max(1, whole // QUICK) if self.args.quick else whole
