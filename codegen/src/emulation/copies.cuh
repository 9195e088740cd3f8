// Copies of 4-bit codes that TMA would spread over bytes, shared by both preludes of emulation.

#pragma once

#include "cute/tensor.hpp"

#include "cute/atom/copy_traits_sm90_tma.hpp"

namespace fourfold_emulation {

// The layout of a tile for emulated copies: as CuTe's, but each copy is one swizzle atom, and atoms are 1,024 bytes
// apart that the copy fills by half.
template <class SLayout>
CUTE_HOST_DEVICE constexpr auto layout_of_copies(SLayout const &layout) {
  auto const bytes = cute::get_nonswizzle_portion(layout);
  constexpr int kAtoms = decltype(cute::size(bytes))::value / 1024;
  static_assert(cute::is_same_v<decltype(cute::get_swizzle_portion(layout)), cute::Swizzle<3, 4, 3>>,
                "codes are spread only with the 128-byte swizzle");
  auto const apart = cute::make_layout(cute::make_shape(cute::Int<1024>{}, cute::Int<kAtoms>{}),
                                       cute::make_stride(cute::Int<1>{}, cute::Int<2048>{}));
  return cute::composition(apart, bytes);
}

template <class E>
constexpr bool kIs4Bits = cute::is_same_v<E, cutlass::float_e2m1_t> || cute::is_same_v<E, cutlass::detail::float_e2m1_unpacksmem_t>;

}  // namespace fourfold_emulation

namespace cute::detail {

// Grouped kernels write extents into descriptors, in codes. Along K, the descriptor of an emulated copy has bytes. More
// specialized than CuTe's own function.
template <class Op, class Bits, class Aux, class E, class GLayout, class Extent, size_t Rank,
          class = enable_if_t<fourfold_emulation::kIs4Bits<E>>>
CUTE_HOST_DEVICE constexpr void fill_tma_gmem_shape_stride(Copy_Traits<Op, Bits, Aux> const &,
                                                           Tensor<ViewEngine<E const *>, GLayout> const &gtensor,
                                                           cute::array<Extent, Rank> &extents,
                                                           cute::array<uint64_t, Rank> &strides) {
  fill_tma_gmem_shape_stride(gtensor, stride(typename Aux::TmaGmemBasis{}), extents, strides);
  extents[0] /= 2;
}

}  // namespace cute::detail
