/* The reader on a file of its own: every face, both engines, under the sanitizers.
 *
 * Buffered, so that it runs on any file system; O_DIRECT and devices are tests/test_reader.py's. */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "check.h"
#include "internal.h"

#define PAGE_BYTES 4096
#define PAGES      300
#define TAIL_BYTES 777
#define DEPTH      16

static char path[4096];

static int write_file(void)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/pgio-reader-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    uint8_t *memory = malloc((PAGES + 1) * PAGE_BYTES);
    CHECK(memory);
    pgio_pages_fill(memory, 0, PAGES + 1, PAGE_BYTES, 9);
    size_t bytes = (size_t)PAGES * PAGE_BYTES + TAIL_BYTES;
    CHECK(write(fd, memory, bytes) == (ssize_t)bytes);
    free(memory);
    close(fd);
    return 0;
}

/* *out is NULL where io_uring is not to be had. */
static int open_reader(pgio_reader **out, uint32_t engine, uint32_t flags, uint32_t depth)
{
    const pgio_reader_options options = {
        .page_bytes = PAGE_BYTES, .engine = engine, .depth = depth, .flags = flags | PGIO_READER_BUFFERED};
    pgio_error error = {{0}};
    int status = pgio_reader_open(out, path, &options, &error);
    if (status)
        fprintf(stderr, "%s\n", error.text);
    CHECK(status == 0 || (engine == PGIO_ENGINE_IO_URING && (status == -EPERM || status == -ENOSYS)));
    return 0;
}

static int check_page(const uint8_t *memory, uint64_t page)
{
    uint8_t wanted[PAGE_BYTES];
    pgio_pages_fill(wanted, page, 1, PAGE_BYTES, 9);
    if (page == PAGES)
        memset(wanted + TAIL_BYTES, 0, PAGE_BYTES - TAIL_BYTES);
    CHECK(memcmp(memory, wanted, PAGE_BYTES) == 0);
    return 0;
}

static int check_blocking(pgio_reader *reader)
{
    enum { COUNT = 100 };
    uint64_t pages[COUNT];
    int32_t status[COUNT];
    for (uint64_t i = 0; i < COUNT; i++)
        pages[i] = i ? pgio_mix(i) % (PAGES + 1) : PAGES;
    uint8_t *memory = aligned_alloc(4096, COUNT * PAGE_BYTES);
    CHECK(memory);
    pgio_error error = {{0}};
    CHECK(pgio_reader_read(reader, pages, COUNT, memory, status, &error) == 0);
    for (uint64_t i = 0; i < COUNT; i++) {
        CHECK(status[i] == (pages[i] == PAGES ? TAIL_BYTES : PAGE_BYTES));
        CHECK(check_page(memory + i * PAGE_BYTES, pages[i]) == 0);
    }
    CHECK(pgio_reader_read(reader, pages, 0, memory, status, &error) == 0);
    CHECK(pgio_reader_read(reader, pages, 1, memory + 8, status, &error) == -EINVAL);
    pages[1] = PAGES + 1;
    CHECK(pgio_reader_read(reader, pages, 2, memory, status, &error) == -ERANGE);
    CHECK(pgio_reader_in_flight(reader) == 0);
    free(memory);
    return 0;
}

