/* The C library's functions that name files, in front of its own: see writes.c. Python, Rust, C++ and the commands that a
   program starts all call these. Where nothing is redirected each does what the library's does. */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE
#include "null_gpu.h"
#include "writes.h"
#include <alloca.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

typedef struct {
  int folder;
  const char *path;
  Place place;
  char shadow[PATH_MAX];
} Where;

/* What is read: its path now. */
static void to_read(int folder, const char *path, bool follow, Where *where) {
  where->folder = folder;
  where->path = path;
  if (nothing_is_aside() || !find_place(folder, path, follow, CHANGES, &where->place)) return;
  if (!is_moved(&where->place)) return;
  where->folder = AT_FDCWD;
  where->path = where->place.physical;
}

/* What exists and is changed: a copy of it in the root. */
static int to_change(int folder, const char *path, bool follow, bool with_content, Where *where) {
  to_read(folder, path, follow, where);
  if (!find_place(folder, path, follow, CHANGES, &where->place)) return 0;
  if (!where->place.is_aside || !where->place.exists) return 0;
  if (!S_ISREG(where->place.mode) && !S_ISDIR(where->place.mode) && !S_ISLNK(where->place.mode)) return 0;
  if (prepare_change(&where->place, with_content, where->shadow)) return -1;
  where->folder = AT_FDCWD;
  where->path = where->shadow;
  return 0;
}

/* A name that is made: its path in the root, in a mirror of its folder. */
static int to_make(int folder, const char *path, Change change, Where *where) {
  to_read(folder, path, false, where);
  if (!find_place(folder, path, false, change, &where->place)) return 0;
  if (!where->place.is_aside || where->place.exists) return 0;
  if (prepare_parent(&where->place, where->shadow)) return -1;
  where->folder = AT_FDCWD;
  where->path = where->shadow;
  return 0;
}

static int to_open(int folder, const char *path, int flags, Where *where) {
  bool makes = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE, is_new = (flags & O_CREAT) && (flags & O_EXCL);
  bool follow = !(flags & O_NOFOLLOW) && !is_new;
  Place *place = &where->place;
  where->folder = folder;
  where->path = path;
  if (nothing_is_aside() && !makes && !(flags & (O_WRONLY | O_RDWR | O_TRUNC))) return 0;
  if (!find_place(folder, path, follow, is_new ? MAKES_TEMPORARY : CHANGES, place)) return 0;
  if (is_moved(place)) {
    where->folder = AT_FDCWD;
    where->path = place->physical;
  }
  if (place->exists && S_ISDIR(place->mode)) {
    if ((flags & O_TMPFILE) != O_TMPFILE) return complete_folder(place);
    if (!place->is_aside) return 0;
    if (prepare_folder(place, where->shadow)) return -1;
  } else if (!(flags & (O_WRONLY | O_RDWR | O_TRUNC)) && !makes) {
    if (!place->exists && of_first_rank(place, where->shadow)) {
      where->folder = AT_FDCWD;
      where->path = where->shadow;
    }
    return 0;
  } else if (!place->is_aside || (place->exists ? is_new || !S_ISREG(place->mode) : !makes)) {
    return 0;
  } else if (place->exists) {
    if (syscall(SYS_faccessat, AT_FDCWD, place->physical, flags & O_ACCMODE ? W_OK : R_OK)) return -1;
    if (prepare_change(place, !(flags & O_TRUNC), where->shadow)) return -1;
  } else if (prepare_parent(place, where->shadow)) {
    return -1;
  }
  where->folder = AT_FDCWD;
  where->path = where->shadow;
  return 0;
}

EXPORT int openat(int folder, const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  Where where;
  if (to_open(folder, path, flags, &where)) return -1;
  return (int)syscall(SYS_openat, where.folder, where.path, flags, mode);
}
EXPORT int open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return openat(AT_FDCWD, path, flags, mode);
}
EXPORT int creat(const char *path, mode_t mode) { return openat(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
EXPORT int __open_2(const char *path, int flags) { return openat(AT_FDCWD, path, flags); }
EXPORT int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags); }
ALSO(openat) int openat64(int folder, const char *path, int flags, ...);
ALSO(open) int open64(const char *path, int flags, ...);
ALSO(creat) int creat64(const char *path, mode_t mode);
ALSO(__open_2) int __open64_2(const char *path, int flags);
ALSO(__openat_2) int __openat64_2(int folder, const char *path, int flags);

