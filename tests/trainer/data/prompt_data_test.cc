// What prompt files may hold, and what is refused and how.

#include "trainer/data/prompt_data.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "model/chat_template/chat_template.h"
#include "rewards/reward_check.h"
#include "rewards/reward_rules.h"
#include "tests/trainer/data/rl_rows.h"
#include "trainer/data/rows/chat_rules.h"

namespace keel::trainer::rl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Without it the strict rule finds no "####" in any response, and scores 0.
TEST_F(RlDataTest, QuestionsOfGsm8kGetTheInstructionThatTheStrictRuleNeeds) {
  const std::string plain = R"({"question": "How many?", "answer": "4\n#### 4"})";
  const std::string others =
      "\n" + std::string(R"({"prompt": "x", "answer": "4"})"
                         "\n"
                         R"({"question": "Half?", "answer": "1/2", )"
                         R"("data_source": "math"})"
                         "\n"
                         R"({"question": "Say #### 4.", "answer": "#### 4"})");
  PromptOptions options = Options();
  options.strict_gsm8k = [](const std::string& source) { return source == "openai/gsm8k"; };
  const auto strict = Load(plain + others, options);
  ASSERT_TRUE(strict.ok()) << strict.status().message();
  EXPECT_EQ(strict->Get(0).text,
            "How many? Let's think step by step and output the final answer after \"####\".");
  EXPECT_EQ(tokenizer_->Decode(strict->Get(0).tokens), strict->Get(0).text);
  EXPECT_EQ(strict->Get(1).text, "x");
  EXPECT_EQ(strict->Get(2).text, "Half?");
  EXPECT_EQ(strict->Get(3).text, "Say #### 4.");  // prepared already

  options.question_instruction = "";
  const auto none = Load(plain, options);
  EXPECT_EQ(none->Get(0).text, "How many?");
  options.question_instruction = "Answer with a number.";
  options.strict_gsm8k = {};
  const auto other = Load(plain + others, options);
  EXPECT_EQ(other->Get(0).text, "How many? Answer with a number.");
  EXPECT_EQ(other->Get(1).text, "x");
  EXPECT_EQ(other->Get(2).text, "Half? Answer with a number.");
  // A resumed run with another instruction has other prompts.
  options.question_instruction.reset();
  options.strict_gsm8k = [](const std::string&) { return true; };
  const auto again = Load(plain, options);
  EXPECT_NE(again->digest(), none->digest());
  EXPECT_EQ(Load(plain)->digest(), none->digest());

  // Which rule scores: that of the type, or with auto that of the row's source.
  rewards::RewardSection reward;
  EXPECT_TRUE(rewards::IsStrictGsm8k(reward, "openai/gsm8k"));
  EXPECT_FALSE(rewards::IsStrictGsm8k(reward, "addition"));
  EXPECT_FALSE(rewards::IsStrictGsm8k(reward, "unheard of"));
  reward.method = rewards::RewardMethod::kFlexible;
  EXPECT_FALSE(rewards::IsStrictGsm8k(reward, "openai/gsm8k"));
  reward = {};
  reward.type = rewards::RewardType::kGsm8k;
  EXPECT_TRUE(rewards::IsStrictGsm8k(reward, "unheard of"));
  reward.type = rewards::RewardType::kCommand;
  EXPECT_FALSE(rewards::IsStrictGsm8k(reward, "openai/gsm8k"));
}

TEST_F(RlDataTest, ReadsTheThreeFormsOfRows) {
  const auto set =
      Load(R"({"prompt": "1+1=", "answer": "2", "data_source": "addition"})"
           "\n\n"
           R"({"prompt": "x", "ground_truth": {"target": 3, "numbers": [1, 2]}})"
           "\n"
           R"({"question": "How many?", "answer": "2+2 = <<2+2=4>>4\n#### 4"})"
           "\n"
           R"({"data_source": "lighteval/MATH", "prompt": [{"role": "user", "content": "Half?"}],)"
           R"( "ability": "math", "reward_model": {"style": "rule", "ground_truth": "\\frac12"},)"
           R"( "extra_info": {"split": "train", "index": 5}})"
           "\n");
  ASSERT_TRUE(set.ok()) << set.status().message();
  ASSERT_EQ(set->size(), 4);
  EXPECT_EQ(set->Get(0).text, "1+1=");
  EXPECT_EQ(set->Get(0).tokens, tokenizer_->Encode("1+1="));
  EXPECT_EQ(set->Get(0).ground_truth, "2");
  EXPECT_EQ(set->Get(1).ground_truth["target"], 3);
  EXPECT_EQ(set->Get(2).data_source, "openai/gsm8k");
  EXPECT_EQ(set->Get(2).text, "How many?");
  EXPECT_EQ(set->Get(3).text, "<|im_start|>user\nHalf?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(set->Get(3).ground_truth, "\\frac12");
  EXPECT_EQ(set->Get(3).extra_info["index"], 5);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(set->Get(i).id, i);
  // What was read can be scored.
  rewards::RewardSample sample;
  sample.data_source = set->Get(2).data_source;
  sample.ground_truth = set->Get(2).ground_truth;
  sample.response = "#### 4";
  EXPECT_EQ(ValueOrThrow(rewards::MakeRuleVerifier({}))->Verify({&sample, 1})[0].score, 1);
}

// A null was taken for the answer, and all of the responses to it were wrong.
TEST_F(RlDataTest, AnAnswerThatIsNullIsNone) {
  const auto set = Load(
      R"({"prompt": "a", "answer": null, "ground_truth": "2", "reward_model": null})"
      "\n"
      R"({"prompt": null, "question": "b", "answer": "3", "data_source": null, "extra_info": null})"
      "\n"
      R"({"prompt": "c", "reward_model": {"style": "model", "ground_truth": null}})");
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->Get(0).ground_truth, "2");
  EXPECT_EQ(set->Get(1).text, "b");
  EXPECT_EQ(set->Get(1).ground_truth, "3");
  EXPECT_EQ(set->Get(1).data_source, "openai/gsm8k");
  EXPECT_TRUE(set->Get(2).ground_truth.is_null());  // as verl's rows for reward models have it
  EXPECT_THAT(Load(R"({"prompt": "a", "answer": null})").status().message(),
              HasSubstr("no answer, ground_truth or reward_model.ground_truth"));
}

TEST_F(RlDataTest, ARowMayBoundItsResponses) {
  PromptOptions options = Options();
  const std::string rows =
      "{\"prompt\": \"a\", \"answer\": 1, \"data_source\": \"copy\", \"most\": 7}\n"
      "{\"prompt\": \"b\", \"answer\": 1, \"data_source\": \"copy\", \"most\": null}\n";
  const Digest128 unbounded = Load(rows, options)->digest();
  options.max_response_key = "most";
  const auto set = Load(rows, options);
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->Get(0).max_tokens, 7);
  EXPECT_EQ(set->Get(1).max_tokens, 0);
  EXPECT_NE(set->digest(), unbounded) << "another bound is other data";
  for (const char* bad : {"0", "-3", "1.5", "\"7\"", "1e30"}) {
    EXPECT_THAT(
        Load(fmt::format("{{\"prompt\": \"a\", \"answer\": 1, \"most\": {}}}", bad), options)
            .status()
            .message(),
        HasSubstr("most: expected a number of tokens from 1 on"));
  }
}

