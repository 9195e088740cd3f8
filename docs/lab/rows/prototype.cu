#include <cstdio>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <vector>
#include <type_traits>
#include <algorithm>
#include <cuda_runtime.h>
#include "formats.cuh"
#include "scales.cuh"
#define CK(x) do{cudaError_t err_=(x); if(err_){printf("%s:%d %s\n",__FILE__,__LINE__,cudaGetErrorString(err_)); exit(1);} }while(0)

// ---- fast NVFP4
struct Fast {
  float c;      // approx 1/(6 g)
  float g;
  bool ok;      // g in range
};
__device__ __forceinline__ Fast fast_of(float g) {
  float const a = fabsf(g);
  return {1.0f / (6.0f * g), g, g > 0x1p-60f && a < 0x1p60f};
}
// returns false if the exact path must decide.
__device__ __forceinline__ bool fast_scale(Fast const &f, uint32_t amax, uint32_t &scale, float &inv) {
  float const t = float_of(amax) * f.c;
  float const lo = t * (1.0f - 0x1p-21f), hi = t * (1.0f + 0x1p-21f);
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
  scale = pair & 0xFFu;
  uint32_t half2;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(half2) : "h"(pair));
  float s;
  asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(s) : "r"(half2));
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s * f.g));
  inv = scale == 0u ? 0.0f : r;
  return f.ok && scale == (pair >> 8) && t < 464.0f;  // no saturation: |q| < 7
}
// 8 codes of 8 values.
__device__ __forceinline__ bool fast_codes(float const (&v)[8], float inv, uint32_t &codes) {
  uint32_t p[8], t[8];
  bool sure = true;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    p[i] = bits_of(v[i] * inv * 0x1p-126f);
    t[i] = (p[i] << 2) + 0x00800000u;
    sure = sure && ((t[i] << 8) + 0x1000u) >= 0x2000u;
  }
  // byte 3 of t is the magnitude's code
  uint32_t const e = __byte_perm(__byte_perm(t[0], t[2], 0x0073), __byte_perm(t[4], t[6], 0x0073), 0x5410);
  uint32_t const o = __byte_perm(__byte_perm(t[1], t[3], 0x0073), __byte_perm(t[5], t[7], 0x0073), 0x5410);
  uint32_t const se = __byte_perm(__byte_perm(p[0], p[2], 0x0073), __byte_perm(p[4], p[6], 0x0073), 0x5410);
  uint32_t const so = __byte_perm(__byte_perm(p[1], p[3], 0x0073), __byte_perm(p[5], p[7], 0x0073), 0x5410);
  codes = (e & 0x07070707u) | ((o & 0x07070707u) << 4) | ((se & 0x80808080u) >> 4) | (so & 0x80808080u);
  return sure;
}
__device__ __noinline__ uint32_t exact_codes(float const (&v)[8], uint32_t amax, float g, uint32_t &scale) {
  scale = Nvfp4::scale(amax, g);
  Nvfp4::Step const step = Nvfp4::step(scale, amax, g);
  uint32_t c = 0;
#pragma unroll
  for (int i = 0; i < 8; i += 2) c |= Nvfp4::codes(v[i], v[i + 1], step) << (4 * i);
  return c;
}

__device__ __forceinline__ float bf(float x) {  // round to bf16
  uint32_t r; asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(r) : "f"(x)); return float_of(r & 0xFFFF0000u);
}
__device__ __forceinline__ void bf2(float &a, float &b) {
  uint32_t r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a)); a = float_of(r << 16); b = float_of(r & 0xFFFF0000u);
}
__device__ __forceinline__ float lo16(uint32_t w) { return float_of(w << 16); }
__device__ __forceinline__ float hi16(uint32_t w) { return float_of(w & 0xFFFF0000u); }

template <int kThreads, int kRowThreads, int kTurns, int kMode, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) rms(uint4 const *x, uint4 const *w, float const *global, float eps, uint32_t *codes, uint8_t *scales, int rows, int n) {
  constexpr int kRows = kThreads / kRowThreads, kWarps = kRowThreads / 32;
  int const tid = threadIdx.x % kRowThreads, sub = threadIdx.x / kRowThreads;
  int const row = blockIdx.x * kRows + sub;
  int const vectors = n / 8;
  uint4 const *from = x + (int64_t)row * vectors;
  uint4 v[kTurns];
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    int const i = tid + t * kRowThreads;
    v[t] = i < vectors ? __ldcs(from + i) : uint4{};
  }
  uint4 wv[kTurns];
#pragma unroll
  for (int t = 0; t < kTurns; ++t) { int const i = tid + t * kRowThreads; wv[t] = i < vectors ? __ldg(w + i) : uint4{}; }
  float const g = *global;
  float sum = 0.f;
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    uint32_t const *q = &v[t].x;
#pragma unroll
    for (int j = 0; j < 4; ++j) { float a = lo16(q[j]), b = hi16(q[j]); sum = fmaf(a, a, sum); sum = fmaf(b, b, sum); }
  }
