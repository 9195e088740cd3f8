// Plans a launch on the host: tile, cluster size, split-K, the part of A that is decoded first, and workspace size.

// `helpers` clusters take `per_tile` splits of `steps` K steps from each of the last `tiles` tiles.
struct SplitK {
  int helpers, tiles, per_tile, steps;
};

// The slabs of A: `tiles` tiles along M, over all matrices, by `along_k`. decode_a_kernel decodes the first
// `first_along_k` slabs of each of the first `first_tiles` tiles.
struct Slabs {
  int tiles, first_tiles, along_k, first_along_k;
  bool are_all_first() const { return first_tiles == tiles && first_along_k == along_k; }
};

// The launch of a problem. The CTAs of a cluster, which share a tile, are adjacent in the grid.
struct Plan {
  int variant, cluster;
  dim3 grid;
  SplitK split_k;
  Slabs slabs;
  // True if warps of a small-M kernel keep A in registers.
  bool is_small_m_regs;
};

// Returns the number of matrices of B. `Problem` has E only if rows are in groups.
template <class P>
int64_t matrices_of_b(P const &problem) {
  if constexpr (kGrouped) {
    return problem.e;
  } else {
    return problem.l;
  }
}

// If rows are in groups, returns an upper bound: each group, and the rows of none, may end within a tile.
inline int64_t tile_count(Problem const &problem, VariantTraits const &traits) {
  if (kMasked) {
    int64_t const groups = matrices_of_b(problem), rows = groups > 0 ? problem.m / groups : 0;
    return groups * ((rows + traits.tile_m - 1) / traits.tile_m) * ((problem.n + traits.tile_n - 1) / traits.tile_n);
  }
  if (kGrouped) {
    int64_t const parts = matrices_of_b(problem) + 1, most = parts < problem.m ? parts : problem.m;
    return (problem.m / traits.tile_m + most) * ((problem.n + traits.tile_n - 1) / traits.tile_n);
  }
  return (problem.m + traits.tile_m - 1) / traits.tile_m * ((problem.n + traits.tile_n - 1) / traits.tile_n) * problem.l;
}

// Estimates the number of clusters that run at once. A cluster runs within one GPC, whose number of SMs is not always a
// multiple of a cluster size above 2. If each CTA fills an SM, the estimate leaves out an eighth of the SMs.
inline int64_t clusters_at_once(Device const &device, VariantTraits const &traits, int cluster) {
  int64_t const room = static_cast<int64_t>(device.sm_count) * traits.ctas_per_sm;
  return (cluster > 2 && traits.ctas_per_sm == 1 ? room * 7 / 8 : room) / cluster;
}

// Returns the K blocks of a tile, and its K steps: each term of A has blocks of its own.
inline int64_t block_count(Problem const &problem) { return (problem.k + kBlockK - 1) / kBlockK * kTermsA; }
inline int64_t step_count(Problem const &problem, VariantTraits const &traits) {
  return (block_count(problem) + traits.blocks - 1) / traits.blocks;
}

// Splits the last K steps of the last wave's `tiles` tiles among helpers: the CTAs of clusters that have no tile.
// Chooses the fastest split if it saves more than 1/16. Storing and adding the sums of a split cost kStoreCost and
// kAddCost K steps.
inline SplitK plan_split_k(int64_t steps, int64_t tiles, int64_t room, int cluster) {
  constexpr int64_t kStoreCost = 3, kAddCost = 2, kMaxSplits = 16;
  int64_t const helpers = (room - tiles) * cluster;
  SplitK best = {};
  // Times are sums over the CTAs of a cluster.
  int64_t least = steps - steps / 16;
  int64_t const max_splits = tiles == 0 || helpers <= 0 ? 0 : helpers <= tiles ? 1 : helpers / tiles;
  for (int64_t per_tile = 1; per_tile <= max_splits && per_tile <= kMaxSplits; ++per_tile) {
    int64_t const each = (tiles * per_tile + helpers - 1) / helpers;
    // Equalizes two times. CTAs with tiles take (steps - per_tile * split) / cluster + kAddCost * per_tile, and helpers
    // take each * (split + kStoreCost).
    int64_t split = (steps + (kAddCost * per_tile - each * kStoreCost) * cluster) / (per_tile + each * cluster);
    int64_t const most = (steps - cluster) / per_tile;
    split = split < most ? split : most;
    int64_t const own = steps - per_tile * split + kAddCost * per_tile * cluster, other = each * (split + kStoreCost) * cluster;
    int64_t const time = own > other ? own : other;
    if (split > 0 && time < least) {
      least = time;
      best = {static_cast<int>(room - tiles), static_cast<int>(tiles), static_cast<int>(per_tile), static_cast<int>(split)};
    }
  }
  return best;
}

