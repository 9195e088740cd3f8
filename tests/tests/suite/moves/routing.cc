// Runs a kernel that routes rows with a fiber of the host for each thread of a CTA, and compares each result with its
// definition. Tensors end at pages that nothing may access.

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <random>
#include <vector>

struct Problem {
  int64_t m, n, c, k, e;
};
struct Pointers {
  void const *operands[2];
  void *outputs[3];
};

struct Index {
  unsigned x;
};
static Index threadIdx, blockIdx;

// Gives the other threads their turn. A thread that waits yields until all threads of the barrier have arrived.
static void yield();
struct Barrier {
  unsigned arrived = 0, passed = 0;
  void wait(unsigned threads) {
    unsigned const before = passed;
    if (++arrived == threads) {
      arrived = 0, ++passed;
    }
    while (passed == before) {
      yield();
    }
  }
};

#define __device__
#define __forceinline__
#define __shared__ static

constexpr unsigned kMostThreads = 1024;
static Barrier cta, warps[kMostThreads / 32];
static uint32_t values[kMostThreads];
static void sync_warp() { warps[threadIdx.x / 32].wait(32); }
template <class Combine>
static uint32_t combined(uint32_t value, Combine const &combine) {
  values[threadIdx.x] = value;
  sync_warp();
  uint32_t const *const first = values + threadIdx.x / 32 * 32;
  uint32_t const result = combine(first);
  sync_warp();
  return result;
}
static uint32_t __ballot_sync(uint32_t, bool value) {
  return combined(value, [](uint32_t const *of) {
    uint32_t bits = 0;
    for (int lane = 0; lane < 32; ++lane) {
      bits |= of[lane] << lane;
    }
    return bits;
  });
}
[[maybe_unused]] static uint32_t __reduce_add_sync(uint32_t, uint32_t value) {
  return combined(value, [](uint32_t const *of) { return std::accumulate(of, of + 32, 0u); });
}
[[maybe_unused]] static uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
  return combined(value, [](uint32_t const *of) { return *std::max_element(of, of + 32); });
}
static void __syncthreads();
[[maybe_unused]] static int __ffs(uint32_t bits) { return __builtin_ffs(static_cast<int>(bits)); }
[[maybe_unused]] static int __popc(uint32_t bits) { return __builtin_popcount(bits); }
[[maybe_unused]] static float __fadd_rn(float a, float b) { return a + b; }
[[maybe_unused]] static float __fmul_rn(float a, float b) { return a * b; }
[[maybe_unused]] static float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
[[maybe_unused]] static uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

KERNEL

static void __syncthreads() { cta.wait(kThreads); }

static ucontext_t scheduler, fibers[kThreads];
static bool is_done[kThreads];
static Parameters const *launched;
static void yield() { swapcontext(&fibers[threadIdx.x], &scheduler); }
static void run_thread() {
  move(*launched);
  is_done[threadIdx.x] = true;
  yield();
}

// Runs every CTA, one after another.
static void launch(Parameters const &p) {
  constexpr size_t kStack = 64 << 10;
  static std::vector<uint8_t> stacks(kThreads * kStack);
  launched = &p;
  for (unsigned number = 0; number < p.ctas; ++number) {
    blockIdx.x = number;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      is_done[thread] = false;
      getcontext(&fibers[thread]);
      fibers[thread].uc_stack.ss_sp = stacks.data() + thread * kStack;
      fibers[thread].uc_stack.ss_size = kStack;
      makecontext(&fibers[thread], run_thread, 0);
    }
    for (bool is_running = true; is_running;) {
      is_running = false;
      for (unsigned thread = 0; thread < kThreads; ++thread) {
        if (!is_done[thread]) {
          threadIdx.x = thread;
          swapcontext(&scheduler, &fibers[thread]);
          is_running = true;
        }
      }
    }
  }
}

static std::mt19937 engine;
static int below(int bound) { return static_cast<int>(engine() % static_cast<unsigned>(bound)); }

// Memory between pages that nothing may access. It ends where the second of them begins.
template <class T>
struct Guarded {
  static constexpr size_t kPage = 4096;
  explicit Guarded(size_t count) : count(count) {
    size_t const room = (count * sizeof(T) + kPage - 1) / kPage * kPage;
    bytes = room + 2 * kPage;
    base = static_cast<uint8_t *>(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base + kPage, room, PROT_READ | PROT_WRITE);
    data = reinterpret_cast<T *>(base + kPage + room - count * sizeof(T));
    std::memset(static_cast<void *>(data), 0xA5, count * sizeof(T));
  }
  ~Guarded() { munmap(base, bytes); }
  T &operator[](size_t at) const { return data[at]; }
  size_t count, bytes;
  uint8_t *base;
  T *data;
};

// Numbers of a type with this many bits of the mantissa and the exponent.
template <class Type, int kMantissa, int kExponent>
struct Format {
  using Code = Type;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr Code kInfinityCode = static_cast<Code>(((1u << kExponent) - 1) << kMantissa);
  static constexpr Code kSign = static_cast<Code>(1u << (kMantissa + kExponent));
  static double decode(Code code) {
    double const sign = code & kSign ? -1 : 1;
    Code const magnitude = code & (kSign - 1);
    if (magnitude >= kInfinityCode) return magnitude == kInfinityCode ? sign * INFINITY : NAN;
    int const exponent = magnitude >> kMantissa, mantissa = magnitude & ((1 << kMantissa) - 1);
    double const whole = exponent == 0 ? mantissa : mantissa + (1 << kMantissa);
    return sign * std::ldexp(whole, std::max(exponent, 1) - kBias - kMantissa);
  }
  static Code encode(double x) {
    if (std::isnan(x)) return kInfinityCode | 1;
    Code const sign = std::signbit(x) ? kSign : 0;
    if (std::isinf(x)) return sign | kInfinityCode;
    if (x == 0) return sign;
    int const exponent = std::max(std::ilogb(x), 1 - kBias);
    // The number of steps from 0, of which each code below infinity is one.
    double const steps = std::nearbyint(std::ldexp(std::fabs(x), kMantissa - exponent));
    double const code = steps + std::ldexp(exponent - 1 + kBias, kMantissa);
    return sign | static_cast<Code>(std::min<double>(code, kInfinityCode));
  }
};
using OfF16 = Format<uint16_t, 10, 5>;
using OfBF16 = Format<uint16_t, 7, 8>;
using OfF32 = Format<uint32_t, 23, 8>;
using From = OfFROM;
using To = OfTO;

