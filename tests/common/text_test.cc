#include "common/text.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

namespace keel {
namespace {

// What is well-formed UTF-8, by the definition: what encoding each code point gives.
std::string Encode(uint32_t code) {
  std::string out;
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 63));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 63));
    put(0x80 | (code & 63));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 63));
    put(0x80 | (code >> 6 & 63));
    put(0x80 | (code & 63));
  }
  return out;
}

std::string Escaped(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
  }
  return out;
}

TEST(Printable, EverySingleByte) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    const bool plain = byte >= 0x20 && byte < 0x7f;
    EXPECT_EQ(Printable(text), plain ? text : Escaped(text)) << byte;
    EXPECT_EQ(Printable("a" + text + "b"), "a" + (plain ? text : Escaped(text)) + "b") << byte;
  }
}

TEST(Printable, EveryCodePoint) {
  for (uint32_t code = 0x80; code < 0x110000; ++code) {
    const std::string text = Encode(code);
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    const bool control = code < 0xa0;
    const bool layout = (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    ASSERT_EQ(FindNotUtf8(text), surrogate ? 0 : std::string_view::npos) << code;
    ASSERT_EQ(Printable(text), surrogate || control || layout ? Escaped(text) : text) << code;
  }
}

TEST(Printable, WhatIsNotUtf8) {
  for (const char* text :
       {"\x80", "\xbf\xbf", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xe0\x9f\xbf",
        "\xf0\x80\x80\xaf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff\xfe",
        "\xc3", "\xe2\x82", "\xf0\x9f\x98"}) {
    EXPECT_EQ(Printable(text), Escaped(text));
    EXPECT_EQ(FindNotUtf8(text), 0u);
    EXPECT_EQ(FindNotUtf8(std::string("a\xc3\xa9\n") + text), 4u);
  }
  EXPECT_EQ(FindNotUtf8(""), std::string_view::npos);
  EXPECT_EQ(FindNotUtf8(std::string("\0\x7f\xc2\x80", 4)), std::string_view::npos);
  EXPECT_EQ(Printable("\xe2\x82z"), "\\xe2\\x82z");       // one character cut short by another
  EXPECT_EQ(Printable("\xc3\xc3\xa9"), "\\xc3\xc3\xa9");  // the second one is whole
}

TEST(Printable, AnyBytesComeOutAsOneLineOfUtf8) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::string text(random() % 24, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const std::string out = Printable(text, 1000);
    EXPECT_EQ(Printable(out, 1000), out);  // nothing left to escape
    EXPECT_EQ(out.find_first_of("\n\r\t\x1b"), std::string::npos);
  }
}

TEST(Printable, CutsAtWholeCharacters) {
  EXPECT_EQ(Printable("abcdef", 6), "abcdef");
  EXPECT_EQ(Printable("abcdef", 5), "abcde...");
  EXPECT_EQ(Printable("abcdef", 0), "...");
  EXPECT_EQ(Printable("", 0), "");
  const std::string euro = Encode(0x20ac);
  EXPECT_EQ(Printable(euro + euro, 6), euro + euro);
  EXPECT_EQ(Printable(euro + euro, 5), euro + "...");
  EXPECT_EQ(Printable(euro + euro, 2), "...");
  EXPECT_EQ(Printable(std::string(1000, 'x')), std::string(200, 'x') + "...");
}

// By the definition: the cheapest way to edit the beginnings of both.
int SlowDistance(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return static_cast<int>(a.size() + b.size());
  const std::string a1 = a.substr(0, a.size() - 1), b1 = b.substr(0, b.size() - 1);
  int best = SlowDistance(a1, b1) + (a.back() == b.back() ? 0 : 1);
  best = std::min(best, SlowDistance(a1, b) + 1);
  best = std::min(best, SlowDistance(a, b1) + 1);
  if (a.size() > 1 && b.size() > 1 && a.back() == b1.back() && a1.back() == b.back()) {
    best = std::min(best, SlowDistance(a.substr(0, a.size() - 2), b.substr(0, b.size() - 2)) + 1);
  }
  return best;
}

TEST(EscapedHtml, NoTextLeavesItsPlace) {
  EXPECT_EQ(EscapedHtml("</pre><script a=\"b\" c='d'>&amp;"),
            "&lt;/pre&gt;&lt;script a=&#34;b&#34; c=&#39;d&#39;&gt;&amp;amp;");
  EXPECT_EQ(EscapedHtml("plain \u00e9"), "plain \u00e9");
}

TEST(PrintableLines, NoneButTheFirstBeginsALine) {
  EXPECT_EQ(PrintableLines(""), "");
  EXPECT_EQ(PrintableLines("one"), "one");
  EXPECT_EQ(PrintableLines("a\x1b[2J\n2026-11-21T07:00:00.123Z info  saved\n"),
            "a\\x1b[2J\n    2026-11-21T07:00:00.123Z info  saved\n    ");
  EXPECT_EQ(PrintableLines("a\r\nb"), "a\\x0d\n    b");
  EXPECT_EQ(PrintableLines(std::string(1000, 'x')), std::string(1000, 'x'));
}

TEST(EditDistance, AgreesWithTheDefinition) {
  std::mt19937_64 random(2);
  const auto word = [&] {
    std::string text(random() % 6, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::string a = word(), b = word();
    ASSERT_EQ(EditDistance(a, b), SlowDistance(a, b)) << a << " " << b;
  }
}

TEST(Closest, WithinTwoEditsOrOneOfAShortWord) {
  const std::vector<std::string> words = {"train", "bench", "generate", "ckpt"};
  EXPECT_EQ(Closest("tarin", words), "train");
  EXPECT_EQ(Closest("trian", words), "train");
  EXPECT_EQ(Closest("benhc", words), "bench");
  EXPECT_EQ(Closest("genrat", words), "generate");
  EXPECT_EQ(Closest("chpt", words), "ckpt");
  EXPECT_EQ(Closest("chkt", words), "");  // two edits of four letters
  EXPECT_EQ(Closest("serve", words), "");
  EXPECT_EQ(Closest("", words), "");
  EXPECT_EQ(Closest("train", {}), "");
  // A table of all edits would take 10^9 cells.
  EXPECT_EQ(Closest(std::string(100'000'000, 't'), words), "");
}

}  // namespace
}  // namespace keel
