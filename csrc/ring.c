/* ring.c: io_uring by its system calls: setup, one mapping, submit and wait, reap.
 *
 * Asks for every setup flag that helps and drops the newest when a kernel refuses; which ones are in
 * use is reported. The submission queue is filled by this thread alone, so plain stores suffice there
 * until the tail is published; the kernel publishes completions, so that tail is loaded with acquire.
 * With DEFER_TASKRUN the kernel hands over a limited number of completions a call: as long as it says
 * that more are waiting, enter is called again, or the depth would quietly collapse. */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/nvme_ioctl.h>
#include <linux/time_types.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "reader.h"

/* Newer than the headers of some systems this must build on. */
#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1U << 16)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_ASYNC_CANCEL_ANY
#define IORING_ASYNC_CANCEL_ANY (1U << 2)
#endif

#define CANCEL_TAG   UINT64_MAX
#define TIMER_TAG    (UINT64_MAX - 1)
#define TIMER_NS     50000000 /* how late a wait on a stuck device may end */
#define NVME_READ    0x02     /* the only NVMe command ever sent */
#define ENTER_NS_MAX ((uint64_t)1000 * 1000 * 1000)

struct pgio_ring {
    int fd;
    uint32_t flags, sqe_shift, cqe_shift, queued;
    uint32_t sq_mask, cq_mask, sq_tail;
    uint32_t *sq_head, *sq_tail_shared, *sq_flags, *cq_head, *cq_tail, *cq_overflow;
    uint8_t *sqes, *cqes;
    void *rings;
    size_t rings_bytes, sqes_bytes;
    bool fixed_buffers, fixed_file, polled;
    bool timer_pending;
    struct __kernel_timespec timer; /* here, as the kernel's thread of SQPOLL reads it when it likes */
};

static int ring_setup(uint32_t entries, struct io_uring_params *params)
{
    long fd = syscall(__NR_io_uring_setup, entries, params);
    return fd < 0 ? -errno : (int)fd;
}

static int ring_register(int fd, uint32_t code, const void *argument, uint32_t count)
{
    long result = syscall(__NR_io_uring_register, fd, code, argument, count);
    return result < 0 ? -errno : 0;
}

/* Newest first: each was added by a later kernel than those after it. */
static const uint32_t optional_flags[] = {IORING_SETUP_NO_SQARRAY, IORING_SETUP_DEFER_TASKRUN,
                                          IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_TASKRUN_FLAG,
                                          IORING_SETUP_COOP_TASKRUN};
#define OPTIONAL_FLAGS (sizeof optional_flags / sizeof *optional_flags)

static int setup_with_fallback(const pgio_reader *reader, struct io_uring_params *params)
{
    uint32_t wanted = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    bool sqpoll = reader->options.flags & PGIO_READER_SQPOLL;
    if (reader->options.flags & PGIO_READER_IOPOLL)
        wanted |= IORING_SETUP_IOPOLL;
    if (sqpoll)
        wanted |= IORING_SETUP_SQPOLL;
    if (reader->info.engine == PGIO_ENGINE_NVME)
        wanted |= IORING_SETUP_SQE128 | IORING_SETUP_CQE32;
    for (size_t i = 0; i < OPTIONAL_FLAGS; i++) {
        bool excluded = sqpoll && (optional_flags[i] == IORING_SETUP_DEFER_TASKRUN ||
                                   optional_flags[i] == IORING_SETUP_COOP_TASKRUN ||
                                   optional_flags[i] == IORING_SETUP_TASKRUN_FLAG);
        wanted |= excluded ? 0 : optional_flags[i];
    }
    for (size_t dropped = 0;; dropped++) {
        memset(params, 0, sizeof *params);
        params->flags = wanted;
        params->cq_entries = reader->options.depth * 2 + 2;
        params->sq_thread_idle = 1000;
        int fd = ring_setup(reader->options.depth + 1, params); /* every read, and the timer */
        if (fd != -EINVAL || dropped == OPTIONAL_FLAGS)
            return fd;
        wanted &= ~optional_flags[dropped];
    }
}

