/* A stand-in for NVIDIA's management library, loaded by its bindings as the real one would be: four GPUs whose
   readings the environment dictates at every call.

   FAKE_REFUSE  name=code,...   these calls answer this code
   FAKE_HANG    name            this call takes two seconds
   FAKE_STALL   name            this call takes two seconds by fake_stalled_us, which is added to FAKE_NOW_US
   FAKE_LOG     file            every init and shutdown is written there
   FAKE_PID     number          the first process of the list; "parent" for the one that started this one
   FAKE_<X>     number          a reading, over its default */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, WRONG_VERSION = 25 };
enum { GPUS = 4, SAMPLE_US = 50000, KEPT = 100, APART_US = 100000 };
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { int index, slice; } gpu;
typedef union { double d; u32 u; unsigned long ul; u64 ull; } value;
static gpu cards[GPUS] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}}, slice_of_2 = {2, 1};

static u64 dictated(const char *name, u64 otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

u64 fake_stalled_us;
static u64 now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return fake_stalled_us + dictated("FAKE_NOW_US", t.tv_sec * 1000000ull + t.tv_nsec / 1000);
}

static int enter(const char *name) {
    const char *hang = getenv("FAKE_HANG"), *stall = getenv("FAKE_STALL"), *refuse = getenv("FAKE_REFUSE");
    size_t length = strlen(name);
    if (hang && !strcmp(hang, name)) sleep(2);
    if (stall && !strcmp(stall, name)) fake_stalled_us += 2000000;
    for (const char *at = refuse; at && (at = strstr(at, name)); at += length)
        if ((at == refuse || at[-1] == ',') && at[length] == '=') return atoi(at + length + 1);
    return OK;
}
#define ENTER do { int code_ = enter(__func__); if (code_) return code_; } while (0)

