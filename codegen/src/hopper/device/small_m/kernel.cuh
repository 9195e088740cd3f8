// The small-M kernel: load, mainloop, cluster reduce, store. traits.cuh has the design.

#ifndef FOURFOLD_HOST
// Returns a / b rounded down, for numbers below 2^20. An integer division would take hundreds of cycles. b is not 0:
// problems with an empty extent are not launched, and every CTA has work.
CUTLASS_DEVICE unsigned divide(unsigned a, unsigned b) {
  return static_cast<unsigned>(__fdividef(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

// Addresses of a CTA's arrays in shared memory. traits.cuh has the map.
struct SmallMSmem {
  uint32_t rings, a, sums, totals, zeros, exchange_full, unused;
};

// A CTA's position in its cluster of 1 << shift.
struct SmallMCluster {
  unsigned shift, mask, rank;
  CUTLASS_DEVICE explicit SmallMCluster(SmallMParameters const &p)
      : shift(p.cluster_bits), mask((1u << shift) - 1), rank(shift == 0 ? 0 : cluster_rank()) {}
};

// Bytes between two rows of A in shared memory, as fp16 or bf16.
template <int kTileM>
CUTLASS_DEVICE int small_m_pitch(SmallMWork const &work) {
  return static_cast<int>(work.chunks.number * SmallM<kTileM>::kChunkK) * 2 * kTermsA + 64;
}

// Load: issues the copies of a warp's first chunks of B, and decodes A from `pieces` into shared memory. On return all
// threads of the CTA may read A, and other CTAs of the cluster may send to this one.
template <int kTileM>
CUTLASS_DEVICE void load_small_m(Parameters const &parameters, SmallMWork const &work, SmallMSmem const &smem,
                                 SmallMCluster const &cluster, unsigned units, SmallMProducer<kTileM> &source, uint32_t ring,
                                 SmallMDecodeA<kTileM> const &pieces) {
  using V = SmallM<kTileM>;
  SmallMParameters const &p = parameters.small_m;
  CUTLASS_PRAGMA_NO_UNROLL
  for (int i = 0; i < V::kStages; ++i) {
    source.fetch(ring + i * V::kChunkBytes);
  }
  if (threadIdx.x == 0) {
    // Prefetches scalars: the store would otherwise wait for memory.
    prefetch_scalars(parameters.epilogue, smem.unused);
  }
  if (cluster.mask > 0) {
    if (threadIdx.x == 0) {
      // Each other CTA sends its sums of each vector that this CTA stores.
      unsigned const vectors = (units * 4 + cluster.mask - cluster.rank) >> cluster.shift;
      barrier_init(smem.exchange_full, 1);
      barrier_expect_tx(smem.exchange_full, static_cast<int>(vectors * p.m * cluster.mask * V::kWidth * 4));
      fence_barrier_init();
    }
    cluster_arrive();
  }
  pieces.decode_to(work, smem.a, small_m_pitch<kTileM>(work));
  if (threadIdx.x < V::kZeroBytes / 4) {
    store_word(smem.zeros + threadIdx.x * 4, 0);
  }
  if constexpr (V::kUsesE4m3) {
    // Orders the generic stores of A before wgmma reads them through the async proxy.
    fence_async_proxy();
  }
  __syncthreads();
  if (cluster.mask > 0) {
    cluster_wait();
  }
}

// Adds the warps' sums of four adjacent rows of B of a group.
template <int kTileM>
CUTLASS_DEVICE cutlass::Array<float, 4> reduce_small_m(SmallMWork const &work, SmallMSmem const &smem, unsigned group,
                                                       unsigned m, unsigned quarter) {
  using V = SmallM<kTileM>;
  unsigned const first = group * work.chunks.number, last = first + work.chunks.number;
  unsigned const at = (m * V::kSumPitch + quarter * 4) * 4;
  cutlass::Array<float, 4> sum;
  sum.clear();
  if constexpr (V::kUsesE4m3) {
    CUTLASS_PRAGMA_UNROLL
    for (int issuer = 0; issuer < V::kMmaIssuers; ++issuer) {
      auto const one = load_floats<4>(smem.sums + (issuer * V::kMaxGroups + group) * V::kSumBytes + at);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) {
        sum[j] += one[j];
      }
    }
    return sum;
  }
  // Adds over the warps that have chunks of the group. A warp that continued with another group has its sums in `sums`;
  // the others have them in their rings. Four loads are issued at a time, because a load takes longer than the
  // additions that use it. Excess loads read zeros.
  constexpr unsigned kAtOnce = 4;
  unsigned warp = divide(group * V::kWarps, work.groups), begin = work.begin<V::kWarps>(warp);
  CUTLASS_PRAGMA_NO_UNROLL
  do {
    CUTLASS_PRAGMA_UNROLL
    for (unsigned i = 0; i < kAtOnce; ++i, ++warp) {
      unsigned const end = work.begin<V::kWarps>(warp + 1);
      uint32_t const from = (end <= last ? smem.rings + warp * V::kRingBytes : smem.sums + group * V::kSumBytes) + at;
      bool const has = begin < min(end, last) && end > first && warp < V::kWarps;
      auto const one = load_floats<4>(has ? from : smem.zeros);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) {
        sum[j] += one[j];
      }
      begin = end;
    }
  } while (begin < last);
  return sum;
}

// Returns the address of CTA `source`'s sums of a vector. They are in `totals` of the CTA that stores the vector.
template <int kTileM>
CUTLASS_DEVICE uint32_t small_m_total(SmallMParameters const &p, SmallMSmem const &smem, SmallMCluster const &cluster, unsigned vector,
                                      unsigned m, unsigned source) {
  return smem.totals + (((((vector >> cluster.shift) * p.m + m) << cluster.shift) + source) * SmallM<kTileM>::kWidth) * 4;
}

// Cluster reduce: adds the warps' sums, and sends each vector to the CTA that stores it. On return `totals` has the
// sums of this CTA's vectors from all CTAs of the cluster.
template <int kTileM>
CUTLASS_DEVICE void reduce_cluster_small_m(SmallMParameters const &p, SmallMWork const &work, SmallMSmem const &smem,
                                           SmallMCluster const &cluster) {
  using V = SmallM<kTileM>;
  CUTLASS_PRAGMA_NO_UNROLL
  for (unsigned i = threadIdx.x; i < work.groups * 4 * kTileM; i += V::kThreads) {
    unsigned const quarter = i % 4, m = i / 4 % kTileM, of = i / 4 / kTileM;
    if (static_cast<int>(m) >= p.m) {
      continue;
    }
    auto const sum = reduce_small_m<kTileM>(work, smem, of, m, quarter);
    unsigned const vector = of / V::kGroups * 4 + quarter;
    uint32_t const at = small_m_total<kTileM>(p, smem, cluster, vector, m, cluster.rank) + of % V::kGroups * 16;
    unsigned const owner = vector & cluster.mask;
    if (owner == cluster.rank) {
      store_words(at, __float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), __float_as_uint(sum[3]));
    } else {
      store_async(cluster_address(at, owner), &sum[0], cluster_address(smem.exchange_full, owner));
    }
  }
  __syncthreads();
  if (cluster.mask > 0) {
    barrier_wait(smem.exchange_full, 0);
  }
}

