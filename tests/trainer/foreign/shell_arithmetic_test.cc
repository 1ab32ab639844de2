#include "trainer/foreign/shell_arithmetic.h"

#include <gtest/gtest.h>

#include <string>

namespace keel::trainer::foreign {
namespace {

std::optional<int64_t> Value(std::string_view text) {
  return ShellArithmetic(text, [](const std::string& name) -> std::optional<int64_t> {
    if (name == "GPUS") return 8;
    if (name == "_n2") return -3;
    return std::nullopt;
  });
}

TEST(ShellArithmeticTest, ProductsBeforeSumsAndBracketsBeforeBoth) {
  EXPECT_EQ(Value("2 + 3 * 4"), 14);
  EXPECT_EQ(Value("(2 + 3) * 4"), 20);
  EXPECT_EQ(Value("20 - 6 - 4"), 10) << "from left to right";
  EXPECT_EQ(Value("100 / 7 % 5"), 4);
  EXPECT_EQ(Value("-(2 - 5)"), 3);
  EXPECT_EQ(Value("-7 / 2"), -3) << "towards zero, as a shell has it";
  EXPECT_EQ(Value(" \t12 "), 12);
}

TEST(ShellArithmeticTest, NamesHaveTheirNumbers) {
  EXPECT_EQ(Value("GPUS * 2 + _n2"), 13);
  EXPECT_EQ(Value("GPUS * NODES"), std::nullopt);
}

TEST(ShellArithmeticTest, WhatHasNoNumberHasNone) {
  for (const char* const text : {"", "1 +", "* 2", "(1", "1)", "1 2", "1 << 2", "1 / 0", "5 % 0",
                                 "GPUS / -1", "0x10", "1.5", "a b"})
    EXPECT_EQ(Value(text), std::nullopt) << text;
  EXPECT_EQ(Value("999999999999999 * 999999999999999"), std::nullopt) << "it does not fit";
  EXPECT_EQ(Value(std::string(10'000, '(') + "1" + std::string(10'000, ')')), std::nullopt);
}

}  // namespace
}  // namespace keel::trainer::foreign
