/*
 * A sum of products of bfloat16 in float32, y[i][j] = sum over s of a[i][s] b[s][j], for the numbers that are defined
 * ahead of this text (bfloat16_products.py).
 *
 * Rows and columns are packed with two factors of a sum next to one another, so that one instruction of AVX512-BF16 adds
 * 32 products to 16 sums; without it the compiler makes vectors of plain loops.  Elements of float32 are rounded when
 * they are packed.  An operand is read at sums of two offsets, one of the row or column and one of the step.
 */
#include <stdint.h>
#include <string.h>
#if defined __x86_64__ && defined __GNUC__
#include <immintrin.h>
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"), noinline))
#endif

enum { ROWS = 8, COLUMNS = 32, GROUP = 2, LENGTH = (K + GROUP - 1) / GROUP * GROUP,
       PANELS = (N + COLUMNS - 1) / COLUMNS, PLAIN = 7, HEADER = 24, CPU = 1, BYTES = 1 };

/* What is used of DLTensor, TVMFFIAny and TVMParallelGroupEnv; a tensor that is an object stands behind its header. */
typedef struct { void *data; } Tensor;
typedef struct { int32_t type; uint32_t zero; union { int64_t number; char *pointer; } value; } Any;
typedef struct { void *sync; int32_t tasks; } Group;
#define VISIBLE __attribute__((visibility("default")))
VISIBLE int (*__TVMBackendParallelLaunch)(int (*)(int, Group *, void *), void *, int);
VISIBLE void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
VISIBLE int (*__TVMBackendFreeWorkspace)(int, int, void *);

typedef uint16_t Row, Column;
typedef float Sum;
#define SUMS __m512
#define PRODUCTS(sums, rows, columns) _mm512_dpbf16_ps(sums, (__m512bh)(rows), (__m512bh)(columns))
#define PACKED_ROW(x) (ROUNDED_ROWS ? rounded(x) : (Row)(x))
#define PACKED_COLUMN(x) (ROUNDED_COLUMNS ? rounded(x) : (Column)(x))

/* The nearest number of bfloat16, ties to even; a NaN stays one. */
static inline uint16_t rounded(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((x == x ? bits + 0x7fffu + (bits >> 16 & 1) : bits | 0x400000u) >> 16);
}

static inline float number(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float made;
    memcpy(&made, &bits, sizeof made);
    return made;
}

/* Rows and columns of a call: packed, or to be packed. */
typedef struct {
    const ROW_ELEMENT *a;
    const COLUMN_ELEMENT *b;
    const int32_t *row_at, *row_step, *column_at, *column_step;
    Row *rows;
    const Column *panels;
    Sum *y;
    void *const *sides;
    int wide;
} Call;

/* Pack row i of matrix n. */
static void pack_row(const Call *c, int n, int i)
{
    const ROW_ELEMENT *a = c->a + MATRICES_A[n] + c->row_at[i];
    const int32_t *at = c->row_step;
    Row *row = c->rows + ((int64_t)n * M + i) * LENGTH;
#if ROW_STEPS_PACKED
    a += at[0];
    for (int s = 0; s < K; s++) row[s] = PACKED_ROW(a[s]);
#else
    for (int s = 0; s < K; s++) row[s] = PACKED_ROW(a[at[s]]);
#endif
    for (int s = K; s < LENGTH; s++) row[s] = 0;
}

/* Pack `columns` columns of b from j on: group after group of COLUMNS columns; what lies beyond K and N is 0. */
static void pack_panel(const COLUMN_ELEMENT *b, const int32_t *at, const int32_t *step, int columns, Column *panel)
{
    if (columns < COLUMNS || K < LENGTH) memset(panel, 0, LENGTH * COLUMNS * sizeof *panel);
    int runs = 1;
    for (int c = 1; c < columns; c++) runs += at[c] != at[c - 1] + 1;
    if (runs == 1) {
        for (int s = 0; s < K; s++) {
            const COLUMN_ELEMENT *from = b + at[0] + step[s];
            Column *to = panel + s / GROUP * GROUP * COLUMNS + s % GROUP;
            for (int c = 0; c < columns; c++) to[c * GROUP] = PACKED_COLUMN(from[c]);
        }
        return;
    }
    for (int s = 0; s < K; s += GROUP)
        for (int c = 0; c < columns; c++) {
            Column *four = panel + s * COLUMNS + c * GROUP;
            const COLUMN_ELEMENT *from = b + at[c];
            for (int t = 0; t < GROUP && s + t < K; t++) four[t] = PACKED_COLUMN(from[step[s + t]]);
        }
}

