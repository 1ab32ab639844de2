#include "model/chat_template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace keel::model {
namespace {

using ::testing::HasSubstr;

Json Parsed(const std::string& text) { return ValueOrThrow(ParseJson(text, "test")); }

ChatRequest Turns() {
  ChatRequest request;
  request.messages = Parsed(R"([{"role": "user", "content": "Hi"},
                                {"role": "assistant", "content": "Hello"}])");
  return request;
}

Result<RenderedChat> Render(const std::string& source, const ChatRequest& request) {
  auto parsed = ChatTemplate::Parse(source, "t.jinja");
  if (!parsed.ok()) return parsed.status();
  return parsed->Render(request);
}

std::string Text(const std::string& source, const ChatRequest& request = Turns()) {
  auto rendered = Render(source, request);
  return rendered.ok() ? rendered->text : "error: " + rendered.status().message();
}

TEST(ChatTemplate, ALineThatHoldsATagAloneLeavesNothing) {
  EXPECT_EQ(Text("a\n  {% if true %}\nb\n  {% endif %}\n c {{ 1 }}\n\n"), "a\nb\n c 1\n");
  EXPECT_EQ(Text("a \n {%- if true -%} \n b {%+ endif +%}\nc"), "ab \nc");
  EXPECT_EQ(Text("{# x #}\n{% raw %}{{ y }}{% endraw %}"), "{{ y }}");
}

TEST(ChatTemplate, WhatElseJinjaReadsOrRefuses) {
  EXPECT_THAT(Text("{% raw +%}x{% endraw %}"), HasSubstr("unknown tag 'raw'"));
  EXPECT_EQ(Text("{% raw %}x{% endraw +%}\ny"), "x\ny");
  EXPECT_EQ(Text("{{ 4.0 is divisibleby 2 }}{{ 2 is divisibleby 2.5 }}{{ -9 is divisibleby(-1) }}"),
            "TrueFalseTrue");
  EXPECT_THAT(Text("{{ 1.5 is divisibleby 0 }}"), HasSubstr("division by zero"));
  EXPECT_EQ(
      Text("{{ 4 is divisibleby(num=2) }}{{ 3 is in(seq=[4]) }}{{ none is sameas(other=none) }}"),
      "TrueFalseTrue");
  EXPECT_THAT(Text("{{ 4 is divisibleby }}"), HasSubstr("divisibleby needs the argument 'num'"));
  EXPECT_THAT(Text("{{ 4 is eq }}"), HasSubstr("eq needs the argument 'value'"));
  EXPECT_THAT(Text("{{ 4 is eq(value=4) }}"), HasSubstr("eq takes no argument named 'value'"));
  EXPECT_EQ(Text("{{ messages[] is defined }}{{ {(): 1}[] }}"), "False1");
}

// As in Python.
TEST(ChatTemplate, ATagWithABodyMayEndInAColon) {
  EXPECT_EQ(Text("{% if false: %}a{% elif true : %}b{% else: %}c{% endif %}"), "b");
  EXPECT_EQ(Text("{% for x in [] if x: %}a{% else: -%} b{% endfor %}"), "b");
  EXPECT_EQ(Text("{% macro f(): %}{{ caller() }}{% endmacro %}{% call f(): %}x{% endcall %}"), "x");
  EXPECT_EQ(Text("{% set x: %}y{% endset %}{% filter upper: %}{{ x }}{% endfilter %}"), "Y");
  for (const char* source : {"{% if true: : %}{% endif %}", "{% if true %}{% endif: %}",
                             "{% with x = 1: %}{% endwith %}", "{% set x = 1: %}"}) {
    EXPECT_THAT(Text(source), HasSubstr("error: ")) << source;
  }
}

TEST(ChatTemplate, ASetWithinALoopEndsWithItsRound) {
  EXPECT_EQ(Text("{% set x = 1 %}{% for m in messages %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}"
                 "{{ x }}"),
            "12121");
  EXPECT_EQ(Text("{% set n = namespace(x=1) %}{% for m in messages %}{% set n.x = n.x + 1 %}"
                 "{% endfor %}{{ n.x }}"),
            "3");
  EXPECT_EQ(Text("{% if true %}{% set x = 1 %}{% endif %}{{ x }}"), "1");
}

