/* The end of a process. A thread of autograd that asks for the interpreter's lock while it ends is told to end itself:
   CPython before 3.14 calls pthread_exit, whose unwinding meets a function of torch's that may not throw, and the process
   aborts. Such a thread sleeps instead, as CPython 3.14 lets it. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <dlfcn.h>
#include <unistd.h>

EXPORT __attribute__((noreturn)) void pthread_exit(void *value) {
  int (*is_finalizing)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
  if (!is_finalizing) is_finalizing = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
  while (is_finalizing && is_finalizing()) pause();
  void (*next)(void *) = (void (*)(void *))dlsym(RTLD_NEXT, "pthread_exit");
  next(value);
  __builtin_unreachable();
}