static From::Code random_code() {
  From::Code const infinity = From::kInfinityCode, some = static_cast<From::Code>(engine());
  From::Code const special[] = {0, From::kSign, infinity, From::Code(infinity | From::kSign), From::Code(infinity | 5),
                                1, From::encode(1.5), From::encode(-3), From::encode(65536.0 - 16)};
  int const kind = below(8);
  return kind == 0 ? special[below(9)] : kind < 3 ? some : From::encode(std::ldexp(below(2001) - 1000, below(12) - 9));
}

[[maybe_unused]] static char const *check_groups(int m, int turn) {
  int const c = 1 + below(4), count = m * c, most[] = {1, 2, 7, 40}, groups = most[below(4)];
  Guarded<int32_t> const ids(count), positions(count), rows(count), ends(groups);
  int const wild[] = {INT32_MIN, -1, groups, INT32_MAX};
  for (int at = 0; at < count; ++at) {
    bool const is_wild = turn % 3 == 0 && below(5) == 0;
    ids[at] = is_wild ? wild[below(4)] : turn % 2 == 0 ? below(groups) : below(groups) / 2;
  }
  launch(make_parameters({.m = count, .c = c, .e = groups}, {{ids.data}, {positions.data, rows.data, ends.data}}));
  auto const group = [&](int at) { return std::clamp(ids[at], 0, groups - 1); };
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int one, int other) { return group(one) < group(other); });
  for (int at = 0; at < count; ++at) {
    if (positions[at] != order[at]) return "a position";
    if (rows[at] != order[at] / c) return "a row";
  }
  for (int of = 0; of < groups; ++of) {
    auto const is_before = [&](int at) { return group(at) <= of; };
    if (ends[of] != std::count_if(order.begin(), order.end(), is_before)) return "an end";
  }
  return nullptr;
}

[[maybe_unused]] static char const *check_sums(int m, int turn) {
  int const columns[] = {1, 3, 255, 300, 2049}, c = columns[below(5)], extents[] = {1, 2, 5, 9}, n = extents[below(4)];
  Guarded<From::Code> const x(size_t(m) * c);
  Guarded<int32_t> const indices(m);
  Guarded<To::Code> const y(size_t(n) * c);
  int const wild[] = {INT32_MIN, -1, n, INT32_MAX};
  for (int at = 0; at < m; ++at) {
    indices[at] = turn % 3 == 0 && below(5) == 0 ? wild[below(4)] : below(n);
  }
  for (size_t at = 0; at < x.count; ++at) {
    x[at] = random_code();
  }
  launch(make_parameters({.m = m, .n = n, .c = c}, {{x.data, indices.data}, {y.data}}));
  for (int row = 0; row < n; ++row) {
    for (int column = 0; column < c; ++column) {
      float sum = 0;
      bool is_first = true;
      for (int at = 0; at < m; ++at) {
        if (indices[at] != row) continue;
        float const addend = static_cast<float>(From::decode(x[size_t(at) * c + column]));
        sum = is_first ? addend : sum + addend;
        is_first = false;
      }
      To::Code const expected = To::encode(sum), found = y[size_t(row) * c + column];
      if (std::isnan(sum) ? !std::isnan(To::decode(found)) : found != expected) return "a sum";
    }
  }
  return nullptr;
}

[[maybe_unused]] static char const *check_best(int m, int) {
  int const extents[] = {1, 2, 31, 33, 70, 128}, c = extents[below(6)], k = 1 + below(std::min(c, 40));
  Guarded<From::Code> const x(size_t(m) * c), taken(size_t(m) * k);
  Guarded<int32_t> const indices(size_t(m) * k);
  for (size_t at = 0; at < x.count; ++at) {
    x[at] = below(4) == 0 && at > 0 ? x[at - 1] : random_code();
  }
  launch(make_parameters({.m = m, .c = c, .k = k}, {{x.data}, {taken.data, indices.data}}));
  for (int row = 0; row < m; ++row) {
    From::Code const *const codes = x.data + size_t(row) * c;
    std::vector<int> order(c);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int one, int other) {
      double const a = From::decode(codes[one]), b = From::decode(codes[other]);
      return std::isnan(a) ? !std::isnan(b) : a > b;
    });
    for (int at = 0; at < k; ++at) {
      if (indices[size_t(row) * k + at] != order[at]) return "an index";
      if (taken[size_t(row) * k + at] != codes[order[at]]) return "a value";
    }
  }
  return nullptr;
}

int main() {
  for (int turn = 0; turn < TURNS; ++turn) {
    int const extents[] = {1, 2, 5, 31, 33, 260, 1030};
    int const m = extents[turn % 7];
    if (char const *wrong = CHECK(m, turn)) {
      std::printf("%s: %d rows, turn %d\n", wrong, m, turn);
      return 1;
    }
  }
  return 0;
}
