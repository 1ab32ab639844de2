// GgufKeys: the settings of one architecture, by their names without its own.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"
#include "model/gguf/gguf_file.h"

namespace keel::model {

// The keys of one architecture; what nobody has asked for in the end is not understood.
class GgufKeys {
 public:
  GgufKeys(const GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(fmt::format("{}.", architecture)) {}

  std::string Name(std::string_view key) const { return prefix_ + std::string(key); }
  bool Has(std::string_view key) const { return metadata_.Find(Name(key)) != nullptr; }
  Result<int64_t> Int(std::string_view key, std::optional<int64_t> fallback = {}) {
    return metadata_.Int(Ask(key), fallback);
  }
  Result<double> Double(std::string_view key, std::optional<double> fallback = {}) {
    return metadata_.Double(Ask(key), fallback);
  }
  Result<bool> Bool(std::string_view key, bool fallback) {
    return metadata_.Bool(Ask(key), fallback);
  }
  Result<std::string> String(std::string_view key, std::string fallback) {
    return metadata_.String(Ask(key), std::move(fallback));
  }
  // One number, or an array that has the same for every layer.
  Result<int64_t> SameInAllLayers(std::string_view key, std::optional<int64_t> fallback = {}) {
    const GgufValue* value = metadata_.Find(Name(key));
    if (value == nullptr || !value->is_array) return Int(key, fallback);
    KEEL_ASSIGN_OR_RETURN(const GgufValue* const numbers, metadata_.Integers(Ask(key)));
    for (int64_t i = 0; i < numbers->count; ++i) {
      if (numbers->Integer(i) == numbers->Integer(0)) continue;
      return Wrong(key, "differs from layer to layer, which Keel does not support");
    }
    if (numbers->count == 0 || !numbers->Integer(0)) return Wrong(key, "expected an integer");
    return *numbers->Integer(0);
  }
  // Only this value leaves the model as Keel computes it.
  Status Expect(std::string_view key, int64_t expected) {
    KEEL_ASSIGN_OR_RETURN(const int64_t found, Int(key, expected));
    if (found == expected) return Status::Ok();
    return Wrong(key, fmt::format("{} is not supported, expected {}", found, expected));
  }
  // Null when there is none.
  const GgufValue* Find(std::string_view key) { return metadata_.Find(Ask(key)); }
  Status Wrong(std::string_view key, std::string_view problem) const {
    return metadata_.Wrong(Name(key), problem);
  }
  const std::string& where() const { return metadata_.where(); }
  Status CheckAllRead() const {
    for (const std::string& key : metadata_.keys()) {
      if (!key.starts_with(prefix_) || asked_.contains(key)) continue;
      return metadata_.Wrong(
          key, "is not understood: the model might be another one without it, so it is refused");
    }
    return Status::Ok();
  }

 private:
  std::string Ask(std::string_view key) { return *asked_.insert(Name(key)).first; }

  const GgufMetadata& metadata_;
  std::string prefix_;
  std::set<std::string> asked_;
};

}  // namespace keel::model
