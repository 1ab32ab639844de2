"""Nested state as names and JSON: tensors by the path that leads to them, everything else in one document.

The document (state.json of a checkpoint, docs/formats/state.md) is the state's own tree with each tensor
replaced by its name, so that it can be built again without knowing anything of it.
"""

import base64
import dataclasses
import enum
import fnmatch
import json
import math
import re
import sys

import torch

from keel import kinds
from keel.memory import Shard, check_layout

FORMAT = "keel-state"
VERSION = 2
_READ = (1, 2)
TAG = "$"  # keys that begin with it are ours


class NotSaved(TypeError):
    """A value that is neither a tensor nor made of plain ones."""


def is_tensor(value):
    return isinstance(value, (torch.Tensor, Shard))


def is_empty(value):
    """A tensor without elements: a file has no place for it, so that its dtype and shape stand in the document."""
    return math.prod(value.shape) == 0


def is_split(value):
    """Between ranks: it is known by its parts."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return isinstance(value, Shard) or (distributed is not None and isinstance(value, distributed.DTensor))


def encode(state, to_fill=False):
    """(tree, {name: tensor}). TypeError and ValueError name the value that cannot be saved. `to_fill`: the tensors are to be
    written to, and have to be the memory of what stands in the state."""
    tensors = {}
    try:
        return _Encoding(tensors, to_fill).of(state, ()), tensors
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


_DEEPEST = 200  # of dicts and lists in each other, which Python's stack holds when they are read again, too


class _Encoding:
    def __init__(self, tensors, to_fill):
        self._tensors, self._to_fill = tensors, to_fill

    def of(self, value, path):
        """The tree of a value, whose tensors are noted by their names."""
        if len(path) > _DEEPEST:
            raise NotSaved("the state holds itself, or is nested too deeply to be saved")
        if is_tensor(value) or kinds.is_array(value):
            return self._of_tensor(value, path)
        if value is None or isinstance(value, (bool, str)):
            return value
        if kinds.is_scalar(value) and not isinstance(value, bytes):
            try:
                return {"$numpy": kinds.of_scalar(value)}
            except kinds.Refused as error:
                raise NotSaved(f"state['{name_of(path)}'] {error}") from None
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
            return _of_children({key: self.of(one, (*path, key)) for key, one in value.items()})
        if isinstance(value, (list, tuple)):
            items = [self.of(one, (*path, i)) for i, one in enumerate(value)]
            return {"$tuple": items} if isinstance(value, tuple) else items
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"$device": str(value)}
        raise NotSaved(f"state['{name_of(path)}'] is a {type(value).__module__}.{type(value).__qualname__}: tensors, numpy's arrays, numbers, "
                       f"texts, bytes, None, and dicts, lists and tuples of them are saved{_hint(value)}")

    def _of_tensor(self, value, path):
        name = name_of(path)
        try:
            if is_tensor(value):
                own = value.tensor if isinstance(value, Shard) else value
                if torch.nn.parameter.is_lazy(own):
                    raise ValueError(f"'{name}' has no values yet: a lazy module gets them from its first forward")
                if own.is_nested:
                    raise ValueError(f"'{name}' is a nested tensor: dense ones are saved; save its parts, as unbind() gives them")
                if is_empty(value):
                    check_layout(name, own)
                    return {"$empty": [str(own.dtype).removeprefix("torch."), list(value.shape)]}
                kind = kinds.kind_of_tensor(own)
                if kind is None:
                    return {"$tensor": self._named(value, path)}
                return {"$view": [self._named(value if is_split(value) else kinds.of_tensor(value, self._to_fill), path), kind]}
            kinds.check_array(value)
            kind = kinds.kind_of_array(value)
            if value.size == 0:
                return {"$empty": [kind, list(value.shape)]}
            return {"$view": [self._named(kinds.of_array(value, self._to_fill), path), kind]}
        except kinds.Refused as error:
            raise NotSaved(f"state['{name}'] {error}") from None
        except RuntimeError as error:  # as of a ShardedTensor, of which torch knows nearly nothing
            raise NotSaved(f"state['{name}'] is a {type(value).__module__}.{type(value).__qualname__}, which cannot be looked into: save its "
                           f"parts, as keel.Shard where ranks hold them ({str(error)[:80]}...)") from None

    def _named(self, tensor, path):
        name = name_of(path)
        if name in self._tensors:
            raise ValueError(f"two tensors of the state would both be named '{name}': rename one of the keys on the way to them")
        if not _is_text(name):
            raise ValueError(f"{name!r} is no name of a tensor: it has a surrogate, which no file's text has")
        self._tensors[name] = tensor
        return name


def _hint(value):
    """What to do with a value that is not saved; "" where nothing is known."""
    if isinstance(value, (set, frozenset)):
        return "; save sorted() of it"
    if hasattr(value, "get_state") and hasattr(value, "set_state"):
        return "; save its get_state(), and give that to its set_state() after the load"
    if hasattr(value, "getstate") and hasattr(value, "setstate"):
        return "; save its getstate(), and give that to its setstate() after the load"
    if hasattr(value, "bit_generator"):
        return "; save its bit_generator.state, and set that after the load"
    if hasattr(value, "state_dict"):
        return "; objects stand for their state_dict() in dicts alone, not in a list or tuple, and with a load_state_dict()"
    if isinstance(value, enum.Enum):
        return "; save its value"
    if dataclasses.is_dataclass(value):
        return "; save vars() of it"
    return ""


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
        if tag == "$view":
            plain = tensor(value[0])
            return None if plain is None else kinds.again(plain, value[1])
        if tag == "$empty":
            return kinds.empty(*value)
        if tag == "$numpy":
            return kinds.scalar_again(*value)
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
        if tag == "$device":
            return torch.device(value)
        if tag.startswith(TAG):
            raise ValueError(f"the checkpoint has a value of the kind {tag}, which this version of Keel does not know")
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
    if isinstance(tree, dict) and tree.keys() == {"$view"}:
        return tree["$view"][0]
    return tree["$tensor"] if isinstance(tree, dict) and tree.keys() == {"$tensor"} else None


def kinds_in(tree):
    """{name: kind} of all tensors of the tree; None is the kind of plain ones."""
    found, ahead = {}, [tree]
    while ahead:
        one = ahead.pop()
        name = name_in(one)
        if name is not None:
            found[name] = one["$view"][1] if "$view" in one else None
        elif isinstance(one, dict):
            below = children(one)
            ahead += (below if below is not None else one).values()
        elif isinstance(one, list):
            ahead += one
    return found


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


def _check_keys(value):
    """JSON has texts as keys, and json.dumps makes others into such, two into one among them."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"extra has the key {key!r}, and those of JSON are texts: save it in the state, whose keys may be whole numbers")
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _check_keys(one)


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")  # written in JSON as the one character that it would be read as


