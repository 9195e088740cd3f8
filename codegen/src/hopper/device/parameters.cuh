// Division of numbers below 2^31 by one that the host knows, exactly: by a multiplication (Granlund and Montgomery, 1994).
struct Divisor {
  uint32_t number, multiplier, shift;
  CUTLASS_HOST_DEVICE uint32_t divide(uint32_t x) const { return static_cast<uint64_t>(x) * multiplier >> shift; }
};
inline Divisor divisor(uint32_t number) {
  uint32_t bits = 0;
  while (uint64_t{1} << bits < number) {
    ++bits;
  }
  uint64_t const power = uint64_t{1} << (31 + bits);
  return {number, static_cast<uint32_t>((power + number - 1) / number), 31 + bits};
}

// Flags of a split, one for each warp that multiplies.
constexpr int kSplitFlags = 16;

// What is left of the rows of A, for warps of tiles that have nothing else to do. It is counted in slabs: of the rows of A of a tile
// some blocks along K. The first tiles that are computed are of so many along M, of all matrices, and of the rows of A of these
// the first slabs were decoded before. Others are taken in units.
struct DecodeAhead {
  Divisor tiles_m, first_tiles, slabs;
  int first_slabs, units;
  // How many units were taken, and how many of each slab were decoded.
  uint32_t *next_unit, *decoded_units;
  uint8_t *decoded_a;
  int panel_m;
};

// What a kernel for small M is given. Until it has asked for B memory does nothing, and a CTA waits some hundred cycles
// for each 64 bytes of parameters: the first 64 have all that it needs for that.
struct alignas(64) SmallMParameters {
  uint8_t const *b, *a, *sfb, *sfa;
  // Bytes of a row's codes, and of the scales of 128 rows, which have so many times 512 bytes along K.
  unsigned n, row_bytes, scale_bytes, atoms_k;
  // A cluster has 1 << cluster_bits CTAs. Each has so many units of rows of B and chunks along K; the first ones have one more.
  uint8_t cluster_bits, units_per_cta, extra_chunks, is_batch;
  unsigned extra_units, chunks_per_cta;
  int m;
  // CTAs, or clusters, of a matrix, and its operands' bytes.
  Divisor ctas, chunks, chunks_plus_one;
  uint64_t b_stride, a_stride, sfb_stride, sfa_stride;
};

// D[m, n] = sum over k of (A · SFA)[m, k] · (B · SFB)[n, k], for a GPU without FP4 tensor cores. What is needed first comes first:
// for each 64 bytes that a block reads anew it waits some hundred cycles.
struct Parameters {
  // A and B as tiles of them are loaded, and scales of B and of A; and as they lie in memory.
  CUtensorMap b_map, a_map, sfb_map, sfa_map;
  uint8_t const *b, *a, *sfb, *sfa;
  // CTAs that share a tile, 1 << cluster_bits.
  int cluster, cluster_bits;
  int m, n, k;
  // 512 bytes that the scales of 128 rows have along K.
  int atoms_k;
  unsigned row_bytes;  // of codes
  // Tiles along M and N, and of all matrices; those of one, and of a group of these that is computed together.
  int tiles_m, tiles_n, tiles;
  Divisor tiles_per_matrix, tiles_per_group;
  // Blocks of 128 rows that the scales have.
  int atoms_m, atoms_n;
  // Steps of a tile along K. Of the tiles from `whole_tiles` on, which are the last round, their CTAs have `own_steps`, and so many
  // clusters of helpers the others, in splits of `split_steps`, whose sums are left with a flag for each warp.
  int steps, whole_tiles, helpers, splits, own_steps, split_steps;
  float *split_sums;
  uint32_t *split_flags;
  DecodeAhead ahead;
  SmallMParameters small_m;
  EpilogueArguments epilogue;
};
