/* curve_avx2.h: the curve's counters, eight or sixteen at a time. Included after curve_portable.h. */

#define TARGET_AVX2 __attribute__((target("avx2,popcnt,bmi")))

typedef struct olds_avx2 {
    __m256i part[8];
} olds_avx2;

TARGET_AVX2 static inline uint32_t older_avx2(const olds_avx2 *olds, uint32_t old, uint32_t j)
{
    __m256i limit = _mm256_set1_epi32((int)old);
    uint64_t mask = 0;
    for (int i = 0; i < 8; i++)
        mask |= (uint64_t)(uint8_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, olds->part[i])))
                << (8 * i);
    return (uint32_t)__builtin_popcountll(mask & (((uint64_t)1 << j) - 1));
}

/* Sum of the first `before` of 32 counters, spread over the lanes of the result. */
TARGET_AVX2 static inline __m256i sum16_avx2(const uint16_t *counts, uint32_t before)
{
    const __m256i low = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i limit = _mm256_set1_epi16((short)before);
    __m256i a =
        _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)counts), _mm256_cmpgt_epi16(limit, low));
    __m256i b = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(counts + 16)),
                                 _mm256_cmpgt_epi16(limit, _mm256_add_epi16(low, _mm256_set1_epi16(16))));
    return _mm256_add_epi32(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones));
}

TARGET_AVX2 static inline __m256i sum32_avx2(const uint32_t *counts, uint32_t before)
{
    const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i used = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)before), low);
    return _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)counts), used);
}

TARGET_AVX2 static inline uint32_t rank_avx2(const pgio_curve *curve, uint32_t position)
{
    __m256i sum = sum16_avx2(curve->blocks + ((position >> 14) << 5), (position >> 9) & 31);
    sum = _mm256_add_epi32(sum, sum16_avx2(curve->level14 + ((position >> 19) << 5), (position >> 14) & 31));
    const uint32_t *level19 = curve->level19 + ((position >> 23) << 4);
    uint32_t before = (position >> 19) & 15;
    sum = _mm256_add_epi32(sum, sum32_avx2(level19, before));
    sum = _mm256_add_epi32(sum, sum32_avx2(level19 + 8, before < 8 ? 0 : before - 8));
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    uint64_t below = curve->positions.live[position >> 6] & (((uint64_t)1 << (position & 63)) - 1);
    return (uint32_t)_mm_cvtsi128_si32(half) + curve->within[position >> 6] + curve->before23[position >> 23] +
           (uint32_t)__builtin_popcountll(below);
}

#define KERNEL(name)                name##_avx2_copy
#define TARGET                      TARGET_AVX2
#define OLDS                        olds_avx2
#define LOAD_OLDS(into, olds)       memcpy(&(into), olds, sizeof(into))
#define OLDER(loaded, olds, old, j) older_avx2(&(loaded), old, j)
#define RANK(curve, position)       rank_avx2(curve, position)
#define REMOVE(curve, position)     remove_portable(curve, position)
#define ADD(curve, position, live)  (add_within(curve, position, live), add_counts(curve, position, live))
#define PREFETCH_WITHIN(curve, old) __builtin_prefetch(&(curve)->within[(old) >> 6], 1)
#include "curve_kernel.h"
