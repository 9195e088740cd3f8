// Large M: tiles of kTileM rows of A by kTileN rows of B, for wgmma, which takes B from registers and A from shared memory. The rows of B
// of a tile are decoded where they are used, once. The rows of A were decoded before, by another kernel (decode_a), or are decoded while
// other tiles are computed (decode_ahead).
//
// While a warp has wgmma take operands from its registers it does nothing else, so that others must decode meanwhile: there are four
// warpgroups that multiply, or two that have room for the operands of two blocks of K. Each multiplies 64 rows of B, or twice as many
// where a warp needs whole blocks of a row of D. Of 64 rows of B two phases take every other block of K.
//
// Where there are fewer tiles than SMs, a cluster shares a tile: each CTA takes a part of K, keeps the sums of some rows of D, and adds
// what the others have of these, always in the same order. If kKeepsGroup, each of two CTAs keeps the sums of one warpgroup's rows of B:
// the other warpgroup ends some blocks sooner, and sends what it has while the one that is kept has the last blocks for itself.
//
// Warp roles, by warp, from run_tiled
//   0 .. kWarps - 1         consumers: kPhases times kGroupsN warpgroups. Decode B, multiply, reduce and store D
//   kWarps                  producer of B: an elected lane loads B and SFB by TMA
//   kWarps + 1              producer of A: lane 0 loads decoded A by TMA, behind griddepcontrol.wait; before, its elected lane makes the
//                           barriers of the CTA. At the end it tells the other CTAs of a cluster that they may send
//   kWarps + 2, kWarps + 3  decode the rest of A, if kDecodesAhead. Of the first, lane 0 makes the barriers of the exchange and
//                           prefetches scalars of the epilogue
//
// Barriers (mbarriers)  arrivals                                            who waits
//   full_b[stage]       1, and the bytes of B and SFB: the producer of B    consumers of the stage's phase
//   empty_b[stage]      all threads of the phase: release_b                 the producer of B
//   full_a[stage][]     1, and the bytes of A: the producer of A; one       consumers of the stage's phase
//                       for each panel if kByPanels
//   empty_a[stage]      lane 0 of each warp of the phase: release_a         the producer of A
//   tile_stored         all consumers, if kPhases > 1 and a CTA has         the producer of A, before it loads another tile where
//                       several tiles                                       sums of the phases were
//   exchange_empty      one thread of each other CTA of the cluster         consumers, before they send. Phase 0 only
//   exchange_full[warp] 1, and the bytes that other CTAs send: st.async     the consumer warp. Phase 0 only: a cluster has one tile
// A producer waits for the phase before (phase ^ 1), so that the first round of a ring does not wait. All threads of a cluster arrive at
// barrier.cluster when the barriers are made. The producer warps wait for it before they arrive at exchange_empty of other CTAs, consumers
// when they are done. Named barriers 1 and 2 are of one phase each, 3 is of all consumers: reduce_phases. Flags in global memory tell
// that splits are stored and slabs decoded: split_flags, decoded_units.
//
// Shared memory, from a multiple of 1024 bytes on, as TMA and wgmma swizzle rows of 128 bytes
//   a(stage)        kStages * kABytes      decoded A of a block of K: two panels of kTileM rows of 128 bytes. At the end of a tile, sums:
//                                          of the other phase (partial), or from the cluster (exchange, send_group)
//   b(stage)        kStages * kStageBytes  kTileN rows of codes, kBlockBytes each, then SFB of kSfbAtomsN * 128 rows
//   staging(warp)   kStagingBytes          rows of D for outputs with blocks; nothing if kSimple
//   barrier(index)  kBarrierBytes          the mbarriers; the last 8 bytes are `unused`, the target of copies that nobody reads
//
// Pipeline of mainloop_two_buffers, kStages = 3 and kPhases = 1; bi is the i-th block of K, where its loads are asked for. A and B count
// one ring, with barriers of their own: codes of B are in registers when a block is given to wgmma, A is read until that ends.
//   producer B  b0 b1 b2          b3  b4              b5              b6
//   producer A    b0 b1 b2                        b3              b4
//   decode                      b0  b1              b2              b3
//   wgmma                         [----- b0 -----][----- b1 -----][----- b2 ---
//   release                       B0  B1          A0  B2          A1  B3
// mainloop_prefetch reads the codes of the next block before it waits for wgmma, too. mainloop_words alternates so between the words of a
// block. mainloop_one_buffer waits for each part of a block that it decodes: other warpgroups decode meanwhile.

// Tiles along N that are computed together, for all of M.
constexpr int kGroupWidth = 32;

// Of a slab of rows of A, blocks along K, which a warp decodes at once, and rows of A that it decodes one after the other.
constexpr int kSlabBlocks = 8, kUnitM = 8;

