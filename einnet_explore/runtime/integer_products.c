/* Products of matrices of 8-bit integers with sums in 32 bits.

   Rows are packed as unsigned bytes, columns as signed ones, four of a sum next to one another, so that one
   instruction of AVX512-VNNI adds 64 products to 16 sums; without it the compiler makes vectors of the same loops. */
#include <stdint.h>
#include <string.h>
#ifdef __AVX512VNNI__
#include <immintrin.h>
#endif

enum { ROWS = 8, COLUMNS = 32, GROUP = 4 };

static int groups(int k) { return (k + GROUP - 1) / GROUP; }

/* Rows m of k bytes, flipped by an exclusive or, in groups; the rest of the last group is 0. */
void pack_rows(const uint8_t *a, int64_t by_row, int64_t by_step, int m, int k, int flip, uint8_t *rows, int32_t *sums) {
    const int length = GROUP * groups(k);
    for (int i = 0; i < m; i++) {
        uint8_t *row = rows + (int64_t)i * length;
        uint32_t sum = 0;
        for (int s = 0; s < k; s++) sum += row[s] = a[i * by_row + s * by_step] ^ flip;
        for (int s = k; s < length; s++) row[s] = 0;
        sums[i] = (int32_t)sum;
    }
}

/* Panels of COLUMNS columns: group after group of all columns; what lies beyond k and n is 0. */
void pack_columns(const uint8_t *b, int64_t by_step, int64_t by_column, int k, int n, int flip, int8_t *panels,
                  int32_t *sums) {
    const int64_t size = (int64_t)groups(k) * GROUP * COLUMNS;
    for (int j = 0; j < (n + COLUMNS - 1) / COLUMNS * COLUMNS; j++) {
        int8_t *panel = panels + j / COLUMNS * size + j % COLUMNS * GROUP;
        uint32_t sum = 0;
        for (int s = 0; s < GROUP * groups(k); s++) {
            const int8_t x = j < n && s < k ? (int8_t)(b[s * by_step + j * by_column] ^ flip) : 0;
            panel[s / GROUP * GROUP * COLUMNS + s % GROUP] = x;
            sum += (uint32_t)x;
        }
        sums[j] = (int32_t)sum;
    }
}

