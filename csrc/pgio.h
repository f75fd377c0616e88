/* pgio.h: from tokens to pages to reads, the whole contract.
 *
 * Three steps, each usable alone:
 *
 *     tokens --pgio_rows--> rows --pgio_place--> pages --pgio_lru / pgio_curve--> misses
 *
 * pgio_source joins the first two behind one restartable stream of pages; pgio_table reads the rows. Arrays go in,
 * arrays come out; a matrix is row-major with one line a token. No function prints, exits, reads the environment or
 * keeps global state; nothing allocates while it works, only while something is made (and a history as it grows).
 *
 * Every function that can fail returns 0 or a count, or -errno and one sentence in `error` (which may
 * be NULL). Arguments are checked before anything changes. Handles may be freed when NULL. A handle
 * belongs to one thread at a time. Names end in their unit: bytes, pages, count.
 */
#ifndef PGIO_H
#define PGIO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#if defined(PGIO_SHARED) && defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* cffi: begin (the Python module reads its declarations from here to the end mark) */

#define PGIO_MAX_ORDER      8          /* longest n-gram */
#define PGIO_MAX_COLUMNS    4096       /* rows a token */
#define PGIO_MAX_HASHES     64         /* n-gram hashes of a layout */
#define PGIO_MAX_RULES      4          /* different histories among them */
#define PGIO_MAX_CAPACITIES 64         /* cache sizes in one pass */
#define PGIO_FIRST_ACCESS   128        /* of a verdict: the page was never accessed before */
#define PGIO_NO_PAGE        0xFFFFFFFF /* an unused place in a matrix of pages */

typedef struct pgio_error {
    char text[256];
} pgio_error;

/* Which instructions a handle may use. AUTO takes the best this CPU has; naming one it lacks is
 * refused with -ENOTSUP. All give the same results, bit for bit. */
enum { PGIO_ISA_AUTO = 0, PGIO_ISA_PORTABLE = 1, PGIO_ISA_AVX2 = 2, PGIO_ISA_AVX512 = 3 };

const char *pgio_version(void);
uint32_t pgio_isa_best(void);

/* ---- hash.c: token history -> n-gram hashes ------------------------------------------------ */

/* A read-only view of a token stream. No n-gram reaches back past the start of its document. */
typedef struct pgio_tokens {
    const void *ids; /* [count], each id_bytes wide */
    uint64_t count;
    const uint64_t *document_starts; /* ascending, the first is 0 */
    uint64_t document_count;
    uint64_t vocabulary; /* an id at or above it is refused */
    uint32_t id_bytes;   /* 2 or 4 */
} pgio_tokens;

enum { PGIO_ROLE_BUCKET = 1, PGIO_ROLE_ROW = 2, PGIO_ROLE_SIGN = 3 };

uint64_t pgio_mix(uint64_t z);
uint64_t pgio_salt(uint64_t seed, uint64_t role, uint64_t order, uint64_t index);

/* hashes[i] = g_order(begin + i) for begin <= position < end. Returns end - begin. */
int64_t pgio_hash_ngrams(const pgio_tokens *tokens, uint64_t begin, uint64_t end, uint32_t order, uint64_t *hashes,
                         pgio_error *error);
/* out[i] = mix(hashes[i] ^ salt): a bucket or row hash before its shift, or a word of signs. */
void pgio_hash_finish(const uint64_t *hashes, uint64_t count, uint64_t salt, uint64_t *out);

/* ---- rows.c: hashes -> rows ---------------------------------------------------------------- */

/* PG1: as hash.c says. With v_d the value of the token d before the last (d = 0: the last itself):
 * MULXOR: v_0 * multipliers[0] ^ v_1 * multipliers[1] ^ ..., and the row is that mod the modulus;
 * POLY: v_0 * multipliers[0] + v_1 * multipliers[1] + ... with the multipliers of each column;
 * TOKEN: v_0, which is the row. */
enum { PGIO_SCHEME_PG1 = 1, PGIO_SCHEME_MULXOR = 2, PGIO_SCHEME_POLY = 3, PGIO_SCHEME_TOKEN = 4 };

#define PGIO_NO_ID   0xFFFFFFFFFFFFFFFF /* no end of sequence */
#define PGIO_NO_TEXT 0xFFFFFFFF         /* the class of an id without text */

