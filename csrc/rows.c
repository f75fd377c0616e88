/* rows.c: hashes -> rows, for a set of columns; and the history of one sequence as a value.
 *
 * Owns the rule that turns an n-gram's hash into a row number. Columns are compiled once into lanes
 * padded to eight, so that the wide path computes eight columns of one token at a time and stores
 * them in place; the portable path walks the same lanes one by one. No models, no bytes. */
#include <inttypes.h>

#include "internal.h"

#define LANES 8
#define BLOCK 64 /* tokens hashed before their rows are made: the hashes stay in the first-level cache */

/* Moduli below this would need quotients beyond 2^53 in the wide path, so the hash is folded first. */
#define FOLD_BELOW ((uint64_t)1 << 20)
#define WIDE_LIMIT ((uint64_t)1 << 51)

struct pgio_rows {
    uint32_t column_count;
    uint32_t order_count; /* highest order that a column uses */
    uint32_t isa;
    bool any_slot;
    pgio_column *columns;
    pgio_divisor *bucket_divisors;
    pgio_divisor *slot_divisors;
    uint64_t *lanes; /* the wide path's constants: LANE_FIELDS arrays of padded columns */
    uint32_t lane_count;
};

enum {
    BUCKET_SALT,
    BUCKET_ORDER,
    BUCKET_FOLD,
    MODULUS,
    MODULUS_INVERSE,
    SLOT_SALT,
    SLOT_ORDER,
    SLOT_FOLD,
    SLOT_COUNT,
    SLOT_INVERSE,
    ROW_BASE,
    ROW_STRIDE,
    LANE_FIELDS
};

static int check_column(const pgio_column *column, uint32_t index, pgio_error *error)
{
    if (column->scheme != PGIO_SCHEME_PG1)
        return pgio_fail(error, EINVAL, "column %u: hash scheme %u is not known", index, column->scheme);
    if (column->bucket_order < 1 || column->bucket_order > PGIO_MAX_ORDER || column->slot_order < 1 ||
        column->slot_order > PGIO_MAX_ORDER)
        return pgio_fail(error, EINVAL, "column %u: orders %u and %u are not in 1 to %d", index, column->bucket_order,
                         column->slot_order, PGIO_MAX_ORDER);
    if (column->modulus < 1 || column->modulus >> 62 || column->slot_count < 1)
        return pgio_fail(error, EINVAL,
                         "column %u: %" PRIu64 " buckets of %u slots; both are at least 1, buckets below 2^62", index,
                         column->modulus, column->slot_count);
    uint64_t end;
    if (pgio_multiply_overflows(column->modulus - 1, column->row_stride, &end) ||
        pgio_add_overflows(end, column->row_base, &end) || pgio_add_overflows(end, column->slot_count, &end) ||
        end >> 62)
        return pgio_fail(error, EOVERFLOW, "column %u: its rows reach 2^62", index);
    return 0;
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
        lane[BUCKET_ORDER * n] = column->bucket_order - 1;
        lane[BUCKET_FOLD * n] = fold_factor(column->modulus);
        lane[MODULUS * n] = column->modulus;
        lane[MODULUS_INVERSE * n] = inverse_bits(column->modulus);
        lane[SLOT_SALT * n] = column->slot_salt;
        lane[SLOT_ORDER * n] = column->slot_order - 1;
        lane[SLOT_FOLD * n] = fold_factor(column->slot_count);
        lane[SLOT_COUNT * n] = column->slot_count;
        lane[SLOT_INVERSE * n] = inverse_bits(column->slot_count);
        lane[ROW_BASE * n] = column->row_base;
        lane[ROW_STRIDE * n] = column->row_stride;
    }
}

int pgio_columns_check(const pgio_column *columns, uint32_t column_count, pgio_error *error)
{
    if (column_count < 1 || column_count > PGIO_MAX_COLUMNS)
        return pgio_fail(error, EINVAL, "%u columns; a layout has 1 to %d", column_count, PGIO_MAX_COLUMNS);
    int status = 0;
    for (uint32_t c = 0; c < column_count && !status; c++)
        status = check_column(&columns[c], c, error);
    return status;
}

