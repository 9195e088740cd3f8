// Decodes operands to fp16 or bf16, exactly, and defines the order of K that both operands share.
//
// A decoded element is its value times a power of two, `exponent_of` its type. With it, the smallest nonzero value of
// the type is at least the smallest fp16 or bf16:
//
//   type           decoded  exponent  smallest decoded value
//   NVFP4          fp16     -14       2^-24: v >= 2^-1, s >= 2^-9
//   NVFP4          bf16     -7        2^-17; the largest scale, 448, is 448 * 2^119 as a factor
//   MXFP4          bf16     -3        2^-131, a subnormal; the largest value, 6 * 2^127, is 6 * 2^124
//   MXFP8, e4m3    bf16     3         2^-133, the smallest subnormal
//   MXFP8, e5m2    bf16     10        2^-133
//   16-bit A       as it is 0
//
// MXFP8 has more exponents than bf16, so large scales become infinity: from 2^117 on for e4m3, from 2^103 on for e5m2.
//
// kFactor restores the powers of two that the operands have.

// The bits of an element, and whether it is one of MXFP8.
CUTLASS_HOST_DEVICE constexpr int bits_of(Element element) {
  return element == Element::kE2m1 ? 4 : element == Element::kE4m3 || element == Element::kE5m2 ? 8 : 16;
}
CUTLASS_HOST_DEVICE constexpr int exponent_of(Element element) {
  return element == Element::kE2m1   ? kMx ? -3 : kUsesBf16 ? -7 : -14
         : element == Element::kE4m3 ? 3
         : element == Element::kE5m2 ? 10
                                     : 0;
}
CUTLASS_HOST_DEVICE constexpr float power_of_two(int exponent) {
  return exponent == 0 ? 1.0f : exponent > 0 ? 2.0f * power_of_two(exponent - 1) : 0.5f * power_of_two(exponent + 1);
}
constexpr int kBitsA = bits_of(kElementA), kBitsB = bits_of(kElementB);
constexpr bool kHasScalesA = kBitsA < 16;
// The bf16 numbers whose sum is an element of A. f16 has 11 significant bits, bf16 has 8, and fp16 does not hold MX scales.
// So f16 beside MX scales is its upper bits and the rest (term_of), and each is multiplied by B.
constexpr int kTermsA = kElementA == Element::kF16 && kMx ? 2 : 1;
// True if the tiled kernel loads A as it is. It then decodes B in the order of memory, not in that of decode(codes, scale),
// which takes longer: with groups, A is small beside B.
constexpr bool kDirectA = kBitsA == 16 && kTermsA == 1 && !kGrouped;
static_assert(kBitsB <= 8 && (kMx || kBitsB == 4), "a pair of element types without kernels");
constexpr float kFactor = power_of_two(-exponent_of(kElementA) - exponent_of(kElementB));
// A code alone is v · 2^-6 in e4m3. This factor scales products down to those of fp16, so that kFactor applies to both.
constexpr float kE4m3Factor = 1.0f / 65536.0f;
constexpr int kScaleVector = kMx ? 32 : 16;
// An atom: 4 scales along K of each of 128 rows, 512 bytes.
constexpr int kAtomBytes = 512, kAtomK = 4 * kScaleVector;
// TMA loads scales in rows of 128 bytes, which arrive sooner than a bulk copy of contiguous bytes.
constexpr int kScaleRowBytes = 128, kAtomRows = kAtomBytes / kScaleRowBytes;
// K blocks. Any order of K is correct if both operands share it. Thread t of a quad holds four words of eight codes of
// a row of a block. Word w holds the thread's operands of K steps 2 w and 2 w + 1, of 16 each.
//
// B of 4 bits: the words are codes 32 t to 32 t + 31, 16 bytes. B of 8 bits: a block is two parts of 64 codes, of which
// the thread holds codes 16 t to 16 t + 15, 16 bytes each.
constexpr int kBlockK = 128, kBlockBytes = kBlockK * kBitsB / 8, kAtomsPerBlock = kBlockK / kAtomK;
constexpr int kBlockBytesA = kBlockK * kBitsA / 8;
constexpr int kPartBytes = 64, kPartsB = kBlockBytes / kPartBytes, kPartWords = 4 / kPartsB;
// A thread's four words of a block of A, of kWordsA registers each, are kRunsA runs in memory. A thread loads a run of
// kRunRegisters at a time: 16 bytes, or 8 if B has parts and A is FP4.
constexpr int kWordsA = kBitsA / 4, kRunsA = kBitsA == 4 ? kPartsB : kBitsA / 4, kRunRegisters = 4 * kWordsA / kRunsA;
constexpr int kRunBytes = 4 * kRunRegisters;
// Bytes of a row of A, by those of a row of B.
CUTLASS_HOST_DEVICE constexpr unsigned row_bytes_of_a(unsigned of_b) {
  return kBitsA < kBitsB ? of_b / (kBitsB / kBitsA) : of_b * (kBitsA / kBitsB);
}

