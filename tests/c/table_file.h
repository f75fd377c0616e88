/* table_file.h: a table of which every value of every row is known, for the tests of table.c.
 *
 * Under ThreadSanitizer engine psync reads, since the sanitizer does not see what the kernel writes. Buffered, so that
 * it runs on any file system. */
#ifndef TABLE_FILE_H
#define TABLE_FILE_H

#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

#include "check.h"

#define PAGE_BYTES    512
#define WIDTH         6
#define ROW_BYTES     (4 * WIDTH)
#define UNIT_ROWS     12 /* a bucket of 288 bytes: one a page, with room for a seal; packed they straddle */
#define UNITS         50
#define GROUP_COLUMNS 3
#define COLUMNS       (2 * GROUP_COLUMNS)
#define ROWS          ((uint64_t)2 * UNITS * UNIT_ROWS)
#define DATA_BYTE     4096

#if defined(__SANITIZE_THREAD__)
#define ENGINE PGIO_ENGINE_PSYNC
#else
#define ENGINE PGIO_ENGINE_AUTO
#endif

typedef struct table_file {
    char path[4096];
    pgio_group groups[2];
    pgio_region regions[2];
    uint64_t page_count;
    uint32_t *checks; /* NULL where pages are sealed */
    uint8_t *bytes;   /* its pages */
} table_file;

static inline float value_of(uint64_t row, uint32_t i)
{
    return (float)(pgio_mix(row * 64 + i) >> 40);
}

static inline int make_file(table_file *file, bool packed)
{
    memset(file, 0, sizeof *file);
    uint64_t unit_bytes = UNIT_ROWS * ROW_BYTES;
    uint64_t group_bytes = packed ? UNITS * unit_bytes : (uint64_t)UNITS * PAGE_BYTES;
    for (uint32_t g = 0; g < 2; g++) {
        file->groups[g] = (pgio_group){(uint64_t)g * UNITS * UNIT_ROWS, UNIT_ROWS, GROUP_COLUMNS, 1};
        file->regions[g] = (pgio_region){.base_byte = g * group_bytes,
                                         .unit_count = UNITS,
                                         .unit_bytes = unit_bytes,
                                         .row_bytes = ROW_BYTES,
                                         .units_per_page = packed ? 0 : 1};
    }
    file->page_count = (2 * group_bytes + PAGE_BYTES - 1) / PAGE_BYTES;
    uint64_t bytes = file->page_count * PAGE_BYTES;
    file->bytes = calloc(1, bytes);
    CHECK(file->bytes);
    for (uint64_t row = 0; row < ROWS; row++) {
        uint64_t unit = row / UNIT_ROWS % UNITS, group = row / UNIT_ROWS / UNITS;
        uint64_t at = group * group_bytes + unit * (packed ? unit_bytes : PAGE_BYTES) + row % UNIT_ROWS * ROW_BYTES;
        for (uint32_t i = 0; i < WIDTH; i++, at += 4) {
            float value = value_of(row, i);
            memcpy(file->bytes + at, &value, sizeof value);
        }
    }
    if (packed) {
        file->checks = malloc(file->page_count * sizeof *file->checks);
        CHECK(file->checks);
        for (uint64_t p = 0; p < file->page_count; p++)
            file->checks[p] = pgio_crc32c(file->bytes + p * PAGE_BYTES, PAGE_BYTES);
    } else {
        CHECK(pgio_pages_seal(file->bytes, 0, file->page_count, PAGE_BYTES) == (int64_t)file->page_count);
    }
    const char *folder = getenv("TMPDIR");
    snprintf(file->path, sizeof file->path, "%s/pgio-table-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(file->path);
    CHECK(fd >= 0);
    CHECK(pwrite(fd, file->bytes, bytes, DATA_BYTE) == (ssize_t)bytes);
    close(fd);
    return 0;
}

static inline void remove_file(table_file *file)
{
    unlink(file->path);
    free(file->bytes);
    free(file->checks);
}

static inline pgio_table_options options_of(const table_file *file, uint64_t cache_pages)
{
    return (pgio_table_options){.data_byte = DATA_BYTE,
                                .page_count = file->page_count,
                                .page_bytes = PAGE_BYTES,
                                .cache_bytes = cache_pages * PAGE_BYTES,
                                .page_checks = file->checks,
                                .row_format = PGIO_ROW_FP32,
                                .row_width = WIDTH,
                                .depth = 4,
                                .engine = ENGINE,
                                .flags = PGIO_READER_BUFFERED};
}

static inline int open_table(pgio_table **out, const table_file *file, uint64_t cache_pages)
{
    pgio_table_options options = options_of(file, cache_pages);
    pgio_error error = {{0}};
    int status = pgio_table_open(out, file->path, &options, file->groups, 2, file->regions, 2, &error);
    if (status)
        fprintf(stderr, "%s\n", error.text);
    CHECK(status == 0);
    return 0;
}

/* Rows of tokens that like some units better than others. */
static inline void draw_rows(uint64_t *random, uint64_t *rows, uint32_t tokens)
{
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t g = 0; g < 2; g++) {
            uint64_t unit = random_below(random, 1 + random_below(random, UNITS));
            for (uint32_t c = 0; c < GROUP_COLUMNS; c++)
                *rows++ = (g * UNITS + unit) * UNIT_ROWS + random_below(random, UNIT_ROWS);
        }
}

static inline int check_values(const uint64_t *rows, const float *values, uint32_t tokens)
{
    for (uint32_t at = 0; at < tokens * COLUMNS; at++)
        for (uint32_t i = 0; i < WIDTH; i++)
            CHECK(values[at * WIDTH + i] == value_of(rows[at], i));
    return 0;
}

static inline pgio_table_output values_to(float *values)
{
    return (pgio_table_output){values, COLUMNS * ROW_BYTES, ROW_BYTES, PGIO_FORM_VALUES};
}

#endif
