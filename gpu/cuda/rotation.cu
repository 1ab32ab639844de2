#include "gpu/cuda/device_launcher.cuh"
#include "gpu/rotation.h"

template void keel::gpu::AddRotationTo<keel::gpu::DeviceLauncher>(KernelTable&);
