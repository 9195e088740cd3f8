// Elements of .kind::mxf8f6f4, by their numbers in an instruction descriptor.
constexpr uint32_t kE4m3 = 0, kE5m2 = 1, kE2m1 = 5;

__device__ bool is_element(uint32_t format) { return format == kE4m3 || format == kE5m2 || format == kE2m1; }

// "Shared memory descriptor". A matrix in K-major order: groups of eight rows, `stride` bytes apart. Within a group, rows
// are 16 bytes times 2^bits apart, and `bits` bits of each address above the lowest four are XORed with those of the row.
struct SharedMatrix {
  uint32_t start, stride, bits;
  bool valid;

  __device__ explicit SharedMatrix(uint64_t descriptor, bool swizzled) {
    uint32_t const low = static_cast<uint32_t>(descriptor), high = static_cast<uint32_t>(descriptor >> 32);
    start = (low & 0x3FFFu) << 4;
    stride = (high & 0x3FFFu) << 4;
    uint32_t const leading = low >> 16 & 0x3FFFu, layout = high >> 29;
    // Layouts: 0 none, 2 of 128 bytes, 4 of 64 bytes, 6 of 32 bytes.
    bits = layout == 0 ? 0 : 4 - layout / 2;
    uint32_t wrong = 0;
    wrong |= (low & 0xC000C000u) != 0 ? 1 : 0;               // unused bits
    wrong |= (high >> 14 & 3u) != 1 ? 2 : 0;                 // the version
    wrong |= (high & 0x1FFF0000u) != 0 ? 4 : 0;              // base offset, mode of the leading offset, unused bits
    wrong |= (layout & 1u) != 0 ? 8 : 0;                     // a layout for other element types
    wrong |= swizzled != (layout != 0) ? 16 : 0;             // codes are swizzled, scales are not
    wrong |= swizzled && leading > 1 ? 32 : 0;               // unused for swizzled matrices in K-major order
    wrong |= stride % (128u << bits) != 0 || stride == 0 ? 64 : 0;
    valid = wrong == 0;
    if (!valid) {
      record(kSharedDescriptor, low, high, wrong);
    }
  }

  // Returns whether a row may have such elements: TMA spreads 4-bit codes only with the 128-byte swizzle.
  __device__ bool can_have(uint32_t format, uint64_t descriptor) const {
    if (format == kE2m1 && bits != 3) {
      record(kSharedDescriptor, static_cast<uint32_t>(descriptor), static_cast<uint32_t>(descriptor >> 32), 128);
      return false;
    }
    return true;
  }

  // The address of 16 bytes of a row.
  __device__ uint32_t address(uint32_t row, uint32_t piece) const {
    uint32_t const at = start + row / 8 * stride + row % 8 * (16u << bits) + piece * 16;
    return at ^ (at >> 3 & ((1u << bits) - 1) << 4);
  }
};

// "Instruction descriptor" of .kind::mxf4, .kind::mxf4nvf4 and .kind::mxf8f6f4.
struct MmaDescriptor {
  uint32_t m, n, sfa_id, sfb_id, a_format, b_format;
  bool powers_of_two, valid;

  __device__ MmaDescriptor(uint32_t bits, uint32_t block, uint32_t group) {
    sfb_id = bits >> 4 & 3u;
    n = (bits >> 17 & 0x3Fu) * 8;
    powers_of_two = (bits >> 23 & 1u) != 0;
    m = (bits >> 24 & 0x1Fu) * 16;
    sfa_id = bits >> 29 & 3u;
    a_format = bits >> 7 & 7u;
    b_format = bits >> 10 & 7u;
    bool const bytes = block == kBytes, e2m1 = a_format == 1 && b_format == 1;
    uint32_t wrong = 0;
    wrong |= (bits & 0x0Fu) != 0 ? 1 : 0;                         // sparsity, unused bits
    wrong |= (bits >> 6 & 1u) != 0 ? 2 : 0;                       // an unused bit
    wrong |= bytes && is_element(a_format) && is_element(b_format) || !bytes && e2m1 ? 0 : 4;  // elements of the kind
    wrong |= (bits >> 13 & 0xFu) != 0 ? 8 : 0;                    // negation, order of A and B
    wrong |= m != 128 * group ? 16 : 0;
    wrong |= n == 0 || n > 256 || n % (8 * group) != 0 ? 32 : 0;
    wrong |= bits >> 31 != 0 ? 64 : 0;                            // K = 96
    wrong |= block != 16 && !powers_of_two ? 128 : 0;
    // The scales of an instruction begin at a multiple of their number: four, two or one.
    wrong |= ((sfa_id | sfb_id) & (bytes ? 0u : block == 32 ? 1u : 3u)) != 0 ? 256 : 0;
    valid = wrong == 0;
    if (!valid) {
      record(kInstructionDescriptor, bits, wrong, block);
    }
  }
};

