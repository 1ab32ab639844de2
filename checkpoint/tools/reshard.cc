#include "checkpoint/tools/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "checkpoint/commit/committer.h"
#include "checkpoint/format/names.h"
#include "checkpoint/format/records.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/read/box_stream.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/run/run_lock.h"
#include "checkpoint/run/tracker.h"
#include "common/tensors/transfer_check.h"

namespace keel::checkpoint {
namespace {

// One tensor file to be written.
struct Target {
  std::string scope;
  std::string path;
  std::vector<StreamedBox> boxes;
};

int64_t BytesOf(const TensorInfo& tensor) {
  return tensor.shape.elements() * DTypeSize(tensor.dtype);
}

std::vector<TensorInfo> TensorsOf(const Index& index, int scope) {
  std::vector<TensorInfo> tensors;
  const auto [first, count] = index.tensor_range(scope);
  for (int64_t t = first; t < first + count; ++t) tensors.push_back(index.tensor(t).Info());
  return tensors;
}

// Lays the tensors of a scope end to end and cuts them into `world` runs of equal bytes, each cut
// moved to the nearest row of the tensor that it falls into: at most one box per file and tensor.
// A row is one index of the first dim that has several.
std::vector<Target> Balanced(const Index& index, int scope, int world) {
  const std::vector<TensorInfo> tensors = TensorsOf(index, scope);
  int64_t total = 0;
  for (const TensorInfo& tensor : tensors) total += BytesOf(tensor);
  const std::string name(index.scope_name(scope));
  std::vector<Target> targets;
  for (int r = 0; r < world; ++r) targets.push_back({name, ShardFileName(name, r, 0), {}});
  // In 128 bits, since total x world may not fit into 64.
  const auto cut = [&](int r) {
    return static_cast<int64_t>(static_cast<__int128>(total) * r / world);
  };
  int64_t begin = 0;
  for (const TensorInfo& tensor : tensors) {
    const int64_t bytes = BytesOf(tensor);
    if (bytes == 0) continue;
    int axis = 0;
    while (axis < tensor.shape.size() && tensor.shape[axis] == 1) ++axis;
    const int64_t rows = axis < tensor.shape.size() ? tensor.shape[axis] : 1;
    const int64_t row = bytes / rows;
    // The row at which file r begins to take this tensor.
    const auto first_row = [&](int r) {
      return std::clamp<int64_t>((cut(r) - begin + row / 2) / row, 0, rows);
    };
    for (int r = 0; r < world; ++r) {
      const int64_t from = r == 0 ? 0 : first_row(r);
      const int64_t to = r + 1 == world ? rows : first_row(r + 1);
      if (from >= to) continue;
      Box box = Box::Whole(tensor.shape);
      if (axis < box.dims()) {
        box.offset[axis] = from;
        box.size[axis] = to - from;
      }
      targets[static_cast<size_t>(r)].boxes.push_back({tensor, box});
    }
    begin += bytes;
  }
  return targets;
}

// The files of another checkpoint of the same tensors.
Result<std::vector<Target>> Like(const Index& index, int scope, const StepReader& model) {
  const Index& other = model.index();
  const std::string name(index.scope_name(scope));
  const int theirs = other.FindScope(name);
  const auto differs = [&](const std::string& what) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{} cannot be the layout: {}", model.directory(), what));
  };
  std::map<int, std::vector<std::pair<int64_t, StreamedBox>>> files;  // by file: begin and box
  const std::vector<TensorInfo> tensors = TensorsOf(index, scope);
  if (theirs < 0 || other.tensor_range(theirs).second != static_cast<int64_t>(tensors.size()))
    return differs(fmt::format("it has other tensors in {}", name));
  for (const TensorInfo& tensor : tensors) {
    const int64_t t = other.FindTensor(theirs, tensor.name);
    if (t < 0 || !(other.tensor(t).Info() == tensor)) {
      return differs(
          fmt::format("{} of {} is not there, or of another shape or dtype", tensor.name, name));
    }
    const IndexTensor entry = other.tensor(t);
    for (int64_t b = entry.first_box; b < entry.first_box + entry.box_count; ++b) {
      const IndexBox box = other.box(b);
      files[box.file].emplace_back(box.begin, StreamedBox{tensor, box.box});
    }
  }
  std::vector<Target> targets;
  for (auto& [file, boxes] : files) {
    std::sort(boxes.begin(), boxes.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    Target target{name, std::string(other.file(file).path), {}};
    for (auto& [begin, box] : boxes) target.boxes.push_back(std::move(box));
    targets.push_back(std::move(target));
  }
  return targets;
}

// The targets of all scopes; proves that they hold each element of each tensor exactly once.
Result<std::vector<Target>> Plan(const StepReader& source, const ReshardOptions& options) {
  std::vector<Target> all;
  std::map<std::string, std::vector<Box>> boxes;  // by scope and tensor
  const Index& index = source.index();
  for (int scope = 0; scope < index.scopes(); ++scope) {
    std::vector<Target> targets;
    if (options.like != nullptr) {
      KEEL_ASSIGN_OR_RETURN(targets, Like(index, scope, *options.like));
    } else {
      targets = Balanced(index, scope, options.world);
    }
    for (Target& target : targets) {
      if (target.boxes.empty()) continue;  // more files than there are rows
      for (const StreamedBox& one : target.boxes)
        boxes[target.scope + "/" + one.tensor.name].push_back(one.box);
      all.push_back(std::move(target));
    }
    for (const TensorInfo& tensor : TensorsOf(index, scope)) {
      const std::string name = fmt::format("{}/{}", index.scope_name(scope), tensor.name);
      KEEL_RETURN_IF_ERROR(CheckWritten(tensor.shape, boxes[name], name));
    }
  }
  return all;
}

Result<ChunkedDigest> CopyFile(const StepReader& source, const std::string& path, FileSystem& out,
                               const std::string& to) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, out.Create(to, {}));
  ChunkHasher hasher(source.manifest().chunk_bytes);
  int64_t at = 0;
  KEEL_RETURN_IF_ERROR(source.StreamFile(path, [&](std::span<const std::byte> bytes) {
    hasher.Update(bytes);
    const Status status = file->WriteAt(at, bytes);
    at += static_cast<int64_t>(bytes.size());
    return status;
  }));
  KEEL_RETURN_IF_ERROR(file->Sync());
  KEEL_RETURN_IF_ERROR(file->Close());
  return hasher.Finish();
}

