// Prompts and preference pairs of models whose tokenizer is another program: rows that bring ids.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "model/tokenizer/tokenizer_kind.h"
#include "rewards/reward_wire.h"
#include "trainer/data/preference_data.h"
#include "trainer/data/prompt_data.h"

namespace keel::trainer::rl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReadyIdsTest : public ::testing::Test {
 protected:
  ReadyIdsTest() { ids_.ids_only = "the model has a tokenizer of its own"; }

  template <typename Load>
  auto With(const std::string& text, const Load& load) const {
    const std::string path =
        ::testing::TempDir() + "keel_ready_" + std::to_string(getpid()) + ".jsonl";
    std::ofstream(path, std::ios::binary) << text;
    auto set = load(path);
    unlink(path.c_str());
    return set;
  }
  Result<PromptSet> Prompts(const std::string& text) const { return Prompts(text, ids_); }
  Result<PromptSet> Prompts(const std::string& text, const TextRules& rules) const {
    PromptOptions options;
    options.vocab_size = 1000;
    return With(text,
                [&](const std::string& path) { return PromptSet::Load({path}, options, rules); });
  }
  Result<PreferenceSet> Pairs(const std::string& text) const {
    PreferenceOptions options;
    options.vocab_size = 1000;
    return With(
        text, [&](const std::string& path) { return PreferenceSet::Load({path}, options, ids_); });
  }

  TextRules ids_;
};

// There was no way to train any model but one of bytes by RL.
TEST_F(ReadyIdsTest, PromptsOfRl) {
  const auto set = ValueOrThrow(
      Prompts("{\"prompt\": [700, 2, 3], \"answer\": \"4\", \"data_source\": \"mine\"}\n"
              "{\"input_ids\": [0, 700, 2], \"attention_mask\": [0, 1, 1], \"ground_truth\": 4}\n"
              "{\"input_ids\": [700, 2], \"prompt\": \"What?\", \"reward_model\": "
              "{\"ground_truth\": \"x\"}, \"note\": 1}\n"
              "{\"prompt\": [0, 700], \"attention_mask\": [0, 1], \"answer\": 1}\n"
              "{\"input_ids\": [5], \"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], "
              "\"answer\": 1, \"tools\": [{\"name\": \"f\"}]}\n"));
  ASSERT_EQ(set.size(), 5);
  EXPECT_THAT(set.Get(0).tokens, ElementsAre(700, 2, 3));
  EXPECT_EQ(set.Get(0).text, "");
  EXPECT_EQ(set.Get(0).data_source, "mine");
  EXPECT_THAT(set.Get(1).tokens, ElementsAre(700, 2));
  EXPECT_EQ(set.Get(1).ground_truth, 4);
  EXPECT_EQ(set.Get(2).text, "What?");
  EXPECT_EQ(set.Get(2).ground_truth, "x");
  EXPECT_THAT(set.Get(3).tokens, ElementsAre(700));
  ASSERT_EQ(set.warnings().size(), 1u);
  EXPECT_THAT(set.warnings()[0], HasSubstr("note (1), tools (1)"));

  const auto refusal = [&](const std::string& row) { return Prompts(row).status().message(); };
  EXPECT_THAT(refusal(R"({"prompt": "text", "answer": "4"})"),
              AllOf(HasSubstr(":1"), HasSubstr("tokenizer of its own"), HasSubstr("input_ids")));
  EXPECT_THAT(refusal(R"({"question": "text", "answer": "4"})"), HasSubstr("input_ids"));
  EXPECT_THAT(refusal(R"({"input_ids": [], "answer": "4"})"), HasSubstr("the prompt is empty"));
  EXPECT_THAT(refusal(R"({"input_ids": [1000], "answer": "4"})"),
              AllOf(HasSubstr("token 1000"), HasSubstr("vocabulary of 1000")));
  EXPECT_THAT(refusal(R"({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1], "answer": "4"})"),
              HasSubstr("entries 0 and 2"));
  EXPECT_THAT(refusal(R"({"input_ids": [1]})"), HasSubstr("nothing to score an answer by"));
  EXPECT_THAT(refusal(R"({"input_ids": [1], "answer": 1, "loss_mask": [1]})"),
              HasSubstr("loss_mask"));
}

TEST_F(ReadyIdsTest, AByteModelMayHaveThemToo) {
  const auto bytes = model::MakeTokenizer(model::TokenizerKind::kBytes);
  const auto set = ValueOrThrow(Prompts(
      "{\"input_ids\": [104, 105], \"answer\": 1}\n{\"prompt\": \"hi\", \"answer\": 1}\n", *bytes));
  EXPECT_EQ(set.Get(0).tokens, set.Get(1).tokens);
  EXPECT_EQ(set.Get(0).text, "hi");
  const auto refused =
      Prompts(R"({"prompt": "hi", "answer": 1, "tools": [{"name": "f"}]})", *bytes);
  EXPECT_THAT(refused.status().message(), HasSubstr("tools changes what is learnt"));
}

