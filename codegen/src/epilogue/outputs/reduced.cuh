// Numbers as keys: unsigned integers in the same order, with NaN above all, and 0 for nothing. What memory has is the
// number itself, and one atomic on it as an integer combines two.

// The largest magnitude. Memory begins with zeros.
struct Amax {
  CUTLASS_DEVICE static uint32_t key(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }
  CUTLASS_DEVICE static void combine(float *to, uint32_t key) {
    if (key != 0u) {
      atomicMax(reinterpret_cast<int *>(to), static_cast<int>(key));
    }
  }
};

// The largest number; -0 is below +0. Memory begins with ones in all bits, which as an integer lie below every number
// that is positive, and above every number that is negative, where a larger number is a smaller integer.
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

// The elements of a value combined, and what is left of it: the order does not matter, the result is always the same.
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
    // Of the columns, the one whose number is the lane's: where a lane has no column, nothing.
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
