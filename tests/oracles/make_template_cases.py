"""Random chat templates: programs of what Jinja has, on random values.

    make_template_cases.py FIRST COUNT [--source]

prints the templates of COUNT seeds from FIRST on, one JSON object a line, with what transformers makes of each
({"text", "assistant"} or {"error"}); with --source only the templates, to read. template_cases_test.py compares them with
Keel's interpreter.

An expression is drawn for a type (a text, a number, a list ...), so that most templates run to their end; one in forty is
drawn for another type than it should have, and most such templates end with an error, which both must have.
"""

import json
import random
import re
import sys

from chat_templates_test import expected

TEXTS = ["'ab'", "'Hello World'", "''", "'  pad '", "'Ünï ß ǆ İ'", "'a,b,,c'", "'x\\ny\\n\\nz'", "\"it's\"", "'你好 😀'", "'<b>&amp; \"q\"</b>'",
         "'12'", "'-3.5e2'", "'one-two three_four'", "'\\t tab'", "'%s and %d'", "'{} {x}'", "'http://a.com/x?y=1, (www.b.org)'", "'A.B.C'"]
INTEGERS = ["0", "1", "2", "3", "-1", "7", "10", "100", "12345678", "1_000", "0x1f"]
FLOATS = ["0.5", "1.0", "2.5", "-0.25", "1e3", "1e20", "3.14159", "1e-7", "100.0", "0.1"]
LISTS = ["[1, 2, 3]", "['b', 'A', 'c', 'a']", "[3, 1, 2, 1]", "[]", "[[1, 'x'], [2, 'y']]", "range(4)", "(1, 2)", "['x']", "[0.5, 1, true]",
         "[none, 'a', '']", "'abc'|list", "[{'k': 'b', 'n': 1}, {'k': 'a', 'n': 2}, {'k': 'B', 'n': 3}]"]
DICTS = ["{'a': 1, 'b': [1, 2]}", "{}", "{'k': 'v', 'n': {'k': 2}}", "{1: 'one', 'x': none}", "dict(a=1, b='x')", "{'B': 2, 'a': 1}"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true", "false", "integer",
         "float", "callable", "lower", "upper", "escaped", "filter", "test"]
LOOPS = ["index", "index0", "first", "last", "length", "revindex", "revindex0", "depth", "depth0", "previtem", "nextitem"]
# $s stands for a text, $i for an integer, $f, $l, $d and $b for a float, a list, a dict and a truth, $a for any of them; $w for
# a width.
TEXT_FILTERS = ["trim", "upper", "lower", "capitalize", "title", "string", "replace($s, $s)", "replace($s, $s, $i)", "indent($w)",
                "indent($w, true)", "indent(2, false, true)", "center($w)", "truncate($w + 4)", "truncate($w + 3, true, '.', 0)", "safe",
                "escape", "e", "forceescape", "urlencode", "default($s)", "d($s, true)", "format($i, $s)", "reverse", "trim($s)",
                "striptags", "wordwrap($w + 2)", "wordwrap(5, false)", "wordwrap(6, wrapstring='|')", "urlize", "urlize(8, true)",
                "urlize(target='_blank', rel='x a')", "pprint", "tojson", "wordwrap(4, true, none, false)"]
TEXT_METHODS = ["strip()", "lstrip()", "rstrip($s)", "upper()", "lower()", "title()", "capitalize()", "swapcase()", "replace($s, $s)",
                "replace('a', 'b', 1)", "zfill($w)", "center($w)", "ljust($w, '.')", "rjust($w)", "removeprefix($s)", "removesuffix($s)",
                "join($l|map('string'))", "format($a, x=$a)", "expandtabs($w)", "casefold()", "strip('ab ')", "format_map({'x': $s})"]
