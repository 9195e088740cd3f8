// Large M: a tile is kTileM rows of A by kTileN rows of B. wgmma takes B from registers and A from shared memory.
// Consumers decode B in registers, once per tile. decode_a_kernel decodes A beforehand, or idle warps of this kernel do
// while other tiles are computed (decode_ahead.cuh).
//
// A warp cannot decode while wgmma reads operands from its registers, so other warps must decode meanwhile. A CTA
// therefore has four consumer warpgroups, or two with registers for the operands of two K blocks. Each multiplies 64
// rows of B, or 128 (kHalves = 2) for outputs with blocks. With kTileN = 64 there are two phases: warpgroups that take
// alternate K blocks.
//
// If there are fewer tiles than SMs, a cluster shares a tile. Each CTA multiplies a part of K, owns some slices of D,
// and adds the other CTAs' sums of its slices in a fixed order. With kKeepsGroup, each of two CTAs keeps the sums of
// one warpgroup. The other warpgroup ends some K blocks earlier, and sends its sums while the kept one multiplies the
// last K blocks.
//
// Warp roles, in run_tiled
//   0 .. kWarps - 1         consumers: kPhases * kGroupsN warpgroups. Decode B, multiply, reduce, and store D.
//   kWarps                  producer of B: an elected lane loads B and SFB by TMA.
//   kWarps + 1              producer of A: an elected lane initializes the CTA's barriers. Lane 0 then executes
//                           griddepcontrol.wait and loads decoded A by TMA. At the end, lanes arrive at exchange_empty
//                           of the other CTAs, which may then send.
//   kWarps + 2, kWarps + 3  decode the rest of A, if kDecodesAhead. Lane 0 of the first initializes the exchange
//                           barriers and prefetches scalars of the epilogue.
//
// Barriers (mbarrier)   arrivals                                            waiting threads
//   full_b[stage]       1 by the producer of B, and the bytes of B and SFB  consumers of the stage's phase
//   empty_b[stage]      all threads of the phase: release_b                 producer of B
//   full_a[stage][]     1 by the producer of A, and the bytes of A; one     consumers of the stage's phase
//                       barrier per panel if kByPanels
//   empty_a[stage]      lane 0 of each warp of the phase: release_a         producer of A
//   tile_stored         all consumers, if kPhases > 1 and a CTA has         producer of A, before it loads A over the
//                       several tiles                                       sums of the phases
//   exchange_empty      one thread of each other CTA of the cluster         consumers, before they send
//   exchange_full[warp] 1, and the bytes that other CTAs send by st.async   the consumer warp
// The exchange barriers are used for one phase, as a cluster has one tile. A producer waits for the opposite parity
// (phase ^ 1), so it does not wait in the first round of a ring. All threads of a cluster arrive at barrier.cluster
// once barriers are initialized. Producer warps wait there before they arrive at exchange_empty of other CTAs, and
// consumers wait at their end. In reduce_phases, named barriers 1 and 2 have one phase each, and 3 has all consumers.
// Flags in global memory signal stored splits (split_flags) and decoded slabs (decoded_units).
//
// Shared memory, aligned to 1024 bytes, as TMA and wgmma swizzle rows of 128 bytes
//   a(stage)        kStages * kABytes      decoded A of a K block: two panels of kTileM rows of 128 bytes. At the end
//                                          of a tile, sums of the other phase (partial) or of the cluster (exchange,
//                                          send_group)
//   b(stage)        kStages * kStageBytes  kTileN rows of codes of each part of a K block, kPartBytes each, then SFB of
//                                          kSfbAtomsN * 128 rows
//   staging(warp)   kStagingBytes          rows of D for outputs with blocks; empty if kSimple
//   barrier(index)  kBarrierBytes          the mbarriers, then `zero`, 8 bytes, and `unused`, kUnusedBytes, the target of
//                                          prefetch copies
//
// Pipeline of mainloop_two_buffers, kStages = 3 and kPhases = 1; bi is K block i, placed where its loads are issued.
// A and B share one ring position, but have their own barriers. Codes of B are in registers once the block's wgmma are
// issued; A is read until they complete.
//   producer B  b0 b1 b2          b3  b4              b5              b6
//   producer A    b0 b1 b2                        b3              b4
//   decode                      b0  b1              b2              b3
//   wgmma                         [----- b0 -----][----- b1 -----][----- b2 ---
//   release                       B0  B1          A0  B2          A1  B3
// mainloop_prefetch also reads the codes of the next block before it waits for wgmma. mainloop_words alternates in the
// same way between the words of a block. mainloop_one_buffer waits for each part of a block that it decodes: other
// warpgroups decode meanwhile.

