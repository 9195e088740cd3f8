/* Prints the size of each struct of the header, and the offset of each last field. */
#include <stdio.h>

#include "fourfold.h"

#define PRINT(type, last) printf("%s %zu %zu\n", #type, sizeof(type), offsetof(type, last))

int main(void) {
  PRINT(fourfold_version, minor);
  PRINT(fourfold_str, len);
  PRINT(fourfold_option, value);
  PRINT(fourfold_tensor, byte_offset);
  PRINT(fourfold_decision, message);
  PRINT(fourfold_segment, name);
  PRINT(fourfold_port, bytes);
  PRINT(fourfold_symbol, extent);
  PRINT(fourfold_backend_create_args, backend);
  PRINT(fourfold_query_support_args, segment_count);
  PRINT(fourfold_compile_args, module);
  PRINT(fourfold_module_wait_args, reserved);
  PRINT(fourfold_module_info_args, compat);
  PRINT(fourfold_execute_args, symbol_count);
  PRINT(fourfold_session_create_args, session);
  PRINT(fourfold_session_run_args, reserved);
  PRINT(fourfold_prepare_args, prepared);
  PRINT(fourfold_launch_args, stream);
  PRINT(fourfold_api, prepared_destroy);
  return 0;
}
