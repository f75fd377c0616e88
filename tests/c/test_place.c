/* place.c: random groups of regions against a twin that walks bytes; absent rows; refusals. */
#include "check.h"

#define GROUPS  12
#define REGIONS 3
#define MANY    400 /* pages of one token in these tests, at most */
#define CUTS    4

typedef struct table {
    pgio_group groups[GROUPS];
    pgio_region regions[GROUPS * REGIONS];
    pgio_segment segments[GROUPS * REGIONS][CUTS];
    uint32_t group_count, region_count, column_count;
    uint64_t page_bytes;
} table;

static uint64_t unit_start(const pgio_region *region, uint64_t unit, uint64_t page_bytes)
{
    for (uint32_t i = region->segment_count; i > 0; i--)
        if (region->segments[i - 1].first_unit <= unit)
            return region->segments[i - 1].base_byte + (unit - region->segments[i - 1].first_unit) * region->unit_bytes;
    if (region->units_per_page == 0)
        return region->base_byte + unit * region->unit_bytes;
    if (region->unit_bytes > page_bytes)
        return region->base_byte + unit * ((region->unit_bytes + page_bytes - 1) / page_bytes) * page_bytes;
    return region->base_byte + unit / region->units_per_page * page_bytes +
           unit % region->units_per_page * region->unit_bytes;
}

static uint64_t region_end(const pgio_region *region, uint64_t page_bytes)
{
    uint64_t end = unit_start(region, region->unit_count - 1, page_bytes) + region->unit_bytes;
    return region->units_per_page ? (end + page_bytes - 1) / page_bytes * page_bytes : end;
}

/* Cuts a packed region in up to CUTS segments with gaps between them. */
static void cut(pgio_region *region, pgio_segment *segments, uint64_t *random)
{
    uint64_t first = 0, byte = region->base_byte;
    while (region->segment_count < CUTS && first < region->unit_count) {
        uint64_t units = 1 + random_below(random, region->unit_count - first);
        segments[region->segment_count++] = (pgio_segment){first, byte};
        byte += units * region->unit_bytes + random_below(random, 600);
        first += units;
    }
    region->segments = segments;
}

static table random_table(uint64_t *random, int simple)
{
    table t = {.page_bytes = random_below(random, 2) ? 512 : 4096};
    uint64_t byte = random_below(random, 3) * t.page_bytes,
             row = random_below(random, 2) ? next_random(random) >> 5 : 0;
    t.group_count = 1 + (uint32_t)random_below(random, GROUPS);
    for (uint32_t g = 0; g < t.group_count; g++) {
        pgio_group *group = &t.groups[g];
        group->row_base = row;
        group->unit_rows = 1 + random_below(random, 9);
        group->column_count = simple ? 1 : 1 + (uint32_t)random_below(random, 4);
        group->region_count = simple ? 1 : 1 + (uint32_t)random_below(random, REGIONS);
        t.column_count += group->column_count;
        uint64_t units = 1 + random_below(random, 50);
        for (uint32_t r = 0; r < group->region_count; r++) {
            pgio_region *region = &t.regions[t.region_count++];
            region->unit_count = units;
            region->row_bytes = 1 + random_below(random, simple ? 50 : 700);
            region->unit_bytes = group->unit_rows * region->row_bytes + random_below(random, 3);
            if (!simple && random_below(random, 2)) {
                region->base_byte = byte + random_below(random, 1000);
                region->units_per_page = 0;
                if (random_below(random, 2))
                    cut(region, t.segments[t.region_count - 1], random);
            } else {
                region->base_byte = (byte + t.page_bytes - 1) / t.page_bytes * t.page_bytes;
                uint64_t most = region->unit_bytes > t.page_bytes ? 1 : t.page_bytes / region->unit_bytes;
                region->units_per_page = 1 + (uint32_t)random_below(random, most);
            }
            byte = region_end(region, t.page_bytes);
        }
        row += units * group->unit_rows;
    }
    return t;
}

/* A table is passed on by value: its regions' segments are its own again, wherever it now lies. */
static void adopt(table *t)
{
    for (uint32_t r = 0; r < t->region_count && r < GROUPS * REGIONS; r++)
        if (t->regions[r].segment_count)
            t->regions[r].segments = t->segments[r];
}

static int new_place(pgio_place **place, const table *t, uint32_t isa, pgio_error *error)
{
    return pgio_place_new(place, t->groups, t->group_count, t->regions, t->region_count, t->page_bytes, isa, error);
}

