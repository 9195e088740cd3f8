// Many rows of A ("tokens"): tiles of kRows rows of B ("weights") by kTokens of A, for wgmma, which is given the weights
// from registers and the tokens from shared memory. The weights of a tile are decoded where they are used, once; the
// tokens were decoded before, by another kernel (decode_tokens), or while other tiles were computed (decode_rest), and are
// loaded as they are multiplied.
//
// Warpgroups multiply 64 weights each, or twice as many where a warp needs whole blocks of a row of D; of one more a thread
// loads weights, another tokens, and two warps may decode tokens of later tiles. While a warp has wgmma take operands from its
// registers it does nothing else, so that others must decode meanwhile: there are four that multiply, or two that have room for
// the operands of two blocks. Of 64 weights two have every other block of K. Where there are fewer tiles than SMs, a cluster
// shares a tile: each CTA takes a part of K, and of the sums each keeps some rows of D and gets what the others have of these,
// which it adds up always in the same order. Of two CTAs whose warpgroups have weights of their own each keeps those of one: the
// other ends some blocks sooner, and sends what it has while the one that is kept has the last blocks for itself.

// Tiles along N that are computed together, for all of M.
constexpr int kGroupWidth = 32;

// Of a slab of tokens, blocks along K, which a warp decodes at once, and tokens that it decodes one after the other.
constexpr int kSlabBlocks = 8, kUnitTokens = 8;

template <int kTokensOfTile, int kRowsOfTile>
struct Tile {
  static constexpr int kTokens = kTokensOfTile, kRows = kRowsOfTile;
  // Multiplications of 64 weights that a warpgroup has at each step.
  static constexpr int kHalves = kRows == 256 && !(kSimple && kTokens == 128) ? 2 : 1;
  static constexpr int kWarpRows = 16 * kHalves;
  // Warpgroups that have all weights together, and how many times there are as many, which take turns with the blocks of K.
  static constexpr int kRowGroups = kRows / (64 * kHalves), kPhases = kRows == 64 ? 2 : 1;
  static constexpr int kGroups = kRowGroups * kPhases;
  // Whether a thread has so many sums, or weights, that there is room for the operands of two words only, not of two blocks.
  static constexpr bool kByWords = kHalves == 2 || kTokens == 256;
  // Blocks that there are operands of at a time, or in how many parts one has them.
  static constexpr int kBuffers = kGroups == 4 ? 1 : 2, kParts = kGroups == 4 ? 4 : 1;
  // Whether codes are read before the block before theirs is multiplied: where that takes less than what is done before it.
  static constexpr bool kReadsAhead = kBuffers == 2 && kTokens == 64;
  // Registers of who multiplies and of who loads.
  static constexpr int kMultiplyRegisters = kGroups == 4 ? 112 : kPhases == 2 ? 168 : 232;
  static constexpr int kLoadRegisters = kGroups == 4 ? 32 : 40;
  static constexpr int kMultiplying = kGroups * 128, kWarps = kMultiplying / 32;
  // Of these as many as have all weights.
  static constexpr int kAbreast = kRowGroups * 128, kWarpsAbreast = kAbreast / 32;
  static constexpr int kThreads = kMultiplying + 128, kMinBlocks = 1;
  // Threads that there are registers for beside its own: where a tile takes no longer than to begin, it begins while the kernel
  // before still has SMs.
  static constexpr int kRoomThreads = kPhases == 2 ? 128 : 0;
  // Whether who multiplies waits for the two panels of a block's tokens one after the other, and has no more decoded before than the
  // first word: that is multiplied while the rest is decoded. Other tiles are slower so, or no faster.
  static constexpr bool kByPanels = kPhases == 2;
  static constexpr int kFills = kByPanels ? 2 : 1;
  // Whether others may have a part of a tile: of one that takes no longer than to begin nobody has.
  static constexpr bool kHasPieces = kPhases == 1;
  // Whether warps that have nothing else to do decode what is left of the tokens: where there are many.
  static constexpr bool kDecodesRest = kTokens == 256;
  // Whether each of two CTAs that share a tile keeps the sums of a warpgroup, and blocks of K that this one has for itself at most:
  // alone it takes twice as long for one.
  static constexpr bool kKeepsGroup = kRowGroups == 2 && !kByWords;
  static constexpr int kMostAlone = 3;
  // Of a cluster each phase of each CTA has a slice of its own.
  static constexpr int kMostCluster = 4 / kPhases;
  static constexpr int kWeightBytes = kRows * kBlockBytes, kScaleBytes = kAtomsPerBlock * kAtomBytes;  // of 128 rows
  static constexpr int kScaleRows = (kRows + 127) / 128, kStageBytes = kWeightBytes + kScaleRows * kScaleBytes;
  // Decoded tokens of a block of K, in two panels of 64.
  static constexpr int kPanelBytes = kTokens * 128, kDecodedBytes = 2 * kPanelBytes;
  // Blocks of K that are there, or asked for, of weights as of tokens: who multiplies counts one ring, not two.
  static constexpr int kStages = kTokens == 256 ? 3 : kTokens == 64 || kPhases == 2 ? 6 : kRows == 128 ? 5 : 4;

