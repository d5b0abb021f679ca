/*
 * A custom operator of ONNX Runtime that runs compiled kernels, so that a whole program is one session.
 *
 * A kernel is a function of TVM's packed calling convention; where it wants threads it gets those of the session that
 * runs it.  A node names its kernel by a number.  The text that follows this one in a library finds kernels by number:
 * by address in this process (loaded_kernels.c), or in the library itself (kernel_library.c).
 *
 * ONNX Runtime's and TVM's headers are not needed: what is used of their C interfaces is declared here, and neither may
 * change it (ONNX Runtime only ever appends to its table of functions, TVM FFI's structures are its ABI).
 */
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, UNDEFINED = 0, VARIADIC = 2, TENSOR = 7, CPU = 1, FAILED = 1, INVALID = 2, MESSAGE = 1024,
       MAX_RANK = 64, MAX_THREADS = 1 << 16 };

/* Element types by their number in ONNX: the name, and the code and bits of DLPack. */
typedef struct { const char *name; uint8_t code, bits; } Element;
static const Element elements[] = {
    [1] = {"float32", 2, 32}, [2] = {"uint8", 1, 8},    [3] = {"int8", 0, 8},      [4] = {"uint16", 1, 16},
    [5] = {"int16", 0, 16},   [6] = {"int32", 0, 32},   [7] = {"int64", 0, 64},    [9] = {"bool", 6, 8},
    [10] = {"float16", 2, 16}, [11] = {"float64", 2, 64}, [12] = {"uint32", 1, 32}, [13] = {"uint64", 1, 64},
    [16] = {"bfloat16", 4, 16},
};
enum { ELEMENTS = sizeof elements / sizeof *elements };

