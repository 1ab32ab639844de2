#include "gpu/adamw.h"
#include "gpu/cuda/device_launcher.cuh"

template void keel::gpu::AddAdamWTo<keel::gpu::DeviceLauncher>(KernelTable&);
