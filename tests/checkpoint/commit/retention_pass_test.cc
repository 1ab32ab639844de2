// What a pass of retention does to a disk: it removes what the policy lets go, and of that only
// what provably is this run's, unread, unpinned, and older than a checkpoint that verifies.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <random>

#include "checkpoint/commit/retention.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/lease.h"
#include "checkpoint/run/pin.h"
#include "checkpoint/run/tracker.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// A run directory's checkpoints of a tiny model, saved with keep-all.
class SavedRun {
 public:
  explicit SavedRun(FileSystem& fs) : fs_(fs) {}

  void Save(int64_t step, std::optional<double> metric = {}, const std::string& run = "test-run") {
    cut_.Fill(MakeTrainingState(static_cast<uint64_t>(step), ModelSize::kTiny));
    CheckpointOptions options = SmallOptions();
    options.run_id = run;
    ThrowIfError(
        SaveOn(fs_, cut_, step, options, [&](SaveRequest& request) { request.metric = metric; }));
  }

  RetentionOutcome Retain(RetentionPolicy policy, bool dry_run = false) {
    RetentionRequest request = Request(policy);
    request.dry_run = dry_run;
    return ValueOrThrow(RetainCheckpoints(fs_, request, log_));
  }
  static RetentionRequest Request(RetentionPolicy policy) {
    RetentionRequest request;
    request.policy = policy;
    request.run_id = "test-run";
    return request;
  }

  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const CatalogEntry& entry : ValueOrThrow(ListCheckpoints(fs_))) {
      if (entry.manifest) steps.push_back(entry.step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  Logger& log() { return log_; }

 private:
  FileSystem& fs_;
  Cut cut_{{1}, 1, ModelSize::kTiny};
  Logger log_{Quiet()};
};

std::string Weights(int64_t step) {
  return StepDirectory(step) + "/actor/model/rank_00000.safetensors";
}

void Damage(SimFileSystem& disk, int64_t step) {
  std::string content = disk.Content(Weights(step));
  content[content.size() - 3] = static_cast<char>(content[content.size() - 3] ^ 1);
  disk.SetContent(Weights(step), content);
}

TEST(RetentionPass, KeepsTheUnionOfTheRules) {
  SimFileSystem disk;
  SavedRun run(disk);
  run.Save(100, 0.9);
  run.Save(110, 0.1);
  run.Save(120, 0.5);
  run.Save(130);
  run.Save(140, 0.8);
  run.Save(150, 0.7);
  ThrowIfError(PinCheckpoint(disk, "global_step_120", SystemClock()));
  const RetentionPolicy policy{.keep_latest = 1, .keep_best = 1, .keep_every = 100};
  const RetentionOutcome planned = run.Retain(policy, true);
  EXPECT_THAT(planned.removed, ElementsAre(130, 140));
  EXPECT_EQ(run.Steps().size(), 6u);
  const RetentionOutcome done = run.Retain(policy);
  EXPECT_THAT(done.removed, ElementsAre(130, 140));
  EXPECT_THAT(done.spared, IsEmpty());
  EXPECT_THAT(run.Steps(), ElementsAre(100, 110, 120, 150));
  EXPECT_THAT(done.known.proven,
              ElementsAre(ValueOrThrow(ReadManifest(disk, "global_step_150")).save_id));

  ThrowIfError(UnpinCheckpoint(disk, "global_step_120"));
  EXPECT_THAT(run.Retain(policy).removed, ElementsAre(120));
  EXPECT_THAT(run.Retain({}).removed, IsEmpty());
}

// Where the tracker could not be written at the last commit, it still names one that is to go.
TEST(RetentionPass, TheTrackerNeverNamesWhatIsGone) {
  // What fails of the tracker, whether the step goes, and what the tracker names then.
  struct Case {
    std::string_view operation;
    bool goes;
    std::optional<int64_t> named;
  };
  for (const Case& c : {Case{"none", true, 30}, Case{"write", true, std::nullopt},
                        Case{"read", true, 30}, Case{"remove", false, 10}}) {
    SimFileSystem disk;
    SavedRun run(disk);
    for (const int64_t step : {10, 20, 30}) run.Save(step);
    ThrowIfError(WriteTracker(disk, 10));
    disk.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
      const bool written = c.operation == "remove" && operation == "write";
      return path.starts_with(kTrackerName) && (operation == c.operation || written)
                 ? Status(StatusCode::kNoSpace, "no space left")
                 : Status::Ok();
    });
    const RetentionOutcome outcome = run.Retain({.keep_latest = 1});
    disk.SetFault(nullptr);
    EXPECT_EQ(ReadTracker(disk), c.named) << c.operation;
    if (c.goes) {
      EXPECT_THAT(outcome.removed, ElementsAre(10, 20)) << c.operation;
      continue;
    }
    EXPECT_THAT(outcome.removed, ElementsAre(20)) << c.operation;
    ASSERT_EQ(outcome.spared.size(), 1U);
    EXPECT_THAT(
        outcome.spared[0].reason,
        HasSubstr("latest_checkpointed_iteration.txt names it, and can neither be written"));
  }
}

