/* prefetch.c: accesses made ahead of their lookup, and the thread that reads for them.
 *
 * Owns the queue of prefetches whose pages are still to be read. Reads that a caller started and that only it
 * could complete would keep every other thread waiting for those pages until it came back; so one thread of
 * the table's own, made by the first prefetch, reads them all, in order. A prefetch dropped before it was read
 * is freed by that thread: its pages are the cache's by then, and others may wait for them. */
#include <unistd.h>

#include "table.h"
#include "thread.h"

struct pgio_prefetch {
    pgio_table *table;
    pgio_batch batch;
    uint64_t *rows;  /* [token_count, columns] */
    uint32_t places; /* of the cache's prefetch_places */
    bool fetched, dropped;
    pgio_prefetch *next;
};

/* With the lock held. */
static void unpin(pgio_prefetch *prefetch)
{
    pgio_page_cache *cache = &prefetch->table->cache;
    cache->prefetch_places -= prefetch->places;
    prefetch->places = 0;
    pgio_page_cache_release_locked(cache, &prefetch->batch);
}

static void free_prefetch(pgio_prefetch *prefetch)
{
    pgio_batch_free(&prefetch->batch);
    free(prefetch->rows);
    free(prefetch);
}

static void *fetch(void *argument)
{
    pgio_table *table = argument;
    pgio_page_cache *cache = &table->cache;
    pthread_mutex_lock(&cache->lock);
    table->fetcher->owner = pthread_self();
    for (;;) {
        while (!table->first && !table->stopping)
            pthread_cond_wait(&table->queued, &cache->lock);
        pgio_prefetch *prefetch = table->first;
        if (!prefetch)
            break;
        table->first = prefetch->next;
        pthread_mutex_unlock(&cache->lock);
        (void)pgio_client_read(table->fetcher, &prefetch->batch, NULL); /* what failed, each page's status tells */
        pthread_mutex_lock(&cache->lock);
        prefetch->fetched = true;
        if (prefetch->dropped) {
            unpin(prefetch);
            free_prefetch(prefetch);
        }
    }
    pthread_mutex_unlock(&cache->lock);
    return NULL;
}

/* With the lock held. */
static int start_fetcher(pgio_table *table, pgio_error *error)
{
    if (table->fetcher)
        return 0;
    int status = pgio_client_new(&table->fetcher, table, error);
    if (status)
        return status;
    status = pgio_thread_new(&table->fetching, NULL, fetch, table);
    if (!status)
        return 0;
    pgio_client_free(table->fetcher);
    table->fetcher = NULL;
    return pgio_fail(error, status, "no thread for prefetches: %s", strerror(status));
}

void pgio_fetcher_stop(pgio_table *table)
{
    if (!table->fetcher)
        return;
    pthread_mutex_lock(&table->cache.lock);
    table->stopping = true;
    pthread_cond_signal(&table->queued);
    pthread_mutex_unlock(&table->cache.lock);
    pthread_join(table->fetching, NULL);
    pgio_client_free(table->fetcher);
}

/* Takes places for as many tokens as there is room for. Returns how many. */
static int64_t reserve(pgio_table *table, uint64_t token_count, pgio_error *error)
{
    pgio_page_cache *cache = &table->cache;
    pthread_mutex_lock(&cache->lock);
    uint64_t most = (cache->prefetch_limit - cache->prefetch_places) / table->page_columns;
    uint64_t tokens = token_count < most ? token_count : most;
    int status = tokens ? start_fetcher(table, error) : 0;
    if (!status)
        cache->prefetch_places += (uint32_t)tokens * table->page_columns;
    pthread_mutex_unlock(&cache->lock);
    return status ? status : (int64_t)tokens;
}

