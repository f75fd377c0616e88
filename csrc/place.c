/* place.c: where rows lie: groups of columns, regions, alignment.
 *
 * Owns what is known before any row is: strides, divisors, how many pages a group can touch, how many pages
 * there are, all compiled when the place is made. pages.c then turns rows into bytes and pages. */
#include "place.h"

#include <inttypes.h>

static uint64_t pages_at_most(uint64_t bytes, uint64_t page_bytes)
{
    return bytes < 2 ? 1 : (bytes - 2) / page_bytes + 2;
}

static uint64_t pages_at_least(uint64_t bytes, uint64_t page_bytes)
{
    return bytes / page_bytes + (bytes % page_bytes != 0);
}

static int check_region(const pgio_region *given, const pgio_group *in, uint32_t index, uint64_t page_bytes,
                        pgio_error *error)
{
    if (given->unit_bytes >> 40 || given->unit_count >> 48)
        return pgio_fail(error, EINVAL,
                         "region %u: %" PRIu64 " units of %" PRIu64
                         " bytes; fewer than 2^48 of less than 2^40 bytes fit",
                         index, given->unit_count, given->unit_bytes);
    if (given->unit_bytes < 1 || given->unit_count < 1 || given->row_bytes < 1)
        return pgio_fail(error, EINVAL, "region %u: units, unit bytes and row bytes are at least 1", index);
    uint64_t rows_bytes;
    if (pgio_multiply_overflows(in->unit_rows, given->row_bytes, &rows_bytes) || rows_bytes > given->unit_bytes)
        return pgio_fail(error, EINVAL,
                         "region %u: %" PRIu64 " rows of %" PRIu64 " bytes do not fit in a unit of %" PRIu64, index,
                         in->unit_rows, given->row_bytes, given->unit_bytes);
    if (given->units_per_page == 0)
        return pgio_segments_check(given, index, error);
    if (given->segment_count)
        return pgio_fail(error, EINVAL, "region %u: only packed units can lie in segments", index);
    if (given->base_byte % page_bytes)
        return pgio_fail(error, EINVAL, "region %u: aligned units start at byte %" PRIu64 ", which is not on a page",
                         index, given->base_byte);
    if (given->unit_bytes > page_bytes ? given->units_per_page != 1
                                       : given->units_per_page > page_bytes / given->unit_bytes)
        return pgio_fail(error, EINVAL, "region %u: %u units of %" PRIu64 " bytes do not fit in a page of %" PRIu64,
                         index, given->units_per_page, given->unit_bytes, page_bytes);
    return 0;
}

/* Compiles one region and widens [*first_byte, *end_byte) to hold it. */
static int compile_region(region *to, const pgio_region *given, const pgio_group *in, uint64_t page_bytes,
                          uint64_t *first_byte, uint64_t *end_byte, pgio_error *error)
{
    to->given = *given;
    to->given.segments = NULL; /* the caller's, who may free them */
    to->units_per_page = pgio_divisor_of(given->units_per_page ? given->units_per_page : 1);
    to->whole = given->unit_bytes <= page_bytes;
    bool aligned = given->units_per_page > 0;
    uint64_t unit_pages = pages_at_least(given->unit_bytes, page_bytes);
    to->unit_stride_bytes = !aligned ? given->unit_bytes : to->whole ? page_bytes : unit_pages * page_bytes;
    bool starts_on_units = given->segment_count ? pgio_segments_start_on(given, given->unit_bytes)
                                                : given->base_byte % given->unit_bytes == 0;
    bool never_straddles = aligned || (page_bytes % given->unit_bytes == 0 && starts_on_units);
    uint64_t widest = never_straddles ? unit_pages : pages_at_most(given->unit_bytes, page_bytes);
    uint64_t by_rows = in->column_count * pages_at_most(given->row_bytes, page_bytes);
    uint64_t width = !to->whole && by_rows < widest ? by_rows : widest;
    if (width > PGIO_MAX_COLUMNS)
        return pgio_fail(error, EINVAL, "one token would touch %" PRIu64 " pages; at most %d", width, PGIO_MAX_COLUMNS);
    to->width = (uint32_t)width;
    if (given->segment_count)
        return pgio_segments_new(&to->segments, given, first_byte, end_byte, error);
    uint64_t strides = aligned ? pages_at_least(given->unit_count, given->units_per_page) : given->unit_count;
    uint64_t end;
    if (pgio_multiply_overflows(strides, to->unit_stride_bytes, &end) ||
        pgio_add_overflows(end, given->base_byte, &end) || end >> 62)
        return pgio_fail(error, EOVERFLOW, "the table reaches past 2^62 bytes");
    *first_byte = given->base_byte < *first_byte ? given->base_byte : *first_byte;
    *end_byte = end > *end_byte ? end : *end_byte;
    return 0;
}

