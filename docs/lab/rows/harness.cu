// Times libraries of generated row kernels, and checks them against references in f64 if CHECK is set. The arguments are
// KIND LIBRARY ROWS COLUMNS, repeated, with a KIND of rms, rmsv, silu, softmax or sum. REFERENCE names a generated source
// with NVFP4, which has the exact quantization.
#define FOURFOLD_DEVICE 1
#include REFERENCE
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <dlfcn.h>
#include <string>
#include <vector>
using namespace fourfold;
#define CK(x) do { cudaError_t e_ = (x); if (e_) { printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
struct Device { int32_t sm_count, max_active_clusters; };
struct Extents { int64_t values[16]; uint32_t count; };
struct Addresses { void const *operands[32]; uint32_t operand_count; float const *scalars[8]; uint32_t scalar_count; void *outputs[8]; uint32_t output_count; };
using Prepare = int32_t (*)(Device const *, Extents const *, Addresses const *, void *, size_t, void *, void **, char *, size_t);
using Launch = int32_t (*)(void *, void *);
__global__ void fill(uint16_t *x, int64_t n, uint32_t seed, float scale) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint32_t h = seed + (uint32_t)i * 2654435761u; h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;
  uint32_t h2 = h * 747796405u + 2891336453u; h2 ^= h2 >> 15;
  float a = sqrtf(-2.f * logf(((h >> 8) + 1) * 0x1p-24f)) * cospif((h2 >> 8) * 0x1p-23f) * scale;
  x[i] = (uint16_t)pack_bf16(a, a);
}
__device__ double block_sum(double v) { __shared__ double s[256]; s[threadIdx.x] = v; __syncthreads(); for (int o = 128; o; o /= 2) { if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o]; __syncthreads(); } double r = s[0]; __syncthreads(); return r; }
__device__ double block_max(double v) { __shared__ double s[256]; s[threadIdx.x] = v; __syncthreads(); for (int o = 128; o; o /= 2) { if (threadIdx.x < o) s[threadIdx.x] = fmax(s[threadIdx.x], s[threadIdx.x + o]); __syncthreads(); } double r = s[0]; __syncthreads(); return r; }
enum What { RMS, RMSV, SILU, SOFTMAX, SUM };
__global__ void reference(int what, uint16_t const *x, uint16_t const *w, float const *g, int rows, int n, uint16_t *out, uint8_t *codes, uint8_t *scales) {
  int row = blockIdx.x; x += (int64_t)row * n;
  if (what == SUM) { double s = 0; for (int i = threadIdx.x; i < n; i += 256) s += low_bf16(x[i]); s = block_sum(s); if (!threadIdx.x) out[row] = pack_bf16((float)s, 0); return; }
  if (what == SOFTMAX) {
    double m = -INFINITY; for (int i = threadIdx.x; i < n; i += 256) m = fmax(m, (double)low_bf16(x[i])); m = block_max(m);
    double s = 0; for (int i = threadIdx.x; i < n; i += 256) s += exp((double)low_bf16(x[i]) - m); s = block_sum(s);
    for (int i = threadIdx.x; i < n; i += 256) { float y = exp((double)low_bf16(x[i]) - m) / s; out[(int64_t)row * n + i] = pack_bf16(y, y); } return;
  }
  double s = 0; for (int i = threadIdx.x; i < n; i += 256) { float f = low_bf16(x[i]); s += (double)f * (double)f; } s = block_sum(s);
  float r = __frcp_rn(__fsqrt_rn((float)((float)(s / n)) + 1e-6f));
  if (what == RMSV) { for (int i = threadIdx.x; i < n; i += 256) { float f = low_bf16(x[i]); f = round_bf16(f * r) * low_bf16(w[i]); out[(int64_t)row * n + i] = pack_bf16(f, f); } return; }
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
    int64_t at = ((int64_t)(row / 128) * ((n / 16 + 3) / 4) + b / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + b % 4;
    scales[at] = scale;
  }
}
int sms;
struct Case { uint16_t *x, *w; float *g; void *y0, *y1; void *prepared; };
struct Library { Prepare prepare; Launch launch; int what; };
Library open(char const *path, int what) {
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL); if (!h) { printf("%s\n", dlerror()); exit(1); }
  return {(Prepare)dlsym(h, "fourfold_prepare"), (Launch)dlsym(h, "fourfold_launch"), what};
}
void prepare(Library const &l, Case &c, int64_t rows, int64_t n) {
  Device d = {sms, 0}; Extents e = {{1, rows, n}, 3}; Addresses a = {};
  a.operands[a.operand_count++] = c.x;
  if (l.what <= SILU) a.operands[a.operand_count++] = c.w;
  if (l.what == RMS || l.what == SILU) a.operands[a.operand_count++] = c.g;
  a.outputs[a.output_count++] = c.y0; if (l.what == RMS || l.what == SILU) a.outputs[a.output_count++] = c.y1;
  char text[256] = {};
  if (int s = l.prepare(&d, &e, &a, nullptr, 0, nullptr, &c.prepared, text, 256)) { printf("prepare: %d %s\n", s, text); exit(1); }
}
void check(Library const &l, int rows, int n, int shift, int special) {
  bool q = l.what == RMS || l.what == SILU;
  int64_t e = (int64_t)rows * n, pad = (rows + 127) / 128 * 128, sc = pad * ((n / 16 + 3) / 4 * 4) + 512;
  Case c; size_t y0 = (l.what == SUM ? rows : e) * 2 + 64; uint16_t *base, *rx; uint8_t *rs;
  CK(cudaMalloc(&base, e * 2 + 64)); c.x = base + shift; CK(cudaMalloc(&c.w, e * 2 + 64)); CK(cudaMalloc(&c.g, 4)); CK(cudaMalloc(&c.y0, y0)); CK(cudaMalloc(&c.y1, sc)); CK(cudaMalloc(&rx, y0)); CK(cudaMalloc(&rs, sc));
  fill<<<(e + 255) / 256, 256>>>(c.x, e, 7 + rows, special == 3 ? 12.f : 1.5f); fill<<<(e + 255) / 256, 256>>>(c.w, e, 77, 1.f);
  if (special == 1 || special == 2) {
    std::vector<uint16_t> h(e); CK(cudaMemcpy(h.data(), c.x, e * 2, cudaMemcpyDeviceToHost));
    uint16_t sp[] = {0x7f80, 0xff80, 0x7fc1, 0, 0x8000, 0x0001, 0x7f7f, 0x4000}, soft[] = {0xff80, 0xc2c8, 0, 0x8000, 0xc2a0, 0x0001, 0xc260, 0x4000};
    for (int64_t i = 0; i < e; i += 97) h[i] = special == 1 ? sp[(i / 97) % 8] : soft[(i / 97) % 8];
    for (int64_t i = 0; i < std::min<int64_t>(n, e); ++i) h[i] = i % 3 ? 0 : 0x8000;
    CK(cudaMemcpy(c.x, h.data(), e * 2, cudaMemcpyHostToDevice));
  }
  float g = special == 2 ? 30.f : 0.013f; CK(cudaMemcpy(c.g, &g, 4, cudaMemcpyHostToDevice));
  CK(cudaMemset(c.y0, 0xA5, y0)); CK(cudaMemset(c.y1, 0xA5, sc)); CK(cudaMemset(rx, 0xA5, y0)); CK(cudaMemset(rs, 0, sc)); CK(cudaMemset(rs + sc - 512, 0xA5, 512));
  prepare(l, c, rows, n); if (int s = l.launch(c.prepared, nullptr)) { printf("launch %d\n", s); exit(1); } CK(cudaDeviceSynchronize());
  reference<<<rows, 256>>>(l.what, c.x, c.w, c.g, rows, n, rx, (uint8_t *)rx, rs); CK(cudaDeviceSynchronize());
  std::vector<uint8_t> a(y0), b(y0), s(sc), t(sc); CK(cudaMemcpy(a.data(), c.y0, y0, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(b.data(), rx, y0, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(s.data(), c.y1, sc, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(t.data(), rs, sc, cudaMemcpyDeviceToHost));
  long bad = 0, off = 0, bs = 0;
  if (!q) { uint16_t *p = (uint16_t *)a.data(), *r = (uint16_t *)b.data(); for (size_t i = 0; i < y0 / 2; ++i) { if (p[i] == r[i]) continue; bool pn = (p[i] & 0x7fff) > 0x7f80, rn = (r[i] & 0x7fff) > 0x7f80; if (pn && rn) continue; ++bad; if (abs((int)p[i] - (int)r[i]) > 1) ++off; } }
  else { for (size_t i = 0; i < y0; ++i) bad += a[i] != b[i]; for (size_t i = 0; i < sc; ++i) bs += s[i] != t[i]; }
  printf("  check %6d x %-6d shift %d special %d: differ %ld (more than an ulp %ld), scales %ld of %ld%s\n", rows, n, shift, special, bad, off, bs, (long)e, (q ? bad + bs : off) ? "  <<<" : "");
  cudaFree(base); cudaFree(c.w); cudaFree(c.g); cudaFree(c.y0); cudaFree(c.y1); cudaFree(rx); cudaFree(rs);
}
int main(int argc, char **argv) {
  cudaDeviceProp pr; CK(cudaGetDeviceProperties(&pr, 0)); sms = pr.multiProcessorCount; printf("%s\n", pr.name);
  cudaStream_t st; CK(cudaStreamCreate(&st));
  char const *names[] = {"rms", "rmsv", "silu", "softmax", "sum"};
  for (int at = 1; at + 3 < argc; at += 4) {
    int what = 0; while (what < SUM && std::string(names[what]) != argv[at]) ++what;
    int64_t rows = atol(argv[at + 2]), n = atol(argv[at + 3]); bool q = what == RMS || what == SILU;
    Library l = open(argv[at + 1], what); printf("%s %s %ld x %ld\n", argv[at], argv[at + 1], (long)rows, (long)n);
    if (getenv("CHECK")) {
      check(l, 300, n, 0, 0); check(l, 130, n, 0, 1); check(l, 5, n, 0, 2); check(l, 130, n, 0, 3); check(l, 33, n + 48, 0, 0); check(l, 33, 48, 0, 0); check(l, 9, 2 * n, 0, 3); check(l, 7, n, 1, 0); check(l, 3, 131072 - 64, 0, 1);
      if (!q) { check(l, 130, n - 1, 0, 0); check(l, 7, 17, 0, 1); }
    }
    int64_t e = rows * n; double bytes = q ? e * 2.0 * (what == SILU ? 2 : 1) + e / 2 + e / 16 : what == SUM ? e * 2.0 + rows * 2 : e * 4.0;
    int64_t half = (int64_t)(bytes / 32); int sets = (int)std::max<int64_t>(5, (400 << 20) / (int64_t)bytes + 1), calls = sets * std::max(1, 20 / sets);
    uint4 *src, *dst; CK(cudaMalloc(&src, half * 16 * sets)); CK(cudaMalloc(&dst, half * 16 * sets)); fill<<<(half * 8 * sets + 255) / 256, 256>>>((uint16_t *)src, half * 8 * sets, 3, 1.f);
    std::vector<Case> s(sets);
    for (auto &c : s) { CK(cudaMalloc(&c.x, e * 2)); CK(cudaMalloc(&c.w, e * 2)); CK(cudaMalloc(&c.g, 4)); CK(cudaMalloc(&c.y0, e * 2)); CK(cudaMalloc(&c.y1, e / 16 + 65536)); fill<<<(e + 255) / 256, 256>>>(c.x, e, 1 + (&c - &s[0]), 1.5f); fill<<<(e + 255) / 256, 256>>>(c.w, e, 100 + (&c - &s[0]), 1.f); float g = 0.013f; CK(cudaMemcpy(c.g, &g, 4, cudaMemcpyHostToDevice)); prepare(l, c, rows, n); }
    CK(cudaDeviceSynchronize());
    auto bench = [&](auto f) {
      cudaGraph_t gr; cudaGraphExec_t ex; CK(cudaStreamBeginCapture(st, cudaStreamCaptureModeGlobal)); for (int i = 0; i < calls; ++i) f(i % sets); CK(cudaStreamEndCapture(st, &gr)); CK(cudaGraphInstantiate(&ex, gr, 0));
      cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b); for (int i = 0; i < 8; ++i) CK(cudaGraphLaunch(ex, st)); std::vector<float> ts;
      for (int i = 0; i < 9; ++i) { cudaEventRecord(a, st); CK(cudaGraphLaunch(ex, st)); cudaEventRecord(b, st); CK(cudaEventSynchronize(b)); float ms; cudaEventElapsedTime(&ms, a, b); ts.push_back(ms * 1000 / calls); }
      std::sort(ts.begin(), ts.end()); cudaGraphExecDestroy(ex); cudaGraphDestroy(gr); return ts[4]; };
    float c[2], k[2];
    for (int r = 0; r < 2; ++r) {
      c[r] = bench([&](int i) { CK(cudaMemcpyAsync(dst + half * i, src + half * i, half * 16, cudaMemcpyDeviceToDevice, st)); });
      k[r] = bench([&](int i) { if (l.launch(s[i].prepared, st)) exit(1); });
    }
    printf("  copy %.2f %.2f kernel %.2f %.2f us, copy/kernel %.3f, %.0f GB/s\n", c[0], c[1], k[0], k[1], (c[0] + c[1]) / (k[0] + k[1]), bytes / k[1] / 1e3);
    for (auto &x : s) { cudaFree(x.x); cudaFree(x.w); cudaFree(x.g); cudaFree(x.y0); cudaFree(x.y1); } cudaFree(src); cudaFree(dst); fflush(stdout);
  }
}
