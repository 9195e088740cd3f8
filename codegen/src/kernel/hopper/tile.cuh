// Many rows of A ("tokens"): tiles of 256 rows of B ("weights") by kTokens of A, for wgmma, which is given the weights from
// registers and the tokens from shared memory. The weights of a tile are decoded where they are used, once; the tokens are
// decoded into shared memory, once for all 256 rows.
//
// Four warpgroups: two that multiply, with 128 weights each, one that decodes tokens, and one of which a thread loads. Where
// there are fewer tiles than SMs, a cluster shares a tile: each CTA takes a part of K, and they add up what they have
// through their shared memory, always in the same order.

template <int kTokens>
struct Tile {
  static constexpr int kThreads = 512, kMinBlocks = 1, kRows = 256, kMostCluster = 8;
  // What is loaded of a block of K.
  static constexpr int kWeightBytes = kRows * kBlockBytes, kTokenBytes = kTokens * kBlockBytes;
  static constexpr int kScaleBytes = kAtomsPerBlock * kAtomBytes;  // of 128 rows
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes + 3 * kScaleBytes;
  // Decoded tokens of a block of K, in two panels of 64.
  static constexpr int kPanelBytes = kTokens * 128, kDecodedBytes = 2 * kPanelBytes;
  static constexpr int kDecodedStages = kTokens == 128 ? 3 : 4;
  static constexpr int kDecodeThreads = 128 / kTokens;  // that share a row of a block

  // The rows of D are written in slices, and where a cluster shares a tile, each CTA has the sums of some.
  static constexpr int kSlices = 8;
  static constexpr int kSliceTokens = kTokens / kSlices, kChunks = kSliceTokens / 8;
  // Vectors of 4 sums that a thread has of a slice.
  static constexpr int kVectors = 2 * kChunks;
  // A warp's part of a slice, transposed; the pitch keeps the banks apart.
  static constexpr int kPitch = 36, kStagingBytes = 8 * kSliceTokens * kPitch * 4;
  static constexpr int kExchangeBytes = kSlices * kVectors * kRows * 16;

  static constexpr int kBarrierBytes = 512;
  // The panels lie at multiples of 1024 bytes, and the stages are multiples of 512.
  static constexpr int kFixed = 1024 + kDecodedStages * kDecodedBytes + kStagingBytes + kBarrierBytes;
  static constexpr int kMostStages = (227 * 1024 - kFixed) / kStageBytes;
  static constexpr int kStages = kMostStages < 8 ? kMostStages : 8;
  static constexpr int kShared = kFixed + kStages * kStageBytes;
  static_assert(kStages >= 3 && kExchangeBytes <= kDecodedStages * kDecodedBytes + kStages * kStageBytes);
};

#ifndef FOURFOLD_HOST

// Where everything is in shared memory.
template <class V>
struct TileMemory {
  uint32_t base;
  CUTLASS_DEVICE explicit TileMemory(void *memory) : base((shared_address(memory) + 1023) & ~1023u) {}
  CUTLASS_DEVICE uint32_t decoded(int stage) const { return base + stage * V::kDecodedBytes; }
  CUTLASS_DEVICE uint32_t weights(int stage) const {
    return base + V::kDecodedStages * V::kDecodedBytes + stage * V::kStageBytes;
  }
  CUTLASS_DEVICE uint32_t tokens(int stage) const { return weights(stage) + V::kWeightBytes; }
  CUTLASS_DEVICE uint32_t weight_scales(int stage) const { return tokens(stage) + V::kTokenBytes; }
  CUTLASS_DEVICE uint32_t token_scales(int stage) const { return weight_scales(stage) + 2 * V::kScaleBytes; }
  CUTLASS_DEVICE uint32_t staging(int warp) const { return weights(V::kStages) + warp * (V::kStagingBytes / 8); }
  // The sums of a cluster take the place of all that was loaded and decoded.
  CUTLASS_DEVICE uint32_t exchange() const { return base; }
  // Barriers: a stage was loaded, is no longer needed; tokens were decoded, are no longer needed; the exchange may be
  // written to, and a warp's part of it was.
  CUTLASS_DEVICE uint32_t barrier(int index) const { return weights(V::kStages) + V::kStagingBytes + 8 * index; }
  CUTLASS_DEVICE uint32_t loaded(int stage) const { return barrier(stage); }
  CUTLASS_DEVICE uint32_t consumed(int stage) const { return barrier(V::kStages + stage); }
  CUTLASS_DEVICE uint32_t filled(int stage) const { return barrier(2 * V::kStages + stage); }
  CUTLASS_DEVICE uint32_t emptied(int stage) const { return barrier(2 * V::kStages + V::kDecodedStages + stage); }
  CUTLASS_DEVICE uint32_t exchangeable() const { return barrier(2 * (V::kStages + V::kDecodedStages)); }
  CUTLASS_DEVICE uint32_t exchanged(int warp) const { return barrier(2 * (V::kStages + V::kDecodedStages) + 1 + warp); }
};

