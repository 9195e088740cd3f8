// The kind mxf8f6f4, whose operands have a byte per element: FP8 by FP8, and FP4 by FP8.
//
// 3. mma.sync ... block_scale.m16n8k32, by shuffles and f64 arithmetic. Every product is exact.
// 4. TMA that spreads 4-bit codes over bytes, by copies without gaps (`address_of_codes`).
// 5. ldmatrix ... b8x16.b4x16_p64, which reads such codes, by loads and shuffles.

namespace fourfold_emulation {

// The element in a byte of a register. A code of e2m1 lies in the middle bits: 00eemm... with its sign, 0b00seem00.
template <class Element>
CUTE_DEVICE float value_of(uint32_t byte);

template <>
CUTE_DEVICE float value_of<cutlass::float_e4m3_t>(uint32_t byte) {
  return of_e4m3(byte);
}
template <>
CUTE_DEVICE float value_of<cutlass::float_e5m2_t>(uint32_t byte) {
  return of_e5m2(byte);
}
template <>
CUTE_DEVICE float value_of<cutlass::float_e2m1_t>(uint32_t byte) {
  // Bits elsewhere are codes that were not shifted, or no codes.
  return (byte & 0xC3u) != 0 ? __int_as_float(0x7FFFFFFF) : of_e2m1(byte >> 2);
}

// Computes D = A B + C for one warp, as `block_scaled_mma` does. The instruction has one block of K.
template <class A, class B>
__device__ FOURFOLD_OUT_OF_LINE float4 byte_mma(uint4 a, uint2 b, float4 c, uint32_t sfa, uint32_t sfb) {
  constexpr uint32_t kWarp = 0xFFFFFFFFu;
  using Map = Fragments<32>;
  using Scale = Decode<cutlass::float_ue8m0_t>;
  int const lane = lane_of_thread();
  // This lane's part of D: rows m and m + 8, columns n and n + 1.
  int const m = lane / 4, n = 2 * (lane % 4);
  uint32_t const a_words[4] = {a.x, a.y, a.z, a.w};
  uint32_t const b_words[2] = {b.x, b.y};
  double sums[4] = {0, 0, 0, 0};
  CUTE_UNROLL
  for (int k = 0; k < 32; k += 4) {
    uint32_t rows[2], columns[2];
    CUTE_UNROLL
    for (int i = 0; i < 2; ++i) {
      rows[i] = __shfl_sync(kWarp, a_words[Map::register_of_a(8 * i, k)], Map::lane_of_a(m, k));
      columns[i] = __shfl_sync(kWarp, b_words[Map::register_of_b(k)], Map::lane_of_b(n + i, k));
    }
    CUTE_UNROLL
    for (int byte = 0; byte < 4; ++byte) {
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float const row = value_of<A>(rows[i / 2] >> 8 * byte & 0xFFu);
        float const column = value_of<B>(columns[i % 2] >> 8 * byte & 0xFFu);
        sums[i] += static_cast<double>(row * column);
      }
    }
  }
  float d[4] = {c.x, c.y, c.z, c.w};
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {
    uint32_t const of_row = __shfl_sync(kWarp, sfa, Map::lane_of_sfa(m + 8 * (i / 2)));
    uint32_t const of_column = __shfl_sync(kWarp, sfb, Map::lane_of_sfb(n + i % 2));
    double const scale = Scale::value(of_row & 0xFFu) * Scale::value(of_column & 0xFFu);
    d[i] = static_cast<float>(static_cast<double>(d[i]) + sums[i] * scale);
  }
  return make_float4(d[0], d[1], d[2], d[3]);
}

}  // namespace fourfold_emulation

namespace cute {

// "ldmatrix" with shape .m8n16, type .b8x16 and source format .b4x16_p64. Lane 8 i + r has the address of row r of
// matrix i, 16 codes. Each lane receives four codes of row lane / 4 of each matrix, in the low bits of four bytes.
struct SM100_SU4_DU8x16_x4_LDSM_N {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[4];

  CUTE_DEVICE static void copy([[maybe_unused]] uint128_t const &from, [[maybe_unused]] uint32_t &d0,
                               [[maybe_unused]] uint32_t &d1, [[maybe_unused]] uint32_t &d2,
                               [[maybe_unused]] uint32_t &d3) {
#if defined(__CUDA_ARCH__)
    // The pointer does not tell where the matrix begins; CUTLASS aligns these to 1,024 bytes.
    uint32_t const own = fourfold_emulation::address_of_codes(cast_smem_ptr_to_uint(&from), 0);
    int const lane = fourfold_emulation::lane_of_thread();
    auto const matrix = [&](int i) {
      uint32_t const row = __shfl_sync(0xFFFFFFFFu, own, 8 * i + lane / 4);
      uint16_t codes;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(codes) : "r"(row + 2 * (lane % 4)) : "memory");
      uint32_t const pairs = (codes | static_cast<uint32_t>(codes) << 8) & 0x00FF00FFu;
      return (pairs | pairs << 4) & 0x0F0F0F0Fu;
    };
    d0 = matrix(0);
    d1 = matrix(1);
    d2 = matrix(2);
    d3 = matrix(3);
#endif
  }
};

