// The digest of a tensor against its definition, element by element.
#include "common/tensors/tensor_digest.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "common/philox.h"

namespace keel {
namespace {

template <typename Bits>
void ExpectTheDefinition(DType dtype) {
  // Rows of no round length, so that they begin anywhere within blocks, some 11 of them in all.
  const Dims shape{61, 373};
  std::vector<Bits> values(61 * 373);
  const Philox random(5, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 7 == 0 ? 0 : static_cast<Bits>(random.Bits64(i));
  }
  const StridedView view{reinterpret_cast<std::byte*>(values.data()), ContiguousStrides(shape)};
  for (const Box& box : {Box::Whole(shape), Box{{0, 0}, {61, 1}}, Box{{7, 100}, {50, 273}},
                         Box{{60, 372}, {1, 1}}, Box{{5, 0}, {6, 373}}}) {
    uint64_t expected = 0;
    for (int64_t r = box.offset[0]; r < box.offset[0] + box.size[0]; ++r)
      for (int64_t c = box.offset[1]; c < box.offset[1] + box.size[1]; ++c)
        expected += (uint64_t{values[static_cast<size_t>(r * 373 + c)]} + 1) *
                    ElementWeight(sizeof(Bits), r * 373 + c);
    EXPECT_EQ(BoxDigest(shape, dtype, box, Box::Whole(shape), view), expected) << box.ToString();
  }
}

TEST(TensorDigest, IsTheSumThatItsHeaderDefines) {
  ExpectTheDefinition<uint8_t>(DType::kU8);
  ExpectTheDefinition<uint16_t>(DType::kBF16);
  ExpectTheDefinition<uint32_t>(DType::kF32);
  ExpectTheDefinition<uint64_t>(DType::kI64);
}

template <typename Bits>
uint64_t DigestOfASequence(DType dtype) {
  std::vector<Bits> values(5000);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<Bits>((i * 0x9E3779B97F4A7C15) >> (64 - 8 * sizeof(Bits)));
  const Dims shape{5000};
  return BoxDigest(shape, dtype, Box::Whole(shape), Box::Whole(shape),
                   {reinterpret_cast<std::byte*>(values.data()), Dims{1}});
}

// Checkpoints keep digests: another sum needs another format of trainer_state.json and
// rl_state.json. The numbers are those of a few lines of Python after the header.
TEST(TensorDigest, IsTheOneThatCheckpointsKeep) {
  EXPECT_EQ(DigestOfASequence<uint8_t>(DType::kU8), 0x9702DACB1E42795A);
  EXPECT_EQ(DigestOfASequence<uint16_t>(DType::kBF16), 0x76B1A578F06A5AED);
  EXPECT_EQ(DigestOfASequence<uint32_t>(DType::kF32), 0xFD863BF03E000EC9);
  EXPECT_EQ(DigestOfASequence<uint64_t>(DType::kI64), 0x927BC0A1F0B87BD6);
}

TEST(TensorDigest, NoTwoPlacesOfABlockCountTheSame) {
  for (const int64_t element_size : {1, 2, 4, 8}) {
    std::set<uint64_t> weights;
    for (int64_t place = 0; place < kDigestBlock; ++place)
      weights.insert(WeightInBlock(element_size, place));
    EXPECT_EQ(weights.size(), static_cast<size_t>(kDigestBlock)) << element_size;
  }
  std::set<uint64_t> blocks;
  for (uint64_t block = 0; block < 100'000; ++block) blocks.insert(BlockWeight(block));
  EXPECT_EQ(blocks.size(), 100'000u);
}

// Zeros that are there are not zeros that are missing, and no two rows can change places.
TEST(TensorDigest, SeesMissingZerosAndRowsInOthersPlaces) {
  const Dims shape{16, kDigestBlock};
  const Box whole = Box::Whole(shape);
  std::vector<uint16_t> values(static_cast<size_t>(16 * kDigestBlock));
  const StridedView view{reinterpret_cast<std::byte*>(values.data()), ContiguousStrides(shape)};
  const auto digest = [&](const Box& box) {
    return BoxDigest(shape, DType::kBF16, box, whole, view);
  };
  EXPECT_NE(digest({{0, 0}, {15, kDigestBlock}}), digest(whole));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<uint16_t>(i / static_cast<size_t>(kDigestBlock));
  const uint64_t before = digest(whole);
  std::set<uint64_t> seen = {before};
  for (size_t r = 1; r < 16; ++r) {
    std::vector<uint16_t> other = values;
    for (size_t c = 0; c < static_cast<size_t>(kDigestBlock); ++c)
      std::swap(other[c], other[r * static_cast<size_t>(kDigestBlock) + c]);
    seen.insert(BoxDigest(shape, DType::kBF16, whole, whole,
                          {reinterpret_cast<std::byte*>(other.data()), ContiguousStrides(shape)}));
  }
  EXPECT_EQ(seen.size(), 16u);
}

TEST(TensorDigest, PartsAddUpAndEveryBitCounts) {
  const Dims shape{6, 10};
  std::vector<uint32_t> values(60);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>(i * i * 977);
  const StridedView view{reinterpret_cast<std::byte*>(values.data()), ContiguousStrides(shape)};
  const Box whole = Box::Whole(shape);
  const auto digest = [&](const Box& box) {
    return BoxDigest(shape, DType::kF32, box, whole, view);
  };
  const uint64_t all = digest(whole);
  EXPECT_EQ(all, digest({{0, 0}, {4, 10}}) + digest({{4, 0}, {2, 10}}));
  EXPECT_EQ(all, digest({{0, 0}, {6, 3}}) + digest({{0, 3}, {6, 7}}));
  // The same values in a transposed memory.
  std::vector<uint32_t> turned(60);
  for (size_t r = 0; r < 6; ++r)
    for (size_t k = 0; k < 10; ++k) turned[k * 6 + r] = values[r * 10 + k];
  EXPECT_EQ(all, BoxDigest(shape, DType::kF32, whole, whole,
                           {reinterpret_cast<std::byte*>(turned.data()), Dims{1, 6}}));
  for (size_t i = 0; i < values.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      values[i] ^= 1u << bit;
      EXPECT_NE(digest(whole), all) << i << " " << bit;
      values[i] ^= 1u << bit;
    }
  }
  std::swap(values[3], values[4]);
  EXPECT_NE(digest(whole), all);
}

}  // namespace
}  // namespace keel