TEST(RetentionPass, NothingGoesUnlessANewerOneVerifies) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20, 30}) run.Save(step);
  Damage(disk, 30);
  // It is not one of the two that are kept.
  EXPECT_THAT(run.Retain({.keep_latest = 2}).removed, IsEmpty());
  // 20 is kept, newer than 10, and whole.
  const RetentionOutcome one = run.Retain({.keep_latest = 1});
  EXPECT_THAT(one.removed, ElementsAre(10));
  EXPECT_EQ(one.known.damaged.size(), 1U);
  EXPECT_THAT(run.Steps(), ElementsAre(20, 30));
  // An older one that is kept does not make up for the damaged newest.
  run.Save(40);
  Damage(disk, 40);
  const RetentionOutcome periodic = run.Retain({.keep_latest = 1, .keep_every = 20});
  EXPECT_THAT(periodic.removed, IsEmpty());
  EXPECT_THAT(run.Steps(), ElementsAre(20, 30, 40));
}

// Whatever is known, or seen, not to be whole stands for none that is.
TEST(RetentionPass, DamagedOnesDoNotCountAsKept) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20, 30, 40}) run.Save(step);
  ThrowIfError(disk.Remove(Weights(30)));
  EXPECT_THAT(run.Retain({.keep_latest = 2}).removed, ElementsAre(10));
  EXPECT_THAT(run.Steps(), ElementsAre(20, 30, 40));

  // As a load finds it, which has passed over it.
  run.Save(50);
  Damage(disk, 40);
  RetentionRequest request = SavedRun::Request({.keep_latest = 2});
  request.known.damaged = {ValueOrThrow(ReadManifest(disk, "global_step_40")).save_id};
  EXPECT_THAT(ValueOrThrow(RetainCheckpoints(disk, request, run.log())).removed, IsEmpty());
  EXPECT_THAT(run.Steps(), ElementsAre(20, 30, 40, 50));
}

// From the load to the retention of the saves that follow.
// What says nothing of the checkpoint must not cost it its place for the rest of the run.
TEST(RetentionPass, WhatPassesIsNoDamage) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20}) run.Save(step);
  const RetentionPolicy policy{.keep_latest = 1};
  const auto fail_opens = [&](StatusCode code, int times) {
    disk.SetFault(
        [code, times](int64_t, std::string_view operation, std::string_view path) mutable {
          const bool fails = operation == "open" && path.ends_with(".safetensors") && times-- > 0;
          return fails ? Status(code, "not now") : Status::Ok();
        });
  };
  fail_opens(StatusCode::kExhausted, 1000);
  const RetentionOutcome exhausted = run.Retain(policy);
  EXPECT_THAT(exhausted.removed, IsEmpty());
  EXPECT_THAT(exhausted.known.damaged, IsEmpty());
  // The first of its opens is that which drops what the page cache has.
  fail_opens(StatusCode::kIo, 2);
  const RetentionOutcome once = run.Retain(policy);
  EXPECT_THAT(once.removed, ElementsAre(10));
  EXPECT_THAT(once.known.damaged, IsEmpty());
}

