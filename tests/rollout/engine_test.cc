#include "rollout/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "parallel/tensor/matrix_product.h"
#include "rollout/kv_cache.h"
#include "rollout/kv_capacity.h"
#include "rollout/kv_groups.h"
#include "tests/model/tokenizer/numbers_tokenizer.h"
#include "tests/rollout/rollout_model.h"

namespace keel::rollout {
namespace {

using testing::MixedRequests;
using testing::RolloutModel;

// Tokens, and log-probabilities bit for bit.
void ExpectSame(const std::vector<Completion>& a, const std::vector<Completion>& b,
                const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(a[i].error.ok()) << a[i].error.message();
    EXPECT_EQ(a[i].tokens, b[i].tokens) << what << ", request " << i;
    EXPECT_EQ(a[i].log_probs, b[i].log_probs) << what << ", request " << i;
    EXPECT_EQ(a[i].finish, b[i].finish);
  }
}

EngineOptions Small(int64_t tokens, int64_t sequences, int64_t blocks, int32_t block_size,
                    const model::Decoder& model) {
  EngineOptions options;
  options.scheduler.max_num_batched_tokens = tokens;
  options.scheduler.max_num_seqs = sequences;
  options.block_size = block_size;
  options.kv_cache_bytes = blocks * block_size * model.kv_shape().bytes_per_token();
  options.logprobs_mode = LogProbsMode::kRaw;
  return options;
}

TEST(EngineTest, GreedyIsWhatRecomputingEverythingGives) {
  for (const auto family :
       {model::Family::kLlama, model::Family::kQwen2, model::Family::kQwen3,
        model::Family::kQwen3Moe, model::Family::kMixtral, model::Family::kGemma2}) {
    for (const bool tied : {false, true}) {
      RolloutModel model(family, tied);
      const auto requests = MixedRequests(12, 0);
      Engine engine = model.MakeEngine();
      const auto completions = engine.Generate(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(completions[i].tokens,
                  model.GreedyByRecompute(requests[i].prompt,
                                          static_cast<int>(requests[i].sampling.max_tokens)));
        EXPECT_EQ(completions[i].finish, FinishReason::kLength);
      }
    }
  }
}

// R22.
TEST(EngineTest, LogProbabilitiesAreTheTrainers) {
  for (const auto& [dtype, family] : {std::pair(at::kFloat, model::Family::kQwen3),
                                      std::pair(at::kBFloat16, model::Family::kQwen3),
                                      std::pair(at::kFloat, model::Family::kQwen3Moe),
                                      std::pair(at::kBFloat16, model::Family::kMixtral)}) {
    RolloutModel model(family, false, dtype);
    EngineOptions options;
    options.logprobs_mode = LogProbsMode::kRaw;
    Engine engine = model.MakeEngine(options);
    const auto requests = MixedRequests(32, 1.0);
    const auto completions = engine.Generate(requests);
    double worst = 0, sum = 0;
    int64_t count = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> tokens = requests[i].prompt;
      tokens.insert(tokens.end(), completions[i].tokens.begin(), completions[i].tokens.end());
      const auto trainer = model.TrainerLogProbs(tokens);
      ASSERT_EQ(completions[i].log_probs.size(), completions[i].tokens.size());
      for (size_t t = 0; t < completions[i].tokens.size(); ++t, ++count) {
        const double gap =
            std::abs(static_cast<double>(completions[i].log_probs[t]) -
                     static_cast<double>(trainer[requests[i].prompt.size() - 1 + t]));
        worst = std::max(worst, gap);
        sum += gap;
      }
    }
    if (dtype == at::kFloat) {
      EXPECT_LE(worst, 1e-5);
    } else {
      EXPECT_LE(sum / static_cast<double>(count), parallel::WidensBf16() ? 1e-3 : 1e-2);
    }
  }
}