// Store: returns the sums of a vector, from the warps' sums if `at_once`, else from `totals`.
template <int kTileM>
CUTLASS_DEVICE cutlass::Array<float, SmallM<kTileM>::kWidth> sum_of_vector(SmallMParameters const &p, SmallMWork const &work,
                                                                          SmallMSmem const &smem, SmallMCluster const &cluster,
                                                                          bool at_once, unsigned vector, unsigned m) {
  using V = SmallM<kTileM>;
  constexpr int N = V::kWidth;
  cutlass::Array<float, N> sum;
  sum.clear();
  if (at_once) {
    if constexpr (kSimple) {
      CUTLASS_PRAGMA_UNROLL
      for (int part = 0; part < V::kGroups; ++part) {
        auto const four = reduce_small_m<kTileM>(work, smem, vector / 4 * V::kGroups + part, m, vector % 4);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          sum[part * 4 + i] = four[i];
        }
      }
    }
    return sum;
  }
  CUTLASS_PRAGMA_NO_UNROLL
  for (unsigned source = 0; source <= cluster.mask; ++source) {
    auto const one = load_floats<N>(small_m_total<kTileM>(p, smem, cluster, vector, m, source));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) {
      sum[i] += one[i];
    }
  }
  return sum;
}

template <int kTileM>
CUTLASS_DEVICE void run_small_m(Parameters const &parameters, void *shared) {
  using V = SmallM<kTileM>;
  SmallMParameters const &p = parameters.small_m;
  int const warp = static_cast<int>(threadIdx.x / 32), quad = lane() / 4, t = lane() % 4;
  uint32_t const rings = rematerialize((shared_address(shared) + V::kAlignment - 1) & ~(V::kAlignment - 1u));
  uint32_t const ring = rings + warp * V::kRingBytes;
  uint32_t const smem_a = rings + V::kWarps * V::kRingBytes, sums = smem_a + V::kABytes;
  uint32_t const totals = sums + V::kAllSums, zeros = totals + V::kTotalBytes;
  uint32_t const exchange_full = zeros + V::kZeroBytes, unused = exchange_full + 8;
  SmallMSmem const smem{rings, smem_a, sums, totals, zeros, exchange_full, unused};
  SmallMCluster const cluster(p);
  unsigned const all = blockIdx.x >> cluster.shift, batch = p.is_batch ? p.ctas.divide(all) : 0;
  unsigned const cta = p.is_batch ? all - batch * p.ctas.number : all;
  unsigned const units = p.units_per_cta + (cta < p.extra_units);
  SmallMOperands const matrix(p, batch);
  bool const has_more = cluster.rank < p.extra_chunks;
  Divisor const &chunks = has_more ? p.chunks_plus_one : p.chunks;
  SmallMWork const work{cta * p.units_per_cta + min(cta, p.extra_units), units * V::kGroups,
                        cluster.rank * p.chunks_per_cta + min(cluster.rank, static_cast<unsigned>(p.extra_chunks)),
                        {p.chunks_per_cta + has_more, chunks.multiplier, chunks.shift}};
  SmallMChunks run = chunks_of<kTileM>(work, warp);
  SmallMProducer<kTileM> source(p, matrix, work, run);
  if (V::kUsesE4m3 && run.count >= V::kPrefetchChunks) {
    source.prefetch_first();
  }
  // The kernel may begin before its operands are written, so it reads nothing before this wait. It does not execute
  // launch_dependents, which saves 0.3 us between small-M kernels in a row, but nothing in a block of a model.
  grid_dependency_wait();
  // A is loaded first, because every multiplication needs it.
  SmallMDecodeA<kTileM> const pieces(p, matrix, work);
  load_small_m<kTileM>(parameters, work, smem, cluster, units, source, ring, pieces);

  int const pitch = small_m_pitch<kTileM>(work);
  // Registers that live across the mainloop are declared here. If they are locals of the functions that use them, the
  // compiler generates different code.
  SmallMRing<kTileM> stages(source, ring, quad, t);
  if constexpr (V::kUsesE4m3) {
    SmallME4m3Accumulators<kTileM> mine;
    SmallME4m3Registers<kTileM> registers;
    SmallMFragment<kTileM> b;
    mainloop_e4m3<kTileM>(stages, work, run, warp, smem.a, smem.sums, mine, b, registers);
  } else {
    SmallMAccumulators<kTileM> mine(p, smem.a, pitch);
    SmallMFragment<kTileM> b;
    mainloop_wide<kTileM>(stages, run, smem.sums, mine, b);
  }
  __syncthreads();

  // A vector is kWidth columns of a row of D. CTAs of a cluster store vectors in turn. If one CTA has all of K and
  // outputs are simple, the thread that stores a vector adds the warps' sums. Otherwise reduce_cluster_small_m adds
  // them first.
  bool const at_once = kSimple && cluster.mask == 0;
  if (!at_once) {
    reduce_cluster_small_m<kTileM>(p, work, smem, cluster);
  }
  store_small_m<kTileM, V>(
      parameters, work.first_unit, units, batch, smem.zeros, [&](unsigned vector) { return (vector & cluster.mask) == cluster.rank; },
      [&](unsigned vector, unsigned m) { return sum_of_vector<kTileM>(p, work, smem, cluster, at_once, vector, m); });
  // No CTA ends while others still send to it: each has received all sums for its vectors.
}
#endif
