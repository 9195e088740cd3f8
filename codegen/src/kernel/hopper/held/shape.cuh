// What nine to 16 rows of A ("tokens") have where a CTA has as many chunks of K as warps. What limits them is how many instructions
// decode weights, not memory. So nothing else is done: each warp keeps the tokens of one chunk, decoded, in registers, and goes through
// all rows of B that its CTA has: nobody waits for others' tokens, nor reads them again. Weights come by tensor copies that one lane asks
// for. Warps' sums of the same rows are added up at the end; of two CTAs that share K each has first the rows that the other will write,
// and sends their sums while it has the others.
constexpr int kHeldTokens = 16;
// Rows of B side by side whose chunks are loaded together.
constexpr int kRowsOfRun = 8;

struct Held {
  using Shared = Few<kHeldTokens>;
  static constexpr int kWarps = Shared::kWarps, kThreads = Shared::kThreads, kWidth = Shared::kWidth, kGroups = Shared::kGroups;
  // A group is two runs of rows side by side, 32 apart: of such, and those 64 and 96 further on, scales lie side by side.
  static constexpr int kChunkK = Shared::kChunkK, kChunkAtoms = Shared::kChunkAtoms, kRowBytes = kChunkK / 2;
  static constexpr int kBlocks = Shared::kBlocks;
  static constexpr int kRunBytes = kRowsOfRun * kRowBytes, kCodeBytes = 2 * kRunBytes;
  static constexpr int kScaleRow = kRowsOfRun * 16, kScaleBytes = kChunkAtoms * kScaleRow, kScaleRoom = kChunkK / 64 * kScaleRow;
  // Sums of a group and eight tokens are 16 bytes of each lane, as multiplications give them. Those of the last two groups are left where
  // their weights were.
  static constexpr int kColumns = kHeldTokens / 8, kPieceBytes = 512, kSumBytes = kColumns * kPieceBytes;
  static constexpr int kMostGroups = 8, kStages = 2;
  static constexpr int kRingBytes = kStages * kCodeBytes, kAllScales = kMostGroups / 2 * kScaleRoom;
  static constexpr int kOwnSums = (kMostGroups - kStages) * kSumBytes;
  // What all warps' sums add up to lies where scales were.
  static constexpr int kTotalBytes = kMostGroups * kSumBytes, kExchangeBytes = kTotalBytes / 2;
  // A place that is zero, one that nobody reads, and barriers: of stages and scales, and two of the CTA.
  static constexpr int kZeroBytes = 16, kUnusedBytes = 16, kBarriers = kStages + 1, kAlignment = 1024;
  static constexpr int kShared = kAlignment + kWarps * (kRingBytes + kAllScales + kOwnSums) + kExchangeBytes + kZeroBytes + kUnusedBytes +
                                 (kWarps * kBarriers + 2) * 8;
  static_assert(kShared <= 227 * 1024 && kSumBytes <= kCodeBytes && kTotalBytes <= kWarps * kAllScales);
};
