/* writes.c: where a program's files are while what it writes goes to a folder of the run. */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct {
  char logical[PATH_MAX];  /* the path without links, as the program sees it */
  char physical[PATH_MAX]; /* where its file is now */
  bool exists;
  bool is_aside; /* writes to it go to the run's folder */
  bool is_from_root; /* the path begins at a folder of the root */
  mode_t mode;   /* of what exists */
} Place;

/* What is done at a path: bytecode is never removed, and what is made for a while is made in the temporary folder. */
typedef enum { CHANGES, REMOVES, MAKES_TEMPORARY } Change;

bool find_place(int folder, const char *path, bool follow, Change change, Place *place);
bool nothing_is_aside(void);
bool is_moved(const Place *place);
void as_seen(char *path);
int prepare_parent(const Place *place, char *shadow);
int prepare_folder(const Place *place, char *shadow);
int prepare_change(const Place *place, bool with_content, char *shadow);
int complete_folder(const Place *place);
int replace_by_copy(const char *from, const char *shadow, bool with_content);
bool of_first_rank(const Place *place, char *path);
bool begin_writes(const char *folder, const char *lines, const char *first);
int points_to_real(int folder, const char *path, char *real);
