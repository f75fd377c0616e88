/* Tables by many threads, under the sanitizers: every value of every row is known, whoever read its page.
 *
 * Under ThreadSanitizer engine psync reads, since the sanitizer does not see what the kernel writes. Buffered, so
 * that it runs on any file system. */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "check.h"

#define PAGE_BYTES    512
#define WIDTH         6
#define ROW_BYTES     (4 * WIDTH)
#define UNIT_ROWS     12 /* a bucket of 288 bytes: one a page, with room for a seal; packed they straddle */
#define UNITS         50
#define GROUP_COLUMNS 3
#define COLUMNS       (2 * GROUP_COLUMNS)
#define ROWS          ((uint64_t)2 * UNITS * UNIT_ROWS)
#define THREADS       6
#define ROUNDS        60
#define TOKENS        40
#define DATA_BYTE     4096

#if defined(__SANITIZE_THREAD__)
#define ENGINE PGIO_ENGINE_PSYNC
#else
#define ENGINE PGIO_ENGINE_AUTO
#endif

typedef struct table_file {
    char path[4096];
    pgio_group groups[2];
    pgio_region regions[2];
    uint64_t page_count;
    uint32_t *checks; /* NULL where pages are sealed */
    uint8_t *bytes;   /* its pages */
} table_file;

static float value_of(uint64_t row, uint32_t i)
{
    return (float)(pgio_mix(row * 64 + i) >> 40);
}

static int make_file(table_file *file, bool packed)
{
    memset(file, 0, sizeof *file);
    uint64_t unit_bytes = UNIT_ROWS * ROW_BYTES;
    uint64_t group_bytes = packed ? UNITS * unit_bytes : (uint64_t)UNITS * PAGE_BYTES;
    for (uint32_t g = 0; g < 2; g++) {
        file->groups[g] = (pgio_group){(uint64_t)g * UNITS * UNIT_ROWS, UNIT_ROWS, GROUP_COLUMNS, 1};
        file->regions[g] = (pgio_region){.base_byte = g * group_bytes,
                                         .unit_count = UNITS,
                                         .unit_bytes = unit_bytes,
                                         .row_bytes = ROW_BYTES,
                                         .units_per_page = packed ? 0 : 1};
    }
    file->page_count = (2 * group_bytes + PAGE_BYTES - 1) / PAGE_BYTES;
    uint64_t bytes = file->page_count * PAGE_BYTES;
    file->bytes = calloc(1, bytes);
    CHECK(file->bytes);
    for (uint64_t row = 0; row < ROWS; row++) {
        uint64_t unit = row / UNIT_ROWS % UNITS, group = row / UNIT_ROWS / UNITS;
        uint64_t at = group * group_bytes + unit * (packed ? unit_bytes : PAGE_BYTES) + row % UNIT_ROWS * ROW_BYTES;
        for (uint32_t i = 0; i < WIDTH; i++, at += 4) {
            float value = value_of(row, i);
            memcpy(file->bytes + at, &value, sizeof value);
        }
    }
    if (packed) {
        file->checks = malloc(file->page_count * sizeof *file->checks);
        CHECK(file->checks);
        for (uint64_t p = 0; p < file->page_count; p++)
            file->checks[p] = pgio_crc32c(file->bytes + p * PAGE_BYTES, PAGE_BYTES);
    } else {
        CHECK(pgio_pages_seal(file->bytes, 0, file->page_count, PAGE_BYTES) == (int64_t)file->page_count);
    }
    const char *folder = getenv("TMPDIR");
    snprintf(file->path, sizeof file->path, "%s/pgio-table-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(file->path);
    CHECK(fd >= 0);
    CHECK(pwrite(fd, file->bytes, bytes, DATA_BYTE) == (ssize_t)bytes);
    close(fd);
    return 0;
}

static void remove_file(table_file *file)
{
    unlink(file->path);
    free(file->bytes);
    free(file->checks);
}

static pgio_table_options options_of(const table_file *file, uint64_t cache_pages)
{
    return (pgio_table_options){.data_byte = DATA_BYTE,
                                .page_count = file->page_count,
                                .page_bytes = PAGE_BYTES,
                                .cache_bytes = cache_pages * PAGE_BYTES,
                                .page_checks = file->checks,
                                .row_format = PGIO_ROW_FP32,
                                .row_width = WIDTH,
                                .depth = 4,
                                .engine = ENGINE,
                                .flags = PGIO_READER_BUFFERED};
}

static int open_table(pgio_table **out, const table_file *file, uint64_t cache_pages)
{
    pgio_table_options options = options_of(file, cache_pages);
    pgio_error error = {{0}};
    int status = pgio_table_open(out, file->path, &options, file->groups, 2, file->regions, 2, &error);
    if (status)
        fprintf(stderr, "%s\n", error.text);
    CHECK(status == 0);
    return 0;
}

/* Rows of tokens that like some units better than others. */
static void draw_rows(uint64_t *random, uint64_t *rows, uint32_t tokens)
{
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t g = 0; g < 2; g++) {
            uint64_t unit = random_below(random, 1 + random_below(random, UNITS));
            for (uint32_t c = 0; c < GROUP_COLUMNS; c++)
                *rows++ = (g * UNITS + unit) * UNIT_ROWS + random_below(random, UNIT_ROWS);
        }
}

