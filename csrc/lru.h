/* lru.h: what page_cache.c needs of lru.c beyond pgio.h: the same decisions, and whom a miss drives out. */
#ifndef PGIO_LRU_H
#define PGIO_LRU_H

#include "internal.h"

/* One cache of `capacity` pages, at least 1, that can name its victims. What was driven out is forgotten, so
 * that memory goes with the capacity; PGIO_FIRST_ACCESS says nothing here. */
int pgio_lru_new_naming(pgio_lru **out, uint64_t page_count, uint64_t capacity, uint32_t column_count,
                        pgio_error *error);
/* pgio_lru_access; victims: like missed, the page that each miss drove out, PGIO_NO_PAGE where none. */
int64_t pgio_lru_access_naming(pgio_lru *lru, const uint32_t *pages, uint64_t token_count, uint8_t *missed,
                               uint32_t *victims, pgio_error *error);
/* Takes a page out, if it is in: what should have been read could not be. Returns whether it was. */
bool pgio_lru_forget(pgio_lru *lru, uint32_t page);

#endif
