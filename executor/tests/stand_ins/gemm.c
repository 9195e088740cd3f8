// A kernel that multiplies, for the stand-in driver: NVFP4 operands, blocked scales, f32 C. Its outputs, by signature,
// are f32 values, NVFP4 blocks and f32 reductions. A `block_quantize` of f32 values writes NVFP4 blocks. Extents and addresses follow the order of its metadata. It runs in
// stream order, overwrites its workspace, and omits the optional `fourfold_scale_offset`.
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int32_t sm_count, max_active_clusters; } fourfold_device;
typedef struct { int64_t values[16]; uint32_t count; } fourfold_extents;
typedef struct { const void *operands[32]; uint32_t operand_count; const float *scalars[8]; uint32_t scalar_count; void *outputs[8]; uint32_t output_count; } fourfold_addresses;
typedef struct { uint64_t workspace, operands[32], outputs[8]; } fourfold_requirements;
typedef struct { fourfold_extents extents; fourfold_addresses addresses; void *workspace; size_t workspace_size; } call;
typedef struct stream { void (*enqueue)(struct stream *, int (*)(void *), const void *, size_t); void (*load)(void); } stream;

#ifndef WORKSPACE
#define WORKSPACE 100
#endif
#ifndef EXTRA_SCALES
#define EXTRA_SCALES 0
#endif
// The position of an output whose reported size is one byte too large.
#ifndef EXTRA_OUTPUT
#define EXTRA_OUTPUT -1
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
// The number of runs that write their outputs. Later runs write nothing.
#ifndef RIGHT_RUNS
#define RIGHT_RUNS INT_MAX
#endif

// The test defines SIGNATURE and ROLES. ROLES holds the members `extents`, `operands`, `scalars` and `outputs` of a
// JSON object, in this order and without spaces.
#ifndef TARGET
#define TARGET "sm_100a"
#endif
#ifndef KERNEL
#define KERNEL "stand_in_gemm"
#endif
#ifdef EMULATED
#define EMULATED_TEXT "true"
#else
#define EMULATED_TEXT "false"
#endif

uint32_t fourfold_abi_version(void) { return 6; }
const char *fourfold_metadata(void) {
    return "{\"abi\":6,\"target\":\"" TARGET "\",\"kernel\":\"" KERNEL "\",\"tile\":[128,128,256],\"cluster\":[1,1,1],"
           "\"shared_memory\":0,\"threads\":256,\"signature\":\"" SIGNATURE "\"," ROLES
           ",\"emulated\":" EMULATED_TEXT "}";
}

static int32_t refuse(int32_t code, const char *text, char *message, size_t size) {
    if (message && size) snprintf(message, size, "%s", text);
    return code;
}

// Returns the position of a name in a list of the interface: `extents`, `operands`, `scalars` or `outputs`. Returns -1
// for an absent name, and the length of the list without a name.
static int find(const char *list, const char *name) {
    char begin[32];
    snprintf(begin, sizeof begin, "\"%s\":[", list);
    const char *at = strstr(ROLES, begin) + strlen(begin);
    int position = 0;
    for (int depth = 0; depth || *at != ']'; at++) {
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        if (*at != '"') continue;
        // A list holds names, or tensors whose member `role` is the name.
        const int is_role = !strncmp(at, "\"role\":\"", 8);
        at += is_role ? 8 : 1;
        const size_t length = strcspn(at, "\"");
        if (is_role || !depth) {
            if (name && strlen(name) == length && !strncmp(at, name, length)) return position;
            position++;
        }
        at += length;
    }
    return name ? -1 : position;
}

// A call, by the names of its roles. An absent extent is 1, an absent address is null.
typedef struct { int64_t l, m, n, k; } problem;
typedef struct { const uint8_t *a, *sfa, *b, *sfb; const float *c, *alpha, *beta, *values, *global, *operands[32]; void *outputs[8]; } pointers;

static int is_quantization(void) { return !strncmp(SIGNATURE, "block_quantize ", 15); }