// Tiles along N of a group. A group is computed for all of M before the next one.
constexpr int kGroupWidth = 32;

// A slab has kSlabBlocks K blocks, which a warp decodes together. A unit has kUnitM rows of A, decoded one by one.
constexpr int kSlabBlocks = 8, kUnitM = 8;

template <int kM, int kN>
struct Tiled {
  static constexpr int kTileM = kM, kTileN = kN;
  // The number of wgmma that a warpgroup issues per K step, each for 64 rows of B.
  static constexpr int kHalves = kTileN == 256 && !(kSimple && kTileM == 128) ? 2 : 1;
  static constexpr int kWarpN = 16 * kHalves;
  // Warpgroups that cover all rows of B, and the number of such sets, which take alternate K blocks.
  static constexpr int kGroupsN = kTileN / (64 * kHalves), kPhases = kTileN == 64 ? 2 : 1;
  static constexpr int kGroups = kGroupsN * kPhases;
  // True if registers suffice for the operands of two words, but not of two K blocks.
  static constexpr bool kByWords = kHalves == 2 || kTileM == 256;
  // K blocks whose operands are in registers at a time. A single block is decoded in kParts parts.
  static constexpr int kBuffers = kGroups == 4 ? 1 : 2, kParts = kGroups == 4 ? 4 : 1;
  // True if codes are read before the previous block's wgmma complete. Used for tiles whose wgmma take less time than
  // reading and decoding.
  static constexpr bool kReadsAhead = kBuffers == 2 && kTileM <= 64;
  // True if few rows of each group are multiplied. Two warps per scheduler then decode B more slowly than memory gives it,
  // so two CTAs share an SM.
  static constexpr bool kShares = kGrouped && kTileM <= 16;
  // Registers per thread of consumers and producers, set by setmaxnreg. With 96, ptxas serializes wgmma if kShares.
  static constexpr int kConsumerRegisters = kShares ? 104 : kGroups == 4 ? 112 : kPhases == 2 ? 168 : 232;
  static constexpr int kProducerRegisters = kShares || kGroups == 4 ? 32 : 40;
  static constexpr int kConsumerThreads = kGroups * 128, kWarps = kConsumerThreads / 32;
  // Consumers of one phase, which cover all rows of B.
  static constexpr int kPhaseThreads = kGroupsN * 128, kPhaseWarps = kPhaseThreads / 32;
  static constexpr int kThreads = kConsumerThreads + 128, kMinBlocks = kShares ? 2 : 1;
  // Threads added to the launch bounds, which lower the registers per thread. A short tile, which takes no longer than
  // its startup, can then begin while CTAs of the previous kernel occupy the SM.
  static constexpr int kSpareThreads = kPhases == 2 ? 128 : 0;
  // True if consumers wait for each panel of A separately, and decode only the first word before the first wgmma. They
  // decode the rest while it executes. Other tiles are not faster with it.
  static constexpr bool kByPanels = kPhases == 2;
  static constexpr int kFullBarriersA = kByPanels ? 2 : 1;
  // True if helpers may take splits of a tile. Short tiles, which take no longer than their startup, are not split.
  static constexpr bool kSplitsK = kPhases == 1 && !kGrouped;
  // True if idle warps decode the rest of A: for large M.
  static constexpr bool kDecodesAhead = kTileM == 256 && !kDirectA && !kGrouped;
  // True if each of two CTAs that share a tile keeps the sums of one warpgroup. kMaxAlone limits the K blocks that this
  // warpgroup multiplies alone, as each then takes twice as long.
  static constexpr bool kKeepsGroup = kGroupsN == 2 && !kByWords && !kGrouped;
  static constexpr int kMaxAlone = 3;
  // Each phase of each CTA of a cluster owns at least one slice.
  static constexpr int kMaxCluster = kGrouped ? 1 : 4 / kPhases;
  static constexpr int kBBytes = kTileN * kBlockBytes, kSfbBytes = kAtomsPerBlock * kAtomBytes;  // SFB of 128 rows
  static constexpr int kSfbAtomsN = (kTileN + 127) / 128, kStageBytes = kBBytes + kSfbAtomsN * kSfbBytes;
  // Decoded A of a K block: two panels of 64 elements of K.
  static constexpr int kPanelBytes = kTileM * 128, kABytes = 2 * kPanelBytes;
  // Stages of A and of B. The numbers are equal, so a consumer tracks one ring.
  static constexpr int kFp4Stages = kShares ? 6 : kTileM < 64 ? 10 : kTileM == 256 ? 3 : kTileM == 64 || kPhases == 2 ? 6 : kTileN == 128 ? 5 : 4;
  static constexpr int kFp8Stages = kTileN == 256 && kTileM == 128 ? 3 : kTileM == 64 && kTileN == 128 ? 6 : 4;
  static constexpr int kStages = kBitsB == 8 ? kFp8Stages : kFp4Stages;

