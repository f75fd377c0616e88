/* reader.c: pages of a file or device into memory, a given number in flight.
 *
 * Owns the rules of a read: alignment, retries, what counts as an error, and the two faces that deliver pages.
 * The engines (ring.c, pool.c) know only how to start a read and when it ended; measure.c counts and times.
 * Slots are reads in flight; their number is the depth. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "crc32c.h"
#include "reader.h"

#define AGAIN_MAX 16
#define ALIGNMENT 4096 /* of memory: covers 512e and 4Kn drives and every file system tried */

/* ---- opening ---- */

int pgio_reader_check_options(const pgio_reader_options *options, pgio_error *error)
{
    if (options->page_bytes < 512 || options->page_bytes > (uint64_t)1 << 30 ||
        options->page_bytes & (options->page_bytes - 1))
        return pgio_fail(error, EINVAL, "a page of %" PRIu64 " bytes; it is a power of two from 512 to 2^30",
                         options->page_bytes);
    if (options->depth < 1 || options->depth > 32768)
        return pgio_fail(error, EINVAL, "depth %u is not in 1 to 32768", options->depth);
    if (options->base_byte % options->page_bytes)
        return pgio_fail(error, EINVAL, "page 0 would lie at byte %" PRIu64 ", which is not a multiple of %" PRIu64,
                         options->base_byte, options->page_bytes);
    if (options->engine > PGIO_ENGINE_NVME)
        return pgio_fail(error, EINVAL, "engine %u is not known", options->engine);
    if ((uintptr_t)options->memory % ALIGNMENT || (options->memory && !options->memory_bytes))
        return pgio_fail(error, EINVAL, "memory for reads starts on a multiple of %d bytes and is not empty",
                         ALIGNMENT);
    if (options->flags & PGIO_READER_IOPOLL && options->flags & PGIO_READER_BUFFERED)
        return pgio_fail(error, EINVAL, "polled completions need O_DIRECT; they cannot be buffered");
    return 0;
}

static int make_slots(pgio_reader *reader, pgio_error *error)
{
    uint32_t depth = reader->options.depth;
    reader->slots = calloc(depth, sizeof *reader->slots);
    reader->free_slots = calloc(depth, sizeof *reader->free_slots);
    reader->outcomes = calloc(depth, sizeof *reader->outcomes);
    if (!reader->options.memory) {
        reader->options.memory_bytes = (uint64_t)depth << reader->page_shift;
        reader->options.memory = pgio_zeroed(reader->options.memory_bytes);
        reader->owns_memory = true;
    }
    if (!reader->slots || !reader->free_slots || !reader->outcomes || !reader->options.memory)
        return pgio_fail(error, ENOMEM, "no memory for %u reads in flight", depth);
    for (uint32_t i = 0; i < depth; i++)
        reader->free_slots[i] = depth - 1 - i;
    reader->free_count = depth;
    return 0;
}

static const char *engine_name(uint32_t engine)
{
    return engine == PGIO_ENGINE_IO_URING ? "io_uring" : engine == PGIO_ENGINE_NVME ? "nvme" : "psync";
}

/* auto takes io_uring and falls back to threads only where io_uring cannot be had; info says so. */
static int open_engine(pgio_reader *reader, pgio_error *error)
{
    pgio_error ring_error = {{0}};
    uint32_t wanted = reader->options.engine;
    if (reader->info.engine != PGIO_ENGINE_NVME)
        reader->info.engine = wanted == PGIO_ENGINE_AUTO ? PGIO_ENGINE_IO_URING : wanted;
    if (reader->info.engine != PGIO_ENGINE_PSYNC) {
        snprintf(reader->info.why, sizeof reader->info.why, "%s",
                 wanted == PGIO_ENGINE_AUTO ? "the best here" : "asked for");
        int status = pgio_ring_open(reader, &ring_error);
        if (!status)
            return 0;
        bool needed = wanted != PGIO_ENGINE_AUTO || reader->info.engine == PGIO_ENGINE_NVME ||
                      reader->options.flags & (PGIO_READER_IOPOLL | PGIO_READER_SQPOLL);
        if (needed)
            return pgio_fail(error, -status, "%s", ring_error.text);
    }
    reader->info.engine = PGIO_ENGINE_PSYNC;
    snprintf(reader->info.why, sizeof reader->info.why, "%.180s",
             wanted == PGIO_ENGINE_AUTO ? ring_error.text : "asked for");
    return pgio_pool_open(reader, error);
}

