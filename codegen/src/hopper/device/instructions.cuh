// PTX instructions without a C++ equivalent.
#ifndef FOURFOLD_HOST

CUTLASS_DEVICE uint32_t shared_address(void const *pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Hides the origin of x from the compiler. The compiler then shares no subexpression across this point, which would
// occupy a register, and does not recompute x at each use.
CUTLASS_DEVICE unsigned rematerialize(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}
// Keeps an address in a register: the compiler does not compute it again at each use.
CUTLASS_DEVICE uint8_t const *pin_to_register(uint8_t const *pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}
// Elects one lane of the warp, always the same. With `elect.sync` the compiler knows that one lane is active. If the
// lane were selected by its number, each TMA instruction would be compiled into a loop over lanes.
CUTLASS_DEVICE bool elect_one() {
  uint32_t elected;
  asm volatile("{\n.reg .pred is;\nelect.sync _|is, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, is;\n}\n" : "=r"(elected));
  return elected != 0;
}
// Broadcasts the x of lane 0, so that the compiler knows the value to be uniform across the warp.
CUTLASS_DEVICE int warp_uniform(int x) { return __shfl_sync(0xFFFFFFFFu, x, 0); }
// Selects the bits of x where kMask has ones, and the bits of y elsewhere.
template <uint32_t kMask>
CUTLASS_DEVICE uint32_t select_bits(uint32_t x, uint32_t y) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(result) : "r"(x), "r"(y), "n"(kMask));
  return result;
}
// Returns bits 31 to 16. A conversion that follows reads the upper half in place, without a shift instruction.
CUTLASS_DEVICE uint32_t upper_half(uint32_t x) {
  uint16_t result;
  asm("{\n.reg .b16 low;\nmov.b32 {low, %0}, %1;\n}\n" : "=h"(result) : "r"(x));
  return result;
}
// Returns the sign bits of eight codes. It is PTX because the compiler would mask the shifted value again.
CUTLASS_DEVICE uint32_t sign_bits(uint32_t codes) {
  uint32_t result;
  asm("and.b32 %0, %1, 0x88888888;" : "=r"(result) : "r"(codes));
  return result;
}

// Keeps a branch that the compiler would replace by executing both sides and selecting results.
CUTLASS_DEVICE void keep_branch() { asm volatile("" ::: "memory"); }

// Barriers in shared memory (mbarrier). `barrier_expect_tx` also arrives.
CUTLASS_DEVICE void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
CUTLASS_DEVICE void barrier_expect_tx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
CUTLASS_DEVICE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
CUTLASS_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Orders earlier generic-proxy accesses to shared memory before later async-proxy accesses (TMA, wgmma).
CUTLASS_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Synchronizes kThreads threads of the CTA at named barrier kBarrier.
template <int kBarrier, int kThreads>
CUTLASS_DEVICE void named_barrier_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
// Distributed shared memory: maps an address to CTA `rank` of the cluster, and arrives at a barrier there.
CUTLASS_DEVICE uint32_t cluster_address(uint32_t address, int rank) {
  uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}
CUTLASS_DEVICE void barrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Stores floats to another CTA's shared memory, and completes their bytes at `barrier` in that CTA.
CUTLASS_DEVICE void store_async(uint32_t address, float const *values, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(barrier)
               : "memory");
}
CUTLASS_DEVICE void store_async_pair(uint32_t address, float2 values, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address), "f"(values.x),
               "f"(values.y), "r"(barrier)
               : "memory");
}
// Cluster startup: CTAs arrive at barrier.cluster early and wait late, to hide its latency. The arrive is relaxed,
// because fence.mbarrier_init already releases the initialized barriers.
CUTLASS_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
CUTLASS_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
CUTLASS_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
CUTLASS_DEVICE int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Programmatic dependent launch: lets the next kernel begin, and waits until the previous kernel's writes are visible.
CUTLASS_DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
CUTLASS_DEVICE void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Sets a flag for a warp of another CTA. __syncwarp orders the writes of all lanes before the release by lane 0.
CUTLASS_DEVICE void release_flag(uint32_t *flag) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
  }
}
CUTLASS_DEVICE void acquire_flag(uint32_t const *flag) {
  uint32_t is_there;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(is_there) : "l"(flag) : "memory");
    // The vote tells the compiler that the lanes leave the loop together.
  } while (!__all_sync(0xFFFFFFFFu, is_there != 0));
}
// Takes the next value of a global counter, one per warp.
CUTLASS_DEVICE int fetch_next(uint32_t *counter) {
  int next = 0;
  if (threadIdx.x % 32 == 0) {
    next = static_cast<int>(atomicAdd(counter, 1u));
  }
  return warp_uniform(next);
}
// Increments a counter once all lanes have written. A thread that acquires the count may then load the data by TMA:
// each lane's proxy fence orders its generic writes before async-proxy reads.
CUTLASS_DEVICE void release_add(uint32_t *counter) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
  }
}
// Waits, in one thread, until the counter is `count`. The proxy fence orders the TMA loads that follow.
CUTLASS_DEVICE void acquire_count(uint32_t const *counter, uint32_t count) {
  uint32_t counted;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(counted) : "l"(counter) : "memory");
  } while (counted != count);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Loads data that a previous kernel may have written. The compiler may move a read-only load above griddepcontrol.wait,
