/* hash.c: token history -> n-gram hashes, one function a scheme.
 *
 * Owns which tokens an n-gram sees. A stream is one array of ids cut into documents; a look-back that
 * would cross a document's start sees "no token", which hashes as 0 where a token x hashes as x + 1.
 * Hashes are recomputed from the ids of each call, so no state is carried between batches and the cut
 * of the stream cannot matter.
 *
 * pg1:  g_1(t) = mix(x_t + 1),  g_n(t) = mix(g_{n-1}(t) ^ (past + 1) * gamma),  past = x_{t-n+1}.
 * A full finaliser at every step: a bare multiply-XOR leaves weak low bits, and slots collide.
 *
 * The hashes of deployed tables are made of values instead: a token's id or class, or a fill where the rule
 * of the history says that the token is missing. mulxor is here; poly multiplies in the columns (rows.c). */
#include <inttypes.h>

#include "internal.h"

uint64_t pgio_mix(uint64_t z)
{
    return pgio_mix_inline(z);
}

uint64_t pgio_salt(uint64_t seed, uint64_t role, uint64_t order, uint64_t index)
{
    return pgio_mix_inline(seed * PGIO_GAMMA + (role << 32) + (order << 16) + index + 1);
}

static inline uint64_t token_at(const pgio_tokens *tokens, uint64_t position)
{
    return tokens->id_bytes == 2 ? ((const uint16_t *)tokens->ids)[position]
                                 : ((const uint32_t *)tokens->ids)[position];
}

static int check_vocabulary(const pgio_tokens *tokens, uint64_t begin, uint64_t end, pgio_error *error)
{
    if (tokens->vocabulary >> (8 * tokens->id_bytes))
        return 0; /* no id of this width can reach it */
    uint64_t largest = 0;
    if (tokens->id_bytes == 2) {
        const uint16_t *ids = tokens->ids;
        uint16_t high = 0;
        for (uint64_t i = begin; i < end; i++)
            high = ids[i] > high ? ids[i] : high;
        largest = high;
    } else {
        const uint32_t *ids = tokens->ids;
        uint32_t high = 0;
        for (uint64_t i = begin; i < end; i++)
            high = ids[i] > high ? ids[i] : high;
        largest = high;
    }
    if (end > begin && largest >= tokens->vocabulary)
        return pgio_fail(error, EINVAL, "token id %" PRIu64 " is not below the vocabulary of %" PRIu64, largest,
                         tokens->vocabulary);
    return 0;
}

int pgio_tokens_check(const pgio_tokens *tokens, uint64_t begin, uint64_t end, pgio_error *error)
{
    if (tokens->id_bytes != 2 && tokens->id_bytes != 4)
        return pgio_fail(error, EINVAL, "token ids are %" PRIu32 " bytes wide; 2 and 4 are read", tokens->id_bytes);
    if (begin > end || end > tokens->count)
        return pgio_fail(error, ERANGE, "tokens %" PRIu64 " to %" PRIu64 " are not inside a stream of %" PRIu64, begin,
                         end, tokens->count);
    if (tokens->count && (!tokens->document_count || tokens->document_starts[0] != 0))
        return pgio_fail(error, EINVAL, "the first document does not start at token 0");
    /* A look-back reads up to PGIO_MAX_ORDER - 1 tokens before the range; they are checked with it. */
    uint64_t from = begin < PGIO_MAX_ORDER ? 0 : begin - PGIO_MAX_ORDER + 1;
    return check_vocabulary(tokens, from, end, error);
}

