/*
 * The kernels of a bundle, found in its own library: this follows custom_op.c and a table that is written for each
 * bundle (onnx_fragment.py).  The table defines KERNELS, the instruction sets for which each kernel was compiled in
 * order of preference, and `supports`, which asks the processor.
 */
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
