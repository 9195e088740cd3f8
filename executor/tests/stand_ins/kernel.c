// Implements the interface of a generated kernel with arithmetic whose results a test can predict.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ABI
#define ABI 6
#endif

typedef struct { int32_t sm_count, max_active_clusters; } fourfold_device;
// The extents are L, M, N and K. The first operands are A, SFA, B and SFB.
typedef struct { int64_t values[16]; uint32_t count; } fourfold_extents;
typedef struct { const void *operands[32]; uint32_t operand_count; const float *scalars[8]; uint32_t scalar_count; void *outputs[8]; uint32_t output_count; } fourfold_addresses;
typedef struct { uint64_t workspace, operands[32], outputs[8]; } fourfold_requirements;
typedef struct { fourfold_addresses addresses; int launches; } call;

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

int32_t fourfold_query(const fourfold_device *device, const fourfold_extents *extents, fourfold_requirements *r,
                       char *message, size_t size) {
    if (extents->count != 4) return refuse(100, "the extents are L, M, N, K", message, size);
    const int64_t l = extents->values[0], m = extents->values[1], n = extents->values[2], k = extents->values[3];
    if (m < 0 || l < 0) return refuse(100, "m is negative", message, size);
    if (k == 48) return 11;
    if (k == 49) { memset(message, 'x', size); return 103; } // leaves no room for the terminating zero
    r->workspace = (uint64_t)device->sm_count * 64 + (uint64_t)device->max_active_clusters;
    r->operands[1] = (uint64_t)l * scales(m, k);
    r->operands[3] = (uint64_t)l * scales(n, k);
    r->operands[31] = 31;
    r->outputs[0] = (uint64_t)(l * m * n) * 4;
    r->outputs[7] = 7;
    return 0;
}

int32_t fourfold_prepare(const fourfold_device *device, const fourfold_extents *extents, const fourfold_addresses *addresses,
                         void *workspace, size_t workspace_size, void *stream, void **prepared, char *message,
                         size_t size) {
    (void)device, (void)workspace, (void)stream;
    if (workspace_size < 64) return refuse(102, "64 bytes of workspace are needed", message, size);
    if (extents->values[3] == 7) { *prepared = NULL; return 0; }
    call *c = calloc(1, sizeof *c);
    c->addresses = *addresses;
    *prepared = c;
    return 0;
}

int32_t fourfold_update_pointers(void *prepared, const fourfold_addresses *addresses, char *message, size_t size) {
    if (!addresses->outputs[0]) return refuse(101, "D is missing", message, size);
    ((call *)prepared)->addresses = *addresses;
    return 0;
}

// Writes the number of launches to D, and fails without a D. The other outputs combine that number and the scalars.
int32_t fourfold_launch(void *prepared, void *stream) {
    call *c = prepared;
    const fourfold_addresses *q = &c->addresses;
    (void)stream;
    if (!q->outputs[0]) return 104;
    *(int32_t *)q->outputs[0] = ++c->launches;
    float sum = 0;
    for (uint32_t i = 0; i < q->scalar_count; i++) sum += *q->scalars[i] * (float)(i + 1);
    for (uint32_t i = 1; i < q->output_count; i++) *(int32_t *)q->outputs[i] = c->launches * 10 * (int32_t)i + (int32_t)sum;
    return 0;
}

// Writes a mark to each operand: its position, counted back from the end.
void fourfold_destroy(void *prepared) {
    call *c = prepared;
    const fourfold_addresses *q = &c->addresses;
    for (uint32_t i = 0; i < q->operand_count; i++)
        if (q->operands[i]) *(int32_t *)q->operands[i] = (int32_t)i - (int32_t)q->operand_count;
    free(c);
}

#ifndef NO_SCALES
int64_t fourfold_scale_offset(const char *role, const fourfold_extents *extents, int64_t row, int64_t block, int64_t batch) {
    const int64_t is_b = !strcmp(role, "sfb"), k = extents->values[3];
    if (!is_b && strcmp(role, "sfa")) return -1;
    int64_t columns = (k / 16 + 3) / 4, rows = extents->values[is_b ? 2 : 1];
    return batch * (int64_t)scales(rows, k) + (row / 128 * columns + block / 4) * 512 + row % 32 * 16
         + row % 128 / 32 * 4 + block % 4;
}
#endif
#endif
