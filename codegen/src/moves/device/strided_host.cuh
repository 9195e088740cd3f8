// One axis: its extent, and the bytes between two indices in the operand and in the result.
struct Axis {
  uint64_t extent, from, to;
};

inline Axes axes_of(Axis const *axes, int count) {
  Axes result = {};
  result.count = count > 0 ? count : 1;
  for (int axis = 0; axis < kAxes; ++axis) {
    result.extents[axis] = divisor_of(axis < count ? axes[axis].extent : 1);
    result.from[axis] = axis < count ? axes[axis].from : 0;
    result.to[axis] = axis < count ? axes[axis].to : 0;
  }
  return result;
}

// Joins axes that move together with these extents, innermost first. Returns their number.
inline int join_axes(Problem const &problem, Axis *axes) {
  int64_t const extents[] = { {%- for axis in range(axes) %}problem.d{{ axes - 1 - axis }}{{ "" if loop.last else ", " }}{% endfor %}};
  int64_t const strides[] = { {%- for axis in range(axes) %}problem.s{{ axes - 1 - axis }}{{ "" if loop.last else ", " }}{% endfor %}};
  int count = 0;
  uint64_t to = kUnit;
  for (int axis = 0; axis < kAxes; ++axis) {
    uint64_t const extent = extents[axis], from = strides[axis] * kUnit;
    if (extent != 1) {
      if (count > 0 && from == axes[count - 1].extent * axes[count - 1].from) {
        axes[count - 1].extent *= extent;
      } else {
        axes[count++] = {extent, from, to};
      }
    }
    to *= extent;
  }
  return count;
}

// A tile is transposed if both of its extents have at least this many bytes.
constexpr uint64_t kLeastTile = 32;
// Fewer tiles than this are too few to hide the latency of memory, and become twice as many: four for each SM of an H100.
constexpr uint64_t kFewTiles = 528;

inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.from = static_cast<uint8_t const *>(p.operands[0]) + (problem.o0 + problem.o1 + problem.o2) * kUnit;
  result.to = static_cast<uint8_t *>(p.outputs[0]);
  Axis axes[kAxes] = {};
  int count = join_axes(problem, axes);
  if (count == 0) {
    axes[count++] = {1, kUnit, kUnit};
  }
  Alignment alignment;
  alignment.add(result.to);
  int contiguous = 1;
  while (contiguous < count && axes[contiguous].from != kUnit) {
    ++contiguous;
  }
  Axis const last = axes[0];
  bool const is_transposed = contiguous < count && last.from > kUnit && last.extent * kUnit >= kLeastTile &&
                             axes[contiguous].extent * kUnit >= kLeastTile;
  if (is_transposed) {
    Axis const columns = axes[contiguous];
    result.rows = last.extent;
    result.columns = columns.extent;
    result.row_stride = last.from;
    result.column_stride = columns.to;
    alignment.add(result.from);
    alignment.add(last.extent * kUnit);
    alignment.add(columns.extent * kUnit);
    int others = 0;
    uint64_t batches = 1;
    for (int axis = 0; axis < count; ++axis) {
      alignment.add(axis == contiguous ? 0 : axes[axis].from);
      alignment.add(axis == 0 ? 0 : axes[axis].to);
      if (axis != 0 && axis != contiguous) {
        batches *= axes[axis].extent;
        axes[others++] = axes[axis];
      }
    }
    result.is_wide = alignment.bytes() == 16;
    uint64_t const column_tiles = (result.columns + kTileColumns - 1) / kTileColumns;
    uint64_t row_tiles = (result.rows + kTileRows - 1) / kTileRows;
    if (result.is_wide && batches * row_tiles * column_tiles < kFewTiles) {
      result.is_small = true;
      row_tiles = (result.rows + kSmallRows - 1) / kSmallRows;
    }
    // At most one of five tiles is empty.
    while (result.band_shift < 3 && (uint64_t{8} << result.band_shift) <= row_tiles) {
      ++result.band_shift;
    }
    uint64_t const bands = (row_tiles + (uint64_t{1} << result.band_shift) - 1) >> result.band_shift;
    result.bands = divisor_of(bands);
    result.column_tiles = divisor_of(column_tiles);
    result.axes = axes_of(axes, others);
    result.ctas = (batches * bands * column_tiles) << result.band_shift;
    return result;
  }
  alignment.add(last.extent * kUnit);
  if (last.from == kUnit) {
    alignment.add(result.from);
    for (int axis = 1; axis < count; ++axis) {
      alignment.add(axes[axis].from);
    }
  }
  result.packet = alignment.bytes();
  result.unit_stride = last.from;
  uint64_t const units = result.packet / kUnit;
  axes[0] = {last.extent / units, last.from * units, 0};
  result.packets = 1;
  for (int axis = 0; axis < count; ++axis) {
    result.packets *= axes[axis].extent;
  }
  result.axes = axes_of(axes, count);
  result.ctas = ctas_of(result.packets);
  return result;
}
