"""keel.Checkpointer: saves and loads of nested state, beside the training."""

import atexit
import dataclasses
import math
import operator
import os
import threading
import time
import weakref
from typing import Any

import torch

from keel import _checkpoint, memory, objects, peers, tree

_checkpointers = weakref.WeakSet()
_SLICE_MS = 100  # of a wait, between which Python sees its signals
_SHORTEST_DEADLINE_S, _LONGEST_DEADLINE_S = 0.001, 1000000  # as checkpoint/checkpointer.cc has them


@dataclasses.dataclass
class Loaded:
    """What was loaded: `extra` as it was given to the save, `state` as Checkpointer.restore makes it."""

    step: int
    extra: Any
    state: Any
    directory: str
    bytes: int
    seconds: float
    skipped: list  # newer checkpoints that were damaged, and how


class Save:
    """A save that was begun."""

    def __init__(self, native, process):
        self._native, self._process = native, process

    def __repr__(self):
        return f"<keel.Save of step {self.step}: {'ended' if self.done() else 'in flight'}>"

    @property
    def step(self):
        return self._native.step

    @property
    def seconds(self):
        """Of the whole save, once it is done."""
        return self._native.seconds

    @property
    def blocked_seconds(self):
        """Of these, for how long save_async and wait_copied kept the caller, once it is done."""
        return self._native.blocked_seconds

    def done(self):
        """It is on the disk, or has failed; wait() then returns, or raises, at once."""
        return self._native.done()

    def wait(self, timeout=None):
        """Returns when the checkpoint is on the disk: synced, and opened again as a reader does. CheckpointError says
        why it is not; older checkpoints are then as they were. TimeoutError after `timeout` seconds: it goes on. None
        and infinity are no limit."""
        _refuse_elsewhere(self._process)
        until = time.monotonic() + _seconds(timeout)
        while not self._native.wait_for(int(max(0, min(_SLICE_MS, (until - time.monotonic()) * 1000 + 1)))):
            if time.monotonic() >= until:
                raise TimeoutError(f"the save of step {self.step} is not done after {timeout} s")
        self._native.wait()


def _refuse_elsewhere(process):
    if os.getpid() != process:
        raise RuntimeError(f"this checkpointer is of process {process}, and of no child that was forked from it: a child that reads opens "
                           "one of its own, with read_only=True")


def _whole(step, name="step"):
    """A step, as the extension takes it."""
    try:
        if isinstance(step, bool):
            raise TypeError
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"{name} is {step!r}, expected a whole number") from None
    if not -(1 << 63) <= number < 1 << 63:  # more than the extension can be asked
        raise ValueError(f"{name} is {number}, expected 0 to 2^62")
    return number


def _step(step):
    return None if step is None else _whole(step)


def _real(value, name):
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f"{name} is {value!r}, expected a number")


def _seconds(timeout):
    """Of a wait's timeout: infinity where there is no limit."""
    seconds = math.inf if timeout is None else _real(timeout, "timeout")
    if math.isnan(seconds):
        raise ValueError("timeout is nan, expected seconds, or None to wait without a limit")
    return seconds


def _check_kinds(wholes, texts, flags):
    """Of options, {name: value} each, None where that may be."""
    for name, value in wholes.items():
        if not -(1 << 31) <= _whole(value, name) < 1 << 31:
            raise ValueError(f"{name} is {value}, expected less than 2^31")
    for names, kind, words in ((texts, str, "a text"), (flags, bool, "True or False")):
        for name, value in names.items():
            if not isinstance(value, kind):
                raise TypeError(f"{name} is {value!r}, expected {words}")


class _Hooks:
    def __init__(self, hooks):
        self._hooks = hooks

    def remove(self):
        for hook in self._hooks:
            hook.remove()


