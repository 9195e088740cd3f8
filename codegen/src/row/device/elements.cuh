// Elements of rows as numbers: `float` for floats, `int32_t` for i32, `bool` for i1. `low_T` decodes the low bits of a
// word, `code_T` encodes, and `round_T` does both. The host's code has the same results as the instructions.

#if defined(__CUDA_ARCH__)
#define FOURFOLD_BY_INSTRUCTION 1
#endif

FOURFOLD_HOST_DEVICE float low_bf16(uint32_t code) { return float_of(code << 16); }
FOURFOLD_HOST_DEVICE float high_bf16(uint32_t code) { return float_of(code & 0xFFFF0000u); }

FOURFOLD_HOST_DEVICE float low_f16(uint32_t code) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  float x;
  asm("{ .reg .f16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(x) : "r"(code));
  return x;
#else
  uint32_t const sign = (code & 0x8000u) << 16, magnitude = code & 0x7FFFu;
  bool const is_finite = magnitude < 0x7C00u;
  return float_of(sign | (is_finite ? bits_of(float_of(magnitude << 13) * 0x1p112f) : kInfinityBits | magnitude << 13));
#endif
}
FOURFOLD_HOST_DEVICE float high_f16(uint32_t code) { return low_f16(code >> 16); }

// Magnitudes of 8-bit and 4-bit floats, as the leading bits of an f32, have a smaller exponent by a constant.
FOURFOLD_HOST_DEVICE float low_f8E4M3FN(uint32_t code) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  uint32_t halves;
  asm("{ .reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e4m3x2 %0, p; }" : "=r"(halves) : "r"(code));
  return low_f16(halves);
#else
  uint32_t const magnitude = code & 0x7Fu;
  return float_of((code & 0x80u) << 24 | (magnitude == 0x7Fu ? kMagnitudeBits : bits_of(float_of(magnitude << 20) * 0x1p120f)));
#endif
}

FOURFOLD_HOST_DEVICE float low_f8E5M2(uint32_t code) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  uint32_t halves;
  asm("{ .reg .b16 p; cvt.u16.u32 p, %1; cvt.rn.f16x2.e5m2x2 %0, p; }" : "=r"(halves) : "r"(code));
  return low_f16(halves);
#else
  return low_f16((code & 0xFFu) << 8);
#endif
}

FOURFOLD_HOST_DEVICE float low_f4E2M1FN(uint32_t code) {
  return float_of((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f;
}

// 2^(code - 127), and NaN for 0xFF.
FOURFOLD_HOST_DEVICE float low_f8E8M0FNU(uint32_t code) {
  uint32_t const power = code & 0xFFu;
  return float_of(power == 0u ? 0x00400000u : power == 0xFFu ? kMagnitudeBits : power << 23);
}

FOURFOLD_HOST_DEVICE bool low_i1(uint32_t code) { return (code & 0xFFu) != 0u; }

FOURFOLD_HOST_DEVICE uint32_t pack_bf16(float low, float high) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  uint32_t codes[2];
  for (int i = 0; i < 2; ++i) {
    float const x = i == 0 ? low : high;
    codes[i] = x != x ? 0x7FFFu : (bits_of(x) + 0x7FFFu + (bits_of(x) >> 16 & 1u)) >> 16;
  }
  return codes[0] | codes[1] << 16;
#endif
}

FOURFOLD_HOST_DEVICE uint32_t pack_f16(float low, float high) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  uint32_t codes[2];
  for (int i = 0; i < 2; ++i) {
    float const x = i == 0 ? low : high;
    uint32_t const sign = bits_of(x) >> 16 & 0x8000u, magnitude = bits_of(x) & kMagnitudeBits;
    if (magnitude > kInfinityBits) {
      codes[i] = 0x7FFFu;
    } else if (magnitude >= 0x477FF000u) {
      codes[i] = sign | 0x7C00u;
    } else if (magnitude < 0x38800000u) {
      codes[i] = sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u);
    } else {
      codes[i] = sign | (((magnitude + 0xFFFu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10));
    }
  }
  return codes[0] | codes[1] << 16;
#endif
}

