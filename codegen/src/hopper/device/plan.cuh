// The plan of a launch, on the host: which tile a problem gets, how many blocks share it, what others have of it, and how
// large a workspace it needs.

// `helpers` clusters take `per_tile` splits of `steps` steps along K from each of the last `tiles` tiles.
struct SplitK {
  int helpers, tiles, per_tile, steps;
};

// Which rows of A a kernel of its own decodes before, in slabs: of those of the first tiles along M, of so many of all matrices, the
// first along K.
struct Slabs {
  int tiles, first_tiles, along_k, first_along_k;
  bool are_all_first() const { return first_tiles == tiles && first_along_k == along_k; }
};

// How a problem is launched: blocks that share a tile lie side by side.
struct Plan {
  int variant, cluster;
  dim3 grid;
  SplitK split_k;
  Slabs slabs;
  // With small M, whether warps keep A in registers.
  bool is_small_m_regs;
};

inline int64_t tile_count(Problem const &problem, VariantTraits const &traits) {
  return (problem.m + traits.tile_m - 1) / traits.tile_m * ((problem.n + traits.tile_n - 1) / traits.tile_n) * problem.l;
}

// How many clusters the device has room for at once. Those of more than two blocks are kept within groups of SMs, whose
// number of SMs is not always a multiple of theirs: an eighth is left for that where a block has an SM for itself.
inline int64_t clusters_at_once(Device const &device, VariantTraits const &traits, int cluster) {
  int64_t const room = static_cast<int64_t>(device.sm_count) * traits.ctas_per_sm;
  return (cluster > 2 && traits.ctas_per_sm == 1 ? room * 7 / 8 : room) / cluster;
}

// Steps along K.
inline int64_t step_count(Problem const &problem, VariantTraits const &traits) {
  int64_t const step = traits.blocks * kBlockK;
  return (problem.k + step - 1) / step;
}

