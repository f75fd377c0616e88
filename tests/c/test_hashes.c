/* hashes.c: any mixture of schemes and rules against a twin, on each instruction set and for any cut; refusals. */
#include "check.h"

#define COUNT      300
#define HASHES     6
#define COLUMNS    30
#define VOCABULARY 10

static uint32_t ids[COUNT];
static const uint64_t starts[] = {0, 1, 63, 64, 65, 100, 100, 130, 131, 299}; /* one document is empty */
static const pgio_tokens stream = {ids, COUNT, starts, sizeof starts / sizeof *starts, 1000, 4};
static const uint32_t classes[VOCABULARY] = {4, PGIO_NO_TEXT, 2, 2, 0, 9, PGIO_NO_TEXT, 7, 1, 3};

static pgio_hash random_hash(uint64_t *random)
{
    pgio_hash hash = {.scheme = 1 + (uint32_t)random_below(random, 4), .vocabulary = VOCABULARY};
    hash.order = hash.scheme == PGIO_SCHEME_TOKEN ? 1 : 1 + (uint32_t)random_below(random, PGIO_MAX_ORDER);
    hash.classes = random_below(random, 2) ? classes : NULL;
    hash.fill = random_below(random, 2) ? 5 : 0; /* at most four rules */
    hash.end_id = PGIO_NO_ID;
    hash.whole = hash.scheme == PGIO_SCHEME_MULXOR && random_below(random, 2);
    for (int i = 0; i < PGIO_MAX_ORDER; i++)
        hash.multipliers[i] = next_random(random) >> 5;
    if (hash.fill == 0 && !hash.classes)
        hash.end_id = 3;
    return hash;
}

static uint64_t twin_row(const pgio_hash *hash, const pgio_column *column, uint64_t start, uint64_t at)
{
    uint64_t mixed = 0, sum = 0, first = 0;
    int missing = 0;
    for (uint32_t back = 0; back < hash->order; back++) {
        if (at < start + back)
            missing = 1;
        uint32_t id = missing ? 0 : ids[at - back];
        if (!missing && ((back && id == hash->end_id) || (hash->classes && classes[id] == PGIO_NO_TEXT)))
            missing = 1;
        uint64_t value = missing ? hash->fill : hash->classes ? classes[id] : id;
        mixed ^= value * hash->multipliers[back];
        sum += value * column->multipliers[back];
        first = back ? first : value;
    }
    uint64_t bucket = hash->scheme == PGIO_SCHEME_MULXOR ? mixed % column->modulus
                      : hash->scheme == PGIO_SCHEME_POLY ? sum % column->modulus
                                                         : first;
    return column->row_base + (hash->whole && missing ? column->modulus : bucket) * column->row_stride;
}

static int check_table(const pgio_hash *hashes, const pgio_column *columns, uint32_t count, uint32_t isa,
                       uint64_t *random)
{
    static uint64_t pg1_hashes[COUNT];
    pgio_rows *rows;
    CHECK_EQUAL(pgio_rows_new(&rows, hashes, HASHES, columns, count, isa, NULL), 0);
    uint64_t begin = random_below(random, COUNT + 1), n = random_below(random, COUNT + 1 - begin);
    uint64_t *out = malloc(n * count * sizeof *out + (n == 0)); /* so that the sanitizer sees a store past it */
    CHECK(out != NULL);
    CHECK_EQUAL(pgio_rows_emit(rows, &stream, begin, begin + n, out, NULL), n);
    for (uint32_t c = 0; c < count; c++) {
        const pgio_hash *hash = &hashes[columns[c].bucket_hash];
        if (hash->scheme == PGIO_SCHEME_PG1)
            CHECK_EQUAL(pgio_hash_ngrams(&stream, 0, COUNT, hash->order, pg1_hashes, NULL), COUNT);
        uint64_t document = 0;
        for (uint64_t t = 0; t < n; t++) {
            while (document + 1 < stream.document_count && starts[document + 1] <= begin + t)
                document++;
            uint64_t wanted = hash->scheme == PGIO_SCHEME_PG1
                                  ? columns[c].row_base + (pgio_mix(pg1_hashes[begin + t]) >> 1) % columns[c].modulus *
                                                              columns[c].row_stride
                                  : twin_row(hash, &columns[c], starts[document], begin + t);
            CHECK(out[t * count + c] == wanted);
        }
    }
    free(out);
    pgio_rows_free(rows);
    return 0;
}

