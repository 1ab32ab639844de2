#include "tests/checkpoint/support/test_support.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include "common/hash.h"

namespace keel::checkpoint::testing {

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "keel-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::unique_ptr<FileSystem> TempDir::Open() const {
  return ValueOrThrow(OpenPosixFileSystem(path_, true));
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void WriteAll(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << content;
}

std::string Sign(std::string manifest) {
  constexpr size_t kDigits = 32, kEnd = 4;  // the digits, then "\n}\n
  const size_t body = manifest.rfind("  \"digest\": \"");
  const std::string digest = Hash128(std::as_bytes(std::span(manifest.data(), body))).ToHex();
  return manifest.replace(manifest.size() - kEnd - kDigits, kDigits, digest);
}

LogOptions Quiet() {
  LogOptions options;
  options.level =
      static_cast<LogLevel>(100);  // above all that there are: these tests fail things by design
  return options;
}

void RunRanks(int world, const std::function<void(int rank, Coordinator& coordinator)>& body) {
  LocalCoordinatorHub hub(world);
  std::vector<std::exception_ptr> failures(static_cast<size_t>(world));
  const auto run = [&](int r) {
    try {
      body(r, hub.rank(r));
    } catch (...) {
      failures[static_cast<size_t>(r)] = std::current_exception();
    }
  };
  OnThreads(world, run);
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

void OnThreads(int world, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int r = 1; r < world; ++r) threads.emplace_back(body, r);
  body(0);
  for (std::thread& thread : threads) thread.join();
}

GlobalState MakeState(const std::vector<TensorInfo>& tensors, uint64_t seed) {
  GlobalState state;
  std::mt19937_64 random(seed);
  for (const TensorInfo& info : tensors) {
    GlobalTensor tensor{info, std::vector<std::byte>(static_cast<size_t>(info.shape.elements() *
                                                                         DTypeSize(info.dtype)))};
    for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(&tensor.bytes[at], &word, std::min(sizeof word, tensor.bytes.size() - at));
    }
    state.emplace(info.name, std::move(tensor));
  }
  return state;
}

void RankPart::AddBox(const TensorInfo& tensor, const Box& box, int replica, int64_t padding) {
  Dims padded = box.size;
  if (padded.size() > 0) padded[padded.size() - 1] += padding;
  const int64_t bytes = padded.elements() * DTypeSize(tensor.dtype);
  memory.push_back(
      std::make_unique<std::vector<std::byte>>(static_cast<size_t>(std::max<int64_t>(1, bytes))));
  ThrowIfError(table.Add(tensor, box, {memory.back()->data(), ContiguousStrides(padded)}, replica));
}

void RankPart::Fill(const GlobalState& state) {
  for (const Shard& shard : table.shards()) {
    const TensorInfo& info = table.tensor_of(shard);
    const GlobalTensor& whole = state.at(info.name);
    CopyBox(shard.box, Box::Whole(info.shape),
            {const_cast<std::byte*>(whole.bytes.data()), ContiguousStrides(info.shape)}, shard.box,
            shard.view, DTypeSize(info.dtype));
  }
}

void RankPart::Clear(int value) {
  for (const auto& block : memory) std::memset(block->data(), value, block->size());
}

std::string RankPart::FirstDifference(const GlobalState& state) const {
  for (const Shard& shard : table.shards()) {
    const TensorInfo& info = table.tensor_of(shard);
    const GlobalTensor& whole = state.at(info.name);
    const int64_t size = DTypeSize(info.dtype);
    std::vector<std::byte> mine(static_cast<size_t>(shard.box.elements() * size));
    std::vector<std::byte> theirs(mine.size());
    const Dims dense = ContiguousStrides(shard.box.size);
    CopyBox(shard.box, shard.box, shard.view, shard.box, {mine.data(), dense}, size);
    CopyBox(shard.box, Box::Whole(info.shape),
            {const_cast<std::byte*>(whole.bytes.data()), ContiguousStrides(info.shape)}, shard.box,
            {theirs.data(), dense}, size);
    if (mine != theirs) return info.name + shard.box.ToString();
  }
  return "";
}

