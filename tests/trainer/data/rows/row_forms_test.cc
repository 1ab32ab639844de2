// Rows as TRL and ShareGPT write them are those that Keel's own spelling gives, token for token.
#include "trainer/data/rows/row_forms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer/tokenizer_kind.h"
#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/data/dataset.h"
#include "trainer/data/preference_data.h"

namespace keel::trainer {
namespace {

using ::testing::HasSubstr;

class RowFormsTest : public ::testing::Test {
 protected:
  Result<Dataset> Sft(const std::string& row) {
    DatasetOptions options;
    options.sft = true;
    options.vocab_size = 259;
    return Dataset::Load({folder_.Write("rows.jsonl", row + "\n")}, options, *bytes_);
  }
  void ExpectSame(const std::string& row, const std::string& plain) {
    const Sample a = ValueOrThrow(Sft(row)).Get(0), b = ValueOrThrow(Sft(plain)).Get(0);
    EXPECT_EQ(a.tokens, b.tokens) << row;
    EXPECT_EQ(a.learn, b.learn) << row;
  }
  Result<rl::PreferenceSet> Pairs(const std::string& row) {
    rl::PreferenceOptions options;
    options.vocab_size = 259;
    return rl::PreferenceSet::Load({folder_.Write("pairs.jsonl", row + "\n")}, options, *bytes_);
  }
  void ExpectSamePair(const std::string& row, const std::string& plain) {
    const rl::PreferenceSet a = ValueOrThrow(Pairs(row)), b = ValueOrThrow(Pairs(plain));
    EXPECT_EQ(a.Get(0).chosen.tokens, b.Get(0).chosen.tokens) << row;
    EXPECT_EQ(a.Get(0).chosen.learn, b.Get(0).chosen.learn) << row;
    EXPECT_EQ(a.Get(0).rejected.tokens, b.Get(0).rejected.tokens) << row;
  }

  ScratchFolder folder_;
  std::unique_ptr<model::Tokenizer> bytes_ = model::MakeTokenizer(model::TokenizerKind::kBytes);
};

TEST_F(RowFormsTest, ShareGptIsMessages) {
  const char* plain =
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},)"
      R"({"role":"assistant","content":"a"}]})";
  for (const char* key : {"conversations", "messages"}) {
    ExpectSame(std::string("{\"") + key +
                   R"(":[{"from":"system","value":"s"},{"from":"human","value":"q"},)"
                   R"({"from":"gpt","value":"a"}]})",
               plain);
  }
  ExpectSame(R"({"conversations":[{"role":"system","content":"s"},{"role":"user","content":"q"},)"
             R"({"role":"assistant","content":"a"}]})",
             plain);
  EXPECT_THAT(Sft(R"({"conversations":[{"from":"bing","value":"q"}]})").status().message(),
              HasSubstr("\"bing\""));
}

// LLaMA-Factory's turns of a model that calls a tool, which are learnt as it writes them.
TEST(RowForms, ShareGptCallsTools) {
  const Json row = Json::parse(R"({"conversations":[{"from":"human","value":"q"},
      {"from":"function_call","value":"{\"name\": \"add\", \"arguments\": {\"a\": 1}}"},
      {"from":"observation","value":"1"},
      {"from":"function_call","value":"[{\"name\": \"f\"}, {\"name\": \"g\"}]"},
      {"from":"function_call","value":"f x"},
      {"from":"gpt","value":"a"}]})");
  Json changed;
  EXPECT_EQ(StandardRow(row, "messages", &changed)["messages"], Json::parse(R"([
      {"role": "user", "content": "q"},
      {"role": "assistant", "tool_calls": [
          {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]},
      {"role": "tool", "content": "1"},
      {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}},
                                           {"type": "function", "function": {"name": "g"}}]},
      {"role": "assistant", "content": "f x"},
      {"role": "assistant", "content": "a"}])"));
}

