// Every call of a save, and of a resume, fails: with each errno, once or for good. A failed save
// costs nothing but itself: what was there before is found again, the job goes on, and its next
// save succeeds. A failed resume says so, and leaves the memory as it was.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cerrno>
#include <filesystem>
#include <mutex>

#include "checkpoint/format/manifest.h"
#include "checkpoint/run/catalog.h"
#include "tests/checkpoint/support/crash_support.h"
#include "tests/support/nightly.h"

namespace keel::checkpoint {
namespace {

using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

bool IsAnyOf(std::string_view operation, std::initializer_list<std::string_view> some) {
  return std::find(some.begin(), some.end(), operation) != some.end();
}

// An errno, and which calls a machine in that state refuses.
struct Failure {
  int error;
  bool for_good;  // or the one call alone
  bool (*refuses)(std::string_view operation);
};
bool Everything(std::string_view) { return true; }
bool Growing(std::string_view operation) {
  return IsAnyOf(operation, {"create", "write", "mkdir", "append", "fsync", "fsync directory"});
}
bool Changing(std::string_view operation) {
  return Growing(operation) || IsAnyOf(operation, {"rename", "exchange", "remove", "truncate"});
}
bool Opening(std::string_view operation) {
  return IsAnyOf(operation, {"create", "open", "list", "fsync directory", "append"});
}

std::vector<Failure> AllFailures() {
  std::vector<Failure> failures;
  for (const bool for_good : {false, true}) {
    for (const int error : {EIO, EINTR, ENOMEM}) failures.push_back({error, for_good, Everything});
    for (const int error : {ENOSPC, EDQUOT}) failures.push_back({error, for_good, Growing});
    for (const int error : {EROFS, EACCES}) failures.push_back({error, for_good, Changing});
    failures.push_back({EMFILE, for_good, Opening});
  }
  return failures;
}
// What the code can tell apart: the rest is left to the nightly run.
std::vector<Failure> SomeFailures() {
  return {{EIO, false, Everything},
          {ENOSPC, true, Growing},
          {EMFILE, false, Opening},
          {EMFILE, true, Opening}};
}

// The n-th call fails; and when it is for good, all that follow and are refused.
std::function<void()> FailFrom(SimFileSystem& disk, int64_t n, const Failure& failure) {
  disk.SetFault([=](int64_t call, std::string_view operation, std::string_view path) {
    const bool later = failure.for_good && call > n && failure.refuses(operation);
    if (call != n && !later) return Status::Ok();
    return Status::FromErrno(failure.error, operation, "sim:/" + std::string(path));
  });
  return [&disk] { disk.SetFault({}); };
}

std::string Where(const Failure& failure, int64_t n) {
  return fmt::format("errno {} {} call {}", failure.error, failure.for_good ? "from" : "at", n);
}

class DiskError : public ::testing::TestWithParam<Scenario> {
 protected:
  DiskError() : job_(GetParam()) {}

  // The job saves, badly, and saves again on a disk that works. `prepare` returns what heals it.
  // Returns whether the first save was acknowledged.
  bool SaveTwice(const std::function<std::function<void()>(SimFileSystem& disk)>& prepare,
                 const std::string& where) {
    const auto disk = job_.before().Clone();
    const std::function<void()> heal = prepare(*disk);
    std::unique_ptr<SimFileSystem> between;
    const CrashJob::TwoSaves saves = job_.SaveTwice(*disk, [&] {
      heal();
      between = disk->Clone();
    });
    heal();
    job_.ExpectOldOrNew(between != nullptr ? *between : *disk, saves.first.ok(), where);
    if (between == nullptr) return false;  // the job did not start
    EXPECT_EQ(saves.second.ToString(), "ok") << where;
    const auto loaded = job_.Load(*disk);
    EXPECT_TRUE(loaded.ok()) << where;
    if (!loaded.ok() || !loaded->has_value()) return false;
    EXPECT_EQ((*loaded)->step, CrashJob::kSecondStep) << where;
    EXPECT_EQ(job_.cut().FirstDifference(CrashJob::SecondState()), "") << where;
    return saves.first.ok();
  }

  int64_t CallsOfTwoSaves(int64_t* of_the_first) {
    const auto disk = job_.before().Clone();
    EXPECT_EQ(job_.SaveTwice(*disk, [&] { *of_the_first = disk->calls(); }).second.ToString(),
              "ok");
    return disk->calls();
  }

