/* cuDNN but for its backend: descriptors remember what they were told; recurrent layers know the sizes of their weights. */
#include "dnn.h"
#include <stdlib.h>
#include <string.h>

EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
  return status ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_SUCCESS";
}
EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
  if (size) *message = 0;
}
EXPORT size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
EXPORT size_t cudnnGetMaxDeviceVersion(void) { return 1300; }
EXPORT size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
EXPORT cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
  *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  driver_takes("cudnn");
  *handle = calloc(1, sizeof(cudaStream_t));
  return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR;
}
EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return free(handle), CUDNN_STATUS_SUCCESS; }
EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return *(cudaStream_t *)handle = stream, CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  return *stream = *(cudaStream_t *)handle, CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors of the older calls ---- */
#define MAX_DIMS 8
typedef struct {
  int type, dims, size[MAX_DIMS], stride[MAX_DIMS];
} Tensor;
typedef struct {
  int mode, direction, hidden, projection, input, layers, type;
  int samples, longest, steps; /* of a batch; steps of all samples together */
  bool has_bias, has_dropout, is_packed, is_persistent;
} Recurrent;
typedef union {
  Tensor tensor;
  Recurrent recurrent;
  float dropout;
} Legacy;
#define LEGACY(name)                                                                \
  EXPORT cudnnStatus_t cudnnCreate##name##Descriptor(cudnn##name##Descriptor_t *made) { \
    *made = calloc(1, sizeof(Legacy));                                              \
    return *made ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR;              \
  }                                                                                 \
  EXPORT cudnnStatus_t cudnnDestroy##name##Descriptor(cudnn##name##Descriptor_t gone) { \
    return free(gone), CUDNN_STATUS_SUCCESS;                                        \
  }
LEGACY(Tensor) LEGACY(Filter) LEGACY(Convolution) LEGACY(Activation) LEGACY(Dropout) LEGACY(RNN)
LEGACY(RNNData) LEGACY(CTCLoss) LEGACY(Pooling) LEGACY(SpatialTransformer)

static void set_tensor(Tensor *tensor, int type, int dims, const int *size, const int *stride) {
  if (!tensor) return;
  tensor->type = type;
  tensor->dims = dims > MAX_DIMS ? MAX_DIMS : dims;
  for (int i = 0; i < tensor->dims; i++) tensor->size[i] = size[i], tensor->stride[i] = stride ? stride[i] : 1;
}
EXPORT cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int dims,
                                                const int size[], const int stride[]) {
  return set_tensor((Tensor *)tensor, (int)type, dims, size, stride), CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                                cudnnTensorFormat_t format, int dims, const int size[]) {
  return set_tensor((Tensor *)filter, (int)type, dims, size, NULL), CUDNN_STATUS_SUCCESS;
}
static void get_tensor(const Tensor *tensor, int wanted, cudnnDataType_t *type, int *dims, int *size, int *stride) {
  if (type) *type = (cudnnDataType_t)tensor->type;
  if (dims) *dims = tensor->dims;
  for (int i = 0; i < wanted && i < MAX_DIMS; i++) {
    if (size) size[i] = i < tensor->dims ? tensor->size[i] : 1;
    if (stride) stride[i] = i < tensor->dims ? tensor->stride[i] : 1;
  }
}
EXPORT cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int wanted, cudnnDataType_t *type,
                                                int *dims, int size[], int stride[]) {
  return get_tensor((const Tensor *)tensor, wanted, type, dims, size, stride), CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t filter, int wanted, cudnnDataType_t *type,
                                                cudnnTensorFormat_t *format, int *dims, int size[]) {
  if (format) *format = CUDNN_TENSOR_NCHW;
  return get_tensor((const Tensor *)filter, wanted, type, dims, size, NULL), CUDNN_STATUS_SUCCESS;
}
/* As cuDNN 9.19 says on an H100: a state of cuRAND's, 48 bytes, for 1,024 threads of each multiprocessor. */
EXPORT cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *size) {
  return *size = (size_t)card_of(current_device())->sms * 1024 * 48, CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float dropout,
                                               void *states, size_t size, unsigned long long seed) {
  return ((Legacy *)descriptor)->dropout = dropout, CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float dropout,
                                                   void *states, size_t size, unsigned long long seed) {
  return cudnnSetDropoutDescriptor(descriptor, handle, dropout, states, size, seed);
}

