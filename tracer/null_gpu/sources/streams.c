/* Streams, graphs and events: everything is done at once, in the order in which it is asked for. What must be right is which
   stream captures a graph, since the caching allocator asks for each allocation. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A graph is the number of its nodes; to replay it is to do nothing. Calls of libraries do not count theirs, so that a
   graph has one at least. */
typedef struct {
  size_t nodes;
} Graph;
typedef struct {
  unsigned long long id;
  Graph *graph;
  struct Stream *origin;
} Capture;
/* A stream lives as long as the process: programs ask destroyed ones, and each is a few bytes. */
typedef struct Stream {
  int device, priority;
  unsigned flags;
  unsigned long long id;
  Capture *capture;
  struct Stream *next;
} Stream;
typedef struct {
  double ms;
  Capture *capture;
} Event;

static Stream *streams;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The default streams have small numbers instead of an address. */
static Stream *of(cudaStream_t handle) { return (uintptr_t)handle <= 2 ? NULL : (Stream *)handle; }
int stream_device(cudaStream_t handle) { return of(handle) ? of(handle)->device : current_device(); }

void *new_handle(void) {
  static uintptr_t next = 0x5000;
  return (void *)__atomic_add_fetch(&next, 16, __ATOMIC_RELAXED);
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *made, unsigned flags, int priority) {
  static unsigned long long next_id = 16;
  start_device(current_device());
  Stream *stream = calloc(1, sizeof *stream);
  *made = (cudaStream_t)stream;
  if (!stream) return result(cudaErrorMemoryAllocation);
  *stream = (Stream){.device = current_device(), .priority = priority, .flags = flags};
  pthread_mutex_lock(&lock);
  stream->id = next_id++;
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = of(stream) ? of(stream)->priority : 0;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
  *flags = of(stream) ? of(stream)->flags : 0;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
  *id = of(stream) ? of(stream)->id : (uintptr_t)stream;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
  *device = stream_device(stream);
  return result(cudaSuccess);
}

EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream) {
  cudaMemPool_t pool;
  start_device(stream_device(stream));
  cudaError_t error = cudaDeviceGetDefaultMemPool(&pool, stream_device(stream));
  return error ? error : cudaMallocFromPoolAsync(pointer, size, pool, stream);
}

/* ---- waiting: never, but a stream that captures cannot be waited for ---- */
static cudaError_t waited_for(cudaStream_t stream) {
  if (is_capturing(stream)) return result(cudaErrorStreamCaptureUnsupported);
  pools_synchronize();
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return waited_for(stream); }
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) { return waited_for(stream); }
EXPORT cudaError_t cudaDeviceSynchronize(void) { return waited_for(NULL); }
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  count_node(stream);
  if (function && !is_capturing(stream)) function(data);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
  if (function) function(stream, cudaSuccess, data);
  return result(cudaSuccess);
}

