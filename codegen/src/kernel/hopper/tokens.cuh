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
// A thread has a word of each of the four runs of 32 codes of a token's block.
CUTLASS_DEVICE void decode_tokens(TokenParameters const &p) {
  start_dependents();
  unsigned const item = blockIdx.x * Tokens::kThreads + threadIdx.x, word = item % 4, of_all = item / 4;
  if (item < p.flag_count) {
    p.flags[item] = 0;
  }
  unsigned const row = p.blocks.divide(of_all), block = of_all - row * p.blocks.number;
  if (row >= static_cast<unsigned>(p.rows)) {
    return;
  }
  unsigned const batch = p.m.divide(row), token = row - batch * p.m.number;
  uint8_t const *const codes_at = p.codes + static_cast<int64_t>(row) * p.row_bytes + block * kBlockBytes + word * 4;
  uint32_t codes[4];
  CUTLASS_PRAGMA_UNROLL
  for (int t = 0; t < 4; ++t) {
    // Beyond K there are zeros.
    bool const inside = static_cast<int>(block) * kBlockBytes + t * 16 < p.row_bytes;
    codes[t] = inside ? __ldg(reinterpret_cast<uint32_t const *>(codes_at + t * 16)) : 0;
  }
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
  Decoded parts[4];
  CUTLASS_PRAGMA_UNROLL
  for (int t = 0; t < 4; ++t) {
    uint32_t const of_run =
        kMx ? mx_scale(scales[0] >> 8 * t & 0xFF) : two_scales(scales[t / 2 % kAtomsPerBlock] >> t % 2 * 16);
    parts[t] = decode(codes[t], scale_of_word(of_run, word));
  }
  auto *const to = reinterpret_cast<uint4 *>(p.decoded + (static_cast<int64_t>(row) * p.blocks.number + block) * kDecodedBlockBytes +
                                             word * 64);
  CUTLASS_PRAGMA_UNROLL
  for (int step = 0; step < 2; ++step) {
    to[2 * step] = uint4{parts[0].low[step], parts[1].low[step], parts[2].low[step], parts[3].low[step]};
    to[2 * step + 1] = uint4{parts[0].high[step], parts[1].high[step], parts[2].high[step], parts[3].high[step]};
  }
}
#endif
