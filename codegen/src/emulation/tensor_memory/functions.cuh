// "elect.sync": afterwards, all lanes of the warp execute what one of them has queued.
extern "C" __device__ __noinline__ void fourfold_flush(uint32_t mask) {
  __syncwarp(mask);
  Queue &queue = queues[own_sm()];
  if (load(&queue.count) == 0 || load(&queue.warp) != warp_id()) {
    return;
  }
  if (mask != 0xFFFFFFFFu) {
    record(kPartialWarp, mask, 0, 0);
    return;
  }
  execute(queue, lane_id(), 32);
  fence_async();
  __syncwarp();
  if (lane_id() == 0) {
    store(&queue.count, 0);
    __threadfence();
  }
  __syncwarp();
}

// "tcgen05.alloc": waits until the SM's tensor memory is free, fills it with NaN, and stores the address 0.
extern "C" __device__ __noinline__ void fourfold_alloc(uint32_t at, uint32_t columns, uint32_t group) {
  uint32_t const sm = own_sm(), number = cta_number(rank_in_cluster());
  if (columns < 32 || columns > kColumns || (columns & columns - 1) != 0) {
    record(kColumnsOfAllocation, columns, 0, 0);
    columns = kColumns;
  }
  if (lane_id() == 0) {
    uint64_t const since = nanoseconds();
    while (atomicCAS(&fourfold_state.owner[sm], 0, number + 1) != 0) {
      if (nanoseconds() - since > kPatience) {
        record(kOccupied, sm, load(&fourfold_state.owner[sm]), 0);
        break;
      }
    }
    store(&fourfold_state.columns[sm], columns);
    queues[sm].count = 0;
  }
  __syncwarp();
  uint32_t *const words = fourfold_tensor_memory + sm * (kColumns * kLanes);
  for (uint32_t i = lane_id(); i < kColumns * kLanes; i += 32) {
    store(words + i, kNan);
  }
  __threadfence();
  __syncwarp();
  if (lane_id() == 0) {
    store(&fourfold_state.sm_of[number], sm + 1);
    if (group == 2) {
      uint64_t const since = nanoseconds();
      while (load(&fourfold_state.sm_of[number ^ 1]) == 0) {
        if (nanoseconds() - since > kPatience) {
          record(kNoPeer, number ^ 1, 0, 0);
          break;
        }
      }
    }
    __threadfence();
    store_shared(at, 0u);
  }
  __syncwarp();
}

// "tcgen05.dealloc". The last CTA of a launch resets what clusterlaunchcontrol has counted.
extern "C" __device__ __noinline__ void fourfold_dealloc(uint32_t address, uint32_t columns, uint32_t group) {
  uint32_t const sm = own_sm(), number = cta_number(rank_in_cluster());
  if (address != 0 || columns != load(&fourfold_state.columns[sm])) {
    record(kAddressOfDealloc, address, columns, 0);
  }
  uint32_t *const words = fourfold_tensor_memory + sm * (kColumns * kLanes);
  for (uint32_t i = lane_id(); i < kColumns * kLanes; i += 32) {
    store(words + i, kNan);
  }
  __threadfence();
  __syncwarp();
  if (lane_id() == 0) {
    store(&fourfold_state.sm_of[number], 0);
    uint32_t const begun = begun_clusters() * cluster_size();
    if (atomicAdd(&fourfold_state.done, 1) + 1 == begun) {
      store(&fourfold_state.done, 0);
      store(&fourfold_state.handed_out, 0);
    }
    __threadfence();
    atomicExch(&fourfold_state.owner[sm], 0);
  }
  __syncwarp();
}

// "tcgen05.cp".
extern "C" __device__ __noinline__ void fourfold_copy_scales(uint32_t to, uint64_t from, uint32_t group) {
  enqueue(Instruction{kCopy, group, to, 0, 0, 0, 0, from, 0});
}

// "tcgen05.mma" with .kind::mxf4nvf4 or .kind::mxf4, where `block` is the number of codes per scale, or with
// .kind::mxf8f6f4, where it is `kBytes`.
extern "C" __device__ __noinline__ void fourfold_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t descriptor, uint32_t sfa,
                                                     uint32_t sfb, uint32_t accumulates, uint32_t block,
                                                     uint32_t group) {
  enqueue(Instruction{block, group, d, descriptor, sfa, sfb, accumulates, a, b});
}

// "tcgen05.commit": arrives at a barrier once all that this thread has issued is done.
extern "C" __device__ __noinline__ void fourfold_commit(uint32_t barrier, uint32_t mask, uint32_t group, uint32_t multicast) {
  Queue &queue = queues[own_sm()];
  if (load(&queue.count) > 0 && load(&queue.warp) == warp_id()) {
    execute(queue, 0, 1);
    store(&queue.count, 0);
  }
  fence_async();
  __threadfence();
  if (multicast == 0) {
    barrier_arrive(barrier);
    return;
  }
  if (mask >> cluster_size() != 0) {
    record(kMulticast, mask, cluster_size(), group);
  }
  for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
    if ((mask >> rank & 1u) != 0) {
      barrier_arrive(shared_of(barrier, rank));
    }
  }
}

namespace {

// The first word of a warp's part of tensor memory. A warp may only access its own 32 lanes ("Access restrictions").
__device__ uint32_t *address_of_warp(uint32_t address, uint32_t count) {
  TensorMemory const memory(own_sm());
  uint32_t const column = address & 0xFFFFu, lane = address >> 16;
  if (lane != warp_id() % 4 * 32) {
    record(kLaneOfWarp, address, warp_id(), 0);
    return nullptr;
  }
  if (!memory.has(column, count)) {
    return nullptr;
  }
  return memory.at(column, warp_id() % 4 * 32 + lane_id());
}

// Stands for words that a warp may not access: loads give NaN, and stores are lost.
__device__ uint32_t nowhere[kMaxSms * kColumns * kLanes];

}  // namespace

