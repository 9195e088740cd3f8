// Runs sm_90a kernels on the host. The threads of a cluster take turns in random order. Asynchronous work (copies,
// wgmma, stores to other CTAs) completes some time later, and at the latest when a thread waits for it. A wait that
// never ends is reported, and so is an access outside of memory.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <vector>

#include <cuda.h>

HEAD

namespace simulation {

[[noreturn]] void fail(char const *what, long long a = 0, long long b = 0) {
  std::fprintf(stderr, "%s (%lld, %lld)\n", what, a, b);
  std::exit(3);
}

std::mt19937 chance;

// 16-bit floating-point formats, rounded as on a GPU.
struct Format {
  int mantissa, least, bits;  // bits of the mantissa, the least exponent, bits of the exponent
};
constexpr Format kHalf{10, -14, 5}, kBfloat{7, -126, 8};

uint16_t narrow(double x, Format const &format) {
  uint16_t const sign = std::signbit(x) ? 0x8000 : 0, infinity = ((1 << format.bits) - 1) << format.mantissa;
  double const magnitude = std::fabs(x);
  if (std::isnan(x)) {
    return 0x7FFF;
  }
  if (std::isinf(x) || magnitude == 0) {
    return sign | (magnitude == 0 ? 0 : infinity);
  }
  int exponent;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, format.least);
  auto const steps = static_cast<long long>(std::nearbyint(std::ldexp(magnitude, format.mantissa - exponent)));
  // A carry out of the mantissa increments the exponent.
  long long const bits = (static_cast<long long>(exponent - format.least) << format.mantissa) + steps;
  return sign | static_cast<uint16_t>(std::min<long long>(bits, infinity));
}

