// A kernel for the stand-in driver, which runs in stream order. It computes y0[i] as the expression RESULT of x0[i] and
// x1[i], all f32, and overwrites its workspace. With GATHER, it is a `gather`, which reports an index outside its axis.
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

#ifdef GATHER
typedef struct { int32_t is_found, index; uint64_t position; } fault;
#define WORKSPACE sizeof(fault)
#define RESULT 0
#endif
#ifndef WORKSPACE
#define WORKSPACE 0
#endif

#ifndef TARGET
#define TARGET "sm_100a"
#endif
#ifndef KERNEL
#define KERNEL "stand_in_row"
#endif

uint32_t fourfold_abi_version(void) { return 6; }
const char *fourfold_metadata(void) {
    return "{\"abi\":6,\"target\":\"" TARGET "\",\"kernel\":\"" KERNEL "\",\"tile\":[1,1,1],\"cluster\":[1,1,1],"
           "\"shared_memory\":0,\"threads\":256,\"signature\":\"" SIGNATURE "\"," ROLES ",\"emulated\":false}";
}

static int64_t count(const fourfold_extents *extents) {
#ifdef GATHER
    // O, A, I and C: I is in bytes.
    return extents->values[0] * extents->values[2] * extents->values[3] / 4;
#endif
    int64_t product = 1;
    for (uint32_t i = 0; i < extents->count; i++) product *= extents->values[i];
    return product;
}

int32_t fourfold_query(const fourfold_device *device, const fourfold_extents *extents, fourfold_requirements *r,
                       char *message, size_t size) {
    (void)device, (void)message, (void)size;
    r->workspace = WORKSPACE;
    r->outputs[0] = (uint64_t)count(extents) * 4;
#ifdef GATHER
    r->operands[0] = (uint64_t)(extents->values[0] * extents->values[1] * extents->values[2]);
    r->operands[1] = (uint64_t)extents->values[3] * 4;
#endif
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
#ifdef GATHER
    memset(workspace, 0, WORKSPACE);
#endif
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

#ifdef GATHER
static int run(void *argument) {
    const call *self = argument;
    const int64_t *e = self->extents.values;
    const char *x = self->addresses.operands[0];
    const int32_t *indices = self->addresses.operands[1];
    char *y = self->addresses.outputs[0];
    fault *found = self->workspace;
    for (int64_t o = 0; o < e[0]; o++) {
        for (int64_t c = 0; c < e[3]; c++) {
            if (indices[c] >= 0 && indices[c] < e[1]) memcpy(y + (o * e[3] + c) * e[2], x + (o * e[1] + indices[c]) * e[2], (size_t)e[2]);
            else if (!found->is_found) *found = (fault){1, indices[c], (uint64_t)c};
        }
    }
    return 0;
}

int32_t fourfold_fault(void *prepared, char *message, size_t size) {
    const call *self = prepared;
    fault *found = self->workspace;
    if (!found->is_found) return 0;
    snprintf(message, size, "index %d, element %llu of the indices, is outside an axis of extent %lld", found->index,
             (unsigned long long)found->position, (long long)self->extents.values[1]);
    memset(found, 0, sizeof *found);
    return 104;
}
#else
static int run(void *argument) {
    const call *self = argument;
    const float *x0 = self->addresses.operands[0], *x1 = self->addresses.operands[1];
    float *y0 = self->addresses.outputs[0];
    if (WORKSPACE) memset(self->workspace, 0xEE, WORKSPACE);
    (void)x1;
    for (int64_t i = 0; i < count(&self->extents); i++) y0[i] = RESULT;
    return 0;
}
#endif

int32_t fourfold_launch(void *prepared, void *on) {
    ((stream *)on)->enqueue(on, run, prepared, sizeof(call));
    return 0;
}

void fourfold_destroy(void *prepared) { free(prepared); }
