/* source.c: equal to rows.c and then place.c, for tables that it may reduce and tables that it may not; refusals. */
#include "check.h"

#define COUNT 900
#define HEADS 5

static uint16_t ids[COUNT];
static const uint64_t starts[] = {0, 3, 255, 256, 257, 700};
static const pgio_tokens stream = {ids, COUNT, starts, 6, 65536, 2};

typedef struct table {
    pgio_column columns[3 * HEADS];
    pgio_group groups[3];
    pgio_region regions[3];
    uint32_t column_count, group_count;
} table;

/* Buckets of heads * slots rows, and units of so many rows: a bucket may be one unit, several, or a part of one. */
static table random_table(uint64_t *random)
{
    table t = {.group_count = 1 + (uint32_t)random_below(random, 3)};
    uint64_t byte = 0, row = 0;
    for (uint32_t g = 0; g < t.group_count; g++) {
        uint32_t heads = 1 + (uint32_t)random_below(random, HEADS), slots = 1 + (uint32_t)random_below(random, 4);
        uint64_t buckets = 5 + random_below(random, 40), bucket_rows = heads * slots;
        uint64_t unit_rows = random_below(random, 3) ? bucket_rows : 1 + random_below(random, 2 * bucket_rows);
        uint64_t shift = random_below(random, 4) ? 0 : random_below(random, unit_rows + 1);
        uint64_t salt = next_random(random);
        for (uint32_t k = 0; k < heads; k++)
            t.columns[t.column_count++] = (pgio_column){.bucket_salt = random_below(random, 20) ? salt : salt + 1,
                                                        .slot_salt = next_random(random),
                                                        .modulus = buckets,
                                                        .row_base = row + shift + k * slots,
                                                        .row_stride = bucket_rows,
                                                        .slot_count = slots,
                                                        .bucket_hash = g,
                                                        .slot_hash = 2};
        uint64_t units = (buckets * bucket_rows + shift + unit_rows - 1) / unit_rows;
        t.groups[g] = (pgio_group){row, unit_rows, heads, 1};
        pgio_region *region = &t.regions[g];
        *region = (pgio_region){.base_byte = byte, .unit_count = units, .unit_bytes = unit_rows * 34, .row_bytes = 34};
        if (random_below(random, 2))
            region->base_byte += random_below(random, 600);
        else
            region->units_per_page = unit_rows * 34 > 512 ? 1 : (uint32_t)(512 / (unit_rows * 34));
        uint64_t unit_pages = (region->unit_bytes + 511) / 512;
        byte = region->units_per_page ? byte + (units / region->units_per_page + 1) * unit_pages * 512
                                      : (region->base_byte + units * region->unit_bytes + 511) / 512 * 512;
        row += units * unit_rows;
    }
    return t;
}

static int new_source(pgio_source **source, const table *t, const pgio_tokens *tokens, uint32_t isa, pgio_error *error)
{
    return pgio_source_new(source, pg1, PGIO_MAX_ORDER, t->columns, t->column_count, t->groups, t->group_count,
                           t->regions, t->group_count, 512, tokens, isa, error);
}

static int check_source(const table *t, uint32_t isa, uint64_t *random, int *refused_count)
{
    pgio_rows *rows;
    pgio_place *place;
    pgio_source *source;
    CHECK_EQUAL(pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, t->columns, t->column_count, isa, NULL), 0);
    CHECK_EQUAL(pgio_place_new(&place, t->groups, t->group_count, t->regions, t->group_count, 512, isa, NULL), 0);
    CHECK_EQUAL(new_source(&source, t, &stream, isa, NULL), 0);
    uint32_t page_columns = pgio_place_page_columns(place);
    CHECK_EQUAL(pgio_source_page_columns(source), page_columns);
    uint64_t *rows_out = malloc(COUNT * t->column_count * sizeof *rows_out);
    uint32_t *wanted = malloc((size_t)COUNT * page_columns * sizeof *wanted);
    uint32_t *found = malloc((size_t)COUNT * page_columns * sizeof *found);
    CHECK(rows_out && wanted && found);
    CHECK_EQUAL(pgio_rows_emit(rows, &stream, 0, COUNT, rows_out, NULL), COUNT);
    int64_t status = pgio_place_pages(place, rows_out, COUNT, wanted, NULL);
    for (int turn = 0; turn < 2; turn++) {
        uint64_t done = 0, count;
        int64_t got;
        do {
            count = 1 + random_below(random, 400);
            count = count < COUNT - done ? count : COUNT - done;
            got = pgio_source_next(source, count, found + done * page_columns, NULL);
            done += got > 0 ? (uint64_t)got : 0;
        } while (got > 0 && done < COUNT);
        if (status < 0) { /* rows of one group in two units */
            CHECK_EQUAL(status, -EINVAL);
            CHECK_EQUAL(got, -EINVAL);
            ++*refused_count;
        } else {
            CHECK_EQUAL(done, COUNT);
            CHECK(memcmp(found, wanted, (size_t)COUNT * page_columns * sizeof *found) == 0);
            CHECK_EQUAL(pgio_source_next(source, 5, found, NULL), 0);
        }
        pgio_source_rewind(source);
    }
    free(rows_out);
    free(wanted);
    free(found);
    pgio_source_free(source);
    pgio_place_free(place);
    pgio_rows_free(rows);
    return 0;
}

