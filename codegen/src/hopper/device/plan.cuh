// The plan of a launch, on the host: which tile a problem gets, how many blocks share it, what others have of it, and how
// large a workspace it needs.

// What others have of the last tiles: so many clusters of them, of so many tiles as many pieces of so many steps along K.
struct Pieces {
  int helpers, tiles, of_tile, steps;
};

// Which tokens a kernel of its own decodes before, in slabs: of those of the first tiles along M, of so many of all matrices, the
// first along K.
struct Slabs {
  int tiles, first_tiles, along_k, first_along_k;
  bool are_all_first() const { return first_tiles == tiles && first_along_k == along_k; }
};

// How a problem is launched: blocks that share a tile lie side by side.
struct Plan {
  int variant, cluster;
  dim3 grid;
  Pieces pieces;
  Slabs slabs;
  // With few rows of A, whether warps hold these.
  bool is_held;
};

inline int64_t tile_count(Problem const &problem, Built const &built) {
  return (problem.m + built.tokens - 1) / built.tokens * ((problem.n + built.rows - 1) / built.rows) * problem.l;
}

// How many clusters the device has room for at once. Those of more than two blocks are kept within groups of SMs, whose
// number of SMs is not always a multiple of theirs: an eighth is left for that where a block has an SM for itself.
inline int64_t clusters_at_once(Device const &device, Built const &built, int cluster) {
  int64_t const room = static_cast<int64_t>(device.sm_count) * built.per_sm;
  return (cluster > 2 && built.per_sm == 1 ? room * 7 / 8 : room) / cluster;
}

// Steps along K.
inline int64_t step_count(Problem const &problem, Built const &built) {
  int64_t const step = built.blocks * kBlockK;
  return (problem.k + step - 1) / step;
}

// What is given of the tiles of a round to clusters that have none, each of whose blocks has pieces of its own: as takes the
// least time, if that is a sixteenth less. Leaving a piece, and adding one, take as long as some steps.
inline Pieces give_pieces(int64_t steps, int64_t tiles, int64_t room, int cluster) {
  constexpr int64_t kGiving = 3, kAdding = 2, kMostOfTile = 16;
  int64_t const helpers = (room - tiles) * cluster;
  Pieces best = {};
  // Times are counted for all blocks of a cluster.
  int64_t least = steps - steps / 16;
  int64_t const most_of_tile = tiles == 0 || helpers <= 0 ? 0 : helpers <= tiles ? 1 : helpers / tiles;
  for (int64_t of_tile = 1; of_tile <= most_of_tile && of_tile <= kMostOfTile; ++of_tile) {
    int64_t const each = (tiles * of_tile + helpers - 1) / helpers;
    // So that those who have tiles, (steps - of_tile * piece) / cluster + kAdding * of_tile, take as long as those who help,
    // each * (piece + kGiving).
    int64_t piece = (steps + (kAdding * of_tile - each * kGiving) * cluster) / (of_tile + each * cluster);
    int64_t const most = (steps - cluster) / of_tile;
    piece = piece < most ? piece : most;
    int64_t const own = steps - of_tile * piece + kAdding * of_tile * cluster, other = each * (piece + kGiving) * cluster;
    int64_t const time = own > other ? own : other;
    if (piece > 0 && time < least) {
      least = time;
      best = {static_cast<int>(room - tiles), static_cast<int>(tiles), static_cast<int>(of_tile), static_cast<int>(piece)};
    }
  }
  return best;
}

// Whether a kernel of its own decodes the rows of A before, into a workspace, what a row has there, and how many rows the
// workspace has: of the last matrix as many as its tiles. The others' tiles end in the next matrix. A tile is loaded much
// faster where all of its rows are there, whatever they are.
inline bool decodes_before(Built const &built) { return built.tokens > kFewTokens; }
inline int64_t decoded_row_bytes(Problem const &problem) { return (problem.k + kBlockK - 1) / kBlockK * kDecodedBlockBytes; }
inline int64_t rows_of_tiles(Problem const &problem, Built const &built) {
  return (problem.m + built.tokens - 1) / built.tokens * built.tokens;
}
inline int64_t decoded_rows(Problem const &problem, Built const &built) {
  return (problem.l - 1) * problem.m + rows_of_tiles(problem, built);
}