static int map_rings(pgio_ring *ring, const struct io_uring_params *params)
{
    size_t sq_bytes = params->sq_off.array + params->sq_entries * sizeof(uint32_t);
    size_t cq_bytes = params->cq_off.cqes + ((size_t)params->cq_entries << ring->cqe_shift);
    ring->rings_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    ring->sqes_bytes = (size_t)params->sq_entries << ring->sqe_shift;
    int shared = MAP_SHARED | MAP_POPULATE;
    uint8_t *at = mmap(NULL, ring->rings_bytes, PROT_READ | PROT_WRITE, shared, ring->fd, IORING_OFF_SQ_RING);
    if (at == MAP_FAILED)
        return -errno;
    ring->rings = at;
    ring->sqes = mmap(NULL, ring->sqes_bytes, PROT_READ | PROT_WRITE, shared, ring->fd, IORING_OFF_SQES);
    if (ring->sqes == MAP_FAILED) {
        ring->sqes = NULL;
        return -errno;
    }
    ring->sq_mask = params->sq_entries - 1;
    ring->cq_mask = params->cq_entries - 1;
    ring->sq_head = (uint32_t *)(void *)(at + params->sq_off.head);
    ring->sq_tail_shared = (uint32_t *)(void *)(at + params->sq_off.tail);
    ring->sq_flags = (uint32_t *)(void *)(at + params->sq_off.flags);
    ring->cq_head = (uint32_t *)(void *)(at + params->cq_off.head);
    ring->cq_tail = (uint32_t *)(void *)(at + params->cq_off.tail);
    ring->cq_overflow = (uint32_t *)(void *)(at + params->cq_off.overflow);
    ring->cqes = at + params->cq_off.cqes;
    if (!(params->flags & IORING_SETUP_NO_SQARRAY)) {
        uint32_t *array = (uint32_t *)(void *)(at + params->sq_off.array);
        for (uint32_t i = 0; i < params->sq_entries; i++)
            array[i] = i; /* entry i of the queue is always sqe i */
    }
    return 0;
}

static uint64_t memlock_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_MEMLOCK, &limit) ? 0 : (uint64_t)limit.rlim_cur;
}

/* Registering spares the kernel from looking up the file and pinning the pages at every read. Both are
 * only faster, so a refusal is reported and done without. */
static void register_resources(pgio_reader *reader, pgio_ring *ring)
{
    if (reader->options.flags & PGIO_READER_NO_FIXED)
        return;
    int *fds = malloc(reader->file_count * sizeof *fds);
    for (uint32_t i = 0; fds && i < reader->file_count; i++)
        fds[i] = reader->files[i].fd;
    ring->fixed_file = fds && ring_register(ring->fd, IORING_REGISTER_FILES, fds, reader->file_count) == 0;
    free(fds);
    if (reader->info.engine == PGIO_ENGINE_NVME)
        return; /* passthrough of Linux 6.1 and older takes plain addresses only */
    struct iovec memory = {reader->options.memory, reader->options.memory_bytes};
    int status = ring_register(ring->fd, IORING_REGISTER_BUFFERS, &memory, 1);
    ring->fixed_buffers = status == 0;
    size_t used = strlen(reader->info.why);
    if (status && status != -ENOMEM)
        snprintf(reader->info.why + used, sizeof reader->info.why - used, "; without registered buffers: %s",
                 strerror(-status));
    if (status == -ENOMEM)
        snprintf(reader->info.why + used, sizeof reader->info.why - used,
                 "; without registered buffers: RLIMIT_MEMLOCK is %llu KiB and %llu KiB are needed (ulimit -l)",
                 (unsigned long long)(memlock_limit() >> 10), (unsigned long long)(memory.iov_len >> 10));
}

static int explain_setup(const pgio_reader *reader, int status, pgio_error *error)
{
    if (status == -EPERM)
        return pgio_fail(error, EPERM,
                         "io_uring is forbidden here: by seccomp, as in many containers, or by "
                         "kernel.io_uring_disabled; use --engine psync");
    if (status == -ENOSYS)
        return pgio_fail(error, ENOSYS, "this kernel has no io_uring (Linux 5.6 is needed); use --engine psync");
    if (status == -ENOMEM)
        return pgio_fail(error, ENOMEM,
                         "io_uring may not lock enough memory: RLIMIT_MEMLOCK is %llu KiB; raise it with "
                         "ulimit -l, use a smaller --depth, or --engine psync",
                         (unsigned long long)(memlock_limit() >> 10));
    if (status == -EINVAL && reader->info.engine == PGIO_ENGINE_NVME)
        return pgio_fail(error, ENOTSUP, "this kernel has no NVMe passthrough through io_uring (Linux 5.19 is needed)");
    return pgio_fail(error, -status, "io_uring cannot be set up: %s", strerror(-status));
}