template <int kM, int kN>
struct Tiled {
  static constexpr int kTileM = kM, kTileN = kN;
  // Multiplications of 64 rows of B that a warpgroup has at each step.
  static constexpr int kHalves = kTileN == 256 && !(kSimple && kTileM == 128) ? 2 : 1;
  static constexpr int kWarpN = 16 * kHalves;
  // Warpgroups that have all rows of B together, and how many times there are as many, which take turns with the blocks of K.
  static constexpr int kGroupsN = kTileN / (64 * kHalves), kPhases = kTileN == 64 ? 2 : 1;
  static constexpr int kGroups = kGroupsN * kPhases;
  // Whether a thread has so many sums, or rows of B, that there is room for the operands of two words only, not of two blocks.
  static constexpr bool kByWords = kHalves == 2 || kTileM == 256;
  // Blocks that there are operands of at a time, or in how many parts one has them.
  static constexpr int kBuffers = kGroups == 4 ? 1 : 2, kParts = kGroups == 4 ? 4 : 1;
  // Whether codes are read before the block before theirs is multiplied: where that takes less than what is done before it.
  static constexpr bool kReadsAhead = kBuffers == 2 && kTileM == 64;
  // Registers of consumers and of producers.
  static constexpr int kConsumerRegisters = kGroups == 4 ? 112 : kPhases == 2 ? 168 : 232;
  static constexpr int kProducerRegisters = kGroups == 4 ? 32 : 40;
  static constexpr int kConsumerThreads = kGroups * 128, kWarps = kConsumerThreads / 32;
  // Of these as many as have all rows of B.
  static constexpr int kPhaseThreads = kGroupsN * 128, kPhaseWarps = kPhaseThreads / 32;
  static constexpr int kThreads = kConsumerThreads + 128, kMinBlocks = 1;
  // Threads that there are registers for beside its own: where a tile takes no longer than to begin, it begins while the kernel
  // before still has SMs.
  static constexpr int kSpareThreads = kPhases == 2 ? 128 : 0;
  // Whether a consumer waits for the two panels of a block's rows of A one after the other, and has no more decoded before than the
  // first word: that is multiplied while the rest is decoded. Other tiles are slower so, or no faster.
  static constexpr bool kByPanels = kPhases == 2;
  static constexpr int kFullBarriersA = kByPanels ? 2 : 1;
  // Whether others may have a part of a tile: of one that takes no longer than to begin nobody has.
  static constexpr bool kSplitsK = kPhases == 1;
  // Whether warps that have nothing else to do decode what is left of the rows of A: where there are many.
  static constexpr bool kDecodesAhead = kTileM == 256;
  // Whether each of two CTAs that share a tile keeps the sums of a warpgroup, and blocks of K that this one has for itself at most:
  // alone it takes twice as long for one.
  static constexpr bool kKeepsGroup = kGroupsN == 2 && !kByWords;
  static constexpr int kMaxAlone = 3;
  // Of a cluster each phase of each CTA has a slice of its own.
  static constexpr int kMaxCluster = 4 / kPhases;
  static constexpr int kBBytes = kTileN * kBlockBytes, kSfbBytes = kAtomsPerBlock * kAtomBytes;  // of 128 rows
  static constexpr int kSfbAtomsN = (kTileN + 127) / 128, kStageBytes = kBBytes + kSfbAtomsN * kSfbBytes;
  // Decoded rows of A of a block of K, in two panels of 64.
  static constexpr int kPanelBytes = kTileM * 128, kABytes = 2 * kPanelBytes;
  // Blocks of K that are there, or asked for, of rows of B as of rows of A: a consumer counts one ring, not two.
  static constexpr int kStages = kTileM == 256 ? 3 : kTileM == 64 || kPhases == 2 ? 6 : kTileN == 128 ? 5 : 4;

  // The rows of D are written in slices, and where a cluster shares a tile, each CTA has some. A slice
  // takes no more than 16 registers.
  static constexpr int kSlices = kHalves * kTileM == 256 ? 8 : 4;
  static constexpr int kSliceM = kTileM / kSlices, kChunks = kSliceM / 8;
  // Vectors of 4 sums that a thread has of a slice, and bytes of one of all threads.
  static constexpr int kVectors = kHalves * kChunks, kVectorBytes = kPhaseThreads * 16;
  // A slice of all threads, and of how many a stage of rows of A has room.
  static constexpr int kSliceBytes = kVectors * kVectorBytes, kSlicesPerStage = kABytes / kSliceBytes;
  static_assert(kSlicesPerStage > 0 && kABytes % kSliceBytes == 0);
  // What the others of a cluster have of a CTA's slices.
  static constexpr int kExchangeBytes = kSlices / kMaxCluster * (kMaxCluster - 1) * kSliceBytes;
  // Where a thread writes a row of D, a warp's part of a slice, as rows; the pitch keeps the banks apart.
  static constexpr int kPitch = 36, kStagingBytes = kSimple ? 0 : kWarps * kSliceM * kPitch * 4;
  // Vectors of 4 sums that a thread of a warpgroup has of a tile: those of all are a stage of rows of A, and that of the block behind the
  // last, where they are sent to, had none of those that the other warpgroup has for itself.
  static constexpr int kGroupVectors = kTileM / 8;
  static_assert(!kKeepsGroup || (kGroupVectors * 128 * 16 == kABytes && kMaxAlone < kStages));
  // What a phase has of the slices that are the other's: it takes the place of a stage of rows of A.
  static constexpr int kPartialBytes = (kPhases - 1) * kSlices / 2 * kSliceBytes;

