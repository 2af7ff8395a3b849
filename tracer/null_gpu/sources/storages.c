/* Large tensors of the host take no pages until somebody touches them. Each storage has an address range of its own.
   Python says of one by which recipe its bytes are made (null_gpu_leave); the range is then without access, and whoever
   touches it waits in the handler of SIGSEGV until a thread of Python has made that piece: operators, numpy, C++ with a
   pointer, forked children, and the kernel in the calls below. In other ways the kernel cannot read it (io_uring, sendmmsg,
   another process's process_vm_readv: EFAULT), and destructors when Python ends read zeros, of which stderr is told.
   NULL_GPU_HOST_TENSORS=real has tensors filled at once. What is only read goes again when much was. */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE
#include "null_gpu.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define LEAST MIB
#define PIECE MIB
#define MOST_CLEAN 128 /* pieces that are kept though nobody has written to them */
#define MOST_NOTED 512 /* during one call, which may be of more: those stay */
#define MOST_SPARE 16 /* storages that are kept for the next of their size, as malloc keeps what it has */
#define SPARE_SIZE (16 * MIB)
#define JOINED 64 /* pieces */
#define LONG_S 60
#define LEND (SIGRTMAX - 5) /* a signal that is ours while the program has no handler of it */

enum { UNMADE, CLEAN, WRITTEN };
typedef struct Recipe {
  int64_t number;
  struct Recipe *next; /* of those that nobody needs any more */
  unsigned char pieces[];
} Recipe;
typedef struct {
  uintptr_t at;
  size_t asked, size; /* in whole pages */
  Recipe *recipe;     /* NULL: its bytes are there */
} Storage;
typedef struct {
  int64_t recipe;
  size_t offset, size;
  void *buffer;
} Wanted; /* a piece, for Python */
typedef struct Request {
  uintptr_t at;
  sem_t done;
  bool is_made;
  struct Request *next;
} Request;

static Storage *storages;
static size_t count, capacity;
static size_t num_left; /* storages with a recipe */
static bool is_on, has_maker;
static uintptr_t spare_at[MOST_SPARE];
static size_t spare_size[MOST_SPARE];
static Recipe *forgotten;
static struct {
  uintptr_t at;
  int64_t recipe;
} clean[MOST_NOTED]; /* a ring: from `num_gone` to `num_made` */
static size_t num_made, num_gone, in_calls;
static Request *first_request, **last_request = &first_request, *current;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_wanted = PTHREAD_COND_INITIALIZER;
static __thread bool is_maker;

static size_t round_up(size_t size, size_t to) { return (size + to - 1) / to * to; }
static void *map_pages(void *at, size_t size, int protection) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0);
  return mmap(at, size, protection, flags, -1, 0);
}