static int flags_of(const char *mode) {
  int flags = *mode == 'r' ? 0 : O_CREAT | (*mode == 'a' ? O_APPEND : O_TRUNC);
  if (strchr(mode, 'x')) flags |= O_EXCL;
  return flags | (strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY);
}
EXPORT FILE *fopen(const char *path, const char *mode) {
  Where where;
  return to_open(AT_FDCWD, path, flags_of(mode), &where) ? NULL : NEXT(fopen)(where.path, mode);
}
EXPORT FILE *freopen(const char *path, const char *mode, FILE *file) {
  Where where;
  return to_open(AT_FDCWD, path, flags_of(mode), &where) ? NULL : NEXT(freopen)(where.path, mode, file);
}
ALSO(fopen) FILE *fopen64(const char *path, const char *mode);
ALSO(freopen) FILE *freopen64(const char *path, const char *mode, FILE *file);

/* A file or folder of a new name, in the place of the template's XXXXXX. */
static int make_named(char *template, int suffix, int flags, bool is_folder) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  size_t length = strlen(template);
  if (suffix < 0 || length < 6 + (size_t)suffix || strncmp(template + length - suffix - 6, "XXXXXX", 6))
    return errno = EINVAL, -1;
  for (int attempt = 0; attempt < 1000; attempt++) {
    unsigned char bytes[6];
    if (syscall(SYS_getrandom, bytes, sizeof bytes, 0) != sizeof bytes) return -1;
    for (int i = 0; i < 6; i++) template[length - suffix - 6 + i] = letters[bytes[i] % (sizeof letters - 1)];
    int made = is_folder ? mkdir(template, 0700) : open(template, O_RDWR | O_CREAT | O_EXCL | flags, 0600);
    if (made >= 0 || errno != EEXIST) return made;
  }
  return -1;
}
EXPORT int mkostemps(char *template, int suffix, int flags) { return make_named(template, suffix, flags, false); }
EXPORT int mkstemps(char *template, int suffix) { return make_named(template, suffix, 0, false); }
EXPORT int mkostemp(char *template, int flags) { return make_named(template, 0, flags, false); }
EXPORT int mkstemp(char *template) { return make_named(template, 0, 0, false); }
EXPORT char *mkdtemp(char *template) { return make_named(template, 0, 0, true) ? NULL : template; }
ALSO(mkostemps) int mkostemps64(char *template, int suffix, int flags);
ALSO(mkstemps) int mkstemps64(char *template, int suffix);
ALSO(mkostemp) int mkostemp64(char *template, int flags);
ALSO(mkstemp) int mkstemp64(char *template);

/* What is known of a file. On 64-bit systems the kernel's structure is the library's. */
EXPORT int fstatat(int folder, const char *path, struct stat *status, int flags) {
  Where where;
  to_read(folder, path, !(flags & AT_SYMLINK_NOFOLLOW), &where);
  return (int)syscall(SYS_newfstatat, where.folder, where.path, status, flags);
}
EXPORT int stat(const char *path, struct stat *status) { return fstatat(AT_FDCWD, path, status, 0); }
EXPORT int lstat(const char *path, struct stat *status) { return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW); }
EXPORT int __xstat(int version, const char *path, struct stat *status) { return stat(path, status); }
EXPORT int __lxstat(int version, const char *path, struct stat *status) { return lstat(path, status); }
EXPORT int __fxstatat(int version, int folder, const char *path, struct stat *status, int flags) {
  return fstatat(folder, path, status, flags);
}
ALSO(fstatat) int fstatat64(int folder, const char *path, struct stat64 *status, int flags);
ALSO(stat) int stat64(const char *path, struct stat64 *status);
ALSO(lstat) int lstat64(const char *path, struct stat64 *status);
ALSO(__xstat) int __xstat64(int version, const char *path, struct stat64 *status);
ALSO(__lxstat) int __lxstat64(int version, const char *path, struct stat64 *status);
ALSO(__fxstatat) int __fxstatat64(int version, int folder, const char *path, struct stat64 *status, int flags);
EXPORT int statx(int folder, const char *path, int flags, unsigned mask, struct statx *status) {
  Where where;
  to_read(folder, path, !(flags & AT_SYMLINK_NOFOLLOW), &where);
  return (int)syscall(SYS_statx, where.folder, where.path, flags, mask, status);
}
EXPORT int faccessat(int folder, const char *path, int mode, int flags) {
  Where where;
  to_read(folder, path, !(flags & AT_SYMLINK_NOFOLLOW), &where);
  return NEXT(faccessat)(where.folder, where.path, mode, flags);
}
EXPORT int access(const char *path, int mode) { return faccessat(AT_FDCWD, path, mode, 0); }
EXPORT int euidaccess(const char *path, int mode) { return faccessat(AT_FDCWD, path, mode, AT_EACCESS); }
ALSO(euidaccess) int eaccess(const char *path, int mode);
EXPORT int statfs(const char *path, struct statfs *status) {
  Where where;
  to_read(AT_FDCWD, path, true, &where);
  return NEXT(statfs)(where.path, status);
}
EXPORT int statvfs(const char *path, struct statvfs *status) {
  Where where;
  to_read(AT_FDCWD, path, true, &where);
  return NEXT(statvfs)(where.path, status);
}
ALSO(statfs) int statfs64(const char *path, struct statfs64 *status);
ALSO(statvfs) int statvfs64(const char *path, struct statvfs64 *status);

