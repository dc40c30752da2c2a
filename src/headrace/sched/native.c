/* The ledger's hot operations: the same stores in the same order as their twins, lane.py, claims.py and filing.py,
 * trainer.py, publication.py and oversight.py.
 *
 * Each one takes the run's lock, works on the words and lets the lock go, without touching a Python object in between:
 * whoever holds the lock never waits for an interpreter. Words are volatile, so a process that is killed anywhere has
 * made its stores in the order written here.
 *
 * What callers pass is checked before the lock is taken; what stands in the words is not: the run's own processes wrote
 * it. Only the stable interface of Python is used, so one build serves every version from 3.11 on.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include "words.h"

typedef int64_t i64;
typedef volatile int64_t *Cells;
_Static_assert(sizeof(pthread_mutex_t) <= (W_MUTEX_WORDS - 1) * sizeof(i64), "a lock has room among the words");

static PyObject *Killed;

typedef struct {
    PyObject_HEAD
    Py_buffer view, fuse_view;
    Cells w;
    i64 *fuse; /* tests: stores that still take effect (negative: all), stores made */
    pthread_mutex_t *mutex;
    i64 ring, order, fill, retry, hole, group0, group_stride, index0, ticket0;
    i64 slot0, slot_stride, row_ticket0, row_state0, lane0, lane_stride;
    i64 lanes, groups, slots, rows, words;
} Ledger;

/* Stores go through here: a test may stop a lane before any of them. */
#define PUT(at, value)                                  \
    do {                                                \
        if (l->fuse) {                                  \
            if (l->fuse[0] == 0) return -1;             \
            if (l->fuse[0] > 0) l->fuse[0]--;           \
            l->fuse[1]++;                               \
        }                                               \
        w[at] = (value);                                \
    } while (0)
#define DO(call)                   \
    do {                           \
        if ((call) < 0) return -1; \
    } while (0)
#define GROUP(g) (l->group0 + (g) * l->group_stride)
#define TICKET(g) (l->ticket0 + (g) * l->group_stride)
#define SLOT(s) (l->slot0 + (s) * l->slot_stride)
#define LANE(n) (l->lane0 + (n) * l->lane_stride)

/* How facts are written in words: the twins of encoding.py. */
#define SOME(number) ((number) + 1)
#define WHICH(word) ((word) - 1)
#define PAIR(one, two) ((one) << 32 | (two))
#define FIRST(pair) ((pair) >> 32)
#define SECOND(pair) ((pair) & 0xFFFFFFFFLL)
#define CURSOR(place, position) ((place) << 24 | (position))
#define CURSOR_PLACE(word) ((word) >> 24)
#define CURSOR_POSITION(word) ((word) & 0xFFFFFF)
#define TO_COLLATE(item) (-(item) - 1) /* negative: the item is a ticket */
#define STATE(ticket) ((ticket) & 15)
#define AS_OBJECT(offset) (W_AS_OBJECT | (offset) << 8)
#define LAYOUT(number) ((number) + 2)
#define LAYOUT_IN(word) ((word) - 2)

/* -- the lock: robust, so that its holder's death frees it; what that one left half done is put right by a repair -- */

static int try_lock(pthread_mutex_t *mutex)
{
    int rc = pthread_mutex_trylock(mutex);
    return rc == EOWNERDEAD ? pthread_mutex_consistent(mutex) : rc;
}

static int wait_lock(pthread_mutex_t *mutex)
{
    int rc = pthread_mutex_lock(mutex);
    return rc == EOWNERDEAD ? pthread_mutex_consistent(mutex) : rc;
}

/* For a moment, in the hope that its holder is about to let it go. */
static int spin_lock(pthread_mutex_t *mutex)
{
    int rc = try_lock(mutex);
    for (int spin = 0; rc == EBUSY && spin < 64; spin++) rc = try_lock(mutex);
    return rc;
}

/* Inside, nothing of Python's is touched. EDEADLK: this thread holds the lock already, and goes on holding it. If it
 * cannot be had, nothing is done. A result below zero: see stopped. */
#define SECTION(result, call)                                           \
    do {                                                                \
        int held = l->mutex ? spin_lock(l->mutex) : EDEADLK;            \
        PyThreadState *waiting = NULL;                                  \
        if (held == EBUSY) {                                            \
            waiting = PyEval_SaveThread();                              \
            held = wait_lock(l->mutex);                                 \
        }                                                               \
        result = held == 0 || held == EDEADLK ? (call) : -1 - held;     \
        if (held == 0) pthread_mutex_unlock(l->mutex);                  \
        if (waiting) PyEval_RestoreThread(waiting);                     \
    } while (0)

/* -- what both sides share -- */

static int answers(Ledger *l, i64 event)
{
    Cells w = l->w;
    i64 awaited = w[W_AWAITED];
    if (awaited == W_NOTHING || (awaited != event && awaited != W_ANY && event != W_ANY)) return 0;
    PUT(W_AWAITED, W_NOTHING);
    return 1;
}

static int stale(Ledger *l, i64 lane) { return l->w[lane + W_L_GENERATION] != l->w[W_GENERATION]; }

/* -- a lane -- */

typedef struct { i64 slot, first, count, group, start; const i64 *objects; } Written;
typedef struct { i64 samples, cost, bin; } Made;
typedef struct { i64 mode, chunk, share, least, whole; } TakeSize;
typedef struct { i64 what, a, b, c, d; int wake; } Answer;
enum { ASLEEP, TICKETS, COLLATE, STOP, COMPLETED };
enum { EVERYTHING, CHUNKS, WHOLE };
#define ALL (1LL << 20)

static int ends(Ledger *l)
{
    if (l->w[W_UNRESOLVED] != 0) return 0;
    return answers(l, W_ANY);
}

