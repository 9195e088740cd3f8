// Maps a tile to its kernel family.
// Rows in groups have no small-M kernels: their number is data.
constexpr int kSmallM = kGrouped ? 0 : 16;
template <int kTileM, int kTileN, bool = kTileM <= kSmallM>
struct Variant : Tiled<kTileM, kTileN> {
  static constexpr int kUnitN = 0, kMaxUnits = 0, kMaxElements = 0, kConcurrentN = 0, kMaxRegsUnits = 0;
  static constexpr int kBlocks = Tiled<kTileM, kTileN>::kPhases;
};
template <int kTileM, int kTileN>
struct Variant<kTileM, kTileN, true> : SmallM<kTileM> {
  static constexpr int kSpareThreads = 0;
  // The maximum number of units of N whose sums fit if warps keep A in registers. B is FP4. TMA loads blocked scales.
  static constexpr int kMaxRegsUnits = kTileM == kRegsM && kBitsB == 4 && !kLinearSfa ? SmallMRegs::kMaxUnits : 0;
  static constexpr bool kSplitsK = false, kDecodesAhead = false;
};

#ifndef FOURFOLD_HOST
template <int kTileM, int kTileN, size_t kParametersSize, size_t kSharedSize>
__global__ void __launch_bounds__(Variant<kTileM, kTileN>::kThreads + Variant<kTileM, kTileN>::kSpareThreads,
                                  Variant<kTileM, kTileN>::kMinBlocks)
    kernel(__grid_constant__ Parameters const parameters) {
#ifdef __CUDA_ARCH__
  extern __shared__ char shared[];
  if constexpr (kTileM <= kSmallM) {
    run_small_m<kTileM>(parameters, shared);
  } else {
    run_tiled<Tiled<kTileM, kTileN>>(parameters, shared);
  }
#endif
}

template <size_t kParametersSize, size_t kSharedSize>
__global__ void __launch_bounds__(SmallMRegs::kThreads, 1) small_m_regs_kernel(__grid_constant__ Parameters const parameters) {
#ifdef __CUDA_ARCH__
  extern __shared__ char shared[];
  run_small_m_regs(parameters, shared);
#endif
}

template <size_t kParametersSize>
__global__ void __launch_bounds__(DecodeA::kThreads) decode_a_kernel(__grid_constant__ DecodeAParameters const parameters) {
#ifdef __CUDA_ARCH__
  decode_a(parameters);
#endif
}
#endif
