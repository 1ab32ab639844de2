#include "common/json_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/text.h"

namespace keel {

namespace {

// NaN and the infinities of a text, by the ends of what the parser, which knows none of them, sees
// in their places: strings of the same length.
class NotFinite {
 public:
  explicit NotFinite(std::string_view text);
  bool empty() const { return at_end_.empty(); }
  const std::string& text() const { return text_; }
  // Null where a string that ends there is one.
  const double* EndingAt(size_t end) const {
    const auto found = at_end_.find(end);
    return found == at_end_.end() ? nullptr : &found->second;
  }

 private:
  std::string text_;
  std::map<size_t, double> at_end_;
};

NotFinite::NotFinite(std::string_view text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::pair<std::string_view, double> kWords[] = {
      {"NaN", std::numeric_limits<double>::quiet_NaN()},
      {"Infinity", kInfinity},
      {"-Infinity", -kInfinity}};
  bool inside = false;  // a string
  for (size_t i = 0; i < text.size(); ++i) {
    if (inside && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      inside = !inside;
    } else if (!inside && (text[i] == 'N' || text[i] == 'I' || text[i] == '-')) {
      for (const auto& [word, value] : kWords) {
        if (!text.substr(i).starts_with(word)) continue;
        if (text_.empty()) text_ = text;
        i += word.size() - 1;
        text_[i + 1 - word.size()] = text_[i] = '"';
        at_end_.emplace(i + 1, value);
        break;
      }
    }
  }
}

// Walks over the text for the parser, and tells how far it has come.
class Cursor {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Members of the outermost object that hold a number which is none.
struct Aside {
  size_t member;
  std::string problem;
  size_t wrong_at;
  // Of the text from behind its key to its end.
  size_t begin;
  size_t end;
};
using SetAside = std::vector<Aside>;

// Builds the document while checking depth, duplicate keys and numbers; stops at the first fault.
class Builder : public nlohmann::json_sax<Json> {
 public:
  // `reached` moves while the text from `begin` on is parsed. `apart`: where members that hold a
  // number which is none go; null: there are none such.
  Builder(int max_depth, JsonNumbers numbers, const NotFinite* not_finite, const char* begin,
          const char* const& reached, SetAside* apart)
      : max_depth_(max_depth),
        numbers_(numbers),
        not_finite_(not_finite),
        begin_(begin),
        reached_(reached),
        apart_(apart) {}

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    // An integer that fits no 64-bit type arrives as a double.
    const bool integer = text.find_first_of(".eE") == string_t::npos;
    const bool taken = !integer || numbers_ == JsonNumbers::kPython;
    if (taken && std::isfinite(value)) return Put(value);
    Fail((integer ? "integer out of range: " : "number out of range: ") + Printable(text, 40));
    // The parser sees that a number has ended by what comes after it, if anything does.
    if (std::isdigit(static_cast<unsigned char>(begin_[wrong_at])) == 0) --wrong_at;
    return SetApart();
  }
  bool string(string_t& value) override {
    if (const double* number = NotFiniteHere()) {
      if (apart_ == nullptr) return Put(*number);
      Fail("no number of JSON: " + fmt::format("{}", *number));
      return SetApart();
    }
    return Put(std::move(value));
  }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (NotFiniteHere() != nullptr) return Fail("a number in the place of a key");
    if (!open_.back().keys.insert(name).second)
      return Fail(fmt::format("duplicate key \"{}\"", Printable(name)));
    open_.back().key = std::move(name);
    if (open_.size() == 1) member_begin_ = static_cast<size_t>(reached_ - begin_);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ..."; the place is ours.
    std::string_view text = error.what();
    if (const auto end = text.find("] "); end != std::string_view::npos)
      text.remove_prefix(end + 2);
    if (text.starts_with("parse error at ")) text.remove_prefix(text.find(": ") + 2);
    Fail(Printable(text));
    wrong_at = position - 1;  // counts characters from 1, and the end of the text as one
    return false;
  }

  Json document;
  std::string problem;
  size_t wrong_at = 0;  // where the last character of what is wrong stands

 private:
  // An array or object that has not ended yet.
  struct Container {
    Json* json;
    std::set<std::string> keys;
    std::string key;  // of the value that comes next
  };

