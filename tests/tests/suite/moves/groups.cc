// Runs a kernel for padded groups with a thread of the host for each lane of a warp, and compares each byte with its
// definition. Tensors end at pages that nothing may access.

#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <random>
#include <thread>
#include <vector>

struct Problem {
  int64_t m, b, e, p, r;
};
struct Pointers {
  void const *operands[3];
  void *outputs[1];
};

struct Index {
  unsigned x;
};
static thread_local Index threadIdx, blockIdx;

// The lanes exchange values through memory. Each waits until all have written, and then until all have read.
static std::barrier<> warp(32);
static uint32_t values[32];
template <class Read>
static uint32_t exchange(uint32_t value, Read const &read) {
  values[threadIdx.x % 32] = value;
  warp.arrive_and_wait();
  uint32_t const result = read();
  warp.arrive_and_wait();
  return result;
}
static uint32_t __shfl_sync(uint32_t, uint32_t value, unsigned lane) {
  return exchange(value, [&] { return values[lane % 32]; });
}
static uint32_t __shfl_up_sync(uint32_t, uint32_t value, unsigned distance) {
  unsigned const lane = threadIdx.x % 32;
  return exchange(value, [&] { return values[lane < distance ? lane : lane - distance]; });
}
static uint32_t __ballot_sync(uint32_t, bool value) {
  return exchange(value, [] {
    uint32_t bits = 0;
    for (int lane = 0; lane < 32; ++lane) {
      bits |= values[lane] << lane;
    }
    return bits;
  });
}
static int32_t __reduce_max_sync(uint32_t, int32_t value) {
  return static_cast<int32_t>(exchange(static_cast<uint32_t>(value), [] {
    int32_t most = INT32_MIN;
    for (uint32_t other : values) {
      most = std::max(most, static_cast<int32_t>(other));
    }
    return static_cast<uint32_t>(most);
  }));
}
static int __ffs(uint32_t bits) { return __builtin_ffs(static_cast<int>(bits)); }

#define __device__
#define __forceinline__

KERNEL

static std::mt19937 engine;
static int below(int bound) { return static_cast<int>(engine() % static_cast<unsigned>(bound)); }

// Memory between pages that nothing may access. It ends where the second of them begins, so it may be unaligned.
template <class T>
struct Guarded {
  static constexpr size_t kPage = 4096;
  explicit Guarded(size_t count) : count(count) {
    size_t const room = (count * sizeof(T) + kPage - 1) / kPage * kPage;
    bytes = room + 2 * kPage;
    base = static_cast<uint8_t *>(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base + kPage, room, PROT_READ | PROT_WRITE);
    data = reinterpret_cast<T *>(base + kPage + room - count * sizeof(T));
  }
  ~Guarded() { munmap(base, bytes); }
  T &operator[](size_t at) const { return data[at]; }
  size_t count, bytes;
  uint8_t *base;
  T *data;
};

// Runs every CTA, one warp after another.
static void launch(Parameters const &p) {
  std::vector<std::thread> lanes;
  for (unsigned lane = 0; lane < 32; ++lane) {
    lanes.emplace_back([&p, lane] {
      for (unsigned cta = 0; cta < p.ctas; ++cta) {
        for (unsigned first = 0; first < kThreads; first += 32) {
          blockIdx = {cta}, threadIdx = {first + lane};
          move(p);
          warp.arrive_and_wait();
        }
      }
    });
  }
  for (std::thread &lane : lanes) {
    lane.join();
  }
}

enum Distribution { kEven, kOne, kRandom, kNone, kWild, kDistributions };

// The ends of groups, also such that are not valid.
static void set_ends(Guarded<int32_t> const &ends, int rows, int distribution) {
  int const groups = static_cast<int>(ends.count), taker = below(groups);
  for (int group = 0; group < groups; ++group) {
    switch (distribution) {
      case kEven: ends[group] = static_cast<int>(int64_t{rows} * (group + 1) / groups); break;
      case kOne: ends[group] = group < taker ? 0 : rows; break;
      case kRandom: ends[group] = below(rows + 1); break;
      case kNone: ends[group] = 0; break;
      default: {
        int const wild[] = {INT32_MIN, -1, below(rows / 2 + 1), below(rows + 1), below(2 * rows + 1), INT32_MAX};
        ends[group] = wild[below(6)];
      }
    }
  }
  if (distribution == kRandom) {
    std::sort(ends.data, ends.data + groups);
  }
}

