/* rows.c: hashes -> rows, for a set of columns.
 *
 * Owns the rule that turns an n-gram's hash into a row number. Columns are compiled once into lanes
 * padded to eight, so that the wide path computes eight columns of one token at a time and stores
 * them in place, where the eight are of one kind (rows_avx512.h); the portable path goes down a column.
 * No models, no bytes. */
#include <inttypes.h>

#include "internal.h"

#define LANES 8
#define BLOCK PGIO_VALUES_MAX /* tokens hashed before their rows are made: the hashes stay in the first-level cache */

/* Moduli below this would need quotients beyond 2^53 in the wide path, so the hash is folded first. */
#define FOLD_BELOW ((uint64_t)1 << 20)
#define WIDE_LIMIT ((uint64_t)1 << 51)

/* What a column does with the line of its hash: finish it with a salt, and perhaps choose a slot; take it as it is,
 * and perhaps know the n-grams that miss a token; or sum up look-backs. MIXED is of eight lanes. */
enum { KIND_FINISH, KIND_SLOT, KIND_PLAIN, KIND_WHOLE, KIND_SUM, KIND_MIXED };

struct pgio_rows {
    pgio_hash_set set;
    uint32_t column_count;
    uint32_t isa;
    pgio_column *columns;
    uint32_t *kinds;
    pgio_divisor *bucket_divisors;
    pgio_divisor *slot_divisors;
    uint64_t *lanes; /* the wide path's constants: LANE_FIELDS arrays of padded columns */
    uint32_t lane_count;
};

enum {
    BUCKET_SALT,
    BUCKET_AT,
    BUCKET_FOLD,
    MODULUS,
    MODULUS_INVERSE,
    SLOT_SALT,
    SLOT_AT,
    SLOT_FOLD,
    SLOT_COUNT,
    SLOT_INVERSE,
    ROW_BASE,
    ROW_STRIDE,
    MULTIPLIERS,
    LANE_FIELDS = MULTIPLIERS + PGIO_MAX_ORDER
};

static int check_hashed(const pgio_hash *hashes, const uint64_t *value_max, const pgio_column *column, uint32_t index,
                        pgio_error *error)
{
    const pgio_hash *hash = &hashes[column->bucket_hash];
    bool pg1 = hash->scheme == PGIO_SCHEME_PG1 && hashes[column->slot_hash].scheme == PGIO_SCHEME_PG1;
    if (column->slot_count > 1 && !pg1)
        return pgio_fail(error, EINVAL, "column %u: slots are chosen in buckets and by hashes of pg1 alone", index);
    uint64_t largest = value_max[column->bucket_hash], sum = 0, product;
    if (hash->scheme == PGIO_SCHEME_TOKEN && largest >= column->modulus)
        return pgio_fail(error, EINVAL, "column %u: token %" PRIu64 " has no row among %" PRIu64, index, largest,
                         column->modulus);
    for (uint32_t back = 0; hash->scheme == PGIO_SCHEME_POLY && back < hash->order; back++)
        if (pgio_multiply_overflows(column->multipliers[back], largest, &product) ||
            pgio_add_overflows(sum, product, &sum) || sum >> 63)
            return pgio_fail(error, EOVERFLOW, "column %u: the sum of its multiples of %" PRIu64 " reaches 2^63", index,
                             largest);
    return 0;
}

static int check_column(const pgio_hash *hashes, uint32_t hash_count, const uint64_t *value_max,
                        const pgio_column *column, uint32_t index, pgio_error *error)
{
    if (column->bucket_hash >= hash_count || column->slot_hash >= hash_count)
        return pgio_fail(error, EINVAL, "column %u: hashes %u and %u are not among the %u", index, column->bucket_hash,
                         column->slot_hash, hash_count);
    if (column->modulus < 1 || column->modulus >> 62 || column->slot_count < 1)
        return pgio_fail(error, EINVAL,
                         "column %u: %" PRIu64 " buckets of %u slots; both are at least 1, buckets below 2^62", index,
                         column->modulus, column->slot_count);
    uint64_t last = column->modulus - (hashes[column->bucket_hash].whole ? 0 : 1), end;
    if (pgio_multiply_overflows(last, column->row_stride, &end) || pgio_add_overflows(end, column->row_base, &end) ||
        pgio_add_overflows(end, column->slot_count, &end) || end >> 62)
        return pgio_fail(error, EOVERFLOW, "column %u: its rows reach 2^62", index);
    return check_hashed(hashes, value_max, column, index, error);
}

