#include "model/chat_template/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "common/status.h"
#include "model/chat_template/value.h"

namespace keel::model::jinja {
namespace {

// Of one search: foreign text may be such that an expression has no end in sight.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kHeapKib = 64 * 1024;

}  // namespace

TextPattern::TextPattern(std::string_view expression, bool any_case) {
  int error = 0;
  PCRE2_SIZE at = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL | (any_case ? PCRE2_CASELESS : 0);
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()),
                                         expression.size(), options, &error, &at, nullptr);
  if (code == nullptr) {
    throw Error(StatusCode::kInternal, "chat template: PCRE2 refuses " + std::string(expression) +
                                           " at " + std::to_string(at));
  }
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
}

std::optional<ByteRange> TextPattern::Find(std::string_view text, size_t at) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapKib);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  // All text here is UTF-8 that was checked: PCRE2 need not do so again at each search.
  const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                PCRE2_NO_UTF_CHECK, data.get(), context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) Fail("a search for words or links takes too many steps");
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(data.get());
  return ByteRange{static_cast<int64_t>(ends[0]), static_cast<int64_t>(ends[1])};
}

}  // namespace keel::model::jinja
