// What a kernel for small M does where its warps keep A in registers.

#ifndef FOURFOLD_HOST
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
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kBarriers; ++i) {
      barrier_init(barriers + i * 8, 1);
    }
    fence_barrier_init();
  }
  __syncwarp();
  // It may have begun before what other kernels wrote is there. What can be done behind the requests is: where a CTA begins last, all
  // that stands before them is waited for.
  grid_dependency_wait();
  // The rows of A first, as nothing can be multiplied without them.
  SmallMRegsProducer source(parameters, order, first_unit * V::kParts, batch, chunk, first_atom_n, ring, scales, barriers);
  uint32_t own_sums = all_sums + warp * V::kOwnSums;
  source.next();
  if (has_chunk && is_one) {
    source.fetch_a(own_sums, first_atom_m);
    source.fetch(0, 0);
  }
  if (warp == 0 && is_one) {
    barrier_init(sums_full, V::kThreads);
    barrier_init(exchange_full, 1);
    if (is_of_pair) {
      barrier_expect_tx(exchange_full, static_cast<int>((groups - others) * V::kSumBytes));
    }
    fence_barrier_init();
  }
  if (threadIdx.x < V::kZeroBytes / 4) {
    store_word(zeros + threadIdx.x * 4, 0);
  }
  // All barriers are made. That warps wait for each other here, though each could have its rows of A by itself, is 0.2 us faster.
  __syncthreads();
  if (is_of_pair) {
    cluster_arrive();
  }
  if (threadIdx.x == 0) {
    // The end would wait for memory otherwise.
    for_each_scalar(parameters.epilogue, [&](auto const *number) { prefetch_scalar(number, unused); });
  }

  // Pieces of 8 bytes that a group's sums have, and what all warps' sums of one are.
  constexpr unsigned kPieces = V::kSumBytes / 8;
  auto const add_pair = [](float2 &sum, uint32_t at) {
    float2 const one = load_pair(at);
    sum.x += one.x;
    sum.y += one.y;
  };
  auto const add_up = [&](unsigned piece) {
    uint32_t const from = all_sums + piece * 8;
    float2 sum{};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kWarps; ++i) {
      add_pair(sum, from + i * V::kOwnSums);
    }
    return sum;
  };
  auto const send = [&] {
    barrier_wait(sums_full, 0);
    cluster_wait();
    // By the warps that end first.
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = (V::kWarps - 1 - warp) * 32 + lane(); i < others * kPieces; i += V::kThreads) {
      store_async_pair(cluster_address(exchange + i * 8, other), add_up(i), cluster_address(exchange_full, other));
    }
  };
  if (has_chunk) {
    SmallMRegsB const part(ring, scales);
    SmallMRegsA fragments_a;
    barrier_wait(barriers + 8, 0);
    // Rows of B come where rows of A were, so what asks for them knows that these were read. Zero, as no more than two CTAs share K; the
    // compiler does not know.
    source.barriers += fragments_a.decode_from(part, 1, own_sums, p.cluster_bits >> 4);
    own_sums += lane() * 16;
    uint32_t phase = 0;
    // Parts that are left, and how many are when all are there that the other writes.
    int left = static_cast<int>(order.parts);
    int const left_sent = static_cast<int>(rematerialize(sends ? order.parts - order.others - 1 : order.parts + 1));
    CUTLASS_PRAGMA_NO_UNROLL
    do {
      --left;
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 0; stage < V::kStages; ++stage) {
        SmallMRegsAccumulators mine;
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
          send();
        } else {
          barrier_arrive(sums_full);
        }
      }
    } while (left > 0);
  } else {
    // Who has nothing of K has zeros.
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned piece = lane(); piece < groups * (kPieces / 2); piece += 32) {
      store_words(own_sums + piece * 16, 0, 0, 0, 0);
    }
    if (sends) {
      barrier_arrive(sums_full);
    }
  }
  if (sends && (!has_chunk || others == groups)) {
    send();
  }
  if (is_of_pair && !sends) {
    cluster_wait();
  }
  __syncthreads();
  // Calls `use` with the sums of a row for two rows of A, and with where the row is in its vector. A vector is N columns of a row of A: of a
  // group's rows eight are of one, and eight of the next.
  auto const for_each_own = [&](auto const &use) {
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned piece = others * kPieces + threadIdx.x; piece < groups * kPieces; piece += V::kThreads) {
      unsigned const place = piece / kPieces, part = order.part(place / V::kStages), thread = piece / 2 % 32;
      unsigned const vector = part / V::kParts * 4 + place % V::kStages * 2 + piece % 2;
      unsigned const m = piece / 64 % V::kColumns * 8 + thread % 4 * 2, inside = part % V::kParts * kRunN + thread / 4;
      float2 sum = add_up(piece);
      if (is_of_pair) {
        // The other's come late.
        barrier_wait(exchange_full, 0);
        add_pair(sum, exchange + (piece - others * kPieces) * 8);
      }
      use(vector, inside, m, sum);
    }
  };
  // Sums are written as they are, if outputs are simple: to make vectors of them first takes 0.3 us more. This function is no
  // template, so the branch that is not taken is compiled, too, and blocks of one element are not: hence N, not kSimple, is asked.
  constexpr int kAtOnce = kSimple ? 1 : N;
  if constexpr (kAtOnce == 1) {
    EpilogueArguments const epilogue = small_m_epilogue(parameters, zeros);
    auto states = begin_outputs<kAtOnce>(epilogue);
    for_each_own([&](unsigned vector, unsigned inside, unsigned m, float2 sum) {
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
  } else {
    for_each_own([&](unsigned vector, unsigned inside, unsigned m, float2 sum) {
      uint32_t const to = totals + ((vector * kRegsM + m) * N + inside) * 4;
      store_word(to, __float_as_uint(sum.x));
      store_word(to + N * 4, __float_as_uint(sum.y));
    });
    __syncthreads();
    store_small_m<kRegsM, V>(parameters, first_unit, units, batch, zeros,
                          [&](unsigned vector) { return order.is_own(vector / 4); },
                          [&](unsigned vector, unsigned m) { return load_floats<N>(totals + (vector * kRegsM + m) * N * 4); });
  }
}
#endif
