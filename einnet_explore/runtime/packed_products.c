/*
 * A sum of products of narrow elements in 32 bits, y[i][j] = sum over s of a[i][s] b[s][j], for the numbers that are
 * defined ahead of this text (packed_products.py): of bytes in integers, or of bfloat16 in float32.
 *
 * Rows and columns are packed with the factors of a sum that make 32 bits next to one another, so that one instruction
 * of AVX512-VNNI or AVX512-BF16 adds 64 or 32 products to 16 sums; without it the compiler makes vectors of plain
 * loops.  Elements of float32 are rounded to bfloat16 when they are packed.  VNNI multiplies unsigned by signed bytes,
 * so one operand may be packed with its sign bit flipped, p = x + LOW:
 *
 *     sum p_a p_b - ROW_LOW sum p_b - COLUMN_LOW sum p_a = sum a b    (one of both is 0)
 *
 * An operand is read at sums of two offsets, one of the row or column and one of the step.
 */
#include <stdint.h>
#include <string.h>
#if defined __x86_64__ && defined __GNUC__
#include <immintrin.h>
#if FLOATS
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"), noinline))
#else
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"), noinline))
#endif
#endif

enum { ROWS = 8, COLUMNS = 32, GROUP = FLOATS ? 2 : 4, LENGTH = (K + GROUP - 1) / GROUP * GROUP,
       PANELS = (N + COLUMNS - 1) / COLUMNS, PLAIN = 7, HEADER = 24, CPU = 1, BYTES = 1 };

/* What is used of DLTensor, TVMFFIAny and TVMParallelGroupEnv; a tensor that is an object stands behind its header. */
typedef struct { void *data; } Tensor;
typedef struct { int32_t type; uint32_t zero; union { int64_t number; char *pointer; } value; } Any;
typedef struct { void *sync; int32_t tasks; } Group;
#define VISIBLE __attribute__((visibility("default")))
VISIBLE int (*__TVMBackendParallelLaunch)(int (*)(int, Group *, void *), void *, int);
VISIBLE void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
VISIBLE int (*__TVMBackendFreeWorkspace)(int, int, void *);

#if FLOATS
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
#else
typedef int32_t Sum;
#define SUMS __m512i
#if UNSIGNED_COLUMNS
typedef int8_t Row;
typedef uint8_t Column;
#define PRODUCTS(sums, rows, columns) _mm512_dpbusd_epi32(sums, columns, rows)
#else
typedef uint8_t Row;
typedef int8_t Column;
#define PRODUCTS(sums, rows, columns) _mm512_dpbusd_epi32(sums, rows, columns)
#endif
#define PACKED_ROW(x) (Row)((x) ^ ROW_FLIP)
#define PACKED_COLUMN(x) (Column)((x) ^ COLUMN_FLIP)
#endif

/* Rows of a call: packed with their sums, or to be packed; the same of columns, whose sums may be known. */
typedef struct {
    const ROW_ELEMENT *a;
    const COLUMN_ELEMENT *b;
    const int32_t *row_at, *row_step, *column_at, *column_step;
    Row *rows;
    int32_t *row_sums;
    const Column *panels;
    const int32_t *column_sums;
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
    if (FLOATS) return;
    int32_t sum = 0;
    if (COLUMN_LOW)
        for (int s = 0; s < K; s++) sum += row[s];
    c->row_sums[(int64_t)n * M + i] = sum;
}

/* Pack `columns` columns of b from j on: group after group of COLUMNS columns; what lies beyond K and N is 0. */
static void pack_panel(const COLUMN_ELEMENT *b, const int32_t *at, const int32_t *step, int columns, Column *panel)
{
    if (columns < COLUMNS || K < LENGTH) memset(panel, 0, LENGTH * COLUMNS * sizeof *panel);
#if FLOATS
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
#endif
    for (int s = 0; s < K; s += GROUP)
        for (int c = 0; c < columns; c++) {
            Column *four = panel + s * COLUMNS + c * GROUP;
            const COLUMN_ELEMENT *from = b + at[c];
#if COLUMN_STEPS_PACKED && !FLOATS
            if (s + GROUP <= K) {
                uint32_t x;
                memcpy(&x, from + step[s], GROUP);
                x ^= COLUMN_FLIP * 0x01010101u;
                memcpy(four, &x, GROUP);
                continue;
            }
#endif
            for (int t = 0; t < GROUP && s + t < K; t++) four[t] = PACKED_COLUMN(from[step[s + t]]);
        }
}