// A tile, and the blocks of K that this CTA has of it.
struct Work {
  int batch, tile_m, tile_n;
  int begin, end;
};

// The tiles in an order in which those of a moment are of few rows of either operand.
CUTLASS_DEVICE Work work(Parameters const &p, int tile, int rank) {
  constexpr int kWidth = 8;
  Work result;
  int const of_matrix = p.tiles_m * p.tiles_n;
  result.batch = tile / of_matrix;
  int const rest = tile - result.batch * of_matrix;
  int const group = rest / (kWidth * p.tiles_m), inside = rest - group * kWidth * p.tiles_m;
  int const width = min(kWidth, p.tiles_n - group * kWidth);
  result.tile_m = inside / width;
  result.tile_n = group * kWidth + inside - result.tile_m * width;
  int const blocks = (p.k + kBlockK - 1) / kBlockK;
  result.begin = static_cast<int>(static_cast<int64_t>(blocks) * rank / p.cluster);
  result.end = static_cast<int>(static_cast<int64_t>(blocks) * (rank + 1) / p.cluster);
  return result;
}

// Every CTA of a cluster, or every CTA, begins with a tile of its own and goes on with the next that nobody has.
#define FOURFOLD_FOR_EACH_TILE(tile) \
  for (int tile = blockIdx.x / p.cluster; tile < p.tiles; tile += gridDim.x / p.cluster)

// The scales of a block's rows. Beyond the last along K there are none: codes are zero there, and the last will do.
CUTLASS_DEVICE void load_scales(uint32_t to, uint8_t const *of_rows, int block, int atoms, uint32_t barrier) {
  int const first = block * kAtomsPerBlock;
  if (first + kAtomsPerBlock <= atoms) {
    load_bytes(to, of_rows + static_cast<int64_t>(first) * kAtomBytes, kAtomsPerBlock * kAtomBytes, barrier);
  } else {
    for (int i = 0; i < kAtomsPerBlock; ++i) {
      load_bytes(to + i * kAtomBytes, of_rows + static_cast<int64_t>(min(first + i, atoms - 1)) * kAtomBytes, kAtomBytes,
                 barrier);
    }
  }
}

// The thread that loads.
template <int kTokens>
CUTLASS_DEVICE void load(Parameters const &p, TileMemory<Tile<kTokens>> const &memory, int rank) {
  using V = Tile<kTokens>;
  Ring<V::kStages> ring;
  FOURFOLD_FOR_EACH_TILE(tile) {
    Work const here = work(p, tile, rank);
    int64_t const pitch = static_cast<int64_t>(p.atoms) * kAtomBytes;
    // A tile that ends within its first 128 rows reads the scales of those again.
    int const first = here.tile_n * 2, second = min(first + 1, p.weight_blocks - 1);
    uint8_t const *const weights = p.weight_scales + static_cast<int64_t>(here.batch) * p.weight_blocks * pitch;
    int64_t const token_block = static_cast<int64_t>(here.batch) * p.token_blocks + here.tile_m * kTokens / 128;
    uint8_t const *const tokens = p.token_scales + token_block * pitch;
    for (int block = here.begin; block < here.end; ++block, ring.next()) {
      barrier_wait(memory.consumed(ring.stage), ring.phase ^ 1);
      uint32_t const barrier = memory.loaded(ring.stage);
      barrier_expect(barrier, V::kStageBytes);
      load_tile(p.weight_map, memory.weights(ring.stage), barrier, block * kBlockBytes, here.tile_n * V::kRows, here.batch);
      load_scales(memory.weight_scales(ring.stage), weights + first * pitch, block, p.atoms, barrier);
      load_scales(memory.weight_scales(ring.stage) + V::kScaleBytes, weights + second * pitch, block, p.atoms, barrier);
      load_tile(p.token_map, memory.tokens(ring.stage), barrier, block * kBlockBytes, here.tile_m * kTokens, here.batch);
      load_scales(memory.token_scales(ring.stage), tokens, block, p.atoms, barrier);
    }
  }
}