// What is closed to this process may be whole: it does not go, and the rules go on without it.
TEST(RetentionPass, WhatMayNotBeReadNeitherCountsNorGoes) {
  for (const std::string& closed :
       {Weights(30), StepDirectory(30) + "/index.bin", StepDirectory(30) + "/manifest.json"}) {
    SCOPED_TRACE(closed);
    SimFileSystem disk;
    SavedRun run(disk);
    for (const int64_t step : {10, 20, 30}) run.Save(step);
    disk.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
      const bool denied = path == closed && (operation == "open" || operation == "lock");
      return denied ? Status::FromErrno(EACCES, operation, path) : Status::Ok();
    });
    EXPECT_THAT(run.Retain({.keep_latest = 1}).removed, ElementsAre(10));
    disk.SetFault({});
    EXPECT_THAT(run.Steps(), ElementsAre(20, 30));
  }
}

TEST(RetentionPass, WhatALoadHasPassedOverIsNotKeptInsteadOfAGoodOne) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20, 30}) run.Save(step);
  Damage(disk, 30);
  LocalCoordinatorHub hub(1);
  Logger log(Quiet());
  CheckpointOptions options = SmallOptions();
  options.max_ckpts_to_keep = 2;
  Cut cut({1}, 1, ModelSize::kTiny);
  Checkpointer checkpointer(disk, hub.rank(0), SystemClock(), log, options);
  ThrowIfError(checkpointer.Open());
  LoadRequest load;
  load.roles = cut.Roles(0);
  const auto loaded = ValueOrThrow(checkpointer.Load(load));
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->step, 20);
  SaveRequest save;
  save.step = 25;
  save.roles = cut.Roles(0);
  ThrowIfError(checkpointer.Save(save).status());
  EXPECT_THAT(run.Steps(), ElementsAre(20, 25, 30));
  ThrowIfError(checkpointer.Close());
}

TEST(RetentionPass, WhatIsProvenIsNotReadAgain) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20}) run.Save(step);
  const std::string proven = ValueOrThrow(ReadManifest(disk, "global_step_20")).save_id;
  disk.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "open" && path.ends_with(".safetensors")
               ? Status(StatusCode::kIo, "tensors are read")
               : Status::Ok();
  });
  EXPECT_THAT(run.Retain({.keep_latest = 1}).removed, IsEmpty());
  RetentionRequest request = SavedRun::Request({.keep_latest = 1});
  request.known.proven = {proven};
  EXPECT_THAT(ValueOrThrow(RetainCheckpoints(disk, request, run.log())).removed, ElementsAre(10));
}

TEST(RetentionPass, TheNewestIsNotReadWhereAnOlderOneIsProven) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20, 30}) run.Save(step);
  RetentionRequest request = SavedRun::Request({.keep_latest = 2});
  request.known.proven = {ValueOrThrow(ReadManifest(disk, "global_step_20")).save_id};
  disk.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "open" && path.ends_with(".safetensors")
               ? Status(StatusCode::kIo, "tensors are read")
               : Status::Ok();
  });
  EXPECT_THAT(ValueOrThrow(RetainCheckpoints(disk, request, run.log())).removed, ElementsAre(10));
  // It does not stand for one that is newer than itself, or itself to go.
  request.policy.keep_latest = 1;
  EXPECT_THAT(ValueOrThrow(RetainCheckpoints(disk, request, run.log())).removed, IsEmpty());
}

TEST(RetentionPass, AProvenOneThatIsTooOldDoesNotKeepTheNewestFromBeingRead) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {20, 30, 50}) run.Save(step);
  RetentionRequest request = SavedRun::Request({.keep_latest = 1, .keep_every = 20});
  request.known.proven = {ValueOrThrow(ReadManifest(disk, "global_step_20")).save_id};
  EXPECT_THAT(ValueOrThrow(RetainCheckpoints(disk, request, run.log())).removed, ElementsAre(30));
}

TEST(RetentionPass, OtherRunsNeitherCountNorGo) {
  SimFileSystem disk;
  SavedRun run(disk);
  run.Save(10);
  run.Save(20, {}, "another");
  run.Save(30);
  run.Save(40, {}, "another");
  EXPECT_THAT(run.Retain({.keep_latest = 1}).removed, ElementsAre(10));
  EXPECT_THAT(run.Steps(), ElementsAre(20, 30, 40));
}

