// The interface of a generated kernel, answered by arithmetic: its functions compute what a test can predict.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ABI
#define ABI 4
#endif

typedef struct { int32_t sm_count, max_active_clusters; } fourfold_device;
typedef struct { int64_t l, m, n, k; } fourfold_problem;
typedef struct { const void *a, *sfa, *b, *sfb, *c; const float *alpha, *beta; const void *operands[24]; uint32_t operand_count; void *outputs[8]; uint32_t output_count; } fourfold_pointers;
typedef struct { uint64_t workspace, sfa, sfb, outputs[8]; } fourfold_requirements;
typedef struct { fourfold_problem problem; fourfold_pointers pointers; int launches; } call;

uint32_t fourfold_abi_version(void) { return ABI; }

#ifndef OLD
const char *fourfold_metadata(void) { return METADATA; }

static int32_t refuse(int32_t code, const char *text, char *message, size_t size) {
    if (message && size) snprintf(message, size, "%s", text);
    return code;
}

static uint64_t scales(int64_t rows, int64_t k) {
    return (uint64_t)((rows + 127) / 128 * 128) * (uint64_t)((k / 16 + 3) / 4 * 4);
}

int32_t fourfold_query(const fourfold_device *device, const fourfold_problem *p, fourfold_requirements *r,
                       char *message, size_t size) {
    if (p->m < 0 || p->l < 0) return refuse(100, "m is negative", message, size);
    if (p->k == 48) return 11;
    if (p->k == 49) { memset(message, 'x', size); return 103; } // no room is left for the end of the string
    r->workspace = (uint64_t)device->sm_count * 64 + (uint64_t)device->max_active_clusters;
    r->sfa = (uint64_t)p->l * scales(p->m, p->k);
    r->sfb = (uint64_t)p->l * scales(p->n, p->k);
    r->outputs[0] = (uint64_t)(p->l * p->m * p->n) * 4;
    r->outputs[7] = 7;
    return 0;
}

int32_t fourfold_prepare(const fourfold_device *device, const fourfold_problem *p, const fourfold_pointers *pointers,
                         void *workspace, size_t workspace_size, void *stream, void **prepared, char *message,
                         size_t size) {
    (void)device, (void)workspace, (void)stream;
    if (workspace_size < 64) return refuse(102, "64 bytes of workspace are needed", message, size);
    if (p->k == 7) { *prepared = NULL; return 0; }
    call *c = calloc(1, sizeof *c);
    c->problem = *p;
    c->pointers = *pointers;
    *prepared = c;
    return 0;
}

int32_t fourfold_update_pointers(void *prepared, const fourfold_pointers *pointers, char *message, size_t size) {
    if (!pointers->outputs[0]) return refuse(101, "D is missing", message, size);
    ((call *)prepared)->pointers = *pointers;
    return 0;
}

// Counts launches where D would be, and fails without a D.
int32_t fourfold_launch(void *prepared, void *stream) {
    call *c = prepared;
    (void)stream;
    if (!c->pointers.outputs[0]) return 104;
    *(int32_t *)c->pointers.outputs[0] = ++c->launches;
    for (uint32_t i = 1; i < c->pointers.output_count; i++) *(int32_t *)c->pointers.outputs[i] = c->launches * 10 * (int32_t)i;
    return 0;
}

// Leaves a mark where A would be.
void fourfold_destroy(void *prepared) {
    call *c = prepared;
    if (c->pointers.a) *(int32_t *)c->pointers.a = -1;
    free(c);
}

int64_t fourfold_scale_offset(int32_t operand, const fourfold_problem *p, int64_t row, int64_t block, int64_t batch) {
    int64_t columns = (p->k / 16 + 3) / 4, rows = operand ? p->n : p->m;
    return batch * (int64_t)scales(rows, p->k) + (row / 128 * columns + block / 4) * 512 + row % 32 * 16
         + row % 128 / 32 * 4 + block % 4;
}
#endif
