// Runs the kernel that fills the tables of groups, with a thread of the host for each of its threads, and compares each
// table with its definition. The types of CUTLASS are replaced by those that the kernel needs.

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

using std::max;
using std::min;

struct Shape3 {
  int m, n, k;
  bool operator==(Shape3 const &) const = default;
};
struct Shape4 {
  int m, n, k, l;
};
struct Stride {
  int64_t value;
};
struct Layout {
  int rows, columns;
  bool operator==(Layout const &) const = default;
};

namespace cutlass {
struct float_e2m1_t {};
struct float_ue4m3_t {};
template <class T>
struct sizeof_bits;
template <>
struct sizeof_bits<float_e2m1_t> {
  static constexpr int value = 4;
};
}  // namespace cutlass

namespace cute {
template <class T>
using remove_cvref_t = std::remove_cvref_t<T>;
inline Shape3 make_shape(int m, int n, int k) { return {m, n, k}; }
inline Shape4 make_shape(int m, int n, int k, int l) { return {m, n, k, l}; }
template <int I>
int64_t &get(Stride &stride) {
  static_assert(I == 0);
  return stride.value;
}
}  // namespace cute

using ElementC = uint16_t;
using ElementD = float;

struct ScaleConfig {
  static Layout tile_atom_to_shape_SFA(Shape4 shape) { return {shape.m, shape.k}; }
  static Layout tile_atom_to_shape_SFB(Shape4 shape) { return {shape.n, shape.k}; }
};

struct GemmKernel {
  struct ProblemShape {
    using UnderlyingProblemShape = Shape3;
  };
  struct MainloopArguments {
    uint8_t const **ptr_A;
    Stride *dA;
    uint8_t const **ptr_B;
    Stride *dB;
    uint8_t const **ptr_SFA;
    Layout *layout_SFA;
    uint8_t const **ptr_SFB;
    Layout *layout_SFB;
  };
  struct EpilogueArguments {
    ElementC const **ptr_C;
    ElementD **ptr_D;
  };
  using StrideD = Stride *;
};

constexpr int kThreads = 512;
static std::barrier<> barrier(kThreads);
static void __syncthreads() { barrier.arrive_and_wait(); }
struct Index {
  unsigned x;
};
static thread_local Index threadIdx;
static Index blockIdx, gridDim;

#define __CUDA_ARCH__ 900
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)
#define CUTLASS_GRID_CONSTANT
#define CUTLASS_PRAGMA_UNROLL

KERNEL

constexpr bool kMasked = IS_MASKED, kPadded = IS_PADDED, kBlocked = IS_BLOCKED;

static std::mt19937 engine;
static int below(int bound) { return static_cast<int>(engine() % static_cast<unsigned>(bound)); }

static int failed(char const *what, int group) {
  std::printf("%s of group %d\n", what, group);
  return 1;
}

// Members that only some kernels have.
template <class P>
void set_scales(P &p, uint8_t *scales, int const *sfa_ends, int scale_tiles) {
  if constexpr (kPadded) {
    p.sfa_ends = sfa_ends, p.scale_tiles = scale_tiles;
  } else if constexpr (!kBlocked) {
    p.tables.scales = scales;
  }
}

// The ends of groups, also such that are not valid.
static std::vector<int> ends(int groups, int rows, int distribution) {
  std::vector<int> result(groups);
  int const taker = below(groups);
  for (int group = 0; group < groups; ++group) {
    switch (distribution) {
      case 0: result[group] = static_cast<int>(int64_t{rows} * (group + 1) / groups); break;
      case 1: result[group] = group < taker ? 0 : rows; break;
      case 2: result[group] = below(rows + 1); break;
      case 3: result[group] = 0; break;
      default: {
        int const wild[] = {INT32_MIN, INT32_MAX, -1, below(2 * rows + 1)};
        result[group] = wild[below(4)];
      }
    }
  }
  if (distribution == 2) {
    std::sort(result.begin(), result.end());
  }
  return result;
}

