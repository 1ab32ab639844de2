#include "checkpoint/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "checkpoint/catalog.h"
#include "checkpoint/names.h"
#include "checkpoint/page_memory.h"
#include "checkpoint/tracker.h"
#include "checkpoint/wire.h"
#include "common/clock.h"
#include "common/fail_point.h"

namespace keel::checkpoint {
namespace {

constexpr int64_t kMaxDocument = int64_t{1} << 30;

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

struct ScopeRef {
  std::string scope;
  const ShardTable* live = nullptr;
};

std::vector<ScopeRef> ScopesOf(const LoadRequest& request) {
  std::vector<ScopeRef> scopes;
  for (const RoleState& role : request.roles) {
    if (request.contents.model) scopes.push_back({role.name + "/model", &role.model});
    if (request.contents.optimizer) scopes.push_back({role.name + "/optimizer", &role.optimizer});
  }
  return scopes;
}

}  // namespace

// Dense memory for all of a rank's boxes, and the tables that view it.
struct Loader::Staged {
  std::optional<StepReader> reader;
  std::vector<ScopeRef> scopes;
  std::vector<ShardTable> tables;  // beside `scopes`
  std::vector<PageMemory> memory;

  Status Allocate() {
    for (const ScopeRef& scope : scopes) {
      PageMemory block = AllocatePages(scope.live->bytes());
      std::byte* const base = block.get();
      if (base == nullptr) {
        return Status(StatusCode::kUnavailable,
                      fmt::format("no memory for {} bytes of staging to load {}",
                                  scope.live->bytes(), scope.scope));
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
      tables.push_back(std::move(table));
    }
    return Status::Ok();
  }

  void Apply() const {
    for (size_t s = 0; s < scopes.size(); ++s) {
      const auto& live = scopes[s].live->shards();
      const auto& read = tables[s].shards();
      for (size_t i = 0; i < live.size(); ++i) {
        if (live[i].box.empty()) continue;
        CopyBox(live[i].box, read[i].box, read[i].view, live[i].box, live[i].view,
                DTypeSize(tables[s].tensor_of(read[i]).dtype));
      }
    }
  }

  // Elements that the checkpoint may lack keep their live values.
  void CopyLive() {
    for (size_t s = 0; s < scopes.size(); ++s) {
      const auto& live = scopes[s].live->shards();
      const auto& read = tables[s].shards();
      for (size_t i = 0; i < live.size(); ++i) {
        if (live[i].box.empty()) continue;
        CopyBox(live[i].box, live[i].box, live[i].view, read[i].box, read[i].view,
                DTypeSize(tables[s].tensor_of(read[i]).dtype));
      }
    }
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

Result<std::optional<LoadRecord>> Loader::Load(std::string_view tag, const LoadRequest& request) {
  Stopwatch watch;
  LoadRecord record;
  Result<std::vector<std::string>> candidates = std::vector<std::string>();
  if (coordinator_.rank() == 0) candidates = ListCandidates(request, &record.skipped);
  const bool forced = !request.resume_path.empty();

  for (size_t attempt = 0;; ++attempt) {
    // 1. Rank 0 says which one; an empty name ends the search.
    const std::string here = fmt::format("{}/{}", tag, attempt);
    Result<std::string> chosen = std::string();
    if (coordinator_.rank() == 0) {
      if (!candidates.ok()) {
        chosen = candidates.status();
      } else if (attempt < candidates->size()) {
        const std::string& directory = (*candidates)[attempt];
        const Result<std::string> manifest =
            ReadFile(fs_, fmt::format("{}/{}", directory, kManifestName), kMaxManifestBytes);
        WireWriter out;
        out.Text(directory);
        out.Text(manifest.ok() ? Manifest::OwnDigest(*manifest) : std::string_view());
        chosen = std::move(out).Take();
      } else {
        if (!record.skipped.empty()) {
          std::string reasons;
          for (const SkippedCheckpoint& one : record.skipped) {
            reasons += fmt::format("\n  {}: {}", one.directory, one.reason);
          }
          chosen = Status(
              StatusCode::kDataLoss,
              fmt::format("{}: there are checkpoints but none is valid; not starting from nothing. "
                          "Move them away to begin anew:{}",
                          fs_.Describe("."), reasons));
        }
      }
    }
    KEEL_ASSIGN_OR_RETURN(const std::string text,
                          BroadcastResult(coordinator_, here + "/choice", chosen, deadline_));
    if (text.empty()) return std::optional<LoadRecord>();
    Candidate candidate;
    WireReader in(text);
    if (!in.Text(&candidate.directory) || !in.Text(&candidate.manifest_digest)) {
      return Status(StatusCode::kInternal, "rank 0 sent a malformed choice of checkpoint");
    }

    // 2. All try it.
    KEEL_FAIL_POINT("load.chosen");
    const Status status = Try(here, request, candidate, &record);
    if (status.ok()) {
      record.directory = candidate.directory;
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
          log_.Warning("skipped {}, loaded {} instead: {}", one.directory, candidate.directory,
                       one.reason);
        }
      }
      return std::optional<LoadRecord>(std::move(record));
    }
    if (!IsDamage(status) || forced) return status;
    if (coordinator_.rank() == 0) {
      log_.Error("{} cannot be loaded: {}", fs_.Describe(candidate.directory), status.message());
    }
    record.skipped.push_back({candidate.directory, status.message()});
  }
}

Status Loader::Try(std::string_view tag, const LoadRequest& request, const Candidate& candidate,
                   LoadRecord* record) {
  Stopwatch watch;
  Staged staged;
  Status mine;
  try {
    mine = ReadIntoStaging(request, candidate, &staged, record);
  } catch (const std::exception& e) {
    mine = Status(StatusCode::kInternal, e.what());
  }
  const int64_t bytes = staged.reader ? staged.reader->manifest().TotalBytes() : 0;
  watch.Lap();
  KEEL_RETURN_IF_ERROR(
      AgreeOn(coordinator_, fmt::format("{}/verified", tag), mine, WithDiskTime(deadline_, bytes)));
  KEEL_FAIL_POINT("load.verified");
  KEEL_RETURN_IF_ERROR(CheckUnused(tag, request, staged));
  KEEL_RETURN_IF_ERROR(ReadDocuments(tag, request, staged, record));
  record->verified_s = watch.Lap();
  KEEL_FAIL_POINT("load.documents");
  staged.Apply();
  KEEL_FAIL_POINT("load.applied");
  record->applied_s = watch.Lap();
  const Manifest& manifest = staged.reader->manifest();
  record->step = manifest.step;
  record->manifest = Json::parse(manifest.Serialize());
  return Status::Ok();
}

Status Loader::ReadIntoStaging(const LoadRequest& request, const Candidate& candidate,
                               Staged* staged, LoadRecord* record) {
  KEEL_RETURN_IF_ERROR(CheckRelativePath(candidate.directory, "the checkpoint to resume from"));
  Result<StepReader> reader = StepReader::Open(fs_, candidate.directory);
  if (!reader.ok()) {
    // What a choice of rank 0 lacks here has vanished or cannot be read: as good as damaged.
    const StatusCode code = reader.status().code();
    const bool damage = code == StatusCode::kIo || code == StatusCode::kNotFound;
    if (damage) return Status(StatusCode::kDataLoss, reader.status().message());
    return reader.status();
  }
  staged->reader = std::move(reader).value();
  const Manifest& manifest = staged->reader->manifest();
  if (manifest.own_digest != candidate.manifest_digest) {
    return Status(StatusCode::kDataLoss,
                  fmt::format("{}: this rank sees another manifest than rank 0",
                              fs_.Describe(candidate.directory)));
  }
  KEEL_RETURN_IF_ERROR(CheckRequest(request, *staged->reader));

  KEEL_FAIL_POINT("load.opened");
  staged->scopes = ScopesOf(request);
  KEEL_RETURN_IF_ERROR(staged->Allocate());
  if (!request.allow_missing.empty()) staged->CopyLive();
  std::vector<ReadRequest> reads;
  for (size_t s = 0; s < staged->scopes.size(); ++s) {
    ReadRequest read;
    read.scope = staged->scopes[s].scope;
    read.destination = &staged->tables[s];
    read.options.allow_missing = request.allow_missing;
    reads.push_back(std::move(read));
  }
  // The ranks share the files out among them, so that every byte of what is loaded is verified,
  // even those that hold no tensor of anyone.
  std::set<int> verify;
  for (int f = 0; f < staged->reader->index().files(); ++f) {
    const ManifestFile* file = manifest.Find(staged->reader->index().file(f).path);
    const bool wanted = (file->role == FileRole::kModel && request.contents.model) ||
                        (file->role == FileRole::kOptimizer && request.contents.optimizer) ||
                        (file->role == FileRole::kHfModel && request.contents.hf_model);
    if (wanted && f % coordinator_.world() == coordinator_.rank()) verify.insert(f);
  }
  KEEL_ASSIGN_OR_RETURN(const ReadStats stats, staged->reader->Read(reads, verify, threads_));
  KEEL_FAIL_POINT("load.read");
  record->bytes = stats.bytes;
  record->planned_s = stats.planned_s;
  record->read_s = stats.read_s;
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

Status Loader::CheckUnused(std::string_view tag, const LoadRequest& request, const Staged& staged) {
  WireWriter words;
  for (const ScopeRef& scope : ScopesOf(request)) {
    for (const TensorInfo& tensor : scope.live->tensors())
      words.Text(scope.scope + ":" + tensor.name);
  }
  const Result<std::vector<std::string>> all =
      Gather(coordinator_, fmt::format("{}/wanted", tag), words.bytes(), deadline_);
  Result<std::string> verdict = std::string();
  if (!all.ok()) {
    verdict = all.status();
  } else if (coordinator_.rank() == 0) {
    std::set<std::string> wanted;
    for (const std::string& one : *all) {
      WireReader in(one);
      for (std::string name; in.Text(&name);) wanted.insert(name);
    }
    std::set<std::string> unused;
    const Index& index = staged.reader->index();
    for (const ScopeRef& scope : staged.scopes) {
      const int id = index.FindScope(scope.scope);
      if (id < 0) continue;
      const auto [first, count] = index.tensor_range(id);
      for (int64_t t = first; t < first + count; ++t) {
        std::string name = scope.scope + ":" + std::string(index.tensor(t).name);
        if (!wanted.contains(name)) unused.insert(std::move(name));
      }
    }
    if (!unused.empty()) {
      verdict =
          Stop(fmt::format("{} holds {} tensors that this run has no place for: {}",
                           fs_.Describe(staged.reader->directory()), unused.size(), Join(unused)));
    }
  }
  return BroadcastResult(coordinator_, fmt::format("{}/unused", tag), verdict, deadline_).status();
}

Status Loader::ReadDocuments(std::string_view tag, const LoadRequest& request, const Staged& staged,
                             LoadRecord* record) {
  Result<std::string> packed = std::string();
  if (coordinator_.rank() == 0) {
    WireWriter out;
    Status status;
    for (const ManifestFile& file : staged.reader->manifest().files) {
      if (file.role != FileRole::kDocument &&
          !(file.role == FileRole::kExtra && request.contents.extra))
        continue;
      const Result<std::string> text = staged.reader->ReadText(file.path, kMaxDocument);
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
      BroadcastResult(coordinator_, fmt::format("{}/documents", tag), packed, deadline_));
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
