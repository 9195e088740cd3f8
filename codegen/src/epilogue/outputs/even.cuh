// MX with an exponent that is one more where amax is at least 1.75 times a power of two.
template <class Format>
struct MxEven : Mx<Format, false> {
  FOURFOLD_HOST_DEVICE static uint32_t scale(uint32_t amax, float global) {
    constexpr uint32_t kQuarter = 0x00200000u;
    if (amax >= kInfinityBits) {
      return Mx<Format, false>::scale(amax, global);
    }
    uint32_t const power = (amax + kQuarter) >> 23;
    return power < Format::kMaxExponent ? 0u : power - Format::kMaxExponent;
  }
};
