"""Jobs of several ranks under torch.distributed: DTensors, shards and replicas are saved once, and load under any other cut."""

import multiprocessing
import pathlib
import time
import traceback
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from library_support import LIMIT_S, Folder, ckpt
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Cut
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import keel
from keel import peers

WEIGHT = torch.arange(7 * 6, dtype=torch.float32).reshape(7, 6)
BIAS = torch.tensor([0.5, -1.5])
ROWS = torch.arange(10, dtype=torch.int64).reshape(5, 2)


def state_of(rank, mesh, placement):
    rows = (ROWS[:2], 0) if rank == 0 else (ROWS[2:], 2)
    return {
        "weight": distribute_tensor(WEIGHT, mesh, [placement]),
        "whole": distribute_tensor(BIAS.clone(), mesh, [Replicate()]),
        "bias": BIAS.clone(),
        "rows": keel.Shard(rows[0].clone(), (5, 2), (rows[1], 0)),
        f"rng{rank}": torch.full((3,), rank, dtype=torch.uint8),
        "loader": {f"rank{rank}": {"seen": [10 + rank]}, "epoch": 2},
        "lr": 0.1,
    }


def save(rank, mesh, path):
    state = state_of(rank, mesh, Cut(0))
    with keel.Checkpointer(path, keep=1, log="error", io="buffered") as checkpoints:
        assert (checkpoints.rank, checkpoints.world) == (rank, 2)
        assert checkpoints.load(dict(state)) is None
        for step in (1, 2):
            handle = checkpoints.save_async(step, state, extra={"step": step}, overlap=step == 2)
            checkpoints.wait_copied()
            handle.wait()
    # One that follows it in the same store has keys of its own.
    with keel.Checkpointer(path, keep=1, log="error", io="buffered") as checkpoints:
        checkpoints.save(3, state, extra={"step": 3})
        bad = state | {"more": torch.zeros(1, dtype=torch.complex64)} if rank == 1 else state
        if rank == 1:
            bad = state | {"bias": torch.zeros(3)}
        try:
            checkpoints.save(4, bad)
            raise AssertionError("shapes differed, and nothing was said")
        except keel.CheckpointError as error:
            assert "bias" in str(error), error


def seen_as_bytes(rank, mesh, path):
    """Complex and float8 tensors that ranks hold parts of, and the moments that an optimizer of them has after its first step."""
    bytes_ = torch.arange(10, dtype=torch.uint8).reshape(5, 2)

    def made(step):
        weight = torch.nn.Parameter(distribute_tensor(WAVES * step, mesh, [Cut(0)]))
        optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
        mine = slice(0, 2) if rank == 0 else slice(2, 5)
        rows = (bytes_ * step)[mine].view(torch.float8_e4m3fn)
        scales = DTensor.from_local((bytes_ * step)[:2].view(torch.float8_e5m2), mesh, [Cut(0)], run_check=False)
        none = keel.Shard(torch.zeros(0, 2), (0, 2), (0, 0))
        return {"weight": weight, "optimizer": optimizer, "scales": scales, "rows": [keel.Shard(rows, (5, 2), (mine.start, 0))], "none": none}

    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        state, again = made(1), made(0)
        state["weight"].grad = state["weight"].detach() * 1j
        state["optimizer"].step()
        checkpoints.save_async(1, state).wait()
        checkpoints.load(again)
        moment, got = (one["optimizer"].state[one["weight"]]["momentum_buffer"] for one in (state, again))
        assert got.placements == (Cut(0),) and torch.equal(got.to_local(), moment.to_local()) and moment.to_local().abs().sum() > 0
        assert torch.equal(again["weight"].detach().to_local(), state["weight"].detach().to_local())
        assert torch.equal(again["scales"].to_local().view(torch.uint8), bytes_[:2])
        assert torch.equal(again["rows"][0].tensor.view(torch.uint8), state["rows"][0].tensor.view(torch.uint8))
        restored = checkpoints.restore().state
        assert restored["weight"].dtype == torch.complex64 and torch.equal(restored["weight"], state["weight"].detach().full_tensor())
        assert torch.equal(restored["rows"][0].view(torch.uint8), bytes_) and restored["rows"][0].dtype == torch.float8_e4m3fn
        assert restored["scales"].dtype == torch.float8_e5m2 and restored["scales"].shape == (4, 2) and restored["none"].shape == (0, 2)


