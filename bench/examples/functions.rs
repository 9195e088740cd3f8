//! Prints a CUDA program that compares the device functions of generated kernels with f64 over all 2^32 floats.
//!
//! `cargo run -p fourfold-bench --example functions > functions.cu`, then build it with nvcc for any GPU and run it.

use fourfold::codegen::{UNARY_FUNCTIONS, device_functions};

const REFERENCES: &str = r#"
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

__device__ double logistic(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
__device__ double ref_neg(double x) { return -x; }
__device__ double ref_abs(double x) { return fabs(x); }
__device__ double ref_exp(double x) { return exp(x); }
__device__ double ref_sqrt(double x) { return sqrt(x); }
__device__ double ref_rsqrt(double x) { return 1 / sqrt(x); }
__device__ double ref_reciprocal(double x) { return 1 / x; }
__device__ double ref_tanh(double x) { return tanh(x); }
__device__ double ref_erf(double x) { return erf(x); }
__device__ double ref_sigmoid(double x) { return logistic(x); }
__device__ double ref_relu(double x) { return x <= 0 ? 0 : x; }
__device__ double ref_gelu(double x) {
  return x < -40 ? x * 0.0 : isinf(x) ? x : 0.5 * x * erfc(-x * 0.70710678118654752440);
}
__device__ double ref_gelu_tanh(double x) {
  return x < -40 ? x * 0.0 : x > 40 ? x : x * logistic(1.5957691216057308 * (x + 0.044715 * x * x * x));
}
__device__ double ref_silu(double x) { return x * logistic(x); }

struct Worst {
  unsigned long long error_and_input, nan;
};

template <class Ours, class Reference>
__global__ void compare(Ours ours, Reference reference, Worst *worst) {
  unsigned long long most = 0, nan = 0;
  uint64_t const step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t bits = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; bits < 1ull << 32; bits += step) {
    float const x = __uint_as_float(static_cast<uint32_t>(bits));
    float const got = ours(x);
    double const want = reference(static_cast<double>(x));
    if (isnan(got) || isnan(want)) {
      nan += isnan(got) != isnan(want);
      continue;
    }
    double ulps;
    if (isinf(got) || isinf(static_cast<float>(want))) {
      ulps = got == static_cast<float>(want) ? 0 : 1e6;
    } else {
      int exponent;
      frexp(want, &exponent);
      ulps = fabs(got - want) / ldexp(1.0, max(exponent - 24, -149));
    }
    unsigned long long const milli = static_cast<unsigned long long>(fmin(ulps, 1e6) * 1000);
    most = max(most, milli << 32 | static_cast<uint32_t>(bits));
  }
  atomicMax(&worst->error_and_input, most);
  atomicAdd(&worst->nan, nan);
}

template <class Ours, class Reference>
bool report(char const *name, Ours ours, Reference reference) {
  Worst *worst;
  cudaMallocManaged(&worst, sizeof(Worst));
  *worst = {0, 0};
  compare<<<1056, 256>>>(ours, reference, worst);
  cudaError_t const error = cudaDeviceSynchronize();
  uint32_t const bits = static_cast<uint32_t>(worst->error_and_input);
  float input;
  std::memcpy(&input, &bits, sizeof input);
  double const ulps = (worst->error_and_input >> 32) / 1000.0;
  std::printf("%-10s at most %6.3f ulp, at %.9g; %llu NaN differ; %s\n", name, ulps, input, worst->nan,
              cudaGetErrorString(error));
  return error == cudaSuccess && ulps <= 4 && worst->nan == 0;
}
"#;

fn main() {
    println!("#include <cstdint>\n\n{}", device_functions(&UNARY_FUNCTIONS));
    println!("{REFERENCES}\nint main() {{\n  bool good = true;");
    for kind in UNARY_FUNCTIONS {
        let name = kind.name();
        println!(
            "  good &= report(\"{name}\", [] __device__(float x) {{ return fn_{name}(x); }}, \
             [] __device__(double x) {{ return ref_{name}(x); }});"
        );
    }
    println!("  return good ? 0 : 1;\n}}");
}
