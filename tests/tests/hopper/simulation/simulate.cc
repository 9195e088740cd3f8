// Runs the kernel of a source on the machine, with inputs from standard input. Writes the outputs to standard output.

#include "prelude.hh"

namespace fourfold {

using namespace instructions;
inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x < y ? y : x; }

template <int kPending>
void wgmma_wait();
void execute(simulation::Warpgroup &of);
inline void multiply(int n, float *sums, uint32_t const (&a)[4], uint64_t b, bool is_of_bytes, bool is_first) {
  auto &all = warpgroup().all;
  size_t const index = simulation::current->multiplications++;
  if (index == all.size()) {
    all.push_back(std::make_unique<simulation::Multiplication>());
    auto &added = *all.back();
    added.descriptor = b, added.n = n, added.is_of_bytes = is_of_bytes, added.is_first = is_first;
  }
  auto &to = *all[index];
  if (to.descriptor != b || to.is_first != is_first) {
    simulation::fail("threads of a warpgroup disagree");
  }
  int const at = threadIdx.x % 128;
  std::memcpy(to.a[at], a, sizeof(a));
  to.sums[at] = sums;
  // Executes at once or as late as possible, to find threads that publish too late or release too early.
  if (++to.arrived == 128 && warpgroup().done == index && simulation::chance() % 2 == 0) {
    execute(warpgroup());
  }
}
template <int N>
struct Wgmma {
  static void run(float (&sums)[N / 2], uint32_t const (&a)[4], uint64_t b) { multiply(N, sums, a, b, false, false); }
};
template <int N>
struct WgmmaE4m3 {
  static void begin(float (&sums)[N / 2], uint32_t const (&a)[4], uint32_t b) { multiply(N, sums, a, b, true, true); }
  static void add(float (&sums)[N / 2], uint32_t const (&a)[4], uint32_t b) { multiply(N, sums, a, b, true, false); }
};
void mma(float (&sums)[4], uint32_t const (&a)[4], uint32_t low, uint32_t high);

KERNEL

void execute(simulation::Warpgroup &of) {
  simulation::execute(*of.all[of.done++], kUsesBf16 ? simulation::kBfloat : simulation::kHalf);
}
template <int kPending>
void wgmma_wait() {
  auto const &groups = simulation::current->groups;
  size_t const needed = groups.size() > kPending ? groups[groups.size() - kPending - 1] : 0;
  auto &of = warpgroup();
  simulation::wait("wgmma", [&of, needed] {
    return std::all_of(of.all.begin() + std::min(of.done, needed), of.all.begin() + needed, [](auto const &one) { return one->arrived == 128; });
  });
  while (of.done < needed) {
    execute(of);
  }
}

void mma(float (&sums)[4], uint32_t const (&a)[4], uint32_t low, uint32_t high) {
  size_t const index = simulation::current->small++;
  auto &all = own().small[threadIdx.x / 32];
  auto &to = all[index];
  int const at = threadIdx.x % 32;
  std::memcpy(to.a[at], a, sizeof(a));
  to.b[at][0] = low, to.b[at][1] = high;
  to.sums[at] = sums;
  if (++to.arrived == 32) {
    simulation::execute(to, kUsesBf16 ? simulation::kBfloat : simulation::kHalf);
    all.erase(index);
  }
  // Each thread waits until the sums are complete.
  simulation::wait("mma", [&all, index] { return all.count(index) == 0; });
}

template <int kTileM, int kTileN>
void run_variant(Parameters const &parameters, Plan const &plan) {
  using V = Variant<kTileM, kTileN>;
  if (plan.is_small_m_regs) {
    simulation::run(static_cast<int>(plan.grid.x), plan.cluster, SmallMRegs::kThreads, SmallMRegs::kShared,
                    [&](void *shared) { run_small_m_regs(parameters, shared); });
    return;
  }
  simulation::run(static_cast<int>(plan.grid.x), plan.cluster, V::kThreads, V::kShared, [&](void *shared) {
    if constexpr (kTileM <= kSmallM) {
      run_small_m<kTileM>(parameters, shared);
    } else {
      run_tiled<Tiled<kTileM, kTileN>>(parameters, shared);
    }
  });
}

ARGUMENTS

