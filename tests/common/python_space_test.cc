#include "common/python_space.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keel {
namespace {

// As [c for c in range(0x110000) if chr(c).isspace()] of Python 3.11.
const std::vector<char32_t> kSpaces = {
    0x9,    0xa,    0xb,    0xc,    0xd,    0x1c,   0x1d,   0x1e,   0x1f,   0x20,
    0x85,   0xa0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006,
    0x2007, 0x2008, 0x2009, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};

std::string Utf8(char32_t c) {
  const auto byte = [](char32_t value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 | c >> 6), byte(0x80 | (c & 0x3f))};
  const char second = byte(0x80 | ((c >> 6) & 0x3f)), last = byte(0x80 | (c & 0x3f));
  if (c < 0x10000) return {byte(0xe0 | c >> 12), second, last};
  return {byte(0xf0 | c >> 18), byte(0x80 | ((c >> 12) & 0x3f)), second, last};
}

TEST(PythonSpace, OfEveryCharacterAndAtTheEndsOfATextTheSame) {
  std::vector<char32_t> spaces;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (IsPythonSpace(c)) spaces.push_back(c);
    const std::string text = Utf8(c);
    const size_t size = IsPythonSpace(c) ? text.size() : 0;
    ASSERT_EQ(PythonSpaceAtBegin(text + "a "), size) << static_cast<uint32_t>(c);
    ASSERT_EQ(PythonSpaceAtEnd(" a" + text), size) << static_cast<uint32_t>(c);
  }
  EXPECT_EQ(spaces, kSpaces);
}

TEST(PythonSpace, WhatIsNotUtf8IsNone) {
  // Nothing, parts of characters, and spaces in more bytes than they have.
  for (const char* const text : {"", "\xc2", "\xe3\x80", "\x80", "\x85", "\xa0", "\xc0\xa0",
                                 "\xe0\x82\xa0", "\xc2 ", "\xff", "\xe2\x80\xc2"})
    EXPECT_EQ(PythonSpaceAtBegin(text), 0U) << text;
  for (const char* const text :
       {"", "\xc2", "\xe3\x80", "\x80", "\x85", "a\xa0", "\xc0\xa0", "\xe0\x82\xa0", "\xff"})
    EXPECT_EQ(PythonSpaceAtEnd(text), 0U) << text;
  EXPECT_EQ(PythonSpaceAtEnd("\xe1\xc2\x85"), 2U);
}

}  // namespace
}  // namespace keel
