// How a problem and its plan become parameters, on the host.

// What makes the descriptors of tensors: a function of the driver.
using Encode = decltype(&cuTensorMapEncodeTiled);

// A tensor of bytes, and the part of it that is loaded at a time.
inline cudaError_t describe(CUtensorMap &map, Encode encode, void const *tensor, int rank, cuuint64_t const *extents,
                            cuuint64_t const *strides, cuuint32_t const *box, CUtensorMapSwizzle swizzle) {
  cuuint32_t const steps[] = {1, 1, 1, 1};
  // The L2 cache brings 128 bytes of a row: where it brings more, all blocks wait for memory at the same time. The driver's
  // errors have the numbers of the runtime's.
  return static_cast<cudaError_t>(encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, static_cast<cuuint32_t>(rank), const_cast<void *>(tensor),
                                         extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

// A matrix of bytes for each of a batch, so many rows after the one before.
inline cudaError_t describe(CUtensorMap &map, Encode encode, void const *matrices, int64_t row_bytes, int64_t rows,
                            int64_t pitch, int64_t batches, int of_row, int of_tile, CUtensorMapSwizzle swizzle) {
  cuuint64_t const row = row_bytes;
  cuuint64_t const extents[] = {row, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(batches)};
  cuuint64_t const strides[] = {row, row * pitch};
  cuuint32_t const box[] = {static_cast<cuuint32_t>(of_row), static_cast<cuuint32_t>(of_tile), 1};
  return describe(map, encode, matrices, 3, extents, strides, box, swizzle);
}

// What warps that hold tokens load: of chunks of K, runs of rows that lie side by side, all tokens, and scales of either.
inline cudaError_t describe_held(Problem const &problem, Pointers const &pointers, Built const &built, Encode encode,
                                 Parameters &parameters) {
  int const row_bytes = built.blocks * kBlockBytes;
  cuuint64_t const row = problem.k / 2, n = problem.n, l = problem.l;
  cuuint64_t const extents[] = {row, 32, n / 32, l}, strides[] = {row, row * 32, row * n};
  cuuint32_t const box[] = {static_cast<cuuint32_t>(row_bytes), kRowsOfRun, 2, 1};
  cudaError_t error = describe(parameters.weight_map, encode, pointers.b, 4, extents, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
  if (error == cudaSuccess) {
    error = describe(parameters.scale_map, encode, pointers.sfb, kAtomBytes, parameters.atoms, parameters.atoms,
                     problem.l * parameters.weight_blocks, kRowsOfRun * 16, built.blocks * kAtomsPerBlock,
                     CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  if (error == cudaSuccess) {
    error = describe(parameters.token_scale_map, encode, pointers.sfa, kAtomBytes, parameters.atoms, parameters.atoms,
                     problem.l * parameters.token_blocks, built.tokens * 16, built.blocks * kAtomsPerBlock,
                     CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  if (error != cudaSuccess) {
    return error;
  }
  return describe(parameters.token_map, encode, pointers.a, problem.k / 2, problem.m, problem.m, problem.l, row_bytes, built.tokens,
                  CU_TENSOR_MAP_SWIZZLE_128B);
}

inline cudaError_t make_parameters(Problem const &problem, Pointers const &pointers, void *workspace, Plan const &plan,
                                   Encode encode, EpilogueArguments const &epilogue, Parameters &parameters) {
  Built const &built = kBuilt[plan.variant];
  auto const bytes = [](void const *pointer) { return static_cast<uint8_t const *>(pointer); };
  auto const pieces = [](int64_t extent, int64_t of) { return static_cast<int>((extent + of - 1) / of); };
  parameters.weights = bytes(pointers.b);
  parameters.tokens = bytes(pointers.a);
  parameters.weight_scales = bytes(pointers.sfb);
  parameters.token_scales = bytes(pointers.sfa);
  parameters.m = static_cast<int>(problem.m);
  parameters.n = static_cast<int>(problem.n);
  parameters.k = static_cast<int>(problem.k);
  parameters.cluster = plan.cluster;
  parameters.cluster_bits = 0;
  while (1 << parameters.cluster_bits < plan.cluster) {
    ++parameters.cluster_bits;
  }
  parameters.tiles_m = pieces(problem.m, built.tokens);
  parameters.tiles_n = pieces(problem.n, built.rows);
  parameters.tiles = static_cast<int>(tile_count(problem, built));
  parameters.of_matrix = divisor(parameters.tiles_m * parameters.tiles_n);
  parameters.of_group = divisor(parameters.tiles_m * kGroupWidth);
  parameters.token_blocks = pieces(problem.m, 128);
  parameters.weight_blocks = pieces(problem.n, 128);
  parameters.atoms = pieces(problem.k, kAtomK);
  parameters.row_bytes = static_cast<unsigned>(problem.k / 2);
  parameters.epilogue = epilogue;
  if (built.tokens <= kFewTokens) {
    int const clusters = static_cast<int>(plan.grid.x) / plan.cluster, units = static_cast<int>(unit_count(problem, built));
    int const chunks = pieces(problem.k, built.blocks * kBlockK), of_cta = chunks / plan.cluster;
    int const ctas = clusters / static_cast<int>(problem.l);
    FewParameters &few = parameters.few;
    few.weights = parameters.weights;
    few.tokens = parameters.tokens;
    few.weight_scales = parameters.weight_scales;
    few.token_scales = parameters.token_scales;
    few.m = parameters.m;
    few.n = static_cast<unsigned>(parameters.n);
    few.row_bytes = parameters.row_bytes;
    few.atoms = static_cast<unsigned>(parameters.atoms);
    few.scale_bytes = few.atoms * kAtomBytes;
    few.cluster_bits = static_cast<uint8_t>(parameters.cluster_bits);
    few.is_batch = problem.l > 1;
    // No more than a CTA has room for.
    few.share = static_cast<uint8_t>(units / ctas);
    few.share_rest = units % ctas;
    few.k_share = of_cta;
    few.k_share_rest = static_cast<uint8_t>(chunks % plan.cluster);
    few.ctas = divisor(ctas);
    few.chunks = divisor(of_cta);
    few.chunks_more = divisor(of_cta + 1);
    few.weight_stride = static_cast<uint64_t>(problem.n) * few.row_bytes;
    few.token_stride = static_cast<uint64_t>(problem.m) * few.row_bytes;
    few.weight_scale_stride = static_cast<uint64_t>(parameters.weight_blocks) * few.scale_bytes;
    few.token_scale_stride = static_cast<uint64_t>(parameters.token_blocks) * few.scale_bytes;
    return plan.is_held ? describe_held(problem, pointers, built, encode, parameters) : cudaSuccess;
  }
  Pieces const &given = plan.pieces;
  parameters.steps = static_cast<int>(step_count(problem, built));
  parameters.whole = parameters.tiles - given.tiles;
  parameters.helpers = given.helpers;
  parameters.all_pieces = given.tiles * given.of_tile;
  parameters.piece_steps = given.steps;
  parameters.own_steps = parameters.steps - given.of_tile * given.steps;
  parameters.piece_flags = flags(problem, built, workspace);
  Slabs const &slabs = plan.slabs;
  Rest &rest = parameters.rest;
  rest.tiles_m = divisor(parameters.tiles_m);
  rest.first_tiles = divisor(slabs.first_tiles);
  rest.slabs = divisor(slabs.along_k);
  rest.first_slabs = slabs.first_along_k;
  auto const slab_count = [](int tiles, int along_k) { return static_cast<int64_t>(tiles) * along_k; };
  int64_t const left = slab_count(slabs.tiles, slabs.along_k) - slab_count(slabs.first_tiles, slabs.first_along_k);
  rest.units = static_cast<int>(left * (built.tokens / kUnitTokens));
  rest.taken = parameters.piece_flags + parameters.all_pieces * kPieceFlags;
  rest.decoded = rest.taken + 1;
  rest.tokens = static_cast<uint8_t *>(workspace);
  rest.panel_rows = static_cast<int>(decoded_rows(problem, built));
  parameters.piece_sums = reinterpret_cast<float *>(rest.taken + counter_count(slabs));
  // A warp reads weights in rows of 64 bytes without conflicts as they are.
  cudaError_t error = describe(parameters.weight_map, encode, pointers.b, problem.k / 2, problem.n, problem.n, problem.l,
                               kBlockBytes, built.rows, CU_TENSOR_MAP_SWIZZLE_NONE);
  if (error == cudaSuccess) {
    // Those of 128 rows of B, of all matrices.
    int64_t const rows = static_cast<int64_t>(parameters.atoms) * kRowsOfAtom;
    error = describe(parameters.scale_map, encode, pointers.sfb, kScaleRowBytes, rows, rows,
                     problem.l * parameters.weight_blocks, kScaleRowBytes, kAtomsPerBlock * kRowsOfAtom,
                     CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  if (error != cudaSuccess) {
    return error;
  }
  cuuint64_t const row = kPanelRowBytes, rows = rows_of_tiles(problem, built), l = problem.l;
  cuuint64_t const panels = decoded_row_bytes(problem) / kPanelRowBytes;
  cuuint64_t const extents[] = {row, rows, l, panels};
  cuuint64_t const strides[] = {row, row * problem.m, row * decoded_rows(problem, built)};
  cuuint32_t const box[] = {kPanelRowBytes, static_cast<cuuint32_t>(built.tokens), 1, 1};
  return describe(parameters.token_map, encode, workspace, 4, extents, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

inline TokenParameters token_parameters(Problem const &problem, Pointers const &pointers, void *workspace, Plan const &plan) {
  auto const pieces = [](int64_t extent, int64_t of) { return static_cast<int>((extent + of - 1) / of); };
  Built const &built = kBuilt[plan.variant];
  Slabs const &slabs = plan.slabs;
  int const tiles_m = pieces(problem.m, built.tokens), blocks = pieces(problem.k, kBlockK);
  int64_t const of_last = static_cast<int64_t>(slabs.first_tiles % tiles_m) * built.tokens;
  TokenParameters result;
  result.matrix = {static_cast<uint8_t const *>(pointers.a),
                   static_cast<uint8_t const *>(pointers.sfa),
                   static_cast<uint8_t *>(workspace),
                   static_cast<int>(problem.k / 2),
                   static_cast<int>(decoded_rows(problem, built)),
                   pieces(problem.m, 128),
                   pieces(problem.k, kAtomK)};
  result.m = divisor(static_cast<uint32_t>(problem.m));
  result.rows = static_cast<int>(slabs.first_tiles / tiles_m * problem.m + (of_last < problem.m ? of_last : problem.m));
  int64_t const first_blocks = static_cast<int64_t>(slabs.first_along_k) * kSlabBlocks;
  result.blocks = divisor(static_cast<uint32_t>(first_blocks < blocks ? first_blocks : blocks));
  result.flags = flags(problem, built, workspace);
  result.flag_count =
      static_cast<unsigned>(plan.pieces.tiles * plan.pieces.of_tile * kPieceFlags + counter_count(slabs));
  return result;
}

// Blocks of the kernel that decodes tokens: a thread for each item of these, and for each flag.
inline unsigned token_grid(TokenParameters const &parameters) {
  // No more than the bytes of A's scales, which are fewer than 2^31.
  int64_t const items = static_cast<int64_t>(parameters.rows) * parameters.blocks.number * 4;
  int64_t const threads = items > parameters.flag_count ? items : parameters.flag_count;
  return static_cast<unsigned>((threads + Tokens::kThreads - 1) / Tokens::kThreads);
}