class Resharder {
 public:
  Resharder(const StepReader& source, FileSystem& run, const Clock& clock, Logger& log,
            const ReshardOptions& options)
      : source_(source), run_(run), clock_(clock), options_(options), committer_(run, log) {}

  Result<ReshardReport> Run() {
    const Manifest& from = source_.manifest();
    const std::string step = StepDirectory(from.step);
    KEEL_RETURN_IF_ERROR(committer_.CollectDebris());
    if (run_.Stat(step).status().code() != StatusCode::kNotFound) {
      return Status(StatusCode::kAlreadyExists,
                    fmt::format("{}: exists; a reshard does not overwrite", run_.Describe(step)));
    }
    KEEL_ASSIGN_OR_RETURN(const std::vector<Target> targets, Plan(source_, options_));
    KEEL_ASSIGN_OR_RETURN(const int64_t room, run_.FreeBytes());
    if (room < from.TotalBytes()) {
      return Status(StatusCode::kNoSpace, fmt::format("{}: about {} bytes are needed, {} are free",
                                                      run_.Describe("."), from.TotalBytes(), room));
    }
    std::random_device entropy;
    manifest_ = from;
    manifest_.files.clear();
    manifest_.save_id = MakeSaveId((uint64_t{entropy()} << 32) | entropy());
    std::vector<ManifestFile> copied;
    for (const ManifestFile& file : from.files) {
      if (file.role != FileRole::kModel && file.role != FileRole::kOptimizer)
        copied.push_back(file);
    }
    std::vector<std::string> paths;
    for (const Target& target : targets) paths.push_back(target.path);
    for (const ManifestFile& file : copied) paths.push_back(file.path);
    const std::vector<std::string> directories = DirectoriesOf(paths);
    KEEL_ASSIGN_OR_RETURN(const std::string temporary,
                          committer_.Begin(from.step, manifest_.save_id, directories));
    Status status = WriteAll(targets, copied, temporary);
    if (status.ok()) status = committer_.Publish(temporary, manifest_, directories);
    if (!status.ok()) {
      committer_.Abort(temporary);
      return status;
    }
    ReshardReport report;
    report.directory = step;
    report.tensor_files = static_cast<int64_t>(targets.size());
    report.bytes = manifest_.TotalBytes();
    return report;
  }