// The column of the scales: the two highest bits of their address repeat the descriptor's scale ID.
__device__ uint32_t scale_column(uint32_t address, uint32_t id, uint32_t descriptor, bool &valid) {
  if (address >> 30 != id || (address >> 16 & 0x3FFFu) != 0) {
    record(kScaleAddress, address, descriptor, 0);
    valid = false;
  }
  return address & 0xFFFFu;
}

// Converts four codes in the low 16 bits to four signed bytes of twice their value: 0 1 2 3 4 6 8 12.
__device__ __forceinline__ uint32_t twice(uint32_t codes) {
  uint32_t const magnitude = __byte_perm(0x03020100u, 0x0C080604u, codes & 0x7777u);
  uint32_t const negative = __byte_perm(0x0000FF00u, 0u, codes >> 3 & 0x1111u);
  return __vsub4(magnitude ^ negative, negative);
}

// Bit 7 is ignored, and 0x7F is NaN.
__device__ __forceinline__ double of_ue4m3(uint32_t code) {
  uint32_t const exponent = code >> 3 & 0xFu, mantissa = code & 7u;
  if ((code & 0x7Fu) == 0x7Fu) {
    return __int_as_float(0x7FFFFFFF);
  }
  return exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                       : __uint_as_float(exponent + 120u << 23 | mantissa << 20);
}

// The value is 2^(code - 127), and 0xFF is NaN.
__device__ __forceinline__ double of_ue8m0(uint32_t code) {
  uint64_t const bits = code == 0xFFu ? 0x7FFFFFFFFFFFFFFFull : static_cast<uint64_t>(code + 896u) << 52;
  return __longlong_as_double(static_cast<long long>(bits));
}

__device__ __forceinline__ double scale_of(uint32_t code, bool powers_of_two) {
  return powers_of_two ? of_ue8m0(code) : of_ue4m3(code);
}

// The 32 bytes of a row, as 16 words of four signed bytes.
struct Row {
  uint32_t words[16];

  __device__ void set(uint4 low, uint4 high) {
    uint32_t const codes[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      words[2 * i] = twice(codes[i]);
      words[2 * i + 1] = twice(codes[i] >> 16);
    }
  }

  // Returns whether the CTA has the row.
  __device__ bool load(Cta const &cta, SharedMatrix const &matrix, uint32_t row) {
    uint32_t const low = matrix.address(row, 0), high = matrix.address(row, 1);
    if (!cta.has(low) || !cta.has(high)) {
      return false;
    }
    set(cta.load(low), cta.load(high));
    return true;
  }
};

// The 32 elements of a row of bytes.
struct ByteRow {
  float values[32];

  __device__ void set(uint32_t at, uint32_t word, uint32_t format) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t const code = word >> 8 * i & 0xFFu;
      values[at + i] = format == kE4m3 ? of_e4m3(code) : of_e5m2(code);
    }
  }

  __device__ void set_codes(uint32_t at, uint32_t word) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[at + i] = of_e2m1(word >> 4 * i & 0xFu);
    }
  }

  // Returns whether the CTA has the row.
  __device__ bool load(Cta const &cta, SharedMatrix const &matrix, uint32_t row, uint32_t format) {
    bool has = true;
    for (uint32_t piece = 0; piece < 2; ++piece) {
      bool const spread = format == kE2m1;
      uint32_t const address = matrix.address(row, piece);
      uint32_t const at = spread ? address_of_codes(address, matrix.start & 0x380u) : address;
      if (!cta.has(at & ~15u)) {
        has = false;
        continue;
      }
      uint4 const value = cta.load(at & ~15u);
      if (spread) {
        bool const upper = (at & 8u) != 0;
        set_codes(16 * piece, upper ? value.z : value.x);
        set_codes(16 * piece + 8, upper ? value.w : value.y);
      } else {
        set(16 * piece, value.x, format);
        set(16 * piece + 4, value.y, format);
        set(16 * piece + 8, value.z, format);
        set(16 * piece + 12, value.w, format);
      }
    }
    return has;
  }
};

