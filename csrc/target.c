/* target.c: what a reader reads from: a file, a block device, an NVMe namespace, or windows of several files.
 *
 * Owns how it is opened (for reading only, with O_DIRECT unless told otherwise), its size and blocks, and
 * what of it may be read. Refuses what cannot be a target with a sentence that says why. */
#define _GNU_SOURCE /* O_DIRECT */
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reader.h"

#define NVME_ID_BYTES 4096

/* Size and block size of an NVMe namespace, from its character device. */
static int identify_nvme(pgio_reader *reader, read_file *file, pgio_error *error)
{
    int namespace_id = ioctl(file->fd, NVME_IOCTL_ID);
    uint8_t *identity = aligned_alloc(NVME_ID_BYTES, NVME_ID_BYTES);
    if (!identity)
        return pgio_fail(error, ENOMEM, "no memory");
    struct nvme_passthru_cmd command = {.opcode = 0x06, /* identify; an admin command that reads */
                                        .nsid = (uint32_t)namespace_id,
                                        .addr = (uint64_t)(uintptr_t)identity,
                                        .data_len = NVME_ID_BYTES};
    int status = namespace_id <= 0 ? -1 : ioctl(file->fd, NVME_IOCTL_ADMIN_CMD, &command);
    if (status) {
        int code = status < 0 && errno ? errno : EIO;
        free(identity);
        return pgio_fail(error, code == ENOTTY ? EINVAL : code,
                         "not an NVMe namespace that can be identified (%s); "
                         "passthrough reads /dev/ngXnY",
                         strerror(code));
    }
    uint64_t blocks = 0;
    for (int b = 7; b >= 0; b--)
        blocks = blocks << 8 | identity[b];
    uint32_t format = (identity[26] & 15) | (identity[26] & 0x60u) >> 1;
    const uint8_t *lba_format = identity + 128 + (size_t)4 * format;
    uint32_t metadata_bytes = lba_format[0] | (uint32_t)lba_format[1] << 8;
    reader->lba_shift = lba_format[2];
    free(identity);
    if (metadata_bytes)
        return pgio_fail(error, ENOTSUP, "each block carries %u bytes of metadata; passthrough reads plain blocks",
                         metadata_bytes);
    reader->nvme_namespace = (uint32_t)namespace_id;
    if (reader->lba_shift < 9 || reader->lba_shift > reader->page_shift)
        return pgio_fail(error, EINVAL, "blocks of %u bytes are larger than a page of %" PRIu64,
                         1u << reader->lba_shift, reader->options.page_bytes);
    if (reader->page_shift - reader->lba_shift > 16)
        return pgio_fail(error, EINVAL, "a page of %" PRIu64 " bytes is more than the 65536 blocks of one NVMe read",
                         reader->options.page_bytes);
    reader->info.lba_bytes = 1u << reader->lba_shift;
    file->bytes = blocks << reader->lba_shift;
    reader->info.direct = 1;
    return 0;
}

static int measure_block_device(const pgio_reader *reader, read_file *file, pgio_error *error)
{
    int block_bytes = 0;
    if (ioctl(file->fd, BLKGETSIZE64, &file->bytes) || ioctl(file->fd, BLKSSZGET, &block_bytes))
        return pgio_fail(error, errno, "its size cannot be read: %s", strerror(errno));
    if (reader->info.direct && (uint64_t)block_bytes > reader->options.page_bytes)
        return pgio_fail(error, EINVAL, "its blocks of %d bytes are larger than a page of %" PRIu64, block_bytes,
                         reader->options.page_bytes);
    return 0;
}

static int open_target(pgio_reader *reader, read_file *file, const char *path, pgio_error *error)
{
    bool buffered = reader->options.flags & PGIO_READER_BUFFERED;
    struct stat about;
    if (stat(path, &about))
        return pgio_fail(error, errno, "%s", strerror(errno));
    if (S_ISDIR(about.st_mode))
        return pgio_fail(error, EISDIR, "is a folder; name a file or a device");
    bool character = S_ISCHR(about.st_mode);
    if (!S_ISREG(about.st_mode) && !S_ISBLK(about.st_mode) && !character)
        return pgio_fail(error, EINVAL, "is neither a file nor a block device nor an NVMe character device");
    if (reader->options.engine == PGIO_ENGINE_NVME && !character)
        return pgio_fail(error, EINVAL, "engine nvme reads an NVMe character device such as /dev/ng0n1");
    if (character && reader->options.engine != PGIO_ENGINE_NVME && reader->options.engine != PGIO_ENGINE_AUTO)
        return pgio_fail(error, EINVAL, "a character device is read with engine nvme");
    file->fd = open(path, O_RDONLY | O_CLOEXEC | (buffered || character ? 0 : O_DIRECT));
    if (file->fd < 0 && errno == EINVAL && !buffered)
        return pgio_fail(error, EINVAL, "this file system has no O_DIRECT; --buffered reads through the page cache");
    if (file->fd < 0 && errno == EACCES && !S_ISREG(about.st_mode))
        return pgio_fail(error, EACCES,
                         "permission denied; join the group that may read it (most often disk), or use sudo");
    if (file->fd < 0 && errno == EPERM && !S_ISREG(about.st_mode))
        return pgio_fail(error, EPERM, "a container or virtual machine keeps this device away; pass it through");
    if (file->fd < 0 && errno == EMFILE)
        return pgio_fail(error, EMFILE,
                         "too many open files: each reader opens every file; raise RLIMIT_NOFILE by "
                         "ulimit -n, or use fewer readers (--jobs)");
    if (file->fd < 0)
        return pgio_fail(error, errno, "%s", strerror(errno));
    if (character) {
        reader->info.engine = PGIO_ENGINE_NVME;
        return identify_nvme(reader, file, error);
    }
    int flags = fcntl(file->fd, F_GETFL);
    reader->info.direct = flags >= 0 && flags & O_DIRECT;
    file->bytes = (uint64_t)about.st_size;
    return S_ISBLK(about.st_mode) ? measure_block_device(reader, file, error) : 0;
}

