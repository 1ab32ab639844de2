#include "checkpoint/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "checkpoint/commit/committer.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/names.h"
#include "checkpoint/format/records.h"
#include "checkpoint/load/loader.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/run_identity.h"
#include "checkpoint/run/run_lock.h"
#include "checkpoint/save/io_backend.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/save/snapshot.h"
#include "checkpoint/save/source_fence.h"
#include "common/fail_point.h"
#include "common/guarded.h"
#include "common/process/thread_priority.h"
#include "common/text.h"
#include "common/wire.h"

namespace keel::checkpoint {
namespace {

constexpr std::chrono::milliseconds kShortestDeadline{1};
constexpr std::chrono::seconds kLongestDeadline{1'000'000};
// Saves of which the slowest is what the next one is expected to take.
constexpr size_t kRemembered = 5;
// How often a wait for the save in flight looks whether that gets anywhere.
constexpr std::chrono::milliseconds kLookAgain{20};
// How long a save in flight waits for peers when the run ends on an error.
constexpr std::chrono::seconds kLastPatience{10};

}  // namespace

std::vector<std::string> Validate(const CheckpointOptions& options) {
  std::vector<std::string> problems;
  if (options.max_ckpts_to_keep && *options.max_ckpts_to_keep < 1) {
    problems.push_back(fmt::format("{} is {}, expected at least 1, or null to keep all",
                                   options.names.keep, *options.max_ckpts_to_keep));
  }
  if (options.chunk_bytes < 4096 || options.chunk_bytes % 4096 != 0 ||
      options.chunk_bytes > (int64_t{1} << 30)) {
    problems.push_back(fmt::format("chunk_bytes is {}, expected a multiple of 4096 up to 2^30",
                                   options.chunk_bytes));
  }
  if (options.deadline < kShortestDeadline || options.deadline > kLongestDeadline) {
    problems.push_back(fmt::format("deadline is {} ms, expected {} ms to {} s",
                                   options.deadline.count(), kShortestDeadline.count(),
                                   kLongestDeadline.count()));
  }
  if (options.load_threads < 1)
    problems.push_back(fmt::format("{} must be at least 1", options.names.readers));
  if (options.load_round_bytes < 1) problems.emplace_back("load_round_bytes must be at least 1");
  if (options.dist_ckpt_workers < 1)
    problems.push_back(fmt::format("{} must be at least 1", options.names.writers));
  if (options.host_memory_cap && *options.host_memory_cap < 2 * options.chunk_bytes) {
    problems.push_back(
        fmt::format("host_memory_cap is {}, expected at least two chunks of {} bytes",
                    *options.host_memory_cap, options.chunk_bytes));
  }
  return problems;
}

struct Checkpointer::Impl {
  Impl(FileSystem& fs_in, Coordinator& coordinator_in, const Clock& clock_in, Logger& log_in,
       CheckpointOptions options_in)
      : fs(fs_in),
        coordinator(coordinator_in),
        clock(clock_in),
        log(log_in),
        options(std::move(options_in)),
        patient(coordinator_in, clock_in),
        saver(fs_in, patient, clock_in, log_in, options,
              [this] { return lock == nullptr ? Status::Ok() : lock->Check(); }) {}

  // A background save, and what it needs for as long as it goes on.
  struct InFlight {
    SaveRequest request;
    std::string tag;
    std::unique_ptr<Snapshot> snapshot;
    SaveRecord record;  // the thread's, until `done`
    Status status;      // likewise
    std::chrono::nanoseconds started{0};
    double blocked_s = 0;  // of the training thread, in StartSave
    double fence_s = 0;    // of it, in WaitFree
    std::atomic<bool> done{false};
    std::mutex ending;
    std::condition_variable ended;  // `done` is set
    std::thread thread;
  };

  FileSystem& fs;
  Coordinator& coordinator;
  const Clock& clock;
  Logger& log;
  CheckpointOptions options;
  HurriedCoordinator patient;  // of the saves
  Saver saver;
  std::unique_ptr<RunLock> lock;  // rank 0
  std::string lock_line;          // of it, on every rank, from Open on
  int64_t next_sequence = 1;      // rank 0: at Open
  int64_t uses = 0;               // makes tags unique
  bool open = false;

