#include "rollout/decode_graphs.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "rollout/engine.h"
#include "tests/rollout/rollout_model.h"

namespace keel::rollout {
namespace {

using testing::ExpectSame;
using testing::MixedRequests;
using testing::RolloutModel;

EngineOptions Eagerly(EngineOptions options = {}) {
  options.enforce_eager = true;
  return options;
}

TEST(DecodeGraphs, NumbersAreRoundedToAtMostAQuarterMore) {
  for (int64_t n = 1; n <= DecodeGraphs::kMostSequences; ++n) {
    const int64_t rounded = DecodeGraphs::Rounded(n);
    EXPECT_GE(rounded, n);
    EXPECT_LE(4 * rounded, 5 * n) << n;
    EXPECT_EQ(DecodeGraphs::Rounded(rounded), rounded) << n;
  }
  EXPECT_EQ(DecodeGraphs::Rounded(3), 3);
  EXPECT_EQ(DecodeGraphs::Rounded(17), 20);
}

TEST(DecodeGraphs, OnAHostNothingIsReplayed) {
  if (testing::OnPretendGpus()) GTEST_SKIP() << "of a host";
  RolloutModel model;
  Engine engine = model.MakeEngine();
  engine.Generate(MixedRequests(8, 0));
  EXPECT_EQ(engine.stats().replayed_steps, 0);
}

// What follows is of a device that records: the pretend GPU does.
class ReplayedGeneration : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::OnPretendGpus()) GTEST_SKIP() << "needs a GPU, or a pretend one";
  }
};

struct ReplayCase {
  model::Family family;
  at::ScalarType dtype = at::kFloat;
  bool batch_invariant = false;
  bool replayed = true;
};

TEST_F(ReplayedGeneration, IsBitEqualToOperationByOperation) {
  for (const ReplayCase& c :
       {ReplayCase{model::Family::kLlama}, ReplayCase{model::Family::kQwen3, at::kBFloat16},
        ReplayCase{model::Family::kQwen2, at::kFloat, true}, ReplayCase{model::Family::kGemma2},
        ReplayCase{model::Family::kMixtral, at::kBFloat16},
        ReplayCase{model::Family::kQwen3Moe, at::kBFloat16, true},
        // The host asks the device for the experts' rows.
        ReplayCase{model::Family::kMixtral, at::kFloat, false, false}}) {
    RolloutModel model(c.family, false, c.dtype);
    EngineOptions options;
    options.batch_invariant = c.batch_invariant;
    options.warn = [](const std::string& text) { ADD_FAILURE() << text; };
    Engine replaying = model.MakeEngine(options);
    Engine eager = model.MakeEngine(Eagerly(options));
    // They end one by one, so that there are steps of any number of sequences.
    const auto requests = MixedRequests(22, 1.0, 40);
    ExpectSame(replaying.Generate(requests), eager.Generate(requests), "replayed");
    const EngineStats stats = replaying.stats();
    if (c.replayed) {
      EXPECT_GE(stats.replayed_steps, 20);
      EXPECT_GE(stats.recordings, 5);
      EXPECT_LE(stats.recordings, 14);  // numbers up to 22, rounded
    } else {
      EXPECT_EQ(stats.recordings, 0);
    }
    EXPECT_EQ(eager.stats().replayed_steps, 0);
    EXPECT_EQ(eager.stats().steps, stats.steps);
  }
}

// Five sequences are recorded as five, seventeen as twenty.
TEST_F(ReplayedGeneration, SequencesOfNobodyWriteNothing) {
  RolloutModel model;
  const model::KvShape shape = model.decoder().kv_shape();
  constexpr int64_t kSequences = 17;
  const auto step = [&](bool replayed) {
    KvCache cache(shape, GroupLayers(shape.windows), 40, 4);
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      for (at::Tensor side : {cache.keys(layer), cache.values(layer)}) side.zero_();
    }
    std::vector<std::vector<std::vector<int32_t>>> blocks;
    for (int32_t s = 0; s < kSequences; ++s) blocks.push_back({{2 * s + 3, 2 * s + 4}});
    model::DecodeBatch batch;
    for (int32_t s = 0; s < kSequences; ++s) {
      batch.ids.push_back(s + 1);
      batch.outputs.push_back(s);
      batch.sequences.push_back({5, 1, 6, blocks[static_cast<size_t>(s)]});
    }
    DecodeGraphs graphs(model.decoder(), cache, 64, nullptr);
    const at::Tensor hidden =
        replayed ? *graphs.Decode(batch) : model.decoder().Decode(batch, cache);
    std::vector<at::Tensor> all = {hidden.cpu()};
    for (int64_t layer = 0; layer < shape.layers; ++layer) {
      all.push_back(cache.keys(layer).cpu());
      all.push_back(cache.values(layer).cpu());
    }
    return all;
  };
  const auto replayed = step(true), eager = step(false);
  ASSERT_EQ(replayed[0].sizes(), eager[0].sizes());
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(at::equal(replayed[i], eager[i])) << i;
}

