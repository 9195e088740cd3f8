// Producer warps, which load the operands of tiles into stages by TMA. A tile with N = 64 takes 600 cycles per K block,
// and instruction fetch limits its producer. These loops therefore have few instructions.

#ifndef FOURFOLD_HOST
// Loads B and SFB of the CTA's work. One elected lane issues the loads.
template <class V>
struct TiledProducerB {
  TileScheduler<V> scheduler{0};
  WorkTile work;
  // Blocks of 128 rows of SFB, over all matrices.
  int scales[V::kSfbAtomsN];
  // The number of loads so far into stages that were not used before; at most kStages.
  int first = 0;

  CUTLASS_DEVICE void begin(Parameters const &p, TiledSmem<V> const &smem, int rank) {
    scheduler = TileScheduler<V>(p, rank);
    find(p, smem, rank);
  }

  CUTLASS_DEVICE void find(Parameters const &p, TiledSmem<V> const &smem, int rank) {
    work = work_tile<V>(p, smem, scheduler, rank);
    // Clamped: a tile that ends within its first 128 rows loads their scales twice.
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kSfbAtomsN; ++i) {
      scales[i] = work.batch * p.atoms_n + min(work.n_idx * V::kTileN / 128 + i, p.atoms_n - 1);
    }
  }

  CUTLASS_DEVICE void load(Parameters const &p, TiledSmem<V> const &smem, int stage, int block_of_a) const {
    // All terms of A have the same B.
    int const block = block_of_a / kTermsA;
    uint32_t const barrier = smem.full_b(stage);
    barrier_expect_tx(barrier, V::kStageBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < kPartsB; ++part) {
      tma_load(p.b_map, smem.b(stage) + part * V::kTileN * kPartBytes, barrier, block * kBlockBytes + part * kPartBytes,
               work.n_idx * V::kTileN, work.batch);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kSfbAtomsN; ++i) {
      // TMA fills scales past K with zeros, as it does codes.
      tma_load(p.sfb_map, smem.sfb(stage) + i * V::kSfbBytes, barrier, 0, block * (kAtomsPerBlock * kAtomRows),
               scales[i]);
    }
  }

  // Issues the first loads of the first work tile.
  CUTLASS_DEVICE void load_first(Parameters const &p, TiledSmem<V> const &smem) {
    if (scheduler.has_work(p, smem)) {
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
    while (scheduler.has_work(p, smem)) {
      CUTLASS_PRAGMA_NO_UNROLL  // the thread has few registers
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
      if (scheduler.has_work(p, smem)) {
        find(p, smem, rank);
      }
    }
  }
};

// Loads A, decoded or as it is, in one thread.
template <class V>
CUTLASS_DEVICE void load_a(Parameters const &p, TiledSmem<V> const &smem, int rank) {
  grid_dependency_wait();
  PipelineState<V::kStages> ring;
  uint32_t tiles_done = 0;
  FOURFOLD_FOR_EACH_WORK_TILE(scheduler, rank) {
    WorkTile const work = work_tile<V>(p, smem, scheduler, rank);
    if (V::kPhases > 1 && tiles_done++ > 0) {
      // A is loaded over the sums of the previous tile. The fence orders generic accesses to them before TMA writes.
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
      // Rows of the tile that are not loaded hold any values: sums of rows past M are not stored.
      int const boxes = !kDirectA ? 1 : work.m_idx + 1 == p.tiles_m ? p.last_boxes : p.boxes;
      int const panel_bytes = kDirectA ? boxes * p.box_m * kPanelRowBytes : V::kPanelBytes;
      CUTLASS_PRAGMA_UNROLL
      for (int panel = 0; panel < 2; ++panel) {
        uint32_t const barrier = smem.full_a(ring.stage, panel);
        if (panel < V::kFullBarriersA) {
          barrier_expect_tx(barrier, panel_bytes * (2 / V::kFullBarriersA));
        }
        if constexpr (kDirectA) {
          CUTLASS_PRAGMA_NO_UNROLL
          for (int box = 0; box < boxes; ++box) {
            tma_load(p.a_map, smem.a(ring.stage) + panel * V::kPanelBytes + box * p.box_m * kPanelRowBytes, barrier,
                     (block * 2 + panel) * kPanelRowBytes, work.m_idx * V::kTileM + box * p.box_m, work.batch);
          }
        } else {
          tma_load_panel(p.a_map, smem.a(ring.stage) + panel * V::kPanelBytes, barrier, first_row<V>(work), batch_of_a(work),
                         block * 2 + panel);
        }
      }
    }
  }
  if (p.cluster > 1) {
    // Other CTAs send sums into stages of A. Waits until consumers have released enough stages for them, the oldest
    // first.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int left = (V::kSlices >> p.cluster_bits) * (p.cluster - 1); left > 0; left -= V::kSlicesPerStage, ring.next()) {
      barrier_wait(smem.empty_a(ring.stage), ring.phase ^ 1);
    }
  }
}
#endif
