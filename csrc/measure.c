/* measure.c: what a reader counts and times, and the face that only measures.
 *
 * Owns all statistics: errors by kind, latencies in log-linear buckets, the depth over time. Time is read once a
 * batch of completions, so a latency runs from the reading of the clock at which a read was prepared to the one at
 * which it was reaped. Pumping keeps the depth in flight and drops the data. */
#include <time.h>

#include "reader.h"

uint64_t pgio_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- statistics ---- */

void pgio_reader_stats_get(const pgio_reader *reader, pgio_reader_stats *stats)
{
    *stats = reader->stats;
}

void pgio_reader_stats_reset(pgio_reader *reader)
{
    memset(&reader->stats, 0, sizeof reader->stats);
    memset(reader->histogram, 0, sizeof reader->histogram);
    reader->stats.first_error_byte = UINT64_MAX;
    reader->stats.latency_min_ns = UINT64_MAX;
    reader->now_ns = reader->counted_ns = pgio_clock_ns();
}

void pgio_reader_histogram(const pgio_reader *reader, uint64_t *counts)
{
    memcpy(counts, reader->histogram, sizeof reader->histogram);
}

void pgio_reader_count_depth(pgio_reader *reader)
{
    if (reader->now_ns <= reader->counted_ns)
        return;
    reader->stats.depth_ns += (reader->now_ns - reader->counted_ns) * reader->in_flight;
    reader->counted_ns = reader->now_ns;
}

static void count_error(pgio_reader *reader, const read_slot *slot, int64_t status)
{
    pgio_reader_stats *stats = &reader->stats;
    ++*PGIO_ERROR_COUNTER(stats, status);
    if (stats->first_error_byte == UINT64_MAX) {
        stats->first_error_byte = slot->byte;
        stats->first_error_file = slot->file;
        stats->first_error_status = status;
    }
}

void pgio_reader_count(pgio_reader *reader, const read_slot *slot, int64_t status, uint64_t end_ns)
{
    if (status < 0) {
        count_error(reader, slot, status);
        return;
    }
    uint64_t latency_ns = end_ns > slot->start_ns ? end_ns - slot->start_ns : 0;
    pgio_reader_stats *stats = &reader->stats;
    stats->reads++;
    stats->bytes += (uint64_t)status;
    stats->latency_sum_ns += latency_ns;
    stats->latency_min_ns = latency_ns < stats->latency_min_ns ? latency_ns : stats->latency_min_ns;
    stats->latency_max_ns = latency_ns > stats->latency_max_ns ? latency_ns : stats->latency_max_ns;
    reader->histogram[histogram_bucket(latency_ns)]++;
}

static uint64_t error_count(const pgio_reader *reader)
{
    const pgio_reader_stats *stats = &reader->stats;
    return stats->errors_eio + stats->errors_enodata + stats->errors_short + stats->errors_corrupt +
           stats->errors_other;
}

/* ---- the measuring face ---- */

static uint64_t timeout_until(uint64_t deadline_ns, uint64_t now_ns)
{
    uint64_t left = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    return left < 50000000 ? left : 50000000; /* a stuck device must not keep its caller longer */
}

int64_t pgio_reader_pump(pgio_reader *reader, const uint64_t *pages, uint64_t count, uint64_t deadline_ns,
                         uint64_t max_errors, pgio_error *error)
{
    int status = pgio_reader_check(reader, pages, count, error);
    if (status)
        return status;
    if (reader->options.memory_bytes >> reader->page_shift < reader->options.depth)
        return pgio_fail(error, EINVAL, "the registered memory holds fewer than the %u pages of the depth",
                         reader->options.depth);
    /* Reads that end while they are submitted, as those of holes and of cached pages do, cost nothing but CPU,
     * which large batches save; the first batch tells. */
    uint32_t depth = reader->options.depth, batch = pgio_reader_batch(depth);
    uint64_t started = 0;
    bool probing = true;
    reader->now_ns = pgio_clock_ns();
    while (started < count && reader->now_ns < deadline_ns && error_count(reader) <= max_errors) {
        for (uint32_t i = 0; i < batch && reader->free_count && started < count; i++, started++)
            pgio_reader_start(reader, pages[started], NULL, UINT64_MAX);
        bool full = reader->free_count == 0 && !probing;
        uint64_t timeout_ns = full ? timeout_until(deadline_ns, reader->now_ns) : 0;
        status = pgio_reader_enter(reader, full ? 1 : 0, timeout_ns, error);
        if (status)
            return status;
        if (probing && reader->in_flight == 0)
            batch = depth;
        probing = false;
        if (reader->free_count == 0)
            reader->now_ns = pgio_clock_ns(); /* nothing came back: has the time come? */
    }
    reader->now_ns = pgio_clock_ns();
    pgio_reader_count_depth(reader); /* up to now, or a stall at the end would not count */
    return (int64_t)started;
}

int64_t pgio_reader_drain(pgio_reader *reader, uint64_t deadline_ns, pgio_error *error)
{
    int status = pgio_reader_check(reader, NULL, 0, error);
    if (status)
        return status;
    while (reader->in_flight) {
        uint64_t timeout_ns = timeout_until(deadline_ns, pgio_clock_ns());
        status = pgio_reader_enter(reader, reader->in_flight, timeout_ns, error);
        if (status)
            return status;
        if (!timeout_ns)
            break;
    }
    reader->now_ns = pgio_clock_ns();
    pgio_reader_count_depth(reader);
    return reader->in_flight;
}

int64_t pgio_reader_steps(pgio_reader *reader, const uint64_t *pages, const uint64_t *step_ends, uint64_t step_count,
                          uint64_t deadline_ns, uint64_t max_errors, uint64_t *step_ns, pgio_error *error)
{
    uint64_t begin = 0;
    for (uint64_t s = 0; s < step_count; begin = step_ends[s++]) {
        uint64_t started_ns = pgio_clock_ns();
        if (started_ns >= deadline_ns || error_count(reader) > max_errors)
            return (int64_t)s;
        int64_t result = step_ends[s] < begin ? pgio_fail(error, EINVAL, "step ends go backwards") : 0;
        if (!result)
            result = pgio_reader_pump(reader, pages + begin, step_ends[s] - begin, UINT64_MAX, UINT64_MAX, error);
        if (result >= 0)
            result = pgio_reader_drain(reader, UINT64_MAX, error);
        if (result < 0)
            return result;
        step_ns[s] = reader->now_ns - started_ns;
    }
    return (int64_t)step_count;
}