// Returns a thread's first element of a word of a block, and the index of the MX scale of the word in its block.
CUTLASS_HOST_DEVICE constexpr int element_of(int t, int word) {
  return kPartsB == 2 ? word / 2 * 64 + t * 16 + word % 2 * 8 : t * 32 + word * 8;
}
CUTLASS_HOST_DEVICE constexpr int mx_scale_of(int t, int word) { return kPartsB == 2 ? word / 2 * 2 + t / 2 : t; }
// Returns the byte of a block at which run i of a thread's words of A begins.
CUTLASS_HOST_DEVICE constexpr int run_of(int t, int i) {
  return element_of(t, i * 4 / kRunsA) * kBitsA / 8;
}

#ifndef FOURFOLD_HOST

CUTLASS_DEVICE uint32_t word_of(uint4 const &words, int word) {
  return word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w;
}
CUTLASS_DEVICE uint32_t word_of(uint2 const &words, int word) { return word == 0 ? words.x : words.y; }

// The registers of a run of A.
template <int kRegisters>
struct RunOf {
  using Type = uint4;
};
template <>
struct RunOf<2> {
  using Type = uint2;
};
using RunA = RunOf<kRunRegisters>::Type;

// Eight decoded codes as fragment registers: for each of two K steps, a pair of low and a pair of high columns.
struct Decoded {
  uint32_t low[2], high[2];
};

// Converts two e4m3 numbers to fp16, exactly.
CUTLASS_DEVICE uint32_t e4m3_to_halves(uint32_t bytes) {
  uint32_t result;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(static_cast<uint16_t>(bytes)));
  return result;
}

CUTLASS_DEVICE float2 wide(uint32_t halves) { return __half22float2(reinterpret_cast<__half2 const &>(halves)); }
CUTLASS_DEVICE uint32_t to_bf16(float low, float high) {
  __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<uint32_t const &>(pair);
}

// Converts two ue4m3 scales to fp16, or to bf16 times 2^119, exactly. Bit 7 is ignored, and 0x7F is NaN. If a
// multiplication follows, it takes the absolute value of its operand without another instruction.
CUTLASS_DEVICE uint32_t two_scales(uint32_t bytes) {
  uint32_t const signed_scales = e4m3_to_halves(bytes);
  __half2 const magnitudes = __habs2(reinterpret_cast<__half2 const &>(signed_scales));
  uint32_t const result = reinterpret_cast<uint32_t const &>(magnitudes);
  if constexpr (kUsesBf16) {
    constexpr float kScaleFactor = power_of_two(119);
    float2 const both = wide(result);
    return to_bf16(both.x * kScaleFactor, both.y * kScaleFactor);
  }
  return result;
}

// Returns 2^(s - 130) as bf16 in both halves: a subnormal below s = 4, and NaN for 255.
CUTLASS_DEVICE uint32_t mx_scale(uint32_t byte) {
  uint32_t const normal = (byte - 3) << 7, subnormal = 8u << (byte & 3);
  return (byte == 255 ? 0x7FFFu : byte < 4 ? subnormal : normal) * 0x10001u;
}

// Returns 2^(s - 127) times the power of two of a type of MXFP8, as f32. If f32 has no such number, returns NaN for
// codes with a nonzero element, and 0 for others: padding of scales has any finite value. NaN for 255.
template <Element kElement, class HasNonzero>
CUTLASS_DEVICE uint32_t mxfp8_scale(uint32_t byte, HasNonzero const &has_nonzero) {
  constexpr uint32_t kExponent = exponent_of(kElement);
  uint32_t const exponent = byte + kExponent;
  if (exponent > 254) {
    keep_branch();
    return byte == 255 || has_nonzero() ? 0x7FFFFFFFu : 0;
  }
  return exponent << 23;
}

