// Elements of a row as 32-bit words, in memory order. Elements of 6 bits take 12 or 24 bytes.
template <int kBytes>
struct alignas((kBytes & -kBytes) < 16 ? kBytes & -kBytes : 16) Words {
  uint32_t words[kBytes / 4];
};

#ifndef FOURFOLD_HOST
{{ extremes }}
{% for element in ["bf16", "f16"] %}
{% for name, sign in [["add", "+"], ["sub", "-"], ["mul", "*"]] %}
__device__ __forceinline__ uint32_t {{ name }}_{{ element }}x2(uint32_t a, uint32_t b) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  uint32_t pair;
  asm("{{ name }}.rn.{{ element }}x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
#else
  return pack_{{ element }}(low_{{ element }}(a) {{ sign }} low_{{ element }}(b), high_{{ element }}(a) {{ sign }} high_{{ element }}(b));
#endif
}
{% endfor %}
{% for name in ["max", "min"] %}
__device__ __forceinline__ uint32_t {{ name }}_{{ element }}x2(uint32_t a, uint32_t b) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  uint32_t pair;
  asm("{{ name }}.NaN.{{ element }}x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
#else
  return pack_{{ element }}(op_{{ name }}(low_{{ element }}(a), low_{{ element }}(b)), op_{{ name }}(high_{{ element }}(a), high_{{ element }}(b)));
#endif
}
{% endfor %}
__device__ __forceinline__ uint32_t neg_{{ element }}x2(uint32_t a) { return a ^ 0x80008000u; }
__device__ __forceinline__ uint32_t abs_{{ element }}x2(uint32_t a) { return a & 0x7FFF7FFFu; }
{% endfor %}

// pow(1, y) and pow(x, 0) are 1 even for NaN.
__device__ __forceinline__ float op_pow(float a, float b) { return a == 1.0f || b == 0.0f ? 1.0f : powf(a, b); }

// A division that takes few instructions where it is rarely needed.
__device__ __noinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __noinline__ uint32_t exact_quotients(float a, float b, float by) {
  return pack_bf16(__fdiv_rn(a, by), __fdiv_rn(b, by));
}

// A divisor of many numbers. Quotients are correctly rounded: the first estimate is within 2 ulp, the second within 1 ulp,
// and the remainder of the third is exact.
struct Divisor {
  float by, reciprocal;
  bool is_usual;
  __device__ __forceinline__ static Divisor of(float x) {
    return {x, __frcp_rn(x), fabsf(x) > 0x1p-60f && fabsf(x) < 0x1p60f};
  }
  // Two quotients, rounded to f32 and then to bf16. Estimates are within 2 units of the rounded quotients, so that both
  // round to the same unless a tie is near.
  __device__ __forceinline__ uint32_t pack_quotients(float a, float b) const {
    float const x = a * reciprocal, y = b * reciprocal;
    uint32_t const near = __byte_perm(bits_of(x), bits_of(y), 0x5410) + 0x80048004u;
    bool const is_sure = is_usual && (near & 0xFFF0u) != 0u && near > 0xFFFFFu;
    return is_sure ? pack_bf16(x, y) : exact_quotients(a, b, by);
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

{{ reductions }}
// Combines the parts of the lanes of a warp that share a row. Every lane gets the same bits.
template <class Reduction, int kLanes>
__device__ __forceinline__ float combine_lanes(float part) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    part = Reduction::combine(part, __shfl_xor_sync(0xFFFFFFFFu, part, distance));
  }
  return part;
}