double widen(uint16_t bits, Format const &format) {
  int const exponent = (bits & 0x7FFF) >> format.mantissa, fraction = bits & ((1 << format.mantissa) - 1);
  double magnitude = exponent == 0 ? std::ldexp(fraction, format.least - format.mantissa)
                                   : std::ldexp(fraction + (1 << format.mantissa), exponent - 1 + format.least - format.mantissa);
  if (exponent == (1 << format.bits) - 1) {
    magnitude = fraction == 0 ? INFINITY : NAN;
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Returns the values of all 2^16 codes of a format, computed once.
std::vector<float> const &widened(Format const &format) {
  static std::map<int, std::vector<float>> tables;
  auto &table = tables[format.mantissa];
  for (int bits = static_cast<int>(table.size()); bits < 1 << 16; ++bits) {
    table.push_back(static_cast<float>(widen(bits, format)));
  }
  return table;
}

uint32_t multiply_pairs(uint32_t x, uint32_t y, Format const &format) {
  auto const &values = widened(format);
  uint32_t const low = narrow(static_cast<double>(values[x & 0xFFFF]) * values[y & 0xFFFF], format);
  return low | static_cast<uint32_t>(narrow(static_cast<double>(values[x >> 16]) * values[y >> 16], format)) << 16;
}

double of_e4m3(uint8_t byte) {
  int const exponent = byte >> 3 & 15, fraction = byte & 7;
  double const value = (byte & 0x7F) == 0x7F ? NAN
                       : exponent == 0       ? std::ldexp(fraction, -9)
                                             : std::ldexp(8 + fraction, exponent - 10);
  return (byte & 0x80) != 0 ? -value : value;
}

// cvt.rn.f16x2.e4m3x2
uint32_t e4m3x2_to_halves(uint16_t bytes) {
  return narrow(of_e4m3(bytes & 0xFF), kHalf) | static_cast<uint32_t>(narrow(of_e4m3(bytes >> 8), kHalf)) << 16;
}

// Threads that synchronize with each other, such as those of a warp or a CTA.
struct Group {
  int size = 0, arrived = 0;
  unsigned generation = 0;
};

// An mbarrier.
struct Barrier {
  int count = 0, pending = 0;
  long long bytes = 0;
  uint32_t phase = 0;
  void settle() {
    if (pending < 0) {
      fail("too many arrive at a barrier", count);
    }
    if (pending == 0 && bytes == 0) {
      phase ^= 1;
      pending = count;
    }
  }
};

// A wgmma, which its threads join one by one. Its elements are bytes (e4m3) or of 16 bits. The first of a series clears
// the accumulators.
struct Multiplication {
  int arrived = 0, n = 0;
  bool is_of_bytes = false, is_first = false;
  uint64_t descriptor = 0;
  uint32_t a[128][4];
  float *sums[128];
};
struct Warpgroup {
  std::vector<std::unique_ptr<Multiplication>> all;
  size_t done = 0;
};
// An mma.sync of a warp.
struct Small {
  int arrived = 0;
  uint32_t a[32][4], b[32][2];
  float *sums[32];
};

struct Cta {
  std::vector<uint8_t> memory;
  std::map<uint32_t, Barrier> barriers;
  std::vector<Group> warps;
  std::vector<Warpgroup> warpgroups;
  std::vector<std::map<size_t, Small>> small;
  std::vector<uint32_t> slots;
  Group block;
  std::map<int, Group> named;
  int left = 0;
};

constexpr size_t kStack = 256 << 10;
struct Fiber {
  ucontext_t start;
  bool started = false;
  jmp_buf context;
  void *stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  bool done = false;
  std::function<bool()> ready;
  char const *what = "";
  int cta = 0, index = 0;
  size_t multiplications = 0, small = 0;
  std::vector<size_t> groups;  // the number of wgmma at each commit
  unsigned cluster_arrivals = 0;
  // The number of pending copies in each committed group, and in the open one.
  std::vector<std::shared_ptr<int>> copies;
  std::shared_ptr<int> begun;
};

struct Index {
  int x;
} thread, block, grid;
jmp_buf scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
size_t fiber_count;
Fiber *current;
std::vector<Cta> ctas;
std::vector<std::function<void()>> later;
std::function<void()> body;
// The begin and end of a CTA's dynamic shared memory.
uint32_t first_byte, end_byte;

Cta &own() { return ctas[current->cta]; }

// `swapcontext` saves the signal mask by a system call, which took half the time. So it only starts a fiber.
void resume(Fiber &fiber) {
  if (_setjmp(scheduler) != 0) {
    return;
  }
  if (fiber.started) {
    _longjmp(fiber.context, 1);
  }
  fiber.started = true;
  setcontext(&fiber.start);
}

void wait(char const *what, std::function<bool()> ready) {
  if (ready()) {
    return;
  }
  current->ready = std::move(ready);
  current->what = what;
  if (_setjmp(current->context) == 0) {
    _longjmp(scheduler, 1);
  }
}

void meet(char const *what, Group &group) {
  unsigned const generation = group.generation;
  if (++group.arrived == group.size) {
    group.arrived = 0;
    ++group.generation;
    return;
  }
  wait(what, [&group, generation] { return group.generation != generation; });
}

// Resolves an address in shared memory. Bits 24 and up are 0 for this CTA, or the rank of another CTA plus 1.
uint8_t *at(uint32_t address, int size, int alignment) {
  uint32_t const rank = address >> 24, offset = address & 0xFFFFFF;
  size_t const index = rank == 0 ? current->cta : rank - 1;
  if (index >= ctas.size() || offset < first_byte || offset + size > end_byte || offset % alignment != 0) {
    fail("no shared memory", address, size);
  }
  if (ctas[index].left == 0) {
    fail("shared memory of a CTA that has ended", address);
  }
  return &ctas[index].memory[offset];
}
template <class T>
T load(uint32_t address) {
  T result;
  std::memcpy(&result, at(address, sizeof(T), sizeof(T)), sizeof(T));
  return result;
}
template <class T>
void store(uint32_t address, T const &value) {
  std::memcpy(at(address, sizeof(T), sizeof(T)), &value, sizeof(T));
}

// Returns the cluster-wide address of the same memory.
uint32_t of_cluster(uint32_t address) { return address >> 24 == 0 ? address | (current->cta + 1) << 24 : address; }
Barrier &barrier(uint32_t address) {
  address = of_cluster(address);
  auto &barriers = ctas[(address >> 24) - 1].barriers;
  auto const found = barriers.find(address & 0xFFFFFF);
  if (found == barriers.end()) {
    fail("no barrier", address);
  }
  return found->second;
}
void transferred(Barrier &to, int bytes) {
  to.bytes -= bytes;
  to.settle();
}

struct Map {
  uint8_t const *base;
  uint64_t extents[4], strides[3];
  uint32_t box[4];
  CUtensorMapSwizzle swizzle;
};

CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base, cuuint64_t const *extents,
                cuuint64_t const *strides, cuuint32_t const *box, cuuint32_t const *steps, CUtensorMapInterleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  Map result{static_cast<uint8_t const *>(base), {}, {}, {}, swizzle};
  bool good = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 && (rank == 3 || rank == 4) && reinterpret_cast<uintptr_t>(base) % 16 == 0;
  // A 3D tensor is a 4D tensor whose last extent is 1.
  for (uint32_t i = 0; i < 4; ++i) {
    bool const is_there = i < rank;
    result.extents[i] = is_there ? extents[i] : 1;
    result.box[i] = is_there ? box[i] : 1;
    good = good && result.extents[i] > 0 && result.extents[i] <= 1ull << 32 && result.box[i] > 0 && result.box[i] <= 256;
    good = good && (!is_there || steps[i] == 1);
  }
  for (uint32_t i = 0; i + 1 < rank; ++i) {
    result.strides[i] = strides[i];
    good = good && strides[i] % 16 == 0 && strides[i] < 1ull << 40;
    // Matrices may overlap: outer strides have no minimum.
    good = good && (i == 0 ? strides[i] >= extents[i] : strides[i] % strides[0] == 0);
  }
  good = good && box[0] % 16 == 0 && (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || (swizzle == CU_TENSOR_MAP_SWIZZLE_64B && box[0] <= 64) ||
                  (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] <= 128));
  static_assert(sizeof(Map) <= sizeof(CUtensorMap) && alignof(CUtensorMap) >= 64);
  if (!good || reinterpret_cast<uintptr_t>(map) % 64 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(map, &result, sizeof(result));
  return CUDA_SUCCESS;
}

// Loads an element of a K-major matrix in shared memory with 128-byte swizzle, by its row and its byte of K.
uint16_t of_descriptor(uint64_t descriptor, int row, int byte) {
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) {
    fail("not swizzled over 128 bytes from a multiple of 1024", descriptor >> 32);
  }
  uint32_t const begin = (descriptor & 0x3FFF) << 4, pitch = (descriptor >> 32 & 0x3FFF) << 4;
  uint32_t const address = begin + row / 8 * pitch + row % 8 * 128 + byte;
  return load<uint16_t>(address ^ (address >> 7 & 7) << 4);
}

