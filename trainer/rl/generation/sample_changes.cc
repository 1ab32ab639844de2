#include "trainer/rl/generation/sample_changes.h"

#include <algorithm>
#include <set>

#include "trainer/config/config.h"

namespace keel::trainer::rl {

Result<std::vector<std::string>> SampleChanges(const std::map<std::string, std::string>& documents,
                                               const std::string& resolved,
                                               const ReadContents& contents) {
  std::vector<std::string> changed;
  if (const auto config = documents.find("config.yaml"); config != documents.end()) {
    const auto changes = ConfigChanges(config->second, resolved);
    if (!changes.ok()) return std::vector<std::string>{"config.yaml, which cannot be read"};
    const std::set<std::string> keys = SampleKeys();
    const auto of_samples = [&](const std::string& path) {
      // The entries of a map have paths of their own.
      return std::ranges::any_of(
          keys, [&](const std::string& key) { return path == key || path.starts_with(key + "."); });
    };
    for (const options::ValueChange& change : *changes) {
      if (of_samples(change.path)) changed.push_back(change.path);
    }
  }
  if (const auto state = documents.find("data_state.json"); state != documents.end()) {
    KEEL_ASSIGN_OR_RETURN(const ReadContents before, ContentsOf(state->second));
    if (before.empty()) return changed;
    for (const auto& [what, content] : contents) {
      const auto saved = before.find(what);
      if (saved == before.end() || saved->second != content) changed.push_back(what);
    }
  }
  return changed;
}

}  // namespace keel::trainer::rl
