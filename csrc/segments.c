/* segments.c: regions that are cut into segments, as the shards of a checkpoint cut a table.
 *
 * Owns the sorted list of segments of one region, and whether a division finds a unit's segment: shards are
 * nearly always equal, and a column's rows begin in the middle of one. Each segment keeps what to add to
 * unit * unit_bytes, so that finding the segment is all there is to an address. */
#include "segments.h"

#include <inttypes.h>

static uint64_t units_of(const pgio_region *given, uint32_t i)
{
    uint64_t end = i + 1 < given->segment_count ? given->segments[i + 1].first_unit : given->unit_count;
    return end - given->segments[i].first_unit;
}

int pgio_segments_check(const pgio_region *given, uint32_t region, pgio_error *error)
{
    if (given->segment_count == 0)
        return 0;
    if (!given->segments)
        return pgio_fail(error, EINVAL, "region %u: %u segments, and none are given", region, given->segment_count);
    for (uint32_t i = 0; i < given->segment_count; i++) {
        uint64_t first = given->segments[i].first_unit;
        if (i == 0 ? first != 0 : first <= given->segments[i - 1].first_unit || first >= given->unit_count)
            return pgio_fail(error, EINVAL,
                             "region %u: segment %u begins at unit %" PRIu64
                             "; they begin at 0, ascend and stay below its %" PRIu64 " units",
                             region, i, first, given->unit_count);
    }
    return 0;
}

static bool are_equal(const pgio_region *given, uint64_t *units, uint64_t *lead)
{
    uint32_t count = given->segment_count;
    *units = count > 2 ? units_of(given, 1) : given->unit_count;
    if (count == 2)
        *units = units_of(given, 0) > units_of(given, 1) ? units_of(given, 0) : units_of(given, 1);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t own = units_of(given, i);
        if (own > *units || (own < *units && i > 0 && i + 1 < count))
            return false;
    }
    *lead = *units - units_of(given, 0);
    return true;
}

int pgio_segments_new(pgio_segments *to, const pgio_region *given, uint64_t *first_byte, uint64_t *end_byte,
                      pgio_error *error)
{
    uint64_t units = 1;
    to->equal = are_equal(given, &units, &to->lead);
    to->units = pgio_divisor_of(units);
    to->first_units = malloc(sizeof *to->first_units * given->segment_count);
    to->shifts = malloc(sizeof *to->shifts * given->segment_count);
    if (!to->first_units || !to->shifts)
        return pgio_fail(error, ENOMEM, "no memory for %u segments", given->segment_count);
    to->count = given->segment_count;
    for (uint32_t i = 0; i < to->count; i++) {
        const pgio_segment *segment = &given->segments[i];
        uint64_t end;
        if (pgio_multiply_overflows(units_of(given, i), given->unit_bytes, &end) ||
            pgio_add_overflows(end, segment->base_byte, &end) || end >> 62)
            return pgio_fail(error, EOVERFLOW, "the table reaches past 2^62 bytes");
        *first_byte = segment->base_byte < *first_byte ? segment->base_byte : *first_byte;
        *end_byte = end > *end_byte ? end : *end_byte;
        to->first_units[i] = segment->first_unit;
        to->shifts[i] = segment->base_byte - segment->first_unit * given->unit_bytes;
    }
    return 0;
}

void pgio_segments_free(pgio_segments *segments)
{
    free(segments->first_units);
    free(segments->shifts);
}

bool pgio_segments_start_on(const pgio_region *given, uint64_t unit_bytes)
{
    for (uint32_t i = 0; i < given->segment_count; i++)
        if (given->segments[i].base_byte % unit_bytes)
            return false;
    return true;
}
