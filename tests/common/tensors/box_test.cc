#include "common/tensors/box.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace keel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

using Random = std::mt19937_64;

int64_t Below(Random& random, int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
}

// Every element of the box, as its coordinates.
std::vector<std::vector<int64_t>> Elements(const Box& box) {
  std::vector<std::vector<int64_t>> all = {{}};
  for (int d = 0; d < box.dims(); ++d) {
    std::vector<std::vector<int64_t>> longer;
    for (const std::vector<int64_t>& element : all) {
      for (int64_t i = 0; i < box.size[d]; ++i) {
        longer.push_back(element);
        longer.back().push_back(box.offset[d] + i);
      }
    }
    all = std::move(longer);
  }
  return all;
}

Dims RandomShape(Random& random, int dims, int64_t limit) {
  Dims shape = Dims::Filled(dims, 0);
  for (int d = 0; d < dims; ++d) shape[d] = 1 + Below(random, limit);
  return shape;
}

// A box of the shape; empty now and then.
Box RandomBox(Random& random, const Dims& shape) {
  Box box = Box::Whole(shape);
  for (int d = 0; d < shape.size(); ++d) {
    box.offset[d] = Below(random, shape[d] + 1);
    box.size[d] = Below(random, shape[d] - box.offset[d] + 1);
  }
  return box;
}

// Boxes that cover the whole: it is cut in two, again and again, wherever chance says.
std::vector<Box> RandomCuts(Random& random, const Box& whole, int cuts) {
  std::vector<Box> boxes = {whole};
  for (int i = 0; i < cuts && whole.dims() > 0; ++i) {
    Box& box = boxes[static_cast<size_t>(Below(random, static_cast<int64_t>(boxes.size())))];
    const auto d = static_cast<int>(Below(random, whole.dims()));
    if (box.size[d] < 2) continue;
    const int64_t at = 1 + Below(random, box.size[d] - 1);
    Box rest = box;
    rest.offset[d] += at;
    rest.size[d] -= at;
    box.size[d] = at;
    boxes.push_back(rest);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

// All cells of a grid over the whole, `counts` per dim, which divide it.
std::vector<Box> Grid(const Dims& shape, const Dims& counts) {
  std::vector<Box> boxes;
  Dims at = Dims::Filled(shape.size(), 0);
  for (;;) {
    Box box = Box::Whole(shape);
    for (int d = 0; d < shape.size(); ++d) {
      box.size[d] = shape[d] / counts[d];
      box.offset[d] = at[d] * box.size[d];
    }
    boxes.push_back(box);
    int d = shape.size() - 1;
    while (d >= 0 && ++at[d] == counts[d]) at[d--] = 0;
    if (d < 0) return boxes;
  }
}

// How often each element of the whole is in one of the boxes.
std::map<std::vector<int64_t>, int> Count(const std::vector<Box>& boxes) {
  std::map<std::vector<int64_t>, int> count;
  for (const Box& box : boxes) {
    for (const std::vector<int64_t>& element : Elements(box)) ++count[element];
  }
  return count;
}

// FindOverlap and CheckExactCover, against counting elements.
void CompareWithCounting(const Box& whole, const std::vector<Box>& boxes) {
  const auto count = Count(boxes);
  const bool overlap =
      std::any_of(count.begin(), count.end(), [](auto& c) { return c.second > 1; });
  const auto found = FindOverlap(boxes);
  ASSERT_EQ(found.has_value(), overlap);
  if (found) {
    ASSERT_NE(found->first, found->second);
    const auto two = Count({boxes[found->first], boxes[found->second]});
    EXPECT_TRUE(std::any_of(two.begin(), two.end(), [](auto& c) { return c.second > 1; }))
        << boxes[found->first].ToString() << " and " << boxes[found->second].ToString();
  }
  const bool exact = !overlap && count.size() == Elements(whole).size();
  const Status status = CheckExactCover(whole, boxes, "t");
  ASSERT_EQ(status.ok(), exact) << status.ToString();
  if (!exact) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidData);
    EXPECT_THAT(status.message(), HasSubstr(overlap ? "overlap" : "are covered"));
  }
}

