#include "trainer/engine/flops.h"

#include "common/clock.h"
#include "parallel/tensor/matrix_product.h"

namespace keel::trainer {

double TrainFlopsPerToken(const model::HfConfig& c, double sequence_length) {
  const int64_t q = c.num_attention_heads * c.head_dim;
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  int64_t layers = 0;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const model::LayerSpec spec = c.Layer(i);
    const int64_t ffn = spec.ffn == model::FfnKind::kMoe
                            ? 3 * spec.moe.top_k * spec.moe.width + spec.moe.experts
                            : 3 * c.intermediate_size;
    layers += c.hidden_size * (2 * q + 2 * kv + ffn);
  }
  const auto weights = static_cast<double>(layers + c.vocab_size * c.hidden_size);
  return 6 * weights + 6 * static_cast<double>(c.num_hidden_layers * q) * sequence_length;
}

double MeasureGemmRate(at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  const int64_t n = device.is_cpu() ? 768 : 4096;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  // Of numbers of all kinds: a GPU draws less power, and so runs faster, on bits that do not
  // change.
  const at::Tensor a =
      device.is_cpu() ? at::full({n, n}, 0.5, options) : at::randn({n, n}, options);
  at::Tensor out = parallel::Product(a, a);
  const double operations =
      2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  const Stopwatch watch;
  int done = 0;
  const int at_once = device.is_cpu() ? 1 : 16;  // between two waits of the host for the device
  while (done < 3 || watch.Elapsed() < 0.2) {
    for (int i = 0; i < at_once; ++i) parallel::ProductInto(out, a, a);
    if (!device.is_cpu()) static_cast<void>(out[0][0].item<float>());
    done += at_once;
  }
  return operations * done / watch.Elapsed();
}

}  // namespace keel::trainer
