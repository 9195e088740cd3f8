// Elements of 6 bits. Four codes take three bytes, low bits first, so a pair of codes may lie in two words. Integer
// arithmetic converts on every target.

// The formats have the members that block quantization expects. They have no NaN, so NaN becomes the largest number.
struct E2m3 {
  static constexpr int kMantissa = 3, kBias = 1, kBits = 6, kMaxExponent = 2;
  static constexpr uint32_t kLargest = 0x40F00000u, kNan = 0x1Fu;  // 7.5
};
struct E3m2 {
  static constexpr int kMantissa = 2, kBias = 3, kBits = 6, kMaxExponent = 4;
  static constexpr uint32_t kLargest = 0x41E00000u, kNan = 0x1Fu;  // 28
};

template <>
FOURFOLD_HOST_DEVICE uint32_t encode_pair<E2m3>(float low, float high) {
  return encode<E2m3>(low) | encode<E2m3>(high) << 6;
}
template <>
FOURFOLD_HOST_DEVICE uint32_t encode_pair<E3m2>(float low, float high) {
  return encode<E3m2>(low) | encode<E3m2>(high) << 6;
}

// Shifted to the exponent of an f32, a code is its value times 2^-126 (e2m3) or 2^-124 (e3m2).
FOURFOLD_HOST_DEVICE float low_f6E2M3FN(uint32_t code) {
  return float_of((code & 0x1Fu) << 20 | (code & 0x20u) << 26) * 0x1p126f;
}
FOURFOLD_HOST_DEVICE float low_f6E3M2FN(uint32_t code) {
  return float_of((code & 0x1Fu) << 21 | (code & 0x20u) << 26) * 0x1p124f;
}
FOURFOLD_HOST_DEVICE uint32_t pair_f6E2M3FN(float low, float high) { return encode_pair<E2m3>(low, high); }
FOURFOLD_HOST_DEVICE uint32_t pair_f6E3M2FN(float low, float high) { return encode_pair<E3m2>(low, high); }
FOURFOLD_HOST_DEVICE float round_f6E2M3FN(float x) { return low_f6E2M3FN(encode<E2m3>(x)); }
FOURFOLD_HOST_DEVICE float round_f6E3M2FN(float x) { return low_f6E3M2FN(encode<E3m2>(x)); }

// A pair of codes among words in memory order. Bits above the lowest 12 are undefined.
template <int kWords>
FOURFOLD_HOST_DEVICE uint32_t fp6_pair(uint32_t const (&words)[kWords], int pair) {
  int const word = 12 * pair / 32, shift = 12 * pair % 32;
  return words[word] >> shift | (shift > 20 ? words[word + 1] << (32 - shift) : 0u);
}
// Adds a pair of codes to words that are 0 there.
template <int kWords>
FOURFOLD_HOST_DEVICE void put_fp6_pair(uint32_t (&words)[kWords], int pair, uint32_t codes) {
  int const word = 12 * pair / 32, shift = 12 * pair % 32;
  words[word] |= codes << shift;
  if (shift > 20) {
    words[word + 1] |= codes >> (32 - shift);
  }
}

// One code of a tensor. Only the second and the third of four lie in two bytes. The fourth may be the last of the
// tensor, so no byte after it is read.
FOURFOLD_HOST_DEVICE uint32_t load_fp6(void const *from, int64_t at) {
  uint32_t const bit = static_cast<uint32_t>(at & 3) * 6u, shift = bit % 8u;
  uint8_t const *const bytes = static_cast<uint8_t const *>(from) + ((at >> 2) * 3 + bit / 8u);
  return (bytes[0] | (shift > 2u ? static_cast<uint32_t>(bytes[1]) << 8 : 0u)) >> shift;
}
FOURFOLD_HOST_DEVICE float load_f6E2M3FN(void const *from, int64_t at) { return low_f6E2M3FN(load_fp6(from, at)); }
FOURFOLD_HOST_DEVICE float load_f6E3M2FN(void const *from, int64_t at) { return low_f6E3M2FN(load_fp6(from, at)); }

// Stores four codes, the first of which is at a multiple of four.
FOURFOLD_HOST_DEVICE void store_four_fp6(void *to, int64_t at, uint32_t codes) {
  uint8_t *const bytes = static_cast<uint8_t *>(to) + (at >> 2) * 3;
  for (int i = 0; i < 3; ++i) {
    bytes[i] = static_cast<uint8_t>(codes >> 8 * i);
  }
}
