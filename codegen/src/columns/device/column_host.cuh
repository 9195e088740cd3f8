// A thread combines at least kLeastTerms terms before threads or CTAs share a result. kWantedCtas occupy every SM of a
// device; fewer share their results with others. Both are the same for all devices, so that the order of additions is.
constexpr int64_t kLeastTerms = 8, kWantedCtas = 1024;

// Divides the work of reducing [O, A, B, C, I] along A and C, which depends on the extents only. `bytes` has the size of
// an element.
inline Parameters divided(Problem const &x, int64_t bytes, int64_t most_splits) {
  Parameters p = {};
  // With one index of A or B, the terms of a result have one distance.
  bool const is_flat = x.a == 1 || x.b == 1;
  int64_t const count = x.a * x.c, run = is_flat ? count : x.c, runs = is_flat ? 1 : x.a;
  p.is_run = x.i == 1;
  // Only the last packet of a whole tensor may be partial: others start at a multiple of their size.
  bool const is_whole = p.is_run && is_flat && x.o * x.b == 1;
  int64_t packet = 16 / bytes;
  while (!is_whole && (p.is_run ? run : x.i) % packet != 0) {
    packet /= 2;
  }
  int64_t const inner = p.is_run ? 1 : x.i / packet;
  p.packet = static_cast<int32_t>(packet);
  p.results = x.o * x.b * x.i;
  p.groups = static_cast<uint64_t>(x.o * x.b * inner);
  p.inner = divisor_of(static_cast<uint64_t>(inner));
  p.middle = divisor_of(static_cast<uint64_t>(x.b));
  p.is_joined = !is_flat;
  p.full_terms = p.is_run ? runs * (run / packet) : count;
  p.tail = p.is_run ? static_cast<int32_t>(run % packet) : 0;
  p.terms = p.full_terms + (p.tail > 0 ? 1 : 0);
  p.joined = divisor_of(static_cast<uint64_t>(p.is_run ? run / packet : x.c));
  p.term_stride = p.is_run ? packet : x.i;
  p.joined_stride = x.b * x.c * x.i;
  p.middle_stride = x.c * x.i;
  p.outer_stride = x.a * x.b * x.c * x.i;
  p.count = static_cast<double>(count);
  p.lanes = 1;
  while (p.lanes < 32 && p.lanes < inner) {
    p.lanes *= 2;
  }
  p.rows = 1;
  while (p.rows * p.lanes < kThreads && 2 * p.rows * kLeastTerms <= p.terms) {
    p.rows *= 2;
  }
  p.lanes = kThreads / p.rows;
  int64_t const tiles = (static_cast<int64_t>(p.groups) + p.lanes - 1) / p.lanes;
  int64_t const least = p.rows * kLeastTerms, most = (p.terms + least - 1) / least;
  int64_t splits = tiles < kWantedCtas ? kWantedCtas / (tiles > 0 ? tiles : 1) : 1;
  splits = splits < most ? splits : most;
  splits = splits < most_splits ? splits : most_splits;
  splits = splits > 1 ? splits : 1;
  int64_t const each = (p.terms + splits - 1) / splits;
  p.chunk = (each + p.rows - 1) / p.rows * p.rows;
  p.splits = p.chunk > 0 ? (p.terms + p.chunk - 1) / p.chunk : 1;
  p.is_partial = p.splits > 1;
  p.tiles = divisor_of(static_cast<uint64_t>(tiles));
  p.units = static_cast<uint64_t>(tiles * p.splits);
  p.ctas = p.units < INT_MAX ? p.units : INT_MAX;
  return p;
}

inline Parameters first_part(Problem const &problem) { return divided(problem, {{ bytes }}, kWantedCtas); }

// Bytes of the partial results that CTAs share.
inline uint64_t partial_bytes(Problem const &problem) {
  Parameters const p = first_part(problem);
  return p.is_partial ? static_cast<uint64_t>(p.splits) * static_cast<uint64_t>(p.results) * sizeof(float) : 0;
}

inline void set_addresses(Parameters &p, void const *from, int64_t from_bytes, void *to) {
  p.from = from;
  p.to = to;
  p.is_aligned = reinterpret_cast<uintptr_t>(from) % static_cast<uintptr_t>(p.packet * from_bytes) == 0;
  int64_t const written = p.is_run ? 1 : p.packet;
  p.is_written_aligned = reinterpret_cast<uintptr_t>(to) % static_cast<uintptr_t>(written * {{ bytes }}) == 0;
}

// The launches of a call, one or two: the second combines the partial results of the first.
inline int make_parameters(Problem const &problem, Pointers const &pointers, void *workspace, Parameters *parts) {
  parts[0] = first_part(problem);
  bool const is_partial = parts[0].is_partial;
  set_addresses(parts[0], pointers.operands[0], {{ bytes }}, is_partial ? workspace : pointers.outputs[0]);
  if (!is_partial) {
    return 1;
  }
  Problem partials = {};
  partials.o = partials.a = partials.b = 1;
  partials.c = parts[0].splits;
  partials.i = parts[0].results;
  parts[1] = divided(partials, sizeof(float), 1);
  parts[1].is_second = true;
  parts[1].count = parts[0].count;
  set_addresses(parts[1], workspace, sizeof(float), pointers.outputs[0]);
  return 2;
}
