// Tokens, decoded into shared memory.

#ifndef FOURFOLD_HOST
// A thread's share of the tokens: 32 codes of a block of K, and their scales.
template <int kTokens>
struct FewPieces {
  using V = Few<kTokens>;
  uint4 codes[V::kPieces];
  uint32_t scales[V::kPieces];
  // Blocks of K that this CTA has of each token, and pieces of all; and bytes that a token has from its first on.
  unsigned blocks, count, rest;

  CUTLASS_DEVICE FewPieces(FewParameters const &p, FewMatrix const &of, FewWork const &work)
      : blocks(work.chunks.number * V::kBlocks),
        count((kTokens == 1 ? 1 : p.m) * blocks * 4),
        rest(p.row_bytes - work.first_chunk * V::kRowBytes) {
    uint8_t const *const first = of.tokens + work.first_chunk * V::kRowBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kPieces; ++i) {
      // Who has none, or one beyond K, asks for the last: that needs no branch.
      unsigned const item = min(i * V::kThreads + threadIdx.x, count - 1), t = item % 4, token = token_of(work, item);
      unsigned const piece = item - token * blocks * 4;
      codes[i] = load_ordered(reinterpret_cast<uint4 const *>(first + (token * p.row_bytes + min(piece * 16, rest - 16))));
      unsigned const atom = min(work.first_chunk * V::kChunkAtoms + (kMx ? piece / 4 : piece / 2), p.atoms - 1u);
      uint8_t const *const at = of.token_scales + (atom * kAtomBytes + token * 16 + (kMx ? t : t % 2 * 2));
      scales[i] = kMx ? load_ordered(at) : load_ordered(reinterpret_cast<uint16_t const *>(at));
    }
  }

  CUTLASS_DEVICE static unsigned token_of(FewWork const &work, unsigned item) {
    return kTokens == 1 ? 0 : work.chunks.divide(item / (4 * V::kBlocks));
  }

  CUTLASS_DEVICE void decode_to(FewWork const &work, uint32_t tokens, unsigned pitch) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < V::kPieces; ++i) {
      unsigned const item = i * V::kThreads + threadIdx.x, t = item % 4, token = token_of(work, item);
      unsigned const block = item / 4 - token * blocks;
      if (item >= count) {
        continue;
      }
      // Nothing is done with a scale where it is asked for, or all that follows there would wait for it.
      uint32_t const own = computed_again(scales[i]), of_thread = kMx ? mx_scale(own) : two_scales(own);
      CUTLASS_PRAGMA_UNROLL
      for (int word = 0; word < 4; ++word) {
        // Beyond K there are zeros.
        uint32_t const eight = (block * 4 + t) * 16 < rest ? word_of(codes[i], word) : 0;
        if constexpr (V::kAsBytes) {
          // Words w and w + 2 of a thread are of its first group and of its second, which have columns of their own: so they are in
          // one matrix. A column's other codes are zeros.
          Bytes const parts = decode_to_bytes(eight);
          uint32_t const at = tokens + ((block * 2 + word % 2) * kTokens + token) * V::kMatrixBytes + (2 * t + word / 2) * 16;
          auto const only = [&](uint32_t four, unsigned thread) { return t == thread ? four : 0; };
          store_words(at, only(parts.even, 0), only(parts.even, 1), only(parts.even, 2), only(parts.even, 3));
          store_words(at + V::kMatrixBytes / 2, only(parts.odd, 0), only(parts.odd, 1), only(parts.odd, 2), only(parts.odd, 3));
        } else {
          // For the thread of a quad what it gives to two steps.
          Decoded const parts = decode(eight, scale_of_word(of_thread, word));
          store_words(tokens + token * pitch + block * 2 * kBlockK + word * 64 + t * 16, parts.low[0], parts.high[0],
                      parts.low[1], parts.high[1]);
        }
      }
      if constexpr (V::kAsBytes) {
        float2 const both = wide(of_thread);
        uint32_t const at = tokens + blocks * kTokens * V::kTokenBlockBytes + item * 8;
        store_word(at, __float_as_uint(both.x * kBytesFactor));
        store_word(at + 4, __float_as_uint(both.y * kBytesFactor));
      }
    }
  }
};
#endif
