// Reduces partial sums of clusters and splits, and stores D slice by slice.

#ifndef FOURFOLD_HOST
// The rest of kFactor if recompute_rows has multiplied by it.
constexpr float kSumFactor = kRecomputes ? 1.0f : kFactor;

// Arranges a thread's accumulators of 8 rows of D as two rows. Each row has as many adjacent columns as the thread has
// rows of B.
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
        rows[row][i] = (upper == (i < 2) ? high : low) * kSumFactor;
      } else {
        rows[row][i] = low * kSumFactor;
      }
    }
  }
}

// Each phase reduces and stores one of every kPhases adjacent slices: the one with index own_phase. Its sums are in the
// registers of slice kept_as.
template <class V>
CUTLASS_DEVICE int own_phase() {
  return V::kPhases == 1 ? 0 : warp_uniform(threadIdx.x / V::kPhaseThreads);
}
// Returns the index of the warpgroup along N.
template <class V>
CUTLASS_DEVICE int own_group() {
  return V::kGroupsN == 1 ? 0 : warp_uniform(threadIdx.x / 128);
}
template <class V>
CUTLASS_DEVICE bool is_own_slice(int slice) {
  return slice % V::kPhases == own_phase<V>();
}
template <class V>
CUTLASS_DEVICE constexpr int kept_as(int slice) {
  return slice / V::kPhases * V::kPhases;
}

// Multiplies kCount sums of a thread by kFactor, and computes those again that are not finite. They are of rows of the
// tile from `first` on, and `sum_at` returns one of them by its index.
template <class V, int kCount, class SumAt>
CUTLASS_DEVICE void recompute_rows(Parameters const &p, WorkTile const &tile, int first, SumAt const &sum_at) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kCount; ++i) {
    sum_at(i) *= kFactor;
  }
  unsigned const thread = rematerialize(threadIdx.x);
  int const m = first_row<V>(tile) + first + thread % 4 * 2;
  int const n = tile.n_idx * V::kTileN + thread / 32 % V::kPhaseWarps * V::kWarpN, row_n = first_row_n<V>(thread % 32 / 4);
  // Four sums of a fragment of wgmma: two adjacent rows of D for each of two of the thread's rows of B. A phase has
  // every second slice.
  recompute<kCount>(p, tile.batch, end_row(p, tile), sum_at, [&](int i) {
    int const vector = i / 4, slice = vector / V::kVectors, chunk = vector % V::kVectors / V::kHalves;
    return int2{m + slice * V::kPhases * V::kSliceM + chunk * 8 + i % 2,
                n + (row_n ^ (vector % V::kHalves * 2 + i / 2 % 2))};
  });
}

// Returns epilogue arguments whose scalars are loaded after the mainloop. Beside a 16-bit A, no kernel has waited before
// this one, and the compiler may move read-only loads above all waits. The addresses therefore depend on a zero in
// shared memory.
template <class V>
CUTLASS_DEVICE EpilogueArguments late_epilogue(Parameters const &p, TiledSmem<V> const &smem) {
  EpilogueArguments epilogue = p.epilogue;
  unsigned const zero = load_word(smem.zero());
  for_each_scalar(epilogue, [&](auto const *&number) { number += zero; });
  return epilogue;
}

