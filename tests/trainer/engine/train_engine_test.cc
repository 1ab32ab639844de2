#include "trainer/engine/train_engine.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace keel::trainer {
namespace {

using StateTables = TrainEngine::StateTables;
using Written = TrainEngine::Written;

constexpr std::array kStateClasses = {StateClass::kParams, StateClass::kOptimizer};

TrainEngineOptions EngineOptions(at::ScalarType dtype) {
  TrainEngineOptions options;
  options.dtype = dtype;
  options.offload = {true, true, true};  // room on the host, so that every place can be
  return options;
}

model::HfConfig Config() { return keel::testing::TinyConfig(true, model::Family::kLlama); }

// Where a class may be found.
void MoveTo(Residency& residency, StateClass c, Place place) {
  residency.Load(c);
  if (place == Place::kHost) residency.Offload(c);
  if (place == Place::kBoth) residency.CopyToHost(c);
}

int64_t Elements(const Shard& shard) { return shard.box.elements(); }

// A number that bf16 holds, for element i of a tensor in the load numbered `load`.
float Value(const std::string& name, int64_t i, int load) {
  return static_cast<float>((static_cast<int64_t>(name.size()) * 3 + i * 5 + load * 11) % 120);
}

// Every shard here is contiguous.
void Write(const ShardTable& table, int load) {
  for (const Shard& shard : table.shards()) {
    const TensorInfo& tensor = table.tensor_of(shard);
    for (int64_t i = 0; i < Elements(shard); ++i) {
      const float value = Value(tensor.name, i, load);
      if (tensor.dtype == DType::kF32) {
        reinterpret_cast<float*>(shard.view.data)[i] = value;
      } else {
        reinterpret_cast<at::BFloat16*>(shard.view.data)[i] = value;
      }
    }
  }
}

// By tensor: the values of this rank's first shard of it.
std::map<std::string, std::vector<float>> Read(const ShardTable& table) {
  std::map<std::string, std::vector<float>> values;
  for (const Shard& shard : table.shards()) {
    const TensorInfo& tensor = table.tensor_of(shard);
    for (int64_t i = 0; i < Elements(shard); ++i) {
      values[tensor.name].push_back(
          tensor.dtype == DType::kF32
              ? reinterpret_cast<const float*>(shard.view.data)[i]
              : static_cast<float>(reinterpret_cast<const at::BFloat16*>(shard.view.data)[i]));
    }
  }
  return values;
}

std::map<std::string, std::vector<float>> AsWritten(const ShardTable& table, int load) {
  std::map<std::string, std::vector<float>> values;
  for (const Shard& shard : table.shards()) {
    const std::string& name = table.tensor_of(shard).name;
    for (int64_t i = 0; i < Elements(shard); ++i) values[name].push_back(Value(name, i, load));
  }
  return values;
}

// What the state is now, on the device, where the next step computes with it.
std::pair<std::map<std::string, std::vector<float>>, std::map<std::string, std::vector<float>>>
StateOnDevice(TrainEngine& engine) {
  for (const StateClass c : kStateClasses) engine.residency().Load(c);
  const StateTables tables = engine.SaveTables();
  return {Read(tables.model), Read(tables.optimizer)};
}

// Whatever the place that a load finds the state in, and whatever it writes of it.
TEST(TrainEngineTest, WhatALoadWroteIsWhatTheEngineComputesWith) {
  keel::testing::RunRanks(1, 1, 1, [](parallel::ParallelContext& context) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      TrainEngine engine(context, Config(), EngineOptions(dtype));
      engine.Initialize(5);
      int load = 0;
      for (const Place params : {Place::kDevice, Place::kHost, Place::kBoth}) {
        for (const Place optimizer : {Place::kDevice, Place::kHost, Place::kBoth}) {
          for (const Written written : {Written{false, false}, Written{true, false},
                                        Written{false, true}, Written{true, true}}) {
            const auto [weights_before, optimizer_before] = StateOnDevice(engine);
            MoveTo(engine.residency(), StateClass::kParams, params);
            MoveTo(engine.residency(), StateClass::kOptimizer, optimizer);
            ++load;
            auto expected_weights = weights_before;
            auto expected_optimizer = optimizer_before;
            engine.LoadInto([&](const StateTables& tables) {
              // What is not written keeps its values.
              EXPECT_EQ(Read(tables.model), weights_before);
              EXPECT_EQ(Read(tables.optimizer), optimizer_before);
              if (written.weights) {
                Write(tables.model, load);
                expected_weights = AsWritten(tables.model, load);
              }
              if (written.optimizer) {
                Write(tables.optimizer, load);
                expected_optimizer = AsWritten(tables.optimizer, load);
              }
              return written;
            });
            // Where it was found on the host, it is there still.
            EXPECT_EQ(engine.residency().place(StateClass::kParams) == Place::kHost,
                      params == Place::kHost);
            EXPECT_EQ(engine.residency().place(StateClass::kOptimizer) == Place::kHost,
                      optimizer == Place::kHost);
            // Masters of other weights than these would undo the load at the first update.
            if (dtype == at::kBFloat16 && written.weights != written.optimizer) {
              for (const auto& [name, values] : expected_weights)
                expected_optimizer["optimizer.master." + name] = values;
            }
            const auto [weights_now, optimizer_now] = StateOnDevice(engine);
            EXPECT_EQ(weights_now, expected_weights);
            EXPECT_EQ(optimizer_now, expected_optimizer);
          }
        }
      }
    }
  });
}

