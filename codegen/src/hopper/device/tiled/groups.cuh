// Groups of rows: consecutive rows of A, each group with a matrix of B of its own. Their ends are data, so the host
// knows only a bound on the number of tiles. Each CTA derives the list of tiles from the ends, and takes every
// gridDim.x-th of them. Every entry of the list is valid for any ends: an end is at least the one before it and at most
// M. Rows after the last end belong to a group without K, whose sums are 0.
//
// Shared memory has two words for each group and for the rows after the last: the number of tiles before the group, and
// its first row. A last pair has the number of all tiles, and M.
//
// If kMasked, each group has p.group_rows rows of A, and uses the first ones. Their number replaces the first row of the
// next group in the tables. Other rows have no tiles.

#ifndef FOURFOLD_HOST
// Fills the tables. One warp calls it, before the CTA's first __syncthreads.
template <class V>
CUTLASS_DEVICE void find_groups(Parameters const &p, TiledSmem<V> const &smem) {
  constexpr uint32_t kWarp = 0xFFFFFFFFu;
  constexpr int kAtOnce = 8;
  CUTLASS_PRAGMA_NO_UNROLL
  for (int first = lane(); first < p.groups; first += 32 * kAtOnce) {
    uint32_t ends[kAtOnce];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      ends[i] = first + 32 * i < p.groups ? load_ordered(p.offsets + first + 32 * i) : 0;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + 32 * i < p.groups) {
        // A negative end becomes 0.
        int const most = kMasked ? p.group_rows : p.m;
        store_word(smem.row_of_group(first + 32 * i + 1), min(max(static_cast<int>(ends[i]), 0), most));
      }
    }
  }
  __syncwarp();
  // Each lane has adjacent groups. A scan over lanes gives the end before its first group.
  int const each = (p.groups + 31) / 32, begin = min(lane() * each, p.groups), end = min(begin + each, p.groups);
  auto const before = [&](int own, auto const &combine) {
    CUTLASS_PRAGMA_NO_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      int const other = __shfl_sync(kWarp, static_cast<uint32_t>(own), (lane() - distance) & 31, 32);
      own = lane() < distance ? own : combine(own, other);
    }
    int const previous = __shfl_sync(kWarp, static_cast<uint32_t>(own), (lane() - 1) & 31, 32);
    return lane() == 0 ? 0 : previous;
  };
  int row = 0, first_row = 0;
  if constexpr (!kMasked) {
    CUTLASS_PRAGMA_NO_UNROLL
    for (int group = begin; group < end; ++group) {
      row = max(row, static_cast<int>(load_word(smem.row_of_group(group + 1))));
    }
    first_row = before(row, [](int x, int y) { return max(x, y); });
  }
  auto const tiles_of = [&](int rows) { return (rows + V::kTileM - 1) / V::kTileM * p.tiles_n; };
  int tiles = 0;
  row = first_row;
  CUTLASS_PRAGMA_NO_UNROLL
  for (int group = begin; group < end; ++group) {
    if constexpr (kMasked) {
      store_word(smem.tiles_before_group(group), tiles);
      tiles += tiles_of(load_word(smem.row_of_group(group + 1)));
    } else {
      int const next = max(row, static_cast<int>(load_word(smem.row_of_group(group + 1))));
      store_word(smem.row_of_group(group + 1), next);
      store_word(smem.tiles_before_group(group), tiles);
      tiles += tiles_of(next - row);
      row = next;
    }
  }
  int const first_tile = before(tiles, [](int x, int y) { return x + y; });
  CUTLASS_PRAGMA_NO_UNROLL
  for (int group = begin; group < end; ++group) {
    store_word(smem.tiles_before_group(group), first_tile + load_word(smem.tiles_before_group(group)));
  }
  // The last lane has the totals, even without a group.
  if (lane() == 31) {
    store_word(smem.row_of_group(0), 0);
    store_word(smem.tiles_before_group(p.groups), first_tile + tiles);
    store_word(smem.row_of_group(p.groups + 1), kMasked ? 0 : p.m);
    store_word(smem.tiles_before_group(p.groups + 1), first_tile + tiles + (kMasked ? 0 : tiles_of(p.m - row)));
  }
}

// Returns the group of a tile: the last whose first tile is not after it.
template <class V>
CUTLASS_DEVICE int group_of_tile(Parameters const &p, TiledSmem<V> const &smem, int tile) {
  int low = 0, high = p.groups;
  CUTLASS_PRAGMA_NO_UNROLL
  while (low < high) {
    int const middle = (low + high + 1) / 2;
    bool const is_after = static_cast<int>(load_word(smem.tiles_before_group(middle))) > tile;
    low = is_after ? low : middle;
    high = is_after ? middle - 1 : high;
  }
  return low;
}

// Returns the work tile with this index; past the last tile, one without rows. Tiles along N form sections of
// kGroupWidth. A section covers all rows of the group before the next begins.
template <class V>
CUTLASS_DEVICE WorkTile tile_of_group(Parameters const &p, TiledSmem<V> const &smem, int tile) {
  int const group = group_of_tile<V>(p, smem, tile);
  int const row = kMasked ? group * p.group_rows : static_cast<int>(load_word(smem.row_of_group(group)));
  unsigned const in_group = tile - load_word(smem.tiles_before_group(group));
  WorkTile result = {};
  result.batch = group;
  result.end_row = static_cast<int>(load_word(smem.row_of_group(group + 1))) + (kMasked ? row : 0);
  unsigned const tiles_m = max((result.end_row - row + V::kTileM - 1) / V::kTileM, 1);
  unsigned const section = in_group / (tiles_m * kGroupWidth), inside = in_group - section * tiles_m * kGroupWidth;
  int const width = max(min(kGroupWidth, p.tiles_n - static_cast<int>(section) * kGroupWidth), 1), m_idx = inside / width;
  result.n_idx = section * kGroupWidth + inside - m_idx * width;
  result.first_row = row + m_idx * V::kTileM;
  result.end = group < p.groups ? p.steps : 0;
  result.split = -1;
  return result;
}
#endif