int pgio_ring_open(pgio_reader *reader, pgio_error *error)
{
    struct io_uring_params params;
    int fd = setup_with_fallback(reader, &params);
    if (fd < 0)
        return explain_setup(reader, fd, error);
    pgio_ring *ring = calloc(1, sizeof *ring);
    if (!ring) {
        close(fd);
        return pgio_fail(error, ENOMEM, "no memory for a ring");
    }
    ring->fd = fd;
    ring->flags = params.flags;
    ring->sqe_shift = params.flags & IORING_SETUP_SQE128 ? 7 : 6;
    ring->cqe_shift = params.flags & IORING_SETUP_CQE32 ? 5 : 4;
    ring->polled = params.flags & IORING_SETUP_IOPOLL;
    int status = params.features & IORING_FEAT_SINGLE_MMAP && params.features & IORING_FEAT_EXT_ARG
                     ? map_rings(ring, &params)
                     : -ENOSYS;
    if (!status && params.sq_entries < reader->options.depth)
        status = -EINVAL;
    if (status) {
        pgio_ring_close(ring);
        return status == -ENOSYS ? pgio_fail(error, ENOSYS,
                                             "this kernel's io_uring is too old (Linux 5.11 is needed); "
                                             "use --engine psync")
                                 : pgio_fail(error, -status, "the ring cannot be mapped: %s", strerror(-status));
    }
    ring->sq_tail = *ring->sq_tail_shared;
    register_resources(reader, ring);
    reader->info.ring_flags = params.flags;
    reader->info.fixed_buffers = ring->fixed_buffers;
    reader->info.fixed_file = ring->fixed_file;
    reader->ring = ring;
    return 0;
}

void pgio_ring_close(pgio_ring *ring)
{
    if (!ring)
        return;
    if (ring->rings)
        munmap(ring->rings, ring->rings_bytes);
    if (ring->sqes)
        munmap(ring->sqes, ring->sqes_bytes);
    close(ring->fd);
    free(ring);
}

void pgio_ring_signal(pgio_reader *reader)
{
    (void)ring_register(reader->ring->fd, IORING_REGISTER_EVENTFD, &reader->event_fd, 1);
}

static bool has_room(const pgio_ring *ring)
{
    return ring->sq_tail - __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE) <= ring->sq_mask;
}

/* The queue holds every read there may be, but a cancellation is one more, and with SQPOLL the kernel takes
 * entries when it likes. One overwritten before it was taken would be another read done twice. */
static void wait_for_room(const pgio_ring *ring)
{
    const uint32_t flags = IORING_ENTER_SQ_WAKEUP | IORING_ENTER_SQ_WAIT;
    __atomic_store_n(ring->sq_tail_shared, ring->sq_tail, __ATOMIC_RELEASE);
    while (!has_room(ring) && (syscall(__NR_io_uring_enter, ring->fd, 0, 0, flags, NULL, 0) >= 0 || errno == EINTR))
        continue;
}

static struct io_uring_sqe *next_sqe(pgio_ring *ring)
{
    if (ring->flags & IORING_SETUP_SQPOLL && !has_room(ring))
        wait_for_room(ring);
    struct io_uring_sqe *sqe = (void *)(ring->sqes + ((size_t)(ring->sq_tail & ring->sq_mask) << ring->sqe_shift));
    memset(sqe, 0, (size_t)1 << ring->sqe_shift);
    ring->sq_tail++;
    ring->queued++;
    return sqe;
}

