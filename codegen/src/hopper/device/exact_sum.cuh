// Computes an element of A · B again, in f64, if its sum is infinity or NaN.
//
// MXFP8 with large scales exceeds bf16 (decode.cuh), although products with small elements of the other operand may
// not. Operands that bf16 cannot hold are infinity or NaN, and so is every sum with them. Thus the thread that stores a
// sum that is not finite computes it from the operands. FP4 has no scale with which bf16 cannot hold it.

constexpr bool kRecomputes = kBitsA == 8 || kBitsB == 8;

#ifndef FOURFOLD_HOST
// Returns whether x is infinity or NaN.
CUTLASS_DEVICE bool is_not_finite(float x) { return (__float_as_uint(x) & 0x7F800000u) == 0x7F800000u; }

// Returns element i of a row of codes.
template <Element kElement>
CUTLASS_DEVICE double element_at(uint8_t const *row, unsigned i) {
  if constexpr (kElement == Element::kE2m1) {
    // With the sign in bit 31 and the magnitude in bits 24 to 22, a code is v · 2^-126 in f32.
    constexpr float kCodeFactor = power_of_two(126);
    uint32_t const code = row[i / 2] >> i % 2 * 4;
    return __uint_as_float((code & 8) << 28 | (code & 7) << 22) * kCodeFactor;
  } else if constexpr (bits_of(kElement) == 16) {
    uint32_t const bits = reinterpret_cast<uint16_t const *>(row)[i];
    return kElement == Element::kF16 ? wide(bits).x : __uint_as_float(bits << 16);
  } else {
    uint32_t const code = row[i];
    return wide(kElement == Element::kE4m3 ? e4m3_to_halves(code) : code << 8).x;
  }
}

// Returns the value of a ue8m0 scale.
CUTLASS_DEVICE double value_of_ue8m0(uint32_t byte) {
  return __uint_as_float(byte == 255 ? 0x7FFFFFFFu : byte == 0 ? 0x00400000u : byte << 23);
}

// Returns a ue8m0 scale of a row of a matrix, by its index along K.
CUTLASS_DEVICE double mx_scale_at(uint8_t const *scales, unsigned row, unsigned block, unsigned atoms_k) {
  uint64_t const atom = static_cast<uint64_t>(row / 128) * atoms_k + block / 4;
  return value_of_ue8m0(scales[atom * kAtomBytes + row % 32 * 16 + row % 128 / 32 * 4 + block % 4]);
}

// Returns the sum of an element of D, in the order of K, rounded once.
CUTLASS_DEVICE float exact_sum(Parameters const &p, int batch, int m, int n) {
  uint64_t const row_a = kGrouped ? m : static_cast<uint64_t>(batch) * p.m + m, row_b = static_cast<uint64_t>(batch) * p.n + n;
  uint64_t const row_bytes = p.row_bytes, of_scales = static_cast<uint64_t>(p.atoms_k) * kAtomBytes;
  uint8_t const *const a = p.a + row_a * (row_bytes * kBitsA / kBitsB), *const b = p.b + row_b * row_bytes;
  uint8_t const *const sfa = p.sfa + batch * p.atoms_m * of_scales, *const sfb = p.sfb + batch * p.atoms_n * of_scales;
  unsigned row_of_scales = kMasked ? m - batch * p.group_rows : m;
  if constexpr (kPaddedSfa) {
    // Without scales, sums are those of wrong ends.
    if (p.scale_rows == 0) {
      return __uint_as_float(0x7FFFFFFFu);
    }
    row_of_scales = padded_row_of(p.offsets, p.sfa_ends, batch, p.scale_rows, m);
  }
  double sum = 0;
  CUTLASS_PRAGMA_NO_UNROLL
  for (unsigned block = 0; block < static_cast<unsigned>(p.k) / kScaleVector; ++block) {
    double const of_a = !kHasScalesA ? 1
                        : kLinearSfa ? value_of_ue8m0(p.sfa[row_a * (p.k / kScaleVector) + block])
                        : kPaddedSfa ? mx_scale_at(p.sfa, row_of_scales, block, p.atoms_k)
                                     : mx_scale_at(sfa, row_of_scales, block, p.atoms_k);
    double const scale = of_a * mx_scale_at(sfb, n, block, p.atoms_k);
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = block * kScaleVector; i < (block + 1) * kScaleVector; ++i) {
      // Exact: products have at most 15 significant bits.
      sum += element_at<kElementA>(a, i) * element_at<kElementB>(b, i) * scale;
    }
  }
  return static_cast<float>(sum);
}

// Computes again those of N sums, already times kFactor, that are not finite. `sum_at` returns a sum by its index, and
// `place_of` its row and column. Sums outside of D, and of rows from `rows` on, do not change. A loop selects one sum at a
// time: registers cannot be indexed.
template <int N, class SumAt, class PlaceOf>
CUTLASS_DEVICE void recompute(Parameters const &p, int batch, int rows, SumAt const &sum_at, PlaceOf const &place_of) {
  bool any = false;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; ++i) {
    any = any || (is_not_finite(sum_at(i)) && place_of(i).x < rows);
  }
  if (!any) {
    return;
  }
  keep_branch();
  CUTLASS_PRAGMA_NO_UNROLL
  for (int i = 0; i < N; ++i) {
    float sum = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < N; ++j) {
      sum = i == j ? sum_at(j) : sum;
    }
    int2 const place = place_of(i);
    if (is_not_finite(sum) && place.x < rows && place.y < p.n) {
      sum = exact_sum(p, batch, place.x, place.y);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < N; ++j) {
      sum_at(j) = i == j ? sum : sum_at(j);
    }
  }
}
#endif
