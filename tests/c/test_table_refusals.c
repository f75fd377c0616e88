/* What a table refuses: options and rows before anything changes, and pages that are not what was written. */
#include "table_file.h"

/* ---- damage ---- */

static int write_page(const table_file *file, uint64_t page, const uint8_t *bytes)
{
    int fd = open(file->path, O_WRONLY);
    CHECK(fd >= 0);
    CHECK(pwrite(fd, bytes, PAGE_BYTES, (off_t)(DATA_BYTE + page * PAGE_BYTES)) == PAGE_BYTES);
    close(fd);
    return 0;
}

static int check_damage(bool packed)
{
    table_file file;
    pgio_table *table;
    pgio_table_client *client;
    CHECK(make_file(&file, packed) == 0);
    CHECK(open_table(&table, &file, 20) == 0);
    CHECK(pgio_table_client_open(&client, table, NULL) == 0);
    uint8_t damaged[PAGE_BYTES];
    memcpy(damaged, file.bytes + 3 * PAGE_BYTES, PAGE_BYTES);
    damaged[100] ^= 1;
    CHECK(write_page(&file, 3, damaged) == 0);
    uint64_t row = 3 * UNIT_ROWS;
    while (!packed && row / UNIT_ROWS != 3)
        row++;
    if (packed)
        row = (3 * PAGE_BYTES + 100) / ROW_BYTES;
    uint64_t rows[COLUMNS] = {row, row, row, UNITS * UNIT_ROWS, UNITS * UNIT_ROWS, UNITS * UNIT_ROWS};
    float values[COLUMNS * WIDTH];
    pgio_table_output output = values_to(values);
    pgio_table_stats stats;
    pgio_prefetch *prefetch;
    CHECK_REFUSED(EBADMSG, pgio_table_lookup(client, rows, 1, &output, &error),
                  pgio_table_lookup(client, rows, 1, &output, NULL));
    CHECK(pgio_table_prefetch(&prefetch, client, rows, 1, NULL) == 1);
    CHECK_REFUSED(EBADMSG, pgio_prefetch_lookup(prefetch, client, &output, &error),
                  pgio_prefetch_lookup(prefetch, client, &output, NULL));
    pgio_prefetch_drop(prefetch);
    pgio_table_stats_get(table, &stats);
    CHECK_EQUAL(stats.errors_corrupt, 3); /* each time it was read again */
    CHECK(write_page(&file, 3, file.bytes + 3 * PAGE_BYTES) == 0);
    CHECK(pgio_table_lookup(client, rows, 1, &output, NULL) == 1);
    CHECK(check_values(rows, values, 1) == 0);
    CHECK(truncate(file.path, DATA_BYTE + 30 * PAGE_BYTES) == 0);
    for (uint32_t c = GROUP_COLUMNS; c < COLUMNS; c++)
        rows[c] = ROWS - 1;
    CHECK_REFUSED(EIO, pgio_table_lookup(client, rows, 1, &output, &error),
                  pgio_table_lookup(client, rows, 1, &output, NULL));
    rows[0] = ROWS;
    CHECK_REFUSED(ERANGE, pgio_table_lookup(client, rows, 1, &output, &error),
                  pgio_table_lookup(client, rows, 1, &output, NULL));
    pgio_table_client_close(client);
    pgio_table_close(table);
    remove_file(&file);
    return 0;
}

static int test_wrong_pages_are_named_and_never_kept(void)
{
    CHECK(check_damage(false) == 0);
    CHECK(check_damage(true) == 0);
    return 0;
}

/* Refused before any page is accessed, wherever in the batches it stands. */
static int check_row_refused(pgio_table *table, uint64_t wrong)
{
    enum { MANY = 3000 }; /* more tokens than one batch of accesses */
    pgio_table_client *client;
    pgio_prefetch *prefetch;
    pgio_table_stats stats;
    CHECK(pgio_table_client_open(&client, table, NULL) == 0);
    uint64_t *rows = malloc(MANY * COLUMNS * sizeof *rows), random = 5;
    float *values = malloc((size_t)MANY * COLUMNS * ROW_BYTES);
    CHECK(rows && values);
    pgio_table_output output = values_to(values);
    for (uint32_t at = 0; at < 2; at++) {
        draw_rows(&random, rows, MANY);
        rows[at ? MANY * COLUMNS - 1 : 1] = wrong;
        CHECK_REFUSED(ERANGE, pgio_table_lookup(client, rows, MANY, &output, &error),
                      pgio_table_lookup(client, rows, MANY, &output, NULL));
    }
    CHECK_REFUSED(ERANGE, pgio_table_prefetch(&prefetch, client, rows + (MANY - 1) * COLUMNS, 1, &error),
                  pgio_table_prefetch(&prefetch, client, rows + (MANY - 1) * COLUMNS, 1, NULL));
    CHECK(prefetch == NULL);
    pgio_table_stats_get(table, &stats);
    CHECK_EQUAL(stats.accesses, 0);
    pgio_table_client_close(client);
    free(rows);
    free(values);
    return 0;
}

static int test_wrong_rows_are_refused_before_any_access(void)
{
    table_file file;
    pgio_table *table;
    CHECK(make_file(&file, false) == 0);
    CHECK(open_table(&table, &file, 20) == 0);
    CHECK(check_row_refused(table, ROWS) == 0);
    CHECK(check_row_refused(table, UINT64_MAX) == 0); /* absent: it touches no page, and has nothing to give out */
    pgio_table_close(table);
    remove_file(&file);
    return 0;
}

static int test_refusals(void)
{
    table_file file;
    pgio_table *table;
    CHECK(make_file(&file, false) == 0);
    const pgio_table_options good = options_of(&file, 20);
    enum { WRONG = 9 };
    pgio_table_options wrong[WRONG];
    for (int i = 0; i < WRONG; i++)
        wrong[i] = good;
    wrong[0].cache_bytes = PAGE_BYTES; /* less than one token's pages */
    wrong[1].row_format = 9;
    wrong[2].row_width = 7;
    wrong[3].page_count++;
    wrong[4].flags = PGIO_READER_VERIFY;
    wrong[5].row_format = PGIO_ROW_NF4;
    wrong[6].depth = 0;
    wrong[7].data_byte = DATA_BYTE + 8;
    wrong[8].engine = 9;
    for (int i = 0; i < WRONG; i++)
        CHECK_REFUSED(EINVAL, pgio_table_open(&table, file.path, &wrong[i], file.groups, 2, file.regions, 2, &error),
                      pgio_table_open(&table, file.path, &wrong[i], file.groups, 2, file.regions, 2, NULL));
    CHECK_REFUSED(ENOENT, pgio_table_open(&table, "/does/not/exist", &good, file.groups, 2, file.regions, 2, &error),
                  pgio_table_open(&table, "/does/not/exist", &good, file.groups, 2, file.regions, 2, NULL));
    pgio_table_close(NULL);
    pgio_table_client_close(NULL);
    pgio_prefetch_drop(NULL);
    remove_file(&file);
    return 0;
}

int main(void)
{
    RUN(test_refusals);
    RUN(test_wrong_rows_are_refused_before_any_access);
    RUN(test_wrong_pages_are_named_and_never_kept);
    return 0;
}
