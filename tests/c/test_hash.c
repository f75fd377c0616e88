/* hash.c: golden values, a twin for n-grams of any documents, refusals; and the exact division of internal.h. */
#include "check.h"
#include "internal.h"

#define COUNT 700

static const uint64_t one_document[] = {0};

static uint64_t twin_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t twin_hash(const uint32_t *ids, uint64_t start, uint64_t t, uint32_t order)
{
    uint64_t g = twin_mix((uint64_t)ids[t] + 1);
    for (uint32_t back = 1; back < order; back++)
        g = twin_mix(g ^ (t - start >= back ? (uint64_t)ids[t - back] + 1 : 0) * 0x9E3779B97F4A7C15u);
    return g;
}

static int test_golden(void)
{
    CHECK(pgio_salt(0, PGIO_ROLE_BUCKET, 2, 0) == 0xc67eb766350fecfd);
    CHECK(pgio_salt(0, PGIO_ROLE_ROW, 3, 7) == 0x2f5e0dca5202eda6);
    CHECK(pgio_salt(0, PGIO_ROLE_SIGN, 2, 0) == 0x231dd55eed6b1fd2);
    CHECK(pgio_mix(0) == 0);
    const uint16_t ids[] = {0, 1, 65535, 42, 42, 42, 7, 9707, 123, 456};
    const uint64_t starts[] = {0, 6};
    const pgio_tokens tokens = {ids, 10, starts, 2, 65536, 2};
    uint64_t g2[10], g3[10];
    CHECK_EQUAL(pgio_hash_ngrams(&tokens, 0, 10, 2, g2, NULL), 10);
    CHECK_EQUAL(pgio_hash_ngrams(&tokens, 0, 10, 3, g3, NULL), 10);
    CHECK(g2[0] == 0x7ab40e090f363a7d && g3[0] == 0x71cac37448049ce4);
    CHECK(g2[5] == 0x775189df6d72ce2d && g3[5] == 0x0b707a4dfb8008b7);
    CHECK(g2[6] == 0x0a02d5ba6ac3611a && g3[6] == 0x0e9fc45590e8f62a);
    CHECK(g2[9] == 0xb85620ff2865e78b && g3[9] == 0xc02bda74a0a16268);
    uint64_t words[10];
    pgio_hash_finish(g2, 10, 5, words);
    for (int i = 0; i < 10; i++)
        CHECK(words[i] == twin_mix(g2[i] ^ 5));
    pgio_hash_finish(NULL, 0, 5, NULL);
    return 0;
}

/* Any documents, both widths, any range: equal to the twin. The last start may be at or past the end of the view. */
static int test_twin(void)
{
    uint64_t random = 1, starts[COUNT + 1], document_of[COUNT], hashes[COUNT];
    static uint32_t wide[COUNT];
    static uint16_t narrow[COUNT];
    for (int round = 0; round < 300; round++) {
        uint64_t count = 1 + random_below(&random, COUNT), document_count = 0;
        uint64_t chance = 1 + random_below(&random, 100);
        for (uint64_t t = 0; t < count; t++) {
            wide[t] = (uint32_t)random_below(&random, round % 2 ? 65536 : 3);
            narrow[t] = (uint16_t)wide[t];
            if (t == 0 || random_below(&random, chance) == 0)
                starts[document_count++] = t;
            document_of[t] = starts[document_count - 1];
        }
        if (round % 3 == 0)
            starts[document_count++] = count; /* a document that begins after the last token */
        for (uint32_t order = 1; order <= PGIO_MAX_ORDER; order++) {
            uint64_t begin = random_below(&random, count + 1), end = begin + random_below(&random, count + 1 - begin);
            const pgio_tokens views[] = {{narrow, count, starts, document_count, 65536, 2},
                                         {wide, count, starts, document_count, (uint64_t)1 << 32, 4}};
            for (int v = 0; v < 2; v++) {
                CHECK_EQUAL(pgio_hash_ngrams(&views[v], begin, end, order, hashes, NULL), end - begin);
                for (uint64_t t = begin; t < end; t++)
                    CHECK(hashes[t - begin] == twin_hash(wide, document_of[t], t, order));
            }
        }
    }
    return 0;
}

