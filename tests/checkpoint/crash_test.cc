// The power goes at any call of a save: what is found afterwards is the old checkpoint or the new
// one, never a mix, never an error, no debris. Every disk that the crash model allows is tried
// once, and so is every disk that a second cut leaves during the recovery of the first.
#include <gmock/gmock.h>

#include <mutex>
#include <set>

#include "checkpoint/format/names.h"
#include "tests/checkpoint/support/crash_support.h"
#include "tests/support/nightly.h"

namespace keel::checkpoint {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// What no recovery reads: what is in directories that it removes, and two files for people.
bool NobodyReads(std::string_view path) {
  if (path == kRecordsName || path == kLockName) return true;
  const auto scratch = ParseScratchDirectory(path);
  return scratch && scratch->kind != ScratchKind::kReplaced;
}

// Disks that differ in something that counts, each once.
class CrashStates {
 public:
  struct Found {
    std::unique_ptr<SimFileSystem> disk;
    std::string where;
  };

  // Adds what a power cut now leaves.
  void Cut(const SimFileSystem& disk, const std::string& where, int exhaustive = 12) {
    const std::lock_guard lock(mutex_);
    const int64_t before = std::ssize(found_);
    SimFileSystem::PowerCuts cuts;
    cuts.ignored = NobodyReads;
    cuts.exhaustive = exhaustive;
    cuts.seed = ++cuts_;
    const bool all = disk.ForEachPowerCut(
        cuts, [&](std::unique_ptr<SimFileSystem> after) { Add(std::move(after), true, where); });
    if (!all) ++sampled_;
    // The content of the ignored should not count: here it differs.
    for (int i = 0; i < (keel::testing::Nightly() ? 50 : 2); ++i) {
      const uint64_t seed = static_cast<uint64_t>(cuts_) * 1000 + static_cast<uint64_t>(i);
      Add(disk.AfterPowerCut(SimFileSystem::Survives::kSubset, seed), false, where);
    }
    boundaries_ += std::ssize(found_) > before ? 1 : 0;
  }

  // Cuts at every call on `disk` while `work` runs.
  void During(SimFileSystem& disk, const std::string& where, const std::function<void()>& work,
              int exhaustive = 12) {
    disk.SetFault([&](int64_t call, std::string_view operation, std::string_view path) {
      Cut(disk, fmt::format("{}before call {}, {} {}", where, call, operation, path), exhaustive);
      return Status::Ok();
    });
    work();
    disk.SetFault({});
    Cut(disk, where + "afterwards", exhaustive);
  }

  std::vector<Found> Take() { return std::exchange(found_, {}); }
  int64_t boundaries() const { return boundaries_; }
  int64_t sampled() const { return sampled_; }  // instants with too many pending changes for all

 private:
  void Add(std::unique_ptr<SimFileSystem> disk, bool ignoring, const std::string& where) {
    ++states_;
    const uint64_t digest = ignoring ? disk->Digest(".", NobodyReads) : disk->Digest() + 1;
    if (seen_.insert(digest).second) found_.push_back({std::move(disk), where});
  }

  std::mutex mutex_;
  std::set<uint64_t> seen_;
  std::vector<Found> found_;
  uint64_t cuts_ = 0;
  int64_t states_ = 0;
  int64_t boundaries_ = 0;
  int64_t sampled_ = 0;
};

class PowerCut : public ::testing::TestWithParam<Scenario> {};

TEST_P(PowerCut, AtEveryCall) {
  CrashJob job(GetParam());
  const auto disk = job.before().Clone();
  CrashStates unpromised, promised;
  bool acknowledged = false;
  unpromised.During(*disk, "", [&] { acknowledged = job.Save(*disk).ok(); });
  ASSERT_TRUE(acknowledged);
  promised.Cut(*disk, "after it was acknowledged");
  EXPECT_GT(disk->calls(), 50);  // it did go over the protocol

  // All that one cut leaves; and of each, what a second cut leaves during the recovery from it:
  // some thousand in all, each night ten times as many, evenly chosen. No more of these are held
  // than one recovery makes.
  int64_t checked = 0;
  const auto check = [&](const CrashStates::Found& one, bool was_promised, size_t i) {
    ++checked;
    job.ExpectOldOrNew(*one.disk, was_promised, one.where);
    if (!HasFailure() && (keel::testing::Nightly() || i % 8 == 0))
      job.ExpectGoesOn(*one.disk, one.where);
  };
  for (CrashStates* states : {&unpromised, &promised}) {
    const bool was_promised = states == &promised;
    const std::vector<CrashStates::Found> once = states->Take();
    const size_t most = 1 + (keel::testing::Nightly() ? 15'000 : 1500) / once.size();
    for (size_t i = 0; i < once.size(); ++i) {
      const auto recovering = once[i].disk->Clone();
      states->During(
          *recovering, once[i].where + "; then in recovery ", [&] { (void)job.Load(*recovering); },
          keel::testing::Nightly() ? 12 : 7);
      check(once[i], was_promised, i);
      ASSERT_FALSE(HasFailure()) << once[i].where;
      const std::vector<CrashStates::Found> twice = states->Take();
      const size_t stride = 1 + twice.size() / most;
      for (size_t j = 0; j < twice.size(); j += stride) {
        check(twice[j], was_promised, i + j);
        ASSERT_FALSE(HasFailure()) << twice[j].where;
      }
    }
  }
  std::printf("%s: %ld disks; at %ld instants too many changes to try all subsets\n",
              GetParam().name.c_str(), static_cast<long>(checked),
              static_cast<long>(unpromised.sampled() + promised.sampled()));
}

INSTANTIATE_TEST_SUITE_P(Scenarios, PowerCut, ::testing::ValuesIn(Scenarios()), NameOf);

}  // namespace
}  // namespace keel::checkpoint
