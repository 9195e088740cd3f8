struct Parameters {
  int32_t const *ids;
  int32_t *positions, *rows, *ends;
  uint64_t count, groups;
  // Ids of a row.
  Divisor columns;
  // One CTA for each group.
  uint64_t ctas;
};

#ifndef FOURFOLD_HOST
// The group of an id. An id outside of the groups is clamped to them.
__device__ __forceinline__ uint64_t group_of(Parameters const &p, uint64_t position) {
  int32_t const id = p.ids[position];
  uint64_t const group = id > 0 ? static_cast<uint64_t>(id) : 0;
  return group < p.groups ? group : p.groups - 1;
}

// The sum over all threads. Each thread has the result.
__device__ __forceinline__ uint32_t sum_of_threads(uint32_t value, uint32_t *sums) {
  uint32_t const sum = __reduce_add_sync(0xFFFFFFFFu, value);
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  uint32_t result = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    result += sums[warp];
  }
  return result;
}

__device__ __forceinline__ void move(Parameters const &p) {
  __shared__ uint32_t sums[2][kThreads / 32];
  __shared__ uint32_t masks[2][kWords];
  wait_for_grids();
  uint64_t const group = blockIdx.x;
  uint32_t before = 0, own = 0;
  for (uint64_t position = threadIdx.x; position < p.count; position += kThreads) {
    uint64_t const other = group_of(p, position);
    before += other < group ? 1 : 0;
    own += other == group ? 1 : 0;
  }
  uint32_t place = sum_of_threads(before, sums[0]);
  uint32_t const end = place + sum_of_threads(own, sums[1]);
  if (threadIdx.x == 0) {
    p.ends[group] = static_cast<int32_t>(end);
  }
  int parity = 0;
  for (uint64_t first = 0; first < p.count && place < end; first += kThreads * kTurns, parity ^= 1) {
    bool is_own[kTurns];
    set_masks(masks[parity], [&](int turn) {
      uint64_t const position = first + turn * kThreads + threadIdx.x;
      return is_own[turn] = position < p.count && group_of(p, position) == group;
    });
    uint32_t const own_warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      // Positions of warps before this one come first, then those of lanes before this one.
      uint32_t at = place;
      for (uint32_t warp = 0; warp < kThreads / 32; ++warp) {
        uint32_t const mask = masks[parity][turn * (kThreads / 32) + warp];
        at += __popc(warp < own_warp ? mask : warp == own_warp ? mask & ((1u << lane) - 1) : 0u);
        place += __popc(mask);
      }
      if (is_own[turn]) {
        uint64_t const position = first + turn * kThreads + threadIdx.x;
        uint64_t row = position;
        p.positions[at] = static_cast<int32_t>(position);
        p.rows[at] = static_cast<int32_t>(divide(row, p.columns));
      }
    }
  }
}
#endif
