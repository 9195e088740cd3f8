// Decodes A into the workspace, two bytes per element and term, for the tiled kernel. decode_a_kernel runs before it. For large
// M it decodes only a part of A, and idle warps of the tiled kernel decode the rest (decode_ahead.cuh). If the tiled
// kernel loads A as it is (kDirectA), decode_a_kernel only clears flags, and only runs if there are any.
//
// The workspace has whole K blocks of 128. Each is two panels, with 128 bytes of every row of A in the K order of
// wgmma. The rows that a tile loads from a panel at a time are contiguous. Without the workspace, every tile would
// decode A again for each 128 or 256 rows of B. Decoded A stays in L2.
//
// With kTermsA = 2, the workspace has two blocks per K block, one of each term. Tiled kernels then have twice as many K
// blocks, and load each block of B twice.

constexpr int kBlockScales = kBlockK / kScaleVector;
constexpr int kPanelRowBytes = 128, kDecodedBlockBytes = kBlockK * 2;
static_assert(kDecodedBlockBytes == 2 * kPanelRowBytes);

// The rows of A of all matrices, and the memory that they are decoded to.
struct DecodeAMatrix {
  uint8_t const *codes, *scales;
  uint8_t *decoded;
  // Bytes of a row of codes, and rows of a panel.
  int row_bytes, panel_m;
  // Scale atoms of a matrix along M and K.
  int atoms_m, atoms_k;
};

// If kMasked, the rows of each group.
struct DecodeACounts {
  uint32_t const *counts;
};
struct NoDecodeACounts {
  static constexpr uint32_t const *counts = nullptr;
};

// The part of A that decode_a_kernel decodes: `blocks` K blocks of the first `rows` rows, over all matrices. If kMasked, it
// skips the rows of no group.
struct DecodeAParameters : std::conditional_t<kMasked, DecodeACounts, NoDecodeACounts>,
                           std::conditional_t<kPaddedSfa, DecodeAGroups, NoDecodeAGroups> {
  DecodeAMatrix matrix;
  // Divides by M, or by the rows of a group's matrix if kMasked.
  Divisor m;
  int rows;
  Divisor blocks;
  // Flags and counters that the next kernel expects to be zero.
  uint32_t *flags;
  unsigned flag_count;
};

struct DecodeA {
  static constexpr int kThreads = 256;
};

#ifndef FOURFOLD_HOST
// Transposes four items of each of four adjacent lanes: lane i receives item i of each. Adjacent lanes then load and
// store adjacent memory.
template <int kWords>
CUTLASS_DEVICE void transpose(uint32_t (&items)[4][kWords]) {
  CUTLASS_PRAGMA_UNROLL
  for (int bit = 1; bit <= 2; bit *= 2) {
    bool const upper = (threadIdx.x & bit) != 0;
    CUTLASS_PRAGMA_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
      int const low = bit == 1 ? 2 * pair : pair, high = low + bit;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWords; ++i) {
        uint32_t const got = __shfl_xor_sync(0xFFFFFFFFu, upper ? items[low][i] : items[high][i], bit);
        items[low][i] = upper ? got : items[low][i];
        items[high][i] = upper ? items[high][i] : got;
      }
    }
  }
}

// A thread's share of a K block of a row, which four threads decode together. It loads the words of one thread of a
// quad, and decodes one word of each.
struct DecodeARun {
  uint8_t const *codes, *scales;
  uint8_t *decoded;
  // Byte offsets to the scales of the block's second half, and to the second panel.
  int second;
  int64_t next_panel;
  // The bytes of the row from the block on, and its linear scales.
  int rest, scales_left;

  // `row` is the row's index over all matrices, and `m` is its index in matrix `batch`, or that of its scales if kPaddedSfa.
  CUTLASS_DEVICE DecodeARun(DecodeAMatrix const &p, unsigned row, unsigned batch, unsigned m, unsigned block, unsigned word) {
    unsigned const block_at = block * kBlockBytesA + run_of(word, 0);
    codes = p.codes + static_cast<int64_t>(row) * p.row_bytes + block_at;
    rest = p.row_bytes - static_cast<int>(block_at);
    // Clamped to the last atom along K. Past it codes are zeros, or the block is not stored.
    int const first = min(static_cast<int>(block) * kAtomsPerBlock, p.atoms_k - 1);
    second = first + kAtomsPerBlock <= p.atoms_k ? (kAtomsPerBlock - 1) * kAtomBytes : 0;
    if constexpr (kLinearSfa) {
      unsigned const of_row = row_scales(p), at = block * kBlockScales;
      scales = p.scales + static_cast<int64_t>(row) * of_row + at;
      scales_left = static_cast<int>(of_row - at);
    } else {
      scales = p.scales + ((static_cast<int64_t>(batch) * p.atoms_m + m / 128) * p.atoms_k + first) * kAtomBytes +
               m % 32 * 16 + m % 128 / 32 * 4;
    }
    next_panel = static_cast<int64_t>(p.panel_m) * kPanelRowBytes;
    decoded = p.decoded + 2 * kTermsA * block * next_panel + static_cast<int64_t>(row) * kPanelRowBytes + word * 16;
  }

