// Many rows of A ("tokens"): tiles of kRows rows of B ("weights") by kTokens of A, for wgmma, which is given the weights
// from registers and the tokens from shared memory. The weights of a tile are decoded where they are used, once; the
// tokens are decoded into shared memory, once for all weights.
//
// Four warpgroups: two that multiply, with half of the weights each, one that decodes tokens, and one of which a thread
// loads. Where there are fewer tiles than SMs, a cluster shares a tile: each CTA takes a part of K, and of the sums each
// keeps some rows of D and gets what the others have of these, which it adds up always in the same order.

template <int kTokensOfTile, int kRowsOfTile>
struct Tile {
  static constexpr int kTokens = kTokensOfTile, kRows = kRowsOfTile;
  static constexpr int kThreads = 512, kMinBlocks = 1, kMostCluster = 4;
  // Multiplications of 64 weights that a warpgroup has at each step.
  static constexpr int kHalves = kRows / 128;
  static constexpr int kWarpRows = 16 * kHalves;
  // Blocks of K that are loaded at a time: rows of 128 bytes are half as many requests, where there is room for them.
  static constexpr int kStageBlocks = kRows == 128 ? 2 : 1;
  static constexpr int kRowBytes = kStageBlocks * kBlockBytes, kStageAtoms = kStageBlocks * kAtomsPerBlock;
  static constexpr int kWeightBytes = kRows * kRowBytes, kTokenBytes = kTokens * kRowBytes;
  static constexpr int kScaleBytes = kStageAtoms * kAtomBytes;  // of 128 rows
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes + (kHalves + 1) * kScaleBytes;
  // Decoded tokens of a block of K, in two panels of 64.
  static constexpr int kPanelBytes = kTokens * 128, kDecodedBytes = 2 * kPanelBytes;
  static constexpr int kDecodedStages = kTokens == 128 ? 3 : 4;
  static constexpr int kDecodeThreads = 128 / kTokens;  // that share a row of a block

  // The rows of D are written in slices, and where a cluster shares a tile, each CTA has some. A slice
  // takes no more than 16 registers.
  static constexpr int kSlices = kTokens * kRows > 128 * 128 ? kTokens * kRows / 4096 : 4;
  static constexpr int kSliceTokens = kTokens / kSlices, kChunks = kSliceTokens / 8;
  // Vectors of 4 sums that a thread has of a slice, and bytes of one of all threads.
  static constexpr int kVectors = kHalves * kChunks, kVectorBytes = 256 * 16;
  // What the others of a cluster have of a CTA's slices.
  static constexpr int kExchangeBytes = kSlices / kMostCluster * (kMostCluster - 1) * kVectors * kVectorBytes;
  // Where a thread writes a row of D, a warp's part of a slice, as rows; the pitch keeps the banks apart.
  static constexpr int kPitch = 36, kStagingBytes = kSimple ? 0 : 8 * kSliceTokens * kPitch * 4;

