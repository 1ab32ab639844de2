// What preference files may hold, and what is refused and how.

#include "trainer/data/preference_data.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "model/chat_template/chat_template.h"
#include "tests/trainer/data/rl_rows.h"
#include "trainer/data/rows/chat_rules.h"

namespace keel::trainer::rl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Conversations as <u>..</><a>..</>.
TextRules Chat(const model::Tokenizer& tokenizer) {
  TextRules rules(tokenizer);
  rules.chat = std::make_shared<const ChatRules>(
      ChatRules{.chat = ValueOrThrow(model::ChatTemplate::Parse(
                    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}</>{% endfor %}"
                    "{% if add_generation_prompt %}<a>{% endif %}",
                    "test"))});
  return rules;
}

// The text with a [ before the first token that is learnt.
std::string Marked(const model::Tokenizer& tokenizer, const TokenRow& row) {
  std::string text = tokenizer.Decode(row.tokens);  // a byte is a token
  const auto learnt = std::find(row.learn.begin(), row.learn.end(), 1);
  text.insert(static_cast<size_t>(learnt - row.learn.begin()), "[");
  return text;
}

TEST_F(RlDataTest, PairsAreTheSameFromMemoryAndFromShards) {
  std::string text;
  for (int i = 0; i < 80; ++i) {
    text += fmt::format("{{\"prompt\": \"p{}\", \"chosen\": \"{}\", \"rejected\": \"b{}\"}}\n", i,
                        std::string(static_cast<size_t>(1 + i % 30), 'a'), i);
  }
  const std::string file = Write(text);
  PreferenceOptions options;
  options.vocab_size = 259;
  options.max_response_length = 20;
  options.truncation = Truncation::kSkip;
  PreferenceSet memory = ValueOrThrow(PreferenceSet::Load({file}, options, *tokenizer_));
  EXPECT_GT(memory.skipped_rows(), 10);
  options.cache = SmallParts();
  PreferenceSet shards = ValueOrThrow(PreferenceSet::Load({file}, options, *tokenizer_));
  EXPECT_EQ(shards.skipped_rows(), memory.skipped_rows());
  EXPECT_THAT(memory.warnings(), ::testing::IsEmpty());
  PreferenceOptions cut = options;
  cut.truncation = Truncation::kRight;
  const PreferenceSet cut_shards = ValueOrThrow(PreferenceSet::Load({file}, cut, *tokenizer_));
  EXPECT_THAT(cut_shards.warnings(),
              ::testing::ElementsAre(HasSubstr(" rows are longer than data.max_prompt_length")));
  cut.cache = {};
  EXPECT_EQ(ValueOrThrow(PreferenceSet::Load({file}, cut, *tokenizer_)).warnings(),
            cut_shards.warnings());
  PreferenceSet memory_val = memory.SplitOff(0.3, 5), shards_val = shards.SplitOff(0.3, 5);
  for (const auto& [a, b] : {std::pair(&memory, &shards), std::pair(&memory_val, &shards_val)}) {
    EXPECT_GT(a->size(), 5);
    ASSERT_EQ(a->size(), b->size());
    EXPECT_EQ(a->digest(), b->digest());
    // The digest as it was when a set held its pairs.
    Hasher128 hasher;
    for (int64_t i = 0; i < a->size(); ++i) {
      const PreferencePair one = a->Get(i), other = b->Get(i);
      EXPECT_EQ(one.id, other.id);
      for (const auto& [mine, theirs] :
           {std::pair(&one.chosen, &other.chosen), std::pair(&one.rejected, &other.rejected)}) {
        EXPECT_EQ(mine->tokens, theirs->tokens);
        EXPECT_EQ(mine->learn, theirs->learn);
        const auto length = static_cast<int64_t>(mine->tokens.size());
        hasher.Update(std::as_bytes(std::span(&length, 1)));
        hasher.Update(std::as_bytes(std::span(mine->tokens)));
        hasher.Update(std::as_bytes(std::span(mine->learn)));
      }
    }
    EXPECT_EQ(a->digest(), hasher.Finish());
  }
  std::filesystem::remove_all(options.cache.folder);
}

