/* libcuda: what torch, Triton and the allocator's expandable segments ask of the driver itself. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONTEXTS ((uintptr_t)0x9000)

/* ---- devices and contexts ---- */
EXPORT CUresult cuInit(unsigned flags) { return config()->num_cards ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
EXPORT CUresult cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
EXPORT CUresult cuDeviceGetCount(int *count) { return *count = config()->count, CUDA_SUCCESS; }
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < config()->count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  snprintf(name, (size_t)size, "%s", card_of(device)->name);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
  if (device < 0 || device >= config()->count) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid, "null-gpu-device", 15);
  uuid->bytes[15] = (char)('0' + config()->visible[device]);
  return CUDA_SUCCESS;
}
#undef cuDeviceGetUuid
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
EXPORT CUresult cuDeviceTotalMem_v2(size_t *size, CUdevice device) {
  return *size = card_of(device)->memory, CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return *value = device_attribute((int)attribute, device), CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  *major = card_of(device)->major, *minor = card_of(device)->minor;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  return *can = device != peer, CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  *flags = 0, *active = is_started(device);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  start_device(device);
  *context = (CUcontext)(CONTEXTS + (uintptr_t)device);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
  int device = current_device();
  *context = is_started(device) ? (CUcontext)(CONTEXTS + (uintptr_t)device) : NULL;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  if (!context) return CUDA_SUCCESS;
  uintptr_t device = (uintptr_t)context - CONTEXTS;
  return device < MAX_DEVICES && set_current_device((int)device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) { return cuCtxSetCurrent(context); }
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) { return context ? cuCtxGetCurrent(context) : CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetDevice(CUdevice *device) { return *device = current_device(), CUDA_SUCCESS; }
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_NOT_FOUND ? "named symbol not found" : error_text((int)error);
  if (error == CUDA_ERROR_OUT_OF_MEMORY) *text = "out of memory";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error_name((int)error);
  return CUDA_SUCCESS;
}

/* ---- memory ---- */
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
  return cudaMalloc((void **)pointer, size) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return cudaFree((void *)pointer) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t size) {
  return cudaHostAlloc(pointer, size, 0) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult cuMemFreeHost(void *pointer) { return (CUresult)cudaFreeHost(pointer); }
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags) {
  return cudaMallocManaged((void **)pointer, size, flags) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { return (CUresult)cudaMemGetInfo(free_bytes, total); }
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *begin, size_t *size, CUdeviceptr pointer) {
  Extent extent;
  if (!extent_of((void *)pointer, &extent)) return CUDA_ERROR_NOT_FOUND;
  if (begin) *begin = extent.at;
  if (size) *size = extent.size;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t count, CUstream stream) {
  fill_bytes((void *)pointer, value, count);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr pointer, unsigned char value, size_t count) {
  return cuMemsetD8Async(pointer, value, count, NULL);
}
EXPORT CUresult cuMemsetD16Async(CUdeviceptr pointer, unsigned short value, size_t count, CUstream stream) {
  fill_elements((void *)pointer, &value, sizeof value, count);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD16_v2(CUdeviceptr pointer, unsigned short value, size_t count) {
  return cuMemsetD16Async(pointer, value, count, NULL);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t count, CUstream stream) {
  fill_elements((void *)pointer, &value, sizeof value, count);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr pointer, unsigned value, size_t count) {
  return cuMemsetD32Async(pointer, value, count, NULL);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  move_bytes((void *)to, from, size);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
  return cuMemcpyHtoDAsync_v2(to, from, size, NULL);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  move_bytes(to, (void *)from, size);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) { return cuMemcpyDtoHAsync_v2(to, from, size, NULL); }
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  move_bytes((void *)to, (void *)from, size);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return cuMemcpyDtoDAsync_v2(to, from, size, NULL);
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return cuMemcpyDtoDAsync_v2(to, from, size, stream);
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  int place = place_of((void *)pointer);
  Extent extent = {pointer, 0};
  if (place == PLACE_NONE) return CUDA_ERROR_INVALID_VALUE;
  extent_of((void *)pointer, &extent);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = (CUcontext)(CONTEXTS + (uintptr_t)place); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)value = place == PLACE_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(void **)value = place < MAX_DEVICES ? NULL : (void *)pointer; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = extent.at; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = place == PLACE_MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = place < MAX_DEVICES ? place : current_device(); break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = extent.at; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = extent.size; break;
    default: *(int *)value = 0; /* flags, and what the memory is not */
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr pointer) {
  for (unsigned i = 0; i < count; i++)
    if (cuPointerGetAttribute(values[i], attributes[i], pointer)) memset(values[i], 0, 4);
  return CUDA_SUCCESS;
}