/* ---- captures ---- */
static Graph *new_graph(void) {
  Graph *graph = malloc(sizeof *graph);
  if (graph) graph->nodes = 1;
  return graph;
}
static void add_node(Graph *graph) {
  if (graph) __atomic_add_fetch(&graph->nodes, 1, __ATOMIC_RELAXED);
}
bool is_capturing(cudaStream_t stream) { return of(stream) && of(stream)->capture; }
void count_node(cudaStream_t stream) {
  if (is_capturing(stream)) add_node(of(stream)->capture->graph);
}
static uint64_t launches;
void count_kernel(cudaStream_t stream) {
  __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
  count_node(stream);
}
EXPORT uint64_t null_gpu_launches(void) { return launches; }

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                                 const cudaGraphEdgeData *edges, size_t count,
                                                 enum cudaStreamCaptureMode mode) {
  static unsigned long long next_id;
  Stream *stream = of(handle);
  if (!stream) return result(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return result(cudaErrorIllegalState);
  Capture *capture = calloc(1, sizeof *capture);
  if (!capture) return result(cudaErrorMemoryAllocation);
  *capture = (Capture){__atomic_add_fetch(&next_id, 1, __ATOMIC_RELAXED), graph ? (Graph *)graph : new_graph(), stream};
  stream->capture = capture;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  return cudaStreamBeginCaptureToGraph(stream, NULL, NULL, NULL, 0, mode);
}
/* The capture itself stays: events may still name it. */
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  Capture *capture = is_capturing(handle) ? of(handle)->capture : NULL;
  if (!capture) return result(cudaErrorIllegalState);
  if (capture->origin != of(handle)) return result(cudaErrorStreamCaptureUnmatched);
  driver_takes("graph");
  pthread_mutex_lock(&lock);
  for (Stream *stream = streams; stream; stream = stream->next)
    if (stream->capture == capture) stream->capture = NULL;
  capture->origin = NULL;
  pthread_mutex_unlock(&lock);
  if (graph) *graph = (cudaGraph_t)capture->graph;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = is_capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return result(cudaSuccess);
}
static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, const cudaGraphNode_t **nodes, size_t *count) {
  const Capture *capture = is_capturing(stream) ? of(stream)->capture : NULL;
  cudaStreamIsCapturing(stream, status);
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = capture ? (cudaGraph_t)capture->graph : NULL;
  if (nodes) *nodes = NULL;
  if (count) *count = 0;
  return result(cudaSuccess);
}
#if CUDART_VERSION >= 13000
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                            const cudaGraphEdgeData **edges, size_t *count) {
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, nodes, count);
}
#else
EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                               unsigned long long *id, cudaGraph_t *graph,
                                               const cudaGraphNode_t **nodes, size_t *count) {
  return capture_info(stream, status, id, graph, nodes, count);
}
EXPORT cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                               unsigned long long *id, cudaGraph_t *graph,
                                               const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                               size_t *count) {
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, nodes, count);
}
#endif
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  static __thread enum cudaStreamCaptureMode now;
  enum cudaStreamCaptureMode before = now;
  now = *mode;
  *mode = before;
  return result(cudaSuccess);
}

/* ---- graphs ---- */
EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
  *graph = (cudaGraph_t)new_graph();
  return result(*graph ? cudaSuccess : cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count) {
  const Graph *graph = (const Graph *)handle;
  size_t room = *count;
  *count = graph ? graph->nodes : 0;
  for (size_t i = 0; nodes && i < room; i++) nodes[i] = i < *count ? (cudaGraphNode_t)(uintptr_t)(0x6000 + i) : NULL;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *on, size_t count) {
  add_node((Graph *)graph);
  *node = (cudaGraphNode_t)new_handle();
  return result(cudaSuccess);
}

/* ---- events. Nothing takes time here, and a compiler that measures kernels must choose alike in every run: the clock is
   a millisecond for each launch, and goes on a little with each event, for programs that wait until it does. ---- */
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  start_device(current_device());
  *event = (cudaEvent_t)calloc(1, sizeof(Event));
  return result(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned flags) {
  static uint64_t records;
  Event *event = (Event *)handle;
  if (!event) return result(cudaErrorInvalidResourceHandle);
  event->ms = (double)launches + 1e-3 * (double)__atomic_add_fetch(&records, 1, __ATOMIC_RELAXED);
  event->capture = is_capturing(stream) ? of(stream)->capture : NULL;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
/* A stream that waits for an event of a capture joins it. */
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned flags) {
  const Event *event = (const Event *)handle;
  if (of(stream) && event && event->capture && event->capture->origin) of(stream)->capture = event->capture;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  pools_synchronize();
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  if (!from || !to) return result(cudaErrorInvalidResourceHandle);
  *ms = (float)(((Event *)to)->ms - ((Event *)from)->ms);
  return result(cudaSuccess);
}
#if CUDART_VERSION >= 12080 && CUDART_VERSION < 13000
EXPORT cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t from, cudaEvent_t to) {
  return cudaEventElapsedTime(ms, from, to);
}
#endif
/* Of another process: what it waits for is done. */
EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
  memset(handle, 0, sizeof *handle);
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
  return cudaEventCreateWithFlags(event, 0);
}
