/* Device memory is address space. A device's bytes are a sparse file in memory, mapped where the device's region is:
   nothing is taken of the host until it is written, strict overcommit does not count it (the mapping is shared), another
   process can map the same bytes, and dropped pages read as zero. Every allocation is counted against the card. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define GRANULE (2 * MIB)
#define CHUNK (32 * MIB)
#define PAGE ((size_t)4096)
#define REGION (3584 * GIB)
/* Between the heap of small programs and where Linux places position-independent programs (0x5555...), on both
   processors: 18 regions end at 0x4f0000000000. */
#define FIRST_REGION ((uintptr_t)0x100000000000)
/* The file's first part is the region's, the rest is for handles of virtual memory: it is never full. */
#define FILE_SIZE ((size_t)1 << 60)
#define UNIT ((size_t)512)
#define UNITS (GRANULE / UNIT)
#define SLAB_LIMIT MIB
#define POOL_GROWTH (32 * MIB)

/* Small allocations share a granule, as the driver's do: how many units begin at each. */
typedef struct Slab {
  uintptr_t at;
  struct Slab *next;
  uint16_t length[UNITS];
  int used;
} Slab;
typedef struct Pool {
  int device;
  size_t used, used_high, reserved, reserved_high, threshold;
} Pool;
typedef struct {
  uintptr_t at;
  size_t size;    /* mapped */
  size_t counted; /* against the card, or against the pool */
  Slab *slab;
  Pool *pool;
  bool is_reserved; /* address space of the driver's virtual memory calls */
  bool is_foreign;  /* another process's bytes */
} Block;
typedef struct {
  Block *blocks;
  size_t count, capacity;
  Slab *slabs;
  size_t used, peak;
  int file;
} Place;

static Place places[NUM_PLACES];
static Pool default_pools[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_forked;

static uintptr_t region_of(int place) { return FIRST_REGION + (uintptr_t)place * REGION; }
static size_t round_up(size_t size, size_t to) { return (size + to - 1) / to * to; }

/* ---- forks: a child has the books as they were, and must not drop its parent's bytes ---- */
static void before_fork(void) {
  pthread_mutex_lock(&lock);
  lock_known();
  lock_node();
}
static void after_fork_in_parent(void) {
  unlock_node();
  unlock_known();
  pthread_mutex_unlock(&lock);
}
static void after_fork_in_child(void) {
  is_forked = true;
  leave_node_to_parent();
  after_fork_in_parent();
}

static void start(void) {
  for (int i = 0; i < NUM_PLACES; i++) {
    places[i].file = -1;
  }
  for (int i = 0; i < MAX_DEVICES; i++) default_pools[i].device = i;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
static void lock_books(void) {
  pthread_once(&once, start);
  pthread_mutex_lock(&lock);
}

/* The device's file, or -1: then its memory is private, which is as good but for strict overcommit and other processes. */
static int file_of(int place) {
  if (place >= MAX_DEVICES) return -1;
  struct rlimit limit;
  if (places[place].file == -1) {
    int file = -1;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur == RLIM_INFINITY) file = memfd_create("null-gpu", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)FILE_SIZE)) close(file), file = -1;
    places[place].file = file < 0 ? -2 : file;
  }
  return places[place].file;
}

/* ---- address space ---- */
int place_of(const void *pointer) {
  uintptr_t at = (uintptr_t)pointer;
  if (at < FIRST_REGION || at >= region_of(NUM_PLACES)) return PLACE_NONE;
  return (int)((at - FIRST_REGION) / REGION);
}

/* The index of the last block that begins at or before an address, or -1. */
static long find_block(const Place *place, uintptr_t at) {
  long low = 0, high = (long)place->count - 1, found = -1;
  while (low <= high) {
    long middle = (low + high) / 2;
    if (place->blocks[middle].at <= at) found = middle, low = middle + 1;
    else high = middle - 1;
  }
  return found;
}

/* ---- room for a block, where CUDA's driver on Linux was seen to place it (tracer/allocator/driver.py has the same):
   less than 32 MiB in the lowest gap of a chunk of 32 MiB that is in use already, else whole chunks, the highest free. */
