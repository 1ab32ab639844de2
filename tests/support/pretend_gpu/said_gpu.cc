// What CUDA's runtime says of a GPU that is not there, for the module itself (keel_cuda):
// preloaded, its answers come before the runtime's, and by its name it is the driver. Nothing can
// be computed on it, and its memory is addresses alone, by the driver's virtual memory management:
// what is asked of that is written down.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr CUdeviceptr kAddress = CUdeviceptr{1} << 40;

std::string said;       // what was asked for, a word each
int full = 0;           // so many allocations find no memory
int64_t memory_of = 0;  // bytes that were made and are not gone: a handle's, and a mapping's
bool mapped = false, held = false;

void Say(const char* word, size_t bytes = 0) {
  said += word;
  if (bytes > 0) said += ":" + std::to_string(bytes / kPage);
  said += " ";
}

CUresult Attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = std::getenv("KEEL_SAID_NO_VMM") == nullptr;
  return CUDA_SUCCESS;
}
CUresult Granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kPage;
  return CUDA_SUCCESS;
}
CUresult Reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  Say("reserve", bytes);
  *address = kAddress;
  return CUDA_SUCCESS;
}
CUresult Unreserve(CUdeviceptr, size_t bytes) {
  Say("unreserve", bytes);
  return CUDA_SUCCESS;
}
CUresult Create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* of,
                unsigned long long) {
  if (of->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      of->location.type != CU_MEM_LOCATION_TYPE_DEVICE || of->location.id != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (full > 0) {
    --full;
    Say("full");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Say("create", bytes);
  *handle = 7;
  held = true;
  memory_of = static_cast<int64_t>(bytes);
  return CUDA_SUCCESS;
}
// Memory goes when neither a handle nor a mapping has it.
void Drop() {
  if (!held && !mapped) memory_of = 0;
}
CUresult Release(CUmemGenericAllocationHandle handle) {
  Say("release");
  if (handle != 7 || !held) return CUDA_ERROR_INVALID_VALUE;
  held = false;
  Drop();
  return CUDA_SUCCESS;
}
CUresult Map(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  Say("map", bytes);
  if (address != kAddress || handle != 7 || mapped || !held) return CUDA_ERROR_INVALID_VALUE;
  mapped = true;
  return CUDA_SUCCESS;
}
CUresult Unmap(CUdeviceptr address, size_t bytes) {
  Say("unmap", bytes);
  if (address != kAddress || !mapped) return CUDA_ERROR_INVALID_VALUE;
  mapped = false;
  Drop();
  return CUDA_SUCCESS;
}
CUresult Access(CUdeviceptr, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  Say("access", bytes);
  return mapped && count == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

struct Function {
  const char* name;
  void* address;
};
const Function kDriver[] = {
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(&Attribute)},
    {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&Granularity)},
    {"cuMemAddressReserve", reinterpret_cast<void*>(&Reserve)},
    {"cuMemAddressFree", reinterpret_cast<void*>(&Unreserve)},
    {"cuMemCreate", reinterpret_cast<void*>(&Create)},
    {"cuMemRelease", reinterpret_cast<void*>(&Release)},
    {"cuMemMap", reinterpret_cast<void*>(&Map)},
    {"cuMemUnmap", reinterpret_cast<void*>(&Unmap)},
    {"cuMemSetAccess", reinterpret_cast<void*>(&Access)},
};

}  // namespace

extern "C" {

// What was asked for since the last call.
const char* keel_said_calls() {
  static std::string last;
  last = said;
  said.clear();
  return last.c_str();
}
void keel_said_full(int times) { full = times; }
int64_t keel_said_memory() { return memory_of; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* answer) {
  for (const Function& known : kDriver) {
    if (std::strcmp(known.name, name) != 0) continue;
    *function = known.address;
    *answer = cudaDriverEntryPointSuccess;
    return cudaSuccess;
  }
  static const auto real = reinterpret_cast<decltype(&cudaGetDriverEntryPointByVersion)>(
      dlsym(RTLD_NEXT, "cudaGetDriverEntryPointByVersion"));
  return real(name, function, version, flags, answer);
}
cudaError_t cudaDeviceSynchronize() {
  Say("wait");
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof(*properties));
  std::strcpy(properties->name, "said GPU");
  properties->major = 9;
  properties->totalGlobalMem = size_t{80} << 30;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) {
  std::strncpy(text, "0000:01:00.0", static_cast<size_t>(size));
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = size_t{79} << 30;
  *total = size_t{80} << 30;
  return cudaSuccess;
}

// Of the driver: whether a device has a context.
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

}  // extern "C"
