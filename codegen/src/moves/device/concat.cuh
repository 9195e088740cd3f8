constexpr int kOperands = {{ operands }};

struct Parameters {
  uint8_t const *from[kOperands];
  uint8_t *to;
  // Bytes of a row of each operand, and packets of a row of the result before them.
  uint64_t rows[kOperands], starts[kOperands];
  Divisor row;
  uint32_t packet;
  uint64_t packets, ctas;
};

// The address of a packet in its operand.
FOURFOLD_BOTH inline uint8_t const *find(Parameters const &p, uint64_t number) {
  uint64_t const row = divide(number, p.row);
  uint8_t const *from = p.from[0];
  uint64_t bytes = p.rows[0], start = 0;
  for (int operand = 1; operand < kOperands; ++operand) {
    if (p.starts[operand] <= number) {
      from = p.from[operand];
      bytes = p.rows[operand];
      start = p.starts[operand];
    }
  }
  return from + row * bytes + (number - start) * p.packet;
}

#ifndef FOURFOLD_HOST
__device__ __forceinline__ void move(Parameters const &p) {
  wait_for_grids();
  with_packets(p.packet, [&](auto bytes) {
    constexpr int kBytes = decltype(bytes)::kValue;
    write_packets<kBytes>(p.packets, p.to, [&](uint64_t number, Packet<kBytes> &packet) {
      packet = read<kBytes>(find(p, number));
      return true;
    });
  });
}
#endif