// Decoded A in the workspace: the condition for it, the bytes of a row, and the number of rows. TMA is much faster if
// all rows of a tile are in bounds, so the last matrix is padded to whole tiles. The last tile of any other matrix ends
// in the next matrix.
inline bool decodes_before(VariantTraits const &traits) { return traits.tile_m > kSmallM; }
inline int64_t decoded_row_bytes(Problem const &problem) {
  return kDirectA ? 0 : block_count(problem) * kDecodedBlockBytes;
}
inline int64_t padded_m(Problem const &problem, VariantTraits const &traits) {
  return (problem.m + traits.tile_m - 1) / traits.tile_m * traits.tile_m;
}
inline int64_t decoded_rows(Problem const &problem, VariantTraits const &traits) {
  return (problem.l - 1) * problem.m + padded_m(problem, traits);
}

// After decoded A, the workspace holds the flags of splits, the counters of decode_ahead, and the sums of splits.
inline uint32_t *flags(Problem const &problem, VariantTraits const &traits, void *workspace) {
  return reinterpret_cast<uint32_t *>(static_cast<uint8_t *>(workspace) +
                                      decoded_row_bytes(problem) * decoded_rows(problem, traits));
}
inline int64_t counter_count(Slabs const &slabs) {
  // One counter per slab and one for all units. Padded to 16 bytes, because the sums that follow are accessed as
  // float4.
  return slabs.are_all_first() ? 0 : (static_cast<int64_t>(slabs.tiles) * slabs.along_k + 4) / 4 * 4;
}
inline int64_t workspace_bytes(Problem const &problem, Plan const &plan) {
  VariantTraits const &traits = kVariants[plan.variant];
  int64_t const split = kSplitFlags * 4 + static_cast<int64_t>(traits.tile_m) * traits.tile_n * 4;
  return decoded_row_bytes(problem) * decoded_rows(problem, traits) + counter_count(plan.slabs) * 4 +
         split * plan.split_k.tiles * plan.split_k.per_tile;
}

// Leaves to decode_ahead the slabs that the first wave of `at_once` tiles does not need at its start. Leaves none if
// CTAs share K, because each needs a different part of K, or if the number of units may overflow an int.
inline Slabs plan_slabs(Problem const &problem, VariantTraits const &traits, int cluster, int64_t at_once) {
  constexpr int64_t kFirstSlabs = 2;
  int64_t const tiles_m = (problem.m + traits.tile_m - 1) / traits.tile_m, tiles_n = (problem.n + traits.tile_n - 1) / traits.tile_n;
  int64_t const tiles = tiles_m * problem.l, tiles_per_matrix = tiles_m * tiles_n;
  int64_t const along_k = (problem.k + kSlabBlocks * kBlockK - 1) / (kSlabBlocks * kBlockK);
  int64_t first_tiles = tiles, first_along_k = along_k;
  if (traits.decodes_ahead && cluster == 1 && tiles * along_k < INT_MAX / traits.tile_m) {
    int64_t const width = tiles_n < kGroupWidth ? tiles_n : kGroupWidth, along_m = (at_once + width - 1) / width;
    first_tiles = at_once > tiles_per_matrix ? (at_once + tiles_per_matrix - 1) / tiles_per_matrix * tiles_m
                  : along_m < tiles_m ? along_m
                                      : tiles_m;
    first_tiles = first_tiles < tiles ? first_tiles : tiles;
    first_along_k = along_k < kFirstSlabs ? along_k : kFirstSlabs;
  }
  return {static_cast<int>(tiles), static_cast<int>(first_tiles), static_cast<int>(along_k), static_cast<int>(first_along_k)};
}