/* What an n-gram sees, and how that becomes a number. A token is missing before its document's start, where
 * it or a later one has no text, and where it or a later one but the n-gram's last is end_id. Of PG1 only
 * scheme and order matter. */
typedef struct pgio_hash {
    uint64_t multipliers[PGIO_MAX_ORDER]; /* MULXOR: by look-back */
    const uint32_t *classes;              /* [vocabulary], copied: the value of each id; NULL: the id itself */
    uint64_t vocabulary;                  /* an id at or above it is refused, 1 to 2^32 */
    uint64_t fill;                        /* the value of a missing token */
    uint64_t end_id;
    uint32_t scheme;
    uint32_t order;
    uint32_t whole; /* MULXOR: 1: an n-gram that misses a token has the bucket `modulus`, one past the others */
    uint32_t unused;
} pgio_hash;

/* One row of each token:  row_base + bucket * row_stride + slot, with
 * bucket = bucket hash mod modulus and slot = slot hash mod slot_count. */
typedef struct pgio_column {
    uint64_t multipliers[PGIO_MAX_ORDER]; /* POLY: by look-back */
    uint64_t bucket_salt;                 /* salts are PG1's */
    uint64_t slot_salt;
    uint64_t modulus;
    uint64_t row_base;
    uint64_t row_stride;
    uint32_t slot_count;  /* 1: there is no choice, and neither slot_salt nor slot_hash is used; else both are PG1 */
    uint32_t bucket_hash; /* places in the array of hashes */
    uint32_t slot_hash;
    uint32_t unused;
} pgio_column;

typedef struct pgio_rows pgio_rows;

/* Copies everything. */
int pgio_rows_new(pgio_rows **out, const pgio_hash *hashes, uint32_t hash_count, const pgio_column *columns,
                  uint32_t column_count, uint32_t isa, pgio_error *error);
void pgio_rows_free(pgio_rows *rows);
/* rows_out: [end - begin, column_count]. Returns end - begin. The result for a position does not
 * depend on how the stream is cut into calls. */
int64_t pgio_rows_emit(const pgio_rows *rows, const pgio_tokens *tokens, uint64_t begin, uint64_t end,
                       uint64_t *rows_out, pgio_error *error);

/* The tokens of one sequence as a value: servers draft tokens, reject some, and fork. */
typedef struct pgio_history pgio_history;

int pgio_history_new(pgio_history **out, uint64_t vocabulary, pgio_error *error);
int pgio_history_fork(pgio_history **out, const pgio_history *history, pgio_error *error);
void pgio_history_free(pgio_history *history);
uint64_t pgio_history_length(const pgio_history *history);
/* All ids or none are appended. Returns the new length. */
int64_t pgio_history_append(pgio_history *history, const int64_t *ids, uint64_t count, pgio_error *error);
/* Forgets everything at and after position `length`. Returns the new length. */
int64_t pgio_history_rewind(pgio_history *history, uint64_t length, pgio_error *error);
int64_t pgio_history_rows(const pgio_history *history, const pgio_rows *rows, uint64_t begin, uint64_t end,
                          uint64_t *rows_out, pgio_error *error);

/* ---- place.c: rows -> bytes and pages ------------------------------------------------------ */

/* Units from first_unit up to the next segment's follow one another from base_byte: a shard of a table. */
typedef struct pgio_segment {
    uint64_t first_unit;
    uint64_t base_byte;
} pgio_segment;

/* Units of one group, laid out in a file. units_per_page > 0: each page holds that many whole units
 * (a unit longer than a page starts on a page and takes as many as it needs). units_per_page = 0:
 * units follow one another from base_byte and may straddle pages; with segments (copied; the first at
 * unit 0, ascending) they do so in each of them, and base_byte is not used. */
typedef struct pgio_region {
    uint64_t base_byte;
    uint64_t unit_count;
    uint64_t unit_bytes;
    uint64_t row_bytes;
    uint32_t units_per_page;
    uint32_t segment_count; /* 0: one range */
    const pgio_segment *segments;
} pgio_region;

/* Columns that read one unit together: their rows all lie in one unit of unit_rows rows. */
typedef struct pgio_group {
    uint64_t row_base; /* first row of the group */
    uint64_t unit_rows;
    uint32_t column_count;
    uint32_t region_count;
} pgio_group;

typedef struct pgio_place pgio_place;

