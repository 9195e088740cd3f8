// What a CTA computes one after the other: tiles, and pieces of others' tiles.

#ifndef FOURFOLD_HOST
CUTLASS_DEVICE int own_rank(Parameters const &p) { return p.cluster == 1 ? 0 : cluster_rank(); }

// What a CTA has one after the other: tiles, or pieces of tiles that others have. The tiles of the last round are fewer than
// the clusters that there is room for: the first of the others help, each CTA by itself, with the last steps along K.
template <class V>
struct Turn {
  // A tile; or of a piece, which is counted by itself, the complement.
  int what;
  CUTLASS_DEVICE explicit Turn(int what) : what(what) {}
  CUTLASS_DEVICE Turn(Parameters const &p, int rank) { begin(p, rank, blockIdx.x >> p.cluster_bits); }
  CUTLASS_DEVICE void begin(Parameters const &p, int rank, int at) {
    what = at;
    if constexpr (V::kHasPieces) {
      int const beyond = at - p.whole;
      if (beyond >= 0) {
        what = beyond < p.helpers ? ~((beyond << p.cluster_bits) + rank) : at - p.helpers;
      }
    }
  }
  CUTLASS_DEVICE bool helps() const { return V::kHasPieces && what < 0; }
  CUTLASS_DEVICE bool is_left(Parameters const &p) const { return helps() ? ~what < p.all_pieces : what < p.tiles; }
  CUTLASS_DEVICE void next(Parameters const &p, int rank) {
    if (helps()) {
      what -= p.helpers << p.cluster_bits;
    } else {
      begin(p, rank, what + (gridDim.x >> p.cluster_bits));
    }
  }
};

// A tile, and the blocks of K that this CTA has of it: for all its rows of B those from `begin` to `end`, and then, for those rows alone
// that it keeps, so many in the middle of K.
struct Work {
  int batch, tile_m, tile_n;
  int begin, end, alone;
  // The piece that it is; or the first of those that others have of the tile, or less than 0.
  int piece;
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
CUTLASS_DEVICE Work work(Parameters const &p, Turn<V> const &turn, int rank) {
  int tile = turn.what, steps_before = 0;
  if (turn.helps()) {
    // The first pieces of all tiles are before the second ones.
    steps_before = p.own_steps;
    for (tile = p.whole + ~turn.what; tile >= p.tiles; tile -= p.tiles - p.whole) {
      steps_before += p.piece_steps;
    }
  }
  int const batch = p.of_matrix.divide(tile);
  Work result = {batch, 0, tile - batch * static_cast<int>(p.of_matrix.number)};
  if (p.tiles_m > 1) {
    unsigned const group = p.of_group.divide(result.tile_n), inside = result.tile_n - group * p.of_group.number;
    unsigned const width = min(kGroupWidth, p.tiles_n - static_cast<int>(group) * kGroupWidth);
    // Only the last group is narrower: the first load of others waits for no division.
    result.tile_m = width == kGroupWidth ? inside / kGroupWidth : inside / width;
    result.tile_n = group * kGroupWidth + inside - result.tile_m * width;
  }
  // A step is a block of each phase: beyond K there may be one more, of zeros.
  if (turn.helps()) {
    result.piece = ~turn.what;
    result.begin = steps_before * V::kPhases;
    result.end = result.begin + p.piece_steps * V::kPhases;
  } else {
    result.piece = V::kHasPieces ? tile - p.whole : -1;
    bool const is_helped = result.piece >= 0;
    if (keeps_group<V>(p)) {
      // Both have as many for all rows, before and behind those in the middle.
      int const blocks = is_helped ? p.own_steps : p.steps;
      result.alone = blocks < 2 * V::kMostAlone ? blocks % 2 : V::kMostAlone - (blocks + V::kMostAlone) % 2;
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
#define FOURFOLD_FOR_EACH_TURN(turn, rank) for (Turn<V> turn(p, rank); turn.is_left(p); turn.next(p, rank))
#endif