// Returns the number of units of N to distribute over small-M CTAs. A unit is four runs of rows, 32 rows apart.
inline int64_t unit_count(Problem const &problem, VariantTraits const &traits) {
  int64_t const of_block = 128 / traits.unit_n, run = traits.unit_n / 4, rest = (problem.n % 128 + run - 1) / run;
  return problem.n / 128 * of_block + (rest < of_block ? rest : of_block);
}

// Returns whether a small-M CTA has room for its part of A if `cluster` CTAs share K.
inline bool fits_small_m(Problem const &problem, VariantTraits const &traits, int cluster) {
  int64_t const chunk = traits.blocks * kBlockK, chunks = (problem.k + chunk - 1) / chunk;
  return problem.m * ((chunks + cluster - 1) / cluster * chunk) <= traits.max_elements;
}

// Returns whether a variant supports a problem.
inline bool takes(Problem const &problem, VariantTraits const &traits) {
  return traits.tile_m > kSmallM || (problem.m <= traits.tile_m && fits_small_m(problem, traits, traits.max_cluster));
}

// A dispatch table with a single rule forces its choice.
constexpr bool kIsForced = sizeof(kChoices) == sizeof(Choice);

// Gives each SM a CTA with its share of N. As many CTAs share K as are needed for each part of A to fit in shared
// memory, and more if N is too short for all SMs. `least` is the cluster size of the dispatch rule, or 0.
inline Plan plan_small_m(Problem const &problem, Device const &device, int variant, int least) {
  VariantTraits const &traits = kVariants[variant];
  int64_t const units = unit_count(problem, traits), chunk = traits.blocks * kBlockK;
  int64_t const chunks = (problem.k + chunk - 1) / chunk;
  auto const room = [&](int cluster) { return clusters_at_once(device, traits, cluster); };
  // The sums of a CTA must fit, too.
  int64_t const fewest = (units + traits.max_units - 1) / traits.max_units;
  // Clusters per matrix.
  auto const count = [&](int cluster) {
    int64_t const at_once = room(cluster) / problem.l, most = at_once < units ? at_once : units;
    return most > fewest ? most : fewest;
  };
  // The largest number of units of a CTA.
  auto const units_per_cta = [&](int cluster) { return (units + count(cluster) - 1) / count(cluster); };
  // Returns whether warps keep A in registers. Each warp then multiplies one chunk of K, so many would be idle with few
  // chunks; small_m distributes these better. B is loaded in parts of 32 rows.
  auto const fits_regs = [&](int cluster) {
    constexpr int64_t kMinRegsChunks = 13;
    int64_t const of_block = (chunks + cluster - 1) / cluster;
    return problem.n % 32 == 0 && cluster <= 2 && of_block >= kMinRegsChunks && of_block <= SmallMRegs::kWarps &&
           units_per_cta(cluster) <= traits.max_regs_units;
  };
  // Rules assume one matrix and many SMs. A cluster below the rule's size is used if it avoids a second wave, or if it
  // keeps A in registers and at least half of the SMs have a unit.
  auto const is_wanted = [&](int cluster) {
    int64_t const clusters = fewest * problem.l;
    if (!kIsForced && fits_regs(cluster / 2) && 2 * units * problem.l >= room(cluster / 2)) {
      return false;
    }
    return cluster <= least && (kIsForced || clusters <= room(cluster) || clusters > room(cluster / 2));
  };
  int cluster = 1;
  while (cluster < traits.max_cluster && (is_wanted(cluster * 2) || !fits_small_m(problem, traits, cluster)) &&
         cluster * 2 <= chunks) {
    cluster *= 2;
  }
  // Estimates a CTA's time in chunks of concurrent_n rows. `sharing` is the cost of sharing K, also in chunks.
  auto const work = [&](int cluster) {
    int64_t const sharing = cluster == 1 ? 0 : cluster == 2 ? 4 : cluster == 4 ? 6 : 12;
    int64_t const rows = units_per_cta(cluster) * traits.unit_n;
    int64_t const at_once = room(cluster) > 0 ? room(cluster) : 1;
    int64_t const rounds = (count(cluster) * problem.l + at_once - 1) / at_once;
    int64_t const times = (rows + traits.concurrent_n - 1) / traits.concurrent_n;
    return rounds * times * ((chunks + cluster - 1) / cluster) + sharing;
  };
  // The cluster size of a rule takes precedence over the estimate.
  if (least == 0 && traits.concurrent_n > 0) {
    for (int more = cluster * 2; more <= traits.max_cluster && more <= chunks && room(more) > 0; more *= 2) {
      cluster = work(more) < work(cluster) ? more : cluster;
    }
  }
  while (least == 0 && traits.concurrent_n == 0 && cluster < traits.max_cluster &&
         units * problem.l <= room(cluster * 2) && chunks >= 4 * cluster) {
    cluster *= 2;
  }
  bool const is_small_m_regs = fits_regs(cluster);
  // Uses the fewest clusters that do not increase the largest number of units.
  int64_t const clusters = is_small_m_regs ? (units + units_per_cta(cluster) - 1) / units_per_cta(cluster) : count(cluster);
  return {variant, cluster, dim3(static_cast<unsigned>(clusters * problem.l * cluster)), {}, {}, is_small_m_regs};
}

