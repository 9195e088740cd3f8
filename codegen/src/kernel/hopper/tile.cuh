// Many rows of A ("tokens"): tiles of kRows rows of B ("weights") by kTokens of A, for wgmma, which is given the weights
// from registers and the tokens from shared memory. The weights of a tile are decoded where they are used, once; the
// tokens were decoded before, by another kernel (decode_tokens), and are loaded as they are multiplied.
//
// Warpgroups multiply 64 weights each, or twice as many where a warp needs whole blocks of a row of D; of one more a thread
// loads weights, and another tokens. While a warp has wgmma take operands from its registers it does nothing else, so that
// others must decode meanwhile: there are four that multiply, or two that have room for the operands of two blocks. Of 64
// weights two have every other block of K. Where there are fewer tiles than SMs, a cluster shares a tile: each CTA takes a
// part of K, and of the sums each keeps some rows of D and gets what the others have of these, which it adds up always in
// the same order.

// Tiles along N that are computed together, for all of M.
constexpr int kGroupWidth = 8;

template <int kTokensOfTile, int kRowsOfTile>
struct Tile {
  static constexpr int kTokens = kTokensOfTile, kRows = kRowsOfTile;
  // Multiplications of 64 weights that a warpgroup has at each step.
  static constexpr int kHalves = kRows == 256 && !(kSimple && kTokens == 128) ? 2 : 1;
  static constexpr int kWarpRows = 16 * kHalves;
  // Warpgroups that have all weights together, and how many times there are as many, which take turns with the blocks of K.
  static constexpr int kRowGroups = kRows / (64 * kHalves), kPhases = kRows == 64 ? 2 : 1;
  static constexpr int kGroups = kRowGroups * kPhases;
  // Whether a thread has so many sums, or weights, that there is room for the operands of two words only, not of two blocks.
  static constexpr bool kByWords = kHalves == 2 || kTokens == 256;
  // Blocks that there are operands of at a time, or in how many parts one has them.
  static constexpr int kBuffers = kGroups == 4 ? 1 : 2, kParts = kGroups == 4 ? 4 : 1;
  // Registers of who multiplies and of who loads.
  static constexpr int kMultiplyRegisters = kGroups == 4 ? 112 : kPhases == 2 ? 168 : 232;
  static constexpr int kLoadRegisters = kGroups == 4 ? 32 : 40;
  static constexpr int kMultiplying = kGroups * 128, kWarps = kMultiplying / 32;
  // Of these as many as have all weights.
  static constexpr int kAbreast = kRowGroups * 128, kWarpsAbreast = kAbreast / 32;
  static constexpr int kThreads = kMultiplying + 128, kMinBlocks = 1;
  // Threads that there are registers for beside its own: where a tile takes no longer than to begin, it begins while the kernel
  // before still has SMs.
  static constexpr int kRoomThreads = kPhases == 2 ? 128 : 0;
  // Whether others may have a part of a tile: of one that takes no longer than to begin nobody has.
  static constexpr bool kHasPieces = kPhases == 1;
  // Of a cluster each phase of each CTA has a slice of its own.
  static constexpr int kMostCluster = 4 / kPhases;
  static constexpr int kWeightBytes = kRows * kBlockBytes, kScaleBytes = kAtomsPerBlock * kAtomBytes;  // of 128 rows
  static constexpr int kScaleRows = (kRows + 127) / 128, kStageBytes = kWeightBytes + kScaleRows * kScaleBytes;
  // Decoded tokens of a block of K, in two panels of 64.
  static constexpr int kPanelBytes = kTokens * 128, kDecodedBytes = 2 * kPanelBytes;
  static constexpr int kDecodedStages = kTokens == 256 ? 3 : kTokens == 64 ? 6 : kRows == 128 ? 5 : 4;

  // The rows of D are written in slices, and where a cluster shares a tile, each CTA has some. A slice
  // takes no more than 16 registers.
  static constexpr int kSlices = kHalves * kTokens == 256 ? 8 : 4;
  static constexpr int kSliceTokens = kTokens / kSlices, kChunks = kSliceTokens / 8;
  // Vectors of 4 sums that a thread has of a slice, and bytes of one of all threads.
  static constexpr int kVectors = kHalves * kChunks, kVectorBytes = kAbreast * 16;
  // What the others of a cluster have of a CTA's slices.
  static constexpr int kExchangeBytes = kSlices / kMostCluster * (kMostCluster - 1) * kVectors * kVectorBytes;
  // Where a thread writes a row of D, a warp's part of a slice, as rows; the pitch keeps the banks apart.
  static constexpr int kPitch = 36, kStagingBytes = kSimple ? 0 : kWarps * kSliceTokens * kPitch * 4;
  // What each phase has of the slices that are the other's.
  static constexpr int kPartialBytes = (kPhases - 1) * kSlices * kVectors * kVectorBytes;

