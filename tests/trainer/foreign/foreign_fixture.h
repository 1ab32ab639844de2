// Imports of texts, for the tests of trainer/foreign.
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/foreign/foreign_import.h"

namespace keel::trainer::foreign {

inline ImportRequest RequestFor(const std::string& name, const std::string& text,
                                std::map<std::string, std::string> environment = {
                                    {"HOME", "/home/u"}}) {
  ImportRequest request;
  request.file = {name, text};
  request.environment = [environment = std::move(environment)](
                            const std::string& variable) -> std::optional<std::string> {
    const auto found = environment.find(variable);
    return found == environment.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  return request;
}

// The lines of a file beside the tests.
inline std::vector<std::string> RecordedLines(const std::string& name) {
  const char* root = std::getenv("KEEL_SOURCE_DIR");
  std::ifstream file(std::string(root != nullptr ? root : ".") + "/tests/trainer/foreign/" + name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// What the text loads as; a problem fails the test that asks.
struct LoadedText {
  Config config;
  std::string problem;
  std::string resolved;
};
inline LoadedText Load(const std::string& yaml) {
  LoadedText loaded;
  options::Schema schema = MakeSchema(loaded.config);
  loaded.problem = schema.Load({"imported.yaml", yaml}, {}).message();
  loaded.resolved = schema.Dump(false);
  return loaded;
}

}  // namespace keel::trainer::foreign
