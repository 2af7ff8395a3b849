/* What a program writes, in a folder of the run: its own files stay as they are, and it reads back what it wrote.

   The run's folder ("root") mirrors absolute paths. The first change in a folder makes its mirror: a folder of symbolic
   links to the real entries, whose targets begin with a mark. From then on, listing, reading, removing and renaming are
   ordinary operations there; a file that is changed takes the place of its link. Folders above it are mirrored in part:
   what they lack is looked for in the folder that the link REAL in them names. Files are found by walking a path as the
   kernel does. Only system calls are used here, since file_calls.c replaces the functions of the C library. */
#define _GNU_SOURCE
#include "writes.h"
#include "null_gpu.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MARK "/.//"
#define REAL ".null-gpu-real"
#define LOCK ".null-gpu-lock"
#define NEW ".null-gpu-new"
#define MAX_ZONES 64
#define MAX_LINKS 40

typedef struct {
  char path[PATH_MAX];
  size_t length;
  char kind;
} Zone;
static Zone zones[MAX_ZONES];
static int num_zones;
static char root[PATH_MAX]; /* empty: files are where they are */
static size_t root_length;
static char first_root[PATH_MAX]; /* that of the job's rank 0, in another one; or empty */

/* What all processes of the run know: whether any folder has a mirror (without one, every file is where its path says),
   and when the run began, as the file system counts. */
typedef struct {
  int has_mirrors;
  struct timespec begin;
} Run;
static const Run unknown = {.has_mirrors = 1};
static volatile const Run *run = &unknown;
static __thread int paused;

/* System calls under names that cannot be replaced. Each returns -1 and sets errno, as the C library's do. */
static int status_of(const char *path, struct stat *status) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
static bool read_link(const char *path, char *target) {
  long length = syscall(SYS_readlinkat, AT_FDCWD, path, target, PATH_MAX - 1);
  if (length < 0) return false;
  target[length] = 0;
  return true;
}
static int open_file(const char *path, int flags, mode_t mode) {
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode);
}
static int remove_file(const char *path) { return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0); }
static int make_link(const char *target, const char *path) {
  return (int)syscall(SYS_symlinkat, target, AT_FDCWD, path);
}
static int move(const char *from, const char *to, unsigned flags) {
  return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
}

/* Format a path; false if it is too long. */
__attribute__((format(printf, 2, 3))) static bool put(char *path, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(path, PATH_MAX, format, arguments);
  va_end(arguments);
  if (length < PATH_MAX) return true;
  errno = ENAMETOOLONG;
  return false;
}

