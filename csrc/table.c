/* table.c: rows of a table file -> bytes or values, through the page cache.
 *
 * Owns the way of a batch: place.c says which pages its tokens touch, page_cache.c which of them must be read,
 * a reader of the thread's own reads them straight into their frames, and each row is decoded from where it
 * lies. Batches are large, so that a cold lookup keeps its depth in flight all the time and waits for the last
 * reads seldom; and yet small enough that a caller who cuts its work by them is soon interrupted. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "crc32c.h"
#include "table.h"

#define BATCH_ACCESSES  8192
#define REGISTERED_MOST ((uint64_t)64 << 20) /* bytes: registering touches all of them, in every thread that reads */

/* ---- opening ---- */

static uint64_t row_bytes_of(uint32_t format, uint64_t width)
{
    return format == PGIO_ROW_NF4 ? width / 2 + 2 : format == PGIO_ROW_FP32 ? width * 4 : width * 2;
}

static int check_options(const pgio_table_options *options, const pgio_group *groups, uint32_t group_count,
                         const pgio_region *regions, uint32_t region_count, pgio_error *error)
{
    if (options->row_format < PGIO_ROW_NF4 || options->row_format > PGIO_ROW_FP32)
        return pgio_fail(error, EINVAL, "row format %u is not known", options->row_format);
    if (options->row_width < 1 || options->row_width > 1u << 20 ||
        (options->row_format == PGIO_ROW_NF4 && options->row_width % 2))
        return pgio_fail(error, EINVAL, "rows of %u values cannot be decoded", options->row_width);
    if (options->flags &
        ~(uint32_t)(PGIO_READER_BUFFERED | PGIO_READER_SQPOLL | PGIO_READER_IOPOLL | PGIO_READER_NO_FIXED))
        return pgio_fail(error, EINVAL, "flags %u are not all a table's", options->flags);
    uint64_t row_bytes = row_bytes_of(options->row_format, options->row_width);
    for (uint32_t g = 0; g < group_count; g++)
        if (groups[g].region_count != 1)
            return pgio_fail(error, EINVAL, "group %u has %u regions; a table file's groups have one", g,
                             groups[g].region_count);
    for (uint32_t r = 0; r < region_count; r++)
        if (regions[r].row_bytes != row_bytes)
            return pgio_fail(error, EINVAL,
                             "region %u has rows of %" PRIu64 " bytes; %u values in this format take %" PRIu64, r,
                             regions[r].row_bytes, options->row_width, row_bytes);
    return 0;
}

static pgio_reader_options reading_options(const pgio_table *table)
{
    const pgio_table_options *options = &table->options;
    bool registered = table->cache.memory_bytes <= REGISTERED_MOST;
    return (pgio_reader_options){
        .page_bytes = options->page_bytes,
        .base_byte = options->data_byte,
        .span_bytes = options->page_count * options->page_bytes,
        .memory = registered ? table->cache.memory : NULL,
        .memory_bytes = registered ? table->cache.memory_bytes : 0,
        .engine = options->engine,
        .depth = options->depth,
        .flags = options->flags | PGIO_READER_VERIFY,
    };
}

static int compile_groups(pgio_table *table, const pgio_group *groups, pgio_error *error)
{
    uint32_t *group_of_column = malloc(table->page_columns * sizeof *group_of_column);
    table->groups = calloc(table->group_count, sizeof *table->groups);
    if (!group_of_column || !table->groups) {
        free(group_of_column);
        return pgio_fail(error, ENOMEM, "no memory for a table");
    }
    pgio_place_column_groups(table->place, group_of_column);
    for (uint32_t c = 0; c < table->page_columns; c++) {
        pgio_table_group *group = &table->groups[group_of_column[c]];
        if (group->page_columns++ == 0)
            group->first_page_column = c;
    }
    for (uint32_t g = 0; g < table->group_count; g++) {
        table->groups[g].column_count = groups[g].column_count;
        table->column_count += groups[g].column_count;
    }
    free(group_of_column);
    return 0;
}

