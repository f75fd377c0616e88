/* curve_kernel.h: the loop of curve.c, included once for each instruction set.
 *
 * The including file defines, for one instruction set:
 *     KERNEL(name)                 the name of this copy of a function
 *     TARGET                       its target attribute
 *     OLDS, LOAD_OLDS(into, olds)  64 previous positions in registers, and their loading
 *     OLDER(loaded, olds, q, j)    how many of the first j are below q
 *     RANK(curve, q)               live positions before q in the frozen state
 *     REMOVE(curve, q)             q is live no longer
 *     ADD(curve, q, n)             n live positions in the word of q
 *     PREFETCH_WITHIN(curve, q)    ask for what RANK will read beside the bitmap
 */

/* Stage one: take each page's previous position, put the new one in its place, and ask for the parts
 * of the tree that stage two will read. */
TARGET static inline void KERNEL(take)(pgio_curve *curve, const uint32_t *pages, uint64_t left, uint32_t start,
                                       uint32_t *olds)
{
    uint32_t *last = curve->positions.last;
    uint32_t count = left < CURVE_BATCH ? (uint32_t)left : CURVE_BATCH;
    for (uint32_t j = 0; j < count; j++) {
        uint32_t old = last[pages[j]];
        last[pages[j]] = start + j;
        olds[j] = old;
        __builtin_prefetch(&curve->positions.live[old >> 6], 1);
        __builtin_prefetch(&curve->blocks[old >> 9], 1);
        PREFETCH_WITHIN(curve, old);
    }
    for (uint32_t j = count; j < CURVE_BATCH; j++)
        olds[j] = INT32_MAX; /* above every position: never counted as older */
}

/* Stage two: distances against the state before the batch, corrected inside it; then all changes at once.
 * An access at q is followed by one more page for each live position after it, and for each earlier
 * access of this batch whose page was last seen before q. */
TARGET static inline void KERNEL(measure)(pgio_curve *curve, const curve_run *all, uint64_t done, uint32_t count,
                                          uint32_t start, const uint32_t *olds, curve_pending *pending)
{
    const uint32_t *classes = all->classes ? all->classes + done : NULL;
    OLDS older;
    LOAD_OLDS(older, olds);
    uint64_t word = count == CURVE_BATCH ? ~(uint64_t)0 : ((uint64_t)1 << count) - 1;
    uint64_t *at = pending->at;
    uint32_t found = 0, cold = 0, live_count = (uint32_t)curve->live_count;
    /* last[] is asked for here, for the batch after the one already taken: between the ranks' arithmetic, where
     * `take` would ask for everything in one burst that the processor cannot keep in flight. */
    const uint32_t *coming = all->pages + done, *last = curve->positions.last;
    uint64_t left = all->count - done;
    for (uint32_t j = 0; j < count; j++) {
        if (j + CURVE_LAST_AHEAD < left)
            __builtin_prefetch(&last[coming[j + CURVE_LAST_AHEAD]], 1);
        uint32_t old = olds[j], distance;
        uint32_t class = classes ? classes[j] : 0;
        if (!old) {
            uint64_t place = all->places ? all->places[done + j] : all->first_place + done + j;
            curve->first_tokens[live_count + cold++] = curve->tokens + place / curve->column_count;
            curve->compulsory[class]++;
            continue;
        }
        uint32_t between = OLDER(older, olds, old, j);
        if (old >= start) {
            word &= ~((uint64_t)1 << (old - start));
            distance = between - (old - start);
        } else {
            distance = between + live_count - RANK(curve, old);
        }
        uint64_t slot = classes ? class * curve->histogram_length + distance : distance;
        at[found++] = slot;
        __builtin_prefetch(&curve->recent[slot], 1);
    }
    pending->count = found;
    for (uint32_t j = 0; j < count; j++)
        if (olds[j] && olds[j] < start)
            REMOVE(curve, olds[j]);
    curve->positions.live[start >> 6] = word;
    ADD(curve, start, curve_popcount(word));
    sum_top(curve, start + CURVE_BATCH);
    curve->live_count += cold;
}

static inline void KERNEL(record)(pgio_curve *curve, curve_pending *pending)
{
    for (uint32_t i = 0; i < pending->count; i++)
        curve->recent[pending->at[i]]++;
    pending->count = 0;
}

/* A run without unused places, starting on a word of its own. The two stages overlap: one batch is
 * taken while the one before it is measured. */
TARGET static void KERNEL(run)(pgio_curve *curve, const curve_run *all)
{
    const uint32_t *pages = all->pages;
    uint64_t count = all->count;
    uint32_t olds[2][CURVE_BATCH] __attribute__((aligned(64)));
    curve_pending pending[2] = {{.count = 0}, {.count = 0}};
    uint64_t batches = (count + CURVE_BATCH - 1) / CURVE_BATCH;
    uint32_t start = curve->positions.next;
    assert(start % CURVE_BATCH == 0);
    for (uint64_t b = 0; b <= batches; b++) {
        if (b < batches)
            KERNEL(take)(curve, pages + b * CURVE_BATCH, count - b * CURVE_BATCH, start + (uint32_t)(b * CURVE_BATCH),
                         olds[b & 1]);
        if (b == 0)
            continue;
        uint64_t done = (b - 1) * CURVE_BATCH;
        uint32_t size = count - done < CURVE_BATCH ? (uint32_t)(count - done) : CURVE_BATCH;
        curve_pending *mine = &pending[b & 1];
        KERNEL(record)(curve, mine);
        KERNEL(measure)(curve, all, done, size, start + (uint32_t)done, olds[(b - 1) & 1], mine);
    }
    KERNEL(record)(curve, &pending[0]);
    KERNEL(record)(curve, &pending[1]);
    curve->positions.next = start + (uint32_t)(batches * CURVE_BATCH);
}

#undef KERNEL
#undef TARGET
#undef OLDS
#undef LOAD_OLDS
#undef OLDER
#undef RANK
#undef REMOVE
#undef ADD
#undef PREFETCH_WITHIN