// Plans a given variant. If `cluster` is 0, uses the largest cluster size with which all tiles run at once.
inline Plan plan_variant(Problem const &problem, Device const &device, int variant, int cluster) {
  constexpr int kMinSteps = 2;
  VariantTraits const &traits = kVariants[variant];
  if (traits.tile_m <= kSmallM) {
    return plan_small_m(problem, device, variant, cluster);
  }
  int64_t const steps = step_count(problem, traits), tiles = tile_count(problem, traits);
  if (kGrouped) {
    int64_t const room = static_cast<int64_t>(device.sm_count) * traits.ctas_per_sm;
    int64_t const ctas = tiles < room ? tiles : room;
    return {variant, 1, dim3(static_cast<unsigned>(ctas)), {}, plan_slabs(problem, traits, 1, ctas)};
  }
  if (cluster == 0) {
    cluster = traits.max_cluster;
    while (cluster > 1 && (tiles > clusters_at_once(device, traits, cluster) || steps < kMinSteps * cluster)) {
      cluster /= 2;
    }
  }
  // Each CTA needs at least one K step, even if the rule asks for more CTAs.
  while (cluster > 1 && (steps < cluster || traits.max_cluster < cluster)) {
    cluster /= 2;
  }
  // If each CTA fills an SM, the grid is persistent: a CTA computes several tiles in turn.
  bool const is_persistent = cluster == 1 && traits.ctas_per_sm == 1 && tiles > device.sm_count;
  int64_t const room = clusters_at_once(device, traits, cluster);
  bool const fits = traits.splits_k && (is_persistent || tiles <= room);
  SplitK const split_k = fits && room > 0 ? plan_split_k(steps, tiles % room, room, cluster) : SplitK{};
  int64_t const clusters = is_persistent ? room : tiles + split_k.helpers;
  return {variant, cluster, dim3(static_cast<unsigned>(clusters * cluster)), split_k,
          plan_slabs(problem, traits, cluster, clusters)};
}

inline Plan plan_launch(Problem const &problem, Device const &device) {
  // Rules of groups are for the mean number of rows: the host does not know the distribution. Groups are assumed to use
  // a quarter of the rows of their matrices.
  int64_t const groups = kGrouped ? matrices_of_b(problem) : 1, parts = kMasked ? 4 * groups : groups;
  int64_t const m = (problem.m + parts - 1) / parts;
  for (Choice const &choice : kChoices) {
    if (m <= choice.max_m && problem.n <= choice.max_n && problem.k <= choice.max_k &&
        takes(problem, kVariants[choice.variant])) {
      return plan_variant(problem, device, choice.variant, choice.cluster);
    }
  }
  return plan_variant(problem, device, kVariantCount - 1, 0);
}
