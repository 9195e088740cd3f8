inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.ids = static_cast<int32_t const *>(p.operands[0]);
  result.positions = static_cast<int32_t *>(p.outputs[0]);
  result.rows = static_cast<int32_t *>(p.outputs[1]);
  result.ends = static_cast<int32_t *>(p.outputs[2]);
  result.count = problem.m;
  result.groups = problem.e;
  result.columns = divisor_of(problem.c);
  result.ctas = result.groups;
  return result;
}