/* Marks the pages of one group's rows; they are then read off in order. */
static void mark_pages(const table *t, uint32_t g, const pgio_region *regions, const uint64_t *rows,
                       uint64_t first_page, uint8_t *marks)
{
    for (uint32_t c = 0; c < t->groups[g].column_count; c++) {
        if (rows[c] == UINT64_MAX)
            continue;
        uint64_t row = rows[c] - t->groups[g].row_base, unit = row / t->groups[g].unit_rows;
        for (uint32_t r = 0; r < t->groups[g].region_count; r++) {
            uint64_t first = unit_start(&regions[r], unit, t->page_bytes), bytes = regions[r].unit_bytes;
            if (bytes > t->page_bytes) {
                first += row % t->groups[g].unit_rows * regions[r].row_bytes;
                bytes = regions[r].row_bytes;
            }
            for (uint64_t byte = first; byte < first + bytes; byte++)
                marks[byte / t->page_bytes - first_page] = 1;
        }
    }
}

static int check_token(const table *t, const uint64_t *rows, const uint32_t *pages, const uint32_t *group_of_column,
                       uint32_t page_columns, uint64_t first_page, uint64_t page_count, int64_t *touched)
{
    const pgio_region *regions = t->regions;
    uint32_t column = 0;
    uint8_t *marks = malloc(page_count);
    CHECK(marks != NULL);
    for (uint32_t g = 0; g < t->group_count; g++) {
        memset(marks, 0, page_count);
        mark_pages(t, g, regions, rows, first_page, marks);
        for (uint64_t page = 0; page < page_count; page++)
            if (marks[page]) {
                CHECK(column < page_columns && group_of_column[column] == g);
                CHECK_EQUAL(pages[column], page);
                column++;
                (*touched)++;
            }
        for (; column < page_columns && group_of_column[column] == g; column++)
            CHECK(pages[column] == PGIO_NO_PAGE);
        rows += t->groups[g].column_count;
        regions += t->groups[g].region_count;
    }
    CHECK_EQUAL(column, page_columns);
    free(marks);
    return 0;
}

static int check_bytes(const table *t, const pgio_place *place, const uint64_t *rows)
{
    uint64_t offsets[GROUPS * 4 * REGIONS], *offset = offsets;
    CHECK_EQUAL(pgio_place_bytes(place, rows, 1, offsets, NULL), 1);
    const pgio_region *regions = t->regions;
    for (uint32_t g = 0; g < t->group_count; g++) {
        for (uint32_t c = 0; c < t->groups[g].column_count; c++, rows++)
            for (uint32_t r = 0; r < t->groups[g].region_count; r++) {
                uint64_t row = *rows - t->groups[g].row_base;
                CHECK(*offset++ == unit_start(&regions[r], row / t->groups[g].unit_rows, t->page_bytes) +
                                       row % t->groups[g].unit_rows * regions[r].row_bytes);
            }
        regions += t->groups[g].region_count;
    }
    CHECK_EQUAL(offset - offsets, pgio_place_byte_columns(place));
    return 0;
}

static int check_place(const table *t, uint32_t isa, uint64_t *random)
{
    pgio_place *place;
    CHECK_EQUAL(new_place(&place, t, isa, NULL), 0);
    uint64_t first = UINT64_MAX, end = 0;
    for (uint32_t r = 0; r < t->region_count; r++) {
        first = t->regions[r].base_byte < first ? t->regions[r].base_byte : first;
        end = region_end(&t->regions[r], t->page_bytes) > end ? region_end(&t->regions[r], t->page_bytes) : end;
    }
    CHECK_EQUAL(pgio_place_first_page(place), first / t->page_bytes);
    uint64_t page_count = (end - 1) / t->page_bytes - first / t->page_bytes + 1;
    CHECK_EQUAL(pgio_place_page_count(place), page_count);
    uint32_t page_columns = pgio_place_page_columns(place), group_of_column[MANY];
    CHECK(page_columns <= MANY);
    pgio_place_column_groups(place, group_of_column);
    for (int absent = 0; absent < 2; absent++) {
        uint64_t tokens = random_below(random, 6);
        uint64_t *rows = malloc(tokens * t->column_count * sizeof *rows + 1);
        uint32_t *pages = malloc(tokens * page_columns * sizeof *pages + 1);
        CHECK(rows != NULL && pages != NULL);
        uint64_t *row = rows;
        for (uint64_t i = 0; i < tokens; i++) {
            const pgio_region *regions = t->regions;
            for (uint32_t g = 0; g < t->group_count; regions += t->groups[g++].region_count) {
                uint64_t unit = random_below(random, regions->unit_count);
                for (uint32_t c = 0; c < t->groups[g].column_count; c++) {
                    *row = t->groups[g].row_base + unit * t->groups[g].unit_rows;
                    *row++ += random_below(random, t->groups[g].unit_rows);
                    if (absent && random_below(random, 4) == 0)
                        row[-1] = UINT64_MAX;
                }
            }
        }
        int64_t touched = 0;
        int64_t count = pgio_place_pages(place, rows, tokens, pages, NULL);
        for (uint64_t i = 0; i < tokens; i++) {
            if (check_token(t, rows + i * t->column_count, pages + i * page_columns, group_of_column, page_columns,
                            first / t->page_bytes, page_count, &touched))
                return 1;
            if (!absent && check_bytes(t, place, rows + i * t->column_count))
                return 1;
        }
        CHECK_EQUAL(count, touched);
        free(rows);
        free(pages);
    }
    pgio_place_free(place);
    return 0;
}