/* Opens one target, or the files of some windows. */
static int open_reader(pgio_reader **out, const char *const *paths, uint32_t path_count, const pgio_window *windows,
                       uint32_t window_count, const pgio_reader_options *options, pgio_error *error)
{
    *out = NULL;
    int status = pgio_reader_check_options(options, error);
    if (status)
        return status;
    pgio_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return pgio_fail(error, ENOMEM, "no memory for a reader");
    reader->options = *options;
    reader->event_fd = -1;
    reader->owner = pthread_self();
    reader->page_shift = (uint32_t)__builtin_ctzll(options->page_bytes);
    status = windows ? pgio_target_open_files(reader, paths, path_count, windows, window_count, error)
                     : pgio_target_open(reader, paths[0], error);
    if (!status)
        status = make_slots(reader, error);
    if (!status && (reader->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0)
        status = pgio_fail(error, errno, "no eventfd: %s", strerror(errno));
    if (!status)
        status = open_engine(reader, error);
    if (status) {
        pgio_reader_close(reader);
        return status;
    }
    pgio_reader_stats_reset(reader);
    *out = reader;
    return 0;
}

int pgio_reader_open(pgio_reader **out, const char *path, const pgio_reader_options *options, pgio_error *error)
{
    return open_reader(out, &path, 1, NULL, 0, options, error);
}

int pgio_reader_open_files(pgio_reader **out, const char *const *paths, uint32_t path_count, const pgio_window *windows,
                           uint32_t window_count, const pgio_reader_options *options, pgio_error *error)
{
    *out = NULL;
    if (!path_count || !window_count)
        return pgio_fail(error, EINVAL, "no files to read from");
    if (options->base_byte || options->span_bytes)
        return pgio_fail(error, EINVAL, "windows say where pages lie, so there is no offset and no span");
    return open_reader(out, paths, path_count, windows, window_count, options, error);
}

static int engine_failed(const pgio_reader *reader, int status, pgio_error *error)
{
    return pgio_fail(error, -status, "engine %s failed: %s", engine_name(reader->info.engine), strerror(-status));
}

int pgio_reader_enter(pgio_reader *reader, uint32_t wait_count, uint64_t timeout_ns, pgio_error *error)
{
    int status = reader->ring ? pgio_ring_enter(reader, wait_count, timeout_ns)
                              : pgio_pool_enter(reader, wait_count, timeout_ns);
    return status ? engine_failed(reader, status, error) : 0;
}

void pgio_reader_close(pgio_reader *reader)
{
    if (!reader)
        return;
    /* The kernel writes to memory that is about to go, so nothing may be in flight. */
    while (reader->in_flight && (reader->ring || reader->pool))
        if (pgio_reader_enter(reader, reader->in_flight, 1000000000, NULL))
            break;
    const pgio_ring *ring = reader->ring;
    pgio_ring_close(reader->ring);
    pgio_pool_close(reader->pool);
    pgio_target_close(reader);
    if (reader->event_fd >= 0)
        close(reader->event_fd);
    /* Another thread cannot wait for io_uring's reads; memory that they may still land in is left mapped. */
    if (reader->owns_memory && (!reader->in_flight || !ring))
        pgio_unmap(reader->options.memory, reader->options.memory_bytes);
    free(reader->slots);
    free(reader->free_slots);
    free(reader->outcomes);
    free(reader);
}

void pgio_reader_info_get(const pgio_reader *reader, pgio_reader_info *info)
{
    *info = reader->info;
}

int pgio_reader_eventfd(const pgio_reader *reader)
{
    return reader->event_fd;
}

uint32_t pgio_reader_in_flight(const pgio_reader *reader)
{
    return reader->in_flight;
}

/* ---- one read ---- */

static void engine_prepare(pgio_reader *reader, uint32_t slot)
{
    if (reader->ring)
        pgio_ring_prepare(reader, slot);
    else
        pgio_pool_prepare(reader, slot);
}

void pgio_reader_start(pgio_reader *reader, uint64_t page, void *memory, uint64_t tag)
{
    uint32_t index = reader->free_slots[--reader->free_count];
    read_slot *slot = &reader->slots[index];
    const pgio_window *window = pgio_window_of(reader, page);
    uint64_t byte = window->byte + ((page - window->page_begin) << reader->page_shift);
    uint64_t left = reader->files[window->file].bytes - byte;
    *slot = (read_slot){
        .page = page, .byte = byte, .file = window->file, .tag = tag, .memory = memory, .start_ns = reader->now_ns};
    slot->bytes = (uint32_t)(left < reader->options.page_bytes ? left : reader->options.page_bytes);
    if (!memory)
        slot->memory = (uint8_t *)reader->options.memory + ((uint64_t)index << reader->page_shift);
    if (reader->options.flags & PGIO_READER_CLOCK_EACH)
        slot->start_ns = pgio_clock_ns();
    pgio_reader_count_depth(reader);
    reader->in_flight++;
    reader->cancelling = false;
    engine_prepare(reader, index);
}

static bool read_again(pgio_reader *reader, uint32_t index, read_slot *slot, int64_t result)
{
    if (reader->cancelling)
        return false;
    if (result == -EINTR || result == -EAGAIN) {
        if (slot->again_count++ >= AGAIN_MAX)
            return false;
    } else {
        if (result < 0 || result >= slot->bytes || slot->was_short)
            return false;
        slot->was_short = true; /* once more, as a whole page */
    }
    reader->stats.retries++;
    engine_prepare(reader, index);
    return true;
}

static bool is_sound(const pgio_reader *reader, const read_slot *slot)
{
    uint64_t page_bytes = reader->options.page_bytes;
    if (reader->page_checks)
        return pgio_crc32c(slot->memory, page_bytes) == reader->page_checks[slot->page];
    return pgio_page_sound(slot->memory, slot->page, page_bytes);
}

void pgio_reader_finish(pgio_reader *reader, uint32_t index, int64_t result)
{
    read_slot *slot = &reader->slots[index];
    if (read_again(reader, index, slot, result))
        return;
    uint64_t end_ns = reader->options.flags & PGIO_READER_CLOCK_EACH ? pgio_clock_ns() : reader->now_ns;
    int64_t status = result < 0 ? result : result < slot->bytes ? PGIO_STATUS_SHORT : (int64_t)slot->bytes;
    if (status >= 0 && slot->bytes < reader->options.page_bytes)
        memset((uint8_t *)slot->memory + slot->bytes, 0, reader->options.page_bytes - slot->bytes);
    if (status >= 0 && reader->options.flags & PGIO_READER_VERIFY && !is_sound(reader, slot))
        status = PGIO_STATUS_CORRUPT;
    pgio_reader_count_depth(reader);
    reader->in_flight--;
    reader->free_slots[reader->free_count++] = index;
    pgio_reader_count(reader, slot, status, end_ns);
    if (slot->tag != UINT64_MAX) {
        uint32_t at = (reader->outcome_first + reader->outcome_count++) % reader->options.depth;
        reader->outcomes[at] = (pgio_completion){.tag = slot->tag, .status = (int32_t)status};
    }
}

int pgio_reader_check(const pgio_reader *reader, const uint64_t *pages, uint64_t count, pgio_error *error)
{
    /* The kernel refuses another thread (SINGLE_ISSUER), but only after reads have been queued, which the owner
     * would then send to memory that is no longer there. So it is refused here, and alike with every engine. */
    if (!pthread_equal(reader->owner, pthread_self()))
        return pgio_fail(error, EEXIST, "a reader belongs to the thread that opened it");
    for (uint64_t i = 0; i < count; i++)
        if (pages[i] >= reader->info.page_count)
            return pgio_fail(error, ERANGE, "page %" PRIu64 " is not in a target of %" PRIu64 " pages", pages[i],
                             reader->info.page_count);
    return 0;
}

/* ---- the blocking face ---- */

static int64_t take_outcomes(pgio_reader *reader, int32_t *status, uint64_t *ended)
{
    int64_t failed = 0;
    for (; reader->outcome_count; reader->outcome_count--, ++*ended) {
        pgio_completion outcome = reader->outcomes[reader->outcome_first];
        reader->outcome_first = (reader->outcome_first + 1) % reader->options.depth;
        status[outcome.tag] = outcome.status;
        failed += outcome.status < 0;
    }
    return failed;
}

/* Page i goes to places[i], or, without places, to memory + i * page_bytes. */
static int64_t read_all(pgio_reader *reader, const uint64_t *pages, uint64_t count, uint8_t *memory,
                        void *const *places, int32_t *status, pgio_error *error)
{
    uint32_t depth = reader->options.depth, batch = pgio_reader_batch(depth);
    int64_t failed = 0;
    bool probing = true; /* as in pump: reads that end while they are submitted come in large batches */
    for (uint64_t started = 0, ended = 0; ended < count;) {
        reader->now_ns = pgio_clock_ns();
        for (uint32_t i = 0; i < batch && reader->free_count && started < count; i++, started++) {
            void *place = places ? places[started] : memory + (started << reader->page_shift);
            pgio_reader_start(reader, pages[started], place, started);
        }
        bool full = !probing && (reader->free_count == 0 || started == count);
        int code = pgio_reader_enter(reader, full ? 1 : 0, full ? 1000000000 : 0, error);
        if (code)
            return code;
        if (probing && reader->in_flight == 0)
            batch = depth;
        probing = false;
        failed += take_outcomes(reader, status, &ended);
    }
    return failed;
}

int64_t pgio_reader_read(pgio_reader *reader, const uint64_t *pages, uint64_t count, void *memory, int32_t *status,
                         pgio_error *error)
{
    int code = pgio_reader_check(reader, pages, count, error);
    if (code)
        return code;
    if ((uintptr_t)memory % ALIGNMENT)
        return pgio_fail(error, EINVAL, "memory for reads starts on a multiple of %d bytes", ALIGNMENT);
    if (reader->in_flight || reader->outcome_count)
        return pgio_fail(error, EBUSY, "%u reads are still in flight or not polled", reader->in_flight);
    return read_all(reader, pages, count, memory, NULL, status, error);
}

int64_t pgio_reader_scatter(pgio_reader *reader, const uint64_t *pages, uint64_t count, void *const *places,
                            int32_t *status, pgio_error *error)
{
    int code = pgio_reader_check(reader, pages, count, error);
    return code ? code : read_all(reader, pages, count, NULL, places, status, error);
}

/* ---- the non-blocking face ---- */

int64_t pgio_reader_submit(pgio_reader *reader, const uint64_t *pages, void *const *memory, const uint64_t *tags,
                           uint64_t count, pgio_error *error)
{
    /* An outcome keeps its place until it is polled. */
    uint32_t room = reader->free_count > reader->outcome_count ? reader->free_count - reader->outcome_count : 0;
    count = count < room ? count : room;
    int status = pgio_reader_check(reader, pages, count, error);
    for (uint64_t i = 0; i < count && !status; i++)
        if ((uintptr_t)memory[i] % ALIGNMENT || !memory[i] || tags[i] == UINT64_MAX)
            status = pgio_fail(error, EINVAL,
                               "read %" PRIu64 ": memory starts on a multiple of %d bytes and tags are below "
                               "2^64 - 1",
                               i, ALIGNMENT);
    if (status)
        return status;
    if (!reader->signals) {
        __atomic_store_n(&reader->signals, true, __ATOMIC_RELAXED);
        if (reader->ring)
            pgio_ring_signal(reader);
    }
    reader->now_ns = pgio_clock_ns();
    for (uint64_t i = 0; i < count; i++)
        pgio_reader_start(reader, pages[i], memory[i], tags[i]);
    status = pgio_reader_enter(reader, 0, 0, error);
    return status ? status : (int64_t)count;
}

int64_t pgio_reader_poll(pgio_reader *reader, pgio_completion *completions, uint64_t count, pgio_error *error)
{
    int status = pgio_reader_check(reader, NULL, 0, error);
    if (status)
        return status;
    uint64_t signalled;
    if (read(reader->event_fd, &signalled, sizeof signalled) < 0 && errno != EAGAIN)
        return pgio_fail(error, errno, "the eventfd cannot be read: %s", strerror(errno));
    status = pgio_reader_enter(reader, 0, 0, error);
    if (status)
        return status;
    uint64_t given = 0;
    for (; given < count && reader->outcome_count; reader->outcome_count--) {
        completions[given++] = reader->outcomes[reader->outcome_first];
        reader->outcome_first = (reader->outcome_first + 1) % reader->options.depth;
    }
    const uint64_t one = 1;
    if (reader->outcome_count && write(reader->event_fd, &one, sizeof one) < 0)
        return (int64_t)given; /* its counter is full, so it is readable */
    return (int64_t)given;
}

int pgio_reader_cancel(pgio_reader *reader, pgio_error *error)
{
    int status = pgio_reader_check(reader, NULL, 0, error);
    if (status)
        return status;
    reader->cancelling = true;
    status = reader->ring ? pgio_ring_cancel(reader) : pgio_pool_cancel(reader);
    return status ? engine_failed(reader, status, error) : 0;
}
