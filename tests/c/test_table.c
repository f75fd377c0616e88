/* Tables by many threads, under the sanitizers: every value of every row is known, whoever read its page. */
#include <pthread.h>

#include "table_file.h"

#define THREADS 6
#define ROUNDS  60
#define TOKENS  40

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

int main(void)
{
    RUN(test_reads_are_the_simulated_misses);
    RUN(test_threads_share_a_cache_of_any_size);
    return 0;
}
