#include "tests/checkpoint/simulation/sim_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "common/hash.h"
#include "tests/checkpoint/simulation/sim_start.h"

namespace keel::checkpoint::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::array kErrors = {EIO, ENOSPC, EDQUOT, EINTR, EMFILE, ENOMEM};
// No save may take longer when neither disk nor store is slow: each of its waits has a deadline.
constexpr SimTime kLongestSave = 10 * kSimDeadline;

std::string_view CodeName(const Status& status) { return StatusCodeName(status.code()); }

}  // namespace

void SimCounts::Add(const SimCounts& other) {
  starts += other.starts;
  loads += other.loads;
  saves += other.saves;
  committed += other.committed;
  cancelled += other.cancelled;
  failed += other.failed;
  dead_ranks += other.dead_ranks;
  power_cuts += other.power_cuts;
  disk_errors += other.disk_errors;
  late_ranks += other.late_ranks;
  reckless_found += other.reckless_found;
  disk_calls += other.disk_calls;
  switches += other.switches;
  checks += other.checks;
}

std::string SimCounts::Describe() const {
  return fmt::format(
      "{} starts, {} loads, {} saves ({} committed, {} cancelled, {} failed), {} ranks died, {} "
      "power cuts, {} disk errors, {} waits past their deadline, {} reckless writes found, {} disk "
      "calls, {} switches, {} looks at the disk",
      starts, loads, saves, committed, cancelled, failed, dead_ranks, power_cuts, disk_errors,
      late_ranks, reckless_found, disk_calls, switches, checks);
}

SimRun::SimRun(uint64_t seed, FiberStacks& stacks, bool trace)
    : seed_(seed),
      stacks_(stacks),
      trace_(trace),
      dice_(seed),
      log_(Quiet()),
      oracle_(static_cast<int>(dice_.Below(4))),
      disk_(std::make_unique<SimFileSystem>()) {
  options_ = SmallOptions();
  options_.deadline = kSimDeadline;
  options_.dist_ckpt_workers = 0;  // fibers write
  options_.load_threads = 1;
  if (oracle_.keep() > 0) options_.max_ckpts_to_keep = oracle_.keep();
  if (dice_.Chance(0.5)) options_.host_memory_cap = 2 * options_.chunk_bytes;
  if (const double io = dice_.Fraction(); io < 0.6)
    options_.io = io < 0.3 ? IoChoice::kDirect : IoChoice::kIoUring;
}

SimRun::~SimRun() = default;

void SimRun::Note(std::string_view what) {
  const SimTime now = start_ == nullptr ? SimTime{} : start_->scheduler.Monotonic();
  digest_ = Hash64(what, digest_ ^ static_cast<uint64_t>(now.count()));
  if (trace_)
    std::fprintf(stderr, "%12.6f %.*s\n", Seconds(now), static_cast<int>(what.size()), what.data());
}

void SimRun::Check(const std::string& problem) {
  if (problem.empty() || !violation_.empty()) return;
  violation_ = problem;
  Note("VIOLATION: " + problem);
}

SimRun::Rank& SimRun::RankOf(const SimProcess& process) {
  return *start_->ranks[static_cast<size_t>(process.rank)];
}

const TrainingState& SimRun::StateOf(int64_t content) {
  const auto found = states_.find(content);
  if (found != states_.end()) return found->second;
  const uint64_t seed = seed_ * 1000 + static_cast<uint64_t>(content);
  return states_.emplace(content, MakeTrainingState(seed, ModelSize::kTiny)).first->second;
}

void SimRun::CheckNames() {
  if (!std::exchange(start_->names_changed, false)) return;
  ++counts_.checks;
  Check(oracle_.CheckDisk(*disk_, true));
  // What if the power went now?
  if (!dice_.Chance(0.1)) return;
  const auto found = disk_->AfterPowerCut(SimFileSystem::Survives::kSubset, dice_.Bits());
  ++counts_.checks;
  if (const std::string problem = oracle_.CheckDisk(*found, false); !problem.empty())
    Check("after a power cut now: " + problem);
}

