// Models of which nothing divides, under every layout: what the ranks hold together is the whole
// model and its optimizer's state, each element written by one of them and the same wherever it is
// held; and what one layout has trained, another one takes up.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "trainer/engine/train_engine.h"
#include "trainer/run/replica_check.h"

namespace keel::trainer {
namespace {

using keel::testing::LossTokens;
using keel::testing::MicroBatches;
using keel::testing::RowsOfStep;

struct Heads {
  int64_t query, key_value;
  model::Family family;
  bool tied;
  int64_t vocabulary = 131;
  bool balance = false;  // with the load-balancing loss, which is one of each micro-batch
};

struct Degrees {
  int tp, dp, pp;
  bool sequence_parallel;
};

model::HfConfig ConfigOf(const Heads& heads) {
  model::HfConfig config = keel::testing::TinyConfig(heads.tied, heads.family);
  config.num_attention_heads = heads.query;
  config.num_key_value_heads = heads.key_value;
  config.head_dim = 4;
  config.intermediate_size = 37;
  config.num_hidden_layers = 2;
  config.vocab_size = heads.vocabulary;
  config.moe.width = config.moe.experts > 0 ? 11 : 0;
  config.output_router_logits = heads.balance;
  config.router_aux_loss_coef = 0.2;
  return config;
}

// Tensors put together from the shards of all ranks.
class Whole {
 public:
  // Each shard must agree with what is there, and those that are written must not meet.
  void Add(const ShardTable& table, int rank) {
    for (const Shard& shard : table.shards()) {
      const TensorInfo& info = table.tensor_of(shard);
      ASSERT_EQ(info.dtype, DType::kF32);
      Tensor& tensor = tensors_[info.name];
      const auto n = static_cast<size_t>(info.shape.elements());
      tensor.values.resize(n);
      tensor.holders.resize(n);
      tensor.writers.resize(n);
      std::vector<float> mine(static_cast<size_t>(shard.box.elements()));
      CopyBox(shard.box, shard.box, shard.view, shard.box,
              {reinterpret_cast<std::byte*>(mine.data()), ContiguousStrides(shard.box.size)}, 4);
      const int64_t columns = info.shape.size() > 1 ? info.shape[1] : 1;
      const int64_t first = info.shape.size() > 1 ? shard.box.offset[1] : 0;
      const int64_t width = info.shape.size() > 1 ? shard.box.size[1] : 1;
      for (size_t i = 0; i < mine.size(); ++i) {
        const int64_t row = shard.box.offset[0] + static_cast<int64_t>(i) / width;
        const auto at =
            static_cast<size_t>(row * columns + first + static_cast<int64_t>(i) % width);
        if (tensor.holders[at]++ == 0) tensor.values[at] = mine[i];
        ASSERT_EQ(std::memcmp(&tensor.values[at], &mine[i], 4), 0)
            << info.name << " element " << at << " on rank " << rank;
        tensor.writers[at] += shard.replica == 0 ? 1 : 0;
      }
    }
  }
  void ExpectEachElementOnce() const {
    for (const auto& [name, tensor] : tensors_) {
      for (size_t i = 0; i < tensor.writers.size(); ++i)
        ASSERT_EQ(tensor.writers[i], 1) << name << " element " << i;
    }
  }
  void CopyTo(const ShardTable& table) const {
    for (const Shard& shard : table.shards()) {
      const TensorInfo& info = table.tensor_of(shard);
      const std::vector<float>& from = tensors_.at(info.name).values;
      auto* const data = reinterpret_cast<std::byte*>(const_cast<float*>(from.data()));
      CopyBox(shard.box, Box::Whole(info.shape), {data, ContiguousStrides(info.shape)}, shard.box,
              shard.view, 4);
    }
  }
  std::map<std::string, std::vector<float>> values() const {
    std::map<std::string, std::vector<float>> all;
    for (const auto& [name, tensor] : tensors_) all[name] = tensor.values;
    return all;
  }