typedef struct {
  uintptr_t low, high;
} Gap;
static Gap gap_below(const Place *place, uintptr_t base, long index) {
  const Block *above = &place->blocks[index];
  return (Gap){.low = index ? above[-1].at + above[-1].size : base,
               .high = index < (long)place->count ? above->at : base + REGION};
}
static uintptr_t round_down(uintptr_t at, size_t to) { return at / to * to; }
/* What of a gap lies in the chunk in which the block below it ends, and in which the block above it begins. */
static uintptr_t place_in_used_chunk(Gap gap, bool has_below, bool has_above, size_t size, size_t alignment) {
  uintptr_t at = round_up(gap.low, alignment), end = round_up(gap.low, CHUNK);
  if (has_below && at + size <= (end < gap.high ? end : gap.high)) return at;
  at = round_down(gap.high, CHUNK);
  at = round_up(at > gap.low ? at : gap.low, alignment);
  return has_above && at + size <= gap.high ? at : 0;
}
static uintptr_t place_in_free_chunks(Gap gap, size_t size, size_t alignment) {
  uintptr_t low = round_up(gap.low, CHUNK), high = round_down(gap.high, CHUNK), chunks = round_up(size, CHUNK);
  uintptr_t at = high < low + chunks ? 0 : round_down(high - chunks, alignment);
  return at >= low ? at : 0;
}
static long find_room(const Place *place, uintptr_t base, size_t size, size_t alignment, uintptr_t *room) {
  long count = (long)place->count;
  for (long i = 0; size < CHUNK && i <= count; i++)
    if ((*room = place_in_used_chunk(gap_below(place, base, i), i > 0, i < count, size, alignment))) return i;
  for (long i = count; i >= 0; i--)
    if ((*room = place_in_free_chunks(gap_below(place, base, i), size, alignment))) return i;
  return -1;
}

static void *map_at(int place, uintptr_t at, size_t size, int protection, int file, size_t offset) {
  int flags = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void *pointer = mmap((void *)at, size, protection, flags | MAP_NORESERVE | MAP_FIXED, file, (off_t)offset);
  if (pointer == MAP_FAILED) {
    log_line(0, "no address space of %zu bytes for %s: %s; look at ulimit -v and vm.overcommit_memory", size,
             place < MAX_DEVICES ? "a device" : "pinned memory", strerror(errno));
    return NULL;
  }
  madvise(pointer, size, MADV_NOHUGEPAGE);
  madvise(pointer, size, MADV_DONTDUMP);
  return pointer;
}

static Block *add_block(int index, size_t size, size_t alignment, int protection) {
  Place *place = &places[index];
  uintptr_t at;
  long where = find_room(place, region_of(index), size, alignment, &at);
  if (where < 0) return NULL;
  if (place->count == place->capacity) {
    size_t capacity = place->capacity ? 2 * place->capacity : 256;
    Block *blocks = realloc(place->blocks, capacity * sizeof *blocks);
    if (!blocks) return NULL;
    place->blocks = blocks, place->capacity = capacity;
  }
  int file = protection == PROT_NONE ? -1 : file_of(index);
  if (!map_at(index, at, size, protection, file, at - region_of(index))) return NULL;
  Block *block = &place->blocks[where];
  memmove(block + 1, block, (place->count - (size_t)where) * sizeof *block);
  *block = (Block){.at = at, .size = size};
  place->count++;
  return block;
}

static void remove_block(int index, Block *block) {
  Place *place = &places[index];
  if (!is_forked && !block->is_reserved && !block->is_foreign) drop_pages(block->at, block->at + block->size);
  forget_bytes(block->at, block->at + block->size);
  munmap((void *)block->at, block->size);
  free(block->slab);
  memmove(block, block + 1, (size_t)(place->blocks + place->count - (block + 1)) * sizeof *block);
  place->count--;
}

/* ---- the card's count ---- */
static bool take(int device, size_t size) {
  Place *place = &places[device];
  size_t memory = card_of(device)->usable;
  if (size > memory || place->used > memory - size || !node_hold(device, place->used + size)) return false;
  place->used += size;
  if (place->used > place->peak) place->peak = place->used;
  return true;
}
static void give(int index, size_t size) {
  places[index].used -= size;
  if (index < MAX_DEVICES) node_hold(index, places[index].used);
}
bool memory_take(int device, size_t size) {
  lock_books();
  bool is_taken = take(device, size);
  pthread_mutex_unlock(&lock);
  return is_taken;
}
void memory_give(int device, size_t size) {
  lock_books();
  give(device, size);
  pthread_mutex_unlock(&lock);
}
/* What a real driver takes of the current device for itself when a library or a kernel begins, by figures that nobody
   publishes: NULL_GPU_TAKES says them, such as `cublas=8388608;graph=65536`. Nothing is taken by default. */