void SimRun::KillRank(Rank& rank) {
  if (rank.process.dead) return;
  Note(fmt::format("rank {} dies", rank.process.rank));
  start_->doomed = true;
  start_->scheduler.Kill(rank.process);
  start_->scheduler.Open(start_->meeting);
}

void SimRun::End() {
  CheckNames();
  const Weather& weather = start_->weather;
  for (Start::Save& save : start_->saves) save.undisturbed = false;
  if (weather.end == Weather::End::kRank) {
    ++counts_.dead_ranks;
    KillRank(*start_->ranks[static_cast<size_t>(weather.rank)]);
    return;
  }
  ++counts_.power_cuts;
  Note("the power goes");
  const double kind = dice_.Fraction();
  start_->after_cut = disk_->AfterPowerCut(kind < 0.15   ? SimFileSystem::Survives::kNothing
                                           : kind < 0.25 ? SimFileSystem::Survives::kEverything
                                                         : SimFileSystem::Survives::kSubset,
                                           dice_.Bits());
  for (const auto& rank : start_->ranks) KillRank(*rank);
}

Status SimRun::BeforeDiskCall(Rank& rank, std::string_view operation, std::string_view path) {
  const auto dead = [&] { return Status(StatusCode::kIo, "this process is dead"); };
  if (rank.process.dead) return dead();
  Start& start = *start_;
  const Weather& weather = start.weather;
  SimTime takes = dice_.About(microseconds(20));
  if (dice_.Chance(weather.disk_hiccup)) takes += dice_.About(2 * kSimDeadline);
  start.scheduler.SleepFor(takes);
  if (rank.process.dead) return dead();

  ++counts_.disk_calls;
  Note(fmt::format("rank {}: {} {}", rank.process.rank, operation, path));
  CheckNames();
  start.names_changed = operation == "rename" || operation == "exchange" || operation == "remove";
  if (dice_.Chance(weather.cache_loss)) disk_->DropCaches();
  if (weather.when == Weather::When::kDiskCall &&
      (weather.rank < 0 || weather.rank == rank.process.rank) && --start.count_down == 0) {
    End();
    if (rank.process.dead) return dead();
  }
  const SimTime now = start.scheduler.Monotonic();
  if (rank.errno_until <= now && dice_.Chance(weather.disk_error)) {
    rank.errno_sticks = kErrors[static_cast<size_t>(dice_.Below(kErrors.size()))];
    rank.errno_until = now;
    if (dice_.Chance(0.2)) rank.errno_until += dice_.About(milliseconds(20));
  } else if (rank.errno_until <= now) {
    return Status::Ok();
  }
  ++counts_.disk_errors;
  start.disk_disturbed = true;
  for (Start::Save& save : start.saves) {
    save.undisturbed = false;
    save.disk_error = true;
  }
  Note(fmt::format("  fails with errno {}", rank.errno_sticks));
  return Status::FromErrno(rank.errno_sticks, operation, path);
}

void SimRun::BeforeStoreCall(SimProcess& process, std::string_view operation,
                             std::string_view key) {
  Note(fmt::format("rank {}: {} {}", process.rank, operation, key));
  const Weather& weather = start_->weather;
  if (weather.when == Weather::When::kStoreCall &&
      (weather.rank < 0 || weather.rank == process.rank) && --start_->count_down == 0)
    End();
}

