// Who does what in a CTA.

#ifndef FOURFOLD_HOST
// A warpgroup that multiplies.
template <class V>
CUTLASS_DEVICE void multiply(Parameters const &p, TileMemory<V> const &memory) {
  int const phase = own_phase<V>();
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
    bool const is_kept = own_group<V>() == own_rank(p);
    int const blocks = here.end - here.begin + (V::kKeepsGroup && is_kept ? here.alone : 0);
    if constexpr (V::kByWords) {
      multiply_words<V>(of, blocks, sums);
    } else if constexpr (V::kReadsAhead) {
      multiply_ahead<V>(of, blocks, sums);
    } else if constexpr (V::kBuffers == 2) {
      multiply_two<V>(of, blocks, sums);
    } else {
      multiply_one_by_one<V>(of, blocks, sums);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kHalves; ++i) {
      read_from_here(sums[i]);
    }
    if constexpr (V::kPhases > 1) {
      // The next of its own stages is the first one, or the one behind.
      add_phases<V>(memory, of.ring.stage - phase, phase, sums);
    }
    if constexpr (V::kGroups == 4) {
      // Registers are few: found anew, not kept.
      here = work<V>(p, Turn<V>(computed_again(turn.what)), own_rank(p));
    }
    if (turn.helps()) {
      give_piece<V>(p, here.piece, sums);
      continue;
    }
    if constexpr (V::kKeepsGroup) {
      if (keeps_group<V>(p)) {
        if (is_kept) {
          add_other<V>(memory, here, sums);
          if (here.piece >= 0) {
            add_pieces<V>(p, here.piece, sums);
          }
          write_tile<V, false>(p, memory, here, 0, sums);
        } else {
          send_to_other<V>(memory, here, 1 - own_rank(p), sums);
        }
        break;
      }
    }
    if constexpr (V::kMostCluster > 1) {
      if (p.cluster > 1) {
        int const rank = own_rank(p);
        exchange<V>(p, memory, here, rank, sums);
        if (V::kHasPieces && here.piece >= 0) {
          add_pieces<V>(p, here.piece, sums, rank);
        }
        write_tile<V, true>(p, memory, here, rank, sums);
        // A cluster has one tile. That the loop ends here tells the compiler that what it counts is the same for all threads.
        break;
      }
    }
    if (V::kHasPieces && here.piece >= 0) {
      add_pieces<V>(p, here.piece, sums);
    }
    write_tile<V, false>(p, memory, here, 0, sums);
    if (V::kPhases > 1 && p.tiles > static_cast<int>(gridDim.x)) {
      barrier_arrive(memory.written());
    }
  }
}

template <class V>
CUTLASS_DEVICE void make_barriers(TileMemory<V> const &memory) {
  for (int i = 0; i < V::kStages; ++i) {
    barrier_init(memory.loaded(i), 1);
    barrier_init(memory.consumed(i), V::kWarpsAbreast * 32);
    for (int panel = 0; panel < V::kFills; ++panel) {
      barrier_init(memory.filled(i, panel), 1);
    }
    barrier_init(memory.emptied(i), V::kWarpsAbreast);
  }
  barrier_init(memory.written(), V::kMultiplying);
  fence_barriers();
}

// Those of a cluster.
template <class V>
CUTLASS_DEVICE void make_exchange_barriers(Parameters const &p, TileMemory<V> const &memory) {
  barrier_init(memory.exchangeable(), p.cluster - 1);
  // Of each of its slices a warp gets what the others have.
  int const own = keeps_group<V>(p) ? V::kSlices : (V::kSlices >> p.cluster_bits) / V::kPhases;
  int const bytes = own * (p.cluster - 1) * V::kVectors * 32 * 16;
  CUTLASS_PRAGMA_UNROLL
  for (int warp = 0; warp < V::kWarps; ++warp) {
    barrier_init(memory.exchanged(warp), 1);
  }
  CUTLASS_PRAGMA_UNROLL
  for (int warp = 0; warp < V::kWarps; ++warp) {
    barrier_expect(memory.exchanged(warp), bytes);
  }
  fence_barriers();
}

template <class V>
CUTLASS_DEVICE void compute_tiles(Parameters const &p, void *shared) {
  TileMemory<V> const memory(shared);
  constexpr int kWeightWarp = V::kMultiplying / 32, kTokenWarp = kWeightWarp + 1, kScalarWarp = kWeightWarp + 2;
  int const warp = threadIdx.x / 32;
  // What must be done before the first weights are asked for takes some hundred cycles each: so three warps share it.
  WeightLoader<V> loader;
  if (warp == kWeightWarp) {
    loader.begin(p, own_rank(p));
  } else if (warp == kTokenWarp && is_elected()) {
    prefetch_map(p.weight_map);
    make_barriers<V>(memory);
    prefetch_map(p.scale_map);
    prefetch_map(p.token_map);
  } else if (warp == kScalarWarp && lane() == 0 && p.cluster > 1) {
    make_exchange_barriers<V>(p, memory);
  }
  __syncthreads();
  if (warp == kWeightWarp && is_elected()) {
    loader.load_first(p, memory);
  }
  if (p.cluster > 1) {
    __syncwarp();
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
    if (warp == kWeightWarp && is_elected()) {
      loader.load_rest(p, memory, rank);
    } else if (warp == kTokenWarp && lane() == 0) {
      load_tokens<V>(p, memory, rank);
    } else if (warp >= kScalarWarp) {
      if (warp == kScalarWarp && lane() == 0) {
        // Each slice would wait for memory otherwise.
        for_each_scalar(p.epilogue, [&](auto const *number) { bring_near(number, memory.unused()); });
      }
      if constexpr (V::kDecodesRest) {
        decode_rest<V>(p);
      }
    }
    __syncwarp();
    if (p.cluster > 1) {
      cluster_wait_for_start();
      // Who helps waits for nobody, and may have ended.
      if (warp == kTokenWarp && lane() < p.cluster && lane() != rank && !Turn<V>(p, rank).helps()) {
        cluster_arrive(cluster_address(memory.exchangeable(), lane()));
      }
      __syncwarp();
    }
  }
  // Nobody leaves while others still send to it: each waits for all that they send before it writes.
}
#endif
