// Special registers, shared memory of the cluster, barriers and fences: all inline PTX of these device functions. The
// host simulation of the tests replaces this file.

using namespace fourfold_emulation;

namespace {

#define FOURFOLD_SPECIAL(name, text)                     \
  __device__ __forceinline__ uint32_t name() {           \
    uint32_t value;                                      \
    asm volatile("mov.u32 %0, " text ";" : "=r"(value)); \
    return value;                                        \
  }
FOURFOLD_SPECIAL(sm_id, "%smid")
FOURFOLD_SPECIAL(sm_count, "%nsmid")
FOURFOLD_SPECIAL(lane_id, "%laneid")
FOURFOLD_SPECIAL(rank_in_cluster, "%cluster_ctarank")
FOURFOLD_SPECIAL(cluster_size, "%cluster_nctarank")
FOURFOLD_SPECIAL(cluster_x, "%clusterid.x")
FOURFOLD_SPECIAL(cluster_y, "%clusterid.y")
FOURFOLD_SPECIAL(cluster_z, "%clusterid.z")
FOURFOLD_SPECIAL(clusters_x, "%nclusterid.x")
FOURFOLD_SPECIAL(clusters_y, "%nclusterid.y")
FOURFOLD_SPECIAL(clusters_z, "%nclusterid.z")
FOURFOLD_SPECIAL(cluster_size_x, "%cluster_nctaid.x")
FOURFOLD_SPECIAL(cluster_size_y, "%cluster_nctaid.y")
FOURFOLD_SPECIAL(cluster_size_z, "%cluster_nctaid.z")
// Includes what the system reserves at the begin.
FOURFOLD_SPECIAL(shared_bytes, "%aggr_smem_size")

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t value;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}

// The address of shared memory of a CTA of the cluster. In a cluster, addresses have the rank of their CTA above the
// offset; descriptors have only the offset.
__device__ __forceinline__ uint32_t shared_of(uint32_t address, uint32_t rank) {
  uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

__device__ __forceinline__ uint4 load_shared(uint32_t address, bool remote) {
  uint4 value;
  if (remote) {
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ld.shared::cta.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
  }
  return value;
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared::cta.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, uint4 value) {
  asm volatile("st.shared::cta.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void store_cluster(uint32_t address, uint4 value) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// Stores to a CTA of the cluster, and completes 16 bytes of a barrier there.
__device__ __forceinline__ void store_async(uint32_t address, uint4 value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

// Initializes a barrier of this CTA for one arrival.
__device__ __forceinline__ void barrier_init(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_inval(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Returns whether phase 0 of a barrier is complete, perhaps after a while.
__device__ __forceinline__ bool barrier_try_wait(uint32_t barrier) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(barrier)
               : "memory");
  return done != 0;
}

// Arrives at a barrier of a CTA of the cluster.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Completes bytes of a barrier of a CTA of the cluster.
__device__ __forceinline__ void barrier_complete_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// The same for a barrier of this CTA, in a kernel that may be launched without a cluster.
__device__ __forceinline__ void barrier_complete_own_tx(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void exit_thread() { asm volatile("exit;"); }

}  // namespace
