/* curve.c: random matrices against a stack of pages, on each instruction set: histogram, first tokens; refusals. */
#include "check.h"
#include "twin_lru.h"

#define TOKENS  4000
#define COLUMNS 4

typedef struct counts {
    uint64_t accesses[2], compulsory[2], histogram[2][TWIN_PAGES + 1], first_tokens[TWIN_PAGES], distinct;
} counts;

static counts twin_counts(const uint32_t *pages, uint64_t tokens, uint32_t columns, const uint32_t *classes)
{
    twin_stack stack = {.count = 0};
    counts all;
    memset(&all, 0, sizeof all);
    for (uint64_t i = 0; i < tokens * columns; i++) {
        if (pages[i] == PGIO_NO_PAGE)
            continue;
        uint32_t class = classes[i % columns], distance = twin_access(&stack, pages[i]);
        all.accesses[class]++;
        if (distance)
            all.histogram[class][distance]++;
        else
            all.compulsory[class]++, all.first_tokens[all.distinct++] = i / columns;
    }
    return all;
}

static int check_counts(pgio_curve *curve, const counts *wanted, uint32_t class_count, uint32_t page_count)
{
    uint64_t accesses[2], compulsory[2], histogram[2 * (TWIN_PAGES + 1)], first[TWIN_PAGES];
    pgio_curve_counts(curve, accesses, compulsory, NULL);
    pgio_curve_counts(curve, accesses, compulsory, histogram);
    for (uint32_t c = 0; c < class_count; c++) {
        CHECK_EQUAL(accesses[c], wanted->accesses[c]);
        CHECK_EQUAL(compulsory[c], wanted->compulsory[c]);
        uint64_t sum = compulsory[c];
        for (uint32_t d = 0; d <= page_count; d++) {
            CHECK_EQUAL(histogram[c * (page_count + 1) + d], wanted->histogram[c][d]);
            sum += histogram[c * (page_count + 1) + d];
        }
        CHECK_EQUAL(sum, accesses[c]);
    }
    CHECK_EQUAL(pgio_curve_first_tokens(curve, first), wanted->distinct);
    CHECK(memcmp(first, wanted->first_tokens, wanted->distinct * sizeof *first) == 0);
    return 0;
}

static int test_twin(void)
{
    uint64_t random = 9;
    static uint32_t pages[TOKENS * COLUMNS];
    for (int round = 0; round < 300; round++) {
        uint32_t page_count = 1 + (uint32_t)random_below(&random, TWIN_PAGES);
        uint32_t columns = 1 + (uint32_t)random_below(&random, COLUMNS), class_count = columns > 1 && round % 2 ? 2 : 1;
        uint32_t classes[COLUMNS], holes = round % 3 ? 0 : (uint32_t)random_below(&random, 101);
        uint64_t tokens = random_below(&random, round % 10 ? 200 : TOKENS);
        for (uint32_t c = 0; c < columns; c++)
            classes[c] = class_count == 2 ? c % 2 : 0;
        for (uint64_t i = 0; i < tokens * columns; i++) {
            uint32_t page = (uint32_t)random_below(&random, page_count);
            page = random_below(&random, 3) ? (uint32_t)random_below(&random, page + 1) : page;
            pages[i] = random_below(&random, 100) < holes ? PGIO_NO_PAGE : page;
        }
        counts wanted = twin_counts(pages, tokens, columns, classes);
        FOR_EACH_ISA(isa)
        {
            pgio_curve *curve;
            CHECK_EQUAL(pgio_curve_new(&curve, page_count, classes, columns, class_count, isa, NULL), 0);
            for (uint64_t done = 0; done < tokens;) {
                uint64_t n = 1 + random_below(&random, tokens - done);
                CHECK(pgio_curve_access(curve, pages + done * columns, n, NULL) >= 0);
                done += n;
            }
            CHECK_EQUAL(pgio_curve_access(curve, NULL, 0, NULL), 0);
            if (check_counts(curve, &wanted, class_count, page_count))
                return 1;
            pgio_curve_free(curve);
        }
    }
    return 0;
}

