#include "checkpoint/load/load_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/run_identity.h"
#include "checkpoint/run/tracker.h"
#include "common/clock.h"
#include "common/text.h"

namespace keel::checkpoint {

namespace {

constexpr std::chrono::milliseconds kLookAgain{250};
constexpr std::string_view kWhich = "the checkpoint to resume from";

Status CheckSame(const FileSystem& fs, const LoadCandidate& candidate, const StepReader& reader) {
  if (reader.manifest().own_digest == candidate.manifest_digest) return Status::Ok();
  return Status(StatusCode::kDataLoss,
                fmt::format("{}: this rank sees another manifest than rank 0",
                            fs.Describe(candidate.directory)));
}

// Of those that are not read for such a reason either, so that all can be seen to at once.
std::string OthersLikeIt(const std::vector<CatalogEntry>& entries, const CatalogEntry& first) {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : entries) {
    if (&entry != &first && !entry.manifest && !entry.link &&
        entry.status.code() == StatusCode::kInvalidData)
      names.push_back(entry.directory);
  }
  return names.empty() ? "" : fmt::format("; neither are {} read", fmt::join(names, ", "));
}

}  // namespace

Status LoadCandidates::List(std::vector<SkippedCheckpoint>* skipped) {
  if (!request_.resume_path.empty()) {
    std::string path = request_.resume_path;
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    KEEL_RETURN_IF_ERROR(CheckRelativePath(path, kWhich));
    directories_.push_back(path);
    return Status::Ok();
  }
  KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> entries, ListCheckpoints(fs_));
  int64_t last = -1;
  std::vector<const CatalogEntry*> foreign;
  for (const CatalogEntry& entry : entries) {
    if (!entry.manifest) continue;
    if (!run_id_.empty() && IsForeign(*entry.manifest, run_id_)) {
      foreign.push_back(&entry);
    } else {
      last = std::max(last, entry.step);
    }
  }
  for (const CatalogEntry& entry : entries) {
    if (std::find(foreign.begin(), foreign.end(), &entry) != foreign.end()) continue;
    const bool known =
        Has(entry.directory) || std::any_of(skipped->begin(), skipped->end(), [&](const auto& one) {
          return one.directory == entry.directory;
        });
    if (known) continue;  // at an earlier look
    if (entry.manifest) {
      directories_.push_back(entry.directory);
    } else if (entry.link && entry.step < last) {
      log_.Info("{}", entry.status.message());  // moved elsewhere, to make room
    } else if (entry.status.code() == StatusCode::kInvalidData) {
      // Intact, but of a version or kind that this build does not read: going back to an older step
      // would lose work that another build of Keel can resume.
      std::string message = entry.status.message();
      if (entry.link && !names_.follow_link.empty())
        message += fmt::format(", or {}", names_.follow_link);
      return Status(StatusCode::kConfig, message + OthersLikeIt(entries, entry));
    } else if (entry.status.code() == StatusCode::kExhausted) {
      return entry.status;  // nothing is known of it: the same holds
    } else {
      vanished_ |= entry.status.code() == StatusCode::kNotFound;
      unread_ |= entry.status.code() == StatusCode::kIo;
      skipped->push_back({entry.directory, entry.status.message()});
    }
  }
  if (!foreign.empty()) KEEL_RETURN_IF_ERROR(NoteForeign(foreign, *skipped));
  const std::optional<int64_t> tracked = ReadTracker(fs_);
  if (!directories_.empty() && (!tracked || StepDirectory(*tracked) != directories_.front())) {
    log_.Info(
        "{} {}, the newest valid checkpoint is {}: loading that one", kTrackerName,
        tracked ? fmt::format("says {}", *tracked) : std::string("is missing or not a number"),
        directories_.front());
  }
  return Status::Ok();
}