// Prints the products of each code with each scale, in each of the 8 positions: all 8 decoded elements, of 16 bits
// each.
void print_decoded() {
  if constexpr (kTermsA == 2) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      float const x = wide(bits).x;
      float const first = __uint_as_float(term_of<0>(bits) << 16), second = __uint_as_float(term_of<1>(bits) << 16);
      if (std::isinf(x) ? first != x || second != 0 : std::isnan(x) ? !std::isnan(first + second) : double{first} + second != x) {
        simulation::fail("the terms are not the element", bits);
      }
    }
  }
  if constexpr (kBitsA == 8 || kBitsB == 8) {
    for (uint32_t scale = 0; scale < 256; ++scale) {
      for (int place = 0; place < 8; ++place) {
        for (uint32_t code = 0; code < 256; ++code) {
          uint32_t words[2] = {};
          words[place / 4] = code << 8 * (place % 4);
          Decoded parts;
          if constexpr (kBitsA == 8) {
            uint32_t word[kWordsA];
            std::memcpy(word, words, sizeof(words));
            parts = decode_a_word<0>(word, scales_of_a(scale, word));
          }
          if constexpr (kBitsB == 8) {
            uint4 const codes{words[0], words[1], 0, 0};
            uint32_t const factor = scales_of_b(scale, [&] { return has_nonzero_fp8(codes); });
            Decoded const of_b = decode_b_word(codes, 0, factor);
            if (kElementA == kElementB && std::memcmp(&parts, &of_b, sizeof(parts)) != 0) {
              simulation::fail("A and B differ", scale, code);
            }
            if constexpr (kBitsA != 8) {
              parts = of_b;
              // The tiled kernel decodes two codes at a time beside an A of 16 bits. All other elements are zeros, or all are NaN.
              uint32_t const pairs = parts.low[0] | parts.low[1] | parts.high[0] | parts.high[1];
              uint32_t const adjacent = decode_adjacent_fp8<kElementB>(words[0], words[1], 0x4410 + place / 2 * 0x22, factor);
              if ((pairs & 0xFFFF | pairs >> 16) != (adjacent >> 16 * (place % 2) & 0xFFFF)) {
                simulation::fail("adjacent codes differ", scale, code);
              }
            }
            if constexpr (kBitsA == 4) {
              // FP4 has the places of FP8, and the values that it has beside FP4.
              uint32_t const word[kWordsA] = {code % 16 << 4 * place};
              Decoded const of_a = decode_a_word<0>(word, mx_scale(scale)), alone = decode(word[0], mx_scale(scale));
              auto const one = [](Decoded const &of) {
                uint32_t const pairs = of.low[0] | of.low[1] | of.high[0] | of.high[1];
                return pairs & 0xFFFF | pairs >> 16;
              };
              if (one(of_a) != one(alone)) {
                simulation::fail("FP4 beside FP8 differs", scale, code);
              }
              auto const *const in_a = reinterpret_cast<uint16_t const *>(&of_a), *const in_b = reinterpret_cast<uint16_t const *>(&of_b);
              for (int i = 0; i < 8; ++i) {
                if (scale < 100 && code % 8 > 0 && code > 8 && code < 0x78 && (in_a[i] == 0) != (in_b[i] == 0)) {
                  simulation::fail("FP4 and FP8 have other places", scale, code);
                }
              }
            }
          }
          std::fwrite(&parts, sizeof(parts), 1, stdout);
        }
      }
    }
    return;
  }
  for (uint32_t scale = 0; scale < 256; ++scale) {
    for (int half = 0; half < (kMx ? 1 : 2); ++half) {
      uint32_t const of_thread = kMx ? mx_scale(scale) : two_scales(scale << 8 * half | 0x38 << 8 * (1 - half));
      for (int place = 0; place < 8; ++place) {
        for (uint32_t code = 0; code < 16; ++code) {
          Decoded const parts = decode(code << 4 * place, scale_of_word(of_thread, 2 * half));
          Decoded const other = decode(code << 4 * place, scale_of_word(of_thread, 2 * half + 1));
          if (std::memcmp(&parts, &other, sizeof(parts)) != 0) {
            simulation::fail("words of a group differ", scale, code);
          }
          // The tiled kernel decodes adjacent codes beside an A of 16 bits. All other elements are zeros, or all are NaN.
          uint32_t const pairs = parts.low[0] | parts.low[1] | parts.high[0] | parts.high[1];
          uint32_t const adjacent = decode_adjacent(code << 4 * place, 0x4440 + place / 2, scale_of_word(of_thread, 2 * half));
          if ((pairs & 0xFFFF | pairs >> 16) != (adjacent >> 16 * (place % 2) & 0xFFFF)) {
            simulation::fail("adjacent codes differ", scale, code);
          }
          std::fwrite(&parts, sizeof(parts), 1, stdout);
        }
      }
    }
  }
}

}  // namespace fourfold

