// What the kernel before leaves of the rows of A: it is decoded while the first tiles are computed.

#ifndef FOURFOLD_HOST
// The warps that decode it. Whoever takes a unit waits for nobody, so that what others wait for comes.
template <class V>
CUTLASS_DEVICE void decode_ahead(Parameters const &p) {
  constexpr unsigned kUnitsPerSlab = V::kTileM / kUnitM;
  static_assert(kSlabBlocks * 4 == 32 && 32 % kUnitM == 0);
  DecodeAhead const &ahead = p.ahead;
  if (ahead.units == 0) {
    return;
  }
  DecodeAMatrix const matrix{p.a,           p.sfa, ahead.decoded_a, static_cast<int>(p.row_bytes),
                             ahead.panel_m, p.atoms_m, p.atoms_k};
  unsigned const word = lane() % 4, of_first = ahead.first_tiles.number * ahead.slabs.number;
  // Behind that counters are zero.
  grid_dependency_wait();
  CUTLASS_PRAGMA_NO_UNROLL
  for (int taken = fetch_next(ahead.next_unit); taken < ahead.units; taken = fetch_next(ahead.next_unit)) {
    unsigned const unit = taken, before = unit / kUnitsPerSlab + ahead.first_tiles.number * ahead.first_slabs;
    // The slabs of the first tiles in the order of K, then those of one tile after the other.
    unsigned tile, slab;
    if (before < of_first) {
      slab = ahead.first_tiles.divide(before);
      tile = before - slab * ahead.first_tiles.number;
    } else {
      unsigned const behind = ahead.slabs.divide(before - of_first);
      slab = before - of_first - behind * ahead.slabs.number;
      tile = behind + ahead.first_tiles.number;
    }
    unsigned const batch = ahead.tiles_m.divide(tile), block = slab * kSlabBlocks + lane() / 4;
    unsigned const m = (tile - batch * ahead.tiles_m.number) * V::kTileM + unit % kUnitsPerSlab * kUnitM;
    DecodeARun run(matrix, batch * p.m + m, batch, m, block, word);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int left = min(kUnitM, p.m - static_cast<int>(m)); left > 0; --left, run.next(matrix)) {
      run.decode_all<false>(word, block * kAtomsPerBlock < static_cast<unsigned>(p.atoms_k));
    }
    release_add(ahead.decoded_units + tile * ahead.slabs.number + slab);
  }
}

// Waits until a slab of a tile's rows of A was decoded, which is for the thread that loads them.
template <class V>
CUTLASS_DEVICE void wait_for_slab(Parameters const &p, WorkTile const &work, unsigned slab) {
  unsigned const tile = work.batch * p.tiles_m + work.m_idx;
  if (tile >= p.ahead.first_tiles.number || slab >= static_cast<unsigned>(p.ahead.first_slabs)) {
    acquire_count(p.ahead.decoded_units + tile * p.ahead.slabs.number + slab, V::kTileM / kUnitM);
  }
}
#endif
