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
    std::iter::once(device_functions(kinds)).chain(own).collect::<Vec<_>>().join("\n")
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
