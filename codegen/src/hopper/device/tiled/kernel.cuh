// The tiled kernel: warp roles of a CTA. traits.cuh has the design.

#ifndef FOURFOLD_HOST
// A consumer warpgroup: mainloop, reduction and stores of its tiles and splits.
template <class V>
CUTLASS_DEVICE void run_consumer(Parameters const &p, TiledSmem<V> const &smem) {
  int const phase = own_phase<V>();
  TiledConsumer<V> consumer(smem, phase);
  consumer.begin(threadIdx.x, 0);
  FOURFOLD_FOR_EACH_WORK_TILE(scheduler, own_rank(p)) {
    WorkTile work = work_tile<V>(p, smem, scheduler, own_rank(p));
    if constexpr (V::kTileN < 128) {
      consumer.begin(threadIdx.x, work.n_idx * V::kTileN % 128);
    }
    float sums[V::kHalves][V::kTileM / 2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kHalves * V::kTileM / 2; ++i) {
      sums[i % V::kHalves][i / V::kHalves] = 0.0f;
    }
    bool const is_kept = own_group<V>() == own_rank(p);
    int const blocks = work.end - work.begin + (V::kKeepsGroup && is_kept ? work.alone : 0);
    if constexpr (V::kByWords) {
      mainloop_words<V>(consumer, blocks, sums);
    } else if constexpr (V::kReadsAhead) {
      // Rows of no group have no blocks.
      if (!kGrouped || blocks > 0) {
        mainloop_prefetch<V>(consumer, blocks, sums);
      }
    } else if constexpr (V::kBuffers == 2) {
      mainloop_two_buffers<V>(consumer, blocks, sums);
    } else {
      mainloop_one_buffer<V>(consumer, blocks, sums);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kHalves; ++i) {
      wgmma_fence_operand(sums[i]);
    }
    if constexpr (V::kPhases > 1) {
      // The ring stage of phase 1 is one after that of phase 0, so both phases pass the same stage.
      reduce_phases<V>(smem, consumer.ring.stage - phase, phase, sums);
    }
    if constexpr (V::kGroups == 4) {
      // Registers are scarce: computes the work tile again instead of keeping it.
      work = work_tile<V>(p, smem, TileScheduler<V>(rematerialize(scheduler.index)), own_rank(p));
    }
    if (scheduler.helps()) {
      store_split<V>(p, work.split, sums);
      continue;
    }
    if constexpr (V::kKeepsGroup) {
      if (keeps_group<V>(p)) {
        if (is_kept) {
          add_group<V>(smem, work, sums);
          if (work.split >= 0) {
            add_splits<V>(p, work.split, sums);
          }
          store_tile<V, false>(p, smem, work, 0, sums);
        } else {
          send_group<V>(smem, work, 1 - own_rank(p), sums);
        }
        break;
      }
    }
    if constexpr (V::kMaxCluster > 1) {
      if (p.cluster > 1) {
        int const rank = own_rank(p);
        exchange<V>(p, smem, work, rank, sums);
        if (V::kSplitsK && work.split >= 0) {
          add_splits<V>(p, work.split, sums, rank);
        }
        store_tile<V, true>(p, smem, work, rank, sums);
        // A cluster has one tile. The break tells the compiler that loop variables are uniform across threads.
        break;
      }
    }
    if (V::kSplitsK && work.split >= 0) {
      add_splits<V>(p, work.split, sums);
    }
    store_tile<V, false>(p, smem, work, 0, sums);
    if (V::kPhases > 1 && p.tiles > static_cast<int>(gridDim.x)) {
      barrier_arrive(smem.tile_stored());
    }
  }
}

template <class V>
CUTLASS_DEVICE void init_barriers(TiledSmem<V> const &smem) {
  for (int i = 0; i < V::kStages; ++i) {
    barrier_init(smem.full_b(i), 1);
    barrier_init(smem.empty_b(i), V::kPhaseWarps * 32);
    for (int panel = 0; panel < V::kFullBarriersA; ++panel) {
      barrier_init(smem.full_a(i, panel), 1);
    }
    barrier_init(smem.empty_a(i), V::kPhaseWarps);
  }
  barrier_init(smem.tile_stored(), V::kConsumerThreads);
  fence_barrier_init();
}