// Executes a wgmma of e4m3. Matrices of 8 rows by 32 codes are contiguous, each with the first 16 codes of all rows
// first.
void execute_bytes(Multiplication const &of) {
  static std::vector<double> values;
  for (int byte = static_cast<int>(values.size()); byte < 256; ++byte) {
    values.push_back(of_e4m3(static_cast<uint8_t>(byte)));
  }
  uint32_t const begin = (of.descriptor & 0x3FFF) << 4, along_k = (of.descriptor >> 16 & 0x3FFF) << 4;
  std::vector<double> a(64 * 32), b(of.n * 32);
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < 16; ++i) {
      int const row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 4 % 2), k = thread % 4 * 4 + 16 * (i / 8) + i % 4;
      a[row * 32 + k] = values[of.a[thread][i / 4] >> 8 * (i % 4) & 0xFF];
    }
  }
  for (int row = 0; row < of.n; ++row) {
    for (int k = 0; k < 32; ++k) {
      b[row * 32 + k] = values[load<uint8_t>(begin + row / 8 * 256 + k / 16 * along_k + row % 8 * 16 + k % 16)];
    }
  }
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < of.n / 2; ++i) {
      int const row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      double sum = of.is_first ? 0 : of.sums[thread][i];
      for (int k = 0; k < 32; ++k) {
        sum += a[row * 32 + k] * b[column * 32 + k];
      }
      of.sums[thread][i] = static_cast<float>(sum);
    }
  }
}

void execute(Multiplication const &of, Format const &format) {
  if (of.is_of_bytes) {
    return execute_bytes(of);
  }
  auto const &values = widened(format);
  std::vector<float> a(64 * 16), b(of.n * 16);
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < 8; ++i) {
      int const row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), k = thread % 4 * 2 + 8 * (i / 4) + i % 2;
      a[row * 16 + k] = values[of.a[thread][i / 2] >> 16 * (i % 2) & 0xFFFF];
    }
  }
  for (int row = 0; row < of.n; ++row) {
    for (int k = 0; k < 16; ++k) {
      b[row * 16 + k] = values[of_descriptor(of.descriptor, row, 2 * k)];
    }
  }
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < of.n / 2; ++i) {
      int const row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      double sum = of.sums[thread][i];
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<double>(a[row * 16 + k]) * b[column * 16 + k];
      }
      of.sums[thread][i] = static_cast<float>(sum);
    }
  }
}

void execute(Small const &of, Format const &format) {
  auto const &values = widened(format);
  float a[16][16], b[8][16];
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) {
      a[lane / 4 + 8 * (i / 2 % 2)][lane % 4 * 2 + 8 * (i / 4) + i % 2] = values[of.a[lane][i / 2] >> 16 * (i % 2) & 0xFFFF];
    }
    for (int i = 0; i < 4; ++i) {
      b[lane / 4][lane % 4 * 2 + 8 * (i / 2) + i % 2] = values[of.b[lane][i / 2] >> 16 * (i % 2) & 0xFFFF];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      double sum = of.sums[lane][i];
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<double>(a[lane / 4 + 8 * (i / 2)][k]) * b[lane % 4 * 2 + i % 2][k];
      }
      of.sums[lane][i] = static_cast<float>(sum);
    }
  }
}

void enter() {
  Fiber &self = *current;
  body();
  self.done = true;
  --ctas[self.cta].left;
  _longjmp(scheduler, 1);
}

// Runs the clusters of a grid one after the other.
void run(int blocks, int cluster, int threads, int bytes, std::function<void(void *)> of_thread) {
  if (blocks % cluster != 0) {
    fail("not whole clusters", blocks, cluster);
  }
  grid = {blocks};
  fiber_count = static_cast<size_t>(cluster) * threads;
  while (fibers.size() < fiber_count) {
    fibers.push_back(std::make_unique<Fiber>());
  }
  first_byte = 1024 + chance() % 64 * 16;
  end_byte = first_byte + bytes;
  body = [of_thread] { of_thread(reinterpret_cast<void *>(static_cast<uintptr_t>(first_byte))); };
  for (int first = 0; first < blocks; first += cluster) {
    ctas = std::vector<Cta>(cluster);
    for (auto &cta : ctas) {
      // NaN in either format.
      cta.memory.assign(end_byte, 0xFF);
      cta.warps.assign(threads / 32, Group{32});
      cta.warpgroups.resize((threads + 127) / 128);
      cta.small.resize(threads / 32);
      cta.slots.resize(threads);
      cta.block = {threads};
      cta.left = threads;
    }
    std::vector<Fiber *> order;
    for (size_t i = 0; i < fiber_count; ++i) {
      Fiber &fiber = *fibers[i];
      fiber.done = false;
      fiber.ready = nullptr;
      fiber.cta = static_cast<int>(i) / threads;
      fiber.index = static_cast<int>(i) % threads;
      fiber.multiplications = fiber.small = fiber.cluster_arrivals = 0;
      fiber.groups.clear();
      fiber.copies.clear();
      fiber.begun = std::make_shared<int>(0);
      fiber.started = false;
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = fiber.stack;
      fiber.start.uc_stack.ss_size = kStack;
      makecontext(&fiber.start, enter, 0);
      order.push_back(&fiber);
    }
    // Stalls some warpgroups for some rounds, so that none is always the fastest.
    int const groups = (threads + 127) / 128;
    std::vector<int> stalled(cluster * groups);
    uint64_t rounds_done = 0;
    while (!order.empty()) {
      bool any = false;
      if (chance() % (rounds_done++ == 0 ? 2 : 8) == 0) {
        stalled[chance() % stalled.size()] = chance() % 64;
      }
      for (int &rounds : stalled) {
        any = any || rounds > 0;
        rounds = std::max(rounds - 1, 0);
      }
      size_t const start = chance() % order.size();
      for (size_t i = 0; i < order.size(); ++i) {
        Fiber &fiber = *order[(start + i) % order.size()];
        if (stalled[fiber.cta * groups + fiber.index / 128] > 0 || (fiber.ready && !fiber.ready())) {
          continue;
        }
        any = true;
        fiber.ready = nullptr;
        current = &fiber;
        thread = {fiber.index};
        block = {first + fiber.cta};
        resume(fiber);
      }
      order.erase(std::remove_if(order.begin(), order.end(), [](Fiber *fiber) { return fiber->done; }), order.end());
      // Completes some of the pending work, in any order.
      for (size_t count = later.empty() ? 0 : 1 + chance() % later.size(); count > 0; --count) {
        std::swap(later[chance() % later.size()], later.back());
        auto const one = std::move(later.back());
        later.pop_back();
        one();
        any = true;
      }
      if (!any && !order.empty()) {
        for (Fiber *fiber : order) {
          if (fiber->index % 128 != 0) {
            continue;
          }
          std::fprintf(stderr, "CTA %d thread %d waits: %s\n", fiber->cta, fiber->index, fiber->what);
        }
        fail("all wait for each other");
      }
    }
    if (!later.empty()) {
      fail("something was begun and not waited for", later.size());
    }
  }
}

