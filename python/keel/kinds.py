"""Values that a file has no dtype for, seen as plain tensors: numpy's arrays, and complex and float8 tensors.

Each is a tensor of another dtype on the same memory, so that nothing is copied and a load fills it where it lies. Its kind, a
text, stands beside the tensor's name in the document: a dtype as torch calls it, or `numpy.` and the array's dtype string.
"""

import base64
import sys

import torch

_NUMPY = "numpy."
_KEPT = "biufcmMSU"  # kinds of numpy's dtypes of which a dtype string says all
_PLAIN = {"|b1": 1, "|u1": 1, "|i1": 1, "<u2": 2, "<i2": 2, "<f2": 2, "<u4": 4, "<i4": 4, "<f4": 4, "<u8": 8, "<i8": 8, "<f8": 8}


class Refused(Exception):
    """What is wrong with a value, as in "is ..."; whoever knows where it stands says so."""


def _numpy():
    """Where nobody has imported it there are no values of it."""
    return sys.modules.get("numpy")


def _is_kept(dtype):
    numpy = _numpy()
    return dtype.kind in _KEPT and not dtype.hasobject and dtype.itemsize > 0 and numpy.dtype(dtype.str) == dtype


def is_array(value):
    return _numpy() is not None and isinstance(value, _numpy().ndarray)


def is_scalar(value):
    return _numpy() is not None and isinstance(value, _numpy().generic)


def check_array(array):
    """Refuses what its dtype string, shape and bytes do not say all of."""
    kind = type(array)
    if kind not in (_numpy().ndarray, _numpy().memmap):
        raise Refused(f"is a {kind.__module__}.{kind.__qualname__}: plain arrays of numpy are saved; save numpy.asarray of its parts")
    if not _is_kept(array.dtype):
        what = "save its values as a list" if array.dtype.hasobject else "save its fields, or a view as numpy.uint8"
        raise Refused(f"is a numpy array of dtype {array.dtype}, which is not saved: {what}")


def kind_of_array(array):
    return _NUMPY + array.dtype.str


def of_array(array, to_fill):
    """The tensor on the array's memory. One that cannot be a tensor is copied for a save; for a load it is, if nobody
    may write to it: the state then gets a new one."""
    step = array.itemsize if array.dtype.str in _PLAIN else 1
    if not array.flags.writeable or not array.flags.aligned or any(stride < 0 or stride % step for stride in array.strides):
        if to_fill and array.flags.writeable:
            raise Refused(f"is a numpy array with the strides {array.strides} in bytes, which no tensor has: load into a contiguous one")
        array = array.copy()
    return torch.from_numpy(array if step > 1 or array.dtype.str in _PLAIN else array[..., None].view("u1"))


def kind_of_tensor(tensor):
    """None: it is a plain one, or none that this module knows."""
    if tensor.layout != torch.strided:
        return None
    if tensor.is_complex() or (tensor.is_floating_point() and tensor.itemsize == 1):
        return str(tensor.dtype).removeprefix("torch.")
    return None


def of_tensor(tensor, to_fill):
    """The plain tensor on the memory of one of a kind: [..., 2] of parts of a complex one, bytes of a float8 one."""
    tensor = tensor.detach()
    if not tensor.is_complex():
        return tensor.view(torch.uint8)
    if tensor.is_conj():
        if to_fill:
            raise Refused("is a conjugated view: load into resolve_conj() of it")
        tensor = tensor.resolve_conj()
    return torch.view_as_real(tensor)


def seen(kind, dtype, shape):
    """(dtype, shape) of the tensor of a kind, or of None, whose memory is a plain one of these."""
    if kind is None or kind.startswith(_NUMPY):
        return dtype, tuple(shape)
    its = getattr(torch, kind)
    return its, tuple(shape[:-1] if its.is_complex else shape)


def again(tensor, kind):
    """The value that `tensor` is the memory of. One that is split between ranks stands for itself."""
    if not kind.startswith(_NUMPY):
        dtype = getattr(torch, kind)
        if not isinstance(tensor, torch.Tensor) or tensor.dtype == dtype:
            return tensor
        return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)
    dtype = kind.removeprefix(_NUMPY)
    array = tensor.numpy()
    return array if dtype in _PLAIN else array.view(dtype)[..., 0]


def empty(kind, shape):
    """One without elements."""
    if not kind.startswith(_NUMPY):
        return torch.empty(shape, dtype=getattr(torch, kind), device="cpu")
    import numpy

    return numpy.empty(shape, dtype=kind.removeprefix(_NUMPY))


def words(kind):
    if kind is None:
        return "a tensor of a plain dtype"
    return f"a numpy array ({kind.removeprefix(_NUMPY)})" if kind.startswith(_NUMPY) else f"a tensor of {kind}"


def of_scalar(value):
    """[dtype string, bytes in base64]."""
    if not _is_kept(value.dtype):
        raise Refused(f"is a numpy scalar of dtype {value.dtype}, which is not saved")
    return [value.dtype.str, base64.b64encode(value.tobytes()).decode()]


def scalar_again(dtype, data):
    import numpy

    return numpy.frombuffer(base64.b64decode(data), dtype=dtype)[0]
