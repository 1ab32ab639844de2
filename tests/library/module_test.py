"""keel.Checkpointer: what goes in comes out, what does not fit is refused by name, and the files are Keel's and safetensors'."""

import collections
import copy
import dataclasses
import enum
import io
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import unittest

import numpy as np
import safetensors
import torch
from library_support import LIMIT_S, Folder, ckpt, state_of

import keel


class Mode(enum.Enum):
    TRAIN = "train"


@dataclasses.dataclass
class Settings:
    a: int


class Unseen(torch.Tensor):
    """As torch's ShardedTensor: it answers nothing."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        raise RuntimeError(f"torch function '{function.__name__}' not supported")


def training(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3)


def step_of(model, optimizer, schedule, step):
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    schedule.step()


class Training(Folder):
    def test_a_resumed_training_is_the_straight_one_bit_for_bit(self):
        straight = training()
        for step in range(1, 13):
            step_of(*straight, step)
        first = training()
        checkpoints = self.open(keep=2)
        state = dict(zip(("model", "optimizer", "schedule"), first)) | {"seen": 0, "rng": torch.get_rng_state()}
        self.assertIsNone(checkpoints.load(state))
        guard = checkpoints.guard(*first[:2])
        for step in range(1, 8):
            step_of(*first, step)
            state["seen"] = step * 8
            save = checkpoints.save_async(step, state, extra={"step": step}, overlap=step % 2 == 0)
        guard.remove()
        save.wait()
        self.assertEqual(checkpoints.steps(), [7, 6])
        checkpoints.close()

        again = training(seed=5)
        state = dict(zip(("model", "optimizer", "schedule"), again)) | {"seen": None, "rng": torch.get_rng_state()}
        checkpoints = self.open()
        loaded = checkpoints.load(state)
        self.assertEqual((loaded.step, loaded.extra, state["seen"], loaded.skipped), (7, {"step": 7}, 56, []))
        for step in range(8, 13):
            step_of(*again, step)
        for one, other in zip(straight, again):
            a, b = one.state_dict(), other.state_dict()
            self.assertEqual(str(a), str(b))
        self.assert_same(straight[0].state_dict(), again[0].state_dict())

    def test_a_state_that_changes_at_once_is_saved_as_it_was(self):
        checkpoints = self.open()
        big = torch.arange(4_000_000, dtype=torch.float32)
        save = checkpoints.save_async(1, {"big": big})
        big.fill_(-1)
        save.wait()
        read = torch.empty_like(big)
        checkpoints.load({"big": read})
        self.assertTrue(torch.equal(read, torch.arange(4_000_000, dtype=torch.float32)))
        # Beside the work, by the rule; against it the save fails, unless the copy came first.
        big.copy_(read)
        save = checkpoints.save_async(2, {"big": big}, overlap=True)
        checkpoints.wait_copied()
        big.fill_(-1)
        save.wait()
        before = read.clone()
        big.copy_(before)
        save = checkpoints.save_async(3, {"big": big}, overlap=True)
        big.fill_(-1)
        try:
            save.wait()
        except keel.CheckpointError as error:
            self.assertIn("big", str(error))
            self.assertEqual(checkpoints.latest(), 2)
        checkpoints.load({"big": read})
        self.assertTrue(torch.equal(read, before))

    def test_a_load_says_to_autograd_that_values_have_changed(self):
        checkpoints = self.open()
        weight = torch.ones(3, requires_grad=True)
        checkpoints.save(1, {"w": weight})
        loss = (weight * weight).sum()
        checkpoints.load({"w": weight})
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()


class Values(Folder):
    STATE = {
        "a": {"b": [torch.zeros(2), {"c": torch.ones((), dtype=torch.int64)}], "none": None, "yes": True},
        7: {"x": math.inf, "y": -0.0, "z": 0.1}, "tuple": (1, "two", (3.5,)), "bytes": b"\x00\xff", "dtype": torch.bfloat16,
        "$odd": {"$tensor": "not one"}, "empty": {}, "big": 2**80, "text": 'Zürich "\n',
    }  # fmt: skip

    def test_nested_values_come_back_as_they_were(self):
        checkpoints = self.open()
        checkpoints.save(1, self.STATE, extra=[1, {"k": None}])
        got = checkpoints.restore()
        self.assertEqual(got.extra, [1, {"k": None}])
        self.assertEqual(str(got.state), str(self.STATE))
        self.assertEqual(checkpoints.tensors(), {"a.b.0": (torch.float32, (2,)), "a.b.1.c": (torch.int64, ())})

    def test_what_is_a_kind_of_dict_tuple_or_number_comes_back_as_one(self):
        class Level(enum.IntEnum):
            HIGH = 3

        Pair = collections.namedtuple("Pair", "a b")
        given = {"ordered": collections.OrderedDict(x=1), "default": collections.defaultdict(int, y=2), "pair": Pair(1, 2.5),
                 "size": torch.Size([2, 3]), "level": Level.HIGH}  # fmt: skip
        checkpoints = self.open()
        checkpoints.save(1, given | {"t": torch.zeros(1)})
        found = checkpoints.restore().state
        del found["t"]
        self.assertEqual(found, {"ordered": {"x": 1}, "default": {"y": 2}, "pair": (1, 2.5), "size": (2, 3), "level": 3})
        kinds = {name: type(value) for name, value in found.items()}
        self.assertEqual(kinds, {"ordered": dict, "default": dict, "pair": tuple, "size": tuple, "level": int})

    def test_not_a_number_is_one(self):
        checkpoints = self.open()
        checkpoints.save(1, {"t": torch.zeros(1), "v": float("nan")})
        self.assertTrue(math.isnan(checkpoints.restore().state["v"]))

    def test_every_dtype_and_layout_bit_for_bit(self):
        base = torch.arange(96, dtype=torch.float32).reshape(8, 12)
        state = {str(d).removeprefix("torch."): base.to(d) for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8,
                 torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.bool)}  # fmt: skip
        state |= {"turned": base.t(), "part": base[2:5, ::3], "spread": base[:1].expand(4, 12), "none": base[:0], "one": base[0, 0],
                  "channels": torch.arange(120.0).reshape(1, 2, 3, 4, 5)[:, :, 1:], "nan": torch.tensor([math.nan, -0.0])}
        checkpoints = self.open()
        checkpoints.save(1, state)
        got = checkpoints.restore().state
        for name, tensor in state.items():
            self.assertEqual((got[name].dtype, got[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertTrue(got[name].contiguous().view(torch.uint8).equal(tensor.contiguous().view(torch.uint8)) if tensor.dim() else got[name].equal(tensor))
        # Into memory with gaps and in another order; nothing between is touched.
        room = torch.full((12, 16), -5.0)
        checkpoints.load({"turned": room[:, ::2]}, allow_missing=["[!t]*"])
        self.assertTrue(torch.equal(room[:, ::2], base.t()))
        self.assertTrue((room[:, 1::2] == -5).all())


    ARRAYS = {
        "native": np.arange(6, dtype="<u4").reshape(2, 3), "big": np.arange(6, dtype=">f8"), "zero_dims": np.array(3.5, ">f4"), "bool": np.array([True, False]),
        "complex": np.array([1 + 2j, -0.0j]), "time": np.array(["2026-01-02", "NaT"], "M8[D]"), "span": np.array([5], "<m8[us]"), "text": np.array([["a", "bcd"]]),
        "bytes": np.array([b"x", b"yz"]), "long": np.array([0.1], np.longdouble), "none": np.empty((0, 3), ">i2"), "half": np.array([math.nan, -0.0], np.float16),
        "turned": np.arange(6.0).reshape(2, 3)[::-1].T, "fields": np.zeros(3, [("a", "u1"), ("b", "<f4")])["b"], "fixed": np.frombuffer(b"abcd", "<u2"),
    }  # fmt: skip
    SCALARS = [np.float32(0.1), np.float64(-0.0), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.float16("nan"), np.complex64(1j), np.datetime64("NaT", "s")]

    def assert_same_array(self, a, b, name):
        self.assertEqual((type(a), a.dtype, a.dtype.str, a.shape, a.tobytes()), (type(b), b.dtype, b.dtype.str, b.shape, b.tobytes()), name)

    def test_numpys_arrays_and_scalars_come_back_bit_for_bit(self):
        checkpoints = self.open()
        checkpoints.save(1, {"arrays": self.ARRAYS, "scalars": self.SCALARS})
        got = checkpoints.restore().state
        for name, array in self.ARRAYS.items():
            self.assert_same_array(got["arrays"][name], array, name)
        for one, other in zip(got["scalars"], self.SCALARS, strict=True):
            self.assert_same_array(one, other, repr(other))
        # A load fills them where they lie; what nobody may write to is replaced.
        state = {"arrays": {name: np.zeros(array.shape, array.dtype) for name, array in self.ARRAYS.items()}, "scalars": None}
        state["arrays"]["fixed"].flags.writeable = False
        lie = dict(state["arrays"])
        checkpoints.load(state)
        for name, array in self.ARRAYS.items():
            self.assert_same_array(state["arrays"][name], array, name)
            if name != "fixed":
                self.assert_same_array(lie[name], array, name)
        self.assertEqual(lie["fixed"].tolist(), [0, 0])
        for name, other, words in (("native", np.zeros((2, 3), "<i4"), "a numpy array (<i4) in the state, and a numpy array (<u4)"), ("big", np.zeros((6, 8), "u1"), "a numpy array (|u1) in the state, and a numpy array (>f8)"),
                                   ("native", torch.zeros((2, 3), dtype=torch.uint32), "'arrays.native' is a tensor of a plain dtype in the state, and a numpy array (<u4)"),
                                   ("none", np.empty((0, 3), "<i2"), "'arrays.none' has no elements"), ("big", np.zeros(6, ">f8")[::-1], "load into a contiguous one")):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex((ValueError, TypeError, keel.CheckpointError), re.escape(words)):
                checkpoints.load({"arrays": lie | {name: other}, "scalars": None})

    def test_generators_go_on_as_they_would_have(self):
        def states():
            return {"cpu": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate(),
                    "own": own.get_state(), "bits": pcg.bit_generator.state}  # fmt: skip

        def draws():
            return [torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random(), torch.rand(2, generator=own).tolist(), pcg.random()]

        own, pcg = torch.Generator().manual_seed(3), np.random.default_rng(5)
        np.random.rand(700), random.gauss(0, 1), np.random.randn(1), pcg.integers(9, dtype=np.int32)
        checkpoints = self.open()
        checkpoints.save(1, {"rng_state": states()})
        expected = draws()
        got = {"rng_state": states()}
        checkpoints.load(got)
        for rng in (got["rng_state"], checkpoints.restore().state["rng_state"]):
            self.assertEqual((type(rng["random"]), type(rng["random"][1]), type(rng["numpy"][1])), (tuple, tuple, np.ndarray))
            torch.set_rng_state(rng["cpu"])
            np.random.set_state(rng["numpy"])
            random.setstate(rng["random"])
            own.set_state(rng["own"])
            pcg.bit_generator.state = rng["bits"]
            self.assertEqual(draws(), expected)

    def assert_alike(self, a, b, path=""):
        """As torch.load gives it, kinds of dict and tuple aside."""
        if torch.is_tensor(a):
            self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape), path)
            self.assertEqual(*(bytes(one.detach().resolve_conj().contiguous().flatten().view(torch.uint8).tolist()) for one in (a, b)), path)
        elif isinstance(a, dict):
            self.assertEqual(list(a), list(b), path)
            for key in a:
                self.assert_alike(a[key], b[key], f"{path}.{key}")
        elif isinstance(a, (list, tuple)):
            self.assertEqual((len(a), isinstance(a, tuple)), (len(b), isinstance(b, tuple)), path)
            for i, (one, other) in enumerate(zip(a, b)):
                self.assert_alike(one, other, f"{path}.{i}")
        else:
            self.assertEqual((a, isinstance(a, bool)), (b, isinstance(b, bool)), path)

    def test_what_trainers_hold_comes_back_as_torch_save_gives_it(self):
        base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
        whole = torch.complex(base, -base)
        loader = {"_snapshot": {"_snapshot_step": 3, "_main_snapshot": {"_num_workers": 2, "_sampler_iter_state": None, "_base_seed": 2**62 + 1,
                  "_index_sampler_state": {"samples_yielded": 24, "_generator": torch.Generator().get_state()}},
                  "_worker_snapshots": {"worker_0": {"worker_id": 0, "dataset_state": {"buffer": [torch.ones(2), b"\x00", "text"]}, "fetcher_state": None}}},
                  "_steps_since_snapshot": 0, "_iterator_finished": False}  # fmt: skip
        state = {
            "loader": loader, "c64": whole, "c128": whole.to(torch.complex128).t(), "conj": whole.conj(), "one_complex": whole[1, 1],
            "float8": base.to(torch.float8_e4m3fn)[:, ::2], "bf8": base.to(torch.float8_e5m2), "scale": torch.ones((), dtype=torch.float8_e8m0fnu),
            "no_complex": whole[:0], "parameter": torch.nn.Parameter(base[1:3]), "spread": whole[0, 0].expand(3), "device": torch.device("cuda", 1),
            "size": base.shape, "ordered": collections.OrderedDict(b=1, a=torch.ones(1)), "kinds": [torch.float8_e5m2, None, {1: {"x": ()}}],
        }  # fmt: skip
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        oracle = torch.load(file, weights_only=False)
        checkpoints = self.open()
        checkpoints.save_async(1, state).wait()
        self.assert_alike(checkpoints.restore().state, oracle)
        blank = copy.deepcopy({name: value.clone() if name in ("conj", "spread") else value for name, value in oracle.items()})
        blank["conj"] = blank["conj"].resolve_conj()
        for value in blank.values():
            if torch.is_tensor(value):
                value.detach().view(torch.uint8).zero_() if value.is_floating_point() and value.itemsize == 1 else value.detach().zero_()
        checkpoints.load(blank)
        self.assert_alike(blank, oracle)
        with self.assertRaisesRegex(ValueError, "'float8' is a tensor of a plain dtype in the state, and a tensor of float8_e4m3fn in the checkpoint"):
            checkpoints.load(blank | {"float8": torch.zeros(4, 3, dtype=torch.uint8)})
        with self.assertRaisesRegex(TypeError, "conjugated view: load into resolve_conj"):
            checkpoints.load(blank | {"conj": whole.conj()})

    def test_none_takes_whatever_was_saved(self):
        given = {"history": {"loss": [1.0], "at": {"t": torch.ones(2)}}, "list": [torch.arange(3), np.arange(2)], "seen": {"n": 7}, "other": {"x": None}, "w": torch.ones(1)}
        checkpoints = self.open()
        checkpoints.save(1, given)
        state = {"history": None, "list": None, "seen": {"n": None}, "other": {"x": None}, "w": torch.zeros(1)}
        checkpoints.load(state)
        self.assertEqual(str(state), str(given))
        for state, words in (({**given, "history": {}}, "'history.loss' is in the checkpoint, and not in the state.*None in the state takes"),
                             ({**given, "w": None}, "w")):  # fmt: skip
            with self.assertRaisesRegex((ValueError, keel.CheckpointError), words):
                checkpoints.load(state)

    def test_tied_weights_are_still_tied_and_views_agree(self):
        def tied():
            model = torch.nn.Sequential(torch.nn.Embedding(7, 5), torch.nn.Linear(5, 7, bias=False))
            model[1].weight = model[0].weight
            return model

        first, again = tied(), tied()
        checkpoints = self.open()
        checkpoints.save(1, {"model": first})
        checkpoints.load({"model": again})
        self.assertIs(again[0].weight, again[1].weight)
        self.assertTrue(torch.equal(first[0].weight, again[1].weight))
        # Views of one memory: the halves of a fused weight, and the whole.
        fused = torch.arange(12.0).reshape(4, 3)
        checkpoints.save(2, {"qkv": fused, "q": fused[:2], "k": fused[2:], "even": fused[:, ::2]})
        fused.zero_()
        checkpoints.load({"qkv": fused, "q": fused[:2], "k": fused[2:], "even": fused[:, ::2]})
        self.assertEqual(fused.flatten().tolist(), list(range(12)))
        checkpoints.save(3, {"qkv": fused, "q": fused[:2] + 1, "k": fused[2:], "even": fused[:, ::2]})
        with self.assertRaisesRegex(ValueError, "'q', .*'qkv' are on the same memory in the state, and have different values|'qkv', .*'q' are on the same memory"):
            checkpoints.load({"qkv": fused, "q": fused[:2], "k": fused[2:], "even": fused[:, ::2]})


class Refusals(Folder):
    def refused(self, kind, words, call, *arguments, **named):
        with self.assertRaises(kind) as caught:
            call(*arguments, **named)
        self.assertIn(words, str(caught.exception))
        return getattr(caught.exception, "code", None)

    def test_what_cannot_be_saved_is_named(self):
        checkpoints = self.open()
        one = torch.zeros(1)
        cyclic = {"a": one}
        cyclic["me"] = {"again": cyclic}
        freed = torch.zeros(5)
        freed.untyped_storage().resize_(0)
        for words, state in {
            "state['a.b'] is a builtins.set": {"a": {"b": {1}}},
            "state['r.1'] is a torch._C.Generator": {"r": [one, torch.Generator()]},
            "and give that to its set_state()": {"r": torch.Generator()},
            "save its getstate()": {"r": random.Random(1)},
            "save its bit_generator.state": {"r": np.random.default_rng(1)},
            "'l.weight' has no values yet": {"l": torch.nn.LazyLinear(3)},
            "state['e'] is a __main__.Mode": {"e": Mode.TRAIN},
            "save vars() of it": {"d": Settings(1)},
            "in dicts alone, not in a list": {"l": [torch.nn.Linear(1, 1)]},
            "state['n.0'] is a numpy array of dtype object": {"n": [np.array([{}, None])]},
            "numpy array of dtype [('a', '<i4')]": {"n": np.zeros(2, [("a", "<i4")])},
            "numpy scalar of dtype [('a', '<i4')]": {"n": np.zeros(2, [("a", "<i4")])[0]},
            "state['n'] is a numpy.ma.MaskedArray": {"n": np.ma.array([1, 2], mask=[True, False])},
            "would both be named 'a.b'": {"a.b": one, "a": {"b": one}},
            "'c' is of dtype torch.bits8": {"c": torch.zeros(1, dtype=torch.uint8).view(torch.bits8)},
            "layout torch.sparse_coo": {"s": one.to_sparse()},
            "'s0' is a tensor of layout torch.sparse_coo": {"s0": torch.sparse_coo_tensor(size=(0, 3))},
            "device meta": {"m": torch.empty(1, device="meta")},
            "'m0' is on the device meta": {"m0": torch.empty(0, device="meta")},
            "state['unseen'] is a __main__.Unseen, which cannot be looked into": {"unseen": torch.zeros(1).as_subclass(Unseen)},
            "'h' has 7 dims": {"h": torch.zeros([1] * 7)},
            "no tensors": {"x": 1},
            "'n' is a nested tensor": {"n": torch.nested.nested_tensor([one, torch.zeros(2)], layout=torch.jagged)},
            "surrogate": {"\ud800": one},
            "surrogates '\\ud83d\\ude00' side by side": {"a": one, "\ud83d\ude00": 1, "\U0001f600": 2},
            "'f' has elements whose memory was freed": {"f": freed},
            "holds itself": cyclic,
            "has the key 1.5": {"d": {1.5: one}},
            "give it a name": torch.nn.Linear(1, 1),
            "state is a list": [one],
        }.items():
            with self.subTest(words):
                self.refused((TypeError, ValueError, keel.CheckpointError), words, checkpoints.save_async, 1, state)
        self.refused(TypeError, "cannot be written as JSON", checkpoints.save_async, 1, {"a": one}, extra={"x": one})
        self.refused(ValueError, "side by side", checkpoints.save_async, 1, {"a": one}, extra=["x\ud83d\ude00"])
        self.refused(TypeError, "extra has the key 1,", checkpoints.save_async, 1, {"a": one}, extra=[{"losses": {1: 0.5, "1": 0.25}}])
        self.assertEqual(self.refused(keel.CheckpointError, "step is -1", checkpoints.save_async, -1, {"a": one}), "invalid data")
        for step, kind in {1.5: TypeError, "1": TypeError, None: TypeError, 1 << 70: ValueError, (1 << 62) + 1: keel.CheckpointError}.items():
            with self.subTest(step):
                self.refused(kind, f"step is {step!r}, expected", checkpoints.save, step, {"a": one})
        self.assertEqual(checkpoints.steps(), [])

    def test_another_state_is_refused_and_nothing_is_touched(self):
        checkpoints = self.open()
        checkpoints.save(4, {"m": {"w": torch.ones(2, 3), "b": torch.ones(3)}, "lr": 0.5})
        zero = torch.zeros(2, 3)

        def load(words, state, kind=keel.CheckpointError, **named):
            with self.subTest(words):
                self.refused(kind, words, checkpoints.load, state, **named)
                self.assertTrue((zero == 0).all())

        b = torch.zeros(3)
        load("1 in the checkpoint alone: m.b", {"m": {"w": zero}, "lr": 0})
        load("1 not in the checkpoint: m.more", {"m": {"w": zero, "b": b, "more": b}, "lr": 0})
        load("m.w (F32[3, 2] here, F32[2, 3] there)", {"m": {"w": torch.zeros(3, 2), "b": b}, "lr": 0})
        load("m.w (BF16[2, 3] here, F32[2, 3] there)", {"m": {"w": zero.bfloat16(), "b": b}, "lr": 0})
        freed = torch.zeros(3)
        freed.untyped_storage().resize_(0)
        load("'m.b' has elements whose memory was freed", {"m": {"w": zero, "b": freed}, "lr": 0}, ValueError)
        load("'lr' is in the checkpoint, and not in the state", {"m": {"w": zero, "b": b}}, ValueError)
        load("'seen' is in the state, and not in the checkpoint", {"m": {"w": zero, "b": b}, "lr": 0, "seen": 0}, ValueError)
        load("'lr' is a dict in the state alone", {"m": {"w": zero, "b": b}, "lr": {"x": 1}}, ValueError)
        load("'opt', a SGD, is in the state, and not in the checkpoint", {"m": {"w": zero, "b": b}, "lr": 0, "opt": torch.optim.SGD([zero])}, ValueError)
        load("'lr' is a SGD in the state, and no dict in the checkpoint", {"m": {"w": zero, "b": b}, "lr": torch.optim.SGD([zero])}, ValueError)
        load("step is '4', expected a whole number", {"m": {"w": zero, "b": b}, "lr": 0}, TypeError, step="4")
        load("step is True, expected a whole number", {"m": {"w": zero, "b": b}, "lr": 0}, TypeError, step=True)
        load("lie upon each other", {"m": {"w": torch.zeros(1, 3).expand(2, 3), "b": b}, "lr": 0})
        load("there is no checkpoint of step 9", {"m": {"w": zero, "b": b}, "lr": 0}, step=9)
        load("only of 4", {"m": {"w": zero, "b": b}, "lr": 0}, step=9)
        load("allow_missing is 'm.*', expected a list", {"m": {"w": zero}, "lr": 0}, TypeError, allow_missing="m.*")
        self.refused(TypeError, "from_rank_0 is 'm.*', expected a list", checkpoints.save, 5, {"w": zero}, from_rank_0="m.*")
        state = {"m": {"w": zero}, "lr": 1.0}
        checkpoints.load(state, allow_missing=["m.b"])
        self.assertEqual((state["lr"], zero.tolist()), (0.5, [[1.0] * 3] * 2))
        # Nothing is read of what has no elements, and it must be the same nevertheless.
        checkpoints.save(5, {"w": zero, "none": torch.zeros(0, 3)})
        for other in (torch.zeros(0, 4), torch.zeros(0, 3, dtype=torch.int8)):
            self.refused(ValueError, "'none' has no elements, and is", checkpoints.load, {"w": zero, "none": other})
        self.assertEqual(checkpoints.load({"w": zero, "none": torch.zeros(0, 3)}).step, 5)

    def test_nothing_is_put_where_the_checkpoint_has_a_tensor_and_the_state_none(self):
        checkpoints = self.open()
        checkpoints.save(1, {"list": [torch.ones(2), torch.ones(2)]})
        short = {"list": [torch.zeros(2)]}
        self.refused(ValueError, "'list.1' stands in a list", checkpoints.load, short, allow_missing=["list.*"])
        self.assertEqual([one.tolist() for one in short["list"]], [[0, 0]])

    def test_values_that_differ_are_not_put_into_one_tensor(self):
        checkpoints = self.open()
        checkpoints.save(1, {"embed": torch.ones(4), "head": torch.zeros(4)})
        tied = torch.zeros(4)
        self.refused(ValueError, "nothing was loaded: 'head' and 'embed' are on the same memory in the state", checkpoints.load, {"embed": tied, "head": tied})
        self.assertEqual(tied.tolist(), [0] * 4)
        # Nor into anything beside it: of a refused load nothing was put anywhere.
        checkpoints.save(1, {"embed": torch.ones(4), "head": torch.zeros(4), "other": torch.ones(2), "n": 1})
        state = {"other": torch.full((2,), 7.0), "embed": tied, "head": tied, "n": 7}
        self.refused(ValueError, "have different values in the checkpoint", checkpoints.load, state)
        self.assertEqual((state["other"].tolist(), tied.tolist(), state["n"]), ([7, 7], [0] * 4, 7))
        self.refused(ValueError, "The state is of no use now", checkpoints.load, state, in_place=True)
        tied = torch.zeros(4)
        checkpoints.save(2, {"embed": tied + 3, "head": tied + 3})
        checkpoints.load({"embed": tied, "head": tied})
        self.assertEqual(tied.tolist(), [3] * 4)
        checkpoints.save(3, {"embed": tied + 1})
        checkpoints.load({"embed": tied, "head": tied}, allow_missing=["head"])
        self.assertEqual(tied.tolist(), [4] * 4)

    def test_options_and_owners(self):
        one = {"a": torch.zeros(1)}
        for words, options in {"keep is 0, expected at least 1": {"keep": 0}, "expected 'min' or 'max'": {"best": "up"}, "'fast'": {"io": "fast"}, "log is 'x'": {"log": "x"},
                               "need store": {"rank": 0, "world": 2}, "keep is '3', expected a whole number": {"keep": "3"},
                               "deadline is '1', expected a number": {"deadline": "1"}, "read_only is 'no', expected True or False": {"read_only": "no"},
                               "io is None, expected a text": {"io": None}, "writers is 1.5, expected": {"writers": 1.5}, "go together": {"rank": 1}, "give job too": {"rank": 0, "world": 2, "store": "a:1"}}.items():  # fmt: skip
            with self.subTest(words):
                self.refused((ValueError, TypeError, keel.CheckpointError), words, keel.Checkpointer, self.path(), **options)
        self.refused(ValueError, "has a NUL in it", keel.Checkpointer, f"{self.path()}\0more")
        checkpoints = self.open()
        self.assertEqual(self.refused(keel.CheckpointError, "in use", keel.Checkpointer, self.path(), log="error"), "busy")
        self.refused(TypeError, "metric is '0.1', expected a number", checkpoints.save, 1, one, metric="0.1")
        checkpoints.save(1, one, metric=torch.tensor(0.1))
        with keel.Checkpointer(self.path(), read_only=True) as reader:
            self.assertEqual(reader.load({"a": torch.ones(1)}).step, 1)
            self.refused(keel.CheckpointError, "read only", reader.save, 2, one)
        checkpoints.close()
        checkpoints.close()
        (self.path() / ".keel-lock").unlink()
        (self.path() / ".keel-lock").mkdir()  # it cannot be opened, as by one who may only read
        self.refused(keel.CheckpointError, "read_only=True", keel.Checkpointer, self.path(), log="error")
        self.refused(keel.CheckpointError, "closed", checkpoints.save, 2, one)

    def test_seconds_and_ranks_that_are_none_are_refused_by_name(self):
        infinity, nan = float("inf"), float("nan")
        for deadline in (0, -1, infinity, nan, 1e7):
            self.refused(ValueError, f"deadline is {deadline:g}, expected seconds from 0.001 to 1000000", keel.Checkpointer, self.path(), deadline=deadline)
        for rank, world in ((1, 1), (-1, 1), (2, 2), (0, 0)):
            self.refused(ValueError, f"rank is {rank} and world is {world}, expected", keel.Checkpointer, self.path(), rank=rank, world=world)
        checkpoints = self.open(deadline=1e6, rank=0, world=1)
        save = checkpoints.save_async(1, {"a": torch.zeros(1)})
        for wait in (save.wait, checkpoints.wait):
            self.refused(ValueError, "timeout is nan, expected seconds, or None", wait, timeout=nan)
            self.refused(TypeError, "timeout is '1', expected a number", wait, timeout="1")
            wait(timeout=infinity)  # no limit, as None
        save.wait(timeout=-infinity)  # done, however little time it has
        self.assertEqual(checkpoints.steps(), [1])

    def test_a_checkpoint_of_a_trainer_or_of_another_program_is_said_to_be_one(self):
        checkpoints = self.open()
        checkpoints.save(1, {"a": torch.zeros(1)})
        checkpoints.close()
        document = self.path() / "global_step_1/state.json"
        document.write_text(document.read_text().replace("0.1", "0.2") + " ")
        reader = self.open(read_only=True)
        self.assertEqual(self.refused(keel.CheckpointError, "state.json", reader.restore), "data loss")


class Files(Folder):
    def test_they_are_keels_and_safetensors(self):
        checkpoints = self.open()
        state = state_of(3)
        checkpoints.save(3, state)
        step = self.path() / "global_step_3"
        code, said = ckpt("verify", self.path())
        self.assertEqual(code, 0, said)
        self.assertIn("ok: 4 tensors", said)
        code, said = ckpt("inspect", "--tensors", step)
        self.assertEqual(code, 0, said)
        self.assertIn("weights F32[12500, 8]", said)
        with safetensors.safe_open(step / "state/model/rank_00000.safetensors", "pt") as file:
            self.assert_same({name: file.get_tensor(name) for name in file.keys()}, state)
        # The tools of the subsystem take it as any other.
        code, said = ckpt("reshard", "--world", 3, step, self.path("cut"))
        self.assertEqual(code, 0, said)
        code, said = ckpt("diff", step, self.path("cut") / "global_step_3")
        self.assertEqual(code, 0, said)
        self.assert_same(self.open("cut", read_only=True).restore().state, state)

    def test_damage_is_found_passed_over_and_named(self):
        checkpoints = self.open()
        for step in (1, 2):
            checkpoints.save(step, state_of(step))
        shard = self.path() / "global_step_2/state/model/rank_00000.safetensors"
        with open(shard, "r+b") as file:
            file.seek(shard.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        state = state_of(0)
        loaded = checkpoints.load(state)
        self.assertEqual(loaded.step, 1)
        self.assertIn("rank_00000.safetensors", loaded.skipped[0])
        self.assert_same(state, state_of(1))
        with self.assertRaises(keel.CheckpointError) as caught:
            checkpoints.load(state, step=2)
        self.assertEqual(caught.exception.code, "data loss")
        self.assert_same(state, state_of(1))
        self.assertEqual(ckpt("verify", self.path())[0], 1)

    def test_an_older_one_with_other_values_is_said_to_have_them(self):
        checkpoints = self.open()
        checkpoints.save(1, {"a": torch.zeros(4), "was": 1})
        checkpoints.save(2, {"a": torch.ones(4), "seen": 2})
        shard = self.path() / "global_step_2/state/model/rank_00000.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"x")
        state = {"a": torch.full((4,), 7.0), "seen": 0}
        with self.assertRaisesRegex(ValueError, "nothing was loaded: global_step_1 is the newest that is whole, and does not fit: 'seen'"):
            checkpoints.load(state)
        self.assertEqual((state["a"].tolist(), state["seen"]), ([7] * 4, 0))
        with self.assertRaisesRegex(ValueError, "the tensors are those of global_step_1, whose other values do not fit: 'seen'"):
            checkpoints.load(state, in_place=True)

    def damage(self, step):
        file = self.path() / f"global_step_{step}/state/model/rank_00000.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)

    def test_an_older_one_gives_what_it_holds_to_optimizers_and_none(self):
        def make():
            torch.manual_seed(0)
            model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
            return model, torch.optim.AdamW(model.parameters())

        checkpoints, (model, optimizer) = self.open(), make()
        model[0](torch.ones(1, 2)).sum().backward()
        optimizer.step()
        wanted = copy.deepcopy(optimizer.state_dict())
        checkpoints.save(1, {"m": model, "o": optimizer, "any": {"a": torch.ones(2)}})
        model[1](model[0](torch.ones(1, 2))).sum().backward()  # whose second part learns from here on
        optimizer.step()
        checkpoints.save(2, {"m": model, "o": optimizer, "any": {"b": torch.ones(3)}})
        self.damage(2)
        model, optimizer = make()
        state = {"m": model, "o": optimizer, "any": None}
        loaded = checkpoints.load(state)
        self.assertEqual((loaded.step, str(state["any"])), (1, str({"a": torch.ones(2)})))
        self.assertIn("global_step_2: ", loaded.skipped[0])
        self.assertEqual(str(optimizer.state_dict()), str(wanted))
        self.assertEqual(checkpoints.load({"m": model}, allow_missing=["o*", "any*"]).step, 1)

    def test_a_module_that_gives_copies_of_its_tensors_is_loaded(self):
        class Copying(torch.nn.Linear):
            def state_dict(self, *arguments, **named):
                return {name: value.clone() for name, value in super().state_dict(*arguments, **named).items()}

        first, again = Copying(3, 2), Copying(3, 2)
        checkpoints = self.open()
        checkpoints.save(1, {"model": first})
        checkpoints.load({"model": again})
        self.assertTrue(torch.equal(first.weight, again.weight))

    def test_what_is_saved_is_not_nested_too_deeply_to_be_read(self):
        for depth in (150, 199, 300, 5000):
            value = torch.ones(1)
            for _ in range(depth):
                value = [value]
            checkpoints = self.open(f"deep{depth}")
            if depth < 200:
                checkpoints.save(1, {"deep": value})
                got = checkpoints.restore().state["deep"]
                for _ in range(depth):
                    (got,) = got
                self.assertEqual(got, 1)
            else:
                with self.assertRaisesRegex(TypeError, "nested too deeply"):
                    checkpoints.save(1, {"deep": value})

    def test_a_restore_passes_over_damage_whatever_the_older_one_holds(self):
        checkpoints = self.open()
        checkpoints.save(1, {"model": {"old": torch.arange(5)}, "seen": 1})
        checkpoints.save(2, {"model": {"new": torch.zeros(1000)}, "seen": 2})
        file = next((self.path() / "global_step_2/state/model").iterdir())
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
        got = checkpoints.restore()
        self.assertEqual((got.step, got.state["seen"], got.state["model"].keys()), (1, 1, {"old"}))
        self.assertIn("global_step_2: ", got.skipped[0])
        # Nothing of the program's was touched, which goes on; a load in place has.
        state = {"model": {"new": torch.zeros(1000)}, "seen": 0}
        for load, spoilt in ((lambda: checkpoints.restore(2), False), (lambda: checkpoints.load(state, 2), False),
                             (lambda: checkpoints.load(state, 2, in_place=True), True)):
            with self.assertRaises(keel.CheckpointError) as caught:
                load()
            self.assertEqual(caught.exception.code, "data loss")
            self.assertEqual("is of no use now" in str(caught.exception), spoilt, caught.exception)

    def test_no_message_speaks_of_settings_that_a_program_does_not_have(self):
        checkpoints = self.open()
        checkpoints.save(1, {"a": torch.zeros(3)})
        (self.path() / "run_id").write_text("another\n")
        checkpoints.close()
        with self.assertRaises(keel.CheckpointError) as caught:
            self.open().load({"a": torch.zeros(3)})
        self.assertIn("set adopt_foreign to true, or load one by its step", str(caught.exception))
        self.assertNotIn("trainer.", str(caught.exception))

    def test_damage_of_what_is_no_tensor_is_passed_over_too(self):
        checkpoints = self.open()
        for step in (1, 2):
            checkpoints.save(step, {"a": torch.full((4,), float(step)), "seen": step})
        document = self.path() / "global_step_2/state.json"
        document.write_text(document.read_text().replace("2", "3"))  # as long as it was
        state = {"a": torch.zeros(4), "seen": 0}
        self.assertEqual((checkpoints.load(state).step, state["seen"], state["a"].tolist()), (1, 1, [1.0] * 4))
        got = checkpoints.restore()
        self.assertEqual((got.step, got.state["seen"], got.state["a"].tolist()), (1, 1, [1.0] * 4))
        with self.assertRaises(keel.CheckpointError) as caught:
            checkpoints.restore(2)
        self.assertEqual(caught.exception.code, "data loss")

    def test_retention_by_number_and_metric(self):
        checkpoints = self.open(keep=1, keep_best=1, best="max", keep_every=4)
        for step, metric in enumerate((1.0, 9.0, 2.0, 3.0, 4.0, 5.0), start=1):
            checkpoints.save(step, {"a": torch.zeros(1)}, metric=metric)
        self.assertEqual(sorted(checkpoints.steps()), [2, 4, 6])
        # What is no number is better than none, and no reason to remove the best.
        for step, metric in ((7, float("nan")), (9, float("inf")), (10, 8.0), (11, float("nan"))):
            checkpoints.save(step, {"a": torch.zeros(1)}, metric=metric)
        self.assertEqual(sorted(checkpoints.steps()), [2, 4, 11])


class Threads(Folder):
    def test_the_interpreter_goes_on_and_calls_take_turns(self):
        checkpoints = self.open(keep=3)
        big = {"a": torch.zeros(4_000_000)}
        errors = []

        def saves(first):
            try:
                for step in range(first, first + 5):
                    checkpoints.save_async(step, big).wait()
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=saves, args=(first,)) for first in (1, 100)]
        for thread in threads:
            thread.start()
        turns = 0
        while any(thread.is_alive() for thread in threads):
            turns += 1
            threads[0].join(0.001)
        self.assertEqual(errors, [])
        self.assertGreater(turns, 1)
        self.assertEqual(len(checkpoints.steps()), 3)

    def test_a_forked_child_leaves_the_parents_save_alone(self):
        checkpoints = self.open()
        save = checkpoints.save_async(1, {"a": torch.zeros(4_000_000)})
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (save.wait, checkpoints.steps, lambda: checkpoints.save(2, {"a": torch.zeros(1)})):
                try:
                    call()
                except RuntimeError as error:
                    refused += "no child" in str(error)
            checkpoints.close()
            del checkpoints, save
            os._exit(3 - refused)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        save.wait()
        self.assertEqual(checkpoints.latest(), 1)


class Exit(Folder):
    def test_a_folder_is_free_when_it_was_closed_whoever_was_forked_meanwhile(self):
        checkpoints = self.open()
        checkpoints.save(1, {"a": torch.zeros(1)})
        stays, goes = os.pipe()
        child = os.fork()
        if child == 0:  # as a data loader's worker, which outlasts the checkpointer
            os.close(goes)
            os.read(stays, 1)
            os._exit(0)
        checkpoints.close()
        self.assertEqual(self.open().latest(), 1)
        os.close(goes)
        os.waitpid(child, 0)

    def test_a_lock_that_only_forked_workers_still_hold_is_waited_for(self):
        script = """