int pgio_table_open(pgio_table **out, const char *path, const pgio_table_options *options, const pgio_group *groups,
                    uint32_t group_count, const pgio_region *regions, uint32_t region_count, pgio_error *error)
{
    *out = NULL;
    pgio_table *table = calloc(1, sizeof *table);
    if (!table)
        return pgio_fail(error, ENOMEM, "no memory for a table");
    table->options = *options;
    table->process = getpid();
    table->references = 1;
    pthread_cond_init(&table->queued, NULL);
    table->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int status = table->fd < 0 ? pgio_fail(error, errno, "%s", strerror(errno)) : 0;
    if (!status)
        status = pgio_place_new(&table->place, groups, group_count, regions, region_count, options->page_bytes,
                                options->isa, error);
    if (!status)
        status = check_options(options, groups, group_count, regions, region_count, error);
    if (!status)
        status = pgio_isa_resolve(options->isa, &table->isa, error);
    if (!status && pgio_place_page_count(table->place) != options->page_count)
        status = pgio_fail(error, EINVAL, "the layout takes %" PRIu64 " pages, and the file holds %" PRIu64,
                           pgio_place_page_count(table->place), options->page_count);
    if (!status) {
        table->group_count = group_count;
        table->page_columns = pgio_place_page_columns(table->place);
        table->first_page = pgio_place_first_page(table->place);
        table->row_bytes = (uint32_t)row_bytes_of(options->row_format, options->row_width);
        status = compile_groups(table, groups, error);
    }
    if (!status && options->page_checks) {
        size_t bytes = (size_t)options->page_count * sizeof *table->page_checks;
        table->page_checks = malloc(bytes);
        if (table->page_checks)
            memcpy(table->page_checks, options->page_checks, bytes);
        else
            status = pgio_fail(error, ENOMEM, "no memory for the checks of %" PRIu64 " pages", options->page_count);
    }
    if (!status)
        status = pgio_page_cache_init(&table->cache, options->page_count, options->page_bytes, options->cache_bytes,
                                      table->page_columns, error);
    const pgio_reader_options reading = reading_options(table);
    if (!status)
        status = pgio_reader_check_options(&reading, error);
    if (status) {
        pgio_table_close(table);
        return status;
    }
    *out = table;
    return 0;
}

static void free_table(pgio_table *table)
{
    pgio_fetcher_stop(table);
    pgio_page_cache_free(&table->cache);
    pgio_place_free(table->place);
    pthread_cond_destroy(&table->queued);
    if (table->fd >= 0)
        close(table->fd);
    free(table->page_checks);
    free(table->groups);
    free(table);
}

void pgio_table_acquire(pgio_table *table)
{
    __atomic_add_fetch(&table->references, 1, __ATOMIC_RELAXED);
}

void pgio_table_release(pgio_table *table)
{
    if (__atomic_sub_fetch(&table->references, 1, __ATOMIC_ACQ_REL) == 0)
        free_table(table);
}

void pgio_table_close(pgio_table *table)
{
    /* A fork's copy is left to the end of its process: it shares the rings and lacks the threads. */
    if (table && table->process == getpid())
        pgio_table_release(table);
}

void pgio_table_stats_get(pgio_table *table, pgio_table_stats *stats)
{
    bool shared = table->process == getpid(); /* in a fork's copy, a thread that is not there may hold the lock */
    if (shared)
        pthread_mutex_lock(&table->cache.lock);
    *stats = table->cache.stats;
    if (shared)
        pthread_mutex_unlock(&table->cache.lock);
}

/* ---- clients ---- */

int pgio_client_new(pgio_table_client **out, pgio_table *table, pgio_error *error)
{
    *out = NULL;
    pgio_table_client *client = calloc(1, sizeof *client);
    if (!client)
        return pgio_fail(error, ENOMEM, "no memory for a client");
    client->table = table;
    client->owner = pthread_self();
    uint32_t tokens = BATCH_ACCESSES / table->page_columns, most = table->cache.capacity / table->page_columns;
    tokens = tokens < most ? tokens : most;
    int status = pgio_batch_init(&client->batch, tokens ? tokens : 1, table->page_columns, error);
    size_t places = (size_t)PGIO_OUTPUT_BLOCK * table->column_count;
    client->offsets = malloc(places * sizeof *client->offsets);
    client->rows = malloc(places * sizeof *client->rows);
    client->joined = malloc(table->row_bytes);
    if (!status && (!client->offsets || !client->rows || !client->joined))
        status = pgio_fail(error, ENOMEM, "no memory for a client");
    if (status) {
        pgio_client_free(client);
        return status;
    }
    *out = client;
    return 0;
}

