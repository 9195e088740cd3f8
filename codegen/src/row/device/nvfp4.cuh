// NVFP4 of 16 values with few instructions. Where an approximate quotient could round to another code or scale than the
// exact one, exact arithmetic decides.
struct Nvfp4Tensor {
  // About 1 / (6 · global), the global scale, and the bits of the amax from which exact arithmetic decides: there the
  // scale saturates, or the reciprocal of the step has too few digits.
  float per_scale, global;
  uint32_t limit;
};

#ifndef FOURFOLD_HOST
__device__ __forceinline__ float reciprocal_estimate(float x) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
#else
  return 1.0f / x;
#endif
}

__device__ __forceinline__ Nvfp4Tensor nvfp4_tensor(float global) {
  bool const is_usual = global > 0x1p-60f && global < 0x1p60f;
  // A quotient below 463.3 rounds to at most 448. At an amax of 360 a step is at most 64.
  return {reciprocal_estimate(6.0f * global), global, is_usual ? bits_of(fminf(2780.0f * global, 360.0f)) : 0u};
}

// Bytes 3 of eight words: those of even words in `even`, of odd words in `odd`.
__device__ __forceinline__ void high_bytes(uint32_t const (&w)[8], uint32_t &even, uint32_t &odd) {
  even = __byte_perm(__byte_perm(w[0], w[2], 0x0073), __byte_perm(w[4], w[6], 0x0073), 0x5410);
  odd = __byte_perm(__byte_perm(w[1], w[3], 0x0073), __byte_perm(w[5], w[7], 0x0073), 0x5410);
}

// Values from position `first` on, and those of bf16 in pairs.
struct FloatValues {
  float const *from;
  __device__ __forceinline__ float at(int i) const { return from[i]; }
  __device__ __forceinline__ FloatValues after(int count) const { return {from + count}; }
};
struct PackedValues {
  uint32_t const *from;
  __device__ __forceinline__ float at(int i) const { return i % 2 == 0 ? low_bf16(from[i / 2]) : high_bf16(from[i / 2]); }
  __device__ __forceinline__ PackedValues after(int count) const { return {from + count / 2}; }
};

// The signs of eight values, in the leading bits of bytes: those at even positions, and those at odd ones.
__device__ __forceinline__ void signs_of(FloatValues const &values, uint32_t &even, uint32_t &odd) {
  uint32_t signs[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    signs[i] = bits_of(values.at(i));
  }
  high_bytes(signs, even, odd);
}
__device__ __forceinline__ void signs_of(PackedValues const &values, uint32_t &even, uint32_t &odd) {
  uint32_t const low = __byte_perm(values.from[0], values.from[1], 0x7351), high = __byte_perm(values.from[2], values.from[3], 0x7351);
  even = __byte_perm(low, high, 0x5410);
  odd = __byte_perm(low, high, 0x7632);
}

// The codes of eight values times `factor`, which is 2^-126 / step. Returns two 16-bit numbers, of which one is below 2
// if a product is within 2^-16 units of a tie between codes.
//
// Numbers below 2^-126 are evenly spaced, as e2m1's are below 1, so bits 22 to 24 of the product are the code, rounded
// down. They are moved to bits 24 to 26, and half a unit is added. The product must be an fma: ptxas 13.0 to 13.5
// takes a product of floats whose bits are shifted to the left for one of integers, (x * y) << 2 for x * (y << 2).
template <class Values>
__device__ __forceinline__ uint32_t nvfp4_codes(Values const &values, float factor, uint32_t &codes) {
  uint32_t magnitudes[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    magnitudes[i] = (bits_of(__fmaf_rn(values.at(i), factor, 0.0f)) << 2) + 0x00800100u;
  }
  uint32_t const near = __vminu2(__vminu2(__byte_perm(magnitudes[0], magnitudes[1], 0x6521), __byte_perm(magnitudes[2], magnitudes[3], 0x6521)),
                                 __vminu2(__byte_perm(magnitudes[4], magnitudes[5], 0x6521), __byte_perm(magnitudes[6], magnitudes[7], 0x6521)));
  uint32_t even, odd, even_signs, odd_signs;
  high_bytes(magnitudes, even, odd);
  signs_of(values, even_signs, odd_signs);
  codes = ((even | odd << 4) & 0x77777777u) | (even_signs >> 4 & 0x08080808u) | (odd_signs & 0x80808080u);
  return near;
}