TEST_F(RlDataTest, RefusalsNameTheLineAndWhatToDo) {
  const auto message = [&](const std::string& text, const PromptOptions& options = Options()) {
    return Load("{\"prompt\": \"a\", \"answer\": \"b\", \"data_source\": \"copy\"}\n" + text,
                options)
        .status()
        .message();
  };
  EXPECT_THAT(message("{\"prompt\": \"a\"}"),
              ::testing::AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("data.answer_key")));
  EXPECT_THAT(message("{\"text\": \"a\"}"), HasSubstr("data.prompt_key"));
  EXPECT_THAT(message("[1]"), HasSubstr("an object a line"));
  EXPECT_THAT(message("{\"prompt\": 3, \"answer\": 1}"), HasSubstr("prompt"));
  EXPECT_THAT(message("{\"prompt\": [], \"answer\": 1}"), HasSubstr("a list of messages"));
  EXPECT_THAT(message("{\"prompt\": \"\", \"answer\": 1}"), HasSubstr("the prompt is empty"));
  EXPECT_THAT(message("{\"prompt\": \"a\", \"reward_model\": {}}"), HasSubstr("ground_truth"));
  EXPECT_THAT(message("{\"prompt\": \"a\", \"answer\": 1, \"extra_info\": 3}"),
              HasSubstr("extra_info"));
  EXPECT_THAT(message("{\"prompt\": \"a\", "), HasSubstr("rows.jsonl:2"));
  PromptOptions options = Options();
  options.rules = {rewards::RewardType::kAuto};
  EXPECT_THAT(message("{\"prompt\": \"a\", \"answer\": 1, \"data_source\": \"poems\"}", options),
              ::testing::AllOf(HasSubstr("'poems'"), HasSubstr("reward.type")));
  options = Options();
  options.vocab_size = 100;
  EXPECT_THAT(message("{\"prompt\": \"z\", \"answer\": 1}", options),
              HasSubstr("vocabulary of 100"));
  EXPECT_EQ(PromptSet::Load({"/no/such.jsonl"}, Options(), *tokenizer_).status().code(),
            StatusCode::kNotFound);
  EXPECT_THAT(
      PromptSet::Load({Write("PAR1", "x.parquet")}, Options(), *tokenizer_).status().message(),
      HasSubstr("x.parquet: "));  // with the module keel_arrow or without
  EXPECT_FALSE(Load("\n").ok());
}

