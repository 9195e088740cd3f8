// The small-M kernel whose warps keep A in registers: load, mainloop, cluster reduce, store. traits.cuh has the design.

#ifndef FOURFOLD_HOST
// Addresses of a CTA's arrays in shared memory. traits.cuh has the map.
struct SmallMRegsSmem {
  uint32_t sums, exchange, zeros, unused, totals, sums_full, exchange_full;
};

// Pieces of 8 bytes in the sums of a group: one row of B, two rows of A.
constexpr unsigned kSumPieces = SmallMRegs::kSumBytes / 8;

// Adds sums. In a pair of CTAs, sends the other CTA the sums that it stores to D. Members are references, because the
// compiler generates different code for copies.
struct SmallMRegsReduce {
  using V = SmallMRegs;
  SmallMRegsSmem const &smem;
  SmallMRegsOrder const &order;
  bool const &is_of_pair;
  // The number of groups of this CTA, and the number that the other CTA stores, which come first.
  unsigned const &groups, &others, &warp, &other;

  CUTLASS_DEVICE static void add_pair(float2 &sum, uint32_t at) {
    float2 const one = load_pair(at);
    sum.x += one.x;
    sum.y += one.y;
  }
  CUTLASS_DEVICE float2 sum_of_warps(unsigned piece) const {
    uint32_t const from = smem.sums + piece * 8;
    float2 sum{};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kWarps; ++i) {
      add_pair(sum, from + i * V::kOwnSums);
    }
    return sum;
  }

  // Cluster reduce: sends the sums of the groups that the other CTA stores, once all warps of this CTA have written
  // them to shared memory.
  CUTLASS_DEVICE void send() const {
    barrier_wait(smem.sums_full, 0);
    cluster_wait();
    // The last warps take the first pieces, because they finish first.
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = (V::kWarps - 1 - warp) * 32 + lane(); i < others * kSumPieces; i += V::kThreads) {
      store_async_pair(cluster_address(smem.exchange + i * 8, other), sum_of_warps(i), cluster_address(smem.exchange_full, other));
    }
  }

  // Calls `use` with the sums of a row of B for two rows of A, and the row's position in its vector. A vector is kWidth
  // columns of a row of D. Eight rows of a group belong to one vector, and the other eight to the next.
  template <class Use>
  CUTLASS_DEVICE void for_each_own(Use const &use) const {
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned piece = others * kSumPieces + threadIdx.x; piece < groups * kSumPieces; piece += V::kThreads) {
      unsigned const place = piece / kSumPieces, part = order.part(place / V::kStages), thread = piece / 2 % 32;
      unsigned const vector = part / V::kParts * 4 + place % V::kStages * 2 + piece % 2;
      unsigned const m = piece / 64 % V::kColumns * 8 + thread % 4 * 2, inside = part % V::kParts * kRunN + thread / 4;
      float2 sum = sum_of_warps(piece);
      if (is_of_pair) {
        // Waits here, not earlier, because the other CTA's sums arrive late.
        barrier_wait(smem.exchange_full, 0);
        add_pair(sum, smem.exchange + (piece - others * kSumPieces) * 8);
      }
      use(vector, inside, m, sum);
    }
  }
};

// Initializes the barriers of a warp's stages.
CUTLASS_DEVICE void init_stage_barriers(uint32_t barriers) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < SmallMRegs::kBarriers; ++i) {
    barrier_init(barriers + i * 8, 1);
  }
  fence_barrier_init();
}

