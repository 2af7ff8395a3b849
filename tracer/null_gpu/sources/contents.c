/* What of the device's bytes is known. The host's writes arrive (small ones: larger copies would only fill the host's
   memory), copies between devices carry them along, and a read of the same bytes gives them back; all else reads as zero, since no kernel
   wrote it and a reused block would show what it held before. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <stdlib.h>
#include <string.h>

#define SMALL_FILL (64 * KIB)

static int shows_all = -1;

EXPORT void null_gpu_show_all_bytes(int shows) { shows_all = shows; }
static bool is_all_shown(void) {
  if (shows_all < 0) {
    const char *text = getenv("NULL_GPU_READS");
    shows_all = text && !strcmp(text, "real");
  }
  return shows_all;
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
  if (is_all_shown() || is_known((uintptr_t)from, (uintptr_t)from + size) || is_foreign(from)) memcpy(to, from, size);
  else if (!leave_zeros(to, size)) memset(to, 0, size);
}

static void write_known(void *to, const void *from, size_t size) {
  if (size <= config()->copy_limit) {
    memcpy(to, from, size);
    null_gpu_know_bytes(to, size);
  } else {
    forget_bytes((uintptr_t)to, (uintptr_t)to + size);
    drop_pages((uintptr_t)to, (uintptr_t)to + size);
  }
}

/* Between devices, or on one: the bytes, and which of them are known. */
static void copy_known(char *to, const char *from, size_t size) {
  if (size > config()->copy_limit) {
    forget_bytes((uintptr_t)to, (uintptr_t)to + size);
    drop_pages((uintptr_t)to, (uintptr_t)to + size);
    return;
  }
  memmove(to, from, size);
  carry_known((uintptr_t)to, (uintptr_t)from, size);
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
    if (is_device(pointer)) null_gpu_know_bytes(pointer, size);
    return;
  }
  uintptr_t begin = (uintptr_t)pointer, end = begin + size;
  drop_pages(begin, end);
  forget_bytes(begin, end);
  if (is_zero) { /* the pages at both ends are shared with others */
    memset(pointer, 0, 4096 - begin % 4096);
    memset((void *)(end - end % 4096), 0, end % 4096);
    null_gpu_know_bytes(pointer, size);
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
EXPORT cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset, enum cudaMemcpyKind kind) {
  memset(to, 0, size);
  return result(cudaSuccess);
}
