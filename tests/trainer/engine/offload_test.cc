// Training with offload against training without: the same bits, under several layouts, whatever
// the order of steps, moves, saves and loads.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/support/nightly.h"
#include "tests/support/ranks.h"
#include "tests/support/slow_copies.h"
#include "tests/support/tiny_training.h"
#include "trainer/engine/train_engine.h"
#include "trainer/run/store_coordinator.h"

namespace keel::trainer {
namespace {

using keel::testing::LossTokens;
using keel::testing::MicroBatches;
using keel::testing::RowsOfStep;

constexpr OffloadOptions kAll = {true, true, true};
constexpr std::array kClasses = {StateClass::kParams, StateClass::kGrads, StateClass::kOptimizer};

struct Layout {
  int tp, dp, pp;
};
constexpr std::array kLayouts = {Layout{1, 1, 1}, Layout{2, 1, 1}, Layout{1, 2, 1},
                                 Layout{2, 1, 2}};

// An engine of the tiny model, and its steps.
struct Training {
  Training(parallel::ParallelContext& c, at::ScalarType dtype, const OffloadOptions& offload,
           parallel::CudaModule* copies = nullptr)
      : context(c), engine(c, keel::testing::TinyConfig(true, model::Family::kLlama), [&] {
          TrainEngineOptions options;
          options.dtype = dtype;
          options.bucket_bytes = 8192;  // many buckets
          options.offload = offload;
          options.copies = copies;
          return options;
        }()) {
    engine.Initialize(5);
    engine.OffloadIdle();
  }
  auto Batches(int step) {
    return MicroBatches(RowsOfStep(step), context.dp_rank(), context.layout().dp(), 2, 1);
  }
  StepResult Step(double lr = 5e-3) {
    const StepResult result = engine.Step(Batches(t), LossTokens(RowsOfStep(t)), lr, t + 1);
    ++t;
    return result;
  }

  parallel::ParallelContext& context;
  TrainEngine engine;
  int t = 0;
};

// One shard's memory, and the bytes that lay there at some time.
struct Piece {
  std::string name;
  std::byte* data = nullptr;
  std::string bytes;
};

std::vector<Piece> PiecesOf(const ShardTable& table) {
  std::vector<Piece> pieces;
  for (const Shard& shard : table.shards()) {
    const TensorInfo& tensor = table.tensor_of(shard);
    size_t n = tensor.dtype == DType::kBF16 ? 2 : 4;
    for (const int64_t size : shard.box.size) n *= static_cast<size_t>(size);
    pieces.push_back({tensor.name, shard.view.data,
                      std::string(reinterpret_cast<const char*>(shard.view.data), n)});
  }
  return pieces;
}

// Weights, masters and moments of this rank, as a save would read them.
std::vector<Piece> PiecesOf(const TrainEngine::StateTables& tables) {
  std::vector<Piece> pieces = PiecesOf(tables.model);
  for (Piece& piece : PiecesOf(tables.optimizer)) pieces.push_back(std::move(piece));
  return pieces;
}

std::vector<Piece> StateOf(TrainEngine& engine) {
  std::vector<Piece> pieces;
  engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
    pieces = PiecesOf(tables);
    return {};
  });
  return pieces;
}

void ExpectSameBytes(const std::vector<Piece>& a, const std::vector<Piece>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].name, b[i].name);
    ASSERT_TRUE(a[i].bytes == b[i].bytes) << a[i].name;
  }
}

// Writes `pieces` through the tables, as a load does.
void LoadState(TrainEngine& engine, const std::vector<Piece>& pieces) {
  engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
    const std::vector<Piece> places = PiecesOf(tables);
    EXPECT_EQ(places.size(), pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i)
      std::memcpy(places[i].data, pieces[i].bytes.data(), pieces[i].bytes.size());
    return {.weights = true, .optimizer = true};
  });
}

// As an import does that writes the weights that are there.
void ImportTheSame(TrainEngine& engine) {
  engine.LoadInto([](const auto&) { return TrainEngine::Written{.weights = true}; });
}

