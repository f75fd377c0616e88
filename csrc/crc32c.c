/* crc32c.c: CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as iSCSI and ext4 use it.
 *
 * The CPU's own instruction where there is one, eight bytes at a time; elsewhere a table of four bits,
 * small enough to stay in cache beside what it checks. */
#include "crc32c.h"

/* table[i]: the remainder of four bits i. */
static const uint32_t table[16] = {0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1, 0x417B1DBC, 0x5125DAD3,
                                   0x61C69362, 0x7198540D, 0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9,
                                   0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75};

static uint32_t crc_portable(const uint8_t *bytes, uint64_t count)
{
    uint32_t crc = ~(uint32_t)0;
    for (uint64_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#if PGIO_X86
__attribute__((target("sse4.2"))) static uint32_t crc_sse42(const uint8_t *bytes, uint64_t count)
{
    uint64_t crc = ~(uint32_t)0;
    for (; count >= 8; count -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, sizeof word);
        crc = _mm_crc32_u64(crc, word);
    }
    for (; count; count--)
        crc = _mm_crc32_u8((uint32_t)crc, *bytes++);
    return ~(uint32_t)crc;
}
#endif

uint32_t pgio_crc32c(const void *bytes, uint64_t count)
{
#if PGIO_X86
    if (__builtin_cpu_supports("sse4.2"))
        return crc_sse42(bytes, count);
#endif
    return crc_portable(bytes, count);
}

int64_t pgio_pages_seal(void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes)
{
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *page = (uint8_t *)memory + i * page_bytes;
        uint32_t number = (uint32_t)(first_page + i);
        for (int b = 0; b < 4; b++)
            page[page_bytes - 8 + (uint64_t)b] = (uint8_t)(number >> (8 * b));
        uint32_t crc = pgio_crc32c(page, page_bytes - 4);
        for (int b = 0; b < 4; b++)
            page[page_bytes - 4 + (uint64_t)b] = (uint8_t)(crc >> (8 * b));
    }
    return (int64_t)count;
}

static uint32_t load32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

bool pgio_page_sound(const uint8_t *page, uint64_t number, uint64_t page_bytes)
{
    return load32(page + page_bytes - 8) == (uint32_t)number &&
           load32(page + page_bytes - 4) == pgio_crc32c(page, page_bytes - 4);
}

int64_t pgio_pages_verify(const void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes, uint8_t *sound)
{
    int64_t damaged = 0;
    for (uint64_t i = 0; i < count; i++) {
        sound[i] = pgio_page_sound((const uint8_t *)memory + i * page_bytes, first_page + i, page_bytes);
        damaged += !sound[i];
    }
    return damaged;
}

void pgio_pages_crc32c(const void *memory, uint64_t count, uint64_t page_bytes, uint32_t *crcs)
{
    for (uint64_t i = 0; i < count; i++)
        crcs[i] = pgio_crc32c((const uint8_t *)memory + i * page_bytes, page_bytes);
}

void pgio_pages_fill(void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes, uint64_t seed)
{
    uint64_t words = page_bytes / sizeof(uint64_t);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t start = pgio_mix_inline(seed * PGIO_GAMMA + first_page + i + 1);
        for (uint64_t w = 0; w < words; w++) {
            uint64_t word = pgio_mix_inline(start + (w + 1) * PGIO_GAMMA);
            memcpy((uint8_t *)memory + i * page_bytes + w * sizeof word, &word, sizeof word);
        }
    }
    (void)pgio_pages_seal(memory, first_page, count, page_bytes);
}