std::vector<RankPart> RandomLayout(const std::vector<TensorInfo>& tensors,
                                   const LayoutOptions& options, std::mt19937_64& random) {
  std::vector<RankPart> parts(static_cast<size_t>(options.world));
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (const TensorInfo& info : tensors) {
    // Cuts per dim; with one box per rank there may be at most `world` boxes.
    std::vector<std::vector<int64_t>> cuts;
    int64_t boxes = 1;
    for (const int64_t size : info.shape) {
      const int64_t most = options.one_box_per_rank ? options.world / boxes : 4;
      const int64_t pieces = 1 + below(std::max<int64_t>(1, std::min(most, size)));
      std::set<int64_t> at = {0, size};
      while (static_cast<int64_t>(at.size()) < pieces + 1) at.insert(below(size));
      cuts.emplace_back(at.begin(), at.end());
      boxes *= pieces;
    }
    std::vector<int> ranks(static_cast<size_t>(options.world));
    for (int r = 0; r < options.world; ++r) ranks[static_cast<size_t>(r)] = r;
    std::shuffle(ranks.begin(), ranks.end(), random);
    std::vector<std::vector<Box>> held(static_cast<size_t>(options.world));
    std::vector<Box> all;
    std::vector<size_t> at(cuts.size(), 0);
    for (;;) {
      Box box{Dims::Filled(info.shape.size(), 0), Dims::Filled(info.shape.size(), 0)};
      for (size_t d = 0; d < cuts.size(); ++d) {
        box.offset[static_cast<int>(d)] = cuts[d][at[d]];
        box.size[static_cast<int>(d)] = cuts[d][at[d] + 1] - cuts[d][at[d]];
      }
      const auto owner = static_cast<size_t>(ranks[all.size() % ranks.size()]);
      const int64_t padding = options.strided && below(3) == 0 ? 1 + below(5) : 0;
      parts[owner].AddBox(info, box, 0, padding);
      held[owner].push_back(box);
      all.push_back(box);
      size_t d = cuts.size();
      while (d > 0 && ++at[d - 1] == cuts[d - 1].size() - 1) at[--d] = 0;
      if (d == 0) break;
    }
    if (!options.replicas) continue;
    for (size_t r = 0; r < held.size(); ++r) {
      if (!held[r].empty() || below(2) == 0) continue;
      parts[r].AddBox(info, all[static_cast<size_t>(below(static_cast<int64_t>(all.size())))],
                      1 + static_cast<int>(r));
    }
  }
  return parts;
}

std::vector<TensorInfo> SampleModel(int64_t scale) {
  return {{"model.embed_tokens.weight", DType::kBF16, Dims{37 * scale, 16}},
          {"model.layers.0.self_attn.q_proj.weight", DType::kBF16, Dims{48, 16 * scale}},
          {"model.layers.0.mlp.gate_proj.weight", DType::kF32, Dims{33 * scale, 24}},
          {"model.layers.0.input_layernorm.weight", DType::kBF16, Dims{17}},
          {"model.layers.0.bias", DType::kF32, Dims{5}},
          {"model.conv.weight", DType::kF16, Dims{6, 5, 4, 3}},
          {"model.flag", DType::kBool, Dims{3}},
          {"model.norm.weight", DType::kBF16, Dims{16 * scale}},
          {"model.scale", DType::kF32, Dims{}},
          {"model.counter", DType::kI64, Dims{}}};
}

std::vector<TensorInfo> SampleOptimizer(int64_t scale) {
  std::vector<TensorInfo> tensors;
  for (const TensorInfo& weight : SampleModel(scale)) {
    if (weight.dtype != DType::kBF16 && weight.dtype != DType::kF32) continue;
    for (const char* kind : {"master", "exp_avg", "exp_avg_sq"}) {
      tensors.push_back(
          {std::string("optimizer.") + kind + "." + weight.name, DType::kF32, weight.shape});
    }
  }
  return tensors;
}

namespace {

std::vector<TensorInfo> ModelOf(ModelSize size) {
  if (size == ModelSize::kSample) return SampleModel();
  return {{"w", DType::kBF16, Dims{90, 30}}, {"scale", DType::kF32, Dims{}}};
}

std::vector<TensorInfo> OptimizerOf(ModelSize size) {
  if (size == ModelSize::kSample) return SampleOptimizer();
  return {{"optimizer.master.w", DType::kF32, Dims{90, 30}}};
}

}  // namespace

TrainingState MakeTrainingState(uint64_t seed, ModelSize size) {
  return {MakeState(ModelOf(size), seed), MakeState(OptimizerOf(size), seed + 1)};
}

Cut::Cut(const LayoutOptions& options, uint64_t seed, ModelSize size) {
  std::mt19937_64 random(seed);
  model = RandomLayout(ModelOf(size), options, random);
  optimizer = RandomLayout(OptimizerOf(size), options, random);
}

StateOfOneBox MakeStateOfOneBox() {
  const TensorInfo most{"most", DType::kF32, Dims{64, 256}};
  StateOfOneBox made{MakeTrainingState(1, ModelSize::kTiny), Cut({4, true}, 1, ModelSize::kTiny)};
  made.state.model.merge(MakeState({most}, 2));
  for (int r = 0; r < 4; ++r)
    made.cut.model[static_cast<size_t>(r)].AddBox(most, Box::Whole(most.shape), r, r % 2 * 3);
  made.cut.Fill(made.state);
  return made;
}

