/*
 * A sum of products of bytes or of bfloat16 in 32 bits, y[i][j] = finish(sum over s of a[i][s] b[s][j]), for the numbers
 * that are defined ahead of this text (integer_products.py), after the interface of kernels (c_kernels.py).
 *
 * GROUP factors of a sum, 32 bits, are next to one another: one instruction of AVX512-VNNI adds 64 products of bytes to
 * 16 sums, one of AVX512-BF16 adds 32 products; without it the compiler makes vectors of plain loops.  Columns are
 * packed in panels, and a vector has a group of factors of 16 columns; the group of a row is the same in all lanes.
 * Groups are read where they are, at the sum of the offsets of their row and of their step, from the operand, or from a
 * copy where it has them apart.  Elements of float32 are rounded to bfloat16 when they are copied or packed.
 *
 * The instruction for bytes multiplies unsigned by signed ones, so one operand may be packed with its sign bit flipped,
 * p = x + LOW:
 *
 *     sum p_a p_b - ROW_LOW sum p_b - COLUMN_LOW sum p_a = sum a b    (one of both is 0)
 *
 * Steps at which all rows of a tile are padding of value 0 are skipped.
 *
 * A tile of bfloat16 prefetches AHEAD of the vectors that each step reads of the next panel, if panels are packed ahead
 * of calls: all tiles together prefetch all of them.  Of bytes, memory delivers enough without.
 *
 * The sums of a block of rows and a panel stay in the cache until `finish` has turned them into results.  Where results
 * are the sums (DIRECT), those of whole panels are written at once.
 */
#include <string.h>
#if defined __x86_64__ && defined __GNUC__
#include <immintrin.h>
#if IS_BFLOAT16
#define FEATURE "avx512bf16"
#else
#define FEATURE "avx512vnni"
#endif
#define TARGET target("avx512f,avx512bw,avx512vl," FEATURE)
#define WIDE __attribute__((TARGET, noinline))
#endif

enum { VECTOR = 16, VECTORS = COLUMNS / VECTOR, BLOCK = 48, HALF = 32,
       TILES = (M + TILE - 1) / TILE, AHEAD = IS_BFLOAT16 ? (VECTORS + TILES - 1) / TILES : 0,
       GROUPS = LENGTH / GROUP, PANELS = (N + COLUMNS - 1) / COLUMNS, BLOCKS = (M + BLOCK - 1) / BLOCK, BYTES = 1 };
/* Values of ROW_MODE. */
#define PACKED 0
#define IN_PLACE 1
#define INTERLEAVED 2
#define GATHERED 3

/* Packed elements; *_NUMBER is the number that one stands for, PACKED_* the one that stands for an element. */
#if IS_BFLOAT16
typedef uint16_t Stored, Row, Column;
#define INSTRUCTION "vdpbf16ps"
#define ROW_NUMBER number
#define COLUMN_NUMBER number
#define PACKED_ROW(x) (ROUNDED_ROWS ? rounded(x) : (Stored)(x))
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
typedef uint8_t Stored;
#if UNSIGNED_COLUMNS
typedef int8_t Row;
typedef uint8_t Column;
#else
typedef uint8_t Row;
typedef int8_t Column;
#endif
#define INSTRUCTION "vpdpbusd"
#define ROW_NUMBER (int32_t)
#define COLUMN_NUMBER
#define PACKED_ROW(x) ((x) ^ ROW_FLIP)
#define PACKED_COLUMN(x) (Column)((x) ^ COLUMN_FLIP)
#endif
/* As intrinsic functions; with those, compilers move sums to memory and back. */
#define ADD_PRODUCTS(sums, unsigned_bytes, signed_bytes) \
    __asm__(INSTRUCTION " %2, %1, %0" : "+v"(sums) : "v"(unsigned_bytes), "v"(signed_bytes))
#if UNSIGNED_COLUMNS
#define PRODUCTS(sums, rows, columns) ADD_PRODUCTS(sums, columns, rows)
#else
#define PRODUCTS(sums, rows, columns) ADD_PRODUCTS(sums, rows, columns)
#endif