static int advance(Ledger *l, i64 lane, i64 slot, i64 resolved, int collation, i64 *collate, int *wake)
{
    Cells w = l->w;
    i64 at = SLOT(slot);
    int told;
    if (collation) PUT(at + W_S_COLLATE, 1);
    PUT(at + W_S_DONE, w[at + W_S_DONE] + resolved);
    *collate = -1;
    if (w[at + W_S_DONE] < w[at + W_S_EXPECTED] || w[at + W_S_STATUS] != W_FILLING) {
        PUT(W_UNRESOLVED, w[W_UNRESOLVED] - resolved);
        DO(told = ends(l));
    } else if (w[at + W_S_COLLATE]) {
        PUT(lane + W_L_COLLATE, SOME(slot));
        PUT(at + W_S_STATUS, W_COLLATING);
        PUT(W_UNRESOLVED, w[W_UNRESOLVED] - resolved);
        *collate = slot;
        DO(told = ends(l));
    } else {
        PUT(at + W_S_STATUS, W_READY);
        PUT(W_UNRESOLVED, w[W_UNRESOLVED] - resolved);
        DO(told = answers(l, SOME(slot)));
        if (!told) DO(told = ends(l));
    }
    *wake = told;
    return 0;
}

static int finish(Ledger *l, i64 lane, const Written *r, i64 *collate, int *wake)
{
    Cells w = l->w;
    i64 at = TICKET(r->group) + r->start, done = r->count, ticket = SOME(PAIR(r->group, r->start));
    i64 row_ticket = l->row_ticket0 + r->slot * l->slot_stride + r->first;
    i64 row_state = l->row_state0 + r->slot * l->slot_stride + r->first;
    int last = r->first + r->count == w[lane + W_L_ROW] + w[lane + W_L_ROWS];
    *collate = -1;
    *wake = 0;
    if (stale(l, lane)) {
        if (last) PUT(lane + W_L_SLOT, 0);
        return 0;
    }
    int plain = r->objects == NULL;
    for (i64 i = 0; plain && i < r->count; i++) plain = w[at + i] == 0;
    if (plain) {
        for (i64 i = 0; i < r->count; i++) PUT(row_ticket + i, ticket + i);
        for (i64 i = 0; i < r->count; i++) PUT(row_state + i, W_IN_PLACE);
        for (i64 i = 0; i < r->count; i++) PUT(at + i, W_DONE);
    } else {
        for (i64 i = 0; i < r->count; i++) {
            i64 word = w[at + i];
            if (STATE(word) != W_PENDING) {
                if (w[W_FREE_ORDER]) {
                    PUT(l->hole + w[W_HOLES], PAIR(r->slot, r->first + i));
                    PUT(W_HOLES, w[W_HOLES] + 1);
                }
                done--;
                continue;
            }
            PUT(row_ticket + i, ticket + i);
            PUT(row_state + i, r->objects ? AS_OBJECT(r->objects[i]) : W_IN_PLACE);
            PUT(at + i, word | W_DONE);
        }
    }
    if (last) PUT(lane + W_L_SLOT, 0);
    return advance(l, lane, r->slot, done, r->objects != NULL, collate, wake);
}

static int observe(Ledger *l, i64 lane, const Made *made)
{
    Cells w = l->w;
    if (w[lane + W_L_ROLE] == W_ASIDE) {
        i64 excess = made->cost * made->samples - w[W_BAR];
        PUT(W_RETURNS, w[W_RETURNS] + 1);
        PUT(W_EXCESS, w[W_EXCESS] + (excess > 0 ? excess : 0));
    }
    PUT(W_HISTOGRAM + made->bin, w[W_HISTOGRAM + made->bin] + made->samples);
    if (made->cost > W_STRAGGLER_NS && made->samples == 1 && w[W_THRESHOLD] > 0 &&
        W_STRAGGLES * w[W_THRESHOLD] < made->cost) {
        i64 group = WHICH(w[lane + W_L_GROUP]), at = GROUP(group);
        if (group >= 0 && !(w[at + W_G_KIND] & W_PICKLED) && w[at + W_G_SERIAL] == w[lane + W_L_SERIAL]) {
            PUT(W_LOG + w[W_LOGGED] % W_LOG_SIZE, w[l->index0 + group * l->group_stride + w[lane + W_L_START]]);
            PUT(W_LOGGED, w[W_LOGGED] + 1);
        }
    }
    PUT(W_FINISHED, w[W_FINISHED] + made->samples);
    if (w[W_THRESHOLD] > 0 && w[W_THRESHOLD] < made->cost) PUT(W_SLOW, w[W_SLOW] + made->samples);
    return 0;
}

static int works(Ledger *l, i64 lane)
{
    Cells w = l->w;
    if (w[lane + W_L_ROLE] == W_WORKING) {
        if (w[W_FOREGROUND] <= w[W_LIMIT]) return 1;
        PUT(W_FOREGROUND, w[W_FOREGROUND] - 1);
        PUT(lane + W_L_ROLE, W_PARKED);
        return 0;
    }
    if (w[W_FOREGROUND] >= w[W_LIMIT]) {
        PUT(lane + W_L_ROLE, W_PARKED);
        return 0;
    }
    PUT(lane + W_L_ROLE, W_WORKING);
    PUT(W_FOREGROUND, w[W_FOREGROUND] + 1);
    return 1;
}

static i64 wanted(Ledger *l, const TakeSize *size)
{
    Cells w = l->w;
    i64 sequence = CURSOR_PLACE(w[W_CURSOR]), tail = w[W_TAIL] > 0 ? w[W_TAIL] - 1 : 0, count, want, queued, fair;
    if (size->mode == EVERYTHING || w[W_LOCAL]) return ALL;
    count = w[GROUP(w[l->order + (sequence < tail ? sequence : tail) % l->ring]) + W_G_COUNT];
    if (size->mode == WHOLE && !w[W_FREE_ORDER]) return count <= size->whole ? ALL : 1;
    queued = (w[W_TAIL] - sequence) * count - CURSOR_POSITION(w[W_CURSOR]);
    fair = queued > 0 ? queued / (2 * (w[W_LIMIT] > 0 ? w[W_LIMIT] : 1)) : 0;
    if (fair < size->least) fair = size->least;
    if (fair < size->chunk / 4) fair = size->chunk / 4;
    want = count / size->share;
    if (size->chunk < want) want = size->chunk;
    if (fair < want) want = fair;
    return want > 1 ? want : 1;
}

