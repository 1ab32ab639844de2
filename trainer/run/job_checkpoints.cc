// Job's run folder: where a run begins, and how its steps are saved.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/format/records.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/run_identity.h"
#include "common/text.h"
#include "trainer/run/group_channel.h"
#include "trainer/run/job.h"

namespace keel::trainer {

void Job::OpenCheckpoints() {
  fs_ = ValueOrThrow(OpenPosixFileSystem(config().trainer.default_local_dir, true));
  checkpoint::CheckpointOptions options;
  if (config().trainer.max_ckpts_to_keep)
    options.max_ckpts_to_keep = static_cast<int>(*config().trainer.max_ckpts_to_keep);
  options.remove_previous_ckpt_in_save = config().trainer.remove_previous_ckpt_in_save;
  options.retention.keep_best = static_cast<int>(config().trainer.keep_best_ckpts);
  options.retention.higher_is_better = config().trainer.keep_best_mode == BestMode::kMax;
  options.retention.keep_every = config().trainer.keep_every_steps;
  options.adopt_foreign = config().trainer.adopt_foreign_checkpoints;
  options.io = NameOf(actor().checkpoint.io);
  options.dist_ckpt_workers = static_cast<int>(actor().checkpoint.dist_ckpt_workers);
  options.host_memory_cap = actor().checkpoint.staging.host_memory_cap;
  if (options.host_memory_cap && !device_.is_cpu()) {
    throw Error(
        StatusCode::kConfig,
        fmt::format("actor_rollout_ref.actor.checkpoint.staging.host_memory_cap: the state is on "
                    "{}, and a save needs all of it in pinned host memory: leave it null",
                    device_.str()));
  }
  if (actor().checkpoint.async_save && options.dist_ckpt_workers > 1 && rank0()) {
    log_.Warning(
        "actor_rollout_ref.actor.checkpoint.dist_ckpt_workers: {} threads a rank write beside "
        "the training and take its cores; 1 is enough for most disks",
        options.dist_ckpt_workers);
  }
  options.deadline = deadline_;
  options.load_threads = static_cast<int>(std::max<int64_t>(1, config().trainer.threads_per_rank));
  options_ = options;
  checkpointer_ =
      std::make_unique<checkpoint::Checkpointer>(*fs_, *coordinator_, SystemClock(), log_, options);
  ThrowIfError(checkpointer_->Open());
  if (config().trainer.save_freq > 0) CheckOneFolder();
  resume_mode_ = ResumeMode();
  WarnOfLosses();
  saves_ = std::make_unique<SaveSession>(*checkpointer_, actor().checkpoint, log_);
}

// Each rank writes its part of a save under the path that it was given. Where that leads to another
// folder than rank 0's, as on nodes that have not mounted it, no save can ever be whole.
void Job::CheckOneFolder() {
  if (inputs_.env.world_size == 1) return;
  Result<std::string> mine = checkpoint::ReadRunId(*fs_);
  const std::string id = ValueOrThrow(checkpoint::Broadcast(
      *coordinator_, "run_folder", mine.ok() ? *mine : std::string(), deadline_));
  // Of a full disk there may be none; then the first save says what is wrong.
  if (id.empty()) return;
  // Network file systems show new files late.
  const auto until =
      std::chrono::steady_clock::now() + std::min(options_.visibility_grace, deadline_ / 2);
  while ((!mine.ok() || mine->empty()) && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    mine = checkpoint::ReadRunId(*fs_);
  }
  Status same;
  if (!mine.ok() || *mine != id) {
    same = Status(
        StatusCode::kConfig,
        fmt::format("trainer.default_local_dir: {} is not the folder that rank 0 saves to: its run "
                    "has the id {}, here {}; mount that folder on every node, or give each node "
                    "its own path to it",
                    fs_->Describe("."), Printable(id),
                    !mine.ok()      ? mine.status().message()
                    : mine->empty() ? "there is none"
                                    : "is " + Printable(*mine)));
  }
  ThrowIfError(checkpoint::AgreeOn(*coordinator_, "run_folder_seen", same, deadline_));
}

// Where to begin is said of the job. Its launcher's restarts repeat it, and would lose what was
// trained since: what has been committed since the job began is told by the commits themselves.
ResumeKind Job::ResumeMode() {
  const ResumeKind configured = config().trainer.resume_mode;
  const std::string wanted(NameOf(configured));
  if (configured == ResumeKind::kAuto) {
    checkpointer_->Note(Json{{"event", "begin"}, {"resume_mode", wanted}});
    return configured;
  }
  const int64_t next = checkpointer_->next_sequence();
  const auto decide = [&]() -> Result<std::string> {
    if (inputs_.env.restart_count == 0) return wanted;
    int64_t begun_at = next;
    for (const Json& record : checkpoint::ReadRecords(*fs_)) {
      const Result<int64_t> sequence = GetInt(record, "next_sequence", "");
      if (sequence.ok()) begun_at = *sequence;
    }
    KEEL_ASSIGN_OR_RETURN(const auto there, checkpoint::ListCheckpoints(*fs_));
    if (checkpoint::NewestSequence(there) >= begun_at)
      return std::string(NameOf(ResumeKind::kAuto));
    for (const checkpoint::CatalogEntry& entry : there) {
      if (checkpoint::IsUnread(entry)) {
        return entry.status.WithContext(
            "whether this job has saved anything since it began cannot be told");
      }
    }
    return wanted;
  };
  const std::string mode = ValueOrThrow(checkpoint::BroadcastResult(
      *coordinator_, "resume_mode", rank0() ? decide() : std::string(), deadline_));
  if (mode == wanted) {
    checkpointer_->Note(Json{{"event", "begin"}, {"resume_mode", wanted}, {"next_sequence", next}});
  } else if (rank0()) {
    log_.Warning(
        "restart {} of this job goes on from the newest checkpoint that it has saved: "
        "trainer.resume_mode {} is for its beginning",
        inputs_.env.restart_count, wanted);
  }
  return ParseName<ResumeKind>(mode).value_or(configured);
}

// Checkpoints that give no weights back are what was asked for, but seldom what was meant.
void Job::WarnOfLosses() const {
  if (!rank0()) return;
  const auto& section = actor().checkpoint;
  const auto saved = checkpoint::Contents::Of(section.save_contents);
  if (config().trainer.save_freq > 0 && !saved.model && !saved.hf_model) {
    log_.Warning(
        "actor_rollout_ref.actor.checkpoint.save_contents has neither model nor hf_model: "
        "the weights of this run are in none of its checkpoints");
  }
}

// Nor is a run from the start, or from an earlier step, in a folder where another has gone further.
void Job::WarnOfLaterSteps(const std::optional<checkpoint::LoadRecord>& loaded) const {
  if (!rank0()) return;
  const auto passed_over = [&](const std::string& directory) {
    if (!loaded) return false;
    const auto& skipped = loaded->skipped;
    return std::any_of(skipped.begin(), skipped.end(),
                       [&](const auto& one) { return one.directory == directory; });
  };
  const auto found = checkpoint::ListCheckpoints(*fs_);
  if (!found.ok()) return;
  int later = 0;
  std::string one;
  for (const checkpoint::CatalogEntry& entry : *found) {
    if (!entry.manifest || entry.step <= state.step || passed_over(entry.directory)) continue;
    // What is of another run has been spoken of, and is neither replaced nor removed.
    if (entry.manifest->run_id != checkpointer_->run_id()) continue;
    if (later++ == 0) one = entry.directory;
  }
  if (later == 0) return;
  log_.Warning(
      "trainer.resume_mode is {}, and {} holds {} checkpoints of later steps, among them {}: this "
      "run {}, its saves replace those of the same steps, and its retention, if any, removes the "
      "others; a new run is safer in a trainer.default_local_dir of its own",
      NameOf(resume_mode_), config().trainer.default_local_dir, later, one,
      state.step == 0 ? std::string("begins anew")
                      : fmt::format("goes on from step {}", state.step));
}

// What the first save would otherwise pay for, and whether the disk will hold what is to be kept.
void Job::PrepareSaves(int64_t total_steps) {
  const checkpoint::DiskForecast disk =
      ValueOrThrow(checkpointer_->Prepare(snapshot_(), actor().checkpoint.async_save));
  if (rank0()) {
    log_.Info("a checkpoint takes {:.1f} MiB; staging memory {:.1f} MiB a rank",
              static_cast<double>(disk.checkpoint_bytes) / (1 << 20),
              static_cast<double>(checkpointer_->staging_bytes()) / (1 << 20));
  }
  if (rank0()) WarnOfGrowth(disk, total_steps);
  if (disk.needed_bytes <= disk.free_bytes) return;
  const std::string text = fmt::format(
      "{}: checkpoints of {} bytes will need {} more bytes, {} are free: make room, set "
      "trainer.max_ckpts_to_keep, or set trainer.disk_check to warn",
      config().trainer.default_local_dir, disk.checkpoint_bytes, disk.needed_bytes,
      disk.free_bytes);
  if (config().trainer.disk_check == DiskCheck::kRefuse) throw Error(StatusCode::kNoSpace, text);
  if (rank0()) log_.Warning("{}", text);
}

// What retention never removes adds up over the steps to come.
void Job::WarnOfGrowth(const checkpoint::DiskForecast& disk, int64_t total_steps) const {
  const auto& trainer = config().trainer;
  const bool all = !trainer.max_ckpts_to_keep && !trainer.remove_previous_ckpt_in_save;
  const int64_t every = all ? trainer.save_freq : trainer.keep_every_steps;
  if (every <= 0) return;
  const int64_t to_come = (total_steps + every - 1) / every - state.step / every;
  const int64_t bytes = to_come * disk.checkpoint_bytes + (all ? 0 : disk.needed_bytes);
  if (bytes <= disk.free_bytes) return;
  log_.Warning("{}: {}: what is to come takes {} bytes, {} are free", trainer.default_local_dir,
               all ? "trainer.max_ckpts_to_keep is null, which keeps all"
                   : "trainer.keep_every_steps keeps checkpoints for good",
               bytes, disk.free_bytes);
}

std::optional<checkpoint::LoadRecord> Job::Load(checkpoint::LoadRequest request) {
  if (resume_mode_ == ResumeKind::kDisable) return std::nullopt;
  Phase("load");
  request.in_place = true;  // a load that fails ends this process
  // The ranks hand each other what they read, as host memory.
  std::unique_ptr<parallel::ProcessGroup> host_group;
  if (!device_.is_cpu() && inputs_.env.world_size > 1) {
    parallel::GroupOptions options;
    options.name = "load";
    for (int r = 0; r < inputs_.env.world_size; ++r) options.ranks.push_back(r);
    options.deadline = deadline_;
    options.local_address = parallel::LocalAddressTowards(inputs_.env.master_addr);
    host_group = parallel::MakeProcessGroup(*store_, inputs_.env.rank, options);
  }
  GroupChannel channel(host_group ? *host_group : context_->world());
  request.channel = &channel;
  std::optional<checkpoint::LoadRecord> record = resume_mode_ == ResumeKind::kPath
                                                     ? LoadFromPath(request)
                                                     : ValueOrThrow(checkpointer_->Load(request));
  if (host_group) host_group->Shutdown();
  if (record && rank0()) NoteOrigin(*record);
  return record;
}

// Of a checkpoint that this run has not saved.
void Job::NoteOrigin(const checkpoint::LoadRecord& loaded) const {
  const auto saved_by = loaded.manifest.value("run_id", std::string());
  if (saved_by == checkpointer_->run_id()) return;
  if (saved_by == checkpoint::kImportedRunId) {
    log_.Info("{} was made by keel ckpt import-hf: it is of no run", loaded.directory);
    return;
  }
  log_.Warning("{} was saved by another run, {}; this one, {}, goes on from it as {} says",
               loaded.directory, Printable(saved_by), checkpointer_->run_id(),
               resume_mode_ == ResumeKind::kPath ? "trainer.resume_from_path"
                                                 : checkpoint::kAdoptForeignKey);
}

// A checkpoint by name, of this run's folder or of another. A link that is named is followed, once:
// by rank 0 for all, since it may be turned to another one at any time.
std::optional<checkpoint::LoadRecord> Job::LoadFromPath(checkpoint::LoadRequest& request) {
  std::error_code error;
  std::filesystem::path path =
      std::filesystem::canonical(*config().trainer.resume_from_path, error);
  if (error) path = std::filesystem::absolute(*config().trainer.resume_from_path);
  path =
      ValueOrThrow(checkpoint::Broadcast(*coordinator_, "resume_path", path.string(), deadline_));
  request.resume_path = path.filename();
  const std::string parent = path.parent_path();
  const auto fs = ValueOrThrow(OpenPosixFileSystem(parent, false));
  checkpoint::Checkpointer other(*fs, *coordinator_, SystemClock(), log_, options_);
  auto loaded = other.Load(request);
  checkpointer_->Note(loaded);
  return ValueOrThrow(std::move(loaded));
}

// A failed save, which the checkpointer has logged, does not stop the run: the last good
// checkpoint is untouched.
void Job::Save(bool busy_somewhere) {
  Phase("save");
  const Stopwatch watch;
  saves_->Save(state.step, snapshot_, busy_somewhere);
  blocked_s_ = watch.Elapsed();
  Phase("train");
}

bool Job::SavingSomewhere() {
  at::Tensor busy =
      at::full({1}, saving() ? 1.0 : 0.0, at::TensorOptions().dtype(at::kDouble).device(device_));
  context_->world().AllReduce(busy);
  return busy.item<double>() > 0;
}

// Before the run ends: returns when the step is on the disk, or when it cannot be any more.
void Job::SaveLast(bool finished) {
  Phase("save");
  NoteSaves(saves_->Finish());
  if (saves_->saved_step() == state.step) return;
  if (!finished && !FitsIntoGrace()) return;
  saves_->SaveAndWait(snapshot_());
  NoteSaves(saves_->Finish());
}

void Job::EndSaves(const std::exception& cause) {
  if (metrics_) metrics_->Close();
  saves_.reset();
  if (checkpointer_ == nullptr) return;
  if (const Status status = checkpointer_->Abandon(); !status.ok()) {
    // A thread that the file system holds on to uses memory of this job: none of it can be freed.
    log_.Error("{}", cause.what());
    log_.Error("{}: this process ends at once", status.message());
    const auto* const error = dynamic_cast<const Error*>(&cause);
    std::_Exit(ExitCodeFor(error != nullptr ? error->status().code() : StatusCode::kInternal));
  }
  checkpointer_.reset();
}

void Job::NoteSaves(const std::vector<checkpoint::SaveResult>& ended) {
  if (!metrics_) return;
  for (const checkpoint::SaveResult& result : ended)
    metrics_->Save(state.step, result, saves_->counts());
}

// Whether a save, as long as past ones, ends before whoever asked us to stop loses patience.
// Collective: the rank that was asked first counts.
bool Job::FitsIntoGrace() {
  if (!config().trainer.preemption_grace_seconds) return true;
  double waited = 0;
  if (StopRequested()) {
    const auto now = SystemClock().Monotonic().count();
    waited = static_cast<double>(now - inputs_.stop_requested->load()) / 1e9;
  }
  const std::vector<std::string> all = ValueOrThrow(checkpoint::AllGather(
      *coordinator_, fmt::format("grace/{}", state.step), std::to_string(waited), deadline_));
  for (const std::string& one : all) waited = std::max(waited, std::stod(one));
  const double left = *config().trainer.preemption_grace_seconds - waited;
  const double expected = 1.2 * checkpointer_->expected_save_s();
  if (expected <= left) return true;
  log_.Warning(
      "step {} is not saved: past saves took {:.1f} s, {:.1f} s are left of "
      "trainer.preemption_grace_seconds",
      state.step, expected / 1.2, left);
  return false;
}

checkpoint::SaveRequest Job::NewSaveRequest(const ModelSource& source) const {
  checkpoint::SaveRequest request;
  request.step = state.step;
  request.contents = checkpoint::Contents::Of(actor().checkpoint.save_contents);
  request.config_digest = source.config.Digest();
  const auto& layout = context_->layout();
  request.layout = {{"tp", layout.tp()}, {"dp", layout.dp()}, {"pp", layout.pp()}};
  if (rank0()) {
    request.documents = source.documents;
    request.documents.push_back({"config.yaml", inputs_.loaded.resolved, false});
  }
  return request;
}

bool Job::SaveDue(bool last) const {
  const int64_t every = config().trainer.save_freq;
  return every > 0 && (state.step % every == 0 || last);
}

}  // namespace keel::trainer