 private:
  Status WriteAll(const std::vector<Target>& targets, const std::vector<ManifestFile>& copied,
                  const std::string& temporary) {
    IndexBuilder index(manifest_.chunk_bytes);
    for (const Target& target : targets) {
      KEEL_RETURN_IF_ERROR(WriteTarget(target, temporary, &index));
    }
    for (const ManifestFile& file : copied) {
      KEEL_ASSIGN_OR_RETURN(
          ChunkedDigest digest,
          CopyFile(source_, file.path, run_, fmt::format("{}/{}", temporary, file.path)));
      manifest_.files.push_back({file.path, file.role, digest.size, digest.whole});
      index.AddFile(file.path, std::move(digest));
    }
    KEEL_ASSIGN_OR_RETURN(const std::string bytes, index.Build());
    KEEL_RETURN_IF_ERROR(
        WriteFileDurably(run_, fmt::format("{}/{}", temporary, kIndexName), bytes));
    const ChunkedDigest digest = DigestOfText(bytes, manifest_.chunk_bytes);
    manifest_.index_size = digest.size;
    manifest_.index_digest = digest.whole;
    std::sort(manifest_.files.begin(), manifest_.files.end(),
              [](const ManifestFile& a, const ManifestFile& b) { return a.path < b.path; });
    manifest_.created = FormatUtc(clock_.Wall());
    manifest_.layout = options_.like != nullptr ? options_.like->manifest().layout
                                                : Json({{"world", options_.world}});
    KEEL_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> committed, ListCheckpoints(run_));
    KEEL_RETURN_IF_ERROR(CheckAllRead(run_, committed));
    KEEL_ASSIGN_OR_RETURN(manifest_.sequence, NextSequence(committed));
    return Status::Ok();
  }

  Status WriteTarget(const Target& target, const std::string& temporary, IndexBuilder* index) {
    std::vector<SafetensorsPart> parts;
    parts.reserve(target.boxes.size());
    for (const StreamedBox& one : target.boxes)
      parts.push_back({one.tensor.name, one.tensor.dtype, one.box.size, one.box.offset});
    KEEL_ASSIGN_OR_RETURN(const std::string header, BuildShardedSafetensorsHeader(parts));
    BoxStreamOptions stream;
    const int64_t chunk = manifest_.chunk_bytes;
    const int64_t readers = (options_.memory_bytes / 2) / chunk;
    stream.threads = static_cast<int>(std::clamp<int64_t>(readers, 1, options_.threads));
    stream.buffer_bytes = std::max(chunk, options_.memory_bytes - stream.threads * chunk);
    KEEL_ASSIGN_OR_RETURN(ChunkedDigest digest,
                          StreamBoxes(source_, target.scope, target.boxes, header, run_,
                                      fmt::format("{}/{}", temporary, target.path), chunk, stream));
    const FileRole role =
        target.scope.ends_with("/optimizer") ? FileRole::kOptimizer : FileRole::kModel;
    manifest_.files.push_back({target.path, role, digest.size, digest.whole});
    index->AddFile(target.path, std::move(digest));
    auto at = static_cast<int64_t>(header.size());
    for (const StreamedBox& one : target.boxes) {
      index->AddBox(target.scope, one.tensor, one.box, target.path, at);
      at += one.box.elements() * DTypeSize(one.tensor.dtype);
    }
    return Status::Ok();
  }

  const StepReader& source_;
  FileSystem& run_;
  const Clock& clock_;
  const ReshardOptions& options_;
  Committer committer_;
  Manifest manifest_;
};

}  // namespace

std::vector<std::string> ReshardOptions::Validate() const {
  std::vector<std::string> problems;
  if (world < 1) problems.emplace_back("world must be at least 1");
  if (threads < 1) problems.emplace_back("threads must be at least 1");
  if (memory_bytes < 1) problems.emplace_back("memory_bytes must be positive");
  return problems;
}

Result<ReshardReport> ReshardCheckpoint(const StepReader& source, FileSystem& run,
                                        const Clock& clock, Logger& log,
                                        const ReshardOptions& options) {
  if (const auto problems = options.Validate(); !problems.empty()) {
    return Status(StatusCode::kUsage, fmt::format("reshard: {}", fmt::join(problems, "; ")));
  }
  const Stopwatch watch(clock);
  KEEL_ASSIGN_OR_RETURN(const auto lock, RunLock::Take(run, "keel ckpt reshard", clock));
  KEEL_ASSIGN_OR_RETURN(ReshardReport report, Resharder(source, run, clock, log, options).Run());
  report.seconds = watch.Elapsed();
  const Json record = {{"time", FormatUtc(clock.Wall())},
                       {"event", "reshard"},
                       {"step", source.manifest().step},
                       {"total_bytes", report.bytes},
                       {"total_s", report.seconds}};
  // It is committed: these are only for people.
  for (const Status& status :
       {WriteTracker(run, source.manifest().step), AppendRecord(run, kRecordsName, record)}) {
    if (!status.ok()) log.Warning("{}: {}", report.directory, status.message());
  }
  return report;
}

}  // namespace keel::checkpoint