uint32_t exchange(uint32_t x, std::function<uint32_t(uint32_t const *)> const &take) {
  int const index = thread.x;
  own().slots[index] = x;
  meet("a shuffle", own().warps[index / 32]);
  uint32_t const result = take(own().slots.data() + index / 32 * 32);
  meet("a shuffle", own().warps[index / 32]);
  return result;
}

}  // namespace simulation

// Built-ins that device code expects.
#define threadIdx simulation::thread
#define blockIdx simulation::block
#define gridDim simulation::grid
#undef __global__
#undef __grid_constant__
#undef __launch_bounds__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline void __syncthreads() { simulation::meet("__syncthreads", simulation::own().block); }
inline void __syncwarp() { simulation::meet("__syncwarp", simulation::own().warps[threadIdx.x / 32]); }
template <class T>
T __ldg(T const *address) {
  return *address;
}
// Lane `from` of each group of `width` lanes.
inline uint32_t __shfl_sync(uint32_t, uint32_t x, int from, int width) {
  int const lane = threadIdx.x % 32 / width * width + from;
  return simulation::exchange(x, [&](uint32_t const *warp) { return warp[lane]; });
}
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t x, int bit) {
  int const lane = threadIdx.x % 32;
  return simulation::exchange(x, [&](uint32_t const *warp) { return warp[lane ^ bit]; });
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t x) {
  return simulation::exchange(x, [&](uint32_t const *warp) { return *std::max_element(warp, warp + 32); });
}
inline uint32_t __ballot_sync(uint32_t, bool x) {
  return simulation::exchange(x, [&](uint32_t const *warp) {
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; ++lane) {
      votes |= warp[lane] << lane;
    }
    return votes;
  });
}
inline int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline uint32_t __float_as_uint(float x) { uint32_t bits; std::memcpy(&bits, &x, sizeof bits); return bits; }
inline float __uint_as_float(uint32_t x) { float value; std::memcpy(&value, &x, sizeof value); return value; }
inline float __shfl_xor_sync(uint32_t all, float x, int bit) {
  return __uint_as_float(__shfl_xor_sync(all, __float_as_uint(x), bit));
}
inline void atomicMax(int *to, int x) { *to = std::max(*to, x); }
inline void atomicMin(unsigned *to, unsigned x) { *to = std::min(*to, x); }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  uint64_t const bytes = x | static_cast<uint64_t>(y) << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  }
  return result;
}
inline float __fdividef(float x, float y) { return x / y; }
template <class Pair>
Pair __hmul2_rn(Pair const &x, Pair const &y) {
  auto const &format = std::is_same<Pair, __half2>::value ? simulation::kHalf : simulation::kBfloat;
  uint32_t const result = simulation::multiply_pairs(reinterpret_cast<uint32_t const &>(x), reinterpret_cast<uint32_t const &>(y), format);
  return reinterpret_cast<Pair const &>(result);
}

namespace instructions {

using simulation::own;

inline uint32_t shared_address(void const *pointer) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer)); }
inline unsigned rematerialize(unsigned x) { return x; }
inline uint8_t const *pin_to_register(uint8_t const *pointer) { return pointer; }
inline int warp_uniform(int x) { return x; }
inline bool elect_one() { return threadIdx.x % 32 == 0; }
inline void keep_branch() {}
template <uint32_t kMask>
uint32_t select_bits(uint32_t x, uint32_t y) {
  return (x & kMask) | (y & ~kMask);
}
inline uint32_t sign_bits(uint32_t codes) { return codes & 0x88888888; }
inline uint32_t upper_half(uint32_t x) { return x >> 16; }

