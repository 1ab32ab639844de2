// Samples, masks, order and batches.

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "model/tokenizer/tokenizer_kind.h"
#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/batch.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sample_order.h"

namespace keel::trainer {
namespace {

using ::testing::HasSubstr;

std::string Write(const std::string& name, const std::string& text) {
  static const ScratchFolder folder;
  return folder.Write(name, text);
}

Result<Dataset> Load(const std::string& path, bool sft, int64_t max_length = 16,
                     Truncation truncation = Truncation::kError) {
  DatasetOptions options;
  options.sft = sft;
  options.max_length = max_length;
  options.truncation = truncation;
  options.vocab_size = 259;
  return Dataset::Load({path}, options, *model::MakeTokenizer(model::TokenizerKind::kBytes));
}

TEST(DataTest, PretrainingCutsOneStreamWhoseTargetsAreEachTokenOnce) {
  const Dataset data = ValueOrThrow(Load(
      Write("a.jsonl", "{\"text\": \"hello world\"}\n\r\n{\"text\": \"again\"}\r\n"), false, 5));
  std::vector<int32_t> stream, targets;
  for (const char c : std::string("hello world")) stream.push_back(c);
  stream.push_back(257);
  for (const char c : std::string("again")) stream.push_back(c);
  stream.push_back(257);
  for (int64_t i = 0; i < data.size(); ++i) {
    const Sample s = data.Get(i);
    EXPECT_LE(s.tokens.size(), 6u);
    EXPECT_EQ(data.targets(i), static_cast<int64_t>(s.tokens.size()) - 1);
    targets.insert(targets.end(), s.tokens.begin() + 1, s.tokens.end());
  }
  EXPECT_EQ(targets, std::vector<int32_t>(stream.begin() + 1, stream.end()));
}

TEST(DataTest, SftLearnsAnswersAlone) {
  const Dataset data =
      ValueOrThrow(Load(Write("b.jsonl",
                              "{\"prompt\":\"ab\",\"response\":\"cd\"}\n"
                              "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
                              "\"assistant\",\"content\":\"a\"}]}\n"
                              "{\"input_ids\":[1,2,3],\"labels\":[-100,-100,3]}\n"
                              "{\"question\":\"x\",\"answer\":\"y\"}\n"),
                        true, 200));
  ASSERT_EQ(data.size(), 4);
  const auto learnt = [&](int64_t i) {
    std::string text;
    const Sample s = data.Get(i);
    for (size_t t = 1; t < s.tokens.size(); ++t) {
      if (s.learn[t] != 0)
        text += s.tokens[t] < 256 ? std::string(1, static_cast<char>(s.tokens[t])) : "$";
    }
    return text;
  };
  EXPECT_EQ(learnt(0), "cd$");
  EXPECT_EQ(learnt(1), "a<|im_end|>");
  EXPECT_EQ(learnt(2), "\x03");
  EXPECT_EQ(learnt(3), "y$");
  EXPECT_EQ(data.targets(0), 3);
}

TEST(DataTest, BadInputNamesFileLineAndWayOut) {
  const auto refused = [](const std::string& text, bool sft,
                          std::initializer_list<const char*> parts) {
    const auto data = Load(Write("bad.jsonl", text), sft, 8);
    ASSERT_FALSE(data.ok()) << text;
    for (const char* part : parts)
      EXPECT_NE(data.status().message().find(part), std::string::npos) << data.status().message();
  };
  refused("{\"text\":\"x\"}\n{\"text\":\n", false, {"bad.jsonl:2:"});
  refused("[1]\n", false, {"bad.jsonl:1: ", "expected an object", "jq -c '.[]'"});
  refused("{\"text\":\"x\"}\n[1]\n", false, {"bad.jsonl:2: expected an object"});
  refused(
      "{\"prompt\":\"x\",\"completion\":\"y\",\"label\":true}\n"
      "{\"prompt\":\"x\",\"completion\":\"y\",\"label\":false}\n",
      true, {"bad.jsonl:2: label: false", "leave such rows out"});
  refused("{\"txt\":\"x\"}\n", false, {"bad.jsonl:1: expected one of the keys text, messages"});
  refused("{\"prompt\":\"aaaa\",\"response\":\"bbbbbbb\"}\n", true,
          {"bad.jsonl:1:", "data.max_length 8", "data.truncation"});
  refused("{\"input_ids\":[1,999]}\n", true, {"bad.jsonl:1: token 999", "vocabulary of 259"});
  refused("{\"input_ids\":[1,2],\"labels\":[1]}\n", true, {"labels: 1 entries for 2"});
  refused("{\"messages\":[{\"role\":\"user\"}]}\n", true, {"content"});
  refused("", false, {"empty"});
  const auto missing = Load("/nowhere/x.txt", false);
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Load(Write("t.jsonl",
                       "{\"prompt\":\"aaaa\",\"response\":\"bbbbbbb\"}\n{\"prompt\":\"a\","
                       "\"response\":\"b\"}\n"),
                 true, 8, Truncation::kSkip)
                ->skipped_rows(),
            1);
}

TEST(DataTest, RowsThatWereCutAreCountedAndNamed) {
  const std::string path = Write("cut.jsonl",
                                 "{\"prompt\":\"aa\",\"response\":\"bbbbbbbbbbb\"}\n"
                                 "{\"prompt\":\"a\",\"response\":\"b\"}\n");
  for (const Truncation truncation : {Truncation::kRight, Truncation::kLeft}) {
    const Dataset data = ValueOrThrow(Load(path, true, 8, truncation));
    EXPECT_EQ(data.skipped_rows(), 0);
    EXPECT_THAT(data.warnings(),
                ::testing::ElementsAre(::testing::AllOf(HasSubstr("cut.jsonl: 1 rows are longer"),
                                                        HasSubstr("data.max_length"))));
  }
  EXPECT_THAT(ValueOrThrow(Load(path, true, 64)).warnings(), ::testing::IsEmpty());
}

TEST(DataTest, EveryEpochIsAPermutationAndAFunctionOfPosition) {
  SampleOrder order(23, 5, true);
  std::vector<int64_t> first;
  for (int64_t k = 0; k < 69; ++k) first.push_back(order.At(k));
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(
        std::set<int64_t>(first.begin() + epoch * 23, first.begin() + (epoch + 1) * 23).size(),
        23u);
  }
  EXPECT_NE(std::vector<int64_t>(first.begin(), first.begin() + 23),
            std::vector<int64_t>(first.begin() + 23, first.begin() + 46));
  SampleOrder resumed(23, 5, true);
  for (const int64_t k : {22, 23, 24, 45, 46, 47, 0})
    EXPECT_EQ(resumed.At(k), first[static_cast<size_t>(k)]);
  SampleOrder plain(23, 5, false);
  EXPECT_EQ(plain.At(24), 1);
}