  static constexpr int kBarrierBytes = 512;
  // The panels lie at multiples of 1024 bytes.
  static constexpr int kFixed = 1024 + kDecodedStages * kDecodedBytes + kStagingBytes + kPartialBytes + kBarrierBytes;
  static constexpr int kMostStages = (227 * 1024 - kFixed) / kStageBytes;
  static constexpr int kStages = kMostStages < 8 ? kMostStages : 8;
  static constexpr int kShared = kFixed + kStages * kStageBytes;
  static_assert(kStages >= 3 && kSlices % kMostCluster == 0 && kSlices % kPhases == 0);
  // Each stage is of one phase: a barrier tells a turn from the next only, and who waits has seen the one before.
  static_assert(kStages % kPhases == 0 && kDecodedStages % kPhases == 0);
  static_assert(kExchangeBytes <= kDecodedStages * kDecodedBytes);
  // What those who multiply get is what the others give.
  static_assert(kMultiplyRegisters * kGroups + kLoadRegisters <= 65536 / (kThreads + kRoomThreads) / 8 * 8 * (kGroups + 1));
  static_assert(2 * (kStages + kDecodedStages) + 1 + kWarps < kBarrierBytes / 8);
  static_assert(kSimple || kRows == 256, "a warp has as many columns as there are in a row's block");
};

#ifndef FOURFOLD_HOST

// Where everything is in shared memory.
template <class V>
struct TileMemory {
  uint32_t base;
  CUTLASS_DEVICE explicit TileMemory(uint32_t base) : base(base) {}
  CUTLASS_DEVICE explicit TileMemory(void *memory) : TileMemory((shared_address(memory) + 1023) & ~1023u) {}
  CUTLASS_DEVICE uint32_t decoded(int stage) const { return base + stage * V::kDecodedBytes; }
  CUTLASS_DEVICE uint32_t weights(int stage) const {
    return base + V::kDecodedStages * V::kDecodedBytes + stage * V::kStageBytes;
  }
  CUTLASS_DEVICE uint32_t scales(int stage) const { return weights(stage) + V::kWeightBytes; }
  CUTLASS_DEVICE uint32_t staging(int warp) const { return weights(V::kStages) + warp * (V::kStagingBytes / V::kWarps); }
  CUTLASS_DEVICE uint32_t partial() const { return weights(V::kStages) + V::kStagingBytes; }
  // The sums of a cluster take the place of tokens.
  CUTLASS_DEVICE uint32_t exchange() const { return decoded(0); }
  // Barriers: weights were loaded, are no longer needed; tokens were loaded, are no longer needed; the others' memory may be
  // written to, and this CTA's was, for a warp.
  CUTLASS_DEVICE uint32_t barrier(int index) const { return partial() + V::kPartialBytes + 8 * index; }
  // What was read for its own sake.
  CUTLASS_DEVICE uint32_t unused() const { return barrier(V::kBarrierBytes / 8 - 1); }
  CUTLASS_DEVICE uint32_t loaded(int stage) const { return barrier(stage); }
  CUTLASS_DEVICE uint32_t consumed(int stage) const { return barrier(V::kStages + stage); }
  CUTLASS_DEVICE uint32_t filled(int stage) const { return barrier(2 * V::kStages + stage); }
  CUTLASS_DEVICE uint32_t emptied(int stage) const { return barrier(2 * V::kStages + V::kDecodedStages + stage); }
  CUTLASS_DEVICE uint32_t exchangeable() const { return barrier(2 * (V::kStages + V::kDecodedStages)); }
  CUTLASS_DEVICE uint32_t exchanged(int warp) const { return barrier(2 * (V::kStages + V::kDecodedStages) + 1 + warp); }
};

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

// A tile, and the blocks of K that this CTA has of it.
struct Work {
  int batch, tile_m, tile_n;
  int begin, end;
  // The piece that it is; or the first of those that others have of the tile, or less than 0.
  int piece;
};

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
    int const steps = result.piece < 0 ? p.steps : p.own_steps;
    result.begin = (steps * rank >> p.cluster_bits) * V::kPhases;
    result.end = (steps * (rank + 1) >> p.cluster_bits) * V::kPhases;
  }
  return result;
}

// Every CTA of a cluster, or every CTA, begins with a tile of its own and goes on with the next that nobody has.
#define FOURFOLD_FOR_EACH_TURN(turn, rank) for (Turn<V> turn(p, rank); turn.is_left(p); turn.next(p, rank))

