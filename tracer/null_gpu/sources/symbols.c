/* Functions that are asked for by name while a program runs. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void *self;
static void find_self(void) {
  Dl_info info;
  if (dladdr((void *)symbol_by_name, &info)) self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

/* A function by the name that the header gives it, or by its newest version: cuMemAlloc is cuMemAlloc_v2. */
void *symbol_by_name(const char *name) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_self);
  void *symbol = dlsym(self, name);
  for (int version = 4; !symbol && version > 1; version--) {
    char versioned[256];
    snprintf(versioned, sizeof versioned, "%s_v%d", name, version);
    symbol = dlsym(self, versioned);
  }
  if (!symbol) log_line(1, "%s was asked for by name and is not there", name);
  return symbol;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                    unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  *function = symbol_by_name(name);
  if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                           enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status) {
  *function = symbol_by_name(name);
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
#undef cuGetProcAddress
EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* Only a copy of CUDA's runtime that is linked into another library asks for these tables, which NVIDIA does not
   document: that library cannot run here, and is named. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  static const char *said;
  Dl_info info;
  bool is_found = dladdr(__builtin_return_address(0), &info) && info.dli_fname;
  bool does_without = is_found && strstr(info.dli_fname, "libnvJitLink");
  if (is_found && !does_without && info.dli_fname != said) {
    said = info.dli_fname;
    log_line(0, "%s has a copy of CUDA's runtime linked into it and cannot run on the null GPU; run without it", said);
  }
  *table = NULL;
  return CUDA_ERROR_NOT_SUPPORTED;
}
