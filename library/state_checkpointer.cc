#include "library/state_checkpointer.h"

#include <fmt/format.h>

#include <cmath>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "checkpoint/base/copy_check.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/format/names.h"
#include "checkpoint/load/load_candidates.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/run_identity.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/guarded.h"
#include "common/process/signal_handler.h"
#include "common/tensors/transfer_check.h"
#include "common/wire.h"
#include "library/checkpointer_options.h"
#include "library/state_check.h"
#include "library/state_description.h"
#include "library/state_tables.h"
#include "library/store_coordinator.h"

namespace keel::library {

using checkpoint::Checkpointer;

namespace {

constexpr std::chrono::milliseconds kLookAgain{1};
constexpr int kMostVanished = 8;                 // of a restore beside a run that keeps one
constexpr int64_t kMostStep = int64_t{1} << 62;  // of a manifest

struct Peers {
  std::unique_ptr<checkpoint::LocalCoordinatorHub> alone;
  std::unique_ptr<StoreCoordinator> over_store;
};

Result<Peers> Meet(const CheckpointerOptions& options) {
  Peers peers;
  if (options.world == 1) {
    peers.alone = std::make_unique<checkpoint::LocalCoordinatorHub>(1);
    return peers;
  }
  KEEL_ASSIGN_OR_RETURN(parallel::StoreAddress address, ParseStoreAddress(options.store));
  address.secret = options.store_secret;
  IgnoreBrokenPipes();
  KEEL_ASSIGN_OR_RETURN(
      std::unique_ptr<parallel::StoreClient> client,
      parallel::StoreClient::Connect(address, options.deadline, options.deadline));
  peers.over_store = std::make_unique<StoreCoordinator>(
      std::move(client), fmt::format("keel_checkpoint/{}/", options.job), options.rank,
      options.world);
  return peers;
}

}  // namespace

struct SaveHandle::Save {
  int64_t step = 0;
  std::weak_ptr<StateCheckpointer::Impl> owner;
  std::mutex mutex;  // guards what follows
  bool ended = false;
  bool asked = false;  // somebody has heard of its end
  Status status;
  double seconds = 0;
  double blocked_s = 0;
};

struct StateCheckpointer::Impl {
  Impl(std::string folder_in, CheckpointerOptions options_in, std::unique_ptr<FileSystem> files_in,
       Peers peers_in)
      : folder(std::move(folder_in)),
        options(std::move(options_in)),
        log(LogOptionsOf(options)),
        files(std::move(files_in)),
        peers(std::move(peers_in)),
        coordinator(peers.alone ? peers.alone->rank(0)
                                : static_cast<checkpoint::Coordinator&>(*peers.over_store)),
        checkpointer(std::make_unique<Checkpointer>(*files, coordinator, SystemClock(), log,
                                                    OptionsOf(options))) {}

  using Saves = std::deque<std::shared_ptr<SaveHandle::Save>>;

  const std::string folder;
  const CheckpointerOptions options;
  Logger log;
  std::unique_ptr<FileSystem> files;
  Peers peers;
  checkpoint::Coordinator& coordinator;
  std::unique_ptr<Checkpointer> checkpointer;
  Saves in_flight;  // those of which the checkpointer has not told the end, in order
  Saves failed;     // that nobody has asked about yet
  bool saved = false;
  bool closed = false;
  int64_t uses = 0;      // makes tags unique
  uint64_t shape = 0;    // of this rank's state in the last save that began
  std::mutex end_mutex;  // guards `ending`, since handles ask on other threads
  bool ending = false;   // the checkpointer is no more, or going

  bool Busy() {
    const std::lock_guard guard(end_mutex);
    return ending || checkpointer->busy();
  }

