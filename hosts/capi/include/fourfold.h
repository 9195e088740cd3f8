/*
 * Fourfold: a fusion backend for block-scaled FP4 matrix multiplication.
 *
 * The library exports one function, fourfold_plugin_query, which returns a table of functions. Every other function is
 * reached through this table. hosts/capi/README.md has an overview, hosts/capi/examples/ complete programs.
 *
 * Rules:
 *  - The ABI grows by appending fields. An argument struct begins with its size, which tells the library how many of
 *    its fields the caller knows. FOURFOLD_INIT sets it. Fields that the caller does not know have their default.
 *  - Every call returns NULL, or an error that the caller frees with error_destroy. A struct's "out" fields are written
 *    on success only. After an error of a run or a launch, the contents of output tensors are undefined.
 *  - Handles are freed with their *_destroy function, which takes NULL. A handle keeps what it was made from alive, so
 *    the order does not matter. A handle must not be destroyed while another call uses it.
 *  - The caller allocates outputs. module_info has their shapes and sizes. Outputs may not overlap other tensors.
 *  - Strings, tensors and the program's text are borrowed for the duration of a call. "Owned by H" means: valid until
 *    the handle H is destroyed.
 *  - Functions may be called from any thread. Calls on one session or one prepared program are serialized. No CUDA
 *    context has to be current: the library uses the primary context of the device.
 *  - Do not close the library after dlopen: its threads outlive a call. After the first run, a process that was forked
 *    must not call it: the threads exist in the parent only.
 */
#ifndef FOURFOLD_H
#define FOURFOLD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FOURFOLD_ABI_MAJOR 1u /* changes with each break */
#define FOURFOLD_ABI_MINOR 0u /* changes when fields or functions are appended */

/* Initializes an argument struct: FOURFOLD_INIT(fourfold_compile_args, args); */
#ifdef __cplusplus
#define FOURFOLD_INIT(type, name) \
  type name{};                    \
  name.struct_size = sizeof(type)
#else
#define FOURFOLD_INIT(type, name) \
  type name = {0};                \
  name.struct_size = sizeof(type)
#endif

typedef struct {
  uint32_t major, minor;
} fourfold_version;

/* UTF-8 text, not terminated. */
typedef struct {
  const char *ptr;
  size_t len;
} fourfold_str;

typedef struct {
  fourfold_str key, value;
} fourfold_option;

typedef struct fourfold_error fourfold_error;
typedef struct fourfold_backend fourfold_backend;
typedef struct fourfold_report fourfold_report;
typedef struct fourfold_module fourfold_module;
typedef struct fourfold_info fourfold_info;
typedef struct fourfold_session fourfold_session;
typedef struct fourfold_prepared fourfold_prepared;

/* Error codes. error_reason has a more specific code, such as "no_device": hosts/capi/README.md lists them. */
enum {
  FOURFOLD_INVALID_ARGUMENT = 3,    /* the program, a tensor or an argument is wrong */
  FOURFOLD_RESOURCE_EXHAUSTED = 8,  /* memory, disk or processes ran out */
  FOURFOLD_FAILED_PRECONDITION = 9, /* no driver or device, the device failed, files are unusable, or a kernel is not
                                       built (yet) */
  FOURFOLD_UNIMPLEMENTED = 12,      /* Fourfold cannot do this: the host keeps its own path */
  FOURFOLD_INTERNAL = 13            /* a bug in Fourfold */
};

/* Features of the library. */
enum {
  FOURFOLD_FEATURE_CUDA = 1u << 0,        /* runs kernels where the driver is installed */
  FOURFOLD_FEATURE_CPU_FALLBACK = 1u << 1 /* runs any program on the CPU */
};

/* The kind of a segment. */
enum {
  FOURFOLD_TIER_KERNEL = 0,  /* one generated kernel, rooted at one scaled_mma */
  FOURFOLD_TIER_DEVICE = 1,  /* on the GPU, without a scaled_mma */
  FOURFOLD_TIER_FALLBACK = 2, /* on the CPU */
  FOURFOLD_TIER_REMOVED = 3 /* an op that normalization removed: it is in no segment */
};

/* The memory layout of scales. */
enum {
  FOURFOLD_LAYOUT_NONE = 0,   /* no scales: dense, row-major */
  FOURFOLD_LAYOUT_LINEAR = 1, /* [.., rows, K / block], row-major, as checkpoints store scales */
  FOURFOLD_LAYOUT_BLOCKED = 2 /* padded to 128 x 4 per matrix and swizzled, as the hardware reads scales */
};