// "tcgen05.ld": returns the address of the first of `count` words, 512 bytes apart.
extern "C" __device__ __noinline__ uint64_t fourfold_load_address(uint32_t address, uint32_t count) {
  uint32_t *at = address_of_warp(address, count);
  if (at == nullptr) {
    at = nowhere + own_sm() * (kColumns * kLanes) + warp_id() % 4 * 32 + lane_id();
    for (uint32_t i = 0; i < count; ++i) {
      store(at + i * kLanes, kNan);
    }
  }
  return __cvta_generic_to_global(at);
}

// "tcgen05.st".
extern "C" __device__ __noinline__ uint64_t fourfold_store_address(uint32_t address, uint32_t count) {
  uint32_t *const at = address_of_warp(address, count);
  return __cvta_generic_to_global(at != nullptr ? at : nowhere + own_sm() * (kColumns * kLanes) + threadIdx.x % 128);
}

// Returns whether the cluster begins. A third of the grid begins; clusterlaunchcontrol hands out the rest.
extern "C" __device__ __noinline__ uint32_t fourfold_enter() { return cluster_number() < begun_clusters() ? 1 : 0; }

// "clusterlaunchcontrol.try_cancel". The answer is x, y, z of the cluster's first CTA, and 1 if there is a cluster.
extern "C" __device__ __noinline__ void fourfold_try_cancel(uint32_t answer, uint32_t barrier, uint32_t multicast) {
  uint32_t const number = begun_clusters() + atomicAdd(&fourfold_state.handed_out, 1);
  bool const has = number < clusters_x() * clusters_y() * clusters_z();
  uint32_t const x = has ? number % clusters_x() * cluster_size_x() : 0;
  uint32_t const y = has ? number / clusters_x() % clusters_y() * cluster_size_y() : 0;
  uint32_t const z = has ? number / clusters_x() / clusters_y() * cluster_size_z() : 0;
  uint4 const value = {x, y, z, has ? 1u : 0u};
  if (multicast == 0 || cluster_size() == 1) {
    // st.async is an illegal instruction in a kernel that is launched without a cluster.
    store_shared(answer, value);
    __threadfence_block();
    fence_async();
    barrier_complete_own_tx(barrier, 16);
    return;
  }
  for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
    store_async(shared_of(answer, rank), value, shared_of(barrier, rank));
  }
}

// A failed mbarrier.try_wait: returns the time of the first in a row, and ends the thread after a while.
extern "C" __device__ __noinline__ uint64_t fourfold_waited(uint64_t since, uint32_t barrier, uint32_t parity) {
  uint64_t const now = nanoseconds();
  if (since == 0) {
    return now;
  }
  if (now - since > kPatience) {
    record(kStuck, barrier, parity, warp_id());
    exit_thread();
  }
  if (now - since > kShortPatience && load(&fourfold_state.fault) != kNone) {
    exit_thread();
  }
  return since;
}

// "cvt.rn.satfinite.e2m1x2.f32": `a` becomes the upper code. Ties round to the even code, and NaN becomes 6.
extern "C" __device__ __noinline__ uint32_t fourfold_e2m1x2(float a, float b) {
  auto const code = [](float x) -> uint32_t {
    float const m = fabsf(x);
    if (!(m == m)) {
      return 7;
    }
    uint32_t const magnitude = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
    return magnitude | __float_as_uint(x) >> 31 << 3;
  };
  return code(a) << 4 | code(b);
}

// The tensor copies of a CTA pair. Hopper signals only a barrier of the CTA that loads, so a load of such a pair uses a
// barrier of its own. 1,024 bytes keep the alignment of the kernel's shared memory.
__shared__ alignas(1024) uint64_t fourfold_own_barrier[128];

// Returns the address of that barrier, ready for `bytes` bytes.
extern "C" __device__ __noinline__ uint32_t fourfold_begin_load(uint32_t bytes) {
  uint32_t const barrier = static_cast<uint32_t>(__cvta_generic_to_shared(fourfold_own_barrier));
  barrier_init(barrier);
  fence_async();
  barrier_expect_tx(barrier, bytes);
  return barrier;
}

// "cp.async.bulk.tensor" with .cta_group::2: waits for the load, copies it to the other CTAs of the mask, and signals
// the barrier of the even CTA of each receiver's pair.
extern "C" __device__ __noinline__ void fourfold_finish_load(uint32_t to, uint32_t bytes, uint32_t barrier, uint32_t mask) {
  uint32_t const own = static_cast<uint32_t>(__cvta_generic_to_shared(fourfold_own_barrier));
  uint64_t const since = nanoseconds();
  while (!barrier_try_wait(own)) {
    if (nanoseconds() - since > kPatience) {
      record(kStuck, own, 0, warp_id());
      exit_thread();
    }
  }
  barrier_inval(own);
  if (mask >> cluster_size() != 0) {
    record(kMulticast, mask, cluster_size(), 2);
  }
  for (uint32_t rank = 0; rank < cluster_size(); ++rank) {
    if ((mask >> rank & 1u) == 0) {
      continue;
    }
    if (rank != rank_in_cluster()) {
      for (uint32_t i = 0; i < bytes; i += 16) {
        store_cluster(shared_of(to + i, rank), load_shared(to + i, false));
      }
    }
    fence_cluster();
    barrier_complete_tx(shared_of(barrier, rank & ~1u), bytes);
  }
}
