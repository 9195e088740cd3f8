// What a warp loads of the weights.

#ifndef FOURFOLD_HOST
// The groups of a CTA in the order in which its warps have them: of two CTAs that share K those come first which the other will write.
// The compiler would find these numbers anew for each group.
struct HeldOrder {
  unsigned groups, others, own, by;
  CUTLASS_DEVICE HeldOrder(unsigned groups, unsigned rank, bool is_of_pair)
      : groups(computed_again(groups)), others(computed_again(is_of_pair ? groups / 2 : 0)), own(computed_again(rank)),
        by(computed_again(is_of_pair ? 2 : 1)) {}
  CUTLASS_DEVICE unsigned group(unsigned place) const {
    return place < others ? 1 - own + place * by : own + (place - others) * by;
  }
};
// A way through them.
struct HeldPlace {
  unsigned group, left;
  CUTLASS_DEVICE explicit HeldPlace(HeldOrder const &order) : group(order.group(0)), left(order.others) {}
  CUTLASS_DEVICE void next(HeldOrder const &order) {
    group = --left == 0 ? order.own : group + order.by;
  }
};

// One lane asks for chunks of a warp's groups.
struct HeldSource {
  using V = Held;
  Parameters const &p;
  HeldOrder const &order;
  HeldPlace here;
  unsigned first_group;
  int batch, chunk, byte;
  uint32_t ring, barriers;
  uint64_t policy = evict_first();

  CUTLASS_DEVICE HeldSource(Parameters const &p, HeldOrder const &order, unsigned first_group, unsigned batch, unsigned chunk,
                            uint32_t ring, uint32_t barriers)
      : p(p), order(order), here(order), first_group(first_group), batch(static_cast<int>(batch)), chunk(static_cast<int>(chunk)),
        byte(static_cast<int>(chunk) * V::kRowBytes), ring(ring), barriers(barriers) {}

  // The tokens, where the second group's weights will be.
  CUTLASS_DEVICE void fetch_tokens() const {
    barrier_expect(barriers + 8, kHeldTokens * V::kRowBytes);
    load_tile(p.token_map, ring + V::kCodeBytes, barriers + 8, byte, 0, batch);
  }

  // The scales of all groups: those of two lie side by side.
  CUTLASS_DEVICE void fetch_scales(unsigned groups, uint32_t scales) const {
    uint32_t const barrier = barriers + V::kStages * 8;
    barrier_expect(barrier, static_cast<int>(groups / 2 * V::kScaleBytes));
    int const matrix = batch == 0 ? 0 : batch * p.weight_blocks;
    CUTLASS_PRAGMA_NO_UNROLL
    for (unsigned group = 0; group < groups; group += 2) {
      unsigned const all = first_group + group;
      load_tile_once(p.scale_map, scales + group / 2 * V::kScaleRoom, barrier, static_cast<int>(all % 8 / 2) * V::kScaleRow,
                     chunk * V::kChunkAtoms, matrix + static_cast<int>(all / 8), policy);
    }
  }

  // The next group's rows.
  CUTLASS_DEVICE void fetch(int stage) {
    unsigned const all = first_group + here.group;
    here.next(order);
    int const row = static_cast<int>((all / 8 * 128) + (all % 2 * 64) + all % 8 / 2 * kRowsOfRun);
    uint32_t const barrier = barriers + stage * 8, codes = ring + stage * V::kCodeBytes;
    barrier_expect(barrier, V::kCodeBytes);
    load_tile_once(p.weight_map, codes, barrier, byte, row, batch, policy);
    load_tile_once(p.weight_map, codes + V::kRunBytes, barrier, byte, row + 32, batch, policy);
  }
};
#endif
