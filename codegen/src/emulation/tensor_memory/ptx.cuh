// Special registers and shared memory of the cluster. The host simulation of the tests replaces this file.

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

}  // namespace

