// The threads that load the operands of tiles into the stages of shared memory. A tile of 64 rows of B has 600 cycles for a
// block, and what its thread does for one takes as long as its instructions take to come: there are few.

#ifndef FOURFOLD_HOST
// What a work tile loads of the rows of B, and of their scales, by a thread.
template <class V>
struct TiledProducerB {
  TileScheduler<V> scheduler{0};
  WorkTile work;
  // Which 128 rows of scales, of those of all matrices.
  int scales[V::kSfbAtomsN];
  // Stages that nobody had used.
  int first = 0;

  CUTLASS_DEVICE void begin(Parameters const &p, int rank) {
    scheduler = TileScheduler<V>(p, rank);
    find(p, rank);
  }

  CUTLASS_DEVICE void find(Parameters const &p, int rank) {
    work = work_tile<V>(p, scheduler, rank);
    // Scales of 128 rows. A tile that ends within its first 128 reads the scales of those again.
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kSfbAtomsN; ++i) {
      scales[i] = work.batch * p.atoms_n + min(work.n_idx * V::kTileN / 128 + i, p.atoms_n - 1);
    }
  }

  CUTLASS_DEVICE void load(Parameters const &p, TiledSmem<V> const &smem, int stage, int block) const {
    uint32_t const barrier = smem.full_b(stage);
    barrier_expect_tx(barrier, V::kStageBytes);
    tma_load(p.b_map, smem.b(stage), barrier, block * kBlockBytes, work.n_idx * V::kTileN, work.batch);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kSfbAtomsN; ++i) {
      // Beyond K they are zeros, as codes are.
      tma_load(p.sfb_map, smem.sfb(stage) + i * V::kSfbBytes, barrier, 0, block * (kAtomsPerBlock * kAtomRows),
               scales[i]);
    }
  }

  // Of the first work tile what is asked for at first.
  CUTLASS_DEVICE void load_first(Parameters const &p, TiledSmem<V> const &smem) {
    if (scheduler.has_work(p)) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (; first < V::kPrefetchStages && first < work.count(); ++first) {
        load(p, smem, first, work.block(first));
      }
    }
  }

  CUTLASS_DEVICE void load_remaining(Parameters const &p, TiledSmem<V> const &smem, int rank) {
    PipelineState<V::kStages> ring;
    ring.stage = first % V::kStages;
    ring.phase = first / V::kStages;
    int next = first;
    while (scheduler.has_work(p)) {
      CUTLASS_PRAGMA_NO_UNROLL  // its thread has few registers
      for (; next < work.count(); ++next, ring.next()) {
        barrier_wait(smem.empty_b(ring.stage), ring.phase ^ 1);
        if (first < V::kStages) {
          if (first >= V::kPrefetchStages) {
            barrier_wait(smem.full_b(first - V::kPrefetchStages), 0);
          }
          ++first;
        }
        load(p, smem, ring.stage, work.block(next));
      }
      next = 0;
      scheduler.next(p, rank);
      if (scheduler.has_work(p)) {
        find(p, rank);
      }
    }
  }
};

// The thread that loads rows of A, once they were decoded.
template <class V>
CUTLASS_DEVICE void load_a(Parameters const &p, TiledSmem<V> const &smem, int rank) {
  grid_dependency_wait();
  PipelineState<V::kStages> ring;
  uint32_t tiles_done = 0;
  FOURFOLD_FOR_EACH_WORK_TILE(scheduler, rank) {
    WorkTile const work = work_tile<V>(p, scheduler, rank);
    if (V::kPhases > 1 && tiles_done++ > 0) {
      // Sums of the tile before were where rows of A will be.
      barrier_wait(smem.tile_stored(), tiles_done & 1);
      fence_async_proxy();
    }
    CUTLASS_PRAGMA_NO_UNROLL
    for (int i = 0; i < work.count(); ++i, ring.next()) {
      int const block = work.block(i);
      if (V::kDecodesAhead && (block == work.begin || block % kSlabBlocks == 0)) {
        wait_for_slab<V>(p, work, block / kSlabBlocks);
      }
      barrier_wait(smem.empty_a(ring.stage), ring.phase ^ 1);
      CUTLASS_PRAGMA_UNROLL
      for (int panel = 0; panel < 2; ++panel) {
        uint32_t const barrier = smem.full_a(ring.stage, panel);
        if (panel < V::kFullBarriersA) {
          barrier_expect_tx(barrier, V::kABytes / V::kFullBarriersA);
        }
        tma_load_panel(p.a_map, smem.a(ring.stage) + panel * V::kPanelBytes, barrier, work.m_idx * V::kTileM, work.batch,
                       block * 2 + panel);
      }
    }
  }
  if (p.cluster > 1) {
    // Others may write where it was loaded to, once nothing of it is needed: first where the first of the last blocks are.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int left = (V::kSlices >> p.cluster_bits) * (p.cluster - 1); left > 0; left -= V::kSlicesPerStage, ring.next()) {
      barrier_wait(smem.empty_a(ring.stage), ring.phase ^ 1);
    }
  }
}
#endif