/* Bits of fourfold_port.flags. */
enum {
  FOURFOLD_PORT_PARAM = 1u << 0 /* the same in every call, such as a weight */
};

/* Bits of fourfold_compile_args.flags. */
enum {
  FOURFOLD_COMPILE_IN_BACKGROUND = 1u << 0 /* return before the kernels are built: see module_wait */
};

/*
 * A tensor: field for field the DLTensor of DLPack 1.x, 48 bytes.
 *
 * The memory is compact and row-major; strides may be NULL. The shape has the extents of the port, so blocked scales of
 * an [M, K/16] port have the shape [M, K/16], and their memory is the padded storage: fourfold_port.bytes.
 *
 * Types by DLPack code and bits: f32 (2, 32), f16 (2, 16), bf16 (4, 16), i32 (0, 32), i1 (6, 8), f8E4M3FN (10, 8),
 * f8E5M2 (12, 8), f8E8M0FNU (14, 8), f6E2M3FN (15, 6), f6E3M2FN (16, 6), f4E2M1FN (17, 4). FP4 packs two elements into a
 * byte, the element of even index in the low nibble. It has lanes = 1 and the extent K, or lanes = 2 and the extent K/2.
 * FP6 packs four elements into three bytes, low bits first. Every type of at most 8 bits also crosses as uint8 (1, 8): FP4
 * then has the extent K/2, and FP6 3*K/4.
 */
typedef struct {
  void *data;
  struct {
    int32_t type; /* 1: host, 2: CUDA, 3: CUDA host */
    int32_t id;   /* ordinal of the device */
  } device;
  int32_t ndim;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} fourfold_tensor;

#define FOURFOLD_NO_SEGMENT 0xFFFFFFFFu

/* The decision for one op of the program as given, in the order of its text. */
typedef struct {
  uint32_t op;      /* position in the program */
  uint32_t segment; /* position of its segment; FOURFOLD_NO_SEGMENT if it was removed */
  uint32_t tier;    /* FOURFOLD_TIER_* */
  uint32_t reserved;
  fourfold_str name;    /* "%result = mnemonic" */
  fourfold_str reason;  /* the stable code of the reason that the op is in no kernel; empty if there is none */
  fourfold_str message; /* that reason, for people */
} fourfold_decision;

/* Ops that run together. */
typedef struct {
  uint32_t tier; /* FOURFOLD_TIER_* */
  uint32_t op_count;
  fourfold_str name; /* the plan's signature; empty on the fallback */
} fourfold_segment;

/* An input or output of a module. */
typedef struct {
  fourfold_str name;
  fourfold_str type;    /* its type in the text of the program, such as "tensor<[M, 384], bf16>" */
  const int64_t *shape; /* extents of elements; -1 for an extent that the given symbols do not determine */
  int32_t ndim;
  uint8_t code, bits; /* DLPack type of an element; FP4 has lanes = 1 */
  uint16_t lanes;
  uint32_t layout; /* FOURFOLD_LAYOUT_* */
  uint32_t flags;  /* FOURFOLD_PORT_* */
  int64_t bytes;   /* of its memory, padding of blocked scales included; -1 if the extents are not determined */
} fourfold_port;

/* The extent of a symbol, such as M = 91. */
typedef struct {
  fourfold_str name;
  int64_t extent;
} fourfold_symbol;

/*
 * Receives progress lines; level 0 is information, 1 a warning. May be called on any thread until the process ends, so
 * `user` must stay valid as long. It must not call functions of the library.
 */
typedef void (*fourfold_log_fn)(void *user, int32_t level, fourfold_str line);

/*
 * Options of a backend, all optional:
 *   target      target to plan for, such as "sm_120a" or "cpu" [default: the GPU's own, else "sm_100a"; with
 *               emulate, the first target that can be emulated]
 *   device      ordinal of the GPU, or "none" [default: the first GPU, if there is one]; FOURFOLD_DEVICE is not read
 *   claim       "everything", "device" or "kernels_only" [default: everything]; for query_support: a module whose
 *               program has other ops cannot be run as a whole
 *   contract    "true" lets normalization drop roundings that the program states [default: false]
 *   keep_weights  "true" keeps the layout of params, which launches without a session would otherwise rearrange each
 *               time where one kernel then computes two products [default: false]
 *   dispatch    file of dispatch tables, as `fourfold select` writes them, which select kernels for the targets and
 *               formats they name [default: the tables of the library]
 *   emulate     "true" runs Blackwell kernels on a Hopper GPU, for tests [default: false]
 *   provision   "true" installs the pinned compiler if none is found [default: false]
 *   known_bad   "true" allows compilers with known miscompilations [default: false]
 *   cache       folder for built kernels, or "none", which excludes tiers [default: the user's cache folder]
 *   tiers       files of `fourfold pack` and shared folders with built kernels, separated by commas; their code is run
 *               [default: FOURFOLD_CACHE_TIERS]
 *   jobs        number of concurrent compilers [default: by cores and memory]
 *   build       "always" builds kernels that this machine cannot run, too [default: "needed"]
 */