  SourceFence fence;
  mutable std::mutex
      in_flight_mutex;  // guards the pointer: WaitFree and Cancel come from any thread
  std::unique_ptr<InFlight> in_flight;
  std::vector<SaveResult> finished;
  std::vector<double> durations;  // of the last saves
  std::mutex announced_mutex;
  std::vector<std::string> announced;  // rank 0: by loads; see Loader

  bool leads() const { return coordinator.rank() == 0; }
  std::string NextTag(std::string_view what) {
    return fmt::format("checkpoint/{}/{}", what, ++uses);
  }

  Status TakeRunDirectory();
  Status CheckRoles();
  Status RunSave(const std::string& tag, Snapshot& snapshot, SaveRecord* record);
  void Collect();
  void Record(const Json& json);
  // Once all ranks have gone on from the loads there were.
  void RetractAnnounced();
};

// The lock first: of two that start in an empty directory one makes the id, and the other none.
Status Checkpointer::Impl::TakeRunDirectory() {
  if (!options.run_id.empty()) {
    KEEL_ASSIGN_OR_RETURN(lock, RunLock::Take(fs, "run " + options.run_id, clock));
    return Status::Ok();
  }
  KEEL_ASSIGN_OR_RETURN(const std::string name, ReadRunId(fs));
  KEEL_ASSIGN_OR_RETURN(lock, RunLock::Take(fs, name.empty() ? "a new run" : "run " + name, clock));
  KEEL_ASSIGN_OR_RETURN(options.run_id, ReadRunId(fs));
  if (!options.run_id.empty()) return Status::Ok();
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, ListCheckpoints(fs));
  KEEL_ASSIGN_OR_RETURN(options.run_id, IdOfCheckpoints(fs, entries, options.adopt_foreign,
                                                        options.names.adopt_foreign));
  if (!options.run_id.empty()) {
    log.Warning(
        "{} is missing or empty: this run takes the id of the checkpoints there, {}, and goes on "
        "as the run that saved them",
        fs.Describe(kRunIdName), Printable(options.run_id));
  } else {
    std::random_device device;
    for (int i = 0; i < 4; ++i) options.run_id += fmt::format("{:08x}", device());
    // Whose those are that cannot be read now is said when they can: until then nothing may say
    // that they are another run's.
    if (std::any_of(entries.begin(), entries.end(),
                    [](const CatalogEntry& entry) { return !entry.manifest && !entry.link; })) {
      log.Warning(
          "{} is missing or empty, and no checkpoint there can be read to say it: none is written",
          fs.Describe(kRunIdName));
      return Status::Ok();
    }
  }
  const Status written = ReplaceFileDurably(fs, kRunIdName, options.run_id + "\n");
  if (written.code() != StatusCode::kNoSpace) return written;
  // A full disk does not stop a run: that is for the forecast of what it needs to say.
  log.Warning("{} is not written, the next start takes the id from the checkpoints: {}",
              fs.Describe(kRunIdName), written.message());
  return Status::Ok();
}

Status Checkpointer::Impl::CheckRoles() {
  if (options.role.empty()) return Status::Ok();
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, ListCheckpoints(fs));
  return CheckRole(fs, entries, options.run_id, options.role);
}

void Checkpointer::Impl::Record(const Json& json) {
  if (!leads()) return;
  Json line = {{"time", FormatUtc(clock.Wall())}};
  line.update(json);
  if (const Status status = AppendRecord(fs, kRecordsName, line); !status.ok()) {
    log.Warning("{} was not written: {}", fs.Describe(kRecordsName), status.message());
  }
}

void Checkpointer::Impl::RetractAnnounced() {
  const std::lock_guard guard(announced_mutex);
  for (const std::string& tag : announced) Retract(coordinator, tag);
  announced.clear();
}

// One save on this thread, with its messages for people.
Status Checkpointer::Impl::RunSave(const std::string& tag, Snapshot& snapshot, SaveRecord* record) {
  const Status status = saver.Run(tag, snapshot, record);
  (void)Guarded([] { return FailPoint("save.finish"); });
  if (status.ok()) {
    RetractAnnounced();
    log.Info("saved {}: {} bytes in {:.2f} s", StepDirectory(record->step), record->total_bytes,
             record->total_s);
  } else if (leads()) {
    log.Error("step {} was not saved: {}", record->step, status.message());
  }
  return status;
}