// Before anything has been generated, and however often the rows are read from a cache.
TEST_F(RlDataTest, ATruthThatNoRuleReadsIsSaid) {
  std::string rows;
  for (int i = 1; i <= 8; ++i) {
    const char* truth = i == 5 ? "\"forty\"" : i == 7 ? "{\"a\": 1}" : "\"42\"";
    rows +=
        fmt::format("{{\"prompt\": \"a\", \"answer\": {}, \"data_source\": \"gsm8k\"}}\n", truth);
  }
  PromptOptions options = Options();
  const auto warnings = [&] { return ValueOrThrow(Load(rows, options)).warnings(); };
  EXPECT_THAT(warnings(), ::testing::IsEmpty()) << "a function may read it";
  options.rules = {rewards::RewardType::kAuto};
  const auto said = ::testing::ElementsAre(::testing::AllOf(
      HasSubstr("2 of 8 rows"), HasSubstr("to row 4 (ground_truth: expected a number, "
                                          "found 'forty')")));
  EXPECT_THAT(warnings(), said);
  EXPECT_TRUE(ValueOrThrow(Load(rows, options)).CheckSomeScored(options.rules).ok());
  const std::string none = "{\"prompt\": \"a\", \"answer\": \"x\", \"data_source\": \"gsm8k\"}\n";
  EXPECT_TRUE(ValueOrThrow(Load(none, options)).CheckSomeScored({}).ok());
  EXPECT_THAT(ValueOrThrow(Load(none + none, options)).CheckSomeScored(options.rules).message(),
              ::testing::AllOf(HasSubstr("of any of 2 prompts"), HasSubstr("found 'x'")));
  options.cache = SmallParts();
  for (int i = 0; i < 2; ++i) EXPECT_THAT(warnings(), said) << i;
  std::filesystem::remove_all(options.cache.folder);
  options.cache = {};
  options.refuse_unscored = true;
  EXPECT_THAT(Load(rows, options).status().message(),
              ::testing::AllOf(HasSubstr("rows.jsonl:5"), HasSubstr("'forty'")));
  options.rules = {rewards::RewardType::kExact};
  EXPECT_THAT(Load(rows, options).status().message(),
              ::testing::AllOf(HasSubstr("rows.jsonl:7"), HasSubstr("found object")));
}

// What JSON has nothing for does not get to a verifier as it stands.
TEST_F(RlDataTest, ValuesThatAreLostAreNamed) {
  const auto row = [](const char* value) {
    return std::string(R"({"prompt": "x", "answer": 1, "extra_info": {"a": [)") + value + "]}}\n";
  };
  EXPECT_THAT(
      Load(row(R"({"$arrow": "date32[day]"})") + row("1") + row(R"({"$arrow": "timestamp[us]"})"))
          ->warnings(),
      ::testing::ElementsAre(HasSubstr("with their number in 3 rows: extra_info.a (2)")));
}

