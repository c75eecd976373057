/* reverse_play of envs/sokoban/search.py in C: the same states in the same order, so the same result.
 *
 * A state is an array of uint16: each box as cell * 2 + (1 if a pull has put it there), sorted, then the player's cell.
 * Seen states lie one after the other in one block; an open-addressing table of indices finds them by exact comparison.
 */
#ifndef ENVS_SOKOBAN_SEARCH_H
#define ENVS_SOKOBAN_SEARCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WALL = 0, FLOOR = 1, TARGET = 2 };
enum { MAX_CELLS = 16384 }; /* cell * 2 + 1 must fit 16 bits, with room to spare */

typedef struct {
    uint16_t *keys; /* count * length numbers */
    uint32_t *table; /* index into keys + 1, or 0 */
    size_t length, count, capacity, mask;
} Seen;

/* What a pending state carries besides its key; boxes (cells in the order of their targets) follow in an array. */
typedef struct {
    int32_t last, moves;
    int64_t swaps, displacement;
} Pending;

static uint64_t hash_key(const uint16_t *key, size_t length) {
    uint64_t h = 0x9E3779B97F4A7C15ULL;
    for (size_t i = 0; i < length; i++) {
        h = (h ^ key[i]) * 0xFF51AFD7ED558CCDULL;
        h ^= h >> 32;
    }
    return h;
}

static int seen_init(Seen *seen, size_t length) {
    seen->length = length;
    seen->count = 0;
    seen->capacity = 128;
    seen->mask = 2 * seen->capacity - 1;
    seen->keys = malloc(seen->capacity * length * sizeof(uint16_t));
    seen->table = calloc(seen->mask + 1, sizeof(uint32_t));
    return seen->keys && seen->table;
}

static int seen_grow(Seen *seen) {
    size_t capacity = seen->capacity * 2, mask = 2 * capacity - 1;
    uint16_t *keys = realloc(seen->keys, capacity * seen->length * sizeof(uint16_t));
    if (!keys) return 0;
    seen->keys = keys;
    uint32_t *table = calloc(mask + 1, sizeof(uint32_t));
    if (!table) return 0;
    for (size_t i = 0; i < seen->count; i++) {
        size_t slot = hash_key(keys + i * seen->length, seen->length) & mask;
        while (table[slot]) slot = (slot + 1) & mask;
        table[slot] = (uint32_t)(i + 1);
    }
    free(seen->table);
    seen->table = table;
    seen->capacity = capacity;
    seen->mask = mask;
    return 1;
}

/* The slot of the key, whether it is taken (the key was seen) or free. */
static size_t seen_slot(const Seen *seen, const uint16_t *key) {
    size_t bytes = seen->length * sizeof(uint16_t);
    size_t slot = hash_key(key, seen->length) & seen->mask;
    while (seen->table[slot] && memcmp(seen->keys + (seen->table[slot] - 1) * seen->length, key, bytes))
        slot = (slot + 1) & seen->mask;
    return slot;
}

static int64_t distance(int a, int b, int width) {
    return abs(a / width - b / width) + abs(a % width - b % width);
}

/* Replace `old` by `new` in the sorted array. */
static void replace(uint16_t *sorted, size_t n, uint16_t old, uint16_t new) {
    size_t i = 0;
    while (sorted[i] != old) i++;
    for (; i + 1 < n && sorted[i + 1] < new; i++) sorted[i] = sorted[i + 1];
    for (; i > 0 && sorted[i - 1] > new; i--) sorted[i] = sorted[i - 1];
    sorted[i] = new;
}

typedef struct {
    int player;
    int64_t displacement;
    uint16_t *boxes;
} Best;

/* Returns 0 when memory runs out. `best->boxes` holds the targets on entry. */
static int search(const uint8_t *structure, int width, int player, int depth, size_t max_states, size_t n,
                  const uint16_t *targets, uint8_t *occupied, Best *best) {
    const int steps[4] = {-width, width, -1, 1};
    const size_t length = n + 1;
    size_t room = 64, pending = 1;
    int ok = 0;
    int64_t best_score = 0;
    Seen seen = {0};
    Pending *stack = malloc(room * sizeof(Pending));
    /* per pending state: its key, then the boxes by target */
    const size_t stride = length + n;
    uint16_t *states = malloc(room * stride * sizeof(uint16_t));
    uint16_t *state = malloc(stride * sizeof(uint16_t));
    if (!stack || !states || !state || !seen_init(&seen, length)) goto done;

    for (size_t i = 0; i < n; i++) states[i] = (uint16_t)(targets[i] * 2), states[length + i] = targets[i];
    states[n] = (uint16_t)player;
    stack[0] = (Pending){.last = -1};

    while (pending) {
        const Pending now = stack[--pending];
        memcpy(state, states + pending * stride, stride * sizeof(uint16_t));
        size_t slot = seen_slot(&seen, state);
        if (seen.table[slot]) continue;
        if (seen.count >= max_states) break;
        if (seen.count == seen.capacity) {
            if (!seen_grow(&seen)) goto done;
            slot = seen_slot(&seen, state);
        }
        memcpy(seen.keys + seen.count * length, state, length * sizeof(uint16_t));
        seen.table[slot] = (uint32_t)++seen.count;

        const int here = state[n];
        const uint16_t *boxes = state + length;
        if (now.swaps * now.displacement > best_score) {
            int covered = structure[here] == TARGET;
            for (size_t i = 0; i < n; i++) covered |= structure[boxes[i]] == TARGET;
            if (!covered) {
                best_score = now.swaps * now.displacement;
                best->player = here;
                best->displacement = now.displacement;
                memcpy(best->boxes, boxes, n * sizeof(uint16_t));
            }
        }
        if (now.moves >= depth - 2) continue;

        if (pending + 4 > room) {
            room *= 2;
            Pending *more = realloc(stack, room * sizeof(Pending));
            if (!more) goto done;
            stack = more;
            uint16_t *larger = realloc(states, room * stride * sizeof(uint16_t));
            if (!larger) goto done;
            states = larger;
        }
        for (size_t i = 0; i < n; i++) occupied[boxes[i]] = 1;
        for (int move = 3; move >= 0; move--) {
            const int there = here + steps[move], behind = here - steps[move];
            if (structure[there] == WALL || occupied[there]) continue;
            uint16_t *next = states + pending * stride;
            memcpy(next, state, stride * sizeof(uint16_t));
            next[n] = (uint16_t)there;
            Pending then = now;
            then.moves++;
            if (occupied[behind]) {
                size_t box = 0;
                while (boxes[box] != behind) box++;
                int pulled = 0;
                for (size_t i = 0; i < n; i++) pulled |= state[i] == behind * 2 + 1;
                replace(next, n, (uint16_t)(behind * 2 + pulled), (uint16_t)(here * 2 + 1));
                next[length + box] = (uint16_t)here;
                then.displacement += distance(here, targets[box], width) - distance(behind, targets[box], width);
                then.swaps += then.last != (int32_t)box;
                then.last = (int32_t)box;
            }
            if (!seen.table[seen_slot(&seen, next)]) stack[pending++] = then;
        }
        for (size_t i = 0; i < n; i++) occupied[boxes[i]] = 0;
    }
    ok = 1;
done:
    free(stack);
    free(states);
    free(state);
    free(seen.keys);
    free(seen.table);
    return ok;
}

#endif
