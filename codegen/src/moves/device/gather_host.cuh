inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.from = static_cast<uint8_t const *>(p.operands[0]);
  result.indices = static_cast<int32_t const *>(p.operands[1]);
  result.to = static_cast<uint8_t *>(p.outputs[0]);
  result.extent = problem.a;
  result.slice_bytes = problem.i;
  result.count = divisor_of(problem.c);
  if (problem.o == 0 || problem.i == 0) {
    result.slice = divisor_of(1);
    result.packets = problem.c;
  } else {
    Alignment alignment;
    alignment.add(result.to);
    // Nothing is read from an operand without elements.
    alignment.add(problem.a > 0 ? result.from : nullptr);
    alignment.add(result.slice_bytes);
    result.packet = alignment.bytes();
    result.slice = divisor_of(result.slice_bytes / result.packet);
    result.packets = static_cast<uint64_t>(problem.o) * problem.c * result.slice.value;
  }
  result.ctas = ctas_of(result.packets);
  return result;
}
