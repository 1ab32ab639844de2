#include "checkpoint/save/saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/format/names.h"
#include "checkpoint/run/tracker.h"
#include "checkpoint/save/disk_space.h"
#include "checkpoint/save/step_publisher.h"
#include "common/fail_point.h"
#include "common/guarded.h"
#include "common/wire.h"

namespace keel::checkpoint {

using Action = CommitProtocol::Action;
using Event = CommitProtocol::Event;

namespace {

// How often a rank that writes looks whether the save has failed elsewhere.
constexpr double kLookEvery_s = 0.25;

std::string KeyOf(const std::string& tag, Message message, int from, int to) {
  return fmt::format("{}/{}/{}-{}", tag, MessageName(message), from, to);
}

// Bytes that one rank's disk may have to move before a peer hears of that rank. Each rank writes
// its own and reads them back (twice the largest rank's). Rank 0 may also export the whole model:
// it reads all weights, writes the export, and reads it back (three times the total). And where the
// step replaces an earlier version of itself, rank 0 reads both, the new one to prove it whole and
// the old one to prove that it may go (twice the total).
int64_t LongestDiskWork(const SaveRequest& request, const SavePlan& plan) {
  return 2 * plan.largest_rank_bytes + (request.contents.hf_model ? 3 : 0) * plan.total_bytes +
         2 * plan.total_bytes;
}

}  // namespace

struct Saver::Running {
  const std::string& tag;
  Snapshot& snapshot;
  SaveRecord* record;
  Stopwatch total;
  PeerKeys reports;  // rank 0: of the others
  std::shared_ptr<const SavePlan> plan = nullptr;
  std::shared_ptr<const SavePlan> ahead = nullptr;  // that was copied for before there was `plan`
  Status rest = {};  // of Snapshot::ReleaseRest, before there was `plan`
  SaveSize size = {};
  SaveOrder order = {};
  int64_t sequence = 0;              // rank 0: of the commit
  std::atomic<double> looked_s = 0;  // when `Interrupted` last looked at the coordinator
  // Rank 0: since it waits for reports, or a rank that it waited for last got somewhere.
  std::optional<std::chrono::nanoseconds> collecting = std::nullopt;
};

SpanDetails Saver::SpanOf(const Running& running) {
  return {.lane = SpanLane::kSaver, .step = running.snapshot.request().step};
}

namespace {

const char* SpanName(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::kBegin:
      return "begin";
    case Action::Kind::kReceive:
      return "wait for ranks";
    case Action::Kind::kWrite:
      return "write";
    case Action::Kind::kPublish:
      return "publish";
    case Action::Kind::kConclude:
      return "conclude";
    case Action::Kind::kAbort:
      return "abort";
    case Action::Kind::kSend:
      return "send";
    case Action::Kind::kFinish:
      return "finish";
  }
  return "";
}

}  // namespace

Saver::Saver(FileSystem& fs, Coordinator& coordinator, const Clock& clock, Logger& log,
             const CheckpointOptions& options, std::function<Status()> guard,
             std::function<uint64_t()> entropy)
    : fs_(fs),
      coordinator_(coordinator),
      clock_(clock),
      log_(log),
      options_(options),
      guard_(std::move(guard)),
      entropy_(std::move(entropy)),
      progress_(coordinator, clock, options.deadline),
      watched_(fs, [this] { progress_.Move(); }),
      planner_(coordinator, options.chunk_bytes),
      committer_(watched_, log),
      patience_(options.deadline),
      backend_(fs, options.io, options.names.io, coordinator.rank(), log) {}

Saver::~Saver() = default;

uint64_t Saver::SystemEntropy() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

RetentionPolicy Saver::Policy() const {
  RetentionPolicy policy = options_.retention;
  policy.keep_latest =
      options_.remove_previous_ckpt_in_save ? std::optional(1) : options_.max_ckpts_to_keep;
  return policy;
}

RetentionRequest Saver::Retention() const {
  RetentionRequest request;
  request.policy = Policy();
  request.run_id = options_.run_id;
  request.known = known_;
  return request;
}

