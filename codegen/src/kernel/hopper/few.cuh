// Few rows of A ("tokens"): what counts is that the weights are read once, as fast as memory gives them. They go from there
// into registers, some blocks ahead, and are decoded there; the tokens are decoded into shared memory, as the second
// operand of mma.sync wants them. A CTA has 128 weights; its two groups of warps take turns along K, and a cluster shares K.

template <int kTokens>
struct Few {
  static constexpr int kThreads = 256, kMinBlocks = 2, kRows = 128, kMostCluster = kTokens == 8 ? 8 : 4;
  // Blocks of K that a thread has in registers or on their way.
  static constexpr int kStages = 2;
  // Blocks of K of which the tokens are in shared memory at a time. Two tokens' words are in different banks.
  static constexpr int kPassBlocks = kTokens == 8 ? 32 : 16, kPitch = kPassBlocks * 2 * kBlockK + 64;
  static constexpr int kTokenBytes = kTokens * kPitch;
  // Sums: a row for each token, for each CTA of a cluster.
  static constexpr int kSumPitch = (kRows + 4) * 4, kSumBytes = kTokens * kSumPitch;
  static constexpr int kChunks = kTokens / 8;
  static constexpr int kShared = kTokenBytes + kMostCluster * kSumBytes;
  static_assert(kMinBlocks * (kShared + 1024) <= 228 * 1024);
  static_assert(kPassBlocks % (2 * kStages) == 0 && kChunks * 2 * 128 * 16 <= kTokenBytes);
};

#ifndef FOURFOLD_HOST

// What a thread has of a block: 32 codes of four weights, 32 rows apart, and scales of the four.
struct WeightBlock {
  uint4 codes[4];
  uint4 scales;
};

// Decodes the tokens of some blocks of K: of each block and word, for each thread of a quad what it gives to two steps.
template <int kTokens>
CUTLASS_DEVICE void decode_few(Parameters const &p, uint32_t to, int batch, int begin, int end) {
  using V = Few<kTokens>;
  int const blocks = end - begin, count = min(p.m, kTokens) * blocks * 4;
  uint8_t const *const matrix = p.tokens + static_cast<int64_t>(batch) * p.m * (p.k / 2);
  uint8_t const *const scales = p.token_scales + static_cast<int64_t>(batch) * p.token_blocks * p.atoms * kAtomBytes;
  for (int item = threadIdx.x; item < count; item += V::kThreads) {
    int const word = item % 4, token = item / 4 / blocks, of = item / 4 - token * blocks, block = begin + of;
    uint8_t const *const codes = matrix + static_cast<int64_t>(token) * (p.k / 2) + static_cast<int64_t>(block) * kBlockBytes;
    uint32_t scale_words[kAtomsPerBlock];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kAtomsPerBlock; ++i) {
      int64_t const atom = min(block * kAtomsPerBlock + i, p.atoms - 1);
      scale_words[i] = __ldg(reinterpret_cast<uint32_t const *>(scales + atom * kAtomBytes + token * 16));
    }
    CUTLASS_PRAGMA_UNROLL
    for (int t = 0; t < 4; ++t) {
      bool const inside = block * kBlockK + t * 32 < p.k;
      uint32_t const eight = inside ? __ldg(reinterpret_cast<uint32_t const *>(codes + t * 16 + word * 4)) : 0u;
      uint32_t const of_thread = kMx ? mx_scale(scale_words[0] >> 8 * t & 0xFF)
                                     : two_scales(scale_words[t / 2 % kAtomsPerBlock] >> t % 2 * 16);
      Decoded const parts = decode(eight, scale_of_word(of_thread, word));
      store_words(to + token * V::kPitch + of * 2 * kBlockK + word * 64 + t * 16, parts.low[0], parts.high[0], parts.low[1],
                  parts.high[1]);
    }
  }
}