// The scales of rows for a stage. Beyond the last along K there are none: codes are zero there, and the last will do.
template <class V>
CUTLASS_DEVICE void load_scales(uint32_t to, uint8_t const *of_rows, int block, int atoms, uint32_t barrier) {
  int const first = block * kAtomsPerBlock;
  if (first + kAtomsPerBlock <= atoms) {
    load_bytes(to, of_rows + static_cast<int64_t>(first) * kAtomBytes, V::kScaleBytes, barrier);
  } else {
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < kAtomsPerBlock; ++i) {
      load_bytes(to + i * kAtomBytes, of_rows + static_cast<int64_t>(min(first + i, atoms - 1)) * kAtomBytes, kAtomBytes,
                 barrier);
    }
  }
}

// The thread that loads weights, and their scales.
template <class V>
CUTLASS_DEVICE void load_weights(Parameters const &p, TileMemory<V> const &memory, int rank) {
  Ring<V::kStages> ring;
  FOURFOLD_FOR_EACH_TURN(turn, rank) {
    Work const here = work<V>(p, turn, rank);
    int64_t const pitch = static_cast<int64_t>(p.atoms) * kAtomBytes;
    // Scales of 128 rows. A tile that ends within its first 128 reads the scales of those again.
    uint8_t const *of_weights[V::kScaleRows];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kScaleRows; ++i) {
      int const rows = here.batch * p.weight_blocks + min(here.tile_n * V::kRows / 128 + i, p.weight_blocks - 1);
      of_weights[i] = p.weight_scales + rows * pitch;
    }
    CUTLASS_PRAGMA_NO_UNROLL  // its thread has few registers
    for (int block = here.begin; block < here.end; ++block, ring.next()) {
      barrier_wait(memory.consumed(ring.stage), ring.phase ^ 1);
      uint32_t const barrier = memory.loaded(ring.stage);
      barrier_expect(barrier, V::kStageBytes);
      load_tile(p.weight_map, memory.weights(ring.stage), barrier, block * kBlockBytes, here.tile_n * V::kRows, here.batch);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < V::kScaleRows; ++i) {
        load_scales<V>(memory.scales(ring.stage) + i * V::kScaleBytes, of_weights[i], block, p.atoms, barrier);
      }
    }
  }
}

// The thread that loads tokens, once they were decoded.
template <class V>
CUTLASS_DEVICE void load_tokens(Parameters const &p, TileMemory<V> const &memory, int rank) {
  wait_for_kernel_before();
  Ring<V::kDecodedStages> ring;
  FOURFOLD_FOR_EACH_TURN(turn, rank) {
    Work const here = work<V>(p, turn, rank);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int block = here.begin; block < here.end; ++block, ring.next()) {
      barrier_wait(memory.emptied(ring.stage), ring.phase ^ 1);
      uint32_t const barrier = memory.filled(ring.stage);
      barrier_expect(barrier, V::kDecodedBytes);
      CUTLASS_PRAGMA_UNROLL
      for (int panel = 0; panel < 2; ++panel) {
        load_tile(p.token_map, memory.decoded(ring.stage) + panel * V::kPanelBytes, barrier,
                  block * kDecodedBlockBytes + panel * 128, here.tile_m * V::kTokens, here.batch);
      }
    }
  }
  if (p.cluster > 1) {
    // Others may write where it was loaded to, once nothing of it is needed.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < V::kDecodedStages; ++i, ring.next()) {
      barrier_wait(memory.emptied(ring.stage), ring.phase ^ 1);
    }
  }
}

// Which of a warp's weights a thread has first; its others are this one xor 1, or xor 1, 2 and 3. They are side by side, so
// that a thread has whole runs of a row of D. In which order it has them differs between quads: so the codes that eight lanes
// read lie in different banks, and so do the scales that eight quads read.
template <class V>
CUTLASS_DEVICE int first_weight(int quad) {
  return V::kHalves == 2 ? quad * 4 + ((quad ^ quad / 2) % 2 + quad / 4 * 2)
                         : quad / 4 * 8 + quad % 2 * 4 + quad / 2 % 2 * 2 + (quad ^ quad / 4) % 2;
}

// What a thread has of 8 rows of D: of two rows as many columns side by side as it has weights.
template <int kHalves>
CUTLASS_DEVICE void arrange(int quad, float const *sums, float (&rows)[2][2 * kHalves]) {
  bool const odd = (quad ^ quad / (kHalves == 2 ? 2 : 4)) % 2 != 0, upper = quad / 4 != 0;
  CUTLASS_PRAGMA_UNROLL
  for (int row = 0; row < 2; ++row) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2 * kHalves; ++i) {
      int const near = i % 2 * 2 + row, far = (1 - i % 2) * 2 + row;
      float const low = odd ? sums[far] : sums[near];
      if constexpr (kHalves == 2) {
        float const high = odd ? sums[4 + far] : sums[4 + near];
        rows[row][i] = (upper == (i < 2) ? high : low) * kFactor;
      } else {
        rows[row][i] = low * kFactor;
      }
    }
  }
}