static uint64_t fold_factor(uint64_t modulus)
{
    return modulus < FOLD_BELOW ? ((uint64_t)1 << 32) % modulus : (uint64_t)1 << 32;
}

static uint64_t inverse_bits(uint64_t modulus)
{
    double inverse = 1.0 / (double)modulus;
    uint64_t bits;
    memcpy(&bits, &inverse, sizeof bits);
    return bits;
}

static void compile_lanes(pgio_rows *rows)
{
    uint32_t n = rows->lane_count;
    for (uint32_t c = 0; c < n; c++) {
        /* Padding lanes repeat the last column; their results are masked off. */
        const pgio_column *column = &rows->columns[c < rows->column_count ? c : rows->column_count - 1];
        uint64_t *lane = rows->lanes + c;
        lane[BUCKET_SALT * n] = column->bucket_salt;
        lane[BUCKET_AT * n] = rows->set.line_of[column->bucket_hash] * BLOCK;
        lane[BUCKET_FOLD * n] = fold_factor(column->modulus);
        lane[MODULUS * n] = column->modulus;
        lane[MODULUS_INVERSE * n] = inverse_bits(column->modulus);
        lane[SLOT_SALT * n] = column->slot_salt;
        lane[SLOT_AT * n] = rows->set.line_of[column->slot_count > 1 ? column->slot_hash : column->bucket_hash] * BLOCK;
        lane[SLOT_FOLD * n] = fold_factor(column->slot_count);
        lane[SLOT_COUNT * n] = column->slot_count;
        lane[SLOT_INVERSE * n] = inverse_bits(column->slot_count);
        lane[ROW_BASE * n] = column->row_base;
        lane[ROW_STRIDE * n] = column->row_stride;
        uint32_t order = rows->set.hashes[column->bucket_hash].order;
        for (uint32_t back = 0; back < order; back++)
            lane[(MULTIPLIERS + back) * n] = column->multipliers[back];
    }
}

int pgio_columns_check(const pgio_hash *hashes, uint32_t hash_count, const pgio_column *columns, uint32_t column_count,
                       pgio_error *error)
{
    uint64_t value_max[PGIO_MAX_HASHES];
    if (column_count < 1 || column_count > PGIO_MAX_COLUMNS)
        return pgio_fail(error, EINVAL, "%u columns; a layout has 1 to %d", column_count, PGIO_MAX_COLUMNS);
    int status = pgio_hashes_check(hashes, hash_count, value_max, error);
    for (uint32_t c = 0; c < column_count && !status; c++)
        status = check_column(hashes, hash_count, value_max, &columns[c], c, error);
    return status;
}

static uint32_t kind_of(const pgio_hash *hash, const pgio_column *column)
{
    switch (hash->scheme) {
    case PGIO_SCHEME_PG1:
        return column->slot_count > 1 ? KIND_SLOT : KIND_FINISH;
    case PGIO_SCHEME_POLY:
        return KIND_SUM;
    default:
        return hash->whole ? KIND_WHOLE : KIND_PLAIN;
    }
}

static int compile(pgio_rows *rows, const pgio_hash *hashes, uint32_t hash_count, const pgio_column *columns,
                   pgio_error *error)
{
    bool used[PGIO_MAX_HASHES] = {false};
    for (uint32_t c = 0; c < rows->column_count; c++) {
        const pgio_column *column = &columns[c];
        used[column->bucket_hash] = true;
        if (column->slot_count > 1)
            used[column->slot_hash] = true;
        rows->columns[c] = *column;
        rows->bucket_divisors[c] = pgio_divisor_of(column->modulus);
        rows->slot_divisors[c] = pgio_divisor_of(column->slot_count);
        rows->kinds[c] = kind_of(&hashes[column->bucket_hash], column);
    }
    int status = pgio_hash_set_make(&rows->set, hashes, hash_count, used, error);
    if (!status)
        compile_lanes(rows);
    return status;
}