// R24 and R28: neither companions, nor order, nor the cache's means change a token or a bit of a
// log-probability.
TEST(EngineTest, NothingAroundARequestChangesIt) {
  struct Model {
    model::Family family;  // kGemma2: two layers of three have a window, shorter than the texts
    at::ScalarType dtype;
  };
  for (const Model& each :
       {Model{model::Family::kLlama, at::kFloat}, Model{model::Family::kLlama, at::kBFloat16},
        Model{model::Family::kGemma2, at::kFloat}}) {
    RolloutModel model(each.family, false, each.dtype);
    const bool windows = each.family == model::Family::kGemma2;
    for (const double temperature : {0.0, 1.0}) {
      const auto requests = MixedRequests(64, temperature);
      std::vector<Completion> alone;
      for (const Request& request : requests) {
        Engine engine = model.MakeEngine(Small(4096, 256, 512, 16, model.decoder()));
        alone.push_back(engine.Generate({request})[0]);
      }
      struct Setting {
        const char* name;
        int64_t tokens, sequences, blocks;
        int32_t block_size;
        bool chunked, caching;
      };
      for (const Setting& s :
           {Setting{"one at a time", 4096, 1, 512, 16, true, true},
            Setting{"seven", 4096, 7, 512, 16, true, true},
            Setting{"all", 4096, 64, 512, 16, true, true},
            Setting{"small parts", 13, 64, 512, 8, true, true},
            Setting{"whole prompts", 64, 64, 512, 8, false, true},
            Setting{"no prefix cache", 64, 64, 512, 8, true, false},
            Setting{"blocks of one", 31, 20, 600, 1, true, true},
            Setting{"blocks run out", 48, 20, 16, 5, true, true},
            Setting{"blocks run out, no prefix cache", 48, 20, 16, 5, true, false}}) {
        // Where a window's first block begins orders the sum over it: whole vectors, for the bits.
        const int32_t block_size = windows ? 16 : s.block_size;  // floats of the widest vector
        EngineOptions options = Small(s.tokens, s.sequences, s.blocks, block_size, model.decoder());
        options.scheduler.enable_chunked_prefill = s.chunked;
        options.enable_prefix_caching = s.caching;
        // What windows give back would otherwise be enough.
        if (windows && s.blocks == 16) options.kv_cache_bytes /= 3;
        Engine engine = model.MakeEngine(options);
        ExpectSame(engine.Generate(requests), alone, s.name);
        EXPECT_EQ(s.blocks == 16, engine.stats().preemptions > 0) << s.name;
      }
      for (const uint32_t seed : {1u, 2u}) {
        std::vector<size_t> order(requests.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::mt19937 random(seed);
        std::shuffle(order.begin(), order.end(), random);
        std::vector<Request> shuffled;
        std::vector<Completion> expected;
        for (const size_t i : order) {
          shuffled.push_back(requests[i]);
          expected.push_back(alone[i]);
        }
        Engine engine = model.MakeEngine(Small(40, 16, 512, 16, model.decoder()));
        ExpectSame(engine.Generate(shuffled), expected, "another order");
      }
    }
  }
}

// R25.
TEST(EngineTest, ReplicasAndRestartsAgreeAndSamplesDiffer) {
  RolloutModel model;
  const auto requests = MixedRequests(40, 1.0);
  Engine whole = model.MakeEngine();
  const auto expected = whole.Generate(requests);
  ExpectSame(whole.Generate(requests), expected, "again");
  for (const size_t half : {size_t{0}, size_t{1}}) {
    std::vector<Request> mine;
    std::vector<Completion> theirs;
    for (size_t i = half; i < requests.size(); i += 2) {
      mine.push_back(requests[i]);
      theirs.push_back(expected[i]);
    }
    Engine replica = model.MakeEngine();
    ExpectSame(replica.Generate(mine), theirs, "replica");
  }
  std::set<std::vector<int32_t>> texts;
  std::vector<Request> samples;
  for (int sample = 0; sample < 16; ++sample) {
    Request request = requests[6];
    request.sample = sample;
    request.sampling.max_tokens = 12;
    samples.push_back(request);
  }
  for (const Completion& c : whole.Generate(samples)) texts.insert(c.tokens);
  EXPECT_EQ(texts.size(), 16u);
  for (Request& request : samples) request.sampling.seed = 6;
  for (const Completion& c : whole.Generate(samples)) texts.insert(c.tokens);
  EXPECT_EQ(texts.size(), 32u);
}

TEST(EngineTest, EachRequestHasItsOwnSampling) {
  RolloutModel model;
  auto requests = MixedRequests(24, 1.0);
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& p = requests[i].sampling;
    if (i % 4 == 0) p.temperature = 0;
    if (i % 4 == 1) p.temperature = 0.3;
    if (i % 4 == 2) p.top_k = 5;
    if (i % 3 == 0) p.repetition_penalty = 1.5;
  }
  Engine engine = model.MakeEngine();
  const auto together = engine.Generate(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    Engine alone = model.MakeEngine();
    ExpectSame({together[i]}, alone.Generate({requests[i]}), "alone");
    if (i % 12 == 4) {
      EXPECT_EQ(together[i].tokens,
                model.GreedyByRecompute(requests[i].prompt,
                                        static_cast<int>(requests[i].sampling.max_tokens)));
    }
  }
}

