// What every rank of every small model gets, against rules that are checked one by one.

#include "model/config/head_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/config/layout_fit.h"

namespace keel::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

HfConfig Model(int64_t heads, int64_t kv_heads, int64_t ffn = 97) {
  HfConfig config;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.intermediate_size = ffn;
  config.num_hidden_layers = 2;
  config.vocab_size = 49153;
  return config;
}

// "6/2 3/1": query and key/value heads, rank by rank.
std::string Text(const HfConfig& config, int tp) {
  std::string text;
  for (int rank = 0; rank < tp; ++rank) {
    const HeadSplit split = HeadsOfRank(config, tp, rank);
    text += (rank > 0 ? " " : "") + std::to_string(split.heads.size) + "/" +
            std::to_string(split.kv_heads.size);
  }
  return text;
}

TEST(HeadSplit, KnownOnes) {
  EXPECT_EQ(Text(Model(9, 3), 1), "9/3");
  EXPECT_EQ(Text(Model(9, 3), 2), "6/2 3/1");
  EXPECT_EQ(Text(Model(9, 3), 3), "3/1 3/1 3/1");
  EXPECT_EQ(Text(Model(9, 3), 4), "2/1 1/1 3/1 3/1");
  EXPECT_EQ(Text(Model(14, 2), 4), "4/1 3/1 4/1 3/1");
  EXPECT_EQ(Text(Model(14, 2), 3), "4/1 3/1 7/1");
  EXPECT_EQ(Text(Model(15, 5), 4), "6/2 3/1 3/1 3/1");
  EXPECT_EQ(Text(Model(6, 1), 4), "2/1 2/1 1/1 1/1");
  EXPECT_EQ(Text(Model(32, 8), 4), "8/2 8/2 8/2 8/2");
}

// Of n things, each as often as it is dealt.
std::vector<int> Counted(int64_t n, const std::vector<Span>& parts) {
  std::vector<int> count(static_cast<size_t>(n), 0);
  for (const Span& part : parts) {
    for (int64_t i = part.begin; i < part.end(); ++i) ++count.at(static_cast<size_t>(i));
  }
  return count;
}

bool Even(const std::vector<Span>& parts) {
  const auto [least, most] = std::minmax_element(
      parts.begin(), parts.end(), [](const Span& a, const Span& b) { return a.size < b.size; });
  return most->size - least->size <= 1;
}

void CheckAllRanks(const HfConfig& config, int tp) {
  const int64_t group = config.num_attention_heads / config.num_key_value_heads;
  std::vector<Span> heads, ffn;
  std::map<int64_t, std::vector<int>> holders;  // of a key/value head, in order
  HeadSplit most;
  for (int rank = 0; rank < tp; ++rank) {
    const HeadSplit split = HeadsOfRank(config, tp, rank);
    heads.push_back(split.heads);
    ffn.push_back(split.ffn);
    for (int64_t kv = split.kv_heads.begin; kv < split.kv_heads.end(); ++kv)
      holders[kv].push_back(rank);
    most.heads.size = std::max(most.heads.size, split.heads.size);
    most.kv_heads.size = std::max(most.kv_heads.size, split.kv_heads.size);
    most.ffn.size = std::max(most.ffn.size, split.ffn.size);

    // Each query head finds its key/value head where the kernels look for it.
    ASSERT_GT(split.heads.size, 0);
    ASSERT_GT(split.kv_heads.size, 0);
    ASSERT_EQ(split.heads.size % split.kv_heads.size, 0);
    const int64_t served = split.heads.size / split.kv_heads.size;
    for (int64_t i = 0; i < split.heads.size; ++i) {
      ASSERT_EQ((split.heads.begin + i) / group, split.kv_heads.begin + i / served);
    }
  }
  // Every query head and every column once, every key/value head at least once.
  EXPECT_THAT(Counted(config.num_attention_heads, heads), ::testing::Each(1));
  EXPECT_THAT(Counted(config.intermediate_size, ffn), ::testing::Each(1));
  EXPECT_TRUE(Even(ffn));
  ASSERT_EQ(holders.size(), static_cast<size_t>(config.num_key_value_heads));
  std::set<size_t> numbers;
  for (const auto& [kv, ranks] : holders) {
    numbers.insert(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      const HeadSplit split = HeadsOfRank(config, tp, ranks[i]);
      EXPECT_EQ(ranks[i], ranks[0] + static_cast<int>(i)) << "holders are no neighbours";
      EXPECT_EQ(split.kv_holders, static_cast<int>(ranks.size()));
      EXPECT_EQ(split.kv_holder, static_cast<int>(i));
    }
  }
  EXPECT_LE(*numbers.rbegin() - *numbers.begin(), 1u);
  EXPECT_EQ(*numbers.rbegin() > 1, SharesKvHeads(config, tp));
  // The forecast's.
  const HeadSplit largest = LargestHeadSplit(config, tp);
  EXPECT_EQ(largest.heads.size, most.heads.size);
  EXPECT_EQ(largest.kv_heads.size, most.kv_heads.size);
  EXPECT_EQ(largest.ffn.size, most.ffn.size);
}

