/* place.h: for place.c and pages.c: a place as it was compiled. */
#ifndef PGIO_PLACE_H
#define PGIO_PLACE_H

#include "segments.h"

#define LANES      8
#define WIDE_LIMIT ((uint64_t)1 << 51) /* rows below this divide exactly in a double, to one unit */

typedef struct region {
    pgio_region given;
    pgio_divisor units_per_page;
    uint64_t unit_stride_bytes; /* from one unit to the next when units_per_page is 0, or unit > page */
    bool whole;                 /* a unit fits in a page, so it is read whole */
    uint32_t width;             /* most pages one token touches here */
    pgio_segments segments;
} region;

typedef struct group {
    uint64_t row_base;
    uint64_t row_count;
    pgio_divisor unit_rows;
    uint32_t column_count, region_count, first_region;
    uint32_t first_page_column, width;
} group;

struct pgio_place {
    uint32_t group_count, region_count, column_count, page_columns, byte_columns;
    uint32_t page_shift, isa;
    bool simple; /* one column and one never-straddling region a group */
    bool single; /* one column and one region of short units a group, straddling or not */
    uint64_t first_page, page_count;
    group *groups;
    region *regions;
    uint64_t *lanes; /* the simple path's constants */
    uint32_t lane_count;
};

enum { ROW_BASE, ROW_COUNT, ROWS_PER_PAGE, ROWS_PER_PAGE_RECIPROCAL, ROWS_PER_PAGE_INVERSE, PAGE_BASE, LANE_FIELDS };

static inline uint64_t unit_byte(const region *in, uint64_t unit)
{
    if (in->segments.count)
        return pgio_segments_byte(&in->segments, unit, in->given.unit_bytes);
    if (in->given.units_per_page == 0 || !in->whole)
        return in->given.base_byte + unit * in->unit_stride_bytes;
    uint64_t page = pgio_quotient(unit, in->units_per_page);
    return in->given.base_byte + page * in->unit_stride_bytes +
           (unit - page * in->given.units_per_page) * in->given.unit_bytes;
}

#endif