[[maybe_unused]] static char const *check_ends(int groups, int rows, int distribution) {
  Guarded<int32_t> const ends(groups), padded(groups);
  int64_t const multiples[] = {1, 3, 128, 1000, UINT32_MAX};
  Problem const problem = {.e = groups, .r = multiples[below(5)]};
  set_ends(ends, rows, distribution);
  std::fill_n(padded.data, groups, -77);
  launch(make_parameters(problem, {{ends.data}, {padded.data}}));
  int64_t before = 0, sum = 0;
  for (int group = 0; group < groups; ++group) {
    int64_t const end = std::max<int64_t>(before, ends[group]);
    sum += (end - before + problem.r - 1) / problem.r * problem.r;
    if (padded[group] != std::min<int64_t>(sum, INT32_MAX)) return "a padded end";
    before = end;
  }
  return nullptr;
}

[[maybe_unused]] static char const *check_scales(int groups, int rows, int distribution) {
  int const blocks = 1 + below(4) * (1 + below(5)), atoms = (blocks + 3) / 4;
  Guarded<int32_t> const ends(groups), scale_ends(groups);
  set_ends(ends, rows, distribution);
  // Some groups have a tile too many.
  int tiles = 0;
  for (int group = 0, before = 0; group < groups; ++group) {
    int const end = std::max(before, std::clamp(ends[group], 0, rows));
    tiles += (end - before + 127) / 128 + below(2);
    scale_ends[group] = tiles * 128;
    before = end;
  }
  // Wrong ends among the scales.
  bool const is_wild = distribution == kWild && below(2) == 0;
  for (int group = 0; is_wild && group < groups; ++group) {
    int const wild[] = {INT32_MIN, INT32_MAX, -1, below(4 * rows + 1), scale_ends[group]};
    scale_ends[group] = wild[below(5)];
  }
  int const padded = is_wild ? below(600) : tiles * 128 + below(200);
  size_t const all_tiles = (padded + 127) / 128;
  Guarded<uint8_t> const from(size_t(rows) * blocks), to(all_tiles * atoms * 512);
  for (size_t at = 0; at < from.count; ++at) {
    from[at] = static_cast<uint8_t>(1 + below(200));
  }
  constexpr uint8_t kPoison = 0xEE;
  std::fill_n(to.data, to.count, kPoison);
  Problem const problem = {.m = rows, .b = blocks, .e = groups, .p = padded};
  launch(make_parameters(problem, {{from.data, ends.data, scale_ends.data}, {to.data}}));
  std::vector<uint8_t> expected(to.count, 0);
  auto const place = [&](int row, int block) {
    return size_t(row / 128 * atoms + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
  };
  for (int group = 0, before = 0; !is_wild && group < groups; ++group) {
    int const end = std::max(before, std::clamp(ends[group], 0, rows));
    int const first = group == 0 ? 0 : scale_ends[group - 1];
    for (int row = before; row < end; ++row) {
      for (int block = 0; block < blocks; ++block) {
        expected[place(first + row - before, block)] = from[size_t(row) * blocks + block];
      }
    }
    before = end;
  }
  for (size_t at = 0; at < to.count; ++at) {
    if (to[at] == kPoison) return "a byte that is not written";
    if (!is_wild && to[at] != expected[at]) return "a scale";
  }
  return nullptr;
}

int main() {
  for (int turn = 0; turn < TURNS; ++turn) {
    int const counts[] = {1, 2, 5, 31, 32, 33, 70};
    int const groups = counts[turn % 7], distribution = turn % kDistributions;
    int const extents[] = {0, 1, 37, 128, 129, 300};
    int const rows = extents[below(6)];
    if (char const *wrong = CHECK(groups, rows, distribution)) {
      std::printf("%s: %d groups of %d rows, distribution %d\n", wrong, groups, rows, distribution);
      return 1;
    }
  }
  return 0;
}