  const double* NotFiniteHere() const {
    return not_finite_ == nullptr ? nullptr
                                  : not_finite_->EndingAt(static_cast<size_t>(reached_ - begin_));
  }
  bool Fail(std::string text) {
    problem = std::move(text);
    wrong_at = static_cast<size_t>(reached_ - begin_) - 1;
    return false;
  }
  // After Fail(): the fault is the member's of the outermost object, if there is one.
  bool SetApart() {
    if (apart_ == nullptr || open_.empty() || !document.is_object()) return false;
    Put(nullptr);
    const size_t member = document.size() - 1;
    std::string why = std::exchange(problem, {});
    const size_t at = std::exchange(wrong_at, 0);
    // The first fault of a member says enough. One that is no list or object ends with it.
    if (apart_->empty() || apart_->back().member != member)
      apart_->push_back({member, std::move(why), at, member_begin_, at + 1});
    return true;
  }
  // Returns where the value stands. It stays there until its container grows, so until it is
  // closed.
  Json* Insert(Json value) {
    if (open_.empty()) {
      document = std::move(value);
      return &document;
    }
    Container& in = open_.back();
    if (in.json->is_array()) {
      in.json->push_back(std::move(value));
      return &in.json->back();
    }
    // Not operator[], which looks through all keys; that this one is new is known.
    auto& object = in.json->get_ref<Json::object_t&>();
    object.emplace_back(std::move(in.key), std::move(value));
    return &object.back().second;
  }
  bool Put(Json value) {
    Insert(std::move(value));
    return true;
  }
  bool Open(Json container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return Fail(fmt::format("nested deeper than {} levels", max_depth_));
    }
    Json* const place = Insert(std::move(container));
    open_.push_back({place, {}, {}});
    return true;
  }
  bool Close() {
    open_.pop_back();
    if (open_.size() == 1 && apart_ != nullptr && !apart_->empty() &&
        apart_->back().member == document.size() - 1)
      apart_->back().end = static_cast<size_t>(reached_ - begin_);
    return true;
  }

  int max_depth_;
  JsonNumbers numbers_;
  const NotFinite* not_finite_;  // null: there are none
  const char* begin_;
  const char* const& reached_;
  SetAside* const apart_;
  std::vector<Container> open_;
  size_t member_begin_ = 0;  // of the outermost object's last member, behind the key
};

// "line 2, column 7"; columns count characters of UTF-8, not bytes.
std::string Place(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, std::min(at, text.size()));
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto characters = std::count_if(before.begin() + static_cast<std::ptrdiff_t>(start),
                                        before.end(), [](char c) { return (c & 0xc0) != 0x80; });
  return fmt::format("line {}, column {}", lines + 1, characters + 1);
}

Result<Json> Build(std::string_view text, std::string_view where, const JsonLimits& limits,
                   JsonNumbers numbers, bool sets_apart) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {} bytes of JSON, at most {} are read",
                                                        where, text.size(), limits.max_bytes));
  }
  const auto fail = [&](size_t at, std::string_view problem) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {}: {}", where, Place(text, at), problem));
  };
  // The parser would take it for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return fail(zero, "a zero byte");
  }
  std::optional<NotFinite> not_finite;
  if (numbers == JsonNumbers::kPython || sets_apart) not_finite.emplace(text);
  const bool has_some = not_finite && !not_finite->empty();
  const std::string_view given = text;
  if (has_some) text = not_finite->text();
  const char* const begin = text.data();
  const char* reached = begin;
  SetAside apart;
  Builder builder(limits.max_depth, numbers, has_some ? &*not_finite : nullptr, begin, reached,
                  sets_apart ? &apart : nullptr);
  if (!Json::sax_parse(Cursor(begin, &reached), Cursor(begin + text.size(), &reached), &builder)) {
    return fail(builder.wrong_at, builder.problem);
  }
  auto* const members = apart.empty() ? nullptr : &builder.document.get_ref<Json::object_t&>();
  for (const Aside& one : apart) {
    std::string kept = fail(one.wrong_at, one.problem).message();
    kept += '\0';  // there is none in any text that was parsed
    const std::string_view member = given.substr(one.begin, one.end - one.begin);
    kept += Trim(member.substr(member.find(':') + 1));
    (members->begin() + static_cast<std::ptrdiff_t>(one.member))->second =
        Json::binary({kept.begin(), kept.end()});
  }
  return std::move(builder.document);
}

// Whether Json::dump writes it as it is.
bool IsStandard(const Json& value) {
  if (value.is_structured()) return std::all_of(value.begin(), value.end(), IsStandard);
  return !value.is_binary() && (!value.is_number_float() || std::isfinite(value.get<double>()));
}

void AppendRow(const Json& value, std::string* text) {
  if (IsStandard(value)) {
    *text += value.dump(-1, ' ', false, Json::error_handler_t::replace);
  } else if (value.is_binary()) {
    const Json::binary_t& kept = value.get_binary();
    text->append(std::ranges::find(kept, 0) + 1, kept.end());
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    *text += std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  } else {
    const bool object = value.is_object();
    *text += object ? '{' : '[';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!std::exchange(first, false)) *text += ',';
      if (object) *text += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ":";
      AppendRow(member, text);
    }
    *text += object ? '}' : ']';
  }
}

}  // namespace

Result<Json> BuildJson(std::string_view text, std::string_view where, const JsonLimits& limits,
                       JsonNumbers numbers) {
  return Build(text, where, limits, numbers, false);
}

Result<Json> ParseRow(std::string_view text, std::string_view where) {
  Result<Json> row = ParseJson(text, where);
  if (row.ok()) return row;
  return Build(text, where, {}, JsonNumbers::kStandard, true);
}

std::string WhySetApart(const Json& member) {
  if (!member.is_binary()) return {};
  const Json::binary_t& kept = member.get_binary();
  return {kept.begin(), std::ranges::find(kept, 0)};
}

std::string DumpRow(const Json& row) {
  std::string text;
  AppendRow(row, &text);
  return text;
}

}  // namespace keel