// Of verl's rows: a part of the tools, in an order of their own.
TEST_F(RlDataTest, ARowShowsTheToolsThatItSelects) {
  const auto row = [](const std::string& some) {
    return R"({"prompt": [{"role": "user", "content": "x"}], "answer": 1, "extra_info": )"
           R"({"tool_selection": )" +
           some + "}}\n";
  };
  ChatRules chat = {.chat = ValueOrThrow(model::ChatTemplate::Parse(
                        "{% for t in tools %}<{{ t.function.name }}>{% endfor %}{{ tools is none }}"
                        "{% for m in messages %}{{ m.content }}{% endfor %}",
                        "test"))};
  for (const char* name : {"calc", "web", "sh"})
    chat.tools.push_back({{"type", "function"}, {"function", {{"name", name}}}});
  TextRules rules(*tokenizer_);
  rules.chat = std::make_shared<const ChatRules>(std::move(chat));
  const auto set =
      ValueOrThrow(PromptSet::Load({Write(row("null") + row("[]") + row(R"(["sh", "calc", "sh"])") +
                                              row(R"(["web", "gone"])") + row(R"(["gone"])"),
                                          "tools.jsonl")},
                                   Options(), rules));
  std::vector<std::string> texts;
  for (int64_t i = 0; i < set.size(); ++i) texts.push_back(set.Get(i).text);
  EXPECT_THAT(texts, ::testing::ElementsAre("<calc><web><sh>Falsex", "<calc><web><sh>Falsex",
                                            "<sh><calc>Falsex", "<web>Falsex", "Falsex"));
  EXPECT_THAT(set.warnings(),
              ::testing::ElementsAre(HasSubstr("5 rows: extra_info.tool_selection[gone] (2)")));
  EXPECT_THAT(Load(row("\"calc\""), Options()).status().message(),
              HasSubstr("extra_info.tool_selection: expected a list of tools' names"));
  // A run without tools.
  EXPECT_THAT(Load(R"({"prompt": "x", "answer": 1, "extra_info": {"tool_selection": ["calc"]}})")
                  ->warnings(),
              ::testing::ElementsAre(HasSubstr("extra_info.tool_selection[calc] (1)")));
}

TEST_F(RlDataTest, LongPromptsAreRefusedCutOrLeftOut) {
  const std::string text =
      "{\"prompt\": \"abcdef\", \"answer\": 1}\n{\"prompt\": \"xy\", \"answer\": 1}\n";
  PromptOptions options = Options();
  options.max_prompt_length = 4;
  EXPECT_THAT(Load(text, options).status().message(), HasSubstr("6 tokens, more than"));
  options.truncation = Truncation::kLeft;
  EXPECT_EQ(Load(text, options)->Get(0).tokens, tokenizer_->Encode("cdef"));
  options.truncation = Truncation::kRight;
  EXPECT_EQ(Load(text, options)->Get(0).tokens, tokenizer_->Encode("abcd"));
  EXPECT_THAT(Load(text, options)->warnings(),
              ::testing::Contains(HasSubstr("1 rows are longer than data.max_prompt_length")));
  options.filter_overlong_prompts = true;
  const auto filtered = Load(text, options);
  EXPECT_EQ(filtered->size(), 1);
  EXPECT_EQ(filtered->skipped_rows(), 1);
  EXPECT_EQ(filtered->Get(0).id, 1);  // its own id, whatever else is left out
}

