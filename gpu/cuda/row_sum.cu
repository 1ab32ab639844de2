#include "gpu/cuda/device_launcher.cuh"
#include "gpu/row_sum.h"

template void keel::gpu::AddRowSumTo<keel::gpu::DeviceLauncher>(KernelTable&);
