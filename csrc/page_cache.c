/* page_cache.c: pages of a table in frames of memory, exact LRU, shared by threads.
 *
 * Owns what is in memory, who uses it, and what must be read. Which access hits, which misses and what it
 * drives out is decided by lru.c, the simulator itself, under one lock and in the order of the accesses,
 * before anything is read; so reads equal simulated misses to the unit, whatever the reads then do.
 *
 * A batch of no more accesses than the cache has pages never drives out a page of its own, and so never needs
 * one twice. But another batch may drive out what this one still uses, or what a prefetch holds. The decision
 * stands; the frame alone lives on until its last pin goes. For this there are spare frames beside the
 * capacity. A batch that might need more of them than are left is cut, and waits where not even one token
 * fits: only calls that hold no pins wait for a frame, and prefetches may hold fewer pins than there are
 * spare frames, so somebody can always go on. */
#include <inttypes.h>

#include "page_cache.h"

#define FRAME_AHEAD    16 /* accesses between a prefetch and its use */
#define PREFETCH_SHARE 4  /* of the capacity may be pinned by prefetches */

/* ---- making ---- */

int pgio_page_cache_init(pgio_page_cache *cache, uint64_t page_count, uint64_t page_bytes, uint64_t cache_bytes,
                         uint32_t page_columns, pgio_error *error)
{
    uint64_t capacity = cache_bytes / page_bytes;
    if (capacity < page_columns && capacity < page_count)
        return pgio_fail(error, EINVAL,
                         "a cache of %" PRIu64 " bytes holds %" PRIu64 " pages, fewer than the %u that one lookup "
                         "can touch; it needs at least %" PRIu64 " bytes",
                         cache_bytes, capacity, page_columns, page_columns * page_bytes);
    capacity = capacity < page_count ? capacity : page_count; /* more would never be used */
    uint64_t prefetch_limit = capacity / PREFETCH_SHARE > page_columns ? capacity / PREFETCH_SHARE : page_columns;
    uint64_t frame_count = capacity + prefetch_limit + page_columns;
    if (frame_count >= PGIO_NO_PAGE)
        return pgio_fail(error, EOVERFLOW, "a cache of %" PRIu64 " pages; at most 3 billion", capacity);
    cache->page_count = page_count;
    cache->page_columns = page_columns;
    cache->page_shift = (uint32_t)__builtin_ctzll(page_bytes);
    cache->capacity = (uint32_t)capacity;
    cache->prefetch_limit = (uint32_t)prefetch_limit;
    cache->spare = (uint32_t)prefetch_limit + page_columns;
    cache->frame_count = cache->free_count = (uint32_t)frame_count;
    cache->memory_bytes = frame_count << cache->page_shift;
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->arrived, NULL);
    pthread_cond_init(&cache->freed, NULL);
    cache->memory = pgio_zeroed(cache->memory_bytes);
    cache->frames = pgio_zeroed(frame_count * sizeof *cache->frames);
    cache->free_frames = pgio_zeroed(frame_count * sizeof *cache->free_frames);
    cache->frame_of_page = pgio_zeroed(page_count * sizeof *cache->frame_of_page);
    if (!cache->memory || !cache->frames || !cache->free_frames || !cache->frame_of_page)
        return pgio_fail(error, ENOMEM, "no memory for a cache of %" PRIu64 " pages", capacity);
    for (uint32_t i = 0; i < frame_count; i++)
        cache->free_frames[i] = cache->frame_count - 1 - i; /* the first frames first: the rest is rarely touched */
    cache->stats.capacity_pages = capacity;
    return pgio_lru_new_naming(&cache->lru, page_count, capacity, page_columns, error);
}

void pgio_page_cache_free(pgio_page_cache *cache)
{
    if (!cache->frame_count)
        return;
    pgio_lru_free(cache->lru);
    pgio_unmap(cache->memory, cache->memory_bytes);
    pgio_unmap(cache->frames, cache->frame_count * sizeof *cache->frames);
    pgio_unmap(cache->free_frames, cache->frame_count * sizeof *cache->free_frames);
    pgio_unmap(cache->frame_of_page, cache->page_count * sizeof *cache->frame_of_page);
    pthread_cond_destroy(&cache->freed);
    pthread_cond_destroy(&cache->arrived);
    pthread_mutex_destroy(&cache->lock);
}

