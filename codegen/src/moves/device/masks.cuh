// Words with one bit for each position that a CTA examines at once. Bits are in the order of positions.
constexpr int kWords = kTurns * kThreads / 32;

#ifndef FOURFOLD_HOST
// Sets the bit of each position for which `is_set(turn)` is true. All threads may read the masks afterwards. Consecutive
// calls must alternate between two arrays.
template <class IsSet>
__device__ __forceinline__ void set_masks(uint32_t *masks, IsSet const &is_set) {
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    uint32_t const mask = __ballot_sync(0xFFFFFFFFu, is_set(turn));
    if (threadIdx.x % 32 == 0) {
      masks[(turn * kThreads + threadIdx.x) / 32] = mask;
    }
  }
  __syncthreads();
}
#endif

