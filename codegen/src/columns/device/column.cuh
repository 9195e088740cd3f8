// Threads per CTA.
constexpr int kThreads = {{ threads }};

// Threads and CTAs of a reduction of [O, A, B, C, I] along A and C.
struct Parameters {
  void const *from;
  void *to;
  // The grid of all results of this size: tiles of results, each in `splits` parts of `chunk` terms.
  uint64_t units, groups, ctas;
  Divisor tiles;
  // A term is a packet of elements: of adjacent results, or of one run of a result if I is 1.
  int64_t terms, full_terms, chunk, splits, results;
  // Packets of I, and B.
  Divisor inner, middle;
  // Terms between two indices of A, and elements between two terms, two of these, and two indices of B and of O.
  Divisor joined;
  int64_t term_stride, joined_stride, middle_stride, outer_stride;
  // Elements of the last packet of a run if it is not full.
  int32_t tail;
  // Elements of a packet; results that threads side by side compute, as a power of two, and threads that share one.
  int32_t packet, lanes, rows;
  bool is_run, is_joined, is_aligned, is_written_aligned;
  // True if the operand is partial results in f32, and if results are.
  bool is_second, is_partial;
  // The number of elements of a result.
  double count;
};

#ifndef FOURFOLD_HOST
// Element types: the code in memory, and its number.
struct F32 {
  using Code = uint32_t;
  __device__ static float decode(uint32_t code) { return float_of(code); }
  __device__ static uint32_t encode(float x) { return bits_of(x); }
};
{% if element != "F32" %}
struct {{ element }} {
  using Code = uint16_t;
  __device__ static float decode(uint32_t code) { return low_{{ element | lower }}(code); }
  __device__ static uint16_t encode(float x) { return static_cast<uint16_t>(pack_{{ element | lower }}(x, x)); }
};
{% endif %}
using Element = {{ element }};
using Reduction = {{ reduction }};

// Codes of a packet.
template <class Type, int kPacket>
struct alignas(kPacket * sizeof(typename Type::Code)) Codes {
  typename Type::Code codes[kPacket];
};

template <class Type, int kPacket>
__device__ __forceinline__ void combine(float *totals, Codes<Type, kPacket> const &packet) {
#pragma unroll
  for (int i = 0; i < kPacket; ++i) {
    totals[i] = Reduction::combine(totals[i], Reduction::element(Type::decode(packet.codes[i])));
  }
}

__device__ __forceinline__ int64_t offset_of(Parameters const &p, int64_t term) {
  if (!p.is_joined) {
    return term * p.term_stride;
  }
  uint64_t within = static_cast<uint64_t>(term);
  int64_t const joined = static_cast<int64_t>(divide(within, p.joined));
  return joined * p.joined_stride + static_cast<int64_t>(within) * p.term_stride;
}

// Combines the terms first, first + rows, .. before last, in this order.
template <class Type, int kPacket>
__device__ __forceinline__ void combine_terms(Parameters const &p, typename Type::Code const *from, int64_t first, int64_t last,
                                              float *totals) {
  using Packet = Codes<Type, kPacket>;
  constexpr int kTurns = sizeof(Packet) == 16 ? 4 : 8;
  int64_t term = first;
  if (p.is_aligned) {
    for (; term + (kTurns - 1) * p.rows < last; term += kTurns * p.rows) {
      Packet held[kTurns];
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        held[turn] = *reinterpret_cast<Packet const *>(from + offset_of(p, term + turn * p.rows));
      }
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        combine<Type, kPacket>(totals, held[turn]);
      }
    }
  }
#pragma unroll 1
  for (; term < last; term += p.rows) {
    typename Type::Code const *const at = from + offset_of(p, term);
    Packet packet;
    if (p.is_aligned) {
      packet = *reinterpret_cast<Packet const *>(at);
    } else {
#pragma unroll
      for (int i = 0; i < kPacket; ++i) {
        packet.codes[i] = at[i];
      }
    }
    combine<Type, kPacket>(totals, packet);
  }
}

// Writes the results of a packet, or one result of a run.
template <int kCount>
__device__ __forceinline__ void write_results(Parameters const &p, uint64_t split, uint64_t group, float const *totals) {
  int64_t const at = static_cast<int64_t>(group) * kCount;
  if (p.is_partial) {
    float *const to = static_cast<float *>(p.to) + static_cast<int64_t>(split) * p.results + at;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = totals[i];
    }
    return;
  }
  using Packet = Codes<Element, kCount>;
  Packet packet;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    packet.codes[i] = Element::encode({{ "static_cast<float>(static_cast<double>(totals[i]) / p.count)" if is_mean else "totals[i]" }});
  }
  typename Element::Code *const to = static_cast<Element::Code *>(p.to) + at;
  if (p.is_written_aligned) {
    *reinterpret_cast<Packet *>(to) = packet;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = packet.codes[i];
    }
  }
}