// The power of two at or below a number. Numbers below 2^-127 and infinity saturate; a negative number is NaN.
FOURFOLD_HOST_DEVICE uint32_t code_f8E8M0FNU(float x) {
  uint32_t const power = bits_of(x) >> 23 & 0xFFu;
  return x != x || x < 0.0f ? 0xFFu : power < 0xFEu ? power : 0xFEu;
}

FOURFOLD_HOST_DEVICE uint32_t pair_f8E4M3FN(float low, float high) { return encode_pair<E4m3>(low, high); }
FOURFOLD_HOST_DEVICE uint32_t pair_f8E5M2(float low, float high) { return encode_pair<E5m2>(low, high); }
FOURFOLD_HOST_DEVICE uint32_t pair_f4E2M1FN(float low, float high) { return encode_pair<E2m1>(low, high); }
FOURFOLD_HOST_DEVICE uint32_t pair_f8E8M0FNU(float low, float high) {
  return code_f8E8M0FNU(low) | code_f8E8M0FNU(high) << 8;
}
FOURFOLD_HOST_DEVICE uint32_t pair_i1(bool low, bool high) { return (low ? 1u : 0u) | (high ? 0x100u : 0u); }

FOURFOLD_HOST_DEVICE float round_bf16(float x) { return low_bf16(pack_bf16(x, x)); }
FOURFOLD_HOST_DEVICE float round_f16(float x) { return low_f16(pack_f16(x, x)); }
FOURFOLD_HOST_DEVICE float round_f8E4M3FN(float x) { return low_f8E4M3FN(pair_f8E4M3FN(x, x)); }
FOURFOLD_HOST_DEVICE float round_f8E5M2(float x) { return low_f8E5M2(pair_f8E5M2(x, x)); }
FOURFOLD_HOST_DEVICE float round_f4E2M1FN(float x) { return low_f4E2M1FN(pair_f4E2M1FN(x, x)); }
FOURFOLD_HOST_DEVICE float round_f8E8M0FNU(float x) { return low_f8E8M0FNU(code_f8E8M0FNU(x)); }

// Integers wrap around.
FOURFOLD_HOST_DEVICE int32_t add_i32(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b)); }
FOURFOLD_HOST_DEVICE int32_t sub_i32(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)); }
FOURFOLD_HOST_DEVICE int32_t mul_i32(int32_t a, int32_t b) { return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b)); }
FOURFOLD_HOST_DEVICE int32_t max_i32(int32_t a, int32_t b) { return a > b ? a : b; }
FOURFOLD_HOST_DEVICE int32_t min_i32(int32_t a, int32_t b) { return a < b ? a : b; }
FOURFOLD_HOST_DEVICE int32_t and_i32(int32_t a, int32_t b) { return a & b; }
FOURFOLD_HOST_DEVICE int32_t or_i32(int32_t a, int32_t b) { return a | b; }
// The amount is unsigned.
FOURFOLD_HOST_DEVICE int32_t shift_left_i32(int32_t a, int32_t b) {
  uint32_t const amount = static_cast<uint32_t>(b);
  return amount < 32u ? static_cast<int32_t>(static_cast<uint32_t>(a) << amount) : 0;
}
FOURFOLD_HOST_DEVICE int32_t shift_right_i32(int32_t a, int32_t b) {
  uint32_t const amount = static_cast<uint32_t>(b);
  return a >> (amount < 31u ? amount : 31u);
}

// The nearest integer, ties to even. Large numbers saturate, and NaN is 0.
FOURFOLD_HOST_DEVICE int32_t i32_of_float(float x) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  return __float2int_rn(x);
#else
  if (x != x) {
    return 0;
  }
  return x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : static_cast<int32_t>(std::nearbyint(x));
#endif
}
FOURFOLD_HOST_DEVICE int32_t i32_of_bool(bool x) { return x ? 1 : 0; }

