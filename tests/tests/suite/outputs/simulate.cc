// Runs the node that writes a kernel's outputs on the host. The threads of a tile take turns, and those of a warp
// wait for each other where they exchange values. Reads values from the standard input and writes the outputs to
// the standard output.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "cutlass/cutlass.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

namespace simulation {

constexpr int kStack = 256 << 10, kThreads = 256;

// Threads that wait for each other: a warp, or a CTA.
struct Group {
  int size = 0, arrived = 0;
  unsigned generation = 0;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStack);
  bool done = false;
};

ucontext_t scheduler;
std::vector<Fiber> fibers(kThreads);
Group warps[kThreads / 32], block;
uint32_t slots[kThreads];
std::function<void()> body;
struct Index {
  int x;
} thread;

void wait(Group &group) {
  unsigned const generation = group.generation;
  if (++group.arrived == group.size) {
    group.arrived = 0;
    ++group.generation;
    return;
  }
  int const own = thread.x;
  while (group.generation == generation) {
    swapcontext(&fibers[own].context, &scheduler);
    thread.x = own;
  }
}

void enter() {
  int const own = thread.x;
  body();
  fibers[own].done = true;
}

// Runs the body in each thread. Threads switch only where they wait.
void run(int threads, std::function<void()> of_thread) {
  body = std::move(of_thread);
  block = {threads};
  for (auto &warp : warps) {
    warp = {32};
  }
  for (int i = 0; i < threads; ++i) {
    fibers[i].done = false;
    getcontext(&fibers[i].context);
    fibers[i].context.uc_stack.ss_sp = fibers[i].stack.data();
    fibers[i].context.uc_stack.ss_size = kStack;
    fibers[i].context.uc_link = &scheduler;
    makecontext(&fibers[i].context, enter, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (int i = 0; i < threads; ++i) {
      if (!fibers[i].done) {
        left = true;
        thread.x = i;
        swapcontext(&scheduler, &fibers[i].context);
      }
    }
  }
}

uint32_t exchange(uint32_t x, std::function<uint32_t(uint32_t const *)> const &take) {
  int const own = thread.x;
  slots[own] = x;
  wait(warps[own / 32]);
  uint32_t const result = take(slots + own / 32 * 32);
  wait(warps[own / 32]);
  return result;
}

}  // namespace simulation