static int test_refusals(void)
{
    const uint32_t ids[] = {1, 2, 99, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const uint64_t late[] = {1};
    uint64_t out[12];
    pgio_tokens tokens = {ids, 12, one_document, 1, 100, 4};
#define REFUSED(code, begin, end, order)                                                                               \
    CHECK_REFUSED(code, pgio_hash_ngrams(&tokens, begin, end, order, out, &error),                                     \
                  pgio_hash_ngrams(&tokens, begin, end, order, out, NULL))
    CHECK_EQUAL(pgio_hash_ngrams(&tokens, 0, 12, 2, out, NULL), 12);
    REFUSED(EINVAL, 0, 12, 0);
    REFUSED(EINVAL, 0, 12, 9);
    REFUSED(ERANGE, 0, 13, 2);
    REFUSED(ERANGE, 5, 4, 2);
    REFUSED(ERANGE, 13, 13, 2);
    REFUSED(ERANGE, UINT64_MAX, UINT64_MAX, 2);
    tokens.id_bytes = 3;
    REFUSED(EINVAL, 0, 12, 2);
    tokens.id_bytes = 4;
    tokens.document_starts = late;
    REFUSED(EINVAL, 0, 12, 2);
    tokens.document_starts = one_document;
    tokens.document_count = 0;
    REFUSED(EINVAL, 0, 12, 2);
    tokens.document_count = 1;
    tokens.vocabulary = 99;
    REFUSED(EINVAL, 0, 12, 2);
    REFUSED(EINVAL, 2, 3, 1);
    REFUSED(EINVAL, 9, 10, 8); /* a look-back of seven reaches the id */
    CHECK_EQUAL(pgio_hash_ngrams(&tokens, 10, 12, 8, out, NULL), 2);
    tokens.vocabulary = 0;
    REFUSED(EINVAL, 0, 12, 2);
    const uint16_t narrow[] = {5, 65535};
    tokens = (pgio_tokens){narrow, 2, one_document, 1, 65535, 2};
    REFUSED(EINVAL, 0, 2, 2);
    tokens.vocabulary = 65536;
    CHECK_EQUAL(pgio_hash_ngrams(&tokens, 0, 2, 2, out, NULL), 2);
    /* An empty stream is one, with or without a document. */
    tokens = (pgio_tokens){NULL, 0, NULL, 0, 65536, 2};
    CHECK_EQUAL(pgio_hash_ngrams(&tokens, 0, 0, 2, NULL, NULL), 0);
    REFUSED(ERANGE, 0, 1, 2);
    return 0;
#undef REFUSED
}

static int check_division(uint64_t value, uint64_t divisor)
{
    pgio_divisor by = pgio_divisor_of(divisor);
    CHECK(pgio_quotient(value, by) == value / divisor);
    CHECK(pgio_remainder(value, by) == value % divisor);
    return 0;
}

/* Values below 2^63 by any divisor: multiples and their neighbours, powers of two, random ones. */
static int test_division(void)
{
    const uint64_t top = INT64_MAX;
    uint64_t random = 2;
    for (int round = 0; round < 20000; round++) {
        uint64_t divisor = next_random(&random) >> random_below(&random, 64);
        if (round < 64 * 5)
            divisor = ((uint64_t)1 << round / 5) + (uint64_t)(round % 5) - 2;
        if (divisor < 1)
            continue;
        const uint64_t values[] = {0, 1, top, top - 1, top / 2, divisor - 1, divisor, divisor + 1};
        for (size_t i = 0; i < sizeof values / sizeof *values; i++)
            if (values[i] <= top && check_division(values[i], divisor))
                return 1;
        for (int i = 0; i < 20; i++) {
            uint64_t value = divisor > top ? 0 : random_below(&random, top / divisor + 1) * divisor;
            if (i == 0)
                value = top / divisor * divisor;
            if (check_division(value, divisor) || (value && check_division(value - 1, divisor)) ||
                (value < top && check_division(value + 1, divisor)) ||
                check_division(next_random(&random) >> 1, divisor))
                return 1;
        }
    }
    return 0;
}

int main(void)
{
    RUN(test_golden);
    RUN(test_twin);
    RUN(test_refusals);
    RUN(test_division);
    return 0;
}
