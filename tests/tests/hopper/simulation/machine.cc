// The threads, barriers and memory of the machine.

#include "machine.hh"

namespace simulation {

std::mt19937 chance;
Index thread, block, grid;
Fiber *current;
std::vector<Cta> ctas;
std::vector<std::function<void()>> later;
uint32_t first_byte, end_byte;

namespace {

jmp_buf scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
size_t fiber_count;
std::function<void()> body;
// The number of threads that have arrived at each barrier of the cluster, or have ended.
std::vector<size_t> arrived;
size_t ended;

// `swapcontext` saves the signal mask by a system call, which took half the time. So it only starts a fiber.
void resume(Fiber &fiber) {
  if (_setjmp(scheduler) != 0) {
    return;
  }
  if (fiber.started) {
    _longjmp(fiber.context, 1);
  }
  fiber.started = true;
  setcontext(&fiber.start);
}

void enter() {
  Fiber &self = *current;
  body();
  self.done = true;
  --ctas[self.cta].left;
  ++ended;
  std::for_each(arrived.begin() + self.cluster_arrivals, arrived.end(), [](size_t &count) { ++count; });
  _longjmp(scheduler, 1);
}

}  // namespace

void fail(char const *what, long long a, long long b) {
  std::fprintf(stderr, "%s (%lld, %lld)\n", what, a, b);
  std::exit(3);
}

void wait(char const *what, std::function<bool()> ready) {
  if (ready()) {
    return;
  }
  current->ready = std::move(ready);
  current->what = what;
  if (_setjmp(current->context) == 0) {
    _longjmp(scheduler, 1);
  }
}

void meet(char const *what, Group &group) {
  unsigned const generation = group.generation;
  if (++group.arrived == group.size) {
    group.arrived = 0;
    ++group.generation;
    return;
  }
  wait(what, [&group, generation] { return group.generation != generation; });
}

void arrive_in_cluster() {
  unsigned const index = current->cluster_arrivals++;
  if (index == arrived.size()) {
    arrived.push_back(ended);
  }
  ++arrived[index];
}

void wait_for_cluster() {
  unsigned const mine = current->cluster_arrivals;
  wait("the cluster", [mine] { return mine == 0 || arrived[mine - 1] == fiber_count; });
}

uint32_t exchange(uint32_t x, std::function<uint32_t(uint32_t const *)> const &take) {
  int const index = thread.x;
  own().slots[index] = x;
  meet("a shuffle", own().warps[index / 32]);
  uint32_t const result = take(own().slots.data() + index / 32 * 32);
  meet("a shuffle", own().warps[index / 32]);
  return result;
}

// Runs the clusters of a grid one after the other.
void run(int blocks, int cluster, int threads, int bytes, std::function<void(void *)> of_thread) {
  if (blocks % cluster != 0) {
    fail("not whole clusters", blocks, cluster);
  }
  grid = {blocks};
  fiber_count = static_cast<size_t>(cluster) * threads;
  while (fibers.size() < fiber_count) {
    fibers.push_back(std::make_unique<Fiber>());
  }
  first_byte = 1024 + chance() % 64 * 16;
  end_byte = first_byte + bytes;
  body = [of_thread] { of_thread(reinterpret_cast<void *>(static_cast<uintptr_t>(first_byte))); };
  for (int first = 0; first < blocks; first += cluster) {
    ctas = std::vector<Cta>(cluster);
    arrived.clear();
    ended = 0;
    for (auto &cta : ctas) {
      // NaN in either format.
      cta.memory.assign(end_byte, 0xFF);
      cta.warps.assign(threads / 32, Group{32});
      cta.warpgroups.resize((threads + 127) / 128);
      cta.small.resize(threads / 32);
      cta.slots.resize(threads);
      cta.block = {threads};
      cta.left = threads;
    }
    std::vector<Fiber *> order;
    for (size_t i = 0; i < fiber_count; ++i) {
      Fiber &fiber = *fibers[i];
      fiber.done = false;
      fiber.ready = nullptr;
      fiber.cta = static_cast<int>(i) / threads;
      fiber.index = static_cast<int>(i) % threads;
      fiber.multiplications = fiber.small = fiber.cluster_arrivals = 0;
      fiber.groups.clear();
      fiber.copies.clear();
      fiber.begun = std::make_shared<int>(0);
      fiber.started = false;
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = fiber.stack;
      fiber.start.uc_stack.ss_size = kStack;
      makecontext(&fiber.start, enter, 0);
      order.push_back(&fiber);
    }
    // Stalls some warpgroups for some rounds, so that none is always the fastest.
    int const groups = (threads + 127) / 128;
    std::vector<int> stalled(cluster * groups);
    uint64_t rounds_done = 0;
    while (!order.empty()) {
      bool any = false;
      if (chance() % (rounds_done++ == 0 ? 2 : 8) == 0) {
        stalled[chance() % stalled.size()] = chance() % 64;
      }
      for (int &rounds : stalled) {
        any = any || rounds > 0;
        rounds = std::max(rounds - 1, 0);
      }
      size_t const start = chance() % order.size();
      for (size_t i = 0; i < order.size(); ++i) {
        Fiber &fiber = *order[(start + i) % order.size()];
        if (stalled[fiber.cta * groups + fiber.index / 128] > 0 || (fiber.ready && !fiber.ready())) {
          continue;
        }
        any = true;
        fiber.ready = nullptr;
        current = &fiber;
        thread = {fiber.index};
        block = {first + fiber.cta};
        resume(fiber);
      }
      order.erase(std::remove_if(order.begin(), order.end(), [](Fiber *fiber) { return fiber->done; }), order.end());
      // Completes some of the pending work, in any order.
      for (size_t count = later.empty() ? 0 : 1 + chance() % later.size(); count > 0; --count) {
        std::swap(later[chance() % later.size()], later.back());
        auto const one = std::move(later.back());
        later.pop_back();
        one();
        any = true;
      }
      if (!any && !order.empty()) {
        for (Fiber *fiber : order) {
          if (fiber->index % 128 != 0) {
            continue;
          }
          std::fprintf(stderr, "CTA %d thread %d waits: %s\n", fiber->cta, fiber->index, fiber->what);
        }
        fail("all wait for each other");
      }
    }
    if (!later.empty()) {
      fail("something was begun and not waited for", later.size());
    }
  }
}

Barrier &barrier(uint32_t address) {
  address = of_cluster(address);
  auto &barriers = ctas[(address >> 24) - 1].barriers;
  auto const found = barriers.find(address & 0xFFFFFF);
  if (found == barriers.end()) {
    fail("no barrier", address);
  }
  return found->second;
}
void transferred(Barrier &to, int bytes) {
  to.bytes -= bytes;
  to.settle();
}

CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base, cuuint64_t const *extents,
                cuuint64_t const *strides, cuuint32_t const *box, cuuint32_t const *steps, CUtensorMapInterleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  Map result{static_cast<uint8_t const *>(base), {}, {}, {}, swizzle};
  bool good = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 && (rank == 3 || rank == 4) && reinterpret_cast<uintptr_t>(base) % 16 == 0;
  // A 3D tensor is a 4D tensor whose last extent is 1.
  for (uint32_t i = 0; i < 4; ++i) {
    bool const is_there = i < rank;
    result.extents[i] = is_there ? extents[i] : 1;
    result.box[i] = is_there ? box[i] : 1;
    good = good && result.extents[i] > 0 && result.extents[i] <= 1ull << 32 && result.box[i] > 0 && result.box[i] <= 256;
    good = good && (!is_there || steps[i] == 1);
  }
  for (uint32_t i = 0; i + 1 < rank; ++i) {
    result.strides[i] = strides[i];
    good = good && strides[i] % 16 == 0 && strides[i] < 1ull << 40;
    // Matrices may overlap: outer strides have no minimum.
    good = good && (i == 0 ? strides[i] >= extents[i] : strides[i] % strides[0] == 0);
  }
  good = good && box[0] % 16 == 0 && (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || (swizzle == CU_TENSOR_MAP_SWIZZLE_64B && box[0] <= 64) ||
                  (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] <= 128));
  static_assert(sizeof(Map) <= sizeof(CUtensorMap) && alignof(CUtensorMap) >= 64);
  if (!good || reinterpret_cast<uintptr_t>(map) % 64 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(map, &result, sizeof(result));
  return CUDA_SUCCESS;
}

