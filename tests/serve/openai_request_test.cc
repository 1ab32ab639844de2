#include "serve/openai_request.h"

#include <gtest/gtest.h>

#include <string>

namespace keel::serve {
namespace {

// The request, which must be one.
OpenAiRequest Read(Endpoint endpoint, const std::string& body) {
  OpenAiRequest request;
  const auto refusal = ReadOpenAiRequest(endpoint, body, &request);
  EXPECT_FALSE(refusal) << refusal->message;
  return request;
}

// The parameter that is named, and what is said of it.
Refusal Refused(Endpoint endpoint, const std::string& body) {
  OpenAiRequest request;
  const auto refusal = ReadOpenAiRequest(endpoint, body, &request);
  if (!refusal) {
    ADD_FAILURE() << body << " was taken";
    return {};
  }
  EXPECT_EQ(refusal->status, 400);
  return *refusal;
}

std::string Chat(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "hi"}])" + (more.empty() ? "" : ", " + more) +
         "}";
}
std::string Completion(const std::string& more) {
  return R"({"prompt": "hi")" + (more.empty() ? "" : ", " + more) + "}";
}

TEST(OpenAiRequestTest, DefaultsAreOpenAis) {
  const OpenAiRequest request = Read(Endpoint::kCompletions, Completion(""));
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "hi");
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_FALSE(request.max_tokens || request.seed || request.stream || request.log_probs);
}

