/* place.c: rows -> bytes and pages.
 *
 * Owns where a row lies in the file and which pages a token therefore touches; rows may come from
 * rows.c or from anywhere else. Everything that can be known beforehand (strides, divisors, how many
 * pages a group can touch) is compiled when the place is made. The common case, one row a group in
 * units that never straddle, is one exact division by the rows of a page; the general case collects
 * a group's few pages in order. */
#include <inttypes.h>

#include "internal.h"

#define LANES      8
#define WIDE_LIMIT ((uint64_t)1 << 51) /* rows below this divide exactly in a double, to one unit */

typedef struct region {
    pgio_region given;
    pgio_divisor units_per_page;
    uint64_t unit_stride_bytes; /* from one unit to the next when units_per_page is 0, or unit > page */
    bool whole;                 /* a unit fits in a page, so it is read whole */
    uint32_t width;             /* most pages one token touches here */
} region;

typedef struct group {
    uint64_t row_base;
    uint64_t row_count;
    pgio_divisor unit_rows;
    uint32_t column_count, region_count, first_region;
    uint32_t first_page_column, width;
} group;

struct pgio_place {
    uint32_t group_count, column_count, page_columns, byte_columns;
    uint32_t page_shift, isa;
    bool simple; /* one column and one never-straddling region a group */
    uint64_t first_page, page_count;
    group *groups;
    region *regions;
    uint64_t *lanes; /* the simple path's constants */
    uint32_t lane_count;
};

enum { ROW_BASE, ROW_COUNT, ROWS_PER_PAGE, ROWS_PER_PAGE_RECIPROCAL, ROWS_PER_PAGE_INVERSE, PAGE_BASE, LANE_FIELDS };

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
        return 0;
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
    to->units_per_page = pgio_divisor_of(given->units_per_page ? given->units_per_page : 1);
    to->whole = given->unit_bytes <= page_bytes;
    bool aligned = given->units_per_page > 0;
    uint64_t unit_pages = pages_at_least(given->unit_bytes, page_bytes);
    to->unit_stride_bytes = !aligned ? given->unit_bytes : to->whole ? page_bytes : unit_pages * page_bytes;
    bool never_straddles =
        aligned || (page_bytes % given->unit_bytes == 0 && given->base_byte % given->unit_bytes == 0);
    uint64_t widest = never_straddles ? unit_pages : pages_at_most(given->unit_bytes, page_bytes);
    uint64_t by_rows = in->column_count * pages_at_most(given->row_bytes, page_bytes);
    uint64_t width = !to->whole && by_rows < widest ? by_rows : widest;
    if (width > PGIO_MAX_COLUMNS)
        return pgio_fail(error, EINVAL, "one token would touch %" PRIu64 " pages; at most %d", width, PGIO_MAX_COLUMNS);
    to->width = (uint32_t)width;
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
    place->simple = true;
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
        place->simple = place->simple && in->column_count == 1 && in->region_count == 1 && only->whole &&
                        only->given.units_per_page > 0 && rows < WIDE_LIMIT;
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

static uint64_t unit_byte(const region *in, uint64_t unit)
{
    if (in->given.units_per_page == 0 || !in->whole)
        return in->given.base_byte + unit * in->unit_stride_bytes;
    uint64_t page = pgio_quotient(unit, in->units_per_page);
    return in->given.base_byte + page * in->unit_stride_bytes +
           (unit - page * in->given.units_per_page) * in->given.unit_bytes;
}

/* Keeps pages[0 .. count) ascending and distinct; a group touches a handful. */
static uint32_t insert_page(uint32_t *pages, uint32_t count, uint32_t page)
{
    uint32_t at = count;
    while (at > 0 && pages[at - 1] > page)
        at--;
    if (at > 0 && pages[at - 1] == page)
        return count;
    memmove(pages + at + 1, pages + at, (count - at) * sizeof *pages);
    pages[at] = page;
    return count + 1;
}

static int row_out_of_range(const pgio_place *place, uint64_t row, uint32_t g, pgio_error *error)
{
    const group *of = &place->groups[g];
    return pgio_fail(error, ERANGE, "row %" PRIu64 " is not in group %u, which holds rows %" PRIu64 " to %" PRIu64, row,
                     g, of->row_base, of->row_base + of->row_count - 1);
}

