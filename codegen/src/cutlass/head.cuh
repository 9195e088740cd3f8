// Precedes CUTLASS's headers. Either nvcc compiles the whole source, or two compilers compile its parts in parallel.
// With FOURFOLD_DEVICE, nvcc sees only the kernel. With FOURFOLD_HOST, the host compiler sees only the code that calls
// it.
#ifndef FOURFOLD_HEAD
#define FOURFOLD_HEAD

#ifdef FOURFOLD_HOST
// CUTLASS's device code is never called here, but it names functions that only nvcc declares.
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// Without nvcc's version macro, this header is empty, and its include guard keeps it so. No kernel uses Volta's WMMA.
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
#include "cutlass/arch/wmma.h"
#define __CUDACC_VER_MAJOR__ (CUDART_VERSION / 1000)
#define __CUDACC_VER_MINOR__ (CUDART_VERSION % 1000 / 10)
extern uint3 const threadIdx, blockIdx;
extern dim3 const blockDim, gridDim;
void __syncthreads();
void __syncwarp(unsigned = 0xFFFFFFFFu);
void __threadfence();
unsigned __float_as_uint(float);
float __uint_as_float(unsigned);
float __int_as_float(int);
double __longlong_as_double(long long);
unsigned __byte_perm(unsigned, unsigned, unsigned);
unsigned __vsub4(unsigned, unsigned);
int __dp4a(int, int, int);
unsigned __dp4a(unsigned, unsigned, unsigned);
unsigned __reduce_max_sync(unsigned, unsigned);
template <class T>
T __shfl_sync(unsigned, T, int, int = 32);
template <class T>
T __shfl_xor_sync(unsigned, T, int, int = 32);
template <class T>
T __hfma2(T, T, T);
template <class T>
T atomicAdd(T *, T);
template <class T>
T atomicMax(T *, T);
template <class T>
T atomicMin(T *, T);
template <class T>
T atomicCAS(T *, T, T);
namespace cutlass::arch {
int SmId();
}
#endif

#include "cutlass/version.h"

// Replaces CuTe's tuples, whose instantiation dominates compile time. Constructing or reading an empty element
// instantiates nothing, and no function is instantiated only for its return type. Other elements have CuTe's offsets.
#if CUTLASS_VERSION == 420 || CUTLASS_VERSION == 450
#include <cute/config.hpp>
#include <cute/util/type_traits.hpp>
#include <cute/numeric/integral_constant.hpp>
#include <cute/numeric/integer_sequence.hpp>
#include <cute/container/cuda_types.hpp>
#include <cute/container/type_list.hpp>

// Includes CuTe's tuple under another namespace, so that its include guard skips later includes.
namespace cute_replaced {
using namespace cute;
}
#define cute cute_replaced
#include <cute/container/tuple.hpp>
#undef cute

