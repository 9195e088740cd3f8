constexpr int kUnit = {{ unit }}, kAxes = {{ axes }};
// A tile: rows along the result's last axis, and columns of 128 bytes along the operand's last axis. Small tiles have
// half as many rows, but at least 128 bytes of them.
constexpr int kTileRows = 128, kTileColumns = 128 / kUnit, kUnits = 16 / kUnit, kSmallRows = kUnit == 1 ? 128 : 64;
// Bytes between two rows of a tile in shared memory: odd in words where single units move.
constexpr int kWidePitch = 128, kNarrowPitch = 132;

// Extents and strides of axes, innermost first. Strides are in bytes.
struct Axes {
  int32_t count;
  Divisor extents[kAxes];
  uint64_t from[kAxes], to[kAxes];
};

struct Parameters {
  uint8_t const *from;
  uint8_t *to;
  // The axes of the result in packets, or those besides the tile's.
  Axes axes;
  // Bytes of a packet, 0 if tiles are transposed; the number of packets; bytes between two units of a packet.
  uint32_t packet;
  uint64_t packets, unit_stride;
  // The tile: extents, tiles along them, bytes between two rows of the operand and between two columns of the result.
  uint64_t rows, columns, row_stride, column_stride;
  Divisor bands, column_tiles;
  // A band is 2^band_shift tiles along the rows. CTAs take the tiles of a band before those of the next column, so that
  // CTAs that run at once read and write neighbouring lines.
  uint32_t band_shift;
  // True if 16 bytes of a row, and of a column, are inside and aligned, and if tiles are small.
  bool is_wide, is_small;
  uint64_t ctas;
};

// Separates a number into indices; returns the offset in the operand, and adds that in the result to `to`.
FOURFOLD_BOTH inline uint64_t offset_of(Axes const &axes, uint64_t number, uint64_t &to) {
  uint64_t from = 0;
  for (int axis = 0; axis < kAxes; ++axis) {
    if (axis + 1 < axes.count) {
      uint64_t const quotient = divide(number, axes.extents[axis]);
      from += number * axes.from[axis];
      to += number * axes.to[axis];
      number = quotient;
    } else if (axis + 1 == axes.count) {
      from += number * axes.from[axis];
      to += number * axes.to[axis];
    }
  }
  return from;
}

#ifndef FOURFOLD_HOST
template <int kBytes>
union Gathered {
  Packet<kBytes> packet;
  Packet<kUnit> units[kBytes / kUnit < 1 ? 1 : kBytes / kUnit];
};

template <int kBytes>
__device__ __forceinline__ void move_packets(Parameters const &p) {
  if (p.unit_stride == kUnit) {
    write_packets<kBytes>(p.packets, p.to, [&](uint64_t number, Packet<kBytes> &packet) {
      uint64_t to = 0;
      packet = read<kBytes>(p.from + offset_of(p.axes, number, to));
      return true;
    });
  } else {
    write_packets<kBytes>(p.packets, p.to, [&](uint64_t number, Packet<kBytes> &packet) {
      uint64_t to = 0;
      uint8_t const *from = p.from + offset_of(p.axes, number, to);
      Gathered<kBytes> gathered;
#pragma unroll
      for (int unit = 0; unit < kBytes / kUnit; ++unit) {
        gathered.units[unit] = read<kUnit>(from + unit * p.unit_stride);
      }
      packet = gathered.packet;
      return true;
    });
  }
}

