/* The numbers of numpy.random.Generator(PCG64(seed)), bit for bit, without making such an object for each lake, which
 * takes longer than to draw one.
 *
 * A seed is an array of 32-bit words, the lowest first. Sources: O'Neill, "PCG" (2014); NumPy's bit_generator.pyx (the
 * state from a seed), pcg64.h and distributions.c.
 */
#ifndef ENVS_FROZENLAKE_PCG_H
#define ENVS_FROZENLAKE_PCG_H

#include "../_batch.h"

typedef unsigned __int128 Wide;

typedef struct {
    Wide state, increment;
    uint32_t kept; /* the half of a number that is not used yet */
    int has_kept;
} Pcg;

static uint32_t hash_word(uint32_t value, uint32_t *constant, uint32_t factor) {
    value ^= *constant;
    *constant *= factor;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix_words(uint32_t x, uint32_t y) {
    uint32_t mixed = 0xca01f9ddu * x - 0x4973f715u * y;
    return mixed ^ mixed >> 16;
}

static void pcg_step(Pcg *pcg) {
    pcg->state = pcg->state * ((Wide)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u) + pcg->increment;
}

/* PCG64(seed): its state from SeedSequence(seed). */
static void pcg_seed(Pcg *pcg, const uint32_t *seed, size_t words) {
    enum { POOL = 4 };
    size_t length = seed_length(seed, words);
    uint32_t pool[POOL], constant = 0x43b0d7e5u;
    for (size_t i = 0; i < POOL; i++) pool[i] = hash_word(i < length ? seed[i] : 0, &constant, 0x931e8875u);
    for (size_t from = 0; from < POOL; from++)
        for (size_t to = 0; to < POOL; to++)
            if (from != to) pool[to] = mix_words(pool[to], hash_word(pool[from], &constant, 0x931e8875u));
    for (size_t from = POOL; from < length; from++)
        for (size_t to = 0; to < POOL; to++)
            pool[to] = mix_words(pool[to], hash_word(seed[from], &constant, 0x931e8875u));
    uint64_t numbers[4] = {0};
    constant = 0x8b51f9ddu;
    for (size_t i = 0; i < 8; i++)
        numbers[i / 2] |= (uint64_t)hash_word(pool[i % POOL], &constant, 0x58f38dedu) << (i % 2 * 32);
    pcg->increment = ((Wide)numbers[2] << 64 | numbers[3]) << 1 | 1;
    pcg->state = 0;
    pcg_step(pcg);
    pcg->state += (Wide)numbers[0] << 64 | numbers[1];
    pcg_step(pcg);
    pcg->has_kept = 0;
}

static uint64_t pcg_next(Pcg *pcg) {
    pcg_step(pcg);
    uint64_t mixed = (uint64_t)(pcg->state >> 64) ^ (uint64_t)pcg->state;
    int turn = (int)(pcg->state >> 122);
    return mixed >> turn | mixed << (-turn & 63);
}

/* Generator.random() */
static double pcg_uniform(Pcg *pcg) { return (double)(pcg_next(pcg) >> 11) * (1.0 / 9007199254740992.0); }

static uint32_t pcg_next_half(Pcg *pcg) {
    pcg->has_kept = !pcg->has_kept;
    if (!pcg->has_kept) return pcg->kept;
    uint64_t both = pcg_next(pcg);
    pcg->kept = (uint32_t)(both >> 32);
    return (uint32_t)both;
}

/* Generator.integers(n), for n of 2 or more. */
static uint32_t pcg_below(Pcg *pcg, uint32_t n) {
    uint64_t product = (uint64_t)pcg_next_half(pcg) * n;
    if ((uint32_t)product < n) {
        uint32_t threshold = (0u - n) % n;
        while ((uint32_t)product < threshold) product = (uint64_t)pcg_next_half(pcg) * n;
    }
    return (uint32_t)(product >> 32);
}

#endif