static int test_renumbering(void)
{
    enum { LONG = 2500000, PAGES = 12 };
    uint32_t *pages = malloc(LONG * sizeof *pages);
    CHECK(pages != NULL);
    uint64_t random = 10;
    const uint32_t class = 0;
    for (uint32_t holes = 0; holes < 2; holes++) {
        for (uint64_t i = 0; i < LONG; i++) {
            pages[i] = (uint32_t)random_below(&random, 1 + random_below(&random, PAGES));
            if (holes && random_below(&random, 4) == 0)
                pages[i] = PGIO_NO_PAGE;
        }
        counts wanted = twin_counts(pages, LONG, 1, &class);
        FOR_EACH_ISA(isa)
        {
            pgio_curve *curve;
            CHECK_EQUAL(pgio_curve_new(&curve, PAGES, &class, 1, 1, isa, NULL), 0);
            CHECK(pgio_curve_access(curve, pages, LONG, NULL) > 0);
            if (check_counts(curve, &wanted, 1, PAGES))
                return 1;
            pgio_curve_free(curve);
        }
    }
    free(pages);
    return 0;
}

static int test_refusals(void)
{
    const uint32_t classes[] = {0, 1, 0};
    pgio_curve *curve;
#define REFUSED(page_count, column_count, class_count, isa)                                                            \
    curve = (pgio_curve *)&curve;                                                                                      \
    CHECK_REFUSED(EINVAL, pgio_curve_new(&curve, page_count, classes, column_count, class_count, isa, &error),         \
                  pgio_curve_new(&curve, page_count, classes, column_count, class_count, isa, NULL));                  \
    CHECK(curve == NULL)
    REFUSED(0, 3, 2, 0);
    REFUSED(PGIO_NO_PAGE, 3, 2, 0);
    REFUSED(UINT64_MAX, 3, 2, 0);
    REFUSED(10, 0, 1, 0);
    REFUSED(10, PGIO_MAX_COLUMNS + 1, 1, 0);
    REFUSED(10, 3, 0, 0);
    REFUSED(10, 3, 4, 0);
    REFUSED(10, 3, 1, 0);
    REFUSED(10, 3, 2, 4);
#undef REFUSED
    CHECK_EQUAL(pgio_curve_new(&curve, 10, classes, 3, 2, PGIO_ISA_AUTO, NULL), 0);
    CHECK(pgio_curve_state_bytes(curve) > 10 * 4 + ((uint64_t)1 << 20) / 64 * 12);
    const uint32_t good[] = {1, 2, PGIO_NO_PAGE, 1, 9, 2}, bad[] = {1, 2, 3, 10, 1, 1};
    CHECK_EQUAL(pgio_curve_access(curve, good, 2, NULL), 5);
    CHECK_REFUSED(ERANGE, pgio_curve_access(curve, bad, 2, &error), pgio_curve_access(curve, bad, 2, NULL));
    uint64_t accesses[2], compulsory[2];
    pgio_curve_counts(curve, accesses, compulsory, NULL);
    CHECK(accesses[0] == 3 && accesses[1] == 2 && compulsory[0] == 1 && compulsory[1] == 2);
    pgio_curve_free(curve);
    pgio_curve_free(NULL);
    return 0;
}

static int test_largest_table(void)
{
    const uint32_t class = 0, pages[] = {0, 0xFFFFFFFD, 0, 0xFFFFFFFD, 0x80000000};
    pgio_curve *curve;
    int status = pgio_curve_new(&curve, 0xFFFFFFFE, &class, 1, 1, PGIO_ISA_AUTO, NULL);
    CHECK(status == 0 || status == -ENOMEM);
    if (status)
        return 0;
    CHECK_EQUAL(pgio_curve_access(curve, pages, 5, NULL), 5);
    uint64_t accesses, compulsory, first[3];
    pgio_curve_counts(curve, &accesses, &compulsory, NULL);
    CHECK(accesses == 5 && compulsory == 3);
    CHECK_EQUAL(pgio_curve_first_tokens(curve, first), 3);
    CHECK(first[0] == 0 && first[1] == 1 && first[2] == 4);
    pgio_curve_free(curve);
    return 0;
}

int main(void)
{
    RUN(test_twin);
    RUN(test_renumbering);
    RUN(test_refusals);
    RUN(test_largest_table);
    return 0;
}
