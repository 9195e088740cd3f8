// Elements of .kind::mxf8f6f4, shared by both preludes of emulation. Every value is exact in f32.

#pragma once

#include <cstdint>

namespace fourfold_emulation {

// Puts exponent and mantissa of a code where f32 has them, and corrects the bias. Subnormal codes become subnormal
// floats before that.
__device__ __forceinline__ uint32_t widened(uint32_t magnitude, uint32_t shift, float factor) {
  return __float_as_uint(__uint_as_float(magnitude << shift) * factor);
}

// 0x7F is NaN, and there is no infinity.
__device__ __forceinline__ float of_e4m3(uint32_t code) {
  uint32_t const magnitude = code & 0x7Fu;
  uint32_t const bits = magnitude == 0x7Fu ? 0x7FFFFFFFu : widened(magnitude, 20, 0x1p120f);
  return __uint_as_float(bits | (code & 0x80u) << 24);
}

// 0x7C is infinity, and codes above are NaN.
__device__ __forceinline__ float of_e5m2(uint32_t code) {
  uint32_t const magnitude = code & 0x7Fu, special = magnitude == 0x7Cu ? 0x7F800000u : 0x7FFFFFFFu;
  uint32_t const bits = magnitude >= 0x7Cu ? special : widened(magnitude, 21, 0x1p112f);
  return __uint_as_float(bits | (code & 0x80u) << 24);
}

// `code` has four bits.
__device__ __forceinline__ float of_e2m1(uint32_t code) {
  return __uint_as_float(widened(code & 7u, 22, 0x1p126f) | (code & 8u) << 28);
}

// Blackwell's TMA spreads 4-bit codes: 16 of them, 8 bytes, have 16 bytes of shared memory. Hopper's cannot leave gaps,
// so emulated copies write the 8 rows of a swizzle atom, 64 bytes each, from the begin of the atom's 1,024 bytes on.
// Returns the address of the 8 bytes that stand for the 16 bytes at an address. The 128-byte swizzle has moved these by
// bits of the address itself, while atoms begin where the matrix does, at `begin` modulo 1,024, a multiple of 128.
__device__ __forceinline__ constexpr uint32_t address_of_codes(uint32_t address, uint32_t begin) {
  uint32_t const piece = (address >> 4 & 7u) ^ (address >> 7 & 7u), within = address - begin;
  return (within & ~1023u) + begin + (within >> 7 & 7u) * 64 + piece * 8;
}

}  // namespace fourfold_emulation
