// KeyTable: what becomes of each of another trainer's keys here: one row for a key, or for all that
// look alike.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/enum_names.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::trainer::foreign {

enum class Answer {
  kTaken,         // the same key here
  kRenamed,       // another key here
  kNotNeeded,     // there is nothing to say here
  kNotSupported,  // Keel cannot do what it asks for
};
constexpr auto NamesOf(Answer) {
  using enum Answer;
  return EnumNames<Answer>({{kTaken, "taken"},
                            {kRenamed, "renamed"},
                            {kNotNeeded, "not needed here"},
                            {kNotSupported, "not supported"}});
}

// From the value there to the value here; a discarded Json says nothing, so that Keel's default
// holds. kConfig says why there is none.
using Conversion = Result<Json> (*)(const Json& value);

struct Row {
  // A dotted path. {a,b}: either; *: part of a name; ** at the end: the path before it and all
  // below; ** at the start: any path or none before it.
  std::string_view keys;
  Answer answer = Answer::kTaken;
  // The value there when nothing is said, as YAML; "" where it does not matter. Of what is not
  // supported: the values that ask for nothing, between |; "=a.b" is the value of the key a.b.
  std::string_view preset;
  std::string_view target;  // kRenamed: the key here
  Conversion convert = nullptr;
  std::string_view why;  // kNotNeeded: why not; kNotSupported: what instead
};

constexpr Row Taken(std::string_view keys, std::string_view preset, Conversion convert = nullptr) {
  return {keys, Answer::kTaken, preset, "", convert, ""};
}
constexpr Row Renamed(std::string_view keys, std::string_view preset, std::string_view target,
                      Conversion convert = nullptr) {
  return {keys, Answer::kRenamed, preset, target, convert, ""};
}
constexpr Row NotNeeded(std::string_view keys, std::string_view why, std::string_view preset = "") {
  return {keys, Answer::kNotNeeded, preset, "", nullptr, why};
}
constexpr Row NotSupported(std::string_view keys, std::string_view asks_nothing,
                           std::string_view instead) {
  return {keys, Answer::kNotSupported, asks_nothing, "", nullptr, instead};
}

class KeyTable {
 public:
  // The rows must outlive it.
  explicit KeyTable(std::span<const Row> rows);

  struct Found {
    const Row* row = nullptr;  // null: the table does not know the key
    std::string path;          // the row's key, of a row for one key
    std::string rest;          // what stands below it: "a.b" of a key within a free map
  };
  // The row that says most of the key literally.
  Found Find(std::string_view key) const;
  // Whether the path is a key by itself, whose value may be a map.
  bool IsKey(std::string_view path) const;
  // How many rows say as much of the key as the one that is found: a table answers each key once.
  int Answers(std::string_view key) const;

  // The rows of one key each, by key.
  const std::map<std::string, const Row*, std::less<>>& keys() const { return exact_; }
  std::span<const Row> rows() const { return rows_; }

 private:
  struct Pattern {
    std::string text;
    size_t literal;  // characters
    const Row* row;
  };
  std::span<const Row> rows_;
  std::map<std::string, const Row*, std::less<>> exact_;
  std::map<std::string, int, std::less<>> times_;
  std::vector<Pattern> patterns_;
};

}  // namespace keel::trainer::foreign
