// A CUDA driver whose device memory is host memory. It queues work, and runs it only when a caller waits for it. Code
// that does not wait, or frees memory too early, therefore fails.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef INIT
#define INIT 0
#endif
#define DEVICES 2
#define EXPORT __attribute__((visibility("default")))

enum { NOT_READY = 600, OUT_OF_MEMORY = 2, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_SUPPORTED_WHILE_CAPTURED = 900,
       CAPTURE_INVALIDATED = 901, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905, ILLEGAL_ADDRESS = 700, UPDATE_FAILURE = 910 };

typedef int (*work)(void *);
// A kernel has one parameter, its argument.
struct op { work run; size_t size; unsigned cluster; struct op *next; void *parameters[1]; _Alignas(16) char argument[]; };
struct queue { struct op *first, **last; };
// Stand-in kernels call the first members of the stream that they receive: `load` when they are prepared, since a kernel
// is loaded onto the device then.
struct stream { void (*enqueue)(struct stream *, work, const void *, size_t); void (*load)(void); int capturing; struct queue work, recorded; void *context;
    // The stream whose capture this one is in, and whether its part of that capture has not been waited for.
    struct stream *origin; int unjoined; uint64_t capture; };
// `records` counts the records that were enqueued, `done` those that have run.
struct event { double time; int is_timed; uint64_t records, done; struct stream *last, *captured; };
struct memory { uint64_t address; size_t size; };

enum { LIMIT, FAULT, RESET, CURRENT, L2, CLUSTER, PINNED_LIMIT, SETTINGS };
#ifndef L2_BYTES
#define L2_BYTES (1 << 20)
#endif
static uint64_t settings[SETTINGS] = {[LIMIT] = UINT64_MAX, [L2] = L2_BYTES, [CLUSTER] = 2, [PINNED_LIMIT] = UINT64_MAX};
enum { MEMORIES, BYTES, STREAMS, EVENTS, CONTEXTS, WAITS, UP, DOWN, GRAPHS, ALLOCATIONS, LAUNCHES, DEPTH, STRAYS, PINNED, PINNED_ALLOCATIONS, PAGEABLE,
       COPIES, LOADS, COUNTERS };
static uint64_t counters[COUNTERS];

static struct memory memories[4096], pinned[64];
static struct stream *streams[256], default_stream;
static int lost, contexts[DEVICES];
static double now;
static _Thread_local void *stack[16];
static _Thread_local int depth;

// Threads use the driver one at a time. Work runs on the thread that waits, within the driver.
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int lock(void) { pthread_mutex_lock(&mutex); return 0; }
static void unlock(int *locked) { (void)locked; pthread_mutex_unlock(&mutex); }
#define LOCK __attribute__((cleanup(unlock), unused)) int locked = lock()

EXPORT void stand_in_set(int which, uint64_t value) {
    LOCK;
    settings[which] = value;
    if (which == FAULT) lost = 0;
    // Emulates a host that sets its own context.
    if (which == CURRENT) { if (!depth) depth = 1; stack[depth - 1] = &contexts[value]; }
    if (which != RESET) return;
    for (int i = 0; i < 4096; i++) {
        if (memories[i].size) free((void *)(uintptr_t)memories[i].address);
        memories[i].size = 0;
    }
    for (int i = 0; i < 64; i++) {
        if (pinned[i].size) free((void *)(uintptr_t)pinned[i].address);
        pinned[i].size = 0;
    }
    counters[MEMORIES] = counters[BYTES] = counters[PINNED] = 0;
}
EXPORT uint64_t stand_in_get(int which) { LOCK; return which == DEPTH ? (uint64_t)depth : counters[which]; }

static int ready(void) { return lost ? lost : depth == 0 ? INVALID_CONTEXT : 0; }
#define READY LOCK; do { int code = ready(); if (code) return code; } while (0)
// Returns whether a stream belongs to another context than the current one. The default stream belongs to all.
static int strays(const struct stream *stream) { return stream->context && (!depth || stack[depth - 1] != stream->context); }
#define MINE(stream) READY; do { if ((stream) && strays(stream)) { counters[STRAYS]++; return INVALID_CONTEXT; } } while (0)