// Transposes one tile. Chunks of 16 bytes of a row are permuted by the row's group of kUnits rows, so that neither
// writes of chunks nor reads of columns conflict.
template <int kRows>
__device__ __forceinline__ void move_wide_tile(uint8_t const *from, uint8_t *to, uint64_t rows, uint64_t columns,
                                               Parameters const &p, uint8_t *shared) {
  int const thread = static_cast<int>(threadIdx.x);
  constexpr int kChunks = kRows * kWidePitch / 16 / kThreads;
  Packet<16> held[kChunks] = {};
#pragma unroll
  for (int turn = 0; turn < kChunks; ++turn) {
    int const at = turn * kThreads + thread, row = at / 8, chunk = at % 8;
    if (row < rows && chunk * kUnits < columns) {
      held[turn] = read<16>(from + row * p.row_stride + chunk * 16);
    }
  }
#pragma unroll
  for (int turn = 0; turn < kChunks; ++turn) {
    int const at = turn * kThreads + thread, row = at / 8, chunk = at % 8;
    write<16>(shared + row * kWidePitch + (chunk ^ row / kUnits % 8) * 16, held[turn]);
  }
  __syncthreads();
#pragma unroll
  for (int turn = 0; turn < kChunks; ++turn) {
    int const at = turn * kThreads + thread, group = at % 8;
    int const column = at / 8 % kTileColumns, row = (at / 8 / kTileColumns * 8 + group) * kUnits;
    if (column < columns && row < rows) {
      Gathered<16> gathered;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        int const at_column = (column / kUnits ^ group) * 16 + column % kUnits * kUnit;
        gathered.units[unit] = read<kUnit>(shared + (row + unit) * kWidePitch + at_column);
      }
      write<16>(to + column * p.column_stride + row * kUnit, gathered.packet);
    }
  }
}

// Transposes one tile of any extents and alignment, unit by unit.
__device__ __forceinline__ void move_narrow_tile(uint8_t const *from, uint8_t *to, uint64_t rows, uint64_t columns,
                                               Parameters const &p, uint8_t *shared) {
  int const thread = static_cast<int>(threadIdx.x);
  constexpr int kCount = kTileRows * kTileColumns / kThreads, kStep = kCount < 8 ? kCount : 8;
  for (int first = 0; first < kCount; first += kStep) {
    Packet<kUnit> held[kStep] = {};
#pragma unroll
    for (int turn = 0; turn < kStep; ++turn) {
      int const at = (first + turn) * kThreads + thread, row = at / kTileColumns, column = at % kTileColumns;
      if (row < rows && column < columns) {
        held[turn] = read<kUnit>(from + row * p.row_stride + column * kUnit);
      }
    }
#pragma unroll
    for (int turn = 0; turn < kStep; ++turn) {
      int const at = (first + turn) * kThreads + thread, row = at / kTileColumns, column = at % kTileColumns;
      write<kUnit>(shared + row * kNarrowPitch + column * kUnit, held[turn]);
    }
  }
  __syncthreads();
#pragma unroll 8
  for (int turn = 0; turn < kCount; ++turn) {
    int const at = turn * kThreads + thread, row = at % kTileRows, column = at / kTileRows;
    if (row < rows && column < columns) {
      Packet<kUnit> const packet = read<kUnit>(shared + row * kNarrowPitch + column * kUnit);
      write<kUnit>(to + column * p.column_stride + row * kUnit, packet);
    }
  }
}

__device__ __forceinline__ void move(Parameters const &p) {
  __shared__ alignas(16) uint8_t shared[kTileRows * kNarrowPitch];
  if (p.packet != 0) {
    wait_for_grids();
    with_packets(p.packet, [&](auto bytes) {
      if constexpr (decltype(bytes)::kValue >= kUnit) {
        move_packets<decltype(bytes)::kValue>(p);
      }
    });
    return;
  }
  uint64_t tile = blockIdx.x >> p.band_shift, to = 0;
  uint64_t band = divide(tile, p.column_tiles);
  uint64_t const number = divide(band, p.bands), column = tile * kTileColumns;
  uint64_t const row = ((band << p.band_shift) + (blockIdx.x & ((1u << p.band_shift) - 1u))) * (p.is_small ? kSmallRows : kTileRows);
  if (row >= p.rows) {
    return;
  }
  uint8_t const *const first = p.from + offset_of(p.axes, number, to) + row * p.row_stride + column * kUnit;
  uint8_t *const result = p.to + to + column * p.column_stride + row * kUnit;
  // The place of a tile is computed while the grids before this one end.
  wait_for_grids();
  if (p.is_small) {
    move_wide_tile<kSmallRows>(first, result, p.rows - row, p.columns - column, p, shared);
  } else if (p.is_wide) {
    move_wide_tile<kTileRows>(first, result, p.rows - row, p.columns - column, p, shared);
  } else {
    move_narrow_tile(first, result, p.rows - row, p.columns - column, p, shared);
  }
}
#endif
