// A cuBLASLt for the stand-in driver. It multiplies as its descriptors say, in stream order, overwrites its workspace,
// and refuses calls that the library refuses. Its results have the bits of the interpreter, which sums in f64 with k
// ascending and rounds once. Counters show what was asked of it.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 130100
#endif
// Bytes of workspace of every algorithm.
#ifndef WORKSPACE
#define WORKSPACE 1000
#endif
#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { F32 = 0, F16 = 2, BF16 = 14 };

enum { HANDLES, OBJECTS, SEARCHES, CALLS, COMPUTE, SCHEMES, LIMIT, ALIGNMENT, COUNTERS };
static uint64_t counters[COUNTERS];
enum { NO_FAST_ALGORITHM, NO_ALGORITHM, FAIL_CALLS, FAIL_CREATE, SETTINGS };
static uint64_t settings[SETTINGS];
EXPORT uint64_t stand_in_blas_get(int which) { return counters[which]; }
EXPORT void stand_in_blas_set(int which, uint64_t value) { settings[which] = value; }

typedef struct stream { void (*enqueue)(struct stream *, int (*)(void *), const void *, size_t); } stream;
struct operation { int compute, scale, transpose_a, transpose_b; };
struct layout { int type, count; uint64_t rows, columns; int64_t ld, stride; };
struct preference { uint64_t limit; uint32_t schemes, alignments[4]; };
// The first words of an opaque algorithm: a mark, and the alignments of A, B, C and D.
struct algorithm { uint32_t mark, alignments[4]; uint64_t rest[5]; };
struct result { struct algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };
_Static_assert(sizeof(struct algorithm) == 64 && sizeof(struct result) == 96, "as the library declares them");
enum { MARK = 0x4C744C74 };

EXPORT size_t cublasLtGetVersion(void) { return VERSION; }
EXPORT const char *cublasLtGetStatusName(int status) {
    switch (status) {
    case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    default: return NULL;
    }
}

EXPORT int cublasLtCreate(void **handle) {
    if (settings[FAIL_CREATE]) return NOT_INITIALIZED;
    counters[HANDLES]++;
    return (*handle = malloc(1)) ? SUCCESS : NOT_INITIALIZED;
}
EXPORT int cublasLtDestroy(void *handle) { counters[HANDLES]--; free(handle); return SUCCESS; }

static int create(void **object, const void *value, size_t size) {
    counters[OBJECTS]++;
    *object = malloc(size);
    memcpy(*object, value, size);
    return SUCCESS;
}
static int destroy(void *object) { counters[OBJECTS]--; free(object); return SUCCESS; }
static int put(void *to, const void *from, size_t needed, size_t size) {
    if (!from || size != needed) return INVALID_VALUE;
    memcpy(to, from, size);
    return SUCCESS;
}

EXPORT int cublasLtMatmulDescCreate(void **object, int compute, int scale) {
    struct operation made = {compute, scale, 0, 0};
    return create(object, &made, sizeof made);
}
EXPORT int cublasLtMatmulDescDestroy(void *object) { return destroy(object); }
EXPORT int cublasLtMatmulDescSetAttribute(struct operation *operation, int attribute, const void *value, size_t size) {
    switch (attribute) {
    case 3: return put(&operation->transpose_a, value, 4, size);
    case 4: return put(&operation->transpose_b, value, 4, size);
    default: return INVALID_VALUE;
    }
}

EXPORT int cublasLtMatrixLayoutCreate(void **object, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    struct layout made = {type, 1, rows, columns, ld, 0};
    return create(object, &made, sizeof made);
}
EXPORT int cublasLtMatrixLayoutDestroy(void *object) { return destroy(object); }
EXPORT int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *value, size_t size) {
    switch (attribute) {
    case 5: return put(&layout->count, value, 4, size);
    case 6: return put(&layout->stride, value, 8, size);
    default: return INVALID_VALUE;
    }
}

