// What a CTA computes one after the other: tiles, and splits of others' tiles.

#ifndef FOURFOLD_HOST
CUTLASS_DEVICE int own_rank(Parameters const &p) { return p.cluster == 1 ? 0 : cluster_rank(); }

// What a CTA has one after the other: tiles, or splits of tiles that others have. The tiles of the last round are fewer than
// the clusters that there is room for: the first of the others help, each CTA by itself, with the last steps along K.
template <class V>
struct TileScheduler {
  // A tile; or of a split, which is counted by itself, the complement.
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
  CUTLASS_DEVICE bool has_work(Parameters const &p) const { return helps() ? ~index < p.splits : index < p.tiles; }
  CUTLASS_DEVICE void next(Parameters const &p, int rank) {
    if (helps()) {
      index -= p.helpers << p.cluster_bits;
    } else {
      begin(p, rank, index + (gridDim.x >> p.cluster_bits));
    }
  }
};

// A tile, and the blocks of K that this CTA has of it: for all its rows of B those from `begin` to `end`, and then, for those rows alone
// that it keeps, so many in the middle of K.
struct WorkTile {
  int batch, m_idx, n_idx;
  int begin, end, alone;
  // The split that it is; or the first of those that others have of the tile, or less than 0.
  int split;
  // Its i-th block of K, and how many. Those in the middle begin with as many as the first of two CTAs has before them, for both.
  CUTLASS_DEVICE int block(int i) const { return i < end - begin ? begin + i : i; }
  CUTLASS_DEVICE int count() const { return end - begin + alone; }
};

template <class V>
CUTLASS_DEVICE bool keeps_group(Parameters const &p) {
  return V::kKeepsGroup && p.cluster == 2;
}

// The first block of a CTA of a cluster, of as many steps as all have: of a tile whose last steps others have, or of a whole one.
template <class V>
CUTLASS_DEVICE int first_block(Parameters const &p, bool is_helped, int rank) {
  return ((is_helped ? p.own_steps : p.steps) * rank >> p.cluster_bits) * V::kPhases;
}

// The tiles in an order in which those of a moment are of few rows of either operand.
template <class V>
CUTLASS_DEVICE WorkTile work_tile(Parameters const &p, TileScheduler<V> const &scheduler, int rank) {
  int tile = scheduler.index, steps_before = 0;
  if (scheduler.helps()) {
    // The first splits of all tiles are before the second ones.
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
    // Only the last group is narrower: the first load of others waits for no division.
    result.m_idx = width == kGroupWidth ? inside / kGroupWidth : inside / width;
    result.n_idx = group * kGroupWidth + inside - result.m_idx * width;
  }
  // A step is a block of each phase: beyond K there may be one more, of zeros.
  if (scheduler.helps()) {
    result.split = ~scheduler.index;
    result.begin = steps_before * V::kPhases;
    result.end = result.begin + p.split_steps * V::kPhases;
  } else {
    result.split = V::kSplitsK ? tile - p.whole_tiles : -1;
    bool const is_helped = result.split >= 0;
    if (keeps_group<V>(p)) {
      // Both have as many for all rows, before and behind those in the middle.
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

// Every CTA of a cluster, or every CTA, begins with a tile of its own and goes on with the next that nobody has.
#define FOURFOLD_FOR_EACH_WORK_TILE(scheduler, rank) for (TileScheduler<V> scheduler(p, rank); scheduler.has_work(p); scheduler.next(p, rank))
#endif