// Whether a slice is one of those that a thread adds up and writes: phases share them.
template <class V>
CUTLASS_DEVICE bool is_own_slice(int slice) {
  return V::kPhases == 1 || slice % V::kPhases == same_for_warp(threadIdx.x / V::kAbreast);
}

// Writes a warp's part of a slice of D: of each chunk of 8 rows, what wgmma left in a thread.
template <class V>
CUTLASS_DEVICE void write_slice(Parameters const &p, TileMemory<V> const &memory, Work const &tile, int slice,
                                float const (&sums)[V::kVectors * 4]) {
  unsigned const thread = computed_again(threadIdx.x);
  int const warp = thread / 32, quad = thread % 32 / 4, t = thread % 4;
  int const m = tile.tile_m * V::kTokens + slice * V::kSliceTokens;
  int const n = tile.tile_n * V::kRows + warp % V::kWarpsAbreast * V::kWarpRows;
  if constexpr (kSimple) {
    constexpr int kColumns = 2 * V::kHalves;
    Place const here(tile.batch, m + 2 * t, n + first_weight<V>(quad) / kColumns * kColumns, p.m, p.n, 0);
    auto states = begin_outputs<kColumns>(p.epilogue);
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < V::kChunks; ++chunk) {
      float rows[2][kColumns];
      arrange<V::kHalves>(quad, sums + chunk * V::kHalves * 4, rows);
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        cutlass::Array<float, kColumns> sum;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kColumns; ++i) {
          sum[i] = rows[row][i];
        }
        // What lies outside is computed too: what is read for all of D then stands before the loops.
        write_outputs<kColumns>(p.epilogue, states, here.moved(chunk * 8 + row, 0), sum);
      }
    }
  } else {
    uint32_t const staging = memory.staging(warp);
    __syncwarp();
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < V::kChunks; ++chunk) {
      float rows[2][4];
      arrange<2>(quad, sums + chunk * 8, rows);
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        store_words(staging + ((chunk * 8 + 2 * t + row) * V::kPitch + quad * 4) * 4, __float_as_uint(rows[row][0]),
                    __float_as_uint(rows[row][1]), __float_as_uint(rows[row][2]), __float_as_uint(rows[row][3]));
      }
    }
    __syncwarp();
    // All lanes of a warp work together; those without a row have one that is outside.
    bool const has_row = lane() < V::kSliceTokens;
    Place const here(tile.batch, has_row ? m + lane() : p.m, n, p.m, p.n, 0);
    auto states = begin_outputs<32>(p.epilogue);
    write_outputs<32>(p.epilogue, states, here, load_floats<32>(staging + (has_row ? lane() : 0) * V::kPitch * 4));
    end_outputs<32>(p.epilogue, states, here);
  }
}

// Sends each of the other CTAs of a cluster what this one has of its slices, and waits for what they send.
template <class V>
CUTLASS_DEVICE void exchange(Parameters const &p, TileMemory<V> const &memory, int rank,
                             float const (&sums)[V::kHalves][V::kTokens / 2]) {
  unsigned const thread = computed_again(threadIdx.x), warp = thread / 32;
  int const each = V::kSlices >> p.cluster_bits;
  barrier_wait(memory.exchangeable(), 0);
  // Of each of its slices a CTA has the vectors of one other CTA after the other, each of all threads.
  CUTLASS_PRAGMA_UNROLL
  for (int slice = 0; slice < V::kSlices; ++slice) {
    int const receiver = slice * p.cluster / V::kSlices, local = slice & (each - 1);
    if (receiver == rank || !is_own_slice<V>(slice)) {
      continue;
    }
    int const source = local * (p.cluster - 1) + (rank < receiver ? rank : rank - 1);
    uint32_t const at = memory.exchange() + source * V::kVectors * V::kVectorBytes + thread % V::kAbreast * 16;
    uint32_t const to = cluster_address(at, receiver), barrier = cluster_address(memory.exchanged(warp), receiver);
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < V::kVectors; ++v) {
      int const first = (slice * V::kChunks + v / V::kHalves) * 4;
      cluster_store(to + v * V::kVectorBytes, &sums[v % V::kHalves][first], barrier);
    }
  }
  // Only shared memory was written: a wait that acquires more would empty the L1 cache.
  barrier_wait(memory.exchanged(warp), 0);
}

// A thread's sums of a slice, whose number the compiler knows: registers have no index.
template <class V, class Slice>
CUTLASS_DEVICE void take_slice(float (&part)[V::kVectors * 4], Slice slice, float const (&sums)[V::kHalves][V::kTokens / 2]) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < V::kVectors * 4; ++i) {
    part[i] = sums[i / 4 % V::kHalves][(slice * V::kChunks + i / 4 / V::kHalves) * 4 + i % 4];
  }
}