#pragma unroll
  for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if constexpr (kWarps > 1) {
    __shared__ float part[kRows][kWarps];
    if (tid % 32 == 0) part[sub][tid / 32] = sum;
    __syncthreads();
    sum = part[sub][0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) sum += part[sub][i];
  }
  float const r = __frcp_rn(__fsqrt_rn(sum / (float)n + eps));
  Fast const fast = fast_of(g);
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    int const i = tid + t * kRowThreads;
    uint32_t const *q = &v[t].x, *u = &wv[t].x;
    float e[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float a = lo16(q[j]) * r, b = hi16(q[j]) * r;
      bf2(a, b);
      a *= lo16(u[j]); b *= hi16(u[j]);
      bf2(a, b);
      e[2 * j] = a; e[2 * j + 1] = b;
    }
    float m = 0.f;
#pragma unroll
    for (int j = 0; j < 8; ++j) m = fmaxf(m, fabsf(e[j]));  // NaN dropped here; ok for the prototype
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    uint32_t scale, c;
    if constexpr (kMode == 0) {
      c = exact_codes(e, bits_of(m), g, scale);
    } else {
      float inv;
      bool sure = fast_scale(fast, bits_of(m), scale, inv);
      sure = fast_codes(e, inv, c) && sure;
      if (!sure) c = exact_codes(e, bits_of(m), g, scale);
    }
    if (i < vectors) {
      __stcs(codes + (int64_t)row * vectors + i, c);
      if ((tid & 1) == 0) scales[scale_at(rows, n / 16, 0, row, i / 2)] = (uint8_t)scale;
    }
  }
}

// ---- second version: packed bf16, predicate test, persistent with the next row in registers.
__device__ __forceinline__ uint32_t mul_bf2(uint32_t a, uint32_t b) { uint32_t r; asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
__device__ __forceinline__ uint32_t pack_bf(float a, float b) { uint32_t r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a)); return r; }
// inv is 2^-126 / step. Bits 24..26 of t are the rounded magnitude code; bits 8..23 are zero near a tie.
__device__ __forceinline__ bool codes2(uint32_t const (&v)[4], float inv, uint32_t &codes) {
  uint32_t t[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float const x = i % 2 ? hi16(v[i / 2]) : lo16(v[i / 2]);
    t[i] = (bits_of(x * inv) << 2) + 0x00800080u;
  }
  uint32_t near = __vminu2(__vminu2(__byte_perm(t[0], t[1], 0x6521), __byte_perm(t[2], t[3], 0x6521)),
                           __vminu2(__byte_perm(t[4], t[5], 0x6521), __byte_perm(t[6], t[7], 0x6521)));
  uint32_t const e = __byte_perm(__byte_perm(t[0], t[2], 0x0073), __byte_perm(t[4], t[6], 0x0073), 0x5410);
  uint32_t const o = __byte_perm(__byte_perm(t[1], t[3], 0x0073), __byte_perm(t[5], t[7], 0x0073), 0x5410);
  uint32_t const a = __byte_perm(v[0], v[1], 0x7351), b = __byte_perm(v[2], v[3], 0x7351);
  uint32_t const se = __byte_perm(a, b, 0x5410), so = __byte_perm(a, b, 0x7632);
  codes = ((e | o << 4) & 0x77777777u) | ((se >> 4) & 0x08080808u) | (so & 0x80808080u);
  return (near & 0xFFFFu) != 0 && near > 0xFFFFu;
}
__device__ __noinline__ uint2 exact2(uint4 v, float m, float g) {
  uint32_t const scale = Nvfp4::scale(bits_of(m), g);
  Nvfp4::Step const step = Nvfp4::step(scale, bits_of(m), g);
  uint32_t c = Nvfp4::codes(lo16(v.x), hi16(v.x), step) | Nvfp4::codes(lo16(v.y), hi16(v.y), step) << 8 | Nvfp4::codes(lo16(v.z), hi16(v.z), step) << 16 | Nvfp4::codes(lo16(v.w), hi16(v.w), step) << 24;
  return {c, scale};
}
template <int kThreads, int kTurns, int kMinBlocks, int kPersist, int kCut = 0>
__global__ void __launch_bounds__(kThreads, kMinBlocks) rms2(uint4 const *__restrict__ x, uint4 const *__restrict__ w, float const *global, float eps, uint32_t *__restrict__ codes, uint8_t *__restrict__ scales, int rows, int n) {
  constexpr int kWarps = kThreads / 32;
  int const tid = threadIdx.x, vectors = n / 8;
  __shared__ float part[2][kWarps];
  uint4 v[kTurns], next[kTurns];
  auto load = [&](int row, uint4 (&to)[kTurns]) {
    uint4 const *from = x + (int64_t)row * vectors + tid;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) to[t] = __ldcs(from + t * kThreads);
  };
  int row = blockIdx.x;
  if (row >= rows) return;
  load(row, v);
  float const g = *global;
  Fast const fast = fast_of(g);
  int const column_tiles = (n / 16 + 3) / 4;
  uint32_t const lane_off = (tid / 8) * 512u + (tid / 2) % 4;
  for (int turn = 0;; turn ^= 1) {
    int const after = row + gridDim.x;
    if (kPersist && after < rows) load(after, next);
    float sum = 0.f;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      uint32_t const q[4] = {v[t].x, v[t].y, v[t].z, v[t].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) { float a = lo16(q[j]), b = hi16(q[j]); sum = fmaf(a, a, sum); sum = fmaf(b, b, sum); }
    }
