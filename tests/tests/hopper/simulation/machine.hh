// A machine that runs sm_90a kernels on the host. The threads of a cluster take turns in random order. Asynchronous
// work (copies, wgmma, stores to other CTAs) completes some time later, and at the latest when a thread waits for it.
// A wait that never ends is reported, and so is an access outside of memory.

#pragma once

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

namespace simulation {

[[noreturn]] void fail(char const *what, long long a = 0, long long b = 0);

extern std::mt19937 chance;

// 16-bit floating-point formats, rounded as on a GPU.
struct Format {
  int mantissa, least, bits;  // bits of the mantissa, the least exponent, bits of the exponent
};
constexpr Format kHalf{10, -14, 5}, kBfloat{7, -126, 8};

uint32_t multiply_pairs(uint32_t x, uint32_t y, Format const &format);
// cvt.rn.f16x2.e4m3x2
uint32_t e4m3x2_to_halves(uint16_t bytes);

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
};
extern Index thread, block, grid;
extern Fiber *current;
extern std::vector<Cta> ctas;
extern std::vector<std::function<void()>> later;
// The begin and end of a CTA's dynamic shared memory.
extern uint32_t first_byte, end_byte;

inline Cta &own() { return ctas[current->cta]; }

// Lets other threads run until `ready` returns true.
void wait(char const *what, std::function<bool()> ready);
// Waits until all threads of a group are here.
void meet(char const *what, Group &group);
// The two halves of a barrier of the cluster.
void arrive_in_cluster();
void wait_for_cluster();
// Gives every thread of a warp what `take` finds in the values of all of them.
uint32_t exchange(uint32_t x, std::function<uint32_t(uint32_t const *)> const &take);
// Runs the clusters of a grid one after the other.
void run(int blocks, int cluster, int threads, int bytes, std::function<void(void *)> of_thread);

// Resolves an address in shared memory. Bits 24 and up are 0 for this CTA, or the rank of another CTA plus 1.
inline uint8_t *at(uint32_t address, int size, int alignment) {
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
inline uint32_t of_cluster(uint32_t address) { return address >> 24 == 0 ? address | (current->cta + 1) << 24 : address; }
Barrier &barrier(uint32_t address);
void transferred(Barrier &to, int bytes);

// A tensor map.
struct Map {
  uint8_t const *base;
  uint64_t extents[4], strides[3];
  uint32_t box[4];
  CUtensorMapSwizzle swizzle;
};

CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base, cuuint64_t const *extents,
                cuuint64_t const *strides, cuuint32_t const *box, cuuint32_t const *steps, CUtensorMapInterleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
// Begins to copy a box of a tensor, whose first element has these coordinates, to shared memory.
void load_box(CUtensorMap const &map, uint32_t to, uint32_t barrier, std::array<int, 4> first);

void execute(Multiplication const &of, Format const &format);
void execute(Small const &of, Format const &format);

}  // namespace simulation
