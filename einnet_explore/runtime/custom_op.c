/*
 * A custom operator of ONNX Runtime that runs a compiled kernel, so that a whole program is one session.
 *
 * The kernel is a function of TVM's packed calling convention, given as an address; where it wants threads it gets
 * those of the session that runs it.  ONNX Runtime's and TVM's headers are not needed: what is used of their C
 * interfaces is declared here, and neither may change it (ONNX Runtime only ever appends to its table of functions,
 * TVM FFI's structures are its ABI).
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, FLOAT = 1, VARIADIC = 2, TENSOR = 7, CPU = 1, FAILED = 1 };

/* OrtApi: functions by their place in the table of version 17. */
typedef void *Status;
typedef const void *const *Api;
enum {
    VERSION = 17, CREATE_STATUS = 0, CREATE_DOMAIN = 26, ADD_TO_DOMAIN = 27, ADD_DOMAIN = 28, TENSOR_DATA = 51,
    INTEGER = 86, INPUT = 90, OUTPUT = 91, RELEASE_STATUS = 93, INTEGERS = 163, PARALLEL_FOR = 274
};
typedef struct { Api (*get_api)(uint32_t); const char *(*get_version)(void); } Base;

/* DLTensor, TVMFFIAny, TVMFFISafeCallType, TVMParallelGroupEnv and FTVMParallelLambda. */
typedef struct {
    void *data;
    int32_t device, device_id, rank;
    struct { uint8_t code, bits; uint16_t lanes; } type;
    const int64_t *shape, *strides;
    uint64_t offset;
} Tensor;
typedef struct { int32_t type; uint32_t zero; union { int64_t number; void *pointer; } value; } Any;
typedef int (*Entry)(void *, const Any *, int32_t, Any *);
typedef struct { void *sync; int32_t tasks; } Group;
typedef int (*Task)(int, Group *, void *);
typedef int (*Launch)(Task, void *, int);

/* What a node knows: dims holds, one after the other, the shapes of the arguments as the kernel sees them. */
typedef struct {
    Api api;
    Entry entry;
    int64_t threads, arguments, out_rank;
    int64_t *out_shape, *ranks, *dims;
    int64_t numbers[];
} Kernel;

static _Thread_local const Kernel *running;
static _Thread_local const void *session;
static Launch pool;

typedef struct { Task task; void *data; Group group; int failed; } Job;

static void one_task(void *job, size_t n)
{
    Job *j = job;
    Group group = j->group;
    if (j->task((int)n, &group, j->data)) j->failed = 1;
}

/* What kernels call to be run by several threads, in place of TVMBackendParallelLaunch. */
int einnet_launch(Task task, void *data, int tasks)
{
    if (!running) return pool(task, data, tasks);
    Job job = {task, data, {NULL, tasks ? tasks : (int32_t)running->threads}, 0};
    Status (*each)(const void *, void (*)(void *, size_t), size_t, size_t, void *) = running->api[PARALLEL_FOR];
    Status status = each(session, one_task, (size_t)job.group.tasks, 0, &job);
    if (status) ((void (*)(Status))running->api[RELEASE_STATUS])(status);
    return status || job.failed ? -1 : 0;
}

/* What runs kernels that are called outside of a session. */
void einnet_pool(Launch launch) { pool = launch; }

static Status refusal(Api api, const char *why)
{
    return ((Status(*)(int, const char *))api[CREATE_STATUS])(FAILED, why);
}

static Status create(const void *op, Api api, const void *info, void **out)
{
    Status (*integer)(const void *, const char *, int64_t *) = api[INTEGER];
    Status (*integers)(const void *, const char *, int64_t *, size_t *) = api[INTEGERS];
    int64_t entry, threads;
    size_t count = 0;
    Status status;
    (void)op;
    if ((status = integer(info, "entry", &entry)) || (status = integer(info, "threads", &threads))) return status;
    if ((status = integers(info, "shapes", NULL, &count))) return status;
    Kernel *k = malloc(sizeof *k + count * sizeof(int64_t));
    if (!k) return refusal(api, "no memory for a kernel");
    if ((status = integers(info, "shapes", k->numbers, &count))) { free(k); return status; }
    /* shapes: how many arguments, the rank of each, all their dimensions, and the result's shape for ONNX. */
    k->api = api;
    k->entry = (Entry)(uintptr_t)entry;
    k->threads = threads;
    k->arguments = k->numbers[0];
    k->ranks = k->numbers + 1;
    k->dims = k->ranks + k->arguments;
    k->out_shape = k->dims;
    for (int64_t n = 0; n < k->arguments; n++) k->out_shape += k->ranks[n];
    k->out_rank = (int64_t)(k->numbers + count - k->out_shape);
    *out = k;
    return NULL;
}

