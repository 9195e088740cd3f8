// Where a thread's part of a subtile is: its first element, in the matrix that it is of.
struct Place {
  int batch, m, n;
  // Of a matrix.
  int rows, columns;
  // Which of the subtiles above each other it is.
  int row_tile;

  CUTLASS_DEVICE bool contains(int row, int column) const { return m + row < rows && n + column < columns; }
  // Rows of all matrices before it.
  CUTLASS_DEVICE int64_t row(int slot_row) const {
    return static_cast<int64_t>(batch) * rows + m + slot_row;
  }
};

CUTLASS_DEVICE int lane() { return static_cast<int>(threadIdx.x % 32); }

// The largest among the lanes that differ in these bits.
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
