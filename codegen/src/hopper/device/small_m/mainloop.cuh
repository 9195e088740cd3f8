// The mainloop of a small-M kernel, and the accumulators of a warp.

#ifndef FOURFOLD_HOST
// A warp's accumulators of a group, for fp16 or bf16 operands.
template <int kTileM>
struct SmallMAccumulators {
  using V = SmallM<kTileM>;
  // Separate accumulators for two K steps: an mma waits for the previous one that adds to the same registers.
  float acc[V::kChunks][2][4] = {};
  uint32_t a_at[V::kChunks];

  CUTLASS_DEVICE SmallMAccumulators(SmallMParameters const &p, uint32_t smem_a, int pitch) {
    int const quad = lane() / 4, t = lane() % 4;
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < V::kChunks; ++chunk) {
      // Rows of A past M are clamped to the last: their sums are not stored.
      a_at[chunk] = smem_a + min(chunk * 8 + quad, p.m - 1) * pitch + t * 16;
    }
  }

  // Adds a part. `codes` and `scales` are of rows `quad` and `quad + 8` of B.
  CUTLASS_DEVICE void add(int part, uint4 const (&codes)[2], uint32_t const (&scales)[2]) {
    uint32_t of_thread[2];
    CUTLASS_PRAGMA_UNROLL
    for (int row = 0; row < 2; ++row) {
      of_thread[row] = scales_of_b(scales[row], [&] { return has_nonzero_fp8(codes[row]); });
    }
    CUTLASS_PRAGMA_UNROLL
    for (int word = 0; word < kPartWords; ++word) {
      uint32_t operands[2][4];
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        Decoded const parts = decode_b_word(codes[row], word, scale_of_word(of_thread[row], word));
        CUTLASS_PRAGMA_UNROLL
        for (int s = 0; s < 2; ++s) {
          operands[s][row] = parts.low[s];
          operands[s][2 + row] = parts.high[s];
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int chunk = 0; chunk < V::kChunks; ++chunk) {
        CUTLASS_PRAGMA_UNROLL
        for (int term = 0; term < kTermsA; ++term) {
          uint4 const second = load_words(a_at[chunk] + part * (2 * kBlockK * kTermsA / kPartsB) + (word * kTermsA + term) * 64);
          mma(acc[chunk][0], operands[0], second.x, second.y);
          mma(acc[chunk][1], operands[1], second.z, second.w);
        }
      }
    }
  }

  // Stores the sums of a group to shared memory, by row of A, and clears the accumulators.
  CUTLASS_DEVICE void keep(uint32_t to) {
    int const quad = lane() / 4, t = lane() % 4;
    CUTLASS_PRAGMA_UNROLL
    for (int chunk = 0; chunk < V::kChunks; ++chunk) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        store_word(to + ((chunk * 8 + 2 * t + i % 2) * V::kSumPitch + quad + i / 2 * 8) * 4,
                   __float_as_uint(acc[chunk][0][i] + acc[chunk][1][i]));
        acc[chunk][0][i] = acc[chunk][1][i] = 0.0f;
      }
    }
  }
};

// A warp's accumulators of a group, for e4m3 operands. A K block has eight groups of 16, and a wgmma has eight columns
// per row of A, one per group. Thread t of a quad holds the codes of groups 2 t and 2 t + 1 of B, and receives their
// sums.
template <int kTileM>
struct SmallME4m3Accumulators {
  using V = SmallM<kTileM>;
  // The results of a K block: of words 0 and 1, whose group has an even column, and of words 2 and 3.
  struct Products {
    float of[2][4 * kTileM];
  };
  float acc[kTileM][2] = {};
  // The descriptor of A and the address of its scales for the next chunk. `pitch` is the bytes between the scales of
  // two rows.
  uint32_t desc_a, scales_at, pitch;

