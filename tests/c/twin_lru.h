/* twin_lru.h: a stack of pages, the most recent first: the slow and obvious twin of lru.c and curve.c. */
#ifndef TWIN_LRU_H
#define TWIN_LRU_H

#include <stdint.h>
#include <string.h>

#define TWIN_PAGES 64

typedef struct twin_stack {
    uint32_t pages[TWIN_PAGES];
    uint32_t count;
} twin_stack;

/* Distinct pages since the last access to this one, itself included; 0 for a first access. */
static inline uint32_t twin_access(twin_stack *stack, uint32_t page)
{
    uint32_t at = 0;
    while (at < stack->count && stack->pages[at] != page)
        at++;
    uint32_t distance = at < stack->count ? at + 1 : 0;
    stack->count += distance == 0;
    memmove(stack->pages + 1, stack->pages, at * sizeof *stack->pages);
    stack->pages[0] = page;
    return distance;
}

#endif
