// A stand-in for the kernel, with its names: a thread for each piece of a row of D.

struct Parameters {
  uint8_t const *a, *b, *sfa, *sfb;
  int64_t l, m, n, k;
  EpilogueArguments epilogue;
};

template <int kTokens>
struct Variant {
  static constexpr int kShared = 0, kThreads = 128, kStages = 2;
};

#ifndef FOURFOLD_HOST
CUTLASS_DEVICE float decode(uint8_t const *codes, uint8_t const *scales, int64_t rows, int64_t k, int64_t batch,
                            int64_t row, int64_t at) {
  int const nibble = codes[((batch * rows + row) * k + at) / 2] >> (at % 2 * 4) & 0xF;
  uint8_t const scale = scales[scale_at(rows, k / (kMx ? 32 : 16), batch, row, at / (kMx ? 32 : 16))];
  float s;
  if constexpr (kMx) {
    s = scale == 0xFF ? __int_as_float(0x7FFFFFFF) : ldexpf(1.0f, static_cast<int>(scale) - 127);
  } else {
    s = static_cast<float>(cutlass::float_e4m3_t::bitcast(scale & 0x7F));
  }
  float const magnitude = nibble % 8 < 2 ? 0.5f * (nibble % 8) : ldexpf(1.0f + 0.5f * (nibble % 2), nibble % 8 / 2 - 1);
  return (nibble & 8 ? -magnitude : magnitude) * s;
}

template <int kTokens, size_t kParametersSize, size_t kSharedSize>
__global__ void __launch_bounds__(Variant<kTokens>::kThreads) kernel(__grid_constant__ Parameters const p) {
  constexpr int N = kSimple ? 8 : 32;
  unsigned cluster;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(cluster));
  if (p.k < 0) {
    float d[4] = {};
    uint64_t const a = p.k, b = p.k;
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;");
    if (d[0] + d[1] + d[2] + d[3] == 1.0f) {
      return;
    }
  }
  if (blockIdx.x % cluster != 0) {
    return;
  }
  int64_t tile = blockIdx.x / cluster;
  int64_t const columns = (p.n + kTileN - 1) / kTileN, rows = (p.m + kTokens - 1) / kTokens;
  int64_t const n0 = tile % columns * kTileN;
  tile /= columns;
  int64_t const m0 = tile % rows * kTokens, batch = tile / rows;
  // Each lane has a row.
  for (int first = 0; first < kTokens; first += 32) {
    Place here{static_cast<int>(batch), static_cast<int>(m0) + first + lane(), 0, static_cast<int>(p.m), static_cast<int>(p.n), 0};
    if (first + lane() >= kTokens) {
      here.m = here.rows;
    }
    auto states = begin_outputs<N>(p.epilogue);
    for (int piece = threadIdx.x / 32 * N; piece < kTileN; piece += N * (Variant<kTokens>::kThreads / 32)) {
      here.n = static_cast<int>(n0) + piece;
      cutlass::Array<float, N> acc;
      for (int i = 0; i < N; ++i) {
        float sum = 0.0f;
        if (here.contains(0, i)) {
          for (int64_t k = 0; k < p.k; ++k) {
            sum += decode(p.a, p.sfa, p.m, p.k, batch, here.m, k) * decode(p.b, p.sfb, p.n, p.k, batch, here.n + i, k);
          }
        }
        acc[i] = sum;
      }
      write_outputs<N>(p.epilogue, states, here, acc);
    }
    end_outputs<N>(p.epilogue, states, here);
  }
}
#endif

#if !defined(FOURFOLD_DEVICE) && !defined(__CUDA_ARCH__)
inline bool can_implement(Problem const &) { return true; }

inline cudaError_t make_parameters(Problem const &problem, Pointers const &pointers, Plan const &, Encode,
                                   EpilogueArguments const &epilogue, Parameters &parameters) {
  auto const bytes = [](void const *pointer) { return static_cast<uint8_t const *>(pointer); };
  parameters = {bytes(pointers.a), bytes(pointers.b), bytes(pointers.sfa), bytes(pointers.sfb),
                problem.l, problem.m, problem.n, problem.k, epilogue};
  return cudaSuccess;
}
#endif