WAVES = torch.complex(torch.arange(15.0).reshape(5, 3), torch.ones(5, 3))


def differ(rank, mesh, path):
    """What ranks have under one name has to be the same: of copies one is written, and one document is."""
    state = state_of(rank, mesh, Cut(0)) | {"long": torch.zeros(100_000), "wide": torch.zeros(300, 300)}
    unlike = {
        "noise": torch.full((4,), rank),
        "tail": torch.cat([torch.zeros(50_000), torch.full((10,), float(rank))]),
        "somewhere": torch.arange(100_000) + rank * (torch.arange(100_000) == 20_000),
        "seed": rank,
        "zero": -0.0 if rank else 0.0,
        "one": 1.0 if rank else True,
        "loader": {"at": [rank]},
    }
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        for name, value in unlike.items():
            said = "loader.at" if name == "loader" else name
            try:
                checkpoints.save(1, state | {name: value})
                raise AssertionError(f"{name} differed, and nothing was said")
            except keel.CheckpointError as error:
                assert error.code == "invalid data" and f"'{said}'" in str(error) and "from_rank_0" in str(error), error
        try:
            checkpoints.save(1, state, from_rank_0=["rng*"])
            raise AssertionError("rank 0 has no rng1, and nothing was said")
        except keel.CheckpointError as error:
            assert "'rng1' of rank 1" in str(error), error
        assert checkpoints.steps() == []
        checkpoints.save(2, state | unlike, from_rank_0=["noise", "tail", "somewhere", "seed", "zero", "one", "loader.at"])
        blank = state | {name: torch.full_like(value, 7) if torch.is_tensor(value) else None for name, value in unlike.items()}
        checkpoints.load(blank | {"loader": {"at": None}})
        assert (blank["noise"] == 0).all() and (blank["tail"] == 0).all()


def one_refuses(rank, mesh, path):
    """What one rank alone finds wrong every rank hears at once, and the next save is one of all."""
    def refused(call, words):
        began = time.monotonic()
        try:
            call()
            raise AssertionError("one rank refused, and nothing was said")
        except (keel.CheckpointError, TypeError, ValueError) as error:
            assert words in str(error) and (rank == 1) != isinstance(error, keel.CheckpointError), repr(error)
        assert time.monotonic() - began < 30

    good = {"a": torch.ones(2), "n": 1}
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        for state in ({"n": {1}}, {"a": torch.zeros(2, dtype=torch.complex64).to_sparse()}):
            refused(lambda: checkpoints.save(1, good | (state if rank == 1 else {})), "state['n'] is a" if "n" in state else "layout torch.sparse_coo")
        checkpoints.save(2, good)
        refused(lambda: checkpoints.load(good | ({"more": 3} if rank == 1 else {})), "'more' is in the state, and not in the checkpoint")
        assert checkpoints.load(dict(good)).step == 2


def changes_on_one_rank(rank, mesh, path):
    """What a data loader keeps, of another size from save to save on one rank, and as it was on the other."""
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        for step in range(1, 7):
            kept = torch.full((step if step % 2 != rank else step - 1,), float(step))
            state = {"weight": WEIGHT * step, f"kept{rank}": kept, "long": torch.full((100_000,), float(step))}
            checkpoints.save_async(step, state, overlap=step > 3).wait()
            checkpoints.wait_copied()
            got = checkpoints.restore(step).state
            assert torch.equal(got["weight"], WEIGHT * step) and torch.equal(got[f"kept{rank}"], kept) and (got["long"] == step).all()
        # One whose values differ does not begin, and the next has names on one rank alone.
        noise = {"noise": torch.full((4,), float(rank)), "seed": rank}
        for alike in ([], ["seed"], ["seed", "noise"]):
            try:
                checkpoints.save(7, state | noise, from_rank_0=alike)
            except keel.CheckpointError as error:
                assert len(alike) < 2 and "other values" in str(error) or "differ between ranks" in str(error), error
        assert checkpoints.latest() == 7