int pgio_batch_init(pgio_batch *batch, uint32_t token_capacity, uint32_t page_columns, pgio_error *error)
{
    size_t places = (size_t)token_capacity * page_columns;
    *batch = (pgio_batch){.token_capacity = token_capacity, .page_columns = page_columns};
    batch->pages = malloc(places * sizeof *batch->pages);
    batch->frames = malloc(places * sizeof *batch->frames);
    batch->missed = malloc(places);
    batch->read_pages = malloc(places * sizeof *batch->read_pages);
    batch->read_places = malloc(places * sizeof *batch->read_places);
    batch->read_status = malloc(places * sizeof *batch->read_status);
    if (batch->pages && batch->frames && batch->missed && batch->read_pages && batch->read_places && batch->read_status)
        return 0;
    pgio_batch_free(batch);
    return pgio_fail(error, ENOMEM, "no memory for a batch of %u tokens", token_capacity);
}

void pgio_batch_free(pgio_batch *batch)
{
    free(batch->pages);
    free(batch->frames);
    free(batch->missed);
    free(batch->read_pages);
    free(batch->read_places);
    free(batch->read_status);
    *batch = (pgio_batch){0};
}

/* ---- deciding ---- */

/* How many tokens can be accessed now. A batch drives out no page of its own; each page of another's that it
 * drives out while in use takes a spare frame. */
static uint32_t tokens_allowed(const pgio_page_cache *cache, uint32_t wanted)
{
    uint32_t columns = cache->page_columns, most = wanted;
    if (cache->capacity < cache->page_count && most > cache->capacity / columns)
        most = cache->capacity / columns;
    uint32_t left = cache->spare > cache->driven_out_count ? cache->spare - cache->driven_out_count : 0;
    if (cache->pinned_count > cache->spare && most > left / columns)
        most = left / columns;
    return most;
}

static void free_frame(pgio_page_cache *cache, uint32_t frame)
{
    cache->free_frames[cache->free_count++] = frame;
}

static void drive_out(pgio_page_cache *cache, uint32_t page)
{
    uint32_t index = cache->frame_of_page[page];
    pgio_frame *frame = &cache->frames[index];
    assert(frame->page == page && !frame->driven_out);
    if (frame->pins) {
        frame->driven_out = true;
        cache->driven_out_count++;
    } else {
        free_frame(cache, index);
    }
}

static uint32_t take_frame(pgio_page_cache *cache, pgio_batch *batch, uint32_t page, uint32_t victim)
{
    if (victim != PGIO_NO_PAGE) {
        drive_out(cache, victim);
        cache->stats.evictions++;
        cache->stats.resident_pages--;
    }
    assert(cache->free_count > 0);
    uint32_t index = cache->free_frames[--cache->free_count];
    cache->frames[index] = (pgio_frame){.page = page, .state = PGIO_FRAME_LOADING};
    cache->frame_of_page[page] = index;
    cache->stats.resident_pages++;
    batch->read_pages[batch->read_count] = page;
    batch->read_places[batch->read_count++] = pgio_frame_memory(cache, index);
    return index;
}

static void pin_all(pgio_page_cache *cache, pgio_batch *batch, uint64_t places)
{
    for (uint64_t i = 0; i < places; i++) {
        if (i + FRAME_AHEAD < places && batch->pages[i + FRAME_AHEAD] != PGIO_NO_PAGE)
            __builtin_prefetch(&cache->frame_of_page[batch->pages[i + FRAME_AHEAD]], 1);
        uint32_t page = batch->pages[i], victim = batch->frames[i];
        batch->frames[i] = PGIO_NO_PAGE;
        if (page == PGIO_NO_PAGE)
            continue;
        uint32_t index = batch->missed[i] ? take_frame(cache, batch, page, victim) : cache->frame_of_page[page];
        pgio_frame *frame = &cache->frames[index];
        batch->waits |= frame->state == PGIO_FRAME_LOADING;
        cache->pinned_count += frame->pins++ == 0;
        batch->frames[i] = index;
    }
}