static int check(int groups, int m, int n, int k, int ctas, int distribution) {
  constexpr int kBlock = 16;
  int const lines = groups + (kMasked ? 0 : 1), blocks = k / kBlock, atoms = (blocks + 3) / 4;
  size_t const tile = size_t{512} * atoms, of_group = m / groups;
  size_t const tiles = kMasked ? (of_group + 127) / 128 * groups : m / 128 + min(groups + 1, m);
  std::vector<int> const offsets = ends(groups, kMasked ? of_group : m, distribution);
  std::vector<uint8_t> sfa(size_t(m) * blocks), scales(tiles * tile + 64, 0xEE);
  for (uint8_t &scale : sfa) {
    scale = static_cast<uint8_t>(1 + below(200));
  }
  // The ends of padded groups, some of which have a tile too many. Some distributions have none, or wrong ones.
  std::vector<int> sfa_ends(groups);
  int scale_tiles = 0;
  for (int group = 0, before = 0; group < groups; ++group) {
    int const end = max(before, std::clamp(offsets[group], 0, m));
    scale_tiles += (end - before + 127) / 128 + below(2);
    sfa_ends[group] = scale_tiles * 128;
    before = end;
    if (distribution == 4) {
      int const wild[] = {INT32_MIN, INT32_MAX, -1, below(4 * m), sfa_ends[group]};
      sfa_ends[group] = wild[below(5)];
    }
  }
  scale_tiles = distribution == 1 && groups > 1 ? 0 : distribution == 4 ? below(4) : scale_tiles;
  std::vector<float> alphas(groups);
  for (int group = 0; group < groups; ++group) {
    alphas[group] = 3.0f + group;
  }
  // Addresses that are never read.
  auto const place = [](int number) { return reinterpret_cast<uint8_t *>(uintptr_t(number) << 44); };
  std::vector<Shape3> shapes(lines);
  std::vector<uint8_t const *> a(lines), b(lines), scales_a(lines), scales_b(lines);
  std::vector<Stride> strides_a(lines), strides_b(lines), strides(lines);
  std::vector<Layout> layouts_a(lines), layouts_b(lines);
  std::vector<ElementC const *> c(lines);
  std::vector<ElementD *> d(lines);
  std::vector<float> line_alphas(lines);
  std::vector<int> first_rows(lines);
  std::vector<float const *> columns(lines), matrices(lines);
  GroupParameters p = {};
  p.tables.shapes = shapes.data();
  p.tables.mainloop = {a.data(), strides_a.data(), b.data(), strides_b.data(),
                       scales_a.data(), layouts_a.data(), scales_b.data(), layouts_b.data()};
  p.tables.c = c.data(), p.tables.d = d.data(), p.tables.strides = strides.data();
  p.tables.alphas = line_alphas.data(), p.tables.first_rows = first_rows.data();
  p.tables.x0 = columns.data(), p.tables.x2 = matrices.data();
  set_scales(p, scales.data(), sfa_ends.data(), scale_tiles);
  p.a = place(1), p.b = place(2), p.sfa = sfa.data(), p.sfb = place(3);
  p.offsets = offsets.data(), p.alphas = alphas.data();
  p.x0 = reinterpret_cast<float *>(place(4)), p.x2 = reinterpret_cast<float *>(place(5));
  p.c = reinterpret_cast<ElementC *>(place(6)), p.d = reinterpret_cast<ElementD *>(place(7));
  p.m = m, p.n = n, p.k = k, p.groups = groups;
  gridDim = {static_cast<unsigned>(ctas)};
  for (int cta = 0; cta < ctas; ++cta) {
    blockIdx = {static_cast<unsigned>(cta)};
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&p, thread] {
        threadIdx = {thread};
        group_kernel<sizeof(GroupParameters)>(p);
      });
    }
    for (std::thread &thread : threads) {
      thread.join();
    }
  }
  int64_t row = 0;
  size_t first_tile = 0;
  for (int group = 0; group < lines; ++group) {
    bool const is_group = group < groups;
    if (kMasked) {
      row = int64_t{group} * of_group;
    }
    int64_t const end = kMasked ? row + std::clamp<int>(offsets[group], 0, of_group)
                        : is_group ? std::max<int64_t>(row, std::clamp(offsets[group], 0, m)) : m;
    int const rows = static_cast<int>(end - row);
    int64_t const matrix = is_group ? group : 0, of_b = (n + 127) / 128 * int64_t(tile);
    if (shapes[group] != Shape3{rows, n, is_group ? k : min(k, TILE_K)}) return failed("shape", group);
    if (a[group] != p.a + row * k / 2) return failed("A", group);
    if (b[group] != p.b + matrix * n * k / 2) return failed("B", group);
    if (scales_b[group] != p.sfb + matrix * of_b) return failed("SFB", group);
    if (strides_a[group].value != k || strides_b[group].value != k) return failed("strides", group);
    if (strides[group].value != n) return failed("stride of D", group);
    if constexpr (kPadded) {
      // No byte of the tile and its layout is outside of the scales. Right ends give the tile that they state.
      bool const has_scales = is_group && scale_tiles > 0;
      int64_t const first = has_scales ? (scales_a[group] - sfa.data()) / int64_t(tile) : 0;
      if (scales_a[group] != (has_scales ? sfa.data() + first * int64_t(tile) : p.sfb)) return failed("SFA", group);
      int const room = has_scales ? (scale_tiles - int(first)) * 128 : 128;
      if (first < 0 || (has_scales && first >= scale_tiles)) return failed("tile of SFA", group);
      if (layouts_a[group] != Layout{min(max(rows, 1), room), k}) return failed("layout of SFA", group);
      int64_t const stated = group == 0 ? 0 : sfa_ends[group - 1] / 128;
      if (has_scales && first != std::clamp<int64_t>(stated, 0, scale_tiles - 1)) return failed("first tile", group);
    } else {
      if (layouts_a[group] != Layout{max(rows, 1), k}) return failed("layout of SFA", group);
    }
    if (layouts_b[group] != Layout{n, k}) return failed("layout of SFB", group);
    if (c[group] != p.c + row * n || d[group] != p.d + row * n) return failed("C or D", group);
    if (line_alphas[group] != (is_group ? alphas[group] : 1.0f)) return failed("alpha", group);
    if (first_rows[group] != row) return failed("first row", group);
    if (columns[group] != p.x0 + row || matrices[group] != p.x2 + row * n) return failed("operands", group);
    int64_t const of_matrix = (of_group + 127) / 128 * int64_t(tile);
    if (kMasked && kBlocked && scales_a[group] != p.sfa + group * of_matrix) return failed("SFA", group);
    size_t const own_tiles = kBlocked ? 0 : (rows + 127) / 128;
    if (!kBlocked && scales_a[group] != scales.data() + first_tile * tile) return failed("SFA", group);
    for (size_t r = 0; r < own_tiles * 128; ++r) {
      for (int block = 0; block < atoms * 4; ++block) {
        bool const is_scale = r < size_t(rows) && block < blocks;
        uint8_t const expected = is_scale ? sfa[(row + r) * blocks + block] : 0;
        size_t const at = (r / 128 * atoms + block / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + block % 4;
        if (scales[first_tile * tile + at] != expected) return failed("scale", group);
      }
    }
    first_tile += own_tiles;
    row = end;
  }
  if (first_tile > tiles) return failed("number of tiles", lines);
  for (size_t byte = first_tile * tile; byte < scales.size(); ++byte) {
    if (scales[byte] != 0xEE) return failed("byte after the scales", lines);
  }
  return 0;
}

int main() {
  int const cases[][5] = {{1, 1, 32, 32, 1}, {5, 300, 200, 352, 3}, {32, 132, 136, 64, 1}, {512, kMasked ? 1536 : 264, 32, 576, 2}};
  for (auto const &[groups, m, n, k, ctas] : cases) {
    for (int distribution = 0; distribution < 5; ++distribution) {
      engine.seed(1000 * groups + distribution);
      if (check(groups, kMasked ? m / groups * groups : m, n, k, ctas, distribution) != 0) {
        std::printf("E = %d, M = %d, N = %d, K = %d, distribution %d\n", groups, m, n, k, distribution);
        return 1;
      }
    }
  }
  return 0;
}