// Load: issues the loads of a warp's chunk of A, and of its first group of B. SFA, or an A of more than 4 bits, goes to
// `own_sums`. Then initializes the CTA's barriers.
CUTLASS_DEVICE void load_regs(Parameters const &parameters, SmallMRegsSmem const &smem, SmallMRegsProducer &source, uint32_t own_sums,
                              int first_atom_m, unsigned warp, bool has_chunk, bool is_one, bool is_of_pair, unsigned groups,
                              unsigned others) {
  using V = SmallMRegs;
  source.next();
  if (has_chunk && is_one) {
    if constexpr (V::kLoadsA) {
      source.fetch_a(own_sums, first_atom_m);
    }
    source.fetch(0, 0);
  }
  if constexpr (!V::kLoadsA) {
    if (has_chunk) {
      source.copy_a(own_sums);
    }
  }
  if (warp == 0 && is_one) {
    barrier_init(smem.sums_full, V::kThreads);
    barrier_init(smem.exchange_full, 1);
    if (is_of_pair) {
      barrier_expect_tx(smem.exchange_full, static_cast<int>((groups - others) * V::kSumBytes));
    }
    fence_barrier_init();
  }
  if (threadIdx.x < V::kZeroBytes / 4) {
    store_word(smem.zeros + threadIdx.x * 4, 0);
  }
  // All barriers are initialized. Each warp could wait for its A alone, but with __syncthreads the kernel is 0.2 us
  // faster.
  __syncthreads();
  if (is_of_pair) {
    cluster_arrive();
  }
  if (threadIdx.x == 0) {
    // Prefetches scalars: the store would otherwise wait for memory.
    prefetch_scalars(parameters.epilogue, smem.unused);
  }
}

// Mainloop: decodes A of the warp's chunk into registers, and multiplies all groups of B of the CTA by it, one by one.
// Stores the sums to `own_sums`.
CUTLASS_DEVICE void mainloop_regs(SmallMParameters const &p, SmallMRegsReduce const &reduce, SmallMRegsProducer &source,
                                  SmallMRegsB const &part, SmallMRegsA &fragments_a, SmallMRegsAccumulators &mine, uint32_t barriers,
                                  uint32_t own_sums, bool sends, bool is_one) {
  using V = SmallMRegs;
  if constexpr (V::kLoadsA) {
    barrier_wait(barriers + 8, 0);
    // B is loaded over A, so the data dependency delays that load until A has been read. The added value is 0, because
    // at most two CTAs share K, but the compiler does not know this.
    source.barriers += fragments_a.decode_from(part, 1, own_sums, p.cluster_bits >> 4);
  } else {
    fragments_a.decode_copied(p, source.batch, source.chunk * V::kChunkK, own_sums);
  }
  own_sums += lane() * 16;
  uint32_t phase = 0;
  // `left` counts the parts that are left, and the warp sends when it is `left_sent`: one part after the last one that
  // the other CTA stores.
  int left = static_cast<int>(reduce.order.parts);
  int const left_sent = static_cast<int>(rematerialize(sends ? reduce.order.parts - reduce.order.others - 1 : reduce.order.parts + 1));
  CUTLASS_PRAGMA_NO_UNROLL
  do {
    --left;
    CUTLASS_PRAGMA_UNROLL
    for (int stage = 0; stage < V::kStages; ++stage) {
      mine.clear();
      // Phase 0 of stage 1 was A, if the stage had A.
      barrier_wait(barriers + stage * 8, phase ^ (V::kLoadsA ? stage : 0));
      // The next group overwrites the previous one in the ring, so all lanes must first have stored its sums.
      __syncwarp();
      if (stage == 1) {
        source.next();
      }
      if (is_one && (stage == 0 || left > 0)) {
        source.fetch(stage ^ 1, phase ^ stage);
      }
      mine.add(fragments_a, part, stage, phase * V::kSfbRoom + stage * 8);
      mine.keep(own_sums);
      own_sums += V::kSumBytes;
    }
    phase ^= 1;
    if (static_cast<unsigned>(left - left_sent) < 2) {
      if (left == left_sent) {
        reduce.send();
      } else {
        barrier_arrive(reduce.smem.sums_full);
      }
    }
  } while (left > 0);
}