// Reads a snapshot as late as the hook allows, as an asynchronous save in place may.
class LateReader {
 public:
  void Start(std::vector<Piece> snapshot) {
    pieces_ = std::move(snapshot);
    read_.assign(pieces_.size(), {});
  }
  void BeforeWrite(const void* begin, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(begin);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      if (piece.data < from + bytes && from < piece.data + piece.bytes.size()) Read(i);
    }
  }
  void Finish() {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      Read(i);
      ASSERT_TRUE(read_[i] == pieces_[i].bytes) << pieces_[i].name << " changed unannounced";
    }
    pieces_.clear();
  }

 private:
  void Read(size_t i) {
    if (read_[i].empty())
      read_[i].assign(reinterpret_cast<const char*>(pieces_[i].data), pieces_[i].bytes.size());
  }
  std::vector<Piece> pieces_;
  std::vector<std::string> read_;
};

class OffloadTest : public ::testing::TestWithParam<std::tuple<Layout, at::ScalarType>> {
 protected:
  // `body` on every rank of the layout.
  void OnRanks(const std::function<void(parallel::ParallelContext&, at::ScalarType)>& body) {
    const auto [layout, dtype] = GetParam();
    keel::testing::RunRanks(layout.tp, layout.dp, layout.pp,
                            [&, type = dtype](auto& context) { body(context, type); });
  }
};

TEST_P(OffloadTest, StepsAreBitEqualToThoseWithout) {
  OnRanks([](parallel::ParallelContext& context, at::ScalarType dtype) {
    Training with(context, dtype, kAll);
    Training without(context, dtype, {});
    for (int step = 0; step < 6; ++step) {
      const StepResult a = with.Step();
      const StepResult b = without.Step();
      ASSERT_EQ(a.loss, b.loss);
      ASSERT_EQ(a.grad_norm, b.grad_norm);
      for (const StateClass c : kClasses) {
        ASSERT_EQ(with.engine.residency().place(c), Place::kHost);
        ASSERT_EQ(with.engine.residency().device_bytes(c), 0);
      }
      for (const parallel::Parameter* p : with.engine.decoder().parameters()) {
        ASSERT_EQ(p->value.storage().nbytes(), 0u);
        ASSERT_EQ(p->gradient.storage().nbytes(), 0u);
      }
      ASSERT_EQ(with.engine.SummedLoss(with.Batches(step)),
                without.engine.SummedLoss(without.Batches(step)));
      ASSERT_EQ(with.engine.residency().place(StateClass::kParams), Place::kHost);
      ExpectSameBytes(StateOf(with.engine), StateOf(without.engine));
    }
  });
}

TEST_P(OffloadTest, UpdatesInPlaceAreAnnounced) {
  OnRanks([](parallel::ParallelContext& context, at::ScalarType dtype) {
    Training training(context, dtype, {});
    LateReader reader;
    training.engine.set_before_write(
        [&](const void* begin, size_t bytes) { reader.BeforeWrite(begin, bytes); });
    const auto expect_announced = [&](const std::function<void()>& write) {
      const std::vector<Piece> before = StateOf(training.engine);
      reader.Start(before);
      write();
      const std::vector<Piece> after = StateOf(training.engine);
      size_t changed = 0;
      for (size_t i = 0; i < after.size(); ++i) changed += after[i].bytes != before[i].bytes;
      EXPECT_GT(changed, 0u) << "nothing was overwritten, so nothing is shown";
      reader.Finish();
    };
    expect_announced([&] { training.Step(); });
    expect_announced([&] { training.Step(); });
    if (dtype == at::kBFloat16) expect_announced([&] { ImportTheSame(training.engine); });
  });
}

