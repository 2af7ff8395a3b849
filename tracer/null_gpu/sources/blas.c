/* cuBLAS, cuBLASLt and cuSOLVER: handles, and one algorithm without a workspace. The multiplications themselves are generated. */
#include "null_gpu.h"
#include <cublasLt.h>
#include <cublas_v2.h>
#include <stdlib.h>
#include <string.h>

EXPORT const char *cublasGetStatusString(cublasStatus_t status) {
  return status ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_SUCCESS";
}
EXPORT const char *cublasGetStatusName(cublasStatus_t status) { return cublasGetStatusString(status); }

typedef struct {
  cudaStream_t stream;
  cublasPointerMode_t pointer_mode;
  cublasMath_t math_mode;
} Handle;
EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
  driver_takes("cublas");
  *handle = calloc(1, sizeof(Handle));
  return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
EXPORT int cusolverDnCreate(void **handle) { return driver_takes("cusolver"), *handle = new_handle(), 0; }
EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return free(handle), CUBLAS_STATUS_SUCCESS; }
EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
  return *version = CUBLAS_VERSION, CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return ((Handle *)handle)->stream = stream, CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream) {
  return *stream = ((Handle *)handle)->stream, CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  return ((Handle *)handle)->pointer_mode = mode, CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
  return *mode = ((Handle *)handle)->pointer_mode, CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  return ((Handle *)handle)->math_mode = mode, CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
  return *mode = ((Handle *)handle)->math_mode, CUBLAS_STATUS_SUCCESS;
}

/* ---- cublasLt: descriptions are opaque, of the size that the header gives to those that callers hold themselves ---- */
#define OPAQUE(create, destroy, type, ...)                                      \
  EXPORT cublasStatus_t create(type *made, ##__VA_ARGS__) {                     \
    *made = calloc(1, sizeof **made);                                           \
    return *made ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;          \
  }                                                                             \
  EXPORT cublasStatus_t destroy(type gone) { return free(gone), CUBLAS_STATUS_SUCCESS; }
OPAQUE(cublasLtMatmulDescCreate, cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t, cublasComputeType_t compute,
       cudaDataType_t scale)
OPAQUE(cublasLtMatrixLayoutCreate, cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t, cudaDataType type, uint64_t rows,
       uint64_t columns, int64_t leading)
OPAQUE(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)
OPAQUE(cublasLtMatrixTransformDescCreate, cublasLtMatrixTransformDescDestroy, cublasLtMatrixTransformDesc_t,
       cudaDataType scale)
EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  *handle = calloc(1, sizeof(Handle));
  return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return free(handle), CUBLAS_STATUS_SUCCESS; }
EXPORT size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
EXPORT size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t results[], int *count) {
  *count = wanted < 1 ? 0 : 1;
  if (*count) memset(results, 0, sizeof *results), results->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                                              cublasLtMatmulHeuristicResult_t *checked) {
  memset(checked, 0, sizeof *checked);
  return CUBLAS_STATUS_SUCCESS;
}
