// The threads that load the operands of tiles into the stages of shared memory. A tile of 64 rows of B has 600 cycles for a
// block, and what its thread does for one takes as long as its instructions take to come: there are few.

#ifndef FOURFOLD_HOST
// What a turn loads of the weights, and of their scales, by a thread.
template <class V>
struct WeightLoader {
  Turn<V> turn{0};
  Work here;
  // Which 128 rows of scales, of those of all matrices.
  int scales[V::kScaleRows];
  // Stages that nobody had used.
  int first = 0;

  CUTLASS_DEVICE void begin(Parameters const &p, int rank) {
    turn = Turn<V>(p, rank);
    find(p, rank);
  }

  CUTLASS_DEVICE void find(Parameters const &p, int rank) {
    here = work<V>(p, turn, rank);
    // Scales of 128 rows. A tile that ends within its first 128 reads the scales of those again.
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kScaleRows; ++i) {
      scales[i] = here.batch * p.weight_blocks + min(here.tile_n * V::kRows / 128 + i, p.weight_blocks - 1);
    }
  }

  CUTLASS_DEVICE void load(Parameters const &p, TileMemory<V> const &memory, int stage, int block) const {
    uint32_t const barrier = memory.loaded(stage);
    barrier_expect(barrier, V::kStageBytes);
    load_tile(p.weight_map, memory.weights(stage), barrier, block * kBlockBytes, here.tile_n * V::kRows, here.batch);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kScaleRows; ++i) {
      // Beyond K they are zeros, as codes are.
      load_tile(p.scale_map, memory.scales(stage) + i * V::kScaleBytes, barrier, 0, block * (kAtomsPerBlock * kRowsOfAtom),
                scales[i]);
    }
  }

  // Of the first turn what is asked for at first.
  CUTLASS_DEVICE void load_first(Parameters const &p, TileMemory<V> const &memory) {
    if (turn.is_left(p)) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (; first < V::kFirstStages && first < here.count(); ++first) {
        load(p, memory, first, here.block(first));
      }
    }
  }

  CUTLASS_DEVICE void load_rest(Parameters const &p, TileMemory<V> const &memory, int rank) {
    Ring<V::kStages> ring;
    ring.stage = first % V::kStages;
    ring.phase = first / V::kStages;
    int next = first;
    while (turn.is_left(p)) {
      CUTLASS_PRAGMA_NO_UNROLL  // its thread has few registers
      for (; next < here.count(); ++next, ring.next()) {
        barrier_wait(memory.consumed(ring.stage), ring.phase ^ 1);
        if (first < V::kStages) {
          if (first >= V::kFirstStages) {
            barrier_wait(memory.loaded(first - V::kFirstStages), 0);
          }
          ++first;
        }
        load(p, memory, ring.stage, here.block(next));
      }
      next = 0;
      turn.next(p, rank);
      if (turn.is_left(p)) {
        find(p, rank);
      }
    }
  }
};

// The thread that loads tokens, once they were decoded.
template <class V>
CUTLASS_DEVICE void load_tokens(Parameters const &p, TileMemory<V> const &memory, int rank) {
  wait_for_kernel_before();
  Ring<V::kStages> ring;
  uint32_t turns = 0;
  FOURFOLD_FOR_EACH_TURN(turn, rank) {
    Work const here = work<V>(p, turn, rank);
    if (V::kPhases > 1 && turns++ > 0) {
      // Sums of the tile before were where tokens will be.
      barrier_wait(memory.written(), turns & 1);
      fence_copies();
    }
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < here.count(); ++i, ring.next()) {
      int const block = here.block(i);
      if (V::kDecodesRest && (block == here.begin || block % kSlabBlocks == 0)) {
        wait_for_slab<V>(p, here, block / kSlabBlocks);
      }
      barrier_wait(memory.emptied(ring.stage), ring.phase ^ 1);
      CUTLASS_PRAGMA_UNROLL
      for (int panel = 0; panel < 2; ++panel) {
        uint32_t const barrier = memory.filled(ring.stage, panel);
        if (panel < V::kFills) {
          barrier_expect(barrier, V::kDecodedBytes / V::kFills);
        }
        load_panel(p.token_map, memory.decoded(ring.stage) + panel * V::kPanelBytes, barrier, here.tile_m * V::kTokens, here.batch,
                   block * 2 + panel);
      }
    }
  }
  if (p.cluster > 1) {
    // Others may write where it was loaded to, once nothing of it is needed: first where the first of the last blocks are.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int left = (V::kSlices >> p.cluster_bits) * (p.cluster - 1); left > 0; left -= V::kSlicesOfStage, ring.next()) {
      barrier_wait(memory.emptied(ring.stage), ring.phase ^ 1);
    }
  }
}
#endif