/* The results of `count` rows and one panel. */
static void block(const Row *rows, const int32_t *row_sums, int count, const Column *panel, const int32_t *column_sums,
                  int columns, Sum *y)
{
    for (int r = 0; r < count; r++) {
#if FLOATS
        (void)row_sums, (void)column_sums;
        float sums[COLUMNS] = {0};
        for (int s = 0; s < LENGTH; s += GROUP)
            for (int t = 0; t < GROUP; t++) {
                const float a = number(rows[r * (int64_t)LENGTH + s + t]);
                for (int c = 0; c < COLUMNS; c++) sums[c] += a * number(panel[s * COLUMNS + c * GROUP + t]);
            }
        memcpy(y + (int64_t)r * BY_ROW, sums, columns * sizeof *sums);
#else
        int32_t sums[COLUMNS] = {0};
        for (int s = 0; s < LENGTH; s += GROUP)
            for (int c = 0; c < COLUMNS; c++)
                for (int t = 0; t < GROUP; t++)
                    sums[c] += (int32_t)rows[r * (int64_t)LENGTH + s + t] * panel[s * COLUMNS + c * GROUP + t];
        for (int c = 0; c < columns; c++)
            y[(int64_t)r * BY_ROW + c] = (int32_t)((uint32_t)sums[c] - (uint32_t)ROW_LOW * (uint32_t)column_sums[c] -
                                                   (uint32_t)COLUMN_LOW * (uint32_t)row_sums[r]);
#endif
    }
}

#ifdef WIDE
WIDE static void wide_block(const Row *rows, const int32_t *row_sums, int count, const Column *panel,
                            const int32_t *column_sums, int columns, Sum *y)
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
#if FLOATS
    (void)row_sums, (void)column_sums;
    for (int r = 0; r < count; r++) {
        _mm512_mask_storeu_ps(y + (int64_t)r * BY_ROW, first, total[r][0]);
        _mm512_mask_storeu_ps(y + (int64_t)r * BY_ROW + 16, second, total[r][1]);
    }
#else
    __m512i shift[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    if (ROW_LOW)
        for (int h = 0; h < 2; h++)
            shift[h] = _mm512_mullo_epi32(_mm512_set1_epi32(ROW_LOW), _mm512_loadu_si512(column_sums + 16 * h));
    for (int r = 0; r < count; r++) {
        const __m512i own = _mm512_set1_epi32(COLUMN_LOW ? COLUMN_LOW * row_sums[r] : 0);
        int32_t *to = y + (int64_t)r * BY_ROW;
        _mm512_mask_storeu_epi32(to, first, _mm512_sub_epi32(_mm512_sub_epi32(total[r][0], shift[0]), own));
        _mm512_mask_storeu_epi32(to + 16, second, _mm512_sub_epi32(_mm512_sub_epi32(total[r][1], shift[1]), own));
    }
#endif
}

#if FLOATS
#define wide_panel pack_panel
#else
/* As pack_panel; columns next to one another, or at every second byte, are loaded together, and a mask leaves out the
 * others. */
WIDE static void wide_panel(const uint8_t *b, const int32_t *at, const int32_t *step, int columns, Column *panel)
{
    int32_t from[COLUMNS];
    __mmask32 taken[COLUMNS];
    __mmask64 spread[COLUMNS];
    int runs = 0;
    for (int c = 0; c < columns; c++) {
        if (c == 0 || at[c] != at[c - 1] + COLUMN_SPACING) {
            from[runs] = at[c] - c * COLUMN_SPACING;
            taken[runs] = spread[runs] = 0;
            runs++;
        }
        taken[runs - 1] |= (__mmask32)1 << c;
        spread[runs - 1] |= (__mmask64)1 << c * COLUMN_SPACING;
    }
    if (COLUMN_STEPS_PACKED && runs > 1) {
        pack_panel(b, at, step, columns, panel);
        return;
    }
    const __m256i flipped = _mm256_maskz_set1_epi8(columns < 32 ? (1u << columns) - 1 : ~0u, (char)COLUMN_FLIP);
    for (int s = 0; s < K; s += GROUP) {
        __m256i line[GROUP];
        for (int t = 0; t < GROUP; t++) {
            line[t] = _mm256_setzero_si256();
            if (s + t >= K) continue;
            for (int r = 0; r < runs; r++) {
                const uint8_t *place = b + from[r] + step[s + t];
                const __m256i found = COLUMN_SPACING == 2
                                          ? _mm512_cvtepi16_epi8(_mm512_maskz_loadu_epi8(spread[r], place))
                                          : _mm256_maskz_loadu_epi8(taken[r], place);
                line[t] = _mm256_or_si256(line[t], found);
            }
            line[t] = _mm256_xor_si256(line[t], flipped);
        }
        const __m256i ab[2] = {_mm256_unpacklo_epi8(line[0], line[1]), _mm256_unpackhi_epi8(line[0], line[1])};
        const __m256i cd[2] = {_mm256_unpacklo_epi8(line[2], line[3]), _mm256_unpackhi_epi8(line[2], line[3])};
        for (int q = 0; q < 2; q++) {
            const __m256i one = _mm256_unpacklo_epi16(ab[q], cd[q]), other = _mm256_unpackhi_epi16(ab[q], cd[q]);
            Column *place = panel + s * COLUMNS + q * 32;
            _mm_storeu_si128((__m128i *)place, _mm256_castsi256_si128(one));
            _mm_storeu_si128((__m128i *)(place + 16), _mm256_castsi256_si128(other));
            _mm_storeu_si128((__m128i *)(place + 64), _mm256_extracti128_si256(one, 1));
            _mm_storeu_si128((__m128i *)(place + 80), _mm256_extracti128_si256(other, 1));
        }
    }
}
#endif

