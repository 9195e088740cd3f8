// Reductions: the value of an empty row, one element, two parts.
struct Sum {
  static constexpr uint32_t kNone = 0u;
  __device__ static float element(float x) { return x; }
  __device__ static float combine(float a, float b) { return __fadd_rn(a, b); }
};
struct Max {
  static constexpr uint32_t kNone = 0xFF800000u;
  __device__ static float element(float x) { return x; }
  __device__ static float combine(float a, float b) { return op_max(a, b); }
};
struct Min {
  static constexpr uint32_t kNone = 0x7F800000u;
  __device__ static float element(float x) { return x; }
  __device__ static float combine(float a, float b) { return op_min(a, b); }
};
struct Amax {
  static constexpr uint32_t kNone = 0u;
  __device__ static float element(float x) { return fabsf(x); }
  __device__ static float combine(float a, float b) { return op_max(a, b); }
};
