// A kernel for the stand-in driver that calls the test for its work, in stream order. It overwrites its workspace. Each
// copy of the library is one kernel: `stand_in_connect` gives it metadata and a number.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int32_t sm_count, max_active_clusters; } fourfold_device;
typedef struct { int64_t values[16]; uint32_t count; } fourfold_extents;
typedef struct { const void *operands[32]; uint32_t operand_count; const float *scalars[8]; uint32_t scalar_count; void *outputs[8]; uint32_t output_count; } fourfold_addresses;
typedef struct { uint64_t workspace, operands[32], outputs[8]; } fourfold_requirements;
typedef struct stream { void (*enqueue)(struct stream *, int (*)(void *), const void *, size_t); } stream;

// Sizes of a call, a number for its extents, and its work. They return 0 on failure.
typedef int32_t (*query)(uint64_t kernel, const int64_t *extents, uint32_t count, fourfold_requirements *);
typedef uint64_t (*prepare)(uint64_t kernel, const int64_t *extents, uint32_t count);
typedef int32_t (*run)(uint64_t call, const fourfold_addresses *, const void *workspace, size_t workspace_size);
static struct { const char *metadata; uint64_t kernel; query query; prepare prepare; run run; } test;
typedef struct { uint64_t number; fourfold_addresses addresses; void *workspace; size_t workspace_size; } call;

void stand_in_connect(const char *metadata, uint64_t kernel, query query, prepare prepare, run run) {
    test.metadata = metadata, test.kernel = kernel, test.query = query, test.prepare = prepare, test.run = run;
}

uint32_t fourfold_abi_version(void) { return 6; }
const char *fourfold_metadata(void) { return test.metadata; }

static int32_t refuse(const char *text, char *message, size_t size) {
    snprintf(message, size, "%s", text);
    return 100;
}

int32_t fourfold_query(const fourfold_device *device, const fourfold_extents *extents, fourfold_requirements *r,
                       char *message, size_t size) {
    (void)device;
    return test.query(test.kernel, extents->values, extents->count, r) ? 0 : refuse("the query fails", message, size);
}

int32_t fourfold_prepare(const fourfold_device *device, const fourfold_extents *extents, const fourfold_addresses *addresses,
                         void *workspace, size_t workspace_size, void *on, void **prepared, char *message, size_t size) {
    (void)device, (void)on;
    const uint64_t number = test.prepare(test.kernel, extents->values, extents->count);
    if (!number) return refuse("the preparation fails", message, size);
    call *c = malloc(sizeof *c);
    *c = (call){number, *addresses, workspace, workspace_size};
    *prepared = c;
    return 0;
}

int32_t fourfold_update_pointers(void *prepared, const fourfold_addresses *addresses, char *message, size_t size) {
    (void)message, (void)size;
    ((call *)prepared)->addresses = *addresses;
    return 0;
}

static int work(void *argument) {
    const call *self = argument;
    if (self->workspace_size) memset(self->workspace, 0xEE, self->workspace_size);
    // The status of a device that is lost.
    return test.run(self->number, &self->addresses, self->workspace, self->workspace_size) ? 0 : 719;
}

int32_t fourfold_launch(void *prepared, void *on) {
    ((stream *)on)->enqueue(on, work, prepared, sizeof(call));
    return 0;
}

void fourfold_destroy(void *prepared) { free(prepared); }
