/* target.c: what a reader reads from: a file, a block device, or an NVMe namespace.
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

#include "reader.h"

#define NVME_ID_BYTES 4096

/* Size and block size of an NVMe namespace, from its character device. */
static int identify_nvme(pgio_reader *reader, pgio_error *error)
{
    int namespace_id = ioctl(reader->fd, NVME_IOCTL_ID);
    uint8_t *identity = aligned_alloc(NVME_ID_BYTES, NVME_ID_BYTES);
    if (!identity)
        return pgio_fail(error, ENOMEM, "no memory");
    struct nvme_passthru_cmd command = {.opcode = 0x06, /* identify; an admin command that reads */
                                        .nsid = (uint32_t)namespace_id,
                                        .addr = (uint64_t)(uintptr_t)identity,
                                        .data_len = NVME_ID_BYTES};
    int status = namespace_id <= 0 ? -1 : ioctl(reader->fd, NVME_IOCTL_ADMIN_CMD, &command);
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
    reader->info.target_bytes = blocks << reader->lba_shift;
    reader->info.direct = 1;
    return 0;
}

static int measure_block_device(pgio_reader *reader, pgio_error *error)
{
    int block_bytes = 0;
    if (ioctl(reader->fd, BLKGETSIZE64, &reader->info.target_bytes) || ioctl(reader->fd, BLKSSZGET, &block_bytes))
        return pgio_fail(error, errno, "its size cannot be read: %s", strerror(errno));
    if (reader->info.direct && (uint64_t)block_bytes > reader->options.page_bytes)
        return pgio_fail(error, EINVAL, "its blocks of %d bytes are larger than a page of %" PRIu64, block_bytes,
                         reader->options.page_bytes);
    return 0;
}

static int open_target(pgio_reader *reader, const char *path, pgio_error *error)
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
    reader->fd = open(path, O_RDONLY | O_CLOEXEC | (buffered || character ? 0 : O_DIRECT));
    if (reader->fd < 0 && errno == EINVAL && !buffered)
        return pgio_fail(error, EINVAL, "this file system has no O_DIRECT; --buffered reads through the page cache");
    if (reader->fd < 0 && errno == EACCES && !S_ISREG(about.st_mode))
        return pgio_fail(error, EACCES,
                         "permission denied; join the group that may read it (most often disk), or use sudo");
    if (reader->fd < 0 && errno == EPERM && !S_ISREG(about.st_mode))
        return pgio_fail(error, EPERM, "a container or virtual machine keeps this device away; pass it through");
    if (reader->fd < 0)
        return pgio_fail(error, errno, "%s", strerror(errno));
    if (character) {
        reader->info.engine = PGIO_ENGINE_NVME;
        return identify_nvme(reader, error);
    }
    int flags = fcntl(reader->fd, F_GETFL);
    reader->info.direct = flags >= 0 && flags & O_DIRECT;
    reader->info.target_bytes = (uint64_t)about.st_size;
    return S_ISBLK(about.st_mode) ? measure_block_device(reader, error) : 0;
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

int pgio_target_open(pgio_reader *reader, const char *path, pgio_error *error)
{
    int status = open_target(reader, path, error);
    return status ? status : measure_span(reader, error);
}
