// Copies of weights under every kind of replication: silent while they are the same, named when a
// single bit of one of them differs.

#include "trainer/run/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace keel::trainer {
namespace {

using keel::testing::LossTokens;
using keel::testing::MicroBatches;
using keel::testing::RowsOfStep;
using keel::testing::TinyConfig;

struct Case {
  std::string name;
  int tp, dp, pp;
  bool tied = false;
  // Where a bit is flipped: a rank, a parameter of its own (by the name of its storage), and the
  // tensor that the message must name.
  int rank = 0;
  std::string parameter;
  std::string tensor;
  bool bf16 = false;
  bool offloaded = false;
  bool sequence_parallel = false;
};

// One flipped bit in the middle of a parameter, where the rank keeps it.
void FlipBit(TrainEngine& engine, const std::string& name) {
  for (parallel::Parameter* parameter : engine.decoder().parameters()) {
    if (parameter->name != name) continue;
    const at::NoGradGuard no_grad;
    const at::Tensor value = engine.residency().HostView(parameter->value);
    auto* const bytes = static_cast<uint8_t*>(value.data_ptr());
    bytes[value.numel() / 2 * value.element_size()] ^= 4;
    return;
  }
  FAIL() << "no parameter " << name;
}

class ReplicaCheckTest : public ::testing::TestWithParam<Case> {};

TEST_P(ReplicaCheckTest, AFlippedBitEndsTheRunWithTensorAndRank) {
  const Case& c = GetParam();
  std::mutex mutex;
  std::vector<std::string> messages;
  keel::testing::RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.dtype = c.bf16 ? at::kBFloat16 : at::kFloat;
    options.bucket_bytes = 8192;
    options.sequence_parallel = c.sequence_parallel;
    options.offload = {c.offloaded, false, false};
    TrainEngine engine(context, TinyConfig(c.tied, model::Family::kLlama), options);
    engine.Initialize(5);
    engine.OffloadIdle();
    CheckReplicas(engine, "actor", context, "before step 1");
    for (int step = 0; step < 3; ++step) {
      const auto rows = RowsOfStep(step);
      engine.Step(MicroBatches(rows, context.dp_rank(), c.dp, 2, c.sequence_parallel ? c.tp : 1),
                  LossTokens(rows), 5e-3, step + 1);
      CheckReplicas(engine, "actor", context, "after a step");
    }
    EXPECT_EQ(engine.ModelOnHost(), c.offloaded) << "the check moved the weights";
    if (context.rank() == c.rank) FlipBit(engine, c.parameter);
    try {
      CheckReplicas(engine, "actor", context, "before the save of step 3");
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kDataLoss);
      const std::lock_guard lock(mutex);
      messages.push_back(error.what());
    }
  });
  ASSERT_EQ(messages.size(), static_cast<size_t>(c.tp * c.dp * c.pp)) << "some rank goes on";
  for (const std::string& message : messages) {
    EXPECT_EQ(message, messages[0]);
    EXPECT_THAT(message, ::testing::HasSubstr("before the save of step 3: 1 of the actor's"));
    EXPECT_THAT(message, ::testing::HasSubstr(c.tensor));
    EXPECT_THAT(message, ::testing::HasSubstr("rank " + std::to_string(c.rank) + " (host "));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Copies, ReplicaCheckTest,
    ::testing::Values(
        Case{"data_parallel", 1, 2, 1, false, 1, "layers.1.qkv.weight",
             "model.layers.1.self_attn."},
        Case{"three_replicas", 1, 4, 1, false, 2, "embedding.weight", "model.embed_tokens.weight"},
        Case{"first_of_many", 1, 4, 1, false, 0, "head.weight", "lm_head.weight"},
        Case{"norm_over_tp", 2, 1, 1, false, 1, "final_norm.weight", "model.norm.weight"},
        Case{"norm_sequence_parallel", 2, 1, 1, false, 1, "final_norm.weight", "model.norm.weight",
             false, false, true},
        // Two key/value heads, each on two ranks; on two and on one.
        Case{"kv_heads", 4, 1, 1, false, 3, "layers.1.kv.weight", "model.layers.1.self_attn."},
        Case{"kv_heads_bf16", 4, 1, 1, false, 0, "layers.0.kv.weight", "model.layers.0.self_attn.",
             true, false, true},
        Case{"uneven_kv_heads", 3, 1, 1, false, 1, "layers.2.kv.weight",
             "model.layers.2.self_attn.", false, false, true},
        Case{"uneven_kv_heads_dp", 3, 2, 1, false, 5, "layers.2.kv.weight",
             "model.layers.2.self_attn.", true},
        Case{"norm_over_uneven_tp", 3, 2, 1, false, 4, "final_norm.weight", "model.norm.weight"},
        Case{"norm_over_tp_and_dp", 2, 2, 1, false, 3, "final_norm.weight", "model.norm.weight"},
        Case{"tied_stages", 1, 1, 2, true, 1, "head.weight", "model.embed_tokens.weight"},
        Case{"tied_stages_tp", 2, 1, 2, true, 0, "embedding.weight", "model.embed_tokens.weight"},
        Case{"bf16", 2, 2, 1, false, 2, "final_norm.weight", "model.norm.weight", true},
        Case{"offloaded", 1, 2, 1, false, 1, "head.weight", "lm_head.weight", false, true}),
    [](const auto& one) { return one.param.name; });

TEST(ReplicaCheckTest, SplitWeightsAreNoCopies) {
  keel::testing::RunRanks(2, 1, 1, [&](parallel::ParallelContext& context) {
    TrainEngine engine(context, TinyConfig(false, model::Family::kLlama), {});
    engine.Initialize(5);
    if (context.rank() == 1) FlipBit(engine, "layers.0.qkv.weight");
    CheckReplicas(engine, "actor", context, "at the start");
  });
}

// Its embedding is on the first stage alone: no head is tied to it.
TEST(ReplicaCheckTest, ACriticOfATiedModelTrainsOverPipelineStages) {
  keel::testing::RunRanks(1, 1, 2, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.value_head = true;
    TrainEngine engine(context, TinyConfig(true, model::Family::kLlama), options);
    engine.Initialize(5);
    const auto rows = RowsOfStep(0);
    const auto batches = MicroBatches(rows, 0, 1, 2, 1);
    const auto loss = [&](int, const at::Tensor& hidden,
                          const model::Decoder::ReadyCallback& on_ready) {
      return engine.decoder().Values(hidden, on_ready).square().sum();
    };
    EXPECT_GT(engine.Step(batches, loss, {}, 1e-3, 1).grad_norm, 0);
    CheckReplicas(engine, "critic", context, "after a step");
  });
}

}  // namespace
}  // namespace keel::trainer