namespace SM120::BLOCKSCALED {

// The common base of all pairs of elements.
template <class A, class B>
struct FourfoldEmulatedBytes {
  using DRegisters = float[4];
  using ARegisters = uint32_t[4];
  using BRegisters = uint32_t[2];
  using CRegisters = float[4];
  using SFARegisters = uint8_t[1];
  using SFBRegisters = uint8_t[1];

  CUTE_HOST_DEVICE static void fma(float &d0, float &d1, float &d2, float &d3, uint32_t const &a0, uint32_t const &a1,
                                   uint32_t const &a2, uint32_t const &a3, uint32_t const &b0, uint32_t const &b1,
                                   float const &c0, float const &c1, float const &c2, float const &c3,
                                   uint8_t const &sfa, uint8_t const &sfb) {
#if defined(__CUDA_ARCH__)
    float4 const d = fourfold_emulation::byte_mma<A, B>(make_uint4(a0, a1, a2, a3), make_uint2(b0, b1),
                                                        make_float4(c0, c1, c2, c3), sfa, sfb);
    d0 = d.x;
    d1 = d.y;
    d2 = d.z;
    d3 = d.w;
#endif
  }
};

#define FOURFOLD_PAIR(A, B) \
  template <>               \
  struct SM120_16x8x32_TN_VS<A, B, float, float_ue8m0_t, 32> : FourfoldEmulatedBytes<A, B> {};
FOURFOLD_PAIR(float_e4m3_t, float_e2m1_t)
FOURFOLD_PAIR(float_e5m2_t, float_e2m1_t)
FOURFOLD_PAIR(float_e2m1_t, float_e4m3_t)
FOURFOLD_PAIR(float_e2m1_t, float_e5m2_t)
FOURFOLD_PAIR(float_e4m3_t, float_e4m3_t)
FOURFOLD_PAIR(float_e4m3_t, float_e5m2_t)
FOURFOLD_PAIR(float_e5m2_t, float_e4m3_t)
FOURFOLD_PAIR(float_e5m2_t, float_e5m2_t)
#undef FOURFOLD_PAIR

}  // namespace SM120::BLOCKSCALED

// Copies a view of 4-bit codes that TMA would spread, one swizzle atom at a time.
template <class CopyOp, class E, class GLayout, class SLayout, class CtaTiler, class ClusterSize,
          class = enable_if_t<is_same_v<remove_cv_t<E>, cutlass::detail::float_e2m1_unpacksmem_t>>, class = void>
CUTE_HOST_RTC auto make_tma_copy(CopyOp const &copy_op, Tensor<ViewEngine<subbyte_iterator<E>>, GLayout> const &gtensor,
                                 SLayout const &slayout, CtaTiler const &cta_tiler, ClusterSize const &cluster_size) {
  return make_tma_copy<uint8_t>(copy_op, gtensor, fourfold_emulation::layout_of_copies(slayout), cta_tiler, cluster_size);
}

}  // namespace cute

namespace fourfold_emulation {

using Bytes = cute::MMA_Traits<cute::SM120::BLOCKSCALED::SM120_16x8x32_TN_VS<
    cute::float_e4m3_t, cute::float_e2m1_t, float, cute::float_ue8m0_t, 32>>;

// Compares the places of codes in a swizzle atom with those that CuTe's swizzle gives to bytes.
constexpr bool codes_agree() {
  for (int m = 0; m < 8; ++m) {
    for (int k = 0; k < 128; k += 16) {
      uint32_t const moved = cute::Swizzle<3, 4, 3>::apply(128 * m + k);
      if (address_of_codes(4096 + moved, 0) != 4096u + 64 * m + k / 2) {
        return false;
      }
    }
  }
  return true;
}

static_assert(codes_agree(), "the places of spread codes are not CuTe's");
static_assert(a_agrees<Bytes, 32>(), "the fragment map of bytes of A is not CuTe's");
static_assert(b_agrees<Bytes, 32>(), "the fragment map of bytes of B is not CuTe's");
static_assert(c_agrees<Bytes, 32>(), "the fragment map of C is not CuTe's");
static_assert(scales_agree<Bytes, 32>(), "the fragment map of the scales of bytes is not CuTe's");

}  // namespace fourfold_emulation