// Stores a warp's part of a slice of D from accumulators, in chunks of 8 rows.
template <class V>
CUTLASS_DEVICE void store_slice(Parameters const &p, EpilogueArguments const &epilogue, TiledSmem<V> const &smem,
                                WorkTile const &tile, int slice, float const (&sums)[V::kVectors * 4]) {
  unsigned const thread = rematerialize(threadIdx.x);
  int const warp = thread / 32, quad = thread % 32 / 4, t = thread % 4;
  int const m = first_row<V>(tile) + slice * V::kSliceM, rows = end_row(p, tile);
  int const n = tile.n_idx * V::kTileN + warp % V::kPhaseWarps * V::kWarpN;
  if constexpr (kSimple) {
    constexpr int kColumns = 2 * V::kHalves;
    Place const here(batch_of_a(tile), m + 2 * t, (n + first_row_n<V>(quad) / kColumns * kColumns) / kPair, rows, p.n / kPair, 0);
    auto states = begin_outputs<kColumns>(epilogue);
    // Operands of all rows are loaded before the first store: D may overlap them for all that the compiler knows. With
    // more results, the registers suffice for one row at a time, and with groups beside four warpgroups for half the rows.
    constexpr int kRows = 2 * V::kChunks, kDivisor = kGrouped && V::kGroups == 4 ? 2 : 1;
    constexpr int kAtOnce = kResults == 1 ? kRows / kDivisor : 1;
    CUTLASS_PRAGMA_UNROLL
    for (int first = 0; first < kRows; first += kAtOnce) {
      float values[kAtOnce][kResults][kColumns / kPair];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        int const chunk = (first + i) / 2, row = (first + i) % 2;
        float rows[2][kColumns];
        arrange<V::kHalves>(quad, sums + chunk * V::kHalves * 4, rows);
        cutlass::Array<float, kColumns> sum;
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kColumns; ++j) {
          sum[j] = rows[row][j];
        }
        // Elements outside of D are computed, too: without a predicate, loads of scalars are hoisted out of the loops.
        compute_outputs<kColumns>(epilogue, here.moved(chunk * 8 + row, 0), sum, values[i]);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        store_outputs<kColumns>(epilogue, states, here.moved((first + i) / 2 * 8 + (first + i) % 2, 0), values[i]);
      }
    }
  } else {
    uint32_t const staging = smem.staging(warp);
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
    // All lanes work together, as outputs require. A lane without a row gets one outside of D.
    bool const has_row = lane() < V::kSliceM;
    Place const here(batch_of_a(tile), has_row ? m + lane() : rows, n / kPair, rows, p.n / kPair, 0);
    auto states = begin_outputs<32>(epilogue);
    write_outputs<32>(epilogue, states, here, load_floats<32>(staging + (has_row ? lane() : 0) * V::kPitch * 4));
    end_outputs<32>(epilogue, states, here);
  }
}

// Sends the other CTAs of the cluster the sums of their slices, and waits for the sums that they send.
template <class V>
CUTLASS_DEVICE void exchange(Parameters const &p, TiledSmem<V> const &smem, WorkTile const &tile, int rank,
                             float const (&sums)[V::kHalves][V::kTileM / 2]) {
  unsigned const thread = rematerialize(threadIdx.x), warp = thread / 32;
  int const each = V::kSlices >> p.cluster_bits;
  barrier_wait(smem.exchange_empty(), 0);
  // A slice of the receiver has a buffer per sending CTA. In it, vector i of all threads is contiguous.
  CUTLASS_PRAGMA_UNROLL
  for (int slice = 0; slice < V::kSlices; ++slice) {
    int const receiver = slice * p.cluster / V::kSlices, local = slice & (each - 1);
    if (receiver == rank || !is_own_slice<V>(slice)) {
      continue;
    }
    int const source = local * (p.cluster - 1) + (rank < receiver ? rank : rank - 1);
    bool const is_helped = tile.split >= 0;
    int const blocks = first_block<V>(p, is_helped, receiver + 1) - first_block<V>(p, is_helped, receiver);
    uint32_t const at = smem.exchange(blocks % V::kStages, source) + thread % V::kPhaseThreads * 16;
    uint32_t const to = cluster_address(at, receiver), barrier = cluster_address(smem.exchange_full(warp), receiver);
    CUTLASS_PRAGMA_UNROLL
    for (int v = 0; v < V::kVectors; ++v) {
      int const first = (kept_as<V>(slice) * V::kChunks + v / V::kHalves) * 4;
      store_async(to + v * V::kVectorBytes, &sums[v % V::kHalves][first], barrier);
    }
  }
  // Acquires at CTA scope, as only shared memory was written. An acquire of a wider scope would invalidate L1.
  barrier_wait(smem.exchange_full(warp), 0);
}

