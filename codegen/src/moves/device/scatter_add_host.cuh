inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.from = static_cast<{{ from }}::Code const *>(p.operands[0]);
  result.indices = static_cast<int32_t const *>(p.operands[1]);
  result.to = static_cast<{{ to }}::Code *>(p.outputs[0]);
  result.rows = problem.m;
  result.columns = problem.c;
  uint64_t const tiles = (result.columns + kThreads * kColumns - 1) / (kThreads * kColumns);
  result.tiles = divisor_of(tiles);
  unsigned __int128 const ctas = static_cast<unsigned __int128>(problem.n) * tiles;
  result.ctas = ctas < UINT_MAX ? static_cast<uint64_t>(ctas) : UINT_MAX;
  return result;
}
