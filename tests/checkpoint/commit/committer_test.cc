// What becomes of a checkpoint whose step is saved again.
#include "checkpoint/commit/committer.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <new>
#include <set>

#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/pin.h"
#include "checkpoint/run/tracker.h"
#include "common/fail_point.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

class Replace : public ::testing::Test {
 protected:
  Replace() {
    cut_.Fill(old_);
    ThrowIfError(SaveOn(disk_, cut_, 10, SmallOptions()));
  }
  Status SaveAgain(const std::string& run = "test-run") {
    cut_.Fill(new_);
    CheckpointOptions options = SmallOptions();
    options.run_id = run;
    return SaveOn(disk_, cut_, 10, options);
  }
  // What the directory of this name holds: 'o'ld, 'n'ew, or '?'.
  char Loaded() {
    cut_.Clear(0);
    // By name: whichever run has saved it.
    const auto loaded =
        LoadFrom(disk_, cut_, [](LoadRequest& r) { r.resume_path = "global_step_10"; });
    if (!loaded.ok() || !loaded->has_value()) return '?';
    return cut_.FirstDifference(old_) == "" ? 'o' : cut_.FirstDifference(new_) == "" ? 'n' : '?';
  }
  std::vector<std::string> Trees() {
    std::vector<std::string> names;
    for (const FileInfo& info : ValueOrThrow(disk_.List("."))) {
      if (info.kind == FileKind::kDirectory) names.push_back(info.name);
    }
    return names;
  }
  // Everything but the step itself, which is the new one, was set aside and is the old one.
  void ExpectSetAside() {
    EXPECT_EQ(Loaded(), 'n');
    const std::vector<std::string> trees = Trees();
    ASSERT_THAT(trees, ElementsAre("global_step_10", StartsWith("global_step_10.set-aside-")));
    disk_.SetContent("x", "");  // a file in the way is no obstacle
    ThrowIfError(RemoveTree(disk_, "global_step_10"));
    ThrowIfError(disk_.Rename(trees[1], "global_step_10", FileSystem::RenameMode::kNoReplace));
    EXPECT_EQ(Loaded(), 'o');
  }

  const TrainingState old_ = MakeTrainingState(1, ModelSize::kTiny);
  const TrainingState new_ = MakeTrainingState(2, ModelSize::kTiny);
  Cut cut_{{1}, 1, ModelSize::kTiny};
  SimFileSystem disk_;
};

TEST_F(Replace, TheOldOneGoesOnceTheNewOneWasReadBack) {
  ThrowIfError(SaveAgain());
  EXPECT_THAT(Trees(), ElementsAre("global_step_10"));
  EXPECT_EQ(Loaded(), 'n');
}

TEST_F(Replace, ADamagedNewOneDoesNotTakeThePlaceOfAWholeOne) {
  disk_.SetTamper([](std::string_view path, int64_t offset, std::span<char> written) {
    if (path.ends_with("model/rank_00000.safetensors") && offset > 0) written[0] ^= 1;
  });
  const Status failed = SaveAgain();
  EXPECT_EQ(failed.code(), StatusCode::kDataLoss);
  EXPECT_THAT(failed.message(), HasSubstr("rank_00000.safetensors"));
  disk_.SetTamper({});
  EXPECT_THAT(Trees(), ElementsAre("global_step_10"));
  EXPECT_EQ(Loaded(), 'o');
}

TEST_F(Replace, APinnedOneIsSetAside) {
  ThrowIfError(PinCheckpoint(disk_, "global_step_10", SystemClock()));
  ThrowIfError(SaveAgain());
  ExpectSetAside();
  EXPECT_TRUE(IsPinned(disk_, "global_step_10"));
}

TEST_F(Replace, AnotherRunsIsSetAside) {
  ThrowIfError(SaveAgain("another"));
  ExpectSetAside();
}

TEST_F(Replace, OneWithAForeignFileIsSetAside) {
  disk_.SetContent("global_step_10/actor/notes.txt", "mine");
  ThrowIfError(SaveAgain());
  ExpectSetAside();
  EXPECT_EQ(disk_.Content("global_step_10/actor/notes.txt"), "mine");
}

