#!/usr/bin/env python3
"""Writes python_calls.json: random calls in Python's syntax, each with what Python's own parser reads.

Texts of every quoting and escape, numbers, nested lists, tuples and dicts, white space where it may be, and
calls that are cut or have one character changed, which Python may then refuse. What Python reads and JSON
cannot say (bytes, sets, complex numbers, keys that are no text, positional arguments) counts as refused.
"""

import ast
import json
import pathlib
import random

WORDS = ["", "Paris", "a b", "it's", 'say "hi"', "x\ny", "tab\t", "back\\slash", "é", "日本", "😀", "{", "]", ")", "a=1", "#"]


def text(random, word):
    quote = random.choice(["'", '"', "'''", '"""'])
    out = ""
    for c in word:
        ways = ["\\x%02x" % ord(c)] if ord(c) < 256 else []
        ways += ["\\u%04x" % ord(c)] if ord(c) < 0x10000 else []
        ways += ["\\U%08x" % ord(c), "\\%03o" % ord(c) if ord(c) < 512 else "\\U%08x" % ord(c)]
        plain = c not in "\\\n'\"" or (c == "\n" and len(quote) == 3)
        named = {"\\": "\\\\", "\n": "\\n", "'": "\\'", '"': '\\"'}.get(c, c)
        out += random.choice([c if plain else named, named, named, random.choice(ways)])
    return quote + out + quote


def value(random, depth=0):
    space = random.choice(["", "", " "])
    kind = random.randrange(10 if depth < 3 else 6)
    if kind < 3:
        return " ".join(text(random, random.choice(WORDS)) for _ in range(random.choice([1, 1, 1, 2])))
    if kind == 3:
        return random.choice(["0", "1", "-7", "+3", "1_000", "12345678901", "- 2", "007", "2j", "1__0", "5_"])
    if kind == 4:
        return random.choice(["0.5", "-1.25", "1e3", "1.", ".5", "-.5E-2", "1e", "2.5e+10", "."])
    if kind == 5:
        return random.choice(["True", "False", "None", "None", "b'x'", "name"])
    items = [value(random, depth + 1) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    comma = random.choice(["", "", ","]) if items else ""
    if kind < 8:
        begin, end = random.choice(["[]", "[]", "()"])
        return begin + space + ("," + space).join(items) + comma + end
    keys = [text(random, random.choice(WORDS)) if random.random() < 0.97 else "1" for _ in items]
    return "{" + ("," + space).join(k + space + ":" + space + v for k, v in zip(keys, items)) + comma + space + "}"


def call(random):
    name = random.choice(["f", "get_weather", "math.add", "_x1"])
    keys = random.sample(["x", "city", "a_b", "n2"], random.choice([0, 1, 1, 2, 3]))
    if keys and random.random() < 0.03:
        keys[-1] = keys[0]
    space = random.choice(["", "", " "])
    args = [(k + space + "=" + space if random.random() < 0.98 else "") + value(random) for k in keys]
    made = name + space + "(" + ("," + random.choice(["", " ", "\n"])).join(args) + (random.choice(["", ","]) if args else "") + ")"
    if random.random() < 0.1:
        made = made[: random.randrange(len(made))]
    elif random.random() < 0.1:
        at = random.randrange(len(made))
        made = made[:at] + random.choice("()[]{},=\\'\" x1") + made[at + 1 :]
    return made


def literal(node):
    """As JSON has it; ValueError where it cannot."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return [literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [literal(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise ValueError("a key is no text")
        return dict(zip(keys, [literal(one) for one in node.values]))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)) and isinstance(node.operand, ast.Constant):
        number = literal(node.operand)
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ValueError("no number")
        return -number if isinstance(node.op, ast.USub) else number
    if not isinstance(node, ast.Constant) or isinstance(node.value, (bytes, complex, type(...))):
        raise ValueError("no literal")
    return node.value


def read(made):
    compile(made, "call", "eval")  # what the grammar alone lets pass, such as a key given twice
    tree = ast.parse(made, mode="eval").body
    if not isinstance(tree, ast.Call) or tree.args or any(key.arg is None for key in tree.keywords):
        raise ValueError("not such a call")
    return {"name": ast.unparse(tree.func), "arguments": {key.arg: literal(key.value) for key in tree.keywords}}


def main():
    draw = random.Random(5)
    cases = []
    while len(cases) < 400:
        made = call(draw)
        try:
            cases.append([made, read(made)])
        except (SyntaxError, ValueError):
            cases.append([made, None])
    path = pathlib.Path(__file__).with_name("python_calls.json")
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