/* The pages of one token's rows in one group. Returns how many, or -errno. */
static int64_t group_pages(const pgio_place *place, uint32_t g, const uint64_t *rows, uint32_t *pages,
                           pgio_error *error)
{
    const group *of = &place->groups[g];
    uint64_t group_unit = UINT64_MAX;
    uint32_t count = 0;
    for (uint32_t c = 0; c < of->column_count; c++) {
        if (rows[c] == UINT64_MAX)
            continue;
        uint64_t row = rows[c] - of->row_base;
        if (rows[c] < of->row_base || row >= of->row_count)
            return row_out_of_range(place, rows[c], g, error);
        uint64_t unit = pgio_quotient(row, of->unit_rows);
        bool new_unit = group_unit == UINT64_MAX;
        if (!new_unit && unit != group_unit)
            return pgio_fail(error, EINVAL,
                             "group %u: one token's rows lie in units %" PRIu64 " and %" PRIu64
                             "; columns of a group read one unit",
                             g, group_unit, unit);
        group_unit = unit;
        for (uint32_t r = 0; r < of->region_count; r++) {
            const region *in = &place->regions[of->first_region + r];
            if (in->whole && !new_unit)
                continue;
            uint64_t first = unit_byte(in, unit), bytes = in->given.unit_bytes;
            if (!in->whole) {
                first += (row - unit * of->unit_rows.divisor) * in->given.row_bytes;
                bytes = in->given.row_bytes;
            }
            uint64_t last_page = (first + bytes - 1) >> place->page_shift;
            for (uint64_t page = first >> place->page_shift; page <= last_page; page++)
                count = insert_page(pages, count, (uint32_t)(page - place->first_page));
        }
    }
    for (uint32_t i = count; i < of->width; i++)
        pages[i] = PGIO_NO_PAGE;
    return count;
}

static int64_t pages_general(const pgio_place *place, const uint64_t *rows, uint64_t token_count, uint32_t *pages,
                             pgio_error *error)
{
    int64_t touched = 0;
    for (uint64_t t = 0; t < token_count; t++) {
        for (uint32_t g = 0; g < place->group_count; g++) {
            int64_t count = group_pages(place, g, rows, pages, error);
            if (count < 0)
                return count;
            touched += count;
            rows += place->groups[g].column_count;
            pages += place->groups[g].width;
        }
    }
    return touched;
}

/* One row a group in units that never straddle, group by group. Returns as the wide path below does. */
static int64_t pages_simple(const pgio_place *place, const uint64_t *rows, uint64_t token_count, uint32_t *pages)
{
    uint32_t n = place->lane_count, stride = place->group_count;
    bool bad = false;
    for (uint32_t g = 0; g < stride; g++) {
        const uint64_t *lane = place->lanes + g;
        const uint64_t row_base = lane[ROW_BASE * n], row_count = lane[ROW_COUNT * n], page_base = lane[PAGE_BASE * n];
        const pgio_divisor by = {lane[ROWS_PER_PAGE * n], lane[ROWS_PER_PAGE_RECIPROCAL * n]};
        if (row_count >> 31 == 0 && by.divisor >> 31 == 0) {
            /* With 2^(31 + bits of the divisor) / divisor, rounded up, one multiplication is exact below 2^31. */
            uint32_t shift = 31 + 32 - (uint32_t)__builtin_clz((uint32_t)by.divisor);
            uint64_t m = (((uint64_t)1 << shift) - 1) / by.divisor + 1;
            for (uint64_t t = 0; t < token_count; t++) {
                uint64_t row = rows[t * stride + g] - row_base;
                bad |= row >= row_count;
                pages[t * stride + g] = (uint32_t)(page_base + ((row * m) >> shift));
            }
            continue;
        }
        for (uint64_t t = 0; t < token_count; t++) {
            uint64_t row = rows[t * stride + g] - row_base;
            bad |= row >= row_count;
            pages[t * stride + g] = (uint32_t)(page_base + pgio_quotient(row, by));
        }
    }
    return bad ? -1 : (int64_t)(token_count * stride);
}