TEST(ChatTemplate, AMacroSeesWhatIsAroundItWhenItIsCalled) {
  EXPECT_EQ(Text("{% macro f(a, b=2) %}{{ a }}{{ b }}{{ x }}{% endmacro %}{% set x = 7 %}"
                 "{{ f(1) }}{{ f(b=3, a=0) }}"),
            "127037");
}

TEST(ChatTemplate, ALoopKnowsItsPlace) {
  EXPECT_EQ(Text("{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }}"
                 "{{ '.' if loop.last else ',' }}{% endfor %}"),
            "1/2,2/2.");
  EXPECT_EQ(Text("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}"
                 "{{ loop.nextitem }}{% endfor %}"),
            "123");
  EXPECT_EQ(Text("{% for x in [] %}a{% else %}b{% endfor %}"), "b");
}

TEST(ChatTemplate, TargetsHoldTargets) {
  EXPECT_EQ(Text("{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}"), "123");
  EXPECT_EQ(Text("{% for a, (b, c) in [[1, (2, 3)]] %}{{ a }}{{ b }}{{ c }}{% endfor %}"), "123");
  EXPECT_EQ(Text("{% set (a, b), c = (1, 2), 3 %}{{ a }}{{ b }}{{ c }}"), "123");
}

TEST(ChatTemplate, AMacroKnowsItselfAndTakesWhatItAsksFor) {
  EXPECT_EQ(
      Text("{% macro m(a, b=1) %}{{ m.name }}{% endmacro %}{{ m(1) }} {{ m.arguments }} {{ m }}"
           " {{ m.catch_varargs }} {{ m.x is defined }} {{ self }}"),
      "m ('a', 'b') <Macro 'm'> False False <TemplateReference None>");
  EXPECT_EQ(Text("{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}"
                 "{{ m(1, 2, x=3) }}{{ m(*[4, 5], **{'y': 6}) }}"),
            "1(2,){'x': 3}4(5,){'y': 6}");
  EXPECT_EQ(Text("{% macro m() %}<{{ caller(1) }}{{ caller(2) }}>{% endmacro %}"
                 "{% call(x, y='.') m() %}{{ x }}{{ y }}{% endcall %}"),
            "<1.2.>");
  EXPECT_THAT(Text("{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}"),
              HasSubstr("takes no argument 'caller'"));
}

TEST(ChatTemplate, ARecursiveLoopHasItsOwnVariablesInEachRound) {
  EXPECT_EQ(Text("{% for x in [{'n': 1, 'c': [{'n': 2, 'c': []}, {'n': 3, 'c': []}]}] recursive %}"
                 "{% set y = x.n %}{{ y }}@{{ loop.depth }}({{ loop(x.c) }}){{ y }}{% endfor %}"),
            "1@1(2@2()23@2()3)1");
  EXPECT_EQ(Text("{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}"), "True False True ");
}

TEST(ChatTemplate, TheElseOfALoopRunsWhereNoRoundCameToItsEnd) {
  EXPECT_EQ(Text("{% for x in [1, 2] %}{% continue %}{% else %}e{% endfor %}"), "e");
  EXPECT_EQ(
      Text("{% for x in [1, 2] %}{% if x > 1 %}{% break %}{% endif %}{% else %}e{% endfor %}"), "");
}

TEST(ChatTemplate, FormatsAreReadWhole) {
  EXPECT_EQ(Text("{{ '{0[k]}{0.k}{1[1]}'.format({'k': 'v'}, [1, 2]) }}"), "vv2");
  EXPECT_EQ(Text("{{ '{:>{}}|{:08,}|{:+.1%}|{!a}|{:#x}'.format('a', 3, 1234, 0.5, 'é', 255) }}"),
            "  a|0,001,234|+50.0%|'\\xe9'|0xff");
  EXPECT_EQ(Text("{{ '%*d|%.3d|%#o|%c|%G' % (4, 7, 5, 8, 'x', 1e20) }}"), "   7|005|0o10|x|1E+20");
  EXPECT_THAT(Text("{{ '{:+}'.format('a') }}"), HasSubstr("has no sign"));
}