/* Rows of a call, and where they are, or packed rows with their sums; columns, or panels with their sums. */
typedef struct {
    const ROW_ELEMENT *a;
    const COLUMN_ELEMENT *b;
    const int32_t *row_at, *row_step, *column_at, *column_step;
    const Stored *rows;
    Stored *copy;
    const int32_t *row_sums;
    const Column *panels;
    const int32_t *column_sums;
    Result *y;
    void **more;
    int wide;
} Call;

/* Row i of matrix n, and the place of the factors of step g in it. */
static inline const Stored *row_of(const Call *c, int n, int64_t i)
{
    if (ROW_MODE == PACKED || ROW_MODE == GATHERED) return c->rows + ((int64_t)n * M + i) * LENGTH;
    return c->rows + MATRICES_A[n] + c->row_at[i] + (ROW_STEPS_PACKED ? c->row_step[0] : 0);
}
#define STEP(g) (ROW_STEPS_PACKED ? (int64_t)(g) * GROUP : (int64_t)step[g])

#if ROW_MODE == GATHERED
/* Copy row i of matrix n, element by element. */
static void pack_row(const Call *c, int n, int i)
{
    const ROW_ELEMENT *a = c->a + MATRICES_A[n] + c->row_at[i];
    Stored *row = c->copy + ((int64_t)n * M + i) * LENGTH;
    if (ROW_IS_CONTIGUOUS) a += c->row_step[0];
    for (int s = 0; s < K; s++) row[s] = PACKED_ROW(a[ROW_IS_CONTIGUOUS ? s : c->row_step[s]]);
    for (int s = K; s < LENGTH; s++) row[s] = 0;
}
#endif

#if ROW_MODE == INTERLEAVED
#if SPREAD == 4 && defined WIDE
/* Copy a line of four planes, 64 elements of each at a time: dwords are moved such that interleaving inside quarters of
 * a vector leaves 16 groups of four in a vector. */
WIDE static void interleave_by_vnni(const uint8_t *const *plane, uint8_t *out)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i flip = _mm512_set1_epi8((char)ROW_FLIP);
    for (int w = 0; w < LINE; w += 64) {
        const int rest = LINE - w;
        const __mmask64 taken = rest < 64 ? ((__mmask64)1 << rest) - 1 : ~(__mmask64)0;
        __m512i x[4];
        for (int t = 0; t < 4; t++)
            x[t] = _mm512_permutexvar_epi32(order, _mm512_maskz_loadu_epi8(taken, plane[t] + w) ^ flip);
        const __m512i low[2] = {_mm512_unpacklo_epi8(x[0], x[1]), _mm512_unpacklo_epi8(x[2], x[3])};
        const __m512i high[2] = {_mm512_unpackhi_epi8(x[0], x[1]), _mm512_unpackhi_epi8(x[2], x[3])};
        const __m512i four[4] = {_mm512_unpacklo_epi16(low[0], low[1]), _mm512_unpackhi_epi16(low[0], low[1]),
                                 _mm512_unpacklo_epi16(high[0], high[1]), _mm512_unpackhi_epi16(high[0], high[1])};
        for (int v = 0; v < 4; v++)
            _mm512_mask_storeu_epi32(out + (w + 16 * v) * 4, (__mmask16)(taken >> 16 * v), four[v]);
    }
}
#endif
/* Copy lines of the operand [OUTER][PLANES][INNER, LINE], SPREAD planes at a time, into [OUTER padded][PLANES / SPREAD]
 * [INNER, LINE padded][SPREAD].  Planes beyond the last one are multiplied by 0.  Of a single plane, what is between
 * lines is filled here. */
