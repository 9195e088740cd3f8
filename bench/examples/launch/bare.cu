// Measures the lower bound of a launch's cost: `cudaLaunchKernelEx` of an empty kernel with the parameter bytes and
// attributes of another one, through a static CUDA runtime like that of generated kernels.
//
// Compile with -DFOURFOLD_PARAMETER_BYTES=BYTES(n)BYTES(m)...: one kernel per size of the parameters.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <new>

constexpr uint32_t alignment_of(uint32_t bytes) {
  for (uint32_t alignment = 64; alignment > 1; alignment /= 2) {
    if (bytes % alignment == 0) {
      return alignment;
    }
  }
  return 1;
}

template <uint32_t Bytes>
struct alignas(alignment_of(Bytes)) Parameters {
  unsigned char bytes[Bytes];
};

template <uint32_t Bytes>
__global__ void empty(__grid_constant__ Parameters<Bytes> const) {}

struct Call {
  uint32_t grid[3], block[3], cluster[3], shared_memory, parameter_bytes;
};

struct Launch {
  cudaLaunchConfig_t config;
  cudaLaunchAttribute cluster;
  void const *kernel;
  void *arguments[1];
  // The largest size of a kernel's parameters.
  alignas(64) unsigned char parameters[32764];
};

extern "C" {

int32_t bare_use_device(int32_t ordinal) { return cudaSetDevice(ordinal); }

char const *bare_error(int32_t error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

// Prepares the arguments of `bare_launch`. Returns cudaErrorInvalidDeviceFunction if no kernel has this many
// bytes.
int32_t bare_prepare(Call const *call, void **result) {
  void const *kernel = nullptr;
#define BYTES(n)                                                     \
  if (call->parameter_bytes == n) {                                  \
    static_assert(sizeof(Parameters<n>) == n);                       \
    kernel = reinterpret_cast<void const *>(static_cast<void (*)(Parameters<n> const)>(empty<n>)); \
  }
  FOURFOLD_PARAMETER_BYTES
#undef BYTES
  if (kernel == nullptr) {
    return cudaErrorInvalidDeviceFunction;
  }
  cudaError_t error = cudaSuccess;
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, kernel);
  // Calls may share the kernel, so a limit is only ever raised.
  if (error == cudaSuccess && static_cast<int>(call->shared_memory) > attributes.maxDynamicSharedSizeBytes) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(call->shared_memory));
  }
  bool const has_cluster = call->cluster[0] != 0;
  if (error == cudaSuccess && has_cluster) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error != cudaSuccess) {
    return error;
  }
  auto *launch = new (std::nothrow) Launch{};
  if (launch == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  launch->cluster.id = cudaLaunchAttributeClusterDimension;
  launch->cluster.val.clusterDim = {call->cluster[0], call->cluster[1], call->cluster[2]};
  launch->config.gridDim = dim3(call->grid[0], call->grid[1], call->grid[2]);
  launch->config.blockDim = dim3(call->block[0], call->block[1], call->block[2]);
  launch->config.dynamicSmemBytes = call->shared_memory;
  launch->config.attrs = &launch->cluster;
  launch->config.numAttrs = has_cluster ? 1 : 0;
  launch->kernel = kernel;
  launch->arguments[0] = launch->parameters;
  *result = launch;
  return cudaSuccess;
}

// Does what `cudaLaunchKernelEx` does, without the copy of the parameters that its template makes.
int32_t bare_launch(void *prepared, void *stream) {
  auto *launch = static_cast<Launch *>(prepared);
  launch->config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelExC(&launch->config, launch->kernel, launch->arguments);
}

int32_t bare_memset(void *address, int32_t byte, uint64_t bytes, void *stream) {
  return cudaMemsetAsync(address, byte, bytes, static_cast<cudaStream_t>(stream));
}

void bare_destroy(void *prepared) { delete static_cast<Launch *>(prepared); }

// Allocates in C, to check that such allocations are counted.
void bare_allocate() {
  void *volatile memory = std::malloc(1);
  std::free(memory);
}

}  // extern "C"
