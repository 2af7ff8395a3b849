/* nvrtc: every program compiles, to nothing. */
#include "null_gpu.h"
#include <nvrtc.h>

EXPORT const char *nvrtcGetErrorString(nvrtcResult status) { return status ? "NVRTC_ERROR_INTERNAL_ERROR" : "NVRTC_SUCCESS"; }
EXPORT nvrtcResult nvrtcVersion(int *major, int *minor) {
  *major = CUDART_VERSION / 1000, *minor = CUDART_VERSION % 1000 / 10;
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int count,
                                      const char *const *headers, const char *const *include_names) {
  return *program = new_handle(), NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) { return *program = NULL, NVRTC_SUCCESS; }
EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) { return *size = 1, NVRTC_SUCCESS; }
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) { return *size = 1, NVRTC_SUCCESS; }
EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) { return *size = 1, NVRTC_SUCCESS; }
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *text) { return *text = 0, NVRTC_SUCCESS; }
EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *text) { return *text = 0, NVRTC_SUCCESS; }
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *text) { return *text = 0, NVRTC_SUCCESS; }
EXPORT nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *name, const char **lowered) {
  return *lowered = name, NVRTC_SUCCESS;
}
