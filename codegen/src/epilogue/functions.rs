//! The elementwise functions as CUDA device code.
//!
//! CUTLASS's tanh, gelu and sigmoid use approximate instructions, so they are not used. The errors were
//! measured against f64 over all 2^32 floats on an H200. The largest are 1.1 ulp (erf), 1.5 (rsqrt), 1.9 (exp,
//! tanh), 2.4 (sigmoid), 3.4 (silu, gelu_tanh) and 3.7 (gelu). The others round correctly. No function needs
//! f64, which is slow on consumer GPUs.
//!
//! In the tails these functions decay exponentially, so one ulp of the argument is many ulp of the result.
//! The argument is therefore kept in two floats. `__fmul_rn` keeps the compiler from fusing products whose
//! rounding errors are computed.

use fourfold_ir::UnaryKind;

const EXP_NEGATIVE: &str = "\
// exp(-(high + low)) = result · 2^-n, for 0 <= high <= 200 and a low of a few ulp of high.
__device__ __forceinline__ float exp_negative(float high, float low, int &n) {
  float const k = rintf(high * 1.44269504f);
  n = static_cast<int>(k);
  // ln 2 in two parts, the first short enough for k times it to be exact.
  float r = fmaf(-k, 0x1.62e4p-1f, high);
  r = fmaf(-k, 0x1.7f7d1cp-20f, r) + low;
  r = -r;
  float q = 1.98412698e-4f;
  q = fmaf(q, r, 1.38888889e-3f);
  q = fmaf(q, r, 8.33333333e-3f);
  q = fmaf(q, r, 4.16666667e-2f);
  q = fmaf(q, r, 1.66666667e-1f);
  q = fmaf(q, r, 0.5f);
  return fmaf(q, r * r, r) + 1.0f;
}
";

const LOGISTIC: &str = "\
// On the host, where sources are tested, the exact functions.
__device__ __forceinline__ float approximate_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(result) : \"f\"(x));
  return result;
#else
  return exp2f(x);
#endif
}
__device__ __forceinline__ float approximate_reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(result) : \"f\"(x));
  return result;
#else
  float const result = 1.0f / x;
  return fabsf(result) < 0x1p-126f ? copysignf(0.0f, result) : result;
#endif
}
// Returns sigmoid(high + low) = result · scale, for a low of a few ulp of high. No branch: the compiler interleaves the
// steps of several elements. Below -40, 1 + exp(-x) is exp(-x), which is scaled so that it is finite. From -121.5 its
// reciprocal is 0, as sigmoid is in f32.
__device__ __forceinline__ float logistic(float high, float low, float &scale) {
  float const bounded = fminf(fmaxf(high, -121.5f), 50.0f);
  bool const is_far = bounded < -40.0f;
  // exp(-x) = 2^k · 2^r with an integer k, in the low bits of `shifted`.
  float const shifted = fmaf(bounded, -0x1.715476p0f, 0x1.8p23f), k = shifted - 0x1.8p23f;
  float const part = fmaf(bounded, -0x1.4ae0cp-26f, fmaf(bounded, -0x1.715476p0f, -k));
  float const r = fmaf(low, -0x1.715476p0f, part);
  uint32_t const power = __float_as_uint(approximate_exp2(r)) + (__float_as_uint(shifted) << 23);
  float const sum = is_far ? __uint_as_float(power - (48u << 23)) : 1.0f + __uint_as_float(power);
  scale = is_far ? 0x1p-48f : 1.0f;
  return approximate_reciprocal(sum);
}
";

/// The device functions of these kinds, as far as they have device code, as one text for compilation by themselves.
pub fn device_functions(kinds: &[UnaryKind]) -> String {
    sources(kinds).join("\n")
}

/// The device functions `fn_NAME(float) -> float` of these kinds, preceded by the functions they call.
pub(crate) fn sources(kinds: &[UnaryKind]) -> Vec<String> {
    let bodies = || kinds.iter().filter_map(|kind| Some((kind, body(*kind)?)));
    let calls = |text: &str| bodies().any(|(_, body)| body.contains(text));
    let mut sources = Vec::new();
    for (call, text) in [("exp_negative(", EXP_NEGATIVE), ("logistic(", LOGISTIC)] {
        sources.extend(calls(call).then(|| text.to_owned()));
    }
    sources.extend(bodies().map(|(kind, body)| {
        format!("__device__ __forceinline__ float fn_{}(float x) {{\n{body}\n}}\n", kind.name())
    }));
    sources
}