static int note(const char *what) {
    const char *path = getenv("FAKE_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (log) { fprintf(log, "%s\n", what); fclose(log); }
    return OK;
}
static int copy(char *to, u32 size, const char *text) { snprintf(to, size, "%s", text); return OK; }
static int slice(gpu *g) { return g->slice; }
static u32 busy(gpu *g) { return (u32)dictated("FAKE_BUSY", 10 * (g->index + 1)); }

int nvmlInitWithFlags(u32 flags) { (void)flags; ENTER; return note("init"); }
int nvmlShutdown(void) { ENTER; return note("shutdown"); }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }
int nvmlSystemGetDriverVersion(char *to, u32 size) { ENTER; return copy(to, size, "580.65.06"); }
int nvmlSystemGetNVMLVersion(char *to, u32 size) { ENTER; return copy(to, size, "13.580.65.06"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER; *version = 13010; return OK; }

int nvmlDeviceGetCount_v2(u32 *count) { ENTER; *count = GPUS; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, gpu **g) {
    ENTER;
    if (index >= GPUS) return INVALID;
    *g = &cards[index];
    return OK;
}
static void name_of(gpu *g, char *to, u32 size) {
    const char *kind = slice(g) ? "MIG" : "GPU";
    snprintf(to, size, "%s-0000000%d-aaaa-bbbb-cccc-dddddddddddd", kind, g->index);
}
int nvmlDeviceGetUUID(gpu *g, char *to, u32 size) { ENTER; name_of(g, to, size); return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, gpu **g) {
    ENTER;
    for (int i = dictated("FAKE_ONLY_SLICE", 0) ? GPUS : 0; i <= GPUS; i++) {
        char own[64];
        *g = i < GPUS ? &cards[i] : &slice_of_2;
        name_of(*g, own, sizeof own);
        if (!strcmp(own, uuid)) return OK;
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, gpu **g) {
    ENTER;
    int bus = -1;
    if (sscanf(id, "0000:%x:00.0", (u32 *)&bus) != 1 || bus < 1 || bus > GPUS) return NOT_FOUND;
    *g = &cards[GPUS - bus];  /* the bus counts them the other way round */
    return OK;
}
int nvmlDeviceGetName(gpu *g, char *to, u32 size) {
    ENTER;
    return copy(to, size, slice(g) ? "Fake GPU MIG 1g" : "Fake GPU");
}
int nvmlDeviceIsMigDeviceHandle(gpu *g, u32 *is) { ENTER; *is = g->slice; return OK; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu *g, gpu **card) {
    ENTER;
    *card = &cards[g->index];
    return OK;
}
int nvmlDeviceGetMigMode(gpu *g, u32 *now, u32 *next) {
    (void)g; ENTER;
    *now = *next = dictated("FAKE_MIG", 0);
    return OK;
}
int nvmlDeviceGetGpuInstanceId(gpu *g, u32 *id) { ENTER; *id = 7; return slice(g) ? OK : NOT_SUPPORTED; }

int nvmlDeviceGetMemoryInfo(gpu *g, u64 *total_free_used) {
    ENTER;
    total_free_used[0] = slice(g) ? 16000000000 : 140000000000;
    total_free_used[1] = 0;
    total_free_used[2] = 3000000000;
    return OK;
}
typedef struct { u32 version; u64 total, reserved, free, used; } memory;
int nvmlDeviceGetMemoryInfo_v2(gpu *g, memory *m) {
    (void)g; ENTER;
    if (m->version != (sizeof *m | 2u << 24)) return WRONG_VERSION;
    m->used = 2000000000;
    return OK;
}
int nvmlDeviceGetUtilizationRates(gpu *g, u32 *gpu_memory) {
    ENTER;
    if (slice(g)) return NOT_SUPPORTED;
    gpu_memory[0] = busy(g);
    gpu_memory[1] = busy(g) / 2;
    return OK;
}
typedef struct { u64 stamp; value v; } sample;
int nvmlDeviceGetSamples(gpu *g, u32 kind, u64 seen, u32 *type, u32 *count, sample *samples) {
    ENTER;
    u64 last = now_us() / SAMPLE_US, first = last - KEPT;
    if (slice(g)) return NOT_SUPPORTED;
    if (seen / SAMPLE_US + 1 > first) first = seen / SAMPLE_US + 1;
    *type = 1;
    if (first > last) return NOT_FOUND;
    if (!samples) { *count = KEPT + 1; return OK; }
    for (*count = 0; first + *count <= last; ++*count) {
        samples[*count].stamp = (first + *count) * SAMPLE_US;
        samples[*count].v.u = kind == 1 ? busy(g) : busy(g) / 2;
    }
    return OK;
}
typedef struct { u32 id, scope; long long stamp, latency; u32 type; int code; value v; } field;
int nvmlDeviceGetFieldValues(gpu *g, int count, field *f) {
    ENTER;
    for (int i = 0; i < count; i++) {
        f[i].code = f[i].id == 186 && !slice(g) ? (int)dictated("FAKE_FIELD_CODE", OK) : NOT_SUPPORTED;
        f[i].type = 1;
        f[i].v.u = (u32)dictated("FAKE_POWER", 300000);
    }
    return OK;
}
int nvmlDeviceGetPowerUsage(gpu *g, u32 *milliwatts) {
    ENTER;
    *milliwatts = 250000;
    return slice(g) ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetTotalEnergyConsumption(gpu *g, u64 *millijoules) {
    ENTER;
    *millijoules = dictated("FAKE_ENERGY", 0);
    return slice(g) ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetClockInfo(gpu *g, u32 kind, u32 *mhz) {
    ENTER;
    *mhz = kind == 1 ? (u32)dictated("FAKE_CLOCK", 1980) : 3201;
    return slice(g) ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetTemperature(gpu *g, u32 sensor, u32 *celsius) {
    (void)g, (void)sensor; ENTER;
    *celsius = 61;
    return OK;
}
static int reasons(u64 *bits) { *bits = dictated("FAKE_REASONS", 0); return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(gpu *g, u64 *bits) { (void)g; ENTER; return reasons(bits); }
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu *g, u64 *bits) { (void)g; ENTER; return reasons(bits); }
int nvmlDeviceGetPcieThroughput(gpu *g, u32 counter, u32 *kilobytes) {
    (void)g; ENTER;
    *kilobytes = counter ? 5 : 2;
    return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(gpu *g, u32 *milliwatts) { (void)g; ENTER; *milliwatts = 700000; return OK; }

typedef struct { u32 pid; u64 used; u32 instance, compute; } process;
static u32 first_pid(void) {
    const char *named = getenv("FAKE_PID");
    return named && !strcmp(named, "parent") ? (u32)getppid() : (u32)dictated("FAKE_PID", 100000);
}
static int list(u32 *count, process *p) {
    u32 there = (u32)dictated("FAKE_PROCESSES", 1), room = *count;
    *count = there;
    if (there > room) return TOO_SMALL;
    u32 shown = there - (u32)dictated("FAKE_HIDDEN", 0);  /* the last ones have no id */
    for (u32 i = 0; i < there; i++) p[i].pid = i < shown ? first_pid() + i : 0;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(gpu *g, u32 *n, process *p) { (void)g; ENTER; return list(n, p); }
int nvmlDeviceGetComputeRunningProcesses_v2(gpu *g, u32 *n, process *p) { (void)g; ENTER; return list(n, p); }

typedef struct { u32 version, supported; } support;
int nvmlGpmQueryDeviceSupport(gpu *g, support *s) {
    (void)g; ENTER;
    if (s->version != 1) return WRONG_VERSION;
    s->supported = (u32)dictated("FAKE_GPM", 1);
    return OK;
}
static int gpm_instance;
int nvmlGpmSampleAlloc(u64 **s) { ENTER; *s = calloc(1, sizeof **s); return OK; }
int nvmlGpmSampleFree(u64 *s) { ENTER; free(s); return OK; }
static int sampled(u64 *s, int instance) { gpm_instance = instance; *s = now_us(); return OK; }
int nvmlGpmSampleGet(gpu *g, u64 *s) { ENTER; return slice(g) ? NOT_SUPPORTED : sampled(s, 0); }
int nvmlGpmMigSampleGet(gpu *g, u32 id, u64 *s) { (void)g; ENTER; return sampled(s, (int)id); }
typedef struct { u32 id; int code; double v; const char *info[3]; } metric;
typedef struct { u32 version, count; u64 *first, *second; metric metrics[]; } metrics;
int nvmlGpmMetricsGet(metrics *m) {
    ENTER;
    if (m->version != 1 || !*m->first || !*m->second) return WRONG_VERSION;
    if (*m->second < *m->first + APART_US) return INVALID;
    for (u32 i = 0; i < m->count; i++) {
        m->metrics[i].code = m->metrics[i].id == dictated("FAKE_GPM_WITHOUT", 0) ? NOT_SUPPORTED : OK;
        m->metrics[i].v = m->metrics[i].id + 0.5 + gpm_instance;
    }
    return OK;
}
