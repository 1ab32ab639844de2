#include "gpu/cuda/device_launcher.cuh"
#include "gpu/vocab_softmax.h"

template void keel::gpu::AddVocabSoftmaxTo<keel::gpu::DeviceLauncher>(KernelTable&);