// Stores zeros as the sums of a warp without a chunk.
CUTLASS_DEVICE void clear_sums(uint32_t own_sums, unsigned groups) {
  CUTLASS_PRAGMA_NO_UNROLL
  for (unsigned piece = lane(); piece < groups * (kSumPieces / 2); piece += 32) {
    store_words(own_sums + piece * 16, 0, 0, 0, 0);
  }
}

// Store: stores sums one at a time, or the two of a pair of columns, without gathering them into vectors.
template <int kAtOnce, class States>
CUTLASS_DEVICE void store_sums(Parameters const &parameters, SmallMRegsReduce const &reduce, unsigned const &batch, unsigned const &first_unit,
                               EpilogueArguments const &epilogue, States &states) {
  SmallMParameters const &p = parameters.small_m;
  reduce.for_each_own([&](unsigned vector, unsigned inside, unsigned m, float2 sum) {
    int const column = small_m_column(first_unit, vector) + static_cast<int>(inside);
    auto const finish = [&](unsigned row, float &of_row) {
      of_row *= kFactor;
      if constexpr (kRecomputes) {
        recompute<1>(parameters, static_cast<int>(batch), parameters.m, [&](int) -> float & { return of_row; },
                     [&](int) { return int2{static_cast<int>(row), column}; });
      }
    };
    auto const write = [&](unsigned row, cutlass::Array<float, kAtOnce> const &sums) {
      Place const here{static_cast<int>(batch), static_cast<int>(row), column / kPair, p.m, static_cast<int>(p.n) / kPair, 0};
      if (here.contains(0, 0)) {
        write_outputs<kAtOnce>(epilogue, states, here, sums);
      }
    };
    if constexpr (kPair == 2) {
      finish(m, sum.x);
      finish(m + 1, sum.y);
      // The lanes of two adjacent rows of B differ in one bit, and all lanes of a warp have a piece. Each lane stores one
      // of their two rows of A.
      bool const is_odd = inside % 2 != 0;
      float const other = __shfl_xor_sync(0xFFFFFFFFu, is_odd ? sum.x : sum.y, 8);
      cutlass::Array<float, kAtOnce> pair;
      pair[0] = is_odd ? other : sum.x;
      pair[1] = is_odd ? sum.y : other;
      write(m + is_odd, pair);
    } else {
      cutlass::Array<float, kAtOnce> one;
      one[0] = sum.x;
      finish(m, one[0]);
      write(m, one);
      one[0] = sum.y;
      finish(m + 1, one[0]);
      write(m + 1, one);
    }
  });
}

