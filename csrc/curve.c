/* curve.c: an exact LRU page cache at every size in one pass.
 *
 * The stack distance of an access is the number of distinct pages since its page's last access, itself
 * included; it hits exactly the caches of at least that many pages. With one bit a live position it is
 * a count of bits after last[page], kept in a shallow tree of counters. Accesses are measured 64 at a
 * time against a frozen tree, corrected inside the batch by comparing previous positions, and applied
 * at once; so the tree is read and written in two independent sweeps that the processor overlaps.
 * This file owns the state; curve_kernel.h is the loop; the pieces below adapt it to each CPU. */
#include <inttypes.h>

#include "curve.h"

#define POSITIONS_AT_MOST ((uint64_t)1 << 31) /* the kernels compare positions as signed */
#define FOLD_AFTER        ((uint64_t)1 << 31) /* accesses that a 32-bit counter surely holds */

#include "curve_portable.h"
#if PGIO_X86
#include "curve_avx2.h"
#include "curve_avx512.h"
#endif

static uint64_t counter_bytes(const pgio_curve *curve, uint32_t shift, uint64_t width)
{
    /* 32 more than there are: the last group of counters is read whole. */
    return (((uint64_t)curve->positions.limit >> shift) + 32) * width;
}

static uint64_t histogram_places(const pgio_curve *curve)
{
    return curve->histogram_length * curve->class_count;
}

static bool allocate(pgio_curve *curve)
{
    uint32_t classes = curve->class_count;
    curve->within = pgio_zeroed(counter_bytes(curve, 6, sizeof *curve->within));
    curve->blocks = pgio_zeroed(counter_bytes(curve, 9, sizeof *curve->blocks));
    curve->level14 = pgio_zeroed(counter_bytes(curve, 14, sizeof *curve->level14));
    curve->level19 = pgio_zeroed(counter_bytes(curve, 19, sizeof *curve->level19));
    curve->before23 = pgio_zeroed(counter_bytes(curve, 23, sizeof *curve->before23));
    curve->recent = pgio_zeroed(histogram_places(curve) * sizeof *curve->recent);
    curve->total = pgio_zeroed(histogram_places(curve) * sizeof *curve->total);
    curve->accesses = calloc((size_t)classes * 2, sizeof *curve->accesses);
    curve->class_of_column = malloc(curve->column_count * sizeof *curve->class_of_column);
    curve->block = malloc(sizeof *curve->block);
    curve->first_tokens = pgio_zeroed(curve->positions.page_count * sizeof *curve->first_tokens);
    return curve->first_tokens && curve->within && curve->blocks && curve->level14 && curve->level19 &&
           curve->before23 && curve->recent && curve->total && curve->accesses && curve->class_of_column &&
           curve->block;
}

int pgio_curve_new(pgio_curve **out, uint64_t page_count, const uint32_t *class_of_column, uint32_t column_count,
                   uint32_t class_count, uint32_t isa, pgio_error *error)
{
    *out = NULL;
    int status = pgio_classes_check(class_of_column, column_count, class_count, error);
    if (!status)
        status = pgio_isa_resolve(isa, &isa, error);
    if (status)
        return status;
    pgio_curve *curve = calloc(1, sizeof *curve);
    if (!curve)
        return pgio_fail(error, ENOMEM, "no memory for a curve");
    status = pgio_positions_init(&curve->positions, page_count, POSITIONS_AT_MOST, error);
    if (status) {
        free(curve);
        return status;
    }
    curve->histogram_length = page_count + 1;
    curve->column_count = column_count;
    curve->class_count = class_count;
    curve->isa = isa;
    if (!allocate(curve)) {
        pgio_curve_free(curve);
        return pgio_fail(error, ENOMEM, "no memory for a curve of %" PRIu64 " pages", page_count);
    }
    curve->compulsory = curve->accesses + class_count;
    memcpy(curve->class_of_column, class_of_column, column_count * sizeof *class_of_column);
    curve->positions.next = CURVE_BATCH; /* the first whole word after position 0 */
    *out = curve;
    return 0;
}

void pgio_curve_free(pgio_curve *curve)
{
    if (!curve)
        return;
    pgio_unmap(curve->within, counter_bytes(curve, 6, sizeof *curve->within));
    pgio_unmap(curve->blocks, counter_bytes(curve, 9, sizeof *curve->blocks));
    pgio_unmap(curve->level14, counter_bytes(curve, 14, sizeof *curve->level14));
    pgio_unmap(curve->level19, counter_bytes(curve, 19, sizeof *curve->level19));
    pgio_unmap(curve->before23, counter_bytes(curve, 23, sizeof *curve->before23));
    pgio_unmap(curve->recent, histogram_places(curve) * sizeof *curve->recent);
    pgio_unmap(curve->total, histogram_places(curve) * sizeof *curve->total);
    pgio_unmap(curve->first_tokens, curve->positions.page_count * sizeof *curve->first_tokens);
    pgio_positions_free(&curve->positions);
    free(curve->accesses);
    free(curve->class_of_column);
    free(curve->block);
    free(curve);
}