  // Of a call that all ranks make: a wait in vain for one that does not, in words for its caller.
  Status NameWait(std::string_view what, const Status& status) const {
    if (status.code() != StatusCode::kDeadlineExceeded) return status;
    return {status.code(),
            fmt::format("{} on rank {} of {} waited in vain for the other ranks, all of which have "
                        "to call it, in the same order ({}). A checkpointer of one rank alone is "
                        "made with rank=0, world=1",
                        what, options.rank, options.world, status.message())};
  }
  Status CheckOpen(const char* what) const {
    if (closed)
      return Status(StatusCode::kUsage, fmt::format("{}: the checkpointer is closed", what));
    return Status::Ok();
  }
  // None that is not finite: it is neither better nor worse than another.
  std::optional<double> MetricOf(int64_t step, const SaveOptions& save);
  Result<checkpoint::SaveRequest> RequestOf(int64_t step, std::span<const StateTensor> state,
                                            const SaveOptions& save);
  // That all ranks have one of this step; rank 0's gets what all know. Each hears which parts
  // several have. Returns whether any rank's state has another shape than in the last save.
  Result<bool> AgreeOnSave(int64_t step, const SaveOptions& save,
                           Result<checkpoint::SaveRequest>* request);
  // That all ranks load this, and that what it has beside tensors has a place on one of them.
  Status AgreeOnLoad(const StateDescription& what, const Status& fits,
                     const std::vector<std::string>& unplaced);
  // Saves that have ended: their line in checkpoints.jsonl, and word to their handles.
  void Collect();
  Status WaitFor(const std::shared_ptr<SaveHandle::Save>& save);
  Status Close();
  Status Abandon();
  // The first failure that nobody has asked about.
  Status Unheard();
  std::string RunId() const { return options.read_only ? "" : checkpointer->run_id(); }
  using Damaged = std::vector<checkpoint::SkippedCheckpoint>;
  Result<std::string> DescribeHere(std::optional<int64_t> step, const Damaged& damaged);
  // Collective. Passes over the `damaged`.
  Result<std::optional<StateDescription>> Describe(std::optional<int64_t> step,
                                                   const Damaged& damaged);
};

std::optional<double> StateCheckpointer::Impl::MetricOf(int64_t step, const SaveOptions& save) {
  if (!save.metric || std::isfinite(*save.metric)) return save.metric;
  if (options.rank == 0)
    log.Warning("the metric of step {} is {}: its checkpoint counts as one without", step,
                *save.metric);
  return std::nullopt;
}

Result<checkpoint::SaveRequest> StateCheckpointer::Impl::RequestOf(
    int64_t step, std::span<const StateTensor> state, const SaveOptions& save) {
  if (step < 0 || step > kMostStep)
    return Status(StatusCode::kInvalidData, fmt::format("step is {}, expected 0 to 2^62", step));
  if (state.empty() && options.world == 1)
    return Status(StatusCode::kInvalidData, "the state has no tensors: there is nothing to save");
  checkpoint::SaveRequest request;
  request.step = step;
  request.contents = {.model = true, .optimizer = false, .extra = true, .hf_model = false};
  checkpoint::RoleState role;
  role.name = std::string(kRole);
  std::vector<StateTensor> given(state.begin(), state.end());
  if (options.rank != 0)
    std::erase_if(given, [&](const auto& one) { return MatchesAny(save.from_rank_0, one.name); });
  KEEL_ASSIGN_OR_RETURN(role.model, TableOf(given, options.rank, false));
  role.model_stable = save.stable;
  request.roles.push_back(std::move(role));
  if (options.rank == 0) request.documents.push_back({std::string(kExtraName), save.extra, true});
  request.layout = {{"world", options.world}};
  request.metric = MetricOf(step, save);
  return request;
}

Result<bool> StateCheckpointer::Impl::AgreeOnSave(int64_t step, const SaveOptions& save,
                                                  Result<checkpoint::SaveRequest>* request) {
  const std::string tag = fmt::format("library/save/{}", ++uses);
  // 1. Every rank saves this step, and what it has beside tensors goes with what the others have.
  Result<std::string> mine = request->status();
  if (request->ok()) {
    WireWriter out;
    const ShardTable& table = (*request)->roles.front().model;
    out.I64(step).U64(table.Fingerprint() != shape ? 1 : 0).Text(checkpoint::NameParts(table));
    out.Text(save.merge ? save.extra : std::string());
    mine = std::move(out).Take();
  }
  const auto all = checkpoint::GatherResults(coordinator, tag, mine, options.deadline);
  const std::string what = fmt::format("the save of step {}", step);
  if (options.rank != 0) KEEL_RETURN_IF_ERROR(all.status());  // it could not be told
  Result<std::string> shared = std::string();
  if (options.rank == 0) {
    const Status merged = Guarded([&]() -> Status {
      KEEL_RETURN_IF_ERROR(NameWait(what, all.status()));
      std::vector<std::string> parts(all->size()), extras(all->size());
      uint64_t any_changed = 0;
      for (size_t rank = 0; rank < all->size(); ++rank) {
        int64_t its = 0;
        uint64_t changed = 0;
        WireReader in((*all)[rank]);
        if (!in.I64(&its) || !in.U64(&changed) || !in.Text(&parts[rank]) ||
            !in.Text(&extras[rank]) || !in.AtEnd())
          return {StatusCode::kInternal, fmt::format("rank {} sent a malformed word", rank)};
        if (its != step)
          return {StatusCode::kInvalidData,
                  fmt::format("nothing was saved: rank {} saves step {}, and rank 0 step {}", rank,
                              its, step)};
        any_changed |= changed;
      }
      KEEL_ASSIGN_OR_RETURN(const std::set<checkpoint::PartKey> found,
                            checkpoint::SharedParts(parts));
      if (save.merge) {
        KEEL_ASSIGN_OR_RETURN((*request)->documents.front().content, save.merge(extras));
      }
      WireWriter out;
      out.U64(any_changed).Text(checkpoint::EncodeParts(found));
      shared = std::move(out).Take();
      return Status::Ok();
    });
    if (!merged.ok()) shared = merged;
  }
  shared = checkpoint::BroadcastResult(coordinator, tag, shared, options.deadline);
  KEEL_RETURN_IF_ERROR(options.rank == 0 ? shared.status() : NameWait(what, shared.status()));
  // 2. The save compares what several have.
  uint64_t changed = 0;
  std::string parts;
  WireReader in(*shared);
  if (!in.U64(&changed) || !in.Text(&parts) || !in.AtEnd())
    return Status(StatusCode::kInternal, "rank 0 sent a malformed word of a save");
  KEEL_ASSIGN_OR_RETURN((*request)->roles.front().shared, checkpoint::DecodeParts(parts));
  return changed != 0;
}

Status StateCheckpointer::Impl::AgreeOnLoad(const StateDescription& what, const Status& fits,
                                            const std::vector<std::string>& unplaced) {
  const std::string tag = fmt::format("library/load/{}", ++uses);
  Result<std::string> mine = fits;
  if (fits.ok()) mine = WireWriter().Texts(unplaced).bytes();
  const auto all = checkpoint::GatherResults(coordinator, tag, mine, options.deadline);
  if (options.rank != 0) KEEL_RETURN_IF_ERROR(all.status());  // it could not be told
  Result<std::string> verdict = std::string();
  if (options.rank == 0) {
    const Status placed =
        Guarded([&] { return all.ok() ? CheckPlaced(what, *all) : all.status(); });
    if (!placed.ok()) verdict = placed;
  }
  return checkpoint::BroadcastResult(coordinator, tag, verdict, options.deadline).status();
}

void StateCheckpointer::Impl::Collect() {
  for (const checkpoint::SaveResult& result : checkpointer->Finished()) {
    checkpointer->Note(result);
    if (in_flight.empty()) continue;
    const std::shared_ptr<SaveHandle::Save> save = std::move(in_flight.front());
    in_flight.pop_front();
    if (!result.status.ok()) failed.push_back(save);
    const std::lock_guard guard(save->mutex);
    save->ended = true;
    save->status = result.status;
    save->seconds = result.record.total_s;
    save->blocked_s = result.record.blocked_s;
  }
}

Status StateCheckpointer::Impl::WaitFor(const std::shared_ptr<SaveHandle::Save>& save) {
  for (;;) {
    Collect();
    {
      const std::lock_guard guard(save->mutex);
      if (save->ended) {
        save->asked = true;
        return save->status;
      }
    }
    KEEL_RETURN_IF_ERROR(checkpointer->Wait());
  }
}

Status StateCheckpointer::Impl::Unheard() {
  for (const auto& save : std::exchange(failed, {})) {
    const std::lock_guard guard(save->mutex);
    if (!save->asked)
      return save->status.WithContext(fmt::format("the save of step {}", save->step));
  }
  return Status::Ok();
}

Status StateCheckpointer::Impl::Close() {
  if (std::exchange(closed, true)) return Status::Ok();
  const Status ended = checkpointer->Close().WithContext("close");
  Collect();
  const Status unheard = Unheard();
  return ended.ok() ? unheard : ended;
}

Status StateCheckpointer::Impl::Abandon() {
  if (std::exchange(closed, true)) return Status::Ok();
  const Status ended = checkpointer->Abandon();
  Collect();
  const Status unheard = Unheard();
  return ended.ok() ? unheard : ended;
}

int64_t SaveHandle::step() const { return save_->step; }

bool SaveHandle::done() const {
  {
    const std::lock_guard guard(save_->mutex);
    if (save_->ended) return true;
  }
  const auto owner = save_->owner.lock();
  return owner == nullptr || !owner->Busy();
}

bool SaveHandle::WaitFor(std::chrono::milliseconds most) const {
  const auto until = std::chrono::steady_clock::now() + most;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kLookAgain);
  }
  return true;
}

