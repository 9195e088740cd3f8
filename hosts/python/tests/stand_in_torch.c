// The stable C functions of libtorch that Fourfold's ops call, with tensors in memory of the stand-in CUDA driver.
// A failed op records its message instead of throwing.
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define DTYPE(name, number) EXPORT int32_t aoti_torch_dtype_##name(void) { return number; }

typedef struct { int64_t references, rank, sizes[8]; int32_t dtype, device, index; void *data; } tensor;
typedef struct { size_t size; uint64_t items[64]; } list;
typedef struct { size_t length; char text[8192]; } string;
typedef void (*kernel)(uint64_t *, uint64_t, uint64_t);

static struct { char name[64], key[16]; kernel run; } kernels[64];
static int kernel_count;
static int64_t tensors, lists, strings, guards;
static char message[8192];
static void *stream;

DTYPE(uint8, 0) DTYPE(int32, 3) DTYPE(float16, 5) DTYPE(float32, 6) DTYPE(bool, 11) DTYPE(bfloat16, 15)
DTYPE(float8_e5m2, 23) DTYPE(float8_e4m3fn, 24) DTYPE(float8_e8m0fnu, 44) DTYPE(float4_e2m1fn_x2, 45)
static const int64_t widths[64] = {[0] = 1,  [3] = 4,  [5] = 2,  [6] = 4,  [11] = 1,
                                   [15] = 2, [23] = 1, [24] = 1, [44] = 1, [45] = 1};

EXPORT int32_t aoti_torch_device_type_cpu(void) { return 0; }
EXPORT int32_t aoti_torch_device_type_cuda(void) { return 1; }
EXPORT int32_t aoti_torch_memory_format_contiguous_format(void) { return 0; }

EXPORT int32_t aoti_torch_library_init_def(const char *n, const char *f, uint32_t l, void **out) {
  *out = "def";
  return 0;
}
EXPORT int32_t aoti_torch_library_init_impl(const char *n, const char *k, const char *f, uint32_t l, void **out) {
  *out = (void *)k;
  return 0;
}
EXPORT int32_t aoti_torch_library_def(void *library, const char *schema) { return 0; }
EXPORT int32_t torch_library_impl(void *library, const char *name, kernel run, uint64_t version) {
  strcpy(kernels[kernel_count].name, name);
  strcpy(kernels[kernel_count].key, library);
  kernels[kernel_count++].run = run;
  return 0;
}
EXPORT int32_t aoti_torch_call_dispatcher(const char *name, const char *overload, uint64_t *stack) { return 1; }
EXPORT void aoti_torch_check(bool ok, const char *function, const char *file, uint32_t line, const char *text) {
  if (!ok) strncpy(message, text, sizeof message - 1);
}

// Memory of the host, or of the driver.
static void *allocate(int32_t device, size_t size) {
  if (device == 0) return malloc(size + 1);
  int (*of_driver)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  uint64_t address = 0;
  return of_driver(&address, size ? size : 1) == 0 ? (void *)address : NULL;
}
EXPORT void *stand_in_tensor(const int64_t *sizes, int64_t rank, int32_t dtype, int32_t device, int32_t index) {
  tensor *made = calloc(1, sizeof *made);
  int64_t size = widths[dtype];
  for (int64_t axis = 0; axis < rank; axis++) size *= made->sizes[axis] = sizes[axis];
  made->references = 1, made->rank = rank, made->dtype = dtype, made->device = device, made->index = index;
  made->data = allocate(device, size);
  tensors++;
  return made;
}
EXPORT void stand_in_keep(tensor *t) { t->references++; }
EXPORT int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                        int32_t device, int32_t index, void **out) {
  *out = stand_in_tensor(sizes, rank, dtype, device, index);
  return 0;
}
EXPORT int32_t aoti_torch_delete_tensor_object(tensor *t) {
  if (--t->references == 0) {
    tensors--;
    int (*free_of_driver)(uint64_t) = (int (*)(uint64_t))dlsym(RTLD_DEFAULT, "cuMemFree_v2");
    if (t->device == 0) free(t->data); else if (t->data) free_of_driver((uint64_t)t->data);
    free(t);
  }
  return 0;
}
EXPORT int32_t aoti_torch_get_data_ptr(tensor *t, void **out) { *out = t->data; return 0; }
EXPORT int32_t aoti_torch_get_dim(tensor *t, int64_t *out) { *out = t->rank; return 0; }
EXPORT int32_t aoti_torch_get_sizes(tensor *t, int64_t **out) { *out = t->sizes; return 0; }
EXPORT int32_t aoti_torch_is_contiguous(tensor *t, bool *out) { *out = true; return 0; }
EXPORT int32_t aoti_torch_get_dtype(tensor *t, int32_t *out) { *out = t->dtype; return 0; }
EXPORT int32_t aoti_torch_get_device_type(tensor *t, int32_t *out) { *out = t->device; return 0; }
EXPORT int32_t aoti_torch_get_device_index(tensor *t, int32_t *out) { *out = t->index; return 0; }
EXPORT int32_t aoti_torch_create_device_guard(int32_t index, void **out) { guards++; *out = &guards; return 0; }
EXPORT int32_t aoti_torch_delete_device_guard(void *guard) { guards--; return 0; }
EXPORT int32_t aoti_torch_get_current_cuda_stream(int32_t index, void **out) { *out = stream; return 0; }

EXPORT int32_t torch_new_list_reserve_size(size_t size, list **out) {
  lists++;
  *out = calloc(1, sizeof **out);
  return 0;
}
EXPORT int32_t torch_list_size(list *l, size_t *out) { *out = l->size; return 0; }
EXPORT int32_t torch_list_get_item(list *l, size_t place, uint64_t *out) { *out = l->items[place]; return 0; }
EXPORT int32_t torch_list_push_back(list *l, uint64_t item) { l->items[l->size++] = item; return 0; }
EXPORT int32_t torch_delete_list(list *l) { lists--; free(l); return 0; }
EXPORT void *stand_in_string(const char *text) {
  string *made = calloc(1, sizeof *made);
  strings++, made->length = strlen(text);
  strcpy(made->text, text);
  return made;
}
EXPORT int32_t torch_string_length(string *s, size_t *out) { *out = s->length; return 0; }
EXPORT int32_t torch_string_c_str(string *s, const char **out) { *out = s->text; return 0; }
EXPORT int32_t torch_delete_string(string *s) { strings--; free(s); return 0; }
EXPORT int32_t torch_delete_stable_ivalue(uint64_t *word) { free(word); return 0; }

// Calls a kernel, and returns its message, empty if it succeeded.
EXPORT const char *stand_in_call(const char *name, const char *key, uint64_t *stack, uint64_t in, uint64_t out) {
  message[0] = 0;
  for (int i = 0; i < kernel_count; i++)
    if (!strcmp(kernels[i].name, name) && !strcmp(kernels[i].key, key)) {
      kernels[i].run(stack, in, out);
      return message;
    }
  return "no such kernel";
}
EXPORT void stand_in_stream(void *current) { stream = current; }
// The number of tensors, lists, strings and guards that live.
EXPORT void stand_in_live(int64_t *out) { out[0] = tensors, out[1] = lists, out[2] = strings, out[3] = guards; }
