// The layout of a thread's N values: adjacent columns of one row.
template <int N>
struct Part {
  static constexpr bool kPairs = false;
  static constexpr int kRows = 1, kColumns = N, kRun = N, kValues = N, kLaneBits = 0;

  static constexpr int row(int) { return 0; }
  static constexpr int column(int c) { return c; }
  static constexpr int index(int, int c) { return c; }
};

// Below, N is a number of columns of the product. `here` is the place of the N / kPair columns of D made from them.

// Begins the state that a thread keeps for each output, over a tile or over a row of it.
template <int N>
CUTLASS_DEVICE auto begin_outputs(EpilogueArguments const &arguments) {
  return cute::transform(arguments.outputs, [](auto const &output) { return output.template begin<Part<N / kPair>, 1>(); });
}

// Applies the epilogue to N columns of a row.
template <int N>
CUTLASS_DEVICE auto apply_to_columns(EpilogueArguments const &arguments, Place const &here, cutlass::Array<float, N> const &acc) {
  if constexpr (kPair == 2) {
    cutlass::Array<float, N / 2> even, odd;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      even[i] = acc[2 * i];
      odd[i] = acc[2 * i + 1];
    }
    return apply<N / 2>(arguments, here, even, odd);
  } else {
    return apply<N>(arguments, here, acc);
  }
}
template <int N>
CUTLASS_DEVICE void compute_outputs(EpilogueArguments const &arguments, Place const &here,
                                    cutlass::Array<float, N> const &acc, float (&values)[kResults][N / kPair]) {
  auto const results = apply_to_columns<N>(arguments, here, acc);
  CUTLASS_PRAGMA_UNROLL
  for (int result = 0; result < kResults; ++result) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N / kPair; ++i) {
      values[result][i] = results[result][i];
    }
  }
}

// Stores the results for N columns of a row. Unless all outputs are plain values, all lanes of a warp call it together:
// outputs use warp shuffles.
template <int N, class States>
CUTLASS_DEVICE void store_outputs(EpilogueArguments const &arguments, States &states, Place const &here,
                                  float const (&values)[kResults][N / kPair]) {
  cute::for_each(cute::make_seq<cute::tuple_size<Outputs>::value>{}, [&](auto i) {
    constexpr int kIndex = decltype(i)::value;
    auto const &output = cute::get<kIndex>(arguments.outputs);
    using Output = cute::remove_cvref_t<decltype(output)>;
    static_assert(!Output::template exchanges<Part<N / kPair>>(), "a block is in several threads");
    auto &&state = cute::get<kIndex>(states);
    output.template store<Part<N / kPair>>(state, here, values[Output::kOf]);
  });
}

// Applies the epilogue and stores the results.
template <int N, class States>
CUTLASS_DEVICE void write_outputs(EpilogueArguments const &arguments, States &states, Place const &here,
                                  cutlass::Array<float, N> const &acc) {
  float values[kResults][N / kPair];
  compute_outputs<N>(arguments, here, acc, values);
  store_outputs<N>(arguments, states, here, values);
}

// Ends the state of each output; `here` is the thread's row. Unless all outputs are plain values, all lanes of a warp
// call it together.
template <int N, class States>
CUTLASS_DEVICE void end_outputs(EpilogueArguments const &arguments, States &states, Place const &here) {
  cute::for_each(cute::make_seq<cute::tuple_size<Outputs>::value>{}, [&](auto i) {
    constexpr int kIndex = decltype(i)::value;
    auto &&state = cute::get<kIndex>(states);
    cute::get<kIndex>(arguments.outputs).template end<Part<N / kPair>>(state, here);
  });
}