// Where a thread's sums of a slice of a piece are: vectors of all threads.
template <class V>
CUTLASS_DEVICE float *sums_of_piece(Parameters const &p, int piece, int slice) {
  constexpr int kOfSlice = V::kVectors * V::kVectorBytes / 4;
  return p.piece_sums + (static_cast<int64_t>(piece) * V::kSlices + slice) * kOfSlice +
         computed_again(threadIdx.x) % V::kAbreast * 4;
}

CUTLASS_DEVICE uint32_t *flag_of_piece(Parameters const &p, int piece) {
  return p.piece_flags + piece * kPieceFlags + threadIdx.x / 32;
}

// Leaves what a thread has of a piece for the one that has as much of the tile.
template <class V>
CUTLASS_DEVICE void give_piece(Parameters const &p, int piece, float const (&sums)[V::kHalves][V::kTokens / 2]) {
  cute::for_each(cute::make_seq<V::kSlices>{}, [&](auto slice) {
    if (is_own_slice<V>(slice)) {
      float part[V::kVectors * 4];
      take_slice<V>(part, slice, sums);
      float *const to = sums_of_piece<V>(p, piece, slice);
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < V::kVectors; ++v) {
        *reinterpret_cast<float4 *>(to + v * V::kVectorBytes / 4) =
            float4{part[v * 4], part[v * 4 + 1], part[v * 4 + 2], part[v * 4 + 3]};
      }
    }
  });
  give_flag(flag_of_piece(p, piece));
}

// Adds what others have of the slices of a CTA, always in the same order. They have begun before: their blocks are the first.
template <class V>
CUTLASS_DEVICE void add_pieces(Parameters const &p, int piece, int rank, float (&sums)[V::kHalves][V::kTokens / 2]) {
  CUTLASS_PRAGMA_NO_UNROLL
  for (; piece < p.all_pieces; piece += p.tiles - p.whole) {
    wait_for_flag(flag_of_piece(p, piece));
    cute::for_each(cute::make_seq<V::kSlices>{}, [&](auto slice) {
      if (slice * p.cluster / V::kSlices == rank && is_own_slice<V>(slice)) {
        float const *const from = sums_of_piece<V>(p, piece, slice);
        CUTLASS_PRAGMA_UNROLL
        for (int v = 0; v < V::kVectors; ++v) {
          float4 const four = load_far(from + v * V::kVectorBytes / 4);
          float *const to = &sums[v % V::kHalves][(slice * V::kChunks + v / V::kHalves) * 4];
          to[0] += four.x, to[1] += four.y, to[2] += four.z, to[3] += four.w;
        }
      }
    });
  }
}

// Writes the slices that this CTA has of a tile.
template <class V, bool kShared>
CUTLASS_DEVICE void write_tile(Parameters const &p, TileMemory<V> const &memory, Work const &tile, int rank,
                               float const (&sums)[V::kHalves][V::kTokens / 2]) {
  if constexpr (!kShared && V::kTokens == 256) {
    // A tile of many rows is one of many: the tensor cores wait until it is written, but only the first waits for instructions.
    cute::for_each(cute::make_seq<V::kSlices>{}, [&](auto slice) {
      float part[V::kVectors * 4];
      take_slice<V>(part, slice, sums);
      write_slice<V>(p, memory, tile, slice, part);
    });
    return;
  }
  int const each = kShared ? V::kSlices >> p.cluster_bits : V::kSlices;
  // Which slice it is, is told by branches, and the epilogue stands here once.
  CUTLASS_PRAGMA_NO_UNROLL
  for (int local = 0; local < each; ++local) {
    int const slice = kShared ? rank * each + local : local;
    if (!is_own_slice<V>(slice)) {
      continue;
    }
    float part[V::kVectors * 4] = {};
    cute::for_each(cute::make_seq<V::kSlices>{}, [&](auto one) {
      if (one == slice) {
        keep_branch();
        take_slice<V>(part, one, sums);
      }
    });
    if constexpr (kShared) {
      // In the order of ranks, whoever adds.
      float all[V::kVectors * 4] = {};
      uint32_t at = memory.exchange() + local * (p.cluster - 1) * V::kVectors * V::kVectorBytes +
                    threadIdx.x % V::kAbreast * 16;
      CUTLASS_PRAGMA_NO_UNROLL
      for (int source = 0; source < p.cluster; ++source) {
        if (source == rank) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < V::kVectors * 4; ++i) {
            all[i] += part[i];
          }
        } else {
          CUTLASS_PRAGMA_UNROLL
          for (int v = 0; v < V::kVectors; ++v, at += V::kVectorBytes) {
            auto const four = load_floats<4>(at);
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < 4; ++i) {
              all[v * 4 + i] += four[i];
            }
          }
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < V::kVectors * 4; ++i) {
        part[i] = all[i];
      }
    }
    write_slice<V>(p, memory, tile, slice, part);
  }
}

