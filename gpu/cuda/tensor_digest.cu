#include "gpu/tensor_digest.h"

#include "gpu/cuda/device_launcher.cuh"

template void keel::gpu::AddTensorDigestTo<keel::gpu::DeviceLauncher>(KernelTable&);
