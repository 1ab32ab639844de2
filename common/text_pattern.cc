#include "common/text_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <string>
#include <utility>

namespace keel {

namespace {

// Of one search: text and expression may be such that there is no end in sight.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kHeapKib = 64 * 1024;

std::string MessageOf(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR BytesOf(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

Result<TextPattern> TextPattern::Compile(std::string_view expression, const Options& options) {
  uint32_t flags = PCRE2_DOTALL | PCRE2_NEVER_BACKSLASH_C;
  if (!options.bytes) flags |= PCRE2_UTF | PCRE2_UCP;
  if (options.any_case) flags |= PCRE2_CASELESS;
  if (options.whole) flags |= PCRE2_ANCHORED | PCRE2_ENDANCHORED;
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* const code =
      pcre2_compile(BytesOf(expression), expression.size(), flags, &error, &at, nullptr);
  if (code == nullptr) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("byte {} of '{}': {}", at, expression, MessageOf(error)));
  }
  return TextPattern(std::shared_ptr<const void>(code, [](const void* p) {
    pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p)));
  }));
}

TextPattern TextPattern::Fixed(std::string_view expression, bool any_case) {
  Result<TextPattern> compiled = Compile(expression, {.any_case = any_case});
  if (!compiled.ok()) throw Error(StatusCode::kInternal, compiled.status().message());
  return *std::move(compiled);
}

Result<std::optional<ByteRange>> TextPattern::Find(std::string_view text, size_t at) const {
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapKib);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const int found = pcre2_match(code, BytesOf(text), text.size(), at, PCRE2_NO_UTF_CHECK,
                                data.get(), context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::optional<ByteRange>();
  if (found < 0) {
    return Status(StatusCode::kDeadlineExceeded,
                  fmt::format("a pattern on {} bytes: {}", text.size(), MessageOf(found)));
  }
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(data.get());
  return std::optional<ByteRange>(
      ByteRange{static_cast<int64_t>(ends[0]), static_cast<int64_t>(ends[1])});
}

}  // namespace keel
