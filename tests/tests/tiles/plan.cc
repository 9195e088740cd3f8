// How a source for sm_90a plans a launch, run on the host: a problem and a number of SMs a line, and a plan a line.

#include <cstdint>
#include <cstdio>

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
constexpr int kTileN = TILE_N, kTileK = TILE_K;

PLAN

int main() {
  long long l, m, n, k;
  int sm_count;
  while (std::scanf("%lld %lld %lld %lld %d", &l, &m, &n, &k, &sm_count) == 5) {
    Plan const plan = plan_launch({l, m, n, k}, {sm_count, 0});
    std::printf("%d %d %u %u %u\n", kTokens[plan.variant], plan.cluster, plan.grid.x, plan.grid.y, plan.grid.z);
  }
}
