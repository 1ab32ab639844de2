"""Chat templates of the world, rendered by transformers and by Keel: the same bytes, the same refusals.

The templates come from two packages of PyPI (llama-cpp-python's source, trl's wheel), fetched once
into the folder that KEEL_TEMPLATE_CACHE names; without them the test says so and is skipped (exit 77).

    chat_templates_test.py PROGRAM [--nightly]

PROGRAM is tests/model/chat_template/chat_template_cases.
"""

import copy
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import unittest.mock
import zipfile

import jinja2
import transformers.utils.chat_template_utils as utils

SKIPPED = 77
NOW = datetime.datetime.fromtimestamp(1750000000)
LLAMA = ("llama-cpp-python==0.3.36", "vendor/llama.cpp/models/templates/")
TRL = ("trl==1.16.0", "trl/chat_templates/")


def fetch(cache, package, kind):
    name = package.split("==")[0].replace("-", "_")
    found = list(cache.glob(name + "-*"))
    if not found:
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip"]
        command = [*pip, "download", "-q", "--no-deps", "-d", str(cache), package]
        environment = dict(os.environ)
        if kind == "source":
            # pip asks a source for its metadata; with the build's front end at hand that builds nothing.
            tools = (cache / "build-tools").resolve()
            subprocess.run([*pip, "install", "-q", "--target", str(tools), "scikit-build-core"], capture_output=True, check=False, timeout=600)
            command += ["--no-binary", ":all:", "--no-build-isolation"]
            environment["PYTHONPATH"] = str(tools)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
        if done.returncode != 0:
            print(f"pip cannot get {package}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        found = list(cache.glob(name + "-*"))
    return found[0] if found else None


def templates(cache):
    """{name: source}; None when a package cannot be had."""
    out = {}
    archive = fetch(cache, TRL[0], "wheel")
    if archive is None:
        return None
    with zipfile.ZipFile(archive) as wheel:
        for name in wheel.namelist():
            if name.startswith(TRL[1]) and name.endswith(".jinja"):
                out["trl/" + pathlib.PurePath(name).name] = wheel.read(name).decode()
    archive = fetch(cache, LLAMA[0], "source")
    if archive is None:
        return None
    with tarfile.open(archive) as source:
        for member in source:
            if LLAMA[1] in member.name and member.name.endswith(".jinja"):
                text = source.extractfile(member).read().decode()
                out["llama.cpp/" + pathlib.PurePath(member.name).name] = text
    return out


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, id="call_1abc2def3"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place, e.g. <b>Köln</b> & \"Paris\".",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Where", "enum": ["Köln", "Paris"]},
                "days": {"type": ["integer", "null"], "default": 3},
                "detail": {"type": "object", "properties": {"wind": {"type": "boolean"}}},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["place"],
        },
        "return": {"type": "string", "description": "Words"},
    },
}
TOOLS = [WEATHER, {"type": "function", "function": {"name": "now", "description": "", "parameters": {
    "type": "object", "properties": {}}}}]

