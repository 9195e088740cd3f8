// Block quantization that matches the interpreter bit for bit: every quotient and product is IEEE f32, rounded to
// nearest even.

#if defined(__CUDACC__)
#define FOURFOLD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FOURFOLD_HOST_DEVICE inline
#endif

FOURFOLD_HOST_DEVICE uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

FOURFOLD_HOST_DEVICE float float_of(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

constexpr uint32_t kMagnitudeBits = 0x7FFFFFFFu, kInfinityBits = 0x7F800000u;

// Small formats: explicit significand bits, exponent bias, width in bits, the exponent and f32 bits of the largest
// number, and the code of NaN. E2m1 has no NaN, so NaN becomes its largest number.
struct E2m1 {
  static constexpr int kMantissa = 1, kBias = 1, kBits = 4, kMaxExponent = 2;
  static constexpr uint32_t kLargest = 0x40C00000u, kNan = 0x7u;  // 6
};
struct E4m3 {
  static constexpr int kMantissa = 3, kBias = 7, kBits = 8, kMaxExponent = 8;
  static constexpr uint32_t kLargest = 0x43E00000u, kNan = 0x7Fu;  // 448
};
struct E5m2 {
  static constexpr int kMantissa = 2, kBias = 15, kBits = 8, kMaxExponent = 15;
  static constexpr uint32_t kLargest = 0x47600000u, kNan = 0x7Fu;  // 57344
};

// Returns the code of the nearest number, ties to even. Large numbers and infinities saturate; zero keeps its sign.
template <class Format>
FOURFOLD_HOST_DEVICE uint32_t encode(float x) {
  constexpr int kDropped = 23 - Format::kMantissa;
  // Below the smallest normal number, all numbers are multiples of one unit. Adding an anchor whose ulp is that unit
  // rounds x to it.
  constexpr uint32_t kNormal = (128u - Format::kBias) << 23;
  constexpr uint32_t kAnchor = (151u - Format::kBias - Format::kMantissa) << 23;
  uint32_t const sign = bits_of(x) >> 31;
  uint32_t magnitude = bits_of(x) & kMagnitudeBits;
  if (magnitude > kInfinityBits) {
    return Format::kNan;
  }
  magnitude = magnitude < Format::kLargest ? magnitude : Format::kLargest;
  uint32_t code;
  if (magnitude < kNormal) {
    code = bits_of(float_of(magnitude) + float_of(kAnchor)) - kAnchor;
  } else {
    magnitude += (1u << (kDropped - 1)) - 1u + (magnitude >> kDropped & 1u);
    code = (magnitude >> kDropped) - ((127u - Format::kBias) << Format::kMantissa);
  }
  return sign << (Format::kBits - 1) | code;
}

// Packs two codes, the first in the low bits. The conversion instruction, where available, gives the same codes.
template <class Format>
FOURFOLD_HOST_DEVICE uint32_t encode_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint16_t codes;
  if constexpr (Format::kBits == 8 && Format::kMantissa == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
  } else if constexpr (Format::kBits == 8) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
  }
#if defined(CUDA_PTX_FP4FP6_CVT_ENABLED)
  else {
    asm("{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, %1, %2; mov.b16 %0, {pair, 0}; }"
        : "=h"(codes)
        : "f"(high), "f"(low));
    return codes;
  }
#endif
#endif
  return encode<Format>(low) | encode<Format>(high) << Format::kBits;
}

// NVFP4: s = e4m3(amax / 6 / global), q = e2m1(v / (s · global)). Codes are 0 if s · global is 0. If amax is 0, s and
// codes are 0 for every global scale.
struct Nvfp4 {
  using Element = E2m1;
  static constexpr int kBlock = 16;

  FOURFOLD_HOST_DEVICE static uint32_t scale(uint32_t amax, float global) {
    float const s = float_of(amax) / 6.0f / global;
    // The scale is unsigned: a negative quotient becomes 0.
    return amax == 0u || s < 0.0f ? 0u : encode<E4m3>(s) & 0x7Fu;
  }

