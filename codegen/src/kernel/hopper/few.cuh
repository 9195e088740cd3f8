// Few rows of A ("tokens"): what counts is that the weights are read once, as fast as memory gives them. A CTA has some
// rows of B, and its warps share their bytes evenly, each a run of rows' pieces one after the other. A warp brings its
// pieces into its own shared memory, some ahead, decodes them in registers and multiplies them by all tokens with
// mma.sync; the tokens were decoded into shared memory before. Where those of all of K have no room there, a cluster
// shares K.
//
// One token has a kernel of its own: it needs one column of eight, so each column gets the sums of another group of 16
// along K, and the scales are multiplied with those, not with every weight.

template <int kTokens>
struct Few {
  static constexpr bool kOne = kTokens == 1;
  // For one token, whose kernel is for small matrices, half as many: there is less to do before weights are asked for.
  static constexpr int kWarps = kOne ? 8 : 16, kThreads = kWarps * 32, kMinBlocks = 1, kMostCluster = 8;
  // A unit is the rows that are shared out to CTAs together: D is written 8 columns of a row at a time, or 32 with
  // blocks. Of eight rows and those that lie 32, 64 and 96 further on the scales lie side by side.
  static constexpr int kUnitRows = kSimple ? 32 : 128, kWidth = kUnitRows / 4;
  // A group is the rows that a warp multiplies at a time, and a chunk is what it loads of them at a time.
  static constexpr int kGroupRows = 16, kGroups = kUnitRows / kGroupRows, kChunkK = 256, kBlocks = kChunkK / kBlockK;
  static constexpr int kRowBytes = kChunkK / 2, kChunkAtoms = kChunkK / kAtomK, kAtomPart = 64;
  static constexpr int kChunkBytes = kGroupRows * kRowBytes + kChunkAtoms * kAtomPart;
  // Sums of a group, and for how many of them there is room beside those of warps' last groups.
  static constexpr int kSumPitch = kGroupRows, kSumBytes = kTokens * kSumPitch * 4;
  static constexpr int kMostGroups = kTokens == 16 ? 8 : 32, kMostUnits = kMostGroups / kGroups;
  // How many elements of tokens there is room for: fp16 or bf16, and of one alone also its scales. Those of two tokens
  // lie in different banks.
  static constexpr int kMostElements = kOne ? 16384 : kTokens == 8 ? 32768 : 65536;
  static constexpr int kTokenBytes = kMostElements * 2 + (kOne ? kMostElements / 4 : kTokens * 64);
  // Pieces of 32 codes that a thread decodes.
  static constexpr int kPieces = kMostElements / 32 / kThreads;
  // What all warps' sums add up to: of all rows, or of one vector of each CTA of a cluster; and a place that is zero.
  static constexpr int kMostRows = kMostGroups * kGroupRows, kVectors = kMostCluster * kWidth;
  static constexpr int kTotalBytes = (kMostRows > kVectors ? kMostRows : kVectors) * kTokens * 4, kZeroBytes = 128;
  // A barrier for what the others of a cluster send, and a byte that nobody reads.
  static constexpr int kBarrierBytes = 16, kAlignment = 128;
  static constexpr int kFixed =
      kTokenBytes + kMostGroups * kSumBytes + kTotalBytes + kZeroBytes + kBarrierBytes + kAlignment;
  static constexpr int kStages = (227 * 1024 - kFixed) / (kWarps * kChunkBytes), kRingBytes = kStages * kChunkBytes;
  static constexpr int kShared = kFixed + kWarps * kRingBytes;
  static constexpr int kChunks = kOne ? 1 : kTokens / 8;  // of eight tokens
  static_assert(kStages >= 2 && kSumBytes <= kRingBytes && kPieces * 32 * kThreads == kMostElements);
};

#ifndef FOURFOLD_HOST

