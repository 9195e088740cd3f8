// What a kernel for small M does.

#ifndef FOURFOLD_HOST
// a / b, rounded down, of numbers below 2^20: a division of integers takes some hundred cycles. b is not 0: extents of zero
// are refused before a launch, and of those that are not each CTA has a part.
CUTLASS_DEVICE unsigned divide(unsigned a, unsigned b) {
  return static_cast<unsigned>(__fdividef(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

// Adds up what the warps have of four rows of a group, side by side.
template <int kTileM>
CUTLASS_DEVICE cutlass::Array<float, 4> reduce_small_m(SmallMWork const &work, uint32_t rings, uint32_t sums, uint32_t zeros,
                                                       unsigned group, unsigned m, unsigned quarter) {
  using V = SmallM<kTileM>;
  unsigned const first = group * work.chunks.number, last = first + work.chunks.number;
  unsigned const at = (m * V::kSumPitch + quarter * 4) * 4;
  cutlass::Array<float, 4> sum;
  sum.clear();
  if constexpr (V::kUsesE4m3) {
    CUTLASS_PRAGMA_UNROLL
    for (int issuer = 0; issuer < V::kMmaIssuers; ++issuer) {
      auto const one = load_floats<4>(sums + (issuer * V::kMaxGroups + group) * V::kSumBytes + at);
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

template <int kTileM>
CUTLASS_DEVICE void run_small_m(Parameters const &parameters, void *shared) {
  using V = SmallM<kTileM>;
  constexpr int N = V::kWidth;
  SmallMParameters const &p = parameters.small_m;
  int const warp = static_cast<int>(threadIdx.x / 32), quad = lane() / 4, t = lane() % 4;
  uint32_t const rings = rematerialize((shared_address(shared) + V::kAlignment - 1) & ~(V::kAlignment - 1u));
  uint32_t const ring = rings + warp * V::kRingBytes;
  uint32_t const smem_a = rings + V::kWarps * V::kRingBytes, sums = smem_a + V::kABytes;
  uint32_t const totals = sums + V::kAllSums, zeros = totals + V::kTotalBytes;
  uint32_t const exchange_full = zeros + V::kZeroBytes, unused = exchange_full + 8;
  unsigned const shift = p.cluster_bits, mask = (1u << shift) - 1, rank = shift == 0 ? 0 : cluster_rank();
  unsigned const all = blockIdx.x >> shift, batch = p.is_batch ? p.ctas.divide(all) : 0;
  unsigned const cta = p.is_batch ? all - batch * p.ctas.number : all;
  unsigned const units = p.units_per_cta + (cta < p.extra_units);
  SmallMOperands const matrix(p, batch);
  bool const has_more = rank < p.extra_chunks;
  Divisor const &chunks = has_more ? p.chunks_plus_one : p.chunks;
  SmallMWork const work{cta * p.units_per_cta + min(cta, p.extra_units), units * V::kGroups,
                        rank * p.chunks_per_cta + min(rank, static_cast<unsigned>(p.extra_chunks)),
                        {p.chunks_per_cta + has_more, chunks.multiplier, chunks.shift}};
  SmallMChunks run = chunks_of<kTileM>(work, warp);
  SmallMProducer<kTileM> source(p, matrix, work, run);
  if (V::kUsesE4m3 && run.count >= V::kPrefetchChunks) {
    source.prefetch_first();
  }
  // It may have begun before what other kernels wrote is there: nothing is read before this. The next kernel is not told to begin: no
  // block of a GEMM shall be there before the one before has ended, though that would be 0.3 us faster.
  grid_dependency_wait();
  // The rows of A first, as nothing can be multiplied without them.
  SmallMDecodeA<kTileM> const pieces(p, matrix, work);
  CUTLASS_PRAGMA_NO_UNROLL
  for (int i = 0; i < V::kStages; ++i) {
    source.fetch(ring + i * V::kChunkBytes);
  }
  if (threadIdx.x == 0) {
    // The end would wait for memory otherwise.
    for_each_scalar(parameters.epilogue, [&](auto const *number) { prefetch_scalar(number, unused); });
  }
  if (mask > 0) {
    if (threadIdx.x == 0) {
      // Of each vector that this CTA has, each of the others sends what it has.
      unsigned const vectors = (units * 4 + mask - rank) >> shift;
      barrier_init(exchange_full, 1);
      barrier_expect_tx(exchange_full, static_cast<int>(vectors * p.m * mask * N * 4));
      fence_barrier_init();
    }
    cluster_arrive();
  }
  int const k = static_cast<int>(work.chunks.number * V::kChunkK), pitch = k * 2 + 64;
  pieces.decode_to(work, smem_a, pitch);
  if (threadIdx.x < V::kZeroBytes / 4) {
    store_word(zeros + threadIdx.x * 4, 0);
  }
  if constexpr (V::kUsesE4m3) {
    // wgmma reads what was written here.
    fence_async_proxy();
  }
  __syncthreads();
  if (mask > 0) {
    cluster_wait();
  }

  uint32_t const codes_at = rematerialize(ring + quad * V::kRowBytes + (t ^ quad % 2 * 4) * 16);
  uint32_t const scales_at = rematerialize(ring + V::kGroupN * V::kRowBytes + quad % 4 * 16 + quad / 4 * 4 +
                                           (kMx ? t : t / 2 * V::kAtomPart + t % 2 * 2));
  int stage = 0;
  // Codes and scales of rows `quad` and `quad + 8` of a chunk.
  auto const read = [&](uint4 (&codes)[V::kBlocks][2], uint32_t (&scales)[V::kBlocks][2]) {
    cp_async_wait<V::kStages - 1>();
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
  auto const release = [&] {
    __syncwarp();
    source.fetch(ring + stage * V::kChunkBytes);
    stage = stage + 1 == V::kStages ? 0 : stage + 1;
  };
  if constexpr (V::kUsesE4m3) {
    using Sums = SmallME4m3Accumulators<kTileM>;
    Sums mine;
    // All four warps go the same way, those without rows of their own, too.
    int const chunks = warp_uniform(run.last - run.first);
    unsigned const first = warp_uniform(run.first);
    uint32_t operands[V::kBlocks][4][4] = {};
    for (unsigned of_four = 0; of_four < work.groups; of_four += V::kMmaWarps, run.group += V::kMmaWarps) {
      bool const has_rows = run.group < work.groups;
      mine.begin(smem_a, work.chunks.number * V::kBlocks, first * V::kBlocks);
      for (int i = 0; i < chunks; ++i, mine.next()) {
        uint4 codes[V::kBlocks][2];
        uint32_t scales[V::kBlocks][2];
        typename Sums::Products products[V::kBlocks];
        read(codes, scales);
        CUTLASS_PRAGMA_UNROLL
        for (int block = 0; block < V::kBlocks; ++block) {
          mine.multiply(block, has_rows, codes[block], operands[block], products[block]);
        }
        release();
        cute::for_each(cute::make_seq<V::kBlocks>{}, [&](auto block) {
          wgmma_wait<V::kBlocks - 1 - block>();
          mine.add(block, scales[block], products[block]);
        });
      }
      if (has_rows) {
        mine.keep(sums + (warp / V::kMmaWarps * V::kMaxGroups + run.group) * V::kSumBytes);
      }
    }
  } else {
    SmallMAccumulators<kTileM> mine(p, smem_a, pitch);
    for (int i = 0; i < run.count; ++i) {
      uint4 codes[V::kBlocks][2];
      uint32_t scales[V::kBlocks][2];
      read(codes, scales);
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < V::kBlocks; ++block) {
        mine.add(static_cast<int>(run.chunk * V::kBlocks + block), codes[block], scales[block]);
      }
      release();
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

  // A vector is N columns of a row of A, and a CTA of a cluster has every so many of them. Where a CTA has all of K and a vector
  // is of few groups, who writes it adds up what warps have; else that is put together before.
  bool const at_once = kSimple && mask == 0;
  auto const total = [&](unsigned vector, unsigned m, unsigned source) {
    return totals + (((((vector >> shift) * p.m + m) << shift) + source) * N) * 4;
  };
  if (!at_once) {
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = threadIdx.x; i < work.groups * 4 * kTileM; i += V::kThreads) {
      unsigned const quarter = i % 4, m = i / 4 % kTileM, of = i / 4 / kTileM;
      if (static_cast<int>(m) >= p.m) {
        continue;
      }
      auto const sum = reduce_small_m<kTileM>(work, rings, sums, zeros, of, m, quarter);
      unsigned const vector = of / V::kGroups * 4 + quarter;
      uint32_t const at = total(vector, m, rank) + of % V::kGroups * 16;
      unsigned const owner = vector & mask;
      if (owner == rank) {
        store_words(at, __float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), __float_as_uint(sum[3]));
      } else {
        store_async(cluster_address(at, owner), &sum[0], cluster_address(exchange_full, owner));
      }
    }
    __syncthreads();
    if (mask > 0) {
      barrier_wait(exchange_full, 0);
    }
  }
  store_small_m<kTileM, V>(parameters, work.first_unit, units, batch, zeros, [&](unsigned vector) { return (vector & mask) == rank; },
                           [&](unsigned vector, unsigned m) {
    cutlass::Array<float, N> sum;
    sum.clear();
    if (at_once) {
      if constexpr (kSimple) {
        CUTLASS_PRAGMA_UNROLL
        for (int part = 0; part < V::kGroups; ++part) {
          auto const four = reduce_small_m<kTileM>(work, rings, sums, zeros, vector / 4 * V::kGroups + part, m, vector % 4);
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
      auto const one = load_floats<N>(total(vector, m, source));
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
