#include "gpu/cuda/device_launcher.cuh"
#include "gpu/gated_unit.h"

template void keel::gpu::AddGatedUnitTo<keel::gpu::DeviceLauncher>(KernelTable&);
