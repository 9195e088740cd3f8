inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.from = static_cast<uint8_t const *>(p.operands[0]);
  result.ends = static_cast<int32_t const *>(p.operands[1]);
  result.scale_ends = static_cast<int32_t const *>(p.operands[2]);
  result.to = static_cast<uint8_t *>(p.outputs[0]);
  result.rows = problem.m;
  result.blocks = problem.b;
  result.groups = problem.e;
  uint64_t const row_tiles = (static_cast<uint64_t>(problem.p) + 127) / 128, block_tiles = (result.blocks + 3) / 4;
  result.block_tiles = divisor_of(block_tiles);
  Alignment alignment;
  alignment.add(result.from);
  alignment.add(result.blocks);
  result.is_wide = alignment.bytes() >= 4;
  result.packets = row_tiles * block_tiles * 32;
  result.ctas = ctas_of(result.packets);
  return result;
}
