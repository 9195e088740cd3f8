// NVFP4 by another formula than Nvfp4's, as a program writes it out. Every quotient and product is rounded once.
enum class Factor { kDivide, kMultiply };
enum class CodeRule { kQuotient, kReciprocalStep, kReciprocalScale };

FOURFOLD_HOST_DEVICE float divide_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

FOURFOLD_HOST_DEVICE float multiply_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// t = amax / 6 / g, s = e4m3(max(t, min)), q = e2m1(v / (s · g)). Amax and Global say how 6 and g enter t; g enters the
// step inversely. Without Guard, the formula is literal: 0/0 is NaN, and the scale is signed.
template <uint32_t Min, Factor Amax, Factor Global, CodeRule Code, bool Guard>
struct Nvfp4By {
  using Element = E2m1;
  static constexpr int kBlock = 16;

  FOURFOLD_HOST_DEVICE static uint32_t scale(uint32_t amax, float global) {
    constexpr uint32_t kSixth = 0x3E2AAAABu;
    float t = Amax == Factor::kDivide ? divide_rn(float_of(amax), 6.0f) : multiply_rn(float_of(amax), float_of(kSixth));
    t = Global == Factor::kDivide ? divide_rn(t, global) : multiply_rn(t, global);
    t = Guard && amax == 0u ? 0.0f : t;
    // IEEE maximum: NaN propagates and -0 < +0. Encoding saturates at 448.
    float const least = float_of(Min);
    bool const keeps = !(t <= least) || (t == least && bits_of(t) >> 31 == 0u);
    t = keeps ? t : least;
    if (Guard) {
      return t < 0.0f ? 0u : encode<E4m3>(t) & 0x7Fu;
    }
    return encode<E4m3>(t);
  }

  // The divisor or the factor of the values.
  struct Step {
    float number;
    bool is_zero;
  };

  FOURFOLD_HOST_DEVICE static Step step(uint32_t scale, uint32_t amax, float global) {
    uint32_t const magnitude = scale & 0x7Fu, exponent = magnitude >> 3, mantissa = magnitude & 7u;
    float s = exponent == 0u ? static_cast<float>(mantissa) * 0x1p-9f
                             : float_of((exponent + 120u) << 23 | mantissa << 20);
    s = magnitude == E4m3::kNan ? float_of(kMagnitudeBits) : float_of(bits_of(s) | scale >> 7 << 31);
    float const step = Global == Factor::kDivide ? multiply_rn(s, global) : divide_rn(s, global);
    bool const is_zero = Guard && (amax == 0u || step == 0.0f);
    if (Code == CodeRule::kQuotient) {
      return {step, is_zero};
    }
    if (Code == CodeRule::kReciprocalStep) {
      return {divide_rn(1.0f, step), is_zero};
    }
    return {divide_rn(Global == Factor::kDivide ? divide_rn(1.0f, global) : global, s), is_zero};
  }

  // About 1 / (s · g).
  FOURFOLD_HOST_DEVICE static float factor(Step const &step) {
    return Code == CodeRule::kQuotient ? divide_rn(1.0f, step.number) : step.number;
  }

  FOURFOLD_HOST_DEVICE static float quotient(float v, Step const &step) {
    return Code == CodeRule::kQuotient ? divide_rn(v, step.number) : multiply_rn(v, step.number);
  }

  FOURFOLD_HOST_DEVICE static uint32_t codes(float low, float high, Step const &step) {
    return step.is_zero ? 0u : encode_pair<Element>(quotient(low, step), quotient(high, step));
  }
};
