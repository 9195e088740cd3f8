// Small M, kTileM = 16, where a CTA has 13 to 16 chunks of K, no more than warps (fits_regs in plan.cuh). The limit is the number of
// instructions that decode B, not memory. So nothing else is done: each warp keeps A of one chunk of K, decoded, in registers, and goes
// through all rows of B of its CTA. No warp waits for A of others, nor reads A again. The warps' sums of the same rows of B are added up
// at the end. Of two CTAs that share K each first multiplies the rows of B whose sums the other writes, and sends these sums while it
// multiplies its own.
//
// A group is 16 rows of B, two runs of kRunN; a part is kStages = 2 groups.
//
// Warp roles. Each warp fills its own ring: there are no producer warps, and no empty barriers.
//   warp w, w < chunks   one elected lane asks for A, B and their scales by TMA; all lanes decode A into registers, then decode and
//                        multiply one group of B after the other; then, as all, reduce and store
//   other warps          store zeros as their sums; then reduce and store
//   warp 0               its elected lane makes sums_full and exchange_full; its lane 0 prefetches scalars of the epilogue
//
// Barriers
//   barriers[warp][stage]  full: the elected lane of the warp arrives with the bytes of a TMA copy; the warp waits. Of stage 1 phase 0 is A
//                          with SFA, and groups are the phases from 1 on; of stage 0 groups are all phases. A part's SFB come with
//                          stage 0.
//   sums_full              all threads of a CTA that sends arrive, when they have the sums of all groups that the other CTA writes, and
//                          wait in send(). Phase 0 only.
//   exchange_full          the elected lane of warp 0 arrives with the bytes to come; the bytes are st.async of the other CTA. A thread
//                          of a pair waits each time before it adds the other's sums. Phase 0 only.
//   barrier.cluster        of a pair: all arrive when all barriers are made, and wait in send(), or behind the mainloop if nothing is sent
//   __syncwarp             before the elected lane asks for the next group: it goes where the group before was, whose sums are kept
//
// Shared memory, from a multiple of kAlignment = 1024 bytes on, as TMA swizzles rows of 128 bytes. Each array up to `exchange` begins at
// such a multiple
//   rings          kWarps * kRingBytes     of each warp kStages groups of codes; stage 1 has A at first
//   scales         kWarps * kSfbRingBytes  of each warp SFB of two parts; at the end `totals`, the sums by vector, unless kSimple
//   sums           kWarps * kOwnSums       of each warp the sums of all its groups; at first SFA of its chunk
//   exchange       kExchangeBytes          sums that the other CTA sends
//   zeros, unused  kZeroBytes, kUnusedBytes  zeros for addresses of scalars; the target of copies that nobody reads
//   barriers       (kWarps * kBarriers + 2) * 8  of each warp's stages, then sums_full, then exchange_full
//
// Pipeline of a warp, gi its i-th group. The next group is on its way while one is multiplied, and no more: the first groups of all warps
// come as fast as memory delivers them.
//   stage 0  |copy g0.................|mma g0|copy g2|mma g2|copy g4|
//   stage 1  |copy A....|decode A|    |copy g1|mma g1|copy g3|mma g3|
//   pair                                        | others' groups are done: sums_full | one part later: send |

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
