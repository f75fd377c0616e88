/* lru.c: an exact LRU page cache at several sizes in one pass.
 *
 * Page ids are dense, so there is no hash table and no list. last[page] is the position of the page's
 * latest access; one bit a position says whether that access is still its page's latest. A cache of C
 * pages holds exactly the C latest live positions, so it is one number, its tail: an access hits iff
 * last[page] >= tail, and a miss of a full cache evicts by moving the tail past the next set bit. All
 * sizes share last[] and the bitmap. Reads of both are prefetched, since nearly every one would miss
 * the processor's caches. Positions are renumbered when they reach the end of the bitmap, which keeps
 * memory bounded for any length of stream. */
#include <inttypes.h>

#include "lru.h"
#include "positions.h"

#define LAST_AHEAD        48 /* accesses between a prefetch and its use */
#define BITMAP_AHEAD      16
#define POSITIONS_AT_MOST (((uint64_t)1 << 32) - 1024)
#define NAMING_AT_LEAST   ((uint64_t)1 << 20) /* positions of a cache that names its victims, and 4 a page of it */

typedef struct cache {
    uint64_t capacity;
    uint64_t held; /* pages in it; it never shrinks */
    uint64_t full_at_token;
    uint32_t given; /* its place in the caller's list */
} cache;

struct pgio_lru {
    pgio_positions positions;
    uint64_t tokens;
    uint32_t cache_count; /* without those of no pages, which need no simulation: everything misses */
    uint32_t given_count, column_count, class_count;
    uint32_t *class_of_column;
    uint64_t *accesses, *compulsory, *misses; /* [class], [class], [given, class] */
    cache caches[PGIO_MAX_CAPACITIES];
    uint32_t tails[PGIO_MAX_CAPACITIES];
    uint8_t empty_count; /* of the caller's caches, those of no pages */
    uint32_t *page_at;   /* the page accessed at each position, where victims are named; else NULL */
    pgio_block block;
};

/* Caches stand from small to large: what one holds every larger one holds, so that the first hit ends a search. */
static void insert_cache(pgio_lru *lru, cache new)
{
    uint32_t at = lru->cache_count++;
    for (; at > 0 && lru->caches[at - 1].capacity > new.capacity; at--)
        lru->caches[at] = lru->caches[at - 1];
    lru->caches[at] = new;
    lru->tails[lru->cache_count - 1] = 1;
}

static int new_lru(pgio_lru **out, uint64_t page_count, const uint64_t *capacities, uint32_t capacity_count,
                   const uint32_t *class_of_column, uint32_t column_count, uint32_t class_count,
                   uint64_t positions_at_most, pgio_error *error)
{
    *out = NULL;
    if (capacity_count < 1 || capacity_count > PGIO_MAX_CAPACITIES)
        return pgio_fail(error, EINVAL, "%u cache sizes; 1 to %d in one pass", capacity_count, PGIO_MAX_CAPACITIES);
    int status = pgio_classes_check(class_of_column, column_count, class_count, error);
    if (status)
        return status;
    pgio_lru *lru = calloc(1, sizeof *lru);
    if (!lru)
        return pgio_fail(error, ENOMEM, "no memory for a cache");
    lru->class_of_column = malloc(column_count * sizeof *lru->class_of_column);
    lru->accesses = calloc((size_t)class_count * (2 + capacity_count), sizeof *lru->accesses);
    if (!lru->class_of_column || !lru->accesses)
        status = pgio_fail(error, ENOMEM, "no memory for a cache");
    if (!status)
        status = pgio_positions_init(&lru->positions, page_count, positions_at_most, error);
    if (status) {
        pgio_lru_free(lru);
        return status;
    }
    lru->compulsory = lru->accesses + class_count;
    lru->misses = lru->compulsory + class_count;
    memcpy(lru->class_of_column, class_of_column, column_count * sizeof *class_of_column);
    lru->given_count = capacity_count;
    lru->column_count = column_count;
    lru->class_count = class_count;
    for (uint32_t k = 0; k < capacity_count; k++) {
        if (capacities[k])
            insert_cache(lru, (cache){.capacity = capacities[k], .full_at_token = UINT64_MAX, .given = k});
        else
            lru->empty_count++;
    }
    *out = lru;
    return 0;
}

int pgio_lru_new(pgio_lru **out, uint64_t page_count, const uint64_t *capacities, uint32_t capacity_count,
                 const uint32_t *class_of_column, uint32_t column_count, uint32_t class_count, pgio_error *error)
{
    return new_lru(out, page_count, capacities, capacity_count, class_of_column, column_count, class_count,
                   POSITIONS_AT_MOST, error);
}