// A warpgroup's way through the stages of a tile: what a thread reads of each, and gives to wgmma.
template <class V>
struct Multiplier {
  static constexpr int kWeights = 2 * V::kHalves;  // of a thread
  TileMemory<V> const &memory;
  Ring<V::kStages> ring;
  Ring<V::kDecodedStages> from;
  // Of the thread's first weight; its others' places differ in the bits of a row's number.
  uint32_t codes_at, scales_at;

  CUTLASS_DEVICE Multiplier(TileMemory<V> const &memory, int phase) : memory(memory) { ring.stage = from.stage = phase; }

  // `first` is where the tile begins in 128 rows of scales.
  CUTLASS_DEVICE void begin(unsigned thread, int first) {
    int const t = thread % 4, row = thread % V::kAbreast / 32 * V::kWarpRows + first_weight<V>(thread % 32 / 4);
    int const of_scales = first + row;
    codes_at = memory.weights(0) + row * kBlockBytes + t * 16;
    scales_at = memory.scales(0) + of_scales / 128 * V::kScaleBytes + of_scales % 32 * 16 + of_scales / 32 % 4 * 4 +
                (kMx ? t : t / 2 * kAtomBytes + t % 2 * 2);
  }

  // Codes and scales of the next stage, once it was loaded.
  CUTLASS_DEVICE void read(uint4 (&codes)[kWeights], uint32_t (&scales)[kWeights]) const {
    barrier_wait(memory.loaded(ring.stage), ring.phase);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWeights; ++i) {
      codes[i] = load_words(codes_at + ring.stage * V::kStageBytes ^ i * kBlockBytes);
      uint32_t const at = scales_at + ring.stage * V::kStageBytes ^ i * 16;
      scales[i] = kMx ? mx_scale(load_byte(at)) : two_scales(load_half(at));
    }
  }

  // To be called when wgmma was given a part of each read: then all of it has come, and what is loaded next cannot change it.
  // That it was asked for before is not enough. Every lane says so: one for all would have to wait for them, which the compiler
  // leaves out where lanes never part, and racecheck then sees no order.
  CUTLASS_DEVICE void give_stage_back() { barrier_arrive(memory.consumed(ring.stage)); }

  CUTLASS_DEVICE void give_tokens_back(int stage) const {
    if (lane() == 0) {
      barrier_arrive(memory.emptied(stage));
    }
  }

  // The warpgroup's next block.
  CUTLASS_DEVICE void next() {
    ring.template next<V::kPhases>();
    from.template next<V::kPhases>();
  }
};

// A word of each weight as operands of two steps, by half of the rows.
template <int kHalves>
CUTLASS_DEVICE void decode_word(uint4 const (&codes)[2 * kHalves], uint32_t const (&scales)[2 * kHalves], int word,
                                uint32_t (&first)[kHalves][4], uint32_t (&second)[kHalves][4]) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 2 * kHalves; ++i) {
    Decoded const parts = decode(word_of(codes[i], word), scale_of_word(scales[i], word));
    first[i / 2][i % 2] = parts.low[0];
    first[i / 2][2 + i % 2] = parts.high[0];
    second[i / 2][i % 2] = parts.low[1];
    second[i / 2][2 + i % 2] = parts.high[1];
  }
}

// Where the tokens of a step along K begin in those of a block, as descriptors count.
template <class V>
CUTLASS_DEVICE constexpr int step_at(int step) {
  return (step / 4 * V::kPanelBytes + step % 4 * 32) >> 4;
}

// Multiplies a tile's blocks by 64 weights, each after its operands were decoded.
template <class V>
CUTLASS_DEVICE void multiply_one_by_one(Multiplier<V> &of, int blocks, float (&sums)[1][V::kTokens / 2]) {
  constexpr int kWords = 4 / V::kParts;
  for (int left = blocks; left > 0; --left, of.next()) {
    uint4 codes[2];
    uint32_t scales[2], operands[2 * kWords][1][4];
    of.read(codes, scales);
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < V::kParts; ++part) {
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < kWords; ++word) {
        decode_word<1>(codes, scales, part * kWords + word, operands[2 * word], operands[2 * word + 1]);
      }
      if (part == 0) {
        barrier_wait(of.memory.filled(of.from.stage), of.from.phase);
      }
      uint64_t const tokens = descriptor(of.memory.decoded(of.from.stage));
      wgmma_fence();
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < 2 * kWords; ++step) {
        Wgmma<V::kTokens>::run(sums[0], operands[step][0], tokens + step_at<V>(part * 2 * kWords + step));
      }
      wgmma_commit();
      if (part == 0) {
        of.give_stage_back();
      }
      wgmma_wait<0>();
    }
    of.give_tokens_back(of.from.stage);
  }
}

