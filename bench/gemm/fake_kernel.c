// A stand-in for a kernel's library, for tests without a GPU. It implements the interface of executor/src/kernel/abi.rs
// in host memory, with f32 results. FAULT makes one element wrong; W4A16, W4A8 and MXFP8 select other formats than NVFP4.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { int32_t sm_count, max_active_clusters; } Device;
typedef struct { int64_t values[16]; uint32_t count; } Extents;
typedef struct { uint64_t workspace, operands[32], outputs[8]; } Requirements;
typedef struct {
  void const *operands[32];
  uint32_t operand_count;
  float const *scalars[8];
  uint32_t scalar_count;
  void *outputs[8];
  uint32_t output_count;
} Addresses;
typedef struct { Extents extents; Addresses addresses; } Prepared;
// Positions of extents.
enum { L, M, N, K };

// The formats of A and B: NVFP4, or what W4A16, W4A8 or MXFP8 names.
#if defined(W4A8) || defined(MXFP8)
enum { GROUP = 32 };
#else
enum { GROUP = 16 };
#endif
#if defined(W4A16)
enum { A, B, SFB, OPERANDS, SFA = -1 };
#define ROLES "{\"role\":\"a\"},{\"role\":\"b\"},{\"role\":\"sfb\"}"
#else
enum { A, SFA, B, SFB, OPERANDS };
#define ROLES "{\"role\":\"a\"},{\"role\":\"sfa\"},{\"role\":\"b\"},{\"role\":\"sfb\"}"
#endif

static float fp4(uint8_t const *codes, int64_t at) {
  static float const values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  int const code = at % 2 ? codes[at / 2] >> 4 : codes[at / 2] & 15;
  return code & 8 ? -values[code & 7] : values[code & 7];
}

static float e4m3(uint8_t code) {
  int const exponent = code >> 3 & 15, mantissa = code & 7;
  return exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
}

static float fp8(uint8_t const *codes, int64_t at) { return codes[at] & 128 ? -e4m3(codes[at]) : e4m3(codes[at]); }

static float bf16(uint16_t const *elements, int64_t at) {
  union { uint32_t bits; float value; } wide = {(uint32_t)elements[at] << 16};
  return wide.value;
}

static float scale_value(uint8_t const *scales, int64_t row, int64_t group, int64_t groups) {
  int64_t const tile = row / 128 * ((groups + 3) / 4) + group / 4;
  uint8_t const code = scales[tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4];
  return GROUP == 32 ? ldexpf(1, code - 127) : e4m3(code);
}

static float value(Addresses const *at, int data, int scales, int64_t row, int64_t k, int64_t k_extent) {
  void const *elements = at->operands[data];
  int64_t const index = row * k_extent + k;
#if defined(MXFP8)
  float const code = fp8(elements, index);
#elif defined(W4A8)
  float const code = data == A ? fp8(elements, index) : fp4(elements, index);
#else
  float const code = scales < 0 ? bf16(elements, index) : fp4(elements, index);
#endif
  return scales < 0 ? code : code * scale_value(at->operands[scales], row, k / GROUP, k_extent / GROUP);
}

static uint64_t scale_bytes(int64_t rows, int64_t k) { return (rows + 127) / 128 * ((k / GROUP + 3) / 4) * 512; }

uint32_t fourfold_abi_version(void) { return 6; }

char const *fourfold_metadata(void) { 
  return "{\"kernel\":\"fake\",\"target\":\"host\",\"extents\":[\"L\",\"M\",\"N\",\"K\"],\"operands\":[" ROLES
         "],\"scalars\":[\"alpha\"],\"outputs\":[{\"role\":\"y0\"}]}";
}

int32_t fourfold_query(Device const *device, Extents const *extents, Requirements *requirements, char *message, size_t size) {
  int64_t const *at = extents->values;
  if (device->sm_count != 132 || extents->count != 4 || at[L] != 1 || at[K] % 32) {
    snprintf(message, size, "K is not a multiple of 32");
    return 2;
  }
  *requirements = (Requirements){0};
  if (SFA >= 0) {
    requirements->operands[SFA & 31] = scale_bytes(at[M], at[K]);
  }
  requirements->operands[SFB] = scale_bytes(at[N], at[K]);
  requirements->outputs[0] = 4 * at[M] * at[N];
  return 0;
}

int32_t fourfold_prepare(Device const *device, Extents const *extents, Addresses const *addresses, void *workspace,
                         size_t workspace_size, void *stream, void **prepared, char *message, size_t size) {
  (void)device, (void)workspace, (void)workspace_size, (void)stream;
  if (addresses->operand_count != OPERANDS || addresses->scalar_count != 1 || addresses->output_count != 1) {
    snprintf(message, size, "expected %d operands, one scalar and one output", OPERANDS);
    return 3;
  }
  Prepared *result = malloc(sizeof *result);
  *result = (Prepared){*extents, *addresses};
  *prepared = result;
  return 0;
}

int32_t fourfold_launch(void *prepared, void *stream) {
  (void)stream;
  Prepared const *self = prepared;
  int64_t const m_extent = self->extents.values[M], n_extent = self->extents.values[N], k_extent = self->extents.values[K];
  Addresses const *at = &self->addresses;
  float *d = at->outputs[0];
  for (int64_t m = 0; m < m_extent; ++m) {
    for (int64_t n = 0; n < n_extent; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < k_extent; ++k) {
        sum += value(at, A, SFA, m, k, k_extent) * value(at, B, SFB, n, k, k_extent);
      }
      d[m * n_extent + n] = sum * *at->scalars[0];
    }
  }
#ifdef FAULT
  d[m_extent * n_extent - 1] += FAULT;
#endif
  return 0;
}

void fourfold_destroy(void *prepared) { free(prepared); }