void driver_takes(const char *place) {
  size_t length = strlen(place);
  for (const char *text = getenv("NULL_GPU_TAKES"); text; text = (text = strchr(text, ';')) ? text + 1 : NULL)
    if (!strncmp(text, place, length) && text[length] == '=')
      memory_take(current_device(), strtoull(text + length + 1, NULL, 10));
}
static size_t memory_free_bytes(int device) {
  size_t usable = card_of(device)->usable, used = places[device].used + node_others_bytes(device);
  return usable > used ? usable - used : 0;
}

/* ---- small allocations ---- */
static void *slab_piece(Slab *slab, size_t units) {
  size_t run = 0;
  for (size_t unit = 0; unit < UNITS;) {
    if (slab->length[unit]) {
      unit += slab->length[unit], run = 0;
    } else {
      unit++;
      if (++run == units) {
        slab->length[unit - units] = (uint16_t)units;
        slab->used++;
        return (void *)(slab->at + (unit - units) * UNIT);
      }
    }
  }
  return NULL;
}

static void *allocate_small(int device, size_t size) {
  size_t units = (size + UNIT - 1) / UNIT;
  Place *place = &places[device];
  for (Slab *slab = place->slabs; slab; slab = slab->next) {
    void *piece = slab_piece(slab, units);
    if (piece) return piece;
  }
  Slab *slab = calloc(1, sizeof *slab);
  if (!slab || !take(device, GRANULE)) return free(slab), NULL;
  Block *block = add_block(device, GRANULE, GRANULE, PROT_READ | PROT_WRITE);
  if (!block) return free(slab), give(device, GRANULE), NULL;
  block->slab = slab, block->counted = GRANULE;
  slab->at = block->at, slab->next = place->slabs;
  place->slabs = slab;
  return slab_piece(slab, units);
}

static bool free_small(int device, Block *block, uintptr_t at) {
  size_t unit = (at - block->at) / UNIT;
  if ((at - block->at) % UNIT || !block->slab->length[unit]) return false;
  forget_bytes(at, at + block->slab->length[unit] * UNIT);
  block->slab->length[unit] = 0;
  if (--block->slab->used == 0) {
    Slab **link = &places[device].slabs;
    while (*link != block->slab) link = &(*link)->next;
    *link = block->slab->next;
    give(device, block->counted);
    remove_block(device, block);
  }
  return true;
}

/* ---- allocate and free ---- */
static void *allocate_whole(int device, size_t size) {
  size_t mapped = round_up(size, GRANULE);
  if (mapped < size || !take(device, mapped)) return NULL;
  Block *block = add_block(device, mapped, GRANULE, PROT_READ | PROT_WRITE);
  if (!block) return give(device, mapped), NULL;
  block->counted = mapped;
  return (void *)block->at;
}

static void *device_allocate(int device, size_t size) {
  lock_books();
  void *pointer = size < SLAB_LIMIT ? allocate_small(device, size) : allocate_whole(device, size);
  pthread_mutex_unlock(&lock);
  log_line(1, "device %d: %zu bytes at %p, %zu used", device, size, pointer, places[device].used);
  return pointer;
}

static bool memory_free(void *pointer) {
  int index = place_of(pointer);
  uintptr_t at = (uintptr_t)pointer;
  if (index == PLACE_NONE) return false;
  lock_books();
  long found = find_block(&places[index], at);
  Block *block = found >= 0 ? &places[index].blocks[found] : NULL;
  bool is_found = block && !block->is_reserved && at < block->at + block->size;
  if (is_found && block->slab) {
    is_found = free_small(index, block, at);
  } else if (is_found && (is_found = block->at == at)) {
    if (block->pool) block->pool->used -= block->counted;
    else give(index, block->counted);
    remove_block(index, block);
  }
  pthread_mutex_unlock(&lock);
  return is_found;
}

