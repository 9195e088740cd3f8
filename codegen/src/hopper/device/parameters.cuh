// Divides numbers below 2^31 exactly by a divisor that the host knows, with a multiplication and a shift (Granlund and
// Montgomery, 1994).
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

// The target of copies that prefetch scalars: a word for each of at most eight.
constexpr int kUnusedBytes = 4 * 8;

// Flags per split: one for each consumer warp, of which a CTA has at most 16.
constexpr int kSplitFlags = 16;

// The part of A that idle warps of the tiled kernel decode. A slab holds the rows of a tile of A over kSlabBlocks K
// blocks. decode_a_kernel decodes the first `first_slabs` slabs along K of the first `first_tiles` tiles along M,
// counted over all matrices. Idle warps decode the rest in units of kUnitM rows.
struct DecodeAhead {
  Divisor tiles_m, first_tiles, slabs;
  int first_slabs, units;
  // The number of units taken, and for each slab the number of units decoded.
  uint32_t *next_unit, *decoded_units;
  uint8_t *decoded_a;
  int panel_m;
};

// Parameters of a small-M kernel. A CTA waits hundreds of cycles for each 64 bytes of parameters. Memory is idle until
// the CTA requests B, so the first 64 bytes hold all that this request needs.
struct alignas(64) SmallMParameters {
  uint8_t const *b, *a, *sfb, *sfa;
  // `row_bytes` counts a row of codes, `scale_bytes` the scales of 128 rows, and `atoms_k` the scale atoms along K.
  unsigned n, row_bytes, scale_bytes, atoms_k;
  // A cluster has 1 << cluster_bits CTAs. It computes units_per_cta units of N, and each of its CTAs chunks_per_cta
  // chunks of K. The first `extra_units` clusters have one more unit, and the first `extra_chunks` CTAs one more chunk.
  uint8_t cluster_bits, units_per_cta, extra_chunks, is_batch;
  unsigned extra_units, chunks_per_cta;
  int m;
  // Divisors: the clusters of a matrix, the chunks of a CTA, and one more chunk. Then byte strides between matrices.
  Divisor ctas, chunks, chunks_plus_one;
  uint64_t b_stride, a_stride, sfb_stride, sfa_stride;
};

// The groups of rows of A (tiled/groups.cuh): the end of each, and their number. If kMasked: the rows of each, and the rows
// of a matrix of A.
constexpr int kMaxGroups = 512;
// True if scales of A are row-major. Groups need this, as one may begin inside a tile of rows. Without groups, scales may
// have either layout.
constexpr bool kLinearSfa = kHasScalesA && !kBlockedSfa;
struct GroupParameters {
  uint32_t const *offsets;
  int groups, group_rows;
};
struct NoGroups {
  static constexpr uint32_t const *offsets = nullptr;
  static constexpr int groups = 0, group_rows = 0;
};

// If kPaddedSfa: the end of each group among the rows of the scales of A, and the number of these rows.
struct PaddedScales {
  uint32_t const *sfa_ends;
  int scale_rows;
};
struct NoPaddedScales {
  static constexpr uint32_t const *sfa_ends = nullptr;
  static constexpr int scale_rows = 1;
};

// D[m, n] = sum over k of (A · SFA)[m, k] · (B · SFB)[n, k], for a GPU without FP4 tensor cores. Members are in the
// order in which a CTA needs them: each new 64 bytes cost hundreds of cycles.
struct Parameters : std::conditional_t<kGrouped, GroupParameters, NoGroups>, std::conditional_t<kPaddedSfa, PaddedScales, NoPaddedScales> {
  // TMA descriptors and addresses of the operands. In tiled kernels, `a_map` describes decoded A.
  CUtensorMap b_map, a_map, sfb_map, sfa_map;
  uint8_t const *b, *a, *sfb, *sfa;
  // CTAs that share a tile, 1 << cluster_bits.
  int cluster, cluster_bits;
  int m, n, k;
  // Scale atoms along K.
  int atoms_k;
  unsigned row_bytes;  // bytes of a row of codes
  // Tiles along M, along N and in total. Divisors by the tiles of a matrix and of a group.
  int tiles_m, tiles_n, tiles;
  Divisor tiles_per_matrix, tiles_per_group;
  // Scale atoms along M and N.
  int atoms_m, atoms_n;
  // If kDirectA: rows of a box of A, which one TMA load copies, and the boxes of a tile and of the last tile along M.
  int box_m, boxes, last_boxes;
  // K steps of a tile. Tiles from index `whole_tiles` on form the last wave, whose CTAs compute `own_steps` K steps.
  // `helpers` clusters compute the rest in `splits` splits of `split_steps` steps. They store the sums and set a flag
  // per warp.
  int steps, whole_tiles, helpers, splits, own_steps, split_steps;
  float *split_sums;
  uint32_t *split_flags;
  DecodeAhead ahead;
  SmallMParameters small_m;
  EpilogueArguments epilogue;
};
