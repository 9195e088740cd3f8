// Rows in shared memory. A thread reads back only what it copied, so copies need no barrier.
#ifndef FOURFOLD_HOST
#if defined(__CUDACC__)
__device__ __forceinline__ uint8_t *dynamic_memory() {
  extern __shared__ uint4 memory[];
  return reinterpret_cast<uint8_t *>(memory);
}
template <int kBytes>
__device__ __forceinline__ void copy_unit(uint8_t *to, uint8_t const *from) {
  uint32_t const address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(kBytes) : "memory");
  }
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Stores a number at the same place of another CTA of the cluster.
__device__ __forceinline__ void store_to_cta(float *to, uint32_t rank, float x) {
  uint32_t const own = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ __forceinline__ void sync_cluster() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#else
// A simulation defines the others.
template <int kBytes>
void copy_unit(uint8_t *to, uint8_t const *from) {
  std::memcpy(to, from, kBytes);
}
inline void commit_copies() {}
template <int kPending>
void wait_copies() {}
#endif

// Waits until at most so many groups of copies are pending.
__device__ __forceinline__ void wait_copies(uint32_t pending) {
  switch (pending) {
    case 0: return wait_copies<0>();
    case 1: return wait_copies<1>();
    case 2: return wait_copies<2>();
    default: return wait_copies<3>();
  }
}

// The words of a thread are units of at most 16 bytes, and the units of all threads alternate.
template <int kBytes>
constexpr int kUnit = (kBytes & -kBytes) < 16 ? kBytes & -kBytes : 16;

template <int kThreads, int kBytes>
__device__ __forceinline__ void copy_words(uint8_t *to, uint8_t const *from, uint32_t thread) {
#pragma unroll
  for (int i = 0; i < kBytes / kUnit<kBytes>; ++i) {
    copy_unit<kUnit<kBytes>>(to + (i * kThreads + thread) * kUnit<kBytes>, from + i * kUnit<kBytes>);
  }
}

template <int kThreads, int kBytes>
__device__ __forceinline__ Words<kBytes> stored_words(uint8_t const *from, uint32_t thread) {
  using Unit = Words<kUnit<kBytes>>;
  Words<kBytes> result;
#pragma unroll
  for (int i = 0; i < kBytes / kUnit<kBytes>; ++i) {
    Unit const unit = *reinterpret_cast<Unit const *>(from + (i * kThreads + thread) * kUnit<kBytes>);
#pragma unroll
    for (int word = 0; word < kUnit<kBytes> / 4; ++word) {
      result.words[i * (kUnit<kBytes> / 4) + word] = unit.words[word];
    }
  }
  return result;
}

// Combines parts, 32 at a time in pairs, and each such total with the one before. Every lane gets the same bits.
template <class Reduction>
__device__ __forceinline__ float combine_parts(float const *parts, uint32_t count) {
  float total = float_of(Reduction::kNone);
  for (uint32_t base = 0; base < count; base += 32) {
    uint32_t const index = base + threadIdx.x % 32;
    float const part = combine_lanes<Reduction, 32>(index < count ? parts[index] : float_of(Reduction::kNone));
    total = base == 0 ? part : Reduction::combine(total, part);
  }
  return total;
}
#endif
