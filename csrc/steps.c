/* steps.c: tokens that are looked up together.
 *
 * A step is what a server reads at once: a chunk of a prompt, or a token of each document in turn. A page that
 * several tokens of a step touch is read once, so later places of it are blanked before a cache sees them: a small
 * open-addressed set, in which a slot counts only while it carries the number of the step at hand, so that nothing is
 * cleared between steps. Afterwards the verdicts of a cache are summed by token, class and cache size; whoever knows
 * which tokens count for what adds the few numbers that are left. */
#include <inttypes.h>

#include "positions.h"

#define FIBONACCI 0x9E3779B97F4A7C15u /* 2^64 over the golden ratio: spreads pages that follow one another */

/* Whether a page was seen in this step; it is from now on. There is always an empty slot. */
static inline bool seen_before(uint64_t *seen, uint32_t shift, uint64_t mask, uint32_t page, uint32_t step)
{
    uint64_t entry = (uint64_t)step << 32 | page;
    uint64_t at = (page * FIBONACCI) >> shift;
    for (;; at = (at + 1) & mask) {
        if (seen[at] == entry)
            return true;
        if (seen[at] >> 32 != step) {
            seen[at] = entry;
            return false;
        }
    }
}

int64_t pgio_steps_merge(uint32_t *pages, const uint32_t *steps, uint64_t token_count, uint32_t column_count,
                         uint64_t *seen, uint64_t seen_count, pgio_error *error)
{
    if (seen_count < 2 || (seen_count & (seen_count - 1)) || seen_count > (uint64_t)1 << 40)
        return pgio_fail(error, EINVAL, "%" PRIu64 " slots; a power of two from 2 to 2^40", seen_count);
    uint64_t longest = 0;
    for (uint64_t t = 0, begin = 0; t < token_count; t++) {
        if (steps[t] == 0 || (t && steps[t] < steps[t - 1]))
            return pgio_fail(error, EINVAL, "steps ascend from 1; token %" PRIu64 " has step %u", t, steps[t]);
        begin = t && steps[t] == steps[t - 1] ? begin : t;
        longest = t - begin + 1 > longest ? t - begin + 1 : longest;
    }
    if (longest && (seen_count - 1) / longest < column_count)
        return pgio_fail(error, EINVAL, "a step of %" PRIu64 " tokens needs more than %" PRIu64 " slots", longest,
                         seen_count);
    uint32_t shift = 64 - (uint32_t)__builtin_ctzll(seen_count);
    int64_t left = 0;
    for (uint64_t t = 0; t < token_count; t++) {
        uint32_t *line = pages + t * column_count;
        for (uint32_t c = 0; c < column_count; c++) {
            if (line[c] == PGIO_NO_PAGE)
                continue;
            if (seen_before(seen, shift, seen_count - 1, line[c], steps[t]))
                line[c] = PGIO_NO_PAGE;
            else
                left++;
        }
    }
    return left;
}

static void count_line(const uint32_t *pages, const uint8_t *missed, const uint32_t *class_of_column,
                       uint32_t column_count, uint32_t size_count, uint32_t *accesses, uint32_t *first,
                       uint32_t *misses)
{
    for (uint32_t c = 0; c < column_count; c++) {
        if (pages[c] == PGIO_NO_PAGE)
            continue;
        uint32_t class = class_of_column[c], sizes = missed[c] & (PGIO_FIRST_ACCESS - 1);
        accesses[class]++;
        first[class] += missed[c] >= PGIO_FIRST_ACCESS;
        if (sizes)
            misses[class * size_count + sizes - 1]++;
    }
}

int pgio_steps_count(const uint32_t *pages, const uint8_t *missed, uint64_t token_count,
                     const uint32_t *class_of_column, uint32_t column_count, uint32_t class_count, uint32_t size_count,
                     uint32_t *accesses, uint32_t *first, uint32_t *misses, pgio_error *error)
{
    int status = pgio_classes_check(class_of_column, column_count, class_count, error);
    if (status)
        return status;
    if (size_count < 1 || size_count > PGIO_MAX_CAPACITIES)
        return pgio_fail(error, EINVAL, "%u cache sizes; 1 to %d", size_count, PGIO_MAX_CAPACITIES);
    for (uint64_t i = 0; i < token_count * column_count; i++)
        if ((missed[i] & (PGIO_FIRST_ACCESS - 1)) > size_count)
            return pgio_fail(error, ERANGE, "a verdict of %u, and %u cache sizes", missed[i], size_count);
    memset(accesses, 0, token_count * class_count * sizeof *accesses);
    memset(first, 0, token_count * class_count * sizeof *first);
    memset(misses, 0, token_count * class_count * size_count * sizeof *misses);
    for (uint64_t t = 0; t < token_count; t++) {
        uint32_t *line = misses + t * class_count * size_count;
        count_line(pages + t * column_count, missed + t * column_count, class_of_column, column_count, size_count,
                   accesses + t * class_count, first + t * class_count, line);
        for (uint32_t c = 0; c < class_count; c++) /* what misses a size misses every smaller one */
            for (uint32_t k = size_count - 1; k > 0; k--)
                line[c * size_count + k - 1] += line[c * size_count + k];
    }
    return 0;
}