static Status compute(void *kernel, void *context)
{
    const Kernel *k = kernel;
    Api api = k->api;
    Status (*input)(const void *, size_t, void **) = api[INPUT];
    Status (*output)(void *, size_t, const int64_t *, size_t, void **) = api[OUTPUT];
    Status (*data)(void *, void **) = api[TENSOR_DATA];
    const int64_t last = k->arguments - 1, *shape = k->dims;
    Tensor tensors[k->arguments];
    Any arguments[k->arguments], result = {0, 0, {0}};
    void *aligned[k->arguments], *place = NULL;
    size_t bytes = 0;
    Status status = NULL;

    memset(aligned, 0, sizeof aligned);
    for (int64_t n = 0; n <= last; n++) {
        void *value;
        status = n < last ? input(context, (size_t)n, &value)
                          : output(context, 0, k->out_shape, (size_t)k->out_rank, &value);
        if (status || (status = data(value, &place))) goto done;
        bytes = sizeof(float);
        for (int64_t d = 0; d < k->ranks[n]; d++) bytes *= (size_t)shape[d];
        tensors[n] = (Tensor){place, CPU, 0, (int32_t)k->ranks[n], {2, 32, 1}, shape, NULL, 0};
        arguments[n] = (Any){TENSOR, 0, {.pointer = &tensors[n]}};
        shape += k->ranks[n];
        if ((uintptr_t)place % ALIGNMENT == 0 || bytes == 0) continue;
        /* The caller's own memory lies anywhere; kernels take it as aligned. */
        aligned[n] = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
        if (!aligned[n]) { status = refusal(api, "no memory for an aligned copy"); goto done; }
        if (n < last) memcpy(aligned[n], place, bytes);
        tensors[n].data = aligned[n];
    }
    running = k;
    session = context;
    if (k->entry(NULL, arguments, (int32_t)k->arguments, &result)) status = refusal(api, "a compiled kernel failed");
    running = NULL;
    if (!status && aligned[last]) memcpy(place, aligned[last], bytes);
done:
    for (int64_t n = 0; n <= last; n++) free(aligned[n]);
    return status;
}

static const char *name(const void *op) { (void)op; return "Kernel"; }
static const char *any_provider(const void *op) { (void)op; return NULL; }
static int type(const void *op, size_t n) { (void)op, (void)n; return FLOAT; }
static size_t one(const void *op) { (void)op; return 1; }
static int variadic(const void *op, size_t n) { (void)op, (void)n; return VARIADIC; }
static int required(const void *op, size_t n) { (void)op, (void)n; return 0; }
static int on_cpu(const void *op, size_t n) { (void)op, (void)n; return 0; }
static int none(const void *op) { (void)op; return 0; }
static int yes(const void *op) { (void)op; return 1; }
static int newest(const void *op) { (void)op; return INT32_MAX; }

/* OrtCustomOp as of version 17. */
static const struct {
    uint32_t version;
    void *(*create)(const void *, Api, const void *);
    const char *(*name)(const void *), *(*provider)(const void *);
    int (*input_type)(const void *, size_t);
    size_t (*inputs)(const void *);
    int (*output_type)(const void *, size_t);
    size_t (*outputs)(const void *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*input_kind)(const void *, size_t), (*output_kind)(const void *, size_t), (*memory)(const void *, size_t);
    int (*least_inputs)(const void *), (*same_inputs)(const void *);
    int (*least_outputs)(const void *), (*same_outputs)(const void *);
    Status (*create_2)(const void *, Api, const void *, void **);
    Status (*compute_2)(void *, void *);
    Status (*infer)(const void *, void *);
    int (*first_version)(const void *), (*last_version)(const void *);
    void *later[8];
} operator = {
    VERSION, NULL, name, any_provider, type, one, type, one, NULL, free, variadic, required, on_cpu,
    none, yes, yes, yes, create, compute, NULL, yes, newest, {NULL},
};

/* ONNX Runtime calls this when the library is registered with a session's options. */
Status RegisterCustomOps(void *options, const Base *base)
{
    static void *domain;
    Api api = base->get_api(VERSION);
    Status status;
    if (!domain) {
        if ((status = ((Status(*)(const char *, void **))api[CREATE_DOMAIN])("einnet", &domain))) return status;
        if ((status = ((Status(*)(void *, const void *))api[ADD_TO_DOMAIN])(domain, &operator))) return status;
    }
    return ((Status(*)(void *, void *))api[ADD_DOMAIN])(options, domain);
}