bool extent_of(const void *pointer, Extent *extent) {
  int index = place_of(pointer);
  uintptr_t at = (uintptr_t)pointer;
  if (index == PLACE_NONE) return false;
  lock_books();
  long found = find_block(&places[index], at);
  const Block *block = found >= 0 ? &places[index].blocks[found] : NULL;
  bool is_found = block && at < block->at + block->size;
  if (is_found) {
    *extent = (Extent){block->at, block->size};
    if (block->slab) {
      size_t unit = (at - block->at) / UNIT;
      while (unit && !block->slab->length[unit]) unit--;
      *extent = (Extent){block->at + unit * UNIT, block->slab->length[unit] * UNIT};
    }
  }
  pthread_mutex_unlock(&lock);
  return is_found;
}

/* Whether bytes are another process's: what it wrote is not known here, and shown as it is. */
bool is_foreign(const void *pointer) {
  int index = place_of(pointer);
  if (index == PLACE_NONE) return false;
  lock_books();
  long found = find_block(&places[index], (uintptr_t)pointer);
  bool is_theirs = found >= 0 && places[index].blocks[found].is_foreign;
  pthread_mutex_unlock(&lock);
  return is_theirs;
}

EXPORT cudaError_t cudaMalloc(void **pointer, size_t size) {
  if (!pointer) return result(cudaErrorInvalidValue);
  start_device(current_device());
  *pointer = size ? device_allocate(current_device(), size) : NULL;
  return result(*pointer || !size ? cudaSuccess : cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaFree(void *pointer) {
  start_device(current_device());
  return result(!pointer || memory_free(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}
EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
  *pitch = round_up(width, UNIT);
  return cudaMalloc(pointer, *pitch * height);
}
EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  int device = current_device();
  start_device(device);
  if (total) *total = card_of(device)->memory;
  if (free_bytes) *free_bytes = memory_free_bytes(device);
  return result(cudaSuccess);
}

/* ---- the host's side: pinned and managed. Both are the host's memory; managed memory moves to a device page by page
   and back under pressure (CUDA's programming guide, "oversubscription"), so that it never fills a card. ---- */
static cudaError_t allocate_host(int index, void **pointer, size_t size) {
  lock_books();
  Block *block = size ? add_block(index, round_up(size, PAGE), PAGE, PROT_READ | PROT_WRITE) : NULL;
  if (block) block->counted = block->size, places[index].used += block->size;
  *pointer = block ? (void *)block->at : NULL;
  pthread_mutex_unlock(&lock);
  return result(block || !size ? cudaSuccess : cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
  return allocate_host(PLACE_HOST, pointer, size);
}
EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size) { return allocate_host(PLACE_HOST, pointer, size); }
EXPORT cudaError_t cudaFreeHost(void *pointer) {
  bool is_ours = !pointer || (place_of(pointer) == PLACE_HOST && memory_free(pointer));
  return result(is_ours ? cudaSuccess : cudaErrorInvalidValue);
}
EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned flags) {
  return allocate_host(PLACE_MANAGED, pointer, size);
}
EXPORT cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *pointer, unsigned flags) {
  *device_pointer = pointer;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaHostGetFlags(unsigned *flags, void *pointer) {
  *flags = cudaHostAllocDefault;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  int place = place_of(pointer);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = cudaInvalidDeviceId;
  attributes->hostPointer = (void *)pointer;
  if (place == PLACE_NONE) return result(cudaSuccess);
  attributes->devicePointer = (void *)pointer;
  attributes->device = place < MAX_DEVICES ? place : current_device();
  attributes->type = place == PLACE_HOST      ? cudaMemoryTypeHost
                     : place == PLACE_MANAGED ? cudaMemoryTypeManaged
                                              : cudaMemoryTypeDevice;
  if (place < MAX_DEVICES) attributes->hostPointer = NULL;
  return result(cudaSuccess);
}

/* ---- pools of cudaMallocAsync: memory is reserved in steps of 32 MiB and kept up to a threshold ---- */
static bool pool_take(Pool *pool, size_t size) {
  size_t missing = pool->used + size > pool->reserved ? pool->used + size - pool->reserved : 0;
  if (missing) {
    size_t growth = round_up(missing, POOL_GROWTH);
    if (!take(pool->device, growth)) {
      growth = round_up(missing, GRANULE);
      if (!take(pool->device, growth)) return false;
    }
    pool->reserved += growth;
  }
  pool->used += size;
  if (pool->used > pool->used_high) pool->used_high = pool->used;
  if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
  return true;
}
static void pool_trim(Pool *pool, size_t keep) {
  size_t needed = round_up(pool->used > keep ? pool->used : keep, GRANULE);
  if (needed < pool->reserved) {
    give(pool->device, pool->reserved - needed);
    pool->reserved = needed;
  }
}
void pools_synchronize(void) {
  lock_books();
  for (int i = 0; i < MAX_DEVICES; i++)
    if (default_pools[i].reserved > default_pools[i].threshold) pool_trim(&default_pools[i], default_pools[i].threshold);
  pthread_mutex_unlock(&lock);
}
EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t size, cudaMemPool_t handle, cudaStream_t stream) {
  Pool *pool = (Pool *)handle;
  size_t counted = round_up(size, UNIT);
  *pointer = NULL;
  if (!size) return result(cudaSuccess);
  lock_books();
  Block *block = NULL;
  if (counted >= size && pool_take(pool, counted)) {
    block = add_block(pool->device, round_up(size, PAGE), PAGE, PROT_READ | PROT_WRITE);
    if (block) block->counted = counted, block->pool = pool, *pointer = (void *)block->at;
    else pool->used -= counted;
  }
  pthread_mutex_unlock(&lock);
  return result(block ? cudaSuccess : cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return cudaFree(pointer); }
EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  if (device < 0 || device >= config()->count) return result(cudaErrorInvalidDevice);
  pthread_once(&once, start);
  *pool = (cudaMemPool_t)&default_pools[device];
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
  return cudaDeviceGetDefaultMemPool(pool, device);
}
EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
  Pool *made = calloc(1, sizeof *made);
  if (!made) return result(cudaErrorMemoryAllocation);
  made->device = properties->location.type == cudaMemLocationTypeDevice ? properties->location.id : 0;
  *pool = (cudaMemPool_t)made;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  Pool *gone = (Pool *)pool;
  lock_books();
  gone->threshold = 0;
  pool_trim(gone, 0);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  lock_books();
  pool_trim((Pool *)pool, keep);
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
  Pool *pool = (Pool *)handle;
  if (attribute == cudaMemPoolAttrReleaseThreshold) pool->threshold = *(uint64_t *)value;
  if (attribute == cudaMemPoolAttrReservedMemHigh) pool->reserved_high = pool->reserved;
  if (attribute == cudaMemPoolAttrUsedMemHigh) pool->used_high = pool->used;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
  const Pool *pool = (const Pool *)handle;
  switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold: *(uint64_t *)value = pool->threshold; break;
    case cudaMemPoolAttrReservedMemCurrent: *(uint64_t *)value = pool->reserved; break;
    case cudaMemPoolAttrReservedMemHigh: *(uint64_t *)value = pool->reserved_high; break;
    case cudaMemPoolAttrUsedMemCurrent: *(uint64_t *)value = pool->used; break;
    case cudaMemPoolAttrUsedMemHigh: *(uint64_t *)value = pool->used_high; break;
    default: *(int *)value = 1; /* the reuse policies, which are on */
  }
  return result(cudaSuccess);
}