FOURFOLD_HOST_DEVICE float float_of_i32(int32_t x) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  return __int2float_rn(x);
#else
  return static_cast<float>(x);
#endif
}
FOURFOLD_HOST_DEVICE float float_of_bool(bool x) { return x ? 1.0f : 0.0f; }

// A float that rounds to the same number of at most 16 bits as the integer. Of 25 bits or more, the low 8 become one bit
// that is set if any of them is; at least 17 bits are left.
FOURFOLD_HOST_DEVICE float narrow_of_i32(int32_t x) {
  uint32_t const magnitude = x < 0 ? 0u - static_cast<uint32_t>(x) : static_cast<uint32_t>(x);
  uint32_t const low = magnitude & 0xFFu;
  uint32_t const kept = magnitude < 0x1000000u ? magnitude : (magnitude - low) | (low != 0u ? 0x100u : 0u);
  float const result = static_cast<float>(kept);
  return x < 0 ? -result : result;
}

// Every NaN has the same bits.
FOURFOLD_HOST_DEVICE int32_t bitcast_f32_i32(float x) { return static_cast<int32_t>(x != x ? 0x7FC00000u : bits_of(x)); }
FOURFOLD_HOST_DEVICE float bitcast_i32_f32(int32_t x) {
  uint32_t const bits = static_cast<uint32_t>(x);
  return float_of((bits & kMagnitudeBits) > kInfinityBits ? 0x7FC00000u : bits);
}
FOURFOLD_HOST_DEVICE int32_t bitcast_f8E8M0FNU_i32(float x) { return static_cast<int32_t>(bits_of(x) >> 23 & 0xFFu); }
FOURFOLD_HOST_DEVICE float bitcast_i32_f8E8M0FNU(int32_t x) { return low_f8E8M0FNU(static_cast<uint32_t>(x)); }

// A number rounded to odd: toward zero, with the last bit set if it is not exact. Rounding it again to at most 22 bits
// gives what rounding the number once gives.
FOURFOLD_HOST_DEVICE float odd_of_double(double x) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  float const result = __double2float_rz(x);
#else
  float result = static_cast<float>(x);
  result = std::fabs(static_cast<double>(result)) > std::fabs(x) ? std::nextafter(result, 0.0f) : result;
#endif
  return static_cast<double>(result) == x ? result : float_of(bits_of(result) | 1u);
}

// a · b rounded to odd, for an `a` of at most 8 bits.
FOURFOLD_HOST_DEVICE float multiply_odd(float a, float b) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  return float_of(bits_of(__fmul_rz(a, b)) | (__fmul_rd(a, b) == __fmul_ru(a, b) ? 0u : 1u));
#else
  return odd_of_double(static_cast<double>(a) * b);
#endif
}

FOURFOLD_HOST_DEVICE float multiply_once(float a, float b) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// Code times scale is exact in f32, or above every f32. `nvfp4` is for a scale of type f8E4M3FN, whose products with
// codes are below 2^12; those with an f8E8M0FNU scale need the range of f64 if a third factor follows. Results for
// 16-bit types are rounded to odd.
FOURFOLD_HOST_DEVICE float dequantize(float code, float scale) { return multiply_once(code, scale); }
FOURFOLD_HOST_DEVICE float dequantize_nvfp4(float code, float scale, float global) {
  return multiply_once(multiply_once(code, scale), global);
}
FOURFOLD_HOST_DEVICE float dequantize_nvfp4_odd(float code, float scale, float global) {
  return multiply_odd(multiply_once(code, scale), global);
}
FOURFOLD_HOST_DEVICE float dequantize_mx(float code, float scale, float global) {
  return static_cast<float>(static_cast<double>(code) * static_cast<double>(scale) * static_cast<double>(global));
}
FOURFOLD_HOST_DEVICE float dequantize_mx_odd(float code, float scale, float global) {
  return odd_of_double(static_cast<double>(code) * static_cast<double>(scale) * static_cast<double>(global));
}