// Whoever has found the damage: a load of this process, one before it, or nobody yet.
TEST_F(Replace, ADamagedOneIsSetAside) {
  const std::string weights = "global_step_10/actor/model/rank_00000.safetensors";
  std::string content = disk_.Content(weights);
  content.back() = static_cast<char>(content.back() ^ 1);
  disk_.SetContent(weights, content);
  ThrowIfError(SaveAgain());
  EXPECT_EQ(Loaded(), 'n');
  const std::vector<std::string> trees = Trees();
  ASSERT_THAT(trees, ElementsAre("global_step_10", StartsWith("global_step_10.set-aside-")));
  EXPECT_EQ(disk_.Content(trees[1] + weights.substr(weights.find('/'))), content);
  // Nothing ever removes it, and the next one of the step is replaced like any other.
  ThrowIfError(SaveAgain());
  EXPECT_EQ(Trees(), trees);
}

TEST_F(Replace, APinThatFailsIsNone) {
  for (const std::string_view failing : {"write", "fsync"}) {
    disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
      const bool pin = path.ends_with(kPinName) && operation == failing;
      return pin ? Status(StatusCode::kNoSpace, "No space left on device") : Status::Ok();
    });
    EXPECT_EQ(PinCheckpoint(disk_, "global_step_10", SystemClock()).code(), StatusCode::kNoSpace)
        << failing;
    disk_.SetFault({});
    EXPECT_FALSE(IsPinned(disk_, "global_step_10")) << failing;
  }
  // One that was there stays.
  ThrowIfError(PinCheckpoint(disk_, "global_step_10", SystemClock()));
  EXPECT_TRUE(PinCheckpoint(disk_, "global_step_10", SystemClock()).ok());
  EXPECT_TRUE(IsPinned(disk_, "global_step_10"));
}

TEST_F(Replace, OneThatCannotBeReadIsSetAside) {
  bool exchanged = false;  // the old one has the other name
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    if (operation == "exchange") exchanged = true;
    const bool old = path.starts_with(exchanged ? ".old-10-" : "global_step_10/");
    return old && operation == "open" ? Status(StatusCode::kIo, "Permission denied") : Status::Ok();
  });
  ThrowIfError(SaveAgain());
  disk_.SetFault({});
  ExpectSetAside();
}

TEST_F(Replace, OneThatIsBeingReadGoesAtALaterStart) {
  std::optional<StepReader> reader = ValueOrThrow(StepReader::Open(disk_, "global_step_10"));
  ThrowIfError(SaveAgain());
  EXPECT_THAT(Trees(), ElementsAre(StartsWith(".old-10-"), "global_step_10"));
  EXPECT_EQ(Loaded(), 'n');  // a start, with the reader still there
  EXPECT_THAT(Trees(), Contains(StartsWith(".old-10-")));
  reader.reset();
  EXPECT_EQ(Loaded(), 'n');
  EXPECT_THAT(Trees(), ElementsAre("global_step_10"));
}

// A start that lacks the descriptors to look at the new one neither removes the old one nor calls
// the new one damaged.
TEST_F(Replace, OneWhoseSuccessorCannotBeLookedAtGoesAtALaterStart) {
  std::optional<StepReader> reader = ValueOrThrow(StepReader::Open(disk_, "global_step_10"));
  ThrowIfError(SaveAgain());
  reader.reset();
  bool refused = false;
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    if (operation != "open" || !path.starts_with("global_step_10/")) return Status::Ok();
    refused = true;
    return Status::FromErrno(EMFILE, "open", path);
  });
  const TempDir folder;
  LogOptions options = Quiet();
  options.level = LogLevel::kWarning;
  options.file = folder / "log.txt";
  {
    Logger log(options);
    ThrowIfError(Committer(disk_, log).CollectDebris());
  }
  disk_.SetFault({});
  EXPECT_TRUE(refused);
  EXPECT_THAT(ReadAll(options.file),
              AllOf(HasSubstr("not known whether .old-10-"),
                    HasSubstr("the next start will try again"), Not(HasSubstr("damaged"))));
  EXPECT_THAT(Trees(), ElementsAre(StartsWith(".old-10-"), "global_step_10"));
  EXPECT_EQ(Loaded(), 'n');
  EXPECT_THAT(Trees(), ElementsAre("global_step_10"));
}

