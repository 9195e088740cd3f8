// Small M with kTileM = 16, for 13 to 16 K chunks per CTA, at most one per warp (fits_regs in plan.cuh). The
// instructions that decode B limit the kernel, not memory, so it has few others. Each warp keeps decoded A of one K
// chunk in registers, and multiplies all rows of B of its CTA. No warp waits for other warps' A or reads A again. At
// the end the warps' sums of the same rows of B are added. Of two CTAs that share K, each first multiplies the rows of
// B whose sums the other stores. It sends these sums while it multiplies its own rows.
//
// A group is 16 rows of B, two runs of kRunN; a part is kStages = 2 groups.
//
// Warp roles. Each warp fills its own ring: there are no producer warps, and no empty barriers.
//   warp w, w < chunks   an elected lane loads A, B and their scales by TMA; all lanes copy an A of more than 4 bits by
//                        cp.async, and read its scales from global memory. They decode A into registers, then decode
//                        and multiply one group of B after the other. Then, like all warps, reduce and store.
//   other warps          store zeros as their sums. Then reduce and store.
//   warp 0               its elected lane initializes sums_full and exchange_full; lane 0 prefetches scalars of the
//                        epilogue.
//
// Barriers
//   barriers[warp][stage]  full: the warp's elected lane arrives with the bytes of a TMA load, and the warp waits.
//                          If kLoadsA, phase 0 of stage 1 is A with SFA, and its phases from 1 on are groups. All
//                          other phases are groups. SFB of a part arrives with stage 0.
//   sums_full              all threads of a CTA that sends arrive once they have stored their sums of all groups that
//                          the other CTA stores. They wait in send(), for parity 0 only.
//   exchange_full          the elected lane of warp 0 arrives with the expected byte count. The other CTA sends the
//                          bytes by st.async. A thread of a pair waits before it adds the other's sums, for parity 0
//                          only.
//   barrier.cluster        of a pair: all arrive once all barriers are initialized. They wait in send(), or after the
//                          mainloop if nothing is sent.
//   cp.async, __syncwarp   a lane waits for its own copies of A, then for those of other lanes.
//   __syncwarp             before the elected lane loads the next group over the previous one, whose sums are kept.
//
// Shared memory, aligned to kAlignment = 1024 bytes, as TMA swizzles rows of 128 bytes. Each array up to `exchange` is
// aligned, too
//   rings          kWarps * kRingBytes     per warp kStages groups of codes; stage 1 has A at first
//   scales         kWarps * kSfbRingBytes  per warp SFB of two parts. At the end `totals`, the sums by vector, unless
//                                          kSimple
//   sums           kWarps * kOwnSums       per warp the sums of all its groups; at first SFA of its chunk,
//                                          or an A of more than 4 bits
//   exchange       kExchangeBytes          sums that the other CTA sends
//   zeros, unused  kZeroBytes, kUnusedBytes  zeros for addresses of scalars; the target of prefetch copies
//   barriers       (kWarps * kBarriers + 2) * 8  of each warp's stages, then sums_full, then exchange_full
//
// Pipeline of a warp. gi is its i-th group. One group is loaded while another is multiplied, and no more: the first
// groups of all warps arrive at memory bandwidth.
//   stage 0  |copy g0.................|mma g0|copy g2|mma g2|copy g4|
//   stage 1  |copy A....|decode A|    |copy g1|mma g1|copy g3|mma g3|
//   pair                                        | others' groups are done: sums_full | one part later: send |

constexpr int kRegsM = 16;
// Adjacent rows of B that are loaded together.
constexpr int kRunN = 8;

struct SmallMRegs {
  using Shared = SmallM<kRegsM>;
  static constexpr int kWarps = Shared::kWarps, kThreads = Shared::kThreads, kWidth = Shared::kWidth, kGroups = Shared::kGroups;
  // A group is two runs of rows, 32 apart, and a part is two groups. The scales of all four runs are adjacent.
  static constexpr int kChunkK = Shared::kChunkK, kChunkAtoms = Shared::kChunkAtoms, kRowBytes = kChunkK / 2;
  static constexpr int kBlocks = Shared::kBlocks;
  // True if A is loaded into a stage by TMA. An A of more than 4 bits is larger than a stage: its pieces of 16 bytes are
  // copied to the place of the warp's sums.
  static constexpr bool kLoadsA = kBitsA == 4;
  static constexpr int kRowBytesA = kChunkK * kBitsA / 8, kPiecesA = kRowBytesA / 16;
  static constexpr int kRunBytes = kRunN * kRowBytes, kCodeBytes = 2 * kRunBytes;
  static constexpr int kSfbRowBytes = kRunN * 16, kSfbBytes = kChunkAtoms * kSfbRowBytes, kSfbRoom = kChunkK / 64 * kSfbRowBytes;
  static constexpr int kSfaRowBytes = kRegsM * 16, kSfaBytes = kChunkAtoms * kSfaRowBytes;
  // Sums of a group and eight rows of A: 16 bytes per lane, in the order of mma accumulators.
  static constexpr int kColumns = kRegsM / 8, kPieceBytes = 512, kSumBytes = kColumns * kPieceBytes;
  static constexpr int kMaxGroups = 8, kMaxUnits = kMaxGroups / kGroups, kStages = 2, kParts = kGroups / kStages;
  static constexpr int kRingBytes = kStages * kCodeBytes, kSfbRingBytes = 2 * kSfbRoom;
  static constexpr int kOwnSums = kMaxGroups * kSumBytes;
  // Totals over warps, stored over the scales.
  static constexpr int kTotalBytes = kMaxGroups * kSumBytes;
  // One of two CTAs stores as many units as the other, or one more.
  static constexpr int kExchangeBytes = (kMaxUnits + 1) / 2 * kGroups * kSumBytes;
  // Zeros, bytes that no thread reads, and the barriers: one per stage of a warp, and two of the CTA.
  static constexpr int kZeroBytes = 16, kBarriers = kStages, kAlignment = 1024;
  static constexpr int kShared = kAlignment + kWarps * (kRingBytes + kSfbRingBytes + kOwnSums) + kExchangeBytes + kZeroBytes + kUnusedBytes +
                                 (kWarps * kBarriers + 2) * 8;
  // SFA lies where the first sums will be stored.
  static_assert(kShared <= 227 * 1024 && kTotalBytes <= kWarps * kSfbRingBytes && kSfaBytes <= kOwnSums);
  static_assert(kLoadsA || kRegsM * kRowBytesA <= kOwnSums);
};
