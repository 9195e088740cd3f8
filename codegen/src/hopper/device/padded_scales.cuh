// Scales of A with whole tiles of 128 rows for each group (kPaddedSfa). A group begins at any row of A, but its scales begin
// at a tile. Threads find the group of a row from the ends of the groups, and then the row of its scales.

// If kPaddedSfa, the ends of the groups among the rows of A and of its scales, and the numbers of groups and of rows of scales.
struct DecodeAGroups {
  uint32_t const *offsets, *sfa_ends;
  int groups, scale_rows;
};
struct NoDecodeAGroups {
  static constexpr uint32_t const *offsets = nullptr, *sfa_ends = nullptr;
  static constexpr int groups = 0, scale_rows = 1;
};

#ifndef FOURFOLD_HOST
// Returns the row of scales `row - begin` rows after the first one of a group. It is clamped, so a wrong end reads no memory
// out of bounds.
CUTLASS_DEVICE unsigned row_in_scales(uint32_t row, uint32_t begin, uint32_t first, int scale_rows) {
  return min(max(static_cast<int>(first + (row - begin)), 0), scale_rows - 1);
}

// Returns the row of the scales of a row of A. All lanes of a warp call it together, and each four adjacent ones
// for the same row. Rows of no group have the scales of some row.
CUTLASS_DEVICE unsigned padded_row(uint32_t const *offsets, uint32_t const *sfa_ends, int groups, int scale_rows, unsigned row) {
  constexpr uint32_t kWarp = 0xFFFFFFFFu;
  constexpr int kRows = 8;
  int before = 0;
  uint32_t begin = 0, first = 0;
  bool is_found = false;
  CUTLASS_PRAGMA_NO_UNROLL
  for (int next = 0; next < groups; next += 32) {
    int const group = next + lane();
    bool const is_group = group < groups;
    // As in find_groups, an end below the one before it counts as that. Ends are not clamped to M: no row is M or more.
    int end = is_group ? static_cast<int>(load_ordered(offsets + group)) : 0;
    uint32_t const of_group = is_group && group > 0 ? load_ordered(sfa_ends + group - 1) : 0;
    end = max(end, before);
    CUTLASS_PRAGMA_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      int const other = __shfl_sync(kWarp, static_cast<uint32_t>(end), (lane() - distance) & 31, 32);
      end = lane() < distance ? end : max(end, other);
    }
    uint32_t const previous = __shfl_sync(kWarp, static_cast<uint32_t>(end), (lane() - 1) & 31, 32);
    uint32_t const of_begin = lane() == 0 ? before : previous;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      int const other = __shfl_sync(kWarp, row, 32 / kRows * i, 32);
      uint32_t const after = __ballot_sync(kWarp, end > other);
      // The first group that ends after the row has it. Without one, what the lanes receive is not used.
      int const from = __ffs(after) - 1 & 31;
      uint32_t const its_begin = __shfl_sync(kWarp, of_begin, from, 32), its_first = __shfl_sync(kWarp, of_group, from, 32);
      if (lane() / (32 / kRows) == i && after != 0 && !is_found) {
        begin = its_begin;
        first = its_first;
        is_found = true;
      }
    }
    before = __shfl_sync(kWarp, static_cast<uint32_t>(end), 31, 32);
    if (__ballot_sync(kWarp, !is_found) == 0) {
      break;
    }
  }
  return row_in_scales(row, begin, first, scale_rows);
}

// Returns the same for a single thread that knows the group.
CUTLASS_DEVICE unsigned padded_row_of(uint32_t const *offsets, uint32_t const *sfa_ends, int group, int scale_rows, unsigned row) {
  int begin = 0;
  CUTLASS_PRAGMA_NO_UNROLL
  for (int before = 0; before < group; ++before) {
    begin = max(begin, static_cast<int>(load_ordered(offsets + before)));
  }
  uint32_t const first = group > 0 ? load_ordered(sfa_ends + group - 1) : 0;
  return row_in_scales(row, begin, first, scale_rows);
}
#endif
