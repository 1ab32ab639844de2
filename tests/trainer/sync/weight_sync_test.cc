// Weight sync against the weights themselves: every layout to every other, by any bucket, and what
// happens when it goes wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "model/config/family_table.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "tests/trainer/sync/prompts.h"
#include "trainer/engine/weights_digest.h"
#include "trainer/sync/rollout_model.h"

namespace keel::trainer {
namespace {

using keel::testing::LossTokens;
using keel::testing::MicroBatches;
using keel::testing::RowsOfStep;
using keel::testing::RunRanks;
using keel::testing::TinyConfig;
using ::testing::HasSubstr;

struct Case {
  int tp, dp, pp, rollout_tp;
  bool tied = false;
  model::Family family = model::Family::kLlama;
  at::ScalarType dtype = at::kFloat;
};

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return "tp" + std::to_string(c.tp) + "_dp" + std::to_string(c.dp) + "_pp" + std::to_string(c.pp) +
         "_to_tp" + std::to_string(c.rollout_tp) + (c.tied ? "_tied" : "") +
         (c.family == model::Family::kLlama
              ? ""
              : "_" + std::string(model::FamilyOf(c.family).model_type)) +
         (c.dtype == at::kBFloat16 ? "_bf16" : "");
}

TrainEngineOptions Training(const Case& c, OffloadOptions offload = {}) {
  TrainEngineOptions options;
  options.dtype = c.dtype;
  options.bucket_bytes = 8192;
  options.adamw = {0.9, 0.95, 1e-8, 0.1};
  options.offload = offload;
  return options;
}

// `direct`: the smallest piece that is a message of its own.
RolloutModelOptions Rollout(const Case& c, int64_t bucket = 4096, int64_t direct = 1 << 20) {
  RolloutModelOptions options;
  options.tp = c.rollout_tp;
  options.engine.max_model_len = 48;
  options.engine.scheduler.max_num_seqs = 4;
  options.sync.bucket_bytes = bucket;
  options.sync.direct_bytes = direct;
  return options;
}

void TrainSteps(TrainEngine& engine, parallel::ParallelContext& context, int from, int to) {
  for (int step = from; step < to; ++step) {
    const auto rows = RowsOfStep(step);
    const auto batches = MicroBatches(rows, context.dp_rank(), context.layout().dp(), 1, 1);
    engine.Step(batches, LossTokens(rows), 5e-3, step + 1);
  }
}

// Canonical tensors as whole byte strings, from tables of any cut.
using Whole = std::map<std::string, std::string>;

void Paste(const ShardTable& table, Whole* whole) {
  for (const Shard& shard : table.shards()) {
    const TensorInfo& tensor = table.tensor_of(shard);
    const auto size = static_cast<int64_t>(DTypeSize(tensor.dtype));
    std::string& bytes = (*whole)[tensor.name];
    bytes.resize(static_cast<size_t>(tensor.shape.elements() * size));
    CopyBox(shard.box, shard.box, shard.view, Box::Whole(tensor.shape),
            {reinterpret_cast<std::byte*>(bytes.data()), ContiguousStrides(tensor.shape)}, size);
  }
}

class SyncTest : public ::testing::TestWithParam<Case> {};

TEST_P(SyncTest, TheRolloutHasWhatWasTrained) {
  const Case c = GetParam();
  std::mutex mutex;
  Whole trained, rolled;
  std::vector<std::vector<int32_t>> texts;
  RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngine engine(context, TinyConfig(c.tied, c.family), Training(c));
    engine.Initialize(5);
    RolloutModel model(context, TinyConfig(c.tied, c.family), engine, Rollout(c));
    EXPECT_EQ(model.aliased(), c.pp == 1 && c.tp == c.rollout_tp);
    model.Update();
    TrainSteps(engine, context, 0, 3);
    model.Corrupt();
    const WeightUpdate update = model.Update();
    EXPECT_EQ(model.version().number, 2);
    EXPECT_LE(update.sync.buffer_bytes, 2 * 4096);
    EXPECT_EQ(update.param_load, 0.0);
    EXPECT_EQ(update.param_offload, 0.0);
    const uint64_t digest = WeightsDigest(engine, TrainEngine::Which::kAll, context.world());
    if (model.aliased()) {
      EXPECT_EQ(update.sync.sent_bytes + update.sync.copied_bytes, 0);
    } else {
      EXPECT_EQ(model.version().digest, digest);
    }
    model.Prepare();
    const auto completions = model.engine().Generate(Prompts());
    model.Leave();
    const ShardTable rollout = model.Table();
    const std::lock_guard lock(mutex);
    Paste(engine.DeviceTable(), &trained);
    Whole mine;  // every replica must be whole by itself, so none may fill another's gap
    Paste(rollout, &mine);
    if (c.rollout_tp == 1) {
      for (const auto& [name, bytes] : mine) {
        const auto [known, fresh] = rolled.emplace(name, bytes);
        if (!fresh) {
          EXPECT_EQ(known->second, bytes) << name;
        }
      }
    } else {
      Paste(rollout, &rolled);
    }
    for (const auto& completion : completions) texts.push_back(completion.tokens);
  });
  ASSERT_EQ(trained.size(), rolled.size());
  for (const auto& [name, bytes] : trained) EXPECT_EQ(rolled[name], bytes) << name;
  for (size_t i = 3; i < texts.size(); ++i) EXPECT_EQ(texts[i], texts[i % 3]);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SyncTest,
    ::testing::Values(Case{1, 1, 1, 1}, Case{1, 2, 1, 1}, Case{1, 2, 1, 2}, Case{1, 1, 2, 1},
                      Case{1, 1, 2, 2, true}, Case{2, 1, 1, 1}, Case{2, 1, 1, 2}, Case{2, 1, 2, 2},
                      Case{2, 1, 2, 1, true}, Case{2, 2, 1, 2}, Case{1, 2, 2, 2}, Case{2, 2, 2, 2},
                      Case{2, 1, 2, 2, true, model::Family::kQwen2},
                      Case{2, 1, 2, 2, false, model::Family::kQwen3}, Case{1, 4, 1, 2},
                      // Two key-value heads over four ranks.
                      Case{1, 4, 1, 4}, Case{2, 1, 2, 4},
                      Case{2, 2, 1, 4, true, model::Family::kQwen2},
                      Case{2, 1, 2, 2, false, model::Family::kLlama, at::kBFloat16},
                      // Neither four heads nor two key-value heads divide over three ranks.
                      Case{3, 1, 1, 1}, Case{3, 1, 1, 3}, Case{3, 1, 2, 2, true},
                      Case{2, 1, 3, 3, false, model::Family::kQwen2},
                      Case{3, 1, 1, 3, true, model::Family::kQwen3, at::kBFloat16},
                      Case{4, 1, 1, 2, true, model::Family::kQwen2},
                      // Twenty columns of each expert over three ranks.
                      Case{2, 1, 3, 3, false, model::Family::kQwen3Moe},
                      Case{2, 2, 1, 4, false, model::Family::kQwen3Next},
                      Case{3, 1, 2, 2, true, model::Family::kQwen35, at::kBFloat16},
                      Case{3, 1, 1, 1, true, model::Family::kMixtral, at::kBFloat16}),
    NameOf);

