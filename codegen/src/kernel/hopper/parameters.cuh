// D[m, n] = sum over k of (A · SFA)[m, k] · (B · SFB)[n, k], for a GPU without FP4 tensor cores.
struct Parameters {
  // A and B as tiles of them are loaded, and as they lie in memory.
  CUtensorMap weight_map, token_map;
  uint8_t const *weights, *tokens, *weight_scales, *token_scales;
  int m, n, k;
  // CTAs that share a tile, 1 << cluster_bits.
  int cluster, cluster_bits;
  // For few rows of A: how many rows of B and how much of K every CTA has, how many have one more, and how many CTAs, or
  // clusters, a matrix has; what division by how much of K multiplies with; bytes of a row's codes, of the scales of 128 rows,
  // and of each operand of a matrix.
  unsigned share, share_rest, k_share, k_share_rest, ctas;
  unsigned k_inverse, k_inverse_more, row_bytes, scale_bytes;
  uint64_t weight_stride, token_stride, weight_scale_stride, token_scale_stride;
  // Tiles along M and N, and of all matrices.
  int tiles_m, tiles_n, tiles;
  // Blocks of 128 rows that the scales have, and 512 bytes of each along K.
  int token_blocks, weight_blocks, atoms;
  EpilogueArguments epilogue;
};
