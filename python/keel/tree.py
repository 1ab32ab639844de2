"""Nested state as names and JSON: tensors by the path that leads to them, everything else in one document.

The document (state.json of a checkpoint, docs/formats/state.md) is the state's own tree with each tensor
replaced by its name, so that it can be built again without knowing anything of it.
"""

import base64
import fnmatch
import json
import math

import torch

from keel.memory import Shard

FORMAT = "keel-state"
VERSION = 1
TAG = "$"  # keys that begin with it are ours


class NotSaved(TypeError):
    """A value that is neither a tensor nor made of plain ones."""


def is_tensor(value):
    return isinstance(value, (torch.Tensor, Shard))


def is_empty(value):
    """A tensor without elements: a file has no place for it, so that its dtype and shape stand in the document."""
    return isinstance(value, torch.Tensor) and value.numel() == 0


def encode(state):
    """(tree, {name: tensor}). TypeError and ValueError name the value that cannot be saved."""
    tensors = {}
    try:
        return _encode(state, (), tensors), tensors
    except RecursionError:
        raise NotSaved("the state holds itself, or is nested too deeply to be saved") from None


def name_of(path):
    return ".".join(map(str, path))


def _is_text(name):
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode(value, path, tensors):
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise ValueError(f"'{name_of(path)}' is a nested tensor: dense ones are saved; save its parts, as unbind() gives them")
    if is_empty(value):
        return {"$empty": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if is_tensor(value):
        name = name_of(path)
        if name in tensors:
            raise ValueError(f"two tensors of the state would both be named '{name}': rename one of the keys on the way to them")
        if not _is_text(name):
            raise ValueError(f"{name!r} is no name of a tensor: it has a surrogate, which no file's text has")
        tensors[name] = value
        return {"$tensor": name}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, (str, int)) or isinstance(key, bool):
                raise NotSaved(f"state['{name_of(path)}'] has the key {key!r}: keys are texts or whole numbers")
        return _of_children({key: _encode(one, (*path, key), tensors) for key, one in value.items()})
    if isinstance(value, (list, tuple)):
        items = [_encode(one, (*path, i), tensors) for i, one in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and type(value.item()).__module__ != "numpy":
        return _encode(value.item(), path, tensors)
    hint = "; torch.from_numpy makes a tensor of it" if type(value).__module__ == "numpy" else ""
    raise NotSaved(f"state['{name_of(path)}'] is a {type(value).__module__}.{type(value).__qualname__}: tensors, numbers, texts, bytes, "
                   f"None, and dicts, lists and tuples of them are saved{hint}")


def decode(tree, tensor):
    """The state again; `tensor(name)` gives what stands for a tensor, or None: it is left out of the dict where it stands."""
    if isinstance(tree, list):
        return _decode_items(tree, tensor)
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        (tag, value), = tree.items()
        if tag == "$tensor":
            return tensor(value)
        if tag == "$empty":
            return torch.empty(value[1], dtype=getattr(torch, value[0]))
        if tag == "$float":
            return float(value)
        if tag == "$bytes":
            return base64.b64decode(value)
        if tag == "$tuple":
            return tuple(_decode_items(value, tensor))
        if tag == "$dict":
            return {key: decode(one, tensor) for key, one in value if not _is_left_out(one, tensor)}
        if tag == "$dtype":
            return getattr(torch, value)
    return {key: decode(one, tensor) for key, one in tree.items() if not _is_left_out(one, tensor)}


def _is_left_out(tree, tensor):
    name = name_in(tree)
    return name is not None and tensor(name) is None


def _decode_items(items, tensor):
    for one in items:
        if _is_left_out(one, tensor):
            raise ValueError(f"the checkpoint's '{name_in(one)}' stands in a list, in which the state has no tensor for it: give the state as many")
    return [decode(one, tensor) for one in items]


def children(tree):
    """{key: tree} of the dict that a tree stands for; None where it stands for none."""
    if isinstance(tree, dict) and tree.keys() == {"$dict"}:
        return {key: one for key, one in tree["$dict"]}
    if isinstance(tree, dict) and not (len(tree) == 1 and next(iter(tree)).startswith(TAG)):
        return tree
    return None


def _of_children(below):
    """The tree of a dict of trees."""
    if all(isinstance(key, str) and not key.startswith(TAG) for key in below):
        return below
    return {"$dict": [[key, one] for key, one in below.items()]}


def empties_of(tree):
    """What the document says of a tensor without elements; None where the tree is none."""
    return tree["$empty"] if isinstance(tree, dict) and tree.keys() == {"$empty"} else None


def name_in(tree):
    """The name of the tensor that the tree stands for; None where it stands for none."""
    return tree["$tensor"] if isinstance(tree, dict) and tree.keys() == {"$tensor"} else None


def has_values(tree):
    """It has something that is no tensor."""
    below = children(tree)
    if below is not None:
        return any(map(has_values, below.values()))
    return name_in(tree) is None


class Patterns:
    """Of names, as fnmatch has them; `what` is the argument that they were given as."""

    def __init__(self, patterns, what):
        if isinstance(patterns, (str, bytes)):  # whose letters would be patterns, a * among them
            raise TypeError(f"{what} is {patterns!r}, expected a list of patterns: [{patterns!r}]")
        self.all = list(patterns)

    def match(self, name):
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.all)


