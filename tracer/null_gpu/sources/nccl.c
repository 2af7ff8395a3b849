/* NCCL with one process of a job: a collective gives every slot this rank's own bytes, as if all ranks had the same.
   So what torch compares between ranks before it starts is equal, and objects gathered can be unpickled. */
#include "null_gpu.h"
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

struct ncclComm {
  int rank, size, device;
  bool has_run;      /* a collective among several ranks, which is when NCCL takes its buffers */
  bool *is_partner;  /* of this size: whether this rank has sent to it, or received from it */
  int num_partners;
};

/* ---- what has to have buffers in a real NCCL: communicators, and pairs of ranks that send; the most at once ---- */
typedef struct {
  int now, most;
} Tally;
static Tally communicators, partners;

static void add(Tally *tally, int count) {
  int now = __atomic_add_fetch(&tally->now, count, __ATOMIC_RELAXED);
  if (now > __atomic_load_n(&tally->most, __ATOMIC_RELAXED)) __atomic_store_n(&tally->most, now, __ATOMIC_RELAXED);
}
static void runs(ncclComm_t comm) {
  if (comm->size > 1 && !__atomic_exchange_n(&comm->has_run, true, __ATOMIC_RELAXED)) add(&communicators, 1);
}
static void meets(ncclComm_t comm, int peer) {
  if (peer == comm->rank || __atomic_exchange_n(&comm->is_partner[peer], true, __ATOMIC_RELAXED)) return;
  __atomic_add_fetch(&comm->num_partners, 1, __ATOMIC_RELAXED);
  add(&partners, 1);
}
EXPORT int null_gpu_nccl_communicators(void) { return communicators.most; }
EXPORT int null_gpu_nccl_partners(void) { return partners.most; }

EXPORT const char *ncclGetErrorString(ncclResult_t status) { return status ? "unhandled cuda error" : "no error"; }
EXPORT const char *ncclGetLastError(ncclComm_t comm) { return ""; }
EXPORT ncclResult_t ncclGetVersion(int *version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return memset(id, 1, sizeof *id), ncclSuccess; }

static ncclResult_t new_comm(ncclComm_t *comm, int size, int rank) {
  struct ncclComm *made = malloc(sizeof *made);
  if (!made) return ncclSystemError;
  *made = (struct ncclComm){rank, size, current_device(), false, calloc((size_t)size, sizeof(bool)), 0};
  if (!made->is_partner) return free(made), ncclSystemError;
  *comm = made;
  driver_takes("nccl");
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank) { return new_comm(comm, size, rank); }
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *settings) {
  return new_comm(comm, size, rank);
}
EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int size, int rank, int num_ids, ncclUniqueId *ids,
                                             ncclConfig_t *settings) {
  return new_comm(comm, size, rank);
}
EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices) {
  for (int i = 0; i < count; i++) {
    if (new_comm(&comms[i], count, i)) return ncclSystemError;
    comms[i]->device = devices ? devices[i] : i;
  }
  return ncclSuccess;
}
/* How many ranks share a color is not known here; torch asks for the size that it knows. */
EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *settings) {
  if (color == NCCL_SPLIT_NOCOLOR) return *made = NULL, ncclSuccess;
  return new_comm(made, comm->size, key);
}
static ncclResult_t end(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  add(&communicators, -comm->has_run);
  add(&partners, -comm->num_partners);
  free(comm->is_partner);
  return free(comm), ncclSuccess;
}
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm); }
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) { return end(comm); }
EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) { return *rank = comm->rank, ncclSuccess; }
EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) { return *count = comm->size, ncclSuccess; }
EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) { return *device = comm->device, ncclSuccess; }
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *status) { return *status = ncclSuccess, ncclSuccess; }
EXPORT ncclResult_t ncclMemAlloc(void **pointer, size_t size) {
  return cudaMalloc(pointer, size) ? ncclUnhandledCudaError : ncclSuccess;
}
EXPORT ncclResult_t ncclMemFree(void *pointer) { return cudaFree(pointer) ? ncclUnhandledCudaError : ncclSuccess; }
EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t size, void **handle) {
  return *handle = new_handle(), ncclSuccess;
}
EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                             ncclScalarResidence_t residence, ncclComm_t comm) {
  return *op = ncclNumOps, ncclSuccess;
}

