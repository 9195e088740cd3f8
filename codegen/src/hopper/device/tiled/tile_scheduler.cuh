// Schedules the work of a CTA: tiles, and splits of other CTAs' tiles.

#ifndef FOURFOLD_HOST
CUTLASS_DEVICE int own_rank(Parameters const &p) { return p.cluster == 1 ? 0 : cluster_rank(); }

// The sequence of work of a CTA. The last wave has fewer tiles than there are clusters that run at once. Its first
// clusters are helpers: each of their CTAs computes the last K steps of tiles on its own.
template <class V>
struct TileScheduler {
  // The index of a tile, or the complement of the index of a split.
  int index;
  CUTLASS_DEVICE explicit TileScheduler(int index) : index(index) {}
  CUTLASS_DEVICE TileScheduler(Parameters const &p, int rank) { begin(p, rank, blockIdx.x >> p.cluster_bits); }
  CUTLASS_DEVICE void begin(Parameters const &p, int rank, int at) {
    index = at;
    if constexpr (V::kSplitsK) {
      int const beyond = at - p.whole_tiles;
      if (beyond >= 0) {
        index = beyond < p.helpers ? ~((beyond << p.cluster_bits) + rank) : at - p.helpers;
      }
    }
  }
  CUTLASS_DEVICE bool helps() const { return V::kSplitsK && index < 0; }
  CUTLASS_DEVICE bool has_work(Parameters const &p, [[maybe_unused]] TiledSmem<V> const &smem) const {
    if constexpr (kGrouped) {
      return index < static_cast<int>(load_word(smem.tiles_before_group(p.groups + 1)));
    }
    return helps() ? ~index < p.splits : index < p.tiles;
  }
  CUTLASS_DEVICE void next(Parameters const &p, int rank) {
    if (helps()) {
      index -= p.helpers << p.cluster_bits;
    } else {
      begin(p, rank, index + (gridDim.x >> p.cluster_bits));
    }
  }
};

// A tile and the K blocks of it that this CTA computes. All rows of B use blocks `begin` to `end`. The warpgroup whose
// sums this CTA keeps then uses `alone` more, from the middle of K.
struct WorkTile {
  int batch, m_idx, n_idx;
  int begin, end, alone;
  // A helper's split, or the first split of the tile that helpers compute; negative if there is none.
  int split;
  // If rows are in groups, `batch` is the group. The tile has its rows from `first_row` to before `end_row`.
  int first_row, end_row;
  // The i-th K block, and the number of blocks. In both CTAs, the middle blocks start after the common blocks of the
  // first CTA.
  CUTLASS_DEVICE int block(int i) const { return i < end - begin ? begin + i : i; }
  CUTLASS_DEVICE int count() const { return end - begin + alone; }
};

// Returns the first row of a tile, and the end of the rows that it may store.
template <class V>
CUTLASS_DEVICE int first_row(WorkTile const &tile) {
  return kGrouped ? tile.first_row : tile.m_idx * V::kTileM;
}
CUTLASS_DEVICE int end_row(Parameters const &p, WorkTile const &tile) { return kGrouped ? tile.end_row : p.m; }
// Returns the matrix of A and D. Groups are in one matrix.
CUTLASS_DEVICE int batch_of_a(WorkTile const &tile) { return kGrouped ? 0 : tile.batch; }

template <class V>
CUTLASS_DEVICE bool keeps_group(Parameters const &p) {
  return V::kKeepsGroup && p.cluster == 2;
}

// Returns the first K block of CTA `rank`. CTAs divide the tile's K steps evenly, without those of helpers.
template <class V>
CUTLASS_DEVICE int first_block(Parameters const &p, bool is_helped, int rank) {
  return ((is_helped ? p.own_steps : p.steps) * rank >> p.cluster_bits) * V::kPhases;
}

template <class V>
CUTLASS_DEVICE WorkTile tile_of_group(Parameters const &p, TiledSmem<V> const &smem, int tile);

// Returns the work tile. Tiles that are computed at the same time cover few rows of A and B, which stay in L2.
template <class V>
CUTLASS_DEVICE WorkTile work_tile(Parameters const &p, [[maybe_unused]] TiledSmem<V> const &smem,
                                  TileScheduler<V> const &scheduler, int rank) {
  if constexpr (kGrouped) {
    return tile_of_group<V>(p, smem, scheduler.index);
  }
  int tile = scheduler.index, steps_before = 0;
  if (scheduler.helps()) {
    // Splits are numbered by round: the first split of every tile, then the second of every tile, and so on.
    steps_before = p.own_steps;
    for (tile = p.whole_tiles + ~scheduler.index; tile >= p.tiles; tile -= p.tiles - p.whole_tiles) {
      steps_before += p.split_steps;
    }
  }
  int const batch = p.tiles_per_matrix.divide(tile);
  WorkTile result = {batch, 0, tile - batch * static_cast<int>(p.tiles_per_matrix.number)};
  if (p.tiles_m > 1) {
    unsigned const group = p.tiles_per_group.divide(result.n_idx), inside = result.n_idx - group * p.tiles_per_group.number;
    unsigned const width = min(kGroupWidth, p.tiles_n - static_cast<int>(group) * kGroupWidth);
    // Only the last group is narrower. The others avoid the division, which would delay the first load.
    result.m_idx = width == kGroupWidth ? inside / kGroupWidth : inside / width;
    result.n_idx = group * kGroupWidth + inside - result.m_idx * width;
  }
  // A step is a K block per phase. The last block may be past K, where operands are zeros.
  if (scheduler.helps()) {
    result.split = ~scheduler.index;
    result.begin = steps_before * V::kPhases;
    result.end = result.begin + p.split_steps * V::kPhases;
  } else {
    result.split = V::kSplitsK ? tile - p.whole_tiles : -1;
    bool const is_helped = result.split >= 0;
    if (keeps_group<V>(p)) {
      // Both CTAs have the same number of common blocks: those before the middle and those after it.
      int const blocks = is_helped ? p.own_steps : p.steps;
      result.alone = blocks < 2 * V::kMaxAlone ? blocks % 2 : V::kMaxAlone - (blocks + V::kMaxAlone) % 2;
      int const common = (blocks - result.alone) / 2;
      result.begin = rank * (common + result.alone);
      result.end = result.begin + common;
    } else {
      result.begin = first_block<V>(p, is_helped, rank);
      result.end = first_block<V>(p, is_helped, rank + 1);
    }
  }
  return result;
}

// A cluster begins with the work at its index and advances by the number of clusters. A helper CTA advances by the
// number of helper CTAs.
#define FOURFOLD_FOR_EACH_WORK_TILE(scheduler, rank) for (TileScheduler<V> scheduler(p, rank); scheduler.has_work(p, smem); scheduler.next(p, rank))
#endif