#if PGIO_X86
/* Eight groups of one token at a time. Returns the pages touched, or -1 where some row is out of range. */
__attribute__((target("avx512f,avx512dq,avx512vl"))) static int64_t
pages_simple_avx512(const pgio_place *place, const uint64_t *rows, uint64_t token_count, uint32_t *pages)
{
    uint32_t n = place->lane_count, stride = place->group_count;
    int64_t touched = 0;
    __mmask8 any_bad = 0;
    for (uint32_t first = 0; first < stride; first += LANES) {
        const uint64_t *lane = place->lanes + first;
        __mmask8 mask = (__mmask8)(stride - first < LANES ? (1u << (stride - first)) - 1 : 0xFF);
        __m512i row_base = _mm512_loadu_si512(lane + ROW_BASE * n),
                row_count = _mm512_loadu_si512(lane + ROW_COUNT * n);
        __m512i divisor = _mm512_loadu_si512(lane + ROWS_PER_PAGE * n),
                page_base = _mm512_loadu_si512(lane + PAGE_BASE * n);
        __m512d inverse = _mm512_castsi512_pd(_mm512_loadu_si512(lane + ROWS_PER_PAGE_INVERSE * n));
        for (uint64_t t = 0; t < token_count; t++) {
            __m512i given = _mm512_maskz_loadu_epi64(mask, rows + t * stride + first);
            __mmask8 present = _mm512_mask_cmpneq_epi64_mask(mask, given, _mm512_set1_epi64(-1));
            __m512i row = _mm512_sub_epi64(given, row_base);
            any_bad |= _mm512_mask_cmpge_epu64_mask(present, row, row_count);
            __m512i q = _mm512_cvttpd_epi64(_mm512_mul_pd(_mm512_cvtepi64_pd(row), inverse));
            __m512i r = _mm512_sub_epi64(row, _mm512_mullo_epi64(q, divisor));
            /* The estimate is off by one at most, either way. */
            q = _mm512_mask_sub_epi64(q, _mm512_movepi64_mask(r), q, _mm512_set1_epi64(1));
            q = _mm512_mask_add_epi64(q, _mm512_cmpge_epi64_mask(r, divisor), q, _mm512_set1_epi64(1));
            __m512i page = _mm512_mask_add_epi64(_mm512_set1_epi64(-1), present, q, page_base);
            _mm256_mask_storeu_epi32(pages + t * stride + first, mask, _mm512_cvtepi64_epi32(page));
            touched += __builtin_popcount(present);
        }
    }
    return any_bad ? -1 : touched;
}
#endif

int64_t pgio_place_pages(const pgio_place *place, const uint64_t *rows, uint64_t token_count, uint32_t *pages,
                         pgio_error *error)
{
    int64_t touched = -1;
#if PGIO_X86
    if (place->simple && place->isa == PGIO_ISA_AVX512)
        touched = pages_simple_avx512(place, rows, token_count, pages);
    else
#endif
        if (place->simple)
        touched = pages_simple(place, rows, token_count, pages);
    /* The general path serves the rest: absent rows, and naming a row that is out of range. */
    return touched >= 0 ? touched : pages_general(place, rows, token_count, pages, error);
}

int64_t pgio_place_bytes(const pgio_place *place, const uint64_t *rows, uint64_t token_count, uint64_t *offsets,
                         pgio_error *error)
{
    for (uint64_t t = 0; t < token_count; t++) {
        for (uint32_t g = 0; g < place->group_count; g++) {
            const group *of = &place->groups[g];
            for (uint32_t c = 0; c < of->column_count; c++, rows++) {
                uint64_t row = *rows - of->row_base;
                if (*rows < of->row_base || row >= of->row_count)
                    return row_out_of_range(place, *rows, g, error);
                uint64_t unit = pgio_quotient(row, of->unit_rows);
                for (uint32_t r = 0; r < of->region_count; r++) {
                    const region *in = &place->regions[of->first_region + r];
                    *offsets++ = unit_byte(in, unit) + (row - unit * of->unit_rows.divisor) * in->given.row_bytes;
                }
            }
        }
    }
    return (int64_t)token_count;
}