TEST(ChatTemplate, TextsAndNumbersAreAsPythonHasThem) {
  EXPECT_EQ(Text("{{ ' a b \\n'.split(none, 1) }}{{ 'a b c'.rsplit(none, 1) }}"),
            "['a', 'b \\n']['a b', 'c']");
  EXPECT_EQ(Text("{{ '1_000'|int }} {{ '1_0.5'|float }} {{ '0x1f'|int(0, 16) }} {{ '1__0'|int }}"),
            "1000 10.5 31 0");
  EXPECT_EQ(Text("{% set z = 0 %}{{ -2 ** z }} {{ -2 ** 2 }} {{ -z ** 2 }}"), "-1 4 0");
  EXPECT_EQ(Text("{{ 15|round(-1) }} {{ 25|round(-1) }} {{ [[1], [2]]|sum(start=[]) }}"),
            "20 20 [1, 2]");
  EXPECT_EQ(Text("{{ 'ab cd'.title() }} {{ '-7'.zfill(4) }} {{ 'a'.center(4) }}| {{ "
                 "'abcb'.find('b', 2) }}"),
            "Ab Cd -007  a  | 3");
  EXPECT_EQ(Text("{{ 'one two three four'|truncate(9) }} {{ [1, 2, 3]|batch(2, 0)|list }} "
                 "{{ {'a': 'b c'}|urlencode }}"),
            "one... [[1, 2], [3, 0]] a=b+c");
  EXPECT_EQ(
      Text("{{ [1, 2]|batch(0)|list }} {{ [1, 2]|batch(-1, 9)|list }} {{ []|batch(0)|list }}"),
      "[[], [1, 2]] [[1, 2]] []");
  EXPECT_EQ(Text("{{ range(9)[2:7:2] }} {{ [namespace(a=1)] }}"),
            "range(2, 7, 2) [<Namespace {'a': 1}>]");
}

TEST(ChatTemplate, JsonIsAsTransformersWritesIt) {
  ChatRequest request = Turns();
  request.tools = Parsed(R"([{"b": "<é>", "a": [1, 2.0, null, true, {}]}])");
  EXPECT_EQ(Text("{{ tools | tojson }}", request),
            R"([{"b": "<é>", "a": [1, 2.0, null, true, {}]}])");
  EXPECT_EQ(Text("{{ tools[0] | tojson(indent=1, sort_keys=true) }}", request),
            "{\n \"a\": [\n  1,\n  2.0,\n  null,\n  true,\n  {}\n ],\n \"b\": \"<é>\"\n}");
  EXPECT_EQ(Text("{{ tools[0] }}", request), "{'b': '<é>', 'a': [1, 2.0, None, True, {}]}");
}

TEST(ChatTemplate, GenerationBlocksGiveTheAssistantsBytes) {
  const std::string source =
      "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content }}é{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
      "{% endfor %}";
  const RenderedChat rendered = ValueOrThrow(Render(source, Turns()));
  EXPECT_TRUE(rendered.has_generation_blocks);
  ASSERT_EQ(rendered.assistant.size(), 1u);
  const ByteRange range = rendered.assistant[0];
  EXPECT_EQ(
      rendered.text.substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.size())),
      "Helloé");
}

TEST(ChatTemplate, AMessageThatGoesOnEndsWhereItsContentEnds) {
  ChatRequest request = Turns();
  request.continue_final_message = true;
  EXPECT_EQ(Text("{% for m in messages %}<{{ m.content }}>{% endfor %}", request), "<Hi><Hello");
  EXPECT_THAT(Text("{% for m in messages[:1] %}<{{ m.content }}>{% endfor %}", request),
              HasSubstr("to be continued"));
  request.add_generation_prompt = true;
  EXPECT_THAT(Text("x", request), HasSubstr("exclude"));
}

TEST(ChatTemplate, WhatATemplateRaisesIsTheErrorWithItsLine) {
  EXPECT_EQ(Text("a\n{{ raise_exception('Roles must alternate') }}"),
            "error: t.jinja:2: Roles must alternate");
  EXPECT_EQ(Text("\n\n{{ x.y }}"), "error: t.jinja:3: 'x' is undefined");
  EXPECT_THAT(Text("{{ messages.append(1) }}"), HasSubstr("unsafe"));
}

