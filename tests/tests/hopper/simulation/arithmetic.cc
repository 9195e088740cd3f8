// The arithmetic of the machine: formats, and multiplications of matrices.

#include "machine.hh"

namespace simulation {

namespace {

uint16_t narrow(double x, Format const &format) {
  uint16_t const sign = std::signbit(x) ? 0x8000 : 0, infinity = ((1 << format.bits) - 1) << format.mantissa;
  double const magnitude = std::fabs(x);
  if (std::isnan(x)) {
    return 0x7FFF;
  }
  if (std::isinf(x) || magnitude == 0) {
    return sign | (magnitude == 0 ? 0 : infinity);
  }
  int exponent;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, format.least);
  auto const steps = static_cast<long long>(std::nearbyint(std::ldexp(magnitude, format.mantissa - exponent)));
  // A carry out of the mantissa increments the exponent.
  long long const bits = (static_cast<long long>(exponent - format.least) << format.mantissa) + steps;
  return sign | static_cast<uint16_t>(std::min<long long>(bits, infinity));
}

double widen(uint16_t bits, Format const &format) {
  int const exponent = (bits & 0x7FFF) >> format.mantissa, fraction = bits & ((1 << format.mantissa) - 1);
  double magnitude = exponent == 0 ? std::ldexp(fraction, format.least - format.mantissa)
                                   : std::ldexp(fraction + (1 << format.mantissa), exponent - 1 + format.least - format.mantissa);
  if (exponent == (1 << format.bits) - 1) {
    magnitude = fraction == 0 ? INFINITY : NAN;
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Returns the values of all 2^16 codes of a format, computed once.
std::vector<float> const &widened(Format const &format) {
  static std::map<int, std::vector<float>> tables;
  auto &table = tables[format.mantissa];
  for (int bits = static_cast<int>(table.size()); bits < 1 << 16; ++bits) {
    table.push_back(static_cast<float>(widen(bits, format)));
  }
  return table;
}

double of_e4m3(uint8_t byte) {
  int const exponent = byte >> 3 & 15, fraction = byte & 7;
  double const value = (byte & 0x7F) == 0x7F ? NAN
                       : exponent == 0       ? std::ldexp(fraction, -9)
                                             : std::ldexp(8 + fraction, exponent - 10);
  return (byte & 0x80) != 0 ? -value : value;
}

// Loads an element of a K-major matrix in shared memory with 128-byte swizzle, by its row and its byte of K.
uint16_t of_descriptor(uint64_t descriptor, int row, int byte) {
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) {
    fail("not swizzled over 128 bytes from a multiple of 1024", descriptor >> 32);
  }
  uint32_t const begin = (descriptor & 0x3FFF) << 4, pitch = (descriptor >> 32 & 0x3FFF) << 4;
  uint32_t const address = begin + row / 8 * pitch + row % 8 * 128 + byte;
  return load<uint16_t>(address ^ (address >> 7 & 7) << 4);
}

// Adds the product of A, of 64 x kDepth, and B, of kDepth x N, to the sums of a wgmma.
template <int kDepth>
void multiply(Multiplication const &of, std::vector<double> const &a, std::vector<double> const &b) {
  std::vector<double> sums(of.n);
  for (int row = 0; row < 64; ++row) {
    auto const sum_of = [&](int column) -> float & {
      return of.sums[row / 16 * 32 + row % 8 * 4 + column % 8 / 2][column / 8 * 4 + row / 8 % 2 * 2 + column % 2];
    };
    for (int column = 0; column < of.n; ++column) {
      sums[column] = of.is_first ? 0 : sum_of(column);
    }
    // Each sum adds its products along K in order.
    for (int k = 0; k < kDepth; ++k) {
      double const factor = a[row * kDepth + k];
      for (int column = 0; column < of.n; ++column) {
        sums[column] += factor * b[k * of.n + column];
      }
    }
    for (int column = 0; column < of.n; ++column) {
      sum_of(column) = static_cast<float>(sums[column]);
    }
  }
}

// Executes a wgmma of e4m3. Matrices of 8 rows by 32 codes are contiguous, each with the first 16 codes of all rows
// first.
void execute_bytes(Multiplication const &of) {
  static std::vector<double> values;
  for (int byte = static_cast<int>(values.size()); byte < 256; ++byte) {
    values.push_back(of_e4m3(static_cast<uint8_t>(byte)));
  }
  uint32_t const begin = (of.descriptor & 0x3FFF) << 4, along_k = (of.descriptor >> 16 & 0x3FFF) << 4;
  std::vector<double> a(64 * 32), b(of.n * 32);
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < 16; ++i) {
      int const row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 4 % 2), k = thread % 4 * 4 + 16 * (i / 8) + i % 4;
      a[row * 32 + k] = values[of.a[thread][i / 4] >> 8 * (i % 4) & 0xFF];
    }
  }
  for (int row = 0; row < of.n; ++row) {
    for (int k = 0; k < 32; ++k) {
      b[k * of.n + row] = values[load<uint8_t>(begin + row / 8 * 256 + k / 16 * along_k + row % 8 * 16 + k % 16)];
    }
  }
  multiply<32>(of, a, b);
}

}  // namespace

uint32_t multiply_pairs(uint32_t x, uint32_t y, Format const &format) {
  auto const &values = widened(format);
  uint32_t const low = narrow(static_cast<double>(values[x & 0xFFFF]) * values[y & 0xFFFF], format);
  return low | static_cast<uint32_t>(narrow(static_cast<double>(values[x >> 16]) * values[y >> 16], format)) << 16;
}

uint32_t e4m3x2_to_halves(uint16_t bytes) {
  static std::vector<uint16_t> halves;
  for (int byte = static_cast<int>(halves.size()); byte < 256; ++byte) {
    halves.push_back(narrow(of_e4m3(static_cast<uint8_t>(byte)), kHalf));
  }
  return halves[bytes & 0xFF] | static_cast<uint32_t>(halves[bytes >> 8]) << 16;
}

void execute(Multiplication const &of, Format const &format) {
  if (of.is_of_bytes) {
    return execute_bytes(of);
  }
  auto const &values = widened(format);
  std::vector<double> a(64 * 16), b(of.n * 16);
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < 8; ++i) {
      int const row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), k = thread % 4 * 2 + 8 * (i / 4) + i % 2;
      a[row * 16 + k] = values[of.a[thread][i / 2] >> 16 * (i % 2) & 0xFFFF];
    }
  }
  for (int row = 0; row < of.n; ++row) {
    for (int k = 0; k < 16; ++k) {
      b[k * of.n + row] = values[of_descriptor(of.descriptor, row, 2 * k)];
    }
  }
  multiply<16>(of, a, b);
}

void execute(Small const &of, Format const &format) {
  auto const &values = widened(format);
  float a[16][16], b[8][16];
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) {
      a[lane / 4 + 8 * (i / 2 % 2)][lane % 4 * 2 + 8 * (i / 4) + i % 2] = values[of.a[lane][i / 2] >> 16 * (i % 2) & 0xFFFF];
    }
    for (int i = 0; i < 4; ++i) {
      b[lane / 4][lane % 4 * 2 + 8 * (i / 2) + i % 2] = values[of.b[lane][i / 2] >> 16 * (i % 2) & 0xFFFF];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      double sum = of.sums[lane][i];
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<double>(a[lane / 4 + 8 * (i / 2)][k]) * b[lane % 4 * 2 + i % 2][k];
      }
      of.sums[lane][i] = static_cast<float>(sum);
    }
  }
}

}  // namespace simulation