  // D is stored in slices of kSliceM rows, which the CTAs of a cluster share. A slice takes at most 16 registers per
  // thread.
  static constexpr int kSlices = kHalves * kTileM == 256 ? 8 : kTileM < 32 ? kTileM / 8 : 4;
  static constexpr int kSliceM = kTileM / kSlices, kChunks = kSliceM / 8;
  // Vectors of 4 sums per thread in a slice, and bytes of a vector over all threads.
  static constexpr int kVectors = kHalves * kChunks, kVectorBytes = kPhaseThreads * 16;
  // Bytes of a slice over all threads, and slices per stage of A.
  static constexpr int kSliceBytes = kVectors * kVectorBytes, kSlicesPerStage = kABytes / kSliceBytes;
  static_assert(kSlicesPerStage > 0 && kABytes % kSliceBytes == 0);
  // Sums that the other CTAs of a cluster send for this CTA's slices.
  static constexpr int kExchangeBytes = kSlices / kMaxCluster * (kMaxCluster - 1) * kSliceBytes;
  // Staging for a warp's part of a slice, from which each thread stores a row of D. The pitch avoids bank conflicts.
  static constexpr int kPitch = 36, kStagingBytes = kSimple ? 0 : kWarps * kSliceM * kPitch * 4;
  // Vectors of 4 sums per thread of a warpgroup, which fill a stage of A. The stage after the last block is free when
  // they arrive: the kept warpgroup's last kMaxAlone blocks use other stages.
  static constexpr int kGroupVectors = kTileM / 8;
  static_assert(!kKeepsGroup || (kGroupVectors * 128 * 16 == kABytes && kMaxAlone < kStages));
  // A phase's sums of the other phase's slices, which fit into a stage of A.
  static constexpr int kPartialBytes = (kPhases - 1) * kSlices / 2 * kSliceBytes;

  static constexpr int kBarrierBytes = 512;
  // The tables of groups.cuh.
  static constexpr int kGroupBytes = kGrouped ? (kMaxGroups + 2) * 8 : 0;
  // Aligned to 1024 bytes, as the 128-byte swizzle of the panels requires.
  static constexpr int kShared = 1024 + kStages * (kABytes + kStageBytes) + kStagingBytes + kBarrierBytes + kGroupBytes;
  // The loads of B that are issued at first. Later, load i is issued once load i - kPrefetchStages has arrived.
  // Otherwise A, from the same memory, would arrive only after all of them.
  static constexpr int kPrefetchStages = kPhases == 2 ? 4 : kTileM <= 64 ? 3 : 2;
  static_assert(kShared <= 227 * 1024 && kStages >= kPrefetchStages && kSlices % kMaxCluster == 0 && kSlices % kPhases == 0);
  // Each stage belongs to one phase. A parity distinguishes only adjacent rounds, so a waiter must observe every round.
  static_assert(kStages % kPhases == 0);
  static_assert(kExchangeBytes <= (kPhases == 1 ? kStages : 1) * kABytes && kPartialBytes <= kABytes);
  // Consumers take the registers that producers release.
  static_assert(kConsumerRegisters * kGroups + kProducerRegisters <= 65536 / kMinBlocks / (kThreads + kSpareThreads) / 8 * 8 * (kGroups + 1));
  static_assert((3 + kFullBarriersA) * kStages + 2 + kWarps <= (kBarrierBytes - kUnusedBytes) / 8 - 1);
  static_assert(kSimple || kTileN == 256, "a warp has as many columns as there are in a row's block");
};