TEST(ChatTemplate, WhatIsNotUnderstoodIsRefusedByName) {
  for (const auto& [source, message] : std::vector<std::pair<std::string, std::string>>{
           {"{% include 'x' %}", "'include'"},
           {"{{ 1 | nosuch }}", "'nosuch'"},
           {"{{ 1 is nosuch }}", "'nosuch'"},
           {"{{ [1] | random }}", "'random' is not supported"},
           {"{% extends 'x' %}", "'extends' is not supported"},
           {"{{ 'a'.encode() }}", "'encode'"},
           {"{{ 1 is defined 2 }}", "at most 0 arguments"},
           {"{{ dict(none.x) }}", "has no attribute 'x'"},
           {"{{ [1] | select('string', 2) | list }}", "at most 0 arguments"},
           {"{{ 'é'.title() }}", "beyond ASCII"},
           {"{{ '１２' | int }}", "digits beyond ASCII are not supported"},
           {"{{ 'x٣' | float }}", "digits beyond ASCII are not supported"},
           {"{{ \u2167 }}", "another in Unicode's form NFKC"},
           {"{{ a\u00b7 }}", "unexpected character '\u00b7"},
           {"a{# ", "a comment has no end"},
           {"{{ 9223372036854775807 | round(-1) }}", "beyond 64 bits"},
           {"{% call 1 %}{% endcall %}", "'call' needs"},
           {"{% for x in [1] %}{{ loop([2]) }}{% endfor %}", "'recursive'"},
           {"{% filter length %}x{% endfilter %}", "must give text"},
           {"{% if x %}", "endif"},
           {"{{ 'a }}", "a string has no end"},
           {"{{ (1 }}", ""},
           {"{% break %}", "outside of a loop"},
           {"\xff", "UTF-8"}}) {
    EXPECT_THAT(Text(source), testing::AllOf(testing::StartsWith("error: "), HasSubstr(message)))
        << source;
  }
}

TEST(ChatTemplate, AFilterThatNothingHasIsRefusedOnlyWhenAnIfLetsItRun) {
  EXPECT_EQ(Text("{% if false %}{{ 1 | from_json }}{% endif %}x"), "x");
  EXPECT_THAT(Text("{% if true %}{{ 1 | from_json }}{% endif %}"), HasSubstr("from_json"));
}

// transformers measures a block in characters, from where the template's own text is so far.
TEST(ChatTemplate, AFilterOfItemsIsLookedForWhereThereAreItems) {
  for (const char* of :
       {"map('nosuch')", "select('nosuch')", "rejectattr('k', 'nosuch')", "map(3)"}) {
    const std::string filter = of;
    EXPECT_EQ(Text("{{ []|" + filter + "|list }}{{ missing|" + filter + "|list }}"), "[][]");
    EXPECT_EQ(Text("{% set unused = [1]|" + filter + " %}ok"), "ok");
    EXPECT_THAT(Text("{{ [1]|" + filter + "|list }}"), HasSubstr("nam"));
  }
  EXPECT_EQ(Text("{{ ''|map('upper')|map('nosuch')|list }}"), "[]");
}

TEST(ChatTemplate, AGenerationWithinATextOfItsOwnIsMeasuredAsTransformersDoes) {
  const std::string block = "{% generation %}é{% endgeneration %}";
  const auto spans = [](const std::string& source) {
    std::vector<std::pair<int64_t, int64_t>> out;
    for (const ByteRange& one : ValueOrThrow(Render(source, Turns())).assistant)
      out.emplace_back(one.begin, one.end);
    return out;
  };
  using Spans = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(spans("ü" + block), (Spans{{2, 4}}));
  EXPECT_EQ(spans("a{% filter upper %}x" + block + "{% endfilter %}"), (Spans{{1, 2}}));
  EXPECT_EQ(spans("a{% for x in [1, 2] recursive %}b" + block + "{% endfor %}"),
            (Spans{{1, 2}, {1, 2}}));
}

