// The values of a YAML document by dotted path, to compare what two ranks, or two starts of a run,
// were told.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/options/yaml_tree.h"
#include "common/status.h"

namespace keel::options {

// "actor_rollout_ref.actor.optim.lr" -> "0.001"; a list is its items in brackets, an empty map
// "{}", nothing "null".
using FlatValues = std::map<std::string, std::string>;

// kConfig with the first problem of a text that is no document.
Result<FlatValues> Flatten(const Source& source);

struct ValueChange {
  std::string path;
  std::optional<std::string> before, after;  // nothing where there is no such key
  friend bool operator==(const ValueChange&, const ValueChange&) = default;
};

// In the order of the paths. Numbers are compared as numbers: 1e-3 is 0.001.
std::vector<ValueChange> Changes(const FlatValues& before, const FlatValues& after);

}  // namespace keel::options
