// Runs a block quantization kernel on the host through its C interface, with a stand-in driver. A launch runs one CTA
// after the other, whose threads take turns. The threads of a warp wait for each other where they exchange values.
// Reads calls from the standard input and writes the outputs to the standard output.

#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

namespace simulation {

constexpr int kStack = 64 << 10, kMostThreads = 1024;

struct Index {
  unsigned x;
} thread, block;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool is_done;
};

// Threads that wait for each other, and the values that they exchange. Two buffers alternate, because a thread may
// write its next value before another has read the last.
struct Warp {
  int arrived = 0;
  unsigned generation = 0;
  uint32_t values[2][32];
};

ucontext_t scheduler;
std::vector<Fiber> fibers(kMostThreads);
std::vector<Warp> warps(kMostThreads / 32);
std::function<void()> body;

void enter() {
  unsigned const own = thread.x;
  body();
  fibers[own].is_done = true;
}

void run_block(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) {
    Fiber &fiber = fibers[i];
    fiber.is_done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, enter, 0);
  }
  for (bool is_left = true; is_left;) {
    is_left = false;
    for (unsigned i = 0; i < threads; ++i) {
      if (!fibers[i].is_done) {
        is_left = true;
        thread.x = i;
        swapcontext(&scheduler, &fibers[i].context);
      }
    }
  }
}

[[noreturn]] void fail(char const *what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

}  // namespace simulation

// Definitions that the device code expects.
#define threadIdx simulation::thread
#define blockIdx simulation::block
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

inline uint32_t __shfl_xor_sync(uint32_t, uint32_t x, int bit) {
  using namespace simulation;
  unsigned const own = thread.x;
  Warp &warp = warps[own / 32];
  unsigned const generation = warp.generation;
  uint32_t *values = warp.values[generation % 2];
  values[own % 32] = x;
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    ++warp.generation;
  }
  while (warp.generation == generation) {
    swapcontext(&fibers[own].context, &scheduler);
    thread.x = own;
  }
  return values[own % 32 ^ bit];
}

struct Half {
  unsigned short bits;
};
inline Half __ushort_as_half(unsigned short bits) { return {bits}; }
inline float __half2float(Half half) {
  int const exponent = half.bits >> 10 & 31, mantissa = half.bits & 1023;
  float const magnitude = exponent == 0    ? static_cast<float>(mantissa) * 0x1p-24f
                          : exponent < 31  ? static_cast<float>(1024 + mantissa) * static_cast<float>(1u << exponent) * 0x1p-25f
                          : mantissa == 0  ? __builtin_inff()
                                           : __builtin_nanf("");
  return half.bits >> 15 ? -magnitude : magnitude;
}

