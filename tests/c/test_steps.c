/* steps.c: merging and counting of random steps against the obvious way; refusals. */
#include "check.h"

#define TOKENS  40
#define COLUMNS 4
#define CLASSES 2
#define SIZES   3
#define SLOTS   512

static int seen_earlier(const uint32_t *pages, const uint32_t *steps, uint64_t columns, uint64_t place)
{
    for (uint64_t i = 0; i < place; i++)
        if (pages[i] == pages[place] && steps[i / columns] == steps[place / columns])
            return 1;
    return 0;
}

static int test_merge(void)
{
    uint64_t random = 5;
    for (int round = 0; round < 2000; round++) {
        uint32_t columns = 1 + (uint32_t)random_below(&random, COLUMNS), steps[TOKENS], pages[TOKENS * COLUMNS] = {0};
        uint64_t tokens = random_below(&random, TOKENS + 1), seen[SLOTS] = {0};
        uint32_t range = round % 2 ? 6 : 4000000000u, from = round % 3 ? 1 : 4294967290u;
        for (uint64_t t = 0; t < tokens; t++)
            steps[t] = t ? steps[t - 1] + (from == 1 && random_below(&random, 3) == 0) : from;
        for (uint64_t i = 0; i < tokens * columns; i++)
            pages[i] = random_below(&random, 8) ? (uint32_t)random_below(&random, range) : PGIO_NO_PAGE;
        uint32_t merged[TOKENS * COLUMNS];
        memcpy(merged, pages, sizeof pages);
        int64_t left = pgio_steps_merge(merged, steps, tokens, columns, seen, SLOTS, NULL), wanted = 0;
        for (uint64_t i = 0; i < tokens * columns; i++) {
            int kept = pages[i] != PGIO_NO_PAGE && !seen_earlier(pages, steps, columns, i);
            CHECK_EQUAL(merged[i], kept ? pages[i] : PGIO_NO_PAGE);
            wanted += kept;
        }
        CHECK_EQUAL(left, wanted);
    }
    return 0;
}

static int test_a_set_is_never_full(void)
{
    uint32_t pages[7] = {0, 8, 16, 24, 32, 40, 48}, step = 1; /* a step of 7 places and 8 slots */
    uint64_t seen[8] = {0};
    CHECK_EQUAL(pgio_steps_merge(pages, &step, 1, 7, seen, 8, NULL), 7);
    CHECK_REFUSED(EINVAL, pgio_steps_merge(pages, &step, 1, 7, seen, 4, &error),
                  pgio_steps_merge(pages, &step, 1, 7, seen, 4, NULL));
    return 0;
}

static int test_count(void)
{
    uint64_t random = 9;
    for (int round = 0; round < 500; round++) {
        uint32_t pages[TOKENS * COLUMNS], classes[COLUMNS] = {0, 1, 1, 0};
        uint8_t missed[TOKENS * COLUMNS];
        for (uint64_t i = 0; i < TOKENS * COLUMNS; i++) {
            pages[i] = random_below(&random, 4) ? 3 : PGIO_NO_PAGE;
            missed[i] =
                (uint8_t)(random_below(&random, SIZES + 1) | (random_below(&random, 2) ? PGIO_FIRST_ACCESS : 0));
        }
        uint32_t accesses[TOKENS * CLASSES], first[TOKENS * CLASSES], misses[TOKENS * CLASSES * SIZES];
        CHECK_EQUAL(
            pgio_steps_count(pages, missed, TOKENS, classes, COLUMNS, CLASSES, SIZES, accesses, first, misses, NULL),
            0);
        for (uint32_t cell = 0; cell < TOKENS * CLASSES; cell++) {
            uint32_t wanted[2 + SIZES] = {0};
            for (uint32_t c = 0; c < COLUMNS; c++) {
                uint32_t place = cell / CLASSES * COLUMNS + c;
                if (classes[c] != cell % CLASSES || pages[place] == PGIO_NO_PAGE)
                    continue;
                wanted[0]++;
                wanted[1] += missed[place] >= PGIO_FIRST_ACCESS;
                for (uint32_t k = 0; k < SIZES; k++)
                    wanted[2 + k] += (missed[place] & 127u) > k;
            }
            CHECK_EQUAL(accesses[cell], wanted[0]);
            CHECK_EQUAL(first[cell], wanted[1]);
            CHECK(memcmp(misses + cell * SIZES, wanted + 2, SIZES * sizeof *misses) == 0);
        }
    }
    return 0;
}

static int test_refusals(void)
{
    uint32_t pages[4] = {1, 2, 3, 4}, descending[2] = {2, 1}, zero[2] = {0, 1}, steps[2] = {1, 1}, classes[2] = {0, 5};
    uint64_t seen[16] = {0};
    CHECK_REFUSED(EINVAL, pgio_steps_merge(pages, descending, 2, 2, seen, 16, &error),
                  pgio_steps_merge(pages, zero, 2, 2, seen, 16, NULL));
    CHECK_REFUSED(EINVAL, pgio_steps_merge(pages, steps, 2, 2, seen, 12, &error),
                  pgio_steps_merge(pages, steps, 2, 2, seen, 1, NULL));
    uint8_t missed[4] = {0, 1, 2, 3};
    uint32_t out[64];
    CHECK_REFUSED(EINVAL, pgio_steps_count(pages, missed, 2, classes, 2, 1, 3, out, out, out, &error),
                  pgio_steps_count(pages, missed, 2, classes, 2, 1, 3, out, out, out, NULL));
    classes[1] = 0;
    CHECK_REFUSED(ERANGE, pgio_steps_count(pages, missed, 2, classes, 2, 1, 2, out, out, out, &error),
                  pgio_steps_count(pages, missed, 2, classes, 2, 1, 2, out, out, out, NULL));
    CHECK_REFUSED(EINVAL, pgio_steps_count(pages, missed, 2, classes, 2, 1, 0, out, out, out, &error),
                  pgio_steps_count(pages, missed, 2, classes, 2, 1, 65, out, out, out, NULL));
    return 0;
}

int main(void)
{
    RUN(test_merge);
    RUN(test_a_set_is_never_full);
    RUN(test_count);
    RUN(test_refusals);
    return 0;
}