class Checkpointer:
    """Checkpoints of one folder, which it owns until it is closed; a second process is refused.

    State is a dict of tensors, numbers, texts, None, bytes, and dicts, lists and tuples of such; objects with
    state_dict and load_state_dict (modules, optimizers, schedulers, samplers) stand for their state. Calls of
    several threads take turns. In a job of several ranks each has one, and all but `wait_copied`, `latest`,
    `steps` and the waits of handles are called by all of them, in the same order.
    """

    def __init__(self, path, keep=None, *, keep_best=0, best="min", keep_every=0, read_only=False, adopt_foreign=False,
                 rank=None, world=None, store=None, store_secret="", job="", deadline=120.0, io="auto", writers=1, readers=2, log="warning"):
        if best not in ("min", "max"):
            raise ValueError(f"best is {best!r}, expected 'min' or 'max'")
        _check_kinds({"keep_best": keep_best, "keep_every": keep_every, "writers": writers, "readers": readers,
                      **{name: value for name, value in (("keep", keep), ("rank", rank), ("world", world)) if value is not None}},
                     {"store_secret": store_secret, "job": job, "io": io, "log": log},
                     {"read_only": read_only, "adopt_foreign": adopt_foreign})  # fmt: skip
        deadline = _real(deadline, "deadline")
        if not _SHORTEST_DEADLINE_S <= deadline <= _LONGEST_DEADLINE_S:
            raise ValueError(f"deadline is {deadline:g}, expected seconds from {_SHORTEST_DEADLINE_S:g} to {_LONGEST_DEADLINE_S}")
        if keep is not None and keep < 1:
            raise ValueError(f"keep is {keep}, expected at least 1, or None to keep all")
        if "\0" in os.fsdecode(path):
            raise ValueError(f"the folder's name {os.fsdecode(path)!r} has a NUL in it")
        found = peers.find(rank, world, store, job, deadline)
        self.path, self.rank, self.world = os.fspath(path), found.rank, found.world
        self._process = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._kept = []  # [handle, or None before there is one, tensors that its save may still read]
        self._interrupted = False  # a save was cancelled, and its caller knows
        self._native = _checkpoint.Native(
            os.fsencode(path), keep=keep, keep_best=keep_best, higher_is_better=best == "max", keep_every=keep_every, read_only=read_only,
            adopt_foreign=adopt_foreign, rank=found.rank, world=found.world, store=found.store, secret=store_secret, job=found.job,
            deadline=deadline, io=io, writers=writers, readers=readers, log=log)  # fmt: skip
        self._open = True
        _checkpointers.add(self)

    # Saves.

    def save_async(self, step, state, extra=None, *, metric=None, overlap=False, from_rank_0=()):
        """Begins the save of `step` and returns its handle. A save that is still in flight is waited for first.

        The state may be changed as soon as this returns: it waits for the copy, not for the disk. With `overlap` it
        returns at once, and the copy is made beside what follows: before anything of the state is overwritten,
        wait_copied() has to be called (guard() does). Samples of every tensor find out a write that comes
        without, as an optimizer's step, and the save fails; one of a few values may lie beside them. What lies on a
        device is copied to the host before this returns, in either case.

        What several ranks have under one name has the same values, of tensors (each byte is compared by the save, whose
        wait() names those that differ) and of all else; `from_rank_0` has patterns (fnmatch) of names that may differ, and
        of which rank 0's values are saved.
        """
        return self._begin(step, state, extra, metric, overlap, False, from_rank_0)

    def save(self, step, state, extra=None, *, metric=None, from_rank_0=()):
        """The same, and returns when it is on the disk. Takes no memory for a copy. Left by Ctrl-C, it saves nothing."""
        return self._begin(step, state, extra, metric, True, True, from_rank_0)

    def _begin(self, step, state, extra, metric, overlap, stable, from_rank_0):
        step, metric = _whole(step), None if metric is None else _real(metric, "metric")
        _refuse_elsewhere(self._process)
        try:
            values, tensors = tree.encode(objects.states(state))
            text = tree.to_document(values, extra)
            alike = tree.Patterns(from_rank_0, "from_rank_0")
            tuples, kept, private = memory.for_save(tensors, self.world)
        except Exception as error:
            self._tell(error, lambda words: self._native.save(
                step=step, tensors=[], extra="", metric=None, overlapped=False, stable=True, from_rank_0=[], merge=lambda _: (None, words), refused=words))
            raise
        self._forget()
        begun = [None, kept]
        with self._lock:
            self._kept.append(begun)
        try:
            begun[0] = Save(self._mine.save(step=step, tensors=tuples, extra=text, metric=metric, overlapped=overlap, stable=stable or private,
                                            from_rank_0=alike.all, merge=lambda texts: tree.merge(texts, alike)), self._process)
            if stable:
                begun[0].wait()
        except BaseException as error:
            if stable and begun[0] is not None or not isinstance(error, Exception):
                self._interrupted = True
                self._native.cancel()  # as by Ctrl-C, after which the state may change
            raise
        return begun[0]

    def wait_copied(self):
        """Returns when the save in flight reads nothing any more of what the caller may change; the seconds it took."""
        return self._mine.wait_copied()

    def guard(self, *objects):
        """Has what overwrites state wait for the copy first: every step of an optimizer, and every forward of a module with
        buffers (BatchNorm's are overwritten there; those of modules without any are no concern). With all of the state's
        given, save_async(overlap=True) is safe. Returns a handle whose remove() ends it."""
        hooks = []

        def before(*_):
            self.wait_copied()

        for one in objects:
            if isinstance(one, torch.optim.Optimizer):
                hooks.append(one.register_step_pre_hook(before))
            elif isinstance(one, torch.nn.Module):
                if any(True for _ in one.buffers()):
                    hooks.append(one.register_forward_pre_hook(before))
            else:
                raise TypeError(f"a {type(one).__name__} cannot be guarded: optimizers and modules can; call wait_copied() before it changes")
        return _Hooks(hooks)

    @property
    def busy(self):
        """A save is in flight."""
        return self._native.busy

    def wait(self, timeout=None):
        """Waits for the save in flight, if any, as its handle's wait does."""
        _seconds(timeout)  # refused whether or not there is a save
        for save, _ in list(self._kept):
            if save is not None:
                save.wait(timeout)
        self._forget()

    # What there is.

    def steps(self):
        """Of this run's committed checkpoints, the newest commit first."""
        return self._mine.steps()

    def latest(self):
        """The step of the newest, or None."""
        return next(iter(self._mine.steps()), None)

    def tensors(self, step=None):
        """{name: (dtype, shape)} of a checkpoint, the newest by default; None when there is none."""
        found = self._mine.describe(step=_step(step))
        return None if found is None else {name: (memory.TORCH_DTYPES[dtype], tuple(shape)) for name, dtype, shape in found.tensors}

    # Loads.

    def load(self, state, step=None, *, allow_missing=(), in_place=False):
        """Fills the tensors of `state` where they lie, and its other values, with those of the newest checkpoint that is
        whole, or of `step`. None when there is no checkpoint.

        Names, shapes and dtypes have to be those of the checkpoint, on both sides; `allow_missing` has patterns (fnmatch)
        of names that may differ: they keep their values, or are left out. An optimizer's state that it has only after its
        first step is made. Nothing is changed unless every byte was verified, but with `in_place`: half of the memory,
        and a load that fails leaves the state of no use.
        """
        step = _step(step)
        found = self._mine.describe(step=step)
        if found is None:
            return None
        if in_place:
            return self._fill(state, found, step, allow_missing, True)
        try:
            loaded = self._fill(state, found, step, allow_missing, False)
            if loaded.directory == found.directory:
                return loaded
            whole = loaded
        except _checkpoint.CheckpointError as error:  # damage, or an older one, tried after it, that holds other tensors
            if error.code not in ("data loss", "not found", "configuration"):
                raise
            whole = self._mine.load(tensors=[], step=step, allow_missing=["*"], in_place=False, unplaced=[])  # verified, and put nowhere
            if whole is None or error.code == "configuration" and whole.directory == found.directory:
                raise
        # What is filled depends on what a checkpoint holds.
        found = self._mine.describe(step=whole.step)
        loaded = self._fill(state, found, whole.step, allow_missing, False, f"nothing was loaded: {whole.directory} is the newest that is whole, and does not fit")
        loaded.skipped = list(whole.skipped)
        return loaded

    def _fill(self, state, found, step, allow_missing, in_place, outcome="nothing was loaded"):
        """Fills the state with the checkpoint `found`. Where that is damaged and `step` is None, an older one that holds the same tensors is
        loaded: only with `in_place` anything is changed then."""
        try:
            allowed = tree.Patterns(allow_missing, "allow_missing")
            own = objects.states(state)
            values, tensors = tree.encode(own, to_fill=True)
            saved, _ = tree.from_document(found.extra, found.directory)
            unplaced = objects.compare(state, values, saved, allowed, self.world == 1, outcome)
            for name in objects.unlike_kinds(values, saved):  # which may differ
                del tensors[name]
            tensors.update(objects.made_by_optimizers(state, tensors, found.tensors, saved))
            tensors.update(objects.made_for_none(state, saved, found.tensors))
            objects.set_apart(state, tensors, self.world)
            put = objects.puts(state, own, saved, tensors, allowed)
            tuples, places = memory.for_load(tensors, self.world, staged=not in_place, keep=in_place or bool(allowed.all))
        except Exception as error:
            self._tell(error, lambda words: self._native.load(tensors=[], step=step, allow_missing=[], in_place=in_place, unplaced=[], refused=words))
            raise
        loaded = self._mine.load(tensors=tuples, step=step, allow_missing=allowed.all, in_place=True, scratch=not in_place, unplaced=unplaced)
        saved, extra = tree.from_document(loaded.extra, loaded.directory)
        if loaded.directory != found.directory:
            if not in_place:
                return self._loaded(loaded, extra, None)
            objects.compare(state, values, saved, allowed, self.world == 1, f"the tensors are those of {loaded.directory}, whose other values do not fit")
            put = objects.puts(state, own, saved, tensors, allowed)
        memory.finish(places, found.tensors, in_place)
        for one in put:
            one()
        return self._loaded(loaded, extra, None)

    def restore(self, step=None):
        """The newest checkpoint that is whole, whatever it holds, or that of `step`, as a state of new tensors in host
        memory (`.state`). None when there is none."""
        made = {}

        def places(found):
            made.clear()
            made.update(memory.empty(found.tensors))
            return memory.for_load(made, self.world)[0]

        loaded = self._mine.restore(places=places, step=_step(step))
        if loaded is None:
            return None
        saved, extra = tree.from_document(loaded.extra, loaded.directory)
        return self._loaded(loaded, extra, tree.decode(saved, lambda name: made.get(name)))

    # The end.

    def close(self):
        """Waits for the save in flight and gives the folder free. Raises the failure of a save that nobody has waited for."""
        if not self._open or os.getpid() != self._process:
            return
        self._open = False
        if self.world == 1:
            for save, _ in self._kept:
                while save is not None and not save._native.wait_for(_SLICE_MS):
                    pass
        try:
            self._native.close()
        except _checkpoint.CheckpointError as error:
            if error.code != "cancelled" or not self._interrupted:
                raise
        finally:
            self._forget()

    def abandon(self):
        """The same for an end on an error, when other ranks may be gone: waits for none of them for long."""
        if self._open and os.getpid() == self._process:
            self._open = False
            self._native.abandon()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
            return
        try:
            self.abandon()
        except _checkpoint.CheckpointError as failure:
            if hasattr(error, "add_note"):
                error.add_note(f"and a save failed: {failure}")

    def __del__(self):
        # Its end waits for the save in flight, which reads what is kept.
        self.__dict__.pop("_native", None)

    def _end_save(self):
        if os.getpid() != self._process or not self._open:
            return
        if self.world > 1:  # peers may be gone: for them its end has a limit of its own
            return
        for save, _ in list(self._kept):
            while save is not None and not save._native.wait_for(_SLICE_MS):
                pass

    @property
    def _mine(self):
        _refuse_elsewhere(self._process)
        return self._native

    def _tell(self, error, call):
        """The other ranks of what this one finds wrong with its state, which they would wait for."""
        if self.world > 1:
            try:
                call(str(error) or type(error).__name__)
            except _checkpoint.CheckpointError:
                pass  # with these words, or with what another rank finds wrong

    def _forget(self):
        with self._lock:
            self._kept = [begun for begun in self._kept if (self._native.busy if begun[0] is None else not begun[0].done())]

    @staticmethod
    def _loaded(loaded, extra, state):
        return Loaded(loaded.step, extra, state, loaded.directory, loaded.bytes, loaded.seconds, list(loaded.skipped))


@atexit.register
def _end_saves():
    """Saves in flight go to their end before the interpreter ends its daemon threads, which may be in a call."""
    for checkpointer in list(_checkpointers):
        checkpointer._end_save()
