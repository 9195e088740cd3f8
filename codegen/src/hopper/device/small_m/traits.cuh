// Small M (M <= kTileM <= 16): reads B once, at memory bandwidth.
//
// A CTA has some units of N, and its warps share the chunks of these evenly. A chunk is kGroupN rows of B by kChunkK
// elements of K, 128 bytes of a row. A is decoded into shared memory before the mainloop. Up to kMaxCluster CTAs of a cluster share K if
// the plan says so, and always if decoded A for all of K does not fit in shared memory.
//
// Decode instructions limit the kernel. For kTileM < 8 (kUsesE4m3), it therefore multiplies operands without their
// scales: codes become e4m3 for wgmma, in half as many instructions as fp16 with scales. Each column of a wgmma sums
// one group of 16 along K. These sums are exact: multiples of 1/4 up to 576, which take 12 bits, and tensor cores keep
// at least 13 for e4m3. Scales then multiply sums, not every element of B. Larger kTileM would need too many columns:
// their operands are fp16 or bf16 with scales, for mma.sync.
//
// Warp roles. There are no producer warps: each warp fills its own ring, so there are no empty barriers either.
//   all 16 warps  load: cp.async of the warp's own chunks of B and SFB; all threads decode A.
//                 mainloop: multiply the warp's chunks by mma.sync. If kUsesE4m3, the four warps of a warpgroup execute
//                 wgmma together, each for a different group of rows and the same part of K.
//                 cluster reduce, store: all threads add the warps' sums, send them to the CTA that stores them, and
//                 store D.
//   thread 0      prefetches scalars of the epilogue, and initializes exchange_full.
//
// Barriers
//   exchange_full        mbarrier, if K is shared. Thread 0 of the CTA arrives with the expected byte count. The other
//                        CTAs send the bytes by st.async. All threads of the CTA wait, for parity 0: it is used once.
//   barrier.cluster      if K is shared. All threads arrive, thread 0 after it has initialized exchange_full. They wait
//                        once A is decoded, so no CTA sends before that.
//   cp.async groups      each fetch() commits one, empty if no chunk is left. A lane waits for all but its last
//                        kStages - 1, and __syncwarp makes the other lanes' copies visible. release() is __syncwarp,
//                        then the next fetch() into the stage.
//   __syncthreads        orders stores of A and zeros (after fence.proxy.async if wgmma reads A), then of the warps'
//                        sums, then of totals.
//   griddepcontrol.wait  before the first read. Before it B and SFB may be prefetched into L2: no value is read.
//
// Shared memory, aligned to kAlignment = 128 bytes; each array but `unused` is aligned, too
//   rings          kWarps * kRingBytes  per warp kStages chunks: kGroupN rows of codes, kRowBytes each, odd rows with
//                                       their halves swapped; then kChunkAtoms * kAtomPart bytes of scales. After the
//                                       mainloop, unless kUsesE4m3, the sums of the warp's last group
//   a              kABytes              rows of A, 2 bytes per element and term, padded by 64 bytes. If kUsesE4m3, per K block
//                                       and row of A two matrices of e4m3 (kMatrixBytes), then all scales as f32
//   sums           kAllSums             per group kTileM * kSumPitch floats; if kUsesE4m3, for each warpgroup
//   totals         kTotalBytes          sums by vector, row of A and CTA of the cluster. Other CTAs write here while
//                                       this one still multiplies, so it overlaps nothing
//   zeros          kZeroBytes           read instead of sums that a warp does not have, and by small_m_epilogue
//   exchange_full  8                    the mbarrier
//   unused         kUnusedBytes         the target of prefetch copies
//
// Pipeline of a warp for kStages = 2. ci is its i-th chunk. Codes are in registers when a stage is released.
//            load                                mainloop
//   stage 0  |copy c0..................|read c0|copy c2...............|read c2|copy c4......
//   stage 1     |copy c1...............................|read c1|copy c3..............|read c3|
//   A        |load|decode|__syncthreads|
//   math                                       |mma c0|        |mma c1|       |mma c2|

