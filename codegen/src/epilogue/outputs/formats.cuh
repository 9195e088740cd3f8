// The arithmetic of block quantization, bit for bit that of the interpreter: every quotient and product is that of IEEE
// f32, rounded to nearest even.

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

// Small formats: explicit bits of the significand, bias, bits, the f32 of the largest number, the code of NaN.
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

// The code of the nearest number, ties to even; saturates, infinities too, and keeps the sign of zero.
template <class Format>
FOURFOLD_HOST_DEVICE uint32_t encode(float x) {
  constexpr int kDropped = 23 - Format::kMantissa;
  // Below the smallest normal number all numbers are multiples of one unit: added to a number whose last place is
  // that unit, x is rounded to it.
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

// Two codes side by side, the first in the low bits; by the instruction where there is one, which does the same.
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

// NVFP4: s = e4m3(amax / 6 / global), q = e2m1(v / (s · global)). Codes are 0 where s · global is 0, and s and codes are
// 0 where amax is, whatever the global scale.
struct Nvfp4 {
  using Element = E2m1;
  static constexpr int kBlock = 16;

  FOURFOLD_HOST_DEVICE static uint32_t scale(uint32_t amax, float global) {
    float const s = float_of(amax) / 6.0f / global;
    // Unsigned: what is below zero is zero.
    return amax == 0u || s < 0.0f ? 0u : encode<E4m3>(s) & 0x7Fu;
  }

  // The divisor of values: they and the divisor are multiplied by the same power of two, so that the divisor is
  // near 1 and nothing overflows. A power that is zero or NaN makes zeros and NaN of them.
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
      // A scale of 0 times a global one that is no number is NaN, and zeros have the code 0 all the same.
      return {step == step ? 0.0f : step, 1.0f, 1.0f, step == 0.0f || amax == 0u};
    }
    uint32_t const power = bits_of(step) >> 23;
    float const up = float_of(power == 254u ? 0x00400000u : (254u - power) << 23);
    return {up, step * up, 1.0f / (step * up), step == 0.0f};
  }

  // rn(v / step), as far as codes can tell: beyond ±16 they are saturated, and NaN has the code of what is.
  FOURFOLD_HOST_DEVICE static float quotient(float v, Step const &step) {
    float const x = fmaxf(fminf(v * step.power, 16.0f), -16.0f);
    // The first is off by two units in the last place at most, the second by less than one; with an exact remainder and
    // a rounded reciprocal the third is the rounded quotient.
    float q = x * step.reciprocal;
    q = fmaf(fmaf(-q, step.divisor, x), step.reciprocal, q);
    q = fmaf(fmaf(-q, step.divisor, x), step.reciprocal, q);
    return float_of((bits_of(q) & kMagnitudeBits) | (bits_of(x) & ~kMagnitudeBits));
  }

  FOURFOLD_HOST_DEVICE static uint32_t codes(float low, float high, Step const &step) {
    return step.is_zero ? 0u : encode_pair<Element>(quotient(low, step), quotient(high, step));
  }
};

// MX: the scale is the power of two below, or the one that lets nothing saturate.
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

  // The factor of values: the reciprocal of a power of two is exact, and so is what it makes of a quotient.
  using Step = float;

  FOURFOLD_HOST_DEVICE static Step step(uint32_t scale, uint32_t, float) {
    return scale == 0xFFu ? float_of(kMagnitudeBits) : float_of(scale == 0xFEu ? 0x00400000u : (254u - scale) << 23);
  }

  FOURFOLD_HOST_DEVICE static uint32_t codes(float low, float high, Step step) {
    return encode_pair<Element>(low * step, high * step);
  }
};
