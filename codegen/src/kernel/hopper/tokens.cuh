// The tokens as the tiles of warpgroups want them: decoded, each in 16 bits, in a workspace, by a kernel that runs before.
// There a token has the blocks of K that it has, whole ones, each in the order in which wgmma is given them. Every tile reads
// them as they are, where it would have to decode them again for each 128 or 256 weights; and they remain in the L2 cache.

constexpr int kDecodedBlockBytes = kBlockK * 2;

struct TokenParameters {
  uint8_t const *codes, *scales;
  uint8_t *decoded;
  // Tokens of a matrix, and blocks of K.
  Divisor m, blocks;
  // Tokens of all matrices, and bytes of a token's codes.
  int rows, row_bytes;
  // Blocks of 128 tokens that the scales of a matrix have, and 512 bytes of each along K.
  int token_blocks, atoms;
  // What the next kernel wants to find as zero.
  uint32_t *flags;
  unsigned flag_count;
};

struct Tokens {
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

// Four threads have a token's block: each reads one of its four runs of 32 codes, and decodes a word of each.
CUTLASS_DEVICE void decode_tokens(TokenParameters const &p) {
  start_dependents();
  unsigned const item = blockIdx.x * Tokens::kThreads + threadIdx.x, word = item % 4;
  if (item < p.flag_count) {
    p.flags[item] = 0;
  }
  // Beyond the last there are threads that do the same as the first and write nothing.
  bool const is_there = item / 4 < p.blocks.number * static_cast<unsigned>(p.rows);
  unsigned const of_all = is_there ? item / 4 : 0;
  unsigned const row = p.blocks.divide(of_all), block = of_all - row * p.blocks.number;
  unsigned const batch = p.m.divide(row), token = row - batch * p.m.number;
  // Beyond K there are zeros.
  uint32_t codes[4][1] = {};
  unsigned const run_at = block * kBlockBytes + word * 16;
  if (run_at < static_cast<unsigned>(p.row_bytes)) {
    uint4 const run = __ldg(reinterpret_cast<uint4 const *>(p.codes + static_cast<int64_t>(row) * p.row_bytes + run_at));
    codes[0][0] = run.x, codes[1][0] = run.y, codes[2][0] = run.z, codes[3][0] = run.w;
  }
  transpose(codes);
  uint8_t const *const scales_at =
      p.scales + (static_cast<int64_t>(batch) * p.token_blocks + token / 128) * p.atoms * kAtomBytes + token % 32 * 16 +
      token % 128 / 32 * 4;
  uint32_t scales[kAtomsPerBlock];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < kAtomsPerBlock; ++i) {
    // Beyond the last along K there are none, and the last will do.
    int const atom = min(static_cast<int>(block) * kAtomsPerBlock + i, p.atoms - 1);
    scales[i] = __ldg(reinterpret_cast<uint32_t const *>(scales_at + static_cast<int64_t>(atom) * kAtomBytes));
  }
  // What a word becomes are four pieces of 16 bytes: of two steps along K two, with a part of each run.
  uint32_t pieces[4][4];
  CUTLASS_PRAGMA_UNROLL
  for (int t = 0; t < 4; ++t) {
    uint32_t const of_run =
        kMx ? mx_scale(scales[0] >> 8 * t & 0xFF) : two_scales(scales[t / 2 % kAtomsPerBlock] >> t % 2 * 16);
    Decoded const parts = decode(codes[t][0], scale_of_word(of_run, word));
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step < 2; ++step) {
      pieces[2 * step][t] = parts.low[step];
      pieces[2 * step + 1][t] = parts.high[step];
    }
  }
  transpose(pieces);
  if (is_there) {
    auto *const to = reinterpret_cast<uint4 *>(p.decoded + static_cast<int64_t>(of_all) * kDecodedBlockBytes) + word;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[i * 4] = uint4{pieces[i][0], pieces[i][1], pieces[i][2], pieces[i][3]};
    }
  }
}
#endif