static int64_t extent(const fourfold_extents *extents, const char *name) {
    int position = find("extents", name);
    return position < 0 ? 1 : extents->values[position];
}
static problem read_extents(const fourfold_extents *e) {
    return (problem){extent(e, "L"), extent(e, "M"), extent(e, is_quantization() ? "K" : "N"), extent(e, "K")};
}
static const void *operand(const fourfold_addresses *addresses, const char *role) {
    int position = find("operands", role);
    return position < 0 ? NULL : addresses->operands[position];
}
static const float *scalar(const fourfold_addresses *addresses, const char *role) {
    int position = find("scalars", role);
    return position < 0 ? NULL : addresses->scalars[position];
}
static pointers read_addresses(const fourfold_addresses *from) {
    pointers p = {.a = operand(from, "a"), .sfa = operand(from, "sfa"), .b = operand(from, "b"), .sfb = operand(from, "sfb"),
                  .c = operand(from, "c"), .alpha = scalar(from, "alpha"), .beta = scalar(from, "beta"),
                  .values = operand(from, "values"), .global = scalar(from, "global")};
    char role[16];
    for (int i = 0; i < 32; i++) snprintf(role, sizeof role, "x%d", i), p.operands[i] = operand(from, role);
    for (int i = 0; i < 8; i++) {
        snprintf(role, sizeof role, "y%d", i);
        int position = find("outputs", role);
        p.outputs[i] = position < 0 ? NULL : from->outputs[position];
    }
    return p;
}

static int64_t columns(int64_t k) { return (k / 16 + 3) / 4; }
static int64_t scales(int64_t rows, int64_t k) { return (rows + 127) / 128 * 512 * columns(k); }

// The value that an output is made from: the sum, the sum plus bias, or the relu of that.
enum { ACC, BIASED, LAST, MADE };
typedef struct { enum { VALUE, CODES, SCALES, SCALAR, ROW, COLUMN } kind; int made_of, global, is_max; } output;

// Parses the outputs of the signature.
static int parse(output *outputs) {
    int count = 0;
    for (const char *word = SIGNATURE; word; word = strchr(word, ' ')) {
        word += *word == ' ';
        size_t length = strcspn(word, " ");
        char text[64] = {0};
        memcpy(text, word, length < sizeof text ? length : sizeof text - 1);
        char *equals = strchr(text, '='), *at = strchr(text, '@'), *times = strchr(text, '*');
        if (!equals) continue;
        output o = {.made_of = !at ? LAST : !strcmp(at, "@acc") ? ACC : BIASED, .global = times ? atoi(times + 2) : -1};
        if (at) *at = 0;
        if (!strncmp(text, "d=", 2)) o.kind = VALUE;
        else if (!strncmp(text, "q=", 2)) {
            o.kind = CODES, outputs[count++] = o;
            o.kind = SCALES;
        } else if (!strncmp(text, "amax=", 5) || !strncmp(text, "max=", 4)) {
            o.is_max = text[0] == 'm';
            o.kind = !strcmp(equals, "=scalar") ? SCALAR : !strcmp(equals, "=row") ? ROW : COLUMN;
        } else continue;
        outputs[count++] = o;
    }
    return count;
}

static uint64_t bytes_of(const output *o, const problem *p) {
    uint64_t elements = (uint64_t)(p->l * p->m * p->n);
    switch (o->kind) {
    case VALUE: return elements * 4;
    case CODES: return elements / 2;
    case SCALES: return (uint64_t)(p->l * scales(p->m, p->n));
    case SCALAR: return 4;
    case ROW: return (uint64_t)p->n * 4;
    default: return (uint64_t)(p->l * p->m) * 4;
    }
}

int32_t fourfold_query(const fourfold_device *device, const fourfold_extents *extents, fourfold_requirements *r,
                       char *message, size_t size) {
    if (device->sm_count != 148) return refuse(100, "this is not the stand-in's device", message, size);
    if ((int)extents->count != find("extents", NULL)) return refuse(100, "the extents are others", message, size);
    const problem p = read_extents(extents);
    if (p.k == 160) return refuse(11, "K is 160", message, size);
    r->workspace = WORKSPACE;
    int sfa = find("operands", "sfa"), sfb = find("operands", "sfb");
    if (sfa >= 0) r->operands[sfa] = (uint64_t)(p.l * scales(p.m, p.k));
    if (sfb >= 0) r->operands[sfb] = (uint64_t)(p.l * scales(p.n, p.k)) + EXTRA_SCALES;
    output outputs[8];
    int count = parse(outputs);
    for (int i = 0; i < count; i++) {
        char role[16];
        snprintf(role, sizeof role, "y%d", i);
        int position = find("outputs", role);
        if (position >= 0) r->outputs[position] = bytes_of(&outputs[i], &p) + (i == EXTRA_OUTPUT);
    }
    return 0;
}

#ifdef CLEAR
static int clear(void *argument) {
    const call *self = argument;
    memset(self->workspace, 0, self->workspace_size);
    return CLEAR;
}
#endif

