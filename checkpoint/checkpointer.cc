#include "checkpoint/checkpointer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/chunk_digest.h"
#include "checkpoint/committer.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/index.h"
#include "checkpoint/loader.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/records.h"
#include "checkpoint/save_planner.h"
#include "checkpoint/shard_writer.h"
#include "checkpoint/step_reader.h"
#include "checkpoint/tracker.h"
#include "checkpoint/wire.h"

namespace keel::checkpoint {
namespace {

// Below this a measurement would cost more than the choice of a back-end can save.
constexpr int64_t kMeasureFrom = int64_t{32} << 20;
constexpr int64_t kMeasureBytes = int64_t{16} << 20;

// What rank 0 tells all at the start of a save.
struct SaveOrder {
  std::string temporary;
  std::string save_id;
  bool direct = false;
  bool read_back = false;  // every byte is to be read again before the commit

  std::string Encode() const {
    WireWriter out;
    out.Text(temporary);
    out.Text(save_id);
    out.U64(direct);
    out.U64(read_back);
    return std::move(out).Take();
  }
  static Result<SaveOrder> Decode(std::string_view text) {
    SaveOrder order;
    uint64_t direct = 0, read_back = 0;
    WireReader in(text);
    if (!in.Text(&order.temporary) || !in.Text(&order.save_id) || !in.U64(&direct) ||
        !in.U64(&read_back)) {
      return Status(StatusCode::kInternal, "rank 0 sent a malformed save order");
    }
    order.direct = direct != 0;
    order.read_back = read_back != 0;
    return order;
  }
};

// What a rank tells rank 0 when its files are on the disk.
struct SaveReport {
  Status status;
  std::vector<std::pair<std::string, ChunkedDigest>> files;

  std::string Encode() const {
    WireWriter out;
    out.U64(static_cast<uint64_t>(status.code()));
    out.Text(status.message());
    out.U64(files.size());
    for (const auto& [path, digest] : files) {
      out.Text(path);
      out.I64(digest.size);
      out.U64(digest.chunks.size());
      for (const Digest128& chunk : digest.chunks) {
        out.U64(chunk.low);
        out.U64(chunk.high);
      }
    }
    return std::move(out).Take();
  }
  static Result<SaveReport> Decode(std::string_view text) {
    const Status malformed(StatusCode::kInternal, "a peer sent a malformed report of its save");
    SaveReport report;
    WireReader in(text);
    uint64_t code = 0, count = 0;
    std::string message;
    if (!in.U64(&code) || !in.Text(&message) || !in.U64(&count)) return malformed;
    if (code != 0) report.status = Status(static_cast<StatusCode>(code), message);
    for (uint64_t i = 0; i < count; ++i) {
      std::string path;
      ChunkedDigest digest;
      uint64_t chunks = 0;
      if (!in.Text(&path) || !in.I64(&digest.size) || !in.U64(&chunks) ||
          chunks > in.remaining() / 16)
        return malformed;
      digest.chunks.resize(chunks);
      for (Digest128& chunk : digest.chunks) {
        if (!in.U64(&chunk.low) || !in.U64(&chunk.high)) return malformed;
      }
      digest.whole = DigestOfChunks(digest.size, digest.chunks);
      report.files.emplace_back(std::move(path), std::move(digest));
    }
    return report;
  }
};

// Exceptions of local work become the failure of this save, so that peers hear of it.
template <typename Work>
Status Guarded(const Work& work) {
  try {
    return work();
  } catch (const Error& e) {
    return e.status();
  } catch (const std::exception& e) {
    return Status(StatusCode::kInternal, e.what());
  }
}

std::string NewSaveId() {
  std::random_device entropy;
  return MakeSaveId((uint64_t{entropy()} << 32) | entropy());
}

}  // namespace

std::vector<std::string> CheckpointOptions::Validate() const {
  std::vector<std::string> problems;
  if (run_id.empty()) problems.emplace_back("run_id must not be empty");
  if (max_ckpts_to_keep && *max_ckpts_to_keep < 1) {
    problems.push_back(fmt::format(
        "max_ckpts_to_keep is {}, expected at least 1, or null to keep all", *max_ckpts_to_keep));
  }
  if (io != "auto" && io != "buffered" && io != "direct") {
    problems.push_back(fmt::format("io is '{}', expected auto, buffered or direct", io));
  }
  if (chunk_bytes < 4096 || chunk_bytes % 4096 != 0 || chunk_bytes > (int64_t{1} << 30)) {
    problems.push_back(
        fmt::format("chunk_bytes is {}, expected a multiple of 4096 up to 2^30", chunk_bytes));
  }
  if (deadline.count() <= 0) problems.emplace_back("deadline must be positive");
  if (load_threads < 1) problems.emplace_back("load_threads must be at least 1");
  return problems;
}

Json SaveRecord::ToJson() const {
  Json json;
  json["event"] = "save";
  json["step"] = step;
  json["save_id"] = save_id;
  json["bytes"] = bytes;
  json["total_bytes"] = total_bytes;
  json["io"] = io;
  json["planned_s"] = planned_s;
  json["blocked_s"] = blocked_s;
  json["staged_s"] = staged_s;
  json["written_s"] = written_s;
  json["fsync_s"] = fsync_s;
  json["commit_s"] = commit_s;
  json["verified_s"] = verified_s;
  json["total_s"] = total_s;
  json["removed"] = removed;
  return json;
}

Json LoadRecord::ToJson() const {
  Json json;
  json["event"] = "load";
  json["step"] = step;
  json["directory"] = directory;
  json["bytes"] = bytes;
  json["planned_s"] = planned_s;
  json["read_s"] = read_s;
  json["verified_s"] = verified_s;
  json["applied_s"] = applied_s;
  json["total_s"] = total_s;
  Json list = Json::array();
  for (const SkippedCheckpoint& one : skipped) {
    list.push_back({{"directory", one.directory}, {"reason", one.reason}});
  }
  json["skipped"] = std::move(list);
  return json;
}

struct Checkpointer::Impl {
  Impl(FileSystem& fs_in, Coordinator& coordinator_in, const Clock& clock_in, Logger& log_in,
       CheckpointOptions options_in)
      : fs(fs_in),
        coordinator(coordinator_in),
        clock(clock_in),
        log(log_in),
        options(std::move(options_in)),
        planner(coordinator_in),
        committer(fs_in, log_in) {}

