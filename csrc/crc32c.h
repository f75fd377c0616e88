/* crc32c.h: the checksum of pages. */
#ifndef PGIO_CRC32C_H
#define PGIO_CRC32C_H

#include "internal.h"

/* Does the page hold its own number and checksum? */
bool pgio_page_sound(const uint8_t *page, uint64_t number, uint64_t page_bytes);

#endif