// The warpgroup that decodes tokens. A thread has a row of a block, or with fewer rows some of the words of each 16 bytes.
template <int kTokens>
CUTLASS_DEVICE void decode_tokens(Parameters const &p, TileMemory<Tile<kTokens>> const &memory, int rank, int thread) {
  using V = Tile<kTokens>;
  constexpr int kWords = 4 / V::kDecodeThreads;
  int const row = thread / V::kDecodeThreads, first = thread % V::kDecodeThreads * kWords;
  // The 16 bytes of a row as they were swizzled when they were loaded.
  int const swizzle = row / 2 % 4;
  Ring<V::kStages> from;
  Ring<V::kDecodedStages> to;
  FOURFOLD_FOR_EACH_TILE(tile) {
    Work const here = work(p, tile, rank);
    int const in_atom = here.tile_m * kTokens % 128 + row;
    int const scale_at = in_atom % 32 * 16 + in_atom / 32 * 4;
    for (int block = here.begin; block < here.end; ++block, from.next(), to.next()) {
      barrier_wait(memory.loaded(from.stage), from.phase);
      uint32_t const codes_at = memory.tokens(from.stage) + row * kBlockBytes;
      uint32_t codes[4][kWords];
      CUTLASS_PRAGMA_UNROLL
      for (int t = 0; t < 4; ++t) {
        if constexpr (kWords == 4) {
          uint4 const words = load_words(codes_at + (t ^ swizzle) * 16);
          codes[t][0] = words.x, codes[t][1] = words.y, codes[t][2] = words.z, codes[t][3] = words.w;
        } else {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kWords; ++i) {
            codes[t][i] = load_word(codes_at + (t ^ swizzle) * 16 + (first + i) * 4);
          }
        }
      }
      uint32_t scales[kAtomsPerBlock];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtomsPerBlock; ++i) {
        scales[i] = load_word(memory.token_scales(from.stage) + i * kAtomBytes + scale_at);
      }
      barrier_wait(memory.emptied(to.stage), to.phase ^ 1);
      uint32_t const panels = memory.decoded(to.stage) + row * 128;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        int const word = first + i;
        Decoded parts[4];
        CUTLASS_PRAGMA_UNROLL
        for (int t = 0; t < 4; ++t) {
          uint32_t const of_thread = kMx ? mx_scale(scales[0] >> 8 * t & 0xFF) : two_scales(scales[t / 2 % kAtomsPerBlock] >> t % 2 * 16);
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
        barrier_arrive(memory.consumed(from.stage));
      }
    }
  }
}

// Puts a warp's part of a slice into shared memory, as rows of D: kSliceTokens of them, of 32 columns. `sums` are of a
// chunk of 8 rows, the half of the columns, and a register.
template <int kTokens>
CUTLASS_DEVICE void stage_slice(uint32_t staging, float const (&sums)[Tile<kTokens>::kChunks][2][4]) {
  using V = Tile<kTokens>;
  int const quad = lane() / 4, t = lane() % 4;
  __syncwarp();
  CUTLASS_PRAGMA_UNROLL
  for (int chunk = 0; chunk < V::kChunks; ++chunk) {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const row = chunk * 8 + 2 * t + i % 2, column = 8 * (2 * half + i / 2) + quad;
        store_word(staging + (row * V::kPitch + column) * 4, __float_as_uint(sums[chunk][half][i] * kFactor));
      }
    }
  }
  __syncwarp();
}