static int in_turn(Ledger *l, i64 want, i64 *group, i64 *first, i64 *end)
{
    Cells w = l->w;
    i64 sequence = CURSOR_PLACE(w[W_CURSOR]), start = CURSOR_POSITION(w[W_CURSOR]);
    *group = -1;
    while (sequence < w[W_TAIL]) {
        i64 g = w[l->order + sequence % l->ring], at = GROUP(g), count, tickets, stop;
        if (SECOND(w[at + W_G_SERIAL]) != sequence) {
            sequence++, start = 0;
            continue;
        }
        count = w[at + W_G_COUNT], tickets = TICKET(g);
        stop = start + want < count ? start + want : count;
        if (w[at + W_G_AHEAD]) {
            while (start < count && w[tickets + start] & W_AHEAD) start++;
            i64 most = start + want < count ? start + want : count;
            for (stop = start; stop < most && !(w[tickets + stop] & W_AHEAD); stop++) {}
        }
        PUT(W_CURSOR, stop == count ? CURSOR(sequence + 1, 0) : CURSOR(sequence, stop));
        if (start < stop) {
            *group = g, *first = start, *end = stop;
            return 0;
        }
        sequence++, start = 0;
    }
    return 0;
}

static int hold(Ledger *l, i64 lane, i64 group, i64 start, i64 end)
{
    Cells w = l->w;
    PUT(lane + W_L_GROUP, 0);
    PUT(lane + W_L_BEGAN, 0);
    PUT(lane + W_L_WHOLE, 0);
    PUT(lane + W_L_POS, start);
    PUT(lane + W_L_START, start);
    PUT(lane + W_L_END, end);
    PUT(lane + W_L_SERIAL, w[GROUP(group) + W_G_SERIAL]);
    PUT(lane + W_L_GROUP, SOME(group));
    return 0;
}

static int take(Ledger *l, i64 lane, i64 want, Answer *answer)
{
    Cells w = l->w;
    i64 retries, group, start = 0, end = 0, slot;
    int at_work;
    PUT(lane + W_L_GENERATION, w[W_GENERATION]);
    answer->what = ASLEEP;
    DO(at_work = works(l, lane));
    if (!at_work) return 0;
    retries = w[W_RETRIES];
    if (retries) {
        i64 item = w[l->retry + retries - 1];
        PUT(W_RETRIES, retries - 1);
        if (TO_COLLATE(item) >= 0) {
            PUT(lane + W_L_COLLATE, SOME(TO_COLLATE(item)));
            answer->what = COLLATE, answer->d = TO_COLLATE(item);
            return 0;
        }
        group = FIRST(item), start = SECOND(item), end = start + 1;
    } else {
        DO(in_turn(l, want, &group, &start, &end));
        if (group < 0) return 0;
    }
    DO(hold(l, lane, group, start, end));
    slot = WHICH(w[GROUP(group) + W_G_SLOT]);
    if (slot >= 0) {
        PUT(lane + W_L_ROW, start);
        PUT(lane + W_L_ROWS, end - start);
        PUT(lane + W_L_SLOT, SOME(slot));
    }
    answer->what = TICKETS, answer->a = group, answer->b = start, answer->c = end, answer->d = slot;
    return 0;
}

static int visit(Ledger *l, i64 lane, const Written *written, const Made *made, const TakeSize *size, Answer *answer)
{
    Cells w = l->w;
    answer->wake = 0;
    if (written) {
        i64 collate;
        DO(finish(l, lane, written, &collate, &answer->wake));
        if (collate >= 0) {
            answer->what = COMPLETED, answer->d = collate;
            return 0;
        }
    }
    if (made) DO(observe(l, lane, made));
    PUT(lane + W_L_GROUP, 0);
    PUT(lane + W_L_SLOT, 0);
    if (w[W_STOP]) {
        answer->what = STOP;
        return 0;
    }
    i64 want = wanted(l, size);
    DO(take(l, lane, want, answer));
    if (answer->what == ASLEEP) PUT(lane + W_L_WAITING, W_FOR_WORK);
    if (answer->what == TICKETS) PUT(W_WORTH_WAKING, want > size->least ? want : size->least);
    return 0;
}

static i64 holes_in(Ledger *l, i64 slot)
{
    i64 found = 0;
    for (i64 hole = 0; hole < l->w[W_HOLES]; hole++) found += FIRST(l->w[l->hole + hole]) == slot;
    return found;
}

static i64 unclaimed(Ledger *l, i64 number)
{
    i64 at = GROUP(l->w[l->order + number % l->ring]);
    return SECOND(l->w[at + W_G_SERIAL]) == number ? l->w[at + W_G_UNCLAIMED] : 0;
}

typedef struct { i64 lane, want, layout, expected, room; } Claim;
enum { NO_ROW, GIVEN_UP, ROWS, OTHER_SIZE };

static int shape(Ledger *l, i64 slot, i64 layout, i64 room)
{
    Cells w = l->w;
    i64 at = SLOT(slot);
    if (w[at + W_S_LAYOUT] == 0) {
        PUT(at + W_S_BUMP, room);
        PUT(at + W_S_LAYOUT, LAYOUT(layout));
    }
    return 0;
}