// Sends the sums of the warpgroup that the other CTA keeps (kKeepsGroup). They go to the stage of A after that of the
// last block. That stage is not loaded again.
template <class V>
CUTLASS_DEVICE void send_group(TiledSmem<V> const &smem, WorkTile const &tile, int other,
                               float const (&sums)[V::kHalves][V::kTileM / 2]) {
  unsigned const thread = rematerialize(threadIdx.x);
  uint32_t const barrier = cluster_address(smem.exchange_full(thread / 32), other);
  barrier_wait(smem.exchange_empty(), 0);
  uint32_t const to = cluster_address(smem.a(tile.count() % V::kStages) + thread % 128 * 16, other);
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < V::kGroupVectors; ++v) {
    store_async(to + v * 128 * 16, &sums[0][v * 4], barrier);
  }
}

// Adds the sums that the other CTA sent. The order of two addends does not matter.
template <class V>
CUTLASS_DEVICE void add_group(TiledSmem<V> const &smem, WorkTile const &tile, float (&sums)[V::kHalves][V::kTileM / 2]) {
  unsigned const thread = rematerialize(threadIdx.x);
  barrier_wait(smem.exchange_full(thread / 32), 0);
  uint32_t const from = smem.a(tile.count() % V::kStages) + thread % 128 * 16;
  CUTLASS_PRAGMA_UNROLL
  for (int v = 0; v < V::kGroupVectors; ++v) {
    auto const four = load_floats<4>(from + v * 128 * 16);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      sums[0][v * 4 + i] += four[i];
    }
  }
}

// Copies a thread's sums of a slice. The index is a compile-time constant, as registers cannot be indexed.
template <class V, class Slice>
CUTLASS_DEVICE void take_slice(float (&part)[V::kVectors * 4], Slice slice, float const (&sums)[V::kHalves][V::kTileM / 2]) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < V::kVectors * 4; ++i) {
    part[i] = sums[i / 4 % V::kHalves][(slice * V::kChunks + i / 4 / V::kHalves) * 4 + i % 4];
  }
}

// Returns the address of a thread's sums of a slice of a split. Vector i of all threads is contiguous.
template <class V>
CUTLASS_DEVICE float *split_sums_at(Parameters const &p, int split, int slice) {
  return p.split_sums + (static_cast<int64_t>(split) * V::kSlices + slice) * (V::kSliceBytes / 4) +
         rematerialize(threadIdx.x) % V::kPhaseThreads * 4;
}

CUTLASS_DEVICE uint32_t *split_flag_at(Parameters const &p, int split) {
  return p.split_flags + split * kSplitFlags + threadIdx.x / 32;
}

// Stores a helper's sums of a split, for the same thread of the CTA that owns the tile.
template <class V>
CUTLASS_DEVICE void store_split(Parameters const &p, int split, float const (&sums)[V::kHalves][V::kTileM / 2]) {
  cute::for_each(cute::make_seq<V::kSlices>{}, [&](auto slice) {
    if (is_own_slice<V>(slice)) {
      float part[V::kVectors * 4];
      take_slice<V>(part, slice, sums);
      float *const to = split_sums_at<V>(p, split, slice);
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < V::kVectors; ++v) {
        *reinterpret_cast<float4 *>(to + v * V::kVectorBytes / 4) =
            float4{part[v * 4], part[v * 4 + 1], part[v * 4 + 2], part[v * 4 + 3]};
      }
    }
  });
  release_flag(split_flag_at(p, split));
}

// Adds the splits of a tile in a fixed order: all slices, or those of CTA `rank`. Helpers have lower CTA indices, so
// they have begun and the wait ends.
template <class V>
CUTLASS_DEVICE void add_splits(Parameters const &p, int split, float (&sums)[V::kHalves][V::kTileM / 2], int rank = -1) {
  CUTLASS_PRAGMA_NO_UNROLL
  for (; split < p.splits; split += p.tiles - p.whole_tiles) {
    acquire_flag(split_flag_at(p, split));
    cute::for_each(cute::make_seq<V::kSlices>{}, [&](auto slice) {
      if ((rank < 0 || slice * p.cluster / V::kSlices == rank) && is_own_slice<V>(slice)) {
        float const *const from = split_sums_at<V>(p, split, slice);
        CUTLASS_PRAGMA_UNROLL
        for (int v = 0; v < V::kVectors; ++v) {
          float4 const four = load_l2(from + v * V::kVectorBytes / 4);
          float *const to = &sums[v % V::kHalves][(slice * V::kChunks + v / V::kHalves) * 4];
          to[0] += four.x, to[1] += four.y, to[2] += four.z, to[3] += four.w;
        }
      }
    });
  }
}

