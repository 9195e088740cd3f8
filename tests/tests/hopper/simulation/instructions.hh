// Built-ins and instructions that device code expects.

#pragma once

#include "machine.hh"

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
inline void cluster_arrive() { simulation::arrive_in_cluster(); }
inline void cluster_wait() { simulation::wait_for_cluster(); }
inline int cluster_rank() { return simulation::current->cta; }

inline void tma_load(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int matrix) {
  simulation::load_box(map, to, barrier, {byte, row, matrix, 0});
}
inline void tma_load_evict_first(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int matrix, uint64_t) {
  simulation::load_box(map, to, barrier, {byte, row, matrix, 0});
}
inline void tma_load_panel(CUtensorMap const &map, uint32_t to, uint32_t barrier, int row, int matrix, int panel) {
  simulation::load_box(map, to, barrier, {0, row, matrix, panel});
}
inline void tma_load_runs(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int group, int matrix, uint64_t) {
  simulation::load_box(map, to, barrier, {byte, row, group, matrix});
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
