// Which kernel a variant is, by the rows of A in its tile.
constexpr int kFewTokens = 16;
template <int kTokens>
struct Variant : cute::conditional_t<kTokens <= kFewTokens, Few<kTokens>, Tile<kTokens>> {};

#ifndef FOURFOLD_HOST
template <int kTokens, size_t kParametersSize, size_t kSharedSize>
__global__ void __launch_bounds__(Variant<kTokens>::kThreads, Variant<kTokens>::kMinBlocks)
    kernel(__grid_constant__ Parameters const parameters) {
#ifdef __CUDA_ARCH__
  extern __shared__ char shared[];
  if constexpr (kTokens <= kFewTokens) {
    compute_few<kTokens>(parameters, shared);
  } else {
    compute_tiles<kTokens>(parameters, shared);
  }
#endif
}
#endif
