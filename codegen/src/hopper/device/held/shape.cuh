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
  // A group is two runs of rows side by side, 32 apart, and two of them are a part: of all four runs scales lie side by side.
  static constexpr int kChunkK = Shared::kChunkK, kChunkAtoms = Shared::kChunkAtoms, kRowBytes = kChunkK / 2;
  static constexpr int kBlocks = Shared::kBlocks;
  static constexpr int kRunBytes = kRowsOfRun * kRowBytes, kCodeBytes = 2 * kRunBytes;
  static constexpr int kScaleRow = kRowsOfRun * 16, kScaleBytes = kChunkAtoms * kScaleRow, kScaleRoom = kChunkK / 64 * kScaleRow;
  static constexpr int kTokenScaleRow = kHeldTokens * 16, kTokenScaleBytes = kChunkAtoms * kTokenScaleRow;
  // Sums of a group and eight tokens are 16 bytes of each lane, as multiplications give them.
  static constexpr int kColumns = kHeldTokens / 8, kPieceBytes = 512, kSumBytes = kColumns * kPieceBytes;
  static constexpr int kMostGroups = 8, kMostUnits = kMostGroups / kGroups, kStages = 2, kParts = kGroups / kStages;
  static constexpr int kRingBytes = kStages * kCodeBytes, kAllScales = 2 * kScaleRoom;
  static constexpr int kOwnSums = kMostGroups * kSumBytes;
  // What all warps' sums add up to lies where scales were.
  static constexpr int kTotalBytes = kMostGroups * kSumBytes;
  // Of two CTAs one writes as many units as the other, or one more.
  static constexpr int kExchangeBytes = (kMostUnits + 1) / 2 * kGroups * kSumBytes;
  // A place that is zero, one that nobody reads, and barriers: of stages, and two of the CTA.
  static constexpr int kZeroBytes = 16, kUnusedBytes = 16, kBarriers = kStages, kAlignment = 1024;
  static constexpr int kShared = kAlignment + kWarps * (kRingBytes + kAllScales + kOwnSums) + kExchangeBytes + kZeroBytes + kUnusedBytes +
                                 (kWarps * kBarriers + 2) * 8;
  // Scales of tokens lie where the first sums will.
  static_assert(kShared <= 227 * 1024 && kTotalBytes <= kWarps * kAllScales && kTokenScaleBytes <= kOwnSums);
};
