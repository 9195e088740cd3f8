// Runs a row or column kernel on the host, through its C interface. The threads of a CTA take turns, and wait for each other where
// they exchange numbers. Reads a call from the standard input and writes each output, with guards, to the standard output.

#include <ucontext.h>

#include <cstdlib>
#include <functional>
#include <vector>

#include "kernel.cu"

thread_local dim3 threadIdx, blockIdx, gridDim;

namespace simulation {

// The most threads of a cluster.
constexpr int kMost = 8 * 1024, kStack = 128 << 10;

// Threads that wait for each other: a warp, a CTA or a cluster.
struct Group {
  int size = 0, arrived = 0;
  unsigned generation = 0;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
};

ucontext_t scheduler;
std::vector<Fiber> fibers(kMost);
Group warps[kMost / 32], blocks[8], cluster;
// The shared memory of each CTA of the cluster, with room around it.
std::vector<uint64_t> memories[8];
unsigned own, block_threads;
float slots[kMost];
std::function<void()> body;

void wait(Group &group) {
  unsigned const generation = group.generation, thread = own;
  if (++group.arrived == group.size) {
    group.arrived = 0;
    ++group.generation;
    return;
  }
  while (group.generation == generation) {
    swapcontext(&fibers[thread].context, &scheduler);
  }
}

void enter() {
  unsigned const thread = own;
  body();
  fibers[thread].done = true;
}

// Runs CTAs that may exchange numbers, of which `first` is the first.
void run_cluster(unsigned first, unsigned ctas, unsigned threads, unsigned bytes) {
  block_threads = threads;
  cluster = {static_cast<int>(ctas * threads)};
  std::fill(std::begin(blocks), std::end(blocks), Group{static_cast<int>(threads)});
  std::fill(std::begin(warps), std::end(warps), Group{32});
  for (unsigned i = 0; i < ctas; ++i) {
    memories[i].assign(bytes / 8 + 8, 0xA5A5A5A5A5A5A5A5u);
  }
  for (unsigned i = 0; i < ctas * threads; ++i) {
    fibers[i].stack.resize(kStack);
    fibers[i].done = false;
    getcontext(&fibers[i].context);
    fibers[i].context.uc_stack.ss_sp = fibers[i].stack.data();
    fibers[i].context.uc_stack.ss_size = kStack;
    fibers[i].context.uc_link = &scheduler;
    makecontext(&fibers[i].context, enter, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (unsigned i = 0; i < ctas * threads; ++i) {
      if (!fibers[i].done) {
        left = true;
        own = i;
        threadIdx.x = i % threads;
        blockIdx = dim3(first + i / threads, 0, 0);
        swapcontext(&scheduler, &fibers[i].context);
      }
    }
  }
}

uint8_t *memory(unsigned cta) {
  auto const start = reinterpret_cast<uintptr_t>(memories[cta].data());
  return reinterpret_cast<uint8_t *>((start + 15) / 16 * 16);
}

}  // namespace simulation

uint8_t *dynamic_memory() { return simulation::memory(simulation::own / simulation::block_threads); }
void store_to_cta(float *to, uint32_t rank, float x) {
  auto const distance = reinterpret_cast<uint8_t *>(to) - dynamic_memory();
  *reinterpret_cast<float *>(simulation::memory(rank) + distance) = x;
}
void sync_cluster() { simulation::wait(simulation::cluster); }

float __shfl_xor_sync(unsigned, float x, int distance) {
  unsigned const own = simulation::own;
  simulation::slots[own] = x;
  simulation::wait(simulation::warps[own / 32]);
  float const result = simulation::slots[own ^ static_cast<unsigned>(distance)];
  simulation::wait(simulation::warps[own / 32]);
  return result;
}
void __syncthreads() { simulation::wait(simulation::blocks[simulation::own / simulation::block_threads]); }

CUresult cuLaunchKernelEx(CUlaunchConfig const *config, CUfunction, void **parameters, void **) {
  auto const &own = *static_cast<fourfold::Parameters *>(parameters[0]);
  gridDim = dim3(config->gridDimX, config->gridDimY, config->gridDimZ);
  simulation::body = [&] { kernel<sizeof(fourfold::Parameters), kThreads>(own); };
  unsigned ctas = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      ctas = config->attrs[i].value.clusterDim.x;
    }
  }
  for (unsigned first = 0; first < config->gridDimX; first += ctas) {
    simulation::run_cluster(first, ctas, config->blockDimX, config->sharedMemBytes);
  }
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel) {
  *function = nullptr;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

cudaError_t cudaGetDriverEntryPointByVersion(char const *name, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *) {
  bool const launches = std::strcmp(name, "cuLaunchKernelEx") == 0, finds = std::strcmp(name, "cuKernelGetFunction") == 0;
  *function = launches ? reinterpret_cast<void *>(&cuLaunchKernelEx)
              : finds  ? reinterpret_cast<void *>(&cuKernelGetFunction)
                       : reinterpret_cast<void *>(&cuFuncSetAttribute);
  return cudaSuccess;
}

template <class T>
T read() {
  T value;
  if (std::fread(&value, sizeof(value), 1, stdin) != 1) {
    std::exit(0);
  }
  return value;
}

// Memory at a distance from a multiple of 256 bytes, with guards around it.
struct Buffer {
  static constexpr size_t kGuard = 64;
  size_t bytes, distance;
  std::vector<uint8_t> memory;
  Buffer(size_t bytes, size_t distance) : bytes(bytes), distance(distance), memory(bytes + 512, 0xA5) {}
  uint8_t *data() {
    auto const start = (reinterpret_cast<uintptr_t>(memory.data()) + kGuard + 255) / 256 * 256;
    return reinterpret_cast<uint8_t *>(start + distance);
  }
};

void check(int32_t status, char const *message) {
  if (status != kOk) {
    std::fprintf(stderr, "status %d: %s\n", status, message);
    std::exit(2);
  }
}

int main() {
  for (;;) {
    Extents extents = {};
    extents.count = read<uint32_t>();
    for (uint32_t i = 0; i < extents.count; ++i) {
      extents.values[i] = read<int64_t>();
    }
    std::vector<Buffer> lists[2];
    for (auto &list : lists) {
      uint32_t const count = read<uint32_t>();
      for (uint32_t i = 0; i < count; ++i) {
        size_t const bytes = read<uint32_t>(), distance = read<uint32_t>();
        list.emplace_back(bytes, distance);
        if (&list == &lists[0] && std::fread(list.back().data(), 1, bytes, stdin) != bytes) {
          return 3;
        }
      }
    }
    auto &[operands, outputs] = lists;
    Addresses addresses = {};
    addresses.operand_count = static_cast<uint32_t>(operands.size());
    addresses.output_count = static_cast<uint32_t>(outputs.size());
    for (size_t i = 0; i < operands.size(); ++i) {
      addresses.operands[i] = operands[i].data();
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      addresses.outputs[i] = outputs[i].data();
    }
    Device const device = {1, 0};
    Requirements requirements;
    char message[256] = {};
    check(fourfold_query(&device, &extents, &requirements, message, sizeof(message)), message);
    for (size_t i = 0; i < outputs.size(); ++i) {
      check(requirements.outputs[i] == outputs[i].bytes ? kOk : kInvalid, "an output has another size");
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      uint64_t const bytes = requirements.operands[i];
      check(bytes == 0 || bytes == operands[i].bytes ? kOk : kInvalid, "an operand has another size");
    }
    Buffer workspace(requirements.workspace, 0);
    void *prepared = nullptr;
    check(fourfold_prepare(&device, &extents, &addresses, workspace.data(), workspace.bytes, nullptr, &prepared, message,
                           sizeof(message)),
          message);
    check(fourfold_update_pointers(prepared, &addresses, message, sizeof(message)), message);
    // The second launch writes over the results of the first.
    for (int launch = 0; launch < 2; ++launch) {
      check(fourfold_launch(prepared, nullptr), "the launch fails");
    }
    fourfold_destroy(prepared);
    for (size_t i = 0; i < Buffer::kGuard; ++i) {
      bool const is_kept = workspace.data()[workspace.bytes + i] == 0xA5 && *(workspace.data() - 1 - i) == 0xA5;
      check(is_kept ? kOk : kInvalid, "the kernel writes outside its workspace");
    }
    for (auto &output : outputs) {
      std::fwrite(output.data() - Buffer::kGuard, 1, output.bytes + 2 * Buffer::kGuard, stdout);
    }
  }
}
