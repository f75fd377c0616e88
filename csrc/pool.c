/* pool.c: reads by threads that call pread, for where io_uring is forbidden or missing.
 *
 * One thread for each read in flight: pread blocks, so threads are the depth. Two rings of slot numbers
 * under one lock, queued and done; each has room for depth entries and so never overflows. The owner
 * alone touches the reader; threads see only the slot that they were given. */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "reader.h"
#include "thread.h"

#define THREADS_MAX 4096
#define STACK_BYTES ((size_t)64 << 10)

typedef struct done_read {
    uint32_t slot;
    int64_t result;
} done_read;

struct pgio_pool {
    pgio_reader *reader;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    uint32_t *queued; /* a ring of depth slots */
    done_read *done;
    uint32_t depth, queued_first, queued_count, done_first, done_count, thread_count;
    bool stopping;
    pthread_t threads[THREADS_MAX];
};

static int64_t read_slot_now(const pgio_reader *reader, const read_slot *slot)
{
    ssize_t got =
        pread(reader->files[slot->file].fd, slot->memory, (size_t)reader->options.page_bytes, (off_t)slot->byte);
    return got < 0 ? -errno : got;
}

static void *serve(void *argument)
{
    pgio_pool *pool = argument;
    const uint64_t one = 1;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->queued_count && !pool->stopping)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (!pool->queued_count)
            break;
        uint32_t slot = pool->queued[pool->queued_first];
        pool->queued_first = (pool->queued_first + 1) % pool->depth;
        pool->queued_count--;
        pthread_mutex_unlock(&pool->lock);
        int64_t result = read_slot_now(pool->reader, &pool->reader->slots[slot]);
        pthread_mutex_lock(&pool->lock);
        pool->done[(pool->done_first + pool->done_count++) % pool->depth] = (done_read){slot, result};
        pthread_cond_signal(&pool->finished);
        if (__atomic_load_n(&pool->reader->signals, __ATOMIC_RELAXED) &&
            write(pool->reader->event_fd, &one, sizeof one) < 0)
            continue; /* the counter is full, so it is readable already */
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int pgio_pool_open(pgio_reader *reader, pgio_error *error)
{
    uint32_t depth = reader->options.depth;
    if (depth > THREADS_MAX)
        return pgio_fail(error, EINVAL,
                         "engine psync takes a thread for each read in flight, at most %d; "
                         "depth %u is too large",
                         THREADS_MAX, depth);
    pgio_pool *pool = calloc(1, sizeof *pool);
    if (pool) {
        pool->queued = calloc(depth, sizeof *pool->queued);
        pool->done = calloc(depth, sizeof *pool->done);
    }
    if (!pool || !pool->queued || !pool->done) {
        if (pool) {
            free(pool->queued);
            free(pool->done);
        }
        free(pool);
        return pgio_fail(error, ENOMEM, "no memory for %u threads", depth);
    }
    pool->reader = reader;
    pool->depth = depth;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    int status = 0;
    for (; pool->thread_count < depth && !status; pool->thread_count += status == 0)
        status = pgio_thread_new(&pool->threads[pool->thread_count], &small, serve, pool);
    pthread_attr_destroy(&small);
    reader->pool = pool;
    if (!status)
        return 0;
    uint32_t made = pool->thread_count;
    pgio_pool_close(pool);
    reader->pool = NULL;
    return pgio_fail(error, status, "only %u of %u threads could be made; use a smaller --depth", made, depth);
}

void pgio_pool_close(pgio_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->finished);
    pthread_mutex_destroy(&pool->lock);
    free(pool->queued);
    free(pool->done);
    free(pool);
}

void pgio_pool_prepare(pgio_reader *reader, uint32_t slot)
{
    pgio_pool *pool = reader->pool;
    pthread_mutex_lock(&pool->lock);
    pool->queued[(pool->queued_first + pool->queued_count++) % pool->depth] = slot;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

/* Reads that no thread has begun end at once; a pread that has begun cannot be stopped. */
int pgio_pool_cancel(pgio_reader *reader)
{
    pgio_pool *pool = reader->pool;
    pthread_mutex_lock(&pool->lock);
    while (pool->queued_count) {
        uint32_t slot = pool->queued[pool->queued_first];
        pool->queued_first = (pool->queued_first + 1) % pool->depth;
        pool->queued_count--;
        pool->done[(pool->done_first + pool->done_count++) % pool->depth] = (done_read){slot, -ECANCELED};
    }
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

int pgio_pool_enter(pgio_reader *reader, uint32_t wait_count, uint64_t timeout_ns)
{
    pgio_pool *pool = reader->pool;
    uint64_t until_ns = pgio_clock_ns() + (timeout_ns > 1000000000 ? 1000000000 : timeout_ns);
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000)};
    uint32_t finished = 0;
    reader->stats.waits++;
    pthread_mutex_lock(&pool->lock);
    for (bool timed_out = false; !timed_out;) {
        while (pool->done_count) {
            done_read done = pool->done[pool->done_first];
            pool->done_first = (pool->done_first + 1) % pool->depth;
            pool->done_count--;
            finished++;
            pthread_mutex_unlock(&pool->lock);
            reader->now_ns = pgio_clock_ns();
            pgio_reader_finish(reader, done.slot, done.result); /* may prepare the read again */
            pthread_mutex_lock(&pool->lock);
        }
        if (finished >= wait_count)
            break;
        timed_out = pthread_cond_timedwait(&pool->finished, &pool->lock, &until) == ETIMEDOUT;
    }
    pthread_mutex_unlock(&pool->lock);
    return 0;
}
