// Runs the device functions of emulated tensor memory on the host. Reads commands from the standard input, and writes
// their results to the standard output: words of 32 bits, in the order of the host's bytes.
//
// Each thread of a call is a fiber. Fibers switch only at __syncwarp and where they wait. Few headers are included:
// tests compile this text many times.

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__

struct uint4 {
  uint32_t x, y, z, w;
};
struct uint3 {
  uint32_t x, y, z;
};

namespace simulation {

constexpr uint32_t kCtas = 2, kFibers = kCtas * 32, kStack = 64 << 10, kEvents = 4096;
// The window of shared memory, with room for every offset of a descriptor and for the bytes after it.
constexpr uint32_t kShared = (256 << 10) + (64 << 10), kPiece = 16;

// Values that a test sets, in this order.
struct Registers {
  uint32_t sm[kCtas];
  uint32_t sm_count, cluster_size, shared_bytes;
  uint32_t cluster[3], clusters[3], cluster_extents[3];
  // True if a barrier's phase 0 is complete, and if higher lanes run first.
  uint32_t complete, descending;
} registers;

struct Fiber {
  ucontext_t context;
  uint32_t cta, syncs;
  uint3 index;
  bool done;
  uint64_t result;
};

ucontext_t scheduler;
Fiber fibers[kFibers];
char stacks[kFibers][kStack];
uint32_t fiber_count = 0;
Fiber *current = nullptr;
void (*body)() = nullptr;
uint64_t now = 0;

uint8_t shared[kCtas][kShared];
bool written[kCtas][kShared / kPiece];
// Reads of shared memory that nothing wrote, and accesses with the wrong state space or alignment.
uint32_t unwritten = 0, misused = 0;

// An operation of a barrier, or a fence: a kind, the address, and a value.
struct Event {
  uint32_t kind, address, value;
};
enum Kind : uint32_t {
  kArrive = 1,
  kCompleteTx,
  kCompleteOwnTx,
  kStoreAsync,
  kInit,
  kInval,
  kExpectTx,
  kFenceAsync,
  kFenceCluster,
};
Event events[kEvents];
uint32_t event_count = 0;

void yield() { swapcontext(&current->context, &scheduler); }

[[noreturn]] void end() {
  current->done = true;
  yield();
  std::abort();
}

void enter() {
  body();
  end();
}

void run() {
  for (uint32_t i = 0; i < fiber_count; ++i) {
    Fiber &fiber = fibers[i];
    fiber.done = false, fiber.syncs = 0, fiber.result = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks[i];
    fiber.context.uc_stack.ss_size = kStack;
    makecontext(&fiber.context, enter, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (uint32_t i = 0; i < fiber_count; ++i) {
      Fiber &fiber = fibers[registers.descending != 0 ? fiber_count - 1 - i : i];
      if (!fiber.done) {
        left = true;
        current = &fiber;
        swapcontext(&scheduler, &fiber.context);
      }
    }
  }
}

// Waits for the threads of the warp that have not ended.
void sync() {
  uint32_t const mine = ++current->syncs;
  for (uint32_t i = 0; i < fiber_count; ++i) {
    while (fibers[i].cta == current->cta && !fibers[i].done && fibers[i].syncs < mine) {
      yield();
    }
  }
}

// Returns bytes of shared memory. The rank of the CTA is above the offset.
uint8_t *at(uint32_t address, uint32_t alignment) {
  uint32_t const rank = address >> 24, offset = address & 0xFFFFFFu;
  if (rank >= kCtas || offset + alignment > kShared || offset % alignment != 0) {
    std::fprintf(stderr, "no shared memory at 0x%x\n", address);
    std::exit(1);
  }
  return shared[rank] + offset;
}

void mark(uint32_t address) { written[address >> 24][(address & 0xFFFFFFu) / kPiece] = true; }

}  // namespace simulation

// Definitions that the device code expects.
#define threadIdx simulation::current->index
uint3 blockIdx;
inline void __syncwarp(uint32_t = 0xFFFFFFFFu) { simulation::sync(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class To, class From>
To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline float __int_as_float(int x) { return bits_of<float>(x); }
inline float __uint_as_float(uint32_t x) { return bits_of<float>(x); }
inline uint32_t __float_as_uint(float x) { return bits_of<uint32_t>(x); }
inline double __longlong_as_double(long long x) { return bits_of<double>(x); }
inline float fabsf(float x) { return x < 0 ? -x : x; }
inline uint32_t min(uint32_t x, uint32_t y) { return x < y ? x : y; }
inline uint32_t max(uint32_t x, uint32_t y) { return x > y ? x : y; }
inline uint32_t atomicCAS(uint32_t *at, uint32_t expected, uint32_t value) {
  uint32_t const old = *at;
  *at = old == expected ? value : old;
  return old;
}
inline uint32_t atomicAdd(uint32_t *at, uint32_t value) { return (*at += value) - value; }
inline uint32_t atomicExch(uint32_t *at, uint32_t value) {
  uint32_t const old = *at;
  *at = value;
  return old;
}
// Without the replication of signs, which the device code does not use.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  uint64_t const bytes = static_cast<uint64_t>(y) << 32 | x;
  return (bytes >> ((selector & 7u) << 3) & 0xFFu) | (bytes >> ((selector >> 4 & 7u) << 3) & 0xFFu) << 8 |
         (bytes >> ((selector >> 8 & 7u) << 3) & 0xFFu) << 16 | (bytes >> ((selector >> 12 & 7u) << 3) & 0xFFu) << 24;
}
// The highest bits of bytes are subtracted apart, so that no byte borrows from the next.
inline uint32_t __vsub4(uint32_t x, uint32_t y) {
  return ((x | 0x80808080u) - (y & 0x7F7F7F7Fu)) ^ ((x ^ ~y) & 0x80808080u);
}
inline int __dp4a(int x, int y, int sum) {
  for (int i = 0; i < 32; i += 8) {
    sum += static_cast<int8_t>(x >> i) * static_cast<int8_t>(y >> i);
  }
  return sum;
}
inline uint64_t __cvta_generic_to_global(void const *at) { return reinterpret_cast<uint64_t>(at); }
// The only variable in shared memory is the barrier of the emulation.
constexpr uint32_t kOwnBarrier = 2048;
inline size_t __cvta_generic_to_shared(void const *) { return kOwnBarrier; }

STATE

using namespace fourfold_emulation;

// Replaces the definitions of ptx.cuh.
namespace {

uint32_t sm_id() { return simulation::registers.sm[simulation::current->cta]; }
uint32_t sm_count() { return simulation::registers.sm_count; }
uint32_t lane_id() { return threadIdx.x % 32; }
uint32_t rank_in_cluster() { return simulation::current->cta; }
uint32_t cluster_size() { return simulation::registers.cluster_size; }
uint32_t cluster_x() { return simulation::registers.cluster[0]; }
uint32_t cluster_y() { return simulation::registers.cluster[1]; }
uint32_t cluster_z() { return simulation::registers.cluster[2]; }
uint32_t clusters_x() { return simulation::registers.clusters[0]; }
uint32_t clusters_y() { return simulation::registers.clusters[1]; }
uint32_t clusters_z() { return simulation::registers.clusters[2]; }
uint32_t cluster_size_x() { return simulation::registers.cluster_extents[0]; }
uint32_t cluster_size_y() { return simulation::registers.cluster_extents[1]; }
uint32_t cluster_size_z() { return simulation::registers.cluster_extents[2]; }
uint32_t shared_bytes() { return simulation::registers.shared_bytes; }

// Time passes only while threads wait.
uint64_t nanoseconds() {
  simulation::now += 10'000'000;
  simulation::yield();
  return simulation::now;
}

uint32_t shared_of(uint32_t address, uint32_t rank) { return (address & 0xFFFFFFu) | rank << 24; }

uint4 load_shared(uint32_t address, bool remote) {
  uint32_t const rank = address >> 24, own = simulation::current->cta;
  // An address without a rank is one of this CTA in .shared::cta.
  if (!remote && rank == 0) {
    address = shared_of(address, own);
  }
  simulation::misused += remote == (address >> 24 == own);
  uint4 value;
  std::memcpy(&value, simulation::at(address, 16), sizeof(value));
  simulation::unwritten += !simulation::written[address >> 24][(address & 0xFFFFFFu) / 16];
  return value;
}

void store_shared(uint32_t address, uint32_t value) {
  std::memcpy(simulation::at(shared_of(address, simulation::current->cta), 4), &value, sizeof(value));
}

void store_cluster(uint32_t address, uint4 value) {
  std::memcpy(simulation::at(address, 16), &value, sizeof(value));
  simulation::mark(address);
}

void store_shared(uint32_t address, uint4 value) { store_cluster(shared_of(address, simulation::current->cta), value); }

void event(uint32_t kind, uint32_t address, uint32_t value) {
  if (simulation::event_count == simulation::kEvents) {
    std::exit(1);
  }
  simulation::events[simulation::event_count++] = {kind, address, value};
}

void store_async(uint32_t address, uint4 value, uint32_t barrier) {
  store_cluster(address, value);
  simulation::misused += address >> 24 != barrier >> 24;
  event(simulation::kStoreAsync, barrier, 16);
}

void fence_async() { event(simulation::kFenceAsync, 0, 0); }
void fence_cluster() { event(simulation::kFenceCluster, 0, 0); }
void barrier_init(uint32_t barrier) { event(simulation::kInit, barrier, 1); }
void barrier_inval(uint32_t barrier) { event(simulation::kInval, barrier, 0); }
void barrier_expect_tx(uint32_t barrier, uint32_t bytes) { event(simulation::kExpectTx, barrier, bytes); }
bool barrier_try_wait(uint32_t) { return simulation::registers.complete != 0; }
void barrier_arrive(uint32_t barrier) { event(simulation::kArrive, barrier, 1); }
void barrier_complete_tx(uint32_t barrier, uint32_t bytes) { event(simulation::kCompleteTx, barrier, bytes); }
void barrier_complete_own_tx(uint32_t barrier, uint32_t bytes) { event(simulation::kCompleteOwnTx, barrier, bytes); }
[[noreturn]] void exit_thread() { simulation::end(); }

}  // namespace

DEVICE

namespace simulation {

uint32_t read_word() {
  uint32_t word;
  if (std::fread(&word, sizeof(word), 1, stdin) != 1) {
    std::exit(0);
  }
  return word;
}

void read_bytes(void *to, size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) {
    std::exit(1);
  }
}

void write_bytes(void const *from, size_t bytes) { std::fwrite(from, 1, bytes, stdout); }
void write_word(uint32_t word) { write_bytes(&word, sizeof(word)); }

// Clears everything, and fills memory with NaN.
void reset() {
  std::memset(shared, 0xFF, sizeof(shared));
  std::memset(written, 0, sizeof(written));
  unwritten = misused = 0;
  event_count = 0;
  std::memset(&fourfold_state, 0, sizeof(fourfold_state));
  std::memset(queues, 0, sizeof(queues));
  for (uint32_t sm : registers.sm) {
    if (sm < kMaxSms) {
      std::memset(fourfold_tensor_memory + sm * (kColumns * kLanes), 0xFF, kColumns * kLanes * 4);
    }
  }
}

// The number of a word of tensor memory, or of another word that stands for it after 1 << 32.
uint64_t place_of(uint64_t address) {
  uint64_t const memory = (address - __cvta_generic_to_global(fourfold_tensor_memory)) / 4;
  if (memory < kMaxSms * kColumns * kLanes) {
    return memory;
  }
  return (address - __cvta_generic_to_global(nowhere)) / 4 | uint64_t{1} << 32;
}

uint32_t function;
uint64_t arguments[9];

Instruction instruction() {
  auto const word = [](int i) { return static_cast<uint32_t>(arguments[i]); };
  return {word(0), word(1), word(2), word(3), word(4), word(5), word(6), arguments[7], arguments[8]};
}

void call() {
  auto const word = [](int i) { return static_cast<uint32_t>(arguments[i]); };
  auto const &a = arguments;
  uint64_t result = 0;
  switch (function) {
    case 0: execute_mma(instruction(), 0, 1); break;
    case 1: execute_mma(instruction(), lane_id(), 32); break;
    case 2: execute_copy(instruction(), 0, 1); break;
    case 3: execute_copy(instruction(), lane_id(), 32); break;
    case 4: fourfold_mma(word(2), a[7], a[8], word(3), word(4), word(5), word(6), word(0), word(1)); break;
    case 5: fourfold_copy_scales(word(2), a[7], word(1)); break;
    case 6: fourfold_flush(word(0)); break;
    case 7: fourfold_commit(word(0), word(1), word(2), word(3)); break;
    case 8: fourfold_alloc(word(0), word(1), word(2)); break;
    case 9: fourfold_dealloc(word(0), word(1), word(2)); break;
    case 10: result = place_of(fourfold_load_address(word(0), word(1))); break;
    case 11: result = place_of(fourfold_store_address(word(0), word(1))); break;
    case 12: result = fourfold_enter(); break;
    case 13: fourfold_try_cancel(word(0), word(1), word(2)); break;
    case 14: result = fourfold_waited(a[0], word(1), word(2)); break;
    case 15: result = fourfold_begin_load(word(0)); break;
    case 16: fourfold_finish_load(word(0), word(1), word(2), word(3)); break;
    case 17: result = fourfold_e2m1x2(bits_of<float>(word(0)), bits_of<float>(word(1))); break;
    default: std::exit(1);
  }
  current->result = result;
}

}  // namespace simulation

int main() {
  using namespace simulation;
  for (;;) {
    switch (read_word()) {
      case 0: {
        read_bytes(&registers, sizeof(registers));
        break;
      }
      case 1: {
        reset();
        break;
      }
      case 2: {
        // Shared memory: the offset, the CTA, the bytes.
        uint32_t const address = read_word(), cta = read_word(), bytes = read_word();
        read_bytes(shared[cta] + address, bytes);
        for (uint32_t i = 0; i < bytes; i += kPiece) {
          mark(shared_of(address + i, cta));
        }
        break;
      }
      case 3: {
        uint32_t const address = read_word(), cta = read_word(), bytes = read_word();
        write_bytes(shared[cta] + address, bytes);
        break;
      }
      case 4: {
        // Tensor memory: the SM, the first column, the columns.
        uint32_t const sm = read_word(), column = read_word(), columns = read_word();
        read_bytes(fourfold_tensor_memory + (sm * kColumns + column) * kLanes, columns * kLanes * 4);
        break;
      }
      case 5: {
        uint32_t const sm = read_word(), column = read_word(), columns = read_word();
        write_bytes(fourfold_tensor_memory + (sm * kColumns + column) * kLanes, columns * kLanes * 4);
        break;
      }
      case 6: {
        // A call: the function, the CTAs, the warp, the lanes, the arguments. The threads' results follow.
        function = read_word();
        uint32_t const ctas = read_word(), warp = read_word(), lanes = read_word();
        read_bytes(arguments, sizeof(arguments));
        fiber_count = 0;
        for (uint32_t cta = 0; cta < kCtas; ++cta) {
          for (uint32_t lane = 0; lane < 32; ++lane) {
            if ((ctas >> cta & 1) != 0 && (lanes >> lane & 1) != 0) {
              Fiber &fiber = fibers[fiber_count++];
              fiber.cta = cta;
              fiber.index = {warp * 32 + lane, 0, 0};
            }
          }
        }
        body = call;
        run();
        for (uint32_t i = 0; i < fiber_count; ++i) {
          write_bytes(&fibers[i].result, sizeof(uint64_t));
        }
        break;
      }
      case 7: {
        // The state after its size, the misuse of memory, and the events.
        uint32_t const counts[] = {unwritten, misused, event_count};
        write_word(sizeof(fourfold_state));
        write_bytes(&fourfold_state, sizeof(fourfold_state));
        write_bytes(counts, sizeof(counts));
        write_bytes(events, event_count * sizeof(Event));
        break;
      }
      case 8: {
        // Conversions of pairs to e2m1.
        for (uint32_t left = read_word(); left > 0; --left) {
          float const high = bits_of<float>(read_word()), low = bits_of<float>(read_word());
          write_word(fourfold_e2m1x2(high, low));
        }
        break;
      }
      default: std::exit(1);
    }
    std::fflush(stdout);
  }
}