Status SaveHandle::Wait() const {
  if (const auto owner = save_->owner.lock()) return owner->WaitFor(save_);
  const std::lock_guard guard(save_->mutex);
  return save_->status;
}

double SaveHandle::seconds() const {
  const std::lock_guard guard(save_->mutex);
  return save_->seconds;
}

double SaveHandle::blocked_seconds() const {
  const std::lock_guard guard(save_->mutex);
  return save_->blocked_s;
}

Result<std::unique_ptr<StateCheckpointer>> StateCheckpointer::Open(const std::string& folder,
                                                                   CheckpointerOptions options) {
  try {
    KEEL_RETURN_IF_ERROR(CheckOptions(options));
    KEEL_ASSIGN_OR_RETURN(std::unique_ptr<FileSystem> files,
                          OpenPosixFileSystem(folder, !options.read_only));
    KEEL_ASSIGN_OR_RETURN(Peers peers, Meet(options));
    const bool owns = !options.read_only;
    auto impl =
        std::make_shared<Impl>(folder, std::move(options), std::move(files), std::move(peers));
    if (impl->options.world > 1)
      KEEL_RETURN_IF_ERROR(
          impl->NameWait(fmt::format("the opening of {}", folder),
                         checkpoint::AgreeOn(impl->coordinator, "library/open", Status::Ok(),
                                             impl->options.deadline)));
    if (owns) {
      const Status opened = impl->checkpointer->Open();
      if (opened.code() == StatusCode::kIo)
        return Status(
            opened.code(),
            opened.message() + "; where it is only to be read, read_only=True does without");
      KEEL_RETURN_IF_ERROR(opened);
      KEEL_RETURN_IF_ERROR(impl->checkpointer->CheckOneFolder());
    }
    return std::unique_ptr<StateCheckpointer>(new StateCheckpointer(std::move(impl)));
  } catch (const std::exception& error) {
    return StatusOf(error);
  }
}

