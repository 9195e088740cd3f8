/*
 * Runs a program on the GPU: the host's own memory and stream, launches with fresh addresses, and CUDA graphs. Compares
 * every result with the CPU's, for three sets of inputs.
 *
 *     graph fixtures/minilm_ffn.fir 10000 M=91
 *
 * The driver is loaded at run time, so the example builds without CUDA.
 */
#include <dlfcn.h>

#include "example.h"

#define SETS 3
#define REPLAYS_PER_CAPTURE 50

typedef unsigned long long address;

/* The driver's functions that the example needs. */
static struct {
  int (*init)(unsigned);
  int (*device_get)(int *, int);
  int (*context_retain)(void **, int);
  int (*context_push)(void *);
  int (*context_release)(int);
  int (*memory_alloc)(address *, size_t);
  int (*memory_free)(address);
  int (*memory_info)(size_t *, size_t *);
  int (*copy_to_device)(address, const void *, size_t, void *);
  int (*copy_to_host)(void *, address, size_t, void *);
  int (*fill)(address, unsigned char, size_t, void *);
  int (*stream_create)(void **, unsigned);
  int (*stream_destroy)(void *);
  int (*stream_wait)(void *);
  int (*capture_begin)(void *, int);
  int (*capture_end)(void *, void **);
  int (*graph_instantiate)(void **, void *, unsigned long long);
  int (*graph_launch)(void *, void *);
  int (*graph_destroy)(void *);
  int (*graph_exec_destroy)(void *);
} cuda;

static void cu(int status, const char *call) {
  if (status != 0) {
    fprintf(stderr, "%s: CUDA error %d\n", call, status);
    exit(1);
  }
}
#define CU(call) cu(call, #call)

static void load_driver(void) {
  static const char *const names[] = {
      "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuDevicePrimaryCtxRelease_v2",
      "cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
      "cuMemsetD8Async", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamBeginCapture_v2",
      "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy"};
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  require(library != NULL, "there is no CUDA driver");
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
    void *function = dlsym(library, names[i]);
    require(function != NULL, names[i]);
    memcpy((char *)&cuda + i * sizeof(void *), &function, sizeof(void *));
  }
}

/* Values of a port's type: small numbers for floats, any code for FP4, scales from 0.25 to 4. */
static void fill_input(const fourfold_port *port, char *data, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (int64_t i = 0; i < port->bytes; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = (char)(state >> 56);
  }
  int32_t stride = port->bits / 8;
  for (int64_t i = 0; stride > 1 && i < port->bytes; i += stride) {
    float value = (float)((signed char)data[i] % 9) / 4;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (port->bits == 32) {
      memcpy(data + i, &bits, 4);
    } else if (port->code == 4) {
      data[i] = (char)(bits >> 16);
      data[i + 1] = (char)(bits >> 24);
    } else {
      fprintf(stderr, "the example fills no tensor of this type: %.*s\n", (int)port->type.len, port->type.ptr);
      exit(1);
    }
  }
  if (port->code == 10) {
    for (int64_t i = 0; i < port->bytes; i++) {
      data[i] = (char)(0x28 + (unsigned char)data[i] % 0x21);
    }
  }
}

static double value_at(const fourfold_port *port, const char *data, int64_t i) {
  uint32_t bits = 0;
  float value;
  memcpy(port->bits == 32 ? (char *)&bits : (char *)&bits + 2, data + i * port->bits / 8, (size_t)port->bits / 8);
  memcpy(&value, &bits, 4);
  return (double)value;
}

/* Compares f32 or bf16 outputs of the device with the CPU's. Their sums have different orders. */
static double error_of(const fourfold_port *port, const char *found, const char *expected) {
  double error = 0, largest = 0;
  for (int64_t i = 0; i < port->bytes * 8 / port->bits; i++) {
    double difference = fabs(value_at(port, found, i) - value_at(port, expected, i));
    error = difference <= error ? error : (isnan(difference) ? INFINITY : difference);
    largest = fmax(largest, fabs(value_at(port, expected, i)));
  }
  return error / largest;
}

/* One set of inputs and outputs, on both sides. */
typedef struct {
  char *host_inputs[MAX_TENSORS], *expected[MAX_TENSORS], *found[MAX_TENSORS];
  void *inputs[MAX_TENSORS], *outputs[MAX_TENSORS];
} tensor_set;

typedef struct {
  const fourfold_api *api;
  fourfold_module_info_args info;
  fourfold_prepared *prepared;
  void *stream;
  tensor_set sets[SETS];
} example;

static char *allocate(int64_t bytes) {
  char *memory = (char *)malloc(bytes > 0 ? (size_t)bytes : 1);
  require(memory != NULL, "out of memory");
  return memory;
}

static void *allocate_on_device(int64_t bytes) {
  address result = 0;
  if (bytes > 0) {
    CU(cuda.memory_alloc(&result, (size_t)bytes));
  }
  return (void *)(uintptr_t)result;
}

