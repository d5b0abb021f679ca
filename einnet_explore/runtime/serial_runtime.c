/* What kernels call of TVM's runtime, where that is missing: one thread, and memory of the C library. */
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    void *sync;
    int32_t tasks;
} Group;

int TVMFFIEnvModRegisterContextSymbol(const char *name, void *symbol);

static int launch(int (*task)(int, Group *, void *), void *data, int tasks)
{
    (void)tasks;
    Group alone = {NULL, 1};
    return task(0, &alone, data);
}

static void *take(int device, int id, uint64_t bytes, int code, int bits)
{
    (void)device, (void)id, (void)code, (void)bits;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static int give(int device, int id, void *place)
{
    (void)device, (void)id;
    free(place);
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelLaunch", (void *)launch);
    TVMFFIEnvModRegisterContextSymbol("__TVMBackendAllocWorkspace", (void *)take);
    TVMFFIEnvModRegisterContextSymbol("__TVMBackendFreeWorkspace", (void *)give);
}
