#include "checkpoint/checkpointer.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "tests/checkpoint/test_support.h"

namespace keel::checkpoint {
namespace {

using testing::GlobalState;
using testing::LayoutOptions;
using testing::MakeState;
using testing::RandomLayout;
using testing::RankPart;
using testing::RunRanks;
using testing::SampleModel;
using testing::SampleOptimizer;
using testing::SmallOptions;
using testing::TempDir;

struct State {
  GlobalState model;
  GlobalState optimizer;
};

State MakeBoth(uint64_t seed) {
  return {MakeState(SampleModel(), seed), MakeState(SampleOptimizer(), seed + 1)};
}

// A state cut over ranks.
struct Cut {
  std::vector<RankPart> model;
  std::vector<RankPart> optimizer;

  Cut(const LayoutOptions& options, uint64_t seed) {
    std::mt19937_64 random(seed);
    model = RandomLayout(SampleModel(), options, random);
    optimizer = RandomLayout(SampleOptimizer(), options, random);
  }
  void Fill(const State& state) {
    for (RankPart& part : model) part.Fill(state.model);
    for (RankPart& part : optimizer) part.Fill(state.optimizer);
  }
  void Clear(int value) {
    for (RankPart& part : model) part.Clear(value);
    for (RankPart& part : optimizer) part.Clear(value);
  }
  std::string FirstDifference(const State& state) const {
    for (const auto& [parts, whole] :
         {std::pair(&model, &state.model), std::pair(&optimizer, &state.optimizer)}) {
      for (size_t r = 0; r < parts->size(); ++r) {
        const std::string difference = (*parts)[r].FirstDifference(*whole);
        if (!difference.empty()) return "rank " + std::to_string(r) + ": " + difference;
      }
    }
    return "";
  }
  int world() const { return static_cast<int>(model.size()); }
  std::vector<RoleState> Roles(int rank) const {
    return {{"actor", model[static_cast<size_t>(rank)].table,
             optimizer[static_cast<size_t>(rank)].table}};
  }
};

std::vector<Document> Documents(int64_t step) {
  return {{"trainer_state.json", "{\"step\": " + std::to_string(step) + "}\n", true},
          {"actor/huggingface/config.json", "{\"model_type\": \"llama\"}\n", false}};
}

Status SaveStep(const std::string& directory, const Cut& cut, int64_t step,
                const CheckpointOptions& options = SmallOptions(), const Contents& contents = {}) {
  Status outcome;
  RunRanks(cut.world(), [&](int rank, Coordinator& coordinator) {
    const auto fs = ValueOrThrow(OpenPosixFileSystem(directory, true));
    Logger log(testing::Quiet());
    Checkpointer checkpointer(*fs, coordinator, SystemClock(), log, options);
    ThrowIfError(checkpointer.Open());
    SaveRequest request;
    request.step = step;
    request.roles = cut.Roles(rank);
    request.contents = contents;
    request.config_digest = "config-a";
    request.layout = {{"world", cut.world()}};
    if (rank == 0) request.documents = Documents(step);
    const Result<SaveRecord> saved = checkpointer.Save(request);
    if (rank == 0) outcome = saved.status();
    ThrowIfError(checkpointer.Close());
  });
  return outcome;
}

Result<std::optional<LoadRecord>> LoadNewest(const std::string& directory, Cut& cut,
                                             const LoadRequest& like = {}) {
  Result<std::optional<LoadRecord>> outcome = Status(StatusCode::kInternal, "no rank 0");
  RunRanks(cut.world(), [&](int rank, Coordinator& coordinator) {
    const auto fs = ValueOrThrow(OpenPosixFileSystem(directory, true));
    Logger log(testing::Quiet());
    Checkpointer checkpointer(*fs, coordinator, SystemClock(), log, SmallOptions());
    ThrowIfError(checkpointer.Open());
    LoadRequest request = like;
    request.roles = cut.Roles(rank);
    auto loaded = checkpointer.Load(request);
    if (rank == 0) outcome = std::move(loaded);
    ThrowIfError(checkpointer.Close());
  });
  return outcome;
}

TEST(Checkpointer, AnyLayoutToAnyOther) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    TempDir dir;
    const State state = MakeBoth(seed);
    LayoutOptions from{1 + static_cast<int>(seed % 5), seed % 2 == 0, seed % 3 != 0, true};
    LayoutOptions to{1 + static_cast<int>((seed / 5) % 6), seed % 3 == 0, seed % 2 != 0, true};
    Cut a(from, seed);
    a.Fill(state);
    ASSERT_EQ(SaveStep(dir.path(), a, 7).ToString(), "ok") << "seed " << seed;
    Cut b(to, seed + 1000);
    b.Clear(0x5a);
    const auto loaded = LoadNewest(dir.path(), b);
    ASSERT_TRUE(loaded.ok()) << "seed " << seed << ": " << loaded.status().ToString();
    ASSERT_TRUE(loaded->has_value());
    EXPECT_EQ((*loaded)->step, 7);
    EXPECT_EQ((*loaded)->documents.at("trainer_state.json"), "{\"step\": 7}\n");
    EXPECT_EQ(b.FirstDifference(state), "") << "seed " << seed;
  }
}

TEST(Checkpointer, NothingThereIsNotAnError) {
  TempDir dir;
  Cut cut({2}, 1);
  const auto loaded = LoadNewest(dir.path(), cut);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_FALSE(loaded->has_value());
}

}  // namespace
}  // namespace keel::checkpoint
