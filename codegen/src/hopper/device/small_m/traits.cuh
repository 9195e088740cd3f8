// Small M (M <= kTileM <= 16): B is read once, as fast as memory delivers it.
//
// A CTA has some units of N, and its warps share the chunks of these evenly. A chunk is kGroupN rows of B by kChunkK elements of K.
// A is decoded into shared memory before. A cluster of up to kMaxCluster CTAs shares K where the plan says so, and always where decoded A
// of all of K does not fit.
//
// The limit is the number of instructions that decode. So for kTileM < 8 (kUsesE4m3) neither operand is multiplied with its scales: codes
// become e4m3, by half as many instructions as fp16 with scales, for wgmma. Each of its columns has the sums of another group of 16
// along K. These are exact: multiples of 1/4 up to 576, 12 bits, where tensor cores keep 13 and more of e4m3. The sums are multiplied by
// the scales, not every element of B. For larger kTileM a column for each group is too many: fp16 or bf16 with scales, by mma.sync.
//
// Warp roles. There are no producer warps: each warp fills its own ring, and there are no empty barriers.
//   all 16 warps  load: cp.async of the warp's own chunks of B and SFB; all threads decode A
//                 mainloop: the warp's chunks, by mma.sync; if kUsesE4m3, the four warps of a warpgroup by wgmma, each another group of
//                 rows by the same part of K
//                 cluster reduce, store: all threads add up the warps' sums, send them to the CTA that writes them, and write D
//   thread 0      prefetches scalars of the epilogue; makes exchange_full
//
// Barriers
//   exchange_full        mbarrier, if K is shared. One arrival: thread 0 of the CTA, with the bytes to come. The bytes: st.async of the
//                        other CTAs. All threads of the CTA wait, for phase 0: it is used once.
//   barrier.cluster      if K is shared. All arrive, thread 0 when it has made exchange_full, and wait when A is decoded: nobody
//                        sends before.
//   cp.async groups      each fetch() is one, empty if no chunk is left. A lane waits for all but its last kStages - 1, and __syncwarp
//                        makes the other lanes' copies visible. release() is __syncwarp, then the next fetch() into the stage.
//   __syncthreads        A and zeros are stored (behind fence.proxy.async if wgmma reads A); the warps' sums are; totals are.
//   griddepcontrol.wait  before the first read. Before it B and SFB may be prefetched into L2, which reads nothing.
//
// Shared memory, from a multiple of kAlignment = 128 bytes on; each array but `unused` begins at such a multiple
//   rings          kWarps * kRingBytes  of each warp kStages chunks: kGroupN rows of codes, kRowBytes each, odd rows with the halves
//                                       swapped; then kChunkAtoms * kAtomPart bytes of scales. Behind the mainloop, unless kUsesE4m3:
//                                       the sums of the warp's last group
//   a              kABytes              rows of A, 2 bytes an element, padded by 64 bytes; or of each block of K two matrices of e4m3
//                                       for each row of A (kMatrixBytes), then all scales as f32
//   sums           kAllSums             of each group kTileM * kSumPitch floats; if kUsesE4m3, of each warpgroup
//   totals         kTotalBytes          sums by vector, row of A and CTA of the cluster. The others write here while this CTA still
//                                       multiplies, so it overlaps nothing
//   zeros          kZeroBytes           read in the place of sums that a warp does not have, and by small_m_epilogue
//   exchange_full  8                    the mbarrier
//   unused         8                    the target of copies that nobody reads
//
// Pipeline of a warp, kStages = 2, ci its i-th chunk. The codes are in registers when a stage is released.
//            load                                mainloop
//   stage 0  |copy c0..................|read c0|copy c2...............|read c2|copy c4......
//   stage 1     |copy c1...............................|read c1|copy c3..............|read c3|
//   A        |load|decode|__syncthreads|
//   math                                       |mma c0|        |mma c1|       |mma c2|

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
