#include "model/tokenizer/pipeline/pattern.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "common/text.h"
#include "model/tokenizer/pipeline/word_scanner.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

constexpr size_t kMaxExpressionBytes = size_t{64} << 10;
// Steps back within one match, Oniguruma's own default, and over one search; and the depth of the
// stack that it keeps for them.
constexpr unsigned long kMaxRetriesInMatch = 10'000'000;
constexpr unsigned long kMaxRetriesInSearch = 100'000'000;
constexpr unsigned int kMaxStack = 4'000'000;

const OnigUChar* Bytes(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

// The library wants to be told its encodings once, before the first use.
void InitializeOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::array<OnigEncoding, 1> encodings = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings.data(), static_cast<int>(encodings.size()));
  });
}

std::string MessageOf(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> buffer{};
  const int length = info != nullptr ? onig_error_code_to_str(buffer.data(), code, info)
                                     : onig_error_code_to_str(buffer.data(), code);
  return Printable(
      std::string_view(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(length)));
}

struct FreeRegex {
  void operator()(OnigRegex regex) const { onig_free(regex); }
};

}  // namespace

struct PatternScratch::State {
  State() : region(onig_region_new()), param(onig_new_match_param()) {
    onig_initialize_match_param(param);
    onig_set_match_stack_limit_size_of_match_param(param, kMaxStack);
    onig_set_retry_limit_in_match_of_match_param(param, kMaxRetriesInMatch);
    onig_set_retry_limit_in_search_of_match_param(param, kMaxRetriesInSearch);
  }
  ~State() {
    onig_region_free(region, 1);
    onig_free_match_param(param);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  OnigRegion* region;
  OnigMatchParam* param;
};

PatternScratch::PatternScratch() : state_(std::make_unique<State>()) {}
PatternScratch::~PatternScratch() = default;

namespace {

// The expression with [:punct:] written out. `tokenizers` has a newer Oniguruma, to which it is all
// punctuation and all symbols; in Debian's it has of the symbols those of ASCII alone.
std::string WithPunctuation(std::string_view expression) {
  constexpr std::string_view kIn = "[:punct:]", kOut = "[:^punct:]";
  if (expression.find(kIn) == std::string_view::npos &&
      expression.find(kOut) == std::string_view::npos) {
    return std::string(expression);
  }
  std::string out;
  int depth = 0;  // of classes within classes
  for (size_t i = 0; i < expression.size();) {
    const std::string_view rest = expression.substr(i);
    size_t taken = 1;
    if (depth > 0 && rest.starts_with(kIn)) {
      out += R"(\p{P}\p{S})";
      i += kIn.size();
      continue;
    }
    if (depth > 0 && rest.starts_with(kOut)) {
      out += R"([^\p{P}\p{S}])";
      i += kOut.size();
      continue;
    }
    if (rest[0] == '\\') {
      taken = std::min<size_t>(2, rest.size());
    } else if (rest[0] == '[') {
      ++depth;
      if (rest.substr(taken, 1) == "^") ++taken;
      if (rest.substr(taken, 1) == "]") ++taken;  // the first of a class stands for itself
    } else if (rest[0] == ']' && depth > 0) {
      --depth;
    }
    out += rest.substr(0, taken);
    i += taken;
  }
  return out;
}

}  // namespace

struct Pattern::Compiled {
  std::string expression;
  WordScanner words;
  std::unique_ptr<re_pattern_buffer, FreeRegex> regex;
};

Pattern::Pattern(std::string literal) : literal_(std::move(literal)) {}
Pattern::Pattern(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

Result<Pattern> Pattern::Regex(std::string_view expression, std::string_view where) {
  InitializeOnce();
  if (expression.empty() || expression.size() > kMaxExpressionBytes) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: a regular expression of {} bytes; 1 to {} are accepted", where,
                              expression.size(), kMaxExpressionBytes));
  }
  auto compiled = std::make_unique<Compiled>();
  compiled->expression = expression;
  compiled->words = WordScanner::For(expression);
  const std::string read = WithPunctuation(expression);
  OnigRegex regex = nullptr;
  OnigErrorInfo info{};
  const int code = onig_new(&regex, Bytes(read.data()), Bytes(read.data() + read.size()),
                            ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
  if (code != ONIG_NORMAL) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: Oniguruma refuses the regular expression \"{}\": {}", where,
                              Printable(expression), MessageOf(code, &info)));
  }
  compiled->regex.reset(regex);
  return Pattern(std::move(compiled));
}

Result<Pattern> Pattern::Literal(std::string_view text, std::string_view where) {
  if (text.empty()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: an empty string to search for; one of a character or more is "
                              "accepted",
                              where));
  }
  return Pattern(std::string(text));
}

void Pattern::FindAll(std::string_view text, PatternScratch* scratch,
                      std::vector<Span>* matches) const {
  if (compiled_ == nullptr) {
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      matches->push_back({at, at + literal_.size()});
    }
    return;
  }
  OnigRegion* region = scratch->state_->region;
  const OnigUChar* begin = Bytes(text.data());
  const OnigUChar* end = begin + text.size();
  size_t from = 0;
  size_t last_end = std::string_view::npos;
  while (from <= text.size()) {
    if (from < text.size()) {
      const size_t next = compiled_->words.MayBegin(text, from);
      if (next > from && next == text.size()) return;
      from = next;
      const size_t word_end = compiled_->words.MatchEnd(text, from);
      if (word_end > from) {
        matches->push_back({from, word_end});
        from = last_end = word_end;
        continue;
      }
    }
    const int found = onig_search_with_param(compiled_->regex.get(), begin, end, begin + from, end,
                                             region, ONIG_OPTION_NONE, scratch->state_->param);
    if (found == ONIG_MISMATCH) return;
    if (found < 0) {
      throw Error(StatusCode::kInvalidData,
                  fmt::format("the tokenizer's regular expression \"{}\" cannot split a text of {} "
                              "bytes at byte {}: {}; split the text into shorter rows",
                              Printable(compiled_->expression), text.size(), from,
                              MessageOf(found, nullptr)));
    }
    const Span match{static_cast<size_t>(region->beg[0]), static_cast<size_t>(region->end[0])};
    if (match.size() == 0 && match.end == last_end) {
      from += from < text.size() ? Utf8Length(text[from]) : 1;
      continue;
    }
    matches->push_back(match);
    from = last_end = match.end;
  }
}

}  // namespace keel::model
