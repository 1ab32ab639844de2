#include "tests/checkpoint/support/crash_support.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"

namespace keel::checkpoint::testing {

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

std::vector<Scenario> Scenarios() {
  return {{"first save ever", 1, {}, 10},
          {"a newer step", 1, {10}, 20},
          {"two ranks", 2, {10}, 20},
          {"keep one", 1, {10}, 20, 1},
          {"keep two of three", 1, {10, 20}, 30, 2},
          {"the same step again", 1, {10, 20}, 20},
          {"the same step again, keep one", 1, {20}, 20, 1},
          {"an earlier step", 1, {10, 30}, 20, 2},
          {"in the background", 1, {10}, 20, 1, true},
          {"in the background, two ranks, waves", 2, {10, 20}, 30, 2, true, true},
          {"writes under way at once", 1, {10}, 20, 1, false, false, IoChoice::kIoUring},
          {"in the background, writes under way at once",
           2,
           {10},
           20,
           1,
           true,
           false,
           IoChoice::kIoUring}};
}

std::string NameOf(const ::testing::TestParamInfo<Scenario>& one) {
  std::string name = one.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

CrashJob::CrashJob(const Scenario& scenario)
    : scenario_(scenario), cut_({scenario.world}, 1, ModelSize::kTiny) {
  for (const int64_t step : scenario.steps_before) {
    cut_.Fill(MakeTrainingState(static_cast<uint64_t>(step), ModelSize::kTiny));
    ThrowIfError(SaveOn(before_, cut_, step, SmallOptions()));
  }
}

CheckpointOptions CrashJob::Options() const {
  CheckpointOptions options = SmallOptions();
  options.io = scenario_.io;
  options.max_ckpts_to_keep = scenario_.keep;
  if (scenario_.waves) options.host_memory_cap = 2 * options.chunk_bytes;
  return options;
}

void CrashJob::RunRank(FileSystem& disk, Coordinator& coordinator, const Clock& clock,
                       const std::function<void(int rank, Checkpointer& checkpointer)>& body,
                       Status* opened) {
  Logger log(Quiet());
  Checkpointer checkpointer(disk, coordinator, clock, log, Options());
  *opened = checkpointer.Open();
  if (!opened->ok()) return;
  body(coordinator.rank(), checkpointer);
  (void)checkpointer.Close();
}

Status CrashJob::SaveOne(Checkpointer& checkpointer, int rank, int64_t step, uint64_t seed) {
  const auto r = static_cast<size_t>(rank);
  const TrainingState state = MakeTrainingState(seed, ModelSize::kTiny);
  cut_.model[r].Fill(state.model);
  cut_.optimizer[r].Fill(state.optimizer);
  SaveRequest request;
  request.step = step;
  request.roles = cut_.Roles(rank);
  if (rank == 0) request.documents = {{"trainer_state.json", "{}\n", true}};
  if (!scenario_.background) return checkpointer.Save(request).status();
  KEEL_RETURN_IF_ERROR(checkpointer.StartSave(request));
  for (RankPart* part : {&cut_.model[r], &cut_.optimizer[r]}) {
    for (const auto& block : part->memory) {
      checkpointer.WaitFree(block->data(), block->size());
      std::fill(block->begin(), block->end(), std::byte{0x99});
    }
  }
  ThrowIfError(checkpointer.Wait());
  const std::vector<SaveResult> ended = checkpointer.Finished();
  return ended.empty() ? Status(StatusCode::kInternal, "the save did not end")
                       : ended.back().status;
}

Status CrashJob::Save(FileSystem& disk, const Clock& clock) {
  std::vector<Status> outcomes(static_cast<size_t>(scenario_.world));
  RunRanks(scenario_.world, [&](int r, Coordinator& coordinator) {
    Status& outcome = outcomes[static_cast<size_t>(r)];
    RunRank(
        disk, coordinator, clock,
        [&](int rank, Checkpointer& checkpointer) {
          outcome = SaveOne(checkpointer, rank, scenario_.step, kNewSeed);
        },
        &outcome);
  });
  for (const Status& one : outcomes) EXPECT_EQ(one.code(), outcomes[0].code());
  return outcomes[0];
}

CrashJob::TwoSaves CrashJob::SaveTwice(FileSystem& disk, const std::function<void()>& between) {
  TwoSaves saves;
  RunRanks(scenario_.world, [&](int r, Coordinator& coordinator) {
    Status opened;
    RunRank(
        disk, coordinator, SystemClock(),
        [&](int rank, Checkpointer& checkpointer) {
          const Status first = SaveOne(checkpointer, rank, scenario_.step, kNewSeed);
          if (rank == 0) {
            saves.first = first;
            between();
          }
          const Status second = SaveOne(checkpointer, rank, kSecondStep, 40);
          if (rank == 0) saves.second = second;
        },
        &opened);
    if (r == 0 && !opened.ok()) saves = {opened, opened};
  });
  return saves;
}

Result<std::optional<LoadRecord>> CrashJob::Load(FileSystem& disk) {
  cut_.Clear(kCleared);
  return LoadFrom(disk, cut_, [](LoadRequest& request) { request.config_digest = ""; });
}

std::optional<CrashJob::InMemory> CrashJob::StateInMemory() const {
  if (cut_.FirstDifference(MakeTrainingState(kNewSeed, ModelSize::kTiny)) == "")
    return InMemory{scenario_.step, true};
  for (const int64_t step : scenario_.steps_before) {
    const TrainingState state = MakeTrainingState(static_cast<uint64_t>(step), ModelSize::kTiny);
    if (cut_.FirstDifference(state) == "") return InMemory{step, false};
  }
  return std::nullopt;
}

bool CrashJob::MemoryIsCleared() const {
  for (const auto* parts : {&cut_.model, &cut_.optimizer}) {
    for (const RankPart& part : *parts) {
      for (const auto& block : part.memory) {
        if (std::any_of(block->begin(), block->end(),
                        [](std::byte b) { return b != std::byte{kCleared}; }))
          return false;
      }
    }
  }
  return true;
}

void CrashJob::ExpectOldOrNew(SimFileSystem& disk, bool acknowledged, const std::string& where) {
  SCOPED_TRACE(where);
  const auto loaded = Load(disk);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  // 1. Nothing is left over.
  for (const FileInfo& info : ValueOrThrow(disk.List("."))) {
    EXPECT_FALSE(ParseScratchDirectory(info.name) || info.name.ends_with(".tmp"))
        << info.name << " is left";
    EXPECT_EQ(info.name.find("set-aside"), std::string::npos) << info.name;
  }
  // 2. All that is visible is whole, and there is as much as was promised.
  std::set<int64_t> whole;
  for (const CatalogEntry& entry : ValueOrThrow(ListCheckpoints(disk))) {
    const VerifyReport report = VerifyCheckpoint(disk, entry.directory, 1);
    EXPECT_TRUE(report.problems.empty()) << report.problems[0];
    whole.insert(entry.step);
  }
  std::set<int64_t> committed(scenario_.steps_before.begin(), scenario_.steps_before.end());
  if (acknowledged) committed.insert(scenario_.step);
  const auto promised = static_cast<int64_t>(committed.size());
  EXPECT_GE(std::ssize(whole),
            scenario_.keep ? std::min<int64_t>(*scenario_.keep, promised) : promised);
  // 3. What is loaded is one of the two, to the last bit.
  if (!loaded->has_value()) {
    EXPECT_TRUE(committed.empty()) << "nothing was loaded";
    return;
  }
  EXPECT_TRUE((*loaded)->skipped.empty()) << (*loaded)->skipped[0].reason;
  const std::optional<InMemory> state = StateInMemory();
  ASSERT_TRUE(state.has_value()) << "a mixed or unknown state was loaded";
  EXPECT_EQ((*loaded)->step, state->step);
  if (acknowledged) {
    EXPECT_TRUE(state->is_new) << "an acknowledged save is gone";
  }
  if (!state->is_new) {
    EXPECT_EQ(state->step, scenario_.steps_before.back()) << "an older one was loaded";
  }
}

void CrashJob::ExpectGoesOn(SimFileSystem& disk, const std::string& where) {
  const TrainingState state = MakeTrainingState(99, ModelSize::kTiny);
  cut_.Fill(state);
  EXPECT_EQ(SaveOn(disk, cut_, 50, Options()).ToString(), "ok") << where;
  const auto loaded = Load(disk);
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << where << loaded.status().ToString();
  EXPECT_EQ((*loaded)->step, 50) << where;
  EXPECT_EQ(cut_.FirstDifference(state), "") << where;
}

}  // namespace keel::checkpoint::testing