/* Links and absolute paths: those of a mirror are not shown. */
EXPORT ssize_t readlinkat(int folder, const char *path, char *target, size_t size) {
  Where where;
  to_read(folder, path, false, &where);
  return syscall(SYS_readlinkat, where.folder, where.path, target, size);
}
EXPORT ssize_t readlink(const char *path, char *target, size_t size) {
  return readlinkat(AT_FDCWD, path, target, size);
}
EXPORT ssize_t __readlink_chk(const char *path, char *target, size_t size, size_t room) {
  return readlinkat(AT_FDCWD, path, target, size);
}
EXPORT char *realpath(const char *path, char *resolved) {
  Where where;
  to_read(AT_FDCWD, path, true, &where);
  if (where.path == path) return NEXT(realpath)(path, resolved);
  if (!where.place.exists) return errno = ENOENT, NULL;
  return resolved ? strcpy(resolved, where.place.logical) : strdup(where.place.logical);
}
EXPORT char *__realpath_chk(const char *path, char *resolved, size_t room) { return realpath(path, resolved); }
EXPORT char *canonicalize_file_name(const char *path) { return realpath(path, NULL); }
EXPORT char *getcwd(char *path, size_t size) {
  char *found = NEXT(getcwd)(path, size);
  if (found) as_seen(found);
  return found;
}
EXPORT char *__getcwd_chk(char *path, size_t size, size_t room) { return getcwd(path, size); }
EXPORT char *get_current_dir_name(void) { return getcwd(NULL, 0); }
EXPORT int chdir(const char *path) {
  Where where;
  to_read(AT_FDCWD, path, true, &where);
  return (int)syscall(SYS_chdir, where.path);
}

/* Folders. An entry that is a mirror's link has the type of what it stands for. */
EXPORT DIR *opendir(const char *path) {
  Where where;
  return to_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, &where) ? NULL : NEXT(opendir)(where.path);
}
EXPORT struct dirent *readdir(DIR *folder) {
  char real[PATH_MAX];
  struct dirent *entry = NEXT(readdir)(folder);
  bool is_link = entry && entry->d_type == DT_LNK && !nothing_is_aside();
  if (is_link && points_to_real(dirfd(folder), entry->d_name, real)) {
    struct stat status;
    int kept = errno, failed = (int)syscall(SYS_newfstatat, AT_FDCWD, real, &status, AT_SYMLINK_NOFOLLOW);
    entry->d_type = failed ? DT_UNKNOWN : IFTODT(status.st_mode);
    errno = kept;
  }
  return entry;
}
ALSO(readdir) struct dirent64 *readdir64(DIR *folder);
EXPORT int mkdirat(int folder, const char *path, mode_t mode) {
  Where where;
  Change change = mode == 0700 ? MAKES_TEMPORARY : CHANGES;
  return to_make(folder, path, change, &where) ? -1 : (int)syscall(SYS_mkdirat, where.folder, where.path, mode);
}
EXPORT int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Removal: of the link in the mirror. */
EXPORT int unlinkat(int folder, const char *path, int flags) {
  Where where;
  to_read(folder, path, false, &where);
  if (find_place(folder, path, false, REMOVES, &where.place) && where.place.is_aside && where.place.exists) {
    bool is_folder = S_ISDIR(where.place.mode);
    if (is_folder != !!(flags & AT_REMOVEDIR)) return errno = is_folder ? EISDIR : ENOTDIR, -1;
    if (prepare_parent(&where.place, where.shadow)) return -1;
    if (is_folder && prepare_folder(&where.place, where.shadow)) return -1;
    where.folder = AT_FDCWD;
    where.path = where.shadow;
  }
  return (int)syscall(SYS_unlinkat, where.folder, where.path, flags);
}
EXPORT int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
EXPORT int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
EXPORT int remove(const char *path) {
  int failed = unlink(path);
  return failed && (errno == EISDIR || errno == EPERM) ? rmdir(path) : failed;
}

