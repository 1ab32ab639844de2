#include "bench/index_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/worker_protocol.h"
#include "checkpoint/base/coordinator.h"
#include "checkpoint/base/role_state.h"
#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/format/contents.h"
#include "checkpoint/format/index.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/names.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/save/save_planner.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/json.h"
#include "common/tensors/shard_table.h"

namespace keel::bench {
namespace {

constexpr int kParts = 64;     // files, and boxes of a tensor
constexpr int64_t kWidth = 4;  // fp32 values of a box
constexpr int kSavingRanks = 4;
constexpr std::string_view kScope = "actor/model";

TensorInfo TensorOf(int64_t t, int parts) {
  return {fmt::format("model.layers.{}.mlp.experts.{}.weight", t / 1000, t % 1000), DType::kF32,
          Dims{parts * kWidth}};
}

Box PartOf(int part) { return Box{Dims{part * kWidth}, Dims{kWidth}}; }

void WriteManyBoxes(FileSystem& fs, const std::string& directory, int64_t boxes) {
  const int64_t tensors = std::max<int64_t>(1, boxes / kParts);
  checkpoint::Manifest manifest;
  manifest.chunk_bytes = int64_t{4} << 20;
  checkpoint::IndexBuilder index(manifest.chunk_bytes);
  ThrowIfError(MakeDirectories(fs, fmt::format("{}/{}", directory, kScope)));
  for (int part = 0; part < kParts; ++part) {
    const std::string path = fmt::format("{}/rank_{:05}.safetensors", kScope, part);
    std::vector<TensorInfo> infos;
    for (int64_t t = 0; t < tensors; ++t) infos.push_back(TensorOf(t, kParts));
    std::vector<checkpoint::SafetensorsPart> parts;
    for (const TensorInfo& one : infos)
      parts.push_back({one.name, one.dtype, Dims{kWidth}, Dims{part * kWidth}});
    std::string bytes = ValueOrThrow(checkpoint::BuildShardedSafetensorsHeader(parts));
    const auto header = static_cast<int64_t>(bytes.size());
    bytes.append(static_cast<size_t>(tensors * kWidth * 4), static_cast<char>(part));
    ThrowIfError(WriteFileDurably(fs, fmt::format("{}/{}", directory, path), bytes));
    checkpoint::ChunkedDigest digest = checkpoint::DigestOfText(bytes, manifest.chunk_bytes);
    manifest.files.push_back({path, checkpoint::FileRole::kModel, digest.size, digest.whole});
    index.AddFile(path, std::move(digest));
    for (int64_t t = 0; t < tensors; ++t)
      index.AddBox(kScope, infos[static_cast<size_t>(t)], PartOf(part), path,
                   header + t * kWidth * 4);
  }
  const std::string bytes = ValueOrThrow(index.Build());
  ThrowIfError(
      WriteFileDurably(fs, fmt::format("{}/{}", directory, checkpoint::kIndexName), bytes));
  const checkpoint::ChunkedDigest digest = checkpoint::DigestOfText(bytes, manifest.chunk_bytes);
  manifest.run_id = "bench";
  manifest.save_id = checkpoint::MakeSaveId(1);
  manifest.sequence = 1;
  manifest.step = checkpoint::ParseStepDirectory(directory).value_or(1);
  manifest.created = FormatUtc(SystemClock().Wall());
  manifest.roles = {"actor"};
  manifest.contents.optimizer = false;
  manifest.contents.extra = false;
  manifest.index_size = digest.size;
  manifest.index_digest = digest.whole;
  ThrowIfError(WriteFileDurably(fs, fmt::format("{}/{}", directory, checkpoint::kManifestName),
                                manifest.Serialize()));
}

Json MeasureOpenAndPlan(const FileSystem& fs, const std::string& directory, bool all) {
  const int64_t before = StatusBytes("VmRSS:");
  const double cpu = CpuSeconds();
  const Stopwatch watch;
  const checkpoint::StepReader reader = ValueOrThrow(checkpoint::StepReader::Open(fs, directory));
  const double opened = watch.Elapsed();
  const checkpoint::Index& index = reader.index();
  const int scope = index.FindScope(kScope);
  const auto [first, count] = index.tensor_range(scope);
  std::vector<float> memory(static_cast<size_t>(count * kWidth * (all ? kParts : 1)));
  ShardTable wanted;
  for (int64_t t = 0; t < count; ++t) {
    const TensorInfo tensor = index.tensor(first + t).Info();
    const Box box = all ? Box::Whole(tensor.shape) : PartOf(kParts / 2);
    ThrowIfError(wanted.Add(
        tensor, box, {reinterpret_cast<std::byte*>(memory.data() + t * box.elements()), Dims{1}}));
  }
  checkpoint::ReadRequest request;
  request.scope = kScope;
  request.destination = &wanted;
  const checkpoint::ReadStats stats = ValueOrThrow(reader.Read(std::span(&request, 1), 1));
  return {{"boxes", index.boxes()},      {"index_bytes", reader.manifest().index_size},
          {"opened_s", opened},          {"planned_s", stats.planned_s},
          {"read_s", stats.read_s},      {"data_bytes", memory.size() * sizeof(float)},
          {"cpu_s", CpuSeconds() - cpu}, {"peak_bytes", StatusBytes("VmHWM:") - before}};
}

Json MeasureSavePlan(int64_t boxes) {
  const int64_t before = StatusBytes("VmRSS:");
  checkpoint::LocalCoordinatorHub hub(kSavingRanks);
  std::vector<double> first(kSavingRanks), again(kSavingRanks);
  std::vector<std::thread> ranks;
  for (int r = 0; r < kSavingRanks; ++r) {
    ranks.emplace_back([&, r] {
      checkpoint::RoleState role;
      role.name = "actor";
      for (int64_t t = 0; t < boxes / kSavingRanks; ++t)
        ThrowIfError(role.model.Add(TensorOf(t, kSavingRanks), PartOf(r)));
      checkpoint::SavePlanner planner(hub.rank(r), int64_t{4} << 20);
      checkpoint::Contents contents;
      contents.optimizer = false;
      const std::span<const checkpoint::RoleState> roles(&role, 1);
      for (auto [tag, seconds] : {std::pair("a", &first), std::pair("b", &again)}) {
        const Stopwatch watch;
        (void)ValueOrThrow(planner.Plan(tag, roles, contents, std::chrono::minutes(10)));
        (*seconds)[static_cast<size_t>(r)] = watch.Elapsed();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return {{"boxes", boxes},
          {"ranks", kSavingRanks},
          {"first_s", *std::max_element(first.begin(), first.end())},
          {"again_s", *std::max_element(again.begin(), again.end())},
          {"peak_bytes", StatusBytes("VmHWM:") - before}};
}

struct IndexOptions {
  std::string what;
  std::string directory;
  int64_t boxes = 1'000'000;
};

void RunIndexWorker(const IndexOptions& options) {
  const std::string step = "global_step_1";
  if (options.what == "save-plan") return Answer(MeasureSavePlan(options.boxes));
  const auto fs = ValueOrThrow(OpenPosixFileSystem(options.directory, true));
  if (options.what == "write") {
    WriteManyBoxes(*fs, step, options.boxes);
    return Answer(Json::object());
  }
  Answer(MeasureOpenAndPlan(*fs, step, options.what == "open-all"));
}

}  // namespace

void AddIndexWorker(CLI::App& worker) {
  auto o = std::make_shared<IndexOptions>();
  worker.add_option("WHAT", o->what)
      ->required()
      ->check(CLI::IsMember({"write", "open-all", "open-part", "save-plan"}));
  worker.add_option("--checkpoints", o->directory);
  worker.add_option("--boxes", o->boxes);
  worker.callback([o] { RunIndexWorker(*o); });
}

}  // namespace keel::bench
