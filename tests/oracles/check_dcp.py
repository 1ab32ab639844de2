"""Stock PyTorch loads the model files of a checkpoint, bit for bit.

    check_dcp.py STEP_DIR EXPECTED.safetensors [--role actor]

Reads STEP_DIR/<role>/model with torch.distributed.checkpoint's own HuggingFaceStorageReader, in one
process, and compares every whole tensor with EXPECTED: the same names, shapes, types and bytes.
"""

import argparse
import pathlib
import sys

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp


def load(directory):
    reader = dcp.HuggingFaceStorageReader(str(directory))
    # 0x5A everywhere first: a byte that no file covers is told from one that was read as zero.
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
    }
    for tensor in state.values():
        as_bytes(tensor).fill_(0x5A)
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def as_bytes(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def differences(expected, found):
    for name in sorted(expected.keys() - found.keys()):
        yield f"{name}: missing"
    for name in sorted(found.keys() - expected.keys()):
        yield f"{name}: not expected"
    for name in sorted(expected.keys() & found.keys()):
        want, have = expected[name], found[name]
        if want.shape != have.shape or want.dtype != have.dtype:
            yield f"{name}: expected {want.dtype} {list(want.shape)}, found {have.dtype} {list(have.shape)}"
            continue
        unequal = (as_bytes(want.contiguous()) != as_bytes(have)).view(-1, want.element_size()).any(1)
        if unequal.any():
            first = unequal.nonzero()[0].item()
            yield f"{name}: {unequal.sum().item()} of {want.numel()} elements differ, the first at {first}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step_dir", type=pathlib.Path)
    parser.add_argument("expected", type=pathlib.Path)
    parser.add_argument("--role", default="actor")
    args = parser.parse_args()
    expected = safetensors.torch.load_file(args.expected)
    found = load(args.step_dir / args.role / "model")
    problems = list(differences(expected, found))
    if problems:
        print("\n".join(problems), file=sys.stderr)
        raise SystemExit(1)
    print(f"{len(expected)} tensors equal")


if __name__ == "__main__":
    main()
