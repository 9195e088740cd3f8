// Element types: the code in memory, and its number.
struct F32 {
  using Code = uint32_t;
#ifndef FOURFOLD_HOST
  __device__ static float decode(uint32_t code) { return __uint_as_float(code); }
  __device__ static uint32_t encode(float x) { return __float_as_uint(x); }
#endif
};

struct BF16 {
  using Code = uint16_t;
#ifndef FOURFOLD_HOST
  __device__ static float decode(uint32_t code) { return __uint_as_float(code << 16); }
  // Rounds to the nearest, ties to even.
  __device__ static uint16_t encode(float x) {
    uint32_t const bits = __float_as_uint(x);
    return static_cast<uint16_t>(x != x ? 0x7FFFu : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
  }
#endif
};

struct F16 {
  using Code = uint16_t;
#ifndef FOURFOLD_HOST
  __device__ static float decode(uint32_t code) {
    uint32_t const sign = (code & 0x8000u) << 16, magnitude = code & 0x7FFFu;
    uint32_t const scaled = __float_as_uint(__fmul_rn(__uint_as_float(magnitude << 13), 0x1p112f));
    return __uint_as_float(sign | (magnitude < 0x7C00u ? scaled : 0x7F800000u | magnitude << 13));
  }
  // Rounds to the nearest, ties to even.
  __device__ static uint16_t encode(float x) {
    uint32_t const sign = __float_as_uint(x) >> 16 & 0x8000u, magnitude = __float_as_uint(x) & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
      return 0x7FFF;
    }
    if (magnitude >= 0x477FF000u) {
      return static_cast<uint16_t>(sign | 0x7C00u);
    }
    if (magnitude < 0x38800000u) {
      uint32_t const rounded = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0.5f)) - 0x3F000000u;
      return static_cast<uint16_t>(sign | rounded);
    }
    return static_cast<uint16_t>(sign | (((magnitude + 0xFFFu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10)));
  }
#endif
};