/* ---- convolutions by the older calls (depthwise) ---- */
#define ALGORITHM(function, A, B, C, Found)                                                                        \
  EXPORT cudnnStatus_t function(cudnnHandle_t handle, const A a, const B b, const cudnnConvolutionDescriptor_t c, \
                                const C d, const int wanted, int *count, Found *found) {                           \
    *count = wanted > 0;                                                                                           \
    if (*count) memset(found, 0, sizeof *found);                                                                   \
    return CUDNN_STATUS_SUCCESS;                                                                                   \
  }
#define WORKSPACE(function, A, B, C, Algorithm)                                                                    \
  EXPORT cudnnStatus_t function(cudnnHandle_t handle, const A a, const B b, const cudnnConvolutionDescriptor_t c, \
                                const C d, Algorithm algorithm, size_t *size) {                                    \
    return *size = config()->cudnn_workspace, CUDNN_STATUS_SUCCESS;                                                \
  }
#define T cudnnTensorDescriptor_t
#define F cudnnFilterDescriptor_t
ALGORITHM(cudnnGetConvolutionForwardAlgorithm_v7, T, F, T, cudnnConvolutionFwdAlgoPerf_t)
ALGORITHM(cudnnGetConvolutionBackwardDataAlgorithm_v7, F, T, T, cudnnConvolutionBwdDataAlgoPerf_t)
ALGORITHM(cudnnGetConvolutionBackwardFilterAlgorithm_v7, T, T, F, cudnnConvolutionBwdFilterAlgoPerf_t)
WORKSPACE(cudnnGetConvolutionForwardWorkspaceSize, T, F, T, cudnnConvolutionFwdAlgo_t)
WORKSPACE(cudnnGetConvolutionBackwardDataWorkspaceSize, F, T, T, cudnnConvolutionBwdDataAlgo_t)
WORKSPACE(cudnnGetConvolutionBackwardFilterWorkspaceSize, T, T, F, cudnnConvolutionBwdFilterAlgo_t)
#undef T
#undef F