namespace cute {

template <class... T>
struct tuple;

namespace eso {

struct none {};
// Skips four types per recursion. `none` beyond the last type.
template <size_t I, class... T>
struct far {
  using type = none;
};
template <size_t I, class... T>
struct pick : far<I, T...> {};
template <class T0, class... T>
struct pick<0, T0, T...> {
  using type = T0;
};
template <class T0, class T1, class... T>
struct pick<1, T0, T1, T...> {
  using type = T1;
};
template <class T0, class T1, class T2, class... T>
struct pick<2, T0, T1, T2, T...> {
  using type = T2;
};
template <class T0, class T1, class T2, class T3, class... T>
struct pick<3, T0, T1, T2, T3, T...> {
  using type = T3;
};
template <size_t I, class T0, class T1, class T2, class T3, class... T>
struct far<I, T0, T1, T2, T3, T...> : pick<I - 4, T...> {};

// The type of a read: an empty element by value, any other by reference.
template <class T, bool = is_empty<T>::value>
struct read {
  using type = T;
  using constant = T const &;
  using left = T &;
  using right = T &&;
};
template <class T>
struct read<T, true> {
  using type = T;
  using constant = T;
  using left = T;
  using right = T;
};
template <size_t I, class... T>
using element = read<typename pick<I, T...>::type>;

template <bool IsFirstEmpty, bool IsRestEmpty, class... T>
struct ESO;
template <class First, class... Rest>
struct storage {
  using type = ESO<__is_empty(First), (__is_empty(Rest) && ...), First, Rest...>;
};

template <class First, class... Rest>
struct ESO<false, true, First, Rest...> {
  CUTE_HOST_DEVICE constexpr ESO() : first_{} {}
  CUTE_HOST_DEVICE constexpr ESO(First const &first, Rest const &...) : first_{first} {}
  First first_;
};

template <class First, class... Rest>
struct ESO<true, false, First, Rest...> {
  CUTE_HOST_DEVICE constexpr ESO() : rest_{} {}
  CUTE_HOST_DEVICE constexpr ESO(First const &, Rest const &...rest) : rest_{rest...} {}
  typename storage<Rest...>::type rest_;
};

template <class First, class... Rest>
struct ESO<false, false, First, Rest...> {
  CUTE_HOST_DEVICE constexpr ESO() : first_{}, rest_{} {}
  CUTE_HOST_DEVICE constexpr ESO(First const &first, Rest const &...rest) : first_{first}, rest_{rest...} {}
  First first_;
  typename storage<Rest...>::type rest_;
};

template <bool IsEmpty, class... T>
struct base;
template <class... T>
struct base<true, T...> {
  base() = default;
  CUTE_HOST_DEVICE constexpr base(T const &...) {}
};
template <class... T>
struct base<false, T...> : storage<T...>::type {
  CUTE_HOST_DEVICE constexpr base() {}
  CUTE_HOST_DEVICE constexpr base(T const &...t) : storage<T...>::type(t...) {}
};

template <size_t I, class S>
CUTE_HOST_DEVICE constexpr auto &&at(S &&s) {
  if constexpr (I == 0) {
    return static_cast<S &&>(s).first_;
  } else if constexpr (I == 1) {
    return static_cast<S &&>(s).rest_.first_;
  } else if constexpr (I == 2) {
    return static_cast<S &&>(s).rest_.rest_.first_;
  } else if constexpr (I == 3) {
    return static_cast<S &&>(s).rest_.rest_.rest_.first_;
  } else {
    return at<I - 4>(static_cast<S &&>(s).rest_.rest_.rest_.rest_);
  }
}

}  // namespace eso

template <class... T>
struct tuple : eso::base<(__is_empty(T) && ...), T...> {
  using eso::base<(__is_empty(T) && ...), T...>::base;
  tuple() = default;
};

template <>
struct tuple<> {};

template <class... T>
tuple(T const &...) -> tuple<T...>;

template <class... T>
CUTE_HOST_DEVICE constexpr tuple<T...> make_tuple(T const &...t) {
  if constexpr ((__is_empty(T) && ...)) {
    return {};
  } else {
    return {t...};
  }
}

template <size_t I, class... T>
CUTE_HOST_DEVICE constexpr typename eso::element<I, T...>::constant get(tuple<T...> const &t) noexcept {
  static_assert(I < sizeof...(T), "Index out of range");
  if constexpr (__is_empty(typename eso::element<I, T...>::type)) {
    return {};
  } else {
    return eso::at<I>(t);
  }
}

template <size_t I, class... T>
CUTE_HOST_DEVICE constexpr typename eso::element<I, T...>::left get(tuple<T...> &t) noexcept {
  static_assert(I < sizeof...(T), "Index out of range");
  if constexpr (__is_empty(typename eso::element<I, T...>::type)) {
    return {};
  } else {
    return eso::at<I>(t);
  }
}

template <size_t I, class... T>
CUTE_HOST_DEVICE constexpr typename eso::element<I, T...>::right get(tuple<T...> &&t) noexcept {
  static_assert(I < sizeof...(T), "Index out of range");
  if constexpr (__is_empty(typename eso::element<I, T...>::type)) {
    return {};
  } else {
    return static_cast<typename eso::element<I, T...>::right>(eso::at<I>(t));
  }
}

template <class X, class... T>
CUTE_HOST_DEVICE constexpr auto find(tuple<T...> const &) noexcept {
  return C<find_true_v<is_same_v<X, T>...>>{};
}

namespace detail {
template <class T>
auto has_tuple_size(T *) -> bool_constant<(0 <= tuple_size<T>::value)>;
auto has_tuple_size(...) -> false_type;

template <class T0, class T1, size_t... I0, size_t... I1>
CUTE_HOST_DEVICE constexpr auto tuple_cat(T0 const &t0, T1 const &t1, index_sequence<I0...>, index_sequence<I1...>) {
  return cute::make_tuple(get<I0>(t0)..., get<I1>(t1)...);
}
template <class T0, class T1, class T2, size_t... I0, size_t... I1, size_t... I2>
CUTE_HOST_DEVICE constexpr auto tuple_cat(T0 const &t0, T1 const &t1, T2 const &t2, index_sequence<I0...>,
                                          index_sequence<I1...>, index_sequence<I2...>) {
  return cute::make_tuple(get<I0>(t0)..., get<I1>(t1)..., get<I2>(t2)...);
}

template <class T0, class T1>
struct tuple_cat_static;
template <class... T0s, class... T1s>
struct tuple_cat_static<tuple<T0s...>, tuple<T1s...>> {
  using type = tuple<T0s..., T1s...>;
};

template <class A, class B, size_t... I>
CUTE_HOST_DEVICE constexpr auto equal_impl(A const &a, B const &b, index_sequence<I...>) {
  return (true_type{} && ... && (get<I>(a) == get<I>(b)));
}
}  // namespace detail

template <class T>
struct is_tuple : decltype(detail::has_tuple_size((T *)0)) {};
template <class T>
static constexpr bool is_tuple_v = is_tuple<T>::value;

CUTE_HOST_DEVICE constexpr tuple<> tuple_cat() { return {}; }

template <class Tuple, __CUTE_REQUIRES(is_tuple<Tuple>::value)>
CUTE_HOST_DEVICE constexpr Tuple const &tuple_cat(Tuple const &t) {
  return t;
}

template <class T0, class T1>
CUTE_HOST_DEVICE constexpr auto tuple_cat(T0 const &t0, T1 const &t1) {
  if constexpr (is_static<T0>::value && is_static<T1>::value && is_tuple<T0>::value && is_tuple<T1>::value) {
    return typename detail::tuple_cat_static<T0, T1>::type{};
  } else {
    return detail::tuple_cat(t0, t1, make_index_sequence<tuple_size<T0>::value>{},
                             make_index_sequence<tuple_size<T1>::value>{});
  }
}

template <class T0, class T1, class T2>
CUTE_HOST_DEVICE constexpr auto tuple_cat(T0 const &t0, T1 const &t1, T2 const &t2) {
  return detail::tuple_cat(t0, t1, t2, make_index_sequence<tuple_size<T0>::value>{},
                           make_index_sequence<tuple_size<T1>::value>{}, make_index_sequence<tuple_size<T2>::value>{});
}

template <class T0, class T1, class T2, class T3, class... Ts>
CUTE_HOST_DEVICE constexpr auto tuple_cat(T0 const &t0, T1 const &t1, T2 const &t2, T3 const &t3, Ts const &...ts) {
  return cute::tuple_cat(cute::tuple_cat(t0, t1, t2), cute::tuple_cat(t3, ts...));
}

template <class A, class B, __CUTE_REQUIRES(is_tuple<A>::value &&is_tuple<B>::value)>
CUTE_HOST_DEVICE constexpr auto operator==(A const &a, B const &b) {
  if constexpr (tuple_size<A>::value == tuple_size<B>::value) {
    return detail::equal_impl(a, b, make_index_sequence<tuple_size<A>::value>{});
  } else {
    return false_type{};
  }
}
template <class A, class B, __CUTE_REQUIRES(is_tuple<A>::value ^ is_tuple<B>::value)>
CUTE_HOST_DEVICE constexpr auto operator==(A const &, B const &) {
  return false_type{};
}
template <class A, class B, __CUTE_REQUIRES(is_tuple<A>::value &&is_tuple<B>::value)>
CUTE_HOST_DEVICE constexpr auto operator!=(A const &a, B const &b) {
  return !(a == b);
}
template <class A, class B, __CUTE_REQUIRES(is_tuple<A>::value ^ is_tuple<B>::value)>
CUTE_HOST_DEVICE constexpr auto operator!=(A const &, B const &) {
  return true_type{};
}

// Prints nothing.
template <class Tuple, __CUTE_REQUIRES(is_tuple<Tuple>::value)>
CUTE_HOST_DEVICE void print(Tuple const &) {}
template <class Tuple, __CUTE_REQUIRES(is_tuple<Tuple>::value)>
CUTE_HOST std::ostream &operator<<(std::ostream &stream, Tuple const &) {
  return stream;
}

}  // namespace cute

namespace CUTE_STL_NAMESPACE {
template <class... T>
struct tuple_size<cute::tuple<T...>> : CUTE_STL_NAMESPACE::integral_constant<size_t, sizeof...(T)> {};
template <size_t I, class... T>
struct tuple_element<I, cute::tuple<T...>> : cute::eso::pick<I, T...> {};
}  // namespace CUTE_STL_NAMESPACE
#ifdef CUTE_STL_NAMESPACE_IS_CUDA_STD
namespace std {
template <class... T>
struct tuple_size<cute::tuple<T...>> : CUTE_STL_NAMESPACE::integral_constant<size_t, sizeof...(T)> {};
template <size_t I, class... T>
struct tuple_element<I, cute::tuple<T...>> : cute::eso::pick<I, T...> {};
}  // namespace std
#endif
#endif  // CUTLASS_VERSION

#endif  // FOURFOLD_HEAD