/* See claims.py for why a lane's tickets may go there: the first slot, and for how many of them. */
static int place_for(Ledger *l, i64 lane, int holes, i64 *place, i64 *many)
{
    Cells w = l->w;
    i64 begin = w[W_FILL_CURSOR], end = w[W_FILL_TAIL], displacement = w[W_DISPLACEMENT];
    i64 deadline, oldest, rows = 0, due = 0, found = -1, spare = W_NEVER;
    for (i64 hole = 0; holes && hole < w[W_HOLES]; hole++) {
        i64 at = SLOT(FIRST(w[l->hole + hole]));
        if (w[at + W_S_NUMBER] < begin) begin = w[at + W_S_NUMBER];
    }
    deadline = oldest = end;
    if (displacement) {
        i64 last = end - 1 - displacement;
        deadline = SECOND(w[lane + W_L_SERIAL]) + displacement;
        for (oldest = w[W_OLDEST]; oldest <= last && unclaimed(l, oldest) == 0; oldest++) {}
        PUT(W_OLDEST, oldest);
    }
    for (i64 fill = begin; fill < end; fill++) {
        i64 slot = w[l->fill + fill % l->ring], at = SLOT(slot), free = 0;
        if (w[at + W_S_NUMBER] == fill)
            free = w[at + W_S_EXPECTED] - w[at + W_S_CLAIMED] +
                   (holes ? holes_in(l, slot) : 0);
        if (free == 0 && fill == w[W_FILL_CURSOR]) PUT(W_FILL_CURSOR, fill + 1);
        if (free && found < 0) found = fill, spare = W_NEVER;
        if (fill >= deadline || (found >= 0 && oldest + displacement >= end)) break;
        rows += free;
        while (oldest + displacement <= fill) due += unclaimed(l, oldest++);
        if (due >= rows) found = -1;
        if (rows - due < spare) spare = rows - due;
    }
    *place = found, *many = spare;
    return 0;
}

static int claim(Ledger *l, const Claim *asked, Answer *answer)
{
    Cells w = l->w;
    i64 lane = asked->lane, group = GROUP(WHICH(w[lane + W_L_GROUP])), fill, spare, slot, at, first, count, hole = -1;
    int holes = w[W_HOLES] > 0;
    answer->what = GIVEN_UP, answer->wake = 0;
    if (stale(l, lane) || w[W_STOP]) return 0;
    DO(place_for(l, lane, holes, &fill, &spare));
    if (fill < 0) {
        answer->what = NO_ROW;
        PUT(lane + W_L_WAITING, W_FOR_ROOM);
        return 0;
    }
    slot = w[l->fill + fill % l->ring], at = SLOT(slot);
    if (asked->layout >= 0 && w[at + W_S_LAYOUT] == 0 && w[at + W_S_EXPECTED] != asked->expected) {
        answer->what = OTHER_SIZE, answer->a = w[at + W_S_EXPECTED];
        return 0;
    }
    for (i64 i = 0; holes && i < w[W_HOLES]; i++)
        if (FIRST(w[l->hole + i]) == slot) hole = i;
    if (hole >= 0) {
        i64 last = w[W_HOLES] - 1, item = w[l->hole + hole], moved = w[l->hole + last];
        PUT(W_HOLES, last);
        if (hole < last) PUT(l->hole + hole, moved);
        first = SECOND(item), count = 1;
    } else {
        first = w[at + W_S_CLAIMED], count = asked->want;
        if (w[at + W_S_EXPECTED] - first < count) count = w[at + W_S_EXPECTED] - first;
        if (spare < count) count = spare;
    }
    PUT(lane + W_L_SLOT, 0);
    PUT(lane + W_L_ROW, first);
    PUT(lane + W_L_ROWS, count);
    PUT(lane + W_L_SLOT, SOME(slot));
    if (hole < 0) PUT(at + W_S_CLAIMED, first + count);
    PUT(group + W_G_UNCLAIMED, w[group + W_G_UNCLAIMED] - count);
    DO(shape(l, slot, asked->layout, asked->room));
    answer->what = ROWS, answer->a = slot, answer->b = first, answer->c = count, answer->d = LAYOUT_IN(w[at + W_S_LAYOUT]);
    return 0;
}

static int reserve(Ledger *l, i64 slot, i64 size, i64 most, i64 *offset)
{
    Cells w = l->w;
    i64 at = SLOT(slot) + W_S_BUMP;
    *offset = w[at];
    if (*offset + size > most) return 0;
    PUT(at, *offset + size);
    return 0;
}

static int ready(Ledger *l, i64 lane, i64 slot, i64 offset, i64 size, i64 failed, int *wake)
{
    Cells w = l->w;
    i64 at = SLOT(slot);
    *wake = 0;
    PUT(lane + W_L_COLLATE, 0);
    if (stale(l, lane) || w[at + W_S_STATUS] != W_COLLATING) return 0;
    PUT(at + W_S_RESULT, offset);
    PUT(at + W_S_RESULT_BYTES, size);
    PUT(at + W_S_FAILED, failed);
    PUT(at + W_S_STATUS, W_READY);
    DO(*wake = answers(l, SOME(slot)));
    return 0;
}

/* -- the trainer -- */

typedef struct { i64 *lanes; Py_ssize_t count; } Woken;

static int wake_lanes(Ledger *l, i64 lanes, i64 most, Woken *woken)
{
    Cells w = l->w;
    i64 places = w[W_LIMIT] - w[W_FOREGROUND];
    if (places < 0) most = lanes;
    woken->count = 0;
    for (i64 lane = 0; lane < lanes; lane++) {
        i64 at = LANE(lane), waiting = w[at + W_L_WAITING];
        if (!waiting) continue;
        if (waiting == W_FOR_WORK) {
            if (most <= 0) continue;
            if (w[at + W_L_ROLE] != W_WORKING) {
                if (places <= 0) continue;
                places--;
            }
            most--;
        }
        PUT(at + W_L_WAITING, 0);
        woken->lanes[woken->count++] = lane;
    }
    return 0;
}

static i64 worth_waking(Ledger *l, i64 count, i64 lanes, int relaxed)
{
    Cells w = l->w;
    i64 worth = w[W_WORTH_WAKING] > 0 ? w[W_WORTH_WAKING] : 1, found = w[W_TAIL] - CURSOR_PLACE(w[W_CURSOR]);
    if (!relaxed) found *= (count + worth - 1) / worth;
    for (i64 lane = 0; lane < lanes; lane++) {
        i64 at = LANE(lane), busy = w[at + W_L_WAITING] || w[at + W_L_GROUP] || w[at + W_L_COLLATE];
        found -= !busy && w[at + W_L_ROLE] == W_WORKING;
    }
    return found + w[W_RETRIES];
}