// The scale word of a row of A: the same in all four groups of 32 lanes.
__device__ uint32_t scales_of_a(TensorMemory const &memory, uint32_t first, uint32_t row) {
  uint32_t const column = first + row / 32;
  uint32_t const word = load(memory.at(column, row % 32));
  for (uint32_t copy = 1; copy < 4; ++copy) {
    if (load(memory.at(column, copy * 32 + row % 32)) != word) {
      record(kScalesDiffer, row, column, copy);
      return kNan;
    }
  }
  return word;
}

// Computes one row of D per lane, for the rows of one CTA. B is divided between the CTAs of a pair.
struct Multiplication {
  Instruction const &of;
  MmaDescriptor const &descriptor;
  SharedMatrix const &a, &b;
  uint32_t d, sfa, sfb, group;

  // The rows of B that each CTA has.
  __device__ uint32_t share() const { return descriptor.n / group; }

  __device__ Cta const &cta_of_b(Cta const &first, Cta const &second, uint32_t n) const {
    return n < share() ? first : second;
  }

  // The scales of a row of A, from the byte of its scale ID on.
  __device__ uint32_t scales_of_row(Cta const &cta, uint32_t row) const {
    return scales_of_a(cta.memory, sfa, row) >> 8 * descriptor.sfa_id;
  }

  // Those of a row of B. Each lane reads another of the four copies, so that a wrong copy is seen.
  __device__ uint32_t scales_of_column(Cta const &cta, uint32_t n, uint32_t row) const {
    uint32_t const copy = row % 4;
    return load(cta.memory.at(sfb + n / 32, copy * 32 + n % 32)) >> 8 * descriptor.sfb_id;
  }

  __device__ uint32_t *result(Cta const &cta, uint32_t n, uint32_t row) const { return cta.memory.at(d + n, row); }

  __device__ float initial(uint32_t const *result) const {
    return of.accumulates != 0 ? __uint_as_float(load(result)) : 0.0f;
  }

  __device__ void rows(Cta const &cta, Cta const &first, Cta const &second, uint32_t row) const {
    bool const powers_of_two = descriptor.powers_of_two;
    uint32_t const block = of.block;
    Row codes;
    bool const has_codes = codes.load(cta, a, row);
    uint32_t const scales = scales_of_row(cta, row);
    double row_scales[4];
    for (uint32_t i = 0; i < 64 / block; ++i) {
      row_scales[i] = scale_of(scales >> 8 * i & 0xFFu, powers_of_two) * 0.25;
    }
    for (uint32_t n = 0; n < descriptor.n; ++n) {
      Row other;
      bool const has_both = other.load(cta_of_b(first, second, n), b, n % share()) && has_codes;
      uint32_t const word = scales_of_column(cta, n, row);
      uint32_t *const at = result(cta, n, row);
      float sum = initial(at);
      for (uint32_t i = 0; i < 64 / block; ++i) {
        int products = 0;
        for (uint32_t k = 0; k < block / 4; ++k) {
          uint32_t const at = i * (block / 4) + k;
          products = __dp4a(static_cast<int>(codes.words[at]), static_cast<int>(other.words[at]), products);
        }
        double const scale = row_scales[i] * scale_of(word >> 8 * i & 0xFFu, powers_of_two);
        sum = static_cast<float>(static_cast<double>(sum) + static_cast<double>(products) * scale);
      }
      store(at, has_both ? __float_as_uint(sum) : kNan);
    }
  }

  // The same for bytes: 32 elements and one scale per row. Products are exact in f32, and are summed in f64.
  __device__ void byte_rows(Cta const &cta, Cta const &first, Cta const &second, uint32_t row) const {
    ByteRow elements;
    bool const has_elements = elements.load(cta, a, row, descriptor.a_format);
    double const row_scale = of_ue8m0(scales_of_row(cta, row) & 0xFFu);
    for (uint32_t n = 0; n < descriptor.n; ++n) {
      ByteRow other;
      bool const has_both =
          other.load(cta_of_b(first, second, n), b, n % share(), descriptor.b_format) && has_elements;
      double products = 0.0;
#pragma unroll
      for (int k = 0; k < 32; ++k) {
        products += static_cast<double>(elements.values[k] * other.values[k]);
      }
      uint32_t *const at = result(cta, n, row);
      double const scale = row_scale * of_ue8m0(scales_of_column(cta, n, row) & 0xFFu);
      float const sum = static_cast<float>(static_cast<double>(initial(at)) + products * scale);
      store(at, has_both ? __float_as_uint(sum) : kNan);
    }
  }
};

