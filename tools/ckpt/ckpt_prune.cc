// keel ckpt prune: removes steps of a run by a policy.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/commit/retention.h"
#include "checkpoint/format/names.h"
#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/pin.h"
#include "checkpoint/run/run_identity.h"
#include "checkpoint/run/run_lock.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/text.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"
#include "trainer/config/best_measure.h"
#include "trainer/config/checkpoint_settings.h"
#include "trainer/inputs/run_paths.h"
#include "trainer/run/judged_by.h"

namespace keel::tools {
namespace {

// Whose checkpoints these are: what the directory says, else that on which they agree.
Result<std::string> RunIdOf(const FileSystem& fs) {
  KEEL_ASSIGN_OR_RETURN(std::string id, checkpoint::ReadRunId(fs));
  if (!id.empty()) return id;
  KEEL_ASSIGN_OR_RETURN(const auto entries, checkpoint::ListCheckpoints(fs));
  KEEL_ASSIGN_OR_RETURN(id, checkpoint::IdOfCheckpoints(
                                fs, entries, false, trainer::kCheckpointSettings.adopt_foreign));
  if (!id.empty()) return id;
  return Status(StatusCode::kNotFound,
                fmt::format("{}: holds no valid checkpoint of any run", fs.Describe(".")));
}

// Why retention did not consider a checkpoint, or lets it be.
std::string WhyKept(const FileSystem& fs, const checkpoint::CatalogEntry& entry,
                    const checkpoint::KnownCommits& known, const std::string& run_id) {
  if (!entry.manifest) {
    const bool unread = checkpoint::ReasonInReader(entry.status) != StatusCode::kOk;
    return fmt::format("{}: {}", unread ? "cannot be read" : "not a valid checkpoint",
                       entry.status.message());
  }
  if (entry.manifest->run_id != run_id) {
    return fmt::format("of run '{}'; by {} only those of '{}' may go",
                       Printable(entry.manifest->run_id),
                       fs.Stat(checkpoint::kRunIdName).ok() ? fs.Describe(checkpoint::kRunIdName)
                                                            : "what is there",
                       Printable(run_id));
  }
  const std::string& save_id = entry.manifest->save_id;
  if (known.denied.contains(save_id)) return "cannot be read, does not count";
  if (known.damaged.contains(save_id)) return "damaged, does not count";
  return checkpoint::IsPinned(fs, entry.directory) ? "pinned" : "kept by the rules";
}

// Its own configuration; nothing where it has none, such as one of the Python module.
std::optional<std::string> ConfigOf(const FileSystem& fs, const checkpoint::CatalogEntry& entry) {
  const auto saved = ReadFile(fs, fmt::format("{}/{}", entry.directory, trainer::kConfigName),
                              checkpoint::kMaxManifestBytes);
  return saved.ok() && trainer::BestMeasureOf(*saved).ok() ? std::optional(*saved) : std::nullopt;
}

// Of checkpoints whose values are not compared, what is said.
using NotCompared = std::vector<std::pair<std::string, const char*>>;

// Makes the policy compare the values of one metric, of one set of validation rows and rewards:
// those of the newest commit that has any. Returns those that have others; where it is not known,
// they are the same.
Result<NotCompared> JudgeAlike(const FileSystem& fs,
                               std::span<const checkpoint::CatalogEntry> entries,
                               const CkptPruneOptions& options,
                               checkpoint::RetentionRequest& request) {
  std::vector<const checkpoint::CatalogEntry*> measured;
  for (const checkpoint::CatalogEntry& entry : entries) {
    if (entry.manifest && entry.manifest->metric && entry.manifest->run_id == request.run_id)
      measured.push_back(&entry);
  }
  if (measured.empty()) {
    return Status(StatusCode::kUsage,
                  fmt::format("--keep-best {}: none of the run's checkpoints in {} has a metric "
                              "(trainer.keep_best_metric), so there is no best one",
                              options.keep_best, options.directory));
  }
  const auto newest = std::ranges::max_element(
      measured, {}, [](const auto* entry) { return entry->manifest->sequence; });
  const auto judged_by = ConfigOf(fs, **newest);
  auto mode = ParseName<trainer::BestMode>(options.metric_mode);
  if (!mode && judged_by) mode = trainer::BestMeasureOf(*judged_by)->mode;
  if (!mode) {
    return Status(StatusCode::kUsage,
                  fmt::format("--keep-best {}: {} does not say whether its lowest or its highest "
                              "metric is best: give --metric-mode",
                              options.keep_best, fs.Describe((*newest)->directory)));
  }
  request.policy.higher_is_better = *mode == trainer::BestMode::kMax;
  const trainer::ReadContents rows = trainer::JudgedByOf(fs, (*newest)->directory);
  NotCompared others;
  for (const checkpoint::CatalogEntry* entry : measured) {
    const auto own = ConfigOf(fs, *entry);
    const auto alike = own && judged_by ? trainer::MeasureAlike(*own, *judged_by) : true;
    if (alike.ok() && !*alike) {
      others.emplace_back(entry->directory, "with another metric");
    } else if (!trainer::JudgedAlike(rows, trainer::JudgedByOf(fs, entry->directory))) {
      others.emplace_back(entry->directory, "with other validation rows or rewards");
    } else {
      continue;
    }
    request.policy.of_other_metric.insert(entry->manifest->save_id);
  }
  return others;
}

}  // namespace

int CkptPrune(const CkptPruneOptions& options, std::ostream& out, std::ostream& err) {
  const auto fs = OpenRun(options.directory);
  if (!fs.ok()) return Fail(fs.status(), err);
  auto run_id = RunIdOf(**fs);  // before the lock, which would leave its file in any folder
  if (!run_id.ok()) return Fail(run_id.status(), err);
  LogOptions quiet;
  quiet.level = LogLevel::kError;  // what is spared is printed below
  Logger log(quiet);
  std::unique_ptr<checkpoint::RunLock> lock;
  if (!options.dry_run) {
    auto taken = checkpoint::RunLock::Take(**fs, "keel ckpt prune", SystemClock());
    if (!taken.ok()) return Fail(taken.status(), err);
    lock = std::move(taken).value();
  }
  checkpoint::RetentionRequest request;
  request.policy.keep_latest = options.keep_latest;
  request.policy.keep_best = options.keep_best;
  request.policy.keep_every = options.keep_every;
  request.dry_run = options.dry_run;
  request.verify_threads = Cores();
  request.run_id = std::move(run_id).value();
  const auto before = checkpoint::ListCheckpoints(**fs);
  if (!before.ok()) return Fail(before.status(), err);
  NotCompared not_compared;
  if (options.keep_best > 0) {
    auto judged = JudgeAlike(**fs, *before, options, request);
    if (!judged.ok()) return Fail(judged.status(), err);
    not_compared = std::move(judged).value();
  }
  const auto outcome = checkpoint::RetainCheckpoints(**fs, request, log);
  if (!outcome.ok()) return Fail(outcome.status(), err);

  for (const auto& [directory, what] : not_compared)
    out << fmt::format("{} was saved {} than the newest, and is not compared\n", directory, what);
  int64_t bytes = 0;
  for (const int64_t step : outcome->removed) {
    for (const checkpoint::CatalogEntry& entry : *before) {
      if (entry.step != step || !entry.manifest) continue;
      bytes += entry.manifest->TotalBytes();
      out << fmt::format("{} {} ({})\n", options.dry_run ? "would remove" : "removed",
                         entry.directory, HumanBytes(entry.manifest->TotalBytes()));
    }
  }
  std::map<int64_t, std::string> spared;
  for (const auto& one : outcome->spared) spared[one.step] = one.reason;
  const std::set<int64_t> removed(outcome->removed.begin(), outcome->removed.end());
  for (const checkpoint::CatalogEntry& entry : *before) {
    if (removed.contains(entry.step)) continue;
    const auto due = spared.find(entry.step);
    out << fmt::format(
        "left {}: {}\n", entry.directory,
        Shown(due != spared.end() ? due->second
                                  : WhyKept(**fs, entry, outcome->known, request.run_id)));
  }
  out << fmt::format("{} of {} checkpoints {}, {}\n", outcome->removed.size(), before->size(),
                     options.dry_run ? "would go" : "removed", HumanBytes(bytes));
  return 0;
}

}  // namespace keel::tools
