/* history.c: random edits of several sequences against hashing each whole; refusals that change nothing. */
#include "check.h"

#define SEQUENCES 5
#define LENGTH    400

static const uint64_t start = 0;

typedef struct twin {
    pgio_history *history;
    uint32_t ids[LENGTH];
    uint64_t length;
} twin;

static pgio_rows *make_rows(void)
{
    const pgio_column columns[] = {{.bucket_salt = 1,
                                    .modulus = 1009,
                                    .row_stride = 4,
                                    .slot_salt = 2,
                                    .slot_count = 4,
                                    .bucket_hash = 1,
                                    .slot_hash = 2},
                                   {.bucket_salt = 3,
                                    .modulus = 997,
                                    .row_stride = 1,
                                    .slot_count = 1,
                                    .row_base = 5000,
                                    .bucket_hash = PGIO_MAX_ORDER - 1}};
    pgio_rows *rows;
    return pgio_rows_new(&rows, pg1, PGIO_MAX_ORDER, columns, 2, PGIO_ISA_AUTO, NULL) ? NULL : rows;
}

static int check_rows(const twin *of, const pgio_rows *rows)
{
    uint64_t wanted[2 * LENGTH], found[2 * LENGTH];
    const pgio_tokens tokens = {of->ids, of->length, &start, 1, 50, 4};
    CHECK_EQUAL(pgio_history_length(of->history), of->length);
    CHECK_EQUAL(pgio_rows_emit(rows, &tokens, 0, of->length, wanted, NULL), of->length);
    CHECK_EQUAL(pgio_history_rows(of->history, rows, 0, of->length, found, NULL), of->length);
    CHECK(memcmp(wanted, found, 2 * of->length * sizeof *found) == 0);
    return 0;
}

static int test_edits(void)
{
    uint64_t random = 4;
    static twin sequences[SEQUENCES];
    pgio_rows *rows = make_rows();
    CHECK(rows != NULL);
    for (int i = 0; i < SEQUENCES; i++)
        CHECK_EQUAL(pgio_history_new(&sequences[i].history, 50, NULL), 0);
    for (int step = 0; step < 20000; step++) {
        twin *of = &sequences[random_below(&random, SEQUENCES)];
        uint64_t kind = random_below(&random, 100);
        if (kind < 60) {
            int64_t ids[8];
            uint64_t count = random_below(&random, 9);
            for (uint64_t i = 0; i < count; i++)
                ids[i] = (int64_t)random_below(&random, 50);
            if (of->length + count > LENGTH)
                continue;
            for (uint64_t i = 0; i < count; i++)
                of->ids[of->length++] = (uint32_t)ids[i];
            CHECK_EQUAL(pgio_history_append(of->history, ids, count, NULL), of->length);
        } else if (kind < 95) {
            uint64_t drop = random_below(&random, kind < 94 ? 12 : LENGTH);
            of->length -= drop < of->length ? drop : of->length;
            CHECK_EQUAL(pgio_history_rewind(of->history, of->length, NULL), of->length);
        } else {
            twin *to = &sequences[random_below(&random, SEQUENCES)];
            if (to == of)
                continue;
            pgio_history_free(to->history);
            CHECK_EQUAL(pgio_history_fork(&to->history, of->history, NULL), 0);
            memcpy(to->ids, of->ids, sizeof of->ids);
            to->length = of->length;
        }
        if (step % 7 == 0 && check_rows(of, rows))
            return 1;
    }
    for (int i = 0; i < SEQUENCES; i++) {
        if (check_rows(&sequences[i], rows))
            return 1;
        pgio_history_free(sequences[i].history);
    }
    pgio_rows_free(rows);
    return 0;
}

static int test_refusals(void)
{
    static twin of;
    const uint64_t too_large = ((uint64_t)1 << 32) + 1;
    CHECK_REFUSED(EINVAL, pgio_history_new(&of.history, 0, &error), pgio_history_new(&of.history, too_large, NULL));
    CHECK(of.history == NULL);
    CHECK_EQUAL(pgio_history_new(&of.history, 50, NULL), 0);
    const int64_t good[] = {1, 2, 49};
    CHECK_EQUAL(pgio_history_append(of.history, good, 3, NULL), 3);
    of.ids[0] = 1, of.ids[1] = 2, of.ids[2] = 49, of.length = 3;
    pgio_rows *rows = make_rows();
    CHECK(rows != NULL);
    const int64_t bad[] = {-1, 50, INT64_MAX, INT64_MIN, (int64_t)1 << 32};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int64_t ids[] = {3, bad[i], 4};
        CHECK_REFUSED(EINVAL, pgio_history_append(of.history, ids, 3, &error),
                      pgio_history_append(of.history, ids, 2, NULL));
        if (check_rows(&of, rows))
            return 1;
    }
    CHECK_REFUSED(ERANGE, pgio_history_rewind(of.history, 4, &error),
                  pgio_history_rewind(of.history, UINT64_MAX, NULL));
    uint64_t out[8];
    CHECK_REFUSED(ERANGE, pgio_history_rows(of.history, rows, 0, 4, out, &error),
                  pgio_history_rows(of.history, rows, 2, 1, out, NULL));
    CHECK_EQUAL(pgio_history_append(of.history, NULL, 0, NULL), 3);
    if (check_rows(&of, rows))
        return 1;
    pgio_history_free(of.history);
    pgio_history_free(NULL);
    /* A new history, and its fork, have no tokens and no memory for any. */
    pgio_history *fork;
    CHECK_EQUAL(pgio_history_new(&of.history, (uint64_t)1 << 32, NULL), 0);
    CHECK_EQUAL(pgio_history_fork(&fork, of.history, NULL), 0);
    CHECK_EQUAL(pgio_history_length(fork), 0);
    CHECK_EQUAL(pgio_history_rows(fork, rows, 0, 0, NULL, NULL), 0);
    CHECK_EQUAL(pgio_history_append(fork, &(int64_t){UINT32_MAX}, 1, NULL), 1);
    CHECK_EQUAL(pgio_history_rewind(of.history, 0, NULL), 0);
    pgio_history_free(of.history);
    pgio_history_free(fork);
    pgio_rows_free(rows);
    return 0;
}

int main(void)
{
    RUN(test_edits);
    RUN(test_refusals);
    return 0;
}
