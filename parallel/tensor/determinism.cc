#include "parallel/tensor/determinism.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace keel::parallel {

void UseDeterministicKernels(bool on) {
  at::Context& context = at::globalContext();
  // An operation that has no deterministic way throws its name. PyTorch's build of FlashAttention
  // chooses its backward by this.
  context.setDeterministicAlgorithms(on, /*warn_only=*/false);
  // PyTorch would fill whatever is allocated, against reads of what was never written; tests do
  // that better.
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicCuDNN(on);
  if (!on) return;
  context.setBenchmarkCuDNN(false);  // which kernel is fastest is not the same every time
  (void)setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
}

}  // namespace keel::parallel
