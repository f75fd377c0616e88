/* positions.h: what the simulators share: last[page], the bitmap of live positions, and classes. */
#ifndef PGIO_POSITIONS_H
#define PGIO_POSITIONS_H

#include "internal.h"

/* Position 0 means "never", so the first access is at position 1 or later. */
typedef struct pgio_positions {
    uint32_t *last;      /* [page_count], 0 where the page was never accessed */
    uint64_t *live;      /* a bit a position: is that access still its page's latest? */
    uint32_t *rank_base; /* scratch for renumbering: live positions before each 64-bit word */
    uint64_t page_count;
    uint32_t next;  /* position of the next access */
    uint32_t limit; /* positions are below it; a multiple of 512 */
} pgio_positions;

int pgio_positions_init(pgio_positions *positions, uint64_t page_count, uint64_t limit_at_most, pgio_error *error);
void pgio_positions_free(pgio_positions *positions);
uint64_t pgio_positions_bytes(const pgio_positions *positions);

/* Gives the live positions the numbers 1, 2, 3, ... in their order, and moves `next` after them.
 * marks[0 .. mark_count) are positions too (tails); each becomes one more than the live positions
 * before it. */
void pgio_positions_renumber(pgio_positions *positions, uint32_t *marks, uint32_t mark_count);

/* class_of_column is sane for class_count classes. */
int pgio_classes_check(const uint32_t *class_of_column, uint32_t column_count, uint32_t class_count, pgio_error *error);

/* Checks a batch before anything changes: *holes counts PGIO_NO_PAGE, and every other page is below
 * page_count. */
int pgio_pages_check(const uint32_t *pages, uint64_t count, uint64_t page_count, uint64_t *holes, pgio_error *error);

/* Part of a caller's matrix without its unused places. */
#define PGIO_BLOCK_PLACES 16384
typedef struct pgio_block {
    uint32_t pages[PGIO_BLOCK_PLACES];
    uint32_t places[PGIO_BLOCK_PLACES]; /* told from the first place of the block's first token */
    uint32_t classes[PGIO_BLOCK_PLACES];
    uint32_t count;
} pgio_block;

/* pages: `count` places from first_place on, PGIO_BLOCK_PLACES at most. accesses: [class], which they are added to,
 * or NULL. */
void pgio_block_fill(pgio_block *block, const uint32_t *pages, uint64_t first_place, uint64_t count,
                     const uint32_t *class_of_column, uint32_t column_count, uint64_t *accesses);

#endif
