// A GGUF file's vocabulary as tokenizer.json. That real ones give the ids of their models' own
// tokenizers is shown by e2e/import_gguf_test.py.

#include "model/gguf/gguf_tokenizer.h"

#include <gmock/gmock.h>

#include "tests/model/gguf/gguf_builder.h"

namespace keel::model {
namespace {

using testing::BytesFile;
using testing::GgufBuilder;
using ::testing::HasSubstr;

Result<GgufTokenizer> TokenizerOf(const GgufBuilder& gguf) {
  const std::string bytes = gguf.Build();
  return ReadGgufTokenizer(ValueOrThrow(ReadGguf(BytesFile(bytes), "a.gguf")).metadata);
}
std::string TokenizerError(const GgufBuilder& gguf) {
  const auto tokenizer = TokenizerOf(gguf);
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidData);
  return tokenizer.status().message();
}

struct Parts {
  std::string model = "gpt2", pre = "gpt-2";
  std::vector<std::string> tokens = {"a", "b", "ab", "<end>"}, merges = {"a b"};
  std::vector<int32_t> kinds = {1, 1, 1, 3};
};
GgufBuilder Of(const Parts& parts) {
  GgufBuilder gguf;
  gguf.Text("tokenizer.ggml.model", parts.model);
  gguf.Text("tokenizer.ggml.pre", parts.pre);
  gguf.Texts("tokenizer.ggml.tokens", parts.tokens);
  gguf.Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, parts.kinds);
  gguf.Texts("tokenizer.ggml.merges", parts.merges);
  return gguf;
}

TEST(GgufTokenizerTest, BytePairs) {
  GgufBuilder gguf = Of({});
  gguf.Int("tokenizer.ggml.bos_token_id", 3);
  gguf.Bool("tokenizer.ggml.add_bos_token", true);
  gguf.Text("tokenizer.chat_template", "{{ messages }}");
  const GgufTokenizer tokenizer = ValueOrThrow(TokenizerOf(gguf));
  const Json& json = tokenizer.tokenizer;
  EXPECT_EQ(json["model"]["vocab"].size(), 4u);
  EXPECT_EQ(json["model"]["merges"], Json::array({Json::array({"a", "b"})}));
  EXPECT_EQ(json["added_tokens"][0]["content"], "<end>");
  EXPECT_EQ(json["added_tokens"][0]["special"], true);
  EXPECT_EQ(json["pre_tokenizer"]["type"], "ByteLevel");
  EXPECT_EQ(json["post_processor"]["single"][0]["SpecialToken"]["id"], "<end>");
  EXPECT_EQ(tokenizer.config["bos_token"], "<end>");
  EXPECT_EQ(tokenizer.chat_template, "{{ messages }}");
}

TEST(GgufTokenizerTest, NamedTemplatesStandInTheConfiguration) {
  GgufBuilder gguf = Of({});
  gguf.Text("tokenizer.chat_template", "one");
  gguf.Text("tokenizer.chat_template.tool_use", "two");
  const GgufTokenizer tokenizer = ValueOrThrow(TokenizerOf(gguf));
  EXPECT_EQ(tokenizer.chat_template, "");
  EXPECT_EQ(tokenizer.config["chat_template"][1]["name"], "tool_use");
}

TEST(GgufTokenizerTest, SentencePieceMergesFollowTheScores) {
  Parts parts{"llama", "default", {"<unk>", "a", "b", "c", "ab", "bc", "abc"}, {}, {}};
  parts.kinds = {2, 1, 1, 1, 1, 1, 1};
  GgufBuilder gguf = Of(parts);
  gguf.keys.pop_back();
  gguf.Numbers<float>("tokenizer.ggml.scores", GgufType::kFloat32, {0, -9, -9, -9, -2, -1, -3});
  gguf.Int("tokenizer.ggml.unknown_token_id", 0);
  gguf.Bool("tokenizer.ggml.add_bos_token", false);
  const Json json = ValueOrThrow(TokenizerOf(gguf)).tokenizer;
  const auto pair = [](const char* left, const char* right) { return Json::array({left, right}); };
  EXPECT_EQ(json["model"]["merges"],
            Json::array({pair("b", "c"), pair("a", "b"), pair("ab", "c"), pair("a", "bc")}));
  EXPECT_EQ(json["model"]["unk_token"], "<unk>");
  EXPECT_EQ(json["normalizer"]["normalizers"].size(), 2u);
}

// As in the model's own tokenizer.json; Phi-4's, of byte pairs, do not.
TEST(GgufTokenizerTest, PhisTokensTakeTheWhiteSpaceBehindThem) {
  const auto strips = [](const char* family, const char* kind) {
    GgufBuilder gguf = Of({kind, "gpt-2", {"<s>", "a", "</s>", "<|user|>"}, {}, {3, 1, 4, 3}});
    gguf.Numbers<float>("tokenizer.ggml.scores", GgufType::kFloat32, {0, -1, 0, 0});
    gguf.Text("general.architecture", family);
    gguf.Bool("tokenizer.ggml.add_bos_token", false);
    std::vector<bool> found;
    const Json json = ValueOrThrow(TokenizerOf(gguf)).tokenizer;
    for (const Json& token : json["added_tokens"]) found.push_back(token["rstrip"].get<bool>());
    return found;
  };
  EXPECT_EQ(strips("phi3", "llama"), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(strips("phi3", "gpt2"), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(strips("llama", "llama"), (std::vector<bool>{false, false, false}));
}

TEST(GgufTokenizerTest, WhatIsNotUnderstoodIsRefused) {
  const auto with = [](const auto& change) {
    Parts parts;
    change(parts);
    return TokenizerError(Of(parts));
  };
  EXPECT_THAT(with([](Parts& p) { p.model = "t5"; }),
              HasSubstr("key tokenizer.ggml.model: \"t5\" is not supported"));
  EXPECT_THAT(with([](Parts& p) { p.pre = "default"; }),
              HasSubstr("key tokenizer.ggml.pre: \"default\" is not known to Keel, which knows"));
  EXPECT_THAT(with([](Parts& p) { p.tokens[1] = "a"; }),
              HasSubstr("tokens 0 and 1 are both \"a\""));
  EXPECT_THAT(with([](Parts& p) { p.tokens[1] = "\xff"; }), HasSubstr("token 1 is not UTF-8"));
  EXPECT_THAT(with([](Parts& p) { p.kinds.pop_back(); }), HasSubstr("3 kinds of 4 tokens"));
  EXPECT_THAT(with([](Parts& p) { p.kinds[0] = 9; }), HasSubstr("token 0 is of kind 9"));
  EXPECT_THAT(with([](Parts& p) { p.merges = {"a c"}; }), HasSubstr("merge 0, \"a c\""));
  EXPECT_THAT(with([](Parts& p) { p.merges = {"ab"}; }), HasSubstr("merge 0, \"ab\""));
  GgufBuilder charsmap = Of({});
  charsmap.Numbers<uint8_t>("tokenizer.ggml.precompiled_charsmap", GgufType::kUint8, {1});
  EXPECT_THAT(TokenizerError(charsmap),
              HasSubstr("key tokenizer.ggml.precompiled_charsmap: is not understood"));
  GgufBuilder end = Of({});
  end.Bool("tokenizer.ggml.add_eos_token", true);
  EXPECT_THAT(TokenizerError(end), HasSubstr("tokenizer.ggml.eos_token_id is missing"));
}

}  // namespace
}  // namespace keel::model
