/* The buckets of latencies: every value has one, they ascend without gaps, and none is wider than 1/64. */
#include "check.h"
#include "histogram.h"

static int check_value(uint64_t value)
{
    uint32_t bucket = histogram_bucket(value);
    CHECK(bucket < PGIO_HISTOGRAM_BUCKETS);
    if (value > HISTOGRAM_LIMIT) {
        CHECK(bucket == PGIO_HISTOGRAM_BUCKETS - 1);
        return 0;
    }
    CHECK(pgio_histogram_low(bucket) <= value);
    CHECK(value < pgio_histogram_low(bucket + 1));
    return 0;
}

int main(void)
{
    CHECK(pgio_histogram_low(0) == 0);
    for (uint32_t b = 0; b < PGIO_HISTOGRAM_BUCKETS; b++) {
        uint64_t low = pgio_histogram_low(b), next = pgio_histogram_low(b + 1);
        CHECK(low < next);
        CHECK((next - low) * 64 <= low || next - low == 1);
        CHECK(histogram_bucket(low) == b && histogram_bucket(next - 1) == b);
    }
    CHECK(pgio_histogram_low(PGIO_HISTOGRAM_BUCKETS) == HISTOGRAM_LIMIT + 1);
    for (uint64_t value = 0; value < 100000; value++)
        CHECK(check_value(value) == 0);
    for (int shift = 0; shift < 64; shift++)
        for (int64_t near = -2; near <= 2; near++)
            CHECK(check_value(((uint64_t)1 << shift) + (uint64_t)near) == 0);
    CHECK(check_value(UINT64_MAX) == 0);
    return 0;
}