TEST(DataTest, BatchesAreTheSameSamplesUnderEverySplit) {
  std::string rows;
  for (int i = 0; i < 12; ++i)
    rows += "{\"prompt\":\"p\",\"response\":\"" + std::string(static_cast<size_t>(i % 5 + 1), 'r') +
            "\"}\n";
  const Dataset data = ValueOrThrow(Load(Write("c.jsonl", rows), true));
  const auto identity = [](int64_t k) { return k; };
  for (const int dp : {1, 2, 4}) {
    for (const int64_t micro : {1, 2}) {
      std::vector<int64_t> ids;
      int64_t targets = 0;
      for (int rank = 0; rank < dp; ++rank) {
        const StepBatch step = MakeStepBatch(data, identity, 2, 8, {8, micro, rank, dp, 4});
        EXPECT_EQ(step.loss_tokens,
                  MakeStepBatch(data, identity, 2, 8, {8, 8, 0, 1, 1}).loss_tokens);
        EXPECT_EQ(step.microbatches.size(), static_cast<size_t>(8 / dp / micro));
        for (const MicroBatch& m : step.microbatches) {
          EXPECT_EQ(m.ids.size() % 4, 0u);
          EXPECT_EQ(m.boundaries.back(), static_cast<int64_t>(m.ids.size()));
          ids.insert(ids.end(), m.sample_ids.begin(), m.sample_ids.end());
          targets += std::count_if(m.targets.begin(), m.targets.end(),
                                   [](int32_t t) { return t != -100; });
        }
      }
      EXPECT_EQ(ids, (std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8, 9}));
      EXPECT_EQ(targets, MakeStepBatch(data, identity, 2, 8, {8, 8, 0, 1, 1}).loss_tokens);
    }
  }
  // A short last batch: every rank still has its micro-batches.
  EXPECT_EQ(MakeStepBatch(data, identity, 0, 3, {8, 2, 1, 2, 1}).microbatches.size(), 2u);
}

TEST(DataTest, SplittingOffKeepsEverySampleOnce) {
  std::string rows;
  for (int i = 0; i < 200; ++i) rows += "{\"prompt\":\"p\",\"response\":\"r\"}\n";
  Dataset data = ValueOrThrow(Load(Write("d.jsonl", rows), true));
  const Dataset apart = data.SplitOff(0.25, 3);
  std::set<int64_t> ids;
  for (int64_t i = 0; i < data.size(); ++i) ids.insert(data.Get(i).id);
  for (int64_t i = 0; i < apart.size(); ++i) ids.insert(apart.Get(i).id);
  EXPECT_EQ(ids.size(), 200u);
  EXPECT_GT(apart.size(), 25);
  EXPECT_LT(apart.size(), 80);
}

}  // namespace
}  // namespace keel::trainer
