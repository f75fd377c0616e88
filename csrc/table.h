/* table.h: what table.c and prefetch.c share. */
#ifndef PGIO_TABLE_H
#define PGIO_TABLE_H

#include <sys/types.h>

#include "page_cache.h"
#include "reader.h"

typedef struct pgio_table_group {
    uint32_t column_count, first_page_column, page_columns;
} pgio_table_group;

struct pgio_table {
    pgio_table_options options;
    pgio_page_cache cache;
    pgio_place *place;
    pgio_table_group *groups;
    uint32_t *page_checks;
    int fd; /* readers open the same file through /proc/self/fd, however it was renamed or replaced since */
    uint32_t references; /* the opener's, each client's and each prefetch's; atomic */
    uint32_t group_count, column_count, page_columns, row_bytes, isa;
    uint64_t first_page;
    pid_t process; /* a fork has neither the threads nor the rings */
    /* prefetch.c's: a queue, under the cache's lock, and the thread that reads it, once there was a prefetch. */
    pthread_cond_t queued;
    pgio_prefetch *first, *last;
    pgio_table_client *fetcher;
    pthread_t fetching;
    bool stopping;
};

struct pgio_table_client {
    pgio_table *table;
    pthread_t owner;
    pgio_reader *reader; /* opened by its first miss */
    pgio_batch batch;
    uint64_t *offsets;    /* [PGIO_OUTPUT_BLOCK, columns] */
    const uint8_t **rows; /* [PGIO_OUTPUT_BLOCK, columns], NULL where a row straddles pages */
    uint8_t *joined;
};

/* table.c. */
void pgio_table_acquire(pgio_table *table);
void pgio_table_release(pgio_table *table);
/* A client that does not keep its table: the fetcher's. */
int pgio_client_new(pgio_table_client **out, pgio_table *table, pgio_error *error);
void pgio_client_free(pgio_table_client *client);
/* Refuses another thread or process than the client's. */
int pgio_client_check(const pgio_table_client *client, pgio_error *error);
/* Refuses absent rows, and wrong ones beyond the first batch of a call, whose own are found as its pages are. */
int pgio_client_check_rows(pgio_table_client *client, const uint64_t *rows, uint64_t token_count, pgio_error *error);
/* Reads what a batch that was taken has to read, and lets it arrive. The sentence of what keeps all of them from
 * being read; single pages that fail are told by their status. */
int pgio_client_read(pgio_table_client *client, pgio_batch *batch, pgio_error *error);
/* Waits for all pages of a batch, and gives out its rows. */
int pgio_client_give(pgio_table_client *client, pgio_batch *batch, const uint64_t *rows,
                     const pgio_table_output *output, pgio_error *error);

/* output.c. The rows of up to PGIO_OUTPUT_BLOCK tokens of a batch, from its token `first`, whose pages are here. */
#define PGIO_OUTPUT_BLOCK 64
int pgio_output_check(const pgio_table_output *output, pgio_error *error);
int pgio_output_rows(pgio_table_client *client, const pgio_batch *batch, uint64_t first, uint64_t count,
                     const uint64_t *rows, const pgio_table_output *output, pgio_error *error);

/* prefetch.c. Ends the thread; what was queued is read before. */
void pgio_fetcher_stop(pgio_table *table);

#endif