// a / b, rounded down, of numbers below 2^20: a division of integers takes some hundred cycles. b is not 0: extents of zero
// are refused before a launch, and of those that are not each CTA has a part.
CUTLASS_DEVICE unsigned divide(unsigned a, unsigned b) {
  return static_cast<unsigned>(__fdividef(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
}

// The operands of a matrix.
struct FewMatrix {
  uint8_t const *weights, *tokens, *weight_scales, *token_scales;
  CUTLASS_DEVICE FewMatrix(Parameters const &p, unsigned batch)
      : weights(p.weights), tokens(p.tokens), weight_scales(p.weight_scales), token_scales(p.token_scales) {
    if (batch > 0) {
      weights += batch * p.weight_stride;
      tokens += batch * p.token_stride;
      weight_scales += batch * p.weight_scale_stride;
      token_scales += batch * p.token_scale_stride;
    }
    weights = computed_once(weights);
    tokens = computed_once(tokens);
    weight_scales = computed_once(weight_scales);
    token_scales = computed_once(token_scales);
  }
};

// What the CTAs of a cluster do: each has some chunks along K of the same rows. Its warps share the chunks of all groups.
struct FewWork {
  unsigned first_unit, groups, first_chunk;
  Divisor chunks;
  template <int kWarps>
  CUTLASS_DEVICE unsigned begin(unsigned warp) const {
    return groups * chunks.number * warp / kWarps;
  }
};

// Where a warp's next chunk comes from, and what it asks for. Of a group's rows four are side by side, and four times
// there are as many, 32 further on: a lane has one row of each four. Until the first chunk is asked for memory does nothing,
// so there are few instructions before: nothing is divided, and what all have alike the host has computed.
template <int kTokens>
struct FewSource {
  using V = Few<kTokens>;
  static constexpr int kPieces = V::kRowBytes / 16, kCopies = V::kGroupRows / 4, kPart = V::kAtomPart / 16;
  static_assert(32 / kPieces == 4, "a warp asks for four rows at once");
  Parameters const &p;
  FewMatrix const &of;
  FewWork const &work;
  uint64_t policy = evict_first();
  unsigned group, chunk;
  int left;
  uint8_t const *rows[kCopies], *scales;
  uint32_t at, scale_at;

  CUTLASS_DEVICE FewSource(Parameters const &p, FewMatrix const &of, FewWork const &work, unsigned begin, int count)
      : p(p), of(of), work(work), group(work.chunks.divide(begin)), chunk(begin - group * work.chunks.number), left(count) {
    unsigned const piece = lane() % kPieces, first = lane() / kPieces;
    at = first * V::kRowBytes + (piece ^ first % 2 * 4) * 16;
    scale_at = V::kGroupRows * V::kRowBytes + lane() * 16;
    begin_group();
  }

  CUTLASS_DEVICE void begin_group() {
    constexpr unsigned kOfBlock = 128 / V::kGroupRows;
    unsigned const all = work.first_unit * V::kGroups + group, block = all / kOfBlock, r = all % kOfBlock * 4;
    unsigned const first_row = block * 128 + r + lane() / kPieces;
    uint8_t const *const matrix = of.weights + ((work.first_chunk + chunk) * V::kRowBytes + lane() % kPieces * 16);
    scales = of.weight_scales + static_cast<uint64_t>(block) * p.scale_bytes + (r * 16 + lane() % kPart * 16);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      // Of rows that there are not, the last will do: nobody writes what comes of them.
      rows[i] = matrix + static_cast<uint64_t>(min(first_row + i * 32, p.n - 1u)) * p.row_bytes;
    }
  }

  // Asks for a chunk, if there is another.
  CUTLASS_DEVICE void fetch(uint32_t stage) {
    if (left > 0) {
      unsigned const absolute = work.first_chunk + chunk;
      // Beyond K there are zeros.
      uint32_t const inside = absolute * V::kRowBytes + lane() % kPieces * 16 < p.row_bytes ? 16 : 0;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        copy_async(stage + at + i * 4 * V::kRowBytes, rows[i], inside, policy);
        rows[i] += V::kRowBytes;
      }
      if (lane() < V::kChunkAtoms * kPart) {
        unsigned const atom = min(absolute * V::kChunkAtoms + lane() / kPart, p.atoms - 1u);
        copy_async(stage + scale_at, scales + static_cast<uint64_t>(atom) * kAtomBytes, 16, policy);
      }
      --left;
      if (++chunk == work.chunks.number) {
        chunk = 0;
        ++group;
        begin_group();
      }
    }
    copies_commit();
  }
};