static int measure_span(pgio_reader *reader, pgio_error *error)
{
    const pgio_reader_options *options = &reader->options;
    uint64_t target = reader->info.target_bytes;
    if (target < options->page_bytes)
        return pgio_fail(error, EINVAL, "holds %" PRIu64 " bytes, less than one page of %" PRIu64, target,
                         options->page_bytes);
    if (options->base_byte >= target)
        return pgio_fail(error, EINVAL, "ends at byte %" PRIu64 ", before the offset %" PRIu64, target,
                         options->base_byte);
    uint64_t span = target - options->base_byte;
    if (options->span_bytes > span)
        return pgio_fail(error, EINVAL, "ends at byte %" PRIu64 ", before %" PRIu64 " bytes from offset %" PRIu64,
                         target, options->span_bytes, options->base_byte);
    /* Only the end of the target cuts a page short; one that the span cuts would reach beyond it. */
    bool cut = options->span_bytes && options->span_bytes < span;
    reader->info.page_count =
        cut ? options->span_bytes >> reader->page_shift : (span + options->page_bytes - 1) >> reader->page_shift;
    if (!reader->info.page_count)
        return pgio_fail(error, EINVAL, "a span of %" PRIu64 " bytes holds no page of %" PRIu64, options->span_bytes,
                         options->page_bytes);
    return 0;
}

static int allocate(pgio_reader *reader, uint32_t file_count, uint32_t window_count, pgio_error *error)
{
    reader->files = malloc(file_count * sizeof *reader->files);
    reader->windows = malloc(window_count * sizeof *reader->windows);
    if (!reader->files || !reader->windows)
        return pgio_fail(error, ENOMEM, "no memory for a reader of %u files", file_count);
    for (reader->file_count = 0; reader->file_count < file_count; reader->file_count++)
        reader->files[reader->file_count] = (read_file){.fd = -1};
    reader->window_count = window_count;
    return 0;
}

int pgio_target_open(pgio_reader *reader, const char *path, pgio_error *error)
{
    int status = allocate(reader, 1, 1, error);
    if (!status)
        status = open_target(reader, &reader->files[0], path, error);
    reader->info.target_bytes = status ? 0 : reader->files[0].bytes;
    if (!status)
        status = measure_span(reader, error);
    if (!status)
        reader->windows[0] = (pgio_window){.page_count = reader->info.page_count, .byte = reader->options.base_byte};
    return status;
}

/* Windows that follow one another from page 0 on, each whole in its file but for the file's last page. */
static int check_windows(const pgio_reader *reader, pgio_error *error)
{
    uint64_t page = 0;
    for (uint32_t w = 0; w < reader->window_count; w++) {
        const pgio_window *window = &reader->windows[w];
        if (window->file >= reader->file_count || !window->page_count || window->page_begin != page)
            return pgio_fail(error, EINVAL, "window %u does not follow the one before it in a file that is given", w);
        if (window->byte % reader->options.page_bytes)
            return pgio_fail(error, EINVAL, "window %u begins at byte %" PRIu64 ", which is on no page of %" PRIu64, w,
                             window->byte, reader->options.page_bytes);
        uint64_t bytes = reader->files[window->file].bytes;
        if (window->byte >= bytes || (bytes - window->byte - 1) >> reader->page_shift < window->page_count - 1)
            return pgio_fail(error, EINVAL,
                             "file %u: ends at byte %" PRIu64 ", before %" PRIu64 " pages from byte %" PRIu64,
                             window->file, bytes, window->page_count, window->byte);
        page += window->page_count;
    }
    return 0;
}

int pgio_target_open_files(pgio_reader *reader, const char *const *paths, uint32_t path_count,
                           const pgio_window *windows, uint32_t window_count, pgio_error *error)
{
    int status = allocate(reader, path_count, window_count, error);
    if (status)
        return status;
    memcpy(reader->windows, windows, window_count * sizeof *windows);
    bool direct = true;
    for (uint32_t f = 0; f < path_count; f++) {
        pgio_error why = {{0}};
        status = open_target(reader, &reader->files[f], paths[f], &why);
        if (!status && reader->info.engine == PGIO_ENGINE_NVME)
            status = pgio_fail(&why, EINVAL, "is a character device; of several files none may be one");
        if (status)
            return pgio_fail(error, -status, "file %u: %.200s", f, why.text); /* a path might not fit */
        direct = direct && reader->info.direct;
        reader->info.target_bytes += reader->files[f].bytes;
    }
    reader->info.direct = direct;
    reader->info.page_count = windows[window_count - 1].page_begin + windows[window_count - 1].page_count;
    return check_windows(reader, error);
}

void pgio_target_close(pgio_reader *reader)
{
    for (uint32_t f = 0; f < reader->file_count; f++)
        if (reader->files[f].fd >= 0)
            close(reader->files[f].fd);
    free(reader->files);
    free(reader->windows);
}