// Returns the scale of a word in both halves. For NVFP4, `scales` has those of the thread's two groups, of two words
// each. For MX, a thread has one group, whose scale is already in both halves.
CUTLASS_DEVICE uint32_t scale_of_word(uint32_t scales, int word) {
  if constexpr (kMx) {
    return scales;
  }
  // The multiplication broadcasts either half itself.
  if constexpr (kUsesBf16) {
    __nv_bfloat162 const both = reinterpret_cast<__nv_bfloat162 const &>(scales);
    __nv_bfloat162 const one = word < 2 ? __low2bfloat162(both) : __high2bfloat162(both);
    return reinterpret_cast<uint32_t const &>(one);
  }
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

// Decodes eight FP4 codes and multiplies them by a scale, which is in both halves of `scale`.
CUTLASS_DEVICE Decoded decode(uint32_t codes, uint32_t scale) {
  Decoded result;
  if constexpr (kUsesBf16) {
    // With the sign in bit 15 and the magnitude in bits 8 to 6, a code is v · 2^-126 in bf16. 0x7E80 is 2^126. A scale
    // of NVFP4 has most of this factor. One multiplication shifts four bits to both places, which do not overlap. It
    // uses another pipe than logical instructions and shifts, of which there are more.
    auto const value = [&](uint32_t pair, uint32_t shifts) {
      uint32_t const bits = pair * shifts & 0x81C081C0u;
      return multiply_pairs<__nv_bfloat162>(kMx ? multiply_pairs<__nv_bfloat162>(bits, 0x7E807E80u) : bits, scale);
    };
    uint32_t const upper = codes >> 8;
    result.low[0] = value(codes & 0x000F000Fu, 1u << 6 | 1u << 12);
    result.high[0] = value(codes & 0x00F000F0u, 1u << 2 | 1u << 8);
    result.low[1] = value(upper & 0x000F000Fu, 1u << 6 | 1u << 12);
    result.high[1] = value(upper & 0x00F000F0u, 1u << 2 | 1u << 8);
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

// Decodes the two adjacent FP4 codes of a byte, and multiplies them by a scale, which is in both halves of `scale`.
// `select` is the selector of __byte_perm that takes the byte from `codes`.
CUTLASS_DEVICE uint32_t decode_adjacent(uint32_t codes, uint32_t select, uint32_t scale) {
  // Multiplications put both codes in their halves: the factors' bits are far enough apart. The results are those of
  // decode(codes, scale).
  constexpr uint32_t kShift = kUsesBf16 ? 6 : 9, kMagnitudes = 0x00070007u << kShift;
  uint32_t const byte = __byte_perm(codes, 0, select);
  uint32_t const bits =
      (byte * (1u << kShift | 1u << (kShift + 12)) & kMagnitudes) | (byte * (1u << 12 | 1u << 24) & 0x80008000u);
  if constexpr (kUsesBf16) {
    return multiply_pairs<__nv_bfloat162>(kMx ? multiply_pairs<__nv_bfloat162>(bits, 0x7E807E80u) : bits, scale);
  } else {
    return multiply_pairs<__half2>(bits, scale);
  }
}

// Decodes two FP8 codes and multiplies them by a scale of mxfp8_scale. f32 holds codes, scales and products exactly,
// NaN and infinity included.
template <Element kElement>
CUTLASS_DEVICE uint32_t decode_fp8_pair(uint32_t codes, float scale) {
  float2 const both = wide(kElement == Element::kE4m3 ? e4m3_to_halves(codes) : __byte_perm(codes, 0, 0x1404));
  return to_bf16(both.x * scale, both.y * scale);
}

// Decodes the two adjacent FP8 codes of eight that `select` takes from them, a selector of __byte_perm.
template <Element kElement>
CUTLASS_DEVICE uint32_t decode_adjacent_fp8(uint32_t first, uint32_t second, uint32_t select, uint32_t scale) {
  return decode_fp8_pair<kElement>(__byte_perm(first, second, select), __uint_as_float(scale));
}

// Decodes eight FP8 codes. If the other operand is FP4, elements i and i + 4 form a pair, as decode(codes, scale) has
// them. Otherwise adjacent elements do.
template <Element kElement>
CUTLASS_DEVICE Decoded decode_fp8(uint32_t first, uint32_t second, uint32_t scale) {
  if constexpr (kBitsB == 4) {
    uint32_t const upper = __byte_perm(first, second, 0x7362);
    first = __byte_perm(first, second, 0x5140);
    second = upper;
  }
  float const factor = __uint_as_float(scale);
  auto const pair = [&](uint32_t codes) { return decode_fp8_pair<kElement>(codes, factor); };
  return {{pair(first), pair(second)}, {pair(upper_half(first)), pair(upper_half(second))}};
}

// Arranges eight elements of 16 bits, two per word, in the order of decode(codes, scale) or of decode_fp8.
CUTLASS_DEVICE Decoded arrange_words(uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
  if constexpr (kBitsB == 8) {
    return {{first, third}, {second, fourth}};
  }
  // Elements i and i + 4 if operands are bf16, and i and i + 2 of each half if they are fp16.
  uint32_t const near = kUsesBf16 ? third : second, far = kUsesBf16 ? second : third;
  return {{__byte_perm(first, near, 0x5410), __byte_perm(far, fourth, 0x5410)},
          {__byte_perm(first, near, 0x7632), __byte_perm(far, fourth, 0x7632)}};
}

// Returns a term of two f16 elements, as bf16: the upper eight significant bits, or the other three. The second term of
// infinity is 0, that of NaN is NaN: bits that the first term lacks may tell NaN from infinity.
template <int kTerm>
CUTLASS_DEVICE uint32_t term_of(uint32_t halves) {
  auto const term = [](float x) {
    uint32_t const bits = __float_as_uint(x);
    float const rest = x - __uint_as_float(bits & 0xFFFF0000u);
    return kTerm == 0 ? bits : (bits & 0x7FFFFFFFu) == 0x7F800000u ? 0 : __float_as_uint(rest);
  };
  float2 const both = wide(halves);
  return __byte_perm(term(both.x), term(both.y), 0x7632);
}

// Decodes a word of A: eight codes or elements, and of these a term. `scale` is ignored if A has no scales.
template <int kTerm>
CUTLASS_DEVICE Decoded decode_a_word(uint32_t const (&word)[kWordsA], [[maybe_unused]] uint32_t scale) {
  if constexpr (kBitsA == 4 && kBitsB == 8) {
    // Adjacent elements form a pair, as decode_fp8 has them.
    auto const pair = [&](int byte) { return decode_adjacent(word[0], 0x4440 + byte, scale); };
    return {{pair(0), pair(2)}, {pair(1), pair(3)}};
  } else if constexpr (kBitsA == 4) {
    return decode(word[0], scale);
  } else if constexpr (kBitsA == 8) {
    return decode_fp8<kElementA>(word[0], word[1], scale);
  } else {
    Decoded const all = arrange_words(word[0], word[1], word[2], word[3]);
    if constexpr (kTermsA == 1) {
      return all;
    } else {
      return {{term_of<kTerm>(all.low[0]), term_of<kTerm>(all.low[1])},
              {term_of<kTerm>(all.high[0]), term_of<kTerm>(all.high[1])}};
    }
  }
}

// Decodes a word of a thread's part of B.
CUTLASS_DEVICE Decoded decode_b_word(uint4 const &codes, int word, uint32_t scale) {
  if constexpr (kBitsB == 8) {
    return decode_fp8<kElementB>(word_of(codes, 2 * word), word_of(codes, 2 * word + 1), scale);
  } else {
    return decode(word_of(codes, word), scale);
  }
}

// Returns the factor for scale_of_word of an MX scale of A, or those of two ue4m3 scales. `word` is what it multiplies.
CUTLASS_DEVICE uint32_t scales_of_a(uint32_t scales, [[maybe_unused]] uint32_t const (&word)[kWordsA]) {
  if constexpr (!kMx) {
    return two_scales(scales);
  } else if constexpr (kBitsA == 8) {
    return mxfp8_scale<kElementA>(scales & 0xFF, [&] { return ((word[0] | word[1]) & 0x7F7F7F7F) != 0; });
  } else {
    return mx_scale(scales & 0xFF);
  }
}
// Returns whether FP8 codes have a nonzero element.
CUTLASS_DEVICE bool has_nonzero_fp8(uint4 const &codes) {
  return ((codes.x | codes.y | codes.z | codes.w) & 0x7F7F7F7F) != 0;
}
// The same for B. `has_nonzero` returns whether the codes that a scale multiplies have a nonzero element.
template <class HasNonzero>
CUTLASS_DEVICE uint32_t scales_of_b(uint32_t scales, [[maybe_unused]] HasNonzero const &has_nonzero) {
  if constexpr (!kMx) {
    return two_scales(scales);
  } else if constexpr (kBitsB == 8) {
    return mxfp8_scale<kElementB>(scales, has_nonzero);
  } else {
    return mx_scale(scales);
  }
}
#endif
