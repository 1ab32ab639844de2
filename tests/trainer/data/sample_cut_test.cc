// Every packing against its plain definition: which tokens are targets, how often, and of what.
#include "trainer/data/sample_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "trainer/data/batch.h"

namespace keel::trainer {
namespace {

using ::testing::HasSubstr;

// Ids that are their own places, so that a sample shows where each token came from.
std::shared_ptr<MemoryTokens> Places(const std::vector<int64_t>& lengths) {
  auto store = std::make_shared<MemoryTokens>();
  int32_t place = 0;
  for (const int64_t length : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = place++;
    store->Add(ids, std::vector<uint8_t>(ids.size(), 1));
  }
  return store;
}

SampleCut Cut(std::shared_ptr<const TokenStore> store, Packing packing, int64_t max_length,
              bool learns_all = true) {
  CutOptions options;
  options.packing = packing;
  options.max_length = max_length;
  options.learns_all = learns_all;
  options.vocab_size = INT32_MAX;
  options.name = "x";
  return ValueOrThrow(SampleCut::Make(std::move(store), options));
}

TEST(SampleCutTest, EveryTokenButADocumentsFirstIsATargetOnce) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> lengths(1 + random() % 30);
    for (int64_t& length : lengths) length = 1 + random() % 40;
    const auto store = Places(lengths);
    const auto max_length = static_cast<int64_t>(1 + random() % 25);
    for (const Packing packing : {Packing::kNone, Packing::kWrapped, Packing::kBestFit}) {
      const SampleCut cut = Cut(store, packing, max_length);
      std::map<int32_t, int> targets;
      int64_t full = 0;
      for (int64_t i = 0; i < cut.size(); ++i) {
        const Sample sample = ValueOrThrow(cut.Read(i));
        ASSERT_EQ(sample.inputs(), cut.inputs(i));
        ASSERT_EQ(sample.targets(), ValueOrThrow(cut.targets(i)));
        ASSERT_LE(sample.inputs(), max_length);
        ASSERT_GT(sample.inputs(), 0);
        full += sample.inputs() == max_length ? 1 : 0;
        MicroBatch batch;
        batch.boundaries.push_back(0);
        AppendSample(batch, sample, max_length);
        ASSERT_EQ(batch.lengths.size() + 1, batch.boundaries.size());
        for (size_t piece = 0; piece + 1 < batch.boundaries.size(); ++piece) {
          const int64_t inputs = batch.boundaries[piece + 1] - batch.boundaries[piece];
          ASSERT_EQ(batch.lengths[piece], std::min(inputs + 1, max_length));
          for (int64_t t = batch.boundaries[piece]; t < batch.boundaries[piece + 1]; ++t) {
            const auto at = static_cast<size_t>(t);
            ASSERT_EQ(batch.targets[at], batch.ids[at] + 1);
            ASSERT_EQ(batch.positions[at], t - batch.boundaries[piece]);
            // Of one document, as attention within a piece is.
            ASSERT_EQ(store->DocumentOf(batch.ids[at]), store->DocumentOf(batch.targets[at]));
            ++targets[batch.targets[at]];
          }
        }
      }
      int64_t expected = 0;
      for (int64_t d = 0; d < store->documents(); ++d) {
        for (int64_t t = store->Begin(d) + 1; t < store->Begin(d + 1); ++t) {
          ASSERT_EQ(targets[static_cast<int32_t>(t)], 1) << NameOf(packing) << ", token " << t;
          ++expected;
        }
      }
      ASSERT_EQ(static_cast<int64_t>(targets.size()), expected);
      if (packing == Packing::kWrapped && cut.size() > 0) {
        ASSERT_GE(full, cut.size() - 1);
      }
    }
  }
}

TEST(SampleCutTest, TheStreamKnowsNoDocuments) {
  const SampleCut cut = Cut(Places({3, 1, 5}), Packing::kStream, 4);
  ASSERT_EQ(cut.size(), 2);
  EXPECT_THAT(ValueOrThrow(cut.Read(0)).tokens, ::testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(ValueOrThrow(cut.Read(1)).tokens, ::testing::ElementsAre(4, 5, 6, 7, 8));
}

TEST(SampleCutTest, SftTreatsLongAndUselessDocumentsAsTheTruncationSays) {
  auto store = std::make_shared<MemoryTokens>();
  store->Add(std::vector<int32_t>{1, 2, 3, 4, 5}, std::vector<uint8_t>{0, 0, 0, 1, 1});
  store->Add(std::vector<int32_t>{6, 7}, std::vector<uint8_t>{1, 0});  // its first is no target
  store->Add(std::vector<int32_t>{8, 9}, std::vector<uint8_t>{0, 1});
  const auto make = [&](Truncation truncation) {
    CutOptions options;
    options.packing = Packing::kNone;
    options.learns_all = false;
    options.max_length = 3;
    options.truncation = truncation;
    options.vocab_size = 10;
    options.name = "rows.tokens";
    return SampleCut::Make(store, options);
  };
  EXPECT_THAT(make(Truncation::kError).status().message(),
              HasSubstr("rows.tokens: document 0: 5 tokens, of which 4 are inputs, more than data.max_length 3"));
  EXPECT_EQ(make(Truncation::kSkip)->size(), 1);
  EXPECT_EQ(make(Truncation::kSkip)->skipped(), 2);
  const auto right = make(Truncation::kRight), left = make(Truncation::kLeft);
  ASSERT_EQ(right->size(), 2);
  EXPECT_EQ(right->cut(), 1);
  EXPECT_EQ(left->cut(), 1);
  EXPECT_EQ(make(Truncation::kSkip)->cut(), 0);
  EXPECT_THAT(ValueOrThrow(right->Read(0)).tokens, ::testing::ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(ValueOrThrow(right->targets(0)), 1);
  EXPECT_THAT(ValueOrThrow(left->Read(0)).tokens, ::testing::ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(ValueOrThrow(left->targets(0)), 2);
}

TEST(SampleCutTest, AnIdOutsideTheVocabularyIsRefusedWhenItIsRead) {
  CutOptions options;
  options.max_length = 4;
  options.vocab_size = 3;
  options.name = "train.bin";
  const SampleCut cut = ValueOrThrow(SampleCut::Make(Places({5}), options));
  EXPECT_THAT(cut.Read(0).status().message(), HasSubstr("train.bin: token 3 is outside"));
}

}  // namespace
}  // namespace keel::trainer