/* ---- the books ---- */
static void *piece_at(const Storage *storage, size_t piece) { return (void *)(storage->at + piece * PIECE); }
static size_t piece_size(const Storage *storage, size_t piece) {
  size_t left = storage->size - piece * PIECE;
  return left < PIECE ? left : PIECE;
}
static size_t first_behind(uintptr_t at) { /* the first storage that ends behind an address */
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (storages[middle].at + storages[middle].size <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}
static Storage *storage_of(uintptr_t at) {
  size_t i = first_behind(at);
  return i < count && storages[i].at <= at ? &storages[i] : NULL;
}
static Storage *storage_at(const void *pointer) {
  Storage *storage = storage_of((uintptr_t)pointer);
  return storage && storage->at == (uintptr_t)pointer ? storage : NULL;
}

static void (*next_free)(void *);
static void free_elsewhere(void *pointer) {
  static __thread bool is_looking;
  if (!next_free && !is_looking) {
    is_looking = true;
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    is_looking = false;
  }
  if (next_free) next_free(pointer);
}

static int64_t recipe_of(const Storage *storage) { return storage && storage->recipe ? storage->recipe->number : 0; }
/* Python is told by and by that nobody needs a recipe any more. */
static void end_recipe(Storage *storage) {
  if (!storage->recipe) return;
  storage->recipe->next = forgotten, forgotten = storage->recipe;
  storage->recipe = NULL, num_left--;
}
EXPORT int64_t null_gpu_forgotten_recipe(void) {
  pthread_mutex_lock(&lock);
  Recipe *recipe = forgotten;
  if (recipe) forgotten = recipe->next;
  pthread_mutex_unlock(&lock);
  int64_t number = recipe ? recipe->number : 0;
  free_elsewhere(recipe);
  return number;
}

static bool add_storage(uintptr_t at, size_t asked, size_t size) {
  if (count == capacity) {
    size_t grown = capacity ? 2 * capacity : 256;
    Storage *more = NEXT(realloc)(storages, grown * sizeof *more);
    if (!more) return false;
    storages = more, capacity = grown;
  }
  size_t where = first_behind(at);
  memmove(storages + where + 1, storages + where, (count - where) * sizeof *storages);
  storages[where] = (Storage){.at = at, .asked = asked, .size = size};
  count++;
  return true;
}

/* ---- allocation: in front of the C library's ---- */
static uintptr_t pages_of(size_t size) {
  for (int i = 0; i < MOST_SPARE; i++)
    if (spare_size[i] == size) return spare_size[i] = 0, spare_at[i];
  void *pages = map_pages(NULL, size, PROT_READ | PROT_WRITE);
  return pages == MAP_FAILED ? 0 : (uintptr_t)pages;
}
EXPORT int posix_memalign(void **pointer, size_t alignment, size_t size) {
  size_t rounded = round_up(size, PAGE);
  uintptr_t at = 0;
  if (is_on && size >= LEAST && rounded > size / 2 && alignment <= PAGE) {
    pthread_mutex_lock(&lock);
    at = pages_of(rounded);
    if (at && !add_storage(at, size, rounded)) munmap((void *)at, rounded), at = 0;
    pthread_mutex_unlock(&lock);
  }
  if (!at) return NEXT(posix_memalign)(pointer, alignment, size);
  *pointer = (void *)at;
  return 0;
}

static bool drop_storage(void *pointer) {
  pthread_mutex_lock(&lock);
  Storage *storage = storage_at(pointer);
  if (storage) {
    int place = 0;
    while (place < MOST_SPARE && spare_size[place]) place++;
    bool is_kept = !storage->recipe && storage->size <= SPARE_SIZE && place < MOST_SPARE;
    if (is_kept) spare_at[place] = storage->at, spare_size[place] = storage->size;
    else munmap((void *)storage->at, storage->size);
    end_recipe(storage);
    memmove(storage, storage + 1, (size_t)(storages + count - (storage + 1)) * sizeof *storage);
    count--;
  }
  pthread_mutex_unlock(&lock);
  return storage != NULL;
}
static bool may_be_ours(const void *pointer) {
  return __atomic_load_n(&count, __ATOMIC_RELAXED) && pointer && (uintptr_t)pointer % PAGE == 0;
}
EXPORT void free(void *pointer) {
  if (!may_be_ours(pointer) || !drop_storage(pointer)) free_elsewhere(pointer);
}
static size_t size_asked(const void *pointer) {
  if (!may_be_ours(pointer)) return 0;
  pthread_mutex_lock(&lock);
  const Storage *storage = storage_at(pointer);
  size_t asked = storage ? storage->asked : 0;
  pthread_mutex_unlock(&lock);
  return asked;
}
EXPORT size_t malloc_usable_size(void *pointer) {
  size_t asked = size_asked(pointer);
  return asked ? asked : NEXT(malloc_usable_size)(pointer);
}
EXPORT void *realloc(void *pointer, size_t size) {
  size_t asked = size_asked(pointer);
  if (!asked) return NEXT(realloc)(pointer, size);
  void *moved = size ? malloc(size) : NULL;
  if (moved) memcpy(moved, pointer, size < asked ? size : asked);
  if (moved || !size) free(pointer);
  return moved;
}

/* ---- for Python: what a storage holds ---- */
/* From now on a storage's bytes are what a recipe makes, or zeros without one; those that were there go. */
EXPORT bool null_gpu_leave(void *pointer, int64_t number) {
  pthread_mutex_lock(&lock);
  Storage *storage = storage_at(pointer);
  Recipe *recipe = storage && number ? calloc(1, sizeof *recipe + (storage->size + PIECE - 1) / PIECE) : NULL;
  bool is_left = storage && (recipe || !number) &&
                 map_pages(pointer, storage->size, recipe ? PROT_NONE : PROT_READ | PROT_WRITE) != MAP_FAILED;
  if (is_left) {
    end_recipe(storage);
    storage->recipe = recipe;
    if (recipe) recipe->number = number, num_left++;
  } else free_elsewhere(recipe);
  pthread_mutex_unlock(&lock);
  return is_left;
}
/* Zeros, if that is all that the storage holds from now on. */
bool leave_zeros(void *pointer, size_t size) { return size >= LEAST && size_asked(pointer) == size && null_gpu_leave(pointer, 0); }

/* The number of a storage's recipe, 0 where it has none, and which of its pieces hold something else by now. */
EXPORT int64_t null_gpu_recipe(void *pointer, unsigned char *is_written) {
  pthread_mutex_lock(&lock);
  const Storage *storage = storage_at(pointer);
  int64_t number = recipe_of(storage);
  for (size_t i = 0; number && is_written && i * PIECE < storage->size; i++)
    is_written[i] = storage->recipe->pieces[i] == WRITTEN;
  pthread_mutex_unlock(&lock);
  return number;
}
EXPORT size_t null_gpu_storage_size(void *pointer) { return size_asked(pointer); }
EXPORT size_t null_gpu_num_made(void) { return num_made; }

/* ---- making pieces: one thread of Python does it ---- */
static void answer_request(Request *request, bool is_made) {
  request->is_made = is_made;
  sem_post(&request->done);
}
/* Wait until a piece is wanted. */
EXPORT void null_gpu_next_piece(Wanted *wanted) {
  is_maker = true;
  pthread_mutex_lock(&lock);
  for (current = NULL; !current;) {
    while (!first_request) pthread_cond_wait(&is_wanted, &lock);
    Request *request = first_request;
    if (!(first_request = request->next)) last_request = &first_request;
    const Storage *storage = storage_of(request->at);
    size_t piece = storage ? (request->at - storage->at) / PIECE : 0;
    bool is_there = !recipe_of(storage) || storage->recipe->pieces[piece] != UNMADE;
    void *buffer = is_there ? MAP_FAILED : map_pages(NULL, piece_size(storage, piece), PROT_READ | PROT_WRITE);
    if (buffer == MAP_FAILED) {
      answer_request(request, is_there);
      continue;
    }
    size_t left = storage->asked - piece * PIECE;
    *wanted = (Wanted){recipe_of(storage), piece * PIECE, left < PIECE ? left : PIECE, buffer};
    current = request;
  }
  pthread_mutex_unlock(&lock);
}

static void drop_oldest_clean(void) {
  uintptr_t at = clean[num_gone % MOST_NOTED].at;
  Storage *storage = storage_of(at);
  if (!in_calls && recipe_of(storage) == clean[num_gone % MOST_NOTED].recipe) {
    size_t piece = (at - storage->at) / PIECE;
    unsigned char *state = &storage->recipe->pieces[piece];
    if (*state == CLEAN && map_pages(piece_at(storage, piece), piece_size(storage, piece), PROT_NONE) != MAP_FAILED) *state = UNMADE;
  }
  num_gone++;
}
/* The piece's bytes are in the buffer: they appear at their place at once, so that no thread sees half of them. */
EXPORT void null_gpu_piece_made(const Wanted *wanted, bool is_made) {
  pthread_mutex_lock(&lock);
  Storage *storage = storage_of(current->at);
  bool is_asked_for = recipe_of(storage) == wanted->recipe;
  size_t piece = wanted->offset / PIECE, size = round_up(wanted->size, PAGE);
  if (is_made && is_asked_for)
    is_made = !mprotect(wanted->buffer, size, PROT_READ) &&
              mremap(wanted->buffer, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, piece_at(storage, piece)) != MAP_FAILED;
  if (is_made && is_asked_for) {
    storage->recipe->pieces[piece] = CLEAN;
    while (num_made - num_gone >= (in_calls ? MOST_NOTED : MOST_CLEAN)) drop_oldest_clean();
    clean[num_made % MOST_NOTED].at = current->at, clean[num_made++ % MOST_NOTED].recipe = wanted->recipe;
  } else munmap(wanted->buffer, size);
  answer_request(current, is_made || !is_asked_for);
  current = NULL;
  pthread_mutex_unlock(&lock);
}

static int (*holds_python)(void);
static void *(*leave_python)(void);
static void (*enter_python)(void *);

/* The main thread may wait with the interpreter's lock for threads of OpenMP that wait for a piece, as in compiled kernels
   and in extensions: it is interrupted there, and leaves the lock to the maker until no piece is asked for any more. */
static void lend_python(int signal) {
  (void)signal;
  int error = errno;
  void *thread = holds_python && holds_python() ? leave_python() : NULL;
  for (int num_idle = 0; thread && num_idle < 50; num_idle++) {
    usleep(1000);
    if (__atomic_load_n(&first_request, __ATOMIC_RELAXED) || __atomic_load_n(&current, __ATOMIC_RELAXED)) num_idle = 0;
  }
  if (thread) enter_python(thread);
  errno = error;
}
static int (*next_sigaction)(int, const struct sigaction *, struct sigaction *);
static void have_python_lent(void) {
  struct sigaction ours = {.sa_handler = lend_python, .sa_flags = SA_RESTART | SA_ONSTACK}, before;
  if (next_sigaction(LEND, NULL, &before) || (before.sa_handler != SIG_DFL && before.sa_handler != lend_python)) return;
  char path[64], at[5] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/syscall", getpid());
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  snprintf(path, sizeof path, "%d ", (int)SYS_futex);
  bool is_waiting = NEXT(read)(file, at, 4) == 4 && !strcmp(at, path);
  if (is_waiting && !next_sigaction(LEND, &ours, NULL)) syscall(SYS_tgkill, getpid(), getpid(), LEND);
  close(file);
}

/* Wait for the maker, without the interpreter's lock, which it needs. */
static bool wait_for_piece(uintptr_t at) {
  Request request = {.at = at};
  sem_init(&request.done, 0, 0);
  *last_request = &request, last_request = &request.next;
  pthread_cond_signal(&is_wanted);
  pthread_mutex_unlock(&lock);
  void *thread = holds_python && holds_python() ? leave_python() : NULL;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  int num_waits = 0;
  for (until.tv_sec++; sem_timedwait(&request.done, &until);) {
    if (errno != ETIMEDOUT) continue;
    until.tv_sec++;
    if (!thread) have_python_lent();
    if (++num_waits == LONG_S)
      log_line(0, "values of a tensor on the host have not come for %d s: maybe a library waits for its threads and holds "
               "Python's lock; set NULL_GPU_HOST_TENSORS=real", LONG_S);
  }
  if (thread) enter_python(thread);
  pthread_mutex_lock(&lock);
  return request.is_made;
}

/* A written piece is a mapping of its own, of which a process may have 65,530: neighbours become one. */
static void join_written(Storage *storage, size_t piece) {
  size_t first = piece / JOINED * JOINED, size = JOINED * PIECE;
  void *at = piece_at(storage, first), *buffer;
  if (in_calls || first * PIECE + size > storage->size) return;
  for (size_t i = first; i < first + JOINED; i++)
    if (storage->recipe->pieces[i] != WRITTEN) return;
  if ((buffer = map_pages(NULL, size, PROT_READ | PROT_WRITE)) == MAP_FAILED) return;
  if (!mprotect(at, size, PROT_READ)) { /* who writes waits for the lock */
    memcpy(buffer, at, size);
    if (mremap(buffer, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED) return;
  }
  mprotect(at, size, PROT_READ | PROT_WRITE);
  munmap(buffer, size);
}
/* Have a piece there, and writable where it is written to. Called with the lock; False where there is no storage. */
static bool provide(uintptr_t at, bool writes) {
  static bool is_said;
  for (;;) {
    Storage *storage = storage_of(at);
    if (!storage) return false;
    if (!storage->recipe) return true;
    size_t piece = (at - storage->at) / PIECE;
    unsigned char *state = &storage->recipe->pieces[piece];
    void *begin = piece_at(storage, piece);
    if (*state == WRITTEN || (*state == CLEAN && !writes)) return true;
    if (*state == CLEAN) {
      if (mprotect(begin, piece_size(storage, piece), PROT_READ | PROT_WRITE)) return false;
      *state = WRITTEN;
      join_written(storage, piece);
      return true;
    }
    if (is_python_ending()) { /* then none of its other threads goes on */
      if (!is_said) log_line(0, "a tensor on the host is read while Python ends, and reads zeros; set NULL_GPU_HOST_TENSORS=real");
      is_said = true;
      if (map_pages(begin, piece_size(storage, piece), PROT_READ | PROT_WRITE) == MAP_FAILED) return false;
      *state = WRITTEN;
      return true;
    }
    if (is_maker || !has_maker || !wait_for_piece(at)) return false;
  }
}

/* ---- faults ---- */
static struct sigaction others; /* what the program does on SIGSEGV */

static void pass_on(int signal, siginfo_t *info, void *context) {
  if (others.sa_flags & SA_SIGINFO) return others.sa_sigaction(signal, info, context);
  if (others.sa_handler != SIG_DFL && others.sa_handler != SIG_IGN) return others.sa_handler(signal);
  next_sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
  if (info->si_code <= 0) raise(signal);
}
static void on_fault(int signal, siginfo_t *info, void *context) {
  static __thread uintptr_t last;
  static __thread int again;
  int error = errno;
  uintptr_t at = (uintptr_t)info->si_addr;
  bool is_ours = false;
  if (info->si_code > 0) {
    pthread_mutex_lock(&lock);
    const Storage *storage = storage_of(at);
    int state = recipe_of(storage) ? storage->recipe->pieces[(at - storage->at) / PIECE] : WRITTEN;
    again = state == WRITTEN && at == last ? again + 1 : 0, last = at;
    /* It may be there by now, if another thread was faster; not again and again. */
    is_ours = again < 1000 && provide(at, state == CLEAN);
    pthread_mutex_unlock(&lock);
  }
  errno = error;
  if (!is_ours) pass_on(signal, info, context);
}
EXPORT int sigaction(int signal, const struct sigaction *set, struct sigaction *before) {
  if (signal != SIGSEGV || !is_on) return NEXT(sigaction)(signal, set, before);
  struct sigaction was = others;
  if (set) others = *set;
  if (before) *before = was;
  return 0;
}
EXPORT sighandler_t signal(int number, sighandler_t handler) {
  if (number != SIGSEGV || !is_on) return NEXT(signal)(number, handler);
  sighandler_t was = others.sa_handler;
  others = (struct sigaction){.sa_handler = handler};
  return was;
}
/* A fault whose signal is blocked ends the process. */
EXPORT int pthread_sigmask(int how, const sigset_t *set, sigset_t *before) {
  sigset_t allowed;
  if (set && is_on && how != SIG_UNBLOCK) {
    allowed = *set;
    sigdelset(&allowed, SIGSEGV);
    set = &allowed;
  }
  return NEXT(pthread_sigmask)(how, set, before);
}

/* ---- the kernel's own reads and writes: no signal comes, they fail ---- */
static bool hold(const struct iovec *parts, size_t num, bool writes) {
  if (!__atomic_load_n(&num_left, __ATOMIC_RELAXED)) return false;
  bool is_held = false;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < num; i++) {
    uintptr_t at = (uintptr_t)parts[i].iov_base, end = at + parts[i].iov_len;
    while (num_left && at < end) {
      size_t next = first_behind(at);
      if (next == count || storages[next].at >= end) break;
      if (storages[next].at > at) at = storages[next].at;
      uintptr_t begin = storages[next].at, behind = begin + storages[next].size;
      if (storages[next].recipe) {
        if (!is_held) is_held = true, in_calls++;
        if (!provide(at, writes)) break;
        behind = begin + ((at - begin) / PIECE + 1) * PIECE;
      }
      at = behind;
    }
  }
  pthread_mutex_unlock(&lock);
  return is_held;
}
static void let_go(bool is_held) {
  if (!is_held) return;
  pthread_mutex_lock(&lock);
  in_calls--;
  pthread_mutex_unlock(&lock);
}
#define AROUND(type, name, parameters, arguments, range, writes)      \
  EXPORT type name parameters {                                       \
    bool is_held = hold(range, writes);                               \
    type moved = NEXT(name) arguments;                                \
    int error = errno;                                                \
    let_go(is_held);                                                  \
    errno = error;                                                    \
    return moved;                                                     \
  }
#define BYTES(at, size) (&(struct iovec){(void *)(at), size}), 1
#define PARTS parts, (size_t)num
#define OF_MESSAGE message->msg_iov, message->msg_iovlen
AROUND(ssize_t, write, (int file, const void *at, size_t size), (file, at, size), BYTES(at, size), false)
AROUND(ssize_t, pwrite, (int file, const void *at, size_t size, off_t to), (file, at, size, to), BYTES(at, size), false)
AROUND(ssize_t, writev, (int file, const struct iovec *parts, int num), (file, parts, num), PARTS, false)
AROUND(ssize_t, send, (int file, const void *at, size_t size, int flags), (file, at, size, flags), BYTES(at, size), false)
AROUND(ssize_t, sendmsg, (int file, const struct msghdr *message, int flags), (file, message, flags), OF_MESSAGE, false)
AROUND(ssize_t, pwritev, (int file, const struct iovec *parts, int num, off_t to), (file, parts, num, to), PARTS, false)
AROUND(ssize_t, pwritev2, (int file, const struct iovec *parts, int num, off_t to, int flags), (file, parts, num, to, flags),
       PARTS, false)
AROUND(ssize_t, sendto, (int file, const void *at, size_t size, int flags, __CONST_SOCKADDR_ARG to, socklen_t length),
       (file, at, size, flags, to, length), BYTES(at, size), false)
AROUND(size_t, fwrite, (const void *at, size_t size, size_t num, FILE *to), (at, size, num, to), BYTES(at, size * num), false)
AROUND(ssize_t, read, (int file, void *at, size_t size), (file, at, size), BYTES(at, size), true)
AROUND(ssize_t, pread, (int file, void *at, size_t size, off_t from), (file, at, size, from), BYTES(at, size), true)
AROUND(ssize_t, readv, (int file, const struct iovec *parts, int num), (file, parts, num), PARTS, true)
AROUND(ssize_t, recv, (int file, void *at, size_t size, int flags), (file, at, size, flags), BYTES(at, size), true)
AROUND(ssize_t, recvmsg, (int file, struct msghdr *message, int flags), (file, message, flags), OF_MESSAGE, true)
AROUND(ssize_t, preadv, (int file, const struct iovec *parts, int num, off_t from), (file, parts, num, from), PARTS, true)
AROUND(ssize_t, preadv2, (int file, const struct iovec *parts, int num, off_t from, int flags), (file, parts, num, from, flags),
       PARTS, true)
AROUND(ssize_t, recvfrom, (int file, void *at, size_t size, int flags, __SOCKADDR_ARG from, socklen_t *length),
       (file, at, size, flags, from, length), BYTES(at, size), true)
AROUND(size_t, fread, (void *at, size_t size, size_t num, FILE *from), (at, size, num, from), BYTES(at, size * num), true)
ALSO(pwrite) ssize_t pwrite64(int file, const void *at, size_t size, off64_t to);
ALSO(pwritev) ssize_t pwritev64(int file, const struct iovec *parts, int num, off64_t to);
ALSO(pwritev2) ssize_t pwritev64v2(int file, const struct iovec *parts, int num, off64_t to, int flags);
ALSO(pread) ssize_t pread64(int file, void *at, size_t size, off64_t from);
ALSO(preadv) ssize_t preadv64(int file, const struct iovec *parts, int num, off64_t from);
ALSO(preadv2) ssize_t preadv64v2(int file, const struct iovec *parts, int num, off64_t from, int flags);

/* ---- start, and forks ---- */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&lock); }
static void after_fork_in_child(void) { /* the maker is the parent's, and so are all who wait for it */
  pthread_cond_init(&is_wanted, NULL);
  first_request = current = NULL, last_request = &first_request;
  has_maker = false, in_calls = 0;
  pthread_mutex_unlock(&lock);
}
/* From now on large tensors have storages of their own. False where torch's allocations do not come by here, as where the
   library was loaded when the program had begun. */
