/* The caching allocator and a replay of requests on it, in C: the same decisions as caching_allocator.py, reserving.py,
 * state.py, driver.py and replay.py make, where the names of functions come from. `compiled.py` builds and calls it;
 * tests hold the two against each other. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef uint64_t u64;

enum { FREE, USED, PENDING, UNMAPPED };                                   /* `State` */
enum { ALLOC, FREE_AT_ONCE, REQUEST_FREE, COMPLETE_FREE, SEGMENT, OOM, RELEASE }; /* `Op` */
enum { SERVED, FAILED, CONTRADICTION, NO_MEMORY };                        /* How a replay ended */

#define MIB ((i64)1 << 20)
#define MIN_BLOCK_BYTES 512
#define SMALL_BYTES MIB
#define SMALL_SEGMENT_BYTES (2 * MIB)
#define OWN_SEGMENT_BYTES (10 * MIB)
#define SEGMENT_STEP_BYTES (2 * MIB)
#define CHUNK_BYTES (32 * MIB)
#define NEVER INT64_MAX

/* The fields of the two structures that Python and C share, each of 64 bits. `compiled.py` reads their names, and their
 * order, from the library. */
#define GIVEN_FIELDS(FIELD) \
    FIELD(i64, capacity)          /* -1: no limit */ \
    FIELD(i64, memory_limit)      /* -1: none */ \
    FIELD(i64, garbage_threshold) /* bytes; used with a memory limit */ \
    FIELD(i64, counts_searches) \
    FIELD(i64, max_split) /* -1: none */ \
    FIELD(i64, max_non_split_rounding) \
    FIELD(i64, large_segment_size) \
    FIELD(i64, expandable) \
    FIELD(i64, counts_segments) \
    FIELD(i64, address_space) \
    FIELD(i64, goes_on) \
    FIELD(u64, top)      /* the driver's first address */ \
    FIELD(i64, reserved) /* bytes that another driver gave before */ \
    FIELD(i64, num_operations) \
    FIELD(i64, num_lives) \
    FIELD(i64, num_homes) \
    FIELD(i64, num_failed) \
    FIELD(i64, num_first) \
    FIELD(i64, num_spans) \
    FIELD(i64, from_start) \
    FIELD(const i64 *, code)          /* [operations] */ \
    FIELD(const i64 *, operand)       /* [operations] */ \
    FIELD(const i64 *, size)          /* [lives] */ \
    FIELD(const i64 *, home)          /* [lives] */ \
    FIELD(const uint8_t *, waits)     /* [lives] */ \
    FIELD(const uint8_t *, is_first)  /* [lives] */ \
    FIELD(const i64 *, home_pool)     /* [homes], by pool and stream; pool 0 is the default one */ \
    FIELD(const i64 *, home_small)    /* [homes] */ \
    FIELD(const i64 *, first)         /* [first lives], by address */ \
    FIELD(const i64 *, failed_size)   /* [failed] */ \
    FIELD(const i64 *, failed_home)   /* [failed] */ \
    FIELD(const u64 *, span_address)  /* [spans] */ \
    FIELD(const u64 *, span_base)     /* [spans] */ \
    FIELD(const i64 *, span_size)     /* [spans] */ \
    FIELD(const i64 *, span_home)     /* [spans] */ \
    FIELD(const i64 *, span_expandable) /* [spans] */ \
    FIELD(const i64 *, span_range)    /* the first span of the same expandable segment [spans] */ \
    FIELD(const i64 *, span_lives)    /* index behind the span's last life [spans] */ \
    FIELD(const i64 *, span_life)     /* [lives of spans] */ \
    FIELD(const i64 *, span_life_size) /* [lives of spans] */ \
    FIELD(const u64 *, span_life_address) /* [lives of spans] */

#define OUTCOME_FIELDS(FIELD) \
    FIELD(i64, reserved_peak_bytes) \
    FIELD(i64, allocated_peak_bytes) \
    FIELD(i64, num_driver_calls) \
    FIELD(i64, num_retries) \
    FIELD(i64, wanted_bytes) \
    FIELD(i64, num_unserved) \
    FIELD(i64, has_failed) \
    FIELD(i64, failed_at) /* -1: for a block that was there at the start */ \
    FIELD(i64, failed_size_bytes) \
    FIELD(i64, failed_reserved_bytes) \
    FIELD(i64, failed_allocated_bytes)

#define DECLARED(type, name) type name;
#define NAMED(type, name) #name " "
#define OF_64_BITS(type, name) && sizeof(type) == 8
#define EXPORTED __attribute__((visibility("default")))