TEST_P(OffloadTest, AnyOrderOfStepsMovesSavesAndLoadsKeepsTheBytes) {
  OnRanks([](parallel::ParallelContext& context, at::ScalarType dtype) {
    Training moved(context, dtype, kAll);
    Training twin(context, dtype, {});
    LateReader reader;
    moved.engine.set_before_write(
        [&](const void* begin, size_t bytes) { reader.BeforeWrite(begin, bytes); });
    Residency& residency = moved.engine.residency();
    std::map<int, std::vector<Piece>> saved;
    std::mt19937 common(11);  // what all ranks must do together
    std::mt19937 own(static_cast<unsigned>(100 + context.rank()));
    const int rounds = testing::Nightly() ? 120 : 60;
    for (int i = 0; i < rounds; ++i) {
      for (auto moves = own() % 3; moves > 0; --moves) {
        const StateClass c = kClasses[own() % kClasses.size()];
        switch (own() % 5) {
          case 0:
            residency.Load(c);
            break;
          case 1:
            residency.LoadToRead(c);
            break;
          case 2:
            residency.CopyToHost(c);
            break;
          default:
            residency.Offload(c);
        }
      }
      const std::array places = {residency.place(kClasses[0]), residency.place(kClasses[1]),
                                 residency.place(kClasses[2])};
      switch (common() % 6) {
        case 0: {  // save
          reader.Finish();
          saved[moved.t] = StateOf(moved.engine);
          reader.Start(saved[moved.t]);
          break;
        }
        case 1: {  // load an earlier step
          if (saved.empty()) break;
          const auto& state =
              std::next(saved.begin(), static_cast<int64_t>(common() % saved.size()))->second;
          reader.Finish();
          LoadState(moved.engine, state);
          LoadState(twin.engine, state);
          break;
        }
        case 2:  // weights without masters, as at an import
          ImportTheSame(moved.engine);
          ImportTheSame(twin.engine);
          break;
        default:
          ASSERT_EQ(moved.Step().loss, twin.Step().loss);
      }
      for (size_t c = 0; c < kClasses.size(); ++c) {
        if (places[c] == Place::kHost) {
          ASSERT_EQ(residency.place(kClasses[c]), Place::kHost) << "not as found";
        } else {
          ASSERT_NE(residency.place(kClasses[c]), Place::kHost) << "not as found";
        }
      }
      ExpectSameBytes(StateOf(moved.engine), StateOf(twin.engine));
      if (::testing::Test::HasFatalFailure()) return;
    }
    reader.Finish();
    ASSERT_GT(saved.size(), 5u);
  });
}

TEST_P(OffloadTest, BackgroundSavesHoldTheBytesOfTheirStep) {
  const checkpoint::testing::TempDir folder;
  const parallel::Store store = parallel::Store::InProcess();
  OnRanks([&](parallel::ParallelContext& context, at::ScalarType dtype) {
    Training training(context, dtype, kAll);
    Training reader(context, dtype, {});
    const auto fs = folder.Open();
    StoreCoordinator coordinator(store, context.rank(), context.layout().world());
    Logger log(checkpoint::testing::Quiet());
    checkpoint::CheckpointOptions options = checkpoint::testing::SmallOptions();
    options.run_id = "offload";
    options.host_memory_cap = 16 << 10;  // what must be copied goes in waves, and is waited for
    checkpoint::Checkpointer checkpointer(*fs, coordinator, SystemClock(), log, options);
    ThrowIfError(checkpointer.Open());
    training.engine.set_before_write(
        [&](const void* begin, size_t bytes) { checkpointer.WaitFree(begin, bytes); });
    std::vector<std::vector<Piece>> expected;
    std::mt19937 own(static_cast<unsigned>(200 + context.rank()));
    for (int save = 1; save <= 6; ++save) {
      // Ranks may differ in where their state is.
      for (const StateClass c : kClasses) {
        if (own() % 3 == 0) training.engine.residency().Load(c);
      }
      training.Step();
      expected.push_back(StateOf(training.engine));
      checkpoint::SaveRequest request;
      request.step = save;
      request.contents = {true, true, false, false};
      auto [model, optimizer, base] = training.engine.SaveTables();
      request.roles = {{"actor", model, optimizer, training.engine.ModelOnHost(),
                        training.engine.OptimizerOnHost()}};
      ThrowIfError(checkpointer.StartSave(std::move(request)));
      training.Step();
      training.engine.OffloadIdle();
      for (const checkpoint::SaveResult& ended : checkpointer.Finished())
        ThrowIfError(ended.status);
    }
    ThrowIfError(checkpointer.Wait());
    for (const checkpoint::SaveResult& ended : checkpointer.Finished()) ThrowIfError(ended.status);
    for (int save = 1; save <= 6; ++save) {
      checkpoint::LoadRequest request;
      request.resume_path = "global_step_" + std::to_string(save);
      request.contents = {true, true, false, false};
      reader.engine.LoadInto([&](TrainEngine::StateTables tables) -> TrainEngine::Written {
        request.roles = {{"actor", std::move(tables.model), std::move(tables.optimizer)}};
        EXPECT_TRUE(ValueOrThrow(checkpointer.Load(request)).has_value());
        return {.weights = true, .optimizer = true};
      });
      ExpectSameBytes(StateOf(reader.engine), expected[static_cast<size_t>(save) - 1]);
    }
    ThrowIfError(checkpointer.Close());
  });
}

