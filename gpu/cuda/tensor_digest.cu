#include "gpu/cuda/device_launcher.cuh"
#include "gpu/tensor_digest.h"

template void keel::gpu::AddTensorDigestTo<keel::gpu::DeviceLauncher>(KernelTable&);