#pragma unroll
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (!(kCut & 4)) {
    if (tid % 32 == 0) part[turn][tid / 32] = sum;
    __syncthreads();
    sum = part[turn][0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) sum += part[turn][i];
    }
    float const r = kCut & 8 ? sum * 1e-4f : __frcp_rn(__fsqrt_rn(sum / (float)n + eps));
    uint32_t *const to = codes + (int64_t)row * vectors + tid;
    uint8_t *const sto = scales + ((int64_t)(row / 128) * column_tiles * 512 + row % 32 * 16 + row % 128 / 32 * 4) + lane_off;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      uint4 const u = __ldg(w + tid + t * kThreads);
      uint32_t e[4] = {v[t].x, v[t].y, v[t].z, v[t].w};
      uint32_t const uu[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) e[j] = mul_bf2(pack_bf(lo16(e[j]) * r, hi16(e[j]) * r), uu[j]);
      uint32_t m2 = __vmaxu2(__vmaxu2(e[0] & 0x7FFF7FFFu, e[1] & 0x7FFF7FFFu), __vmaxu2(e[2] & 0x7FFF7FFFu, e[3] & 0x7FFF7FFFu));
      uint32_t mb = max(m2 & 0xFFFF0000u, m2 << 16);
      mb = max(mb, __shfl_xor_sync(~0u, mb, 1));
      uint32_t scale, c;
      float inv;
      if (kCut & 2) { __stcs(to + t * kThreads, e[0] ^ e[1] ^ e[2] ^ e[3]); continue; }
      bool sure = fast_scale(fast, mb, scale, inv);
      inv *= 0x1p-126f;
      sure = codes2(e, inv, c) && sure && (scale == 0 || inv >= 0x1p-132f);
      if (!sure) { uint2 const z = exact2({e[0], e[1], e[2], e[3]}, float_of(mb), g); c = z.x; scale = z.y; }
      __stcs(to + t * kThreads, c);
      if (!(kCut & 1) && (tid & 1) == 0) sto[t * (kThreads / 8 * 512)] = (uint8_t)scale;
    }
    if (!kPersist || after >= rows) return;
    row = after;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) v[t] = next[t];
  }
}

// ---- third version: 16 consecutive values per thread: one scale per turn, no exchange.
__device__ __noinline__ uint4 exact3(uint4 v, uint4 w, float m, float g) {
  uint2 const a = exact2(v, m, g), b = exact2(w, m, g);
  return {a.x, b.x, a.y, 0};
}
template <int kThreads, int kTurns, int kMinBlocks, int kPersist>
__global__ void __launch_bounds__(kThreads, kMinBlocks) rms3(uint4 const *__restrict__ x, uint4 const *__restrict__ w, float const *global, float eps, uint2 *__restrict__ codes, uint8_t *__restrict__ scales, int rows, int n) {
  constexpr int kWarps = kThreads / 32;
  int const tid = threadIdx.x, vectors = n / 8;
  __shared__ float part[2][kWarps];
  uint4 v[2 * kTurns], next[2 * kTurns];
  auto load = [&](int row, uint4 (&to)[2 * kTurns]) {
    uint4 const *from = x + (int64_t)row * vectors + 2 * tid;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) { to[2 * t] = from[2 * t * kThreads]; to[2 * t + 1] = from[2 * t * kThreads + 1]; }
  };
  int row = blockIdx.x;
  if (row >= rows) return;
  load(row, v);
  float const g = *global;
  Fast const fast = fast_of(g);
  int const column_tiles = (n / 16 + 3) / 4;
  float const over = __frcp_rn((float)n);
  uint32_t const lane_off = (tid / 4) * 512u + tid % 4;
  for (int turn = 0;; turn ^= 1) {
    int const after = row + gridDim.x;
    if (kPersist && after < rows) load(after, next);
    float sum = 0.f;
#pragma unroll
    for (int t = 0; t < 2 * kTurns; ++t) {
      uint32_t const q[4] = {v[t].x, v[t].y, v[t].z, v[t].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) { float a = lo16(q[j]), b = hi16(q[j]); sum = fmaf(a, a, sum); sum = fmaf(b, b, sum); }
    }
#pragma unroll
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (kWarps > 1) {
    if (tid % 32 == 0) part[turn][tid / 32] = sum;
    __syncthreads();
    sum = part[turn][0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) sum += part[turn][i];
    }
    float const r = __frcp_rn(__fsqrt_rn(sum * over + eps));
    uint2 *const to = codes + (int64_t)row * (n / 16) + tid;
    uint8_t *const sto = scales + ((int64_t)(row / 128) * column_tiles * 512 + row % 32 * 16 + row % 128 / 32 * 4) + lane_off;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      uint4 const u0 = __ldg(w + 2 * tid + 2 * t * kThreads), u1 = __ldg(w + 2 * tid + 2 * t * kThreads + 1);
      uint32_t e[8] = {v[2 * t].x, v[2 * t].y, v[2 * t].z, v[2 * t].w, v[2 * t + 1].x, v[2 * t + 1].y, v[2 * t + 1].z, v[2 * t + 1].w};
      uint32_t const uu[8] = {u0.x, u0.y, u0.z, u0.w, u1.x, u1.y, u1.z, u1.w};
      uint32_t m2 = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) { e[j] = mul_bf2(pack_bf(lo16(e[j]) * r, hi16(e[j]) * r), uu[j]); m2 = __vmaxu2(m2, e[j] & 0x7FFF7FFFu); }
      uint32_t const mb = max(m2 & 0xFFFF0000u, m2 << 16);
      uint32_t scale, c0, c1;
      float inv;
      bool sure = fast_scale(fast, mb, scale, inv);
      inv *= 0x1p-126f;
      uint32_t const e0[4] = {e[0], e[1], e[2], e[3]}, e1[4] = {e[4], e[5], e[6], e[7]};
      bool const s0 = codes2(e0, inv, c0), s1 = codes2(e1, inv, c1);
      sure = s0 && s1 && sure && (scale == 0 || inv >= 0x1p-132f);
      if (!sure) { uint4 const z = exact3({e[0], e[1], e[2], e[3]}, {e[4], e[5], e[6], e[7]}, float_of(mb), g); c0 = z.x; c1 = z.y; scale = z.z; }
      __stcs(to + t * kThreads, uint2{c0, c1});
      sto[t * (kThreads / 4 * 512)] = (uint8_t)scale;
    }
    if (!kPersist || after >= rows) return;
    row = after;
