/* Devices: what a card says of itself, which device a thread works on, and errors by name. */
#include "null_gpu.h"
#include <stdio.h>
#include <string.h>
#undef cudaGetDeviceProperties

static __thread int current;
static __thread cudaError_t last_error;
static bool started[MAX_DEVICES];

int current_device(void) { return current; }
bool set_current_device(int device) {
  if (device < 0 || device >= config()->count) return false;
  current = device;
  return true;
}
/* A device has a context from its first use on; torch asks which have one. */
void start_device(int device) {
  if (device < 0 || device >= MAX_DEVICES || started[device]) return;
  started[device] = true;
  node_start(device);
}
bool is_started(int device) { return device >= 0 && device < MAX_DEVICES && started[device]; }
EXPORT int null_gpu_is_started(int device) { return is_started(device); }
/* The number on the node of a device that the process sees, or -1. */
EXPORT int null_gpu_index_on_node(int device) {
  return device >= 0 && device < config()->count ? config()->visible[device] : -1;
}
cudaError_t result(cudaError_t error) {
  if (error) last_error = error;
  return error;
}

EXPORT cudaError_t cudaGetDeviceCount(int *count) {
  *count = config()->count;
  return result(*count ? cudaSuccess : cudaErrorNoDevice);
}
EXPORT cudaError_t cudaSetDevice(int device) {
  if (!set_current_device(device)) return result(config()->count ? cudaErrorInvalidDevice : cudaErrorNoDevice);
  start_device(device);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  start_device(device);
  return result(device >= 0 && device < config()->count ? cudaSuccess : cudaErrorInvalidDevice);
}
EXPORT cudaError_t cudaGetDevice(int *device) {
  *device = current;
  return result(config()->count ? cudaSuccess : cudaErrorNoDevice);
}
EXPORT cudaError_t cudaGetDeviceFlags(unsigned *flags) {
  *flags = cudaDeviceScheduleAuto;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
  *value = limit == cudaLimitStackSize ? KIB : limit == cudaLimitMallocHeapSize ? 8 * MIB : 128;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache *cache) {
  *cache = cudaFuncCachePreferNone;
  return result(cudaSuccess);
}

/* CUDA 12's header gives the name to the second of them, CUDA 13's library has both. */
EXPORT cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int device) {
  const Card *card = card_of(device);
  memset(p, 0, sizeof *p);
  if (device < 0 || device >= config()->count) return result(cudaErrorInvalidDevice);
  snprintf(p->name, sizeof p->name, "%s", card->name);
  memcpy(p->uuid.bytes, "null-gpu-device", 15);
  p->uuid.bytes[15] = (char)('0' + config()->visible[device]);
  p->totalGlobalMem = card->memory;
  p->sharedMemPerBlock = 48 * KIB;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = card->major;
  p->minor = card->minor;
  p->textureAlignment = p->surfaceAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = card->sms;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
  p->pciBusID = 1 + config()->visible[device];
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = (int)card->l2;
  p->maxThreadsPerMultiProcessor = card->threads_per_sm;
  p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->sharedMemPerMultiprocessor = card->shared_memory_per_sm;
  p->concurrentManagedAccess = p->computePreemptionSupported = p->canUseHostPointerForRegisteredMem = 1;
  p->cooperativeLaunch = p->hostRegisterSupported = p->memoryPoolsSupported = p->unifiedFunctionPointers = 1;
  p->sharedMemPerBlockOptin = card->shared_memory;
  p->maxBlocksPerMultiProcessor = 32;
  p->reservedSharedMemPerBlock = KIB;
  p->clusterLaunch = card->major >= 9;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
  return cudaGetDeviceProperties_v2(found, device);
}

/* The runtime's numbers of attributes are the driver's. */
int device_attribute(int attribute, int device) {
  const Card *card = card_of(device);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX:
    case cudaDevAttrMaxPitch: return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 * (int)KIB;
    case cudaDevAttrTotalConstantMemory:
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrWarpSize:
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrClockRate: return 1755000;
    case cudaDevAttrTextureAlignment:
    case cudaDevAttrSurfaceAlignment: return 512;
    case cudaDevAttrMultiProcessorCount: return card->sms;
    case cudaDevAttrPciBusId: return 1 + config()->visible[device < 0 || device >= config()->count ? 0 : device];
    case cudaDevAttrMemoryClockRate: return 2619000;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrL2CacheSize: return (int)card->l2;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return card->threads_per_sm;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrComputeCapabilityMajor: return card->major;
    case cudaDevAttrComputeCapabilityMinor: return card->minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)card->shared_memory_per_sm;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)card->shared_memory;
    case cudaDevAttrMaxPersistingL2CacheSize: return (int)(card->l2 * 5 / 8);
    case cudaDevAttrMaxAccessPolicyWindowSize: return 1 << 27;
    case 120: return card->major >= 9; /* cudaDevAttrClusterLaunch */
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case 102: /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    case 103: /* CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    case cudaDevAttrMemoryPoolsSupported: return 1;
    default: log_line(2, "attribute %d of device %d: 0", attribute, device); return 0;
  }
}
EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= config()->count) return result(cudaErrorInvalidDevice);
  *value = device_attribute(attribute, device);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
  if (device < 0 || device >= config()->count) return result(cudaErrorInvalidDevice);
  snprintf(text, (size_t)size, "0000:%02x:00.0", 1 + config()->visible[device]);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
  unsigned domain, bus;
  if (sscanf(text, "%x:%x", &domain, &bus) != 2) return result(cudaErrorInvalidValue);
  for (int i = 0; i < config()->count; i++)
    if (config()->visible[i] == (int)bus - 1) return *device = i, result(cudaSuccess);
  return result(cudaErrorInvalidDevice);
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int device, int peer) {
  *value = attribute == cudaDevP2PAttrAccessSupported || attribute == cudaDevP2PAttrNativeAtomicSupported;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return result(cudaSuccess);
}

/* ---- errors ---- */
EXPORT cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct {
  int error;
  const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
};
static int row_of(int error) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].error == error) return (int)i;
  return -1;
}
const char *error_name(int error) { return row_of(error) < 0 ? "unrecognized error code" : errors[row_of(error)].name; }
const char *error_text(int error) { return row_of(error) < 0 ? "unrecognized error code" : errors[row_of(error)].text; }
EXPORT const char *cudaGetErrorName(cudaError_t error) { return error_name(error); }
EXPORT const char *cudaGetErrorString(cudaError_t error) { return error_text(error); }
