/*
 * The kernels that this process has loaded: this follows custom_op.c.  Their numbers are addresses.
 */
#include <sys/mman.h>

static Launch pool;

void einnet_pool(Launch launch) { pool = launch; }

static int launch_outside(Task task, void *data, int tasks) { return pool(task, data, tasks); }
static const char *machine_refusal(void) { return NULL; }
static Entry kernel_entry(int64_t number) { return (Entry)(uintptr_t)number; }

/* Move a weight into large pages where the system has them: a kernel that reads megabytes of weights from small ones
 * waits for the translation of their addresses. */
static const void *hold_weight(const void *place, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    enum { LARGE_PAGE = 2 << 20, COLLAPSE = 25 /* MADV_COLLAPSE, from Linux 6.1 on; else a daemon does it later */ };
    const uintptr_t start = ((uintptr_t)place + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    const uintptr_t stop = ((uintptr_t)place + bytes) / LARGE_PAGE * LARGE_PAGE;
    if (stop > start) {
        madvise((void *)start, stop - start, MADV_HUGEPAGE);
        madvise((void *)start, stop - start, COLLAPSE);
    }
#else
    (void)bytes;
#endif
    return place;
}

static void release_weight(const void *place) { (void)place; }
