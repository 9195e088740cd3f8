// Scales are rows x blocks, row-major; those of the result are in tiles of 128 x 4.
struct Parameters {
  uint8_t const *from;
  int32_t const *ends, *scale_ends;
  uint8_t *to;
  uint64_t rows, blocks, groups;
  Divisor block_tiles;
  // True if the four scales of a row in a tile are inside the matrix, and aligned as a word.
  bool is_wide;
  // Lines of 16 scales of the result.
  uint64_t packets, ctas;
};

// The range of rows of x0 in a tile. It is empty if begin >= end.
struct Rows {
  uint64_t begin, end;
};

#ifndef FOURFOLD_HOST
// Returns the rows of the tile that begins at a row of the result. All lanes of a warp call it for the same row.
__device__ __forceinline__ Rows rows_of(Parameters const &p, uint64_t row) {
  constexpr uint32_t kWarp = 0xFFFFFFFFu;
  uint32_t const lane = threadIdx.x % 32;
  // The first row of the group among the scales, and in the result.
  int32_t begin = 0, first = 0, end = 0;
  for (uint64_t next = 0; next < p.groups; next += 32) {
    bool const is_group = next + lane < p.groups;
    int32_t const of_rows = is_group ? p.ends[next + lane] : 0, of_scales = is_group ? p.scale_ends[next + lane] : 0;
    // The row belongs to the first group whose scales end after it.
    uint32_t const after = __ballot_sync(kWarp, of_scales > static_cast<int64_t>(row));
    uint32_t const found = after == 0 ? 32 : __ffs(after) - 1;
    begin = lane < found && of_rows > begin ? of_rows : begin;
    first = lane < found && of_scales > first ? of_scales : first;
    if (after != 0) {
      end = __shfl_sync(kWarp, of_rows, found);
      break;
    }
  }
  begin = __reduce_max_sync(kWarp, begin);
  first = __reduce_max_sync(kWarp, first);
  // All earlier ends of scales are at most the row, so the difference is not negative.
  uint64_t const within = row - static_cast<uint64_t>(first), last = end > 0 ? static_cast<uint64_t>(end) : 0;
  return {static_cast<uint64_t>(begin) + within, last < p.rows ? last : p.rows};
}

__device__ __forceinline__ void move(Parameters const &p) {
  wait_for_grids();
  uint64_t known = UINT64_MAX;
  Rows rows = {};
  for (int turn = 0; turn < kTurns; ++turn) {
    uint64_t const number = (static_cast<uint64_t>(blockIdx.x) * kTurns + turn) * kThreads + threadIdx.x;
    // A tile has 32 lines, so the lanes of a warp return together.
    if (number >= p.packets) {
      return;
    }
    uint64_t block_tile = number / 32;
    uint64_t const row_tile = divide(block_tile, p.block_tiles);
    if (row_tile != known) {
      rows = rows_of(p, row_tile * 128);
      known = row_tile;
    }
    Packet<16> packet = {};
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      uint64_t const row = rows.begin + number % 32 + group * 32;
      if (row >= rows.end) {
        continue;
      }
      uint64_t const first_block = block_tile * 4, at = row * p.blocks + first_block;
      if (p.is_wide) {
        packet.values[group] = read<4>(p.from + at).value;
        continue;
      }
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        if (first_block + block < p.blocks) {
          packet.values[group] |= static_cast<uint32_t>(p.from[at + block]) << (8 * block);
        }
      }
    }
    write<16>(p.to + number * 16, packet);
  }
}
#endif