  FileSystem& fs;
  Coordinator& coordinator;
  const Clock& clock;
  Logger& log;
  const CheckpointOptions options;
  SavePlanner planner;
  Committer committer;
  std::unique_ptr<ShardWriter> writer;
  std::optional<bool> direct;    // rank 0: the back-end, once chosen
  std::shared_ptr<void> lock;    // rank 0: of the run directory
  std::set<std::string> proven;  // rank 0: save ids of which every byte was read back
  int64_t uses = 0;              // makes tags unique
  bool open = false;

  bool leads() const { return coordinator.rank() == 0; }
  std::string NextTag(std::string_view what) {
    return fmt::format("checkpoint/{}/{}", what, ++uses);
  }

  RetentionPolicy Policy() const {
    RetentionPolicy policy = options.retention;
    policy.keep_latest =
        options.remove_previous_ckpt_in_save ? std::optional(1) : options.max_ckpts_to_keep;
    return policy;
  }

  Status OpenRunDirectory();
  Result<SaveOrder> BeginSave(const SaveRequest& request, const SavePlan& plan,
                              std::vector<std::string>* directories);
  Result<bool> ChooseDirect(const SavePlan& plan, const std::string& temporary);
  bool NeedsReadBack(const std::vector<CatalogEntry>& committed, int64_t step) const;
  Status WriteFiles(const SaveRequest& request, const SavePlan& plan, const SaveOrder& order,
                    SaveReport* report, SaveRecord* record);
  Status ReadBack(const SaveOrder& order, const SaveReport& report) const;
  Status Commit(const SaveRequest& request, const SavePlan& plan, const SaveOrder& order,
                const std::vector<std::string>& directories,
                const std::vector<std::string>& reports, SaveRecord* record);
  Status VerifyCommit(int64_t step, const std::string& save_id) const;
  void Retain(SaveRecord* record);
  void Record(const Json& json);
};

namespace {

// The directories a save needs, parents before children, without duplicates.
std::vector<std::string> DirectoriesOf(const SaveRequest& request, const SavePlan& plan) {
  std::set<std::string> directories;
  const auto add_parents = [&](std::string_view path) {
    for (size_t slash = path.find('/'); slash != std::string_view::npos;
         slash = path.find('/', slash + 1)) {
      directories.emplace(path.substr(0, slash));
    }
  };
  for (const PlannedFile& file : plan.files) add_parents(file.path);
  for (const Document& document : request.documents) add_parents(document.path);
  if (request.contents.hf_model) {
    for (const std::string& role : plan.roles) add_parents(role + "/huggingface/x");
  }
  return {directories.begin(), directories.end()};
}

Status CheckDocuments(const SaveRequest& request, const SavePlan& plan) {
  std::set<std::string> paths = {std::string(kManifestName), std::string(kIndexName)};
  for (const PlannedFile& file : plan.files) paths.insert(file.path);
  for (const Document& document : request.documents) {
    KEEL_RETURN_IF_ERROR(CheckRelativePath(document.path, "a document of the checkpoint"));
    if (!paths.insert(document.path).second) {
      return Status(StatusCode::kInternal,
                    fmt::format("the checkpoint has another file '{}'", document.path));
    }
  }
  return Status::Ok();
}

}  // namespace

Status Checkpointer::Impl::OpenRunDirectory() {
  Result<std::shared_ptr<void>> taken = fs.Lock(kLockName);
  if (!taken.ok()) {
    const Result<std::string> owner = ReadFile(fs, kLockOwnerName, 4096);
    return taken.status().WithContext(fmt::format(
        "{} is in use by another run{}; wait for it to end or choose another default_local_dir",
        fs.Describe("."), owner.ok() ? " (" + *owner + ")" : std::string()));
  }
  lock = std::move(taken).value();
  char host[256] = {};
  (void)gethostname(host, sizeof(host) - 1);
  const Json owner = {{"host", host},
                      {"pid", getpid()},
                      {"run_id", options.run_id},
                      {"since", FormatUtc(clock.Wall())}};
  if (const Status status = ReplaceFileDurably(fs, kLockOwnerName, owner.dump()); !status.ok()) {
    log.Warning("the owner of the run directory's lock could not be noted: {}", status.message());
  }
  return committer.CollectDebris();
}

Result<bool> Checkpointer::Impl::ChooseDirect(const SavePlan& plan, const std::string& temporary) {
  if (options.io != "auto") return options.io == "direct";
  if (direct) return *direct;
  if (plan.largest_rank_bytes < kMeasureFrom) return false;
  direct = MeasureBackend(fs, temporary, kMeasureBytes) == IoBackend::kDirect;
  log.Info("checkpoints are written by the {} back-end, measured as the faster one here",
           IoBackendName(*direct ? IoBackend::kDirect : IoBackend::kBuffered));
  return *direct;
}

// True when, after this commit, retention would leave no checkpoint of which every byte has been
// read back: then this one must be proven before anything is removed.
bool Checkpointer::Impl::NeedsReadBack(const std::vector<CatalogEntry>& committed,
                                       int64_t step) const {
  std::vector<CommittedStep> steps;
  int64_t newest = 0;
  for (const CatalogEntry& entry : committed) {
    if (!entry.manifest || entry.step == step) continue;
    steps.push_back({entry.step, entry.manifest->sequence, entry.manifest->metric, false});
    newest = std::max(newest, entry.manifest->sequence);
  }
  steps.push_back({step, newest + 1, std::nullopt, false});
  const std::vector<int64_t> removed = StepsToRemove(steps, Policy());
  if (removed.empty()) return false;
  return std::none_of(committed.begin(), committed.end(), [&](const CatalogEntry& entry) {
    return entry.manifest && entry.step != step && proven.contains(entry.manifest->save_id) &&
           std::find(removed.begin(), removed.end(), entry.step) == removed.end();
  });
}

Result<SaveOrder> Checkpointer::Impl::BeginSave(const SaveRequest& request, const SavePlan& plan,
                                                std::vector<std::string>* directories) {
  KEEL_RETURN_IF_ERROR(CheckDocuments(request, plan));
  // Room for all of it, as far as the file system tells: better now than after minutes of writing.
  KEEL_ASSIGN_OR_RETURN(const int64_t room, fs.FreeBytes());
  if (room < plan.total_bytes) {
    return Status(
        StatusCode::kNoSpace,
        fmt::format("{}: the checkpoint needs {} bytes, {} are free: remove old checkpoints or set "
                    "max_ckpts_to_keep",
                    fs.Describe("."), plan.total_bytes, room));
  }
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> committed, ListCheckpoints(fs));
  SaveOrder order;
  order.save_id = NewSaveId();
  order.read_back = NeedsReadBack(committed, request.step);
  *directories = DirectoriesOf(request, plan);
  KEEL_ASSIGN_OR_RETURN(order.temporary,
                        committer.Begin(request.step, order.save_id, *directories));
  KEEL_ASSIGN_OR_RETURN(order.direct, ChooseDirect(plan, order.temporary));
  return order;
}

