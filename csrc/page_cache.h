/* page_cache.h: frames of memory that hold a table's pages, shared by threads. For table.c and prefetch.c. */
#ifndef PGIO_PAGE_CACHE_H
#define PGIO_PAGE_CACHE_H

#include <pthread.h>

#include "lru.h"

typedef struct pgio_frame {
    uint32_t pins;   /* accesses of batches that have not been released */
    int32_t status;  /* of the read that failed, negative */
    uint32_t page;   /* the one it holds, or is to hold */
    uint8_t state;   /* PGIO_FRAME_ */
    bool driven_out; /* no longer the cache's, but pinned: it becomes free with its last pin */
} pgio_frame;

enum { PGIO_FRAME_LOADING = 1, PGIO_FRAME_READY, PGIO_FRAME_FAILED };

typedef struct pgio_page_cache {
    pthread_mutex_t lock;   /* of everything here, and of table.c's queue */
    pthread_cond_t arrived; /* a page in flight has come, or cannot */
    pthread_cond_t freed;   /* a frame that was driven out while in use is free */
    pgio_lru *lru;
    uint8_t *memory; /* [frame_count, page_bytes] */
    pgio_frame *frames;
    uint32_t *frame_of_page, *free_frames;
    uint64_t page_count, memory_bytes;
    uint32_t page_shift, page_columns;
    uint32_t capacity, spare, frame_count; /* frame_count = capacity + spare */
    uint32_t free_count, driven_out_count, pinned_count, waiting_count;
    bool broken;                              /* an engine failed with reads in flight */
    uint32_t prefetch_places, prefetch_limit; /* accesses that prefetches may keep pinned */
    pgio_table_stats stats;
} pgio_page_cache;

/* Consecutive tokens and the frames of their pages, pinned from take to release. */
typedef struct pgio_batch {
    uint32_t token_capacity, token_count, page_columns;
    bool waits;       /* some page is in flight by somebody, perhaps by this batch itself */
    uint32_t *pages;  /* [token_capacity, page_columns] */
    uint32_t *frames; /* alike; PGIO_NO_PAGE in unused places. While it is taken, the victims */
    uint8_t *missed;
    uint32_t read_count; /* the misses, which whoever took the batch must read: */
    uint64_t *read_pages;
    void **read_places;
    int32_t *read_status;
} pgio_batch;

int pgio_page_cache_init(pgio_page_cache *cache, uint64_t page_count, uint64_t page_bytes, uint64_t cache_bytes,
                         uint32_t page_columns, pgio_error *error);
void pgio_page_cache_free(pgio_page_cache *cache);

int pgio_batch_init(pgio_batch *batch, uint32_t token_capacity, uint32_t page_columns, pgio_error *error);
void pgio_batch_free(pgio_batch *batch);

/* Accesses the first of `token_count` tokens whose pages are in the batch, as many as one batch may, and pins
 * their frames. Returns how many; 0 only where it may not wait and there is no room, or with a negative error. */
int64_t pgio_page_cache_take(pgio_page_cache *cache, pgio_batch *batch, uint32_t token_count, bool may_wait,
                             pgio_error *error);
/* The batch's reads have ended, as read_status says. Pages that could not be read leave the cache. With `lost`,
 * reads that did not end may still write to their frames, which are then never used again. */
void pgio_page_cache_arrive(pgio_page_cache *cache, pgio_batch *batch, bool lost);
/* Waits until every page of the batch has arrived. Returns the first access whose page cannot, or -1. */
int64_t pgio_page_cache_await(pgio_page_cache *cache, const pgio_batch *batch);
/* Unpins; the batch may be taken anew. With the lock held: */
void pgio_page_cache_release_locked(pgio_page_cache *cache, pgio_batch *batch);

static inline uint8_t *pgio_frame_memory(const pgio_page_cache *cache, uint32_t frame)
{
    return cache->memory + ((uint64_t)frame << cache->page_shift);
}

#endif