#pragma unroll
    for (int t = 0; t < 2 * kTurns; ++t) v[t] = next[t];
  }
}
template <int kThreads, int kTurns, int kMinBlocks, int kPersist>
__global__ void __launch_bounds__(kThreads, kMinBlocks) rms3q(uint4 const *__restrict__ x, uint4 const *__restrict__ w, float const *global, float eps, uint2 *__restrict__ codes, uint8_t *__restrict__ scales, int rows, int n) {
  constexpr int kWarps = kThreads / 32;
  int const tid = threadIdx.x, vectors = n / 8;
  __shared__ float part[2][kWarps];
  uint4 v[2 * kTurns], next[2 * kTurns];
  auto load = [&](int row, uint4 (&to)[2 * kTurns]) {
    uint4 const *from = x + (int64_t)row * vectors + 2 * tid;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) { to[2 * t] = from[2 * t * kThreads]; to[2 * t + 1] = from[2 * t * kThreads + 1]; }
  };
  int row = blockIdx.x;
  if (row >= rows) return;
  load(row, v);
  float const g = *global;
  Fast const fast = fast_of(g);
  int const column_tiles = (n / 16 + 3) / 4;
  float const over = __frcp_rn((float)n);
  uint32_t const lane_off = (tid / 4) * 512u + tid % 4;
  for (int turn = 0;; turn ^= 1) {
    int const after = row + gridDim.x;
    if (kPersist && after < rows) load(after, next);
    float sum = 0.f;
#pragma unroll
    for (int t = 0; t < 2 * kTurns; ++t) {
      uint32_t const q[4] = {v[t].x, v[t].y, v[t].z, v[t].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) { float a = lo16(q[j]), b = hi16(q[j]); sum = fmaf(a, a, sum); sum = fmaf(b, b, sum); }
    }
#pragma unroll
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (kWarps > 1) {
    if (tid % 32 == 0) part[turn][tid / 32] = sum;
    __syncthreads();
    sum = part[turn][0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) sum += part[turn][i];
    }
    float const r = __frcp_rn(__fsqrt_rn(sum * over + eps));
    uint2 *const to = codes + (int64_t)row * (n / 16) + tid;
    uint8_t *const sto = scales + ((int64_t)(row / 128) * column_tiles * 512 + row % 32 * 16 + row % 128 / 32 * 4) + lane_off;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      uint4 const u0 = __ldg(w + 2 * tid + 2 * t * kThreads), u1 = __ldg(w + 2 * tid + 2 * t * kThreads + 1);
      uint32_t e[8] = {v[2 * t].x, v[2 * t].y, v[2 * t].z, v[2 * t].w, v[2 * t + 1].x, v[2 * t + 1].y, v[2 * t + 1].z, v[2 * t + 1].w};
      uint32_t const uu[8] = {u0.x, u0.y, u0.z, u0.w, u1.x, u1.y, u1.z, u1.w};
      uint32_t m2 = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) { e[j] = mul_bf2(pack_bf(lo16(e[j]) * r, hi16(e[j]) * r), uu[j]); m2 = __vmaxu2(m2, e[j] & 0x7FFF7FFFu); }
      uint32_t const mb = max(m2 & 0xFFFF0000u, m2 << 16);
      uint32_t scale, c0, c1;
      float inv;
      bool sure = fast_scale(fast, mb, scale, inv);
      inv *= 0x1p-126f;
      uint32_t const e0[4] = {e[0], e[1], e[2], e[3]}, e1[4] = {e[4], e[5], e[6], e[7]};
      bool const s0 = codes2(e0, inv, c0), s1 = codes2(e1, inv, c1);
      sure = s0 && s1 && sure && (scale == 0 || inv >= 0x1p-132f);
      if (!sure) { uint4 const z = exact3({e[0], e[1], e[2], e[3]}, {e[4], e[5], e[6], e[7]}, float_of(mb), g); c0 = z.x; c1 = z.y; scale = z.z; }
      __stcs(to + t * kThreads, uint2{c0, c1});
      scale |= __shfl_xor_sync(~0u, scale, 1) << 8; scale |= __shfl_xor_sync(~0u, scale, 2) << 16;
      if (tid % 4 == 0) *(uint32_t *)(sto + t * (kThreads / 4 * 512)) = scale;
    }
    if (!kPersist || after >= rows) return;
    row = after;
