#include "checkpoint/load/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "checkpoint/base/hand_on.h"
#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_weights.h"
#include "checkpoint/load/load_candidates.h"
#include "checkpoint/load/load_check.h"
#include "checkpoint/load/load_report.h"
#include "checkpoint/load/shared_reader.h"
#include "checkpoint/read/read_plan.h"
#include "checkpoint/read/read_schedule.h"
#include "common/clock.h"
#include "common/fail_point.h"
#include "common/guarded.h"
#include "common/memory/page_memory.h"
#include "common/wire.h"

namespace keel::checkpoint {
namespace {

// When a peer is gone there is no point in waiting for it once more; the others may still report.
constexpr std::chrono::milliseconds kLastWords{2'000};

// Damage is what an older checkpoint can heal.
bool IsDamage(const Status& status) { return status.code() == StatusCode::kDataLoss; }

// What rank 0 tells the others of the checkpoint that it found, and whether it hands it on.
std::string MessageOf(const StepReader& reader, bool hands_on) {
  WireWriter out;
  out.Text(reader.directory()).Text(reader.manifest().own_digest);
  out.Count(hands_on ? reader.manifest_text().size() : 0);
  out.Count(hands_on ? reader.index().bytes().size() : 0);
  return std::move(out).Take();
}

bool TakeMessage(std::string_view text, LoadCandidate* candidate) {
  WireReader in(text);
  uint64_t manifest = 0, index = 0;
  if (!in.Text(&candidate->directory) || !in.Text(&candidate->manifest_digest) ||
      !in.U64(&manifest) || !in.U64(&index) || !in.AtEnd())
    return false;
  candidate->manifest_size = static_cast<int64_t>(manifest);
  candidate->index_size = static_cast<int64_t>(index);
  return true;
}

struct Scope {
  std::string name;  // "actor/model"
  const ShardTable* live = nullptr;
};

// Of the roles that the checkpoint holds; others may be missing, or CheckRequest had said so.
std::vector<Scope> ScopesOf(const LoadRequest& request, const Manifest& manifest) {
  std::vector<Scope> scopes;
  for (const RoleState& role : request.roles) {
    if (!HoldsRole(manifest, role.name)) continue;
    if (request.contents.model || request.contents.hf_model)
      scopes.push_back({role.name + "/model", &role.model});
    if (request.contents.optimizer) scopes.push_back({role.name + "/optimizer", &role.optimizer});
  }
  return scopes;
}

// The documents, each verified, as they travel: paths and contents in turn.
Result<std::string> PackDocuments(const LoadRequest& request, const StepReader& reader) {
  WireWriter out;
  for (const ManifestFile& file : reader.manifest().files) {
    // Moments are of as many updates as a document of `extra` says.
    const bool extra = request.contents.extra || request.contents.optimizer;
    if (file.role != FileRole::kDocument && !(file.role == FileRole::kExtra && extra)) continue;
    KEEL_ASSIGN_OR_RETURN(const std::string text, reader.ReadText(file.path));
    out.Text(file.path).Text(text);
  }
  return std::move(out).Take();
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

// What allow_missing has let be.
void SayDifferences(Logger& log, const SettingNames& names, const LoadRecord& record) {
  if (!record.kept.empty()) {
    log.Warning(
        "{} lacks {} of this run's tensors or roles, or has them in another shape or dtype; they "
        "keep their own values as {} allows: {}",
        record.directory, record.kept.size(), names.allow_missing, FirstOf(record.kept));
  }
  if (!record.left_out.empty()) {
    log.Warning(
        "{} has {} tensors or roles that this run has no place for, left out as {} allows: {}",
        record.directory, record.left_out.size(), names.allow_missing, FirstOf(record.left_out));
  }
}

}  // namespace

// One candidate on one rank.
struct Loader::Attempt {
  LoadCandidate candidate;
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

  // "scope:tensor" of those.
  std::vector<std::string> Uncovered() const {
    std::set<std::string> names;
    for (const auto& [request, shard] : plan->uncovered()) {
      const Scope& scope = scopes[static_cast<size_t>(request)];
      const Shard& one = scope.live->shards()[static_cast<size_t>(shard)];
      names.insert(fmt::format("{}:{}", scope.name, scope.live->tensor_of(one).name));
    }
    return {names.begin(), names.end()};
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

Result<std::optional<LoadRecord>> Loader::Load(std::string_view tag, const LoadRequest& request) {
  Stopwatch watch;
  LoadRecord record;
  LoadCandidates candidates(fs_, log_, request, options_.run_id, options_.names);
  Status listed = coordinator_.rank() == 0 ? candidates.List(&record.skipped) : Status::Ok();
  const Result<std::vector<std::string>> channels =
      Gather(coordinator_, fmt::format("{}/channel", tag), request.channel == nullptr ? "" : "yes",
             options_.deadline + options_.visibility_grace);
  if (coordinator_.rank() != 0) KEEL_RETURN_IF_ERROR(channels.status());
  if (listed.ok()) listed = channels.status();
  const bool hands_on =
      channels.ok() && std::none_of(channels->begin(), channels->end(),
                                    [](const std::string& one) { return one.empty(); });
  bool overwritten = false;
  std::string passed;  // what was tried and is damaged
  const auto fail = [&](const Status& status) {
    if (!overwritten || request.scratch) return status;
    return Status(
        status.code(), status.cause(),
        status.message() +
            "; parts of checkpoints have been read into the memory that was given, which is "
            "of no use now: fill it anew, or end this process");
  };

  for (size_t number = 0;; ++number) {
    // 1. Rank 0 says which one; an empty name ends the search.
    const std::string here = fmt::format("{}/{}", tag, number);
    Attempt attempt;
    Stopwatch lap;
    Result<std::string> chosen = std::string();
    if (coordinator_.rank() == 0) {
      const Status guarded = Guarded([&] {
        KEEL_RETURN_IF_ERROR(listed);
        KEEL_ASSIGN_OR_RETURN(attempt.reader, candidates.Next(&record.skipped));
        if (attempt.reader) chosen = MessageOf(*attempt.reader, hands_on);
        return Status::Ok();
      });
      if (!guarded.ok()) chosen = guarded;
    }
    const Result<std::string> text = Tell(here + "/choice", chosen, options_.deadline);
    if (!text.ok()) return fail(text.status());
    if (text->empty()) return std::optional<LoadRecord>();
    if (!TakeMessage(*text, &attempt.candidate)) {
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
          return step && *step < record.step && !candidates.Has(one.directory);
        });
        for (const SkippedCheckpoint& one : record.skipped) {
          log_.Warning("skipped {}, loaded {} instead: {}", one.directory, directory, one.reason);
        }
        SayDifferences(log_, options_.names, record);
      }
      return std::optional<LoadRecord>(std::move(record));
    }
    if (!IsDamage(status) || !request.resume_path.empty())
      return fail(Status(status.code(), status.cause(), status.message() + passed));
    passed += fmt::format("; it is the next one after {}, which is damaged: {}", directory,
                          status.message());
    if (coordinator_.rank() == 0) {
      log_.Error("{} cannot be loaded: {}", fs_.Describe(directory), status.message());
    }
    record.skipped.push_back({directory, status.message()});
  }
}

Result<std::string> Loader::Tell(const std::string& tag, const Result<std::string>& value,
                                 std::chrono::milliseconds deadline) {
  Result<std::string> told = Announce(coordinator_, tag, value, deadline);
  if (!told.ok()) {
    Settle(coordinator_, tag, deadline);
  } else if (coordinator_.rank() == 0) {
    announced_.push_back(tag);
  }
  return told;
}

Result<std::string> Loader::TellInParts(const std::string& tag, const Result<std::string>& value,
                                        std::chrono::milliseconds deadline) {
  if (coordinator_.world() == 1) return value;
  const auto part_bytes = static_cast<size_t>(options_.part_bytes);
  const auto tag_at = [&](size_t at) { return fmt::format("{}/{}", tag, at); };
  // 1. The first part says of how many bytes it is the beginning, so that a short text is one part.
  Result<std::string> first = value;
  if (value.ok()) {
    WireWriter out;
    out.Count(value->size()).Raw(std::string_view(*value).substr(0, part_bytes));
    first = std::move(out).Take();
  }
  KEEL_ASSIGN_OR_RETURN(const std::string heard, Tell(tag, first, deadline));
  // 2. The others follow, each under the place where it begins.
  if (coordinator_.rank() == 0) {
    for (size_t at = part_bytes; at < value->size(); at += part_bytes)
      KEEL_RETURN_IF_ERROR(Tell(tag_at(at), value->substr(at, part_bytes), deadline).status());
    return value;
  }
  uint64_t size = 0;
  WireReader in(heard);
  const Status malformed(StatusCode::kInternal, "rank 0 sent malformed documents");
  if (!in.U64(&size)) return malformed;
  std::string text = heard.substr(sizeof size);
  while (text.size() < size) {
    KEEL_ASSIGN_OR_RETURN(const std::string part,
                          Tell(tag_at(text.size()), std::string(), deadline));
    if (part.empty()) return malformed;
    text += part;
  }
  return text;
}

Status Loader::Try(std::string_view tag, const LoadRequest& request, Attempt* attempt,
                   LoadRecord* record) {
  Stopwatch watch;
  // 1. Plan, and agree on who reads what.
  const Status ready = Guarded([&] {
    KEEL_RETURN_IF_ERROR(OpenChosen(request, attempt));
    return Prepare(request, attempt);
  });
  KEEL_RETURN_IF_ERROR(AgreeOnSchedule(tag, request, ready, attempt, record));
  record->planned_s += watch.Lap();

  // 2. Read and verify, and vote.
  const Status mine = Guarded([&] {
    KEEL_RETURN_IF_ERROR(Read(request, attempt, record));
    return FailPoint("load.read");
  });
  record->read_s = watch.Lap();
  const Status vote = Vote(tag, request, mine, *attempt, record);
  // A rank that has lost a peer knows better whom than the vote, which waits for the same one.
  if (attempt->peer_lost) return mine;
  KEEL_RETURN_IF_ERROR(vote);
  if (attempt->peer_stopped) {
    return Status(StatusCode::kInternal, "a peer gave up reading and voted that all is well");
  }
  record->verified_s = watch.Lap();
  KEEL_FAIL_POINT("load.verified");

  // 3. Now, and not before, live memory changes.
  attempt->Apply();
  KEEL_FAIL_POINT("load.applied");
  record->applied_s = watch.Lap();
  const Manifest& manifest = attempt->reader->manifest();
  record->step = manifest.step;
  record->manifest = Json::parse(manifest.Serialize());
  return Status::Ok();
}

Status Loader::OpenChosen(const LoadRequest& request, Attempt* attempt) {
  const LoadCandidate& candidate = attempt->candidate;
  if (candidate.index_size == 0 || coordinator_.world() == 1) {
    if (attempt->reader) return Status::Ok();  // rank 0 has opened it
    KEEL_ASSIGN_OR_RETURN(attempt->reader,
                          OpenCandidate(fs_, candidate, options_.visibility_grace));
    return Status::Ok();
  }
  StepReader::Texts texts;
  if (attempt->reader) {
    texts = {attempt->reader->manifest_text(), attempt->reader->index().bytes()};
  } else {
    if (candidate.manifest_size > kMaxManifestBytes)
      return Status(StatusCode::kInternal, "rank 0 sent a malformed choice of checkpoint");
    texts.manifest.resize(static_cast<size_t>(candidate.manifest_size));
    texts.index.resize(static_cast<size_t>(candidate.index_size));
  }
  const auto patience =
      WithDiskTime(options_.deadline, candidate.manifest_size + candidate.index_size);
  attempt->peer_lost = true;  // unless all of it comes
  for (std::string* text : {&texts.manifest, &texts.index}) {
    KEEL_RETURN_IF_ERROR(
        HandOn(*request.channel, std::as_writable_bytes(std::span(*text)), patience));
  }
  attempt->peer_lost = false;
  if (attempt->reader) return Status::Ok();
  KEEL_ASSIGN_OR_RETURN(attempt->reader,
                        OpenHandedOn(fs_, candidate, std::move(texts), options_.visibility_grace));
  return Status::Ok();
}

Status Loader::Prepare(const LoadRequest& request, Attempt* attempt) {
  const std::string where = fs_.Describe(attempt->candidate.directory);
  KEEL_RETURN_IF_ERROR(
      CheckRequest(request, *attempt->reader, where, options_.names.allow_missing));
  KEEL_FAIL_POINT("load.opened");
  if (TakesHfWeights(request)) {
    std::vector<std::string> roles;
    for (const RoleState& role : request.roles) roles.push_back(role.name);
    KEEL_ASSIGN_OR_RETURN(Index index, IndexOfHfWeights(*attempt->reader, roles));
    attempt->reader->ReplaceIndex(std::move(index));
  }
  const Manifest& manifest = attempt->reader->manifest();
  attempt->scopes = ScopesOf(request, manifest);
  if (!request.in_place) KEEL_RETURN_IF_ERROR(attempt->Allocate());
  std::vector<ReadRequest> reads;
  for (size_t i = 0; i < attempt->scopes.size(); ++i) {
    const Scope& scope = attempt->scopes[i];
    reads.push_back(
        {scope.name, request.in_place ? scope.live : &attempt->staged[i], request.allow_missing});
  }
  Result<ReadPlan> plan = ReadPlan::Make(attempt->reader->index(), reads);
  if (!plan.ok()) {
    return Status(
        StatusCode::kConfig,
        fmt::format("{} is not of the model that this run builds: {}. {}, or name in {} what may "
                    "keep this run's own values",
                    where, plan.status().message(), options_.names.same_state,
                    options_.names.allow_missing));
  }
  const bool all =
      std::all_of(request.roles.begin(), request.roles.end(),
                  [&](const RoleState& role) { return HoldsRole(manifest, role.name); });
  if (attempt->overwritten && (!all || !plan->uncovered().empty())) {
    return Status(
        StatusCode::kConfig,
        fmt::format("{} lacks tensors that a damaged newer checkpoint has written over", where));
  }
  attempt->plan.emplace(std::move(plan).value());
  if (!request.in_place) attempt->CopyUncovered();
  return FailPoint("load.planned");
}

Status Loader::AgreeOnSchedule(std::string_view tag, const LoadRequest& request, const Status& mine,
                               Attempt* attempt, LoadRecord* record) {
  LoadReport report;
  if (mine.ok()) {
    const Index& index = attempt->reader->index();
    report.channel = request.channel != nullptr;
    for (const Scope& scope : attempt->scopes) {
      if (const int id = index.FindScope(scope.name); id >= 0) report.scopes.push_back(id);
    }
    report.wanted = attempt->plan->wanted_tensors();
    report.needs = NeedsOf(*attempt->plan, index);
    report.kept = attempt->Uncovered();
  }
  // Beside the deadline, a peer may take its time to find what rank 0 has seen.
  const auto patience =
      attempt->peer_lost ? kLastWords : options_.deadline + options_.visibility_grace;
  const Result<std::vector<std::string>> all =
      GatherResults(coordinator_, fmt::format("{}/ready", tag),
                    mine.ok() ? Result<std::string>(report.Serialize()) : mine, patience);
  Result<std::string> verdict = std::string();
  if (!all.ok()) {
    verdict = all.status();
  } else if (coordinator_.rank() == 0) {
    const Status guarded = Guarded([&] {
      LoadDifferences differences;
      verdict =
          MakeSchedule(request, *attempt->reader, *all, options_.round,
                       fs_.Describe(attempt->candidate.directory), options_.names, &differences);
      record->kept.assign(differences.kept.begin(), differences.kept.end());
      record->left_out.assign(differences.left_out.begin(), differences.left_out.end());
      return verdict.status();
    });
    if (!guarded.ok()) verdict = guarded;
  }
  const Result<std::string> told = Tell(fmt::format("{}/schedule", tag), verdict, patience);
  if (!told.ok() && attempt->peer_lost) {
    // The verdict may be only that nobody told one in time: what was lost before is said, too.
    return Status(told.status().code(), told.status().cause(),
                  fmt::format("{}; before that: {}", told.status().message(), mine.message()));
  }
  KEEL_RETURN_IF_ERROR(told.status());
  const std::string& text = *told;
  KEEL_RETURN_IF_ERROR(mine);  // all is well with the others
  KEEL_ASSIGN_OR_RETURN(attempt->schedule,
                        ReadSchedule::Parse(text, attempt->reader->index(), coordinator_.world()));
  return Status::Ok();
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

Status Loader::Vote(std::string_view tag, const LoadRequest& request, const Status& mine,
                    const Attempt& attempt, LoadRecord* record) {
  const int64_t bytes = attempt.reader->manifest().TotalBytes();
  const auto patience = attempt.peer_lost ? kLastWords : WithDiskTime(options_.deadline, bytes);
  const Result<std::vector<std::string>> votes =
      GatherResults(coordinator_, fmt::format("{}/votes", tag),
                    mine.ok() ? Result<std::string>(std::string()) : mine, patience);
  Result<std::string> verdict = std::string();
  if (!votes.ok()) {
    verdict = votes.status();
  } else if (coordinator_.rank() == 0) {
    const Status guarded = Guarded([&] {
      verdict = PackDocuments(request, *attempt.reader);
      return verdict.status();
    });
    if (!guarded.ok()) verdict = guarded;
  }
  KEEL_ASSIGN_OR_RETURN(const std::string text,
                        TellInParts(fmt::format("{}/verified", tag), verdict, patience));
  record->documents.clear();
  for (WireReader in(text); !in.AtEnd();) {
    std::string path, content;
    if (!in.Text(&path) || !in.Text(&content)) {
      return Status(StatusCode::kInternal, "rank 0 sent malformed documents");
    }
    record->documents.emplace(std::move(path), std::move(content));
  }
  return FailPoint("load.documents");
}

}  // namespace keel::checkpoint