// Behind the rows of A the workspace has the flags of pieces, counters of what is left of the tokens, and the sums of pieces.
inline uint32_t *flags(Problem const &problem, Built const &built, void *workspace) {
  return reinterpret_cast<uint32_t *>(static_cast<uint8_t *>(workspace) +
                                      decoded_row_bytes(problem) * decoded_rows(problem, built));
}
inline int64_t counter_count(Slabs const &slabs) {
  // One for each slab, and one for all; what is behind them is read 16 bytes at a time.
  return slabs.are_all_first() ? 0 : (static_cast<int64_t>(slabs.tiles) * slabs.along_k + 4) / 4 * 4;
}
inline int64_t workspace_bytes(Problem const &problem, Plan const &plan) {
  Built const &built = kBuilt[plan.variant];
  int64_t const piece = kPieceFlags * 4 + static_cast<int64_t>(built.tokens) * built.rows * 4;
  return decoded_row_bytes(problem) * decoded_rows(problem, built) + counter_count(plan.slabs) * 4 +
         piece * plan.pieces.tiles * plan.pieces.of_tile;
}

// What is left to the warps of tiles: all that those which are computed first, so many at once, do not need at first. Where CTAs
// share K each needs another part of it, and where there are too many units to be counted, nothing is left.
inline Slabs share_tokens(Problem const &problem, Built const &built, int cluster, int64_t at_once) {
  constexpr int64_t kFirstSlabs = 2;
  int64_t const tiles_m = (problem.m + built.tokens - 1) / built.tokens, tiles_n = (problem.n + built.rows - 1) / built.rows;
  int64_t const tiles = tiles_m * problem.l, of_matrix = tiles_m * tiles_n;
  int64_t const along_k = (problem.k + kSlabBlocks * kBlockK - 1) / (kSlabBlocks * kBlockK);
  int64_t first_tiles = tiles, first_along_k = along_k;
  if (built.decodes_rest && cluster == 1 && tiles * along_k < INT_MAX / built.tokens) {
    int64_t const width = tiles_n < kGroupWidth ? tiles_n : kGroupWidth, along_m = (at_once + width - 1) / width;
    first_tiles = at_once > of_matrix ? (at_once + of_matrix - 1) / of_matrix * tiles_m
                  : along_m < tiles_m ? along_m
                                      : tiles_m;
    first_tiles = first_tiles < tiles ? first_tiles : tiles;
    first_along_k = along_k < kFirstSlabs ? along_k : kFirstSlabs;
  }
  return {static_cast<int>(tiles), static_cast<int>(first_tiles), static_cast<int>(along_k), static_cast<int>(first_along_k)};
}

// Units of rows of B that blocks for few rows of A share out: four runs of rows each, 32 apart.
inline int64_t unit_count(Problem const &problem, Built const &built) {
  int64_t const of_block = 128 / built.unit_rows, run = built.unit_rows / 4, rest = (problem.n % 128 + run - 1) / run;
  return problem.n / 128 * of_block + (rest < of_block ? rest : of_block);
}

// Whether a block for few rows of A has room for them, where so many share K.
inline bool fits_few(Problem const &problem, Built const &built, int cluster) {
  int64_t const chunk = built.blocks * kBlockK, chunks = (problem.k + chunk - 1) / chunk;
  return problem.m * ((chunks + cluster - 1) / cluster * chunk) <= built.most_elements;
}

// Whether a variant takes a problem.
inline bool takes(Problem const &problem, Built const &built) {
  return built.tokens > kFewTokens || (problem.m <= built.tokens && fits_few(problem, built, built.most_cluster));
}

// A kernel that has one line is forced to what that says.
constexpr bool kIsForced = sizeof(kChoices) == sizeof(Choice);