EXPORT bool null_gpu_own_storages(void) {
  if (is_on || dlsym(RTLD_DEFAULT, "posix_memalign") != (void *)posix_memalign) return is_on;
  struct sigaction handler = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
  next_sigaction = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
  if (!next_sigaction || next_sigaction(SIGSEGV, &handler, &others)) return false;
  leave_python = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
  enter_python = (void (*)(void *))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
  holds_python = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
  is_python_ending(); /* looked up now, and not in a handler */
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  return is_on = true;
}
EXPORT void null_gpu_has_maker(void) { has_maker = true; }

/* ---- torch's generator on the host: the state after numbers that nobody looks at ---- */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#define WORDS 624
#define HALF 397
static inline uint32_t twisted(uint32_t high, uint32_t low) {
  uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
  return (mixed >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
}
static void next_words(uint32_t *words) {
  for (int i = 0; i < WORDS - HALF; i++) words[i] = words[i + HALF] ^ twisted(words[i], words[i + 1]);
  for (int i = WORDS - HALF; i < WORDS - 1; i++) words[i] = words[i + HALF - WORDS] ^ twisted(words[i], words[i + 1]);
  words[WORDS - 1] = words[HALF - 1] ^ twisted(words[WORDS - 1], words[0]);
}
/* As `torch.Generator.get_state` lays it out: c10's CPUGeneratorImplState, of Mersenne Twister 19937. */
typedef struct {
  uint64_t seed;
  int32_t left, is_seeded;
  uint64_t next, words[WORDS];
} Generator;
EXPORT void null_gpu_skip_draws(Generator *generator, uint64_t num) {
  uint32_t words[WORDS];
  uint64_t there = (uint64_t)generator->left - 1;
  if (num > there) {
    for (int i = 0; i < WORDS; i++) words[i] = (uint32_t)generator->words[i];
    for (num -= there; num > WORDS; num -= WORDS) next_words(words);
    next_words(words);
    for (int i = 0; i < WORDS; i++) generator->words[i] = words[i];
    generator->left = WORDS + 1, generator->next = 0;
  }
  generator->left -= (int32_t)num, generator->next += num;
}