TEST(ChatTemplate, WhatLoadsATemplateIsRefusedOnlyWhereItRuns) {
  EXPECT_EQ(Text("{% if false %}{% include 'x' ignore missing with context %}{% import 'y' as z %}"
                 "{% from 'y' import a, b as c with context %}{{ c }}{% endif %}{{ z }}."),
            ".");
  EXPECT_EQ(Text("{% include [] ignore missing %}."), ".");
  EXPECT_THAT(Text("{% include 'x' ignore missing %}"), HasSubstr("no others to load"));
  EXPECT_THAT(Text("{% from 'x' import _y %}"), HasSubstr("begins with '_'"));
}

TEST(ChatTemplate, NumbersOfOtherBasesAreRead) {
  EXPECT_EQ(Text("{{ 0x1F }} {{ 0o17 }} {{ 0b1_01 }} {{ 0X_f }}"), "31 15 5 15");
  EXPECT_THAT(Text("{{ 0x }}"), HasSubstr("error"));
  EXPECT_THAT(Text("{{ 0b12 }}"), HasSubstr("error"));
  EXPECT_THAT(Text("{{ 0xffffffffffffffff }}"), HasSubstr("beyond 64 bits"));
}

TEST(ChatTemplate, ItemsAreGroupedByAnAttribute) {
  const std::string items = "[{'k': 'b', 'n': 1}, {'k': 'A', 'n': 2}, {'k': 'a', 'n': 3}]";
  EXPECT_EQ(Text("{% for k, v in " + items +
                 "|groupby('k') %}{{ k }}:{{ v|map(attribute='n')|join }} {% endfor %}"),
            "A:23 b:1 ");
  EXPECT_EQ(
      Text("{% for g in " + items +
           "|groupby('k', case_sensitive=true) %}{{ g.grouper }}{{ g.list|length }}{% endfor %}"),
      "A1a1b1");
  EXPECT_EQ(Text("{{ [{}, {'k': 2}]|groupby('k', default=7) }}"), "[(2, [{'k': 2}]), (7, [{}])]");
}

TEST(ChatTemplate, WordsAreWrappedAsPythonWrapsThem) {
  EXPECT_EQ(Text("{{ 'Hello there -- you goof-ball, use the -b option!'|wordwrap(9) }}"),
            "Hello\nthere --\nyou goof-\nball, use\nthe -b\noption!");
  EXPECT_EQ(Text("{{ 'äöüäöü a\n\nb'|wordwrap(4, wrapstring='|') }}"), "äöüä|öü a||b");
  EXPECT_EQ(Text("{{ 'abcdef g'|wordwrap(4, false) }}"), "abcdef\ng");
  EXPECT_THAT(Text("{{ 'a'|wordwrap(0) }}"), HasSubstr("width"));
  EXPECT_EQ(Text("{{ 'größer als ½_x'|wordcount }}"), "3");
}

TEST(ChatTemplate, ValuesArePrintedPrettily) {
  EXPECT_EQ(Text("{{ {'b': 1, 'a': [1, 'x']}|pprint }} {{ 'it'|pprint }}"),
            "{'a': [1, 'x'], 'b': 1} 'it'");
  EXPECT_EQ(Text("{{ {'name': 'x' * 70, 'items': ['word ' * 18, (1,)]}|pprint }}"),
            "{'items': ['word word word word word word word word word word word word word '\n"
            "           'word word word word word ',\n           (1,)],\n 'name': '" +
                std::string(70, 'x') + "'}");
}

TEST(ChatTemplate, TextIsMadeForHtmlAndOfIt) {
  EXPECT_EQ(Text("{{ '<b>Tom  &amp; &#65;&eacute;&notx</b> <!-- > --> AT&T'|striptags }}"),
            "Tom & Aé¬x AT&T");
  EXPECT_EQ(Text("<a{{ {'id': 1, 'x': none, 'title': '<\"'}|xmlattr }}>"),
            "<a id=\"1\" title=\"&lt;&#34;\">");
  EXPECT_EQ(Text("{{ 'see (www.a.org), me@b.com'|urlize(5, target='_t') }}"),
            "see (<a href=\"https://www.a.org\" rel=\"noopener\" target=\"_t\">www.a...</a>), "
            "<a href=\"mailto:me@b.com\">me@b.com</a>");
  EXPECT_EQ(Text("{{ 'ftp://x y'|urlize(extra_schemes=['ftp://']) }}"),
            "<a href=\"ftp://x\" rel=\"noopener\">ftp://x</a> y");
}

