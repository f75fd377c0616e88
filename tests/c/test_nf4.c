/* nf4.c: every instruction set against doubles and against the portable one, any widths, any bytes, refusals. */
#include <float.h>
#include <math.h>

#include "check.h"
#include "internal.h"

#define MAX_VALUES 400

/* Memory of exactly this size, so that the sanitizer sees a byte too far. */
static void *exactly(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        exit(1);
    return memory;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double half_value(uint32_t half)
{
    double sign = half & 0x8000 ? -1 : 1, fraction = half & 0x3FF;
    int exponent = (int)(half >> 10 & 31);
    if (exponent == 31)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    double value = exponent ? 1024 + fraction : fraction;
    for (int e = exponent ? exponent : 1; e > 1; e--)
        value *= 2;
    return sign * value * 0x1p-24;
}

static float any_float(uint64_t *random, int kind)
{
    uint32_t bits = (uint32_t)next_random(random);
    if (kind == 0) /* any finite one */
        bits = (bits & 0x7F800000) == 0x7F800000 ? bits & 0x807FFFFF : bits;
    else if (kind == 1) /* from -1 to 1, and a few zeros */
        return bits % 16 ? (float)(int32_t)bits / 0x1p31f : 0;
    else /* about the least scales */
        return (float)(int32_t)bits / 0x1p31f * 0x1p-22f;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Values there and back with every instruction set; the error is within the bound unless the scale is clamped. */
static int check_values(const float *values, uint32_t width)
{
    size_t row_bytes = width / 2 + 2, value_bytes = width * sizeof(float);
    uint8_t *first = exactly(row_bytes), *row = exactly(row_bytes);
    float *first_out = exactly(value_bytes), *out = exactly(value_bytes);
    double absmax = 0;
    for (uint32_t i = 0; i < width; i++)
        absmax = larger(absmax, fabs((double)values[i]));
    FOR_EACH_ISA(isa)
    {
        pgio_nf4_counts counts;
        CHECK_EQUAL(pgio_nf4_encode(values, 1, width, row, row_bytes, isa, &counts, NULL), 1);
        CHECK_EQUAL(counts.zero, absmax == 0);
        CHECK_EQUAL(counts.tiny, absmax > 0 && absmax < 0x1p-24);
        CHECK_EQUAL(counts.clamped, absmax > 65504);
        CHECK_EQUAL(pgio_nf4_decode(row, 1, width, row_bytes, out, isa, NULL), 1);
        if (isa == PGIO_ISA_PORTABLE) {
            memcpy(first, row, row_bytes);
            memcpy(first_out, out, value_bytes);
        }
        CHECK(memcmp(first, row, row_bytes) == 0);
        CHECK(memcmp(first_out, out, value_bytes) == 0);
    }
    double bound = 0.15191 * absmax + larger(absmax * 0x1p-11, 0x1p-25);
    for (uint32_t i = 0; i < width && absmax <= 65504; i++)
        CHECK(fabs((double)out[i] - (double)values[i]) <= bound);
    free(first);
    free(row);
    free(first_out);
    free(out);
    return 0;
}

static int test_values(void)
{
    uint64_t random = 1;
    for (int round = 0; round < 3000; round++) {
        uint32_t width = 2 + 2 * (uint32_t)random_below(&random, MAX_VALUES / 2 - 1);
        float *values = exactly(width * sizeof(float));
        for (uint32_t i = 0; i < width; i++)
            values[i] = any_float(&random, round % 3);
        CHECK(check_values(values, width) == 0);
        memset(values, 0, width * sizeof(float));
        values[random_below(&random, width)] = any_float(&random, 0);
        CHECK(check_values(values, width) == 0);
        free(values);
    }
    return 0;
}

/* Any bytes decode: each value is a level times the scale, rounded once. */
static int test_bytes(void)
{
    static const uint8_t every_code[10] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, 0x00, 0x3C}; /* scale 1 */
    float levels[16], values[48], expected[48];
    CHECK_EQUAL(pgio_nf4_decode(every_code, 1, 16, 10, levels, PGIO_ISA_PORTABLE, NULL), 1);
    CHECK(levels[0] == -1 && levels[7] == 0 && levels[15] == 1);
    for (int code = 0; code < 15; code++)
        CHECK(levels[code] < levels[code + 1]);
    uint64_t random = 2;
    for (uint32_t half = 0; half < 65536; half++) {
        uint32_t width = 2 + 2 * (uint32_t)random_below(&random, 24);
        uint8_t row[26];
        for (uint32_t i = 0; i < width / 2; i++)
            row[i] = (uint8_t)next_random(&random);
        row[width / 2] = (uint8_t)half;
        row[width / 2 + 1] = (uint8_t)(half >> 8);
        for (uint32_t i = 0; i < width; i++)
            expected[i] = (float)((double)levels[row[i / 2] >> (i % 2 * 4) & 15] * half_value(half));
        FOR_EACH_ISA(isa)
        {
            pgio_nf4_decode_row(row, width, values, isa);
            for (uint32_t i = 0; i < width; i++)
                CHECK(isnan(expected[i]) ? isnan(values[i]) : memcmp(&values[i], &expected[i], sizeof(float)) == 0);
        }
    }
    return 0;
}

static int test_strides(void)
{
    enum { ROWS = 7, WIDTH = 30, ROW_BYTES = 17 };
    float values[ROWS * WIDTH], out[ROWS * WIDTH];
    uint8_t tight[ROWS * ROW_BYTES], loose[ROWS * 40];
    uint64_t random = 3;
    for (int i = 0; i < ROWS * WIDTH; i++)
        values[i] = any_float(&random, 1);
    FOR_EACH_ISA(isa)
    {
        memset(loose, 0xAA, sizeof loose);
        CHECK_EQUAL(pgio_nf4_encode(values, ROWS, WIDTH, tight, ROW_BYTES, isa, NULL, NULL), ROWS);
        CHECK_EQUAL(pgio_nf4_encode(values, ROWS, WIDTH, loose + 1, 39, isa, NULL, NULL), ROWS);
        for (int r = 0; r < ROWS; r++) {
            CHECK(memcmp(tight + r * ROW_BYTES, loose + 1 + r * 39, ROW_BYTES) == 0);
            for (int b = ROW_BYTES; b < 39 && r < ROWS - 1; b++)
                CHECK_EQUAL(loose[1 + r * 39 + b], 0xAA);
        }
        CHECK_EQUAL(pgio_nf4_decode(loose + 1, ROWS, WIDTH, 39, out, isa, NULL), ROWS);
        CHECK_EQUAL(pgio_nf4_decode(tight, 0, WIDTH, ROW_BYTES, NULL, isa, NULL), 0);
    }
    return 0;
}

static int test_refusals(void)
{
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t rows[8];
    pgio_nf4_counts counts = {7, 7, 7};
    memset(rows, 0xAA, sizeof rows);
#define REFUSED(code, count, width, stride, isa)                                                                       \
    do {                                                                                                               \
        CHECK_REFUSED(code, pgio_nf4_encode(values, count, width, rows, stride, isa, &counts, &error),                 \
                      pgio_nf4_encode(values, count, width, rows, stride, isa, NULL, NULL));                           \
        CHECK_REFUSED(code, pgio_nf4_decode(rows, count, width, stride, values, isa, &error),                          \
                      pgio_nf4_decode(rows, count, width, stride, values, isa, NULL));                                 \
    } while (0)
    REFUSED(EINVAL, 1, 0, 8, 0);
    REFUSED(EINVAL, 1, 3, 8, 0);
    REFUSED(EINVAL, 1, (1u << 20) + 2, 1u << 30, 0);
    REFUSED(EINVAL, 2, 4, 3, 0);
    REFUSED(EINVAL, 2, 4, 4, 4);
    REFUSED(EOVERFLOW, UINT64_MAX, 4, 4, 0);
    REFUSED(EOVERFLOW, (uint64_t)1 << 62, 4, 4, 0);
    if (pgio_isa_best() < PGIO_ISA_AVX512)
        REFUSED(ENOTSUP, 2, 4, 4, PGIO_ISA_AVX512);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        values[5] = bad[i];
        CHECK_REFUSED(EINVAL, pgio_nf4_encode(values, 2, 4, rows, 4, 0, &counts, &error),
                      pgio_nf4_encode(values, 2, 4, rows, 4, 0, &counts, NULL));
    }
    for (size_t b = 0; b < sizeof rows; b++) /* nothing was written */
        CHECK_EQUAL(rows[b], 0xAA);
    CHECK(counts.tiny == 7 && counts.clamped == 7 && counts.zero == 7);
    values[5] = FLT_MAX;
    CHECK_EQUAL(pgio_nf4_encode(values, 2, 4, rows, 4, 0, &counts, NULL), 2);
    CHECK(counts.tiny == 0 && counts.clamped == 1 && counts.zero == 0);
    return 0;
}

int main(void)
{
    RUN(test_values);
    RUN(test_bytes);
    RUN(test_strides);
    RUN(test_refusals);
    return 0;
}
