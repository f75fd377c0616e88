/* CRC-32C: published vectors, and the table against the CPU's instruction against the definition, bit by bit.
 *
 * The file under test is included a second time under other names, to reach both of its ways. */
#define pgio_crc32c       again_crc32c
#define pgio_pages_seal   again_pages_seal
#define pgio_page_sound   again_page_sound
#define pgio_pages_verify again_pages_verify
#define pgio_pages_fill   again_pages_fill
#define pgio_pages_crc32c again_pages_crc32c
#include "../../csrc/crc32c.c"
#undef pgio_crc32c
#undef pgio_pages_seal
#undef pgio_page_sound
#undef pgio_pages_verify
#undef pgio_pages_fill
#undef pgio_pages_crc32c

#include "check.h"

extern uint32_t pgio_crc32c(const void *bytes, uint64_t count);
extern int64_t pgio_pages_seal(void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes);
extern int64_t pgio_pages_verify(const void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes,
                                 uint8_t *sound);
extern void pgio_pages_crc32c(const void *memory, uint64_t count, uint64_t page_bytes, uint32_t *crcs);
extern void pgio_pages_fill(void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes, uint64_t seed);

static uint32_t by_definition(const uint8_t *bytes, uint64_t count)
{
    uint32_t crc = ~(uint32_t)0;
    for (uint64_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static int check_bytes(const uint8_t *bytes, uint64_t count)
{
    uint32_t crc = by_definition(bytes, count);
    CHECK(crc_portable(bytes, count) == crc);
    CHECK(pgio_crc32c(bytes, count) == crc);
#if PGIO_X86
    if (__builtin_cpu_supports("sse4.2"))
        CHECK(crc_sse42(bytes, count) == crc);
#endif
    return 0;
}

static int check_vectors(void)
{
    uint8_t bytes[32] = {0};
    CHECK(pgio_crc32c("123456789", 9) == 0xE3069283); /* the check value of the catalogue */
    CHECK(pgio_crc32c("", 0) == 0);
    CHECK(pgio_crc32c(bytes, 32) == 0x8A9136AA); /* RFC 3720, B.4: zeros, ones, rising, falling */
    memset(bytes, 0xFF, sizeof bytes);
    CHECK(pgio_crc32c(bytes, 32) == 0x62A8AB43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    CHECK(pgio_crc32c(bytes, 32) == 0x46DD794E);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)(31 - i);
    CHECK(pgio_crc32c(bytes, 32) == 0x113FDB5C);
    return 0;
}

static int check_pages(uint64_t page_bytes)
{
    const uint64_t count = 5, first = 0xFFFFFFFE; /* numbers that pass 2^32 on the way */
    uint8_t *memory = malloc(count * page_bytes), sound[5];
    CHECK(memory);
    pgio_pages_fill(memory, first, count, page_bytes, 7);
    CHECK(pgio_pages_verify(memory, first, count, page_bytes, sound) == 0);
    for (uint64_t bit = 0; bit < 8 * page_bytes; bit += 37) { /* any one bit is noticed, in its page alone */
        memory[2 * page_bytes + bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(pgio_pages_verify(memory, first, count, page_bytes, sound) == 1);
        CHECK(sound[1] && !sound[2] && sound[3]);
        memory[2 * page_bytes + bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(pgio_pages_verify(memory, first + 1, count, page_bytes, sound) == (int64_t)count);
    memset(memory, 0, count * page_bytes);
    CHECK(pgio_pages_verify(memory, 0, count, page_bytes, sound) == (int64_t)count); /* zeros are no page */
    CHECK(pgio_pages_seal(memory, 3, count, page_bytes) == (int64_t)count);
    CHECK(pgio_pages_verify(memory, 3, count, page_bytes, sound) == 0);
    uint32_t crcs[5];
    pgio_pages_crc32c(memory, count, page_bytes, crcs);
    for (uint64_t i = 0; i < count; i++)
        CHECK(crcs[i] == by_definition(memory + i * page_bytes, page_bytes));
    free(memory);
    return 0;
}

int main(void)
{
    CHECK(check_vectors() == 0);
    uint8_t bytes[300];
    uint64_t state = 1;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(state = pgio_mix_inline(state + PGIO_GAMMA));
    for (uint64_t start = 0; start < 9; start++)
        for (uint64_t count = 0; count + start <= sizeof bytes; count++)
            CHECK(check_bytes(bytes + start, count) == 0);
    CHECK(check_pages(512) == 0);
    CHECK(check_pages(4096) == 0);
    return 0;
}