// Ends the save in flight, waiting for it.
void Checkpointer::Impl::Collect() {
  std::unique_ptr<InFlight> ended;
  if (in_flight == nullptr) return;
  if (in_flight->thread.joinable()) in_flight->thread.join();
  {
    const std::lock_guard guard(in_flight_mutex);
    ended = std::move(in_flight);
  }
  ended->record.fence_s = ended->fence_s;
  ended->record.blocked_s = ended->blocked_s + ended->fence_s;
  if (ended->status.ok()) {
    durations.push_back(ended->record.expected_s);
    if (durations.size() > kRemembered) durations.erase(durations.begin());
  }
  finished.push_back({ended->status, std::move(ended->record)});
}

Checkpointer::Checkpointer(FileSystem& fs, Coordinator& coordinator, const Clock& clock,
                           Logger& log, CheckpointOptions options)
    : impl_(std::make_unique<Impl>(fs, coordinator, clock, log, std::move(options))) {
  if (const std::vector<std::string> problems = Validate(impl_->options); !problems.empty()) {
    throw Error(StatusCode::kConfig,
                fmt::format("checkpoint options: {}", fmt::join(problems, "; ")));
  }
}

Checkpointer::~Checkpointer() {
  // On an error there is one to tell already.
  if (impl_->open && std::uncaught_exceptions() == 0)
    impl_->log.Warning("the checkpointer ends without Close");
  (void)Abandon();
  impl_->Collect();
}

Status Checkpointer::Open() {
  Impl& self = *impl_;
  // 1. The directory is this run's; how much rank 0 has to read before it may be used.
  Committer committer(self.fs, self.log);
  int64_t to_verify = 0;
  double longest_s = 0;  // of the last saves here, of earlier starts
  Result<std::string> outcome = std::string();
  if (self.leads()) {
    const Status status = Guarded([&]() -> Status {
      KEEL_RETURN_IF_ERROR(self.TakeRunDirectory());
      KEEL_RETURN_IF_ERROR(self.CheckRoles());
      KEEL_ASSIGN_OR_RETURN(to_verify, committer.BytesToVerify());
      longest_s = LongestOfLastSaves(self.fs, kRemembered);
      return Status::Ok();
    });
    WireWriter out;
    if (status.ok()) self.lock_line = self.lock->line();
    out.Text(self.options.run_id).I64(to_verify).Pod(longest_s).Text(self.lock_line);
    outcome = status.ok() ? Result<std::string>(std::move(out).Take()) : status;
  }
  outcome = BroadcastResult(self.coordinator, self.NextTag("open"), outcome, self.options.deadline);
  WireReader in(outcome.ok() ? std::string_view(*outcome) : std::string_view());
  if (outcome.ok() && !(in.Text(&self.options.run_id) && in.I64(&to_verify) && in.Pod(&longest_s) &&
                        in.Text(&self.lock_line)))
    outcome = Status(StatusCode::kInternal, "rank 0 sent a malformed run id");

  // 2. What earlier runs left behind.
  if (outcome.ok()) {
    if (self.leads()) {
      const Status tidied = Guarded([&]() -> Status {
        KEEL_RETURN_IF_ERROR(committer.CollectDebris());
        KEEL_ASSIGN_OR_RETURN(self.next_sequence, self.saver.LookAround());
        return Status::Ok();
      });
      if (!tidied.ok()) outcome = tidied;
    }
    outcome = BroadcastResult(self.coordinator, self.NextTag("tidied"), outcome,
                              WithDiskTime(self.options.deadline, to_verify));
  }
  self.open = outcome.ok();
  if (!outcome.ok()) self.lock.reset();
  if (longest_s > 0) self.durations = {longest_s};
  return outcome.status();
}

Status Checkpointer::CheckOneFolder() {
  Impl& self = *impl_;
  if (self.coordinator.world() == 1) return Status::Ok();
  const std::chrono::milliseconds grace =
      std::min(self.options.visibility_grace, self.options.deadline / 2);
  const Status mine = self.leads() ? Status::Ok() : SeeLock(self.fs, self.lock_line, grace);
  return AgreeOn(self.coordinator, self.NextTag("one_folder"), mine, self.options.deadline);
}

Result<DiskForecast> Checkpointer::Prepare(const SaveRequest& request, bool staging) {
  Impl& self = *impl_;
  if (!self.open) return Status(StatusCode::kInternal, "Checkpointer::Prepare before Open");
  KEEL_RETURN_IF_ERROR(Wait());
  Snapshot snapshot(request, staging, self.fence);
  return self.saver.Prepare(self.NextTag("prepare"), snapshot);
}