TEST_F(Replace, OneThatIsPinnedMeanwhileIsKept) {
  std::optional<StepReader> reader = ValueOrThrow(StepReader::Open(disk_, "global_step_10"));
  ThrowIfError(SaveAgain());
  ThrowIfError(PinCheckpoint(disk_, Trees()[0], SystemClock()));
  reader.reset();
  ExpectSetAside();
  EXPECT_TRUE(IsPinned(disk_, "global_step_10"));
}

TEST_F(Replace, WhatWasSetAsideComesBackAfterACrash) {
  ThrowIfError(PinCheckpoint(disk_, "global_step_10", SystemClock()));
  // As a crash leaves it between the two renames.
  const std::string id = MakeSaveId(7);
  const std::string aside = SetAsideDirectory(10, id);
  const std::string temporary = ScratchDirectory(ScratchKind::kTemporary, 10, id);
  ThrowIfError(disk_.Rename("global_step_10", aside, FileSystem::RenameMode::kNoReplace));
  ThrowIfError(disk_.MakeDirectory(temporary));
  EXPECT_EQ(Loaded(), 'o');
  EXPECT_THAT(Trees(), ElementsAre("global_step_10"));
  EXPECT_TRUE(IsPinned(disk_, "global_step_10"));
  // With the name taken it stays where it is.
  ThrowIfError(SaveAgain());
  ThrowIfError(disk_.MakeDirectory(temporary));
  ExpectSetAside();
}

TEST_F(Replace, OneThatGivesWayWhileItIsVerifiedIsNotCalledDamaged) {
  bool replaced = false;
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    if (operation == "open" && path.find("/optimizer/") != std::string_view::npos &&
        !std::exchange(replaced, true)) {
      ThrowIfError(SaveAgain());
    }
    return Status::Ok();
  });
  const VerifyReport report = VerifyCheckpoint(disk_, "global_step_10", 1);
  EXPECT_TRUE(replaced);
  EXPECT_THAT(report.problems, ElementsAre(HasSubstr("took its place while it was read")));
}

TEST_F(Replace, ACrashNeverCostsTheOnlyWholeOne) {
  // As a crash between publication and removal leaves it, and the new one is damaged.
  std::optional<StepReader> reader = ValueOrThrow(StepReader::Open(disk_, "global_step_10"));
  ThrowIfError(SaveAgain());
  reader.reset();
  const std::string weights = "global_step_10/actor/model/rank_00000.safetensors";
  std::string content = disk_.Content(weights);
  content.back() = static_cast<char>(content.back() ^ 1);
  disk_.SetContent(weights, content);
  EXPECT_EQ(Loaded(), '?');
  const std::vector<std::string> trees = Trees();
  ASSERT_THAT(trees, ElementsAre(StartsWith(".old-10-"), "global_step_10"));
  ThrowIfError(RemoveTree(disk_, "global_step_10"));
  EXPECT_EQ(Loaded(), 'o');
}

// What peers, the tracker and retention hear of is on the disk for good.
TEST_F(Replace, NothingIsToldOfAStepBeforeItsNameIsDurable) {
  int told = 0;
  disk_.SetFault([&](int64_t, std::string_view, std::string_view path) {
    if (!path.starts_with(kTrackerName)) return Status::Ok();
    ++told;
    const auto cut = disk_.AfterPowerCut(SimFileSystem::Survives::kNothing, 1);
    EXPECT_TRUE(cut->Stat("global_step_20/manifest.json").ok()) << path;
    return Status::Ok();
  });
  ThrowIfError(SaveOn(disk_, cut_, 20, SmallOptions()));
  disk_.SetFault({});
  EXPECT_GT(told, 0);
}

