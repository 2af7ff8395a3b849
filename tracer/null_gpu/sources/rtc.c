/* nvrtc: every program compiles, to nothing. */
#include "null_gpu.h"
#include <nvrtc.h>

EXPORT const char *nvrtcGetErrorString(nvrtcResult status) { return status ? "NVRTC_ERROR_INTERNAL_ERROR" : "NVRTC_SUCCESS"; }
EXPORT nvrtcResult nvrtcVersion(int *major, int *minor) {
  *major = CUDART_VERSION / 1000, *minor = CUDART_VERSION % 1000 / 10;
  return NVRTC_SUCCESS;
}
/* Those of the devices that are here, each once, in order. */
static int archs(int *found) {
  int count = 0;
  for (int i = 0; i < config()->count; i++) {
    int arch = 10 * card_of(i)->major + card_of(i)->minor, at = count;
    while (at && found[at - 1] > arch) at--;
    if (at && found[at - 1] == arch) continue;
    for (int j = count++; j > at; j--) found[j] = found[j - 1];
    found[at] = arch;
  }
  return count;
}
EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
  int found[MAX_DEVICES];
  return *count = archs(found), NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetSupportedArchs(int *supported) {
  int found[MAX_DEVICES], count = archs(found);
  for (int i = 0; i < count; i++) supported[i] = found[i];
  return NVRTC_SUCCESS;
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
