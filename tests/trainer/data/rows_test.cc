// What rows may say beside their text or ids, and what becomes of it: honoured, refused, or named.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "model/tokenizer/tokenizer_kind.h"
#include "trainer/data/dataset.h"
#include "trainer/data/rows/row_notes.h"

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RowsTest : public ::testing::Test {
 protected:
  static Result<Dataset> Load(const std::string& text, const TextRules& rules, bool sft = true,
                              const std::string& name = "rows.jsonl") {
    const std::string path =
        ::testing::TempDir() + "keel_rows_" + std::to_string(getpid()) + "_" + name;
    std::ofstream(path, std::ios::binary) << text;
    DatasetOptions options;
    options.sft = sft;
    options.max_length = 100;
    options.vocab_size = 300;
    auto data = Dataset::Load({path}, options, rules);
    unlink(path.c_str());
    return data;
  }
  Result<Dataset> Load(const std::string& text, bool sft = true) const {
    return Load(text, *bytes_, sft);
  }
  std::string Refusal(const std::string& text) const {
    const auto data = Load(text);
    EXPECT_EQ(data.status().code(), StatusCode::kInvalidData) << text;
    return data.status().message();
  }
  static std::vector<int32_t> Tokens(const Dataset& data, int64_t i) {
    const Sample s = data.Get(i);
    return {s.tokens.begin(), s.tokens.end()};
  }
  static std::vector<int> Learn(const Dataset& data, int64_t i) {
    const Sample s = data.Get(i);
    return {s.learn.begin(), s.learn.end()};
  }

  std::unique_ptr<model::Tokenizer> bytes_ = model::MakeTokenizer(model::TokenizerKind::kBytes);
};

// Padding was learnt, or attended to, without a word.
TEST_F(RowsTest, PaddingThatTheMaskHidesIsDroppedAtBothEnds) {
  const Dataset plain = ValueOrThrow(Load(R"({"input_ids":[5,6,7,8],"labels":[-100,6,7,8]})"));
  for (
      const char* padded : {
          R"({"input_ids":[5,6,7,8,0,0],"attention_mask":[1,1,1,1,0,0],"labels":[-100,6,7,8,-100,-100]})",
          R"({"input_ids":[0,0,5,6,7,8],"attention_mask":[0,0,1,1,1,1],"labels":[-100,-100,-100,6,7,8]})",
          R"({"input_ids":[0,5,6,7,8,0],"attention_mask":[0,1,1,1,1,0],"labels":[0,-100,6,7,8,0]})",
          R"({"input_ids":[5,6,7,8],"attention_mask":[1,1,1,1],"labels":[-100,6,7,8]})",
          R"({"input_ids":[5,6,7,8],"attention_mask":null,"labels":[-100,6,7,8]})",
          R"({"input_ids":[-1,5,6,7,8,999],"attention_mask":[0,1,1,1,1,0],"labels":[-100,-100,6,7,8,-100]})",
          R"({"input_ids":[0,5,6,7,8],"attention_mask":[0,1,1,1,1],"labels":[-100,-100,6,7,8],"position_ids":[1,0,1,2,3]})",
      }) {
    const Dataset data = ValueOrThrow(Load(padded));
    EXPECT_EQ(data.digest(), plain.digest()) << padded;
    EXPECT_THAT(data.warnings(), IsEmpty());
  }
  // Without labels all that is left is learnt.
  const Dataset all =
      ValueOrThrow(Load(R"({"input_ids":[0,5,6,7,0],"attention_mask":[0,1,1,1,0]})"));
  EXPECT_THAT(Tokens(all, 0), ElementsAre(5, 6, 7));
  EXPECT_THAT(Learn(all, 0), ElementsAre(1, 1, 1));
  const Dataset text =
      ValueOrThrow(Load(R"({"input_ids":[0,5,6],"attention_mask":[0,1,1]})", false));
  EXPECT_THAT(Tokens(text, 0), ElementsAre(5, 6));
}

