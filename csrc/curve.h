/* curve.h: the state behind pgio_curve, shared by curve.c and the kernels it makes. */
#ifndef PGIO_CURVE_H
#define PGIO_CURVE_H

#include "positions.h"

/* How many live positions lie before a position is a sum over a tree of counters: 64-position words
 * in blocks of 512 (2^9), 32 blocks in a 2^14, 32 of those in a 2^19, 16 of those in a 2^23. */
struct pgio_curve {
    pgio_positions positions;
    uint16_t *within; /* [word] live positions before it in its block; not kept for AVX-512 */
    uint16_t *blocks; /* [position >> 9] live positions there; so on below */
    uint16_t *level14;
    uint32_t *level19;
    uint32_t *before23; /* [position >> 23] live positions before those */
    uint32_t *recent;   /* [class, distance] accesses since the last fold into `total` */
    uint64_t *total;
    uint64_t *first_tokens; /* the token that first touched the k-th distinct page */
    uint64_t live_count, histogram_length, unfolded, tokens;
    uint64_t *accesses, *compulsory; /* [class] */
    uint32_t *class_of_column;
    pgio_block *block;
    uint32_t column_count, class_count, isa;
};

#define CURVE_BATCH      64 /* accesses measured against one frozen state: a word of the bitmap */
#define CURVE_LAST_AHEAD (2 * CURVE_BATCH)

/* Accesses without unused places, and what is known of each: its place in the caller's matrix (places, or
 * first_place and on) and its class (classes, or class 0). */
typedef struct curve_run {
    const uint32_t *pages, *places, *classes;
    uint64_t first_place, count;
} curve_run;

/* Distances found in one batch, kept back two batches so that their histogram lines arrive first. */
typedef struct curve_pending {
    uint64_t at[CURVE_BATCH];
    uint32_t count;
} curve_pending;

static inline uint32_t curve_popcount(uint64_t bits)
{
#if defined(__POPCNT__)
    return (uint32_t)__builtin_popcountll(bits);
#else
    bits -= (bits >> 1) & 0x5555555555555555u;
    bits = (bits & 0x3333333333333333u) + ((bits >> 2) & 0x3333333333333333u);
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
    return (uint32_t)((bits * 0x0101010101010101u) >> 56);
#endif
}

#endif
