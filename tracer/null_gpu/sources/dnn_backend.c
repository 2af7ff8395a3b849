/* cuDNN's backend: a descriptor is a table of what it was told. Which engines there are for a graph of operations, and
   what each takes, the real cuDNN says (dnn_answers.c); where it cannot be asked there is one engine, whose workspace can
   be set. */
#include "dnn.h"
#include <stdlib.h>
#include <string.h>

static size_t width_of(int type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4;
  }
}
size_t attribute_size(const Attribute *attribute) { return (size_t)attribute->count * width_of(attribute->type); }

/* Callers let go of a descriptor that another one refers to: it lives as long as both. */
static Descriptor *keep(Descriptor *descriptor) {
  if (descriptor) __atomic_add_fetch(&descriptor->holders, 1, __ATOMIC_RELAXED);
  return descriptor;
}
static void let_go(Descriptor *descriptor);
static void clear(Attribute *attribute) {
  Descriptor **inner = attribute->values;
  for (int64_t i = 0; attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < attribute->count; i++) let_go(inner[i]);
  free(attribute->values);
}
static void let_go(Descriptor *descriptor) {
  if (!descriptor || __atomic_sub_fetch(&descriptor->holders, 1, __ATOMIC_ACQ_REL)) return;
  while (descriptor->attributes) {
    Attribute *attribute = descriptor->attributes;
    descriptor->attributes = attribute->next;
    clear(attribute);
    free(attribute);
  }
  let_go(descriptor->graph);
  free(descriptor);
}

static Attribute *attribute_of(const Descriptor *descriptor, int name) {
  Attribute *attribute = descriptor ? descriptor->attributes : NULL;
  while (attribute && attribute->name != name) attribute = attribute->next;
  return attribute;
}
static Descriptor *inner_of(const Descriptor *descriptor, int name) {
  const Attribute *attribute = attribute_of(descriptor, name);
  bool is_inner = attribute && attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && attribute->count == 1;
  return is_inner ? *(Descriptor **)attribute->values : NULL;
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made) {
  Descriptor *descriptor = calloc(1, sizeof *descriptor);
  if (!descriptor) return CUDNN_STATUS_INTERNAL_ERROR;
  descriptor->type = type;
  descriptor->holders = 1;
  *made = descriptor;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t gone) {
  return let_go(gone), CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  count_launch(plan, *(cudaStream_t *)handle, (dim3){1, 1, 1}, (dim3){1, 1, 1});
  return CUDNN_STATUS_SUCCESS;
}

static bool add(Descriptor *descriptor, int name, int type, int64_t count, const void *values) {
  Attribute *attribute = attribute_of(descriptor, name), given = {.name = name, .type = type, .count = count};
  size_t size = attribute_size(&given);
  given.values = calloc(1, size ? size : 1);
  if (!attribute) {
    Attribute **last = &descriptor->attributes;
    while (*last) last = &(*last)->next;
    *last = attribute = calloc(1, sizeof *attribute);
  } else if (given.values) {
    clear(attribute);
  }
  if (!given.values || !attribute) return free(given.values), false;
  if (values && size) memcpy(given.values, values, size);
  for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < count; i++) keep(((Descriptor **)given.values)[i]);
  given.next = attribute->next;
  *attribute = given;
  return true;
}
EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void *values) {
  if (!handle || count < 0) return CUDNN_STATUS_BAD_PARAM;
  return add(handle, (int)name, (int)type, count, values) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR;
}

