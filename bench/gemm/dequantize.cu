// Converts NVFP4 to f16, for the peer that dequantizes both operands before it multiplies. Also has a kernel that only
// reads, to measure the memory bandwidth. nvcc builds this file when the benchmark starts.

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kThreads = 256;
// Rows per thread, and thus loads in flight per thread.
constexpr int kRows = 4;
// Elements of K per thread: one word of codes, and 16 bytes of f16.
constexpr int kRun = 8;

// Returns the offset of a group's scale: tiles of 128 rows by 4 groups are contiguous along K.
__host__ __device__ inline int64_t scale_offset(int row, int group, int group_tiles) {
  int64_t const tile = static_cast<int64_t>(row / 128) * group_tiles + group / 4;
  return tile * 512 + (row % 32) * 16 + (row % 128) / 32 * 4 + group % 4;
}

// Multiplies eight codes, the lowest first, by their scale. A code's three low bits, placed at bits 9 to 11 of an f16,
// are its magnitude times 2^-14, and both products are exact. Such an f16 has a zero low byte, so four high bytes are
// computed at once.
__host__ __device__ inline uint4 decode(uint32_t codes, uint8_t scale) {
  __half const factor = __half(__nv_cvt_fp8_to_halfraw(scale, __NV_E4M3));
  __half2 const factors = __halves2half2(factor, factor);
  __half2 const lift = __float2half2_rn(16384.0f);
  uint32_t const even = (codes << 1 & 0x0E0E0E0Eu) | (codes << 4 & 0x80808080u);
  uint32_t const odd = (codes >> 3 & 0x0E0E0E0Eu) | (codes & 0x80808080u);
  uint32_t words[kRun / 2];
#pragma unroll
  for (int i = 0; i < kRun / 2; ++i) {
    uint32_t const bits = (even >> (8 * i) & 0xFFu) << 8 | (odd >> (8 * i) & 0xFFu) << 24;
    __half2_raw raw;
    raw.x = static_cast<uint16_t>(bits);
    raw.y = static_cast<uint16_t>(bits >> 16);
    __half2_raw const value = __hmul2(__hmul2(__half2(raw), lift), factors);
    words[i] = value.x | static_cast<uint32_t>(value.y) << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__global__ void __launch_bounds__(kThreads)
    dequantize(uint32_t const *__restrict__ codes, uint8_t const *__restrict__ scales, uint4 *__restrict__ values,
               int rows, int runs, int group_tiles) {
  int const run = blockIdx.x * kThreads + threadIdx.x;
  int const first = blockIdx.y * kRows;
  if (run >= runs) {
    return;
  }
  // The scales of a thread's rows are in one tile, 16 bytes apart.
  static_assert(32 % kRows == 0);
  int64_t const start = static_cast<int64_t>(first) * runs + run;
  codes += start;
  values += start;
  scales += scale_offset(first, run / 2, group_tiles);
  uint32_t words[kRows];
  uint8_t factors[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    bool const is_row = first + i < rows;
    words[i] = is_row ? codes[i * static_cast<int64_t>(runs)] : 0;
    factors[i] = is_row ? scales[i * 16] : 0;
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (first + i < rows) {
      values[i * static_cast<int64_t>(runs)] = decode(words[i], factors[i]);
    }
  }
}

// The comparison with an arbitrary number keeps the compiler from removing the loads.
__global__ void __launch_bounds__(512) read(uint4 const *__restrict__ data, int64_t count, uint32_t *sink) {
  constexpr int kLoads = 8;
  int64_t const step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t seen = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += kLoads * step) {
    uint4 parts[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      parts[j] = i + j * step < count ? __ldcs(data + i + j * step) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      seen |= parts[j].x ^ parts[j].y ^ parts[j].z ^ parts[j].w;
    }
  }
  if (seen == 0x9e3779b9u) {
    *sink = seen;
  }
}

}  // namespace

extern "C" {

// Writes [rows, k] in f16 from [rows, k / 2] codes and blocked scales; k is a multiple of 16. Returns a cudaError_t.
int32_t gemm_dequantize(void const *codes, void const *scales, void *values, int32_t rows, int32_t k, void *stream) {
  int const runs = k / kRun;
  dim3 const grid((runs + kThreads - 1) / kThreads, (rows + kRows - 1) / kRows);
  dequantize<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<uint32_t const *>(codes), static_cast<uint8_t const *>(scales), static_cast<uint4 *>(values), rows,
      runs, (k / 16 + 3) / 4);
  return cudaGetLastError();
}

// Reads 16 * count bytes. Returns a cudaError_t.
int32_t gemm_read(void const *data, int64_t count, int32_t blocks, void *sink, void *stream) {
  read<<<blocks, 512, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<uint4 const *>(data), count,
                                                              static_cast<uint32_t *>(sink));
  return cudaGetLastError();
}

// The same arithmetic on the host, for tests.
int64_t gemm_scale_offset(int32_t row, int32_t group, int32_t group_tiles) {
  return scale_offset(row, group, group_tiles);
}

void gemm_decode(uint32_t codes, uint8_t scale, void *values) { *static_cast<uint4 *>(values) = decode(codes, scale); }

}  // extern "C"