  static constexpr int kBarrierBytes = 512;
  // The panels lie at multiples of 1024 bytes, and the stages at multiples of what their rows are swizzled over.
  static constexpr int kFixed = 1024 + kDecodedStages * kDecodedBytes + kStagingBytes + kBarrierBytes;
  static constexpr int kMostStages = (227 * 1024 - kFixed) / kStageBytes;
  static constexpr int kStages = kMostStages < 8 ? kMostStages : 8;
  static constexpr int kShared = kFixed + kStages * kStageBytes;
  static_assert(kStages >= 3 && kSlices % kMostCluster == 0 && kExchangeBytes <= kStages * kStageBytes);
  static_assert(kStageBytes % (kStageBlocks == 1 ? 512 : 1024) == 0);
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
  CUTLASS_DEVICE uint32_t tokens(int stage) const { return weights(stage) + V::kWeightBytes; }
  CUTLASS_DEVICE uint32_t weight_scales(int stage) const { return tokens(stage) + V::kTokenBytes; }
  CUTLASS_DEVICE uint32_t token_scales(int stage) const { return weight_scales(stage) + V::kHalves * V::kScaleBytes; }
  CUTLASS_DEVICE uint32_t staging(int warp) const { return weights(V::kStages) + warp * (V::kStagingBytes / 8); }
  // The sums of a cluster take the place of what was loaded.
  CUTLASS_DEVICE uint32_t exchange() const { return weights(0); }
  // Barriers: a stage was loaded, is no longer needed; tokens were decoded, are no longer needed; the others' memory may be
  // written to, and this CTA's was, for a warp.
  CUTLASS_DEVICE uint32_t barrier(int index) const { return weights(V::kStages) + V::kStagingBytes + 8 * index; }
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

// A tile, and the blocks of K that this CTA has of it.
struct Work {
  int batch, tile_m, tile_n;
  int begin, end;
};

// The tiles in an order in which those of a moment are of few rows of either operand.
template <class V>
CUTLASS_DEVICE Work work(Parameters const &p, int tile, int rank) {
  constexpr int kWidth = 8;
  Work result = {0, 0, tile};
  int const of_matrix = p.tiles_m * p.tiles_n;
  // What is usual needs no division, each of which the first load would wait for.
  if (tile >= of_matrix) {
    result.batch = static_cast<unsigned>(tile) / of_matrix;
    result.tile_n = tile - result.batch * of_matrix;
  }
  if (p.tiles_m > 1) {
    unsigned const of_group = kWidth * p.tiles_m, group = result.tile_n / of_group;
    unsigned const inside = result.tile_n - group * of_group;
    unsigned const width = min(kWidth, p.tiles_n - static_cast<int>(group) * kWidth);
    result.tile_m = width == kWidth ? inside / kWidth : inside / width;
    result.tile_n = group * kWidth + inside - result.tile_m * width;
  }
  // A CTA begins with a block that a stage begins with.
  int const blocks = (p.k + kBlockK - 1) / kBlockK, stages = (blocks + V::kStageBlocks - 1) / V::kStageBlocks;
  result.begin = (stages * rank >> p.cluster_bits) * V::kStageBlocks;
  result.end = min((stages * (rank + 1) >> p.cluster_bits) * V::kStageBlocks, blocks);
  return result;
}

// Every CTA of a cluster, or every CTA, begins with a tile of its own and goes on with the next that nobody has.
#define FOURFOLD_FOR_EACH_TILE(tile) \
  for (int tile = blockIdx.x >> p.cluster_bits; tile < p.tiles; tile += gridDim.x >> p.cluster_bits)

// The scales of rows for a stage. Beyond the last along K there are none: codes are zero there, and the last will do.
template <class V>
CUTLASS_DEVICE void load_scales(uint32_t to, uint8_t const *of_rows, int block, int atoms, uint32_t barrier) {
  int const first = block * kAtomsPerBlock;
  if (first + V::kStageAtoms <= atoms) {
    load_bytes(to, of_rows + static_cast<int64_t>(first) * kAtomBytes, V::kScaleBytes, barrier);
  } else {
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < V::kStageAtoms; ++i) {
      load_bytes(to + i * kAtomBytes, of_rows + static_cast<int64_t>(min(first + i, atoms - 1)) * kAtomBytes, kAtomBytes,
                 barrier);
    }
  }
}

