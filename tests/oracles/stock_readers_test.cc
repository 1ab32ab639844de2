// Stock PyTorch and transformers read what the checkpoint subsystem writes, whatever the layout.
#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "checkpoint/checkpointer.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/hf/hf_export_directory.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/tools/reshard.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using testing::GlobalState;
using testing::RankPart;
using testing::ReadAll;
using testing::TempDir;

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Runs an oracle script; its output goes to `log`.
int RunOracle(const std::string& script, const std::string& arguments, const std::string& log) {
  return std::system((Env("KEEL_PYTHON") + " " + Env("KEEL_SOURCE_DIR") + "/tests/oracles/" +
                      script + " " + arguments + " >" + log + " 2>&1")
                         .c_str());
}

// Whole tensors as one plain file.
void WritePlain(const std::string& path, const GlobalState& state) {
  std::vector<SafetensorsPart> parts;
  for (const auto& [name, tensor] : state) {
    parts.push_back({name, tensor.info.dtype, tensor.info.shape, {}});
  }
  std::ofstream out(path, std::ios::binary);
  out << ValueOrThrow(BuildSafetensorsHeader(parts, {{"format", "pt"}}, 8));
  for (const auto& [name, tensor] : state) {
    out.write(reinterpret_cast<const char*>(tensor.bytes.data()),
              static_cast<std::streamsize>(tensor.bytes.size()));
  }
}

GlobalState ReadPlain(const std::string& path) {
  const std::string content = ReadAll(path);
  uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof length);
  const SafetensorsHeader header = ValueOrThrow(ParseSafetensorsHeader(
      std::string_view(content).substr(8, length), static_cast<int64_t>(content.size()), path));
  GlobalState state;
  for (const SafetensorsTensor& tensor : header.tensors) {
    const auto* data = reinterpret_cast<const std::byte*>(content.data());
    state[tensor.name] = {{tensor.name, tensor.dtype, tensor.shape},
                          {data + tensor.begin, data + tensor.end}};
  }
  return state;
}

void Save(const std::string& directory, const std::vector<RankPart>& model,
          const std::vector<Document>& documents) {
  testing::RunRanks(static_cast<int>(model.size()), [&](int rank, Coordinator& coordinator) {
    const auto fs = ValueOrThrow(OpenPosixFileSystem(directory, true));
    Logger log(testing::Quiet());
    Checkpointer checkpointer(*fs, coordinator, SystemClock(), log, testing::SmallOptions());
    ThrowIfError(checkpointer.Open());
    SaveRequest request;
    request.step = 3;
    request.roles = {{"actor", model[static_cast<size_t>(rank)].table, {}}};
    request.contents.optimizer = false;
    if (rank == 0) request.documents = documents;
    ThrowIfError(checkpointer.Save(request).status());
    ThrowIfError(checkpointer.Close());
  });
}

std::vector<RankPart> CutAtRandom(const GlobalState& state, int world, bool one_box_per_rank,
                                  uint64_t seed) {
  std::vector<TensorInfo> tensors;
  for (const auto& [name, tensor] : state) tensors.push_back(tensor.info);
  std::mt19937_64 random(seed);
  testing::LayoutOptions options;
  options.world = world;
  options.one_box_per_rank = one_box_per_rank;
  std::vector<RankPart> parts = testing::RandomLayout(tensors, options, random);
  for (RankPart& part : parts) part.Fill(state);
  return parts;
}

TEST(StockReaders, PyTorchLoadsShardsOfAnyLayout) {
  std::vector<TensorInfo> tensors = testing::SampleModel();
  // Random bytes are no bool.
  std::erase_if(tensors, [](const TensorInfo& info) { return info.dtype == DType::kBool; });
  const GlobalState state = testing::MakeState(tensors, 4);
  for (const int world : {1, 4, 7}) {
    TempDir dir;
    Save(dir.path(), CutAtRandom(state, world, world != 4, static_cast<uint64_t>(world)), {});
    WritePlain(dir / "expected.safetensors", state);
    const int code =
        RunOracle("check_dcp.py", dir / "global_step_3" + " " + (dir / "expected.safetensors"),
                  dir / "log.txt");
    EXPECT_EQ(code, 0) << "world " << world << ": " << ReadAll(dir / "log.txt");
    EXPECT_THAT(ReadAll(dir / "log.txt"),
                ::testing::HasSubstr(std::to_string(state.size()) + " tensors equal\n"));
  }
}

TEST(StockReaders, PyTorchLoadsWhatWasResharded) {
  std::vector<TensorInfo> tensors = testing::SampleModel();
  std::erase_if(tensors, [](const TensorInfo& info) { return info.dtype == DType::kBool; });
  const GlobalState state = testing::MakeState(tensors, 4);
  TempDir dir;
  Save(dir.path(), CutAtRandom(state, 4, false, 4), {});
  WritePlain(dir / "expected.safetensors", state);
  const auto from = dir.Open();
  const StepReader source = ValueOrThrow(StepReader::Open(*from, "global_step_3"));
  Logger log(testing::Quiet());
  for (const int world : {1, 5}) {
    const std::string run = dir / ("world_" + std::to_string(world));
    const auto to = ValueOrThrow(OpenPosixFileSystem(run, true));
    ReshardOptions options;
    options.world = world;
    ThrowIfError(ReshardCheckpoint(source, *to, SystemClock(), log, options).status());
    const int code = RunOracle(
        "check_dcp.py", run + "/global_step_3 " + (dir / "expected.safetensors"), dir / "log.txt");
    EXPECT_EQ(code, 0) << "world " << world << ": " << ReadAll(dir / "log.txt");
    EXPECT_THAT(ReadAll(dir / "log.txt"),
                ::testing::HasSubstr(std::to_string(state.size()) + " tensors equal\n"));
  }
}

TEST(StockReaders, TransformersLoadsAnExport) {
  for (const std::string name : {"llama_tied", "qwen2_v4", "llama_3_layers"}) {
    const std::string source = Env("KEEL_FIXTURES") + "/" + name + "/hf";
    const GlobalState state = ReadPlain(source + "/model.safetensors");
    TempDir dir;
    const Document config{"actor/huggingface/config.json", ReadAll(source + "/config.json"), false};
    Save(dir.path(), CutAtRandom(state, 3, true, 9), {config});

    const auto fs = dir.Open();
    Logger log(testing::Quiet());
    StepReader reader = ValueOrThrow(StepReader::Open(*fs, "global_step_3"));
    HfExportOptions options;
    // A third of the model: several files and an index.
    if (name == "llama_3_layers") options.max_shard_bytes = 200'000;
    const Status exported = ExportHuggingFace(reader, "actor", *fs, "exported", options, log);
    ASSERT_TRUE(exported.ok()) << exported.ToString();
    const int code =
        RunOracle("check_hf_export.py", source + " " + (dir / "exported"), dir / "log.txt");
    EXPECT_EQ(code, 0) << name << ": " << ReadAll(dir / "log.txt");
  }
}

}  // namespace
}  // namespace keel::checkpoint
