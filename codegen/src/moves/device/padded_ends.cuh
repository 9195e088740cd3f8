struct Parameters {
  int32_t const *ends;
  int32_t *to;
  // The multiple to which groups are padded, in rows.
  Divisor multiple;
  // Groups.
  uint64_t packets, ctas;
};

// Rows rounded up to a multiple, at most 2^31 - 1.
FOURFOLD_BOTH inline uint32_t rounded_up(uint32_t rows, Divisor const &multiple) {
  uint64_t above = rows + multiple.value - 1;
  uint64_t const rounded = divide(above, multiple) * multiple.value;
  return rounded < INT_MAX ? static_cast<uint32_t>(rounded) : INT_MAX;
}

#ifndef FOURFOLD_HOST
// Inclusive scan over the lanes of a warp.
template <class Join>
__device__ __forceinline__ uint32_t scan(uint32_t value, Join const &join) {
  uint32_t const lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t distance = 1; distance < 32; distance *= 2) {
    uint32_t const other = __shfl_up_sync(0xFFFFFFFFu, value, distance);
    value = lane < distance ? value : join(other, value);
  }
  return value;
}

__device__ __forceinline__ void move(Parameters const &p) {
  wait_for_grids();
  auto const greater = [](uint32_t one, uint32_t other) { return one > other ? one : other; };
  auto const sum = [](uint32_t one, uint32_t other) { return one + other < INT_MAX ? one + other : INT_MAX; };
  uint32_t const lane = threadIdx.x % 32;
  for (int turn = 0; turn < kTurns; ++turn) {
    uint64_t const number = (static_cast<uint64_t>(blockIdx.x) * kTurns + turn) * kThreads + threadIdx.x;
    // Each warp sums all earlier groups itself. Its lanes stay together.
    uint64_t const first = number - lane;
    if (first >= p.packets) {
      return;
    }
    uint32_t before = 0, padded = 0, own = 0;
    for (uint64_t next = 0; next <= first; next += 32) {
      int32_t const stated = next + lane < p.packets ? p.ends[next + lane] : 0;
      uint32_t const end = scan(greater(stated > 0 ? static_cast<uint32_t>(stated) : 0, before), greater);
      uint32_t const previous = __shfl_up_sync(0xFFFFFFFFu, end, 1);
      own = sum(padded, scan(rounded_up(end - (lane == 0 ? before : previous), p.multiple), sum));
      before = __shfl_sync(0xFFFFFFFFu, end, 31);
      padded = __shfl_sync(0xFFFFFFFFu, own, 31);
    }
    if (number < p.packets) {
      p.to[number] = static_cast<int32_t>(own);
    }
  }
}
#endif
