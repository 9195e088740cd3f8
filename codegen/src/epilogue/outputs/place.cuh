// The position of a thread's part of a subtile: the coordinates of its first element.
struct Place {
  int const batch, m, n;
  // The extents of one matrix.
  int const rows, columns;
  // The index of the subtile along M.
  int row_tile;
  // The linear index over all matrices. `moved` only adds an offset to it, which saves a 64-bit product per place.
  int64_t const element;

  CUTLASS_DEVICE Place(int batch, int m, int n, int rows, int columns, int row_tile)
      : batch(batch), m(m), n(n), rows(rows), columns(columns), row_tile(row_tile), element(row(0) * columns + n) {}

  CUTLASS_DEVICE Place moved(int down, int right) const {
    return {*this, down, right};
  }

  CUTLASS_DEVICE bool contains(int row, int column) const { return m + row < rows && n + column < columns; }
  // The linear row over all matrices.
  CUTLASS_DEVICE int64_t row(int slot_row) const {
    return static_cast<int64_t>(batch) * rows + m + slot_row;
  }
  // The linear index of an element of the part.
  CUTLASS_DEVICE int64_t at(int slot_row, int column) const {
    return element + static_cast<int64_t>(columns) * slot_row + column;
  }

 private:
  CUTLASS_DEVICE Place(Place const &from, int down, int right)
      : batch(from.batch),
        m(from.m + down),
        n(from.n + right),
        rows(from.rows),
        columns(from.columns),
        row_tile(from.row_tile),
        element(from.at(down, right)) {}
};

// Pins the computation of `words` before a branch. Only one store then depends on the branch, and the compiler
// predicates it instead of jumping.
template <class Words>
CUTLASS_DEVICE void computed_before(Words &words) {
  if constexpr (sizeof(words) % 4 == 0) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < static_cast<int>(sizeof(words)) / 4; ++i) {
      asm volatile("" : "+r"(reinterpret_cast<uint32_t *>(&words)[i]));
    }
  }
}

CUTLASS_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }

// Returns the largest value among the lanes that differ only in bits FirstBit to EndBit - 1.
template <int FirstBit, int EndBit>
CUTLASS_DEVICE uint32_t largest_among_lanes(uint32_t x) {
  constexpr uint32_t kWarp = 0xFFFFFFFFu;
  if constexpr (FirstBit == 0 && EndBit == 5) {
    return __reduce_max_sync(kWarp, x);
  } else {
    CUTLASS_PRAGMA_UNROLL
    for (int bit = FirstBit; bit < EndBit; ++bit) {
      x = cute::max(x, __shfl_xor_sync(kWarp, x, 1 << bit));
    }
    return x;
  }
}