/* ---- virtual memory, of which expandable segments are made ---- */
typedef struct {
  size_t size, offset;
  int device, uses;
  bool is_shared; /* other processes may have a handle */
} Physical;
/* Symmetric memory is made so: it is no allocator's of torch's. The most at once. */
static size_t shared_bytes, most_shared_bytes;
EXPORT size_t null_gpu_shared_bytes(void) { return most_shared_bytes; }

static void share(Physical *physical) {
  if (__atomic_exchange_n(&physical->is_shared, true, __ATOMIC_RELAXED)) return;
  size_t now = __atomic_add_fetch(&shared_bytes, physical->size, __ATOMIC_RELAXED);
  if (now > __atomic_load_n(&most_shared_bytes, __ATOMIC_RELAXED)) __atomic_store_n(&most_shared_bytes, now, __ATOMIC_RELAXED);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *properties,
                                              CUmemAllocationGranularity_flags flags) {
  return *size = 2 * MIB, CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted,
                                    unsigned long long flags) {
  *pointer = (CUdeviceptr)address_reserve(current_device(), size, alignment);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  return address_release((void *)pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags) {
  int device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties->location.id : PLACE_NONE;
  if (device >= config()->count || !size || size % (2 * MIB)) return CUDA_ERROR_INVALID_VALUE;
  if (device >= 0 && !memory_take(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  Physical *physical = malloc(sizeof *physical);
  if (!physical) return CUDA_ERROR_OUT_OF_MEMORY;
  *physical = (Physical){size, physical_offset(size), device, 1, false};
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
  return CUDA_SUCCESS;
}
static void let_go(Physical *physical) {
  if (__atomic_sub_fetch(&physical->uses, 1, __ATOMIC_ACQ_REL)) return;
  if (physical->device >= 0) {
    physical_drop(physical->device, physical->offset, physical->size);
    memory_give(physical->device, physical->size);
    if (physical->is_shared) __atomic_sub_fetch(&shared_bytes, physical->size, __ATOMIC_RELAXED);
  }
  free(physical);
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  let_go((Physical *)(uintptr_t)handle);
  return CUDA_SUCCESS;
}

/* What is mapped keeps its bytes until it is unmapped, released or not. */
typedef struct Mapping {
  CUdeviceptr at;
  size_t size;
  Physical *physical;
} Mapping;
static Mapping *mappings; /* sorted by address */
static size_t num_mappings, mapping_capacity;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t first_mapping_at(CUdeviceptr at) {
  size_t low = 0, high = num_mappings;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (mappings[middle].at < at) low = middle + 1;
    else high = middle;
  }
  return low;
}
EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
  Physical *physical = (Physical *)(uintptr_t)handle;
  if (!physical || offset + size > physical->size) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  CUresult status = CUDA_SUCCESS;
  if (num_mappings == mapping_capacity) {
    size_t wanted = mapping_capacity ? 2 * mapping_capacity : 1024;
    Mapping *made = realloc(mappings, wanted * sizeof *made);
    if (made) mappings = made, mapping_capacity = wanted;
    else status = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!status && !physical_map((void *)pointer, physical->device, physical->offset + offset, size))
    status = CUDA_ERROR_INVALID_VALUE;
  if (!status) {
    size_t where = first_mapping_at(pointer);
    memmove(mappings + where + 1, mappings + where, (num_mappings - where) * sizeof *mappings);
    mappings[where] = (Mapping){pointer, size, physical};
    num_mappings++;
    __atomic_add_fetch(&physical->uses, 1, __ATOMIC_ACQ_REL);
  }
  pthread_mutex_unlock(&lock);
  return status;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
  pthread_mutex_lock(&lock);
  size_t from = first_mapping_at(pointer), to = from;
  while (to < num_mappings && mappings[to].at < pointer + size) let_go(mappings[to++].physical);
  memmove(mappings + from, mappings + to, (num_mappings - to) * sizeof *mappings);
  num_mappings -= to - from;
  pthread_mutex_unlock(&lock);
  return physical_unmap((void *)pointer, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer) {
  pthread_mutex_lock(&lock);
  size_t index = first_mapping_at((CUdeviceptr)pointer + 1);
  Mapping *mapping = index ? &mappings[index - 1] : NULL;
  bool is_found = mapping && (CUdeviceptr)pointer < mapping->at + mapping->size;
  if (is_found) {
    __atomic_add_fetch(&mapping->physical->uses, 1, __ATOMIC_ACQ_REL);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)mapping->physical;
  }
  pthread_mutex_unlock(&lock);
  return is_found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
/* A handle for other processes: a small file that says which bytes it means. What is imported is not counted again. */
EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, unsigned long long flags) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  int file = memfd_create("null-gpu-handle", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  Physical *physical = (Physical *)(uintptr_t)handle;
  if (physical->device >= 0) share(physical);
  if (write(file, physical, sizeof *physical) != sizeof *physical) return close(file), CUDA_ERROR_OPERATING_SYSTEM;
  *(int *)shareable = file;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                               CUmemAllocationHandleType type) {
  Physical *physical = malloc(sizeof *physical);
  if (!physical) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pread((int)(uintptr_t)shareable, physical, sizeof *physical, 0) != sizeof *physical)
    return free(physical), CUDA_ERROR_INVALID_VALUE;
  physical->offset = physical_offset(physical->size);
  physical->uses = 1;
  physical->device = PLACE_NONE;
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
  const Physical *physical = (const Physical *)(uintptr_t)handle;
  memset(properties, 0, sizeof *properties);
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = physical->device < 0 ? current_device() : physical->device;
  return CUDA_SUCCESS;
}