/* Panels of columns of a tensor that is read at sums of two offsets, one of the column and one of the step. */
void pack_windows(const uint8_t *b, const int32_t *column_at, const int32_t *step_at, int k, int n, int flip,
                  int8_t *panels, int32_t *sums) {
    const int64_t size = (int64_t)groups(k) * GROUP * COLUMNS;
    for (int j = 0; j < n; j += COLUMNS) {
        const int columns = n - j < COLUMNS ? n - j : COLUMNS;
        int8_t *panel = panels + j / COLUMNS * size;
#if defined __AVX512VNNI__ && defined __AVX512BW__ && defined __AVX512VL__
        /* Columns next to one another are loaded together; a mask leaves out the others. */
        const uint8_t *from[COLUMNS];
        __mmask32 taken[COLUMNS];
        int runs = 0;
        for (int c = 0; c < columns; c++) {
            if (c == 0 || column_at[j + c] != column_at[j + c - 1] + 1) {
                from[runs] = b + column_at[j + c] - c;
                taken[runs++] = 0;
            }
            taken[runs - 1] |= (__mmask32)1 << c;
        }
        const __mmask32 inside = (__mmask32)(columns < 32 ? (1u << columns) - 1 : ~0u);
        const __m256i flipped = _mm256_maskz_set1_epi8(inside, (char)flip);
        __m512i total[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        for (int s = 0; s < k; s += GROUP) {
            __m256i line[GROUP];
            for (int t = 0; t < GROUP; t++) {
                line[t] = _mm256_setzero_si256();
                if (s + t >= k) continue;
                for (int r = 0; r < runs; r++)
                    line[t] = _mm256_or_si256(line[t], _mm256_maskz_loadu_epi8(taken[r], from[r] + step_at[s + t]));
                line[t] = _mm256_xor_si256(line[t], flipped);
            }
            const __m256i ab[2] = {_mm256_unpacklo_epi8(line[0], line[1]), _mm256_unpackhi_epi8(line[0], line[1])};
            const __m256i cd[2] = {_mm256_unpacklo_epi8(line[2], line[3]), _mm256_unpackhi_epi8(line[2], line[3])};
            for (int q = 0; q < 2; q++) {
                const __m256i one = _mm256_unpacklo_epi16(ab[q], cd[q]), other = _mm256_unpackhi_epi16(ab[q], cd[q]);
                int8_t *place = panel + s * COLUMNS + q * 32;
                _mm_storeu_si128((__m128i *)place, _mm256_castsi256_si128(one));
                _mm_storeu_si128((__m128i *)(place + 16), _mm256_castsi256_si128(other));
                _mm_storeu_si128((__m128i *)(place + 64), _mm256_extracti128_si256(one, 1));
                _mm_storeu_si128((__m128i *)(place + 80), _mm256_extracti128_si256(other, 1));
            }
            for (int q = 0; q < 2; q++)
                total[q] = _mm512_dpbusd_epi32(total[q], _mm512_set1_epi8(1),
                                               _mm512_loadu_si512(panel + s * COLUMNS + q * 64));
        }
        _mm512_storeu_si512(sums + j, total[0]);
        _mm512_storeu_si512(sums + j + 16, total[1]);
#else
        for (int c = 0; c < COLUMNS; c++) {
            uint32_t sum = 0;
            for (int s = 0; s < GROUP * groups(k); s++) {
                const int8_t x = c < columns && s < k ? (int8_t)(b[column_at[j + c] + step_at[s]] ^ flip) : 0;
                panel[s / GROUP * GROUP * COLUMNS + c * GROUP + s % GROUP] = x;
                sum += (uint32_t)x;
            }
            sums[j + c] = (int32_t)sum;
        }
#endif
    }
}

/* sums[r][c] of the products of count rows and one panel. */
static void block(const uint8_t *rows, int count, const int8_t *panel, int k, int32_t sums[ROWS][COLUMNS]) {
    const int length = GROUP * groups(k);
#ifdef __AVX512VNNI__
    __m512i total[ROWS][2];
    const uint8_t *row[ROWS];
    for (int r = 0; r < ROWS; r++) {
        total[r][0] = total[r][1] = _mm512_setzero_si512();
        row[r] = rows + (int64_t)(r < count ? r : count - 1) * length;
    }
    for (int s = 0; s < length; s += GROUP) {
        const __m512i left = _mm512_loadu_si512(panel + s * COLUMNS);
        const __m512i right = _mm512_loadu_si512(panel + s * COLUMNS + 64);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int32_t four;
            memcpy(&four, row[r] + s, sizeof four);
            const __m512i same = _mm512_set1_epi32(four);
            total[r][0] = _mm512_dpbusd_epi32(total[r][0], same, left);
            total[r][1] = _mm512_dpbusd_epi32(total[r][1], same, right);
        }
    }
    for (int r = 0; r < ROWS; r++) {
        _mm512_storeu_si512(sums[r], total[r][0]);
        _mm512_storeu_si512(sums[r] + 16, total[r][1]);
    }
#else
    memset(sums, 0, ROWS * COLUMNS * sizeof sums[0][0]);
    for (int r = 0; r < count; r++)
        for (int s = 0; s < length; s += GROUP)
            for (int c = 0; c < COLUMNS; c++)
                for (int t = 0; t < GROUP; t++)
                    sums[r][c] += (int32_t)rows[r * (int64_t)length + s + t] * panel[s * COLUMNS + c * GROUP + t];
#endif
}

/* y[i][j] = sum of (rows - low)(columns + high), from the packed operands and their sums. */
void multiply(const uint8_t *rows, const int32_t *row_sums, const int8_t *panels, const int32_t *column_sums, int m,
              int n, int k, int low, int high, int32_t *y, int64_t by_row) {
    const int length = GROUP * groups(k);
    int32_t sums[ROWS][COLUMNS];
    for (int j = 0; j < n; j += COLUMNS) {
        const int columns = n - j < COLUMNS ? n - j : COLUMNS;
        for (int i = 0; i < m; i += ROWS) {
            const int count = m - i < ROWS ? m - i : ROWS;
            block(rows + (int64_t)i * length, count, panels + (int64_t)j * length, k, sums);
            for (int r = 0; r < count; r++) {
                const uint32_t shift = (uint32_t)high * (uint32_t)row_sums[i + r] - (uint32_t)(low * high) * (uint32_t)k;
                for (int c = 0; c < columns; c++)
                    y[(i + r) * by_row + j + c] =
                        (int32_t)((uint32_t)sums[r][c] + shift - (uint32_t)low * (uint32_t)column_sums[j + c]);
            }
        }
    }
}
