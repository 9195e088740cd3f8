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
  unsigned const batch = p.is_batch ? p.ctas.divide(all) : 0, cta = p.is_batch ? all - batch * p.ctas.number : all;
  unsigned const units = p.share + (cta < p.share_rest), first_unit = cta * p.share + min(cta, p.share_rest);
  unsigned const chunks = p.k_share + (rank < p.k_share_rest);
  unsigned const chunk = rank * p.k_share + min(rank, static_cast<unsigned>(p.k_share_rest)) + warp;
  HeldOrder const order(units * V::kGroups, rank, is_of_pair);
  unsigned const groups = order.groups;
  bool const has_chunk = warp < chunks, is_one = is_elected();
  if (is_one) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kBarriers; ++i) {
      barrier_init(barriers + i * 8, 1);
    }
    if (warp == 0) {
      barrier_init(summed, V::kThreads);
      barrier_init(exchanged, 1);
      if (is_of_pair) {
        barrier_expect(exchanged, static_cast<int>(order.others * V::kSumBytes));
      }
    }
    fence_barriers();
  }
  __syncwarp();
  // It may have begun before what other kernels wrote is there.
  wait_for_kernel_before();
  // The tokens first, as nothing can be multiplied without them.
  HeldSource source(parameters, order, first_unit * V::kGroups, batch, chunk, ring, barriers);
  HeldTokens tokens;
  if (has_chunk) {
    if (is_one) {
      source.fetch_tokens();
      source.fetch_scales(groups, scales);
      source.fetch(0);
    }
    tokens.load_scales(p, batch, chunk);
  }
  if (threadIdx.x == 0) {
    // The end would wait for memory otherwise.
    for_each_scalar(parameters.epilogue, [&](auto const *number) { bring_near(number, unused); });
  }
  if (threadIdx.x < V::kZeroBytes / 4) {
    store_word(zeros + threadIdx.x * 4, 0);
  }
  // All barriers are made.
  __syncthreads();
  if (is_of_pair) {
    cluster_start();
  }

  // Where the sums are of the group that comes at some place, from those of the first warp on, and how far it is to the next one's.
  auto const sums_at = [&](unsigned place) {
    unsigned const last = groups - V::kStages;
    return place < last ? all_sums + place * V::kSumBytes : rings + (place - last) * V::kCodeBytes;
  };
  auto const pitch = [&](unsigned place) { return place < groups - V::kStages ? V::kOwnSums : V::kRingBytes; };
  // What all warps have of a piece of these.
  auto const add_up = [&](unsigned place, unsigned at) {
    uint32_t const from = sums_at(place) + at, by = pitch(place);
    cutlass::Array<float, 4> sum;
    sum.clear();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kWarps; ++i) {
      auto const one = load_floats<4>(from + i * by);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) {
        sum[j] += one[j];
      }
    }
    return sum;
  };
  constexpr unsigned kPieces = V::kColumns * 32;  // of a group
  auto const send = [&] {
    barrier_wait(summed, 0);
    cluster_wait_for_start();
    // By the warps that end first.
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = (V::kWarps - 1 - warp) * 32 + lane(); i < order.others * kPieces; i += V::kThreads) {
      auto const sum = add_up(i / kPieces, i % kPieces * 16);
      cluster_store(cluster_address(exchange + i * 16, other), &sum[0], cluster_address(exchanged, other));
    }
  };
  // After which two groups a warp has all that the other CTA will write.
  unsigned const last_of_others = (order.others + 1) / 2 - 1;
  if (has_chunk) {
    HeldPart const part(ring, scales, V::kScaleRow);
    barrier_wait(barriers + 8, 0);
    tokens.decode_from(part, 1);
    __syncwarp();
    if (is_one) {
      source.fetch(1);
    }
    uint32_t own_sums = all_sums + warp * V::kOwnSums + lane() * 16;
    uint32_t const own_ring = computed_again(ring + lane() * 16);
    barrier_wait(barriers + V::kStages * 8, 0);
    HeldPlace here(order);
    uint32_t phase = 0;
    // Twos of groups that are left, and until others' sums are there, and sent.
    int left = static_cast<int>(groups) / V::kStages, until_had = static_cast<int>(last_of_others);
    CUTLASS_PRAGMA_NO_UNROLL
    do {
      bool const is_last = --left == 0;
      CUTLASS_PRAGMA_UNROLL
      for (int stage = 0; stage < V::kStages; ++stage) {
        HeldSums mine;
        // The second stage had the tokens before.
        barrier_wait(barriers + stage * 8, phase ^ stage);
        mine.add(tokens, part, stage, here.group / 2 * V::kScaleRoom + here.group % 2 * 8);
        here.next(order);
        if (is_last) {
          // Sums of any lane lie where others had codes.
          __syncwarp();
        }
        mine.keep(is_last ? own_ring + stage * V::kCodeBytes : own_sums);
        own_sums += V::kSumBytes;
        __syncwarp();
        if (is_one && !is_last) {
          source.fetch(stage);
        }
        __syncwarp();
      }
      phase ^= 1;
      if (is_of_pair && --until_had < 0) {
        if (until_had == -1) {
          barrier_arrive(summed);
        } else if (until_had == -2) {
          send();
        }
      }
    } while (left > 0);
  } else {
    // Who has nothing of K has zeros.
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned place = 0; place < groups; ++place) {
      CUTLASS_PRAGMA_UNROLL
      for (int column = 0; column < V::kColumns; ++column) {
        store_words(sums_at(place) + warp * pitch(place) + column * V::kPieceBytes + lane() * 16, 0, 0, 0, 0);
      }
    }
    if (is_of_pair) {
      barrier_arrive(summed);
    }
  }
  if (is_of_pair && (!has_chunk || (last_of_others + 1) * V::kStages >= order.groups)) {
    send();
  }
  __syncthreads();
  if (is_of_pair) {
    barrier_wait(exchanged, 0);
  }
  CUTLASS_PRAGMA_NO_UNROLL
  for (unsigned item = order.others * kPieces + threadIdx.x; item < groups * kPieces; item += V::kThreads) {
    unsigned const place = item / kPieces, at = item % kPieces * 16, group = order.group(place);
    auto sum = add_up(place, at);
    if (is_of_pair) {
      auto const one = load_floats<4>(exchange + (place - order.others) * V::kSumBytes + at);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) {
        sum[j] += one[j];
      }
    }
    // A vector is N columns of a token: of a group's rows eight are of one, and eight of the next.
    unsigned const token = item / 32 % V::kColumns * 8 + item % 4 * 2, vector = group / V::kGroups * 4 + group % 2 * 2;
    unsigned const inside = group % V::kGroups / 2 * 8 + item % 32 / 4;
    CUTLASS_PRAGMA_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      store_word(totals + (((vector + j / 2) * kHeldTokens + token + j % 2) * N + inside) * 4, __float_as_uint(sum[j]));
    }
  }
  __syncthreads();
  // Of two CTAs each writes every second group of rows.
  write_few<kHeldTokens, V>(parameters, first_unit, units, batch, zeros,
                        [&](unsigned vector) { return !is_of_pair || vector / 2 % 2 == rank; },
                        [&](unsigned vector, unsigned token) { return load_floats<N>(totals + (vector * kHeldTokens + token) * N * 4); });
}
#endif