TEST(ChatTemplate, CyclersAndJoinersKnowWhereTheyAre) {
  EXPECT_EQ(Text("{% set c = cycler('a', 'b', 3) %}{{ c.next() }}{% for x in [1, 2, 3] %}{{ "
                 "c.next() }}{% endfor %}"
                 "{{ c.current }}{{ c.reset() }}{{ c.current }}"),
            "ab3abNonea");
  EXPECT_EQ(Text("{% set j = joiner() %}{% for x in [1, 2, 3] %}{{ j() }}{{ x }}{% endfor %}"),
            "1, 2, 3");
  EXPECT_THAT(Text("{% set c = cycler(1) %}{% set c.items = 5 %}{{ c.next() }}"),
              HasSubstr("cannot be set"));
  EXPECT_THAT(Text("{% set c = cycler(1) %}{% set c.pos = 5 %}{{ c.next() }}"),
              HasSubstr("cannot be set"));
  EXPECT_THAT(Text("{{ cycler() }}"), HasSubstr("needs items"));
  EXPECT_THAT(Text("{{ lipsum() }}"), HasSubstr("'lipsum' is not supported"));
}

TEST(ChatTemplate, SizesOfFilesAreRounded) {
  EXPECT_EQ(Text("{{ 1|filesizeformat }} {{ 999|filesizeformat }} {{ '1e6'|filesizeformat }} {{ "
                 "2048|filesizeformat(true) }} "
                 "{{ 1e30|filesizeformat }}"),
            "1 Byte 999 Bytes 1.0 MB 2.0 KiB 1000000.0 YB");
}