TEST_F(RowsTest, MasksAndPositionsThatSayMoreAreRefusedByRow) {
  const auto refusal = [&](const std::string& rest) {
    return Refusal("{\"input_ids\":[9,9]}\n{\"input_ids\":[5,6,7,8]," + rest + "}");
  };
  EXPECT_THAT(refusal(R"("attention_mask":[1,0,1,1])"),
              AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("0 at entry 1, between entries 0 and 2")));
  EXPECT_THAT(refusal(R"("attention_mask":[1,1,1])"), HasSubstr("3 entries for 4 input_ids"));
  EXPECT_THAT(refusal(R"("attention_mask":[1,2,1,1])"), HasSubstr("entry 1 is 2, expected 0"));
  EXPECT_THAT(refusal(R"("attention_mask":[1,1.0,1,1])"), HasSubstr("expected integers"));
  EXPECT_THAT(refusal(R"("attention_mask":[true,true,true,true])"), HasSubstr("found true"));
  EXPECT_THAT(refusal(R"("attention_mask":[0,0,0,0])"), HasSubstr("no token is left"));
  EXPECT_THAT(refusal(R"("attention_mask":1)"), HasSubstr("expected a list"));
  EXPECT_THAT(refusal(R"("attention_mask":[[1,1],[0,1]])"), HasSubstr("expected integers"));
  // Two sequences in a row.
  EXPECT_THAT(refusal(R"("position_ids":[0,1,0,1])"), HasSubstr("entry 2 is 0, expected 2"));
  EXPECT_THAT(refusal(R"("attention_mask":[0,1,1,1],"position_ids":[0,1,2,3])"),
              HasSubstr("entry 1 is 1, expected 0"));
  EXPECT_THAT(refusal(R"("loss_mask":[0,0,1,1])"),
              AllOf(HasSubstr("loss_mask changes what is learnt"), HasSubstr("labels")));
  EXPECT_THAT(refusal(R"("seq_lens":[2,2])"), HasSubstr("give a row to each"));
  EXPECT_THAT(Refusal(R"({"prompt":[1],"response":[2,0],"response_attention_mask":[1,0]})"),
              HasSubstr("give ids without padding"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","response":"b","attention_mask":[1,1]})"),
              HasSubstr("beside input_ids alone"));
}

// What Python's json writes where a figure is missing, and integers of any size.
TEST_F(RowsTest, NumbersThatAreNoneMayStandWhereNobodyReads) {
  const std::string big(30, '9');
  const Dataset data = ValueOrThrow(
      Load(R"({"input_ids":[5,6],"score":NaN,"id":)" + big + R"(,"stats":{"loss":[-Infinity]}})"));
  EXPECT_EQ(data.digest(), ValueOrThrow(Load(R"({"input_ids":[5,6]})")).digest());
  ASSERT_EQ(data.warnings().size(), 1u);
  EXPECT_THAT(data.warnings()[0],
              AllOf(HasSubstr("id (1)"), HasSubstr("score (1)"), HasSubstr("stats (1)")));
  EXPECT_THAT(Refusal(R"({"input_ids":[5,NaN]})"),
              AllOf(HasSubstr("rows.jsonl:1: line 1, column"), HasSubstr("no number of JSON")));
  EXPECT_THAT(Refusal(R"({"input_ids":[5,)" + big + "]}"), HasSubstr("integer out of range"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","response":NaN})"), HasSubstr("no number of JSON"));
  EXPECT_THAT(Refusal(R"({"text":"a","weight":NaN})"), HasSubstr("weight changes what is learnt"));
}

// Where nothing is learnt other keys may stand in a row, but these say that it is not of text
// alone.
TEST(RowNotes, PicturesFilmsAndSoundAreRefusedWhateverIsDoneWithTheRow) {
  using Form = RowNotes::Form;
  const auto message = [](const char* row, Form form) {
    return RowNotes::RefuseMedia(Json::parse(row), form, "in.jsonl:1").message();
  };
  for (const char* key : {"image", "images", "video", "videos", "audio", "audios"}) {
    const Json row = {{"text", "a"}, {key, {"x"}}};
    EXPECT_EQ(
        RowNotes::RefuseMedia(row, Form::kText, "in.jsonl:1").message(),
        fmt::format("in.jsonl:1: {}: this release reads text alone: give no such rows or messages",
                    key));
    // Ids may have been made from it.
    EXPECT_TRUE(RowNotes::RefuseMedia(row, Form::kIds, "in.jsonl:1").ok()) << key;
  }
  EXPECT_THAT(message(R"({"input_ids":[1],"pixel_values":[[1.5]]})", Form::kIds),
              HasSubstr("pixel_values"));
  EXPECT_EQ(message(R"({"text":"a","images":[],"image":null,"id":7,"loss_mask":[1]})", Form::kText),
            "");
}

