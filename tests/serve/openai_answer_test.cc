#include "serve/openai_answer.h"

#include <gtest/gtest.h>

namespace keel::serve {
namespace {

const AnswerHead kChatHead{Endpoint::kChat, "chatcmpl-1", 5, "m"};
const AnswerHead kHead{Endpoint::kCompletions, "cmpl-1", 5, "m"};

TEST(OpenAiAnswerTest, AWholeConversation) {
  EXPECT_EQ(WholeAnswer(kChatHead, {{.index = 0, .text = "a", .finish = "stop"}}, {3, 2}),
            Json::parse(R"({"id": "chatcmpl-1", "object": "chat.completion", "created": 5,
              "model": "m", "choices": [{"index": 0, "message": {"role": "assistant",
              "content": "a", "refusal": null}, "logprobs": null, "finish_reason": "stop"}],
              "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})"));
}

TEST(OpenAiAnswerTest, AWholeCompletionWithScores) {
  const Choice choice{.index = 1,
                      .text = "\xc3\xa9z",
                      .finish = "length",
                      .scored = true,
                      .scores = {{"\xc3\xa9", -0.5}, {"z", -0.25, {}, 1}}};
  const Json answer = WholeAnswer(kHead, {choice}, {3, 2});
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0],
            Json::parse(R"({"index": 1, "text": "éz", "logprobs": {"tokens": ["é", "z"],
              "token_logprobs": [-0.5, -0.25], "top_logprobs": null, "text_offset": [0, 1]},
              "finish_reason": "length"})"));
}

// Of a prompt's first token there is no probability; a part of a character has a name of its own.
TEST(OpenAiAnswerTest, TheLikeliestOfEachPlace) {
  const Choice choice{.scored = true,
                      .scores = {{"a", std::nullopt}, {"b", -2.0, {{"c", -0.5}, {"\xe2", -1.0}}}},
                      .with_likeliest = true};
  const Json found = WholeAnswer(kHead, {choice}, {2, 0})["choices"][0]["logprobs"];
  EXPECT_EQ(found["token_logprobs"], Json::parse("[null, -2.0]"));
  EXPECT_EQ(found["top_logprobs"],
            Json::parse(R"([null, {"c": -0.5, "bytes:\\xe2": -1.0, "b": -2.0}])"));
}

TEST(OpenAiAnswerTest, CallsOfTools) {
  const Choice choice{
      .finish = "tool_calls", .calls = {{"call_1", "f", "{\"x\":1}"}}, .first_call = 2};
  const Json call = Json::parse(R"({"id": "call_1", "type": "function",
      "function": {"name": "f", "arguments": "{\"x\":1}"}})");
  const Json message = WholeAnswer(kChatHead, {choice}, {1, 1})["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["tool_calls"], Json::array({call}));
  Json numbered = call;
  numbered["index"] = 2;
  EXPECT_EQ(Chunk(kChatHead, choice)["choices"][0]["delta"],
            (Json{{"tool_calls", Json::array({numbered})}}));
}

TEST(OpenAiAnswerTest, TheCheckpointIsNamed) {
  AnswerHead head = kHead;
  EXPECT_FALSE(Chunk(head, {}).contains("system_fingerprint"));
  head.weights = "global_step_40";
  EXPECT_EQ(Chunk(head, {})["system_fingerprint"], "global_step_40");
}

TEST(OpenAiAnswerTest, ScoresOfAConversationHaveBytes) {
  const Choice choice{.text = "\xc3\xa9",
                      .scored = true,
                      .scores = {{"\xc3\xa9", -0.5}, {"\xe2", -1.0, {{"\xe2", -1.0}}}}};
  EXPECT_EQ(Chunk(kChatHead, choice)["choices"][0]["logprobs"],
            Json::parse(R"({"content": [{"token": "é", "logprob": -0.5, "bytes": [195, 169],
              "top_logprobs": []}, {"token": "\\xe2", "logprob": -1.0, "bytes": [226],
              "top_logprobs": [{"token": "\\xe2", "logprob": -1.0, "bytes": [226]}]}],
              "refusal": null})"));
}

TEST(OpenAiAnswerTest, ChunksOfAStream) {
  EXPECT_EQ(RoleChunk(kChatHead, 2)["choices"][0]["delta"],
            Json::parse(R"({"role": "assistant", "content": ""})"));
  const Json more = Chunk(kChatHead, {.index = 2, .text = "a"});
  EXPECT_EQ(more["object"], "chat.completion.chunk");
  EXPECT_EQ(more["choices"][0], Json::parse(R"({"index": 2, "delta": {"content": "a"},
      "logprobs": null, "finish_reason": null})"));
  EXPECT_EQ(Chunk(kChatHead, {.finish = "stop"})["choices"][0],
            Json::parse(R"({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"})"));
  EXPECT_EQ(Chunk(kHead, {.text = "a"})["choices"][0]["text"], "a");
  const Json usage = UsageChunk(kHead, {1, 2});
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 3);
}

TEST(OpenAiAnswerTest, AnEventIsOneLineOfUtf8) {
  EXPECT_EQ(Event({{"a", "x\ny"}}), "data: {\"a\":\"x\\ny\"}\n\n");
  EXPECT_EQ(Event({{"a", "\xff"}}), "data: {\"a\":\"\xef\xbf\xbd\"}\n\n");
}

TEST(OpenAiAnswerTest, ErrorsHaveTheirType) {
  EXPECT_EQ(ErrorAnswer({.status = 400, .message = "no", .param = "n"}),
            Json::parse(R"({"error": {"message": "no", "type": "invalid_request_error",
              "param": "n", "code": null}})"));
  EXPECT_EQ(ErrorAnswer({.status = 401})["error"]["type"], "authentication_error");
  EXPECT_EQ(ErrorAnswer({.status = 429})["error"]["type"], "rate_limit_error");
  EXPECT_EQ(ErrorAnswer({.status = 503})["error"]["type"], "server_error");
}

}  // namespace
}  // namespace keel::serve