static int compile_groups(pgio_place *place, const pgio_group *groups, const pgio_region *regions,
                          uint32_t region_count, uint64_t page_bytes, pgio_error *error)
{
    uint64_t first_byte = UINT64_MAX, end_byte = 0, rows;
    uint32_t next_region = 0, columns = 0, page_columns = 0, byte_columns = 0;
    place->simple = place->single = true;
    for (uint32_t g = 0; g < place->group_count; g++) {
        const pgio_group *in = &groups[g];
        if (in->column_count < 1 || in->region_count < 1 || in->unit_rows < 1 || in->column_count > PGIO_MAX_COLUMNS ||
            in->region_count > region_count - next_region)
            return pgio_fail(error, EINVAL, "group %u: %u columns, %u regions, %" PRIu64 " rows a unit", g,
                             in->column_count, in->region_count, in->unit_rows);
        group *to = &place->groups[g];
        *to = (group){.row_base = in->row_base,
                      .unit_rows = pgio_divisor_of(in->unit_rows),
                      .column_count = in->column_count,
                      .region_count = in->region_count,
                      .first_region = next_region,
                      .first_page_column = page_columns};
        for (uint32_t r = 0; r < in->region_count; r++, next_region++) {
            const pgio_region *given = &regions[next_region];
            int status = check_region(given, in, next_region, page_bytes, error);
            if (!status && given->unit_count != regions[to->first_region].unit_count)
                status = pgio_fail(error, EINVAL, "group %u: its regions hold different numbers of units", g);
            if (!status)
                status =
                    compile_region(&place->regions[next_region], given, in, page_bytes, &first_byte, &end_byte, error);
            if (status)
                return status;
            to->width += place->regions[next_region].width;
        }
        const region *only = &place->regions[to->first_region];
        if (pgio_multiply_overflows(only->given.unit_count, in->unit_rows, &rows) ||
            pgio_add_overflows(rows, in->row_base, &to->row_count) || to->row_count >> 62)
            return pgio_fail(error, EOVERFLOW, "group %u: its rows reach 2^62", g);
        to->row_count = rows;
        place->single = place->single && in->column_count == 1 && in->region_count == 1 && only->whole;
        place->simple = place->simple && place->single && only->given.units_per_page > 0 && rows < WIDE_LIMIT;
        columns += in->column_count;
        page_columns += to->width;
        byte_columns += in->column_count * in->region_count;
        if (columns > PGIO_MAX_COLUMNS || page_columns > PGIO_MAX_COLUMNS || byte_columns > PGIO_MAX_COLUMNS)
            return pgio_fail(error, EINVAL, "more than %d rows or pages a token", PGIO_MAX_COLUMNS);
    }
    place->column_count = columns;
    place->page_columns = page_columns;
    place->byte_columns = byte_columns;
    place->first_page = first_byte >> place->page_shift;
    place->page_count = ((end_byte - 1) >> place->page_shift) - place->first_page + 1;
    if (place->page_count >= PGIO_NO_PAGE)
        return pgio_fail(error, EOVERFLOW, "%" PRIu64 " pages; page ids are 32 bits wide, so at most 4294967294",
                         place->page_count);
    return next_region == region_count
               ? 0
               : pgio_fail(error, EINVAL, "%u regions, but the groups use %u", region_count, next_region);
}

