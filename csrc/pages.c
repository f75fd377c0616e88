/* pages.c: rows -> bytes and pages.
 *
 * Owns which pages the rows of a token touch in a place (place.c); rows may come from rows.c or from
 * anywhere else. The common case, one row a group in units that never straddle, is one exact division by
 * the rows of a page; where they may, it is the row's byte and the page of its end; the general case
 * collects a group's few pages in order. */
#include <inttypes.h>

#include "place.h"

#define SINGLE_BLOCK 64 /* tokens */

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

/* One row of one group after the other, of a block of tokens: units of one page or two. Returns the pages that
 * straddling added, or -1 where some row is out of range. */
static int64_t pages_single_group(const pgio_place *place, const group *of, const uint64_t *rows, uint64_t token_count,
                                  uint32_t *out)
{
    const region *in = &place->regions[of->first_region];
    uint32_t stride = place->group_count, page_columns = place->page_columns;
    int64_t straddles = 0;
    for (uint64_t t = 0; t < token_count; t++, out += page_columns) {
        uint64_t row = rows[t * stride] - of->row_base;
        if (row >= of->row_count)
            return -1;
        uint64_t first_byte = unit_byte(in, pgio_quotient(row, of->unit_rows));
        uint64_t first = first_byte >> place->page_shift;
        uint64_t last = (first_byte + in->given.unit_bytes - 1) >> place->page_shift;
        out[0] = (uint32_t)(first - place->first_page);
        if (of->width == 1)
            continue;
        out[1] = last == first ? PGIO_NO_PAGE : (uint32_t)(last - place->first_page);
        straddles += last != first;
    }
    return straddles;
}

/* Group by group in blocks of tokens that stay in the cache. Returns as the wide path below does. */
static int64_t pages_single(const pgio_place *place, const uint64_t *rows, uint64_t token_count, uint32_t *pages)
{
    int64_t touched = (int64_t)(token_count * place->group_count);
    for (uint64_t begin = 0; begin < token_count; begin += SINGLE_BLOCK) {
        uint64_t count = token_count - begin < SINGLE_BLOCK ? token_count - begin : SINGLE_BLOCK;
        for (uint32_t g = 0; g < place->group_count; g++) {
            const group *of = &place->groups[g];
            int64_t straddles = pages_single_group(place, of, rows + begin * place->group_count + g, count,
                                                   pages + begin * place->page_columns + of->first_page_column);
            if (straddles < 0)
                return -1;
            touched += straddles;
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
    else if (place->single)
        touched = pages_single(place, rows, token_count, pages);
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