// Neither damaged nor counted: nothing is known of it, and nothing goes for its sake.
TEST(RetentionPass, WhatANewerKeelHasWrittenStays) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20, 30, 40}) run.Save(step);
  for (const int64_t step : {10, 40}) {
    const std::string path = StepDirectory(step) + "/manifest.json";
    std::string text = disk.Content(path);
    text.replace(text.find("\"1.0\""), 5, "\"2.0\"");
    disk.SetContent(path, Sign(text));
  }
  const RetentionOutcome outcome = run.Retain({.keep_latest = 1});
  EXPECT_THAT(outcome.removed, ElementsAre(20));
  EXPECT_THAT(outcome.known.damaged, IsEmpty());
  for (const int64_t step : {10, 30, 40}) EXPECT_TRUE(disk.Stat(Weights(step)).ok()) << step;
}

TEST(RetentionPass, ForeignThingsStayWhereTheyAre) {
  const TempDir dir;
  const auto fs = dir.Open();
  SavedRun run(*fs);
  for (const int64_t step : {10, 20, 30, 40, 50}) run.Save(step);
  WriteAll(dir / "global_step_10/notes.txt", "mine");
  WriteAll(dir / "target", "mine");
  std::filesystem::create_symlink(dir / "target", dir / "global_step_20/actor/link");
  // A file of ours that has become a link to another disk.
  std::filesystem::rename(dir / Weights(30), dir / "moved");
  std::filesystem::create_symlink(dir / "moved", dir / Weights(30));
  std::filesystem::create_directory(dir / "global_step_40/empty");
  std::filesystem::create_directory(dir / "global_step_5");
  std::filesystem::create_directory_symlink(dir / "global_step_40", dir / "global_step_15");
  const RetentionOutcome outcome = run.Retain({.keep_latest = 1});
  EXPECT_THAT(outcome.removed, ElementsAre(40));
  ASSERT_EQ(outcome.spared.size(), 3u);
  EXPECT_THAT(outcome.spared[0].reason, HasSubstr("'notes.txt'"));
  EXPECT_THAT(outcome.spared[1].reason, HasSubstr("'actor/link'"));
  EXPECT_THAT(outcome.spared[2].reason, HasSubstr("rank_00000.safetensors"));
  for (const char* name : {"target", "moved", "global_step_5", "global_step_10/notes.txt"})
    EXPECT_TRUE(std::filesystem::exists(dir / name)) << name;
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "global_step_15"));
  std::filesystem::remove(dir / "global_step_10/notes.txt");
  EXPECT_THAT(run.Retain({.keep_latest = 1}).removed, ElementsAre(10));
}

TEST(RetentionPass, WhatIsBeingReadStaysUntilItsReaderEnds) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20, 30}) run.Save(step);
  std::optional<StepReader> reader = ValueOrThrow(StepReader::Open(disk, "global_step_10"));
  const RetentionOutcome outcome = run.Retain({.keep_latest = 1});
  EXPECT_THAT(outcome.removed, ElementsAre(20));
  ASSERT_EQ(outcome.spared.size(), 1u);
  EXPECT_THAT(outcome.spared[0].reason, HasSubstr("being read"));
  EXPECT_TRUE(ValueOrThrow(reader->VerifyFiles({}, 1, nullptr)).empty());
  reader.reset();
  EXPECT_THAT(run.Retain({.keep_latest = 1}).removed, ElementsAre(10));
}

TEST(RetentionPass, AReaderThatDiesHoldsNothing) {
  const TempDir dir;
  const auto fs = dir.Open();
  SavedRun run(*fs);
  for (const int64_t step : {10, 20}) run.Save(step);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto own = dir.Open();
    const auto reader = StepReader::Open(*own, "global_step_10");
    const char answer = reader.ok() ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_THAT(run.Retain({.keep_latest = 1}).removed, IsEmpty());
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_THAT(run.Retain({.keep_latest = 1}).removed, ElementsAre(10));
  close(ready[0]);
  close(ready[1]);
}

