#include "gpu/cuda/device_launcher.cuh"
#include "gpu/rms_norm.h"

template void keel::gpu::AddRmsNormTo<keel::gpu::DeviceLauncher>(KernelTable&);
