// Chat templates that anyone may have written, over messages that are as usual.
#include <string>

#include "common/text.h"
#include "model/chat_template/chat_template.h"
#include "tests/fuzz/targets.h"

namespace keel::fuzz {

void FuzzChatTemplate(std::string_view bytes) {
  const auto parsed = model::ChatTemplate::Parse(std::string(bytes), "fuzz");
  if (!parsed.ok()) return RequireNames(parsed.status());
  model::ChatRequest request;
  request.messages = Json::parse(
      R"([{"role": "system", "content": "Be brief"}, {"role": "user", "content": [{"type": "text",
         "text": "Gr\u00fc\u00dfe"}]}, {"role": "assistant", "content": "", "tool_calls": [{"function":
         {"name": "f", "arguments": {"a": 1.5, "b": [null, true]}}}]}])");
  request.tools = Json::parse(R"([{"function": {"name": "f", "parameters": {}}}])");
  request.add_generation_prompt = true;
  request.clock = [] { return std::chrono::system_clock::time_point(); };
  const auto rendered = parsed->Render(request);
  if (!rendered.ok()) return RequireNames(rendered.status());
  KEEL_REQUIRE(FindNotUtf8(rendered->text) == std::string::npos);
  const auto again = parsed->Render(request);
  KEEL_REQUIRE(again.ok() && again->text == rendered->text);
  for (const ByteRange& range : rendered->assistant) {
    KEEL_REQUIRE(range.begin >= 0 && range.begin <= range.end);
  }
}

std::vector<std::string> ChatTemplateSeeds() {
  return {
      "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}\n{% endfor "
      "%}",
      "{%- set ns = namespace(i=0) -%}\n{% for m in messages[::-1] if m.content is string %}"
      "{% set ns.i = ns.i + loop.index0 %}{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ "
      "ns.i }}",
      "{% macro f(a, b=2) %}{{ a ~ b }}{% endmacro %}{{ f(1, b='x') | upper }}{{ f(tools) }}",
      "{{ tools | tojson(indent=2) }}{{ messages | map(attribute='role') | join(', ') }}",
      "{% generation %}{{ 'a,b'.split(',', 1)[0] }}{% endgeneration %}{% raw %}{{{% endraw %}",
      "{% filter upper %}{{ '%05.1f|%s' % (3.14159, 'x') }}{{ '{:>5}'.format('a') }}{% endfilter "
      "%}",
      "{{ raise_exception('no ' + messages[0].role) if messages|length > 9 else strftime_now('%Y') "
      "}}",
      "{% set x %}{% with a=1 %}{{ a // 2 * -3 ** 2 % 5 }}{% endwith %}{% endset %}{{ {'k': [x, "
      "(1,)]} }}",
      "{{ messages | selectattr('role', 'equalto', 'user') | list | length is divisibleby 2 }}",
  };
}

}  // namespace keel::fuzz