static void push(struct queue *queue, work run, const void *argument, size_t size) {
    struct op *op = malloc(sizeof *op + size);
    op->run = run, op->size = size, op->next = NULL, op->parameters[0] = op->argument;
    op->cluster = (unsigned)settings[CLUSTER];
    memcpy(op->argument, argument, size);
    if (!queue->first) queue->last = &queue->first;
    *queue->last = op, queue->last = &op->next;
}
static void clear(struct queue *queue) {
    for (struct op *op = queue->first, *next; op; op = next) next = op->next, free(op);
    queue->first = NULL;
}
static void enqueue(struct stream *stream, work run, const void *argument, size_t size) {
    if (stream->origin) push(&stream->origin->recorded, run, argument, size), stream->unjoined = 1;
    else push(stream->capturing ? &stream->recorded : &stream->work, run, argument, size);
}
static void enqueue_kernel(struct stream *stream, work run, const void *argument, size_t size) {
    LOCK;
    counters[LAUNCHES]++, counters[STRAYS] += strays(stream);
    enqueue(stream, run, argument, size);
}
static void load(void) { LOCK; counters[LOADS]++; }
// Runs a stream's work, or its work up to a record of an event.
static int drain_until(struct stream *stream, const struct event *event, uint64_t record) {
    struct op *op;
    while ((op = stream->work.first) && !lost && !(event && event->done >= record)) {
        stream->work.first = op->next;
        now += 0.5;
        int code = op->run(op->argument);
        if (code) lost = code;
        free(op);
        if (!lost && settings[FAULT]) lost = (int)settings[FAULT];
    }
    if (lost) clear(&stream->work);
    return lost;
}
static int drain(struct stream *stream) { return drain_until(stream, NULL, 0); }
static int drain_all(void) {
    drain(&default_stream);
    for (int i = 0; i < 256; i++) if (streams[i]) drain(streams[i]);
    return lost;
}
static struct stream *of(struct stream *stream) { return stream ? stream : &default_stream; }
static int *capturing(struct stream *stream) { return stream->origin ? &stream->origin->capturing : &stream->capturing; }

static int within(uint64_t address, size_t size) {
    for (int i = 0; i < 4096; i++)
        if (memories[i].size && memories[i].address <= address && address + size <= memories[i].address + memories[i].size)
            return 1;
    return 0;
}

EXPORT int cuInit(unsigned flags) { return flags ? INVALID_VALUE : INIT; }
EXPORT int cuDriverGetVersion(int *version) { *version = VERSION; return INIT == 34 ? 34 : 0; }
EXPORT int cuGetErrorName(int code, const char **text) {
    static char name[64];
    snprintf(name, sizeof name, "CUDA_ERROR_%d", code);
    *text = name;
    return 0;
}
EXPORT int cuGetErrorString(int code, const char **text) { (void)code; *text = "the stand-in says so"; return 0; }

EXPORT int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < DEVICES ? 0 : INVALID_DEVICE; }
EXPORT int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "Stand-in %d", device); return 0; }
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)1 << 30; return 0; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? (device ? 9 : 10) : attribute == 76 ? 0 : attribute == 16 ? 148 : attribute == 38 ? (int)settings[L2] : 232448;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { LOCK; *context = &contexts[device]; counters[CONTEXTS]++; return 0; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { LOCK; (void)device; counters[CONTEXTS]--; return 0; }
EXPORT int cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : NULL; return 0; }
EXPORT int cuCtxPushCurrent_v2(void *context) { stack[depth++] = context; return 0; }
EXPORT int cuCtxPopCurrent_v2(void **context) { if (!depth) return INVALID_CONTEXT; *context = stack[--depth]; return 0; }
EXPORT int cuCtxSynchronize(void) { READY; counters[WAITS]++; return drain_all(); }

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    READY;
    if (!size) return INVALID_VALUE;
    if (counters[BYTES] + size > settings[LIMIT]) return OUT_OF_MEMORY;
    for (int i = 0; i < 4096; i++) {
        if (memories[i].size) continue;
        void *memory = aligned_alloc(256, (size + 255) / 256 * 256);
        memset(memory, 0x7F, size);
        memories[i] = (struct memory){(uint64_t)(uintptr_t)memory, size};
        *address = memories[i].address;
        counters[MEMORIES]++, counters[ALLOCATIONS]++, counters[BYTES] += size;
        return 0;
    }
    return OUT_OF_MEMORY;
}
EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total) {
    READY;
    *total = (size_t)1 << 30;
    *free = *total - counters[BYTES];
    return 0;
}
EXPORT int cuMemFree_v2(uint64_t address) {
    READY;
    drain_all();
    for (int i = 0; i < 4096; i++) {
        if (!memories[i].size || memories[i].address != address) continue;
        memset((void *)(uintptr_t)address, 0x7F, memories[i].size);
        free((void *)(uintptr_t)address);
        counters[MEMORIES]--, counters[BYTES] -= memories[i].size;
        memories[i].size = 0;
        return 0;
    }
    return INVALID_VALUE;
}