// "tcgen05.mma", block-scaled, dense, both operands in shared memory. Lane `lane` of `lanes` takes part.
__device__ __noinline__ void execute_mma(Instruction const &of, uint32_t lane, uint32_t lanes) {
  MmaDescriptor const descriptor(of.descriptor, of.block, of.group);
  SharedMatrix const a(of.a, true), b(of.b, true);
  bool valid = descriptor.valid && a.valid && b.valid;
  if (of.block == kBytes) {
    valid = a.can_have(descriptor.a_format, of.a) && b.can_have(descriptor.b_format, of.b) && valid;
  }
  uint32_t const d = column_of(of.d, valid);
  uint32_t const sfa = scale_column(of.sfa, descriptor.sfa_id, of.descriptor, valid);
  uint32_t const sfb = scale_column(of.sfb, descriptor.sfb_id, of.descriptor, valid);
  Cta const first = cta_of_pair(of.group, 0, valid), second = cta_of_pair(of.group, of.group - 1, valid);
  for (uint32_t index = 0; index < of.group; ++index) {
    Cta const &cta = index == 0 ? first : second;
    bool const computable = cta.memory.has(d, descriptor.n) && valid && cta.memory.has(sfa, 4) &&
                            cta.memory.has(sfb, (descriptor.n + 31) / 32);
    for (uint32_t row = lane; row < kLanes; row += lanes) {
      if (computable) {
        Multiplication const multiplication{of, descriptor, a, b, d, sfa, sfb, of.group};
        if (of.block == kBytes) {
          multiplication.byte_rows(cta, first, second, row);
        } else {
          multiplication.rows(cta, first, second, row);
        }
      } else {
        for (uint32_t n = 0; n < descriptor.n && d + n < cta.memory.columns; ++n) {
          store(cta.memory.at(d + n, row), kNan);
        }
      }
    }
  }
}

// "tcgen05.cp" with shape .32x128b and .warpx4: 32 rows of 16 bytes become four columns, the same for each group of 32
// lanes.
__device__ __noinline__ void execute_copy(Instruction const &of, uint32_t lane, uint32_t lanes) {
  SharedMatrix const source(of.a, false);
  bool valid = source.valid;
  uint32_t const column = column_of(of.d, valid);
  for (uint32_t index = 0; index < of.group; ++index) {
    Cta const cta = cta_of_pair(of.group, index, valid);
    bool const readable = cta.memory.has(column, 4) && valid;
    for (uint32_t row = lane; row < 32; row += lanes) {
      uint32_t const from = source.address(row, 0);
      uint4 value = {kNan, kNan, kNan, kNan};
      if (readable && cta.has(from)) {
        value = cta.load(from);
      }
      uint32_t const words[4] = {value.x, value.y, value.z, value.w};
      for (uint32_t i = 0; i < 4 && column + i < cta.memory.columns; ++i) {
        for (uint32_t copy = 0; copy < 4; ++copy) {
          store(cta.memory.at(column + i, copy * 32 + row), words[i]);
        }
      }
    }
  }
}

// Executes what the warp has queued, with the lanes that are here.
__device__ void execute(Queue &queue, uint32_t lane, uint32_t lanes) {
  uint32_t const count = load(&queue.count);
  for (uint32_t i = 0; i < count; ++i) {
    Instruction const of = queue.instructions[i];
    if (of.group == 2) {
      // The other CTA's shared memory was written by its own threads.
      fence_cluster();
    }
    if (of.block == 0) {
      execute_copy(of, lane, lanes);
    } else {
      execute_mma(of, lane, lanes);
    }
    // The next instruction reads what other lanes have written.
    __threadfence();
    if (lanes > 1) {
      __syncwarp();
    }
  }
}

__device__ void enqueue(Instruction const &instruction) {
  Queue &queue = queues[own_sm()];
  uint32_t const count = load(&queue.count);
  if (count > 0 && load(&queue.warp) != warp_id()) {
    record(kForeignQueue, warp_id(), load(&queue.warp), 0);
    return;
  }
  if (count == kQueue) {
    record(kQueueFull, count, 0, 0);
    return;
  }
  if (instruction.group != 1 && (instruction.group != 2 || cluster_size() < 2)) {
    record(kGroup, instruction.group, cluster_size(), 0);
    return;
  }
  queue.instructions[count] = instruction;
  store(&queue.warp, warp_id());
  __threadfence();
  store(&queue.count, count + 1);
}

}  // namespace

