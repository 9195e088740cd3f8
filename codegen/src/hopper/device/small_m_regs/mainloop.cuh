// The part of A that a warp keeps in registers, and the multiplication by it.

#ifndef FOURFOLD_HOST
// Returns a thread's scale of one of two K blocks. Thread t of a quad has 64 codes of a row of a chunk, from 64 t on:
// 32 for each K block. Both operands use this order of K, so a thread's scales of both blocks are adjacent.
CUTLASS_DEVICE uint32_t regs_scale(uint32_t of_row, int block) {
  return kMx ? mx_scale(of_row >> 8 * block & 0xFF) : two_scales(block == 0 ? of_row : upper_half(of_row));
}
// Returns the offset of a thread's scales in a run of eight rows, of which each quad has one.
CUTLASS_DEVICE uint32_t regs_scale_offset(int scale_row) {
  int const quad = lane() / 4, t = lane() % 4;
  return (kMx ? t / 2 * scale_row + t % 2 * 2 : t * scale_row) + quad * 16;
}
// Addresses of a thread's codes and scales in the first row of a stage, with the 128-byte swizzle of TMA. Codes of the
// second block are in the other half of the same 32 bytes.
struct SmallMRegsB {
  uint32_t codes, scales;
  CUTLASS_DEVICE SmallMRegsB(uint32_t ring, uint32_t all_scales) {
    int const quad = lane() / 4, t = lane() % 4;
    codes = rematerialize(ring + quad * 128 + ((2 * t) ^ quad) * 16);
    scales = rematerialize(all_scales + regs_scale_offset(SmallMRegs::kSfbRowBytes));
  }
  CUTLASS_DEVICE uint4 load(int block, int offset) const { return load_words((codes ^ block * 16) + offset); }
};

// Decoded A of a chunk, as mma fragments.
struct SmallMRegsA {
  using V = SmallMRegs;
  uint32_t of[V::kColumns][V::kBlocks][4][2][2];

  // Returns a thread's scale of a block of a row of an A of 8 bits, whose elements begin at `k`; 0 past K.
  CUTLASS_DEVICE static uint32_t scale_from_memory(SmallMParameters const &p, uint8_t const *sfa, unsigned row, unsigned k) {
    if (k * kBitsA / 8 >= small_m_row_bytes_a(p)) {
      return 0;
    }
    return load_ordered(sfa + (k / kAtomK * kAtomBytes + min(row, p.m - 1u) * 16 + k / kScaleVector % 4));
  }

  // Decodes an A of more than 4 bits, which copy_a has copied to `from`. `chunk_at` is the chunk's first element of K.
  CUTLASS_DEVICE void decode_copied(SmallMParameters const &p, unsigned batch, unsigned chunk_at, uint32_t from) {
    unsigned const quad = lane() / 4, t = lane() % 4;
    uint32_t scales[V::kColumns][V::kBlocks] = {};
    if constexpr (kHasScalesA) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < V::kColumns * V::kBlocks; ++i) {
        int const column = i / V::kBlocks, block = i % V::kBlocks;
        scales[column][block] =
            scale_from_memory(p, p.sfa + batch * p.sfa_stride, column * 8 + quad, chunk_at + t * 64 + block * 32);
      }
    }
    cp_async_wait<0>();
    __syncwarp();
    CUTLASS_PRAGMA_UNROLL
    for (int column = 0; column < V::kColumns; ++column) {
      unsigned const row = column * 8 + quad;
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < V::kBlocks; ++block) {
        uint32_t const scale = scales[column][block];
        uint4 runs[kWordsA];
        CUTLASS_PRAGMA_UNROLL
        for (int run = 0; run < kWordsA; ++run) {
          unsigned const piece = (t * V::kBlocks + block) * kWordsA + run;
          runs[run] = load_words(from + row * V::kRowBytesA + small_m_regs_piece(row, piece) * 16);
        }
        CUTLASS_PRAGMA_UNROLL
        for (int word = 0; word < 4; ++word) {
          uint32_t eight[kWordsA];
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < kWordsA; ++j) {
            eight[j] = word_of(runs[word * kWordsA / 4], (word * kWordsA + j) % 4);
          }
          Decoded const parts = decode_a_word<0>(eight, kBitsA == 8 ? scales_of_a(scale, eight) : 0);
          CUTLASS_PRAGMA_UNROLL
          for (int s = 0; s < 2; ++s) {
            of[column][block][word][s][0] = parts.low[s];
            of[column][block][word][s][1] = parts.high[s];
          }
        }
      }
    }
  }

  // Decodes A from a stage. Rows of SFA have the spacing of rows of SFB, but there are twice as many. Returns 0 with a
  // data dependency on all codes: `zero` is 0, and the result is known once the codes have arrived.
  CUTLASS_DEVICE uint32_t decode_from(SmallMRegsB const &part, int stage, uint32_t sfa, uint32_t zero) {
    uint32_t all = 0;
    uint32_t const scales_at = sfa + regs_scale_offset(V::kSfaRowBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int column = 0; column < V::kColumns; ++column) {
      uint32_t const at = scales_at + column * V::kSfbRowBytes, scales = kMx ? load_half(at) : load_word(at);
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < V::kBlocks; ++block) {
        uint4 const words = part.load(block, stage * V::kCodeBytes + column * V::kRunBytes);
        all |= words.x;
        uint32_t const scale = regs_scale(scales, block);
        CUTLASS_PRAGMA_UNROLL
        for (int word = 0; word < 4; ++word) {
          Decoded const parts = decode(word_of(words, word), scale_of_word(scale, word));
          CUTLASS_PRAGMA_UNROLL
          for (int s = 0; s < 2; ++s) {
            of[column][block][word][s][0] = parts.low[s];
            of[column][block][word][s][1] = parts.high[s];
          }
        }
      }
    }
    return all & zero;
  }
};