EXPORT int cublasLtMatmulPreferenceCreate(void **object) {
    struct preference made = {0, 7, {256, 256, 256, 256}};
    return create(object, &made, sizeof made);
}
EXPORT int cublasLtMatmulPreferenceDestroy(void *object) { return destroy(object); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(struct preference *preference, int attribute, const void *value, size_t size) {
    switch (attribute) {
    case 1: return put(&preference->limit, value, 8, size);
    case 3: return put(&preference->schemes, value, 4, size);
    case 5: case 6: case 7: case 8: return put(&preference->alignments[attribute - 5], value, 4, size);
    default: return INVALID_VALUE;
    }
}

static int is_type(int type) { return type == F32 || type == F16 || type == BF16; }
static uint64_t rows_of(const struct layout *layout, int transposed) { return transposed ? layout->columns : layout->rows; }
static uint64_t columns_of(const struct layout *layout, int transposed) { return transposed ? layout->rows : layout->columns; }

// Checks what the library's documentation requires of a product.
static int check(const struct operation *operation, const struct layout *a, const struct layout *b,
                 const struct layout *c, const struct layout *d) {
    const struct layout *all[] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        const struct layout *it = all[i];
        if (!is_type(it->type) || !it->rows || !it->columns || it->ld < (int64_t)it->rows) return INVALID_VALUE;
        if (it->count != d->count || it->count < 1) return INVALID_VALUE;
        if (it->count > 1 && it->stride < it->ld * (int64_t)it->columns) return INVALID_VALUE;
    }
    const uint64_t m = rows_of(a, operation->transpose_a), k = columns_of(a, operation->transpose_a);
    if (k != rows_of(b, operation->transpose_b)) return INVALID_VALUE;
    if (d->rows != m || d->columns != columns_of(b, operation->transpose_b)) return INVALID_VALUE;
    if (c->rows != d->rows || c->columns != d->columns || c->type != d->type) return INVALID_VALUE;
    if (operation->scale != F32 || (operation->compute != 68 && operation->compute != 69)) return NOT_SUPPORTED;
    if (a->type != b->type || (d->type != F32 && d->type != a->type)) return NOT_SUPPORTED;
    return SUCCESS;
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, const struct operation *operation, const struct layout *a,
                                          const struct layout *b, const struct layout *c, const struct layout *d,
                                          const struct preference *preference, int requested,
                                          struct result *results, int *count) {
    if (!handle || requested < 1) return INVALID_VALUE;
    int status = check(operation, a, b, c, d);
    if (status) return status;
    counters[SEARCHES]++;
    counters[SCHEMES] = preference->schemes, counters[LIMIT] = preference->limit;
    *count = 0;
    const int is_fast = preference->alignments[0] >= 16;
    if (settings[NO_ALGORITHM] || (is_fast && settings[NO_FAST_ALGORITHM])) return NOT_SUPPORTED;
    // The first result is not usable, as the library marks it.
    memset(results, 0xFF, sizeof *results);
    results->state = NOT_SUPPORTED;
    *count = 1;
    if (requested == 1 || preference->limit < WORKSPACE) return SUCCESS;
    struct result found = {{MARK, {0}, {0}}, WORKSPACE, SUCCESS, 1.0f, {0}};
    memcpy(found.algorithm.alignments, preference->alignments, sizeof preference->alignments);
    results[1] = found;
    *count = 2;
    return SUCCESS;
}

static float widened(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
static uint32_t bits_of(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }
static float read(const void *from, int type, int64_t at) {
    if (type == F32) return ((const float *)from)[at];
    if (type == BF16) return widened((uint32_t)((const uint16_t *)from)[at] << 16);
    return (float)((const _Float16 *)from)[at];
}
static void write(void *to, int type, int64_t at, double value) {
    if (type == F32) { ((float *)to)[at] = (float)value; return; }
    if (type == F16) { ((_Float16 *)to)[at] = (_Float16)value; return; }
    if (value != value) { ((uint16_t *)to)[at] = 0x7FC0; return; }
    // Rounds to odd first: a sum beside a tie of bf16 must not become that tie.
    float near = (float)value;
    uint32_t bits = bits_of(near);
    if ((double)near != value && (bits & 1) == 0) bits += (double)near < value == (value > 0) ? 1 : -1;
    ((uint16_t *)to)[at] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct call {
    struct operation operation;
    struct layout a, b, d;
    const void *from_a, *from_b;
    void *to, *workspace;
    size_t workspace_size;
};
static int run(void *argument) {
    const struct call *call = argument;
    const struct layout *a = &call->a, *b = &call->b, *d = &call->d;
    const int transpose_a = call->operation.transpose_a, transpose_b = call->operation.transpose_b;
    const int64_t k = (int64_t)columns_of(a, transpose_a);
    if (call->workspace_size) memset(call->workspace, 0xEE, call->workspace_size);
    for (int64_t l = 0; l < d->count; l++)
        for (int64_t column = 0; column < (int64_t)d->columns; column++)
            for (int64_t row = 0; row < (int64_t)d->rows; row++) {
                double sum = 0;
                for (int64_t i = 0; i < k; i++) {
                    const int64_t of_a = transpose_a ? i + row * a->ld : row + i * a->ld;
                    const int64_t of_b = transpose_b ? column + i * b->ld : i + column * b->ld;
                    sum += (double)read(call->from_a, a->type, l * a->stride + of_a)
                         * read(call->from_b, b->type, l * b->stride + of_b);
                }
                write(call->to, d->type, l * d->stride + column * d->ld + row, sum);
            }
    return 0;
}

static int is_aligned(const void *address, uint32_t alignment) { return (uintptr_t)address % alignment == 0; }

EXPORT int cublasLtMatmul(void *handle, const struct operation *operation, const float *alpha, const void *from_a,
                          const struct layout *a, const void *from_b, const struct layout *b, const float *beta,
                          const void *from_c, const struct layout *c, void *to, const struct layout *d,
                          const struct algorithm *algorithm, void *workspace, size_t workspace_size, stream *on) {
    if (!handle || *alpha != 1 || *beta != 0 || algorithm->mark != MARK) return INVALID_VALUE;
    int status = check(operation, a, b, c, d);
    if (status) return status;
    if (settings[FAIL_CALLS]) return (int)settings[FAIL_CALLS];
    if (workspace_size < WORKSPACE || !is_aligned(workspace, 256)) return INVALID_VALUE;
    const void *addresses[] = {from_a, from_b, from_c, to};
    for (int i = 0; i < 4; i++) if (!addresses[i] || !is_aligned(addresses[i], algorithm->alignments[i])) return INVALID_VALUE;
    struct call call = {*operation, *a, *b, *d, from_a, from_b, to, workspace, workspace_size};
    counters[CALLS]++, counters[COMPUTE] = (uint64_t)operation->compute, counters[ALIGNMENT] = algorithm->alignments[0];
    on->enqueue(on, run, &call, sizeof call);
    return SUCCESS;
}
