"""Reads a checkpoint's tensors with nothing but the file format, whatever layout wrote them.

An independent reader: it takes the safetensors headers and the boxes in DCP_SHARDING_INFO, puts the
whole tensors together and proves that every byte of each is covered exactly once.
"""

import hashlib
import json
import math
import pathlib
import struct

import numpy

# As unsigned integers of the same width: bits are compared, never values.
DTYPES = {"F32": "<u4", "BF16": "<u2", "F16": "<u2", "F64": "<u8", "I64": "<u8", "I32": "<u4", "U8": "u1"}


def read_file(path):
    """Yields (name, dtype, offset, array of bits) of each shard in a file; offset 0 if none is given."""
    content = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    boxes = json.loads(header.pop("__metadata__", {}).get("DCP_SHARDING_INFO", "{}"))
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = content[8 + length + begin : 8 + length + end]
        array = numpy.frombuffer(data, DTYPES[entry["dtype"]]).reshape(entry["shape"])
        offset = boxes[name]["saved_offsets"] if boxes else [0] * array.ndim
        yield name, entry["dtype"], offset, array


def read_whole(directory):
    """{name: (dtype, array of bits)} of all `*.safetensors` in a directory."""
    shards = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        for name, dtype, offset, array in read_file(path):
            shards.setdefault(name, []).append((dtype, offset, array, path.name))
    return {name: _assemble(name, parts) for name, parts in shards.items()}


def _assemble(name, parts):
    dtype = parts[0][0]
    dims = parts[0][2].ndim
    shape = [max(offset[d] + array.shape[d] for _, offset, array, _ in parts) for d in range(dims)]
    whole = numpy.zeros(shape, DTYPES[dtype])
    written = numpy.zeros(shape, numpy.uint8)
    for part_dtype, offset, array, file in parts:
        if part_dtype != dtype:
            raise AssertionError(f"{name}: {dtype} and, in {file}, {part_dtype}")
        region = tuple(slice(o, o + s) for o, s in zip(offset, array.shape, strict=True))
        whole[region] = array
        written[region] += 1
    if math.prod(shape) and not (written == 1).all():
        raise AssertionError(f"{name}: covered {written.min()} to {written.max()} times")
    return dtype, whole


def digests(step_dir, role="actor"):
    """{name: digest} of a checkpoint's model and optimizer tensors."""
    result = {}
    for part in ("model", "optimizer"):
        for name, (dtype, whole) in read_whole(pathlib.Path(step_dir) / role / part).items():
            text = f"{dtype} {whole.shape} {hashlib.sha256(whole.tobytes()).hexdigest()}"
            result[f"{part}/{name}"] = text
    return result


def steps(run_dir):
    """The published steps of a run directory, ascending."""
    found = [p.name.removeprefix("global_step_") for p in pathlib.Path(run_dir).glob("global_step_*")]
    return sorted(int(n) for n in found if n.isdigit())


def latest(run_dir):
    path = pathlib.Path(run_dir) / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.exists() else None
