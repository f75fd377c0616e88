/* output.c: rows in frames -> the caller's memory.
 *
 * Owns how a row is found among the frames of its token's pages, joined where it straddles pages, and decoded.
 * Tokens come in small blocks: all their rows are found first, and their lines of memory fetched ahead, since
 * nearly every row is a cache miss of the processor's. */
#include "table.h"

int pgio_output_check(const pgio_table_output *output, pgio_error *error)
{
    if (output->form != PGIO_FORM_VALUES && output->form != PGIO_FORM_BYTES)
        return pgio_fail(error, EINVAL, "form %u is not known", output->form);
    uint64_t strides = (uint64_t)output->token_stride_bytes | (uint64_t)output->column_stride_bytes;
    if (output->form == PGIO_FORM_VALUES && ((uintptr_t)output->memory | strides) % sizeof(float))
        return pgio_fail(error, EINVAL, "memory and strides for values are multiples of %zu bytes", sizeof(float));
    return 0;
}

/* Where a page stands among those of one token and group, which are few. */
static uint32_t place_of_page(const uint32_t *pages, uint32_t page)
{
    uint32_t at = 0;
    while (pages[at] != page)
        at++;
    return at;
}

static const uint8_t *row_in_frame(const pgio_table *table, const uint32_t *pages, const uint32_t *frames,
                                   uint64_t offset)
{
    const pgio_page_cache *cache = &table->cache;
    uint64_t within = offset & (table->options.page_bytes - 1);
    if (within + table->row_bytes > table->options.page_bytes)
        return NULL;
    uint32_t at = place_of_page(pages, (uint32_t)((offset >> cache->page_shift) - table->first_page));
    const uint8_t *row = pgio_frame_memory(cache, frames[at]) + within;
    __builtin_prefetch(row);
    __builtin_prefetch(row + table->row_bytes - 1);
    return row;
}

static const uint8_t *join_row(const pgio_table *table, const uint32_t *pages, const uint32_t *frames, uint64_t offset,
                               uint8_t *joined)
{
    const pgio_page_cache *cache = &table->cache;
    uint64_t page_bytes = table->options.page_bytes, within = offset & (page_bytes - 1), done = 0;
    uint32_t at = place_of_page(pages, (uint32_t)((offset >> cache->page_shift) - table->first_page));
    for (; done < table->row_bytes; at++, within = 0) {
        uint64_t n = page_bytes - within < table->row_bytes - done ? page_bytes - within : table->row_bytes - done;
        memcpy(joined + done, pgio_frame_memory(cache, frames[at]) + within, n);
        done += n;
    }
    return joined;
}

static void decode_row(const pgio_table *table, const uint8_t *row, float *values)
{
    uint32_t width = table->options.row_width;
    switch (table->options.row_format) {
    case PGIO_ROW_NF4:
        pgio_nf4_decode_row(row, width, values, table->isa);
        return;
    case PGIO_ROW_FP32:
        for (uint32_t i = 0; i < width; i++, row += 4) {
            uint32_t bits = (uint32_t)row[0] | (uint32_t)row[1] << 8 | (uint32_t)row[2] << 16 | (uint32_t)row[3] << 24;
            memcpy(values + i, &bits, sizeof bits);
        }
        return;
    case PGIO_ROW_BF16:
        for (uint32_t i = 0; i < width; i++, row += 2) {
            uint32_t bits = (uint32_t)row[0] << 16 | (uint32_t)row[1] << 24;
            memcpy(values + i, &bits, sizeof bits);
        }
        return;
    default:
        for (uint32_t i = 0; i < width; i++, row += 2)
            values[i] = pgio_half_to_float((uint32_t)row[0] | (uint32_t)row[1] << 8);
    }
}

int pgio_output_rows(pgio_table_client *client, const pgio_batch *batch, uint64_t first, uint64_t count,
                     const uint64_t *rows, const pgio_table_output *output, pgio_error *error)
{
    const pgio_table *table = client->table;
    uint32_t columns = table->column_count;
    int64_t status = pgio_place_bytes(table->place, rows, count, client->offsets, error);
    if (status < 0)
        return (int)status;
    for (int pass = 0; pass < 2; pass++) { /* find and fetch ahead, then decode */
        for (uint64_t t = 0; t < count; t++) {
            const uint32_t *pages = batch->pages + (first + t) * table->page_columns;
            const uint32_t *frames = batch->frames + (first + t) * table->page_columns;
            uint64_t at = t * columns;
            uint8_t *to = (uint8_t *)output->memory + (int64_t)(first + t) * output->token_stride_bytes;
            for (uint32_t g = 0; g < table->group_count; g++) {
                const pgio_table_group *group = &table->groups[g];
                const uint32_t *group_pages = pages + group->first_page_column;
                const uint32_t *group_frames = frames + group->first_page_column;
                for (uint32_t c = 0; c < group->column_count; c++, at++, to += output->column_stride_bytes) {
                    if (pass == 0) {
                        client->rows[at] = row_in_frame(table, group_pages, group_frames, client->offsets[at]);
                        continue;
                    }
                    const uint8_t *row = client->rows[at];
                    if (!row)
                        row = join_row(table, group_pages, group_frames, client->offsets[at], client->joined);
                    if (output->form == PGIO_FORM_BYTES)
                        memcpy(to, row, table->row_bytes);
                    else
                        decode_row(table, row, (float *)(void *)to);
                }
            }
        }
    }
    return 0;
}
