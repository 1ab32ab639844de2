#include "trainer/run/run_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/names.h"
#include "checkpoint/format/records.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/run_identity.h"
#include "common/files/may_replace.h"
#include "common/text.h"
#include "trainer/config/best_measure.h"
#include "trainer/config/checkpoint_settings.h"
#include "trainer/inputs/run_paths.h"
#include "trainer/metrics/prometheus_file.h"
#include "trainer/run/judged_by.h"

namespace keel::trainer {

namespace {

// A save that has ended, of any earlier step, and what became of others so far.
Json SaveLine(const checkpoint::SaveResult& result, const SaveSession::Counts& counts) {
  Json data = {{"checkpoint/step", result.record.step},      {"checkpoint/ok", result.status.ok()},
               {"checkpoint/waited", counts.waited},         {"checkpoint/skipped", counts.skipped},
               {"checkpoint/superseded", counts.superseded}, {"checkpoint/failed", counts.failed}};
  if (!result.status.ok()) data["checkpoint/error"] = result.status.ToString();
  const Json record = result.record.ToJson();
  for (const auto& [key, value] : record.items()) {
    if ((value.is_number() && key != "step") || key == "ranks") data["checkpoint/" + key] = value;
  }
  return data;
}

Json LoadLine(const checkpoint::LoadRecord& record) {
  Json data;
  const Json all = record.ToJson();
  for (const auto& [key, value] : all.items()) {
    if (value.is_number()) data["checkpoint/load/" + key] = value;
  }
  return data;
}

// Which folder a path names now; none: no folder.
std::optional<std::pair<dev_t, ino_t>> FolderAt(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return std::nullopt;
  return std::pair(info.st_dev, info.st_ino);
}

// The checkpoints whose metric is not the one that is configured now, as their own configuration
// says, or that were judged by other rows; with a warning of each.
std::set<std::string> SavesOfOtherMetric(const FileSystem& files, const LoadedConfig& now,
                                         const ReadContents& judged_by, Logger& log) {
  std::set<std::string> found;
  const auto there = checkpoint::ListCheckpoints(files);
  if (!there.ok()) return found;  // Open says so
  struct Kind {
    std::string one;
    int64_t count = 0;
  } metric, rows;
  for (const checkpoint::CatalogEntry& entry : *there) {
    if (!entry.manifest || !entry.manifest->metric) continue;
    const auto then = ReadFile(files, fmt::format("{}/{}", entry.directory, kConfigName),
                               checkpoint::kMaxManifestBytes);
    if (!then.ok()) continue;
    const auto alike = MeasureAlike(*then, now.resolved);
    if (!alike.ok()) continue;
    const bool same = *alike;
    if (same && JudgedAlike(judged_by, JudgedByOf(files, entry.directory))) continue;
    if (!found.insert(entry.manifest->save_id).second) continue;
    Kind& kind = same ? rows : metric;
    kind.one = entry.directory;
    ++kind.count;
  }
  if (metric.count > 0) {
    log.Warning(
        "trainer.keep_best_metric is {}: what {} checkpoints were saved with, among them {}, is "
        "of another metric, and is not compared (a loss by other settings of dpo is another one): "
        "to keep one of them for good, keel ckpt pin it",
        NameOf(now.config.trainer.keep_best_metric), metric.count, metric.one);
  }
  if (rows.count > 0) {
    log.Warning(
        "trainer.keep_best_ckpts: what {} checkpoints were saved with, among them {}, is of other "
        "validation rows or rewards than this run's, and is not compared: to keep one of them for "
        "good, keel ckpt pin it",
        rows.count, rows.one);
  }
  return found;
}

checkpoint::CheckpointOptions CheckpointOptionsOf(const FileSystem& files,
                                                  const LoadedConfig& loaded, bool leads,
                                                  Logger& log, const RunFolderOptions& folder) {
  const TrainerSection& trainer = loaded.config.trainer;
  const CheckpointSection& section = loaded.config.actor_rollout_ref.actor.checkpoint;
  checkpoint::CheckpointOptions options;
  if (trainer.max_ckpts_to_keep)
    options.max_ckpts_to_keep = static_cast<int>(*trainer.max_ckpts_to_keep);
  options.remove_previous_ckpt_in_save = trainer.remove_previous_ckpt_in_save;
  options.retention.keep_best = static_cast<int>(trainer.keep_best_ckpts);
  options.retention.higher_is_better = trainer.keep_best_mode == BestMode::kMax;
  options.retention.keep_every = trainer.keep_every_steps;
  if (leads && trainer.keep_best_ckpts > 0)
    options.retention.of_other_metric = SavesOfOtherMetric(files, loaded, folder.judged_by, log);
  options.adopt_foreign = trainer.adopt_foreign_checkpoints;
  options.role = "actor";  // which every task has
  options.names = kCheckpointSettings;
  options.io = section.io;
  options.dist_ckpt_workers = static_cast<int>(section.dist_ckpt_workers);
  options.host_memory_cap = section.staging.host_memory_cap;
  options.deadline = folder.deadline;
  options.spans = folder.spans;
  options.load_threads = static_cast<int>(std::max<int64_t>(1, trainer.threads_per_rank));
  return options;
}

}  // namespace

RunFolder::RunFolder(std::unique_ptr<FileSystem> files, const LoadedConfig& config,
                     checkpoint::Coordinator& coordinator, Logger& log,
                     const RunFolderOptions& options)
    : files_(std::move(files)),
      loaded_(config),
      coordinator_(coordinator),
      log_(log),
      options_(options),
      checkpoints_(CheckpointOptionsOf(*files_, config, coordinator.rank() == 0, log, options)),
      checkpointer_(std::make_unique<checkpoint::Checkpointer>(*files_, coordinator, SystemClock(),
                                                               log, checkpoints_)),
      saves_(*checkpointer_, section(), log) {}

void RunFolder::Open() {
  if (section().staging.host_memory_cap && options_.device != "cpu") {
    throw Error(
        StatusCode::kConfig,
        fmt::format("actor_rollout_ref.actor.checkpoint.staging.host_memory_cap: the state is on "
                    "{}, and a save needs all of it in pinned host memory: leave it null",
                    options_.device));
  }
  if (section().async_save && section().dist_ckpt_workers > 1 && rank0()) {
    log_.Warning(
        "actor_rollout_ref.actor.checkpoint.dist_ckpt_workers: {} threads a rank write beside "
        "the training and take its cores; 1 is enough for most disks",
        section().dist_ckpt_workers);
  }
  ThrowIfError(checkpointer_->Open());
  if (trainer().save_freq > 0) {
    const Status same = checkpointer_->CheckOneFolder();
    if (!same.ok()) throw Error(same.WithContext("trainer.default_local_dir"));
  } else if (rank0()) {
    log_.Warning(
        "trainer.save_freq is {}: neither the end nor a stop leaves a checkpoint or a model; any "
        "number above 0 saves at the end, too",
        trainer().save_freq);
  }
  DecideResume();
  WarnOfLosses();
}

// trainer.resume_mode says where the job begins, and with what. A launcher that starts the job's
// ranks again repeats it, and they would lose what was trained since: so a restart looks at the
// commits, which tell what the job has committed since it began.
void RunFolder::DecideResume() {
  resume_mode_ = trainer().resume_mode;
  const std::string wanted(NameOf(resume_mode_));
  Json begin = {{"event", "begin"}, {"resume_mode", wanted}};
  if (next_start_goes_on()) {
    checkpointer_->Note(begin);
    return;
  }
  const int64_t next = checkpointer_->next_sequence();
  const auto decide = [&]() -> Result<std::string> {
    if (options_.restart_count == 0) return std::string();
    int64_t begun_at = next;
    KEEL_RETURN_IF_ERROR(checkpoint::VisitRecords(*files_, [&](const Json& record) {
      const Result<int64_t> sequence = GetInt(record, "next_sequence", "");
      if (sequence.ok()) begun_at = *sequence;
    }));
    KEEL_ASSIGN_OR_RETURN(const auto there, checkpoint::ListCheckpoints(*files_));
    if (checkpoint::NewestSequence(there) >= begun_at) return std::string("goes on");
    for (const checkpoint::CatalogEntry& entry : there) {
      if (checkpoint::IsUnread(entry)) {
        return entry.status.WithContext(
            "whether this job has saved anything since it began cannot be told");
      }
    }
    return std::string();
  };
  goes_on_ = !ValueOrThrow(checkpoint::BroadcastResult(coordinator_, "resume_mode",
                                                       rank0() ? decide() : std::string(),
                                                       checkpoints_.deadline))
                  .empty();
  if (!goes_on_) {
    begin["next_sequence"] = next;
    checkpointer_->Note(begin);
    return;
  }
  resume_mode_ = ResumeKind::kAuto;
  if (!rank0()) return;
  log_.Warning(
      "restart {} of this job goes on from the newest checkpoint that it has saved, with all that "
      "is in it: trainer.resume_mode {} and load_contents are for its beginning",
      options_.restart_count, wanted);
}

bool RunFolder::next_start_goes_on() const {
  return trainer().resume_mode == ResumeKind::kAuto &&
         section().load_contents == section().save_contents;
}

checkpoint::Contents RunFolder::load_contents() const {
  return checkpoint::Contents::Of(goes_on_ ? section().save_contents : section().load_contents);
}

// Checkpoints that give no weights back are what was asked for, but seldom what was meant.
void RunFolder::WarnOfLosses() const {
  if (!rank0()) return;
  const auto saved = checkpoint::Contents::Of(section().save_contents);
  if (trainer().save_freq > 0 && !saved.model && !saved.hf_model) {
    log_.Warning(
        "actor_rollout_ref.actor.checkpoint.save_contents has neither model nor hf_model: "
        "the weights of this run are in none of its checkpoints");
  }
}

std::optional<checkpoint::LoadRecord> RunFolder::Load(checkpoint::LoadRequest request) {
  request.in_place = true;  // a load that fails ends this process
  std::optional<checkpoint::LoadRecord> record = resume_mode_ == ResumeKind::kPath
                                                     ? LoadFromPath(request)
                                                     : ValueOrThrow(checkpointer_->Load(request));
  if (record && rank0()) NoteOrigin(*record);
  return record;
}

// Of a checkpoint that this run has not saved.
void RunFolder::NoteOrigin(const checkpoint::LoadRecord& loaded) const {
  const auto saved_by = loaded.manifest.value("run_id", std::string());
  if (saved_by == checkpointer_->run_id()) return;
  if (saved_by == checkpoint::kImportedRunId) {
    log_.Info("{} was made by keel ckpt import-hf: it is of no run", loaded.directory);
    return;
  }
  log_.Warning("{} was saved by another run, {}; this one, {}, goes on from it as {} says",
               loaded.directory, Printable(saved_by), checkpointer_->run_id(),
               resume_mode_ == ResumeKind::kPath ? "trainer.resume_from_path"
                                                 : kCheckpointSettings.adopt_foreign);
}

// A checkpoint by name, of this run's folder or of another. A link that is named is followed, once:
// by rank 0 for all, since it may be turned to another one at any time.
std::optional<checkpoint::LoadRecord> RunFolder::LoadFromPath(checkpoint::LoadRequest& request) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical(*trainer().resume_from_path, error);
  if (error) path = std::filesystem::absolute(*trainer().resume_from_path);
  path = ValueOrThrow(
      checkpoint::Broadcast(coordinator_, "resume_path", path.string(), checkpoints_.deadline));
  request.resume_path = path.filename();
  const std::string parent = path.parent_path();
  const auto fs = ValueOrThrow(OpenPosixFileSystem(parent, false));
  elsewhere_ = FolderAt(parent) != FolderAt(trainer().default_local_dir);
  checkpoint::Checkpointer other(*fs, coordinator_, SystemClock(), log_, checkpoints_);
  auto loaded = other.Load(request);
  checkpointer_->Note(loaded);
  return ValueOrThrow(std::move(loaded));
}