// One element as a number, and one number as an element.
__device__ __forceinline__ float load_f32(void const *from, int64_t at) { return static_cast<float const *>(from)[at]; }
__device__ __forceinline__ int32_t load_i32(void const *from, int64_t at) { return static_cast<int32_t const *>(from)[at]; }
{% for element in ["bf16", "f16"] %}
__device__ __forceinline__ float load_{{ element }}(void const *from, int64_t at) {
  return low_{{ element }}(static_cast<uint16_t const *>(from)[at]);
}
{% endfor %}
{% for element in ["f8E4M3FN", "f8E5M2", "f8E8M0FNU"] %}
__device__ __forceinline__ float load_{{ element }}(void const *from, int64_t at) {
  return low_{{ element }}(static_cast<uint8_t const *>(from)[at]);
}
{% endfor %}
__device__ __forceinline__ bool load_i1(void const *from, int64_t at) { return low_i1(static_cast<uint8_t const *>(from)[at]); }
__device__ __forceinline__ float load_f4E2M1FN(void const *from, int64_t at) {
  return low_f4E2M1FN(static_cast<uint8_t const *>(from)[at >> 1] >> (at & 1) * 4);
}
// Scales of type f8E4M3FN are unsigned.
__device__ __forceinline__ float load_scale_f8E4M3FN(void const *from, int64_t at) {
  return low_f8E4M3FN(static_cast<uint8_t const *>(from)[at] & 0x7Fu);
}
__device__ __forceinline__ float load_scale_f8E8M0FNU(void const *from, int64_t at) { return load_f8E8M0FNU(from, at); }

__device__ __forceinline__ void store_f32(void *to, int64_t at, float x) { static_cast<float *>(to)[at] = x; }
__device__ __forceinline__ void store_i32(void *to, int64_t at, int32_t x) { static_cast<int32_t *>(to)[at] = x; }
{% for element in ["bf16", "f16"] %}
__device__ __forceinline__ void store_{{ element }}(void *to, int64_t at, float x) {
  static_cast<uint16_t *>(to)[at] = static_cast<uint16_t>(pack_{{ element }}(x, x));
}
{% endfor %}
{% for element in ["f8E4M3FN", "f8E5M2", "f8E8M0FNU", "i1"] %}
__device__ __forceinline__ void store_{{ element }}(void *to, int64_t at, {{ "bool" if element == "i1" else "float" }} x) {
  static_cast<uint8_t *>(to)[at] = static_cast<uint8_t>(pair_{{ element }}(x, x));
}
{% endfor %}
// Another thread may store the other half of the byte at the same time.
__device__ __forceinline__ void store_f4E2M1FN(void *to, int64_t at, float x) {
  uintptr_t const byte = reinterpret_cast<uintptr_t>(to) + static_cast<uintptr_t>(at >> 1);
  uint32_t const shift = static_cast<uint32_t>(byte & 3u) * 8u + static_cast<uint32_t>(at & 1) * 4u;
  uint32_t *const word = reinterpret_cast<uint32_t *>(byte & ~static_cast<uintptr_t>(3u));
  atomicAnd(word, ~(0xFu << shift));
  atomicOr(word, (pair_f4E2M1FN(x, x) & 0xFu) << shift);
}
__device__ __forceinline__ void store_pair_f4E2M1FN(void *to, int64_t at, float low, float high) {
  static_cast<uint8_t *>(to)[at >> 1] = static_cast<uint8_t>(pair_f4E2M1FN(low, high));
}

// Words at any address.
template <int kBytes>
__device__ __forceinline__ void store_bytes(uint8_t *to, Words<kBytes> const &from) {
#pragma unroll
  for (int i = 0; i < kBytes; ++i) {
    to[i] = static_cast<uint8_t>(from.words[i / 4] >> (i % 4 * 8));
  }
}

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// A block of values as codes, with its scale.
template <class Blocks, int kBits>
struct BlockCodes {
  uint32_t words[Blocks::kBlock * kBits / 32];
  uint32_t scale;
};

// `amax` has the bits of the largest magnitude, NaN above infinity.
template <class Blocks, int kBits>
__device__ __forceinline__ BlockCodes<Blocks, kBits> quantize_block(float const *values, uint32_t amax, float global) {
  BlockCodes<Blocks, kBits> result = {};
  result.scale = Blocks::scale(amax, global);
  typename Blocks::Step const step = Blocks::step(result.scale, amax, global);
#pragma unroll
  for (int i = 0; i < Blocks::kBlock; i += 2) {
    uint32_t const pair = Blocks::codes(values[i], values[i + 1], step);
    int const word = i * kBits / 32, shift = i * kBits % 32;
    result.words[word] |= pair << shift;
    // A pair of codes of 6 bits may lie in two words.
    if constexpr (kBits == 6) {
      if (shift > 20) {
        result.words[word + 1] |= pair >> (32 - shift);
      }
    }
  }
  return result;
}
#endif
