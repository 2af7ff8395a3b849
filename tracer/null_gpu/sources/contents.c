/* What of the device's bytes is known. The host's writes arrive (small ones: larger copies would only fill the host's
   memory), copies between devices carry them along, and a read of the same bytes gives them back; all else reads as zero, since no kernel
   wrote it and a reused block would show what it held before. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANGES 65536
#define SMALL_FILL (64 * KIB)

typedef struct {
  uintptr_t begin, end;
} Range;
/* Each a write; sorted, disjoint. */
static Range *ranges;
static size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int shows_all = -1;

EXPORT void null_gpu_show_all_bytes(int shows) { shows_all = shows; }
static bool is_all_shown(void) {
  if (shows_all < 0) {
    const char *text = getenv("NULL_GPU_READS");
    shows_all = text && !strcmp(text, "real");
  }
  return shows_all;
}

/* Locked after the books of memory, never before. */
void lock_contents(void) { pthread_mutex_lock(&lock); }
void unlock_contents(void) { pthread_mutex_unlock(&lock); }

/* The first range that ends behind an address. */
static size_t first_behind(uintptr_t at) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].end <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

static void replace(size_t from, size_t to, const Range *with, size_t how_many) {
  memmove(ranges + from + how_many, ranges + to, (count - to) * sizeof *ranges);
  if (how_many) memcpy(ranges + from, with, how_many * sizeof *ranges);
  count = count - (to - from) + how_many;
}

/* A write that is partly gone is gone. */
static void forget_locked(uintptr_t begin, uintptr_t end) {
  size_t from = first_behind(begin), to = from;
  while (to < count && ranges[to].begin < end) to++;
  if (from < to) replace(from, to, NULL, 0);
}

static void know_locked(uintptr_t begin, uintptr_t end) {
  if (!ranges && !(ranges = malloc((MAX_RANGES + 1) * sizeof *ranges))) return;
  if (count >= MAX_RANGES) {
    static bool is_said;
    if (!is_said) log_line(0, "more than %d pieces of device memory were written; their values now read as zero", MAX_RANGES);
    is_said = true;
    count = 0;
  }
  forget_locked(begin, end);
  size_t where = first_behind(begin);
  replace(where, where, &(Range){begin, end}, 1);
}

/* Whether writes cover a range exactly, from its first byte to its last: a block that was used again seldom is read as it
   was written before, so that what a kernel would have written there is not taken for an old value. */
static bool is_known_locked(uintptr_t begin, uintptr_t end) {
  size_t i = first_behind(begin);
  if (i == count || ranges[i].begin != begin) return false;
  while (i + 1 < count && ranges[i].end < end && ranges[i + 1].begin == ranges[i].end) i++;
  return ranges[i].end == end;
}

void forget_bytes(uintptr_t begin, uintptr_t end) {
  pthread_mutex_lock(&lock);
  if (count) forget_locked(begin, end);
  pthread_mutex_unlock(&lock);
}
static void know_bytes(const void *pointer, size_t size) {
  pthread_mutex_lock(&lock);
  know_locked((uintptr_t)pointer, (uintptr_t)pointer + size);
  pthread_mutex_unlock(&lock);
}
EXPORT void null_gpu_know_bytes(const void *pointer, size_t size) {
  if (size) know_bytes(pointer, size);
}

bool is_device(const void *pointer) {
  int place = place_of(pointer);
  return place != PLACE_NONE && place < MAX_DEVICES;
}

/* The size of a result that an operator counts on the device and then reads, such as how many elements are not zero: the
   host has computed it and tells it before the operator runs. */
#define MAX_ANSWER 64
static __thread struct {
  bool is_given;
  int64_t number;
} answer;

EXPORT void null_gpu_answer_reads(int is_given, int64_t number) {
  answer.is_given = is_given;
  answer.number = number;
}

static void read_known(void *to, const void *from, size_t size) {
  if (answer.is_given && size <= MAX_ANSWER) {
    memset(to, 0, size);
    memcpy(to, &answer.number, size < sizeof answer.number ? size : sizeof answer.number);
    return;
  }
  pthread_mutex_lock(&lock);
  bool is_known = is_all_shown() || is_known_locked((uintptr_t)from, (uintptr_t)from + size);
  pthread_mutex_unlock(&lock);
  if (is_known || is_foreign(from)) memcpy(to, from, size);
  else memset(to, 0, size);
}

static void write_known(void *to, const void *from, size_t size) {
  if (size <= config()->copy_limit) {
    memcpy(to, from, size);
    know_bytes(to, size);
  } else {
    forget_bytes((uintptr_t)to, (uintptr_t)to + size);
    drop_pages((uintptr_t)to, (uintptr_t)to + size);
  }
}