import os, sys, time, torch, keel
checkpoints = keel.Checkpointer(sys.argv[1], log="error")
checkpoints.save(1, {"a": torch.zeros(1)})
if os.fork() == 0:
    time.sleep(1)
    os._exit(0)
os.kill(os.getpid(), 9)
"""
        done = subprocess.run([sys.executable, "-c", script, self.path()], stdout=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, -9)
        self.assertEqual(self.open().latest(), 1)

    def test_a_checkpointer_that_is_dropped_reads_its_state_to_the_end(self):
        def drop():
            self.open_and_forget().save_async(1, {"a": torch.full((20_000_000,), 3.0)}, overlap=True)

        drop()
        self.assertTrue((self.open().restore().state["a"] == 3).all())

    def open_and_forget(self):
        return keel.Checkpointer(self.path(), io="buffered", log="error")

    def test_a_save_that_ctrl_c_leaves_saves_nothing(self):
        checkpoints = self.open()
        state = {"a": torch.zeros(100_000_000)}
        checkpoints.save(1, {"a": torch.zeros(1)})

        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with self.assertRaises(KeyboardInterrupt):
                checkpoints.save(2, state)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        state["a"][30_000] = 1  # of which a sample would know nothing
        with self.assertRaisesRegex(keel.CheckpointError, "cancelled"):
            checkpoints.wait()
        self.assertEqual(checkpoints.steps(), [1])
        checkpoints.close()  # whoever pressed it knows

    def test_a_program_that_ends_without_close_has_saved(self):
        script = "import torch, keel; keel.Checkpointer(__import__('sys').argv[1], log='error').save_async(1, {'a': torch.zeros(1_000_000)})"
        done = subprocess.run([sys.executable, "-c", script, self.path()], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.open().latest(), 1)

    def test_a_daemon_thread_may_be_in_a_call_when_the_program_ends(self):
        for i, call in enumerate(("handle.wait", "forever(checkpoints.steps)", "forever(checkpoints.wait_copied)")):
            with self.subTest(call):
                path = f"run_{i}"
                done = subprocess.run([sys.executable, "-c", DAEMON % call, self.path(path)], capture_output=True, text=True, timeout=LIMIT_S, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(self.open(path).latest(), 2)

    def test_what_the_interpreter_destroys_at_its_end_may_end_a_checkpointer(self):
        for i, script in enumerate((LEFT_OPEN, CLOSED_LAST)):
            with self.subTest(script):
                done = subprocess.run([sys.executable, "-c", script, self.path(f"run_{i}")], capture_output=True, text=True, timeout=LIMIT_S, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(self.open(f"run_{i}").latest(), 1)


LEFT_OPEN = """
import sys, torch, keel
def steps():
    with keel.Checkpointer(sys.argv[1], log="error") as checkpoints:
        checkpoints.save(1, {"a": torch.zeros(10)})
        yield 1
