#include "common/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace keel {
namespace {

std::string HexOf(std::string_view text) { return Hash128(std::as_bytes(std::span(text))).ToHex(); }

// Values of the reference implementation (xxhsum -H2).
TEST(Hash, IsXxh3) {
  EXPECT_EQ(HexOf(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(HexOf("keel"), "259674f4b115b30fd49bfd9b3fc0a7bb");
  EXPECT_EQ(HexOf(std::string(1'000'000, 'k')), "ab0915add7ece027432499db5490c486");
}

TEST(Hash, PiecesGiveTheSameAsTheWhole) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(300'000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  Hasher128 hasher;
  for (const size_t size : {0, 1, 17, 128, 240, 241, 1024, 4096, 65'536, 300'000}) {
    const auto whole = std::span(bytes).first(size);
    for (int round = 0; round < 3; ++round) {
      for (size_t at = 0; at < size;) {
        const size_t piece = std::min<size_t>(size - at, 1 + random() % 70'000);
        hasher.Update(whole.subspan(at, piece));
        at += piece;
      }
      EXPECT_EQ(hasher.Finish(), Hash128(whole)) << size;
    }
  }
}

TEST(Hash, HexAndBack) {
  const Digest128 digest{0x0123456789abcdef, 0xfedcba9876543210};
  EXPECT_EQ(digest.ToHex(), "fedcba98765432100123456789abcdef");
  EXPECT_EQ(ValueOrThrow(Digest128::FromHex(digest.ToHex())), digest);
  const std::string good = digest.ToHex();
  for (const std::string& bad :
       {std::string(), good.substr(1), good + "0", "g" + good.substr(1), "F" + good.substr(1),
        " " + good.substr(1), good.substr(1) + std::string(1, '\0')}) {
    EXPECT_EQ(Digest128::FromHex(bad).status().code(), StatusCode::kInvalidData) << bad;
  }
  EXPECT_EQ(Digest128::FromHex("12\nxy").status().message(),
            "a digest has 32 hexadecimal digits, in lower case; found \"12\\x0axy\"");
}

}  // namespace
}  // namespace keel
