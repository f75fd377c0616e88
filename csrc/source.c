/* source.c: a restartable stream of pages: tokens through rows.c and place.c, a block at a time.
 *
 * Owns the position in the stream and the scratch rows between the two steps. Where every unit of a
 * group is read whole, and all its columns surely choose the same unit, one of them decides the page, so
 * only that one is computed, without its slot: pages of a PageGram token cost two row hashes instead of
 * thirty-two. Any other group is computed in full, and place.c sees whether its rows share a unit. */
#include "internal.h"

#define BLOCK 64 /* tokens: 16 columns of 8 bytes each stay in the first-level cache */

struct pgio_source {
    pgio_rows *rows;
    pgio_place *place;
    pgio_tokens tokens;
    uint64_t position;
    uint64_t *scratch; /* [BLOCK, column_count] */
    uint32_t column_count;
};

/* Does each column choose the same unit of the group, whatever its slot? The bucket must be the same hash,
 * a bucket a whole number of units, and a column's slots inside one unit of it. */
static bool share_a_unit(const pgio_column *columns, const pgio_group *group)
{
    const pgio_column *first = &columns[0];
    uint64_t unit_rows = group->unit_rows;
    if (unit_rows < 1 || first->row_base < group->row_base || first->row_stride % unit_rows)
        return false;
    for (uint32_t c = 0; c < group->column_count; c++) {
        const pgio_column *column = &columns[c];
        if (column->bucket_salt != first->bucket_salt || column->bucket_hash != first->bucket_hash ||
            column->modulus != first->modulus || column->row_stride != first->row_stride ||
            column->row_base < group->row_base ||
            memcmp(column->multipliers, first->multipliers, sizeof first->multipliers) != 0)
            return false;
        uint64_t row = column->row_base - group->row_base;
        if (row / unit_rows != (first->row_base - group->row_base) / unit_rows ||
            column->slot_count > unit_rows - row % unit_rows)
            return false;
    }
    return true;
}

/* Drops the columns that cannot change a page. Returns how many are left. */
static uint32_t reduce(pgio_column *columns, pgio_group *groups, uint32_t group_count, const pgio_region *regions,
                       uint64_t page_bytes)
{
    uint32_t from = 0, to = 0;
    for (uint32_t g = 0; g < group_count; g++) {
        uint32_t count = groups[g].column_count;
        bool one_tells_all = pgio_place_reads_whole(regions, groups[g].region_count, page_bytes) &&
                             share_a_unit(columns + from, &groups[g]);
        groups[g].column_count = one_tells_all ? 1 : count;
        for (uint32_t c = 0; c < groups[g].column_count; c++) {
            columns[to] = columns[from + c];
            if (one_tells_all)
                columns[to].slot_count = 1;
            to++;
        }
        from += count;
        regions += groups[g].region_count;
    }
    return to;
}

static int check_counts(const pgio_group *groups, uint32_t group_count, uint32_t column_count, uint32_t region_count,
                        pgio_error *error)
{
    uint64_t columns = 0, regions = 0;
    for (uint32_t g = 0; g < group_count; g++) {
        columns += groups[g].column_count;
        regions += groups[g].region_count;
        if (groups[g].column_count < 1)
            return pgio_fail(error, EINVAL, "group %u has no column", g);
    }
    if (columns != column_count || regions != region_count)
        return pgio_fail(error, EINVAL, "the groups name more or fewer columns or regions than were given");
    return 0;
}

int pgio_source_new(pgio_source **out, const pgio_hash *hashes, uint32_t hash_count, const pgio_column *columns,
                    uint32_t column_count, const pgio_group *groups, uint32_t group_count, const pgio_region *regions,
                    uint32_t region_count, uint64_t page_bytes, const pgio_tokens *tokens, uint32_t isa,
                    pgio_error *error)
{
    *out = NULL;
    int status = check_counts(groups, group_count, column_count, region_count, error);
    if (!status)
        status = pgio_columns_check(hashes, hash_count, columns, column_count, error);
    if (status)
        return status;
    pgio_source *source = calloc(1, sizeof *source);
    pgio_column *lead = malloc(sizeof *lead * column_count);
    pgio_group *reduced = malloc(sizeof *reduced * group_count);
    if (!source || !lead || !reduced) {
        status = pgio_fail(error, ENOMEM, "no memory for a page source");
    } else {
        memcpy(lead, columns, sizeof *lead * column_count);
        memcpy(reduced, groups, sizeof *reduced * group_count);
        source->tokens = *tokens;
        source->column_count = reduce(lead, reduced, group_count, regions, page_bytes);
        status = pgio_rows_new(&source->rows, hashes, hash_count, lead, source->column_count, isa, error);
        if (!status)
            status = pgio_rows_check_tokens(source->rows, tokens, 0, tokens->count, error);
        if (!status)
            status =
                pgio_place_new(&source->place, reduced, group_count, regions, region_count, page_bytes, isa, error);
        if (!status && !(source->scratch = malloc(sizeof *source->scratch * BLOCK * source->column_count)))
            status = pgio_fail(error, ENOMEM, "no memory for a page source");
    }
    free(lead);
    free(reduced);
    if (status) {
        pgio_source_free(source);
        return status;
    }
    *out = source;
    return 0;
}

void pgio_source_free(pgio_source *source)
{
    if (!source)
        return;
    pgio_rows_free(source->rows);
    pgio_place_free(source->place);
    free(source->scratch);
    free(source);
}

uint32_t pgio_source_page_columns(const pgio_source *source)
{
    return pgio_place_page_columns(source->place);
}

int64_t pgio_source_next(pgio_source *source, uint64_t token_count, uint32_t *pages, pgio_error *error)
{
    uint64_t left = source->tokens.count - source->position;
    uint64_t total = token_count < left ? token_count : left;
    uint32_t page_columns = pgio_place_page_columns(source->place);
    for (uint64_t done = 0; done < total;) {
        uint64_t n = total - done < BLOCK ? total - done : BLOCK;
        int64_t status = pgio_rows_emit(source->rows, &source->tokens, source->position, source->position + n,
                                        source->scratch, error);
        if (status >= 0)
            status = pgio_place_pages(source->place, source->scratch, n, pages + done * page_columns, error);
        if (status < 0)
            return status;
        source->position += n;
        done += n;
    }
    return (int64_t)total;
}

void pgio_source_rewind(pgio_source *source)
{
    source->position = 0;
}