/* ---- the driver's virtual memory: addresses and bytes apart ---- */
void *address_reserve(int device, size_t size, size_t alignment) {
  lock_books();
  Block *block = add_block(device, round_up(size, GRANULE), alignment > GRANULE ? alignment : GRANULE, PROT_NONE);
  if (block) block->is_reserved = true;
  void *pointer = block ? (void *)block->at : NULL;
  pthread_mutex_unlock(&lock);
  return pointer;
}
bool address_release(void *pointer) {
  int index = place_of(pointer);
  if (index == PLACE_NONE) return false;
  lock_books();
  long found = find_block(&places[index], (uintptr_t)pointer);
  Block *block = found >= 0 ? &places[index].blocks[found] : NULL;
  bool is_found = block && block->is_reserved && block->at == (uintptr_t)pointer;
  if (is_found) remove_block(index, block);
  pthread_mutex_unlock(&lock);
  return is_found;
}
/* Where a handle's bytes lie in its device's file, behind those of the region. */
size_t physical_offset(size_t size) {
  static size_t next;
  return REGION + __atomic_fetch_add(&next, round_up(size, GRANULE), __ATOMIC_RELAXED);
}
bool physical_map(void *pointer, int device, size_t offset, size_t size) {
  lock_books();
  int file = device >= 0 && device < MAX_DEVICES ? file_of(device) : -1;
  bool is_mapped = map_at(device, (uintptr_t)pointer, size, PROT_READ | PROT_WRITE, file, offset) != NULL;
  pthread_mutex_unlock(&lock);
  return is_mapped;
}
bool physical_unmap(void *pointer, size_t size) {
  forget_bytes((uintptr_t)pointer, (uintptr_t)pointer + size);
  return map_at(0, (uintptr_t)pointer, size, PROT_NONE, -1, 0) != NULL;
}
void physical_drop(int device, size_t offset, size_t size) {
  int file = places[device].file;
  if (file >= 0 && !is_forked) fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size);
}