typedef struct { i64 slot, expected, collate, group, count, kind, blob, free_order, lanes, relaxed; } Batch;

static int push(Ledger *l, i64 item)
{
    Cells w = l->w;
    PUT(l->retry + w[W_RETRIES], item);
    PUT(W_RETRIES, w[W_RETRIES] + 1);
    return 0;
}

static int publish(Ledger *l, const Batch *b, const i64 *ahead, i64 many, Woken *woken)
{
    Cells w = l->w;
    i64 at = SLOT(b->slot), states = l->row_state0 + b->slot * l->slot_stride, group = GROUP(b->group);
    i64 tickets = TICKET(b->group);
    if (w[W_HOLES]) {
        i64 kept = 0;
        for (i64 i = 0; i < w[W_HOLES]; i++) {
            i64 hole = w[l->hole + i];
            if (FIRST(hole) != b->slot) {
                PUT(l->hole + kept, hole);
                kept++;
            }
        }
        PUT(W_HOLES, kept);
    }
    for (i64 i = 0; i < W_SLOT; i++) PUT(at + i, 0);
    for (i64 i = 0; i < b->expected; i++) PUT(states + i, W_EMPTY);
    PUT(at + W_S_EXPECTED, b->expected);
    PUT(at + W_S_COLLATE, b->collate);
    PUT(at + W_S_BATCH, w[W_BATCHES]);
    PUT(W_BATCHES, w[W_BATCHES] + 1);
    PUT(at + W_S_STATUS, W_FILLING);
    for (i64 i = 0; i < b->count; i++) PUT(tickets + i, W_PENDING);
    PUT(group + W_G_COUNT, b->count);
    PUT(group + W_G_SLOT, b->free_order ? 0 : SOME(b->slot));
    PUT(group + W_G_KIND, b->kind);
    PUT(group + W_G_BLOB, b->blob);
    PUT(group + W_G_UNCLAIMED, b->count);
    PUT(group + W_G_AHEAD, many > 0);
    for (i64 i = 0; i < many; i++) {
        PUT(tickets + ahead[i], W_AHEAD);
        DO(push(l, PAIR(b->group, ahead[i])));
    }
    PUT(group + W_G_SERIAL, PAIR(w[W_GENERATION], w[W_TAIL]));
    PUT(l->order + w[W_TAIL] % l->ring, b->group);
    PUT(W_UNRESOLVED, w[W_UNRESOLVED] + b->count);
    PUT(W_TAIL, w[W_TAIL] + 1);
    if (b->free_order) {
        PUT(at + W_S_NUMBER, w[W_FILL_TAIL]);
        PUT(l->fill + w[W_FILL_TAIL] % l->ring, b->slot);
        PUT(W_FILL_TAIL, w[W_FILL_TAIL] + 1);
    }
    return wake_lanes(l, b->lanes, worth_waking(l, b->count, b->lanes, b->relaxed != 0), woken);
}

static int look(Ledger *l, const i64 *slots, i64 count, i64 *found)
{
    Cells w = l->w;
    *found = -1;
    for (i64 i = 0; i < count; i++)
        if (w[SLOT(slots[i]) + W_S_STATUS] == W_READY) {
            *found = slots[i];
            return 0;
        }
    PUT(W_AWAITED, count == 1 ? SOME(slots[0]) : W_ANY);
    return 0;
}

/* -- Python -- */

static int numbers(PyObject *const *args, Py_ssize_t count, i64 *into)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        into[i] = PyLong_AsLongLong(args[i]);
        if (into[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static int listed(PyObject *sequence, i64 **into, Py_ssize_t *count)
{
    *into = NULL;
    *count = PySequence_Size(sequence);
    if (*count < 0) return -1;
    *into = PyMem_Malloc(sizeof(i64) * (size_t)(*count + 1));
    if (!*into) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < *count; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        int rc = item ? numbers(&item, 1, *into + i) : -1;
        Py_XDECREF(item);
        if (rc < 0) {
            PyMem_Free(*into);
            *into = NULL;
            return -1;
        }
    }
    return 0;
}

/* The first ``count`` of a tuple of exactly ``size``. */
static int tuple_of(PyObject *tuple, Py_ssize_t size, Py_ssize_t count, i64 *into, const char *what)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != size) {
        PyErr_Format(PyExc_TypeError, "%s is a tuple of %zd", what, size);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        if (numbers(&item, 1, into + i) < 0) return -1;
    }
    return 0;
}

/* The twin of Dims.check_*. */
static int within(const char *what, i64 number, i64 there)
{
    if (number >= 0 && number < there) return 0;
    PyErr_Format(PyExc_IndexError, "%s %lld: there are %lld", what, (long long)number, (long long)there);
    return -1;
}

static int span_within(const char *what, i64 first, i64 count, i64 there)
{
    if (first >= 0 && count >= 0 && first <= there && count <= there - first) return 0;
    PyErr_Format(PyExc_IndexError, "%lld %s from %lld on: there are %lld", (long long)count, what, (long long)first,
                 (long long)there);
    return -1;
}

static int written_within(Ledger *l, const Written *r, Py_ssize_t objects)
{
    if (within("slot", r->slot, l->slots) < 0 || within("group", r->group, l->groups) < 0) return -1;
    if (span_within("rows", r->first, r->count, l->rows) < 0 || span_within("tickets", r->start, r->count, l->rows) < 0)
        return -1;
    if (r->objects && objects != r->count) {
        PyErr_Format(PyExc_ValueError, "%zd objects for %lld rows", objects, (long long)r->count);
        return -1;
    }
    return 0;
}

/* Why an operation was not done, or not to its end: -1, a test's fuse; below, the lock's error. */
static PyObject *stopped(int rc)
{
    if (rc == -1) {
        PyErr_SetString(Killed, "before this store");
        return NULL;
    }
    PyObject *why = Py_BuildValue("(is)", -1 - rc, "cannot take the lock of the run, so nothing was done");
    if (why) PyErr_SetObject(PyExc_OSError, why);
    Py_XDECREF(why);
    return NULL;
}