Result<DiskForecast> Saver::Prepare(const std::string& tag, Snapshot& snapshot) {
  const SaveRequest& request = snapshot.request();
  KEEL_ASSIGN_OR_RETURN(const std::shared_ptr<const SavePlan> plan,
                        planner_.Plan(tag, request.roles, request.contents, options_.deadline));
  // One order from rank 0: the back-end, and what it sees of the disk.
  struct Order {
    DiskForecast forecast;
    IoBackend io = IoBackend::kBuffered;
  } order;
  Result<std::string> text = std::string();
  if (leads()) {
    const Status status = Guarded([&]() -> Status {
      KEEL_ASSIGN_OR_RETURN(order.forecast,
                            ForecastDisk(fs_, Policy(), options_.run_id,
                                         PredictSize(request, *plan, options_.chunk_bytes)));
      const std::string probe =
          ScratchDirectory(ScratchKind::kTemporary, 0, MakeSaveId(entropy_()));
      const Status made = fs_.MakeDirectory(probe);
      // A full disk is for the forecast to speak of; there is nothing to be measured on it.
      if (made.code() == StatusCode::kNoSpace) {
        order.io = backend_.Unmeasured();
        return Status::Ok();
      }
      KEEL_RETURN_IF_ERROR(made);
      order.io = backend_.Choose(plan->largest_rank_bytes, probe);
      committer_.Abort(probe);
      return Status::Ok();
    });
    WireWriter out;
    out.Pod(order);
    text = status.ok() ? Result<std::string>(std::move(out).Take()) : Result<std::string>(status);
  }
  text = BroadcastResult(coordinator_, tag + "/prepare", text, options_.deadline);
  KEEL_RETURN_IF_ERROR(text.status());
  if (!WireReader(*text).Pod(&order)) {
    return Status(StatusCode::kInternal, "rank 0 sent a malformed forecast");
  }
  const Status reserved = Guarded([&]() -> Status {
    KEEL_ASSIGN_OR_RETURN(SnapshotWriter* const writer, WriterFor(order.io));
    if (!snapshot.may_change()) return Status::Ok();
    const std::vector<FileToWrite> files = snapshot.FilesOf(*plan, coordinator_.rank());
    return Reserve(writer, files);
  });
  KEEL_RETURN_IF_ERROR(AgreeOn(coordinator_, tag + "/reserved", reserved, options_.deadline));
  return order.forecast;
}

Status Saver::Run(const std::string& tag, Snapshot& snapshot, SaveRecord* record) {
  PeerKeys reports(coordinator_, options_.deadline,
                   [&tag](int peer) { return KeyOf(tag, Message::kReport, peer, 0); });
  Running running{tag, snapshot, record, Stopwatch(clock_), std::move(reports)};
  record->step = snapshot.request().step;
  record->async = snapshot.may_change();
  patience_ = options_.deadline;
  progress_.Begin(tag);
  // Also when memory runs out on the way: what is being copied must be let go of here.
  const ScopedSpan span(options_.spans, "save", SpanOf(running));
  const Status outcome = Guarded([&] {
    StageAhead(&running);
    return PlanAndPerform(&running);
  });
  if (writer_ != nullptr) writer_->Abandon();
  snapshot.ReleaseAll();
  progress_.End();
  if (leads()) TidyStore();  // the others have heard
  record->total_s = running.total.Elapsed();
  return outcome;
}

