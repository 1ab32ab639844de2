"""Where tensors lie: what the extension is told of them, and staging of those that are not in host memory."""

import itertools
import sys

import torch

from keel import kinds

DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class Shard:
    """The part of a tensor that this rank holds: `tensor` lies at `offset` in a whole of `shape`.

    Stands for a tensor in the state of a job of several ranks. The parts of all ranks cover the whole; ranks
    that have the same part hold the same values.
    """

    def __init__(self, tensor, shape, offset):
        if not (tensor.dim() == len(shape) == len(offset)):
            raise ValueError(f"a shard of {tensor.dim()} dims of a whole of shape {tuple(shape)} at {tuple(offset)}")
        self.tensor, self.shape, self.offset = tensor, tuple(shape), tuple(offset)

    def __repr__(self):
        return f"keel.Shard({tuple(self.tensor.shape)} at {self.offset} of {self.shape}, {self.tensor.dtype})"


def _runs(indices):
    """[(first of the whole, first here, how many)] of ascending indices, a tensor: pieces without gaps."""
    if not len(indices):
        return []
    starts = [0, *((indices[1:] - indices[:-1] != 1).nonzero().flatten() + 1).tolist()]
    ends = [*starts[1:], len(indices)]
    return [(int(indices[start]), start, end - start) for start, end in zip(starts, ends)]


def _runs_of_dims(name, value, here):
    """Of each dim, the pieces of the whole that this rank's part of a DTensor is made of; more than one where
    `_StridedShard` cuts each of several shards, as of FSDP2 over tensor parallelism."""
    indices = {}  # by dim, as the placements cut them from left to right
    coordinates = value.device_mesh.get_coordinate()
    for axis, placement in enumerate(value.placements):
        if placement.is_replicate():
            continue
        mine = indices.get(placement.dim, torch.arange(value.shape[placement.dim], device="cpu"))
        cut = type(placement)(0, split_factor=placement.split_factor) if hasattr(placement, "split_factor") else type(placement)(0)
        pieces, _ = cut._split_tensor(mine, value.device_mesh.size(axis), with_padding=False, contiguous=False)
        indices[placement.dim] = pieces[coordinates[axis]]
    for dim, mine in indices.items():
        if here[dim] != len(mine):
            raise ValueError(f"'{name}' is a DTensor of {tuple(value.shape)} with the placements {value.placements}, of which this rank holds "
                             f"{tuple(here)}, and not {len(mine)} in dim {dim} as these say: give it a size that the mesh divides")
    return [_runs(indices[dim]) if dim in indices else [(0, 0, size)] for dim, size in enumerate(value.shape)]


def _of_dtensor(name, value, world):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as ShardPlacement
    from torch.distributed.tensor import placement_types

    if value.device_mesh.size() > 1 and world == 1:
        raise ValueError(f"'{name}' is a DTensor over {value.device_mesh.size()} ranks, and this checkpointer is of one: "
                         "leave world unset after torch.distributed was initialised, or give rank, world and store")
    if value.device_mesh.get_coordinate() is None:
        return []  # of other ranks
    for placement in value.placements:
        if type(placement) not in (ShardPlacement, Replicate, getattr(placement_types, "_StridedShard", Replicate)):
            raise ValueError(f"'{name}' is a DTensor with the placement {placement}: Shard and Replicate are saved; redistribute it first")
    parts, local = [], value.to_local()
    for runs in itertools.product(*_runs_of_dims(name, value, local.shape)):
        piece = local
        for dim, (_, here, size) in enumerate(runs):
            piece = piece.narrow(dim, here, size)
        parts.append((piece, tuple(value.shape), tuple(run[0] for run in runs)))
    return parts