static void copy_lines(const uint8_t *from, uint8_t *to, int64_t first, int64_t stop, int wide)
{
    enum { GROUPED = (PLANES + SPREAD - 1) / SPREAD };
    (void)wide;
#if SPREAD == 1 && FILLED
    uint8_t *end = first ? to + INNER_PLACES[first - 1] + LINE : to;
#endif
    for (int64_t i = first; i < stop; i++) {
        const int64_t inner = i % INNER, group = i / INNER % GROUPED, outer = i / INNER / GROUPED;
        const uint8_t *line = from + ((outer * PLANES + group * SPREAD) * INNER + inner) * LINE;
        uint8_t *out = to + ((OUTER_PLACES[outer] * GROUPED + group) * PLANE_PADDED + INNER_PLACES[inner]) * SPREAD;
#if SPREAD == 1
#if FILLED
        memset(end, FILL, (size_t)(out - end));
        end = out + LINE;
#endif
        for (int w = 0; w < LINE; w++) out[w] = line[w] ^ ROW_FLIP;
#else
        const uint8_t *plane[SPREAD];
        for (int64_t t = 0; t < SPREAD; t++)
            plane[t] = line + (group * SPREAD + t < PLANES ? t : PLANES - 1 - group * SPREAD) * INNER * LINE;
#ifdef WIDE
        if (wide) {
            interleave_by_vnni(plane, out);
            continue;
        }
#endif
        for (int w = 0; w < LINE; w++) {
            const uint32_t x = ((uint32_t)plane[0][w] | (uint32_t)plane[1][w] << 8 | (uint32_t)plane[2][w] << 16 |
                                (uint32_t)plane[3][w] << 24) ^ ROW_FLIP * 0x01010101u;
            memcpy(out + (int64_t)w * SPREAD, &x, sizeof x);
        }
#endif
    }
#if SPREAD == 1 && FILLED
    if (stop == LINES) memset(end, FILL, (size_t)(to + COPY_SIZE - end));
#endif
}
#endif