static int test_twin(void)
{
    uint64_t random = 6;
    int refused_count = 0;
    for (int t = 0; t < COUNT; t++)
        ids[t] = (uint16_t)random_below(&random, 40);
    for (int round = 0; round < 400; round++) {
        table t = random_table(&random);
        FOR_EACH_ISA(isa)
        if (check_source(&t, isa, &random, &refused_count)) {
            fprintf(stderr, "round %d\n", round);
            return 1;
        }
    }
    CHECK(refused_count > 20 && refused_count < 2000); /* neither kind of table is rare */
    return 0;
}

static int test_refusals(void)
{
    const table good = {
        .columns = {{.modulus = 7, .row_stride = 4, .slot_count = 2, .bucket_hash = 0, .slot_hash = 1},
                    {.modulus = 7, .row_base = 2, .row_stride = 4, .slot_count = 2, .bucket_hash = 0, .slot_hash = 1}},
        .groups = {{.unit_rows = 4, .column_count = 2, .region_count = 1}},
        .regions = {{.unit_count = 7, .unit_bytes = 40, .row_bytes = 10, .units_per_page = 12}},
        .column_count = 2,
        .group_count = 1};
    pgio_source *source;
    CHECK_EQUAL(new_source(&source, &good, &stream, PGIO_ISA_AUTO, NULL), 0);
    CHECK_EQUAL(pgio_source_next(source, 0, NULL, NULL), 0);
    pgio_source_free(source);
    table bad[16];
    size_t count = 0;
#define BAD(...)                                                                                                       \
    bad[count] = good;                                                                                                 \
    bad[count++].__VA_ARGS__
    BAD(column_count = 1);
    BAD(column_count = 3);
    BAD(group_count = 0);
    BAD(groups[0].column_count = 0);
    BAD(groups[0].region_count = 0);
    BAD(groups[0].region_count = 2);
    BAD(groups[0].unit_rows = 0);
    BAD(columns[0].modulus = 0);
    BAD(columns[1].slot_count = 0); /* of a column that need not be computed */
    BAD(columns[1].slot_hash = 99);
    BAD(columns[1].bucket_hash = 8);
    BAD(regions[0].units_per_page = 13);
    for (size_t i = 0; i < count; i++) {
        source = (pgio_source *)&source;
        CHECK_REFUSED(EINVAL, new_source(&source, &bad[i], &stream, PGIO_ISA_AUTO, &error),
                      new_source(&source, &bad[i], &stream, PGIO_ISA_AUTO, NULL));
        CHECK(source == NULL);
    }
#undef BAD
    CHECK_REFUSED(EINVAL, new_source(&source, &good, &stream, 4, &error), new_source(&source, &good, &stream, 4, NULL));
    pgio_tokens tokens = stream;
    tokens.vocabulary = 5;
    CHECK_REFUSED(EINVAL, new_source(&source, &good, &tokens, PGIO_ISA_AUTO, &error),
                  new_source(&source, &good, &tokens, PGIO_ISA_AUTO, NULL));
    tokens = (pgio_tokens){NULL, 0, NULL, 0, 65536, 2}; /* no tokens: at its end from the start */
    CHECK_EQUAL(new_source(&source, &good, &tokens, PGIO_ISA_AUTO, NULL), 0);
    CHECK_EQUAL(pgio_source_next(source, 10, NULL, NULL), 0);
    pgio_source_free(source);
    pgio_source_free(NULL);
    return 0;
}

int main(void)
{
    RUN(test_twin);
    RUN(test_refusals);
    return 0;
}
