// What a kernel for few rows of A does where its warps hold tokens.

#ifndef FOURFOLD_HOST
CUTLASS_DEVICE void compute_held(Parameters const &parameters, void *shared) {
  using V = Held;
  constexpr int N = V::kWidth;
  FewParameters const &p = parameters.few;
  unsigned const warp = same_for_warp(static_cast<int>(threadIdx.x / 32));
  uint32_t const rings = computed_again((shared_address(shared) + V::kAlignment - 1) & ~(V::kAlignment - 1u));
  uint32_t const all_scales = rings + V::kWarps * V::kRingBytes, all_sums = all_scales + V::kWarps * V::kAllScales;
  uint32_t const exchange = all_sums + V::kWarps * V::kOwnSums, zeros = exchange + V::kExchangeBytes;
  uint32_t const unused = zeros + V::kZeroBytes, all_barriers = unused + V::kUnusedBytes;
  uint32_t const ring = rings + warp * V::kRingBytes, scales = all_scales + warp * V::kAllScales;
  uint32_t const barriers = all_barriers + warp * V::kBarriers * 8, summed = all_barriers + V::kWarps * V::kBarriers * 8;
  uint32_t const exchanged = summed + 8, totals = all_scales;
  // One CTA has all of K, or two have half of it each.
  bool const is_of_pair = p.cluster_bits == 1;
  unsigned const rank = is_of_pair ? cluster_rank() : 0, other = 1 - rank, all = blockIdx.x >> p.cluster_bits;
  // Nothing happens until the first copies are asked for, and each 64 bytes of parameters that are read before take some hundred
  // cycles: what only one matrix of several needs stands behind a branch.
  unsigned batch = 0, cta = all;
  int first_block = 0, first_token_block = 0;
  if (p.is_batch) {
    keep_branch();
    batch = p.ctas.divide(all);
    cta = all - batch * p.ctas.number;
    first_block = static_cast<int>(batch) * parameters.weight_blocks;
    first_token_block = static_cast<int>(batch) * parameters.token_blocks;
  }
  unsigned const units = p.share + (cta < p.share_rest), first_unit = cta * p.share + min(cta, p.share_rest);
  unsigned const chunks = p.k_share + (rank < p.k_share_rest);
  unsigned const chunk = rank * p.k_share + min(rank, static_cast<unsigned>(p.k_share_rest)) + warp;
  HeldOrder const order(units, rank, is_of_pair);
  // Groups, and those of them that the other writes.
  unsigned const groups = order.parts * V::kStages, others = order.others * V::kStages;
  bool const sends = order.others > 0;
  bool const has_chunk = warp < chunks, is_one = is_elected();
  if (is_one) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kBarriers; ++i) {
      barrier_init(barriers + i * 8, 1);
    }
    fence_barriers();
  }
  __syncwarp();
  // It may have begun before what other kernels wrote is there. What can be done behind the requests is: where a CTA begins last, all
  // that stands before them is waited for.
  wait_for_kernel_before();
  // The tokens first, as nothing can be multiplied without them.
  HeldSource source(parameters, order, first_unit * V::kParts, batch, chunk, first_block, ring, scales, barriers);
  uint32_t own_sums = all_sums + warp * V::kOwnSums;
  source.next();
  if (has_chunk && is_one) {
    source.fetch_tokens(own_sums, first_token_block);
    source.fetch(0, 0);
  }
  if (warp == 0 && is_one) {
    barrier_init(summed, V::kThreads);
    barrier_init(exchanged, 1);
    if (is_of_pair) {
      barrier_expect(exchanged, static_cast<int>((groups - others) * V::kSumBytes));
    }
    fence_barriers();
  }
  if (threadIdx.x < V::kZeroBytes / 4) {
    store_word(zeros + threadIdx.x * 4, 0);
  }
  // All barriers are made. That warps wait for each other here, though each could have its tokens by itself, is 0.2 us faster.
  __syncthreads();
  if (is_of_pair) {
    cluster_start();
  }
  if (threadIdx.x == 0) {
    // The end would wait for memory otherwise.
    for_each_scalar(parameters.epilogue, [&](auto const *number) { bring_near(number, unused); });
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
    barrier_wait(summed, 0);
    cluster_wait_for_start();
    // By the warps that end first.
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = (V::kWarps - 1 - warp) * 32 + lane(); i < others * kPieces; i += V::kThreads) {
      cluster_store_pair(cluster_address(exchange + i * 8, other), add_up(i), cluster_address(exchanged, other));
    }
  };
  if (has_chunk) {
    HeldPart const part(ring, scales);
    HeldTokens tokens;
    barrier_wait(barriers + 8, 0);
    // Weights come where tokens were, so what asks for them knows that these were read. Zero, as no more than two CTAs share K; the
    // compiler does not know.
    source.barriers += tokens.decode_from(part, 1, own_sums, p.cluster_bits >> 4);
    own_sums += lane() * 16;
    uint32_t phase = 0;
    // Parts that are left, and how many are when all are there that the other writes.
    int left = static_cast<int>(order.parts);
    int const left_sent = static_cast<int>(computed_again(sends ? order.parts - order.others - 1 : order.parts + 1));
    CUTLASS_PRAGMA_NO_UNROLL
    do {
      --left;
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 0; stage < V::kStages; ++stage) {
        HeldSums mine;
        // The second stage had the tokens before.
        barrier_wait(barriers + stage * 8, phase ^ stage);
        // The next group goes where the one before was: the sums of that are kept.
        __syncwarp();
        if (stage == 1) {
          source.next();
        }
        if (is_one && (stage == 0 || left > 0)) {
          source.fetch(stage ^ 1, phase ^ stage);
        }
        mine.add(tokens, part, stage, phase * V::kScaleRoom + stage * 8);
        mine.keep(own_sums);
        own_sums += V::kSumBytes;
      }
      phase ^= 1;
      if (static_cast<unsigned>(left - left_sent) < 2) {
        if (left == left_sent) {
          send();
        } else {
          barrier_arrive(summed);
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
      barrier_arrive(summed);
    }
  }
  if (sends && (!has_chunk || others == groups)) {
    send();
  }
  if (is_of_pair && !sends) {
    cluster_wait_for_start();
  }
  __syncthreads();
  // Calls `use` with the sums of a row for two tokens, and with where the row is in its vector. A vector is N columns of a token: of a
  // group's rows eight are of one, and eight of the next.
  auto const for_each_own = [&](auto const &use) {
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned piece = others * kPieces + threadIdx.x; piece < groups * kPieces; piece += V::kThreads) {
      unsigned const place = piece / kPieces, part = order.part(place / V::kStages), thread = piece / 2 % 32;
      unsigned const vector = part / V::kParts * 4 + place % V::kStages * 2 + piece % 2;
      unsigned const token = piece / 64 % V::kColumns * 8 + thread % 4 * 2, inside = part % V::kParts * kRowsOfRun + thread / 4;
      float2 sum = add_up(piece);
      if (is_of_pair) {
        // The other's come late.
        barrier_wait(exchanged, 0);
        add_pair(sum, exchange + (piece - others * kPieces) * 8);
      }
      use(vector, inside, token, sum);
    }
  };
  // Sums are written as they are, if outputs are simple: to make vectors of them first takes 0.3 us more. This function is no
  // template, so the branch that is not taken is compiled, too, and blocks of one element are not: hence N, not kSimple, is asked.
  constexpr int kAtOnce = kSimple ? 1 : N;
  if constexpr (kAtOnce == 1) {
    EpilogueArguments const epilogue = epilogue_of_few(parameters, zeros);
    auto states = begin_outputs<kAtOnce>(epilogue);
    for_each_own([&](unsigned vector, unsigned inside, unsigned token, float2 sum) {
      int const column = column_of_few(first_unit, vector) + static_cast<int>(inside);
      auto const write = [&](unsigned row, float of_row) {
        Place const here{static_cast<int>(batch), static_cast<int>(row), column, p.m, static_cast<int>(p.n), 0};
        cutlass::Array<float, kAtOnce> one;
        one[0] = of_row * kFactor;
        if (here.contains(0, 0)) {
          write_outputs<kAtOnce>(epilogue, states, here, one);
        }
      };
      write(token, sum.x);
      write(token + 1, sum.y);
    });
  } else {
    for_each_own([&](unsigned vector, unsigned inside, unsigned token, float2 sum) {
      uint32_t const to = totals + ((vector * kHeldTokens + token) * N + inside) * 4;
      store_word(to, __float_as_uint(sum.x));
      store_word(to + N * 4, __float_as_uint(sum.y));
    });
    __syncthreads();
    write_few<kHeldTokens, V>(parameters, first_unit, units, batch, zeros,
                          [&](unsigned vector) { return order.is_own(vector / 4); },
                          [&](unsigned vector, unsigned token) { return load_floats<N>(totals + (vector * kHeldTokens + token) * N * 4); });
  }
}
#endif
