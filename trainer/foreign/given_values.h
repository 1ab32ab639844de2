// GivenValues: what another trainer's file or command line says, key by key, and what its
// interpolations stand for.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/options/yaml_tree.h"
#include "common/status.h"
#include "trainer/foreign/key_table.h"

namespace keel::trainer::foreign {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

struct Given {
  std::string key;
  Json value;                          // as written: a string may hold ${...}
  std::vector<std::string> not_known;  // of the text itself, as in ShellWord
};

class GivenValues {
 public:
  GivenValues(const KeyTable& table, Environment environment);

  // The leaves of a YAML file. kConfig: what is wrong with it, or that it is no map.
  Status AddFile(const options::Source& source);
  // A later value of a key takes the place of an earlier.
  void Add(Given given);
  // The same of an argument of a command line, which may be a map: its leaves, as a file's. Others
  // of the section that were given before stay.
  void AddLeaves(Given given);
  void Remove(const std::string& key);

  // In the order in which they were given.
  const std::vector<Given>& all() const { return all_; }
  bool Has(const std::string& key) const { return at_.contains(key); }

  // The value of a key, with all interpolations resolved: what was given, else the table's preset;
  // nothing where there is neither. kConfig names what cannot be resolved.
  Result<std::optional<Json>> Value(const std::string& key) const;
  // A text or value that stands at `key`, likewise.
  Result<Json> Resolve(const std::string& key, const Json& value) const;

  // Variables of the environment that were asked for, and found.
  const std::set<std::string>& from_environment() const { return from_environment_; }

 private:
  Result<Json> ResolveAt(const std::string& key, const Json& value, int depth) const;
  Result<std::optional<Json>> ValueAt(const std::string& key, int depth) const;
  Result<Json> Interpolate(const std::string& key, const std::string& inside, int depth) const;

  const KeyTable& table_;
  Environment environment_;
  std::vector<Given> all_;
  std::map<std::string, size_t> at_;
  mutable std::set<std::string> from_environment_;
};

// The value of a YAML text, typed by its looks; of `True`, `None` and, in a file, `yes` what Python
// takes them for.
Result<Json> ValueOfText(const std::string& text, bool yaml_words);
// A value as it reads in a message.
std::string Shown(const Json& value);

}  // namespace keel::trainer::foreign
