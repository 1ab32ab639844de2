#include "rollout/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace keel::rollout {
namespace {

using ::testing::HasSubstr;

constexpr RequestLimits kLimits = {.vocabulary = 20,
                                   .max_model_len = 6,
                                   .has_tokenizer = true,
                                   .log_probs = true,
                                   .weight_version = 4};

// Of three tokens, with a response so far.
Request GoodRequest() {
  Request request;
  request.prompt = {3, 0, 19};
  request.sampling.max_tokens = 4;
  request.so_far = {{5, 6}, {-1.0f, -2.0f}, {{0, 2}, {1, 4}}};
  return request;
}

std::string ProblemWith(const std::function<void(Request*)>& change,
                        const RequestLimits& limits = kLimits) {
  Request request = GoodRequest();
  change(&request);
  const Status status = CheckRequest(request, limits);
  EXPECT_EQ(status.code(), status.ok() ? StatusCode::kOk : StatusCode::kInvalidData);
  return status.message();
}

TEST(RequestCheckTest, WhatCanBeServedIsFine) {
  EXPECT_EQ(ProblemWith([](Request*) {}), "");
  EXPECT_EQ(ProblemWith([](Request* r) { r->so_far = {}; }), "");
  EXPECT_EQ(ProblemWith([](Request* r) { r->sampling.stop = {"end"}; }), "");
  // All positions that the model has, to be scored.
  EXPECT_EQ(ProblemWith([](Request* r) {
              r->prompt.assign(6, 1);
              r->sampling.max_tokens = 0;
              r->sampling.prompt_log_probs = true;
              r->so_far = {};
            }),
            "");
}

TEST(RequestCheckTest, PromptAndSampling) {
  EXPECT_THAT(ProblemWith([](Request* r) { r->prompt.clear(); }), HasSubstr("no tokens"));
  EXPECT_THAT(ProblemWith([](Request* r) { r->prompt[1] = 20; }),
              HasSubstr("the prompt's token 20 is outside the vocabulary of 20"));
  EXPECT_THAT(ProblemWith([](Request* r) { r->prompt[1] = -1; }), HasSubstr("token -1"));
  EXPECT_THAT(ProblemWith([](Request* r) {
                r->prompt.assign(7, 1);
                r->sampling.max_tokens = 0;
                r->sampling.prompt_log_probs = true;
              }),
              HasSubstr("7 tokens to score, more than the 6 positions"));
  EXPECT_THAT(ProblemWith([](Request* r) { r->sampling.top_p = 0; }), HasSubstr("top_p is 0"));
  RequestLimits without = kLimits;
  without.has_tokenizer = false;
  EXPECT_THAT(ProblemWith([](Request* r) { r->sampling.stop = {"end"}; }, without),
              HasSubstr("stop strings need a tokenizer"));
}

TEST(RequestCheckTest, TheResponseSoFar) {
  const auto so_far = [](const std::function<void(Partial*)>& change,
                         const RequestLimits& limits = kLimits) {
    return ProblemWith([&](Request* r) { change(&r->so_far); }, limits);
  };
  EXPECT_THAT(so_far([](Partial* p) { p->spans.clear(); }),
              HasSubstr("the response so far: its first tokens are of no version"));
  EXPECT_THAT(so_far([](Partial* p) { p->given = {{1, 3}}; }), HasSubstr("the response so far: "));
  EXPECT_THAT(so_far([](Partial* p) { p->tokens[0] = 20; }),
              HasSubstr("token 20 is outside the vocabulary of 20"));
  EXPECT_THAT(so_far([](Partial* p) { p->log_probs.pop_back(); }),
              HasSubstr("1 log-probabilities of 2 tokens"));
  RequestLimits silent = kLimits;
  silent.log_probs = false;
  EXPECT_THAT(so_far([](Partial*) {}, silent), HasSubstr("2 log-probabilities of 2 tokens"));
  EXPECT_EQ(so_far([](Partial* p) { p->log_probs.clear(); }, silent), "");
  EXPECT_THAT(so_far([](Partial* p) { p->spans[1].version = 5; }),
              HasSubstr("weight version 5, later than the engine's 4"));
  EXPECT_THAT(ProblemWith([](Request* r) { r->sampling.max_tokens = 1; }),
              HasSubstr("2 tokens, more than max_tokens 1"));
  EXPECT_THAT(ProblemWith([](Request* r) { r->sampling.likeliest = 1; }),
              HasSubstr("likeliest tokens, which are asked for"));
  EXPECT_THAT(ProblemWith([](Request* r) { r->sampling.prompt_log_probs = true; }),
              HasSubstr("prompt's log-probabilities, which are asked for"));
}

}  // namespace
}  // namespace keel::rollout
