// Elements of a row as 32-bit words, in memory order.
template <int kBytes>
struct alignas(kBytes < 16 ? kBytes : 16) Words {
  uint32_t words[kBytes / 4];
};

#ifndef FOURFOLD_HOST
__device__ __forceinline__ float low_bf16(uint32_t pair) { return float_of(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) { return float_of(pair & 0xFFFF0000u); }
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float round_bf16(float x) { return low_bf16(pack_bf16(x, x)); }

__device__ __forceinline__ float low_f16(uint32_t pair) {
  float x;
  asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(x) : "r"(pair));
  return x;
}
__device__ __forceinline__ float high_f16(uint32_t pair) { return low_f16(pair >> 16); }
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float round_f16(float x) { return low_f16(pack_f16(x, x)); }

__device__ __forceinline__ float low_f8E4M3FN(uint32_t pair) {
  uint32_t halves;
  asm("{ .reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p; }" : "=r"(halves) : "r"(pair));
  return low_f16(halves);
}
__device__ __forceinline__ float low_f8E5M2(uint32_t pair) {
  uint32_t halves;
  asm("{ .reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e5m2x2 %0, p; }" : "=r"(halves) : "r"(pair));
  return low_f16(halves);
}
__device__ __forceinline__ float round_f8E4M3FN(float x) { return low_f8E4M3FN(encode_pair<E4m3>(x, x)); }
__device__ __forceinline__ float round_f8E5M2(float x) { return low_f8E5M2(encode_pair<E5m2>(x, x)); }

{% for element in ["bf16", "f16"] %}
{% for name in ["add", "sub", "mul"] %}
__device__ __forceinline__ uint32_t {{ name }}_{{ element }}x2(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("{{ name }}.rn.{{ element }}x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
{% endfor %}
{% for name in ["max", "min"] %}
__device__ __forceinline__ uint32_t {{ name }}_{{ element }}x2(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("{{ name }}.NaN.{{ element }}x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
{% endfor %}
__device__ __forceinline__ uint32_t neg_{{ element }}x2(uint32_t a) { return a ^ 0x80008000u; }
__device__ __forceinline__ uint32_t abs_{{ element }}x2(uint32_t a) { return a & 0x7FFF7FFFu; }
{% endfor %}

// NaN propagates, and -0 is below +0.
__device__ __forceinline__ float op_max(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
__device__ __forceinline__ float op_min(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// A divisor of many numbers. Quotients are correctly rounded: the first estimate is within 2 ulp, the second within 1 ulp,
// and the remainder of the third is exact.
struct Divisor {
  float by, reciprocal;
  bool is_usual;
  __device__ __forceinline__ static Divisor of(float x) {
    return {x, __frcp_rn(x), fabsf(x) > 0x1p-60f && fabsf(x) < 0x1p60f};
  }
  // Within 1.5 ulp, for a result of fewer digits.
  __device__ __forceinline__ float estimate(float x) const { return is_usual ? x * reciprocal : __fdiv_rn(x, by); }
  __device__ __forceinline__ float quotient(float x) const {
    float q = x * reciprocal;
    q = fmaf(fmaf(-q, by, x), reciprocal, q);
    q = fmaf(fmaf(-q, by, x), reciprocal, q);
    // Remainders of tiny or infinite numbers are not exact.
    return is_usual && fabsf(x) > 0x1p-60f && fabsf(x) < 0x1p60f ? q : __fdiv_rn(x, by);
  }
};

// Reductions: the value of an empty row, one element, two parts.
struct Sum {
  static constexpr uint32_t kNone = 0u;
  __device__ static float element(float x) { return x; }
  __device__ static float combine(float a, float b) { return __fadd_rn(a, b); }
};
struct Max {
  static constexpr uint32_t kNone = 0xFF800000u;
  __device__ static float element(float x) { return x; }
  __device__ static float combine(float a, float b) { return op_max(a, b); }
};
struct Min {
  static constexpr uint32_t kNone = 0x7F800000u;
  __device__ static float element(float x) { return x; }
  __device__ static float combine(float a, float b) { return op_min(a, b); }
};
struct Amax {
  static constexpr uint32_t kNone = 0u;
  __device__ static float element(float x) { return fabsf(x); }
  __device__ static float combine(float a, float b) { return op_max(a, b); }
};

// Combines the parts of the lanes of a warp that share a row. Every lane gets the same bits.
template <class Reduction, int kLanes>
__device__ __forceinline__ float combine_lanes(float part) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    part = Reduction::combine(part, __shfl_xor_sync(0xFFFFFFFFu, part, distance));
  }
  return part;
}

// One element as f32, and one f32 as an element.
__device__ __forceinline__ float load_f32(void const *from, int64_t at) { return static_cast<float const *>(from)[at]; }
__device__ __forceinline__ float load_bf16(void const *from, int64_t at) {
  return low_bf16(static_cast<uint16_t const *>(from)[at]);
}
__device__ __forceinline__ float load_f16(void const *from, int64_t at) {
  return low_f16(static_cast<uint16_t const *>(from)[at]);
}
__device__ __forceinline__ float load_f8E4M3FN(void const *from, int64_t at) {
  return low_f8E4M3FN(static_cast<uint8_t const *>(from)[at]);
}
__device__ __forceinline__ float load_f8E5M2(void const *from, int64_t at) {
  return low_f8E5M2(static_cast<uint8_t const *>(from)[at]);
}

__device__ __forceinline__ void store_f32(void *to, int64_t at, float x) { static_cast<float *>(to)[at] = x; }
__device__ __forceinline__ void store_bf16(void *to, int64_t at, float x) {
  static_cast<uint16_t *>(to)[at] = static_cast<uint16_t>(pack_bf16(x, x));
}
__device__ __forceinline__ void store_f16(void *to, int64_t at, float x) {
  static_cast<uint16_t *>(to)[at] = static_cast<uint16_t>(pack_f16(x, x));
}
__device__ __forceinline__ void store_f8E4M3FN(void *to, int64_t at, float x) {
  static_cast<uint8_t *>(to)[at] = static_cast<uint8_t>(encode_pair<E4m3>(x, x));
}
__device__ __forceinline__ void store_f8E5M2(void *to, int64_t at, float x) {
  static_cast<uint8_t *>(to)[at] = static_cast<uint8_t>(encode_pair<E5m2>(x, x));
}
#endif