// As on a GPU: the copies to the host go on beside the next step, and neither the save reads what
// has not arrived nor the step overwrites what has not left.
TEST_P(OffloadTest, BackgroundSavesBesideACopyEngineHoldTheBytesOfTheirStep) {
  const checkpoint::testing::TempDir folder;
  const parallel::Store store = parallel::Store::InProcess();
  OnRanks([&](parallel::ParallelContext& context, at::ScalarType dtype) {
    keel::testing::SlowCopies copies(std::chrono::milliseconds(3));
    Training training(context, dtype, {}, &copies);
    Training twin(context, dtype, {});
    const auto fs = folder.Open();
    StoreCoordinator coordinator(store, context.rank(), context.layout().world());
    Logger log(checkpoint::testing::Quiet());
    checkpoint::CheckpointOptions options = checkpoint::testing::SmallOptions();
    options.run_id = "copies";
    checkpoint::Checkpointer checkpointer(*fs, coordinator, SystemClock(), log, options);
    ThrowIfError(checkpointer.Open());
    training.engine.set_before_write(
        [&](const void* begin, size_t bytes) { checkpointer.WaitFree(begin, bytes); });
    constexpr int kSaves = 5;
    std::vector<std::vector<Piece>> expected;
    for (int save = 1; save <= kSaves; ++save) {
      training.Step();
      twin.Step();
      expected.push_back(StateOf(twin.engine));
      const int64_t before = copies.done();
      checkpoint::SaveRequest request;
      request.step = save;
      request.contents = {true, true, false, false};
      auto [model, optimizer, base] = training.engine.SaveTables();
      EXPECT_LT(copies.done(), before + 2) << "it waited for the copies";
      request.roles = {{"actor", model, optimizer, training.engine.ModelOnHost(),
                        training.engine.OptimizerOnHost(),
                        [&](const std::byte* begin, int64_t bytes) {
                          return training.engine.WaitArrived(begin, bytes);
                        }}};
      EXPECT_TRUE(request.roles[0].model_stable);
      ThrowIfError(checkpointer.StartSave(std::move(request)));
      training.Step();
      twin.Step();
      ThrowIfError(checkpointer.Wait());
      for (const checkpoint::SaveResult& ended : checkpointer.Finished())
        ThrowIfError(ended.status);
    }
    Training reader(context, dtype, {});
    for (int save = 1; save <= kSaves; ++save) {
      checkpoint::LoadRequest request;
      request.resume_path = "global_step_" + std::to_string(save);
      request.contents = {true, true, false, false};
      reader.engine.LoadInto([&](TrainEngine::StateTables tables) -> TrainEngine::Written {
        request.roles = {{"actor", std::move(tables.model), std::move(tables.optimizer)}};
        EXPECT_TRUE(ValueOrThrow(checkpointer.Load(request)).has_value());
        return {.weights = true, .optimizer = true};
      });
      ExpectSameBytes(StateOf(reader.engine), expected[static_cast<size_t>(save) - 1]);
    }
    // A copy that fails, fails the save, by name; the last good one stays.
    copies.FailFromNowOn();
    training.Step();
    checkpoint::SaveRequest request;
    request.step = kSaves + 1;
    request.contents = {true, true, false, false};
    auto [model, optimizer, base] = training.engine.SaveTables();
    request.roles = {
        {"actor", model, optimizer, true, true, [&](const std::byte* begin, int64_t bytes) {
           return training.engine.WaitArrived(begin, bytes);
         }}};
    ThrowIfError(checkpointer.StartSave(std::move(request)));
    ThrowIfError(checkpointer.Wait());
    const auto ended = checkpointer.Finished();
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_FALSE(ended[0].status.ok());
    EXPECT_NE(ended[0].status.message().find("the copy engine broke"), std::string::npos)
        << ended[0].status.message();
    EXPECT_FALSE(fs->Stat("global_step_" + std::to_string(kSaves + 1)).ok());
    ThrowIfError(checkpointer.Close());
  });
}