// However it is cut, and whatever goes by messages of its own: into the same cut of tensors, where
// messages come from and go into the weights, and into another, where they are packed on one side.
TEST(WeightSync, AnyBucketGivesTheSameBytes) {
  for (const Case& c : {Case{2, 1, 2, 2}, Case{2, 1, 2, 1}, Case{1, 1, 2, 2}}) {
    std::mutex mutex;
    std::vector<Whole> results;
    for (const int64_t bucket : {int64_t{64}, int64_t{1} << 20, int64_t{1} << 40}) {
      for (const int64_t direct : {int64_t{1}, int64_t{1000}}) {
        Whole& result = results.emplace_back();
        RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
          TrainEngine engine(context, TinyConfig(false, c.family), Training(c));
          engine.Initialize(5);
          RolloutModel model(context, TinyConfig(false, c.family), engine,
                             Rollout(c, bucket, direct));
          model.Corrupt();
          const WeightUpdate update = model.Update();
          EXPECT_LE(update.sync.buffer_bytes, 2 * bucket);
          if (c.rollout_tp == c.tp && direct == 1) {
            EXPECT_EQ(update.sync.buffer_bytes, 0);
          }
          const std::lock_guard lock(mutex);
          Paste(model.Table(), &result);
        });
      }
    }
    for (const Whole& result : results) EXPECT_EQ(result, results[0]);
  }
}

