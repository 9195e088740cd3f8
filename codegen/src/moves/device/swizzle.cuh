constexpr bool kIsToBlocked = {{ "true" if to_blocked else "false" }};

// Scales are rows x blocks, row-major or in tiles of 128 x 4.
struct Parameters {
  uint8_t const *from;
  uint8_t *to;
  uint64_t rows, blocks;
  Divisor row_tiles, block_tiles;
  // True if the four scales of a row in a tile are inside the matrix, and aligned as a word.
  bool is_wide;
  // Lines of 16 scales of the blocked layout.
  uint64_t packets, ctas;
};

// The first scale of a line: one of four rows, 32 apart, each with four blocks.
struct Line {
  uint64_t matrix, row, block;
};

FOURFOLD_BOTH inline Line find(Parameters const &p, uint64_t number) {
  uint64_t tile = number / 32;
  uint64_t rest = divide(tile, p.block_tiles);
  uint64_t const matrix = divide(rest, p.row_tiles);
  return {matrix, rest * 128 + number % 32, tile * 4};
}

#ifndef FOURFOLD_HOST
__device__ __forceinline__ void move(Parameters const &p) {
  wait_for_grids();
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    uint64_t const number = (static_cast<uint64_t>(blockIdx.x) * kTurns + turn) * kThreads + threadIdx.x;
    if (number >= p.packets) {
      return;
    }
    Line const line = find(p, number);
    Packet<16> packet = kIsToBlocked ? Packet<16>{} : read<16>(p.from + number * 16);
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      uint64_t const row = line.row + group * 32;
      uint64_t const at = (line.matrix * p.rows + row) * p.blocks + line.block;
      if (row >= p.rows) {
        continue;
      }
      if (p.is_wide) {
        if (kIsToBlocked) {
          packet.values[group] = read<4>(p.from + at).value;
        } else {
          write<4>(p.to + at, {packet.values[group]});
        }
        continue;
      }
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        if (line.block + block < p.blocks) {
          if (kIsToBlocked) {
            packet.values[group] |= static_cast<uint32_t>(p.from[at + block]) << (8 * block);
          } else {
            p.to[at + block] = static_cast<uint8_t>(packet.values[group] >> (8 * block));
          }
        }
      }
    }
    if (kIsToBlocked) {
      write<16>(p.to + number * 16, packet);
    }
  }
}
#endif
