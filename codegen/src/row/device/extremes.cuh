// NaN propagates, and -0 is below +0.
{% for name, sign, joined in [["max", ">", "&"], ["min", "<", "|"]] %}
__device__ __forceinline__ float op_{{ name }}(float a, float b) {
#if defined(FOURFOLD_BY_INSTRUCTION)
  float result;
  asm("{{ name }}.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a != a || b != b ? float_of(kMagnitudeBits) : a == b ? float_of(bits_of(a) {{ joined }} bits_of(b)) : a {{ sign }} b ? a : b;
#endif
}
{% endfor %}
