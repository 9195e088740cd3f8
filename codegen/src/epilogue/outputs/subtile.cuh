// Converts an offset of a coordinate layout to (row, column).
template <class Offset>
CUTE_HOST_DEVICE constexpr auto coordinates(Offset const &offset) {
  return cute::make_arithmetic_tuple(cute::_0{}, cute::_0{}) + offset;
}

// Rows of a subtile on Sm120, where threads share rows. The first row is a multiple of this.
constexpr int kSubtileRows = 64;

// The layout of an epilogue subtile in one thread, with one slot per row. On Sm100 a thread has one row. On Sm120 it
// has pairs of columns, 8 columns apart, of two rows that are 8 rows apart, and 4 lanes share a row.
template <class Layout>
struct Subtile {
  static constexpr int kValues = cute::size(Layout{});

  static constexpr int row_in_layout(int i) { return cute::get<0>(coordinates(Layout{}(i))); }
  static constexpr int column_in_layout(int i) { return cute::get<1>(coordinates(Layout{}(i))); }

  static constexpr bool kPairs = kValues > 2 && row_in_layout(2) != 0;
  static constexpr int kRows = kPairs ? 2 : 1;
  static constexpr int kColumns = kValues / kRows;
  // Contiguous columns.
  static constexpr int kRun = kPairs ? 2 : kColumns;
  // The low bits of the lane index select columns of a row, the others select rows.
  static constexpr int kLaneBits = kPairs ? 2 : 0;

  static constexpr int row(int slot) { return 8 * slot; }
  static constexpr int column(int c) { return kPairs ? c / 2 * 8 + c % 2 : c; }
  static constexpr int index(int slot, int c) { return kPairs ? c / 2 * 4 + slot * 2 + c % 2 : c; }

  static constexpr bool agrees() {
    for (int slot = 0; slot < kRows; ++slot) {
      for (int c = 0; c < kColumns; ++c) {
        int const i = index(slot, c);
        if (row_in_layout(i) != row(slot) || column_in_layout(i) != column(c)) {
          return false;
        }
      }
    }
    return true;
  }
  static_assert(agrees(), "the elements of a subtile lie in a thread as nowhere before");
};