  // The rows of D are written in slices, and where a cluster shares a tile, each CTA has some. A slice
  // takes no more than 16 registers.
  static constexpr int kSlices = kHalves * kTokens == 256 ? 8 : 4;
  static constexpr int kSliceTokens = kTokens / kSlices, kChunks = kSliceTokens / 8;
  // Vectors of 4 sums that a thread has of a slice, and bytes of one of all threads.
  static constexpr int kVectors = kHalves * kChunks, kVectorBytes = kAbreast * 16;
  // A slice of all threads, and of how many a stage of tokens has room.
  static constexpr int kSliceBytes = kVectors * kVectorBytes, kSlicesOfStage = kDecodedBytes / kSliceBytes;
  static_assert(kSlicesOfStage > 0 && kDecodedBytes % kSliceBytes == 0);
  // What the others of a cluster have of a CTA's slices.
  static constexpr int kExchangeBytes = kSlices / kMostCluster * (kMostCluster - 1) * kSliceBytes;
  // Where a thread writes a row of D, a warp's part of a slice, as rows; the pitch keeps the banks apart.
  static constexpr int kPitch = 36, kStagingBytes = kSimple ? 0 : kWarps * kSliceTokens * kPitch * 4;
  // Vectors of 4 sums that a thread of a warpgroup has of a tile: those of all are a stage of tokens, and that of the block behind the
  // last, where they are sent to, had none of those that the other warpgroup has for itself.
  static constexpr int kGroupVectors = kTokens / 8;
  static_assert(!kKeepsGroup || (kGroupVectors * 128 * 16 == kDecodedBytes && kMostAlone < kStages));
  // What a phase has of the slices that are the other's: it takes the place of a stage of tokens.
  static constexpr int kPartialBytes = (kPhases - 1) * kSlices / 2 * kSliceBytes;

  static constexpr int kBarrierBytes = 512;
  // The panels lie at multiples of 1024 bytes.
  static constexpr int kShared = 1024 + kStages * (kDecodedBytes + kStageBytes) + kStagingBytes + kBarrierBytes;
  // Of these so many are asked for at first, and each of the others when the first of as many has come: behind all of them
  // tokens would come late, which wait for the same memory.
  static constexpr int kFirstStages = kPhases == 2 ? 4 : kTokens == 64 ? 3 : 2;
  static_assert(kShared <= 227 * 1024 && kStages >= kFirstStages && kSlices % kMostCluster == 0 && kSlices % kPhases == 0);
  // Each stage is of one phase: a barrier tells a turn from the next only, and who waits has seen the one before.
  static_assert(kStages % kPhases == 0);
  static_assert(kExchangeBytes <= (kPhases == 1 ? kStages : 1) * kDecodedBytes && kPartialBytes <= kDecodedBytes);
  // What those who multiply get is what the others give.
  static_assert(kMultiplyRegisters * kGroups + kLoadRegisters <= 65536 / (kThreads + kRoomThreads) / 8 * 8 * (kGroups + 1));
  static_assert((3 + kFills) * kStages + 2 + kWarps < kBarrierBytes / 8);
  static_assert(kSimple || kRows == 256, "a warp has as many columns as there are in a row's block");
};

