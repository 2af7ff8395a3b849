/* cuFFT: plans say how much scratch they want, which torch takes from its allocator. cuFFT's own rule is not published.
   Sizes that cufftGetSize told for 15 transforms of two axes, 100 by 100 to 100 by 1,500 in complex numbers, are one copy
   of the spectrum (github.com/arrayfire/arrayfire/issues/1443); a factor changes that. */
#include "null_gpu.h"
#include <cufftXt.h>

EXPORT cufftResult cufftCreate(cufftHandle *handle) {
  static int next;
  *handle = __atomic_add_fetch(&next, 1, __ATOMIC_RELAXED);
  return CUFFT_SUCCESS;
}
EXPORT cufftResult cufftGetVersion(int *version) { return *version = CUFFT_VERSION, CUFFT_SUCCESS; }
static size_t complex_size(cudaDataType type) {
  switch (type) {
    case CUDA_R_64F:
    case CUDA_C_64F: return 16;
    case CUDA_R_16F:
    case CUDA_C_16F: return 4;
    default: return 8;
  }
}
EXPORT cufftResult cufftXtMakePlanMany(cufftHandle plan, int rank, long long *sizes, long long *in_embed, long long in_stride,
                                       long long in_distance, cudaDataType in_type, long long *out_embed,
                                       long long out_stride, long long out_distance, cudaDataType out_type, long long batch,
                                       size_t *work_size, cudaDataType execution_type) {
  double elements = (double)batch;
  for (int i = 0; i < rank; i++)
    elements *= (double)(i == rank - 1 && in_type != out_type ? sizes[i] / 2 + 1 : sizes[i]);
  *work_size = (size_t)(config()->fft_workspace * elements * (double)complex_size(execution_type));
  return CUFFT_SUCCESS;
}