TEST(Box, FindOverlapAgreesWithCountingOnRandomBoxes) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const int dims = 1 + round % 4;
    const Dims shape = RandomShape(random, dims, 12 / dims + 2);
    std::vector<Box> boxes;
    for (int64_t i = Below(random, 30); i > 0; --i) {
      Box box = RandomBox(random, shape);
      // Mostly single elements and short lines, so that many sets are disjoint.
      for (int d = 0; d < dims && random() % 5 != 0; ++d)
        box.size[d] = std::min<int64_t>(box.size[d], 1);
      boxes.push_back(box);
    }
    CompareWithCounting(Box::Whole(shape), boxes);
  }
}

TEST(Box, FindOverlapAgreesWithCountingOnSpoiltCovers) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    const int dims = round % 5;
    const Dims shape = RandomShape(random, dims, dims < 3 ? 30 : 7);
    const Box whole = Box::Whole(shape);
    std::vector<Box> boxes = RandomCuts(random, whole, static_cast<int>(Below(random, 60)));
    CompareWithCounting(whole, boxes);  // a cover
    if (dims == 0) continue;
    Box& spoilt = boxes[static_cast<size_t>(Below(random, static_cast<int64_t>(boxes.size())))];
    const auto d = static_cast<int>(Below(random, dims));
    if (random() % 2 == 0 && spoilt.offset[d] + spoilt.size[d] < shape[d]) {
      ++spoilt.size[d];  // overlaps a neighbour
    } else {
      --spoilt.size[d];  // leaves a gap
    }
    CompareWithCounting(whole, boxes);
  }
}

TEST(Box, SpiralsThatNoCutSplits) {
  // Rings of four boxes, each around the next: no straight line misses all of them.
  std::vector<Box> rings;
  for (int64_t r = 0; r < 40; ++r) {
    const int64_t side = 2 * (40 - r) + 1;
    rings.push_back({Dims{r, r}, Dims{1, side - 1}});
    rings.push_back({Dims{r, r + side - 1}, Dims{side - 1, 1}});
    rings.push_back({Dims{r + side - 1, r + 1}, Dims{1, side - 1}});
    rings.push_back({Dims{r + 1, r}, Dims{side - 1, 1}});
  }
  rings.push_back({Dims{40, 40}, Dims{1, 1}});
  const Box plane = Box::Whole(Dims{81, 81});
  CompareWithCounting(plane, rings);
  for (size_t i = 0; i < rings.size(); i += 7) {
    std::vector<Box> spoilt = rings;
    ++spoilt[i].size[i % 2];
    std::erase_if(spoilt, [&](const Box& box) { return !plane.Contains(box); });
    CompareWithCounting(plane, spoilt);
  }
}

TEST(Box, AMillionBoxes) {
  // With a comparison of all pairs, none of these would end before the test's limit.
  Random random(3);
  const std::vector<std::pair<Dims, Dims>> grids = {
      {Dims{600'000}, Dims{300'000}},
      {Dims{4'000, 1'000}, Dims{1'000, 1'000}},
      {Dims{60, 60, 60}, Dims{60, 60, 60}},
      {Dims{20, 20, 40, 20}, Dims{20, 20, 20, 20}},
  };
  for (const auto& [shape, counts] : grids) {
    std::vector<Box> boxes = Grid(shape, counts);
    ASSERT_EQ(static_cast<int64_t>(boxes.size()), counts.elements());
    std::shuffle(boxes.begin(), boxes.end(), random);
    EXPECT_FALSE(FindOverlap(boxes));
    EXPECT_TRUE(CheckExactCover(Box::Whole(shape), boxes, "t").ok());
    const size_t one = boxes.size() / 8, other = boxes.size() / 2;
    boxes[one] = boxes[other];
    const auto found = FindOverlap(boxes);
    ASSERT_TRUE(found);
    EXPECT_EQ(std::minmax(found->first, found->second), std::minmax(one, other));
  }
}

