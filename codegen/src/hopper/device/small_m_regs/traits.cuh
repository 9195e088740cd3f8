// What nine to 16 rows of A have where a CTA has as many chunks of K as warps. What limits them is how many instructions
// decode B, not memory. So nothing else is done: each warp keeps the rows of A of one chunk, decoded, in registers, and goes through
// all rows of B that its CTA has: nobody waits for others' rows of A, nor reads them again. B comes by tensor copies that one lane asks
// for. Warps' sums of the same rows are added up at the end; of two CTAs that share K each has first the rows that the other will write,
// and sends their sums while it has the others.
constexpr int kRegsM = 16;
// Rows of B side by side whose chunks are loaded together.
constexpr int kRunN = 8;

struct SmallMRegs {
  using Shared = SmallM<kRegsM>;
  static constexpr int kWarps = Shared::kWarps, kThreads = Shared::kThreads, kWidth = Shared::kWidth, kGroups = Shared::kGroups;
  // A group is two runs of rows side by side, 32 apart, and two of them are a part: of all four runs scales lie side by side.
  static constexpr int kChunkK = Shared::kChunkK, kChunkAtoms = Shared::kChunkAtoms, kRowBytes = kChunkK / 2;
  static constexpr int kBlocks = Shared::kBlocks;
  static constexpr int kRunBytes = kRunN * kRowBytes, kCodeBytes = 2 * kRunBytes;
  static constexpr int kSfbRowBytes = kRunN * 16, kSfbBytes = kChunkAtoms * kSfbRowBytes, kSfbRoom = kChunkK / 64 * kSfbRowBytes;
  static constexpr int kSfaRowBytes = kRegsM * 16, kSfaBytes = kChunkAtoms * kSfaRowBytes;
  // Sums of a group and eight rows of A are 16 bytes of each lane, as multiplications give them.
  static constexpr int kColumns = kRegsM / 8, kPieceBytes = 512, kSumBytes = kColumns * kPieceBytes;
  static constexpr int kMaxGroups = 8, kMaxUnits = kMaxGroups / kGroups, kStages = 2, kParts = kGroups / kStages;
  static constexpr int kRingBytes = kStages * kCodeBytes, kSfbRingBytes = 2 * kSfbRoom;
  static constexpr int kOwnSums = kMaxGroups * kSumBytes;
  // What all warps' sums add up to lies where scales were.
  static constexpr int kTotalBytes = kMaxGroups * kSumBytes;
  // Of two CTAs one writes as many units as the other, or one more.
  static constexpr int kExchangeBytes = (kMaxUnits + 1) / 2 * kGroups * kSumBytes;
  // A place that is zero, one that nobody reads, and barriers: of stages, and two of the CTA.
  static constexpr int kZeroBytes = 16, kUnusedBytes = 16, kBarriers = kStages, kAlignment = 1024;
  static constexpr int kShared = kAlignment + kWarps * (kRingBytes + kSfbRingBytes + kOwnSums) + kExchangeBytes + kZeroBytes + kUnusedBytes +
                                 (kWarps * kBarriers + 2) * 8;
  // Scales of rows of A lie where the first sums will.
  static_assert(kShared <= 227 * 1024 && kTotalBytes <= kWarps * kSfbRingBytes && kSfaBytes <= kOwnSums);
};