// A thread's share of the tokens: 32 codes of a block of K, and their scales.
template <int kTokens>
struct FewPieces {
  using V = Few<kTokens>;
  uint4 codes[V::kPieces];
  uint32_t scales[V::kPieces];
  // Blocks of K that this CTA has of each token, and pieces of all; and bytes that a token has from its first on.
  unsigned blocks, count, rest;

  CUTLASS_DEVICE FewPieces(Parameters const &p, FewMatrix const &of, FewWork const &work)
      : blocks(work.chunks.number * V::kBlocks), count(p.m * blocks * 4), rest(p.row_bytes - work.first_chunk * V::kRowBytes) {
    uint8_t const *const first = of.tokens + work.first_chunk * V::kRowBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kPieces; ++i) {
      // Who has none, or one beyond K, asks for the last: that needs no branch.
      unsigned const item = min(i * V::kThreads + threadIdx.x, count - 1), t = item % 4, token = token_of(work, item);
      unsigned const piece = item - token * blocks * 4;
      codes[i] = __ldg(reinterpret_cast<uint4 const *>(first + (token * p.row_bytes + min(piece * 16, rest - 16))));
      unsigned const atom = min(work.first_chunk * V::kChunkAtoms + (kMx ? piece / 4 : piece / 2), p.atoms - 1u);
      uint8_t const *const at = of.token_scales + (atom * kAtomBytes + token * 16 + (kMx ? t : t % 2 * 2));
      scales[i] = kMx ? __ldg(at) : __ldg(reinterpret_cast<uint16_t const *>(at));
    }
  }

  CUTLASS_DEVICE static unsigned token_of(FewWork const &work, unsigned item) {
    return kTokens == 1 ? 0 : work.chunks.divide(item / (4 * V::kBlocks));
  }

  // Of each word, for the thread of a quad what it gives to two steps.
  CUTLASS_DEVICE void decode_to(FewWork const &work, uint32_t tokens, unsigned pitch) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kPieces; ++i) {
      unsigned const item = i * V::kThreads + threadIdx.x, t = item % 4, token = token_of(work, item);
      unsigned const block = item / 4 - token * blocks;
      if (item >= count) {
        continue;
      }
      // Nothing is done with a scale where it is asked for, or all that follows there would wait for it.
      uint32_t const own = computed_again(scales[i]);
      uint32_t const of_thread = V::kOne ? 0x3C003C00u : kMx ? mx_scale(own) : two_scales(own);
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        // Beyond K there are zeros.
        uint32_t const eight = (block * 4 + t) * 16 < rest ? word_of(codes[i], word) : 0;
        Decoded const parts = decode(eight, V::kOne ? of_thread : scale_of_word(of_thread, word));
        store_words(tokens + token * pitch + block * 2 * kBlockK + word * 64 + t * 16, parts.low[0], parts.high[0],
                    parts.low[1], parts.high[1]);
      }
      if constexpr (V::kOne) {
        float2 const both = wide(two_scales(own));
        uint32_t const at = tokens + blocks * 2 * kBlockK + item * 8;
        store_word(at, __float_as_uint(both.x));
        store_word(at + 4, __float_as_uint(both.y));
      }
    }
  }
};

// What a warp has of a chunk, and the sums of its group.
template <int kTokens>
struct FewSums {
  using V = Few<kTokens>;
  // Of two steps along K each has its own: a multiplication waits for the one before that adds to the same.
  float acc[V::kChunks][2][4] = {};
  uint32_t tokens_at[V::kOne ? 2 : V::kChunks], step[2], scales_at;