// R27: the raw definition holds whatever the filters, the processed one is above it by the mass
// that was cut off.
TEST(EngineTest, StoredLogProbabilitiesFollowTheirDefinitionUnderFilters) {
  RolloutModel model;
  auto requests = MixedRequests(24, 1.0);
  for (Request& request : requests) {
    request.sampling.top_p = 0.8;
    request.sampling.top_k = 5;
  }
  EngineOptions options;
  options.logprobs_mode = LogProbsMode::kRaw;
  Engine raw = model.MakeEngine(options);
  options.logprobs_mode = LogProbsMode::kProcessed;
  Engine processed = model.MakeEngine(options);
  const auto a = raw.Generate(requests);
  const auto b = processed.Generate(requests);
  int above = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(a[i].tokens, b[i].tokens);
    std::vector<int32_t> tokens = requests[i].prompt;
    tokens.insert(tokens.end(), a[i].tokens.begin(), a[i].tokens.end());
    const auto trainer = model.TrainerLogProbs(tokens);
    for (size_t t = 0; t < a[i].tokens.size(); ++t) {
      EXPECT_NEAR(a[i].log_probs[t], trainer[requests[i].prompt.size() - 1 + t], 1e-5);
      EXPECT_GE(b[i].log_probs[t], a[i].log_probs[t]);
      above += b[i].log_probs[t] > a[i].log_probs[t] + 0.01f;
    }
  }
  EXPECT_GT(above, 10);
}

// R26.
TEST(EngineTest, AResponseEndsWhereItShould) {
  RolloutModel model;
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5};
  const auto greedy = model.GreedyByRecompute(prompt, 10);
  const auto first_of = [&](int32_t token) {
    return static_cast<size_t>(std::find(greedy.begin(), greedy.end(), token) - greedy.begin());
  };
  const auto head = [&](size_t count) {
    return std::vector<int32_t>(greedy.begin(),
                                greedy.begin() + static_cast<std::ptrdiff_t>(count));
  };
  const model::NumbersTokenizer numbers(131);
  EngineOptions options;
  options.tokenizer = &numbers;
  options.eos_token_ids = {greedy[4]};
  Engine engine = model.MakeEngine(options);
  Request request;
  request.prompt = prompt;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 10;

  auto c = engine.Generate({request})[0];  // an EOS is kept
  EXPECT_EQ(c.tokens, head(first_of(greedy[4]) + 1));
  EXPECT_EQ(c.finish, FinishReason::kStop);
  request.sampling.ignore_eos = true;
  c = engine.Generate({request})[0];  // the length: none is invented
  EXPECT_EQ(c.tokens, greedy);
  EXPECT_EQ(c.finish, FinishReason::kLength);
  request.sampling.stop_token_ids = {greedy[2]};
  c = engine.Generate({request})[0];
  EXPECT_EQ(c.tokens, head(first_of(greedy[2]) + 1));
  EXPECT_EQ(c.finish, FinishReason::kStop);
  request.sampling.stop_token_ids.clear();
  request.sampling.stop = {"nowhere", fmt::format("{}><{}", greedy[5], greedy[6])};
  c = engine.Generate({request})[0];
  EXPECT_EQ(c.tokens, head(7));  // the tokens that were chosen stay, the text ends before it
  EXPECT_EQ(*c.text, numbers.Decode(head(5)) + "<");
  EXPECT_EQ(c.finish, FinishReason::kStop);
  request.sampling.stop.clear();
  request.sampling.max_tokens = 1000;  // up to the model's length
  c = engine.Generate({request})[0];
  EXPECT_EQ(c.tokens.size(), 64 - prompt.size());
  EXPECT_EQ(c.finish, FinishReason::kLength);
}