Status Checkpointer::Impl::WriteFiles(const SaveRequest& request, const SavePlan& plan,
                                      const SaveOrder& order, SaveReport* report,
                                      SaveRecord* record) {
  const IoBackend backend = order.direct ? IoBackend::kDirect : IoBackend::kBuffered;
  record->io = IoBackendName(backend);
  if (writer == nullptr || writer->backend() != backend) {
    writer = std::make_unique<ShardWriter>(fs, backend, options.chunk_bytes);
  }
  WriteTimes times;
  for (const PlannedFile& file : plan.files) {
    if (file.rank != coordinator.rank()) continue;
    const auto role = std::find_if(request.roles.begin(), request.roles.end(),
                                   [&](const RoleState& one) { return one.name == file.role; });
    const ShardTable& table = file.kind == FileRole::kModel ? role->model : role->optimizer;
    std::vector<WritePiece> pieces;
    pieces.reserve(file.shards.size());
    for (const PlannedShard& planned : file.shards) {
      const Shard& shard = table.shards()[static_cast<size_t>(planned.source)];
      pieces.push_back({shard.box.size, shard.view, DTypeSize(planned.tensor.dtype)});
    }
    Result<ChunkedDigest> digest = writer->Write(fmt::format("{}/{}", order.temporary, file.path),
                                                 file.header, pieces, &times);
    if (!digest.ok()) return digest.status();
    record->bytes += digest->size;
    report->files.emplace_back(file.path, std::move(digest).value());
  }
  record->written_s = times.write_s;
  record->fsync_s = times.fsync_s;
  return Status::Ok();
}

