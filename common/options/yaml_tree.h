// A YAML document as a small tree with positions, under Keel's rules: UTF-8, no anchors, aliases,
// tags or merge keys, no duplicate keys, bounded size and depth. yaml-cpp stays behind this header.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace keel::options {

struct Position {
  int line = 0;    // from 1; 0 when the text is no file
  int column = 0;  // from 1
};

// Where a text came from, for messages with the line and a caret.
struct Source {
  std::string name;  // "run.yaml", or "command line"
  std::string text;
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  std::string text;     // of a scalar
  bool quoted = false;  // then it is a string, whatever it looks like
  Position position;
  struct Entry;
  std::vector<YamlNode> items;          // of a sequence
  std::vector<Entry> entries;           // of a map, in file order
  std::vector<Position> key_positions;  // of the entries

  const YamlNode* Find(std::string_view key) const;
};

// No pair: of a type that is not complete clang 14 takes none.
struct YamlNode::Entry {
  std::string key;
  YamlNode value;
};

struct Problem {
  Position position;
  std::string text;    // "trainer.seed: expected an integer, got \"x\""
  std::string advice;  // "did you mean ...?", may be empty
};

// Appends what is wrong to `problems`. The tree holds what could be read: nothing when the text is
// no YAML or passes a bound.
YamlNode ParseYaml(const Source& source, std::vector<Problem>& problems);

// "run.yaml:3:5: error: ..." with the source line and a caret.
std::string Render(const Source& source, const Problem& problem);

}  // namespace keel::options