// Page-locked host memory.
EXPORT int cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
    READY;
    if (!size || flags) return INVALID_VALUE;
    uint64_t used = 0;
    for (int i = 0; i < 64; i++) used += pinned[i].size;
    if (used + size > settings[PINNED_LIMIT]) return OUT_OF_MEMORY;
    for (int i = 0; i < 64; i++) {
        if (pinned[i].size) continue;
        *memory = malloc(size);
        memset(*memory, 0x7F, size);
        pinned[i] = (struct memory){(uint64_t)(uintptr_t)*memory, size};
        counters[PINNED]++, counters[PINNED_ALLOCATIONS]++;
        return 0;
    }
    return OUT_OF_MEMORY;
}
EXPORT int cuMemFreeHost(void *memory) {
    READY;
    for (int i = 0; i < 64; i++) {
        if (!pinned[i].size || pinned[i].address != (uint64_t)(uintptr_t)memory) continue;
        // Work that still uses it would fail.
        memset(memory, 0x7F, pinned[i].size);
        free(memory);
        pinned[i].size = 0, counters[PINNED]--;
        return 0;
    }
    return INVALID_VALUE;
}
static void count_copy(const void *host, size_t size) {
    uint64_t address = (uint64_t)(uintptr_t)host;
    int locked = 0;
    for (int i = 0; i < 64; i++)
        locked |= pinned[i].size && pinned[i].address <= address && address + size <= pinned[i].address + pinned[i].size;
    counters[COPIES]++, counters[PAGEABLE] += !locked;
}

struct copy { void *to; const void *from; size_t size; int byte; };
static int run_copy(void *argument) {
    struct copy *copy = argument;
    if (copy->from) memcpy(copy->to, copy->from, copy->size);
    else memset(copy->to, copy->byte, copy->size);
    return 0;
}
static int put(struct stream *stream, uint64_t to, uint64_t from, size_t size, int byte) {
    struct copy copy = {(void *)(uintptr_t)to, (void *)(uintptr_t)from, size, byte};
    enqueue(of(stream), run_copy, &copy, sizeof copy);
    return 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, struct stream *stream) {
    MINE(stream);
    if (!within(to, size)) return INVALID_VALUE;
    counters[UP] += size, count_copy(from, size);
    return put(stream, to, (uint64_t)(uintptr_t)from, size, 0);
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, struct stream *stream) {
    MINE(stream);
    if (!within(from, size)) return INVALID_VALUE;
    counters[DOWN] += size, count_copy(to, size);
    return put(stream, (uint64_t)(uintptr_t)to, from, size, 0);
}
EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, struct stream *stream) {
    MINE(stream);
    return within(from, size) && within(to, size) ? put(stream, to, from, size, 0) : INVALID_VALUE;
}
EXPORT int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t size, struct stream *stream) {
    MINE(stream);
    return within(to, size) ? put(stream, to, 0, size, byte) : INVALID_VALUE;
}