Status Checkpointer::Impl::ReadBack(const SaveOrder& order, const SaveReport& report) const {
  for (const auto& [path, digest] : report.files) {
    const std::string full = fmt::format("{}/{}", order.temporary, path);
    KEEL_ASSIGN_OR_RETURN(const ChunkedDigest actual, DigestOfFile(fs, full, options.chunk_bytes));
    if (actual.size == digest.size && actual.whole == digest.whole) continue;
    size_t chunk = 0;
    while (chunk < std::min(actual.chunks.size(), digest.chunks.size()) &&
           actual.chunks[chunk] == digest.chunks[chunk])
      ++chunk;
    return Status(
        StatusCode::kDataLoss,
        fmt::format("{}: read back, chunk {} is not what was written", fs.Describe(full), chunk));
  }
  return Status::Ok();
}

Status Checkpointer::Impl::Commit(const SaveRequest& request, const SavePlan& plan,
                                  const SaveOrder& order,
                                  const std::vector<std::string>& directories,
                                  const std::vector<std::string>& reports, SaveRecord* record) {
  // 1. All ranks' files, as they reported them after their fsync.
  std::map<std::string, ChunkedDigest> written;
  for (size_t r = 0; r < reports.size(); ++r) {
    KEEL_ASSIGN_OR_RETURN(SaveReport report, SaveReport::Decode(reports[r]));
    if (!report.status.ok()) return report.status.WithContext(fmt::format("rank {}", r));
    for (auto& [path, digest] : report.files) written.emplace(path, std::move(digest));
  }
  Manifest manifest;
  std::vector<std::string> temporary_parts;  // sharded weights that only serve to make hf_model
  IndexBuilder index(options.chunk_bytes);
  for (const PlannedFile& file : plan.files) {
    const auto found = written.find(file.path);
    if (found == written.end() || found->second.size != file.size) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} did not report '{}' with its {} bytes", file.rank,
                                file.path, file.size));
    }
    if (file.kind == FileRole::kModel && !request.contents.model) {
      temporary_parts.push_back(file.path);
      continue;
    }
    manifest.files.push_back({file.path, file.kind, found->second.size, found->second.whole});
    index.AddFile(file.path, found->second);
    for (const PlannedShard& shard : file.shards)
      index.AddBox(file.scope, shard.tensor, shard.box, file.path, shard.begin);
  }

  // 2. Documents, and the whole model for those who asked for it.
  for (const Document& document : request.documents) {
    if (document.extra && !request.contents.extra) continue;
    KEEL_RETURN_IF_ERROR(WriteFileDurably(fs, fmt::format("{}/{}", order.temporary, document.path),
                                          document.content));
    ChunkedDigest digest = DigestOfText(document.content, options.chunk_bytes);
    manifest.files.push_back({document.path,
                              document.extra ? FileRole::kExtra : FileRole::kDocument, digest.size,
                              digest.whole});
    index.AddFile(document.path, std::move(digest));
  }
  if (request.contents.hf_model) {
    IndexBuilder parts(options.chunk_bytes);
    for (const PlannedFile& file : plan.files) {
      if (file.kind != FileRole::kModel) continue;
      parts.AddFile(file.path, written.at(file.path));
      for (const PlannedShard& shard : file.shards)
        parts.AddBox(file.scope, shard.tensor, shard.box, file.path, shard.begin);
    }
    KEEL_ASSIGN_OR_RETURN(std::string bytes, parts.Build());
    KEEL_ASSIGN_OR_RETURN(Index parsed, Index::Parse(std::move(bytes), "index of the weights"));
    const StepReader reader = StepReader::FromIndex(fs, order.temporary, std::move(parsed));
    for (const std::string& role : plan.roles) {
      std::string config;
      for (const Document& document : request.documents) {
        if (document.path == role + "/huggingface/config.json") config = document.content;
      }
      KEEL_ASSIGN_OR_RETURN(std::vector<ExportedFile> exported,
                            ExportWeights(reader, role + "/model", config, fs,
                                          fmt::format("{}/{}/huggingface", order.temporary, role),
                                          HfExportOptions{}));
      for (ExportedFile& file : exported) {
        const std::string path = fmt::format("{}/huggingface/{}", role, file.name);
        manifest.files.push_back({path, FileRole::kHfModel, file.digest.size, file.digest.whole});
        index.AddFile(path, std::move(file.digest));
      }
    }
    for (const std::string& path : temporary_parts) {
      KEEL_RETURN_IF_ERROR(fs.Remove(fmt::format("{}/{}", order.temporary, path)));
    }
  }

  // 3. The index, then the manifest and the rename.
  KEEL_ASSIGN_OR_RETURN(const std::string index_bytes, index.Build());
  KEEL_RETURN_IF_ERROR(
      WriteFileDurably(fs, fmt::format("{}/{}", order.temporary, kIndexName), index_bytes));
  const ChunkedDigest index_digest = DigestOfText(index_bytes, options.chunk_bytes);
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const ManifestFile& a, const ManifestFile& b) { return a.path < b.path; });
  manifest.run_id = options.run_id;
  manifest.save_id = order.save_id;
  manifest.step = request.step;
  manifest.created = FormatUtc(clock.Wall());
  manifest.config_digest = request.config_digest;
  manifest.layout = request.layout;
  manifest.roles = plan.roles;
  manifest.contents = request.contents;
  manifest.metric = request.metric;
  manifest.chunk_bytes = options.chunk_bytes;
  manifest.index_size = index_digest.size;
  manifest.index_digest = index_digest.whole;
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> committed, ListCheckpoints(fs));
  for (const CatalogEntry& entry : committed) {
    if (entry.manifest) manifest.sequence = std::max(manifest.sequence, entry.manifest->sequence);
  }
  ++manifest.sequence;
  KEEL_RETURN_IF_ERROR(committer.Publish(order.temporary, manifest, directories));
  record->total_bytes = manifest.TotalBytes();
  return Status::Ok();
}