inline void barrier_init(uint32_t barrier, int count) {
  simulation::at(barrier, 8, 8);
  own().barriers[barrier] = {count, count};
}
inline void barrier_expect_tx(uint32_t barrier, int bytes) {
  auto &of = simulation::barrier(barrier);
  of.bytes += bytes;
  --of.pending;
  of.settle();
}
inline void barrier_arrive(uint32_t barrier) {
  auto &of = simulation::barrier(barrier);
  --of.pending;
  of.settle();
}
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  auto &of = simulation::barrier(barrier);
  simulation::wait("a barrier", [&of, parity] { return of.phase != parity; });
}
template <int kBarrier, int kThreads>
void named_barrier_sync() {
  auto &group = own().named[kBarrier];
  group.size = kThreads;
  simulation::meet("threads", group);
}
inline uint32_t cluster_address(uint32_t address, int rank) { return (address & 0xFFFFFF) | (rank + 1) << 24; }
inline void barrier_arrive_cluster(uint32_t barrier) {
  simulation::at(barrier, 8, 8);
  barrier_arrive(barrier);
}
inline void store_in_cluster(uint32_t address, std::vector<float> const &values, uint32_t barrier) {
  if (address >> 24 == 0 || address >> 24 != barrier >> 24) {
    simulation::fail("a store and its barrier are of different CTAs", address, barrier);
  }
  simulation::later.push_back([=] {
    int const bytes = static_cast<int>(values.size() * sizeof(float));
    std::memcpy(simulation::at(address, bytes, bytes), values.data(), bytes);
    simulation::transferred(simulation::barrier(barrier), bytes);
  });
}
inline void store_async(uint32_t address, float const *values, uint32_t barrier) {
  store_in_cluster(address, {values, values + 4}, barrier);
}
inline void store_async_pair(uint32_t address, float2 values, uint32_t barrier) {
  store_in_cluster(address, {values.x, values.y}, barrier);
}
inline void fence_barrier_init() {}
inline void fence_async_proxy() {}
// Kernels run in sequence.
inline void launch_dependents() {}
inline void grid_dependency_wait() {}
// Clusters run one after the other, so a flag is set before a wait for it, or never.
inline void release_flag(uint32_t *flag) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    if (*flag != 0) {
      simulation::fail("a flag was not cleared", *flag);
    }
    *flag = 1;
  }
}
inline void acquire_flag(uint32_t const *flag) {
  simulation::wait("a flag", [flag] { return *flag == 1; });
}
inline int fetch_next(uint32_t *counter) {
  uint32_t const next = threadIdx.x % 32 == 0 ? (*counter)++ : 0;
  return simulation::exchange(next, [](uint32_t const *warp) { return warp[0]; });
}
inline void release_add(uint32_t *counter) {
  __syncwarp();
  *counter += threadIdx.x % 32 == 0;
}
inline void acquire_count(uint32_t const *counter, uint32_t count) {
  simulation::wait("a count", [=] { return *counter == count; });
}
template <class T>
T load_ordered(T const *from) {
  return __ldg(from);
}
inline float4 load_l2(float const *from) {
  float4 result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}
inline void cluster_arrive() { ++simulation::current->cluster_arrivals; }
inline void cluster_wait() {
  unsigned const mine = simulation::current->cluster_arrivals;
  simulation::wait("the cluster", [mine] {
    auto const &all = simulation::fibers;
    return std::all_of(all.begin(), all.begin() + simulation::fiber_count,
                       [mine](auto const &fiber) { return fiber->done || fiber->cluster_arrivals >= mine; });
  });
}
inline int cluster_rank() { return simulation::current->cta; }