/* columns and regions are taken group by group, in order. */
int pgio_place_new(pgio_place **out, const pgio_group *groups, uint32_t group_count, const pgio_region *regions,
                   uint32_t region_count, uint64_t page_bytes, uint32_t isa, pgio_error *error);
void pgio_place_free(pgio_place *place);
uint64_t pgio_place_page_count(const pgio_place *place);   /* pages from the first region to the last */
uint64_t pgio_place_first_page(const pgio_place *place);   /* where page id 0 lies in the file */
uint32_t pgio_place_page_columns(const pgio_place *place); /* most pages that one token can touch */
uint32_t pgio_place_byte_columns(const pgio_place *place); /* a column for each row in each region */
/* pages: [token_count, page_columns]; group by group, each group's pages ascending, duplicates merged
 * inside a group; unused places, at the end of each group's columns, hold PGIO_NO_PAGE. A row of
 * UINT64_MAX is absent and touches nothing. Returns the number of pages touched. */
int64_t pgio_place_pages(const pgio_place *place, const uint64_t *rows, uint64_t token_count, uint32_t *pages,
                         pgio_error *error);
/* offsets: [token_count, byte_columns], the file offset of each row in each region of its group. An absent
 * row has none and is refused. */
int64_t pgio_place_bytes(const pgio_place *place, const uint64_t *rows, uint64_t token_count, uint64_t *offsets,
                         pgio_error *error);
/* group_of_column: [page_columns], the group that each column of `pages` belongs to. */
void pgio_place_column_groups(const pgio_place *place, uint32_t *group_of_column);

/* ---- source.c: a restartable stream of pages ------------------------------------------------ */

typedef struct pgio_source pgio_source;

/* Borrows the arrays behind `tokens`, which must outlive the source; copies everything else. */
int pgio_source_new(pgio_source **out, const pgio_hash *hashes, uint32_t hash_count, const pgio_column *columns,
                    uint32_t column_count, const pgio_group *groups, uint32_t group_count, const pgio_region *regions,
                    uint32_t region_count, uint64_t page_bytes, const pgio_tokens *tokens, uint32_t isa,
                    pgio_error *error);
void pgio_source_free(pgio_source *source);
uint32_t pgio_source_page_columns(const pgio_source *source);
/* pages: [up to token_count, page_columns]. Returns the tokens emitted, 0 at the end. */
int64_t pgio_source_next(pgio_source *source, uint64_t token_count, uint32_t *pages, pgio_error *error);
void pgio_source_rewind(pgio_source *source);

/* ---- lru.c, curve.c: pages -> misses -------------------------------------------------------- */

/* Both policies count by class (a class is, say, the n-gram order that a column of the page matrix
 * belongs to). class_of_column: [column_count], values below class_count. */

typedef struct pgio_lru pgio_lru;

/* Exact LRU at several cache sizes in one pass, all cold. */
int pgio_lru_new(pgio_lru **out, uint64_t page_count, const uint64_t *capacities, uint32_t capacity_count,
                 const uint32_t *class_of_column, uint32_t column_count, uint32_t class_count, pgio_error *error);
void pgio_lru_free(pgio_lru *lru);
/* pages: [token_count, column_count]. missed: verdicts, [token_count, column_count], or NULL; set to how many
 * of the cache sizes miss, which are the smallest so many, with PGIO_FIRST_ACCESS added where the page was
 * never accessed before; to 0 in unused places. Returns the accesses made. */
int64_t pgio_lru_access(pgio_lru *lru, const uint32_t *pages, uint64_t token_count, uint8_t *missed, pgio_error *error);
/* accesses, compulsory: [class_count]; misses: [capacity_count, class_count]; full_at_token:
 * [capacity_count], the token that filled the cache, UINT64_MAX while it is not full. */
void pgio_lru_counts(const pgio_lru *lru, uint64_t *accesses, uint64_t *compulsory, uint64_t *misses,
                     uint64_t *full_at_token);
uint64_t pgio_lru_state_bytes(const pgio_lru *lru);

typedef struct pgio_curve pgio_curve;

/* Exact LRU at every cache size in one pass. */
int pgio_curve_new(pgio_curve **out, uint64_t page_count, const uint32_t *class_of_column, uint32_t column_count,
                   uint32_t class_count, uint32_t isa, pgio_error *error);
