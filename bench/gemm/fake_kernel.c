// A kernel's library for tests without a GPU: the interface of executor/src/kernel/abi.rs, over the host's memory, with
// f32 results. FAULT makes one element wrong.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { int32_t sm_count, max_active_clusters; } Device;
typedef struct { int64_t l, m, n, k; } Problem;
typedef struct { uint64_t workspace, sfa, sfb, outputs[8]; } Requirements;
typedef struct {
  void const *a, *sfa, *b, *sfb, *c;
  float const *alpha, *beta;
  void const *operands[24];
  uint32_t operand_count;
  void *outputs[8];
  uint32_t output_count;
} Pointers;
typedef struct { Problem problem; Pointers pointers; } Prepared;

static float code_value(uint8_t const *codes, int64_t at) {
  static float const values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  int const code = at % 2 ? codes[at / 2] >> 4 : codes[at / 2] & 15;
  return code & 8 ? -values[code & 7] : values[code & 7];
}

static float scale_value(uint8_t const *scales, int64_t row, int64_t group, int64_t groups) {
  int64_t const tile = row / 128 * ((groups + 3) / 4) + group / 4;
  uint8_t const code = scales[tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4];
  int const exponent = code >> 3 & 15, mantissa = code & 7;
  return exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
}

static uint64_t scale_bytes(int64_t rows, int64_t k) { return (rows + 127) / 128 * ((k / 16 + 3) / 4) * 512; }

uint32_t fourfold_abi_version(void) { return 4; }

char const *fourfold_metadata(void) { return "{\"kernel\":\"fake\",\"target\":\"host\"}"; }

int32_t fourfold_query(Device const *device, Problem const *p, Requirements *requirements, char *message, size_t size) {
  if (device->sm_count != 132 || p->l != 1 || p->k % 32) {
    snprintf(message, size, "K is no multiple of 32");
    return 2;
  }
  *requirements = (Requirements){.workspace = 0, .sfa = scale_bytes(p->m, p->k), .sfb = scale_bytes(p->n, p->k)};
  requirements->outputs[0] = 4 * p->m * p->n;
  return 0;
}

int32_t fourfold_prepare(Device const *device, Problem const *problem, Pointers const *pointers, void *workspace,
                         size_t workspace_size, void *stream, void **prepared, char *message, size_t size) {
  (void)device, (void)workspace, (void)workspace_size, (void)stream;
  if (pointers->operand_count != 0 || pointers->output_count != 1 || pointers->beta || pointers->c) {
    snprintf(message, size, "one output and no operands");
    return 3;
  }
  Prepared *result = malloc(sizeof *result);
  *result = (Prepared){*problem, *pointers};
  *prepared = result;
  return 0;
}

int32_t fourfold_launch(void *prepared, void *stream) {
  (void)stream;
  Prepared const *self = prepared;
  Problem const *p = &self->problem;
  Pointers const *at = &self->pointers;
  float *d = at->outputs[0];
  for (int64_t m = 0; m < p->m; ++m) {
    for (int64_t n = 0; n < p->n; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < p->k; ++k) {
        float const a = code_value(at->a, m * p->k + k) * scale_value(at->sfa, m, k / 16, p->k / 16);
        float const b = code_value(at->b, n * p->k + k) * scale_value(at->sfb, n, k / 16, p->k / 16);
        sum += a * b;
      }
      d[m * p->n + n] = sum * *at->alpha;
    }
  }
#ifdef FAULT
  d[p->m * p->n - 1] += FAULT;
#endif
  return 0;
}

void fourfold_destroy(void *prepared) { free(prepared); }
