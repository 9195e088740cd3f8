// Words with one bit for each position that a CTA examines at once. Bits are in the order of positions.
constexpr int kWords = kTurns * kThreads / 32;

#ifndef FOURFOLD_HOST
// Sets the bits of the positions for whose turn `is_set` holds. All threads may read the masks afterwards. Calls that
// follow each other must set two arrays in turns.
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

