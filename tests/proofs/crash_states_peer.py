"""The peers' side of run_crash_states.py: saves small states, and loads what a power cut may have left.

    crash_states_peer.py SYSTEM save DIR     saves step 1, then step 2, and keeps one
    crash_states_peer.py SYSTEM load         for each directory on standard input a line of JSON

What is saved between the calls access("DIR/mark.begin") and access("DIR/mark.end") is what the driver looks
at; nothing else than the save stands there. Each system saves as its documentation shows, and finds its newest
checkpoint as programs built on it do.
"""

import hashlib
import json
import os
import pathlib
import shutil
import sys

import torch
import torch.distributed.checkpoint as dcp

# As keel_crash_states: 26 KiB in four tensors.
SHAPES = {"embed": (64, 32), "norm": (32,), "optimizer.master.embed": (64, 32), "optimizer.exp_avg.embed": (64, 32)}


def values(step, name, shape):
    """Every byte follows from step and name."""
    dtype = torch.float32 if name.startswith("optimizer") else torch.bfloat16
    size = torch.Size(shape).numel() * dtype.itemsize
    words = b"".join(hashlib.blake2b(f"{step} {name} {i}".encode()).digest() for i in range(size // 64 + 1))
    # As integers of the same width: no bit pattern is lost, and comparisons are of bits.
    integers = torch.int32 if dtype == torch.float32 else torch.int16
    return torch.frombuffer(bytearray(words[:size]), dtype=integers).view(dtype).reshape(shape)


def state_of(step):
    return {"step": step, **{name: values(step, name, shape) for name, shape in SHAPES.items()}}


def bits(tensor):
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def judged(state):
    """What was loaded: its step, and whether it is that step to the last bit."""
    step = int(state["step"])
    whole = all(torch.equal(bits(state[name]), bits(values(step, name, shape))) for name, shape in SHAPES.items())
    return {"step": step, "whole": whole}


class TorchSave:
    """torch.save into a file beside, and a rename over the one checkpoint there is."""

    sync = False

    def save(self, folder, step):
        beside = folder / "checkpoint.pt.tmp"
        torch.save(state_of(step), beside)
        if self.sync:
            with open(beside, "rb+") as file:
                os.fsync(file.fileno())
        os.replace(beside, folder / "checkpoint.pt")

    def load(self, folder):
        path = folder / "checkpoint.pt"
        return torch.load(path, weights_only=True) if path.exists() else None


class TorchSaveSynced(TorchSave):
    """The same with an fsync of the file before the rename."""

    sync = True


class Dcp:
    """DCP into a directory per step; once it has returned, the one before it is removed."""

    remove = True

    def save(self, folder, step):
        dcp.save(state_of(step), checkpoint_id=folder / f"step-{step}", no_dist=True)
        if self.remove:
            shutil.rmtree(folder / f"step-{step - 1}", ignore_errors=True)

    def load(self, folder):
        # The highest step with metadata counts as complete: torchtitan's rule, for one.
        steps = [int(p.name.removeprefix("step-")) for p in folder.glob("step-*") if (p / ".metadata").is_file()]
        if not steps:
            return None
        state = {"step": 0, **{n: torch.zeros_like(values(0, n, s)) for n, s in SHAPES.items()}}
        dcp.load(state, checkpoint_id=folder / f"step-{max(steps)}", no_dist=True)
        return state


class DcpKept(Dcp):
    """The same with nothing removed."""

    remove = False


SYSTEMS = {"torch-save": TorchSave, "torch-save-fsync": TorchSaveSynced, "dcp": Dcp, "dcp-kept": DcpKept}


def main():
    torch.set_num_threads(1)
    system = SYSTEMS[sys.argv[1]]()
    if sys.argv[2] == "save":
        folder = pathlib.Path(sys.argv[3])
        system.save(folder, 1)
        os.access(folder / "mark.begin", os.F_OK)
        system.save(folder, 2)
        os.access(folder / "mark.end", os.F_OK)
        return
    for line in sys.stdin:
        try:
            state = system.load(pathlib.Path(line.rstrip("\n")))
            answer = {"nothing": True} if state is None else judged(state)
        except BaseException as error:  # DCP's CheckpointException is no Exception
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
            answer = {"error": f"{type(error).__name__}: {lines[-1]}".replace(line.rstrip("\n"), "DIR")[:200]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
