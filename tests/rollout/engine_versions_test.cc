// Engine, where its weights change: what is kept of the old ones, and what is not.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "rollout/engine.h"
#include "rollout/kv_cache.h"
#include "rollout/kv_capacity.h"
#include "rollout/kv_groups.h"
#include "tests/rollout/rollout_model.h"

namespace keel::rollout {
namespace {

using testing::ExpectSame;
using testing::MixedRequests;
using testing::RolloutModel;

// R12's last part: what version v computed is never used at v + 1.
TEST(EngineTest, ANewVersionStartsFromAColdCache) {
  RolloutModel model;
  const auto requests = MixedRequests(16, 1.0);
  Engine engine = model.MakeEngine();
  const auto before = engine.Generate(requests);
  EXPECT_EQ(before[0].weight_version, 0);
  model.ChangeWeights(99);
  engine.SetWeightVersion(1);
  const auto after = engine.Generate(requests);
  Engine cold = model.MakeEngine();
  const auto expected = cold.Generate(requests);
  ExpectSame(after, expected, "after the sync");
  EXPECT_EQ(after[0].weight_version, 1);
  EXPECT_NE(after[5].log_probs, before[5].log_probs);
  EXPECT_THROW(engine.SetWeightVersion(0), Error);
  EXPECT_EQ(engine.weight_version(), 1);
}

TEST(EngineTest, RunningRequestsKeepTheirTokensAndGoOnWithTheNewWeights) {
  RolloutModel model;
  const std::vector<int32_t> prompt = {2, 7, 1, 8, 2, 8};
  const auto old_tokens = model.GreedyByRecompute(prompt, 5);
  Request request;
  request.prompt = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 12;
  Engine engine = model.MakeEngine();
  engine.Add(request);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(engine.Step().empty());
  model.ChangeWeights(99);
  engine.SetWeightVersion(4);
  std::vector<Completion> done;
  while (done.empty()) done = engine.Step();
  std::vector<int32_t> context = prompt;
  context.insert(context.end(), old_tokens.begin(), old_tokens.end());
  std::vector<int32_t> expected = old_tokens;
  const auto rest = model.GreedyByRecompute(context, 7);
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(done[0].tokens, expected);
  EXPECT_EQ(done[0].weight_version, 0);
  EXPECT_EQ(done[0].newest_weight_version, 4);
}

// The likeliest `before` tokens by the weights of one seed, then `after` by those of another, over
// one cache that nobody computes again.
std::vector<int32_t> GreedyOverKeptKv(RolloutModel& model, const std::vector<int32_t>& prompt,
                                      int before, int after) {
  const at::NoGradGuard no_grad;
  const model::KvShape shape = model.decoder().kv_shape();
  const KvGroups groups = GroupsOf(shape, 64);
  constexpr int64_t kBlocks = 8, kBlockSize = 16;
  const auto count = std::ssize(groups.windows);
  KvCache cache(shape, groups, kBlocks * count, kBlockSize, /*states=*/1);
  std::vector<std::vector<int32_t>> blocks(groups.windows.size());
  for (int64_t i = 0; i < kBlocks * count; ++i)
    blocks[static_cast<size_t>(i % count)].push_back(static_cast<int32_t>(i));
  std::vector<int32_t> next = prompt, response;
  int64_t past = 0;
  model.ChangeWeights(11);
  for (int i = 0; i < before + after; ++i) {
    if (i == before) model.ChangeWeights(99);
    const auto tokens = std::ssize(next);
    model::DecodeBatch batch;
    batch.ids = next;
    batch.sequences.push_back({past, tokens, past + tokens, blocks, 0});
    batch.outputs = {tokens - 1};
    const at::Tensor hidden = model.decoder().Decode(batch, cache);
    const at::Tensor logits =
        model.decoder().DecodeLogits(hidden, parallel::Arithmetic::kGeneration);
    response.push_back(static_cast<int32_t>(logits[0].argmax().item<int64_t>()));
    past += tokens;
    next = {response.back()};
  }
  return response;
}

TEST(EngineTest, KeptKeysAndValuesAreUsedByTheirOwnSequenceAlone) {
  for (const auto family :
       {model::Family::kLlama, model::Family::kGemma2, model::Family::kQwen35}) {
    RolloutModel model(family);
    constexpr int kBefore = 4, kAfter = 20;
    std::vector<Request> requests;
    for (const int length : {3, 14, 16, 37}) {
      for (const int sample : {0, 1}) {
        Request request;
        request.prompt_id = static_cast<uint64_t>(length);
        request.sample = sample;
        for (int t = 0; t < length; ++t)
          request.prompt.push_back(static_cast<int32_t>((t * t + 5 * length) % 131));
        request.sampling.temperature = 0;
        request.sampling.max_tokens = kBefore + kAfter;
        requests.push_back(request);
      }
    }
    std::vector<std::vector<int32_t>> expected;
    for (const Request& request : requests)
      expected.push_back(GreedyOverKeptKv(model, request.prompt, kBefore, kAfter));

    EngineOptions options;
    options.recompute_kv = false;
    Engine engine = model.MakeEngine(options);
    model.ChangeWeights(11);
    for (const Request& request : requests) engine.Add(request);
    for (int i = 0; i < kBefore; ++i) EXPECT_TRUE(engine.Step().empty());
    model.ChangeWeights(99);
    engine.SetWeightVersion(4);
    // A sample of a prompt that others have kept, and one whose prompt is what another comes to be.
    Request sibling = requests[6], reader;
    sibling.sample = 2;
    engine.Add(sibling);
    reader.prompt_id = 99;
    reader.prompt = requests[0].prompt;
    reader.prompt.insert(reader.prompt.end(), expected[0].begin(), expected[0].end() - 1);
    reader.sampling = sibling.sampling;
    std::map<std::pair<uint64_t, int>, Completion> done;
    while (!engine.idle()) {
      for (Completion& c : engine.Step()) {
        if (c.prompt_id == requests[0].prompt_id && c.sample == 0) engine.Add(reader);
        const auto key = std::pair(c.prompt_id, c.sample);
        done[key] = std::move(c);
      }
    }
    bool other_than_recomputed = false;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Completion& c = done.at({requests[i].prompt_id, requests[i].sample});
      EXPECT_EQ(c.tokens, expected[i]) << "request " << i;
      EXPECT_EQ(c.spans, (std::vector<VersionSpan>{{0, 0}, {kBefore, 4}}));
      std::vector<int32_t> context = requests[i].prompt;
      context.insert(context.end(), c.tokens.begin(), c.tokens.begin() + kBefore);
      const std::vector<int32_t> kept(c.tokens.begin() + kBefore, c.tokens.end());
      other_than_recomputed =
          other_than_recomputed || kept != model.GreedyByRecompute(context, kAfter);
    }
    EXPECT_TRUE(other_than_recomputed) << "what was kept made no difference";
    EXPECT_EQ(engine.stats().recomputed_tokens, 0);
    for (const Request& request : {sibling, reader}) {
      const Completion& c = done.at({request.prompt_id, request.sample});
      Engine cold = model.MakeEngine();
      ExpectSame({c}, cold.Generate({request}), "it began with the later weights");
    }
  }
}

TEST(EngineTest, WhatIsComputedAgainIsCounted) {
  RolloutModel model;
  Request request;
  request.prompt = {2, 7, 1, 8, 2, 8};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 12;
  Engine engine = model.MakeEngine();
  engine.Add(request);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(engine.Step().empty());
  EXPECT_EQ(engine.stats().recomputed_tokens, 0);
  engine.SetWeightVersion(1);
  while (!engine.idle()) engine.Step();
  EXPECT_EQ(engine.stats().recomputed_tokens, 6 + 4) << "the fifth was chosen, and not computed";
  EXPECT_EQ(engine.stats().computed_tokens, 6 + 11 + 10);
}

TEST(EngineTest, AnInvalidEngineRefusesUntilTheNextVersion) {
  RolloutModel model;
  const auto requests = MixedRequests(2, 0);
  Engine engine = model.MakeEngine();
  engine.Invalidate("rank 3 was lost in the middle of a sync");
  engine.Add(requests[0]);
  try {
    engine.Step();
    FAIL() << "generated from broken weights";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("rank 3 was lost"), std::string::npos);
  }
  EXPECT_FALSE(engine.idle());
  engine.SetWeightVersion(1);
  std::vector<Completion> done;
  while (done.empty()) done = engine.Step();
  EXPECT_EQ(done[0].weight_version, 1);
}

}  // namespace
}  // namespace keel::rollout
