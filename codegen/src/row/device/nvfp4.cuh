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

// Values of bf16 in pairs.
struct PackedValues {
  uint32_t const *from;
  __device__ __forceinline__ float at(int i) const { return i % 2 == 0 ? low_bf16(from[i / 2]) : high_bf16(from[i / 2]); }
  __device__ __forceinline__ PackedValues after(int count) const { return {from + count / 2}; }
};

__device__ __forceinline__ void signs_of(PackedValues const &values, uint32_t &even, uint32_t &odd) {
  uint32_t const low = __byte_perm(values.from[0], values.from[1], 0x7351), high = __byte_perm(values.from[2], values.from[3], 0x7351);
  even = __byte_perm(low, high, 0x5410);
  odd = __byte_perm(low, high, 0x7632);
}

struct Nvfp4Codes {
  uint32_t words[2];
  uint32_t scale;
};

// The exact scale and codes. Estimates decide those that are not near a tie, if the factor is usual.
template <class Blocks, class Values>
__device__ __forceinline__ Nvfp4Codes nvfp4_exactly(Values const &values, uint32_t amax, float global) {
  Nvfp4Codes result = {{0u, 0u}, Blocks::scale(amax, global)};
  typename Blocks::Step const step = Blocks::step(result.scale, amax, global);
  float const factor = Blocks::factor(step);
  if (!step.is_zero && is_usual(amax, factor)) {
    nvfp4_codes(values, factor * 0x1p-126f, result.words[0]);
    nvfp4_codes(values.after(8), factor * 0x1p-126f, result.words[1]);
    result.words[0] = settle<Blocks>(values, factor * 0x1p-126f, result.words[0], step);
    result.words[1] = settle<Blocks>(values.after(8), factor * 0x1p-126f, result.words[1], step);
    return result;
  }
  // Rarely executed: unrolled, it would take registers from the caller.
  uint64_t codes = 0u;
#pragma unroll 1
  for (int i = 0; i < 16; i += 2) {
    codes |= static_cast<uint64_t>(Blocks::codes(values.at(i), values.at(i + 1), step)) << (i * 4);
  }
  result.words[0] = static_cast<uint32_t>(codes), result.words[1] = static_cast<uint32_t>(codes >> 32);
  return result;
}

// Takes the values in registers: a call by reference would store them to memory on every path.
template <class Blocks>
__device__ __noinline__ Nvfp4Codes nvfp4_exact(float4 a, float4 b, float4 c, float4 d, uint32_t amax, float global) {
  float const values[16] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
  return nvfp4_exactly<Blocks>(FloatValues{values}, amax, global);
}
template <class Blocks>
__device__ __noinline__ Nvfp4Codes nvfp4_exact_packed(uint4 low, uint4 high, uint32_t amax, float global) {
  uint32_t const pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  return nvfp4_exactly<Blocks>(PackedValues{pairs}, amax, global);
}
template <class Blocks>
__device__ __forceinline__ Nvfp4Codes nvfp4_exact_of(FloatValues const &values, uint32_t amax, float global) {
  float const *v = values.from;
  return nvfp4_exact<Blocks>({v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]}, {v[8], v[9], v[10], v[11]}, {v[12], v[13], v[14], v[15]}, amax,
                             global);
}
template <class Blocks>
__device__ __forceinline__ Nvfp4Codes nvfp4_exact_of(PackedValues const &values, uint32_t amax, float global) {
  uint32_t const *v = values.from;
  return nvfp4_exact_packed<Blocks>({v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]}, amax, global);
}

// The codes of a block whose scale is known, by estimates if `is_sure`. `factor` is 2^-126 / step.
template <class Blocks, class Values>
__device__ __forceinline__ void estimate_codes(Nvfp4Codes &result, Values const &values, float factor, bool is_sure, uint32_t amax, float global) {
  uint32_t const near = __vminu2(nvfp4_codes(values, factor, result.words[0]), nvfp4_codes(values.after(8), factor, result.words[1]));
  if (!(is_sure && is_far(near))) {
    result = nvfp4_exact_of<Blocks>(values, amax, global);
  }
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
  // A subnormal scale may be so much smaller than its quotient that codes exceed 7; they saturate.
  bool const is_sure = amax < tensor.limit && result.scale - 1u >= 7u && ((pair ^ pair >> 8) & 0xFFu) == 0u;
  estimate_codes<Nvfp4>(result, values, factor, is_sure, amax, tensor.global);
  if (is_sure && result.scale == 0u) {
    result.words[0] = result.words[1] = 0u;
  }
  return result;
}

// The same under another formula, whose scale and step are computed as it says.
template <class Blocks, class Values>
__device__ __forceinline__ Nvfp4Codes nvfp4_by(Values const &values, uint32_t amax, float global) {
  Nvfp4Codes result;
  result.scale = Blocks::scale(amax, global);
  typename Blocks::Step const step = Blocks::step(result.scale, amax, global);
  float const factor = Blocks::factor(step);
  estimate_codes<Blocks>(result, values, factor * 0x1p-126f, is_usual(amax, factor) || step.is_zero, amax, global);
  if (step.is_zero) {
    result.words[0] = result.words[1] = 0u;
  }
  return result;
}
#endif
