struct Parameters {
  {{ from }}::Code const *from;
  int32_t const *indices;
  {{ to }}::Code *to;
  // Rows of the operand, and elements of a row.
  uint64_t rows, columns;
  // Tiles of columns of a row of the result. One CTA computes each.
  Divisor tiles;
  uint64_t ctas;
};

// Columns of a thread, kThreads apart.
constexpr int kColumns = {{ columns }};

#ifndef FOURFOLD_HOST
__device__ __forceinline__ void move(Parameters const &p) {
  __shared__ uint32_t masks[2][kWords];
  wait_for_grids();
  uint64_t tile = blockIdx.x;
  int64_t const row = static_cast<int64_t>(divide(tile, p.tiles));
  uint64_t const column = tile * kThreads * kColumns + threadIdx.x;
  // The sum of -0 and a number is that number, also if it is -0.
  float sums[kColumns];
#pragma unroll
  for (float &sum : sums) {
    sum = -0.0f;
  }
  bool is_found = false;
  int parity = 0;
  for (uint64_t first = 0; first < p.rows; first += kThreads * kTurns, parity ^= 1) {
    // An index outside of the result has no row.
    set_masks(masks[parity], [&](int turn) {
      uint64_t const position = first + turn * kThreads + threadIdx.x;
      return position < p.rows && p.indices[position] == row;
    });
    for (int word = 0; word < kWords; ++word) {
      for (uint32_t mask = masks[parity][word]; mask != 0; mask &= mask - 1) {
        {{ from }}::Code const *const from = p.from + (first + word * 32 + __ffs(mask) - 1) * p.columns;
        is_found = true;
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          if (column + i * kThreads < p.columns) {
            sums[i] = __fadd_rn(sums[i], {{ from }}::decode(from[column + i * kThreads]));
          }
        }
      }
    }
  }
  {{ to }}::Code *const to = p.to + row * p.columns;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (column + i * kThreads < p.columns) {
      to[column + i * kThreads] = {{ to }}::encode(is_found ? sums[i] : 0.0f);
    }
  }
}
#endif