void RunFolder::Begin(int64_t step, const std::optional<checkpoint::LoadRecord>& loaded) {
  if (!rank0()) return;
  WarnOfLaterSteps(step, loaded);
  RunStart start{.step = step, .newest_sequence = checkpointer_->next_sequence() - 1};
  start.elsewhere = elsewhere_;
  if (loaded) start.sequence = loaded->manifest.value("sequence", start.sequence);
  OpenMetrics(start);
  began_in_ = FolderAt(trainer().default_local_dir);
  if (loaded) metrics_->Record(loaded->step, LoadLine(*loaded));
  start_ = start;
}

// A run that begins from the start, or goes on from an earlier step, in a folder where another run
// has gone further, does not pass those later steps over without a word.
void RunFolder::WarnOfLaterSteps(int64_t step,
                                 const std::optional<checkpoint::LoadRecord>& loaded) const {
  const auto passed_over = [&](const std::string& directory) {
    if (!loaded) return false;
    const auto& skipped = loaded->skipped;
    return std::any_of(skipped.begin(), skipped.end(),
                       [&](const auto& one) { return one.directory == directory; });
  };
  const auto found = checkpoint::ListCheckpoints(*files_);
  if (!found.ok()) return;
  int later = 0;
  std::string one;
  for (const checkpoint::CatalogEntry& entry : *found) {
    if (!entry.manifest || entry.step <= step || passed_over(entry.directory)) continue;
    // What is of another run has been spoken of, and is neither replaced nor removed.
    if (entry.manifest->run_id != checkpointer_->run_id()) continue;
    if (later++ == 0) one = entry.directory;
  }
  if (later == 0) return;
  log_.Warning(
      "trainer.resume_mode is {}, and {} holds {} checkpoints of later steps, among them {}: this "
      "run {}, its saves replace those of the same steps, and its retention, if any, removes the "
      "others; a new run is safer in a trainer.default_local_dir of its own",
      NameOf(resume_mode_), trainer().default_local_dir, later, one,
      step == 0 ? std::string("begins anew") : fmt::format("goes on from step {}", step));
}

