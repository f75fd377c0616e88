/* nf4.c: rows of floats <-> rows of four-bit codes with one FP16 scale (docs/formats.md, Rows).
 *
 * A row is width / 2 bytes of codes, low nibble first, then its scale. A code names one of sixteen levels,
 * the quantiles of a normal distribution that QLoRA chose; the value is level * scale, one FP32 product.
 * Decoding multiplies the sixteen levels by the scale once a row, so that each value is a look-up: all of them
 * lie in one AVX-512 register, or in two of AVX2, and the rest is as fast as memory can be written. Encoding
 * searches the fifteen midpoints in four steps. Every operation is one that IEEE 754 rounds in one way only, and
 * no result that matters is a subnormal FP32: every way of computing gives the same bits, even in a process that
 * flushes subnormals to zero. */
#include <inttypes.h>

#include "internal.h"

#define MAX_WIDTH     (1u << 20)
#define INFINITY_BITS 0x7F800000u
#define TINIEST_BITS  0x33800000u /* 2^-24, the least FP16 above 0 */
#define LARGEST_BITS  0x477FE000u /* 65504, the greatest */
#define NORMAL_BITS   0x38800000u /* 2^-14: FP16 below it are multiples of 2^-24 */
#define ZERO_CODE     7           /* the level 0 */

static const float levels[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

#define MIDPOINT(code) ((levels[code] + levels[(code) + 1]) / 2) /* FP32; halving is exact */

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float pgio_half_to_float(uint32_t half)
{
    uint32_t sign = (half & 0x8000) << 16, magnitude = half & 0x7FFF;
    if (magnitude < 0x0400) /* subnormal or zero */
        return bits_float(sign | float_bits((float)magnitude * 0x1p-24f));
    uint32_t rebias = magnitude < 0x7C00 ? 112u << 23 : 224u << 23;
    return bits_float(sign | ((magnitude << 13) + rebias));
}

/* The FP16 nearest to a float from 2^-24 to 65504 (its bits); a tie takes the even one. */
static uint32_t float_to_half(uint32_t bits)
{
    assert(bits >= TINIEST_BITS && bits <= LARGEST_BITS);
    /* A multiple of 2^-24, or of 1/1024 of its power of two: so many of the significand's low bits go. */
    uint32_t shift = 13, value = bits - (112u << 23);
    if (bits < NORMAL_BITS) {
        shift = 126 - (bits >> 23); /* 14 just below 2^-14, 23 at 2^-24 */
        value = (bits & 0x7FFFFF) | 0x800000;
    }
    return (value + (1u << (shift - 1)) - 1 + (value >> shift & 1)) >> shift;
}

static float scale_of(const uint8_t *row, uint32_t width)
{
    const uint8_t *bytes = row + width / 2;
    return pgio_half_to_float((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8);
}

/* ---- decode -------------------------------------------------------------------------------- */

/* Values begin and up; begin is even. */
static void decode_portable(const uint8_t *row, uint32_t begin, uint32_t width, float *values)
{
    float scale = scale_of(row, width), scaled[16];
    for (int code = 0; code < 16; code++)
        scaled[code] = levels[code] * scale;
    for (uint32_t i = begin; i < width; i += 2) {
        values[i] = scaled[row[i / 2] & 15];
        values[i + 1] = scaled[row[i / 2] >> 4];
    }
}

#if PGIO_X86
#define TARGET_AVX2   __attribute__((target("avx2")))
#define TARGET_AVX512 __attribute__((target("avx512f")))

/* A load and a broadcast become one instruction; through a general register they take four, and set the pace. */
TARGET_AVX2 static inline __m128i four_bytes(const uint8_t *bytes)
{
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm_cvtsi32_si128(word);
}

/* Four bytes in every lane, each shifted down to its own code: a permutation looks at the low bits alone, so
 * that what lies above them need not be cleared. Returns how many values were decoded. */
TARGET_AVX2 static uint32_t decode_avx2(const uint8_t *row, uint32_t width, float *values)
{
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    __m256 scale = _mm256_set1_ps(scale_of(row, width));
    __m256 low = _mm256_mul_ps(_mm256_loadu_ps(levels), scale);
    __m256 high = _mm256_mul_ps(_mm256_loadu_ps(levels + 8), scale);
    uint32_t i = 0;
    for (; i + 8 <= width; i += 8) {
        __m256i codes = _mm256_srlv_epi32(_mm256_broadcastd_epi32(four_bytes(row + i / 2)), shifts);
        __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)); /* bit 3 of a code as the sign */
        _mm256_storeu_ps(values + i, _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, codes),
                                                      _mm256_permutevar8x32_ps(high, codes), upper));
    }
    return i;
}