// Writes a warp's part of a slice from there.
template <int kTokens>
CUTLASS_DEVICE void write_slice(Parameters const &p, uint32_t staging, Work const &tile, int warp, int slice) {
  using V = Tile<kTokens>;
  int const quad = lane() / 4, t = lane() % 4;
  Place here{tile.batch, tile.tile_m * kTokens + slice * V::kSliceTokens, tile.tile_n * V::kRows + warp * 32, p.m, p.n, 0};
  if constexpr (kSimple) {
    here.m += lane() / 4;
    here.n += lane() % 4 * 8;
    auto states = begin_outputs<8>(p.epilogue);
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < V::kSliceTokens; row += 8, here.m += 8) {
      if (here.contains(0, 0)) {
        auto const sum = load_floats<8>(staging + ((row + quad) * V::kPitch + t * 8) * 4);
        write_outputs<8>(p.epilogue, states, here, sum);
      }
    }
  } else {
    // All lanes of a warp work together; those without a row have one that is outside.
    bool const has_row = lane() < V::kSliceTokens;
    here.m = has_row ? here.m + lane() : p.m;
    auto states = begin_outputs<32>(p.epilogue);
    write_outputs<32>(p.epilogue, states, here, load_floats<32>(staging + (has_row ? lane() : 0) * V::kPitch * 4));
    end_outputs<32>(p.epilogue, states, here);
  }
}

// Adds up what the CTAs of a cluster, a power of two of them, have of a tile, and writes it.
template <int kTokens>
CUTLASS_DEVICE void add_up(Parameters const &p, TileMemory<Tile<kTokens>> const &memory, Work const &tile, int rank,
                           float const (&sums)[2][kTokens / 2]) {
  using V = Tile<kTokens>;
  constexpr int kOfThreads = V::kRows * 16;  // bytes of a vector of each thread
  int const thread = threadIdx.x, warp = thread / 32;
  int const receivers = min(p.cluster, V::kSlices), each = V::kSlices / receivers;
  // Who has slices tells all that nothing of its shared memory is needed any more.
  cluster_wait_for_start();
  __syncwarp();
  if (rank < receivers && lane() < p.cluster) {
    cluster_arrive(cluster_address(memory.exchangeable(), lane()));
  }
  cluster_wait(memory.exchangeable(), 0);
  // Of each of its slices a CTA has the vectors of one CTA after the other, each of all threads.
  CUTLASS_PRAGMA_UNROLL
  for (int slice = 0; slice < V::kSlices; ++slice) {
    int const receiver = slice * receivers / V::kSlices, local = slice & (each - 1);
    uint32_t const at = memory.exchange() + (local * p.cluster + rank) * V::kVectors * kOfThreads + thread * 16;
    uint32_t const to = cluster_address(at, receiver), barrier = cluster_address(memory.exchanged(warp), receiver);
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < V::kVectors; ++v) {
      int const first = (slice * V::kChunks + v / 2) * 4;
      cluster_store(to + v * kOfThreads, &sums[v % 2][first], barrier);
    }
  }
  if (rank >= receivers) {
    return;
  }
  cluster_wait(memory.exchanged(warp), 0);
  for (int local = 0; local < each; ++local) {
    float part[V::kChunks][2][4] = {};
    for (int source = 0; source < p.cluster; ++source) {
      uint32_t const at = memory.exchange() + (local * p.cluster + source) * V::kVectors * kOfThreads + thread * 16;
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < V::kVectors; ++v) {
        auto const four = load_floats<4>(at + v * kOfThreads);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          part[v / 2][v % 2][i] += four[i];
        }
      }
    }
    stage_slice<kTokens>(memory.staging(warp), part);
    write_slice<kTokens>(p, memory.staging(warp), tile, warp, rank * each + local);
  }
}