TEST_F(RowsTest, WhatATemplateWouldShowIsRefusedAndOtherKeysAreNamedOnce) {
  const std::string user = R"({"role":"user","content":"q"})";
  const auto row = [&](const std::string& answer, const std::string& rest = "") {
    return R"({"messages":[)" + user + "," + answer + "]" + rest + "}\n";
  };
  const std::string plain = R"({"role":"assistant","content":"a"})";
  EXPECT_THAT(
      Refusal(row(R"({"role":"assistant","content":"a","tool_calls":[{"name":"f"}]})")),
      AllOf(HasSubstr("rows.jsonl:1"), HasSubstr("messages[].tool_calls"), HasSubstr("input_ids")));
  EXPECT_THAT(Refusal(row(plain, R"(,"tools":[{"name":"f"}])")), HasSubstr("tools changes"));
  EXPECT_THAT(Refusal(row(R"({"role":"assistant","content":"a","reasoning_content":"r"})")),
              HasSubstr("reasoning_content"));
  EXPECT_THAT(Refusal(row(plain, R"(,"images":["x.png"])")), HasSubstr("text alone"));
  EXPECT_THAT(Refusal(row(R"({"role":"gpt","content":"a"})")),
              AllOf(HasSubstr("system, developer, user, assistant, tool"), HasSubstr("gpt")));

  // Nothing is said by what is null or empty.
  const Dataset data =
      ValueOrThrow(Load(row(R"({"role":"assistant","content":"a","tool_calls":null,"name":"n"})",
                            R"(,"tools":[],"images":null,"id":7,"source":"s")") +
                        row(plain, R"(,"id":8)") + R"({"prompt":"p","response":"r","text":"t"})"));
  ASSERT_EQ(data.warnings().size(), 1u);
  EXPECT_THAT(data.warnings()[0],
              AllOf(HasSubstr("rows.jsonl: keys that nothing reads, with their number in 3 rows: "),
                    HasSubstr("id (2), messages[].name (1), source (1), text (1)")));
  const Dataset quiet = ValueOrThrow(Load(row(plain)));
  EXPECT_THAT(quiet.warnings(), IsEmpty());
  // Ready ids may stand beside what they were made of.
  const Dataset ready =
      ValueOrThrow(Load(R"({"input_ids":[1,2],"messages":[],"tools":[{"name":"f"}],"id":1})"));
  EXPECT_THAT(ready.warnings()[0], HasSubstr("id (1), tools (1)"));
}

TEST_F(RowsTest, RowsOfWhichNothingIsLearntAreSpokenOf) {
  const std::string deaf = R"({"messages":[{"role":"user","content":"q"}]})";
  const std::string none = R"({"input_ids":[1,2],"labels":[-100,-100]})";
  EXPECT_THAT(Refusal(deaf), AllOf(HasSubstr("no sample to train on"), HasSubstr("1 rows left out"),
                                   HasSubstr("in 1 of the rows left out nothing is learnt"),
                                   HasSubstr("the role assistant")));
  const Dataset some =
      ValueOrThrow(Load(deaf + "\n" + none + "\n" + R"({"prompt":"p","response":"r"})"));
  EXPECT_EQ(some.skipped_rows(), 2);
  ASSERT_EQ(some.warnings().size(), 1u);
  EXPECT_THAT(some.warnings()[0], HasSubstr("rows.jsonl: in 2 of the rows left out nothing"));
}

TEST_F(RowsTest, PretrainingSaysThatItLearnsWhatLabelsLeaveOut) {
  const std::string row = R"({"input_ids":[1,2,3],"labels":[-100,2,3]})";
  EXPECT_THAT(ValueOrThrow(Load(row, false)).warnings()[0], HasSubstr("labels (1)"));
  EXPECT_THAT(ValueOrThrow(Load(row, true)).warnings(), IsEmpty());
  EXPECT_THAT(ValueOrThrow(Load(R"({"input_ids":[1,2,3],"labels":[1,2,3]})", false)).warnings(),
              IsEmpty());
}