struct given { GIVEN_FIELDS(DECLARED) };
struct outcome { OUTCOME_FIELDS(DECLARED) };
_Static_assert(1 GIVEN_FIELDS(OF_64_BITS), "each field has 64 bits");
EXPORTED const char torch_timeline_given[] = GIVEN_FIELDS(NAMED);
EXPORTED const char torch_timeline_outcome[] = OUTCOME_FIELDS(NAMED);

struct range { u64 base; i64 size, page; };

struct block {
    u64 address, counter;
    i64 size, made_at, label;
    struct block *previous, *next, *before_pending, *after_pending;
    struct home *home;
    struct range *range;
    int state, is_pending;
};

struct half { i64 searches; int is_small; };

struct list { struct block **items; i64 count, room; };

struct home {
    struct half *half;
    i64 min_rest, max_cut;
    struct list free, unmapped;
};

struct pieces { u64 *start; i64 *size; i64 count, room; }; /* `Ranges` */

struct chunk { struct chunk *next; struct block blocks[1024]; };
struct range_list { struct range_list *next; struct range range; };

struct allocator {
    const struct given *given;
    i64 allocated, reserved, peak_allocated, peak_reserved, driver_calls, retries;
    u64 segments_made;
    struct home *homes;
    struct half *halves;
    struct block *first_pending, *last_pending;
    struct block *unused;
    struct chunk *chunks;
    i64 in_chunk;
    struct range_list *ranges;
    /* The driver. */
    i64 driver_reserved;
    u64 lowest;
    struct pieces whole, parts;
    u64 *given_addresses;
    i64 num_given;
    /* The request that could not be served. */
    i64 failed_size;
    int problem; /* CONTRADICTION or NO_MEMORY */
};

/* Memory of the model's own. */

static int grow(void **items, i64 *room, i64 count, size_t each)
{
    if (count < *room)
        return 1;
    i64 wanted = *room ? 2 * *room : 64;
    void *moved = realloc(*items, (size_t)wanted * each);
    if (!moved)
        return 0;
    *items = moved;
    *room = wanted;
    return 1;
}

static struct block *new_block_at(struct allocator *a, u64 address, u64 counter, i64 size, struct home *home,
                                  struct range *range, int state)
{
    struct block *block = a->unused;
    if (block) {
        a->unused = block->next;
    } else {
        if (!a->chunks || a->in_chunk == 1024) {
            struct chunk *chunk = malloc(sizeof *chunk);
            if (!chunk) {
                a->problem = NO_MEMORY;
                return NULL;
            }
            chunk->next = a->chunks;
            a->chunks = chunk;
            a->in_chunk = 0;
        }
        block = &a->chunks->blocks[a->in_chunk++];
    }
    memset(block, 0, sizeof *block);
    block->address = address;
    block->counter = counter;
    block->size = size;
    block->home = home;
    block->range = range;
    block->state = state;
    block->label = -1;
    return block;
}

/* A block with a label may still be asked for by it, so that its place is not used again. */
static void forget(struct allocator *a, struct block *block)
{
    if (block->label == -1) {
        block->next = a->unused;
        a->unused = block;
    }
}

/* Lists of free blocks, by size, counter and address; of unmapped ones, by address. */

static int is_below(const struct block *block, i64 size, u64 counter, u64 address)
{
    if (block->size != size)
        return block->size < size;
    if (block->counter != counter)
        return block->counter < counter;
    return block->address < address;
}