// What can be known without reading all of it again: manifest, index, every file with its size.
Status Checkpointer::Impl::VerifyCommit(int64_t step, const std::string& save_id) const {
  KEEL_ASSIGN_OR_RETURN(const StepReader reader, StepReader::Open(fs, StepDirectory(step)));
  if (reader.manifest().save_id != save_id) {
    return Status(StatusCode::kDataLoss,
                  fmt::format("{} is of save {}, expected {}", fs.Describe(StepDirectory(step)),
                              reader.manifest().save_id, save_id));
  }
  return Status::Ok();
}

void Checkpointer::Impl::Retain(SaveRecord* record) {
  const Result<std::vector<CatalogEntry>> entries = ListCheckpoints(fs);
  if (!entries.ok()) {
    log.Warning("old checkpoints were not looked at: {}", entries.status().message());
    return;
  }
  std::vector<CommittedStep> committed;
  for (const CatalogEntry& entry : *entries) {
    if (entry.manifest)
      committed.push_back({entry.step, entry.manifest->sequence, entry.manifest->metric, false});
  }
  for (const int64_t step : StepsToRemove(committed, Policy())) {
    const auto entry = std::find_if(entries->begin(), entries->end(), [&](const CatalogEntry& e) {
      return e.step == step && e.manifest;
    });
    if (const Status status =
            RemoveCheckpoint(fs, entry->directory, step, entry->manifest->save_id);
        !status.ok()) {
      log.Warning("{} could not be removed: {}", fs.Describe(entry->directory), status.message());
      return;
    }
    proven.erase(entry->manifest->save_id);
    record->removed.push_back(step);
  }
}

