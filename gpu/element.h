// The types of element that kernels know.
#pragma once

namespace keel::gpu {

enum class Element { kF32, kBf16 };

}  // namespace keel::gpu
