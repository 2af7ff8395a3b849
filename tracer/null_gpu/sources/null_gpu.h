/* What the files of the null GPU know of each other: the cards, the books of memory, streams, and the log. */
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
/* The C library's function, which one of ours stands in front of; with _GNU_SOURCE and dlfcn.h. */
#define NEXT(name)                                                \
  ({                                                              \
    static __typeof__(&name) next;                                \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    next;                                                         \
  })
/* 64-bit systems have one size of offsets, under two names. */
#define ALSO(name) EXPORT __attribute__((alias(#name)))
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define MAX_DEVICES 16

/* config.c: what Python says of the cards, by variables NULL_GPU_*. */
typedef struct {
  char name[200];
  size_t memory, usable, context, l2, shared_memory, shared_memory_per_sm;
  int major, minor, sms, threads_per_sm;
  char for_cudnn[1024]; /* its properties as cuDNN reads them: JSON */
} Card;
typedef struct {
  int count;              /* devices that the process sees, after CUDA_VISIBLE_DEVICES */
  int num_cards;          /* devices that there are */
  int visible[MAX_DEVICES];
  Card cards[MAX_DEVICES];
  size_t copy_limit;      /* larger copies to the device are not made */
  size_t cudnn_workspace; /* of each plan */
  int log_level;
  bool has_kernels;       /* the profiler gets records of kernels and copies */
} Config;
const Config *config(void);
const Card *card_of(int device);
void log_line(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
long null_gpu_unwritten(const char *name);

/* device.c: the current device and the last error, of each thread. */
int current_device(void);
bool set_current_device(int device);
bool is_started(int device);
void start_device(int device);
cudaError_t result(cudaError_t error);
int device_attribute(int attribute, int device);
const char *error_name(int error);
const char *error_text(int error);

/* memory.c: address space as memory. A place is a device's index, or one of these. */
enum { PLACE_HOST = MAX_DEVICES, PLACE_MANAGED, NUM_PLACES, PLACE_NONE = -1 };
typedef struct {
  uintptr_t at;
  size_t size;
} Extent;
int place_of(const void *pointer);
bool extent_of(const void *pointer, Extent *extent);
bool is_foreign(const void *pointer);
bool memory_take(int device, size_t size);
void driver_takes(const char *place);
void memory_give(int device, size_t size);
void *address_reserve(int device, size_t size, size_t alignment);
bool address_release(void *pointer);
bool physical_map(void *pointer, int device, size_t offset, size_t size);
bool physical_unmap(void *pointer, size_t size);
size_t physical_offset(size_t size);
void physical_drop(int device, size_t offset, size_t size);
void pools_synchronize(void);
void drop_pages(uintptr_t begin, uintptr_t end);
static inline bool is_device(const void *pointer) { return (unsigned)place_of(pointer) < MAX_DEVICES; }

/* node.c: the same memory for all processes of a run. */
typedef struct {
  int process;
  size_t held;
} NodeProcess;
void lock_node(void);
void unlock_node(void);
void leave_node_to_parent(void);
size_t node_others_bytes(int device);
bool node_hold(int device, size_t used);
void node_start(int device);
int node_processes(int index, NodeProcess *found, int most);
bool node_peak(int device, size_t *peak);

/* known.c: which of the device's bytes are known. */
void lock_known(void);
void unlock_known(void);
void forget_bytes(uintptr_t begin, uintptr_t end);
void null_gpu_know_bytes(const void *pointer, size_t size);
void carry_known(uintptr_t to, uintptr_t from, size_t size);
bool is_known(uintptr_t begin, uintptr_t end);

/* exit.c */
bool is_python_ending(void);

/* storages.c: large tensors of the host. */
bool leave_zeros(void *pointer, size_t size);

/* contents.c: copies and fills. */
void move_bytes(void *to, const void *from, size_t size);
void fill_bytes(void *pointer, int value, size_t size);
void fill_elements(void *pointer, const void *element, size_t width, size_t count);

/* streams.c: and captures and graphs. */
int stream_device(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);
void count_node(cudaStream_t stream);
void count_kernel(cudaStream_t stream);
void *new_handle(void);

/* kernels.c */
void count_launch(const void *kernel, cudaStream_t stream, dim3 grid, dim3 block);
int blocks_per_sm(int block_size, int device);

/* profiler.c: what the profiler is told of, if it asks. */
void record_kernel(const char *name, cudaStream_t stream, dim3 grid, dim3 block);
void record_copy(const void *to, const void *from, size_t size, cudaStream_t stream);
void record_set(int value, size_t size, cudaStream_t stream);

/* symbols.c */
void *symbol_by_name(const char *name);