StateCheckpointer::~StateCheckpointer() {
  if (impl_ == nullptr) return;
  // Nothing collective here: peers may be gone.
  const Status status = impl_->options.world > 1 ? impl_->Abandon() : impl_->Close();
  if (!status.ok()) impl_->log.Error("{}", status.message());
  {
    const std::lock_guard guard(impl_->end_mutex);
    impl_->ending = true;
  }
  // Not before its last save has ended, however long that takes.
  impl_->checkpointer.reset();
  for (const auto& save : std::exchange(impl_->in_flight, {})) {
    const std::lock_guard guard(save->mutex);
    save->ended = true;
    save->status = status.ok() ? Status(StatusCode::kInternal, "its end was not told") : status;
  }
}

Result<SaveHandle> StateCheckpointer::SaveAsync(int64_t step, std::span<const StateTensor> state,
                                                const SaveOptions& options) {
  Impl& self = *impl_;
  KEEL_RETURN_IF_ERROR(self.CheckOpen("SaveAsync"));
  if (self.options.read_only)
    return Status(StatusCode::kUsage, "SaveAsync: the checkpointer was opened to read only");
  const Stopwatch watch;
  // What one rank alone finds wrong must not leave the others in a save without it.
  Result<checkpoint::SaveRequest> request = Status(StatusCode::kInvalidData, options.refused);
  if (options.refused.empty()) request = self.RequestOf(step, state, options);
  if (self.options.world > 1) {
    KEEL_ASSIGN_OR_RETURN(const bool changed, self.AgreeOnSave(step, options, &request));
    if (std::exchange(self.saved, true)) KEEL_RETURN_IF_ERROR(self.checkpointer->WaitOnAll());
    if (changed) {
      self.shape = request->roles.front().model.Fingerprint();
      self.checkpointer->PlanAfresh();
    }
  }
  KEEL_RETURN_IF_ERROR(request.status());
  request->taken_s = watch.Elapsed();
  KEEL_RETURN_IF_ERROR(self.checkpointer->StartSave(std::move(request).value()));
  auto save = std::make_shared<SaveHandle::Save>();
  save->step = step;
  save->owner = impl_;
  self.in_flight.push_back(save);
  self.Collect();  // of the one before, or of this one, if it has ended already
  if (options.snapshot == Snapshot::kCopied && !options.stable) (void)WaitCopied();
  return SaveHandle(std::move(save));
}