TEST(RetentionPass, AReaderThatComesTooLateIsTold) {
  SimFileSystem disk;
  SavedRun run(disk);
  run.Save(10);
  const auto lease = ValueOrThrow(LeaseForRemoval(disk, "global_step_10"));
  const Status late = StepReader::Open(disk, "global_step_10").status();
  EXPECT_EQ(late.code(), StatusCode::kNotFound);
  EXPECT_THAT(late.message(), HasSubstr("is being removed"));
  EXPECT_EQ(PinCheckpoint(disk, "global_step_10", SystemClock()).code(), StatusCode::kNotFound);
}

TEST(RetentionPass, AFailedRemovalIsFinishedByTheNextPass) {
  SimFileSystem disk;
  SavedRun run(disk);
  for (const int64_t step : {10, 20}) run.Save(step);
  bool failed = false;
  disk.SetFault([&failed](int64_t, std::string_view operation, std::string_view path) {
    if (operation != "remove" || !path.ends_with("index.bin") || failed) return Status::Ok();
    failed = true;
    return Status(StatusCode::kIo, "injected");
  });
  EXPECT_THAT(run.Retain({.keep_latest = 1}).removed, ElementsAre(10));
  EXPECT_TRUE(failed);
  const auto trash = [&] {
    int64_t count = 0;
    for (const FileInfo& info : ValueOrThrow(disk.List(".")))
      count += info.name.starts_with(".trash-");
    return count;
  };
  EXPECT_EQ(trash(), 1);
  run.Retain({.keep_latest = 1});
  EXPECT_EQ(trash(), 0);
}

TEST(Pins, AreFilesThatGoWithTheCheckpoint) {
  const TempDir dir;
  const auto fs = dir.Open();
  SavedRun run(*fs);
  run.Save(10);
  EXPECT_FALSE(IsPinned(*fs, "global_step_10"));
  ThrowIfError(PinCheckpoint(*fs, "global_step_10", SystemClock()));
  ThrowIfError(PinCheckpoint(*fs, "global_step_10", SystemClock()));
  EXPECT_TRUE(IsPinned(*fs, "global_step_10"));
  EXPECT_TRUE(VerifyCheckpoint(*fs, "global_step_10", 1).problems.empty());
  ThrowIfError(UnpinCheckpoint(*fs, "global_step_10"));
  ThrowIfError(UnpinCheckpoint(*fs, "global_step_10"));
  EXPECT_FALSE(IsPinned(*fs, "global_step_10"));
  // By hand, and whatever it is.
  std::filesystem::create_directory(dir / "global_step_10/pinned");
  EXPECT_TRUE(IsPinned(*fs, "global_step_10"));
  EXPECT_EQ(PinCheckpoint(*fs, "global_step_20", SystemClock()).code(), StatusCode::kNotFound);
  EXPECT_EQ(UnpinCheckpoint(*fs, "global_step_20").code(), StatusCode::kNotFound);
}

TEST(Pins, OfADamagedCheckpointAreTakenAway) {
  const TempDir dir;
  const auto fs = dir.Open();
  SavedRun run(*fs);
  run.Save(10);
  ThrowIfError(PinCheckpoint(*fs, "global_step_10", SystemClock()));
  WriteAll(dir / "global_step_10/manifest.json", "{");
  EXPECT_FALSE(PinCheckpoint(*fs, "global_step_10", SystemClock()).ok());
  ThrowIfError(UnpinCheckpoint(*fs, "global_step_10"));
  EXPECT_FALSE(IsPinned(*fs, "global_step_10"));
}

// The policy and everything that may keep a checkpoint, again and plainly: the steps that may be
// there after a pass.
struct Known {
  int64_t step = 0;
  int64_t order = 0;
  std::optional<double> metric;
  bool mine = true, pinned = false, whole = true, read = false;
  bool found = false;  // not to be whole
};

