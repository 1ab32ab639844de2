// ConfigReader: the keys of a config.json, read with their types and bounds. Torch-free.
//
// Collects every problem instead of stopping at the first, and remembers which keys were asked for:
// a key that changes what a model computes, and that nobody asked for, is a problem too.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace keel::model {

// Far above any model that there is, and far below where sizes overflow.
inline constexpr int64_t kMostLayers = 10'000;
inline constexpr int64_t kMostHeads = 1 << 16;
inline constexpr int64_t kMostHidden = 1 << 20;
inline constexpr int64_t kMostIntermediate = 1 << 23;
inline constexpr int64_t kMostExperts = 1 << 13;
inline constexpr int64_t kMostExpertsOfAll = 1 << 16;  // of all layers: each has names and shapes
inline constexpr int64_t kMostVocabulary = 1 << 26;
inline constexpr int64_t kMostPositions = int64_t{1} << 40;
inline constexpr int64_t kMostParameters = int64_t{1} << 50;

// A key as some family's files have it, and as most do.
struct KeyName {
  std::string_view file;
  std::string_view usual;
};

class ConfigReader {
 public:
  // Both outlive the reader. `where` stands first in messages.
  ConfigReader(const Json& json, std::string_view where) : json_(json), where_(where) {}

  // From here on a key that is asked for by its usual name is read, and named in messages, as the
  // file has it: under this name, or under the usual one. Under both a problem, unless they say the
  // same.
  void Rename(std::span<const KeyName> names);

  // What the file calls a key, or should.
  std::string_view InFile(std::string_view key) const;

  // Null when the key is missing, or null.
  const Json* Find(std::string_view key);
  int64_t Int(std::string_view key, std::optional<int64_t> fallback);
  // A number above `most` is refused before anything is counted out or allocated by it.
  int64_t Positive(std::string_view key, std::optional<int64_t> fallback, int64_t most);
  double Number(std::string_view key, double fallback);
  double Within(double least, double most, std::string_view key, double fallback);
  bool Bool(std::string_view key, bool fallback);
  std::string String(std::string_view key, std::string fallback);
  // A list of `count` numbers, each within the bounds.
  std::vector<double> Numbers(std::string_view key, size_t count, double least, double most);

  bool asked_for(std::string_view key) const { return asked_.contains(key); }
  const std::set<std::string, std::less<>>& asked() const { return asked_; }
  const Json& json() const { return json_; }

  void Wrong(std::string_view key, std::string_view expected, const Json& found);
  void Missing(std::string_view key, std::string_view expected);
  void Problem(std::string text) { problems_.push_back(std::move(text)); }
  Status status() const;

 private:
  const Json& json_;
  std::string_view where_;
  std::span<const KeyName> names_;
  std::set<std::string, std::less<>> asked_;
  std::vector<std::string> problems_;
};

// A JSON value as a message shows it.
std::string Shown(const Json& value);

}  // namespace keel::model
