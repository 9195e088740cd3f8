// The subset of CUTLASS and CuTe types that sm_90a kernels use, so that they build without CUTLASS. The names match
// CUTLASS, because the code of outputs is shared with kernels for other targets.
#ifndef FOURFOLD_HEAD
#define FOURFOLD_HEAD

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef FOURFOLD_HOST
// Declares intrinsics that only nvcc knows. The host compiler parses device code, but none of it is called.
extern uint3 const threadIdx, blockIdx;
extern dim3 const blockDim, gridDim;
void __syncthreads();
void __syncwarp(unsigned = 0xFFFFFFFFu);
void __threadfence();
unsigned __float_as_uint(float);
float __uint_as_float(unsigned);
unsigned __byte_perm(unsigned, unsigned, unsigned);
unsigned __reduce_max_sync(unsigned, unsigned);
template <class T>
T __shfl_sync(unsigned, T, int, int = 32);
template <class T>
T __shfl_xor_sync(unsigned, T, int, int = 32);
template <class T>
T __ldg(T const *);
template <class T>
T atomicAdd(T *, T);
template <class T>
T atomicMax(T *, T);
template <class T>
T atomicMin(T *, T);
#endif

#if defined(__CUDACC__)
#define CUTLASS_DEVICE __forceinline__ __device__
#define CUTLASS_HOST_DEVICE __forceinline__ __host__ __device__
#else
#define CUTLASS_DEVICE inline
#define CUTLASS_HOST_DEVICE inline
#endif
#if defined(__CUDA_ARCH__)
#define CUTLASS_PRAGMA_UNROLL _Pragma("unroll")
#define CUTLASS_PRAGMA_NO_UNROLL _Pragma("unroll 1")
#else
#define CUTLASS_PRAGMA_UNROLL
#define CUTLASS_PRAGMA_NO_UNROLL
#endif

namespace cutlass {

enum class Status {
  kSuccess,
  kErrorMisalignedOperand,
  kErrorInvalidDataType,
  kErrorInvalidLayout,
  kErrorInvalidProblem,
  kErrorNotSupported,
  kErrorWorkspaceNull,
  kErrorInternal,
  kErrorArchMismatch,
  kErrorInsufficientDriver,
  kErrorMemoryAllocation,
  kInvalid
};

template <class T>
struct sizeof_bits {
  static constexpr int value = 8 * sizeof(T);
};

// Narrow floating-point formats. Conversions from f32 round to nearest even; FP8 conversions saturate.
struct half_t {
  uint16_t bits;
  half_t() = default;
  CUTLASS_HOST_DEVICE explicit half_t(float x) : bits(__half_as_ushort(__float2half_rn(x))) {}
  CUTLASS_HOST_DEVICE operator float() const { return __half2float(__ushort_as_half(bits)); }
};

struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  CUTLASS_HOST_DEVICE explicit bfloat16_t(float x) : bits(__bfloat16_as_ushort(__float2bfloat16_rn(x))) {}
  CUTLASS_HOST_DEVICE operator float() const {
    // A shift: the conversion in the CUDA headers takes one more PRMT per pair.
    uint32_t const wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof(x));
    return x;
  }
};

template <__nv_fp8_interpretation_t Kind>
struct float8 {
  uint8_t bits;
  float8() = default;
  CUTLASS_HOST_DEVICE explicit float8(float x) : bits(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, Kind)) {}
  CUTLASS_HOST_DEVICE operator float() const { return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, Kind))); }
};
using float_e4m3_t = float8<__NV_E4M3>;
using float_e5m2_t = float8<__NV_E5M2>;

template <class T, int N>
struct Array {
  T storage[N];
  CUTLASS_HOST_DEVICE constexpr T &operator[](int i) { return storage[i]; }
  CUTLASS_HOST_DEVICE constexpr T const &operator[](int i) const { return storage[i]; }
  CUTLASS_HOST_DEVICE void fill(T const &value) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) {
      storage[i] = value;
    }
  }
  CUTLASS_HOST_DEVICE void clear() { fill(T(0)); }
};

template <class T, int N, int Alignment = sizeof_bits<T>::value * N / 8>
struct alignas(Alignment) AlignedArray : Array<T, N> {};

// Converts two elements at a time, as the hardware has packed conversion instructions.
template <class Pair, class T>
CUTLASS_HOST_DEVICE Pair pair_at(T const *at) {
  static_assert(sizeof(Pair) == 2 * sizeof(T), "a pair has two numbers");
  Pair pair;
  std::memcpy(&pair, at, sizeof(pair));
  return pair;
}
CUTLASS_HOST_DEVICE void narrow(half_t *to, float2 x) {
  __half2 const pair = __floats2half2_rn(x.x, x.y);
  std::memcpy(to, &pair, sizeof(pair));
}
CUTLASS_HOST_DEVICE void narrow(bfloat16_t *to, float2 x) {
  __nv_bfloat162 const pair = __floats2bfloat162_rn(x.x, x.y);
  std::memcpy(to, &pair, sizeof(pair));
}
template <__nv_fp8_interpretation_t Kind>
CUTLASS_HOST_DEVICE void narrow(float8<Kind> *to, float2 x) {
  uint16_t const pair = __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, Kind);
  std::memcpy(to, &pair, sizeof(pair));
}
CUTLASS_HOST_DEVICE float2 widen(half_t const *from) { return __half22float2(pair_at<__half2>(from)); }
CUTLASS_HOST_DEVICE float2 widen(bfloat16_t const *from) { return float2{float(from[0]), float(from[1])}; }
template <__nv_fp8_interpretation_t Kind>
CUTLASS_HOST_DEVICE float2 widen(float8<Kind> const *from) {
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair_at<uint16_t>(from), Kind)));
}