  CUTLASS_DEVICE FewSums(Parameters const &p, uint32_t tokens, int pitch, uint32_t zeros, int k) {
    int const quad = lane() / 4, t = lane() % 4;
    if constexpr (V::kOne) {
      // Column n has group n of a block: of thread n / 2, words 0 and 1, or 2 and 3.
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) {
        bool const has = quad == 2 * t + i;
        tokens_at[i] = has ? tokens + i * 128 + t * 16 : zeros;
        step[i] = has ? 2 * kBlockK : 0;
      }
      scales_at = tokens + k * 2 + t * 8;
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int chunk = 0; chunk < V::kChunks; ++chunk) {
        // Of tokens that there are not, the last will do.
        tokens_at[chunk] = tokens + min(chunk * 8 + quad, p.m - 1) * pitch + t * 16;
      }
    }
  }

  // Adds a block of K, of which `codes` and `scales` are rows `quad` and `quad + 8`.
  CUTLASS_DEVICE void add(int block, uint4 const (&codes)[2], uint32_t const (&scales)[2]) {
    if constexpr (V::kOne) {
      float sums[2][4] = {};
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        uint4 const second = load_words(tokens_at[word / 2] + block * step[word / 2] + word % 2 * 64);
        uint32_t operands[2][4];
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < 2; ++row) {
          Decoded const parts = decode(word_of(codes[row], word));
          CUTLASS_PRAGMA_UNROLL
          for (int s = 0; s < 2; ++s) {
            operands[s][row] = parts.low[s];
            operands[s][2 + row] = parts.high[s];
          }
        }
        mma(sums[word / 2], operands[0], second.x, second.y);
        mma(sums[word / 2], operands[1], second.z, second.w);
      }
      float2 const of_token = load_pair(scales_at + block * 32);
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        float2 const of_row = wide(two_scales(scales[row]));
        acc[0][0][row] += sums[0][2 * row] * (of_row.x * of_token.x);
        acc[0][0][row] += sums[1][2 * row + 1] * (of_row.y * of_token.y);
      }
    } else {
      uint32_t of_thread[2];
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        of_thread[row] = kMx ? mx_scale(scales[row]) : two_scales(scales[row]);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        uint32_t operands[2][4];
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < 2; ++row) {
          Decoded const parts = decode(word_of(codes[row], word), scale_of_word(of_thread[row], word));
          CUTLASS_PRAGMA_UNROLL
          for (int s = 0; s < 2; ++s) {
            operands[s][row] = parts.low[s];
            operands[s][2 + row] = parts.high[s];
          }
        }
        CUTLASS_PRAGMA_UNROLL
        for (int chunk = 0; chunk < V::kChunks; ++chunk) {
          uint4 const second = load_words(tokens_at[chunk] + block * 2 * kBlockK + word * 64);
          mma(acc[chunk][0], operands[0], second.x, second.y);
          mma(acc[chunk][1], operands[1], second.z, second.w);
        }
      }
    }
  }

  // Puts the sums of a group into shared memory, a row for each token, and begins those of another.
  CUTLASS_DEVICE void keep(uint32_t to) {
    int const quad = lane() / 4, t = lane() % 4;
    if constexpr (V::kOne) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        float sum = acc[0][0][row];
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
        if (t == 0) {
          store_word(to + (quad + row * 8) * 4, __float_as_uint(sum));
        }
        acc[0][0][row] = 0.0f;
      }
    } else {
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
  }
};

// Adds up what the warps have of four rows of a group, side by side.
template <int kTokens>
CUTLASS_DEVICE cutlass::Array<float, 4> add_few(FewWork const &work, uint32_t rings, uint32_t sums, uint32_t zeros,
                                                unsigned group, unsigned token, unsigned quarter) {
  using V = Few<kTokens>;
  unsigned const first = group * work.chunks.number, last = first + work.chunks.number;
  unsigned const at = (token * V::kSumPitch + quarter * 4) * 4;
  cutlass::Array<float, 4> sum;
  sum.clear();
  // Which warps have chunks of the group; one that goes on to another group put its sums aside. Where one has none there are
  // zeros: so what four have is asked for at a time, as a load takes longer than all that is done with it.
  constexpr unsigned kAtOnce = 4;
  unsigned warp = divide(group * V::kWarps, work.groups), begin = work.begin<V::kWarps>(warp);
  CUTLASS_PRAGMA_NO_UNROLL
  do {
    CUTLASS_PRAGMA_UNROLL
    for (unsigned i = 0; i < kAtOnce; ++i, ++warp) {
      unsigned const end = work.begin<V::kWarps>(warp + 1);
      uint32_t const from = (end <= last ? rings + warp * V::kRingBytes : sums + group * V::kSumBytes) + at;
      bool const has = begin < min(end, last) && end > first && warp < V::kWarps;
      auto const one = load_floats<4>(has ? from : zeros);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < 4; ++j) {
        sum[j] += one[j];
      }
      begin = end;
    }
  } while (begin < last);
  return sum;
}

