// The rows of A as the tiles of warpgroups want them: decoded, each in 16 bits, in a workspace, by a kernel that runs before, or,
// where there are many, most of them by warps of tiles (decode_ahead).
// There whole blocks of K are, each in two panels that have 128 bytes of each row of A, in the order in which wgmma is given them: what
// a tile loads at a time lies side by side. Every tile reads them as they are, where it would have to decode them again for each
// 128 or 256 rows of B; and they remain in the L2 cache.

constexpr int kPanelRowBytes = 128, kDecodedBlockBytes = kBlockK * 2;
static_assert(kDecodedBlockBytes == 2 * kPanelRowBytes);

// Rows of A of all matrices, and where they are decoded to.
struct DecodeAMatrix {
  uint8_t const *codes, *scales;
  uint8_t *decoded;
  // Bytes of a row's codes, and rows that a panel has.
  int row_bytes, panel_m;
  // Blocks of 128 rows of A that the scales of a matrix have, and 512 bytes of each along K.
  int atoms_m, atoms_k;
};

// What is decoded before: so many rows of A of all matrices, of each so many blocks of K.
struct DecodeAParameters {
  DecodeAMatrix matrix;
  // Rows of A of a matrix.
  Divisor m;
  int rows;
  Divisor blocks;
  // What the next kernel wants to find as zero.
  uint32_t *flags;
  unsigned flag_count;
};

struct DecodeA {
  static constexpr int kThreads = 256;
};

#ifndef FOURFOLD_HOST
// Of four lanes each has four items, and gets of each lane the item of its own number, so that lanes side by side read, and
// write, what lies side by side in memory.
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

// A thread's part of a row's block, which four threads have together: of one of its four runs of 32 codes it reads all, and
// of each it decodes a word.
struct DecodeARun {
  uint8_t const *codes, *scales;
  uint8_t *decoded;
  // Bytes to the scales of the second half of the block, and to the second panel.
  int second;
  int64_t next_panel;
  bool has_codes;

  // `row` counts the rows of A of all matrices, in `batch` it is `m`.
  CUTLASS_DEVICE DecodeARun(DecodeAMatrix const &p, unsigned row, unsigned batch, unsigned m, unsigned block, unsigned word) {
    unsigned const run_at = block * kBlockBytes + word * 16;
    codes = p.codes + static_cast<int64_t>(row) * p.row_bytes + run_at;
    has_codes = run_at < static_cast<unsigned>(p.row_bytes);
    // Beyond the last along K there are none, and the last will do.
    int const first = min(static_cast<int>(block) * kAtomsPerBlock, p.atoms_k - 1);
    second = first + kAtomsPerBlock <= p.atoms_k ? (kAtomsPerBlock - 1) * kAtomBytes : 0;
    scales = p.scales + ((static_cast<int64_t>(batch) * p.atoms_m + m / 128) * p.atoms_k + first) * kAtomBytes +
             m % 32 * 16 + m % 128 / 32 * 4;
    next_panel = static_cast<int64_t>(p.panel_m) * kPanelRowBytes;
    decoded = p.decoded + 2 * block * next_panel + static_cast<int64_t>(row) * kPanelRowBytes + word * 16;
  }

  // Goes on to the next row of A, of the same 32.
  CUTLASS_DEVICE void next(DecodeAMatrix const &p) {
    codes += p.row_bytes;
    scales += 16;
    decoded += kPanelRowBytes;
  }

  // All lanes of a warp decode together; one that has no block writes nothing. In order, for a kernel that began before what it reads
  // was there and has waited for it; one that begins behind that needs none.
  template <bool kInOrder>
  CUTLASS_DEVICE void decode_all(unsigned word, bool is_there) const {
    auto const load = [](auto const *from) {
      if constexpr (kInOrder) {
        return load_ordered(from);
      } else {
        return __ldg(from);
      }
    };
    // Beyond K there are zeros.
    uint32_t words[4][1] = {}, of_block[kAtomsPerBlock];
    if (has_codes) {
      uint4 const run = load(reinterpret_cast<uint4 const *>(codes));
      words[0][0] = run.x, words[1][0] = run.y, words[2][0] = run.z, words[3][0] = run.w;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAtomsPerBlock; ++i) {
      of_block[i] = load(reinterpret_cast<uint32_t const *>(scales + i * second));
    }
    transpose(words);
    // What a word becomes are four pieces of 16 bytes: of two steps along K two, with a part of each run.
    uint32_t pieces[4][4];
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < 4; ++t) {
      uint32_t const of_run =
          kMx ? mx_scale(of_block[0] >> 8 * t & 0xFF) : two_scales(of_block[t / 2 % kAtomsPerBlock] >> t % 2 * 16);
      Decoded const parts = decode(words[t][0], scale_of_word(of_run, word));
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
        *reinterpret_cast<uint4 *>(decoded + i / 2 * next_panel + i % 2 * 64) =
            uint4{pieces[i][0], pieces[i][1], pieces[i][2], pieces[i][3]};
      }
    }
  }
};

CUTLASS_DEVICE void decode_a(DecodeAParameters const &p) {
  // Until whatever ran before has ended nothing of memory is read, nor by the next kernel, which begins behind this.
  grid_dependency_wait();
  launch_dependents();
  unsigned const item = blockIdx.x * DecodeA::kThreads + threadIdx.x, word = item % 4;
  if (item < p.flag_count) {
    p.flags[item] = 0;
  }
  // Beyond the last there are threads that do the same as the first and write nothing.
  bool const is_there = item / 4 < p.blocks.number * static_cast<unsigned>(p.rows);
  unsigned const of_all = is_there ? item / 4 : 0;
  unsigned const row = p.blocks.divide(of_all), block = of_all - row * p.blocks.number;
  unsigned const batch = p.m.divide(row), m = row - batch * p.m.number;
  DecodeARun(p.matrix, row, batch, m, block, word).decode_all<true>(word, is_there);
}
#endif
