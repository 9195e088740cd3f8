// The mainloop of a consumer warpgroup: decodes B into registers and executes wgmma along K.

// The parts of a K block whose codes and scales a thread reads at a time. If kDirectA, it reads one scale, and codes as it
// decodes them.
constexpr int kReadParts = kDirectA ? 1 : kPartsB;

#ifndef FOURFOLD_HOST
// A warpgroup's position in the ring, and the addresses from which a thread reads a stage.
template <class V>
struct TiledConsumer {
  static constexpr int kThreadRows = 2 * V::kHalves;  // rows of B per thread
  TiledSmem<V> const &smem;
  PipelineState<V::kStages> ring;
  // Addresses of the thread's rows of B in stage 0, and of the thread's first codes in them, unless kDirectA: then a
  // thread holds two of each eight codes of a row, which `select` takes.
  uint32_t codes_at[kThreadRows], scales_at[kThreadRows];
  uint32_t select;

  CUTLASS_DEVICE TiledConsumer(TiledSmem<V> const &smem, int phase) : smem(smem) { ring.stage = phase; }

  // `first` is the tile's first row in a block of 128 rows of SFB.
  CUTLASS_DEVICE void begin(unsigned thread, int first) {
    int const t = thread % 4, row = thread % V::kPhaseThreads / 32 * V::kWarpN + first_row_n<V>(thread % 32 / 4);
    int const of_scales = first + row;
    uint32_t const codes = smem.b(0) + row * kPartBytes + (kDirectA ? 0 : t * 16);
    select = kBitsB == 8 ? 0x4410 + t * 0x22 : 0x4440 + t;
    uint32_t const scales = smem.sfb(0) + of_scales / 128 * V::kSfbBytes + of_scales % 32 * 16 +
                            of_scales / 32 % 4 * 4 + (!kMx ? t / 2 * kAtomBytes + t % 2 * 2 : kReadParts == 2 ? t / 2 : t);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      // The addresses differ in the bits of a row's index. With four warpgroups registers are scarce, so the addresses
      // are recomputed at each use.
      codes_at[i] = codes ^ i * kPartBytes;
      scales_at[i] = scales ^ i * 16;
      if constexpr (V::kGroups < 4) {
        codes_at[i] = rematerialize(codes_at[i]);
        scales_at[i] = rematerialize(scales_at[i]);
      }
    }
  }

  // Reads the codes and scales of a stage once it is full. Scales come first, so that their conversions are issued
  // between instructions of another pipe. While wgmma executes, two consecutive instructions for the same pipe take
  // twice as long.
  CUTLASS_DEVICE void read(PipelineState<V::kStages> const &from, uint4 (&codes)[kReadParts][kThreadRows],
                           uint32_t (&scales)[kReadParts][kThreadRows]) const {
    barrier_wait(smem.full_b(from.stage), from.phase);
    uint32_t const stage = from.stage * V::kStageBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kThreadRows * kReadParts; ++i) {
      // Scales of the second part are two further on.
      uint32_t const at = scales_at[i % kThreadRows] + stage + i / kThreadRows * 2;
      scales[i / kThreadRows][i % kThreadRows] = kMx ? load_byte(at) : load_half(at);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kThreadRows * kReadParts && !kDirectA; ++i) {
      codes[i / kThreadRows][i % kThreadRows] =
          load_words(codes_at[i % kThreadRows] + stage + i / kThreadRows * V::kTileN * kPartBytes);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kThreadRows * kReadParts; ++i) {
      uint32_t &scale = scales[i / kThreadRows][i % kThreadRows];
      scale = scales_of_b(scale, [&] {
        if constexpr (kDirectA) {
          // The 32 codes of the thread's scale.
          int const t = threadIdx.x % 4;
          return has_nonzero_fp8(load_row(from, i, 2 * t)) || has_nonzero_fp8(load_row(from, i, 2 * t + 1));
        } else {
          return has_nonzero_fp8(codes[i / kThreadRows][i % kThreadRows]);
        }
      });
    }
  }
  CUTLASS_DEVICE void read(uint4 (&codes)[kReadParts][kThreadRows], uint32_t (&scales)[kReadParts][kThreadRows]) const {
    read(ring, codes, scales);
  }

  // If kDirectA, reads 16 bytes of codes of row i in a stage, which is full.
  CUTLASS_DEVICE uint4 load_row(PipelineState<V::kStages> const &from, int i, int run) const {
    constexpr int kRuns = kPartBytes / 16;
    return load_words(codes_at[i] + from.stage * V::kStageBytes + run / kRuns * (V::kTileN * kPartBytes) + run % kRuns * 16);
  }

  // Releases a stage of B. The caller has issued wgmma that use data of each read, so all reads have completed.
  // Every lane arrives: a single arrival would need __syncwarp, which the compiler drops where lanes do not
  // diverge. See "Releasing a stage of B" in docs/internals/hopper-kernels.md.
  CUTLASS_DEVICE void release_b() { barrier_arrive(smem.empty_b(ring.stage)); }

  CUTLASS_DEVICE void release_a(int stage) const {
    if (lane() == 0) {
      barrier_arrive(smem.empty_a(stage));
    }
  }

  // Advances to the warpgroup's next K block.
  CUTLASS_DEVICE void next() { ring.template next<V::kPhases>(); }
};