// What the host reads after groups were aborted are no sums: nothing is updated with them.
TEST(OneRankOffloadTest, GroupsThatAreLostEndTheStepBeforeItsUpdate) {
  keel::testing::RunRanks(1, 1, 1, [](parallel::ParallelContext& context) {
    keel::testing::SlowCopies module;
    Training training(context, at::kFloat, {}, &module);
    // Its parts are timed by the device's marks: fake ones, a second apart.
    const StepResult result = training.Step();
    EXPECT_EQ(result.forward_backward_s, 1);
    EXPECT_EQ(result.reduce_s, 1);
    EXPECT_EQ(result.optimizer_s, 0);
    EXPECT_EQ(training.Step().optimizer_s, 1);  // of the update before: nobody waits for this one
    const at::Tensor before = training.engine.weights().flat().clone();
    module.Lose({StatusCode::kDeadlineExceeded, "all-reduce in group tp on rank 0 step 3"});
    try {
      training.Step();
      FAIL() << "it believed the sums";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kDeadlineExceeded);
      EXPECT_EQ(error.status().message(), "all-reduce in group tp on rank 0 step 3");
    }
    EXPECT_TRUE(at::equal(training.engine.weights().flat(), before));
  });
}

std::string NameOf(const ::testing::TestParamInfo<OffloadTest::ParamType>& test) {
  const auto [layout, dtype] = test.param;
  return "tp" + std::to_string(layout.tp) + "_dp" + std::to_string(layout.dp) + "_pp" +
         std::to_string(layout.pp) + (dtype == at::kFloat ? "_fp32" : "_bf16");
}

INSTANTIATE_TEST_SUITE_P(All, OffloadTest,
                         ::testing::Combine(::testing::ValuesIn(kLayouts),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         NameOf);

TEST(OffloadSwitchTest, EachMovesItsClassAloneAndTheOthersCountExactlyZero) {
  for (const OffloadOptions& offload :
       {OffloadOptions{}, OffloadOptions{true, false, false}, OffloadOptions{false, true, false},
        OffloadOptions{false, false, true}}) {
    keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
      Training training(context, at::kBFloat16, offload);
      for (int step = 0; step < 3; ++step) {
        const MoveSeconds moves = training.Step().moves;
        const auto check = [](bool moved, double load, double out) {
          EXPECT_EQ(load > 0, moved);
          EXPECT_EQ(out > 0, moved);
          if (!moved) {
            EXPECT_EQ(load, 0.0);
            EXPECT_EQ(out, 0.0);
          }
        };
        check(offload.params, moves.param_load, moves.param_offload);
        check(offload.grads, moves.grad_load, moves.grad_offload);
        check(offload.optimizer, moves.optimizer_load, moves.optimizer_offload);
      }
      EXPECT_EQ(training.engine.ModelOnHost(), offload.params);
      EXPECT_EQ(training.engine.OptimizerOnHost(), offload.optimizer);
    });
  }
}

TEST(OffloadSwitchTest, ASkippedUpdateMovesNoOptimizerState) {
  keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
    Training training(context, at::kFloat, kAll);
    training.Step();
    const std::vector<Piece> before = StateOf(training.engine);
    const at::Tensor host =
        training.engine.residency().HostView(training.engine.decoder().parameters()[0]->value);
    const float kept = host.data_ptr<float>()[0];
    host.data_ptr<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    const StepResult result = training.Step();
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(result.moves.optimizer_load, 0.0);
    EXPECT_EQ(result.moves.optimizer_offload, 0.0);
    EXPECT_GT(result.moves.param_load, 0);
    host.data_ptr<float>()[0] = kept;
    ExpectSameBytes(StateOf(training.engine), before);
  });
}

}  // namespace
}  // namespace keel::trainer