#pragma unroll
    for (int t = 0; t < 2 * kTurns; ++t) v[t] = next[t];
  }
}
template <int kThreads, int kTurns, int kMinBlocks, int kGroup>
__global__ void __launch_bounds__(kThreads, kMinBlocks) rms4(uint4 const *__restrict__ x, uint4 const *__restrict__ w, float const *global, float eps, uint2 *__restrict__ codes, uint8_t *__restrict__ scales, int rows, int n) {
  constexpr int kWarps = kThreads / 32;
  int const tid = threadIdx.x, vectors = n / 8;
  __shared__ float part[2][kWarps];
  uint4 v[2 * kTurns], next[2 * kTurns];
  auto load = [&](int row, uint4 (&to)[2 * kTurns]) {
    uint4 const *from = x + (int64_t)row * vectors + 2 * tid;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) { to[2 * t] = from[2 * t * kThreads]; to[2 * t + 1] = from[2 * t * kThreads + 1]; }
  };
  int row = blockIdx.x / 32 * (32 * kGroup) + blockIdx.x % 32; int const row0 = row;
  __shared__ alignas(16) uint8_t staged[kThreads * kTurns * kGroup];
  load(row, v);
  float const g = *global;
  Fast const fast = fast_of(g);
  int const column_tiles = (n / 16 + 3) / 4;
  float const over = __frcp_rn((float)n);
  uint32_t const lane_off = (tid / 4) * 512u + tid % 4;
  for (int turn = 0;; turn ^= 1) {
    int const after = row + 32;
    int const gi = (row - row0) / 32;
    float sum = 0.f;
#pragma unroll
    for (int t = 0; t < 2 * kTurns; ++t) {
      uint32_t const q[4] = {v[t].x, v[t].y, v[t].z, v[t].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) { float a = lo16(q[j]), b = hi16(q[j]); sum = fmaf(a, a, sum); sum = fmaf(b, b, sum); }
    }
#pragma unroll
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (kWarps > 1) {
    if (tid % 32 == 0) part[turn][tid / 32] = sum;
    __syncthreads();
    sum = part[turn][0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) sum += part[turn][i];
    }
    float const r = __frcp_rn(__fsqrt_rn(sum * over + eps));
    uint2 *const to = codes + (int64_t)row * (n / 16) + tid;
    uint8_t *const sto = scales + ((int64_t)(row / 128) * column_tiles * 512 + row % 32 * 16 + row % 128 / 32 * 4) + lane_off;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      uint4 const u0 = __ldg(w + 2 * tid + 2 * t * kThreads), u1 = __ldg(w + 2 * tid + 2 * t * kThreads + 1);
      uint32_t e[8] = {v[2 * t].x, v[2 * t].y, v[2 * t].z, v[2 * t].w, v[2 * t + 1].x, v[2 * t + 1].y, v[2 * t + 1].z, v[2 * t + 1].w};
      uint32_t const uu[8] = {u0.x, u0.y, u0.z, u0.w, u1.x, u1.y, u1.z, u1.w};
      uint32_t m2 = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) { e[j] = mul_bf2(pack_bf(lo16(e[j]) * r, hi16(e[j]) * r), uu[j]); m2 = __vmaxu2(m2, e[j] & 0x7FFF7FFFu); }
      uint32_t const mb = max(m2 & 0xFFFF0000u, m2 << 16);
      uint32_t scale, c0, c1;
      float inv;
      bool sure = fast_scale(fast, mb, scale, inv);
      inv *= 0x1p-126f;
      uint32_t const e0[4] = {e[0], e[1], e[2], e[3]}, e1[4] = {e[4], e[5], e[6], e[7]};
      bool const s0 = codes2(e0, inv, c0), s1 = codes2(e1, inv, c1);
      sure = s0 && s1 && sure && (scale == 0 || inv >= 0x1p-132f);
      if (!sure) { uint4 const z = exact3({e[0], e[1], e[2], e[3]}, {e[4], e[5], e[6], e[7]}, float_of(mb), g); c0 = z.x; c1 = z.y; scale = z.z; }
      __stcs(to + t * kThreads, uint2{c0, c1});
      staged[((tid + t * kThreads) / 4) * (4 * kGroup) + gi * 4 + tid % 4] = (uint8_t)scale;
    }
    if (gi == kGroup - 1) break;
    row = after;
    load(row, v);
  }
  __syncthreads();
  uint8_t *const base = scales + ((int64_t)(row0 / 128) * column_tiles * 512 + row0 % 32 * 16 + row0 % 128 / 32 * 4);
  using W = typename std::conditional<kGroup == 4, uint4, uint2>::type;
  for (int c = tid; c < kThreads * kTurns / 4; c += kThreads) *(W *)(base + c * 512) = ((W *)staged)[c];
}

