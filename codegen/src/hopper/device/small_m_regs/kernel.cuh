// The kernel for small M whose warps keep A in registers: load, mainloop, cluster reduce, store. traits.cuh has its design.

#ifndef FOURFOLD_HOST
// The arrays of a CTA in shared memory: traits.cuh has the map.
struct SmallMRegsSmem {
  uint32_t sums, exchange, zeros, unused, totals, sums_full, exchange_full;
};

// Pieces of 8 bytes that the sums of a group have: those of a row of B for two rows of A.
constexpr unsigned kSumPieces = SmallMRegs::kSumBytes / 8;

// Adds up sums, and sends to the other CTA of a pair those that it writes. The members are references: with copies the compiler emits
// other instructions.
struct SmallMRegsReduce {
  using V = SmallMRegs;
  SmallMRegsSmem const &smem;
  SmallMRegsOrder const &order;
  bool const &is_of_pair;
  // Groups of this CTA, and those of them that the other writes: these come first.
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

  // Cluster reduce: sends the sums of the groups that the other CTA writes, once all warps of this one have them.
  CUTLASS_DEVICE void send() const {
    barrier_wait(smem.sums_full, 0);
    cluster_wait();
    // By the warps that end first.
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = (V::kWarps - 1 - warp) * 32 + lane(); i < others * kSumPieces; i += V::kThreads) {
      store_async_pair(cluster_address(smem.exchange + i * 8, other), sum_of_warps(i), cluster_address(smem.exchange_full, other));
    }
  }

  // Calls `use` with the sums of a row for two rows of A, and with where the row is in its vector. A vector is kWidth columns of a row of
  // A: of a group's rows eight are of one, and eight of the next.
  template <class Use>
  CUTLASS_DEVICE void for_each_own(Use const &use) const {
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned piece = others * kSumPieces + threadIdx.x; piece < groups * kSumPieces; piece += V::kThreads) {
      unsigned const place = piece / kSumPieces, part = order.part(place / V::kStages), thread = piece / 2 % 32;
      unsigned const vector = part / V::kParts * 4 + place % V::kStages * 2 + piece % 2;
      unsigned const m = piece / 64 % V::kColumns * 8 + thread % 4 * 2, inside = part % V::kParts * kRunN + thread / 4;
      float2 sum = sum_of_warps(piece);
      if (is_of_pair) {
        // The other's come late.
        barrier_wait(smem.exchange_full, 0);
        add_pair(sum, smem.exchange + (piece - others * kSumPieces) * 8);
      }
      use(vector, inside, m, sum);
    }
  }
};

// Makes the barriers of a warp's stages.
CUTLASS_DEVICE void init_stage_barriers(uint32_t barriers) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < SmallMRegs::kBarriers; ++i) {
    barrier_init(barriers + i * 8, 1);
  }
  fence_barrier_init();
}