TEST(ChatTemplate, NoTemplateRunsWithoutEndOrEatsTheMemory) {
  const std::string loop = "{% for a in range(100000) %}";
  EXPECT_THAT(Text(loop + loop + "{% endfor %}{% endfor %}"), HasSubstr("too many steps"));
  EXPECT_THAT(Text("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("nested"));
  EXPECT_THAT(Text("{{ 'abc' * 1000000000 }}"), HasSubstr("too much"));
  EXPECT_THAT(Text("{% set n = namespace(s='ab') %}{% for i in range(60) %}"
                   "{% set n.s = n.s ~ n.s %}{% endfor %}"),
              HasSubstr("too long"));
  EXPECT_THAT(Text("{% set n = namespace(s=[]) %}{% for i in range(5000) %}"
                   "{% set n.s = [n.s] %}{% endfor %}"),
              HasSubstr("nested too deep"));
  EXPECT_THAT(Text("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}"),
              HasSubstr("nested too deep"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  EXPECT_THAT(Text(sum + " }}"), HasSubstr("nested too deep"));
  EXPECT_EQ(Text("{% set n = namespace() %}{% set n.me = n %}{{ n.me.me.me is defined }}"), "True");
}

TEST(ChatTemplate, WhatOneStepMakesOrLooksAtCountsAgainstTheLimits) {
  const std::string big = "{% set big = 'ü' * 20000000 %}";
  const std::string often = "{% for i in range(100000) %}{% set _ = ";
  for (const auto& [source, message] : std::vector<std::pair<std::string, std::string>>{
           {"{% set n = namespace(p=0) %}{% for i in range(40) %}{% set n.p = namespace(p=n.p, "
            "x=[1]|batch(9999990, 1)|list) %}{% endfor %}",
            "too many steps"},
           {"{% set l = range(100000)|list %}{{ dict((l + l)|batch(2)) }}", "too many steps"},
           {"{% set a = [0] * 4000000 %}{% set b = [0] * 4000000 %}" + often +
                "a is eq(b) %}{% endfor %}",
            "too many steps"},
           {big + often + "big is upper %}{% endfor %}", "too many steps"},
           {big + often + "''|replace(big, '') %}{% endfor %}", "too many steps"},
           {big + often + "''.replace(big, '') %}{% endfor %}", "too many steps"},
           {"{{ ('x' * 60000000)|list|length }}", "too many characters to list"},
           {"{{ ('x ' * 30000000).split()|length }}", "falls into too many parts"},
           {"{% set n = namespace(v='x' * 6000000) %}{% for i in range(250) %}"
            "{% set n.v = [n.v] %}{% endfor %}{{ n.v|pprint }}",
            "too much text"},
           {"{{ {'k' * 30000000: 'a\n' * 1000000}|pprint }}", "too long"},
       }) {
    EXPECT_THAT(Text(source), HasSubstr(message)) << source;
  }
  EXPECT_EQ(Text("{{ (')' * 5000000)|urlize|length }}"), "5000000");
}

TEST(ChatTemplate, WhatIsNestedByFiltersAndNamespacesEndsInAnError) {
  EXPECT_THAT(Text("{{ 'a'|map(*(['map'] * 20000))|list }}"), HasSubstr("error: "));
  EXPECT_THAT(Text("{% set n = namespace(p=0) %}{% for i in range(100000) %}"
                   "{% set n.p = namespace(p=n.p) %}{% endfor %}{{ n }}"),
              HasSubstr("nested too deep to print"));
  // A loop that holds itself is let go with the rendering; a chain of them not one within another.
  EXPECT_EQ(
      Text("{% set n = namespace(l=0) %}{% for i in range(100000) %}{% for x in [0] %}"
           "{% set _ = loop.changed(n.l, loop) %}{% set n.l = loop %}{% endfor %}{% endfor %}ok"),
      "ok");
}

TEST(ChatTemplate, ALongConversationIsNoTemplateWithoutAnEnd) {
  // As Qwen3's asks for the number of messages at each of them.
  ChatRequest request;
  for (int i = 0; i < 1000; ++i)
    request.messages.push_back({{"role", "user"}, {"content", std::string(4000, 'x')}});
  EXPECT_EQ(
      Text("{% for m in messages[::-1] %}{% set at = (messages|length - 1) - loop.index0 %}"
           "{% if nosuch|default(messages)|length == at + 1000 %}{{ at }}{% endif %}{% endfor %}",
           request),
      "0");
}

TEST(ChatTemplate, NumbersAtTheEndsOfTheirRangeAreAsPythonHasThem) {
  const std::string least = "(-9223372036854775807 - 1)";
  EXPECT_EQ(Text("{{ 'a b'|truncate(9223372036854775807) }}|{{ 'a'.center(" + least +
                 ") }}|{{ 'a'.zfill(" + least + ") }}|{{ '%*d' % (-3, 5) }}|"),
            "a b|a|a|5  |");
  EXPECT_THAT(Text("{{ 'a b'|truncate(" + least + ") }}"), HasSubstr("below that of the end"));
  EXPECT_EQ(Text("{{ 'abc'|truncate(5.5) }} {{ 'a cdefghij'|truncate(6, leeway=2.5) }} "
                 "{{ 'abcdefgh'|truncate(6, leeway=none) }}"),
            "abc a... abcdefgh");
  EXPECT_THAT(Text("{{ 'abcdefghijkl'|truncate(5.5) }}"), HasSubstr("must be an integer"));
  EXPECT_THAT(Text("{{ 'abc'|truncate(2.5) }}"), HasSubstr("below that of the end"));
  EXPECT_THAT(Text("{{ 'abc'|truncate(none) }}"), HasSubstr("must be a number"));
  EXPECT_THAT(Text("{{ '%*d' % (" + least + ", 5) }}"), HasSubstr("above 1000"));
  EXPECT_THAT(Text("{{ range(0, 10, 2)[::9223372036854775807] }}"), HasSubstr("beyond 64 bits"));
  EXPECT_EQ(Text("{{ 4503599627370497.0 // 1.0 }} {{ -1.0 // ('inf'|float) }} {{ '1e400'|float }} "
                 "{{ '+-1'|float(7) }}"),
            "4503599627370497.0 -1.0 inf 7");
}

TEST(ChatTemplate, AFolderOfTemplatesThatCannotBeReadIsNotTakenForNone) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "templates_that_are_no_folder";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "additional_chat_templates") << "a file";
  const auto loaded = LoadChatTemplate(folder.string());
  EXPECT_THAT(loaded.status().message(), HasSubstr("additional_chat_templates"));
  std::filesystem::remove_all(folder);
}

TEST(ChatTemplate, TheClockComesFromOutside) {
  ChatRequest request = Turns();
  request.clock = [] { return std::chrono::system_clock::from_time_t(86400 * 15); };
  EXPECT_EQ(Text("{{ strftime_now('%d %b %Y %%') }}", request), "16 Jan 1970 %");
}

TEST(ChatTemplate, WordsBeyondAsciiHavePythonsCases) {
  EXPECT_EQ(Text("{{ 'straße ÉΣ ǆ' | upper }} {{ 'ÉΣ' | lower }} {{ 'ǆx' | capitalize }}"),
            "STRASSE ÉΣ Ǆ éς ǅx");
  EXPECT_EQ(Text("{{ 'Α.Σ' | lower }} {{ 'ΑΣ.Α' | lower }} {{ 'ª' is lower }} {{ '𝐀' is upper }} "
                 "{{ 'a𝐀' is lower }} {{ 'ǅ' is upper }} {{ 'É1'.isupper() }}"),
            "α.ς ασ.α True True False False True");
  EXPECT_EQ(Text("{{ '&NotEqualTilde;&nosuch; &ampx &Aopf;'|striptags }}"), "≂̸&nosuch; &x 𝔸");
  EXPECT_EQ(Text("{{ 'é🙂x'[::-1] }} {{ 'é🙂x' | length }} {{ '\u00a0 x\u3000' | trim }}"),
            "x🙂é 3 x");
}

class TemplateFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/template_files";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string folder_;
};

TEST_F(TemplateFiles, AFolderWithoutATemplateHasNone) {
  EXPECT_FALSE(ValueOrThrow(LoadChatTemplate(folder_)).has_value());
  Write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_FALSE(ValueOrThrow(LoadChatTemplate(folder_)).has_value());
}

TEST_F(TemplateFiles, TheTokenizersTokensComeWithTheTemplate) {
  Write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}{{ eos_token }}", "bos_token": {"content": "<s>"},
            "added_tokens_decoder": {}})");
  Write("special_tokens_map.json", R"({"bos_token": "no", "eos_token": "</s>"})");
  const auto loaded = ValueOrThrow(LoadChatTemplate(folder_));
  EXPECT_EQ(ValueOrThrow(loaded->Render(Turns())).text, "<s>");
  // Without the decoder the map counts, with its nulls.
  Write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}", "bos_token": "no",
            "pad_token": "no"})");
  Write("special_tokens_map.json",
        R"({"bos_token": "<s>", "eos_token": "</s>", "pad_token": null})");
  EXPECT_EQ(ValueOrThrow(ValueOrThrow(LoadChatTemplate(folder_))->Render(Turns())).text, "<s></s>");
  Write("chat_template.jinja", "file\n");
  EXPECT_EQ(ValueOrThrow(LoadChatTemplate(folder_))->source(), "file\n");
}