#ifndef FOURFOLD_HOST

// Addresses in shared memory. The comment at the top of this file has the map.
template <class V>
struct TiledSmem {
  uint32_t base;
  CUTLASS_DEVICE explicit TiledSmem(uint32_t base) : base(base) {}
  CUTLASS_DEVICE explicit TiledSmem(void *memory) : TiledSmem(rematerialize((shared_address(memory) + 1023) & ~1023u)) {}
  CUTLASS_DEVICE uint32_t a(int stage) const { return base + stage * V::kABytes; }
  CUTLASS_DEVICE uint32_t b(int stage) const {
    return base + V::kStages * V::kABytes + stage * V::kStageBytes;
  }
  CUTLASS_DEVICE uint32_t sfb(int stage) const { return b(stage) + V::kBBytes; }
  CUTLASS_DEVICE uint32_t staging(int warp) const { return b(V::kStages) + warp * (V::kStagingBytes / V::kWarps); }
  // Sums are stored over stages of A. The cluster sends slices to the stages from `first` on, which are released first.
  // Each phase stores the sums for the other phase in a stage of its own after `first`.
  CUTLASS_DEVICE uint32_t exchange(int first, int slice) const {
    return a((first + slice / V::kSlicesPerStage) % V::kStages) + slice % V::kSlicesPerStage * V::kSliceBytes;
  }
  CUTLASS_DEVICE uint32_t partial(int first, int phase) const { return a((first + 2 - phase) % V::kStages); }
  // The barriers, in the order of their addresses.
  CUTLASS_DEVICE uint32_t barrier(int index) const { return b(V::kStages) + V::kStagingBytes + 8 * index; }
  // The tables of groups.cuh, if rows are in groups.
  CUTLASS_DEVICE uint32_t tiles_before_group(int group) const { return barrier(V::kBarrierBytes / 8 + group); }
  CUTLASS_DEVICE uint32_t row_of_group(int group) const { return tiles_before_group(group) + 4; }
  // The target of prefetch copies that no thread reads.
  CUTLASS_DEVICE uint32_t unused() const { return barrier((V::kBarrierBytes - kUnusedBytes) / 8); }
  // A zero whose value the compiler does not know.
  CUTLASS_DEVICE uint32_t zero() const { return barrier((V::kBarrierBytes - kUnusedBytes) / 8 - 1); }
  CUTLASS_DEVICE uint32_t full_b(int stage) const { return barrier(stage); }
  CUTLASS_DEVICE uint32_t empty_b(int stage) const { return barrier(V::kStages + stage); }
  CUTLASS_DEVICE uint32_t empty_a(int stage) const { return barrier(2 * V::kStages + stage); }
  // One barrier for both panels, or one per panel.
  CUTLASS_DEVICE uint32_t full_a(int stage, int panel = 0) const {
    return barrier((3 + panel * V::kFullBarriersA / 2) * V::kStages + stage);
  }
  CUTLASS_DEVICE uint32_t exchange_empty() const { return barrier((3 + V::kFullBarriersA) * V::kStages); }
  CUTLASS_DEVICE uint32_t tile_stored() const { return barrier((3 + V::kFullBarriersA) * V::kStages + 1); }
  CUTLASS_DEVICE uint32_t exchange_full(int warp) const { return barrier((3 + V::kFullBarriersA) * V::kStages + 2 + warp); }
};

// Returns a thread's first row of B in its warp; the others are this xor 1, or xor 1, 2 and 3. They are adjacent, so
// that a thread holds runs of a row of D. The order of rows differs between quads, so that reads of codes and scales
// hit distinct banks.
template <class V>
CUTLASS_DEVICE int first_row_n(int quad) {
  return V::kHalves == 2 ? quad * 4 + ((quad ^ quad / 2) % 2 + quad / 4 * 2)
                         : quad / 4 * 8 + quad % 2 * 4 + quad / 2 % 2 * 2 + (quad ^ quad / 4) % 2;
}
#endif
