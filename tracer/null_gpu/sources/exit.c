/* The end of a process. A thread of autograd that asks for the interpreter's lock while it ends is told to end itself:
   CPython before 3.14 calls pthread_exit, whose unwinding meets a function of torch's that may not throw, and the process
   aborts. Such a thread sleeps instead, as CPython 3.14 lets it. */
#define _GNU_SOURCE
#include "null_gpu.h"
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

bool is_python_ending(void) {
  static int (*is_ending)(void);
  if (!is_ending) is_ending = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
  if (!is_ending) is_ending = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing"); /* before 3.13 */
  return is_ending && is_ending();
}
EXPORT __attribute__((noreturn)) void pthread_exit(void *value) {
  while (is_python_ending()) pause();
  NEXT(pthread_exit)(value);
  __builtin_unreachable();
}