void pgio_client_free(pgio_table_client *client)
{
    pgio_reader_close(client->reader);
    pgio_batch_free(&client->batch);
    free(client->offsets);
    free(client->rows);
    free(client->joined);
    free(client);
}

int pgio_table_client_open(pgio_table_client **out, pgio_table *table, pgio_error *error)
{
    int status = pgio_client_new(out, table, error);
    if (!status)
        pgio_table_acquire(table);
    return status;
}

void pgio_table_client_close(pgio_table_client *client)
{
    if (!client || client->table->process != getpid())
        return;
    pgio_table *table = client->table;
    pgio_client_free(client);
    pgio_table_release(table);
}

int pgio_client_check(const pgio_table_client *client, pgio_error *error)
{
    if (client->table->process != getpid())
        return pgio_fail(error, EINVAL, "a table belongs to the process that opened it; open it again after a fork");
    if (!pthread_equal(client->owner, pthread_self()))
        return pgio_fail(error, EINVAL, "a client belongs to the thread that opened it");
    return 0;
}

int pgio_client_check_rows(pgio_table_client *client, const uint64_t *rows, uint64_t token_count, pgio_error *error)
{
    const pgio_table *table = client->table;
    uint64_t absent = 0, columns = table->column_count, n;
    for (uint64_t i = 0; i < token_count * columns; i++)
        absent |= rows[i] == UINT64_MAX;
    if (absent)
        return pgio_fail(error, ERANGE, "a row is absent (%" PRIu64 "), so there is nothing to give out", UINT64_MAX);
    int64_t status = 0;
    for (uint64_t done = client->batch.token_capacity; done < token_count && status >= 0; done += n) {
        n = token_count - done < client->batch.token_capacity ? token_count - done : client->batch.token_capacity;
        status = pgio_place_pages(table->place, rows + done * columns, n, client->batch.pages, error);
    }
    return status < 0 ? (int)status : 0;
}

static int open_reader(pgio_table_client *client, pgio_error *error)
{
    if (client->reader)
        return 0;
    pgio_table *table = client->table;
    pgio_reader_options reading = reading_options(table);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", table->fd);
    int status = pgio_reader_open(&client->reader, path, &reading, error);
    if (!status) {
        client->reader->page_checks = table->page_checks;
        client->reader->info.fixed_buffers &= reading.memory != NULL; /* those of its own memory serve no frame */
    }
    return status;
}

int pgio_table_client_info(pgio_table_client *client, pgio_reader_info *info, pgio_error *error)
{
    int status = pgio_client_check(client, error);
    if (!status)
        status = open_reader(client, error);
    if (!status)
        pgio_reader_info_get(client->reader, info);
    return status;
}

/* ---- reading ---- */

static void count_waiting(pgio_page_cache *cache, uint64_t since_ns)
{
    pthread_mutex_lock(&cache->lock);
    cache->stats.waiting_ns += pgio_clock_ns() - since_ns;
    pthread_mutex_unlock(&cache->lock);
}

int pgio_client_read(pgio_table_client *client, pgio_batch *batch, pgio_error *error)
{
    if (!batch->read_count)
        return 0;
    bool lost = false;
    int64_t status = open_reader(client, error);
    if (status < 0) {
        for (uint32_t i = 0; i < batch->read_count; i++)
            batch->read_status[i] = (int32_t)status;
    } else {
        for (uint32_t i = 0; i < batch->read_count; i++)
            batch->read_status[i] = -ECANCELED; /* of those that an engine which fails leaves behind */
        status = pgio_reader_scatter(client->reader, batch->read_pages, batch->read_count, batch->read_places,
                                     batch->read_status, error);
        lost = status < 0;
    }
    pgio_page_cache_arrive(&client->table->cache, batch, lost);
    if (lost) {
        pgio_reader_close(client->reader);
        client->reader = NULL;
    }
    return status < 0 ? (int)status : 0;
}