TARGET_AVX512 static uint32_t decode_avx512(const uint8_t *row, uint32_t width, float *values)
{
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    int16_t half;
    memcpy(&half, row + width / 2, sizeof half);
    __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(levels), _mm512_cvtph_ps(_mm256_set1_epi16(half)));
    uint32_t i = 0;
    for (; i + 16 <= width; i += 16) {
        __m512i both = _mm512_broadcastd_epi32(four_bytes(row + i / 2));
        both = _mm512_mask_broadcastd_epi32(both, 0xFF00, four_bytes(row + i / 2 + 4));
        _mm512_storeu_ps(values + i, _mm512_permutexvar_ps(_mm512_srlv_epi32(both, shifts), scaled));
    }
    return i;
}
#endif

void pgio_nf4_decode_row(const uint8_t *row, uint32_t width, float *values, uint32_t isa)
{
    uint32_t done = 0;
#if PGIO_X86
    if (isa == PGIO_ISA_AVX512)
        done = decode_avx512(row, width, values);
    else if (isa == PGIO_ISA_AVX2)
        done = decode_avx2(row, width, values);
#endif
    (void)isa;
    if (done < width)
        decode_portable(row, done, width, values);
}

/* ---- encode -------------------------------------------------------------------------------- */

static bool all_finite(const float *values, uint32_t width)
{
    uint32_t bad = 0;
    for (uint32_t i = 0; i < width; i++)
        bad |= (float_bits(values[i]) & INFINITY_BITS) == INFINITY_BITS;
    return !bad;
}

/* Non-negative floats are ordered as their bits are. */
static uint32_t absmax_bits(const float *values, uint32_t width)
{
    int32_t most = 0;
    for (uint32_t i = 0; i < width; i++) {
        int32_t bits = (int32_t)(float_bits(values[i]) & 0x7FFFFFFF);
        most = bits > most ? bits : most;
    }
    return (uint32_t)most;
}

/* The code of w is the number of midpoints below w / scale. */
static void codes_portable(const float *values, uint32_t begin, uint32_t width, float scale, uint8_t *row)
{
    for (uint32_t i = begin; i < width; i += 2) {
        float a = values[i] / scale, b = values[i + 1] / scale;
        uint32_t code_a = 0, code_b = 0;
        for (int code = 0; code < 15; code++) {
            code_a += a > MIDPOINT(code);
            code_b += b > MIDPOINT(code);
        }
        row[i / 2] = (uint8_t)(code_a | code_b << 4);
    }
}

#if PGIO_X86
/* One more bit of each code: is x above the midpoint that the bits so far lead to? */
TARGET_AVX2 static inline __m256i search_avx2(__m256 x, __m256i codes, __m256 midpoints)
{
    __m256 midpoint = _mm256_permutevar8x32_ps(midpoints, codes);
    __m256i above = _mm256_castps_si256(_mm256_cmp_ps(x, midpoint, _CMP_GT_OQ)); /* -1 where it is */
    return _mm256_sub_epi32(_mm256_add_epi32(codes, codes), above);
}