static void fill_nvme(const pgio_reader *reader, const read_slot *slot, struct io_uring_sqe *sqe)
{
    uint64_t lba = slot->byte >> reader->lba_shift;
    struct nvme_uring_cmd *command = (void *)sqe->cmd;
    sqe->opcode = IORING_OP_URING_CMD;
    sqe->cmd_op = NVME_URING_CMD_IO;
    command->opcode = NVME_READ;
    command->nsid = reader->nvme_namespace;
    command->addr = (uint64_t)(uintptr_t)slot->memory;
    command->data_len = slot->bytes;
    command->cdw10 = (uint32_t)lba;
    command->cdw11 = (uint32_t)(lba >> 32);
    command->cdw12 = (slot->bytes >> reader->lba_shift) - 1; /* blocks, counted from zero */
}

void pgio_ring_prepare(pgio_reader *reader, uint32_t slot_index)
{
    pgio_ring *ring = reader->ring;
    const read_slot *slot = &reader->slots[slot_index];
    struct io_uring_sqe *sqe = next_sqe(ring);
    sqe->fd = ring->fixed_file ? (int)slot->file : reader->files[slot->file].fd;
    sqe->flags = ring->fixed_file ? IOSQE_FIXED_FILE : 0;
    sqe->user_data = slot_index;
    if (reader->info.engine == PGIO_ENGINE_NVME) {
        fill_nvme(reader, slot, sqe);
        return;
    }
    const uint8_t *memory = slot->memory, *registered = reader->options.memory;
    uint64_t at = (uint64_t)((uintptr_t)memory - (uintptr_t)registered), end = reader->options.memory_bytes;
    bool fixed = ring->fixed_buffers && at < end && end - at >= reader->options.page_bytes;
    sqe->opcode = fixed ? IORING_OP_READ_FIXED : IORING_OP_READ;
    sqe->off = slot->byte;
    sqe->addr = (uint64_t)(uintptr_t)slot->memory;
    sqe->len = (uint32_t)reader->options.page_bytes;
}

int pgio_ring_cancel(pgio_reader *reader)
{
    pgio_ring *ring = reader->ring;
    bool sqpoll = ring->flags & IORING_SETUP_SQPOLL;
    int status = sqpoll || has_room(ring) ? 0 : pgio_ring_enter(reader, 0, 0);
    if (!status && !sqpoll && !has_room(ring))
        status = -EBUSY;
    if (status)
        return status;
    struct io_uring_sqe *sqe = next_sqe(ring);
    sqe->opcode = IORING_OP_ASYNC_CANCEL;
    sqe->fd = -1;
    sqe->cancel_flags = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY;
    sqe->user_data = CANCEL_TAG;
    status = pgio_ring_enter(reader, 0, 0);
    if (ring->queued) { /* not taken, and its place belongs to a read: it was the last in the queue */
        ring->queued--;
        ring->sq_tail--;
        return status ? status : -EBUSY;
    }
    return status;
}

/* Hands over what has completed. Returns how many reads that was. */
static uint32_t reap(pgio_reader *reader)
{
    pgio_ring *ring = reader->ring;
    uint32_t head = *ring->cq_head, done = 0;
    uint32_t tail = __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE);
    if (head == tail)
        return 0;
    reader->now_ns = pgio_clock_ns();
    for (; head != tail; head++) {
        const struct io_uring_cqe *cqe = (void *)(ring->cqes + ((size_t)(head & ring->cq_mask) << ring->cqe_shift));
        if (cqe->user_data >= TIMER_TAG) {
            ring->timer_pending = ring->timer_pending && cqe->user_data != TIMER_TAG;
            continue;
        }
        int64_t result = cqe->res;
        uint32_t slot = (uint32_t)cqe->user_data;
        if (reader->info.engine == PGIO_ENGINE_NVME)
            result = result == 0 ? reader->slots[slot].bytes : result > 0 ? PGIO_STATUS_NVME - result : result;
        pgio_reader_finish(reader, slot, result);
        done++;
    }
    /* Released only now: the kernel may overwrite entries as soon as it sees the new head. */
    __atomic_store_n(ring->cq_head, head, __ATOMIC_RELEASE);
    return done;
}

