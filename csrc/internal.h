/* internal.h: what the C files share: errors, checked sizes, exact division, memory, instruction sets.
 * Nothing here is visible outside the library. */
#ifndef PGIO_INTERNAL_H
#define PGIO_INTERNAL_H

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "pgio.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define PGIO_X86 1
#include <immintrin.h>
#else
#define PGIO_X86 0
#endif

__extension__ typedef unsigned __int128 pgio_u128;

/* Fills error->text (if error is not NULL) and returns -code, so that callers write `return pgio_fail(...)`. */
int pgio_fail(pgio_error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Turns PGIO_ISA_AUTO into the best this CPU has; refuses one that it lacks. */
int pgio_isa_resolve(uint32_t wanted, uint32_t *isa, pgio_error *error);

/* Zeroed memory on huge pages where the kernel grants them: the simulators jump about in arrays far
 * larger than the TLB covers. Untouched parts cost nothing. NULL when there is none. */
void *pgio_zeroed(uint64_t bytes);
void pgio_unmap(void *memory, uint64_t bytes);

static inline bool pgio_add_overflows(uint64_t a, uint64_t b, uint64_t *sum)
{
    return __builtin_add_overflow(a, b, sum);
}

static inline bool pgio_multiply_overflows(uint64_t a, uint64_t b, uint64_t *product)
{
    return __builtin_mul_overflow(a, b, product);
}

#define PGIO_GAMMA 0x9E3779B97F4A7C15u

static inline uint64_t pgio_mix_inline(uint64_t z)
{
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Exact division of values below 2^63 by a fixed divisor. With m = floor(2^64 / d) the estimate
 * (value * m) >> 64 is the quotient or one less: value * (2^64/d - m) / 2^64 < 1/2. */
typedef struct pgio_divisor {
    uint64_t divisor;
    uint64_t reciprocal;
} pgio_divisor;

static inline pgio_divisor pgio_divisor_of(uint64_t divisor)
{
    assert(divisor > 0);
    uint64_t reciprocal = divisor == 1 ? UINT64_MAX : (uint64_t)(((pgio_u128)1 << 64) / divisor);
    return (pgio_divisor){divisor, reciprocal};
}

static inline uint64_t pgio_quotient(uint64_t value, pgio_divisor by)
{
    uint64_t quotient = (uint64_t)(((pgio_u128)value * by.reciprocal) >> 64);
    return quotient + (value - quotient * by.divisor >= by.divisor);
}

static inline uint64_t pgio_remainder(uint64_t value, pgio_divisor by)
{
    uint64_t quotient = (uint64_t)(((pgio_u128)value * by.reciprocal) >> 64);
    uint64_t remainder = value - quotient * by.divisor;
    return remainder >= by.divisor ? remainder - by.divisor : remainder;
}

/* hash.c, for rows.c. Refuses a view that is inconsistent or a range outside it. */
int pgio_tokens_check(const pgio_tokens *tokens, uint64_t begin, uint64_t end, pgio_error *error);

/* Where the document that holds `position` starts, and where the next one does. */
typedef struct pgio_document {
    uint64_t start;
    uint64_t end;
    uint64_t index;
} pgio_document;
pgio_document pgio_document_of(const pgio_tokens *tokens, uint64_t position);
void pgio_document_advance(const pgio_tokens *tokens, pgio_document *document);

/* hashes[(order - 1) * stride + i] = g_order(begin + i), orders 1 .. order_count; the range was checked. */
void pgio_hash_block(const pgio_tokens *tokens, uint64_t begin, uint64_t count, uint32_t order_count,
                     pgio_document *document, uint64_t *hashes, uint64_t stride, uint32_t isa);

/* How the tokens of a history become values: what hashes with equal rules share. */
typedef struct pgio_rule {
    const uint32_t *classes;
    uint64_t vocabulary;
    uint64_t fill;
    uint64_t end_id;
} pgio_rule;

/* values[back * stride + i]: of the token `back` before begin + i, back < depth. seen[i]: how many
 * tokens up to begin + i, itself included, are not missing, up to PGIO_MAX_ORDER. count is at most PGIO_VALUES_MAX;
 * begin is in `document`. */
#define PGIO_VALUES_MAX 64
void pgio_history_values(const pgio_tokens *tokens, const pgio_rule *rule, uint64_t begin, uint64_t count,
                         pgio_document document, uint32_t depth, uint64_t *values, uint64_t stride, uint8_t *seen);

/* hashes[i] = values[i] * multipliers[0] ^ values[stride + i] * multipliers[1] ^ ... */
void pgio_hash_mulxor(const uint64_t *values, uint64_t stride, const uint64_t *multipliers, uint32_t order,
                      uint64_t count, uint64_t *hashes, uint32_t isa);

/* hashes.c, for rows.c: the hashes of a layout, made a block of PGIO_VALUES_MAX positions at a time. Line s of the
 * block is at s * PGIO_VALUES_MAX. */
#define PGIO_HASH_LINES (PGIO_MAX_ORDER * (1 + PGIO_MAX_RULES) + PGIO_MAX_HASHES)

typedef struct pgio_hash_set {
    pgio_hash hashes[PGIO_MAX_HASHES]; /* classes are the rules' */
    pgio_rule rules[PGIO_MAX_RULES];
    uint32_t line_of[PGIO_MAX_HASHES]; /* of PG1 and MULXOR: the hash; of POLY and TOKEN: the first look-back */
    uint32_t rule_of[PGIO_MAX_HASHES];
    uint32_t depth_of[PGIO_MAX_RULES]; /* look-backs that its hashes use */
    uint32_t hash_count, rule_count, pg1_order_count;
    uint64_t vocabulary; /* the least of the rules */
} pgio_hash_set;

/* Refuses what cannot be hashed exactly. The greatest value of a token under hash h goes to value_max[h]. */
int pgio_hashes_check(const pgio_hash *hashes, uint32_t hash_count, uint64_t *value_max, pgio_error *error);
/* Hashes that were checked; `used` says which of them. */
int pgio_hash_set_make(pgio_hash_set *set, const pgio_hash *hashes, uint32_t hash_count, const bool *used,
                       pgio_error *error);
void pgio_hash_set_free(pgio_hash_set *set);
/* An n-gram that misses a token, where that has a row of its own, hashes as UINT64_MAX; no other hash does. */
void pgio_hash_set_block(const pgio_hash_set *set, const pgio_tokens *tokens, uint64_t begin, uint64_t count,
                         pgio_document *document, uint64_t *lines, uint32_t isa);

/* rows.c, for source.c. */
int pgio_columns_check(const pgio_hash *hashes, uint32_t hash_count, const pgio_column *columns, uint32_t column_count,
                       pgio_error *error);
int pgio_rows_check_tokens(const pgio_rows *rows, const pgio_tokens *tokens, uint64_t begin, uint64_t end,
                           pgio_error *error);

/* place.c, for source.c: is every unit of this group read whole, whichever of its rows is wanted? */
bool pgio_place_reads_whole(const pgio_region *regions, uint32_t region_count, uint64_t page_bytes);

/* Where a failed read counts, among the stats of a reader or of a table. */
#define PGIO_ERROR_COUNTER(stats, status)                                                                              \
    ((status) == -EIO                  ? &(stats)->errors_eio                                                          \
     : (status) == -ENODATA            ? &(stats)->errors_enodata                                                      \
     : (status) == PGIO_STATUS_SHORT   ? &(stats)->errors_short                                                        \
     : (status) == PGIO_STATUS_CORRUPT ? &(stats)->errors_corrupt                                                      \
                                       : &(stats)->errors_other)

/* nf4.c, for table.c: one row; nothing is checked, and isa is a resolved one. */
void pgio_nf4_decode_row(const uint8_t *row, uint32_t width, float *values, uint32_t isa);
float pgio_half_to_float(uint32_t half);

#endif