// The parts of the runtime and the driver that the host code calls.
using cudaError_t = int;
using CUresult = int;
constexpr cudaError_t cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorInsufficientDriver = 35;
using CUfunction = void const *;
using CUkernel = void const *;
using cudaKernel_t = void const *;
using cudaStream_t = void *;
enum cudaDriverEntryPointQueryResult { kFound };
enum { cudaEnableDefault, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x, unsigned y, unsigned z) : x(x), y(y), z(z) {}
};
struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  cudaStream_t hStream;
};
CUresult cuLaunchKernelEx(CUlaunchConfig const *, CUfunction, void **, void **);
inline CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) { return *function = kernel, cudaSuccess; }
inline CUresult cuFuncSetAttribute(CUfunction, int, int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline char const *cudaGetErrorString(cudaError_t) { return "a CUDA error"; }
inline cudaError_t cudaGetKernel(cudaKernel_t *kernel, void const *function) { return *kernel = function, cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void *to, int byte, size_t size, cudaStream_t) {
  std::memset(to, byte, size);
  return cudaSuccess;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(char const *name, void **found, unsigned, int,
                                                    cudaDriverEntryPointQueryResult *result) {
  auto const is = [&](char const *other) { return std::strcmp(name, other) == 0; };
  *found = is("cuLaunchKernelEx")      ? reinterpret_cast<void *>(&cuLaunchKernelEx)
           : is("cuKernelGetFunction") ? reinterpret_cast<void *>(&cuKernelGetFunction)
           : is("cuFuncSetAttribute")  ? reinterpret_cast<void *>(&cuFuncSetAttribute)
                                       : nullptr;
  *result = kFound;
  return cudaSuccess;
}

// The CUDA headers that it includes are empty files in the same folder.
#include "kernel.cu"

CUresult cuLaunchKernelEx(CUlaunchConfig const *config, CUfunction function, void **parameters, void **) {
  auto *kernel = reinterpret_cast<void (*)(fourfold::Parameters)>(const_cast<void *>(function));
  auto const &given = *static_cast<fourfold::Parameters const *>(parameters[0]);
  if (config->gridDimX == 0 || config->gridDimY != 1 || config->gridDimZ != 1 || config->blockDimX % 32 != 0 ||
      config->blockDimX > simulation::kMostThreads) {
    simulation::fail("no such launch");
  }
  simulation::body = [=] { kernel(given); };
  for (unsigned i = 0; i < config->gridDimX; ++i) {
    simulation::block.x = i;
    simulation::run_block(config->blockDimX);
  }
  return cudaSuccess;
}

constexpr size_t kPage = 4096, kMargin = 64, kAlignment = 16;

// Returns memory that ends at a guard page.
uint8_t *ending(size_t size) {
  size_t const pages = (size + kPage - 1) / kPage * kPage;
  void *memory = mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(static_cast<uint8_t *>(memory) + pages, kPage, PROT_NONE) != 0) {
    simulation::fail("no memory");
  }
  return static_cast<uint8_t *>(memory) + pages - size;
}

void read(void *to, size_t size) {
  if (std::fread(to, 1, size, stdin) != size) {
    simulation::fail("the input ends early");
  }
}

// Each call is three extents, the bytes of the values, the values, and the scale of the tensor if there is one.
int main(int argc, char **argv) {
  bool const has_global = argc > 1 && std::strcmp(argv[1], "global") == 0;
  Device const device = {};
  char message[256] = {};
  for (int64_t given[4]; std::fread(given, sizeof(given), 1, stdin) == 1;) {
    Extents const extents = { {given[0], given[1], given[2]}, 3};
    uint8_t *values = ending(given[3]);
    read(values, given[3]);
    float global = 0.0f;
    Requirements requirements;
    if (fourfold_query(&device, &extents, &requirements, message, sizeof(message)) != 0 || requirements.workspace != 0) {
      simulation::fail(message);
    }
    std::vector<std::vector<uint8_t>> outputs;
    Addresses addresses = {};
    addresses.operands[addresses.operand_count++] = values;
    if (has_global) {
      read(&global, sizeof(global));
      addresses.scalars[addresses.scalar_count++] = &global;
    }
    void *prepared = nullptr;
    if (fourfold_prepare(&device, &extents, &addresses, nullptr, 0, nullptr, &prepared, message, sizeof(message)) != kPointer ||
        prepared != nullptr) {
      simulation::fail("it was prepared without outputs");
    }
    for (int i = 0; i < 2; ++i) {
      outputs.emplace_back(requirements.outputs[i] + 2 * kMargin + kAlignment, 0xEE);
      auto const address = reinterpret_cast<uintptr_t>(outputs[i].data() + kMargin);
      auto const aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
      addresses.outputs[addresses.output_count++] = reinterpret_cast<void *>(aligned);
    }
    if (fourfold_prepare(&device, &extents, &addresses, nullptr, 0, nullptr, &prepared, message, sizeof(message)) != 0) {
      simulation::fail(message);
    }
    if (fourfold_launch(prepared, nullptr) != 0) {
      simulation::fail("it was not launched");
    }
    fourfold_destroy(prepared);
    for (int i = 0; i < 2; ++i) {
      auto const *written = static_cast<uint8_t const *>(addresses.outputs[i]);
      for (uint8_t const *byte = outputs[i].data(); byte != outputs[i].data() + outputs[i].size(); ++byte) {
        if ((byte < written || byte >= written + requirements.outputs[i]) && *byte != 0xEE) {
          simulation::fail("something was written beside an output");
        }
      }
      std::fwrite(&requirements.outputs[i], sizeof(uint64_t), 1, stdout);
      std::fwrite(written, 1, requirements.outputs[i], stdout);
    }
  }
}