static void compile_lanes(pgio_place *place)
{
    uint32_t n = place->lane_count;
    for (uint32_t g = 0; g < n; g++) {
        const group *of = &place->groups[g < place->group_count ? g : place->group_count - 1];
        const region *in = &place->regions[of->first_region];
        uint64_t rows_per_page = of->unit_rows.divisor * in->given.units_per_page;
        double inverse = 1.0 / (double)rows_per_page;
        uint64_t *lane = place->lanes + g;
        lane[ROW_BASE * n] = of->row_base;
        lane[ROW_COUNT * n] = of->row_count;
        lane[ROWS_PER_PAGE * n] = rows_per_page;
        lane[ROWS_PER_PAGE_RECIPROCAL * n] = pgio_divisor_of(rows_per_page).reciprocal;
        memcpy(&lane[ROWS_PER_PAGE_INVERSE * n], &inverse, sizeof inverse);
        lane[PAGE_BASE * n] = (in->given.base_byte >> place->page_shift) - place->first_page;
    }
}

int pgio_place_new(pgio_place **out, const pgio_group *groups, uint32_t group_count, const pgio_region *regions,
                   uint32_t region_count, uint64_t page_bytes, uint32_t isa, pgio_error *error)
{
    *out = NULL;
    if (page_bytes < 512 || page_bytes > (uint64_t)1 << 30 || page_bytes & (page_bytes - 1))
        return pgio_fail(error, EINVAL, "a page of %" PRIu64 " bytes; it is a power of two from 512 to 2^30",
                         page_bytes);
    if (group_count < 1 || group_count > PGIO_MAX_COLUMNS || region_count < group_count ||
        region_count > PGIO_MAX_COLUMNS)
        return pgio_fail(error, EINVAL,
                         "%u groups and %u regions; there is at least one group, with at least one region each",
                         group_count, region_count);
    int status = pgio_isa_resolve(isa, &isa, error);
    if (status)
        return status;
    pgio_place *place = calloc(1, sizeof *place);
    uint32_t lane_count = (group_count + LANES - 1) / LANES * LANES;
    if (place) {
        place->groups = calloc(group_count, sizeof *place->groups);
        place->regions = calloc(region_count, sizeof *place->regions);
        place->lanes = calloc((size_t)lane_count * LANE_FIELDS, sizeof *place->lanes);
    }
    if (!place || !place->groups || !place->regions || !place->lanes) {
        pgio_place_free(place);
        return pgio_fail(error, ENOMEM, "no memory for %u groups", group_count);
    }
    place->group_count = group_count;
    place->region_count = region_count;
    place->lane_count = lane_count;
    place->page_shift = (uint32_t)__builtin_ctzll(page_bytes);
    place->isa = isa;
    status = compile_groups(place, groups, regions, region_count, page_bytes, error);
    if (status) {
        pgio_place_free(place);
        return status;
    }
    if (place->simple)
        compile_lanes(place);
    *out = place;
    return 0;
}

void pgio_place_free(pgio_place *place)
{
    if (!place)
        return;
    for (uint32_t r = 0; r < place->region_count; r++)
        pgio_segments_free(&place->regions[r].segments);
    free(place->groups);
    free(place->regions);
    free(place->lanes);
    free(place);
}

uint64_t pgio_place_page_count(const pgio_place *place)
{
    return place->page_count;
}

uint64_t pgio_place_first_page(const pgio_place *place)
{
    return place->first_page;
}

uint32_t pgio_place_page_columns(const pgio_place *place)
{
    return place->page_columns;
}

uint32_t pgio_place_byte_columns(const pgio_place *place)
{
    return place->byte_columns;
}

void pgio_place_column_groups(const pgio_place *place, uint32_t *group_of_column)
{
    for (uint32_t g = 0; g < place->group_count; g++)
        for (uint32_t i = 0; i < place->groups[g].width; i++)
            group_of_column[place->groups[g].first_page_column + i] = g;
}

bool pgio_place_reads_whole(const pgio_region *regions, uint32_t region_count, uint64_t page_bytes)
{
    for (uint32_t r = 0; r < region_count; r++)
        if (regions[r].unit_bytes > page_bytes)
            return false;
    return true;
}
