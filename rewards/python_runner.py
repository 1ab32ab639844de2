# Runs the function of a reward file: a child of Keel, which sends a JSON object a line and gets one
# for each. It is carried by the program as text (python_verifier.h), and needs Python 3.8.
#
# First {"path", "name", "kwargs"}, answered by {"ready": <interpreter>} or {"refused": <why>}; then
# samples as any verifier gets them (docs/rewards.md), answered by {"id", "score", ...} or {"id",
# "error"}. Lines come and go over copies of descriptors 0 and 1: what the function reads from its
# standard input is empty, and what it writes to its standard output goes where its errors go.
import asyncio
import importlib.util
import inspect
import json
import math
import os
import queue
import sys
import threading
import traceback

MAIN = os.getpid()
LONGEST_TEXT = 1000
MOST_VALUES = 64


def take_descriptors():
    requests, answers = os.dup(0), os.dup(1)  # not inherited by programs that are started
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # A child that is forked is not to answer, nor to keep the channel open when this process ends.
    os.register_at_fork(after_in_child=lambda: (os.close(requests), os.close(answers)))
    return requests, answers


def read_requests(requests, lines):
    """Ends the process with the channel, whatever the function is doing: nobody waits for it."""
    try:
        with os.fdopen(requests, "rb") as channel:
            for line in channel:
                lines.put(line)
    finally:
        os._exit(0)


def say(answers, answer):
    if os.getpid() != MAIN:
        os._exit(0)  # a fork of the function came back as if it were this process
    # A half of a surrogate pair, as json.loads makes it of a cut escape, is no text elsewhere.
    rest = json.dumps(answer, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    while rest:
        rest = rest[os.write(answers, rest) :]


def described(error):
    at, frame = "", error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_globals is not globals():  # not of this program
            at = f" ({os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno})"
        frame = frame.tb_next
    try:
        text = str(error)
    except BaseException:
        text = "an error without a text"
    return f"{type(error).__name__}: {text}{at}"[:LONGEST_TEXT]


def name_of(path):
    """That by which another process imports the file, too, as one that multiprocessing starts does."""
    name = os.path.splitext(os.path.basename(path))[0]
    try:
        found = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # of a module that is there already, and came from no file
        found = None
    same = found is not None and found.origin and os.path.exists(found.origin) and os.path.samefile(found.origin, path)
    return name if same else "custom_reward"


def load(path, name, kwargs):
    sys.path.append(os.path.dirname(os.path.abspath(path)))
    module_name = name_of(path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None:
        spec = importlib.util.spec_from_loader(module_name, importlib.machinery.SourceFileLoader(module_name, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise AttributeError(f"{path} has no {name}")
    function = getattr(module, name)
    if not callable(function):
        raise TypeError(f"{name} of {path} is no function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function  # of C: its first call tells
    given = {"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {}, **kwargs}
    try:
        signature.bind(**given)
    except TypeError as error:
        raise TypeError(f"{name}{signature} cannot be called with {', '.join(given)}: {error}") from None
    return function


def number(value, what):
    """Of Python's numbers, and of what has one: numpy's and torch's scalars."""
    if not isinstance(value, (bool, int, float)) and getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{what}: expected a number, got {type(value).__name__}")
    try:
        value = float(value)
    except OverflowError:
        raise ValueError(f"{what} is greater than a double holds") from None
    if not math.isfinite(value):
        raise ValueError(f"{what} is not finite: {value}")
    return value


def answer_of(result):
    if not isinstance(result, dict):
        score = number(result, "the function's result (a number, or a dict with score)")
        return {"score": score, "acc": score}
    if "score" not in result:
        raise KeyError("the function's dict has no score")
    answer = {"score": number(result["score"], "score")}
    for name, value in result.items():
        if name in ("id", "score", "error", "answer") or not isinstance(name, str) or len(name) > 100:
            continue
        if len(answer) > MOST_VALUES:
            break
        try:
            answer[name] = number(value, name)
        except TypeError:
            continue  # no number: a text for people
        except ValueError:
            if name == "acc":  # says whether the answer is right: without it the score would
                raise
    voted = result.get("answer", result.get("pred"))
    if isinstance(voted, (str, int, float)):
        try:
            answer["answer"] = str(voted)[:LONGEST_TEXT]
        except ValueError:
            pass  # a number of more digits than Python writes
    return answer


def main():
    requests, answers = take_descriptors()
    lines = queue.Queue()
    threading.Thread(target=read_requests, args=(requests, lines), daemon=True).start()
    first = json.loads(lines.get())
    try:
        function = load(first["path"], first["name"], first["kwargs"])
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).strip()
        say(answers, {"refused": " | ".join(text.splitlines()[-3:])[-LONGEST_TEXT:]})
        return
    say(answers, {"ready": f"{sys.executable} {sys.version.split()[0]}"})
    loop = None
    while True:
        sample = json.loads(lines.get())
        extra_info = sample["extra_info"] if isinstance(sample["extra_info"], dict) else {}
        if "turn_rewards" in sample:
            extra_info["rollout_reward_scores"] = {"tool_rewards": sample["turn_rewards"]}
        try:
            given = {
                "data_source": sample["data_source"],
                "solution_str": sample["response"],
                "ground_truth": sample["ground_truth"],
                "extra_info": extra_info,
            }
            result = function(**{**given, **first["kwargs"]})
            if inspect.isawaitable(result):
                # One loop for all, so that what the function keeps open stays of use.
                loop = loop or asyncio.new_event_loop()
                asyncio.set_event_loop(loop)
                result = loop.run_until_complete(result)
            answer = answer_of(result)
        except BaseException as error:  # sys.exit, too: of one response, not of the run
            answer = {"error": described(error)}
        say(answers, {"id": sample["id"], **answer})


main()