static PyObject *answered(const Answer *a)
{
    return Py_BuildValue("(LLLLLO)", a->what, a->a, a->b, a->c, a->d, a->wake ? Py_True : Py_False);
}

static Ledger *initialized(PyObject *self)
{
    Ledger *l = (Ledger *)self;
    if (l->w) return l;
    PyErr_SetString(PyExc_ValueError, "a ledger without words");
    return NULL;
}

#define ARGUMENTS(number)                                                     \
    Ledger *l = initialized(self);                                            \
    i64 n[number];                                                            \
    if (!l) return NULL;                                                      \
    if (count < number) {                                                     \
        PyErr_SetString(PyExc_TypeError, "too few arguments");                \
        return NULL;                                                          \
    }                                                                         \
    if (numbers(args, number, n) < 0) return NULL

/* (slot, first, count, group, start, objects or None); *objects is the caller's to free */
static int written_from(Ledger *l, PyObject *tuple, Written *into, i64 **objects)
{
    i64 place[5];
    Py_ssize_t many = 0;
    if (tuple_of(tuple, 6, 5, place, "written") < 0) return -1;
    PyObject *listing = PyTuple_GetItem(tuple, 5);
    if (listing != Py_None && listed(listing, objects, &many) < 0) return -1;
    *into = (Written){place[0], place[1], place[2], place[3], place[4], *objects};
    return written_within(l, into, many);
}

/* (lane, written or None, made or None, mode, chunk, share, least, whole) */
static PyObject *py_visit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Ledger *l = initialized(self);
    i64 lane[1], sizes[5], figures[3], *objects = NULL;
    Written written;
    Made made;
    Answer answer = {0};
    int rc;
    if (!l) return NULL;
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "visit takes eight arguments");
        return NULL;
    }
    if (numbers(args, 1, lane) < 0 || numbers(args + 3, 5, sizes) < 0 || within("lane", lane[0], l->lanes) < 0)
        return NULL;
    if (args[2] != Py_None) {
        if (tuple_of(args[2], 3, 3, figures, "made") < 0 || within("bin", figures[2], W_BINS) < 0) return NULL;
        made = (Made){figures[0], figures[1], figures[2]};
    }
    if (args[1] != Py_None && written_from(l, args[1], &written, &objects) < 0) {
        PyMem_Free(objects);
        return NULL;
    }
    TakeSize size = {sizes[0], sizes[1], sizes[2] > 0 ? sizes[2] : 1, sizes[3], sizes[4]};
    SECTION(rc, visit(l, LANE(lane[0]), args[1] == Py_None ? NULL : &written, args[2] == Py_None ? NULL : &made,
                      &size, &answer));
    PyMem_Free(objects);
    return rc < 0 ? stopped(rc) : answered(&answer);
}

/* (lane, written) -> (collate, wake) */
static PyObject *py_finish(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ARGUMENTS(1);
    i64 *objects = NULL, collate;
    Written written;
    int rc, wake;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "finish takes two arguments");
        return NULL;
    }
    if (within("lane", n[0], l->lanes) < 0) return NULL;
    if (written_from(l, args[1], &written, &objects) < 0) {
        PyMem_Free(objects);
        return NULL;
    }
    SECTION(rc, finish(l, LANE(n[0]), &written, &collate, &wake));
    PyMem_Free(objects);
    return rc < 0 ? stopped(rc) : Py_BuildValue("(LO)", collate, wake ? Py_True : Py_False);
}

/* (lane, want, layout, expected, room) -> (what, slot, first, count, layout, _) */
static PyObject *py_claim(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ARGUMENTS(5);
    if (within("lane", n[0], l->lanes) < 0) return NULL;
    Claim asked = {LANE(n[0]), n[1], n[2], n[3], n[4]};
    Answer answer = {0};
    int rc;
    SECTION(rc, claim(l, &asked, &answer));
    return rc < 0 ? stopped(rc) : answered(&answer);
}

/* (slot, layout, room) -> the layout decided */
static PyObject *py_shape(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ARGUMENTS(3);
    int rc;
    if (within("slot", n[0], l->slots) < 0) return NULL;
    SECTION(rc, shape(l, n[0], n[1], n[2]));
    return rc < 0 ? stopped(rc) : PyLong_FromLongLong(LAYOUT_IN(l->w[SLOT(n[0]) + W_S_LAYOUT]));
}

/* (slot, size, most) -> the offset; nothing was reserved where it and the size are more than most */
static PyObject *py_reserve(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ARGUMENTS(3);
    i64 offset;
    int rc;
    if (within("slot", n[0], l->slots) < 0) return NULL;
    SECTION(rc, reserve(l, n[0], n[1], n[2], &offset));
    return rc < 0 ? stopped(rc) : PyLong_FromLongLong(offset);
}

/* (lane, slot, offset, size, failed) -> wake */
static PyObject *py_ready(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ARGUMENTS(5);
    int rc, wake;
    if (within("lane", n[0], l->lanes) < 0 || within("slot", n[1], l->slots) < 0) return NULL;
    SECTION(rc, ready(l, LANE(n[0]), n[1], n[2], n[3], n[4], &wake));
    return rc < 0 ? stopped(rc) : PyBool_FromLong(wake);
}

static PyObject *woken_list(Woken *woken, int rc)
{
    PyObject *found = rc < 0 ? stopped(rc) : PyList_New(woken->count);
    for (Py_ssize_t i = 0; found && i < woken->count; i++) {
        PyObject *lane = PyLong_FromLongLong(woken->lanes[i]);
        if (!lane || PyList_SetItem(found, i, lane) < 0) Py_CLEAR(found);
    }
    PyMem_Free(woken->lanes);
    return found;
}