int pgio_lru_new_naming(pgio_lru **out, uint64_t page_count, uint64_t capacity, uint32_t column_count,
                        pgio_error *error)
{
    assert(capacity > 0 && capacity < PGIO_NO_PAGE && column_count <= PGIO_MAX_COLUMNS);
    const uint32_t one_class[PGIO_MAX_COLUMNS] = {0};
    uint64_t at_most = 4 * capacity + NAMING_AT_LEAST;
    at_most = at_most > POSITIONS_AT_MOST ? POSITIONS_AT_MOST : at_most;
    int status = new_lru(out, page_count, &capacity, 1, one_class, column_count, 1, at_most, error);
    if (status)
        return status;
    (*out)->page_at = pgio_zeroed((*out)->positions.limit * sizeof *(*out)->page_at);
    if ((*out)->page_at)
        return 0;
    pgio_lru_free(*out);
    *out = NULL;
    return pgio_fail(error, ENOMEM, "no memory for a cache of %" PRIu64 " pages", capacity);
}

void pgio_lru_free(pgio_lru *lru)
{
    if (!lru)
        return;
    pgio_unmap(lru->page_at, lru->positions.limit * sizeof *lru->page_at);
    pgio_positions_free(&lru->positions);
    free(lru->class_of_column);
    free(lru->accesses);
    free(lru);
}

/* The position after the oldest live one at or after `tail`: the tail once that page is evicted. */
static inline uint32_t tail_after_eviction(const uint64_t *live, uint32_t tail)
{
    uint32_t word = tail >> 6;
    uint64_t bits = live[word] & (~(uint64_t)0 << (tail & 63));
    while (__builtin_expect(!bits, 0))
        bits = live[++word];
    return (word << 6) + (uint32_t)__builtin_ctzll(bits) + 1;
}

/* Forgets the page whose latest access is at this position, so that no more are live than the cache holds. */
static inline uint32_t drive_out(pgio_lru *lru, uint32_t position)
{
    uint32_t page = lru->page_at[position];
    lru->positions.last[page] = 0;
    lru->positions.live[position >> 6] &= ~((uint64_t)1 << (position & 63));
    return page;
}

/* A run of accesses without unused places. What varies between callers is constant in each copy that
 * the compiler makes of this loop: how many caches, whether misses are counted by class, and whether
 * the caller wants each access's verdict, and victim. */
static inline __attribute__((always_inline)) void access_run(pgio_lru *lru, const uint32_t *pages,
                                                             const uint32_t *places, uint64_t first_place,
                                                             const uint32_t *classes, uint64_t count,
                                                             uint32_t cache_count, uint8_t *missed, uint32_t *victims)
{
    uint32_t *last = lru->positions.last;
    uint64_t *live = lru->positions.live;
    uint32_t position = lru->positions.next;
    uint32_t tails[PGIO_MAX_CAPACITIES];
    uint64_t misses[PGIO_MAX_CAPACITIES] = {0}, compulsory = 0;
    memcpy(tails, lru->tails, cache_count * sizeof *tails);
    for (uint64_t i = 0; i < count; i++, position++) {
        if (i + LAST_AHEAD < count)
            __builtin_prefetch(&last[pages[i + LAST_AHEAD]], 1);
        if (i + BITMAP_AHEAD < count)
            __builtin_prefetch(&live[last[pages[i + BITMAP_AHEAD]] >> 6], 1);
        uint32_t page = pages[i], old = last[page];
        last[page] = position;
        if (victims)
            lru->page_at[position] = page;
        live[old >> 6] &= ~((uint64_t)1 << (old & 63)); /* position 0, "never", is no page's */
        live[position >> 6] |= (uint64_t)1 << (position & 63);
        compulsory += old == 0;
        if (classes)
            lru->compulsory[classes[i]] += old == 0;
        uint32_t k = 0;
        for (; k < cache_count; k++) {
            if (old >= tails[k]) /* tails start at 1, so 0, "never", always misses */
                break;
            if (classes)
                lru->misses[lru->caches[k].given * lru->class_count + classes[i]]++;
            misses[k]++;
            if (__builtin_expect(lru->caches[k].held < lru->caches[k].capacity, 0)) {
                uint64_t place = places ? places[i] : first_place + i;
                if (++lru->caches[k].held == lru->caches[k].capacity)
                    lru->caches[k].full_at_token = lru->tokens + place / lru->column_count;
            } else {
                tails[k] = tail_after_eviction(live, tails[k]);
                if (victims)
                    victims[places ? places[i] : first_place + i] = drive_out(lru, tails[k] - 1);
            }
        }
        if (missed)
            missed[places ? places[i] : first_place + i] =
                (uint8_t)((k + lru->empty_count) | (old ? 0 : PGIO_FIRST_ACCESS));
    }
    lru->positions.next = position;
    memcpy(lru->tails, tails, cache_count * sizeof *tails);
    if (classes)
        return;
    lru->accesses[0] += count;
    lru->compulsory[0] += compulsory;
    for (uint32_t k = 0; k < cache_count; k++)
        lru->misses[lru->caches[k].given] += misses[k];
}

static void access_dense(pgio_lru *lru, const uint32_t *pages, uint64_t first_place, uint64_t count)
{
    if (lru->cache_count == 1)
        access_run(lru, pages, NULL, first_place, NULL, count, 1, NULL, NULL);
    else
        access_run(lru, pages, NULL, first_place, NULL, count, lru->cache_count, NULL, NULL);
}

