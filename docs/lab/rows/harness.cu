#define FOURFOLD_DEVICE 1
#include <cassert>
#include FILE_CU
#include <cstdio>
#include <cstdlib>
#include <cmath>
#include <vector>
#include <algorithm>
#include <string>
using namespace fourfold;
#define CK(x) do{cudaError_t err_=(x); if(err_){printf("%s:%d %s\n",__FILE__,__LINE__,cudaGetErrorString(err_)); exit(1);} }while(0)
__global__ void fill(uint16_t *x, int64_t n, uint32_t seed, float scale) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint32_t h = seed + (uint32_t)i * 2654435761u; h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;
  uint32_t h2 = h * 747796405u + 2891336453u; h2 ^= h2 >> 15;
  float a = sqrtf(-2.f * logf(((h >> 8) + 1) * 0x1p-24f)) * cospif((h2 >> 8) * 0x1p-23f) * scale;
  x[i] = (uint16_t)pack_bf16(a, a);
}
// references: one thread block per row, doubles
__device__ double block_sum(double v) { __shared__ double s[256]; s[threadIdx.x] = v; __syncthreads(); for (int o = 128; o; o /= 2) { if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o]; __syncthreads(); } double r = s[0]; __syncthreads(); return r; }
__device__ double block_max(double v) { __shared__ double s[256]; s[threadIdx.x] = v; __syncthreads(); for (int o = 128; o; o /= 2) { if (threadIdx.x < o) s[threadIdx.x] = fmax(s[threadIdx.x], s[threadIdx.x + o]); __syncthreads(); } double r = s[0]; __syncthreads(); return r; }
enum { RMS, SOFTMAX, SILU, SUM };
__global__ void reference(int what, uint16_t const *x, uint16_t const *w, float const *g, int rows, int n, uint16_t *out, uint8_t *codes, uint8_t *scales) {
  int row = blockIdx.x; x += (int64_t)row * n;
  if (what == SUM) { double s = 0; for (int i = threadIdx.x; i < n; i += 256) s += low_bf16(x[i]); s = block_sum(s); if (!threadIdx.x) out[row] = pack_bf16((float)s, 0); return; }
  if (what == SOFTMAX) {
    double m = -INFINITY; for (int i = threadIdx.x; i < n; i += 256) m = fmax(m, (double)low_bf16(x[i])); m = block_max(m);
    double s = 0; for (int i = threadIdx.x; i < n; i += 256) s += exp((double)low_bf16(x[i]) - m); s = block_sum(s);
    for (int i = threadIdx.x; i < n; i += 256) { float y = exp((double)low_bf16(x[i]) - m) / s; out[(int64_t)row * n + i] = pack_bf16(y, y); } return;
  }
#ifdef HAS_Q
  double s = 0; for (int i = threadIdx.x; i < n; i += 256) { float f = low_bf16(x[i]); s += (double)(f * f); } s = block_sum(s);
  float r = __frcp_rn(__fsqrt_rn((float)((float)(s / n)) + 1e-6f));
  for (int b = threadIdx.x; b < n / 16; b += 256) {
    float v[16]; uint32_t amax = 0;
    for (int i = 0; i < 16; ++i) {
      float f = low_bf16(x[b * 16 + i]);
      if (what == RMS) f = round_bf16(round_bf16(f * r) * low_bf16(w[b * 16 + i]));
      else { double d = f; f = round_bf16((float)(d / (1 + exp(-d)))); f = round_bf16(f * low_bf16(w[(int64_t)row * n + b * 16 + i])); }
      v[i] = f; uint32_t m = bits_of(f) & kMagnitudeBits; amax = m > amax ? m : amax;
    }
    uint32_t scale = Nvfp4::scale(amax, *g); Nvfp4::Step st = Nvfp4::step(scale, amax, *g);
    for (int i = 0; i < 16; i += 2) codes[((int64_t)row * n + b * 16 + i) / 2] = Nvfp4::codes(v[i], v[i + 1], st);
    scales[scale_at(rows, n / 16, 0, row, b)] = scale;
  }
#endif
}
__global__ void copy(uint4 const *x, uint4 *y, int64_t n) {
  int64_t const i = (int64_t)blockIdx.x * 1024 + threadIdx.x; uint4 v[4];
  for (int t = 0; t < 4; ++t) if (i + t * 256 < n) v[t] = __ldcs(x + i + t * 256);
  for (int t = 0; t < 4; ++t) if (i + t * 256 < n) __stcs(y + i + t * 256, v[t]);
}
struct Case { uint16_t *x, *w; float *g; void *y0, *y1; };
int sms;
void launch(Case const &c, int rows, int n, cudaStream_t st, bool force_narrow = false) {
  Parameters p = {};
  p.rows = rows; p.columns = n; p.padded_rows = WHAT == RMS || WHAT == SILU ? (rows + 127) / 128 * 128 : rows;
  p.tiles = kHasReductions ? 1 : (n + kResident - 1) / kResident;
  p.all_rows = p.padded_rows; int64_t const units = (int64_t)(p.all_rows + kRows - 1) / kRows * p.tiles;
  p.is_wide = n % kValues == 0 && !force_narrow;
  p.operands[0] = c.x;
#if WHAT == 0 || WHAT == 2
  p.operands[1] = c.w; p.operands[2] = c.g;
#endif
  p.outputs[0] = c.y0; p.outputs[1] = c.y1;
  cudaLaunchConfig_t l = {}; int64_t most = ((int64_t)sms * CTAS + p.tiles - 1) / p.tiles * p.tiles; l.gridDim = (unsigned)std::min<int64_t>(units, most); l.blockDim = kThreads; l.stream = st;
  cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeProgrammaticStreamSerialization; at[0].val.programmaticStreamSerializationAllowed = 1; l.attrs = at; l.numAttrs = 1;
  CK(cudaLaunchKernelEx(&l, kernel<sizeof(Parameters), kThreads>, p));
}
void check(int rows, int n, bool narrow, int64_t special) {
  int64_t e = (int64_t)rows * n, pad = (rows + 127) / 128 * 128, sc = pad * ((n / 16 + 3) / 4 * 4) + 512;
  Case c; size_t y0 = (WHAT == SUM ? rows : e) * 2 + 64;
  uint16_t *rx; CK(cudaMalloc(&c.x, e * 2 + 64)); CK(cudaMalloc(&c.w, e * 2 + 64)); CK(cudaMalloc(&c.g, 4)); CK(cudaMalloc(&c.y0, y0)); CK(cudaMalloc(&c.y1, sc)); CK(cudaMalloc(&rx, y0));
  uint8_t *rs; CK(cudaMalloc(&rs, sc));
  fill<<<(e + 255) / 256, 256>>>(c.x, e, 7 + rows, 1.5f); fill<<<(e + 255) / 256, 256>>>(c.w, e, 77, 1.f);
  if (special) { std::vector<uint16_t> h(e); CK(cudaMemcpy(h.data(), c.x, e * 2, cudaMemcpyDeviceToHost)); uint16_t sp[] = {0x7f80, 0xff80, 0x7fc1, 0, 0x8000, 0x0001, 0x7f7f, 0x4000}; for (int64_t i = 0; i < e; i += 97) h[i] = sp[(i / 97) % 8]; for (int64_t i = 0; i < std::min<int64_t>(n, e); ++i) h[i] = i % 3 ? 0 : 0x8000; CK(cudaMemcpy(c.x, h.data(), e * 2, cudaMemcpyHostToDevice)); }
  float g = special == 2 ? 30.f : 0.013f; CK(cudaMemcpy(c.g, &g, 4, cudaMemcpyHostToDevice));
  CK(cudaMemset(c.y0, 0xA5, y0)); CK(cudaMemset(c.y1, 0xA5, sc)); CK(cudaMemset(rx, 0xA5, y0)); CK(cudaMemset(rs, 0, sc)); CK(cudaMemset(rs + sc - 512, 0xA5, 512));
  launch(c, rows, n, 0, narrow); CK(cudaDeviceSynchronize());
  reference<<<rows, 256>>>(WHAT, c.x, c.w, c.g, rows, n, rx, (uint8_t *)rx, rs); CK(cudaDeviceSynchronize());
  std::vector<uint8_t> a(y0), b(y0), s(sc), t(sc); CK(cudaMemcpy(a.data(), c.y0, y0, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(b.data(), rx, y0, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(s.data(), c.y1, sc, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(t.data(), rs, sc, cudaMemcpyDeviceToHost));
  long bad = 0, off = 0, bs = 0; double worst = 0;
  if (WHAT == SUM || WHAT == SOFTMAX) { uint16_t *p = (uint16_t *)a.data(), *q = (uint16_t *)b.data(); for (size_t i = 0; i < y0 / 2; ++i) { if (p[i] == q[i]) continue; ++bad; uint32_t u = p[i] << 16, v = q[i] << 16; float f, h; memcpy(&f, &u, 4); memcpy(&h, &v, 4); if (f != f && h != h) { --bad; continue; } if (abs((int)p[i] - (int)q[i]) > 1) ++off; worst = std::max(worst, (double)fabs(f - h)); } }
  else { for (size_t i = 0; i < y0; ++i) bad += a[i] != b[i]; for (size_t i = 0; i < sc; ++i) bs += s[i] != t[i]; }
  printf("  %6d x %-6d %s special %ld: differ %ld (more than one ulp %ld, worst %.3g), scales %ld, of %ld\n", rows, n, narrow ? "narrow" : "wide", (long)special, bad, off, worst, bs, (long)e);
  cudaFree(c.x); cudaFree(c.w); cudaFree(c.g); cudaFree(c.y0); cudaFree(c.y1); cudaFree(rx); cudaFree(rs);
}
int main() {
  cudaDeviceProp pr; CK(cudaGetDeviceProperties(&pr, 0)); sms = pr.multiProcessorCount;
  printf("%s on %s\n", FILE_CU, pr.name);
  bool q = WHAT == RMS || WHAT == SILU;
  check(300, 8192, false, 0); check(300, 8192, false, 1); check(5, 8192, false, 2); check(1, 4096 + 16 * 3, false, 0); check(257, 16, false, 0); check(33, 20000, false, 0); check(3, 131072, false, 1);
  if (!q) { check(130, 8191, true, 0); check(3, 1, true, 0); check(7, 131071, true, 1); check(2, 17, true, 0); check(9, 8192, true, 0); }
  int const rows = 4096, n = 8192, sets = 5; int64_t e = (int64_t)rows * n;
  double bytes = q ? e * 2.0 * (WHAT == SILU ? 2 : 1) + e / 2 + e / 16 : WHAT == SUM ? e * 2.0 + rows * 2 : e * 4.0;
  int64_t half = (int64_t)(bytes / 32); uint4 *src, *dst; CK(cudaMalloc(&src, half * 16 * sets)); CK(cudaMalloc(&dst, half * 16 * sets)); fill<<<(half * 8 * sets + 255) / 256, 256>>>((uint16_t *)src, half * 8 * sets, 3, 1.f);
  std::vector<Case> s(sets);
  for (auto &c : s) { CK(cudaMalloc(&c.x, e * 2)); CK(cudaMalloc(&c.w, e * 2)); CK(cudaMalloc(&c.g, 4)); CK(cudaMalloc(&c.y0, e * 2)); CK(cudaMalloc(&c.y1, e / 16)); fill<<<(e + 255) / 256, 256>>>(c.x, e, 1 + (&c - &s[0]), 1.5f); fill<<<(e + 255) / 256, 256>>>(c.w, e, 100 + (&c - &s[0]), 1.f); float g = 0.013f; CK(cudaMemcpy(c.g, &g, 4, cudaMemcpyHostToDevice)); }
  CK(cudaDeviceSynchronize()); cudaStream_t st; CK(cudaStreamCreate(&st));
  auto bench = [&](char const *name, auto f) {
    cudaGraph_t gr; cudaGraphExec_t ex; CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeGlobal)); for (int i = 0; i < 20; ++i) f(i % sets); CK(cudaStreamEndCapture(st, &gr)); CK(cudaGraphInstantiate(&ex, gr, 0));
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b); for (int i = 0; i < 20; ++i) CK(cudaGraphLaunch(ex, st)); std::vector<float> ts;
    for (int i = 0; i < 11; ++i) { cudaEventRecord(a, st); CK(cudaGraphLaunch(ex, st)); cudaEventRecord(b, st); CK(cudaEventSynchronize(b)); float ms; cudaEventElapsedTime(&ms, a, b); ts.push_back(ms * 50); }
    std::sort(ts.begin(), ts.end()); printf("  %-8s %7.2f us, min %7.2f, %5.0f GB/s\n", name, ts[5], ts[0], bytes / ts[5] / 1e3); return ts[5]; };
  for (int r = 0; r < 2; ++r) { float c = bench("memcpy", [&](int i) { CK(cudaMemcpyAsync(dst + half * i, src + half * i, half * 16, cudaMemcpyDeviceToDevice, st)); }); float k = bench("kernel", [&](int i) { launch(s[i], rows, n, st); }); printf("  copy / kernel = %.3f\n", c / k); }
}