// The first word after which all reads of a block are used.
constexpr int kLastReadWord = kDirectA ? 3 : 4 - kPartWords;

// Decodes a word of each row of B into operands of two K steps, per half of the rows.
template <int kHalves, class Consumer>
CUTLASS_DEVICE void decode_word(Consumer const &consumer, uint4 const (&codes)[kReadParts][2 * kHalves],
                                uint32_t const (&scales)[kReadParts][2 * kHalves], int word, uint32_t (&first)[kHalves][4],
                                uint32_t (&second)[kHalves][4]) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 2 * kHalves; ++i) {
    if constexpr (kDirectA && kBitsB == 8) {
      // In the order of memory, a K step has 16 codes of a row. Each thread of the quad has two of each eight, and thread
      // `word` has the scale of both steps.
      uint4 const of_first = consumer.load_row(consumer.ring, i, 2 * word), of_second = consumer.load_row(consumer.ring, i, 2 * word + 1);
      uint32_t const scale = __shfl_sync(0xFFFFFFFFu, scales[0][i], word, 4), select = consumer.select;
      first[i / 2][i % 2] = decode_adjacent_fp8<kElementB>(of_first.x, of_first.y, select, scale);
      first[i / 2][2 + i % 2] = decode_adjacent_fp8<kElementB>(of_first.z, of_first.w, select, scale);
      second[i / 2][i % 2] = decode_adjacent_fp8<kElementB>(of_second.x, of_second.y, select, scale);
      second[i / 2][2 + i % 2] = decode_adjacent_fp8<kElementB>(of_second.z, of_second.w, select, scale);
      continue;
    } else if constexpr (kDirectA) {
      // In the order of memory, two K steps have 32 codes of a row. Each thread of the quad has a byte of each word, and
      // thread `word` has the scales.
      uint4 const row = consumer.load_row(consumer.ring, i, word);
      uint32_t const both = __shfl_sync(0xFFFFFFFFu, scales[0][i], word, 4);
      uint32_t const of_first = scale_of_word(both, 0), of_second = scale_of_word(both, 2);
      first[i / 2][i % 2] = decode_adjacent(row.x, consumer.select, of_first);
      first[i / 2][2 + i % 2] = decode_adjacent(row.y, consumer.select, of_first);
      second[i / 2][i % 2] = decode_adjacent(row.z, consumer.select, of_second);
      second[i / 2][2 + i % 2] = decode_adjacent(row.w, consumer.select, of_second);
      continue;
    }
    int const part = word / kPartWords;
    Decoded const parts = decode_b_word(codes[part][i], word % kPartWords, scale_of_word(scales[part][i], word));
    first[i / 2][i % 2] = parts.low[0];
    first[i / 2][2 + i % 2] = parts.high[0];
    second[i / 2][i % 2] = parts.low[1];
    second[i / 2][2 + i % 2] = parts.high[1];
  }
}

// The offset of a K step within a stage of A, in descriptor units of 16 bytes.
template <class V>
CUTLASS_DEVICE constexpr int step_at(int step) {
  return (step / 4 * V::kPanelBytes + step % 4 * 32) >> 4;
}

