// Engine, with responses that it did not begin: taken out of another one, or gone on behind a tool.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "rollout/engine.h"
#include "tests/rollout/rollout_model.h"

namespace keel::rollout {
namespace {

using testing::ExpectSame;
using testing::MixedRequests;
using testing::RolloutModel;

// A response that is taken out after any token and goes on in another engine, beside others, is the
// one that it would have been.
TEST(EngineTest, AResponseGoesOnInAnotherEngine) {
  for (const auto& [family, temperature] :
       {std::pair(model::Family::kLlama, 1.0), std::pair(model::Family::kGemma2, 1.0),
        std::pair(model::Family::kQwen3Moe, 0.0), std::pair(model::Family::kQwen35, 1.0)}) {
    RolloutModel model(family);
    auto requests = MixedRequests(6, temperature);
    EngineOptions options;
    options.logprobs_mode = LogProbsMode::kRaw;
    Engine straight = model.MakeEngine(options);
    const auto wanted = straight.Generate(requests);
    for (int cut = 0; cut < 8; ++cut) {
      Engine first = model.MakeEngine(options);
      for (const Request& request : requests) first.Add(request);
      std::vector<Completion> found(requests.size());
      const auto place = [&](const Completion& done) -> Completion& {
        for (size_t i = 0; i < requests.size(); ++i) {
          if (requests[i].prompt_id == done.prompt_id && requests[i].sample == done.sample)
            return found[i];
        }
        throw std::logic_error("of no request");
      };
      for (int step = 0; step < cut; ++step)
        for (const Completion& done : first.Step()) place(done) = done;
      Engine second = model.MakeEngine(options);
      for (const Request& request : requests) {
        const auto so_far = first.SoFar(request.prompt_id, request.sample);
        EXPECT_EQ(first.Take(request.prompt_id, request.sample), so_far);
        if (!so_far) continue;
        Request rest = request;
        rest.so_far = *so_far;
        second.Add(std::move(rest));
      }
      EXPECT_TRUE(first.idle());
      EXPECT_EQ(first.Take(requests[0].prompt_id, requests[0].sample), std::nullopt);
      while (!second.idle())
        for (const Completion& done : second.Step()) place(done) = done;
      ExpectSame(wanted, found, fmt::format("cut after {} steps", cut));
    }
  }
}

TEST(EngineTest, SpansSayWhichVersionChoseWhichTokens) {
  RolloutModel model;
  EngineOptions options;
  options.weight_version = 3;
  Engine engine = model.MakeEngine(options);
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 6;
  request.sampling.ignore_eos = true;
  engine.Add(request);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(engine.Step().empty());
  engine.SetWeightVersion(5);
  EXPECT_TRUE(engine.Step().empty());
  const auto so_far = engine.Take(0, 0);
  ASSERT_TRUE(so_far);
  EXPECT_EQ(so_far->spans, (std::vector<VersionSpan>{{0, 3}, {2, 5}}));
  EXPECT_EQ(so_far->size(), 3);
  options.weight_version = 8;
  Engine other = model.MakeEngine(options);
  request.so_far = *so_far;
  const Completion done = other.Generate({request}).front();
  ASSERT_TRUE(done.error.ok()) << done.error.message();
  EXPECT_EQ(done.spans, (std::vector<VersionSpan>{{0, 3}, {2, 5}, {3, 8}}));
  EXPECT_EQ(done.weight_version, 3);
  EXPECT_EQ(done.newest_weight_version, 8);
  EXPECT_EQ(done.tokens.size(), 6U);
  EXPECT_EQ(done.log_probs.size(), 6U);
  EXPECT_TRUE(std::equal(so_far->tokens.begin(), so_far->tokens.end(), done.tokens.begin()));

  // One that is whole already comes back as it is.
  request.so_far = {done.tokens, done.log_probs, done.spans};
  const Completion again = other.Generate({request}).front();
  EXPECT_EQ(again.tokens, done.tokens);
  EXPECT_EQ(again.spans, done.spans);
  EXPECT_EQ(again.finish, FinishReason::kLength);
  request.sampling.ignore_eos = false;
  request.sampling.stop_token_ids = {request.so_far.tokens.back()};
  EXPECT_EQ(other.Generate({request}).front().finish, FinishReason::kStop);

  // Where it is forgotten before it has come back, the next of its name is another.
  other.Add(request);
  EXPECT_FALSE(other.Take(0, 0));
  EXPECT_FALSE(other.idle());
  other.Forget(0, 0);
  EXPECT_TRUE(other.idle());
}

// A response of two turns: what was given between them is context, and ends nothing.
TEST(EngineTest, GivenTokensAreGoneOnFrom) {
  RolloutModel model;
  EngineOptions options;
  options.weight_version = 3;
  Engine engine = model.MakeEngine(options);
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 4;
  request.sampling.ignore_eos = true;
  Completion first = engine.Generate({request}).front();
  request.so_far = {first.tokens, first.log_probs, first.spans};
  const int32_t stop = 9;
  for (const int32_t token : {7, stop}) request.so_far.tokens.push_back(token);
  request.so_far.log_probs.resize(6, 0.0F);
  request.so_far.given = {{4, 6}};
  request.so_far.tool_memory = "{}";
  request.sampling.max_tokens = 9;
  request.sampling.stop_token_ids = {stop};
  engine.Add(request);
  EXPECT_EQ(engine.SoFar(0, 0), request.so_far);
  const Partial taken = *engine.Take(0, 0);
  EXPECT_EQ(taken, request.so_far);
  const Completion done = engine.Generate({request}).front();
  ASSERT_TRUE(done.error.ok()) << done.error.message();
  EXPECT_GT(done.tokens.size(), 6U) << "a stop token that was given ends nothing";
  EXPECT_EQ(done.given, request.so_far.given);
  EXPECT_EQ(done.tool_memory, "{}");
  // The same tokens as a prompt.
  Request plain;
  plain.prompt = request.prompt;
  plain.prompt.insert(plain.prompt.end(), taken.tokens.begin(), taken.tokens.end());
  plain.sampling.max_tokens = 1;
  plain.sampling.temperature = request.sampling.temperature = 0;
  const Completion again = engine.Generate({request}).front();
  EXPECT_EQ(engine.Generate({plain}).front().tokens.front(), again.tokens[6]);
}

TEST(EngineTest, AResponseSoFarThatCannotBeIsRefused) {
  RolloutModel model;
  EngineOptions options;
  options.weight_version = 2;
  Engine engine = model.MakeEngine(options);
  const auto refused = [&](const Partial& so_far, const char* what) {
    Request request;
    request.prompt = {1};
    request.sampling.max_tokens = 2;
    request.so_far = so_far;
    const Completion done = engine.Generate({request}).front();
    EXPECT_EQ(done.finish, FinishReason::kError);
    EXPECT_NE(done.error.message().find(what), std::string::npos) << done.error.message();
  };
  refused({{-1}, {0}, {{0, 1}}}, "token -1 is outside");
  refused({{1, 2, 3}, {0, 0, 0}, {{0, 1}}}, "3 tokens, more than max_tokens 2");
  refused({{1}, {}, {{0, 1}}}, "0 log-probabilities of 1 tokens");
  refused({{1}, {0}, {}}, "of no version");
  refused({{1}, {0}, {{0, 1}}, {{0, 2}}}, "behind the last token");
  refused({{1}, {0}, {{0, 3}}}, "weight version 3, later than the engine's 2");
}

}  // namespace
}  // namespace keel::rollout