// Writes what the sums of a cluster add up to: rows of tokens, in shared memory.
template <int kTokens>
CUTLASS_DEVICE void write_few(Parameters const &p, uint32_t sums, int batch, int first_column) {
  using V = Few<kTokens>;
  Place here{batch, 0, first_column, p.m, p.n, 0};
  auto const sum = [&](auto columns, int token, int column) {
    constexpr int N = decltype(columns)::value;
    cutlass::Array<float, N> result;
    result.clear();
    for (int source = 0; source < p.cluster; ++source) {
      auto const one = load_floats<N>(sums + source * V::kSumBytes + token * V::kSumPitch + column * 4);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < N; ++i) {
        result[i] += one[i];
      }
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) {
      result[i] *= kFactor;
    }
    return result;
  };
  if constexpr (kSimple) {
    constexpr int kAtOnce = 8, kPieces = V::kRows / kAtOnce;
    auto states = begin_outputs<kAtOnce>(p.epilogue);
    for (int item = threadIdx.x; item < kTokens * kPieces; item += V::kThreads) {
      int const column = item % kPieces * kAtOnce;
      here.m = item / kPieces;
      here.n = first_column + column;
      if (here.contains(0, 0)) {
        write_outputs<kAtOnce>(p.epilogue, states, here, sum(cute::Int<kAtOnce>{}, here.m, column));
      }
    }
  } else if (threadIdx.x < V::kRows) {
    // Four warps, each with 32 columns; lanes without a token have a row that is outside.
    int const column = static_cast<int>(threadIdx.x) / 32 * 32;
    bool const has_row = lane() < kTokens;
    here.m = has_row ? lane() : p.m;
    here.n += column;
    auto states = begin_outputs<32>(p.epilogue);
    write_outputs<32>(p.epilogue, states, here, sum(cute::Int<32>{}, has_row ? lane() : 0, column));
    end_outputs<32>(p.epilogue, states, here);
  }
}

