/* segments.h: for place.c: where a unit lies when its region is cut into segments, as shards cut a table. */
#ifndef PGIO_SEGMENTS_H
#define PGIO_SEGMENTS_H

#include "internal.h"

typedef struct pgio_segments {
    uint32_t count;        /* 0: the region is one range, and nothing else here means anything */
    bool equal;            /* one division finds a unit's segment; otherwise a search does */
    pgio_divisor units;    /* of each segment but the first and the last, which may be shorter */
    uint64_t lead;         /* units that the first lacks */
    uint64_t *first_units; /* [count] */
    uint64_t *shifts;      /* [count], base_byte - first_unit * unit_bytes modulo 2^64 */
} pgio_segments;

int pgio_segments_check(const pgio_region *given, uint32_t region, pgio_error *error);
/* Copies the segments of a region that was checked, and widens [*first_byte, *end_byte) to hold them. */
int pgio_segments_new(pgio_segments *to, const pgio_region *given, uint64_t *first_byte, uint64_t *end_byte,
                      pgio_error *error);
void pgio_segments_free(pgio_segments *segments);
/* Does every segment start on a multiple of unit_bytes? */
bool pgio_segments_start_on(const pgio_region *given, uint64_t unit_bytes);

static inline uint64_t pgio_segments_byte(const pgio_segments *in, uint64_t unit, uint64_t unit_bytes)
{
    uint64_t at = 0;
    if (in->equal) {
        at = pgio_quotient(unit + in->lead, in->units);
    } else {
        /* The last segment that begins at or before the unit; the first begins at 0. */
        for (uint64_t left = in->count; left > 1;) {
            uint64_t half = left / 2;
            at += in->first_units[at + half] <= unit ? half : 0;
            left -= half;
        }
    }
    return in->shifts[at] + unit * unit_bytes;
}

#endif
