// Decodes FP4, exactly, and defines the order of K that both operands share.
// NVFP4 becomes v · s · 2^-14 in fp16. A code has two significant bits and a scale four, and no nonzero product is
// below 2^-24, the smallest fp16. MX scales exceed the range of fp16, so MXFP4 becomes v · s · 2^-3 in bf16, where the
// smallest products are subnormal.
//
// kFactor restores the powers of two that both operands lack.

constexpr float kFactor = kMx ? 64.0f : 268435456.0f;
// A code alone is v · 2^-6 in e4m3. This factor scales products down to those of fp16, so that kFactor applies to both.
constexpr float kE4m3Factor = 1.0f / 65536.0f;
constexpr int kScaleVector = kMx ? 32 : 16;
// An atom: 4 scales along K of each of 128 rows, 512 bytes.
constexpr int kAtomBytes = 512, kAtomK = 4 * kScaleVector;
// TMA loads scales in rows of 128 bytes, which arrive sooner than a bulk copy of contiguous bytes.
constexpr int kScaleRowBytes = 128, kAtomRows = kAtomBytes / kScaleRowBytes;
// K blocks. Any order of K is correct if both operands share it. Thread t of a quad holds codes 32 t to 32 t + 31 of a
// block, 16 bytes of a row. Their word w holds the thread's operands of K steps 2 w and 2 w + 1, of 16 each.
constexpr int kBlockK = 128, kBlockBytes = kBlockK / 2, kAtomsPerBlock = kBlockK / kAtomK;

#ifndef FOURFOLD_HOST

CUTLASS_DEVICE uint32_t word_of(uint4 const &words, int word) {
  return word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w;
}

// Eight decoded codes as fragment registers: for each of two K steps, a pair of low and a pair of high columns.
struct Decoded {
  uint32_t low[2], high[2];
};

// Converts two ue4m3 scales to fp16, exactly. Bit 7 is ignored, and 0x7F is NaN. If a multiplication follows, it takes
// the absolute value of its operand without another instruction.
CUTLASS_DEVICE uint32_t two_scales(uint32_t bytes) {
  uint32_t result;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(static_cast<uint16_t>(bytes)));
  __half2 const magnitudes = __habs2(reinterpret_cast<__half2 const &>(result));
  return reinterpret_cast<uint32_t const &>(magnitudes);
}

CUTLASS_DEVICE float2 wide(uint32_t halves) { return __half22float2(reinterpret_cast<__half2 const &>(halves)); }

// Returns 2^(s - 130) as bf16 in both halves: a subnormal below s = 4, and NaN for 255.
CUTLASS_DEVICE uint32_t mx_scale(uint32_t byte) {
  uint32_t const normal = (byte - 3) << 7, subnormal = 8u << (byte & 3);
  return (byte == 255 ? 0x7FFFu : byte < 4 ? subnormal : normal) * 0x10001u;
}

// Returns the scale of a word in both halves. For NVFP4, `scales` has those of the thread's two groups, of two words
// each. For MX, a thread has one group, whose scale is already in both halves.
CUTLASS_DEVICE uint32_t scale_of_word(uint32_t scales, int word) {
  if constexpr (kMx) {
    return scales;
  }
  // The multiplication broadcasts either half itself.
  __half2 const both = reinterpret_cast<__half2 const &>(scales), one = word < 2 ? __low2half2(both) : __high2half2(both);
  return reinterpret_cast<uint32_t const &>(one);
}

template <class Pair>
CUTLASS_DEVICE uint32_t multiply_pairs(uint32_t x, uint32_t y) {
  Pair const result = __hmul2_rn(reinterpret_cast<Pair const &>(x), reinterpret_cast<Pair const &>(y));
  return reinterpret_cast<uint32_t const &>(result);
}

// Decodes eight codes to v · 2^-14 in fp16: sign in bit 15, magnitude in bits 11 to 9, all in the upper byte. The
// shifted `signs` also hold sign bits of other codes, but at bits that are selected from the magnitudes.
CUTLASS_DEVICE Decoded decode(uint32_t codes) {
  uint32_t const signs = sign_bits(codes);
  uint32_t const even = select_bits<0x0E0E0E0E>(codes << 1, signs << 4), odd = select_bits<0x0E0E0E0E>(codes >> 3, signs);
  return {{__byte_perm(even, 0, 0x1404), __byte_perm(even, 0, 0x3424)},
          {__byte_perm(odd, 0, 0x1404), __byte_perm(odd, 0, 0x3424)}};
}

// Eight codes as e4m3, v · 2^-6: sign in bit 7, magnitude in bits 4 to 2. Each member has every second code.
struct DecodedE4m3 {
  uint32_t even, odd;
};
CUTLASS_DEVICE DecodedE4m3 decode_to_e4m3(uint32_t codes) {
  uint32_t const signs = sign_bits(codes);
  return {select_bits<0x1C1C1C1C>(codes << 2, signs << 4), select_bits<0x1C1C1C1C>(codes >> 2, signs)};
}

// Decodes eight codes and multiplies them by a scale, which is in both halves of `scale`.
CUTLASS_DEVICE Decoded decode(uint32_t codes, uint32_t scale) {
  Decoded result;
  if constexpr (kMx) {
    // With the sign in bit 15 and the magnitude in bits 8 to 6, a code is v · 2^-126 in bf16. 0x7E80 is 2^126.
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