void pgio_curve_free(pgio_curve *curve);
int64_t pgio_curve_access(pgio_curve *curve, const uint32_t *pages, uint64_t token_count, pgio_error *error);
/* accesses, compulsory: [class_count]; histogram: [class_count, page_count + 1] or NULL, accesses by
 * stack distance: an access at distance d hits every cache of at least d pages (d >= 1). */
void pgio_curve_counts(pgio_curve *curve, uint64_t *accesses, uint64_t *compulsory, uint64_t *histogram);
/* first_tokens: [page_count], the token that first touched the 1st, 2nd, ... distinct page, so that a cache
 * of C pages was full at first_tokens[C - 1]. Returns the distinct pages; the rest is left alone. */
uint64_t pgio_curve_first_tokens(const pgio_curve *curve, uint64_t *first_tokens);
uint64_t pgio_curve_state_bytes(const pgio_curve *curve);

/* The floor that the simulators are measured against: only last[page] <- position, for every access.
 * last: [page_count], zeroed by the caller. Returns a checksum of the old values. */
uint64_t pgio_swap_floor(uint32_t *last, const uint32_t *pages, uint64_t count);

/* ---- steps.c: what tokens that are looked up together read ------------------------------------ */

/* Sets places whose page an earlier place of the same step holds to PGIO_NO_PAGE. steps: [token_count], ascending
 * from 1; seen: [seen_count], zero at first and whenever step numbers begin again, a power of two above the places of
 * any step. Returns the places left in use. */
int64_t pgio_steps_merge(uint32_t *pages, const uint32_t *steps, uint64_t token_count, uint32_t column_count,
                         uint64_t *seen, uint64_t seen_count, pgio_error *error);
/* Verdicts of pgio_lru_access by token: accesses and first: [token_count, class_count]; misses: [token_count,
 * class_count, size_count], sizes from the smallest to the largest. */
int pgio_steps_count(const uint32_t *pages, const uint8_t *missed, uint64_t token_count,
                     const uint32_t *class_of_column, uint32_t column_count, uint32_t class_count, uint32_t size_count,
                     uint32_t *accesses, uint32_t *first, uint32_t *misses, pgio_error *error);

/* ---- crc32c.c: pages that say which they are ------------------------------------------------ */

/* The last eight bytes of a sealed page are its number (low 32 bits) and the CRC-32C of all before them and
 * of the number, both little-endian: a torn, rotten or misdirected read is told from a good one. */
uint32_t pgio_crc32c(const void *bytes, uint64_t count);
/* memory: [count, page_bytes]; page i becomes page first_page + i. Returns count. */
int64_t pgio_pages_seal(void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes);
/* sound: [count], 1 or 0. Returns the damaged pages. */
int64_t pgio_pages_verify(const void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes, uint8_t *sound);
/* crcs: [count], the CRC-32C of each page's every byte: for pages that have no room for their own. */
void pgio_pages_crc32c(const void *memory, uint64_t count, uint64_t page_bytes, uint32_t *crcs);
/* Incompressible pages that depend on seed and number alone, sealed. */
void pgio_pages_fill(void *memory, uint64_t first_page, uint64_t count, uint64_t page_bytes, uint64_t seed);

/* ---- nf4.c: floats <-> four-bit rows -------------------------------------------------------- */

/* Rows whose scale is not their largest magnitude rounded to FP16: 0 < absmax < 2^-24 (tiny: the scale is 2^-24),
 * absmax > 65504 (clamped: it is 65504); and the rows of zeros alone, which decode to exact zeros. */
typedef struct pgio_nf4_counts {
    uint64_t tiny;
    uint64_t clamped;
    uint64_t zero;
} pgio_nf4_counts;

/* values: [row_count, width]; row i is stored at rows + i * stride_bytes: width / 2 bytes of codes (low nibble first),
 * then the FP16 scale. counts may be NULL. A NaN or an infinity is refused by its row, before anything is written.
 * Returns row_count. */
int64_t pgio_nf4_encode(const float *values, uint64_t row_count, uint32_t width, uint8_t *rows, uint64_t stride_bytes,
                        uint32_t isa, pgio_nf4_counts *counts, pgio_error *error);
int64_t pgio_nf4_decode(const uint8_t *rows, uint64_t row_count, uint32_t width, uint64_t stride_bytes, float *values,
                        uint32_t isa, pgio_error *error);

