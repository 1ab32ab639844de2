#include "trainer/engine/flops.h"

#include <algorithm>

#include "common/clock.h"
#include "model/config/adapter_tensors.h"
#include "parallel/tensor/matrix_product.h"

namespace keel::trainer {

double TrainFlopsPerToken(const model::HfConfig& c, double sequence_length) {
  const double attention = c.AttentionWeights(c.num_attention_heads, c.num_key_value_heads);
  // Of a head in the products of queries with keys and of weights with values, on average.
  const int64_t two = c.latent.used() ? c.latent.key_dims() + c.latent.value_dims : 2 * c.head_dim;
  double layers = 0;
  int64_t attends = 0;  // layers
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const model::LayerSpec spec = c.Layer(i);
    const model::MoeSpec& moe = spec.moe;
    const int64_t shared = 3 * moe.shared_width + (moe.shared_width > 0 ? 1 : 0);
    const int64_t ffn = spec.ffn == model::FfnKind::kMoe
                            ? 3 * moe.top_k * moe.width + moe.experts + shared
                            : (spec.ffn == model::FfnKind::kPlain ? 2 : 3) * c.intermediate_size;
    const bool recurrent = spec.mixer == model::Mixer::kDeltaRule;
    // The state is read, written and read again for each token.
    const double mixer = recurrent ? c.DeltaWeights(c.delta.key_heads) +
                                         3 * static_cast<double>(c.delta.values() * c.delta.key_dim)
                                   : attention;
    attends += recurrent ? 0 : 1;
    layers += mixer + static_cast<double>(c.hidden_size * ffn);
  }
  const double weights = layers + static_cast<double>(c.vocab_size * c.hidden_size);
  if (c.adapter.used()) {
    // No gradient of what is frozen is computed.
    double adapters = 0;
    for (const TensorInfo& tensor : model::AdapterTensorsOf(c))
      adapters += static_cast<double>(tensor.shape.elements());
    return 4 * weights + 6 * adapters +
           3 * static_cast<double>(attends * c.num_attention_heads * two) * sequence_length;
  }
  return 6 * weights +
         3 * static_cast<double>(attends * c.num_attention_heads * two) * sequence_length;
}

double MeasureGemmRate(at::ScalarType dtype, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  at::Tensor a, out;
  const auto seconds_of = [&](int products) {
    const Stopwatch watch;
    for (int i = 0; i < products; ++i) parallel::ProductInto(out, a, a);
    static_cast<void>(out[0][0].item<float>());  // waits for a device
    return watch.Elapsed();
  };
  // Of a size at which a product is no matter of a moment.
  int64_t n = 384;
  double one = 0;
  do {
    n *= 2;
    // Of numbers of all kinds: a GPU draws less power, and so runs faster, on bits that do not
    // change.
    a = at::arange(n * n, options.dtype(at::kFloat)).sin().view({n, n}).to(dtype);
    out = parallel::Product(a, a);
    one = seconds_of(1);
  } while (n < 3072 && one < 2e-3);
  const int at_once = std::max(1, static_cast<int>(5e-3 / one));  // between two waits
  const double operations =
      2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  // A device needs a while until its clock is up, and what was timed before then does not count.
  const double long_enough = device.is_cpu() ? 0.03 : 0.2;
  int done = device.is_cpu() ? 1 : 0;
  double seconds = done * one;
  while (seconds < long_enough) {
    seconds += seconds_of(at_once);
    done += at_once;
  }
  return operations * done / seconds;
}

}  // namespace keel::trainer
