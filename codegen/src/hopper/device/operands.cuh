// Reads operands of the epilogue for N adjacent columns of a row of D.

// Broadcasts a scalar. The read-only load lets the compiler issue it once for all of D.
template <int N, class T>
CUTLASS_DEVICE cutlass::Array<float, N> read_scalar(T const *scalar) {
  using Bits = cute::conditional_t<sizeof(T) == 4, float, cute::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>;
  Bits const bits = __ldg(reinterpret_cast<Bits const *>(scalar));
  cutlass::Array<float, N> result;
  result.fill(static_cast<float>(reinterpret_cast<T const &>(bits)));
  return result;
}

// Loads up to 16 bytes at a time: the constraints of the plan align rows to 16 bytes. Columns beyond D read as 0, and so
// does a row that is not there. If kWhole, a load is of columns of D, or of none: it is predicated, without a branch, so
// that the compiler issues the loads of several rows before it uses one.
template <int N, bool kWhole, class T>
CUTLASS_DEVICE cutlass::Array<float, N> read_columns(T const *row, Place const &here, bool is_there) {
  constexpr int kAtOnce = cute::min(N, 128 / cutlass::sizeof_bits<T>::value);
  cutlass::Array<float, N> result;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; i += kAtOnce) {
    cutlass::AlignedArray<T, kAtOnce> part;
    if constexpr (kWhole) {
      part.clear();
      if (is_there && here.n + i < here.columns) {
        part = *reinterpret_cast<cutlass::AlignedArray<T, kAtOnce> const *>(row + here.n + i);
      }
    } else if (here.n + i + kAtOnce <= here.columns) {
      part = *reinterpret_cast<cutlass::AlignedArray<T, kAtOnce> const *>(row + here.n + i);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        part[j] = here.n + i + j < here.columns ? row[here.n + i + j] : T(0);
      }
    }
    cutlass::Array<float, kAtOnce> const wide = cutlass::NumericArrayConverter<float, T, kAtOnce>{}(part);
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kAtOnce; ++j) {
      result[i + j] = wide[j];
    }
  }
  return result;
}

// Reads one value per column, shared by all rows and matrices.
template <int N, class T>
CUTLASS_DEVICE cutlass::Array<float, N> read_row(T const *row, Place const &here) {
  // N of D is a multiple of 4, as its rows are aligned to 16 bytes.
  return read_columns<N, (N <= 4)>(row, here, true);
}

// Reads one value per row of each matrix.
template <int N, class T>
CUTLASS_DEVICE cutlass::Array<float, N> read_column(T const *column, Place const &here) {
  cutlass::Array<float, N> result;
  result.fill(here.m < here.rows ? static_cast<float>(column[here.row(0)]) : 0.0f);
  return result;
}

// Reads one value per element.
template <int N, class T>
CUTLASS_DEVICE cutlass::Array<float, N> read_matrix(T const *matrix, Place const &here) {
  return read_columns<N, true>(matrix + (here.element - here.n), here, here.m < here.rows);
}