TEST(WeightSync, OffloadedWeightsGoBackAndNothingElseMoves) {
  for (const int pp : {1, 2}) {
    const Case c{2, 1, pp, 2};
    RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
      TrainEngine engine(context, TinyConfig(false, c.family), Training(c, {true, true, true}));
      engine.Initialize(5);
      engine.OffloadIdle();
      RolloutModel model(context, TinyConfig(false, c.family), engine, Rollout(c));
      const WeightUpdate update = model.Update();
      const Residency& residency = engine.residency();
      EXPECT_EQ(residency.place(StateClass::kParams), Place::kHost);
      EXPECT_EQ(residency.place(StateClass::kOptimizer), Place::kHost);
      EXPECT_EQ(residency.device_bytes(StateClass::kParams), 0);
      if (!model.aliased()) {
        EXPECT_GT(update.param_load, 0.0);
        EXPECT_GE(update.seconds, update.param_load + update.param_offload);
      }
      const double load = model.Prepare();
      EXPECT_EQ(load > 0.0, model.aliased());
      EXPECT_EQ(model.engine().Generate(Prompts()).size(), 3u);
      model.Leave();
      EXPECT_EQ(residency.place(StateClass::kParams), Place::kHost);
    });
  }
}

// A group over which something happens in the n-th all-to-all.
class FaultyGroup final : public parallel::ProcessGroup {
 public:
  enum class Fault { kNone, kFlip, kLose };
  explicit FaultyGroup(parallel::ProcessGroup& inner) : inner_(inner) {}
  void Arm(Fault fault, int n) {
    fault_ = fault;
    left_ = n;
  }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  std::unique_ptr<parallel::Work> AllReduceAsync(at::Tensor& t, parallel::ReduceOp op) override {
    return inner_.AllReduceAsync(t, op);
  }
  std::unique_ptr<parallel::Work> AllGatherAsync(at::Tensor& out, const at::Tensor& in) override {
    return inner_.AllGatherAsync(out, in);
  }
  std::unique_ptr<parallel::Work> ReduceScatterAsync(at::Tensor& out,
                                                     const at::Tensor& in) override {
    return inner_.ReduceScatterAsync(out, in);
  }
  std::unique_ptr<parallel::Work> AllToAllAsync(at::Tensor& out, const at::Tensor& in,
                                                const std::vector<int64_t>& out_sizes,
                                                const std::vector<int64_t>& in_sizes) override {
    const bool now = fault_ != Fault::kNone && left_-- == 0;
    if (now && fault_ == Fault::kLose)
      throw Error(StatusCode::kDeadlineExceeded, "all-to-all in group world: rank 1 is lost");
    auto work = inner_.AllToAllAsync(out, in, out_sizes, in_sizes);
    if (now && rank() == 0) {
      work->Wait();
      if (out.numel() > 0) out[out.numel() / 2].bitwise_xor_(8);
    }
    return work;
  }
  // Flips a bit of what has arrived.
  class Flipping final : public parallel::Work {
   public:
    Flipping(std::unique_ptr<parallel::Work> work, at::Tensor bytes)
        : work_(std::move(work)), bytes_(std::move(bytes)) {}
    void Wait() override {
      work_->Wait();
      bytes_[bytes_.numel() / 2].bitwise_xor_(8);
    }