TEST(Box, AHundredThousandStairs) {
  // Row, column, row, column cut off the same corner: every cut splits off one box alone.
  constexpr int64_t kSteps = 50'000;
  std::vector<Box> boxes;
  for (int64_t i = 0; i < kSteps; ++i) {
    boxes.push_back({Dims{i, i}, Dims{1, kSteps - i}});
    boxes.push_back({Dims{i + 1, i}, Dims{kSteps - i - 1, 1}});
  }
  const Box whole = Box::Whole(Dims{kSteps, kSteps});
  EXPECT_TRUE(CheckExactCover(whole, boxes, "t").ok());
  boxes[778].size[0] += 1;  // a row
  EXPECT_FALSE(CheckExactCover(whole, boxes, "t").ok());
  EXPECT_TRUE(FindOverlap(boxes));
}

TEST(Box, HostileNumbersNeverOverflow) {
  // Of a damaged file or a peer; a build with -fsanitize=undefined sees any sum that overflows.
  const std::vector<int64_t> numbers = {
      kMin, kMin + 1,         -(int64_t{1} << 32), -1,       0,   1, 2,
      3,    int64_t{1} << 32, int64_t{1} << 62,    kMax - 1, kMax};
  Random random(4);
  const auto any = [&] {
    return numbers[static_cast<size_t>(Below(random, static_cast<int64_t>(numbers.size())))];
  };
  const Dims shape{4, 4, 4};
  const Box whole = Box::Whole(shape);
  for (int round = 0; round < 20'000; ++round) {
    Box a, b;
    a.offset = a.size = b.offset = b.size = Dims::Filled(3, 0);
    for (int d = 0; d < 3; ++d) {
      a.offset[d] = any();
      a.size[d] = any();
      b.offset[d] = any();
      b.size[d] = any();
    }
    using Wide = __int128;
    bool inside = true, contains = true, meet = true, empty = false;
    for (int d = 0; d < 3; ++d) {
      const Wide a_end = Wide{a.offset[d]} + a.size[d], b_end = Wide{b.offset[d]} + b.size[d];
      inside = inside && a.offset[d] >= 0 && a.size[d] >= 0 && a_end <= 4;
      contains = contains && b.offset[d] >= a.offset[d] && b.size[d] >= 0 && b_end <= a_end;
      meet = meet && std::max(a.offset[d], b.offset[d]) < std::min({a_end, b_end, Wide{kMax}});
      empty = empty || a.size[d] <= 0;
    }
    ASSERT_EQ(a.Within(shape), inside) << a.ToString();
    ASSERT_EQ(whole.Contains(a), inside) << a.ToString();
    ASSERT_EQ(a.Contains(b), contains) << a.ToString() << " " << b.ToString();
    ASSERT_EQ(Intersect(a, b).has_value(), meet) << a.ToString() << " " << b.ToString();
    ASSERT_EQ(a.empty(), empty) << a.ToString();
    ASSERT_EQ(FindOverlap(std::vector<Box>{a, b}).has_value(), meet);
    const std::vector<Box> many(12, a);  // past the number that is compared by pairs
    ASSERT_EQ(FindOverlap(many).has_value(), Intersect(a, a).has_value());
    const Status status = CheckExactCover(whole, std::vector<Box>{a}, "t");
    ASSERT_EQ(status.ok(), inside && a == whole);
    ASSERT_FALSE(CheckExactCover(a, std::vector<Box>{whole, b}, "t").ok());
  }
}

TEST(Box, TextOfHostileBoxes) {
  EXPECT_EQ((Box{Dims{0, 8}, Dims{4, 8}}).ToString(), "[0:4, 8:16]");
  EXPECT_EQ((Box{Dims{9}, Dims{-4}}).ToString(), "[9:9+-4]");
  EXPECT_EQ((Box{Dims{kMax}, Dims{kMax}}).ToString(),
            "[9223372036854775807:9223372036854775807+9223372036854775807]");
  EXPECT_EQ((Box{Dims{kMin}, Dims{kMin}}).ToString(),
            "[-9223372036854775808:-9223372036854775808+-9223372036854775808]");
  EXPECT_EQ(Box{}.ToString(), "[]");
}