Status StateCheckpointer::Save(int64_t step, std::span<const StateTensor> state,
                               const SaveOptions& options) {
  SaveOptions until_written = options;
  until_written.stable = true;  // nothing overwrites it while this waits
  KEEL_ASSIGN_OR_RETURN(const SaveHandle save, SaveAsync(step, state, until_written));
  return save.Wait();
}

double StateCheckpointer::WaitCopied(const void* begin, size_t bytes) {
  return impl_->checkpointer->WaitFree(begin, bytes);
}

void StateCheckpointer::Cancel() { impl_->checkpointer->Cancel(); }

bool StateCheckpointer::busy() const { return impl_->checkpointer->busy(); }

Result<std::vector<int64_t>> StateCheckpointer::Steps() const {
  KEEL_ASSIGN_OR_RETURN(const std::vector<checkpoint::CatalogEntry> entries,
                        checkpoint::ListCheckpoints(*impl_->files));
  const std::string run = impl_->options.adopt_foreign ? "" : impl_->RunId();
  std::vector<int64_t> steps;
  for (const checkpoint::CatalogEntry& entry : entries) {
    if (!entry.manifest) continue;
    if (run.empty() || !checkpoint::IsForeign(*entry.manifest, run)) steps.push_back(entry.step);
  }
  return steps;
}

Result<std::optional<int64_t>> StateCheckpointer::LatestStep() const {
  KEEL_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, Steps());
  if (steps.empty()) return std::optional<int64_t>();
  return std::optional<int64_t>(steps.front());
}

// Rank 0: the encoded description; "" when there is no checkpoint.
Result<std::string> StateCheckpointer::Impl::DescribeHere(std::optional<int64_t> step,
                                                          const Damaged& damaged) {
  checkpoint::LoadRequest request;
  if (step) request.resume_path = checkpoint::StepDirectory(*step);
  checkpoint::LoadCandidates candidates(*files, log, request,
                                        options.adopt_foreign ? std::string() : RunId(),
                                        OptionsOf(options).names);
  std::vector<checkpoint::SkippedCheckpoint> skipped = damaged;  // which are not listed again
  KEEL_RETURN_IF_ERROR(candidates.List(&skipped));
  while (true) {
    const auto reader = candidates.Next(&skipped);
    if (!reader.ok()) return step ? NameMissing(*files, *step, reader.status()) : reader.status();
    if (!*reader) return std::string();
    Result<std::string> description = DescribeCheckpoint(*files, **reader, skipped);
    const StatusCode code = description.status().code();
    if (step || (code != StatusCode::kDataLoss && code != StatusCode::kIo)) return description;
    log.Error("{} cannot be loaded: {}", files->Describe((*reader)->directory()),
              description.status().message());
    skipped.push_back({(*reader)->directory(), description.status().message()});
  }
}

Result<std::optional<StateDescription>> StateCheckpointer::Impl::Describe(
    std::optional<int64_t> step, const Damaged& damaged) {
  Result<std::string> text = std::string();
  if (options.rank == 0) {
    const Status made = Guarded([&]() -> Status {
      KEEL_ASSIGN_OR_RETURN(text, DescribeHere(step, damaged));
      return Status::Ok();
    });
    if (!made.ok()) text = made;
  }
  text = checkpoint::BroadcastResult(coordinator, fmt::format("library/describe/{}", ++uses), text,
                                     options.deadline);
  KEEL_RETURN_IF_ERROR(NameWait("the load", text.status()));
  if (text->empty()) return std::optional<StateDescription>();
  KEEL_ASSIGN_OR_RETURN(StateDescription what, DecodeDescription(*text));
  return std::optional<StateDescription>(std::move(what));
}

Result<std::optional<StateDescription>> StateCheckpointer::Describe(std::optional<int64_t> step) {
  KEEL_RETURN_IF_ERROR(impl_->CheckOpen("Describe"));
  return impl_->Describe(step, {});
}

