// The entry of one libFuzzer program; KEEL_FUZZ_TARGET names the target's function.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  keel::fuzz::KEEL_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