// The thread that loads.
template <class V>
CUTLASS_DEVICE void load(Parameters const &p, TileMemory<V> const &memory, int rank) {
  Ring<V::kStages> ring;
  FOURFOLD_FOR_EACH_TILE(tile) {
    Work const here = work<V>(p, tile, rank);
    int64_t const pitch = static_cast<int64_t>(p.atoms) * kAtomBytes;
    // Scales of 128 rows. A tile that ends within its first 128 reads the scales of those again.
    uint8_t const *of_weights[V::kHalves];
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < V::kHalves; ++half) {
      int const rows = here.batch * p.weight_blocks + min(here.tile_n * V::kHalves + half, p.weight_blocks - 1);
      of_weights[half] = p.weight_scales + rows * pitch;
    }
    uint8_t const *const of_tokens =
        p.token_scales + (here.batch * p.token_blocks + here.tile_m * V::kTokens / 128) * pitch;
    CUTLASS_PRAGMA_NO_UNROLL  // its thread has few registers
    for (int block = here.begin; block < here.end; block += V::kStageBlocks, ring.next()) {
      barrier_wait(memory.consumed(ring.stage), ring.phase ^ 1);
      uint32_t const barrier = memory.loaded(ring.stage);
      barrier_expect(barrier, V::kStageBytes);
      load_tile(p.weight_map, memory.weights(ring.stage), barrier, block * kBlockBytes, here.tile_n * V::kRows, here.batch);
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < V::kHalves; ++half) {
        load_scales<V>(memory.weight_scales(ring.stage) + half * V::kScaleBytes, of_weights[half], block, p.atoms, barrier);
      }
      load_tile(p.token_map, memory.tokens(ring.stage), barrier, block * kBlockBytes, here.tile_m * V::kTokens, here.batch);
      load_scales<V>(memory.token_scales(ring.stage), of_tokens, block, p.atoms, barrier);
    }
  }
  if (p.cluster > 1) {
    // Others may write where it was loaded to, once nothing of it is needed.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < V::kStages; ++i, ring.next()) {
      barrier_wait(memory.consumed(ring.stage), ring.phase ^ 1);
    }
  }
}

// The place of 16 bytes of a stage's row, swizzled as they were loaded: rows of 64 bytes over 512, of 128 over 1024.
template <class V>
CUTLASS_DEVICE uint32_t swizzled(int row, int sixteen) {
  return row * V::kRowBytes + (V::kStageBlocks == 1 ? sixteen ^ row / 2 % 4 : sixteen ^ row % 8) * 16;
}

// The warpgroup that decodes tokens. A thread has a row of a block, or with fewer rows some of the words of each 16 bytes.
template <class V>
CUTLASS_DEVICE void decode_tokens(Parameters const &p, TileMemory<V> const &memory, int rank, int thread) {
  constexpr int kWords = 4 / V::kDecodeThreads;
  int const row = thread / V::kDecodeThreads, first = thread % V::kDecodeThreads * kWords;
  Ring<V::kStages> from;
  Ring<V::kDecodedStages> to;
  FOURFOLD_FOR_EACH_TILE(tile) {
    Work const here = work<V>(p, tile, rank);
    int const in_atom = here.tile_m * V::kTokens % 128 + row;
    int const scale_at = in_atom % 32 * 16 + in_atom / 32 * 4;
    for (int block = here.begin; block < here.end; ++block, to.next()) {
      int const part = block % V::kStageBlocks;
      bool const is_last = part == V::kStageBlocks - 1 || block + 1 == here.end;
      if (part == 0) {
        barrier_wait(memory.loaded(from.stage), from.phase);
      }
      uint32_t codes[4][kWords];
      CUTLASS_PRAGMA_UNROLL
      for (int t = 0; t < 4; ++t) {
        uint32_t const at = memory.tokens(from.stage) + (swizzled<V>(row, t) ^ part * kBlockBytes);
        if constexpr (kWords == 4) {
          uint4 const words = load_words(at);
          codes[t][0] = words.x, codes[t][1] = words.y, codes[t][2] = words.z, codes[t][3] = words.w;
        } else {
          static_assert(kWords == 2);
          uint2 const words = load_two_words(at + first * 4);
          codes[t][0] = words.x, codes[t][1] = words.y;
        }
      }
      uint32_t scales[kAtomsPerBlock];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtomsPerBlock; ++i) {
        scales[i] = load_word(memory.token_scales(from.stage) + (part * kAtomsPerBlock + i) * kAtomBytes + scale_at);
      }
      barrier_wait(memory.emptied(to.stage), to.phase ^ 1);
      uint32_t const panels = memory.decoded(to.stage) + row * 128;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        int const word = first + i;
        Decoded parts[4];
        CUTLASS_PRAGMA_UNROLL
        for (int t = 0; t < 4; ++t) {
          uint32_t const of_thread = kMx ? mx_scale(scales[0] >> 8 * t & 0xFF)
                                         : two_scales(scales[t / 2 % kAtomsPerBlock] >> t % 2 * 16);
          parts[t] = decode(codes[t][i], scale_of_word(of_thread, word));
        }
        CUTLASS_PRAGMA_UNROLL
        for (int step = 0; step < 2; ++step) {
          int const chunk = (2 * word + step) * 2;
          uint32_t const panel = panels + chunk / 8 * V::kPanelBytes;
          store_words(panel + ((chunk % 8) ^ (row % 8)) * 16, parts[0].low[step], parts[1].low[step], parts[2].low[step],
                      parts[3].low[step]);
          store_words(panel + ((chunk % 8 + 1) ^ (row % 8)) * 16, parts[0].high[step], parts[1].high[step],
                      parts[2].high[step], parts[3].high[step]);
        }
      }
      // wgmma reads by another way than this was written.
      fence_async();
      __syncwarp();
      if (thread % 32 == 0) {
        barrier_arrive(memory.filled(to.stage));
        if (is_last) {
          barrier_arrive(memory.consumed(from.stage));
        }
      }
      if (is_last) {
        from.next();
      }
    }
  }
}