TEST_F(RlDataTest, DigestAndSplitAreOfTheContent) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += "{\"prompt\": \"p" + std::to_string(i) + "\", \"answer\": " + std::to_string(i) + "}\n";
  auto a = ValueOrThrow(Load(text));
  auto b = ValueOrThrow(Load(text));
  EXPECT_EQ(a.digest().ToHex(), b.digest().ToHex());
  std::string other = text;
  other.replace(other.find("\"answer\": 7}"), 11, "\"answer\": 8");
  EXPECT_NE(ValueOrThrow(Load(other)).digest().ToHex(), a.digest().ToHex());
  const PromptSet val = a.SplitOff(0.25, 3);
  EXPECT_EQ(a.size() + val.size(), 200);
  EXPECT_GT(val.size(), 20);
  const PromptSet again = b.SplitOff(0.25, 3);
  EXPECT_EQ(val.digest().ToHex(), again.digest().ToHex());
  EXPECT_EQ(a.digest().ToHex(), b.digest().ToHex());
}

// The digests as they were when a set held its prompts: of the prompts themselves, in order.
std::pair<Digest128, Digest128> DigestsOf(const PromptSet& set) {
  Hasher128 prompts, read;
  for (int64_t i = 0; i < set.size(); ++i) {
    const Prompt prompt = set.Get(i);
    const auto length = static_cast<int64_t>(prompt.tokens.size());
    prompts.Update(std::as_bytes(std::span(&prompt.id, 1)));
    prompts.Update(std::as_bytes(std::span(&length, 1)));
    prompts.Update(std::as_bytes(std::span(prompt.tokens)));
    const auto dump = [](const Json& json) {
      return json.dump(-1, ' ', false, Json::error_handler_t::replace);
    };
    const std::string answer = prompt.data_source + '\0' + dump(prompt.ground_truth) + '\0';
    prompts.Update(std::as_bytes(std::span(answer)));
    if (prompt.max_tokens > 0) prompts.Update(std::as_bytes(std::span(&prompt.max_tokens, 1)));
    const std::string text = dump(Json{prompt.text, prompt.extra_info});
    read.Update(std::as_bytes(std::span(text)));
  }
  return {prompts.Finish(), read.Finish()};
}