/* ---- histogram.c: latencies in log-linear buckets ------------------------------------------- */

/* Bucket i holds values from pgio_histogram_low(i) up to pgio_histogram_low(i + 1) - 1: exact below 128,
 * then 64 buckets a power of two, so that a bucket is at most 1/64 of its values wide. */
#define PGIO_HISTOGRAM_BUCKETS 2688

uint64_t pgio_histogram_low(uint32_t bucket);

/* ---- reader.c: pages of a file or device -> memory ------------------------------------------ */

/* A reader keeps up to `depth` page reads in flight. It opens its target for reading only, and belongs
 * to the thread that opened it: any other is refused (EEXIST), as io_uring itself would. */
typedef struct pgio_reader pgio_reader;

enum { PGIO_ENGINE_AUTO = 0, PGIO_ENGINE_IO_URING = 1, PGIO_ENGINE_PSYNC = 2, PGIO_ENGINE_NVME = 3 };
enum {
    PGIO_READER_BUFFERED = 1,   /* through the kernel's page cache instead of O_DIRECT */
    PGIO_READER_SQPOLL = 2,     /* a kernel thread submits */
    PGIO_READER_IOPOLL = 4,     /* completions are polled for; the device needs poll queues */
    PGIO_READER_CLOCK_EACH = 8, /* a clock reading for each read instead of each batch */
    PGIO_READER_NO_FIXED = 16,  /* neither registered buffers nor a registered file */
    PGIO_READER_VERIFY = 32     /* check each page's own number and checksum (docs/formats.md) */
};

typedef struct pgio_reader_options {
    uint64_t page_bytes; /* a power of two from 512; 4096 where O_DIRECT must work everywhere */
    uint64_t base_byte;  /* where page 0 lies; a multiple of page_bytes */
    uint64_t span_bytes; /* pages lie below base_byte + span_bytes; 0: up to the target's end */
    void *memory;        /* reads into it use registered buffers; NULL: the reader's own */
    uint64_t memory_bytes;
    uint32_t engine;
    uint32_t depth; /* 1 to 32768 */
    uint32_t flags;
} pgio_reader_options;

typedef struct pgio_reader_info {
    uint64_t target_bytes;
    uint64_t page_count; /* the last may be short, by the remainder of the target's size */
    uint32_t engine;     /* the one that runs */
    uint32_t direct;     /* O_DIRECT as F_GETFL reads it back; 1 for passthrough */
    uint32_t ring_flags; /* IORING_SETUP_ flags really in use */
    uint32_t fixed_buffers;
    uint32_t fixed_file;
    uint32_t lba_bytes; /* passthrough only, else 0 */
    char why[192];      /* why this engine, and what was done without */
} pgio_reader_info;

/* A read ends with the bytes it delivered (page_bytes; fewer only for the tail page, whose rest is
 * zeroed), or with a negative status: -errno, one of these, or PGIO_STATUS_NVME - the NVMe status. */
enum {
    PGIO_STATUS_SHORT = -10001,   /* fewer bytes than there are, twice */
    PGIO_STATUS_CORRUPT = -10002, /* the page's number or checksum is wrong */
    PGIO_STATUS_NVME = -20000
};

typedef struct pgio_reader_stats {
    uint64_t reads; /* ended well */
    uint64_t bytes;
    uint64_t retries;
    uint64_t errors_eio;
    uint64_t errors_enodata; /* a medium error */
    uint64_t errors_short;
    uint64_t errors_corrupt;
    uint64_t errors_other;     /* timeouts and NVMe statuses among them */
    uint64_t first_error_byte; /* UINT64_MAX while there is none */
    uint64_t first_error_file; /* of several, the one that it is a byte of */
    int64_t first_error_status;
    uint64_t latency_sum_ns; /* from preparing a read to reaping it */
    uint64_t latency_min_ns; /* UINT64_MAX while there is none */
    uint64_t latency_max_ns;
    uint64_t depth_ns; /* reads in flight summed over time: / elapsed is the depth sustained */
    uint64_t waits;    /* system calls that waited or submitted */
} pgio_reader_stats;

int pgio_reader_open(pgio_reader **out, const char *path, const pgio_reader_options *options, pgio_error *error);

/* Pages page_begin .. page_begin + page_count of a reader of several files: they lie from this byte of paths[file] on.
 */
