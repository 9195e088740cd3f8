// The part of CUDA's runtime and device interface that a row kernel uses, for a simulation on the host.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct float4 {
  float x, y, z, w;
};
struct uint4 {
  unsigned x, y, z, w;
};

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation = 2, cudaErrorInsufficientDriver = 35 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
constexpr unsigned long long cudaEnableDefault = 0;
using cudaKernel_t = void *;
using cudaStream_t = void *;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline char const *cudaGetErrorString(cudaError_t) { return "an error"; }
inline cudaError_t cudaGetKernel(cudaKernel_t *kernel, void const *) {
  *kernel = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(char const *name, void **function, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result);

extern thread_local dim3 threadIdx, blockIdx, gridDim;
float __shfl_xor_sync(unsigned mask, float x, int distance);
void __syncthreads();
// The dynamic shared memory of the CTA, and the exchange within its cluster.
uint8_t *dynamic_memory();
void store_to_cta(float *to, uint32_t rank, float x);
void sync_cluster();

inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float erfcxf(float x) { return static_cast<float>(std::exp(static_cast<double>(x) * x) * std::erfc(static_cast<double>(x))); }
inline unsigned __vmaxu2(unsigned a, unsigned b) { return std::max(a & 0xFFFFu, b & 0xFFFFu) | std::max(a >> 16, b >> 16) << 16; }
inline unsigned __vminu2(unsigned a, unsigned b) { return std::min(a & 0xFFFFu, b & 0xFFFFu) | std::min(a >> 16, b >> 16) << 16; }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t const bytes = static_cast<uint64_t>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> ((selector >> (4 * i) & 7) * 8) & 0xFF) << (8 * i);
  }
  return result;
}
inline void atomicAnd(unsigned *to, unsigned x) { *to &= x; }
inline void atomicOr(unsigned *to, unsigned x) { *to |= x; }
