// What FP4 operands become. Decoded, a value is v · s · 2^-14 in fp16, exactly: two significant bits of a code times four
// of a scale, and no product is smaller than 2^-24, the smallest fp16 there is. MX has scales that fp16 has not: v · s ·
// 2^-3 in bf16, exactly too, of which the smallest is a subnormal. What both operands lack is given back to the sum.

constexpr float kFactor = kMx ? 64.0f : 268435456.0f;
// As e4m3, without scales, it is v · 2^-6: what products of these are to be multiplied with to be as large as those of fp16.
constexpr float kE4m3Factor = 1.0f / 65536.0f;
constexpr int kScaleVector = kMx ? 32 : 16;
// Scales of 128 rows: 4 of each along K are 512 bytes.
constexpr int kAtomBytes = 512, kAtomK = 4 * kScaleVector;
// Tensor copies take scales in rows of 128 bytes, and bring them sooner than copies of bytes that follow one another.
constexpr int kScaleRowBytes = 128, kAtomRows = kAtomBytes / kScaleRowBytes;
// K is taken in blocks. Any order of K is right if both operands have it: of a block, thread t of a quad has the 32 codes
// from 32 t on, 16 bytes of a row; word w of these is what it gives to the steps 2 w and 2 w + 1 of 16 along K.
constexpr int kBlockK = 128, kBlockBytes = kBlockK / 2, kAtomsPerBlock = kBlockK / kAtomK;

#ifndef FOURFOLD_HOST

CUTLASS_DEVICE uint32_t word_of(uint4 const &words, int word) {
  return word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w;
}

// Eight codes as what a thread gives to two steps: the pair of the low columns, and that of the high.
struct Decoded {
  uint32_t low[2], high[2];
};

// Two ue4m3 scales as fp16, exactly; bit 7 of a scale says nothing, 0x7F is NaN. Who multiplies with their magnitudes needs no
// instruction for these.
CUTLASS_DEVICE uint32_t two_scales(uint32_t bytes) {
  uint32_t result;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(static_cast<uint16_t>(bytes)));
  __half2 const magnitudes = __habs2(reinterpret_cast<__half2 const &>(result));
  return reinterpret_cast<uint32_t const &>(magnitudes);
}

CUTLASS_DEVICE float2 wide(uint32_t halves) { return __half22float2(reinterpret_cast<__half2 const &>(halves)); }

// Twice 2^(s - 130) as bf16: below s = 4 a subnormal; 255 is NaN.
CUTLASS_DEVICE uint32_t mx_scale(uint32_t byte) {
  uint32_t const normal = (byte - 3) << 7, subnormal = 8u << (byte & 3);
  return (byte == 255 ? 0x7FFFu : byte < 4 ? subnormal : normal) * 0x10001u;
}

// What a thread has of the scales of a row's block: those of its two groups, as fp16, or twice that of its one, as bf16.
CUTLASS_DEVICE uint32_t scale_of_word(uint32_t scales, int word) {
  if constexpr (kMx) {
    return scales;
  }
  // A multiplication takes either half twice as it is.
  __half2 const both = reinterpret_cast<__half2 const &>(scales), one = word < 2 ? __low2half2(both) : __high2half2(both);
  return reinterpret_cast<uint32_t const &>(one);
}

template <class Pair>
CUTLASS_DEVICE uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  Pair const result = __hmul2_rn(reinterpret_cast<Pair const &>(x), reinterpret_cast<Pair const &>(y));
  return reinterpret_cast<uint32_t const &>(result);
}

// Eight codes, v · 2^-14 in fp16: sign and magnitude at bits 15 and 11 to 9, all of it in the upper byte. Of the signs alone, shifted
// for every second code, those of the others stand where magnitudes are taken: so nothing is masked twice.
CUTLASS_DEVICE Decoded decode(uint32_t codes) {
  uint32_t const signs = sign_bits(codes);
  uint32_t const even = select_bits<0x0E0E0E0E>(codes << 1, signs << 4), odd = select_bits<0x0E0E0E0E>(codes >> 3, signs);
  return {{__byte_perm(even, 0, 0x1404), __byte_perm(even, 0, 0x3424)},
          {__byte_perm(odd, 0, 0x1404), __byte_perm(odd, 0, 0x3424)}};
}

// Eight codes as e4m3, v · 2^-6: sign and magnitude at bits 7 and 4 to 2.
struct DecodedE4m3 {
  uint32_t even, odd;
};
CUTLASS_DEVICE DecodedE4m3 decode_to_e4m3(uint32_t codes) {
  uint32_t const signs = sign_bits(codes);
  return {select_bits<0x1C1C1C1C>(codes << 2, signs << 4), select_bits<0x1C1C1C1C>(codes >> 2, signs)};
}

// Eight codes times a scale, which is in both halves of `scale`.
CUTLASS_DEVICE Decoded decode(uint32_t codes, uint32_t scale) {
  Decoded result;
  if constexpr (kMx) {
    // Sign and magnitude of a code at bits 15 and 8 to 6 are v · 2^-126 in bf16, and 0x7E80 is 2^126.
    auto const value = [&](uint32_t pairs) {
      uint32_t const bits = (pairs << 6 & 0x01C001C0u) | (pairs << 12 & 0x80008000u);
      return multiply_pairs<__nv_bfloat162>(multiply_pairs<__nv_bfloat162>(bits, 0x7E807E80u), scale);
    };
    result.low[0] = value(codes);
    result.high[0] = value(codes >> 4);
    result.low[1] = value(codes >> 8);
    result.high[1] = value(codes >> 12);
  } else {
    result = decode(codes);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2; ++i) {
      result.low[i] = multiply_pairs<__half2>(result.low[i], scale);
      result.high[i] = multiply_pairs<__half2>(result.high[i], scale);
    }
  }
  return result;
}
#endif