// One load fills several, as of actor and critic, or none.
TEST(TrainEngineTest, OneLoadFillsSeveralEnginesOrNone) {
  keel::testing::RunRanks(1, 2, 1, [](parallel::ParallelContext& context) {
    TrainEngine first(context, Config(), EngineOptions(at::kBFloat16));
    TrainEngine second(context, Config(), EngineOptions(at::kBFloat16));
    first.Initialize(5);
    second.Initialize(6);
    second.OffloadIdle();
    const auto before = Read(first.SaveTables().model);
    TrainEngine::LoadInto({&first, &second}, [](const auto&) { return Written{}; });
    EXPECT_EQ(Read(first.SaveTables().model), before);
    TrainEngine::LoadInto({&first, &second}, [](const std::vector<StateTables>& tables) {
      EXPECT_EQ(tables.size(), 2u);
      for (size_t i = 0; i < tables.size(); ++i) Write(tables[i].model, static_cast<int>(i));
      return Written{.weights = true};
    });
    EXPECT_EQ(Read(first.SaveTables().model), AsWritten(first.SaveTables().model, 0));
    EXPECT_EQ(Read(second.SaveTables().model), AsWritten(second.SaveTables().model, 1));
  });
}

// With a pipeline the last stage holds a copy of the embedding, which no save needs.
TEST(TrainEngineTest, ALoadFillsCopiesThatASaveLeavesOut) {
  keel::testing::RunRanks(1, 1, 2, [](parallel::ParallelContext& context) {
    TrainEngine engine(context, Config(), EngineOptions(at::kFloat));
    const std::string name = "model.embed_tokens.weight";
    EXPECT_EQ(engine.SaveTables().model.Find(name) >= 0, context.pp_rank() == 0);
    engine.LoadInto([&](const StateTables& tables) {
      EXPECT_GE(tables.model.Find(name), 0);
      EXPECT_GE(tables.optimizer.Find("optimizer.exp_avg." + name), 0);
      return Written{};
    });
  });
}

TEST(TrainEngineTest, OneThatNeverLearnsHasWeightsAlone) {
  keel::testing::RunRanks(1, 1, 1, [](parallel::ParallelContext& context) {
    TrainEngineOptions options = EngineOptions(at::kBFloat16);
    TrainEngine learner(context, Config(), options);
    options.inference = true;
    TrainEngine engine(context, Config(), options);
    learner.Initialize(5);
    engine.Initialize(5);
    const auto rows = keel::testing::RowsOfStep(0);
    const auto batches = keel::testing::MicroBatches(rows, 0, 1, 2, 1);
    EXPECT_EQ(engine.SummedLoss(batches), learner.SummedLoss(batches));
    EXPECT_EQ(Read(engine.SaveTables().model), Read(learner.SaveTables().model));
    EXPECT_TRUE(engine.SaveTables().optimizer.shards().empty());
    EXPECT_EQ(engine.residency().device_bytes(StateClass::kGrads), 0);
    EXPECT_EQ(engine.residency().device_bytes(StateClass::kOptimizer), 0);
    EXPECT_ANY_THROW(engine.Step(batches, keel::testing::LossTokens(rows), 1e-3, 1));
    for (const parallel::Parameter* p : engine.decoder().parameters())
      EXPECT_FALSE(p->value.requires_grad()) << p->name;
    engine.LoadInto([](const StateTables& tables) {
      Write(tables.model, 3);
      return Written{.weights = true};
    });
    EXPECT_EQ(Read(engine.SaveTables().model), AsWritten(engine.SaveTables().model, 3));
  });
}

}  // namespace
}  // namespace keel::trainer
