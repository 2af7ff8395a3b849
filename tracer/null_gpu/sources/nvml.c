/* NVML: who is on a device, and how much memory is left. Its header comes with none of torch's wheels, so that the few
   layouts are declared here. It counts all devices, whatever CUDA_VISIBLE_DEVICES says. Source: nvml.h. */
#include "null_gpu.h"
#include <cuda.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { NVML_SUCCESS = 0, NVML_ERROR_INVALID_ARGUMENT = 2, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NOT_FOUND = 6, NVML_ERROR_INSUFFICIENT_SIZE = 7 };
#define HANDLES ((uintptr_t)0xB000)
typedef struct {
  unsigned process;
  unsigned long long used;
  unsigned instance, compute_instance; /* from the second version on */
} Process;
#define FIRST_PROCESS_SIZE offsetof(Process, instance)
typedef struct {
  unsigned long long total, free, used;
} Memory;
typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} Memory2;
typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device, pci_subsystem;
  char bus_id[32];
} Pci;
typedef struct {
  unsigned gpu, memory;
} Utilization;
typedef struct {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state; /* 0: not supported */
  unsigned health;
} Fabric;

static const Card *card_behind(const void *handle) { return &config()->cards[((uintptr_t)handle - HANDLES) % MAX_DEVICES]; }
#define MOST_PROCESSES 256
static int processes_on(const void *handle, NodeProcess *found, int most) {
  return node_processes((int)((uintptr_t)handle - HANDLES), found, most);
}
/* What all processes of the run use of a card. */
static size_t used_of(const void *handle) {
  NodeProcess found[MOST_PROCESSES];
  int count = processes_on(handle, found, MOST_PROCESSES);
  size_t used = 0;
  for (int i = 0; i < count; i++) used += found[i].held;
  return used;
}

EXPORT const char *nvmlErrorString(int error) {
  switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Not Supported";
  }
}
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned size) {
  snprintf(text, size, "580.00");
  return NVML_SUCCESS;
}
EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
  snprintf(text, size, "13.580.00");
  return NVML_SUCCESS;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = CUDA_VERSION, NVML_SUCCESS; }
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return *version = CUDA_VERSION, NVML_SUCCESS; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { return *count = (unsigned)config()->num_cards, NVML_SUCCESS; }
EXPORT int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (index >= (unsigned)config()->num_cards) return NVML_ERROR_INVALID_ARGUMENT;
  *handle = (void *)(HANDLES + index);
  return NVML_SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
  unsigned domain = 0, bus = 0;
  if (sscanf(text, "%x:%x", &domain, &bus) != 2 || !bus) return NVML_ERROR_INVALID_ARGUMENT;
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle);
}
/* As CUDA tells it: "null-gpu-device" and the number. */
static void uuid_of(unsigned index, char *text, size_t size) {
  snprintf(text, size, "GPU-6e756c6c-2d67-7075-2d64-6576696365%02x", '0' + index);
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *text, void **handle) {
  char uuid[64];
  for (unsigned i = 0; i < (unsigned)config()->num_cards; i++) {
    uuid_of(i, uuid, sizeof uuid);
    if (!strcmp(uuid, text)) return nvmlDeviceGetHandleByIndex_v2(i, handle);
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetIndex(void *handle, unsigned *index) {
  return *index = (unsigned)((uintptr_t)handle - HANDLES), NVML_SUCCESS;
}
EXPORT int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
  snprintf(name, size, "%s", card_behind(handle)->name);
  return NVML_SUCCESS;
}
EXPORT int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
  uuid_of((unsigned)((uintptr_t)handle - HANDLES), text, size);
  return NVML_SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByPciBusId(const char *text, void **handle) { return nvmlDeviceGetHandleByPciBusId_v2(text, handle); }
EXPORT int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = (unsigned)((uintptr_t)handle - HANDLES) + 1;
  snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
  snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus);
  return NVML_SUCCESS;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
  *major = card_behind(handle)->major, *minor = card_behind(handle)->minor;
  return NVML_SUCCESS;
}
EXPORT int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  memory->total = card_behind(handle)->memory;
  memory->used = used_of(handle);
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
  memory->total = card_behind(handle)->memory;
  memory->used = used_of(handle);
  memory->reserved = 0;
  memory->free = memory->total - memory->used;
  return NVML_SUCCESS;
}
/* Fill the caller's array, whose rows have as many bytes as its version of the layout. */
static int processes_of(void *handle, unsigned *count, void *rows, size_t row_size) {
  NodeProcess found[MOST_PROCESSES];
  unsigned number = (unsigned)processes_on(handle, found, MOST_PROCESSES);
  bool has_room = number <= *count && (rows || !number);
  for (unsigned i = 0; has_room && i < number; i++) {
    Process *row = (Process *)((char *)rows + i * row_size);
    row->process = (unsigned)found[i].process, row->used = found[i].held;
    if (row_size == sizeof *row) row->instance = row->compute_instance = ~0u;
  }
  *count = number;
  return has_room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *processes) {
  return processes_of(handle, count, processes, FIRST_PROCESS_SIZE);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, void *processes) {
  return processes_of(handle, count, processes, sizeof(Process));
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *processes) {
  return processes_of(handle, count, processes, sizeof(Process));
}
#define NO_PROCESSES(name) \
  EXPORT int name(void *handle, unsigned *count, void *processes) { return *count = 0, NVML_SUCCESS; }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses) NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3) NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2) NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