// The plan, and then what the protocol says.
Status Saver::PlanAndPerform(Running* running) {
  const SaveRequest& request = running->snapshot.request();
  ScopedSpan plan_span(options_.spans, "plan", SpanOf(*running));
  Result<std::shared_ptr<const SavePlan>> plan =
      planner_.Plan(running->tag, request.roles, request.contents, options_.deadline);
  plan_span.End();
  Status outcome = plan.status();
  if (plan.ok()) {
    running->plan = std::move(plan).value();
    patience_ = WithDiskTime(options_.deadline, LongestDiskWork(request, *running->plan));
    running->size = PredictSize(request, *running->plan, options_.chunk_bytes);
    running->record->predicted_bytes = running->size.checkpoint_bytes;
    CommitProtocol protocol(coordinator_.rank(), coordinator_.world());
    Event event;
    while (!protocol.finished()) {
      for (const Action& action : protocol.On(event)) {
        progress_.Move();
        switch (action.kind) {
          case Action::Kind::kSend:
            if (const Status sent = Send(action, *running); !sent.ok()) {
              log_.Warning("save of step {}: a message was not sent: {}", request.step,
                           sent.message());
            }
            break;
          case Action::Kind::kAbort:
            committer_.Abort(running->order.temporary);
            break;
          case Action::Kind::kFinish:
            outcome = action.status;
            if (outcome.ok()) {
              const Result<SaveOutcome> sent = SaveOutcome::Decode(action.payload);
              if (sent.ok()) {
                running->record->total_bytes = sent->total_bytes;
                running->record->expected_s = sent->seconds;
              }
            }
            break;
          case Action::Kind::kPublish: {
            const ScopedSpan span(options_.spans, SpanName(action.kind), SpanOf(*running));
            Result<std::string> published = std::string();
            const Status status = Guarded([&]() -> Status {
              published = Publish(protocol.reports(), running);
              return published.status();
            });
            event = {Event::Kind::kPublished, status, status.ok() ? *published : std::string()};
            break;
          }
          case Action::Kind::kBegin:
          case Action::Kind::kWrite:
          case Action::Kind::kReceive:
          case Action::Kind::kConclude:
            event = Perform(action, running);
            break;
        }
      }
    }
  }
  return outcome;
}

Event Saver::Perform(const Action& action, Running* running) {
  const auto event = [](Event::Kind kind, const auto& work) {
    Result<std::string> result = std::string();
    const Status status = Guarded([&]() -> Status {
      result = work();
      return result.status();
    });
    return Event{kind, status, status.ok() ? std::move(result).value() : std::string()};
  };
  const ScopedSpan span(options_.spans, SpanName(action.kind), SpanOf(*running));
  switch (action.kind) {
    case Action::Kind::kBegin:
      return event(Event::Kind::kBegun, [&] { return Begin(running); });
    case Action::Kind::kReceive:
      return event(Event::Kind::kReceived, [&] { return Receive(action, running); });
    case Action::Kind::kWrite:
      return event(Event::Kind::kWritten, [&] { return Write(action.payload, running); });
    case Action::Kind::kConclude:
      return event(Event::Kind::kConcluded, [&]() -> Result<std::string> {
        Conclude(running);
        return std::string();
      });
    case Action::Kind::kPublish:
    case Action::Kind::kAbort:
    case Action::Kind::kSend:
    case Action::Kind::kFinish:
      break;  // PlanAndPerform's own
  }
  throw Error(StatusCode::kInternal,
              std::string("a save cannot ") + SpanName(action.kind) + " here");
}

Status Saver::Send(const Action& action, const Running& running) {
  switch (action.message) {
    case Message::kOrder:
      KEEL_FAIL_POINT("save.order");
      break;
    case Message::kReport:
      KEEL_FAIL_POINT("save.report");
      break;
    case Message::kOutcome:
      KEEL_FAIL_POINT("save.outcome");
      break;
  }
  const std::string text = EncodeResult(action.status, action.payload);
  const bool all = action.peer == CommitProtocol::kEveryPeer;
  const int first = all ? 0 : action.peer;
  const int last = all ? coordinator_.world() - 1 : action.peer;
  std::vector<std::string> keys;
  for (int to = first; to <= last; ++to) {
    if (to != coordinator_.rank())
      keys.push_back(KeyOf(running.tag, action.message, coordinator_.rank(), to));
  }
  return coordinator_.PutAll(keys, std::vector<std::string>(keys.size(), text));
}

Result<std::string> Saver::Receive(const Action& action, Running* running) {
  // Rank 0 waits for all reports together as long as a disk may take, and on while whoever it waits
  // for gets anywhere; the others twice that for rank 0, so that its finding, with the late rank's
  // number, reaches them.
  std::chrono::milliseconds patience = options_.deadline;
  if (action.message != Message::kOrder) patience = patience_;
  std::chrono::nanoseconds since = clock_.Monotonic();
  if (leads()) {
    since = running->collecting.value_or(since);
  } else {
    patience *= 2;
  }
  const std::string key = KeyOf(running->tag, action.message, action.peer, coordinator_.rank());
  if (!leads()) TidyStore();
  const auto wait = [&](const std::string& awaited) {
    return progress_.Await(awaited, action.peer, patience, leads(), &since);
  };
  const Result<std::string> text = leads() ? running->reports.Get(action.peer, wait) : wait(key);
  if (leads()) running->collecting = since;
  if (!text.ok()) {
    return text.status().WithContext(
        fmt::format("waiting for the {} of rank {}", MessageName(action.message), action.peer));
  }
  read_.push_back(key);
  return DecodeResult(*text, MessageName(action.message));
}