// Where the file that the run was started with stands in the place of what is written there, it is
// kept beside it, and one that was kept before stays, too. False: there is no room for it, and the
// file is to stay as it is.
bool RunFolder::KeepGivenConfig() {
  constexpr int kMost = 1000;
  const int64_t size = std::ssize(loaded_.by_hand);
  if (size == 0 || loaded_.by_hand == loaded_.resolved) return true;
  const auto is_given = [&](const std::string& name) {
    const Result<std::string> there = ReadFile(*files_, name, size + 1);
    return there.ok() && *there == loaded_.by_hand;
  };
  if (!is_given(std::string(kConfigName))) return true;
  std::string kept;
  for (int n = 1; kept.empty() && n < kMost; ++n) {
    const std::string name = n == 1 ? "config.given.yaml" : fmt::format("config.given.{}.yaml", n);
    if (is_given(name)) return true;
    if (!files_->Stat(name).ok()) kept = name;
  }
  const Status written = WriteFileDurably(*files_, kept, loaded_.by_hand);
  if (written.code() == StatusCode::kNoSpace) return false;
  ThrowIfError(written);
  log_.Info("{}/config.yaml is the configuration with all values now; what was given is in {}",
            trainer().default_local_dir, kept);
  return true;
}

// The file of trainer.prometheus_file, where nothing else is.
std::string RunFolder::PrometheusPath() const {
  const std::string path = trainer().prometheus_file.value_or(
      fmt::format("{}/{}", trainer().default_local_dir, PrometheusFile::kName));
  ThrowIfError(MayReplace(path, PrometheusFile::kBegins).WithContext("trainer.prometheus_file"));
  return path;
}

