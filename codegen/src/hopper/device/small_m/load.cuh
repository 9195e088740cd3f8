// What a warp loads of B.

#ifndef FOURFOLD_HOST
// The operands of a matrix.
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

// What the CTAs of a cluster do: each has some chunks along K of the same rows. Its warps share the chunks of all groups.
struct SmallMWork {
  unsigned first_unit, groups, first_chunk;
  Divisor chunks;
  template <int kWarps>
  CUTLASS_DEVICE unsigned begin(unsigned warp) const {
    return groups * chunks.number * warp / kWarps;
  }
};

// A warp's way: from a chunk of a group on, so many; behind the last chunk of a group it goes on with the first of another, some
// groups further.
struct SmallMChunks {
  unsigned group, chunk, first, last, by;
  int count;
  // Whether that ends a group.
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
    // All four of a warpgroup multiply by the same part of K, each another group: another one in each warpgroup, so that an SM's
    // four parts have as much to do where there are not four.
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

// Where a warp's next chunk comes from, and what it asks for. Of a group's rows four are side by side, and four times
// there are as many, 32 further on: a lane has one row of each four. Until the first chunk is asked for memory does nothing,
// so there are few instructions before: nothing is divided, and what all have alike the host has computed.
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
  // Of the four rows, from the first of these on.
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
      // Of rows that there are not, the last will do: nobody writes what comes of them.
      rows[i] = (min(at_row + i * 32, last) - begin) * p.row_bytes;
    }
  }

  // Brings what is asked for first, of one chunk at least, into the L2 cache: every second lane 32 bytes.
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

  // Asks for a chunk, if there is another.
  CUTLASS_DEVICE void fetch(uint32_t stage) {
    if (run.count > 0) {
      unsigned const absolute = work.first_chunk + run.chunk;
      // Beyond K there are zeros.
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