void Saver::TidyStore() {
  (void)coordinator_.DeleteAll(read_);
  read_.clear();
}

Result<std::string> Saver::Begin(Running* running) {
  const SaveRequest& request = running->snapshot.request();
  KEEL_FAIL_POINT("save.begin");
  KEEL_RETURN_IF_ERROR(CheckDocuments(request, *running->plan));
  // Room for all of it, as far as the file system tells: better now than after minutes of writing.
  const bool removes = Policy().keep_latest && !request.keep_older;
  const auto room = [&] {
    return CheckRoom(fs_, running->size.total(), Policy().keep_latest ? "" : options_.names.keep);
  };
  // What could not go after its successor's save, or had no time to, makes room before the next.
  if (removes && room().code() == StatusCode::kNoSpace) Retain(running->record);
  KEEL_RETURN_IF_ERROR(room());
  SaveOrder& order = running->order;
  order.save_id = MakeSaveId(entropy_());
  // One look at what is there for all: until this save has ended nobody else commits here.
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, catalog_.List(fs_));
  KEEL_ASSIGN_OR_RETURN(running->sequence, NextSequence(entries, newest_sequence_));
  order.read_back =
      !request.keep_older && NeedsProof(fs_, entries, Retention(), request.step, request.metric);
  KEEL_ASSIGN_OR_RETURN(order.temporary, committer_.Begin(request.step, order.save_id,
                                                          DirectoriesOf(request, *running->plan)));
  order.io = backend_.Choose(running->plan->largest_rank_bytes, order.temporary);
  return order.Encode();
}

Result<SnapshotWriter*> Saver::WriterFor(IoBackend ordered) {
  KEEL_ASSIGN_OR_RETURN(const IoBackend backend, backend_.Usable(ordered));
  if (writer_ == nullptr || writer_->backend() != backend) {
    writer_ = std::make_unique<SnapshotWriter>(fs_, backend, options_.chunk_bytes,
                                               options_.dist_ckpt_workers);
  }
  return writer_.get();
}

// Cancelled here, or failed elsewhere: then there is no use in writing on.
Status Saver::Interrupted(Running* running) {
  KEEL_RETURN_IF_ERROR(running->snapshot.cancelled());
  const double now = running->total.Elapsed();
  double looked = running->looked_s.load();
  if (leads() || now - looked < kLookEvery_s) return Status::Ok();
  if (!running->looked_s.compare_exchange_strong(looked, now)) return Status::Ok();  // another does
  const Result<std::string> text = coordinator_.Get(
      KeyOf(running->tag, Message::kOutcome, 0, coordinator_.rank()), std::chrono::milliseconds(0));
  return text.ok() ? DecodeResult(*text, MessageName(Message::kOutcome)).status() : Status::Ok();
}

Status Saver::Reserve(SnapshotWriter* writer, std::span<const FileToWrite> files) const {
  const Status status = writer->Reserve(files, options_.host_memory_cap);
  if (status.ok()) return status;
  return {status.code(), status.cause(),
          fmt::format("{}; {}", status.message(), options_.names.less_staging)};
}

void Saver::StageAhead(Running* running) {
  const SaveRequest& request = running->snapshot.request();
  if (!running->snapshot.may_change() || writer_ == nullptr) return;
  std::shared_ptr<const SavePlan> plan = planner_.Likely(request.roles, request.contents);
  if (plan == nullptr) return;
  std::vector<FileToWrite> files = running->snapshot.FilesOf(*plan, coordinator_.rank());
  const Status status = Guarded([&]() -> Status {
    KEEL_RETURN_IF_ERROR(Reserve(writer_.get(), files));
    return writer_->Stage(std::move(files), HooksOf(running));
  });
  if (!status.ok()) return;  // it is done later, or fails there, where all ranks hear of it
  running->ahead = std::move(plan);
  running->rest = running->snapshot.ReleaseRest();
}