void RunFolder::OpenMetrics(const RunStart& start) {
  // A full disk does not stop a run that has its state.
  if (const Status written = KeepGivenConfig()
                                 ? ReplaceFileDurably(*files_, kConfigName, loaded_.resolved)
                                 : Status(StatusCode::kNoSpace, "no room for what was given");
      written.code() == StatusCode::kNoSpace) {
    log_.Warning("{}: config.yaml is not written: {}", trainer().default_local_dir,
                 written.message());
  } else {
    ThrowIfError(written);
  }
  const std::string& folder = trainer().default_local_dir;
  MetricsOptions options{trainer().LogsTo(LogSink::kJsonl), trainer().LogsTo(LogSink::kConsole),
                         trainer().log_freq};
  options.tensorboard = trainer().LogsTo(LogSink::kTensorboard);
  options.tensorboard_dir = TensorboardFolder();
  if (trainer().LogsTo(LogSink::kPrometheus)) options.prometheus_file = PrometheusPath();
  metrics_ = std::make_unique<MetricsWriter>(
      ValueOrThrow(MetricsWriter::Open(folder, start, options, log_)));
}

// What the first save would otherwise pay for, and whether the disk will hold what is to be kept.
void RunFolder::Prepare(const checkpoint::SaveRequest& request, int64_t last_step) {
  const checkpoint::DiskForecast disk =
      ValueOrThrow(checkpointer_->Prepare(request, section().async_save));
  if (rank0()) {
    log_.Info("a checkpoint takes {:.1f} MiB; staging memory {:.1f} MiB a rank",
              static_cast<double>(disk.checkpoint_bytes) / (1 << 20),
              static_cast<double>(checkpointer_->staging_bytes()) / (1 << 20));
  }
  if (rank0()) WarnOfGrowth(disk, request.step, last_step);
  if (disk.needed_bytes <= disk.free_bytes) return;
  const std::string text = fmt::format(
      "{}: checkpoints of {} bytes will need {} more bytes, {} are free: make room, set "
      "trainer.max_ckpts_to_keep, or set trainer.disk_check to warn",
      trainer().default_local_dir, disk.checkpoint_bytes, disk.needed_bytes, disk.free_bytes);
  if (trainer().disk_check == DiskCheck::kRefuse) throw Error(StatusCode::kNoSpace, text);
  if (rank0()) log_.Warning("{}", text);
}