// Which of a warp's weights a thread has first; its others are this one xor 1, 2 and 3. They are side by side, so that a
// thread has whole pieces of D. In which order it has them differs between quads: so the codes that eight lanes read lie in
// different banks, and so do the scales that eight quads read.
template <class V>
CUTLASS_DEVICE int first_weight(int quad) {
  return V::kHalves == 2 ? quad * 4 + ((quad ^ quad / 2) % 2 + quad / 4 * 2)
                         : quad / 4 * 8 + quad % 2 * 4 + quad / 2 % 2 * 2 + (quad ^ quad / 4) % 2;
}

// What a thread has of 8 rows of D, as four columns side by side: of two rows, or of one where two lanes have these
// columns.
template <int kHalves>
CUTLASS_DEVICE void arrange(int quad, float const *sums, float (&rows)[kHalves][4]) {
  if constexpr (kHalves == 2) {
    bool const odd = (quad ^ quad / 2) % 2 != 0, upper = quad / 4 != 0;
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < 2; ++row) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const near = i % 2 * 2 + row, far = (1 - i % 2) * 2 + row;
        float const low = odd ? sums[far] : sums[near], high = odd ? sums[4 + far] : sums[4 + near];
        rows[row][i] = (upper == (i < 2) ? high : low) * kFactor;
      }
    }
  } else {
    bool const odd = (quad ^ quad / 4) % 2 != 0, second = quad / 2 % 2 != 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2; ++i) {
      float const of_first = odd ? sums[2 - 2 * i] : sums[2 * i], of_second = odd ? sums[3 - 2 * i] : sums[2 * i + 1];
      // The other lane is 2 quads away: each gets what both have of its row.
      float const own = second ? of_second : of_first, given = second ? of_first : of_second;
      float const got = __uint_as_float(__shfl_xor_sync(0xFFFFFFFFu, __float_as_uint(given), 8));
      rows[0][i] = (second ? got : own) * kFactor;
      rows[0][2 + i] = (second ? own : got) * kFactor;
    }
  }
}

