#include "gpu/cuda/device_launcher.cuh"
#include "gpu/paged_attention.h"

template void keel::gpu::AddPagedAttentionTo<keel::gpu::DeviceLauncher>(KernelTable&);
