/* CUPTI: the profiler can be started and gives no kernel, since none ran. */
#include "null_gpu.h"
#include <cupti.h>

EXPORT CUptiResult cuptiGetResultString(CUptiResult status, const char **text) {
  return *text = status ? "CUPTI_ERROR_NOT_SUPPORTED" : "CUPTI_SUCCESS", CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetVersion(uint32_t *version) { return *version = CUPTI_API_VERSION, CUPTI_SUCCESS; }
EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t size, CUpti_Activity **record) {
  return CUPTI_ERROR_MAX_LIMIT_REACHED;
}
EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) {
  return *dropped = 0, CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last) {
  if (last) *last = 0;
  return CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name) {
  return *name = "", CUPTI_SUCCESS;
}
EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *data) {
  return *subscriber = new_handle(), CUPTI_SUCCESS;
}