/* The general way: unused places are squeezed out, and each access remembers where it came from. */
static void access_block(pgio_lru *lru, const uint32_t *pages, uint64_t first_place, uint64_t count, uint8_t *missed,
                         uint32_t *victims)
{
    pgio_block *block = &lru->block;
    pgio_block_fill(block, pages, first_place, count, lru->class_of_column, lru->column_count,
                    lru->class_count > 1 ? lru->accesses : NULL); /* else access_run counts them */
    if (missed)
        memset(missed + first_place, 0, count);
    uint64_t tokens = lru->tokens, from = first_place - first_place % lru->column_count;
    lru->tokens += first_place / lru->column_count;
    const uint32_t *classes = lru->class_count > 1 ? block->classes : NULL;
    if (victims) {
        memset(victims + first_place, 0xFF, count * sizeof *victims);
        access_run(lru, block->pages, block->places, 0, NULL, block->count, 1, missed + from, victims + from);
    } else {
        access_run(lru, block->pages, block->places, 0, classes, block->count, lru->cache_count,
                   missed ? missed + from : NULL, NULL);
    }
    lru->tokens = tokens;
}

static void renumber(pgio_lru *lru)
{
    pgio_positions *positions = &lru->positions;
    pgio_positions_renumber(positions, lru->tails, lru->cache_count);
    for (uint64_t page = 0; lru->page_at && page < positions->page_count; page++)
        if (positions->last[page])
            lru->page_at[positions->last[page]] = (uint32_t)page;
}

static int64_t access_all(pgio_lru *lru, const uint32_t *pages, uint64_t token_count, uint8_t *missed,
                          uint32_t *victims, pgio_error *error)
{
    uint64_t count = token_count * lru->column_count, holes;
    int status = pgio_pages_check(pages, count, lru->positions.page_count, &holes, error);
    if (status)
        return status;
    bool dense = !holes && !missed && lru->class_count == 1;
    for (uint64_t done = 0; done < count;) {
        if (lru->positions.limit - lru->positions.next < PGIO_BLOCK_PLACES) {
            renumber(lru);
            if (lru->positions.limit - lru->positions.next < PGIO_BLOCK_PLACES)
                return pgio_fail(error, EOVERFLOW,
                                 "4 billion pages are in use at once; that is more than can be told apart");
        }
        uint64_t n = dense ? lru->positions.limit - lru->positions.next : PGIO_BLOCK_PLACES;
        n = count - done < n ? count - done : n;
        if (dense)
            access_dense(lru, pages + done, done, n);
        else
            access_block(lru, pages + done, done, n, missed, victims);
        done += n;
    }
    lru->tokens += token_count;
    return (int64_t)(count - holes);
}

int64_t pgio_lru_access(pgio_lru *lru, const uint32_t *pages, uint64_t token_count, uint8_t *missed, pgio_error *error)
{
    return access_all(lru, pages, token_count, missed, NULL, error);
}

int64_t pgio_lru_access_naming(pgio_lru *lru, const uint32_t *pages, uint64_t token_count, uint8_t *missed,
                               uint32_t *victims, pgio_error *error)
{
    assert(lru->page_at && missed && victims);
    return access_all(lru, pages, token_count, missed, victims, error);
}

bool pgio_lru_forget(pgio_lru *lru, uint32_t page)
{
    uint32_t position = lru->positions.last[page];
    if (position < lru->tails[0])
        return false;
    (void)drive_out(lru, position);
    lru->caches[0].held--;
    return true;
}

void pgio_lru_counts(const pgio_lru *lru, uint64_t *accesses, uint64_t *compulsory, uint64_t *misses,
                     uint64_t *full_at_token)
{
    uint64_t class_bytes = lru->class_count * sizeof(uint64_t);
    memcpy(accesses, lru->accesses, class_bytes);
    memcpy(compulsory, lru->compulsory, class_bytes);
    for (uint32_t k = 0; k < lru->given_count; k++) {
        memcpy(misses + k * lru->class_count, lru->accesses, class_bytes);
        full_at_token[k] = 0; /* a cache of no pages is full from the start */
    }
    for (uint32_t k = 0; k < lru->cache_count; k++) {
        uint32_t given = lru->caches[k].given;
        memcpy(misses + given * lru->class_count, lru->misses + given * lru->class_count, class_bytes);
        full_at_token[given] = lru->caches[k].full_at_token;
    }
}

uint64_t pgio_lru_state_bytes(const pgio_lru *lru)
{
    return pgio_positions_bytes(&lru->positions) + sizeof *lru +
           (lru->page_at ? lru->positions.limit * sizeof *lru->page_at : 0) +
           sizeof(uint64_t) * lru->class_count * (2 + lru->given_count);
}

uint64_t pgio_swap_floor(uint32_t *last, const uint32_t *pages, uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (i + LAST_AHEAD < count)
            __builtin_prefetch(&last[pages[i + LAST_AHEAD]], 1);
        sum += last[pages[i]];
        last[pages[i]] = (uint32_t)i;
    }
    return sum;
}