def local_parts(name, value, world, to_fill=False):
    """[(tensor of this rank, shape of the whole, offset or None)]."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if isinstance(value, Shard):
        parts = [(value.tensor, value.shape, value.offset)]
    elif distributed is not None and isinstance(value, distributed.DTensor):
        parts = _of_dtensor(name, value, world)
    else:
        return [(value, tuple(value.shape), None)]
    return [_seen_as_plain(name, *part, to_fill) for part in parts]


def _seen_as_plain(name, tensor, shape, offset, to_fill):
    """The part of a tensor of a kind as that of a plain one, in which the two of a complex number are a dim more."""
    if kinds.kind_of_tensor(tensor) is None:
        return tensor, shape, offset
    try:
        plain = kinds.of_tensor(tensor, to_fill)
    except kinds.Refused as error:
        raise ValueError(f"'{name}' {error}") from None
    more = plain.shape[tensor.dim():]
    return plain, (*shape, *more), (*offset, *[0 for _ in more])


def storage_of(value):
    """Which memory a tensor's part of this rank lies in."""
    if isinstance(value, Shard):
        value = value.tensor
    return (value.to_local() if hasattr(value, "to_local") else value).untyped_storage().data_ptr()


def check_layout(name, tensor):
    """Refuses what has no plain memory of elements."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"'{name}' is a tensor of layout {tensor.layout}{', quantized' if tensor.is_quantized else ''}: "
                         "dense ones are saved; save its parts")
    if tensor.is_meta:
        raise ValueError(f"'{name}' is on the device meta, and has no values")


def check(name, tensor):
    """And those that a checkpoint does not know."""
    check_layout(name, tensor)
    if tensor.dtype not in DTYPES:
        raise ValueError(f"'{name}' is of dtype {tensor.dtype}, which is not saved: save and load view(torch.uint8) of it")
    if tensor.numel():
        last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        if (last + 1) * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise ValueError(f"'{name}' has elements whose memory was freed (as FSDP frees that of whole parameters between their uses): "
                             "save and load what holds the values")
    if tensor.is_neg():
        raise ValueError(f"'{name}' is a negated view: save and load resolve_neg() of it")


def describe(name, tensor, shape, offset):
    """The tuple of the extension (TensorTuple)."""
    box = (None, None) if offset is None else (list(offset), list(tensor.shape))
    return (name, DTYPES[tensor.dtype], list(shape), tensor.data_ptr(), list(tensor.stride()), *box)


def empty(entries):
    """{name: new tensor} of (name, dtype, shape) as the extension says them."""
    return {name: _new(dtype, shape) for name, dtype, shape in entries}


def _new(dtype, shape):
    """In host memory, whatever torch.set_default_device says."""
    return torch.empty(shape, dtype=TORCH_DTYPES[dtype], device="cpu")


def for_save(tensors, world):
    """(tuples, tensors to be kept alive, whether all are copies that nobody else writes)."""
    parts = []
    for name, value in tensors.items():
        for tensor, shape, offset in local_parts(name, value, world):
            check(name, tensor)
            parts.append((name, tensor.detach(), shape, offset))
    private = any(tensor.device.type != "cpu" for _, tensor, _, _ in parts)
    if private:  # then all of it is copied here, so that nothing is copied twice
        parts = [(name, tensor.cpu() if tensor.device.type != "cpu" else tensor.clone(), shape, offset)
                 for name, tensor, shape, offset in parts]
    return [describe(*part) for part in parts], [tensor for _, tensor, _, _ in parts], private


def like(param, dtype, shape, kind):
    """A new tensor of the optimizer of `param`: split between ranks, and with strides, as that is, if it has its shape, since
    fused optimizers walk through the memory of both at once. `kind`: what its memory is seen as; None is a plain tensor."""
    its_dtype, its_shape = kinds.seen(kind, TORCH_DTYPES[dtype], shape)
    if param is None or tuple(param.shape) != its_shape:
        return _new(dtype, shape)
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(param, distributed.DTensor):
        return torch.empty_like(param.detach(), dtype=its_dtype)
    its = torch.empty_like(param.detach(), dtype=its_dtype, device="cpu")
    return its if kinds.kind_of_tensor(its) is None else kinds.of_tensor(its, to_fill=True)


class _Place:
    """Where a tensor, or a part of one, is loaded to: its own memory, or a copy that is put there."""

    def __init__(self, name, tensor, shape, shared, staged, keep):
        self.name, self.tensor, self.shared = name, tensor.detach(), shared
        self.entry = DTYPES[tensor.dtype], list(shape)
        self.staging = None
        if shared or tensor.device.type != "cpu" or staged and not _may_lie_upon_itself(tensor):
            self.staging = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            if keep:
                self.staging.copy_(self.tensor)

    @property
    def memory(self):
        return self.tensor if self.staging is None else self.staging


def _may_lie_upon_itself(tensor):
    """As an expanded one, which the extension refuses by its strides."""
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def _extent(tensor):
    """(device, first byte, byte behind the last): of a tensor with elements."""
    first = tensor.data_ptr()
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
    return str(tensor.device), first, first + reach * tensor.itemsize


def _that_share(parts):
    """Indices of those, of [(name, tensor, ...)], between whose first and last element another lies."""
    shared, last = set(), None
    for (device, first, end), i in sorted((_extent(tensor), i) for i, (_, tensor, *_) in enumerate(parts) if tensor.numel()):
        if last is not None and last[0] == device and first < last[1]:
            shared |= {i, last[2]}
        if last is None or last[0] != device or end > last[1]:
            last = device, end, i
    return shared


def names_that_share(tensors, world):
    """Of those that share memory with another, or with another part of theirs."""
    parts = [(name, part[0]) for name, value in tensors.items() for part in local_parts(name, value, world, to_fill=True)]
    return {parts[i][0] for i in _that_share(parts)}


def for_load(tensors, world, staged=False, keep=True):
    """(tuples, places): what lies on a device, or shares memory with another, is loaded to a copy and put there by `finish`; with `staged` all
    is. `keep`: copies begin with the values that are there, which what allow_missing leaves out keeps."""
    parts = []
    for name, value in tensors.items():
        for tensor, shape, offset in local_parts(name, value, world, to_fill=True):
            check(name, tensor)
            parts.append((name, tensor, shape, offset))
    shared = _that_share(parts)
    places = [_Place(name, tensor, shape, i in shared, staged, keep) for i, (name, tensor, shape, _) in enumerate(parts)]
    return [describe(place.name, place.memory, shape, offset) for place, (_, _, shape, offset) in zip(places, parts)], places


def _bytes(tensor):
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)


def _overwritten(shared):
    """(A place whose staged values are not what the memory will have once all were put there, in their order; those that lie on it
    too), or None. Nothing is put: the memory is played by one of its own."""
    rooms = []  # [device, first byte, byte behind the last, places] of what hangs together
    for place in sorted(shared, key=lambda one: _extent(one.tensor)):
        device, first, end = _extent(place.tensor)
        if not rooms or rooms[-1][0] != device or first >= rooms[-1][2]:
            rooms.append([device, first - first % 8, end, []])
        rooms[-1][2] = max(rooms[-1][2], end)
        rooms[-1][3].append(place)
    for _, first, end, places in rooms:
        room = torch.empty(end - first, dtype=torch.uint8, device="cpu").untyped_storage()
        views = [torch.empty(0, dtype=one.tensor.dtype, device="cpu").set_(
            room, (one.tensor.data_ptr() - first) // one.tensor.itemsize, one.tensor.shape, one.tensor.stride()) for one in places]
        for view, place in zip(views, places):
            view.copy_(place.staging)
        for view, place in zip(views, places):
            if not torch.equal(_bytes(place.staging), _bytes(view)):
                _, begin, behind = _extent(place.tensor)
                return place, [one for one in places if one is not place and _extent(one.tensor)[1] < behind and begin < _extent(one.tensor)[2]]
    return None


def finish(places, saved, in_place=False):
    """Copies what was staged to its memory, and tells autograd that the values have changed. `saved`: the checkpoint's entries, of
    which two may have other values for what is one tensor here."""
    entries = {name: (dtype, list(shape)) for name, dtype, shape in saved}
    shared = [place for place in places if place.shared and entries.get(place.name) == place.entry]
    overwritten = _overwritten(shared)
    if overwritten is not None:
        place, others = overwritten
        raise ValueError(f"{'' if in_place else 'nothing was loaded: '}{', '.join(repr(one.name) for one in others)} and '{place.name}' are on the same "
                         "memory in the state, and have different values in the checkpoint, of which one would be lost: load into tensors of their "
                         f"own{'. The state is of no use now' if in_place else ''}")
    for place in places:
        if place.staging is not None and (not place.shared or place in shared):
            with torch.inference_mode(place.tensor.is_inference()):
                place.tensor.copy_(place.staging)
        elif place.staging is None and hasattr(torch.autograd.graph, "increment_version") and not place.tensor.is_inference():
            torch.autograd.graph.increment_version(place.tensor)
