// A kernel that really multiplies, on the stand-in driver: NVFP4 operands, blocked scales, f32 C and D. It is queued on
// the stream like any other work, and spoils its workspace.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int32_t sm_count, max_active_clusters; } fourfold_device;
typedef struct { int64_t l, m, n, k; } fourfold_problem;
typedef struct { const uint8_t *a, *sfa, *b, *sfb; const float *c, *alpha, *beta; float *d; const float *operands[24]; uint32_t operand_count; } fourfold_pointers;
typedef struct { uint64_t workspace, sfa, sfb; } fourfold_requirements;
typedef struct { fourfold_problem problem; fourfold_pointers pointers; void *workspace; size_t workspace_size; } call;
typedef struct stream { void (*enqueue)(struct stream *, int (*)(void *), const void *, size_t); } stream;

#ifndef WORKSPACE
#define WORKSPACE 100
#endif
#ifndef EXTRA_SCALES
#define EXTRA_SCALES 0
#endif
#ifndef LAUNCH_STATUS
#define LAUNCH_STATUS 0
#endif
#ifndef RUN_STATUS
#define RUN_STATUS 0
#endif
#ifndef PREPARE_STATUS
#define PREPARE_STATUS 0
#endif

// SIGNATURE is what the test says.
#ifndef TARGET
#define TARGET "sm_100a"
#endif
#ifdef EMULATED
#define EMULATED_TEXT "true"
#else
#define EMULATED_TEXT "false"
#endif

uint32_t fourfold_abi_version(void) { return 3; }
const char *fourfold_metadata(void) {
    return "{\"abi\":3,\"target\":\"" TARGET "\",\"kernel\":\"stand_in_gemm\",\"tile\":[128,128,256],\"cluster\":[1,1,1],"
           "\"shared_memory\":0,\"threads\":256,\"signature\":\"" SIGNATURE "\",\"emulated\":" EMULATED_TEXT "}";
}

static int32_t refuse(int32_t code, const char *text, char *message, size_t size) {
    if (message && size) snprintf(message, size, "%s", text);
    return code;
}
static int64_t columns(int64_t k) { return (k / 16 + 3) / 4; }
static int64_t scales(int64_t rows, int64_t k) { return (rows + 127) / 128 * 512 * columns(k); }

int32_t fourfold_query(const fourfold_device *device, const fourfold_problem *p, fourfold_requirements *r, char *message,
                       size_t size) {
    if (device->sm_count != 148) return refuse(100, "this is not the stand-in's device", message, size);
    if (p->k == 160) return refuse(11, "K is 160", message, size);
    r->workspace = WORKSPACE;
    r->sfa = (uint64_t)(p->l * scales(p->m, p->k));
    r->sfb = (uint64_t)(p->l * scales(p->n, p->k)) + EXTRA_SCALES;
    return 0;
}

#ifdef CLEAR
static int clear(void *argument) {
    const call *self = argument;
    memset(self->workspace, 0, self->workspace_size);
    return CLEAR;
}
#endif

int32_t fourfold_prepare(const fourfold_device *device, const fourfold_problem *p, const fourfold_pointers *pointers,
                         void *workspace, size_t workspace_size, void *stream, void **prepared, char *message,
                         size_t size) {
    (void)device, (void)stream;
#ifdef CLEAR
    call cleared = {.workspace = workspace, .workspace_size = workspace_size};
    ((struct stream *)stream)->enqueue(stream, clear, &cleared, sizeof cleared);
#endif
    if (PREPARE_STATUS) return refuse(PREPARE_STATUS, "the stand-in does not prepare", message, size);
    if (workspace_size < WORKSPACE || (WORKSPACE && !workspace)) return refuse(102, "no workspace", message, size);
    if (!pointers->a || !pointers->b || !pointers->d) return refuse(101, "a pointer is missing", message, size);
    call *c = malloc(sizeof *c);
    *c = (call){*p, *pointers, workspace, workspace_size};
    *prepared = c;
    return 0;
}

int32_t fourfold_update_pointers(void *prepared, const fourfold_pointers *pointers, char *message, size_t size) {
    if ((uintptr_t)pointers->a % 16) return refuse(101, "A is misaligned", message, size);
    ((call *)prepared)->pointers = *pointers;
    return 0;
}

static double code(uint8_t byte, int64_t k) {
    static const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    int nibble = k % 2 ? byte >> 4 : byte & 15;
    return nibble & 8 ? -magnitudes[nibble & 7] : magnitudes[nibble & 7];
}
static double scale(const uint8_t *scales, int64_t row, int64_t k_extent, int64_t k) {
    int64_t c = k / 16;
    int byte = scales[(row / 128 * columns(k_extent) + c / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + c % 4] & 0x7F;
    return byte >> 3 ? ldexp(8 + (byte & 7), (byte >> 3) - 10) : ldexp(byte & 7, -9);
}

static int run(void *argument) {
    const call *self = argument;
    const fourfold_problem p = self->problem;
    const fourfold_pointers *q = &self->pointers;
    memset(self->workspace, 0xEE, self->workspace_size);
    for (int64_t l = 0; l < p.l; l++)
        for (int64_t m = 0; m < p.m; m++)
            for (int64_t n = 0; n < p.n; n++) {
                const uint8_t *a = q->a + (l * p.m + m) * p.k / 2, *b = q->b + (l * p.n + n) * p.k / 2;
                const uint8_t *sfa = q->sfa + l * scales(p.m, p.k), *sfb = q->sfb + l * scales(p.n, p.k);
                double sum = 0;
                for (int64_t k = 0; k < p.k; k++)
                    sum += code(a[k / 2], k) * scale(sfa, m, p.k, k) * code(b[k / 2], k) * scale(sfb, n, p.k, k);
                float v = (float)sum;
                int64_t at = (l * p.m + m) * p.n + n;
                if (q->alpha) v *= *q->alpha;
                if (q->c) v = fmaf(q->beta ? *q->beta : 1, q->c[at], v);
                if (q->operand_count) v += q->operands[0][n];
#ifdef RELU
                v = v < 0 ? 0 : v;
#endif
                q->d[at] = v;
            }
    return RUN_STATUS;
}

int32_t fourfold_launch(void *prepared, void *on) {
    if (LAUNCH_STATUS) return LAUNCH_STATUS;
    ((stream *)on)->enqueue(on, run, prepared, sizeof(call));
    return 0;
}

void fourfold_destroy(void *prepared) { free(prepared); }

int64_t fourfold_scale_offset(int32_t operand, const fourfold_problem *p, int64_t row, int64_t block, int64_t batch) {
    (void)operand, (void)p, (void)row, (void)block, (void)batch;
    return -1;
}