typedef struct pgio_window {
    uint64_t page_begin, page_count;
    uint64_t byte; /* a multiple of page_bytes */
    uint32_t file;
    uint32_t unused;
} pgio_window;

/* One reader over several files, so that up to `depth` reads are in flight over all of them. Windows follow one
 * another from page 0 on; base_byte and span_bytes are 0. Sentences of one file begin with "file N: ",
 * its place among paths. */
int pgio_reader_open_files(pgio_reader **out, const char *const *paths, uint32_t path_count, const pgio_window *windows,
                           uint32_t window_count, const pgio_reader_options *options, pgio_error *error);
/* Waits for what is in flight, then closes. */
void pgio_reader_close(pgio_reader *reader);
void pgio_reader_info_get(const pgio_reader *reader, pgio_reader_info *info);
void pgio_reader_stats_get(const pgio_reader *reader, pgio_reader_stats *stats);
void pgio_reader_stats_reset(pgio_reader *reader);
/* counts: [PGIO_HISTOGRAM_BUCKETS], latencies in ns since the last reset. */
void pgio_reader_histogram(const pgio_reader *reader, uint64_t *counts);

/* Blocking: page i goes to memory + i * page_bytes (4096-aligned), its outcome to status[i]. Returns
 * the reads that failed. Nothing else may be in flight. */
int64_t pgio_reader_read(pgio_reader *reader, const uint64_t *pages, uint64_t count, void *memory, int32_t *status,
                         pgio_error *error);

/* Non-blocking: submit takes as many of `count` as there is room for and returns how many; read i
 * carries tags[i]. poll returns up to `count` outcomes without waiting. cancel asks for everything in
 * flight to end soon; outcomes still come, with -ECANCELED or as they were. The eventfd becomes
 * readable when there are outcomes to poll. */
typedef struct pgio_completion {
    uint64_t tag;
    int32_t status;
    int32_t unused;
} pgio_completion;

int64_t pgio_reader_submit(pgio_reader *reader, const uint64_t *pages, void *const *memory, const uint64_t *tags,
                           uint64_t count, pgio_error *error);
int64_t pgio_reader_poll(pgio_reader *reader, pgio_completion *completions, uint64_t count, pgio_error *error);
int pgio_reader_cancel(pgio_reader *reader, pgio_error *error);
int pgio_reader_eventfd(const pgio_reader *reader);
uint32_t pgio_reader_in_flight(const pgio_reader *reader);

/* For measuring: data goes to the reader's own memory and is dropped. pump keeps `depth` reads in
 * flight and returns how many of `count` it has started by deadline_ns (CLOCK_MONOTONIC), leaving
 * those in flight for the next pump. It stops early once more than max_errors reads have failed. */
int64_t pgio_reader_pump(pgio_reader *reader, const uint64_t *pages, uint64_t count, uint64_t deadline_ns,
                         uint64_t max_errors, pgio_error *error);
/* drain waits for them, at most until deadline_ns, and returns how many are still in flight. */
int64_t pgio_reader_drain(pgio_reader *reader, uint64_t deadline_ns, pgio_error *error);
/* Decode: step s reads pages[step_ends[s - 1] .. step_ends[s]) together and ends with the last of them;
 * its time goes to step_ns[s]. Returns the steps done. */
int64_t pgio_reader_steps(pgio_reader *reader, const uint64_t *pages, const uint64_t *step_ends, uint64_t step_count,
                          uint64_t deadline_ns, uint64_t max_errors, uint64_t *step_ns, pgio_error *error);
uint64_t pgio_clock_ns(void);

/* ---- table.c: rows of a table file, through a page cache in memory -> bytes or values -------- */

/* A table may be shared by threads. Each thread reads through a client of its own, which holds its reader and
 * its scratch memory and belongs to the thread that opened it, until it is closed (by any thread). Hits, misses
 * and evictions are those of an exact LRU of cache_bytes / page_bytes pages, decided in the order of the
 * accesses before anything is read: reads equal what pgio_lru counts. Beside cache_bytes, up to a quarter of
 * them holds pages that were driven out while still in use. */
typedef struct pgio_table pgio_table;
typedef struct pgio_table_client pgio_table_client;
typedef struct pgio_prefetch pgio_prefetch;

