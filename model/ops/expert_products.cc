#include "model/ops/expert_products.h"

#include <algorithm>

#include "model/ops/decode_ops.h"
#include "parallel/groups/cuda_module.h"
#include "parallel/tensor/matrix_product.h"
#include "parallel/tensor/row_product.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

namespace {

// Calls f(expert, first row, rows) for the experts that have some.
template <typename F>
void ForEachExpert(const ExpertRows& sorted, F f) {
  for (size_t e = 0; e + 1 < sorted.begins.size(); ++e) {
    const int64_t begin = sorted.begins[e];
    const int64_t rows = sorted.begins[e + 1] - begin;
    if (rows > 0) f(static_cast<int64_t>(e), begin, rows);
  }
}

// On others PyTorch's kernel asks the host.
bool HasGroupedKernel(const at::Device& device) {
  static const bool has = [&] {
    const Result<parallel::CudaModule*> module = parallel::LoadCudaModule();
    if (!module.ok()) return false;
    const Result<parallel::GpuFacts> facts = (*module)->Describe(device.index());
    return facts.ok() && (facts->capability / 10 == 9 || facts->capability / 10 == 10);
  }();
  return has;
}

// PyTorch chooses a kernel by the mean of an expert's rows: in pieces of so many one is chosen,
// whatever the number of rows. It reads none behind the last expert's.
at::Tensor InPieces(const ExpertRows& sorted, const at::Tensor& x, const at::Tensor& w) {
  constexpr int64_t kMean = 64;
  const int64_t height = kMean * w.size(0);
  at::Tensor out = at::empty({x.size(0), w.size(2)}, x.options());
  at::Tensor piece = at::empty({height, x.size(1)}, x.options());
  for (int64_t row = 0; row < x.size(0); row += height) {
    const int64_t rows = std::min(height, x.size(0) - row);
    piece.narrow(0, 0, rows).copy_(x.narrow(0, row, rows));
    out.narrow(0, row, rows)
        .copy_(at::_grouped_mm(piece, w, (sorted.ends - row).clamp(0, rows)).narrow(0, 0, rows));
  }
  return out;
}

}  // namespace

bool HasGroupedProduct(const at::Tensor& weights, int64_t experts) {
  constexpr int64_t kBytes = 16;
  constexpr int64_t kMostExperts = 1023;
  const auto aligned = [&](int64_t bytes) { return bytes % kBytes == 0; };
  return weights.is_cuda() && weights.scalar_type() == at::kBFloat16 && experts <= kMostExperts &&
         aligned(2 * weights.size(1)) && aligned(2 * weights.size(0) / experts) &&
         aligned(reinterpret_cast<int64_t>(weights.const_data_ptr())) &&
         HasGroupedKernel(weights.device());
}

at::Tensor ExpertProduct(const ExpertRows& sorted, const at::Tensor& x, const at::Tensor& w,
                         parallel::Arithmetic arithmetic) {
  if (sorted.ends.defined() && x.size(0) > 0) {
    return arithmetic == parallel::Arithmetic::kBatchInvariant ? InPieces(sorted, x, w)
                                                               : at::_grouped_mm(x, w, sorted.ends);
  }
  at::Tensor out = at::empty({x.size(0), w.size(2)}, x.options());
  ForEachExpert(sorted, [&](int64_t e, int64_t begin, int64_t rows) {
    const at::Tensor from = x.narrow(0, begin, rows);
    at::Tensor to = out.narrow(0, begin, rows);
    if (arithmetic == parallel::Arithmetic::kTraining) {
      parallel::ProductInto(to, from, w[e]);
    } else {
      parallel::LinearInto(from, w[e].t(), nullptr, to, arithmetic);
    }
  });
  return out;
}

void AddExpertGradient(at::Tensor& gradient, const ExpertRows& sorted, const at::Tensor& dy,
                       const at::Tensor& x) {
  if (sorted.ends.defined() && x.size(0) > 0) {
    at::Tensor products = at::_grouped_mm(dy.t(), x, sorted.ends);
    // What it gives an expert that has no rows is not always 0.
    const at::Tensor none = sorted.ends.diff(1, 0, at::zeros({1}, sorted.ends.options())).eq(0);
    gradient.add_(products.masked_fill_(none.view({-1, 1, 1}), 0));
    return;
  }
  ForEachExpert(sorted, [&](int64_t e, int64_t begin, int64_t rows) {
    at::Tensor of_expert = gradient[e];
    parallel::AccumulateWeightGradient(of_expert, dy.narrow(0, begin, rows),
                                       x.narrow(0, begin, rows));
  });
}

// By a product with ones: the same bits every time, and nothing that the host must know.
void AddExpertBiasGradient(at::Tensor& gradient, const ExpertRows& sorted, const at::Tensor& dy) {
  if (dy.size(0) == 0) return;
  const at::Tensor ones = at::zeros({gradient.size(0), dy.size(0)}, dy.options().dtype(at::kFloat))
                              .scatter_(0, sorted.Experts().unsqueeze(0), 1);
  parallel::AddProduct(gradient, ones, dy.to(at::kFloat));
}

}  // namespace keel::model
