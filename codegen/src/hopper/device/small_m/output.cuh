// Stores the sums of small-M kernels.

#ifndef FOURFOLD_HOST
// Returns epilogue arguments whose scalars are loaded after griddepcontrol.wait. The compiler may move read-only loads
// above the wait. The addresses therefore depend on a zero that is stored to shared memory after it.
CUTLASS_DEVICE EpilogueArguments small_m_epilogue(Parameters const &parameters, uint32_t zeros) {
  EpilogueArguments epilogue = parameters.epilogue;
  unsigned const zero = load_words(zeros).x;
  for_each_scalar(epilogue, [&](auto const *&number) { number += zero; });
  return epilogue;
}

// Returns the first column of D of a vector. A unit has four vectors.
CUTLASS_DEVICE int small_m_column(unsigned first_unit, unsigned vector) {
  unsigned const unit = first_unit + vector / 4, quarter = vector % 4 * 32;
  return static_cast<int>(kSimple ? unit / 4 * 128 + quarter + unit % 4 * 8 : unit * 128 + quarter);
}

// Stores this CTA's vectors. A vector is N columns of a row of D, and a unit has four. `sum_of` returns the sums of a
// vector of a row below M.
template <int kTileM, class V, class IsMine, class SumOf>
CUTLASS_DEVICE void store_small_m(Parameters const &parameters, unsigned first_unit, unsigned units, unsigned batch, uint32_t zeros,
                                  IsMine const &is_own, SumOf const &sum_of) {
  constexpr int N = V::kWidth;
  SmallMParameters const &p = parameters.small_m;
  EpilogueArguments const epilogue = small_m_epilogue(parameters, zeros);
  // With blocks, the lanes of a warp have the same vector of all rows of A.
  constexpr unsigned kLanes = kSimple ? kTileM : 32;
  unsigned const items = units * 4 * kLanes;
  auto states = begin_outputs<N>(epilogue);
  CUTLASS_PRAGMA_NO_UNROLL
  for (unsigned first = 0; first < items; first += V::kThreads) {
    unsigned const item = first + threadIdx.x, vector = item / kLanes;
    int const m = static_cast<int>(item % kLanes);
    bool const is_mine = item < items && is_own(vector), is_there = is_mine && m < p.m;
    cutlass::Array<float, N> sum;
    sum.clear();
    if (is_there) {
      sum = sum_of(vector, static_cast<unsigned>(m));
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < N; ++i) {
        sum[i] *= kFactor;
      }
    }
    if constexpr (kRecomputes) {
      int const first_n = small_m_column(first_unit, vector);
      recompute<N>(parameters, static_cast<int>(batch), parameters.m, [&](int i) -> float & { return sum[i]; },
                   [&](int i) { return int2{is_there ? m : p.m, first_n + i}; });
    }
    Place const here{static_cast<int>(batch), is_there ? m : p.m, small_m_column(first_unit, vector) / kPair,
                     p.m, static_cast<int>(p.n) / kPair, 0};
    if constexpr (kSimple) {
      if (is_there && here.contains(0, 0)) {
        write_outputs<N>(epilogue, states, here, sum);
      }
    } else if (is_mine) {
      // All lanes work together, as outputs require. A lane without a row of A gets one outside of D.
      write_outputs<N>(epilogue, states, here, sum);
      end_outputs<N>(epilogue, states, here);
    }
  }
}
#endif
