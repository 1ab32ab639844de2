"""Edges of what chat templates may do, rendered by transformers and by Keel: the same bytes, or both refuse.

    template_edges_test.py PROGRAM

PROGRAM is tests/model/chat_template/chat_template_cases. What random templates seldom hit: every entity of HTML, numbers at the
ends of their range, texts that are almost numbers, letters of other scripts.
"""

import html.entities
import os
import sys
import time
import unicodedata
import warnings

from chat_templates_test import expected, run

LARGEST = "9223372036854775807"
LEAST = "(-9223372036854775807 - 1)"
NUMBERS = ["0.0", "-0.0", "1.0", "-1.0", "0.1", "3", "-7", "2.5", "4503599627370497.0", "-4503599627370497.0", "9007199254740993",
           "1e300", "-1e-300", "'inf'|float", "-('inf'|float)", "5e-324"]
ALMOST_NUMBERS = ["+-1", "-+1", "+ 1", "+1", "-1", "1e400", "-1e400", "1e-400", "1e", "e1", ".5", "5.", "1_0", "1__0", "_1", "0x10", "nan", "-inf",
                  "+inf", "infinity", "nan(1)", "1.5f", "", " 12\n", "12a", "1e5", "0b1", "１２", "٣", "1٣", "x٣", "²", "abc日本", "--1", "1e+5", "1.e5"]