inline void load_part(CUtensorMap const &map, uint32_t to, uint32_t barrier, std::array<int, 4> first) {
  simulation::Map of;
  std::memcpy(&of, &map, sizeof(of));
  uint32_t const address = simulation::of_cluster(to), counts = simulation::of_cluster(barrier);
  uint32_t const rows = of.box[1] * of.box[2] * of.box[3], bytes = of.box[0] * rows;
  simulation::at(to, bytes, 128);
  simulation::later.push_back([=] {
    for (uint32_t row = 0; row < rows; ++row) {
      uint64_t const at[] = {first[1] + uint64_t{row % of.box[1]}, first[2] + uint64_t{row / of.box[1] % of.box[2]},
                             first[3] + uint64_t{row / of.box[1] / of.box[2]}};
      for (uint32_t b = 0; b < of.box[0]; ++b) {
        uint64_t const byte = first[0] + uint64_t{b};
        bool inside = byte < of.extents[0];
        uint64_t from = byte;
        for (int i = 0; i < 3; ++i) {
          inside = inside && at[i] < of.extents[i + 1];
          from += at[i] * of.strides[i];
        }
        uint32_t place = address + row * of.box[0] + b;
        if (of.swizzle != CU_TENSOR_MAP_SWIZZLE_NONE) {
          place ^= (place >> 7 & (of.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 3 : 7)) << 4;
        }
        *simulation::at(place, 1, 1) = inside ? of.base[from] : 0;
      }
    }
    simulation::transferred(simulation::barrier(counts), bytes);
  });
}
inline void tma_load(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int matrix) {
  load_part(map, to, barrier, {byte, row, matrix, 0});
}
inline void tma_load_evict_first(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int matrix, uint64_t) {
  load_part(map, to, barrier, {byte, row, matrix, 0});
}
inline void tma_load_panel(CUtensorMap const &map, uint32_t to, uint32_t barrier, int row, int matrix, int panel) {
  load_part(map, to, barrier, {0, row, matrix, panel});
}
inline void tma_load_runs(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int group, int matrix, uint64_t) {
  load_part(map, to, barrier, {byte, row, group, matrix});
}
inline void prefetch_tensor_map(CUtensorMap const &) {}
// Reads the address, so that a prefetch outside of memory is found.
inline void prefetch_l2(void const *from) { (void)*static_cast<uint8_t const volatile *>(from); }
inline uint4 load_words(uint32_t address) {
  uint4 result;
  std::memcpy(&result, simulation::at(address, 16, 16), 16);
  return result;
}
inline uint32_t load_word(uint32_t address) { return simulation::load<uint32_t>(address); }
inline uint32_t load_half(uint32_t address) { return simulation::load<uint16_t>(address); }
inline uint32_t load_byte(uint32_t address) { return simulation::load<uint8_t>(address); }
inline void store_word(uint32_t address, uint32_t word) { simulation::store(address, word); }
inline void store_words(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  uint4 const words{x, y, z, w};
  std::memcpy(simulation::at(address, 16, 16), &words, 16);
}
template <class Arguments>
inline void prefetch_scalars(Arguments const &epilogue, uint32_t unused) {
  for_each_scalar(epilogue, [&](auto const *number) {
    if constexpr (sizeof(*number) == 4) {
      uint32_t word;
      std::memcpy(&word, number, 4);
      simulation::store(unused, word);
      unused += 4;
    }
  });
}
inline float2 load_pair(uint32_t address) {
  float2 result;
  std::memcpy(&result, simulation::at(address, 8, 8), 8);
  return result;
}
inline uint64_t evict_first() { return 0; }
inline void cp_async(uint32_t to, void const *from, uint32_t inside, uint64_t = 0) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    simulation::fail("a copy is not aligned");
  }
  uint32_t const address = simulation::of_cluster(to);
  simulation::at(to, 16, 16);
  auto const counter = simulation::current->begun;
  ++*counter;
  simulation::later.push_back([=] {
    if (inside != 0) {
      std::memcpy(simulation::at(address, 16, 16), from, 16);
    } else {
      std::memset(simulation::at(address, 16, 16), 0, 16);
    }
    --*counter;
  });
}
inline void cp_async_commit() {
  simulation::current->copies.push_back(simulation::current->begun);
  simulation::current->begun = std::make_shared<int>(0);
}
template <int kPending>
void cp_async_wait() {
  auto const &copies = simulation::current->copies;
  size_t const needed = copies.size() > kPending ? copies.size() - kPending : 0;
  simulation::wait("copies", [&copies, needed] {
    return std::all_of(copies.begin(), copies.begin() + needed, [](auto const &left) { return *left == 0; });
  });
}

inline simulation::Warpgroup &warpgroup() { return own().warpgroups[threadIdx.x / 128]; }
inline void wgmma_fence() {}
template <int N>
void wgmma_fence_operand(float (&)[N]) {}
inline void wgmma_commit() { simulation::current->groups.push_back(simulation::current->multiplications); }

PIECES
}  // namespace instructions

namespace fourfold {

using namespace instructions;
inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x < y ? y : x; }

template <int kPending>
void wgmma_wait();
void execute(simulation::Warpgroup &of);
inline void multiply(int n, float *sums, uint32_t const (&a)[4], uint64_t b, bool is_of_bytes, bool is_first) {
  auto &all = warpgroup().all;
  size_t const index = simulation::current->multiplications++;
  if (index == all.size()) {
    all.push_back(std::make_unique<simulation::Multiplication>());
    auto &added = *all.back();
    added.descriptor = b, added.n = n, added.is_of_bytes = is_of_bytes, added.is_first = is_first;
  }
  auto &to = *all[index];
  if (to.descriptor != b || to.is_first != is_first) {
    simulation::fail("threads of a warpgroup disagree");
  }
  int const at = threadIdx.x % 128;
  std::memcpy(to.a[at], a, sizeof(a));
  to.sums[at] = sums;
  // Executes at once or as late as possible, to find threads that publish too late or release too early.
  if (++to.arrived == 128 && warpgroup().done == index && simulation::chance() % 2 == 0) {
    execute(warpgroup());
  }
}
template <int N>
struct Wgmma {
  static void run(float (&sums)[N / 2], uint32_t const (&a)[4], uint64_t b) { multiply(N, sums, a, b, false, false); }
};
template <int N>
struct WgmmaE4m3 {
  static void begin(float (&sums)[N / 2], uint32_t const (&a)[4], uint32_t b) { multiply(N, sums, a, b, true, true); }
  static void add(float (&sums)[N / 2], uint32_t const (&a)[4], uint32_t b) { multiply(N, sums, a, b, true, false); }
};
void mma(float (&sums)[4], uint32_t const (&a)[4], uint32_t low, uint32_t high);

KERNEL

void execute(simulation::Warpgroup &of) {
  simulation::execute(*of.all[of.done++], kUsesBf16 ? simulation::kBfloat : simulation::kHalf);
}
template <int kPending>
void wgmma_wait() {
  auto const &groups = simulation::current->groups;
  size_t const needed = groups.size() > kPending ? groups[groups.size() - kPending - 1] : 0;
  auto &of = warpgroup();
  simulation::wait("wgmma", [&of, needed] {
    return std::all_of(of.all.begin() + std::min(of.done, needed), of.all.begin() + needed, [](auto const &one) { return one->arrived == 128; });
  });
  while (of.done < needed) {
    execute(of);
  }
}