int pgio_rows_new(pgio_rows **out, const pgio_column *columns, uint32_t column_count, uint32_t isa, pgio_error *error)
{
    *out = NULL;
    int status = pgio_columns_check(columns, column_count, error);
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
        rows->bucket_divisors = calloc(column_count, sizeof *rows->bucket_divisors);
        rows->slot_divisors = calloc(column_count, sizeof *rows->slot_divisors);
        rows->lanes = calloc((size_t)lane_count * LANE_FIELDS, sizeof *rows->lanes);
    }
    if (!rows || !rows->columns || !rows->bucket_divisors || !rows->slot_divisors || !rows->lanes) {
        pgio_rows_free(rows);
        return pgio_fail(error, ENOMEM, "no memory for %u columns", column_count);
    }
    rows->column_count = column_count;
    rows->lane_count = lane_count;
    rows->isa = isa == PGIO_ISA_AVX512 && wide ? isa : PGIO_ISA_PORTABLE;
    memcpy(rows->columns, columns, column_count * sizeof *columns);
    for (uint32_t c = 0; c < column_count; c++) {
        const pgio_column *column = &columns[c];
        rows->bucket_divisors[c] = pgio_divisor_of(column->modulus);
        rows->slot_divisors[c] = pgio_divisor_of(column->slot_count);
        rows->any_slot = rows->any_slot || column->slot_count > 1;
        uint32_t order = column->bucket_order > column->slot_order || column->slot_count == 1 ? column->bucket_order
                                                                                              : column->slot_order;
        rows->order_count = order > rows->order_count ? order : rows->order_count;
    }
    compile_lanes(rows);
    *out = rows;
    return 0;
}

void pgio_rows_free(pgio_rows *rows)
{
    if (!rows)
        return;
    free(rows->columns);
    free(rows->bucket_divisors);
    free(rows->slot_divisors);
    free(rows->lanes);
    free(rows);
}

/* A column at a time, down the block: its constants stay in registers. */
static void emit_portable(const pgio_rows *rows, const uint64_t *hashes, uint64_t count, uint64_t *out)
{
    uint32_t stride = rows->column_count;
    for (uint32_t c = 0; c < stride; c++) {
        const pgio_column column = rows->columns[c];
        const pgio_divisor buckets = rows->bucket_divisors[c], slots = rows->slot_divisors[c];
        const uint64_t *of_bucket = hashes + (column.bucket_order - 1) * BLOCK;
        const uint64_t *of_slot = hashes + (column.slot_order - 1) * BLOCK;
        uint64_t *to = out + c;
        if (column.slot_count == 1 && column.row_stride == 1) {
            for (uint64_t t = 0; t < count; t++, to += stride) {
                uint64_t u = pgio_mix_inline(of_bucket[t] ^ column.bucket_salt) >> 1;
                *to = column.row_base + pgio_remainder(u, buckets);
            }
            continue;
        }
        if (column.slot_count == 1) {
            for (uint64_t t = 0; t < count; t++, to += stride) {
                uint64_t u = pgio_mix_inline(of_bucket[t] ^ column.bucket_salt) >> 1;
                *to = column.row_base + pgio_remainder(u, buckets) * column.row_stride;
            }
            continue;
        }
        for (uint64_t t = 0; t < count; t++, to += stride) {
            uint64_t u = pgio_mix_inline(of_bucket[t] ^ column.bucket_salt) >> 1;
            uint64_t slot = pgio_mix_inline(of_slot[t] ^ column.slot_salt) >> 1;
            *to = column.row_base + pgio_remainder(u, buckets) * column.row_stride + pgio_remainder(slot, slots);
        }
    }
}

#if PGIO_X86
#define WIDE __attribute__((target("avx512f,avx512dq,avx512vl"))) static inline

WIDE __m512i wide_hash(__m512i g, __m512i salt)
{
    __m512i z = _mm512_xor_si512(g, salt);
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 30));
    z = _mm512_mullo_epi64(z, _mm512_set1_epi64((long long)0xBF58476D1CE4E5B9u));
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 27));
    z = _mm512_mullo_epi64(z, _mm512_set1_epi64((long long)0x94D049BB133111EBu));
    z = _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
    return _mm512_srli_epi64(z, 1);
}

/* u mod modulus, exactly. v = (u >> 32) * fold + low 32 bits is congruent to u and either below 2^52
 * or (modulus >= 2^20) u itself, so that the quotient is below 2^43 and a double gets it right to one
 * unit; the remainder in wrapping integers then shows which way to correct. */