template <int kTokens>
CUTLASS_DEVICE void compute_few(Parameters const &p, void *shared) {
  using V = Few<kTokens>;
  uint32_t const tokens = shared_address(shared), sums = tokens + V::kTokenBytes;
  int const warp = static_cast<int>(threadIdx.x) / 32, quad = lane() / 4, t = lane() % 4;
  int const row_warp = warp % 4, turn = warp / 4;
  int const rank = p.cluster == 1 ? 0 : cluster_rank();
  int const tile = static_cast<int>(blockIdx.x) / p.cluster, batch = tile / p.weight_blocks;
  int const row_block = tile - batch * p.weight_blocks;
  int const blocks = (p.k + kBlockK - 1) / kBlockK;
  int const begin = static_cast<int>(static_cast<int64_t>(blocks) * rank / p.cluster);
  int const end = static_cast<int>(static_cast<int64_t>(blocks) * (rank + 1) / p.cluster);

  uint8_t const *rows[4];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 4; ++i) {
    // Of rows that there are not, the last will do: nobody writes what comes of them.
    int64_t const row = min(row_block * V::kRows + row_warp * 8 + quad + 32 * i, p.n - 1);
    rows[i] = p.weights + (static_cast<int64_t>(batch) * p.n + row) * (p.k / 2) + t * 16;
  }
  int64_t const first_atom = (static_cast<int64_t>(batch) * p.weight_blocks + row_block) * p.atoms;
  uint8_t const *const scales = p.weight_scales + first_atom * kAtomBytes + (row_warp * 8 + quad) * 16;
  auto const fetch = [&](WeightBlock &to, int block) {
    bool const inside = block < end && block * kBlockK + t * 32 < p.k;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) {
      to.codes[i] = inside ? load_once(rows[i] + static_cast<int64_t>(block) * kBlockBytes) : uint4{0, 0, 0, 0};
    }
    int64_t const atom = min(block * kAtomsPerBlock + (kMx ? 0 : t / 2), p.atoms - 1);
    to.scales = load_once(scales + atom * kAtomBytes);
  };
  WeightBlock ring[V::kStages];
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < V::kStages; ++i) {
    fetch(ring[i], begin + turn + 2 * i);
  }
  if (p.cluster > 1) {
    cluster_start();
  }

  float acc[2][V::kChunks][4] = {};
  for (int pass = begin; pass < end; pass += V::kPassBlocks) {
    int const pass_end = min(pass + V::kPassBlocks, end);
    __syncthreads();
    decode_few<kTokens>(p, tokens, batch, pass, pass_end);
    __syncthreads();
    for (int first = pass + turn; first < pass_end; first += 2 * V::kStages) {
      CUTLASS_PRAGMA_UNROLL
      for (int slot = 0; slot < V::kStages; ++slot) {
        int const block = first + 2 * slot;
        if (block >= pass_end) {
          break;
        }
        WeightBlock const now = ring[slot];
        fetch(ring[slot], block + 2 * V::kStages);
        uint32_t const at = tokens + quad * V::kPitch + (block - pass) * 2 * kBlockK + t * 16;
        uint32_t const of_rows[4] = {now.scales.x, now.scales.y, now.scales.z, now.scales.w};
        uint32_t of_thread[4];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          of_thread[i] = kMx ? mx_scale(of_rows[i] >> 8 * t & 0xFF) : two_scales(of_rows[i] >> t % 2 * 16);
        }
        CUTLASS_PRAGMA_UNROLL
        for (int word = 0; word < 4; ++word) {
          uint4 second[V::kChunks];
          CUTLASS_PRAGMA_UNROLL
          for (int chunk = 0; chunk < V::kChunks; ++chunk) {
            second[chunk] = load_words(at + chunk * 8 * V::kPitch + word * 64);
          }
          uint32_t operands[2][2][4];
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < 4; ++i) {
            uint4 const &of_row = now.codes[i];
            uint32_t const eight = word == 0 ? of_row.x : word == 1 ? of_row.y : word == 2 ? of_row.z : of_row.w;
            Decoded const parts = decode(eight, scale_of_word(of_thread[i], word));
            CUTLASS_PRAGMA_UNROLL
            for (int step = 0; step < 2; ++step) {
              operands[step][i / 2][i % 2] = parts.low[step];
              operands[step][i / 2][2 + i % 2] = parts.high[step];
            }
          }
          CUTLASS_PRAGMA_UNROLL
          for (int half = 0; half < 2; ++half) {
            CUTLASS_PRAGMA_UNROLL
            for (int chunk = 0; chunk < V::kChunks; ++chunk) {
              mma(acc[half][chunk], operands[0][half], second[chunk].x, second[chunk].y);
              mma(acc[half][chunk], operands[1][half], second[chunk].z, second[chunk].w);
            }
          }
        }
      }
    }
  }

  // The second group of warps gives what it has to the first, and that to the first CTA of the cluster.
  auto const vector = [&](int half, int chunk) {
    return tokens + ((half * V::kChunks + chunk) * 128 + row_warp * 32 + lane()) * 16;
  };
  __syncthreads();
  if (turn == 1) {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      CUTLASS_PRAGMA_UNROLL
      for (int chunk = 0; chunk < V::kChunks; ++chunk) {
        float const(&four)[4] = acc[half][chunk];
        store_words(vector(half, chunk), __float_as_uint(four[0]), __float_as_uint(four[1]), __float_as_uint(four[2]),
                    __float_as_uint(four[3]));
      }
    }
  }
  __syncthreads();
  if (p.cluster > 1) {
    cluster_wait_for_start();
  }
  if (turn == 0) {
    uint32_t const to = p.cluster > 1 ? cluster_address(sums + rank * V::kSumBytes, 0) : sums;
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      CUTLASS_PRAGMA_UNROLL
      for (int chunk = 0; chunk < V::kChunks; ++chunk) {
        auto const other = load_floats<4>(vector(half, chunk));
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 4; ++i) {
          int const token = chunk * 8 + 2 * t + i % 2, row = 32 * (2 * half + i / 2) + row_warp * 8 + quad;
          cluster_store(to + token * V::kSumPitch + row * 4, acc[half][chunk][i] + other[i]);
        }
      }
    }
  }
  if (p.cluster > 1) {
    cluster_synchronize();
  } else {
    __syncthreads();
  }
  if (rank == 0) {
    write_few<kTokens>(p, sums, batch, row_block * V::kRows);
  }
}
#endif