/* Pack `columns` columns of b from j on into HALF columns of a panel; what lies beyond K and N is 0. */
static void pack_panel(const COLUMN_ELEMENT *b, const int32_t *at, const int32_t *step, int columns, Column *panel)
{
    if (columns < HALF || K < LENGTH)
        for (int g = 0; g < GROUPS; g++) memset(panel + g * COLUMNS * GROUP, 0, HALF * GROUP * sizeof *panel);
#if IS_BFLOAT16
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
#if COLUMN_STEPS_PACKED && !IS_BFLOAT16
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

/* The sums of `count` rows of a block and one panel, over steps from `first` to `stop`: other factors are 0.  Rows of
 * sums are `pitch` apart. */
static void tile(const Stored *const *row, int count, const int32_t *step, const Column *panel, const Column *ahead,
                 Sum *sums, int64_t pitch, int first, int stop)
{
    (void)step, (void)ahead;
    for (int r = 0; r < count; r++) {
        Sum own[COLUMNS] = {0};
        for (int g = first; g < stop; g++)
            for (int c = 0; c < COLUMNS; c++)
                for (int t = 0; t < GROUP; t++)
                    own[c] += ROW_NUMBER(((const Row *)row[r])[STEP(g) + t]) *
                              COLUMN_NUMBER(panel[(g * COLUMNS + c) * GROUP + t]);
        memcpy(sums + r * pitch, own, sizeof own);
    }
}

#ifdef WIDE
#define INLINE __attribute__((TARGET, always_inline)) static inline

/* `count`, a constant, rows. */
INLINE void wide_rows(const Stored *const *row, const int count, const int32_t *step, const Column *panel,
                      const Column *ahead, Sum *sums, int64_t pitch, int first, int stop)
{
    __m512i total[TILE][VECTORS];
    (void)step, (void)ahead;
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) total[r][v] = _mm512_setzero_si512();
#pragma GCC unroll 1
    for (int g = first; g < stop; g++) {
        __m512i column[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) column[v] = _mm512_loadu_si512(panel + (g * VECTORS + v) * VECTOR * GROUP);
        const int64_t at = STEP(g);
#if PACKED_COLUMNS
#pragma GCC unroll 4
        for (int v = 0; v < AHEAD; v++) __builtin_prefetch(ahead + (g * VECTORS + v) * VECTOR * GROUP, 0, 2);
#endif
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            int32_t factors;
            memcpy(&factors, row[r] + at, sizeof factors);
            const __m512i same = _mm512_set1_epi32(factors);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) PRODUCTS(total[r][v], same, column[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) _mm512_storeu_si512(sums + r * pitch + v * VECTOR, total[r][v]);
}

WIDE static void wide_tile(const Stored *const *row, int count, const int32_t *step, const Column *panel,
                           const Column *ahead, Sum *sums, int64_t pitch, int first, int stop)
{
    switch (count) {
    case 1: wide_rows(row, 1, step, panel, ahead, sums, pitch, first, stop); break;
    case 2: wide_rows(row, 2, step, panel, ahead, sums, pitch, first, stop); break;
    case 3: wide_rows(row, 3, step, panel, ahead, sums, pitch, first, stop); break;
    case 4: wide_rows(row, 4, step, panel, ahead, sums, pitch, first, stop); break;
    case 5: wide_rows(row, 5, step, panel, ahead, sums, pitch, first, stop); break;
    case 6: wide_rows(row, 6, step, panel, ahead, sums, pitch, first, stop); break;
#if COLUMNS <= 48
    case 7: wide_rows(row, 7, step, panel, ahead, sums, pitch, first, stop); break;
    case 8: wide_rows(row, 8, step, panel, ahead, sums, pitch, first, stop); break;
#endif
    }
}

#if !IS_BFLOAT16
/* As pack_panel; columns next to one another, or at every second byte, are loaded together, and a mask leaves out the
 * others. */
WIDE static void pack_panel_by_vnni(const uint8_t *b, const int32_t *at, const int32_t *step, int columns,
                                    Column *panel)
{
    int32_t from[HALF];
    __mmask32 taken[HALF];
    __mmask64 spread[HALF];
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

#define PACK_PANEL (c->wide ? pack_panel_by_vnni : pack_panel)
#endif

static int is_wide(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports(FEATURE) && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
}
#endif

#ifndef PACK_PANEL
#define PACK_PANEL pack_panel
#endif

#if ROW_LOW || COLUMN_LOW
/* Sums of `rows` rows from i on, less what flipped bits add. */
static void correct(const Call *c, int n, int64_t i, int rows, const int32_t *column_sums, int32_t *sums)
{
    for (int r = 0; r < rows; r++) {
        const uint32_t own = COLUMN_LOW ? (uint32_t)COLUMN_LOW * (uint32_t)c->row_sums[(int64_t)n * M + i + r] : 0;
        for (int k = 0; k < COLUMNS; k++)
            sums[r * COLUMNS + k] = (int32_t)((uint32_t)sums[r * COLUMNS + k] - own -
                                              (ROW_LOW ? (uint32_t)ROW_LOW * (uint32_t)column_sums[k] : 0));
    }
}
#endif

#if BY_COLUMN != 1
/* to[j][i] = from[i][j], bytes. */
static void transpose(const uint8_t *from, int64_t from_pitch, int rows, int columns, uint8_t *to, int64_t to_pitch)
{
    int i = 0;
#ifdef __SSE2__
    for (; i + 16 <= rows; i += 16) {
        for (int j = 0; j + 16 <= columns; j += 16) {
            __m128i x[16], z[16];
            for (int r = 0; r < 16; r++) x[r] = _mm_loadu_si128((const __m128i *)(from + (i + r) * from_pitch + j));
            for (int step = 0; step < 4; step++) {
                for (int r = 0; r < 8; r++) {
                    z[2 * r] = _mm_unpacklo_epi8(x[r], x[r + 8]);
                    z[2 * r + 1] = _mm_unpackhi_epi8(x[r], x[r + 8]);
                }
                memcpy(x, z, sizeof x);
            }
            for (int k = 0; k < 16; k++) _mm_storeu_si128((__m128i *)(to + (j + k) * to_pitch + i), x[k]);
        }
        for (int r = i; r < i + 16; r++)
            for (int j = columns / 16 * 16; j < columns; j++) to[j * to_pitch + r] = from[r * from_pitch + j];
    }
#endif
    for (; i < rows; i++)
        for (int j = 0; j < columns; j++) to[j * to_pitch + i] = from[i * from_pitch + j];
}

/* Write a block of results, whose columns are apart in y. */
static void scatter(const Result *from, int rows, int columns, Result *y)
{
    if (sizeof(Result) == 1 && BY_ROW == 1) {
        transpose((const uint8_t *)from, COLUMNS, rows, columns, (uint8_t *)y, BY_COLUMN);
        return;
    }
    for (int j = 0; j < columns; j++)
        for (int r = 0; r < rows; r++)
            y[(int64_t)r * BY_ROW + (int64_t)j * BY_COLUMN] = from[r * COLUMNS + j];
}
#endif

/* The results of a block of rows and a panel. */
static void results(const Call *c, int n, int64_t i, int rows, int j, int columns, Sum *sums)
{
    const int64_t place = PRODUCTS_Y[n] + i * BY_ROW + (int64_t)j * BY_COLUMN;
#if BY_COLUMN == 1
    finish(sums, c->y + place, c->more, n, (int)i, rows, j, columns);
#else
    Result made[BLOCK * COLUMNS];
    void **more = c->more;
#if ALIGNED
    /* Operands that are read where results are written. */
    uint8_t blocks[ALIGNED][BLOCK * COLUMNS];
    void *own[MORE];
    memcpy(own, more, sizeof own);
    for (int a = 0; a < ALIGNED; a++) {
        transpose((const uint8_t *)more[ALIGNED_INPUTS[a]] + place, BY_COLUMN, columns, rows, blocks[a], COLUMNS);
        own[ALIGNED_INPUTS[a]] = blocks[a];
    }
    more = own;
#endif
    finish(sums, made, more, n, (int)i, rows, j, columns);
    scatter(made, rows, columns, c->y + place);
#endif
}

/* The results of one panel of one product, with the rows of some blocks. */
static void multiply(const Call *c, int n, int p, int first, int stop, Column *panel)
{
    const int j = p * COLUMNS, columns = N - j < COLUMNS ? N - j : COLUMNS;
    int32_t column_sums[COLUMNS];
    const int32_t *sums = column_sums;
    const Column *ready = panel;
    if (PACKED_COLUMNS) {
        ready = c->panels + ((int64_t)PRODUCTS_B[n] * PANELS + p) * LENGTH * COLUMNS;
        if (SUMMED) sums = c->column_sums + ((int64_t)PRODUCTS_B[n] * PANELS + p) * COLUMNS;
    } else {
        const COLUMN_ELEMENT *b = c->b + MATRICES_B[PRODUCTS_B[n]];
        for (int h = 0; h < columns; h += HALF) {
            const int some = columns - h < HALF ? columns - h : HALF;
            PACK_PANEL(b, c->column_at + j + h, c->column_step, some, panel + h * GROUP);
        }
        if (ROW_LOW) {
            memset(column_sums, 0, sizeof column_sums);
            for (int s = 0; s < LENGTH; s += GROUP)
                for (int k = 0; k < columns; k++)
                    for (int t = 0; t < GROUP; t++) column_sums[k] += panel[s * COLUMNS + k * GROUP + t];
        }
    }
    for (int64_t i = (int64_t)first * BLOCK; i < (int64_t)stop * BLOCK && i < M; i += BLOCK) {
        Sum made[BLOCK * COLUMNS] __attribute__((aligned(64)));
        const int rows = M - i < BLOCK ? (int)(M - i) : BLOCK;
#if DIRECT
        const int ready_made = columns == COLUMNS;
        Sum *out = ready_made ? c->y + PRODUCTS_Y[n] + i * BY_ROW + j : made;
        const int64_t pitch = ready_made ? BY_ROW : COLUMNS;
#else
        const int ready_made = 0;
        Sum *out = made;
        const int64_t pitch = COLUMNS;
#endif
        for (int r = 0; r < rows; r += TILE) {
            const Stored *row[TILE];
            const int count = rows - r < TILE ? rows - r : TILE;
#if SKIPS
            const int from = (int)FIRST_STEPS[(i + r) / TILE], to = (int)STOP_STEPS[(i + r) / TILE];
#else
            const int from = 0, to = GROUPS;
#endif
            const int share = (int)((i + r) / TILE) * AHEAD;
            const Column *ahead = ready + LENGTH * COLUMNS + (share < VECTORS - AHEAD ? share : VECTORS - AHEAD) * VECTOR * GROUP;
            for (int k = 0; k < count; k++) row[k] = row_of(c, PRODUCTS_A[n], i + r + k);
#ifdef WIDE
            (c->wide ? wide_tile : tile)
#else
            tile
#endif
                (row, count, c->row_step, ready, ahead, out + r * pitch, pitch, from, to);
        }
#if ROW_LOW || COLUMN_LOW
        correct(c, PRODUCTS_A[n], i, rows, sums, made);
#else
        (void)sums;
#endif
        if (!ready_made) results(c, n, i, rows, j, columns, made);
    }
}

#if ROW_MODE == INTERLEAVED || ROW_MODE == GATHERED
static int pack_some(int task, Group *group, void *given)
{
    const Call *call = given;
#if ROW_MODE == INTERLEAVED
    const int64_t total = (int64_t)LINES;
    copy_lines(call->a, call->copy, total * task / group->tasks, total * (task + 1) / group->tasks, call->wide);
#else
    const int64_t total = (int64_t)ALL_A * M, stop = total * (task + 1) / group->tasks;
    for (int64_t i = total * task / group->tasks; i < stop; i++) pack_row(call, (int)(i / M), (int)(i % M));
#endif
    return 0;
}
#endif

static int multiply_some(int task, Group *group, void *call)
{
    /* Blocks of rows are shared where columns are packed already. */
    enum { PARTS = PACKED_COLUMNS ? BLOCKS : 1 };
    Column *panel = NULL;
    if (!PACKED_COLUMNS && !(panel = __TVMBackendAllocWorkspace(CPU, 0, LENGTH * COLUMNS * sizeof *panel, BYTES, 8))) return -1;
    const int64_t total = (int64_t)PRODUCTS_ALL * PANELS * PARTS;
    const int64_t stop = total * (task + 1) / group->tasks;
    for (int64_t i = total * task / group->tasks; i < stop; i++) {
        const int n = (int)(i / PARTS / PANELS), p = (int)(i / PARTS % PANELS), part = (int)(i % PARTS);
        multiply(call, n, p, part, PARTS > 1 ? part + 1 : BLOCKS, panel);
    }
    return PACKED_COLUMNS ? 0 : __TVMBackendFreeWorkspace(CPU, 0, panel);
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
    enum { OWN = (ROW_MODE == PACKED ? 1 + SUMMED : 3) + (PACKED_COLUMNS ? 1 + SUMMED : 3), ARGUMENTS = OWN + MORE + 1 };
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
    if (ROW_MODE == PACKED) {
        call.rows = at[n++];
        if (SUMMED) call.row_sums = at[n++];
    } else {
        call.rows = at[n];
        call.a = at[n++];
        call.row_at = at[n++];
        call.row_step = at[n++];
    }
    if (PACKED_COLUMNS) {
        call.panels = at[n++];
        if (SUMMED) call.column_sums = at[n++];
    } else {
        call.b = at[n++];
        call.column_at = at[n++];
        call.column_step = at[n++];
    }
    call.more = at + OWN;
    call.y = at[OWN + MORE];
    const int64_t copied = ((int64_t)(COPY_SIZE * sizeof(Stored)) + 63) / 64 * 64;
    const int64_t padded = (int64_t)(PADDED_SIZE * sizeof(COLUMN_ELEMENT));
    uint8_t *space = NULL;
    if (copied + padded) {
        space = __TVMBackendAllocWorkspace(CPU, 0, (uint64_t)(copied + padded), BYTES, 8);
        if (!space) return -1;
    }
#if ROW_MODE == INTERLEAVED || ROW_MODE == GATHERED
    call.rows = call.copy = (Stored *)space;
#if FILLED && SPREAD > 1
    memset(space, FILL, COPY_SIZE);
#endif
    failed = run(pack_some, &call);
#endif
#if PAD
    pad(call.b, (COLUMN_ELEMENT *)(space + copied));
    call.b = (COLUMN_ELEMENT *)(space + copied);
#endif
    failed = failed || run(multiply_some, &call);
    if (space) failed = __TVMBackendFreeWorkspace(CPU, 0, space) || failed;
    return failed ? -1 : 0;
}
