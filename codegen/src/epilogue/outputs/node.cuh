// The root of CUTLASS's visitor tree: computes all steps once, returns D, and passes results to the other outputs. For
// an output, begin() returns a thread's state for a tile, store() adds the thread's part of a subtile, and end() ends
// the tile. If exchanges(), all threads call exchange() together instead of store(), with shared memory.
template <class Outputs>
struct Writer {
  struct SharedStorage {};
  using Arguments = Outputs;
  using Params = Arguments;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const &, Arguments const &arguments, void *) {
    return arguments;
  }
  template <class ProblemShape>
  static bool can_implement(ProblemShape const &, Arguments const &) {
    return true;
  }
  template <class ProblemShape>
  static size_t get_workspace_size(ProblemShape const &, Arguments const &) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(ProblemShape const &, Arguments const &, void *, cudaStream_t,
                                              cutlass::CudaHostAdapter * = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE Writer() {}
  CUTLASS_HOST_DEVICE Writer(Params const &params, SharedStorage const &) : outputs(&params) {}

  Outputs const *outputs = nullptr;

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(
      cutlass::epilogue::fusion::detail::ProducerLoadArgs<Args...> const &) {
    return cutlass::epilogue::fusion::detail::EmptyProducerLoadCallbacks{};
  }

  // `Coordinates` maps (element of a subtile, subtile) to a position in the tile, relative to the thread's first one.
  template <class Coordinates, class States>
  struct ConsumerStoreCallbacks : cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks {
    using Part = Subtile<decltype(cute::take<0, 3>(Coordinates{}))>;

    CUTLASS_DEVICE ConsumerStoreCallbacks(Outputs const &outputs, Place tile, States states)
        : outputs(outputs), tile(tile), states(states) {}

    Outputs const &outputs;
    Place tile;
    States states;
    float values[kResults][Part::kValues];

    CUTLASS_DEVICE Place place(int epi_m, int epi_n) const {
      auto const at = coordinates(Coordinates{}(cute::_0{}, cute::_0{}, cute::_0{}, epi_m, epi_n));
      Place result = tile.moved(cute::get<0>(at), cute::get<1>(at));
      result.row_tile = epi_m;
      return result;
    }

    template <class Function>
    CUTLASS_DEVICE void for_each_output(Function const &function) {
      cute::for_each(cute::make_seq<cute::tuple_size<Outputs>::value>{}, [&](auto i) {
        auto const &output = cute::get<decltype(i)::value>(outputs);
        function(output, cute::get<decltype(i)::value>(states), values[cute::remove_cvref_t<decltype(output)>::kOf]);
      });
    }

    template <class Accumulator, class... Inputs, int N>
    CUTLASS_DEVICE auto visit(cutlass::Array<Accumulator, N> const &, int epi_v, int epi_m, int epi_n,
                              cutlass::Array<Inputs, N> const &...inputs) {
      auto const results =
          Epilogue<cutlass::Array<float, N>>{}(cutlass::NumericArrayConverter<float, Inputs, N>{}(inputs)...);
      CUTLASS_PRAGMA_UNROLL
      for (int result = 0; result < kResults; ++result) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < N; ++i) {
          values[result][epi_v * N + i] = results[result][i];
        }
      }
      if (epi_v == Part::kValues / N - 1) {
        Place const here = place(epi_m, epi_n);
        for_each_output([&](auto const &output, auto &&state, float const(&of)[Part::kValues]) {
          if constexpr (!cute::remove_cvref_t<decltype(output)>::template exchanges<Part>()) {
            output.template store<Part>(state, here, of);
          }
        });
      }
      if constexpr (kResultOfD < 0) {
        cutlass::Array<ElementD, N> nothing;
        nothing.clear();
        return nothing;
      } else {
        return cutlass::NumericArrayConverter<ElementD, float, N>{}(results[kResultOfD]);
      }
    }

    template <class Buffer, class Synchronize, class Results>
    CUTLASS_DEVICE void reduce(Buffer &&buffer, Synchronize const &synchronize, int epi_m, int epi_n, bool, Results) {
      Place const here = place(epi_m, epi_n);
      for_each_output([&](auto const &output, auto &&state, float const(&of)[Part::kValues]) {
        if constexpr (cute::remove_cvref_t<decltype(output)>::template exchanges<Part>()) {
          auto *words = reinterpret_cast<uint32_t *>(cute::raw_pointer_cast(buffer.data()));
          output.template exchange<Part>(state, here, of, words, synchronize);
        }
      });
    }

    CUTLASS_DEVICE void end() {
      for_each_output([&](auto const &output, auto &&state, float const(&)[Part::kValues]) {
        constexpr int kRowTiles = cute::size<3>(Coordinates{});
        CUTLASS_PRAGMA_UNROLL
        for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
          output.template end<Part>(state, place(row_tile, 0));
        }
      });
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...> const &args) {
    using Coordinates = cute::remove_cvref_t<decltype(args.tCcD.layout())>;
    using Part = Subtile<decltype(cute::take<0, 3>(Coordinates{}))>;
    // Checks, for each bit of the lane index, the offset that it adds to the position of a thread's first element.
    auto const first = [&](auto thread) {
      auto const elements = cute::make_identity_tensor(cute::product_each(cute::shape(args.epi_tile)));
      auto const slice = args.tiled_copy.get_slice(thread);
      if constexpr (ReferenceSrc) {
        return slice.partition_S(elements)(cute::_0{});
      } else {
        return slice.partition_D(elements)(cute::_0{});
      }
    };
    cute::for_each(cute::seq<0, 1, 2, 3, 4>{}, [&](auto bit) {
      constexpr int kBit = decltype(bit)::value;
      using First = decltype(first(cute::Int<(1 << kBit)>{}));
      static_assert(cute::is_static<First>::value, "where a thread's part lies is known only at run time");
      constexpr bool kIsColumn = kBit < Part::kLaneBits;
      static_assert(cute::get<0>(First{}) == (kIsColumn ? 0 : 1 << (kBit - Part::kLaneBits)));
      static_assert(cute::get<1>(First{}) == (kIsColumn ? 2 << kBit : 0));
    });
    constexpr int kRowTiles = cute::size<3>(Coordinates{});
    auto states = cute::transform(*outputs, [](auto const &output) { return output.template begin<Part, kRowTiles>(); });
    int const m = cute::get<0>(args.problem_shape_mnkl), n = cute::get<1>(args.problem_shape_mnkl);
    int const batch = cute::get<3>(args.tile_coord_mnkl);
    Place const tile{batch, m - cute::get<0>(args.residue_tCcD), n - cute::get<1>(args.residue_tCcD), m, n, 0};
    return ConsumerStoreCallbacks<Coordinates, decltype(states)>(*outputs, tile, states);
  }
};
