// Loads a warp's chunks of B and SFB.

#ifndef FOURFOLD_HOST
// The operands of one matrix of a batch.
struct SmallMOperands {
  uint8_t const *b, *a, *sfb, *sfa;
  CUTLASS_DEVICE SmallMOperands(SmallMParameters const &p, unsigned batch)
      : b(p.b), a(p.a), sfb(p.sfb), sfa(p.sfa) {
    if (batch > 0) {
      b += batch * p.b_stride;
      a += batch * p.a_stride;
      sfb += batch * p.sfb_stride;
      sfa += batch * p.sfa_stride;
    }
    b = pin_to_register(b);
    a = pin_to_register(a);
    sfb = pin_to_register(sfb);
    sfa = pin_to_register(sfa);
  }
};

// Bytes of a row of A. B has `row_bytes` in a row.
CUTLASS_DEVICE unsigned small_m_row_bytes_a(SmallMParameters const &p) {
  return row_bytes_of_a(p.row_bytes);
}

// The work of a CTA: some chunks along K of its cluster's units. Its warps share the chunks of all groups.
struct SmallMWork {
  unsigned first_unit, groups, first_chunk;
  Divisor chunks;
  template <int kWarps>
  CUTLASS_DEVICE unsigned begin(unsigned warp) const {
    return groups * chunks.number * warp / kWarps;
  }
};

// A warp's sequence of `count` chunks. After the last chunk of a group, the warp continues with chunk `first` of group
// `group + by`.
struct SmallMChunks {
  unsigned group, chunk, first, last, by;
  int count;
  // Advances by a chunk, and returns true at the end of a group.
  CUTLASS_DEVICE bool next() {
    if (++chunk != last) {
      return false;
    }
    chunk = first;
    group += by;
    return true;
  }
};

template <int kTileM>
CUTLASS_DEVICE SmallMChunks chunks_of(SmallMWork const &work, unsigned warp) {
  using V = SmallM<kTileM>;
  if constexpr (V::kUsesE4m3) {
    // The four warps of a warpgroup multiply the same part of K, each for a different group. The assignment rotates
    // between warpgroups, so that with fewer than four groups the four sub-partitions of an SM have equal work.
    constexpr unsigned kBy = V::kMmaWarps;
    unsigned const issuer = warp / kBy, group = (warp + issuer) % kBy;
    unsigned const first = work.chunks.number * issuer / V::kMmaIssuers, last = work.chunks.number * (issuer + 1) / V::kMmaIssuers;
    unsigned const groups = group < work.groups ? (work.groups - group + kBy - 1) / kBy : 0;
    return {group, first, first, last, kBy, static_cast<int>(groups * (last - first))};
  } else {
    unsigned const begin = work.begin<V::kWarps>(warp), group = work.chunks.divide(begin);
    return {group, begin - group * work.chunks.number, 0, work.chunks.number, 1,
            static_cast<int>(work.begin<V::kWarps>(warp + 1) - begin)};
  }
}

// Loads a warp's chunks by cp.async. A group is four runs of four adjacent rows, 32 apart; a lane copies one row of
// each run. Memory is idle until the first copy, so few instructions precede it: the host computes uniform values, and
// there is no division.
template <int kTileM>
struct SmallMProducer {
  using V = SmallM<kTileM>;
  static constexpr int kPieces = V::kRowBytes / 16, kCopies = V::kGroupN / 4, kPart = V::kAtomPart / 16;
  static_assert(32 / kPieces == 4, "a warp asks for four rows at once");
  SmallMParameters const &p;
  SmallMOperands const &of;
  SmallMWork const &work;
  uint64_t policy = evict_first();
  SmallMChunks run;
  uint8_t const *first_row, *scales;
  // Byte offsets of the lane's row in each run, relative to its row in the first run.
  uint32_t rows[kCopies];
  uint32_t at, scale_at;

  CUTLASS_DEVICE SmallMProducer(SmallMParameters const &p, SmallMOperands const &of, SmallMWork const &work, SmallMChunks const &run)
      : p(p), of(of), work(work), run(run) {
    unsigned const piece = lane() % kPieces, first = lane() / kPieces;
    at = rematerialize(first * V::kRowBytes + (piece ^ first % 2 * 4) * 16);
    scale_at = rematerialize(V::kGroupN * V::kRowBytes + lane() * 16);
    begin_group();
  }

  CUTLASS_DEVICE void begin_group() {
    constexpr unsigned kOfBlock = 128 / V::kGroupN;
    unsigned const all = work.first_unit * V::kGroups + run.group, block = all / kOfBlock, r = all % kOfBlock * 4;
    unsigned const at_row = block * 128 + r + lane() / kPieces, last = p.n - 1, begin = min(at_row, last);
    first_row = of.b + static_cast<uint64_t>(begin) * p.row_bytes +
                ((work.first_chunk + run.chunk) * V::kRowBytes + lane() % kPieces * 16);
    scales = of.sfb + static_cast<uint64_t>(block) * p.scale_bytes + (r * 16 + lane() % kPart * 16);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      // Rows past N are clamped to the last: their results are not stored.
      rows[i] = (min(at_row + i * 32, last) - begin) * p.row_bytes;
    }
  }

  // Prefetches the first chunk into L2, 32 bytes per even lane. The warp has at least one chunk.
  CUTLASS_DEVICE void prefetch_first() const {
    unsigned const absolute = work.first_chunk + run.chunk;
    if (lane() % 2 == 0 && absolute * V::kRowBytes + lane() % kPieces * 16 < p.row_bytes) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        prefetch_l2(first_row + rows[i]);
      }
    }
    if (lane() % 2 == 0 && lane() < V::kChunkAtoms * kPart) {
      prefetch_l2(scales + static_cast<uint64_t>(min(absolute * V::kChunkAtoms + lane() / kPart, p.atoms_k - 1u)) * kAtomBytes);
    }
  }

  // Issues the copies of the next chunk, if there is one, as a group of cp.async.
  CUTLASS_DEVICE void fetch(uint32_t stage) {
    if (run.count > 0) {
      unsigned const absolute = work.first_chunk + run.chunk;
      // cp.async writes zeros past K.
      uint32_t const inside = absolute * V::kRowBytes + lane() % kPieces * 16 < p.row_bytes ? 16 : 0;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        cp_async(stage + at + i * 4 * V::kRowBytes, first_row + rows[i], inside, policy);
      }
      first_row += V::kRowBytes;
      if (lane() < V::kChunkAtoms * kPart) {
        unsigned const atom = min(absolute * V::kChunkAtoms + lane() / kPart, p.atoms_k - 1u);
        cp_async(stage + scale_at, scales + static_cast<uint64_t>(atom) * kAtomBytes, 16, policy);
      }
      --run.count;
      if (run.next()) {
        begin_group();
      }
    }
    cp_async_commit();
  }
};
#endif