def to_document(tree, extra):
    try:
        text = json.dumps({"format": FORMAT, "version": VERSION, "state": tree, "extra": extra}, allow_nan=False, indent=1)
    except (TypeError, ValueError) as error:
        raise type(error)(f"extra, or a number of the state, cannot be written as JSON: {error}") from None
    return text + "\n"


def from_document(text, where):
    """(tree, extra)."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        if document["version"] != VERSION:
            raise ValueError(f"its version is {document['version']!r}, this program reads {VERSION}")
        return document["state"], document["extra"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}/state.json is not one of this module ({error}): it was saved by another program; "
                         "tensors() shows what it holds") from None


_MOST_NAMED = 8


def merge(texts, alike):
    """(One document of those of all ranks, in their order, "") or (None, what is wrong). It has what any has; `extra`, and what
    `alike` matches, is rank 0's."""
    documents = [from_document(text, "the save") for text in texts]
    merged, differ = documents[0][0], []
    for rank, (theirs, _) in enumerate(documents[1:], 1):
        merged = _merge(merged, theirs, (), alike, lambda name, rank=rank: differ.append(f"'{name}' of rank {rank}"))
    if not differ:
        return to_document(merged, documents[0][1]), ""
    more = f" and {len(differ) - _MOST_NAMED} more" if len(differ) > _MOST_NAMED else ""
    return None, (f"nothing was saved: values differ between ranks, of which rank 0's alone would be kept: {', '.join(differ[:_MOST_NAMED])}{more}. "
                  "Give each rank's a name of its own, or name in from_rank_0 those of which rank 0's stands for all")


def _merge(mine, theirs, path, alike, differs):
    if mine == theirs or (path and alike.match(name_of(path))):
        return mine
    below, other = children(mine), children(theirs)
    if below is None or other is None:
        differs(name_of(path))
        return mine
    both = {key: _merge(one, other[key], (*path, key), alike, differs) if key in other else one for key, one in below.items()}
    more = {key: one for key, one in other.items() if key not in below}
    for key, one in more.items():
        _refuse_alike(one, (*path, key), alike, differs)
    return _of_children(both | more)


def _refuse_alike(tree, path, alike, differs):
    """Rank 0 has nothing to stand for what it does not have."""
    if alike.match(name_of(path)):
        differs(name_of(path))
        return
    for key, one in (children(tree) or {}).items():
        _refuse_alike(one, (*path, key), alike, differs)