pgio_document pgio_document_of(const pgio_tokens *tokens, uint64_t position)
{
    uint64_t low = 0, high = tokens->document_count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (tokens->document_starts[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    uint64_t end = high < tokens->document_count ? tokens->document_starts[high] : UINT64_MAX;
    return (pgio_document){low < tokens->document_count ? tokens->document_starts[low] : 0, end, low};
}

void pgio_document_advance(const pgio_tokens *tokens, pgio_document *document)
{
    document->start = document->end;
    document->index++;
    document->end =
        document->index + 1 < tokens->document_count ? tokens->document_starts[document->index + 1] : UINT64_MAX;
}

#define BLOCK 256 /* positions hashed at a time: each array of a block fits in the first-level cache */

/* seen[i] = x + 1 for the token `back` before position begin + i, 0 where its document starts later. */
static void look_back(const pgio_tokens *tokens, uint64_t begin, uint64_t count, uint64_t back, pgio_document document,
                      uint64_t *seen)
{
    for (uint64_t i = 0; i < count;) {
        while (begin + i >= document.end)
            pgio_document_advance(tokens, &document);
        uint64_t last = document.end - begin < count ? document.end - begin : count;
        uint64_t first_seen = document.start + back > begin ? document.start + back - begin : 0;
        for (; i < last && i < first_seen; i++)
            seen[i] = 0;
        if (tokens->id_bytes == 2) {
            const uint16_t *ids = tokens->ids;
            for (; i < last; i++)
                seen[i] = (uint64_t)ids[begin + i - back] + 1;
        } else {
            const uint32_t *ids = tokens->ids;
            for (; i < last; i++)
                seen[i] = (uint64_t)ids[begin + i - back] + 1;
        }
    }
}

static void hash_step(const uint64_t *previous, const uint64_t *seen, uint64_t count, uint64_t *hashes)
{
    for (uint64_t i = 0; i < count; i++)
        hashes[i] = pgio_mix_inline(previous[i] ^ seen[i] * PGIO_GAMMA);
}

#if PGIO_X86
/* The same step, eight positions at a time. */
__attribute__((target("avx512f,avx512dq,avx512vl"))) static void hash_step_avx512(const uint64_t *restrict previous,
                                                                                  const uint64_t *restrict seen,
                                                                                  uint64_t count,
                                                                                  uint64_t *restrict hashes)
{
    const __m512i gamma = _mm512_set1_epi64((long long)PGIO_GAMMA);
    const __m512i first = _mm512_set1_epi64((long long)0xBF58476D1CE4E5B9u);
    const __m512i second = _mm512_set1_epi64((long long)0x94D049BB133111EBu);
    for (uint64_t i = 0; i < count; i += 8) {
        __mmask8 lanes = (__mmask8)(count - i >= 8 ? 0xFF : (1u << (count - i)) - 1);
        __m512i z = _mm512_mullo_epi64(_mm512_maskz_loadu_epi64(lanes, seen + i), gamma);
        z = _mm512_xor_si512(z, _mm512_maskz_loadu_epi64(lanes, previous + i));
        z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)), first);
        z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)), second);
        _mm512_mask_storeu_epi64(hashes + i, lanes, _mm512_xor_si512(z, _mm512_srli_epi64(z, 31)));
    }
}
#endif

static void hash_step_for(uint32_t isa, const uint64_t *previous, const uint64_t *seen, uint64_t count,
                          uint64_t *hashes)
{
#if PGIO_X86
    if (isa == PGIO_ISA_AVX512) {
        hash_step_avx512(previous, seen, count, hashes);
        return;
    }
#endif
    (void)isa;
    hash_step(previous, seen, count, hashes);
}

void pgio_hash_block(const pgio_tokens *tokens, uint64_t begin, uint64_t count, uint32_t order_count,
                     pgio_document *document, uint64_t *hashes, uint64_t stride, uint32_t isa)
{
    uint64_t seen[BLOCK];
    for (uint64_t done = 0; done < count; done += BLOCK) {
        uint64_t n = count - done < BLOCK ? count - done : BLOCK;
        while (begin + done >= document->end)
            pgio_document_advance(tokens, document);
        look_back(tokens, begin + done, n, 0, *document, seen);
        for (uint64_t i = 0; i < n; i++)
            hashes[done + i] = pgio_mix_inline(seen[i]);
        for (uint32_t order = 2; order <= order_count; order++) {
            look_back(tokens, begin + done, n, order - 1, *document, seen);
            hash_step_for(isa, hashes + (order - 2) * stride + done, seen, n, hashes + (order - 1) * stride + done);
        }
    }
}

#define BEFORE (PGIO_MAX_ORDER - 1)

static inline uint64_t value_of(const pgio_rule *rule, uint64_t id)
{
    return rule->classes ? rule->classes[id] : id;
}

/* How many tokens the n-grams of a position see, its own included, grows by one a token. It starts again at 1 where a
 * document starts and after an end of sequence, and is 0 where there is no text; so no more than BEFORE tokens before
 * the range decide it. Missing is sticky by construction: what lies beyond the tokens seen is missing, whatever it is.
 */