/* The results of `count` rows and one panel. */
static void block(const Row *rows, int count, const Column *panel, int columns, Sum *y)
{
    for (int r = 0; r < count; r++) {
        float sums[COLUMNS] = {0};
        for (int s = 0; s < LENGTH; s += GROUP)
            for (int t = 0; t < GROUP; t++) {
                const float a = number(rows[r * (int64_t)LENGTH + s + t]);
                for (int c = 0; c < COLUMNS; c++) sums[c] += a * number(panel[s * COLUMNS + c * GROUP + t]);
            }
        memcpy(y + (int64_t)r * BY_ROW, sums, columns * sizeof *sums);
    }
}

#ifdef WIDE
WIDE static void wide_block(const Row *rows, int count, const Column *panel, int columns, Sum *y)
{
    SUMS total[ROWS][2];
    const Row *row[ROWS];
    const __mmask16 first = columns < 16 ? (1u << columns) - 1 : 0xffff;
    const __mmask16 second = columns < 32 ? (columns > 16 ? (1u << (columns - 16)) - 1 : 0) : 0xffff;
    for (int r = 0; r < ROWS; r++) {
        row[r] = rows + (int64_t)(r < count ? r : count - 1) * LENGTH;
        total[r][0] = total[r][1] = (SUMS)_mm512_setzero_si512();
    }
    for (int s = 0; s < LENGTH; s += GROUP) {
        const __m512i left = _mm512_loadu_si512(panel + s * COLUMNS);
        const __m512i right = _mm512_loadu_si512(panel + s * COLUMNS + 16 * GROUP);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int32_t factors;
            memcpy(&factors, row[r] + s, sizeof factors);
            const __m512i same = _mm512_set1_epi32(factors);
            total[r][0] = PRODUCTS(total[r][0], same, left);
            total[r][1] = PRODUCTS(total[r][1], same, right);
        }
    }
    for (int r = 0; r < count; r++) {
        _mm512_mask_storeu_ps(y + (int64_t)r * BY_ROW, first, total[r][0]);
        _mm512_mask_storeu_ps(y + (int64_t)r * BY_ROW + 16, second, total[r][1]);
    }
}


static int is_wide(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
}
#endif

/* The results of one panel of one product, with all rows. */
static void multiply(const Call *c, int n, int p, Column *panel)
{
    const int j = p * COLUMNS, columns = N - j < COLUMNS ? N - j : COLUMNS;
    const Row *rows = c->rows + (int64_t)PRODUCTS_A[n] * M * LENGTH;
    const Column *ready = panel;
    if (PACKED_COLUMNS) {
        ready = c->panels + ((int64_t)PRODUCTS_B[n] * PANELS + p) * LENGTH * COLUMNS;
    } else {
        const COLUMN_ELEMENT *b = c->b + MATRICES_B[PRODUCTS_B[n]];
        pack_panel(b, c->column_at + j, c->column_step, columns, panel);
    }
    for (int i = 0; i < M; i += ROWS) {
        const int count = M - i < ROWS ? M - i : ROWS;
        const int64_t place = PRODUCTS_Y[n] + (int64_t)i * BY_ROW + j;
#ifdef WIDE
        (c->wide ? wide_block : block)
#else
        block
#endif
            (rows + (int64_t)i * LENGTH, count, ready, columns, c->y + place);
        for (int r = 0; r < count && SIDES >= 0; r++) finish(c->y, c->sides, place + (int64_t)r * BY_ROW, columns);
    }
}