/* (lanes) -> those to ring */
static PyObject *py_wake(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ARGUMENTS(1);
    int rc;
    if (span_within("lanes", 0, n[0], l->lanes) < 0) return NULL;
    Woken woken = {PyMem_Malloc(sizeof(i64) * (size_t)(n[0] + 1)), 0};
    if (!woken.lanes) return PyErr_NoMemory();
    SECTION(rc, wake_lanes(l, n[0], n[0], &woken));
    return woken_list(&woken, rc);
}

static int batch_within(Ledger *l, const Batch *b, const i64 *ahead, Py_ssize_t many)
{
    if (within("slot", b->slot, l->slots) < 0 || within("group", b->group, l->groups) < 0) return -1;
    if (span_within("rows", 0, b->expected, l->rows) < 0 || span_within("tickets", 0, b->count, l->rows) < 0) return -1;
    if (span_within("lanes", 0, b->lanes, l->lanes) < 0) return -1;
    for (Py_ssize_t i = 0; i < many; i++)
        if (within("position", ahead[i], b->count) < 0) return -1;
    return 0;
}

/* (slot, expected, collate, group, count, kind, blob, free order, lanes, relaxed, ahead) -> lanes to ring */
static PyObject *py_publish(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ARGUMENTS(10);
    Batch batch = {n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9]};
    i64 *ahead = NULL;
    Py_ssize_t many = 0;
    int rc;
    if (count != 11) {
        PyErr_SetString(PyExc_TypeError, "publish takes eleven arguments");
        return NULL;
    }
    if (listed(args[10], &ahead, &many) < 0) return NULL;
    if (batch_within(l, &batch, ahead, many) < 0) {
        PyMem_Free(ahead);
        return NULL;
    }
    Woken woken = {PyMem_Malloc(sizeof(i64) * (size_t)(batch.lanes + 1)), 0};
    if (!woken.lanes) {
        PyMem_Free(ahead);
        return PyErr_NoMemory();
    }
    SECTION(rc, publish(l, &batch, ahead, many, &woken));
    PyMem_Free(ahead);
    return woken_list(&woken, rc);
}

/* (slots) -> the first that is ready, or -1 once the trainer is noted as waiting for them */
static PyObject *py_look(PyObject *self, PyObject *slots)
{
    Ledger *l = initialized(self);
    i64 *wanted, found;
    Py_ssize_t many;
    int rc = 0;
    if (!l || listed(slots, &wanted, &many) < 0) return NULL;
    for (Py_ssize_t i = 0; i < many && rc == 0; i++) rc = within("slot", wanted[i], l->slots);
    if (rc < 0) {
        PyMem_Free(wanted);
        return NULL;
    }
    SECTION(rc, look(l, wanted, many, &found));
    PyMem_Free(wanted);
    return rc < 0 ? stopped(rc) : PyLong_FromLongLong(found);
}

