"""Where tensors lie: what the extension is told of them, and staging of those that are not in host memory."""

import sys

import torch

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


def _of_dtensor(name, value, world):
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor import Shard as ShardPlacement
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if value.device_mesh.size() > 1 and world == 1:
        raise ValueError(f"'{name}' is a DTensor over {value.device_mesh.size()} ranks, and this checkpointer is of one: "
                         "leave world unset after torch.distributed was initialised, or give rank, world and store")
    for placement in value.placements:
        if type(placement) not in (ShardPlacement, Replicate):
            raise ValueError(f"'{name}' is a DTensor with the placement {placement}: Shard and Replicate are saved; redistribute it first")
    _, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    return value.to_local(), tuple(value.shape), tuple(offset)


def local_part(name, value, world):
    """(tensor of this rank, shape of the whole, offset or None)."""
    if isinstance(value, Shard):
        return value.tensor, value.shape, value.offset
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(value, distributed.DTensor):
        return _of_dtensor(name, value, world)
    return value, tuple(value.shape), None


def storage_of(value):
    """Which memory a tensor's part of this rank lies in."""
    if isinstance(value, Shard):
        value = value.tensor
    return (value.to_local() if hasattr(value, "to_local") else value).untyped_storage().data_ptr()


def check(name, tensor):
    """Refuses what has no plain memory of elements that a checkpoint knows."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"'{name}' is a tensor of layout {tensor.layout}{', quantized' if tensor.is_quantized else ''}: "
                         "dense ones are saved; save its parts")
    if tensor.is_meta:
        raise ValueError(f"'{name}' is on the device meta, and has no values")
    if tensor.dtype not in DTYPES:
        hint = "view_as_real" if tensor.is_complex() else "view(torch.uint8)"
        raise ValueError(f"'{name}' is of dtype {tensor.dtype}, which is not saved: save and load {hint} of it")
    if tensor.is_neg():
        raise ValueError(f"'{name}' is a negated view: save and load resolve_neg() of it")


def describe(name, tensor, shape, offset):
    """The tuple of the extension (TensorTuple)."""
    box = (None, None) if offset is None else (list(offset), list(tensor.shape))
    return (name, DTYPES[tensor.dtype], list(shape), tensor.data_ptr(), list(tensor.stride()), *box)


def empty(entries):
    """{name: new tensor} of (name, dtype, shape) as the extension says them."""
    return {name: torch.empty(shape, dtype=TORCH_DTYPES[dtype]) for name, dtype, shape in entries}


def for_save(tensors, world):
    """(tuples, tensors to be kept alive, whether all are copies that nobody else writes)."""
    parts = []
    for name, value in tensors.items():
        tensor, shape, offset = local_part(name, value, world)
        check(name, tensor)
        parts.append((name, tensor.detach(), shape, offset))
    private = any(tensor.device.type != "cpu" for _, tensor, _, _ in parts)
    if private:  # then all of it is copied here, so that nothing is copied twice
        parts = [(name, tensor.cpu() if tensor.device.type != "cpu" else tensor.clone(), shape, offset)
                 for name, tensor, shape, offset in parts]
    return [describe(*part) for part in parts], [tensor for _, tensor, _, _ in parts], private


def like(param, dtype, shape):
    """A new tensor of the optimizer of `param`: split between ranks as that is, if it has its shape."""
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(param, distributed.DTensor) and tuple(param.shape) == tuple(shape):
        return torch.empty_like(param.detach(), dtype=TORCH_DTYPES[dtype])
    return torch.empty(shape, dtype=TORCH_DTYPES[dtype])


def for_load(tensors, world):
    """(tuples, [(name, tensor, staging or None, name of an earlier one that is the same memory or None)]): what lies on a device,
    or is given twice, is loaded to a copy and put there by `finish`."""
    tuples, places, firsts = [], [], {}
    for name, value in tensors.items():
        tensor, shape, offset = local_part(name, value, world)
        check(name, tensor)
        tensor = tensor.detach()
        first = firsts.setdefault((tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()), name) if tensor.numel() else name
        staging = None
        if tensor.device.type != "cpu" or first != name:
            staging = torch.empty(tensor.shape, dtype=tensor.dtype)
            staging.copy_(tensor)  # what allow_missing leaves out keeps its values
        tuples.append(describe(name, tensor if staging is None else staging, shape, offset))
        places.append((name, tensor, staging, None if first == name else first))
    return tuples, places


def _bytes(tensor):
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8)


def finish(places, saved):
    """Copies what was staged to its device, and tells autograd that the values have changed. `saved`: the checkpoint's entries, of
    which two may have other values for what is one tensor here."""
    entries = {name: (dtype, shape) for name, dtype, shape in saved}
    unlike = []
    for name, tensor, staging, first in places:
        if first is not None:
            if entries.get(name) == entries.get(first, ()) and not torch.equal(_bytes(staging), _bytes(tensor)):
                unlike.append(f"'{name}' and '{first}'")
        elif staging is not None:
            tensor.copy_(staging)
        elif hasattr(torch.autograd.graph, "increment_version") and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
    if unlike:
        raise ValueError(f"{', '.join(unlike)} are one tensor in the state, and have different values in the checkpoint, of which one would be "
                         "lost: load into tensors of their own. The state is of no use now")