def to_document(tree, extra):
    document = {"format": FORMAT, "version": VERSION, "state": tree, "extra": extra}
    try:
        text = json.dumps(document, allow_nan=False, indent=1, ensure_ascii=False)
        if not text.isascii():
            pair = _PAIR.search(text)
            if pair:
                raise ValueError(f"a text has the surrogates {pair.group()!r} side by side, which would be read as one character")
            text = json.dumps(document, allow_nan=False, indent=1)
    except (TypeError, ValueError) as error:
        raise type(error)(f"extra, or a number of the state, cannot be written as JSON: {error}") from None
    _check_keys(extra)
    return text + "\n"


def from_document(text, where):
    """(tree, extra)."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        version = document["version"]
        if version in _READ and not isinstance(version, bool):
            return document["state"], document["extra"]
        if not isinstance(version, int):
            raise ValueError(f"its version is {version!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}/state.json is not one of this module ({error}): it was saved by another program; "
                         "tensors() shows what it holds") from None
    raise ValueError(f"{where}/state.json has version {version}, and this Keel reads up to {VERSION}: it was saved by a newer Keel; load it with that one")


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
    # By how they are written: 1, 1.0 and True are equal for Python, and 0.0 and -0.0.
    if repr(mine) == repr(theirs) or (path and alike.match(name_of(path))):
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
