// Device functions that replace sm_100a instructions on sm_90a: tensor memory, tcgen05, and clusterlaunchcontrol.
//
// `rewrite_ptx` puts calls of the `extern "C"` functions in place of the instructions. Section names refer to the PTX
// ISA. Tensor memory is an array in global memory, one part per SM: at most one CTA fits an SM, because these kernels use
// more than half of its shared memory.
//
// A single thread issues tcgen05.cp and tcgen05.mma, but a whole warp executes them here. They wait in a queue until
// the warp's next elect.sync, where all lanes take part, or until the tcgen05.commit that waits for them.

extern "C" __device__ State fourfold_state;
__device__ State fourfold_state;

// The word of a lane and column is `column * kLanes + lane`, so that a warp's accesses are contiguous.
__device__ uint32_t fourfold_tensor_memory[kMaxSms * kColumns * kLanes];

namespace {

constexpr uint32_t kNan = 0xFFFFFFFFu;

// A wait ends after this many nanoseconds. After another thread's fault, it ends earlier.
constexpr uint64_t kPatience = 8'000'000'000, kShortPatience = 500'000'000;

// A copy of scales, and a multiplication whose elements have a byte each.
constexpr uint32_t kCopy = 0, kBytes = 1;

struct Instruction {
  // `kCopy`, `kBytes`, or the number of codes per scale.
  uint32_t block;
  uint32_t group, d, descriptor, sfa, sfb, accumulates;
  uint64_t a, b;
};

// The instructions that one warp has issued.
struct Queue {
  uint32_t count, warp;
  Instruction instructions[kQueue];
};

__device__ Queue queues[kMaxSms];

__device__ __forceinline__ uint32_t load(uint32_t const *at) { return *const_cast<uint32_t const volatile *>(at); }
__device__ __forceinline__ void store(uint32_t *at, uint32_t value) { *const_cast<uint32_t volatile *>(at) = value; }

// Records the first fault of a launch. The kernel goes on, with NaN for what cannot be computed.
__device__ __noinline__ void record(uint32_t fault, uint32_t a, uint32_t b, uint32_t c) {
  if (atomicCAS(&fourfold_state.fault, kNone, fault) == kNone) {
    State &state = fourfold_state;
    state.values[0] = a;
    state.values[1] = b;
    state.values[2] = c;
    state.block[0] = blockIdx.x;
    state.block[1] = blockIdx.y;
    state.block[2] = blockIdx.z;
    state.thread = threadIdx.x;
  }
}

__device__ uint32_t warp_id() { return threadIdx.x / 32; }

__device__ uint32_t own_sm() {
  uint32_t const sm = sm_id();
  if (sm >= kMaxSms) {
    record(kTooManySms, sm, 0, 0);
    return kMaxSms - 1;
  }
  return sm;
}

__device__ uint32_t cluster_number() { return cluster_x() + clusters_x() * (cluster_y() + clusters_y() * cluster_z()); }

// The number of a CTA among those that run. A CTA of another number would need a larger table.
__device__ uint32_t cta_number(uint32_t rank) {
  uint32_t const number = cluster_number() * cluster_size() + rank;
  if (number >= kMaxCtas) {
    record(kTooManyCtas, number, 0, 0);
    return kMaxCtas - 1;
  }
  return number;
}

// The tensor memory of one SM.
struct TensorMemory {
  uint32_t *words;
  uint32_t columns;

  __device__ explicit TensorMemory(uint32_t sm)
      : words(fourfold_tensor_memory + sm * (kColumns * kLanes)), columns(load(&fourfold_state.columns[sm])) {}

  // Returns whether the columns are allocated.
  __device__ bool has(uint32_t first, uint32_t count) const {
    if (first + count > columns) {
      record(kBeyondAllocation, first, count, columns);
      return false;
    }
    return true;
  }

  __device__ uint32_t *at(uint32_t column, uint32_t lane) const { return words + column * kLanes + lane; }
};

// A CTA that takes part in an instruction: the own one, or the other of the pair.
struct Cta {
  uint32_t shared;
  bool remote;
  TensorMemory memory;

  __device__ Cta(uint32_t rank, bool remote, uint32_t sm) : shared(shared_of(0, rank)), remote(remote), memory(sm) {}

  // Returns whether the CTA has 16 bytes at an offset in shared memory. All CTAs have as much.
  __device__ bool has(uint32_t offset) const {
    if (offset + 16 > shared_bytes()) {
      record(kBeyondShared, offset, shared_bytes(), 0);
      return false;
    }
    return true;
  }

  __device__ uint4 load(uint32_t offset) const { return load_shared(shared + offset, remote); }
};

// Returns the own CTA if there is no other, whose results are then not valid.
__device__ Cta cta_of_pair(uint32_t group, uint32_t index, bool &valid) {
  uint32_t const own = rank_in_cluster(), rank = group == 1 ? own : (own & ~1u) + index;
  if (rank == own) {
    return Cta(rank, false, own_sm());
  }
  uint32_t const sm = load(&fourfold_state.sm_of[cta_number(rank)]);
  if (sm == 0) {
    record(kNoPeer, rank, 0, 0);
    valid = false;
    return Cta(own, false, own_sm());
  }
  return Cta(rank, true, sm - 1);
}

// The column of a tensor-memory address whose lane must be 0 ("Tensor Memory Addressing").
__device__ uint32_t column_of(uint32_t address, bool &valid) {
  if (address >> 16 != 0) {
    record(kLaneOfAddress, address, 0, 0);
    valid = false;
  }
  return address & 0xFFFFu;
}

// The clusters that begin; clusterlaunchcontrol hands out the others. Without it, all begin.
__device__ uint32_t begun_clusters() {
  uint32_t const clusters = clusters_x() * clusters_y() * clusters_z();
  return min((clusters + 2) / 3, max(sm_count() / cluster_size(), 1u));
}