  CUTLASS_DEVICE void begin(uint32_t all, unsigned blocks, unsigned block) {
    desc_a = rematerialize(unswizzled_descriptor(all + block * kTileM * V::kABlockBytes));
    scales_at = rematerialize(all + blocks * kTileM * V::kABlockBytes + block * V::kABlockScaleBytes + lane() % 4 * 8);
    pitch = blocks * V::kABlockScaleBytes;
  }
  CUTLASS_DEVICE void next() {
    desc_a += V::kBlocks * kTileM * V::kABlockBytes >> 4;
    scales_at += V::kBlocks * V::kABlockScaleBytes;
  }

  // Issues the warpgroup's wgmma of a K block. wgmma needs four warps, so a warp without rows takes part with arbitrary
  // operands.
  CUTLASS_DEVICE void multiply(int block, bool has_rows, uint4 const (&codes)[2], uint32_t (&operands)[4][4],
                               Products &products) const {
    if (has_rows) {
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < 2; ++row) {
          DecodedE4m3 const parts = decode_to_e4m3(word_of(codes[row], word));
          operands[word][row] = parts.even;
          operands[word][2 + row] = parts.odd;
        }
      }
    }
    wgmma_fence();
    CUTLASS_PRAGMA_UNROLL
    for (int word = 0; word < 4; ++word) {
      uint32_t const at = desc_a + ((block * 2 + word % 2) * kTileM * V::kMatrixBytes >> 4);
      if (word % 2 == 0) {
        WgmmaE4m3<8 * kTileM>::begin(products.of[word / 2], operands[word], at);
      } else {
        WgmmaE4m3<8 * kTileM>::add(products.of[word / 2], operands[word], at);
      }
    }
    wgmma_commit();
  }

  // Adds a K block's products, once complete, times the scales of A and of rows `quad` and `quad + 8` of B.
  CUTLASS_DEVICE void add(int block, uint32_t const (&scales)[2], Products &products) {
    wgmma_fence_operand(products.of[0]);
    wgmma_fence_operand(products.of[1]);
    CUTLASS_PRAGMA_UNROLL
    for (int m = 0; m < kTileM; ++m) {
      float2 const of_a = load_pair(scales_at + m * pitch + block * V::kABlockScaleBytes);
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        float2 const of_row = wide(two_scales(scales[row]));
        acc[m][row] += products.of[0][m * 4 + 2 * row] * (of_row.x * of_a.x);
        acc[m][row] += products.of[1][m * 4 + 2 * row + 1] * (of_row.y * of_a.y);
      }
    }
  }

  // Stores the sums of a group, added over each quad, to shared memory by row of A, and clears the accumulators.
  CUTLASS_DEVICE void keep(uint32_t to) {
    CUTLASS_PRAGMA_UNROLL
    for (int m = 0; m < kTileM; ++m) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        float sum = acc[m][row];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        if (lane() % 4 == 0) {
          store_word(to + (m * V::kSumPitch + lane() / 4 + row * 8) * 4, __float_as_uint(sum));
        }
        acc[m][row] = 0.0f;
      }
    }
  }
};

// A thread's share of a chunk: for each part, codes and scales of rows `quad` and `quad + 8` of B.
template <int kTileM>
struct SmallMFragment {
  uint4 codes[SmallM<kTileM>::kParts][2];
  uint32_t scales[SmallM<kTileM>::kParts][2];
};

// The operands and results of wgmma for a chunk.
template <int kTileM>
struct SmallME4m3Registers {
  uint32_t operands[SmallM<kTileM>::kBlocks][4][4] = {};
  typename SmallME4m3Accumulators<kTileM>::Products products[SmallM<kTileM>::kBlocks];
};

// A warp's ring of stages: reads the chunk of the current stage, and refills the stage with the warp's next chunk.
template <int kTileM>
struct SmallMRing {
  using V = SmallM<kTileM>;
  SmallMProducer<kTileM> &source;
  uint32_t ring, codes_at, scales_at;
  int stage = 0;

  CUTLASS_DEVICE SmallMRing(SmallMProducer<kTileM> &source, uint32_t ring, int quad, int t) : source(source), ring(ring) {
    codes_at = rematerialize(ring + quad * V::kRowBytes + (t ^ quad % 2 * 4) * 16);
    scales_at = rematerialize(ring + V::kGroupN * V::kRowBytes + quad % 4 * 16 + quad / 4 * 4 +
                              (!kMx ? t / 2 * V::kAtomPart + t % 2 * 2 : kPartsB == 2 ? t / 2 : t));
  }