// Of a row that is too long to be scored it was said that there was no room for a response.
TEST(EngineTest, ARowThatIsOnlyScoredMayFillAllPositionsAndNoMore) {
  RolloutModel model;
  Request whole;
  whole.prompt.assign(64, 1);  // as long as the model's positions
  whole.sampling.max_tokens = 0;
  whole.sampling.prompt_log_probs = true;
  Request more = whole;
  more.prompt.push_back(1);
  more.prompt_id = 1;
  Engine engine = model.MakeEngine();
  const auto all = engine.Generate({whole, more});
  EXPECT_TRUE(all[0].error.ok()) << all[0].error.message();
  EXPECT_EQ(all[0].prompt_log_probs.size(), 63u);
  const std::string& message = all[1].error.message();
  EXPECT_NE(message.find("65 tokens to score, more than the 64"), std::string::npos) << message;
  EXPECT_EQ(message.find("response"), std::string::npos) << message;
}

TEST(EngineTest, ARequestThatCannotBeServedDoesNotEndTheBatch) {
  RolloutModel model;
  const auto good = MixedRequests(4, 0);
  std::vector<Request> requests = good;
  Request bad = good[0];
  bad.prompt.assign(64, 1);  // as long as the model's positions
  requests.push_back(bad);
  bad.prompt = {1, 131};
  requests.push_back(bad);
  bad.prompt.clear();
  requests.push_back(bad);
  bad.prompt = {1};
  bad.sampling.top_p = 0;
  requests.push_back(bad);
  bad.sampling.top_p = 1;
  bad.sampling.stop = {"x"};
  requests.push_back(bad);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].prompt_id = 100 + i;
  Engine engine = model.MakeEngine();
  const auto all = engine.Generate(requests);
  const char* expected[] = {"no room", "outside the vocabulary of 131", "no tokens", "top_p",
                            "tokenizer"};
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < good.size()) {
      EXPECT_TRUE(all[i].error.ok()) << all[i].error.message();
      continue;
    }
    EXPECT_EQ(all[i].finish, FinishReason::kError);
    EXPECT_NE(all[i].error.message().find(expected[i - good.size()]), std::string::npos)
        << all[i].error.message();
    EXPECT_NE(all[i].error.message().find(fmt::format("prompt {}", 100 + i)), std::string::npos);
  }
  EXPECT_TRUE(engine.idle());
}

