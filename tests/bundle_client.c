/*
 * A program that runs a bundle through ONNX Runtime's C API: SESSIONS sessions in as many threads, RUNS runs each.
 *
 * client ONNXRUNTIME.so KERNELS.so MODEL.onnx INPUT OUTPUT DIMENSION...: floats come from standard input; the outputs
 * of the first run go to standard output.  Sessions that differ are an error, and so is what ONNX Runtime refuses.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SESSIONS = 8, RUNS = 5, VERSION = 17 };
enum {
    GET_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10, SET_THREADS = 24,
    CREATE_TENSOR = 49, DATA = 51, COUNT = 64, TYPE_AND_SHAPE = 65, CPU_MEMORY = 69, RELEASE_ENV = 92,
    RELEASE_MEMORY = 94, RELEASE_SESSION = 95, RELEASE_VALUE = 96, RELEASE_TYPE_AND_SHAPE = 99, RELEASE_OPTIONS = 100,
    REGISTER = 228
};

typedef void *Status;
typedef const void *const *Api;
typedef Status (*Run)(void *, const void *, const char **, void **, size_t, const char **, size_t, void **);
typedef struct { Api (*get_api)(uint32_t); const char *(*get_version)(void); } Base;

static const Base *base;
static Api api;
static void *env, *memory;
static char **names;
static int64_t dims[8];
static size_t rank, floats = 1;
static float *given;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, opening = PTHREAD_MUTEX_INITIALIZER;
static float *expected;
static size_t made;

static void check(Status status)
{
    if (!status) return;
    fprintf(stderr, "%s\n", ((const char *(*)(const void *))api[GET_MESSAGE])(status));
    _exit(1); /* other threads run: nothing is torn down */
}

static void compare(const float *found, size_t count)
{
    pthread_mutex_lock(&lock);
    if (!expected) {
        made = count;
        expected = malloc(count * sizeof *found);
        memcpy(expected, found, count * sizeof *found);
    }
    if (count != made || memcmp(expected, found, count * sizeof *found)) {
        fprintf(stderr, "sessions differ\n");
        _exit(1);
    }
    pthread_mutex_unlock(&lock);
}

#ifdef OLD
/* As if ONNX Runtime were an older one. */
static const char *old_version(void) { return "1.17.0"; }

static Status register_kernels(void *options)
{
    void *library = dlopen(names[2], RTLD_NOW | RTLD_LOCAL);
    const Base old = {base->get_api, old_version};
    return ((Status(*)(void *, const Base *))dlsym(library, "RegisterCustomOps"))(options, &old);
}
#else
static Status register_kernels(void *options)
{
    return ((Status(*)(void *, const char *))api[REGISTER])(options, names[2]);
}
#endif

static void *run_session(void *unused)
{
    void *options, *session, *input;
    check(((Status(*)(void **))api[CREATE_OPTIONS])(&options));
    check(((Status(*)(void *, int))api[SET_THREADS])(options, 2));
    check(register_kernels(options));
    pthread_mutex_lock(&opening); /* ONNX Runtime adds the domain to a map of its own without a lock */
    check(((Status(*)(void *, const char *, void *, void **))api[CREATE_SESSION])(env, names[3], options, &session));
    pthread_mutex_unlock(&opening);
    check(((Status(*)(void *, void *, size_t, const int64_t *, size_t, int, void **))api[CREATE_TENSOR])(
        memory, given, floats * sizeof(float), dims, rank, 1, &input));
    for (int n = 0; n < RUNS; n++) {
        void *output = NULL, *info;
        float *found;
        size_t count;
        const char *inputs[] = {names[4]}, *outputs[] = {names[5]};
        check(((Run)api[RUN])(session, NULL, inputs, &input, 1, outputs, 1, &output));
        check(((Status(*)(void *, void **))api[DATA])(output, (void **)&found));
        check(((Status(*)(void *, void **))api[TYPE_AND_SHAPE])(output, &info));
        check(((Status(*)(void *, size_t *))api[COUNT])(info, &count));
        compare(found, count);
        ((void (*)(void *))api[RELEASE_TYPE_AND_SHAPE])(info);
        ((void (*)(void *))api[RELEASE_VALUE])(output);
    }
    ((void (*)(void *))api[RELEASE_VALUE])(input);
    ((void (*)(void *))api[RELEASE_SESSION])(session);
    ((void (*)(void *))api[RELEASE_OPTIONS])(options);
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t threads[SESSIONS];
    names = arguments;
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    base = ((const Base *(*)(void))dlsym(library, "OrtGetApiBase"))();
    api = base->get_api(VERSION);
    for (rank = 0; rank + 6 < (size_t)count; rank++) floats *= (size_t)(dims[rank] = atoll(arguments[rank + 6]));
    given = malloc(floats * sizeof *given);
    if (fread(given, sizeof *given, floats, stdin) != floats) return 1;
    check(((Status(*)(int, const char *, void **))api[CREATE_ENV])(3, "client", &env));
    check(((Status(*)(int, int, void **))api[CPU_MEMORY])(0, 0, &memory));
    for (int n = 0; n < SESSIONS; n++) pthread_create(&threads[n], NULL, run_session, NULL);
    for (int n = 0; n < SESSIONS; n++) pthread_join(threads[n], NULL);
    ((void (*)(void *))api[RELEASE_MEMORY])(memory);
    ((void (*)(void *))api[RELEASE_ENV])(env);
    free(given);
    return fwrite(expected, sizeof *expected, made, stdout) != made;
}