static int test_twin(void)
{
    uint64_t random = 5;
    for (int round = 0; round < 800; round++) {
        table t = random_table(&random, round % 2);
        adopt(&t);
        FOR_EACH_ISA(isa)
        if (check_place(&t, isa, &random))
            return 1;
    }
    return 0;
}

/* Rows outside their group and rows of two units are refused, wherever in the batch they stand. */
static int test_rows_refused(void)
{
    const pgio_region regions[] = {
        {.base_byte = 0, .unit_count = 30, .unit_bytes = 60, .row_bytes = 10, .units_per_page = 8},
        {.base_byte = 2048, .unit_count = 30, .unit_bytes = 60, .row_bytes = 10, .units_per_page = 8}};
    for (uint32_t columns = 1; columns <= 2; columns++) {
        const pgio_group groups[] = {{.row_base = 100, .unit_rows = 6, .column_count = columns, .region_count = 1},
                                     {.row_base = 280, .unit_rows = 6, .column_count = 1, .region_count = 1}};
        FOR_EACH_ISA(isa)
        {
            pgio_place *place;
            CHECK_EQUAL(pgio_place_new(&place, groups, 2, regions, 2, 512, isa, NULL), 0);
            uint64_t rows[30], offsets[30];
            uint32_t pages[30], width = columns + 1;
            for (uint64_t i = 0; i < 30; i++)
                rows[i] = i % width == width - 1 ? 459 : 100;
            CHECK_EQUAL(pgio_place_pages(place, rows, 10, pages, NULL), 20);
            const uint64_t bad[] = {99, 280, 460, 0, UINT64_MAX - 1, (uint64_t)1 << 63};
            for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
                for (uint64_t at = 0; at < 10 * width; at++) {
                    uint64_t kept = rows[at];
                    if (bad[i] == (at % width == width - 1 ? 280 : 0) && bad[i])
                        continue; /* row 280 is the second group's own */
                    rows[at] = bad[i];
                    CHECK_REFUSED(ERANGE, pgio_place_pages(place, rows, 10, pages, &error),
                                  pgio_place_pages(place, rows, 10, pages, NULL));
                    CHECK_REFUSED(ERANGE, pgio_place_bytes(place, rows, 10, offsets, &error),
                                  pgio_place_bytes(place, rows, 10, offsets, NULL));
                    rows[at] = kept;
                }
            if (columns == 2) {
                rows[1] = 106; /* the next unit */
                CHECK_REFUSED(EINVAL, pgio_place_pages(place, rows, 10, pages, &error),
                              pgio_place_pages(place, rows, 10, pages, NULL));
            }
            rows[0] = UINT64_MAX;
            CHECK_REFUSED(ERANGE, pgio_place_bytes(place, rows, 10, offsets, &error),
                          pgio_place_bytes(place, rows, 10, offsets, NULL));
            pgio_place_free(place);
        }
    }
    return 0;
}

static int refused(int code, const table *t)
{
    pgio_place *place = (pgio_place *)&place;
    CHECK_REFUSED(code, new_place(&place, t, PGIO_ISA_AUTO, &error), new_place(&place, t, PGIO_ISA_AUTO, NULL));
    CHECK(place == NULL);
    return 0;
}