void Cut::Fill(const TrainingState& state) {
  for (RankPart& part : model) part.Fill(state.model);
  for (RankPart& part : optimizer) part.Fill(state.optimizer);
}

void Cut::Clear(int value) {
  for (RankPart& part : model) part.Clear(value);
  for (RankPart& part : optimizer) part.Clear(value);
}

std::string Cut::FirstDifference(const TrainingState& state) const {
  for (const auto& [parts, whole] :
       {std::pair(&model, &state.model), std::pair(&optimizer, &state.optimizer)}) {
    for (size_t r = 0; r < parts->size(); ++r) {
      const std::string difference = (*parts)[r].FirstDifference(*whole);
      if (!difference.empty()) return "rank " + std::to_string(r) + ": " + difference;
    }
  }
  return "";
}

std::vector<RoleState> Cut::Roles(int rank) const {
  return {{"actor", model[static_cast<size_t>(rank)].table,
           optimizer[static_cast<size_t>(rank)].table}};
}

Status SaveOn(FileSystem& fs, const Cut& cut, int64_t step, const CheckpointOptions& options,
              const std::function<void(SaveRequest&)>& change) {
  std::vector<Status> outcomes(static_cast<size_t>(cut.world()));
  RunRanks(cut.world(), [&](int rank, Coordinator& coordinator) {
    Logger log(Quiet());
    Checkpointer checkpointer(fs, coordinator, SystemClock(), log, options);
    Status& outcome = outcomes[static_cast<size_t>(rank)];
    outcome = checkpointer.Open();
    if (!outcome.ok()) return;
    SaveRequest request;
    request.step = step;
    request.roles = cut.Roles(rank);
    request.config_digest = "config-a";
    request.layout = {{"world", cut.world()}};
    if (rank == 0) {
      request.documents = {
          {"trainer_state.json", "{\"step\": " + std::to_string(step) + "}\n", true},
          {"actor/huggingface/config.json", "{\"model_type\": \"llama\"}\n", false}};
    }
    if (change) change(request);
    outcome = checkpointer.Save(request).status();
    (void)checkpointer.Close();
  });
  for (const Status& one : outcomes) EXPECT_EQ(one.ToString(), outcomes[0].ToString());
  return outcomes[0];
}

Result<std::optional<LoadRecord>> LoadFrom(FileSystem& fs, const Cut& cut,
                                           const std::function<void(LoadRequest&)>& change) {
  LoadSetup setup;
  setup.views.assign(static_cast<size_t>(cut.world()), &fs);
  setup.options = SmallOptions();
  setup.change = [&](int, LoadRequest& request) {
    if (change) change(request);
    return true;
  };
  LoadOutcome outcome = LoadRanks(cut, setup);
  for (const Status& one : outcome.statuses)
    EXPECT_EQ(one.ToString(), outcome.statuses[0].ToString());
  if (!outcome.statuses[0].ok()) return outcome.statuses[0];
  return std::move(outcome.records[0]);
}

LoadOutcome LoadRanks(const Cut& cut, const LoadSetup& setup) {
  const auto world = static_cast<size_t>(cut.world());
  LoadOutcome outcome{std::vector<Status>(world), std::vector<std::optional<LoadRecord>>(world)};
  LocalChannelHub channels(cut.world());
  RunRanks(cut.world(), [&](int rank, Coordinator& coordinator) {
    Logger log(Quiet());
    const auto r = static_cast<size_t>(rank);
    Checkpointer checkpointer(*setup.views[r], coordinator, SystemClock(), log, setup.options);
    outcome.statuses[r] = checkpointer.Open();
    if (!outcome.statuses[r].ok()) return;
    LoadRequest request;
    request.roles = cut.Roles(rank);
    request.config_digest = "config-a";
    if (setup.exchange) request.channel = &channels.rank(rank);
    if (setup.change && !setup.change(rank, request)) return;
    Result<std::optional<LoadRecord>> loaded = checkpointer.Load(request);
    outcome.statuses[r] = loaded.status();
    if (loaded.ok()) outcome.records[r] = std::move(loaded).value();
    // Peers that are gone are not waited for once more.
    if (loaded.ok() || loaded.status().code() == StatusCode::kDataLoss) (void)checkpointer.Close();
  });
  return outcome;
}

CheckpointOptions SmallOptions() {
  CheckpointOptions options;
  options.run_id = "test-run";
  options.io = IoChoice::kBuffered;
  options.chunk_bytes = 4096;
  options.deadline = std::chrono::milliseconds(20'000);
  options.visibility_grace = std::chrono::milliseconds(0);
  options.load_round_bytes = 16'384;
  return options;
}

}  // namespace keel::checkpoint::testing