LIST_FILTERS = ["list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "reverse|list", "unique|list", "map('string')|list",
                "map('upper')|list", "select|list", "reject|list", "select('string')|list", "reject('none')|list", "select('gt', 1)|list",
                "selectattr('k')|list", "selectattr('n', 'gt', 1)|list", "rejectattr('k', 'equalto', 'a')|list", "map(attribute='k')|list",
                "map(attribute='n', default=0)|list", "batch($w)|list", "batch(2, $a)|list", "slice(2)|list", "slice(3, 'x')|list",
                "sort(attribute='k')", "sort(attribute='k,n')", "unique(attribute='k')|list", "map('tojson')|list", "map('length')|list",
                "groupby('k')", "groupby('k', case_sensitive=true)", "groupby('n', default=0)", "groupby(0)", "map('first')|list",
                "map('default', 'x')|list", "select('in', $l)|list", "map('join', '-')|list", "map('replace', 'a', 'b')|list", "groupby('k')|map('list')|list"]
TEXT_TO_LIST = ["split()", "split(',')", "split($s, 1)", "rsplit(none, 1)", "splitlines()", "splitlines(true)", "partition(',')", "rpartition(' ')",
                "rsplit(' ', 1)", "split('a')"]
TEXT_TO_INT = ["find($s)", "count('a')", "rfind('b')", "find('a', 1)", "index('a')"]
TEXT_TO_BOOL = ["startswith($s)", "endswith($s)", "isdigit()", "isalpha()", "isspace()", "islower()", "isupper()", "isalnum()", "istitle()",
                "startswith(('a', 'x'))", "isidentifier()", "isascii()", "isprintable()", "isnumeric()", "isdecimal()"]
FORMATS = ["'%s|%d|%5.2f' % ($a, $i, $f)", "'%05d' % $i", "'{:>8}|{!r}'.format($s, $a)", "'{:,} {:+} {:x}'.format($i, $i, $i)",
           "'{:.3f} {:e} {:g} {:%}'.format($f, $f, $f, $f)", "'%r %s' % ($a, $l)", "'{0[0]} {0}'.format($l)",
           "'{:^10}'.format($s)", "'%(a)s-%(b)s' % {'a': $a, 'b': $i}", "'{:08.3f}|{:<6}|'.format($f, $i)", "'%-5s|%+d|%x' % ($s, $i, $i)",
           "'{:.2}|{:_}'.format($s, $i)", "'{}'.format($f)", "'%g %e %.1f' % ($f, $f, $f)", "'{:b} {:o}'.format($i, $i)"]
TO_TEXT = ["($d)|xmlattr", "($d)|xmlattr(false)", "($l)|pprint", "($d)|pprint", "($i)|filesizeformat", "($f)|filesizeformat(true)",
           "($d)|urlencode", "($a)|string", "strftime_now('%Y-%m-%d %H:%M %j %B')", "($l)|join($s)", "($l)|join(', ', 'k')",
           "($l)|map('string')|join('+')"]
WRITTEN = ["\n", " ", "  \n", "a", "Ω é", "<|im_start|>", "{ }", "%}", "\t", "\n\n", "x = 1;", "end\n", "  indented\n  ", "'", "\\n", "#", "\r\n"]


class Names:
    """The variables that a scope has, by the type of what is in them."""

    def __init__(self, around=None):
        self.types = dict(around.types) if around else {}

    def of(self, kind):
        return [name for name, own in self.types.items() if own == kind]