TEST(HeadSplit, EveryModelOverEveryNumberOfRanks) {
  for (int64_t kv_heads = 1; kv_heads <= 9; ++kv_heads) {
    for (int64_t group = 1; group <= 8; ++group) {
      for (int tp = 1; tp <= kv_heads * group; ++tp) {
        SCOPED_TRACE(::testing::Message() << kv_heads * group << "/" << kv_heads << " over " << tp);
        CheckAllRanks(Model(kv_heads * group, kv_heads), tp);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(HeadSplit, EachExpertsWidthIsDealtOutAsADenseOneIs) {
  HfConfig config = Model(6, 3);
  config.moe = {.experts = 5, .top_k = 2, .width = 11};
  EXPECT_EQ(HeadsOfRank(config, 3, 0).expert, (Span{0, 4}));
  EXPECT_EQ(HeadsOfRank(config, 3, 2).expert, (Span{8, 3}));
  EXPECT_EQ(LargestHeadSplit(config, 3).expert.size, 4);
  EXPECT_EQ(HeadsOfRank(Model(6, 3), 3, 0).expert, Span{});
}

TEST(LayoutFit, NoRankEndsWithoutARowOfEachExpert) {
  HfConfig config = Model(6, 3, 4);
  config.family = Family::kQwen3Moe;
  config.moe = {.experts = 5, .top_k = 2, .width = 3};
  // No layer has the dense one.
  EXPECT_THAT(LayoutProblems(config, {5, 1}),
              ElementsAre(AllOf(HasSubstr("moe_intermediate_size 3"), HasSubstr("each expert"),
                                HasSubstr("at most 3 fit"))));
  config.dense_ffn = {true, false};
  EXPECT_THAT(LayoutProblems(config, {5, 1}),
              ElementsAre(HasSubstr("intermediate_size 4 leaves"), HasSubstr("each expert")));
}

TEST(LayoutFit, NothingHasToDivide) {
  for (const int tp : {1, 2, 3, 4, 5, 6})
    EXPECT_THAT(LayoutProblems(Model(6, 3), {tp, 2}), IsEmpty()) << tp;
}

TEST(LayoutFit, NoRankEndsWithNothing) {
  HfConfig config = Model(6, 3, 4);
  config.vocab_size = 9;
  EXPECT_THAT(
      LayoutProblems(config, {7, 3}),
      ElementsAre(AllOf(HasSubstr("num_attention_heads 6 leaves some of the ranks of "
                                  "tensor_model_parallel_size 7 without a head"),
                        HasSubstr("at most 6 fit")),
                  AllOf(HasSubstr("intermediate_size 4"), HasSubstr("at most 4 fit")),
                  AllOf(HasSubstr("vocab_size 9"), HasSubstr("without a row of the vocabulary"),
                        HasSubstr("at most 5 fit")),
                  HasSubstr("num_hidden_layers 2 is less than pipeline_model_parallel_size 3")));
  // Three rows a rank are none for the last of four.
  EXPECT_THAT(LayoutProblems(config, {4, 1}), ElementsAre(HasSubstr("at most 3 fit")));
}

// One A for q, k and v, of which ranks that share a key head hold k and v otherwise than q.
TEST(LayoutProblems, AdaptersOfJoinedMatricesAreOfRanksWithKeyHeadsOfTheirOwn) {
  HfConfig config = Model(6, 1);
  config.family = Family::kGptBigCode;
  EXPECT_THAT(LayoutProblems(config, {2, 1}), IsEmpty());
  config.adapter.rank = 2;
  EXPECT_THAT(LayoutProblems(config, {1, 2}), IsEmpty());
  EXPECT_THAT(LayoutProblems(config, {2, 1}),
              ElementsAre(AllOf(HasSubstr("adapters of the matrix"), HasSubstr("at most 1 fit"))));
  config.adapter.excluded = {"c_attn"};
  EXPECT_THAT(LayoutProblems(config, {2, 1}), IsEmpty());
}

// With which go the value heads that they serve.
TEST(LayoutProblems, EachRankNeedsAKeyHeadOfLinearAttention) {
  HfConfig config = Model(6, 3);
  config.delta = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8, .taps = 4};
  EXPECT_THAT(LayoutProblems(config, {3, 1}), IsEmpty());  // no layer mixes by it
  config.recurrent.assign(static_cast<size_t>(config.num_hidden_layers), true);
  EXPECT_THAT(LayoutProblems(config, {2, 1}), IsEmpty());
  EXPECT_THAT(LayoutProblems(config, {3, 1}),
              ElementsAre(HasSubstr("linear_num_key_heads 2 leaves some of the ranks")));
  config.delta.key_heads = 5;
  config.delta.value_heads = 10;
  EXPECT_EQ(HeadsOfRank(config, 3, 0).delta, (Span{0, 2}));
  EXPECT_EQ(HeadsOfRank(config, 3, 2).delta, (Span{4, 1}));
}

}  // namespace
}  // namespace keel::model
