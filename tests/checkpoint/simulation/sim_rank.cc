// What a rank of SimRun's job does: open the directory, load, and save a few times while it trains.
#include <fmt/format.h>

#include <cstring>
#include <set>
#include <utility>

#include "checkpoint/commit/committer.h"
#include "checkpoint/load/loader.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/save/snapshot.h"
#include "checkpoint/save/source_fence.h"
#include "tests/checkpoint/simulation/sim_start.h"

namespace keel::checkpoint::testing {

using std::chrono::microseconds;
using std::chrono::milliseconds;

bool SimRun::OpenDirectory(Rank& rank) {
  Result<std::string> opened = std::string();
  if (rank.process.rank == 0) {
    start_->disk_disturbed = false;
    Result<std::unique_ptr<RunLock>> lock = RunLock::Take(*rank.fs, "sim", start_->scheduler);
    Status status = lock.status();
    if (lock.ok()) {
      rank.lock = std::move(lock).value();
      status = Committer(*rank.fs, log_).CollectDebris();
    }
    if (rank.process.dead) return false;
    CheckNames();
    if (!start_->disk_disturbed) {
      Check(status.ok() ? "" : "the start failed: " + status.ToString());
      Check(oracle_.CheckNoDebris(*disk_, counts_.disk_errors > 0));
    }
    if (!status.ok()) opened = status;
  }
  opened = BroadcastResult(*rank.coordinator, rank.NextTag("open"), opened, kSimDeadline);
  return opened.ok();
}

bool SimRun::LoadState(Rank& rank) {
  RankPart& model = start_->cut.model[static_cast<size_t>(rank.process.rank)];
  RankPart& optimizer = start_->cut.optimizer[static_cast<size_t>(rank.process.rank)];
  for (RankPart* part : {&model, &optimizer}) part->Clear(0x5a);
  LoadRequest request;
  request.roles = start_->cut.Roles(rank.process.rank);
  Loader loader(*rank.fs, *rank.coordinator, log_, {kSimDeadline, milliseconds(0), 1, {}});
  const Result<std::optional<LoadRecord>> loaded = loader.Load(rank.NextTag("load"), request);
  start_->loads.push_back({rank.process.rank, loaded.status(), rank.process.dead, {}});
  if (rank.process.dead) return false;
  const bool excused = start_->disk_disturbed;
  if (!loaded.ok()) {
    const bool store = start_->store->disturbed() || start_->doomed;
    if (!excused && !store && !start_->weather.disk_hiccup)
      Check("the load failed: " + loaded.status().ToString());
    return false;
  }
  ++counts_.loads;
  if (!loaded->has_value()) {
    Check(oracle_.CheckChosen(-1, excused));
    step_ = 0;
    return true;
  }
  const LoadRecord& record = **loaded;
  const Json state = Json::parse(record.documents.at("trainer_state.json"));
  const auto content = state.at("content").get<int64_t>();
  Note(fmt::format("rank {} resumes from save {} (step {})", rank.process.rank, content,
                   record.step));
  Check(oracle_.CheckChosen(content, excused));
  if (record.step != oracle_.step_of(content)) Check("a step was loaded under another's number");
  if (!excused && !record.skipped.empty())
    Check("a visible checkpoint is not whole: " + record.skipped[0].reason);
  for (const auto& [part, whole] : {std::pair(&model, &StateOf(content).model),
                                    std::pair(&optimizer, &StateOf(content).optimizer)}) {
    if (const std::string difference = part->FirstDifference(*whole); !difference.empty())
      Check(fmt::format("what was loaded is not save {}: {}", content, difference));
  }
  step_ = record.step;
  return true;
}

// The ranks meet before each save, as the collectives of training make them; the last one to come
// begins it. False when there is nothing more to do, or someone is missing.
bool SimRun::Gather(Rank& rank) {
  Start& start = *start_;
  const size_t before = start.saves.size();
  if (start.doomed || std::ssize(start.saves) == start.saves_planned) return false;
  if (++start.arrived < std::ssize(start.ranks)) {
    (void)start.scheduler.WaitAt(start.meeting, SimTime::max());
    return !start.doomed && !rank.process.dead && start.saves.size() > before;
  }
  start.arrived = 0;
  start.disk_disturbed = false;
  // Now and then the same step once more, as at the end of a run.
  if (step_ == 0 || !dice_.Chance(0.15)) step_ += 10;
  start.saves.push_back({oracle_.Begin(step_)});
  Note(fmt::format("save {} of step {}", start.saves.back().content, step_));
  start.scheduler.Open(start.meeting);
  return true;
}

// Goes on training: overwrites each part of the state as soon as the fence lets it.
void SimRun::Train(Rank& rank, SourceFence& fence, const bool& over) {
  const bool reckless = dice_.Chance(start_->weather.reckless);
  for (RankPart* part : {&start_->cut.model[static_cast<size_t>(rank.process.rank)],
                         &start_->cut.optimizer[static_cast<size_t>(rank.process.rank)]}) {
    for (const auto& block : part->memory) {
      start_->scheduler.SleepFor(dice_.About(microseconds(500)));
      while (!over && !rank.process.dead && !reckless && fence.Holds(block->data(), block->size()))
        start_->scheduler.SleepFor(microseconds(100) + dice_.About(milliseconds(1)));
      if (rank.process.dead) return;
      std::memset(block->data(), static_cast<int>(dice_.Below(256)), block->size());
    }
  }
}

void SimRun::SaveState(Rank& rank, Saver& saver) {
  Start& start = *start_;
  const size_t number = start.saves.size() - 1;
  const int64_t content = start.saves[number].content;
  start.cut.model[static_cast<size_t>(rank.process.rank)].Fill(StateOf(content).model);
  start.cut.optimizer[static_cast<size_t>(rank.process.rank)].Fill(StateOf(content).optimizer);
  SaveRequest request;
  request.step = oracle_.step_of(content);
  request.roles = start.cut.Roles(rank.process.rank);
  if (rank.process.rank == 0) {
    request.documents = {
        {"trainer_state.json", fmt::format("{{\"content\": {}}}\n", content), true}};
  }

  const bool background = number % 2 == 0;  // the same on every rank
  SourceFence fence;
  Snapshot snapshot(request, background, fence);
  bool over = false;
  std::optional<size_t> trainer;
  if (background) trainer = start.scheduler.Spawn(rank.process, [&] { Train(rank, fence, over); });
  if (background && dice_.Chance(start.weather.cancel)) {
    start.saves[number].undisturbed = false;
    // As long as the save goes on, its snapshot can be cancelled.
    const auto alive = std::make_shared<Snapshot*>(&snapshot);
    rank.cancel = alive;
    start.scheduler.At(start.scheduler.Monotonic() + dice_.About(milliseconds(10)), [alive, this] {
      if (*alive == nullptr) return;
      Note("cancelled");
      (*alive)->Cancel(Status(StatusCode::kCancelled, "cancelled"));
    });
  }
  if (start.weather.reckless > 0) start.saves[number].undisturbed = false;

  SaveRecord record;
  const SimTime begin = start.scheduler.Monotonic();
  const Status status = saver.Run(rank.NextTag("save"), snapshot, &record);
  over = true;
  if (rank.cancel != nullptr) *std::exchange(rank.cancel, nullptr) = nullptr;
  start.saves[number].outcomes.push_back(
      {rank.process.rank, status, rank.process.dead, start.scheduler.Monotonic() - begin});
  if (!rank.process.dead) {
    Note(fmt::format("rank {}: save {}: {}", rank.process.rank, content, status.ToString()));
    CheckNames();
    if (status.ok()) {
      if (!oracle_.published(content))
        Check("a rank was told that a save that nobody sees is done");
      oracle_.Acknowledge(content);
      Check(oracle_.CheckDisk(*disk_, true));
    }
  }
  if (trainer) start.scheduler.Join(*trainer);
}

void SimRun::RankMain(Rank& rank) {
  if (!OpenDirectory(rank) || !LoadState(rank)) {
    // Its absence ends the job of the others.
    start_->doomed = true;
    start_->scheduler.Open(start_->meeting);
    rank.lock.reset();
    return;
  }
  Saver saver(
      *rank.fs, *rank.coordinator, start_->scheduler, log_, options_,
      [&rank] { return rank.lock == nullptr ? Status::Ok() : rank.lock->Check(); },
      [this] { return dice_.Bits(); });
  while (Gather(rank)) SaveState(rank, saver);
  rank.lock.reset();
}

}  // namespace keel::checkpoint::testing
