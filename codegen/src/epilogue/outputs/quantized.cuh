// Quantizes blocks of a row: packed codes, and one scale per block in the padded 128x4 layout.
template <int Of, class Blocks>
struct QuantizedOutput {
  static constexpr int kOf = Of;
  static constexpr int kBlock = Blocks::kBlock;
  static constexpr int kBits = Blocks::Element::kBits;
  uint8_t *codes, *scales;
  // The f32 scale of the tensor; null means 1.
  float const *global;

  struct State {
    float global;
  };
  template <class Part, int RowTiles>
  CUTLASS_DEVICE State begin() const {
    return {global == nullptr ? 1.0f : *global};
  }

  // Columns of a block in one thread. The lanes of a row hold the whole block, or half of it if exchanges().
  template <class Part>
  static constexpr int columns_of_thread() {
    return cute::min(Part::kColumns, kBlock >> Part::kLaneBits);
  }
  template <class Part>
  static constexpr bool exchanges() {
    return columns_of_thread<Part>() << Part::kLaneBits < kBlock;
  }

  template <class Part>
  CUTLASS_DEVICE void store(State const &state, Place const &here, float const (&values)[Part::kValues]) const {
    static_assert(Part::kColumns % columns_of_thread<Part>() == 0, "a subtile ends within a block");
    CUTLASS_PRAGMA_UNROLL
    for (int slot = 0; slot < Part::kRows; ++slot) {
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < Part::kColumns; c += columns_of_thread<Part>()) {
        write<Part>(state, here, values, slot, c, amax<Part>(values, slot, c), true);
      }
    }
  }

  // A block spans two warps, which exchange their amax through shared memory.
  template <class Part, class Synchronize>
  CUTLASS_DEVICE void exchange(State const &state, Place const &here, float const (&values)[Part::kValues],
                               uint32_t *words, Synchronize const &synchronize) const {
    constexpr int kHalf = columns_of_thread<Part>() << Part::kLaneBits;
    static_assert(Part::kColumns == columns_of_thread<Part>() && 2 * kHalf == kBlock);
    int const half = here.n / kHalf % 2;
    uint32_t amaxes[Part::kRows];
    synchronize();  // earlier readers of the buffer are done
    CUTLASS_PRAGMA_UNROLL
    for (int slot = 0; slot < Part::kRows; ++slot) {
      amaxes[slot] = amax<Part>(values, slot, 0);
      if (lane() % (1 << Part::kLaneBits) == 0) {
        words[2 * ((here.m + Part::row(slot)) % kSubtileRows) + half] = amaxes[slot];
      }
    }
    synchronize();
    CUTLASS_PRAGMA_UNROLL
    for (int slot = 0; slot < Part::kRows; ++slot) {
      uint32_t const other = words[2 * ((here.m + Part::row(slot)) % kSubtileRows) + 1 - half];
      amaxes[slot] = cute::max(amaxes[slot], other);
    }
    synchronize();  // D reuses the buffer next
    CUTLASS_PRAGMA_UNROLL
    for (int slot = 0; slot < Part::kRows; ++slot) {
      write<Part>(state, here, values, slot, 0, amaxes[slot], half == 0);
    }
  }

  template <class Part>
  CUTLASS_DEVICE void end(State const &, Place const &) const {}

  // Returns the bits of the amax of a block, whose columns in this thread begin at c. Combines the lanes of the row.
  // NaN wins, because its bits compare above those of infinity.
  template <class Part>
  CUTLASS_DEVICE static uint32_t amax(float const (&values)[Part::kValues], int slot, int c) {
    uint32_t result = 0u;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < columns_of_thread<Part>(); ++i) {
      result = cute::max(result, bits_of(values[Part::index(slot, c + i)]) & kMagnitudeBits);
    }
    return largest_among_lanes<0, Part::kLaneBits>(result);
  }

  template <class Part>
  CUTLASS_DEVICE void write(State const &state, Place const &here, float const (&values)[Part::kValues], int slot, int c,
                            uint32_t amax, bool has_scale) const {
    // N is a multiple of the block, so each block lies entirely inside or outside.
    if (!here.contains(Part::row(slot), Part::column(c))) {
      return;
    }
    uint32_t const scale = Blocks::scale(amax, state.global);
    typename Blocks::Step const step = Blocks::step(scale, amax, state.global);
    int64_t const at = here.at(Part::row(slot), Part::column(c));
    constexpr int kRun = cute::min(Part::kRun, columns_of_thread<Part>());
    CUTLASS_PRAGMA_UNROLL
    for (int run = 0; run < columns_of_thread<Part>(); run += kRun) {
      constexpr int kBytes = kRun * kBits / 8;
      cutlass::AlignedArray<uint8_t, kBytes, cute::min(kBytes, 16)> packed;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRun; i += 2) {
        uint32_t const pair = Blocks::codes(values[Part::index(slot, c + run + i)],
                                            values[Part::index(slot, c + run + i + 1)], step);
        CUTLASS_PRAGMA_UNROLL
        for (int byte = 0; byte < kBits / 4; ++byte) {
          packed[i * kBits / 8 + byte] = static_cast<uint8_t>(pair >> 8 * byte);
        }
      }
      int64_t const code = at + Part::column(c + run) - Part::column(c);
      *reinterpret_cast<decltype(packed) *>(codes + code * kBits / 8) = packed;
    }
    if (has_scale && lane() % (1 << Part::kLaneBits) == 0) {
      int const block = (here.n + Part::column(c)) / kBlock;
      scales[scale_at(here.rows, here.columns / kBlock, here.batch, here.m + Part::row(slot), block)] =
          static_cast<uint8_t>(scale);
    }
  }
};
