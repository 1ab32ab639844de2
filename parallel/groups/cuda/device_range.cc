#include "parallel/groups/cuda/device_range.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>

namespace keel::parallel {

namespace {

// Functions of the driver, which is not linked: a machine without a GPU has none.
struct Driver {
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) unreserve = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) access = nullptr;
};

Result<Driver> FindDriver() {
  Driver driver;
  Status missing;
  const auto find = [&missing](const char* name, auto& function) {
    constexpr unsigned kVersion = 12000;  // in which all of them are
    void* found = nullptr;
    cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &answer);
    if ((error != cudaSuccess || answer != cudaDriverEntryPointSuccess || found == nullptr) &&
        missing.ok())
      missing = Status(StatusCode::kUnavailable, fmt::format("the driver has no {}", name));
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find("cuDeviceGetAttribute", driver.attribute);
  find("cuMemGetAllocationGranularity", driver.granularity);
  find("cuMemAddressReserve", driver.reserve);
  find("cuMemAddressFree", driver.unreserve);
  find("cuMemCreate", driver.create);
  find("cuMemRelease", driver.release);
  find("cuMemMap", driver.map);
  find("cuMemUnmap", driver.unmap);
  find("cuMemSetAccess", driver.access);
  KEEL_RETURN_IF_ERROR(missing);
  return driver;
}

Status FromDriver(CUresult result, const char* operation, size_t bytes) {
  if (result == CUDA_SUCCESS) return Status::Ok();
  return Status(StatusCode::kUnavailable, fmt::format("{} of {} bytes: CUDA driver error {}",
                                                      operation, bytes, static_cast<int>(result)));
}

class Range final : public DeviceRange {
 public:
  Range(const Driver& driver, CUdeviceptr address, size_t size, CUmemAllocationProp properties,
        std::function<void(int64_t)> mapped)
      : driver_(driver),
        address_(address),
        size_(size),
        properties_(properties),
        mapped_(std::move(mapped)) {}
  ~Range() override {
    Unmap();
    driver_.unreserve(address_, size_);
  }

  void* address() const override { return reinterpret_cast<void*>(address_); }

  Status Map() override {
    if (there_) return Status::Ok();
    CUmemGenericAllocationHandle memory{};
    CUresult made = driver_.create(&memory, size_, &properties_, 0);
    if (made == CUDA_ERROR_OUT_OF_MEMORY) {  // what PyTorch keeps for later tensors is in its way
      c10::cuda::CUDACachingAllocator::emptyCache();
      made = driver_.create(&memory, size_, &properties_, 0);
    }
    KEEL_RETURN_IF_ERROR(FromDriver(made, "cuMemCreate", size_));
    Status status = FromDriver(driver_.map(address_, size_, 0, memory, 0), "cuMemMap", size_);
    driver_.release(memory);  // the mapping keeps it
    KEEL_RETURN_IF_ERROR(status);
    CUmemAccessDesc access{};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    status = FromDriver(driver_.access(address_, size_, &access, 1), "cuMemSetAccess", size_);
    if (!status.ok()) {
      driver_.unmap(address_, size_);
      return status;
    }
    there_ = true;
    mapped_(static_cast<int64_t>(size_));
    return status;
  }

  void Unmap() override {
    if (!there_) return;
    cudaDeviceSynchronize();  // nothing under way may still use it
    driver_.unmap(address_, size_);
    there_ = false;
    mapped_(-static_cast<int64_t>(size_));
  }

 private:
  const Driver driver_;
  const CUdeviceptr address_;
  const size_t size_;
  const CUmemAllocationProp properties_;
  const std::function<void(int64_t)> mapped_;
  bool there_ = false;
};

}  // namespace

Result<std::unique_ptr<DeviceRange>> ReserveDeviceRange(int index, size_t bytes,
                                                        std::function<void(int64_t)> mapped) {
  static const Result<Driver> driver = FindDriver();
  KEEL_RETURN_IF_ERROR(driver.status());
  int supported = 0;
  KEEL_RETURN_IF_ERROR(FromDriver(
      driver->attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, index),
      "cuDeviceGetAttribute", bytes));
  if (supported == 0)
    return Status(StatusCode::kUnavailable, "the device has no virtual memory management");
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = index;
  size_t granularity = 0;
  KEEL_RETURN_IF_ERROR(FromDriver(
      driver->granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity", bytes));
  const size_t size = (bytes + granularity - 1) / granularity * granularity;
  CUdeviceptr address = 0;
  KEEL_RETURN_IF_ERROR(
      FromDriver(driver->reserve(&address, size, 0, 0, 0), "cuMemAddressReserve", size));
  return std::unique_ptr<DeviceRange>(
      std::make_unique<Range>(*driver, address, size, properties, std::move(mapped)));
}

}  // namespace keel::parallel