static int check_non_blocking(pgio_reader *reader)
{
    enum { COUNT = 90 };
    uint8_t *memory = aligned_alloc(4096, COUNT * PAGE_BYTES);
    uint64_t pages[COUNT], tags[COUNT];
    void *places[COUNT];
    bool ended[COUNT] = {false};
    CHECK(memory);
    for (uint64_t i = 0; i < COUNT; i++) {
        pages[i] = pgio_mix(i + 1000) % PAGES;
        tags[i] = i;
        places[i] = memory + i * PAGE_BYTES;
    }
    pgio_error error = {{0}};
    for (uint64_t started = 0, done = 0; done < COUNT;) {
        int64_t taken =
            pgio_reader_submit(reader, pages + started, places + started, tags + started, COUNT - started, &error);
        CHECK(taken >= 0 && taken <= DEPTH);
        started += (uint64_t)taken;
        struct pollfd waiting = {.fd = pgio_reader_eventfd(reader), .events = POLLIN};
        CHECK(poll(&waiting, 1, 10000) == 1);
        pgio_completion completions[4];
        int64_t count = pgio_reader_poll(reader, completions, 4, &error);
        CHECK(count >= 0 && count <= 4);
        for (int64_t i = 0; i < count; i++, done++) {
            CHECK(completions[i].tag < COUNT && completions[i].status == PAGE_BYTES);
            CHECK(!ended[completions[i].tag]);
            ended[completions[i].tag] = true;
            CHECK(check_page(memory + completions[i].tag * PAGE_BYTES, pages[completions[i].tag]) == 0);
        }
    }
    CHECK(pgio_reader_submit(reader, pages, places, tags, DEPTH, &error) == DEPTH);
    CHECK(pgio_reader_cancel(reader, &error) == 0);
    for (int done = 0; done < DEPTH;) {
        pgio_completion completions[DEPTH];
        int64_t count = pgio_reader_poll(reader, completions, DEPTH, &error);
        CHECK(count >= 0);
        done += (int)count;
    }
    CHECK(pgio_reader_in_flight(reader) == 0);
    free(memory);
    return 0;
}

static int check_measuring(pgio_reader *reader)
{
    enum { COUNT = 1000, STEPS = 50 };
    uint64_t pages[COUNT], ends[STEPS], times[STEPS], *counts = calloc(PGIO_HISTOGRAM_BUCKETS, sizeof *counts);
    CHECK(counts);
    for (uint64_t i = 0; i < COUNT; i++)
        pages[i] = pgio_mix(i + 5000) % PAGES;
    for (uint64_t s = 0; s < STEPS; s++)
        ends[s] = (s + 1) * (COUNT / STEPS);
    pgio_error error = {{0}};
    pgio_reader_stats stats;
    pgio_reader_stats_reset(reader);
    CHECK(pgio_reader_pump(reader, pages, COUNT, UINT64_MAX, 0, &error) == COUNT);
    CHECK(pgio_reader_drain(reader, UINT64_MAX, &error) == 0);
    CHECK(pgio_reader_steps(reader, pages, ends, STEPS, UINT64_MAX, 0, times, &error) == STEPS);
    pgio_reader_stats_get(reader, &stats);
    CHECK(stats.reads == 2 * COUNT && stats.bytes == (uint64_t)2 * COUNT * PAGE_BYTES);
    CHECK(stats.errors_eio + stats.errors_enodata + stats.errors_short + stats.errors_corrupt + stats.errors_other ==
          0);
    CHECK(stats.latency_min_ns <= stats.latency_max_ns && stats.latency_sum_ns >= stats.latency_max_ns);
    pgio_reader_histogram(reader, counts);
    uint64_t sum = 0;
    for (int b = 0; b < PGIO_HISTOGRAM_BUCKETS; b++)
        sum += counts[b];
    CHECK(sum == stats.reads);
    CHECK(pgio_reader_pump(reader, pages, COUNT, pgio_clock_ns(), 0, &error) == 0);
    free(counts);
    return 0;
}

/* Returns NULL if all is as it should be. */
static void *from_elsewhere(void *reader)
{
    uint64_t page = 0;
    bool refused = pgio_reader_pump(reader, &page, 1, UINT64_MAX, 0, NULL) == -EEXIST &&
                   pgio_reader_drain(reader, UINT64_MAX, NULL) == -EEXIST;
    return refused ? NULL : reader;
}

