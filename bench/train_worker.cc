#include "bench/train_worker.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "bench/bench_device.h"
#include "bench/worker_protocol.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/process/program_id.h"
#include "parallel/groups/context.h"
#include "parallel/tensor/matrix_product.h"
#include "trainer/engine/memory.h"
#include "trainer/engine/train_engine.h"
#include "trainer/inputs/model_source.h"
#include "trainer/inputs/model_weights.h"

namespace keel::bench {

namespace {

model::ModelBatch BatchOfStep(int64_t step, const TrainWorkerOptions& o, int64_t vocabulary,
                              const BenchDevice& on) {
  std::vector<int64_t> ids, targets;
  model::ModelBatch batch;
  batch.packing.boundaries = {0};
  for (int64_t i = 0; i < o.batch; ++i) {
    const int64_t sequence = step * o.batch + i;
    const auto token = [&](int64_t p) { return MadeToken(sequence, p, o.sequence, vocabulary); };
    for (int64_t p = 0; p < o.sequence; ++p) {
      ids.push_back(token(p));
      targets.push_back(token(p + 1));
    }
    batch.packing.boundaries.push_back(static_cast<int64_t>(ids.size()));
  }
  batch.ids = at::tensor(ids, at::kLong).to(on.device());
  batch.targets = at::tensor(targets, at::kLong).to(on.device());
  batch.packing.positions = at::arange(o.sequence, at::kInt).repeat({o.batch}).to(on.device());
  return batch;
}

Json MeasureGemm(at::ScalarType dtype, const BenchDevice& on) {
  const at::NoGradGuard no_grad;
  const int64_t n = on.is_cpu() ? 2048 : 8192;
  const at::Tensor a = at::full({n, n}, 0.5, at::TensorOptions(on.device()).dtype(dtype));
  at::Tensor out = parallel::Product(a, a);
  on.Wait();
  std::vector<double> seconds;
  const Stopwatch total;
  while (total.Elapsed() < 1 || seconds.size() < 3) {
    const Stopwatch one;
    parallel::ProductInto(out, a, a);
    on.Wait();
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

}  // namespace

void RunWorker(const TrainWorkerOptions& o) {
  const BenchDevice on(o.device);
  trainer::KeepLargeBlocks();
  at::set_num_threads(o.threads);
  const at::ScalarType dtype = o.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const auto source = ValueOrThrow(trainer::ResolveModel(
      o.model, Json::object(), dtype == at::kFloat ? DType::kF32 : DType::kBF16));
  const auto layout = ValueOrThrow(parallel::Layout::Make(1, 1, 1));
  parallel::ParallelContext context(layout, 0, parallel::Store::InProcess(),
                                    {.cuda = !on.is_cpu(), .device_index = on.device().index()});
  trainer::TrainEngineOptions options;
  options.dtype = dtype;
  options.device = on.device();
  options.adamw = {0.9, 0.95, 1e-8, 0.1};
  options.clip_grad = 1.0;
  trainer::TrainEngine engine(context, source.config, options);
  engine.LoadInto([&](const auto& tables) -> trainer::TrainEngine::Written {
    ThrowIfError(
        trainer::ImportWeights(o.model, source.config, model::Head::kVocabulary, tables.model));
    return {.weights = true};
  });
  Answer(WithMemory({{"ready", true},
                     {"name", "keel"},
                     {"versions", {{"keel", std::string(ProgramVersion())}, {"torch", "2.11.0"}}},
                     {"parameters", source.config.NumParameters()}}));

  int64_t step = 0;
  const auto steps = [&](std::istringstream& words) {
    int64_t count = 0;
    words >> count;
    double forward_backward = 0, optimizer = 0;
    std::vector<double> losses;
    const Stopwatch watch;
    for (int64_t i = 0; i < count; ++i, ++step) {
      const auto result = engine.Step({BatchOfStep(step, o, source.config.vocab_size, on)},
                                      o.batch * o.sequence, 1e-4, step + 1);
      losses.push_back(result.loss);
      forward_backward += result.forward_backward_s;
      optimizer += result.reduce_s + result.optimizer_s;
    }
    // Forward and backward are not timed apart (the loss's gradient is made in the forward): the
    // first has both.
    return WithMemory({{"seconds", watch.Elapsed()},
                       {"tokens", count * o.batch * o.sequence},
                       {"losses", losses},
                       {"forward_s", forward_backward},
                       {"backward_s", 0},
                       {"optimizer_s", optimizer}});
  };
  Serve({{"step", steps}, {"gemm", [&](std::istringstream&) { return MeasureGemm(dtype, on); }}});
}

}  // namespace keel::bench