// Mainloop with one operand buffer, for 64 rows of B: decodes a part of a K block, then waits for its wgmma.
template <class V>
CUTLASS_DEVICE void mainloop_one_buffer(TiledConsumer<V> &consumer, int blocks, float (&sums)[1][V::kTileM / 2]) {
  constexpr int kWords = 4 / V::kParts;
  for (int left = blocks; left > 0; --left, consumer.next()) {
    uint4 codes[kReadParts][2];
    uint32_t scales[kReadParts][2], operands[2 * kWords][1][4];
    consumer.read(codes, scales);
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < V::kParts; ++part) {
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < kWords; ++word) {
        decode_word<1>(consumer, codes, scales, part * kWords + word, operands[2 * word], operands[2 * word + 1]);
      }
      if (part == 0) {
        barrier_wait(consumer.smem.full_a(consumer.ring.stage), consumer.ring.phase);
      }
      uint64_t const desc_a = descriptor(consumer.smem.a(consumer.ring.stage));
      wgmma_fence();
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < 2 * kWords; ++step) {
        Wgmma<V::kTileM>::run(sums[0], operands[step][0], desc_a + step_at<V>(part * 2 * kWords + step));
      }
      wgmma_commit();
      if (part == kLastReadWord / kWords) {
        consumer.release_b();
      }
      wgmma_wait<0>();
    }
    consumer.release_a(consumer.ring.stage);
  }
}

// Issues wgmma for a K block whose operands are decoded, once its A has arrived.
template <class V>
CUTLASS_DEVICE void mainloop_block(TiledConsumer<V> &consumer, uint32_t const (&operands)[8][1][4], float (&sums)[1][V::kTileM / 2]) {
  barrier_wait(consumer.smem.full_a(consumer.ring.stage), consumer.ring.phase);
  uint64_t const desc_a = descriptor(consumer.smem.a(consumer.ring.stage));
  wgmma_fence();
  CUTLASS_PRAGMA_UNROLL
  for (int step = 0; step < 8; ++step) {
    if (V::kByPanels && (step == 2 || step == 4)) {
      // The compiler hoists no decoding above this wait, which is a loop. The operands of later steps are thus decoded
      // after it, while earlier wgmma execute. Only for this reason does step 2 wait: panel 0 has already arrived.
      barrier_wait(consumer.smem.full_a(consumer.ring.stage, step / 4), consumer.ring.phase);
      wgmma_fence();
    }
    Wgmma<V::kTileM>::run(sums[0], operands[step][0], desc_a + step_at<V>(step));
  }
  wgmma_commit();
  consumer.release_b();
}

// Mainloop with two operand buffers: decodes a K block while the previous one is multiplied.
template <class V>
CUTLASS_DEVICE void mainloop_two_buffers(TiledConsumer<V> &consumer, int blocks, float (&sums)[1][V::kTileM / 2]) {
  uint32_t operands[2][8][1][4];
  int pending = -1;
  auto const add = [&](uint32_t (&now)[8][1][4]) {
    {
      uint4 codes[kReadParts][2];
      uint32_t scales[kReadParts][2];
      consumer.read(codes, scales);
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        decode_word<1>(consumer, codes, scales, word, now[2 * word], now[2 * word + 1]);
      }
    }
    mainloop_block<V>(consumer, now, sums);
    // Only this block's wgmma are pending: the operands and A of the previous block are free.
    wgmma_wait<1>();
    if (pending >= 0) {
      consumer.release_a(pending);
    }
    pending = consumer.ring.stage;
    consumer.next();
  };
  for (int left = blocks / V::kPhases; left > 0; left -= 2) {
    add(operands[0]);
    if (left == 1) {
      break;
    }
    add(operands[1]);
  }
  wgmma_wait<0>();
  if (pending >= 0) {
    consumer.release_a(pending);
  }
}

// Mainloop with two operand buffers, for tiles whose wgmma take less time than reading and decoding. It reads the next
// block's codes before it waits for wgmma. `blocks` is at least 1.
template <class V>
CUTLASS_DEVICE void mainloop_prefetch(TiledConsumer<V> &consumer, int blocks, float (&sums)[1][V::kTileM / 2]) {
  static_assert(V::kPhases == 1);
  uint32_t operands[2][8][1][4], scales[kReadParts][2];
  uint4 codes[kReadParts][2];
  int pending = -1, left = blocks;
  PipelineState<V::kStages> ahead = consumer.ring;
  consumer.read(codes, scales);
  auto const add = [&](uint32_t (&now)[8][1][4]) {
    CUTLASS_PRAGMA_UNROLL
    for (int word = 0; word < 4; ++word) {
      decode_word<1>(consumer, codes, scales, word, now[2 * word], now[2 * word + 1]);
    }
    mainloop_block<V>(consumer, now, sums);
    ahead.next();
    if (--left > 0) {
      consumer.read(ahead, codes, scales);
    }
    wgmma_wait<1>();
    if (pending >= 0) {
      consumer.release_a(pending);
    }
    pending = consumer.ring.stage;
    consumer.next();
  };
  while (true) {
    add(operands[0]);
    if (left == 0) {
      break;
    }
    add(operands[1]);
    if (left == 0) {
      break;
    }
  }
  wgmma_wait<0>();
  consumer.release_a(pending);
}