static int check_values(const uint64_t *rows, const float *values, uint32_t tokens)
{
    for (uint32_t at = 0; at < tokens * COLUMNS; at++)
        for (uint32_t i = 0; i < WIDTH; i++)
            CHECK(values[at * WIDTH + i] == value_of(rows[at], i));
    return 0;
}

static pgio_table_output values_to(float *values)
{
    return (pgio_table_output){values, COLUMNS * ROW_BYTES, ROW_BYTES, PGIO_FORM_VALUES};
}

/* ---- many threads ---- */

typedef struct worker {
    pgio_table *table;
    uint64_t random, tokens;
    int failed;
} worker;

static int work(worker *own)
{
    pgio_table_client *client;
    pgio_error error = {{0}};
    CHECK(pgio_table_client_open(&client, own->table, &error) == 0);
    uint64_t rows[TOKENS * COLUMNS], ahead[TOKENS * COLUMNS];
    float values[TOKENS * COLUMNS * WIDTH];
    pgio_table_output output = values_to(values);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t tokens = 1 + (uint32_t)random_below(&own->random, TOKENS), given = 0;
        draw_rows(&own->random, ahead, tokens);
        pgio_prefetch *prefetch = NULL;
        if (round % 3 == 0) {
            int64_t taken = pgio_table_prefetch(&prefetch, client, ahead, tokens, &error);
            CHECK(taken >= 0 && taken <= tokens);
            given = (uint32_t)taken;
        }
        draw_rows(&own->random, rows, tokens);
        CHECK(pgio_table_lookup(client, rows, tokens, &output, &error) == tokens);
        CHECK(check_values(rows, values, tokens) == 0);
        own->tokens += tokens;
        if (given && round % 2) {
            CHECK(pgio_prefetch_lookup(prefetch, client, &output, &error) == given);
            CHECK(check_values(ahead, values, given) == 0);
            own->tokens += given;
        }
        pgio_prefetch_drop(prefetch);
    }
    pgio_table_client_close(client);
    return 0;
}

static void *work_in_thread(void *argument)
{
    worker *own = argument;
    own->failed = work(own);
    return NULL;
}