Status LoadCandidates::NoteForeign(const std::vector<const CatalogEntry*>& foreign,
                                   const std::vector<SkippedCheckpoint>& skipped) const {
  if (!directories_.empty()) {
    log_.Warning(
        "{} holds checkpoints of other runs, which this run, {}, does not go on from and does not "
        "touch: {}. Move them away; or, if they are meant to be this run's, set {} to true",
        fs_.Describe("."), Printable(run_id_), NameWithRuns(foreign), names_.adopt_foreign);
    return Status::Ok();
  }
  std::string unusable;
  for (const SkippedCheckpoint& one : skipped)
    unusable += fmt::format("\n  {}: {}", one.directory, one.reason);
  return Status(
      StatusCode::kConfig,
      fmt::format(
          "{} is the folder of run {} and holds no valid checkpoint of it, only of other runs: {}. "
          "To go on from the newest of these set {} to true, or {}{}",
          fs_.Describe("."), Printable(run_id_), NameWithRuns(foreign), names_.adopt_foreign,
          names_.elsewhere, unusable));
}

Result<std::optional<StepReader>> LoadCandidates::Next(std::vector<SkippedCheckpoint>* skipped) {
  while (true) {
    if (next_ == directories_.size()) {
      if (!std::exchange(vanished_, false) || looks_left_ == 0) break;
      // Whoever saves there has removed what was listed, once there was something newer.
      --looks_left_;
      KEEL_RETURN_IF_ERROR(List(skipped));
      continue;
    }
    const std::string directory = directories_[next_++];
    Result<StepReader> opened = StepReader::Open(fs_, directory);
    if (opened.ok()) {
      std::erase_if(*skipped, [&](const SkippedCheckpoint& one) {
        return fs_.Stat(one.directory).status().code() == StatusCode::kNotFound;
      });
      return std::optional<StepReader>(std::move(opened).value());
    }
    // What the listing showed and has vanished since is as good as damaged.
    const StatusCode code = opened.status().code();
    const bool damage =
        code == StatusCode::kDataLoss || code == StatusCode::kIo || code == StatusCode::kNotFound;
    if (!damage) return opened.status();
    const Status status(StatusCode::kDataLoss, opened.status().message());
    if (!request_.resume_path.empty()) return status;
    vanished_ |= code == StatusCode::kNotFound;
    unread_ |= code == StatusCode::kIo;
    log_.Error("{} cannot be loaded: {}", fs_.Describe(directory), status.message());
    skipped->push_back({directory, status.message()});
  }
  if (skipped->empty()) return std::optional<StepReader>();
  std::string reasons;
  for (const SkippedCheckpoint& one : *skipped)
    reasons += fmt::format("\n  {}: {}", one.directory, one.reason);
  if (unread_) {
    return Status(StatusCode::kIo,
                  fmt::format("{}: there are checkpoints but none can be read; not starting from "
                              "nothing. Try again once they can be:{}",
                              fs_.Describe("."), reasons));
  }
  return Status(StatusCode::kDataLoss,
                fmt::format("{}: there are checkpoints but none is valid; not starting from "
                            "nothing. Move them away to begin anew:{}",
                            fs_.Describe("."), reasons));
}

bool LoadCandidates::Has(std::string_view directory) const {
  return std::find(directories_.begin(), directories_.end(), directory) != directories_.end();
}

Result<StepReader> OpenCandidate(const FileSystem& fs, const LoadCandidate& candidate,
                                 std::chrono::milliseconds grace) {
  KEEL_RETURN_IF_ERROR(CheckRelativePath(candidate.directory, kWhich));
  const Stopwatch watch;
  for (;;) {
    Result<StepReader> reader = StepReader::OpenIndex(fs, candidate.directory);
    Status status = reader.status();
    if (reader.ok()) {
      reader->set_grace(grace);
      status = CheckSame(fs, candidate, *reader);
      if (status.ok()) return reader;
    }
    if (status.code() == StatusCode::kExhausted) return status;
    if (watch.Elapsed() * 1000 >= static_cast<double>(grace.count())) {
      return Status(StatusCode::kDataLoss, status.message());
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

Result<StepReader> OpenHandedOn(const FileSystem& fs, const LoadCandidate& candidate,
                                StepReader::Texts texts, std::chrono::milliseconds grace) {
  KEEL_RETURN_IF_ERROR(CheckRelativePath(candidate.directory, kWhich));
  KEEL_ASSIGN_OR_RETURN(StepReader reader,
                        StepReader::FromTexts(fs, candidate.directory, std::move(texts), grace));
  KEEL_RETURN_IF_ERROR(CheckSame(fs, candidate, reader));
  return reader;
}

}  // namespace keel::checkpoint