TEST_F(RowFormsTest, AMemberThatIsNullIsNone) {
  ExpectSame(R"({"messages":null,"input_ids":null,"prompt":null,"text":"ab"})", R"({"text":"ab"})");
  ExpectSame(R"({"prompt":"ab","response":null,"completion":"cd","text":null,"tools":null})",
             R"({"prompt":"ab","completion":"cd"})");
  ExpectSame(R"({"input_ids":[1,2],"labels":null,"attention_mask":null,"text":null})",
             R"({"input_ids":[1,2]})");
  // As a file has them that holds both spellings.
  ExpectSame(R"({"messages":null,"conversations":[)"
             R"({"from":"human","value":"q","role":null,"content":null},)"
             R"({"from":"gpt","value":"a","role":null,"content":null}]})",
             R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})");
  ExpectSamePair(R"({"prompt":null,"chosen":"Q: a","rejected":"Q: b"})",
                 R"({"chosen":"Q: a","rejected":"Q: b"})");
  EXPECT_THAT(Sft(R"({"text":null})").status().message(), HasSubstr("expected one of the keys"));
  EXPECT_THAT(Pairs(R"({"prompt":"a","chosen":null,"rejected":"b"})").status().message(),
              HasSubstr("found no chosen"));
}

TEST_F(RowFormsTest, ACompletionIsTheResponse) {
  ExpectSame(R"({"prompt":"ab","completion":"cd"})", R"({"prompt":"ab","response":"cd"})");
  // Of two conversations the second alone is learnt.
  const std::string user = R"({"role":"user","content":"q"})",
                    more = R"({"role":"user","content":"r"})";
  const std::string first = R"({"role":"assistant","content":"a"})";
  const std::string last = R"({"role":"assistant","content":"b"})";
  const std::string prompt = user + "," + first + "," + more;
  const Sample both =
      ValueOrThrow(Sft("{\"prompt\":[" + prompt + "],\"completion\":[" + last + "]}")).Get(0);
  const Sample all = ValueOrThrow(Sft("{\"messages\":[" + prompt + "," + last + "]}")).Get(0);
  EXPECT_EQ(both.tokens, all.tokens);
  EXPECT_EQ(both.targets(), 1 + 10);  // b<|im_end|>
  EXPECT_EQ(all.targets(), 2 * 11);
}

TEST_F(RowFormsTest, AnImplicitPromptIsWhatBothAnswersBeginWith) {
  const std::string user = R"({"role":"user","content":"q"})";
  const std::string good = R"([{"role":"assistant","content":"a"}])";
  const std::string bad = R"([{"role":"assistant","content":"b"}])";
  ExpectSamePair("{\"chosen\":[" + user + "," + good.substr(1) + ",\"rejected\":[" + user + "," +
                     bad.substr(1) + "}",
                 "{\"prompt\":[" + user + "],\"chosen\":" + good + ",\"rejected\":" + bad + "}");
  ExpectSamePair(R"({"chosen":"The sky is blue.","rejected":"The sky is green."})",
                 R"({"prompt":"The sky is","chosen":" blue.","rejected":" green."})");
  // Not within a character: these two differ in their second byte.
  ExpectSamePair("{\"chosen\":\"x\xc3\xa9y\",\"rejected\":\"x\xc3\xa8y\"}",
                 "{\"prompt\":\"x\",\"chosen\":\"\xc3\xa9y\",\"rejected\":\"\xc3\xa8y\"}");
  // As trl.extract_prompt has it where one answer begins the other: none is left empty.
  ExpectSamePair(R"({"chosen":"abc","rejected":"abcd"})",
                 R"({"prompt":"ab","chosen":"c","rejected":"cd"})");
  ExpectSamePair(R"({"chosen":"ab cd","rejected":"ab "})",
                 R"({"prompt":"ab","chosen":" cd","rejected":" "})");
  ExpectSamePair("{\"chosen\":\"x\xc3\xa9\",\"rejected\":\"x\xc3\xa9y\"}",
                 "{\"prompt\":\"x\",\"chosen\":\"\xc3\xa9\",\"rejected\":\"\xc3\xa9y\"}");
  const Json turns = Json::parse("[" + user + "," + good.substr(1));
  Json longer = turns;
  longer.push_back(Json::parse(user));
  Json changed;
  const Json row = {{"chosen", turns}, {"rejected", longer}};
  const Json& with = WithPrompt(row, "prompt", "chosen", "rejected", &changed);
  EXPECT_EQ(with["prompt"], Json::array({turns[0]}));
  EXPECT_EQ(with["chosen"], Json::array({turns[1]}));
  EXPECT_EQ(with["rejected"], Json::array({turns[1], turns[0]}));
  EXPECT_THAT(
      Pairs(R"({"chosen":"same","rejected":"same"})").status().message(),
      ::testing::HasSubstr("none can be told from chosen and rejected, which are the same"));
  EXPECT_THAT(Pairs("{\"chosen\":" + good + ",\"rejected\":" + bad + "}").status().message(),
              ::testing::HasSubstr("begin with no common message"));
}

}  // namespace
}  // namespace keel::trainer
