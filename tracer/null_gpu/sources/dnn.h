/* What the files of cuDNN know of each other: descriptors of its backend, and whom to ask about them. */
#pragma once
#include "null_gpu.h"
#include <cudnn.h>

typedef struct Attribute {
  int name, type;
  int64_t count;
  void *values;
  struct Attribute *next;
} Attribute;
typedef struct Descriptor {
  int type, holders;
  Attribute *attributes;    /* in the order in which they were set */
  struct Descriptor *graph; /* of an engine and its configuration: what it computes, or NULL if nobody was asked */
  int device, mode, index;  /* ... and which of the engines that were named for it this is */
  int64_t workspace;        /* of an execution plan */
} Descriptor;

/* dnn_backend.c */
size_t attribute_size(const Attribute *attribute);

/* dnn_answers.c: what the real cuDNN says, in a process of its own. */
int *ask_engines(const Descriptor *heuristics, int *count);
int64_t ask_workspace(const Descriptor *engine);
