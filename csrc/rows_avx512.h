/* rows_avx512.h: eight columns of one token at a time; a part of rows.c, which defines what is used here. */
#ifndef PGIO_ROWS_AVX512_H
#define PGIO_ROWS_AVX512_H

#define LANES_WORTH 4 /* fewer columns are done sooner one by one */

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

/* Line values of eight columns at one token: one number for all where they read the same line. */
WIDE __m512i lane_line(const uint64_t *lines, __m512i at, const uint64_t *only, uint64_t t)
{
    return only ? _mm512_set1_epi64((long long)only[t]) : _mm512_i64gather_epi64(at, (const long long *)lines + t, 8);
}

WIDE void emit_lanes(const pgio_rows *rows, const uint64_t *lines, uint64_t count, uint32_t first, uint32_t kind,
                     uint32_t order, uint64_t *out)
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
    __m512i bucket_at = lane_load(lanes, n, BUCKET_AT, first), slot_at = lane_load(lanes, n, SLOT_AT, first);
    const uint64_t *line = lines + lanes[BUCKET_AT * n + first], *only = line;
    for (uint32_t c = 1; c < LANES; c++)
        only = lanes[BUCKET_AT * n + first + c] == lanes[BUCKET_AT * n + first] ? only : NULL;
    for (uint64_t t = 0; t < count; t++, out += stride) {
        __m512i u;
        if (kind == KIND_SUM) {
            u = _mm512_setzero_si512();
            for (uint32_t back = 0; back < order; back++) {
                __m512i value = lane_line(lines + back * BLOCK, bucket_at, only ? only + back * BLOCK : NULL, t);
                u = _mm512_add_epi64(u, _mm512_mullo_epi64(value, lane_load(lanes, n, MULTIPLIERS + back, first)));
            }
        } else {
            u = lane_line(lines, bucket_at, only, t);
        }
        __m512i hash = kind == KIND_FINISH || kind == KIND_SLOT ? wide_hash(u, bucket_salt) : u;
        __m512i bucket = wide_remainder(hash, bucket_fold, modulus, modulus_inverse);
        if (kind == KIND_WHOLE)
            bucket = _mm512_mask_mov_epi64(bucket, _mm512_cmpeq_epi64_mask(u, _mm512_set1_epi64(-1)), modulus);
        __m512i row = _mm512_mullo_epi64(bucket, row_stride);
        if (kind == KIND_SLOT) {
            u = wide_hash(_mm512_i64gather_epi64(slot_at, (const long long *)lines + t, 8), slot_salt);
            row = _mm512_add_epi64(row, wide_remainder(u, slot_fold, slot_count, slot_inverse));
        }
        _mm512_mask_storeu_epi64(out + first, mask, _mm512_add_epi64(row, base));
    }
}

/* The kind that computes all eight lanes; sums must be of one order, and a slot that is no choice is slot 0 of 1. */
static uint32_t lanes_kind(const pgio_rows *rows, uint32_t first, uint32_t end, uint32_t *order)
{
    uint32_t kind = rows->kinds[first];
    *order = rows->set.hashes[rows->columns[first].bucket_hash].order;
    for (uint32_t c = first + 1; c < end; c++) {
        uint32_t other = rows->kinds[c];
        bool both_finish = kind <= KIND_SLOT && other <= KIND_SLOT;
        bool both_plain = kind >= KIND_PLAIN && kind <= KIND_WHOLE && other >= KIND_PLAIN && other <= KIND_WHOLE;
        if (kind == KIND_SUM && rows->set.hashes[rows->columns[c].bucket_hash].order != *order)
            return KIND_MIXED;
        if (kind != other && !both_finish && !both_plain)
            return KIND_MIXED;
        kind = other > kind ? other : kind;
    }
    return kind;
}

__attribute__((target("avx512f,avx512dq,avx512vl"))) static void
emit_avx512(const pgio_rows *rows, const uint64_t *lines, uint64_t count, uint64_t *out)
{
    for (uint32_t first = 0; first < rows->column_count; first += LANES) {
        uint32_t end = rows->column_count - first < LANES ? rows->column_count : first + LANES, order = 0;
        uint32_t kind = end - first < LANES_WORTH ? KIND_MIXED : lanes_kind(rows, first, end, &order);
        switch (kind) {
        case KIND_FINISH:
            emit_lanes(rows, lines, count, first, KIND_FINISH, 0, out);
            break;
        case KIND_SLOT:
            emit_lanes(rows, lines, count, first, KIND_SLOT, 0, out);
            break;
        case KIND_PLAIN:
            emit_lanes(rows, lines, count, first, KIND_PLAIN, 0, out);
            break;
        case KIND_WHOLE:
            emit_lanes(rows, lines, count, first, KIND_WHOLE, 0, out);
            break;
        case KIND_SUM:
            emit_lanes(rows, lines, count, first, KIND_SUM, order, out);
            break;
        default:
            emit_portable(rows, lines, count, first, end, out);
        }
    }
}

#endif
