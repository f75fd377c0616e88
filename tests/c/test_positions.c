/* positions.c: renumbering of a small line keeps the order of live positions and the meaning of marks. */
#include "check.h"
#include "positions.h"

static int test_renumber(void)
{
    enum { PAGES = 300, MARKS = 4 };
    uint64_t random = 11;
    pgio_positions positions;
    CHECK_EQUAL(pgio_positions_init(&positions, PAGES, 4096, NULL), 0);
    CHECK_EQUAL(positions.limit, 4096);
    CHECK(pgio_positions_bytes(&positions) == PAGES * 4 + 4096 / 64 * 12);
    for (int round = 0; round < 50; round++) {
        uint32_t before[PAGES], marks[MARKS], live_before[MARKS] = {0};
        while (positions.next < positions.limit) {
            uint32_t page = (uint32_t)random_below(&random, PAGES), old = positions.last[page];
            if (random_below(&random, 10 + (uint64_t)round) == 0)
                break;
            positions.live[old >> 6] &= ~((uint64_t)1 << (old & 63));
            positions.last[page] = positions.next;
            positions.live[positions.next >> 6] |= (uint64_t)1 << (positions.next & 63);
            positions.next++;
        }
        memcpy(before, positions.last, sizeof before);
        uint32_t live_count = 0;
        for (int m = 0; m < MARKS; m++)
            marks[m] = 1 + (uint32_t)random_below(&random, positions.next - 1 + (positions.next == 1));
        for (int p = 0; p < PAGES; p++) {
            live_count += before[p] != 0;
            for (int m = 0; m < MARKS; m++)
                live_before[m] += before[p] && before[p] < marks[m];
        }
        pgio_positions_renumber(&positions, marks, MARKS);
        CHECK_EQUAL(positions.next, live_count + 1);
        for (int m = 0; m < MARKS; m++)
            CHECK_EQUAL(marks[m], live_before[m] + 1);
        for (int a = 0; a < PAGES; a++) {
            uint32_t rank = 0;
            for (int b = 0; b < PAGES; b++)
                rank += before[b] && before[b] <= before[a];
            CHECK_EQUAL(positions.last[a], before[a] ? rank : 0);
            uint64_t bit = positions.live[positions.last[a] >> 6] >> (positions.last[a] & 63) & 1;
            CHECK_EQUAL(bit, before[a] != 0);
        }
        uint64_t bits = 0;
        for (uint32_t word = 0; word < positions.limit / 64; word++)
            bits += (uint64_t)__builtin_popcountll(positions.live[word]);
        CHECK_EQUAL(bits, live_count);
    }
    pgio_positions_free(&positions);
    pgio_positions_free(&positions);
    return 0;
}

static int test_limits(void)
{
    pgio_positions positions;
    CHECK_REFUSED(EINVAL, pgio_positions_init(&positions, 0, 4096, &error),
                  pgio_positions_init(&positions, PGIO_NO_PAGE, 4096, NULL));
    CHECK_EQUAL(pgio_positions_init(&positions, 1000, UINT32_MAX, NULL), 0);
    CHECK_EQUAL(positions.limit, (4000 + (1 << 20)) & ~511);
    pgio_positions_free(&positions);
    return 0;
}

static int test_pages_check(void)
{
    enum { COUNT = 200000 };
    uint32_t *pages = calloc(COUNT, sizeof *pages);
    uint64_t holes = 9;
    CHECK(pages != NULL);
    CHECK_EQUAL(pgio_pages_check(pages, COUNT, 1, &holes, NULL), 0);
    CHECK_EQUAL(holes, 0);
    for (uint64_t i = 0; i < COUNT; i += 3)
        pages[i] = PGIO_NO_PAGE;
    CHECK_EQUAL(pgio_pages_check(pages, COUNT, 1, &holes, NULL), 0);
    CHECK_EQUAL(holes, (COUNT + 2) / 3);
    const uint32_t places[] = {0, 65535, 65536, COUNT - 1};
    for (int i = 0; i < 4; i++) {
        uint32_t kept = pages[places[i]];
        pages[places[i]] = 1;
        CHECK_REFUSED(ERANGE, pgio_pages_check(pages, COUNT, 1, &holes, &error),
                      pgio_pages_check(pages, COUNT, 1, &holes, NULL));
        pages[places[i]] = kept;
    }
    CHECK_EQUAL(pgio_pages_check(NULL, 0, 1, &holes, NULL), 0);
    free(pages);
    return 0;
}

int main(void)
{
    RUN(test_renumber);
    RUN(test_limits);
    RUN(test_pages_check);
    return 0;
}