template <class To, class From, int N>
struct NumericArrayConverter;

template <class To, int N>
struct NumericArrayConverter<To, float, N> {
  CUTLASS_HOST_DEVICE Array<To, N> operator()(Array<float, N> const &from) const {
    Array<To, N> to;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i + 1 < N; i += 2) {
      narrow(&to.storage[i], float2{from[i], from[i + 1]});
    }
    if constexpr (N % 2 == 1) {
      to[N - 1] = To(from[N - 1]);
    }
    return to;
  }
};

template <class From, int N>
struct NumericArrayConverter<float, From, N> {
  CUTLASS_HOST_DEVICE Array<float, N> operator()(Array<From, N> const &from) const {
    Array<float, N> to;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i + 1 < N; i += 2) {
      float2 const pair = widen(&from.storage[i]);
      to[i] = pair.x;
      to[i + 1] = pair.y;
    }
    if constexpr (N % 2 == 1) {
      to[N - 1] = float(from[N - 1]);
    }
    return to;
  }
};

template <int N>
struct NumericArrayConverter<float, float, N> {
  CUTLASS_HOST_DEVICE Array<float, N> operator()(Array<float, N> const &from) const { return from; }
};

}  // namespace cutlass

namespace cute {

using std::conditional_t;
template <class T>
using remove_cvref_t = std::remove_cv_t<std::remove_reference_t<T>>;

template <class T, class U>
CUTLASS_HOST_DEVICE constexpr auto max(T const &t, U const &u) {
  return t < u ? u : t;
}
template <class T, class U>
CUTLASS_HOST_DEVICE constexpr auto min(T const &t, U const &u) {
  return t < u ? t : u;
}

// An integer constant as a type.
template <int Value>
struct Int {
  static constexpr int value = Value;
  CUTLASS_HOST_DEVICE constexpr operator int() const { return Value; }
};
template <int A, int B>
CUTLASS_HOST_DEVICE constexpr Int<A * B> operator*(Int<A>, Int<B>) {
  return {};
}

template <int... I>
struct sequence {};
template <int... I>
CUTLASS_HOST_DEVICE constexpr sequence<I...> to_sequence(std::integer_sequence<int, I...>) {
  return {};
}
template <int N>
using make_seq = decltype(to_sequence(std::make_integer_sequence<int, N>{}));

template <int... I, class F>
CUTLASS_HOST_DEVICE constexpr void for_each(sequence<I...>, F &&f) {
  (f(Int<I>{}), ...);
}

template <class T, int N>
struct array {
  T elements[N];
  CUTLASS_HOST_DEVICE constexpr T &operator[](int i) { return elements[i]; }
  CUTLASS_HOST_DEVICE constexpr T const &operator[](int i) const { return elements[i]; }
};

template <class... T>
struct tuple {};
template <class Last>
struct tuple<Last> {
  Last first;
  tuple() = default;
  CUTLASS_HOST_DEVICE constexpr tuple(Last const &last) : first(last) {}
};
template <class First, class Next, class... Rest>
struct tuple<First, Next, Rest...> {
  First first;
  tuple<Next, Rest...> rest;
  tuple() = default;
  CUTLASS_HOST_DEVICE constexpr tuple(First const &first, Next const &next, Rest const &...rest)
      : first(first), rest(next, rest...) {}
};

template <class Tuple>
struct tuple_size;
template <class... T>
struct tuple_size<tuple<T...>> {
  static constexpr int value = sizeof...(T);
};

template <int I, class Tuple>
CUTLASS_HOST_DEVICE constexpr auto &get(Tuple &t) {
  if constexpr (I == 0) {
    return t.first;
  } else {
    return get<I - 1>(t.rest);
  }
}

template <class Tuple, class F, int... I>
CUTLASS_HOST_DEVICE constexpr auto transform_each(Tuple const &t, F &f, sequence<I...>) {
  return tuple<decltype(f(get<I>(t)))...>(f(get<I>(t))...);
}
template <class Tuple, class F>
CUTLASS_HOST_DEVICE constexpr auto transform(Tuple const &t, F &&f) {
  return transform_each(t, f, make_seq<tuple_size<Tuple>::value>{});
}

}  // namespace cute

#endif  // FOURFOLD_HEAD
