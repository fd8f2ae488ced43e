/* A driver library with three GPUs, the last one sliced; the tests set its globals. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7 };
enum { DRAM = 10, NVLINK_RX = 60 };
enum { INSTANT = 186, GPUS = 3, SLICED = 3, SLICE = 100 };

int power_error, average_error, energy_error, gpm_error, open_count, process_count = 1;
unsigned power_mw = 124000, average_mw = 99000;
unsigned long long energy_mj = 5000000, reasons;

static const char *uuids[] = {"GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000"};
static const char *slice = "MIG-cccc4444-0000";

typedef struct { uint32_t field, scope; int64_t stamp, latency; uint32_t type, result; uint64_t value; } field_t;
typedef struct { uint32_t id, result; double value; const char *names[3]; } metric_t;
typedef struct { uint32_t version, count; void *first, *second; metric_t metrics[]; } question_t;

static void *handle(uintptr_t number) { return (void *)number; }
static uintptr_t number(void *device) { return (uintptr_t)device; }

int nvmlInitWithFlags(unsigned flags) { open_count++; return OK; }
int nvmlShutdown(void) { open_count--; return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.1", size); return OK; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "NVIDIA H200", size); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = handle(index + 1);
    return index < GPUS ? OK : INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    for (unsigned i = 0; i < GPUS; i++)
        if (!strcmp(uuid, uuids[i])) return nvmlDeviceGetHandleByIndex_v2(i, device);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    strncpy(text, number(device) == SLICE ? slice : uuids[number(device) - 1], size);
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    *count = 2;
    return number(device) == SLICED ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **mig) {
    *mig = handle(SLICE);
    return index ? NOT_FOUND : OK;
}

int nvmlDeviceGetFieldValues(void *device, int count, field_t *fields) {
    struct timeval now;
    gettimeofday(&now, 0);
    for (int i = 0; i < count; i++) {
        fields[i].stamp = now.tv_sec * 1000000LL + now.tv_usec - 30000; /* 30 ms ago */
        fields[i].result = fields[i].field == INSTANT ? power_error : NOT_SUPPORTED;
        fields[i].value = power_mw;
    }
    return OK;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = average_mw; return average_error; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) { *mj = energy_mj; return energy_error; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { *mw = 700000; return OK; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) { *celsius = 41; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *mask) { *mask = reasons; return OK; }

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
    unsigned room = *count;
    *count = process_count;
    return room < *count ? SMALL : OK;
}

int nvmlGpmQueryDeviceSupport(void *device, uint32_t *support) { support[1] = 1; return OK; }
/* What monitors count: it goes on at a rate until `fake_moves` sets another; a sample is how far it has come. */
typedef struct { double s, dram_percent_s, nvlink_mib; } moved_t;
static moved_t moved;
static double dram_percent = 10, nvlink_mib_s = -1; /* below 0: not supported */

static moved_t *move(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    double now = t.tv_sec + t.tv_nsec / 1e9, lasted = moved.s ? now - moved.s : 0;
    moved.dram_percent_s += lasted * dram_percent;
    moved.nvlink_mib += lasted * nvlink_mib_s;
    moved.s = now;
    return &moved;
}

void fake_moves(double percent, double mib_s) { move(); dram_percent = percent; nvlink_mib_s = mib_s; }
int nvmlGpmSampleAlloc(void **sample) { *sample = calloc(1, sizeof(moved_t)); return OK; }
int nvmlGpmSampleFree(void *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(void *device, void *sample) { *(moved_t *)sample = *move(); return gpm_error; }

int nvmlGpmMetricsGet(question_t *question) {
    if (!question->version || !question->first || !question->second) return INVALID;
    const moved_t *a = question->first, *b = question->second;
    for (uint32_t i = 0; i < question->count; i++) {
        metric_t *metric = &question->metrics[i];
        metric->result = metric->id >= NVLINK_RX && nvlink_mib_s < 0 ? NOT_SUPPORTED : OK;
        metric->value = metric->id == DRAM ? (b->dram_percent_s - a->dram_percent_s) / (b->s - a->s)
            : metric->id == NVLINK_RX ? (b->nvlink_mib - a->nvlink_mib) / (b->s - a->s)
            : metric->id > NVLINK_RX ? 0 : metric->id;
    }
    return OK;
}
