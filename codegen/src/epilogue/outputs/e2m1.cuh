// The e2m1 codes of eight values with few instructions, where no instruction converts to e2m1. Estimates decide all codes
// but those near a tie, which are computed exactly.
#ifndef FOURFOLD_HOST
// Bytes 3 of eight words: those of even words in `even`, of odd words in `odd`.
__device__ __forceinline__ void high_bytes(uint32_t const (&w)[8], uint32_t &even, uint32_t &odd) {
  even = __byte_perm(__byte_perm(w[0], w[2], 0x0073), __byte_perm(w[4], w[6], 0x0073), 0x5410);
  odd = __byte_perm(__byte_perm(w[1], w[3], 0x0073), __byte_perm(w[5], w[7], 0x0073), 0x5410);
}

// Values from a position on.
struct FloatValues {
  float const *from;
  __device__ __forceinline__ float at(int i) const { return from[i]; }
  __device__ __forceinline__ FloatValues after(int count) const { return {from + count}; }
};

// The signs of eight values, in the leading bits of bytes: those at even positions, and those at odd ones.
__device__ __forceinline__ void signs_of(FloatValues const &values, uint32_t &even, uint32_t &odd) {
  uint32_t signs[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    signs[i] = bits_of(values.at(i));
  }
  high_bytes(signs, even, odd);
}

// A code with 24 more bits of the quotient below it, rounded up by half a unit and 2^-16 of one.
//
// Numbers below 2^-126 are evenly spaced, as e2m1's are below 1, so bits 22 to 24 of the product are the code, rounded
// down. They are moved to bits 24 to 26, and half a unit is added. The product must be an fma: ptxas 13.0 to 13.5
// takes a product of floats whose bits are shifted to the left for one of integers, (x * y) << 2 for x * (y << 2).
__device__ __forceinline__ uint32_t long_code(float value, float factor) { return (bits_of(__fmaf_rn(value, factor, 0.0f)) << 2) + 0x00800100u; }

// The codes of eight values times `factor`, which is 2^-126 / step. Returns two 16-bit numbers, of which one is below 2
// if a product is within 2^-16 units of a tie between codes.
template <class Values>
__device__ __forceinline__ uint32_t nvfp4_codes(Values const &values, float factor, uint32_t &codes) {
  uint32_t magnitudes[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    magnitudes[i] = long_code(values.at(i), factor);
  }
  uint32_t const near = __vminu2(__vminu2(__byte_perm(magnitudes[0], magnitudes[1], 0x6521), __byte_perm(magnitudes[2], magnitudes[3], 0x6521)),
                                 __vminu2(__byte_perm(magnitudes[4], magnitudes[5], 0x6521), __byte_perm(magnitudes[6], magnitudes[7], 0x6521)));
  uint32_t even, odd, even_signs, odd_signs;
  high_bytes(magnitudes, even, odd);
  signs_of(values, even_signs, odd_signs);
  codes = ((even | odd << 4) & 0x77777777u) | (even_signs >> 4 & 0x08080808u) | (odd_signs & 0x80808080u);
  return near;
}

// Returns whether estimates decide: `near` comes from `nvfp4_codes`.
__device__ __forceinline__ bool is_far(uint32_t near) { return (near & 0xFFFFu) >= 2u && near >= 0x20000u; }

// Computes those codes exactly that are too near a tie. With a scale of the tensor such as amax / 2688, one row of bf16
// values in few has one, so this takes them one by one.
template <class Blocks, class Values>
__device__ __forceinline__ uint32_t settle(Values const &values, float factor, uint32_t codes, typename Blocks::Step const &step) {
  uint32_t near = 0u;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    near |= (long_code(values.at(i), factor) >> 8 & 0xFFFFu) < 2u ? 1u << i : 0u;
  }
  // Most often there is one. It is selected, since an index that is not constant would put the values into memory.
#pragma unroll 1
  while (near != 0u) {
    uint32_t const one = near & (0u - near);
    float value = 0.0f;
    uint32_t shift = 0u;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      value = one == 1u << i ? values.at(i) : value;
      shift = one == 1u << i ? 4 * i : shift;
    }
    codes = (codes & ~(0xFu << shift)) | (Blocks::codes(value, value, step) & 0xFu) << shift;
    near ^= one;
  }
  return codes;
}

// Returns whether the codes of values up to `amax`, of which 1 / `factor` is the step, may be estimated: none saturates,
// and the factor has enough digits. NaN is unusual.
__device__ __forceinline__ bool is_usual(uint32_t amax, float factor) { return factor >= 0x1p-6f && float_of(amax) * factor < 6.99f; }
#endif
