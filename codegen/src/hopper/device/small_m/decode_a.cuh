// Decodes A into shared memory.

#ifndef FOURFOLD_HOST
// A thread's share of A: pieces of 32 codes of a K block, and their scales. A piece is what a thread of a quad holds of
// a block.
template <int kTileM>
struct SmallMDecodeA {
  using V = SmallM<kTileM>;
  // True if the codes of a piece are adjacent, and have one factor.
  static constexpr bool kIsPiece = kBitsA == 4 && kPartsB == 1;
  RunA codes[V::kPieces][kRunsA];
  uint32_t scales[V::kPieces];
  // The K blocks per row of A in this CTA, the pieces of all rows, and the bytes of a row from the CTA's first chunk
  // on.
  unsigned blocks, count, rest;

  CUTLASS_DEVICE SmallMDecodeA(SmallMParameters const &p, SmallMOperands const &of, SmallMWork const &work)
      : blocks(work.chunks.number * V::kBlocks),
        count((kTileM == 1 ? 1 : p.m) * blocks * 4),
        rest(small_m_row_bytes_a(p) - work.first_chunk * V::kRowBytesA) {
    uint8_t const *const first = of.a + work.first_chunk * V::kRowBytesA;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kPieces; ++i) {
      // Excess pieces, and those past K, are clamped to the last piece, which avoids a branch.
      unsigned const item = min(i * V::kThreads + threadIdx.x, count - 1), t = item % 4, m = m_of(work, item);
      unsigned const piece = item - m * blocks * 4;
      CUTLASS_PRAGMA_UNROLL
      for (int run = 0; run < kRunsA; ++run) {
        unsigned const from = kIsPiece ? piece * 16 : piece / 4 * kBlockBytesA + run_of(t, run);
        codes[i][run] =
            load_ordered(reinterpret_cast<RunA const *>(first + (m * small_m_row_bytes_a(p) + min(from, rest - kRunBytes))));
      }
      if constexpr (kLinearSfa) {
        scales[i] = linear_scales(p, of, m, (work.first_chunk * V::kBlocks + piece / 4) * kBlockScales, t);
      } else if constexpr (kHasScalesA) {
        unsigned const atom = min(work.first_chunk * V::kChunkAtoms + (kMx ? piece / 4 : piece / 2), p.atoms_k - 1u);
        uint8_t const *const at = of.sfa + (atom * kAtomBytes + m * 16 + (!kMx ? t % 2 * 2 : kPartsB == 2 ? 0 : t));
        scales[i] = kMx && kPartsB == 2 ? load_ordered(reinterpret_cast<uint32_t const *>(at))
                    : kMx              ? load_ordered(at)
                                       : load_ordered(reinterpret_cast<uint16_t const *>(at));
      }
    }
  }

  // Returns the linear scales of a piece, in a block whose scales begin at `of_block` in a row. Pieces past K, whose codes
  // are zeros, have the last scales of the row.
  CUTLASS_DEVICE static uint32_t linear_scales(SmallMParameters const &p, SmallMOperands const &of, unsigned m, unsigned of_block,
                                               unsigned t) {
    unsigned const of_row = small_m_row_bytes_a(p) * 8 / kBitsA / kScaleVector;
    uint8_t const *const row = of.sfa + m * of_row;
    if constexpr (!kMx) {
      uint8_t const *const two = row + min(of_block + t * 2, of_row - 2);
      return load_ordered(two) | static_cast<uint32_t>(load_ordered(two + 1)) << 8;
    } else if constexpr (kPartsB == 1) {
      return load_ordered(row + min(of_block + t, of_row - 1));
    } else {
      uint32_t four = 0;
      CUTLASS_PRAGMA_UNROLL
      for (unsigned j = 0; j < 4; ++j) {
        four |= static_cast<uint32_t>(load_ordered(row + min(of_block + j, of_row - 1))) << 8 * j;
      }
      return four;
    }
  }

  CUTLASS_DEVICE static unsigned m_of(SmallMWork const &work, unsigned item) {
    return kTileM == 1 ? 0 : work.chunks.divide(item / (4 * V::kBlocks));
  }

  CUTLASS_DEVICE void decode_to(SmallMWork const &work, uint32_t smem_a, unsigned pitch) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kPieces; ++i) {
      unsigned const item = i * V::kThreads + threadIdx.x, t = item % 4, m = m_of(work, item);
      unsigned const block = item / 4 - m * blocks;
      if (item >= count) {
        continue;
      }
      // The scale is converted only here: a conversion right after the load would stall all instructions that follow.
      uint32_t const own = kHasScalesA ? rematerialize(scales[i]) : 0;
      // The factor of all words of the piece, unless that depends on the word.
      uint32_t const of_thread = kMx ? kIsPiece ? mx_scale(own) : 0 : two_scales(own);
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        // Codes past K are zeros.
        unsigned const from = kIsPiece ? (block * 4 + t) * 16 : block * kBlockBytesA + run_of(t, word * kRunsA / 4);
        uint32_t eight[kWordsA];
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kWordsA; ++j) {
          eight[j] = from < rest ? word_of(codes[i][word * kRunsA / 4], (word * kWordsA + j) % kRunRegisters) : 0;
        }
        if constexpr (V::kUsesE4m3) {
          // Words w and w + 2 belong to the thread's two groups of 16. The groups share a matrix and have separate
          // columns. All other codes of a column are zeros.
          DecodedE4m3 const parts = decode_to_e4m3(eight[0]);
          uint32_t const at = smem_a + ((block * 2 + word % 2) * kTileM + m) * V::kMatrixBytes + (2 * t + word / 2) * 16;
          auto const only = [&](uint32_t four, unsigned thread) { return t == thread ? four : 0; };
          store_words(at, only(parts.even, 0), only(parts.even, 1), only(parts.even, 2), only(parts.even, 3));
          store_words(at + V::kMatrixBytes / 2, only(parts.odd, 0), only(parts.odd, 1), only(parts.odd, 2), only(parts.odd, 3));
        } else {
          // Stores a thread's operands of two K steps as one vector, which those of its other terms follow.
          uint32_t const of_word = kHasScalesA && !kIsPiece
                                       ? scales_of_a(own >> (kPartsB == 2 ? 8 * mx_scale_of(t, word) : 0), eight)
                                       : scale_of_word(of_thread, word);
          uint32_t const to = smem_a + m * pitch + block * (2 * kBlockK * kTermsA) + word * (64 * kTermsA) + t * 16;
          cute::for_each(cute::make_seq<kTermsA>{}, [&](auto term) {
            Decoded const parts = decode_a_word<term>(eight, of_word);
            store_words(to + term * 64, parts.low[0], parts.high[0], parts.low[1], parts.high[1]);
          });
        }
      }
      if constexpr (V::kUsesE4m3) {
        float2 const both = wide(of_thread);
        uint32_t const at = smem_a + blocks * kTileM * V::kABlockBytes + item * 8;
        store_word(at, __float_as_uint(both.x * kE4m3Factor));
        store_word(at + 4, __float_as_uint(both.y * kE4m3Factor));
      }
    }
  }
};
#endif