void Checkpointer::Impl::Record(const Json& json) {
  if (!leads()) return;
  Json line = {{"time", FormatUtc(clock.Wall())}};
  line.update(json);
  if (const Status status = AppendRecord(fs, kRecordsName, line); !status.ok()) {
    log.Warning("{} was not written: {}", fs.Describe(kRecordsName), status.message());
  }
}

Checkpointer::Checkpointer(FileSystem& fs, Coordinator& coordinator, const Clock& clock,
                           Logger& log, CheckpointOptions options)
    : impl_(std::make_unique<Impl>(fs, coordinator, clock, log, std::move(options))) {
  if (const std::vector<std::string> problems = impl_->options.Validate(); !problems.empty()) {
    throw Error(StatusCode::kConfig,
                fmt::format("checkpoint options: {}", fmt::join(problems, "; ")));
  }
}

Checkpointer::~Checkpointer() {
  if (impl_->open) impl_->log.Warning("the checkpointer ends without Close");
}

Status Checkpointer::Open() {
  Impl& self = *impl_;
  Result<std::string> outcome = std::string();
  if (self.leads()) {
    if (const Status status = Guarded([&] { return self.OpenRunDirectory(); }); !status.ok())
      outcome = status;
  }
  outcome = BroadcastResult(self.coordinator, self.NextTag("open"), outcome, self.options.deadline);
  self.open = outcome.ok();
  if (!outcome.ok()) self.lock.reset();
  return outcome.status();
}

