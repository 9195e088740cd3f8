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