/* Fills a set, uploads it, and runs it on the CPU. */
static void make_set(example *self, fourfold_module *on_cpu, size_t index) {
  tensor_set *set = &self->sets[index];
  fourfold_tensor inputs[MAX_TENSORS], outputs[MAX_TENSORS];
  int64_t shapes[MAX_TENSORS][MAX_AXES];
  for (size_t i = 0; i < self->info.input_count; i++) {
    const fourfold_port *port = &self->info.inputs[i];
    set->host_inputs[i] = allocate(port->bytes);
    fill_input(port, set->host_inputs[i], index * MAX_TENSORS + i);
    memcpy(shapes[i], port->shape, (size_t)port->ndim * sizeof(int64_t));
    inputs[i] = host_tensor(port, set->host_inputs[i], shapes[i], port->ndim);
    inputs[i].dtype.lanes = 1; /* the shape counts elements */
    set->inputs[i] = allocate_on_device(port->bytes);
    CU(cuda.copy_to_device((address)(uintptr_t)set->inputs[i], set->host_inputs[i], (size_t)port->bytes, self->stream));
  }
  for (size_t i = 0; i < self->info.output_count; i++) {
    const fourfold_port *port = &self->info.outputs[i];
    require((port->code == 2 && port->bits == 32) || port->code == 4, "the example compares f32 and bf16 only");
    set->expected[i] = allocate(port->bytes);
    set->found[i] = allocate(port->bytes);
    set->outputs[i] = allocate_on_device(port->bytes);
    outputs[i] = host_tensor(port, set->expected[i], (int64_t *)port->shape, port->ndim);
  }
  FOURFOLD_INIT(fourfold_execute_args, execute);
  execute.module = on_cpu;
  execute.inputs = inputs;
  execute.input_count = self->info.input_count;
  execute.outputs = outputs;
  execute.output_count = self->info.output_count;
  check(self->api, self->api->execute(&execute), "execute on the CPU");
}

static void poison(example *self, const tensor_set *set) {
  for (size_t i = 0; i < self->info.output_count; i++) {
    CU(cuda.fill((address)(uintptr_t)set->outputs[i], 0xff, (size_t)self->info.outputs[i].bytes, self->stream));
  }
}

static void launch(example *self, const tensor_set *set) {
  FOURFOLD_INIT(fourfold_launch_args, args);
  args.prepared = self->prepared;
  args.inputs = set->inputs;
  args.input_count = self->info.input_count;
  args.outputs = set->outputs;
  args.output_count = self->info.output_count;
  args.stream = self->stream;
  check(self->api, self->api->launch(&args), "launch");
}

/* Waits, and returns the largest error of the set's outputs. */
static double result_of(example *self, tensor_set *set) {
  double error = 0;
  for (size_t i = 0; i < self->info.output_count; i++) {
    size_t bytes = (size_t)self->info.outputs[i].bytes;
    CU(cuda.copy_to_host(set->found[i], (address)(uintptr_t)set->outputs[i], bytes, self->stream));
  }
  CU(cuda.stream_wait(self->stream));
  for (size_t i = 0; i < self->info.output_count; i++) {
    error = fmax(error, error_of(&self->info.outputs[i], set->found[i], set->expected[i]));
  }
  require(error < 0.01, "a result of the device is wrong");
  return error;
}

static double run_in_flight(example *self) {
  double error = 0;
  for (size_t i = 0; i < SETS; i++) {
    poison(self, &self->sets[i]);
  }
  for (size_t i = 0; i < SETS; i++) {
    launch(self, &self->sets[i]);
  }
  for (size_t i = 0; i < SETS; i++) {
    error = fmax(error, result_of(self, &self->sets[i]));
  }
  return error;
}

/* Captures a launch with the set's addresses, and replays the graph. */
static double run_graph(example *self, tensor_set *set, long replays) {
  void *graph, *executable;
  CU(cuda.capture_begin(self->stream, 0));
  launch(self, set);
  CU(cuda.capture_end(self->stream, &graph));
  CU(cuda.graph_instantiate(&executable, graph, 0));
  poison(self, set);
  for (long i = 0; i < replays; i++) {
    CU(cuda.graph_launch(executable, self->stream));
  }
  double error = result_of(self, set);
  CU(cuda.graph_exec_destroy(executable));
  CU(cuda.graph_destroy(graph));
  return error;
}

static fourfold_backend *backend(const fourfold_api *api, const char *device) {
  fourfold_option option;
  option.key = str("device");
  option.value = str(device);
  FOURFOLD_INIT(fourfold_backend_create_args, args);
  args.options = &option;
  args.option_count = 1;
  check(api, api->backend_create(&args), "backend_create");
  return args.backend;
}

static fourfold_module *compile(const fourfold_api *api, const char *device, fourfold_str ir) {
  FOURFOLD_INIT(fourfold_compile_args, args);
  args.backend = backend(api, device);
  args.ir = ir;
  check(api, api->compile(&args), "compile");
  api->backend_destroy(args.backend);
  return args.module;
}