// Initializes the barriers of the exchange in a cluster.
template <class V>
CUTLASS_DEVICE void init_exchange_barriers(Parameters const &p, TiledSmem<V> const &smem) {
  barrier_init(smem.exchange_empty(), p.cluster - 1);
  // A warp receives the sums of all other CTAs for each of its slices.
  int const own = keeps_group<V>(p) ? V::kSlices : (V::kSlices >> p.cluster_bits) / V::kPhases;
  int const bytes = own * (p.cluster - 1) * V::kVectors * 32 * 16;
  CUTLASS_PRAGMA_UNROLL
  for (int warp = 0; warp < V::kWarps; ++warp) {
    barrier_init(smem.exchange_full(warp), 1);
  }
  CUTLASS_PRAGMA_UNROLL
  for (int warp = 0; warp < V::kWarps; ++warp) {
    barrier_expect_tx(smem.exchange_full(warp), bytes);
  }
  fence_barrier_init();
}

template <class V>
CUTLASS_DEVICE void run_tiled(Parameters const &p, void *shared) {
  TiledSmem<V> const smem(shared);
  constexpr int kProducerWarpB = V::kConsumerThreads / 32, kProducerWarpA = kProducerWarpB + 1, kAuxWarp = kProducerWarpB + 2;
  int const warp = threadIdx.x / 32;
  // Each part of the setup before the first load of B takes hundreds of cycles, so three warps share it.
  TiledProducerB<V> producer;
  if (warp == kProducerWarpB && !kGrouped) {
    producer.begin(p, smem, own_rank(p));
  } else if (warp == kProducerWarpA && elect_one()) {
    prefetch_tensor_map(p.b_map);
    if constexpr (kDirectA) {
      store_word(smem.zero(), 0);
    }
    init_barriers<V>(smem);
    prefetch_tensor_map(p.sfb_map);
    prefetch_tensor_map(p.a_map);
  } else if (warp == kAuxWarp && lane() == 0 && p.cluster > 1) {
    init_exchange_barriers<V>(p, smem);
  }
  if constexpr (kGrouped) {
    if (warp == kAuxWarp) {
      find_groups<V>(p, smem);
    }
  }
  __syncthreads();
  // The next kernel may begin on idle SMs. It executes griddepcontrol.wait before its first read.
  launch_dependents();
  if (warp == kProducerWarpB && kGrouped) {
    producer.begin(p, smem, 0);
  }
  if (warp == kProducerWarpB && elect_one()) {
    if constexpr (kDirectA) {
      // No kernel has waited before this one. Other threads access memory after the first loads have arrived.
      grid_dependency_wait();
    }
    producer.load_first(p, smem);
  }
  if (p.cluster > 1) {
    __syncwarp();
    cluster_arrive();
  }
  if (warp < kProducerWarpB) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(V::kConsumerRegisters));
    run_consumer<V>(p, smem);
    if (p.cluster > 1) {
      cluster_wait();
    }
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(V::kProducerRegisters));
    int const rank = own_rank(p);
    if (warp == kProducerWarpB && elect_one()) {
      producer.load_remaining(p, smem, rank);
    } else if (warp == kProducerWarpA && lane() == 0) {
      load_a<V>(p, smem, rank);
    } else if (warp >= kAuxWarp) {
      if (warp == kAuxWarp && lane() == 0) {
        if constexpr (kDirectA) {
          grid_dependency_wait();
        }
        // Prefetches scalars: otherwise the epilogue of each slice waits for memory.
        prefetch_scalars(p.epilogue, smem.unused());
      }
      if constexpr (V::kDecodesAhead) {
        decode_ahead<V>(p);
      }
    }
    __syncwarp();
    if (p.cluster > 1) {
      cluster_wait();
      // CTAs of a helper cluster never wait for each other and may have ended, so no thread arrives there.
      if (warp == kProducerWarpA && lane() < p.cluster && lane() != rank && !TileScheduler<V>(p, rank).helps()) {
        barrier_arrive_cluster(cluster_address(smem.exchange_empty(), lane()));
      }
      __syncwarp();
    }
  }
  // No CTA ends while others still send to it, because it receives all sums before it stores D.
}
#endif