/* A wait that carries its own timeout sets a timer and takes it back at every read, which costs a virtual machine
 * dearly (a tenth of the reads a second at depth 16). So one timer stays in the ring and ends a wait every 50 ms.
 * Not where it would signal the eventfd, nor where the queue is full: there the wait carries its own. So does a wait
 * for several reads: a timer that fired before it began counts as one of them, and ends it no more. */
static void keep_timer(const pgio_reader *reader, pgio_ring *ring)
{
    if (ring->timer_pending || reader->signals || ring->polled || !has_room(ring))
        return;
    struct io_uring_sqe *sqe = next_sqe(ring);
    ring->timer = (struct __kernel_timespec){.tv_nsec = TIMER_NS};
    sqe->opcode = IORING_OP_TIMEOUT;
    sqe->fd = -1;
    sqe->addr = (uint64_t)(uintptr_t)&ring->timer;
    sqe->len = 1;
    sqe->user_data = TIMER_TAG;
    ring->timer_pending = true;
}

static int enter(pgio_ring *ring, uint32_t wait_count, uint64_t timeout_ns)
{
    struct __kernel_timespec timeout = {.tv_sec = (int64_t)(timeout_ns / 1000000000),
                                        .tv_nsec = (long long)(timeout_ns % 1000000000)};
    struct io_uring_getevents_arg argument = {.ts = (uint64_t)(uintptr_t)&timeout};
    uint32_t flags = IORING_ENTER_GETEVENTS;
    uint32_t submit = ring->queued;
    __atomic_store_n(ring->sq_tail_shared, ring->sq_tail, __ATOMIC_RELEASE);
    if (ring->flags & IORING_SETUP_SQPOLL) {
        /* The kernel's thread takes the queue by itself, unless it has gone to sleep. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (__atomic_load_n(ring->sq_flags, __ATOMIC_RELAXED) & IORING_SQ_NEED_WAKEUP)
            flags |= IORING_ENTER_SQ_WAKEUP;
        ring->queued = 0;
    }
    bool timed = wait_count && !ring->polled && (wait_count > 1 || !ring->timer_pending);
    if (timed)
        flags |= IORING_ENTER_EXT_ARG;
    long taken = syscall(__NR_io_uring_enter, ring->fd, submit, wait_count, flags, timed ? &argument : NULL,
                         timed ? sizeof argument : 0);
    if (taken < 0)
        return -errno;
    if (!(ring->flags & IORING_SETUP_SQPOLL))
        ring->queued -= (uint32_t)taken < ring->queued ? (uint32_t)taken : ring->queued;
    return 0;
}

int pgio_ring_enter(pgio_reader *reader, uint32_t wait_count, uint64_t timeout_ns)
{
    pgio_ring *ring = reader->ring;
    uint64_t started = reader->now_ns;
    bool polled = false;
    timeout_ns = timeout_ns > ENTER_NS_MAX ? ENTER_NS_MAX : timeout_ns;
    wait_count = timeout_ns ? wait_count : 0;
    uint32_t done = reap(reader); /* what is here already may save the wait */
    for (;;) {
        bool waiting = done < wait_count;
        bool more = __atomic_load_n(ring->sq_flags, __ATOMIC_RELAXED) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
        more = more || (ring->polled && reader->in_flight && !polled); /* nobody else asks the device */
        if (!ring->queued && !waiting && !more)
            return 0;
        polled = true;
        reader->stats.waits++;
        if (waiting && wait_count - done == 1)
            keep_timer(reader, ring);
        int status = enter(ring, waiting ? wait_count - done : 0, timeout_ns);
        uint32_t reaped = reap(reader);
        done += reaped;
        if (__atomic_load_n(ring->cq_overflow, __ATOMIC_RELAXED))
            return -EOVERFLOW; /* lost completions: nothing that follows could be trusted */
        if (!status && done >= wait_count) {
            /* The flag that says more is waiting can be left over from work that is done: then nothing comes. */
            if (!reaped && !ring->queued)
                return 0;
            continue;
        }
        bool late = pgio_clock_ns() - started > timeout_ns;
        bool starved = status == -EAGAIN || status == -EBUSY; /* of memory; what is in flight frees some */
        if (starved && !late)
            continue;
        if (starved || status == -ETIME || status == -EINTR || (!status && late))
            return 0;
        if (status)
            return status;
    }
}