TEST_F(ReadyIdsTest, PairsOfDpo) {
  const auto set = ValueOrThrow(
      Pairs("{\"prompt_input_ids\": [700, 2], \"chosen_input_ids\": [3, 9], "
            "\"rejected_input_ids\": [4]}\n"
            "{\"prompt_input_ids\": [0, 700, 2], \"prompt_attention_mask\": [0, 1, 1], "
            "\"chosen_input_ids\": [3, 9, 0], \"chosen_attention_mask\": [1, 1, 0], "
            "\"rejected_input_ids\": [4, 0], \"rejected_attention_mask\": [1, 0], "
            "\"prompt\": \"of\", \"chosen\": \"which\", \"rejected\": \"made\"}\n"
            "{\"prompt\": [700, 2], \"chosen\": [3, 9], \"rejected\": [4]}\n"));
  ASSERT_EQ(set.size(), 3);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_THAT(set.Get(i).chosen.tokens, ElementsAre(700, 2, 3, 9)) << i;  // no end is added
    EXPECT_THAT(set.Get(i).chosen.learn, ElementsAre(0, 0, 1, 1));
    EXPECT_THAT(set.Get(i).rejected.tokens, ElementsAre(700, 2, 4));
  }

  const auto refusal = [&](const std::string& row) { return Pairs(row).status().message(); };
  const std::string prompt = R"({"prompt_input_ids": [7, 8], )";
  EXPECT_THAT(refusal(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
              AllOf(HasSubstr("tokenizer of its own"), HasSubstr("chosen_input_ids")));
  EXPECT_THAT(refusal(prompt + R"("chosen_input_ids": [1]})"),
              HasSubstr("found no rejected_input_ids"));
  // TRL before 0.12.
  EXPECT_THAT(
      refusal(prompt + R"("chosen_input_ids": [7, 8, 1], "rejected_input_ids": [7, 8, 2]})"),
      HasSubstr("the answers alone"));
  EXPECT_THAT(refusal(prompt + R"("chosen_input_ids": [1], "rejected_input_ids": [2],)"
                               R"( "chosen_labels": [1]})"),
              HasSubstr("chosen_labels"));
  EXPECT_THAT(refusal(prompt + R"("chosen_input_ids": [1000], "rejected_input_ids": [2]})"),
              HasSubstr("vocabulary of 1000"));
  EXPECT_THAT(refusal(prompt + R"("chosen_input_ids": [], "rejected_input_ids": [2]})"),
              HasSubstr("chosen_input_ids: no tokens"));
}

// The messages before the answer were dropped, whatever they said.
TEST_F(ReadyIdsTest, AConversationInFrontOfAnAnswerIsThePromptsOwn) {
  const auto bytes = model::MakeTokenizer(model::TokenizerKind::kBytes);
  PreferenceOptions options;
  options.vocab_size = 259;
  const auto load = [&](const std::string& prompt, const std::string& before) {
    const std::string answer = R"({"role": "assistant", "content": "a"}])";
    const std::string row = "{\"prompt\": " + prompt + ", \"chosen\": [" + before + answer +
                            ", \"rejected\": [" + before + answer + "}";
    return With(row,
                [&](const std::string& path) {
                  return PreferenceSet::Load({path}, options, *bytes);
                })
        .status();
  };
  const std::string user = R"({"role": "user", "content": "q"})";
  EXPECT_TRUE(load("[" + user + "]", "").ok());
  EXPECT_TRUE(load("[" + user + "]", user + ", ").ok());
  EXPECT_TRUE(load("\"q\"", user + ", ").ok());
  const std::string other = R"({"role": "user", "content": "another"}, )";
  EXPECT_THAT(load("[" + user + "]", other).message(), HasSubstr("not those of prompt"));
  EXPECT_THAT(load("\"q\"", other).message(), HasSubstr("not those of prompt"));
}

TEST(RewardWireTest, WithoutATokenizerAVerifierGetsIdsInsteadOfText) {
  rewards::RewardSample sample;
  sample.id = 3;
  sample.ground_truth = "4";
  sample.prompt_ids = {700, 2};
  sample.response_ids = {5};
  const Json ids = Json::parse(rewards::SampleText(sample));
  EXPECT_EQ(ids["prompt_ids"], Json({700, 2}));
  EXPECT_EQ(ids["response_ids"], Json({5}));
  EXPECT_FALSE(ids.contains("response"));
  EXPECT_FALSE(ids.contains("prompt"));
  EXPECT_EQ(ids["ground_truth"], "4");
  sample.prompt = "What?";  // of the row
  EXPECT_EQ(Json::parse(rewards::SampleText(sample))["prompt"], "What?");
  sample.prompt_ids.clear();
  sample.response = "five";
  const Json text = Json::parse(rewards::SampleText(sample));
  EXPECT_EQ(text["response"], "five");
  EXPECT_FALSE(text.contains("response_ids"));
}

}  // namespace
}  // namespace keel::trainer::rl