/* Between the root and another folder, which may be of different file systems though the real folders are not. */
static int move_by_copy(const Where *from, const Where *to, bool is_real) {
  struct stat one, other;
  char parent[PATH_MAX];
  if (syscall(SYS_newfstatat, from->folder, from->path, &one, AT_SYMLINK_NOFOLLOW)) return -1;
  bool is_far = false;
  if (is_real) {
    strcpy(parent, to->place.logical);
    *(strrchr(parent, '/') + 1) = 0;
    is_far = !syscall(SYS_newfstatat, AT_FDCWD, parent, &other, 0) && one.st_dev != other.st_dev;
  }
  if (!S_ISREG(one.st_mode) || is_far) return errno = EXDEV, -1;
  return replace_by_copy(from->path, to->path, true) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, from->path, 0);
}
EXPORT int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  Where old, new;
  to_read(from_folder, from, false, &old);
  to_read(to_folder, to, false, &new);
  bool is_known = find_place(from_folder, from, false, CHANGES, &old.place);
  bool leaves = is_known && old.place.exists && old.place.is_aside;
  bool enters = find_place(to_folder, to, false, CHANGES, &new.place) && new.place.is_aside;
  if (is_known && !old.place.exists) enters = false;
  if (leaves) {
    /* Inside the root a link moves as one; a file that leaves it leaves as itself. */
    bool is_whole = S_ISDIR(old.place.mode) || !enters;
    if (is_whole ? prepare_change(&old.place, true, old.shadow) : prepare_parent(&old.place, old.shadow)) return -1;
    old.path = old.shadow;
    old.folder = AT_FDCWD;
  } else if (is_known) {
    old.path = old.place.physical;
    old.folder = AT_FDCWD;
  }
  if (enters) {
    if (prepare_parent(&new.place, new.shadow)) return -1;
    if (new.place.exists && S_ISDIR(new.place.mode) && prepare_folder(&new.place, new.shadow)) return -1;
    new.path = new.shadow;
    new.folder = AT_FDCWD;
  }
  int failed = (int)syscall(SYS_renameat2, old.folder, old.path, new.folder, new.path, flags);
  bool is_between = failed && errno == EXDEV && leaves != enters && !flags;
  return is_between ? move_by_copy(&old, &new, !leaves) : failed;
}
EXPORT int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  return renameat2(from_folder, from, to_folder, to, 0);
}
EXPORT int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

/* New names of what there is. */
EXPORT int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
  Where old, new;
  if (to_make(to_folder, to, CHANGES, &new)) return -1;
  if (new.path == new.shadow) {
    /* Not of the real file: a change of one of the two would change it. */
    if (to_change(from_folder, from, flags & AT_SYMLINK_FOLLOW, true, &old)) return -1;
  } else {
    to_read(from_folder, from, flags & AT_SYMLINK_FOLLOW, &old);
  }
  return (int)syscall(SYS_linkat, old.folder, old.path, new.folder, new.path, flags);
}
EXPORT int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int symlinkat(const char *target, int folder, const char *path) {
  Where where;
  return to_make(folder, path, CHANGES, &where) ? -1 : (int)syscall(SYS_symlinkat, target, where.folder, where.path);
}
EXPORT int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }
EXPORT int mkfifoat(int folder, const char *path, mode_t mode) {
  Where where;
  return to_make(folder, path, CHANGES, &where) ? -1 : NEXT(mkfifoat)(where.folder, where.path, mode);
}
EXPORT int mkfifo(const char *path, mode_t mode) { return mkfifoat(AT_FDCWD, path, mode); }