running = steps()
next(running)
"""
CLOSED_LAST = """
import sys, torch, keel
class Trainer:
    def __init__(self):
        self.checkpoints = keel.Checkpointer(sys.argv[1], log="error")
    def __del__(self):
        self.checkpoints.close()
trainer = Trainer()
trainer.checkpoints.save(1, {"a": torch.zeros(10)})
"""
DAEMON = """
import sys, threading, torch, keel
def forever(call):
    def calls():
        while True:
            call()
    return calls
checkpoints = keel.Checkpointer(sys.argv[1], log="error")
state = {"a": torch.randn(4_000_000)}
checkpoints.save(1, state)
handle = checkpoints.save_async(2, state)
threading.Thread(target=%s, daemon=True).start()
"""
FULL = """
import os, sys, torch, keel
from library_support import state_of
checkpoints = keel.Checkpointer("/mnt/run", io="buffered", log="error")
checkpoints.save(1, state_of(1))
with open("/mnt/filler", "wb") as filler:
    filler.write(bytes(os.statvfs("/mnt").f_bavail * 4096 - 100_000))
save = checkpoints.save_async(2, state_of(2))
try:
    save.wait()
except keel.CheckpointError as error:
    print("failed:", error.code, error)
state = state_of(0)
print("newest", checkpoints.load(state).step, all(torch.equal(a, b) for a, b in zip(state.values(), state_of(1).values())))
os.remove("/mnt/filler")
checkpoints.save(3, state_of(3))
print("then", checkpoints.latest(), sorted(os.listdir("/mnt/run")))
checkpoints.close()
"""


class FullDisk(unittest.TestCase):
    def test_the_save_fails_with_the_reason_and_what_was_saved_stays(self):
        mount = ["unshare", "--user", "--map-root-user", "--mount"]
        if shutil.which("unshare") is None or subprocess.run([*mount, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode:
            self.skipTest("no mount namespaces here")
        script = 'mount -t tmpfs -o size=4m none /mnt && exec "$@"'
        environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{pathlib.Path(__file__).parent}"}
        done = subprocess.run([*mount, "sh", "-c", script, "sh", sys.executable, "-c", FULL], capture_output=True, text=True,
                              timeout=LIMIT_S, env=environment, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("failed: no space", done.stdout)
        self.assertIn("are free: make room", done.stdout)
        self.assertIn("newest 1 True", done.stdout)
        self.assertRegex(done.stdout, r"then 3 \[.*'global_step_1', 'global_step_3'")
        self.assertNotIn(".tmp-2", done.stdout)


if __name__ == "__main__":
    unittest.main()
