// What is written comes back in its order; what was not written is never taken.
#include "common/wire.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

using namespace std::string_literals;

struct Pair {
  int32_t first = 0, second = 0;
  bool operator==(const Pair&) const = default;
};

const std::vector<Pair> kPairs = {{7, -1}, {INT32_MAX, INT32_MIN}};

TEST(WireTest, TheBytesAreThese) {
  const auto bytes = [](const auto& write) {
    WireWriter out;
    write(out);
    return std::move(out).Take();
  };
  EXPECT_EQ(bytes([](WireWriter& out) { out.U32(0x01020304).Pod(uint8_t{5}).Pod(int16_t{-2}); }),
            "\4\3\2\1\5\xfe\xff"s);
  EXPECT_EQ(bytes([](WireWriter& out) { out.U64(258).I64(-2); }),
            "\2\1\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff"s);
  EXPECT_EQ(bytes([](WireWriter& out) { out.Text("a\0b"s).Raw("c"); }), "\3\0\0\0\0\0\0\0a\0bc"s);
  EXPECT_EQ(bytes([](WireWriter& out) { out.Text<uint32_t>("ab").Count<uint8_t>(255); }),
            "\2\0\0\0ab\xff"s);
  EXPECT_EQ(bytes([](WireWriter& out) {
              out.Texts({"a", ""});
            }),
            "\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0a\0\0\0\0\0\0\0\0"s);
  const std::vector<int16_t> list = {1, 2};
  EXPECT_EQ(bytes([&](WireWriter& out) { out.Pods(list).Pods(std::vector<float>()); }),
            "\1\0\2\0"s);
  EXPECT_EQ(bytes([&](WireWriter& out) { out.List(list); }), "\4\0\0\0\0\0\0\0\1\0\2\0"s);
}

TEST(WireTest, ASizeThatItsNumberDoesNotHoldIsNotWritten) {
  WireWriter out;
  EXPECT_THROW(out.Count<uint8_t>(256), Error);
  EXPECT_THROW(out.Text<uint8_t>(std::string(256, 'x')), Error);
  EXPECT_THROW(out.Count<int64_t>(SIZE_MAX), Error);
  EXPECT_EQ(out.bytes(), "");
  out.Text<uint8_t>(std::string(255, 'x'));
  std::string text;
  EXPECT_TRUE(WireReader(out.bytes()).Text<uint8_t>(&text));
  EXPECT_EQ(text.size(), 255u);
}

// Every call, with bytes that are all that it takes: it takes them, and none of them where one is
// missing.
TEST(WireTest, ACallTakesAllThatItNeedsOrNothing) {
  const auto check = [](const std::string& bytes, const auto& before, const auto& after,
                        const auto& take) {
    for (size_t size = 0; size <= bytes.size(); ++size) {
      const std::string torn = bytes.substr(0, size);
      WireReader in(torn);
      auto value = before;
      const bool whole = size == bytes.size();
      EXPECT_EQ(take(in, value), whole) << size;
      EXPECT_EQ(value, whole ? after : before) << size;
      EXPECT_EQ(in.remaining(), whole ? 0 : size);
      EXPECT_EQ(in.AtEnd(), whole || size == 0);
    }
  };
  const auto pod = [](WireReader& in, auto& value) { return in.Pod(&value); };
  check(WireWriter().U32(7).bytes(), 1u, 7u, pod);
  check(WireWriter().Pod(2.5).bytes(), 1.0, 2.5, pod);
  check(WireWriter().Pod(kPairs[0]).bytes(), Pair{}, kPairs[0], pod);
  check(WireWriter().U64(7).bytes(), uint64_t{1}, uint64_t{7},
        [](WireReader& in, uint64_t& value) { return in.U64(&value); });
  check(WireWriter().I64(-7).bytes(), int64_t{1}, int64_t{-7},
        [](WireReader& in, int64_t& value) { return in.I64(&value); });
  check(WireWriter().U32(7).bytes(), 1u, 7u,
        [](WireReader& in, uint32_t& value) { return in.U32(&value); });
  const std::string was = "before", text = "a\0\xff"s;
  check(WireWriter().Text(text).bytes(), was, text,
        [](WireReader& in, std::string& value) { return in.Text(&value); });
  check(WireWriter().Text<uint32_t>(text).bytes(), was, text,
        [](WireReader& in, std::string& value) { return in.Text<uint32_t>(&value); });
  check(WireWriter().Text(text).bytes(), std::string_view(was), std::string_view(text),
        [](WireReader& in, std::string_view& value) { return in.View(&value); });
  check(text, std::string_view(was), std::string_view(text),
        [](WireReader& in, std::string_view& value) { return in.Raw(3, &value); });
  const std::vector<Pair> others(2);
  check(WireWriter().Pods(kPairs).bytes(), others, kPairs,
        [](WireReader& in, std::vector<Pair>& value) { return in.Pods(2, &value); });
  check(WireWriter().Pods(kPairs).bytes(), others, kPairs,
        [](WireReader& in, std::vector<Pair>& value) { return in.Pods(std::span(value)); });
  check(WireWriter().List(kPairs).bytes(), others, kPairs,
        [](WireReader& in, std::vector<Pair>& value) { return in.List(&value); });
  check(WireWriter().List(std::vector<Pair>()).bytes(), others, std::vector<Pair>(),
        [](WireReader& in, std::vector<Pair>& value) { return in.List(&value); });
}

TEST(WireTest, SizesThatCannotBeAreRefused) {
  for (const uint64_t size : {uint64_t{2}, uint64_t{1} << 62, UINT64_MAX / 4 + 2, UINT64_MAX}) {
    const std::string bytes = WireWriter().U64(size).U32(0).bytes();
    std::vector<int32_t> list = {1};
    std::string text = "before";
    std::string_view view = text;
    EXPECT_FALSE(WireReader(bytes).List(&list)) << size;
    EXPECT_EQ(WireReader(bytes).Text(&text), size == 2) << size;
    EXPECT_EQ(WireReader(bytes).View(&view), size == 2) << size;
    EXPECT_EQ(WireReader("abcd").Raw(size, &view), size == 2) << size;
    EXPECT_FALSE(WireReader("abcd").Pods(size, &list)) << size;
    EXPECT_EQ(list, std::vector<int32_t>{1});
  }
}

TEST(WireTest, OneAfterTheOtherFromBytesOfEitherKind) {
  WireWriter out;
  out.Reserve(64);
  out.Raw("gone").Clear();
  out.Pod(uint8_t{3}).Text("one").List(kPairs).I64(-1);
  const std::string bytes = std::move(out).Take();
  for (WireReader in : {WireReader(bytes), WireReader(std::as_bytes(std::span(bytes)))}) {
    uint8_t version = 0;
    std::string text;
    std::vector<Pair> pairs;
    int64_t number = 0;
    EXPECT_TRUE(in.Pod(&version) && in.Text(&text) && in.List(&pairs));
    EXPECT_EQ(in.remaining(), 8u);
    EXPECT_TRUE(in.I64(&number));
    EXPECT_TRUE(in.AtEnd());
    EXPECT_EQ(version, 3);
    EXPECT_EQ(text, "one");
    EXPECT_EQ(pairs, kPairs);
    EXPECT_EQ(number, -1);
    EXPECT_FALSE(in.Pod(&version));
  }
}

}  // namespace
}  // namespace keel
