/* memory.c: large zeroed arrays.
 *
 * Anonymous mappings, because they are zero without being written (what a short stream never touches
 * costs nothing, in steps of a huge page) and because they can ask for huge
 * pages, without which every random access to last[] also misses the TLB. */
#include <sys/mman.h>

#include "internal.h"

#define HUGE_BYTES ((uint64_t)2 << 20)

void *pgio_zeroed(uint64_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX - HUGE_BYTES)
        return NULL;
    void *memory =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    /* Only advice: a kernel without transparent huge pages runs the same, slower. */
    if (bytes >= HUGE_BYTES)
        (void)madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    return memory;
}

void pgio_unmap(void *memory, uint64_t bytes)
{
    if (memory)
        munmap(memory, (size_t)bytes);
}
