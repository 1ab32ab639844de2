#include "trainer/run/run_folder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::trainer {
namespace {

using checkpoint::Coordinator;
using checkpoint::LocalCoordinatorHub;
using checkpoint::testing::Quiet;
using checkpoint::testing::RunRanks;
using checkpoint::testing::SimFileSystem;
using checkpoint::testing::TempDir;
using ::testing::HasSubstr;

// A run of one tensor, which saves in the foreground unless a test says otherwise.
LoadedConfig Config() {
  LoadedConfig loaded;
  loaded.config.trainer.save_freq = 1;
  loaded.config.trainer.logger = {};
  CheckpointSection& section = loaded.config.actor_rollout_ref.actor.checkpoint;
  section.save_contents = {checkpoint::Content::kModel};
  section.load_contents = {checkpoint::Content::kModel};
  section.async_save = false;
  loaded.resolved = "trainer: {}\n";
  return loaded;
}

class Weights {
 public:
  explicit Weights(float value) { values_.fill(value); }
  float value() const { return values_.front(); }
  std::vector<checkpoint::RoleState> Roles() {
    ShardTable table;
    ThrowIfError(table.Add({"w", DType::kF32, {4}}, Box::Whole({4}),
                           {reinterpret_cast<std::byte*>(values_.data()), {1}}));
    return {{"actor", table, {}}};
  }
  checkpoint::SaveRequest At(int64_t step) {
    checkpoint::SaveRequest request;
    request.step = step;
    request.roles = Roles();
    request.contents = checkpoint::Contents::Of({{checkpoint::Content::kModel}});
    return request;
  }

 private:
  std::array<float, 4> values_{};
};

class RunFolderTest : public ::testing::Test {
 protected:
  // A start of the job's process, on the same disk.
  std::unique_ptr<RunFolder> Start(int restart_count = 0) {
    const RunFolderOptions options{std::chrono::seconds(10), "cpu", restart_count};
    auto folder = std::make_unique<RunFolder>(disk_.Mount(), config_, hub_.rank(0), log_, options);
    folder->Open();
    return folder;
  }
  static void Save(RunFolder& folder, int64_t step, bool busy_somewhere = false) {
    Weights weights(static_cast<float>(step));
    if (folder.saves().MakeRoom(step, busy_somewhere)) folder.saves().Save(weights.At(step));
    folder.FinishSaves(step);
  }

  SimFileSystem disk_;
  LocalCoordinatorHub hub_{1};
  Logger log_{Quiet()};
  LoadedConfig config_ = Config();
};

TEST_F(RunFolderTest, ARunGoesOnFromTheNewestStep) {
  {
    const auto first = Start();
    EXPECT_TRUE(first->resumes());
    Weights weights(0);
    checkpoint::LoadRequest request;
    request.roles = weights.Roles();
    request.contents = checkpoint::Contents::Of({{checkpoint::Content::kModel}});
    EXPECT_FALSE(first->Load(request).has_value());
    Save(*first, 1);
    Save(*first, 2);
    first->Close(2);
    EXPECT_TRUE(first->LastSave(2).ok());
  }
  const auto second = Start();
  Weights weights(0);
  checkpoint::LoadRequest request;
  request.roles = weights.Roles();
  request.contents = checkpoint::Contents::Of({{checkpoint::Content::kModel}});
  const auto record = second->Load(request);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->step, 2);
  EXPECT_EQ(weights.value(), 2);
  second->Close(2);
}

TEST_F(RunFolderTest, ARestartGoesOnFromWhatItsJobHasSavedWhateverTheJobBeganWith) {
  config_.config.trainer.resume_mode = ResumeKind::kDisable;
  {
    const auto first = Start();
    EXPECT_EQ(first->resume_mode(), ResumeKind::kDisable);
    first->Close(0);
  }
  {
    const auto nothing_saved_yet = Start(1);
    EXPECT_EQ(nothing_saved_yet->resume_mode(), ResumeKind::kDisable);
    Save(*nothing_saved_yet, 1);
    nothing_saved_yet->Close(1);
  }
  {
    const auto restart = Start(2);
    EXPECT_EQ(restart->resume_mode(), ResumeKind::kAuto);
    restart->Close(1);
  }
  const auto another_job = Start();
  EXPECT_FALSE(another_job->resumes());
  EXPECT_FALSE(another_job->next_start_goes_on());
  another_job->Close(0);
}