def differ_beside(rank, mesh, path):
    """Copies are compared beside the training, by the save that copies them: it begins, and fails."""
    state = {"model": torch.zeros(300, 300), "noise": torch.zeros(100_000)}
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        checkpoints.save(1, state)
        for step in (2, 3):  # the memory of a copy is there, or not yet
            state["noise"][77_777] = rank
            for overlap in (True, False):
                save = checkpoints.save_async(step, state, overlap=overlap)
                checkpoints.wait_copied()
                state["noise"].zero_()  # the save has read what it needs
                try:
                    save.wait()
                    raise AssertionError("noise differed, and nothing was said")
                except keel.CheckpointError as error:
                    assert error.code == "invalid data" and "'noise' of ranks 0 and 1" in str(error), error
                state["noise"][77_777] = rank
        assert checkpoints.steps() == [1]
        state["noise"].zero_()
        checkpoints.save_async(4, state, overlap=True).wait()
        assert checkpoints.steps() == [4, 1]


def alone(rank, mesh, path):
    """What one rank does without the others is said by name, and what to do about it."""
    def refused(call, *words):
        began = time.monotonic()
        try:
            call()
            raise AssertionError("a rank was alone, and nothing was said")
        except keel.CheckpointError as error:
            assert error.code == "deadline exceeded", error.code
            for word in words:
                assert word in str(error), error
        assert time.monotonic() - began < 30

    def make():
        return keel.Checkpointer(path, deadline=1, log="error")

    for who in range(2):
        if rank == who:
            refused(make, f"rank {rank} of 2", "rank=0, world=1")
            with keel.Checkpointer(f"{path}{rank}", rank=0, world=1, log="error") as mine:
                mine.save(1, {"a": torch.ones(2)})
        else:
            peers._uses += 1  # it counts those that it does not make
        dist.barrier()
    with make() as checkpoints:
        if rank == 0:
            refused(lambda: checkpoints.save(7, {"a": torch.ones(2)}), "the save of step 7 on rank 0 of 2", "waiting for rank 1", "rank=0, world=1")
        dist.barrier()


def place_on_no_rank(rank, mesh, path):
    """What the checkpoint has and no rank's state is not dropped without a word; what one rank has a place for is no concern."""
    def zeros(name):
        return {name: torch.zeros(2)}

    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        checkpoints.save(1, {"a": torch.ones(2), f"own{rank}": torch.ones(2), "deep": {"lr": 0.5, "seen": [3]}})
        state = {"a": torch.zeros(2), "deep": {"lr": 0.0, "seen": []}}
        for more, words in [
            ({}, ["own0", "own1"]),
            (zeros("own0"), ["own1"]),
            (zeros(f"own{rank}") | {"deep": {"lr": 0.0}}, ["1 in the checkpoint, and in no rank's state: deep.seen"]),
        ]:
            try:
                checkpoints.load(state | more)
                raise AssertionError(f"{words} had no place, and nothing was said")
            except keel.CheckpointError as error:
                assert all(word in str(error) for word in words), error
            assert state["a"].sum() == 0
        got = state | zeros(f"own{rank}") | {"deep": {"lr": 0.0} if rank == 0 else {"seen": []}}
        assert checkpoints.load(got).step == 1
        assert got["deep"] == ({"lr": 0.5} if rank == 0 else {"seen": [3]}) and got[f"own{rank}"].sum() == 2, got
        assert checkpoints.load({"a": torch.zeros(2)}, allow_missing=["own*", "deep*"]).step == 1


