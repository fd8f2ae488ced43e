/* Stands in for libcupti: hands out records as CUDA 13.0 lays them out (kernel10, memcpy6, memcpyPtoP4, memset4, api). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void (*requested_t)(uint8_t **, size_t *, size_t *);
typedef void (*completed_t)(void *, uint32_t, uint8_t *, size_t, size_t);

static requested_t requested;
static completed_t completed;
static int enabled[64];
static uint64_t base;
static const uint64_t AHEAD = 7000000000ull;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec + AHEAD;
}

static int size_of(int32_t kind) {
    switch (kind) {
    case 1: return 96;
    case 2: return 88;
    case 4: case 5: return 40;
    case 10: return 216;
    case 22: return 96;
    case 39: return 24;
    }
    return 0;
}

#ifndef WITHOUT_REGISTER
int cuptiActivityRegisterCallbacks(requested_t r, completed_t c) { requested = r; completed = c; return 0; }
#endif
int cuptiGetTimestamp(uint64_t *t) { *t = now(); return 0; }
int cuptiGetResultString(int result, const char **text) {
    *text = result == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR_UNKNOWN";
    return 0;
}
int cuptiActivityEnable(int kind) {
    const char *holder = getenv("FAKE_CUPTI_HELD");
    if (holder && kind == atoi(holder)) return 39;
    const char *unknown = getenv("FAKE_CUPTI_UNKNOWN_KIND");
    if (unknown && kind == atoi(unknown)) return 21;
    if (!base) base = now();
    enabled[kind] = 1;
    return 0;
}
int cuptiActivityDisable(int kind) { enabled[kind] = 0; return 0; }
int fake_enabled(int kind) { return enabled[kind]; }
uint64_t fake_base(void) { return base; }
#ifndef WITHOUT_EXTRAS
static uint64_t pushed[8];
static int depth;
int cuptiActivityPushExternalCorrelationId(int kind, uint64_t id) { pushed[depth++] = kind == 5 ? id : 0; return 0; }
int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last) { *last = pushed[--depth]; return 0; }
int fake_depth(void) { return depth; }
uint64_t fake_last(void) { return pushed[0]; }
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    const char *lost = getenv("FAKE_CUPTI_DROPPED");
    *dropped = lost ? atoi(lost) : 0;
    return 0;
}
#endif

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
    uint8_t *next = *record ? *record + size_of(*(int32_t *)*record) : buffer;
    if (next >= buffer + valid) return 13; /* CUPTI_ERROR_MAX_LIMIT_REACHED */
    *record = next;
    return 0;
}

static uint8_t *put(uint8_t *at, int32_t kind, uint64_t start, uint64_t end, uint32_t stream, uint32_t correlation,
                    const char *name, uint64_t node) {
    memset(at, 0xAB, size_of(kind)); /* what nobody reads is not 0 */
    *(int32_t *)at = kind;
    uint32_t device = 0;
    if (kind == 39) { /* `start` is the external id, `end` whose it is */
        *(uint32_t *)(at + 4) = end;
        *(uint64_t *)(at + 8) = start;
        *(uint32_t *)(at + 16) = correlation;
        return at + size_of(kind);
    }
    if (kind == 4 || kind == 5) {
        *(uint64_t *)(at + 8) = base + start;
        *(uint64_t *)(at + 16) = base + end;
        *(uint32_t *)(at + 32) = correlation;
        return at + size_of(kind);
    }
    *(uint64_t *)(at + 16) = base + start;
    *(uint64_t *)(at + 24) = base + end;
    int kernel = kind == 10, peers = kind == 22;
    *(uint32_t *)(at + (kernel ? 40 : 32)) = device;
    *(uint32_t *)(at + (kernel ? 48 : 40)) = stream;
    *(uint32_t *)(at + (kernel ? 92 : peers ? 60 : 44)) = correlation;
    *(uint64_t *)(at + (kernel ? 144 : peers ? 72 : 64)) = node;
    if (kernel) {
        *(const char **)(at + 104) = name;
        *(int32_t *)(at + 52) = 11; /* blocks */
        *(int32_t *)(at + 56) = 3;
        *(int32_t *)(at + 60) = 1;
    }
    return at + size_of(kind);
}

int cuptiActivityFlushAll(uint32_t flag) {
    if (flag != 1) return 1;
    for (int part = 0; part < 2; part++) {
        uint8_t *buffer;
        size_t size, most;
        requested(&buffer, &size, &most);
        uint8_t *at = buffer;
        if (part == 0) {
            at = put(at, 5, 1000, 2000, 0, 11, 0, 0);
            at = put(at, 10, 10000, 15500, 7, 11, "gemm", 0);
            at = put(at, 4, 3000, 4000, 0, 12, 0, 0);
            at = put(at, 10, 16000, 30000, 20, 12, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0);
        } else {
            at = put(at, 1, 31000, 32000, 7, 13, 0, 0);
            at = put(at, 2, 33000, 33500, 7, 14, 0, 0);
            at = put(at, 22, 34000, 34600, 7, 16, 0, 0);
            at = put(at, 10, 40000, 41000, 7, 15, "gemm", 77);
            if (enabled[39]) { /* comes after what it speaks of */
                at = put(at, 39, 5, 4, 0, 11, 0, 0); /* of torch's profiler, not ours */
                at = put(at, 39, 123456789012345, 5, 0, 11, 0, 0);
                at = put(at, 39, 123456789099999, 5, 0, 15, 0, 0);
            }
        }
        completed(0, 0, buffer, size, at - buffer);
    }
    uint8_t *empty;
    size_t size, most;
    requested(&empty, &size, &most);
    completed(0, 0, empty, size, 0);
    return 0;
}

int cuptiGetVersion(uint32_t *version) { *version = 130001; return 0; }
