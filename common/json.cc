#include "common/json.h"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <vector>

namespace keel {

namespace {

// Builds the document while checking depth, duplicate keys and numbers; stops at the first fault.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) return Fail("number out of range: " + text);
    // An integer that fits no 64-bit type arrives as a double.
    if (text.find_first_of(".eE") == string_t::npos) return Fail("integer out of range: " + text);
    return Put(value);
  }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return Fail("binary value"); }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) return Fail("duplicate key \"" + name + "\"");
    key_.back() = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: …" without the tag.
    std::string text = error.what();
    if (const auto end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
    return Fail(text + fmt::format(" (byte {})", position));
  }

  Json document;
  std::string problem;

 private:
  bool Fail(std::string text) {
    problem = std::move(text);
    return false;
  }
  bool Put(Json value) {
    if (stack_.empty()) {
      document = std::move(value);
    } else if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
    } else {
      (*stack_.back())[key_.back()] = std::move(value);
    }
    return true;
  }
  bool Open(Json container) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      return Fail(fmt::format("nested deeper than {} levels", max_depth_));
    }
    Json* place = nullptr;
    if (stack_.empty()) {
      document = std::move(container);
      place = &document;
    } else if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(container));
      place = &stack_.back()->back();
    } else {
      place = &((*stack_.back())[key_.back()] = std::move(container));
    }
    stack_.push_back(place);
    keys_.emplace_back();
    key_.emplace_back();
    return true;
  }
  bool Close() {
    stack_.pop_back();
    keys_.pop_back();
    key_.pop_back();
    return true;
  }

  int max_depth_;
  std::vector<Json*> stack_;
  std::vector<std::set<std::string>> keys_;
  std::vector<std::string> key_;
};

Status Wrong(std::string_view where, std::string_view key, std::string_view expected,
             const Json* found) {
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}: expected {}, found {}", where, key, expected,
                            found == nullptr ? "nothing" : found->dump()));
}

const Json* Find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {} bytes of JSON, at most {} are read",
                                                        where, text.size(), limits.max_bytes));
  }
  Builder builder(limits.max_depth);
  if (!Json::sax_parse(text, &builder)) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, builder.problem));
  }
  return std::move(builder.document);
}

Result<int64_t> GetInt(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = Find(object, key);
  const bool fits = value != nullptr && value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits) return Wrong(where, key, "an integer", value);
  return value->get<int64_t>();
}

Result<double> GetDouble(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = Find(object, key);
  if (value == nullptr || !value->is_number()) return Wrong(where, key, "a number", value);
  return value->get<double>();
}

Result<std::string> GetString(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = Find(object, key);
  if (value == nullptr || !value->is_string()) return Wrong(where, key, "a string", value);
  return value->get<std::string>();
}

Result<bool> GetBool(const Json& object, std::string_view key, std::string_view where) {
  const Json* value = Find(object, key);
  if (value == nullptr || !value->is_boolean()) return Wrong(where, key, "true or false", value);
  return value->get<bool>();
}

}  // namespace keel
