// MX with other edges than Mx's, as a program writes them out.
enum class Power { kFloor, kCeil, kEven };
enum class NanRule { kPropagate, kInfiniteStep, kInfinity };

// Least is the least scale. With Literal, an infinity counts as 2^128. LeastFactor holds the bits of the factor of the
// values where the scale is 2^-127.
template <class Format, Power Rounding, uint32_t Least, bool Literal, NanRule Nan, uint32_t LeastFactor>
struct MxBy {
  using Element = Format;
  static constexpr int kBlock = 32;

  FOURFOLD_HOST_DEVICE static uint32_t scale(uint32_t amax, float) {
    constexpr uint32_t kMantissaBits = 0x007FFFFFu, kThreeQuarters = 0x00600000u;
    if (amax > kInfinityBits && Nan != NanRule::kInfinity) {
      return 0xFFu;
    }
    if (amax >= kInfinityBits && !Literal) {
      return 0xFEu;
    }
    amax = amax < kInfinityBits ? amax : kInfinityBits;
    uint32_t const mantissa = amax & kMantissaBits;
    bool const exceeds = Rounding == Power::kCeil ? mantissa > (Format::kLargest & kMantissaBits)
                                                  : Rounding == Power::kEven && mantissa >= kThreeQuarters;
    uint32_t const power = (amax >> 23) + exceeds;
    uint32_t const scale = power < Format::kMaxExponent ? 0u : power - Format::kMaxExponent;
    return scale > Least ? scale : Least;
  }

  // The factor of the values, 1 / step. It is an exact power of two, so products equal quotients.
  using Step = float;

  FOURFOLD_HOST_DEVICE static Step step(uint32_t scale, uint32_t, float) {
    if (scale == 0xFFu) {
      return Nan == NanRule::kInfiniteStep ? 0.0f : float_of(kMagnitudeBits);
    }
    if (scale == 0u) {
      return float_of(LeastFactor);
    }
    return float_of(scale == 0xFEu ? 0x00400000u : (254u - scale) << 23);
  }

  FOURFOLD_HOST_DEVICE static uint32_t codes(float low, float high, Step step) {
    return encode_pair<Element>(low * step, high * step);
  }
};
