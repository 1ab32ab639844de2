#include "model/tokenizer/files/open_tokenizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace keel::model {
namespace {

class OpenTokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ + "/" + name) << content;
  }
  void WriteTokenizer() {
    Write("tokenizer.json", R"({"added_tokens":[{"id":1,"content":"<s>","special":true}],)"
                            R"("model":{"type":"BPE","vocab":{"a":0},"merges":[]}})");
  }
  std::string Message() { return OpenTokenizer(directory_).status().message(); }

  const std::string directory_ = std::filesystem::temp_directory_path().string() +
                                 "/keel_open_tokenizer_" + std::to_string(getpid());
};

TEST_F(OpenTokenizerTest, NamesComeFromTheSettingsBesideIt) {
  WriteTokenizer();
  const std::string names = R"("bos_token":{"content":"<s>"},"pad_token":null)";
  Write("tokenizer_config.json", "{" + names + R"(,"added_tokens_decoder":{}})");
  Write("special_tokens_map.json", R"({"bos_token":"a","eos_token":"a"})");
  const auto tokenizer = ValueOrThrow(OpenTokenizer(directory_));
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), std::nullopt);
  EXPECT_EQ(tokenizer->pad(), std::nullopt);
  // Without the added tokens in the settings transformers takes the map's, and its nulls.
  Write("tokenizer_config.json", "{" + names + "}");
  EXPECT_EQ(ValueOrThrow(OpenTokenizer(directory_))->bos(), 0);
  EXPECT_EQ(ValueOrThrow(OpenTokenizer(directory_))->eos(), 0);
  Write("special_tokens_map.json", R"({"bos_token":null})");
  EXPECT_EQ(ValueOrThrow(OpenTokenizer(directory_))->bos(), std::nullopt);
}

// int(1e30), which transformers writes for a tokenizer that has no limit.
TEST_F(OpenTokenizerTest, AModelMaxLengthOfNoneIsRead) {
  WriteTokenizer();
  Write("tokenizer_config.json",
        R"({"bos_token":"<s>","model_max_length":1000000000000000019884624838656})");
  EXPECT_EQ(ValueOrThrow(OpenTokenizer(directory_))->bos(), 1);
}

TEST_F(OpenTokenizerTest, FilesThatContradictEachOtherAreRefused) {
  WriteTokenizer();
  Write("tokenizer_config.json", R"({"bos_token":"<none>"})");
  EXPECT_NE(Message().find("<none>"), std::string::npos) << Message();
  Write("tokenizer_config.json", R"({"added_tokens_decoder":{"3":{"content":"<x>"}}})");
  EXPECT_NE(Message().find("has \"<x>\" as 3, but the tokenizer has it as 2"), std::string::npos)
      << Message();
  for (const char* no_token :
       {R"({"<x>":{"content":"<x>"}})", R"({"2":"<x>"})", R"({"-1":{"content":"<x>"}})"}) {
    Write("tokenizer_config.json", std::string(R"({"added_tokens_decoder":)") + no_token + "}");
    EXPECT_NE(Message().find("expected an id and an object"), std::string::npos) << Message();
  }
  Write("tokenizer_config.json", R"({"added_tokens_decoder":{"1":{"content":"<s>","lstrip":1}}})");
  EXPECT_NE(Message().find("lstrip"), std::string::npos) << Message();
  Write("tokenizer_config.json", R"({"split_special_tokens":true})");
  EXPECT_NE(Message().find("split_special_tokens is true"), std::string::npos) << Message();
  Write("tokenizer_config.json", R"({"eos_token":7})");
  EXPECT_NE(Message().find("eos_token"), std::string::npos) << Message();
}

TEST_F(OpenTokenizerTest, TokensOfAddedTokensJsonAreAddedOrRefused) {
  WriteTokenizer();  // "a" is 0, and <s> the added token 1
  const Digest128 without = ValueOrThrow(OpenTokenizer(directory_))->digest();
  Write("tokenizer_config.json", R"({"pad_token":"<pad>","additional_special_tokens":["<t>"]})");
  Write("added_tokens.json", R"({"<pad>":2,"<s>":1,"<x>":4,"a":0,"<t>":3})");
  const auto tokenizer = ValueOrThrow(OpenTokenizer(directory_));
  EXPECT_EQ(tokenizer->vocab_size(), 5);
  EXPECT_EQ(tokenizer->pad(), 2);
  EXPECT_EQ(tokenizer->Encode("<x>a<t><pad><s>"), (std::vector<int32_t>{4, 0, 3, 2, 1}));
  for (int32_t id = 0; id < 5; ++id) EXPECT_EQ(tokenizer->IsSpecial(id), id > 0 && id < 4) << id;
  EXPECT_NE(tokenizer->digest(), without);

  const auto refused = [&](const char* content, const char* says) {
    Write("added_tokens.json", content);
    EXPECT_NE(Message().find(says), std::string::npos) << Message();
  };
  Write("tokenizer_config.json", "{}");
  refused(R"({"<x>":3})", "has \"<x>\" as 3, but ");
  refused(R"({"<x>":3})", "lacks it, and its next id is 2: the files belong to different");
  refused(R"({"<x>":2,"<y>":4})", "has \"<y>\" as 4");
  refused(R"({"<x>":1})", "has \"<x>\" as 1");
  refused(R"({"a":2})", "has it as 0");
  refused(R"({"<s>":2})", "has it as 1");
  refused(R"({"<x>":-1})", "added_tokens.json: \"<x>\" has -1, expected an id from 0");
  refused(R"({"<x>":"2"})", "expected an id");
  refused("[]", "a JSON object is expected");
  // With added_tokens_decoder in the settings nobody looks at it.
  Write("tokenizer_config.json", R"({"added_tokens_decoder":{"1":{"content":"<s>"}}})");
  EXPECT_EQ(ValueOrThrow(OpenTokenizer(directory_))->vocab_size(), 2);
}

TEST_F(OpenTokenizerTest, NoFileIsOneThingAndADamagedOneAnother) {
  EXPECT_EQ(OpenTokenizer(directory_).status().code(), StatusCode::kNotFound);
  Write("tokenizer.model", "x");
  EXPECT_NE(Message().find("tokenizer.model"), std::string::npos) << Message();
  EXPECT_EQ(OpenTokenizer(directory_).status().code(), StatusCode::kInvalidData);
  EXPECT_FALSE(OpenTokenizer(directory_ + "/missing").ok());
}

}  // namespace
}  // namespace keel::model
