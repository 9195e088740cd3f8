// Computes parameters from a problem and its plan, on the host.

// The driver function that encodes TMA descriptors.
using Encode = decltype(&cuTensorMapEncodeTiled);

inline int64_t row_bytes_a(Problem const &problem) { return problem.k * kBitsA / 8; }
inline int64_t row_bytes_b(Problem const &problem) { return problem.k * kBitsB / 8; }

// Encodes the descriptor of a tensor of bytes and the box that one TMA load copies.
inline cudaError_t describe(CUtensorMap &map, Encode encode, void const *tensor, int rank, cuuint64_t const *extents,
                            cuuint64_t const *strides, cuuint32_t const *box, CUtensorMapSwizzle swizzle) {
  cuuint32_t const steps[] = {1, 1, 1, 1};
  // L2 promotion of 128 bytes: with more, all CTAs wait for memory at the same time. The driver's error codes equal
  // those of the runtime.
  return static_cast<cudaError_t>(encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, static_cast<cuuint32_t>(rank), const_cast<void *>(tensor),
                                         extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

// Encodes the descriptor of one matrix of bytes per batch, `pitch` rows apart.
inline cudaError_t describe(CUtensorMap &map, Encode encode, void const *matrices, int64_t row_bytes, int64_t rows,
                            int64_t pitch, int64_t batches, int box_bytes, int box_rows, CUtensorMapSwizzle swizzle) {
  cuuint64_t const row = row_bytes;
  cuuint64_t const extents[] = {row, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(batches)};
  cuuint64_t const strides[] = {row, row * pitch};
  cuuint32_t const box[] = {static_cast<cuuint32_t>(box_bytes), static_cast<cuuint32_t>(box_rows), 1};
  return describe(map, encode, matrices, 3, extents, strides, box, swizzle);
}

// Encodes the descriptors of small_m_regs. Per chunk of K, a warp loads two runs of rows of B, all rows of A, and the
// scales of both. Threads load an A of more than 4 bits themselves.
inline cudaError_t describe_small_m_regs(Problem const &problem, Pointers const &pointers, VariantTraits const &traits, Encode encode,
                                         Parameters &parameters) {
  int const row_bytes = traits.blocks * kBlockBytes;
  cuuint64_t const row = problem.k / 2, n = problem.n, l = problem.l;
  cuuint64_t const extents[] = {row, 32, n / 32, l}, strides[] = {row, row * 32, row * n};
  cuuint32_t const box[] = {static_cast<cuuint32_t>(row_bytes), kRunN, 2, 1};
  cudaError_t error = describe(parameters.b_map, encode, pointers.b, 4, extents, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
  if (error == cudaSuccess) {
    error = describe(parameters.sfb_map, encode, pointers.sfb, kAtomBytes, parameters.atoms_k, parameters.atoms_k,
                     problem.l * parameters.atoms_n, kRunN * 16, traits.blocks * kAtomsPerBlock,
                     CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  if (error != cudaSuccess || kBitsA > 4) {
    return error;
  }
  error = describe(parameters.sfa_map, encode, pointers.sfa, kAtomBytes, parameters.atoms_k, parameters.atoms_k,
                   problem.l * parameters.atoms_m, traits.tile_m * 16, traits.blocks * kAtomsPerBlock,
                   CU_TENSOR_MAP_SWIZZLE_NONE);
  if (error != cudaSuccess) {
    return error;
  }
  return describe(parameters.a_map, encode, pointers.a, problem.k / 2, problem.m, problem.m, problem.l, row_bytes, traits.tile_m,
                  CU_TENSOR_MAP_SWIZZLE_128B);
}

// Returns the rows of A that one TMA load copies: a multiple of 8, as the swizzle requires. Rows out of bounds take TMA
// twice as long as others, and a tile with N = 64 and 24 of 128 rows twice as long as with 128, so the last tile loads
// few of them. The only tile along M has one box. Otherwise a whole tile has at most four.
inline int rows_of_box(int64_t m, int tile_m) {
  int const last = static_cast<int>(m % tile_m);
  if (last == 0) {
    return tile_m;
  }
  if (m < tile_m) {
    return (last + 7) / 8 * 8;
  }
  auto const outside = [&](int box) { return (last + box - 1) / box * box - last; };
  int box = tile_m;
  while (box > tile_m / 4 && outside(box / 2) < outside(box)) {
    box /= 2;
  }
  return box;
}

// Returns the rows of a matrix of A. If kMasked, M counts those of all matrices.
inline int64_t rows_of_matrix(Problem const &problem) { return kMasked ? problem.m / matrices_of_b(problem) : problem.m; }

// Stores the addresses of groups. `Pointers` has offsets only if rows are in groups.
template <class P>
void set_groups(GroupParameters &parameters, Problem const &problem, P const &pointers) {
  parameters.offsets = static_cast<uint32_t const *>(pointers.offsets);
  parameters.groups = static_cast<int>(matrices_of_b(problem));
  parameters.group_rows = static_cast<int>(problem.m) / parameters.groups;
}
template <class P>
void set_groups(NoGroups &, Problem const &, P const &) {}
// Stores the groups in the scales of A. `Problem` has P and `Pointers` the ends only if each group has whole tiles.
template <class Q, class P>
void set_padded_scales(PaddedScales &parameters, Q const &problem, P const &pointers) {
  parameters.sfa_ends = static_cast<uint32_t const *>(pointers.sfa_ends);
  parameters.scale_rows = static_cast<int>(problem.p);
}
template <class Q, class P>
void set_padded_scales(NoPaddedScales &, Q const &, P const &) {}
template <class Q, class P>
void set_decode_groups(DecodeAGroups &parameters, Q const &problem, P const &pointers) {
  parameters.offsets = static_cast<uint32_t const *>(pointers.offsets);
  parameters.sfa_ends = static_cast<uint32_t const *>(pointers.sfa_ends);
  parameters.groups = static_cast<int>(matrices_of_b(problem));
  parameters.scale_rows = static_cast<int>(problem.p);
}
template <class Q, class P>
void set_decode_groups(NoDecodeAGroups &, Q const &, P const &) {}
template <class P>
void set_counts(DecodeACounts &parameters, P const &pointers) {
  parameters.counts = static_cast<uint32_t const *>(pointers.offsets);
}
template <class P>
void set_counts(NoDecodeACounts &, P const &) {}

inline cudaError_t make_parameters(Problem const &problem, Pointers const &pointers, void *workspace, Plan const &plan,
                                   Encode encode, EpilogueArguments const &epilogue, Parameters &parameters) {
  VariantTraits const &traits = kVariants[plan.variant];
  auto const bytes = [](void const *pointer) { return static_cast<uint8_t const *>(pointer); };
  auto const ceil_div = [](int64_t extent, int64_t of) { return static_cast<int>((extent + of - 1) / of); };
  parameters.b = bytes(pointers.b);
  parameters.a = bytes(pointers.a);
  parameters.sfb = bytes(pointers.sfb);
  parameters.sfa = bytes(pointers.sfa);
  parameters.m = static_cast<int>(problem.m);
  parameters.n = static_cast<int>(problem.n);
  parameters.k = static_cast<int>(problem.k);
  parameters.cluster = plan.cluster;
  parameters.cluster_bits = 0;
  while (1 << parameters.cluster_bits < plan.cluster) {
    ++parameters.cluster_bits;
  }
  parameters.tiles_m = ceil_div(problem.m, traits.tile_m);
  parameters.tiles_n = ceil_div(problem.n, traits.tile_n);
  parameters.tiles = static_cast<int>(tile_count(problem, traits));
  parameters.tiles_per_matrix = divisor(parameters.tiles_m * parameters.tiles_n);
  parameters.tiles_per_group = divisor(parameters.tiles_m * kGroupWidth);
  parameters.atoms_m = ceil_div(rows_of_matrix(problem), 128);
  parameters.atoms_n = ceil_div(problem.n, 128);
  parameters.atoms_k = ceil_div(problem.k, kAtomK);
  parameters.row_bytes = static_cast<unsigned>(row_bytes_b(problem));
  parameters.box_m = rows_of_box(problem.m, traits.tile_m);
  parameters.boxes = traits.tile_m / parameters.box_m;
  int64_t const before_last = int64_t{parameters.tiles_m - 1} * traits.tile_m;
  parameters.last_boxes = ceil_div(problem.m - before_last, parameters.box_m);
  parameters.epilogue = epilogue;
  set_groups(parameters, problem, pointers);
  set_padded_scales(parameters, problem, pointers);
  if (traits.tile_m <= kSmallM) {
    int const clusters = static_cast<int>(plan.grid.x) / plan.cluster, units = static_cast<int>(unit_count(problem, traits));
    int const chunks = ceil_div(problem.k, traits.blocks * kBlockK), of_cta = chunks / plan.cluster;
    int const ctas = clusters / static_cast<int>(problem.l);
    SmallMParameters &small_m = parameters.small_m;
    small_m.b = parameters.b;
    small_m.a = parameters.a;
    small_m.sfb = parameters.sfb;
    small_m.sfa = parameters.sfa;
    small_m.m = parameters.m;
    small_m.n = static_cast<unsigned>(parameters.n);
    small_m.row_bytes = parameters.row_bytes;
    small_m.atoms_k = static_cast<unsigned>(parameters.atoms_k);
    small_m.scale_bytes = small_m.atoms_k * kAtomBytes;
    small_m.cluster_bits = static_cast<uint8_t>(parameters.cluster_bits);
    small_m.is_batch = problem.l > 1;
    // Fits in 8 bits, as it is at most kMaxUnits.
    small_m.units_per_cta = static_cast<uint8_t>(units / ctas);
    small_m.extra_units = units % ctas;
    small_m.chunks_per_cta = of_cta;
    small_m.extra_chunks = static_cast<uint8_t>(chunks % plan.cluster);
    small_m.ctas = divisor(ctas);
    small_m.chunks = divisor(of_cta);
    small_m.chunks_plus_one = divisor(of_cta + 1);
    small_m.b_stride = static_cast<uint64_t>(problem.n) * small_m.row_bytes;
    small_m.a_stride = static_cast<uint64_t>(problem.m) * row_bytes_a(problem);
    small_m.sfb_stride = static_cast<uint64_t>(parameters.atoms_n) * small_m.scale_bytes;
    small_m.sfa_stride = kLinearSfa ? static_cast<uint64_t>(problem.m) * (problem.k / kScaleVector)
                                    : static_cast<uint64_t>(parameters.atoms_m) * small_m.scale_bytes;
    return plan.is_small_m_regs ? describe_small_m_regs(problem, pointers, traits, encode, parameters) : cudaSuccess;
  }
  SplitK const &split_k = plan.split_k;
  parameters.steps = static_cast<int>(step_count(problem, traits));
  parameters.whole_tiles = parameters.tiles - split_k.tiles;
  parameters.helpers = split_k.helpers;
  parameters.splits = split_k.tiles * split_k.per_tile;
  parameters.split_steps = split_k.steps;
  parameters.own_steps = parameters.steps - split_k.per_tile * split_k.steps;
  parameters.split_flags = flags(problem, traits, workspace);
  Slabs const &slabs = plan.slabs;
  DecodeAhead &ahead = parameters.ahead;
  ahead.tiles_m = divisor(parameters.tiles_m);
  ahead.first_tiles = divisor(slabs.first_tiles);
  ahead.slabs = divisor(slabs.along_k);
  ahead.first_slabs = slabs.first_along_k;
  auto const slab_count = [](int tiles, int along_k) { return static_cast<int64_t>(tiles) * along_k; };
  int64_t const left = slab_count(slabs.tiles, slabs.along_k) - slab_count(slabs.first_tiles, slabs.first_along_k);
  ahead.units = static_cast<int>(left * (traits.tile_m / kUnitM));
  ahead.next_unit = parameters.split_flags + parameters.splits * kSplitFlags;
  ahead.decoded_units = ahead.next_unit + 1;
  ahead.decoded_a = static_cast<uint8_t *>(workspace);
  ahead.panel_m = static_cast<int>(decoded_rows(problem, traits));
  parameters.split_sums = reinterpret_cast<float *>(ahead.next_unit + counter_count(slabs));
  // Not swizzled: warps read rows of 64 bytes without bank conflicts.
  cudaError_t error = describe(parameters.b_map, encode, pointers.b, row_bytes_b(problem), problem.n, problem.n,
                               matrices_of_b(problem), kPartBytes, traits.tile_n,
                               CU_TENSOR_MAP_SWIZZLE_NONE);
  if (error == cudaSuccess) {
    // SFB of all matrices, in blocks of 128 rows.
    int64_t const rows = static_cast<int64_t>(parameters.atoms_k) * kAtomRows;
    error = describe(parameters.sfb_map, encode, pointers.sfb, kScaleRowBytes, rows, rows,
                     matrices_of_b(problem) * parameters.atoms_n, kScaleRowBytes, kAtomsPerBlock * kAtomRows,
                     CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  if (error != cudaSuccess) {
    return error;
  }
  if (kDirectA) {
    return describe(parameters.a_map, encode, pointers.a, row_bytes_a(problem), problem.m, problem.m, problem.l, kPanelRowBytes,
                    parameters.box_m, CU_TENSOR_MAP_SWIZZLE_128B);
  }
  cuuint64_t const row = kPanelRowBytes, rows = padded_m(problem, traits), l = problem.l;
  cuuint64_t const panels = decoded_row_bytes(problem) / kPanelRowBytes;
  cuuint64_t const extents[] = {row, rows, l, panels};
  cuuint64_t const strides[] = {row, row * problem.m, row * decoded_rows(problem, traits)};
  cuuint32_t const box[] = {kPanelRowBytes, static_cast<cuuint32_t>(traits.tile_m), 1, 1};
  return describe(parameters.a_map, encode, workspace, 4, extents, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

inline DecodeAParameters decode_a_parameters(Problem const &problem, Pointers const &pointers, void *workspace, Plan const &plan) {
  auto const ceil_div = [](int64_t extent, int64_t of) { return static_cast<int>((extent + of - 1) / of); };
  VariantTraits const &traits = kVariants[plan.variant];
  Slabs const &slabs = plan.slabs;
  int const tiles_m = ceil_div(problem.m, traits.tile_m), blocks = ceil_div(problem.k, kBlockK);
  int64_t const of_last = static_cast<int64_t>(slabs.first_tiles % tiles_m) * traits.tile_m;
  DecodeAParameters result;
  result.matrix = {static_cast<uint8_t const *>(pointers.a),
                   static_cast<uint8_t const *>(pointers.sfa),
                   static_cast<uint8_t *>(workspace),
                   static_cast<int>(row_bytes_a(problem)),
                   static_cast<int>(decoded_rows(problem, traits)),
                   ceil_div(rows_of_matrix(problem), 128),
                   ceil_div(problem.k, kAtomK)};
  set_counts(result, pointers);
  set_decode_groups(result, problem, pointers);
  result.m = divisor(static_cast<uint32_t>(rows_of_matrix(problem)));
  result.rows =
      kDirectA ? 0 : static_cast<int>(slabs.first_tiles / tiles_m * problem.m + (of_last < problem.m ? of_last : problem.m));
  int64_t const first_blocks = static_cast<int64_t>(slabs.first_along_k) * kSlabBlocks;
  result.blocks = divisor(static_cast<uint32_t>(first_blocks < blocks ? first_blocks : blocks));
  result.flags = flags(problem, traits, workspace);
  result.flag_count =
      static_cast<unsigned>(plan.split_k.tiles * plan.split_k.per_tile * kSplitFlags + counter_count(slabs));
  return result;
}

// Returns the number of CTAs of decode_a_kernel, which has a thread per item and per flag. With 0 it is not launched.
inline unsigned decode_a_grid(DecodeAParameters const &parameters) {
  // At most the size of SFA in bytes, which is less than 2^31.
  int64_t const items = static_cast<int64_t>(parameters.rows) * parameters.blocks.number * 4;
  int64_t const threads = items > parameters.flag_count ? items : parameters.flag_count;
  return static_cast<unsigned>((threads + DecodeA::kThreads - 1) / DecodeA::kThreads);
}
