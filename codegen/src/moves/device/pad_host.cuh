inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.from = static_cast<uint8_t const *>(p.operands[0]);
  result.to = static_cast<uint8_t *>(p.outputs[0]);
  int64_t const extents[] = { {%- for axis in range(axes) %}problem.d{{ axes - 1 - axis }}{{ "" if loop.last else ", " }}{% endfor %}};
  int64_t const operand[] = { {%- for axis in range(axes) %}problem.e{{ axes - 1 - axis }}{{ "" if loop.last else ", " }}{% endfor %}};
  int64_t const low[] = { {%- for axis in range(axes) %}problem.p{{ axes - 1 - axis }}{{ "" if loop.last else ", " }}{% endfor %}};
  Alignment alignment;
  alignment.add(result.from);
  alignment.add(result.to);
  for (int64_t units : {extents[0], operand[0], low[0]}) {
    alignment.add(static_cast<uint64_t>(units) * kUnit);
  }
  result.packet = alignment.bytes();
  result.fill = static_cast<uint32_t>(problem.f) * (kUnit == 1 ? 0x01010101u : kUnit == 2 ? 0x00010001u : 1u);
  uint64_t stride = kUnit;
  result.packets = 1;
  for (int axis = 0; axis < kAxes; ++axis) {
    uint64_t const units = axis == 0 ? result.packet / kUnit : 1;
    result.extents[axis] = divisor_of(extents[axis] / units);
    result.operand[axis] = operand[axis] / units;
    result.low[axis] = low[axis] / units;
    result.strides[axis] = stride * units;
    stride *= operand[axis];
    result.packets *= extents[axis] / units;
  }
  result.ctas = ctas_of(result.packets);
  return result;
}