static int is_wide(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports(FLOATS ? "avx512bf16" : "avx512vnni") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
}
#endif

/* The results of one panel of one product, with all rows. */
static void multiply(const Call *c, int n, int p, Column *panel, int32_t *column_sums)
{
    const int j = p * COLUMNS, columns = N - j < COLUMNS ? N - j : COLUMNS;
    const Row *rows = c->rows + (int64_t)PRODUCTS_A[n] * M * LENGTH;
    const int32_t *row_sums = FLOATS ? column_sums : c->row_sums + (int64_t)PRODUCTS_A[n] * M;
    const int32_t *sums = column_sums;
    const Column *ready = panel;
    if (PACKED_COLUMNS) {
        ready = c->panels + ((int64_t)PRODUCTS_B[n] * PANELS + p) * LENGTH * COLUMNS;
        if (!FLOATS) sums = c->column_sums + ((int64_t)PRODUCTS_B[n] * PANELS + p) * COLUMNS;
    } else {
        const COLUMN_ELEMENT *b = c->b + MATRICES_B[PRODUCTS_B[n]];
#ifdef WIDE
        (c->wide ? wide_panel : pack_panel)(b, c->column_at + j, c->column_step, columns, panel);
#else
        pack_panel(b, c->column_at + j, c->column_step, columns, panel);
#endif
        if (ROW_LOW) {
            memset(column_sums, 0, COLUMNS * sizeof *column_sums);
            for (int s = 0; s < LENGTH; s += GROUP)
                for (int k = 0; k < COLUMNS; k++)
                    for (int t = 0; t < GROUP; t++) column_sums[k] += panel[s * COLUMNS + k * GROUP + t];
        }
    }
    for (int i = 0; i < M; i += ROWS) {
        const int count = M - i < ROWS ? M - i : ROWS;
        const int64_t place = PRODUCTS_Y[n] + (int64_t)i * BY_ROW + j;
#ifdef WIDE
        (c->wide ? wide_block : block)
#else
        block
#endif
            (rows + (int64_t)i * LENGTH, row_sums + i * !FLOATS, count, ready, sums, columns, c->y + place);
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
    int32_t column_sums[COLUMNS];
    if (!panel) return -1;
    const int64_t total = (int64_t)PRODUCTS_ALL * PANELS;
    const int64_t stop = total * (task + 1) / group->tasks;
    for (int64_t i = total * task / group->tasks; i < stop; i++)
        multiply(call, (int)(i / PANELS), (int)(i % PANELS), panel, column_sums);
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
    enum { SUMS_KNOWN = !FLOATS, PARTS = 1 + SUMS_KNOWN,
           ARGUMENTS = (PACKED_ROWS ? PARTS : 3) + (PACKED_COLUMNS ? PARTS : 3) + (SIDES > 0 ? SIDES : 0) + 1 };
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
        if (SUMS_KNOWN) call.row_sums = at[n++];
    } else {
        call.a = at[n++];
        call.row_at = at[n++];
        call.row_step = at[n++];
    }
    if (PACKED_COLUMNS) {
        call.panels = at[n++];
        if (SUMS_KNOWN) call.column_sums = at[n++];
    } else {
        call.b = at[n++];
        call.column_at = at[n++];
        call.column_step = at[n++];
    }
    call.sides = at + n;
    call.y = at[ARGUMENTS - 1];
    const int64_t sums = PACKED_ROWS || FLOATS ? 0 : ((int64_t)ALL_A * M * 4 + 63) / 64 * 64;
    const int64_t rows = PACKED_ROWS ? 0 : ((int64_t)ALL_A * M * LENGTH * sizeof(Row) + 63) / 64 * 64;
    const int64_t padded = (int64_t)PADDED_SIZE * sizeof(COLUMN_ELEMENT);
    if (sums + rows + padded) {
        space = __TVMBackendAllocWorkspace(CPU, 0, (uint64_t)(sums + rows + padded), BYTES, 8);
        if (!space) return -1;
    }
    if (!PACKED_ROWS) {
        call.row_sums = (int32_t *)space;
        call.rows = (Row *)(space + sums);
        failed = run(pack_some, &call);
    }
#if PAD
    pad(call.b, (COLUMN_ELEMENT *)(space + sums + rows));
    call.b = (COLUMN_ELEMENT *)(space + sums + rows);
#endif
    failed = failed || run(multiply_some, &call);
    if (space) failed = __TVMBackendFreeWorkspace(CPU, 0, space) || failed;
    return failed ? -1 : 0;
}