EXPORT int cuStreamCreate(struct stream **stream, unsigned flags) {
    READY;
    (void)flags;
    for (int i = 0; i < 256; i++) {
        if (streams[i]) continue;
        *stream = streams[i] = calloc(1, sizeof **stream);
        (*stream)->enqueue = enqueue_kernel, (*stream)->load = load, (*stream)->context = stack[depth - 1];
        counters[STREAMS]++;
        return 0;
    }
    return OUT_OF_MEMORY;
}
EXPORT int cuStreamDestroy_v2(struct stream *stream) {
    LOCK;
    drain(stream);
    for (int i = 0; i < 256; i++) if (streams[i] == stream) streams[i] = NULL;
    clear(&stream->recorded);
    free(stream);
    counters[STREAMS]--;
    return 0;
}
EXPORT int cuStreamSynchronize(struct stream *stream) {
    MINE(stream);
    counters[WAITS]++;
    if (*capturing(of(stream))) { *capturing(of(stream)) = 2; return NOT_SUPPORTED_WHILE_CAPTURED; }
    return drain(of(stream));
}
EXPORT int cuStreamIsCapturing(struct stream *stream, int *status) {
    LOCK;
    *status = *capturing(of(stream));
    return 0;
}
EXPORT int cuStreamGetCaptureInfo_v3(struct stream *stream, int *status, uint64_t *number, void **graph, void **nodes, void **edges, size_t *count) {
    MINE(stream);
    (void)graph, (void)nodes, (void)edges, (void)count;
    struct stream *origin = of(stream)->origin ? of(stream)->origin : of(stream);
    *status = origin->capturing, *number = origin->capture;
    return 0;
}
EXPORT int cuStreamQuery(struct stream *stream) {
    MINE(stream);
    if (*capturing(of(stream))) { *capturing(of(stream)) = 2; return NOT_SUPPORTED_WHILE_CAPTURED; }
    return of(stream)->work.first ? NOT_READY : 0;
}
EXPORT int cuStreamBeginCapture_v2(struct stream *stream, int mode) {
    MINE(stream);
    (void)mode;
    if (!stream || stream->capturing) return NOT_SUPPORTED_WHILE_CAPTURED;
    static uint64_t captures;
    stream->capturing = 1, stream->capture = ++captures;
    return 0;
}
EXPORT int cuStreamEndCapture(struct stream *stream, struct queue **graph) {
    MINE(stream);
    int capturing = stream->capturing, unjoined = 0;
    stream->capturing = 0;
    for (int i = 0; i < 256; i++) {
        if (!streams[i] || streams[i]->origin != stream) continue;
        unjoined |= streams[i]->unjoined;
        streams[i]->origin = NULL, streams[i]->unjoined = 0;
    }
    *graph = NULL;
    if (capturing != 1 || unjoined) { clear(&stream->recorded); return unjoined ? CAPTURE_UNJOINED : CAPTURE_INVALIDATED; }
    *graph = calloc(1, sizeof **graph);
    **graph = stream->recorded;
    stream->recorded.first = NULL;
    counters[GRAPHS]++;
    return 0;
}
EXPORT int cuGraphInstantiateWithFlags(struct queue **executable, struct queue *graph, unsigned long long flags) {
    READY;
    (void)flags;
    *executable = calloc(1, sizeof **executable);
    for (struct op *op = graph->first; op; op = op->next) push(*executable, op->run, op->argument, op->size);
    counters[GRAPHS]++;
    return 0;
}
EXPORT int cuGraphLaunch(struct queue *executable, struct stream *stream) {
    MINE(stream);
    for (struct op *op = executable->first; op; op = op->next) enqueue(of(stream), op->run, op->argument, op->size);
    return 0;
}
EXPORT int cuGraphExecUpdate_v2(struct queue *executable, struct queue *graph, void *outcome) {
    READY;
    (void)outcome;
    const struct op *old = executable->first, *new = graph->first;
    while (old && new && old->run == new->run) old = old->next, new = new->next;
    if (old || new) return UPDATE_FAILURE;
    // Launches copy their work, so queued launches do not change.
    clear(executable);
    for (struct op *op = graph->first; op; op = op->next) push(executable, op->run, op->argument, op->size);
    return 0;
}
EXPORT int cuGraphDestroy(struct queue *graph) { LOCK; clear(graph); free(graph); counters[GRAPHS]--; return 0; }
EXPORT int cuGraphExecDestroy(struct queue *graph) { LOCK; drain_all(); return cuGraphDestroy(graph); }