 private:
  struct Tensor {
    std::vector<float> values;
    std::vector<int> holders, writers;
  };
  std::map<std::string, Tensor> tensors_;
};

struct State {
  Whole model, optimizer;
  std::vector<double> losses, norms;
};

// Steps [first, last) from `begin`, or from the seed where there is none.
State Train(const Heads& heads, const Degrees& c, const State* begin, int first, int last) {
  State state;
  std::mutex mutex;
  keel::testing::RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.bucket_bytes = 4096;
    options.sequence_parallel = c.sequence_parallel;
    options.adamw = {0.9, 0.95, 1e-8, 0.1};
    TrainEngine engine(context, ConfigOf(heads), options);
    engine.Initialize(5);
    engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
      if (begin == nullptr) return {};
      begin->model.CopyTo(tables.model);
      begin->optimizer.CopyTo(tables.optimizer);
      return {.weights = true, .optimizer = true};
    });
    std::vector<double> losses, norms;
    for (int step = first; step < last; ++step) {
      const auto rows = RowsOfStep(step);
      const int microbatches = heads.balance ? 2 / c.dp : 2;
      const auto batches =
          MicroBatches(rows, context.dp_rank(), c.dp, microbatches, c.sequence_parallel ? c.tp : 1);
      const StepResult result = engine.Step(batches, LossTokens(rows), 5e-3, step + 1);
      losses.push_back(result.loss);
      norms.push_back(result.grad_norm);
    }
    CheckReplicas(engine, "actor", context, "after the steps");
    const TrainEngine::StateTables tables = engine.SaveTables();
    const std::lock_guard lock(mutex);
    state.model.Add(tables.model, context.rank());
    state.optimizer.Add(tables.optimizer, context.rank());
    state.losses = losses;
    state.norms = norms;
  });
  state.model.ExpectEachElementOnce();
  state.optimizer.ExpectEachElementOnce();
  return state;
}

TEST(UnevenLayouts, EachTrainsAsOneProcessAndTakesUpWhatAnotherLeft) {
  const std::vector<Degrees> layouts = {
      {2, 1, 2, false}, {3, 2, 1, true}, {4, 1, 1, true}, {4, 1, 2, false}, {3, 1, 1, false}};
  for (const Heads& heads :
       {Heads{9, 3, model::Family::kLlama, true}, Heads{14, 2, model::Family::kQwen2, false},
        Heads{6, 1, model::Family::kQwen3, true}, Heads{15, 5, model::Family::kLlama, false},
        Heads{9, 3, model::Family::kMixtral, true, 131, true}}) {
    SCOPED_TRACE(::testing::Message() << heads.query << "/" << heads.key_value);
    const State alone = Train(heads, {1, 1, 1, false}, nullptr, 0, 3);
    State before = alone;
    for (const Degrees& c : layouts) {
      SCOPED_TRACE(::testing::Message() << "tp " << c.tp << " dp " << c.dp << " pp " << c.pp);
      // What it takes up is bit for bit what it holds.
      const State taken = Train(heads, c, &before, 0, 0);
      EXPECT_EQ(taken.model.values(), before.model.values());
      EXPECT_EQ(taken.optimizer.values(), before.optimizer.values());
      const State trained = Train(heads, c, nullptr, 0, 3);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_NEAR(trained.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i;
        EXPECT_NEAR(trained.norms[i], alone.norms[i], 1e-4 * alone.norms[i]) << "step " << i;
      }
      before = trained;
    }
  }
}

TEST(UnevenLayouts, ARunThatWasStoppedIsTheOneThatWasNot) {
  for (const Heads& heads : {Heads{14, 2, model::Family::kQwen2, true},
                             Heads{6, 1, model::Family::kQwen3Moe, false, 131, true}}) {
    const Degrees c{3, 2, 1, true};
    const State straight = Train(heads, c, nullptr, 0, 4);
    const State half = Train(heads, c, nullptr, 0, 2);
    const State resumed = Train(heads, c, &half, 2, 4);
    EXPECT_EQ(resumed.model.values(), straight.model.values());
    EXPECT_EQ(resumed.optimizer.values(), straight.optimizer.values());
    EXPECT_EQ(resumed.losses[1], straight.losses[3]);
  }
}

TEST(UnevenLayouts, AVocabularyAsLargeAsRealOnes) {
  const Heads heads{9, 3, model::Family::kLlama, true, 49153};
  const State alone = Train(heads, {1, 1, 1, false}, nullptr, 0, 2);
  for (const Degrees& c : {Degrees{2, 1, 1, true}, Degrees{3, 1, 1, false}}) {
    const State trained = Train(heads, c, nullptr, 0, 2);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(trained.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i;
      EXPECT_NEAR(trained.norms[i], alone.norms[i], 1e-4 * alone.norms[i]) << "step " << i;
    }
  }
}

}  // namespace
}  // namespace keel::trainer