// Writes a warp's part of a slice of D: of each chunk of 8 rows, what wgmma left in a thread.
template <class V>
CUTLASS_DEVICE void write_slice(Parameters const &p, TileMemory<V> const &memory, Work const &tile, int slice,
                                float const (&sums)[V::kVectors * 4]) {
  int const thread = computed_again(threadIdx.x), warp = thread / 32, quad = thread % 32 / 4, t = thread % 4;
  Place here{tile.batch, tile.tile_m * V::kTokens + slice * V::kSliceTokens, tile.tile_n * V::kRows + warp * V::kWarpRows,
             p.m, p.n, 0};
  if constexpr (kSimple) {
    here.m += V::kHalves == 2 ? 2 * t : 2 * t + quad / 2 % 2;
    here.n += first_weight<V>(quad) / 4 * 4;
    auto states = begin_outputs<4>(p.epilogue);
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < V::kChunks; ++chunk) {
      float rows[V::kHalves][4];
      arrange<V::kHalves>(quad, sums + chunk * V::kHalves * 4, rows);
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < V::kHalves; ++row) {
        Place at = here;
        at.m += chunk * 8 + row;
        cutlass::Array<float, 4> sum;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          sum[i] = rows[row][i];
        }
        // What lies outside is computed too: what is read for all of D then stands before the loops.
        write_outputs<4>(p.epilogue, states, at, sum);
      }
    }
  } else {
    uint32_t const staging = memory.staging(warp);
    __syncwarp();
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < V::kChunks; ++chunk) {
      float rows[V::kHalves][4];
      arrange<V::kHalves>(quad, sums + chunk * V::kHalves * 4, rows);
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        store_words(staging + ((chunk * 8 + 2 * t + row) * V::kPitch + quad * 4) * 4, __float_as_uint(rows[row][0]),
                    __float_as_uint(rows[row][1]), __float_as_uint(rows[row][2]), __float_as_uint(rows[row][3]));
      }
    }
    __syncwarp();
    // All lanes of a warp work together; those without a row have one that is outside.
    bool const has_row = lane() < V::kSliceTokens;
    here.m = has_row ? here.m + lane() : p.m;
    auto states = begin_outputs<32>(p.epilogue);
    write_outputs<32>(p.epilogue, states, here, load_floats<32>(staging + (has_row ? lane() : 0) * V::kPitch * 4));
    end_outputs<32>(p.epilogue, states, here);
  }
}