void pgio_history_values(const pgio_tokens *tokens, const pgio_rule *rule, uint64_t begin, uint64_t count,
                         pgio_document document, uint32_t depth, uint64_t *values, uint64_t stride, uint8_t *seen)
{
    assert(count <= PGIO_VALUES_MAX && depth <= PGIO_MAX_ORDER);
    uint64_t value[BEFORE + PGIO_VALUES_MAX];
    uint64_t before = begin - document.start < BEFORE ? begin - document.start : BEFORE;
    uint64_t *at = value + BEFORE; /* at[i] is of position begin + i, and of earlier ones below 0 */
    uint8_t length = 0, least = PGIO_MAX_ORDER;
    bool cut = true;
    memset(value, 0, sizeof value);
    for (uint64_t k = BEFORE - before; k < BEFORE + count; k++) {
        uint64_t position = begin + k - BEFORE, id = token_at(tokens, position);
        for (; position >= document.end; cut = true)
            pgio_document_advance(tokens, &document);
        uint64_t of_token = value_of(rule, id);
        bool no_text = rule->classes && of_token == PGIO_NO_TEXT;
        length = no_text ? 0 : cut ? 1 : (uint8_t)(length + (length < PGIO_MAX_ORDER));
        cut = no_text || id == rule->end_id;
        value[k] = no_text ? rule->fill : of_token;
        if (k >= BEFORE) {
            seen[k - BEFORE] = length;
            least = length < least ? length : least;
        }
    }
    for (uint32_t back = 0; back < depth; back++, values += stride) {
        memcpy(values, at - back, count * sizeof *values);
        for (uint64_t i = 0; least <= back && i < count; i++)
            values[i] = seen[i] <= back ? rule->fill : values[i];
    }
}

static inline __attribute__((always_inline)) void mulxor(const uint64_t *restrict values, uint64_t stride,
                                                         const uint64_t *multipliers, uint32_t order, uint64_t count,
                                                         uint64_t *restrict hashes)
{
    for (uint64_t i = 0; i < count; i++)
        hashes[i] = values[i] * multipliers[0];
    for (uint32_t back = 1; back < order; back++)
        for (uint64_t i = 0; i < count; i++)
            hashes[i] ^= values[back * stride + i] * multipliers[back];
}

#if PGIO_X86
/* The compiler has a 64-bit multiplication of vectors here. */
__attribute__((target("avx512f,avx512dq,avx512vl"))) static void mulxor_avx512(const uint64_t *values, uint64_t stride,
                                                                               const uint64_t *multipliers,
                                                                               uint32_t order, uint64_t count,
                                                                               uint64_t *hashes)
{
    mulxor(values, stride, multipliers, order, count, hashes);
}
#endif

void pgio_hash_mulxor(const uint64_t *values, uint64_t stride, const uint64_t *multipliers, uint32_t order,
                      uint64_t count, uint64_t *hashes, uint32_t isa)
{
#if PGIO_X86
    if (isa == PGIO_ISA_AVX512) {
        mulxor_avx512(values, stride, multipliers, order, count, hashes);
        return;
    }
#endif
    (void)isa;
    mulxor(values, stride, multipliers, order, count, hashes);
}

int64_t pgio_hash_ngrams(const pgio_tokens *tokens, uint64_t begin, uint64_t end, uint32_t order, uint64_t *hashes,
                         pgio_error *error)
{
    int status = pgio_tokens_check(tokens, begin, end, error);
    if (status)
        return status;
    if (order < 1 || order > PGIO_MAX_ORDER)
        return pgio_fail(error, EINVAL, "order %u is not in 1 to %d", order, PGIO_MAX_ORDER);
    pgio_document document = pgio_document_of(tokens, begin);
    uint64_t block[PGIO_MAX_ORDER * BLOCK];
    for (uint64_t at = begin; at < end; at += BLOCK) {
        uint64_t n = end - at < BLOCK ? end - at : BLOCK;
        pgio_hash_block(tokens, at, n, order, &document, block, BLOCK, pgio_isa_best());
        memcpy(hashes + (at - begin), block + (order - 1) * BLOCK, n * sizeof *hashes);
    }
    return (int64_t)(end - begin);
}

void pgio_hash_finish(const uint64_t *hashes, uint64_t count, uint64_t salt, uint64_t *out)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = pgio_mix_inline(hashes[i] ^ salt);
}