void mma(float (&sums)[4], uint32_t const (&a)[4], uint32_t low, uint32_t high) {
  size_t const index = simulation::current->small++;
  auto &all = own().small[threadIdx.x / 32];
  auto &to = all[index];
  int const at = threadIdx.x % 32;
  std::memcpy(to.a[at], a, sizeof(a));
  to.b[at][0] = low, to.b[at][1] = high;
  to.sums[at] = sums;
  if (++to.arrived == 32) {
    simulation::execute(to, kUsesBf16 ? simulation::kBfloat : simulation::kHalf);
    all.erase(index);
  }
  // Each thread waits until the sums are complete.
  simulation::wait("mma", [&all, index] { return all.count(index) == 0; });
}

template <int kTileM, int kTileN>
void run_variant(Parameters const &parameters, Plan const &plan) {
  using V = Variant<kTileM, kTileN>;
  if (plan.is_small_m_regs) {
    simulation::run(static_cast<int>(plan.grid.x), plan.cluster, SmallMRegs::kThreads, SmallMRegs::kShared,
                    [&](void *shared) { run_small_m_regs(parameters, shared); });
    return;
  }
  simulation::run(static_cast<int>(plan.grid.x), plan.cluster, V::kThreads, V::kShared, [&](void *shared) {
    if constexpr (kTileM <= kSmallM) {
      run_small_m<kTileM>(parameters, shared);
    } else {
      run_tiled<Tiled<kTileM, kTileN>>(parameters, shared);
    }
  });
}

ARGUMENTS

// Prints the products of each code with each scale, in each of the 8 positions: all 8 decoded elements, of 16 bits
// each.
void print_decoded() {
  if constexpr (kTermsA == 2) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      float const x = wide(bits).x;
      float const first = __uint_as_float(term_of<0>(bits) << 16), second = __uint_as_float(term_of<1>(bits) << 16);
      if (std::isinf(x) ? first != x || second != 0 : std::isnan(x) ? !std::isnan(first + second) : double{first} + second != x) {
        simulation::fail("the terms are not the element", bits);
      }
    }
  }
  if constexpr (kBitsA == 8 || kBitsB == 8) {
    for (uint32_t scale = 0; scale < 256; ++scale) {
      for (int place = 0; place < 8; ++place) {
        for (uint32_t code = 0; code < 256; ++code) {
          uint32_t words[2] = {};
          words[place / 4] = code << 8 * (place % 4);
          Decoded parts;
          if constexpr (kBitsA == 8) {
            uint32_t word[kWordsA];
            std::memcpy(word, words, sizeof(words));
            parts = decode_a_word<0>(word, scales_of_a(scale, word));
          }
          if constexpr (kBitsB == 8) {
            uint4 const codes{words[0], words[1], 0, 0};
            uint32_t const factor = scales_of_b(scale, [&] { return has_nonzero_fp8(codes); });
            Decoded const of_b = decode_b_word(codes, 0, factor);
            if (kElementA == kElementB && std::memcmp(&parts, &of_b, sizeof(parts)) != 0) {
              simulation::fail("A and B differ", scale, code);
            }
            if constexpr (kBitsA != 8) {
              parts = of_b;
              // The tiled kernel decodes two codes at a time beside an A of 16 bits. All other elements are zeros, or all are NaN.
              uint32_t const pairs = parts.low[0] | parts.low[1] | parts.high[0] | parts.high[1];
              uint32_t const adjacent = decode_adjacent_fp8<kElementB>(words[0], words[1], 0x4410 + place / 2 * 0x22, factor);
              if ((pairs & 0xFFFF | pairs >> 16) != (adjacent >> 16 * (place % 2) & 0xFFFF)) {
                simulation::fail("adjacent codes differ", scale, code);
              }
            }
            if constexpr (kBitsA == 4) {
              // FP4 has the places of FP8, and the values that it has beside FP4.
              uint32_t const word[kWordsA] = {code % 16 << 4 * place};
              Decoded const of_a = decode_a_word<0>(word, mx_scale(scale)), alone = decode(word[0], mx_scale(scale));
              auto const one = [](Decoded const &of) {
                uint32_t const pairs = of.low[0] | of.low[1] | of.high[0] | of.high[1];
                return pairs & 0xFFFF | pairs >> 16;
              };
              if (one(of_a) != one(alone)) {
                simulation::fail("FP4 beside FP8 differs", scale, code);
              }
              auto const *const in_a = reinterpret_cast<uint16_t const *>(&of_a), *const in_b = reinterpret_cast<uint16_t const *>(&of_b);
              for (int i = 0; i < 8; ++i) {
                if (scale < 100 && code % 8 > 0 && code > 8 && code < 0x78 && (in_a[i] == 0) != (in_b[i] == 0)) {
                  simulation::fail("FP4 and FP8 have other places", scale, code);
                }
              }
            }
          }
          std::fwrite(&parts, sizeof(parts), 1, stdout);
        }
      }
    }
    return;
  }
  for (uint32_t scale = 0; scale < 256; ++scale) {
    for (int half = 0; half < (kMx ? 1 : 2); ++half) {
      uint32_t const of_thread = kMx ? mx_scale(scale) : two_scales(scale << 8 * half | 0x38 << 8 * (1 - half));
      for (int place = 0; place < 8; ++place) {
        for (uint32_t code = 0; code < 16; ++code) {
          Decoded const parts = decode(code << 4 * place, scale_of_word(of_thread, 2 * half));
          Decoded const other = decode(code << 4 * place, scale_of_word(of_thread, 2 * half + 1));
          if (std::memcmp(&parts, &other, sizeof(parts)) != 0) {
            simulation::fail("words of a group differ", scale, code);
          }
          // The tiled kernel decodes adjacent codes beside an A of 16 bits. All other elements are zeros, or all are NaN.
          uint32_t const pairs = parts.low[0] | parts.low[1] | parts.high[0] | parts.high[1];
          uint32_t const adjacent = decode_adjacent(code << 4 * place, 0x4440 + place / 2, scale_of_word(of_thread, 2 * half));
          if ((pairs & 0xFFFF | pairs >> 16) != (adjacent >> 16 * (place % 2) & 0xFFFF)) {
            simulation::fail("adjacent codes differ", scale, code);
          }
          std::fwrite(&parts, sizeof(parts), 1, stdout);
        }
      }
    }
  }
}

}  // namespace fourfold