// Computes the units of a CTA: threads side by side have adjacent results, or adjacent terms of a run. All of them wait
// for each other, so a thread without a result combines nothing.
template <class Type, int kPacket, bool kIsRun>
__device__ __forceinline__ void reduce(Parameters const &p, float (*shared)[kThreads]) {
  constexpr int kTotals = kIsRun ? 1 : kPacket;
  int const thread = static_cast<int>(threadIdx.x);
  int const row = kIsRun ? thread % p.rows : thread / p.lanes, lane = kIsRun ? thread / p.rows : thread % p.lanes;
  for (uint64_t unit = blockIdx.x; unit < p.units; unit += gridDim.x) {
    uint64_t tile = unit;
    uint64_t const split = divide(tile, p.tiles), group = tile * static_cast<uint64_t>(p.lanes) + static_cast<uint64_t>(lane);
    float totals[kPacket];
#pragma unroll
    for (int i = 0; i < kPacket; ++i) {
      totals[i] = float_of(Reduction::kNone);
    }
    if (group < p.groups) {
      uint64_t inner = group;
      uint64_t middle = divide(inner, p.inner);
      uint64_t const outer = divide(middle, p.middle);
      auto const *const from = static_cast<typename Type::Code const *>(p.from) + static_cast<int64_t>(outer) * p.outer_stride +
                               static_cast<int64_t>(middle) * p.middle_stride + static_cast<int64_t>(inner) * kPacket;
      int64_t const start = static_cast<int64_t>(split) * p.chunk, first = start + row;
      int64_t const end = start + p.chunk < p.terms ? start + p.chunk : p.terms;
      combine_terms<Type, kPacket>(p, from, first, end < p.full_terms ? end : p.full_terms, totals);
      if (kIsRun && p.full_terms < end && p.full_terms >= first && (p.full_terms - first) % p.rows == 0) {
#pragma unroll
        for (int i = 0; i < kPacket; ++i) {
          if (i < p.tail) {
            totals[i] = Reduction::combine(totals[i], Reduction::element(Type::decode(from[p.full_terms * kPacket + i])));
          }
        }
      }
    }
    if (kIsRun) {
#pragma unroll
      for (int distance = kPacket / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i < distance; ++i) {
          totals[i] = Reduction::combine(totals[i], totals[i + distance]);
        }
      }
    }
    int const slot = row * p.lanes + lane;
    for (int distance = p.rows / 2; distance > 0; distance /= 2) {
      __syncthreads();
      if (row >= distance && row < 2 * distance) {
#pragma unroll
        for (int i = 0; i < kTotals; ++i) {
          shared[i][slot] = totals[i];
        }
      }
      __syncthreads();
      if (row < distance) {
#pragma unroll
        for (int i = 0; i < kTotals; ++i) {
          totals[i] = Reduction::combine(totals[i], shared[i][slot + distance * p.lanes]);
        }
      }
    }
    if (row == 0 && group < p.groups) {
      write_results<kTotals>(p, split, group, totals);
    }
  }
}

template <class Type, int kPacket>
__device__ __forceinline__ void reduce_by(Parameters const &p, float (*shared)[kThreads]) {
  if (p.is_run) {
    reduce<Type, kPacket, true>(p, shared);
  } else {
    reduce<Type, kPacket, false>(p, shared);
  }
}

template <class Type>
__device__ __forceinline__ void reduce_by(Parameters const &p, float (*shared)[kThreads]) {
  switch (p.packet) {
    case 1: return reduce_by<Type, 1>(p, shared);
    case 2: return reduce_by<Type, 2>(p, shared);
    case 4: return reduce_by<Type, 4>(p, shared);
    default: return reduce_by<Type, 16 / sizeof(typename Type::Code)>(p, shared);
  }
}

template <size_t kParameterBytes, int kThreadCount>
__global__ void __launch_bounds__(kThreadCount, {{ ctas }}) kernel(Parameters const p) {
  __shared__ float shared[16 / sizeof(Element::Code)][kThreads];
#if defined(FOURFOLD_BY_INSTRUCTION)
  // Waits for the grids before this one, if they may still run.
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
{% if element != "F32" %}
  if (!p.is_second) {
    return reduce_by<Element>(p, shared);
  }
{% endif %}
  reduce_by<F32>(p, shared);
}

template __global__ void kernel<sizeof(Parameters), kThreads>(Parameters const);
#endif
