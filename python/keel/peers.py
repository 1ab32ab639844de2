"""Which ranks a checkpointer has, and over which store they agree."""

import dataclasses
import datetime
import uuid

import torch.distributed as dist

from keel._checkpoint import CheckpointError

_uses = 0  # of a process's stores, by checkpointers of several ranks


@dataclasses.dataclass
class Peers:
    rank: int = 0
    world: int = 1
    store: str = ""  # host:port
    job: str = ""


def _tcp_store(store):
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        raise ValueError(f"the store is a {type(store).__name__}: ranks agree over a TCPStore, whose host and port they can be told")
    return store


def _word_of_rank_0(store, key, rank, world, deadline):
    try:
        store.wait([key], datetime.timedelta(seconds=2 * deadline))
    except dist.DistError as error:
        failure = CheckpointError(f"the checkpointer of rank {rank} of {world} waited {2 * deadline:g} s in vain for rank 0's: every rank of "
                                  f"torch.distributed makes one, in the same order ({error}). A checkpointer of one rank alone is made with rank=0, world=1")
        failure.code = "deadline exceeded"
        raise failure from None
    return store.get(key).decode()


def find(rank, world, store, job, deadline):
    """What is not given is that of torch.distributed's default group, where it was initialised; else one rank."""
    global _uses
    if world is None and rank is None and store is None:
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return Peers()
        rank, world = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
    if world in (None, 1) and not rank:
        return Peers()
    if rank is None or world is None:
        raise ValueError("rank and world go together")
    if not 0 <= rank < world:
        raise ValueError(f"rank is {rank} and world is {world}, expected a world from 1 on and a rank from 0 to world - 1; one rank alone is rank=0, world=1")
    if store is None:
        raise ValueError(f"{world} ranks need store: a torch.distributed.TCPStore, or its 'host:port' and job, a name of this start")
    if isinstance(store, str):
        if not job:
            raise ValueError("with store as 'host:port' give job too: a name of this start of the job, never used before in that store")
        return Peers(rank, world, store, job)
    tcp = _tcp_store(store)
    # A name that no earlier start has used: rank 0's word, under a key that counts the checkpointers.
    _uses += 1
    key = f"keel/checkpointer/{_uses}"
    if rank == 0:
        store.set(key, uuid.uuid4().hex)
    return Peers(rank, world, f"{tcp.host}:{tcp.port}", _word_of_rank_0(store, key, rank, world, deadline))
