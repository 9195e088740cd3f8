// Small M: what counts is that B is read once, as fast as memory gives them. A CTA has some
// rows of B, and its warps share their bytes evenly, each a run of rows' pieces one after the other. A warp brings its
// pieces into its own shared memory, some ahead, decodes them in registers and multiplies them by all rows of A, which were
// decoded into shared memory before. Where those of all of K have no room there, a cluster shares K.
//
// What limits that is how many instructions decode. So where rows of A are fewest neither operand is multiplied with its scales:
// their codes become e4m3, by half as many instructions as fp16 with scales, for a multiplication of warpgroups, each of whose
// columns has the sums of another group of 16 along K. These are exact: multiples of 1/4 up to 576, 12 bits, where tensor cores
// keep 13 and more of e4m3. The scales are multiplied with them, not with every element of B. For more rows of A a column for each group is
// too many; those are multiplied as fp16 or bf16, with their scales, by mma.sync.
template <int kTileM>
struct SmallM {
  static constexpr bool kUsesE4m3 = kTileM < 8;
  static constexpr int kWarps = 16, kThreads = kWarps * 32, kMinBlocks = 1, kMaxCluster = 8;
  // As e4m3, a warpgroup's warps multiply together, each other rows by the same part of K.
  static constexpr int kMmaWarps = kUsesE4m3 ? 4 : 1, kMmaIssuers = kWarps / kMmaWarps;
  // A unit is the rows that are shared out to CTAs together: D is written 8 columns of a row at a time, or 32 with
  // blocks. Of eight rows and those that lie 32, 64 and 96 further on the scales lie side by side.
  static constexpr int kUnitN = kSimple ? 32 : 128, kWidth = kUnitN / 4;
  // A group is the rows that a warp multiplies at a time, and a chunk is what it loads of them at a time.
  static constexpr int kGroupN = 16, kGroups = kUnitN / kGroupN, kChunkK = 256, kBlocks = kChunkK / kBlockK;
  static constexpr int kRowBytes = kChunkK / 2, kChunkAtoms = kChunkK / kAtomK, kAtomPart = 64;
  static constexpr int kChunkBytes = kGroupN * kRowBytes + kChunkAtoms * kAtomPart;
  // Rows of B that a CTA's warps have at a time, whether there are as many or not; none where each goes its own way.
  static constexpr int kConcurrentN = kUsesE4m3 ? kMmaWarps * kGroupN : 0;
  // With so many chunks or more for a warp, its first one is brought into the L2 cache before the kernel waits for the one before: one
  // row and two are 3 % faster then. With fewer, rows of A, which come behind it, are waited for.
  static constexpr int kPrefetchChunks = 8;
  // Sums of a group, and for how many of them there is room: as e4m3, those of each warpgroup; else beside those of warps' last
  // groups.
  static constexpr int kSumPitch = kGroupN, kSumBytes = kTileM * kSumPitch * 4;
  static constexpr int kMaxGroups = kTileM == 16 ? 8 : kTileM == 2 ? 16 : 32;
  static constexpr int kMaxUnits = kMaxGroups / kGroups, kAllSums = (kUsesE4m3 ? kMmaIssuers : 1) * kMaxGroups * kSumBytes;
  // As e4m3, what a block of K of a row of A takes: two matrices of 8 columns by 32 codes. Its scales lie behind those of all blocks.
  static constexpr int kMatrixBytes = 256, kABlockBytes = 2 * kMatrixBytes;
  static constexpr int kABlockScaleBytes = kBlockK / kScaleVector * 4;
  // How many elements of rows of A there is room for. Those of two rows of A of fp16 or bf16 lie in different banks.
  static constexpr int kMaxElements = kTileM == 1 ? 16384 : kTileM == 16 ? 65536 : 32768;
  static constexpr int kABytes =
      kUsesE4m3 ? kMaxElements / kBlockK * (kABlockBytes + kABlockScaleBytes) : kMaxElements * 2 + kTileM * 64;
  // Pieces of 32 codes that a thread decodes.
  static constexpr int kPieces = kMaxElements / 32 / kThreads;
  // What all warps' sums add up to: of all rows, or of one vector of each CTA of a cluster; and a place that is zero.
  static constexpr int kMaxN = kMaxGroups * kGroupN, kVectors = kMaxCluster * kWidth;
  static constexpr int kTotalBytes = (kMaxN > kVectors ? kMaxN : kVectors) * kTileM * 4, kZeroBytes = 128;
  // A barrier for what the others of a cluster send, and a byte that nobody reads.
  static constexpr int kBarrierBytes = 16, kAlignment = 128;
  // Two stages: 74 KB that an SM waits for are enough, and with more of them the same bytes take longer.
  static constexpr int kStages = 2, kRingBytes = kStages * kChunkBytes;
  static constexpr int kShared =
      kABytes + kAllSums + kTotalBytes + kZeroBytes + kBarrierBytes + kAlignment + kWarps * kRingBytes;
  static constexpr int kChunks = kTileM / 8;  // of eight rows of A, where there are so many
  static_assert(kShared <= 227 * 1024 && kSumBytes <= kRingBytes && kPieces * 32 * kThreads == kMaxElements);
};