// Mainloop for tiles whose sums leave registers for the operands of only two words. Decodes one word while the other is
// multiplied.
template <class V>
CUTLASS_DEVICE void mainloop_words(TiledConsumer<V> &consumer, int blocks, float (&sums)[V::kHalves][V::kTileM / 2]) {
  int pending = -1;
  for (int left = blocks; left > 0; --left) {
    uint4 codes[kReadParts][2 * V::kHalves];
    uint32_t scales[kReadParts][2 * V::kHalves];
    consumer.read(codes, scales);
    uint64_t const desc_a = descriptor(consumer.smem.a(consumer.ring.stage));
    uint32_t operands[2][2][V::kHalves][4];
    CUTLASS_PRAGMA_UNROLL
    for (int word = 0; word < 4; ++word) {
      auto &now = operands[word % 2];
      // Only the wgmma of the previous word are pending.
      wgmma_wait<1>();
      if (word == 1 && pending >= 0) {
        consumer.release_a(pending);
      }
      decode_word<V::kHalves>(consumer, codes, scales, word, now[0], now[1]);
      if (word == 0) {
        barrier_wait(consumer.smem.full_a(consumer.ring.stage), consumer.ring.phase);
      }
      wgmma_fence();
      CUTLASS_PRAGMA_UNROLL
      for (int step = 0; step < 2; ++step) {
        CUTLASS_PRAGMA_UNROLL
        for (int half = 0; half < V::kHalves; ++half) {
          Wgmma<V::kTileM>::run(sums[half], now[step][half], desc_a + step_at<V>(2 * word + step));
        }
      }
      wgmma_commit();
      if (word == kLastReadWord) {
        consumer.release_b();
      }
    }
    pending = consumer.ring.stage;
    consumer.next();
  }
  wgmma_wait<0>();
  if (pending >= 0) {
    consumer.release_a(pending);
  }
}

// Exchanges sums between phases. Each phase keeps one of every two adjacent slices, and its sums move to the registers
// of the first. A branch on the phase takes fewer instructions than a selection per register.
template <class V>
CUTLASS_DEVICE void reduce_phases(TiledSmem<V> const &smem, int first_stage, int phase, float (&sums)[1][V::kTileM / 2]) {
  static_assert(V::kPhases == 2);
  constexpr int kOfSlice = V::kVectors * 4, kCount = V::kSlices / 2 * V::kVectors;
  unsigned const at = rematerialize(threadIdx.x) % V::kPhaseThreads * 16;
  auto const first_of = [](int v) { return v / V::kVectors * 2 * kOfSlice + v % V::kVectors * 4; };
  cute::for_each(cute::make_seq<2>{}, [&](auto own) {
    if (phase == own) {
      keep_branch();
      // After this barrier no thread of this phase reads A from the stage. The other phase may still multiply, from its
      // own stages.
      named_barrier_sync<1 + own, V::kPhaseThreads>();
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kCount; ++v) {
        float const *const given = sums[0] + first_of(v) + (1 - own) * kOfSlice;
        store_words(smem.partial(first_stage, own) + at + v * V::kVectorBytes, __float_as_uint(given[0]),
                    __float_as_uint(given[1]), __float_as_uint(given[2]), __float_as_uint(given[3]));
      }
    }
  });
  named_barrier_sync<3, V::kConsumerThreads>();
  cute::for_each(cute::make_seq<2>{}, [&](auto own) {
    if (phase == own) {
      keep_branch();
      CUTLASS_PRAGMA_UNROLL
      for (int v = 0; v < kCount; ++v) {
        auto const four = load_floats<4>(smem.partial(first_stage, 1 - own) + at + v * V::kVectorBytes);
        float *const kept = sums[0] + first_of(v);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          kept[i] = kept[own * kOfSlice + i] + four[i];
        }
      }
    }
  });
}
#endif