int pgio_rows_new(pgio_rows **out, const pgio_hash *hashes, uint32_t hash_count, const pgio_column *columns,
                  uint32_t column_count, uint32_t isa, pgio_error *error)
{
    *out = NULL;
    int status = pgio_columns_check(hashes, hash_count, columns, column_count, error);
    if (!status)
        status = pgio_isa_resolve(isa, &isa, error);
    if (status)
        return status;
    bool wide = true;
    for (uint32_t c = 0; c < column_count; c++)
        wide = wide && columns[c].modulus < WIDE_LIMIT;
    uint32_t lane_count = (column_count + LANES - 1) / LANES * LANES;
    pgio_rows *rows = calloc(1, sizeof *rows);
    if (rows) {
        rows->columns = calloc(column_count, sizeof *rows->columns);
        rows->kinds = calloc(column_count, sizeof *rows->kinds);
        rows->bucket_divisors = calloc(column_count, sizeof *rows->bucket_divisors);
        rows->slot_divisors = calloc(column_count, sizeof *rows->slot_divisors);
        rows->lanes = calloc((size_t)lane_count * LANE_FIELDS, sizeof *rows->lanes);
    }
    if (!rows || !rows->columns || !rows->kinds || !rows->bucket_divisors || !rows->slot_divisors || !rows->lanes) {
        pgio_rows_free(rows);
        return pgio_fail(error, ENOMEM, "no memory for %u columns", column_count);
    }
    rows->column_count = column_count;
    rows->lane_count = lane_count;
    rows->isa = isa == PGIO_ISA_AVX512 && wide ? isa : PGIO_ISA_PORTABLE;
    status = compile(rows, hashes, hash_count, columns, error);
    if (status) {
        pgio_rows_free(rows);
        return status;
    }
    *out = rows;
    return 0;
}

void pgio_rows_free(pgio_rows *rows)
{
    if (!rows)
        return;
    pgio_hash_set_free(&rows->set);
    free(rows->columns);
    free(rows->kinds);
    free(rows->bucket_divisors);
    free(rows->slot_divisors);
    free(rows->lanes);
    free(rows);
}

static void finish_column(const pgio_rows *rows, uint32_t c, const uint64_t *lines, uint64_t count, uint64_t *to)
{
    const pgio_column column = rows->columns[c];
    const pgio_divisor buckets = rows->bucket_divisors[c], slots = rows->slot_divisors[c];
    const uint64_t *of_bucket = lines + rows->set.line_of[column.bucket_hash] * BLOCK;
    uint32_t stride = rows->column_count;
    if (rows->kinds[c] == KIND_SLOT) {
        const uint64_t *of_slot = lines + rows->set.line_of[column.slot_hash] * BLOCK;
        for (uint64_t t = 0; t < count; t++, to += stride) {
            uint64_t u = pgio_mix_inline(of_bucket[t] ^ column.bucket_salt) >> 1;
            uint64_t slot = pgio_mix_inline(of_slot[t] ^ column.slot_salt) >> 1;
            *to = column.row_base + pgio_remainder(u, buckets) * column.row_stride + pgio_remainder(slot, slots);
        }
    } else if (column.row_stride == 1) {
        for (uint64_t t = 0; t < count; t++, to += stride) {
            uint64_t u = pgio_mix_inline(of_bucket[t] ^ column.bucket_salt) >> 1;
            *to = column.row_base + pgio_remainder(u, buckets);
        }
    } else {
        for (uint64_t t = 0; t < count; t++, to += stride) {
            uint64_t u = pgio_mix_inline(of_bucket[t] ^ column.bucket_salt) >> 1;
            *to = column.row_base + pgio_remainder(u, buckets) * column.row_stride;
        }
    }
}