Result<SaveRecord> Checkpointer::Save(const SaveRequest& request) {
  Impl& self = *impl_;
  if (!self.open) return Status(StatusCode::kInternal, "Checkpointer::Save before Open");
  const Stopwatch watch(self.clock);
  KEEL_RETURN_IF_ERROR(Wait());
  SaveResult result;
  {
    Snapshot snapshot(request, false, self.fence);
    result.status = self.RunSave(self.NextTag("save"), snapshot, &result.record);
  }
  result.record.blocked_s = request.taken_s + watch.Elapsed();
  result.record.lost_s = result.record.blocked_s;
  if (result.status.ok()) {
    self.durations.push_back(result.record.expected_s);
    if (self.durations.size() > kRemembered) self.durations.erase(self.durations.begin());
  }
  Note(result);
  if (!result.status.ok()) return result.status;
  return std::move(result.record);
}

Status Checkpointer::StartSave(SaveRequest request) {
  Impl& self = *impl_;
  if (!self.open) return Status(StatusCode::kInternal, "Checkpointer::StartSave before Open");
  const Stopwatch watch(self.clock);
  KEEL_RETURN_IF_ERROR(Wait());
  auto save = std::make_unique<Impl::InFlight>();
  save->request = std::move(request);
  save->tag = self.NextTag("save");
  save->started = self.clock.Monotonic();
  save->snapshot = std::make_unique<Snapshot>(save->request, true, self.fence);
  Impl::InFlight* const raw = save.get();
  {
    const std::lock_guard guard(self.in_flight_mutex);
    self.in_flight = std::move(save);
  }
  const auto work = [&self, raw] {
    raw->status = Guarded([&] { return self.RunSave(raw->tag, *raw->snapshot, &raw->record); });
    raw->snapshot->ReleaseAll();
    const std::lock_guard guard(raw->ending);
    raw->done.store(true);
    raw->ended.notify_all();
  };
  try {
    raw->thread = std::thread([work] {
      RunInBackground();
      work();
    });
  } catch (const std::system_error&) {
    work();  // no thread to be had: the save happens here and now
    raw->thread = std::thread();
  }
  raw->blocked_s = raw->request.taken_s + watch.Elapsed();
  return Status::Ok();
}

void Checkpointer::PlanAfresh() { impl_->saver.PlanAfresh(); }

double Checkpointer::WaitFree(const void* begin, size_t bytes) {
  Impl& self = *impl_;
  if (self.fence.idle()) return 0.0;
  const Stopwatch watch(self.clock);
  while (!self.fence.Wait(begin, bytes, self.options.deadline)) {
    // A large piece on a slow disk takes its time; as long as something is written, it goes on.
    if (self.clock.Monotonic() - self.saver.moved() < self.options.deadline) continue;
    const std::lock_guard guard(self.in_flight_mutex);
    if (self.in_flight != nullptr) {
      Status why(StatusCode::kIo,
                 fmt::format("the save of step {} has read and written nothing for {} s in {}, and "
                             "the training waits to overwrite what it has yet to read: given up",
                             self.in_flight->request.step, self.options.deadline.count() / 1000,
                             self.fs.Describe(".")));
      self.log.Error("{}", why.message());
      self.in_flight->snapshot->Cancel(std::move(why));
    }
    self.fence.ReleaseAll();
    break;
  }
  const double waited = watch.Elapsed();
  const std::lock_guard guard(self.in_flight_mutex);
  if (self.in_flight != nullptr) self.in_flight->fence_s += waited;
  return waited;
}

bool Checkpointer::busy() const {
  const std::lock_guard guard(impl_->in_flight_mutex);
  return impl_->in_flight != nullptr && !impl_->in_flight->done.load();
}

std::vector<SaveResult> Checkpointer::Finished() {
  if (impl_->in_flight != nullptr && impl_->in_flight->done.load()) impl_->Collect();
  return std::exchange(impl_->finished, {});
}

Status Checkpointer::Wait() {
  Impl& self = *impl_;
  if (self.in_flight == nullptr) return Status::Ok();
  Impl::InFlight& save = *self.in_flight;
  std::unique_lock lock(save.ending);
  while (!save.ended.wait_for(lock, kLookAgain, [&] { return save.done.load(); })) {
    // Until its thread has begun, the saver's word is of the save before it.
    const auto still = self.clock.Monotonic() - std::max(self.saver.moved(), save.started);
    if (still <= self.saver.longest_pause()) continue;
    return Status(StatusCode::kIo,
                  fmt::format("the save of step {} has got no further for {} s: {} stands still",
                              save.request.step,
                              std::chrono::duration_cast<std::chrono::seconds>(still).count(),
                              self.fs.Describe(".")));
  }
  lock.unlock();
  self.Collect();
  return Status::Ok();
}

