// Runs the launch planning of a sm_90a source on the host. Reads a problem and the number of SMs per line; writes
// a plan per line, with the properties of the selected kernel.

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <type_traits>

struct dim3 {
  unsigned x, y, z;
  explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct Device {
  int32_t sm_count, max_active_clusters;
};
struct Problem {
  int64_t l, m, n, k;
};

// Names that the planning code expects.
#define FOURFOLD_HOST
#define CUTLASS_HOST_DEVICE inline
struct CUtensorMap {};
struct EpilogueArguments {};
int cuTensorMapEncodeTiled();
namespace cute {
using std::conditional_t;
}
constexpr bool kMx = IS_MX, kUsesBf16 = kMx, kSimple = true;
constexpr bool kGrouped = false, kMasked = false, kPaddedSfa = false, kBlockedSfa = true;
enum class Element { kE2m1, kE4m3, kE5m2, kF16, kBf16 };
constexpr Element kElementA = Element::kE2m1, kElementB = Element::kE2m1;

#if 1
PLAN
#endif

// Checks that the multiplication that replaces a division gives its result, at the boundaries of quotients.
bool divides() {
  for (uint64_t base = 1; base <= uint64_t{1} << 31; base = base * 3 / 2 + 1) {
    for (uint64_t wide : {base - 1, base, base + 1}) {
      uint32_t const number = static_cast<uint32_t>(wide);
      if (wide == 0 || wide > uint64_t{1} << 31) {
        continue;
      }
      Divisor const by = divisor(number);
      for (uint64_t quotient = 0; quotient * number < uint64_t{1} << 31; quotient = quotient * 5 / 4 + 1) {
        for (uint64_t x : {quotient * number, quotient * number + number / 2, quotient * number + number - 1}) {
          if (x < uint64_t{1} << 31 && by.divide(x) != x / number) {
            std::fprintf(stderr, "%lu / %u is not %u\n", static_cast<unsigned long>(x), number, by.divide(x));
            return false;
          }
        }
      }
    }
  }
  return true;
}

int main() {
  if (!divides()) {
    return 1;
  }
  long long l, m, n, k;
  int sm_count;
  while (std::scanf("%lld %lld %lld %lld %d", &l, &m, &n, &k, &sm_count) == 5) {
    Plan const plan = plan_launch({l, m, n, k}, {sm_count, 0});
    VariantTraits const &traits = kVariants[plan.variant];
    std::printf("%d %d %u %u %u %d %d %d %d %d %d %d %d ", traits.tile_m, plan.cluster, plan.grid.x, plan.grid.y, plan.grid.z, traits.tile_n,
                traits.ctas_per_sm, traits.max_cluster, traits.unit_n, traits.max_units, traits.max_elements,
                traits.max_regs_units, plan.is_small_m_regs);
    std::printf("%d %d %d %d ", plan.split_k.helpers, plan.split_k.tiles, plan.split_k.per_tile, plan.split_k.steps);
    std::printf("%d %d %d %d\n", plan.slabs.tiles, plan.slabs.first_tiles, plan.slabs.along_k, plan.slabs.first_along_k);
  }
}