#ifndef FOURFOLD_HOST

// Where everything is in shared memory.
template <class V>
struct TileMemory {
  uint32_t base;
  CUTLASS_DEVICE explicit TileMemory(uint32_t base) : base(base) {}
  CUTLASS_DEVICE explicit TileMemory(void *memory) : TileMemory(computed_again((shared_address(memory) + 1023) & ~1023u)) {}
  CUTLASS_DEVICE uint32_t decoded(int stage) const { return base + stage * V::kDecodedBytes; }
  CUTLASS_DEVICE uint32_t weights(int stage) const {
    return base + V::kStages * V::kDecodedBytes + stage * V::kStageBytes;
  }
  CUTLASS_DEVICE uint32_t scales(int stage) const { return weights(stage) + V::kWeightBytes; }
  CUTLASS_DEVICE uint32_t staging(int warp) const { return weights(V::kStages) + warp * (V::kStagingBytes / V::kWarps); }
  // Sums take the place of tokens. The first stages that are no longer needed, `first` and the next, get those of the others
  // of a cluster, slice by slice; and where there are phases, each leaves what the other adds up in the next that is its own.
  CUTLASS_DEVICE uint32_t exchange(int first, int slice) const {
    return decoded((first + slice / V::kSlicesOfStage) % V::kStages) + slice % V::kSlicesOfStage * V::kSliceBytes;
  }
  CUTLASS_DEVICE uint32_t partial(int first, int phase) const { return decoded((first + 2 - phase) % V::kStages); }
  // Barriers: weights were loaded, are no longer needed; tokens were loaded, are no longer needed; the others' memory may be
  // written to, and this CTA's was, for a warp; and a tile was written, so that nothing of its sums is needed.
  CUTLASS_DEVICE uint32_t barrier(int index) const { return weights(V::kStages) + V::kStagingBytes + 8 * index; }
  // What was read for its own sake.
  CUTLASS_DEVICE uint32_t unused() const { return barrier(V::kBarrierBytes / 8 - 1); }
  CUTLASS_DEVICE uint32_t loaded(int stage) const { return barrier(stage); }
  CUTLASS_DEVICE uint32_t consumed(int stage) const { return barrier(V::kStages + stage); }
  CUTLASS_DEVICE uint32_t emptied(int stage) const { return barrier(2 * V::kStages + stage); }
  // Of all panels, or of one.
  CUTLASS_DEVICE uint32_t filled(int stage, int panel = 0) const {
    return barrier((3 + panel * V::kFills / 2) * V::kStages + stage);
  }
  CUTLASS_DEVICE uint32_t exchangeable() const { return barrier((3 + V::kFills) * V::kStages); }
  CUTLASS_DEVICE uint32_t written() const { return barrier((3 + V::kFills) * V::kStages + 1); }
  CUTLASS_DEVICE uint32_t exchanged(int warp) const { return barrier((3 + V::kFills) * V::kStages + 2 + warp); }
};

// Which of a warp's weights a thread has first; its others are this one xor 1, or xor 1, 2 and 3. They are side by side, so
// that a thread has whole runs of a row of D. In which order it has them differs between quads: so the codes that eight lanes
// read lie in different banks, and so do the scales that eight quads read.
template <class V>
CUTLASS_DEVICE int first_weight(int quad) {
  return V::kHalves == 2 ? quad * 4 + ((quad ^ quad / 2) % 2 + quad / 4 * 2)
                         : quad / 4 * 8 + quad % 2 * 4 + quad / 2 % 2 * 2 + (quad ^ quad / 4) % 2;
}
#endif
