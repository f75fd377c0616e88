/* rows.c: any columns against a twin, on each instruction set and for any cut; refusals. */
#include "check.h"

#define COUNT   300
#define COLUMNS 40

static const uint64_t starts[] = {0, 1, 63, 64, 65, 130, 131, 299};

static uint64_t random_column_value(uint64_t *random, uint64_t limit)
{
    uint64_t value = next_random(random) >> (2 + random_below(random, 60));
    return 1 + value % limit;
}

static pgio_column random_column(uint64_t *random)
{
    pgio_column column = {.slot_count = 1};
    column.bucket_salt = next_random(random);
    column.slot_salt = next_random(random);
    column.slot_count = random_below(random, 2) ? 1 : (uint32_t)random_column_value(random, UINT32_MAX);
    column.row_stride = random_below(random, 2) ? column.slot_count : random_column_value(random, (uint64_t)1 << 33);
    column.row_base = next_random(random) >> (3 + random_below(random, 60));
    column.modulus = random_column_value(random, ((uint64_t)1 << 60) / column.row_stride);
    column.bucket_hash = (uint32_t)random_below(random, PGIO_MAX_ORDER);
    column.slot_hash = (uint32_t)random_below(random, PGIO_MAX_ORDER);
    return column;
}

static uint64_t twin_row(const pgio_column *column, uint64_t bucket_hash, uint64_t slot_hash)
{
    uint64_t bucket = (pgio_mix(bucket_hash ^ column->bucket_salt) >> 1) % column->modulus;
    uint64_t slot = (pgio_mix(slot_hash ^ column->slot_salt) >> 1) % column->slot_count;
    return column->row_base + bucket * column->row_stride + slot;
}

static int test_twin(void)
{
    uint64_t random = 3;
    static uint16_t ids[COUNT];
    static uint64_t hashes[PGIO_MAX_ORDER][COUNT], rows_out[COUNT * COLUMNS], part[COUNT * COLUMNS];
    for (int round = 0; round < 200; round++) {
        for (int t = 0; t < COUNT; t++)
            ids[t] = (uint16_t)random_below(&random, round % 2 ? 65536 : 2);
        const pgio_tokens tokens = {ids, COUNT, starts, sizeof starts / sizeof *starts, 65536, 2};
        for (uint32_t order = 1; order <= PGIO_MAX_ORDER; order++)
            CHECK_EQUAL(pgio_hash_ngrams(&tokens, 0, COUNT, order, hashes[order - 1], NULL), COUNT);
        pgio_column columns[COLUMNS];
        uint32_t count = 1 + (uint32_t)random_below(&random, COLUMNS);
        for (uint32_t c = 0; c < count; c++) {
            columns[c] = random_column(&random);
            if (round % 4 < 2) /* all below 2^51, so that the wide path may serve them */
                columns[c].modulus = columns[c].modulus % (((uint64_t)1 << 51) - 1) + 1;
            if (round % 8 < 2)
                columns[c].slot_count = 1;
        }
        FOR_EACH_ISA(isa)
        {
            pgio_rows *rows;
            CHECK_EQUAL(pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, columns, count, isa, NULL), 0);
            CHECK_EQUAL(pgio_rows_emit(rows, &tokens, 0, COUNT, rows_out, NULL), COUNT);
            for (uint32_t t = 0; t < COUNT; t++)
                for (uint32_t c = 0; c < count; c++)
                    CHECK(rows_out[t * count + c] ==
                          twin_row(&columns[c], hashes[columns[c].bucket_hash][t], hashes[columns[c].slot_hash][t]));
            uint64_t begin = random_below(&random, COUNT + 1), n = random_below(&random, COUNT + 1 - begin);
            /* Exactly as much memory as is to be written, so that the sanitizer sees a store past it. */
            uint64_t *exact = malloc(n * count * sizeof *exact + (n == 0));
            CHECK(exact != NULL);
            CHECK_EQUAL(pgio_rows_emit(rows, &tokens, begin, begin + n, exact, NULL), n);
            CHECK(memcmp(exact, rows_out + begin * count, n * count * sizeof *exact) == 0);
            memcpy(part, exact, n * count * sizeof *exact);
            free(exact);
            pgio_rows_free(rows);
        }
    }
    return 0;
}

static int refused(int code, pgio_column column)
{
    pgio_rows *rows = (pgio_rows *)&rows;
    const pgio_column columns[] = {random_column(&(uint64_t){1}), column};
    CHECK_REFUSED(code, pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, columns, 2, PGIO_ISA_AUTO, &error),
                  pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, columns, 2, PGIO_ISA_AUTO, NULL));
    CHECK(rows == NULL);
    return 0;
}

static int test_refusals(void)
{
    const pgio_column good = {.modulus = 7, .row_stride = 2, .slot_count = 2, .bucket_hash = 0, .slot_hash = 0};
    pgio_column bad[16];
    size_t count = 0;
#define BAD(...)                                                                                                       \
    bad[count] = good;                                                                                                 \
    bad[count++].__VA_ARGS__
    BAD(bucket_hash = PGIO_MAX_ORDER);
    BAD(bucket_hash = UINT32_MAX);
    BAD(slot_hash = PGIO_MAX_ORDER);
    BAD(modulus = 0);
    BAD(modulus = (uint64_t)1 << 62);
    BAD(slot_count = 0);
    for (size_t i = 0; i < count; i++)
        if (refused(EINVAL, bad[i]))
            return 1;
    count = 0;
    BAD(row_stride = (uint64_t)1 << 62);
    BAD(row_stride = UINT64_MAX);
    BAD(row_base = UINT64_MAX);
    BAD(row_base = ((uint64_t)1 << 62) - 14);
    for (size_t i = 0; i < count; i++)
        if (refused(EOVERFLOW, bad[i]))
            return 1;
#undef BAD
    pgio_rows *rows;
    CHECK_REFUSED(EINVAL, pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, &good, 0, PGIO_ISA_AUTO, &error),
                  pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, &good, PGIO_MAX_COLUMNS + 1, PGIO_ISA_AUTO, NULL));
    CHECK_REFUSED(EINVAL, pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, &good, 1, 4, &error),
                  pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, &good, 1, 4, NULL));
    pgio_column largest = good;
    largest.row_base = ((uint64_t)1 << 62) - 15; /* its last row is 2^62 - 2 */
    CHECK_EQUAL(pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, &largest, 1, PGIO_ISA_AUTO, NULL), 0);
    const uint32_t ids[] = {5, 6};
    const pgio_tokens tokens = {ids, 2, starts, 1, 7, 4};
    uint64_t out[2] = {1, 1};
    CHECK_REFUSED(ERANGE, pgio_rows_emit(rows, &tokens, 0, 3, out, &error),
                  pgio_rows_emit(rows, &tokens, 2, 1, out, NULL));
    CHECK(out[0] == 1 && out[1] == 1);
    CHECK_EQUAL(pgio_rows_emit(rows, &tokens, 0, 2, out, NULL), 2);
    CHECK_EQUAL(pgio_rows_emit(rows, &tokens, 1, 1, NULL, NULL), 0);
    pgio_rows_free(rows);
    pgio_rows_free(NULL);
    return 0;
}

int main(void)
{
    RUN(test_twin);
    RUN(test_refusals);
    return 0;
}