static int check_threads(bool packed, uint64_t cache_pages)
{
    table_file file;
    pgio_table *table;
    CHECK(make_file(&file, packed) == 0);
    CHECK(open_table(&table, &file, cache_pages) == 0);
    pthread_t threads[THREADS];
    worker workers[THREADS];
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.table = table, .random = i + 7 * cache_pages};
        CHECK(pthread_create(&threads[i], NULL, work_in_thread, &workers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0 && !workers[i].failed);
        tokens += workers[i].tokens;
    }
    pgio_table_stats stats;
    pgio_table_stats_get(table, &stats);
    CHECK(stats.lookups == tokens && stats.accesses == stats.hits + stats.reads);
    CHECK(stats.resident_pages == stats.reads - stats.evictions && stats.resident_pages <= stats.capacity_pages);
    CHECK(stats.errors_eio + stats.errors_short + stats.errors_corrupt + stats.errors_other == 0);
    pgio_table_close(table);
    remove_file(&file);
    return 0;
}

static int test_threads_share_a_cache_of_any_size(void)
{
    for (int packed = 0; packed < 2; packed++) {
        CHECK(check_threads(packed, packed ? 4 : 2) == 0); /* the least: what one token can touch */
        CHECK(check_threads(packed, 11) == 0);
        CHECK(check_threads(packed, 40) == 0);
        CHECK(check_threads(packed, 1000) == 0);
    }
    return 0;
}

/* ---- one thread: as simulated ---- */

static int check_simulated(bool packed, uint64_t cache_pages)
{
    enum { ALL = 700 };
    table_file file;
    pgio_table *table;
    pgio_table_client *client;
    pgio_place *place;
    pgio_lru *lru;
    CHECK(make_file(&file, packed) == 0);
    CHECK(open_table(&table, &file, cache_pages) == 0);
    CHECK(pgio_table_client_open(&client, table, NULL) == 0);
    CHECK(pgio_place_new(&place, file.groups, 2, file.regions, 2, PAGE_BYTES, PGIO_ISA_AUTO, NULL) == 0);
    uint32_t page_columns = pgio_place_page_columns(place), classes[8] = {0};
    uint64_t *rows = malloc(ALL * COLUMNS * sizeof *rows), random = 3, accesses, compulsory, misses, full;
    float *values = malloc((size_t)ALL * COLUMNS * ROW_BYTES);
    uint32_t *pages = malloc(ALL * page_columns * sizeof *pages);
    CHECK(rows && values && pages && page_columns <= 8);
    CHECK(pgio_lru_new(&lru, file.page_count, &cache_pages, 1, classes, page_columns, 1, NULL) == 0);
    draw_rows(&random, rows, ALL);
    CHECK(pgio_place_pages(place, rows, ALL, pages, NULL) > 0);
    CHECK(pgio_lru_access(lru, pages, ALL, NULL, NULL) > 0);
    pgio_lru_counts(lru, &accesses, &compulsory, &misses, &full);
    for (uint32_t done = 0; done < ALL;) {
        uint32_t n = 1 + (uint32_t)random_below(&random, 90);
        n = n < ALL - done ? n : ALL - done;
        float *part = values + (size_t)done * COLUMNS * WIDTH;
        pgio_table_output output = values_to(part);
        CHECK(pgio_table_lookup(client, rows + done * COLUMNS, n, &output, NULL) == n);
        CHECK(check_values(rows + done * COLUMNS, part, n) == 0);
        done += n;
    }
    pgio_table_stats stats;
    pgio_table_stats_get(table, &stats);
    CHECK_EQUAL(stats.reads, misses);
    CHECK_EQUAL(stats.accesses, accesses);
    CHECK_EQUAL(stats.bytes_read, misses * PAGE_BYTES);
    pgio_table_close(table); /* goes with its client */
    pgio_table_client_close(client);
    pgio_place_free(place);
    pgio_lru_free(lru);
    free(rows);
    free(values);
    free(pages);
    remove_file(&file);
    return 0;
}

static int test_reads_are_the_simulated_misses(void)
{
    for (int packed = 0; packed < 2; packed++)
        for (uint64_t cache_pages = packed ? 4 : 2; cache_pages < 200; cache_pages = cache_pages * 2 + 1)
            CHECK(check_simulated(packed, cache_pages) == 0);
    return 0;
}

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
    RUN(test_reads_are_the_simulated_misses);
    RUN(test_threads_share_a_cache_of_any_size);
    return 0;
}
