// A divisor of numbers below 2^63. The reciprocal is 2^(63 + shift) / value, rounded up, with 2^shift at least the value.
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
  uint64_t const quotient = static_cast<uint64_t>(static_cast<unsigned __int128>(number << 1) * by.reciprocal >> 64) >> by.shift;
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

// CTAs that move this many packets.
inline uint64_t ctas_of(uint64_t packets) { return (packets + kThreads * kTurns - 1) / (kThreads * kTurns); }

#ifndef FOURFOLD_HOST
// Waits for the grids before this one, if they may still run.
__device__ __forceinline__ void wait_for_grids() {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

template <int kBytes>
__device__ __forceinline__ Packet<kBytes> read(uint8_t const *from) {
  return *reinterpret_cast<Packet<kBytes> const *>(from);
}

template <int kBytes>
__device__ __forceinline__ void write(uint8_t *to, Packet<kBytes> const &packet) {
  *reinterpret_cast<Packet<kBytes> *>(to) = packet;
}

// A packet with every word equal to this one.
template <int kBytes>
__device__ __forceinline__ Packet<kBytes> splat(uint32_t word) {
  Packet<kBytes> result;
  if constexpr (kBytes == 1) {
    result.value = static_cast<uint8_t>(word);
  } else if constexpr (kBytes == 2) {
    result.value = static_cast<uint16_t>(word);
  } else if constexpr (kBytes == 4) {
    result.value = word;
  } else {
#pragma unroll
    for (uint32_t &part : result.values) {
      part = word;
    }
  }
  return result;
}

// Writes the packets of this thread: kTurns packets, kThreads apart. `source` reads one, or returns false to skip it.
template <int kBytes, class Source>
__device__ __forceinline__ void write_packets(uint64_t packets, uint8_t *to, Source const &source) {
  uint64_t const first = static_cast<uint64_t>(blockIdx.x) * (kThreads * kTurns) + threadIdx.x;
  Packet<kBytes> held[kTurns];
  bool is_held[kTurns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    uint64_t const packet = first + turn * kThreads;
    is_held[turn] = packet < packets && source(packet, held[turn]);
  }
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    if (is_held[turn]) {
      write<kBytes>(to + (first + turn * kThreads) * kBytes, held[turn]);
    }
  }
}

// Calls `moves` with the number of bytes of a packet as a type.
template <class Moves>
__device__ __forceinline__ void with_packets(uint32_t bytes, Moves const &moves) {
  switch (bytes) {
    case 1: return moves(Bytes<1>{});
    case 2: return moves(Bytes<2>{});
    case 4: return moves(Bytes<4>{});
    case 8: return moves(Bytes<8>{});
    default: return moves(Bytes<16>{});
  }
}
#endif