template <int kTileM>
struct SmallM {
  static constexpr bool kUsesE4m3 = kTileM < 8;
  static constexpr int kWarps = 16, kThreads = kWarps * 32, kMinBlocks = 1, kMaxCluster = 8;
  // With e4m3, the warps of a warpgroup multiply different rows of B by the same part of K.
  static constexpr int kMmaWarps = kUsesE4m3 ? 4 : 1, kMmaIssuers = kWarps / kMmaWarps;
  // A unit is the rows of B that are assigned to a CTA together. D is stored 8 columns of a row at a time, or 32 with
  // blocks. The scales of eight rows, and of those 32, 64 and 96 further on, are adjacent.
  static constexpr int kUnitN = kSimple ? 32 : 128, kWidth = kUnitN / 4;
  // A warp multiplies a group of rows of B at a time, and loads a chunk of K of the group at a time.
  static constexpr int kGroupN = 16, kGroups = kUnitN / kGroupN, kChunkK = 1024 / kBitsB, kBlocks = kChunkK / kBlockK;
  static constexpr int kRowBytes = kChunkK * kBitsB / 8, kChunkAtoms = kChunkK / kAtomK, kAtomPart = 64;
  static constexpr int kRowBytesA = kChunkK * kBitsA / 8, kParts = kRowBytes / kPartBytes;
  // Aligned to 128 bytes: the parts of a row differ in one bit of their addresses.
  static constexpr int kChunkBytes = kGroupN * kRowBytes + (kChunkAtoms * kAtomPart + 127) / 128 * 128;
  // Rows of B that a CTA's warps multiply at a time, even if N has fewer; 0 if each warp advances independently.
  static constexpr int kConcurrentN = kUsesE4m3 ? kMmaWarps * kGroupN : 0;
  // A warp with at least this many chunks prefetches the first into L2 before griddepcontrol.wait, which saves 3 % for
  // M = 1 and 2. With fewer chunks the kernel would wait for A, which arrives after the prefetch.
  static constexpr int kPrefetchChunks = 8;
  // Bytes of the sums of a group, and the maximum number of groups of a CTA. With e4m3, each warpgroup stores the sums
  // of every group; otherwise each warp also keeps the sums of its last group in its ring.
  static constexpr int kSumPitch = kGroupN, kSumBytes = kTileM * kSumPitch * 4;
  static constexpr int kMaxGroups = kTileM == 16 ? 8 : kTileM == 2 ? 16 : 32;
  static constexpr int kMaxUnits = kMaxGroups / kGroups, kAllSums = (kUsesE4m3 ? kMmaIssuers : 1) * kMaxGroups * kSumBytes;
  // With e4m3, bytes of a K block of a row of A: two matrices of 8 columns by 32 codes. The scales follow the matrices
  // of all blocks.
  static constexpr int kMatrixBytes = 256, kABlockBytes = 2 * kMatrixBytes;
  static constexpr int kABlockScaleBytes = kBlockK / kScaleVector * 4;
  // Elements of A that fit. The padding puts rows of fp16 or bf16 into different banks.
  static constexpr int kMaxElements = (kTileM == 1 ? 16384 : kTileM == 16 ? 65536 : 32768) / kTermsA;
  static constexpr int kABytes =
      kUsesE4m3 ? kMaxElements / kBlockK * (kABlockBytes + kABlockScaleBytes) : kMaxElements * 2 * kTermsA + kTileM * 64;
  // Pieces of 32 codes that a thread decodes.
  static constexpr int kPieces = kMaxElements / 32 / kThreads;
  // Totals over warps: of all rows of B, or of one vector per CTA of a cluster. Then zeros.
  static constexpr int kMaxN = kMaxGroups * kGroupN, kVectors = kMaxCluster * kWidth;
  static constexpr int kTotalBytes = (kMaxN > kVectors ? kMaxN : kVectors) * kTileM * 4, kZeroBytes = 128;
  // The barrier exchange_full, and bytes that no thread reads.
  static constexpr int kBarrierBytes = 8 + kUnusedBytes, kAlignment = 128;
  // Two stages: 74 KB in flight per SM are enough. With more stages, the same number of bytes takes longer.
  static constexpr int kStages = 2, kRingBytes = kStages * kChunkBytes;
  static constexpr int kShared =
      kABytes + kAllSums + kTotalBytes + kZeroBytes + kBarrierBytes + kAlignment + kWarps * kRingBytes;
  static constexpr int kChunks = kTileM / 8;  // of eight rows of A; 0 with e4m3
  static_assert(kShared <= 227 * 1024 && kSumBytes <= kRingBytes && kPieces * 32 * kThreads == kMaxElements);
};
