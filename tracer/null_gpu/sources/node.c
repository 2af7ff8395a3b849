/* What all processes of a run hold of its cards: each card's memory is one, as on a node. The first process makes a file
   in memory, and those that it starts find it by NULL_GPU_NODE. Each has a row there and a lock on the row's byte, which
   the kernel drops when the process ends, however it ends: a row without a lock counts no more. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 256
#define PHASE 64
#define NAME "null-gpu-node"
#define VARIABLE "NULL_GPU_NODE"
/* The byte that is locked while rows change; those behind it are the rows'. */
#define GATE 0

typedef struct {
  pid_t process; /* 0 for none */
  bool is_started[MAX_DEVICES];
  size_t used[MAX_DEVICES];
  char phase[PHASE];
} Row;
/* What a process held of a card when all together held the most. */
typedef struct {
  pid_t process; /* 0 behind the last one */
  size_t bytes;
  char phase[PHASE];
} Holder;
/* Devices are numbered as on the node, whatever CUDA_VISIBLE_DEVICES says. */
typedef struct {
  size_t peak[MAX_DEVICES]; /* the most that all held at once, contexts included */
  Holder holders[MAX_DEVICES][ROWS + 1];
  int processes; /* how many have had a row */
  Row rows[ROWS];
} Node;

static Node *node;
static Row *own;
static int file = -1;
static bool is_alone; /* a copy of a process that has a row, which no real driver would serve: a trial */
static char path[64];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A node of this process, which those that it starts find. */
static void make_node(void) {
  file = memfd_create(NAME, MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, sizeof *node)) close(file), file = -1;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), file);
  setenv(VARIABLE, path, 1);
}
static bool has_none(const char *named) { return !named || !*named; }
__attribute__((constructor)) static void begin(void) {
  if (getenv("NULL_GPU_COUNT") && has_none(getenv(VARIABLE))) make_node();
}
EXPORT const char *null_gpu_node(void) { return path; }

void lock_node(void) { pthread_mutex_lock(&lock); }
void unlock_node(void) { pthread_mutex_unlock(&lock); }
void leave_node_to_parent(void) { is_alone = is_alone || own, own = NULL; }

static int lock_byte(int command, short type, off_t byte, struct flock *found) {
  struct flock wanted = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  int status = fcntl(file, command, &wanted);
  if (found) *found = wanted;
  return status;
}
static bool is_alive(const Row *row) {
  struct flock found;
  if (!row->process) return false;
  if (row == own) return true;
  return lock_byte(F_GETLK, F_WRLCK, 1 + (row - node->rows), &found) || found.l_type != F_UNLCK;
}

static bool is_node(int opened) {
  char link[64], name[64] = "";
  struct stat about;
  snprintf(link, sizeof link, "/proc/self/fd/%d", opened);
  return readlink(link, name, sizeof name - 1) > 0 && strstr(name, NAME) && !fstat(opened, &about) &&
         about.st_size == sizeof *node;
}
static bool open_node(void) {
  const char *named = getenv(VARIABLE);
  if (has_none(named)) {
    make_node(); /* a program that was forked is told so to have one of its own */
  } else if (strcmp(named, path)) {
    snprintf(path, sizeof path, "%s", named);
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 && !is_node(file)) close(file), file = -1;
  }
  if (file < 0) return false;
  void *mapped = mmap(NULL, sizeof *node, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped != MAP_FAILED) node = mapped;
  return node != NULL;
}
/* Take the first row without a process. The gate is held. */
static void take_row(void) {
  for (int i = 0; i < ROWS && !own; i++) {
    Row *row = &node->rows[i];
    if (is_alive(row) || lock_byte(F_SETLK, F_WRLCK, 1 + i, NULL)) continue;
    *row = (Row){.process = getpid()};
    own = row;
    node->processes++;
  }
}
/* Whether this process has a row; then the gate is held until `leave`. */
static bool enter(void) {
  pthread_mutex_lock(&lock);
  bool is_open = !is_alone && (node || open_node()) && !lock_byte(F_SETLKW, F_WRLCK, GATE, NULL);
  if (is_open && !own) take_row();
  if (is_open && own) return true;
  if (is_open) lock_byte(F_SETLK, F_UNLCK, GATE, NULL);
  pthread_mutex_unlock(&lock);
  return false;
}
static void leave(void) {
  lock_byte(F_SETLK, F_UNLCK, GATE, NULL);
  pthread_mutex_unlock(&lock);
}