// Definitions that the device code expects.
#define threadIdx simulation::thread
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t x, int bit) {
  int const lane = simulation::thread.x % 32;
  return simulation::exchange(x, [&](uint32_t const *warp) { return warp[lane ^ bit]; });
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t x) {
  return simulation::exchange(x, [&](uint32_t const *warp) { return *std::max_element(warp, warp + 32); });
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline void atomicMax(int *to, int x) { *to = std::max(*to, x); }
inline void atomicMin(unsigned *to, unsigned x) { *to = std::min(*to, x); }

namespace fourfold {

using ElementD = cutlass::bfloat16_t;
constexpr int kResults = 2, kResultOfD = 0;
constexpr int kPair = 1;

// The value, and half of it.
template <class T>
struct Epilogue;
template <int N>
struct Epilogue<cutlass::Array<float, N>> {
  auto operator()(cutlass::Array<float, N> const &acc) const {
    cute::array<cutlass::Array<float, N>, 2> result;
    for (int i = 0; i < N; ++i) {
      result[0][i] = acc[i];
      result[1][i] = 0.5f * acc[i];
    }
    return result;
  }
};

FUNCTIONS

// The distribution of subtiles of a 128 x 64 tile over threads in the collectives of each family.
using cute::_0;
using cute::_1;
using cute::_2;
using cute::_32;
using cute::_64;
using cute::_8;
template <int I>
using Row = cute::ScaledBasis<cute::Int<I>, 0>;
template <int I>
using Column = cute::ScaledBasis<cute::Int<I>, 1>;

struct Sm100 {
  static constexpr int kThreads = 128, kFragment = 32, kRowTiles = 1, kColumnTiles = 2;
  using Coordinates = cute::Layout<cute::Shape<cute::Shape<_32, _1>, _1, _1, _1, _2>,
                                   cute::Stride<cute::Stride<Column<1>, _0>, _0, _0, _0, Column<32>>>;
  static int row(int thread) { return thread; }
  static int column(int) { return 0; }
};

struct Sm120 {
  static constexpr int kThreads = 256, kFragment = 4, kRowTiles = 2, kColumnTiles = 2;
  using Coordinates = cute::Layout<cute::Shape<cute::Shape<_2, _2>, _1, _2, _2, _2>,
                                   cute::Stride<cute::Stride<Column<1>, Row<8>>, _0, Column<8>, Row<64>, Column<32>>>;
  static int row(int thread) { return thread / 32 % 4 * 16 + thread % 32 / 4; }
  static int column(int thread) { return thread / 128 * 16 + thread % 4 * 2; }
};

struct Buffer {
  uint32_t *words;
  uint32_t *data() const { return words; }
};

struct Problem {
  int l, m, n;
};

// Kernels for sm_90a do not use CUTLASS: a thread has 32 columns of its row at a time.
struct Sm90 {};

using Outputs =
    cute::tuple<QuantizedOutput<0, Nvfp4>, QuantizedOutput<1, Mx<E4m3, false>>, QuantizedOutput<0, Mx<E2m1, true>>,
                ValueOutput<1, float>, ValueOutput<0, cutlass::bfloat16_t>, ReducedOutput<0, Amax, Left::kScalar>,
                ReducedOutput<1, Amax, Left::kRow>, ReducedOutput<0, Max, Left::kScalar>,
                ReducedOutput<0, Max, Left::kRow>, ReducedOutput<0, Max, Left::kColumn>>;
struct EpilogueArguments {
  Outputs outputs;
};
template <int N>
auto apply(EpilogueArguments const &, Place const &, cutlass::Array<float, N> const &acc) {
  return Epilogue<cutlass::Array<float, N>>{}(acc);
}

ROWS_OF_THREADS

// Runs all tiles in sequence.
void run_rows(Problem const &problem, std::vector<float> const &values, Outputs const &outputs) {
  constexpr int kRows = 64, kColumns = 64, N = 32;
  EpilogueArguments const arguments{outputs};
  for (int l = 0; l < problem.l; ++l) {
    for (int m = 0; m < problem.m; m += kRows) {
      for (int n = 0; n < problem.n; n += kColumns) {
        simulation::run(kRows, [&] {
          Place const first{l, m + simulation::thread.x, n, problem.m, problem.n, 0};
          auto states = begin_outputs<N>(arguments);
          for (int right = 0; right < kColumns; right += N) {
            Place const here = first.moved(0, right);
            cutlass::Array<float, N> acc;
            for (int i = 0; i < N; ++i) {
              // Elements outside of the matrix must not matter.
              acc[i] = here.contains(0, i) ? values[here.row(0) * problem.n + here.n + i] : i % 2 == 0 ? NAN : 1e30f;
            }
            write_outputs<N>(arguments, states, here, acc);
          }
          end_outputs<N>(arguments, states, first);
        });
      }
    }
  }
}

// Runs all tiles in sequence, and returns the values that CUTLASS would store as D.
template <class Family, class Outputs>
std::vector<float> run(Problem const &problem, std::vector<float> const &values, Outputs const &outputs) {
  std::vector<float> d(values.size(), 0.0f);
  std::vector<uint32_t> shared(1024);
  using Coordinates = typename Family::Coordinates;
  using Part = Subtile<decltype(cute::take<0, 3>(Coordinates{}))>;
  for (int l = 0; l < problem.l; ++l) {
    for (int m = 0; m < problem.m; m += 128) {
      for (int n = 0; n < problem.n; n += 64) {
        simulation::run(Family::kThreads, [&] {
          int const thread = simulation::thread.x;
          Place const tile{l, m + Family::row(thread), n + Family::column(thread), problem.m, problem.n, 0};
          auto states = cute::transform(
              outputs, [](auto const &output) { return output.template begin<Part, Family::kRowTiles>(); });
          using Callbacks =
              typename Writer<Outputs>::template ConsumerStoreCallbacks<Coordinates, decltype(states)>;
          auto callbacks = std::make_unique<Callbacks>(outputs, tile, states);
          for (int epi_n = 0; epi_n < Family::kColumnTiles; ++epi_n) {
            for (int epi_m = 0; epi_m < Family::kRowTiles; ++epi_m) {
              for (int epi_v = 0; epi_v < Part::kValues / Family::kFragment; ++epi_v) {
                cutlass::Array<float, Family::kFragment> fragment;
                // Elements outside of the matrix must not matter.
                auto const at = [&](int i) -> float const * {
                  Place const here = callbacks->place(epi_m, epi_n);
                  int const element = epi_v * Family::kFragment + i;
                  int const row = here.m + Part::row_in_layout(element), column = here.n + Part::column_in_layout(element);
                  bool const inside = row < problem.m && column < problem.n;
                  return inside ? &values[(static_cast<size_t>(l) * problem.m + row) * problem.n + column] : nullptr;
                };
                for (int i = 0; i < Family::kFragment; ++i) {
                  fragment[i] = at(i) == nullptr ? (i % 2 == 0 ? NAN : 1e30f) : *at(i);
                }
                auto const of_d = callbacks->visit(fragment, epi_v, epi_m, epi_n, fragment);
                for (int i = 0; i < Family::kFragment; ++i) {
                  if (at(i) != nullptr) {
                    d[at(i) - values.data()] = static_cast<float>(of_d[i]);
                  }
                }
              }
              callbacks->reduce(Buffer{shared.data()}, [] { simulation::wait(simulation::block); }, epi_m, epi_n, false, 0);
            }
          }
          callbacks->end();
        });
      }
    }
  }
  return d;
}

// Memory with a guard behind it.
template <class T>
struct Guarded {
  static constexpr size_t kGuard = 256;
  size_t count;
  std::vector<T> data;
  Guarded(size_t count, int byte) : count(count), data(count + kGuard) {
    std::memset(data.data(), byte, count * sizeof(T));
    std::memset(data.data() + count, 0xEE, kGuard * sizeof(T));
  }
  T *get() { return data.data(); }
  void print() const {
    auto const *bytes = reinterpret_cast<unsigned char const *>(data.data() + count);
    for (size_t i = 0; i < kGuard * sizeof(T); ++i) {
      if (bytes[i] != 0xEE) {
        std::fprintf(stderr, "written behind the end\n");
        std::exit(3);
      }
    }
    std::fwrite(data.data(), sizeof(T), count, stdout);
  }
};

template <class Family>
void all(Problem const &problem, float const &global, std::vector<float> const &values) {
  size_t const l = problem.l, m = problem.m, n = problem.n, elements = l * m * n;
  constexpr int kUnwritten = 0xEE;
  Guarded<uint8_t> nv(elements / 2, kUnwritten), mx(elements, kUnwritten), mx4(elements / 2, kUnwritten);
  Guarded<uint8_t> nv_scales(l * scale_bytes(m, n / 16), 0), mx_scales(l * scale_bytes(m, n / 32), 0);
  Guarded<uint8_t> mx4_scales(l * scale_bytes(m, n / 32), 0);
  Guarded<float> f32(elements, kUnwritten), amax(1, 0), amax_row(n, 0), max(1, 0xFF), max_row(n, 0xFF), max_column(l * m, 0xFF);
  Guarded<cutlass::bfloat16_t> bf16(elements, kUnwritten);
  auto const outputs = cute::make_tuple(
      QuantizedOutput<0, Nvfp4>{nv.get(), nv_scales.get(), &global},
      QuantizedOutput<1, Mx<E4m3, false>>{mx.get(), mx_scales.get(), nullptr},
      QuantizedOutput<0, Mx<E2m1, true>>{mx4.get(), mx4_scales.get(), nullptr}, ValueOutput<1, float>{f32.get()},
      ValueOutput<0, cutlass::bfloat16_t>{bf16.get()}, ReducedOutput<0, Amax, Left::kScalar>{amax.get()},
      ReducedOutput<1, Amax, Left::kRow>{amax_row.get()}, ReducedOutput<0, Max, Left::kScalar>{max.get()},
      ReducedOutput<0, Max, Left::kRow>{max_row.get()}, ReducedOutput<0, Max, Left::kColumn>{max_column.get()});
  std::vector<float> d;
  if constexpr (cute::is_same_v<Family, Sm90>) {
    run_rows(problem, values, outputs);
    d.assign(bf16.data.begin(), bf16.data.begin() + elements);
  } else {
    d = run<Family>(problem, values, outputs);
  }
  nv.print(), nv_scales.print(), mx.print(), mx_scales.print(), mx4.print(), mx4_scales.print();
  f32.print(), bf16.print();
  amax.print(), amax_row.print(), max.print(), max_row.print(), max_column.print();
  std::fwrite(d.data(), sizeof(float), d.size(), stdout);
}

}  // namespace fourfold

int main(int, char **arguments) {
  fourfold::Problem const problem{std::atoi(arguments[2]), std::atoi(arguments[3]), std::atoi(arguments[4])};
  std::vector<float> values(static_cast<size_t>(problem.l) * problem.m * problem.n);
  float global;
  if (std::fread(&global, sizeof(float), 1, stdin) != 1 ||
      std::fread(values.data(), sizeof(float), values.size(), stdin) != values.size()) {
    return 2;
  }
  if (std::strcmp(arguments[1], "sm100") == 0) {
    fourfold::all<fourfold::Sm100>(problem, global, values);
  } else if (std::strcmp(arguments[1], "sm90") == 0) {
    fourfold::all<fourfold::Sm90>(problem, global, values);
  } else {
    fourfold::all<fourfold::Sm120>(problem, global, values);
  }
}