TEST_F(RlDataTest, PreferencePairsAndTheirBatches) {
  const std::string text =
      R"({"prompt": "Q1", "chosen": "yes", "rejected": "no"})"
      "\n"
      R"({"prompt": [{"role": "user", "content": "Q2"}], "chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", "content": "bb"}]})"
      "\n"
      R"({"prompt": "Q3", "chosen": "c", "rejected": "d"})"
      "\n";
  PreferenceOptions options;
  options.vocab_size = 259;
  const auto set = PreferenceSet::Load({Write(text)}, options, *tokenizer_);
  ASSERT_TRUE(set.ok()) << set.status().message();
  ASSERT_EQ(set->size(), 3);
  const PreferencePair& first = set->Get(0);
  EXPECT_EQ(tokenizer_->Decode(first.chosen.tokens), "Q1yes");
  EXPECT_THAT(first.chosen.learn, ElementsAre(0, 0, 1, 1, 1, 1));  // the end mark too
  EXPECT_THAT(first.rejected.learn, ElementsAre(0, 0, 1, 1, 1));
  EXPECT_EQ(tokenizer_->Decode(set->Get(1).rejected.tokens),
            "<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\nbb<|im_end|>");

  // Two ranks, four places for three pairs.
  int64_t pairs = 0, sequences = 0;
  for (int rank = 0; rank < 2; ++rank) {
    BatchOptions batch_options{4, 1, rank, 2, 4};
    const auto batch = MakePreferenceBatch(
        *set, [](int64_t k) { return k; }, 0, 3, batch_options);
    EXPECT_EQ(batch.pairs, 3);
    EXPECT_EQ(batch.chosen_tokens, 4 + 11 + 2);
    ASSERT_EQ(batch.microbatches.size(), 2u);
    for (const MicroBatch& micro : batch.microbatches) {
      EXPECT_EQ(micro.ids.size() % 4, 0u);
      pairs += static_cast<int64_t>(micro.sample_ids.size()) / 2;
      sequences += static_cast<int64_t>(micro.boundaries.size()) - 1;
    }
  }
  EXPECT_EQ(pairs, 3);
  EXPECT_GT(sequences, 6);  // what fills up comes behind

  const auto message = [&](const std::string& row) {
    return PreferenceSet::Load({Write(row)}, options, *tokenizer_).status().message();
  };
  EXPECT_THAT(message("{\"prompt\": \"a\", \"chosen\": \"b\"}"), HasSubstr("no rejected"));
  EXPECT_THAT(message("{\"chosen\": \"a\"}"), HasSubstr("prompt, chosen and rejected"));
  EXPECT_THAT(message("{\"prompt\": \"a\", \"chosen\": [{\"role\": \"user\", \"content\": \"x\"}], "
                      "\"rejected\": \"c\"}"),
              HasSubstr("not the assistant's"));
  options.max_response_length = 2;
  EXPECT_THAT(message("{\"prompt\": \"a\", \"chosen\": \"abc\", \"rejected\": \"c\"}"),
              HasSubstr("data.max_response_length 2"));
}

// TRL takes what both conversations begin with; the user's turns in them were learnt.
TEST_F(RlDataTest, ATextAsThePromptOfConversationsIsOneOfTheirMessages) {
  const TextRules rules = Chat(*tokenizer_);
  PreferenceOptions options;
  options.vocab_size = 259;
  const auto load = [&](const std::string& prompt, const std::string& before) {
    const auto talk = [&](const std::string& last) {
      return "[" + before + R"({"role": "assistant", "content": ")" + last + "\"}]";
    };
    return PreferenceSet::Load({Write(R"({"prompt": ")" + prompt + R"(", "chosen": )" +
                                      talk("good") + R"(, "rejected": )" + talk("bad") + "}\n")},
                               options, rules);
  };
  const auto shown = [&](const std::string& prompt, const std::string& before) {
    return Marked(*tokenizer_, ValueOrThrow(load(prompt, before)).Get(0).chosen);
  };
  const std::string asked = R"({"role": "user", "content": "Q1"}, )",
                    more = asked + R"({"role": "assistant", "content": "A1"}, )"
                                   R"({"role": "user", "content": "Q2"}, )";
  EXPECT_EQ(shown("Q1", ""), "<u>Q1</><a>[good</>");
  EXPECT_EQ(shown("Q1", asked), "<u>Q1</><a>[good</>");
  EXPECT_EQ(shown("Q1", more), "<u>Q1</><a>A1</><u>Q2</><a>[good</>");
  EXPECT_EQ(shown("Q1", R"({"role": "system", "content": "S"}, )" + asked),
            "<s>S</><u>Q1</><a>[good</>");
  EXPECT_THAT(load("Q3", more).status().message(),
              HasSubstr("prompt is a text, and none of the 3 messages"));
}

// The end of the prompt's last message and the role of the next one were learnt as an answer; TRL's
// prompt ends with the answer opened.
TEST_F(RlDataTest, AnAnswerBehindAnAnswerIsAMessageOfItsOwn) {
  const TextRules rules = Chat(*tokenizer_);
  PreferenceOptions options;
  options.vocab_size = 259;
  const auto shown = [&](const std::string& row, const TextRules& by) {
    const auto set = ValueOrThrow(PreferenceSet::Load({Write(row + "\n")}, options, by));
    return Marked(*tokenizer_, set.Get(0).chosen);
  };
  const std::string asked =
      R"({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"})";
  const std::string good = R"({"role": "assistant", "content": "good"})",
                    bad = R"({"role": "assistant", "content": "bad"})";
  const std::string prompted =
      R"({"prompt": [)" + asked + R"(], "chosen": [)" + good + R"(], "rejected": [)" + bad + "]}";
  const std::string whole =
      R"({"chosen": [)" + asked + ", " + good + R"(], "rejected": [)" + asked + ", " + bad + "]}";
  const std::string said = R"({"prompt": [)" + asked + R"(], "chosen": "good", "rejected": "bad"})";
  for (const std::string& row : {prompted, whole, said})
    EXPECT_EQ(shown(row, rules), "<u>Q</><a>A</><a>[good</>") << row;
  const std::string chatml = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA";
  for (const std::string& row : {prompted, whole}) {
    EXPECT_EQ(shown(row, *tokenizer_),
              chatml + "<|im_end|>\n<|im_start|>assistant\n[good<|im_end|>")
        << row;
  }
  // A text of a model of bytes stands behind its prompt, whatever that ends with.
  EXPECT_EQ(shown(said, *tokenizer_), chatml + "[good");
}

}  // namespace
}  // namespace keel::trainer::rl