struct Fast5 { float c, g; uint32_t limit; };
__device__ __forceinline__ float rcp_approx(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
__device__ __forceinline__ Fast5 fast5_of(float g) {
  bool const ok = g > 0x1p-60f && g < 0x1p60f;
  return {rcp_approx(6.0f * g), g, ok ? bits_of(fminf(2780.0f * g, 360.0f)) : 0u};
}
// Bits 24..26 of t are the rounded magnitude code; bits 8..23 are zero near a tie.
__device__ __forceinline__ uint32_t codes5(uint32_t const (&v)[4], float inv, uint32_t &codes) {
  uint32_t t[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float const x = i % 2 ? hi16(v[i / 2]) : lo16(v[i / 2]);
    t[i] = (bits_of(x * inv) << 2) + 0x00800080u;
  }
  uint32_t near = __vminu2(__vminu2(__byte_perm(t[0], t[1], 0x6521), __byte_perm(t[2], t[3], 0x6521)),
                           __vminu2(__byte_perm(t[4], t[5], 0x6521), __byte_perm(t[6], t[7], 0x6521)));
  uint32_t const e = __byte_perm(__byte_perm(t[0], t[2], 0x0073), __byte_perm(t[4], t[6], 0x0073), 0x5410);
  uint32_t const o = __byte_perm(__byte_perm(t[1], t[3], 0x0073), __byte_perm(t[5], t[7], 0x0073), 0x5410);
  uint32_t const a = __byte_perm(v[0], v[1], 0x7351), b = __byte_perm(v[2], v[3], 0x7351);
  uint32_t const se = __byte_perm(a, b, 0x5410), so = __byte_perm(a, b, 0x7632);
  codes = ((e | o << 4) & 0x77777777u) | ((se >> 4) & 0x08080808u) | (so & 0x80808080u);
  return near;
}
template <int kThreads, int kTurns, int kMinBlocks, int kPersist, int kPdl = 0>
__global__ void __launch_bounds__(kThreads, kMinBlocks) rms5(uint4 const *__restrict__ x, uint4 const *__restrict__ w, float const *global, float eps, float over, uint2 *__restrict__ codes, uint8_t *__restrict__ scales, int rows, int n) {
  constexpr int kWarps = kThreads / 32;
  int const tid = threadIdx.x, vectors = n / 8;
  __shared__ float part[2][kWarps];
  uint4 v[2 * kTurns], next[2 * kTurns];
  auto load = [&](int row, uint4 (&to)[2 * kTurns]) {
    uint4 const *from = x + (int64_t)row * vectors + 2 * tid;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) { to[2 * t] = from[2 * t * kThreads]; to[2 * t + 1] = from[2 * t * kThreads + 1]; }
  };
  int row = blockIdx.x;
  if (row >= rows) return;
  if (kPdl) { asm volatile("griddepcontrol.launch_dependents;"); asm volatile("griddepcontrol.wait;" ::: "memory"); }
  load(row, v);
  float const g = *global;
  Fast5 const fast = fast5_of(g);
  int const column_tiles = (n / 16 + 3) / 4;
  
  uint32_t const lane_off = (tid / 4) * 512u + tid % 4;
  for (int turn = 0;; turn ^= 1) {
    int const after = row + gridDim.x;
    if (kPersist && after < rows) load(after, next);
    float sum = 0.f;
#pragma unroll
    for (int t = 0; t < 2 * kTurns; ++t) {
      uint32_t const q[4] = {v[t].x, v[t].y, v[t].z, v[t].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) { float a = lo16(q[j]), b = hi16(q[j]); sum = fmaf(a, a, sum); sum = fmaf(b, b, sum); }
    }
#pragma unroll
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (kWarps > 1) {
    if (tid % 32 == 0) part[turn][tid / 32] = sum;
    __syncthreads();
    sum = part[turn][0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) sum += part[turn][i];
    }
    float const r = __frcp_rn(__fsqrt_rn(sum * over + eps));
    uint2 *const to = codes + (int64_t)row * (n / 16) + tid;
    uint8_t *const sto = scales + ((int64_t)(row / 128) * column_tiles * 512 + row % 32 * 16 + row % 128 / 32 * 4) + lane_off;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      uint4 const u0 = __ldg(w + 2 * tid + 2 * t * kThreads), u1 = __ldg(w + 2 * tid + 2 * t * kThreads + 1);
      uint32_t e[8] = {v[2 * t].x, v[2 * t].y, v[2 * t].z, v[2 * t].w, v[2 * t + 1].x, v[2 * t + 1].y, v[2 * t + 1].z, v[2 * t + 1].w};
      uint32_t const uu[8] = {u0.x, u0.y, u0.z, u0.w, u1.x, u1.y, u1.z, u1.w};
      uint32_t m2 = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) { e[j] = mul_bf2(pack_bf(lo16(e[j]) * r, hi16(e[j]) * r), uu[j]); m2 = __vmaxu2(m2, e[j] & 0x7FFF7FFFu); }
      uint32_t const mb = max(m2 & 0xFFFF0000u, m2 << 16);
      uint32_t scale, c0, c1;
      float inv;
      float const tt = float_of(mb) * fast.c;
      uint32_t pair, half2; float sf;
      asm("{ .reg .b16 p; .reg .b32 q; .reg .f16 l, h; cvt.rn.satfinite.e4m3x2.f32 p, %3, %4; mov.b32 %0, {p, p}; cvt.rn.f16x2.e4m3x2 q, p; mov.b32 {l, h}, q; cvt.f32.f16 %1, l; mov.b32 %2, q; }" : "=r"(pair), "=f"(sf), "=r"(half2) : "f"(tt * (1.0f + 0x1p-21f)), "f"(tt * (1.0f - 0x1p-21f)));
      scale = pair & 0xFFu;
      inv = scale == 0u ? 0.0f : rcp_approx(sf * g) * 0x1p-126f;
      uint32_t const e0[4] = {e[0], e[1], e[2], e[3]}, e1[4] = {e[4], e[5], e[6], e[7]};
      uint32_t const near = __vminu2(codes5(e0, inv, c0), codes5(e1, inv, c1));
      bool const sure = mb < fast.limit && ((pair ^ pair >> 8) & 0xFFu) == 0u && (near & 0xFFFFu) != 0u && near > 0xFFFFu;
      if (!sure) { uint4 const z = exact3({e[0], e[1], e[2], e[3]}, {e[4], e[5], e[6], e[7]}, float_of(mb), g); c0 = z.x; c1 = z.y; scale = z.z; }
      __stcs(to + t * kThreads, uint2{c0, c1});
      sto[t * (kThreads / 4 * 512)] = (uint8_t)scale;
    }
    if (!kPersist || after >= rows) return;
    row = after;