// A node is its `op`, and so is the function of a kernel.
struct kernel_node { struct op *function; unsigned grid[3], block[3], shared; void **parameters, *extra, *kernel, *context; };
struct memset_node { uint64_t to; size_t pitch; unsigned value, element; size_t width, height; };
struct launch { unsigned grid[3], block[3], shared; struct stream *stream; unsigned *attributes, count; };
EXPORT int cuGraphGetNodes(struct queue *graph, struct op **nodes, size_t *count) {
    size_t found = 0;
    for (struct op *op = graph->first; op; op = op->next, found++) if (nodes && found < *count) nodes[found] = op;
    *count = found;
    return 0;
}
EXPORT int cuGraphNodeGetType(struct op *node, int *type) {
    *type = node->run != run_copy ? 0 : ((struct copy *)node->argument)->from ? 1 : 2;
    return 0;
}
EXPORT int cuGraphKernelNodeGetParams_v2(struct op *node, struct kernel_node *found) {
    *found = (struct kernel_node){node, {5, 2, 1}, {384, 1, 1}, 1000, node->parameters, NULL, NULL, NULL};
    return 0;
}
EXPORT int cuFuncGetParamInfo(struct op *function, size_t index, size_t *offset, size_t *size) {
    if (index) return INVALID_VALUE;
    *offset = 0, *size = function->size;
    return 0;
}
EXPORT int cuGraphKernelNodeGetAttribute(struct op *node, int attribute, unsigned *value) {
    if (attribute != 4) return INVALID_VALUE;
    value[0] = node->cluster, value[1] = value[2] = node->cluster != 0;
    return 0;
}
EXPORT int cuGraphMemsetNodeGetParams(struct op *node, struct memset_node *found) {
    struct copy *copy = (struct copy *)node->argument;
    *found = (struct memset_node){(uint64_t)(uintptr_t)copy->to, 0, (unsigned)copy->byte, 1, copy->size, 1};
    return 0;
}
EXPORT int cuLaunchKernelEx(const struct launch *launch, struct op *function, void **parameters, void **extra) {
    MINE(launch->stream);
    (void)extra;
    // The only attribute is the cluster size with which the kernel was recorded, if it has one.
    if (launch->grid[0] != 5 || launch->shared != 1000) return INVALID_VALUE;
    if (launch->count != (function->cluster != 0)) return INVALID_VALUE;
    if (launch->count && (launch->attributes[0] != 4 || launch->attributes[2] != function->cluster)) return INVALID_VALUE;
    enqueue_kernel(of(launch->stream), function->run, parameters[0], function->size);
    return 0;
}

static int run_event(void *argument) {
    struct event *event = *(struct event **)argument;
    event->time = now, event->done++;
    return 0;
}
EXPORT int cuEventCreate(struct event **event, unsigned flags) {
    READY;
    // Without times, or with them.
    if (flags != 2 && flags) return INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    (*event)->time = -1, (*event)->is_timed = !flags;
    counters[EVENTS]++;
    return 0;
}
EXPORT int cuEventRecord(struct event *event, struct stream *stream) {
    MINE(stream);
    event->last = of(stream);
    event->captured = of(stream)->origin ? of(stream)->origin : of(stream)->capturing ? of(stream) : NULL;
    if (event->captured) return 0;
    event->records++;
    enqueue(of(stream), run_event, &event, sizeof event);
    return 0;
}
struct wait { struct event *event; struct stream *stream; uint64_t record; };
// Runs the other stream's work only now, as late as the order of events allows.
static int run_wait(void *argument) {
    struct wait *wait = argument;
    return wait->event->done < wait->record ? drain_until(wait->stream, wait->event, wait->record) : 0;
}
EXPORT int cuStreamWaitEvent(struct stream *waiting, struct event *event, unsigned flags) {
    MINE(waiting);
    struct stream *stream = of(waiting);
    if (flags || !event->last) return INVALID_VALUE;
    struct stream *capture = stream->origin ? stream->origin : stream->capturing ? stream : NULL;
    if (event->captured) {
        // A stream joins the capture that it waits for, and has no work outside of it meanwhile.
        if (capture && capture != event->captured) return CAPTURE_ISOLATION;
        if (event->captured == stream) event->last->unjoined = 0;
        else stream->origin = event->captured, stream->unjoined = 1;
        return 0;
    }
    if (capture) return capture->capturing = 2, CAPTURE_ISOLATION;
    struct wait wait = {event, event->last, event->records};
    enqueue(stream, run_wait, &wait, sizeof wait);
    return 0;
}
EXPORT int cuEventSynchronize(struct event *event) { READY; return event->time < 0 ? drain_all() : 0; }
EXPORT int cuEventElapsedTime_v2(float *milliseconds, struct event *start, struct event *end) {
    READY;
    if (!start->is_timed || !end->is_timed) return INVALID_VALUE;
    if (start->time < 0 || end->time < 0) return 600;
    *milliseconds = (float)(end->time - start->time);
    return 0;
}
EXPORT int cuEventDestroy_v2(struct event *event) { LOCK; drain_all(); free(event); counters[EVENTS]--; return 0; }
