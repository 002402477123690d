// SPDX-License-Identifier: GPL-3.0-or-later
// A stand-in for NVIDIA's libnvidia-ml.so.1 in tests: two GPUs that do not exist, the second one with a MIG
// partition, and the functions that nvidia-ml-py calls here. It reports missing functions as such, like those of an
// old driver.
#include <stdio.h>
#include <string.h>

typedef void *handle;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process;
typedef struct { unsigned int version; int celsius; } margin;
typedef struct { handle device; unsigned long long type, data; unsigned int gi, ci; } event;

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, SIZE = 7, TIMEOUT = 10 };
static char gpus[3];  // the third is the MIG partition
static int told;
static const unsigned long long MIB = 1024 * 1024;

static int index_of(handle gpu) { return (int)((char *)gpu - gpus); }

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, handle *gpu) { *gpu = &gpus[index]; return OK; }

int nvmlDeviceGetName(handle gpu, char *name, unsigned int size) {
  (void)gpu;
  snprintf(name, size, "NVIDIA A10");
  return OK;
}

int nvmlDeviceGetUUID(handle gpu, char *uuid, unsigned int size) {
  if (index_of(gpu) == 2) snprintf(uuid, size, "MIG-1");
  else snprintf(uuid, size, "GPU-%d", index_of(gpu));
  return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(handle gpu, unsigned int *count) { *count = 2 * index_of(gpu); return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(handle gpu, unsigned int place, handle *part) {
  (void)gpu;
  *part = &gpus[2];
  return place == 0 ? OK : NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(handle gpu, memory *found) {
  *found = (memory){22731 * MIB, 21707 * MIB, 1024 * MIB};
  if (index_of(gpu) == 2) *found = (memory){4864 * MIB, 4352 * MIB, 512 * MIB};
  return OK;
}

int nvmlDeviceGetUtilizationRates(handle gpu, utilization *found) {
  *found = (utilization){97, 40};
  return index_of(gpu) == 2 ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetTemperature(handle gpu, int sensor, unsigned int *celsius) {
  (void)sensor;
  *celsius = 49 + index_of(gpu);
  return index_of(gpu) == 2 ? NOT_SUPPORTED : OK;
}

// The slowdown temperature (kind 1) of the first GPU. The second GPU's driver reports only the margin to it.
int nvmlDeviceGetTemperatureThreshold(handle gpu, int kind, unsigned int *celsius) {
  *celsius = 98;
  return kind == 1 && index_of(gpu) == 0 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMarginTemperature(handle gpu, margin *found) {
  found->celsius = 37;
  return index_of(gpu) == 1 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(handle gpu, unsigned int *milliwatts) { (void)gpu; *milliwatts = 120500; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(handle gpu, unsigned int *most) { (void)gpu; *most = 150000; return OK; }

int nvmlDeviceGetClockInfo(handle gpu, int domain, unsigned int *mhz) {
  (void)gpu;
  *mhz = domain == 2 ? 6251 : 1695;
  return OK;
}

// The software's power cap and thermal slowdown.
int nvmlDeviceGetCurrentClocksThrottleReasons(handle gpu, unsigned long long *reasons) {
  (void)gpu;
  *reasons = 0x4 | 0x20;
  return OK;
}

int nvmlDeviceGetTotalEccErrors(handle gpu, int kind, int counter, unsigned long long *errors) {
  (void)counter;
  *errors = kind == 0 ? 4 : index_of(gpu);
  return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(handle gpu, unsigned int *count, process *found) {
  (void)gpu;
  if (*count == 0) { *count = 1; return SIZE; }
  *count = 1;
  found[0] = (process){4711, 1000 * MIB, 0, 0};
  return OK;
}

int nvmlEventSetCreate(handle *events) { *events = &told; return OK; }
int nvmlDeviceRegisterEvents(handle gpu, unsigned long long types, handle events) {
  (void)gpu, (void)types, (void)events;
  return OK;
}

// The first call reports that the second GPU has fallen off the bus (Xid 79).
int nvmlEventSetWait_v2(handle events, event *found, unsigned int milliseconds) {
  (void)events, (void)milliseconds;
  if (told++) return TIMEOUT;
  *found = (event){&gpus[1], 8, 79, 0, 0};
  return OK;
}