int64_t pgio_page_cache_take(pgio_page_cache *cache, pgio_batch *batch, uint32_t token_count, bool may_wait,
                             pgio_error *error)
{
    assert(token_count > 0 && token_count <= batch->token_capacity);
    batch->token_count = batch->read_count = 0;
    batch->waits = false;
    pthread_mutex_lock(&cache->lock);
    uint32_t allowed = tokens_allowed(cache, token_count);
    for (cache->waiting_count++; allowed == 0 && may_wait && !cache->broken;
         allowed = tokens_allowed(cache, token_count))
        pthread_cond_wait(&cache->freed, &cache->lock);
    cache->waiting_count--;
    int64_t accesses = 0;
    if (cache->broken)
        accesses = pgio_fail(error, EIO, "reading failed altogether before; open the table anew");
    else if (allowed)
        accesses = pgio_lru_access_naming(cache->lru, batch->pages, allowed, batch->missed, batch->frames, error);
    if (accesses > 0) {
        pin_all(cache, batch, (uint64_t)allowed * cache->page_columns);
        batch->token_count = allowed;
        cache->stats.accesses += (uint64_t)accesses;
        cache->stats.reads += batch->read_count;
        cache->stats.hits += (uint64_t)accesses - batch->read_count;
    }
    pthread_mutex_unlock(&cache->lock);
    return accesses < 0 ? accesses : allowed;
}

/* ---- arriving ---- */

/* The page leaves the cache, if it has not been driven out meanwhile, so that the next access reads it again. */
static void fail_frame(pgio_page_cache *cache, pgio_frame *frame, int32_t status)
{
    frame->state = PGIO_FRAME_FAILED;
    frame->status = status;
    ++*PGIO_ERROR_COUNTER(&cache->stats, status);
    if (frame->driven_out)
        return;
    bool was_in = pgio_lru_forget(cache->lru, frame->page);
    assert(was_in);
    (void)was_in;
    cache->stats.resident_pages--;
    frame->driven_out = true;
    cache->driven_out_count++;
}

void pgio_page_cache_arrive(pgio_page_cache *cache, pgio_batch *batch, bool lost)
{
    pthread_mutex_lock(&cache->lock);
    for (uint32_t i = 0; i < batch->read_count; i++) {
        uint64_t offset = (uint64_t)((uint8_t *)batch->read_places[i] - cache->memory);
        pgio_frame *frame = &cache->frames[offset >> cache->page_shift];
        int32_t status = batch->read_status[i];
        if (status < 0) {
            fail_frame(cache, frame, status);
            frame->pins += lost;
        } else {
            frame->state = PGIO_FRAME_READY;
            cache->stats.bytes_read += (uint64_t)status;
        }
    }
    if (lost) {
        cache->broken = true;
        pthread_cond_broadcast(&cache->freed);
    }
    pthread_cond_broadcast(&cache->arrived);
    pthread_mutex_unlock(&cache->lock);
}

int64_t pgio_page_cache_await(pgio_page_cache *cache, const pgio_batch *batch)
{
    if (!batch->waits)
        return -1;
    uint64_t places = (uint64_t)batch->token_count * batch->page_columns;
    int64_t failed = -1;
    pthread_mutex_lock(&cache->lock);
    for (uint64_t i = 0; i < places; i++) {
        if (batch->frames[i] == PGIO_NO_PAGE)
            continue;
        const pgio_frame *frame = &cache->frames[batch->frames[i]];
        while (frame->state == PGIO_FRAME_LOADING)
            pthread_cond_wait(&cache->arrived, &cache->lock);
        if (frame->state == PGIO_FRAME_FAILED && failed < 0)
            failed = (int64_t)i;
    }
    pthread_mutex_unlock(&cache->lock);
    return failed;
}

void pgio_page_cache_release_locked(pgio_page_cache *cache, pgio_batch *batch)
{
    uint64_t places = (uint64_t)batch->token_count * batch->page_columns;
    for (uint64_t i = 0; i < places; i++) {
        if (batch->frames[i] == PGIO_NO_PAGE)
            continue;
        pgio_frame *frame = &cache->frames[batch->frames[i]];
        if (--frame->pins)
            continue;
        cache->pinned_count--;
        if (frame->driven_out) {
            frame->driven_out = false;
            cache->driven_out_count--;
            free_frame(cache, batch->frames[i]);
        }
    }
    batch->token_count = 0;
    if (cache->waiting_count)
        pthread_cond_broadcast(&cache->freed);
}