// The same with operands of two blocks: while one is multiplied, the next is decoded.
template <class V>
CUTLASS_DEVICE void multiply_two(Multiplier<V> &of, int blocks, float (&sums)[1][V::kTokens / 2]) {
  uint32_t operands[2][8][1][4];
  int held = -1;
  auto const add = [&](uint32_t (&now)[8][1][4]) {
    {
      uint4 codes[2];
      uint32_t scales[2];
      of.read(codes, scales);
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        decode_word<1>(codes, scales, word, now[2 * word], now[2 * word + 1]);
      }
    }
    barrier_wait(of.memory.filled(of.from.stage), of.from.phase);
    uint64_t const tokens = descriptor(of.memory.decoded(of.from.stage));
    wgmma_fence();
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < 8; ++step) {
      Wgmma<V::kTokens>::run(sums[0], now[step][0], tokens + step_at<V>(step));
    }
    wgmma_commit();
    of.give_stage_back();
    // All but this block is done, and its operands can be overwritten.
    wgmma_wait<1>();
    if (held >= 0) {
      of.give_tokens_back(held);
    }
    held = of.from.stage;
    of.next();
  };
  for (int left = blocks / V::kPhases; left > 0; left -= 2) {
    add(operands[0]);
    if (left == 1) {
      break;
    }
    add(operands[1]);
  }
  wgmma_wait<0>();
  if (held >= 0) {
    of.give_tokens_back(held);
  }
}

// The same where sums leave room for the operands of two words: while one is multiplied, the other is made.
template <class V>
CUTLASS_DEVICE void multiply_words(Multiplier<V> &of, int blocks, float (&sums)[V::kHalves][V::kTokens / 2]) {
  int held = -1;
  for (int left = blocks; left > 0; --left) {
    uint4 codes[2 * V::kHalves];
    uint32_t scales[2 * V::kHalves];
    of.read(codes, scales);
    uint64_t const tokens = descriptor(of.memory.decoded(of.from.stage));
    uint32_t operands[2][2][V::kHalves][4];
    CUTLASS_PRAGMA_UNROLL
    for (int word = 0; word < 4; ++word) {
      auto &now = operands[word % 2];
      // All but the word before is done.
      wgmma_wait<1>();
      if (word == 1 && held >= 0) {
        of.give_tokens_back(held);
      }
      decode_word<V::kHalves>(codes, scales, word, now[0], now[1]);
      if (word == 0) {
        barrier_wait(of.memory.filled(of.from.stage), of.from.phase);
      }
      wgmma_fence();
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < 2; ++step) {
        CUTLASS_PRAGMA_UNROLL
        for (int half = 0; half < V::kHalves; ++half) {
          Wgmma<V::kTokens>::run(sums[half], now[step][half], tokens + step_at<V>(2 * word + step));
        }
      }
      wgmma_commit();
      if (word == 0) {
        of.give_stage_back();
      }
    }
    held = of.from.stage;
    of.next();
  }
  wgmma_wait<0>();
  if (held >= 0) {
    of.give_tokens_back(held);
  }
}

// Gives each phase the sums of both for its slices: of two side by side it has one, and what it finds stands for both, as
// a choice between registers is no branch.
template <class V>
CUTLASS_DEVICE void add_phases(TileMemory<V> const &memory, int phase, float (&sums)[1][V::kTokens / 2]) {
  static_assert(V::kPhases == 2);
  constexpr int kOfSlice = V::kVectors * 4, kAll = V::kSlices / 2 * V::kVectors * V::kVectorBytes;
  uint32_t const at = memory.partial() + computed_again(threadIdx.x) % V::kAbreast * 16;
  // What the other had for the last tile was read.
  synchronize<1, V::kMultiplying>();
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < V::kSlices / 2 * V::kVectors; ++v) {
    float const *const low = sums[0] + v / V::kVectors * 2 * kOfSlice + v % V::kVectors * 4, *const high = low + kOfSlice;
    uint32_t given[4];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      given[i] = __float_as_uint(phase == 0 ? high[i] : low[i]);
    }
    store_words(at + (1 - phase) * kAll + v * V::kVectorBytes, given[0], given[1], given[2], given[3]);
  }
  synchronize<2, V::kMultiplying>();
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < V::kSlices / 2 * V::kVectors; ++v) {
    float *const low = sums[0] + v / V::kVectors * 2 * kOfSlice + v % V::kVectors * 4, *const high = low + kOfSlice;
    auto const four = load_floats<4>(at + phase * kAll + v * V::kVectorBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      low[i] = high[i] = (phase == 0 ? low[i] : high[i]) + four[i];
    }
  }
}

