/* CUPTI. Its version is no real one: Kineto writes it into each trace, by which the null GPU's are known
   (tracer/null_gpu/process.py has the same number). With NULL_GPU_KERNELS=1 the profiler gets a record of each kernel and copy, as Kineto asks for them: linked to
   the call and the operator that launched it, in order on one timeline. Durations are made up, since nothing ran. Without
   it the profiler can be started and gives none. Kernels in replayed graphs have no records. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <cupti.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The records that Kineto reads, by the version of CUPTI that its torch was built with (DeviceProperties.h of Kineto).
   They are written by the newest layout of the header: what stands in both must stand at the same place. */
#if CUDA_VERSION >= 13010
typedef CUpti_ActivityKernel11 KernelRecord;
typedef CUpti_ActivityMemcpy6 CopyRecord;
#else
typedef CUpti_ActivityKernel9 KernelRecord;
typedef CUpti_ActivityMemcpy5 CopyRecord;
#endif
typedef CUpti_ActivityMemset4 SetRecord;
#define SAME_PLACE(newer, older, field)                            \
  _Static_assert(offsetof(newer, field) == offsetof(older, field), \
                 "CUPTI's " #newer " has " #field " at another place than " #older ", which torch's profiler reads")
SAME_PLACE(KernelRecord, CUpti_ActivityKernel9, start);
SAME_PLACE(KernelRecord, CUpti_ActivityKernel9, correlationId);
SAME_PLACE(KernelRecord, CUpti_ActivityKernel9, name);
SAME_PLACE(KernelRecord, CUpti_ActivityKernel9, graphNodeId);
SAME_PLACE(CopyRecord, CUpti_ActivityMemcpy5, start);
SAME_PLACE(CopyRecord, CUpti_ActivityMemcpy5, correlationId);

#define VERSION 0x4E554C4C
#define DURATION 1000 /* of each, in units of the profiler's clock: made up */
#define NUM_PUSHED 64

static struct {
  CUpti_BuffersCallbackRequestFunc request;
  CUpti_BuffersCallbackCompleteFunc complete;
  CUpti_TimestampCallbackFunc clock;
  bool is_wanted[CUPTI_ACTIVITY_KIND_COUNT];
  uint8_t *bytes; /* the buffer that is being filled */
  size_t size, used;
  uint64_t end; /* of the last record */
  uint32_t correlation;
} records;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Numbers that Kineto gives to operators and to regions of the program, of each thread. */
static __thread struct {
  uint64_t numbers[NUM_PUSHED];
  int count;
} pushed[2];

static uint64_t now(void) {
  struct timespec time;
  if (records.clock) return records.clock();
  clock_gettime(CLOCK_REALTIME, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- buffers ---- */
static void hand_over(void) {
  if (records.bytes && records.complete) records.complete(NULL, 0, records.bytes, records.size, records.used);
  records.bytes = NULL, records.size = records.used = 0;
}
static void append(const void *record, size_t size) {
  size_t most = 0;
  if (records.used + size > records.size) {
    hand_over();
    if (records.request) records.request(&records.bytes, &records.size, &most);
    if (!records.bytes || records.size < size) return;
  }
  memcpy(records.bytes + records.used, record, size);
  records.used += size;
}
static size_t record_size(const CUpti_Activity *record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(KernelRecord);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CopyRecord);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(SetRecord);
    case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(CUpti_ActivityAPI);
    default: return sizeof(CUpti_ActivityExternalCorrelation);
  }
}
EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t size, CUpti_Activity **record) {
  uint8_t *next = *record ? (uint8_t *)*record + record_size(*record) : buffer;
  if (next >= buffer + size) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  return *record = (CUpti_Activity *)next, CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  pthread_mutex_lock(&lock);
  hand_over();
  pthread_mutex_unlock(&lock);
  return CUPTI_SUCCESS;
}

/* ---- what is wanted ---- */
static CUptiResult want(CUpti_ActivityKind kind, bool is_wanted) {
  if (kind >= CUPTI_ACTIVITY_KIND_COUNT) return CUPTI_ERROR_INVALID_KIND;
  pthread_mutex_lock(&lock);
  records.is_wanted[kind] = is_wanted && config()->has_kernels;
  pthread_mutex_unlock(&lock);
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return want(kind, true); }
EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return want(kind, false); }
EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                  CUpti_BuffersCallbackCompleteFunc complete) {
  return records.request = request, records.complete = complete, CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
  return records.clock = clock, CUPTI_SUCCESS;
}
static int index_of(CUpti_ExternalCorrelationKind kind) { return kind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1; }
EXPORT CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t number) {
  int index = index_of(kind);
  if (pushed[index].count < NUM_PUSHED) pushed[index].numbers[pushed[index].count] = number;
  return pushed[index].count++, CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last) {
  int index = index_of(kind);
  if (last) *last = 0;
  if (!pushed[index].count) return CUPTI_ERROR_QUEUE_EMPTY;
  pushed[index].count--;
  if (last && pushed[index].count < NUM_PUSHED) *last = pushed[index].numbers[pushed[index].count];
  return CUPTI_SUCCESS;
}