typedef struct {
  size_t struct_size;
  void *ext; /* NULL */
  const fourfold_option *options;
  size_t option_count;
  fourfold_log_fn log; /* NULL: no log */
  void *log_user;
  fourfold_backend *backend; /* out */
} fourfold_backend_create_args;

/* Plans a program, builds nothing. */
typedef struct {
  size_t struct_size;
  void *ext;
  fourfold_backend *backend;
  fourfold_str ir;                    /* the program's text: docs/reference/language.md */
  fourfold_report *report;            /* out; owns the following */
  const fourfold_decision *decisions; /* out: one for each op */
  size_t decision_count;              /* out */
  const fourfold_segment *segments;   /* out: in an order in which they can run */
  size_t segment_count;               /* out */
} fourfold_query_support_args;

/* Plans a program and builds its kernels. A kernel that cannot be built is no error: its segment runs on the CPU. */
typedef struct {
  size_t struct_size;
  void *ext;
  fourfold_backend *backend;
  fourfold_str ir;
  uint32_t flags; /* FOURFOLD_COMPILE_* */
  uint32_t reserved;
  fourfold_module *module; /* out */
} fourfold_compile_args;

/* Waits for kernels that are built in the background. */
typedef struct {
  size_t struct_size;
  void *ext;
  fourfold_module *module;
  int64_t timeout_ms; /* -1: no limit; 0, as FOURFOLD_INIT sets it: only ask */
  uint32_t is_ready;  /* out: 1 if no kernel is being built */
  uint32_t reserved;
} fourfold_module_wait_args;

/* Describes a module, for given extents if they are known. */
typedef struct {
  size_t struct_size;
  void *ext;
  const fourfold_module *module;
  const fourfold_symbol *symbols; /* some or all of the program's symbols */
  size_t symbol_count;
  fourfold_info *info;                   /* out; owns the following */
  const fourfold_port *inputs, *outputs; /* out */
  size_t input_count, output_count;      /* out */
  const fourfold_str *symbol_names;      /* out: the program's symbols */
  size_t symbol_name_count;              /* out */
  int64_t workspace_size;                /* out: bytes for prepare, -1 if it would fail or the extents are unknown */
  size_t workspace_align;                /* out */
  uint32_t is_ready;                     /* out: 1 if no kernel is being built */
  uint32_t is_capturable;                /* out: 1 if nothing known prevents prepare on the module */
  fourfold_str why_not;                  /* out: the reason if something does */
  fourfold_str compat;                   /* out: a stored plan is valid for a library that returns the same text */
} fourfold_module_info_args;

/*
 * Runs a module once, and returns when the outputs are written. The tensors are in the order of the module's ports. If
 * all are on the host, segments without a kernel run on the CPU. If all are on one device, every segment must run
 * there: nothing falls back. Then the work is put on `stream`, a CUstream of the device's primary context (NULL: the
 * default stream), and this call waits for it. Tensors in both places are an error; a session takes them. A session
 * or a prepared program is faster for repeated calls.
 */
typedef struct {
  size_t struct_size;
  void *ext;
  const fourfold_module *module;
  const fourfold_tensor *inputs, *outputs;
  size_t input_count, output_count;
  void *stream;
  const fourfold_symbol *symbols; /* extents that no input's shape determines, such as those of a product "B*S" */
  size_t symbol_count;
} fourfold_execute_args;

/*
 * Takes the params of a module, for repeated calls. They are copied, and uploaded once. Values that depend on params
 * only are computed once.
 */
typedef struct {
  size_t struct_size;
  void *ext;
  fourfold_module *module;
  const fourfold_tensor *params; /* on the host, in the order of the ports with FOURFOLD_PORT_PARAM */
  size_t param_count;
  const fourfold_symbol *symbols; /* extents that no input's shape determines */
  size_t symbol_count;
  fourfold_session *session; /* out */
} fourfold_session_create_args;

/*
 * Runs a session once, and returns when the outputs are written. Each tensor is on the host or on the device. The
 * session has a stream of its own, so work that writes device memory of an input must have ended. If a segment cannot
 * run on the device, the call runs segment by segment, some of them on the CPU.
 */