   private:
    std::unique_ptr<parallel::Work> work_;
    at::Tensor bytes_;
  };
  void Broadcast(at::Tensor& t, int root) override { inner_.Broadcast(t, root); }
  std::unique_ptr<parallel::Work> SendAsync(const at::Tensor& t, int peer, int tag) override {
    return inner_.SendAsync(t, peer, tag);
  }
  std::unique_ptr<parallel::Work> RecvAsync(at::Tensor& t, int peer, int tag) override {
    const bool now = fault_ == Fault::kFlip && left_-- == 0;
    auto work = inner_.RecvAsync(t, peer, tag);
    if (!now || rank() != 0) return work;
    return std::make_unique<Flipping>(std::move(work), t);
  }
  void Barrier() override { inner_.Barrier(); }
  void Shutdown() override { inner_.Shutdown(); }

 private:
  parallel::ProcessGroup& inner_;
  Fault fault_ = Fault::kNone;
  int left_ = 0;
};

void FailsAndRecovers(bool staged, FaultyGroup::Fault fault, int round, int64_t direct = 1 << 20) {
  SCOPED_TRACE(::testing::Message() << "staged " << staged << ", round " << round);
  const Case c{2, 1, 2, 2};
  RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngine engine(context, TinyConfig(false, c.family), Training(c));
    engine.Initialize(5);
    FaultyGroup group(context.world());
    RolloutModelOptions options = Rollout(c, 4096, direct);
    options.staged = staged;
    options.sync_group = &group;
    RolloutModel model(context, TinyConfig(false, c.family), engine, options);
    model.Update();
    const WeightVersion before = model.version();
    model.Prepare();
    const auto texts = model.engine().Generate(Prompts());
    TrainSteps(engine, context, 0, 2);

    group.Arm(fault, round);
    try {
      model.Update();
      ADD_FAILURE() << "the update went through";
    } catch (const Error& error) {
      EXPECT_THAT(error.status().message(), HasSubstr("weight sync"));
      EXPECT_THAT(error.status().message(),
                  HasSubstr(fault == FaultyGroup::Fault::kLose ? "rank 1" : "model."));
    }
    group.Arm(FaultyGroup::Fault::kNone, 0);
    EXPECT_EQ(model.version().number, before.number);
    EXPECT_EQ(model.version().digest, before.digest);
    if (staged) {  // the old version, to the last token
      const auto again = model.engine().Generate(Prompts());
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(again[i].tokens, texts[i].tokens);
        EXPECT_EQ(again[i].log_probs, texts[i].log_probs);
      }
    } else {
      EXPECT_THROW(model.engine().Generate(Prompts()), Error);
    }
    context.world().Barrier();
    model.Update();
    EXPECT_EQ(model.version().number, before.number + 1);
    EXPECT_EQ(model.version().digest,
              WeightsDigest(engine, TrainEngine::Which::kAll, context.world()));
    EXPECT_EQ(model.engine().Generate(Prompts()).size(), 3u);
  });
}

TEST(WeightSync, AFlippedBitIsFoundAndNamed) {
  FailsAndRecovers(true, FaultyGroup::Fault::kFlip, 0);
  FailsAndRecovers(false, FaultyGroup::Fault::kFlip, 2);
  FailsAndRecovers(true, FaultyGroup::Fault::kFlip, 5, 1);
  FailsAndRecovers(false, FaultyGroup::Fault::kFlip, 0, 1);
}

TEST(WeightSync, ALostPeerLeavesTheOldVersionOrARefusal) {
  for (const int round : {0, 3, 6}) {
    FailsAndRecovers(true, FaultyGroup::Fault::kLose, round);
    FailsAndRecovers(false, FaultyGroup::Fault::kLose, round);
  }
}

}  // namespace
}  // namespace keel::trainer
