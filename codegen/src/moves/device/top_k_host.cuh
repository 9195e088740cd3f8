inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.from = static_cast<Code const *>(p.operands[0]);
  result.values = static_cast<Code *>(p.outputs[0]);
  result.indices = static_cast<int32_t *>(p.outputs[1]);
  result.rows = problem.m;
  result.columns = problem.c;
  result.taken = problem.k;
  result.ctas = (result.rows + kThreads / 32 - 1) / (kThreads / 32);
  return result;
}
