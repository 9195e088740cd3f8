// An elementwise f32 kernel for the stand-in driver: y0[i] is the expression RESULT of x0[i] and x1[i]. It runs in
// stream order, and overwrites its workspace.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int32_t sm_count, max_active_clusters; } fourfold_device;
typedef struct { int64_t values[16]; uint32_t count; } fourfold_extents;
typedef struct { const void *operands[32]; uint32_t operand_count; const float *scalars[8]; uint32_t scalar_count; void *outputs[8]; uint32_t output_count; } fourfold_addresses;
typedef struct { uint64_t workspace, operands[32], outputs[8]; } fourfold_requirements;
typedef struct { fourfold_extents extents; fourfold_addresses addresses; void *workspace; } call;
typedef struct stream { void (*enqueue)(struct stream *, int (*)(void *), const void *, size_t); void (*load)(void); } stream;

#ifndef WORKSPACE
#define WORKSPACE 0
#endif

uint32_t fourfold_abi_version(void) { return 6; }
const char *fourfold_metadata(void) {
    return "{\"abi\":6,\"target\":\"sm_100a\",\"kernel\":\"stand_in_row\",\"tile\":[1,1,1],\"cluster\":[1,1,1],"
           "\"shared_memory\":0,\"threads\":256,\"signature\":\"" SIGNATURE "\"," ROLES ",\"emulated\":false}";
}

static int64_t count(const fourfold_extents *extents) {
    int64_t product = 1;
    for (uint32_t i = 0; i < extents->count; i++) product *= extents->values[i];
    return product;
}

int32_t fourfold_query(const fourfold_device *device, const fourfold_extents *extents, fourfold_requirements *r,
                       char *message, size_t size) {
    (void)device, (void)message, (void)size;
    r->workspace = WORKSPACE;
    r->outputs[0] = (uint64_t)count(extents) * 4;
    return 0;
}

int32_t fourfold_prepare(const fourfold_device *device, const fourfold_extents *extents, const fourfold_addresses *addresses,
                         void *workspace, size_t workspace_size, void *stream, void **prepared, char *message,
                         size_t size) {
    (void)device;
    if (stream) ((struct stream *)stream)->load();
    if (workspace_size < WORKSPACE || (WORKSPACE && !workspace)) {
        snprintf(message, size, "no workspace");
        return 102;
    }
    call *c = malloc(sizeof *c);
    *c = (call){*extents, *addresses, workspace};
    *prepared = c;
    return 0;
}

int32_t fourfold_update_pointers(void *prepared, const fourfold_addresses *addresses, char *message, size_t size) {
    (void)message, (void)size;
    ((call *)prepared)->addresses = *addresses;
    return 0;
}

static int run(void *argument) {
    const call *self = argument;
    const float *x0 = self->addresses.operands[0], *x1 = self->addresses.operands[1];
    float *y0 = self->addresses.outputs[0];
    if (WORKSPACE) memset(self->workspace, 0xEE, WORKSPACE);
    (void)x1;
    for (int64_t i = 0; i < count(&self->extents); i++) y0[i] = RESULT;
    return 0;
}

int32_t fourfold_launch(void *prepared, void *on) {
    ((stream *)on)->enqueue(on, run, prepared, sizeof(call));
    return 0;
}

void fourfold_destroy(void *prepared) { free(prepared); }