// Its name was given and taken back, and the disk has confirmed neither: a power cut may bring the
// name back, and then all that it names must be there.
TEST_F(Replace, AWithdrawnStepIsLeftWholeWhereItsNameMayComeBack) {
  bool renamed = false;
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    if (operation == "rename" && path == "global_step_20") renamed = true;
    const bool fails = renamed && operation == "fsync directory";
    return fails ? Status(StatusCode::kIo, "the directory cannot be synced") : Status::Ok();
  });
  EXPECT_FALSE(SaveOn(disk_, cut_, 20, SmallOptions()).ok());
  ASSERT_TRUE(renamed);
  disk_.SetFault({});
  SimFileSystem::PowerCuts some;
  some.exhaustive = 10;
  some.random = 50;
  int came_back = 0;
  disk_.ForEachPowerCut(some, [&](std::unique_ptr<SimFileSystem> found) {
    if (found->Stat("global_step_20").ok()) ++came_back;
    Cut memory({1}, 1, ModelSize::kTiny);
    const auto loaded = LoadFrom(*found, memory);
    ASSERT_TRUE(loaded.ok() && loaded->has_value());
    EXPECT_THAT((*loaded)->skipped, IsEmpty());
  });
  EXPECT_GT(came_back, 0);
}

// Whoever looks at any instant, also while the process that replaces it is dead and before the next
// start has put anything right, finds a whole one.
TEST_F(Replace, AtEveryInstantOneOfThemIsThere) {
  SimFileSystem::PowerCuts some;
  some.exhaustive = 6;
  some.random = 20;
  const auto whole = [](const SimFileSystem& disk) {
    return VerifyCheckpoint(disk, "global_step_10", 1).problems.empty();
  };
  int calls = 0;
  disk_.SetFault([&](int64_t, std::string_view, std::string_view) {
    some.seed = static_cast<uint64_t>(++calls);
    disk_.ForEachPowerCut(
        some, [&](std::unique_ptr<SimFileSystem> found) { EXPECT_TRUE(whole(*found)) << calls; });
    return Status::Ok();
  });
  ThrowIfError(SaveAgain());
  disk_.SetFault({});
  EXPECT_GT(calls, 20);
}

// Where names cannot be exchanged there is an instant without one; the next start restores it.
TEST_F(Replace, WithoutExchangeTheNextStartRestoresIt) {
  const auto before = disk_.Clone();
  const auto refuse = [](SimFileSystem& disk, int64_t last) {
    disk.SetFault([last](int64_t call, std::string_view operation, std::string_view) {
      if (call > last) return Status(StatusCode::kIo, "the process is dead");
      return operation == "exchange" ? Status(StatusCode::kUnavailable, "unknown") : Status::Ok();
    });
  };
  cut_.Fill(new_);
  before->ResetCalls();
  const auto undisturbed = before->Clone();
  refuse(*undisturbed, std::numeric_limits<int64_t>::max());
  ThrowIfError(SaveOn(*undisturbed, cut_, 10, SmallOptions()));
  const int64_t calls = undisturbed->calls();
  std::set<char> seen;
  int missing = 0;
  for (int64_t n = 0; n <= calls; ++n) {
    const auto disk = before->Clone();
    refuse(*disk, n);
    cut_.Fill(new_);
    (void)SaveOn(*disk, cut_, 10, SmallOptions());
    disk->SetFault({});
    missing += !disk->Stat("global_step_10").ok();
    cut_.Clear(0);
    const auto loaded = LoadFrom(*disk, cut_);
    ASSERT_TRUE(loaded.ok() && loaded->has_value()) << n;
    seen.insert(cut_.FirstDifference(old_) == ""   ? 'o'
                : cut_.FirstDifference(new_) == "" ? 'n'
                                                   : '?');
  }
  EXPECT_GT(missing, 0);
  EXPECT_EQ(seen, (std::set<char>{'o', 'n'}));
}

// What nobody foresees, once a name was given or taken away, is undone like any other failure.
TEST_F(Replace, AnExceptionTakesTheNamesBack) {
  for (const std::string point : {"commit.aside_synced", "commit.renamed", "commit.synced"}) {
    ThrowIfError(ArmFailPoints(point + ":*:1:throw", 0));
    const Status failed = SaveAgain();
    ThrowIfError(ArmFailPoints("", 0));
    EXPECT_THAT(failed.message(), HasSubstr(point));
    EXPECT_THAT(Trees(), ElementsAre("global_step_10")) << point;
    EXPECT_EQ(Loaded(), 'o') << point;
  }
}