  // Reads the chunk of the current stage once its copies have arrived. cp.async.wait_group covers the lane's own
  // copies, __syncwarp those of other lanes.
  CUTLASS_DEVICE void read(SmallMFragment<kTileM> &b) const {
    cp_async_wait<V::kStages - 1>();
    __syncwarp();
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < V::kParts; ++part) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        b.codes[part][row] = load_words(((codes_at + stage * V::kChunkBytes) ^ part * kPartBytes) + row * 8 * V::kRowBytes);
        // Scales of the second part of 8-bit codes are in the same atom.
        uint32_t const at = scales_at + stage * V::kChunkBytes + row * 8 + part * (kPartsB == 2 ? 2 : kAtomsPerBlock * V::kAtomPart);
        b.scales[part][row] = kMx ? load_byte(at) : load_half(at);
      }
    }
  }

  // Refills the stage. The same warp has already used its codes and issued the loads of its scales; __syncwarp waits
  // for all lanes.
  CUTLASS_DEVICE void release() {
    __syncwarp();
    source.fetch(ring + stage * V::kChunkBytes);
    stage = stage + 1 == V::kStages ? 0 : stage + 1;
  }
};

// Multiplies a warp's chunks as e4m3, by wgmma of its warpgroup, and stores the sums of each of its groups to `sums`.
template <int kTileM>
CUTLASS_DEVICE void mainloop_e4m3(SmallMRing<kTileM> &ring, SmallMWork const &work, SmallMChunks &run, int warp, uint32_t smem_a,
                                  uint32_t sums, SmallME4m3Accumulators<kTileM> &mine, SmallMFragment<kTileM> &b,
                                  SmallME4m3Registers<kTileM> &registers) {
  using V = SmallM<kTileM>;
  // All four warps of a warpgroup execute the same iterations, even without rows, because wgmma needs them.
  int const chunks = warp_uniform(run.last - run.first);
  unsigned const first = warp_uniform(run.first);
  for (unsigned of_four = 0; of_four < work.groups; of_four += V::kMmaWarps, run.group += V::kMmaWarps) {
    bool const has_rows = run.group < work.groups;
    mine.begin(smem_a, work.chunks.number * V::kBlocks, first * V::kBlocks);
    for (int i = 0; i < chunks; ++i, mine.next()) {
      ring.read(b);
      CUTLASS_PRAGMA_UNROLL
      for (int block = 0; block < V::kBlocks; ++block) {
        mine.multiply(block, has_rows, b.codes[block], registers.operands[block], registers.products[block]);
      }
      ring.release();
      cute::for_each(cute::make_seq<V::kBlocks>{}, [&](auto block) {
        wgmma_wait<V::kBlocks - 1 - block>();
        mine.add(block, b.scales[block], registers.products[block]);
      });
    }
    if (has_rows) {
      mine.keep(sums + (warp / V::kMmaWarps * V::kMaxGroups + run.group) * V::kSumBytes);
    }
  }
}

// Multiplies a warp's chunks as fp16 or bf16, by mma.sync. Stores the sums of the last group to the first stage of the
// warp's ring, and those of other groups to `sums`.
template <int kTileM>
CUTLASS_DEVICE void mainloop_wide(SmallMRing<kTileM> &ring, SmallMChunks &run, uint32_t sums, SmallMAccumulators<kTileM> &mine,
                                  SmallMFragment<kTileM> &b) {
  using V = SmallM<kTileM>;
  for (int i = 0; i < run.count; ++i) {
    ring.read(b);
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < V::kParts; ++part) {
      mine.add(static_cast<int>(run.chunk * V::kParts + part), b.codes[part], b.scales[part]);
    }
    ring.release();
    unsigned const group = run.group;
    if (run.next() && i + 1 < run.count) {
      mine.keep(sums + group * V::kSumBytes);
    }
  }
  if (run.count > 0) {
    mine.keep(ring.ring);
  }
}
#endif