class Drawn:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.count = 0
        self.macros = {}  # name: its parameters
        self.loops = []  # of each loop around: whether it is recursive

    def pick(self, choices):
        return self.random.choice(choices)

    def chance(self, of):
        return self.random.random() < of

    def name(self):
        self.count += 1
        return self.pick(["v", "x", "item", "out", "_p"]) + str(self.count % 7)

    # Expressions.

    def fill(self, pattern, names, depth):
        """The pattern with an expression for each $s (a text), $i (an integer) and so on."""
        kinds = {"s": "text", "i": "int", "f": "float", "l": "list", "d": "dict", "a": "any", "b": "bool", "w": "width"}
        return re.sub(r"\$([sifldabw])", lambda found: self.expression(kinds[found[1]], names, depth - 1), pattern)

    def expression(self, kind, names, depth):
        if self.chance(1 / 40):
            kind = self.pick(["text", "int", "float", "list", "dict", "bool", "nothing"])
        if kind == "any":
            kind = self.pick(["text", "text", "int", "float", "list", "dict", "bool", "nothing"])
        if depth > 0 and self.chance(0.12):
            return self.common(kind, names, depth)
        own = names.of(kind)
        if own and self.chance(0.35):
            return self.pick(own)
        return getattr(self, "draw_" + kind)(names, depth)

    def common(self, kind, names, depth):
        one, other = (self.expression(kind, names, depth - 1) for _ in range(2))
        return self.pick([f"({one} if {self.expression('bool', names, depth - 1)} else {other})", f"({one} or {other})", f"({one} and {other})",
                          f"{one}|default({other})", f"[{one}, {other}][{self.pick(['0', '1', '-1'])}]", f"{{'k': {one}}}.k", f"[{other}, {one}]|last",
                          f"{{'k': {one}}}['k']", f"{{'k': {one}}}.get('k', {other})", f"[{one}]|first", f"({one})", f"{{'k': {one}}}|attr('k')|default({other})"])

    def draw_text(self, names, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(TEXTS)
        inner = lambda: self.expression("text", names, depth - 1)
        kind = self.random.randrange(13)
        if kind < 3:
            return f"({inner()})|{self.fill(self.pick(TEXT_FILTERS), names, depth)}"
        if kind < 5:
            return f"({inner()}).{self.fill(self.pick(TEXT_METHODS), names, depth)}"
        if kind == 5:
            return f"({inner()} ~ {self.expression('any', names, depth - 1)})"
        if kind == 6:
            return f"({inner()} + {inner()})"
        if kind == 7:
            return f"({inner()})[{self.pick(['1:', ':-1', '::-1', '0', '-1', '1:3', ':2', '::2', '3:1:-1', '-3:'])}]"
        if kind == 8:
            return "(" + self.fill(self.pick(FORMATS), names, depth) + ")"
        if kind == 9:
            options = self.pick(["", "indent=2", "ensure_ascii=true", "sort_keys=true", "indent=4, ensure_ascii=true", "separators=(',', ':')", "indent='\\t'"])
            return f"({self.expression(self.pick(['list', 'dict', 'any']), names, depth - 1)})|tojson({options})"
        if kind == 10:
            return self.fill(self.pick(TO_TEXT), names, depth)
        if kind == 11 and self.macros:
            return self.call(names, depth)
        return f"({inner()} * {self.pick(['0', '2', '3', '-1', 'true'])})"

    def draw_int(self, names, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick(INTEGERS)
        inner = lambda: self.expression("int", names, depth - 1)
        if self.loops and self.chance(0.3):
            return "loop." + self.pick(["index", "index0", "revindex", "length", "depth"])
        return self.pick([lambda: f"({inner()} {self.pick(['+', '-', '*', '//', '%'])} {inner()})", lambda: f"(-{inner()})", lambda: f"({inner()})|abs",
                          lambda: f"({self.expression('list', names, depth - 1)})|{self.pick(['length', 'count'])}", lambda: f"({self.expression('text', names, depth - 1)})|length",
                          lambda: f"({self.expression('any', names, depth - 1)})|int", lambda: f"({self.expression('text', names, depth - 1)})|int({inner()}, {self.pick(['0', '2', '8', '10', '16'])})",
                          lambda: f"({self.expression('text', names, depth - 1)}).{self.fill(self.pick(TEXT_TO_INT), names, depth)}",
                          lambda: f"({self.expression('text', names, depth - 1)})|wordcount", lambda: f"[{inner()}, {inner()}]|{self.pick(['sum', 'min', 'max'])}",
                          lambda: f"({inner()}).real", lambda: f"({inner()} ** {self.pick(['0', '2', '3'])})", lambda: f"({self.expression('list', names, depth - 1)}).{self.pick(['count(1)', 'index(1)'])}",
                          lambda: f"(+{inner()})"])()

    def draw_width(self, names, depth):
        return self.pick(["0", "1", "2", "3", "5", "8", "12", "20"])

    def draw_float(self, names, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick(FLOATS)
        inner = lambda: self.expression(self.pick(["float", "int"]), names, depth - 1)
        return self.pick([lambda: f"({inner()} {self.pick(['+', '-', '*', '/', '//', '%'])} {inner()})", lambda: f"({inner()})|round({self.pick(['', '1', '2', '0', '-1'])})",
                          lambda: f"({inner()})|round({self.pick(['1', '0', '2'])}, '{self.pick(['ceil', 'floor', 'common'])}')", lambda: f"({self.expression('any', names, depth - 1)})|float",
                          lambda: f"({inner()})|float", lambda: f"({inner()} ** {self.pick(['0.5', '2', '-1'])})", lambda: f"({inner()})|abs"])()

    def draw_bool(self, names, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick(["true", "false", "True", "False"])
        inner = lambda kind: self.expression(kind, names, depth - 1)
        if self.loops and self.chance(0.25):
            return self.pick(["loop.first", "loop.last", f"loop.changed({inner('any')})", "loop.previtem is defined", "loop.nextitem is defined"])
        kind = self.random.randrange(9)
        if kind < 2:
            same = self.pick(["text", "int", "float", "list"])
            return f"({inner(same)} {self.pick(['==', '!=', '<', '>=', '>', '<='])} {inner(same)})"
        if kind == 2:
            return f"({inner('any')} {self.pick(['==', '!='])} {inner('any')})"
        if kind == 3:
            return f"({inner('any')} {self.pick(['in', 'not in'])} {inner(self.pick(['list', 'dict']))})"
        if kind == 4:
            return f"({inner('any')} is {self.pick(['', 'not '])}{self.pick(TESTS)})"
        if kind == 5:
            return f"(not {inner('any')})"
        if kind == 6:
            return f"({inner('text')}).{self.fill(self.pick(TEXT_TO_BOOL), names, depth)}"
        if kind == 7:
            return f"({inner('int')} is {self.pick(['odd', 'even', 'divisibleby 3', 'eq 1', 'gt(2)', 'le 3', 'ne 2', 'in [1, 2]', 'sameas none', 'divisibleby(2)', 'lt 2'])})"
        return f"({inner('int')} < {inner('int')} <= {inner('float')})"

    def draw_list(self, names, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(LISTS + ["messages"])
        inner = lambda: self.expression("list", names, depth - 1)
        return self.pick([lambda: f"({inner()})|{self.fill(self.pick(LIST_FILTERS), names, depth)}", lambda: f"({inner()})|{self.fill(self.pick(LIST_FILTERS), names, depth)}",
                          lambda: f"({inner()})[{self.pick(['1:', ':-1', '::-1', ':2', '::2', '-2:', '5:', '2::-1'])}]", lambda: f"(({inner()})|list + ({inner()})|list)",
                          lambda: f"[{', '.join(self.expression('any', names, depth - 1) for _ in range(self.random.randrange(4)))}]",
                          lambda: f"({self.expression('text', names, depth - 1)}).{self.fill(self.pick(TEXT_TO_LIST), names, depth)}",
                          lambda: f"({self.expression('text', names, depth - 1)})|list", lambda: f"({self.expression('dict', names, depth - 1)})|{self.pick(['items|list', 'dictsort', 'list', 'dictsort(by=' + repr('value') + ')', 'dictsort(reverse=true)'])}",
                          lambda: f"({self.expression('dict', names, depth - 1)}).{self.pick(['items()', 'keys()', 'values()'])}|list", lambda: f"range({self.pick(['3', '1, 4', '5, 0, -2', '0', '2, 9, 3'])})",
                          lambda: f"({self.pick(names.of('list') or ['messages'])} + [{self.expression('any', names, depth - 1)}])", lambda: f"(({inner()})|list * {self.pick(['2', '0', '1'])})"])()

    # A key is a text always: of a constant that is none jinja makes an error even where it does not run.
    def draw_dict(self, names, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick(DICTS + ["messages[0]", "messages[-1]", "tool"])
        inner = lambda kind: self.expression(kind, names, depth - 1)
        return self.pick([lambda: f"{{'a': {inner('any')}, ({inner('text')})|string: {inner('any')}}}", lambda: f"dict({inner('dict')}, z={inner('any')})", lambda: f"dict({inner('dict')}.items())",
                          lambda: f"({inner('dict')}).copy()", lambda: f"dict(a={inner('any')}, b={inner('any')})"])()

    def draw_nothing(self, names, depth):
        return self.pick(["none", "missing", "None", "messages[9]", "{}.x", "tool.missing", "'ab'.nothing", "[][0]", "messages[0].nope", "({}.get('x'))", "[]|first", "(1 if false)"])

    def call(self, names, depth):
        name = self.pick(sorted(self.macros))
        parameters = self.macros[name]
        arguments = [self.expression("any", names, depth - 1) for _ in parameters[: self.random.randrange(len(parameters) + 1)]]
        rest = parameters[len(arguments):]
        arguments += [f"{one}={self.expression('any', names, depth - 1)}" for one in rest if self.chance(0.4)]
        if self.chance(0.1):
            arguments.append(self.pick(["*[1, 2]", "**{'z': 1}", "extra=1"]))
        return f"{name}({', '.join(arguments)})"

    # Statements.

    def tag(self, inside):
        begin, end = self.pick(["", "", "", "-", "+"]), self.pick(["", "", "", "-", "+"])
        space = self.pick([" ", " ", " ", "\n "])
        return f"{{%{begin}{space}{inside}{space}{end}%}}"

    def written(self):
        return "".join(self.pick(WRITTEN) for _ in range(self.random.randrange(4)))

    def body(self, names, depth, own=True):
        inner = Names(names) if own else names
        return self.written() + "".join(self.statement(inner, depth) + self.written() for _ in range(self.random.randrange(1, 4)))

    def statement(self, names, depth):
        simple = [self.print_, self.print_, self.print_, self.set_, self.field, self.small]
        nested = [self.if_, self.if_, self.for_, self.for_, self.set_block, self.macro, self.call_block, self.filter_block, self.with_, self.generation]
        return self.pick(simple if depth <= 0 else simple + nested)(names, depth)

    def print_(self, names, depth):
        begin, end = self.pick(["", "", "", "-"]), self.pick(["", "", "", "-"])
        return f"{{{{{begin} {self.expression('any', names, 3)} {end}}}}}"

    def set_(self, names, depth):
        if self.chance(0.1):
            one, other = self.name(), self.name()
            text = self.tag(f"set {one}, {other} = {self.expression('any', names, 2)}, {self.expression('int', names, 2)}")
            names.types.update({one: "any", other: "int"})
            return text
        name, kind = self.name(), self.pick(["text", "int", "float", "list", "dict", "bool", "nothing"])
        text = self.tag(f"set {name} = {self.expression(kind, names, 3)}")
        names.types[name] = kind
        return text

    def field(self, names, depth):
        kind = self.pick(["text", "int", "list"])
        text = self.tag(f"set ns.{kind}_ = {self.expression(kind, names, 2)}")
        return text + self.pick(["", f"{{{{ ns.{kind}_ }}}}", "{{ ns.nothing }}"])

    def small(self, names, depth):
        if self.loops and self.chance(0.6):
            return self.pick([f"{{{{ loop.{self.pick(LOOPS)} }}}}", f"{{{{ loop.cycle({self.expression('any', names, 1)}, 'b', 'c') }}}}",
                              self.tag(f"if {self.expression('bool', names, 2)}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif")])
        return self.pick(["{# a comment {{ x }} #}", "{#- trimmed -#}", "{% raw %}{{ raw }} {% x %}{% endraw %}", "{%- raw -%} r {%- endraw -%}",
                          "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}",
                          "{% set j = joiner('; ') %}{{ j() }}{{ j() }}{{ j() }}", "{% if false %}{% include 'x' %}{% endif %}",
                          "{% if false %}{% from 'x' import y, z as w %}{{ w }}{% endif %}{{ y }}", "{{ tool.append is defined }}", "{{ messages.append(1) }}" if self.chance(0.1) else "",
                          "{{ raise_exception('stop ' ~ 1) }}" if self.chance(0.1) else "{{ messages|length }}", "{{ self }}", "{{ range }}" if self.chance(0.1) else ""])

    def if_(self, names, depth):
        # What a branch sets stays, but may not be there: a branch has names of its own here.
        condition = lambda: self.expression(self.pick(["bool", "bool", "any"]), names, 2)
        text = self.tag(f"if {condition()}") + self.body(names, depth - 1)
        for _ in range(self.pick([0, 0, 1, 2])):
            text += self.tag(f"elif {condition()}") + self.body(names, depth - 1)
        if self.chance(0.5):
            text += self.tag("else") + self.body(names, depth - 1)
        return text + self.tag("endif")

    def for_(self, names, depth):
        inner = Names(names)
        name = self.name()
        source, types, target = self.pick([
            (lambda: self.expression("list", names, 2), {name: "any"}, name), (lambda: "messages", {name: "dict"}, name),
            (lambda: f"({self.expression('dict', names, 2)}).items()", {name: "text", "val": "any"}, f"{name}, val"),
            (lambda: f"range({self.pick(['3', '1, 4', '0'])})", {name: "int"}, name), (lambda: self.expression("text", names, 2), {name: "text"}, name),
            (lambda: f"({self.expression('list', names, 2)})|groupby('k')", {name: "text", "val": "list"}, f"{name}, val"),
            (lambda: f"({self.expression('dict', names, 2)})|dictsort", {name: "text", "val": "any"}, f"({name}, val)")])
        inner.types.update(types)
        recursive = self.chance(0.12)
        head = f"for {target} in {source()}"
        if self.chance(0.2):
            loops, self.loops = self.loops, []
            head += f" if {self.expression(self.pick(['bool', 'any']), inner, 2)}"
            self.loops = loops
        if recursive:
            head, target = f"for {name} in tree", name
            inner.types = {**names.types, name: "dict"}
            head += " recursive"
        self.loops.append(recursive)
        text = self.tag(head) + self.body(inner, depth - 1, own=False)
        if recursive:
            text += f"{{{{ {name}.k }}}}({{{{ loop({name}.c) }}}})" + self.pick(["", f"{{{{ loop.index }}}}{{{{ {name}.k }}}}"])
        self.loops.pop()
        if self.chance(0.25):
            loops, self.loops = self.loops, self.loops[:-1]
            text += self.tag("else") + self.body(names, depth - 1)
            self.loops = loops
        return text + self.tag("endfor")

    def set_block(self, names, depth):
        name = self.name()
        filters = self.pick(["", "", " | trim", " | upper | trim", " | replace('a', 'b')", " | length", " | indent(2)"])
        text = self.tag(f"set {name}{filters}") + self.body(names, depth - 1) + self.tag("endset")
        names.types[name] = "int" if "length" in filters else "text"
        return text

    def macro(self, names, depth):
        name = "m" + str(len(self.macros) % 4)
        parameters = self.pick([[], ["a"], ["a", "b"], ["a", "b", "c"]])
        inner = Names(names)
        inner.types.update({one: "any" for one in parameters})
        # A default may name what comes before it.
        with_default = self.random.randrange(len(parameters) + 1)
        signature = [one if i < with_default else f"{one}={self.expression('any', names, 1) if i == 0 or self.chance(0.8) else parameters[0]}"
                     for i, one in enumerate(parameters)]
        loops, self.loops = self.loops, []
        body = self.body(inner, depth - 1, own=False)
        if self.chance(0.2):
            body += self.pick(["{{ varargs }}", "{{ kwargs }}", "{{ varargs|length }}{{ kwargs|tojson }}"])
        if self.chance(0.2):
            body += f"{{% if ns.deep < 3 %}}{{% set ns.deep = ns.deep + 1 %}}[{{{{ {name}() }}}}]{{% endif %}}"
        if self.chance(0.2):
            body += self.pick(["{{ caller() if caller else 'none' }}", "{% if caller is defined %}{{ caller() }}{% endif %}"])
        self.loops = loops
        text = self.tag(f"macro {name}({', '.join(signature)})") + body + self.tag("endmacro")
        self.macros[name] = parameters
        return text

    def call_block(self, names, depth):
        self.count += 1
        macro = self.pick(["around", "twice"])
        inner = Names(names)
        head = "call"
        if macro == "twice":
            inner.types["n"] = "int"
            head = self.pick(["call(n)", "call(n, more=2)"])
        loops, self.loops = self.loops, []
        body = self.body(inner, depth - 1, own=False)
        self.loops = loops
        return self.tag(f"{head} {macro}({self.expression('any', names, 1)})") + body + self.tag("endcall")

    def filter_block(self, names, depth):
        filters = self.pick(["upper", "trim", "replace('a', 'bb')", "indent(3)", "trim | lower", "title", "escape", "wordwrap(12)", "center(30)", "striptags"])
        return self.tag(f"filter {filters}") + self.body(names, depth - 1) + self.tag("endfilter")

    def with_(self, names, depth):
        inner, parts = Names(names), []
        for _ in range(self.random.randrange(3)):
            name, kind = self.name(), self.pick(["text", "int", "list", "dict"])
            parts.append(f"{name} = {self.expression(kind, names, 2)}")
            inner.types[name] = kind
        return self.tag("with " + ", ".join(parts)) + self.body(inner, depth - 1, own=False) + self.tag("endwith")

    def generation(self, names, depth):
        loops, self.loops = self.loops, []
        text = self.tag("generation") + self.body(names, depth - 1) + self.tag("endgeneration")
        self.loops = loops
        return text

    def template(self):
        names = Names()
        names.types.update({"s": "text", "n": "int", "r": "float", "l": "list", "d": "dict", "yes": "bool"})
        head = "{% set ns = namespace(deep=0, text_='', int_=0, list_=[]) %}"
        head += "{% macro around(a) %}<{{ caller() }}{{ a }}>{% endmacro %}{% macro twice(a) %}{{ caller(1) }}|{{ caller(n=2) }}{% endmacro %}"
        return head + self.body(names, 3, own=False)


def values(seed):
    """What the template is given: messages, and variables of each type."""
    chance = random.Random(seed)
    content = lambda: chance.choice(["Hi", "Größe\n", "  x ", "", "a <b> & 'c'", "1, 2"])
    messages = [{"role": chance.choice(["user", "assistant", "system"]), "content": content()} for _ in range(chance.randrange(1, 4))]
    return {"messages": messages, "extra": {
        "s": chance.choice(["abcabc", "Text, mit ß", "a-b c"]), "n": chance.choice([0, 3, 7, -2]), "r": chance.choice([0.5, 2.0, 1e16]),
        "l": chance.choice([["a", 1, None, 2.5], [3, 1, 2], ["x", "Y", "z"]]), "d": {"k": "v", "n": {"k": [1]}}, "yes": chance.choice([True, False]),
        "tool": {"name": "f", "parameters": {"type": "object", "properties": {"p": {"type": "string", "n": 1.0}}}},
        "tree": [{"k": 1, "c": [{"k": 2, "c": []}, {"k": "z", "c": []}]}, {"k": 3.5, "c": []}]}}


def case(seed):
    return {"template": str(seed), "source": Drawn(seed).template(), "request": values(seed)}


def main():
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        made = case(seed)
        if "--source" in sys.argv:
            print(f"--- {seed}\n{made['source']}")
            continue
        print(json.dumps({**made, "expected": expected(made["source"], made["request"])}))


if __name__ == "__main__":
    main()
