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
    curve->level23[position >> 23] += live;
}

static inline void clear_live(pgio_curve *curve, uint32_t position)
{
    curve->positions.live[position >> 6] &= ~((uint64_t)1 << (position & 63));
    curve->blocks[position >> 9]--;
    curve->level14[position >> 14]--;
    curve->level19[position >> 19]--;
    curve->level23[position >> 23]--;
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

/* Windows on these are masks for the first `before` of a group of counters; a masked sum of fixed
 * length is a loop that compilers make wide, a sum with a condition is not. */
#define ALL16 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF
#define ALL32 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF
static const uint16_t window16[64] = {ALL16, ALL16, ALL16, ALL16};
static const uint32_t window32[32] = {ALL32, ALL32, ALL32, ALL32};

static inline uint32_t sum_blocks(const uint16_t *counts, uint32_t before)
{
    const uint16_t *mask = window16 + 32 - before;
    uint16_t sum = 0; /* at most 32 x 512 */
    for (uint32_t i = 0; i < 32; i++)
        sum = (uint16_t)(sum + (counts[i] & mask[i]));
    return sum;
}

static inline uint32_t sum_level14(const uint16_t *counts, uint32_t before)
{
    const uint16_t *mask = window16 + 32 - before;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 32; i++)
        sum += (uint32_t)(counts[i] & mask[i]);
    return sum;
}

static inline uint32_t sum_level19(const uint32_t *counts, uint32_t before)
{
    const uint32_t *mask = window32 + 16 - before;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 16; i++)
        sum += counts[i] & mask[i];
    return sum;
}

static inline uint32_t rank_portable(const pgio_curve *curve, uint32_t position)
{
    uint32_t rank = rank_in_word(curve, position);
    rank += sum_blocks(curve->blocks + ((position >> 14) << 5), (position >> 9) & 31);
    rank += sum_level14(curve->level14 + ((position >> 19) << 5), (position >> 14) & 31);
    rank += sum_level19(curve->level19 + ((position >> 23) << 4), (position >> 19) & 15);
    for (uint32_t i = 0; i < position >> 23; i++)
        rank += curve->level23[i];
    return rank;
}

/* Whole sixteens first, then one with a limit: loops of fixed length, which compilers make wide. */
static inline uint32_t older_portable(const uint32_t *olds, uint32_t old, uint32_t j)
{
    int32_t count = 0, limit = (int32_t)old;
    uint32_t k = 0;
    for (; k + 16 <= j; k += 16)
        for (uint32_t i = 0; i < 16; i++)
            count += (int32_t)olds[k + i] < limit;
    const uint32_t *mask = window32 + 16 - (j - k);
    for (uint32_t i = 0; i < 16; i++)
        count += (int32_t)((uint32_t)-((int32_t)olds[k + i] < limit) & mask[i] & 1);
    return (uint32_t)count;
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
