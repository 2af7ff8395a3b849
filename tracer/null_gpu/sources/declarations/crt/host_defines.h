/* What NVIDIA's headers use of <crt/host_defines.h> in C on the host: it comes with a compiler for devices, in a wheel
   that torch does not ask for. */
#pragma once
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __thread__ __thread
#define __import__
#define __export__
#define __annotate__(a)
#define __location__(a)
#define __specialization_static static
#define __inline_hint__
#define __grid_constant__
#define __cluster_dims__(...)
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __CUDA_ARCH_HAS_FEATURE__(feature) 0
