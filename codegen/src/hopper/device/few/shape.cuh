// Few rows of A ("tokens"): what counts is that the weights are read once, as fast as memory gives them. A CTA has some
// rows of B, and its warps share their bytes evenly, each a run of rows' pieces one after the other. A warp brings its
// pieces into its own shared memory, some ahead, decodes them in registers and multiplies them by all tokens, which were
// decoded into shared memory before. Where those of all of K have no room there, a cluster shares K.
//
// What limits that is how many instructions decode. So where tokens are fewest neither operand is multiplied with its scales:
// their codes become e4m3, by half as many instructions as fp16 with scales, for a multiplication of warpgroups, each of whose
// columns has the sums of another group of 16 along K. These are exact: multiples of 1/4 up to 576, 12 bits, where tensor cores
// keep 13 and more of e4m3. The scales are multiplied with them, not with every weight. For more tokens a column for each group is
// too many; those are multiplied as fp16 or bf16, with their scales, by mma.sync.
template <int kTokens>
struct Few {
  static constexpr bool kAsBytes = kTokens < 8;
  static constexpr int kWarps = 16, kThreads = kWarps * 32, kMinBlocks = 1, kMostCluster = 8;
  // As bytes, a warpgroup's warps multiply together, each other rows by the same part of K.
  static constexpr int kTogether = kAsBytes ? 4 : 1, kRunners = kWarps / kTogether;
  // A unit is the rows that are shared out to CTAs together: D is written 8 columns of a row at a time, or 32 with
  // blocks. Of eight rows and those that lie 32, 64 and 96 further on the scales lie side by side.
  static constexpr int kUnitRows = kSimple ? 32 : 128, kWidth = kUnitRows / 4;
  // A group is the rows that a warp multiplies at a time, and a chunk is what it loads of them at a time.
  static constexpr int kGroupRows = 16, kGroups = kUnitRows / kGroupRows, kChunkK = 256, kBlocks = kChunkK / kBlockK;
  static constexpr int kRowBytes = kChunkK / 2, kChunkAtoms = kChunkK / kAtomK, kAtomPart = 64;
  static constexpr int kChunkBytes = kGroupRows * kRowBytes + kChunkAtoms * kAtomPart;
  // Rows of B that a CTA's warps have at a time, whether there are as many or not; none where each goes its own way.
  static constexpr int kRowsAtOnce = kAsBytes ? kTogether * kGroupRows : 0;
  // With so many chunks or more for a warp, its first one is brought into the L2 cache before the kernel waits for the one before: one
  // row and two are 3 % faster then. With fewer, tokens, which come behind it, are waited for.
  static constexpr int kManyChunks = 8;
  // Sums of a group, and for how many of them there is room: as bytes, those of each warpgroup; else beside those of warps' last
  // groups.
  static constexpr int kSumPitch = kGroupRows, kSumBytes = kTokens * kSumPitch * 4;
  static constexpr int kMostGroups = kTokens == 16 ? 8 : kTokens == 2 ? 16 : 32;
  static constexpr int kMostUnits = kMostGroups / kGroups, kAllSums = (kAsBytes ? kRunners : 1) * kMostGroups * kSumBytes;
  // As bytes, what a block of K of a token takes: two matrices of 8 columns by 32 codes. Its scales lie behind those of all blocks.
  static constexpr int kMatrixBytes = 256, kTokenBlockBytes = 2 * kMatrixBytes;
  static constexpr int kTokenBlockScales = kBlockK / kScaleVector * 4;
  // How many elements of tokens there is room for. Those of two tokens of fp16 or bf16 lie in different banks.
  static constexpr int kMostElements = kTokens == 1 ? 16384 : kTokens == 16 ? 65536 : 32768;
  static constexpr int kTokenBytes =
      kAsBytes ? kMostElements / kBlockK * (kTokenBlockBytes + kTokenBlockScales) : kMostElements * 2 + kTokens * 64;
  // Pieces of 32 codes that a thread decodes.
  static constexpr int kPieces = kMostElements / 32 / kThreads;
  // What all warps' sums add up to: of all rows, or of one vector of each CTA of a cluster; and a place that is zero.
  static constexpr int kMostRows = kMostGroups * kGroupRows, kVectors = kMostCluster * kWidth;
  static constexpr int kTotalBytes = (kMostRows > kVectors ? kMostRows : kVectors) * kTokens * 4, kZeroBytes = 128;
  // A barrier for what the others of a cluster send, and a byte that nobody reads.
  static constexpr int kBarrierBytes = 16, kAlignment = 128;
  // Two stages: 74 KB that an SM waits for are enough, and with more of them the same bytes take longer.
  static constexpr int kStages = 2, kRingBytes = kStages * kChunkBytes;
  static constexpr int kShared =
      kTokenBytes + kAllSums + kTotalBytes + kZeroBytes + kBarrierBytes + kAlignment + kWarps * kRingBytes;
  static constexpr int kChunks = kTokens / 8;  // of eight tokens, where there are so many
  static_assert(kShared <= 227 * 1024 && kSumBytes <= kRingBytes && kPieces * 32 * kThreads == kMostElements);
};
