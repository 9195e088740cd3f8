// The first index that was outside its range, and its position.
struct Fault {
  uint32_t is_found;
  int32_t index;
  uint64_t position;
};

struct Parameters {
  uint8_t const *from;
  int32_t const *indices;
  uint8_t *to;
  Fault *fault;
  // Packets of a slice, indices, the extent that they index, bytes of a slice.
  Divisor slice, count;
  uint64_t extent, slice_bytes;
  // Bytes of a packet; 0 if the result has no elements, whose indices are checked all the same.
  uint32_t packet;
  uint64_t packets, ctas;
};

// The place of a packet: its slice among the indices, the slices before it in the operand, and its bytes within.
struct Place {
  uint64_t position, outer, within;
};

FOURFOLD_BOTH inline Place find(Parameters const &p, uint64_t number) {
  uint64_t position = divide(number, p.slice);
  uint64_t const outer = divide(position, p.count);
  return {position, outer, number * p.packet};
}

#ifndef FOURFOLD_HOST
// Returns whether an index is inside; otherwise reports it.
__device__ __forceinline__ bool check_index(Parameters const &p, int32_t index, uint64_t position) {
  bool const is_inside = index >= 0 && static_cast<uint64_t>(index) < p.extent;
  if (!is_inside && atomicCAS(&p.fault->is_found, 0u, 1u) == 0u) {
    p.fault->index = index;
    p.fault->position = position;
  }
  return is_inside;
}

__device__ __forceinline__ void move(Parameters const &p) {
  wait_for_grids();
  if (p.packet == 0) {
    for (int turn = 0; turn < kTurns; ++turn) {
      uint64_t const position = (static_cast<uint64_t>(blockIdx.x) * kTurns + turn) * kThreads + threadIdx.x;
      if (position < p.packets) {
        check_index(p, p.indices[position], position);
      }
    }
    return;
  }
  with_packets(p.packet, [&](auto bytes) {
    constexpr int kBytes = decltype(bytes)::kValue;
    write_packets<kBytes>(p.packets, p.to, [&](uint64_t number, Packet<kBytes> &packet) {
      Place const place = find(p, number);
      int32_t const index = p.indices[place.position];
      if (!check_index(p, index, place.position)) {
        return false;
      }
      packet = read<kBytes>(p.from + (place.outer * p.extent + static_cast<uint64_t>(index)) * p.slice_bytes + place.within);
      return true;
    });
  });
}
#endif