WIDE __m512i wide_remainder(__m512i u, __m512i fold, __m512i modulus, __m512d inverse)
{
    __m512i low = _mm512_and_si512(u, _mm512_set1_epi64(0xFFFFFFFF));
    __m512i v = _mm512_add_epi64(_mm512_mullo_epi64(_mm512_srli_epi64(u, 32), fold), low);
    __m512i quotient = _mm512_cvttpd_epi64(_mm512_mul_pd(_mm512_cvtepi64_pd(v), inverse));
    __m512i r = _mm512_sub_epi64(v, _mm512_mullo_epi64(quotient, modulus));
    r = _mm512_mask_add_epi64(r, _mm512_movepi64_mask(r), r, modulus);
    return _mm512_mask_sub_epi64(r, _mm512_cmpge_epi64_mask(r, modulus), r, modulus);
}

WIDE __m512i lane_load(const uint64_t *lanes, uint32_t lane_count, uint32_t field, uint32_t first)
{
    return _mm512_loadu_si512(lanes + field * lane_count + first);
}

WIDE void emit_lanes(const pgio_rows *rows, const uint64_t *hashes, uint64_t count, uint32_t first, bool any_slot,
                     uint64_t *out)
{
    const uint64_t *lanes = rows->lanes;
    uint32_t n = rows->lane_count, stride = rows->column_count;
    uint32_t used = stride - first < LANES ? stride - first : LANES;
    __mmask8 mask = (__mmask8)((1u << used) - 1);
    __m512i bucket_salt = lane_load(lanes, n, BUCKET_SALT, first), slot_salt = lane_load(lanes, n, SLOT_SALT, first);
    __m512i bucket_fold = lane_load(lanes, n, BUCKET_FOLD, first), slot_fold = lane_load(lanes, n, SLOT_FOLD, first);
    __m512i modulus = lane_load(lanes, n, MODULUS, first), slot_count = lane_load(lanes, n, SLOT_COUNT, first);
    __m512d modulus_inverse = _mm512_castsi512_pd(lane_load(lanes, n, MODULUS_INVERSE, first));
    __m512d slot_inverse = _mm512_castsi512_pd(lane_load(lanes, n, SLOT_INVERSE, first));
    __m512i base = lane_load(lanes, n, ROW_BASE, first), row_stride = lane_load(lanes, n, ROW_STRIDE, first);
    /* Lane c reads the hash of its own order: hashes[order * BLOCK + t]. */
    const __m512i block = _mm512_set1_epi64(BLOCK);
    __m512i bucket_at = _mm512_mullo_epi64(lane_load(lanes, n, BUCKET_ORDER, first), block);
    __m512i slot_at = _mm512_mullo_epi64(lane_load(lanes, n, SLOT_ORDER, first), block);
    for (uint64_t t = 0; t < count; t++, out += stride) {
        __m512i u = wide_hash(_mm512_i64gather_epi64(bucket_at, (const long long *)hashes + t, 8), bucket_salt);
        __m512i row = _mm512_mullo_epi64(wide_remainder(u, bucket_fold, modulus, modulus_inverse), row_stride);
        if (any_slot) {
            u = wide_hash(_mm512_i64gather_epi64(slot_at, (const long long *)hashes + t, 8), slot_salt);
            row = _mm512_add_epi64(row, wide_remainder(u, slot_fold, slot_count, slot_inverse));
        }
        _mm512_mask_storeu_epi64(out + first, mask, _mm512_add_epi64(row, base));
    }
}

__attribute__((target("avx512f,avx512dq,avx512vl"))) static void
emit_avx512(const pgio_rows *rows, const uint64_t *hashes, uint64_t count, uint64_t *out)
{
    for (uint32_t first = 0; first < rows->column_count; first += LANES) {
        if (rows->any_slot)
            emit_lanes(rows, hashes, count, first, true, out);
        else
            emit_lanes(rows, hashes, count, first, false, out);
    }
}
#endif

int64_t pgio_rows_emit(const pgio_rows *rows, const pgio_tokens *tokens, uint64_t begin, uint64_t end,
                       uint64_t *rows_out, pgio_error *error)
{
    int status = pgio_tokens_check(tokens, begin, end, error);
    if (status)
        return status;
    uint64_t hashes[PGIO_MAX_ORDER * BLOCK];
    pgio_document document = pgio_document_of(tokens, begin);
    for (uint64_t at = begin; at < end; at += BLOCK) {
        uint64_t n = end - at < BLOCK ? end - at : BLOCK;
        pgio_hash_block(tokens, at, n, rows->order_count, &document, hashes, BLOCK, rows->isa);
        uint64_t *out = rows_out + (at - begin) * rows->column_count;
#if PGIO_X86
        if (rows->isa == PGIO_ISA_AVX512) {
            emit_avx512(rows, hashes, n, out);
            continue;
        }
#endif
        emit_portable(rows, hashes, n, out);
    }
    return (int64_t)(end - begin);
}