TEST(EngineTest, APromptsOwnLogProbabilitiesAndLogits) {
  RolloutModel model;
  auto requests = MixedRequests(10, 0, 4);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.prompt_log_probs = true;
    requests[i].sampling.prompt_logits = i % 2 == 0;
    if (i % 3 == 0) requests[i].sampling.max_tokens = 0;
  }
  Engine engine = model.MakeEngine(Small(11, 8, 40, 4, model.decoder()));
  const auto completions = engine.Generate(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& prompt = requests[i].prompt;
    const auto expected = model.TrainerLogProbs(prompt);
    ASSERT_EQ(completions[i].prompt_log_probs.size(), prompt.size() - 1);
    for (size_t t = 0; t + 1 < prompt.size(); ++t)
      EXPECT_NEAR(completions[i].prompt_log_probs[t], expected[t], 1e-5);
    EXPECT_EQ(completions[i].prompt_logits.defined(), i % 2 == 0);
    if (i % 2 == 0) {
      EXPECT_LT(
          (completions[i].prompt_logits - model.TrainerLogits(prompt)).abs().max().item<float>(),
          2e-5);
    }
    EXPECT_EQ(completions[i].tokens,
              model.GreedyByRecompute(prompt, static_cast<int>(requests[i].sampling.max_tokens)));
  }
}

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
  KvCache cache(shape, groups, kBlocks * count, kBlockSize);
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
    batch.sequences.push_back({past, tokens, past + tokens, blocks});
    batch.outputs = {tokens - 1};
    const at::Tensor hidden = model.decoder().Decode(batch, cache);
    const at::Tensor logits = model.decoder().DecodeLogits(hidden, false);
    response.push_back(static_cast<int32_t>(logits[0].argmax().item<int64_t>()));
    past += tokens;
    next = {response.back()};
  }
  return response;
}

TEST(EngineTest, KeptKeysAndValuesAreUsedByTheirOwnSequenceAlone) {
  for (const auto family : {model::Family::kLlama, model::Family::kGemma2}) {
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

TEST(EngineTest, TheCacheCanBeReleasedInTheMiddle) {
  RolloutModel model;
  const auto requests = MixedRequests(20, 1.0);
  Engine expected = model.MakeEngine();
  const auto whole = expected.Generate(requests);
  Engine engine = model.MakeEngine();
  std::vector<Completion> done;
  for (const Request& request : requests) engine.Add(request);
  for (int step = 0; !engine.idle(); ++step) {
    if (step == 3) {
      engine.ReleaseCache();
      EXPECT_THROW(engine.Step(), Error);
      engine.RestoreCache();
    }
    for (Completion& c : engine.Step()) done.push_back(std::move(c));
  }
  std::sort(done.begin(), done.end(), [](const Completion& a, const Completion& b) {
    return std::pair(a.prompt_id, a.sample) < std::pair(b.prompt_id, b.sample);
  });
  ExpectSame(done, whole, "released in between");
}

TEST(EngineTest, BrokenWeightsFailEachRequestByName) {
  RolloutModel model;
  {
    const at::NoGradGuard no_grad;
    model.decoder().parameters()[3]->value.fill_(std::numeric_limits<float>::quiet_NaN());
  }
  Engine engine = model.MakeEngine();
  const auto completions = engine.Generate(MixedRequests(6, 1.0));
  for (const Completion& c : completions) {
    EXPECT_EQ(c.finish, FinishReason::kError);
    EXPECT_NE(c.error.message().find("nan"), std::string::npos) << c.error.message();
  }
}

TEST(EngineTest, OptionsThatCannotWorkAreRefused) {
  RolloutModel model;
  EngineOptions options;
  options.block_size = 0;
  options.scheduler.max_num_seqs = 0;
  try {
    model.MakeEngine(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("block_size"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("max_num_seqs"), std::string::npos);
  }
  options = {};
  options.kv_cache_bytes = 100;
  EXPECT_THROW(model.MakeEngine(options), Error);
  options = {};
  options.max_model_len = 65;
  EXPECT_THROW(model.MakeEngine(options), Error);
}

// A response that is taken out after any token and goes on in another engine, beside others, is the
// one that it would have been.
TEST(EngineTest, AResponseGoesOnInAnotherEngine) {
  for (const auto& [family, temperature] :
       {std::pair(model::Family::kLlama, 1.0), std::pair(model::Family::kGemma2, 1.0),
        std::pair(model::Family::kQwen3Moe, 0.0)}) {
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