static void renumber(pgio_curve *curve)
{
    pgio_positions_renumber(&curve->positions, NULL, 0);
    memset(curve->within, 0, counter_bytes(curve, 6, sizeof *curve->within));
    memset(curve->blocks, 0, counter_bytes(curve, 9, sizeof *curve->blocks));
    memset(curve->level14, 0, counter_bytes(curve, 14, sizeof *curve->level14));
    memset(curve->level19, 0, counter_bytes(curve, 19, sizeof *curve->level19));
    memset(curve->before23, 0, counter_bytes(curve, 23, sizeof *curve->before23));
    for (uint32_t position = 0; position < curve->positions.next; position += 64) {
        uint32_t live = curve_popcount(curve->positions.live[position >> 6]);
        add_within(curve, position, live);
        add_counts(curve, position, live);
    }
    sum_top(curve, curve->positions.next);
    curve->positions.next = (curve->positions.next + CURVE_BATCH - 1) & ~(uint32_t)(CURVE_BATCH - 1);
}

static void fold(pgio_curve *curve)
{
    for (uint64_t i = 0; i < histogram_places(curve); i++)
        curve->total[i] += curve->recent[i];
    memset(curve->recent, 0, histogram_places(curve) * sizeof *curve->recent);
    curve->unfolded = 0;
}

static void run(pgio_curve *curve, const curve_run *all)
{
#if PGIO_X86
    if (curve->isa == PGIO_ISA_AVX512) {
        run_avx512_copy(curve, all);
        return;
    }
    if (curve->isa == PGIO_ISA_AVX2) {
        run_avx2_copy(curve, all);
        return;
    }
#endif
    run_portable_copy(curve, all);
}

/* Squeezes unused places out, then runs what is left. */
static void run_block(pgio_curve *curve, const uint32_t *pages, uint64_t first_place, uint64_t count)
{
    pgio_block *block = curve->block;
    pgio_block_fill(block, pages, first_place, count, curve->class_of_column, curve->column_count, curve->accesses);
    uint64_t tokens = curve->tokens;
    curve->tokens += first_place / curve->column_count;
    const curve_run all = {.pages = block->pages,
                           .places = block->places,
                           .classes = curve->class_count > 1 ? block->classes : NULL,
                           .count = block->count};
    run(curve, &all);
    curve->tokens = tokens;
}

int64_t pgio_curve_access(pgio_curve *curve, const uint32_t *pages, uint64_t token_count, pgio_error *error)
{
    uint64_t count = token_count * curve->column_count, holes;
    int status = pgio_pages_check(pages, count, curve->positions.page_count, &holes, error);
    if (status)
        return status;
    bool dense = !holes && curve->class_count == 1;
    for (uint64_t done = 0; done < count;) {
        if (curve->positions.limit - curve->positions.next < PGIO_BLOCK_PLACES + CURVE_BATCH) {
            renumber(curve);
            if (curve->positions.limit - curve->positions.next < PGIO_BLOCK_PLACES + CURVE_BATCH)
                return pgio_fail(error, EOVERFLOW,
                                 "2 billion pages are in use at once; that is more than can be told apart");
        }
        uint64_t n = dense ? curve->positions.limit - curve->positions.next - CURVE_BATCH : PGIO_BLOCK_PLACES;
        n = count - done < n ? count - done : n;
        if (curve->unfolded + n > FOLD_AFTER)
            fold(curve);
        curve->unfolded += n;
        if (dense) {
            const curve_run all = {.pages = pages + done, .first_place = done, .count = n};
            run(curve, &all);
            curve->accesses[0] += n;
        } else {
            run_block(curve, pages + done, done, n);
        }
        done += n;
    }
    curve->tokens += token_count;
    return (int64_t)(count - holes);
}

void pgio_curve_counts(pgio_curve *curve, uint64_t *accesses, uint64_t *compulsory, uint64_t *histogram)
{
    memcpy(accesses, curve->accesses, curve->class_count * sizeof *accesses);
    memcpy(compulsory, curve->compulsory, curve->class_count * sizeof *compulsory);
    if (!histogram)
        return;
    fold(curve);
    memcpy(histogram, curve->total, histogram_places(curve) * sizeof *histogram);
}

uint64_t pgio_curve_first_tokens(const pgio_curve *curve, uint64_t *first_tokens)
{
    memcpy(first_tokens, curve->first_tokens, curve->live_count * sizeof *first_tokens);
    return curve->live_count;
}

uint64_t pgio_curve_state_bytes(const pgio_curve *curve)
{
    return pgio_positions_bytes(&curve->positions) + counter_bytes(curve, 6, sizeof *curve->within) +
           counter_bytes(curve, 9, sizeof *curve->blocks) + counter_bytes(curve, 14, sizeof *curve->level14) +
           counter_bytes(curve, 19, sizeof *curve->level19) + counter_bytes(curve, 23, sizeof *curve->before23) +
           histogram_places(curve) * (sizeof *curve->recent + sizeof *curve->total) + sizeof *curve +
           curve->positions.page_count * sizeof *curve->first_tokens + sizeof *curve->block +
           curve->class_count * 2 * sizeof *curve->accesses;
}
