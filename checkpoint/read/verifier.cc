#include "checkpoint/read/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/run/lease.h"
#include "common/clock.h"
#include "common/tensors/transfer_check.h"

namespace keel::checkpoint {
namespace {

void CheckCover(const StepReader& reader, VerifyReport* report) {
  const Index& index = reader.index();
  for (int64_t t = 0; t < index.tensors(); ++t) {
    const IndexTensor tensor = index.tensor(t);
    std::vector<Box> boxes;
    for (int64_t b = 0; b < tensor.box_count; ++b)
      boxes.push_back(index.box(tensor.first_box + b).box);
    if (const Status status = CheckWritten(tensor.shape, boxes, tensor.name); !status.ok()) {
      report->problems.push_back(fmt::format("{}: {}: {}", report->directory,
                                             index.scope_name(tensor.scope), status.message()));
    }
  }
}

// Whether a lease was not to be had since somebody is removing the checkpoint, or has removed it. A
// manifest that is not there, in a directory that is, is damage.
bool IsRemoved(const FileSystem& fs, const std::string& directory, const Status& lease) {
  if (lease.code() != StatusCode::kNotFound) return false;
  if (fs.Stat(directory).status().code() == StatusCode::kNotFound) return true;
  return fs.Stat(fmt::format("{}/{}", directory, kManifestName)).ok();
}

}  // namespace

StatusCode ReasonInReader(const Status& status) {
  if (status.code() == StatusCode::kExhausted) return StatusCode::kExhausted;
  return status.cause() == StatusCause::kDenied ? StatusCode::kIo : StatusCode::kOk;
}

VerifyReport VerifyCheckpoint(const FileSystem& fs, const std::string& directory, int threads,
                              bool from_disk) {
  Stopwatch watch;
  VerifyReport report;
  report.directory = directory;
  const auto finish = [&] {
    report.seconds = watch.Elapsed();
    return std::move(report);
  };
  const auto take = [&](const Status& status) {
    report.problems.push_back(status.message());
    report.unproven = ReasonInReader(status);
  };
  // Held first, so that nobody removes it between this question and the first file.
  const Result<Lease> lease = LeaseForReading(fs, directory);
  if (IsRemoved(fs, directory, lease.status())) {
    report.problems = {lease.status().message()};
    report.unproven = StatusCode::kNotFound;
    return finish();
  }
  Result<StepReader> opened = StepReader::OpenIndex(fs, directory);
  if (!opened.ok()) {
    take(opened.status());
    // In a directory that is one of a checkpoint, an intact manifest or index that this build does
    // not read: of the files nothing is known.
    if (lease.ok() && opened.status().code() == StatusCode::kInvalidData)
      report.unproven = opened.status().code();
    return finish();
  }
  const StepReader& reader = *opened;
  report.step = reader.manifest().step;
  report.files = static_cast<int64_t>(reader.manifest().files.size());
  report.tensors = reader.index().tensors();
  for (const ManifestFile& file : reader.manifest().files) {
    if (!from_disk) break;
    if (const auto open = fs.Open(reader.PathOf(file.path)); open.ok()) (*open)->DropCached();
  }
  const auto damage = reader.VerifyFiles({}, threads, &report.bytes);
  if (!damage.ok()) take(damage.status());
  if (damage.ok()) {
    for (const StepReader::Damage& one : *damage) report.problems.push_back(one.message);
    // What is damaged is so, whatever else could not be read.
    const bool none_known = std::all_of(damage->begin(), damage->end(),
                                        [](const StepReader::Damage& one) { return one.denied; });
    if (!damage->empty() && none_known) report.unproven = StatusCode::kIo;
  }
  // Files are opened one by one: those of a commit that has taken this one's place are no damage.
  if (const Result<Manifest> now = ReadManifest(fs, directory);
      !report.problems.empty() && now.ok() && now->save_id != reader.manifest().save_id) {
    report.problems = {
        fmt::format("{}: another save of step {} took its place while it was read: "
                    "verify again",
                    fs.Describe(directory), report.step)};
    report.unproven = StatusCode::kBusy;
  }
  if (!report.problems.empty()) return finish();
  CheckCover(reader, &report);
  return finish();
}

VerifyReport VerifyForRemoval(const FileSystem& fs, const std::string& directory, int threads) {
  VerifyReport report = VerifyCheckpoint(fs, directory, threads, true);
  return report.problems.empty() ? report : VerifyCheckpoint(fs, directory, threads, true);
}

}  // namespace keel::checkpoint
