// Stores a value, row-major.
template <int Of, class Element>
struct ValueOutput {
  static constexpr int kOf = Of;
  Element *to;

  struct State {};
  template <class Part, int RowTiles>
  CUTLASS_DEVICE State begin() const {
    return {};
  }
  template <class Part>
  static constexpr bool exchanges() {
    return false;
  }

  template <class Part>
  CUTLASS_DEVICE void store(State, Place const &here, float const (&values)[Part::kValues]) const {
    constexpr int kAtOnce = cute::min(Part::kRun, 128 / cutlass::sizeof_bits<Element>::value);
    CUTLASS_PRAGMA_UNROLL
    for (int slot = 0; slot < Part::kRows; ++slot) {
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < Part::kColumns; c += kAtOnce) {
        cutlass::Array<float, kAtOnce> wide;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          wide[i] = values[Part::index(slot, c + i)];
        }
        cutlass::AlignedArray<Element, kAtOnce> narrow;
        static_cast<cutlass::Array<Element, kAtOnce> &>(narrow) =
            cutlass::NumericArrayConverter<Element, float, kAtOnce>{}(wide);
        computed_before(narrow);
        if (here.contains(Part::row(slot), Part::column(c))) {
          *reinterpret_cast<decltype(narrow) *>(to + here.at(Part::row(slot), Part::column(c))) = narrow;
        }
      }
    }
  }

  template <class Part>
  CUTLASS_DEVICE void end(State, Place const &) const {}
};
