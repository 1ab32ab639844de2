#include "bench/train_worker.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/json.h"
#include "parallel/context.h"
#include "trainer/memory.h"
#include "trainer/model_source.h"
#include "trainer/train_engine.h"

namespace keel::bench {

namespace {

// Kilobytes of a line of /proc/self/status, as bytes.
int64_t StatusBytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) == 0)
      return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

uint64_t SplitMix64(uint64_t x) {
  uint64_t z = (x + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

model::ModelBatch BatchOfStep(int64_t step, const TrainWorkerOptions& o, int64_t vocabulary) {
  std::vector<int64_t> ids, targets;
  model::ModelBatch batch;
  batch.packing.boundaries = {0};
  for (int64_t i = 0; i < o.batch; ++i) {
    const int64_t sequence = step * o.batch + i;
    const auto token = [&](int64_t p) {
      return static_cast<int64_t>(
          SplitMix64(static_cast<uint64_t>(sequence * (o.sequence + 1) + p)) %
          static_cast<uint64_t>(vocabulary));
    };
    for (int64_t p = 0; p < o.sequence; ++p) {
      ids.push_back(token(p));
      targets.push_back(token(p + 1));
    }
    batch.packing.boundaries.push_back(static_cast<int64_t>(ids.size()));
  }
  batch.ids = at::tensor(ids, at::kLong);
  batch.targets = at::tensor(targets, at::kLong);
  batch.packing.positions = at::arange(o.sequence, at::kInt).repeat({o.batch});
  return batch;
}

Json MeasureGemm(at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const int64_t n = 2048;
  const at::Tensor a = at::full({n, n}, 0.5, dtype);
  at::Tensor out = at::mm(a, a);
  std::vector<double> seconds;
  const Stopwatch total;
  while (total.Elapsed() < 1 || seconds.size() < 3) {
    const Stopwatch one;
    at::mm_out(out, a, a);
    seconds.push_back(one.Elapsed());
  }
  std::sort(seconds.begin(), seconds.end());
  const double operations = 2.0 * static_cast<double>(n * n) * static_cast<double>(n);
  return {{"shape", {n, n, n}},
          {"dtype", dtype == at::kFloat ? "float32" : "bfloat16"},
          {"calls", seconds.size()},
          {"flops_per_s", operations / seconds[seconds.size() / 2]},
          {"best_flops_per_s", operations / seconds.front()}};
}

void Answer(const Json& json) {
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

}  // namespace

void RunTrainWorker(const TrainWorkerOptions& o) {
  trainer::KeepLargeBlocks();
  at::set_num_threads(o.threads);
  const at::ScalarType dtype = o.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const auto source = ValueOrThrow(trainer::ResolveModel(
      o.model, Json::object(), dtype == at::kFloat ? DType::kF32 : DType::kBF16, nullptr));
  const auto layout = ValueOrThrow(parallel::Layout::Make(1, 1, 1));
  parallel::ParallelContext context(layout, 0, parallel::Store::InProcess(), {});
  trainer::TrainEngineOptions options;
  options.dtype = dtype;
  options.adamw = {0.9, 0.95, 1e-8, 0.1};
  options.clip_grad = 1.0;
  trainer::TrainEngine engine(context, source.config, options);
  ThrowIfError(trainer::ImportWeights(o.model, engine.ModelTable(true)));
  engine.WeightsChanged();
  const auto memory = [](Json json) {
    json["rss_bytes"] = StatusBytes("VmRSS:");
    json["peak_rss_bytes"] = StatusBytes("VmHWM:");
    return json;
  };
  Answer(memory({{"ready", true},
                 {"name", "keel"},
                 {"versions", {{"keel", "0.1.0"}, {"torch", "2.11.0"}}},
                 {"parameters", source.config.NumParameters()}}));

  int64_t step = 0;
  std::string line;
  while (std::getline(std::cin, line) && line != "quit") {
    if (line == "gemm") {
      Answer(MeasureGemm(dtype));
    } else if (line.compare(0, 5, "step ") == 0) {
      const int64_t count = std::atoll(line.c_str() + 5);
      double forward_backward = 0, optimizer = 0;
      std::vector<double> losses;
      const Stopwatch watch;
      for (int64_t i = 0; i < count; ++i, ++step) {
        const auto result = engine.Step({BatchOfStep(step, o, source.config.vocab_size)},
                                        o.batch * o.sequence, 1e-4, step + 1);
        losses.push_back(result.loss);
        forward_backward += result.forward_backward_s;
        optimizer += result.reduce_s + result.optimizer_s;
      }
      // Forward and backward are not timed apart (the loss's gradient is made in the forward): the
      // first has both.
      Answer(memory({{"seconds", watch.Elapsed()},
                     {"tokens", count * o.batch * o.sequence},
                     {"losses", losses},
                     {"forward_s", forward_backward},
                     {"backward_s", 0},
                     {"optimizer_s", optimizer}}));
    } else {
      Answer({{"error", "unknown command " + line}});
    }
  }
}

}  // namespace keel::bench
