"""Ways to save and load with torch: each as it is best used on a machine without a GPU.

A system has `save(state, path)`, which returns when the checkpoint is on the disk, and `start(state, path)`,
which returns a Pending as soon as training may go on. Every one of them saves the state of one step: where
staging goes on beside training, `before_update` waits for it. Pinned staging needs CUDA and is left out.
"""

import concurrent.futures
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse
from torch.distributed.tensor import DTensor


class Pending:
    """A save under way. `future`: done when it is on the disk; None: it is already."""

    def __init__(self, begin, future=None, staged=None):
        self.begin, self.future, self.staged = begin, future, staged
        self.end = time.perf_counter()
        if future is not None:
            future.add_done_callback(self._note)

    def _note(self, _):
        self.end = time.perf_counter()

    def before_update(self):
        if self.staged is not None:
            self.staged.result()
            self.staged = None

    def busy(self):
        return self.future is not None and not self.future.done()

    def finish(self):
        """Seconds from the call until the checkpoint was on the disk; raises the save's failure."""
        if self.future is not None:
            self.future.result()
        return self.end - self.begin


class KeptStager(AsyncStager):
    """Copies into host memory that is kept, and shared with a saving process if asked.

    `overlapped`: the copy goes on beside training, which the default stager does too, but it crashes in
    its second save on a machine without a GPU.
    """

    _synchronize_after_execute = False

    def __init__(self, shared, overlapped):
        self.shared, self.kept = shared, None
        self.threads = concurrent.futures.ThreadPoolExecutor(1) if overlapped else None

    def stage(self, state_dict):
        if self.kept is None:
            # An empty part is kept for each one of the state, in the same places of whole tensors.
            self.kept = {name: torch.empty_like(part) for name, part in state_dict.items()}
            for part in self.kept.values():
                if self.shared:
                    local(part).share_memory_()
        if self.threads is None:
            return self._copy(state_dict)
        return self.threads.submit(self._copy, state_dict)

    @torch.no_grad()
    def _copy(self, state_dict):
        for name, part in state_dict.items():
            local(self.kept[name]).copy_(local(part))
        return self.kept


def local(part):
    return part.to_local() if isinstance(part, DTensor) else part


class TorchSave:
    """torch.save of each rank's tensors into a file of its own, and fsync."""

    asynchronous = False

    def __init__(self, group):
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.group = group

    def save(self, state, path):
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        with open(f"{path}/rank_{self.rank}.pt", "wb") as file:
            torch.save(state.tensors(), file)
            file.flush()
            os.fsync(file.fileno())
        if dist.is_initialized():
            dist.barrier(self.group)

    def start(self, state, path):
        begin = time.perf_counter()
        self.save(state, path)
        return Pending(begin)

    def load(self, state, path):
        loaded = torch.load(f"{path}/rank_{self.rank}.pt")
        for name, part in state.tensors().items():
            part.copy_(loaded[name])


class DcpSave:
    """dcp.save: training stands still."""

    asynchronous = False

    def __init__(self, group):
        self.group = group

    def save(self, state, path):
        dcp.save(state.wrap(state.tensors()), checkpoint_id=path, process_group=self.group)

    def start(self, state, path):
        begin = time.perf_counter()
        self.save(state, path)
        return Pending(begin)

    def load(self, state, path):
        dcp.load(state.wrap(state.tensors()), checkpoint_id=path, process_group=self.group)


class DcpAsync(DcpSave):
    """dcp.async_save. `staging`: default (a fresh copy), kept, or overlapped (kept, beside training)."""

    asynchronous = True

    def __init__(self, group, process, staging):
        super().__init__(group)
        self.type = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
        self.stager = None if staging == "default" else KeptStager(process, staging == "overlapped")
        self.wrapped = None

    def start(self, state, path):
        begin = time.perf_counter()
        if self.wrapped is None:
            self.wrapped = state.wrap(state.tensors())
        response = dcp.async_save(
            self.wrapped, checkpoint_id=path, process_group=self.group, async_checkpointer_type=self.type,
            async_stager=self.stager,
        )  # fmt: skip
        if isinstance(response, AsyncSaveResponse):
            return Pending(begin, response.upload_completion, response.staging_completion)
        return Pending(begin, response)


class KeelModule:
    """keel.Checkpointer. `overlap`: the copy goes on beside training too, and is waited for before the update."""

    asynchronous = True

    def __init__(self, overlap):
        import keel

        self.overlap, self.keel, self.open = overlap, keel, None

    def at(self, path):
        """(checkpointer, step) of a path that ends in step_<N>."""
        folder, step = os.path.split(path)
        if self.open is None:
            self.open = self.keel.Checkpointer(folder, keep=1)
        return self.open, int(step.removeprefix("step_"))

    def start(self, state, path):
        begin = time.perf_counter()
        checkpoints, step = self.at(path)
        save = checkpoints.save_async(step, state.wrap(state.tensors()), overlap=self.overlap)
        return KeelPending(begin, save, checkpoints if self.overlap else None)

    def save(self, state, path):
        checkpoints, step = self.at(path)
        checkpoints.save(step, state.wrap(state.tensors()))

    def load(self, state, path):
        checkpoints, step = self.at(path)
        checkpoints.load(state.wrap(state.tensors()), step, in_place=True)


class KeelPending:
    """As Pending; the save itself says how long it took."""

    def __init__(self, begin, save, to_ask):
        self.begin, self.save, self.to_ask = begin, save, to_ask

    def before_update(self):
        if self.to_ask is not None:
            self.to_ask.wait_copied()

    def busy(self):
        return not self.save.done()

    def finish(self):
        self.save.wait()
        return self.save.seconds


SYSTEMS = {
    "keel-module": lambda group: KeelModule(overlap=False),
    "keel-module-overlapped": lambda group: KeelModule(overlap=True),
    "torch-save": TorchSave,
    "dcp-save": DcpSave,
    "dcp-thread": lambda group: DcpAsync(group, process=False, staging="default"),
    "dcp-thread-kept": lambda group: DcpAsync(group, process=False, staging="kept"),
    "dcp-thread-overlapped": lambda group: DcpAsync(group, process=False, staging="overlapped"),
    "dcp-process": lambda group: DcpAsync(group, process=True, staging="default"),
    "dcp-process-kept": lambda group: DcpAsync(group, process=True, staging="kept"),
}