// What a job begins with alone, as the weights of another, is not what it goes on with.
TEST_F(RunFolderTest, ARestartLoadsAllThatItsJobHasSaved) {
  CheckpointSection& section = config_.config.actor_rollout_ref.actor.checkpoint;
  section.save_contents = {checkpoint::Content::kModel, checkpoint::Content::kExtra};
  {
    const auto first = Start();
    EXPECT_FALSE(first->load_contents().extra);
    EXPECT_FALSE(first->next_start_goes_on());
    Save(*first, 1);
    first->Close(1);
  }
  {
    const auto restart = Start(1);
    EXPECT_EQ(restart->resume_mode(), ResumeKind::kAuto);
    EXPECT_TRUE(restart->load_contents().extra);
    restart->Close(1);
  }
  {
    const auto another_job = Start();
    EXPECT_FALSE(another_job->load_contents().extra);
    another_job->Close(1);
  }
  section.load_contents = section.save_contents;
  const auto whole = Start();
  EXPECT_TRUE(whole->next_start_goes_on());
  whole->Close(1);
}

TEST_F(RunFolderTest, AFailedSaveLeavesTheRunAndTheLastGoodStep) {
  config_.config.trainer.max_failed_saves = 2;
  auto files = disk_.Mount();
  SimFileSystem* const mount = files.get();
  RunFolder folder(std::move(files), config_, hub_.rank(0), log_, {});
  folder.Open();
  Save(folder, 1);
  mount->SetFault([](int64_t, std::string_view operation, std::string_view) {
    return operation == "write" ? Status(StatusCode::kNoSpace, "the disk is full") : Status::Ok();
  });
  Save(folder, 2);
  EXPECT_FALSE(folder.TooManySavesFailed());
  Save(folder, 3);
  EXPECT_TRUE(folder.TooManySavesFailed());
  EXPECT_EQ(folder.saves().saved_step(), 1);
  EXPECT_EQ(folder.saves().counts().failed_in_a_row, 2);
  const Status last = folder.LastSave(3);
  EXPECT_THAT(last.message(), HasSubstr("trainer.max_failed_saves is 2"));
  EXPECT_THAT(last.message(), HasSubstr("the state of the last step, 3, is not saved"));
  EXPECT_THAT(last.message(), HasSubstr("the disk is full"));

  mount->SetFault({});
  Save(folder, 4);
  EXPECT_FALSE(folder.TooManySavesFailed());
  EXPECT_EQ(folder.saves().counts().failed, 2);
  EXPECT_TRUE(folder.LastSave(4).ok());
  folder.Close(4);
}

TEST_F(RunFolderTest, OnBusySaysWhatBecomesOfTheSaveInFlight) {
  CheckpointSection& section = config_.config.actor_rollout_ref.actor.checkpoint;
  section.async_save = true;
  section.on_busy = OnBusy::kSkip;
  {
    const auto folder = Start();
    EXPECT_TRUE(folder->saves().MakeRoom(1, false));
    EXPECT_FALSE(folder->saves().MakeRoom(2, true));
    EXPECT_EQ(folder->saves().counts().skipped, 1);
    folder->Close(2);
  }
  section.on_busy = OnBusy::kSupersede;
  const auto folder = Start();
  std::vector<int64_t> waited;
  for (int64_t step = 1; step <= 4; ++step) {
    EXPECT_TRUE(folder->saves().MakeRoom(step, true));
    waited.push_back(folder->saves().counts().waited);
  }
  EXPECT_EQ(waited, (std::vector<int64_t>{0, 1, 1, 2})) << "two in a row are not given up";
  folder->Close(4);
}