# Ends that are missing, names of other scripts, numbers that no double holds, the tag print.
SOURCES = [
    *(begin + sign + rest for begin in ("a{#", "a {#", "a\n {#", "a{% raw %}", "a{% raw -%}") for sign in ("", "-", "+") for rest in ("", " ", "\n", "x", "\n\n")),
    *("a" + begin + rest for begin in ("{{", "{%", "{{-", "{%-") for rest in ("", " ", "\n")),
    "{{ 1e400 }}", "{{ -1e400 }}", "{{ 1e-400 }}", "{{ 1e400 - 1e400 }}", "{{ [1e400]|tojson }}", "{{ 1e309 == 2e308 }}{{ 1e999999999 }}{{ 0e999999999 }}",
    "{{ 1E400 > 5 }}{{ 1e400|string }}{{ 1e400|abs }}", "{{ 1_0.5_0e1_0 }}",
    "{% print 1 %}", "{% print 1, 'a' %}", "{% print %}x", "{% print -%} x", "{% print 1, %}", "{% print (1, 2) %}", "{% print 1 2 %}", "{% print, %}",
    "{% print x.y if x else 'n', 3 %}", "{%- print 'a' ~ 1 %}\nb", "{% print\n1\n%}\nz", "{% if true %}{% print 'x' %}{% endif %}", "{% print x=1 %}", "{% print 1 if false %}",
    "{% for print in [1, 2] %}{% print print, loop.index %}{% endfor %}", "{% print messages[0].role, messages|length %}", "{% print nosuch.x %}",
    "{% set é = 3 %}{{ é }}", "{{ {'ä': 1}.ä }}", "{% for ñ in [1, 2] %}{{ ñ }}{% endfor %}", "{% macro größe(ä=1) %}{{ ä }}{% endmacro %}{{ größe() }}{{ größe(ä=2) }}",
    "{{ 中文|default('z') }}", "{{ dict(ä=1) }}", "{{ 'x'|ä }}", "{{ 'x' is ä }}", "{% ä %}", "{% for x in 'ab' %}{{ loop.ä }}{% endfor %}",
    "{% set ns = namespace(ä=1) %}{% set ns.ä = 2 %}{{ ns.ä }}", "{{ 1ä }}", "{{ ä1_é }}", "{% set a٣ = 4 %}{{ a٣ }}", "{{ ٣ }}", "{{ x² }}", "{{ “x” }}", "{{ é“ }}", "{{ 😀 }}", "{{ a😀 }}",
    "{{ \u0301e }}", "{{ e\u0301 }}", "{{ ᾳ\u0301 }}", "{{ ªb }}", "{{ क्षि }}", "{{ Ⅷ }}", "{{ ﬁ }}", "{{ a‿b }}", "{{ Жж.ё }}{{ привет|default('мир') }}", "{{ ns.ä is defined }}",
    "{% with ü = 1, ö = ü %}{{ ü }}{{ ö }}{% endwith %}", "{{ 'a' if é is defined else 'b' }}",
    # No + ends the tag raw; elements without an index; numbers of any kind that are divisible.
    *(f"a\n{{% raw {begin}%}}\nx{{% endraw {end}%}}\nb" for begin in ("", "-", "+") for end in ("", "-", "+")), "{% raw +%}", "{% if true %}{% raw +%}x{% endif %}",
    "{{ messages[] }}", "{{ messages[] is defined }}", "{{ messages[ ].x }}", "{{ {(): 1}[] }}", "{{ {}[]|default('d') }}", "{{ 'abc'[] }}", "{{ nosuch[] }}", "{{ [1][:] }}", "{{ messages[][0] }}",
    *(f"{{{{ {value} is divisibleby {by} }}}}" for value in ("4.0", "2", "5", "-4", "0.5", "true", "'%d'", "'a'", "[1]", "none", "nosuch", "9223372036854775807") for by in ("2", "2.0", "-1", "0", "0.0", "0.25", "true", "'2'", "none", "nosuch")),
    *(f"{{{{ 4 is {test}({argument}) }}}}" for test in ("divisibleby", "in", "sameas", "eq", "lt") for argument in ("num=2", "seq=[4]", "other=none", "value=4", "b=4", "")),
    # A tag with a body may end in a colon, as in Python; no other may.
    *(source.replace("$", colon) for colon in (":", " :", ": :") for source in (
        "{% if true$ %}a{% endif %}", "{% if false %}{% elif true$ %}a{% endif %}", "{% if false %}{% else$ %}a{% endif %}", "{% if 0,$ %}a{% endif %}", "{% if true %}a{% endif$ %}",
        "{% for a in [1, 2]$ %}{{ a }}{% endfor %}", "{% for a in [1, 2] if a > 1$ %}{{ a }}{% endfor %}", "{% for a in [1] recursive$ %}{{ a }}{% endfor %}",
        "{% for a in []$ %}{% else$ -%} e{% endfor %}", "{% for a in [1] %}{{ a }}{% endfor$ %}", "{% for a in [1] %}{% break$ %}{% endfor %}",
        "{% macro f(a=1)$ %}{{ a }}{{ caller() }}{% endmacro %}{% call f()$ %}x{% endcall %}", "{% set x$ %}y{% endset %}{{ x }}", "{% set x | upper$ %}y{% endset %}{{ x }}", "{% set x = 1$ %}{{ x }}",
        "{% filter upper$ %}y{% endfilter %}", "{% with a=1$ %}{{ a }}{% endwith %}", "{% with$ %}a{% endwith %}", "{% generation$ %}x{% endgeneration %}", "{% print 1$ %}", "{% raw$ %}x{% endraw %}")),
]