  // Returns the scales of a row.
  CUTLASS_DEVICE static unsigned row_scales(DecodeAMatrix const &p) {
    return static_cast<unsigned>(p.row_bytes) * 8 / kBitsA / kScaleVector;
  }

  // Advances to the next row of A, within the same 32 rows.
  CUTLASS_DEVICE void next(DecodeAMatrix const &p) {
    codes += p.row_bytes;
    scales += kLinearSfa ? row_scales(p) : 16;
    decoded += kPanelRowBytes;
  }

  // Decodes the block. All lanes of a warp call it together, because they exchange items; a lane stores only if
  // `is_there`. kInOrder keeps loads after griddepcontrol.wait, for a kernel that may begin before its operands are
  // written.
  template <bool kInOrder>
  CUTLASS_DEVICE void decode_all(unsigned word, bool is_there) const {
    auto const load = [](auto const *from) {
      if constexpr (kInOrder) {
        return load_ordered(from);
      } else {
        return __ldg(from);
      }
    };
    // Codes past K are zeros.
    uint32_t words[4][kWordsA] = {}, of_block[kAtomsPerBlock];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRunsA; ++i) {
      int const run_at = run_of(0, i);
      if (run_at < rest) {
        RunA const run = load(reinterpret_cast<RunA const *>(codes + run_at));
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kRunRegisters; ++j) {
          int const at = i * kRunRegisters + j;
          words[at / kWordsA][at % kWordsA] = word_of(run, j);
        }
      }
    }
    if constexpr (kLinearSfa) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtomsPerBlock; ++i) {
        of_block[i] = linear_scales(load, i * 4);
      }
    } else if constexpr (kHasScalesA) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtomsPerBlock; ++i) {
        of_block[i] = load(reinterpret_cast<uint32_t const *>(scales + i * second));
      }
    }
    transpose(words);
    store_term<0>(words, of_block, word, is_there);
    if constexpr (kTermsA == 2) {
      store_term<1>(words, of_block, word, is_there);
    }
  }

  // Returns four adjacent linear scales, with zeros past K. Rows may begin at any byte.
  template <class Load>
  CUTLASS_DEVICE uint32_t linear_scales(Load const &load, int first) const {
    if (reinterpret_cast<uintptr_t>(scales) % 4 == 0 && first + 4 <= scales_left) {
      return load(reinterpret_cast<uint32_t const *>(scales + first));
    }
    uint32_t result = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (first + i < scales_left) {
        result |= static_cast<uint32_t>(load(scales + first + i)) << 8 * i;
      }
    }
    return result;
  }

  // Decodes and stores a term of four words, each of another run.
  template <int kTerm>
  CUTLASS_DEVICE void store_term(uint32_t const (&words)[4][kWordsA], uint32_t const (&of_block)[kAtomsPerBlock], unsigned word,
                                 bool is_there) const {
    // The four words cover two K steps. Each step is two pieces of 16 bytes, with a register of each run.
    uint32_t pieces[4][4];
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < 4; ++t) {
      uint32_t scale = 0;
      if constexpr (kHasScalesA) {
        uint32_t const of_run = kMx ? of_block[0] >> 8 * mx_scale_of(t, word) : of_block[t / 2 % kAtomsPerBlock] >> t % 2 * 16;
        scale = scale_of_word(scales_of_a(of_run, words[t]), word);
      }
      Decoded const parts = decode_a_word<kTerm>(words[t], scale);
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < 2; ++step) {
        pieces[2 * step][t] = parts.low[step];
        pieces[2 * step + 1][t] = parts.high[step];
      }
    }
    transpose(pieces);
    if (is_there) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint4 *>(decoded + (2 * kTerm + i / 2) * next_panel + i % 2 * 64) =
            uint4{pieces[i][0], pieces[i][1], pieces[i][2], pieces[i][3]};
      }
    }
  }
};

CUTLASS_DEVICE void decode_a(DecodeAParameters const &p) {
  // Waits before launch_dependents, so that neither this kernel nor the next reads memory before earlier kernels have
  // ended.
  grid_dependency_wait();
  launch_dependents();
  unsigned const item = blockIdx.x * DecodeA::kThreads + threadIdx.x, word = item % 4;
  if (item < p.flag_count) {
    p.flags[item] = 0;
  }
  // Excess threads repeat the first item, and store nothing.
  if constexpr (kDirectA) {
    return;
  }
  bool is_there = item / 4 < p.blocks.number * static_cast<unsigned>(p.rows);
  unsigned const of_all = is_there ? item / 4 : 0;
  unsigned const row = p.blocks.divide(of_all), block = of_all - row * p.blocks.number;
  unsigned const batch = p.m.divide(row);
  unsigned m = row - batch * p.m.number;
  if constexpr (kPaddedSfa) {
    // No row has scales if there are none.
    if (p.scale_rows == 0) {
      return;
    }
    m = padded_row(p.offsets, p.sfa_ends, p.groups, p.scale_rows, row);
  }
  if constexpr (kMasked) {
    is_there = is_there && static_cast<int>(m) < static_cast<int>(load_ordered(p.counts + batch));
    if (__reduce_max_sync(0xFFFFFFFFu, is_there) == 0) {
      return;
    }
  }
  DecodeARun(p.matrix, row, batch, m, block, word).decode_all<true>(word, is_there);
}
#endif
