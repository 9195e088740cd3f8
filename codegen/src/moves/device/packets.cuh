// A divisor of numbers below 2^63. The reciprocal is 2^(63 + shift) / value, rounded up; 2^shift is at least the value.
struct Divisor {
  uint64_t value, reciprocal;
  uint32_t shift;
};

// The divisor of a value; of 1 for 0, by which nothing is divided.
inline Divisor divisor_of(uint64_t value) {
  value = value > 0 ? value : 1;
  uint32_t shift = 0;
  while (shift < 63 && (uint64_t{1} << shift) < value) {
    ++shift;
  }
  unsigned __int128 const power = static_cast<unsigned __int128>(1) << (63 + shift);
  return {value, static_cast<uint64_t>((power + value - 1) / value), shift};
}

// Divides; returns the quotient, and replaces the number by the remainder.
FOURFOLD_BOTH inline uint64_t divide(uint64_t &number, Divisor const &by) {
#ifdef __CUDA_ARCH__
  uint64_t const quotient = __umul64hi(number << 1, by.reciprocal) >> by.shift;
#else
  unsigned __int128 const product = static_cast<unsigned __int128>(number << 1) * by.reciprocal;
  uint64_t const quotient = static_cast<uint64_t>(product >> 64) >> by.shift;
#endif
  number -= quotient * by.value;
  return quotient;
}

// The greatest power of two, at most 16, that divides all of these addresses and numbers of bytes.
class Alignment {
 public:
  void add(uint64_t bytes) { all_ |= bytes; }
  void add(void const *address) { all_ |= reinterpret_cast<uintptr_t>(address); }
  uint32_t bytes() const { return static_cast<uint32_t>(all_ & (~all_ + 1)); }

 private:
  uint64_t all_ = 16;
};

// Bytes that move at once.
template <int kBytes>
struct Packet;
template <>
struct Packet<1> {
  uint8_t value;
};
template <>
struct Packet<2> {
  uint16_t value;
};
template <>
struct Packet<4> {
  uint32_t value;
};
template <>
struct alignas(8) Packet<8> {
  uint32_t values[2];
};
template <>
struct alignas(16) Packet<16> {
  uint32_t values[4];
};

template <int kBytes>
struct Bytes {
  static constexpr int kValue = kBytes;
};

// The product of numbers that are not negative; -1 beyond 2^62 - 1.
inline int64_t product_of(std::initializer_list<int64_t> numbers) {
  constexpr __int128 kMost = (static_cast<__int128>(1) << 62) - 1;
  __int128 product = 1;
  bool is_zero = false, is_large = false;
  for (int64_t number : numbers) {
    is_zero = is_zero || number == 0;
    product *= is_large ? 1 : number;
    is_large = is_large || product > kMost;
  }
  return is_zero ? 0 : is_large ? -1 : static_cast<int64_t>(product);
}