static int32_t check_addresses(const fourfold_addresses *addresses, char *message, size_t size) {
    output outputs[8];
    if ((int)addresses->operand_count != find("operands", NULL)) return refuse(101, "the operands are others", message, size);
    if ((int)addresses->scalar_count != find("scalars", NULL)) return refuse(101, "the scalars are others", message, size);
    if ((int)addresses->output_count != parse(outputs)) return refuse(101, "the outputs are others", message, size);
    for (uint32_t i = 0; i < addresses->operand_count; i++)
        if (!addresses->operands[i]) return refuse(101, "an operand is missing", message, size);
    for (uint32_t i = 0; i < addresses->scalar_count; i++)
        if (!addresses->scalars[i]) return refuse(101, "a scalar is missing", message, size);
    for (uint32_t i = 0; i < addresses->output_count; i++)
        if (!addresses->outputs[i]) return refuse(101, "an output is missing", message, size);
    const pointers named = read_addresses(addresses);
    if (is_quantization() ? !named.values : !named.a || !named.b) return refuse(101, "a pointer is missing", message, size);
    return 0;
}

int32_t fourfold_prepare(const fourfold_device *device, const fourfold_extents *extents, const fourfold_addresses *addresses,
                         void *workspace, size_t workspace_size, void *stream, void **prepared, char *message,
                         size_t size) {
    (void)device;
    if (stream) ((struct stream *)stream)->load();
#ifdef CLEAR
    call cleared = {.workspace = workspace, .workspace_size = workspace_size};
    ((struct stream *)stream)->enqueue(stream, clear, &cleared, sizeof cleared);
#endif
    if (PREPARE_STATUS) return refuse(PREPARE_STATUS, "the stand-in does not prepare", message, size);
    if (workspace_size < WORKSPACE || (WORKSPACE && !workspace)) return refuse(102, "no workspace", message, size);
    int32_t status = check_addresses(addresses, message, size);
    if (status) return status;
    call *c = malloc(sizeof *c);
    *c = (call){*extents, *addresses, workspace, workspace_size};
    *prepared = c;
    return 0;
}

int32_t fourfold_update_pointers(void *prepared, const fourfold_addresses *addresses, char *message, size_t size) {
    int32_t status = check_addresses(addresses, message, size);
    if (status) return status;
    if ((uintptr_t)read_addresses(addresses).a % 16) return refuse(101, "A is misaligned", message, size);
    ((call *)prepared)->addresses = *addresses;
    return 0;
}

