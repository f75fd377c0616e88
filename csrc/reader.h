/* reader.h: what reader.c and the engines beneath it share. Nothing here is visible outside the library. */
#ifndef PGIO_READER_H
#define PGIO_READER_H

#include <pthread.h>

#include "histogram.h"

typedef struct read_file {
    int fd;
    uint64_t bytes;
} read_file;

typedef struct read_slot {
    uint64_t page;
    uint64_t byte; /* of its file */
    uint64_t tag;
    uint64_t start_ns;
    void *memory;
    uint32_t file;
    uint32_t bytes;      /* what a whole read of this page delivers */
    uint8_t again_count; /* EINTR and EAGAIN so far */
    bool was_short;
} read_slot;

typedef struct pgio_ring pgio_ring;
typedef struct pgio_pool pgio_pool;

struct pgio_reader {
    pgio_reader_options options;
    pgio_reader_info info;
    pgio_reader_stats stats;
    read_file *files;
    pgio_window *windows; /* ascending; one for a single target */
    uint32_t file_count, window_count;
    int event_fd;
    uint32_t page_shift;
    uint32_t nvme_namespace, lba_shift;
    bool owns_memory;
    bool signals;    /* completions signal the eventfd: once submit has been called, as each costs a little */
    bool cancelling; /* what comes back is not read again; until everything has ended or a read starts */
    pthread_t owner;
    const uint32_t *page_checks; /* the CRC-32C of each page, where they lie outside; borrowed */
    pgio_ring *ring;
    pgio_pool *pool;
    read_slot *slots;
    uint32_t *free_slots;
    uint32_t free_count, in_flight;
    pgio_completion *outcomes; /* handed to poll and read; a queue of at most depth */
    uint32_t outcome_first, outcome_count;
    uint64_t now_ns, counted_ns;
    uint64_t histogram[PGIO_HISTOGRAM_BUCKETS];
};

/* reader.c, called by the engines for each read that ended: result is bytes or -errno. */
void pgio_reader_finish(pgio_reader *reader, uint32_t slot, int64_t result);

/* reader.c, for measure.c. Refuses another thread than the owner's, and pages that are not there. */
int pgio_reader_check(const pgio_reader *reader, const uint64_t *pages, uint64_t count, pgio_error *error);
/* Prepares a read; there must be a free slot. Without memory it goes to the slot's own part of the reader's. */
void pgio_reader_start(pgio_reader *reader, uint64_t page, void *memory, uint64_t tag);
/* The engine's enter (ring.c), with a sentence if it fails. */
int pgio_reader_enter(pgio_reader *reader, uint32_t wait_count, uint64_t timeout_ns, pgio_error *error);

/* measure.c. What ended, well or not, at end_ns; and the depth up to now, before it changes. */
void pgio_reader_count(pgio_reader *reader, const read_slot *slot, int64_t status, uint64_t end_ns);
void pgio_reader_count_depth(pgio_reader *reader);

/* reader.c, for table.c, which opens its readers later: refuses what pgio_reader_open would, of the options alone. */
int pgio_reader_check_options(const pgio_reader_options *options, pgio_error *error);
/* reader.c, for table.c: pgio_reader_read to places of their own, [count], each as aligned as the device wants.
 * Nothing else may be in flight. If the engine itself fails, reads may still be, until the reader is closed. */
int64_t pgio_reader_scatter(pgio_reader *reader, const uint64_t *pages, uint64_t count, void *const *places,
                            int32_t *status, pgio_error *error);

/* target.c. Opens the one file or device, its window, and fills in what info says of it. */
int pgio_target_open(pgio_reader *reader, const char *path, pgio_error *error);
/* The same for files whose pages the windows name; sentences name the file. */
int pgio_target_open_files(pgio_reader *reader, const char *const *paths, uint32_t path_count,
                           const pgio_window *windows, uint32_t window_count, pgio_error *error);
void pgio_target_close(pgio_reader *reader);

/* ring.c. prepare queues a read (there is always room for depth of them); enter submits what is queued,
 * waits until wait_count more have ended or timeout_ns (at most a second) is over, and calls pgio_reader_finish for
 * each that ended. Returns 0 or -errno. */
int pgio_ring_open(pgio_reader *reader, pgio_error *error);
void pgio_ring_close(pgio_ring *ring);
void pgio_ring_prepare(pgio_reader *reader, uint32_t slot);
int pgio_ring_enter(pgio_reader *reader, uint32_t wait_count, uint64_t timeout_ns);
/* From now on each completion makes the eventfd readable. */
void pgio_ring_signal(pgio_reader *reader);
int pgio_ring_cancel(pgio_reader *reader);

/* pool.c: the same face over threads that call pread. */
int pgio_pool_open(pgio_reader *reader, pgio_error *error);
void pgio_pool_close(pgio_pool *pool);
void pgio_pool_prepare(pgio_reader *reader, uint32_t slot);
int pgio_pool_enter(pgio_reader *reader, uint32_t wait_count, uint64_t timeout_ns);
int pgio_pool_cancel(pgio_reader *reader);

/* Small batches keep a device busier: one that takes each as a whole, as virtual disks do, would answer a
 * large one as a whole too, and idle until the next. So a part of the depth goes in one system call. */
static inline uint32_t pgio_reader_batch(uint32_t depth)
{
    return depth < 16 ? 1 : depth / 16;
}

/* The window that holds a page, which is below page_count. */
static inline const pgio_window *pgio_window_of(const pgio_reader *reader, uint64_t page)
{
    uint32_t low = 0, high = reader->window_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (reader->windows[middle].page_begin <= page)
            low = middle;
        else
            high = middle;
    }
    return &reader->windows[low];
}

#endif
