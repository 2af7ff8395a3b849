/* Kernels: registered by every library with device code, launched to no effect. CUB asks which architecture a kernel was
   built for, to pick how it divides its work and with it the size of its scratch: that is read from the fat binaries. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  const void *host; /* the host's function, by which it is launched */
  const char *name;
  const void *binary;
  bool is_launched;
} Kernel;
static Kernel *kernels; /* open addressing, at most half full */
static size_t count, capacity;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

/* ---- fat binaries. Source: the layouts of fatbinary_section.h and of `cuobjdump`'s listings. ---- */
typedef struct {
  uint32_t magic, version;
  const char *data;
  void *unused;
} Wrapper;
typedef struct {
  uint32_t magic;
  uint16_t version, header_size;
  uint64_t size;
} FatHeader;
typedef struct {
  uint16_t kind, version;
  uint32_t header_size;
  uint64_t size;
  uint32_t compressed, options;
  uint16_t minor, major;
  uint32_t architecture;
} FatEntry;
enum { WRAPPER_MAGIC = 0x466243b1, FAT_KIND_PTX = 1, FAT_KIND_CUBIN = 2 };
#define FAT_MAGIC 0xBA55ED50u

/* The architecture of the code that a device would load: machine code of its family, else PTX, else what there is. */
static int architecture_of(const void *binary, int device) {
  const Wrapper *wrapper = binary;
  const Card *card = card_of(device);
  int capability = card->major * 10 + card->minor, machine = 0, portable = 0, any = 0;
  FatHeader header;
  if (!wrapper || wrapper->magic != WRAPPER_MAGIC || !wrapper->data) return capability;
  memcpy(&header, wrapper->data, sizeof header);
  if (header.magic != FAT_MAGIC) return capability;
  const char *at = wrapper->data + header.header_size, *end = at + header.size;
  while (at + sizeof(FatEntry) <= end) {
    FatEntry entry;
    memcpy(&entry, at, sizeof entry);
    int built_for = (int)entry.architecture;
    if (built_for <= capability) {
      if (entry.kind == FAT_KIND_CUBIN && built_for / 10 == card->major && built_for > machine) machine = built_for;
      if (entry.kind == FAT_KIND_PTX && built_for > portable) portable = built_for;
      if (built_for > any) any = built_for;
    }
    if (!entry.header_size || entry.size > (size_t)(end - at)) break;
    at += entry.header_size + entry.size;
  }
  return machine ? machine : portable ? portable : any;
}

EXPORT void **__cudaRegisterFatBinary(void *wrapper) {
  const void **handle = malloc(sizeof *handle);
  if (handle) *handle = wrapper;
  return (void **)handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void **handle) {}
EXPORT void __cudaUnregisterFatBinary(void **handle) {}
EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int is_extern, size_t size,
                              int is_constant, int is_global) {}

/* ---- the table ---- */
static Kernel *slot_of(const void *host) {
  size_t slot = ((uintptr_t)host >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (capacity - 1);
  while (kernels[slot].host && kernels[slot].host != host) slot = (slot + 1) & (capacity - 1);
  return &kernels[slot];
}
static bool grow(void) {
  Kernel *before = kernels;
  size_t size = capacity, wanted = size ? 2 * size : 1 << 16;
  Kernel *made = calloc(wanted, sizeof *made);
  if (!made) return false;
  kernels = made, capacity = wanted;
  for (size_t i = 0; i < size; i++)
    if (before[i].host) *slot_of(before[i].host) = before[i];
  free(before);
  return true;
}
EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread,
                                   void *block, void *block_dim, void *grid_dim, int *warp) {
  pthread_rwlock_wrlock(&lock);
  if (2 * count < capacity || grow()) {
    Kernel *kernel = slot_of(host);
    if (!kernel->host) count++;
    *kernel = (Kernel){host, name, handle ? *(const void **)handle : NULL, false};
  }
  pthread_rwlock_unlock(&lock);
}
static Kernel find_kernel(const void *host) {
  Kernel found = {0};
  pthread_rwlock_rdlock(&lock);
  if (capacity && host) found = *slot_of(host);
  pthread_rwlock_unlock(&lock);
  return found;
}