static void plain_column(const pgio_rows *rows, uint32_t c, const uint64_t *lines, uint64_t count, uint64_t *to)
{
    const pgio_column column = rows->columns[c];
    const pgio_divisor buckets = rows->bucket_divisors[c];
    const uint64_t *line = lines + rows->set.line_of[column.bucket_hash] * BLOCK;
    uint32_t stride = rows->column_count;
    if (rows->kinds[c] == KIND_WHOLE) {
        for (uint64_t t = 0; t < count; t++, to += stride) {
            uint64_t bucket = line[t] == UINT64_MAX ? column.modulus : pgio_remainder(line[t], buckets);
            *to = column.row_base + bucket * column.row_stride;
        }
        return;
    }
    for (uint64_t t = 0; t < count; t++, to += stride)
        *to = column.row_base + pgio_remainder(line[t], buckets) * column.row_stride;
}

static void sum_column(const pgio_rows *rows, uint32_t c, const uint64_t *lines, uint64_t count, uint64_t *to)
{
    const pgio_column column = rows->columns[c];
    const pgio_divisor buckets = rows->bucket_divisors[c];
    const uint64_t *values = lines + rows->set.line_of[column.bucket_hash] * BLOCK;
    uint32_t stride = rows->column_count, order = rows->set.hashes[column.bucket_hash].order;
    for (uint64_t t = 0; t < count; t++, to += stride) {
        uint64_t sum = 0;
        for (uint32_t back = 0; back < order; back++)
            sum += values[back * BLOCK + t] * column.multipliers[back];
        *to = column.row_base + pgio_remainder(sum, buckets) * column.row_stride;
    }
}

/* A column at a time, down the block: its constants stay in registers. */
static void emit_portable(const pgio_rows *rows, const uint64_t *lines, uint64_t count, uint32_t first, uint32_t end,
                          uint64_t *out)
{
    for (uint32_t c = first; c < end; c++) {
        switch (rows->kinds[c]) {
        case KIND_FINISH:
        case KIND_SLOT:
            finish_column(rows, c, lines, count, out + c);
            break;
        case KIND_SUM:
            sum_column(rows, c, lines, count, out + c);
            break;
        default:
            plain_column(rows, c, lines, count, out + c);
        }
    }
}

#if PGIO_X86
#include "rows_avx512.h"
#endif

/* The stream's ids are checked against the least vocabulary that knows them, its own or a hash's. */
int pgio_rows_check_tokens(const pgio_rows *rows, const pgio_tokens *tokens, uint64_t begin, uint64_t end,
                           pgio_error *error)
{
    pgio_tokens known = *tokens;
    known.vocabulary = rows->set.vocabulary < known.vocabulary ? rows->set.vocabulary : known.vocabulary;
    return pgio_tokens_check(&known, begin, end, error);
}

int64_t pgio_rows_emit(const pgio_rows *rows, const pgio_tokens *tokens, uint64_t begin, uint64_t end,
                       uint64_t *rows_out, pgio_error *error)
{
    int status = pgio_rows_check_tokens(rows, tokens, begin, end, error);
    if (status)
        return status;
    uint64_t lines[PGIO_HASH_LINES * BLOCK];
    pgio_document document = pgio_document_of(tokens, begin);
    for (uint64_t at = begin; at < end; at += BLOCK) {
        uint64_t n = end - at < BLOCK ? end - at : BLOCK;
        pgio_hash_set_block(&rows->set, tokens, at, n, &document, lines, rows->isa);
        uint64_t *out = rows_out + (at - begin) * rows->column_count;
#if PGIO_X86
        if (rows->isa == PGIO_ISA_AVX512) {
            emit_avx512(rows, lines, n, out);
            continue;
        }
#endif
        emit_portable(rows, lines, n, 0, rows->column_count, out);
    }
    return (int64_t)(end - begin);
}