// Sends each of the other CTAs of a cluster what this one has of its slices, and waits for what they send.
template <class V>
CUTLASS_DEVICE void exchange(Parameters const &p, TileMemory<V> const &memory, int rank,
                             float const (&sums)[V::kHalves][V::kTokens / 2]) {
  int const thread = computed_again(threadIdx.x), warp = thread / 32, each = V::kSlices >> p.cluster_bits;
  barrier_wait(memory.exchangeable(), 0);
  // Of each of its slices a CTA has the vectors of one other CTA after the other, each of all threads.
  CUTLASS_PRAGMA_UNROLL
  for (int slice = 0; slice < V::kSlices; ++slice) {
    int const receiver = slice * p.cluster / V::kSlices, local = slice & (each - 1);
    if (receiver == rank) {
      continue;
    }
    int const source = local * (p.cluster - 1) + (rank < receiver ? rank : rank - 1);
    uint32_t const at = memory.exchange() + source * V::kVectors * V::kVectorBytes + thread * 16;
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

// Writes the slices that this CTA has of a tile.
template <class V, bool kShared>
CUTLASS_DEVICE void write_tile(Parameters const &p, TileMemory<V> const &memory, Work const &tile, int rank,
                               float const (&sums)[V::kHalves][V::kTokens / 2]) {
  int const each = kShared ? V::kSlices >> p.cluster_bits : V::kSlices;
  // Registers have no index: which slice it is, is told by branches, and the epilogue stands here once.
  CUTLASS_PRAGMA_NO_UNROLL
  for (int local = 0; local < each; ++local) {
    int const slice = kShared ? rank * each + local : local;
    float part[V::kVectors * 4] = {};
    cute::for_each(cute::make_seq<V::kSlices>{}, [&](auto one) {
      if (one == slice) {
        keep_branch();
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < V::kVectors * 4; ++i) {
          part[i] = sums[i / 4 % V::kHalves][(one * V::kChunks + i / 4 / V::kHalves) * 4 + i % 4];
        }
      }
    });
    if constexpr (kShared) {
      // In the order of ranks, whoever adds.
      float all[V::kVectors * 4] = {};
      uint32_t at = memory.exchange() + local * (p.cluster - 1) * V::kVectors * V::kVectorBytes + threadIdx.x * 16;
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

// A warpgroup that multiplies.
template <class V>
CUTLASS_DEVICE void multiply(Parameters const &p, TileMemory<V> const &of_all) {
  constexpr int kWeights = 2 * V::kHalves;  // of a thread
  constexpr uint32_t kNextCodes = V::kStageBlocks == 1 ? V::kRowBytes : V::kRowBytes + 16, kNextScales = 16;
  // Two halves leave few registers: addresses are found for each tile, and have none while it is written.
  auto const again = [](int x) { return V::kHalves == 1 || !kSimple ? x : computed_again(x); };
  Ring<V::kStages> ring;
  Ring<V::kDecodedStages> from;
  FOURFOLD_FOR_EACH_TILE(tile) {
    Work const here = work<V>(p, tile, own_rank(p));
    TileMemory<V> const memory(static_cast<uint32_t>(again(of_all.base)));
    int const thread = again(threadIdx.x), t = thread % 4;
    int const row = thread / 32 * V::kWarpRows + first_weight<V>(thread % 32 / 4);
    // Of the thread's first weight; its others' places differ in the bits of a row's number.
    uint32_t const codes_at =
        memory.weights(0) + (V::kStageBlocks == 1 ? row * V::kRowBytes + t * 16 : swizzled<V>(row, t));
    uint32_t const scales_at = memory.weight_scales(0) + row / 128 * V::kScaleBytes + row % 32 * 16 + row / 32 % 4 * 4 +
                               (kMx ? t : t / 2 * kAtomBytes + t % 2 * 2);
    float sums[V::kHalves][V::kTokens / 2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kHalves * V::kTokens / 2; ++i) {
      sums[i % V::kHalves][i / V::kHalves] = 0.0f;
    }
    int previous = -1;
    for (int block = here.begin; block < here.end; ++block) {
      int const part = block % V::kStageBlocks;
      bool const is_last = part == V::kStageBlocks - 1 || block + 1 == here.end;
      if (part == 0) {
        barrier_wait(memory.loaded(ring.stage), ring.phase);
      }
      uint32_t const codes_here = codes_at + ring.stage * V::kStageBytes ^ part * kBlockBytes;
      uint32_t const scales_here = scales_at + ring.stage * V::kStageBytes + part * kAtomsPerBlock * kAtomBytes;
      uint4 codes[kWeights];
      uint32_t scales[kWeights];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWeights; ++i) {
        codes[i] = load_words(codes_here ^ i * kNextCodes);
        uint32_t const at = scales_here ^ i * kNextScales;
        scales[i] = kMx ? mx_scale(load_byte(at)) : two_scales(load_half(at));
      }
      barrier_wait(memory.filled(from.stage), from.phase);
      uint64_t const tokens = descriptor(memory.decoded(from.stage));
      // What two words are decoded to, by step, half of the rows, and register: while one is multiplied, the other is made.
      uint32_t operands[2][2][V::kHalves][4];
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        auto &now = operands[word % 2];
        // All but the word before is done.
        wgmma_wait<1>();
        if (word == 1 && previous >= 0 && lane() == 0) {
          barrier_arrive(memory.emptied(previous));
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kWeights; ++i) {
          uint32_t const eight = word == 0 ? codes[i].x : word == 1 ? codes[i].y : word == 2 ? codes[i].z : codes[i].w;
          Decoded const parts = decode(eight, scale_of_word(scales[i], word));
          CUTLASS_PRAGMA_UNROLL
          for (int step = 0; step < 2; ++step) {
            now[step][i / 2][i % 2] = parts.low[step];
            now[step][i / 2][2 + i % 2] = parts.high[step];
          }
        }
        wgmma_fence();
        CUTLASS_PRAGMA_UNROLL
        for (int step = 0; step < 2; ++step) {
          int const s = 2 * word + step;
          uint64_t const b = tokens + ((s / 4 * V::kPanelBytes + s % 4 * 32) >> 4);
          CUTLASS_PRAGMA_UNROLL
          for (int half = 0; half < V::kHalves; ++half) {
            Wgmma<V::kTokens>::run(sums[half], now[step][half], b);
          }
        }
        wgmma_commit();
        if (word == 0) {
          // What was read of the stage has come, as a part of each read was used: what is loaded next cannot change it.
          if constexpr (V::kHalves == 1) {
            // What needs no order here keeps two warpgroups apart: 5 % faster on an H200, and with 256 weights 2 % slower.
            fence_async();
          }
          __syncwarp();
          if (lane() == 0 && is_last) {
            barrier_arrive(memory.consumed(ring.stage));
          }
        }
      }
      previous = from.stage;
      from.next();
      if (is_last) {
        ring.next();
      }
    }
    wgmma_wait<0>();
    if (previous >= 0 && lane() == 0) {
      barrier_arrive(memory.emptied(previous));
    }
    if (p.cluster > 1) {
      int const rank = own_rank(p);
      exchange<V>(p, memory, rank, sums);
      write_tile<V, true>(p, memory, here, rank, sums);
      // A cluster has one tile. That the loop ends here tells the compiler that what it counts is the same for all threads.
      return;
    }
    write_tile<V, false>(p, memory, here, 0, sums);
  }
}

template <class V>
CUTLASS_DEVICE void make_barriers(Parameters const &p, TileMemory<V> const &memory) {
  for (int i = 0; i < V::kStages; ++i) {
    barrier_init(memory.loaded(i), 1);
    barrier_init(memory.consumed(i), 12);  // the warps of three warpgroups
  }
  for (int i = 0; i < V::kDecodedStages; ++i) {
    barrier_init(memory.filled(i), 4);
    barrier_init(memory.emptied(i), 8);
  }
  if (p.cluster > 1) {
    barrier_init(memory.exchangeable(), p.cluster - 1);
    for (int warp = 0; warp < 8; ++warp) {
      barrier_init(memory.exchanged(warp), 1);
      barrier_expect(memory.exchanged(warp), (V::kSlices >> p.cluster_bits) * (p.cluster - 1) * V::kVectors * 32 * 16);
    }
  }
  fence_barriers();
}

template <class V>
CUTLASS_DEVICE void compute_tiles(Parameters const &p, void *shared) {
  TileMemory<V> const memory(shared);
  int const group = threadIdx.x / 128;
  bool const loads = threadIdx.x / 32 == 12;
  if (loads && lane() == 0) {
    prefetch_map(p.weight_map);
    prefetch_map(p.token_map);
    make_barriers<V>(p, memory);
  }
  __syncthreads();
  if (p.cluster > 1) {
    cluster_start();
  }
  // Registers go to those who multiply; an epilogue of many values must not take those of operands in flight. With more
  // than 200 for 256 rows and values alone `ptxas` spills addresses, or lets each wgmma wait for the one before.
  constexpr int kMultiply = V::kHalves == 1 ? 184 : kSimple ? 200 : 216, kLoad = V::kHalves == 1 ? 40 : 32;
  constexpr int kDecode = 512 - 2 * kMultiply - kLoad;
  if (group == 3) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLoad));
    if (loads) {
      int const rank = own_rank(p);
      if (lane() == 0) {
        load<V>(p, memory, rank);
      }
      __syncwarp();
      if (p.cluster > 1) {
        cluster_wait_for_start();
        if (lane() < p.cluster && lane() != rank) {
          cluster_arrive(cluster_address(memory.exchangeable(), lane()));
        }
      }
    } else if (threadIdx.x / 32 == 13) {
      // Each slice would wait for memory otherwise.
      for_each_scalar(p.epilogue, [&](auto const *number) { touch(number, memory.unused()); });
    }
  } else if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kDecode));
    decode_tokens<V>(p, memory, own_rank(p), threadIdx.x % 128);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiply));
    multiply<V>(p, memory);
  }
}
#endif
