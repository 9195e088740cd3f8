inline Parameters make_parameters(Problem const &problem, Pointers const &p) {
  Parameters result = {};
  result.from = static_cast<uint8_t const *>(p.operands[0]);
  result.to = static_cast<uint8_t *>(p.outputs[0]);
  result.rows = problem.m;
  result.blocks = problem.b;
  uint64_t const row_tiles = (result.rows + 127) / 128, block_tiles = (result.blocks + 3) / 4;
  result.row_tiles = divisor_of(row_tiles);
  result.block_tiles = divisor_of(block_tiles);
  Alignment alignment;
  alignment.add(kIsToBlocked ? static_cast<void const *>(result.from) : result.to);
  alignment.add(result.blocks);
  result.is_wide = alignment.bytes() >= 4;
  result.packets = problem.l * row_tiles * block_tiles * 32;
  result.ctas = ctas_of(result.packets);
  return result;
}