// What retention never removes adds up over the steps to come.
void RunFolder::WarnOfGrowth(const checkpoint::DiskForecast& disk, int64_t step,
                             int64_t last_step) const {
  const bool all = !trainer().max_ckpts_to_keep && !trainer().remove_previous_ckpt_in_save;
  const int64_t every = all ? trainer().save_freq : trainer().keep_every_steps;
  if (every <= 0) return;
  const int64_t to_come = (last_step + every - 1) / every - step / every;
  const int64_t bytes = to_come * disk.checkpoint_bytes + (all ? 0 : disk.needed_bytes);
  if (bytes <= disk.free_bytes) return;
  log_.Warning("{}: {}: what is to come takes {} bytes, {} are free", trainer().default_local_dir,
               all ? "trainer.max_ckpts_to_keep is null, which keeps all"
                   : "trainer.keep_every_steps keeps checkpoints for good",
               bytes, disk.free_bytes);
}

// The folder is held open, and saves go on in it whatever it is called by now.
void RunFolder::WarnIfMoved() {
  const std::string& path = trainer().default_local_dir;
  if (!began_in_ || FolderAt(path) == began_in_) return;
  log_.Warning(
      "trainer.default_local_dir: {} is not the folder any more that this run began in: that has "
      "been moved or removed, and its checkpoints and metrics with it",
      path);
  began_in_.reset();  // said once
}

