// Keel's own kernels for GPUs, as a caller sees them: what each takes, and a table of functions
// that start them.
//
// There are two tables of the same bodies: DeviceKernelTable of the keel_cuda module, which starts
// them on a stream, and HostKernelTable, which runs them on the calling thread, for tests. No
// function waits for a device or allocates. Pointers are to memory of the device that the table is
// for. Torch-free, and free of CUDA.
#pragma once

#include <cstdint>

#include "gpu/adamw_args.h"
#include "gpu/gated_unit_args.h"
#include "gpu/paged_attention_args.h"
#include "gpu/rms_norm_args.h"
#include "gpu/rotation_args.h"
#include "gpu/row_sum_args.h"
#include "gpu/tensor_digest_args.h"
#include "gpu/token_choice_args.h"
#include "gpu/vocab_softmax_args.h"

namespace keel::gpu {

using Stream = void*;  // a cudaStream_t; a host has none

// Each throws std::runtime_error where the device refuses to start the kernel.
template <class Args>
using Kernel = void (*)(const Args&, Stream);

struct KernelTable {
  Kernel<RmsNorm> rms_norm = nullptr;
  Kernel<RmsNormBackward> rms_norm_backward = nullptr;
  Kernel<GatedUnit> gated_unit = nullptr;
  Kernel<GatedUnitBackward> gated_unit_backward = nullptr;
  Kernel<Rotate> rotate = nullptr;
  Kernel<PagedAttention> paged_attention = nullptr;
  Kernel<AdamW> adamw = nullptr;
  Kernel<SumOfSquares> sum_of_squares = nullptr;
  Kernel<TokenStatistics> token_statistics = nullptr;
  Kernel<TokenGradient> token_gradient = nullptr;
  Kernel<AddToRows> add_to_rows = nullptr;
  Kernel<TensorDigest> tensor_digest = nullptr;
  Kernel<TokenChoice> token_choice = nullptr;
};

// The order in which a host plays what a GPU does at once. A body whose result depends on it has a
// race.
enum class LaneOrder { kForward, kBackward };
const KernelTable& HostKernelTable(LaneOrder order = LaneOrder::kForward);
const KernelTable& DeviceKernelTable();  // of keel_cuda alone

}  // namespace keel::gpu
