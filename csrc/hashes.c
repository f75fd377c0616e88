/* hashes.c: the hashes of a layout, as a set.
 *
 * Owns the plan by which a block of positions is hashed once for all columns. Hashes with equal rules (classes,
 * fill, end of sequence) share the values of their look-backs, and hashes of scheme pg1 share one chain of orders;
 * each result is a line of PGIO_VALUES_MAX numbers that columns read. A hash that no column uses is not made. */
#include <inttypes.h>

#include "internal.h"

#define EXACT_BELOW ((uint64_t)1 << 63) /* what rows.c divides exactly */

static bool has_rule(const pgio_hash *hash)
{
    return hash->scheme != PGIO_SCHEME_PG1;
}

static uint64_t value_max_of(const pgio_hash *hash)
{
    uint64_t largest = hash->fill;
    if (!hash->classes)
        return hash->vocabulary - 1 > largest ? hash->vocabulary - 1 : largest;
    for (uint64_t i = 0; i < hash->vocabulary; i++)
        if (hash->classes[i] != PGIO_NO_TEXT && hash->classes[i] > largest)
            largest = hash->classes[i];
    return largest;
}

static int check_hash(const pgio_hash *hash, uint32_t index, uint64_t *value_max, pgio_error *error)
{
    if (hash->scheme < PGIO_SCHEME_PG1 || hash->scheme > PGIO_SCHEME_TOKEN)
        return pgio_fail(error, EINVAL, "hash %u: scheme %u is not known", index, hash->scheme);
    if (hash->order < 1 || hash->order > PGIO_MAX_ORDER || (hash->scheme == PGIO_SCHEME_TOKEN && hash->order != 1))
        return pgio_fail(error, EINVAL, "hash %u: order %u is not in 1 to %d", index, hash->order,
                         hash->scheme == PGIO_SCHEME_TOKEN ? 1 : PGIO_MAX_ORDER);
    if (hash->whole && hash->scheme != PGIO_SCHEME_MULXOR)
        return pgio_fail(error, EINVAL, "hash %u: only mulxor has a row for n-grams that miss a token", index);
    *value_max = 0;
    if (!has_rule(hash))
        return 0;
    if (hash->vocabulary < 1 || hash->vocabulary > (uint64_t)1 << 32)
        return pgio_fail(error, EINVAL, "hash %u: a vocabulary of %" PRIu64 "; it is 1 to 2^32", index,
                         hash->vocabulary);
    *value_max = value_max_of(hash);
    for (uint32_t back = 0; hash->scheme == PGIO_SCHEME_MULXOR && back < hash->order; back++) {
        uint64_t product;
        if (pgio_multiply_overflows(hash->multipliers[back], *value_max, &product) || product >= EXACT_BELOW)
            return pgio_fail(error, EOVERFLOW,
                             "hash %u: multiplier %" PRIu64 " times the value %" PRIu64 " reaches 2^63", index,
                             hash->multipliers[back], *value_max);
    }
    return 0;
}

int pgio_hashes_check(const pgio_hash *hashes, uint32_t hash_count, uint64_t *value_max, pgio_error *error)
{
    if (hash_count < 1 || hash_count > PGIO_MAX_HASHES)
        return pgio_fail(error, EINVAL, "%u hashes; a layout has 1 to %d", hash_count, PGIO_MAX_HASHES);
    int status = 0;
    for (uint32_t h = 0; h < hash_count && !status; h++)
        status = check_hash(&hashes[h], h, &value_max[h], error);
    return status;
}