// Returns memory that ends, once rounded up to 16 bytes, at a guard page.
uint8_t *guarded(size_t bytes) {
  size_t const page = 4096, room = (bytes + 15) / 16 * 16, pages = (room + page - 1) / page + 1;
  auto *memory = static_cast<uint8_t *>(mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(memory + (pages - 1) * page, page, PROT_NONE);
  return memory + (pages - 1) * page - room;
}

// Sets the extents and addresses of groups of rows, of which L is the number, and of their scales with whole tiles.
template <class P, class Q>
void read_groups(P &problem, Q &pointers, void const *offsets, void const *sfa_ends, int64_t scale_rows) {
  if constexpr (fourfold::kGrouped) {
    problem.e = problem.l, problem.l = 1;
    pointers.offsets = offsets, pointers.alphas = pointers.alpha;
  }
  if constexpr (fourfold::kPaddedSfa) {
    problem.p = scale_rows, pointers.sfa_ends = sfa_ends;
  }
}

int main(int count, char **) {
  using namespace fourfold;
  if (count > 1) {
    print_decoded();
    return 0;
  }
  auto const number = [] {
    int64_t result;
    if (std::fread(&result, sizeof(result), 1, stdin) != 1) {
      simulation::fail("the input ends");
    }
    return result;
  };
  Problem problem;
  problem.l = number(), problem.m = number(), problem.n = number(), problem.k = number();
  Device const device{static_cast<int32_t>(number()), 0};
  simulation::chance.seed(static_cast<unsigned>(number()));
  int64_t const variant = number();  // negative: the table selects it
  auto const input = [&](size_t offset = 0) -> void * {
    size_t const bytes = number();
    uint8_t *result = guarded(bytes + offset) + offset;
    if (std::fread(result, 1, bytes, stdin) != bytes) {
      simulation::fail("the input ends");
    }
    return bytes == 0 ? nullptr : result;
  };
  Pointers pointers{};
  // Linear scales of an A without groups may begin at any byte.
  pointers.a = input(), pointers.sfa = input(kLinearSfa && !kGrouped ? 1 + problem.m % 4 : 0), pointers.b = input(), pointers.sfb = input(), pointers.c = input();
  pointers.alpha = static_cast<float const *>(input()), pointers.beta = static_cast<float const *>(input());
  void const *const offsets = input(), *const sfa_ends = input();
  read_groups(problem, pointers, offsets, sfa_ends, number());
  for (uint32_t i = 0, count = number(); i < count; ++i) {
    pointers.operands[i] = input();
  }
  size_t const outputs = number();
  std::vector<size_t> sizes;
  for (size_t i = 0; i < outputs; ++i) {
    sizes.push_back(number());
    pointers.outputs[i] = guarded(sizes.back());
    std::memset(pointers.outputs[i], static_cast<int>(number()), (sizes.back() + 15) / 16 * 16);
  }
  Plan const plan = variant < 0 ? plan_launch(problem, device) : plan_variant(problem, device, static_cast<int>(variant), 0);
  void *workspace = nullptr;
  if (decodes_before(kVariants[plan.variant])) {
    int64_t const bytes = workspace_bytes(problem, plan);
    workspace = guarded(bytes);
    // NaN in either format. It stays in rows that only tiles have, not A.
    std::memset(workspace, 0xFF, bytes);
    DecodeAParameters const decoding = decode_a_parameters(problem, pointers, workspace, plan);
    simulation::run(static_cast<int>(decode_a_grid(decoding)), 1, DecodeA::kThreads, 0, [&](void *) { decode_a(decoding); });
  }
  Parameters parameters;
  if (make_parameters(problem, pointers, workspace, plan, simulation::encode, epilogue_arguments(pointers), parameters) != cudaSuccess) {
    simulation::fail("no parameters");
  }
  VariantTraits const &traits = kVariants[plan.variant];
  switch (plan.variant) {
VARIANTS
  }
  uint32_t const said[] = {static_cast<uint32_t>(traits.tile_m), static_cast<uint32_t>(traits.tile_n),
                           static_cast<uint32_t>(plan.cluster), plan.grid.x,
                           static_cast<uint32_t>(plan.split_k.helpers), static_cast<uint32_t>(plan.split_k.tiles),
                           static_cast<uint32_t>(plan.split_k.per_tile), static_cast<uint32_t>(tile_count(problem, traits)),
                           static_cast<uint32_t>(plan.slabs.tiles - plan.slabs.first_tiles),
                           static_cast<uint32_t>(plan.slabs.along_k - plan.slabs.first_along_k)};
  std::fwrite(said, sizeof(said), 1, stdout);
  for (size_t i = 0; i < outputs; ++i) {
    std::fwrite(pointers.outputs[i], 1, sizes[i], stdout);
  }
}