TEST_F(ReplayedGeneration, NewWeightsInTheSamePlaceAreThoseThatGenerate) {
  RolloutModel model;
  Engine replaying = model.MakeEngine();
  Engine eager = model.MakeEngine(Eagerly());
  const auto requests = MixedRequests(6, 1.0);
  replaying.Generate(requests);
  eager.Generate(requests);
  const int64_t recordings = replaying.stats().recordings;
  model.ChangeWeights(12);
  replaying.SetWeightVersion(1);
  eager.SetWeightVersion(1);
  ExpectSame(replaying.Generate(requests), eager.Generate(requests), "new weights");
  EXPECT_EQ(replaying.stats().recordings, recordings);  // the same work
}

// As weights do that were given back to make room, and loaded again.
TEST_F(ReplayedGeneration, WhatHasMovedIsRecordedAnew) {
  RolloutModel model;
  Engine replaying = model.MakeEngine();
  Engine eager = model.MakeEngine(Eagerly());
  const auto requests = MixedRequests(6, 1.0);
  ExpectSame(replaying.Generate(requests), eager.Generate(requests), "before");
  const int64_t recordings = replaying.stats().recordings;
  std::vector<at::Tensor> before;
  for (parallel::Parameter* p : model.decoder().parameters()) {
    before.push_back(p->value);
    p->value = p->value.clone();
    before.back().fill_(7);  // what stands there now is somebody else's
  }
  replaying.SetWeightVersion(1);
  eager.SetWeightVersion(1);
  ExpectSame(replaying.Generate(requests), eager.Generate(requests), "moved");
  EXPECT_EQ(replaying.stats().recordings, 2 * recordings);
}

TEST_F(ReplayedGeneration, TheCacheCanBeReleasedInTheMiddle) {
  RolloutModel model;
  Engine replaying = model.MakeEngine();
  Engine eager = model.MakeEngine(Eagerly());
  const auto requests = MixedRequests(8, 1.0, 30);
  std::vector<Completion> both[2];
  size_t which = 0;
  for (Engine* engine : {&replaying, &eager}) {
    for (const Request& request : requests) engine->Add(request);
    for (int i = 0; !engine->idle(); ++i) {
      if (i == 9) {
        engine->ReleaseCache();
        engine->RestoreCache();
      }
      for (Completion& c : engine->Step()) both[which].push_back(std::move(c));
    }
    ++which;
  }
  ExpectSame(both[0], both[1], "released");
}

// It is on pages of its own from the start.
TEST_F(ReplayedGeneration, ACacheThatComesBackNeedsNoNewRecordings) {
  RolloutModel model;
  Engine replaying = model.MakeEngine();
  Engine eager = model.MakeEngine(Eagerly());
  const auto requests = MixedRequests(8, 1.0, 30);
  int64_t recordings = 0;
  for (int cycle = 0; cycle < 4; ++cycle) {
    for (Engine* engine : {&replaying, &eager}) {
      if (cycle == 0) break;
      engine->ReleaseCache();
      engine->RestoreCache();
    }
    ExpectSame(replaying.Generate(requests), eager.Generate(requests), "came back");
    if (cycle == 0) recordings = replaying.stats().recordings;
    EXPECT_GT(recordings, 0);
    EXPECT_EQ(replaying.stats().recordings, recordings);
  }
}

TEST_F(ReplayedGeneration, ADeviceThatCannotRecordIsGivenStepsAsTheyAre) {
  RolloutModel model;
  const auto requests = MixedRequests(6, 1.0);
  Engine eager = model.MakeEngine(Eagerly());
  ::setenv("KEEL_PRETEND_RECORDINGS", "0", 1);
  EngineOptions options;
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  Engine engine = model.MakeEngine(options);
  const auto completions = engine.Generate(requests);
  ::unsetenv("KEEL_PRETEND_RECORDINGS");
  ExpectSame(completions, eager.Generate(requests), "not recorded");
  EXPECT_EQ(engine.stats().replayed_steps, 0);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("nothing is recorded"), std::string::npos);
}

}  // namespace
}  // namespace keel::rollout
