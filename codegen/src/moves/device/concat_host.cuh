inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  int64_t const rows[] = { {%- for operand in range(operands) %}problem.r{{ operand }}{{ "" if loop.last else ", " }}{% endfor %}};
  result.to = static_cast<uint8_t *>(p.outputs[0]);
  Alignment alignment;
  alignment.add(result.to);
  for (int operand = 0; operand < kOperands; ++operand) {
    result.from[operand] = static_cast<uint8_t const *>(p.operands[operand]);
    result.rows[operand] = rows[operand];
    alignment.add(result.rows[operand]);
    if (rows[operand] > 0) {
      alignment.add(result.from[operand]);
    }
  }
  result.packet = alignment.bytes();
  uint64_t start = 0;
  for (int operand = 0; operand < kOperands; ++operand) {
    result.starts[operand] = start;
    start += result.rows[operand] / result.packet;
  }
  result.row = divisor_of(start);
  result.packets = problem.o * start;
  result.ctas = ctas_of(result.packets);
  return result;
}