/* OrtApi: functions by their place in the table, which has all but the last from version 17 on. */
typedef void *Status;
typedef const void *const *Api;
enum {
    VERSION = 17, CREATE_STATUS = 0, CREATE_DOMAIN = 26, ADD_TO_DOMAIN = 27, ADD_DOMAIN = 28, TENSOR_DATA = 51,
    ELEMENT_TYPE = 60, RANK = 61, DIMENSIONS = 62, TYPE_AND_SHAPE = 65, ALLOCATE = 75, FREE = 76, MEMORY_OF = 77,
    DEFAULT_ALLOCATOR = 78, INTEGER = 86, INPUT = 90, OUTPUT = 91, RELEASE_STATUS = 93, RELEASE_TYPE_AND_SHAPE = 99,
    RELEASE_DOMAIN = 101, RELEASE_ALLOCATOR = 132, INTEGERS = 163, INPUT_COUNT = 230, INPUT_NAME = 232,
    NODE_NAME = 244, CONSTANT_INPUT = 249, ALLOCATOR = 253, PARALLEL_FOR = 274, SHAPE_REFERENCE = 414
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

typedef struct { int64_t rank; const int64_t *dims; } Shape;

/* A node: the types and shapes of its arguments (the result last) for ONNX, and the shapes as its kernel sees them. */
typedef struct {
    Api api;
    Entry entry;
    int64_t threads;
    size_t arguments;
    Shape *shapes, *views;
    int64_t *types;
    char *node, **inputs;
    const void **weights; /* the data of constant inputs, NULL for others */
} Kernel;

/* These are defined by the text after this one. */
static Entry kernel_entry(int64_t number); /* NULL if there is none of this number */
static const char *machine_refusal(void);  /* why kernels do not run on this processor; NULL if they do */
static int launch_outside(Task task, void *data, int tasks); /* runs tasks of a kernel that no session called */
static const void *hold_weight(const void *place, size_t bytes); /* where the kernel shall read a weight */
static void release_weight(const void *place);

static _Thread_local const Kernel *running;
static _Thread_local const void *session;
/* What a kernel says of its failure. */
static _Thread_local char fault[MESSAGE / 2];

typedef struct { Task task; void *data; Group group; int failed; const Kernel *kernel; const void *session; } Job;

static void one_task(void *job, size_t n)
{
    Job *j = job;
    Group group = j->group;
    const Kernel *outer = running;
    running = j->kernel;
    session = j->session;
    if (j->task((int)n, &group, j->data)) __atomic_store_n(&j->failed, 1, __ATOMIC_RELAXED);
    running = outer;
}

/* What kernels call to be run by several threads, in place of TVMBackendParallelLaunch. */
int einnet_launch(Task task, void *data, int tasks)
{
    if (!running) return launch_outside(task, data, tasks);
    Job job = {task, data, {NULL, tasks ? tasks : (int32_t)running->threads}, 0, running, session};
    Status (*each)(const void *, void (*)(void *, size_t), size_t, size_t, void *) = running->api[PARALLEL_FOR];
    Status status = each(session, one_task, (size_t)job.group.tasks, 0, &job);
    if (status) ((void (*)(Status))running->api[RELEASE_STATUS])(status);
    return status || job.failed ? -1 : 0;
}

/* Memory comes from the session that runs the kernel; ahead of it lies where it came from. */
typedef struct { Api api; void *allocator, *block; } Origin;

static const void *cpu_memory;

static void *take_memory(Api api, const void *context, size_t bytes)
{
    Status (*allocator_of)(const void *, const void *, void **) = api[ALLOCATOR];
    Status (*allocate)(void *, size_t, void **) = api[ALLOCATE];
    Origin origin = {api, NULL, NULL};
    Status status = allocator_of(context, cpu_memory, &origin.allocator);
    if (!status) status = allocate(origin.allocator, bytes + 2 * ALIGNMENT, &origin.block);
    if (status) ((void (*)(Status))api[RELEASE_STATUS])(status);
    if (!origin.block) {
        if (origin.allocator) ((void (*)(void *))api[RELEASE_ALLOCATOR])(origin.allocator);
        return NULL;
    }
    char *place = (char *)origin.block + ALIGNMENT;
    place += -(uintptr_t)place % ALIGNMENT;
    memcpy(place - sizeof origin, &origin, sizeof origin);
    return place;
}

static void give_memory(void *place)
{
    Origin origin;
    if (!place) return;
    memcpy(&origin, (char *)place - sizeof origin, sizeof origin);
    Status status = ((Status(*)(void *, void *))origin.api[FREE])(origin.allocator, origin.block);
    if (status) ((void (*)(Status))origin.api[RELEASE_STATUS])(status);
    ((void (*)(void *))origin.api[RELEASE_ALLOCATOR])(origin.allocator);
}

static Status refuse(Api api, int code, const char *format, ...)
{
    char text[MESSAGE];
    va_list rest;
    va_start(rest, format);
    vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    return ((Status(*)(int, const char *))api[CREATE_STATUS])(code, text);
}

static void destroy(void *kernel)
{
    Kernel *k = kernel;
    for (size_t n = 0; k->inputs && n < k->arguments; n++) free(k->inputs[n]);
    for (size_t n = 0; k->weights && n < k->arguments; n++) release_weight(k->weights[n]);
    free(k->weights);
    free(k->inputs);
    free(k->node);
    free(k->shapes);
    free(k->views);
    free(k->types);
    free(k);
}

/* The shapes in attribute `name`, each as its rank and its dimensions; how many there are in count. */
static Status shapes_of(Api api, const void *info, const char *name, Shape **out, size_t *count)
{
    Status (*integers)(const void *, const char *, int64_t *, size_t *) = api[INTEGERS];
    size_t size = 0, at = 0;
    Status status = integers(info, name, NULL, &size);
    if (status) return status;
    /* As many shapes as numbers would fit; the numbers are kept behind them. */
    Shape *shapes = malloc(size * (sizeof(Shape) + sizeof(int64_t)) + 1);
    if (!shapes) return refuse(api, FAILED, "no memory for a kernel");
    int64_t *numbers = (int64_t *)(shapes + size);
    *out = shapes;
    if ((status = integers(info, name, numbers, &size))) return status;
    for (*count = 0; at < size; ++*count) {
        const int64_t rank = numbers[at++];
        if (rank < 0 || rank >= MAX_RANK || (uint64_t)rank > size - at)
            return refuse(api, INVALID, "attribute %s holds no shapes", name);
        shapes[*count] = (Shape){rank, numbers + at};
        for (int64_t d = 0; d < rank; d++)
            if (numbers[at++] < 0) return refuse(api, INVALID, "attribute %s holds a negative dimension", name);
    }
    return NULL;
}

/* The element types of a kernel's arguments. */
static Status types_of(Kernel *k, const void *info)
{
    Status (*integers)(const void *, const char *, int64_t *, size_t *) = k->api[INTEGERS];
    size_t size = 0;
    Status status = integers(info, "types", NULL, &size);
    if (status) return status;
    if (size != k->arguments)
        return refuse(k->api, INVALID, "attribute types holds %zu types, expected %zu", size, k->arguments);
    if (!(k->types = malloc((size + 1) * sizeof *k->types))) return refuse(k->api, FAILED, "no memory for a kernel");
    if ((status = integers(info, "types", k->types, &size))) return status;
    for (size_t n = 0; n < size; n++)
        if (k->types[n] < 0 || k->types[n] >= ELEMENTS || !elements[k->types[n]].name)
            return refuse(k->api, INVALID, "attribute types holds ONNX type %lld, which no kernel reads",
                          (long long)k->types[n]);
    return NULL;
}

/* The bytes of argument n in a shape; 0 too if they cannot be counted. */
static size_t bytes_of(const Kernel *k, size_t n, Shape shape)
{
    size_t bytes = elements[k->types[n]].bits / 8;
    for (int64_t d = 0; d < shape.rank; d++)
        if (__builtin_mul_overflow(bytes, (size_t)shape.dims[d], &bytes)) return 0;
    return bytes;
}

static Status names_of(Kernel *k, const void *info)
{
    Status (*node)(const void *, char *, size_t *) = k->api[NODE_NAME];
    Status (*input)(const void *, size_t, char *, size_t *) = k->api[INPUT_NAME];
    size_t size = 0;
    Status status = node(info, NULL, &size);
    if (status) return status;
    if (!(k->node = malloc(size + 1))) return refuse(k->api, FAILED, "no memory for a kernel");
    if ((status = node(info, k->node, &size))) return status;
    if (!(k->inputs = calloc(k->arguments, sizeof *k->inputs))) return refuse(k->api, FAILED, "no memory for a kernel");
    for (size_t n = 0; n + 1 < k->arguments; n++) {
        if ((status = input(info, n, NULL, &size))) return status;
        if (!(k->inputs[n] = malloc(size + 1))) return refuse(k->api, FAILED, "no memory for a kernel");
        if ((status = input(info, n, k->inputs[n], &size))) return status;
    }
    return NULL;
}

static Status fill(Kernel *k, const void *info)
{
    Status (*integer)(const void *, const char *, int64_t *) = k->api[INTEGER];
    Status (*input_count)(const void *, size_t *) = k->api[INPUT_COUNT];
    int64_t number;
    size_t views, inputs;
    Status status;
    if ((status = integer(info, "kernel", &number)) || (status = integer(info, "threads", &k->threads)) ||
        (status = shapes_of(k->api, info, "shapes", &k->shapes, &k->arguments)) ||
        (status = shapes_of(k->api, info, "views", &k->views, &views)) || (status = input_count(info, &inputs)))
        return status;
    if (!k->arguments || k->arguments != views || k->arguments != inputs + 1)
        return refuse(k->api, INVALID, "a node with %zu inputs has %zu shapes and %zu views, expected %zu of each",
                      inputs, k->arguments, views, inputs + 1);
    if ((status = names_of(k, info)) || (status = types_of(k, info))) return status;
    if (k->threads < 1 || k->threads > MAX_THREADS)
        return refuse(k->api, INVALID, "node %s: found %lld threads, expected 1 to %d", k->node, (long long)k->threads,
                      MAX_THREADS);
    for (size_t n = 0; n < views; n++)
        if (bytes_of(k, n, k->shapes[n]) != bytes_of(k, n, k->views[n]))
            return refuse(k->api, INVALID, "node %s: the view of argument %zu has another size than its shape", k->node,
                          n);
    if (!(k->entry = kernel_entry(number)))
        return refuse(k->api, INVALID, "node %s: the library has no kernel %lld; it belongs to another model", k->node,
                      (long long)number);
    return NULL;
}

static Status check(const Kernel *k, size_t n, const void *value);

/* Find the constant inputs, whose memory does not change as long as the session lives. */
static Status place_weights(Kernel *k, const void *info)
{
    Status (*constant)(const void *, size_t, int *, const void **) = k->api[CONSTANT_INPUT];
    Status (*data)(const void *, void **) = k->api[TENSOR_DATA];
    if (!(k->weights = calloc(k->arguments, sizeof *k->weights)))
        return refuse(k->api, FAILED, "no memory for a kernel");
    for (size_t n = 0; n + 1 < k->arguments; n++) {
        const void *value = NULL;
        void *place;
        int is_constant = 0;
        Status status = constant(info, n, &is_constant, &value);
        if (status || (is_constant && ((status = check(k, n, value)) || (status = data(value, &place))))) return status;
        if (is_constant) k->weights[n] = hold_weight(place, bytes_of(k, n, k->shapes[n]));
    }
    return NULL;
}

static Status create(const void *op, Api api, const void *info, void **out)
{
    Kernel *k = calloc(1, sizeof *k);
    Status status;
    (void)op;
    if (!k) return refuse(api, FAILED, "no memory for a kernel");
    k->api = api;
    if ((status = fill(k, info)) || (status = place_weights(k, info))) {
        destroy(k);
        return status;
    }
    *out = k;
    return NULL;
}

static void print_shape(char *text, size_t size, Shape shape)
{
    size_t used = 0;
    for (int64_t d = 0; d < shape.rank && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", d ? ", " : "", (long long)shape.dims[d]);
    if (!shape.rank) text[0] = 0;
}

typedef struct { int type; size_t rank; const int64_t *dims; int64_t copy[MAX_RANK]; } Found;

/* Whether ONNX Runtime has SHAPE_REFERENCE, which copies nothing: from 1.24 on. */
static int has_shape_reference;

static Status look(Api api, const void *value, Found *found)
{
    Status (*refer)(const void *, int *, const int64_t **, size_t *) = api[has_shape_reference ? SHAPE_REFERENCE : 0];
    Status (*describe)(const void *, void **) = api[TYPE_AND_SHAPE];
    Status (*type_of)(const void *, int *) = api[ELEMENT_TYPE];
    Status (*rank_of)(const void *, size_t *) = api[RANK];
    Status (*dimensions)(const void *, int64_t *, size_t) = api[DIMENSIONS];
    void *info;
    if (has_shape_reference) return refer(value, &found->type, &found->dims, &found->rank);
    found->dims = found->copy;
    Status status = describe(value, &info);
    if (status) return status;
    if (!(status = type_of(info, &found->type)) && !(status = rank_of(info, &found->rank))) {
        if (found->rank > MAX_RANK) found->rank = MAX_RANK; /* longer than any expected one */
        status = dimensions(info, found->copy, found->rank);
    }
    ((void (*)(void *))api[RELEASE_TYPE_AND_SHAPE])(info);
    return status;
}

/* Refuse an input of another type or shape than that for which the kernel was made. */
static Status check(const Kernel *k, size_t n, const void *value)
{
    const Shape expected = k->shapes[n];
    Found found;
    if (!value) return refuse(k->api, INVALID, "node %s: input %s is missing", k->node, k->inputs[n]);
    Status status = look(k->api, value, &found);
    if (status) return status;
    if (found.type != k->types[n])
        return refuse(k->api, INVALID, "node %s: input %s holds elements of ONNX type %d, expected %d (%s)", k->node,
                      k->inputs[n], found.type, (int)k->types[n], elements[k->types[n]].name);
    int same = (int64_t)found.rank == expected.rank;
    for (size_t d = 0; same && d < found.rank; d++) same = found.dims[d] == expected.dims[d];
    if (same) return NULL;
    char is[MESSAGE / 4], wanted[MESSAGE / 4];
    print_shape(is, sizeof is, (Shape){(int64_t)found.rank, found.dims});
    print_shape(wanted, sizeof wanted, expected);
    return refuse(k->api, INVALID, "node %s: input %s has shape [%s], expected [%s]", k->node, k->inputs[n], is,
                  wanted);
}

static Status compute(void *kernel, void *context)
{
    const Kernel *k = kernel;
    Api api = k->api;
    Status (*input)(const void *, size_t, void **) = api[INPUT];
    Status (*output)(void *, size_t, const int64_t *, size_t, void **) = api[OUTPUT];
    Status (*data)(void *, void **) = api[TENSOR_DATA];
    const size_t last = k->arguments - 1;
    Tensor tensors[k->arguments];
    Any arguments[k->arguments], result = {0, 0, {0}};
    void *aligned[k->arguments], *place = NULL;
    size_t bytes = 0;
    Status status = NULL;

    memset(aligned, 0, sizeof aligned);
    for (size_t n = 0; n <= last; n++) {
        const Shape shape = k->shapes[n], view = k->views[n];
        void *value;
        if (k->weights[n]) {
            place = (void *)k->weights[n];
        } else {
            status = n < last ? input(context, n, &value) : output(context, 0, shape.dims, (size_t)shape.rank, &value);
            if (status || (n < last && (status = check(k, n, value))) || (status = data(value, &place))) goto done;
        }
        bytes = bytes_of(k, n, view);
        const Element element = elements[k->types[n]];
        tensors[n] =
            (Tensor){place, CPU, 0, (int32_t)view.rank, {element.code, element.bits, 1}, view.dims, NULL, 0};
        arguments[n] = (Any){TENSOR, 0, {.pointer = &tensors[n]}};
        if ((uintptr_t)place % ALIGNMENT == 0 || bytes == 0) continue;
        /* The caller's own memory lies anywhere; kernels take it as aligned. */
        aligned[n] = take_memory(api, context, bytes);
        if (!aligned[n]) {
            status = refuse(api, FAILED, "node %s: no memory for an aligned copy", k->node);
            goto done;
        }
        if (n < last) memcpy(aligned[n], place, bytes);
        tensors[n].data = aligned[n];
    }
    running = k;
    session = context;
    fault[0] = 0;
    if (k->entry(NULL, arguments, (int32_t)k->arguments, &result))
        status = refuse(api, FAILED, "node %s: a compiled kernel failed%s%s", k->node, fault[0] ? ": " : "", fault);
    running = NULL;
    if (!status && aligned[last]) memcpy(place, aligned[last], bytes);
done:
    for (size_t n = 0; n <= last; n++) give_memory(aligned[n]);
    return status;
}

static const char *any_provider(const void *op) { (void)op; return NULL; }
static int any_type(const void *op, size_t n) { (void)op, (void)n; return UNDEFINED; }
static size_t one(const void *op) { (void)op; return 1; }
static int variadic(const void *op, size_t n) { (void)op, (void)n; return VARIADIC; }
static int required(const void *op, size_t n) { (void)op, (void)n; return 0; }
static int on_cpu(const void *op, size_t n) { (void)op, (void)n; return 0; }
static int none(const void *op) { (void)op; return 0; }
static int yes(const void *op) { (void)op; return 1; }
static int newest(const void *op) { (void)op; return INT32_MAX; }

/* OrtCustomOp as of version 17, and the type of the results. */
typedef struct {
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
    const char *own_name;
    int element;
} Operator;

static const char *name(const void *op) { return ((const Operator *)op)->own_name; }
static int result_type(const void *op, size_t n) { (void)n; return ((const Operator *)op)->element; }

/* An operator for each type of results, since ONNX Runtime infers it from the operator; inputs are of any types. */
#define KERNEL(name_, element_) \
    {VERSION, NULL, name, any_provider, any_type, one, result_type, one, NULL, destroy, variadic, required, on_cpu, \
     none, none, yes, yes, create, compute, NULL, yes, newest, {NULL}, name_, element_}
static const Operator operators[] = {
    KERNEL("Kernel", 1), KERNEL("Kernel_uint8", 2), KERNEL("Kernel_int8", 3), KERNEL("Kernel_uint16", 4),
    KERNEL("Kernel_int16", 5), KERNEL("Kernel_int32", 6), KERNEL("Kernel_int64", 7), KERNEL("Kernel_bool", 9),
    KERNEL("Kernel_float16", 10), KERNEL("Kernel_float64", 11), KERNEL("Kernel_uint32", 12),
    KERNEL("Kernel_uint64", 13), KERNEL("Kernel_bfloat16", 16),
};

static void *domain;
static Api domain_api;
static char registering; /* sessions may be opened in several threads */

__attribute__((destructor)) static void unload(void)
{
    if (domain) ((void (*)(void *))domain_api[RELEASE_DOMAIN])(domain);
}

static Status make_domain(Api api, const Base *base)
{
    void *allocator, *made;
    int minor = 0;
    Status status;
    has_shape_reference = sscanf(base->get_version(), "1.%d", &minor) == 1 && minor >= 24;
    if ((status = ((Status(*)(void **))api[DEFAULT_ALLOCATOR])(&allocator)) ||
        (status = ((Status(*)(const void *, const void **))api[MEMORY_OF])(allocator, &cpu_memory)) ||
        (status = ((Status(*)(const char *, void **))api[CREATE_DOMAIN])("einnet", &made)))
        return status;
    for (size_t n = 0; n < sizeof operators / sizeof *operators; n++)
        if ((status = ((Status(*)(void *, const void *))api[ADD_TO_DOMAIN])(made, &operators[n]))) return status;
    domain_api = api;
    domain = made;
    return NULL;
}

/* ONNX Runtime calls this when the library is registered with a session's options. */
__attribute__((visibility("default"))) Status RegisterCustomOps(void *options, const Base *base)
{
    Api api = base->get_api(VERSION);
    const char *why = machine_refusal();
    Status status = NULL;
    if (!api)
        return refuse(base->get_api(1), FAILED, "found ONNX Runtime %s, expected at least 1.%d", base->get_version(),
                      VERSION);
    if (why) return refuse(api, FAILED, "%s", why);
    while (__atomic_test_and_set(&registering, __ATOMIC_ACQUIRE)) sched_yield();
    if (!domain) status = make_domain(api, base);
    __atomic_clear(&registering, __ATOMIC_RELEASE);
    return status ? status : ((Status(*)(void *, void *))api[ADD_DOMAIN])(options, domain);
}
