/* check.h: what the C tests share. A test is a function that returns 0; CHECK leaves it with 1 and says where. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pgio.h"

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                    \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

#define CHECK_EQUAL(a, b)                                                                                              \
    do {                                                                                                               \
        long long check_a = (long long)(a), check_b = (long long)(b);                                                  \
        if (check_a != check_b) {                                                                                      \
            fprintf(stderr, "%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a, check_a, #b, check_b);          \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* A call that must be refused with this errno, both with an error to fill (one non-empty line) and without. */
#define CHECK_REFUSED(code, call_with, call_without)                                                                   \
    do {                                                                                                               \
        pgio_error error;                                                                                              \
        memset(&error, 'x', sizeof error);                                                                             \
        CHECK_EQUAL(call_with, -(code));                                                                               \
        CHECK(memchr(error.text, 0, sizeof error.text) != NULL);                                                       \
        CHECK(error.text[0] != 0 && strchr(error.text, '\n') == NULL);                                                 \
        CHECK_EQUAL(call_without, -(code));                                                                            \
    } while (0)

#define RUN(test)                                                                                                      \
    do {                                                                                                               \
        if (test()) {                                                                                                  \
            fprintf(stderr, "%s failed\n", #test);                                                                     \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline uint64_t random_below(uint64_t *state, uint64_t end)
{
    return next_random(state) % end;
}

/* The instruction sets of this CPU: PGIO_ISA_PORTABLE up to the best. */
#define FOR_EACH_ISA(isa) for (uint32_t isa = PGIO_ISA_PORTABLE; isa <= pgio_isa_best(); isa++)

/* Hashes of scheme pg1, each at its order less one. */
#define PG1(n) {.scheme = PGIO_SCHEME_PG1, .order = (n)}
static const pgio_hash pg1[] = {PG1(1), PG1(2), PG1(3), PG1(4), PG1(5), PG1(6), PG1(7), PG1(8)};
_Static_assert(sizeof pg1 / sizeof *pg1 == PGIO_MAX_ORDER, "a hash an order");

#endif