EXPORT int nvmlSystemGetProcessName(unsigned process, char *name, unsigned size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/cmdline", process);
  FILE *file = fopen(path, "r");
  if (!file) return NVML_ERROR_NOT_FOUND;
  size_t length = size ? fread(name, 1, size - 1, file) : 0;
  if (size) name[length] = 0; /* up to the first argument, which ends with a zero as well */
  fclose(file);
  return NVML_SUCCESS;
}

/* It does nothing: it is cold, takes no power, its clocks stand still. Limits and other properties that the table of cards
   does not have are not known, which NVML calls not supported, as of many a card. */
EXPORT int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
  return rates->gpu = rates->memory = 0, NVML_SUCCESS;
}
typedef struct {
  unsigned version, sensor;
  int degrees;
} Temperature;
EXPORT int nvmlDeviceGetTemperatureV(void *handle, Temperature *temperature) { return temperature->degrees = 0, NVML_SUCCESS; }
#define LONG_ZERO(name) \
  EXPORT int name(void *handle, unsigned long long *value) { return *value = 0, NVML_SUCCESS; }
LONG_ZERO(nvmlDeviceGetTotalEnergyConsumption)
LONG_ZERO(nvmlDeviceGetCurrentClocksThrottleReasons) LONG_ZERO(nvmlDeviceGetCurrentClocksEventReasons)
EXPORT int nvmlDeviceGetClock(void *handle, int type, int id, unsigned *mhz) { return *mhz = 0, NVML_SUCCESS; }
#define ZERO_OF(name) \
  EXPORT int name(void *handle, int of, unsigned *value) { return *value = 0, NVML_SUCCESS; }
ZERO_OF(nvmlDeviceGetTemperature) ZERO_OF(nvmlDeviceGetClockInfo) ZERO_OF(nvmlDeviceGetPcieThroughput)
#define VALUE(name, number) \
  EXPORT int name(void *handle, unsigned *value) { return *value = (number), NVML_SUCCESS; }