static size_t held_bytes(const Row *row, int index) {
  return row->used[index] + (row->is_started[index] ? config()->cards[index].context : 0);
}
static size_t sum_of_others(int index) {
  size_t sum = 0;
  for (int i = 0; i < ROWS; i++) {
    Row *row = &node->rows[i];
    if (!row->process || row == own) continue;
    if (is_alive(row)) sum += held_bytes(row, index);
    else row->process = 0;
  }
  return sum;
}
/* Rows of processes that are gone have been cleared by `sum_of_others`. */
static void set_peak(int index, size_t others) {
  size_t now = others + held_bytes(own, index);
  if (now <= node->peak[index]) return;
  node->peak[index] = now;
  Holder *next = node->holders[index];
  for (int i = 0; i < ROWS; i++) {
    const Row *row = &node->rows[i];
    if (!row->process || !held_bytes(row, index)) continue;
    *next = (Holder){.process = row->process, .bytes = held_bytes(row, index)};
    memcpy(next++->phase, row->phase, PHASE);
  }
  next->process = 0;
}
static int index_of(int device) { return config()->visible[device]; }

size_t node_others_bytes(int device) {
  if (!enter()) return 0;
  size_t sum = sum_of_others(index_of(device));
  leave();
  return sum;
}
/* Whether a card has room for so many bytes of this process, beside what others hold; they are its own from then on. */
bool node_hold(int device, size_t used) {
  if (!enter()) return true;
  int index = index_of(device);
  size_t others = sum_of_others(index), usable = card_of(device)->usable;
  bool has_room = used <= own->used[index] || (others <= usable && used <= usable - others);
  if (has_room) own->used[index] = used, set_peak(index, others);
  leave();
  return has_room;
}
void node_start(int device) {
  if (device >= config()->count || !enter()) return;
  int index = index_of(device);
  own->is_started[index] = true;
  set_peak(index, sum_of_others(index));
  leave();
}
/* Processes on a card, by its number on the node, and what each holds; how many there are, of which `most` are told. */
int node_processes(int index, NodeProcess *found, int most) {
  int count = 0;
  if (!enter()) return 0;
  for (int i = 0; i < ROWS; i++) {
    const Row *row = &node->rows[i];
    if (!is_alive(row) || !row->is_started[index]) continue;
    if (count < most) found[count] = (NodeProcess){row->process, held_bytes(row, index)};
    count++;
  }
  leave();
  return count;
}
/* The most that all processes of the node have held at once of a device of this process; false without a node. */
bool node_peak(int device, size_t *peak) {
  if (!enter()) return false;
  *peak = node->peak[index_of(device)];
  leave();
  return true;
}
/* The phase that this process is in from now on; its name is cut to what a row has room for. */
EXPORT void null_gpu_set_phase(const char *name) {
  if (!enter()) return;
  snprintf(own->phase, PHASE, "%s", name);
  leave();
}
/* A process that held memory of a device when all together held the most, by number; its number, or 0 behind the last. */
EXPORT int null_gpu_peak_holder(int device, int number, uint64_t *bytes, char phase[PHASE]) {
  if (device < 0 || device >= config()->count || number < 0 || number > ROWS || !enter()) return 0;
  Holder holder = node->holders[index_of(device)][number];
  leave();
  *bytes = holder.bytes;
  memcpy(phase, holder.phase, PHASE);
  return holder.process;
}
/* How many other processes of the run have begun to use a device so far. */
EXPORT int null_gpu_other_processes(void) {
  if (!enter()) return 0;
  int others = node->processes - 1;
  leave();
  return others;
}