  // The divisor of the values. Values and divisor are multiplied by one power of two that brings the divisor near 1, so
  // that nothing overflows. If `power` is 0, finite values become zeros; if it is NaN, all values become NaN.
  struct Step {
    float power, divisor, reciprocal;
    bool is_zero;
  };

  FOURFOLD_HOST_DEVICE static Step step(uint32_t scale, uint32_t amax, float global) {
    uint32_t const exponent = scale >> 3, mantissa = scale & 7u;
    float s = exponent == 0u ? static_cast<float>(mantissa) * 0x1p-9f
                             : float_of((exponent + 120u) << 23 | mantissa << 20);
    s = scale == E4m3::kNan ? float_of(kMagnitudeBits) : s;
    float const step = s * global;
    if (bits_of(step) >= kInfinityBits) {
      // A scale of 0 times an infinite or NaN global scale is NaN, but a block of zeros still has codes of 0.
      return {step == step ? 0.0f : step, 1.0f, 1.0f, step == 0.0f || amax == 0u};
    }
    uint32_t const power = bits_of(step) >> 23;
    float const up = float_of(power == 254u ? 0x00400000u : (254u - power) << 23);
    return {up, step * up, 1.0f / (step * up), step == 0.0f};
  }

  // About 1 / (s · global).
  FOURFOLD_HOST_DEVICE static float factor(Step const &step) { return step.power * step.reciprocal; }

  // Returns rn(v / step), except for differences that do not change the code: codes saturate well below the clamp at
  // ±16. NaN is clamped to 16 and therefore gets the saturated code.
  FOURFOLD_HOST_DEVICE static float quotient(float v, Step const &step) {
    float const x = fmaxf(fminf(v * step.power, 16.0f), -16.0f);
    // The first estimate is within 2 ulp, the second within 1 ulp. The remainder is exact and the reciprocal correctly
    // rounded, so the third is the correctly rounded quotient.
    float q = x * step.reciprocal;
    q = fmaf(fmaf(-q, step.divisor, x), step.reciprocal, q);
    q = fmaf(fmaf(-q, step.divisor, x), step.reciprocal, q);
    return float_of((bits_of(q) & kMagnitudeBits) | (bits_of(x) & ~kMagnitudeBits));
  }

  FOURFOLD_HOST_DEVICE static uint32_t codes(float low, float high, Step const &step) {
    return step.is_zero ? 0u : encode_pair<Element>(quotient(low, step), quotient(high, step));
  }
};

// MX: the scale is 2^(floor(log2(amax)) - kMaxExponent). With Ceil it is the smallest power of two with which no value
// saturates.
template <class Format, bool Ceil>
struct Mx {
  using Element = Format;
  static constexpr int kBlock = 32;

  FOURFOLD_HOST_DEVICE static uint32_t scale(uint32_t amax, float) {
    constexpr uint32_t kMantissaBits = 0x007FFFFFu;
    if (amax >= kInfinityBits) {
      return amax == kInfinityBits ? 0xFEu : 0xFFu;
    }
    uint32_t const exceeds = Ceil && (amax & kMantissaBits) > (Format::kLargest & kMantissaBits);
    uint32_t const power = (amax >> 23) + exceeds;
    return power < Format::kMaxExponent ? 0u : power - Format::kMaxExponent;
  }

  // The factor of the values, 1 / scale. It is an exact power of two, so products equal quotients.
  using Step = float;

  FOURFOLD_HOST_DEVICE static Step step(uint32_t scale, uint32_t, float) {
    return scale == 0xFFu ? float_of(kMagnitudeBits) : float_of(scale == 0xFEu ? 0x00400000u : (254u - scale) << 23);
  }

  FOURFOLD_HOST_DEVICE static uint32_t codes(float low, float high, Step step) {
    return encode_pair<Element>(low * step, high * step);
  }
};