VALUE(nvmlDeviceGetPowerUsage, 0)
VALUE(nvmlDeviceGetPerformanceState, 0)
VALUE(nvmlDeviceGetComputeMode, 0)     /* shared by processes */
VALUE(nvmlDeviceGetPersistenceMode, 1) /* on */
VALUE(nvmlDeviceGetDisplayMode, 0)
VALUE(nvmlDeviceGetDisplayActive, 0)
VALUE(nvmlDeviceGetMinorNumber, (unsigned)((uintptr_t)handle - HANDLES))
#define SAMPLED(name) \
  EXPORT int name(void *handle, unsigned *percent, unsigned *period) { return *percent = *period = 0, NVML_SUCCESS; }
SAMPLED(nvmlDeviceGetEncoderUtilization) SAMPLED(nvmlDeviceGetDecoderUtilization)
EXPORT int nvmlUnitGetCount(unsigned *count) { return *count = 0, NVML_SUCCESS; }
#define UNKNOWN(name) \
  EXPORT int name(void) { return NVML_ERROR_NOT_SUPPORTED; }
UNKNOWN(nvmlDeviceGetApplicationsClock) UNKNOWN(nvmlDeviceGetArchitecture) UNKNOWN(nvmlDeviceGetBAR1MemoryInfo)
UNKNOWN(nvmlDeviceGetBoardId) UNKNOWN(nvmlDeviceGetBrand) UNKNOWN(nvmlDeviceGetCpuAffinity)
UNKNOWN(nvmlDeviceGetCurrPcieLinkGeneration) UNKNOWN(nvmlDeviceGetCurrPcieLinkWidth)
UNKNOWN(nvmlDeviceGetDefaultApplicationsClock) UNKNOWN(nvmlDeviceGetEccMode) UNKNOWN(nvmlDeviceGetEnforcedPowerLimit)
UNKNOWN(nvmlDeviceGetFanSpeed) UNKNOWN(nvmlDeviceGetFanSpeed_v2) UNKNOWN(nvmlDeviceGetFieldValues)
UNKNOWN(nvmlDeviceGetMaxClockInfo) UNKNOWN(nvmlDeviceGetMaxMigDeviceCount) UNKNOWN(nvmlDeviceGetMaxPcieLinkGeneration)
UNKNOWN(nvmlDeviceGetMaxPcieLinkWidth) UNKNOWN(nvmlDeviceGetMemoryBusWidth) UNKNOWN(nvmlDeviceGetMemoryErrorCounter)
UNKNOWN(nvmlDeviceGetMigMode) UNKNOWN(nvmlDeviceGetNumFans) UNKNOWN(nvmlDeviceGetNumGpuCores)
UNKNOWN(nvmlDeviceGetPowerManagementDefaultLimit) UNKNOWN(nvmlDeviceGetPowerManagementLimit)
UNKNOWN(nvmlDeviceGetPowerManagementLimitConstraints) UNKNOWN(nvmlDeviceGetPowerManagementMode)
UNKNOWN(nvmlDeviceGetProcessUtilization) UNKNOWN(nvmlDeviceGetSamples) UNKNOWN(nvmlDeviceGetSerial)
UNKNOWN(nvmlDeviceGetSupportedMemoryClocks) UNKNOWN(nvmlDeviceGetTemperatureThreshold)
UNKNOWN(nvmlDeviceGetTopologyCommonAncestor) UNKNOWN(nvmlDeviceGetTotalEccErrors) UNKNOWN(nvmlDeviceGetVbiosVersion)
UNKNOWN(nvmlDeviceGetNvLinkCapability) UNKNOWN(nvmlDeviceGetNvLinkVersion) UNKNOWN(nvmlDeviceGetNvLinkErrorCounter)
/* The card is in no fabric of several nodes. torch asks before memory of one device is mapped on another. */
EXPORT int nvmlDeviceGetGpuFabricInfoV(void *handle, Fabric *fabric) {
  *fabric = (Fabric){.version = fabric->version};
  return NVML_SUCCESS;
}
UNKNOWN(nvmlDeviceGetNvLinkState) UNKNOWN(nvmlDeviceGetNvLinkRemoteDeviceType) UNKNOWN(nvmlDeviceGetNvLinkRemotePciInfo_v2)