/* Accesses and queues. Returns the tokens taken, and keeps no more places than they need. */
static int64_t take_and_queue(pgio_prefetch *prefetch, uint32_t token_count, pgio_error *error)
{
    pgio_table *table = prefetch->table;
    pgio_page_cache *cache = &table->cache;
    int64_t status = pgio_place_pages(table->place, prefetch->rows, token_count, prefetch->batch.pages, error);
    if (status >= 0)
        status = pgio_page_cache_take(cache, &prefetch->batch, token_count, false, error);
    pthread_mutex_lock(&cache->lock);
    uint32_t needed = status > 0 ? (uint32_t)status * table->page_columns : 0;
    cache->prefetch_places -= prefetch->places - needed;
    prefetch->places = needed;
    cache->stats.prefetches += status > 0 ? (uint64_t)status : 0;
    prefetch->fetched = prefetch->batch.read_count == 0;
    if (status > 0 && !prefetch->fetched) {
        if (table->first)
            table->last->next = prefetch;
        else
            table->first = prefetch;
        table->last = prefetch;
        pthread_cond_signal(&table->queued);
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

int64_t pgio_table_prefetch(pgio_prefetch **out, pgio_table_client *client, const uint64_t *rows, uint64_t token_count,
                            pgio_error *error)
{
    *out = NULL;
    pgio_table *table = client->table;
    int status = pgio_client_check(client, error);
    if (!status)
        status = pgio_client_check_rows(client, rows, token_count, error);
    if (status)
        return status;
    int64_t reserved = reserve(table, token_count, error);
    if (reserved < 0)
        return reserved;
    uint32_t tokens = (uint32_t)reserved;
    pgio_prefetch *prefetch = calloc(1, sizeof *prefetch);
    size_t row_bytes = (size_t)(tokens ? tokens : 1) * table->column_count * sizeof *rows;
    if (prefetch)
        *prefetch = (pgio_prefetch){.table = table, .places = tokens * table->page_columns, .fetched = true};
    if (prefetch)
        pgio_table_acquire(table);
    if (prefetch && !(prefetch->rows = malloc(row_bytes)))
        status = pgio_fail(error, ENOMEM, "no memory for a prefetch");
    if (prefetch && !status)
        status = pgio_batch_init(&prefetch->batch, tokens ? tokens : 1, table->page_columns, error);
    if (!prefetch) {
        pthread_mutex_lock(&table->cache.lock);
        table->cache.prefetch_places -= tokens * table->page_columns;
        pthread_mutex_unlock(&table->cache.lock);
        return pgio_fail(error, ENOMEM, "no memory for a prefetch");
    }
    int64_t taken = status;
    if (!status && tokens) {
        memcpy(prefetch->rows, rows, row_bytes);
        taken = take_and_queue(prefetch, tokens, error);
    }
    if (taken < 0) {
        pgio_prefetch_drop(prefetch);
        return taken;
    }
    *out = prefetch;
    return taken;
}

int64_t pgio_prefetch_lookup(pgio_prefetch *prefetch, pgio_table_client *client, const pgio_table_output *output,
                             pgio_error *error)
{
    int status = pgio_client_check(client, error);
    if (!status && client->table != prefetch->table)
        status = pgio_fail(error, EINVAL, "the prefetch is another table's");
    if (!status)
        status = pgio_output_check(output, error);
    if (!status)
        status = pgio_client_give(client, &prefetch->batch, prefetch->rows, output, error);
    if (status)
        return status;
    pthread_mutex_lock(&prefetch->table->cache.lock);
    prefetch->table->cache.stats.lookups += prefetch->batch.token_count;
    pthread_mutex_unlock(&prefetch->table->cache.lock);
    return prefetch->batch.token_count;
}

void pgio_prefetch_drop(pgio_prefetch *prefetch)
{
    if (!prefetch || prefetch->table->process != getpid())
        return;
    pgio_table *table = prefetch->table;
    pthread_mutex_lock(&table->cache.lock);
    bool now = prefetch->fetched;
    if (now)
        unpin(prefetch);
    else
        prefetch->dropped = true;
    pthread_mutex_unlock(&table->cache.lock);
    if (now)
        free_prefetch(prefetch);
    /* One that is still queued needs no reference of its own: the table goes after its thread has read them all. */
    pgio_table_release(table);
}
