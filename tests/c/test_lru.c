/* lru.c: random matrices against a stack of pages: verdicts, classes, sizes, cuts, renumbering; refusals. */
#include "check.h"
#include "twin_lru.h"

#define TOKENS  3000
#define COLUMNS 5
#define SIZES   7
#define CLASSES 3

static const uint64_t capacities[SIZES] = {3, 0, 1, 2, 7, 40, 1000000};

typedef struct counts {
    uint64_t accesses[CLASSES], compulsory[CLASSES], misses[SIZES][CLASSES], full_at_token[SIZES];
} counts;

static void random_pages(uint64_t *random, uint32_t *pages, uint64_t count, uint32_t page_count, uint32_t holes)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t page = (uint32_t)random_below(random, page_count);
        if (random_below(random, 3))
            page = (uint32_t)random_below(random, page + 1); /* low ids more often */
        pages[i] = random_below(random, 100) < holes ? PGIO_NO_PAGE : page;
    }
}

static counts twin_counts(const uint32_t *pages, uint64_t tokens, uint32_t columns, const uint32_t *classes,
                          uint8_t *verdicts)
{
    twin_stack stack = {.count = 0};
    counts all;
    memset(&all, 0, sizeof all);
    for (int k = 0; k < SIZES; k++)
        all.full_at_token[k] = capacities[k] ? UINT64_MAX : 0;
    for (uint64_t i = 0; i < tokens * columns; i++) {
        verdicts[i] = 0;
        if (pages[i] == PGIO_NO_PAGE)
            continue;
        uint32_t class = classes[i % columns], distance = twin_access(&stack, pages[i]);
        all.accesses[class]++;
        all.compulsory[class] += distance == 0;
        for (int k = 0; k < SIZES; k++) {
            int miss = distance == 0 || distance > capacities[k];
            all.misses[k][class] += (uint64_t)miss;
            verdicts[i] = (uint8_t)(verdicts[i] + miss);
            if (distance == 0 && stack.count == capacities[k])
                all.full_at_token[k] = i / columns;
        }
        verdicts[i] |= distance == 0 ? PGIO_FIRST_ACCESS : 0;
    }
    return all;
}

static int check_counts(const pgio_lru *lru, const counts *wanted, uint32_t class_count)
{
    uint64_t accesses[CLASSES], compulsory[CLASSES], misses[SIZES * CLASSES], full[SIZES];
    pgio_lru_counts(lru, accesses, compulsory, misses, full);
    for (uint32_t c = 0; c < class_count; c++) {
        CHECK_EQUAL(accesses[c], wanted->accesses[c]);
        CHECK_EQUAL(compulsory[c], wanted->compulsory[c]);
        for (uint32_t k = 0; k < SIZES; k++)
            CHECK_EQUAL(misses[k * class_count + c], wanted->misses[k][c]);
    }
    for (uint32_t k = 0; k < SIZES; k++)
        CHECK(full[k] == wanted->full_at_token[k]);
    return 0;
}

static int test_twin(void)
{
    uint64_t random = 7;
    static uint32_t pages[TOKENS * COLUMNS];
    static uint8_t wanted_verdicts[TOKENS * COLUMNS];
    for (int round = 0; round < 300; round++) {
        uint32_t page_count = 1 + (uint32_t)random_below(&random, TWIN_PAGES);
        uint32_t columns = 1 + (uint32_t)random_below(&random, COLUMNS), classes[COLUMNS], class_count = 1;
        uint64_t tokens = random_below(&random, round % 10 ? 60 : TOKENS);
        random_pages(&random, pages, tokens * columns, page_count,
                     round % 3 ? 0 : (uint32_t)random_below(&random, 101));
        if (round % 2)
            class_count = 1 + (uint32_t)random_below(&random, columns < CLASSES ? columns : CLASSES);
        for (uint32_t c = 0; c < columns; c++)
            classes[c] = c % class_count;
        counts wanted = twin_counts(pages, tokens, columns, classes, wanted_verdicts);
        pgio_lru *lru;
        CHECK_EQUAL(pgio_lru_new(&lru, page_count, capacities, SIZES, classes, columns, class_count, NULL), 0);
        for (uint64_t done = 0; done < tokens;) {
            uint64_t n = 1 + random_below(&random, tokens - done);
            uint8_t *verdicts = round % 4 < 2 ? malloc(n * columns) : NULL;
            CHECK(pgio_lru_access(lru, pages + done * columns, n, verdicts, NULL) >= 0);
            if (verdicts)
                CHECK(memcmp(verdicts, wanted_verdicts + done * columns, n * columns) == 0);
            free(verdicts);
            done += n;
        }
        CHECK_EQUAL(pgio_lru_access(lru, NULL, 0, NULL, NULL), 0);
        if (check_counts(lru, &wanted, class_count))
            return 1;
        pgio_lru_free(lru);
    }
    return 0;
}

