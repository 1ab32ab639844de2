#include "library/state_checkpointer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "parallel/store/store_server.h"
#include "tests/support/sanitized.h"

namespace keel::library {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StateCheckpointerTest : public ::testing::Test {
 protected:
  StateCheckpointerTest()
      : folder_(::testing::TempDir() + "keel_library_" +
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
  }
  ~StateCheckpointerTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<StateCheckpointer> Open(CheckpointerOptions options = {}) const {
    options.log = Verbosity::kErrors;
    options.io = "buffered";
    return ValueOrThrow(StateCheckpointer::Open(folder_, std::move(options)));
  }

  const std::string folder_;
};

StateTensor Of(std::string name, std::vector<float>& values, Dims shape = {}) {
  StateTensor tensor;
  tensor.name = std::move(name);
  tensor.shape = shape.empty() ? Dims{static_cast<int64_t>(values.size())} : shape;
  tensor.data = values.data();
  return tensor;
}

std::vector<float> Numbers(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_F(StateCheckpointerTest, WhatWasSavedIsLoadedAlsoWhenItChangesAtOnce) {
  std::vector<float> a = Numbers(300'000, 1), b = {7};
  const std::vector<float> saved = a;
  auto checkpoints = Open({.keep = 2});
  EXPECT_FALSE(ValueOrThrow(checkpoints->LatestStep()).has_value());
  EXPECT_FALSE(ValueOrThrow(checkpoints->Load(std::vector{Of("a", a)})).has_value());
  for (int64_t step = 1; step <= 3; ++step) {
    const auto save =
        ValueOrThrow(checkpoints->SaveAsync(step, std::vector{Of("a", a), Of("b", b)},
                                            {.extra = "{\"step\": " + std::to_string(step) + "}"}));
    a.assign(a.size(), -1);  // the copy is made
    ASSERT_TRUE(save.Wait().ok());
    EXPECT_TRUE(save.done());
    EXPECT_GT(save.seconds(), 0);
    a = saved;
  }
  EXPECT_THAT(ValueOrThrow(checkpoints->Steps()), ElementsAre(3, 2));
  const auto what = ValueOrThrow(checkpoints->Describe(2)).value();
  EXPECT_EQ(what.extra, "{\"step\": 2}");
  ASSERT_EQ(what.tensors.size(), 2u);
  EXPECT_EQ(what.tensors[0].shape, (Dims{300'000}));
  a.assign(a.size(), 0);
  const auto loaded = ValueOrThrow(checkpoints->Load(std::vector{Of("b", b), Of("a", a)})).value();
  EXPECT_EQ(loaded.step, 3);
  EXPECT_EQ(loaded.extra, "{\"step\": 3}");
  EXPECT_EQ(a, saved);
  EXPECT_TRUE(checkpoints->Close().ok());
  EXPECT_EQ(checkpoints->Save(4, std::vector{Of("a", a)}).code(), StatusCode::kUsage);
}

// Of memory with gaps, into memory cut and laid out otherwise.
TEST_F(StateCheckpointerTest, StridedMemoryIsReadAndFilled) {
  std::vector<float> wide = Numbers(6 * 8, 0);
  StateTensor columns = Of("x", wide, {6, 4});  // the first four of eight columns
  columns.strides = {8, 1};
  auto checkpoints = Open();
  ASSERT_TRUE(checkpoints->Save(1, std::vector{columns}).ok());
  std::vector<float> turned(24, -1);
  StateTensor by_column = Of("x", turned, {6, 4});
  by_column.strides = {1, 6};
  ASSERT_TRUE(checkpoints->Load(std::vector{by_column}).ok());
  for (size_t row = 0; row < 6; ++row)
    for (size_t column = 0; column < 4; ++column)
      EXPECT_EQ(turned[column * 6 + row], wide[row * 8 + column]);
}

TEST_F(StateCheckpointerTest, AnOverlappedSaveHoldsOneStepOrFails) {
  std::vector<float> a = Numbers(8'000'000, 1);
  const std::vector<float> before = a;
  auto checkpoints = Open();
  // By the rule.
  auto save = ValueOrThrow(
      checkpoints->SaveAsync(1, std::vector{Of("a", a)}, {.snapshot = Snapshot::kOverlapped}));
  checkpoints->WaitCopied();
  a.assign(a.size(), -1);
  ASSERT_TRUE(save.Wait().ok());
  std::vector<float> read(a.size());
  ASSERT_TRUE(checkpoints->Load(std::vector{Of("a", read)}).ok());
  EXPECT_EQ(read, before);
  if (keel::testing::kRacesAreSeen) return;  // what follows is one
  // Against it: the copy was made before, or the save fails.
  a = before;
  save = ValueOrThrow(
      checkpoints->SaveAsync(2, std::vector{Of("a", a)}, {.snapshot = Snapshot::kOverlapped}));
  a.assign(a.size(), -1);
  if (const Status status = save.Wait(); status.ok()) {
    ASSERT_TRUE(checkpoints->Load(std::vector{Of("a", read)}, {.step = 2}).ok());
    EXPECT_EQ(read, before);
  } else {
    EXPECT_THAT(status.message(), HasSubstr("a"));
    EXPECT_EQ(ValueOrThrow(checkpoints->LatestStep()), 1);
  }
}

// A handle is asked on any thread, also while the checkpointer goes.
TEST_F(StateCheckpointerTest, AHandleIsAskedWhileTheCheckpointerEnds) {
  std::vector<float> a = Numbers(1'000, 1);
  for (int64_t round = 1; round <= 20; ++round) {
    auto checkpoints = Open();
    const auto save = ValueOrThrow(checkpoints->SaveAsync(round, std::vector{Of("a", a)}));
    std::atomic<bool> gone = false;
    std::thread asks([&] {
      while (!gone) (void)save.done();
    });
    checkpoints.reset();
    gone = true;
    asks.join();
    EXPECT_TRUE(save.done());
    EXPECT_TRUE(save.Wait().ok());
  }
}

TEST_F(StateCheckpointerTest, AnotherStateIsRefusedAndNothingChanges) {
  std::vector<float> a = Numbers(10, 1), b(10, 5);
  auto checkpoints = Open();
  ASSERT_TRUE(checkpoints->Save(1, std::vector{Of("a", a)}).ok());
  for (const StateTensor& other : {Of("b", b), Of("a", b, {5, 2})}) {
    const auto loaded = checkpoints->Load(std::vector{other});
    EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidData);
    EXPECT_THAT(loaded.status().message(), HasSubstr("global_step_1 does not hold this state"));
    EXPECT_THAT(b, ::testing::Each(5));
  }
  EXPECT_EQ(checkpoints->Load(std::vector{Of("a", b)}, {.step = 9}).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(checkpoints->Save(-1, std::vector{Of("a", a)}).code(), StatusCode::kInvalidData);
  ASSERT_TRUE(checkpoints->Load(std::vector{Of("b", b)}, {.allow_missing = {"?"}}).ok());
  EXPECT_THAT(b, ::testing::Each(5));
}

TEST_F(StateCheckpointerTest, ADamagedCheckpointIsPassedOver) {
  std::vector<float> a = Numbers(1000, 1);
  auto checkpoints = Open();
  ASSERT_TRUE(checkpoints->Save(1, std::vector{Of("a", a)}).ok());
  std::vector<float> later = Numbers(1000, 2);
  ASSERT_TRUE(checkpoints->Save(2, std::vector{Of("a", later)}).ok());
  {
    std::fstream file(folder_ + "/global_step_2/state/model/rank_00000.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 100);
    file.put('!');
  }
  std::vector<float> read(1000);
  const auto loaded = ValueOrThrow(checkpoints->Load(std::vector{Of("a", read)})).value();
  EXPECT_EQ(loaded.step, 1);
  EXPECT_EQ(read, a);
  ASSERT_EQ(loaded.skipped.size(), 1u);
  EXPECT_THAT(loaded.skipped[0], HasSubstr("global_step_2: "));
  const auto named = checkpoints->Load(std::vector{Of("a", read)}, {.step = 2});
  EXPECT_EQ(named.status().code(), StatusCode::kDataLoss);
}

// One whose end came before StartSave had returned was never told it, and a wait never ended.
TEST_F(StateCheckpointerTest, ASaveThatEndsAtOnceIsHeardOf) {
  std::vector<float> a = Numbers(1, 1);
  auto checkpoints = Open({.keep = 1});
  for (int64_t step = 1; step <= 200; ++step) {
    const SaveHandle save = ValueOrThrow(checkpoints->SaveAsync(step, std::vector{Of("a", a)}));
    ASSERT_TRUE(save.Wait().ok());
    ASSERT_GT(save.seconds(), 0);
  }
}

// The older one holds other tensors: places are made for it by itself.
TEST_F(StateCheckpointerTest, ARestorePassesOverADamagedCheckpointWhateverTheOlderOneHolds) {
  std::vector<float> a = Numbers(1000, 1);
  auto checkpoints = Open();
  ASSERT_TRUE(checkpoints->Save(1, std::vector{Of("old", a)}).ok());
  std::vector<float> later = Numbers(1000, 2);
  ASSERT_TRUE(checkpoints->Save(2, std::vector{Of("a", later), Of("b", later)}).ok());
  {
    std::fstream file(folder_ + "/global_step_2/state/model/rank_00000.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 100);
    file.put('!');
  }
  std::map<std::string, std::vector<float>> read;
  const StateCheckpointer::Places places = [&](const StateDescription& saved) {
    std::vector<StateTensor> state;
    read.clear();
    for (const TensorEntry& entry : saved.tensors) {
      std::vector<float>& values = read[entry.name];
      values.resize(1000);
      state.push_back(Of(entry.name.c_str(), values));
    }
    return Result<std::vector<StateTensor>>(state);
  };
  const auto loaded = ValueOrThrow(checkpoints->Restore(places)).value();
  EXPECT_EQ(loaded.step, 1);
  EXPECT_EQ(read, (std::map<std::string, std::vector<float>>{{"old", a}}));
  ASSERT_EQ(loaded.skipped.size(), 1u);
  EXPECT_THAT(loaded.skipped[0], HasSubstr("global_step_2: "));
  EXPECT_EQ(checkpoints->Restore(places, 2).status().code(), StatusCode::kDataLoss);
  // A load has one state, which the older one does not hold; it says why it came to that one.
  std::vector<float> b(1000);
  const Status refused = checkpoints->Load(std::vector{Of("a", later), Of("b", b)}).status();
  EXPECT_EQ(refused.code(), StatusCode::kConfig);
  EXPECT_THAT(refused.message(),
              ::testing::AllOf(HasSubstr("global_step_1"), HasSubstr("global_step_2"),
                               HasSubstr("allow_missing"), ::testing::Not(HasSubstr("actor"))));
}

TEST_F(StateCheckpointerTest, OptionsAreCalledWhatTheyAre) {
  for (const auto& [options, name] : std::vector<std::pair<CheckpointerOptions, std::string>>{
           {{.keep = 0}, "keep is 0"}, {{.writers = 0}, "writers"}, {{.readers = 0}, "readers"}}) {
    EXPECT_THAT(StateCheckpointer::Open(folder_, options).status().message(),
                ::testing::AllOf(HasSubstr(name), ::testing::Not(HasSubstr("ckpt")),
                                 ::testing::Not(HasSubstr("load_threads"))));
  }
}

TEST_F(StateCheckpointerTest, OneOwnsTheFolderOthersRead) {
  std::vector<float> a = Numbers(10, 1), read(10);
  auto checkpoints = Open();
  const auto second = StateCheckpointer::Open(folder_);
  EXPECT_EQ(second.status().code(), StatusCode::kBusy) << second.status().message();
  ASSERT_TRUE(checkpoints->Save(3, std::vector{Of("a", a)}).ok());
  auto reader = Open({.read_only = true});
  EXPECT_EQ(ValueOrThrow(reader->LatestStep()), 3);
  ASSERT_TRUE(reader->Load(std::vector{Of("a", read)}).ok());
  EXPECT_EQ(read, a);
  EXPECT_EQ(reader->Save(4, std::vector{Of("a", a)}).code(), StatusCode::kUsage);
  EXPECT_EQ(StateCheckpointer::Open(folder_ + "/none", {.read_only = true}).status().code(),
            StatusCode::kNotFound);
}

TEST_F(StateCheckpointerTest, OptionsAreHeldAgainstEachOther) {
  const auto refusal = [&](CheckpointerOptions options) {
    return StateCheckpointer::Open(folder_, std::move(options)).status().message();
  };
  EXPECT_THAT(refusal({.keep = 0}), HasSubstr("expected at least 1"));
  EXPECT_THAT(refusal({.keep_best = 2}), HasSubstr("set keep"));
  EXPECT_THAT(refusal({.rank = 2, .world = 2}), HasSubstr("rank 2 of world 2"));
  EXPECT_THAT(refusal({.world = 2}), HasSubstr("need a store"));
  EXPECT_THAT(refusal({.world = 2, .store = "nowhere", .job = "j"}), HasSubstr("host:port"));
  EXPECT_THAT(refusal({.io = "fast"}), HasSubstr("'fast'"));
}

// Three ranks with boxes by rows and a tensor that all of them hold, over a store; then two, which
// cut by columns; then one.
TEST_F(StateCheckpointerTest, RanksSaveOneStateAndLoadItCutOtherwise) {
  auto server = ValueOrThrow(parallel::StoreServer::Start({.host = "127.0.0.1"}));
  const std::string store = "127.0.0.1:" + std::to_string(server.port());
  std::vector<float> whole = Numbers(9 * 4, 0);
  const auto on_ranks = [&](int world, const std::string& job, const auto& work) {
    std::vector<std::thread> threads;
    for (int r = 0; r < world; ++r)
      threads.emplace_back([&, r] {
        auto checkpoints = Open({.rank = r, .world = world, .store = store, .job = job});
        work(r, *checkpoints);
        EXPECT_TRUE(checkpoints->Close().ok());
      });
    for (std::thread& thread : threads) thread.join();
  };
  on_ranks(3, "first", [&](int r, StateCheckpointer& checkpoints) {
    std::vector<float> rows(whole.begin() + r * 12, whole.begin() + r * 12 + 12), same = {1, 2, 3};
    StateTensor mine = Of("x", rows, {9, 4});
    mine.box = Box{{3 * r, 0}, {3, 4}};
    for (int64_t step = 1; step <= 2; ++step) {
      const auto save = ValueOrThrow(
          checkpoints.SaveAsync(step, std::vector{mine, Of("same", same)}, {.extra = "e"}));
      EXPECT_TRUE(save.Wait().ok());
    }
    // What one rank has wrong, all are told, and none waits for a save without it.
    StateTensor bad = mine;
    if (r == 1) bad.data = nullptr;
    const auto refused = checkpoints.SaveAsync(3, std::vector{bad, Of("same", same)});
    EXPECT_THAT(refused.status().message(), HasSubstr("rank 1: the tensor 'x' has no memory"));
  });
  on_ranks(2, "second", [&](int r, StateCheckpointer& checkpoints) {
    std::vector<float> columns(18, -1), same(3);
    StateTensor mine = Of("x", columns, {9, 4});
    mine.box = Box{{0, 2 * r}, {9, 2}};
    const auto loaded = ValueOrThrow(checkpoints.Load(std::vector{mine, Of("same", same)})).value();
    EXPECT_EQ(loaded.step, 2);
    EXPECT_EQ(loaded.extra, "e");
    EXPECT_THAT(same, ElementsAre(1, 2, 3));
    for (size_t i = 0; i < columns.size(); ++i)
      EXPECT_EQ(columns[i], whole[i / 2 * 4 + static_cast<size_t>(2 * r) + i % 2]);
  });
  std::vector<float> all(36), same(3);
  ASSERT_TRUE(Open()->Load(std::vector{Of("x", all, {9, 4}), Of("same", same)}).ok());
  EXPECT_EQ(all, whole);
}

}  // namespace
}  // namespace keel::library