/* The rule that two hashes share: their classes are one array, not two equal ones. */
static int rule_for(pgio_hash_set *set, const pgio_hash *hash, const uint32_t **given, uint32_t *rule,
                    pgio_error *error)
{
    for (*rule = 0; *rule < set->rule_count; ++*rule) {
        const pgio_rule *known = &set->rules[*rule];
        if (given[*rule] == hash->classes && known->vocabulary == hash->vocabulary && known->fill == hash->fill &&
            known->end_id == hash->end_id)
            return 0;
    }
    if (set->rule_count == PGIO_MAX_RULES)
        return pgio_fail(error, EINVAL, "the hashes follow more than %d different histories", PGIO_MAX_RULES);
    pgio_rule *made = &set->rules[set->rule_count];
    *made = (pgio_rule){.vocabulary = hash->vocabulary, .fill = hash->fill, .end_id = hash->end_id};
    if (hash->classes) {
        uint32_t *classes = malloc(hash->vocabulary * sizeof *classes);
        if (!classes)
            return pgio_fail(error, ENOMEM, "no memory for %" PRIu64 " classes of tokens", hash->vocabulary);
        memcpy(classes, hash->classes, hash->vocabulary * sizeof *classes);
        made->classes = classes;
    }
    given[set->rule_count++] = hash->classes;
    return 0;
}

int pgio_hash_set_make(pgio_hash_set *set, const pgio_hash *hashes, uint32_t hash_count, const bool *used,
                       pgio_error *error)
{
    const uint32_t *given[PGIO_MAX_RULES];
    memset(set, 0, sizeof *set);
    set->vocabulary = UINT64_MAX;
    set->hash_count = hash_count;
    for (uint32_t h = 0; h < hash_count; h++) {
        set->hashes[h] = hashes[h];
        set->hashes[h].classes = NULL;
        set->line_of[h] = UINT32_MAX;
        if (!used[h])
            continue;
        if (!has_rule(&hashes[h])) {
            set->line_of[h] = hashes[h].order - 1;
            if (hashes[h].order > set->pg1_order_count)
                set->pg1_order_count = hashes[h].order;
            continue;
        }
        uint32_t rule;
        int status = rule_for(set, &hashes[h], given, &rule, error);
        if (status)
            return status;
        set->rule_of[h] = rule;
        if (hashes[h].order > set->depth_of[rule])
            set->depth_of[rule] = hashes[h].order;
        if (hashes[h].vocabulary < set->vocabulary)
            set->vocabulary = hashes[h].vocabulary;
        set->line_of[h] = hashes[h].scheme == PGIO_SCHEME_MULXOR ? PGIO_MAX_ORDER * (1 + PGIO_MAX_RULES) + h
                                                                 : PGIO_MAX_ORDER * (1 + rule);
    }
    return 0;
}

void pgio_hash_set_free(pgio_hash_set *set)
{
    for (uint32_t r = 0; r < set->rule_count; r++)
        free((void *)set->rules[r].classes);
    set->rule_count = 0;
}

void pgio_hash_set_block(const pgio_hash_set *set, const pgio_tokens *tokens, uint64_t begin, uint64_t count,
                         pgio_document *document, uint64_t *lines, uint32_t isa)
{
    uint8_t seen[PGIO_MAX_RULES][PGIO_VALUES_MAX];
    const uint64_t stride = PGIO_VALUES_MAX;
    while (begin >= document->end)
        pgio_document_advance(tokens, document);
    for (uint32_t r = 0; r < set->rule_count; r++)
        pgio_history_values(tokens, &set->rules[r], begin, count, *document, set->depth_of[r],
                            lines + PGIO_MAX_ORDER * (1 + r) * stride, stride, seen[r]);
    if (set->pg1_order_count)
        pgio_hash_block(tokens, begin, count, set->pg1_order_count, document, lines, stride, isa);
    for (uint32_t h = 0; h < set->hash_count; h++) {
        const pgio_hash *hash = &set->hashes[h];
        if (hash->scheme != PGIO_SCHEME_MULXOR || set->line_of[h] == UINT32_MAX)
            continue;
        uint64_t *line = lines + set->line_of[h] * stride;
        uint32_t rule = set->rule_of[h];
        pgio_hash_mulxor(lines + PGIO_MAX_ORDER * (1 + rule) * stride, stride, hash->multipliers, hash->order, count,
                         line, isa);
        for (uint64_t i = 0; hash->whole && i < count; i++)
            line[i] = seen[rule][i] < hash->order ? UINT64_MAX : line[i];
    }
}