/* A CPU with AVX-512 encodes with this too: the division bounds it. Returns how many values were encoded. */
TARGET_AVX2 static uint32_t codes_avx2(const float *values, uint32_t width, float scale, uint8_t *row)
{
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256 first = _mm256_set1_ps(MIDPOINT(7));
    const __m256 second = _mm256_setr_ps(MIDPOINT(3), MIDPOINT(11), 0, 0, 0, 0, 0, 0);
    const __m256 third = _mm256_setr_ps(MIDPOINT(1), MIDPOINT(5), MIDPOINT(9), MIDPOINT(13), 0, 0, 0, 0);
    const __m256 fourth = _mm256_setr_ps(MIDPOINT(0), MIDPOINT(2), MIDPOINT(4), MIDPOINT(6), MIDPOINT(8), MIDPOINT(10),
                                         MIDPOINT(12), MIDPOINT(14));
    uint32_t i = 0;
    for (; i + 8 <= width; i += 8) {
        __m256 x = _mm256_div_ps(_mm256_loadu_ps(values + i), _mm256_set1_ps(scale));
        __m256i codes = search_avx2(x, _mm256_setzero_si256(), first);
        codes = search_avx2(x, codes, second);
        codes = search_avx2(x, codes, third);
        codes = _mm256_sllv_epi32(search_avx2(x, codes, fourth), shifts);
        __m128i half = _mm_or_si128(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
        uint64_t quarter = (uint64_t)_mm_cvtsi128_si64(_mm_or_si128(half, _mm_unpackhi_epi64(half, half)));
        uint32_t word = (uint32_t)(quarter | quarter >> 32);
        memcpy(row + i / 2, &word, sizeof word);
    }
    return i;
}
#endif

static void encode_row(const float *values, uint32_t width, uint8_t *row, uint32_t isa, pgio_nf4_counts *counts)
{
    uint32_t absmax = absmax_bits(values, width), half = 0;
    if (absmax == 0) {
        counts->zero++;
        memset(row, ZERO_CODE | ZERO_CODE << 4, width / 2);
    } else {
        uint32_t scale_bits = absmax < TINIEST_BITS ? TINIEST_BITS : absmax > LARGEST_BITS ? LARGEST_BITS : absmax;
        counts->tiny += absmax < TINIEST_BITS;
        counts->clamped += absmax > LARGEST_BITS;
        half = float_to_half(scale_bits);
        float scale = pgio_half_to_float(half);
        uint32_t done = 0;
#if PGIO_X86
        if (isa >= PGIO_ISA_AVX2)
            done = codes_avx2(values, width, scale, row);
#endif
        (void)isa;
        codes_portable(values, done, width, scale, row);
    }
    row[width / 2] = (uint8_t)half;
    row[width / 2 + 1] = (uint8_t)(half >> 8);
}

static int check(uint64_t row_count, uint32_t width, uint64_t stride_bytes, uint32_t *isa, pgio_error *error)
{
    uint64_t bytes;
    if (width < 2 || width % 2 || width > MAX_WIDTH)
        return pgio_fail(error, EINVAL, "a row of %u values cannot be NF4: an even width of 2 to %u can", width,
                         MAX_WIDTH);
    if (stride_bytes < width / 2 + 2)
        return pgio_fail(error, EINVAL, "rows %" PRIu64 " bytes apart: a row of %u values takes %u bytes", stride_bytes,
                         width, width / 2 + 2);
    if (pgio_multiply_overflows(row_count, stride_bytes, &bytes) || bytes > INT64_MAX ||
        pgio_multiply_overflows(row_count, (uint64_t)width * sizeof(float), &bytes) || bytes > INT64_MAX)
        return pgio_fail(error, EOVERFLOW, "%" PRIu64 " rows of %u values, %" PRIu64 " bytes apart, are too many",
                         row_count, width, stride_bytes);
    return pgio_isa_resolve(*isa, isa, error);
}

int64_t pgio_nf4_encode(const float *values, uint64_t row_count, uint32_t width, uint8_t *rows, uint64_t stride_bytes,
                        uint32_t isa, pgio_nf4_counts *counts, pgio_error *error)
{
    int status = check(row_count, width, stride_bytes, &isa, error);
    if (status)
        return status;
    for (uint64_t i = 0; i < row_count; i++)
        if (!all_finite(values + i * width, width))
            return pgio_fail(error, EINVAL, "row %" PRIu64 " holds a NaN or an infinity, which NF4 cannot store", i);
    pgio_nf4_counts found = {0, 0, 0};
    for (uint64_t i = 0; i < row_count; i++)
        encode_row(values + i * width, width, rows + i * stride_bytes, isa, &found);
    if (counts)
        *counts = found;
    return (int64_t)row_count;
}

int64_t pgio_nf4_decode(const uint8_t *rows, uint64_t row_count, uint32_t width, uint64_t stride_bytes, float *values,
                        uint32_t isa, pgio_error *error)
{
    int status = check(row_count, width, stride_bytes, &isa, error);
    if (status)
        return status;
    for (uint64_t i = 0; i < row_count; i++)
        pgio_nf4_decode_row(rows + i * stride_bytes, width, values + i * width, isa);
    return (int64_t)row_count;
}