TEST_F(TemplateFiles, OneOfSeveralIsChosenByItsName) {
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "d"},
                                                       {"name": "rag", "template": "r"}]})");
  EXPECT_EQ(ValueOrThrow(LoadChatTemplate(folder_))->source(), "d");
  EXPECT_EQ(ValueOrThrow(LoadChatTemplate(folder_, "rag"))->source(), "r");
  EXPECT_THAT(LoadChatTemplate(folder_, "x").status().message(), HasSubstr("default, rag"));
  Write("tokenizer_config.json", R"({"chat_template": {"default": "d", "rag": "r"}})");
  EXPECT_EQ(ValueOrThrow(LoadChatTemplate(folder_, "rag"))->source(), "r");
  Write("tokenizer_config.json", R"({"chat_template": {"default": 3}})");
  EXPECT_THAT(LoadChatTemplate(folder_).status().message(), HasSubstr("a map of names"));
  Write("additional_chat_templates/more.jinja", "m");
  EXPECT_EQ(ValueOrThrow(LoadChatTemplate(folder_, "more"))->source(), "m");
  Write("tokenizer_config.json", R"({"chat_template": 3})");
  std::filesystem::remove_all(folder_ + "/additional_chat_templates");
  EXPECT_THAT(LoadChatTemplate(folder_).status().message(), HasSubstr("chat_template must be"));
}

}  // namespace
}  // namespace keel::model
