inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.ends = static_cast<int32_t const *>(p.operands[0]);
  result.to = static_cast<int32_t *>(p.outputs[0]);
  result.multiple = divisor_of(problem.r);
  result.packets = problem.e;
  result.ctas = ctas_of(result.packets);
  return result;
}
