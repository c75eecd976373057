/* The numbers of random.Random and of numpy.random.RandomState, bit for bit, without making such an object for each room,
 * which takes longer than to draw one.
 *
 * A seed is an array of 32-bit words, the lowest first. Source: Matsumoto and Nishimura, "Mersenne Twister" (1998),
 * mt19937ar.c, which Python and NumPy use.
 */
#ifndef ENVS_SOKOBAN_TWISTER_H
#define ENVS_SOKOBAN_TWISTER_H

#include "../_batch.h"

enum { MT_WORDS = 624, MT_SHIFT = 397 };

typedef struct {
    uint32_t key[MT_WORDS];
    size_t at;
} Twister;

/* Seeding is a chain of multiplications, each of which waits for the one before; four chains side by side take the time of
 * one. */
enum { LANES = 4 };

/* numpy.random.RandomState(seed), for seeds of one word. */
static void twisters_seed(Twister *twisters[LANES], const uint32_t seeds[LANES]) {
    for (int lane = 0; lane < LANES; lane++) twisters[lane]->key[0] = seeds[lane], twisters[lane]->at = 0;
    for (uint32_t i = 1; i < MT_WORDS; i++)
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t *key = twisters[lane]->key, last = key[i - 1];
            key[i] = 1812433253u * (last ^ (last >> 30)) + i;
        }
}

/* random.Random(seed), for seeds of up to MT_WORDS words. */
static void twisters_seed_words(Twister *twisters[LANES], const uint32_t *seeds[LANES], size_t words) {
    static const uint32_t first[LANES] = {19650218u, 19650218u, 19650218u, 19650218u};
    size_t lengths[LANES], used[LANES] = {0};
    twisters_seed(twisters, first);
    for (int lane = 0; lane < LANES; lane++) lengths[lane] = seed_length(seeds[lane], words);
    for (size_t k = 0, i = 1; k < MT_WORDS; k++) {
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t *key = twisters[lane]->key, last = key[i - 1];
            size_t at = used[lane];
            key[i] = (key[i] ^ ((last ^ (last >> 30)) * 1664525u)) + seeds[lane][at] + (uint32_t)at;
            used[lane] = at + 1 < lengths[lane] ? at + 1 : 0;
            if (i + 1 == MT_WORDS) key[0] = key[i];
        }
        if (++i == MT_WORDS) i = 1;
    }
    /* The round above ends at 1, since it has one step more than there are places from 1 on. */
    for (size_t k = 1, i = 2; k < MT_WORDS; k++) {
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t *key = twisters[lane]->key, last = key[i - 1];
            key[i] = (key[i] ^ ((last ^ (last >> 30)) * 1566083941u)) - (uint32_t)i;
            if (i + 1 == MT_WORDS) key[0] = key[i];
        }
        if (++i == MT_WORDS) i = 1;
    }
    for (int lane = 0; lane < LANES; lane++) twisters[lane]->key[0] = 0x80000000u;
}

/* One word at a time, since a level needs few of a round of 624. */
static uint32_t twister_next(Twister *twister) {
    uint32_t *key = twister->key;
    size_t at = twister->at, next = at + 1 < MT_WORDS ? at + 1 : 0;
    size_t far = at + MT_SHIFT < MT_WORDS ? at + MT_SHIFT : at + MT_SHIFT - MT_WORDS;
    uint32_t y = (key[at] & 0x80000000u) | (key[next] & 0x7fffffffu);
    y = key[at] = key[far] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    twister->at = next;
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* random.Random.random() */
static double twister_uniform(Twister *twister) {
    uint32_t high = twister_next(twister) >> 5, low = twister_next(twister) >> 6;
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

/* A whole number below n, as random.Random.choice and randint draw it. */
static uint32_t twister_choice(Twister *twister, uint32_t n) {
    int bits = 0;
    while (n >> bits) bits++;
    uint32_t drawn = twister_next(twister) >> (32 - bits);
    while (drawn >= n) drawn = twister_next(twister) >> (32 - bits);
    return drawn;
}

/* A whole number below n, as RandomState.randint(n) draws it. */
static uint32_t twister_masked(Twister *twister, uint32_t n) {
    uint32_t mask = 0, drawn;
    while (mask < n - 1) mask = mask << 1 | 1;
    if (!mask) return 0;
    while ((drawn = twister_next(twister) & mask) >= n) {}
    return drawn;
}

#endif