/* ---- launches ---- */
/* A driver loads a kernel's code, and makes room for its local memory, when it is first launched. */
static void load_kernel(const void *host) {
  static int is_counted = -1;
  if (is_counted < 0) is_counted = getenv("NULL_GPU_TAKES") != NULL;
  if (!is_counted) return;
  pthread_rwlock_wrlock(&lock);
  Kernel *kernel = capacity && host ? slot_of(host) : NULL;
  bool is_first = kernel && !kernel->is_launched;
  if (is_first) kernel->is_launched = true;
  pthread_rwlock_unlock(&lock);
  if (is_first) driver_takes("kernel");
}
void count_launch(const void *kernel, cudaStream_t stream, dim3 grid, dim3 block) {
  count_kernel(stream);
  load_kernel(kernel);
  if (config()->log_level < 2 && !config()->has_kernels) return;
  Kernel found = find_kernel(kernel);
  record_kernel(found.name, stream, grid, block);
  log_line(2, "launch %s, grid %u %u %u, block %u %u %u", found.name ? found.name : "?", grid.x, grid.y, grid.z, block.x,
           block.y, block.z);
}

static __thread struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} pushed[16];
static __thread int num_pushed;
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  if (num_pushed == 16) return cudaErrorInvalidConfiguration;
  pushed[num_pushed].grid = grid;
  pushed[num_pushed].block = block;
  pushed[num_pushed].shared = shared;
  pushed[num_pushed++].stream = stream;
  return 0;
}
EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!num_pushed) return cudaErrorInvalidConfiguration;
  num_pushed--;
  *grid = pushed[num_pushed].grid;
  *block = pushed[num_pushed].block;
  *shared = pushed[num_pushed].shared;
  *(cudaStream_t *)stream = pushed[num_pushed].stream;
  return cudaSuccess;
}
EXPORT cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                    cudaStream_t stream) {
  count_launch(kernel, stream, grid, block);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                               cudaStream_t stream) {
  count_launch(kernel, stream, grid, block);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *launch, const void *kernel, void **arguments) {
  count_launch(kernel, launch->stream, launch->gridDim, launch->blockDim);
  return result(cudaSuccess);
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                      cudaStream_t stream) {
  count_launch(kernel, stream, grid, block);
  return result(cudaSuccess);
}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = (cudaKernel_t)host;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host) { return __cudaGetKernel(kernel, host); }
EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host) {
  *function = (cudaFunction_t)host;
  return result(cudaSuccess);
}

/* ---- what a kernel says of itself ---- */
EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
  Kernel found = find_kernel(kernel);
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->maxDynamicSharedSizeBytes = 48 * (int)KIB;
  attributes->ptxVersion = attributes->binaryVersion = architecture_of(found.binary, current_device());
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaFuncGetName(const char **name, const void *kernel) {
  Kernel found = find_kernel(kernel);
  *name = found.name ? found.name : "";
  return result(found.name ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}
int blocks_per_sm(int block_size, int device) {
  int blocks = block_size > 0 ? card_of(device)->threads_per_sm / block_size : 1;
  return blocks < 1 ? 1 : blocks > 32 ? 32 : blocks;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int block_size,
                                                                          size_t shared, unsigned flags) {
  *blocks = blocks_per_sm(block_size, current_device());
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int block_size,
                                                                 size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, block_size, shared, 0);
}
EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *kernel, const cudaLaunchConfig_t *launch) {
  *clusters = card_of(current_device())->sms / 2;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *kernel, const cudaLaunchConfig_t *launch) {
  *size = 8;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *size, const void *kernel, int blocks, int block_size) {
  *size = card_of(current_device())->shared_memory_per_sm / (size_t)(blocks > 0 ? blocks : 1);
  return result(cudaSuccess);
}