// What is given of the tiles of a round to clusters that have none, each of whose blocks has splits of its own: as takes the
// least time, if that is a sixteenth less. Leaving a split, and adding one, take as long as some steps.
inline SplitK plan_split_k(int64_t steps, int64_t tiles, int64_t room, int cluster) {
  constexpr int64_t kStoreCost = 3, kAddCost = 2, kMaxSplits = 16;
  int64_t const helpers = (room - tiles) * cluster;
  SplitK best = {};
  // Times are counted for all blocks of a cluster.
  int64_t least = steps - steps / 16;
  int64_t const max_splits = tiles == 0 || helpers <= 0 ? 0 : helpers <= tiles ? 1 : helpers / tiles;
  for (int64_t per_tile = 1; per_tile <= max_splits && per_tile <= kMaxSplits; ++per_tile) {
    int64_t const each = (tiles * per_tile + helpers - 1) / helpers;
    // So that those who have tiles, (steps - per_tile * split) / cluster + kAddCost * per_tile, take as long as those who help,
    // each * (split + kStoreCost).
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

// Whether a kernel of its own decodes the rows of A before, into a workspace, what a row has there, and how many rows the
// workspace has: of the last matrix as many as its tiles. The others' tiles end in the next matrix. A tile is loaded much
// faster where all of its rows are there, whatever they are.
inline bool decodes_before(VariantTraits const &traits) { return traits.tile_m > kSmallM; }
inline int64_t decoded_row_bytes(Problem const &problem) { return (problem.k + kBlockK - 1) / kBlockK * kDecodedBlockBytes; }
inline int64_t padded_m(Problem const &problem, VariantTraits const &traits) {
  return (problem.m + traits.tile_m - 1) / traits.tile_m * traits.tile_m;
}
inline int64_t decoded_rows(Problem const &problem, VariantTraits const &traits) {
  return (problem.l - 1) * problem.m + padded_m(problem, traits);
}

// Behind the rows of A the workspace has the flags of splits, counters of what is left of the rows of A, and the sums of splits.
inline uint32_t *flags(Problem const &problem, VariantTraits const &traits, void *workspace) {
  return reinterpret_cast<uint32_t *>(static_cast<uint8_t *>(workspace) +
                                      decoded_row_bytes(problem) * decoded_rows(problem, traits));
}
inline int64_t counter_count(Slabs const &slabs) {
  // One for each slab, and one for all; what is behind them is read 16 bytes at a time.
  return slabs.are_all_first() ? 0 : (static_cast<int64_t>(slabs.tiles) * slabs.along_k + 4) / 4 * 4;
}
inline int64_t workspace_bytes(Problem const &problem, Plan const &plan) {
  VariantTraits const &traits = kVariants[plan.variant];
  int64_t const split = kSplitFlags * 4 + static_cast<int64_t>(traits.tile_m) * traits.tile_n * 4;
  return decoded_row_bytes(problem) * decoded_rows(problem, traits) + counter_count(plan.slabs) * 4 +
         split * plan.split_k.tiles * plan.split_k.per_tile;
}

// What is left to the warps of tiles: all that those which are computed first, so many at once, do not need at first. Where CTAs
// share K each needs another part of it, and where there are too many units to be counted, nothing is left.
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

// Units of rows of B that blocks for small M share out: four runs of rows each, 32 apart.
inline int64_t unit_count(Problem const &problem, VariantTraits const &traits) {
  int64_t const of_block = 128 / traits.unit_n, run = traits.unit_n / 4, rest = (problem.n % 128 + run - 1) / run;
  return problem.n / 128 * of_block + (rest < of_block ? rest : of_block);
}

// Whether a block for small M has room for them, where so many share K.
inline bool fits_small_m(Problem const &problem, VariantTraits const &traits, int cluster) {
  int64_t const chunk = traits.blocks * kBlockK, chunks = (problem.k + chunk - 1) / chunk;
  return problem.m * ((chunks + cluster - 1) / cluster * chunk) <= traits.max_elements;
}

// Whether a variant takes a problem.
inline bool takes(Problem const &problem, VariantTraits const &traits) {
  return traits.tile_m > kSmallM || (problem.m <= traits.tile_m && fits_small_m(problem, traits, traits.max_cluster));
}

// A kernel that has one line is forced to what that says.
constexpr bool kIsForced = sizeof(kChoices) == sizeof(Choice);

// For small M every SM has a block, with its share of the rows of B. So many share K as their elements of A need
// room, and more where there are too few rows of B for all.
inline Plan plan_small_m(Problem const &problem, Device const &device, int variant, int least) {
  VariantTraits const &traits = kVariants[variant];
  int64_t const units = unit_count(problem, traits), chunk = traits.blocks * kBlockK;
  int64_t const chunks = (problem.k + chunk - 1) / chunk;
  auto const room = [&](int cluster) { return clusters_at_once(device, traits, cluster); };
  // What a block has of sums must have room, too.
  int64_t const fewest = (units + traits.max_units - 1) / traits.max_units;
  // Clusters of a matrix.
  auto const count = [&](int cluster) {
    int64_t const at_once = room(cluster) / problem.l, most = at_once < units ? at_once : units;
    return most > fewest ? most : fewest;
  };
  // What one has at most.
  auto const units_per_cta = [&](int cluster) { return (units + count(cluster) - 1) / count(cluster); };
  // Whether warps keep A in registers: each has a chunk of K then; where many have none, chunks are better shared out. Rows of B are
  // loaded as parts of 32.
  auto const fits_regs = [&](int cluster) {
    constexpr int64_t kMinRegsChunks = 13;
    int64_t const of_block = (chunks + cluster - 1) / cluster;
    return problem.n % 32 == 0 && cluster <= 2 && of_block >= kMinRegsChunks && of_block <= SmallMRegs::kWarps &&
           units_per_cta(cluster) <= traits.max_regs_units;
  };
  // What the table says is for one matrix and many SMs: where blocks would wait for others' end, and do not if fewer share K,
  // fewer do. Nor do more where fewer keep A in registers, and half of the SMs or more have one of these.
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
  // Where a block has so many rows of B at a time, what each has to do: chunks of these; and sharing K takes as long as some more.
  auto const work = [&](int cluster) {
    int64_t const sharing = cluster == 1 ? 0 : cluster == 2 ? 4 : cluster == 4 ? 6 : 12;
    int64_t const rows = units_per_cta(cluster) * traits.unit_n;
    int64_t const at_once = room(cluster) > 0 ? room(cluster) : 1;
    int64_t const rounds = (count(cluster) * problem.l + at_once - 1) / at_once;
    int64_t const times = (rows + traits.concurrent_n - 1) / traits.concurrent_n;
    return rounds * times * ((chunks + cluster - 1) / cluster) + sharing;
  };
  // As many as the table says, where it does.
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
  // No more then than have as many units as any.
  int64_t const clusters = is_small_m_regs ? (units + units_per_cta(cluster) - 1) / units_per_cta(cluster) : count(cluster);
  return {variant, cluster, dim3(static_cast<unsigned>(clusters * problem.l * cluster)), {}, {}, is_small_m_regs};
}

// Of a variant; with no blocks that share a tile, as many as there is room for.
inline Plan plan_variant(Problem const &problem, Device const &device, int variant, int cluster) {
  constexpr int kMinSteps = 2;
  VariantTraits const &traits = kVariants[variant];
  if (traits.tile_m <= kSmallM) {
    return plan_small_m(problem, device, variant, cluster);
  }
  int64_t const steps = step_count(problem, traits), tiles = tile_count(problem, traits);
  if (cluster == 0) {
    cluster = traits.max_cluster;
    while (cluster > 1 && (tiles > clusters_at_once(device, traits, cluster) || steps < kMinSteps * cluster)) {
      cluster /= 2;
    }
  }
  // Each has a part of K, whatever the table says.
  while (cluster > 1 && (steps < cluster || traits.max_cluster < cluster)) {
    cluster /= 2;
  }
  // A block that has an SM for itself takes one tile after the other.
  bool const is_persistent = cluster == 1 && traits.ctas_per_sm == 1 && tiles > device.sm_count;
  int64_t const room = clusters_at_once(device, traits, cluster);
  bool const fits = traits.splits_k && (is_persistent || tiles <= room);
  SplitK const split_k = fits && room > 0 ? plan_split_k(steps, tiles % room, room, cluster) : SplitK{};
  int64_t const clusters = is_persistent ? room : tiles + split_k.helpers;
  return {variant, cluster, dim3(static_cast<unsigned>(clusters * cluster)), split_k,
          plan_slabs(problem, traits, cluster, clusters)};
}

inline Plan plan_launch(Problem const &problem, Device const &device) {
  for (Choice const &choice : kChoices) {
    if (problem.m <= choice.max_m && problem.n <= choice.max_n && problem.k <= choice.max_k &&
        takes(problem, kVariants[choice.variant])) {
      return plan_variant(problem, device, choice.variant, choice.cluster);
    }
  }
  return plan_variant(problem, device, kVariantCount - 1, 0);
}