enum { PGIO_ROW_NF4 = 1, PGIO_ROW_FP16 = 2, PGIO_ROW_BF16 = 3, PGIO_ROW_FP32 = 4 };
enum { PGIO_FORM_VALUES = 1, PGIO_FORM_BYTES = 2 };

typedef struct pgio_table_options {
    uint64_t data_byte;  /* where page 0 lies in the file; a multiple of page_bytes */
    uint64_t page_count; /* as the file says; the groups must take as many */
    uint64_t page_bytes;
    uint64_t cache_bytes;        /* at least what one token can touch */
    const uint32_t *page_checks; /* [page_count], the CRC-32C of each page, copied; NULL: pages hold their own */
    uint32_t row_format;         /* PGIO_ROW_ */
    uint32_t row_width;          /* values a row */
    uint32_t depth;              /* reads in flight, of each client */
    uint32_t engine;             /* PGIO_ENGINE_ */
    uint32_t flags;              /* PGIO_READER_BUFFERED, _SQPOLL, _IOPOLL, _NO_FIXED */
    uint32_t isa;
} pgio_table_options;

typedef struct pgio_table_stats {
    uint64_t lookups;    /* tokens whose rows were given out */
    uint64_t prefetches; /* tokens whose pages were accessed ahead */
    uint64_t accesses;   /* hits + reads */
    uint64_t hits;
    uint64_t reads; /* misses; each is one read of a page, ended well or not */
    uint64_t bytes_read;
    uint64_t evictions;
    uint64_t waiting_ns; /* of all threads together, for reads of their own or of others */
    uint64_t errors_eio;
    uint64_t errors_enodata;
    uint64_t errors_short;
    uint64_t errors_corrupt;
    uint64_t errors_other;
    uint64_t resident_pages;
    uint64_t capacity_pages; /* not more than the table has */
} pgio_table_stats;

/* Where rows go: column c of token t to memory + t * token_stride_bytes + c * column_stride_bytes. Values are
 * floats, aligned as such; bytes are rows as they are stored, joined where they straddle pages. */
typedef struct pgio_table_output {
    void *memory;
    int64_t token_stride_bytes;
    int64_t column_stride_bytes;
    uint32_t form; /* PGIO_FORM_ */
} pgio_table_output;

/* One region a group. The file stays the one that was opened, whatever its name comes to mean; nothing of it is
 * read yet: pgio_table_client_info opens a reader. */
int pgio_table_open(pgio_table **out, const char *path, const pgio_table_options *options, const pgio_group *groups,
                    uint32_t group_count, const pgio_region *regions, uint32_t region_count, pgio_error *error);
/* It goes with the last of its clients and prefetches, which may be closed later. */
void pgio_table_close(pgio_table *table);
void pgio_table_stats_get(pgio_table *table, pgio_table_stats *stats);
int pgio_table_client_open(pgio_table_client **out, pgio_table *table, pgio_error *error);
void pgio_table_client_close(pgio_table_client *client);
/* Opens the client's reader, if it has read nothing yet, and tells how it reads. */
int pgio_table_client_info(pgio_table_client *client, pgio_reader_info *info, pgio_error *error);

/* rows: [token_count, columns]. Returns token_count. A page that cannot be read, or is not the one that was
 * written (-EBADMSG), fails the call with its number; it is not kept, and accessed again it is read again. */
int64_t pgio_table_lookup(pgio_table_client *client, const uint64_t *rows, uint64_t token_count,
                          const pgio_table_output *output, pgio_error *error);
/* Makes the accesses of the first of the tokens, pins their pages, and starts to read them in a thread of the
 * table's own. Returns how many tokens: fewer than asked for, or none, where prefetches would pin more than a
 * quarter of the cache. */
int64_t pgio_table_prefetch(pgio_prefetch **out, pgio_table_client *client, const uint64_t *rows, uint64_t token_count,
                            pgio_error *error);
/* Gives out the rows of a prefetch, which are no second access. Returns its tokens. It still has to be dropped. */
int64_t pgio_prefetch_lookup(pgio_prefetch *prefetch, pgio_table_client *client, const pgio_table_output *output,
                             pgio_error *error);
/* Unpins and frees, whether its rows were given out or not; reads that have begun go on. */
void pgio_prefetch_drop(pgio_prefetch *prefetch);

/* cffi: end */

#if defined(PGIO_SHARED) && defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif
