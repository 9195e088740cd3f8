// Compares silu with f64, and rsqrt and quotients with the divisions that they replace, for every float. FILE_CU names a
// generated source of a program that calls silu and rsqrt.
#define FOURFOLD_DEVICE 1
#include FILE_CU
#include <cmath>
using namespace fourfold;
__device__ unsigned long long worst[4], bad[4];
__device__ double ulp_of(double y) { double a = fabs(y); int e; if (a < 0x1p-126) return 0x1p-149; frexp(a, &e); return ldexp(1.0, e - 24); }
__global__ void all() {
  uint32_t t = blockIdx.x * blockDim.x + threadIdx.x; double w = 0; unsigned long long nb = 0, rb = 0, db = 0;
  for (uint64_t i = t; i < (1ull << 32); i += gridDim.x * blockDim.x) {
    float x = float_of((uint32_t)i), y = row_silu(x), old = fn_silu(x);
    if (isfinite(x)) { double d = x, r = d / (1 + exp(-d)); double e = fabs((double)y - r) / ulp_of(r); if (e > w) w = e; if (!(e <= 4) || (y == 0) != (old == 0 ) && e > 1 || signbit(y) != signbit(old)) ++nb; }
    else if (!(y == old || (y != y && old != old))) ++nb;
    float a = row_rsqrt(x), b = fn_rsqrt(x); if (bits_of(a) != bits_of(b) && !(a != a && b != b)) ++rb;
    // Quotients: a pseudo-random divisor.
    uint32_t h = (uint32_t)i * 2654435761u; h ^= h >> 15; h *= 0x2c1b3c6du; h ^= h >> 12; float by = float_of((h & 0x007fffffu) | (i % 3 ? 0x3f800000u + ((h >> 9 & 15u) << 23) : h & 0xff800000u));
    Divisor const d = Divisor::of(by); uint32_t p = d.pack_quotients(x, float_of((uint32_t)i ^ h)), q = pack_bf16(__fdiv_rn(x, by), __fdiv_rn(float_of((uint32_t)i ^ h), by)); if (p != q) ++db;
  }
  atomicMax(&worst[0], (unsigned long long)(w * 1e6)); atomicAdd(&bad[0], nb); atomicAdd(&bad[1], rb); atomicAdd(&bad[2], db);
}
int main() {
  all<<<132 * 8, 256>>>(); cudaError_t e = cudaDeviceSynchronize(); unsigned long long w[4], b[4];
  cudaMemcpyFromSymbol(w, worst, sizeof(w)); cudaMemcpyFromSymbol(b, bad, sizeof(b));
  printf("%s: silu worst %.3f ulp, wrong %llu; rsqrt differs %llu; quotients differ %llu\n", cudaGetErrorString(e), w[0] * 1e-6, b[0], b[1], b[2]);
}
