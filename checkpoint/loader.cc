#include "checkpoint/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/hf_weights.h"
#include "checkpoint/names.h"
#include "checkpoint/page_memory.h"
#include "checkpoint/read_plan.h"
#include "checkpoint/read_schedule.h"
#include "checkpoint/shared_reader.h"
#include "checkpoint/tracker.h"
#include "checkpoint/wire.h"
#include "common/clock.h"
#include "common/fail_point.h"

namespace keel::checkpoint {
namespace {

constexpr int64_t kMaxDocument = int64_t{1} << 30;
constexpr std::chrono::milliseconds kLookAgain{250};
// When a peer is gone there is no point in waiting for it once more; the others may still report.
constexpr std::chrono::milliseconds kLastWords{2'000};

Status Stop(std::string message) { return Status(StatusCode::kConfig, std::move(message)); }

// Damage is what an older checkpoint can heal.
bool IsDamage(const Status& status) { return status.code() == StatusCode::kDataLoss; }

std::string Join(const std::set<std::string>& names, size_t most = 20) {
  std::string text;
  size_t i = 0;
  for (const std::string& name : names) {
    if (i == most) return text + fmt::format(" and {} more", names.size() - most);
    text += (i++ > 0 ? ", " : "") + name;
  }
  return text;
}

template <typename Work>
Status Guard(const Work& work) {
  try {
    return work();
  } catch (const std::exception& e) {
    return Status(StatusCode::kInternal, e.what());
  }
}

struct Scope {
  std::string name;  // "actor/model"
  const ShardTable* live = nullptr;
};

// Weights that are saved as one whole Hugging Face model take the place of the sharded ones.
bool TakesHfWeights(const LoadRequest& request) {
  return request.contents.hf_model && !request.contents.model;
}

std::vector<Scope> ScopesOf(const LoadRequest& request) {
  std::vector<Scope> scopes;
  for (const RoleState& role : request.roles) {
    if (request.contents.model || request.contents.hf_model)
      scopes.push_back({role.name + "/model", &role.model});
    if (request.contents.optimizer) scopes.push_back({role.name + "/optimizer", &role.optimizer});
  }
  return scopes;
}

// The files whose every byte a load reads and verifies, by number.
std::vector<int> FilesOf(const LoadRequest& request, const StepReader& reader) {
  std::vector<int> files;
  for (int f = 0; f < reader.index().files(); ++f) {
    const ManifestFile* file = reader.manifest().Find(reader.index().file(f).path);
    const bool kind = (file->role == FileRole::kModel && request.contents.model) ||
                      (file->role == FileRole::kOptimizer && request.contents.optimizer) ||
                      (file->role == FileRole::kHfModel && TakesHfWeights(request));
    const bool role =
        std::any_of(request.roles.begin(), request.roles.end(),
                    [&](const RoleState& one) { return file->path.starts_with(one.name + "/"); });
    if (kind && role) files.push_back(f);
  }
  return files;
}

// Copies shards from one table to another of the same boxes; all of them, or those listed.
void CopyShards(const ShardTable& from, const ShardTable& to, std::span<const int> listed,
                bool all) {
  const size_t count = all ? from.shards().size() : listed.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t s = all ? i : static_cast<size_t>(listed[i]);
    const Shard& source = from.shards()[s];
    if (source.box.empty()) continue;
    CopyBox(source.box, source.box, source.view, source.box, to.shards()[s].view,
            DTypeSize(from.tensor_of(source).dtype));
  }
}

// What a rank tells rank 0 before anything is read.
struct Report {
  bool channel = false;
  std::vector<int32_t> scopes;  // of the index, that it loads
  std::vector<bool> wanted;     // by tensor of the index
  std::vector<ChunkNeed> needs;

