/*
 * The kernels of a bundle, found in its own library: this follows custom_op.c and a table that is written for each
 * bundle (onnx_fragment.py).  The table defines KERNELS, the instruction sets for which each kernel was compiled in
 * order of preference, and `supports`, which asks the processor.
 */
#include <sys/mman.h>

static int chosen = -1;

static const char *machine_refusal(void)
{
    for (int n = 0; n < SETS; n++)
        if (supports(n)) {
            chosen = n;
            return NULL;
        }
    return "the kernels of this model were compiled for " SET_NAMES ", and this processor has none of these";
}

static Entry kernel_entry(int64_t number)
{
    for (size_t n = 0; n < KERNELS; n++)
        if (kernels[n].number == number) return kernels[n].entries[chosen];
    return NULL;
}

/* Large weights are copied into large pages where the system has them: sessions map them from a file in small ones, and
 * a kernel that reads megabytes from these waits for the translation of their addresses.  Equal weights, of all nodes
 * and sessions, are one copy. */
enum { LARGE_PAGE = 2 << 20 };
typedef struct Weight { struct Weight *next; void *data; size_t bytes, uses; } Weight;
static Weight *weights;
static char weights_locked; /* sessions may be opened and closed in several threads */

static void lock_weights(void)
{
    while (__atomic_test_and_set(&weights_locked, __ATOMIC_ACQUIRE)) sched_yield();
}

static void unlock_weights(void) { __atomic_clear(&weights_locked, __ATOMIC_RELEASE); }

/* A copy of a weight; NULL if there is no memory for it. */
static Weight *copy_weight(const void *place, size_t bytes)
{
    Weight *made = malloc(sizeof *made);
    void *data;
    if (!made || posix_memalign(&data, LARGE_PAGE, bytes)) {
        free(made);
        return NULL;
    }
    madvise(data, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
    memcpy(data, place, bytes);
    *made = (Weight){weights, data, bytes, 0};
    return weights = made;
}

static const void *hold_weight(const void *place, size_t bytes)
{
    if (bytes < LARGE_PAGE) return place;
    lock_weights();
    Weight *w = weights;
    while (w && (w->bytes != bytes || memcmp(w->data, place, bytes))) w = w->next;
    if (!w) w = copy_weight(place, bytes);
    if (w) w->uses++;
    unlock_weights();
    return w ? w->data : place;
}

static void release_weight(const void *place)
{
    lock_weights();
    Weight **at = &weights, *w;
    while ((w = *at) && w->data != place) at = &w->next;
    if (w && !--w->uses) {
        *at = w->next;
        free(w->data);
        free(w);
    }
    unlock_weights();
}

static int launch_outside(Task task, void *data, int tasks) { (void)task, (void)data, (void)tasks; return -1; }

/* Functions that compiled kernels call, by the names that TVM gives them. */
int (*__TVMBackendParallelLaunch)(Task, void *, int) = einnet_launch;

static void *take(int device, int id, uint64_t bytes, int code, int bits)
{
    (void)device, (void)id, (void)code, (void)bits;
    return running ? take_memory(running->api, session, bytes) : NULL;
}

static int give(int device, int id, void *place)
{
    (void)device, (void)id;
    give_memory(place);
    return 0;
}

void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = take;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = give;

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count)
{
    size_t used = (size_t)snprintf(fault, sizeof fault, "%s: ", kind);
    for (int32_t n = 0; n < count && used < sizeof fault; n++)
        used += (size_t)snprintf(fault + used, sizeof fault - used, "%s", parts[n] ? parts[n] : "");
}
