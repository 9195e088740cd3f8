// How a source for sm_90a plans a launch, run on the host: a problem and a number of SMs a line, and a plan a line, with
// what the kernel that it is for says of itself.

#include <cstddef>
#include <cstdint>
#include <cstdio>
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

// What else the text names.
#define FOURFOLD_HOST
struct CUtensorMap {};
struct EpilogueArguments {};
int cuTensorMapEncodeTiled();
namespace cute {
using std::conditional_t;
}
constexpr bool kMx = IS_MX, kSimple = true;

#if 1
PLAN
#endif

int main() {
  long long l, m, n, k;
  int sm_count;
  while (std::scanf("%lld %lld %lld %lld %d", &l, &m, &n, &k, &sm_count) == 5) {
    Plan const plan = plan_launch({l, m, n, k}, {sm_count, 0});
    Built const &built = kBuilt[plan.variant];
    std::printf("%d %d %u %u %u %d %d %d %d %d %d\n", built.tokens, plan.cluster, plan.grid.x, plan.grid.y, plan.grid.z, built.rows,
                built.per_sm, built.most_cluster, built.unit_rows, built.most_units, built.most_elements);
  }
}