static int test_twin(void)
{
    uint64_t random = 8;
    for (uint32_t round = 0; round < 300; round++) {
        for (int t = 0; t < COUNT; t++)
            ids[t] = (uint32_t)random_below(&random, VOCABULARY);
        pgio_hash hashes[HASHES];
        pgio_column columns[COLUMNS];
        for (int h = 0; h < HASHES; h++)
            hashes[h] = random_hash(&random);
        uint32_t count = 1 + (uint32_t)random_below(&random, COLUMNS), kinds = 1 + round % HASHES;
        for (uint32_t c = 0; c < count; c++) {
            columns[c] =
                (pgio_column){.bucket_hash = (uint32_t)random_below(&random, kinds),
                              .modulus = VOCABULARY + (next_random(&random) >> (14 + random_below(&random, 48))),
                              .row_base = random_below(&random, 1000),
                              .row_stride = 1 + random_below(&random, 3),
                              .slot_count = 1};
            for (int i = 0; i < PGIO_MAX_ORDER; i++)
                columns[c].multipliers[i] = next_random(&random) >> 8;
        }
        FOR_EACH_ISA(isa)
        if (check_table(hashes, columns, count, isa, &random)) {
            fprintf(stderr, "round %u\n", round);
            return 1;
        }
    }
    return 0;
}

static int refused(int code, const pgio_hash *hashes, uint32_t hash_count)
{
    const pgio_column column = {.modulus = VOCABULARY, .row_stride = 1, .slot_count = 1, .multipliers = {UINT32_MAX}};
    pgio_rows *rows = (pgio_rows *)&rows;
    CHECK_REFUSED(code, pgio_rows_new(&rows, hashes, hash_count, &column, 1, PGIO_ISA_AUTO, &error),
                  pgio_rows_new(&rows, hashes, hash_count, &column, 1, PGIO_ISA_AUTO, NULL));
    CHECK(rows == NULL);
    return 0;
}

static int test_refusals(void)
{
    const pgio_hash good = {.scheme = PGIO_SCHEME_MULXOR,
                            .order = 2,
                            .vocabulary = VOCABULARY,
                            .end_id = PGIO_NO_ID,
                            .multipliers = {3, 5}};
    pgio_hash bad[16];
    size_t count = 0;
#define BAD(...)                                                                                                       \
    bad[count] = good;                                                                                                 \
    bad[count++].__VA_ARGS__
    BAD(scheme = 0);
    BAD(scheme = 5);
    BAD(order = 0);
    BAD(order = PGIO_MAX_ORDER + 1);
    BAD(scheme = PGIO_SCHEME_TOKEN); /* of order 2 */
    BAD(vocabulary = 0);
    BAD(vocabulary = ((uint64_t)1 << 32) + 1);
    for (size_t i = 0; i < count; i++)
        if (refused(EINVAL, &bad[i], 1))
            return 1;
    count = 0;
    BAD(multipliers[1] = UINT64_MAX);
    BAD(fill = (uint64_t)1 << 62);
    BAD(vocabulary = (uint64_t)1 << 32, bad[count - 1].multipliers[0] = (uint64_t)1 << 31 | 1);
    BAD(scheme = PGIO_SCHEME_POLY, bad[count - 1].fill = (uint64_t)1 << 32);
    for (size_t i = 0; i < count; i++)
        if (refused(EOVERFLOW, &bad[i], 1))
            return 1;
#undef BAD
    return refused(EINVAL, &good, 0) || refused(EINVAL, &good, PGIO_MAX_HASHES + 1);
}

int main(void)
{
    RUN(test_twin);
    RUN(test_refusals);
    return 0;
}