// Returns memory that ends, once rounded up to 16 bytes, at a guard page.
uint8_t *guarded(size_t bytes) {
  size_t const page = 4096, room = (bytes + 15) / 16 * 16, pages = (room + page - 1) / page + 1;
  auto *memory = static_cast<uint8_t *>(mmap(nullptr, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(memory + (pages - 1) * page, page, PROT_NONE);
  return memory + (pages - 1) * page - room;
}

// Sets the extents and addresses of groups of rows, of which L is the number, and of their scales with whole tiles.
template <class P, class Q>
void read_groups(P &problem, Q &pointers, void const *offsets, void const *sfa_ends, int64_t scale_rows) {
  if constexpr (fourfold::kGrouped) {
    problem.e = problem.l, problem.l = 1;
    pointers.offsets = offsets, pointers.alphas = pointers.alpha;
  }
  if constexpr (fourfold::kPaddedSfa) {
    problem.p = scale_rows, pointers.sfa_ends = sfa_ends;
  }
}

int main(int count, char **) {
  using namespace fourfold;
  if (count > 1) {
    print_decoded();
    return 0;
  }
  auto const number = [] {
    int64_t result;
    if (std::fread(&result, sizeof(result), 1, stdin) != 1) {
      simulation::fail("the input ends");
    }
    return result;
  };
  Problem problem;
  problem.l = number(), problem.m = number(), problem.n = number(), problem.k = number();
  Device const device{static_cast<int32_t>(number()), 0};
  simulation::chance.seed(static_cast<unsigned>(number()));
  int64_t const variant = number();  // negative: the table selects it
  auto const input = [&](size_t offset = 0) -> void * {
    size_t const bytes = number();
    uint8_t *result = guarded(bytes + offset) + offset;
    if (std::fread(result, 1, bytes, stdin) != bytes) {
      simulation::fail("the input ends");
    }
    return bytes == 0 ? nullptr : result;
  };
  Pointers pointers{};
  // Linear scales of an A without groups may begin at any byte.
  pointers.a = input(), pointers.sfa = input(kLinearSfa && !kGrouped ? 1 + problem.m % 4 : 0), pointers.b = input(), pointers.sfb = input(), pointers.c = input();
  pointers.alpha = static_cast<float const *>(input()), pointers.beta = static_cast<float const *>(input());
  void const *const offsets = input(), *const sfa_ends = input();
  read_groups(problem, pointers, offsets, sfa_ends, number());
  for (uint32_t i = 0, count = number(); i < count; ++i) {
    pointers.operands[i] = input();
  }
  size_t const outputs = number();
  std::vector<size_t> sizes;
  for (size_t i = 0; i < outputs; ++i) {
    sizes.push_back(number());
    pointers.outputs[i] = guarded(sizes.back());
    std::memset(pointers.outputs[i], static_cast<int>(number()), (sizes.back() + 15) / 16 * 16);
  }
  Plan const plan = variant < 0 ? plan_launch(problem, device) : plan_variant(problem, device, static_cast<int>(variant), 0);
  void *workspace = nullptr;
  if (decodes_before(kVariants[plan.variant])) {
    int64_t const bytes = workspace_bytes(problem, plan);
    workspace = guarded(bytes);
    // NaN in either format. It stays in rows that only tiles have, not A.
    std::memset(workspace, 0xFF, bytes);
    DecodeAParameters const decoding = decode_a_parameters(problem, pointers, workspace, plan);
    simulation::run(static_cast<int>(decode_a_grid(decoding)), 1, DecodeA::kThreads, 0, [&](void *) { decode_a(decoding); });
  }
  Parameters parameters;
  if (make_parameters(problem, pointers, workspace, plan, simulation::encode, epilogue_arguments(pointers), parameters) != cudaSuccess) {
    simulation::fail("no parameters");
  }
  VariantTraits const &traits = kVariants[plan.variant];
  switch (plan.variant) {
VARIANTS
  }
  uint32_t const said[] = {static_cast<uint32_t>(traits.tile_m), static_cast<uint32_t>(traits.tile_n),
                           static_cast<uint32_t>(plan.cluster), plan.grid.x,
                           static_cast<uint32_t>(plan.split_k.helpers), static_cast<uint32_t>(plan.split_k.tiles),
                           static_cast<uint32_t>(plan.split_k.per_tile), static_cast<uint32_t>(tile_count(problem, traits)),
                           static_cast<uint32_t>(plan.slabs.tiles - plan.slabs.first_tiles),
                           static_cast<uint32_t>(plan.slabs.along_k - plan.slabs.first_along_k)};
  std::fwrite(said, sizeof(said), 1, stdout);
  for (size_t i = 0; i < outputs; ++i) {
    std::fwrite(pointers.outputs[i], 1, sizes[i], stdout);
  }
}
