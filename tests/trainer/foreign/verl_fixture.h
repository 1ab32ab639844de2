// What import-verl makes of a text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/foreign/foreign_fixture.h"
#include "trainer/foreign/verl_import.h"

namespace keel::trainer::foreign {

inline Result<Imported> ImportVerl(const std::string& name, const std::string& text,
                                   std::vector<std::string> arguments = {}) {
  Config config;
  ImportRequest request = RequestFor(name, text);
  request.arguments = std::move(arguments);
  return ImportVerl(request, MakeSchema(config));
}
inline Imported Made(const std::string& name, const std::string& text,
                     std::vector<std::string> arguments = {}) {
  const auto imported = ImportVerl(name, text, std::move(arguments));
  EXPECT_TRUE(imported.ok()) << imported.status().ToString();
  return imported.ok() ? imported.value() : Imported{};
}

}  // namespace keel::trainer::foreign
