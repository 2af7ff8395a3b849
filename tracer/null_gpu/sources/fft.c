/* cuFFT: plans say how much scratch they want, which torch takes from its allocator. cuFFT's own rule is not published.
   cuFFT 12 was asked on an H100 for 904 transforms of one to three axes: 871 wanted this to 3 %. Older ones are taken to
   want a copy of the spectrum, as of 15 transforms of two axes (github.com/arrayfire/arrayfire/issues/1443). */
#include "null_gpu.h"
#include <cufftXt.h>

EXPORT cufftResult cufftCreate(cufftHandle *handle) {
  static int next;
  *handle = __atomic_add_fetch(&next, 1, __ATOMIC_RELAXED);
  return CUFFT_SUCCESS;
}
EXPORT cufftResult cufftGetVersion(int *version) { return *version = CUFFT_VERSION, CUFFT_SUCCESS; }
static double complex_size(cudaDataType type) {
  switch (type) {
    case CUDA_R_64F:
    case CUDA_C_64F: return 16;
    case CUDA_R_16F:
    case CUDA_C_16F: return 4;
    default: return 8;
  }
}
static long long largest_prime_of(long long number) {
  long long largest = 1;
  for (long long factor = 2; factor * factor <= number; factor++)
    while (number % factor == 0) largest = factor, number /= factor;
  return number > largest ? number : largest;
}
/* Lengths for which cuFFT has no kernel that does all in one go; of complex transforms only those that are no primes. */
static bool is_awkward(long long size, bool is_real) {
  long long prime = largest_prime_of(size);
  return prime == size ? is_real && prime > 127 : prime > 13;
}
static double copies_of_spectrum(int rank, const long long *sizes, long long batch, bool is_real) {
  long long last = sizes[rank - 1], longest = 1, largest_prime = 1;
  for (int i = 0; i < rank; i++) {
    long long prime = largest_prime_of(sizes[i]);
    if (sizes[i] > longest) longest = sizes[i];
    if (prime > largest_prime) largest_prime = prime;
  }
  double whole = is_real ? (double)last / (double)(last / 2 + 1) : 1, alone = is_real && batch == 1 ? 2 : 1;
  if (CUFFT_VERSION < 12000 || (longest > 16384 && largest_prime <= 4096)) return 1;
  if (largest_prime > 4096) return (is_real ? 2.6 : 4.2) * whole * alone; /* Bluestein's way */
  if (is_real && is_awkward(last, true)) return whole * alone;
  return rank > 1 && is_awkward(sizes[0], false) ? 1 : 0;
}
EXPORT cufftResult cufftXtMakePlanMany(cufftHandle plan, int rank, long long *sizes, long long *in_embed, long long in_stride,
                                       long long in_distance, cudaDataType in_type, long long *out_embed,
                                       long long out_stride, long long out_distance, cudaDataType out_type, long long batch,
                                       size_t *work_size, cudaDataType execution_type) {
  driver_takes("cufft");
  double elements = (double)batch;
  bool is_real = in_type != out_type;
  for (int i = 0; i < rank; i++) elements *= (double)(is_real && i == rank - 1 ? sizes[i] / 2 + 1 : sizes[i]);
  *work_size = (size_t)(copies_of_spectrum(rank, sizes, batch, is_real) * elements * complex_size(execution_type));
  return CUFFT_SUCCESS;
}