CUTLASS_DEVICE void run_small_m_regs(Parameters const &parameters, void *shared) {
  using V = SmallMRegs;
  constexpr int N = V::kWidth;
  SmallMParameters const &p = parameters.small_m;
  unsigned const warp = warp_uniform(static_cast<int>(threadIdx.x / 32));
  uint32_t const rings = rematerialize((shared_address(shared) + V::kAlignment - 1) & ~(V::kAlignment - 1u));
  uint32_t const all_scales = rings + V::kWarps * V::kRingBytes, all_sums = all_scales + V::kWarps * V::kSfbRingBytes;
  uint32_t const exchange = all_sums + V::kWarps * V::kOwnSums, zeros = exchange + V::kExchangeBytes;
  uint32_t const unused = zeros + V::kZeroBytes, all_barriers = unused + kUnusedBytes;
  uint32_t const ring = rings + warp * V::kRingBytes, scales = all_scales + warp * V::kSfbRingBytes;
  uint32_t const barriers = all_barriers + warp * V::kBarriers * 8, sums_full = all_barriers + V::kWarps * V::kBarriers * 8;
  uint32_t const exchange_full = sums_full + 8, totals = all_scales;
  SmallMRegsSmem const smem{all_sums, exchange, zeros, unused, totals, sums_full, exchange_full};
  // One CTA has all of K, or each of two has half of it.
  bool const is_of_pair = p.cluster_bits == 1;
  unsigned const rank = is_of_pair ? cluster_rank() : 0, other = 1 - rank, all = blockIdx.x >> p.cluster_bits;
  // Memory is idle until the first load is issued, and each 64 bytes of parameters that are read before it take
  // hundreds of cycles. The branch avoids reading parameters that only a batch needs.
  unsigned batch = 0, cta = all;
  int first_atom_n = 0, first_atom_m = 0;
  if (p.is_batch) {
    keep_branch();
    batch = p.ctas.divide(all);
    cta = all - batch * p.ctas.number;
    first_atom_n = static_cast<int>(batch) * parameters.atoms_n;
    first_atom_m = static_cast<int>(batch) * parameters.atoms_m;
  }
  unsigned const units = p.units_per_cta + (cta < p.extra_units), first_unit = cta * p.units_per_cta + min(cta, p.extra_units);
  unsigned const chunks = p.chunks_per_cta + (rank < p.extra_chunks);
  unsigned const chunk = rank * p.chunks_per_cta + min(rank, static_cast<unsigned>(p.extra_chunks)) + warp;
  SmallMRegsOrder const order(units, rank, is_of_pair);
  // The number of groups, and how many of them the other CTA stores.
  unsigned const groups = order.parts * V::kStages, others = order.others * V::kStages;
  bool const sends = order.others > 0;
  bool const has_chunk = warp < chunks, is_one = elect_one();
  if (is_one) {
    init_stage_barriers(barriers);
  }
  __syncwarp();
  // The kernel may begin before its operands are written. Work that can follow the loads is placed after them: in the
  // CTA that begins last, every instruction before them adds to the kernel's time.
  grid_dependency_wait();
  // A is loaded first, because every multiplication needs it.
  SmallMRegsProducer source(parameters, order, first_unit * V::kParts, batch, chunk, first_atom_n, ring, scales, barriers);
  uint32_t own_sums = smem.sums + warp * V::kOwnSums;
  load_regs(parameters, smem, source, own_sums, first_atom_m, warp, has_chunk, is_one, is_of_pair, groups, others);
  SmallMRegsReduce const reduce{smem, order, is_of_pair, groups, others, warp, other};
  if (has_chunk) {
    SmallMRegsB const part(ring, scales);
    // If these are locals of mainloop_regs, the compiler generates different code.
    SmallMRegsA fragments_a;
    SmallMRegsAccumulators mine;
    mainloop_regs(p, reduce, source, part, fragments_a, mine, barriers, own_sums, sends, is_one);
  } else {
    clear_sums(own_sums, groups);
    if (sends) {
      barrier_arrive(smem.sums_full);
    }
  }
  if (sends && (!has_chunk || others == groups)) {
    reduce.send();
  }
  if (is_of_pair && !sends) {
    cluster_wait();
  }
  __syncthreads();
  // Simple outputs store single sums, because gathering vectors takes 0.3 us more. This function is not a template, so
  // the discarded branch is compiled, too. Outputs with blocks do not compile for one element, so their kAtOnce is N.
  constexpr int kAtOnce = kSimple ? kPair : N;
  if constexpr (kSimple) {
    EpilogueArguments const epilogue = small_m_epilogue(parameters, smem.zeros);
    auto states = begin_outputs<kAtOnce>(epilogue);
    store_sums<kAtOnce>(parameters, reduce, batch, first_unit, epilogue, states);
  } else {
    reduce.for_each_own([&](unsigned vector, unsigned inside, unsigned m, float2 sum) {
      uint32_t const to = smem.totals + ((vector * kRegsM + m) * N + inside) * 4;
      store_word(to, __float_as_uint(sum.x));
      store_word(to + N * 4, __float_as_uint(sum.y));
    });
    __syncthreads();
    store_small_m<kRegsM, V>(parameters, first_unit, units, batch, smem.zeros,
                          [&](unsigned vector) { return order.is_own(vector / 4); },
                          [&](unsigned vector, unsigned m) { return load_floats<N>(smem.totals + (vector * kRegsM + m) * N * 4); });
  }
}
#endif
