/* CUDA graphs: a graph is the number of its nodes; to replay it is to do nothing. Calls of libraries do not count theirs,
   so that a graph has one at least. */
#include "null_gpu.h"
#include <stdlib.h>

struct Graph {
  size_t nodes;
};

Graph *new_graph(void) {
  Graph *graph = malloc(sizeof *graph);
  if (graph) graph->nodes = 1;
  return graph;
}
void add_node(Graph *graph) {
  if (graph) __atomic_add_fetch(&graph->nodes, 1, __ATOMIC_RELAXED);
}

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags) {
  *graph = (cudaGraph_t)new_graph();
  return result(*graph ? cudaSuccess : cudaErrorMemoryAllocation);
}
/* Kept: a capture may still name it, and it is a few bytes. */
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return result(cudaSuccess); }
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count) {
  const Graph *graph = (const Graph *)handle;
  size_t room = *count;
  *count = graph ? graph->nodes : 0;
  for (size_t i = 0; nodes && i < room; i++) nodes[i] = i < *count ? (cudaGraphNode_t)(uintptr_t)(0x6000 + i) : NULL;
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
  *executable = (cudaGraphExec_t)new_handle();
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) { return result(cudaSuccess); }
EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) { return result(cudaSuccess); }
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return result(cudaSuccess); }
EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags) {
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) {
  return result(cudaSuccess);
}
/* What keeps a graph's memory alive is let go when the graph is: never, here. */
EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *pointer, cudaHostFn_t destroy, unsigned count,
                                        unsigned flags) {
  *object = (cudaUserObject_t)new_handle();
  return result(cudaSuccess);
}
EXPORT cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *on, size_t count) {
  add_node((Graph *)graph);
  *node = (cudaGraphNode_t)new_handle();
  return result(cudaSuccess);
}
#if CUDART_VERSION >= 12030
EXPORT cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle, cudaGraph_t graph, unsigned value,
                                                    unsigned flags) {
  *handle = (cudaGraphConditionalHandle)(uintptr_t)new_handle();
  return result(cudaSuccess);
}
#endif