typedef struct {
  size_t struct_size;
  void *ext;
  fourfold_session *session;
  const fourfold_tensor *inputs, *outputs; /* inputs: the ports without FOURFOLD_PORT_PARAM, in order */
  size_t input_count, output_count;
  uint32_t was_prepared; /* out: 1 if every segment ran on the device */
  uint32_t reserved;
} fourfold_session_run_args;

/*
 * Prepares launches for given extents, of either a module or a session. Fails if a segment would run on the CPU. Waits
 * for the stream, which must not be captured.
 *
 * An output may overlap no other tensor, nor the workspace. Some kernels need aligned addresses, such as those of
 * cuMemAlloc.
 */
typedef struct {
  size_t struct_size;
  void *ext;
  fourfold_module *module;   /* launches read every input, params included; or NULL */
  fourfold_session *session; /* launches read the inputs that are no params; or NULL */
  const fourfold_symbol *symbols; /* every symbol of the program */
  size_t symbol_count;
  void *const *inputs;  /* device addresses, in the order of the ports; NULL for a value without elements */
  void *const *outputs; /* likewise */
  size_t input_count, output_count;
  void *workspace; /* device memory of workspace_size bytes, aligned to workspace_align; NULL, as for a session, whose
                      size is not known: the library allocates */
  size_t workspace_size;
  void *stream;                 /* a CUstream to prepare on; NULL: the default stream */
  fourfold_prepared *prepared;  /* out */
} fourfold_prepare_args;

/*
 * Puts a prepared program on a stream. Checks addresses and launches: does not wait, allocates no device memory, and
 * can be captured in a CUDA graph, which keeps the addresses of its capture.
 *
 * With both counts 0, the previous addresses remain. Several launches may be in flight if the device runs them one
 * after the other, as on one stream: they share the workspace. Each replay of a graph is a launch. Until the last
 * launch is done, the memory must stay valid and the prepared program must not be destroyed.
 *
 * If a launch fails, earlier kernels are on the stream already. An index of a `gather` outside its axis is not
 * reported: ask prepared_fault. execute and session_run report it.
 */
typedef struct {
  size_t struct_size;
  void *ext;
  fourfold_prepared *prepared;
  void *const *inputs;  /* device addresses, as in fourfold_prepare_args */
  void *const *outputs; /* likewise; both arrays or none */
  size_t input_count, output_count;
  void *stream;
} fourfold_launch_args;

typedef struct {
  size_t struct_size;
  void *ext;
  fourfold_version version;
  uint32_t features; /* FOURFOLD_FEATURE_* */
  uint32_t reserved;
  fourfold_str name; /* the library and its version */

  void (*error_destroy)(fourfold_error *);
  int32_t (*error_code)(const fourfold_error *);
  fourfold_str (*error_message)(const fourfold_error *); /* owned by the error */
  fourfold_str (*error_reason)(const fourfold_error *);  /* owned by the error: a stable code, or empty */

  fourfold_error *(*backend_create)(fourfold_backend_create_args *);
  void (*backend_destroy)(fourfold_backend *);
  fourfold_str (*backend_target)(const fourfold_backend *); /* owned by the backend */

  fourfold_error *(*query_support)(fourfold_query_support_args *);
  void (*report_destroy)(fourfold_report *);

  fourfold_error *(*compile)(fourfold_compile_args *);
  fourfold_error *(*module_wait)(fourfold_module_wait_args *);
  void (*module_cancel)(fourfold_module *); /* ends builds in the background; their segments run on the CPU */
  fourfold_error *(*module_info)(fourfold_module_info_args *);
  void (*info_destroy)(fourfold_info *);
  void (*module_destroy)(fourfold_module *);
  fourfold_error *(*execute)(const fourfold_execute_args *);

  fourfold_error *(*session_create)(fourfold_session_create_args *);
  fourfold_error *(*session_run)(fourfold_session_run_args *);
  void (*session_destroy)(fourfold_session *);

  fourfold_error *(*prepare)(fourfold_prepare_args *);
  fourfold_error *(*launch)(const fourfold_launch_args *);
  /* Returns the first fault of the launches since the last query, such as an index of a `gather` outside its axis, or
     NULL. Results of a launch with a fault are wrong. Every launch must have ended. */
  fourfold_error *(*prepared_fault)(fourfold_prepared *);
  void (*prepared_destroy)(fourfold_prepared *);
} fourfold_api;

/*
 * Returns the table, or NULL if `max.major` is not the library's. The table's version may be older than `max`: its
 * struct_size tells which functions it has. Pure, and callable any number of times.
 */
const fourfold_api *fourfold_plugin_query(fourfold_version max);

#ifdef __cplusplus
}
#endif

#endif