static int pack_some(int task, Group *group, void *call)
{
    const int64_t total = (int64_t)ALL_A * M;
    const int64_t stop = total * (task + 1) / group->tasks;
    for (int64_t i = total * task / group->tasks; i < stop; i++) pack_row(call, (int)(i / M), (int)(i % M));
    return 0;
}

static int multiply_some(int task, Group *group, void *call)
{
    Column *panel = __TVMBackendAllocWorkspace(CPU, 0, LENGTH * COLUMNS * sizeof *panel, BYTES, 8);
    if (!panel) return -1;
    const int64_t total = (int64_t)PRODUCTS_ALL * PANELS;
    const int64_t stop = total * (task + 1) / group->tasks;
    for (int64_t i = total * task / group->tasks; i < stop; i++)
        multiply(call, (int)(i / PANELS), (int)(i % PANELS), panel);
    return __TVMBackendFreeWorkspace(CPU, 0, panel);
}

static int run(int (*some)(int, Group *, void *), Call *call)
{
#if SHARED
    return __TVMBackendParallelLaunch(some, call, 0);
#else
    Group alone = {0, 1};
    return some(0, &alone, call);
#endif
}

#if PAD
/* Copy a tensor into one with padding, row by row. */
static void pad(const COLUMN_ELEMENT *from, COLUMN_ELEMENT *to)
{
    memset(to, PAD_VALUE, PADDED_SIZE * sizeof *to);
    for (int64_t row = 0; row < SIZE / ROW_SIZE; row++) {
        int64_t at = 0, rest = row;
        for (int d = RANK - 2; d >= 0; d--) {
            at += (rest % SIZES[d] + BEFORE[d]) * PADDED_STRIDES[d];
            rest /= SIZES[d];
        }
        memcpy(to + at + BEFORE[RANK - 1], from + row * ROW_SIZE, ROW_SIZE * sizeof *to);
    }
}
#endif

VISIBLE int __tvm_ffi_main(void *self, const Any *given, int32_t count, Any *result)
{
    enum { ARGUMENTS = (PACKED_ROWS ? 1 : 3) + (PACKED_COLUMNS ? 1 : 3) + (SIDES > 0 ? SIDES : 0) + 1 };
    void *at[ARGUMENTS];
    Call call = {0};
    int n = 0, failed = 0;
    (void)self, (void)result;
    if (count != ARGUMENTS) return -1;
    for (int k = 0; k < ARGUMENTS; k++) {
        const int ahead = given[k].type == PLAIN ? 0 : HEADER;
        at[k] = ((Tensor *)(given[k].value.pointer + ahead))->data;
    }
#ifdef WIDE
    call.wide = is_wide();
#endif
    uint8_t *space = NULL;
    if (PACKED_ROWS) {
        call.rows = at[n++];
    } else {
        call.a = at[n++];
        call.row_at = at[n++];
        call.row_step = at[n++];
    }
    if (PACKED_COLUMNS) {
        call.panels = at[n++];
    } else {
        call.b = at[n++];
        call.column_at = at[n++];
        call.column_step = at[n++];
    }
    call.sides = at + n;
    call.y = at[ARGUMENTS - 1];
    const int64_t rows = PACKED_ROWS ? 0 : ((int64_t)ALL_A * M * LENGTH * sizeof(Row) + 63) / 64 * 64;
    const int64_t padded = (int64_t)PADDED_SIZE * sizeof(COLUMN_ELEMENT);
    if (rows + padded) {
        space = __TVMBackendAllocWorkspace(CPU, 0, (uint64_t)(rows + padded), BYTES, 8);
        if (!space) return -1;
    }
    if (!PACKED_ROWS) {
        call.rows = (Row *)space;
        failed = run(pack_some, &call);
    }
#if PAD
    pad(call.b, (COLUMN_ELEMENT *)(space + rows));
    call.b = (COLUMN_ELEMENT *)(space + rows);
#endif
    failed = failed || run(multiply_some, &call);
    if (space) failed = __TVMBackendFreeWorkspace(CPU, 0, space) || failed;
    return failed ? -1 : 0;
}
