/* curve_avx512.h: the curve's counters, a whole level in one register. Included after curve_portable.h. */

#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,popcnt,bmi")))

typedef struct olds_avx512 {
    __m512i part[4];
} olds_avx512;

TARGET_AVX512 static inline uint32_t older_avx512(const olds_avx512 *olds, uint32_t old, uint32_t j)
{
    __m512i limit = _mm512_set1_epi32((int)old);
    uint64_t mask = 0;
    for (int i = 0; i < 4; i++)
        mask |= (uint64_t)_mm512_cmplt_epi32_mask(olds->part[i], limit) << (16 * i);
    return (uint32_t)__builtin_popcountll(mask & (((uint64_t)1 << j) - 1));
}

TARGET_AVX512 static inline __m512i sum16_avx512(const uint16_t *counts, uint32_t before)
{
    __mmask32 used = ((__mmask32)1 << before) - 1;
    return _mm512_madd_epi16(_mm512_maskz_loadu_epi16(used, counts), _mm512_set1_epi16(1));
}

TARGET_AVX512 static inline uint32_t rank_avx512(const pgio_curve *curve, uint32_t position)
{
    /* Bits of the 512-position block before `position`: whole words below its word, and part of that. */
    const __m512i word_first = _mm512_setr_epi64(0, 64, 128, 192, 256, 320, 384, 448);
    uint32_t in_block = position & 511;
    __m512i words = _mm512_load_si512(curve->positions.live + ((position >> 9) << 3));
    __m512i above = _mm512_sllv_epi64(_mm512_set1_epi64(-1), _mm512_sub_epi64(_mm512_set1_epi64(in_block), word_first));
    __mmask8 touched = (__mmask8)((2u << (in_block >> 6)) - 1);
    __m512i sum = _mm512_popcnt_epi64(_mm512_maskz_andnot_epi64(touched, above, words));
    sum = _mm512_add_epi32(sum, sum16_avx512(curve->blocks + ((position >> 14) << 5), (position >> 9) & 31));
    sum = _mm512_add_epi32(sum, sum16_avx512(curve->level14 + ((position >> 19) << 5), (position >> 14) & 31));
    __mmask16 used = (__mmask16)((1u << ((position >> 19) & 15)) - 1);
    sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(used, curve->level19 + ((position >> 23) << 4)));
    return (uint32_t)_mm512_reduce_add_epi32(sum) + curve->before23[position >> 23];
}

#define KERNEL(name)                name##_avx512_copy
#define TARGET                      TARGET_AVX512
#define OLDS                        olds_avx512
#define LOAD_OLDS(into, olds)       memcpy(&(into), olds, sizeof(into))
#define OLDER(loaded, olds, old, j) older_avx512(&(loaded), old, j)
#define RANK(curve, position)       rank_avx512(curve, position)
#define REMOVE(curve, position)     clear_live(curve, position)
#define ADD(curve, position, live)  add_counts(curve, position, live)
#define PREFETCH_WITHIN(curve, old) ((void)0)
#include "curve_kernel.h"
