// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011), for
// several consecutive counters at once. See pageant/kernels/sampling.py for what the words mean.
#pragma once

#include "base/vec.h"

struct NoiseKey {
    uint32_t key[2];
    uint32_t counter[3];  // words 1 to 3; word 0 is the token's id over 4
};

constexpr int QUADS = 16;  // computed together

typedef uint64_t wide __attribute__((vector_size(W * 4)));  // of whose lanes the lower halves count

// The lower half of each lane by a number: all of the product.
inline wide product_of(wide x, uint32_t by) {
#if defined(__AVX512F__)
    return (wide)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(by));
#elif defined(__AVX2__)
    return (wide)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi64x(by));
#else
    return (x & 0xffffffffull) * uint64_t(by);
#endif
}

// words[i][q] is word i of counter `quad + q`.
inline void philox(const NoiseKey& name, uint32_t quad, uint32_t (&words)[4][QUADS]) {
    constexpr int LANES = W / 2;
    for (int start = 0; start < QUADS; start += LANES) {
        wide c0 = {}, c1 = wide{} + name.counter[0], c2 = wide{} + name.counter[1], c3 = wide{} + name.counter[2];
        for (int q = 0; q < LANES; q++) c0[q] = quad + uint32_t(start + q);
        uint64_t k0 = name.key[0], k1 = name.key[1];
        for (int round = 0; round < 10; round++) {
            const wide p0 = product_of(c0, 0xD2511F53u), p1 = product_of(c2, 0xCD9E8D57u);
            c0 = (p1 >> 32) ^ c1 ^ k0;
            c1 = p1;
            c2 = (p0 >> 32) ^ c3 ^ k1;
            c3 = p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        const wide all[4] = {c0, c1, c2, c3};
        for (int i = 0; i < 4; i++)
            for (int q = 0; q < LANES; q++) words[i][start + q] = uint32_t(all[i][q]);
    }
}
