// What a kernel for few rows of A does.

#ifndef FOURFOLD_HOST
// a / b, rounded down, of numbers below 2^20: a division of integers takes some hundred cycles. b is not 0: extents of zero
// are refused before a launch, and of those that are not each CTA has a part.
CUTLASS_DEVICE unsigned divide(unsigned a, unsigned b) {
  return static_cast<unsigned>(__fdividef(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

// Adds up what the warps have of four rows of a group, side by side.
template <int kTokens>
CUTLASS_DEVICE cutlass::Array<float, 4> add_few(FewWork const &work, uint32_t rings, uint32_t sums, uint32_t zeros,
                                                unsigned group, unsigned token, unsigned quarter) {
  using V = Few<kTokens>;
  unsigned const first = group * work.chunks.number, last = first + work.chunks.number;
  unsigned const at = (token * V::kSumPitch + quarter * 4) * 4;
  cutlass::Array<float, 4> sum;
  sum.clear();
  if constexpr (V::kAsBytes) {
    CUTLASS_PRAGMA_UNROLL
    for (int runner = 0; runner < V::kRunners; ++runner) {
      auto const one = load_floats<4>(sums + (runner * V::kMostGroups + group) * V::kSumBytes + at);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) {
        sum[j] += one[j];
      }
    }
    return sum;
  }
  // Which warps have chunks of the group; one that goes on to another group put its sums aside. Where one has none there are
  // zeros: so what four have is asked for at a time, as a load takes longer than all that is done with it.
  constexpr unsigned kAtOnce = 4;
  unsigned warp = divide(group * V::kWarps, work.groups), begin = work.begin<V::kWarps>(warp);
  CUTLASS_PRAGMA_NO_UNROLL
  do {
    CUTLASS_PRAGMA_UNROLL
    for (unsigned i = 0; i < kAtOnce; ++i, ++warp) {
      unsigned const end = work.begin<V::kWarps>(warp + 1);
      uint32_t const from = (end <= last ? rings + warp * V::kRingBytes : sums + group * V::kSumBytes) + at;
      bool const has = begin < min(end, last) && end > first && warp < V::kWarps;
      auto const one = load_floats<4>(has ? from : zeros);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) {
        sum[j] += one[j];
      }
      begin = end;
    }
  } while (begin < last);
  return sum;
}

template <int kTokens>
CUTLASS_DEVICE void compute_few(Parameters const &parameters, void *shared) {
  using V = Few<kTokens>;
  constexpr int N = V::kWidth;
  FewParameters const &p = parameters.few;
  int const warp = static_cast<int>(threadIdx.x / 32), quad = lane() / 4, t = lane() % 4;
  uint32_t const rings = computed_again((shared_address(shared) + V::kAlignment - 1) & ~(V::kAlignment - 1u));
  uint32_t const ring = rings + warp * V::kRingBytes;
  uint32_t const tokens = rings + V::kWarps * V::kRingBytes, sums = tokens + V::kTokenBytes;
  uint32_t const totals = sums + V::kAllSums, zeros = totals + V::kTotalBytes;
  uint32_t const exchanged = zeros + V::kZeroBytes, unused = exchanged + 8;
  unsigned const shift = p.cluster_bits, mask = (1u << shift) - 1, rank = shift == 0 ? 0 : cluster_rank();
  unsigned const all = blockIdx.x >> shift, batch = p.is_batch ? p.ctas.divide(all) : 0;
  unsigned const cta = p.is_batch ? all - batch * p.ctas.number : all;
  unsigned const units = p.share + (cta < p.share_rest);
  FewMatrix const matrix(p, batch);
  bool const has_more = rank < p.k_share_rest;
  Divisor const &chunks = has_more ? p.chunks_more : p.chunks;
  FewWork const work{cta * p.share + min(cta, p.share_rest), units * V::kGroups,
                     rank * p.k_share + min(rank, static_cast<unsigned>(p.k_share_rest)),
                     {p.k_share + has_more, chunks.multiplier, chunks.shift}};
  FewRun run = run_of<kTokens>(work, warp);
  FewSource<kTokens> source(p, matrix, work, run);
  if (V::kAsBytes && run.count >= V::kManyChunks) {
    source.bring_first_near();
  }
  // It may have begun before what other kernels wrote is there: nothing is read before this. The next kernel is not told to begin: no
  // block of a GEMM shall be there before the one before has ended, though that would be 0.3 us faster.
  wait_for_kernel_before();
  // The tokens first, as nothing can be multiplied without them.
  FewPieces<kTokens> const pieces(p, matrix, work);
  CUTLASS_PRAGMA_NO_UNROLL
  for (int i = 0; i < V::kStages; ++i) {
    source.fetch(ring + i * V::kChunkBytes);
  }
  if (threadIdx.x == 0) {
    // The end would wait for memory otherwise.
    for_each_scalar(parameters.epilogue, [&](auto const *number) { bring_near(number, unused); });
  }
  if (mask > 0) {
    if (threadIdx.x == 0) {
      // Of each vector that this CTA has, each of the others sends what it has.
      unsigned const vectors = (units * 4 + mask - rank) >> shift;
      barrier_init(exchanged, 1);
      barrier_expect(exchanged, static_cast<int>(vectors * p.m * mask * N * 4));
      fence_barriers();
    }
    cluster_start();
  }
  int const k = static_cast<int>(work.chunks.number * V::kChunkK), pitch = k * 2 + 64;
  pieces.decode_to(work, tokens, pitch);
  if (threadIdx.x < V::kZeroBytes / 4) {
    store_word(zeros + threadIdx.x * 4, 0);
  }
  if constexpr (V::kAsBytes) {
    // wgmma reads what was written here.
    fence_copies();
  }
  __syncthreads();
  if (mask > 0) {
    cluster_wait_for_start();
  }

  uint32_t const codes_at = computed_again(ring + quad * V::kRowBytes + (t ^ quad % 2 * 4) * 16);
  uint32_t const scales_at = computed_again(ring + V::kGroupRows * V::kRowBytes + quad % 4 * 16 + quad / 4 * 4 +
                                            (kMx ? t : t / 2 * V::kAtomPart + t % 2 * 2));
  int stage = 0;
  // Codes and scales of rows `quad` and `quad + 8` of a chunk.
  auto const read = [&](uint4 (&codes)[V::kBlocks][2], uint32_t (&scales)[V::kBlocks][2]) {
    copies_wait<V::kStages - 1>();
    __syncwarp();
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < V::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        codes[block][row] = load_words(((codes_at + stage * V::kChunkBytes) ^ block * 64) + row * 8 * V::kRowBytes);
        uint32_t const at = scales_at + stage * V::kChunkBytes + row * 8 + block * kAtomsPerBlock * V::kAtomPart;
        scales[block][row] = kMx ? load_byte(at) : load_half(at);
      }
    }
  };
  // Codes that were read of the stage were used, and scales were asked for before, by the same warp: it waits for all its lanes.
  auto const give_back = [&] {
    __syncwarp();
    source.fetch(ring + stage * V::kChunkBytes);
    stage = stage + 1 == V::kStages ? 0 : stage + 1;
  };
  if constexpr (V::kAsBytes) {
    using Sums = ByteSums<kTokens>;
    Sums mine;
    // All four warps go the same way, those without rows of their own, too.
    int const chunks = same_for_warp(run.last - run.first);
    unsigned const first = same_for_warp(run.first);
    uint32_t operands[V::kBlocks][4][4] = {};
    for (unsigned of_four = 0; of_four < work.groups; of_four += V::kTogether, run.group += V::kTogether) {
      bool const has_rows = run.group < work.groups;
      mine.begin(tokens, work.chunks.number * V::kBlocks, first * V::kBlocks);
      for (int i = 0; i < chunks; ++i, mine.next()) {
        uint4 codes[V::kBlocks][2];
        uint32_t scales[V::kBlocks][2];
        typename Sums::Products products[V::kBlocks];
        read(codes, scales);
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < V::kBlocks; ++block) {
          mine.multiply(block, has_rows, codes[block], operands[block], products[block]);
        }
        give_back();
        cute::for_each(cute::make_seq<V::kBlocks>{}, [&](auto block) {
          wgmma_wait<V::kBlocks - 1 - block>();
          mine.add(block, scales[block], products[block]);
        });
      }
      if (has_rows) {
        mine.keep(sums + (warp / V::kTogether * V::kMostGroups + run.group) * V::kSumBytes);
      }
    }
  } else {
    FewSums<kTokens> mine(p, tokens, pitch);
    for (int i = 0; i < run.count; ++i) {
      uint4 codes[V::kBlocks][2];
      uint32_t scales[V::kBlocks][2];
      read(codes, scales);
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < V::kBlocks; ++block) {
        mine.add(static_cast<int>(run.chunk * V::kBlocks + block), codes[block], scales[block]);
      }
      give_back();
      unsigned const group = run.group;
      if (run.next() && i + 1 < run.count) {
        mine.keep(sums + group * V::kSumBytes);
      }
    }
    if (run.count > 0) {
      mine.keep(ring);
    }
  }
  __syncthreads();

  // A vector is N columns of a token, and a CTA of a cluster has every so many of them. Where a CTA has all of K and a vector
  // is of few groups, who writes it adds up what warps have; else that is put together before.
  bool const at_once = kSimple && mask == 0;
  auto const total = [&](unsigned vector, unsigned token, unsigned source) {
    return totals + (((((vector >> shift) * p.m + token) << shift) + source) * N) * 4;
  };
  if (!at_once) {
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = threadIdx.x; i < work.groups * 4 * kTokens; i += V::kThreads) {
      unsigned const quarter = i % 4, token = i / 4 % kTokens, of = i / 4 / kTokens;
      if (static_cast<int>(token) >= p.m) {
        continue;
      }
      auto const sum = add_few<kTokens>(work, rings, sums, zeros, of, token, quarter);
      unsigned const vector = of / V::kGroups * 4 + quarter;
      uint32_t const at = total(vector, token, rank) + of % V::kGroups * 16;
      unsigned const owner = vector & mask;
      if (owner == rank) {
        store_words(at, __float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), __float_as_uint(sum[3]));
      } else {
        cluster_store(cluster_address(at, owner), &sum[0], cluster_address(exchanged, owner));
      }
    }
    __syncthreads();
    if (mask > 0) {
      barrier_wait(exchanged, 0);
    }
  }
  write_few<kTokens, V>(parameters, work.first_unit, units, batch, zeros, [&](unsigned vector) { return (vector & mask) == rank; },
                        [&](unsigned vector, unsigned token) {
    cutlass::Array<float, N> sum;
    sum.clear();
    if (at_once) {
      if constexpr (kSimple) {
        CUTLASS_PRAGMA_UNROLL
        for (int part = 0; part < V::kGroups; ++part) {
          auto const four = add_few<kTokens>(work, rings, sums, zeros, vector / 4 * V::kGroups + part, token, vector % 4);
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < 4; ++i) {
            sum[part * 4 + i] = four[i];
          }
        }
      }
      return sum;
    }
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned source = 0; source <= mask; ++source) {
      auto const one = load_floats<N>(total(vector, token, source));
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < N; ++i) {
        sum[i] += one[i];
      }
    }
    return sum;
  });
  // Nobody leaves while others still send to it: all have waited for what they send.
}
#endif