def sources():
    """Templates, each with the messages[0].content that it is given."""
    for name in html.entities.html5:
        yield "{{ messages[0].content|striptags }}", f"&{name} &{name.rstrip(';')} &{name}x x&{name.rstrip(';')}x;"
    for code in [*range(0, 0x120), 0xd7ff, 0xd800, 0xdfff, 0xe000, 0xfdd0, 0xfffd, 0xfffe, 0xffff, 0x1fffe, 0x10ffff, 0x110000, 10**12]:
        yield "{{ messages[0].content|striptags }}", f"&#{code};&#x{code:x}&#X{code:X};&#{code}x"
    for text in ["a<!--b-->c", "<!-->a-->b", "a<!<!-- x -->-- y -->b", "<a <!-- > --> b>", "a < b > c", "<b", "a<!-- b", "&lt;b&gt;", "&ampamp;", "&;&#;&#x;",
                 "&" + "a" * 40 + ";", "&" + "é" * 33 + ";"]:
        yield "{{ messages[0].content|striptags }}|{{ messages[0].content|e }}", text
    for a in NUMBERS:
        for b in NUMBERS:
            for operator in ("//", "%"):
                yield f"{{{{ ({a}) {operator} ({b}) }}}}", ""
    for text in ALMOST_NUMBERS:
        for way in ("int", "int(7)", "int(7, 0)", "int(7, 16)", "float", "float(7)", "filesizeformat"):
            yield f"{{{{ messages[0].content|{way} }}}}", text
    for text in ["one two three", "a" * 20, "日本語 text"]:
        for way in (f"truncate({LARGEST})", f"truncate({LEAST})", f"truncate(4, leeway={LARGEST})", f"truncate(8, false, '', {LARGEST})",
                    f"center({LEAST})", f"wordwrap({LARGEST})", "wordwrap(1)", "wordwrap(3, true, '|')", "batch(2)|list", "title"):
            yield f"{{{{ messages[0].content|{way} }}}}", text
        for way in (f"center({LEAST})", f"ljust({LEAST})", f"zfill({LEAST})", f"zfill(-1)", "find('a', -100)", f"find('a', {LEAST})"):
            yield f"{{{{ messages[0].content.{way} }}}}", text
    for way in (f"{LARGEST}|round(-1)", f"{LEAST}|round(-1)", "25.5|round(-1)", "(-0.25)|round(0, 'ceil')", "(-0.0)|round(1, 'floor')", "(-0.25)|round", "'%*d' % (-3, 5)", f"range(0, 10, 2)[::{LARGEST}]|list",
                "range(3)[::-1]", "range(10)[2:8:3]", "'{:.3}'.format('日本語x')", "[1, 2, 3][::-1]", "{1: 2}[1]", "{(1, 2): 3}[(1, 2)]", "dict([(1, 2), (1, 3)])",
                "'a' is eq('a')", "[1] is ge([1])", "'a'|map('upper')|list", "['ab', 'c']|map('map', 'upper')|map('list')|list", "{'a': 1}|length", "'日本'|length"):
        yield f"{{{{ {way} }}}}", ""
    for text in ["(a.com)", "((www.a.org/x(y)))...", "<http://a.com>,", "&lt;http://a.com&gt;", ")))", "(((", "http://a.com/(b)).", "x@y.org,", "mailto:x@y.org)"]:
        yield "{{ messages[0].content|urlize }}", text
    yield ("{% for x in [1, 1, 2, 2] %}{{ loop.changed(x) }}{% for y in [x] %}{{ loop.changed(x) }}{% endfor %}{{ loop.changed(x, 1) }}{% endfor %}", "")
    yield from ((source, "") for source in SOURCES)
    for text in ["ΟΔΥΣΣΕΥΣ", "ΑΣ.", "Α.Σ", "ΑΣ.Α", "Σ", "ΑΣ'Α", "Α Σ", "Α\u0301Σ", "ΑΣ\u0301"]:
        yield "{{ messages[0].content|lower }} {{ messages[0].content.lower() }} {{ messages[0].content|capitalize }} {{ messages[0].content|title }}", text
    for c in map(chr, range(0x80, 0x110000)):
        if c.islower() or c.isupper() or c.lower() != c or c.upper() != c or c.title() != c:
            for text in (c, "a" + c, "A" + c):
                yield "{{ messages[0].content is lower }}{{ messages[0].content.isupper() }}{{ messages[0].content.islower() }}{{ messages[0].content|lower }}{{ messages[0].content|upper }}", text


def main():
    warnings.simplefilter("ignore")
    os.environ["TZ"] = "UTC"
    time.tzset()
    cases = [{"template": str(i), "source": source, "request": {"messages": [{"role": "user", "content": content}]}}
             for i, (source, content) in enumerate(sources())]
    wrong, refused = 0, 0
    for case, got in zip(cases, run(sys.argv[1], cases), strict=True):
        want = expected(case["source"], case["request"])
        if "beyond 64 bits" in got.get("error", "") or "is not supported" in got.get("error", "") or "are not supported" in got.get("error", ""):
            refused += 1
        elif want.get("text") != got.get("text"):
            wrong += 1
            print(f"--- {case['source']} of {case['request']['messages'][0]['content']!r}\n  transformers: {want!r}\n  keel:         {got!r}", flush=True)
    print(f"{len(cases)} templates: {refused} refused by name, {wrong} differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
