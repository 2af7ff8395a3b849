/* Which of the device's bytes are known: those of writes that arrived, as ranges. */
#include "null_gpu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANGES 65536

typedef struct {
  uintptr_t begin, end;
} Range;
/* Each a write; sorted, disjoint. */
static Range *ranges;
static size_t count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Locked after the books of memory, never before. */
void lock_known(void) { pthread_mutex_lock(&lock); }
void unlock_known(void) { pthread_mutex_unlock(&lock); }

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
bool is_known(uintptr_t begin, uintptr_t end) {
  pthread_mutex_lock(&lock);
  size_t i = first_behind(begin);
  bool begins = i < count && ranges[i].begin == begin;
  while (begins && i + 1 < count && ranges[i].end < end && ranges[i + 1].begin == ranges[i].end) i++;
  bool is_covered = begins && ranges[i].end == end;
  pthread_mutex_unlock(&lock);
  return is_covered;
}

void forget_bytes(uintptr_t begin, uintptr_t end) {
  pthread_mutex_lock(&lock);
  if (count) forget_locked(begin, end);
  pthread_mutex_unlock(&lock);
}
EXPORT void null_gpu_know_bytes(const void *pointer, size_t size) {
  pthread_mutex_lock(&lock);
  if (size) know_locked((uintptr_t)pointer, (uintptr_t)pointer + size);
  pthread_mutex_unlock(&lock);
}
/* After a copy: the ranges known of the source are known of the copy. */
void carry_known(uintptr_t to, uintptr_t from, size_t size) {
  Range known[64];
  size_t how_many = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = first_behind(from); i < count && ranges[i].begin < from + size && how_many < 64; i++)
    known[how_many++] = (Range){ranges[i].begin > from ? ranges[i].begin : from,
                                ranges[i].end < from + size ? ranges[i].end : from + size};
  if (count) forget_locked(to, to + size);
  for (size_t i = 0; i < how_many; i++) know_locked(to + (known[i].begin - from), to + (known[i].end - from));
  pthread_mutex_unlock(&lock);
}