def damaged_newest(rank, mesh, path):
    """All ranks pass over what is damaged, to the newest that is whole, whatever each holds; a step that was asked for is refused by all."""
    def made(step, moments):
        weight = torch.nn.Parameter(distribute_tensor(WEIGHT * step, mesh, [Cut(0)]))
        optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
        if moments:
            optimizer.state[weight]["momentum_buffer"] = distribute_tensor(WEIGHT + step, mesh, [Cut(0)])
        return {"weight": weight, "optimizer": optimizer, f"own{rank}": torch.full((4,), float(step)), "step": step}

    def damage(step):
        dist.barrier()
        if rank == 0:
            for file in sorted(pathlib.Path(path, f"global_step_{step}").rglob("*.safetensors")):
                data = bytearray(file.read_bytes())
                data[-1] ^= 1
                file.write_bytes(data)
        dist.barrier()

    def check(state, step, moments):
        assert torch.equal(state["weight"].detach().full_tensor(), WEIGHT * step), state
        assert state["step"] == step and (state[f"own{rank}"] == step).all(), state
        mine = state["optimizer"].state.get(state["weight"], {})
        assert ("momentum_buffer" in mine) == moments, mine
        assert not moments or torch.equal(mine["momentum_buffer"].full_tensor(), WEIGHT + step), mine

    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        for step, moments in ((1, False), (2, True), (3, True)):
            checkpoints.save(step, made(step, moments))
        for newest, moments in ((2, True), (1, False)):
            damage(newest + 1)
            for in_place in (False, True) if moments else (False,):  # in place nothing is known of an older one that holds other tensors
                state = made(7, True)
                loaded = checkpoints.load(state, in_place=in_place)
                assert loaded.step == newest and len(loaded.skipped) == 3 - newest, loaded
                check(state, newest, moments)
            state = made(7, True)
            try:
                checkpoints.load(state, step=newest + 1)
                raise AssertionError(f"step {newest + 1} is damaged, and was loaded")
            except keel.CheckpointError as error:
                assert f"global_step_{newest + 1}" in str(error), error
            check(state, 7, True)


def other_steps(rank, mesh, path):
    """A checkpoint is one step of all ranks, of which each knows."""
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        part = keel.Shard(torch.zeros(2), (4,), (2 * rank,))
        for call, words in ((lambda: checkpoints.save(1 + rank, {"a": part}), "rank 1 saves step 2, and rank 0 step 1"),
                            (lambda: checkpoints.load({"a": part}, step=3 if rank else None), "rank 1 is to load step 3, and rank 0 step 4")):  # fmt: skip
            try:
                call()
                raise AssertionError("the steps were two, and nothing was said")
            except keel.CheckpointError as error:
                assert words in str(error), error
            checkpoints.save(3, {"a": part})
            checkpoints.save(4, {"a": part})


