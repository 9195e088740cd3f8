[[maybe_unused]] constexpr int kUnit = {{ unit }};
constexpr int kAxes = {{ axes }};

// Axes are innermost first. The extents of the innermost one are in packets.
struct Parameters {
  uint8_t const *from;
  uint8_t *to;
  Divisor extents[kAxes];
  // Elements of the result before those of the operand, elements of the operand, and bytes between two of them.
  uint64_t low[kAxes], operand[kAxes], strides[kAxes];
  uint32_t packet, fill;
  uint64_t packets, ctas;
};

// Finds the offset of a packet in the operand; false if it is padding.
FOURFOLD_BOTH inline bool find(Parameters const &p, uint64_t number, uint64_t &offset) {
  bool is_inside = true;
  offset = 0;
  for (int axis = 0; axis < kAxes; ++axis) {
    uint64_t const quotient = divide(number, p.extents[axis]);
    // Beyond 2^63 where the index is before the operand.
    uint64_t const place = number - p.low[axis];
    is_inside = is_inside && place < p.operand[axis];
    offset += place * p.strides[axis];
    number = quotient;
  }
  return is_inside;
}

#ifndef FOURFOLD_HOST
__device__ __forceinline__ void move(Parameters const &p) {
  wait_for_grids();
  with_packets(p.packet, [&](auto bytes) {
    constexpr int kBytes = decltype(bytes)::kValue;
    write_packets<kBytes>(p.packets, p.to, [&](uint64_t number, Packet<kBytes> &packet) {
      uint64_t offset;
      packet = find(p, number, offset) ? read<kBytes>(p.from + offset) : splat<kBytes>(p.fill);
      return true;
    });
  });
}
#endif