CONVERSATIONS = {
    "plain": ([user("Hello"), assistant("Hi there!"), user("2 + 2?")], {}),
    "one": ([user("Hello")], {}),
    "ends": ([user("Hello"), assistant("Hi!")], {}),
    "system": ([system("Be brief."), user("Hi"), assistant("Hello."), user("Bye")], {}),
    "developer": ([{"role": "developer", "content": "Be brief."}, user("Hi")], {}),
    "turns": ([m for i in range(5) for m in (user(f"Question {i}"), assistant(f"Answer {i}"))]
              + [user("End")], {}),
    "call": ([user("Weather?"), assistant("", tool_calls=[call("get_weather", {"place": "Köln", "days": 2})]),
              {"role": "tool", "name": "get_weather", "tool_call_id": "call_1abc2def3", "content": "12 °C"},
              assistant("It is 12 °C."), user("Thanks")], {}),
    "call_null": ([user("Weather?"), assistant(None, tool_calls=[
        call("get_weather", {"place": "Paris", "tags": ["a", "b"], "detail": {"wind": True}}, "123456789"),
        call("now", {}, "abcdefghi")]),
        {"role": "tool", "name": "get_weather", "tool_call_id": "123456789", "content": "{\"t\": 12.5}"},
        {"role": "tool", "name": "now", "tool_call_id": "abcdefghi", "content": "noon"}], {}),
    "call_text": ([user("Weather?"), assistant("Let me see.", tool_calls=[
        call("get_weather", "{\"place\": \"Köln\"}")])], {}),
    "thinking": ([user("2+2?"), assistant("4", reasoning_content="Add\nthem."), user("3+3?"),
                  assistant("6", reasoning_content="Again.")], {}),
    "think_text": ([user("2+2?"), assistant("<think>\nAdd.\n</think>\n\n4"), user("3+3?")], {}),
    "no_think": ([user("2+2?")], {"enable_thinking": False}),
    "think_on": ([system("S"), user("2+2?")], {"enable_thinking": True, "reasoning_effort": "high"}),
    "parts": ([user([{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]),
               assistant([{"type": "text", "text": "A cat."}]), user([{"type": "text", "text": "Sure?"}])], {}),
    "image": ([user([{"type": "image"}, {"type": "text", "text": "What is this?"}])], {}),
    "unicode": ([system("Sprich Deutsch, ß ı İ 你好 🙂\u200d"), user("Grüße\u00a0\u2003 'q' \"d\" \\n {{ x }}"),
                 assistant("😀 naïve\r\n\ttab")], {}),
    "spaces": ([system("  padded \n"), user("\n\n lead and trail \n "), assistant(" \n answer \n"), user(" ")], {}),
    "empty": ([user(""), assistant(""), user("")], {}),
    "nothing": ([], {}),
    "documents": ([user("Who?")], {"documents": [{"title": "A", "text": "Ada wrote it."},
                                                 {"title": "B", "text": "Bob read it.", "n": 1.5}]}),
    "not_alternating": ([user("a"), user("b"), assistant("c"), assistant("d")], {}),
    "starts_with_assistant": ([assistant("Hello"), user("Hi")], {}),
    "unknown_role": ([user("a"), {"role": "narrator", "content": "b"}], {}),
    "no_content": ([user("a"), {"role": "assistant"}], {}),
    "continued": ([user("Count"), assistant("1, 2,")], {"continue_final_message": True}),
    "continued_spaces": ([user("Count"), assistant("1, 2, \n")], {"continue_final_message": True}),
    "continued_parts": ([user("Count"), assistant([{"type": "text", "text": "1,"}])],
                        {"continue_final_message": True}),
    "numbers": ([user("x"), assistant("", tool_calls=[call("f", {
        "a": 1.0, "b": -2, "c": 1e22, "d": None, "e": [1, {"g": False}], "f": 0.00001, "h": "é\x7f\x01"})])], {}),
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def expected(source, request):
    extra = dict(request.get("extra", {}))
    try:
        with unittest.mock.patch.object(utils, "datetime", Clock):
            texts, masks = utils.render_jinja_template(
                conversations=[copy.deepcopy(request["messages"])],
                tools=copy.deepcopy(request.get("tools")),
                documents=copy.deepcopy(request.get("documents")),
                chat_template=source,
                return_assistant_tokens_mask=not request.get("continue_final_message", False),
                continue_final_message=request.get("continue_final_message", False),
                add_generation_prompt=request.get("add_generation_prompt", False),
                **extra,
            )
    except Exception as error:  # whatever it raises, the template refuses the case
        return {"error": f"{type(error).__name__}: {error}"}
    text = texts[0]
    spans = [[len(text[:a].encode()), len(text[:b].encode())] for a, b in (masks[0] if masks else [])]
    return {"text": text, "assistant": spans}


def cases(sources):
    for name, source in sorted(sources.items()):
        first = True
        for label, (messages, more) in CONVERSATIONS.items():
            for tools in (None, TOOLS):
                for prompt in (False, True):
                    if prompt and more.get("continue_final_message"):
                        continue
                    request = {"messages": messages, "tools": tools, "add_generation_prompt": prompt,
                               "extra": dict(TOKENS)}
                    for key, value in more.items():
                        place = request if key in ("documents", "continue_final_message") else request["extra"]
                        place[key] = value
                    case = {"template": name, "label": label, "request": request}
                    if first:
                        case["source"] = source
                    first = False
                    yield source, case


def run(program, lines, *arguments):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    result = subprocess.run([program, *arguments], input=text.encode(), capture_output=True, check=False,
                            env={**os.environ, "TZ": os.environ.get("TZ", "UTC")})
    if result.returncode != 0:
        sys.exit(f"{program} ended with {result.returncode}: {result.stderr.decode()[-2000:]}")
    return [json.loads(line) for line in result.stdout.decode().splitlines()]


def compare(pairs, answers):
    wrong, refused = [], 0
    for (source, case), got in zip(pairs, answers):
        want = expected(source, case["request"])
        refused += "error" in want
        same = ("error" in want) == ("error" in got) and want.get("text") == got.get("text")
        # A continued message has no mask in transformers.
        if same and "text" in want and not case["request"].get("continue_final_message"):
            same = want["assistant"] == got["assistant"]
        if not same:
            wrong.append((case, want, got))
    return wrong, refused


# Random expressions: what one of these fails on, or prints, so does the other.
ATOMS = ["1", "0", "-3", "2.5", "1e20", "'ab'", "'Ünï x'", "''", "none", "true", "false", "[1, 2, 3]",
         "['b', 'A', 'c']", "(1, 'x')", "{'k': 1, 'items': 2}", "{}", "[]", "missing", "s", "n", "l", "d",
         "d.k", "d['x']", "l[0]", "l[-1]", "l[5]", "s[1:]", "s[::-1]", "l[::2]", "l[-2:]", "range(3)"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["length", "trim", "upper", "lower", "capitalize", "title", "string", "list", "join(', ')", "first",
           "last", "tojson", "tojson(indent=2)", "default('D')", "default('D', true)", "int", "float", "abs",
           "sort", "reverse|list", "unique|list", "min", "max", "sum", "replace('a', 'b')", "items|list",
           "dictsort", "map('string')|list", "select|list", "reject|list", "select('string')|list",
           "indent(2)", "round(1)", "safe", "map(attribute='k')|list", "selectattr('k')|list", "round(-1)",
           "int(0, 16)", "sum(start=[])", "sort(attribute='k,v')", "batch(2, 'x')|list", "slice(2)|list",
           "truncate(4, true)", "center(9)", "attr('upper')", "forceescape", "urlencode",
           "groupby('k')", "wordwrap(3)", "pprint", "striptags", "urlize", "xmlattr", "filesizeformat", "wordcount"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean",
         "true", "false", "integer", "float", "eq 1", "in [1, 'ab']", "lower", "upper"]
METHODS = [".strip()", ".split()", ".split('a')", ".startswith('a')", ".endswith('b')", ".upper()", ".k",
           ".items()", ".get('k')", ".get('q', 7)", ".replace('a', 'b')", ".keys()|list", ".append(1)",
           ".lstrip('a')", ".find('b')", ".count('a')", ".title_", "[0]", "['k']", "[1:]", ".format(1)",
           ".split(none, 1)", ".rsplit(none, 1)", ".find('b', 2)", ".startswith('b', 1)", ".splitlines(true)", ".zfill(5)",
           ".center(8, '*')", ".ljust(5)", ".rjust(5)", ".title()", ".swapcase()", ".expandtabs(4)", ".isalpha()",
           ".islower()", ".isprintable()", ".real", ".format_map({'a': 1})"]
FORMATS = ["'{0[k]}{0.k}'.format({})", "'{:>8}|'.format({})", "'{:+}'.format({})", "'{:#x}'.format({})", "'{:,.2f}'.format({})",
           "'{:{}}|'.format({}, 6)", "'{!a:^9}'.format({})", "'{:.3}'.format({})", "'{:08,}'.format({})", "'%5.1f' % {}",
           "'%#x' % {}", "'%.3d' % {}", "'%*d' % (5, {})", "'%-6s|' % {}", "'%c' % {}", "'%G' % {}"]


def expression(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(ATOMS)
    inner = lambda: expression(rng, depth - 1)
    kind = rng.randrange(10)
    if kind == 9:
        before, mark, after = rng.choice(FORMATS).rpartition("{}")
        return f"({before}({inner()}){after if mark else ''})"
    if kind < 2:
        return f"({inner()} {rng.choice(BINARY)} {inner()})"
    if kind < 4:
        return f"({inner()})|{rng.choice(FILTERS)}"
    if kind == 4:
        return f"(({inner()}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)})"
    if kind < 7:
        return f"({inner()}){rng.choice(METHODS)}"
    if kind == 7:
        return f"({inner()} if {inner()} else {inner()})"
    return rng.choice([f"(not {inner()})", f"[{inner()}, {inner()}]", f"(-({inner()}))",
                       f"({inner()} < {inner()} < {inner()})", f"{{'k': {inner()}}}"])


# What Keel refuses by name, or Python has without an end. A slice of a number is an error in jinja, but
# where its optimizer has seen a constant.
NOT_COMPARED = ("not supported", "beyond 64 bits", "has no text to print", "too", "has no slices")


def compare_expressions(program, count, seed):
    rng = random.Random(seed)
    values = {"s": "abcabc", "n": 7, "l": ["a", 1, None, 2.5], "d": {"k": "v", "n": {"k": [1]}}}
    pairs = []
    for i in range(count):
        source = "{{ " + expression(rng, 3) + " }}"
        pairs.append((source, {"template": str(i), "source": source,
                               "request": {"messages": [], "extra": values}}))
    answers = run(program, [case for _, case in pairs])
    wrong, compared = [], 0
    for (source, case), got in zip(pairs, answers):
        if any(word in got.get("error", "") for word in NOT_COMPARED):
            continue
        want = expected(source, case["request"])
        if "generator object" in want.get("text", "") or "0x" in want.get("text", ""):
            continue
        compared += 1
        if ("error" in want) != ("error" in got) or want.get("text") != got.get("text"):
            wrong.append((case, want, got))
    return wrong, compared


def speed(program, sources):
    source = next((text for name, text in sources.items() if name == "trl/qwen3.jinja"), None)
    if source is None:
        return
    messages = [m for i in range(5) for m in (user(f"Question {i}?"), assistant(f"Answer {i}."))]
    case = {"template": "qwen3", "source": source,
            "request": {"messages": messages, "add_generation_prompt": True, "extra": TOKENS}}
    print(f"qwen3, 10 turns: {run(program, [case], '--repeat', '2000')[0]['microseconds']:.1f} us a rendering")


def show(wrong, limit=10):
    for case, want, got in wrong[:limit]:
        print("---", case["template"], case.get("label", case.get("source")),
              "tools" if case["request"].get("tools") else "", "prompt"
              if case["request"].get("add_generation_prompt") else "")
        print("  transformers:", repr(want)[:600])
        print("  keel:        ", repr(got)[:600])


def main():
    program = sys.argv[1]
    nightly = "--nightly" in sys.argv or os.environ.get("KEEL_NIGHTLY") == "1"
    os.environ.setdefault("TZ", "UTC")
    wrong, compared = compare_expressions(program, 20000 if nightly else 2000, 5)
    print(f"{compared} random expressions compared, {len(wrong)} differ")
    show(wrong)
    failed = bool(wrong)
    sources = templates(pathlib.Path(os.environ.get("KEEL_TEMPLATE_CACHE", "build/template-packages")))
    if sources is None:
        print(f"SKIP: {TRL[0]} and the source of {LLAMA[0]} are needed from a package index, "
              "in the folder that KEEL_TEMPLATE_CACHE names")
        sys.exit(1 if failed else SKIPPED)
    pairs = list(cases(sources))
    answers = run(program, [case for _, case in pairs])
    wrong, refused = compare(pairs, answers)
    masked = sum(1 for answer in answers if answer.get("assistant"))
    print(f"{len(sources)} templates, {len(pairs)} renderings ({refused} refused, {masked} with masks), "
          f"{len(wrong)} differ")
    show(wrong)
    speed(program, sources)
    sys.exit(1 if wrong or failed else 0)


if __name__ == "__main__":
    main()