/* ---- groups: torch gathers tensors of a list by one broadcast from each rank, and exchanges them by sends and receives.
   What comes from another rank is, once the group ends, what this one gives in the same group. ---- */
typedef struct {
  ncclComm_t comm;
  const void *from; /* given to the peer, or NULL */
  void *to;         /* received from it, or NULL */
  size_t size;
  int peer;
} Part;
static __thread Part *parts;
static __thread size_t num_parts, parts_capacity;
static __thread int depth;

static void remember(ncclComm_t comm, const void *from, void *to, size_t size, int peer) {
  if (num_parts == parts_capacity) {
    size_t wanted = parts_capacity ? 2 * parts_capacity : 64;
    Part *made = realloc(parts, wanted * sizeof *made);
    if (!made) return;
    parts = made, parts_capacity = wanted;
  }
  parts[num_parts++] = (Part){comm, from, to, size, peer};
}
/* Of the size that is received, what is given to the same peer, else to anyone; else what that peer is given, whatever its
   size: counts of tokens for experts differ. The search begins where the last one ended, as lists come in order. */
static const Part *given(const Part *received, size_t *hint) {
  const Part *other = NULL, *uneven = NULL;
  for (size_t i = 0; i < num_parts; i++) {
    const Part *part = &parts[(*hint + i) % num_parts];
    if (!part->from || part->comm != received->comm) continue;
    if (part->size != received->size) {
      if (!uneven && part->peer == received->peer && part->size) uneven = part;
      continue;
    }
    if (part->peer == received->peer) return *hint = (size_t)(part - parts) + 1, part;
    if (!other) other = part;
    if (part->peer == part->comm->rank) break; /* a broadcast of this rank's own: there is no better */
  }
  return other ? other : uneven;
}
/* What is longer than what is given has it again and again. */
static void fill(const Part *received, const Part *from) {
  size_t size = received->size, done = from->size < size ? from->size : size;
  move_bytes(received->to, from->from, done);
  for (; done < size; done *= 2) move_bytes((char *)received->to + done, received->to, done < size - done ? done : size - done);
}
static void exchange(void) {
  size_t hint = 0;
  for (size_t i = 0; i < num_parts; i++) {
    const Part *from = parts[i].to ? given(&parts[i], &hint) : NULL;
    if (from) fill(&parts[i], from);
  }
  num_parts = 0;
}
EXPORT ncclResult_t ncclGroupStart(void) { return depth++, ncclSuccess; }
EXPORT ncclResult_t ncclGroupEnd(void) {
  if (depth && --depth == 0) exchange();
  return ncclSuccess;
}

/* ---- collectives ---- */
static size_t size_of(ncclDataType_t type) {
  switch ((int)type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case 9 /* ncclBfloat16, which headers hide from C up to CUDA 12 */: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 1; /* floats of 8 bits */
  }
}
EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream) {
  size_t size = count * size_of(type);
  count_node(stream);
  runs(comm);
  for (int rank = 0; rank < comm->size; rank++) move_bytes((char *)receive + (size_t)rank * size, send, size);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream) {
  count_node(stream);
  runs(comm);
  move_bytes(receive, send, count * size_of(type));
  return ncclSuccess;
}
/* What another rank sends here is what this one sends to it. */
EXPORT ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream) {
  count_node(stream);
  for (int peer = 0; peer < comm->size; peer++) meets(comm, peer);
  move_bytes(receive, send, (size_t)comm->size * count * size_of(type));
  return ncclSuccess;
}
EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                               ncclComm_t comm, cudaStream_t stream) {
  count_node(stream);
  runs(comm);
  if (receive && comm->rank == root) move_bytes(receive, send, count * size_of(type));
  return ncclSuccess;
}
EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
  size_t size = count * size_of(type);
  bool is_ours = root == comm->rank;
  count_node(stream);
  runs(comm);
  if (is_ours) move_bytes(receive, send, size);
  if (depth) remember(comm, is_ours ? send : NULL, is_ours ? NULL : receive, size, root);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream) {
  size_t size = count * size_of(type);
  count_node(stream);
  runs(comm);
  move_bytes(receive, (const char *)send + (size_t)comm->rank * size, size);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  count_node(stream);
  meets(comm, peer);
  if (depth) remember(comm, send, NULL, count * size_of(type), peer);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  count_node(stream);
  meets(comm, peer);
  if (depth) remember(comm, NULL, receive, count * size_of(type), peer);
  return ncclSuccess;
}