/* ---- streams, modules and kernels, as Triton and nvrtc's callers use them ---- */
EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return (CUresult)cudaStreamCreateWithFlags(stream, flags); }
EXPORT CUresult cuStreamSynchronize(CUstream stream) { return (CUresult)cudaStreamSynchronize(stream); }
EXPORT CUresult cuStreamQuery(CUstream stream) { return (CUresult)cudaStreamQuery(stream); }
EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return (CUresult)cudaStreamWaitEvent(stream, event, flags);
}
EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  *context = (CUcontext)(CONTEXTS + (uintptr_t)stream_device(stream));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  *status = is_capturing(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, size_t *count) {
  enum cudaStreamCaptureStatus found;
  cudaStreamIsCapturing(stream, &found);
  *status = (CUstreamCaptureStatus)found;
  if (id) *id = 1;
  if (count) *count = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **nodes, size_t *count) {
  return capture_info(stream, status, id, count);
}
#if CUDA_VERSION >= 12030
EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                          const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count) {
  return capture_info(stream, status, id, count);
}
#endif
EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr pointer, cuuint32_t value, unsigned flags) {
  move_bytes((void *)pointer, &value, sizeof value);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) { return (CUresult)cudaEventCreateWithFlags(event, flags); }
EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) { return (CUresult)cudaEventRecord(event, stream); }
EXPORT CUresult cuEventDestroy_v2(CUevent event) { return (CUresult)cudaEventDestroy(event); }

/* The linker that numba and others hand PTX to: what it links is an image of one byte, which cuModuleLoadData takes. */
EXPORT CUresult cuLinkCreate_v2(unsigned count, CUjit_option *options, void **values, CUlinkState *state) {
  for (unsigned i = 0; i < count; i++) { /* how much it wrote to the caller's logs: nothing */
    bool is_log_size = options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES || options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
    if (is_log_size) values[i] = NULL;
  }
  return *state = new_handle(), CUDA_SUCCESS;
}
EXPORT CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned count,
                                 CUjit_option *options, void **values) {
  return access(path, R_OK) ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_SUCCESS;
}
EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size) {
  static char linked[1];
  return *image = linked, *size = sizeof linked, CUDA_SUCCESS;
}
/* A variable of a module has memory of its own, which a program may write. */
EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule module, const char *name) {
  static char variables[MIB];
  if (pointer) *pointer = (CUdeviceptr)(uintptr_t)variables;
  if (size) *size = sizeof variables;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return driver_takes("module"), *module = new_handle(), CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                                      unsigned count_options, CUlibraryOption *library_options, void **library_values,
                                      unsigned count_library_options) {
  return access(path, R_OK) ? CUDA_ERROR_FILE_NOT_FOUND : (*library = new_handle(), CUDA_SUCCESS);
}
/* Of one kernel, as those are that a program compiles when it runs: DeepGEMM takes no other. */
EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) { return *count = 1, CUDA_SUCCESS; }
EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
  for (unsigned i = 0; i < count; ++i) kernels[i] = new_handle();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  const Card *card = card_of(current_device());
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 10 * card->major + card->minor; break;
    default: *value = 0; /* local, constant and shared memory */
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  return cuFuncGetAttribute(value, attribute, (CUfunction)kernel);
}
EXPORT CUresult cuFuncGetName(const char **name, CUfunction function) { return *name = "", CUDA_SUCCESS; }
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int size, size_t shared) {
  return *blocks = blocks_per_sm(size, current_device()), CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *launch) {
  return *clusters = card_of(current_device())->sms / 2, CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments,
                               void **extra) {
  count_launch(function, stream, (dim3){grid_x, grid_y, grid_z}, (dim3){block_x, block_y, block_z});
  return CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *launch, CUfunction function, void **arguments, void **extra) {
  count_launch(function, launch->hStream, (dim3){launch->gridDimX, launch->gridDimY, launch->gridDimZ},
               (dim3){launch->blockDimX, launch->blockDimY, launch->blockDimZ});
  return CUDA_SUCCESS;
}
EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *pointer,
                                       const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                       const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                       CUtensorMapFloatOOBfill fill) {
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}