  CrashJob job_;
};

TEST_P(DiskError, AtEveryCallOfASave) {
  int64_t calls = 0;
  CallsOfTwoSaves(&calls);
  ASSERT_GT(calls, 50);
  int64_t failed = 0;
  for (const Failure& failure : keel::testing::Nightly() ? AllFailures() : SomeFailures()) {
    for (int64_t n = 1; n <= calls + 1; ++n) {
      const bool saved = SaveTwice(
          [&](SimFileSystem& disk) {
            disk.SetShortWrites(n % 2 == 0);
            return FailFrom(disk, n, failure);
          },
          Where(failure, n));
      failed += saved ? 0 : 1;
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(failed, calls / 2);
}

// A failed fsync drops what it could not write, and the next one says that all is well. Whoever
// believes the second, or reads back from the cache, is deceived.
TEST_P(DiskError, AtEverySyncAndClose) {
  int64_t calls = 0;
  CallsOfTwoSaves(&calls);
  int64_t failed = 0;
  for (int64_t n = 1; n <= calls; ++n) {
    bool hit = false;
    const bool saved = SaveTwice(
        [&](SimFileSystem& disk) {
          disk.SetFault([&hit, n](int64_t call, std::string_view operation, std::string_view path) {
            if (call != n || !IsAnyOf(operation, {"fsync", "close"})) return Status::Ok();
            hit = true;
            return Status::FromErrno(EIO, operation, "sim:/" + std::string(path));
          });
          return [&disk] {
            disk.SetFault({});
            disk.DropCaches();
          };
        },
        fmt::format("sync or close at call {}", n));
    failed += hit && !saved ? 1 : 0;
    ASSERT_FALSE(HasFailure());
  }
  // Of every file at least one. A close that fails after a good fsync need not fail the save.
  EXPECT_GE(failed, 5);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, DiskError, ::testing::ValuesIn(Scenarios()), NameOf);

class Resume : public ::testing::TestWithParam<int> {};

// What cannot be read is passed over with a word; but a process that is short of descriptors or
// memory knows nothing of what is there, and must not go back to an older step for it.
TEST_P(Resume, AtEveryCall) {
  CrashJob job({"", GetParam(), {10, 20}, 30});
  const auto clean = job.before().Clone();
  ASSERT_EQ(job.Load(*clean).status().ToString(), "ok");
  const int64_t calls = clean->calls();
  int64_t refused = 0, fell_back = 0;
  for (const Failure& failure : AllFailures()) {
    for (int64_t n = 1; n <= calls + 1; ++n) {
      SCOPED_TRACE(Where(failure, n));
      const auto disk = job.before().Clone();
      const std::function<void()> heal = FailFrom(*disk, n, failure);
      const auto loaded = job.Load(*disk);
      heal();
      if (!loaded.ok()) {
        ++refused;
        EXPECT_TRUE(job.MemoryIsCleared()) << "memory was changed by a load that failed";
      } else {
        ASSERT_TRUE(loaded->has_value());
        const auto state = job.StateInMemory();
        ASSERT_TRUE(state.has_value()) << "a mixed state was loaded";
        EXPECT_EQ(state->step, (*loaded)->step);
        if (state->step != 20) {
          ++fell_back;
          EXPECT_FALSE((*loaded)->skipped.empty()) << "without a word";
          EXPECT_NE(failure.error, EMFILE);
          EXPECT_NE(failure.error, ENOMEM);
        }
      }
      // The failure was passing: the next start finds all there is.
      ASSERT_EQ(job.Load(*disk).status().ToString(), "ok");
      const auto state = job.StateInMemory();
      ASSERT_TRUE(state.has_value());
      EXPECT_EQ(state->step, 20);
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(refused, calls);
  EXPECT_GT(fell_back, 10);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Resume, ::testing::Values(1, 3));

// A wall clock that jumps by a day between any two looks.
class JumpingClock : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override { return SystemClock().Monotonic(); }
  std::chrono::system_clock::time_point Wall() const override {
    days_ = days_ > 0 ? -days_ - 1 : -days_ + 1;
    return SystemClock().Wall() + std::chrono::hours(24 * days_);
  }
  void SleepFor(std::chrono::nanoseconds d) const override { SystemClock().SleepFor(d); }

 private:
  mutable int days_ = 0;
};

TEST(WallClock, DecidesNothing) {
  const JumpingClock clock;
  SimFileSystem disk;
  for (int64_t step = 10; step <= 60; step += 10) {
    CrashJob job({"", 1, {}, step, 2});
    ASSERT_EQ(job.Save(disk, clock).ToString(), "ok");
    ASSERT_EQ(job.Load(disk)->value().step, step);
    int64_t sequence = step / 10;
    for (const CatalogEntry& entry : ValueOrThrow(ListCheckpoints(disk))) {
      EXPECT_EQ(entry.manifest->sequence, sequence);
      EXPECT_EQ(entry.step, 10 * sequence--);
    }
    EXPECT_EQ(sequence, std::max<int64_t>(0, step / 10 - 2));
  }
}

// The real file system: the run directory goes away under a running job, and comes back.
TEST(RunDirectory, IsRemovedUnderARunningJob) {
  const TempDir dir;
  const std::string root = dir / "run";
  const auto fs = ValueOrThrow(OpenPosixFileSystem(root, true));
  LocalCoordinatorHub hub(1);
  Logger log(Quiet());
  Checkpointer checkpointer(*fs, hub.rank(0), SystemClock(), log, SmallOptions());
  ThrowIfError(checkpointer.Open());
  Cut cut({1}, 1, ModelSize::kTiny);
  const TrainingState state = MakeTrainingState(1, ModelSize::kTiny);
  cut.Fill(state);
  SaveRequest request;
  request.roles = cut.Roles(0);
  request.step = 1;
  ThrowIfError(checkpointer.Save(request).status());
  std::filesystem::remove_all(root);
  request.step = 2;
  const Status failed = checkpointer.Save(request).status();
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(failed.message(), HasSubstr(root));
  EXPECT_EQ(cut.FirstDifference(state), "");
  ThrowIfError(checkpointer.Close());
}

}  // namespace
}  // namespace keel::checkpoint
