/* histogram.c: latencies in log-linear buckets: a power of two is cut into 64 equal parts.
 *
 * Fixed memory, one increment a value, and a relative error of at most 1/64 over the whole range,
 * which is what percentiles of a latency need. */
#include "histogram.h"

uint64_t pgio_histogram_low(uint32_t bucket)
{
    if (bucket < 2 * HISTOGRAM_PARTS)
        return bucket;
    uint32_t shift = bucket / HISTOGRAM_PARTS - 1;
    return (uint64_t)(HISTOGRAM_PARTS + bucket % HISTOGRAM_PARTS) << shift;
}
