"""State as people hold it: dicts, in which modules, optimizers and their like stand for their state."""

import collections
import copy
import functools

import torch

from keel import kinds, memory, tree


def is_object(value):
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def states(state):
    """The same with objects replaced by their state."""
    if not isinstance(state, dict):
        hint = ": give it a name, as in {'model': model}" if is_object(state) else ", expected a dict"
        raise TypeError(f"state is a {type(state).__name__}{hint}")
    try:
        return {key: value.state_dict() if is_object(value) else states(value) if isinstance(value, dict) else value
                for key, value in state.items()}
    except RecursionError:
        raise tree.NotSaved("the state holds itself, or is nested too deeply to be saved") from None


def _objects(state, path=()):
    for key, value in state.items():
        if is_object(value):
            yield tree.name_of((*path, key)) + ".", value
        elif isinstance(value, dict):
            yield from _objects(value, (*path, key))


def made_by_optimizers(state, tensors, entries, saved):
    """{name: new tensor} of those of `entries`, the checkpoint's, that an optimizer among the objects will have, and has not yet: a
    parameter has none before its first gradient. State of one that had none there is taken out of `tensors`: the optimizer drops it.
    `saved`: the checkpoint's tree."""
    made, seen_as = {}, tree.kinds_in(saved)
    for prefix, value in _objects(state):
        if not isinstance(value, torch.optim.Optimizer):
            continue
        start = prefix + "state."
        theirs = {name.removeprefix(start).partition(".")[0] for name, *_ in entries if name.startswith(start)}
        for name in [one for one in tensors if one.startswith(start) and one.removeprefix(start).partition(".")[0] not in theirs]:
            del tensors[name]
        params = dict(enumerate(dict.fromkeys(one for group in value.param_groups for one in group["params"])))
        for name, dtype, shape in entries:
            if name.startswith(start) and name not in tensors:
                number = name.removeprefix(start).partition(".")[0]
                made[name] = memory.like(params.get(int(number)) if number.isdecimal() else None, dtype, shape, seen_as.get(name))
    return made


def _puts_itself(value):
    """An object that takes what load_state_dict is given, as a scheduler does: where its own state lies is no matter."""
    return not isinstance(value, (torch.nn.Module, torch.optim.Optimizer))


def set_apart(state, tensors, world):
    """Gives those of `tensors` memory of their own that belong to such objects and share it: in the checkpoint they may differ, as the rates
    of a SequentialLR and of its parts do, which are one tensor before the first step."""
    prefixes = tuple(prefix for prefix, value in _objects(state) if _puts_itself(value))
    for name in memory.names_that_share(tensors, world) if prefixes else ():
        if name.startswith(prefixes) and not tree.is_split(tensors[name]):
            tensors[name] = tensors[name].detach().clone()


def made_for_none(state, saved, entries):
    """{name: new tensor} of those of `entries`, the checkpoint's, below what is None in the state and a dict, list or tuple in the
    checkpoint: there None takes whatever was saved."""
    names, ahead = set(), [(state, tree.children(saved) or {})]
    while ahead:
        here, theirs = ahead.pop()
        for key, value in here.items():
            if value is None and key in theirs and tree.name_in(theirs[key]) is None:
                names |= tree.kinds_in(theirs[key]).keys()
            elif isinstance(value, dict):
                ahead.append((value, tree.children(theirs.get(key)) or {}))
    return memory.empty(entry for entry in entries if entry[0] in names)


def compare(state, values, saved, allowed, alone, outcome="nothing was loaded"):
    """ValueError where the state and a checkpoint do not have the same values beside the tensors, which the load
    itself compares. What objects have is for them to judge. `values`, `saved`: trees; `alone`: no other rank's state
    may have what the checkpoint has besides, whose names are returned; `outcome`: as the error has it."""
    wrong, unplaced = [], []
    _compare(state, tree.children(values) or {}, tree.children(saved) or {}, (), allowed, wrong, unplaced)
    if alone:
        wrong += [f"'{name}' is in the checkpoint, and not in the state" for name in unplaced]
    mine, theirs = tree.kinds_in(values), tree.kinds_in(saved)
    wrong += [f"'{name}' is {kinds.words(mine[name])} in the state, and {kinds.words(theirs[name])} in the checkpoint"
              for name in unlike_kinds(values, saved) if not allowed.match(name)]
    if wrong:
        raise ValueError(f"{outcome}: {'; '.join(wrong)}. Name in allow_missing what may differ; "
                         "None in the state takes whatever dict or list was saved there")
    return unplaced


