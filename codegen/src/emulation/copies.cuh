// Copies of 4-bit codes that TMA would spread over bytes, shared by both preludes of emulation.

#pragma once

#include "cute/tensor.hpp"

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

}  // namespace fourfold_emulation