Status Checkpointer::WaitOnAll() {
  Impl& self = *impl_;
  const Status mine = Wait();
  return AgreeOn(self.coordinator, self.NextTag("wait"), mine,
                 self.options.deadline + self.saver.longest_pause());
}

Status Checkpointer::Abandon() {
  impl_->patient.HurryUntil(impl_->clock.Monotonic() + kLastPatience);
  impl_->open = false;
  const Status status = Wait();
  if (impl_->in_flight == nullptr) impl_->lock.reset();
  return status;
}

void Checkpointer::Cancel() {
  const std::lock_guard guard(impl_->in_flight_mutex);
  if (impl_->in_flight == nullptr) return;
  impl_->in_flight->snapshot->Cancel(
      Status(StatusCode::kCancelled,
             fmt::format("the save of step {} was cancelled", impl_->in_flight->request.step)));
}

void Checkpointer::Note(const SaveResult& result) {
  if (result.status.ok()) {
    impl_->Record(result.record.ToJson());
  } else {
    impl_->Record({{"event", "save_failed"},
                   {"step", result.record.step},
                   {"error", result.status.ToString()},
                   {"total_s", result.record.total_s}});
  }
}

void Checkpointer::Note(const Json& record) { impl_->Record(record); }

void Checkpointer::Note(const Result<std::optional<LoadRecord>>& loaded) {
  if (!loaded.ok()) {
    impl_->Record({{"event", "load_failed"}, {"error", loaded.status().ToString()}});
  } else if (loaded->has_value()) {
    impl_->Record((*loaded)->ToJson());
  }
}

const std::string& Checkpointer::run_id() const { return impl_->options.run_id; }

int64_t Checkpointer::next_sequence() const { return impl_->next_sequence; }

double Checkpointer::expected_save_s() const {
  double longest = 0;
  for (const double s : impl_->durations) longest = std::max(longest, s);
  return longest;
}

int64_t Checkpointer::staging_bytes() const { return impl_->saver.staging_bytes(); }

Result<std::optional<LoadRecord>> Checkpointer::Load(const LoadRequest& request) {
  Impl& self = *impl_;
  Loader loader(self.fs, self.coordinator, self.log,
                {self.options.deadline,
                 self.options.visibility_grace,
                 self.options.load_threads,
                 {self.options.load_round_bytes, self.options.load_round_bytes},
                 self.open && !self.options.adopt_foreign ? self.options.run_id : std::string(),
                 self.options.names});
  Result<std::optional<LoadRecord>> loaded = loader.Load(self.NextTag("load"), request);
  {
    const std::lock_guard guard(self.announced_mutex);
    self.announced.insert(self.announced.end(), loader.announced().begin(),
                          loader.announced().end());
  }
  if (self.open) Note(loaded);
  if (!loaded.ok()) {
    if (self.leads()) self.log.Error("nothing was loaded: {}", loaded.status().message());
    return loaded;
  }
  if (!loaded->has_value()) return loaded;
  const LoadRecord& record = **loaded;
  if (self.open && self.leads()) {
    for (const SkippedCheckpoint& one : record.skipped) self.saver.NoteDamaged(one.directory);
  }
  self.log.Info("loaded {}: this rank read {} bytes, in {:.2f} s", record.directory, record.bytes,
                record.total_s);
  return loaded;
}

Status Checkpointer::Close(bool settle) {
  Impl& self = *impl_;
  if (!self.open) return Status::Ok();
  self.open = false;
  // All ranks are done with the directory before its lock is released.
  const Status status = WaitOnAll();
  if (status.ok()) self.RetractAnnounced();
  if (status.ok() && settle && self.leads()) {
    for (const int64_t step : self.saver.Settle()) {
      self.log.Info("removed {}, which an earlier save did not come to", StepDirectory(step));
      Note(Json{{"event", "removed"}, {"step", step}});
    }
  }
  if (self.in_flight == nullptr) self.lock.reset();
  return status;
}

}  // namespace keel::checkpoint
