/* A stand-in for libnvidia-ml.so.1: the few calls that fans and proofs need, with nvml.h's signatures.
 *
 * $FAKE_NVML holds, for GPU g and fan f:
 *   cards            a line for each GPU: FANS LOWEST HIGHEST; FANS -1 answers "not supported"
 *   memory-g         UUID FREE_MIB; without it the calls fail
 *   temperature-g    degrees; without it the call fails
 *   fan-g-f          written: "auto" or the percent
 *   calls            appended: every call that sets something
 *   stuck-f          SetDefaultFanSpeed of fan f fails
 *   hang             a temperature is never answered
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, LOST = 15 };

static FILE *open_state(const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    return fopen(path, mode);
}

static int exists(const char *name) {
    FILE *file = open_state(name, "r");
    if (file) fclose(file);
    return file != NULL;
}

static int card(unsigned wanted, int *fans, unsigned *lowest, unsigned *highest) {
    FILE *file = open_state("cards", "r");
    int f; unsigned l, h, index = 0, count = 0;
    while (file && fscanf(file, "%d %u %u", &f, &l, &h) == 3) {
        if (index++ == wanted) { *fans = f; *lowest = l; *highest = h; }
        count++;
    }
    if (file) fclose(file);
    return (int)count;
}

static unsigned index_of(void *device) { return (unsigned)((size_t)device - 1); }

static int set(void *device, unsigned fan, const char *value) {
    char name[64], path[4096], new_path[4096];
    snprintf(name, sizeof name, "fan-%u-%u", index_of(device), fan);
    /* Renamed: a test that reads meanwhile must not see an empty file. */
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_NVML"), name);
    snprintf(new_path, sizeof new_path, "%s/.%s", getenv("FAKE_NVML"), name);
    FILE *file = fopen(new_path, "w");
    fprintf(file, "%s", value);
    fclose(file);
    rename(new_path, path);
    file = open_state("calls", "a");
    fprintf(file, "%s %s\n", name, value);
    fclose(file);
    return SUCCESS;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == LOST ? "GPU is lost" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int fans; unsigned l, h;
    *count = (unsigned)card(~0u, &fans, &l, &h);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetNumFans(void *device, unsigned *count) {
    int fans = -1; unsigned l, h;
    card(index_of(device), &fans, &l, &h);
    if (fans < 0) return NOT_SUPPORTED;
    *count = (unsigned)fans;
    return SUCCESS;
}

int nvmlDeviceGetMinMaxFanSpeed(void *device, unsigned *lowest, unsigned *highest) {
    int fans;
    card(index_of(device), &fans, lowest, highest);
    return SUCCESS;
}

static int memory(void *device, char *uuid, unsigned long long *mib) {
    char name[64];
    snprintf(name, sizeof name, "memory-%u", index_of(device));
    FILE *file = open_state(name, "r");
    int read = file ? fscanf(file, "%95s %llu", uuid, mib) : 0;
    if (file) fclose(file);
    return read == 2 ? SUCCESS : LOST;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    unsigned long long mib;
    return length < 96 ? INVALID : memory(device, uuid, &mib);
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *total_free_used) {
    char uuid[96]; unsigned long long mib;
    int code = memory(device, uuid, &mib);
    if (code == SUCCESS) total_free_used[1] = mib << 20;
    return code;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    char name[64];
    if (sensor != 0) return INVALID;
    while (exists("hang")) usleep(10000);
    snprintf(name, sizeof name, "temperature-%u", index_of(device));
    FILE *file = open_state(name, "r");
    int read = file ? fscanf(file, "%u", degrees) : 0;
    if (file) fclose(file);
    return read == 1 ? SUCCESS : LOST;
}

int nvmlDeviceSetFanSpeed_v2(void *device, unsigned fan, unsigned percent) {
    int fans; unsigned lowest, highest; char value[16];
    card(index_of(device), &fans, &lowest, &highest);
    if ((int)fan >= fans || percent < lowest || percent > highest) return INVALID;
    snprintf(value, sizeof value, "%u", percent);
    return set(device, fan, value);
}

int nvmlDeviceSetDefaultFanSpeed_v2(void *device, unsigned fan) {
    char name[64];
    snprintf(name, sizeof name, "stuck-%u", fan);
    return exists(name) ? LOST : set(device, fan, "auto");
}