// but not these.
CUTLASS_DEVICE uint4 load_ordered(uint4 const *from) {
  uint4 result;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "l"(from));
  return result;
}
CUTLASS_DEVICE uint2 load_ordered(uint2 const *from) {
  uint2 result;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(result.x), "=r"(result.y) : "l"(from));
  return result;
}
CUTLASS_DEVICE uint32_t load_ordered(uint32_t const *from) {
  uint32_t result;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(result) : "l"(from));
  return result;
}
CUTLASS_DEVICE uint32_t load_ordered(uint16_t const *from) {
  uint32_t result;
  asm volatile("ld.global.u16 %0, [%1];" : "=r"(result) : "l"(from));
  return result;
}
CUTLASS_DEVICE uint32_t load_ordered(uint8_t const *from) {
  uint32_t result;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(result) : "l"(from));
  return result;
}
// Loads values that another CTA wrote. `ld.global.cg` caches them in L2 only, so that no stale line of L1 is read.
CUTLASS_DEVICE float4 load_l2(float const *from) {
  float4 result;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(result.x), "=f"(result.y), "=f"(result.z), "=f"(result.w)
               : "l"(from));
  return result;
}

// A position in a ring of stages: the stage, and the parity of the round. `next` has no branch, because a consumer has
// no other instructions to hide one behind.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;
  template <int kBy = 1>
  CUTLASS_DEVICE void next() {
    int const beyond = stage + kBy - kStages, inside = beyond >> 31;  // 0 if the ring wraps, else all ones
    stage = beyond - inside * kStages;
    phase ^= ~inside & 1;
  }
};

CUTLASS_DEVICE void tma_load(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to), "l"(&map), "r"(barrier), "r"(byte), "r"(row), "r"(matrix)
      : "memory");
}
// Loads data that is read once: the policy evicts it first from L2.
CUTLASS_DEVICE void tma_load_evict_first(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int matrix,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(byte), "r"(row), "r"(matrix), "l"(policy)
      : "memory");
}
// Loads rows of 128 bytes from one of several panels.
CUTLASS_DEVICE void tma_load_panel(CUtensorMap const &map, uint32_t to, uint32_t barrier, int row, int matrix, int panel) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::
          "r"(to), "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(matrix), "r"(panel)
      : "memory");
}
// Loads a run of rows from each of several groups of rows.
CUTLASS_DEVICE void tma_load_runs(CUtensorMap const &map, uint32_t to, uint32_t barrier, int byte, int row, int group, int matrix,
                                  uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(byte), "r"(row), "r"(group), "r"(matrix), "l"(policy)
      : "memory");
}
// Fetches a TMA descriptor before the first load that needs it.
CUTLASS_DEVICE void prefetch_tensor_map(CUtensorMap const &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

CUTLASS_DEVICE uint4 load_words(uint32_t address) {
  uint4 result;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(result.x), "=r"(result.y), "=r"(result.z), "=r"(result.w)
               : "r"(address));
  return result;
}
CUTLASS_DEVICE uint32_t load_word(uint32_t address) {
  uint32_t result;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(result) : "r"(address));
  return result;
}
CUTLASS_DEVICE uint32_t load_half(uint32_t address) {
  uint16_t result;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(result) : "r"(address));
  return result;
}
CUTLASS_DEVICE uint32_t load_byte(uint32_t address) {
  uint16_t result;
  asm volatile("ld.shared.u8 %0, [%1];" : "=h"(result) : "r"(address));
  return result;
}
CUTLASS_DEVICE void store_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
CUTLASS_DEVICE void store_words(uint32_t address, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
template <int N>
CUTLASS_DEVICE cutlass::Array<float, N> load_floats(uint32_t address) {
  cutlass::Array<float, N> result;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; i += 4) {
    uint4 const words = load_words(address + i * 4);
    result[i] = __uint_as_float(words.x), result[i + 1] = __uint_as_float(words.y);
    result[i + 2] = __uint_as_float(words.z), result[i + 3] = __uint_as_float(words.w);
  }
  return result;
}
// Prefetches 32 bytes into L2. It reads no value: later writes by others remain visible.
CUTLASS_DEVICE void prefetch_l2(void const *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory"); }
// Prefetches the scalars of the epilogue: those of 4 bytes, the least that cp.async copies, into L1, others into L2. No
// thread waits for the copies or reads `unused`. Each copy has its own word: two copies into one word are a hazard.
template <class Arguments>
CUTLASS_DEVICE void prefetch_scalars(Arguments const &epilogue, uint32_t unused) {
  for_each_scalar(epilogue, [&](auto const *number) {
    if constexpr (sizeof(*number) == 4) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(unused), "l"(number) : "memory");
      unused += 4;
    } else {
      prefetch_l2(number);
    }
  });
}
CUTLASS_DEVICE float2 load_pair(uint32_t address) {
  float2 result;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(result.x), "=f"(result.y) : "r"(address));
  return result;
}

