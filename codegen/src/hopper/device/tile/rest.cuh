// What the kernel before leaves of the tokens: it is decoded while the first tiles are computed.

#ifndef FOURFOLD_HOST
// The warps that decode it. Whoever takes a unit waits for nobody, so that what others wait for comes.
template <class V>
CUTLASS_DEVICE void decode_rest(Parameters const &p) {
  constexpr unsigned kUnitsOfSlab = V::kTokens / kUnitTokens;
  static_assert(kSlabBlocks * 4 == 32 && 32 % kUnitTokens == 0);
  Rest const &rest = p.rest;
  if (rest.units == 0) {
    return;
  }
  TokenMatrix const matrix{p.tokens,    p.token_scales, rest.tokens, static_cast<int>(p.row_bytes),
                           rest.panel_rows, p.token_blocks, p.atoms};
  unsigned const word = lane() % 4, of_first = rest.first_tiles.number * rest.slabs.number;
  // Behind that counters are zero.
  wait_for_kernel_before();
  CUTLASS_PRAGMA_NO_UNROLL
  for (int taken = take_next(rest.taken); taken < rest.units; taken = take_next(rest.taken)) {
    unsigned const unit = taken, before = unit / kUnitsOfSlab + rest.first_tiles.number * rest.first_slabs;
    // The slabs of the first tiles in the order of K, then those of one tile after the other.
    unsigned tile, slab;
    if (before < of_first) {
      slab = rest.first_tiles.divide(before);
      tile = before - slab * rest.first_tiles.number;
    } else {
      unsigned const behind = rest.slabs.divide(before - of_first);
      slab = before - of_first - behind * rest.slabs.number;
      tile = behind + rest.first_tiles.number;
    }
    unsigned const batch = rest.tiles_m.divide(tile), block = slab * kSlabBlocks + lane() / 4;
    unsigned const token = (tile - batch * rest.tiles_m.number) * V::kTokens + unit % kUnitsOfSlab * kUnitTokens;
    TokenRun run(matrix, batch * p.m + token, batch, token, block, word);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int left = min(kUnitTokens, p.m - static_cast<int>(token)); left > 0; --left, run.next(matrix)) {
      run.decode_all<false>(word, block * kAtomsPerBlock < static_cast<unsigned>(p.atoms));
    }
    count_up(rest.decoded + tile * rest.slabs.number + slab);
  }
}

// Waits until a slab of a tile's tokens was decoded, which is for the thread that loads them.
template <class V>
CUTLASS_DEVICE void wait_for_slab(Parameters const &p, Work const &here, unsigned slab) {
  unsigned const tile = here.batch * p.tiles_m + here.tile_m;
  if (tile >= p.rest.first_tiles.number || slab >= static_cast<unsigned>(p.rest.first_slabs)) {
    wait_for_count(p.rest.decoded + tile * p.rest.slabs.number + slab, V::kTokens / kUnitTokens);
  }
}
#endif
