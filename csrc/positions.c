/* positions.c: when each page was last accessed, and how that stays bounded.
 *
 * An access is a position on a line. Only the latest access of each page matters, so at most
 * page_count positions are live; the line is some four times that, plus a constant so that small
 * tables do not renumber at every turn. When it is used up the live positions are renumbered from 1 in
 * their order, at a cost of a pass over last[], which a whole line's accesses have paid for. */
#include <inttypes.h>

#include "positions.h"

#define POSITIONS_A_PAGE   4
#define POSITIONS_AT_LEAST ((uint64_t)1 << 20)

static uint64_t word_count(const pgio_positions *positions)
{
    return (uint64_t)positions->limit / 64;
}

int pgio_positions_init(pgio_positions *positions, uint64_t page_count, uint64_t limit_at_most, pgio_error *error)
{
    memset(positions, 0, sizeof *positions);
    if (page_count < 1 || page_count >= PGIO_NO_PAGE)
        return pgio_fail(error, EINVAL, "%" PRIu64 " pages; a table has 1 to 4294967294", page_count);
    uint64_t limit = page_count * POSITIONS_A_PAGE + POSITIONS_AT_LEAST;
    limit = limit > limit_at_most ? limit_at_most : limit;
    positions->page_count = page_count;
    positions->next = 1;
    positions->limit = (uint32_t)(limit & ~(uint64_t)511);
    positions->last = pgio_zeroed(page_count * sizeof *positions->last);
    positions->live = pgio_zeroed(word_count(positions) * sizeof *positions->live);
    positions->rank_base = pgio_zeroed(word_count(positions) * sizeof *positions->rank_base);
    if (positions->last && positions->live && positions->rank_base)
        return 0;
    pgio_positions_free(positions);
    return pgio_fail(error, ENOMEM, "no memory to simulate %" PRIu64 " pages", page_count);
}

void pgio_positions_free(pgio_positions *positions)
{
    pgio_unmap(positions->last, positions->page_count * sizeof *positions->last);
    pgio_unmap(positions->live, word_count(positions) * sizeof *positions->live);
    pgio_unmap(positions->rank_base, word_count(positions) * sizeof *positions->rank_base);
    positions->last = NULL;
    positions->live = NULL;
    positions->rank_base = NULL;
}

uint64_t pgio_positions_bytes(const pgio_positions *positions)
{
    return positions->page_count * sizeof *positions->last +
           word_count(positions) * (sizeof *positions->live + sizeof *positions->rank_base);
}

static uint32_t live_before(const pgio_positions *positions, uint32_t position)
{
    uint64_t below = positions->live[position >> 6] & (((uint64_t)1 << (position & 63)) - 1);
    return positions->rank_base[position >> 6] + (uint32_t)__builtin_popcountll(below);
}

void pgio_positions_renumber(pgio_positions *positions, uint32_t *marks, uint32_t mark_count)
{
    uint32_t live_count = 0;
    for (uint64_t word = 0; word < word_count(positions); word++) {
        positions->rank_base[word] = live_count;
        live_count += (uint32_t)__builtin_popcountll(positions->live[word]);
    }
    for (uint32_t k = 0; k < mark_count; k++)
        marks[k] = live_before(positions, marks[k]) + 1;
    for (uint64_t page = 0; page < positions->page_count; page++)
        if (positions->last[page])
            positions->last[page] = live_before(positions, positions->last[page]) + 1;
    memset(positions->live, 0, word_count(positions) * sizeof *positions->live);
    positions->next = live_count + 1;
    for (uint32_t position = 1; position <= live_count; position++)
        positions->live[position >> 6] |= (uint64_t)1 << (position & 63);
}

int pgio_classes_check(const uint32_t *class_of_column, uint32_t column_count, uint32_t class_count, pgio_error *error)
{
    if (column_count < 1 || column_count > PGIO_MAX_COLUMNS || class_count < 1 || class_count > column_count)
        return pgio_fail(error, EINVAL, "%u columns in %u classes; there are 1 to %d columns, and no more classes",
                         column_count, class_count, PGIO_MAX_COLUMNS);
    for (uint32_t c = 0; c < column_count; c++)
        if (class_of_column[c] >= class_count)
            return pgio_fail(error, EINVAL, "column %u is of class %u; there are %u classes", c, class_of_column[c],
                             class_count);
    return 0;
}

int pgio_pages_check(const uint32_t *pages, uint64_t count, uint64_t page_count, uint64_t *holes, pgio_error *error)
{
    uint32_t high = 0, hole_count = 0; /* of page + 1, which makes an unused place 0 */
    *holes = 0;
    for (uint64_t done = 0; done < count;) {
        uint64_t end = count - done < 65536 ? count : done + 65536;
        hole_count = 0;
        for (; done < end; done++) {
            uint32_t after = pages[done] + 1;
            high = after > high ? after : high;
            hole_count += after == 0;
        }
        *holes += hole_count;
    }
    if (high > page_count)
        return pgio_fail(error, ERANGE, "page %u is not in a table of %" PRIu64 " pages", high - 1, page_count);
    return 0;
}

void pgio_block_fill(pgio_block *block, const uint32_t *pages, uint64_t first_place, uint64_t count,
                     const uint32_t *class_of_column, uint32_t column_count, uint64_t *accesses)
{
    assert(count <= PGIO_BLOCK_PLACES);
    uint32_t kept = 0, column = (uint32_t)(first_place % column_count), within = column;
    for (uint64_t i = 0; i < count; i++) { /* without a branch: which places are unused is not to be foreseen */
        uint32_t class = class_of_column[column];
        bool used = pages[i] != PGIO_NO_PAGE;
        block->pages[kept] = pages[i];
        block->places[kept] = within + (uint32_t)i;
        block->classes[kept] = class;
        if (accesses)
            accesses[class] += used;
        kept += used;
        column = column + 1 == column_count ? 0 : column + 1;
    }
    block->count = kept;
}
