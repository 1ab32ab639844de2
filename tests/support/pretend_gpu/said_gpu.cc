// What CUDA's runtime says of a GPU that is not there, for the module itself (keel_cuda):
// preloaded, its answers come before the runtime's, and by its name it is the driver. Nothing can
// be computed or allocated on it.

#include <cuda_runtime_api.h>

#include <cstring>

extern "C" {

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
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}

}  // extern "C"