TEST(Box, ScalarsAreOneElement) {
  const Box scalar = Box::Whole(Dims{});
  EXPECT_FALSE(scalar.empty());
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_TRUE(scalar.Contains(scalar));
  EXPECT_TRUE(Intersect(scalar, scalar));
  EXPECT_FALSE(FindOverlap(std::vector<Box>{scalar}));
  EXPECT_TRUE(FindOverlap(std::vector<Box>(2, scalar)));
  EXPECT_TRUE(FindOverlap(std::vector<Box>(20, scalar)));
  EXPECT_TRUE(CheckExactCover(scalar, std::vector<Box>{scalar}, "s").ok());
  EXPECT_THAT(CheckExactCover(scalar, std::vector<Box>(3, scalar), "s").message(),
              HasSubstr("s: 3 sources of a scalar, expected 1"));
  EXPECT_FALSE(CheckExactCover(scalar, {}, "s").ok());
}

TEST(Box, NumbersOfDimsThatDiffer) {
  const Box line = Box::Whole(Dims{4}), plane = Box::Whole(Dims{4, 4});
  EXPECT_FALSE(Intersect(line, plane));
  EXPECT_FALSE(Intersect(plane, line));
  EXPECT_FALSE(plane.Contains(line));
  EXPECT_FALSE(line.Within(Dims{4, 4}));
  EXPECT_FALSE(FindOverlap(std::vector<Box>{line, plane}));
  EXPECT_EQ(FindOverlap(std::vector<Box>{line, plane, line}), (std::pair<size_t, size_t>{0, 2}));
  EXPECT_FALSE(CheckExactCover(plane, std::vector<Box>{line}, "t").ok());
}

TEST(Box, CoverErrorsNameTheBoxes) {
  const Box whole = Box::Whole(Dims{4, 4});
  const std::vector<Box> outside = {{Dims{0, 0}, Dims{5, 4}}};
  EXPECT_THAT(CheckExactCover(whole, outside, "w").message(),
              HasSubstr("w: box [0:5, 0:4] lies outside [0:4, 0:4]"));
  const std::vector<Box> overlap = {{Dims{0, 0}, Dims{3, 4}}, {Dims{2, 0}, Dims{2, 4}}};
  EXPECT_THAT(CheckExactCover(whole, overlap, "w").message(),
              AllOf(HasSubstr("w: boxes "), HasSubstr("[0:3, 0:4]"), HasSubstr("[2:4, 0:4]"),
                    HasSubstr(" overlap")));
  const std::vector<Box> gap = {{Dims{0, 0}, Dims{3, 4}}};
  EXPECT_THAT(CheckExactCover(whole, gap, "w").message(),
              HasSubstr("w: 12 of 16 elements of [0:4, 0:4] are covered"));
  // More elements than can be counted: not a whole that anything covers.
  const Box huge = Box::Whole(Dims{int64_t{1} << 40, int64_t{1} << 40});
  EXPECT_THAT(CheckExactCover(huge, std::vector<Box>{huge}, "w").message(),
              HasSubstr("too many elements"));
}

TEST(Box, TooManyDims) {
  const std::vector<int64_t> seven(7, 1);
  EXPECT_THROW((void)Dims(std::span<const int64_t>(seven)), Error);
  EXPECT_THROW((void)Dims::Filled(7, 1), Error);
  EXPECT_THROW((void)Dims::Filled(-1, 1), Error);
  EXPECT_EQ(Dims::Filled(6, 1).size(), 6);
}

TEST(Box, CheckedElements) {
  EXPECT_EQ(*CheckedElements(Dims{}), 1);
  EXPECT_EQ(*CheckedElements(Dims{3, 0, 5}), 0);
  EXPECT_EQ(*CheckedElements(Dims{int64_t{1} << 31, int64_t{1} << 31}), int64_t{1} << 62);
  for (const Dims& shape : {Dims{-1}, Dims{0, -1}, Dims{(int64_t{1} << 62) + 1}, Dims{kMax, 2},
                            Dims{0, kMax, kMax}, Dims{int64_t{1} << 31, int64_t{1} << 31, 2}}) {
    EXPECT_EQ(CheckedElements(shape).status().code(), StatusCode::kInvalidData) << shape.ToString();
  }
}

}  // namespace
}  // namespace keel