static int describe_damage(const pgio_table *table, uint32_t page, const uint8_t *bytes, pgio_error *error)
{
    uint64_t page_bytes = table->options.page_bytes;
    if (!table->page_checks) {
        const uint8_t *seal = bytes + page_bytes - 8;
        uint32_t number =
            (uint32_t)seal[0] | (uint32_t)seal[1] << 8 | (uint32_t)seal[2] << 16 | (uint32_t)seal[3] << 24;
        if (number != page && pgio_page_sound(bytes, number, page_bytes))
            return pgio_fail(error, EBADMSG, "page %u holds page %u: misplaced in the file, or read from elsewhere",
                             page, number);
    }
    return pgio_fail(error, EBADMSG, "page %u is damaged: its bytes do not match its checksum", page);
}

static int describe_failure(const pgio_table *table, const pgio_batch *batch, int64_t place, pgio_error *error)
{
    uint32_t index = batch->frames[place], page = batch->pages[place];
    int32_t status = table->cache.frames[index].status;
    if (status == PGIO_STATUS_CORRUPT)
        return describe_damage(table, page, pgio_frame_memory(&table->cache, index), error);
    if (status == PGIO_STATUS_SHORT)
        return pgio_fail(error, EIO, "page %u cannot be read whole: the file has become shorter", page);
    if (status <= PGIO_STATUS_NVME)
        return pgio_fail(error, EIO, "page %u cannot be read: NVMe status %d", page, PGIO_STATUS_NVME - status);
    return pgio_fail(error, -status, "page %u cannot be read: %s", page, strerror(-status));
}

/* ---- looking up ---- */

int pgio_client_give(pgio_table_client *client, pgio_batch *batch, const uint64_t *rows,
                     const pgio_table_output *output, pgio_error *error)
{
    pgio_page_cache *cache = &client->table->cache;
    uint64_t started_ns = batch->waits ? pgio_clock_ns() : 0;
    int64_t failed = pgio_page_cache_await(cache, batch);
    if (batch->waits)
        count_waiting(cache, started_ns);
    if (failed >= 0)
        return describe_failure(client->table, batch, failed, error);
    int status = 0;
    for (uint64_t done = 0; done < batch->token_count && !status; done += PGIO_OUTPUT_BLOCK) {
        uint64_t n = batch->token_count - done < PGIO_OUTPUT_BLOCK ? batch->token_count - done : PGIO_OUTPUT_BLOCK;
        status = pgio_output_rows(client, batch, done, n, rows + done * client->table->column_count, output, error);
    }
    return status;
}

int64_t pgio_table_lookup(pgio_table_client *client, const uint64_t *rows, uint64_t token_count,
                          const pgio_table_output *output, pgio_error *error)
{
    pgio_table *table = client->table;
    pgio_page_cache *cache = &table->cache;
    pgio_table_output to = *output;
    int64_t status = pgio_client_check(client, error);
    if (!status)
        status = pgio_output_check(output, error);
    if (!status)
        status = pgio_client_check_rows(client, rows, token_count, error);
    for (uint64_t done = 0; done < token_count && status >= 0;) {
        uint64_t left = token_count - done;
        uint32_t n = left < client->batch.token_capacity ? (uint32_t)left : client->batch.token_capacity;
        status = pgio_place_pages(table->place, rows, n, client->batch.pages, error);
        if (status >= 0)
            status = pgio_page_cache_take(cache, &client->batch, n, true, error);
        if (status < 0)
            break;
        uint64_t taken = (uint64_t)status, started_ns = client->batch.read_count ? pgio_clock_ns() : 0;
        status = pgio_client_read(client, &client->batch, error);
        if (started_ns)
            count_waiting(cache, started_ns);
        if (status >= 0)
            status = pgio_client_give(client, &client->batch, rows, &to, error);
        pthread_mutex_lock(&cache->lock);
        pgio_page_cache_release_locked(cache, &client->batch);
        cache->stats.lookups += status < 0 ? 0 : taken;
        pthread_mutex_unlock(&cache->lock);
        done += taken;
        rows += taken * table->column_count;
        to.memory = (uint8_t *)to.memory + (int64_t)taken * to.token_stride_bytes;
    }
    return status < 0 ? status : (int64_t)token_count;
}