// Stores this CTA's slices of a tile. If kShared, it first adds the sums of the other CTAs.
template <class V, bool kShared>
CUTLASS_DEVICE void store_tile(Parameters const &p, EpilogueArguments const &epilogue, TiledSmem<V> const &smem,
                               WorkTile const &tile, int rank, float (&sums)[V::kHalves][V::kTileM / 2]) {
  constexpr int kOwn = V::kSlices / V::kPhases;
  int const each = kShared ? kOwn >> p.cluster_bits : kOwn, phase = own_phase<V>();
  if constexpr (!kShared && (kSimple || V::kTileM == 256)) {
    if constexpr (kRecomputes) {
      constexpr int kOfSlice = V::kVectors * 4;
      recompute_rows<V, kOwn * kOfSlice>(p, tile, phase * V::kSliceM, [&](int i) -> float & {
        int const slice = i / kOfSlice * V::kPhases, vector = i % kOfSlice / 4;
        return sums[vector % V::kHalves][(slice * V::kChunks + vector / V::kHalves) * 4 + i % 4];
      });
    }
    // Unrolled: this takes less time than branches that select a slice, despite more instructions to fetch.
    cute::for_each(cute::make_seq<kOwn>{}, [&](auto local) {
      float part[V::kVectors * 4];
      take_slice<V>(part, local * cute::Int<V::kPhases>{}, sums);
      store_slice<V>(p, epilogue, smem, tile, local * V::kPhases + phase, part);
    });
    return;
  }
  // Branches select the slice, so that the code of the epilogue exists once.
  CUTLASS_PRAGMA_NO_UNROLL
  for (int local = 0; local < each; ++local) {
    int const own = kShared ? rank * each + local : local, slice = own * V::kPhases + phase;
    float part[V::kVectors * 4] = {};
    cute::for_each(cute::make_seq<kOwn>{}, [&](auto one) {
      if (one == own) {
        keep_branch();
        take_slice<V>(part, one * cute::Int<V::kPhases>{}, sums);
      }
    });
    if constexpr (kShared) {
      // Adds in the order of ranks on every CTA, so that results do not depend on the CTA.
      float all[V::kVectors * 4] = {};
      int const first = tile.count() % V::kStages;
      int other = (local * V::kPhases + phase) * (p.cluster - 1);
      CUTLASS_PRAGMA_NO_UNROLL
      for (int source = 0; source < p.cluster; ++source) {
        if (source == rank) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < V::kVectors * 4; ++i) {
            all[i] += part[i];
          }
        } else {
          uint32_t const at = smem.exchange(first, other++) + threadIdx.x % V::kPhaseThreads * 16;
          CUTLASS_PRAGMA_UNROLL
          for (int v = 0; v < V::kVectors; ++v) {
            auto const four = load_floats<4>(at + v * V::kVectorBytes);
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
    if constexpr (kRecomputes) {
      recompute_rows<V, V::kVectors * 4>(p, tile, slice * V::kSliceM, [&](int i) -> float & { return part[i]; });
    }
    store_slice<V>(p, epilogue, smem, tile, slice, part);
  }
}

template <class V, bool kShared>
CUTLASS_DEVICE void store_tile(Parameters const &p, TiledSmem<V> const &smem, WorkTile const &tile, int rank,
                               float (&sums)[V::kHalves][V::kTileM / 2]) {
  if constexpr (kGrouped) {
    EpilogueArguments epilogue = p.epilogue;
    select_group(V{}, epilogue, tile.batch, tile.batch < p.groups);
    store_tile<V, kShared>(p, epilogue, smem, tile, rank, sums);
  } else if constexpr (kDirectA) {
    store_tile<V, kShared>(p, late_epilogue<V>(p, smem), smem, tile, rank, sums);
  } else {
    store_tile<V, kShared>(p, p.epilogue, smem, tile, rank, sums);
  }
}
#endif