  std::string Serialize() const {
    WireWriter out;
    out.U32(channel ? 1 : 0);
    out.U64(scopes.size());
    for (const int32_t scope : scopes) out.Pod(scope);
    std::string bits((wanted.size() + 7) / 8, '\0');
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i]) bits[i / 8] = static_cast<char>(bits[i / 8] | (1 << (i % 8)));
    }
    out.Text(bits);
    out.U64(needs.size());
    for (const ChunkNeed& need : needs) out.Pod(need);
    return std::move(out).Take();
  }

  bool Parse(std::string_view text, const Index& index) {
    WireReader in(text);
    uint32_t has_channel = 0;
    uint64_t count = 0;
    if (!in.U32(&has_channel) || !in.U64(&count) || count > in.remaining() / sizeof(int32_t))
      return false;
    channel = has_channel != 0;
    scopes.resize(count);
    for (int32_t& scope : scopes) {
      if (!in.Pod(&scope) || scope < 0 || scope >= index.scopes()) return false;
    }
    std::string bits;
    if (!in.Text(&bits) || bits.size() != static_cast<size_t>((index.tensors() + 7) / 8))
      return false;
    wanted.resize(static_cast<size_t>(index.tensors()));
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = ((bits[i / 8] >> (i % 8)) & 1) != 0;
    if (!in.U64(&count) || count != in.remaining() / sizeof(ChunkNeed)) return false;
    needs.resize(count);
    for (ChunkNeed& need : needs) {
      if (!in.Pod(&need) || need.file < 0 || need.file >= index.files() || need.eighths < 1 ||
          need.eighths > 8 || need.first < 0 || need.count < 1 ||
          need.count > index.file(need.file).chunk_count - need.first)
        return false;
    }
    return in.AtEnd();
  }
};

}  // namespace

// One candidate on one rank.
struct Loader::Attempt {
  Candidate candidate;
  std::optional<StepReader> reader;
  std::vector<Scope> scopes;
  std::vector<ShardTable> staged;  // beside `scopes`; empty when values go straight to live memory
  std::vector<PageMemory> memory;
  std::optional<ReadPlan> plan;
  ReadSchedule schedule;
  bool overwritten = false;  // an earlier attempt has written to live memory
  bool peer_lost = false;
  bool peer_stopped = false;

  // Dense memory for all of this rank's boxes, and tables that view it.
  Status Allocate() {
    for (const Scope& scope : scopes) {
      PageMemory block = AllocatePages(scope.live->bytes());
      std::byte* const base = block.get();
      if (base == nullptr) {
        return Status(StatusCode::kUnavailable,
                      fmt::format("no memory for {} bytes of staging to load {}",
                                  scope.live->bytes(), scope.name));
      }
      memory.push_back(std::move(block));
      ShardTable table;
      int64_t at = 0;
      for (const Shard& shard : scope.live->shards()) {
        const TensorInfo& tensor = scope.live->tensor_of(shard);
        KEEL_RETURN_IF_ERROR(table.Add(
            tensor, shard.box, {base + at, ContiguousStrides(shard.box.size)}, shard.replica));
        at += shard.box.elements() * DTypeSize(tensor.dtype);
      }
      staged.push_back(std::move(table));
    }
    return Status::Ok();
  }

  // Elements that the checkpoint lacks, and may, keep their live values.
  void CopyUncovered() const {
    for (const auto& [request, shard] : plan->uncovered()) {
      const auto i = static_cast<size_t>(request);
      CopyShards(*scopes[i].live, staged[i], std::span(&shard, 1), false);
    }
  }

  void Apply() const {
    for (size_t i = 0; i < staged.size(); ++i) CopyShards(staged[i], *scopes[i].live, {}, true);
  }
};

std::chrono::milliseconds WithDiskTime(std::chrono::milliseconds deadline, int64_t bytes) {
  constexpr int64_t kSlowestBytesPerMs = 20'000;
  return deadline + std::chrono::milliseconds(bytes / kSlowestBytesPerMs);
}

Result<std::vector<std::string>> Loader::ListCandidates(const LoadRequest& request,
                                                        std::vector<SkippedCheckpoint>* skipped) {
  std::vector<std::string> candidates;
  if (!request.resume_path.empty()) {
    std::string path = request.resume_path;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    candidates.push_back(path);
    return candidates;
  }
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, ListCheckpoints(fs_));
  for (const CatalogEntry& entry : entries) {
    if (entry.manifest) {
      candidates.push_back(entry.directory);
    } else if (entry.status.code() == StatusCode::kInvalidData) {
      // Intact, but of a version or kind that this build does not read: going back to an older step
      // would lose work that another build of Keel can resume.
      return Stop(entry.status.message());
    } else if (entry.status.code() == StatusCode::kExhausted) {
      return entry.status;  // nothing is known of it: the same holds
    } else {
      skipped->push_back({entry.directory, entry.status.message()});
    }
  }
  const std::optional<int64_t> tracked = ReadTracker(fs_);
  if (!candidates.empty() && (!tracked || StepDirectory(*tracked) != candidates.front())) {
    log_.Info(
        "{} {}, the newest valid checkpoint is {}: loading that one", kTrackerName,
        tracked ? fmt::format("says {}", *tracked) : std::string("is missing or not a number"),
        candidates.front());
  }
  return candidates;
}