/* ---- recurrent layers. Weights: for each layer and direction its matrices, then all biases. ---- */
static int gates_of(const Recurrent *r) { return r->mode == CUDNN_LSTM ? 4 : r->mode == CUDNN_GRU ? 3 : 1; }
static int directions_of(const Recurrent *r) { return r->direction == CUDNN_BIDIRECTIONAL ? 2 : 1; }
static size_t item_of(const Recurrent *r) {
  return r->type == CUDNN_DATA_HALF || r->type == CUDNN_DATA_BFLOAT16 ? 2 : r->type == CUDNN_DATA_DOUBLE ? 8 : 4;
}
static int output_of(const Recurrent *r) { return r->projection ? r->projection : r->hidden; }
static int input_of(const Recurrent *r, int layer) { return layer ? output_of(r) * directions_of(r) : r->input; }
/* Elements of the matrices of one layer in one direction. */
static size_t matrices_of(const Recurrent *r, int pseudo_layer) {
  size_t row = (size_t)gates_of(r) * (size_t)r->hidden;
  size_t columns = (size_t)(input_of(r, pseudo_layer / directions_of(r)) + output_of(r));
  return row * columns + (size_t)r->projection * (size_t)r->hidden;
}
EXPORT cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t handle, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t mode,
                                              cudnnRNNBiasMode_t bias, cudnnDirectionMode_t direction,
                                              cudnnRNNInputMode_t input_mode, cudnnDataType_t type,
                                              cudnnDataType_t math_type, cudnnMathType_t math, int32_t input, int32_t hidden,
                                              int32_t projection, int32_t layers, cudnnDropoutDescriptor_t dropout,
                                              uint32_t flags) {
  *(Recurrent *)handle = (Recurrent){.mode = (int)mode, .direction = (int)direction, .hidden = hidden, .input = input,
                                     .projection = projection == hidden ? 0 : projection, .layers = layers,
                                     .has_bias = bias != CUDNN_RNN_NO_BIAS, .type = (int)type,
                                     .has_dropout = dropout && ((const Legacy *)dropout)->dropout > 0,
                                     .is_persistent = algorithm != CUDNN_RNN_ALGO_STANDARD && type != CUDNN_DATA_BFLOAT16};
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t handle, cudnnDataType_t type,
                                               cudnnRNNDataLayout_t layout, int steps, int batch, int vector,
                                               const int lengths[], void *padding) {
  Recurrent *data = (Recurrent *)handle;
  data->type = (int)type;
  data->samples = batch, data->longest = steps, data->steps = 0;
  data->is_packed = layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
  for (int i = 0; i < batch; i++) data->steps += lengths ? lengths[i] : steps;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor, size_t *size) {
  const Recurrent *r = (const Recurrent *)descriptor;
  size_t elements = 0;
  for (int i = 0; i < r->layers * directions_of(r); i++)
    elements += matrices_of(r, i) + (r->has_bias ? 2 * (size_t)gates_of(r) * (size_t)r->hidden : 0);
  *size = elements * item_of(r);
  return CUDNN_STATUS_SUCCESS;
}
static void weight_params(const Recurrent *r, int pseudo_layer, int id, char *weights, Tensor *matrix, void **matrix_at) {
  int gates = gates_of(r), input = input_of(r, pseudo_layer / directions_of(r)), rows = r->hidden, columns = input;
  size_t offset = 0, row = (size_t)r->hidden;
  for (int i = 0; i < pseudo_layer; i++) offset += matrices_of(r, i);
  if (id < gates) {
    offset += (size_t)id * row * (size_t)input;
  } else if (id < 2 * gates) {
    columns = output_of(r);
    offset += (size_t)gates * row * (size_t)input + (size_t)(id - gates) * row * (size_t)columns;
  } else if (r->projection) {
    offset += (size_t)gates * row * (size_t)(input + output_of(r));
    rows = r->projection, columns = r->hidden;
  } else {
    *matrix_at = NULL;
    if (matrix) matrix->dims = 0;
    return;
  }
  set_tensor(matrix, r->type, 3, (int[]){1, rows, columns}, (int[]){rows * columns, columns, 1});
  *matrix_at = weights + offset * item_of(r);
}
EXPORT cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor, int32_t pseudo_layer,
                                             size_t size, const void *weights, int32_t id, cudnnTensorDescriptor_t matrix,
                                             void **matrix_at, cudnnTensorDescriptor_t bias, void **bias_at) {
  const Recurrent *r = (const Recurrent *)descriptor;
  void *unused;
  weight_params(r, pseudo_layer, id, (char *)weights, (Tensor *)matrix, matrix_at ? matrix_at : &unused);
  if (!r->has_bias || id >= 2 * gates_of(r)) {
    if (bias_at) *bias_at = NULL;
    if (bias) ((Tensor *)bias)->dims = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  size_t offset = (size_t)(2 * gates_of(r) * pseudo_layer + id) * (size_t)r->hidden;
  for (int i = 0; i < r->layers * directions_of(r); i++) offset += matrices_of(r, i);
  set_tensor((Tensor *)bias, r->type, 3, (int[]){1, r->hidden, 1}, (int[]){r->hidden, 1, 1});
  if (bias_at) *bias_at = (char *)weights + offset * item_of(r);
  return CUDNN_STATUS_SUCCESS;
}
/* cuDNN does not publish them; this is what cuDNN 9.19 was seen to answer on an H100: for 966 of 1,084 layers at
   random to 0.1 %, for the others to 6.4 % (the workspace of training in one direction is not quite understood).
   benchmarks/results.md has how near. */
typedef struct {
  size_t kept; /* for backward, in states of all steps */
  size_t forward_one_way, forward_both_ways, backward_both_ways; /* for each layer and sample */
  size_t copied, of_persistent; /* in each direction, of a padded batch; where weights stay in registers */
} Cell;
typedef struct {
  const Cell *cell;
  size_t sample, hidden, input, gates, directions, layers; /* bytes of one state of each sample; of all steps */
  bool is_lstm;
} Parts;
static const Cell *cell_of(const Recurrent *r) {
  static const Cell plain = {1, 1, 6, 6, 2, 9}, lstm = {5, 6, 16, 10, 4, 12}, gru = {6, 3, 10, 6, 2, 14};
  return r->mode == CUDNN_LSTM ? &lstm : r->mode == CUDNN_GRU ? &gru : &plain;
}
static size_t least(size_t a, size_t b) { return a < b ? a : b; }
static size_t most(size_t a, size_t b) { return a > b ? a : b; }
/* The gates of so many steps at a time, and states of each sample. */
static size_t forward_bytes(const Parts *p, const Recurrent *r) {
  if (p->directions == 2)
    return (2 * p->gates + 4) * p->hidden + p->layers * p->cell->forward_both_ways * p->sample;
  size_t at_once = r->is_persistent ? p->hidden : least(256 * p->sample, p->hidden);
  return p->gates * at_once + (r->has_dropout ? p->hidden : 0) +
         p->layers * p->cell->forward_one_way * p->sample;
}
static size_t backward_bytes(const Parts *p) {
  size_t widest = most(p->hidden, p->input);
  if (p->directions == 2)
    return (p->layers > 1 ? 4 : 2) * p->hidden + 4 * widest + p->layers * p->cell->backward_both_ways * p->sample;
  size_t at_once = p->layers > 1 ? least(p->hidden, (8 + 9 * p->layers) * p->sample) : p->hidden;
  return at_once + widest + (p->is_lstm ? 2 * p->layers + 1 : p->layers < 2 ? 1 : 0) * p->sample;
}
static size_t workspace_of(const Recurrent *r, const Recurrent *data, bool trains) {
  size_t state = (size_t)r->hidden * item_of(r), matrices = 0;
  Parts p = {.cell = cell_of(r), .sample = (size_t)data->samples * state, .hidden = (size_t)data->steps * state,
             .input = (size_t)data->steps * (size_t)r->input * item_of(r), .gates = (size_t)gates_of(r),
             .directions = (size_t)directions_of(r), .layers = (size_t)r->layers, .is_lstm = r->mode == CUDNN_LSTM};
  for (int i = 0; i < r->layers * directions_of(r); i++) matrices += matrices_of(r, i) * item_of(r);
  /* Padded batches are copied, in backward their gradients too. */
  size_t copies = p.directions * p.hidden + p.input + p.layers * p.directions * p.cell->copied * p.sample;
  if (data->is_packed) copies = 0;
  size_t forward = forward_bytes(&p, r) + copies, both = most(forward, backward_bytes(&p) + 2 * copies);
  if (r->is_persistent) {
    forward += 4 * p.gates * p.hidden;
    both = most(forward, both + p.cell->of_persistent * p.hidden);
  }
  return p.layers * p.directions * 8 * MIB + matrices + (trains ? both : forward);
}
/* For each element of the hidden state its gates and the LSTM's cell, or three values of the GRU's candidate; between
   layers their output, and which of it dropout keeps. */
static size_t reserve_of(const Recurrent *r, const Recurrent *data) {
  size_t kept = (size_t)r->hidden * cell_of(r)->kept, between = (size_t)r->layers - 1;
  if (r->projection) kept += (size_t)(r->hidden + r->projection);
  size_t directions = (size_t)directions_of(r), padded = (size_t)data->samples * (size_t)data->longest;
  size_t of_dropout = between * directions * ((padded * directions * (size_t)output_of(r) + 7) / 8);
  size_t values = (size_t)data->steps * directions * ((size_t)r->layers * kept + between * (size_t)r->hidden);
  return values * item_of(r) + (r->has_dropout ? of_dropout : 0) + 256;
}
EXPORT cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor, cudnnForwardMode_t mode,
                                               cudnnRNNDataDescriptor_t input, size_t *workspace, size_t *reserve) {
  const Recurrent *r = (const Recurrent *)descriptor, *data = (const Recurrent *)input;
  bool trains = mode == CUDNN_FWD_MODE_TRAINING;
  if (workspace) *workspace = workspace_of(r, data, trains);
  if (reserve) *reserve = trains ? reserve_of(r, data) : 0;
  return CUDNN_STATUS_SUCCESS;
}
