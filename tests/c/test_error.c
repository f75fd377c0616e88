/* error.c: the sentence behind a negative return, the version, and which instructions may be asked for. */
#include "check.h"
#include "internal.h"

static int test_version_and_best(void)
{
    CHECK(pgio_version()[0] >= '0' && pgio_version()[0] <= '9');
    CHECK(strchr(pgio_version(), '.') != NULL);
    CHECK(pgio_isa_best() >= PGIO_ISA_PORTABLE && pgio_isa_best() <= PGIO_ISA_AVX512);
    return 0;
}

static int test_isa(void)
{
    uint32_t isa = 99;
    CHECK_EQUAL(pgio_isa_resolve(PGIO_ISA_AUTO, &isa, NULL), 0);
    CHECK_EQUAL(isa, pgio_isa_best());
    FOR_EACH_ISA(wanted)
    {
        CHECK_EQUAL(pgio_isa_resolve(wanted, &isa, NULL), 0);
        CHECK_EQUAL(isa, wanted);
    }
    CHECK_REFUSED(EINVAL, pgio_isa_resolve(4, &isa, &error), pgio_isa_resolve(UINT32_MAX, &isa, NULL));
    for (uint32_t lacking = pgio_isa_best() + 1; lacking <= PGIO_ISA_AVX512; lacking++)
        CHECK_REFUSED(ENOTSUP, pgio_isa_resolve(lacking, &isa, &error), pgio_isa_resolve(lacking, &isa, NULL));
    CHECK_EQUAL(isa, pgio_isa_best()); /* a refusal leaves it alone */
    return 0;
}

static int test_text(void)
{
    pgio_error error;
    CHECK_EQUAL(pgio_fail(&error, EINVAL, "%d of %s", 3, "four"), -EINVAL);
    CHECK(strcmp(error.text, "3 of four") == 0);
    CHECK_EQUAL(pgio_fail(NULL, ERANGE, "%d", 3), -ERANGE);
    char word[1000];
    memset(word, 'a', sizeof word);
    word[999] = 0;
    CHECK_EQUAL(pgio_fail(&error, ENOMEM, "%s", word), -ENOMEM);
    CHECK_EQUAL(strlen(error.text), sizeof error.text - 1); /* cut, and still a string */
    return 0;
}

static int test_checked_sizes(void)
{
    uint64_t out;
    CHECK(!pgio_add_overflows(UINT64_MAX - 1, 1, &out) && out == UINT64_MAX);
    CHECK(pgio_add_overflows(UINT64_MAX, 1, &out));
    CHECK(!pgio_multiply_overflows((uint64_t)1 << 32, UINT32_MAX, &out) && out == (uint64_t)UINT32_MAX << 32);
    CHECK(pgio_multiply_overflows((uint64_t)1 << 32, (uint64_t)1 << 32, &out));
    CHECK(pgio_zeroed(0) == NULL);
    CHECK(pgio_zeroed(UINT64_MAX) == NULL);
    CHECK(pgio_zeroed((uint64_t)1 << 60) == NULL); /* more than there are addresses */
    unsigned char *memory = pgio_zeroed(((uint64_t)3 << 20) + 5);
    CHECK(memory != NULL && memory[0] == 0 && memory[(3 << 20) + 4] == 0);
    memory[17] = 1;
    pgio_unmap(memory, ((uint64_t)3 << 20) + 5);
    pgio_unmap(NULL, 5);
    return 0;
}

int main(void)
{
    RUN(test_version_and_best);
    RUN(test_isa);
    RUN(test_text);
    RUN(test_checked_sizes);
    return 0;
}