// A model with a vocabulary of its own was trained on bytes, exit 0.
TEST_F(RowsTest, WithoutATokenizerRowsBringIds) {
  TextRules ids;
  ids.ids_only = "the model has a tokenizer of its own";
  for (const char* row : {
           R"({"text":"a"})",
           R"({"prompt":"a","response":"b"})",
           R"({"prompt":[1,2],"response":"b"})",
           R"({"messages":[{"role":"user","content":"q"}]})",
           R"({"question":"a","answer":"b"})",
       }) {
    EXPECT_THAT(
        Load(row, ids).status().message(),
        AllOf(HasSubstr("rows.jsonl:1"), HasSubstr("tokenizer of its own"), HasSubstr("input_ids")))
        << row;
  }
  EXPECT_THAT(Load("plain text", ids, false, "a.txt").status().message(),
              HasSubstr("tokenizer of its own"));
  const Dataset data =
      ValueOrThrow(Load("{\"input_ids\":[1,2,3],\"labels\":[-100,2,3]}\n"
                        "{\"prompt\":[1],\"response\":[2,3]}\n",
                        ids));
  ASSERT_EQ(data.size(), 2);
  EXPECT_THAT(Tokens(data, 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(Learn(data, 1), ElementsAre(0, 1, 1));
}

TEST_F(RowsTest, AnInstructionIsAQuestionWithWhatItIsAbout) {
  const auto digest = [&](const std::string& row) { return ValueOrThrow(Load(row)).digest(); };
  const auto about = digest(R"({"prompt":"Add:\n1, 2","response":"3"})");
  EXPECT_EQ(digest(R"({"instruction":"Add:","input":"1, 2","output":"3"})"), about);
  EXPECT_EQ(digest(R"({"prompt":"Say 3","response":"3"})"),
            digest(R"({"instruction":"Say 3","input":"","output":"3","history":[]})"));
  EXPECT_EQ(digest(R"({"instruction":"Say 3","input":null,"output":"3","system":""})"),
            digest(R"({"instruction":"Say 3","output":"3"})"));
  // A text of all of it goes first, as it did.
  EXPECT_EQ(digest(R"({"instruction":"Add","output":"3","text":"Add 3"})"),
            digest(R"({"text":"Add 3"})"));
  const Dataset named = ValueOrThrow(Load(R"({"instruction":"a","output":"b","id":7})"));
  ASSERT_EQ(named.warnings().size(), 1u);
  EXPECT_THAT(named.warnings()[0], AllOf(HasSubstr("id (1)"), Not(HasSubstr("instruction"))));
  EXPECT_THAT(Refusal(R"({"instruction":"a","output":"b","history":[["c","d"]]})"),
              HasSubstr("history: earlier turns"));
  EXPECT_THAT(Refusal(R"({"instruction":"a","output":"b","system":"Be kind."})"),
              HasSubstr("system changes what is learnt"));
  EXPECT_THAT(Refusal(R"({"instruction":"a","input":3,"output":"b"})"), HasSubstr("input"));
  EXPECT_THAT(Refusal(R"({"instruction":"a","input":"c"})"), HasSubstr("expected one of the keys"));
}

TEST_F(RowsTest, WithoutATemplateMessagesAreRefusedAndNothingElse) {
  TextRules rules(*bytes_);
  rules.no_chat = "the model has no chat template of its own";
  EXPECT_THAT(Load(R"({"messages":[{"role":"user","content":"q"}]})", rules).status().message(),
              AllOf(HasSubstr("chat template of its own"), HasSubstr("input_ids")));
  EXPECT_TRUE(Load(R"({"prompt":"a","response":"b"})", rules).ok());
}

TEST_F(RowsTest, ATableOrRowsUnderAnotherNameAreNotLearntAsText) {
  const auto refusal = [&](const std::string& name, const std::string& text) {
    return Load(text, *bytes_, false, name).status().message();
  };
  EXPECT_THAT(refusal("a.csv", "prompt,answer\na,b\n"), HasSubstr("read_csv"));
  EXPECT_THAT(refusal("a.txt", "\n {\"text\": \"a\"}\n"), HasSubstr(".jsonl"));
  EXPECT_THAT(refusal("a.txt", "[{\"text\": \"a\"}]\n"), HasSubstr(".jsonl"));
  EXPECT_TRUE(Load("[{text}] in brackets", *bytes_, false, "a.txt").ok());
  EXPECT_THAT(refusal("a.jsonl", "[\n{\"text\": \"a\"}\n]\n"), HasSubstr("jq"));
  EXPECT_TRUE(Load("{text} in braces", *bytes_, false, "a.txt").ok());
  EXPECT_TRUE(Load("{\"text\": \"abc\"}\n", *bytes_, false, "a.ndjson").ok());
}

// A resumed run has the same data as before there were masks and packs.
TEST_F(RowsTest, TheDigestOfPlainRowsIsWhatItWas) {
  const Dataset data = ValueOrThrow(Load(
      "{\"prompt\":\"ab\",\"response\":\"cd\"}\n{\"input_ids\":[1,2,3],\"labels\":[-100,2,3]}\n"
      "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
      "\"content\":\"a\"}]}\n"));
  EXPECT_EQ(data.digest().ToHex(), "d227cc721b5580a70304347574b93059");
}

}  // namespace
}  // namespace keel::trainer