std::vector<int64_t> ExpectedAfter(std::vector<Known> all, const RetentionPolicy& policy) {
  const auto rank = [&](const Known& one, const auto& better) {
    int64_t before = 0;
    for (const Known& other : all) before += other.mine && !other.found && better(other, one);
    return before;
  };
  const auto kept = [&](const Known& one) {
    if (!one.mine || one.pinned) return true;
    if (rank(one, [](const Known& a, const Known& b) { return a.order > b.order; }) <
        *policy.keep_latest)
      return true;
    if (policy.keep_every > 0 && one.step % policy.keep_every == 0) return true;
    return one.metric && rank(one, [&](const Known& a, const Known& b) {
                           if (!a.metric) return false;
                           if (*a.metric == *b.metric) return a.order > b.order;
                           return (*a.metric > *b.metric) == policy.higher_is_better;
                         }) < policy.keep_best;
  };
  // The newest that is kept has to be whole, or it does not count, and is asked again.
  int64_t anchor = -1;
  for (bool again = true; again;) {
    again = false;
    int64_t oldest_to_go = std::numeric_limits<int64_t>::max();
    Known* newest = nullptr;
    for (Known& one : all) {
      if (!one.mine || one.found) continue;
      if (!kept(one)) {
        oldest_to_go = std::min(oldest_to_go, one.order);
      } else if (newest == nullptr || one.order > newest->order) {
        newest = &one;
      }
    }
    if (newest == nullptr || oldest_to_go > newest->order) break;
    anchor = newest->whole ? newest->order : -1;
    again = newest->found = !newest->whole;
  }
  std::vector<int64_t> steps;
  for (const Known& one : all) {
    if (one.found || kept(one) || one.read || one.order > anchor) steps.push_back(one.step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

TEST(RetentionPass, EqualsAPlainModelAndSurvivesACutAtEveryCall) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
    SimFileSystem disk;
    SavedRun run(disk);
    std::vector<Known> all;
    const int64_t count = 2 + below(5);
    std::vector<int64_t> numbers = {10, 20, 30, 40, 50, 60, 70};
    if (below(2) == 0) std::shuffle(numbers.begin(), numbers.end(), random);  // it went back
    for (int64_t i = 0; i < count; ++i) {
      Known one;
      one.step = numbers[static_cast<size_t>(i)];
      one.order = i;
      one.mine = below(6) != 0;
      if (below(2) == 0) one.metric = static_cast<double>(below(3));
      run.Save(one.step, one.metric, one.mine ? "test-run" : "another");
      if (below(6) == 0) {
        one.pinned = true;
        ThrowIfError(PinCheckpoint(disk, StepDirectory(one.step), SystemClock()));
      }
      if (below(4) == 0) {
        one.whole = false;
        Damage(disk, one.step);
      }
      all.push_back(one);
    }
    RetentionPolicy policy;
    policy.keep_latest = static_cast<int>(1 + below(3));
    policy.keep_best = static_cast<int>(below(3));
    policy.higher_is_better = below(2) == 0;
    policy.keep_every = below(3) == 0 ? 30 : 0;

    // Cut the power at every call of the pass: the kept ones are there and as whole as they were.
    const std::vector<int64_t> expected = ExpectedAfter(all, policy);
    const auto clean = disk.Clone();
    clean->ResetCalls();
    SavedRun(*clean).Retain(policy);
    const int64_t calls = clean->calls();
    for (int64_t n = 1; n <= calls; n += 1 + below(3)) {
      const auto cut = disk.Clone();
      cut->SetFault([n](int64_t call, std::string_view, std::string_view) {
        return call < n ? Status::Ok() : Status(StatusCode::kIo, "the machine is off");
      });
      (void)RetainCheckpoints(*cut, SavedRun::Request(policy), run.log());
      const auto after = cut->AfterPowerCut(SimFileSystem::Survives::kSubset, random());
      for (const Known& one : all) {
        if (std::find(expected.begin(), expected.end(), one.step) == expected.end()) continue;
        EXPECT_EQ(VerifyCheckpoint(*after, StepDirectory(one.step), 1).problems.empty(), one.whole)
            << "seed " << seed << ", call " << n << ", step " << one.step;
      }
      // And the next pass ends where an undisturbed one does.
      SavedRun again(*after);
      again.Retain(policy);
      EXPECT_EQ(again.Steps(), expected) << "seed " << seed << ", call " << n;
      if (HasFailure()) return;
    }

    std::vector<StepReader> readers;
    for (Known& one : all) {
      one.read = below(4) == 0;
      if (one.read)
        readers.push_back(ValueOrThrow(StepReader::Open(disk, StepDirectory(one.step))));
    }
    run.Retain(policy);
    EXPECT_EQ(run.Steps(), ExpectedAfter(all, policy)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace keel::checkpoint