/* ---- records ---- */
typedef struct {
  uint64_t start, end;
  uint32_t device, context, stream, correlation;
} Work;
/* The call, and with which operator it is linked; after that comes the work itself, or nothing if it is not wanted. */
static bool begin_work(CUpti_ActivityKind kind, CUpti_CallbackId call, cudaStream_t stream, Work *work) {
  unsigned long long id;
  if (!config()->has_kernels || is_capturing(stream)) return false;
  pthread_mutex_lock(&lock);
  if (!records.is_wanted[kind]) return pthread_mutex_unlock(&lock), false;
  uint64_t begin = now(), end = now();
  cudaStreamGetId(stream, &id);
  work->start = end > records.end ? end : records.end;
  records.end = work->end = work->start + DURATION;
  work->device = (uint32_t)stream_device(stream), work->context = work->device + 1;
  work->stream = id < 16 ? 7 : (uint32_t)id; /* as CUPTI numbers the default stream */
  work->correlation = ++records.correlation;
  for (int i = 0; i < 2 && records.is_wanted[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION]; i++)
    if (pushed[i].count && pushed[i].count <= NUM_PUSHED)
      append(&(CUpti_ActivityExternalCorrelation){
                 .kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                 .externalKind = i ? CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1 : CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                 .externalId = pushed[i].numbers[pushed[i].count - 1],
                 .correlationId = work->correlation},
             sizeof(CUpti_ActivityExternalCorrelation));
  if (records.is_wanted[CUPTI_ACTIVITY_KIND_RUNTIME])
    append(&(CUpti_ActivityAPI){.kind = CUPTI_ACTIVITY_KIND_RUNTIME, .cbid = call, .start = begin, .end = end,
                                .processId = (uint32_t)getpid(), .threadId = (uint32_t)gettid(),
                                .correlationId = work->correlation},
           sizeof(CUpti_ActivityAPI));
  return true;
}
static void end_work(const void *record, size_t size) {
  append(record, size);
  pthread_mutex_unlock(&lock);
}
void record_kernel(const char *name, cudaStream_t stream, dim3 grid, dim3 block) {
  Work work;
  if (!begin_work(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, stream, &work))
    return;
  KernelRecord record = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .start = work.start, .end = work.end,
                         .deviceId = work.device, .contextId = work.context, .streamId = work.stream,
                         .correlationId = work.correlation, .gridX = (int32_t)grid.x, .gridY = (int32_t)grid.y,
                         .gridZ = (int32_t)grid.z, .blockX = (int32_t)block.x, .blockY = (int32_t)block.y,
                         .blockZ = (int32_t)block.z, .registersPerThread = 32, .name = name ? name : "kernel"};
  end_work(&record, sizeof record);
}
static uint8_t memory_kind(const void *pointer) {
  int place = place_of(pointer);
  return place == PLACE_HOST   ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED
         : is_device(pointer) ? CUPTI_ACTIVITY_MEMORY_KIND_DEVICE
                               : CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
}
void record_copy(const void *to, const void *from, size_t size, cudaStream_t stream) {
  Work work;
  if (!begin_work(CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020, stream, &work)) return;
  bool is_to_device = is_device(to), is_from_device = is_device(from);
  CopyRecord record = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY, .bytes = size, .start = work.start, .end = work.end,
                       .deviceId = work.device, .contextId = work.context, .streamId = work.stream,
                       .correlationId = work.correlation,
                       .copyKind = is_to_device ? is_from_device ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOD
                                                                 : CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
                                   : is_from_device ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
                                                    : CUPTI_ACTIVITY_MEMCPY_KIND_HTOH,
                       .srcKind = memory_kind(from), .dstKind = memory_kind(to)};
  end_work(&record, sizeof record);
}
void record_set(int value, size_t size, cudaStream_t stream) {
  Work work;
  if (!begin_work(CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020, stream, &work)) return;
  SetRecord record = {.kind = CUPTI_ACTIVITY_KIND_MEMSET, .value = (uint32_t)value, .bytes = size, .start = work.start,
                      .end = work.end, .deviceId = work.device, .contextId = work.context, .streamId = work.stream,
                      .correlationId = work.correlation, .memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE};
  end_work(&record, sizeof record);
}
/* Of a generated function of cuBLAS's that multiplies: on a GPU it is a kernel. */
EXPORT void null_gpu_multiplied(const char *name, void *stream) {
  record_kernel(name, stream, (dim3){1, 1, 1}, (dim3){1, 1, 1});
}

/* ---- what else is asked ---- */
EXPORT CUptiResult cuptiGetResultString(CUptiResult status, const char **text) {
  return *text = status ? "CUPTI_ERROR_NOT_SUPPORTED" : "CUPTI_SUCCESS", CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetVersion(uint32_t *version) { return *version = VERSION, CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) {
  return *dropped = 0, CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name) {
  return *name = "", CUPTI_SUCCESS;
}