// A warpgroup that multiplies. A warp has 32 weights, and a thread four of them, 8 rows apart.
template <int kTokens>
CUTLASS_DEVICE void multiply(Parameters const &p, TileMemory<Tile<kTokens>> const &memory, int rank, int group) {
  using V = Tile<kTokens>;
  int const warp = threadIdx.x % 128 / 32, quad = lane() / 4, t = lane() % 4;
  uint32_t const codes_at = memory.weights(0) + (group * 128 + warp * 32 + quad) * kBlockBytes + t * 16;
  uint32_t const scales_at = memory.weight_scales(0) + group * V::kScaleBytes + quad * 16 + warp * 4 +
                             (kMx ? t : t / 2 * kAtomBytes + t % 2 * 2);
  Ring<V::kStages> ring;
  Ring<V::kDecodedStages> from;
  FOURFOLD_FOR_EACH_TILE(tile) {
    Work const here = work(p, tile, rank);
    float sums[2][kTokens / 2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      sums[i % 2][i / 2] = 0.0f;
    }
    int previous = -1;
    for (int block = here.begin; block < here.end; ++block, ring.next()) {
      barrier_wait(memory.loaded(ring.stage), ring.phase);
      uint4 codes[4];
      uint32_t scales[4];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        codes[i] = load_words(codes_at + ring.stage * V::kStageBytes + i * 8 * kBlockBytes);
        uint32_t const at = scales_at + ring.stage * V::kStageBytes + i * 8 * 16;
        scales[i] = kMx ? mx_scale(load_byte(at)) : two_scales(load_half(at));
      }
      barrier_wait(memory.filled(from.stage), from.phase);
      uint64_t const tokens = descriptor(memory.decoded(from.stage));
      // What two words are decoded to, by step, half of the rows, and register: while one is multiplied, the other is made.
      uint32_t operands[2][2][2][4];
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        auto &now = operands[word % 2];
        // All but the word before is done.
        wgmma_wait<1>();
        if (word == 1 && previous >= 0 && lane() == 0) {
          barrier_arrive(memory.emptied(previous));
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
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
          Wgmma<kTokens>::run(sums[0], now[step][0], b);
          Wgmma<kTokens>::run(sums[1], now[step][1], b);
        }
        wgmma_commit();
        if (word == 0) {
          // What was read of the stage has come, as a part of each read was used: what is loaded next cannot change it.
          fence_async();
          __syncwarp();
          if (lane() == 0) {
            barrier_arrive(memory.consumed(ring.stage));
          }
        }
      }
      previous = from.stage;
      from.next();
    }
    wgmma_wait<0>();
    if (previous >= 0 && lane() == 0) {
      barrier_arrive(memory.emptied(previous));
    }
    if (p.cluster > 1) {
      add_up<kTokens>(p, memory, here, rank, sums);
      return;  // a cluster has one tile
    }
    uint32_t const staging = memory.staging(group * 4 + warp);
    // Registers have no index: which slice it is, is told by branches, and the epilogue stands here once.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int slice = 0; slice < V::kSlices; ++slice) {
      CUTLASS_PRAGMA_UNROLL
      for (int one = 0; one < V::kSlices; ++one) {
        if (one == slice) {
          float part[V::kChunks][2][4];
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < V::kChunks * 8; ++i) {
            part[i / 8][i / 4 % 2][i % 4] = sums[i / 4 % 2][(one * V::kChunks + i / 8) * 4 + i % 4];
          }
          stage_slice<kTokens>(staging, part);
        }
      }
      write_slice<kTokens>(p, staging, here, group * 4 + warp, slice);
    }
  }
}

template <int kTokens>
CUTLASS_DEVICE void compute_tiles(Parameters const &p, void *shared) {
  using V = Tile<kTokens>;
  TileMemory<V> const memory(shared);
  int const group = threadIdx.x / 128, rank = p.cluster == 1 ? 0 : cluster_rank();
  if (threadIdx.x == 0) {
    for (int i = 0; i < V::kStages; ++i) {
      barrier_init(memory.loaded(i), 1);
      barrier_init(memory.consumed(i), 12);  // the warps of three warpgroups
    }
    for (int i = 0; i < V::kDecodedStages; ++i) {
      barrier_init(memory.filled(i), 4);
      barrier_init(memory.emptied(i), 8);
    }
    int const receivers = min(p.cluster, V::kSlices);
    barrier_init(memory.exchangeable(), 8 * receivers);
    for (int warp = 0; warp < 8; ++warp) {
      barrier_init(memory.exchanged(warp), 1);
      barrier_expect(memory.exchanged(warp), V::kSlices / receivers * p.cluster * V::kVectors * 32 * 16);
    }
    fence_barriers();
  }
  __syncthreads();
  if (p.cluster > 1) {
    cluster_start();
  }
  // Registers go to those who multiply; an epilogue of many values must not take those of operands in flight.
  constexpr int kMultiply = kSimple ? 208 : 224, kDecode = kSimple ? 72 : 40, kLoad = 24;
  static_assert(2 * kMultiply + kDecode + kLoad <= 4 * 128);
  if (group == 3) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLoad));
    if (threadIdx.x % 128 == 0) {
      load<kTokens>(p, memory, rank);
    }
  } else if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kDecode));
    decode_tokens<kTokens>(p, memory, rank, threadIdx.x % 128);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiply));
    multiply<kTokens>(p, memory, rank, group);
  }
}
#endif
