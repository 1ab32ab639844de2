#include "bench/bench_device.h"

#include "parallel/groups/cuda_module.h"
#include "trainer/run/device_agreement.h"

namespace keel::bench {

BenchDevice::BenchDevice(const std::string& wish)
    : device_(trainer::DeviceOf(
          ValueOrThrow(trainer::OfferHere(ValueOrThrow(trainer::ParseDeviceWish(wish)), 0)))) {}

void BenchDevice::Wait() const {
  if (!is_cpu()) ValueOrThrow(parallel::LoadCudaModule())->Synchronize();
}

}  // namespace keel::bench
