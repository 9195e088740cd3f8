// A sum of f32 for the stand-in driver: y0[i] is the sum of x0[c, i] over C rows. It runs in stream order. As kernels do
// that share a result among CTAs, it writes the sums of both halves of the rows to its workspace, and then adds them.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { int32_t sm_count, max_active_clusters; } fourfold_device;
typedef struct { int64_t values[16]; uint32_t count; } fourfold_extents;
typedef struct { const void *operands[32]; uint32_t operand_count; const float *scalars[8]; uint32_t scalar_count; void *outputs[8]; uint32_t output_count; } fourfold_addresses;
typedef struct { uint64_t workspace, operands[32], outputs[8]; } fourfold_requirements;
typedef struct { int64_t rows, columns; fourfold_addresses addresses; float *workspace; } call;
typedef struct stream { void (*enqueue)(struct stream *, int (*)(void *), const void *, size_t); } stream;

uint32_t fourfold_abi_version(void) { return 6; }
const char *fourfold_metadata(void) {
    return "{\"abi\":6,\"target\":\"sm_100a\",\"kernel\":\"stand_in_column\",\"tile\":[1,1,1],\"cluster\":[1,1,1],"
           "\"shared_memory\":0,\"threads\":256,\"signature\":\"" SIGNATURE "\"," ROLES ",\"emulated\":false}";
}

static uint64_t workspace_of(int64_t columns) { return (uint64_t)columns * 2 * sizeof(float); }

int32_t fourfold_query(const fourfold_device *device, const fourfold_extents *extents, fourfold_requirements *r,
                       char *message, size_t size) {
    (void)device;
    // O, A, B, C, I.
    if (extents->count != 5 || extents->values[0] != 1 || extents->values[1] != 1 || extents->values[2] != 1) {
        snprintf(message, size, "the extents are not [1, 1, 1, C, I]");
        return 100;
    }
    r->workspace = workspace_of(extents->values[4]);
    r->outputs[0] = (uint64_t)extents->values[4] * sizeof(float);
    return 0;
}

int32_t fourfold_prepare(const fourfold_device *device, const fourfold_extents *extents, const fourfold_addresses *addresses,
                         void *workspace, size_t workspace_size, void *stream, void **prepared, char *message,
                         size_t size) {
    (void)device, (void)stream;
    if (workspace_size < workspace_of(extents->values[4]) || !workspace) {
        snprintf(message, size, "no workspace");
        return 102;
    }
    call *c = malloc(sizeof *c);
    *c = (call){extents->values[3], extents->values[4], *addresses, workspace};
    *prepared = c;
    return 0;
}

int32_t fourfold_update_pointers(void *prepared, const fourfold_addresses *addresses, char *message, size_t size) {
    (void)message, (void)size;
    ((call *)prepared)->addresses = *addresses;
    return 0;
}

static int add_halves(void *argument) {
    const call *self = argument;
    const float *x0 = self->addresses.operands[0];
    int64_t const columns = self->columns, half = self->rows / 2;
    for (int64_t i = 0; i < 2 * columns; i++) self->workspace[i] = 0.0f;
    for (int64_t row = 0; row < self->rows; row++) {
        float *const part = self->workspace + (row < half ? 0 : columns);
        for (int64_t i = 0; i < columns; i++) part[i] += x0[row * columns + i];
    }
    return 0;
}

static int combine(void *argument) {
    const call *self = argument;
    float *y0 = self->addresses.outputs[0];
    for (int64_t i = 0; i < self->columns; i++) y0[i] = self->workspace[i] + self->workspace[self->columns + i];
    return 0;
}

int32_t fourfold_launch(void *prepared, void *on) {
    ((stream *)on)->enqueue(on, add_halves, prepared, sizeof(call));
    ((stream *)on)->enqueue(on, combine, prepared, sizeof(call));
    return 0;
}

void fourfold_destroy(void *prepared) { free(prepared); }
