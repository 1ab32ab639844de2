#include "model/tokenizer/open_tokenizer.h"

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
  Write("tokenizer_config.json", R"({"bos_token":{"content":"<s>"},"pad_token":null})");
  Write("special_tokens_map.json", R"({"bos_token":"a","eos_token":"a"})");
  const auto tokenizer = ValueOrThrow(OpenTokenizer(directory_));
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 0);
  EXPECT_EQ(tokenizer->pad(), std::nullopt);
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
  Write("tokenizer_config.json", R"({"added_tokens_decoder":{"2":{"content":"<x>"}}})");
  EXPECT_NE(Message().find("<x>"), std::string::npos) << Message();
  Write("tokenizer_config.json", R"({"eos_token":7})");
  EXPECT_NE(Message().find("eos_token"), std::string::npos) << Message();
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