  static constexpr int kBarrierBytes = 512;
  // The panels lie at multiples of 1024 bytes.
  static constexpr int kShared = 1024 + kStages * (kABytes + kStageBytes) + kStagingBytes + kBarrierBytes;
  // Of these so many are asked for at first, and each of the others when the first of as many has come: behind all of them
  // rows of A would come late, which wait for the same memory.
  static constexpr int kPrefetchStages = kPhases == 2 ? 4 : kTileM == 64 ? 3 : 2;
  static_assert(kShared <= 227 * 1024 && kStages >= kPrefetchStages && kSlices % kMaxCluster == 0 && kSlices % kPhases == 0);
  // Each stage is of one phase: a barrier tells a turn from the next only, and who waits has seen the one before.
  static_assert(kStages % kPhases == 0);
  static_assert(kExchangeBytes <= (kPhases == 1 ? kStages : 1) * kABytes && kPartialBytes <= kABytes);
  // What the consumers get is what the others give.
  static_assert(kConsumerRegisters * kGroups + kProducerRegisters <= 65536 / (kThreads + kSpareThreads) / 8 * 8 * (kGroups + 1));
  static_assert((3 + kFullBarriersA) * kStages + 2 + kWarps < kBarrierBytes / 8);
  static_assert(kSimple || kTileN == 256, "a warp has as many columns as there are in a row's block");
};

#ifndef FOURFOLD_HOST

// Where everything is in shared memory.
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
  // Sums take the place of rows of A. The first stages that are no longer needed, `first` and the next, get those of the others
  // of a cluster, slice by slice; and where there are phases, each leaves what the other adds up in the next that is its own.
  CUTLASS_DEVICE uint32_t exchange(int first, int slice) const {
    return a((first + slice / V::kSlicesPerStage) % V::kStages) + slice % V::kSlicesPerStage * V::kSliceBytes;
  }
  CUTLASS_DEVICE uint32_t partial(int first, int phase) const { return a((first + 2 - phase) % V::kStages); }
  // Barriers: rows of B were loaded, are no longer needed; rows of A were loaded, are no longer needed; the others' memory may be
  // written to, and this CTA's was, for a warp; and a tile was written, so that nothing of its sums is needed.
  CUTLASS_DEVICE uint32_t barrier(int index) const { return b(V::kStages) + V::kStagingBytes + 8 * index; }
  // What was read for its own sake.
  CUTLASS_DEVICE uint32_t unused() const { return barrier(V::kBarrierBytes / 8 - 1); }
  CUTLASS_DEVICE uint32_t full_b(int stage) const { return barrier(stage); }
  CUTLASS_DEVICE uint32_t empty_b(int stage) const { return barrier(V::kStages + stage); }
  CUTLASS_DEVICE uint32_t empty_a(int stage) const { return barrier(2 * V::kStages + stage); }
  // Of all panels, or of one.
  CUTLASS_DEVICE uint32_t full_a(int stage, int panel = 0) const {
    return barrier((3 + panel * V::kFullBarriersA / 2) * V::kStages + stage);
  }
  CUTLASS_DEVICE uint32_t exchange_empty() const { return barrier((3 + V::kFullBarriersA) * V::kStages); }
  CUTLASS_DEVICE uint32_t tile_stored() const { return barrier((3 + V::kFullBarriersA) * V::kStages + 1); }
  CUTLASS_DEVICE uint32_t exchange_full(int warp) const { return barrier((3 + V::kFullBarriersA) * V::kStages + 2 + warp); }
};

// Which of a warp's rows of B a thread has first; its others are this one xor 1, or xor 1, 2 and 3. They are side by side, so
// that a thread has whole runs of a row of D. In which order it has them differs between quads: so the codes that eight lanes
// read lie in different banks, and so do the scales that eight quads read.
template <class V>
CUTLASS_DEVICE int first_row_n(int quad) {
  return V::kHalves == 2 ? quad * 4 + ((quad ^ quad / 2) % 2 + quad / 4 * 2)
                         : quad / 4 * 8 + quad % 2 * 4 + quad / 2 % 2 * 2 + (quad ^ quad / 4) % 2;
}
#endif