// It is saved by then: what is left of the old one is for the next start.
TEST_F(Replace, AnExceptionWhileTheOldOneGoesDoesNotFailTheSave) {
  ThrowIfError(ArmFailPoints("commit.replaced_removed:*:1:throw", 0));
  const Status saved = SaveAgain();
  ThrowIfError(ArmFailPoints("", 0));
  ThrowIfError(saved);
  EXPECT_EQ(Loaded(), 'n');
  EXPECT_THAT(Trees(), ElementsAre("global_step_10"));
}

TEST_F(Replace, WhatCannotBeReadBackForLackOfMemoryDoesNotReplace) {
  bool thrown = false;
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    if (operation != "read" || !path.starts_with("global_step_10/actor/model/"))
      return Status::Ok();
    thrown = true;
    throw std::bad_alloc();
  });
  EXPECT_FALSE(SaveAgain().ok());
  disk_.SetFault({});
  EXPECT_TRUE(thrown);
  EXPECT_THAT(Trees(), ElementsAre("global_step_10"));
  EXPECT_EQ(Loaded(), 'o');
}

// The process dies, not the machine, between the rename and its sync. The next one finds both names
// in the cache; a power cut may still take the new one away, so the old one must not go first.
TEST_F(Replace, ARestartSettlesNamesBeforeItRemovesWhatTheyHid) {
  bool renamed = false;
  bool dead = false;
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    if (operation == "exchange" && path == "global_step_10") renamed = true;
    if (renamed && operation == "fsync directory") dead = true;
    return dead ? Status(StatusCode::kIo, "the process is dead") : Status::Ok();
  });
  EXPECT_FALSE(SaveAgain().ok());
  ASSERT_TRUE(dead);
  disk_.SetFault({});
  ASSERT_THAT(Trees(), ElementsAre(StartsWith(".old-10-"), "global_step_10"));
  std::atomic<int> cuts = 0;  // a load reads with several threads
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    SimFileSystem::PowerCuts some;
    some.exhaustive = 8;
    some.random = 20;
    some.seed = static_cast<uint64_t>(++cuts);
    disk_.ForEachPowerCut(some, [&](std::unique_ptr<SimFileSystem> found) {
      Cut memory({1}, 1, ModelSize::kTiny);
      const auto loaded = LoadFrom(*found, memory);
      EXPECT_TRUE(loaded.ok() && loaded->has_value()) << "cut at " << operation << " " << path;
    });
    return Status::Ok();
  });
  EXPECT_EQ(Loaded(), 'n');
  disk_.SetFault({});
  EXPECT_GT(cuts, 10);
  EXPECT_THAT(Trees(), ElementsAre("global_step_10"));
}

// Whoever removed it died between the renaming and its being durable.
TEST_F(Replace, ARestartSettlesARemovalBeforeItGoesOnWithIt) {
  cut_.Fill(new_);
  ThrowIfError(SaveOn(disk_, cut_, 20, SmallOptions()));
  const std::string trash = ScratchDirectory(ScratchKind::kTrash, 10, MakeSaveId(1));
  ThrowIfError(disk_.Rename("global_step_10", trash, FileSystem::RenameMode::kNoReplace));
  std::atomic<int> cuts = 0, came_back = 0;
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    if (!operation.starts_with("remove") && operation != "fsync directory") return Status::Ok();
    SimFileSystem::PowerCuts some;
    some.seed = static_cast<uint64_t>(++cuts);
    disk_.ForEachPowerCut(some, [&](std::unique_ptr<SimFileSystem> found) {
      if (!found->Stat("global_step_10").ok()) return;
      ++came_back;
      EXPECT_THAT(VerifyCheckpoint(*found, "global_step_10", 1, true).problems, IsEmpty())
          << "cut at " << operation << " " << path;
    });
    return Status::Ok();
  });
  cut_.Clear(0);
  const auto loaded = LoadFrom(disk_, cut_);
  EXPECT_TRUE(loaded.ok() && loaded->has_value());
  disk_.SetFault({});
  EXPECT_GT(came_back, 0) << "nothing was to be settled";
  EXPECT_THAT(Trees(), ElementsAre("global_step_20"));
}

}  // namespace
}  // namespace keel::checkpoint