static int check_engine(uint32_t engine, uint32_t flags)
{
    pgio_reader *reader;
    CHECK(open_reader(&reader, engine, flags, DEPTH) == 0);
    if (!reader) {
        printf("engine %u is not available here\n", engine);
        return 0;
    }
    pgio_reader_info info;
    pgio_reader_info_get(reader, &info);
    CHECK(info.page_count == PAGES + 1 && info.engine == engine && !info.direct);
    CHECK(check_blocking(reader) == 0);
    CHECK(check_non_blocking(reader) == 0);
    CHECK(check_measuring(reader) == 0);
    pthread_t other;
    void *wrong = reader;
    CHECK(pthread_create(&other, NULL, from_elsewhere, reader) == 0 && pthread_join(other, &wrong) == 0 && !wrong);
    pgio_reader_close(reader);
    for (int i = 0; i < 20; i++) { /* closed with reads in flight */
        uint64_t pages[40];
        for (uint64_t p = 0; p < 40; p++)
            pages[p] = pgio_mix(p) % PAGES;
        CHECK(open_reader(&reader, engine, flags, 1 + (uint32_t)i) == 0);
        CHECK(pgio_reader_pump(reader, pages, 40, UINT64_MAX, 0, NULL) == 40);
        pgio_reader_close(reader);
    }
    return 0;
}

static volatile sig_atomic_t handled;

static void handle(int signal_number)
{
    (void)signal_number;
    handled = 1;
}

/* A signal that the program's thread blocks waits for it; no thread of the reader's takes it. */
static int check_signals(void)
{
    pgio_reader *reader;
    sigset_t usr1, waiting;
    struct sigaction ours = {.sa_handler = handle}, before;
    uint8_t *memory = aligned_alloc(4096, DEPTH * PAGE_BYTES);
    uint64_t pages[DEPTH] = {0};
    int32_t status[DEPTH];
    CHECK(memory && sigaction(SIGUSR1, &ours, &before) == 0);
    CHECK(open_reader(&reader, PGIO_ENGINE_PSYNC, 0, DEPTH) == 0);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    CHECK(pthread_sigmask(SIG_BLOCK, &usr1, NULL) == 0);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    CHECK(pgio_reader_read(reader, pages, DEPTH, memory, status, NULL) == 0); /* they all have run */
    CHECK(!handled && sigpending(&waiting) == 0 && sigismember(&waiting, SIGUSR1) == 1);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &usr1, NULL) == 0 && handled);
    pgio_reader_close(reader);
    free(memory);
    return sigaction(SIGUSR1, &before, NULL);
}

static int check_refusals(void)
{
    pgio_reader_options options = {.page_bytes = PAGE_BYTES, .depth = 1, .flags = PGIO_READER_BUFFERED};
    pgio_reader *reader;
    CHECK(pgio_reader_open(&reader, "/does/not/exist", &options, NULL) == -ENOENT && !reader);
    CHECK(pgio_reader_open(&reader, "/", &options, NULL) == -EISDIR && !reader);
    options.depth = 0;
    CHECK(pgio_reader_open(&reader, path, &options, NULL) == -EINVAL && !reader);
    options.depth = 1;
    options.page_bytes = 3;
    CHECK(pgio_reader_open(&reader, path, &options, NULL) == -EINVAL && !reader);
    options.page_bytes = PAGE_BYTES;
    options.base_byte = (uint64_t)(PAGES + 1) * PAGE_BYTES;
    CHECK(pgio_reader_open(&reader, path, &options, NULL) == -EINVAL && !reader);
    options.base_byte = UINT64_MAX / PAGE_BYTES * PAGE_BYTES;
    CHECK(pgio_reader_open(&reader, path, &options, NULL) == -EINVAL && !reader);
    options.base_byte = PAGE_BYTES;
    options.span_bytes = UINT64_MAX;
    CHECK(pgio_reader_open(&reader, path, &options, NULL) == -EINVAL && !reader);
    options.span_bytes = 0;
    options.engine = 9;
    CHECK(pgio_reader_open(&reader, path, &options, NULL) == -EINVAL && !reader);
    pgio_reader_close(NULL);
    return 0;
}