struct Nvfp4Codes {
  uint32_t words[2];
  uint32_t scale;
};

template <class Values>
__device__ __forceinline__ Nvfp4Codes nvfp4_by_division(Values const &values, uint32_t amax, float global) {
  Nvfp4Codes result = {{0u, 0u}, Nvfp4::scale(amax, global)};
  Nvfp4::Step const step = Nvfp4::step(result.scale, amax, global);
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    result.words[i / 8] |= Nvfp4::codes(values.at(i), values.at(i + 1), step) << (i % 8 * 4);
  }
  return result;
}

// Takes the values in registers: a call by reference would store them to memory on every path.
__device__ __noinline__ Nvfp4Codes nvfp4_exact(float4 a, float4 b, float4 c, float4 d, uint32_t amax, float global) {
  float const values[16] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
  return nvfp4_by_division(FloatValues{values}, amax, global);
}
__device__ __noinline__ Nvfp4Codes nvfp4_exact_packed(uint4 low, uint4 high, uint32_t amax, float global) {
  uint32_t const pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  return nvfp4_by_division(PackedValues{pairs}, amax, global);
}
__device__ __forceinline__ Nvfp4Codes nvfp4_exact_of(FloatValues const &values, uint32_t amax, float global) {
  float const *v = values.from;
  return nvfp4_exact({v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]}, {v[8], v[9], v[10], v[11]}, {v[12], v[13], v[14], v[15]}, amax, global);
}
__device__ __forceinline__ Nvfp4Codes nvfp4_exact_of(PackedValues const &values, uint32_t amax, float global) {
  uint32_t const *v = values.from;
  return nvfp4_exact_packed({v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]}, amax, global);
}

// `amax` has the bits of the largest magnitude, NaN above infinity.
template <class Values>
__device__ __forceinline__ Nvfp4Codes nvfp4(Values const &values, uint32_t amax, Nvfp4Tensor const &tensor) {
  Nvfp4Codes result;
  float const quotient = float_of(amax) * tensor.per_scale;
  uint32_t pair;
  float scale;
  // If both neighbours of the estimate have one code, so has the exact quotient.
#if defined(FOURFOLD_BY_INSTRUCTION)
  asm("{ .reg .b16 p; .reg .b32 q; .reg .f16 l, h;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 p, %2, %3; mov.b32 %0, {p, p};\n"
      "  cvt.rn.f16x2.e4m3x2 q, p; mov.b32 {l, h}, q; cvt.f32.f16 %1, l; }"
      : "=r"(pair), "=f"(scale)
      : "f"(quotient * (1.0f + 0x1p-21f)), "f"(quotient * (1.0f - 0x1p-21f)));
#else
  pair = encode_pair<E4m3>(quotient * (1.0f - 0x1p-21f), quotient * (1.0f + 0x1p-21f));
  scale = low_f8E4M3FN(pair);
#endif
  result.scale = pair & 0xFFu;
  float const factor = result.scale == 0u ? 0.0f : reciprocal_estimate(scale * tensor.global) * 0x1p-126f;
  uint32_t const near = __vminu2(nvfp4_codes(values, factor, result.words[0]), nvfp4_codes(values.after(8), factor, result.words[1]));
  // A subnormal scale may be so much smaller than its quotient that codes exceed 7; they saturate.
  bool const is_sure = amax < tensor.limit && result.scale - 1u >= 7u && ((pair ^ pair >> 8) & 0xFFu) == 0u && (near & 0xFFFFu) >= 2u && near >= 0x20000u;
  if (!is_sure) {
    return nvfp4_exact_of(values, amax, tensor.global);
  }
  if (result.scale == 0u) {
    result.words[0] = result.words[1] = 0u;
  }
  return result;
}
#endif