static i64 place(const struct list *list, i64 size, u64 counter, u64 address)
{
    i64 low = 0, high = list->count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (is_below(list->items[middle], size, counter, address))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static i64 place_of_address(const struct list *list, u64 address)
{
    i64 low = 0, high = list->count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (list->items[middle]->address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct allocator *a, struct list *list, i64 at, struct block *block)
{
    if (!grow((void **)&list->items, &list->room, list->count, sizeof *list->items)) {
        a->problem = NO_MEMORY;
        return;
    }
    memmove(list->items + at + 1, list->items + at, (size_t)(list->count - at) * sizeof *list->items);
    list->items[at] = block;
    list->count++;
}

static void take(struct list *list, i64 at)
{
    list->count--;
    memmove(list->items + at, list->items + at + 1, (size_t)(list->count - at) * sizeof *list->items);
}

static void take_block(struct allocator *a, struct list *list, i64 at, const struct block *block)
{
    while (at < list->count && list->items[at] != block)
        at++;
    if (at == list->count)
        a->problem = CONTRADICTION;
    else
        take(list, at);
}

static void add_free(struct allocator *a, struct block *block)
{
    struct list *list = &block->home->free;
    block->state = FREE;
    block->made_at = block->home->half->searches;
    insert(a, list, place(list, block->size, block->counter, block->address), block);
}

static void remove_free(struct allocator *a, struct block *block)
{
    struct list *list = &block->home->free;
    take_block(a, list, place(list, block->size, block->counter, block->address), block);
}

static void add_unmapped(struct allocator *a, struct block *block)
{
    block->state = UNMAPPED;
    insert(a, &block->home->unmapped, place_of_address(&block->home->unmapped, block->address), block);
}

static void remove_unmapped(struct allocator *a, struct block *block)
{
    take_block(a, &block->home->unmapped, place_of_address(&block->home->unmapped, block->address), block);
}

static struct block *cut(struct allocator *a, struct block *block, i64 size)
{
    struct block *rest = new_block_at(a, block->address + (u64)size, block->counter, block->size - size, block->home,
                                      block->range, block->state);
    if (!rest)
        return NULL;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next)
        rest->next->previous = rest;
    block->next = rest;
    block->size = size;
    return rest;
}

static void merge_next(struct allocator *a, struct block *block)
{
    struct block *merged = block->next;
    block->size += merged->size;
    block->next = merged->next;
    if (block->next)
        block->next->previous = block;
    forget(a, merged);
}

static int is_split(const struct block *block)
{
    return block->previous || block->next;
}

/* The driver. */

static i64 piece_at(const struct pieces *pieces, u64 start)
{
    i64 low = 0, high = pieces->count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (pieces->start[middle] < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void put_piece(struct allocator *a, struct pieces *pieces, i64 at, u64 start, i64 size)
{
    i64 room = pieces->room;
    if (!grow((void **)&pieces->start, &room, pieces->count, sizeof *pieces->start) ||
        !grow((void **)&pieces->size, &pieces->room, pieces->count, sizeof *pieces->size)) {
        a->problem = NO_MEMORY;
        return;
    }
    i64 behind = pieces->count - at;
    memmove(pieces->start + at + 1, pieces->start + at, (size_t)behind * sizeof *pieces->start);
    memmove(pieces->size + at + 1, pieces->size + at, (size_t)behind * sizeof *pieces->size);
    pieces->start[at] = start;
    pieces->size[at] = size;
    pieces->count++;
}

static void drop_piece(struct pieces *pieces, i64 at)
{
    i64 behind = --pieces->count - at;
    memmove(pieces->start + at, pieces->start + at + 1, (size_t)behind * sizeof *pieces->start);
    memmove(pieces->size + at, pieces->size + at + 1, (size_t)behind * sizeof *pieces->size);
}

/* Returns where the range now is that the added one is part of. */
static i64 add_piece(struct allocator *a, struct pieces *pieces, u64 start, i64 size)
{
    i64 at = piece_at(pieces, start);
    if (at < pieces->count && pieces->start[at] == start + (u64)size) {
        size += pieces->size[at];
        drop_piece(pieces, at);
    }
    if (at && pieces->start[at - 1] + (u64)pieces->size[at - 1] == start) {
        pieces->size[at - 1] += size;
        return at - 1;
    }
    put_piece(a, pieces, at, start, size);
    return at;
}

static void cut_piece(struct allocator *a, struct pieces *pieces, i64 at, u64 start, i64 size)
{
    u64 whole = pieces->start[at], end = whole + (u64)pieces->size[at], stop = start + (u64)size;
    drop_piece(pieces, at);
    if (end > stop)
        put_piece(a, pieces, at, stop, (i64)(end - stop));
    if (start > whole)
        put_piece(a, pieces, at, whole, (i64)(start - whole));
}

static u64 in_chunks(u64 number)
{
    return (number + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
}

static u64 fresh(struct allocator *a, i64 size)
{
    u64 bytes = in_chunks((u64)size);
    if (bytes > a->lowest) {
        a->problem = CONTRADICTION;
        return 0;
    }
    return a->lowest -= bytes;
}

static int driver_has(struct allocator *a, i64 size)
{
    if (a->given->capacity >= 0 && a->driver_reserved + size > a->given->capacity)
        return 0;
    a->driver_reserved += size;
    return 1;
}

static int driver_reserve(struct allocator *a, i64 size, u64 *address)
{
    if (!driver_has(a, size))
        return 0;
    if (size < CHUNK_BYTES) {
        for (i64 at = 0; at < a->parts.count; at++) {
            if (a->parts.size[at] >= size) {
                *address = a->parts.start[at];
                cut_piece(a, &a->parts, at, *address, size);
                return 1;
            }
        }
    }
    i64 bytes = (i64)in_chunks((u64)size), at = a->whole.count - 1;
    while (at >= 0 && a->whole.size[at] < bytes)
        at--;
    if (at >= 0) {
        *address = a->whole.start[at] + (u64)(a->whole.size[at] - bytes);
        cut_piece(a, &a->whole, at, *address, bytes);
    } else {
        *address = fresh(a, size);
    }
    if (bytes > size)
        add_piece(a, &a->parts, *address + (u64)size, bytes - size);
    return 1;
}

static int was_given(const struct allocator *a, u64 address)
{
    i64 low = 0, high = a->num_given;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (a->given_addresses[middle] < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a->num_given && a->given_addresses[low] == address;
}

static void driver_release(struct allocator *a, u64 address, i64 size)
{
    a->driver_reserved -= size;
    if (was_given(a, address))
        return;
    i64 at = add_piece(a, &a->parts, address, size);
    if (a->problem)
        return;
    u64 start = a->parts.start[at], end = start + (u64)a->parts.size[at];
    u64 first = in_chunks(start), last = end / CHUNK_BYTES * CHUNK_BYTES;
    if (last > first) {
        cut_piece(a, &a->parts, at, first, (i64)(last - first));
        add_piece(a, &a->whole, first, (i64)(last - first));
    }
}

/* The allocator: how a block becomes free. */

static void adjust_reserved(struct allocator *a, i64 change)
{
    a->reserved += change;
    a->driver_calls++;
    if (a->reserved > a->peak_reserved)
        a->peak_reserved = a->reserved;
}

static u64 next_counter(struct allocator *a)
{
    a->segments_made++;
    return a->given->counts_segments ? a->segments_made : 0;
}

static void merge_and_add(struct allocator *a, struct block *block)
{
    struct block *after = block->next, *before = block->previous;
    if (after && after->state == FREE) {
        remove_free(a, after);
        merge_next(a, block);
    }
    if (before && before->state == FREE) {
        remove_free(a, before);
        merge_next(a, before);
        block = before;
    }
    add_free(a, block);
}

static void give_back(struct allocator *a, struct block *block)
{
    a->allocated -= block->size;
    merge_and_add(a, block);
}

static void wait_for(struct allocator *a, struct block *block)
{
    if (block->is_pending)
        return;
    block->is_pending = 1;
    block->after_pending = NULL;
    block->before_pending = a->last_pending;
    if (a->last_pending)
        a->last_pending->after_pending = block;
    else
        a->first_pending = block;
    a->last_pending = block;
}

static void request_free(struct allocator *a, struct block *block)
{
    block->state = PENDING;
    a->allocated -= block->size;
    wait_for(a, block);
}

static void finish(struct allocator *a, struct block *block)
{
    if (!block->is_pending)
        return;
    block->is_pending = 0;
    if (block->before_pending)
        block->before_pending->after_pending = block->after_pending;
    else
        a->first_pending = block->after_pending;
    if (block->after_pending)
        block->after_pending->before_pending = block->before_pending;
    else
        a->last_pending = block->before_pending;
    merge_and_add(a, block);
}

/* Expandable segments. */

static struct block *united(struct allocator *a, struct block *block, int state)
{
    struct block *before = block->previous, *after = block->next;
    void (*take_out)(struct allocator *, struct block *) = state == FREE ? remove_free : remove_unmapped;
    if (after && after->state == state) {
        take_out(a, after);
        merge_next(a, block);
    }
    if (before && before->state == state) {
        take_out(a, before);
        merge_next(a, before);
        block = before;
    }
    return block;
}

static struct block *map_pages(struct allocator *a, struct block *block, i64 size)
{
    i64 page = block->range->page, length = (size + page - 1) / page * page;
    if (!driver_has(a, length))
        return NULL;
    remove_unmapped(a, block);
    if (length < block->size) {
        struct block *rest = cut(a, block, length);
        if (!rest)
            return NULL;
        add_unmapped(a, rest);
    }
    block = united(a, block, FREE);
    add_free(a, block);
    adjust_reserved(a, length);
    return block;
}

static void unmap(struct allocator *a, struct block *block)
{
    u64 base = block->range->base, page = (u64)block->range->page, end = block->address + (u64)block->size;
    u64 low = base + (block->address - base + page - 1) / page * page, high = base + (end - base) / page * page;
    if (high <= low)
        return;
    remove_free(a, block);
    if (low > block->address) {
        struct block *front = block;
        block = cut(a, front, (i64)(low - front->address));
        if (!block)
            return;
        add_free(a, front);
    }
    if (end > high) {
        struct block *rest = cut(a, block, (i64)(high - block->address));
        if (!rest)
            return;
        add_free(a, rest);
    }
    block = united(a, block, UNMAPPED);
    add_unmapped(a, block);
    a->driver_reserved -= (i64)(high - low);
    adjust_reserved(a, -(i64)(high - low));
    if (!is_split(block))
        remove_unmapped(a, block);
}

static struct block *new_range(struct allocator *a, u64 base, i64 size, i64 page, struct home *home)
{
    struct range_list *held = malloc(sizeof *held);
    if (!held) {
        a->problem = NO_MEMORY;
        return NULL;
    }
    held->range.base = base;
    held->range.size = size;
    held->range.page = page;
    held->next = a->ranges;
    a->ranges = held;
    struct block *block = new_block_at(a, base, next_counter(a), size, home, &held->range, FREE);
    if (block)
        add_unmapped(a, block);
    return block;
}

static int has_room(const struct block *block, i64 size)
{
    i64 room = 0;
    while (room < size && block && (block->state == FREE || block->state == UNMAPPED)) {
        room += block->size;
        block = block->next;
    }
    return room >= size;
}

static i64 page_of(const struct allocator *a, const struct home *home)
{
    return home->half->is_small ? SMALL_SEGMENT_BYTES : a->given->large_segment_size;
}

static struct block *candidate(struct allocator *a, i64 size, struct home *home)
{
    for (i64 at = 0; at < home->unmapped.count; at++) {
        struct block *block = home->unmapped.items[at], *before = block->previous;
        struct block *start = before && before->state == FREE ? before : block;
        if (has_room(start, size))
            return start;
    }
    i64 page = page_of(a, home), most = a->given->address_space > size ? a->given->address_space : size;
    i64 length = (most + page - 1) / page * page;
    u64 base = fresh(a, length);
    return a->problem ? NULL : new_range(a, base, length, page, home);
}

static struct block *expand(struct allocator *a, i64 size, struct home *home)
{
    struct block *block = candidate(a, size, home);
    if (!block)
        return NULL;
    if (block->state == UNMAPPED) {
        block = map_pages(a, block, block->size < size ? block->size : size);
        if (!block)
            return NULL;
    }
    while (block->size < size) {
        struct block *beyond = block->next;
        if (!beyond || beyond->state != UNMAPPED) {
            a->problem = CONTRADICTION;
            return NULL;
        }
        i64 missing = size - block->size;
        block = map_pages(a, beyond, missing < beyond->size ? missing : beyond->size);
        if (!block)
            return NULL;
    }
    remove_free(a, block);
    return block;
}

/* Memory from the driver, and back to it. */

static i64 segment_size(const struct allocator *a, i64 size)
{
    if (size <= SMALL_BYTES)
        return SMALL_SEGMENT_BYTES;
    if (size < OWN_SEGMENT_BYTES)
        return a->given->large_segment_size;
    return (size + SEGMENT_STEP_BYTES - 1) / SEGMENT_STEP_BYTES * SEGMENT_STEP_BYTES;
}

static struct block *reserve(struct allocator *a, i64 size, struct home *home)
{
    i64 bytes = segment_size(a, size);
    u64 address;
    if (a->given->memory_limit >= 0 && a->reserved + bytes > a->given->memory_limit)
        return NULL;
    if (a->given->expandable)
        return expand(a, size, home);
    if (!driver_reserve(a, bytes, &address) || a->problem)
        return NULL;
    struct block *block = new_block_at(a, address, next_counter(a), bytes, home, NULL, FREE);
    adjust_reserved(a, bytes);
    return block;
}

static void release_segment(struct allocator *a, struct block *block)
{
    remove_free(a, block);
    driver_release(a, block->address, block->size);
    adjust_reserved(a, -block->size);
}

/* Free blocks of the default pool's small or large half, by stream, size and rank. */
static struct block **free_of_half(struct allocator *a, const struct half *half, i64 *count)
{
    i64 total = 0;
    *count = 0;
    for (i64 at = 0; at < a->given->num_homes; at++)
        if (a->homes[at].half == half)
            total += a->homes[at].free.count;
    struct block **found = malloc((size_t)(total ? total : 1) * sizeof *found);
    if (!found) {
        a->problem = NO_MEMORY;
        return NULL;
    }
    for (i64 at = 0; at < a->given->num_homes; at++) {
        const struct list *list = &a->homes[at].free;
        if (a->homes[at].half == half && list->count) {
            memcpy(found + *count, list->items, (size_t)list->count * sizeof *found);
            *count += list->count;
        }
    }
    return found;
}

static void release_blocks(struct allocator *a, const struct half *half)
{
    i64 count;
    struct block **found = free_of_half(a, half, &count);
    if (!found)
        return;
    for (i64 at = 0; at < count && !a->problem; at++)
        if (!found[at]->range && !is_split(found[at]))
            release_segment(a, found[at]);
    for (i64 at = 0; at < count && !a->problem; at++)
        if (found[at]->range)
            unmap(a, found[at]);
    for (i64 at = 0; at < count && !a->problem; at++)
        if (!found[at]->range && !is_split(found[at]))
            forget(a, found[at]);
    free(found);
}

/* The default pool's halves are the first two: the large one and the small one. Private pools are in use to the end. */
static void release_cached(struct allocator *a)
{
    while (a->first_pending && !a->problem)
        finish(a, a->first_pending);
    release_blocks(a, &a->halves[0]);
    release_blocks(a, &a->halves[1]);
}

static int release_available(struct allocator *a, i64 size, struct home *home)
{
    i64 limit = a->given->max_split, released = 0;
    if (limit < 0)
        return 0;
    i64 wanted = size > limit ? size : limit, at = place(&home->free, wanted, 0, 0);
    if (at < home->free.count && !home->free.items[at]->range) {
        release_segment(a, home->free.items[at]);
        return 1;
    }
    for (at--; at >= 0 && !a->problem; at--) {
        struct block *block = home->free.items[at];
        if (released >= wanted || block->size < limit)
            break;
        if (!block->range) {
            released += block->size;
            release_segment(a, block);
        }
    }
    return released >= wanted;
}

static void collect_garbage(struct allocator *a)
{
    i64 excess = a->reserved - a->given->garbage_threshold, count;
    const struct half *large = &a->halves[0];
    while (excess > 0 && !a->problem) {
        struct block **found = free_of_half(a, large, &count);
        if (!found)
            return;
        i64 whole = 0, total = 0, old = 0;
        for (i64 at = 0; at < count; at++)
            if (!found[at]->range && !is_split(found[at])) {
                found[whole++] = found[at];
                total += large->searches - found[at]->made_at;
            }
        for (i64 at = 0; at < whole; at++)
            if ((large->searches - found[at]->made_at) * whole >= total)
                found[old++] = found[at];
        for (i64 at = 0; at < old && !a->problem; at++) {
            excess -= found[at]->size;
            release_segment(a, found[at]);
        }
        free(found);
        if (!old)
            return;
    }
}

static struct block *new_block(struct allocator *a, i64 size, struct home *home)
{
    if (a->given->memory_limit >= 0 && a->given->counts_searches)
        collect_garbage(a);
    struct block *block = reserve(a, size, home);
    if (!block && !a->problem && release_available(a, size, home))
        block = reserve(a, size, home);
    if (!block && !a->problem) {
        release_cached(a);
        a->retries++;
        if (!a->problem)
            block = reserve(a, size, home);
    }
    return block;
}

/* How a block is found. */

static i64 reach(const struct block *block)
{
    const struct block *after = block->next;
    return block->size + (after && after->state == UNMAPPED ? after->size : 0);
}

static i64 choose(const struct allocator *a, const struct home *home, i64 at)
{
    struct block **blocks = home->free.items;
    i64 count = home->free.count;
    if (!a->given->expandable) {
        while (at < count && blocks[at]->range)
            at++;
        return at < count ? at : -1;
    }
    while (blocks[at]->range && at + 1 < count && reach(blocks[at + 1]) < reach(blocks[at]))
        at++;
    return at;
}

static struct block *cached_block(struct allocator *a, i64 size, struct home *home)
{
    if (a->given->counts_searches)
        home->half->searches++;
    i64 at = place(&home->free, size, 0, 0), limit = a->given->max_split;
    if (at == home->free.count)
        return NULL;
    if (home->free.items[at]->range)
        at = choose(a, home, at);
    if (at < 0)
        return NULL;
    struct block *block = home->free.items[at];
    if (limit >= 0 && (size < limit ? block->size >= limit : block->size >= size + a->given->max_non_split_rounding))
        return NULL;
    take(&home->free, at);
    return block;
}

/* NULL with `failed_size`: there is no memory for it. */
static struct block *serve(struct allocator *a, i64 size, struct home *home)
{
    struct block *block = cached_block(a, size, home);
    if (!block)
        block = new_block(a, size, home);
    if (!block) {
        a->failed_size = size;
        return NULL;
    }
    home = block->home;
    i64 rest = block->size - size;
    if (rest >= home->min_rest && size < home->max_cut) {
        struct block *free_rest = cut(a, block, size);
        if (!free_rest)
            return NULL;
        add_free(a, free_rest);
        rest = 0;
    }
    block->state = USED;
    a->allocated += size + rest;
    if (a->allocated > a->peak_allocated)
        a->peak_allocated = a->allocated;
    return block;
}

/* What was there before the recording. */

/* The first blocks, from a clean allocator; whether all were served. */
static int serve_first(struct allocator *a, struct block **live)
{
    for (i64 at = 0; at < a->given->num_first; at++) {
        i64 life = a->given->first[at];
        struct block *block = serve(a, a->given->size[life], &a->homes[a->given->home[life]]);
        if (!block || a->problem)
            return 0;
        live[life] = block;
        if (a->given->waits[life]) {
            block->label = life;
            request_free(a, block);
        }
    }
    return 1;
}

/* `load`: each span as it was, cut into its used and free blocks. */
static int lay_spans(struct allocator *a, struct block **live)
{
    const struct given *given = a->given;
    /* By the first span of each expandable segment: its unmapped rest. */
    struct block **rest = calloc((size_t)(given->num_spans ? given->num_spans : 1), sizeof *rest);
    i64 life = 0;
    if (!rest) {
        a->problem = NO_MEMORY;
        return 0;
    }
    for (i64 span = 0; span < given->num_spans && !a->problem; span++) {
        struct home *home = &a->homes[given->span_home[span]];
        struct block *block;
        if (!given->span_expandable[span]) {
            block = new_block_at(a, given->span_address[span], next_counter(a), given->span_size[span], home, NULL, FREE);
        } else {
            i64 of = given->span_range[span], page = page_of(a, home);
            block = rest[of] ? rest[of]
                             : new_range(a, given->span_base[span], (given->address_space + page - 1) / page * page, page,
                                         home);
            if (!block)
                break;
            remove_unmapped(a, block);
            if (given->span_address[span] > block->address) {
                struct block *behind = cut(a, block, (i64)(given->span_address[span] - block->address));
                if (!behind)
                    break;
                add_unmapped(a, block);
                block = behind;
            }
            rest[of] = cut(a, block, given->span_size[span]);
            if (!rest[of])
                break;
            add_unmapped(a, rest[of]);
        }
        if (!block)
            break;
        int is_full = 0;
        for (; life < given->span_lives[span] && !a->problem; life++) {
            i64 size = given->span_life_size[life];
            if (given->span_life_address[life] > block->address) {
                struct block *behind = cut(a, block, (i64)(given->span_life_address[life] - block->address));
                if (!behind)
                    break;
                add_free(a, block);
                block = behind;
            }
            block->state = USED;
            live[given->span_life[life]] = block;
            if (size == block->size) {
                is_full = 1;
                life = given->span_lives[span];
                break;
            }
            block = cut(a, block, size);
            if (!block)
                break;
        }
        if (a->problem || !block)
            break;
        if (!is_full)
            add_free(a, block);
        a->reserved += given->span_size[span];
    }
    free(rest);
    return !a->problem;
}

static int go_on_from_start(struct allocator *a, struct block **live)
{
    const struct given *given = a->given;
    i64 count = given->num_spans ? given->span_lives[given->num_spans - 1] : 0;
    if (!lay_spans(a, live))
        return 0;
    for (i64 at = 0; at < count; at++) {
        i64 life = given->span_life[at];
        struct block *block = live[life];
        if (!block)
            continue;
        block->label = life;
        if (given->waits[life]) {
            block->state = PENDING;
            wait_for(a, block);
        } else {
            a->allocated += block->size;
        }
    }
    a->peak_reserved = a->reserved;
    a->peak_allocated = a->allocated;
    for (i64 at = 0; at < count && !a->problem; at++) {
        i64 life = given->span_life[at];
        if (!given->is_first[life] && live[life]) {
            give_back(a, live[life]);
            live[life] = NULL;
        }
    }
    return !a->problem;
}

/* The replay. */

static i64 run(struct allocator *a, struct block **live, i64 *unserved, struct outcome *outcome)
{
    const struct given *given = a->given;
    i64 position = -1;
    if (!(given->from_start ? go_on_from_start(a, live) : serve_first(a, live)))
        goto failed;
    for (position = 0; position < given->num_operations; position++) {
        i64 op = given->code[position], number = given->operand[position];
        struct block *block;
        switch (op) {
        case ALLOC:
            block = serve(a, given->size[number], &a->homes[given->home[number]]);
            if (!block)
                goto failed;
            live[number] = block;
            break;
        case FREE_AT_ONCE:
            block = live[number];
            live[number] = NULL;
            if (block)
                give_back(a, block);
            break;
        case REQUEST_FREE:
            block = live[number];
            if (block) {
                block->label = number;
                request_free(a, block);
            }
            break;
        case COMPLETE_FREE:
            block = live[number];
            live[number] = NULL;
            if (block && block->label == number)
                finish(a, block);
            break;
        case RELEASE:
            release_cached(a);
            break;
        case OOM:
            outcome->wanted_bytes = a->allocated + given->failed_size[number];
            block = serve(a, given->failed_size[number], &a->homes[given->failed_home[number]]);
            if (block)
                give_back(a, block);
            else if (!given->goes_on || a->problem)
                goto failed;
            else
                unserved[outcome->num_unserved++] = position;
            break;
        default:
            break;
        }
        if (a->problem)
            break;
    }
    return a->problem ? a->problem : SERVED;
failed:
    if (a->problem)
        return a->problem;
    outcome->failed_at = position;
    outcome->failed_size_bytes = a->failed_size;
    outcome->failed_reserved_bytes = a->reserved;
    outcome->failed_allocated_bytes = a->allocated;
    return FAILED;
}

static int compare_addresses(const void *one, const void *other)
{
    u64 first = *(const u64 *)one, second = *(const u64 *)other;
    return first < second ? -1 : first > second;
}

static int set_up(struct allocator *a)
{
    const struct given *given = a->given;
    i64 num_pools = 1;
    a->driver_reserved = given->reserved;
    a->lowest = given->top / CHUNK_BYTES * CHUNK_BYTES;
    for (i64 at = 0; at < given->num_homes; at++)
        if (given->home_pool[at] >= num_pools)
            num_pools = given->home_pool[at] + 1;
    a->halves = calloc((size_t)(2 * num_pools), sizeof *a->halves);
    a->homes = calloc((size_t)(given->num_homes ? given->num_homes : 1), sizeof *a->homes);
    a->given_addresses = calloc((size_t)(given->num_spans ? given->num_spans : 1), sizeof *a->given_addresses);
    if (!a->halves || !a->homes || !a->given_addresses)
        return 0;
    for (i64 at = 0; at < given->num_homes; at++) {
        struct home *home = &a->homes[at];
        int is_small = given->home_small[at] != 0;
        home->half = &a->halves[2 * given->home_pool[at] + is_small];
        home->half->is_small = is_small;
        home->min_rest = is_small || given->expandable ? MIN_BLOCK_BYTES : SMALL_BYTES + 1;
        home->max_cut = is_small || given->expandable || given->max_split <= 0 ? NEVER : given->max_split;
    }
    for (i64 span = 0; span < given->num_spans; span++)
        if (!given->span_expandable[span])
            a->given_addresses[a->num_given++] = given->span_address[span];
    qsort(a->given_addresses, (size_t)a->num_given, sizeof *a->given_addresses, compare_addresses);
    return 1;
}

static void tear_down(struct allocator *a)
{
    for (i64 at = 0; a->homes && at < a->given->num_homes; at++) {
        free(a->homes[at].free.items);
        free(a->homes[at].unmapped.items);
    }
    free(a->homes);
    free(a->halves);
    free(a->given_addresses);
    free(a->whole.start);
    free(a->whole.size);
    free(a->parts.start);
    free(a->parts.size);
    for (struct chunk *chunk = a->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    for (struct range_list *range = a->ranges, *next; range; range = next) {
        next = range->next;
        free(range);
    }
}

/* Replays, and returns whether that has an answer: a history that contradicts itself has none. `unserved` has room for
 * all failed requests, and gets positions of operations. */
EXPORTED i64 torch_timeline_replay(const struct given *given, i64 *unserved, struct outcome *outcome)
{
    struct allocator allocator = {.given = given};
    struct block **live = calloc((size_t)(given->num_lives ? given->num_lives : 1), sizeof *live);
    i64 ended = NO_MEMORY;
    memset(outcome, 0, sizeof *outcome);
    if (live && set_up(&allocator))
        ended = run(&allocator, live, unserved, outcome);
    outcome->reserved_peak_bytes = allocator.peak_reserved;
    outcome->allocated_peak_bytes = allocator.peak_allocated;
    outcome->num_driver_calls = allocator.driver_calls;
    outcome->num_retries = allocator.retries;
    outcome->has_failed = ended == FAILED;
    free(live);
    tear_down(&allocator);
    return ended == SERVED || ended == FAILED;
}
