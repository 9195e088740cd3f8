// Maps numbers to keys: unsigned integers in the same order, with NaN above all and 0 for no element. Memory holds the
// number itself, and one integer atomic combines a key with it.

// The largest magnitude. Memory starts as zeros.
struct Amax {
  CUTLASS_DEVICE static uint32_t key(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }
  CUTLASS_DEVICE static void combine(float *to, uint32_t key) {
    if (key != 0u) {
      atomicMax(reinterpret_cast<int *>(to), static_cast<int>(key));
    }
  }
};

// The largest number; -0 is below +0. Memory starts as all ones. As a signed integer, that is below every positive
// number. As an unsigned integer, it is above every negative number, and larger negative numbers are smaller integers.
struct Max {
  CUTLASS_DEVICE static uint32_t key(float x) {
    uint32_t const bits = __float_as_uint(x);
    return x != x ? 0xFFFFFFFFu : bits >> 31 != 0u ? ~bits : bits | 0x80000000u;
  }
  CUTLASS_DEVICE static void combine(float *to, uint32_t key) {
    if (key >> 31 != 0u) {
      atomicMax(reinterpret_cast<int *>(to), static_cast<int>(key & 0x7FFFFFFFu));
    } else if (key != 0u) {
      atomicMin(reinterpret_cast<unsigned *>(to), ~key);
    }
  }
};

enum class Left { kScalar, kRow, kColumn };

// Reduces a value to `Shape`. Combining keys is associative and commutative, so the result is deterministic.
template <int Of, class Kind, Left Shape>
struct ReducedOutput {
  static constexpr int kOf = Of;
  float *to;

  template <int Keys>
  struct State {
    uint32_t keys[Keys];
  };
  template <class Part, int RowTiles>
  CUTLASS_DEVICE auto begin() const {
    State<Shape == Left::kColumn ? RowTiles * Part::kRows : 1> state;
    cute::for_each(cute::make_seq<sizeof(state) / sizeof(uint32_t)>{}, [&](auto i) { state.keys[i] = 0u; });
    return state;
  }
  template <class Part>
  static constexpr bool exchanges() {
    return false;
  }

  template <class Part, class State>
  CUTLASS_DEVICE void store(State &state, Place const &here, float const (&values)[Part::kValues]) const {
    // The key of the column whose index modulo 32 is the lane index; 0 for a lane without a column.
    uint32_t own = 0u;
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < Part::kColumns; ++c) {
      uint32_t of_column = 0u;
      CUTLASS_PRAGMA_UNROLL
      for (int slot = 0; slot < Part::kRows; ++slot) {
        bool const inside = here.contains(Part::row(slot), Part::column(c));
        uint32_t const key = inside ? Kind::key(values[Part::index(slot, c)]) : 0u;
        if constexpr (Shape == Left::kColumn) {
          uint32_t &of_row = state.keys[here.row_tile * Part::kRows + slot];
          of_row = cute::max(of_row, key);
        }
        of_column = cute::max(of_column, key);
      }
      if constexpr (Shape == Left::kScalar) {
        state.keys[0] = cute::max(state.keys[0], of_column);
      }
      if constexpr (Shape == Left::kRow) {
        of_column = largest_among_lanes<Part::kLaneBits, 5>(of_column);
        if constexpr (Part::kPairs) {
          if (lane() < 4) {
            Kind::combine(to + here.n + Part::column(c), of_column);
          }
        } else {
          own = lane() == c % 32 ? of_column : own;
          if (c % 32 == 31 || c + 1 == Part::kColumns) {
            Kind::combine(to + here.n + c / 32 * 32 + lane(), own);
            own = 0u;
          }
        }
      }
    }
  }

  template <class Part, class State>
  CUTLASS_DEVICE void end(State &state, Place const &here) const {
    if constexpr (Shape == Left::kScalar) {
      uint32_t const key = largest_among_lanes<0, 5>(state.keys[0]);
      if (lane() == 0 && here.row_tile == 0) {
        Kind::combine(to, key);
      }
    }
    if constexpr (Shape == Left::kColumn) {
      CUTLASS_PRAGMA_UNROLL
      for (int slot = 0; slot < Part::kRows; ++slot) {
        uint32_t const key = largest_among_lanes<0, Part::kLaneBits>(state.keys[here.row_tile * Part::kRows + slot]);
        if (lane() % (1 << Part::kLaneBits) == 0) {
          Kind::combine(to + here.row(Part::row(slot)), key);
        }
      }
    }
  }
};