// cp.async copies 16 bytes from global to shared memory, or writes zeros if `inside` is 0. A thread waits for all but
// its last kPending groups of copies. The evict_first policy suits data that is read once.
CUTLASS_DEVICE uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
CUTLASS_DEVICE void cp_async(uint32_t to, void const *from, uint32_t inside, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(inside), "l"(policy)
               : "memory");
}
CUTLASS_DEVICE void cp_async(uint32_t to, void const *from, uint32_t inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside) : "memory");
}
CUTLASS_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
CUTLASS_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

CUTLASS_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CUTLASS_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
CUTLASS_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Returns the wgmma descriptor of a K-major matrix in shared memory: rows of 128 bytes with 128-byte swizzle.
CUTLASS_DEVICE uint64_t descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// wgmma m64nNk16: d += a · b, with a in registers and b in shared memory.
template <int N>
struct Wgmma;

template <>
struct Wgmma<16> {
  CUTLASS_DEVICE static void run(float (&d)[8], uint32_t const (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." FOURFOLD_OPERAND_TYPE "." FOURFOLD_OPERAND_TYPE "\n{"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "},\n{%8, %9, %10, %11}, %12, 1, 1, 1, 0;\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

template <>
struct Wgmma<32> {
  CUTLASS_DEVICE static void run(float (&d)[16], uint32_t const (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." FOURFOLD_OPERAND_TYPE "." FOURFOLD_OPERAND_TYPE "\n{"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "},\n{%16, %17, %18, %19}, %20, 1, 1, 1, 0;\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

template <>
struct Wgmma<64> {
  CUTLASS_DEVICE static void run(float (&d)[32], uint32_t const (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." FOURFOLD_OPERAND_TYPE "." FOURFOLD_OPERAND_TYPE "\n{"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "},\n{%32, %33, %34, %35}, %36, 1, 1, 1, 0;\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

template <>
struct Wgmma<128> {
  CUTLASS_DEVICE static void run(float (&d)[64], uint32_t const (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." FOURFOLD_OPERAND_TYPE "." FOURFOLD_OPERAND_TYPE "\n{"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "},\n{%64, %65, %66, %67}, %68, 1, 1, 1, 0;\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

template <>
struct Wgmma<256> {
  CUTLASS_DEVICE static void run(float (&d)[128], uint32_t const (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." FOURFOLD_OPERAND_TYPE "." FOURFOLD_OPERAND_TYPE "\n{"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "},\n{%128, %129, %130, %131}, %132, 1, 1, 1, 0;\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

// Returns the lower half of the descriptor of e4m3 matrices without swizzle. Each has 8 columns by 32 codes: 16 codes
// of all columns, then the other 16, 128 bytes apart. WgmmaE4m3 adds the upper half: matrices are 256 bytes apart.
CUTLASS_DEVICE uint32_t unswizzled_descriptor(uint32_t address) { return (address & 0x3FFFF) >> 4 | 128 >> 4 << 16; }

// wgmma m64nNk32 of e4m3: d = a · b and d += a · b, with a in registers and b in shared memory.
template <int N>
struct WgmmaE4m3;

template <>
struct WgmmaE4m3<8> {
  CUTLASS_DEVICE static void begin(float (&d)[4], uint32_t const (&a)[4], uint32_t b) {
    asm volatile(
        "{\n.reg .b64 b;\nmov.b64 b, {%8, 16};\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3},\n{%4, %5, %6, %7}, b, 0, 1, 1;\n}\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
  }
  CUTLASS_DEVICE static void add(float (&d)[4], uint32_t const (&a)[4], uint32_t b) {
    asm volatile(
        "{\n.reg .b64 b;\nmov.b64 b, {%8, 16};\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3},\n{%4, %5, %6, %7}, b, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
  }
};

template <>
struct WgmmaE4m3<16> {
  CUTLASS_DEVICE static void begin(float (&d)[8], uint32_t const (&a)[4], uint32_t b) {
    asm volatile(
        "{\n.reg .b64 b;\nmov.b64 b, {%12, 16};\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7},\n{%8, %9, %10, %11}, b, 0, 1, 1;\n}\n"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
  }
  CUTLASS_DEVICE static void add(float (&d)[8], uint32_t const (&a)[4], uint32_t b) {
    asm volatile(
        "{\n.reg .b64 b;\nmov.b64 b, {%12, 16};\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7},\n{%8, %9, %10, %11}, b, 1, 1, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
  }
};

// Compiler fence for accumulators: reads that follow in the source are not moved above the preceding wgmma_wait.
template <int N>
CUTLASS_DEVICE void wgmma_fence_operand(float (&sums)[N]) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; ++i) {
    asm volatile("" : "+f"(sums[i])::"memory");
  }
}

// mma.sync m16n8k16 of one warp: d += a · b.
CUTLASS_DEVICE void mma(float (&d)[4], uint32_t const (&a)[4], uint32_t low, uint32_t high) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32." FOURFOLD_OPERAND_TYPE "." FOURFOLD_OPERAND_TYPE ".f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
}
#endif
