#define PCRE2_CODE_UNIT_WIDTH 8
#include "rewards/format_pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

namespace keel::rewards {

namespace {

constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kHeapKib = 20'000;

std::string Message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Result<FormatPattern> FormatPattern::Compile(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_DOTALL | PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C,
                    &error, &at, nullptr);
  if (code == nullptr) {
    return Status(StatusCode::kConfig,
                  fmt::format("reward.format_pattern: character {} of '{}': {}", at, pattern,
                              Message(error)));
  }
  FormatPattern out;
  out.code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  return out;
}

Result<bool> FormatPattern::Matches(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapKib);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free);
  const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                                data.get(), context.get());
  if (found >= 0) return true;
  if (found == PCRE2_ERROR_NOMATCH) return false;
  return Status(StatusCode::kDeadlineExceeded,
                fmt::format("reward.format_pattern on {} bytes: {}", text.size(), Message(found)));
}

}  // namespace keel::rewards
