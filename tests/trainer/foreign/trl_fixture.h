// What import-trl makes of a text.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/foreign/foreign_fixture.h"
#include "trainer/foreign/trl_import.h"

namespace keel::trainer::foreign {

inline Result<Imported> ImportTrl(const std::string& name, const std::string& text,
                                  std::optional<TrlMethod> method = std::nullopt, int64_t world = 1,
                                  std::vector<std::string> arguments = {}) {
  Config config;
  ImportRequest request = RequestFor(name, text);
  request.world = world;
  request.arguments = std::move(arguments);
  return ImportTrl(request, method, MakeSchema(config));
}
// The configuration that it is; a problem fails the test that asks.
inline Config Loaded(const Imported& made, int world = 1) {
  const LoadedText loaded = Load(made.yaml);
  EXPECT_EQ(loaded.problem, "") << made.yaml;
  EXPECT_THAT(ValidateConfig(loaded.config, world), ::testing::IsEmpty()) << made.yaml;
  return loaded.config;
}

}  // namespace keel::trainer::foreign