/* Changes of size, mode, owner, times and attributes. */
EXPORT int truncate(const char *path, off_t size) {
  Where where;
  return to_change(AT_FDCWD, path, true, size > 0, &where) ? -1 : (int)syscall(SYS_truncate, where.path, size);
}
ALSO(truncate) int truncate64(const char *path, off64_t size);
EXPORT int fchmodat(int folder, const char *path, mode_t mode, int flags) {
  Where where;
  if (to_change(folder, path, !(flags & AT_SYMLINK_NOFOLLOW), true, &where)) return -1;
  return NEXT(fchmodat)(where.folder, where.path, mode, flags);
}
EXPORT int chmod(const char *path, mode_t mode) { return fchmodat(AT_FDCWD, path, mode, 0); }
EXPORT int fchownat(int folder, const char *path, uid_t user, gid_t group, int flags) {
  Where where;
  if (flags & AT_EMPTY_PATH) return (int)syscall(SYS_fchownat, folder, path, user, group, flags);
  if (to_change(folder, path, !(flags & AT_SYMLINK_NOFOLLOW), true, &where)) return -1;
  return (int)syscall(SYS_fchownat, where.folder, where.path, user, group, flags);
}
EXPORT int chown(const char *path, uid_t user, gid_t group) { return fchownat(AT_FDCWD, path, user, group, 0); }
EXPORT int lchown(const char *path, uid_t user, gid_t group) {
  return fchownat(AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW);
}
EXPORT int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
  Where where = {.folder = folder, .path = path};
  if (to_change(folder, path, !(flags & AT_SYMLINK_NOFOLLOW), true, &where)) return -1;
  return (int)syscall(SYS_utimensat, where.folder, where.path, times, flags);
}
static int set_times(int folder, const char *path, const struct timeval times[2], int flags) {
  if (!times) return utimensat(folder, path, NULL, flags);
  const struct timespec exact[2] = {{times[0].tv_sec, times[0].tv_usec * 1000}, {times[1].tv_sec, times[1].tv_usec * 1000}};
  return utimensat(folder, path, exact, flags);
}
EXPORT int utimes(const char *path, const struct timeval times[2]) { return set_times(AT_FDCWD, path, times, 0); }
EXPORT int lutimes(const char *path, const struct timeval times[2]) {
  return set_times(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}
EXPORT int futimesat(int folder, const char *path, const struct timeval times[2]) {
  return set_times(folder, path, times, 0);
}
EXPORT int utime(const char *path, const struct utimbuf *times) {
  if (!times) return utimensat(AT_FDCWD, path, NULL, 0);
  const struct timespec exact[2] = {{times->actime, 0}, {times->modtime, 0}};
  return utimensat(AT_FDCWD, path, exact, 0);
}
#define READ_ATTRIBUTES(function, follow, parameters, ...)   \
  EXPORT ssize_t function parameters {                       \
    Where where;                                             \
    to_read(AT_FDCWD, path, follow, &where);                 \
    return NEXT(function)(where.path, __VA_ARGS__);          \
  }
#define CHANGE_ATTRIBUTES(function, follow, parameters, ...)                   \
  EXPORT int function parameters {                                             \
    Where where;                                                               \
    if (to_change(AT_FDCWD, path, follow, true, &where)) return -1;            \
    return NEXT(function)(where.path, __VA_ARGS__);                            \
  }
READ_ATTRIBUTES(listxattr, true, (const char *path, char *list, size_t size), list, size)
READ_ATTRIBUTES(llistxattr, false, (const char *path, char *list, size_t size), list, size)
READ_ATTRIBUTES(getxattr, true, (const char *path, const char *name, void *value, size_t size), name, value, size)
READ_ATTRIBUTES(lgetxattr, false, (const char *path, const char *name, void *value, size_t size), name, value, size)
CHANGE_ATTRIBUTES(setxattr, true, (const char *path, const char *name, const void *value, size_t size, int flags), name, value, size, flags)
CHANGE_ATTRIBUTES(lsetxattr, false, (const char *path, const char *name, const void *value, size_t size, int flags), name, value, size, flags)
CHANGE_ATTRIBUTES(removexattr, true, (const char *path, const char *name), name)
CHANGE_ATTRIBUTES(lremovexattr, false, (const char *path, const char *name), name)

/* The variables by which a process is redirected: a command that is started with an environment of its own gets them
   back. One that is to run without the null GPU has NULL_GPU_ABSENT in it. */
static bool is_ours(const char *variable) {
  return !strncmp(variable, "NULL_GPU_", 9) || !strncmp(variable, "LD_PRELOAD=", 11);
}
static char **kept_variables; /* as they were when files began to be redirected, the last one NULL; or NULL */
static const char *kept_preload;

static void keep_variables(void) {
  int count = 0;
  for (char **at = environ; *at; at++) count += is_ours(*at);
  char **kept = calloc((size_t)count + 1, sizeof *kept);
  if (!kept) return;
  const char *preload = NULL;
  int number = 0;
  for (char **at = environ; *at && number < count; at++) {
    if (!is_ours(*at) || !(kept[number] = strdup(*at))) continue;
    if (!strncmp(kept[number], "LD_PRELOAD=", 11)) preload = kept[number] + 11;
    number++;
  }
  kept_preload = preload;
  kept_variables = preload ? kept : NULL;
}
EXPORT void null_gpu_writes_begin(const char *folder, const char *zones, const char *first) {
  if (begin_writes(folder, zones, first)) keep_variables();
}
__attribute__((constructor)) static void begin_in_child(void) {
  const char *folder = getenv("NULL_GPU_WRITES"), *lines = getenv("NULL_GPU_WRITES_ZONES");
  if (folder && *folder && lines) null_gpu_writes_begin(folder, lines, getenv("NULL_GPU_WRITES_FIRST"));
}
EXPORT void null_gpu_writes_forget_variables(void) { kept_variables = NULL; }

static int count_of(char *const variables[]) {
  int count = 0;
  while (variables && variables[count]) count++;
  return count;
}
static bool has_variable(char *const variables[], const char *variable) {
  size_t length = strcspn(variable, "=") + 1;
  for (; variables && *variables; variables++)
    if (!strncmp(*variables, variable, length)) return true;
  return false;
}

/* The bytes of the other LD_PRELOAD, if the environment has one without ours; 0 if it is to stay as it is. */
static size_t room_for_preload(char *const variables[]) {
  for (; kept_variables && variables && *variables; variables++)
    if (!strncmp(*variables, "LD_PRELOAD=", 11))
      return strstr(*variables, kept_preload) ? 0 : strlen(*variables) + strlen(kept_preload) + 2;
  return 0;
}

/* Fill `found` with the variables and those of ours that they lack. Between fork and exec nothing may be allocated: the
   caller has room for all on its stack. */
static char *const *with_ours(char *const variables[], char **found, char *preload) {
  if (!kept_variables || has_variable(variables, "NULL_GPU_ABSENT=")) return variables;
  int count = 0;
  for (char *const *at = variables; at && *at; at++) {
    found[count] = *at;
    if (preload && !strncmp(*at, "LD_PRELOAD=", 11)) {
      stpcpy(stpcpy(stpcpy(stpcpy(preload, "LD_PRELOAD="), kept_preload), ":"), *at + 11);
      found[count] = preload;
    }
    count++;
  }
  for (char **at = kept_variables; *at; at++)
    if (!has_variable(variables, *at)) found[count++] = *at;
  found[count] = NULL;
  return found;
}
#define WITH_OURS(variables)                                                                                     \
  ({                                                                                                             \
    size_t room = room_for_preload(variables);                                                                   \
    char **found = alloca(sizeof *found * (size_t)(count_of(variables) + count_of(kept_variables) + 1));         \
    with_ours(variables, found, room ? alloca(room) : NULL);                                                     \
  })

/* Programs that the program has written, and commands with an environment of their own. */
EXPORT int execve(const char *path, char *const arguments[], char *const variables[]) {
  Where where;
  to_read(AT_FDCWD, path, true, &where);
  return (int)syscall(SYS_execve, where.path, arguments, WITH_OURS(variables));
}
EXPORT int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }
EXPORT int execvpe(const char *name, char *const arguments[], char *const variables[]) {
  return NEXT(execvpe)(name, arguments, WITH_OURS(variables));
}
EXPORT int execvp(const char *name, char *const arguments[]) { return execvpe(name, arguments, environ); }

EXPORT int posix_spawn(pid_t *child, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const arguments[], char *const variables[]) {
  Where where;
  to_read(AT_FDCWD, path, true, &where);
  return NEXT(posix_spawn)(child, where.path, actions, attributes, arguments, WITH_OURS(variables));
}
EXPORT int posix_spawnp(pid_t *child, const char *name, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const arguments[], char *const variables[]) {
  return NEXT(posix_spawnp)(child, name, actions, attributes, arguments, WITH_OURS(variables));
}

/* Where a file is to be written whole: for libraries that open and rename by system calls of their own. */
EXPORT int null_gpu_writes_path(const char *path, char *found) {
  Where where;
  if (to_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, &where)) return errno;
  return snprintf(found, PATH_MAX, "%s", where.path) < PATH_MAX ? 0 : ENAMETOOLONG;
}
