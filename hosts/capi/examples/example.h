/* Shared by the examples: errors, files, and tensors of a safetensors file. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fourfold.h"

#define MAX_AXES 8
#define MAX_TENSORS 64

static inline void check(const fourfold_api *api, fourfold_error *error, const char *what) {
  if (error == NULL) {
    return;
  }
  fourfold_str message = api->error_message(error), reason = api->error_reason(error);
  fprintf(stderr, "%s: error %d (%.*s): %.*s\n", what, (int)api->error_code(error), (int)reason.len, reason.ptr,
          (int)message.len, message.ptr);
  api->error_destroy(error);
  exit(1);
}

static inline void require(int condition, const char *what) {
  if (!condition) {
    fprintf(stderr, "%s\n", what);
    exit(1);
  }
}

static inline fourfold_str str(const char *text) {
  fourfold_str result;
  result.ptr = text;
  result.len = strlen(text);
  return result;
}

/* Reads a file and appends a 0. The caller frees the result. */
static inline char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  require(file != NULL, path);
  require(fseek(file, 0, SEEK_END) == 0, path);
  long length = ftell(file);
  require(length >= 0, path);
  rewind(file);
  char *bytes = (char *)malloc((size_t)length + 1);
  require(bytes != NULL, "out of memory");
  require(fread(bytes, 1, (size_t)length, file) == (size_t)length, path);
  bytes[length] = 0;
  fclose(file);
  *size = (size_t)length;
  return bytes;
}

/* A safetensors file in memory: 8 bytes with the length of a JSON header, the header, the data. */
typedef struct {
  char *bytes;
  size_t size;
  const char *header;
  char *data;
} tensor_file;

static inline tensor_file open_tensors(const char *path) {
  tensor_file file;
  uint64_t length;
  file.bytes = read_file(path, &file.size);
  require(file.size >= 8, path);
  memcpy(&length, file.bytes, 8);
  require(length <= file.size - 8, path);
  file.header = file.bytes + 8;
  file.data = file.bytes + 8 + length;
  /* The header ends in '}', or in spaces: nothing reads past this. */
  require(length > 0, path);
  return file;
}

/* Finds a tensor's data and shape. The header is trusted: a real host uses a JSON parser. */
static inline char *find_tensor(const tensor_file *file, fourfold_str name, int64_t *shape, int32_t *ndim) {
  char key[256];
  require(name.len + 4 < sizeof(key), "a long name");
  snprintf(key, sizeof(key), "\"%.*s\":{", (int)name.len, name.ptr);
  const char *entry = strstr(file->header, key);
  if (entry == NULL) {
    fprintf(stderr, "the file has no tensor %.*s\n", (int)name.len, name.ptr);
    exit(1);
  }
  const char *dims = strstr(entry, "\"shape\":[") + strlen("\"shape\":[");
  for (*ndim = 0; *dims != ']' && *ndim < MAX_AXES; dims += *dims == ',') {
    char *end;
    shape[(*ndim)++] = (int64_t)strtoll(dims, &end, 10);
    dims = end;
  }
  const char *offsets = strstr(entry, "\"data_offsets\":[") + strlen("\"data_offsets\":[");
  return file->data + strtoull(offsets, NULL, 10);
}

/* A tensor on the host with a port's type. A safetensors file has FP4 as pairs, of which the last axis counts K/2. */
static inline fourfold_tensor host_tensor(const fourfold_port *port, char *data, int64_t *shape, int32_t ndim) {
  fourfold_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.device.type = 1;
  tensor.ndim = ndim;
  tensor.dtype.code = port->code;
  tensor.dtype.bits = port->bits;
  tensor.dtype.lanes = port->bits == 4 ? 2 : 1;
  tensor.shape = shape;
  return tensor;
}

/* The largest difference of f32 values, relative to the largest value. */
static inline double largest_error(const float *found, const float *expected, size_t count) {
  double error = 0, largest = 0;
  for (size_t i = 0; i < count; i++) {
    double difference = fabs((double)found[i] - (double)expected[i]);
    /* A NaN counts as an infinite error. */
    error = difference <= error ? error : (isnan(difference) ? INFINITY : difference);
    largest = fmax(largest, fabs((double)expected[i]));
  }
  return error / largest;
}

#endif
