// Whether operations give the same bits every time.
//
// Keel's kernels for hosts always do. On a GPU the gradient of attention and sums over repeated
// indices are faster in an order that nobody fixes, and cuBLAS splits a product as its workspace
// allows: a run that was resumed would not be the run that went on.
#pragma once

namespace keel::parallel {

// For the whole process. To be called before the CUDA module is loaded: cuBLAS reads its setting,
// CUBLAS_WORKSPACE_CONFIG, when its first handle is made. One that the user has given is kept.
void UseDeterministicKernels(bool on);

}  // namespace keel::parallel
