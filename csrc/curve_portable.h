/* curve_portable.h: the curve's counters in plain C, and the parts of them that AVX2 shares. */

static inline void add_within(pgio_curve *curve, uint32_t position, uint32_t live)
{
    uint16_t *within = curve->within + ((position >> 9) << 3);
    for (uint32_t w = ((position >> 6) & 7) + 1; w < 8; w++)
        within[w] = (uint16_t)(within[w] + live);
}

static inline void add_counts(pgio_curve *curve, uint32_t position, uint32_t live)
{
    curve->blocks[position >> 9] = (uint16_t)(curve->blocks[position >> 9] + live);
    curve->level14[position >> 14] = (uint16_t)(curve->level14[position >> 14] + live);
    curve->level19[position >> 19] += live;
}

static inline void clear_live(pgio_curve *curve, uint32_t position)
{
    curve->positions.live[position >> 6] &= ~((uint64_t)1 << (position & 63));
    curve->blocks[position >> 9]--;
    curve->level14[position >> 14]--;
    curve->level19[position >> 19]--;
}

/* The top of the tree is kept as sums, made once a batch: a count a group would be one more chain of
 * decrements, and a loop of unpredictable length in every rank. Positions up to `end` are in use. */
static inline void sum_top(pgio_curve *curve, uint32_t end)
{
    uint32_t before = 0;
    for (uint32_t group = 0; group <= end >> 23; group++) {
        const uint32_t *counts = curve->level19 + (group << 4);
        uint32_t sum = 0;
        for (uint32_t i = 0; i < 16; i++)
            sum += counts[i];
        curve->before23[group] = before;
        before += sum;
    }
}

static inline void remove_portable(pgio_curve *curve, uint32_t position)
{
    clear_live(curve, position);
    uint16_t *within = curve->within + ((position >> 9) << 3);
    uint32_t word = (position >> 6) & 7;
    for (uint32_t w = 0; w < 8; w++)
        within[w] = (uint16_t)(within[w] - (w > word));
}

static inline uint32_t rank_in_word(const pgio_curve *curve, uint32_t position)
{
    uint64_t below = curve->positions.live[position >> 6] & (((uint64_t)1 << (position & 63)) - 1);
    return curve->within[position >> 6] + curve_popcount(below);
}

/* The vectors below are those that GCC and Clang make of any machine's. Windows on these tables are masks
 * for the first `before` of a group of counters. */
#define ALL16 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF
#define ALL32 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF
static const uint16_t window16[64] = {ALL16, ALL16, ALL16, ALL16};
static const uint32_t window32[32] = {ALL32, ALL32, ALL32, ALL32};

typedef uint16_t lanes16 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t lanes32 __attribute__((vector_size(16), aligned(4), may_alias));

static inline lanes32 widened(lanes16 counts)
{
    lanes32 pairs = (lanes32)counts;
    return (pairs & 0xFFFF) + (pairs >> 16);
}

static inline uint32_t rank_portable(const pgio_curve *curve, uint32_t position)
{
    const lanes16 *blocks = (const lanes16 *)(const void *)(curve->blocks + ((position >> 14) << 5));
    const lanes16 *used = (const lanes16 *)(const void *)(window16 + 32 - ((position >> 9) & 31));
    lanes32 sum =
        widened((blocks[0] & used[0]) + (blocks[1] & used[1]) + (blocks[2] & used[2]) + (blocks[3] & used[3]));
    const lanes16 *level14 = (const lanes16 *)(const void *)(curve->level14 + ((position >> 19) << 5));
    used = (const lanes16 *)(const void *)(window16 + 32 - ((position >> 14) & 31));
    sum += widened(level14[0] & used[0]) + widened(level14[1] & used[1]);
    sum += widened(level14[2] & used[2]) + widened(level14[3] & used[3]);
    const lanes32 *level19 = (const lanes32 *)(const void *)(curve->level19 + ((position >> 23) << 4));
    const lanes32 *used32 = (const lanes32 *)(const void *)(window32 + 16 - ((position >> 19) & 15));
    sum += (level19[0] & used32[0]) + (level19[1] & used32[1]) + (level19[2] & used32[2]) + (level19[3] & used32[3]);
    uint32_t rank = rank_in_word(curve, position) + sum[0] + sum[1] + sum[2] + sum[3];
    return rank + curve->before23[position >> 23];
}

/* Whole sixteens first, then one under a mask. A lane that is below the limit counts as -1. */
typedef int32_t older_lanes __attribute__((vector_size(16), aligned(4), may_alias));

static inline uint32_t older_portable(const uint32_t *olds, uint32_t old, uint32_t j)
{
    int32_t one = (int32_t)old;
    older_lanes limit = {one, one, one, one}, a = {0}, b = {0}, c = {0}, d = {0};
    const older_lanes *four = (const older_lanes *)(const void *)olds;
    uint32_t k = 0;
    for (; k + 16 <= j; k += 16, four += 4) {
        a += four[0] < limit;
        b += four[1] < limit;
        c += four[2] < limit;
        d += four[3] < limit;
    }
    const older_lanes *mask = (const older_lanes *)(const void *)(window32 + 16 - (j - k));
    a += (four[0] < limit) & mask[0];
    b += (four[1] < limit) & mask[1];
    c += (four[2] < limit) & mask[2];
    d += (four[3] < limit) & mask[3];
    a += b + c + d;
    return (uint32_t)-(a[0] + a[1] + a[2] + a[3]);
}

#define KERNEL(name) name##_portable_copy
#define TARGET
#define OLDS                        int
#define LOAD_OLDS(into, olds)       ((void)(into))
#define OLDER(loaded, olds, old, j) older_portable(olds, old, j)
#define RANK(curve, position)       rank_portable(curve, position)
#define REMOVE(curve, position)     remove_portable(curve, position)
#define ADD(curve, position, live)  (add_within(curve, position, live), add_counts(curve, position, live))
#define PREFETCH_WITHIN(curve, old) __builtin_prefetch(&(curve)->within[(old) >> 6], 1)
#include "curve_kernel.h"