#pragma unroll
    for (int t = 0; t < 2 * kTurns; ++t) v[t] = next[t];
  }
}
__global__ void copy(uint4 const *x, uint4 *y, int64_t n) {
  int64_t const i = (int64_t)blockIdx.x * blockDim.x * 4 + threadIdx.x;
  uint4 v[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) if (i + t * 256 < n) v[t] = __ldcs(x + i + t * 256);
#pragma unroll
  for (int t = 0; t < 4; ++t) if (i + t * 256 < n) __stcs(y + i + t * 256, v[t]);
}
__global__ void fill(uint16_t *x, int64_t n, uint32_t seed, float scale) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint32_t h = seed + (uint32_t)i * 2654435761u; h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;
  uint32_t h2 = h * 747796405u + 2891336453u; h2 ^= h2 >> 15;
  float a = sqrtf(-2.f * logf(((h >> 8) + 1) * 0x1p-24f)) * cospif((h2 >> 8) * 0x1p-23f) * scale;
  x[i] = (uint16_t)(bits_of(bf(a)) >> 16);
}
struct Set { uint4 *x, *w, *cp; uint32_t *codes; uint8_t *scales; float *g; };
int main() {
  int const rows = 4096, n = 8192, sets = 5;
  int64_t const e = (int64_t)rows * n;
  std::vector<Set> s(sets);
  int64_t const half = (e * 2 + e / 2 + e / 16) / 2 / 16;  // uint4 of a copy of the same bytes
  uint4 *src; CK(cudaMalloc(&src, half * 16 * sets));
  uint32_t *ref; uint8_t *refs; CK(cudaMalloc(&ref, e / 2)); CK(cudaMalloc(&refs, e / 16));
  for (int i = 0; i < sets; ++i) {
    CK(cudaMalloc(&s[i].x, e * 2)); CK(cudaMalloc(&s[i].w, n * 2)); CK(cudaMalloc(&s[i].codes, e / 2)); CK(cudaMalloc(&s[i].scales, e / 16)); CK(cudaMalloc(&s[i].g, 4)); CK(cudaMalloc(&s[i].cp, half * 16));
    fill<<<(e + 255) / 256, 256>>>((uint16_t *)s[i].x, e, 17 + i, 1.3f);
    fill<<<(n + 255) / 256, 256>>>((uint16_t *)s[i].w, n, 99 + i, 1.f);
    fill<<<(half * 8 + 255) / 256, 256>>>((uint16_t *)(src + half * i), half * 8, 5, 1.f);
    float g = 0.012f * (1 + 0.3f * i); CK(cudaMemcpy(s[i].g, &g, 4, cudaMemcpyHostToDevice));
  }
  CK(cudaDeviceSynchronize());
  cudaStream_t st; CK(cudaStreamCreate(&st));
  auto bench = [&](char const *name, auto launch, bool check) {
    for (int i = 0; i < sets && check; ++i) { CK(cudaMemset(s[i].codes, 0xA5, e / 2)); CK(cudaMemset(s[i].scales, 0xA5, e / 16)); }
    CK(cudaDeviceSynchronize());
    cudaGraph_t gr; cudaGraphExec_t ex;
    CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeGlobal));
    int const calls = 20;
    for (int i = 0; i < calls; ++i) launch(i % sets);
    CK(cudaStreamEndCapture(st, &gr)); CK(cudaGraphInstantiate(&ex, gr, 0));
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
    for (int i = 0; i < 20; ++i) CK(cudaGraphLaunch(ex, st));
    std::vector<float> ts;
    for (int i = 0; i < 15; ++i) { cudaEventRecord(a, st); CK(cudaGraphLaunch(ex, st)); cudaEventRecord(b, st); CK(cudaEventSynchronize(b)); float ms; cudaEventElapsedTime(&ms, a, b); ts.push_back(ms * 1000 / calls); }
    std::sort(ts.begin(), ts.end());
    long bad = 0;
    if (check) for (int i = 0; i < 2; ++i) {
      rms<256, 256, 4, 0, 1><<<rows, 256, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, ref, refs, rows, n);
      CK(cudaDeviceSynchronize());
      std::vector<uint8_t> A(e / 2 + e / 16), B(e / 2 + e / 16);
      cudaMemcpy(A.data(), ref, e / 2, cudaMemcpyDeviceToHost); cudaMemcpy(A.data() + e / 2, refs, e / 16, cudaMemcpyDeviceToHost);
      cudaMemcpy(B.data(), s[i].codes, e / 2, cudaMemcpyDeviceToHost); cudaMemcpy(B.data() + e / 2, s[i].scales, e / 16, cudaMemcpyDeviceToHost);
      for (size_t k = 0; k < A.size(); ++k) bad += A[k] != B[k];
    }
    double const bytes = (double)half * 32;
    printf("%-28s %7.2f us min %7.2f  %6.0f GB/s  bad %ld\n", name, ts[7], ts[0], bytes / ts[7] / 1e3, bad);
  };
  cudaDeviceProp pr; cudaGetDeviceProperties(&pr, 0); printf("%s\n", pr.name);
  for (int rep = 0; rep < 2; ++rep) {
    bench("memcpy", [&](int i) { CK(cudaMemcpyAsync(s[i].cp, src + half * i, half * 16, cudaMemcpyDeviceToDevice, st)); }, false);
    bench("copy kernel", [&](int i) { copy<<<(half + 1023) / 1024, 256, 0, st>>>(src + half * i, s[i].cp, half); }, false);
#define B(T, R, U, M, MB) bench(#T " " #R " " #U " mode" #M " min" #MB, [&](int i) { rms<T, R, U, M, MB><<<rows / (T / R), T, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, s[i].codes, s[i].scales, rows, n); }, true)
    B(256, 256, 4, 1, 1);
    int sms = pr.multiProcessorCount;
#define C(T, U, MB, P) { int per; CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, rms2<T, U, MB, P>, T, 0)); char nm[64]; sprintf(nm, "v2 %d x%d min%d persist%d occ%d", T, U, MB, P, per); int gr = P ? per * sms : rows; bench(nm, [&](int i) { rms2<T, U, MB, P><<<gr, T, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, s[i].codes, s[i].scales, rows, n); }, true); }
#define X(T, U, MB, CUT) { char nm[64]; sprintf(nm, "v2 %d x%d cut%d", T, U, CUT); bench(nm, [&](int i) { rms2<T, U, MB, 0, CUT><<<rows, T, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, s[i].codes, s[i].scales, rows, n); }, false); }
#define D(T, U, MB, P) { int per; CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, rms3<T, U, MB, P>, T, 0)); char nm[64]; sprintf(nm, "v3 %d x%d min%d persist%d occ%d", T, U, MB, P, per); int gr = P ? per * sms : rows; bench(nm, [&](int i) { rms3<T, U, MB, P><<<gr, T, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, (uint2 *)s[i].codes, s[i].scales, rows, n); }, true); }
#define C(T, U, MB, P) { int per; CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, rms2<T, U, MB, P>, T, 0)); char nm[64]; sprintf(nm, "v2 %d x%d min%d persist%d occ%d", T, U, MB, P, per); int gr = P ? per * sms : rows; bench(nm, [&](int i) { rms2<T, U, MB, P><<<gr, T, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, s[i].codes, s[i].scales, rows, n); }, true); }
#define Q(T, U, MB, P) { char nm[64]; sprintf(nm, "v3q %d x%d min%d", T, U, MB); bench(nm, [&](int i) { rms3q<T, U, MB, P><<<rows, T, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, (uint2 *)s[i].codes, s[i].scales, rows, n); }, true); }
#define G(T, U, MB, P) { char nm[64]; sprintf(nm, "v4 %d x%d min%d group%d", T, U, MB, P); bench(nm, [&](int i) { rms4<T, U, MB, P><<<rows / P, T, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, (uint2 *)s[i].codes, s[i].scales, rows, n); }, true); }
#define F(T, U, MB, P) { int per; CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, rms5<T, U, MB, P>, T, 0)); char nm[64]; sprintf(nm, "v5 %d x%d min%d persist%d occ%d", T, U, MB, P, per); int gr = P ? per * sms : rows; bench(nm, [&](int i) { rms5<T, U, MB, P><<<gr, T, 0, st>>>(s[i].x, s[i].w, s[i].g, 1e-6f, 1.0f / n, (uint2 *)s[i].codes, s[i].scales, rows, n); }, true); }
#define P(T, U, MB, PP) { char nm[64]; sprintf(nm, "v5 pdl %d x%d min%d p%d", T, U, MB, PP); int per; CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, rms5<T, U, MB, PP, 1>, T, 0)); \
  bench(nm, [&](int i) { cudaLaunchConfig_t c = {}; c.gridDim = PP ? per * sms : rows; c.blockDim = T; c.stream = st; cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[0].val.programmaticStreamSerializationAllowed = 1; c.attrs = at; c.numAttrs = 1; \
  CK(cudaLaunchKernelEx(&c, rms5<T, U, MB, PP, 1>, (uint4 const *)s[i].x, (uint4 const *)s[i].w, (float const *)s[i].g, 1e-6f, 1.0f / n, (uint2 *)s[i].codes, s[i].scales, rows, n)); }, true); }
  F(256,2,5,0); P(256,2,5,0); F(512,1,2,1); P(512,1,2,1); P(128,4,8,0);
  }
}