def unlike_kinds(values, saved):
    """Names of tensors that are seen as another kind in the state than in the checkpoint."""
    mine, theirs = tree.kinds_in(values), tree.kinds_in(saved)
    return [name for name, kind in mine.items() if name in theirs and theirs[name] != kind]


def _words(empty):
    dtype, shape = tree.empties_of(empty)
    return f"{dtype}{shape}"


def _compare(state, mine, saved, path, allowed, wrong, unplaced):
    for key in [*mine, *(key for key in saved if key not in mine)]:
        here = (*path, key)
        name = tree.name_of(here)
        if allowed.match(name):
            continue
        if is_object(state.get(key)):
            if key not in saved:
                wrong.append(f"'{name}', a {type(state[key]).__name__}, is in the state, and not in the checkpoint")
            elif tree.children(saved[key]) is None:
                wrong.append(f"'{name}' is a {type(state[key]).__name__} in the state, and no dict in the checkpoint")
            elif isinstance(state[key], torch.amp.GradScaler) and state[key].is_enabled() and not tree.children(saved[key]):
                wrong.append(f"'{name}' is a GradScaler that is enabled, and was saved disabled, when it has no state")
            elif _loads_as_torch(state[key]) and _group_sizes(mine[key]) != _group_sizes(saved[key]):
                wrong.append(f"'{name}' has groups of {_group_sizes(mine[key])} parameters in the state, and of {_group_sizes(saved[key])} in the checkpoint")
            elif _loads_as_torch(state[key]) and (moved := _first_that_moved(mine[key], saved[key])):
                wrong.append(f"'{name}' has its parameters in another order, and would take one's moments for another's: {moved[0]!r} in the state "
                             f"stands where {moved[1]!r} stands in the checkpoint")
            continue
        if key not in saved:
            if tree.has_values(mine[key]):
                wrong.append(f"'{name}' is in the state, and not in the checkpoint")
        elif key not in mine:
            if tree.has_values(saved[key]):
                unplaced.append(name)
        else:
            below = tree.children(mine[key]), tree.children(saved[key])
            if None not in below:
                _compare(state[key], *below, here, allowed, wrong, unplaced)
            elif tree.empties_of(mine[key]) != tree.empties_of(saved[key]) and None not in (tree.empties_of(mine[key]), tree.empties_of(saved[key])):
                wrong.append(f"'{name}' has no elements, and is {_words(mine[key])} in the state and {_words(saved[key])} in the checkpoint")
            elif state[key] is not None:
                where = ("in the state", "in the checkpoint")
                if below != (None, None):
                    wrong.append(f"'{name}' is a dict {where[below[0] is None]} alone")
                elif tree.empties_of(mine[key]) != tree.empties_of(saved[key]):
                    wrong.append(f"'{name}' is a tensor without elements {where[tree.empties_of(mine[key]) is None]} alone")


def puts(state, own, saved, tensors, allowed, path=()):
    """What is to be called when the tensors have their values, to put all else where it stands in `state`; objects get all
    of theirs. ValueError names what the state has no place for. `own`: states() of it; `tensors`: by name."""
    saved = tree.children(saved) or {}
    calls = []
    for key, value in state.items():
        here = (*path, key)
        if key not in saved:
            continue
        if is_object(value):
            calls.append(functools.partial(_put_object, value, own[key], saved[key], tree.decode(saved[key], tensors.get), tensors, allowed, tree.name_of(here) + "."))
        elif isinstance(value, dict):
            calls += puts(value, own[key], saved[key], tensors, allowed, here)
        elif not tree.is_tensor(value) and not allowed.match(tree.name_of(here)):
            calls.append(functools.partial(state.__setitem__, key, tree.decode(saved[key], tensors.get)))
    return calls


def _put_object(value, own, saved, decoded, tensors, allowed, prefix):
    """`own`: its state; `saved`: the tree of what was decoded; the tensors that it names have been filled where they lie."""
    if isinstance(value, torch.nn.Module):
        if _hears_of_loads(value) or not _is_of(value, saved, tensors):
            value.load_state_dict(_completed(own, decoded, allowed, prefix))
        return
    value.load_state_dict(_of_its_kinds(own, decoded) if _puts_itself(value) else decoded)
    if _loads_as_torch(value):
        _keep_dtypes(value, decoded)