// Accumulators of a group. An mma waits for the previous one that adds to the same registers; meanwhile three other
// warps issue.
struct SmallMRegsAccumulators {
  using V = SmallMRegs;
  float acc[V::kColumns][4];

  CUTLASS_DEVICE void clear() {
    CUTLASS_PRAGMA_UNROLL
    for (int column = 0; column < V::kColumns; ++column) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        acc[column][i] = 0.0f;
      }
    }
  }

  // Adds a stage's group of B, multiplied by A of the same chunk.
  CUTLASS_DEVICE void add(SmallMRegsA const &fragments_a, SmallMRegsB const &part, int stage, uint32_t scales) {
    // Scales of rows `quad` and `quad + 8` are adjacent.
    uint32_t of_rows[2];
    if constexpr (kMx) {
      of_rows[0] = load_half(part.scales + scales);
      of_rows[1] = load_half(part.scales + scales + 4);
    } else {
      float2 const both = load_pair(part.scales + scales);
      of_rows[0] = __float_as_uint(both.x);
      of_rows[1] = __float_as_uint(both.y);
    }
    uint4 words[V::kBlocks][2];
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < V::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        words[block][row] = part.load(block, stage * V::kCodeBytes + row * V::kRunBytes);
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < V::kBlocks; ++block) {
      uint32_t const of_block[2] = {regs_scale(of_rows[0], block), regs_scale(of_rows[1], block)};
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        uint32_t operands[2][4];
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < 2; ++row) {
          Decoded const parts = decode(word_of(words[block][row], word), scale_of_word(of_block[row], word));
          CUTLASS_PRAGMA_UNROLL
          for (int s = 0; s < 2; ++s) {
            operands[s][row] = parts.low[s];
            operands[s][2 + row] = parts.high[s];
          }
        }
        CUTLASS_PRAGMA_UNROLL
        for (int s = 0; s < 2; ++s) {
          CUTLASS_PRAGMA_UNROLL
          for (int column = 0; column < V::kColumns; ++column) {
            uint32_t const(&fragment_a)[2] = fragments_a.of[column][block][word][s];
            mma(acc[column], operands[s], fragment_a[0], fragment_a[1]);
          }
        }
      }
    }
  }

  // Stores the sums to shared memory, in the order of accumulators.
  CUTLASS_DEVICE void keep(uint32_t to) const {
    CUTLASS_PRAGMA_UNROLL
    for (int column = 0; column < V::kColumns; ++column) {
      uint32_t sum[4];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        sum[i] = __float_as_uint(acc[column][i]);
      }
      store_words(to + column * V::kPieceBytes, sum[0], sum[1], sum[2], sum[3]);
    }
  }
};
#endif
