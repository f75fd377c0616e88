/* history.c: the tokens of one sequence as a value that can be appended to, rewound and forked.
 *
 * A server drafts tokens, rejects some and runs many sequences at once. The whole history is kept
 * (4 bytes a token), so that a rewind is a change of length and the rows of any position are made by
 * the very code that reads a stream; whatever the edits, the result equals hashing it afresh. */
#include <inttypes.h>

#include "internal.h"

struct pgio_history {
    uint32_t *ids;
    uint64_t length;
    uint64_t capacity;
    uint64_t vocabulary;
};

int pgio_history_new(pgio_history **out, uint64_t vocabulary, pgio_error *error)
{
    *out = NULL;
    if (vocabulary < 1 || vocabulary > (uint64_t)1 << 32)
        return pgio_fail(error, EINVAL, "a vocabulary of %" PRIu64 "; it is 1 to 2^32", vocabulary);
    pgio_history *history = calloc(1, sizeof *history);
    if (!history)
        return pgio_fail(error, ENOMEM, "no memory for a history");
    history->vocabulary = vocabulary;
    *out = history;
    return 0;
}

static int reserve(pgio_history *history, uint64_t length, pgio_error *error)
{
    if (length <= history->capacity)
        return 0;
    uint64_t capacity = history->capacity * 2 > length ? history->capacity * 2 : length;
    capacity = capacity < 64 ? 64 : capacity;
    uint32_t *ids = length > SIZE_MAX / 8 ? NULL : realloc(history->ids, capacity * sizeof *ids);
    if (!ids)
        return pgio_fail(error, ENOMEM, "no memory for a history of %" PRIu64 " tokens", length);
    history->ids = ids;
    history->capacity = capacity;
    return 0;
}

int pgio_history_fork(pgio_history **out, const pgio_history *history, pgio_error *error)
{
    int status = pgio_history_new(out, history->vocabulary, error);
    if (!status)
        status = reserve(*out, history->length, error);
    if (status) {
        pgio_history_free(*out);
        *out = NULL;
        return status;
    }
    if (history->length)
        memcpy((*out)->ids, history->ids, history->length * sizeof *history->ids);
    (*out)->length = history->length;
    return 0;
}

void pgio_history_free(pgio_history *history)
{
    if (!history)
        return;
    free(history->ids);
    free(history);
}

uint64_t pgio_history_length(const pgio_history *history)
{
    return history->length;
}

int64_t pgio_history_append(pgio_history *history, const int64_t *ids, uint64_t count, pgio_error *error)
{
    for (uint64_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint64_t)ids[i] >= history->vocabulary)
            return pgio_fail(error, EINVAL, "token id %" PRId64 " is not in 0 to %" PRIu64, ids[i],
                             history->vocabulary - 1);
    int status = reserve(history, history->length + count, error);
    if (status)
        return status;
    for (uint64_t i = 0; i < count; i++)
        history->ids[history->length + i] = (uint32_t)ids[i];
    history->length += count;
    return (int64_t)history->length;
}

int64_t pgio_history_rewind(pgio_history *history, uint64_t length, pgio_error *error)
{
    if (length > history->length)
        return pgio_fail(error, ERANGE, "cannot rewind to %" PRIu64 ": the history has %" PRIu64 " tokens", length,
                         history->length);
    history->length = length;
    return (int64_t)length;
}

int64_t pgio_history_rows(const pgio_history *history, const pgio_rows *rows, uint64_t begin, uint64_t end,
                          uint64_t *rows_out, pgio_error *error)
{
    const uint64_t start = 0;
    const pgio_tokens tokens = {.ids = history->ids,
                                .count = history->length,
                                .document_starts = &start,
                                .document_count = 1,
                                .vocabulary = history->vocabulary,
                                .id_bytes = sizeof *history->ids};
    return pgio_rows_emit(rows, &tokens, begin, end, rows_out, error);
}