/* An execution plan can be made if cuDNN says so, and knows its workspace from then on. */
EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t handle) {
  Descriptor *plan = handle;
  if (!plan || plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  const Descriptor *engine = inner_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  plan->workspace = (int64_t)config()->cudnn_workspace;
  if (engine && engine->graph) plan->workspace = ask_workspace(engine);
  return plan->workspace < 0 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

/* ---- engines: configurations that the caller made stand for them, in the order in which cuDNN prefers them ---- */
#define ANSWER (-1) /* an attribute of ours: what was said of a graph, see ask_engines */
static const Attribute *answer_of(Descriptor *heuristics) {
  const Attribute *known = attribute_of(heuristics, ANSWER), *given = attribute_of(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE);
  if (known) return known;
  heuristics->graph = keep(inner_of(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
  heuristics->mode = given && given->count == 1 ? *(int *)given->values : CUDNN_HEUR_MODE_INSTANT;
  heuristics->device = current_device();
  int count = 0, *said = heuristics->graph ? ask_engines(heuristics, &count) : NULL;
  add(heuristics, ANSWER, CUDNN_TYPE_INT32, count > 1 ? count : 0, said);
  free(said);
  return attribute_of(heuristics, ANSWER);
}
/* The same engine of the same graph. */
static void stand_for(Descriptor *descriptor, const Descriptor *engine, int index) {
  if (!descriptor || descriptor->graph) return;
  descriptor->graph = keep(engine->graph);
  descriptor->device = engine->device, descriptor->mode = engine->mode, descriptor->index = index;
}
/* Last of those that any device can run, and alone where nobody could be asked, is one of ours. */
static int64_t engines_of(Descriptor *heuristics, int64_t wanted, Descriptor **engines) {
  const Attribute *answer = answer_of(heuristics);
  const int *said = answer && answer->count ? answer->values : (int[]){0, 1};
  int count = said[0], with_ours = said[1];
  for (int i = 0, at = 2; i < count; i++) {
    Descriptor *engine = engines && i < wanted ? engines[i] : NULL;
    stand_for(engine, heuristics, i);
    for (int name = CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, done = 0; done < 2; done++, name = CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE) {
      if (engine) add(engine, name, CUDNN_TYPE_INT32, said[at], &said[at + 1]);
      at += 1 + said[at];
    }
  }
  int64_t all = count + with_ours;
  return engines && wanted < all ? wanted : all;
}
static void engine_of(const Descriptor *configuration, Descriptor *engine) {
  if (!configuration || !engine || !configuration->graph) return;
  stand_for(engine, configuration, configuration->index);
  for (const Attribute *note = configuration->attributes; note; note = note->next)
    if (note->name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE || note->name == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE)
      add(engine, note->name, note->type, note->count, note->values);
}

/* What was not set. */
static int64_t number_of(const Descriptor *descriptor, int name, bool *is_known) {
  *is_known = true;
  switch (name) {
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: return 1;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return 0;
#ifdef CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE: return (int64_t)config()->cudnn_workspace;
#endif
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: return descriptor ? descriptor->workspace : 0;
    default: *is_known = false; return 0;
  }
}
static bool is_plain(cudnnBackendAttributeType_t type) {
  return type != CUDNN_TYPE_BACKEND_DESCRIPTOR && type != CUDNN_TYPE_CHAR && type != CUDNN_TYPE_NUMERICAL_NOTE &&
         type != CUDNN_TYPE_BEHAVIOR_NOTE;
}
EXPORT cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count,
                                              void *values) {
  const Attribute *attribute = attribute_of(handle, (int)name);
  bool is_known;
  int64_t number = number_of(handle, (int)name, &is_known), answered = 0;
  if (attribute) {
    int64_t copied = attribute->count < wanted ? attribute->count : wanted;
    if (values && copied > 0) memcpy(values, attribute->values, (size_t)copied * width_of((int)type));
    answered = attribute->count;
  } else if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    answered = engines_of(handle, wanted, values);
  } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE) {
    engine_of(handle, values && wanted ? *(Descriptor **)values : NULL);
    answered = 1;
  } else if (is_known && type == CUDNN_TYPE_INT64) {
    if (values) *(int64_t *)values = number;
    answered = 1;
  } else if (values && wanted == 1 && is_plain(type)) {
    memset(values, 0, width_of((int)type));
    answered = 1;
  }
  if (count) *count = answered;
  return CUDNN_STATUS_SUCCESS;
}