WriteHooks Saver::HooksOf(Running* running) {
  WriteHooks hooks;
  hooks.arrived = [running](size_t file, size_t piece) {
    return running->snapshot.Arrived(file, piece);
  };
  hooks.released = [running](size_t file, size_t piece) {
    running->snapshot.Released(file, piece);
  };
  hooks.gave_up = [running] { running->snapshot.ReleasePieces(); };
  hooks.interrupted = [this, running] { return Interrupted(running); };
  hooks.moved = [this] { progress_.Move(); };
  hooks.spans = options_.spans;
  hooks.step = running->snapshot.request().step;
  return hooks;
}

Result<std::string> Saver::Write(const std::string& text, Running* running) {
  KEEL_ASSIGN_OR_RETURN(running->order, SaveOrder::Decode(text));
  KEEL_FAIL_POINT("save.write");
  const SaveOrder& order = running->order;
  SaveRecord* record = running->record;
  record->save_id = order.save_id;
  record->planned_s = running->total.Elapsed();
  Snapshot& snapshot = running->snapshot;
  KEEL_ASSIGN_OR_RETURN(SnapshotWriter* const usable, WriterFor(order.io));
  SnapshotWriter& writer = *usable;
  record->io = NameOf(writer.backend());
  WriteTimes times;
  Result<std::vector<ChunkedDigest>> digests = std::vector<ChunkedDigest>();
  if (running->ahead != nullptr) {
    if (running->ahead != running->plan || !writer.staging()) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("step {}: the shape of the state, or the back-end, has changed on "
                                "another rank since the last save: this one is given up",
                                snapshot.request().step));
    }
    KEEL_RETURN_IF_ERROR(running->rest);
    digests = writer.WriteTo(order.temporary, &times);
  } else {
    std::vector<FileToWrite> files = snapshot.FilesOf(*running->plan, coordinator_.rank());
    KEEL_RETURN_IF_ERROR(snapshot.ReleaseRest());
    if (snapshot.may_change()) KEEL_RETURN_IF_ERROR(Reserve(&writer, files));
    digests = writer.Write(order.temporary, std::move(files), HooksOf(running), &times);
  }
  KEEL_RETURN_IF_ERROR(digests.status());
  KEEL_FAIL_POINT("save.staged");
  KEEL_RETURN_IF_ERROR(snapshot.CheckUnchanged());
  KEEL_RETURN_IF_ERROR(Interrupted(running));

  SaveReport report;
  const Stopwatch reading_back(clock_);
  if (order.read_back) KEEL_FAIL_POINT("save.read_back");
  ScopedSpan read_back_span(order.read_back ? options_.spans : nullptr, "read back",
                            SpanOf(*running));
  size_t next = 0;
  for (const PlannedFile& file : running->plan->files) {
    if (file.rank != coordinator_.rank()) continue;
    ChunkedDigest& digest = (*digests)[next++];
    // Weights that only serve to make hf_model are read, and verified, for that.
    const bool temporary = file.kind == FileRole::kModel && !snapshot.request().contents.model;
    if (order.read_back && !temporary) {
      KEEL_RETURN_IF_ERROR(ReadBack(watched_, fmt::format("{}/{}", order.temporary, file.path),
                                    digest, options_.chunk_bytes));
    }
    record->bytes += digest.size;
    report.files.emplace_back(file.path, std::move(digest));
  }
  if (order.read_back) record->verified_s = reading_back.Elapsed();
  read_back_span.End();
  record->staged_s = times.staged_s;
  record->written_s = times.written_s;
  record->fsync_s = times.fsync_s;
  report.record = {record->bytes, times.staged_s, times.written_s, times.fsync_s};
  report.weights_digest = snapshot.digest();
  report.copies = snapshot.CopyDigests();
  return report.Encode();
}