Result<SaveRecord> Checkpointer::Save(const SaveRequest& request) {
  Impl& self = *impl_;
  Stopwatch total(self.clock);
  Stopwatch watch(self.clock);
  const std::string tag = self.NextTag("save");
  SaveRecord record;
  record.step = request.step;
  const auto failed = [&](const Status& status) {
    if (self.leads()) self.log.Error("step {} was not saved: {}", request.step, status.message());
    self.Record({{"event", "save_failed"},
                 {"step", request.step},
                 {"error", status.ToString()},
                 {"total_s", total.Elapsed()}});
    return status;
  };

  // 1. Plan, and rank 0's order.
  if (!self.open) return Status(StatusCode::kInternal, "Checkpointer::Save before Open");
  auto planned = self.planner.Plan(tag, request.roles, request.contents, self.options.deadline);
  if (!planned.ok()) return failed(planned.status());
  const SavePlan& plan = **planned;
  std::vector<std::string> directories;
  SaveOrder order;
  Result<std::string> text = std::string();
  if (self.leads()) {
    const Status status = Guarded([&]() -> Status {
      KEEL_ASSIGN_OR_RETURN(order, self.BeginSave(request, plan, &directories));
      return Status::Ok();
    });
    text = status.ok() ? Result<std::string>(order.Encode()) : Result<std::string>(status);
  }
  text = BroadcastResult(self.coordinator, tag + "/order", text, self.options.deadline);
  if (!text.ok()) {
    if (self.leads() && !order.temporary.empty()) self.committer.Abort(order.temporary);
    return failed(text.status());
  }
  KEEL_ASSIGN_OR_RETURN(order, SaveOrder::Decode(*text));
  record.save_id = order.save_id;
  record.planned_s = watch.Lap();

  // 2. Write, and report only what is on the disk.
  SaveReport report;
  report.status = Guarded([&] { return self.WriteFiles(request, plan, order, &report, &record); });
  watch.Lap();
  if (report.status.ok() && order.read_back) {
    report.status = Guarded([&] { return self.ReadBack(order, report); });
    record.verified_s = watch.Lap();
  }
  const std::chrono::milliseconds patience = WithDiskTime(
      self.options.deadline, plan.largest_rank_bytes * (order.read_back ? 2 : 1) +
                                 (request.contents.hf_model ? 2 * plan.total_bytes : 0));
  const auto reports = Gather(self.coordinator, tag + "/report", report.Encode(), patience);

  // 3. Rank 0 commits; its finding is everyone's.
  Result<std::string> outcome = std::string();
  if (self.leads()) {
    Status status = reports.status();
    watch.Lap();
    if (status.ok()) {
      status = Guarded(
          [&] { return self.Commit(request, plan, order, directories, *reports, &record); });
    }
    if (!status.ok()) self.committer.Abort(order.temporary);
    record.commit_s = watch.Lap();
    outcome = status.ok() ? Result<std::string>(fmt::format("{}", record.total_bytes))
                          : Result<std::string>(status);
  } else if (!reports.ok()) {
    return failed(reports.status());
  }
  outcome = BroadcastResult(self.coordinator, tag + "/outcome", outcome, patience);
  if (!outcome.ok()) return failed(outcome.status());
  record.total_bytes = std::stoll(*outcome);

  // 4. The step is committed. What follows can no longer fail the save.
  if (self.leads()) {
    watch.Lap();
    const Status verified = Guarded([&] { return self.VerifyCommit(request.step, order.save_id); });
    record.verified_s += watch.Lap();
    if (const Status status = WriteTracker(self.fs, request.step); !status.ok()) {
      self.log.Warning("{} was not written, which resuming does not need: {}", kTrackerName,
                       status.message());
    }
    if (!verified.ok()) {
      self.log.Error("{} does not verify right after its commit, so nothing older is removed: {}",
                     StepDirectory(request.step), verified.message());
    } else {
      if (order.read_back) self.proven.insert(order.save_id);
      self.Retain(&record);
    }
  }
  record.total_s = total.Elapsed();
  record.blocked_s = record.total_s;
  self.Record(record.ToJson());
  self.log.Info("saved {}: {} bytes in {:.2f} s", StepDirectory(request.step), record.total_bytes,
                record.total_s);
  return record;
}

Result<std::optional<LoadRecord>> Checkpointer::Load(const LoadRequest& request) {
  Impl& self = *impl_;
  Loader loader(self.fs, self.coordinator, self.log, self.options.deadline,
                self.options.load_threads);
  Result<std::optional<LoadRecord>> loaded = loader.Load(self.NextTag("load"), request);
  if (!loaded.ok()) {
    if (self.leads()) self.log.Error("nothing was loaded: {}", loaded.status().message());
    if (self.open) self.Record({{"event", "load_failed"}, {"error", loaded.status().ToString()}});
    return loaded;
  }
  if (!loaded->has_value()) return loaded;
  const LoadRecord& record = **loaded;
  if (self.open) self.Record(record.ToJson());
  self.log.Info("loaded {}: {} bytes in {:.2f} s", record.directory, record.bytes, record.total_s);
  // A load of everything that there is has read and verified every byte.
  if (const Result<Manifest> manifest = ReadManifest(self.fs, record.directory);
      self.leads() && manifest.ok() && request.roles.size() == manifest->roles.size() &&
      request.contents.model >= manifest->contents.model &&
      request.contents.optimizer >= manifest->contents.optimizer) {
    self.proven.insert(manifest->save_id);
  }
  return loaded;
}

Status Checkpointer::Close() {
  Impl& self = *impl_;
  if (!self.open) return Status::Ok();
  self.open = false;
  // All ranks are done with the directory before its lock is released.
  const Status status =
      AgreeOn(self.coordinator, self.NextTag("close"), Status::Ok(), self.options.deadline);
  self.lock.reset();
  return status;
}

}  // namespace keel::checkpoint
