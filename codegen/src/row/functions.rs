//! Elementwise functions that row kernels have in addition to those of epilogues.
//!
//! `floor`, `ceil` and `round` are exact. The largest errors of CUDA's functions in ulp of f32, as the CUDA Programming
//! Guide states them: 1 (log, log2), 2 (exp2, sin, cos) and 4 (pow). `powf` has the special cases of IEEE 754.

use fourfold_ir::UnaryKind;

use crate::epilogue::device_functions;

/// The device functions `fn_NAME(float) -> float` of these kinds, as one text for compilation by themselves.
pub fn row_functions(kinds: &[UnaryKind]) -> String {
    let own = kinds.iter().filter_map(|kind| {
        let body = body(*kind)?;
        Some(format!("__device__ __forceinline__ float fn_{}(float x) {{\n{body}\n}}\n", kind.name()))
    });
    let faster = kinds.iter().filter_map(|kind| {
        let (body, name) = (faster(*kind)?, kind.name());
        Some(format!(
            "__device__ __noinline__ float exact_{name}(float x) {{ return fn_{name}(x); }}\n\
             __device__ __forceinline__ float row_{name}(float x) {{\n#if defined(__CUDA_ARCH__)\n{body}\n#else\n  \
             return exact_{name}(x);\n#endif\n}}\n"
        ))
    });
    std::iter::once(device_functions(kinds)).chain(own).chain(faster).collect::<Vec<_>>().join("\n")
}

/// The prefix of the function that rows call.
pub(super) fn prefix(kind: UnaryKind) -> &'static str {
    if faster(kind).is_some() { "row" } else { "fn" }
}

/// The body of a function with fewer instructions than the one of epilogues.
fn faster(kind: UnaryKind) -> Option<&'static str> {
    Some(match kind {
        // The steps of both instructions, which need one check of the range.
        UnaryKind::Rsqrt => {
            "\
  if (!(x > 0x1p-100f && x < 0x1p100f)) return exact_rsqrt(x);
  float y;
  asm(\"rsqrt.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x));
  float const estimate = __fmul_rn(x, y), root = fmaf(fmaf(-estimate, estimate, x), 0.5f * y, estimate);
  asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(root));
  return fmaf(y, -fmaf(y, root, -1.0f), y);"
        }
        _ => return None,
    })
}

/// The body of a function that no epilogue has.
fn body(kind: UnaryKind) -> Option<&'static str> {
    Some(match kind {
        UnaryKind::Log => "  return logf(x);",
        UnaryKind::Sin => "  return sinf(x);",
        UnaryKind::Cos => "  return cosf(x);",
        UnaryKind::Floor => "  return floorf(x);",
        UnaryKind::Ceil => "  return ceilf(x);",
        UnaryKind::Round => "  return rintf(x);",
        // Exact for integers: the fraction is then 0.
        UnaryKind::Exp2 => {
            "\
  if (x != x) return x;
  float const bounded = fminf(fmaxf(x, -200.0f), 200.0f), integer = rintf(bounded), fraction = bounded - integer;
  return ldexpf(fraction == 0.0f ? 1.0f : exp2f(fraction), static_cast<int>(integer));"
        }
        // Exact for powers of two, whose significand is 0.5.
        UnaryKind::Log2 => {
            "\
  int exponent = 0;
  float const significand = frexpf(x, &exponent);
  return significand == 0.5f ? static_cast<float>(exponent - 1) : log2f(x);"
        }
        _ => return None,
    })
}