/// The body of a device function; `None` for a kind that no epilogue computes, since it is not in
/// [`crate::UNARY_FUNCTIONS`].
fn body(kind: UnaryKind) -> Option<&'static str> {
    Some(match kind {
        UnaryKind::Neg => "  return -x;",
        UnaryKind::Abs => "  return fabsf(x);",
        UnaryKind::Exp => "  return expf(x);",
        UnaryKind::Sqrt => "  return __fsqrt_rn(x);",
        UnaryKind::Rsqrt => "  return __frcp_rn(__fsqrt_rn(x));",
        UnaryKind::Reciprocal => "  return __frcp_rn(x);",
        UnaryKind::Tanh => "  return tanhf(x);",
        UnaryKind::Erf => "  return erff(x);",
        UnaryKind::Sigmoid => {
            "\
  float scale;
  float const result = logistic(x, 0.0f, scale) * scale;
  return x != x ? x : result;"
        }
        // NaN compares false and is kept.
        UnaryKind::Relu => "  return x <= 0.0f ? 0.0f : x;",
        UnaryKind::Gelu => {
            "\
  float const half = 0.5f * x;
  if (!(x < -0.5f)) return fmaf(half, erff(x * 0.707106781f), half);
  if (x < -15.0f) return x * 0.0f;  // -0, and NaN of -inf
  // x/2 · erfcx(z) · exp(-z²) with z = -x/√2 in two floats.
  float const c = -0x1.6a09e6p-1f, c_low = -0x1.9fcef4p-27f;
  float const z = __fmul_rn(x, c);
  float const z_low = fmaf(x, c_low, fmaf(x, c, -z));
  float const square = __fmul_rn(z, z);
  // The last term is the effect of z_low on erfcx(z).
  float const square_low = fmaf(2.0f * z, z_low, fmaf(z, z, -square)) + __fdividef(z_low, z);
  int n;
  float const p = exp_negative(square, square_low, n);
  float const tail = erfcxf(z);
  float const product = __fmul_rn(half, tail), product_low = fmaf(half, tail, -product);
  return ldexpf(fmaf(product, p, product_low * p), -n);"
        }
        UnaryKind::GeluTanh => {
            "\
  // From 12 on, the result is x, 0 or NaN.
  float const a = fminf(fabsf(x), 12.0f);
  // x · sigmoid(v) with v = 2·√(2/π)·(a + 0.044715 a³) in two floats.
  float const s = __fmul_rn(a, a), s_low = fmaf(a, a, -s);
  float const c = 0x1.6e4e26p-5f, c_low = 1.5461445e-9f;
  float const p = __fmul_rn(c, s), p_low = fmaf(c, s, -p) + fmaf(c, s_low, c_low * s);
  float const q = __fadd_rn(1.0f, p), q_low = (q > 2.0f ? 1.0f - (q - p) : p - (q - 1.0f)) + p_low;
  float const u = __fmul_rn(a, q), u_low = fmaf(a, q, -u) + a * q_low;
  float const k = 0x1.988454p+0f, k_low = -4.534068e-8f;
  float const v = __fmul_rn(k, u), v_low = fmaf(k, u, -v) + fmaf(k, u_low, k_low * u);
  float scale;
  float const factor = logistic(copysignf(v, x), x < 0.0f ? -v_low : v_low, scale);
  // Below -12: -0, and NaN of -inf.
  return x < -12.0f ? x * 0.0f : __fmul_rn(x, factor) * scale;"
        }
        // -0 below -121.5, and NaN of -inf.
        UnaryKind::Silu => {
            "\
  float scale;
  float const factor = logistic(x, 0.0f, scale);
  return __fmul_rn(x, factor) * scale;"
        }
        UnaryKind::Log
        | UnaryKind::Log2
        | UnaryKind::Exp2
        | UnaryKind::Sin
        | UnaryKind::Cos
        | UnaryKind::Floor
        | UnaryKind::Ceil
        | UnaryKind::Round => return None,
    })
}