// All ranks that live come to the same end, or to a deadline.
void SimRun::CheckOutcomes() {
  const auto lost = [](const Status& status) {
    return status.code() == StatusCode::kDeadlineExceeded ||
           status.code() == StatusCode::kUnavailable;
  };
  for (const Start::Save& save : start_->saves) {
    ++counts_.saves;
    const Start::Outcome* leader = nullptr;
    for (const Start::Outcome& one : save.outcomes) {
      if (one.rank == 0) leader = &one;
    }
    const bool led = leader != nullptr && !leader->dead;
    for (const Start::Outcome& one : save.outcomes) {
      if (one.dead) continue;
      if (start_->weather.disk_hiccup == 0 && one.took > kLongestSave)
        Check(fmt::format("rank {} was in save {} for {:.1f} s", one.rank, save.content,
                          Seconds(one.took)));
      if (save.undisturbed && !start_->store->disturbed() && !start_->weather.disk_hiccup &&
          !one.status.ok())
        Check(fmt::format("save {} failed for no reason: {}", save.content, one.status.ToString()));
      if (lost(one.status)) {
        ++counts_.late_ranks;
        continue;
      }
      if (!one.status.ok() && !save.disk_error && oracle_.published(save.content))
        Check(fmt::format("save {} is visible, and rank {} was told: {}", save.content, one.rank,
                          one.status.ToString()));
      if (led && one.status.code() != leader->status.code())
        Check(fmt::format("save {} ended on rank 0 with '{}', on rank {} with '{}'", save.content,
                          CodeName(leader->status), one.rank, CodeName(one.status)));
    }
    if (!led) continue;
    if (leader->status.ok()) ++counts_.committed;
    if (leader->status.code() == StatusCode::kCancelled) ++counts_.cancelled;
    if (leader->status.code() == StatusCode::kInternal) ++counts_.reckless_found;
    if (!leader->status.ok()) ++counts_.failed;
  }
}

void SimRun::RunStart(bool fair) {
  LayoutOptions layout;
  layout.world = 1 + static_cast<int>(dice_.Below(4));
  const Weather drawn = fair ? Weather() : Weather::Draw(dice_, layout.world, kSimDeadline);
  start_ = std::make_unique<Start>(stacks_, drawn, layout, dice_.Bits());
  Start& start = *start_;
  ++counts_.starts;
  start.count_down = drawn.count;
  start.saves_planned = 1 + static_cast<int>(dice_.Below(3));
  start.store = std::make_unique<SimStore>(
      start.scheduler, dice_, start.weather, kSimDeadline,
      [this](SimProcess& process, std::string_view operation, std::string_view key) {
        BeforeStoreCall(process, operation, key);
      });
  Note(fmt::format("start with {} ranks; {}", layout.world, drawn.Describe()));
  for (int r = 0; r < layout.world; ++r) {
    start.ranks.push_back(std::make_unique<Rank>());
    Rank& rank = *start.ranks.back();
    rank.process.rank = r;
    rank.coordinator = start.store->Connect(rank.process, layout.world);
    rank.fs = disk_->Mount();
    rank.fs->SetShortWrites(drawn.short_writes);
    rank.fs->SetFault([this, &rank](int64_t, std::string_view operation, std::string_view path) {
      return BeforeDiskCall(rank, operation, path);
    });
    start.scheduler.Spawn(rank.process, [this, &rank] { RankMain(rank); });
  }
  if (drawn.end != Weather::End::kNone && drawn.when == Weather::When::kTime)
    start.scheduler.At(drawn.time, [this] { End(); });
  if (dice_.Chance(0.2)) start.scheduler.JumpWall(std::chrono::hours(dice_.Chance(0.5) ? 24 : -24));

  if (const int waiting = start.scheduler.Run(); waiting > 0)
    Check(fmt::format("{} fibers wait for ever", waiting));
  start.names_changed = true;
  if (start.after_cut == nullptr) CheckNames();
  CheckOutcomes();
  counts_.switches += start.scheduler.switches();
  if (start.after_cut != nullptr) {
    disk_ = std::move(start.after_cut);
    Check(oracle_.CheckDisk(*disk_, false));
  }
}

std::string SimRun::Run() {
  const int64_t starts = 1 + dice_.Below(3);
  for (int64_t i = 0; i <= starts && violation_.empty(); ++i) RunStart(i == starts);
  start_.reset();
  return violation_;
}

}  // namespace keel::checkpoint::testing