void RunFolder::Tell(int64_t step, const std::vector<checkpoint::SaveResult>& ended) {
  if (!metrics_) return;
  if (!ended.empty()) WarnIfMoved();
  for (const checkpoint::SaveResult& result : ended) {
    metrics_->Record(step, SaveLine(result, saves_.counts()));
    if (result.status.code() == StatusCode::kCancelled) continue;  // for the one after it
    const checkpoint::SaveRecord& record = result.record;
    // Where nothing was measured beside the training, it stood still.
    metrics_->summary().AddSave(result.status.ok(), record.total_bytes,
                                record.lost_s >= 0 ? record.lost_s : record.total_s);
  }
}

void RunFolder::NoteLastSave(double seconds) {
  if (metrics_) metrics_->summary().AddSeconds("save", seconds);
}

void RunFolder::TellSummary(int64_t total_steps, bool stopped) {
  if (!metrics_) return;
  WarnIfMoved();
  RunPlaces places;
  places.total_steps = total_steps;
  places.stopped = stopped;
  places.folder = trainer().default_local_dir;
  places.saved_step = saves_.saved_step();
  if (trainer().LogsTo(LogSink::kJsonl))
    places.metrics.push_back(places.folder + "/" + std::string(kMetricsName));
  if (trainer().LogsTo(LogSink::kTensorboard)) places.metrics.push_back(TensorboardFolder());
  const auto saved = checkpoint::Contents::Of(section().save_contents);
  places.has_model = saved.model || saved.hf_model;
  places.answers = trainer().task != TaskKind::kPretrain;
  metrics_->TellSummary(places);
}

std::string RunFolder::TensorboardFolder() const {
  return trainer().tensorboard_dir.value_or(trainer().default_local_dir + "/tensorboard");
}

bool RunFolder::FitsIntoGrace(int64_t step, double waited) {
  if (!trainer().preemption_grace_seconds) return true;
  const std::vector<std::string> all = ValueOrThrow(checkpoint::AllGather(
      coordinator_, fmt::format("grace/{}", step), std::to_string(waited), checkpoints_.deadline));
  for (const std::string& one : all) waited = std::max(waited, std::stod(one));
  const double left = *trainer().preemption_grace_seconds - waited;
  const double expected = 1.2 * checkpointer_->expected_save_s();
  if (expected <= left) return true;
  log_.Warning(
      "step {} is not saved: past saves took {:.1f} s, {:.1f} s are left of "
      "trainer.preemption_grace_seconds",
      step, expected / 1.2, left);
  return false;
}

bool RunFolder::TooManySavesFailed() const {
  const std::optional<int64_t>& most = trainer().max_failed_saves;
  return most && saves_.counts().failed_in_a_row >= *most;
}

void RunFolder::Close(int64_t step, bool settle) {
  FinishSaves(step);
  if (metrics_) metrics_->Close();
  ThrowIfError(checkpointer_->Close(settle));
}

Status RunFolder::LastSave(int64_t step) const {
  if (trainer().save_freq <= 0) return Status::Ok();
  const Status last = saves_.last_status().WithContext(
      fmt::format("the state of the last step, {}, is not saved", step));
  if (!TooManySavesFailed()) return last;
  return last.WithContext(
      fmt::format("trainer.max_failed_saves is {}, and {} saves in a row have failed",
                  *trainer().max_failed_saves, saves_.counts().failed_in_a_row));
}

void RunFolder::Abandon(const std::exception& cause) {
  if (metrics_) metrics_->Close();
  const Status status = checkpointer_->Abandon();
  if (status.ok()) return;
  // A thread that the file system holds on to uses memory of this job: none of it can be freed.
  log_.Error("{}", cause.what());
  log_.Error("{}: this process ends at once", status.message());
  const auto* const error = dynamic_cast<const Error*>(&cause);
  std::_Exit(ExitCodeFor(error != nullptr ? error->status().code() : StatusCode::kInternal));
}

}  // namespace keel::trainer
