"""A rank of a peer of `keel bench checkpoint`: torch's own ways to save, beside the same training.

    checkpoint_worker.py --system dcp-thread --checkpoints DIR [--state decoder] [--megabytes 1000] ...

Speaks the worker protocol (README.md) with the commands of the checkpoint benchmark.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import checkpoint_state
import checkpoint_systems


class Worker:
    def __init__(self, args):
        self.args = args
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        torch.set_num_threads(args.threads)
        self.mesh = None
        save_group = None
        if "dcp" in args.system or self.world > 1:  # Keel's module finds its peers by it
            dist.init_process_group("gloo")
            save_group = dist.new_group(backend="gloo")  # saves must not meet training's reductions
        if self.world > 1:
            self.mesh = init_device_mesh("cpu", (self.world,))
        self.system = checkpoint_systems.SYSTEMS[args.system](save_group)
        self.state = self.new_state("rows")
        size = checkpoint_state.PRODUCT_SIZE
        self.a, self.b = torch.empty(size, size).uniform_(-1, 1), torch.empty(size, size).uniform_(-1, 1)
        self.product = torch.empty(size, size)
        self.saves = 0

    def ready(self):
        return {
            "ready": True, "name": self.args.system, "pid": os.getpid(), "rank": self.rank,
            "bytes": self.state.bytes(), "versions": {"torch": torch.__version__},
        }  # fmt: skip

    def new_state(self, cut):
        args = self.args
        return checkpoint_state.TrainingState(args.state, args.megabytes, cut, self.rank, self.world, self.mesh)

    def barrier(self):
        if self.world > 1:
            dist.barrier()

    def any(self, mine):
        """True while any rank says so. Stands where a step reduces its gradients."""
        if self.world == 1:
            return mine
        flag = torch.full((1,), 1.0 if mine else 0.0)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return flag.item() > 0

    def next_path(self):
        self.saves += 1
        return f"{self.args.checkpoints}/step_{self.saves}"

    def newest(self):
        return f"{self.args.checkpoints}/step_{self.saves}"

    # --- commands -------------------------------------------------------------------------------

    def open(self):
        """What a run pays once: processes, staging memory."""
        begin = time.perf_counter()
        self.system.start(self.state, self.next_path()).finish()
        self.forget()
        return {"seconds": time.perf_counter() - begin}

    def step(self, pending):
        for _ in range(self.args.products):
            torch.mm(self.a, self.b, out=self.product)
        busy = self.any(pending is not None and pending.busy())
        fence = 0.0
        if pending is not None:
            begin = time.perf_counter()
            pending.before_update()
            fence = time.perf_counter() - begin
        self.state.update()
        return busy, fence

    def steps(self, count, with_save=False):
        seconds, in_flight, fence, pending = [], 0, 0.0, None
        self.barrier()
        begin = time.perf_counter()
        if with_save:
            pending = self.system.start(self.state, self.next_path())
        blocked = time.perf_counter() - begin
        busy = with_save
        while busy or len(seconds) < count:
            step_begin = time.perf_counter()
            busy, waited = self.step(pending)
            fence += waited
            in_flight += busy
            seconds.append(time.perf_counter() - step_begin)
        answer = {"seconds": time.perf_counter() - begin, "steps": len(seconds), "step_seconds": seconds}
        if with_save:
            answer |= {
                "blocked_s": blocked, "fence_s": fence, "steps_in_flight": in_flight,
                "durable_s": pending.finish(),
            }  # fmt: skip
        return answer

    def save(self):
        self.barrier()
        begin = time.perf_counter()
        self.system.save(self.state, self.next_path())
        return {"seconds": time.perf_counter() - begin, "bytes": self.state.bytes()}

    def load(self, how):
        if how not in ("rows", "columns") or (how != "rows" and self.args.system == "torch-save"):
            return {"seconds": None}
        into = self.new_state(how)
        self.barrier()
        begin = time.perf_counter()
        self.system.load(into, self.newest())
        return {"seconds": time.perf_counter() - begin, "bytes": into.bytes()}

    def verify(self):
        """What a save holds that went on while the state changed is the state at its call."""
        expected = {name: part.clone() for name, part in self.state.tensors().items()}
        pending = self.system.start(self.state, self.next_path())
        while self.step(pending)[0]:
            pass
        pending.finish()
        into = self.new_state("rows")
        self.system.load(into, self.newest())
        changed = any(not torch.equal(part, expected[name]) for name, part in self.state.tensors().items())
        same = all(torch.equal(part, expected[name]) for name, part in into.tensors().items())
        return {"one_step": changed and same}

    def forget(self):
        self.barrier()
        if self.rank == 0:
            for path in pathlib.Path(self.args.checkpoints).glob("step_*"):
                shutil.rmtree(path)
        self.barrier()
        return {}

    def answer(self, line):
        words = line.split()
        commands = {
            "open": self.open, "save": self.save, "verify": self.verify, "forget": self.forget,
            "load": lambda: self.load(words[1]),
            "steps": lambda: self.steps(int(words[1])),
            "steps_with_save": lambda: self.steps(int(words[1]), with_save=True),
        }  # fmt: skip
        if not words or words[0] not in commands:
            return {"error": f"unknown command: {line.strip()}"}
        return commands[words[0]]()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--system", required=True, choices=checkpoint_systems.SYSTEMS)
    parser.add_argument("--checkpoints", required=True, help="directory of these ranks alone")
    parser.add_argument("--state", choices=["decoder", "small"], default="decoder")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--products", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main():
    warnings.filterwarnings("ignore")
    worker = Worker(parse_arguments())
    print(json.dumps(worker.ready()), flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        print(json.dumps(worker.answer(line)), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
