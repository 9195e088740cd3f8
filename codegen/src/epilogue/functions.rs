//! The elementwise functions as CUDA device code.
//!
//! CUTLASS's tanh, gelu and sigmoid are less accurate, so they are not used. The errors were measured against f64 over
//! all 2^32 floats on an H100. The largest are 1.1 ulp (erf), 1.5 (rsqrt), 1.9 (tanh), 2.0 (exp), 3.5 (gelu), 3.7
//! (gelu_tanh) and 4.0 (sigmoid, silu). The others round correctly. No function needs f64, which is slow on consumer
//! GPUs.
//!
//! In the tails these functions decay exponentially, so one ulp of the argument is many ulp of the result. The argument
//! of the exponential is therefore kept in two floats, or reduced with a remainder. `__fmul_rn` keeps the compiler from
//! fusing products whose rounding errors are computed. Functions that models use often have no branches: an epilogue has
//! few warps, so the steps of several elements must overlap.

use fourfold_ir::UnaryKind;

const RECIPROCAL: &str = "\
// On the host, where sources are tested, 1/x.
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
";

const LOGISTIC: &str = "\
// On the host, where sources are tested, the exact function.
__device__ __forceinline__ float approximate_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(result) : \"f\"(x));
  return result;
#else
  return exp2f(x);
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
    let has_logistic = calls("logistic(");
    sources.extend((has_logistic || calls("approximate_reciprocal(")).then(|| RECIPROCAL.to_owned()));
    sources.extend(has_logistic.then(|| LOGISTIC.to_owned()));
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
  float const a = fminf(fabsf(x), 15.0f);
  // The upper tail of the normal distribution at a: exp(-a²/2) · n(a) / ((a · n(a) + d(a)) · √2π), with polynomials n
  // and d. First exp(-a²/2) = 2^k · e^r.
  float const square = __fmul_rn(a, a), square_low = fmaf(a, a, -square);
  float const shifted = fmaf(square, -0x1.715476p-1f, 0x1.8p23f), k = shifted - 0x1.8p23f;
  // ln 2 in two parts, the first short enough for k times it to be exact.
  float const part = fmaf(k, -0x1.7f7d1cp-20f, fmaf(k, -0x1.62e4p-1f, -0.5f * square));
  float const r = fmaf(-0.5f, square_low, part);
  float q = 1.98412698e-4f;
  q = fmaf(q, r, 1.38888889e-3f);
  q = fmaf(q, r, 8.33333333e-3f);
  q = fmaf(q, r, 4.16666667e-2f);
  q = fmaf(q, r, 1.66666667e-1f);
  q = fmaf(q, r, 0.5f);
  // 1/√2π, which is 2.84e-8 of it too large.
  float const c = 0.398942292f;
  float const power = fmaf(fmaf(q, r * r, r), c, c);
  float n = 0x1.929c84p-7f, d = 0x1.2c63a0p-20f;
  n = fmaf(n, a, 0x1.d6418ep-4f);
  n = fmaf(n, a, 0x1.fd2420p-2f);
  n = fmaf(n, a, 0x1.261f66p+0f);
  n = fmaf(n, a, 0x1.40d932p+0f);
  d = fmaf(d, a, 0x1.90e800p-7f);
  d = fmaf(d, a, 0x1.da7048p-4f);
  d = fmaf(d, a, 0x1.d8584cp-2f);
  d = fmaf(n, a, fmaf(d, a, 1.0f));
  // The quotient m / d, with what rounding m and c lost.
  float const m = __fmul_rn(power, n), m_low = fmaf(m, -2.84e-8f, fmaf(power, n, -m));
  float const inverse = approximate_reciprocal(d), estimate = __fmul_rn(m, inverse);
  float const quotient = fmaf(fmaf(-d, estimate, m) + m_low, inverse, estimate);
  // Near 0, the tail is 1/2 - a · w(a²).
  float w = 0x1.bfbf5cp-14f;
  w = fmaf(w, square, -0x1.367f28p-10f);
  w = fmaf(w, square, 0x1.46ccf8p-7f);
  w = fmaf(w, square, -0x1.105832p-4f);
  w = fmaf(w, square, 0x1.988454p-2f);
  // Beyond 9, the tail is 2^64 times as large, so that it is not subnormal.
  bool const is_far = a > 9.0f;
  uint32_t const exponent = (__float_as_uint(shifted) << 23) + (is_far ? 64u << 23 : 0u);
  float const tail = a < 0.6f ? fmaf(-w, a, 0.5f) : __uint_as_float(__float_as_uint(quotient) + exponent);
  // Below -15: -0, and NaN of -inf.
  float const left = a < 15.0f ? __fmul_rn(x, tail) * (is_far ? 0x1p-64f : 1.0f) : x * 0.0f;
  return x > 0.0f ? (is_far ? x : fmaf(-x, tail, x)) : left;"
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
