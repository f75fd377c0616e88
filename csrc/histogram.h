/* histogram.h: where a value is counted; histogram.c says what the buckets are. */
#ifndef PGIO_HISTOGRAM_H
#define PGIO_HISTOGRAM_H

#include "internal.h"

#define HISTOGRAM_PARTS 64
#define HISTOGRAM_LIMIT (((uint64_t)1 << 47) - 1) /* 39 hours in ns; longer counts as that */

static inline uint32_t histogram_bucket(uint64_t value)
{
    value = value > HISTOGRAM_LIMIT ? HISTOGRAM_LIMIT : value;
    if (value < HISTOGRAM_PARTS)
        return (uint32_t)value;
    uint32_t shift = 57 - (uint32_t)__builtin_clzll(value); /* leaves 7 bits: 64 to 127 */
    return shift * HISTOGRAM_PARTS + (uint32_t)(value >> shift);
}

#endif