/* (lanes, slot) -> whether a lane may be writing to it; needs no lock: nobody begins to write to a free slot */
static PyObject *py_is_busy(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    ARGUMENTS(2);
    if (span_within("lanes", 0, n[0], l->lanes) < 0 || within("slot", n[1], l->slots) < 0) return NULL;
    for (i64 lane = 0; lane < n[0]; lane++)
        if (l->w[LANE(lane) + W_L_SLOT] == SOME(n[1]) || l->w[LANE(lane) + W_L_COLLATE] == SOME(n[1])) Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static PyMethodDef ledger_methods[] = {
    {"visit", (PyCFunction)(void (*)(void))py_visit, METH_FASTCALL, NULL},
    {"finish", (PyCFunction)(void (*)(void))py_finish, METH_FASTCALL, NULL},
    {"claim", (PyCFunction)(void (*)(void))py_claim, METH_FASTCALL, NULL},
    {"shape", (PyCFunction)(void (*)(void))py_shape, METH_FASTCALL, NULL},
    {"reserve", (PyCFunction)(void (*)(void))py_reserve, METH_FASTCALL, NULL},
    {"ready", (PyCFunction)(void (*)(void))py_ready, METH_FASTCALL, NULL},
    {"wake", (PyCFunction)(void (*)(void))py_wake, METH_FASTCALL, NULL},
    {"publish", (PyCFunction)(void (*)(void))py_publish, METH_FASTCALL, NULL},
    {"look", py_look, METH_O, NULL},
    {"is_busy", (PyCFunction)(void (*)(void))py_is_busy, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

/* 64-bit words; how many */
static i64 words_of(PyObject *from, Py_buffer *view)
{
    if (view->obj) PyBuffer_Release(view);
    if (PyObject_GetBuffer(from, view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0) return -1;
    if ((uintptr_t)view->buf % sizeof(i64) == 0) return view->len / (i64)sizeof(i64);
    PyErr_SetString(PyExc_ValueError, "words lie at multiples of eight bytes");
    return -1;
}

static pthread_mutex_t *mutex_among(const Py_buffer *view, i64 count, i64 at)
{
    if (span_within("words of a lock", at, W_MUTEX_WORDS, count) < 0) return NULL;
    return (pthread_mutex_t *)(void *)((i64 *)view->buf + at);
}

/* Ledger(words, places, mutex word or -1, fuse or None) */
static int ledger_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    Ledger *l = (Ledger *)self;
    PyObject *words, *places, *fuse;
    i64 *at, found;
    Py_ssize_t many;
    long long mutex;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOLO", &words, &places, &mutex, &fuse)) return -1;
    l->w = NULL, l->fuse = NULL, l->mutex = NULL;
    if (listed(places, &at, &many) < 0) return -1;
    i64 *into[] = {&l->ring, &l->order, &l->fill, &l->retry, &l->hole, &l->group0, &l->group_stride, &l->index0,
                   &l->ticket0, &l->slot0, &l->slot_stride, &l->row_ticket0, &l->row_state0, &l->lane0, &l->lane_stride,
                   &l->lanes, &l->groups, &l->slots, &l->rows, &l->words};
    Py_ssize_t wanted = sizeof(into) / sizeof(*into);
    for (Py_ssize_t i = 0; i < wanted && i < many; i++) *into[i] = at[i];
    PyMem_Free(at);
    if (many != wanted) {
        PyErr_Format(PyExc_ValueError, "%zd places, not %zd", wanted, many);
        return -1;
    }
    found = words_of(words, &l->view);
    if (found < 0) return -1;
    if (found < l->words) {
        PyErr_Format(PyExc_ValueError, "%lld words where the ledger has %lld", (long long)found, (long long)l->words);
        return -1;
    }
    if (mutex >= 0 && !(l->mutex = mutex_among(&l->view, found, mutex))) return -1;
    if (fuse != Py_None) {
        found = words_of(fuse, &l->fuse_view);
        if (found < 0 || span_within("words of a fuse", 0, 2, found) < 0) return -1;
        l->fuse = l->fuse_view.buf;
    }
    l->w = l->view.buf;
    return 0;
}

static void ledger_dealloc(PyObject *self)
{
    Ledger *l = (Ledger *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (l->view.obj) PyBuffer_Release(&l->view);
    if (l->fuse_view.obj) PyBuffer_Release(&l->fuse_view);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot ledger_slots[] = {
    {Py_tp_init, ledger_init}, {Py_tp_dealloc, ledger_dealloc}, {Py_tp_methods, ledger_methods}, {0, NULL}};
static PyType_Spec ledger_spec = {"headrace.sched.native.Ledger", sizeof(Ledger), 0, Py_TPFLAGS_DEFAULT, ledger_slots};

/* -- the lock itself, for the sections that are Python -- */

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    pthread_mutex_t *mutex;
    Cells depth; /* how often its holder has entered it: the last of its words, which nobody else writes */
} Mutex;

static int mutex_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    Mutex *m = (Mutex *)self;
    PyObject *words;
    long long at;
    i64 count;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OL", &words, &at)) return -1;
    m->mutex = NULL;
    count = words_of(words, &m->view);
    if (count < 0 || !(m->mutex = mutex_among(&m->view, count, at))) return -1;
    m->depth = (Cells)m->view.buf + at + W_MUTEX_WORDS - 1;
    return 0;
}

static void mutex_dealloc(PyObject *self)
{
    Mutex *m = (Mutex *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (m->view.obj) PyBuffer_Release(&m->view);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Mutex *placed(PyObject *self)
{
    Mutex *m = (Mutex *)self;
    if (m->mutex) return m;
    PyErr_SetString(PyExc_ValueError, "a lock without words");
    return NULL;
}

static PyObject *mutex_make(PyObject *self, PyObject *ignored)
{
    Mutex *m = placed(self);
    pthread_mutexattr_t kind;
    (void)ignored;
    if (!m) return NULL;
    int rc = pthread_mutexattr_init(&kind);
    if (!rc) rc = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    if (!rc) rc = pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    if (!rc) rc = pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    memset((void *)m->mutex, 0, sizeof(pthread_mutex_t));
    if (!rc) rc = pthread_mutex_init(m->mutex, &kind);
    *m->depth = 0;
    if (rc) return stopped(-1 - rc);
    Py_RETURN_NONE;
}

static PyObject *mutex_enter(PyObject *self, PyObject *ignored)
{
    Mutex *m = placed(self);
    (void)ignored;
    if (!m) return NULL;
    int rc = try_lock(m->mutex);
    if (rc == EBUSY) {
        Py_BEGIN_ALLOW_THREADS
        rc = wait_lock(m->mutex);
        Py_END_ALLOW_THREADS
    }
    if (rc && rc != EDEADLK) return stopped(-1 - rc);
    *m->depth = rc ? *m->depth + 1 : 1;
    Py_RETURN_NONE;
}

/* Whether this thread holds it. */
static int holds(pthread_mutex_t *mutex)
{
    int rc = try_lock(mutex);
    if (rc == 0) pthread_mutex_unlock(mutex);
    return rc == EDEADLK;
}

static PyObject *mutex_exit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Mutex *m = placed(self);
    (void)args, (void)count;
    if (!m) return NULL;
    if (*m->depth <= 1)
        pthread_mutex_unlock(m->mutex); /* not this thread's: nothing happens */
    else if (holds(m->mutex))
        *m->depth -= 1;
    Py_RETURN_NONE;
}

/* Lets it go if this thread holds it, however often it has entered; whether it is free then. */
static PyObject *mutex_leave(PyObject *self, PyObject *ignored)
{
    Mutex *m = placed(self);
    (void)ignored;
    if (!m) return NULL;
    pthread_mutex_unlock(m->mutex);
    if (try_lock(m->mutex)) Py_RETURN_FALSE;
    *m->depth = 0;
    pthread_mutex_unlock(m->mutex);
    Py_RETURN_TRUE;
}

static PyMethodDef mutex_methods[] = {
    {"make", mutex_make, METH_NOARGS, NULL},
    {"leave", mutex_leave, METH_NOARGS, NULL},
    {"__enter__", mutex_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))mutex_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot mutex_slots[] = {
    {Py_tp_init, mutex_init}, {Py_tp_dealloc, mutex_dealloc}, {Py_tp_methods, mutex_methods}, {0, NULL}};
static PyType_Spec mutex_spec = {"headrace.sched.native.Mutex", sizeof(Mutex), 0, Py_TPFLAGS_DEFAULT, mutex_slots};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", "The ledger's hot operations.", -1, NULL,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void)
{
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    Killed = PyErr_NewException("headrace.sched.native.Killed", NULL, NULL);
    PyObject *ledger = PyType_FromSpec(&ledger_spec), *mutex = PyType_FromSpec(&mutex_spec);
    int rc = Killed && ledger && mutex ? 0 : -1;
    if (!rc) rc = PyModule_AddObjectRef(made, "Killed", Killed);
    if (!rc) rc = PyModule_AddObjectRef(made, "Ledger", ledger);
    if (!rc) rc = PyModule_AddObjectRef(made, "Mutex", mutex);
    if (!rc) rc = PyModule_AddIntConstant(made, "WORDS", W_VERSION);
    Py_XDECREF(ledger);
    Py_XDECREF(mutex);
    if (rc) Py_CLEAR(made);
    return made;
}