Result<std::string> Saver::Publish(const std::vector<std::string>& texts, Running* running) {
  const Stopwatch watch(clock_);
  std::vector<SaveReport> reports;
  std::vector<std::vector<CopyDigest>> copies;
  for (const std::string& text : texts) {
    KEEL_ASSIGN_OR_RETURN(SaveReport report, SaveReport::Decode(text));
    running->record->ranks.push_back(report.record);
    copies.push_back(std::move(report.copies));
    reports.push_back(std::move(report));
  }
  KEEL_FAIL_POINT("save.collect");
  KEEL_RETURN_IF_ERROR(CompareCopies(copies, options_.names.apart));
  KEEL_RETURN_IF_ERROR(guard_());
  KEEL_FAIL_POINT("publish.guard");
  StepPublisher publisher(watched_, committer_, clock_, options_, guard_);
  KEEL_ASSIGN_OR_RETURN(const Manifest manifest,
                        publisher.Publish({running->snapshot.request(), *running->plan,
                                           running->order, running->sequence, std::move(reports)}));
  newest_sequence_ = running->sequence;
  running->record->commit_s = watch.Elapsed();
  // It is saved: that the others may not hear how many bytes there were cannot fail it any more.
  std::string outcome;
  (void)Guarded([&] {
    outcome = SaveOutcome{manifest.TotalBytes(), running->total.Elapsed()}.Encode();
    return Status::Ok();
  });
  return outcome;
}

// The step is committed: what follows can no longer fail the save.
void Saver::Conclude(Running* running) {
  WarnUnlessTracked(Guarded([&]() -> Status {
    KEEL_FAIL_POINT("save.conclude");
    KEEL_FAIL_POINT("save.tracker");
    KEEL_RETURN_IF_ERROR(guard_());
    return WriteTracker(watched_, running->snapshot.request().step);
  }));
  if (running->order.read_back) known_.proven.insert(running->order.save_id);
  if (!running->snapshot.request().keep_older) Retain(running->record);
}

void Saver::WarnUnlessTracked(const Status& status) {
  if (status.ok()) return;
  log_.Warning("{} was not written, which resuming does not need: {}", kTrackerName,
               status.message());
}

std::vector<int64_t> Saver::Settle() {
  WarnUnlessTracked(Guarded([&]() -> Status {
    KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, catalog_.List(fs_));
    const CatalogEntry* newest = nullptr;
    for (const CatalogEntry& entry : entries) {
      if (!entry.manifest || entry.manifest->run_id != options_.run_id ||
          known_.damaged.contains(entry.manifest->save_id))
        continue;
      if (newest == nullptr || newest->manifest->sequence < entry.manifest->sequence)
        newest = &entry;
    }
    if (newest == nullptr || ReadTracker(watched_) == newest->step) return Status::Ok();
    KEEL_RETURN_IF_ERROR(guard_());
    return WriteTracker(watched_, newest->step);
  }));
  SaveRecord record;
  Retain(&record);
  return std::move(record.removed);
}

void Saver::Retain(SaveRecord* record) {
  Result<RetentionOutcome> outcome = RetentionOutcome();
  Status status = guard_();  // in a folder that another run has nothing is removed
  if (status.ok()) {
    outcome = RetainCheckpoints(watched_, Retention(), log_);
    status = outcome.status();
  }
  if (!status.ok()) {
    log_.Warning("old checkpoints were not looked at: {}", status.message());
    return;
  }
  known_ = std::move(outcome->known);
  record->removed.insert(record->removed.end(), outcome->removed.begin(), outcome->removed.end());
}

Result<int64_t> Saver::LookAround() {
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, catalog_.List(fs_));
  for (const CatalogEntry& entry : entries) {
    if (!IsUnread(entry)) continue;
    log_.Warning(
        "{} cannot be read: {}. Saves go on; this checkpoint is not resumed from and not counted "
        "by "
        "retention, and nothing removes it. Make it readable (owner and mode of the directory and "
        "of its files), or move it away",
        fs_.Describe(entry.directory), entry.status.message());
  }
  KEEL_ASSIGN_OR_RETURN(const int64_t next, NextSequence(entries));
  newest_sequence_ = next - 1;
  return next;
}

void Saver::NoteDamaged(const std::string& directory) {
  if (const Result<Manifest> manifest = ReadManifest(fs_, directory); manifest.ok())
    known_.damaged.insert(manifest->save_id);
}

}  // namespace keel::checkpoint