static double magnitude(int code) {
    static const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return magnitudes[code & 7];
}
static double code(uint8_t byte, int64_t k) {
    int nibble = k % 2 ? byte >> 4 : byte & 15;
    return nibble & 8 ? -magnitude(nibble) : magnitude(nibble);
}
static double scale_value(int code) { return code >> 3 ? ldexp(8 + (code & 7), (code >> 3) - 10) : ldexp(code & 7, -9); }
static int64_t scale_at(int64_t row, int64_t k_extent, int64_t k) {
    int64_t c = k / 16;
    return (row / 128 * columns(k_extent) + c / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + c % 4;
}
static double scale(const uint8_t *scales, int64_t row, int64_t k_extent, int64_t k) {
    return scale_value(scales[scale_at(row, k_extent, k)] & 0x7F);
}

// Returns the code whose value is nearest, for values that ascend. A tie goes to the even code.
static int nearest(double (*value_of)(int), int codes, double value) {
    int best = 0;
    for (int i = 1; i < codes; i++) {
        double nearer = fabs(value_of(best) - value) - fabs(value_of(i) - value);
        if (nearer > 0 || (nearer == 0 && i % 2 == 0)) best = i;
    }
    return best;
}

static void quantize(const float *row, uint8_t *codes, uint8_t *scales, int64_t m, int64_t n, float global) {
    for (int64_t block = 0; block < n; block += 16) {
        float amax = 0;
        for (int i = 0; i < 16; i++) amax = fmaxf(amax, fabsf(row[block + i]));
        int scale = nearest(scale_value, 0x7F, amax / 6 / global);
        float step = (float)scale_value(scale) * global;
        scales[scale_at(m, n, block)] = (uint8_t)scale;
        for (int i = 0; i < 16; i += 2) {
            int pair = 0;
            for (int j = 0; j < 2 && step != 0; j++) {
                float quotient = row[block + i + j] / step;
                pair |= (nearest(magnitude, 8, fabsf(quotient)) | (signbit(quotient) ? 8 : 0)) << (4 * j);
            }
            codes[(block + i) / 2] = (uint8_t)pair;
        }
    }
}

static void reduce(const output *o, float *to, float value) {
    if (o->is_max ? value > *to : fabsf(value) > *to) *to = o->is_max ? value : fabsf(value);
}

static int run(void *argument) {
    const call *self = argument;
    const problem p = read_extents(&self->extents);
    const pointers named = read_addresses(&self->addresses), *q = &named;
    output outputs[8];
#ifdef WRITES_NOTHING
    const int count = 0;
#else
    static int runs;
    const int count = runs++ < RIGHT_RUNS ? parse(outputs) : 0;
#endif
    if (self->workspace_size) memset(self->workspace, 0xEE, self->workspace_size);
    for (int o = 0; o < count; o++) {
        int64_t bytes = (int64_t)bytes_of(&outputs[o], &p);
        if (outputs[o].kind == SCALES) memset(q->outputs[o], 0, (size_t)bytes);
        for (int64_t i = 0; outputs[o].kind >= SCALAR && i < bytes / 4; i++)
            ((float *)q->outputs[o])[i] = outputs[o].is_max ? -INFINITY : 0;
    }
    float *rows[MADE];
    for (int made = 0; made < MADE; made++) rows[made] = malloc((size_t)p.n * sizeof(float));
    for (int64_t row = 0; row < p.l * p.m; row++) {
        int64_t l = row / p.m, m = row % p.m;
        if (is_quantization()) memcpy(rows[LAST], q->values + row * p.n, (size_t)p.n * sizeof(float));
        for (int64_t n = 0; n < p.n && !is_quantization(); n++) {
            const uint8_t *a = q->a + row * p.k / 2, *b = q->b + (l * p.n + n) * p.k / 2;
            const uint8_t *sfa = q->sfa + l * scales(p.m, p.k), *sfb = q->sfb + l * scales(p.n, p.k);
            double sum = 0;
            for (int64_t k = 0; k < p.k; k++)
                sum += code(a[k / 2], k) * scale(sfa, m, p.k, k) * code(b[k / 2], k) * scale(sfb, n, p.k, k);
            float v = (float)sum;
            if (q->alpha) v *= *q->alpha;
            if (q->c) v = fmaf(q->beta ? *q->beta : 1, q->c[row * p.n + n], v);
            rows[ACC][n] = v;
            if (q->operands[0]) v += q->operands[0][n];
            rows[BIASED][n] = v;
#ifdef RELU
            v = v < 0 ? 0 : v;
#endif
            rows[LAST][n] = v;
        }
        for (int o = 0; o < count; o++) {
            const float *made = rows[outputs[o].made_of];
            switch (outputs[o].kind) {
            case VALUE: memcpy((float *)q->outputs[o] + row * p.n, made, (size_t)p.n * sizeof(float)); break;
            case CODES:
                quantize(made, (uint8_t *)q->outputs[o] + row * p.n / 2,
                         (uint8_t *)q->outputs[o + 1] + l * scales(p.m, p.n), m, p.n,
                         outputs[o].global >= 0 ? *q->operands[outputs[o].global] : q->global ? *q->global : 1);
                break;
            case SCALES: break;
            default:
                for (int64_t n = 0; n < p.n; n++) {
                    int64_t at = outputs[o].kind == SCALAR ? 0 : outputs[o].kind == ROW ? n : row;
                    reduce(&outputs[o], (float *)q->outputs[o] + at, made[n]);
                }
            }
        }
    }
    for (int made = 0; made < MADE; made++) free(rows[made]);
#ifdef SPOIL
    // Overwrites a byte of the last output, or one after its end.
    if (count) ((uint8_t *)q->outputs[count - 1])[SPOIL] = 0x5A;
#endif
    return RUN_STATUS;
}

int32_t fourfold_launch(void *prepared, void *on) {
    if (LAUNCH_STATUS) return LAUNCH_STATUS;
    ((stream *)on)->enqueue(on, run, prepared, sizeof(call));
    return 0;
}

void fourfold_destroy(void *prepared) { free(prepared); }

#ifdef EMULATION_FAULT
int32_t fourfold_fault(void *prepared, char *message, size_t size) {
  (void)prepared;
  if (EMULATION_FAULT != 0) {
    snprintf(message, size, "fault %d: columns of tensor memory that are not allocated", EMULATION_FAULT);
  }
  return EMULATION_FAULT;
}
#endif