/* The file's second half and then its first, as two files of one reader. */
static int check_files(uint32_t engine)
{
    const char *paths[2] = {path, path};
    const uint64_t half = PAGES / 2;
    pgio_window windows[2] = {{.page_count = PAGES + 1 - half, .byte = half * PAGE_BYTES, .file = 1},
                              {.page_begin = PAGES + 1 - half, .page_count = half}};
    pgio_reader_options options = {
        .page_bytes = PAGE_BYTES, .engine = engine, .depth = DEPTH, .flags = PGIO_READER_BUFFERED};
    pgio_reader *reader;
    int status = pgio_reader_open_files(&reader, paths, 2, windows, 2, &options, NULL);
    if (engine == PGIO_ENGINE_IO_URING && (status == -EPERM || status == -ENOSYS))
        return 0;
    CHECK_EQUAL(status, 0);
    uint8_t *memory = aligned_alloc(4096, (PAGES + 1) * PAGE_BYTES);
    uint64_t pages[PAGES + 1];
    int32_t results[PAGES + 1];
    CHECK(memory);
    for (uint64_t i = 0; i <= PAGES; i++)
        pages[i] = i;
    CHECK_EQUAL(pgio_reader_read(reader, pages, PAGES + 1, memory, results, NULL), 0);
    for (uint64_t i = 0; i <= PAGES; i++)
        CHECK(check_page(memory + i * PAGE_BYTES, (i + half) % (PAGES + 1)) == 0);
    pages[0] = PAGES + 1;
    pages[1] = UINT64_MAX;
    CHECK_REFUSED(ERANGE, pgio_reader_read(reader, pages, 1, memory, results, &error),
                  pgio_reader_read(reader, pages + 1, 1, memory, results, NULL));
    pgio_reader_close(reader);
    free(memory);
    windows[1].page_count++; /* beyond its end only if it began later */
    windows[1].byte = (half + 1) * PAGE_BYTES;
    CHECK_REFUSED(EINVAL, pgio_reader_open_files(&reader, paths, 2, windows, 2, &options, &error),
                  pgio_reader_open_files(&reader, paths, 1, windows, 2, &options, NULL));
    pgio_error why;
    CHECK(pgio_reader_open_files(&reader, paths, 2, windows, 2, &options, &why) == -EINVAL);
    CHECK(strncmp(why.text, "file 0: ends at byte ", 21) == 0);
    paths[1] = "/dev/null"; /* nothing that was opened before it stays open */
    CHECK_REFUSED(EINVAL, pgio_reader_open_files(&reader, paths, 2, windows, 2, &options, &error),
                  pgio_reader_open_files(&reader, paths, 2, windows, 2, &options, NULL));
    CHECK(pgio_reader_open_files(&reader, paths, 2, windows, 2, &options, &why) == -EINVAL && !reader);
    CHECK(strncmp(why.text, "file 1: ", 8) == 0);
    CHECK_REFUSED(EINVAL, pgio_reader_open_files(&reader, paths, 0, windows, 2, &options, &error),
                  pgio_reader_open_files(&reader, paths, 2, windows, 0, &options, NULL));
    return 0;
}

int main(void)
{
    CHECK(write_file() == 0);
    CHECK(check_files(PGIO_ENGINE_PSYNC) == 0);
    CHECK(check_files(PGIO_ENGINE_IO_URING) == 0);
    CHECK(check_refusals() == 0);
    CHECK(check_signals() == 0);
    CHECK(check_engine(PGIO_ENGINE_PSYNC, 0) == 0);
    CHECK(check_engine(PGIO_ENGINE_IO_URING, 0) == 0);
    CHECK(check_engine(PGIO_ENGINE_IO_URING, PGIO_READER_NO_FIXED | PGIO_READER_CLOCK_EACH) == 0);
    CHECK(check_engine(PGIO_ENGINE_IO_URING, PGIO_READER_SQPOLL) == 0);
    unlink(path);
    return 0;
}
