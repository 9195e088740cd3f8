using Code = {{ "uint32_t" if unit == 4 else "uint16_t" }};
// The shift that puts a code into the upper bits of a word, and infinity so shifted.
constexpr uint32_t kShift = {{ 32 - 8 * unit }}, kInfinity = {{ "0x7C000000u" if from == "F16" else "0x7F800000u" }};

struct Parameters {
  Code const *from;
  Code *values;
  int32_t *indices;
  uint64_t rows, columns, taken;
  // One warp for each row.
  uint64_t ctas;
};

#ifndef FOURFOLD_HOST
// The rank of an element of a row: the greatest number first, NaN before it, and equal numbers by index. Ranks are above
// 0 and below 2^64 - 1, and no two elements have the same.
__device__ __forceinline__ uint64_t rank_of(Code code, uint64_t index) {
  uint32_t const bits = static_cast<uint32_t>(code) << kShift, magnitude = bits & 0x7FFFFFFFu;
  uint32_t key = bits > 0x7FFFFFFFu ? ~bits : bits | 0x80000000u;
  key = magnitude == 0 ? 0x80000000u : magnitude > kInfinity ? 0xFFFFFFFFu : key;
  return static_cast<uint64_t>(key) << 32 | (0x7FFFFFFFu - static_cast<uint32_t>(index));
}

__device__ __forceinline__ void move(Parameters const &p) {
  constexpr uint32_t kWarp = 0xFFFFFFFFu;
  wait_for_grids();
  uint32_t const lane = threadIdx.x % 32;
  uint64_t const row = static_cast<uint64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= p.rows) {
    return;
  }
  Code const *const from = p.from + row * p.columns;
  uint64_t previous = UINT64_MAX;
  for (uint64_t taken = 0; taken < p.taken; ++taken) {
    // The greatest rank below the previous one.
    uint64_t best = 0;
    for (uint64_t column = lane; column < p.columns; column += 32) {
      uint64_t const rank = rank_of(from[column], column);
      best = rank < previous && rank > best ? rank : best;
    }
    uint32_t const key = static_cast<uint32_t>(best >> 32), high = __reduce_max_sync(kWarp, key);
    uint32_t const low = __reduce_max_sync(kWarp, key == high ? static_cast<uint32_t>(best) : 0u);
    previous = static_cast<uint64_t>(high) << 32 | low;
    if (lane == 0) {
      uint32_t const index = 0x7FFFFFFFu - low;
      p.values[row * p.taken + taken] = from[index];
      p.indices[row * p.taken + taken] = static_cast<int32_t>(index);
    }
  }
}
#endif