static size_t free_memory(void) {
  size_t unused, total;
  CU(cuda.memory_info(&unused, &total));
  return unused;
}

static void free_sets(example *self) {
  for (size_t set = 0; set < SETS; set++) {
    for (size_t i = 0; i < self->info.input_count; i++) {
      free(self->sets[set].host_inputs[i]);
      if (self->sets[set].inputs[i] != NULL) {
        CU(cuda.memory_free((address)(uintptr_t)self->sets[set].inputs[i]));
      }
    }
    for (size_t i = 0; i < self->info.output_count; i++) {
      free(self->sets[set].expected[i]);
      free(self->sets[set].found[i]);
      if (self->sets[set].outputs[i] != NULL) {
        CU(cuda.memory_free((address)(uintptr_t)self->sets[set].outputs[i]));
      }
    }
  }
}

int main(int argc, char **argv) {
  require(argc >= 3 && argc < MAX_TENSORS, "usage: graph PROGRAM.fir REPLAYS [SYMBOL=EXTENT ...]");
  long replays = strtol(argv[2], NULL, 10);
  fourfold_symbol symbols[MAX_TENSORS];
  for (int i = 3; i < argc; i++) {
    char *equals = strchr(argv[i], '=');
    require(equals != NULL, "a symbol is given as M=91");
    symbols[i - 3].name.ptr = argv[i];
    symbols[i - 3].name.len = (size_t)(equals - argv[i]);
    symbols[i - 3].extent = (int64_t)strtoll(equals + 1, NULL, 10);
  }
  fourfold_version version = {FOURFOLD_ABI_MAJOR, FOURFOLD_ABI_MINOR};
  example self;
  memset(&self, 0, sizeof(self));
  self.api = fourfold_plugin_query(version);
  require(self.api != NULL, "the library has another major version");
  load_driver();
  int device;
  void *context;
  CU(cuda.init(0));
  CU(cuda.device_get(&device, 0));
  CU(cuda.context_retain(&context, device));
  CU(cuda.context_push(context));
  CU(cuda.stream_create(&self.stream, 1));

  fourfold_str ir;
  char *text = read_file(argv[1], &ir.len);
  ir.ptr = text;
  fourfold_module *on_cpu = compile(self.api, "none", ir), *on_gpu = compile(self.api, "0", ir);
  self.info.struct_size = sizeof(self.info);
  self.info.module = on_gpu;
  self.info.symbols = symbols;
  self.info.symbol_count = (size_t)(argc - 3);
  check(self.api, self.api->module_info(&self.info), "module_info");
  require(self.info.input_count <= MAX_TENSORS && self.info.output_count <= MAX_TENSORS, "too many tensors");
  if (!self.info.is_capturable) {
    fprintf(stderr, "the program is not whole on the GPU: %.*s\n", (int)self.info.why_not.len, self.info.why_not.ptr);
    return 1;
  }
  printf("%.*s, workspace %lld bytes\n", (int)self.info.compat.len, self.info.compat.ptr,
         (long long)self.info.workspace_size);

  for (size_t i = 0; i < SETS; i++) {
    make_set(&self, on_cpu, i);
  }
  void *workspace = allocate_on_device(self.info.workspace_size);
  FOURFOLD_INIT(fourfold_prepare_args, prepare);
  prepare.module = on_gpu;
  prepare.symbols = symbols;
  prepare.symbol_count = self.info.symbol_count;
  prepare.inputs = self.sets[0].inputs;
  prepare.input_count = self.info.input_count;
  prepare.outputs = self.sets[0].outputs;
  prepare.output_count = self.info.output_count;
  prepare.workspace = workspace;
  prepare.workspace_size = (size_t)self.info.workspace_size;
  prepare.stream = self.stream;
  check(self.api, self.api->prepare(&prepare), "prepare");
  self.prepared = prepare.prepared;

  printf("%d launches in flight: error %.2g\n", SETS, run_in_flight(&self));
  double error = run_graph(&self, &self.sets[0], 1);
  size_t before = free_memory();
  long captures = 0;
  for (long done = 0; done < replays; done += REPLAYS_PER_CAPTURE, captures++) {
    long now = replays - done < REPLAYS_PER_CAPTURE ? replays - done : REPLAYS_PER_CAPTURE;
    error = fmax(error, run_graph(&self, &self.sets[captures % SETS], now));
  }
  size_t after = free_memory();
  printf("%ld replays of %ld graphs: error %.2g, free memory changed by %lld bytes\n", replays, captures, error,
         (long long)after - (long long)before);
  require(after >= before, "memory leaks");

  self.api->prepared_destroy(self.prepared);
  free_sets(&self);
  if (workspace != NULL) {
    CU(cuda.memory_free((address)(uintptr_t)workspace));
  }
  self.api->info_destroy(self.info.info);
  self.api->module_destroy(on_gpu);
  self.api->module_destroy(on_cpu);
  CU(cuda.stream_destroy(self.stream));
  CU(cuda.context_release(device));
  free(text);
  return 0;
}
