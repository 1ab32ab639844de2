#include "gpu/cuda/device_launcher.cuh"
#include "gpu/token_choice.h"

template void keel::gpu::AddTokenChoiceTo<keel::gpu::DeviceLauncher>(KernelTable&);