/* Whole pages of a range read as zero again. */
void drop_pages(uintptr_t begin, uintptr_t end) {
  begin = round_up(begin, PAGE), end = end / PAGE * PAGE;
  if (begin >= end) return;
  int place = place_of((void *)begin);
  bool is_shared = place != PLACE_NONE && place < MAX_DEVICES && places[place].file >= 0;
  madvise((void *)begin, end - begin, is_shared ? MADV_REMOVE : MADV_DONTNEED);
}

/* ---- other processes: a handle says whose file it is and where in it the block lies ---- */
typedef struct {
  pid_t process;
  int file, device;
  uintptr_t at;
  size_t size;
} Shared;
_Static_assert(sizeof(Shared) <= sizeof(cudaIpcMemHandle_t), "a handle has 64 bytes");

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  Extent extent;
  int place = place_of(pointer);
  if (place == PLACE_NONE || place >= MAX_DEVICES || !extent_of(pointer, &extent)) return result(cudaErrorInvalidValue);
  Shared shared = {getpid(), places[place].file, place, extent.at, extent.size};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &shared, sizeof shared);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  Shared shared;
  char path[64];
  memcpy(&shared, &handle, sizeof shared);
  if (shared.device < 0 || shared.device >= MAX_DEVICES || !shared.size) return result(cudaErrorInvalidValue);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)shared.process, shared.file);
  int file = shared.file >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return result(cudaErrorInvalidResourceHandle);
  size_t inside = shared.at % PAGE, offset = shared.at - inside - region_of(shared.device);
  lock_books();
  Block *block = add_block(shared.device, round_up(shared.size + inside, PAGE), GRANULE, PROT_NONE);
  if (block) {
    block->is_foreign = true;
    *pointer = map_at(shared.device, block->at, block->size, PROT_READ | PROT_WRITE, file, offset);
    if (*pointer) *pointer = (char *)*pointer + inside;
  }
  pthread_mutex_unlock(&lock);
  close(file);
  return result(block && *pointer ? cudaSuccess : cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaIpcCloseMemHandle(void *pointer) {
  void *begin = (void *)((uintptr_t)pointer / PAGE * PAGE);
  return result(memory_free(begin) ? cudaSuccess : cudaErrorInvalidValue);
}

/* ---- for Python ---- */
EXPORT uint64_t null_gpu_used_bytes(int device) { return device >= 0 && device < MAX_DEVICES ? places[device].used : 0; }
/* With the context. */
EXPORT uint64_t null_gpu_held_bytes(int device) {
  return is_started(device) ? places[device].used + card_of(device)->context : 0;
}
/* The most at once, of all processes of the node if there is one. */
EXPORT uint64_t null_gpu_peak_bytes(int device) {
  size_t peak;
  if (device < 0 || device >= config()->count) return 0;
  if (node_peak(device, &peak)) return peak;
  return is_started(device) ? places[device].peak + card_of(device)->context : 0;
}
EXPORT uint64_t null_gpu_pinned_bytes(void) { return places[PLACE_HOST].used; }
EXPORT uint64_t null_gpu_managed_bytes(void) { return places[PLACE_MANAGED].used; }