static bool is_below(const char *path, const char *folder, size_t length) {
  return !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

/* Whether a path is Python's bytecode beside real sources: the same in every run, it stays there. */
static bool is_bytecode(const char *path) {
  char sources[PATH_MAX];
  struct stat status;
  const char *cache = strstr(path, "/__pycache__");
  if (!cache || (cache[12] && cache[12] != '/')) return false;
  return put(sources, "%.*s/.", (int)(cache - path), path) && !status_of(sources, &status);
}

/* Whether an entry of the temporary folder was made by this run, or is about to be, as tempfile and mkstemp make them: a
   file that must be new, a folder for its owner alone. Such stay there, since their paths are handed to anybody. */
static bool is_temporary(const char *path, const Zone *zone, Change change) {
  char entry[PATH_MAX];
  struct stat status;
  size_t length = zone->length + strspn(path + zone->length, "/");
  length += strcspn(path + length, "/");
  if (length == zone->length || !put(entry, "%.*s", (int)length, path)) return true;
  if (status_of(entry, &status)) return change == MAKES_TEMPORARY;
  if (S_ISDIR(status.st_mode) && (status.st_mode & 0777) != 0700) return false;
  struct timespec begin = {run->begin.tv_sec, run->begin.tv_nsec};
  return status.st_ctim.tv_sec > begin.tv_sec ||
         (status.st_ctim.tv_sec == begin.tv_sec && status.st_ctim.tv_nsec >= begin.tv_nsec);
}

/* Whether changes at a path go to the root: the longest zone that it is in decides. */
static bool goes_aside(const char *path, Change change) {
  if (is_below(path, root, root_length)) return false;
  const Zone *best = NULL;
  for (int i = 0; i < num_zones; i++) {
    const Zone *zone = &zones[i];
    if (is_below(path, zone->path, zone->length) && (!best || zone->length > best->length)) best = zone;
  }
  if (best && (best->kind == '-' || (best->kind == '~' && is_temporary(path, best, change)))) return false;
  return change == REMOVES || !is_bytecode(path);
}

/* A path in the root as the program sees it. */
void as_seen(char *path) {
  if (!root_length || paused || !is_below(path, root, root_length)) return;
  memmove(path, path + root_length, strlen(path + root_length) + 1);
  if (!*path) strcpy(path, "/");
}

/* The real path that a link of a mirror stands for; 0 if it is none. */
int points_to_real(int folder, const char *path, char *real) {
  char target[PATH_MAX];
  long length = syscall(SYS_readlinkat, folder, path, target, PATH_MAX - 1);
  if (length < (long)strlen(MARK) || strncmp(target, MARK, strlen(MARK))) return 0;
  target[length] = 0;
  put(real, "/%s", target + strlen(MARK));
  return 1;
}

static bool link_to_real(const char *real, const char *path) {
  char target[PATH_MAX];
  return put(target, MARK "%s", real + strspn(real, "/")) && !make_link(target, path);
}

/* What a mirror made in part stands for. */
static bool base_of(const char *mirror, char *base) {
  char link[PATH_MAX];
  return put(link, "%s/" REAL, mirror) && points_to_real(AT_FDCWD, link, base);
}

/* Where an entry of a folder is now, following a mirror's own links; false if it is not there. */
static bool find_entry(const char *folder, const char *logical, bool was_aside, const char *name, char *found,
                       struct stat *status) {
  char base[PATH_MAX];
  bool is_aside = goes_aside(logical, REMOVES);
  if (!is_aside || !was_aside) {
    if (!put(found, "%s%s", root, logical) || !is_aside || status_of(found, status)) put(found, "%s", logical);
  } else if (!put(found, "%s/%s", folder, name)) {
    return false;
  }
  if (status_of(found, status)) {
    if (!is_below(folder, root, root_length) || !base_of(folder, base)) return false;
    if (!put(found, "%s/%s", strcmp(base, "/") ? base : "", name) || status_of(found, status)) return false;
  }
  if (S_ISLNK(status->st_mode) && is_below(found, root, root_length) && points_to_real(AT_FDCWD, found, base)) {
    put(found, "%s", base);
    return !status_of(found, status);
  }
  return true;
}

/* Begin a walk at the path's beginning, without "." and links, which the walk resolves. False where it is none. */
static bool beginning(int folder, const char *path, char *pending, bool *is_in_root) {
  char from[PATH_MAX] = "";
  if (*path != '/') {
    char name[64];
    if (folder == AT_FDCWD) {
      if (syscall(SYS_getcwd, from, sizeof from) < 0) return false;
    } else {
      snprintf(name, sizeof name, "/proc/self/fd/%d", folder);
      if (!read_link(name, from)) return false;
    }
    if (*from != '/') return false;
    *is_in_root = is_below(from, root, root_length);
    as_seen(from);
  }
  return put(pending, "%s/%s", from, path);
}

static bool is_of_the_kernel(const char *path) {
  return is_below(path, "/proc", 5) || is_below(path, "/sys", 4) || is_below(path, "/dev", 4);
}

/* Find where a path's file is. False where the program's own path is as good: then nothing is known of it. */
bool find_place(int folder, const char *path, bool follow, Change change, Place *place) {
  if (!root_length || paused || !path || !*path || is_of_the_kernel(path)) return false;
  int kept = errno;
  char pending[PATH_MAX], rest[PATH_MAX], name[NAME_MAX + 1], next[PATH_MAX], found[PATH_MAX], target[PATH_MAX];
  struct stat status = {.st_mode = S_IFDIR};
  int num_links = 0, num_turns = 0;
  bool was_aside = true, must_be_folder = path[strlen(path) - 1] == '/';
  *place = (Place){.exists = true};
  if (!beginning(folder, path, pending, &place->is_from_root)) return errno = kept, false;
again:
  put(place->logical, "%s", "");
  put(place->physical, "%s", run->has_mirrors ? root : "");
  was_aside = true;
  for (const char *at = pending;;) {
    at += strspn(at, "/");
    size_t length = strcspn(at, "/");
    if (!length) break;
    if (length > NAME_MAX) return errno = kept, false;
    memcpy(name, at, length);
    name[length] = 0;
    at += length;
    if (!strcmp(name, ".")) continue;
    if (!strcmp(name, "..")) {
      char *slash = strrchr(place->logical, '/');
      if (slash) *slash = 0;
      if (++num_turns > 4096 || !put(rest, "%s/%s", place->logical, at)) return errno = kept, false;
      strcpy(pending, rest);
      goto again;
    }
    if (!put(next, "%s/%s", place->logical, name)) return errno = kept, false;
    if (is_of_the_kernel(next)) return errno = kept, false;
    bool is_last = !at[strspn(at, "/")];
    if (!find_entry(place->physical, next, was_aside, name, found, &status)) {
      place->exists = false;
      at += strspn(at, "/");
      if (!put(place->logical, *at ? "%s/%s" : "%s", next, at)) return errno = kept, false;
      if (!put(place->physical, *at ? "%s/%s" : "%s", found, at)) return errno = kept, false;
      break;
    }
    if (S_ISLNK(status.st_mode) && (!is_last || follow || must_be_folder)) {
      if (++num_links > MAX_LINKS || !read_link(found, target)) return errno = kept, false;
      if (!put(rest, *target == '/' ? "%.0s%s/%s" : "%s/%s/%s", place->logical, target, at)) return errno = kept, false;
      strcpy(pending, rest);
      goto again;
    }
    strcpy(place->logical, next);
    strcpy(place->physical, found);
    was_aside = goes_aside(next, REMOVES);
  }
  if (!*place->logical) strcpy(place->logical, "/");
  if (!*place->physical) strcpy(place->physical, "/");
  place->mode = place->exists ? status.st_mode : 0;
  place->is_aside = goes_aside(place->logical, change);
  if (place->is_aside != goes_aside(place->logical, REMOVES)) strcpy(place->physical, place->logical); /* bytecode */
  errno = kept;
  return true;
}

/* Whether all files are where their paths say. */
bool nothing_is_aside(void) { return !root_length || paused || !run->has_mirrors; }

/* Whether the kernel would not find the file by the program's own path. */
bool is_moved(const Place *place) { return place->is_from_root || strcmp(place->physical, place->logical); }

static void unlock(int lock) {
  int kept = errno;
  flock(lock, LOCK_UN); /* a child that was forked meanwhile has the descriptor, too */
  syscall(SYS_close, lock);
  errno = kept;
}

/* One process and thread at a time makes mirrors. Returns a descriptor to close, or -1. */
static int locked(void) {
  char path[PATH_MAX];
  if (!put(path, "%s/" LOCK, root)) return -1;
  int lock = open_file(path, O_RDWR, 0);
  if (lock < 0) return -1;
  while (flock(lock, LOCK_EX) && errno == EINTR) continue;
  if (!run->has_mirrors && pwrite(lock, &unknown.has_mirrors, sizeof unknown.has_mirrors, 0) < 0) return unlock(lock), -1;
  return lock;
}

/* Make the mirror of a folder, with nothing in it but what says which it is. */
static int make_mirror(const char *real, const char *mirror) {
  char made[PATH_MAX], link[PATH_MAX];
  struct stat status, before;
  if (!put(made, "%s/" NEW, root) || !put(link, "%s/" REAL, made)) return -1;
  remove_file(link); /* left by a process that was killed here */
  if (syscall(SYS_unlinkat, AT_FDCWD, made, AT_REMOVEDIR) && errno != ENOENT && remove_file(made)) return -1;
  if (syscall(SYS_newfstatat, AT_FDCWD, real, &status, 0)) return -1;
  if (!S_ISDIR(status.st_mode)) return errno = ENOTDIR, -1;
  if (syscall(SYS_mkdirat, AT_FDCWD, made, 0700) || !link_to_real(real, link)) return -1;
  syscall(SYS_fchmodat, AT_FDCWD, made, (status.st_mode & 0777) | 0700);
  if (status_of(mirror, &before)) return move(made, mirror, 0);
  /* In the place of its link, at once where the file system can. */
  if (!move(made, mirror, RENAME_EXCHANGE)) return remove_file(made);
  return remove_file(mirror) || move(made, mirror, 0) ? -1 : 0;
}

/* Mirror a folder in part, and those above it. */
static int mirror_in_part(const char *logical) {
  char part[PATH_MAX], mirror[PATH_MAX], real[PATH_MAX], base[PATH_MAX], folder[PATH_MAX];
  struct stat status;
  strcpy(folder, root);
  for (size_t i = 1; logical[1] && i <= strlen(logical); i++) {
    if (logical[i] && logical[i] != '/') continue;
    snprintf(part, sizeof part, "%.*s", (int)i, logical);
    if (!put(mirror, "%s%s", root, part)) return -1;
    if (status_of(mirror, &status)) {
      strcpy(real, part);
      if (base_of(folder, base) && !put(real, "%s%s", strcmp(base, "/") ? base : "", strrchr(part, '/'))) return -1;
      if (make_mirror(real, mirror)) return -1;
    } else if (S_ISLNK(status.st_mode)) {
      if (!points_to_real(AT_FDCWD, mirror, real)) return errno = ENOTDIR, -1;
      if (make_mirror(real, mirror)) return -1;
    } else if (!S_ISDIR(status.st_mode)) {
      return errno = ENOTDIR, -1;
    }
    strcpy(folder, mirror);
  }
  return 0;
}

typedef struct {
  uint64_t inode;
  int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[];
} Entry;

/* Give a mirror a link for each entry that it lacks; one that cannot be read stays as it is. */
static int complete(const char *mirror) {
  char base[PATH_MAX], path[PATH_MAX], target[PATH_MAX];
  _Alignas(Entry) char buffer[32768];
  if (!base_of(mirror, base)) return 0;
  int folder = open_file(base, O_RDONLY | O_DIRECTORY, 0);
  if (folder < 0) return errno == EACCES ? 0 : -1;
  long length;
  while ((length = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0) {
    for (long at = 0; at < length; at += ((Entry *)(buffer + at))->length) {
      const char *name = ((Entry *)(buffer + at))->name;
      if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
      if (!put(path, "%s/%s", mirror, name) || !put(target, "%s/%s", strcmp(base, "/") ? base : "", name)) continue;
      if (!link_to_real(target, path) && errno != EEXIST) length = -1;
      if (length < 0) break;
    }
    if (length < 0) break;
  }
  syscall(SYS_close, folder);
  if (length < 0) return -1;
  return put(path, "%s/" REAL, mirror) ? remove_file(path) : -1;
}

/* Mirror a folder with all its entries. */
static int mirror_whole(const char *logical) {
  char mirror[PATH_MAX];
  return !put(mirror, "%s%s", root, logical) || mirror_in_part(logical) || complete(mirror) ? -1 : 0;
}

/* A folder that is a mirror in part gets all its entries, so that it can be listed. */
int complete_folder(const Place *place) {
  char base[PATH_MAX];
  if (!is_below(place->physical, root, root_length) || !base_of(place->physical, base)) return 0;
  int lock = locked();
  if (lock < 0) return -1;
  int failed = complete(place->physical);
  unlock(lock);
  return failed;
}

/* Mirror the folder of a path that is changed, unless the real one cannot be: the path in the mirror. */
int prepare_parent(const Place *place, char *shadow) {
  char parent[PATH_MAX];
  struct stat status;
  strcpy(parent, place->logical);
  char *slash = strrchr(parent, '/');
  *slash = 0;
  if (!*parent) strcpy(parent, "/");
  if (!put(shadow, "%s%s", root, place->logical)) return -1;
  bool is_real = !syscall(SYS_newfstatat, AT_FDCWD, parent, &status, 0) && S_ISDIR(status.st_mode);
  if (is_real && syscall(SYS_faccessat, AT_FDCWD, parent, W_OK | X_OK)) return -1;
  int lock = locked();
  if (lock < 0) return -1;
  int failed = mirror_whole(parent);
  unlock(lock);
  return failed;
}

/* The same, and the path's own folder has a mirror. */
int prepare_folder(const Place *place, char *shadow) {
  if (!put(shadow, "%s%s", root, place->logical)) return -1;
  int lock = locked();
  if (lock < 0) return -1;
  int failed = mirror_whole(place->logical);
  unlock(lock);
  return failed;
}

/* In a folder that this rank has made: the file that the job's rank 0 has in its own, as where all write one checkpoint. */
bool of_first_rank(const Place *place, char *path) {
  char parent[PATH_MAX];
  struct stat status;
  if (!*first_root || !place->is_aside || !put(path, "%s%s", first_root, place->logical)) return false;
  strcpy(parent, place->logical);
  *strrchr(parent, '/') = 0;
  return *parent && status_of(parent, &status) && !status_of(path, &status) && S_ISREG(status.st_mode);
}

static int copy_bytes(int from, int to) {
  if (!ioctl(to, FICLONE, from)) return 0;
  char buffer[65536];
  ssize_t length;
  while ((length = read(from, buffer, sizeof buffer)) > 0)
    for (ssize_t done = 0, part; done < length; done += part)
      if ((part = write(to, buffer + done, (size_t)(length - done))) < 0) return -1;
  return length < 0 ? -1 : 0;
}

/* Put a copy of a file, or an empty one of its mode, in the place of what is at a path of the root. */
int replace_by_copy(const char *real, const char *shadow, bool with_content) {
  char made[PATH_MAX];
  struct stat status;
  if (!put(made, "%s" NEW, shadow)) return -1;
  int from = open_file(real, O_RDONLY, 0);
  if (from < 0) return -1;
  int to = open_file(made, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  int failed = to < 0 || fstat(from, &status) || (with_content && copy_bytes(from, to));
  if (!failed) {
    struct timespec times[2] = {status.st_atim, status.st_mtim};
    failed = fchmod(to, status.st_mode & 07777) || futimens(to, times) || move(made, shadow, 0);
  }
  int kept = errno;
  if (to >= 0) syscall(SYS_close, to);
  syscall(SYS_close, from);
  if (failed) remove_file(made);
  errno = kept;
  return failed ? -1 : 0;
}

/* Make an existing file or folder ready to be changed: the path in the root. */
int prepare_change(const Place *place, bool with_content, char *shadow) {
  char real[PATH_MAX];
  if (prepare_parent(place, shadow)) return -1;
  if (S_ISDIR(place->mode)) return prepare_folder(place, shadow);
  int lock = locked();
  if (lock < 0) return -1;
  int failed = 0;
  if (points_to_real(AT_FDCWD, shadow, real)) {
    struct stat status;
    if (status_of(real, &status)) {
      failed = -1;
    } else if (S_ISLNK(status.st_mode)) { /* the program's own link */
      failed = !read_link(real, real) || remove_file(shadow) || make_link(real, shadow) ? -1 : 0;
    } else {
      failed = replace_by_copy(real, shadow, with_content);
    }
  }
  unlock(lock);
  return failed;
}

/* The lock's file says whether there are mirrors; the root is a mirror in part of "/". */
static bool map_lock(void) {
  char path[PATH_MAX], link[PATH_MAX];
  struct stat status;
  if (!put(path, "%s/" LOCK, root) || !put(link, "%s/" REAL, root)) return false;
  if (status_of(path, &status)) link_to_real("/", link);
  int lock = open_file(path, O_RDWR | O_CREAT, 0600);
  if (lock < 0) return false;
  Run new = {0};
  int failed = fstat(lock, &status);
  new.begin = status.st_ctim;
  if (!failed && status.st_size < (off_t)sizeof new) failed = write(lock, &new, sizeof new) < 0;
  void *mapped = failed ? MAP_FAILED : mmap(NULL, sizeof new, PROT_READ, MAP_SHARED, lock, 0);
  if (mapped != MAP_FAILED) run = mapped;
  syscall(SYS_close, lock);
  return !failed;
}

/* Begin, with a root that is a folder and its zones: lines of "+" (changes go to the root), "-" (they do
   not) or "~" (the temporary folder) and a path. */
bool begin_writes(const char *folder, const char *lines, const char *first) {
  num_zones = paused = 0;
  root_length = 0;
  snprintf(root, sizeof root, "%s", folder);
  snprintf(first_root, sizeof first_root, "%s", first ? first : "");
  for (const char *at = lines; *at && num_zones < MAX_ZONES; at += strcspn(at, "\n"), at += *at == '\n') {
    Zone *zone = &zones[num_zones];
    zone->length = strcspn(at, "\n") - 1;
    if (zone->length < 2 || zone->length >= PATH_MAX) continue;
    snprintf(zone->path, sizeof zone->path, "%.*s", (int)zone->length, at + 1);
    zone->kind = *at;
    num_zones++;
  }
  if (!map_lock()) return false;
  root_length = strlen(root);
  return true;
}

/* Above zero, this thread's files are where they are. */
EXPORT void null_gpu_writes_pause(int change) { paused += change; }