// Copies a box whose first element has these coordinates. What is outside of the tensor is zero.
static void copy_box(Map const &of, uint32_t address, std::array<uint64_t, 4> const &first) {
  uint32_t const rows = of.box[1] * of.box[2] * of.box[3], swizzle = of.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE  ? 0
                                                                     : of.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 3
                                                                                                               : 7;
  for (uint32_t row = 0; row < rows; ++row) {
    uint64_t const place[] = {first[1] + row % of.box[1], first[2] + row / of.box[1] % of.box[2], first[3] + row / of.box[1] / of.box[2]};
    bool inside = true;
    uint64_t begin = 0;
    for (int i = 0; i < 3; ++i) {
      inside = inside && place[i] < of.extents[i + 1];
      begin += place[i] * of.strides[i];
    }
    // Swizzling moves 16 bytes at a time.
    for (uint32_t piece = 0; piece < of.box[0]; piece += 16) {
      uint64_t const byte = first[0] + piece;
      uint32_t const to = address + row * of.box[0] + piece;
      uint8_t *const bytes = at(to ^ (to >> 7 & swizzle) << 4, 16, 16);
      size_t const count = inside && byte < of.extents[0] ? std::min<uint64_t>(16, of.extents[0] - byte) : 0;
      if (count > 0) {
        std::memcpy(bytes, of.base + begin + byte, count);
      }
      std::memset(bytes + count, 0, 16 - count);
    }
  }
}

void load_box(CUtensorMap const &map, uint32_t to, uint32_t counted, std::array<int, 4> first) {
  Map of;
  std::memcpy(&of, &map, sizeof(of));
  if (first[0] < 0) {
    fail("a box begins before its tensor", first[0]);
  }
  std::array<uint64_t, 4> from;
  std::copy(first.begin(), first.end(), from.begin());
  uint32_t const address = of_cluster(to), counts = of_cluster(counted);
  uint32_t const bytes = of.box[0] * of.box[1] * of.box[2] * of.box[3];
  at(to, bytes, 128);
  later.push_back([=] {
    copy_box(of, address, from);
    transferred(barrier(counts), bytes);
  });
}

}  // namespace simulation