template <int kTokens>
CUTLASS_DEVICE void compute_few(Parameters const &p, void *shared) {
  using V = Few<kTokens>;
  constexpr int N = V::kWidth;
  int const warp = static_cast<int>(threadIdx.x / 32), quad = lane() / 4, t = lane() % 4;
  uint32_t const rings = computed_again((shared_address(shared) + V::kAlignment - 1) & ~(V::kAlignment - 1u));
  uint32_t const ring = rings + warp * V::kRingBytes;
  uint32_t const tokens = rings + V::kWarps * V::kRingBytes, sums = tokens + V::kTokenBytes;
  uint32_t const totals = sums + V::kMostGroups * V::kSumBytes, zeros = totals + V::kTotalBytes;
  uint32_t const exchanged = zeros + V::kZeroBytes, unused = exchanged + 8;
  unsigned const shift = p.cluster_bits, mask = p.cluster - 1, rank = p.cluster == 1 ? 0 : cluster_rank();
  unsigned const all = blockIdx.x >> shift, batch = p.ctas.divide(all), cta = all - batch * p.ctas.number;
  unsigned const units = p.share + (cta < p.share_rest);
  FewMatrix const matrix(p, batch);
  FewWork const work{cta * p.share + min(cta, p.share_rest),
                     units * V::kGroups,
                     rank * p.k_share.number + min(rank, p.k_share_rest),
                     rank < p.k_share_rest ? p.k_share_more : p.k_share};
  // The tokens first, as nothing can be multiplied without them.
  FewPieces<kTokens> const pieces(p, matrix, work);
  unsigned const begin = work.begin<V::kWarps>(warp);
  int const count = static_cast<int>(work.begin<V::kWarps>(warp + 1) - begin);
  FewSource<kTokens> source(p, matrix, work, begin, count);
  unsigned group = source.group, chunk = source.chunk;
  // Not all stages are asked for at once: the first of all warps come first.
  constexpr int kAtFirst = 2;
  CUTLASS_PRAGMA_NO_UNROLL
  for (int i = 0; i < kAtFirst; ++i) {
    source.fetch(ring + i * V::kChunkBytes);
  }
  if (threadIdx.x == 0) {
    // The end would wait for memory otherwise.
    for_each_scalar(p.epilogue, [&](auto const *number) { bring_near(number, unused); });
  }
  if (p.cluster > 1) {
    if (threadIdx.x == 0) {
      // Of each vector that this CTA has, each of the others sends what it has.
      unsigned const vectors = (units * 4 + mask - rank) >> shift;
      barrier_init(exchanged, 1);
      barrier_expect(exchanged, static_cast<int>(vectors * p.m * mask * N * 4));
      fence_barriers();
    }
    cluster_start();
  }
  int const k = static_cast<int>(work.chunks.number * V::kChunkK), pitch = k * 2 + 64;
  pieces.decode_to(work, tokens, pitch);
  if (threadIdx.x < V::kZeroBytes / 4) {
    store_word(zeros + threadIdx.x * 4, 0);
  }
  CUTLASS_PRAGMA_NO_UNROLL
  for (int i = kAtFirst; i < V::kStages; ++i) {
    source.fetch(ring + i * V::kChunkBytes);
  }
  __syncthreads();
  if (p.cluster > 1) {
    cluster_wait_for_start();
  }

  FewSums<kTokens> mine(p, tokens, pitch, zeros, k);
  uint32_t const codes_at = ring + quad * V::kRowBytes + (t ^ quad % 2 * 4) * 16;
  uint32_t const scales_at = ring + V::kGroupRows * V::kRowBytes + quad % 4 * 16 + quad / 4 * 4 +
                             (kMx ? t : t / 2 * V::kAtomPart + t % 2 * 2);
  int stage = 0;
  for (int i = 0; i < count; ++i) {
    copies_wait<V::kStages - 1>();
    __syncwarp();
    uint4 codes[V::kBlocks][2];
    uint32_t scales[V::kBlocks][2];
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < V::kBlocks; ++block) {
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < 2; ++row) {
        codes[block][row] = load_words(((codes_at + stage * V::kChunkBytes) ^ block * 64) + row * 8 * V::kRowBytes);
        uint32_t const at = scales_at + stage * V::kChunkBytes + row * 8 + block * kAtomsPerBlock * V::kAtomPart;
        scales[block][row] = kMx ? load_byte(at) : load_half(at);
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < V::kBlocks; ++block) {
      mine.add(static_cast<int>(chunk * V::kBlocks + block), codes[block], scales[block]);
    }
    // All that was read of the stage has come, as it was used.
    __syncwarp();
    source.fetch(ring + stage * V::kChunkBytes);
    stage = stage + 1 == V::kStages ? 0 : stage + 1;
    if (++chunk == work.chunks.number && i + 1 < count) {
      mine.keep(sums + group * V::kSumBytes);
      ++group;
      chunk = 0;
    }
  }
  if (count > 0) {
    mine.keep(ring);
  }
  __syncthreads();

  // A vector is N columns of a token, and a CTA of a cluster has every so many of them. Where a CTA has all of K and a vector
  // is of few groups, who writes it adds up what warps have; else that is put together before.
  bool const at_once = kSimple && p.cluster == 1;
  auto const total = [&](unsigned vector, unsigned token, unsigned source) {
    return totals + (((((vector >> shift) * p.m + token) << shift) + source) * N) * 4;
  };
  if (!at_once) {
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned i = threadIdx.x; i < work.groups * 4 * kTokens; i += V::kThreads) {
      unsigned const quarter = i % 4, token = i / 4 % kTokens, of = i / 4 / kTokens;
      if (static_cast<int>(token) >= p.m) {
        continue;
      }
      auto const sum = add_few<kTokens>(work, rings, sums, zeros, of, token, quarter);
      unsigned const vector = of / V::kGroups * 4 + quarter;
      uint32_t const at = total(vector, token, rank) + of % V::kGroups * 16;
      unsigned const owner = vector & mask;
      if (owner == rank) {
        store_words(at, __float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]), __float_as_uint(sum[3]));
      } else {
        cluster_store(cluster_address(at, owner), &sum[0], cluster_address(exchanged, owner));
      }
    }
    __syncthreads();
    if (p.cluster > 1) {
      barrier_wait(exchanged, 0);
    }
  }
  // Of blocks, a warp has those of all tokens together.
  constexpr unsigned kLanes = kSimple ? kTokens : 32;
  unsigned const items = units * 4 * kLanes;
  auto states = begin_outputs<N>(p.epilogue);
  CUTLASS_PRAGMA_NO_UNROLL
  for (unsigned first = 0; first < items; first += V::kThreads) {
    unsigned const item = first + threadIdx.x, vector = item / kLanes;
    int const token = static_cast<int>(item % kLanes);
    bool const is_mine = item < items && (vector & mask) == rank, is_there = is_mine && token < p.m;
    cutlass::Array<float, N> sum;
    sum.clear();
    if (is_there && at_once) {
      if constexpr (kSimple) {
        CUTLASS_PRAGMA_UNROLL
        for (int part = 0; part < V::kGroups; ++part) {
          auto const four = add_few<kTokens>(work, rings, sums, zeros, vector / 4 * V::kGroups + part, token, vector % 4);
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < 4; ++i) {
            sum[part * 4 + i] = four[i] * kFactor;
          }
        }
      }
    } else if (is_there) {
      CUTLASS_PRAGMA_NO_UNROLL
      for (int source = 0; source < p.cluster; ++source) {
        auto const one = load_floats<N>(total(vector, token, source));
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < N; ++i) {
          sum[i] += one[i] * kFactor;
        }
      }
    }
    unsigned const unit = work.first_unit + vector / 4, quarter = vector % 4 * 32;
    unsigned const column = kSimple ? unit / 4 * 128 + quarter + unit % 4 * 8 : unit * 128 + quarter;
    Place const here{static_cast<int>(batch), is_there ? token : p.m, static_cast<int>(column), p.m, p.n, 0};
    if constexpr (kSimple) {
      if (is_there && here.contains(0, 0)) {
        write_outputs<N>(p.epilogue, states, here, sum);
      }
    } else if (is_mine) {
      // All lanes of a warp work together; those without a token have one that is outside.
      write_outputs<N>(p.epilogue, states, here, sum);
      end_outputs<N>(p.epilogue, states, here);
    }
  }
  // Nobody leaves while others still send to it: all have waited for what they send.
}
#endif