/* Between devices, or on one: the bytes, and which of them are known. */
static void copy_known(char *to, const char *from, size_t size) {
  uintptr_t begin = (uintptr_t)from, end = begin + size;
  if (size > config()->copy_limit) {
    forget_bytes((uintptr_t)to, (uintptr_t)to + size);
    drop_pages((uintptr_t)to, (uintptr_t)to + size);
    return;
  }
  memmove(to, from, size);
  Range known[64];
  size_t how_many = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = first_behind(begin); i < count && ranges[i].begin < end && how_many < 64; i++)
    known[how_many++] = (Range){ranges[i].begin > begin ? ranges[i].begin : begin, ranges[i].end < end ? ranges[i].end : end};
  if (count) forget_locked((uintptr_t)to, (uintptr_t)to + size);
  for (size_t i = 0; i < how_many; i++)
    know_locked((uintptr_t)to + (known[i].begin - begin), (uintptr_t)to + (known[i].end - begin));
  pthread_mutex_unlock(&lock);
}

void move_bytes(void *to, const void *from, size_t size) {
  if (!size || to == from) return;
  bool to_device = is_device(to), from_device = is_device(from);
  log_line(3, "copy %zu bytes from %p to %p", size, from, to);
  if (to_device && from_device) copy_known(to, from, size);
  else if (to_device) write_known(to, from, size);
  else if (from_device) read_known(to, from, size);
  else memmove(to, from, size);
}

static void fill_with(void *pointer, const void *element, size_t width, size_t size) {
  if (width == 1) memset(pointer, *(const unsigned char *)element, size);
  else
    for (size_t at = 0; at < size; at += width) memcpy((char *)pointer + at, element, width);
}

/* One write, whatever the width of its elements: one range. */
void fill_elements(void *pointer, const void *element, size_t width, size_t count) {
  size_t size = width * count;
  bool is_zero = true;
  for (size_t i = 0; i < width; i++) is_zero &= !((const char *)element)[i];
  if (!size) return;
  if (!is_device(pointer) || size <= (is_zero ? SMALL_FILL : config()->copy_limit)) {
    fill_with(pointer, element, width, size);
    if (is_device(pointer)) know_bytes(pointer, size);
    return;
  }
  uintptr_t begin = (uintptr_t)pointer, end = begin + size;
  drop_pages(begin, end);
  forget_bytes(begin, end);
  if (is_zero) { /* the pages at both ends are shared with others */
    memset(pointer, 0, 4096 - begin % 4096);
    memset((void *)(end - end % 4096), 0, end % 4096);
    know_bytes(pointer, size);
  }
}

void fill_bytes(void *pointer, int value, size_t size) { fill_elements(pointer, &(unsigned char){(unsigned char)value}, 1, size); }

EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  pools_synchronize();
  record_copy(to, from, size, NULL);
  move_bytes(to, from, size);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  count_node(stream);
  record_copy(to, from, size, stream);
  move_bytes(to, from, size);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t size) {
  move_bytes(to, from, size);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                       cudaStream_t stream) {
  count_node(stream);
  record_copy(to, from, size, stream);
  move_bytes(to, from, size);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                     size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  count_node(stream);
  record_copy(to, from, width * height, stream);
  if (to_pitch == width && from_pitch == width) { /* one write */
    move_bytes(to, from, width * height);
    return result(cudaSuccess);
  }
  if (is_device(to) && width * height > config()->copy_limit) return result(cudaSuccess);
  for (size_t row = 0; row < height; row++) move_bytes((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                                enum cudaMemcpyKind kind) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, NULL);
}
EXPORT cudaError_t cudaMemset(void *pointer, int value, size_t size) {
  record_set(value, size, NULL);
  fill_bytes(pointer, value, size);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemsetAsync(void *pointer, int value, size_t size, cudaStream_t stream) {
  count_node(stream);
  record_set(value, size, stream);
  fill_bytes(pointer, value, size);
  return result(cudaSuccess);
}
/* Variables of kernels: nobody reads them, so that all of them are one. */
static char variables[MIB];
EXPORT cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
  *pointer = variables;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol) {
  *size = sizeof variables;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset,
                                      enum cudaMemcpyKind kind) {
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t size, size_t offset,
                                           enum cudaMemcpyKind kind, cudaStream_t stream) {
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset, enum cudaMemcpyKind kind) {
  memset(to, 0, size);
  return result(cudaSuccess);
}