Result<std::string> Loader::Choose(const LoadRequest& request,
                                   const Result<std::vector<std::string>>& candidates, size_t* next,
                                   std::optional<StepReader>* reader,
                                   std::vector<SkippedCheckpoint>* skipped) {
  if (!candidates.ok()) return candidates.status();
  while (*next < candidates->size()) {
    const std::string& directory = (*candidates)[(*next)++];
    KEEL_RETURN_IF_ERROR(CheckRelativePath(directory, "the checkpoint to resume from"));
    Result<StepReader> opened = StepReader::Open(fs_, directory);
    if (opened.ok()) {
      WireWriter out;
      out.Text(directory);
      out.Text(opened->manifest().own_digest);
      reader->emplace(std::move(opened).value());
      return std::move(out).Take();
    }
    // What the listing showed and has vanished since is as good as damaged.
    const StatusCode code = opened.status().code();
    const bool damage =
        code == StatusCode::kDataLoss || code == StatusCode::kIo || code == StatusCode::kNotFound;
    if (!damage) return opened.status();
    const Status status(StatusCode::kDataLoss, opened.status().message());
    if (!request.resume_path.empty()) return status;
    log_.Error("{} cannot be loaded: {}", fs_.Describe(directory), status.message());
    skipped->push_back({directory, status.message()});
  }
  if (skipped->empty()) return std::string();
  std::string reasons;
  for (const SkippedCheckpoint& one : *skipped)
    reasons += fmt::format("\n  {}: {}", one.directory, one.reason);
  return Status(StatusCode::kDataLoss,
                fmt::format("{}: there are checkpoints but none is valid; not starting from "
                            "nothing. Move them away to begin anew:{}",
                            fs_.Describe("."), reasons));
}

Result<std::optional<LoadRecord>> Loader::Load(std::string_view tag, const LoadRequest& request) {
  Stopwatch watch;
  LoadRecord record;
  Result<std::vector<std::string>> candidates = std::vector<std::string>();
  if (coordinator_.rank() == 0) candidates = ListCandidates(request, &record.skipped);
  size_t next = 0;
  bool overwritten = false;
  const auto fail = [&](const Status& status) {
    if (!overwritten) return status;
    return Status(status.code(),
                  status.message() +
                      "; parts of checkpoints have been read into live memory, which "
                      "is of no use now: end this process");
  };

  for (size_t number = 0;; ++number) {
    // 1. Rank 0 says which one; an empty name ends the search.
    const std::string here = fmt::format("{}/{}", tag, number);
    Attempt attempt;
    Stopwatch lap;
    Result<std::string> chosen = std::string();
    if (coordinator_.rank() == 0) {
      const Status guarded = Guard([&] {
        chosen = Choose(request, candidates, &next, &attempt.reader, &record.skipped);
        return chosen.status();
      });
      if (!guarded.ok()) chosen = guarded;
    }
    const Result<std::string> text =
        BroadcastResult(coordinator_, here + "/choice", chosen, options_.deadline);
    if (!text.ok()) return fail(text.status());
    if (text->empty()) return std::optional<LoadRecord>();
    WireReader in(*text);
    if (!in.Text(&attempt.candidate.directory) || !in.Text(&attempt.candidate.manifest_digest)) {
      return Status(StatusCode::kInternal, "rank 0 sent a malformed choice of checkpoint");
    }

    // 2. All try it.
    KEEL_FAIL_POINT("load.chosen");
    attempt.overwritten = overwritten;
    record.planned_s = lap.Elapsed();
    const Status status = Try(here, request, &attempt, &record);
    overwritten = attempt.overwritten;
    const std::string& directory = attempt.candidate.directory;
    if (status.ok()) {
      record.directory = directory;
      record.total_s = watch.Elapsed();
      if (coordinator_.rank() == 0) {
        // Damaged ones that are older than the loaded one are of no consequence.
        std::erase_if(record.skipped, [&](const SkippedCheckpoint& one) {
          const auto step = ParseStepDirectory(one.directory);
          return step && *step < record.step &&
                 std::find(candidates->begin(), candidates->end(), one.directory) ==
                     candidates->end();
        });
        for (const SkippedCheckpoint& one : record.skipped) {
          log_.Warning("skipped {}, loaded {} instead: {}", one.directory, directory, one.reason);
        }
      }
      return std::optional<LoadRecord>(std::move(record));
    }
    if (!IsDamage(status) || !request.resume_path.empty()) return fail(status);
    if (coordinator_.rank() == 0) {
      log_.Error("{} cannot be loaded: {}", fs_.Describe(directory), status.message());
    }
    record.skipped.push_back({directory, status.message()});
  }
}

