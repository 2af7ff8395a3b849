/* What Python says of the cards: C has no table of them, every value comes in a variable, devices separated by `;`. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Config the_config;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static size_t size_variable(const char *name, size_t otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* The part of a variable that is the device's, or the empty string. */
static void part_of(const char *name, int device, char *part, size_t size) {
  const char *text = getenv(name);
  for (int i = 0; text && i < device; i++) text = (text = strchr(text, ';')) ? text + 1 : NULL;
  size_t length = text ? strcspn(text, ";") : 0;
  if (length >= size) length = size - 1;
  if (length) memcpy(part, text, length);
  part[length] = 0;
}

static size_t number_of(const char *name, int device) {
  char part[64];
  part_of(name, device, part, sizeof part);
  return strtoull(part, NULL, 10);
}

static void read_card(Card *card, int device) {
  char capability[32];
  part_of("NULL_GPU_NAME", device, card->name, sizeof card->name);
  part_of("NULL_GPU_CUDNN_DEVICE", device, card->for_cudnn, sizeof card->for_cudnn);
  part_of("NULL_GPU_CAPABILITY", device, capability, sizeof capability);
  if (sscanf(capability, "%d.%d", &card->major, &card->minor) != 2) card->major = 8, card->minor = 0;
  card->memory = number_of("NULL_GPU_MEMORY", device);
  card->usable = number_of("NULL_GPU_USABLE_MEMORY", device); /* the rest is a real device's context and kernels */
  if (!card->usable || card->usable > card->memory) card->usable = card->memory;
  card->context = card->memory - card->usable;
  size_t taken = number_of("NULL_GPU_TAKEN", device); /* by other processes */
  card->usable -= taken < card->usable ? taken : card->usable;
  card->l2 = number_of("NULL_GPU_L2", device);
  card->shared_memory = number_of("NULL_GPU_SHARED_MEMORY", device);
  card->shared_memory_per_sm = number_of("NULL_GPU_SHARED_MEMORY_PER_SM", device);
  card->sms = (int)number_of("NULL_GPU_SMS", device);
  card->threads_per_sm = (int)number_of("NULL_GPU_THREADS_PER_SM", device);
}

/* CUDA_VISIBLE_DEVICES as CUDA reads it: numbers (or the UUIDs that we gave) up to the first that is none. */
static void read_visible(void) {
  Config *c = &the_config;
  const char *text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    for (c->count = 0; c->count < c->num_cards; c->count++) c->visible[c->count] = c->count;
    return;
  }
  while (*text && c->count < c->num_cards) {
    char *end;
    long index;
    text += strspn(text, " ");
    if (!strncmp(text, "GPU-", 4)) {
      size_t length = strcspn(text, ",");
      index = length > 8 ? strtol(text + length - 4, &end, 16) : -1;
      end = (char *)text + length;
    } else {
      index = strtol(text, &end, 10);
    }
    if (end == text || index < 0 || index >= c->num_cards) return;
    c->visible[c->count++] = (int)index;
    text = end + strspn(end, " ");
    if (*text == ',') text++;
  }
}

static void read_config(void) {
  Config *c = &the_config;
  c->num_cards = (int)size_variable("NULL_GPU_COUNT", 0);
  if (c->num_cards > MAX_DEVICES) c->num_cards = MAX_DEVICES;
  for (int i = 0; i < c->num_cards; i++) read_card(&c->cards[i], i);
  read_visible();
  c->copy_limit = size_variable("NULL_GPU_COPY_LIMIT", MIB);
  c->cudnn_workspace = size_variable("NULL_GPU_CUDNN_WORKSPACE", 0);
  c->log_level = (int)size_variable("NULL_GPU_LOG", 0);
  c->has_kernels = size_variable("NULL_GPU_KERNELS", 0) != 0;
}

const Config *config(void) {
  pthread_once(&once, read_config);
  return &the_config;
}

/* From now on programs may take so much of a device; more than it has, where it is asked what they would need. Returns
   how much it was before. */
EXPORT size_t null_gpu_limit_bytes(int device, size_t bytes) {
  const Config *c = config();
  if (device < 0 || device >= c->count) return 0;
  size_t before = the_config.cards[c->visible[device]].usable;
  the_config.cards[c->visible[device]].usable = bytes;
  return before;
}

/* The card behind a device's number as the process counts; the first for one that is not there. */
const Card *card_of(int device) {
  const Config *c = config();
  return &c->cards[device >= 0 && device < c->count ? c->visible[device] : 0];
}

void log_line(int level, const char *format, ...) {
  if (config()->log_level < level) return;
  char line[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "null GPU: %s\n", line);
}

/* A function of NVIDIA's that nobody wrote was called: said once for each, since the program that called it may fail. */
long null_gpu_unwritten(const char *name) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static const char *said[512];
  static int count;
  pthread_mutex_lock(&lock);
  bool is_new = count < 512;
  for (int i = 0; i < count && is_new; i++) is_new = said[i] != name;
  if (is_new) said[count++] = name;
  pthread_mutex_unlock(&lock);
  if (is_new) log_line(0, "%s is not written; it answered \"not supported\"", name);
  return cudaErrorNotSupported;
}