static int test_refusals(void)
{
    const uint64_t one = 1;
    const table good = {
        .groups = {{.unit_rows = 2, .column_count = 1, .region_count = 1},
                   {.row_base = 20, .unit_rows = 2, .column_count = 1, .region_count = 1}},
        .regions = {{.unit_count = 10, .unit_bytes = 40, .row_bytes = 20, .units_per_page = 12},
                    {.base_byte = 512, .unit_count = 10, .unit_bytes = 40, .row_bytes = 20, .units_per_page = 12},
                    {.base_byte = 1024, .unit_count = 11, .unit_bytes = 40, .row_bytes = 20}},
        .group_count = 2,
        .region_count = 2,
        .page_bytes = 512};
    pgio_place *place;
    CHECK_EQUAL(new_place(&place, &good, PGIO_ISA_AUTO, NULL), 0);
    pgio_place_free(place);
    table bad[48];
    size_t count = 0;
#define BAD(...)                                                                                                       \
    bad[count] = good;                                                                                                 \
    bad[count++].__VA_ARGS__
    BAD(page_bytes = 256);
    BAD(page_bytes = 0);
    BAD(page_bytes = 1000);
    BAD(page_bytes = one << 31);
    BAD(group_count = 0);
    BAD(group_count = PGIO_MAX_COLUMNS + 1);
    BAD(region_count = 1);
    BAD(region_count = 3); /* more than the groups use */
    BAD(region_count = PGIO_MAX_COLUMNS + 1);
    BAD(groups[1].column_count = 0);
    BAD(groups[1].column_count = PGIO_MAX_COLUMNS + 1);
    BAD(groups[1].column_count = PGIO_MAX_COLUMNS); /* and one more in the first group */
    BAD(groups[1].region_count = 0);
    BAD(groups[1].region_count = 2);
    BAD(groups[1].region_count = UINT32_MAX);
    BAD(groups[1].unit_rows = 0);
    BAD(groups[1].unit_rows = 3); /* do not fit in the unit */
    BAD(groups[1].unit_rows = UINT64_MAX);
    BAD(regions[1].unit_count = 0);
    BAD(regions[1].unit_count = one << 48);
    BAD(regions[1].unit_bytes = 0);
    BAD(regions[1].unit_bytes = one << 40);
    BAD(regions[1].row_bytes = 0);
    BAD(regions[1].row_bytes = 21);
    BAD(regions[1].row_bytes = one << 63);
    BAD(regions[1].base_byte = 513);
    BAD(regions[1].units_per_page = 13);
    BAD(regions[1].units_per_page = UINT32_MAX);
    BAD(regions[1].unit_bytes = 513);  /* longer than a page, and twelve of them on it */
    BAD(regions[1].segment_count = 1); /* and none given */
    bad[count] = good;                 /* a group of two regions that differ in their units */
    bad[count].region_count = 3, bad[count++].groups[1].region_count = 2;
    bad[count] = good; /* one token would touch too many pages */
    bad[count].groups[1].unit_rows = 1, bad[count].regions[1].units_per_page = 1;
    bad[count].regions[1].unit_bytes = bad[count].regions[1].row_bytes = 512 * (PGIO_MAX_COLUMNS + 1);
    count++;
    for (size_t i = 0; i < count; i++)
        if (refused(EINVAL, &bad[i])) {
            fprintf(stderr, "of the tables, number %zu\n", i);
            return 1;
        }
    count = 0;
    BAD(regions[1].base_byte = (one << 62) - 512);
    BAD(regions[1].base_byte = (one << 63));
    BAD(regions[1].base_byte = UINT64_MAX - 511);
    BAD(regions[1].base_byte = one << 45); /* 2^36 pages between the two */
    BAD(groups[1].row_base = UINT64_MAX);
    BAD(groups[1].row_base = (one << 62) - 19);
    for (size_t i = 0; i < count; i++)
        if (refused(EOVERFLOW, &bad[i])) {
            fprintf(stderr, "of the large tables, number %zu\n", i);
            return 1;
        }
#undef BAD
    CHECK_REFUSED(EINVAL, new_place(&place, &good, 4, &error), new_place(&place, &good, 4, NULL));
    pgio_place_free(NULL);
    return 0;
}

int main(void)
{
    RUN(test_twin);
    RUN(test_rows_refused);
    RUN(test_refusals);
    return 0;
}