Status Loader::Try(std::string_view tag, const LoadRequest& request, Attempt* attempt,
                   LoadRecord* record) {
  Stopwatch watch;
  // 1. Plan, and agree on who reads what.
  const Status ready = Guard([&] { return Prepare(request, attempt); });
  KEEL_RETURN_IF_ERROR(AgreeOnSchedule(tag, request, ready, attempt));
  record->planned_s += watch.Lap();

  // 2. Read and verify, and vote.
  const Status mine = Guard([&] {
    KEEL_RETURN_IF_ERROR(Read(request, attempt, record));
    return FailPoint("load.read");
  });
  record->read_s = watch.Lap();
  const int64_t bytes = attempt->reader->manifest().TotalBytes();
  const Status vote =
      AgreeOn(coordinator_, fmt::format("{}/verified", tag), mine,
              attempt->peer_lost ? kLastWords : WithDiskTime(options_.deadline, bytes));
  // A rank that has lost a peer knows better whom than the vote, which waits for the same one.
  if (attempt->peer_lost) return mine;
  KEEL_RETURN_IF_ERROR(vote);
  if (attempt->peer_stopped) {
    return Status(StatusCode::kInternal, "a peer gave up reading and voted that all is well");
  }
  KEEL_FAIL_POINT("load.verified");
  KEEL_RETURN_IF_ERROR(ReadDocuments(tag, request, *attempt, record));
  record->verified_s = watch.Lap();
  KEEL_FAIL_POINT("load.documents");

  // 3. Now, and not before, live memory changes.
  attempt->Apply();
  KEEL_FAIL_POINT("load.applied");
  record->applied_s = watch.Lap();
  const Manifest& manifest = attempt->reader->manifest();
  record->step = manifest.step;
  record->manifest = Json::parse(manifest.Serialize());
  return Status::Ok();
}

