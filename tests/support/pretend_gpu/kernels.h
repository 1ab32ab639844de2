// Keel's kernels on a pretend GPU: their bodies, on what stands behind the addresses that they are
// given.
#pragma once

#include "gpu/kernel_table.h"

namespace keel::testing::pretend {

const gpu::KernelTable& Kernels();

}  // namespace keel::testing::pretend