// A warpgroup that multiplies.
template <class V>
CUTLASS_DEVICE void multiply(Parameters const &p, TileMemory<V> const &memory) {
  int const phase = V::kPhases == 1 ? 0 : same_for_warp(threadIdx.x / V::kAbreast);
  Multiplier<V> of(memory, phase);
  of.begin(threadIdx.x, 0);
  FOURFOLD_FOR_EACH_TURN(turn, own_rank(p)) {
    Work here = work<V>(p, turn, own_rank(p));
    if constexpr (V::kRows < 128) {
      of.begin(threadIdx.x, here.tile_n * V::kRows % 128);
    }
    float sums[V::kHalves][V::kTokens / 2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kHalves * V::kTokens / 2; ++i) {
      sums[i % V::kHalves][i / V::kHalves] = 0.0f;
    }
    if constexpr (V::kByWords) {
      multiply_words<V>(of, here.end - here.begin, sums);
    } else if constexpr (V::kBuffers == 2) {
      multiply_two<V>(of, here.end - here.begin, sums);
    } else {
      multiply_one_by_one<V>(of, here.end - here.begin, sums);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kHalves; ++i) {
      read_from_here(sums[i]);
    }
    if constexpr (V::kPhases > 1) {
      add_phases<V>(memory, phase, sums);
    }
    if constexpr (V::kGroups == 4) {
      // Registers are few: found anew, not kept.
      here = work<V>(p, Turn<V>(computed_again(turn.what)), own_rank(p));
    }
    if (turn.helps()) {
      give_piece<V>(p, here.piece, sums);
      continue;
    }
    if constexpr (V::kMostCluster > 1) {
      if (p.cluster > 1) {
        int const rank = own_rank(p);
        exchange<V>(p, memory, rank, sums);
        if (V::kHasPieces && here.piece >= 0) {
          add_pieces<V>(p, here.piece, rank, sums);
        }
        write_tile<V, true>(p, memory, here, rank, sums);
        // A cluster has one tile. That the loop ends here tells the compiler that what it counts is the same for all threads.
        break;
      }
    }
    if (V::kHasPieces && here.piece >= 0) {
      add_pieces<V>(p, here.piece, 0, sums);
    }
    write_tile<V, false>(p, memory, here, 0, sums);
  }
}

template <class V>
CUTLASS_DEVICE void make_barriers(Parameters const &p, TileMemory<V> const &memory) {
  for (int i = 0; i < V::kStages; ++i) {
    barrier_init(memory.loaded(i), 1);
    barrier_init(memory.consumed(i), V::kWarpsAbreast * 32);
  }
  for (int i = 0; i < V::kDecodedStages; ++i) {
    barrier_init(memory.filled(i), 1);
    barrier_init(memory.emptied(i), V::kWarpsAbreast);
  }
  if (p.cluster > 1) {
    barrier_init(memory.exchangeable(), p.cluster - 1);
    // Of each of its slices a warp gets what the others have.
    int const own = (V::kSlices >> p.cluster_bits) / V::kPhases, bytes = own * (p.cluster - 1) * V::kVectors * 32 * 16;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int warp = 0; warp < V::kWarps; ++warp) {
      barrier_init(memory.exchanged(warp), 1);
      barrier_expect(memory.exchanged(warp), bytes);
    }
  }
  fence_barriers();
}

template <class V>
CUTLASS_DEVICE void compute_tiles(Parameters const &p, void *shared) {
  TileMemory<V> const memory(shared);
  constexpr int kWeightWarp = V::kMultiplying / 32, kTokenWarp = kWeightWarp + 1, kScalarWarp = kWeightWarp + 2;
  int const warp = threadIdx.x / 32;
  if (warp == kWeightWarp && lane() == 0) {
    prefetch_map(p.weight_map);
    prefetch_map(p.token_map);
    make_barriers<V>(p, memory);
  }
  __syncthreads();
  if (p.cluster > 1) {
    cluster_start();
  }
  if (warp < kWeightWarp) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(V::kMultiplyRegisters));
    multiply<V>(p, memory);
    if (p.cluster > 1) {
      cluster_wait_for_start();
    }
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(V::kLoadRegisters));
    int const rank = own_rank(p);
    if (warp == kWeightWarp && lane() == 0) {
      load_weights<V>(p, memory, rank);
    } else if (warp == kTokenWarp && lane() == 0) {
      load_tokens<V>(p, memory, rank);
    } else if (warp == kScalarWarp && lane() == 0) {
      // Each slice would wait for memory otherwise.
      for_each_scalar(p.epilogue, [&](auto const *number) { bring_near(number, memory.unused()); });
    }
    __syncwarp();
    if (p.cluster > 1) {
      cluster_wait_for_start();
      if (warp == kTokenWarp && lane() < p.cluster && lane() != rank) {
        cluster_arrive(cluster_address(memory.exchangeable(), lane()));
      }
      __syncwarp();
    }
  }
  if (p.cluster > 1) {
    cluster_end();
  }
}
#endif