// Load: asks for a warp's chunk of A, with its scales at `sfa`, and for the first group of B; then makes the barriers of the CTA.
CUTLASS_DEVICE void load_regs(Parameters const &parameters, SmallMRegsSmem const &smem, SmallMRegsProducer &source, uint32_t sfa,
                              int first_atom_m, unsigned warp, bool has_chunk, bool is_one, bool is_of_pair, unsigned groups,
                              unsigned others) {
  using V = SmallMRegs;
  source.next();
  if (has_chunk && is_one) {
    source.fetch_a(sfa, first_atom_m);
    source.fetch(0, 0);
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
  // All barriers are made. That warps wait for each other here, though each could have its rows of A by itself, is 0.2 us faster.
  __syncthreads();
  if (is_of_pair) {
    cluster_arrive();
  }
  if (threadIdx.x == 0) {
    // The end would wait for memory otherwise.
    for_each_scalar(parameters.epilogue, [&](auto const *number) { prefetch_scalar(number, smem.unused); });
  }
}

// Mainloop: a warp decodes the rows of A of its chunk into registers, and multiplies them by all groups of B of the CTA, one after the
// other. Their sums go to `own_sums`.
CUTLASS_DEVICE void mainloop_regs(SmallMParameters const &p, SmallMRegsReduce const &reduce, SmallMRegsProducer &source,
                                  SmallMRegsB const &part, SmallMRegsA &fragments_a, SmallMRegsAccumulators &mine, uint32_t barriers,
                                  uint32_t own_sums, bool sends, bool is_one) {
  using V = SmallMRegs;
  barrier_wait(barriers + 8, 0);
  // Rows of B come where rows of A were, so what asks for them knows that these were read. Zero, as no more than two CTAs share K; the
  // compiler does not know.
  source.barriers += fragments_a.decode_from(part, 1, own_sums, p.cluster_bits >> 4);
  own_sums += lane() * 16;
  uint32_t phase = 0;
  // Parts that are left, and how many are when all are there that the other writes.
  int left = static_cast<int>(reduce.order.parts);
  int const left_sent = static_cast<int>(rematerialize(sends ? reduce.order.parts - reduce.order.others - 1 : reduce.order.parts + 1));
  CUTLASS_PRAGMA_NO_UNROLL
  do {
    --left;
    CUTLASS_PRAGMA_UNROLL
    for (int stage = 0; stage < V::kStages; ++stage) {
      mine.clear();
      // The second stage had the rows of A before.
      barrier_wait(barriers + stage * 8, phase ^ stage);
      // The next group goes where the one before was: the sums of that are kept.
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

// Of a warp that has no chunk the sums are zeros.
CUTLASS_DEVICE void clear_sums(uint32_t own_sums, unsigned groups) {
  CUTLASS_PRAGMA_NO_UNROLL
  for (unsigned piece = lane(); piece < groups * (kSumPieces / 2); piece += 32) {
    store_words(own_sums + piece * 16, 0, 0, 0, 0);
  }
}

// Store: writes the CTA's sums as they are, without vectors.
template <int kAtOnce, class States>
CUTLASS_DEVICE void store_sums(SmallMParameters const &p, SmallMRegsReduce const &reduce, unsigned const &batch, unsigned const &first_unit,
                               EpilogueArguments const &epilogue, States &states) {
  reduce.for_each_own([&](unsigned vector, unsigned inside, unsigned m, float2 sum) {
    int const column = small_m_column(first_unit, vector) + static_cast<int>(inside);
    auto const write = [&](unsigned row, float of_row) {
      Place const here{static_cast<int>(batch), static_cast<int>(row), column, p.m, static_cast<int>(p.n), 0};
      cutlass::Array<float, kAtOnce> one;
      one[0] = of_row * kFactor;
      if (here.contains(0, 0)) {
        write_outputs<kAtOnce>(epilogue, states, here, one);
      }
    };
    write(m, sum.x);
    write(m + 1, sum.y);
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
  uint32_t const unused = zeros + V::kZeroBytes, all_barriers = unused + V::kUnusedBytes;
  uint32_t const ring = rings + warp * V::kRingBytes, scales = all_scales + warp * V::kSfbRingBytes;
  uint32_t const barriers = all_barriers + warp * V::kBarriers * 8, sums_full = all_barriers + V::kWarps * V::kBarriers * 8;
  uint32_t const exchange_full = sums_full + 8, totals = all_scales;
  SmallMRegsSmem const smem{all_sums, exchange, zeros, unused, totals, sums_full, exchange_full};
  // One CTA has all of K, or two have half of it each.
  bool const is_of_pair = p.cluster_bits == 1;
  unsigned const rank = is_of_pair ? cluster_rank() : 0, other = 1 - rank, all = blockIdx.x >> p.cluster_bits;
  // Nothing happens until the first copies are asked for, and each 64 bytes of parameters that are read before take some hundred
  // cycles: what only one matrix of several needs stands behind a branch.
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
  // Groups, and those of them that the other writes.
  unsigned const groups = order.parts * V::kStages, others = order.others * V::kStages;
  bool const sends = order.others > 0;
  bool const has_chunk = warp < chunks, is_one = elect_one();
  if (is_one) {
    init_stage_barriers(barriers);
  }
  __syncwarp();
  // It may have begun before what other kernels wrote is there. What can be done behind the requests is: where a CTA begins last, all
  // that stands before them is waited for.
  grid_dependency_wait();
  // The rows of A first, as nothing can be multiplied without them.
  SmallMRegsProducer source(parameters, order, first_unit * V::kParts, batch, chunk, first_atom_n, ring, scales, barriers);
  uint32_t own_sums = smem.sums + warp * V::kOwnSums;
  load_regs(parameters, smem, source, own_sums, first_atom_m, warp, has_chunk, is_one, is_of_pair, groups, others);
  SmallMRegsReduce const reduce{smem, order, is_of_pair, groups, others, warp, other};
  if (has_chunk) {
    SmallMRegsB const part(ring, scales);
    // As locals of the function that uses them the compiler emits other instructions.
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
  // Sums are written as they are, if outputs are simple: to make vectors of them first takes 0.3 us more. This function is no
  // template, so the branch that is not taken is compiled, too, and blocks of one element are not: hence N, not kSimple, is asked.
  constexpr int kAtOnce = kSimple ? 1 : N;
  if constexpr (kAtOnce == 1) {
    EpilogueArguments const epilogue = small_m_epilogue(parameters, smem.zeros);
    auto states = begin_outputs<kAtOnce>(epilogue);
    store_sums<kAtOnce>(p, reduce, batch, first_unit, epilogue, states);
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