// The load of a named step does not pass over it: whether the next older one holds the same tensors
// is not known, so that places are made for each by itself.
Result<std::optional<LoadedState>> StateCheckpointer::Restore(const Places& places,
                                                              std::optional<int64_t> step) {
  Impl& self = *impl_;
  KEEL_RETURN_IF_ERROR(self.CheckOpen("Restore"));
  Impl::Damaged damaged;
  for (int vanished = 0;;) {
    KEEL_ASSIGN_OR_RETURN(const std::optional<StateDescription> saved,
                          self.Describe(step, damaged));
    if (!saved) return std::optional<LoadedState>();
    Result<std::vector<StateTensor>> state = std::vector<StateTensor>();
    Status made = Guarded([&] {
      state = places(*saved);
      return state.status();
    });
    if (self.options.world > 1)
      made = checkpoint::AgreeOn(self.coordinator, fmt::format("library/restore/{}", ++self.uses),
                                 made, self.options.deadline);
    KEEL_RETURN_IF_ERROR(made);
    Result<std::optional<LoadedState>> loaded =
        Load(*state, {.step = saved->step, .in_place = true, .scratch = true});
    const StatusCode code = loaded.status().code();
    if (loaded.ok() && *loaded) (*loaded)->skipped = saved->skipped;
    if (loaded.ok() || step) return loaded;
    if (code == StatusCode::kDataLoss) {
      damaged.push_back({saved->directory, loaded.status().message()});
    } else if (code != StatusCode::kNotFound || ++vanished > kMostVanished) {
      return loaded;  // whoever saves there may remove one, once there is something newer
    }
  }
}

Result<std::optional<LoadedState>> StateCheckpointer::Load(std::span<const StateTensor> state,
                                                           const LoadOptions& options) {
  Impl& self = *impl_;
  KEEL_RETURN_IF_ERROR(self.CheckOpen("Load"));
  const Stopwatch watch;
  const bool alone = self.options.world == 1;
  KEEL_ASSIGN_OR_RETURN(const std::optional<StateDescription> saved, Describe(options.step));
  if (!saved) return std::optional<LoadedState>();
  Result<ShardTable> table = TableOf(state, self.options.rank, true);
  Status fits =
      options.refused.empty() ? table.status() : Status(StatusCode::kInvalidData, options.refused);
  if (fits.ok()) fits = CheckHolds(*saved, *table, options.allow_missing, alone);
  if (fits.ok() && options.step.value_or(saved->step) != saved->step)
    fits = Status(StatusCode::kInvalidData,
                  fmt::format("nothing was loaded: rank {} is to load step {}, and rank 0 step {}",
                              self.options.rank, *options.step, saved->step));
  if (!alone) fits = self.NameWait("the load", self.AgreeOnLoad(*saved, fits, options.unplaced));
  KEEL_RETURN_IF_ERROR(fits);
  checkpoint::LoadRequest request;
  if (options.step) request.resume_path = checkpoint::StepDirectory(*options.step);
  request.contents = {.model = true, .optimizer = false, .extra = true, .hf_model = false};
  checkpoint::RoleState role;
  role.name = std::string(kRole);
  role.model = std::move(table).value();
  request.roles.push_back(std::move(role));
  request.allow_missing = options.allow_missing;
  request.in_place = options.in_place;
  request.scratch = options.scratch;
  KEEL_ASSIGN_OR_RETURN(std::optional<checkpoint::LoadRecord> record,
                        self.checkpointer->Load(request));
  if (!record) return std::optional<LoadedState>();
  LoadedState loaded;
  loaded.step = record->step;
  loaded.directory = record->directory;
  loaded.bytes = record->bytes;
  loaded.seconds = watch.Elapsed();
  const auto extra = record->documents.find(std::string(kExtraName));
  if (extra != record->documents.end()) loaded.extra = extra->second;
  for (const checkpoint::SkippedCheckpoint& one : record->skipped)
    loaded.skipped.push_back(one.directory + ": " + one.reason);
  return std::optional<LoadedState>(std::move(loaded));
}

Status StateCheckpointer::Close() { return impl_->Close(); }
Status StateCheckpointer::Abandon() { return impl_->Abandon(); }

const std::string& StateCheckpointer::folder() const { return impl_->folder; }
int StateCheckpointer::rank() const { return impl_->options.rank; }
int StateCheckpointer::world() const { return impl_->options.world; }

}  // namespace keel::library