/* A table of few pages has little more than 2^20 positions: three million accesses use them up twice. */
static int test_renumbering(void)
{
    enum { LONG = 3000000, PAGES = 12 };
    uint32_t *pages = malloc(LONG * sizeof *pages);
    uint8_t *verdicts = malloc(LONG), *wanted_verdicts = malloc(LONG);
    CHECK(pages && verdicts && wanted_verdicts);
    uint64_t random = 8;
    const uint32_t classes[] = {0, 1};
    for (int kind = 0; kind < 3; kind++) {
        random_pages(&random, pages, LONG, PAGES, kind == 0 ? 0 : 20);
        uint32_t columns = kind < 2 ? 1 : 2;
        counts wanted = twin_counts(pages, LONG / columns, columns, classes, wanted_verdicts);
        pgio_lru *lru;
        CHECK_EQUAL(pgio_lru_new(&lru, PAGES, capacities, SIZES, classes, columns, columns, NULL), 0);
        CHECK(pgio_lru_access(lru, pages, LONG / columns, kind == 1 ? verdicts : NULL, NULL) > 0);
        if (check_counts(lru, &wanted, columns))
            return 1;
        CHECK(kind != 1 || memcmp(verdicts, wanted_verdicts, LONG) == 0);
        pgio_lru_free(lru);
    }
    free(pages);
    free(verdicts);
    free(wanted_verdicts);
    return 0;
}

static int test_refusals(void)
{
    const uint32_t classes[] = {0, 1, 0};
    uint64_t many[PGIO_MAX_CAPACITIES + 1];
    for (int k = 0; k <= PGIO_MAX_CAPACITIES; k++)
        many[k] = (uint64_t)k;
    pgio_lru *lru;
#define REFUSED(page_count, capacity_count, column_count, class_count)                                                 \
    lru = (pgio_lru *)&lru;                                                                                            \
    CHECK_REFUSED(EINVAL,                                                                                              \
                  pgio_lru_new(&lru, page_count, many, capacity_count, classes, column_count, class_count, &error),    \
                  pgio_lru_new(&lru, page_count, many, capacity_count, classes, column_count, class_count, NULL));     \
    CHECK(lru == NULL)
    REFUSED(0, 1, 3, 2);
    REFUSED(PGIO_NO_PAGE, 1, 3, 2);
    REFUSED(UINT64_MAX, 1, 3, 2);
    REFUSED(10, 0, 3, 2);
    REFUSED(10, PGIO_MAX_CAPACITIES + 1, 3, 2);
    REFUSED(10, 1, 0, 1);
    REFUSED(10, 1, PGIO_MAX_COLUMNS + 1, 1);
    REFUSED(10, 1, 3, 0);
    REFUSED(10, 1, 3, 4);
    REFUSED(10, 1, 3, 1); /* a column of class 1 */
#undef REFUSED
    CHECK_EQUAL(pgio_lru_new(&lru, 10, many, PGIO_MAX_CAPACITIES, classes, 3, 2, NULL), 0);
    CHECK(pgio_lru_state_bytes(lru) > 10 * 4 + ((uint64_t)1 << 20) / 64 * 12);
    const uint32_t good[] = {1, 2, PGIO_NO_PAGE, 1, 9, 2}, bad[] = {1, 2, 3, 10, 1, 1};
    CHECK_EQUAL(pgio_lru_access(lru, good, 2, NULL, NULL), 5);
    uint8_t verdicts[6] = {7, 7, 7, 7, 7, 7};
    CHECK_REFUSED(ERANGE, pgio_lru_access(lru, bad, 2, verdicts, &error), pgio_lru_access(lru, bad, 2, NULL, NULL));
    CHECK(verdicts[0] == 7 && verdicts[5] == 7);
    uint64_t accesses[2], compulsory[2], misses[2 * PGIO_MAX_CAPACITIES], full[PGIO_MAX_CAPACITIES];
    pgio_lru_counts(lru, accesses, compulsory, misses, full);
    CHECK(accesses[0] == 3 && accesses[1] == 2 && compulsory[0] == 1 && compulsory[1] == 2);
    pgio_lru_free(lru);
    pgio_lru_free(NULL);
    return 0;
}

/* The largest table: 17 GB of addresses, of which only what is touched costs memory. */
static int test_largest_table(void)
{
    const uint32_t class = 0, pages[] = {0, 0xFFFFFFFD, 0, 0xFFFFFFFD, 0x80000000};
    const uint64_t capacity = 2;
    pgio_lru *lru;
    int status = pgio_lru_new(&lru, 0xFFFFFFFE, &capacity, 1, &class, 1, 1, NULL);
    CHECK(status == 0 || status == -ENOMEM);
    if (status)
        return 0;
    CHECK_EQUAL(pgio_lru_access(lru, pages, 5, NULL, NULL), 5);
    uint64_t accesses, compulsory, misses, full;
    pgio_lru_counts(lru, &accesses, &compulsory, &misses, &full);
    CHECK(accesses == 5 && compulsory == 3 && misses == 3 && full == 1);
    pgio_lru_free(lru);
    return 0;
}

static int test_swap_floor(void)
{
    uint32_t last[4] = {0};
    const uint32_t pages[] = {3, 3, 1, 3};
    CHECK_EQUAL(pgio_swap_floor(last, pages, 4), 1);
    CHECK(last[0] == 0 && last[1] == 2 && last[2] == 0 && last[3] == 3);
    CHECK_EQUAL(pgio_swap_floor(last, pages, 0), 0);
    return 0;
}

int main(void)
{
    RUN(test_twin);
    RUN(test_renumbering);
    RUN(test_refusals);
    RUN(test_largest_table);
    RUN(test_swap_floor);
    return 0;
}
