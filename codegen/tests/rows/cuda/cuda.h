// The part of CUDA's driver interface that a row kernel uses, for a simulation on the host.
#pragma once
#include <cstdint>

enum CUresult { CUDA_SUCCESS };
using CUfunction = void *;
using CUkernel = void *;
using CUstream = void *;
enum CUfunction_attribute { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES };
enum CUlaunchAttributeID { CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  union {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } value;
};
struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute *attrs;
  unsigned numAttrs;
};
CUresult cuLaunchKernelEx(CUlaunchConfig const *config, CUfunction function, void **parameters, void **extra);
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value);