def _of_its_kinds(own, decoded):
    """`decoded` with the kinds of dicts and tuples that stand in `own` at the same places, as the Counter of a MultiStepLR."""
    if isinstance(decoded, dict) and isinstance(own, dict):
        below = {key: _of_its_kinds(own.get(key), one) for key, one in decoded.items()}
        if type(own) is dict:
            return below
        again = copy.copy(own)
        again.clear()
        again.update(below)
        return again
    if isinstance(decoded, (list, tuple)) and isinstance(own, (list, tuple)):
        items = [_of_its_kinds(own[i] if i < len(own) else None, one) for i, one in enumerate(decoded)]
        if isinstance(decoded, list):
            return items
        return type(own)(*items) if hasattr(own, "_fields") and len(own) == len(items) else tuple(items)
    return decoded


def _hears_of_loads(module):
    """A hook, or a method of its own, makes something of what is loaded."""
    plain = torch.nn.Module
    return any(one._load_state_dict_pre_hooks or one._load_state_dict_post_hooks or type(one).load_state_dict is not plain.load_state_dict
               or type(one)._load_from_state_dict is not plain._load_from_state_dict for one in module.modules())


def _completed(own, decoded, allowed, prefix):
    """What a module with the state `own` is given: all that it has, and nothing else, as far as names may differ."""
    given = collections.OrderedDict((name, value) for name, value in decoded.items() if name in own or not allowed.match(prefix + name))
    given.update((name, value) for name, value in own.items() if name not in given and allowed.match(prefix + name))
    if hasattr(own, "_metadata"):  # the versions of its parts
        given._metadata = own._metadata
    return given


def _loads_as_torch(value):
    return isinstance(value, torch.optim.Optimizer) and type(value).load_state_dict is torch.optim.Optimizer.load_state_dict \
        and not value._optimizer_load_state_dict_pre_hooks


def _group_sizes(saved):
    """Of an optimizer, how many parameters each group has."""
    return [len(group.get("params", ())) for group in _groups(saved)]


def _groups(saved):
    return [tree.children(group) or {} for group in (tree.children(saved) or {}).get("param_groups", ())]


def _first_that_moved(mine, saved):
    """Of optimizers that were made of named_parameters(), the first two names that differ at one place."""
    for one, other in zip(_groups(mine), _groups(saved), strict=True):
        if "param_names" in one and "param_names" in other:
            names = ([tree.decode(name, None) for name in group["param_names"]] for group in (one, other))
            for pair in zip(*names):
                if pair[0] != pair[1]:
                    return pair
    return None


def _keep_dtypes(optimizer, decoded):
    """torch's load_state_dict gives all floating point state the dtype of its parameter, moments in float32 of one in bfloat16 among it."""
    params = dict(enumerate(dict.fromkeys(one for group in optimizer.param_groups for one in group["params"])))
    for number, saved in decoded["state"].items():
        mine = optimizer.state.get(params.get(number))
        if isinstance(saved, dict) and isinstance(mine, dict):
            mine.update({name: _as_saved(mine[name], value) for name, value in saved.items() if name in mine and name != "step"})


def _as_saved(now, saved):
    """What torch has made of `saved`, with the dtypes that all its tensors had, in whatever dicts and lists they are."""
    if isinstance(saved, torch.Tensor):
        return saved.to(now.device) if isinstance(now, torch.Tensor) and now.dtype != saved.dtype else now
    if isinstance(saved, dict) and isinstance(now, dict):
        return {key: _as_saved(now[key], one) for key, one in saved.items()}
    if isinstance(saved, (list, tuple)) and isinstance(now, (list, tuple)):
        return type(saved)(_as_saved(*both) for both in zip(now, saved, strict=True))
    return now


def _is_of(module, saved, tensors):
    """What was filled is the module's own memory, and no copy of it, as state_dict() makes where a module is split or packed.
    False, too, where the module has more than tensors."""
    own = {memory.storage_of(one) for one in (*module.parameters(), *module.buffers())}
    for one in (tree.children(saved) or {}).values():
        if tree.name_in(one) is None and tree.empties_of(one) is None:
            return False
        filled = tensors.get(tree.name_in(one))
        if filled is not None and memory.storage_of(filled) not in own:
            return False
    return True