TEST_F(RlDataTest, PromptsAreTheSameFromMemoryAndFromShards) {
  std::string text =
      R"({"prompt": "1+1=", "answer": "2", "data_source": "a\u0000b\u0000", "most": 4})"
      "\n"
      R"({"prompt": [200, 201, 255, 65], "answer": [1, -2, 3.5, 1e300, {"b": null, "a": true}]})"
      "\n"
      R"({"prompt": "\u00e9\ud83d\ude00 \"q\" \\ \u0001", "answer": "\u00e9",)"
      R"( "extra_info": {"z": [1], "a": {"n": 18446744073709551615}}})"
      "\n"
      R"({"prompt": "", "input_ids": [65], "reward_model": {"ground_truth": null}})"
      "\n"
      R"({"prompt": "longer than all the others, and so long that it is left out", "answer": 1})"
      "\n";
  for (int i = 0; i < 60; ++i)
    text += fmt::format("{{\"prompt\": \"p{}\", \"answer\": {}, \"id\": 1}}\n", i, i);
  const std::string file = Write(text);
  PromptOptions options = Options();
  options.max_prompt_length = 40;
  options.filter_overlong_prompts = true;
  options.max_response_key = "most";
  PromptSet memory = ValueOrThrow(PromptSet::Load({file}, options, *tokenizer_));
  options.cache = SmallParts();
  PromptSet shards = ValueOrThrow(PromptSet::Load({file}, options, *tokenizer_));
  const PromptSet again = ValueOrThrow(PromptSet::Load({file}, options, *tokenizer_));
  EXPECT_EQ(memory.Get(0).data_source, std::string("a\0b\0", 4));
  EXPECT_EQ(memory.Get(1).text,
            "\xc8\xc9\xff"
            "A");
  EXPECT_EQ(memory.Get(2).text, "\u00e9\U0001f600 \"q\" \\ \x01");
  EXPECT_EQ(memory.Get(2).extra_info["a"]["n"], UINT64_MAX);
  EXPECT_EQ(memory.Get(4).id, 5);
  PromptSet memory_val = memory.SplitOff(0.3, 5), shards_val = shards.SplitOff(0.3, 5);
  EXPECT_EQ(again.skipped_rows(), 1);
  EXPECT_EQ(again.warnings(), memory.warnings());
  EXPECT_EQ(memory.warnings().size(), 1u);
  for (const auto& [a, b] : {std::pair(&memory, &shards), std::pair(&memory_val, &shards_val)}) {
    EXPECT_GT(a->size(), 10);
    ASSERT_EQ(a->size(), b->size());
    EXPECT_EQ(a->digest(), b->digest());
    EXPECT_EQ(a->verifiers_digest(), b->verifiers_digest());
    EXPECT_EQ(DigestsOf(*a), std::pair(a->digest(), a->verifiers_digest()));
    for (int64_t i = 0; i < a->size(); ++i) {
      const Prompt one = a->Get(i), other = b->Get(i);
      EXPECT_EQ(one.id, other.id);
      EXPECT_EQ(one.tokens, other.tokens);
      EXPECT_EQ(one.text, other.text);
      EXPECT_EQ(one.data_source, other.data_source);
      EXPECT_EQ(one.ground_truth, other.ground_truth);
      EXPECT_EQ(one.extra_info.dump(), other.extra_info.dump());
      EXPECT_EQ(one.max_tokens, other.max_tokens);
    }
  }
  EXPECT_EQ(DigestsOf(again), std::pair(again.digest(), again.verifiers_digest()));
  // Whatever else prompts follow from makes others.
  const auto folders = [&] {
    return std::distance(std::filesystem::directory_iterator(options.cache.folder), {});
  };
  EXPECT_EQ(folders(), 1);
  const std::function<void(PromptOptions&)> changes[] = {
      [](PromptOptions& o) { o.max_prompt_length = 41; },
      [](PromptOptions& o) { o.filter_overlong_prompts = false, o.truncation = Truncation::kLeft; },
      [](PromptOptions& o) { o.vocab_size = 260; },
      [](PromptOptions& o) { o.question_instruction = "Think."; },
      [](PromptOptions& o) { o.strict_gsm8k = [](const std::string&) { return true; }; },
      [](PromptOptions& o) { o.rules = {rewards::RewardType::kMath}; },
      [](PromptOptions& o) { o.refuse_unscored = true; },
      [](PromptOptions& o) { o.max_response_key.reset(); },
      [](PromptOptions& o) { o.source_key = "source"; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    PromptOptions changed = options;
    changes[i](changed);
    ValueOrThrow(PromptSet::Load({file}, changed, *tokenizer_));
    EXPECT_EQ(folders(), static_cast<int64_t>(2 + i)) << i;
  }
  std::filesystem::remove_all(options.cache.folder);
}

// A key beside those that a row is read by: it may say another thing than they do.
TEST_F(RlDataTest, WhatARowIsNotReadByIsNamed) {
  const auto said = [&](const std::string& row) {
    const auto set = Load(row + "\n");
    EXPECT_TRUE(set.ok()) << set.status().message();
    return set.ok() && !set->warnings().empty() ? set->warnings()[0] : std::string();
  };
  EXPECT_THAT(said(R"({"prompt": "q", "answer": "3", "reward_model": {"ground_truth": "4"}})"),
              HasSubstr("keys that nothing reads, with their number in 1 rows: answer (1)"));
  EXPECT_THAT(said(R"({"prompt": "q", "answer": "3", "ground_truth": "4"})"),
              HasSubstr("ground_truth"));
  EXPECT_THAT(said(R"({"prompt": "q", "question": "r", "answer": "3"})"), HasSubstr("question"));
  EXPECT_THAT(said(R"({"question": "q", "answer": "3", "reward_model": {"ground_truth": "4"}})"),
              HasSubstr("reward_model"));
  for (const char* row :
       {R"({"question": "q", "answer": "3", "ability": "math"})",
        R"({"prompt": "q", "input_ids": [1, 2], "ground_truth": "4"})",
        R"({"prompt": "q", "reward_model": {"ground_truth": "4", "style": "r"}})"})
    EXPECT_EQ(said(row), "") << row;
  const auto refused = Load(R"({"prompt": "q", "answer": "3", "history": [["a", "b"]]})");
  EXPECT_THAT(
      refused.status().message(),
      HasSubstr(
          "history changes what is learnt, and is not read here; give earlier turns as messages"));
}

}  // namespace
}  // namespace keel::trainer::rl