// For few rows of A every SM has a block, with its share of the rows of B. So many share K as their elements of A need
// room, and more where there are too few rows of B for all.
inline Plan plan_few(Problem const &problem, Device const &device, int variant, int least) {
  Built const &built = kBuilt[variant];
  int64_t const units = unit_count(problem, built), chunk = built.blocks * kBlockK;
  int64_t const chunks = (problem.k + chunk - 1) / chunk;
  auto const room = [&](int cluster) { return clusters_at_once(device, built, cluster); };
  // What a block has of sums must have room, too.
  int64_t const fewest = (units + built.most_units - 1) / built.most_units;
  // Clusters of a matrix.
  auto const count = [&](int cluster) {
    int64_t const at_once = room(cluster) / problem.l, most = at_once < units ? at_once : units;
    return most > fewest ? most : fewest;
  };
  // What one has at most.
  auto const share = [&](int cluster) { return (units + count(cluster) - 1) / count(cluster); };
  // Whether warps hold rows of A: each has a chunk of K then; where many have none, chunks are better shared out. Rows of B are
  // loaded as parts of 32.
  auto const holds = [&](int cluster) {
    constexpr int64_t kFewestHeld = 13;
    int64_t const of_block = (chunks + cluster - 1) / cluster;
    return problem.n % 32 == 0 && cluster <= 2 && of_block >= kFewestHeld && of_block <= Held::kWarps &&
           share(cluster) <= built.most_held;
  };
  // What the table says is for one matrix and many SMs: where blocks would wait for others' end, and do not if fewer share K,
  // fewer do. Nor do more where fewer hold rows of A, and half of the SMs or more have one of these.
  auto const is_wanted = [&](int cluster) {
    int64_t const clusters = fewest * problem.l;
    if (!kIsForced && holds(cluster / 2) && 2 * units * problem.l >= room(cluster / 2)) {
      return false;
    }
    return cluster <= least && (kIsForced || clusters <= room(cluster) || clusters > room(cluster / 2));
  };
  int cluster = 1;
  while (cluster < built.most_cluster && (is_wanted(cluster * 2) || !fits_few(problem, built, cluster)) &&
         cluster * 2 <= chunks) {
    cluster *= 2;
  }
  // Where a block has so many rows of B at a time, what each has to do: chunks of these; and sharing K takes as long as some more.
  auto const work = [&](int cluster) {
    int64_t const sharing = cluster == 1 ? 0 : cluster == 2 ? 4 : cluster == 4 ? 6 : 12;
    int64_t const rows = share(cluster) * built.unit_rows;
    int64_t const at_once = room(cluster) > 0 ? room(cluster) : 1;
    int64_t const rounds = (count(cluster) * problem.l + at_once - 1) / at_once;
    int64_t const times = (rows + built.rows_at_once - 1) / built.rows_at_once;
    return rounds * times * ((chunks + cluster - 1) / cluster) + sharing;
  };
  // As many as the table says, where it does.
  if (least == 0 && built.rows_at_once > 0) {
    for (int more = cluster * 2; more <= built.most_cluster && more <= chunks && room(more) > 0; more *= 2) {
      cluster = work(more) < work(cluster) ? more : cluster;
    }
  }
  while (least == 0 && built.rows_at_once == 0 && cluster < built.most_cluster &&
         units * problem.l <= room(cluster * 2) && chunks >= 4 * cluster) {
    cluster *= 2;
  }
  bool const is_held = holds(cluster);
  // No more then than have as many units as any.
  int64_t const clusters = is_held ? (units + share(cluster) - 1) / share(cluster) : count(cluster);
  return {variant, cluster, dim3(static_cast<unsigned>(clusters * problem.l * cluster)), {}, {}, is_held};
}

// Of a variant; with no blocks that share a tile, as many as there is room for.
inline Plan plan_variant(Problem const &problem, Device const &device, int variant, int cluster) {
  constexpr int kFewestSteps = 2;
  Built const &built = kBuilt[variant];
  if (built.tokens <= kFewTokens) {
    return plan_few(problem, device, variant, cluster);
  }
  int64_t const steps = step_count(problem, built), tiles = tile_count(problem, built);
  if (cluster == 0) {
    cluster = built.most_cluster;
    while (cluster > 1 && (tiles > clusters_at_once(device, built, cluster) || steps < kFewestSteps * cluster)) {
      cluster /= 2;
    }
  }
  // Each has a part of K, whatever the table says.
  while (cluster > 1 && (steps < cluster || built.most_cluster < cluster)) {
    cluster /= 2;
  }
  // A block that has an SM for itself takes one tile after the other.
  bool const takes_turns = cluster == 1 && built.per_sm == 1 && tiles > device.sm_count;
  int64_t const room = clusters_at_once(device, built, cluster);
  bool const fits = built.has_pieces && (takes_turns || tiles <= room);
  Pieces const pieces = fits && room > 0 ? give_pieces(steps, tiles % room, room, cluster) : Pieces{};
  int64_t const clusters = takes_turns ? room : tiles + pieces.helpers;
  return {variant, cluster, dim3(static_cast<unsigned>(clusters * cluster)), pieces,
          share_tokens(problem, built, cluster, clusters)};
}

inline Plan plan_launch(Problem const &problem, Device const &device) {
  for (Choice const &choice : kChoices) {
    if (problem.m <= choice.max_m && problem.n <= choice.max_n && problem.k <= choice.max_k &&
        takes(problem, kBuilt[choice.variant])) {
      return plan_variant(problem, device, choice.variant, choice.cluster);
    }
  }
  return plan_variant(problem, device, kVariantCount - 1, 0);
}