TEST_F(RunFolderTest, TheSavesOfARunAreInItsMetrics) {
  const TempDir directory;
  config_.config.trainer.default_local_dir = directory.path();
  config_.config.trainer.logger = {LogSink::kJsonl};
  RunFolder folder(directory.Open(), config_, hub_.rank(0), log_, {});
  folder.Open();
  EXPECT_EQ(folder.metrics(), nullptr);
  folder.Begin(0, std::nullopt);
  EXPECT_EQ(checkpoint::testing::ReadAll(directory / "config.yaml"), config_.resolved);
  Weights weights(1);
  ASSERT_TRUE(folder.saves().MakeRoom(1, false));
  folder.saves().Save(weights.At(1));
  folder.AfterStep(2, 0.5);
  folder.Close(2);
  const std::string lines = checkpoint::testing::ReadAll(directory / "metrics.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  EXPECT_THAT(lines, HasSubstr(R"("step":2,"data":{"checkpoint/step":1,"checkpoint/ok":true)"));
}

// What is said at the end would name a folder that has none of it.
TEST_F(RunFolderTest, AFolderThatIsMovedMeanwhileIsSaidOnce) {
  const TempDir directory;
  LogOptions options;
  options.file = directory / "log";
  Logger log(options);
  config_.config.trainer.default_local_dir = directory / "run";
  const auto moved_away = [&] {
    const std::string text = checkpoint::testing::ReadAll(directory / "log");
    const std::string_view what = "not the folder any more that this run began in";
    const size_t first = text.find(what);
    return first == std::string::npos ? 0 : text.find(what, first + 1) == std::string::npos ? 1 : 2;
  };
  RunFolder folder(ValueOrThrow(OpenPosixFileSystem(directory / "run", true)), config_,
                   hub_.rank(0), log, {});
  folder.Open();
  folder.Begin(0, std::nullopt);
  Save(folder, 1);
  EXPECT_EQ(moved_away(), 0);
  std::filesystem::rename(directory / "run", directory / "elsewhere");
  std::filesystem::create_directory(directory / "run");
  Save(folder, 2);
  EXPECT_EQ(moved_away(), 1);
  folder.Close(2);
  folder.TellSummary(2, false);
  EXPECT_EQ(moved_away(), 1);
  EXPECT_TRUE(std::filesystem::exists(directory / "elsewhere/global_step_2"));
}

// Two nodes that were given the same path, of which one has not mounted the disk.
TEST(RunFoldersTest, RanksThatSaveToDifferentFoldersAreRefusedOnAll) {
  SimFileSystem disks[2];
  const LoadedConfig config = Config();
  RunRanks(2, [&](int rank, Coordinator& coordinator) {
    Logger log(Quiet());
    RunFolder folder(disks[rank].Mount(), config, coordinator, log,
                     {std::chrono::milliseconds(400), "cpu", 0});
    try {
      folder.Open();
      ADD_FAILURE() << "rank " << rank << " opened its folder";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr("is not the folder that rank 0 saves to"));
      folder.Abandon(error);
    }
  });
}

// Whoever was asked first loses patience first.
TEST(RunFoldersTest, TheGraceIsThatOfTheRankThatWasAskedFirst) {
  SimFileSystem disk;
  LoadedConfig config = Config();
  config.config.trainer.preemption_grace_seconds = 30;
  RunRanks(2, [&](int rank, Coordinator& coordinator) {
    Logger log(Quiet());
    RunFolder folder(disk.Mount(), config, coordinator, log, {});
    folder.Open();
    EXPECT_TRUE(folder.FitsIntoGrace(1, rank == 0 ? 0 : 29));
    EXPECT_FALSE(folder.FitsIntoGrace(2, rank == 0 ? 0 : 31));
    folder.Close(2);
  });
}

}  // namespace
}  // namespace keel::trainer
