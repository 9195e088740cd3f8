// Decodes the part of A that decode_a_kernel leaves, while other warps compute the first tiles.

#ifndef FOURFOLD_HOST
// Runs in warps that have no other role. Once a warp has taken a unit, it never waits, so every unit that a producer of
// A waits for is eventually decoded.
template <class V>
CUTLASS_DEVICE void decode_ahead(Parameters const &p) {
  constexpr unsigned kUnitsPerSlab = V::kTileM / kUnitM;
  static_assert(kSlabBlocks * 4 == 32 && 32 % kUnitM == 0);
  DecodeAhead const &ahead = p.ahead;
  if (ahead.units == 0) {
    return;
  }
  DecodeAMatrix const matrix{p.a,           p.sfa, ahead.decoded_a, static_cast<int>(row_bytes_of_a(p.row_bytes)),
                             ahead.panel_m, p.atoms_m, p.atoms_k};
  unsigned const word = lane() % 4, of_first = ahead.first_tiles.number * ahead.slabs.number;
  // The previous kernel zeroes the counters.
  grid_dependency_wait();
  CUTLASS_PRAGMA_NO_UNROLL
  for (int taken = fetch_next(ahead.next_unit); taken < ahead.units; taken = fetch_next(ahead.next_unit)) {
    unsigned const unit = taken, before = unit / kUnitsPerSlab + ahead.first_tiles.number * ahead.first_slabs;
    // First the slabs of the first tiles, in K order. Then all slabs of each later tile in turn.
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

// Waits until a slab of a tile is decoded. Only the thread that loads A calls it.
template <class V>
CUTLASS_DEVICE void wait_for_slab(Parameters const &p, WorkTile const &work, unsigned slab) {
  unsigned const tile = work.batch * p.tiles_m + work.m_idx;
  if (tile >= p.ahead.first_tiles.number || slab >= static_cast<unsigned>(p.ahead.first_slabs)) {
    acquire_count(p.ahead.decoded_units + tile * p.ahead.slabs.number + slab, V::kTileM / kUnitM);
  }
}
#endif
