// Which kernel a variant is, by the rows of A and of B in its tile.
constexpr int kFewTokens = 16;
template <int kTokens, int kRows, bool = kTokens <= kFewTokens>
struct Variant : Tile<kTokens, kRows> {
  static constexpr int kUnitRows = 0, kMostUnits = 0, kMostElements = 0, kRowsAtOnce = 0, kMostHeld = 0;
  static constexpr int kBlocks = Tile<kTokens, kRows>::kPhases;
};
template <int kTokens, int kRows>
struct Variant<kTokens, kRows, true> : Few<kTokens> {
  static constexpr int kRoomThreads = 0;
  // Units of rows of B at most of which warps that hold tokens have room for the sums.
  static constexpr int kMostHeld = kTokens == kHeldTokens ? Held::kMostUnits : 0;
  static constexpr bool kHasPieces = false, kDecodesRest = false;
};

#ifndef FOURFOLD_HOST
template <int kTokens, int kRows, size_t kParametersSize, size_t kSharedSize>
__global__ void __launch_bounds__(Variant<kTokens, kRows>::kThreads + Variant<kTokens, kRows>::kRoomThreads,
                                  Variant<kTokens, kRows>::kMinBlocks)
    kernel(__grid_constant__ Parameters const parameters) {
#ifdef __CUDA_ARCH__
  extern __shared__ char shared[];
  if constexpr (kTokens <= kFewTokens) {
    compute_few<kTokens>(parameters, shared);
  } else {
    compute_tiles<Tile<kTokens, kRows>>(parameters, shared);
  }
#endif
}

template <size_t kParametersSize, size_t kSharedSize>
__global__ void __launch_bounds__(Held::kThreads, 1) held_kernel(__grid_constant__ Parameters const parameters) {
#ifdef __CUDA_ARCH__
  extern __shared__ char shared[];
  compute_held(parameters, shared);
#endif
}

template <size_t kParametersSize>
__global__ void __launch_bounds__(Tokens::kThreads) token_kernel(__grid_constant__ TokenParameters const parameters) {
#ifdef __CUDA_ARCH__
  decode_tokens(parameters);
#endif
}
#endif
