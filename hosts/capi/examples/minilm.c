/*
 * Runs the feed-forward block of a transformer on tensors in host memory, first at once, then as a session whose
 * weights are given once, and compares the results with expected ones.
 *
 *     minilm fixtures/minilm_ffn.fir fixtures/minilm_ffn0.safetensors
 */
#include "example.h"

static void print_line(void *user, int32_t level, fourfold_str line) {
  (void)user;
  fprintf(stderr, "%s%.*s\n", level > 0 ? "warning: " : "", (int)line.len, line.ptr);
}

static const char *tier_name(uint32_t tier) {
  static const char *const names[] = {"kernel", "device", "fallback", "removed"};
  return tier < 4 ? names[tier] : "?";
}

/* Prints the decision for each op, before anything is built. */
static void print_plan(const fourfold_api *api, fourfold_backend *backend, fourfold_str ir) {
  FOURFOLD_INIT(fourfold_query_support_args, query);
  query.backend = backend;
  query.ir = ir;
  check(api, api->query_support(&query), "query_support");
  for (size_t i = 0; i < query.decision_count; i++) {
    const fourfold_decision *decision = &query.decisions[i];
    printf("  %-8s %.*s", tier_name(decision->tier), (int)decision->name.len, decision->name.ptr);
    if (decision->reason.len > 0) {
      printf(": %.*s", (int)decision->reason.len, decision->reason.ptr);
    }
    printf("\n");
  }
  printf("%zu segments\n", query.segment_count);
  api->report_destroy(query.report);
}

/* Compares both outputs: the first is bf16, with few values rounded to the other neighbour, the second is f32. */
static void compare(const tensor_file *file, const char *const outputs[2], const int64_t bytes[2], const char *what) {
  int64_t shape[MAX_AXES];
  int32_t ndim;
  const char *expected = find_tensor(file, str("expected.gelu_bf16"), shape, &ndim);
  size_t differing = 0;
  for (int64_t i = 0; i < bytes[0]; i += 2) {
    differing += memcmp(outputs[0] + i, expected + i, 2) != 0;
  }
  const float *values = (const float *)(const void *)find_tensor(file, str("expected.out"), shape, &ndim);
  double error = largest_error((const float *)(const void *)outputs[1], values, (size_t)bytes[1] / 4);
  printf("%s: %zu of %lld values of gelu_bf16 differ, error of out %.2g\n", what, differing,
         (long long)(bytes[0] / 2), error);
  require(differing <= (size_t)bytes[0] / 2 / 1000, "gelu_bf16 is wrong");
  require(error < 1e-4, "out is wrong");
}

int main(int argc, char **argv) {
  require(argc == 3, "usage: minilm PROGRAM.fir TENSORS.safetensors");
  fourfold_version version = {FOURFOLD_ABI_MAJOR, FOURFOLD_ABI_MINOR};
  const fourfold_api *api = fourfold_plugin_query(version);
  require(api != NULL, "the library has another major version");
  printf("%.*s\n", (int)api->name.len, api->name.ptr);

  FOURFOLD_INIT(fourfold_backend_create_args, create);
  create.log = print_line;
  check(api, api->backend_create(&create), "backend_create");
  fourfold_backend *backend = create.backend;

  fourfold_str ir;
  char *text = read_file(argv[1], &ir.len);
  ir.ptr = text;
  tensor_file file = open_tensors(argv[2]);
  print_plan(api, backend, ir);

  FOURFOLD_INIT(fourfold_compile_args, compile);
  compile.backend = backend;
  compile.ir = ir;
  check(api, api->compile(&compile), "compile");
  /* The module keeps the backend alive. */
  api->backend_destroy(backend);

  fourfold_symbol m = {{"M", 1}, 0};
  int64_t x_shape[MAX_AXES];
  int32_t x_ndim;
  find_tensor(&file, str("x"), x_shape, &x_ndim);
  m.extent = x_shape[0];
  FOURFOLD_INIT(fourfold_module_info_args, info);
  info.module = compile.module;
  info.symbols = &m;
  info.symbol_count = 1;
  check(api, api->module_info(&info), "module_info");
  printf("M = %lld, %s%.*s\n", (long long)m.extent, info.is_capturable ? "on the GPU" : "not whole on the GPU: ",
         (int)info.why_not.len, info.why_not.ptr);
  require(info.input_count <= MAX_TENSORS && info.output_count == 2, "another program");

  fourfold_tensor inputs[MAX_TENSORS], outputs[2];
  int64_t shapes[MAX_TENSORS][MAX_AXES];
  for (size_t i = 0; i < info.input_count; i++) {
    int32_t ndim;
    char *data = find_tensor(&file, info.inputs[i].name, shapes[i], &ndim);
    inputs[i] = host_tensor(&info.inputs[i], data, shapes[i], ndim);
  }
  char *memory[2];
  int64_t bytes[2];
  for (size_t i = 0; i < 2; i++) {
    bytes[i] = info.outputs[i].bytes;
    memory[i] = (char *)malloc((size_t)bytes[i]);
    require(memory[i] != NULL, "out of memory");
    outputs[i] = host_tensor(&info.outputs[i], memory[i], (int64_t *)info.outputs[i].shape, info.outputs[i].ndim);
  }

  memset(memory[0], 0xff, (size_t)bytes[0]);
  memset(memory[1], 0xff, (size_t)bytes[1]);
  FOURFOLD_INIT(fourfold_execute_args, execute);
  execute.module = compile.module;
  execute.inputs = inputs;
  execute.input_count = info.input_count;
  execute.outputs = outputs;
  execute.output_count = 2;
  check(api, api->execute(&execute), "execute");
  const char *const results[2] = {memory[0], memory[1]};
  compare(&file, results, bytes, "execute");

  /* A session takes the params once. */
  fourfold_tensor params[MAX_TENSORS], others[MAX_TENSORS];
  size_t param_count = 0, other_count = 0;
  for (size_t i = 0; i < info.input_count; i++) {
    if (info.inputs[i].flags & FOURFOLD_PORT_PARAM) {
      params[param_count++] = inputs[i];
    } else {
      others[other_count++] = inputs[i];
    }
  }
  FOURFOLD_INIT(fourfold_session_create_args, open);
  open.module = compile.module;
  open.params = params;
  open.param_count = param_count;
  check(api, api->session_create(&open), "session_create");
  for (int call = 0; call < 2; call++) {
    memset(memory[0], 0xff, (size_t)bytes[0]);
    memset(memory[1], 0xff, (size_t)bytes[1]);
    FOURFOLD_INIT(fourfold_session_run_args, run);
    run.session = open.session;
    run.inputs = others;
    run.input_count = other_count;
    run.outputs = outputs;
    run.output_count = 2;
    check(api, api->session_run(&run), "session_run");
    compare(&file, results, bytes, run.was_prepared ? "session on the GPU" : "session");
  }

  api->info_destroy(info.info);
  api->module_destroy(compile.module);
  api->session_destroy(open.session);
  free(memory[0]);
  free(memory[1]);
  free(file.bytes);
  free(text);
  return 0;
}