TEST(OpenAiRequestTest, EveryParameterIsRead) {
  const OpenAiRequest request = Read(Endpoint::kChat, Chat(R"(
    "model": "m", "n": 3, "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
    "min_p": 0.1, "repetition_penalty": 1.2, "stop": ["a", "b"], "stop_token_ids": [4], "seed": -1,
    "logprobs": true, "top_logprobs": 3, "parallel_tool_calls": false, "stream": true, "ignore_eos": true,
    "stream_options": {"include_usage": true}, "tools": [{"type": "function",
    "function": {"name": "f"}}])"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.9);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.sampling.min_p, 0.1);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.2);
  EXPECT_EQ(request.sampling.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.sampling.stop_token_ids, std::vector<int32_t>{4});
  EXPECT_EQ(request.seed, ~uint64_t{0});
  EXPECT_TRUE(request.log_probs && request.stream && request.include_usage &&
              request.sampling.ignore_eos);
  EXPECT_EQ(request.messages.size(), 1u);
  EXPECT_EQ(request.tools.size(), 1u);
  EXPECT_EQ(request.likeliest, 3);
  EXPECT_FALSE(request.parallel_tool_calls);
  const OpenAiRequest echoed =
      Read(Endpoint::kCompletions, Completion(R"("echo": true, "max_tokens": 0, "logprobs": 5)"));
  EXPECT_TRUE(echoed.echo && echoed.log_probs);
  EXPECT_EQ(echoed.max_tokens, 0);
  EXPECT_EQ(echoed.likeliest, 5);
}

// OpenAI's clients send an earlier call's arguments as text; templates show them as an object.
TEST(OpenAiRequestTest, ArgumentsOfEarlierCallsAreObjects) {
  const auto body = [](const std::string& arguments) {
    return R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
      "function": {"name": "f", "arguments": )" +
           arguments + "}}]}]}";
  };
  const OpenAiRequest request = Read(Endpoint::kChat, body(R"("{\"x\": [1]}")"));
  EXPECT_EQ(request.messages[0]["tool_calls"][0]["function"]["arguments"],
            Json::parse(R"({"x": [1]})"));
  EXPECT_EQ(Refused(Endpoint::kChat, body(R"("{no JSON")")).param, "messages");
  EXPECT_EQ(Refused(Endpoint::kChat, body(R"("[1]")")).param, "messages");
  EXPECT_EQ(Refused(Endpoint::kChat, body("[1]")).param, "messages");
  EXPECT_EQ(Refused(Endpoint::kChat, body("5")).param, "messages");
  for (const char* none : {"null", R"("")", "{}"}) {
    const OpenAiRequest bare = Read(Endpoint::kChat, body(none));
    EXPECT_EQ(bare.messages[0]["tool_calls"][0]["function"]["arguments"], Json::object()) << none;
  }
}

TEST(OpenAiRequestTest, PromptsAreTextsOrIds) {
  const auto prompts = [](const std::string& prompt) {
    return Read(Endpoint::kCompletions, R"({"prompt": )" + prompt + "}").prompts;
  };
  EXPECT_EQ(prompts(R"(["a", "b"])").size(), 2u);
  EXPECT_EQ(std::get<std::vector<int32_t>>(prompts("[1, 2]").at(0)), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(prompts("[[1, 2], [3]]").size(), 2u);
  for (const char* wrong : {"1", "{}", "[]", "[[]]", "[1, \"a\"]", "[-1]", "[1.5]", "[true]"})
    EXPECT_EQ(Refused(Endpoint::kCompletions, std::string(R"({"prompt": )") + wrong + "}").param,
              "prompt")
        << wrong;
}

TEST(OpenAiRequestTest, WhatChangesNothingIsTaken) {
  Read(Endpoint::kChat, Chat(R"("user": "u", "metadata": {"a": "b"}, "store": true,
    "service_tier": "auto", "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {},
    "response_format": {"type": "text"}, "tool_choice": "auto", "seed": null, "logprobs": false,
    "modalities": ["text"], "parallel_tool_calls": true)"));
  Read(Endpoint::kCompletions, Completion(R"("best_of": 1, "echo": false, "logprobs": 0,
    "suffix": null)"));
}

TEST(OpenAiRequestTest, WhatIsNotSupportedIsRefusedByName) {
  const std::pair<const char*, const char*> chat[] = {
      {"frequency_penalty", "0.1"},
      {"presence_penalty", "-1"},
      {"logit_bias", R"({"5": 1})"},
      {"response_format", R"({"type": "json_object"})"},
      {"tool_choice", R"("required")"},
      {"tool_choice", R"({"type": "function", "function": {"name": "f"}})"},
      {"tools", R"([{"type": "function"}])"},
      {"tools", R"([{"type": "web_search", "function": {"name": "f"}}])"},
      {"top_logprobs", "3"},  // without logprobs
      {"top_logprobs", "21"},
      {"max_tokens", "0"},
      {"functions", "[]"},
      {"modalities", R"(["audio"])"},
      {"prompt", R"("x")"},
      {"no_such_parameter", "1"},
      {"best_of", "2"},
      {"reasoning_effort", R"("low")"}};
  for (const auto& [name, value] : chat) {
    const Refusal refusal =
        Refused(Endpoint::kChat, Chat(std::string("\"") + name + "\": " + value));
    EXPECT_EQ(refusal.param, name);
    EXPECT_NE(refusal.message.find(name), std::string::npos) << refusal.message;
  }
  const std::pair<const char*, const char*> completion[] = {
      {"best_of", "2"}, {"echo", "1"},      {"suffix", R"("x")"}, {"logprobs", "21"},
      {"tools", "[]"},  {"messages", "[]"}, {"logprobs", "true"}};
  for (const auto& [name, value] : completion) {
    EXPECT_EQ(Refused(Endpoint::kCompletions, Completion(std::string("\"") + name + "\": " + value))
                  .param,
              name);
  }
}

TEST(OpenAiRequestTest, WrongValuesAreRefused) {
  const std::pair<const char*, const char*> wrong[] = {{"n", "0"},
                                                       {"n", "129"},
                                                       {"n", "1.5"},
                                                       {"max_tokens", "0"},
                                                       {"temperature", "-1"},
                                                       {"temperature", "\"1\""},
                                                       {"top_p", "0"},
                                                       {"top_p", "1.1"},
                                                       {"top_k", "0"},
                                                       {"top_k", "18446744073709551615"},
                                                       {"min_p", "2"},
                                                       {"repetition_penalty", "0"},
                                                       {"stop", "[1]"},
                                                       {"stop", "\"\""},
                                                       {"seed", "1.5"},
                                                       {"stream", "1"},
                                                       {"model", "1"},
                                                       {"stop_token_ids", "[99999999999]"}};
  for (const auto& [name, value] : wrong) {
    EXPECT_EQ(Refused(Endpoint::kCompletions, Completion(std::string("\"") + name + "\": " + value))
                  .param,
              name)
        << value;
  }
  EXPECT_EQ(Refused(Endpoint::kChat, Chat(R"("max_tokens": 3, "max_completion_tokens": 4)")).param,
            "max_completion_tokens");
  EXPECT_EQ(Refused(Endpoint::kChat, Chat(R"("stream_options": {"include_usage": true})")).param,
            "stream_options");
  EXPECT_EQ(Refused(Endpoint::kChat, "{}").param, "messages");
  for (const char* parts : {"[]", R"(["hi"])", R"([{"type": "text", "text": "hi"}, 1])"}) {
    const std::string body = R"({"messages": [{"role": "user", "content": )";
    EXPECT_EQ(Refused(Endpoint::kChat, body + parts + "}]}").param, "messages") << parts;
  }
  EXPECT_EQ(Refused(Endpoint::kCompletions, "{}").param, "prompt");
}

TEST(OpenAiRequestTest, WhatIsNoRequest) {
  for (const char* body : {"", "x", "[]", "{", R"({"prompt": "a", "prompt": "b"})", "{}x"})
    Refused(Endpoint::kCompletions, body);
  Refused(Endpoint::kCompletions, std::string(100'000, '['));
}

TEST(OpenAiRequestTest, NoToolsAreShownWhereNoneMayBeCalled) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_TRUE(Read(Endpoint::kChat, Chat(tools + R"(, "tool_choice": "none")")).tools.is_null());
  EXPECT_EQ(Read(Endpoint::kChat, Chat(tools + R"(, "tool_choice": "auto")")).tools.size(), 1u);
}

}  // namespace
}  // namespace keel::serve