def split_training(mesh, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3, bias=False))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def steps_of(model, optimizer, steps):
    for step in steps:
        model(torch.randn(8, 7, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def resume_split(rank, mesh, path):
    """A training under FSDP goes on bit for bit, with an optimizer that has made no step."""
    model, optimizer = split_training(mesh, 0)
    steps_of(model, optimizer, range(3))
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        checkpoints.save_async(3, {"model": model, "optimizer": optimizer})
    steps_of(model, optimizer, range(3, 6))
    again = split_training(mesh, 1)
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        checkpoints.load({"model": again[0], "optimizer": again[1]})
    steps_of(*again, range(3, 6))
    for name, value in model.state_dict().items():
        assert torch.equal(value.full_tensor(), again[0].state_dict()[name].full_tensor()), name


def fully_split(mesh, seed, tensor_parallel):
    """FSDP2 over tensor parallelism: rows and columns are cut by the latter first, so that FSDP's placement of the rows is a
    _StridedShard; 6 rows between 2 x 2 ranks are uneven."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4, bias=False))
    if tensor_parallel:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def strided(mesh, value):
    """By parts with gaps: rows 0 to 8 go to (0, 1, 5), (2, 3, 6), (4, 7) and (8)."""
    placement = _StridedShard(0, split_factor=2)
    parts, _ = placement._split_tensor(value, mesh.size(), with_padding=False)
    return DTensor.from_local(parts[mesh.get_local_rank()].clone(), mesh, [placement], shape=value.shape, stride=value.stride(), run_check=False)


def save_of_four(rank, mesh, path):
    """The oracles are torch.distributed.checkpoint's reader and full_tensor()."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, optimizer = fully_split(grid, 0, True)
    steps_of_rows(model, optimizer, range(2))
    assert any(isinstance(placement, _StridedShard) for one in model.state_dict().values() for placement in one.placements)
    state = {"model": model, "optimizer": optimizer, "gaps": strided(mesh, ROWS_OF_9)}
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        spec = state["gaps"]
        unlike = DTensor.from_local(torch.zeros(5, 3), mesh, spec.placements, shape=spec.shape, stride=spec.stride(), run_check=False)
        try:
            checkpoints.save(1, {"unlike": unlike})
            raise AssertionError("a part had more rows than its placement says, and nothing was said")
        except ValueError as error:
            assert "'unlike'" in str(error) and "of which this rank holds (5, 3)" in str(error), error
        checkpoints.save_async(2, state).wait()
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=f"{path}.dcp")
        full = {name: value.full_tensor() for name, value in model.state_dict().items()}
        if rank == 0:
            torch.save({"full": full, "first": optimizer.state_dict()["state"][0]["exp_avg"].shape}, f"{path}.full")
        # In another cut: FSDP alone over 4, and back to this one.
        alone = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        for mesh_of, parallel in ((alone, False), (grid, True)):
            again = fully_split(mesh_of, 1, parallel)
            gaps = strided(mesh, torch.zeros_like(ROWS_OF_9))
            checkpoints.load({"model": again[0], "optimizer": again[1], "gaps": gaps})
            for name, value in again[0].state_dict().items():
                assert torch.equal(value.full_tensor(), full[name]), (name, value.placements)
            assert torch.equal(gaps.to_local(), state["gaps"].to_local()), gaps
            for one, other in zip(optimizer.state_dict()["state"].values(), again[1].state_dict()["state"].values(), strict=True):
                assert torch.equal(one["exp_avg"].full_tensor(), other["exp_avg"].full_tensor())


ROWS_OF_9 = torch.arange(27, dtype=torch.float32).reshape(9, 3)


def steps_of_rows(model, optimizer, steps):
    for step in steps:
        model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def load_copies(rank, mesh, path):
    """A module whose state is copies of its parameters, as one that is split between ranks gives."""
    torch.manual_seed(3)
    saved, again = Copying(), Copying()
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        checkpoints.save(1, {"model": saved})
        checkpoints.load({"model": again})
    assert torch.equal(saved.weight, again.weight)


class Copying(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.register_state_dict_post_hook(self.copied)

    @staticmethod
    def copied(module, state, prefix, _):
        for name in state:
            state[name] = state[name].clone()


def load(rank, mesh, path):
    with keel.Checkpointer(path, log="error", io="buffered") as checkpoints:
        state = state_of(rank, mesh, Cut(1))  # by columns
        for value in state.values():
            if isinstance(value, torch.Tensor):
                (value.to_local() if hasattr(value, "to_local") else value).zero_()
        state["rows"].tensor.zero_()
        state["lr"] = None
        state["loader"] = {f"rank{rank}": {"seen": None}, "epoch": None}
        loaded = checkpoints.load(state)
        assert (loaded.step, loaded.extra, state["lr"]) == (3, {"step": 3}, 0.1), loaded
        assert torch.equal(state["weight"].full_tensor(), WEIGHT)
        assert torch.equal(state["whole"].to_local(), BIAS) and torch.equal(state["bias"], BIAS)
        assert torch.equal(state["rows"].tensor, ROWS[:2] if rank == 0 else ROWS[2:])
        assert (state[f"rng{rank}"] == rank).all()
        assert state["loader"] == {f"rank{rank}": {"seen": [10 + rank]}, "epoch": 2}, state["loader"]


def rank_main(rank, world, port, path, work, failures):
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
        work(rank, init_device_mesh("cpu", (world,)), path)
        dist.destroy_process_group()
    except BaseException:
        failures.put(f"rank {rank}: {traceback.format_exc()}")


class Ranks(Folder):
    def on_two_ranks(self, work):
        self.on_ranks(2, work)

    def on_ranks(self, world, work):
        # Starts the store's thread: in a process of its own, so that this one can fork.
        fork = multiprocessing.get_context("fork")
        failures = fork.Queue()
        with __import__("socket").socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [fork.Process(target=rank_main, args=(rank, world, port, str(self.path()), work, failures)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(LIMIT_S)
            if process.is_alive():
                process.kill()
                failures.put("a rank hung")
        said = []
        while not failures.empty():
            said.append(failures.get())
        self.assertEqual(said, [])
        self.assertEqual([process.exitcode for process in ranks], [0] * world)

    def test_what_differs_under_one_name_is_refused(self):
        self.on_two_ranks(differ)

    def test_parts_of_complex_and_float8_tensors_come_back_bit_for_bit(self):
        self.on_two_ranks(seen_as_bytes)

    def test_what_one_rank_refuses_no_other_waits_for(self):
        self.on_two_ranks(one_refuses)

    def test_a_state_that_changes_its_shape_on_one_rank_is_saved(self):
        self.on_two_ranks(changes_on_one_rank)

    def test_what_differs_is_found_beside_the_training(self):
        self.on_two_ranks(differ_beside)

    def test_a_rank_that_is_alone_hears_for_whom_it_waits(self):
        self.on_two_ranks(alone)

    def test_what_no_rank_has_a_place_for_is_named(self):
        self.on_two_ranks(place_on_no_rank)

    def test_a_damaged_checkpoint_is_passed_over_by_all(self):
        self.on_two_ranks(damaged_newest)

    def test_ranks_that_save_or_load_two_steps_are_refused(self):
        self.on_two_ranks(other_steps)

    def test_a_training_under_fsdp_resumes_bit_for_bit(self):
        self.on_two_ranks(resume_split)

    def test_fsdp_over_tensor_parallelism_loads_in_any_cut(self):
        self.on_ranks(4, save_of_four)
        got = self.open().restore().state
        known = torch.load(f"{self.path()}.full")
        self.assert_same(got["model"], known["full"])
        self.assertEqual(got["optimizer"]["state"][0]["exp_avg"].shape, known["first"])
        self.assertTrue(torch.equal(got["gaps"], ROWS_OF_9))
        whole = {"model": {name: torch.zeros_like(value) for name, value in known["full"].items()}}
        dcp.load(whole, checkpoint_id=f"{self.path()}.dcp", no_dist=True)
        self.assert_same(got["model"], whole["model"])

    def test_a_module_that_gives_copies_is_loaded(self):
        self.on_two_ranks(load_copies)

    def test_any_cut_loads_what_another_saved(self):
        self.on_two_ranks(save)
        code, said = ckpt("verify", self.path())
        self.assertEqual(code, 0, said)
        self.on_two_ranks(load)
        got = self.open().restore()
        self.assertEqual(got.step, 3)
        self.assertTrue(torch.equal(got.state["weight"], WEIGHT))
        self.assertTrue(torch.equal(got.state["rows"], ROWS))
        self.assertEqual(got.state["loader"], {"rank0": {"seen": [10]}, "epoch": 2, "rank1": {"seen": [11]}})
        self.assertTrue((got.state["rng1"] == 1).all())
        files = sorted((self.path() / "global_step_3/state/model").iterdir())
        self.assertEqual(len(files), 2)
        # Every element once, whoever has copies.
        sizes = sum(file.stat().st_size for file in files)
        self.assertLess(sizes, 2 * 4096 + 4 * WEIGHT.numel() + 2 * 4 * 2 + 8 * ROWS.numel() + 2 * 3 + 1)


if __name__ == "__main__":
    unittest.main()
