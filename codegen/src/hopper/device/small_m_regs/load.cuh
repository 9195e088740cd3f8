// Loads a warp's operands: by TMA, and an A of more than 4 bits by cp.async.

#ifndef FOURFOLD_HOST
// The order in which warps multiply a CTA's parts of 32 rows: parts that the other CTA stores come first. Of two CTAs
// that share K, the first stores the first half of the units. rematerialize keeps these numbers, which the compiler
// would otherwise compute again for each part.
struct SmallMRegsOrder {
  unsigned parts, others, first;
  CUTLASS_DEVICE SmallMRegsOrder(unsigned units, unsigned rank, bool is_of_pair)
      : parts(rematerialize(units * SmallMRegs::kParts)),
        others(rematerialize(!is_of_pair ? 0 : (rank == 0 ? units - units / 2 : units / 2) * SmallMRegs::kParts)),
        first(rematerialize(is_of_pair && rank == 0 ? units / 2 * SmallMRegs::kParts : 0)) {}
  CUTLASS_DEVICE unsigned part(unsigned place) const { return first + place < parts ? first + place : first + place - parts; }
  CUTLASS_DEVICE unsigned after(unsigned part) const { return part + 1 == parts ? 0 : part + 1; }
  // Returns whether this CTA stores a unit.
  CUTLASS_DEVICE bool is_own(unsigned unit) const {
    unsigned const part = unit * SmallMRegs::kParts;
    return (part < first ? part + parts : part) >= first + others;
  }
};

// Returns the place of a piece of a row of A in shared memory. Eight lanes read pieces of two rows together, one for each
// thread of a quad: with this order, from different banks.
CUTLASS_DEVICE unsigned small_m_regs_piece(unsigned row, unsigned piece) { return piece ^ (piece / 8 * 2 | row % 2); }

// Loads a warp's groups from one elected lane. At first it requests one group, because the first groups of all warps
// arrive at memory bandwidth. Later, it loads one group while another is multiplied.
struct SmallMRegsProducer {
  using V = SmallMRegs;
  Parameters const &p;
  SmallMRegsOrder const &order;
  // The next part of the CTA, and the index of the CTA's first part. `block` and `row` locate the part that is loaded:
  // its block of 128 rows, and the offset of its runs within each 32 rows of the block.
  unsigned part, first_part;
  int block, row;
  // The first block of 128 rows in SFB of this matrix.
  int first_atom_n;
  int batch, chunk, byte;
  uint32_t ring, scales, barriers;
  uint64_t policy = evict_first();

  CUTLASS_DEVICE SmallMRegsProducer(Parameters const &p, SmallMRegsOrder const &order, unsigned first_part, unsigned batch, unsigned chunk,
                                    int first_atom_n, uint32_t ring, uint32_t scales, uint32_t barriers)
      : p(p), order(order), part(order.first), first_part(first_part),
        first_atom_n(first_atom_n), batch(static_cast<int>(batch)), chunk(static_cast<int>(chunk)),
        byte(static_cast<int>(chunk) * V::kRowBytes), ring(ring), scales(scales), barriers(barriers) {}

  // Loads A and SFA. A goes to stage 1, which the second group of B later overwrites.
  CUTLASS_DEVICE void fetch_a(uint32_t sfa, int first_atom_m) const {
    barrier_expect_tx(barriers + 8, kRegsM * V::kRowBytes + V::kSfaBytes);
    tma_load(p.a_map, ring + V::kCodeBytes, barriers + 8, byte, 0, batch);
    tma_load(p.sfa_map, sfa, barriers + 8, 0, chunk * V::kChunkAtoms, first_atom_m);
  }

  // Loads an A of more than 4 bits to `to`, with all lanes: a warp copies 512 adjacent bytes at a time. Threads that read
  // their parts of rows from global memory would touch a line of it each. Rows past M are clamped to the last: their
  // sums are not stored. Elements past K are 0.
  CUTLASS_DEVICE void copy_a(uint32_t to) const {
    unsigned const row_bytes = small_m_row_bytes_a(p.small_m), begin = static_cast<unsigned>(chunk) * V::kRowBytesA;
    uint8_t const *const a = p.small_m.a + static_cast<unsigned>(batch) * p.small_m.a_stride;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRegsM * V::kPiecesA / 32; ++i) {
      unsigned const piece = i * 32 + lane(), row = piece / V::kPiecesA, place = piece % V::kPiecesA;
      unsigned const byte = begin + place * 16, from_row = min(row, p.small_m.m - 1u);
      bool const is_inside = byte < row_bytes;
      cp_async(to + row * V::kRowBytesA + small_m_regs_piece(row, place) * 16,
               a + (static_cast<uint64_t>(from_row) * row_bytes + (is_inside ? byte : 0)), is_inside ? 16 : 0);
    }
    cp_async_commit();
  }

  // Finds the next part. All lanes execute it, so that the compiler knows the result to be uniform.
  CUTLASS_DEVICE void next() {
    unsigned const all = first_part + part;
    part = order.after(part);
    block = static_cast<int>(all / 4);
    row = static_cast<int>(all % 4 * kRunN);
  }

  // Loads the part's group of a stage. SFB of the part is loaded with its first group, to one of two places.
  CUTLASS_DEVICE void fetch(int stage, uint32_t place) const {
    uint32_t const barrier = barriers + stage * 8;
    barrier_expect_tx(barrier, V::kCodeBytes + (stage == 0 ? V::kSfbBytes : 0));
    if (stage == 0) {
      tma_load_evict_first(p.sfb_map, scales + place * V::kSfbRoom, barrier, row * 16, chunk * V::kChunkAtoms, first_atom_n + block,
                           policy);
    }
    tma_load_runs(p.b_map, ring + stage * V::kCodeBytes, barrier, byte, row, block * 4 + stage * 2, batch, policy);
  }
};
#endif
