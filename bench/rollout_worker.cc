#include "bench/rollout_worker.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_device.h"
#include "bench/worker_protocol.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/kernels/cpu_decode.h"
#include "common/process/program_id.h"
#include "model/decoder.h"
#include "parallel/gradients/weight_store.h"
#include "rollout/engine.h"
#include "trainer/engine/memory.h"
#include "trainer/inputs/model_source.h"
#include "trainer/inputs/model_weights.h"

namespace keel::bench {

namespace {

constexpr int64_t kSequence = 512;  // prompts are the beginnings of sequences of this length

rollout::Request MakeRequest(int64_t n, int64_t prompt, int64_t tokens, int64_t vocabulary) {
  rollout::Request request;
  request.prompt_id = static_cast<uint64_t>(n);
  for (int64_t p = 0; p < prompt; ++p)
    request.prompt.push_back(static_cast<int32_t>(MadeToken(n, p, kSequence, vocabulary)));
  request.sampling.temperature = 0;
  request.sampling.max_tokens = tokens;
  request.sampling.ignore_eos = true;
  return request;
}

// The rate at which a device reads memory for a sum of it.
double ReadBandwidthOf(const BenchDevice& on) {
  const at::Tensor memory = at::ones({int64_t{1} << 28}, at::TensorOptions(on.device()));  // 1 GiB
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    on.Wait();
    const Stopwatch watch;
    const at::Tensor sum = memory.sum();
    on.Wait();
    seconds.push_back(watch.Elapsed());
  }
  return static_cast<double>(memory.nbytes()) / *std::min_element(seconds.begin(), seconds.end());
}

// The rate at which all threads together read memory that no cache holds.
double ReadBandwidth(const BenchDevice& on) {
  if (!on.is_cpu()) return ReadBandwidthOf(on);
  const at::Tensor memory = at::ones({int64_t{1} << 27}, at::kLong);  // 1 GiB
  const int64_t* words = memory.data_ptr<int64_t>();
  const int64_t pieces = at::get_num_threads();
  const int64_t each = memory.numel() / pieces;
  std::vector<int64_t> sums(static_cast<size_t>(pieces));
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const Stopwatch watch;
    at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        int64_t lanes[32] = {};
        for (int64_t at = piece * each; at < (piece + 1) * each; at += 32) {
          for (int64_t lane = 0; lane < 32; ++lane) lanes[lane] += words[at + lane];
        }
        for (const int64_t lane : lanes) sums[static_cast<size_t>(piece)] += lane;
      }
    });
    seconds.push_back(watch.Elapsed());
  }
  return static_cast<double>(memory.nbytes()) / *std::min_element(seconds.begin(), seconds.end());
}

Json Generate(rollout::Engine& engine, std::vector<rollout::Request> requests) {
  const rollout::EngineStats before = engine.stats();
  std::vector<Json> outputs(requests.size());
  const uint64_t first_id = requests.front().prompt_id;
  const Stopwatch watch;
  for (rollout::Request& request : requests) engine.Add(std::move(request));
  double first = 0;
  int64_t tokens = 0;
  while (!engine.idle()) {
    for (const rollout::Completion& c : engine.Step()) {
      ThrowIfError(c.error);
      tokens += static_cast<int64_t>(c.tokens.size());
      outputs[c.prompt_id - first_id] = c.tokens;
    }
    if (first == 0) first = watch.Elapsed();
  }
  const double seconds = watch.Elapsed();
  const rollout::EngineStats after = engine.stats();
  return {{"seconds", seconds},
          {"first_s", first},  // the prompts and the first tokens
          {"tokens", tokens},
          {"steps", after.steps - before.steps},
          {"replayed_steps", after.replayed_steps - before.replayed_steps},
          {"forward_s", after.forward_seconds - before.forward_seconds},
          {"sampling_s", after.sampling_seconds - before.sampling_seconds},
          {"outputs", outputs}};
}

}  // namespace

void RunWorker(const RolloutWorkerOptions& o) {
  const BenchDevice on(o.device);
  trainer::KeepLargeBlocks();
  at::set_num_threads(o.threads);
  const at::ScalarType dtype = o.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const auto source = ValueOrThrow(trainer::ResolveModel(
      o.model, Json::object(), dtype == at::kFloat ? DType::kF32 : DType::kBF16));
  const auto group = parallel::MakeSingleGroup("single");
  model::DecoderOptions options;
  options.dtype = dtype;
  options.device = on.device();
  model::Decoder decoder(source.config, parallel::TensorParallel{group.get(), false}, options);
  auto weights = std::make_unique<parallel::WeightStore>(
      decoder.parameters(), parallel::WeightStoreOptions{dtype, at::kCPU});
  ThrowIfError(trainer::ImportWeights(o.model, source.config, model::Head::kVocabulary,
                                      weights->Table({}, true)));
  if (!on.is_cpu()) {
    auto there = std::make_unique<parallel::WeightStore>(
        decoder.parameters(), parallel::WeightStoreOptions{dtype, on.device()});
    there->CopyFrom(*weights);
    weights = std::move(there);
  }
  rollout::EngineOptions engine_options;
  engine_options.warn = [](const std::string& text) { fmt::print(stderr, "keel: {}\n", text); };
  rollout::Engine engine(decoder, *group, engine_options);
  const int64_t vocabulary = source.config.vocab_size;
  Answer({{"ready", true},
          {"name", "keel"},
          {"versions", {{"keel", std::string(ProgramVersion())}, {"torch", "2.11.0"}}},
          {"kernels", kernels::UsableDecodeKernels().front().name},
          {"parameters", source.config.NumParameters()},
          {"weight_bytes",
           source.config.NumParameters() * static_cast<int64_t>(at::elementSize(dtype))}});

  // generate FIRST (PROMPT NEW)...: sequences FIRST, FIRST + 1, ...
  const auto generate = [&](std::istringstream& words) -> Json {
    int64_t n = 0, prompt = 0, tokens = 0;
    words >> n;
    std::vector<rollout::Request> requests;
    while (words >> prompt >> tokens)
      requests.push_back(MakeRequest(n++, prompt, tokens, vocabulary));
    if (requests.empty()) return {{"error", "generate needs pairs of lengths"}};
    return Generate(engine, std::move(requests));
  };
  const auto read = [&](std::istringstream&) -> Json {
    return {{"bytes_per_s", ReadBandwidth(on)}};
  };
  Serve({{"generate", generate}, {"read", read}});
}

}  // namespace keel::bench