Status Loader::OpenReader(Attempt* attempt) const {
  const Candidate& candidate = attempt->candidate;
  if (attempt->reader) return Status::Ok();  // rank 0
  KEEL_RETURN_IF_ERROR(CheckRelativePath(candidate.directory, "the checkpoint to resume from"));
  // Rank 0 has seen it whole. What differs here may only have to become visible yet.
  const Stopwatch watch;
  for (;;) {
    Result<StepReader> reader = StepReader::Open(fs_, candidate.directory);
    Status status = reader.status();
    if (reader.ok()) {
      if (reader->manifest().own_digest == candidate.manifest_digest) {
        attempt->reader.emplace(std::move(reader).value());
        return Status::Ok();
      }
      status = Status(StatusCode::kDataLoss,
                      fmt::format("{}: this rank sees another manifest than rank 0",
                                  fs_.Describe(candidate.directory)));
    }
    if (status.code() == StatusCode::kExhausted) return status;
    if (watch.Elapsed() * 1000 >= static_cast<double>(options_.visibility_grace.count())) {
      return Status(StatusCode::kDataLoss, status.message());
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

Status Loader::Prepare(const LoadRequest& request, Attempt* attempt) {
  KEEL_RETURN_IF_ERROR(OpenReader(attempt));
  KEEL_RETURN_IF_ERROR(CheckRequest(request, *attempt->reader));
  KEEL_FAIL_POINT("load.opened");
  if (TakesHfWeights(request)) {
    std::vector<std::string> roles;
    for (const RoleState& role : request.roles) roles.push_back(role.name);
    KEEL_ASSIGN_OR_RETURN(Index index, IndexOfHfWeights(*attempt->reader, roles));
    attempt->reader->ReplaceIndex(std::move(index));
  }
  attempt->scopes = ScopesOf(request);
  if (!request.in_place) KEEL_RETURN_IF_ERROR(attempt->Allocate());
  std::vector<ReadRequest> reads;
  for (size_t i = 0; i < attempt->scopes.size(); ++i) {
    const Scope& scope = attempt->scopes[i];
    reads.push_back(
        {scope.name, request.in_place ? scope.live : &attempt->staged[i], request.allow_missing});
  }
  const std::string where = fs_.Describe(attempt->candidate.directory);
  Result<ReadPlan> plan = ReadPlan::Make(attempt->reader->index(), reads);
  if (!plan.ok()) {
    return Stop(fmt::format(
        "{} is not of the model that this run builds: {}. Build the model that was saved "
        "(actor_rollout_ref.model), or name in allow_missing what may keep this run's own values",
        where, plan.status().message()));
  }
  if (attempt->overwritten && !plan->uncovered().empty()) {
    return Stop(
        fmt::format("{} lacks tensors that a damaged newer checkpoint has written over", where));
  }
  attempt->plan.emplace(std::move(plan).value());
  if (!request.in_place) attempt->CopyUncovered();
  return FailPoint("load.planned");
}

Status Loader::AgreeOnSchedule(std::string_view tag, const LoadRequest& request, const Status& mine,
                               Attempt* attempt) {
  Report report;
  if (mine.ok()) {
    const Index& index = attempt->reader->index();
    report.channel = request.channel != nullptr;
    for (const Scope& scope : attempt->scopes) {
      if (const int id = index.FindScope(scope.name); id >= 0) report.scopes.push_back(id);
    }
    report.wanted = attempt->plan->wanted_tensors();
    report.needs = NeedsOf(*attempt->plan, index);
  }
  // Beside the deadline, a peer may take its time to find what rank 0 has seen.
  const auto patience = options_.deadline + options_.visibility_grace;
  const Result<std::vector<std::string>> all =
      GatherResults(coordinator_, fmt::format("{}/ready", tag),
                    mine.ok() ? Result<std::string>(report.Serialize()) : mine, patience);
  Result<std::string> verdict = std::string();
  if (!all.ok()) {
    verdict = all.status();
  } else if (coordinator_.rank() == 0) {
    const Status guarded = Guard([&] {
      verdict = MakeSchedule(request, *attempt, *all);
      return verdict.status();
    });
    if (!guarded.ok()) verdict = guarded;
  }
  KEEL_ASSIGN_OR_RETURN(
      const std::string text,
      BroadcastResult(coordinator_, fmt::format("{}/schedule", tag), verdict, patience));
  KEEL_RETURN_IF_ERROR(mine);  // all is well with the others
  KEEL_ASSIGN_OR_RETURN(attempt->schedule,
                        ReadSchedule::Parse(text, attempt->reader->index(), coordinator_.world()));
  return Status::Ok();
}

Result<std::string> Loader::MakeSchedule(const LoadRequest& request, const Attempt& attempt,
                                         const std::vector<std::string>& reports) const {
  const Index& index = attempt.reader->index();
  std::vector<std::vector<ChunkNeed>> needs;
  std::vector<bool> wanted(static_cast<size_t>(index.tensors()), false);
  std::set<int> scopes;
  bool exchange = true;
  for (size_t r = 0; r < reports.size(); ++r) {
    Report report;
    if (!report.Parse(reports[r], index)) {
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} sent a malformed report of what it needs", r));
    }
    exchange = exchange && report.channel;
    scopes.insert(report.scopes.begin(), report.scopes.end());
    for (size_t t = 0; t < wanted.size(); ++t) wanted[t] = wanted[t] || report.wanted[t];
    needs.push_back(std::move(report.needs));
  }
  std::set<std::string> unused;
  for (const int scope : scopes) {
    const auto [first, count] = index.tensor_range(scope);
    for (int64_t t = first; t < first + count; ++t) {
      const std::string name(index.tensor(t).name);
      if (!wanted[static_cast<size_t>(t)] && !MatchesAny(request.allow_missing, name))
        unused.insert(fmt::format("{}:{}", index.scope_name(scope), name));
    }
  }
  if (!unused.empty()) {
    return Stop(fmt::format(
        "{} holds {} tensors that this run has no place for: {}. Build the model that was saved "
        "(actor_rollout_ref.model), or name in allow_missing what may be left out",
        fs_.Describe(attempt.reader->directory()), unused.size(), Join(unused)));
  }
  const std::vector<int> files = FilesOf(request, *attempt.reader);
  return MakeReadSchedule(index, files, needs, exchange, options_.round).Serialize();
}

Status Loader::Read(const LoadRequest& request, Attempt* attempt, LoadRecord* record) {
  const StepReader& reader = *attempt->reader;
  const ReadSchedule& schedule = attempt->schedule;
  attempt->overwritten = attempt->overwritten || request.in_place;
  const int rank = coordinator_.rank();
  if (schedule.exchange) {
    const int64_t in_a_round = 16 * reader.index().chunk_bytes();
    SharedReader shared(reader, *attempt->plan, schedule, *request.channel,
                        {.threads = options_.threads,
                         .share_memory = request.share_memory,
                         .deadline = WithDiskTime(options_.deadline, in_a_round)});
    SharedReadResult result = shared.Run();
    record->bytes = result.stats.bytes;
    record->received = result.stats.received;
    attempt->peer_lost = result.peer_lost;
    attempt->peer_stopped = result.peer_stopped;
    return result.status;
  }
  // Without an exchange: what this rank needs, and its share of what nobody needs.
  std::vector<ChunkId> chunks;
  const auto add = [&](int file, int64_t first, int64_t count) {
    for (int64_t c = first; c < first + count; ++c) chunks.push_back({file, c});
  };
  for (const ChunkNeed& need : NeedsOf(*attempt->plan, reader.index()))
    add(need.file, need.first, need.count);
  for (const ReadShare& share : schedule.shares) {
    if (share.reader == rank) add(share.file, share.first, share.count);
  }
  std::sort(chunks.begin(), chunks.end(), [](const ChunkId& a, const ChunkId& b) {
    return std::pair(a.file, a.chunk) < std::pair(b.file, b.chunk);
  });
  KEEL_ASSIGN_OR_RETURN(record->bytes, reader.ReadChunks(*attempt->plan, chunks, options_.threads));
  record->received = 0;
  return Status::Ok();
}

Status Loader::CheckRequest(const LoadRequest& request, const StepReader& reader) const {
  const Manifest& manifest = reader.manifest();
  const std::string where = fs_.Describe(reader.directory());
  if (!request.config_digest.empty() && !manifest.config_digest.empty() &&
      request.config_digest != manifest.config_digest) {
    return Stop(fmt::format(
        "{} is a checkpoint of another model: its config digest is '{}', this run's is '{}'. "
        "Use the configuration that it was saved with, or another default_local_dir",
        where, manifest.config_digest, request.config_digest));
  }
  const auto lacks = [&](std::string_view content) {
    return Stop(fmt::format(
        "{} holds no {}: it was saved with save_contents {}; leave '{}' out of load_contents",
        where, content, fmt::join(manifest.contents.Names(), ", "), content));
  };
  if (request.contents.model && !manifest.contents.model) return lacks("model");
  if (TakesHfWeights(request) && !manifest.contents.hf_model) return lacks("hf_model");
  if (request.contents.optimizer && !manifest.contents.optimizer) return lacks("optimizer");
  if (request.contents.extra && !manifest.contents.extra) return lacks("extra");
  for (const RoleState& role : request.roles) {
    if (std::find(manifest.roles.begin(), manifest.roles.end(), role.name) ==
        manifest.roles.end()) {
      return Stop(fmt::format("{} holds no role '{}', only: {}", where, role.name,
                              fmt::join(manifest.roles, ", ")));
    }
  }
  return Status::Ok();
}

Status Loader::ReadDocuments(std::string_view tag, const LoadRequest& request,
                             const Attempt& attempt, LoadRecord* record) {
  Result<std::string> packed = std::string();
  if (coordinator_.rank() == 0) {
    WireWriter out;
    Status status;
    for (const ManifestFile& file : attempt.reader->manifest().files) {
      if (file.role != FileRole::kDocument &&
          !(file.role == FileRole::kExtra && request.contents.extra))
        continue;
      const Result<std::string> text = attempt.reader->ReadText(file.path, kMaxDocument);
      if (!text.ok()) {
        status = text.status();
        break;
      }
      out.Text(file.path);
      out.Text(*text);
    }
    packed = status.ok() ? Result<std::string>(std::move(out).Take()) : Result<std::string>(status);
  }
  KEEL_ASSIGN_OR_RETURN(
      const std::string text,
      BroadcastResult(coordinator_, fmt::format("{}/documents", tag), packed, options_.deadline));
  record->documents.clear();
  for (WireReader in(text); !in.AtEnd();) {
    std::string path, content;
    if (!in.Text(&path) || !in.Text(&content)) {
      return Status(StatusCode::kInternal, "rank 0 sent malformed documents");
    }
    record->documents.emplace(std::move(path), std::move(content));
  }
  return Status::Ok();
}

}  // namespace keel::checkpoint
